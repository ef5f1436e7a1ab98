package partition

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

// holdState keeps retention from what the tables do not have yet.
type holdState struct {
	offsets  map[uuid.UUID]int64 // by the id of the route that fills the table
	released bool
}

// Hold keeps retention from removing records from offset on, for at most the topic's
// table.topic.hold.max.ms longer than it would keep them. The worker of the topic's table
// moves it, under the id of the [Route]. Until the first Hold of each, the whole log of a topic with
// a table is held.
func (p *Partition) Hold(route uuid.UUID, offset int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hold.offsets == nil {
		p.hold.offsets = map[uuid.UUID]int64{}
	}
	p.hold.offsets[route], p.hold.released = offset, false
}

// Release ends what a route holds: it fills no table any more. After the last one retention has a free
// hand again.
func (p *Partition) Release(route uuid.UUID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, held := p.hold.offsets[route]; held {
		delete(p.hold.offsets, route)
		p.hold.released = len(p.hold.offsets) == 0
	}
}

// holdOffset is the first offset that a table still needs.
func (p *Partition) holdOffset(cfg *TopicConfig) (offset int64, held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.hold.offsets)
	switch {
	case n == 0:
		return 0, cfg.Table.Enable && !p.hold.released
	case cfg.Table.Enable && n < cfg.Table.tables() && !invariant.Off("hold-of-every-table"):
		return 0, true // one has not said yet what it needs
	}
	return slices.Min(slices.Collect(maps.Values(p.hold.offsets))), true
}

// DeleteRecords removes the records before an offset, −1 for the high watermark, and returns
// the new log start. ErrOffsetOutOfRange if it is above the high watermark.
func (p *Partition) DeleteRecords(ctx context.Context, before int64) (logStart int64, err error) {
	p.mu.Lock()
	closed, o := p.closed, p.offsetsLocked()
	p.mu.Unlock()
	if closed != nil {
		return -1, closed
	}
	if before == -1 {
		before = o.HighWatermark
	}
	if before < 0 || before > o.HighWatermark {
		return -1, fmt.Errorf("delete records of %s before %d, holds %d to %d: %w", p, before, o.LogStart, o.HighWatermark, ErrOffsetOutOfRange)
	}
	if hold, held := p.holdOffset(p.config.Load()); held && before > hold && before > o.LogStart {
		p.slog.Warn("records are deleted that the table does not have", "from", max(hold, o.LogStart), "to", before)
	}
	if err := p.checkpointing.enter(ctx); err != nil {
		return -1, err
	}
	defer p.checkpointing.leave()
	if err := p.trimLocked(ctx, before); err != nil {
		return -1, err
	}
	return p.log.StartOffset(), nil
}

// trimLocked moves the log start. What the removed batches say of producers and dead
// letters must be in a checkpoint before. The caller holds checkpointing.
func (p *Partition) trimLocked(ctx context.Context, start int64) error {
	if start > p.checkpointed && !invariant.Off("checkpoint-before-trim") {
		if err := p.checkpointLocked(ctx); err != nil {
			return err
		}
	}
	if err := p.log.Trim(ctx, start); err != nil {
		return fmt.Errorf("trim %s: %w", p, streamError(err))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state.trim(start)
	p.notifyLocked()
	return nil
}

const (
	// A time bound is looked at ten times during the retention time, within these limits:
	// each look may read an index, each trim is a transaction.
	minRetainInterval = time.Second
	maxRetainInterval = time.Hour
)

// retain removes what the topic's retention does not keep.
func (p *Partition) retain(ctx context.Context, now time.Time) error {
	cfg := p.config.Load()
	if !cfg.Delete || cfg.RetentionMillis < 0 && cfg.RetentionBytes < 0 {
		return nil
	}
	if err := p.checkpointing.enter(ctx); err != nil {
		return err
	}
	defer p.checkpointing.leave()
	p.mu.Lock()
	o, closed := p.offsetsLocked(), p.closed
	target, _ := p.state.sizes.keep(cfg.RetentionBytes)
	p.mu.Unlock()
	if closed != nil || o.LogStart == o.HighWatermark {
		return nil
	}
	if cfg.RetentionBytes < 0 || target <= o.LogStart {
		target = o.LogStart
	}
	if cfg.RetentionMillis >= 0 && now.UnixMilli() >= p.retainAt.Load() {
		aged, err := p.agedOffset(ctx, now.UnixMilli()-cfg.RetentionMillis, o.HighWatermark)
		if err != nil {
			return err
		}
		target = max(target, aged)
		interval := min(max(time.Duration(cfg.RetentionMillis/10)*time.Millisecond, minRetainInterval), maxRetainInterval)
		p.retainAt.Store(now.Add(interval).UnixMilli())
	}
	target, err := p.holdBack(ctx, cfg, o, min(target, o.HighWatermark), now)
	if err != nil || target <= o.LogStart {
		return err
	}
	p.slog.Debug("retention", "from", o.LogStart, "to", target)
	return p.trimLocked(ctx, target)
}

// agedOffset is the first offset with a record of time cutoff or later, or end.
func (p *Partition) agedOffset(ctx context.Context, cutoff, end int64) (int64, error) {
	offset, found, err := p.log.FindTimestamp(ctx, cutoff)
	if err != nil {
		return 0, fmt.Errorf("retention of %s: %w", p, streamError(err))
	}
	if !found {
		return end, nil
	}
	return min(offset, end), nil
}

// holdBack lowers target to what the table allows: its next offset, or beyond that what is
// older than retention and table.topic.hold.max.ms together.
func (p *Partition) holdBack(ctx context.Context, cfg *TopicConfig, o Offsets, target int64, now time.Time) (int64, error) {
	hold, held := p.holdOffset(cfg)
	hold = max(hold, o.LogStart)
	if !held || target <= hold || invariant.Off("retention-hold") {
		return target, nil
	}
	if cfg.Table.HoldMax < 0 {
		return hold, nil
	}
	cutoff := now.UnixMilli() - max(cfg.RetentionMillis, 0) - cfg.Table.HoldMax.Milliseconds()
	aged, err := p.agedOffset(ctx, cutoff, o.HighWatermark)
	if err != nil {
		return 0, err
	}
	if aged <= hold {
		return hold, nil
	}
	target = min(target, aged)
	p.slog.Warn("retention removes records that the table does not have: it lagged longer than table.topic.hold.max.ms", "from", hold, "to", target)
	return target, nil
}
