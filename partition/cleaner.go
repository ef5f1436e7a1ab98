package partition

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/record"
	"github.com/tabletopic/tabletopic/streamstore"
)

// The cleaner compacts topics by key, one partition at a time: it decides when and up to where, and
// [cleaning] what stays. The settings are Kafka's. What there is called the active segment, which is
// never cleaned, is here what does not lie in objects of the partition's own yet.

const (
	// separateFactor is how much more than the dirty bytes of a partition may be rewritten of
	// objects that it shares with others, to get its part out of them before the clock does.
	separateFactor = 16
	separateFloor  = 1 << 20
	// maxCleanWait is the longest wait, in cleaner intervals, for a partition that looked dirty and could
	// not be cleaned: each look asks metadata, and may read an index.
	maxCleanWait = 40
)

// cleanerTurn is when the cleaner looks at a partition again. It belongs to the cleaner's goroutine.
type cleanerTurn struct {
	at     time.Time
	wait   time.Duration
	failed bool
	pass   cleanPass // that is to be settled
	// unsettled is what passes came to that could not be settled, and are not counted yet.
	unsettled cleanPass
}

// cleanLoop cleans one partition after another, until the set closes.
func (s *Set) cleanLoop() {
	if s.cfg.CleanerInterval < 0 {
		return
	}
	ticker := time.NewTicker(s.cfg.CleanerInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-s.ctx.Done():
			return
		}
		s.cleanTurn()
	}
}

// cleanTurn looks at each partition, and cleans those whose time it is.
func (s *Set) cleanTurn() {
	s.mu.RLock()
	all := s.allLocked()
	s.mu.RUnlock()
	var cleaned []*Partition
	for _, p := range all {
		if now := time.Now(); !now.Before(p.turn.at) && s.ctx.Err() == nil {
			outcome, err := p.clean(s.ctx, now)
			if outcome == cleanDone {
				cleaned = append(cleaned, p)
			} else {
				p.endTurn(now, outcome, err)
			}
		}
	}
	if len(cleaned) > 0 {
		err := s.settleCleaned(s.ctx, cleaned)
		for _, p := range cleaned {
			p.endTurn(time.Now(), cleanDone, err)
		}
	}
	failed := 0
	for _, p := range all {
		if p.turn.failed {
			failed++
		}
	}
	s.metrics.cleanFailing.Set(float64(failed))
}

// endTurn notes how a look at a partition ended, and when it is looked at next.
func (p *Partition) endTurn(now time.Time, outcome cleanOutcome, err error) {
	if outcome == cleanDone {
		p.turn.pass.over(&p.turn.unsettled)
		p.turn.unsettled = p.turn.pass
		if err == nil {
			p.set.metrics.cleaned(&p.turn.pass)
		}
	}
	p.turn.failed, p.turn.pass = err != nil, cleanPass{}
	if err != nil && p.set.ctx.Err() == nil {
		p.slog.Warn("cleaning stopped, trying again later", "err", err)
	}
	if err == nil && outcome != cleanNotYet {
		p.turn = cleanerTurn{}
		return
	}
	every := p.set.cfg.CleanerInterval
	p.turn.wait = min(max(2*p.turn.wait, every), maxCleanWait*every)
	p.turn.at = now.Add(p.turn.wait)
}

// cleanOutcome is how a look at a partition ended.
type cleanOutcome int

const (
	cleanNothing cleanOutcome = iota // it is not dirty, which is known without asking anybody
	cleanNotYet                      // it is dirty, but may not be cleaned yet
	cleanDone                        // a pass was made, and is to be settled
)

// clean makes one pass over the log if the topic is compacted and enough of it is dirty, or too old. After it
// comes [Set.settleCleaned].
func (p *Partition) clean(ctx context.Context, now time.Time) (cleanOutcome, error) {
	cfg := p.config.Load()
	if !cfg.Compact || p.internal { // the shards of internal topics trim them, behind a snapshot
		return cleanNothing, nil
	}
	start, from, end := p.dirty(cfg)
	if end <= from {
		return cleanNothing, nil
	}
	overdue, err := p.overdue(ctx, cfg, from, end, now)
	if err != nil || !overdue && p.dirtyRatio(from, end) < cfg.MinDirtyRatio {
		return cleanNothing, err
	}
	if cfg.MinCompactionLag > 0 {
		if end, err = p.agedOffset(ctx, now.UnixMilli()-cfg.MinCompactionLag, end); err != nil {
			return cleanNotYet, err
		}
	}
	if end, err = p.separate(ctx, start, from, end, overdue); err != nil || end <= from {
		return cleanNotYet, err
	}
	if !overdue && p.dirtyRatio(from, end) < cfg.MinDirtyRatio {
		return cleanNotYet, nil
	}
	began := time.Now()
	pass, err := p.makePass(ctx, cfg, start, from, end, now)
	if err != nil {
		return cleanNotYet, streamError(err)
	}
	pass.took = time.Since(began)
	p.slog.Debug("cleaned", "from", from, "to", pass.end, "removed", pass.removed, "bytes", pass.before, "left", pass.sizes.total)
	p.turn.pass = pass
	return cleanDone, nil
}

// settleCleaned ends passes. Only once metadata cannot lose what was rewritten, and no read meets what was there
// before, are readers not told of the transactions whose records are gone. That metadata is safe is waited for
// once for all, because it takes up to an interval of its snapshots.
func (s *Set) settleCleaned(ctx context.Context, cleaned []*Partition) error {
	if !invariant.Off("clean-settled") {
		if err := s.store.Settled(ctx); err != nil {
			return streamError(err)
		}
	}
	for _, p := range cleaned {
		old := p.log.Refresh(p.turn.pass.end)
		p.mu.Lock()
		p.cleanings++
		p.state.clean(&p.turn.pass, old)
		p.mu.Unlock()
	}
	return nil
}

// dirty returns the log start, and the offsets from and to which records may be cleaned that were
// not: not beyond what is decided by transactions, and what the table has.
func (p *Partition) dirty(cfg *TopicConfig) (start, from, end int64) {
	hold, held := p.holdOffset(cfg)
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.offsetsLocked()
	if p.closed != nil {
		return o.LogStart, 0, 0
	}
	end = o.LastStable
	if invariant.Off("clean-stable") {
		end = o.HighWatermark
	}
	if held && !invariant.Off("clean-hold") {
		end = min(end, hold)
	}
	return o.LogStart, max(p.state.cleaned, o.LogStart), end
}

// overdue reports whether a record that was not cleaned is older than max.compaction.lag.ms.
func (p *Partition) overdue(ctx context.Context, cfg *TopicConfig, from, end int64, now time.Time) (bool, error) {
	if cfg.MaxCompactionLag == math.MaxInt64 {
		return false, nil
	}
	aged, err := p.agedOffset(ctx, now.UnixMilli()-cfg.MaxCompactionLag, end)
	return aged > from, err
}

// dirtyRatio is which part of the bytes below end lies from an offset on.
func (p *Partition) dirtyRatio(from, end int64) float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	x, next := &p.state.sizes, p.state.next
	rest := x.behind(end, next)
	if all := x.size() - rest; all > 0 {
		return float64(x.behind(from, next)-rest) / float64(all)
	}
	return 1
}

// separate returns up to where the log lies in objects of its own, after it has moved there what
// others share the objects of, if that is worth it.
func (p *Partition) separate(ctx context.Context, start, from, end int64, overdue bool) (int64, error) {
	own, err := p.log.Separated(ctx, start, end)
	if err != nil || own == end {
		return own, streamError(err)
	}
	budget := int64(math.MaxInt64)
	if !overdue {
		p.mu.Lock()
		budget = max(separateFloor, separateFactor*p.state.sizes.behind(from, p.state.next))
		p.mu.Unlock()
	}
	if err := p.log.Separate(ctx, end, budget); err != nil {
		return own, streamError(err)
	}
	own, err = p.log.Separated(ctx, start, end)
	return own, streamError(err)
}

// errKeysFull ends the look at keys when there is no memory for more.
var errKeysFull = errors.New("no room for more keys")

// makePass cleans what lies below end, as far as there is room for the keys from an offset on. The order of the
// steps is what makes a crash harmless at any point. What the batches say of producers and dead
// letters is in a checkpoint first, and so is that readers are told of no transaction any more whose marker may go.
func (p *Partition) makePass(ctx context.Context, cfg *TopicConfig, start, from, end int64, now time.Time) (cleanPass, error) {
	if err := p.checkpointUpTo(ctx, end); err != nil {
		return cleanPass{}, err
	}
	p.mu.Lock()
	aborted := append([]abortedTransaction(nil), p.state.aborted...)
	p.mu.Unlock()
	keys := int(min(p.set.cfg.CleanerDedupeBytes/keySlotBytes*3/4, end-from))
	c := newCleaning(end, now.UnixMilli(), cfg.DeleteRetention, keys, aborted, new(record.Reader))
	err := p.log.Scan(ctx, from, end, func(batches []streamstore.RecordBatch) error {
		for _, b := range batches {
			if room, err := c.index(record.Batch(b.Payload), from); err != nil || !room {
				return errors.Join(err, errKeysFull)
			}
		}
		return p.Err()
	})
	if err != nil && !(errors.Is(err, errKeysFull) && c.end < end) {
		return cleanPass{}, err
	}
	err = p.log.Rewrite(ctx, start, c.end, func(batches []streamstore.RecordBatch) ([]streamstore.RecordBatch, bool, error) {
		if err := p.Err(); err != nil {
			return nil, false, err
		}
		return c.clean(batches)
	})
	return c.cleanPass, err
}

// checkpointUpTo makes sure that a checkpoint holds what is known of the log up to an offset, and
// what cleaning changed.
func (p *Partition) checkpointUpTo(ctx context.Context, end int64) error {
	if err := p.checkpointing.enter(ctx); err != nil {
		return err
	}
	defer p.checkpointing.leave()
	p.mu.Lock()
	changed := p.cleanings != p.checkpointedCleanings
	p.mu.Unlock()
	if p.checkpointed >= end && !changed || invariant.Off("clean-checkpointed") {
		return nil
	}
	return p.checkpointLocked(ctx)
}

// clean notes a pass. Reads may still get what was there before from the offset old on.
func (s *state) clean(pass *cleanPass, old int64) {
	s.cleaned = max(s.cleaned, pass.end)
	s.sizes.replace(pass.end, pass.sizes, pass.before)
	s.trimAborted(min(pass.end, old))
}

// behind is about how many bytes of a log that ends at next lie from an offset on: the offsets between two marks
// count alike.
func (x *sizeIndex) behind(offset, next int64) int64 {
	if offset >= next {
		return 0
	}
	end := sizeMark{next, x.total}
	for _, m := range slices.Backward(x.marks) {
		if m.offset <= offset {
			return x.total - m.before - int64(float64(end.before-m.before)*float64(offset-m.offset)/float64(end.offset-m.offset))
		}
		end = m
	}
	return x.size()
}

// replace makes what lies below end, until now so many bytes before, what left says.
func (x *sizeIndex) replace(end int64, left sizeIndex, before int64) {
	rest := max(0, x.size()-before)
	out := sizeIndex{marks: append(left.marks, sizeMark{end, left.total}), total: left.total + rest, step: max(left.step, x.step)}
	for _, m := range x.marks {
		if m.offset > end {
			out.marks = append(out.marks, sizeMark{m.offset, max(left.total, out.total-(x.total-m.before))})
		}
	}
	for len(out.marks) > maxSizeMarks/2 {
		n := 0
		for i := 0; i < len(out.marks); i += 2 {
			out.marks[n] = out.marks[i]
			n++
		}
		out.marks = out.marks[:n]
	}
	*x = out
}

// setMetrics are what a set counts.
type setMetrics struct {
	cleanSeconds prometheus.Histogram
	cleanRemoved prometheus.Counter
	cleanBytes   *prometheus.CounterVec
	cleanFailing prometheus.Gauge
}

func newSetMetrics() *setMetrics {
	m := &setMetrics{
		cleanSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tabletopic_cleaner_pass_seconds",
			Help: "Time of a pass over a partition of a compacted topic.", Buckets: prometheus.ExponentialBuckets(0.01, 4, 9)}),
		cleanRemoved: prometheus.NewCounter(prometheus.CounterOpts{Name: "tabletopic_cleaner_removed_records_total",
			Help: "Records and markers that the cleaner of compacted topics removed."}),
		cleanBytes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tabletopic_cleaner_bytes_total",
			Help: "Bytes of record batches that passes went over: before, and after."}, []string{"when"}),
		cleanFailing: prometheus.NewGauge(prometheus.GaugeOpts{Name: "tabletopic_cleaner_failing_partitions",
			Help: "Partitions of compacted topics whose last pass failed: the log says why."}),
	}
	for _, when := range []string{"before", "after"} {
		m.cleanBytes.WithLabelValues(when)
	}
	return m
}

func (m *setMetrics) cleaned(c *cleanPass) {
	m.cleanSeconds.Observe(c.took.Seconds())
	m.cleanRemoved.Add(float64(c.removed))
	m.cleanBytes.WithLabelValues("before").Add(float64(c.before))
	m.cleanBytes.WithLabelValues("after").Add(float64(c.sizes.total))
}

// Collectors returns the metrics of the set.
func (s *Set) Collectors() []prometheus.Collector {
	m := s.metrics
	return []prometheus.Collector{m.cleanSeconds, m.cleanRemoved, m.cleanBytes, m.cleanFailing}
}
