package streamstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tabletopic/tabletopic/objectstore"
)

// compacting is config without compaction by the clock, with limits that a test reaches.
func (e *env) compacting() Config {
	cfg := e.config(WALObject)
	cfg.CompactionInterval, cfg.CleanupInterval, cfg.MinorInterval, cfg.MajorInterval, cfg.CleanInterval = -1, -1, -1, -1, -1
	cfg.MinorBytes = 8 << 10
	cfg.UploadBytes, cfg.LogCacheBytes = 4<<20, 16<<20 // uploads come when a test says so
	return cfg
}

func compact(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Compact(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// upload moves everything to objects, and out of the log cache.
func upload(t testing.TB, s *Store) {
	t.Helper()
	if err := s.upload.flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	s.cache.evict(0)
}

func (e *env) objectsOf(st *Stream) []ObjectRange {
	e.t.Helper()
	ranges, err := st.store.objects.StreamObjects(context.Background(), st.id, st.StartOffset(), 1<<62, 1<<20)
	if err != nil {
		e.t.Fatal(err)
	}
	return ranges
}

func kinds(ranges []ObjectRange) (k []ObjectKind) {
	for _, r := range ranges {
		k = append(k, r.Kind)
	}
	return k
}

// Streams that many stream set objects share end up in one of each: those with much data in
// stream objects, the others in one stream set object. What was there before is deleted
// after the grace, and nothing else; what is read stays the same.
func TestCompactionOfStreamSets(t *testing.T) {
	e := newEnv(t)
	s := e.open(e.compacting())
	streams := e.create(s, 3, 1)
	want := make([][]string, len(streams))
	for round := range 4 {
		for i, st := range streams {
			more := numbered(fmt.Sprintf("%d-%d", i, round), 3, []int{10, 100, 1500}[i])
			want[i] = append(want[i], more...)
			appendAll(t, st, more...)
		}
		upload(t, s)
	}
	before := e.objectsOf(streams[0])
	compact(t, s)
	for i, kind := range []ObjectKind{KindStreamSet, KindStreamSet, KindStream} {
		if got := e.objectsOf(streams[i]); len(got) != 1 || got[0].Kind != kind {
			t.Fatalf("stream %d lies in %v, want one object of kind %d", i, got, kind)
		}
		if got := readAll(t, streams[i]); !slices.Equal(got, want[i]) {
			t.Fatalf("stream %d holds %d batches, want %d", i, len(got), len(want[i]))
		}
	}
	if a, b := e.objectsOf(streams[0])[0].ID, e.objectsOf(streams[1])[0].ID; a != b {
		t.Fatalf("the small streams lie in objects %d and %d, want one", a, b)
	}
	e.wantObjects(len(before) + 2)
	if got := metric(t, s, "tabletopic_stream_compaction_read_bytes_total"); got < 3*4*1500 {
		t.Errorf("compaction read %v bytes", got)
	}
	if got := metric(t, s, "tabletopic_stream_compaction_written_bytes_total"); got < 3*4*1500 {
		t.Errorf("compaction wrote %v bytes", got)
	}
	if got := metric(t, s, "tabletopic_stream_compactions_total"); got != 1 {
		t.Errorf("%v compactions, want 1", got)
	}
	if got := metric(t, s, "tabletopic_stream_compaction_debt_bytes"); got != 0 {
		t.Errorf("debt of %v bytes after compaction", got)
	}
	e.meta.SetClock(func() time.Time { return time.Now().Add(time.Hour) })
	if n, err := s.Clean(context.Background()); err != nil || n != len(before) {
		t.Fatalf("cleaned %d objects, %v, want %d", n, err, len(before))
	}
	e.wantObjects(2)
	for i, st := range streams {
		if got := readAll(t, st); !slices.Equal(got, want[i]) {
			t.Fatalf("after the sources were deleted stream %d holds %d batches, want %d", i, len(got), len(want[i]))
		}
	}
}

// metric returns the sum over the labels of a metric.
func metric(t testing.TB, s *Store, name string) (sum float64) {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(s.Collectors()...)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == name {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// wantObjects checks how many data objects the bucket holds.
func (e *env) wantObjects(want int) {
	e.t.Helper()
	if got := len(e.dataObjects()); got != want {
		e.t.Fatalf("the bucket holds %d objects, want %d", got, want)
	}
}

func (e *env) dataObjects() (all []objectstore.Object) {
	e.t.Helper()
	for after := ""; ; {
		page, err := e.memory.List(context.Background(), dataPrefix, after)
		if err != nil {
			e.t.Fatal(err)
		}
		if len(page) == 0 {
			return all
		}
		all = append(all, page...)
		after = page[len(page)-1].Key
	}
}

// What stays small leaves stream set objects after ForceSplit.
func TestForceSplit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		cfg := e.compacting()
		cfg.ForceSplit = time.Hour
		s := e.open(cfg)
		streams := e.create(s, 2, 1)
		for _, st := range streams {
			appendAll(t, st, "old")
		}
		upload(t, s)
		compact(t, s)
		if got := kinds(e.objectsOf(streams[0])); !slices.Equal(got, []ObjectKind{KindStreamSet}) {
			t.Fatalf("kinds %v", got)
		}
		<-time.After(time.Hour)
		compact(t, s)
		for _, st := range streams {
			if got := kinds(e.objectsOf(st)); !slices.Equal(got, []ObjectKind{KindStream}) {
				t.Fatalf("kinds %v after an hour", got)
			}
			if got := readAll(t, st); !slices.Equal(got, []string{"old"}) {
				t.Fatalf("read %v", got)
			}
		}
		s.abandon()
	})
}

// Small stream objects are merged, large ones linked without moving their data. The parts
// stay while the composite does, and go with the data in them: the first parts when cleanup
// lets go of them, the last with the stream.
func TestMergeAndLink(t *testing.T) {
	e := newEnv(t)
	cfg := e.compacting()
	cfg.CleanupBytes = 1
	s := e.open(cfg)
	st := e.create(s, 1, 1)[0]
	var want []string
	round := func(n, size int) {
		more := numbered(fmt.Sprint(len(want)), n, size)
		want = append(want, more...)
		appendAll(t, st, more...)
		upload(t, s)
	}
	check := func(k ...ObjectKind) {
		t.Helper()
		compact(t, s)
		if got := kinds(e.objectsOf(st)); !slices.Equal(got, k) {
			t.Fatalf("kinds %v, want %v", got, k)
		}
		if got := readAll(t, st); !slices.Equal(got, want) {
			t.Fatalf("%d batches, want %d", len(got), len(want))
		}
	}
	for range 3 {
		round(3, 100)
	}
	check(KindStream) // merged: still small
	round(10, 1000)
	check(KindComposite)
	round(10, 1000)
	check(KindComposite)
	first := e.objectsOf(st)[0]
	c, err := readComposite(context.Background(), e.memory, first.ObjectRef)
	if err != nil || len(c.parts) != 3 {
		t.Fatalf("composite of %d parts, %v, want 3", len(c.parts), err)
	}
	if first.Size > 2000 {
		t.Fatalf("the composite has %d bytes: data was copied", first.Size)
	}
	e.meta.SetClock(func() time.Time { return time.Now().Add(time.Hour) })
	clean := func(want int) {
		t.Helper()
		if _, err := s.Clean(context.Background()); err != nil {
			t.Fatal(err)
		}
		e.wantObjects(want)
	}
	clean(4) // the composite and its parts

	trim := func(n int) {
		t.Helper()
		if err := st.Trim(context.Background(), st.StartOffset()+int64(n)); err != nil {
			t.Fatal(err)
		}
		want = want[n:]
	}
	trim(5)
	check(KindComposite)
	if got := e.objectsOf(st)[0].ID; got != first.ID {
		t.Fatal("the composite was written again, though no part of it is trimmed")
	}
	trim(6)
	check(KindComposite)
	e.meta.SetClock(func() time.Time { return time.Now().Add(2 * time.Hour) })
	clean(3)
	trim(len(want))
	e.meta.SetClock(func() time.Time { return time.Now().Add(3 * time.Hour) })
	clean(0)
}

// A composite that is replaced while a reader knows it, and deleted, is looked up again.
func TestReaderFollowsCompaction(t *testing.T) {
	e := newEnv(t)
	cfg := e.compacting()
	cfg.BlockCacheBytes, cfg.IndexCacheBytes = 1, 1<<20
	s := e.open(cfg)
	st := e.create(s, 2, 1)
	var want []string
	for i := range 4 {
		more := numbered(fmt.Sprint(i), 4, 500)
		want = append(want, more...)
		appendAll(t, st[0], more...)
		appendAll(t, st[1], "beside")
		upload(t, s)
	}
	if got := readAll(t, st[0]); !slices.Equal(got, want) {
		t.Fatalf("%d batches, want %d", len(got), len(want))
	}
	known, _ := s.reader.ranges.get(st[0].id)
	compact(t, s)
	s.reader.ranges.put(st[0].id, known, 1) // as if a read had been under way
	e.meta.SetClock(func() time.Time { return time.Now().Add(time.Hour) })
	if n, err := s.Clean(context.Background()); err != nil || n != 4 {
		t.Fatalf("cleaned %d, %v", n, err)
	}
	if got := readAll(t, st[0]); !slices.Equal(got, want) {
		t.Fatalf("%d batches after compaction, want %d", len(got), len(want))
	}
	s.reader.ranges.put(st[0].id, known, 1)
	if _, found, err := s.reader.findTimestamp(context.Background(), st[0].id, 0, st[0].ConfirmOffset(), 1<<40); found || err != nil {
		t.Fatalf("find timestamp: %t, %v", found, err)
	}
}

// commits counts the compactions that reach metadata.
type commits struct {
	*MemoryManager
	n    int
	hook func()
}

func (c *commits) CommitCompaction(ctx context.Context, node Node, comp Compaction) error {
	c.n++
	if c.hook != nil {
		c.hook()
	}
	return c.MemoryManager.CommitCompaction(ctx, node, comp)
}

func (e *env) openCounting(cfg Config, b objectstore.Bucket, c *commits) *Store {
	e.t.Helper()
	c.MemoryManager = e.meta
	s, err := Open(context.Background(), cfg, 1, b, e.meta, c, newEnvLog())
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(s.abandon)
	return s
}

// A source that cannot be read, or is not what was written, ends the compaction: nothing is
// committed, everything is as before, and once the source reads well the next run does it.
func TestUnreadableSourceAbortsCompaction(t *testing.T) {
	e := newEnv(t)
	counted := &commits{}
	faulty := objectstore.NewFaulty(e.memory, objectstore.Faults{})
	s := e.openCounting(e.compacting(), faulty, counted)
	streams := e.create(s, 2, 1)
	for i := range 3 {
		for _, st := range streams {
			appendAll(t, st, numbered(fmt.Sprint(i), 5, 400)...)
		}
		upload(t, s)
	}
	before := e.objectsOf(streams[0])
	victim := ObjectKey(before[1].ID)
	good, err := e.memory.Get(context.Background(), victim, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func() error{
		"flipped": func() error {
			bad := slices.Clone(good)
			bad[objectHeaderSize+blockHeaderSize+50] ^= 1
			return e.memory.Put(context.Background(), victim, bad)
		},
		"missing":     func() error { return e.memory.Delete(context.Background(), victim) },
		"cut":         func() error { return e.memory.Put(context.Background(), victim, good[:len(good)-1]) },
		"bad index":   func() error { return e.memory.Put(context.Background(), victim, good[1:]) },
		"another one": func() error { return e.memory.Put(context.Background(), victim, formatStreamSet()) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		err := s.Compact(context.Background())
		if !errors.Is(err, ErrCorrupt) && !errors.Is(err, objectstore.ErrNotFound) {
			t.Fatalf("%s: compaction says %v", name, err)
		}
		if counted.n > 0 {
			t.Fatalf("%s: committed", name)
		}
		if got := e.objectsOf(streams[0]); !slices.Equal(got, before) {
			t.Fatalf("%s: objects %v, want %v", name, got, before)
		}
	}
	if err := e.memory.Put(context.Background(), victim, good); err != nil {
		t.Fatal(err)
	}
	compact(t, s)
	if got := readAll(t, streams[0]); counted.n != 1 || len(got) != 15 {
		t.Fatalf("%d commits, %d batches, want 1 and 15", counted.n, len(got))
	}
}

// A compaction that outlasts half the life of its prepared ids gives up; the next one has new
// ids and does it. What the first one left expires and is deleted.
func TestSlowCompactionStartsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		counted := &commits{}
		faulty := objectstore.NewFaulty(e.memory, objectstore.Faults{})
		s := e.openCounting(e.compacting(), faulty, counted)
		streams := e.create(s, 2, 1)
		for i := range 3 {
			for _, st := range streams {
				appendAll(t, st, numbered(fmt.Sprint(i), 5, 900)...)
			}
			upload(t, s)
		}
		var stuck atomic.Int64 // the last id that a compaction put
		hold := faulty.Hold(objectstore.After, func(op objectstore.Op, key string) bool {
			id, ok := parseObjectKey(key)
			if op != objectstore.OpPut || !ok {
				return false
			}
			for was := stuck.Load(); int64(id) > was && !stuck.CompareAndSwap(was, int64(id)); was = stuck.Load() {
			}
			return true
		})
		begin := time.Now()
		err := s.Compact(context.Background())
		if !errors.Is(err, errSlowCompaction) || time.Since(begin) > prepareTTL || counted.n > 0 {
			t.Fatalf("after %v: %v, %d commits", time.Since(begin), err, counted.n)
		}
		given := ObjectID(stuck.Load())
		hold.Release(nil)
		compact(t, s)
		e.wantObjects(3 + 4) // sources, what the first left, and the results
		<-time.After(2 * prepareTTL)
		if _, err := s.Clean(context.Background()); err != nil {
			t.Fatal(err)
		}
		e.wantObjects(2)
		for _, st := range streams {
			for _, o := range e.objectsOf(st) {
				if o.ID <= given {
					t.Fatalf("object %d was committed, of the compaction that gave up", o.ID)
				}
			}
			if got := readAll(t, st); len(got) != 15 {
				t.Fatalf("%d batches, want 15", len(got))
			}
		}
		s.abandon()
	})
}

// A stream that is trimmed, or destroyed, while its compaction is about to commit loses no
// more than that, and nothing of it is left behind.
func TestCompactionOvertaken(t *testing.T) {
	e := newEnv(t)
	counted := &commits{}
	s := e.openCounting(e.compacting(), e.memory, counted)
	streams := e.create(s, 3, 1)
	for i := range 3 {
		for _, st := range streams {
			appendAll(t, st, numbered(fmt.Sprint(i), 5, 900)...)
		}
		upload(t, s)
	}
	counted.hook = func() {
		counted.hook = nil
		if err := errors.Join(streams[0].Trim(context.Background(), 7), streams[1].Destroy(context.Background())); err != nil {
			t.Error(err)
		}
	}
	compact(t, s)
	for i, want := range map[int]int{0: 8, 2: 15} {
		if got := readAll(t, streams[i]); len(got) != want {
			t.Fatalf("stream %d: %d batches, want %d", i, len(got), want)
		}
	}
	e.meta.SetClock(func() time.Time { return time.Now().Add(time.Hour) })
	if _, err := s.Clean(context.Background()); err != nil {
		t.Fatal(err)
	}
	e.wantObjects(2)
}

// Two nodes compact what each has: the one the stream set objects that it wrote, though the
// streams have moved; the other the stream objects of the streams that it has now. What one
// of them commits first the other does not undo.
func TestCompactionOfMovedStreams(t *testing.T) {
	e := newEnv(t)
	open := func(id NodeID) *Store {
		s, err := Open(context.Background(), e.compacting(), id, e.bucket, e.meta, e.meta, newEnvLog())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.abandon)
		return s
	}
	one, two := open(1), open(2)
	streams := e.create(one, 2, 1)
	var want []string
	add := func(s *Store, size int) {
		more := numbered(fmt.Sprint(len(want)), 4, size)
		want = append(want, more...)
		for _, st := range streams {
			appendAll(t, st, more...)
		}
		upload(t, s)
	}
	for range 3 {
		add(one, 100)
	}
	if err := one.CloseStreams(context.Background(), streams); err != nil {
		t.Fatal(err)
	}
	streams = e.reopen(two, OpenRequest{streams[0].id, 2}, OpenRequest{streams[1].id, 2})
	for range 3 {
		add(two, 3000)
	}
	compact(t, two)
	compact(t, one)
	compact(t, two)
	for _, st := range streams {
		ranges := e.objectsOf(st)
		if got := kinds(ranges); !slices.Equal(got, []ObjectKind{KindStreamSet, KindComposite}) {
			t.Fatalf("stream %d lies in objects of kinds %v", st.id, got)
		}
		if got := readAll(t, st); !slices.Equal(got, want) {
			t.Fatalf("stream %d holds %d batches, want %d", st.id, len(got), len(want))
		}
	}
}

// Offsets may be sparse and far apart, and are 64 bits wide everywhere.
func TestCompactionOfSparseOffsets(t *testing.T) {
	e := newEnv(t)
	s := e.open(e.compacting())
	streams := e.create(s, 2, 1)
	for range 3 {
		for _, st := range streams {
			for range 3 {
				done := make(chan error, 1)
				if _, err := st.Append(context.Background(), RecordBatch{Count: math.MaxInt32, MaxTimestamp: -1, Payload: make([]byte, 1000)}, func(err error) { done <- err }); err != nil {
					t.Fatal(err)
				}
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			}
		}
		upload(t, s)
	}
	compact(t, s)
	for _, st := range streams {
		if got := e.objectsOf(st); len(got) != 1 || got[0].End != 9*math.MaxInt32 {
			t.Fatalf("stream lies in %v", got)
		}
		if got := readAll(t, st); len(got) != 9 {
			t.Fatalf("%d batches, want 9", len(got))
		}
	}
}

// A stream whose offsets span exactly 2^31, or more, in one block of one object keeps them all.
func TestCompactionOfWideSpans(t *testing.T) {
	e := newEnv(t)
	s := e.open(e.compacting())
	streams := e.create(s, 2, 1)
	for _, counts := range [][]int32{{math.MaxInt32, 1}, {math.MaxInt32, math.MaxInt32, 3}} {
		for _, st := range streams {
			for _, n := range counts {
				done := make(chan error, 1)
				if _, err := st.Append(context.Background(), RecordBatch{Count: n, MaxTimestamp: -1, Payload: []byte("x")}, func(err error) { done <- err }); err != nil {
					t.Fatal(err)
				}
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			}
		}
		upload(t, s)
	}
	const end = 1<<31 + 1<<32 + 1
	for range 2 {
		for _, st := range streams {
			if ranges := e.objectsOf(st); ranges[len(ranges)-1].End != end {
				t.Fatalf("stream %d lies in %v, want an end of %d", st.id, ranges, int64(end))
			}
			if got := readAll(t, st); len(got) != 5 {
				t.Fatalf("%d batches, want 5", len(got))
			}
			for offset, base := range map[int64]int64{1<<31 - 1: 1<<31 - 1, 1 << 31: 1 << 31, end - 1: end - 3} {
				batches, err := st.Fetch(context.Background(), offset, offset+1, 1)
				if err != nil || len(batches) != 1 || batches[0].BaseOffset != base {
					t.Fatalf("fetch of %d: %+v, %v, want base %d", offset, batches, err, base)
				}
			}
		}
		compact(t, s)
	}
}

// Objects that are gone already are deleted again without an error: a node may die between
// the deletion and metadata's word of it.
func TestCleanIsRepeated(t *testing.T) {
	e := newEnv(t)
	s := e.open(e.compacting())
	st := e.create(s, 1, 1)[0]
	for i := range 3 { // become a composite of three parts
		appendAll(t, st, numbered(fmt.Sprint(i), 10, 1000)...)
		upload(t, s)
	}
	compact(t, s)
	if got := kinds(e.objectsOf(st)); !slices.Equal(got, []ObjectKind{KindComposite}) {
		t.Fatalf("kinds %v", got)
	}
	if err := errors.Join(st.Destroy(context.Background()), s.streams.DeleteStreams(context.Background(), s.Node(), []StreamID{st.id})); err != nil {
		t.Fatal(err)
	}
	for _, o := range e.dataObjects() {
		if err := e.memory.Delete(context.Background(), o.Key); err != nil {
			t.Fatal(err)
		}
	}
	e.meta.SetClock(func() time.Time { return time.Now().Add(time.Hour) })
	for _, want := range []int{4, 0} {
		if n, err := s.Clean(context.Background()); err != nil || n != want {
			t.Fatalf("cleaned %d, %v, want %d", n, err, want)
		}
	}
}

// Reads of a run are spread over the time that it has, and never go below the rate that is set.
func TestPacer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := false
		p := pacer{busy: func() bool { return busy }}
		for _, test := range []struct {
			over time.Duration
			rate int64
			want time.Duration // for 9 of 10 reads of 1000 bytes: the last one does not wait
		}{
			{10 * time.Second, 100, 9 * time.Second},
			{100 * time.Second, 1000, 9 * time.Second},
			{0, 500, 18 * time.Second},
		} {
			p.start(10_000, test.over, test.rate)
			begin := time.Now()
			for range 10 {
				if err := p.wait(context.Background(), 1000); err != nil {
					t.Fatal(err)
				}
			}
			if got := time.Since(begin); got != test.want {
				t.Errorf("10,000 bytes over %v at %d a second: %v, want %v", test.over, test.rate, got, test.want)
			}
			busy = true // for each of these reads the next one waits four times as long
			begin = time.Now()
			for range 3 {
				if err := p.wait(context.Background(), 1000); err != nil {
					t.Fatal(err)
				}
			}
			busy = false
			if got, want := time.Since(begin), test.want/9*(1+4+4); got != want {
				t.Errorf("3,000 bytes over %v at %d a second while others are served: %v, want %v", test.over, test.rate, got, want)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := p.wait(ctx, 1000); err == nil {
			t.Error("waited after the context had ended")
		}
	})
}

// Compaction goes at a quarter of its rate while a fetch waits for an object, and while much
// waits for upload.
func TestCompactionYields(t *testing.T) {
	took := make(map[string]time.Duration)
	for _, while := range []string{"idle", "fetch", "upload"} {
		synctest.Test(t, func(t *testing.T) {
			e := newEnv(t)
			faulty := objectstore.NewFaulty(e.memory, objectstore.Faults{})
			e.bucket = faulty
			cfg := e.compacting()
			cfg.CompactionRate, cfg.UploadBytes, cfg.LogCacheBytes = 1000, 32<<10, 64<<10
			s := e.open(cfg)
			streams := e.create(s, 3, 1)
			appendAll(t, streams[0], numbered("large", 10, 1000)...) // an object of its own
			upload(t, s)
			for range 10 {
				for _, st := range streams[1:] {
					appendAll(t, st, numbered("small", 3, 200)...)
				}
				upload(t, s)
			}
			held := ObjectKey(e.objectsOf(streams[0])[0].ID)
			hold := faulty.Hold(objectstore.Before, func(_ objectstore.Op, key string) bool { return key == held })
			switch while {
			case "fetch":
				go streams[0].Fetch(context.Background(), 0, 1, 1)
				<-hold.Reached()
			case "upload":
				s.wal.release(-cfg.LogCacheBytes * 3 / 4) // as if so much had been appended, and no object held it
			}
			begin := time.Now()
			compact(t, s)
			took[while] = time.Since(begin)
			hold.Release(nil)
			s.abandon()
		})
	}
	for _, while := range []string{"fetch", "upload"} {
		if ratio := float64(took[while]) / float64(took["idle"]); took["idle"] < 10*time.Second || ratio < 3.9 || ratio > 4.1 {
			t.Errorf("compaction takes %v, beside a waiting %s %v, want four times as long", took["idle"], while, took[while])
		}
	}
}
