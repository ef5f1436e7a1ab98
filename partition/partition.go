// Package partition gives streams the meaning of Kafka partitions: leader epochs, offsets,
// producer state, the high watermark, reads by isolation level, offsets by time.
//
// A [Set] holds the partitions that this node leads and is the only way to them, also for
// the parts of Table Topic that keep their state in internal topics. A partition is a
// mutex, not a goroutine: an append checks the batch, assigns its offsets and hands it to
// the stream, and the stream's ordered acknowledgement moves the high watermark.
//
// A partition has two streams. The log holds record batches, one stream batch each, as they
// came. The meta stream holds checkpoints: what the partition knows of its log besides the
// records (producers, leader epochs, dead letter sources, sizes) up to an offset. That
// state changes only by replay of batches, after an append and at start alike: a start
// reads the last checkpoint and replays the log behind it, so a producer's sequence number
// and its batch become durable as one thing. The log start is the start of the log stream.
package partition

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/record"
	"github.com/tabletopic/tabletopic/streamstore"
)

// Partition is a partition that this node leads. It is safe for concurrent use.
type Partition struct {
	topic    string
	topicID  uuid.UUID
	index    int32
	epoch    int32
	internal bool // of an internal topic
	set      *Set
	slog     *slog.Logger
	meta     *streamstore.Stream
	log      *streamstore.Stream
	config   atomic.Pointer[TopicConfig]
	// retainAt is when retention by time is due next, in ms.
	retainAt atomic.Int64
	turn     cleanerTurn

	appends       gate // held while a batch is checked, placed and applied: the order of offsets
	checkpointing gate // held while a checkpoint is written or the log trimmed

	// guarded by checkpointing
	checkpointed          int64 // log offset of the last checkpoint
	checkpointedCleanings int   // that are in it
	metaBytes             int64 // size of the meta stream

	mu            sync.Mutex
	state         *state            // guarded by mu; written only with appends held
	moving        chan struct{}     // guarded by mu; set once it is closed to be led by another node, closed when it is known who leads
	closed        error             // guarded by mu; why nothing is accepted
	highWatermark int64             // guarded by mu
	pending       []pendingAppend   // guarded by mu; not durable, in order
	decided       []decided         // guarded by mu; transactions whose marker is not durable, by marker
	answering     bool              // guarded by mu; done of an earlier append is running
	subscribers   []chan<- struct{} // guarded by mu
	hold          holdState         // guarded by mu
	cleanings     int               // guarded by mu; passes of the cleaner that are noted in state
	due           bool              // guarded by mu; a checkpoint is asked for
	uncheckpoint  int64             // guarded by mu; bytes since the last checkpoint
}

// pendingAppend is an append that waits for its answer. A repeat of an earlier batch has
// none of its own to wait for: it is answered after the append before it.
type pendingAppend struct {
	end    int64 // offset after the batch
	repeat bool
	result AppendResult
	done   func(AppendResult, error)
}

// AppendResult tells where a batch is.
type AppendResult struct {
	BaseOffset     int64
	LogStartOffset int64
	LogAppendTime  int64 // ms; −1 if the records have their producer's time
}

// Offsets of a partition; each but LogStart is exclusive.
type Offsets struct {
	LogStart      int64
	HighWatermark int64 // end of what is durable and readable
	LastStable    int64 // end of what is decided by transactions
}

// gate is a mutex that can be waited for with a context.
type gate chan struct{}

func newGate() gate { return make(gate, 1) }

func (g gate) enter(ctx context.Context) error {
	select {
	case g <- struct{}{}:
		return nil
	default:
	}
	select {
	case g <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (g gate) leave() { <-g }

func newPartition(s *Set, t metadata.Topic, p metadata.Partition, meta, log *streamstore.Stream, cfg TopicConfig) *Partition {
	part := &Partition{
		topic: t.Name, topicID: t.ID, index: p.Index, epoch: p.LeaderEpoch, internal: t.Internal, set: s,
		slog: s.log.With("topic", t.Name, "partition", p.Index),
		meta: meta, log: log, appends: newGate(), checkpointing: newGate(),
	}
	part.config.Store(&cfg)
	return part
}

// String is "<topic>-<index>".
func (p *Partition) String() string { return fmt.Sprintf("%s-%d", p.topic, p.index) }

// Topic returns the name of the topic.
func (p *Partition) Topic() string { return p.topic }

// TopicID returns the id of this incarnation of the topic.
func (p *Partition) TopicID() uuid.UUID { return p.topicID }

// Index returns the number of the partition in its topic.
func (p *Partition) Index() int32 { return p.index }

// LeaderEpoch returns the epoch that this node leads the partition in.
func (p *Partition) LeaderEpoch() int32 { return p.epoch }

// Config returns the topic's configuration as it is now.
func (p *Partition) Config() TopicConfig { return *p.config.Load() }

func (p *Partition) now() int64 { return time.Now().UnixMilli() }

// recover reads the last checkpoint and replays the log behind it.
func (p *Partition) recover(ctx context.Context) error {
	s, err := p.readCheckpoint(ctx)
	if err != nil {
		return fmt.Errorf("recover %s: %w", p, err)
	}
	p.checkpointed = s.next
	start, end := p.log.StartOffset(), p.log.ConfirmOffset()
	now := p.now()
	var replayed int64
	for at := max(start, s.next); at < end; {
		batches, err := p.log.Fetch(ctx, at, end, 1<<20)
		if err != nil {
			return fmt.Errorf("recover %s: %w", p, streamError(err))
		}
		for _, b := range batches {
			if at = b.End(); at <= s.next {
				continue
			}
			batch := record.Batch(b.Payload)
			if len(batch) < record.HeaderSize || batch.BaseOffset() != b.BaseOffset || batch.Count() != b.Count {
				return fmt.Errorf("recover %s: %w at offset %d", p, ErrCorrupt, b.BaseOffset)
			}
			if err := s.apply(batch, now); err != nil {
				return fmt.Errorf("recover %s: %w", p, err)
			}
			replayed += int64(len(batch))
		}
	}
	s.next = end
	s.startEpoch(p.epoch, end)
	s.trim(start)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state, p.highWatermark, p.uncheckpoint = s, end, replayed
	return nil
}

// readCheckpoint returns the state of the last checkpoint, empty if there is none.
func (p *Partition) readCheckpoint(ctx context.Context) (*state, error) {
	for at := p.meta.ConfirmOffset() - 1; at >= p.meta.StartOffset(); at-- {
		batches, err := p.meta.Fetch(ctx, at, at+1, 1)
		if err != nil {
			return nil, streamError(err)
		}
		for _, b := range batches {
			s := newState(p.set.cfg.MaxProducers, p.set.cfg.MaxAborted)
			if err := parseCheckpoint(s, b.Payload); err != nil {
				return nil, fmt.Errorf("meta stream %d at offset %d: %w", p.meta.ID(), at, err)
			}
			// What a checkpoint knows must be in the log, or a producer's repeat of a lost
			// batch would be taken for one that is stored.
			if s.next > p.log.ConfirmOffset() && !invariant.Off("checkpoint-behind-log") {
				p.slog.Warn("checkpoint is ahead of the log, using the one before", "offset", s.next, "end", p.log.ConfirmOffset())
				continue
			}
			p.metaBytes = int64(len(b.Payload)) * (p.meta.ConfirmOffset() - p.meta.StartOffset())
			return s, nil
		}
	}
	return newState(p.set.cfg.MaxProducers, p.set.cfg.MaxAborted), nil
}

// checkpoint makes what is known of the log up to now durable in the meta stream, first
// waiting until that part of the log is. It does nothing if the last one is as good.
func (p *Partition) checkpoint(ctx context.Context) error {
	if err := p.checkpointing.enter(ctx); err != nil {
		return err
	}
	defer p.checkpointing.leave()
	return p.checkpointLocked(ctx)
}

func (p *Partition) checkpointLocked(ctx context.Context) error {
	if err := p.appends.enter(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	if p.closed != nil || p.state.next == p.checkpointed && p.cleanings == p.checkpointedCleanings {
		p.due = false
		p.mu.Unlock()
		p.appends.leave()
		return nil
	}
	p.state.expire(p.now() - p.set.cfg.ProducerExpiry.Milliseconds())
	next, cleanings := p.state.next, p.cleanings
	payload := appendCheckpoint(nil, p.state)
	p.due, p.uncheckpoint = false, 0
	p.mu.Unlock()
	p.appends.leave()

	if err := p.waitDurable(ctx, next); err != nil {
		return fmt.Errorf("checkpoint %s: %w", p, err)
	}
	durable := make(chan error, 1)
	if _, err := p.meta.Append(ctx, streamstore.RecordBatch{Count: 1, MaxTimestamp: -1, Payload: payload}, func(err error) { durable <- err }); err != nil {
		return fmt.Errorf("checkpoint %s: %w", p, streamError(err))
	}
	select {
	case err := <-durable:
		if err != nil {
			return fmt.Errorf("checkpoint %s: %w", p, streamError(err))
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	p.checkpointed, p.checkpointedCleanings = next, cleanings
	p.metaBytes += int64(len(payload))
	return p.trimMeta(ctx, int64(len(payload)))
}

const (
	maxMetaBytes       = 1 << 20
	maxMetaCheckpoints = 256
)

// trimMeta forgets all but the last two checkpoints now and then: a trim is a transaction.
func (p *Partition) trimMeta(ctx context.Context, last int64) error {
	end := p.meta.ConfirmOffset()
	if n := end - p.meta.StartOffset(); n <= 2 || n < maxMetaCheckpoints && p.metaBytes < max(maxMetaBytes, 8*last) {
		return nil
	}
	if err := p.meta.Trim(ctx, end-2); err != nil {
		return fmt.Errorf("trim checkpoints of %s: %w", p, streamError(err))
	}
	p.metaBytes = 2 * last
	return nil
}

// close refuses everything from now on, because of err.
func (p *Partition) close(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeLocked(err)
}

func (p *Partition) closeLocked(err error) {
	if p.closed == nil {
		p.closed = fmt.Errorf("%w: %s: %w", ErrNotLeader, p, err)
	}
	p.notifyLocked()
}

// Err returns why the partition accepts nothing any more; nil while it does.
func (p *Partition) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// Notify arranges a non-blocking send on ch whenever an offset moves or the partition
// closes, until stop.
func (p *Partition) Notify(ch chan<- struct{}) (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.subscribers = append(p.subscribers, ch)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if i := slices.Index(p.subscribers, ch); i >= 0 {
			p.subscribers = slices.Delete(p.subscribers, i, i+1)
		}
	}
}

func (p *Partition) notifyLocked() {
	for _, ch := range p.subscribers {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// waitDurable returns when the log is durable up to end.
func (p *Partition) waitDurable(ctx context.Context, end int64) error {
	ch := make(chan struct{}, 1)
	stop := p.Notify(ch)
	defer stop()
	for {
		p.mu.Lock()
		reached, closed := p.highWatermark >= end, p.closed
		p.mu.Unlock()
		if reached {
			return nil
		}
		if closed != nil {
			return closed
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Offsets returns the offsets of the partition.
func (p *Partition) Offsets() Offsets {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.offsetsLocked()
}

func (p *Partition) offsetsLocked() Offsets {
	return Offsets{LogStart: p.log.StartOffset(), HighWatermark: p.highWatermark, LastStable: p.lastStableLocked()}
}

// Size is about how many bytes the log holds.
func (p *Partition) Size() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.sizes.size()
}
