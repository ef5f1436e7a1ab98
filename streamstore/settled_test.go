package streamstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/objectstore"
)

// Until metadata is settled nothing goes that an older state of it names: no WAL object that
// it has to replay, and no object that it still refers to.
func TestDeletesOnlyWhatIsSettled(t *testing.T) {
	e := newEnv(t)
	var settle atomic.Int32 // how many more calls succeed
	var calls atomic.Int32
	cfg := e.config(WALObject)
	cfg.CleanInterval, cfg.DeleteGrace = -1, time.Nanosecond
	cfg.Settled = func(context.Context) error {
		calls.Add(1)
		if settle.Add(-1) < 0 {
			return errors.New("no snapshot yet")
		}
		return nil
	}
	s := e.open(cfg)
	st := e.create(s, 1, 1)[0]
	upload := func() {
		t.Helper()
		if err := s.upload.flush(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	for i := range int32(3) {
		appendAll(t, st, fmt.Sprint(i))
		upload()
		poll(t, "asked to settle", func() bool { return calls.Load() == i+1 })
	}
	if data, _ := e.walObjects(s.Node()); !slices.Equal(data, []uint64{0, 1, 2}) {
		t.Fatalf("the WAL holds %v, want what is not settled", data)
	}
	settle.Store(1)
	appendAll(t, st, "3")
	upload()
	poll(t, "WAL trimmed", func() bool { data, _ := e.walObjects(s.Node()); return len(data) == 0 })

	objects := func() int {
		t.Helper()
		page, err := e.memory.List(context.Background(), dataPrefix, "")
		if err != nil {
			t.Fatal(err)
		}
		return len(page)
	}
	before := objects()
	if err := st.Trim(context.Background(), 4); err != nil {
		t.Fatal(err)
	}
	settle.Store(0)
	if n, err := s.Clean(context.Background()); err == nil || n != 0 || objects() != before {
		t.Fatalf("deleted %d objects, %v, %d are left of %d", n, err, objects(), before)
	}
	settle.Store(1)
	if n, err := s.Clean(context.Background()); err != nil || n != before || objects() != 0 {
		t.Fatalf("deleted %d objects, %v, %d are left of %d", n, err, objects(), before)
	}
}

// A recovered WAL stays until the recovery is settled: a database from before it replays the
// WAL again.
func TestRecoveredWALStaysUntilSettled(t *testing.T) {
	e := newEnv(t)
	first := e.open(e.config(WALObject))
	st := e.create(first, 1, 1)[0]
	appendAll(t, st, "a", "b")
	first.abandon()

	cfg := e.config(WALObject)
	cfg.CleanInterval = -1
	settled := false
	cfg.Settled = func(context.Context) error {
		if !settled {
			return errors.New("no snapshot yet")
		}
		return nil
	}
	s := e.open(cfg)
	if got := readAll(t, e.reopen(s, OpenRequest{st.ID(), 2})[0]); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("got %q", got)
	}
	if err := s.sweepWALs(context.Background()); err == nil {
		t.Fatal("swept before it was settled")
	}
	if data, _ := e.walObjects(first.Node()); len(data) == 0 {
		t.Fatal("the WAL is gone before its recovery is settled")
	}
	settled = true
	if err := s.sweepWALs(context.Background()); err != nil {
		t.Fatal(err)
	}
	if data, fences := e.walObjects(first.Node()); len(data) != 0 || len(fences) != 1 {
		t.Fatalf("the WAL holds %v and fences %v", data, fences)
	}
	if _, err := e.memory.Get(context.Background(), walKey(1, 1, 0), 0, 1); !errors.Is(err, objectstore.ErrNotFound) {
		t.Fatal(err)
	}
}
