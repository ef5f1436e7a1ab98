package group

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/tabletopic/tabletopic/broker/share"
	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/internal/shard"
	"github.com/tabletopic/tabletopic/metadata"
)

// ErrShareFenced says that the share-partition is used by a later leader of its partition, that its
// state was replaced or deleted, or that its group is not there.
var ErrShareFenced = errors.New("state of the share-partition is not this leader's")

// Peers reaches the other nodes of the cluster: a partition need not be led by the coordinator of
// a group that has it.
type Peers interface {
	// LoadShare is [Manager.Load] at the node that coordinates the group.
	LoadShare(ctx context.Context, m metadata.Member, k share.Key, leaderEpoch int32) (share.Loaded, error)
	// SaveShare is [Manager.Save] there.
	SaveShare(ctx context.Context, m metadata.Member, k share.Key, stateEpoch, leaderEpoch int32, saved share.Saved) error
}

// Load implements [share.Store].
func (m *Manager) Load(ctx context.Context, k share.Key, leaderEpoch int32) (share.Loaded, error) {
	at, here, err := m.coordinator(ctx, k.Group)
	if err != nil {
		return share.Loaded{}, err
	}
	if !here {
		return m.peers.LoadShare(ctx, at, k, leaderEpoch)
	}
	return m.LoadHere(ctx, k, leaderEpoch)
}

// Save implements [share.Store].
func (m *Manager) Save(ctx context.Context, k share.Key, stateEpoch, leaderEpoch int32, saved share.Saved) error {
	at, here, err := m.coordinator(ctx, k.Group)
	if err != nil {
		return err
	}
	if !here {
		return m.peers.SaveShare(ctx, at, k, stateEpoch, leaderEpoch, saved)
	}
	return m.SaveHere(ctx, k, stateEpoch, leaderEpoch, saved)
}

// coordinator returns the other node that coordinates a group, or here.
func (m *Manager) coordinator(ctx context.Context, group string) (at metadata.Member, here bool, err error) {
	_, node, err := m.Find(ctx, group)
	if err != nil || m.peers == nil || node == m.set.Node().ID {
		return at, true, err
	}
	for _, at := range m.set.Members() {
		if at.ID == node && at.Alive {
			return at.Member, false, nil
		}
	}
	return at, false, fmt.Errorf("%w: node %d, which coordinates group %q, is not alive", ErrNotCoordinator, node, group)
}

// LoadHere is Load at the coordinator of the group.
func (m *Manager) LoadHere(ctx context.Context, k share.Key, leaderEpoch int32) (share.Loaded, error) {
	type answered struct {
		share.Loaded
		err error
	}
	a, err := do[answered](ctx, m, k.Group, func(s *State, now time.Time, t shard.Ticket) shard.Step {
		loaded, records, err := s.LoadShare(now, k, leaderEpoch)
		step := answer(t, answered{loaded, err})
		step.Records = records
		return step
	})
	if err != nil {
		return share.Loaded{}, err
	}
	return a.Loaded, a.err
}

// SaveHere is Save at the coordinator of the group.
func (m *Manager) SaveHere(ctx context.Context, k share.Key, stateEpoch, leaderEpoch int32, saved share.Saved) error {
	type answered struct{ err error }
	a, err := do[answered](ctx, m, k.Group, func(s *State, _ time.Time, t shard.Ticket) shard.Step {
		records, err := s.SaveShare(k, stateEpoch, leaderEpoch, saved)
		step := answer(t, answered{err})
		step.Records = records
		return step
	})
	if err != nil {
		return err
	}
	return a.err
}

// LoadShare returns what was delivered of a share-partition, for a leader of the partition, and
// fences those before it.
func (s *State) LoadShare(now time.Time, k share.Key, leaderEpoch int32) (share.Loaded, []shard.Record, error) {
	g := s.groups[k.Group]
	if g == nil || g.share == nil {
		return share.Loaded{}, nil, fmt.Errorf("%w: there is no share group %q", ErrShareFenced, k.Group)
	}
	p := partitionID{k.Topic, k.Index}
	st, known := g.share.states[p]
	if known && leaderEpoch < st.leaderEpoch && !invariant.Off("share-leader-epoch") {
		return share.Loaded{}, nil, fmt.Errorf("%w: %s was led in epoch %d, and this is %d", ErrShareFenced, k, st.leaderEpoch, leaderEpoch)
	}
	if free := s.free(g); !known && !s.takes(&free, deliveredBytes) {
		return share.Loaded{}, nil, fmt.Errorf("deliveries of %s: %w", k, ErrNoRoom)
	}
	var records []shard.Record
	if !known && !invariant.Off("share-new-epoch") {
		st.stateEpoch = newStateEpoch(now)
	}
	if !known || st.leaderEpoch != leaderEpoch {
		st.leaderEpoch = leaderEpoch
		records = append(records, shareStateRecord(k.Group, p, &st))
	}
	return share.Loaded{Saved: st.saved, Found: st.known, StateEpoch: st.stateEpoch}, records, nil
}

// newStateEpoch is the epoch of a state of which nothing is known: it is not that of one which was
// deleted, alone or with its group, while somebody who had loaded it has something to save.
func newStateEpoch(now time.Time) int32 { return int32(now.UnixMilli() & math.MaxInt32) }

// SaveShare replaces what was delivered of a share-partition, by who has loaded it.
func (s *State) SaveShare(k share.Key, stateEpoch, leaderEpoch int32, saved share.Saved) ([]shard.Record, error) {
	g := s.groups[k.Group]
	if g == nil || g.share == nil {
		return nil, fmt.Errorf("%w: there is no share group %q", ErrShareFenced, k.Group)
	}
	p := partitionID{k.Topic, k.Index}
	st, known := g.share.states[p]
	switch {
	case !known:
		return nil, fmt.Errorf("%w: %s was deleted", ErrShareFenced, k)
	case leaderEpoch != st.leaderEpoch && !invariant.Off("share-leader-epoch"):
		return nil, fmt.Errorf("%w: %s was loaded in epoch %d, and this is %d", ErrShareFenced, k, st.leaderEpoch, leaderEpoch)
	case stateEpoch != st.stateEpoch && !invariant.Off("share-state-epoch"):
		return nil, fmt.Errorf("%w: %s was replaced since it was loaded", ErrShareFenced, k)
	}
	st.known, st.saved = true, saved
	return []shard.Record{shareStateRecord(k.Group, p, &st)}, nil
}

// ShareOffset is how far a share group is in a partition.
type ShareOffset struct {
	Partition   int32
	Start       int64 // −1 if nothing was fetched yet
	LeaderEpoch int32
	Done        int64 // how many offsets behind Start are done
}

// ShareOffsets returns how far a share group is in the partitions of each topic that it has fetched.
func (m *Manager) ShareOffsets(ctx context.Context, group string) (map[uuid.UUID][]ShareOffset, error) {
	type answered struct {
		offsets map[uuid.UUID][]ShareOffset
		err     error
	}
	a, err := do[answered](ctx, m, group, func(s *State, _ time.Time, t shard.Ticket) shard.Step {
		offsets, err := s.shareOffsets(group)
		return answer(t, answered{offsets, err})
	})
	if err != nil {
		return nil, err
	}
	return a.offsets, a.err
}

func (s *State) shareOffsets(group string) (map[uuid.UUID][]ShareOffset, error) {
	g := s.groups[group]
	if g == nil || g.share == nil {
		return nil, kerr.GroupIDNotFound
	}
	out := map[uuid.UUID][]ShareOffset{}
	for _, p := range g.share.partitions() {
		st := g.share.states[p]
		o := ShareOffset{Partition: p.index, Start: -1, LeaderEpoch: st.leaderEpoch}
		if st.known {
			o.Start, o.Done = st.saved.Start, st.saved.Done()
		}
		out[p.topic] = append(out[p.topic], o)
	}
	return out, nil
}

// AlterShareOffsets makes a share group without members begin anew at an offset of each partition,
// and forget what was delivered of it. A group that is not there is made (KIP-932: where it begins is set
// before its first member joins).
func (m *Manager) AlterShareOffsets(ctx context.Context, group string, starts map[uuid.UUID]map[int32]int64) error {
	return m.changeShare(ctx, group, func(s *State, now time.Time) ([]shard.Record, error) { return s.alterShareOffsets(group, starts, now) })
}

func (s *State) alterShareOffsets(group string, starts map[uuid.UUID]map[int32]int64, now time.Time) ([]shard.Record, error) {
	var records []shard.Record
	c, err := s.vacantShare(group)
	if s.groups[group] == nil {
		c, err = &shareGroup{}, nil
		records = []shard.Record{shareGroupRecord(group, epochNew, 0, now)}
	}
	if err != nil {
		return nil, err
	}
	free := s.free(s.groups[group])
	if !s.takes(&free, c.growth(starts)) {
		return nil, ErrNoRoom
	}
	var states []shard.Record
	for topic, partitions := range starts {
		for index, start := range partitions {
			p := partitionID{topic, index}
			st, known := c.states[p]
			if !known {
				st.stateEpoch = newStateEpoch(now)
			}
			st.stateEpoch, st.known, st.saved = st.stateEpoch+1, true, share.Saved{Start: start}
			states = append(states, shareStateRecord(group, p, &st))
		}
	}
	slices.SortFunc(states, func(a, b shard.Record) int { return slices.Compare(a.Key, b.Key) })
	return append(records, states...), nil
}

// vacantShare finds a share group that has no members.
func (s *State) vacantShare(group string) (*shareGroup, error) {
	switch g := s.groups[group]; {
	case g == nil || g.share == nil:
		return nil, kerr.GroupIDNotFound
	case g.occupied():
		return nil, kerr.NonEmptyGroup
	default:
		return g.share, nil
	}
}

// growth is what the partitions take of which there is no state yet.
func (c *shareGroup) growth(starts map[uuid.UUID]map[int32]int64) (n int) {
	for topic, partitions := range starts {
		for index := range partitions {
			if _, known := c.states[partitionID{topic, index}]; !known {
				n += deliveredBytes
			}
		}
	}
	return n
}

// DeleteShareOffsets makes a share group without members forget topics, and returns those of which it knew something.
func (m *Manager) DeleteShareOffsets(ctx context.Context, group string, topics []uuid.UUID) (known map[uuid.UUID]bool, err error) {
	found := map[uuid.UUID]bool{}
	err = m.changeShare(ctx, group, func(s *State, _ time.Time) ([]shard.Record, error) {
		c, err := s.vacantShare(group)
		if err != nil {
			return nil, err
		}
		var records []shard.Record
		for _, p := range c.partitions() {
			if slices.Contains(topics, p.topic) {
				records = append(records, shareStateRecord(group, p, nil))
				found[p.topic] = true
			}
		}
		return records, nil
	})
	if err != nil {
		return nil, err // what was found may still be written
	}
	return found, nil
}

func (m *Manager) changeShare(ctx context.Context, group string, change func(*State, time.Time) ([]shard.Record, error)) error {
	type answered struct{ err error }
	a, err := do[answered](ctx, m, group, func(s *State, now time.Time, t shard.Ticket) shard.Step {
		records, err := change(s, now)
		step := answer(t, answered{err})
		step.Records = records
		return step
	})
	if err != nil {
		return err
	}
	return a.err
}
