package broker

import (
	"context"
	"errors"
	"math"
	"sync"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/tabletopic/tabletopic/broker/group"
	"github.com/tabletopic/tabletopic/broker/share"
	"github.com/tabletopic/tabletopic/partition"
)

// shareSession is what a member of a share group fetches at this node (KIP-932): its requests name
// only what changes. What the member acquired is the session's, and available again when it ends.
//
// A session belongs to the connection that began it, and ends with it. A member that comes back on
// another connection begins anew, which ends the session that it had.
type shareSession struct {
	b     *Broker
	key   shareMemberKey
	conn  *conn
	owner share.Owner
	epoch int32 // that the next request must have; of the goroutine of conn

	mu         sync.Mutex
	closed     bool                                  // guarded by mu
	partitions map[sharePartitionKey]*sharePartition // guarded by mu
	order      []*sharePartition                     // guarded by mu; those that gave records last come last
}

type shareMemberKey struct{ group, member string }

type sharePartitionKey struct {
	topic uuid.UUID
	index int32
}

// sharePartition is a partition of a session.
type sharePartition struct {
	sharePartitionKey
	name     string
	fetching bool                 // else it was forgotten, and may still be acknowledged
	p        *partition.Partition // nil if err
	use      *share.Partition     // nil if err
	checked  bool                 // use is not older than the session
	err      error
}

// shareSessions are those of all connections.
type shareSessions struct {
	mu       sync.Mutex
	byMember map[shareMemberKey]*shareSession // guarded by mu; at most Config.MaxShareSessions
	last     share.Owner                      // guarded by mu
}

// enterShareSession finds out which session a request belongs to.
func (c *conn) enterShareSession(key shareMemberKey, epoch int32) (*shareSession, error) {
	if epoch == 0 {
		return c.beginShareSession(key)
	}
	s := c.shares[key]
	if s == nil || s.isClosed() {
		delete(c.shares, key)
		return nil, kerr.ShareSessionNotFound
	}
	if epoch == finalEpoch {
		return s, nil
	}
	if epoch != s.epoch {
		return nil, kerr.InvalidShareSessionEpoch
	}
	if s.epoch++; s.epoch == math.MaxInt32 {
		s.epoch = 1
	}
	return s, nil
}

func (c *conn) beginShareSession(key shareMemberKey) (*shareSession, error) {
	all := &c.b.shareSessions
	s := &shareSession{b: c.b, key: key, conn: c, epoch: 1, partitions: map[sharePartitionKey]*sharePartition{}}
	all.mu.Lock()
	old := all.byMember[key]
	if old == nil && len(all.byMember) >= c.b.cfg.MaxShareSessions {
		all.mu.Unlock()
		return nil, kerr.ShareSessionLimitReached
	}
	all.last++
	s.owner = all.last
	all.byMember[key] = s
	all.mu.Unlock()
	if old != nil {
		old.release()
	} else {
		c.b.m.shareSessions.Inc()
	}
	c.shares[key] = s
	return s, nil
}

// endShareSessions ends those of a connection.
func (c *conn) endShareSessions() {
	for _, s := range c.shares {
		s.end()
	}
}

// end ends the session: nobody finds it, and what was acquired is available again.
func (s *shareSession) end() {
	all := &s.b.shareSessions
	all.mu.Lock()
	if all.byMember[s.key] == s {
		delete(all.byMember, s.key)
		s.b.m.shareSessions.Dec()
	}
	all.mu.Unlock()
	if s.conn.shares[s.key] == s {
		delete(s.conn.shares, s.key)
	}
	s.release()
}

func (s *shareSession) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// release makes available what the session has acquired.
func (s *shareSession) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	for _, sp := range s.order {
		if sp.use != nil { // which stays: a request may be under way
			sp.use.Release(s.owner)
			sp.use.Leave()
		}
	}
	s.b.sessionRoom.Release(int64(len(s.order)))
	s.b.m.sessionPartitions.Sub(float64(len(s.order)))
}

// leave gives back the deliveries of a partition, for others. The caller holds the lock of the session.
func (sp *sharePartition) leave(owner share.Owner) {
	if sp.use != nil {
		sp.use.Release(owner)
		sp.use.Leave()
		sp.use, sp.checked = nil, false
	}
}

// find returns a partition of the session.
func (s *shareSession) find(key sharePartitionKey) *sharePartition {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	return s.partitions[key]
}

// add makes partitions part of what the session fetches. It reports whether there is room for them.
func (s *shareSession) add(key sharePartitionKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	if sp := s.partitions[key]; sp != nil {
		sp.fetching = true
		return true
	}
	if !s.b.sessionRoom.TryAcquire(1) {
		return false
	}
	s.b.m.sessionPartitions.Inc()
	sp := &sharePartition{sharePartitionKey: key, fetching: true}
	s.partitions[key] = sp
	s.order = append(s.order, sp)
	return true
}

// forget stops to fetch a partition. What was acquired of it may still be acknowledged.
func (s *shareSession) forget(key sharePartitionKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sp := s.partitions[key]; sp != nil {
		sp.fetching = false
	}
}

// last moves a partition behind the others.
func (s *shareSession) last(sp *sharePartition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.order {
		if s.order[i] == sp {
			s.order = append(append(s.order[:i:i], s.order[i+1:]...), sp)
			return
		}
	}
}

// prepare finds the partitions that are fetched, for the request of r: anew where they or their
// leaders have changed.
func (s *shareSession) prepare(ctx context.Context, r *request) []*sharePartition {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	cfg := s.b.groupConfig(s.key.group)
	var fetching []*sharePartition
	for _, sp := range s.order {
		if sp.fetching {
			sp.open(r, s, cfg)
			fetching = append(fetching, sp)
		}
	}
	s.mu.Unlock()
	for _, sp := range fetching {
		if sp.err != nil {
			continue
		}
		err := sp.use.Ready(ctx)
		if err == nil && !sp.checked {
			if err = sp.use.Check(ctx); err != nil {
				s.mu.Lock()
				sp.open(r, s, cfg)
				s.mu.Unlock()
				if err = sp.err; err == nil {
					err = sp.use.Ready(ctx)
				}
			}
			sp.checked = err == nil
		}
		sp.err = shareError(err)
	}
	return fetching
}

// open finds the partition and its deliveries, unless it has them. The caller holds the lock of s.
func (sp *sharePartition) open(r *request, s *shareSession, cfg groupConfig) {
	sp.err = nil
	topic, ok := s.b.set.TopicByID(sp.topic)
	switch {
	case !ok:
		sp.err = kerr.UnknownTopicID
	case !r.may(opRead, onTopic, topic.Name):
		sp.err = kerr.TopicAuthorizationFailed
	default:
		sp.name = topic.Name
		if sp.p == nil || sp.p.Err() != nil {
			sp.leave(s.owner)
			sp.p, sp.err = s.b.partition(topic.Name, sp.index, -1)
		}
	}
	if sp.err != nil {
		sp.leave(s.owner)
		sp.p = nil
		return
	}
	if sp.use != nil && sp.use.Err() != nil {
		sp.leave(s.owner)
	}
	if sp.use == nil {
		p := sp.p
		key := share.Key{Group: s.key.group, Topic: sp.topic, Index: sp.index}
		sp.use = s.b.shares.Use(key, p.LeaderEpoch(), cfg.limits(), func() (int64, error) { return cfg.begin(s.b.ctx, p) })
	}
}

// shareError chooses the Kafka code for what deliveries answered. Clients look for the leader of the
// partition and go on where that was not the coordinator, or the state was taken over.
func shareError(err error) error {
	switch {
	case errors.Is(err, share.ErrNotAcquired):
		return kerr.InvalidRecordState
	case errors.Is(err, share.ErrInvalidAck):
		return kerr.InvalidRequest
	case errors.Is(err, share.ErrClosed), errors.Is(err, group.ErrShareFenced), errors.Is(err, group.ErrNotCoordinator):
		return kerr.NotLeaderForPartition
	case errors.Is(err, group.ErrNoRoom):
		return kerr.PolicyViolation
	}
	return readError(err)
}
