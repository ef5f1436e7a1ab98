package group

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/internal/shard"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/streamstore"
)

// An answer that was made while the partition of the group went away does not count: whoever
// leads it now may know better.
func TestAnswersOnlyWhileLedHere(t *testing.T) {
	ctx, log := t.Context(), slog.New(slog.DiscardHandler)
	meta, err := metadata.Open(ctx, "sqlite::memory:", log)
	if err != nil {
		t.Fatal(err)
	}
	defer meta.Close()
	store, err := streamstore.Open(ctx, streamstore.Config{WALLinger: time.Millisecond}, 1, objectstore.NewMemory(), meta, meta, log)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close(context.Background())
	set, err := partition.OpenSet(ctx, partition.Config{}, store, meta, log)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close(context.Background())
	m := Open(set, Config{}, nil, log)
	defer m.Close()
	answers := func(meanwhile func()) error {
		_, err := do[int](ctx, m, "g", func(_ *State, _ time.Time, t shard.Ticket) shard.Step {
			meanwhile()
			return shard.Step{Answers: []shard.Answer{{To: t, Value: 1}}}
		})
		return err
	}
	if err := answers(func() {}); err != nil {
		t.Fatal(err)
	}
	err = answers(func() {
		if err := set.DeleteTopic(ctx, Topic); err != nil { // it could as well have moved
			t.Error(err)
		}
	})
	if !errors.Is(err, ErrNotCoordinator) {
		t.Fatalf("answered while the partition went away: %v, want %v", err, ErrNotCoordinator)
	}
}
