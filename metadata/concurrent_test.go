package metadata

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tabletopic/tabletopic/streamstore"
)

// Two processes that change one database at the same time are as if one came after the
// other: no epoch is given twice, of two uploads to one offset one is refused, ids of schemas
// and the entries of the change log are dense, and nobody fails because of another.
func TestConcurrentStores(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		stores := []*Store{openStore(t, d, nil), openStore(t, d, nil)}
		t.Run("Epochs", func(t *testing.T) { testConcurrentEpochs(t, stores) })
		t.Run("Uploads", func(t *testing.T) { testConcurrentUploads(t, stores) })
		t.Run("Schemas", func(t *testing.T) { testConcurrentSchemas(t, stores) })
		t.Run("Leases", func(t *testing.T) { testConcurrentLeases(t, stores) })
		changes, err := stores[0].Changes(t.Context(), 0, 10_000)
		if err != nil || len(changes) == 0 {
			t.Fatalf("%d changes, %v", len(changes), err)
		}
		for i, c := range changes {
			if c.Seq != int64(i+1) {
				t.Fatalf("change %d has number %d", i+1, c.Seq)
			}
		}
	})
}

// both runs f n times in each store, all at once.
func both(t *testing.T, stores []*Store, n int, f func(ctx context.Context, s *Store, worker int) error) {
	t.Helper()
	g, ctx := errgroup.WithContext(t.Context())
	for i, s := range stores {
		for j := range n {
			g.Go(func() error { return f(ctx, s, i*n+j) })
		}
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

func testConcurrentEpochs(t *testing.T, stores []*Store) {
	var mu sync.Mutex
	var epochs []int64
	both(t, stores, 4, func(ctx context.Context, s *Store, _ int) error {
		for range 5 {
			node, _, err := s.RegisterNode(ctx, 9, streamstore.WALObject)
			if err != nil {
				return err
			}
			mu.Lock()
			epochs = append(epochs, node.Epoch)
			mu.Unlock()
		}
		return nil
	})
	slices.Sort(epochs)
	for i, e := range epochs {
		if e != int64(i+1) {
			t.Fatalf("epochs %v, want each once", epochs)
		}
	}
}

// Every worker appends to the same stream where it saw its end.
func testConcurrentUploads(t *testing.T, stores []*Store) {
	node := register(t, stores[0])
	stream := create(t, stores[0], node, NewTopic{Name: "t", Partitions: 1}).Partitions[0].Log
	var mu sync.Mutex
	won := 0
	both(t, stores, 3, func(ctx context.Context, s *Store, _ int) error {
		for range 20 {
			states, err := s.Streams(ctx, node.ID)
			if err != nil {
				return err
			}
			end := states[1].End
			id, err := s.PrepareObjects(ctx, node, 1, time.Hour)
			if err != nil {
				return err
			}
			err = s.CommitUpload(ctx, node, streamstore.Upload{WALEpoch: node.Epoch,
				Streams: []streamstore.StreamObject{{ID: id, Size: 1, Range: streamstore.StreamRange{Stream: stream, Start: end, End: end + 1}}}})
			switch {
			case err == nil:
				mu.Lock()
				won++
				mu.Unlock()
			case !errors.Is(err, streamstore.ErrConflict):
				return err
			}
		}
		return nil
	})
	states, err := stores[1].Streams(t.Context(), node.ID)
	if err != nil || states[1].End != int64(won) {
		t.Fatalf("the stream ends at %d after %d uploads, %v", states[1].End, won, err)
	}
	found, err := stores[1].StreamObjects(t.Context(), stream, 0, int64(won), won+1)
	if err != nil || len(found) != won {
		t.Fatalf("%d objects of %d, %v", len(found), won, err)
	}
}

func testConcurrentSchemas(t *testing.T, stores []*Store) {
	const each = 10
	both(t, stores, 3, func(ctx context.Context, s *Store, worker int) error {
		for i := range each {
			// One subject has all the workers, the other only one of them.
			for _, name := range []string{"shared", fmt.Sprintf("own-%d", worker)} {
				for {
					u, err := s.Subject(ctx, name)
					if err != nil {
						return err
					}
					_, err = s.RegisterSchema(ctx, u, 0, Schema{Type: "AVRO", Text: fmt.Sprintf(`"%s-%d-%d"`, name, worker, i)})
					if err == nil {
						break
					}
					if !errors.Is(err, streamstore.ErrConflict) {
						return err
					}
				}
			}
		}
		return nil
	})
	workers := 3 * len(stores)
	if id, err := stores[0].MaxSchemaID(t.Context()); err != nil || id != 2*workers*each {
		t.Fatalf("largest id %d, %v, want %d: ids are dense", id, err, 2*workers*each)
	}
	for id := 1; id <= 2*workers*each; id++ {
		if _, err := stores[1].Schema(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	u := subject(t, stores[1], "shared")
	for i, v := range u.Versions {
		if v.Version != i+1 {
			t.Fatalf("version %d is the %dth", v.Version, i+1)
		}
	}
	if len(u.Versions) != workers*each {
		t.Fatalf("%d versions, want %d", len(u.Versions), workers*each)
	}
}

func testConcurrentLeases(t *testing.T, stores []*Store) {
	var mu sync.Mutex
	holders := map[int64]string{}
	both(t, stores, 3, func(ctx context.Context, s *Store, worker int) error {
		for range 10 {
			l, ok, err := s.AcquireLease(ctx, "controller", fmt.Sprint(worker), time.Hour)
			if err != nil {
				return err
			}
			mu.Lock()
			if before, taken := holders[l.Epoch]; taken && before != l.Holder {
				err = fmt.Errorf("epoch %d is of %s and of %s", l.Epoch, before, l.Holder)
			}
			holders[l.Epoch] = l.Holder
			mu.Unlock()
			if err != nil {
				return err
			}
			if ok {
				if err := s.ReleaseLease(ctx, l); err != nil {
					return err
				}
			}
		}
		return nil
	})
}
