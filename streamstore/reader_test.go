package streamstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/tabletopic/tabletopic/objectstore"
)

// askedManager counts the questions for a stream's objects, and answers after a while.
type askedManager struct {
	*MemoryManager
	asked atomic.Int64
	after time.Duration
}

func (m *askedManager) StreamObjects(ctx context.Context, id StreamID, start, end int64, limit int) ([]ObjectRange, error) {
	m.asked.Add(1)
	<-time.After(m.after)
	return m.MemoryManager.StreamObjects(ctx, id, start, end, limit)
}

func (e *env) openAsking(cfg Config, m *askedManager) *Store {
	e.t.Helper()
	m.MemoryManager = e.meta
	s, err := Open(context.Background(), cfg, 1, e.bucket, e.meta, m, slog.New(slog.DiscardHandler))
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(s.abandon)
	return s
}

// quiet is a configuration in which nothing happens by itself.
func quiet() Config {
	return Config{
		WALLinger: time.Millisecond, CleanInterval: -1, CompactionInterval: -1, CleanupInterval: -1, MinorInterval: -1, MajorInterval: -1,
		UploadInterval: time.Hour,
	}
}

// oneAtATime opens a store that has one read of an object under way, in a bucket whose requests
// are counted, and stop where a test wants it.
func oneAtATime(t *testing.T) (*env, *objectstore.Faulty, *observed, *Store) {
	e := newEnv(t)
	f := e.faulty()
	o := e.observe()
	cfg := quiet()
	cfg.ReadInflight = 1
	return e, f, o, e.open(cfg)
}

func fetch(t testing.TB, st *Stream, at int64, maxBytes int) int64 {
	t.Helper()
	batches, err := st.Fetch(context.Background(), at, st.ConfirmOffset(), maxBytes)
	if err != nil {
		t.Fatal(err)
	}
	return batches[len(batches)-1].End()
}

// counted returns the value of a counter.
func counted(t testing.TB, c prometheus.Counter) float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(c)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families[0].Metric[0].GetCounter().GetValue()
}

func isGet(op objectstore.Op, key string) bool { return op == objectstore.OpGet }

// What is in memory, in the log cache or in cached blocks, is read at once while the lane is
// full of reads that get no answer. FetchFast never waits; Load lets it find the rest.
func TestMemoryReadsDoNotQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		e := newEnv(t)
		f := e.faulty()
		cfg := quiet()
		cfg.ReadInflight = 2
		s := e.open(cfg)
		st := e.create(s, 12, 1)
		for _, st := range st {
			appendAll(t, st, numbered("cold", 10, 1000)...)
		}
		upload(t, s)
		warm, tail := st[0], st[1]
		fetch(t, warm, 0, 1)
		appendAll(t, tail, "tail")

		hold := f.Hold(objectstore.Before, isGet)
		var wg sync.WaitGroup
		for _, cold := range st[2:] {
			if _, err := cold.FetchFast(0, 10, 1<<20, nil); !errors.Is(err, ErrNotInMemory) {
				t.Fatalf("fast fetch of what is in an object: %v", err)
			}
			wg.Go(func() {
				if err := cold.Load(ctx, 0, 1<<20); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		for range 100 {
			if got, err := warm.FetchFast(3, 10, 1<<20, nil); err != nil || len(got) != 7 {
				t.Fatalf("cached block: %d batches, %v", len(got), err)
			}
			if end := fetch(t, warm, 3, 1<<20); end != 10 {
				t.Fatalf("cached block: read up to %d", end)
			}
			if got, err := tail.FetchFast(10, 11, 1<<20, nil); err != nil || string(got[0].Payload) != "tail" {
				t.Fatalf("log cache: %v, %v", got, err)
			}
		}
		if waited := time.Since(began); waited != 0 {
			t.Fatalf("reads from memory took %v", waited)
		}
		hold.Release(nil)
		wg.Wait()
		for _, cold := range st[2:] {
			if got, err := cold.FetchFast(0, 10, 1<<20, nil); err != nil || len(got) != 10 {
				t.Fatalf("after Load: %d batches, %v", len(got), err)
			}
		}
		if _, err := warm.FetchFast(0, 11, 1, nil); !errors.Is(err, ErrOffsetOutOfRange) {
			t.Fatalf("fast fetch beyond the end: %v", err)
		}
	})
}

// A read that waits for its turn and is given up is not sent.
func TestAbandonedReadIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, f, o, s := oneAtATime(t)
		streams := e.create(s, 10, 1)
		for _, st := range streams { // an object of its own each
			appendAll(t, st, numbered("r", 10, 1000)...)
			upload(t, s)
			fetch(t, st, 0, 1) // brings the index
		}
		s.reader.forgetBlocks()
		o.take(objectstore.OpGet, "")
		hold := f.Hold(objectstore.Before, isGet)
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		read := func(ctx context.Context, st *Stream, want error) {
			wg.Go(func() {
				if _, err := st.Fetch(ctx, 0, 10, 1<<20); !errors.Is(err, want) {
					t.Errorf("stream %d: %v, want %v", st.ID(), err, want)
				}
			})
		}
		read(context.Background(), streams[0], nil)
		<-hold.Reached()
		for _, st := range streams[1:] {
			read(ctx, st, context.Canceled)
		}
		read(context.Background(), streams[9], nil) // somebody else waits for the last one
		synctest.Wait()
		cancel()
		synctest.Wait()
		hold.Release(nil)
		wg.Wait()
		if n := o.take(objectstore.OpGet, ""); n != 2 {
			t.Fatalf("%d GETs, want 2: what somebody still waited for", n)
		}
		for _, st := range streams {
			fetch(t, st, 0, 1) // nothing is left that would wait for what was given up
		}
	})
}

// Two streams' blocks of one stream set object, wanted while the lane is full, are one request.
func TestStreamsOfOneObjectShareARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, f, o, s := oneAtATime(t)
		busy := e.create(s, 1, 1)[0]
		appendAll(t, busy, numbered("busy", 10, 1000)...)
		upload(t, s)
		streams := e.create(s, 20, 1)
		for i, st := range streams {
			appendAll(t, st, numbered(fmt.Sprint(i), 20, 1000)...)
		}
		upload(t, s)
		fetch(t, streams[0], 0, 1) // brings the index
		o.take(objectstore.OpGet, "")

		hold := f.Hold(objectstore.Before, isGet)
		var wg sync.WaitGroup
		read := func(st *Stream) {
			wg.Go(func() {
				if got, err := fetchAll(st, 1<<20); err != nil || !strings.HasPrefix(got[0], fmt.Sprint(st.ID()-streams[0].ID())) && st != busy {
					t.Errorf("stream %d: %d batches, %v", st.ID(), len(got), err)
				}
			})
		}
		read(busy)
		<-hold.Reached()
		for _, st := range streams[1:] {
			read(st)
		}
		synctest.Wait()
		hold.Release(nil)
		wg.Wait()
		if n := o.take(objectstore.OpGet, ""); n != 3 {
			t.Fatalf("%d GETs, want 3: index and block of the busy stream, and one for 19 streams of one object", n)
		}
	})
}

// A reader of 64 streams is not ahead of another reader in the lane.
func TestManyStreamsDoNotStarveAnotherReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		f := e.faulty()
		cfg := quiet()
		cfg.ReadInflight = 1
		s := e.open(cfg)
		streams := e.create(s, 65, 1)
		for _, st := range streams { // an object of its own each
			appendAll(t, st, numbered("r", 10, 1000)...)
			upload(t, s)
		}
		hold := f.Hold(objectstore.Before, isGet)
		var done []string
		var mu sync.Mutex
		var wg sync.WaitGroup
		read := func(name string, st *Stream) {
			wg.Go(func() {
				if _, err := st.Fetch(WithReader(context.Background(), name), 0, 10, 1<<20); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				done = append(done, name)
			})
		}
		for _, st := range streams[:64] {
			read("many", st)
		}
		synctest.Wait()
		read("one", streams[64])
		synctest.Wait()
		f.SetFaults(objectstore.Faults{Latency: time.Second}) // so that all run in step
		hold.Release(nil)
		wg.Wait()
		if at := slices.Index(done, "one"); at > 4 {
			t.Fatalf("the reader of one stream was answered after %d reads of the other", at)
		}
	})
}

// A sequential reader asks metadata once, and from then on ahead of its need; it reads each
// index once, though the cache keeps none.
func TestSequentialReaderAsksAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		o := e.observe()
		m := &askedManager{after: time.Second}
		cfg := quiet()
		cfg.IndexCacheBytes = 2 << 10 // of six objects
		s := e.openAsking(cfg, m)
		streams := e.create(s, 1, 1)
		var want []string
		const objects = 300
		for i := range objects {
			part := numbered(fmt.Sprint(i), 4, 100)
			want = append(want, part...)
			appendAll(t, streams[0], part...)
			upload(t, s)
		}
		o.take(objectstore.OpGet, "")
		began := time.Now()
		var got []string
		for at := int64(0); at < 4*objects; {
			batches, err := streams[0].Fetch(context.Background(), at, 4*objects, 1)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(batches[0].Payload))
			at = batches[0].End()
			<-time.After(100 * time.Millisecond) // what a consumer does with it
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%d batches, want %d", len(got), len(want))
		}
		if waited := time.Since(began) - 4*objects*100*time.Millisecond; waited > time.Second {
			t.Errorf("waited %v for metadata, want once, a second", waited)
		}
		if n := m.asked.Load(); n > objects/rangePage+2 {
			t.Errorf("metadata was asked %d times about %d objects", n, objects)
		}
		if n := o.take(objectstore.OpGet, ""); n > 2*objects {
			t.Errorf("%d GETs for %d objects, want an index and a block of each at most", n, objects)
		}
	})
}

// Two readers far apart in one stream keep their places each: neither makes the other ask
// metadata or read an index again.
func TestReadersOfOneStreamKeepTheirPlaces(t *testing.T) {
	e := newEnv(t)
	m := &askedManager{}
	cfg := quiet()
	cfg.IndexCacheBytes, cfg.ReadAheadBytes = 1, 1
	cfg.BlockBytes = 1 << 10
	s := e.openAsking(cfg, m)
	st := e.create(s, 1, 1)[0]
	for i := range 200 {
		appendAll(t, st, numbered(fmt.Sprint(i), 10, 1000)...)
		upload(t, s)
	}
	a, b := int64(0), int64(1500)
	a, b = fetch(t, st, a, 1), fetch(t, st, b, 1)
	asked, gets := m.asked.Load(), e.gets.Load()
	for range 9 { // to the end of an object
		a, b = fetch(t, st, a, 1), fetch(t, st, b, 1)
	}
	if n := m.asked.Load() - asked; n != 0 {
		t.Errorf("metadata was asked %d times, want 0", n)
	}
	if n := e.gets.Load() - gets; n != 18 {
		t.Errorf("%d GETs for 18 blocks", n)
	}
}

// Whatever the number of stream set objects, a cold read of one stream asks metadata once and
// reads one index and one block.
func TestFindsAStreamAmongManySetObjects(t *testing.T) {
	e := newEnv(t)
	o := e.observe()
	m := &askedManager{}
	s := e.openAsking(quiet(), m)
	streams := e.create(s, 10, 1)
	for i := range 200 {
		for _, st := range streams {
			appendAll(t, st, fmt.Sprint(st.ID(), "-", i))
		}
		upload(t, s)
	}
	for _, at := range []int64{0, 77, 199} {
		o.take(objectstore.OpGet, "")
		m.asked.Store(0)
		s.reader.forgetAll()
		got, err := streams[at%10].Fetch(context.Background(), at, 200, 1)
		if want := fmt.Sprint(streams[at%10].ID(), "-", at); err != nil || string(got[0].Payload) != want {
			t.Fatalf("got %q, %v, want %q", got[0].Payload, err, want)
		}
		if n := o.take(objectstore.OpGet, ""); n != 2 || m.asked.Load() != 1 {
			t.Errorf("offset %d among 200 objects: %d GETs and %d questions to metadata, want 2 and 1", at, n, m.asked.Load())
		}
	}
}

// A request takes adjacent blocks that nobody has, up to a size; a short rest goes along.
func TestRunsOfBlocks(t *testing.T) {
	blocks := func(object ObjectID, n int) (list []indexEntry) {
		for i := range n {
			list = append(list, indexEntry{object: object, Position: int64(i) * 400 << 10, Size: 400 << 10})
		}
		return list
	}
	gap := slices.Concat(blocks(1, 3), blocks(1, 9)[4:])
	for _, c := range []struct {
		name   string
		blocks []indexEntry
		known  int // this one is being read already
		size   int64
		want   int
	}{
		{"up to the size", blocks(1, 30), -1, 4 << 20, 10},
		{"one at least", blocks(1, 30), -1, 1, 1},
		{"a block of rest", slices.Concat(blocks(1, 11), blocks(2, 1)), -1, 4 << 20, 11},
		{"two blocks of rest", slices.Concat(blocks(1, 12), blocks(2, 1)), -1, 4 << 20, 10},
		{"a rest of a short run", slices.Concat(blocks(1, 2), blocks(2, 1)), -1, 400 << 10, 1},
		{"not behind a known one", blocks(1, 30), 4, 4 << 20, 4},
		{"not into another object", slices.Concat(blocks(1, 3), blocks(2, 3)), -1, 4 << 20, 3},
		{"not over a gap", gap, -1, 4 << 20, 3},
	} {
		r := &reader{blocks: newBlockCache(0, nil), loading: make(map[blockKey]*blockLoad)}
		if c.known >= 0 {
			r.loading[c.blocks[c.known].key()] = &blockLoad{}
		}
		n, size := r.runLocked(c.blocks, c.size)
		if n != c.want || size != int64(n)*400<<10 {
			t.Errorf("%s: %d blocks of %d bytes, want %d", c.name, n, size, c.want)
		}
	}
}

// Read-ahead that goes unread makes its reader read less ahead, and not more for a while; it is
// counted.
func TestUnreadReadAheadBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		cfg := quiet()
		cfg.LogCacheBytes = 512 << 20
		s := e.open(cfg)
		st := e.create(s, 1, 1)[0]
		appendAll(t, st, numbered("r", 1000, 128<<10)...) // 125 MiB in blocks of 3
		upload(t, s)
		at := int64(0)
		session := func() *session {
			s.reader.mu.Lock()
			defer s.reader.mu.Unlock()
			found, ok := s.reader.sessions.get(position{st.ID(), at})
			if !ok {
				t.Fatalf("no session at %d", at)
			}
			return found
		}
		for session := int64(0); session < 16<<20; {
			at = fetch(t, st, at, 128<<10)
			synctest.Wait()
			s.reader.mu.Lock()
			if found, ok := s.reader.sessions.get(position{st.ID(), at}); ok {
				session = found.window
			}
			s.reader.mu.Unlock()
		}
		unread := s.reader.blocks.awaited.bytes
		if unread < 8<<20 {
			t.Fatalf("%d bytes read ahead", unread)
		}
		<-time.After(awaitedAge + time.Second)
		s.reader.mu.Lock()
		s.reader.blocks.roomAhead(1, time.Now()) // as another reader does
		s.reader.mu.Unlock()
		if got := session().window; got != minReadAhead {
			t.Fatalf("a window of %d is left, want %d", got, minReadAhead)
		}
		if n := counted(t, s.metrics.readAheadWasted); n < 8<<20 {
			t.Fatalf("%v bytes counted as unread", n)
		}
		calm := session().calm
		for time.Now().Before(calm) {
			at = fetch(t, st, at, 128<<10)
			if got := session().window; got != minReadAhead {
				t.Fatalf("the window grew to %d at once", got)
			}
			<-time.After(time.Second)
		}
		for range 20 {
			at = fetch(t, st, at, 128<<10)
			synctest.Wait()
		}
		if got := session().window; got < 4*minReadAhead {
			t.Fatalf("the window is %d, and should grow again", got)
		}
	})
}

// A gauge looks at what a reader holds whenever a read of an object is answered.
type gauge struct {
	objectstore.Bucket
	s    *Store
	t    testing.TB
	n    atomic.Int64
	mu   sync.RWMutex // nothing is read while the heap is measured: what is allocated then counts as live
	most int64        // heap; guarded by mu
}

func (g *gauge) Get(ctx context.Context, key string, off, n int64) ([]byte, error) {
	g.mu.RLock()
	data, err := g.Bucket.Get(ctx, key, off, n)
	g.mu.RUnlock()
	if g.s == nil {
		return data, err
	}
	r := g.s.reader
	r.mu.Lock()
	if r.blocks.used > g.s.cfg.BlockCacheBytes || r.lane.held > g.s.cfg.BlockCacheBytes/2 || r.lane.running > int64(g.s.cfg.ReadInflight) {
		g.t.Errorf("%d bytes of %d cached, %d in flight in %d requests", r.blocks.used, g.s.cfg.BlockCacheBytes, r.lane.held, r.lane.running)
	}
	r.mu.Unlock()
	if g.n.Add(1)%20 == 0 {
		g.mu.Lock()
		g.most = max(g.most, int64(heap()))
		g.mu.Unlock()
	}
	return data, err
}

// Many readers that catch up at the same time, each of streams of its own, stay within
// BlockCacheBytes and half as much in flight, on the heap too.
func TestCatchUpKeepsTheBound(t *testing.T) {
	e := newEnv(t)
	dir, err := objectstore.OpenDir(vfs.Default, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	g := &gauge{Bucket: dir, t: t}
	e.bucket = g
	cfg := quiet()
	cfg.WALBytes, cfg.UploadBytes, cfg.LogCacheBytes = 1<<20, 4<<20, 8<<20
	cfg.BlockCacheBytes, cfg.BlockBytes, cfg.ReadAheadBytes, cfg.SplitBytes = 8<<20, 64<<10, 2<<20, 1<<20
	s := e.open(cfg)
	streams := e.create(s, 32, 1)
	payload := make([]byte, 20_000)
	const each = 160
	for range each {
		for _, st := range streams {
			if _, err := st.Append(context.Background(), RecordBatch{Count: 1, MaxTimestamp: -1, Payload: payload}, func(error) {}); err != nil {
				t.Fatal(err)
			}
		}
	}
	acknowledged(t, s, streams)
	upload(t, s)
	before := int64(heap())
	g.s = s
	var wg sync.WaitGroup
	for i, st := range streams {
		for part := range int64(2) { // one reader from the start on, one from the middle
			wg.Go(func() {
				ctx := WithReader(context.Background(), i%4)
				for at := part * each / 2; at < each; {
					batches, err := st.Fetch(ctx, at, each, 64<<10)
					if err != nil {
						t.Error(err)
						return
					}
					at = batches[len(batches)-1].End()
				}
			})
		}
	}
	wg.Wait()
	used := g.most - before
	bound := cfg.BlockCacheBytes + cfg.BlockCacheBytes/2 + sessionBytes + int64(2*len(streams)*2*cfg.BlockBytes) // what readers hold
	t.Logf("%d MiB read by %d readers in %d requests, %d KiB held", len(streams)*each*len(payload)>>20, 2*len(streams), g.n.Load(), used>>10)
	if used > bound {
		t.Fatalf("%d bytes held, want at most %d", used, bound)
	}
}

// A fetch that is under way when its data is trimmed finishes: the trim waits for it. New
// ones are refused at once.
func TestTrimWaitsForReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		e := newEnv(t)
		f := e.faulty()
		cfg := quiet()
		cfg.DeleteGrace = time.Nanosecond
		want := numbered("r", 10, 1000)
		s, st := e.cold(cfg, want)
		hold := f.Hold(objectstore.Before, isGet)
		read, trimmed := make(chan error, 1), make(chan error, 1)
		go func() {
			got, err := fetchAll(st, 1<<20)
			if err == nil && !slices.Equal(got, want) {
				err = fmt.Errorf("%d batches", len(got))
			}
			read <- err
		}()
		<-hold.Reached()
		go func() { trimmed <- st.Trim(ctx, 10) }()
		synctest.Wait()
		if _, err := st.Fetch(ctx, 0, 10, 1<<20); !errors.Is(err, ErrOffsetOutOfRange) {
			t.Fatalf("fetch below the new start: %v", err)
		}
		if n, err := s.Clean(ctx); n != 0 || err != nil || len(trimmed) != 0 {
			t.Fatalf("while a fetch reads, %d objects were deleted, %v, trimmed %v", n, err, len(trimmed) != 0)
		}
		hold.Release(nil)
		if err := <-read; err != nil {
			t.Fatalf("the fetch that was under way: %v", err)
		}
		if err := <-trimmed; err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second)
		if n, err := s.Clean(ctx); n != 1 || err != nil {
			t.Fatalf("afterwards %d objects were deleted, %v, want 1", n, err)
		}
	})
}

// A trim that gives up waiting is not done: the next one is.
func TestTrimIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		f := e.faulty()
		_, st := e.cold(quiet(), numbered("r", 10, 1000))
		hold := f.Hold(objectstore.Before, isGet)
		read := make(chan error, 1)
		go func() { _, err := fetchAll(st, 1<<20); read <- err }()
		<-hold.Reached()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := st.Trim(ctx, 10); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("trim while a fetch hangs: %v", err)
		}
		hold.Release(nil)
		if err := <-read; err != nil {
			t.Fatal(err)
		}
		if err := st.Trim(context.Background(), 10); err != nil {
			t.Fatal(err)
		}
		if _, err := e.meta.StreamObjects(context.Background(), st.ID(), 0, 10, 1); !errors.Is(err, ErrOffsetOutOfRange) {
			t.Fatalf("metadata after the second trim: %v", err)
		}
	})
}

// A fetch of another handle, for which the trim does not wait, gets its data or learns that
// it is out of range, when data is deleted as soon as it is trimmed.
func TestFetchMeetsTrimOfAnotherHandle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		e := newEnv(t)
		f := e.faulty()
		cfg := quiet()
		cfg.DeleteGrace = time.Nanosecond
		s, old := e.cold(cfg, numbered("r", 10, 1000))
		st := e.reopen(s, OpenRequest{old.ID(), 2})[0]
		appendAll(t, st, "later")
		upload(t, s)
		hold := f.Hold(objectstore.Before, func(op objectstore.Op, key string) bool { return op == objectstore.OpGet })
		read := make(chan error, 1)
		go func() { _, err := fetchAll(old, 1<<20); read <- err }()
		<-hold.Reached()
		if err := st.Trim(ctx, 10); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second)
		if n, err := s.Clean(ctx); n != 1 || err != nil {
			t.Fatalf("%d objects deleted, %v, want 1", n, err)
		}
		hold.Release(nil)
		if err := <-read; !errors.Is(err, ErrOffsetOutOfRange) {
			t.Fatalf("the fetch: %v, want out of range", err)
		}
		if got := fetch(t, st, 10, 1); got != 11 {
			t.Fatalf("read up to %d, want 11", got)
		}
	})
}

// An index that is longer than the first guess is read in two turns, by all who wait.
func TestLongIndexTakesAnotherTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, f, o, s := oneAtATime(t)
		const n = footerGuess/indexEntrySize + 100
		streams := e.create(s, n, 1)
		for _, st := range streams {
			if _, err := st.Append(context.Background(), RecordBatch{Count: 1, Payload: []byte("r")}, func(error) {}); err != nil {
				t.Fatal(err)
			}
		}
		acknowledged(t, s, streams)
		upload(t, s)
		o.take(objectstore.OpGet, "")
		f.SetFaults(objectstore.Faults{Latency: time.Second})
		var wg sync.WaitGroup
		for _, st := range streams[:20] {
			wg.Go(func() {
				if end := fetch(t, st, 0, 1); end != 1 {
					t.Errorf("read up to %d", end)
				}
			})
		}
		wg.Wait()
		if n := o.take(objectstore.OpGet, ""); n > 2+2 {
			t.Fatalf("%d GETs, want 2 for the index and at most 2 for 20 blocks side by side", n)
		}
	})
}

// A sequential reader whose objects are compacted away and deleted in the middle of a read looks
// them up again and goes on.
func TestSequentialReaderSurvivesCompaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		e := newEnv(t)
		f := e.faulty()
		cfg := e.compacting()
		cfg.DeleteGrace = time.Nanosecond
		s := e.open(cfg)
		streams := e.create(s, 3, 1)
		want := make([][]string, len(streams))
		for i := range 6 {
			for j, st := range streams {
				part := numbered(fmt.Sprint(j, "-", i), 8, 300)
				want[j] = append(want[j], part...)
				appendAll(t, st, part...)
			}
			upload(t, s)
		}
		st, end := streams[1], streams[1].ConfirmOffset()
		var got []string
		at := int64(0)
		read := func(upTo int64) error {
			for at < upTo {
				batches, err := st.Fetch(ctx, at, end, 1)
				if err != nil {
					return err
				}
				got = append(got, string(batches[0].Payload))
				at = batches[0].End()
			}
			return nil
		}
		if err := read(end / 3); err != nil {
			t.Fatal(err)
		}
		s.reader.forgetBlocks()
		var held atomic.Bool
		hold := f.Hold(objectstore.Before, func(op objectstore.Op, key string) bool {
			return op == objectstore.OpGet && held.CompareAndSwap(false, true) // the reader's, not those of compaction
		})
		done := make(chan error, 1)
		go func() { done <- read(end) }()
		<-hold.Reached()
		compact(t, s)
		<-time.After(time.Second)
		if n, err := s.Clean(ctx); err != nil || n == 0 {
			t.Fatalf("%d objects deleted, %v", n, err)
		}
		hold.Release(nil)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want[1]) {
			t.Fatalf("%d batches, want %d", len(got), len(want[1]))
		}
	})
}

// A read that fails is an error, for ever if need be: never a gap, never the end.
func TestFailedReadIsNoGap(t *testing.T) {
	e := newEnv(t)
	f := e.faulty()
	want := numbered("r", 10, 300)
	_, st := e.cold(e.config(WALObject), want)
	f.SetFaults(objectstore.Faults{Unavailable: 1})
	for range 3 {
		if got, err := st.Fetch(context.Background(), 0, 10, 1<<20); !errors.Is(err, objectstore.ErrInjected) {
			t.Fatalf("%d batches, %v", len(got), err)
		}
	}
	f.SetFaults(objectstore.Faults{Torn: 1})
	if got, err := st.Fetch(context.Background(), 0, 10, 1<<20); err == nil {
		t.Fatalf("%d batches of an answer that broke off", len(got))
	}
	f.SetFaults(objectstore.Faults{})
	if got := readAll(t, st); !slices.Equal(got, want) {
		t.Fatalf("%d batches afterwards", len(got))
	}
}

// An object that does not hold what metadata says is corrupt, and named.
func TestObjectWithoutItsRange(t *testing.T) {
	e := newEnv(t)
	s, st := e.cold(e.config(WALObject), numbered("r", 10, 300))
	e.meta.mu.Lock()
	known := e.meta.streams[st.ID()].ranges
	known[0].End = 20
	e.meta.mu.Unlock()
	if _, _, err := s.reader.read(context.Background(), st.ID(), 15, 20, 1, nil); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), ObjectKey(known[0].ID)) {
		t.Fatalf("read beyond what the object holds: %v", err)
	}
}
