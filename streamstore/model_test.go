package streamstore

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/tabletopic/tabletopic/internal/crc32c"
	"github.com/tabletopic/tabletopic/internal/strictfs"
	"github.com/tabletopic/tabletopic/objectstore"
)

// flaky is metadata whose answers get lost, before the effect or after it.
type flaky struct {
	*MemoryManager
	mu        sync.Mutex
	r         *rand.Rand         // guarded by mu
	compacted map[ObjectKind]int // guarded by mu; results of compactions, by kind
}

var errAway = errors.New("database is away")

func (f *flaky) do(call func() error) error {
	f.mu.Lock()
	n := f.r.IntN(10)
	f.mu.Unlock()
	if n == 0 {
		return errAway
	}
	err := call()
	if n == 1 && err == nil {
		return errAway
	}
	return err
}

func (f *flaky) RetireWAL(ctx context.Context, node Node, epoch int64) error {
	return f.do(func() error { return f.MemoryManager.RetireWAL(ctx, node, epoch) })
}

func (f *flaky) TrimStream(ctx context.Context, node Node, id StreamID, epoch, start int64) error {
	return f.do(func() error { return f.MemoryManager.TrimStream(ctx, node, id, epoch, start) })
}

func (f *flaky) CommitUpload(ctx context.Context, node Node, u Upload) error {
	return f.do(func() error { return f.MemoryManager.CommitUpload(ctx, node, u) })
}

func (f *flaky) CommitCompaction(ctx context.Context, node Node, c Compaction) error {
	return f.do(func() error {
		err := f.MemoryManager.CommitCompaction(ctx, node, c)
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, o := range compacted(c) {
			if err == nil {
				f.compacted[o.Kind]++
			}
		}
		return err
	})
}

func (f *flaky) StreamSetObjects(ctx context.Context, id NodeID, after ObjectID, limit int) (sets []LiveStreamSet, err error) {
	err = f.do(func() error { sets, err = f.MemoryManager.StreamSetObjects(ctx, id, after, limit); return err })
	return sets, err
}

func (f *flaky) PrepareObjects(ctx context.Context, node Node, n int, ttl time.Duration) (first ObjectID, err error) {
	err = f.do(func() error { first, err = f.MemoryManager.PrepareObjects(ctx, node, n, ttl); return err })
	return first, err
}

// A model is what streams must hold, next to a store that holds it.
type model struct {
	t      *testing.T
	seed   uint64
	r      *rand.Rand
	cfg    Config
	fs     *vfs.MemFS
	memory *objectstore.Memory
	bucket objectstore.Bucket // the same, with faults
	meta   *flaky
	await  bool // wait for each append before the next step

	store   *Store
	streams []*modelStream
	digest  uint32 // of all that was read
	nextTS  int64
}

type modelStream struct {
	handle  *Stream
	epoch   int64
	start   int64
	batches []RecordBatch // all ever appended, perhaps not acknowledged
	acked   int64         // what the last crash must have left
	pending sync.WaitGroup
	failed  bool // written by done, read after pending.Wait
}

func (s *modelStream) end() int64 {
	if n := len(s.batches); n > 0 {
		return s.batches[n-1].End()
	}
	return 0
}

func (m *model) fatalf(format string, args ...any) {
	m.t.Helper()
	m.t.Fatalf("seed %d, WAL %s: %s", m.seed, m.cfg.WAL, fmt.Sprintf(format, args...))
}

func (m *model) open() {
	s, err := Open(context.Background(), m.cfg, 1, m.bucket, m.meta, m.meta, newEnvLog())
	if err != nil {
		m.fatalf("open: %v", err)
	}
	m.store = s
	for _, st := range m.streams {
		m.reopen(st)
	}
}

// reopen opens a stream with the next epoch. What was not acknowledged may be there, up
// to some batch, or not.
func (m *model) reopen(st *modelStream) {
	acked := st.acked
	if st.handle != nil && st.acked < 0 {
		st.pending.Wait()
		acked = st.handle.ConfirmOffset()
	}
	st.acked = -1
	id := m.newStreamID(st)
	st.epoch++
	h, err := m.store.OpenStreams(context.Background(), []OpenRequest{{id, st.epoch}})
	if err != nil {
		m.fatalf("open stream %d: %v", id, err)
	}
	st.handle, st.failed = h[0], false
	end := h[0].ConfirmOffset()
	i := len(st.batches)
	for i > 0 && st.batches[i-1].End() > end {
		i--
	}
	st.batches = st.batches[:i]
	if end < acked || st.end() != end {
		m.fatalf("stream %d reopened with end %d, acknowledged %d, model %d", id, end, acked, st.end())
	}
	if h[0].StartOffset() != st.start || h[0].NextOffset() != end {
		m.fatalf("stream %d reopened with start %d and next %d, want %d and %d", id, h[0].StartOffset(), h[0].NextOffset(), st.start, end)
	}
}

func (m *model) newStreamID(st *modelStream) StreamID {
	if st.handle != nil {
		return st.handle.ID()
	}
	id, err := m.store.CreateStreams(context.Background(), 1)
	if err != nil {
		m.fatalf("create: %v", err)
	}
	return id
}

func (m *model) append(st *modelStream) {
	m.nextTS += m.r.Int64N(5)
	b := RecordBatch{Count: 1 + m.r.Int32N(3), MaxTimestamp: m.nextTS - m.r.Int64N(10), Payload: make([]byte, m.r.IntN(3000))}
	if m.r.IntN(50) == 0 {
		b.Payload = make([]byte, 100_000) // more than most bounds
	}
	for i := range b.Payload {
		b.Payload[i] = byte(m.r.Uint32())
	}
	given := bytes.Clone(b.Payload)
	st.pending.Add(1)
	base, err := st.handle.Append(context.Background(), RecordBatch{Count: b.Count, MaxTimestamp: b.MaxTimestamp, Payload: given}, func(err error) {
		if err != nil {
			st.failed = true
		} else if st.failed {
			m.t.Errorf("seed %d: an append succeeded after one before it had failed", m.seed)
		}
		st.pending.Done()
	})
	clear(given) // Append has copied it
	if err != nil {
		m.fatalf("append: %v", err)
	}
	if base != st.end() {
		m.fatalf("append got offset %d, want %d", base, st.end())
	}
	b.BaseOffset = base
	st.batches = append(st.batches, b)
	if m.await {
		st.pending.Wait()
	}
}

// again repeats a read that met an injected fault.
func again[T any](m *model, f func() (T, error)) T {
	for {
		v, err := f()
		if err == nil {
			return v
		}
		if !errors.Is(err, objectstore.ErrInjected) && !errors.Is(err, errAway) {
			m.fatalf("%v", err)
		}
	}
}

func (m *model) fetch(st *modelStream) {
	end := st.handle.ConfirmOffset()
	if end == st.start {
		return
	}
	from := st.start + m.r.Int64N(end-st.start)
	to := from + 1 + m.r.Int64N(end-from)
	maxBytes := m.r.IntN(20_000)
	got := again(m, func() ([]RecordBatch, error) { return st.handle.Fetch(context.Background(), from, to, maxBytes) })
	i := slices.IndexFunc(st.batches, func(b RecordBatch) bool { return b.End() > from })
	size := 0
	if len(got) == 0 {
		m.fatalf("fetch [%d, %d): nothing", from, to)
	}
	for k, b := range got {
		want := st.batches[i+k]
		size += len(b.Payload)
		if b.BaseOffset != want.BaseOffset || b.Count != want.Count || b.MaxTimestamp != want.MaxTimestamp || !bytes.Equal(b.Payload, want.Payload) {
			m.fatalf("fetch [%d, %d) of stream %d: batch %d is [%d, %d), want [%d, %d) or other bytes", from, to, st.handle.ID(), k, b.BaseOffset, b.End(), want.BaseOffset, want.End())
		}
		if b.BaseOffset >= to || k > 0 && size > maxBytes {
			m.fatalf("fetch [%d, %d) of %d bytes: too much, batch %d at %d", from, to, maxBytes, k, b.BaseOffset)
		}
	}
}

func (m *model) find(st *modelStream) {
	st.pending.Wait()
	ts := m.nextTS - m.r.Int64N(100)
	type result struct {
		offset int64
		found  bool
	}
	var want result
	for _, b := range st.batches {
		if b.End() > st.start && b.MaxTimestamp >= ts {
			want = result{b.BaseOffset, true}
			break
		}
	}
	got := again(m, func() (r result, err error) {
		r.offset, r.found, err = st.handle.FindTimestamp(context.Background(), ts)
		return r, err
	})
	if got != want {
		m.fatalf("find timestamp %d in stream %d from %d: %+v, want %+v", ts, st.handle.ID(), st.start, got, want)
	}
}

// rewrite makes zeros of the payloads in objects of the stream's own, after it gave it such at times.
func (m *model) rewrite(st *modelStream) {
	ctx := context.Background()
	end := again(m, func() (int64, error) {
		if err := st.handle.Separate(ctx, st.handle.ConfirmOffset(), m.r.Int64N(100_000)); err != nil {
			return 0, err
		}
		return st.handle.Separated(ctx, st.start, st.handle.ConfirmOffset())
	})
	again(m, func() (struct{}, error) {
		return struct{}{}, st.handle.Rewrite(ctx, st.start, end, func(batches []RecordBatch) (out []RecordBatch, changed bool, err error) {
			for _, b := range batches {
				b.Payload = make([]byte, len(b.Payload))
				out = append(out, b)
			}
			return out, true, nil
		})
	})
	if from := st.handle.Refresh(end); from < end { // it was uploaded with what is not in an object of its own
		if err := m.store.upload.flush(ctx); err != nil {
			m.fatalf("upload: %v", err)
		}
		m.store.cache.evict(0)
		if from = st.handle.Refresh(end); from < end {
			m.fatalf("the log cache keeps stream %d from %d on, objects hold it up to %d", st.handle.ID(), from, end)
		}
	}
	for i, b := range st.batches {
		if b.End() > st.start && b.End() <= end {
			st.batches[i].Payload = make([]byte, len(b.Payload))
		}
	}
}

func (m *model) step() {
	st := m.streams[m.r.IntN(len(m.streams))]
	ctx := context.Background()
	switch op := m.r.IntN(100); {
	case op < 45:
		m.append(st)
	case op < 70:
		m.fetch(st)
	case op < 75:
		m.find(st)
	case op < 80:
		if end := st.handle.ConfirmOffset(); end > st.start {
			st.start += m.r.Int64N(end - st.start + 1)
			if err := st.handle.Trim(ctx, st.start); err != nil {
				m.fatalf("trim: %v", err)
			}
		}
	case op < 84:
		if err := st.handle.Close(ctx); err != nil {
			m.fatalf("close stream: %v", err)
		}
		if _, err := st.handle.Append(ctx, RecordBatch{Count: 1}, func(error) {}); !errors.Is(err, ErrStreamClosed) {
			m.fatalf("append to a closed stream: %v", err)
		}
		m.reopen(st)
	case op < 86:
		m.reopen(st) // over the open handle
	case op < 88:
		if err := st.handle.Destroy(ctx); err != nil {
			m.fatalf("destroy: %v", err)
		}
		st.pending.Wait()
		*st = modelStream{acked: -1}
		m.reopen(st)
	case op < 90 && !m.await: // what is in objects depends on the configuration
		m.rewrite(st)
	case op < 92:
		if err := m.store.upload.flush(ctx); err != nil {
			m.fatalf("upload: %v", err)
		}
		m.store.cache.evict(0)
	case op < 94:
		<-time.After(time.Minute) // compaction runs, many times
		again(m, func() (int, error) { return m.store.Clean(ctx) })
	case op < 97:
		m.settle()
		if err := m.store.Close(ctx); err != nil {
			m.fatalf("close: %v", err)
		}
		m.switchWAL()
		m.open()
	default:
		if m.await {
			m.settle()
		}
		m.crash()
		m.open()
	}
}

// crash ends the store without a word; a disk loses what was not synced.
func (m *model) crash() {
	for _, st := range m.streams {
		st.acked = st.handle.ConfirmOffset() // before the clone: what comes later, the clone may miss
	}
	fs := m.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(m.seed, uint64(len(m.streams[0].batches))))})
	m.store.abandon()
	if m.cfg.WAL == WALObject {
		fs = m.fs
	}
	for _, st := range m.streams {
		st.pending.Wait()
	}
	m.fs, m.cfg.WALFS = fs, strictfs.FS{FS: fs}
}

func (m *model) switchWAL() {
	if m.r.IntN(4) == 0 {
		if m.cfg.WAL == WALObject {
			m.cfg.WAL = WALFile
		} else {
			m.cfg.WAL = WALObject
		}
	}
}

func (m *model) settle() {
	for _, st := range m.streams {
		st.pending.Wait()
	}
}

// finish reads every stream from start to end and adds it to the digest.
func (m *model) finish() {
	m.settle()
	for _, st := range m.streams {
		var got []string
		maxBytes := 1 + m.r.IntN(100_000)
		for at, end := st.handle.StartOffset(), st.handle.ConfirmOffset(); at < end; { // a fault costs one fetch, not all of them
			batches := again(m, func() ([]RecordBatch, error) { return st.handle.Fetch(context.Background(), at, end, maxBytes) })
			if len(batches) == 0 || batches[0].BaseOffset > at || batches[len(batches)-1].End() <= at {
				m.fatalf("stream %d: fetch from %d to %d goes not on", st.handle.ID(), at, end)
			}
			for _, b := range batches {
				got = append(got, string(b.Payload))
				at = b.End()
			}
		}
		i := slices.IndexFunc(st.batches, func(b RecordBatch) bool { return b.End() > st.start })
		if i < 0 {
			i = len(st.batches)
		}
		if len(got) != len(st.batches[i:]) {
			m.fatalf("stream %d holds %d batches, want %d", st.handle.ID(), len(got), len(st.batches[i:]))
		}
		for k, p := range got {
			if p != string(st.batches[i+k].Payload) {
				m.fatalf("stream %d: batch %d differs", st.handle.ID(), k)
			}
			m.digest = crc32c.Update(m.digest, []byte(p))
		}
		m.digest = crc32c.Update(m.digest, []byte(fmt.Sprint(st.handle.StartOffset(), st.handle.ConfirmOffset())))
	}
	m.leaveNothing()
	if err := m.store.Close(context.Background()); err != nil {
		m.fatalf("close: %v", err)
	}
}

// leaveNothing checks that the bucket comes to hold the objects that metadata names, and
// no others: what crashes and failed compactions left is deleted in time.
func (m *model) leaveNothing() {
	if err := m.store.compact.exclusive(context.Background(), func(ctx context.Context) error { // while nothing is prepared
		<-time.After(prepareTTL + 10*time.Minute) // uploads may still prepare some in the first minutes
		again(m, func() (int, error) { return m.store.Clean(ctx) })
		page, err := m.memory.List(ctx, dataPrefix, "")
		m.meta.MemoryManager.mu.Lock()
		defer m.meta.MemoryManager.mu.Unlock()
		for _, o := range page {
			if id, _ := parseObjectKey(o.Key); m.meta.objects[id] == nil || m.meta.objects[id].named == 0 {
				m.t.Errorf("seed %d: the bucket holds %s, which nothing names", m.seed, o.Key)
			}
		}
		if len(page) != len(m.meta.objects) {
			m.t.Errorf("seed %d: the bucket holds %d objects, metadata %d", m.seed, len(page), len(m.meta.objects))
		}
		return err
	}); err != nil {
		m.fatalf("list: %v", err)
	}
}

// runModel takes random steps and returns the digest of what the streams hold at the end, and
// how many objects of each kind compaction made.
func runModel(t *testing.T, seed uint64, cfg Config, faults objectstore.Faults, steps int, await bool) (digest uint32, compacted map[ObjectKind]int) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewCrashableMem()
		faults.Seed = seed
		m := &model{
			t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 1)), cfg: cfg, fs: fs, await: await,
			memory: objectstore.NewMemory(),
			meta:   &flaky{MemoryManager: NewMemoryManager(), r: rand.New(rand.NewPCG(seed, 2)), compacted: make(map[ObjectKind]int)},
		}
		m.bucket = objectstore.NewFaulty(m.memory, faults)
		m.cfg.WALDir, m.cfg.WALFS = "/wal", strictfs.FS{FS: fs}
		m.cfg.DeleteGrace = 30 * time.Second // longer than a commit whose answer was lost takes to be tried again
		m.streams = make([]*modelStream, 3)
		for i := range m.streams {
			m.streams[i] = &modelStream{acked: -1}
		}
		m.open()
		t.Cleanup(func() { m.store.abandon() })
		for range steps {
			m.step()
		}
		m.finish()
		digest, compacted = m.digest, m.meta.compacted
	})
	return digest, compacted
}

// In the first two configurations compaction never rests: one has it split, merge and link
// wherever it can, with a memory of few blocks; the other has it when it comes to it. In the
// third every bound is smaller than a batch: one of each thing at a time.
var modelConfigs = []Config{
	{
		WAL: WALObject, WALBytes: 4 << 10, UploadBytes: 32 << 10, UploadStreams: 2, LogCacheBytes: 64 << 10, SplitBytes: 8 << 10, BlockBytes: 1 << 10, BlockCacheBytes: 16 << 10, IndexCacheBytes: 1 << 10,
		CompactionInterval: 300 * time.Millisecond, CompactionBytes: 48 << 10, ForceSplit: 20 * time.Second, CleanupInterval: 200 * time.Millisecond, CleanupBytes: 1,
		MinorInterval: 500 * time.Millisecond, MinorBytes: 4 << 10, MajorInterval: 700 * time.Millisecond, MajorBytes: 64 << 10, CleanInterval: 2 * time.Second,
	},
	{
		WAL: WALFile, WALBytes: 64 << 10, UploadBytes: 8 << 10, LogCacheBytes: 1 << 20, SplitBytes: 1 << 20, BlockBytes: 16 << 10, ReadAheadBytes: 1,
		CompactionInterval: 2 * time.Second, CompactionObjects: 10, CompactionRate: 1 << 20, CleanupBytes: 4 << 10, MinorInterval: time.Second, MinorBytes: 30 << 10, MajorInterval: time.Second,
	},
	{
		WAL: WALObject, WALBytes: 1, WALInflight: 1, WALUnflushedBytes: 1, UploadBytes: 1, UploadInflight: 1, LogCacheBytes: 2, SplitBytes: 1, BlockBytes: 1, BlockCacheBytes: 1, IndexCacheBytes: 1, ReadAheadBytes: 1,
		CompactionInterval: time.Second, CompactionBytes: 1, CompactionObjects: 1, CleanupBytes: 1, MinorInterval: time.Second, MinorBytes: 1, MajorInterval: time.Second, MajorBytes: 1,
	},
}

var modelSeeds = flag.Uint64("model-seeds", defaultModelSeeds, "how many seeds the model tests run")

// Whatever is appended, read, trimmed, rewritten, closed, reopened, destroyed, uploaded and cleaned,
// through crashes and faults of bucket and database, the streams hold what a list in memory holds.
func TestModel(t *testing.T) {
	faults := objectstore.Faults{Latency: 30 * time.Millisecond, Unavailable: 0.05, Lost: 0.05, Torn: 0.05}
	var all [3]map[ObjectKind]int
	for i := range all {
		all[i] = make(map[ObjectKind]int)
	}
	for seed := range *modelSeeds {
		for i, cfg := range modelConfigs {
			_, compacted := runModel(t, seed*uint64(len(modelConfigs))+uint64(i), cfg, faults, 300, false)
			for kind, n := range compacted {
				all[i][kind] += n
			}
		}
	}
	t.Logf("compaction made, by kind: %v", all)
	for _, kind := range []ObjectKind{KindStreamSet, KindStream, KindComposite} {
		if all[0][kind] == 0 {
			t.Errorf("compaction never made an object of kind %d", kind)
		}
	}
}

// The same steps under any configuration give the same streams.
func TestConfigChangesNoContent(t *testing.T) {
	for seed := range *modelSeeds {
		first, _ := runModel(t, seed, modelConfigs[0], objectstore.Faults{}, 300, true)
		for i, cfg := range modelConfigs[1:] {
			if digest, _ := runModel(t, seed, cfg, objectstore.Faults{}, 300, true); digest != first {
				t.Fatalf("seed %d: digests %08x with the first configuration, %08x with number %d", seed, first, digest, i+2)
			}
		}
	}
}
