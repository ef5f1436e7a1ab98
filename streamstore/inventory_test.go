package streamstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tabletopic/tabletopic/objectstore"
)

// survey returns what a survey finds: state, and whether it is stored, by id.
func survey(t testing.TB, s *Store) map[ObjectID]string {
	t.Helper()
	got := make(map[ObjectID]string)
	last := ObjectID(0)
	if err := s.Survey(context.Background(), func(o FoundObject) error {
		if o.ID <= last {
			t.Errorf("object %d after %d", o.ID, last)
		}
		last = o.ID
		got[o.ID] = fmt.Sprintf("%s %t", o.State, o.Stored)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return got
}

func check(t testing.TB, s *Store, deep bool) (CheckSummary, []ObjectProblem) {
	t.Helper()
	var problems []ObjectProblem
	sum, err := s.Check(context.Background(), deep, func(p ObjectProblem) { problems = append(problems, p) }, func(CheckSummary) {})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(problems, func(a, b ObjectProblem) int { return int(a.ID - b.ID) })
	return sum, problems
}

// A survey finds each object once, in the state that it is in: also those of which only the
// metadata or only the bucket knows.
func TestSurvey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		e.bucket = twice{e.memory}
		s := e.open(e.compacting())
		streams := e.create(s, 2, 1)
		want := make(map[ObjectID]string)
		if got := survey(t, s); len(got) > 0 {
			t.Fatalf("an empty store holds %v", got)
		}
		orphan := e.forgotten(s, 1)
		e.put(ObjectKey(orphan))
		want[orphan] = "orphaned true"
		for range 3 {
			for _, st := range streams {
				appendAll(t, st, "x")
			}
			upload(t, s)
		}
		for _, r := range e.objectsOf(streams[0]) {
			want[r.ID] = "referenced true"
		}
		first := e.objectsOf(streams[0])[0].ID
		for _, st := range streams {
			if err := st.Trim(context.Background(), 1); err != nil {
				t.Fatal(err)
			}
		}
		want[first] = "destroyed true"
		missing := e.objectsOf(streams[0])[1].ID
		if err := e.memory.Delete(context.Background(), ObjectKey(missing)); err != nil {
			t.Fatal(err)
		}
		want[missing] = "referenced false"
		prepared, err := s.objects.PrepareObjects(context.Background(), s.Node(), 1, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		want[prepared] = "prepared false"
		late := prepared + 1000
		e.put(ObjectKey(late))
		want[late] = "orphaned true"
		e.put("data/foreign")
		if d := cmp.Diff(survey(t, s), want); d != "" {
			t.Fatalf("(-got +want):\n%s", d)
		}
		s.abandon()
	})
}

// A listing leaves out what lies between the ids asked for.
func TestListingSkips(t *testing.T) {
	e := newEnv(t)
	var lists objectstore.Counter
	e.bucket = objectstore.Observe(e.memory, &lists)
	s := e.open(e.compacting())
	const objects, step = 20_000, 128 // in two directories, ten pages each
	for i := range ObjectID(objects) {
		e.put(ObjectKey((i + 1) * step))
	}
	for _, test := range []struct {
		after, last ObjectID // by step
		requests    int64
	}{
		{0, objects, 21}, {0, 1 << 40, 21}, {0, 10, 3}, {9000, 10_000, 5}, {objects - 1, 1 << 40, 5}, {objects, 1 << 40, 5},
	} {
		before := lists.Count(objectstore.OpList)
		stored, err := s.storedObjects(context.Background(), test.after*step, test.last*step)
		if err != nil {
			t.Fatal(err)
		}
		if want := int(min(test.last, objects) - test.after); len(stored) != want {
			t.Errorf("objects %d to %d: %d, want %d", test.after, test.last, len(stored), want)
		}
		if n := lists.Count(objectstore.OpList) - before; n > test.requests {
			t.Errorf("objects %d to %d: %d requests, want at most %d", test.after, test.last, n, test.requests)
		}
	}
}

// What metadata is asked about while an upload, a compaction and a deletion go on is never
// called missing or orphaned.
func TestSurveyAndCheckBesideTraffic(t *testing.T) {
	e := newEnv(t)
	cfg := e.config(WALObject)
	cfg.UploadInterval, cfg.CleanInterval, cfg.DeleteGrace = 2*time.Millisecond, time.Millisecond, time.Nanosecond
	cfg.CompactionInterval, cfg.MinorInterval, cfg.MajorInterval, cfg.CleanupInterval = 3*time.Millisecond, 3*time.Millisecond, 5*time.Millisecond, 3*time.Millisecond
	cfg.MinorBytes, cfg.CleanupBytes = 2<<10, 1
	s := e.open(cfg)
	streams := e.create(s, 3, 1)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			st := streams[i%3]
			appendAll(t, st, strings.Repeat("x", 100*(i%17)))
			if i%50 == 0 {
				if err := st.Trim(context.Background(), st.ConfirmOffset()); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for i := 0; metric(t, s, "tabletopic_stream_objects_deleted_total") < 100 || metric(t, s, "tabletopic_stream_compactions_total") < 20; i++ {
		for id, got := range survey(t, s) {
			if got == "referenced false" || got == "orphaned true" {
				t.Errorf("object %d is %s", id, got)
			}
		}
		if _, problems := check(t, s, i%2 == 0); len(problems) > 0 {
			t.Errorf("problems: %+v", problems)
		}
	}
	close(stop)
	wg.Wait()
}

// newerObject returns a data object as a later version may write it: with another footer.
func newerObject(data []byte) []byte {
	newer := slices.Clone(data)
	newer[4] = objectVersion + 1
	binary.BigEndian.PutUint32(newer[objectHeaderSize-4:], checksum(newer[:objectHeaderSize-4]))
	copy(newer[len(newer)-4:], "JBO2")
	return newer
}

// After a return to an older program objects of the newer one are refused by their version,
// by whoever reads them: they are not taken for damaged, and nothing takes their place. The
// newer program then finds them all.
func TestNewerObjectIsLeftAlone(t *testing.T) {
	e := newEnv(t)
	s := e.open(e.compacting())
	st := e.create(s, 1, 1)[0]
	var want []string
	for i := range 3 {
		more := numbered(fmt.Sprint(i), 4, 1000)
		want = append(want, more...)
		appendAll(t, st, more...)
		upload(t, s)
	}
	object := e.objectsOf(st)[1]
	key := ObjectKey(object.ID)
	good, err := e.memory.Get(t.Context(), key, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.memory.Put(t.Context(), key, newerObject(good)); err != nil {
		t.Fatal(err)
	}
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, errNewer) || errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), "version 2") ||
			!strings.Contains(err.Error(), "start the program that wrote it") {
			t.Errorf("%s: %v, want %s refused by its version", what, err, key)
		}
	}
	_, err = st.Fetch(t.Context(), object.Start, object.End, 1)
	refused("fetch", err)
	refused("compaction", s.Compact(t.Context()))
	if _, problems := check(t, s, true); len(problems) != 1 || problems[0].ID != object.ID || !strings.Contains(problems[0].Problem, "version 2") {
		t.Errorf("check: %+v, want object %d", problems, object.ID)
	}
	s.abandon()

	if err := e.memory.Put(t.Context(), key, good); err != nil { // the newer program reads what it wrote
		t.Fatal(err)
	}
	s = e.open(e.compacting())
	if got := readAll(t, e.reopen(s, OpenRequest{st.ID(), 2})[0]); !slices.Equal(got, want) {
		t.Fatalf("%d batches, want %d", len(got), len(want))
	}
}

// A check names what is missing, has another size or other bytes, and the offsets that cannot
// be read because of it, those in parts of composites too; a check that is not deep does not
// read data. Orphans are counted and are no problem.
func TestCheck(t *testing.T) {
	e := newEnv(t)
	s := e.open(e.compacting())
	streams := e.create(s, 3, 1)
	for i := range 3 { // a composite of three parts
		appendAll(t, streams[0], numbered(fmt.Sprint(i), 10, 1000)...)
		upload(t, s)
	}
	compact(t, s)
	for range 2 { // sets of two streams, and one object of stream 1
		appendAll(t, streams[1], "a")
		appendAll(t, streams[2], "b")
		upload(t, s)
	}
	appendAll(t, streams[1], numbered("x", 10, 1000)...)
	upload(t, s)
	e.put(ObjectKey(1 << 40))
	composite := e.objectsOf(streams[0])[0]
	if composite.Kind != KindComposite {
		t.Fatalf("stream 0 lies in %+v", composite)
	}
	linked, err := readComposite(context.Background(), e.memory, composite.ObjectRef)
	if err != nil {
		t.Fatal(err)
	}
	set, single := e.objectsOf(streams[1])[0], e.objectsOf(streams[1])[2]
	part := ObjectRange{ObjectRef{linked.parts[1].id, KindStream, linked.parts[1].size}, linked.parts[1].start(), linked.parts[1].end()}
	ranges := func(stream *Stream, r ObjectRange) StreamRange {
		return StreamRange{Stream: stream.id, Start: r.Start, End: r.End}
	}
	for _, deep := range []bool{false, true} {
		sum, problems := check(t, s, deep)
		if len(problems) > 0 || sum.Objects != 7 || sum.Total != 7 || sum.Orphaned != 1 || (sum.Bytes > 40_000) != deep {
			t.Fatalf("deep %t: %+v, %+v", deep, sum, problems)
		}
	}
	for name, test := range map[string]struct {
		object ObjectRange
		spoil  func(data []byte) []byte // nil deletes
		deep   bool                     // only a deep check finds it
		want   string
		lost   []StreamRange
	}{
		"missing set":       {object: set, want: "does not exist", lost: []StreamRange{ranges(streams[1], set), ranges(streams[2], set)}},
		"missing part":      {object: part, want: "does not exist", lost: []StreamRange{ranges(streams[0], part)}},
		"missing composite": {object: composite, want: "does not exist", lost: []StreamRange{ranges(streams[0], composite)}},
		"cut":               {object: single, spoil: func(d []byte) []byte { return d[:len(d)-1] }, want: "metadata says", lost: []StreamRange{ranges(streams[1], single)}},
		"flipped":           {object: single, spoil: func(d []byte) []byte { d[100] ^= 1; return d }, deep: true, want: "checksum", lost: []StreamRange{ranges(streams[1], single)}},
		"flipped part":      {object: part, spoil: func(d []byte) []byte { d[100] ^= 1; return d }, deep: true, want: "checksum", lost: []StreamRange{ranges(streams[0], part)}},
		"flipped composite": {object: composite, spoil: func(d []byte) []byte { d[100] ^= 1; return d }, want: "checksum", lost: []StreamRange{ranges(streams[0], composite)}},
		"flipped index":     {object: single, spoil: func(d []byte) []byte { d[len(d)-50] ^= 1; return d }, deep: true, want: "checksum", lost: []StreamRange{ranges(streams[1], single)}},
	} {
		key := ObjectKey(test.object.ID)
		good, err := e.memory.Get(context.Background(), key, 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		if test.spoil == nil {
			err = e.memory.Delete(context.Background(), key)
		} else {
			err = e.memory.Put(context.Background(), key, test.spoil(slices.Clone(good)))
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, deep := range []bool{false, true} {
			sum, problems := check(t, s, deep)
			if !deep && test.deep {
				if len(problems) > 0 {
					t.Errorf("%s: found by a check that is not deep: %+v", name, problems)
				}
				continue
			}
			if len(problems) != 1 || problems[0].ID != test.object.ID || !strings.Contains(problems[0].Problem, test.want) || sum.Problems != 1 {
				t.Errorf("%s, deep %t: %+v %+v", name, deep, sum, problems)
			} else if d := cmp.Diff(problems[0].Lost, test.lost); d != "" {
				t.Errorf("%s, deep %t: lost (-got +want):\n%s", name, deep, d)
			}
		}
		if err := e.memory.Put(context.Background(), key, good); err != nil {
			t.Fatal(err)
		}
	}
}
