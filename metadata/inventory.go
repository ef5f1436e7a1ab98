package metadata

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/streamstore"
)

// inventoryBytes bounds what one page of the inventory unpacks: stream set objects whose
// ranges are packed in so many bytes. At some five bytes a range that is 200,000.
const inventoryBytes = 1 << 20

// Objects returns up to limit objects with an id above after, by id, with the ranges and
// parts that name them, as of one moment; fewer once their ranges are many.
func (s *Store) Objects(ctx context.Context, after streamstore.ObjectID, limit int) ([]streamstore.KnownObject, error) {
	page, err := s.inventory(ctx, after, limit, inventoryBytes)
	if err != nil {
		return nil, fmt.Errorf("list objects above %d: %w", after, err)
	}
	return page, nil
}

func (s *Store) inventory(ctx context.Context, after streamstore.ObjectID, limit int, maxPacked int64) ([]streamstore.KnownObject, error) {
	t, err := s.readers.BeginTx(ctx, &s.dialect.snapshot)
	if err != nil {
		return nil, err
	}
	defer t.Rollback()
	now := s.now()
	var page []streamstore.KnownObject
	packed, full := int64(0), false
	err = eachRow(ctx, t, func(rows *sql.Rows) error {
		var bytes int64
		o, err := scanObject(rows, now, &bytes)
		if packed += bytes; full || err != nil || packed > maxPacked && len(page) > 0 {
			full = true
			return err
		}
		page = append(page, o)
		return nil
	}, `SELECT `+objectColumns+`, coalesce(length(s.ranges), 0) FROM object o LEFT JOIN stream_set_object s ON s.object = o.id AND o.state = 2
		WHERE o.id > $1 ORDER BY o.id LIMIT $2`, after, limit)
	if err != nil || len(page) == 0 {
		return nil, err
	}
	at := make(map[streamstore.ObjectID]*streamstore.KnownObject, len(page))
	for i := range page {
		at[page[i].ID] = &page[i]
	}
	last := page[len(page)-1].ID
	// One pass over the index of streams: it is not kept by object, which every upload would pay for.
	err = eachRow(ctx, t, func(rows *sql.Rows) error {
		var id streamstore.ObjectID
		var rng streamstore.StreamRange
		var start int64
		if err := rows.Scan(&id, &rng.Stream, &rng.Start, &rng.End, &start); err != nil {
			return err
		}
		rng.Start = max(rng.Start, start)
		at[id].Ranges = append(at[id].Ranges, rng)
		return nil
	}, `SELECT r.object, r.stream, r.start_offset, r.end_offset, s.start_offset FROM object_range r JOIN stream s ON s.id = r.stream
		WHERE r.object > $1 AND r.object <= $2 ORDER BY r.stream, r.start_offset`, after, last)
	if err != nil {
		return nil, err
	}
	err = eachRow(ctx, t, func(rows *sql.Rows) error {
		var id, part streamstore.ObjectID
		if err := rows.Scan(&id, &part); err != nil {
			return err
		}
		at[id].Parts = append(at[id].Parts, part)
		return nil
	}, `SELECT object, part FROM object_link WHERE object > $1 AND object <= $2 ORDER BY object, part`, after, last)
	return page, err
}

const objectColumns = `o.id, o.kind, o.size, o.state, o.node, o.since`

// scanObject reads objectColumns and what follows them. A preparation that expired counts
// as destroyed, as it will be with the next look for deletable objects.
func scanObject(rows *sql.Rows, now time.Time, more ...any) (o streamstore.KnownObject, err error) {
	var state int
	var since int64
	if err := rows.Scan(append([]any{&o.ID, &o.Kind, &o.Size, &state, &o.Node, &since}, more...)...); err != nil {
		return o, err
	}
	o.Since = time.UnixMilli(since)
	o.State = objectStateName(state, since, now)
	return o, nil
}

func objectStateName(state int, since int64, now time.Time) streamstore.ObjectState {
	switch {
	case state == objectCommitted:
		return streamstore.ObjectReferenced
	case state == objectPrepared && since > now.UnixMilli():
		return streamstore.ObjectPrepared
	}
	return streamstore.ObjectDestroyed
}

// FindObjects returns those of the ids that are known, by id, without ranges and parts.
func (s *Store) FindObjects(ctx context.Context, ids []streamstore.ObjectID) ([]streamstore.KnownObject, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var list strings.Builder
	for _, id := range ids {
		fmt.Fprintf(&list, ",%d", id)
	}
	now := s.now()
	var found []streamstore.KnownObject
	err := eachRow(ctx, s.readers, func(rows *sql.Rows) error {
		o, err := scanObject(rows, now)
		found = append(found, o)
		return err
	}, `SELECT `+objectColumns+` FROM object o WHERE o.id IN (`+list.String()[1:]+`) ORDER BY o.id`)
	if err != nil {
		return nil, fmt.Errorf("find %d objects: %w", len(ids), err)
	}
	return found, nil
}

// Composites returns the composites that link a stream object, by id.
func (s *Store) Composites(ctx context.Context, part streamstore.ObjectID) ([]streamstore.ObjectID, error) {
	var found []streamstore.ObjectID
	err := eachRow(ctx, s.readers, func(rows *sql.Rows) error {
		var id streamstore.ObjectID
		err := rows.Scan(&id)
		found = append(found, id)
		return err
	}, `SELECT object FROM object_link WHERE part = $1 ORDER BY object`, part)
	if err != nil {
		return nil, fmt.Errorf("find composites of object %d: %w", part, err)
	}
	return found, nil
}

// CountObjects returns how many objects are in each state.
func (s *Store) CountObjects(ctx context.Context) (map[streamstore.ObjectState]streamstore.ObjectCount, error) {
	counts := make(map[streamstore.ObjectState]streamstore.ObjectCount)
	now := s.now()
	err := eachRow(ctx, s.readers, func(rows *sql.Rows) error {
		var state int
		var expired bool
		var c streamstore.ObjectCount
		if err := rows.Scan(&state, &expired, &c.Objects, &c.Bytes); err != nil {
			return err
		}
		since := now.UnixMilli()
		if !expired {
			since++
		}
		name := objectStateName(state, since, now)
		counts[name] = streamstore.ObjectCount{Objects: counts[name].Objects + c.Objects, Bytes: counts[name].Bytes + c.Bytes}
		return nil
	}, `SELECT state, since <= $1, count(*), CAST(sum(size) AS BIGINT) FROM object GROUP BY state, since <= $1`, now.UnixMilli())
	if err != nil {
		return nil, fmt.Errorf("count objects: %w", err)
	}
	return counts, nil
}

// sweepLease is held by the node whose turn it is to look for orphans.
const sweepLease = "orphan-sweep"

// ClaimSweep makes node the one that may sweep the bucket until ttl from now, or renews that.
// It proves first that no database was restored since: what a superseded one does not know
// may be in use.
func (s *Store) ClaimSweep(ctx context.Context, node streamstore.Node, ttl time.Duration) (claim streamstore.SweepClaim, err error) {
	if b := s.backup.Load(); b != nil && !invariant.Off("metadata-sweep-generation") {
		if err := b.newest(objectstore.For(ctx, objectstore.ForMetadata)); err != nil {
			return claim, fmt.Errorf("claim sweep: %w", err)
		}
	}
	if err := s.updateAs(ctx, node, "claim sweep", func(t *tx) error {
		return t.QueryRowContext(ctx, `SELECT value FROM counter WHERE name = 'object'`).Scan(&claim.Last)
	}); err != nil {
		return claim, err
	}
	lease, mine, err := s.AcquireLease(ctx, sweepLease, fmt.Sprintf("%d/%d", node.ID, node.Epoch), ttl)
	claim.Mine, claim.Until = mine || invariant.Off("metadata-sweep-lease"), lease.Expires
	return claim, err
}
