package streamstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

// What lies in objects can be rewritten: batches may get another payload, and adjacent ones may
// become one, as long as the same offsets are covered. It is compaction with a function in
// the middle, and commits as one. A stream set object is never rewritten for one of its streams:
// [Stream.Separate] first gives the stream objects of its own.

// Separate moves what this node's stream set objects hold of the stream below end to objects of its
// own, if the sets have up to budget bytes together: all of them are read, and written anew.
func (st *Stream) Separate(ctx context.Context, end, budget int64) error {
	c := st.store.compact
	return c.exclusive(ctx, func(ctx context.Context) error {
		sets, _, err := c.listSets(ctx)
		if err != nil {
			return err
		}
		sets = slices.DeleteFunc(sets, func(s LiveStreamSet) bool {
			return !slices.ContainsFunc(s.Ranges, func(r StreamRange) bool { return r.Stream == st.id && r.Start < end })
		})
		if (setGroup{sets: sets}).bytes() > budget {
			return nil
		}
		c.pace.start(0, 0, c.s.cfg.CompactionRate)
		for _, s := range sets {
			if err := c.compactGroup(ctx, setGroup{sets: []LiveStreamSet{s}, apart: st.id}); err != nil {
				return err
			}
		}
		return nil
	})
}

// Separated returns the end of what lies in objects of the stream's own, from start on and not
// above end.
func (st *Stream) Separated(ctx context.Context, start, end int64) (int64, error) {
	const page = 1000
	for at := start; ; {
		found, err := st.store.objects.StreamObjects(ctx, st.id, at, end, page)
		if err != nil {
			return start, fmt.Errorf("objects of stream %d: %w", st.id, err)
		}
		for _, r := range found {
			if r.Kind == KindStreamSet {
				return at, nil
			}
			at = min(r.End, end)
		}
		if len(found) < page || at >= end {
			return at, nil
		}
	}
}

// Scan calls fn with the batches of [start, end), whole ones and in order, as objects of the stream's own hold
// them: past the caches, and at the pace of compaction. Batches are valid during the call.
func (st *Stream) Scan(ctx context.Context, start, end int64, fn func([]RecordBatch) error) error {
	return st.eachGroup(ctx, start, end, func(ctx context.Context, group []ObjectRange) error {
		w, pieces, err := st.store.compact.piecesOf(ctx, st, group)
		if err != nil {
			return err
		}
		for _, step := range layOut(pieces, true, w.c.limits()).steps {
			blocks, err := w.read(ctx, step)
			if err != nil {
				return err
			}
			for _, r := range step {
				batches, err := parseRun(r, blocks)
				if err != nil {
					return err
				}
				first := slices.IndexFunc(batches, func(b RecordBatch) bool { return b.End() > start })
				last := slices.IndexFunc(batches, func(b RecordBatch) bool { return b.BaseOffset >= end })
				if last < 0 {
					last = len(batches)
				}
				if first < 0 || first >= last {
					continue
				}
				if err := fn(batches[first:last]); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// Rewrite replaces the objects of the stream's own that hold [start, end) by such with the batches that fn
// makes of theirs, which must cover the same offsets. fn is called with batches beyond start and
// end, too, for objects are replaced as a whole; if it reports that it changed none of an object's,
// the object stays. Objects are replaced one after the other, and an error leaves those before
// replaced. Readers may get either content until [Stream.Refresh].
func (st *Stream) Rewrite(ctx context.Context, start, end int64, fn func([]RecordBatch) (batches []RecordBatch, changed bool, err error)) error {
	return st.eachGroup(ctx, start, end, func(ctx context.Context, group []ObjectRange) error {
		w, pieces, err := st.store.compact.piecesOf(ctx, st, group)
		if err != nil {
			return err
		}
		for _, r := range group {
			w.comp.Sources = append(w.comp.Sources, r.ID)
		}
		l := layOut(pieces, true, w.c.limits())
		changed := false
		w.rewrite = func(r run, batches []RecordBatch) ([]RecordBatch, error) {
			out, does, err := fn(batches)
			if err != nil {
				return nil, err
			}
			invariant.Check(covers(out, r.start(), r.end()), "stream %d: what is rewritten does not cover %d to %d", st.id, r.start(), r.end())
			if changed = changed || does; !changed && l.own == 1 {
				return nil, errUnchanged
			}
			return out, nil
		}
		w.needed = func() bool { return changed }
		if err := w.write(ctx, l); err != nil && !errors.Is(err, errUnchanged) {
			return err
		}
		if changed {
			w.c.s.metrics.compactions.WithLabelValues("rewrite").Inc()
		}
		return nil
	})
}

// errUnchanged ends a rewrite that would replace an object by its like.
var errUnchanged = errors.New("nothing is to be rewritten")

// covers reports whether batches follow each other from start to end.
func covers(batches []RecordBatch, start, end int64) bool {
	for _, b := range batches {
		if b.BaseOffset != start || b.Count < 1 {
			return false
		}
		start = b.End()
	}
	return start == end
}

// eachGroup calls do, which has compaction to itself, for groups of adjacent objects of the stream's own until all of
// [start, end) had its turn: one composite, or stream objects that fit into the window of
// compaction together.
func (st *Stream) eachGroup(ctx context.Context, start, end int64, do func(context.Context, []ObjectRange) error) error {
	const page = 1000
	c := st.store.compact
	for at := start; at < end; {
		err := c.exclusive(ctx, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeoutCause(ctx, prepareTTL/2, errSlowCompaction)
			defer cancel()
			found, err := c.s.objects.StreamObjects(ctx, st.id, at, end, page)
			if err != nil {
				return err
			}
			group := groupRewrite(found, c.limits().window)
			if len(group) == 0 {
				return fmt.Errorf("no object of its own holds offset %d", at)
			}
			c.pace.start(0, 0, c.s.cfg.CompactionRate)
			if err := do(ctx, group); err != nil {
				return errors.Join(err, context.Cause(ctx))
			}
			at = group[len(group)-1].End
			return nil
		})
		if err != nil {
			return fmt.Errorf("rewrite stream %d: %w", st.id, err)
		}
	}
	return nil
}

// piecesOf finds where the blocks of a group lie, without those that metadata knows to be trimmed.
func (c *compactor) piecesOf(ctx context.Context, st *Stream, group []ObjectRange) (*compactionWriter, []piece, error) {
	w := &compactionWriter{c: c}
	var pieces []piece
	start := st.trimmed.Load()
	add := func(object ObjectRef, entries []indexEntry) {
		first := slices.IndexFunc(entries, func(e indexEntry) bool { return e.End > start })
		if first < 0 {
			return
		}
		pieces = append(pieces, piece{len(w.sources), entries[first:]})
		w.sources = append(w.sources, object)
	}
	for _, r := range group {
		if r.Kind == KindComposite {
			linked, err := c.readComposite(ctx, r.ObjectRef)
			if err != nil {
				return nil, nil, err
			}
			for _, p := range linked.parts {
				add(ObjectRef{ID: p.id, Kind: KindStream, Size: p.size}, p.entries)
			}
			continue
		}
		entries, err := retry(ctx, c.s.patience, "read index", func() ([]indexEntry, error) {
			return readIndex(ctx, c.s.bucket, r.ObjectRef)
		})
		if err != nil {
			return nil, nil, err
		}
		add(r.ObjectRef, entriesOf(entries, st.id))
	}
	if len(pieces) == 0 {
		return nil, nil, fmt.Errorf("trimmed to %d meanwhile: %w", start, ErrOffsetOutOfRange)
	}
	return w, pieces, nil
}

// Refresh makes reads that begin from now on see what was rewritten below end. It returns the offset
// from which on they may still get what was appended: the log cache drops what ends at end or before.
func (st *Stream) Refresh(end int64) (from int64) {
	st.store.reader.refresh(st.id)
	return st.store.cache.drop(st.id, end)
}
