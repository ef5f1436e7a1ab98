package metadata

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/streamstore"
)

// The states of an object, in the order of its life.
const (
	objectPrepared  = 1
	objectCommitted = 2
	objectDestroyed = 3
)

// PrepareObjects reserves n consecutive ids. Ids not committed within ttl become deletable.
func (s *Store) PrepareObjects(ctx context.Context, node streamstore.Node, n int, ttl time.Duration) (first streamstore.ObjectID, err error) {
	if n <= 0 {
		return 0, fmt.Errorf("prepare %d objects: want at least 1", n)
	}
	err = s.updateAs(ctx, node, "prepare objects", func(t *tx) error {
		id, err := t.next("object", int64(n))
		if err != nil {
			return err
		}
		first = streamstore.ObjectID(id)
		expires := s.now().Add(ttl).UnixMilli()
		var prepared []any
		for ; id < int64(first)+int64(n); id++ {
			prepared = append(prepared, id, objectPrepared, node.ID, expires)
		}
		return t.batch(`WITH prepared (id, state, node, since) AS (VALUES %s)
			INSERT INTO object (id, kind, size, state, node, since, committed, refs) SELECT id, 0, 0, state, node, since, 0, 0 FROM prepared`, 4, prepared)
	})
	return first, err
}

// CommitUpload makes uploaded objects visible, advances the end offsets and moves the WAL
// mark, as one change. An object whose ranges are all of deleted or trimmed streams is
// destroyed at once.
func (s *Store) CommitUpload(ctx context.Context, node streamstore.Node, u streamstore.Upload) error {
	uploaded, err := uploadedObjects(u)
	if err != nil {
		return fmt.Errorf("commit upload: %w", err)
	}
	return s.updateAs(ctx, node, "commit upload", func(t *tx) error {
		repeat, err := t.isRepeat(node, uploaded)
		if err != nil || repeat {
			return err
		}
		if err := t.commitObjects(node, uploaded); err != nil {
			return err
		}
		if err := t.moveWALMark(node.ID, u.WALEpoch, u.WALMark); err != nil {
			return err
		}
		if len(uploaded) == 0 {
			return t.change(ChangeNode, node.ID)
		}
		return t.change(ChangeObject, uploaded[0].ID)
	})
}

// An uploadedObject is an object of either kind.
type uploadedObject struct {
	streamstore.ObjectRef
	ranges []streamstore.StreamRange // sorted by stream
}

// newUploadedObject sorts the ranges and refuses what cannot be stored.
func newUploadedObject(ref streamstore.ObjectRef, ranges []streamstore.StreamRange) (uploadedObject, error) {
	sorted, err := sortedRanges(ranges)
	if err == nil && len(sorted) == 0 {
		err = errors.New("no ranges")
	}
	if err == nil && ref.Size < 0 {
		err = fmt.Errorf("size %d", ref.Size)
	}
	if err != nil {
		return uploadedObject{}, fmt.Errorf("object %d: %w", ref.ID, err)
	}
	return uploadedObject{ref, sorted}, nil
}

func uploadedObjects(u streamstore.Upload) ([]uploadedObject, error) {
	var all []uploadedObject
	add := func(ref streamstore.ObjectRef, ranges []streamstore.StreamRange) error {
		o, err := newUploadedObject(ref, ranges)
		for _, other := range all {
			if err == nil && other.ID == ref.ID {
				err = fmt.Errorf("object %d: named twice", ref.ID)
			}
		}
		all = append(all, o)
		return err
	}
	if o := u.StreamSet; o != nil {
		if err := add(streamstore.ObjectRef{ID: o.ID, Kind: streamstore.KindStreamSet, Size: o.Size}, o.Ranges); err != nil {
			return nil, err
		}
	}
	for _, o := range u.Streams {
		if err := add(streamstore.ObjectRef{ID: o.ID, Kind: streamstore.KindStream, Size: o.Size}, []streamstore.StreamRange{o.Range}); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// isRepeat checks that all objects are prepared, or that all were committed before: an id
// is given to one upload only, so a committed one proves that this upload happened. An
// expired preparation counts as gone, for the object may be deleted by now.
func (t *tx) isRepeat(node streamstore.Node, uploaded []uploadedObject) (bool, error) {
	known, err := t.readObjects(uploaded)
	if err != nil {
		return false, err
	}
	repeats := 0
	for _, o := range uploaded {
		k, ok := known[o.ID]
		switch {
		case !ok:
			return false, fmt.Errorf("object %d was never prepared, or is forgotten: %w", o.ID, streamstore.ErrConflict)
		case k.owner != node.ID:
			return false, fmt.Errorf("object %d was prepared by node %d: %w", o.ID, k.owner, streamstore.ErrConflict)
		case k.committed != 0 && k.size != o.Size:
			return false, fmt.Errorf("object %d was committed with size %d, now %d: %w", o.ID, k.size, o.Size, streamstore.ErrConflict)
		case k.committed != 0:
			repeats++
		case k.state != objectPrepared && !invariant.Off("metadata-prepared"):
			return false, fmt.Errorf("the preparation of object %d expired: %w", o.ID, streamstore.ErrConflict)
		}
	}
	if repeats > 0 && repeats < len(uploaded) {
		return false, fmt.Errorf("%d of %d objects are committed already: %w", repeats, len(uploaded), streamstore.ErrConflict)
	}
	return repeats > 0, nil
}

// An objectRow is what a commit must know of an object.
type objectRow struct {
	owner           streamstore.NodeID
	state           int
	committed, size int64
}

// readObjects returns the rows of those objects that are known.
func (t *tx) readObjects(objects []uploadedObject) (map[streamstore.ObjectID]objectRow, error) {
	ids := make([]any, len(objects))
	for i, o := range objects {
		ids[i] = o.ID
	}
	known := make(map[streamstore.ObjectID]objectRow, len(ids))
	for part := range slices.Chunk(ids, batchRows) {
		err := t.each(func(rows *sql.Rows) error {
			var id streamstore.ObjectID
			var o objectRow
			err := rows.Scan(&id, &o.owner, &o.state, &o.committed, &o.size)
			known[id] = o
			return err
		}, `WITH asked (id) AS (VALUES `+tuples(len(part), 1)+`) SELECT id, node, state, committed, size FROM object WHERE id IN (SELECT id FROM asked)`, part...)
		if err != nil {
			return nil, err
		}
	}
	return known, nil
}

// commitObjects moves the streams' ends over the objects' ranges and indexes them.
func (t *tx) commitObjects(node streamstore.Node, uploaded []uploadedObject) error {
	var ids []streamstore.StreamID
	for _, o := range uploaded {
		for _, rng := range o.ranges {
			ids = append(ids, rng.Stream)
		}
	}
	rows, err := t.readStreams(ids)
	if err != nil {
		return err
	}
	moved := make(map[streamstore.StreamID]bool, len(ids))
	var index []any
	for _, o := range uploaded {
		refs := 0
		for _, rng := range o.ranges {
			row, ok := rows[rng.Stream]
			if !ok {
				continue // deleted meanwhile
			}
			if err := row.checkUpload(node, rng); err != nil {
				return fmt.Errorf("object %d: %w", o.ID, err)
			}
			row.End = rng.End
			rows[row.ID], moved[row.ID] = row, true
			if rng.End > row.Start { // else it was trimmed meanwhile
				index = append(index, row.ID, rng.Start, rng.End, o.ID)
				refs++
			}
		}
		if err := t.commitObject(o, refs); err != nil {
			return err
		}
	}
	ends := make([]any, 0, 2*len(moved))
	for _, id := range slices.Sorted(maps.Keys(moved)) {
		ends = append(ends, id, rows[id].End)
	}
	if err := t.batch(`WITH moved (id, end_offset) AS (VALUES %s)
		UPDATE stream SET end_offset = moved.end_offset FROM moved WHERE stream.id = moved.id`, 2, ends); err != nil {
		return err
	}
	return t.batch(insertRanges, 4, index)
}

const insertRanges = `INSERT INTO object_range (stream, start_offset, end_offset, object) VALUES %s`

// commitObject records an object as committed, or as destroyed when no range of it is indexed.
func (t *tx) commitObject(o uploadedObject, refs int) error {
	now := t.s.now().UnixMilli()
	state := objectCommitted
	if refs == 0 {
		state = objectDestroyed
	}
	if err := t.execOne(`UPDATE object SET kind = $1, size = $2, state = $3, since = $4, committed = $4, refs = $5 WHERE id = $6`,
		o.Kind, o.Size, state, now, refs, o.ID); err != nil {
		return err
	}
	if o.Kind != streamstore.KindStreamSet {
		return nil
	}
	_, err := t.exec(`INSERT INTO stream_set_object (object, ranges) VALUES ($1, $2)`, o.ID, appendRanges(nil, o.ranges))
	return err
}

// checkUpload refuses a range that does not continue the stream, in the epoch in which node
// has it open.
func (row streamRow) checkUpload(node streamstore.Node, rng streamstore.StreamRange) error {
	if mine := row.Open && row.Node == node.ID && row.Epoch == rng.Epoch; !mine && !invariant.Off("metadata-commit-epoch") {
		return fmt.Errorf("stream %d has epoch %d of node %d (open: %t), the upload has epoch %d of node %d: %w",
			row.ID, row.Epoch, row.Node, row.Open, rng.Epoch, node.ID, streamstore.ErrConflict)
	}
	if row.End != rng.Start && !invariant.Off("metadata-commit-end") {
		return fmt.Errorf("stream %d ends at %d, the upload starts at %d: %w", row.ID, row.End, rng.Start, streamstore.ErrConflict)
	}
	return nil
}

// dropRanges takes the ranges of a stream that end at or below start out of the index.
// Objects that nothing names any more are destroyed.
func (t *tx) dropRanges(id streamstore.StreamID, start int64) error {
	if _, err := t.exec(`UPDATE object SET refs = refs - (SELECT count(*) FROM object_range r WHERE r.stream = $1 AND r.end_offset <= $2 AND r.object = object.id)
		WHERE id IN (SELECT object FROM object_range WHERE stream = $1 AND end_offset <= $2)`, id, start); err != nil {
		return err
	}
	composites, err := t.unnamedComposites(id, start)
	if err != nil {
		return err
	}
	for _, composite := range composites {
		if err := t.destroyUnnamed(composite); err != nil {
			return err
		}
	}
	if _, err := t.exec(`UPDATE object SET state = $1, since = $2 WHERE state = $3 AND refs = 0
		AND id IN (SELECT object FROM object_range WHERE stream = $4 AND end_offset <= $5)`,
		objectDestroyed, t.s.now().UnixMilli(), objectCommitted, id, start); err != nil {
		return err
	}
	_, err = t.exec(`DELETE FROM object_range WHERE stream = $1 AND end_offset <= $2`, id, start)
	return err
}

// unnamedComposites returns the composites among the objects of ranges that end at or below
// start which nothing else names.
func (t *tx) unnamedComposites(id streamstore.StreamID, start int64) ([]streamstore.ObjectID, error) {
	rows, err := t.QueryContext(t.ctx, `SELECT o.id FROM object_range r JOIN object o ON o.id = r.object
		WHERE r.stream = $1 AND r.end_offset <= $2 AND o.kind = $3 AND o.refs = 0`, id, start, streamstore.KindComposite)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var found []streamstore.ObjectID
	for rows.Next() {
		var o streamstore.ObjectID
		if err := rows.Scan(&o); err != nil {
			return nil, err
		}
		found = append(found, o)
	}
	return found, rows.Err()
}

// StreamObjects returns up to limit entries that intersect [start, end) of the stream, by
// offset; a start below the stream's is refused with ErrOffsetOutOfRange. The index is keyed
// by stream and offset, so that the cost does not grow with the number of objects.
func (s *Store) StreamObjects(ctx context.Context, id streamstore.StreamID, start, end int64, limit int) ([]streamstore.ObjectRange, error) {
	found, err := s.streamObjects(ctx, id, start, end, limit)
	if err != nil {
		return nil, fmt.Errorf("find objects of stream %d [%d, %d): %w", id, start, end, err)
	}
	return found, nil
}

func (s *Store) streamObjects(ctx context.Context, id streamstore.StreamID, start, end int64, limit int) ([]streamstore.ObjectRange, error) {
	var trimmed int64
	err := s.readers.QueryRowContext(ctx, `SELECT start_offset FROM stream WHERE id = $1`, id).Scan(&trimmed)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, streamstore.ErrStreamNotExist
	}
	if err != nil {
		return nil, err
	}
	if start < trimmed {
		return nil, fmt.Errorf("the stream starts at %d: %w", trimmed, streamstore.ErrOffsetOutOfRange)
	}
	rows, err := s.readers.QueryContext(ctx, `SELECT r.start_offset, r.end_offset, o.id, o.kind, o.size
		FROM object_range r JOIN object o ON o.id = r.object
		WHERE r.stream = $1 AND r.end_offset > $2 AND r.start_offset < $3
		AND r.start_offset >= (SELECT coalesce(max(start_offset), 0) FROM object_range WHERE stream = $1 AND start_offset <= $2)
		ORDER BY r.start_offset LIMIT $4`, id, start, end, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var found []streamstore.ObjectRange
	for rows.Next() {
		var o streamstore.ObjectRange
		if err := rows.Scan(&o.Start, &o.End, &o.ID, &o.Kind, &o.Size); err != nil {
			return nil, err
		}
		if n := len(found); n > 0 && found[n-1].End != o.Start {
			return nil, fmt.Errorf("no object holds [%d, %d): the index is corrupt", found[n-1].End, o.Start)
		}
		found = append(found, o)
	}
	return found, rows.Err()
}

// DeletableObjects returns up to limit objects that nothing names any more, or whose
// preparation expired, for at least grace. An expired preparation is ended first, so that
// its object cannot be committed while it is deleted.
func (s *Store) DeletableObjects(ctx context.Context, node streamstore.Node, grace time.Duration, limit int) ([]streamstore.ObjectRef, error) {
	var found []streamstore.ObjectRef
	err := s.updateAs(ctx, node, "find deletable objects", func(t *tx) error {
		now := s.now()
		if _, err := t.exec(`UPDATE object SET state = $1 WHERE state = $2 AND since <= $3`,
			objectDestroyed, objectPrepared, now.UnixMilli()); err != nil {
			return err
		}
		rows, err := t.QueryContext(ctx, `SELECT id, kind, size FROM object WHERE state = $1 AND since <= $2 ORDER BY state, since, id LIMIT $3`,
			objectDestroyed, now.Add(-grace).UnixMilli(), limit)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var o streamstore.ObjectRef
			if err := rows.Scan(&o.ID, &o.Kind, &o.Size); err != nil {
				return err
			}
			found = append(found, o)
		}
		return rows.Err()
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// ForgetObjects removes the rows of objects that were deleted from the bucket. Only
// destroyed objects are forgotten.
func (s *Store) ForgetObjects(ctx context.Context, node streamstore.Node, ids []streamstore.ObjectID) error {
	if len(ids) == 0 {
		return nil
	}
	return s.updateAs(ctx, node, "forget objects", func(t *tx) error {
		for _, id := range ids {
			var state int
			err := t.QueryRowContext(ctx, `SELECT state FROM object WHERE id = $1`, id).Scan(&state)
			if errors.Is(err, sql.ErrNoRows) {
				continue
			}
			if err != nil {
				return err
			}
			if state != objectDestroyed && !invariant.Off("metadata-forget-destroyed") {
				return fmt.Errorf("object %d is in use: %w", id, streamstore.ErrConflict)
			}
			if _, err := t.exec(`DELETE FROM stream_set_object WHERE object = $1`, id); err != nil {
				return err
			}
			if _, err := t.exec(`DELETE FROM object WHERE id = $1`, id); err != nil {
				return err
			}
		}
		return t.change(ChangeObject, ids[0])
	})
}
