package streamstore

import (
	"context"
	"log/slog"
	"testing"

	"github.com/tabletopic/tabletopic/objectstore"
)

// A stream that was on another node and is back is read as that node left it, though the log
// cache still holds what was appended here before.
func TestStreamThatWasAway(t *testing.T) {
	e := newEnv(t)
	ctx := context.Background()
	one := e.open(e.config(WALObject))
	two, err := Open(ctx, e.config(WALObject), 2, e.bucket, e.meta, e.meta, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(two.abandon)
	st := e.create(one, 1, 1)[0]
	appendAll(t, st, "a", "b")
	if err := st.Close(ctx); err != nil {
		t.Fatal(err)
	}
	there := e.reopen(two, OpenRequest{st.ID(), 2})[0]
	if _, err := there.Append(ctx, RecordBatch{Count: 1, MaxTimestamp: 7, Payload: []byte("c")}, func(error) {}); err != nil {
		t.Fatal(err)
	}
	if err := there.Close(ctx); err != nil {
		t.Fatal(err)
	}
	st = e.reopen(one, OpenRequest{st.ID(), 3})[0]
	for from, want := range []string{"a", "b", "c"} {
		got, err := st.Fetch(ctx, int64(from), 3, 1)
		if err != nil || len(got) != 1 || string(got[0].Payload) != want {
			t.Errorf("fetch from %d: %v, %v, want %q", from, got, err, want)
		}
	}
	if offset, found, err := st.FindTimestamp(ctx, 5); err != nil || !found || offset != 2 {
		t.Errorf("find timestamp: %d, %t, %v, want 2", offset, found, err)
	}
	appendAll(t, st, "d")
	if got, err := fetchAll(st, 100); err != nil || len(got) != 4 {
		t.Errorf("the stream holds %q, %v", got, err)
	}
}

// A timestamp is found although the log cache lets go of the batch while objects are searched.
func TestFindTimestampWhileTheCacheEvicts(t *testing.T) {
	e := newEnv(t)
	ctx := context.Background()
	faulty := objectstore.NewFaulty(e.memory, objectstore.Faults{})
	e.bucket = faulty
	s := e.open(e.config(WALObject))
	st := e.create(s, 1, 1)[0]
	appendAll(t, st, "old")
	if err := s.upload.flush(ctx); err != nil {
		t.Fatal(err)
	}
	s.cache.evict(0)
	done := make(chan error, 1)
	if _, err := st.Append(ctx, RecordBatch{Count: 1, MaxTimestamp: 7, Payload: []byte("new")}, func(err error) { done <- err }); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	hold := faulty.Hold(objectstore.Before, func(op objectstore.Op, _ string) bool { return op == objectstore.OpGet })
	var offset int64
	var found bool
	go func() {
		var err error
		offset, found, err = st.FindTimestamp(ctx, 5)
		done <- err
	}()
	<-hold.Reached()
	if err := s.upload.flush(ctx); err != nil {
		t.Fatal(err)
	}
	s.cache.evict(0)
	hold.Release(nil)
	if err := <-done; err != nil || !found || offset != 1 {
		t.Errorf("found %t at %d, %v, want 1", found, offset, err)
	}
}

// The log cache lets go of as much as bulks on their way into the WAL occupy, which is more
// than their bytes.
func TestCacheMakesRoomForWhatWaits(t *testing.T) {
	e := newEnv(t)
	ctx := context.Background()
	faulty := objectstore.NewFaulty(e.memory, objectstore.Faults{})
	e.bucket = faulty
	cfg := e.config(WALObject)
	cfg.WALBytes = 1 // a bulk each batch
	s := e.open(cfg)
	st := e.create(s, 1, 1)[0]
	held := func() int64 {
		s.wal.mu.Lock()
		defer s.wal.mu.Unlock()
		s.cache.mu.RLock()
		defer s.cache.mu.RUnlock()
		return s.cache.bytes + s.wal.waiting
	}
	for held() < cfg.LogCacheBytes*7/8 {
		appendAll(t, st, "kept for tail reads")
		if err := s.upload.flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	hold := faulty.Hold(objectstore.Before, func(op objectstore.Op, _ string) bool { return op == objectstore.OpPutIfAbsent })
	defer hold.Release(nil)
	for range 20 { // a block each
		if _, err := st.Append(ctx, RecordBatch{Count: 1, Payload: []byte("waits")}, func(error) {}); err != nil {
			t.Fatal(err)
		}
		if got := held(); got > cfg.LogCacheBytes+2*walBlock {
			t.Fatalf("%d bytes in memory, want %d and a bulk at most", got, cfg.LogCacheBytes)
		}
	}
}
