package streamstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/tabletopic/tabletopic/objectstore"
)

// observed counts the requests of a bucket.
type observed struct {
	mu       sync.Mutex
	requests []objectstore.Request
}

func (o *observed) ObserveRequest(r objectstore.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.requests = append(o.requests, r)
}

// take returns the requests of one kind under a prefix, and forgets all.
func (o *observed) take(op objectstore.Op, prefix string) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range o.requests {
		if r.Op == op && strings.HasPrefix(r.Key, prefix) {
			n++
		}
	}
	o.requests = nil
	return n
}

func (e *env) observe() *observed {
	o := &observed{}
	e.bucket = objectstore.Observe(e.bucket, o)
	return o
}

// cold fills one stream and leaves its data in objects alone.
func (e *env) cold(cfg Config, payloads []string) (*Store, *Stream) {
	e.t.Helper()
	s := e.open(cfg)
	st := e.create(s, 1, 1)[0]
	appendAll(e.t, st, payloads...)
	if err := s.upload.flush(context.Background()); err != nil {
		e.t.Fatal(err)
	}
	s.cache.evict(0)
	return s, st
}

// forgetBlocks empties the block cache.
func (r *reader) forgetBlocks() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.blocks.blocks {
		b.session = nil
		r.blocks.drop(b)
	}
	r.blocks.ghosts = newLRU[blockKey, struct{}](r.blocks.limit)
}

// forgetAll lets the reader know nothing, as after a start.
func (r *reader) forgetAll() {
	r.forgetBlocks()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.indexes = newLRU[ObjectID, []indexEntry](r.indexes.limit)
	r.ranges = newLRU[StreamID, []ObjectRange](r.ranges.limit)
	r.sessions = newLRU[position, *session](r.sessions.limit)
}

// A sequential reader needs few requests: the window of each grows.
func TestReadAheadGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		want := numbered("r", 2000, 16<<10) // 32 MiB in 64 blocks
		_, st := e.cold(Config{CleanInterval: -1, WALLinger: time.Millisecond}, want)
		e.gets.Store(0)
		var got []string
		for at := int64(0); at < 2000; {
			batches, err := st.Fetch(context.Background(), at, 2000, 100<<10)
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range batches {
				got = append(got, string(b.Payload))
			}
			at = batches[len(batches)-1].End()
			synctest.Wait() // what is read ahead has come
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%d batches, want %d", len(got), len(want))
		}
		if n := e.gets.Load(); n > 14 { // the index, 512 KiB to 4 MiB while the window grows, then 4 MiB each
			t.Fatalf("%d GETs for 32 MiB in order, want at most 14", n)
		}
		e.gets.Store(0)
		for i := range int64(20) { // far apart: nothing is read that is not asked for
			if _, err := st.Fetch(context.Background(), i*97, 2000, 1); err != nil {
				t.Fatal(err)
			}
		}
		if n := e.gets.Load(); n > 20 {
			t.Fatalf("%d GETs for 20 random reads", n)
		}
	})
}

// Readers that want the same bytes at the same time share one request.
func TestConcurrentReadsShareRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		f := e.faulty()
		o := e.observe()
		_, st := e.cold(Config{CleanInterval: -1, WALLinger: time.Millisecond}, numbered("r", 100, 1000))
		f.SetFaults(objectstore.Faults{Latency: time.Second})
		o.take(objectstore.OpGet, "")
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if got, err := st.Fetch(context.Background(), 0, 100, 1<<20); err != nil || len(got) != 100 {
					t.Errorf("%d batches, %v", len(got), err)
				}
			})
		}
		wg.Wait()
		if n := o.take(objectstore.OpGet, ""); n != 2 {
			t.Fatalf("%d GETs, want 2: the index and the block", n)
		}
	})
}

// A reader that gives up does not fail those that wait for the same request.
func TestReaderGivesUpAlone(t *testing.T) {
	e := newEnv(t)
	f := e.faulty()
	_, st := e.cold(e.config(WALObject), numbered("r", 10, 100))
	hold := f.Hold(objectstore.Before, func(op objectstore.Op, key string) bool { return op == objectstore.OpGet })
	ctx, cancel := context.WithCancel(context.Background())
	gone, stays := make(chan error, 1), make(chan error, 1)
	fetch := func(ctx context.Context, c chan error) { _, err := st.Fetch(ctx, 0, 10, 1<<20); c <- err }
	go fetch(ctx, gone)
	<-hold.Reached()
	go fetch(context.Background(), stays)
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled reader: %v", err)
	}
	hold.Release(nil)
	if err := <-stays; err != nil {
		t.Fatalf("the other reader: %v", err)
	}
}

// Wrong bytes in an object are an error with its key and position, never data.
func TestReadRefusesCorruptObject(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t)
	s, st := e.cold(e.config(WALObject), numbered("r", 10, 300))
	page, err := e.memory.List(ctx, dataPrefix, "")
	if err != nil || len(page) != 1 {
		t.Fatalf("objects %v, %v", page, err)
	}
	key := page[0].Key
	whole, err := e.memory.Get(ctx, key, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	for at := objectHeaderSize; at < len(whole); at += 7 {
		flipped := slices.Clone(whole)
		flipped[at] ^= 1
		if err := e.memory.Put(ctx, key, flipped); err != nil {
			t.Fatal(err)
		}
		s.reader.forgetAll()
		_, err := fetchAll(st, 1<<20)
		if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), key) {
			t.Fatalf("byte %d flipped: %v", at, err)
		}
		poll(t, "blocks of the same request handed out", func() bool {
			s.reader.mu.Lock()
			defer s.reader.mu.Unlock()
			return len(s.reader.loading) == 0
		})
	}
}

// An object that was replaced after its place was looked up is looked up again.
func TestReadFollowsReplacedObject(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t)
	want := numbered("r", 10, 300)
	s, st := e.cold(e.config(WALObject), want)
	if got := readAll(t, st); !slices.Equal(got, want) {
		t.Fatal("before")
	}
	// What a compaction does: the same blocks in a new object, the old one is gone.
	b := newObjectBuilder(KindStream, 1000)
	batches, err := st.Fetch(ctx, 0, 10, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	b.addStream(st.ID(), batches, nil, 4<<10)
	body, size := b.finish()
	if err := e.memory.Put(ctx, ObjectKey(1000), body...); err != nil {
		t.Fatal(err)
	}
	e.meta.mu.Lock()
	old := e.meta.streams[st.ID()].ranges[0]
	e.meta.streams[st.ID()].ranges = []ObjectRange{{ObjectRef{1000, KindStream, size}, 0, 10}}
	e.meta.mu.Unlock()
	if err := e.memory.Delete(ctx, ObjectKey(old.ID)); err != nil {
		t.Fatal(err)
	}
	s.reader.forgetBlocks()
	if got := readAll(t, st); !slices.Equal(got, want) {
		t.Fatalf("%d batches after the object was replaced, want %d", len(got), len(want))
	}
}

// Data that waits too long is uploaded, though it is little; one stream alone gets a
// stream object.
func TestUploadInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		s := e.open(Config{CleanInterval: -1})
		st := e.create(s, 1, 1)[0]
		appendAll(t, st, "a")
		<-time.After(59 * time.Second)
		if page, _ := e.memory.List(t.Context(), dataPrefix, ""); len(page) != 0 {
			t.Fatalf("%d objects after 59 s", len(page))
		}
		<-time.After(2 * time.Second)
		ranges, err := e.meta.StreamObjects(t.Context(), st.ID(), 0, 10, 10)
		if err != nil || len(ranges) != 1 || ranges[0].Kind != KindStream {
			t.Fatalf("objects %v, %v, want one stream object", ranges, err)
		}
		synctest.Wait()
		if data, _ := e.walObjects(s.Node()); len(data) != 0 {
			t.Fatalf("WAL holds %v after the upload", data)
		}
	})
}

// Data at full speed makes a WAL object per 8 MiB and a few data objects; a stream with 8 MiB or more
// has one of its own, the small ones share.
func TestRequestsPerUpload(t *testing.T) { synctest.Test(t, testRequestsPerUpload) }

func testRequestsPerUpload(t *testing.T) {
	e := newEnv(t)
	o := e.observe()
	s := e.open(Config{CleanInterval: -1, WALLinger: time.Minute, LogCacheBytes: 512 << 20, UploadBytes: 64 << 20})
	streams := e.create(s, 10, 1)
	payload := make([]byte, 128<<10)
	var wg sync.WaitGroup
	add := func(st *Stream, n int) {
		for range n {
			wg.Add(1)
			if _, err := st.Append(context.Background(), RecordBatch{Count: 1, Payload: payload}, func(error) { wg.Done() }); err != nil {
				t.Fatal(err)
			}
		}
	}
	add(streams[0], 330) // 41 MiB
	for _, st := range streams[1:] {
		add(st, 7)
	}
	s.wal.flush()
	wg.Wait()
	if n := o.take(objectstore.OpPutIfAbsent, walPrefix); n > 7 {
		t.Errorf("%d WAL objects for 49 MiB, want at most 7", n)
	}
	if err := s.upload.flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n := o.take(objectstore.OpPut, dataPrefix); n != 2 {
		t.Errorf("%d data objects, want 2", n)
	}
	for i, st := range streams {
		ranges, err := e.meta.StreamObjects(context.Background(), st.ID(), 0, 1000, 10)
		want := KindStreamSet
		if i == 0 {
			want = KindStream
		}
		if err != nil || len(ranges) != 1 || ranges[0].Kind != want {
			t.Errorf("stream %d: objects %v, %v, want kind %d", i, ranges, err, want)
		}
	}
}

// failing is a bucket that takes no Put while it is down.
type failing struct {
	objectstore.Bucket
	down atomic.Bool
}

func (f *failing) Put(ctx context.Context, key string, body ...[]byte) error {
	if f.down.Load() {
		return errors.New("503 SlowDown")
	}
	return f.Bucket.Put(ctx, key, body...)
}

// An upload outlasts an outage longer than its prepared ids live.
func TestUploadOutlastsOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		f := &failing{Bucket: e.memory}
		f.down.Store(true)
		e.bucket = f
		s := e.open(Config{})
		st := e.create(s, 1, 1)[0]
		appendAll(t, st, "a")
		<-time.After(5 * time.Hour)
		f.down.Store(false)
		<-time.After(time.Minute)
		if err := s.Err(); err != nil {
			t.Fatal(err)
		}
		if ranges, err := e.meta.StreamObjects(t.Context(), st.ID(), 0, 1, 1); err != nil || len(ranges) != 1 {
			t.Fatalf("objects %v, %v, want one", ranges, err)
		}
	})
}

// The log cache keeps its bound, but for a bulk, while data flows through it.
func TestLogCacheIsBounded(t *testing.T) {
	e := newEnv(t)
	cfg := e.config(WALObject)
	s := e.open(cfg)
	st := e.create(s, 1, 1)[0]
	for i := range 50 {
		appendAll(t, st, numbered(fmt.Sprint(i), 20, 500)...)
		s.cache.mu.RLock()
		held := s.cache.bytes
		s.cache.mu.RUnlock()
		if held > cfg.LogCacheBytes+2*cfg.WALBytes {
			t.Fatalf("the cache holds %d bytes, its bound is %d", held, cfg.LogCacheBytes)
		}
	}
	s.reader.mu.Lock()
	defer s.reader.mu.Unlock()
	if s.reader.blocks.used > s.cfg.BlockCacheBytes {
		t.Fatalf("the block cache holds %d bytes", s.reader.blocks.used)
	}
}

// A batch larger than all bounds passes, alone.
func TestHugeBatch(t *testing.T) {
	bothWALs(t, func(t *testing.T, kind WALKind) {
		e := newEnv(t)
		s := e.open(e.config(kind))
		st := e.create(s, 1, 1)[0]
		want := []string{"small", strings.Repeat("x", 1<<20), "small again"}
		appendAll(t, st, want...)
		if got := readAll(t, st); !slices.Equal(got, want) {
			t.Fatalf("got %d batches", len(got))
		}
		s.abandon()
		s = e.open(e.config(kind))
		if got := readAll(t, e.reopen(s, OpenRequest{st.ID(), 2})[0]); !slices.Equal(got, want) {
			t.Fatalf("got %d batches after a restart", len(got))
		}
	})
}

// What cannot be appended is refused before it has an offset, and fences nothing.
func TestAppendRefuses(t *testing.T) {
	e := newEnv(t)
	s := e.open(e.config(WALObject))
	st := e.create(s, 1, 1)[0]
	never := func(error) { t.Error("done called") }
	for _, b := range []RecordBatch{{Count: 0}, {Count: -1}, {Count: 1, Payload: make([]byte, maxPayload+1)}} {
		if _, err := st.Append(context.Background(), b, never); err == nil {
			t.Errorf("batch of count %d and %d bytes: no error", b.Count, len(b.Payload))
		}
	}
	appendAll(t, st, "a")
	if err := st.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Append(context.Background(), RecordBatch{Count: 1}, never); !errors.Is(err, ErrStreamClosed) {
		t.Errorf("append after close: %v", err)
	}
}

// A setting that cannot work is refused with its reason.
func TestConfigRefuses(t *testing.T) {
	for reason, cfg := range map[string]Config{
		"WAL kind":                   {WAL: "tape"},
		"needs WALDir":               {WAL: WALFile},
		"WALBytes is -1":             {WALBytes: -1},
		"at least twice UploadBytes": {UploadBytes: 10, LogCacheBytes: 19},
	} {
		if _, err := newEnv(t).tryOpen(cfg); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%+v: %v, want %q", cfg, err, reason)
		}
	}
}

// The idle half of a node that was started twice learns of it without an append.
func TestIdleZombieNotices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		old := e.open(e.config(WALObject))
		e.open(e.config(WALObject))
		<-time.After(2 * time.Minute)
		select {
		case <-old.Fenced():
		default:
			t.Fatal("not fenced after two minutes")
		}
	})
}

// The metrics register, and count.
func TestMetrics(t *testing.T) {
	e := newEnv(t)
	s, st := e.cold(e.config(WALObject), numbered("r", 10, 300))
	r := prometheus.NewPedanticRegistry()
	for _, c := range s.Collectors() {
		r.MustRegister(c)
	}
	readAll(t, st)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			got[name] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"tabletopic_stream_operations_total append ok": 10, "tabletopic_stream_operations_total upload ok": 1, "tabletopic_stream_open_streams": 1, "tabletopic_stream_unuploaded_bytes": 0,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}
