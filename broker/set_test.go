package broker

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/streamstore"
)

// openSet opens partitions over a store and metadata in memory.
func openSet(t testing.TB) (*partition.Set, *metadata.Store, streamstore.Node) {
	t.Helper()
	return openSetOn(t, objectstore.NewMemory())
}

func openSetOn(t testing.TB, bucket objectstore.Bucket) (*partition.Set, *metadata.Store, streamstore.Node) {
	t.Helper()
	return openSetWith(t, bucket, partition.Config{})
}

func openSetWith(t testing.TB, bucket objectstore.Bucket, cfg partition.Config) (*partition.Set, *metadata.Store, streamstore.Node) {
	t.Helper()
	ctx, log := t.Context(), slog.New(slog.DiscardHandler)
	meta, err := metadata.Open(ctx, "sqlite::memory:", log)
	if err != nil {
		t.Fatal(err)
	}
	store, err := streamstore.Open(ctx, streamstore.Config{WALLinger: time.Millisecond}, 1, bucket, meta, meta, log)
	if err != nil {
		t.Fatal(err)
	}
	set, err := partition.OpenSet(ctx, cfg, store, meta, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := set.Close(ctx); err != nil {
			t.Errorf("close partitions: %v", err)
		}
		if err := store.Close(ctx); err != nil {
			t.Errorf("close store: %v", err)
		}
		meta.Close()
	})
	return set, meta, store.Node()
}

// gatedBucket holds back what is written until open is closed.
type gatedBucket struct {
	objectstore.Bucket
	open chan struct{}
}

func (g *gatedBucket) PutIfAbsent(ctx context.Context, key string, body ...[]byte) error {
	select {
	case <-g.open:
	case <-ctx.Done():
		return ctx.Err()
	}
	return g.Bucket.PutIfAbsent(ctx, key, body...)
}
