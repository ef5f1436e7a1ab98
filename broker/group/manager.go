package group

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/internal/shard"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
	"github.com/tabletopic/tabletopic/streamstore"
)

// Topic is where groups are kept, under the name that Kafka's tools know.
const Topic = "__consumer_offsets"

// ErrNotCoordinator says that the group's partition is not led here, or not ready.
var ErrNotCoordinator = errors.New("not the coordinator of this group")

// A Manager runs the shards of the partitions of __consumer_offsets that this node leads.
// A shard is opened when one of its groups is first asked for.
type Manager struct {
	cfg   Config
	set   *partition.Set
	log   *slog.Logger
	watch func() // ends the watch of topics

	changes atomic.Uint64 // of topics so far

	mu     sync.Mutex
	topics *Topics         // guarded by mu; as of Version changes
	shards map[int32]*slot // guarded by mu
	closed bool            // guarded by mu
}

// A slot holds the shard of one partition; its lock is held while the shard opens.
type slot struct {
	mu        sync.Mutex
	shard     *shard.Shard[*State] // guarded by mu
	partition *partition.Partition // guarded by mu; that the shard is on
}

// end ends the shard, if there is one. The caller holds mu.
func (s *slot) end() {
	if s.shard != nil {
		s.shard.Close()
		s.shard = nil
	}
}

// Open starts without any shard; the topic is created when it is first needed.
func Open(set *partition.Set, cfg Config, log *slog.Logger) *Manager {
	cfg.setDefaults()
	m := &Manager{cfg: cfg, set: set, log: log, shards: map[int32]*slot{}}
	m.watch = set.Watch(func(e partition.Event) {
		m.changes.Add(1)
		switch {
		case e.Topic.Name == Topic:
			m.endMoved()
		case e.Kind == partition.TopicDeleted && !e.Topic.Internal:
			m.forgetTopic(e.Topic.Name)
		}
	})
	return m
}

// Close ends all shards.
func (m *Manager) Close() {
	m.watch()
	m.mu.Lock()
	m.closed = true
	slots := m.shards
	m.shards = map[int32]*slot{}
	m.mu.Unlock()
	for _, s := range slots {
		s.mu.Lock()
		s.end()
		s.mu.Unlock()
	}
}

// endMoved ends the shards of partitions that are not led here any more, so that members who
// wait for a rebalance look for their coordinator.
func (m *Manager) endMoved() {
	m.mu.Lock()
	slots := slices.Collect(maps.Values(m.shards))
	m.mu.Unlock()
	for _, s := range slots {
		s.mu.Lock()
		if s.shard != nil && s.partition.Err() != nil {
			s.end()
		}
		s.mu.Unlock()
	}
}

// PartitionOf is the partition of __consumer_offsets that holds a group: the Java hash of
// its id, which Kafka's tools compute too.
func PartitionOf(group string, partitions int) int32 {
	var h int32
	for _, c := range group { // UTF-16 units above the basic plane come as surrogates in Java
		if c > 0xffff {
			c -= 0x10000
			h = 31*h + 0xd800 + c>>10
			c = 0xdc00 + c&0x3ff
		}
		h = 31*h + c
	}
	return (h & 0x7fffffff) % int32(partitions)
}

// Leader returns the node that coordinates a group.
func (m *Manager) Leader(ctx context.Context, group string) (streamstore.NodeID, error) {
	t, err := m.ensure(ctx)
	if err != nil {
		return 0, err
	}
	return t.Partitions[PartitionOf(group, len(t.Partitions))].Leader, nil
}

// ensure creates __consumer_offsets if it is missing.
func (m *Manager) ensure(ctx context.Context) (metadata.Topic, error) {
	t, err := m.set.EnsureInternal(ctx, metadata.NewTopic{Name: Topic, Partitions: m.cfg.Partitions, Config: map[string]string{
		"cleanup.policy": "compact", "max.message.bytes": strconv.Itoa(16 << 20),
	}})
	if err != nil {
		return t, fmt.Errorf("create %s: %w", Topic, err)
	}
	return t, nil
}

func (m *Manager) shardOf(ctx context.Context, group string) (*shard.Shard[*State], *partition.Partition, error) {
	t, err := m.ensure(ctx)
	if err != nil {
		return nil, nil, err
	}
	return m.open(ctx, PartitionOf(group, len(t.Partitions)))
}

func (m *Manager) open(ctx context.Context, index int32) (*shard.Shard[*State], *partition.Partition, error) {
	m.mu.Lock()
	s := m.shards[index]
	if s == nil && !m.closed {
		s = &slot{}
		m.shards[index] = s
	}
	m.mu.Unlock()
	if s == nil {
		return nil, nil, ErrNotCoordinator
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := m.set.Partition(Topic, index)
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
	sh, err := shard.Open(ctx, partitionLog{p}, NewState(m.cfg), shard.Config{})
	if err != nil {
		m.log.Error("groups cannot be loaded", "topic", Topic, "partition", index, "err", err)
		return nil, nil, fmt.Errorf("%w: load %s-%d: %w", ErrNotCoordinator, Topic, index, err)
	}
	s.shard, s.partition = sh, p
	return sh, p, nil
}

// partitionLog is a partition as the log of a shard.
type partitionLog struct{ p *partition.Partition }

func (l partitionLog) Append(ctx context.Context, batch []byte, done func(int64, error)) error {
	return l.p.Append(ctx, batch, func(r partition.AppendResult, err error) { done(r.BaseOffset, err) })
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

// do runs a handler on the shard of a group.
func do[R any](ctx context.Context, m *Manager, group string, handle func(*State, time.Time, shard.Ticket) shard.Step) (R, error) {
	var zero R
	s, p, err := m.shardOf(ctx, group)
	if err != nil {
		return zero, err
	}
	v, err := s.Do(ctx, handle)
	if errors.Is(err, shard.ErrClosed) {
		return zero, fmt.Errorf("%w: %w", ErrNotCoordinator, err)
	}
	// An answer counts if the group was still led here when it was given.
	if closed := p.Err(); closed != nil && err == nil && !invariant.Off("group-led-here") {
		return zero, fmt.Errorf("%w: %w", ErrNotCoordinator, closed)
	}
	if err != nil {
		return zero, err
	}
	return v.(R), nil
}

// Join waits for the rebalance that the member takes part in.
func (m *Manager) Join(ctx context.Context, req *kmsg.JoinGroupRequest, client Client) (*kmsg.JoinGroupResponse, error) {
	id := client.ID + "-" + uuid.NewString()
	return do[*kmsg.JoinGroupResponse](ctx, m, req.Group, func(s *State, now time.Time, t shard.Ticket) shard.Step {
		return s.Join(now, t, req, client, id)
	})
}

// Sync waits for the leader's assignment.
func (m *Manager) Sync(ctx context.Context, req *kmsg.SyncGroupRequest) (*kmsg.SyncGroupResponse, error) {
	return do[*kmsg.SyncGroupResponse](ctx, m, req.Group, func(s *State, now time.Time, t shard.Ticket) shard.Step {
		return s.Sync(now, t, req)
	})
}

func (m *Manager) Heartbeat(ctx context.Context, req *kmsg.HeartbeatRequest) (*kmsg.HeartbeatResponse, error) {
	return do[*kmsg.HeartbeatResponse](ctx, m, req.Group, func(s *State, now time.Time, t shard.Ticket) shard.Step {
		return s.Heartbeat(now, t, req)
	})
}

func (m *Manager) Leave(ctx context.Context, req *kmsg.LeaveGroupRequest) (*kmsg.LeaveGroupResponse, error) {
	return do[*kmsg.LeaveGroupResponse](ctx, m, req.Group, func(s *State, now time.Time, t shard.Ticket) shard.Step {
		return s.Leave(now, t, req)
	})
}

// Commit returns once the offsets are durable.
func (m *Manager) Commit(ctx context.Context, req *kmsg.OffsetCommitRequest) (*kmsg.OffsetCommitResponse, error) {
	exists := func(topic string, partition int32) bool {
		t, ok := m.set.Topic(topic)
		return ok && partition >= 0 && int(partition) < len(t.Partitions)
	}
	return do[*kmsg.OffsetCommitResponse](ctx, m, req.Group, func(s *State, now time.Time, t shard.Ticket) shard.Step {
		return s.Commit(now, t, req, exists)
	})
}

// Fetch returns the offsets of one group; nil topics means all. member and epoch are those of
// a member of the consumer protocol, "" and -1 of anybody else.
func (m *Manager) Fetch(ctx context.Context, group, member string, epoch int32, topics []kmsg.OffsetFetchRequestGroupTopic) (kmsg.OffsetFetchResponseGroup, error) {
	return do[kmsg.OffsetFetchResponseGroup](ctx, m, group, func(s *State, _ time.Time, t shard.Ticket) shard.Step {
		return s.Fetch(t, group, member, epoch, topics)
	})
}

func (m *Manager) ConsumerHeartbeat(ctx context.Context, req *kmsg.ConsumerGroupHeartbeatRequest, client Client) (*kmsg.ConsumerGroupHeartbeatResponse, error) {
	id, topics := uuid.NewString(), m.currentTopics()
	return do[*kmsg.ConsumerGroupHeartbeatResponse](ctx, m, req.Group, func(s *State, now time.Time, t shard.Ticket) shard.Step {
		return s.ConsumerHeartbeat(now, t, req, client, id, topics)
	})
}

func (m *Manager) DescribeConsumer(ctx context.Context, group string) (kmsg.ConsumerGroupDescribeResponseGroup, error) {
	topics := m.currentTopics()
	return do[kmsg.ConsumerGroupDescribeResponseGroup](ctx, m, group, func(s *State, _ time.Time, t shard.Ticket) shard.Step {
		return s.DescribeConsumer(t, group, topics)
	})
}

// currentTopics returns the topics as they are; they are listed again only after a change.
func (m *Manager) currentTopics() *Topics {
	version := m.changes.Load()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.topics == nil || m.topics.Version < version {
		byName := map[string]TopicInfo{}
		for _, t := range m.set.Topics() {
			byName[t.Name] = TopicInfo{ID: t.ID, Partitions: len(t.Partitions), Internal: t.Internal}
		}
		m.topics = NewTopics(version, byName)
	}
	return m.topics
}

func (m *Manager) DeleteOffsets(ctx context.Context, req *kmsg.OffsetDeleteRequest) (*kmsg.OffsetDeleteResponse, error) {
	return do[*kmsg.OffsetDeleteResponse](ctx, m, req.Group, func(s *State, _ time.Time, t shard.Ticket) shard.Step {
		return s.DeleteOffsets(t, req)
	})
}

func (m *Manager) Delete(ctx context.Context, group string) (kmsg.DeleteGroupsResponseGroup, error) {
	return do[kmsg.DeleteGroupsResponseGroup](ctx, m, group, func(s *State, _ time.Time, t shard.Ticket) shard.Step {
		return s.Delete(t, group)
	})
}

func (m *Manager) Describe(ctx context.Context, group string, version int16) (kmsg.DescribeGroupsResponseGroup, error) {
	return do[kmsg.DescribeGroupsResponseGroup](ctx, m, group, func(s *State, _ time.Time, t shard.Ticket) shard.Step {
		return s.Describe(t, group, version)
	})
}

// List returns the groups of every partition led here, of the given states and types if there are any.
func (m *Manager) List(ctx context.Context, states, types []string) ([]kmsg.ListGroupsResponseGroup, error) {
	all := []kmsg.ListGroupsResponseGroup{}
	err := m.each(ctx, func(s *shard.Shard[*State]) error {
		v, err := s.Do(ctx, func(s *State, _ time.Time, t shard.Ticket) shard.Step { return s.List(t, states, types) })
		if err == nil {
			all = append(all, v.([]kmsg.ListGroupsResponseGroup)...)
		}
		return err
	})
	return all, err
}

// each calls fn for the shard of every partition that this node leads, opening those that are not open yet.
func (m *Manager) each(ctx context.Context, fn func(*shard.Shard[*State]) error) error {
	for _, index := range slices.Sorted(maps.Keys(m.set.Led(Topic))) {
		s, _, err := m.open(ctx, index)
		if err != nil {
			return err
		}
		if err := fn(s); err != nil {
			return err
		}
	}
	return nil
}

// forgetTopic drops what groups committed for a topic that is gone.
func (m *Manager) forgetTopic(topic string) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err := m.each(ctx, func(s *shard.Shard[*State]) error {
		_, err := s.Do(ctx, func(s *State, _ time.Time, t shard.Ticket) shard.Step { return s.ForgetTopic(t, topic) })
		return err
	})
	if err != nil {
		m.log.Warn("offsets of a deleted topic stay until they expire", "topic", topic, "err", err)
	}
}
