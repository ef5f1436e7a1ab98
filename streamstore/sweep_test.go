package streamstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tabletopic/tabletopic/objectstore"
)

// keys returns the keys below data/.
func (e *env) keys() (keys []string) {
	for _, o := range e.dataObjects() {
		keys = append(keys, o.Key)
	}
	return keys
}

func (e *env) put(key string) {
	e.t.Helper()
	if err := e.memory.Put(context.Background(), key, []byte("left behind")); err != nil {
		e.t.Fatal(err)
	}
}

// forgotten gives away n ids that metadata then forgets, as of uploads that never came.
func (e *env) forgotten(s *Store, n int) ObjectID {
	e.t.Helper()
	first, err := s.objects.PrepareObjects(context.Background(), s.Node(), n, time.Nanosecond)
	if err != nil {
		e.t.Fatal(err)
	}
	<-time.After(time.Second)
	ids := make([]ObjectID, n)
	for i := range ids {
		ids[i] = first + ObjectID(i)
	}
	if err := s.objects.ForgetObjects(context.Background(), s.Node(), ids); err != nil {
		e.t.Fatal(err)
	}
	return first
}

func sweep(t testing.TB, s *Store) SweepResult {
	t.Helper()
	r, err := s.Sweep(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	r.Until = time.Time{}
	return r
}

// A sweep deletes what metadata does not know, once it is older than the grace and if its id
// was given away before the sweep. Everything that metadata knows in any state stays, and so
// does whatever has a key of another kind.
func TestSweepDeletesOnlyOrphans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		s := e.open(e.compacting())
		streams := e.create(s, 2, 1)
		for _, st := range streams {
			appendAll(t, st, numbered("kept", 3, 100)...)
		}
		upload(t, s)                                                                                 // referenced
		prepared, err := s.objects.PrepareObjects(context.Background(), s.Node(), 2, 1000*time.Hour) // and one that is written
		if err != nil {
			t.Fatal(err)
		}
		e.put(ObjectKey(prepared))
		appendAll(t, streams[0], numbered("trimmed", 3, 10_000)...)
		upload(t, s)
		if err := streams[0].Trim(context.Background(), 6); err != nil { // destroyed, and not yet deleted
			t.Fatal(err)
		}
		known := e.keys()
		first := e.forgotten(s, 3)
		foreign := []string{
			"data/notes.txt", "data/00/x", "data/data/00/0000000000000100", // another cluster below data/
			fmt.Sprintf("data/00/%016x", uint64(first)), // an id at the place of another
			"data/ff/ffffffffffffffff",                  // a number that no id has
		}
		for i := range ObjectID(3) {
			e.put(ObjectKey(first + i))
		}
		for _, key := range append(foreign, ObjectKey(1<<40), "wal/7/0000000000000001/00", "warehouse/x") {
			e.put(key)
		}
		want := SweepResult{Mine: true, Young: 4, Foreign: 5}
		if d := cmp.Diff(sweep(t, s), want); d != "" {
			t.Fatalf("before the grace (-got +want):\n%s", d)
		}
		<-time.After(s.cfg.SweepGrace - time.Minute)
		e.put(ObjectKey(first + 2)) // late: by a process that was stopped for hours
		if d := cmp.Diff(sweep(t, s), want); d != "" {
			t.Fatalf("a minute before the grace (-got +want):\n%s", d)
		}
		<-time.After(2 * time.Minute)
		want = SweepResult{Mine: true, Orphans: 2, Bytes: 2 * int64(len("left behind")), Young: 2, Foreign: 5}
		if d := cmp.Diff(sweep(t, s), want); d != "" {
			t.Fatalf("after the grace (-got +want):\n%s", d)
		}
		if !s.sweepDue.Load() {
			t.Error("the remains of WALs are not looked for")
		}
		left := slices.Concat(known, foreign, []string{ObjectKey(first + 2), ObjectKey(1 << 40)})
		slices.Sort(left)
		if d := cmp.Diff(e.keys(), left); d != "" {
			t.Fatalf("what is left (-got +want):\n%s", d)
		}
		if n := metric(t, s, "tabletopic_stream_orphans_deleted_total"); n != 2 {
			t.Errorf("metric says %v orphans, want 2", n)
		}
		if n := metric(t, s, "tabletopic_stream_sweep_foreign_keys"); n != 5 {
			t.Errorf("metric says %v foreign keys, want 5", n)
		}
		for _, key := range []string{"wal/7/0000000000000001/00", "warehouse/x"} {
			if _, err := e.memory.Get(context.Background(), key, 0, 1); err != nil {
				t.Errorf("%s: %v", key, err)
			}
		}
		s.abandon()
	})
}

// askedLate answers what is known only after a step between.
type askedLate struct {
	*MemoryManager
	between func()
}

func (a *askedLate) FindObjects(ctx context.Context, ids []ObjectID) ([]KnownObject, error) {
	if a.between != nil {
		a.between()
		a.between = nil
	}
	return a.MemoryManager.FindObjects(ctx, ids)
}

func (a *askedLate) open(e *env, cfg Config) *Store {
	e.t.Helper()
	a.MemoryManager = e.meta
	s, err := Open(context.Background(), cfg, 1, e.bucket, e.meta, a, newEnvLog())
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(s.abandon)
	return s
}

// The clock of the machine does not decide how old an object is.
func TestSweepGoesByTheClockOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		skewed := &skewedBucket{Memory: e.memory}
		e.bucket = skewed
		s := e.open(e.compacting())
		e.put(ObjectKey(e.forgotten(s, 1)))
		for _, skew := range []time.Duration{-1000 * time.Hour, 1000 * time.Hour} {
			skewed.skew = skew
			if r := sweep(t, s); r.Orphans != 0 || r.Young != 1 {
				t.Fatalf("store's clock %v ahead: %+v", skew, r)
			}
		}
		<-time.After(s.cfg.SweepGrace)
		skewed.skew = -1000 * time.Hour
		if r := sweep(t, s); r.Orphans != 1 {
			t.Fatalf("after the grace: %+v", r)
		}
		s.abandon()
	})
}

// skewedBucket has a clock of its own.
type skewedBucket struct {
	*objectstore.Memory
	skew time.Duration
}

func (b *skewedBucket) List(ctx context.Context, prefix, after string) ([]objectstore.Object, error) {
	page, err := b.Memory.List(ctx, prefix, after)
	for i := range page {
		page[i].Modified = page[i].Modified.Add(b.skew)
	}
	return page, err
}

// An object that is prepared, written and committed while its page is under way is known by
// the time that metadata is asked.
func TestSweepBesideAnUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		cfg := e.compacting()
		cfg.SweepGrace = time.Nanosecond
		late := &askedLate{}
		s := late.open(e, cfg)
		st := e.create(s, 1, 1)[0]
		appendAll(t, st, "first")
		upload(t, s)
		late.between = func() {
			appendAll(t, st, "second")
			upload(t, s)
		}
		if r := sweep(t, s); r.Orphans+r.Young != 0 {
			t.Fatalf("%+v", r)
		}
		if r := sweep(t, s); r.Orphans+r.Young != 0 {
			t.Fatalf("%+v", r)
		}
		if got := readAll(t, st); !slices.Equal(got, []string{"first", "second"}) {
			t.Fatalf("read %q", got)
		}
		s.abandon()
	})
}

// One node sweeps at a time, once in SweepInterval, across restarts; a node that dies in the
// middle is followed by another, which removes what is left.
func TestSweepTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		cfg := e.compacting()
		cfg.SweepInterval, cfg.SweepGrace = 24*time.Hour, time.Hour
		faulty := objectstore.NewFaulty(e.memory, objectstore.Faults{})
		open := func(id NodeID, b objectstore.Bucket) *Store {
			s, err := Open(context.Background(), cfg, id, b, e.meta, e.meta, newEnvLog())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.abandon)
			return s
		}
		one := open(1, faulty)
		first := e.forgotten(one, 3000)
		for i := range ObjectID(3000) {
			e.put(ObjectKey(first + i))
		}
		<-time.After(time.Hour)
		synctest.Wait()
		// It began ten minutes after its start, when all were young. A day later it dies in the middle.
		e.wantObjects(3000)
		hold := faulty.Hold(objectstore.After, func(op objectstore.Op, key string) bool { return op == objectstore.OpDelete })
		begin := time.Now()
		<-hold.Reached()
		if waited := time.Since(begin); waited < 23*time.Hour || waited > 23*time.Hour+15*time.Minute {
			t.Errorf("swept again after %v, want a day after the first", waited)
		}
		one.fail(ErrStoreClosed)
		hold.Release(errors.New("died"))
		one.abandon()
		left := len(e.keys())
		if left == 0 || left == 3000 {
			t.Fatalf("%d objects are left in the middle of a sweep", left)
		}
		two := open(2, e.memory)
		<-time.After(sweepTurn + sweepDelay)
		synctest.Wait()
		e.wantObjects(0)
		if n := metric(t, two, "tabletopic_stream_orphans_deleted_total"); n != float64(left) {
			t.Errorf("the second node deleted %v objects, want %d", n, left)
		}
		// The third life, and a restart of it, wait for the next day.
		list := objectstore.Counter{}
		three := open(3, objectstore.Observe(e.memory, &list))
		three.abandon()
		open(3, objectstore.Observe(e.memory, &list))
		before := list.Count(objectstore.OpList)
		<-time.After(20 * time.Hour)
		if n := list.Count(objectstore.OpList) - before; n > 1 { // of the WAL's remains
			t.Errorf("%d listings of a node whose turn it is not", n)
		}
	})
}

// A node that stands still in the middle of a sweep, until another has the turn, deletes nothing
// of what it has listed.
func TestSweepAfterItsTurnDeletesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		f := e.faulty()
		one := e.open(e.compacting())
		two, err := Open(context.Background(), e.compacting(), 2, e.memory, e.meta, e.meta, newEnvLog())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(two.abandon)
		e.put(ObjectKey(e.forgotten(one, 1)))
		<-time.After(one.cfg.SweepGrace)
		hold := f.Hold(objectstore.After, func(op objectstore.Op, key string) bool { return op == objectstore.OpList && key == dataPrefix })
		swept := make(chan SweepResult)
		go func() { swept <- sweep(t, one) }()
		<-hold.Reached()
		<-time.After(sweepTurn)
		if claim, err := two.claimSweep(context.Background(), sweepTurn); err != nil || !claim.Mine {
			t.Fatalf("%+v, %v", claim, err)
		}
		hold.Release(nil)
		if r := <-swept; r.Orphans != 0 {
			t.Fatalf("%+v", r)
		}
		e.wantObjects(1)
	})
}

// A listing may name an object twice.
func TestSweepCountsAnObjectOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		e.bucket = twice{e.memory}
		s := e.open(e.compacting())
		st := e.create(s, 1, 1)[0]
		appendAll(t, st, "kept")
		upload(t, s)
		e.put(ObjectKey(e.forgotten(s, 1)))
		<-time.After(s.cfg.SweepGrace)
		if r := sweep(t, s); r.Orphans != 1 || r.Bytes != int64(len("left behind")) {
			t.Fatalf("%+v", r)
		}
		e.wantObjects(1)
		s.abandon()
	})
}

// twice lists every object twice.
type twice struct{ *objectstore.Memory }

func (b twice) List(ctx context.Context, prefix, after string) ([]objectstore.Object, error) {
	page, err := b.Memory.List(ctx, prefix, after)
	return slices.SortedFunc(slices.Values(append(page, page...)), func(a, b objectstore.Object) int {
		if a.Key < b.Key {
			return -1
		} else if a.Key > b.Key {
			return 1
		}
		return 0
	}), err
}
