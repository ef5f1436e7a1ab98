// Package shards runs the shards of an internal topic's partitions that this node leads: consumer
// groups and transactions are kept so. A shard is opened when something of it is first asked for,
// and ends when another node leads its partition.
package shards

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/internal/shard"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
	"github.com/tabletopic/tabletopic/streamstore"
)

// ErrNotCoordinator says that the partition of a key is not led here, or not ready.
var ErrNotCoordinator = errors.New("not the coordinator")

// Shards are the shards of one topic.
type Shards[S shard.State] struct {
	set   *partition.Set
	topic metadata.NewTopic
	state func() S
	log   *slog.Logger

	mu     sync.Mutex
	slots  map[int32]*slot[S] // guarded by mu
	closed bool               // guarded by mu
}

// A slot holds the shard of one partition; its lock is held while the shard opens.
type slot[S shard.State] struct {
	mu        sync.Mutex
	shard     *shard.Shard[S]      // guarded by mu
	partition *partition.Partition // guarded by mu; that the shard is on
	state     atomic.Pointer[S]    // of the shard; nil if there is none
}

// end ends the shard, if there is one. The caller holds mu.
func (s *slot[S]) end() {
	if s.shard != nil {
		s.shard.Close()
		s.shard = nil
		s.state.Store(nil)
	}
}

// New returns the shards of a topic, which is created when it is first needed; state makes the
// state of an empty partition.
func New[S shard.State](set *partition.Set, topic metadata.NewTopic, state func() S, log *slog.Logger) *Shards[S] {
	return &Shards[S]{set: set, topic: topic, state: state, log: log, slots: map[int32]*slot[S]{}}
}

// Close ends all shards; none opens after it.
func (m *Shards[S]) Close() {
	m.mu.Lock()
	m.closed = true
	slots := m.slots
	m.slots = map[int32]*slot[S]{}
	m.mu.Unlock()
	for _, s := range slots {
		s.mu.Lock()
		s.end()
		s.mu.Unlock()
	}
}

// EndMoved ends the shards of partitions that are not led here any more, so that those who wait
// look for their coordinator.
func (m *Shards[S]) EndMoved() {
	m.mu.Lock()
	slots := slices.Collect(maps.Values(m.slots))
	m.mu.Unlock()
	for _, s := range slots {
		s.mu.Lock()
		if s.shard != nil && s.partition.Err() != nil {
			s.end()
		}
		s.mu.Unlock()
	}
}

// Find returns the partition that holds a key, and the node that leads it.
func (m *Shards[S]) Find(ctx context.Context, key string) (partition.ID, streamstore.NodeID, error) {
	t, err := m.set.EnsureInternal(ctx, m.topic)
	if err != nil {
		return partition.ID{}, 0, fmt.Errorf("create %s: %w", m.topic.Name, err)
	}
	index := shard.PartitionOf(key, len(t.Partitions))
	return partition.ID{Topic: t.Name, Index: index}, t.Partitions[index].Leader, nil
}

// At returns the shard of a partition, and opens it if it is not.
func (m *Shards[S]) At(ctx context.Context, index int32) (*shard.Shard[S], *partition.Partition, error) {
	m.mu.Lock()
	s := m.slots[index]
	if s == nil && !m.closed {
		s = &slot[S]{}
		m.slots[index] = s
	}
	m.mu.Unlock()
	if s == nil {
		return nil, nil, ErrNotCoordinator
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := m.set.Partition(m.topic.Name, index)
	if err == nil {
		err = p.Err()
	}
	if err != nil {
		s.end()
		return nil, nil, fmt.Errorf("%w: %w", ErrNotCoordinator, err)
	}
	if s.shard != nil && s.partition == p {
		select {
		case <-s.shard.Done():
		default:
			return s.shard, p, nil
		}
	}
	s.end()
	state := m.state()
	sh, err := shard.Open(ctx, partitionLog{p}, state, shard.Config{})
	if err != nil {
		m.log.Error("state cannot be loaded", "topic", m.topic.Name, "partition", index, "err", err)
		return nil, nil, fmt.Errorf("%w: load %s-%d: %w", ErrNotCoordinator, m.topic.Name, index, err)
	}
	s.shard, s.partition = sh, p
	s.state.Store(&state)
	return sh, p, nil
}

// MemoryGauges show what the states of open shards take in memory, and how full the fullest is. memory is called while the
// goroutines of the shards are at work.
func (m *Shards[S]) MemoryGauges(name, of string, memory func(S) (bytes, bound int64)) []prometheus.Collector {
	look := func() (sum int64, fullest float64) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, slot := range m.slots {
			if s := slot.state.Load(); s != nil {
				bytes, bound := memory(*s)
				sum += bytes
				fullest = max(fullest, float64(bytes)/float64(bound))
			}
		}
		return sum, fullest
	}
	gauge := func(unit, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tabletopic_" + name + "_memory_" + unit, Help: help}, value)
	}
	return []prometheus.Collector{
		gauge("bytes", "What "+of+" take in memory, by estimate, of the partitions of "+m.topic.Name+" that the node has opened.", func() float64 {
			sum, _ := look()
			return float64(sum)
		}),
		gauge("used_ratio", "How full the fullest of these partitions is: new names are refused from 0.75 on, everything that grows at 1.", func() float64 {
			_, fullest := look()
			return fullest
		}),
	}
}

// Each calls fn for the shard of every partition that this node leads, opening those that are not open yet.
func (m *Shards[S]) Each(ctx context.Context, fn func(*shard.Shard[S]) error) error {
	for _, index := range slices.Sorted(maps.Keys(m.set.Led(m.topic.Name))) {
		s, _, err := m.At(ctx, index)
		if err != nil {
			return err
		}
		if err := fn(s); err != nil {
			return err
		}
	}
	return nil
}

// A Handler is what [shard.Shard.Do] runs, with the partition of the shard.
type Handler[S shard.State] func(p *partition.Partition, state S, now time.Time, t shard.Ticket) shard.Step

// Do runs a handler on the shard of a key.
func Do[R any, S shard.State](ctx context.Context, m *Shards[S], key string, handle Handler[S]) (R, error) {
	var zero R
	id, _, err := m.Find(ctx, key)
	if err != nil {
		return zero, err
	}
	return DoAt[R](ctx, m, id.Index, handle)
}

// DoAt runs a handler on the shard of a partition.
func DoAt[R any, S shard.State](ctx context.Context, m *Shards[S], index int32, handle Handler[S]) (R, error) {
	var zero R
	s, p, err := m.At(ctx, index)
	if err != nil {
		return zero, err
	}
	v, err := s.Do(ctx, func(state S, now time.Time, t shard.Ticket) shard.Step { return handle(p, state, now, t) })
	if errors.Is(err, shard.ErrClosed) {
		return zero, fmt.Errorf("%w: %w", ErrNotCoordinator, err)
	}
	// An answer counts if the partition was still led here when it was given.
	if closed := p.Err(); closed != nil && err == nil && !invariant.Off("group-led-here") {
		return zero, fmt.Errorf("%w: %w", ErrNotCoordinator, closed)
	}
	if err != nil {
		return zero, err
	}
	return v.(R), nil
}

// partitionLog is a partition as the log of a shard.
type partitionLog struct{ p *partition.Partition }

func (l partitionLog) Append(ctx context.Context, batch []byte, done func(int64, error)) error {
	return l.p.AppendOwn(ctx, batch, func(r partition.AppendResult, err error) { done(r.BaseOffset, err) })
}

func (l partitionLog) Read(ctx context.Context, from int64, maxBytes int) ([]record.Batch, error) {
	r, err := l.p.Read(ctx, from, maxBytes, partition.ReadUncommitted)
	return r.Batches, err
}

func (l partitionLog) Offsets() (start, end int64) {
	o := l.p.Offsets()
	return o.LogStart, o.HighWatermark
}

func (l partitionLog) Trim(ctx context.Context, before int64) error {
	_, err := l.p.DeleteRecords(ctx, before)
	return err
}
