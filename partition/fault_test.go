package partition

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/streamstore"
)

func isWALWrite(op objectstore.Op, _ string) bool { return op == objectstore.OpPutIfAbsent }

// While its PUT is on the way a record is neither readable nor acknowledged, nor is its
// repeat, nor do dead letters return or a checkpoint speak of it; then all are at once.
func TestNothingIsVisibleBeforeDurable(t *testing.T) {
	ctx := context.Background()
	c := newCluster(t)
	p := c.start().create(t, "t", 1, nil)
	hold := c.now.Hold(objectstore.Before, isWALWrite)
	batch := produced{producer: 3, sequence: 0, values: []string{"a"}}
	first, err := send(t, p, batch)
	if err != nil {
		t.Fatal(err)
	}
	repeat, err := send(t, p, batch)
	if err != nil {
		t.Fatal(err)
	}
	letters1 := make(chan error, 1)
	go func() { letters1 <- p.AppendDeadLetters(ctx, uuid.UUID{}, 0, letters(7)) }()
	checkpoint := make(chan error, 1)
	go func() { checkpoint <- p.checkpoint(ctx) }()
	<-hold.Reached()
	if r, err := p.Read(ctx, 0, 1, ReadUncommitted); err != nil || len(r.Batches) != 0 || r.HighWatermark != 0 {
		t.Fatalf("%d batches below %d, %v, want none", len(r.Batches), r.HighWatermark, err)
	}
	select {
	case <-first:
		t.Fatal("acknowledged before it is durable")
	case <-repeat:
		t.Fatal("the repeat is acknowledged before the first is durable")
	case <-letters1:
		t.Fatal("dead letters returned before they are durable")
	default:
	}
	if next := p.meta.NextOffset(); next != 0 {
		t.Fatal("a checkpoint was handed to the WAL before the log was durable")
	}
	hold.Release(nil)
	if a := <-first; a.err != nil || a.BaseOffset != 0 {
		t.Fatalf("offset %d, %v", a.BaseOffset, a.err)
	}
	if a := <-repeat; a.err != nil || a.BaseOffset != 0 {
		t.Fatalf("repeat: offset %d, %v", a.BaseOffset, a.err)
	}
	if err := errors.Join(<-letters1, <-checkpoint); err != nil {
		t.Fatal(err)
	}
	wantValues(t, p, 0, "a", "7")
}

// A batch that was lost in a crash is not known after it, so its repeat is stored; one that
// was stored while only its answer was lost is known.
func TestRetryAfterCrash(t *testing.T) {
	for _, stage := range []objectstore.Stage{objectstore.Before, objectstore.After} {
		c := newCluster(t)
		crashed := c.start()
		p := crashed.create(t, "t", 1, nil)
		mustAppend(t, p, produced{producer: 3, sequence: 0, values: []string{"a"}})
		hold := c.now.Hold(stage, isWALWrite)
		batch := produced{producer: 3, sequence: 1, values: []string{"b"}}
		lost, err := send(t, p, batch)
		if err != nil {
			t.Fatal(err)
		}
		<-hold.Reached()
		p = c.start().partition(t, "t", 0)
		if end, want := p.Offsets().HighWatermark, int64(1+stage); end != want {
			t.Fatalf("stage %d: the log ends at %d, want %d", stage, end, want)
		}
		if base := mustAppend(t, p, batch); base != 1 {
			t.Fatalf("stage %d: the retry got offset %d, want 1", stage, base)
		}
		mustAppend(t, p, produced{producer: 3, sequence: 2, values: []string{"c"}})
		wantValues(t, p, 0, "a", "b", "c")
		// Had it not crashed, only what was stored before the next life began would be acknowledged.
		hold.Release(nil)
		crashed.stop()
		if a := <-lost; stage == objectstore.Before && a.err == nil || a.err == nil && a.BaseOffset != 1 {
			t.Fatalf("stage %d: the earlier life acknowledged offset %d", stage, a.BaseOffset)
		}
	}
}

// Back-pressure blocks an append; giving up leaves no trace, and appends go on after it.
func TestBackPressure(t *testing.T) {
	c := newCluster(t)
	c.wal.WALUnflushedBytes = 1000
	p := c.start().create(t, "t", 1, nil)
	hold := c.now.Hold(objectstore.Before, isWALWrite)
	big := string(make([]byte, 900))
	first, err := send(t, p, produced{producer: 1, sequence: 0, values: []string{big}})
	if err != nil {
		t.Fatal(err)
	}
	<-hold.Reached()
	ctx, cancel := context.WithCancel(context.Background())
	blocked := make(chan error, 1)
	go func() {
		blocked <- p.Append(ctx, produced{producer: 1, sequence: 1, values: []string{big}}.bytes(t), func(AppendResult, error) { t.Error("answered") })
	}()
	// Readers and administrators are not blocked with it.
	if _, err := p.Read(context.Background(), 0, 1, ReadUncommitted); err != nil {
		t.Fatal(err)
	}
	p.EndOffsetForLeaderEpoch(0)
	cancel()
	if err := <-blocked; !errors.Is(err, context.Canceled) {
		t.Fatalf("%v, want context.Canceled", err)
	}
	hold.Release(nil)
	if a := <-first; a.err != nil {
		t.Fatal(a.err)
	}
	if base := mustAppend(t, p, produced{producer: 1, sequence: 1, values: []string{"b"}}); base != 1 {
		t.Fatalf("base %d, want 1", base)
	}
}

// When a newer life takes over, every waiter of the old one hears of it, and all its
// partitions refuse, also those that nobody appended to.
func TestFencedNodeClosesPartitions(t *testing.T) {
	c := newCluster(t)
	old := c.start()
	old.create(t, "t", 2, nil)
	idle := old.partition(t, "t", 1)
	ch := make(chan struct{}, 1)
	defer idle.Notify(ch)()
	if _, err := streamstore.Open(context.Background(), c.wal, 1, c.bucket, c.meta, c.meta, idle.slog); err != nil {
		t.Fatal(err)
	}
	if a, err := send(t, old.partition(t, "t", 0), produced{values: []string{"v"}}); err == nil {
		if got := <-a; !errors.Is(got.err, ErrNotLeader) {
			t.Fatalf("%v, want ErrNotLeader", got.err)
		}
	}
	<-ch
	wantRefused(t, idle, produced{values: []string{"v"}}, ErrNotLeader)
}
