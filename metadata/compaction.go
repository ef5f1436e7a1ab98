package metadata

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/streamstore"
)

// CommitCompaction replaces objects by others that hold the same, as one change. Sources
// that nothing names any more are destroyed.
func (s *Store) CommitCompaction(ctx context.Context, node streamstore.Node, c streamstore.Compaction) error {
	results, err := compactedObjects(c)
	if err != nil {
		return fmt.Errorf("commit compaction: %w", err)
	}
	return s.updateAs(ctx, node, "commit compaction", func(t *tx) error {
		repeat, err := t.isRepeat(node, results)
		if err != nil || repeat {
			return err
		}
		sources, err := t.compactionSources(c.Sources)
		if err != nil {
			return err
		}
		indexed, err := t.replaceRanges(sources, results)
		if err != nil {
			return err
		}
		if err := t.putResults(sources, results, indexed); err != nil {
			return err
		}
		if err := t.putLinks(sources, c.Streams, indexed); err != nil {
			return err
		}
		// Last: until here the sources kept the parts alive that the results link now.
		for _, id := range c.Sources {
			if err := t.dropSource(id, sources[id]); err != nil {
				return err
			}
		}
		return t.change(ChangeObject, results[0].ID)
	})
}

func compactedObjects(c streamstore.Compaction) ([]uploadedObject, error) {
	var all []uploadedObject
	named := make(map[streamstore.ObjectID]bool)
	add := func(ref streamstore.ObjectRef, ranges []streamstore.StreamRange) error {
		o, err := newUploadedObject(ref, ranges)
		if err == nil && named[ref.ID] {
			err = fmt.Errorf("object %d: named twice", ref.ID)
		}
		named[ref.ID] = true
		all = append(all, o)
		return err
	}
	for _, o := range c.StreamSets {
		if err := add(streamstore.ObjectRef{ID: o.ID, Kind: streamstore.KindStreamSet, Size: o.Size}, o.Ranges); err != nil {
			return nil, err
		}
	}
	for _, o := range c.Streams {
		if err := add(streamstore.ObjectRef{ID: o.ID, Kind: o.Kind(), Size: o.Size}, []streamstore.StreamRange{o.Range}); err != nil {
			return nil, err
		}
	}
	for i, id := range c.Sources {
		if named[id] || slices.Contains(c.Sources[:i], id) {
			return nil, fmt.Errorf("object %d: named twice", id)
		}
	}
	if len(all) == 0 || len(c.Sources) == 0 {
		return nil, fmt.Errorf("%d objects from %d: want at least 1 of each", len(all), len(c.Sources))
	}
	return all, nil
}

// A compactionSource is what a compaction finds of an object that it replaces.
type compactionSource struct {
	committed int64
	ranges    int64 // rows of object_range that name it
	replaced  int64 // of these
}

func (t *tx) compactionSources(ids []streamstore.ObjectID) (map[streamstore.ObjectID]*compactionSource, error) {
	sources := make(map[streamstore.ObjectID]*compactionSource, len(ids))
	for _, id := range ids {
		var o compactionSource
		err := t.QueryRowContext(t.ctx, `SELECT committed, refs - (SELECT count(*) FROM object_link WHERE part = $1) FROM object WHERE id = $1`, id).
			Scan(&o.committed, &o.ranges)
		if errors.Is(err, sql.ErrNoRows) {
			continue // everything in it was trimmed, and it is gone
		}
		if err != nil {
			return nil, err
		}
		sources[id] = &o
	}
	return sources, nil
}

// replaceRanges puts the results in the place of the sources in the index, and returns how
// many ranges of each are indexed.
func (t *tx) replaceRanges(sources map[streamstore.ObjectID]*compactionSource, results []uploadedObject) (map[streamstore.ObjectID]int64, error) {
	now := make(map[streamstore.StreamID][]streamstore.ObjectRange)
	for _, o := range results {
		for _, rng := range o.ranges {
			now[rng.Stream] = append(now[rng.Stream], streamstore.ObjectRange{ObjectRef: o.ObjectRef, Start: rng.Start, End: rng.End})
		}
	}
	rows, err := t.readStreams(slices.Sorted(maps.Keys(now)))
	if err != nil {
		return nil, err
	}
	ids := slices.Sorted(maps.Keys(rows)) // of streams that exist
	before, err := t.takeRanges(sources, ids)
	if err != nil {
		return nil, err
	}
	indexed := make(map[streamstore.ObjectID]int64)
	var index []any
	for _, id := range ids {
		start := rows[id].Start
		slices.SortFunc(now[id], func(a, b streamstore.ObjectRange) int { return cmp.Compare(a.Start, b.Start) })
		if !streamstore.SameRanges(before[id], now[id], start) && !invariant.Off("metadata-compaction-covers") {
			return nil, fmt.Errorf("stream %d from %d on: the sources hold %v, the results %v: %w", id, start, before[id], now[id], streamstore.ErrConflict)
		}
		for _, b := range before[id] {
			sources[b.ID].replaced++
		}
		for _, n := range now[id] {
			if n.End > start {
				index = append(index, id, n.Start, n.End, n.ID)
				indexed[n.ID]++
			}
		}
	}
	return indexed, t.batch(insertRanges, 4, index)
}

// takeRanges removes what sources hold of streams from the index, and returns it, by offset.
func (t *tx) takeRanges(sources map[streamstore.ObjectID]*compactionSource, ids []streamstore.StreamID) (map[streamstore.StreamID][]streamstore.ObjectRange, error) {
	held := []string{"0"} // no object's id: all sources may be gone
	for _, id := range slices.Sorted(maps.Keys(sources)) {
		held = append(held, strconv.FormatInt(int64(id), 10))
	}
	query := `WITH asked (stream) AS (VALUES %s) DELETE FROM object_range WHERE stream IN (SELECT stream FROM asked)
		AND object IN (` + strings.Join(held, ",") + `) RETURNING stream, start_offset, end_offset, object`
	found := make(map[streamstore.StreamID][]streamstore.ObjectRange)
	for part := range slices.Chunk(ids, batchRows) {
		err := t.each(func(rows *sql.Rows) error {
			var id streamstore.StreamID
			var o streamstore.ObjectRange
			err := rows.Scan(&id, &o.Start, &o.End, &o.ID)
			found[id] = append(found[id], o)
			return err
		}, fmt.Sprintf(query, tuples(len(part), 1)), anyOf(part)...)
		if err != nil {
			return nil, err
		}
	}
	for _, ranges := range found {
		slices.SortFunc(ranges, func(a, b streamstore.ObjectRange) int { return cmp.Compare(a.Start, b.Start) })
	}
	return found, nil
}

// putResults records the results as committed, or as destroyed when no range of theirs is left.
func (t *tx) putResults(sources map[streamstore.ObjectID]*compactionSource, results []uploadedObject, indexed map[streamstore.ObjectID]int64) error {
	now := t.s.now().UnixMilli()
	oldest := now
	for _, s := range sources {
		oldest = min(oldest, s.committed)
	}
	var put []any
	for _, o := range results {
		state := objectCommitted
		if indexed[o.ID] == 0 {
			state = objectDestroyed
		}
		put = append(put, o.ID, o.Kind, o.Size, state, indexed[o.ID])
		if o.Kind != streamstore.KindStreamSet {
			continue
		}
		if _, err := t.exec(`INSERT INTO stream_set_object (object, ranges) VALUES ($1, $2)`, o.ID, appendRanges(nil, o.ranges)); err != nil {
			return err
		}
	}
	return t.batch(fmt.Sprintf(`WITH put (id, kind, size, state, refs) AS (VALUES %%s)
		UPDATE object SET kind = put.kind, size = put.size, state = put.state, since = %d, committed = %d, refs = put.refs
		FROM put WHERE object.id = put.id`, now, oldest), 5, put)
}

// putLinks names the parts of the composites among the results. A part must be a stream
// object that the sources, or composites among them, kept alive until now.
func (t *tx) putLinks(sources map[streamstore.ObjectID]*compactionSource, results []streamstore.StreamObject, indexed map[streamstore.ObjectID]int64) error {
	linked := make(map[streamstore.ObjectID]bool)
	for _, o := range results {
		if len(o.Parts) == 0 || indexed[o.ID] == 0 {
			continue
		}
		if len(linked) == 0 {
			for id := range sources {
				parts, err := t.partsOf(id)
				if err != nil {
					return err
				}
				for _, part := range parts {
					linked[part] = true
				}
				linked[id] = true
			}
		}
		var parts, links []any
		for _, part := range o.Parts {
			if !linked[part] && !invariant.Off("metadata-link-sources") {
				return fmt.Errorf("object %d links object %d, which is no source: %w", o.ID, part, streamstore.ErrConflict)
			}
			parts = append(parts, part)
			links = append(links, o.ID, part)
		}
		if err := t.batch(fmt.Sprintf(`WITH linked (id) AS (VALUES %%s)
			UPDATE object SET refs = refs + 1 FROM linked WHERE object.id = linked.id AND state = %d AND kind = %d`, objectCommitted, streamstore.KindStream), 1, parts); err != nil {
			return fmt.Errorf("object %d links what is no stream object: %w", o.ID, err)
		}
		if err := t.batch(`INSERT INTO object_link (object, part) VALUES %s`, 2, links); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) partsOf(composite streamstore.ObjectID) (parts []streamstore.ObjectID, err error) {
	err = t.each(func(rows *sql.Rows) error {
		var part streamstore.ObjectID
		err := rows.Scan(&part)
		parts = append(parts, part)
		return err
	}, `SELECT part FROM object_link WHERE object = $1 ORDER BY part`, composite)
	return parts, err
}

// dropSource takes the replaced ranges' names from a source, which must leave it no range.
func (t *tx) dropSource(id streamstore.ObjectID, o *compactionSource) error {
	if o == nil || o.ranges == 0 {
		return nil
	}
	if o.ranges != o.replaced && !invariant.Off("metadata-compaction-whole") {
		return fmt.Errorf("%d of the %d ranges that object %d holds are replaced, want all: %w", o.replaced, o.ranges, id, streamstore.ErrConflict)
	}
	if err := t.execOne(`UPDATE object SET refs = refs - $1 WHERE id = $2`, o.replaced, id); err != nil {
		return err
	}
	return t.destroyUnnamed(id)
}

// destroyUnnamed destroys a committed object that nothing names. A composite lets go of its
// parts, which are destroyed with it unless another names them.
func (t *tx) destroyUnnamed(id streamstore.ObjectID) error {
	now := t.s.now().UnixMilli()
	n, err := t.exec(`UPDATE object SET state = $1, since = $2 WHERE id = $3 AND state = $4 AND refs = 0`, objectDestroyed, now, id, objectCommitted)
	if err != nil || n == 0 {
		return err
	}
	n, err = t.exec(`UPDATE object SET refs = refs - 1 WHERE id IN (SELECT part FROM object_link WHERE object = $1)`, id)
	if err != nil || n == 0 {
		return err
	}
	if _, err := t.exec(`UPDATE object SET state = $1, since = $2 WHERE state = $3 AND refs = 0 AND id IN (SELECT part FROM object_link WHERE object = $4)`,
		objectDestroyed, now, objectCommitted, id); err != nil {
		return err
	}
	_, err = t.exec(`DELETE FROM object_link WHERE object = $1`, id)
	return err
}

// StreamSetObjects returns up to limit stream set objects with an id above after that node
// id wrote, by id, with the ranges that are still indexed: a committed stream set object is
// only ever replaced as a whole, so these are its ranges of streams that exist, from their
// starts on.
func (s *Store) StreamSetObjects(ctx context.Context, id streamstore.NodeID, after streamstore.ObjectID, limit int) ([]streamstore.LiveStreamSet, error) {
	sets, err := s.streamSetObjects(ctx, id, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list stream set objects of node %d: %w", id, err)
	}
	return sets, nil
}

func (s *Store) streamSetObjects(ctx context.Context, id streamstore.NodeID, after streamstore.ObjectID, limit int) ([]streamstore.LiveStreamSet, error) {
	sets, err := s.committedSets(ctx, id, after, limit)
	if err != nil {
		return nil, err
	}
	starts := make(map[streamstore.StreamID]int64)
	for _, set := range sets {
		for _, rng := range set.Ranges {
			starts[rng.Stream] = -1
		}
	}
	if err := s.streamStarts(ctx, starts); err != nil {
		return nil, err
	}
	for i := range sets {
		live := sets[i].Ranges[:0]
		for _, rng := range sets[i].Ranges {
			if start := starts[rng.Stream]; start >= 0 && rng.End > start {
				live = append(live, streamstore.StreamRange{Stream: rng.Stream, Start: max(rng.Start, start), End: rng.End})
			}
		}
		sets[i].Ranges = live
	}
	return slices.DeleteFunc(sets, func(set streamstore.LiveStreamSet) bool { return len(set.Ranges) == 0 }), nil
}

func (s *Store) committedSets(ctx context.Context, node streamstore.NodeID, after streamstore.ObjectID, limit int) ([]streamstore.LiveStreamSet, error) {
	rows, err := s.readers.QueryContext(ctx, `SELECT o.id, o.size, o.committed, s.ranges FROM object o JOIN stream_set_object s ON s.object = o.id
		WHERE o.node = $1 AND o.kind = 1 AND o.state = 2 AND o.id > $2 ORDER BY o.id LIMIT $3`, node, after, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var sets []streamstore.LiveStreamSet
	for rows.Next() {
		var set streamstore.LiveStreamSet
		var committed int64
		var packed []byte
		if err := rows.Scan(&set.ID, &set.Size, &committed, &packed); err != nil {
			return nil, err
		}
		if set.Ranges, err = parseRanges(packed); err != nil {
			return nil, fmt.Errorf("object %d: %w", set.ID, err)
		}
		set.Oldest = time.UnixMilli(committed)
		sets = append(sets, set)
	}
	return sets, rows.Err()
}

// streamStarts sets the starts of the streams that exist.
func (s *Store) streamStarts(ctx context.Context, starts map[streamstore.StreamID]int64) error {
	const page = 500
	ids := make([]any, 0, len(starts))
	for id := range starts {
		ids = append(ids, int64(id))
	}
	for part := range slices.Chunk(ids, page) {
		var list strings.Builder
		for i := range part {
			fmt.Fprintf(&list, ",$%d", i+1)
		}
		if err := s.scanStarts(ctx, `SELECT id, start_offset FROM stream WHERE id IN (`+list.String()[1:]+`)`, part, starts); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) scanStarts(ctx context.Context, query string, args []any, starts map[streamstore.StreamID]int64) error {
	rows, err := s.readers.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id streamstore.StreamID
		var start int64
		if err := rows.Scan(&id, &start); err != nil {
			return err
		}
		starts[id] = start
	}
	return rows.Err()
}
