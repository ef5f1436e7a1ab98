package streamstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tabletopic/tabletopic/objectstore"
)

const (
	compactionRequests = 4                // requests in flight
	compactionSoon     = 10 * time.Second // pause before a run that goes on where the last one stopped
	maxListedRanges    = 256 << 10        // ranges of stream set objects looked at in one run
)

// A compactor turns many small objects into few large ones, in the background, one piece of
// work at a time:
//
//	sets     stream set objects that share streams become stream objects (runs of SplitBytes
//	         or more) and one stream set object of the rest; after ForceSplit all becomes
//	         stream objects
//	minor    small stream objects of one stream are merged
//	major    adjacent stream objects of one stream are linked by a composite; no data moves
//	cleanup  a composite lets go of parts that were trimmed
//	rewrite  a partition that is compacted by key replaces its batches (rewrite.go)
//
// Sources are read from the bucket, past the caches, and every checksum in them is checked. The
// results are written under prepared ids and take the place of the sources in one transaction,
// which metadata refuses unless both cover the same ranges. Whatever goes wrong before
// leaves prepared ids that expire, and the next run starts anew.
type compactor struct {
	s    *Store
	busy chan struct{} // cap 1: held while compacting
	pace pacer
	left atomic.Int64 // bytes of objects that the run under way will still rewrite, or the last one did not
	sets atomic.Int64 // bytes of stream set objects that no run has looked at

	mu      sync.Mutex
	grown   map[StreamID]struct{} // guarded by mu; may have small objects to merge
	linked  map[StreamID]struct{} // guarded by mu; may have objects to link
	trimmed map[StreamID]struct{} // guarded by mu; may have composites with trimmed parts
}

func newCompactor(s *Store) *compactor {
	return &compactor{
		s: s, busy: make(chan struct{}, 1), pace: pacer{busy: s.serving},
		grown: make(map[StreamID]struct{}), linked: make(map[StreamID]struct{}), trimmed: make(map[StreamID]struct{}),
	}
}

// serving reports whether those who are served need the object store: a fetch waits for an
// object, or uploads lag behind so far that appends will have to wait.
func (s *Store) serving() bool {
	return s.unuploaded() > s.cfg.LogCacheBytes/2 || s.reader.serving()
}

// noteObjects remembers that streams got objects of their own.
func (c *compactor) noteObjects(objects []StreamObject) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range objects {
		c.grown[o.Range.Stream] = struct{}{}
		c.linked[o.Range.Stream] = struct{}{}
	}
}

// noteUpload remembers what an upload gives to do.
func (c *compactor) noteUpload(u Upload) {
	c.noteObjects(u.Streams)
	if u.StreamSet != nil {
		c.sets.Add(u.StreamSet.Size)
	}
}

// compactionKinds are the kinds of work, as metrics name them.
var compactionKinds = []string{"sets", "minor", "major", "cleanup", "rewrite"}

// debt is how many bytes of stream set objects wait to be rewritten.
func (c *compactor) debt() int64 { return c.left.Load() + c.sets.Load() }

// waiting is how many open streams each kind of work will look at.
func (c *compactor) waiting() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return map[string]int{"minor": len(c.grown), "major": len(c.linked), "cleanup": len(c.trimmed)}
}

// noteOpened remembers streams of which nothing is known.
func (c *compactor) noteOpened(open []OpenRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range open {
		c.grown[o.ID] = struct{}{}
		c.linked[o.ID] = struct{}{}
		c.trimmed[o.ID] = struct{}{}
	}
}

func (c *compactor) noteTrimmed(id StreamID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trimmed[id] = struct{}{}
}

// take empties one of the maps and returns the open streams that it held, by id.
func (c *compactor) take(from *map[StreamID]struct{}) []*Stream {
	c.mu.Lock()
	ids := *from
	*from = make(map[StreamID]struct{})
	c.mu.Unlock()
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	var open []*Stream
	for id := range ids {
		if st := c.s.open[id]; st != nil {
			open = append(open, st)
		}
	}
	slices.SortFunc(open, func(a, b *Stream) int { return cmp.Compare(a.id, b.id) })
	return open
}

// run compacts at its times until ctx ends.
func (c *compactor) run(ctx context.Context) {
	cfg := &c.s.cfg
	type job struct {
		name  string
		every time.Duration
		do    func(context.Context) error
		next  time.Time
	}
	var jobs []*job
	again := &job{name: "stream set objects", every: cfg.CompactionInterval}
	again.do = func(ctx context.Context) error {
		more, err := c.compactSets(ctx)
		if more {
			again.next = time.Now().Add(compactionSoon)
		}
		return err
	}
	for _, j := range []*job{
		again,
		{name: "trimmed composites", every: cfg.CleanupInterval, do: c.cleanup},
		{name: "small stream objects", every: cfg.MinorInterval, do: c.minor},
		{name: "stream objects", every: cfg.MajorInterval, do: c.major},
	} {
		if j.every > 0 {
			j.next = time.Now().Add(j.every)
			jobs = append(jobs, j)
		}
	}
	for len(jobs) > 0 {
		j := slices.MinFunc(jobs, func(a, b *job) int { return a.next.Compare(b.next) })
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(j.next)):
		}
		j.next = time.Now().Add(j.every)
		if err := c.exclusive(ctx, j.do); err != nil && ctx.Err() == nil {
			if errors.Is(err, ErrNodeFenced) {
				c.s.fail(err)
				return
			}
			c.s.log.Warn("compaction stopped, trying again later", "of", j.name, "error", err)
		}
	}
}

func (c *compactor) exclusive(ctx context.Context, do func(context.Context) error) (err error) {
	select {
	case c.busy <- struct{}{}:
		defer func() { <-c.busy }()
		defer c.s.metrics.compact.since(time.Now(), &err)
		return do(objectstore.For(ctx, objectstore.ForCompaction))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Compact does at once what compaction does in the course of time: stream set objects, then
// small stream objects, then composites, then what was trimmed.
func (s *Store) Compact(ctx context.Context) error {
	return s.compact.exclusive(ctx, func(ctx context.Context) error {
		for more := true; more; {
			var err error
			if more, err = s.compact.compactSets(ctx); err != nil {
				return err
			}
		}
		for _, do := range []func(context.Context) error{s.compact.minor, s.compact.major, s.compact.cleanup} {
			if err := do(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *compactor) limits() setLimits {
	m := c.s.cfg.CompactionBytes
	window := m * 3 / 8 // as much again are copies on their way to the bucket, and the rest the set that grows
	return setLimits{window: window, set: m / 4, streams: c.s.cfg.UploadStreams, split: min(c.s.cfg.SplitBytes, window/2), forceAt: c.s.cfg.ForceSplit}
}

// compactSets compacts the node's stream set objects once. It reports whether there may be
// more than it looked at. A group that fails leaves the others their turn.
func (c *compactor) compactSets(ctx context.Context) (more bool, err error) {
	seen := c.sets.Load() // all of them are listed below, unless there are too many
	sets, more, err := c.listSets(ctx)
	if err != nil {
		return false, err
	}
	groups := groupSets(sets, time.Now(), c.limits())
	total := int64(0)
	for _, g := range groups {
		total += g.bytes()
	}
	c.left.Store(total)
	c.sets.Add(-seen)
	c.pace.start(total, max(c.s.cfg.CompactionInterval, 0)*4/5, c.s.cfg.CompactionRate)
	var errs error
	for _, g := range groups {
		if err := c.compactGroup(ctx, g); err != nil {
			errs = errors.Join(errs, err)
			if ctx.Err() != nil || errors.Is(err, ErrNodeFenced) {
				return false, errs
			}
			continue
		}
		c.left.Add(-g.bytes())
	}
	if len(groups) > 0 {
		c.s.log.Debug("stream set objects compacted", "objects", len(sets), "groups", len(groups), "bytes", total)
	}
	return more && len(groups) > 0 && errs == nil, errs
}

// listSets returns the node's stream set objects, oldest first, up to CompactionObjects.
func (c *compactor) listSets(ctx context.Context) (sets []LiveStreamSet, more bool, err error) {
	const page = 50
	ranges, after := 0, ObjectID(0)
	for len(sets) < c.s.cfg.CompactionObjects && ranges < maxListedRanges {
		found, err := c.s.objects.StreamSetObjects(ctx, c.s.node.ID, after, min(page, c.s.cfg.CompactionObjects-len(sets)))
		if err != nil {
			return nil, false, fmt.Errorf("list stream set objects: %w", err)
		}
		if len(found) == 0 {
			return sets, false, nil
		}
		for _, s := range found {
			ranges += len(s.Ranges)
			after = s.ID
		}
		sets = append(sets, found...)
	}
	return sets, true, nil
}

// compactGroup rewrites a group of stream set objects.
func (c *compactor) compactGroup(ctx context.Context, g setGroup) error {
	ctx, cancel := context.WithTimeoutCause(ctx, prepareTTL/2, errSlowCompaction)
	defer cancel()
	sources := make([]ObjectRef, len(g.sets))
	comp := Compaction{}
	for i, s := range g.sets {
		sources[i] = ObjectRef{ID: s.ID, Kind: KindStreamSet, Size: s.Size}
		comp.Sources = append(comp.Sources, s.ID)
	}
	pieces, err := c.readPieces(ctx, g.sets, sources)
	if err != nil {
		return fmt.Errorf("compact %d stream set objects from %d on: %w", len(sources), sources[0].ID, err)
	}
	w := &compactionWriter{c: c, sources: sources, comp: comp}
	limits := c.limits()
	limits.apart = g.apart
	if err := w.write(ctx, layOut(pieces, g.force, limits)); err != nil {
		return fmt.Errorf("compact %d stream set objects from %d on: %w", len(sources), sources[0].ID, err)
	}
	c.s.metrics.compactions.WithLabelValues("sets").Inc()
	return nil
}

// errSlowCompaction ends a compaction whose prepared ids are about to expire.
var errSlowCompaction = errors.New("compaction took too long for its prepared objects to live")

// readPieces finds where the live ranges of the sets lie.
func (c *compactor) readPieces(ctx context.Context, sets []LiveStreamSet, sources []ObjectRef) ([]piece, error) {
	found := make([][]piece, len(sets))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(compactionRequests)
	for i, set := range sets {
		g.Go(func() error {
			entries, err := retry(ctx, c.s.patience, "read index", func() ([]indexEntry, error) {
				return readIndex(ctx, c.s.bucket, sources[i])
			})
			if err != nil {
				return err
			}
			for _, r := range set.Ranges {
				of := entriesOf(entries, r.Stream)
				first := slices.IndexFunc(of, func(e indexEntry) bool { return e.End > r.Start })
				if first < 0 || of[first].Start > r.Start || of[len(of)-1].End != r.End {
					return corrupt("object %s does not hold stream %d from %d to %d, as metadata says", ObjectKey(set.ID), r.Stream, r.Start, r.End)
				}
				found[i] = append(found[i], piece{i, of[first:]})
			}
			return nil
		})
	}
	err := g.Wait()
	return slices.Concat(found...), err
}

// minor merges small stream objects.
func (c *compactor) minor(ctx context.Context) error {
	small := min(c.s.cfg.MinorBytes, c.limits().window/2) // a result fits into the window
	return c.each(ctx, &c.grown, func(st *Stream, ranges []ObjectRange) error {
		for _, group := range groupSmall(ranges, small) {
			if err := c.merge(ctx, st, group); err != nil {
				return err
			}
		}
		return nil
	})
}

// each calls do with the open streams of one of the maps and their objects. A stream whose
// turn failed stays in the map, and the first error is returned.
func (c *compactor) each(ctx context.Context, from *map[StreamID]struct{}, do func(*Stream, []ObjectRange) error) error {
	c.pace.start(0, 0, c.s.cfg.CompactionRate)
	var first error
	for _, st := range c.take(from) {
		var ranges []ObjectRange
		err := ctx.Err()
		if err == nil {
			ranges, err = c.rangesOf(ctx, st)
		}
		if err == nil && len(ranges) > 0 {
			err = do(st, ranges)
		}
		if err == nil || errors.Is(err, ErrStreamNotExist) || errors.Is(err, ErrOffsetOutOfRange) {
			continue // destroyed, or trimmed and noted again
		}
		c.mu.Lock()
		(*from)[st.id] = struct{}{}
		c.mu.Unlock()
		if first == nil {
			first = fmt.Errorf("compact stream %d: %w", st.id, err)
		}
		if errors.Is(err, ErrNodeFenced) {
			return first
		}
	}
	return first
}

func (c *compactor) rangesOf(ctx context.Context, st *Stream) ([]ObjectRange, error) {
	const page = 1000
	var all []ObjectRange
	for next := st.StartOffset(); ; {
		found, err := c.s.objects.StreamObjects(ctx, st.id, next, math.MaxInt64, page)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
		if len(found) < page {
			return all, nil
		}
		next = found[len(found)-1].End
	}
}

// merge rewrites adjacent stream objects as one.
func (c *compactor) merge(ctx context.Context, st *Stream, group []ObjectRange) error {
	ctx, cancel := context.WithTimeoutCause(ctx, prepareTTL/2, errSlowCompaction)
	defer cancel()
	w := &compactionWriter{c: c}
	var pieces []piece
	for i, r := range group {
		entries, err := retry(ctx, c.s.patience, "read index", func() ([]indexEntry, error) {
			return readIndex(ctx, c.s.bucket, r.ObjectRef)
		})
		if err != nil {
			return err
		}
		entries = entriesOf(entries, st.id)
		if len(entries) == 0 || entries[0].Start != r.Start || entries[len(entries)-1].End != r.End {
			return corrupt("object %s does not hold stream %d from %d to %d, as metadata says", ObjectKey(r.ID), st.id, r.Start, r.End)
		}
		pieces = append(pieces, piece{i, entries})
		w.sources = append(w.sources, r.ObjectRef)
		w.comp.Sources = append(w.comp.Sources, r.ID)
	}
	if err := w.write(ctx, layOut(pieces, true, c.limits())); err != nil {
		return err
	}
	c.s.metrics.compactions.WithLabelValues("minor").Inc()
	return nil
}

// major links adjacent stream objects.
func (c *compactor) major(ctx context.Context) error {
	cfg := &c.s.cfg
	return c.each(ctx, &c.linked, func(st *Stream, ranges []ObjectRange) error {
		objects := make([]linkable, len(ranges))
		composites := make(map[ObjectID]composite)
		for i, r := range ranges {
			objects[i] = linkable{r, r.Size, 1}
		}
		if len(groupLinks(objects, cfg.MinorBytes, math.MaxInt64)) == 0 {
			return nil // whatever the composites hold
		}
		for i, r := range ranges {
			if r.Kind != KindComposite {
				continue
			}
			linked, err := c.readComposite(ctx, r.ObjectRef)
			if err != nil {
				return err
			}
			composites[r.ID] = linked
			objects[i].bytes, objects[i].parts = linked.bytes(), len(linked.parts)
		}
		for _, group := range groupLinks(objects, cfg.MinorBytes, cfg.MajorBytes) {
			if err := c.link(ctx, st, group, composites); err != nil {
				return err
			}
			c.s.metrics.compactions.WithLabelValues("major").Inc()
		}
		return nil
	})
}

func (c *compactor) readComposite(ctx context.Context, object ObjectRef) (composite, error) {
	linked, err := retry(ctx, c.s.patience, "read composite", func() (composite, error) {
		return readComposite(ctx, c.s.bucket, object)
	})
	c.s.metrics.compactionRead.Add(float64(object.Size))
	return linked, err
}

// link replaces a group by one composite, with the parts of the composites in it.
func (c *compactor) link(ctx context.Context, st *Stream, group []linkable, composites map[ObjectID]composite) error {
	result := composite{stream: st.id}
	var sources []ObjectID
	for _, o := range group {
		sources = append(sources, o.ID)
		if o.Kind == KindComposite {
			result.parts = append(result.parts, composites[o.ID].parts...)
			continue
		}
		entries, err := retry(ctx, c.s.patience, "read index", func() ([]indexEntry, error) {
			return readIndex(ctx, c.s.bucket, o.ObjectRef)
		})
		if err != nil {
			return err
		}
		if entries = entriesOf(entries, st.id); len(entries) == 0 {
			return corrupt("object %s does not hold stream %d, as metadata says", ObjectKey(o.ID), st.id)
		}
		result.parts = append(result.parts, compositePart{o.ID, o.Size, entries})
	}
	start := st.StartOffset()
	if n := trimmedParts(result, start, 0); n < len(result.parts) {
		result.parts = result.parts[n:]
	}
	return c.putComposite(ctx, result, sources)
}

// cleanup replaces composites whose first parts were trimmed by such without them.
func (c *compactor) cleanup(ctx context.Context) error {
	return c.each(ctx, &c.trimmed, func(st *Stream, ranges []ObjectRange) error {
		if ranges[0].Kind != KindComposite {
			return nil // only the first object can be trimmed in part
		}
		old, err := c.readComposite(ctx, ranges[0].ObjectRef)
		if err != nil {
			return err
		}
		n := trimmedParts(old, st.StartOffset(), c.s.cfg.CleanupBytes)
		if n == 0 || n == len(old.parts) {
			return nil
		}
		if err := c.putComposite(ctx, composite{stream: st.id, parts: old.parts[n:]}, []ObjectID{old.id}); err != nil {
			return err
		}
		c.s.metrics.compactions.WithLabelValues("cleanup").Inc()
		return nil
	})
}

func (c *compactor) putComposite(ctx context.Context, result composite, sources []ObjectID) error {
	ctx, cancel := context.WithTimeoutCause(ctx, prepareTTL/2, errSlowCompaction)
	defer cancel()
	first, err := c.prepare(ctx, 1)
	if err != nil {
		return err
	}
	result.id = first
	body := appendComposite(nil, result)
	if err := c.put(ctx, first, [][]byte{body}, int64(len(body))); err != nil {
		return err
	}
	o := StreamObject{ID: first, Size: int64(len(body)), Range: StreamRange{
		Stream: result.stream, Start: result.parts[0].start(), End: result.parts[len(result.parts)-1].end()}}
	for _, p := range result.parts {
		o.Parts = append(o.Parts, p.id)
	}
	return c.commit(ctx, Compaction{Sources: sources, Streams: []StreamObject{o}})
}

func (c *compactor) prepare(ctx context.Context, n int) (ObjectID, error) {
	first, err := retry(ctx, c.s.patience, "prepare objects", func() (ObjectID, error) {
		return c.s.objects.PrepareObjects(ctx, c.s.node, n, prepareTTL)
	})
	if err != nil {
		return 0, fmt.Errorf("prepare %d objects: %w", n, err)
	}
	return first, nil
}

func (c *compactor) put(ctx context.Context, id ObjectID, body [][]byte, size int64) error {
	_, err := retry(ctx, c.s.patience, "put compacted object", func() (struct{}, error) {
		return struct{}{}, c.s.bucket.Put(ctx, ObjectKey(id), body...)
	})
	if err != nil {
		return fmt.Errorf("put object %d of %d bytes: %w", id, size, err)
	}
	c.s.metrics.compactionWritten.Add(float64(size))
	return nil
}

// commit puts the results in the place of the sources, and lets readers look them up.
func (c *compactor) commit(ctx context.Context, comp Compaction) error {
	_, err := retry(ctx, c.s.patience, "commit compaction", func() (struct{}, error) {
		return struct{}{}, c.s.objects.CommitCompaction(ctx, c.s.node, comp)
	})
	if err != nil {
		return err
	}
	for _, o := range compacted(comp) {
		for _, r := range o.ranges {
			c.s.reader.forget(r.Stream)
		}
	}
	c.noteObjects(slices.DeleteFunc(slices.Clone(comp.Streams), func(o StreamObject) bool { return o.Kind() != KindStream }))
	return nil
}
