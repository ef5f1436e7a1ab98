package group

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/broker/share"
	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/internal/shard"
	"github.com/tabletopic/tabletopic/record"
)

// A shareGroup is a share group (KIP-932). Its members come and go as those of the consumer
// protocol do, but a partition may have several at a time, so nobody waits for anybody: a member has
// its target with the first heartbeat after it was made. Which records each of them has
// is known where the partition is led, by package share; of that, what must survive is kept here.
type shareGroup struct {
	epoch   int32
	hash    uint64 // of the topics that the target was made for, or the epoch
	members map[string]*shareMember
	states  map[partitionID]shareState

	// Not durable.
	target      map[string]partitionSet
	targetEpoch int32
	pace        pace
	seen        *Topics       // topics when hash was last looked at
	joined      int           // counts joins, for a stable order
	session     time.Duration // of the group, as last told; zero: the default

	// Sums, so that what the group takes in memory is known without looking at all of it.
	said   int // bytes, of members with their ids
	held   int // partitions that are assigned
	ranges int // of what is in flight, in states
}

// A shareMember is a member of it.
type shareMember struct {
	id    string
	order int
	shareSubscription
	shareCurrent
	expires time.Time // its session; zero right after a replay: counts from the first tick. Not durable
}

// shareSubscription is what a member says of itself.
type shareSubscription struct {
	rack       string
	clientID   string
	clientHost string
	topics     []string
}

// shareCurrent is what a member has.
type shareCurrent struct {
	epoch    int32
	previous int32
	assigned partitionSet
}

// shareState is what survives of the deliveries of a share-partition.
type shareState struct {
	stateEpoch  int32 // rises when the state is replaced from outside
	leaderEpoch int32 // the last in which the partition was used
	known       bool  // saved is something
	saved       share.Saved
}

// shareAssignor is what clients are told of how partitions are assigned.
const shareAssignor = "simple"

// becomeShare makes a group a share group, unless it is.
func (g *group) becomeShare() *shareGroup {
	if g.share == nil {
		g.share = &shareGroup{epoch: epochNew, members: map[string]*shareMember{}, states: map[partitionID]shareState{}}
		g.consumer, g.protocolType, g.phase, g.protocol, g.leader = nil, shareProtocol, empty, "", ""
	}
	return g.share
}

// shareProtocol is the protocol type of share groups.
const shareProtocol = "share"

func (c *shareGroup) member(id string) *shareMember {
	m := c.members[id]
	if m == nil {
		c.joined++
		m = &shareMember{id: id, order: c.joined}
		c.members[id] = m
		c.said += len(id)
	}
	return m
}

func (c *shareGroup) ordered() []*shareMember {
	return slices.SortedFunc(maps.Values(c.members), func(a, b *shareMember) int { return cmp.Compare(a.order, b.order) })
}

// phase is the state that ListGroups shows: nothing is ever under way.
func (c *shareGroup) phase() phase {
	if len(c.members) == 0 {
		return empty
	}
	return stable
}

// ShareHeartbeat handles ShareGroupHeartbeat: a member joins, leaves, changes its subscription, and
// learns what it may fetch.
func (s *State) ShareHeartbeat(now time.Time, t shard.Ticket, req *kmsg.ShareGroupHeartbeatRequest, timeouts Timeouts, client Client, topics *Topics) shard.Step {
	resp := req.ResponseKind().(*kmsg.ShareGroupHeartbeatResponse)
	var step shard.Step
	if err := s.shareHeartbeat(now, req, resp, timeouts, client, topics, &step); err != nil {
		resp = req.ResponseKind().(*kmsg.ShareGroupHeartbeatResponse)
		resp.ErrorCode, resp.ErrorMessage = err.code.Code, &err.text
	}
	step.Answers = append(step.Answers, shard.Answer{To: t, Value: resp})
	return step
}

func (s *State) shareHeartbeat(now time.Time, req *kmsg.ShareGroupHeartbeatRequest, resp *kmsg.ShareGroupHeartbeatResponse, timeouts Timeouts, client Client, topics *Topics, step *shard.Step) *refusal {
	switch {
	case req.GroupID == "":
		return refuse(kerr.InvalidRequest, "the group id is empty")
	case req.MemberID == "":
		return refuse(kerr.InvalidRequest, "the member id is empty")
	case req.RackID != nil && *req.RackID == "":
		return refuse(kerr.InvalidRequest, "the rack id is empty")
	case req.MemberEpoch < epochLeave:
		return refuse(kerr.InvalidRequest, "member epoch %d", req.MemberEpoch)
	case req.MemberEpoch == epochJoin && len(req.SubscribedTopicNames) == 0:
		return refuse(kerr.InvalidRequest, "a member that joins says what it subscribes to")
	}
	g, err := s.shareGroup(req.GroupID, req.MemberEpoch == epochJoin)
	if err != nil {
		return err
	}
	c := g.share
	if req.MemberEpoch == epochLeave {
		m := c.members[req.MemberID]
		if m == nil {
			return refuse(kerr.UnknownMemberID, "member %q is not in group %q", req.MemberID, g.id)
		}
		s.removeShare(g, m, now, step)
		resp.MemberID, resp.MemberEpoch = &m.id, epochLeave
		return nil
	}
	if err := s.roomInShare(g, req, client); err != nil {
		s.forgetEmpty(g)
		return err
	}
	m, err := s.findShareMember(g, req, step)
	if err != nil {
		return err
	}
	s.subscribeShare(g, m, m.subscribed(req, client), topics, now, step)
	if c.session != timeouts.Session { // it was set anew, or is not known since a replay
		c.session = timeouts.Session
		for _, m := range c.members {
			if latest := now.Add(c.session); m.expires.After(latest) {
				m.expires = latest
				s.wakeBy(g, latest)
			}
		}
	}
	m.expires = now.Add(timeouts.Session)
	s.wakeBy(g, m.expires)
	c.pace.interval = timeouts.Assignment
	wait := s.retargetShare(g, topics, now, step)
	target := c.target[m.id]
	if c.targetEpoch != c.epoch { // what it does not subscribe to any more it gives up now
		target = target.of(m.existing(topics), topics)
	}
	moved := !maps.Equal(m.assigned, target)
	if m.epoch != c.targetEpoch || moved {
		next := &shareCurrent{epoch: c.targetEpoch, previous: m.epoch, assigned: target}
		if m.epoch == c.targetEpoch {
			next.previous = m.previous
		}
		s.write(step, shareCurrentRecord(g.id, m.id, next))
	}
	resp.MemberID, resp.MemberEpoch, resp.HeartbeatIntervalMillis = &m.id, m.epoch, timeouts.heartbeatMillis(wait)
	if moved || req.MemberEpoch == epochJoin || req.SubscribedTopicNames != nil || req.MemberEpoch != m.epoch {
		resp.Assignment = &kmsg.ShareGroupHeartbeatResponseAssignment{TopicPartitions: []kmsg.ShareGroupHeartbeatResponseAssignmentTopicPartition{}}
		for _, tp := range m.assigned.topics() {
			resp.Assignment.TopicPartitions = append(resp.Assignment.TopicPartitions, kmsg.ShareGroupHeartbeatResponseAssignmentTopicPartition{TopicID: tp.topic, Partitions: tp.partitions})
		}
	}
	return nil
}

// shareGroup finds the group. One of another protocol stays that as long as it exists.
func (s *State) shareGroup(id string, create bool) (*group, *refusal) {
	g := s.groups[id]
	switch {
	case g != nil && g.share != nil:
		return g, nil
	case g != nil:
		return nil, refuse(kerr.GroupIDNotFound, "group %q is no share group: choose another name, or delete it", id)
	case !create:
		return nil, refuse(kerr.GroupIDNotFound, "group %q does not exist", id)
	}
	g = s.group(id)
	g.becomeShare()
	return g, nil
}

// findShareMember finds who asks, or takes it in.
func (s *State) findShareMember(g *group, req *kmsg.ShareGroupHeartbeatRequest, step *shard.Step) (*shareMember, *refusal) {
	c := g.share
	m := c.members[req.MemberID]
	switch {
	case m == nil && req.MemberEpoch != epochJoin:
		return nil, refuse(kerr.UnknownMemberID, "member %q is not in group %q: join again", req.MemberID, g.id)
	case m == nil && len(c.members) >= s.cfg.ShareMaxSize:
		return nil, refuse(kerr.GroupMaxSizeReached, "group %q has %d members", g.id, len(c.members))
	case m == nil:
		s.write(step, shareMemberRecord(g.id, req.MemberID, &shareSubscription{}))
		return c.members[req.MemberID], nil
	case req.MemberEpoch == epochJoin, req.MemberEpoch == m.epoch, req.MemberEpoch == m.previous: // an answer was lost
		return m, nil
	}
	return nil, refuse(kerr.FencedMemberEpoch, "member %q is in epoch %d, not %d: join again", m.id, m.epoch, req.MemberEpoch)
}

// roomInShare is room for what a member says of itself.
func (s *State) roomInShare(g *group, req *kmsg.ShareGroupHeartbeatRequest, client Client) *refusal {
	if invariant.Off("share-subscriptions-bounded") {
		return nil
	}
	who := g.share.members[req.MemberID]
	next := cmp.Or(who, &shareMember{}).subscribed(req, client)
	before := 0
	if who != nil {
		before = len(who.id) + who.said()
	}
	return s.room(g, before, len(req.MemberID)+next.said(), g.share.said-before)
}

// said is how many bytes a member says of itself, beside its id.
func (s *shareSubscription) said() int {
	return len(s.clientID) + len(s.rack) + saidTopics(s.topics)
}

// subscribed is what a member says of itself with a heartbeat.
func (m *shareMember) subscribed(req *kmsg.ShareGroupHeartbeatRequest, client Client) shareSubscription {
	next := m.shareSubscription
	if req.RackID != nil {
		next.rack = *req.RackID
	}
	if req.SubscribedTopicNames != nil {
		next.topics = slices.Compact(slices.Sorted(slices.Values(req.SubscribedTopicNames)))
	}
	next.clientID, next.clientHost = client.ID, client.Host
	return next
}

// subscribeShare takes what the member says of itself, and raises the group's epoch if that or the
// topics call for another assignment.
func (s *State) subscribeShare(g *group, m *shareMember, next shareSubscription, topics *Topics, now time.Time, step *shard.Step) {
	c := g.share
	wants := !slices.Equal(next.topics, m.topics)
	if wants || next.rack != m.rack || next.clientID != m.clientID || next.clientHost != m.clientHost {
		s.write(step, shareMemberRecord(g.id, m.id, &next))
	}
	switch {
	case wants:
		s.write(step, shareGroupRecord(g.id, c.epoch+1, c.hash, now))
	case (c.target == nil || c.targetEpoch == c.epoch) && (c.seen == nil || c.seen.Version != topics.Version):
		c.seen = topics
		if hash := c.hashOf(topics); hash != c.hash {
			s.write(step, shareGroupRecord(g.id, c.epoch+1, hash, now))
		}
	}
}

// retargetShare makes the target assignment of the group's epoch, unless it is there. It returns how long that has to wait.
// One that a replay has forgotten is made at once.
func (s *State) retargetShare(g *group, topics *Topics, now time.Time, step *shard.Step) (wait time.Duration) {
	c := g.share
	if c.target != nil && c.targetEpoch == c.epoch {
		return 0
	}
	if wait := c.pace.wait(now); wait > 0 && c.target != nil {
		return wait
	}
	hash := c.hashOf(topics)
	if c.seen = topics; hash != c.hash {
		s.write(step, shareGroupRecord(g.id, c.epoch, hash, now))
	}
	c.target, c.targetEpoch, c.pace.last = c.assign(topics), c.epoch, now
	return 0
}

// existing returns the topics of a member that exist.
func (m *shareMember) existing(topics *Topics) []string {
	return topics.existingOf(m.topics)
}

// hashOf is a hash of the topics that the members subscribe to.
func (c *shareGroup) hashOf(topics *Topics) uint64 {
	names := map[string]bool{}
	for _, m := range c.members {
		for _, name := range m.existing(topics) {
			names[name] = true
		}
	}
	h := fnv.New64a()
	for _, name := range slices.Sorted(maps.Keys(names)) {
		info := topics.byName[name]
		h.Write(info.ID[:])
		h.Write(binary.BigEndian.AppendUint32(nil, uint32(info.Partitions)))
	}
	return h.Sum64()
}

// assign gives every partition to a member, as evenly as it can be; then who has none shares the
// partition, among those that it wants, that fewest members have.
func (c *shareGroup) assign(topics *Topics) map[string]partitionSet {
	before := map[string]partitionSet{}
	a := assignable{members: slices.Sorted(maps.Keys(c.members)), topics: map[string][]string{}, present: topics, target: before}
	for _, m := range c.members {
		a.topics[m.id], before[m.id] = m.existing(topics), m.assigned
	}
	target := a.solve(uniform)
	holders := map[partitionID]int{}
	for _, set := range target {
		for p := range set {
			holders[p]++
		}
	}
	for _, m := range a.members {
		if len(target[m]) > 0 {
			continue
		}
		var best *partitionID
		better := func(p partitionID) bool {
			if best == nil || holders[p] != holders[*best] {
				return best == nil || holders[p] < holders[*best]
			}
			_, had := before[m][p]
			return had
		}
		for _, topic := range a.topics[m] {
			for _, p := range a.partitions(topic) {
				if better(p) {
					best = &p
				}
			}
		}
		if best != nil {
			target[m][*best] = struct{}{}
			holders[*best]++
		}
	}
	return target
}

// removeShare drops a member; a heartbeat of another makes a new assignment.
func (s *State) removeShare(g *group, m *shareMember, now time.Time, step *shard.Step) {
	for _, kind := range []int16{shareCurrentKey, shareMemberKey} {
		s.write(step, shard.Record{Record: record.Record{Key: consumerKey(kind, g.id, m.id)}})
	}
	s.write(step, shareGroupRecord(g.id, g.share.epoch+1, g.share.hash, now))
}

// tickShare removes members whose session ended.
func (s *State) tickShare(g *group, now time.Time, step *shard.Step) {
	for _, m := range g.share.ordered() {
		if m.expires.IsZero() {
			m.expires = now.Add(cmp.Or(g.share.session, s.cfg.ShareSession))
		}
		if !now.Before(m.expires) {
			s.removeShare(g, m, now, step)
			continue
		}
		s.wakeBy(g, m.expires)
	}
}

// DescribeShare handles ShareGroupDescribe for one group.
func (s *State) DescribeShare(t shard.Ticket, id string, topics *Topics) shard.Step {
	resp := kmsg.NewShareGroupDescribeResponseGroup()
	resp.GroupID = id
	g := s.groups[id]
	if g == nil || g.share == nil {
		resp.ErrorCode, resp.ErrorMessage = kerr.GroupIDNotFound.Code, g.isNot(id, "a share group")
		return answer(t, resp)
	}
	c := g.share
	resp.GroupState, resp.GroupEpoch, resp.AssignmentEpoch, resp.Assignor = string(c.phase()), c.epoch, c.epoch, shareAssignor
	if c.target != nil && len(c.members) > 0 { // else nobody waits for an assignment
		resp.AssignmentEpoch = c.targetEpoch
	}
	resp.Members = []kmsg.ShareGroupDescribeResponseGroupMember{}
	for _, m := range c.ordered() {
		d := kmsg.NewShareGroupDescribeResponseGroupMember()
		d.MemberID, d.RackID, d.MemberEpoch, d.ClientID, d.ClientHost = m.id, nonEmpty(m.rack), m.epoch, m.clientID, m.clientHost
		d.SubscribedTopicNames = slices.Clone(m.topics)
		d.Assignment.TopicPartitions = []kmsg.ShareGroupDescribeResponseGroupMemberAssignmentTopicPartition{}
		for _, tp := range topics.describe(m.assigned) {
			d.Assignment.TopicPartitions = append(d.Assignment.TopicPartitions, kmsg.ShareGroupDescribeResponseGroupMemberAssignmentTopicPartition{TopicID: tp.TopicID, Topic: tp.Topic, Partitions: tp.Partitions})
		}
		resp.Members = append(resp.Members, d)
	}
	return answer(t, resp)
}
