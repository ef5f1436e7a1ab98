package group

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/internal/limitlog"
	"github.com/tabletopic/tabletopic/internal/shard"
	"github.com/tabletopic/tabletopic/internal/shards"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
	"github.com/tabletopic/tabletopic/streamstore"
)

// Topic is where groups are kept, under the name that Kafka's tools know.
const Topic = "__consumer_offsets"

// ErrNotCoordinator says that the group's partition is not led here, or not ready.
var ErrNotCoordinator = shards.ErrNotCoordinator

// A Manager runs the shards of the partitions of __consumer_offsets that this node leads.
type Manager struct {
	cfg    Config
	set    *partition.Set
	log    *slog.Logger
	peers  Peers // nil if there are none
	full   *limitlog.Logger
	shards *shards.Shards[*State]
	watch  func() // ends the watch of topics

	changes atomic.Uint64 // of topics so far

	mu     sync.Mutex
	topics *Topics // guarded by mu; as of Version changes
}

// Open starts without any shard; the topic is created when it is first needed.
func Open(set *partition.Set, cfg Config, peers Peers, log *slog.Logger) *Manager {
	cfg.setDefaults()
	topic := metadata.NewTopic{Name: Topic, Partitions: cfg.Partitions, Config: map[string]string{
		"cleanup.policy": "compact", "max.message.bytes": strconv.Itoa(16 << 20),
	}}
	m := &Manager{cfg: cfg, set: set, peers: peers, log: log, full: limitlog.New(log)}
	m.shards = shards.New(set, topic, m.newState, log)
	m.watch = set.Watch(func(e partition.Event) {
		m.changes.Add(1)
		switch {
		case e.Topic.Name == Topic:
			m.shards.EndMoved()
		case e.Kind == partition.TopicDeleted && !e.Topic.Internal:
			m.forgetTopic(e.Topic.Name, e.Topic.ID)
		}
	})
	return m
}

// newState returns the state of a partition of the topic, as many as it has.
func (m *Manager) newState() *State {
	cfg := m.cfg
	if t, ok := m.set.Topic(Topic); ok {
		cfg.Partitions = len(t.Partitions)
	}
	return NewState(cfg)
}

// Collectors are the metrics of the groups that this node coordinates.
func (m *Manager) Collectors() []prometheus.Collector {
	return m.shards.MemoryGauges("groups", "groups with their members, assignments and offsets", (*State).memory)
}

// Close ends all shards.
func (m *Manager) Close() {
	m.watch()
	m.shards.Close()
}

// Find returns the partition of __consumer_offsets that holds a group, and the node that
// coordinates it.
func (m *Manager) Find(ctx context.Context, group string) (partition.ID, streamstore.NodeID, error) {
	return m.shards.Find(ctx, group)
}

// do runs a handler on the shard of a group.
func do[R any](ctx context.Context, m *Manager, group string, handle func(*State, time.Time, shard.Ticket) shard.Step) (R, error) {
	return shards.Do[R](ctx, m.shards, group, func(_ *partition.Partition, s *State, now time.Time, t shard.Ticket) shard.Step {
		defer m.warnFull(s, s.refused, group)
		defer s.show()
		return handle(s, now, t)
	})
}

// warnFull writes that there was no room for something of a group, if there was none.
func (m *Manager) warnFull(s *State, before int, group string) {
	if s.refused > before {
		m.full.Warn("refused something of a group: the memory for groups is full; delete groups that nobody needs, or raise groups-memory-bytes",
			"group", group, "bytes", s.held(), "limit", s.cfg.MemoryBytes)
	}
}

// Join waits for the rebalance that the member takes part in.
func (m *Manager) Join(ctx context.Context, req *kmsg.JoinGroupRequest, client Client) (*kmsg.JoinGroupResponse, error) {
	id, topics := newMemberID(deref(req.InstanceID), client.ID), m.currentTopics()
	return do[*kmsg.JoinGroupResponse](ctx, m, req.Group, func(s *State, now time.Time, t shard.Ticket) shard.Step {
		return s.Join(now, t, req, client, id, topics)
	})
}

// newMemberID makes the id of a member of the classic protocol. As in Kafka it begins with a name by which people
// recognize the member, that of the instance or else of the client. A name that would make the id longer than a text
// may be, in the protocol and in the records of groups, is left out.
func newMemberID(instance, client string) string {
	name, id := cmp.Or(instance, client), uuid.NewString()
	if len(name)+1+len(id) > math.MaxInt16 && !invariant.Off("group-member-id-bounded") {
		return id
	}
	return name + "-" + id
}

// Sync waits for the leader's assignment.
func (m *Manager) Sync(ctx context.Context, req *kmsg.SyncGroupRequest) (*kmsg.SyncGroupResponse, error) {
	topics := m.currentTopics()
	return do[*kmsg.SyncGroupResponse](ctx, m, req.Group, func(s *State, now time.Time, t shard.Ticket) shard.Step {
		return s.Sync(now, t, req, topics)
	})
}

func (m *Manager) Heartbeat(ctx context.Context, req *kmsg.HeartbeatRequest) (*kmsg.HeartbeatResponse, error) {
	topics := m.currentTopics()
	return do[*kmsg.HeartbeatResponse](ctx, m, req.Group, func(s *State, now time.Time, t shard.Ticket) shard.Step {
		return s.Heartbeat(now, t, req, topics)
	})
}

func (m *Manager) Leave(ctx context.Context, req *kmsg.LeaveGroupRequest) (*kmsg.LeaveGroupResponse, error) {
	return do[*kmsg.LeaveGroupResponse](ctx, m, req.Group, func(s *State, now time.Time, t shard.Ticket) shard.Step {
		return s.Leave(now, t, req)
	})
}

// Commit returns once the offsets are durable.
func (m *Manager) Commit(ctx context.Context, req *kmsg.OffsetCommitRequest) (*kmsg.OffsetCommitResponse, error) {
	return do[*kmsg.OffsetCommitResponse](ctx, m, req.Group, func(s *State, now time.Time, t shard.Ticket) shard.Step {
		return s.Commit(now, t, req, m.exists)
	})
}

func (m *Manager) exists(topic string, partition int32) bool {
	t, ok := m.set.Topic(topic)
	return ok && partition >= 0 && int(partition) < len(t.Partitions)
}

// TxnCommit returns once the offsets are durable as part of the producer's transaction, of which
// the group's partition must be a part; v is of before its coordinator was asked for that.
func (m *Manager) TxnCommit(ctx context.Context, req *kmsg.TxnOffsetCommitRequest, v partition.Verification) (*kmsg.TxnOffsetCommitResponse, error) {
	type answered struct {
		resp *kmsg.TxnOffsetCommitResponse
		err  error
	}
	a, err := shards.Do[answered](ctx, m.shards, req.Group, func(p *partition.Partition, s *State, now time.Time, t shard.Ticket) shard.Step {
		if err := p.CheckTransaction(req.ProducerID, req.ProducerEpoch, v); err != nil {
			return answer(t, answered{nil, err})
		}
		defer m.warnFull(s, s.refused, req.Group)
		resp, records := s.TxnCommit(now, req, m.exists)
		step := answer(t, answered{resp, nil})
		step.Records = records
		return step
	})
	if err != nil {
		return nil, err
	}
	return a.resp, a.err
}

// AppendMarker ends the transaction of a producer in a partition of __consumer_offsets, as
// [partition.Partition.AppendMarker] does in others.
func (m *Manager) AppendMarker(ctx context.Context, index int32, marker record.Marker, bumped bool) error {
	type answered struct{ err error }
	a, err := shards.DoAt[answered](ctx, m.shards, index, func(p *partition.Partition, _ *State, now time.Time, t shard.Ticket) shard.Step {
		if err := p.CheckMarker(marker, bumped); err != nil {
			return answer(t, answered{err})
		}
		step := answer(t, answered{})
		step.Records = []shard.Record{{Record: record.Record{Timestamp: now.UnixMilli()}, Marker: &marker}}
		return step
	})
	if err != nil {
		return err
	}
	return a.err
}

// Fetch returns the offsets of one group; nil topics means all. member and epoch are those of
// a member of the consumer protocol, "" and -1 of anybody else. Offsets that a transaction may
// still change are not stable: with requireStable they are UNSTABLE_OFFSET_COMMIT.
func (m *Manager) Fetch(ctx context.Context, group, member string, epoch int32, topics []kmsg.OffsetFetchRequestGroupTopic, requireStable bool) (kmsg.OffsetFetchResponseGroup, error) {
	return do[kmsg.OffsetFetchResponseGroup](ctx, m, group, func(s *State, _ time.Time, t shard.Ticket) shard.Step {
		return s.Fetch(t, group, member, epoch, topics, requireStable)
	})
}

// ConsumerHeartbeat handles a member of the consumer protocol.
func (m *Manager) ConsumerHeartbeat(ctx context.Context, req *kmsg.ConsumerGroupHeartbeatRequest, timeouts Timeouts, client Client) (*kmsg.ConsumerGroupHeartbeatResponse, error) {
	id, topics := uuid.NewString(), m.currentTopics()
	return do[*kmsg.ConsumerGroupHeartbeatResponse](ctx, m, req.Group, func(s *State, now time.Time, t shard.Ticket) shard.Step {
		return s.ConsumerHeartbeat(now, t, req, timeouts, client, id, topics)
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
			byName[t.Name] = TopicInfo{ID: t.ID, Partitions: len(t.Partitions)}
		}
		m.topics = NewTopics(version, byName)
	}
	return m.topics
}

// Config returns what holds for groups without settings of their own, and the bounds of these.
func (m *Manager) Config() Config { return m.cfg }

// ShareHeartbeat handles a member of a share group.
func (m *Manager) ShareHeartbeat(ctx context.Context, req *kmsg.ShareGroupHeartbeatRequest, timeouts Timeouts, client Client) (*kmsg.ShareGroupHeartbeatResponse, error) {
	topics := m.currentTopics()
	return do[*kmsg.ShareGroupHeartbeatResponse](ctx, m, req.GroupID, func(s *State, now time.Time, t shard.Ticket) shard.Step {
		return s.ShareHeartbeat(now, t, req, timeouts, client, topics)
	})
}

func (m *Manager) DescribeShare(ctx context.Context, group string) (kmsg.ShareGroupDescribeResponseGroup, error) {
	topics := m.currentTopics()
	return do[kmsg.ShareGroupDescribeResponseGroup](ctx, m, group, func(s *State, _ time.Time, t shard.Ticket) shard.Step {
		return s.DescribeShare(t, group, topics)
	})
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
	err := m.shards.Each(ctx, func(s *shard.Shard[*State]) error {
		v, err := s.Do(ctx, func(s *State, _ time.Time, t shard.Ticket) shard.Step { return s.List(t, states, types) })
		if err == nil {
			all = append(all, v.([]kmsg.ListGroupsResponseGroup)...)
		}
		return err
	})
	return all, err
}

// forgetTopic drops what groups committed for a topic that is gone, and what was delivered of it.
func (m *Manager) forgetTopic(topic string, id uuid.UUID) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err := m.shards.Each(ctx, func(s *shard.Shard[*State]) error {
		_, err := s.Do(ctx, func(s *State, _ time.Time, t shard.Ticket) shard.Step { return s.ForgetTopic(t, topic, id) })
		return err
	})
	if err != nil {
		m.log.Warn("offsets of a deleted topic stay until they expire", "topic", topic, "err", err)
	}
}
