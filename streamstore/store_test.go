package streamstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/tabletopic/tabletopic/internal/crc32c"
	"github.com/tabletopic/tabletopic/internal/strictfs"
	"github.com/tabletopic/tabletopic/objectstore"
)

// An env is what outlives a store: bucket, metadata and disk.
type env struct {
	t      testing.TB
	memory *objectstore.Memory
	bucket objectstore.Bucket
	meta   *MemoryManager
	fs     *vfs.MemFS
	gets   atomic.Int64
}

func newEnv(t testing.TB) *env {
	e := &env{t: t, memory: objectstore.NewMemory(), meta: NewMemoryManager(), fs: vfs.NewCrashableMem()}
	e.bucket = &countGets{e.memory, &e.gets}
	return e
}

type countGets struct {
	objectstore.Bucket
	n *atomic.Int64
}

func (c *countGets) Get(ctx context.Context, key string, off, n int64) ([]byte, error) {
	c.n.Add(1)
	return c.Bucket.Get(ctx, key, off, n)
}

// config is small, so that a test meets every path, and waits for nothing.
func (e *env) config(kind WALKind) Config {
	return Config{
		WAL: kind, WALDir: "/wal", WALFS: strictfs.FS{FS: e.fs}, WALLinger: time.Millisecond, WALBytes: 4 << 10,
		UploadBytes: 32 << 10, LogCacheBytes: 128 << 10, SplitBytes: 8 << 10, BlockBytes: 1 << 10,
		SweepInterval: -1,
	}
}

func (e *env) tryOpen(cfg Config) (*Store, error) {
	return Open(context.Background(), cfg, 1, e.bucket, e.meta, e.meta, slog.New(slog.DiscardHandler))
}

// open opens a store that is dropped as by a crash when the test ends.
func (e *env) open(cfg Config) *Store {
	e.t.Helper()
	s, err := e.tryOpen(cfg)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(s.abandon)
	return s
}

func (e *env) create(s *Store, n int, epoch int64) []*Stream {
	e.t.Helper()
	first, err := s.CreateStreams(context.Background(), n)
	if err != nil {
		e.t.Fatal(err)
	}
	open := make([]OpenRequest, n)
	for i := range open {
		open[i] = OpenRequest{first + StreamID(i), epoch}
	}
	return e.reopen(s, open...)
}

func (e *env) reopen(s *Store, open ...OpenRequest) []*Stream {
	e.t.Helper()
	streams, err := s.OpenStreams(context.Background(), open)
	if err != nil {
		e.t.Fatal(err)
	}
	return streams
}

// appendAll appends payloads and waits until all are durable.
func appendAll(t testing.TB, st *Stream, payloads ...string) {
	t.Helper()
	errs := make(chan error, len(payloads))
	for _, p := range payloads {
		if _, err := st.Append(context.Background(), RecordBatch{Count: 1, MaxTimestamp: -1, Payload: []byte(p)}, func(err error) { errs <- err }); err != nil {
			t.Fatal(err)
		}
	}
	for range payloads {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
}

// acknowledged returns when all that was appended to the streams is durable.
func acknowledged(t testing.TB, s *Store, streams []*Stream) {
	t.Helper()
	s.wal.flush()
	for _, st := range streams {
		if err := st.waitAcknowledged(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}

// readAll returns the payloads of the whole stream.
func readAll(t testing.TB, st *Stream) []string {
	t.Helper()
	got, err := fetchAll(st, 4<<10)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func fetchAll(st *Stream, maxBytes int) ([]string, error) {
	var all []string
	for at, end := st.StartOffset(), st.ConfirmOffset(); at < end; {
		batches, err := st.Fetch(context.Background(), at, end, maxBytes)
		if err != nil {
			return all, err
		}
		if len(batches) == 0 {
			return all, fmt.Errorf("no batch at %d, end is %d", at, end)
		}
		for _, b := range batches {
			if b.BaseOffset > at || b.End() <= at {
				return all, fmt.Errorf("batch [%d, %d), want one with %d", b.BaseOffset, b.End(), at)
			}
			all = append(all, string(b.Payload))
			at = b.End()
		}
	}
	return all, nil
}

func numbered(prefix string, n, size int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("%s-%04d-%s", prefix, i, strings.Repeat("x", size))
	}
	return list
}

func bothWALs(t *testing.T, f func(t *testing.T, kind WALKind)) {
	for _, kind := range []WALKind{WALObject, WALFile} {
		t.Run(string(kind), func(t *testing.T) { f(t, kind) })
	}
}

// What is acknowledged is read back: from the log cache, after upload and eviction from
// objects, and after the store died without a word.
func TestAcknowledgedIsRead(t *testing.T) {
	bothWALs(t, func(t *testing.T, kind WALKind) {
		e := newEnv(t)
		s := e.open(e.config(kind))
		streams := e.create(s, 3, 1)
		want := make([][]string, len(streams))
		for i, st := range streams {
			want[i] = numbered(fmt.Sprint(i), 200*(i+1), 100*i)
			appendAll(t, st, want[i]...)
		}
		for i, st := range streams {
			if got := readAll(t, st); !slices.Equal(got, want[i]) {
				t.Fatalf("stream %d: %d batches, want %d", i, len(got), len(want[i]))
			}
		}
		s.abandon()
		s = e.open(e.config(kind))
		for i, old := range streams {
			st := e.reopen(s, OpenRequest{old.ID(), 2})[0]
			if got := readAll(t, st); !slices.Equal(got, want[i]) {
				t.Fatalf("after a crash, stream %d: %d batches, want %d", i, len(got), len(want[i]))
			}
			appendAll(t, st, "more")
			if got := readAll(t, st); !slices.Equal(got, append(want[i], "more")) {
				t.Fatalf("after a crash and more, stream %d: %d batches, want %d", i, len(got), len(want[i])+1)
			}
		}
		if err := s.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
	})
}

// Appends of many goroutines complete in the order of their offsets.
func TestDoneInOrder(t *testing.T) {
	bothWALs(t, func(t *testing.T, kind WALKind) {
		e := newEnv(t)
		s := e.open(e.config(kind))
		st := e.create(s, 1, 1)[0]
		var wg sync.WaitGroup
		last := int64(-1) // only touched by the WAL's goroutine
		for range 8 {
			wg.Go(func() {
				for range 100 {
					var base atomic.Int64
					base.Store(-1)
					wg.Add(1)
					var mu sync.Mutex
					mu.Lock()
					b, err := st.Append(context.Background(), RecordBatch{Count: 2, Payload: []byte("payload")}, func(err error) {
						defer wg.Done()
						mu.Lock()
						defer mu.Unlock()
						if err != nil || base.Load() <= last {
							t.Errorf("done(%v) of %d after %d", err, base.Load(), last)
						}
						last = base.Load()
					})
					base.Store(b)
					mu.Unlock()
					if err != nil {
						t.Error(err)
						wg.Done()
						return
					}
				}
			})
		}
		wg.Wait()
		if got := st.ConfirmOffset(); got != 1600 {
			t.Fatalf("confirm offset %d, want 1600", got)
		}
	})
}

// A tail read makes no request.
func TestTailReadsMakeNoRequest(t *testing.T) {
	e := newEnv(t)
	s := e.open(Config{WALLinger: time.Millisecond})
	st := e.create(s, 1, 1)[0]
	before := e.gets.Load()
	for i := range 50 {
		appendAll(t, st, numbered(fmt.Sprint(i), 10, 100)...)
		if got := len(readAll(t, st)); got != 10*(i+1) {
			t.Fatalf("%d batches, want %d", got, 10*(i+1))
		}
	}
	if got := e.gets.Load() - before; got != 0 {
		t.Fatalf("%d GETs, want 0", got)
	}
}

// Fetch keeps the bounds of the stream and returns whole batches.
func TestFetchBounds(t *testing.T) {
	for _, place := range []string{"log cache", "object"} {
		t.Run(place, func(t *testing.T) {
			ctx := context.Background()
			e := newEnv(t)
			s := e.open(e.config(WALObject))
			st := e.create(s, 1, 1)[0]
			for range 10 {
				done := make(chan error, 1)
				if _, err := st.Append(ctx, RecordBatch{Count: 10, Payload: make([]byte, 100)}, func(err error) { done <- err }); err != nil {
					t.Fatal(err)
				}
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			}
			if place == "object" {
				if err := s.upload.flush(ctx); err != nil {
					t.Fatal(err)
				}
				s.cache.evict(0)
			}
			if err := st.Trim(ctx, 15); err != nil {
				t.Fatal(err)
			}
			if err := st.Trim(ctx, 5); err != nil || st.StartOffset() != 15 {
				t.Fatalf("trim back: %v, start %d, want 15", err, st.StartOffset())
			}
			for _, c := range []struct {
				start, end   int64
				maxBytes     int
				first, after int64 // offsets that the batches span
				err          error
			}{
				{start: 14, end: 100, err: ErrOffsetOutOfRange},
				{start: 15, end: 101, err: ErrOffsetOutOfRange},
				{start: 100, end: 100},
				{start: 15, end: 16, maxBytes: 1, first: 10, after: 20},
				{start: 15, end: 100, maxBytes: 250, first: 10, after: 30},
				{start: 25, end: 41, maxBytes: 1000, first: 20, after: 50},
				{start: 99, end: 100, maxBytes: 0, first: 90, after: 100},
			} {
				got, err := st.Fetch(ctx, c.start, c.end, c.maxBytes)
				if !errors.Is(err, c.err) {
					t.Fatalf("%+v: %v", c, err)
				}
				var first, after int64
				if len(got) > 0 {
					first, after = got[0].BaseOffset, got[len(got)-1].End()
				}
				if first != c.first || after != c.after {
					t.Fatalf("%+v: batches span [%d, %d)", c, first, after)
				}
			}
			if _, err := st.Fetch(ctx, 50, 40, 1); err == nil {
				t.Fatal("start after end: no error")
			}
		})
	}
}

var errNoSpace error = syscall.ENOSPC

func newEnvLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

// Under load a bulk closes when it is full. The next one lingers as after any other: else
// each full WAL object would be followed by a small one.
func TestBulkLingersAfterAFullOne(t *testing.T) {
	cfg := Config{}
	cfg.setDefaults()
	w := newWAL(Node{}, nonce{}, nil, cfg, newBufferPool(0))
	w.evict = func(int64) {}
	w.unflushed = 1
	w.openLocked(1)
	w.sealLocked()
	w.openLocked(1)
	if wait := time.Until(w.cur.due); wait < cfg.WALLinger/2 {
		t.Errorf("closes in %s, want about %s", wait, cfg.WALLinger)
	}
}

// No upload holds data of more streams than UploadStreams, be they all in one WAL bulk, nor
// does one of a recovery; a crash between two uploads of one bulk loses nothing of it.
func TestUploadsHoldFewStreams(t *testing.T) {
	e := newEnv(t)
	cfg := e.config(WALObject)
	cfg.WALBytes, cfg.WALLinger, cfg.WALIdleLinger = 1<<20, time.Minute, 10*time.Second // one bulk
	cfg.UploadBytes, cfg.LogCacheBytes, cfg.UploadStreams = 1<<20, 4<<20, 7
	h := &hooked{MemoryManager: e.meta}
	died := errors.New("died")
	var commits, streams int
	h.commit = func(u Upload) error {
		commits++
		if n := len(u.Streams); u.StreamSet != nil {
			if n += len(u.StreamSet.Ranges); n > 7 {
				t.Errorf("an upload of %d streams", n)
			}
			streams += n
		}
		if commits == 2 || commits == 4 {
			return fmt.Errorf("%w: %w", ErrConflict, died)
		}
		return nil
	}
	open := func() (*Store, error) {
		return Open(context.Background(), cfg, 1, e.bucket, h, h, newEnvLog())
	}
	s, err := open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.abandon)
	all := e.create(s, 30, 1)
	var done []<-chan error
	for i, st := range append(all, all...) {
		done = append(done, start(t, st, fmt.Sprint(i)))
	}
	s.wal.flush()
	for _, c := range done {
		if err := <-c; err != nil {
			t.Fatal(err)
		}
	}
	if data, _ := e.walObjects(s.Node()); len(data) != 1 {
		t.Fatalf("%d bulks, want one", len(data))
	}
	s.upload.force()
	<-s.Fenced() // by the second commit
	s.abandon()
	if _, err := open(); !errors.Is(err, died) {
		t.Fatalf("opened: %v", err)
	}
	if s, err = open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.abandon)
	if commits < 7 || streams < 30 {
		t.Fatalf("%d commits of %d streams", commits, streams)
	}
	for i, st := range e.reopen(s, requests(all, 2)...) {
		if got := readAll(t, st); !slices.Equal(got, []string{fmt.Sprint(i), fmt.Sprint(i + 30)}) {
			t.Fatalf("stream %d holds %q", i, got)
		}
	}
}

// Checksums that the appender knows make what is written no other: small and large payloads with and without one, in
// bulks of one and of many chunks, are read back from a WAL and from objects. A wrong one is found by who reads.
func TestKnownChecksumsAreWritten(t *testing.T) {
	bothWALs(t, func(t *testing.T, kind WALKind) {
		e := newEnv(t)
		r := rand.New(rand.NewPCG(1, 2))
		cfg := e.config(kind)
		cfg.WALBytes, cfg.UploadBytes, cfg.LogCacheBytes, cfg.BlockBytes = 256<<10, 512<<10, 4<<20, 64<<10
		s := e.open(cfg)
		streams := e.create(s, 3, 1)
		want := make([][]string, len(streams))
		write := func() {
			for n := range 60 {
				i := n % len(streams)
				payload := make([]byte, r.IntN(3*crc32c.WorthCombining))
				for at := range payload {
					payload[at] = byte(r.Uint32())
				}
				sum := uint32(0)
				if n%4 != 0 {
					sum = crc32c.Checksum(payload)
				}
				if _, err := streams[i].AppendSummed(t.Context(), RecordBatch{Count: 1, MaxTimestamp: -1, Payload: payload}, sum, func(error) {}); err != nil {
					t.Fatal(err)
				}
				want[i] = append(want[i], string(payload))
			}
			acknowledged(t, s, streams)
		}
		write()
		if err := s.upload.flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		write()
		for epoch := range int64(2) {
			s.abandon() // the second half is in the WAL, then all is in objects
			s = e.open(cfg)
			streams = e.reopen(s, requests(streams, 2+epoch)...)
			for i, st := range streams {
				if got := readAll(t, st); !slices.Equal(got, want[i]) {
					t.Fatalf("stream %d: %d batches, want the %d that were appended", i, len(got), len(want[i]))
				}
			}
		}
		if _, err := streams[0].AppendSummed(t.Context(), RecordBatch{Count: 1, MaxTimestamp: -1, Payload: bytes.Repeat([]byte("x"), crc32c.WorthCombining)}, 1, func(error) {}); err != nil {
			t.Fatal(err)
		}
		acknowledged(t, s, streams)
		s.abandon()
		if again, err := e.tryOpen(cfg); !errors.Is(err, ErrCorrupt) {
			if err == nil {
				again.abandon()
			}
			t.Fatalf("a bulk with a wrong checksum was recovered: %v", err)
		}
	})
}
