package streamstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/objectstore"
)

const (
	// sweepTurn is how long a node has the turn to sweep without renewing it.
	sweepTurn = 15 * time.Minute
	// sweepPause is the wait between pages of a thousand keys: ten requests to list and ten
	// to delete a second at most.
	sweepPause = 100 * time.Millisecond
	// sweepDelay is when a store looks for its first turn, and when it tries again after a
	// failure.
	sweepDelay = 10 * time.Minute
)

// SweepResult is what a sweep found.
type SweepResult struct {
	Mine    bool      // this node had the turn; if not the rest is empty
	Until   time.Time // when the next turn is due
	Orphans int64     // objects that metadata does not know: deleted
	Bytes   int64     // … their bytes
	Young   int64     // objects like that, younger than the grace or than the sweep: left
	Foreign int64     // keys below data/ that are none of ours: left
}

// sweepLoop sweeps when this node has the turn, until ctx ends.
func (s *Store) sweepLoop(ctx context.Context) {
	wait := min(sweepDelay, s.cfg.SweepInterval)
	for {
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		r, err := s.Sweep(ctx)
		switch {
		case errors.Is(err, ErrNodeFenced):
			s.fail(err)
			return
		case ctx.Err() != nil:
			return
		case err != nil:
			s.log.Warn("search for orphaned objects stopped, trying again later", "error", err)
			wait = min(sweepDelay, s.cfg.SweepInterval)
		default:
			wait = min(max(time.Until(r.Until), time.Second), s.cfg.SweepInterval)
		}
	}
}

// Sweep deletes orphans, if it is this node's turn: data objects in the bucket that metadata
// does not know in any state. They come from uploads that were under way when their node
// died for longer than their ids lived, and from those that a restored database does not
// know. Objects are deleted only if all of this holds:
//
//   - the database is the newest generation, and knows this life of the node as the newest;
//   - the key is that of a data object;
//   - the id was given away before the sweep began: a later one may become known;
//   - metadata, asked after the object was listed, does not know the id, and never will:
//     ids are given once, before their objects are written;
//   - it was written longer than SweepGrace ago, by the clock of the object store.
//
// A sweep that ends early is simply begun again. The store sweeps each SweepInterval.
func (s *Store) Sweep(ctx context.Context) (r SweepResult, err error) {
	ctx = objectstore.For(ctx, objectstore.ForCleanup)
	began := time.Now()
	claim, err := s.claimSweep(ctx, sweepTurn)
	if r.Mine, r.Until = claim.Mine, claim.Until; err != nil || !claim.Mine {
		return r, err
	}
	defer s.metrics.sweep.since(began, &err)
	defer func() {
		s.metrics.orphans.Add(float64(r.Orphans))
		s.metrics.orphanBytes.Add(float64(r.Bytes))
		s.metrics.young.Set(float64(r.Young))
		s.metrics.foreign.Set(float64(r.Foreign))
		if r.Orphans > 0 {
			s.log.Info("deleted orphaned objects", "objects", r.Orphans, "bytes", r.Bytes, "young", r.Young, "foreign", r.Foreign)
		}
	}()
	now, err := s.storeClock(ctx)
	if err != nil {
		return r, fmt.Errorf("clock of the object store: %w", err)
	}
	renewed := time.Now()
	for after := ""; ; {
		page, err := s.bucket.List(ctx, dataPrefix, after)
		if err != nil {
			return r, fmt.Errorf("list %s: %w", dataPrefix, err)
		}
		if len(page) == 0 {
			break
		}
		after = page[len(page)-1].Key
		orphans, err := s.orphans(ctx, page, claim.Last, now, &r)
		if err != nil {
			return r, err
		}
		if len(orphans) > 0 || time.Since(renewed) > sweepTurn/3 {
			// Right before a delete: another may have the turn by now, or another database the bucket.
			if again, err := s.claimSweep(ctx, sweepTurn); err != nil || !again.Mine {
				return r, err
			}
			renewed = time.Now()
		}
		if err := s.deleteOrphans(ctx, orphans, &r); err != nil {
			return r, err
		}
		select {
		case <-time.After(sweepPause):
		case <-ctx.Done():
			return r, context.Cause(ctx)
		}
	}
	s.sweepDue.Store(true) // what a zombie wrote above a fence of the WAL since then goes too
	claim, err = s.claimSweep(ctx, s.cfg.SweepInterval)
	r.Until = claim.Until
	return r, err
}

func (s *Store) claimSweep(ctx context.Context, ttl time.Duration) (SweepClaim, error) {
	return retry(ctx, s.patience, "claim sweep", func() (SweepClaim, error) {
		return s.objects.ClaimSweep(ctx, s.node, ttl)
	})
}

// orphans returns those objects of a page that may be deleted.
func (s *Store) orphans(ctx context.Context, page []objectstore.Object, last ObjectID, now time.Time, r *SweepResult) (map[ObjectID]objectstore.Object, error) {
	unknown := make(map[ObjectID]objectstore.Object) // a listing may name an object twice
	ids := make([]ObjectID, 0, len(page))
	for _, o := range page {
		id, ok := parseObjectKey(o.Key)
		if !ok && !invariant.Off("sweep-own-keys") {
			r.Foreign++
			continue
		}
		unknown[id] = o
		ids = append(ids, id)
	}
	known, err := s.objects.FindObjects(ctx, ids)
	if err != nil {
		return nil, err
	}
	for _, o := range known {
		if !invariant.Off("sweep-asks-metadata") {
			delete(unknown, o.ID)
		}
	}
	for id, o := range unknown {
		early := now.Sub(o.Modified) < s.cfg.SweepGrace && !invariant.Off("orphan-grace")
		later := id > last && !invariant.Off("sweep-last-id")
		if early || later {
			r.Young++
			delete(unknown, id)
		}
	}
	return unknown, nil
}

func (s *Store) deleteOrphans(ctx context.Context, orphans map[ObjectID]objectstore.Object, r *SweepResult) error {
	if len(orphans) == 0 {
		return nil
	}
	keys := make([]string, 0, len(orphans))
	bytes := int64(0)
	for _, o := range orphans {
		keys = append(keys, o.Key)
		bytes += o.Size
	}
	if err := s.bucket.Delete(ctx, keys...); err != nil {
		return fmt.Errorf("delete %d orphaned objects: %w", len(keys), err)
	}
	r.Orphans += int64(len(keys))
	r.Bytes += bytes
	return nil
}

// storeClock returns what time the object store has, which dates its objects: the clock of
// this machine may be wrong. It writes an object to see.
func (s *Store) storeClock(ctx context.Context) (time.Time, error) {
	key := clockKey(s.node.ID)
	if err := s.bucket.Put(ctx, key); err != nil {
		return time.Time{}, err
	}
	page, err := s.bucket.List(ctx, key, "")
	if err != nil {
		return time.Time{}, err
	}
	for _, o := range page {
		if o.Key == key && !o.Modified.IsZero() {
			return o.Modified, nil
		}
	}
	return time.Time{}, fmt.Errorf("%s was written, and is not listed with a time", key)
}
