package partition

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
)

// A Log is a partition to read from, wherever it is led.
type Log interface {
	Read(ctx context.Context, from int64, maxBytes int, isolation Isolation) (ReadResult, error)
	// Offsets are those of now, or of the last Read where another node leads the partition.
	Offsets() Offsets
}

// Log returns a partition to read from: this node's own, or the one that its leader serves.
func (s *Set) Log(ctx context.Context, id ID) (Log, error) {
	p, err := s.Partition(id.Topic, id.Index)
	if !errors.Is(err, ErrNotLeader) {
		return p, err
	}
	r := &remoteLog{set: s, id: id}
	_, err = r.Read(ctx, 0, 0, ReadCommitted)
	return r, err
}

// remoteLog is a partition that another node leads. It is used by one goroutine.
type remoteLog struct {
	set     *Set
	id      ID
	offsets Offsets
}

func (r *remoteLog) Offsets() Offsets { return r.offsets }

// Read asks whoever leads the partition now.
func (r *remoteLog) Read(ctx context.Context, from int64, maxBytes int, isolation Isolation) (ReadResult, error) {
	m, err := r.set.leader(r.id)
	if err != nil {
		return ReadResult{}, err
	}
	res, err := r.set.cfg.Peers.Read(ctx, m.Member, r.id, from, maxBytes, isolation)
	if err != nil {
		return res, fmt.Errorf("read %s at node %d: %w", r.id, m.ID, err)
	}
	r.offsets = Offsets{LogStart: res.LogStartOffset, HighWatermark: res.HighWatermark, LastStable: res.LastStableOffset}
	return res, nil
}

// leader returns the node that leads a partition in the place of this one.
func (s *Set) leader(id ID) (Member, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := s.topics[id.Topic]
	if t == nil || id.Index < 0 || int(id.Index) >= len(t.partitions) {
		return Member{}, fmt.Errorf("%w: %s", ErrUnknownTopicOrPartition, id)
	}
	leader := t.Topic.Partitions[id.Index].Leader
	i := slices.IndexFunc(s.members, func(m Member) bool { return m.ID == leader })
	if i < 0 || s.cfg.Peers == nil {
		return Member{}, fmt.Errorf("%w: %s is led by node %d, which is not there", ErrNotLeader, id, leader)
	}
	return s.members[i], nil
}

// AppendDeadLetters is [Partition.AppendDeadLetters] wherever the partition is led. A letter
// that arrives twice, because an answer was lost, is there once.
func (s *Set) AppendDeadLetters(ctx context.Context, id ID, sourceTopic uuid.UUID, sourcePartition int32, letters []DeadLetter) error {
	p, err := s.Partition(id.Topic, id.Index)
	if err == nil {
		return p.AppendDeadLetters(ctx, sourceTopic, sourcePartition, letters)
	}
	if !errors.Is(err, ErrNotLeader) {
		return err
	}
	m, err := s.leader(id)
	if err != nil {
		return err
	}
	if err := s.cfg.Peers.AppendDeadLetters(ctx, m.Member, id, sourceTopic, sourcePartition, letters); err != nil {
		return fmt.Errorf("dead letters to %s at node %d: %w", id, m.ID, err)
	}
	return nil
}
