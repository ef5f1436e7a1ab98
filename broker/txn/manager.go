package txn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"github.com/tabletopic/tabletopic/internal/limitlog"
	"github.com/tabletopic/tabletopic/internal/shard"
	"github.com/tabletopic/tabletopic/internal/shards"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
	"github.com/tabletopic/tabletopic/streamstore"
)

// Topic is where transactions are kept, under the name that Kafka's tools know.
const Topic = "__transaction_state"

// ErrNotCoordinator says that the partition of the transactional id is not led here, or not ready.
var ErrNotCoordinator = shards.ErrNotCoordinator

// Peers reaches the other nodes of the cluster.
type Peers interface {
	// Enlist is [Manager.Enlist] at the node that coordinates the transactional id.
	Enlist(ctx context.Context, m metadata.Member, e Enlistment) (*kerr.Error, error)
	// AppendMarker is [Manager.AppendMarker] at the node that leads the partition.
	AppendMarker(ctx context.Context, m metadata.Member, id partition.ID, marker record.Marker, bumped bool) error
}

// Groups are the partitions whose markers also change what consumer groups have committed.
type Groups interface {
	AppendMarker(ctx context.Context, index int32, marker record.Marker, bumped bool) error
}

// A Manager runs the coordinators of the partitions of __transaction_state that this node leads.
// They run all the time, since a transaction whose time is up must end though nobody asks.
type Manager struct {
	cfg         Config
	set         *partition.Set
	groupsTopic string
	groups      Groups
	peers       Peers // nil if there are none
	log         *slog.Logger
	full        *limitlog.Logger
	shards      *shards.Shards[*State]

	cancel context.CancelFunc
	work   sync.WaitGroup
	watch  func()        // ends the watch of topics
	poke   chan struct{} // cap 1: partitions may have to be opened
}

// Open takes up the transactions of the partitions that this node leads. Markers of groupsTopic go
// to groups.
func Open(set *partition.Set, cfg Config, groupsTopic string, groups Groups, peers Peers, log *slog.Logger) *Manager {
	cfg.setDefaults()
	topic := metadata.NewTopic{Name: Topic, Partitions: cfg.Partitions, Config: map[string]string{
		"cleanup.policy": "compact", "max.message.bytes": strconv.Itoa(16 << 20),
	}}
	m := &Manager{cfg: cfg, set: set, groupsTopic: groupsTopic, groups: groups, peers: peers, log: log, poke: make(chan struct{}, 1),
		full: limitlog.New(log)}
	m.shards = shards.New(set, topic, m.newState, log)
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	m.watch = set.Watch(func(e partition.Event) {
		if e.Topic.Name == Topic {
			m.shards.EndMoved()
			m.wake()
		}
	})
	m.work.Go(func() { m.keep(ctx) })
	return m
}

// Collectors are the metrics of the transactional ids that this node coordinates.
func (m *Manager) Collectors() []prometheus.Collector {
	return m.shards.MemoryGauges("transactional_ids", "transactional ids with their transactions", (*State).memory)
}

// newState returns the state of a partition of the topic, as many as it has.
func (m *Manager) newState() *State {
	cfg := m.cfg
	if t, ok := m.set.Topic(Topic); ok {
		cfg.Partitions = len(t.Partitions)
	}
	return NewState(cfg)
}

func (m *Manager) wake() {
	select {
	case m.poke <- struct{}{}:
	default:
	}
}

// Close ends the coordinators; what they have decided goes on at the next start.
func (m *Manager) Close() {
	m.watch()
	m.cancel()
	m.shards.Close()
	m.work.Wait()
}

// reopenWait is the time between attempts to open partitions, and to write a marker.
const reopenWait = 500 * time.Millisecond

// keep has a sender run for every partition that this node leads, until ctx ends.
func (m *Manager) keep(ctx context.Context) {
	running := map[*shard.Shard[*State]]bool{}
	ended := make(chan *shard.Shard[*State], 64)
	var senders sync.WaitGroup
	defer senders.Wait()
	for {
		again := time.Hour
		for _, index := range slices.Sorted(maps.Keys(m.set.Led(Topic))) {
			s, p, err := m.shards.At(ctx, index)
			if err != nil {
				again = reopenWait
				continue
			}
			if !running[s] {
				running[s] = true
				senders.Go(func() {
					m.send(ctx, s, p)
					select {
					case ended <- s:
					case <-ctx.Done():
					}
				})
			}
		}
		timer := time.NewTimer(again)
		select {
		case <-ctx.Done():
		case <-m.poke:
		case s := <-ended:
			delete(running, s)
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// maxSending bounds the decisions that a partition's sender works on.
const maxSending = 256

// send writes the markers of what a partition decides, until its shard ends.
func (m *Manager) send(ctx context.Context, s *shard.Shard[*State], p *partition.Partition) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var work errgroup.Group
	work.SetLimit(maxSending)
	work.Go(func() error {
		select {
		case <-s.Done():
			cancel()
		case <-ctx.Done():
		}
		return nil
	})
	for {
		v, err := s.Do(ctx, func(s *State, _ time.Time, t shard.Ticket) shard.Step { return s.Await(t) })
		if err != nil {
			cancel()
			_ = work.Wait()
			return
		}
		for _, d := range v.([]Decision) {
			work.Go(func() error {
				m.carryOut(ctx, s, p, d)
				return nil
			})
		}
	}
}

// markersAtOnce bounds the markers of one decision that are on their way.
const markersAtOnce = 32

// carryOut writes the markers of a decision, and then says that it is complete. It gives up only
// with ctx: whoever leads the partition then does it again.
func (m *Manager) carryOut(ctx context.Context, s *shard.Shard[*State], p *partition.Partition, d Decision) {
	marker := record.Marker{ProducerID: d.ProducerID, ProducerEpoch: d.ProducerEpoch, CoordinatorEpoch: p.LeaderEpoch(), Commit: d.Commit}
	var work errgroup.Group
	work.SetLimit(markersAtOnce)
	for _, id := range d.Partitions {
		work.Go(func() error { return m.mark(ctx, id, marker, d) })
	}
	if work.Wait() != nil {
		return
	}
	_, err := s.Do(ctx, func(s *State, now time.Time, t shard.Ticket) shard.Step { return s.Complete(now, t, d) })
	if err != nil && ctx.Err() == nil {
		m.log.Warn("transaction is complete, and that could not be written", "transactional_id", d.TransactionalID, "err", err)
	}
}

// mark writes one marker, until it is there or ctx ends.
func (m *Manager) mark(ctx context.Context, id partition.ID, marker record.Marker, d Decision) error {
	for attempt := 1; ; attempt++ {
		err := m.markOnce(ctx, id, marker, d.Bumped)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, partition.ErrCoordinatorFenced), errors.Is(err, partition.ErrInvalidProducerEpoch):
			m.log.Warn("marker is out of date: a newer one was there", "transactional_id", d.TransactionalID, "topic", id.Topic, "partition", id.Index, "err", err)
			return nil
		case errors.Is(err, partition.ErrUnknownTopicOrPartition):
			m.log.Warn("partition of a transaction is deleted", "transactional_id", d.TransactionalID, "topic", id.Topic, "partition", id.Index)
			return nil
		}
		if attempt%20 == 1 {
			m.log.Warn("transaction waits for its marker", "transactional_id", d.TransactionalID, "topic", id.Topic, "partition", id.Index, "err", err)
		}
		timer := time.NewTimer(min(reopenWait, time.Duration(attempt)*10*time.Millisecond))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

// markPatience bounds an attempt to write a marker in another node.
const markPatience = 30 * time.Second

func (m *Manager) markOnce(ctx context.Context, id partition.ID, marker record.Marker, bumped bool) error {
	err := m.AppendMarker(ctx, id, marker, bumped)
	if errors.Is(err, partition.ErrUnknownTopicOrPartition) {
		// This node may not have seen yet that the topic was made.
		if err := m.set.Sync(ctx); err != nil {
			return err
		}
		err = m.AppendMarker(ctx, id, marker, bumped)
	}
	if !errors.Is(err, partition.ErrNotLeader) && !errors.Is(err, ErrNotCoordinator) {
		return err
	}
	leader, lerr := m.leader(ctx, id)
	if lerr != nil {
		return errors.Join(err, lerr)
	}
	ctx, cancel := context.WithTimeout(ctx, markPatience)
	defer cancel()
	return m.peers.AppendMarker(ctx, leader, id, marker, bumped)
}

// leader returns the other node that leads a partition.
func (m *Manager) leader(ctx context.Context, id partition.ID) (metadata.Member, error) {
	node, _, ok := m.set.Leader(ctx, id)
	if !ok || m.peers == nil || node == m.set.Node().ID {
		return metadata.Member{}, fmt.Errorf("%w: it is not known who leads %s", partition.ErrNotLeader, id)
	}
	return m.member(node)
}

func (m *Manager) member(node streamstore.NodeID) (metadata.Member, error) {
	for _, member := range m.set.Members() {
		if member.ID == node {
			return member.Member, nil
		}
	}
	return metadata.Member{}, fmt.Errorf("%w: node %d is not there", ErrNotCoordinator, node)
}

// AppendMarker ends the transaction of a producer in a partition that this node leads.
func (m *Manager) AppendMarker(ctx context.Context, id partition.ID, marker record.Marker, bumped bool) error {
	p, err := m.set.Partition(id.Topic, id.Index)
	if err != nil {
		return err
	}
	if id.Topic == m.groupsTopic {
		return m.groups.AppendMarker(ctx, id.Index, marker, bumped)
	}
	return p.AppendMarker(ctx, marker, bumped)
}

// Leader returns the node that coordinates a transactional id.
func (m *Manager) Leader(ctx context.Context, id string) (streamstore.NodeID, error) {
	_, node, err := m.shards.Find(ctx, id)
	return node, err
}

// do runs a handler on the shard of a transactional id.
func do[R any](ctx context.Context, m *Manager, id string, handle func(*State, time.Time, shard.Ticket) shard.Step) (R, error) {
	return shards.Do[R](ctx, m.shards, id, func(_ *partition.Partition, s *State, now time.Time, t shard.Ticket) shard.Step {
		before := s.refusals
		step := handle(s, now, t)
		if s.refusals > before {
			m.full.Warn("refused a producer: the memory for transactional ids is full; raise transactional-ids-memory-bytes, or let ids expire sooner (transactional-id-expiration)",
				"transactional_id", id, "bytes", s.bytes, "limit", s.cfg.MemoryBytes)
		}
		return step
	})
}

// settlePatience bounds how long a request waits for a decision to be complete: clients that are
// told to come again wait longer than most decisions take.
const settlePatience = time.Second

// settled runs a handler on the shard of a transactional id, again when a decision that was in its
// way is complete.
func (m *Manager) settled(ctx context.Context, id string, handle func(*State, time.Time, shard.Ticket) shard.Step) (Result, error) {
	r, err := do[Result](ctx, m, id, handle)
	if err != nil || r.Err != kerr.ConcurrentTransactions {
		return r, err
	}
	wait, cancel := context.WithTimeout(ctx, settlePatience)
	defer cancel()
	_, err = do[Result](wait, m, id, func(s *State, _ time.Time, t shard.Ticket) shard.Step { return s.Settle(t, id) })
	if err != nil {
		return r, nil
	}
	return do[Result](ctx, m, id, handle)
}

// Init is [State.Init].
func (m *Manager) Init(ctx context.Context, id string, timeout time.Duration, has Identity, fresh int64) (Result, error) {
	return m.settled(ctx, id, func(s *State, now time.Time, t shard.Ticket) shard.Step {
		return s.Init(now, t, id, timeout, has, fresh)
	})
}

// An Enlistment asks for partitions to be part of a transaction.
type Enlistment struct {
	TransactionalID string
	Producer        Identity
	Partitions      []partition.ID
	Verify          bool  // they must be part of it already
	Version         int16 // of the producer's protocol: 2 if its epoch goes up with each transaction
}

// Enlist makes partitions part of a transaction, or verifies that they are, at whatever node
// coordinates it. The first result is why the producer is refused.
func (m *Manager) Enlist(ctx context.Context, e Enlistment) (*kerr.Error, error) {
	_, node, err := m.shards.Find(ctx, e.TransactionalID)
	if err != nil {
		return nil, err
	}
	if node != m.set.Node().ID && m.peers != nil {
		member, err := m.member(node)
		if err != nil {
			return nil, err
		}
		return m.peers.Enlist(ctx, member, e)
	}
	return m.EnlistHere(ctx, e)
}

// EnlistHere is Enlist if this node coordinates the transaction; else it is ErrNotCoordinator.
func (m *Manager) EnlistHere(ctx context.Context, e Enlistment) (*kerr.Error, error) {
	r, err := m.settled(ctx, e.TransactionalID, func(s *State, now time.Time, t shard.Ticket) shard.Step {
		if e.Verify {
			return s.Verify(t, e.TransactionalID, e.Producer, e.Partitions)
		}
		return s.Add(now, t, e.TransactionalID, e.Producer, e.Partitions, e.Version)
	})
	return r.Err, err
}

// End is [State.End].
func (m *Manager) End(ctx context.Context, id string, p Identity, commit bool, version int16, fresh int64) (Result, error) {
	return m.settled(ctx, id, func(s *State, now time.Time, t shard.Ticket) shard.Step {
		return s.End(now, t, id, p, commit, version, fresh)
	})
}

// Describe returns one transactional id.
func (m *Manager) Describe(ctx context.Context, id string) (kmsg.DescribeTransactionsResponseTransactionState, error) {
	return do[kmsg.DescribeTransactionsResponseTransactionState](ctx, m, id, func(s *State, _ time.Time, t shard.Ticket) shard.Step {
		return s.Describe(t, id)
	})
}

// List returns the transactional ids of every partition led here that a filter lets pass.
func (m *Manager) List(ctx context.Context, f Filter) ([]kmsg.ListTransactionsResponseTransactionState, error) {
	all := []kmsg.ListTransactionsResponseTransactionState{}
	err := m.shards.Each(ctx, func(s *shard.Shard[*State]) error {
		v, err := s.Do(ctx, func(s *State, now time.Time, t shard.Ticket) shard.Step { return s.List(now, t, f) })
		if err == nil {
			all = append(all, v.([]kmsg.ListTransactionsResponseTransactionState)...)
		}
		return err
	})
	return all, err
}
