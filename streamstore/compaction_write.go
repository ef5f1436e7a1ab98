package streamstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

// A compactionWriter writes the results of one compaction and commits them.
type compactionWriter struct {
	c       *compactor
	sources []ObjectRef
	comp    Compaction
	next    ObjectID                                        // of the prepared ids
	rewrite func(run, []RecordBatch) ([]RecordBatch, error) // what a run becomes; as it is if nil
	needed  func() bool                                     // whether the results are to be committed; they are if nil

	set      *objectBuilder // of the stream set object that grows; it copies what it is given
	setIndex int            // number of the set
}

// write reads the sources step by step, writes the results and commits them. A failed read
// or write ends it before the commit.
func (w *compactionWriter) write(ctx context.Context, l layout) error {
	var err error
	if w.next, err = w.c.prepare(ctx, l.own+l.sets); err != nil {
		return err
	}
	for _, step := range l.steps {
		if err := w.step(ctx, step); err != nil && !invariant.Off("compaction-error-aborts") {
			return errors.Join(err, context.Cause(ctx))
		}
	}
	if err := w.putSet(ctx); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	if w.needed != nil && !w.needed() {
		return nil // what was written is deleted with its ids
	}
	return w.c.commit(ctx, w.comp)
}

// step reads the blocks of the runs and writes those that get an object of their own.
func (w *compactionWriter) step(ctx context.Context, runs []run) error {
	blocks, err := w.read(ctx, runs)
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(compactionRequests)
	for _, r := range runs {
		batches, err := parseRun(r, blocks)
		if err == nil && w.rewrite != nil {
			batches, err = w.rewrite(r, batches)
		}
		if err != nil {
			g.Wait()
			return err
		}
		rng := StreamRange{Stream: r.stream(), Start: r.start(), End: r.end()}
		if r.set > 0 {
			if err := w.addToSet(ctx, r.set, rng, batches); err != nil {
				g.Wait()
				return err
			}
			continue
		}
		id := w.takeID()
		b := newObjectBuilder(KindStream, id)
		b.addStream(rng.Stream, batches, nil, w.c.s.cfg.BlockBytes)
		body, size := b.finish()
		w.comp.Streams = append(w.comp.Streams, StreamObject{ID: id, Size: size, Range: rng})
		g.Go(func() error { return w.c.put(gctx, id, body, size) })
	}
	return g.Wait()
}

func (w *compactionWriter) takeID() ObjectID {
	id := w.next
	w.next++
	return id
}

// A blockAt is where a block lies: in which source, and at which position.
type blockAt struct {
	source   int
	position int64
}

// read returns the blocks of the runs. Adjacent blocks of a source come with one request.
func (w *compactionWriter) read(ctx context.Context, runs []run) (map[blockAt][]byte, error) {
	bySource := make([][]indexEntry, len(w.sources))
	for _, r := range runs {
		for _, p := range r.pieces {
			bySource[p.source] = append(bySource[p.source], p.entries...)
		}
	}
	var mu sync.Mutex
	blocks := make(map[blockAt][]byte)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(compactionRequests)
	for source, entries := range bySource {
		slices.SortFunc(entries, func(a, b indexEntry) int { return cmp.Compare(a.Position, b.Position) })
		for len(entries) > 0 {
			n, size := 1, int64(entries[0].Size)
			for n < len(entries) && entries[n].Position == entries[0].Position+size {
				size += int64(entries[n].Size)
				n++
			}
			part := entries[:n]
			entries = entries[n:]
			g.Go(func() error {
				data, err := w.c.get(ctx, w.sources[source].ID, part[0].Position, size)
				if err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				for _, e := range part {
					blocks[blockAt{source, e.Position}] = data[:e.Size:e.Size]
					data = data[e.Size:]
				}
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return blocks, nil
}

func (c *compactor) get(ctx context.Context, id ObjectID, position, size int64) ([]byte, error) {
	if err := c.pace.wait(ctx, size); err != nil {
		return nil, err
	}
	key := ObjectKey(id)
	data, err := retry(ctx, c.s.patience, "read object to compact", func() ([]byte, error) {
		return c.s.bucket.Get(ctx, key, position, size)
	})
	if err == nil && int64(len(data)) != size {
		err = corrupt("%d bytes, want %d", len(data), size)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s at %d: %w", key, position, err)
	}
	c.s.metrics.compactionRead.Add(float64(size))
	return data, nil
}

// parseRun returns the batches of a run, checked, and contiguous from its start to its end.
func parseRun(r run, blocks map[blockAt][]byte) ([]RecordBatch, error) {
	var all []RecordBatch
	next := r.start()
	for _, p := range r.pieces {
		for _, e := range p.entries {
			batches, err := checkBlock(blocks[blockAt{p.source, e.Position}], e)
			if err != nil {
				return nil, err
			}
			if batches[0].BaseOffset != next {
				return nil, corrupt("stream %d goes on at %d, want %d", e.Stream, batches[0].BaseOffset, next)
			}
			next = e.End
			all = append(all, batches...)
		}
	}
	return all, nil
}

// addToSet adds a run to the stream set object of a number, and writes the one before.
func (w *compactionWriter) addToSet(ctx context.Context, number int, rng StreamRange, batches []RecordBatch) error {
	if number != w.setIndex {
		if err := w.putSet(ctx); err != nil {
			return err
		}
		w.setIndex = number
		w.set = newObjectBuilder(KindStreamSet, w.takeID())
		w.set.copies = true
		w.comp.StreamSets = append(w.comp.StreamSets, StreamSetObject{ID: w.set.id})
	}
	w.set.addStream(rng.Stream, batches, nil, w.c.s.cfg.BlockBytes)
	set := &w.comp.StreamSets[len(w.comp.StreamSets)-1]
	set.Ranges = append(set.Ranges, rng)
	return nil
}

func (w *compactionWriter) putSet(ctx context.Context) error {
	if w.set == nil {
		return nil
	}
	body, size := w.set.finish()
	id := w.set.id
	w.set = nil
	w.comp.StreamSets[len(w.comp.StreamSets)-1].Size = size
	return w.c.put(ctx, id, body, size)
}

// yieldShare is what is left of the rate of compaction while others need the object store: it
// goes on slowly, for what it does not do is paid for by every read.
const yieldShare = 1.0 / 4

// A pacer spreads reads over time, so that compaction stays below the traffic that is served.
type pacer struct {
	busy func() bool // others need the object store

	mu   sync.Mutex
	rate float64   // bytes per second; guarded by mu
	next time.Time // guarded by mu; when the next read may begin
}

// start spreads bytes over a time, at least rate bytes a second.
func (p *pacer) start(bytes int64, over time.Duration, rate int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = float64(rate)
	if over > 0 {
		p.rate = max(p.rate, float64(bytes)/over.Seconds())
	}
	p.next = time.Now()
}

// wait returns when n bytes may be read.
func (p *pacer) wait(ctx context.Context, n int64) error {
	share := 1.0
	if p.busy() {
		share = yieldShare
	}
	p.mu.Lock()
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	at := p.next
	p.next = at.Add(time.Duration(float64(n) / (p.rate * share) * float64(time.Second)))
	p.mu.Unlock()
	t := time.NewTimer(at.Sub(now))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
