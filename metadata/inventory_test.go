package metadata

import (
	"errors"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/streamstore"
)

// A page whose objects hold very many ranges ends early, but never before its first object.
func TestInventoryPageIsBounded(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		const objects, streams = 5, 50
		fill(t, s, objects, streams)
		all, err := s.Objects(t.Context(), 0, 100)
		if err != nil || len(all) != objects {
			t.Fatalf("%d objects, %v, want %d", len(all), err, objects)
		}
		for maxPacked, want := range map[int64]int{0: 1, 500: 2} { // an object takes some 200
			page, err := s.inventory(t.Context(), 0, 100, maxPacked)
			if err != nil || len(page) != want {
				t.Errorf("%d objects in a page of %d bytes, %v, want %d", len(page), maxPacked, err, want)
			}
			for _, o := range page {
				if len(o.Ranges) != streams {
					t.Errorf("object %d has %d ranges, want %d", o.ID, len(o.Ranges), streams)
				}
			}
		}
	})
}

// A database that was replaced by a restored one has no turn: what it does not know may be in use.
func TestSupersededDatabaseHasNoSweep(t *testing.T) {
	bucket := objectstore.NewMemory()
	old := openStore(t, newSQLite(t), nil)
	startBackup(t, old, bucket, BackupConfig{Interval: time.Hour})
	node := register(t, old)
	if c, err := old.ClaimSweep(t.Context(), node, time.Hour); err != nil || !c.Mine {
		t.Fatalf("%+v, %v", c, err)
	}
	if _, err := Restore(t.Context(), "sqlite:"+t.TempDir()+"/metadata.db", bucket, icebergTables, nil); err != nil {
		t.Fatal(err)
	}
	if c, err := old.ClaimSweep(t.Context(), node, time.Hour); !errors.Is(err, ErrSuperseded) {
		t.Fatalf("%+v, %v, want %v", c, err, ErrSuperseded)
	}
}

// Counting walks all objects: it must be cheap enough for once a minute.
func BenchmarkCountObjects(b *testing.B) {
	s, err := Open(b.Context(), "sqlite:"+b.TempDir()+"/metadata.db", nil)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	node, _, err := s.RegisterNode(b.Context(), 1, streamstore.WALObject)
	if err != nil {
		b.Fatal(err)
	}
	const objects = 100_000
	for range objects / 10_000 {
		if _, err := s.PrepareObjects(b.Context(), node, 10_000, time.Hour); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if counts, err := s.CountObjects(b.Context()); err != nil || counts[streamstore.ObjectPrepared].Objects != objects {
			b.Fatal(counts, err)
		}
	}
}
