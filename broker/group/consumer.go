package group

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/internal/shard"
	"github.com/tabletopic/tabletopic/record"
)

// A consumerGroup is a group of the consumer protocol (KIP-848). The coordinator assigns:
//
//   - the group epoch rises when members, subscriptions or topics change;
//   - an assignor then makes the target assignment, of that epoch, which moves as little as it can;
//   - with each of its heartbeats a member comes closer to its target: it first gives up what
//     is not its own any more and says that it has, then it gets what others have given up,
//     and its own epoch becomes that of the target.
//
// So nobody stops for anybody else, and no partition is held by two.
type consumerGroup struct {
	epoch       int32
	hash        uint64 // of the topics that the target was made for, or the epoch; 0 if what a member subscribes to was guessed
	targetEpoch int32
	pace        pace
	target      map[string]partitionSet
	members     map[string]*consumerMember
	instances   map[string]string      // instance id to member id
	owners      map[partitionID]string // who holds a partition, or still gives it up

	// Not durable.
	seen    *Topics       // topics when hash was last looked at
	joined  int           // counts joins, for a stable order
	session time.Duration // of members, as last told; zero: the default

	// Sums, so that what the group takes in memory is known without looking at all of it.
	said        int              // bytes, of members with their ids
	held        int              // partitions that are assigned or given up
	targeted    int              // partitions in target
	matchedBy   map[*matched]int // how many members share what their regular expression matches
	matchedSaid int              // bytes, of matchedBy
}

// A consumerMember is a member of it.
type consumerMember struct {
	id    string
	order int
	subscription
	current

	// Not durable.
	matched  *matched  // by its regular expression; nil after a replay until its next heartbeat
	due      time.Time // until when a classic member has to join or to sync; zero if it has not
	expires  time.Time // its session; zero right after a replay: counts from the first tick
	revokeBy time.Time // until when it has to give up; zero if it has nothing to
}

// A subscription is what a member says of itself.
type subscription struct {
	instance   string // static membership (KIP-345); empty if dynamic
	rack       string
	clientID   string
	clientHost string
	topics     []string
	regex      string
	rebalance  time.Duration
	assignor   string         // empty: the default
	classic    *classicMember // nil: of the consumer protocol
}

// matched are the topics that a regular expression matches, of those that the member may describe. Members
// for which it is the same share one.
type matched struct {
	names []string
	sum   uint64 // of names
	// What they depend on.
	regex     string
	version   uint64 // of topics
	rights    uint64
	principal string
}

// memberState is how far a member is on its way to its target.
type memberState int8

const (
	memberStable     memberState = 0 // has all that it can have in its epoch
	memberUnrevoked  memberState = 1 // is to give up partitions
	memberUnreleased memberState = 2 // waits for partitions that others hold
)

// current is what a member holds.
type current struct {
	epoch    int32
	previous int32
	state    memberState
	assigned partitionSet
	revoking partitionSet
}

// Timeouts are how long a member stays in its group after its last heartbeat, how often it is told
// to send one, and how long after an assignment the group has its next one (KIP-1263), at once if zero.
type Timeouts struct{ Session, Heartbeat, Assignment time.Duration }

// Epochs by which members join and leave.
const (
	epochJoin        = 0
	epochLeave       = -1
	epochLeaveStatic = -2 // the same instance will be back
)

// epochNew is that of a group in which nobody ever was, and of its assignment; the first member makes it 2, as in Kafka,
// where one that waits for the first assignment must be in another epoch than one that joins.
const epochNew = 1

// becomeConsumer makes a group one of the consumer protocol, unless it is.
func (g *group) becomeConsumer() *consumerGroup {
	if g.consumer == nil {
		g.consumer = &consumerGroup{epoch: epochNew, targetEpoch: epochNew, target: map[string]partitionSet{}, members: map[string]*consumerMember{}, instances: map[string]string{}, owners: map[partitionID]string{}, matchedBy: map[*matched]int{}}
		g.protocolType, g.phase, g.protocol, g.leader, g.deadline = consumerProtocol, empty, "", "", time.Time{}
		clear(g.members)
		g.says = census{}
		clear(g.static)
	}
	return g.consumer
}

// consumerProtocol is the protocol type of consumers, in both protocols.
const consumerProtocol = "consumer"

func (c *consumerGroup) member(id string) *consumerMember {
	m := c.members[id]
	if m == nil {
		c.joined++
		m = &consumerMember{id: id, order: c.joined}
		c.members[id] = m
		c.said += len(id)
	}
	return m
}

func (c *consumerGroup) ordered() []*consumerMember {
	return slices.SortedFunc(maps.Values(c.members), func(a, b *consumerMember) int { return cmp.Compare(a.order, b.order) })
}

// hold makes now what a member holds.
func (c *consumerGroup) hold(m *consumerMember, now current) {
	for _, old := range []partitionSet{m.assigned, m.revoking} {
		for p := range old {
			if c.owners[p] == m.id {
				delete(c.owners, p)
			}
		}
	}
	c.held += len(now.assigned) + len(now.revoking) - len(m.assigned) - len(m.revoking)
	m.current = now
	for _, held := range []partitionSet{now.assigned, now.revoking} {
		for p := range held {
			c.owners[p] = m.id
		}
	}
}

// write folds a record in and makes it durable with the step. The shard folds it in again,
// which changes nothing.
func (s *State) write(step *shard.Step, r shard.Record) {
	err := s.Replay(r)
	invariant.Check(err == nil, "replay own group record: %v", err)
	step.Records = append(step.Records, r)
}

// ConsumerHeartbeat handles ConsumerGroupHeartbeat: a member joins, leaves, changes its
// subscription, tells what it holds, and learns what it may hold. newID becomes the id of
// a member that has none.
func (s *State) ConsumerHeartbeat(now time.Time, t shard.Ticket, req *kmsg.ConsumerGroupHeartbeatRequest, timeouts Timeouts, client Client, newID string, topics *Topics) shard.Step {
	resp := req.ResponseKind().(*kmsg.ConsumerGroupHeartbeatResponse)
	var step shard.Step
	if err := s.heartbeat(now, req, resp, timeouts, client, newID, topics, &step); err != nil {
		fail := req.ResponseKind().(*kmsg.ConsumerGroupHeartbeatResponse)
		fail.ErrorCode, fail.ErrorMessage = err.code.Code, &err.text
		resp = fail
	}
	step.Answers = append(step.Answers, shard.Answer{To: t, Value: resp})
	return step
}

// refusal is an error for a client, with what it can do.
type refusal struct {
	code *kerr.Error
	text string
}

func refuse(code *kerr.Error, format string, args ...any) *refusal {
	return &refusal{code, fmt.Sprintf(format, args...)}
}

func (s *State) heartbeat(now time.Time, req *kmsg.ConsumerGroupHeartbeatRequest, resp *kmsg.ConsumerGroupHeartbeatResponse, timeouts Timeouts, client Client, newID string, topics *Topics, step *shard.Step) *refusal {
	if err := checkHeartbeat(req); err != nil {
		return err
	}
	g, waiting, err := s.consumerGroup(req.Group, req.MemberEpoch == epochJoin, topics, now, step)
	if err != nil {
		return err
	}
	c := g.consumer
	defer func() { // whatever becomes of the member that asks
		for _, m := range waiting {
			sub, _ := readSubscription(m.protocols)
			s.enter(g, c.members[m.id], m.subscription(&sub), &sub, m.joinResp, now, topics, step)
			step.Answers = append(step.Answers, shard.Answer{To: m.join, Value: m.joinResp})
		}
	}()
	if req.MemberEpoch < 0 {
		return s.leaveConsumer(g, req, resp, now, step)
	}
	found, err := s.admit(g, req, newID, &client, topics)
	if err != nil {
		s.forgetEmpty(g)
		return err
	}
	m, err := s.findMember(g, req, newID, step)
	if err != nil {
		return err
	}
	next := m.subscribed(req, &client)
	if m.matched != found {
		s.touch(g)
	}
	s.subscribe(g, m, next, c.matches(m, found), topics, now, step)
	c.session, c.pace.interval = timeouts.Session, timeouts.Assignment
	m.expires = now.Add(timeouts.Session)
	s.wakeBy(g, m.expires)
	wait := s.retarget(g, topics, now, step)
	before := m.assigned
	s.reconcile(g, m, heldBy(req), topics, now, step)
	resp.MemberID, resp.MemberEpoch, resp.HeartbeatIntervalMillis = &m.id, m.epoch, timeouts.heartbeatMillis(wait)
	whole := req.MemberEpoch == epochJoin || req.RebalanceTimeoutMillis != -1 && (req.SubscribedTopicNames != nil || req.SubscribedTopicRegex != nil) && req.Topics != nil
	if whole || !maps.Equal(before, m.assigned) {
		resp.Assignment = &kmsg.ConsumerGroupHeartbeatResponseAssignment{Topics: []kmsg.ConsumerGroupHeartbeatResponseAssignmentTopic{}}
		for _, tp := range m.assigned.topics() {
			resp.Assignment.Topics = append(resp.Assignment.Topics, kmsg.ConsumerGroupHeartbeatResponseAssignmentTopic{TopicID: tp.topic, Partitions: tp.partitions})
		}
	}
	return nil
}

func checkHeartbeat(req *kmsg.ConsumerGroupHeartbeatRequest) *refusal {
	bad := func(text string) *refusal { return refuse(kerr.InvalidRequest, "%s", text) }
	switch {
	case req.Group == "":
		return bad("the group id is empty")
	case req.MemberID == "" && (req.MemberEpoch != epochJoin || req.Version >= 1):
		return bad("the member id is empty")
	case req.InstanceID != nil && *req.InstanceID == "":
		return bad("the instance id is empty")
	case req.RackID != nil && *req.RackID == "":
		return bad("the rack id is empty")
	case req.MemberEpoch < epochLeaveStatic:
		return bad(fmt.Sprintf("member epoch %d", req.MemberEpoch))
	case req.MemberEpoch == epochLeaveStatic && req.InstanceID == nil:
		return bad("member epoch -2 needs an instance id")
	case req.ServerAssignor != nil && !slices.Contains(assignors, *req.ServerAssignor):
		return refuse(kerr.UnsupportedAssignor, "assignor %q: there are %s", *req.ServerAssignor, strings.Join(assignors, " and "))
	}
	if req.SubscribedTopicRegex != nil && *req.SubscribedTopicRegex != "" {
		if len(*req.SubscribedTopicRegex) > maxRegex {
			return refuse(kerr.InvalidRegularExpression, "a regular expression of %d bytes: at most %d", len(*req.SubscribedTopicRegex), maxRegex)
		}
		if _, err := compileRegex(*req.SubscribedTopicRegex); err != nil {
			return refuse(kerr.InvalidRegularExpression, "%v", err)
		}
	}
	if req.MemberEpoch == epochJoin {
		switch {
		case req.RebalanceTimeoutMillis < 0:
			return bad("a member that joins says its rebalance timeout")
		case req.SubscribedTopicNames == nil && req.SubscribedTopicRegex == nil:
			return bad("a member that joins says what it subscribes to")
		case len(req.Topics) > 0:
			return bad("a member that joins holds no partitions")
		}
	}
	return nil
}

// heldBy are the partitions that a member says that it holds; nil if it does not say it.
func heldBy(req *kmsg.ConsumerGroupHeartbeatRequest) partitionSet {
	if req.Topics == nil && req.MemberEpoch != epochJoin {
		return nil
	}
	set := partitionSet{}
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			set[partitionID{t.TopicID, p}] = struct{}{}
		}
	}
	return set
}

// consumerGroup finds the group. One without members may change its protocol, and one of classic
// consumers by its first member of the consumer protocol: then those are returned that wait for
// a rebalance.
func (s *State) consumerGroup(id string, create bool, topics *Topics, now time.Time, step *shard.Step) (*group, []*member, *refusal) {
	g := s.groups[id]
	switch {
	case g != nil && g.consumer != nil:
		return g, nil, nil
	case g != nil && g.share != nil:
		return nil, nil, refuse(kerr.GroupIDNotFound, "group %q is a share group: choose another name, or delete it", id)
	case !create && g == nil:
		return nil, nil, refuse(kerr.GroupIDNotFound, "group %q does not exist", id)
	case !create && len(g.members) > 0:
		return nil, nil, refuse(kerr.GroupIDNotFound, "group %q is of the classic protocol: join again", id)
	case !create:
		return nil, nil, refuse(kerr.UnknownMemberID, "group %q has no members", id)
	case g != nil && len(g.members)+len(g.invited) > 0:
		waiting, err := s.upgrade(g, topics, now, step)
		return g, waiting, err
	}
	g = s.group(id)
	g.becomeConsumer()
	return g, nil, nil
}

// admit refuses a member that says more of itself than there is room for. It returns what the member's
// regular expression matches.
func (s *State) admit(g *group, req *kmsg.ConsumerGroupHeartbeatRequest, newID string, client *Client, topics *Topics) (*matched, *refusal) {
	c := g.consumer
	id, instance := cmp.Or(req.MemberID, newID), deref(req.InstanceID)
	who := cmp.Or(c.members[id], c.members[c.instances[instance]])
	joins := consumerMember{subscription: subscription{instance: instance}}
	next := cmp.Or(who, &joins).subscribed(req, client)
	found := c.match(who, next.regex, client, topics)
	return found, s.roomInConsumer(g, who, id, &next, found)
}

// roomInConsumer is room for what a member, nil for a new one, says of itself. What its regular expression matches
// counts as if the member had named it, once for all members that share it.
func (s *State) roomInConsumer(g *group, who *consumerMember, id string, next *subscription, found *matched) *refusal {
	if invariant.Off("group-subscriptions-bounded") {
		return nil
	}
	before := 0
	if who != nil {
		before = len(who.id) + who.said() + who.matched.said()
	}
	c := g.consumer
	others := c.said + c.matchedSaid
	if c.matchedBy[found] > 0 {
		others -= found.said()
	}
	if who != nil {
		others -= len(who.id) + who.said()
		if who.matched != found && c.matchedBy[who.matched] == 1 {
			others -= who.matched.said()
		}
	}
	return s.room(g, before, len(id)+next.said()+found.said(), others)
}

// room refuses what a member says of itself, in bytes, if there is no room for it beside what the others say. One that
// says no more than before goes on.
func (s *State) room(g *group, before, now, others int) *refusal {
	if now <= before {
		return nil
	}
	if all := now + others; all > s.cfg.MaxBytes {
		return refuse(kerr.GroupMaxSizeReached, "the members of group %q would say %d bytes of themselves, at most %d are kept (group-max-bytes)", g.id, all, s.cfg.MaxBytes)
	}
	grows := now - before
	if before == 0 {
		grows += memberBytes
	}
	if free := s.free(g); !s.takes(&free, grows) {
		return refuse(kerr.GroupMaxSizeReached, "%v", ErrNoRoom)
	}
	return nil
}

// said is how many bytes a member says of itself, beside its id. Topics of a classic member are among what it says.
func (s *subscription) said() int {
	n := len(s.clientID) + len(s.instance) + len(s.rack) + len(s.regex)
	if s.classic != nil {
		return n + saidProtocols(s.classic.protocols)
	}
	return n + saidTopics(s.topics)
}

func (m *matched) said() int {
	if m == nil || invariant.Off("group-matched-bounded") {
		return 0
	}
	return saidTopics(m.names)
}

// saidTopics counts names of topics, each with what it takes in memory besides.
func saidTopics(names []string) int {
	const each = 16
	n := each * len(names)
	for _, name := range names {
		n += len(name)
	}
	return n
}

// findMember finds who asks, or takes it in.
func (s *State) findMember(g *group, req *kmsg.ConsumerGroupHeartbeatRequest, newID string, step *shard.Step) (*consumerMember, *refusal) {
	c, id := g.consumer, cmp.Or(req.MemberID, newID)
	if instance := deref(req.InstanceID); instance != "" {
		switch old := c.members[c.instances[instance]]; {
		case old == nil && req.MemberEpoch != epochJoin:
			return nil, refuse(kerr.UnknownMemberID, "instance %q is not in group %q", instance, g.id)
		case old == nil || old.id == id:
		case req.MemberEpoch != epochJoin:
			return nil, refuse(kerr.FencedInstanceID, "instance %q is member %q now", instance, old.id)
		case old.epoch != epochLeaveStatic && old.classic == nil: // a classic one does not say that it leaves
			return nil, refuse(kerr.UnreleasedInstanceID, "instance %q is in use by member %q until it leaves or its session ends", instance, old.id)
		default:
			return s.replaceInstance(g, old, id, step), nil
		}
	}
	m := c.members[id]
	if m == nil {
		switch {
		case req.MemberEpoch != epochJoin:
			return nil, refuse(kerr.UnknownMemberID, "member %q is not in group %q: join again", id, g.id)
		case len(c.members) >= s.cfg.MaxSize:
			return nil, refuse(kerr.GroupMaxSizeReached, "group %q has %d members", g.id, len(c.members))
		}
		s.write(step, consumerMemberRecord(g.id, id, &subscription{instance: deref(req.InstanceID)}))
		return c.members[id], nil
	}
	switch {
	case m.classic != nil && req.MemberEpoch != epochJoin:
		return nil, refuse(kerr.UnknownMemberID, "member %q is in group %q by the classic protocol: join again", id, g.id)
	case req.MemberEpoch == epochJoin, req.MemberEpoch == m.epoch:
	case req.MemberEpoch == m.previous && req.Topics != nil && subset(req.Topics, m.assigned): // an answer was lost
	default:
		return nil, refuse(kerr.FencedMemberEpoch, "member %q is in epoch %d, not %d: join again", id, m.epoch, req.MemberEpoch)
	}
	return m, nil
}

func subset(topics []kmsg.ConsumerGroupHeartbeatRequestTopic, of partitionSet) bool {
	for _, t := range topics {
		for _, p := range t.Partitions {
			if _, ok := of[partitionID{t.TopicID, p}]; !ok {
				return false
			}
		}
	}
	return true
}

// replaceInstance gives the place of an instance that left for a while to its new process.
func (s *State) replaceInstance(g *group, old *consumerMember, id string, step *shard.Step) *consumerMember {
	c := g.consumer
	sub, held, target, found := old.subscription, old.current, c.target[old.id], old.matched
	s.removeRecords(g, old, step)
	s.write(step, consumerMemberRecord(g.id, id, &sub))
	if target != nil {
		s.write(step, consumerTargetMemberRecord(g.id, id, target))
	}
	held.epoch, held.previous = epochJoin, epochJoin
	s.write(step, consumerCurrentRecord(g.id, id, &held))
	m := c.members[id]
	c.share(m, found)
	return m
}

// subscribed is what a member says of itself with a heartbeat.
func (m *consumerMember) subscribed(req *kmsg.ConsumerGroupHeartbeatRequest, client *Client) subscription {
	next := m.subscription
	next.classic = nil
	if req.RackID != nil {
		next.rack = *req.RackID
	}
	if req.RebalanceTimeoutMillis >= 0 {
		next.rebalance = millis(req.RebalanceTimeoutMillis)
	}
	if req.SubscribedTopicNames != nil {
		next.topics = slices.Compact(slices.Sorted(slices.Values(req.SubscribedTopicNames)))
	}
	if req.SubscribedTopicRegex != nil {
		next.regex = *req.SubscribedTopicRegex
	}
	if req.ServerAssignor != nil {
		next.assignor = *req.ServerAssignor
	}
	next.clientID, next.clientHost = client.ID, client.Host
	return next
}

// subscribe takes what the member says of itself, and raises the group's epoch if that or
// the topics call for another assignment, or its regular expression matches others.
func (s *State) subscribe(g *group, m *consumerMember, next subscription, matches bool, topics *Topics, now time.Time, step *shard.Step) {
	wants := matches || next.regex != m.regex || next.assignor != m.assignor || !slices.Equal(next.topics, m.topics)
	if wants || next.rack != m.rack || next.rebalance != m.rebalance || next.clientID != m.clientID || next.clientHost != m.clientHost || !next.classic.equal(m.classic) {
		s.write(step, consumerMemberRecord(g.id, m.id, &next))
	}
	c := g.consumer
	_, targeted := c.target[m.id]
	s.raise(g, wants || !targeted && c.epoch == c.targetEpoch, topics, now, step)
}

// raise raises the group's epoch, or only if the topics call for another assignment. Where one is to be made anyway, which
// they are is not looked at before.
func (s *State) raise(g *group, raise bool, topics *Topics, now time.Time, step *shard.Step) {
	c := g.consumer
	switch {
	case raise:
		s.write(step, consumerGroupRecord(g.id, c.epoch+1, c.hash, now))
	case c.epoch == c.targetEpoch && (c.seen == nil || c.seen.Version != topics.Version):
		c.seen = topics
		if hash := c.hashOf(topics); hash != c.hash && !c.guesses() {
			s.write(step, consumerGroupRecord(g.id, c.epoch+1, hash, now))
		}
	}
}

// match returns what the regular expression of a member matches, nil without one: what is known, of this member, nil for
// a new one, or of another, or else it looks anew.
func (c *consumerGroup) match(m *consumerMember, regex string, client *Client, topics *Topics) *matched {
	if regex == "" {
		return nil
	}
	next := matched{regex: regex, version: topics.Version, rights: client.Rights, principal: client.Principal}
	if m != nil && m.matched.dependsOn(&next) {
		return m.matched
	}
	for other := range c.matchedBy {
		if other.dependsOn(&next) {
			return other
		}
	}
	next.names = topics.matching(regex, client)
	h := fnv.New64a()
	for _, name := range next.names {
		h.Write(append([]byte(name), 0))
	}
	next.sum = h.Sum64()
	return &next
}

// dependsOn tells whether what is matched is the same as next would be.
func (m *matched) dependsOn(next *matched) bool {
	return m != nil && m.regex == next.regex && m.version == next.version && m.rights == next.rights && m.principal == next.principal
}

// matches notes what the member's regular expression matches, and tells whether it is something else than before.
// What a replay has forgotten is no change; once nothing is forgotten any more, the group looks whether it was assigned
// by what it guessed.
func (c *consumerGroup) matches(m *consumerMember, found *matched) (changed bool) {
	old := m.matched
	c.share(m, found)
	if old == nil && m.regex != "" && !c.guesses() {
		c.seen = nil
	}
	return old != nil && found != nil && old != found && !slices.Equal(old.names, found.names)
}

// share makes a member one of those that have something matched.
func (c *consumerGroup) share(m *consumerMember, found *matched) {
	if old := m.matched; old != nil {
		if c.matchedBy[old]--; c.matchedBy[old] == 0 {
			delete(c.matchedBy, old)
			c.matchedSaid -= old.said()
		}
	}
	if found != nil {
		if c.matchedBy[found]++; c.matchedBy[found] == 1 {
			c.matchedSaid += found.said()
		}
	}
	m.matched = found
}

// guesses tells whether there is a member of which a replay has forgotten what it subscribes to.
func (c *consumerGroup) guesses() bool {
	for _, m := range c.members {
		if m.regex != "" && m.matched == nil {
			return true
		}
	}
	return false
}

// subscribed returns the topics that a member subscribes to and that exist. Until the member's next
// heartbeat after a replay, a regular expression is taken to match what the member was assigned.
func (c *consumerGroup) subscribed(m *consumerMember, topics *Topics) []string {
	switch {
	case m.matched != nil && len(m.topics) == 0:
		return topics.existingOf(m.matched.names)
	case m.regex == "":
		return topics.existingOf(m.topics)
	}
	names := slices.Clone(m.topics)
	if m.matched != nil {
		names = append(names, m.matched.names...)
	} else {
		for p := range c.target[m.id] {
			names = append(names, topics.names[p.topic])
		}
	}
	return topics.existing(names...)
}

// hashOf is a hash of the topics that the members subscribe to, and of what regular expressions
// match of them, which may be something else for each member.
func (c *consumerGroup) hashOf(topics *Topics) uint64 {
	names := map[string]bool{}
	for _, m := range c.members {
		for _, name := range c.subscribed(m, topics) {
			names[name] = true
		}
	}
	h := fnv.New64a()
	for _, name := range slices.Sorted(maps.Keys(names)) {
		info := topics.byName[name]
		h.Write(info.ID[:])
		h.Write(binary.BigEndian.AppendUint32(nil, uint32(info.Partitions)))
	}
	var own []string
	for _, m := range c.members {
		if m.matched != nil {
			own = append(own, fmt.Sprintf("%q %x", cmp.Or(m.instance, m.id), m.matched.sum))
		}
	}
	slices.Sort(own)
	for _, s := range own {
		h.Write([]byte(s))
	}
	return h.Sum64()
}

// retarget makes the target assignment of the group's epoch, unless it is there. It returns how long that has to wait.
func (s *State) retarget(g *group, topics *Topics, now time.Time, step *shard.Step) (wait time.Duration) {
	c := g.consumer
	if c.epoch == c.targetEpoch {
		return 0
	}
	if wait := c.pace.wait(now); wait > 0 {
		return wait
	}
	hash := uint64(0)
	if !c.guesses() {
		hash = c.hashOf(topics)
	}
	if c.seen = topics; hash != c.hash {
		s.write(step, consumerGroupRecord(g.id, c.epoch, hash, now))
	}
	a := assignable{members: slices.Sorted(maps.Keys(c.members)), topics: map[string][]string{}, present: topics, target: c.target}
	for _, m := range c.members {
		a.topics[m.id] = c.subscribed(m, topics)
	}
	target := a.solve(c.assignor())
	for _, id := range a.members {
		if old, ok := c.target[id]; !ok || !maps.Equal(old, target[id]) {
			s.write(step, consumerTargetMemberRecord(g.id, id, target[id]))
		}
	}
	if c.guesses() {
		now = time.Time{} // the one that knows comes at once
	}
	s.write(step, consumerTargetRecord(g.id, c.epoch, now))
	return 0
}

// assignor is the one that most members ask for.
func (c *consumerGroup) assignor() string {
	votes := map[string]int{}
	for _, m := range c.members {
		if m.assignor != "" {
			votes[m.assignor]++
		}
	}
	best := uniform
	for _, name := range assignors {
		if votes[name] > votes[best] {
			best = name
		}
	}
	return best
}

// reconcile brings a member as close to its target as is possible now.
// owned is what it says that it holds, nil if it does not say it.
func (s *State) reconcile(g *group, m *consumerMember, owned partitionSet, topics *Topics, now time.Time, step *shard.Step) {
	c := g.consumer
	next, target := m.current, c.target[m.id]
	waits := c.epoch > c.targetEpoch
	if waits { // what it does not subscribe to any more it gives up now
		target = target.of(c.subscribed(m, topics), topics)
	}
	switch {
	case m.state == memberStable && m.epoch == c.targetEpoch && m.assigned != nil && (!waits || maps.Equal(m.assigned, target)):
		return
	case m.state == memberUnrevoked && (owned == nil || owned.intersects(m.revoking)):
		return // it still has what it is to give up
	}
	next.revoking = nil
	next = c.advance(m, next, target, owned)
	if next.epoch == m.epoch && next.state == m.state && maps.Equal(next.assigned, m.assigned) && maps.Equal(next.revoking, m.revoking) && m.assigned != nil {
		return
	}
	s.write(step, consumerCurrentRecord(g.id, m.id, &next))
	m.revokeBy = time.Time{}
	if next.state == memberUnrevoked {
		m.revokeBy = now.Add(m.rebalance)
		s.wakeBy(g, m.revokeBy)
	}
}

// of returns the partitions that are of some topics.
func (s partitionSet) of(names []string, topics *Topics) partitionSet {
	ids := make(map[uuid.UUID]bool, len(names))
	for _, name := range names {
		ids[topics.byName[name].ID] = true
	}
	out := partitionSet{}
	for p := range s {
		if ids[p.topic] {
			out[p] = struct{}{}
		}
	}
	return out
}

func (s partitionSet) intersects(with partitionSet) bool {
	for p := range s {
		if _, ok := with[p]; ok {
			return true
		}
	}
	return false
}

// advance returns what a member that holds only now.assigned may hold next, on its way to target. What a member says that
// it holds is all that it holds; a classic one says so when it joins, one of the consumer protocol need not say it.
func (c *consumerGroup) advance(m *consumerMember, now current, target, owned partitionSet) current {
	next := current{epoch: m.epoch, previous: m.epoch, assigned: partitionSet{}, revoking: partitionSet{}}
	for p := range now.assigned {
		_, holds := owned[p]
		if _, keep := target[p]; keep {
			next.assigned[p] = struct{}{}
		} else if (holds || m.classic == nil && owned == nil) && !invariant.Off("group-revoke-first") {
			next.revoking[p] = struct{}{}
		}
	}
	if len(next.revoking) > 0 {
		next.previous, next.state = m.previous, memberUnrevoked
		return next
	}
	next.epoch, next.state = c.targetEpoch, memberStable
	if next.epoch == m.epoch {
		next.previous = m.previous
	}
	for p := range target {
		if _, has := next.assigned[p]; has {
			continue
		}
		if owner, held := c.owners[p]; held && owner != m.id {
			next.state = memberUnreleased
			continue
		}
		next.assigned[p] = struct{}{}
	}
	return next
}

// leaveConsumer handles the heartbeat of a member that leaves.
func (s *State) leaveConsumer(g *group, req *kmsg.ConsumerGroupHeartbeatRequest, resp *kmsg.ConsumerGroupHeartbeatResponse, now time.Time, step *shard.Step) *refusal {
	c, id := g.consumer, req.MemberID
	if instance := deref(req.InstanceID); instance != "" {
		current, ok := c.instances[instance]
		if !ok {
			return refuse(kerr.UnknownMemberID, "instance %q is not in group %q", instance, g.id)
		}
		if current != id {
			return refuse(kerr.FencedInstanceID, "instance %q is member %q now", instance, current)
		}
	}
	m := c.members[id]
	if m == nil {
		return refuse(kerr.UnknownMemberID, "member %q is not in group %q", id, g.id)
	}
	if req.MemberEpoch == epochLeaveStatic {
		held := m.current
		held.epoch, held.previous = epochLeaveStatic, m.epoch
		s.write(step, consumerCurrentRecord(g.id, m.id, &held))
	} else {
		s.removeConsumer(g, m, now, step)
	}
	resp.MemberID, resp.MemberEpoch = &id, req.MemberEpoch
	return nil
}

// removeByAdmin removes the member that LeaveGroup names, by its id or its instance.
func (s *State) removeByAdmin(g *group, member, instance string, now time.Time, step *shard.Step) int16 {
	c := g.consumer
	if instance != "" {
		current, known := c.instances[instance]
		if known && member != "" && current != member {
			return kerr.FencedInstanceID.Code
		}
		member = current
	}
	m := c.members[member]
	if m == nil {
		return kerr.UnknownMemberID.Code
	}
	s.removeConsumer(g, m, now, step)
	return 0
}

// removeConsumer drops a member; a heartbeat of another makes a new assignment.
func (s *State) removeConsumer(g *group, m *consumerMember, now time.Time, step *shard.Step) {
	s.removeRecords(g, m, step)
	c := g.consumer
	s.write(step, consumerGroupRecord(g.id, c.epoch+1, c.hash, now))
}

func (s *State) removeRecords(g *group, m *consumerMember, step *shard.Step) {
	for _, kind := range []int16{consumerCurrentKey, consumerTargetMemberKey, consumerMemberKey} {
		s.write(step, shard.Record{Record: record.Record{Key: consumerKey(kind, g.id, m.id)}})
	}
}

// tickConsumer removes members whose session ended, or who did not give up in time.
func (s *State) tickConsumer(g *group, now time.Time, step *shard.Step) {
	for _, m := range g.consumer.ordered() {
		if m.expires.IsZero() && m.classic != nil {
			m.expires = now.Add(m.classic.session)
		} else if m.expires.IsZero() {
			m.expires = now.Add(cmp.Or(g.consumer.session, s.cfg.ConsumerSession))
		}
		if m.classic != nil && g.consumer.rejoins(m) {
			s.call(g, m, now)
		}
		if m.state == memberUnrevoked && m.revokeBy.IsZero() {
			m.revokeBy = now.Add(m.rebalance)
		}
		if !now.Before(m.expires) || !m.revokeBy.IsZero() && !now.Before(m.revokeBy) || !m.due.IsZero() && !now.Before(m.due) {
			s.removeConsumer(g, m, now, step)
			continue
		}
		s.wakeBy(g, m.expires)
		for _, by := range []time.Time{m.revokeBy, m.due} {
			if !by.IsZero() {
				s.wakeBy(g, by)
			}
		}
	}
}

// checkEpoch checks who commits or fetches offsets.
func (c *consumerGroup) checkEpoch(member string, epoch int32) *kerr.Error {
	m := c.members[member]
	switch {
	case m == nil:
		return kerr.UnknownMemberID
	case epoch != m.epoch && m.classic != nil:
		return kerr.IllegalGeneration
	case epoch != m.epoch:
		return kerr.StaleMemberEpoch
	}
	return nil
}

// consumerPhase is the state that DescribeGroups and ListGroups show.
func (c *consumerGroup) phase() phase {
	switch {
	case len(c.members) == 0:
		return empty
	case c.epoch > c.targetEpoch:
		return "Assigning"
	}
	for _, m := range c.members {
		if m.state != memberStable || m.epoch != c.targetEpoch {
			return "Reconciling"
		}
	}
	return stable
}

// DescribeConsumer handles ConsumerGroupDescribe for one group.
func (s *State) DescribeConsumer(t shard.Ticket, id string, topics *Topics) shard.Step {
	resp := kmsg.NewConsumerGroupDescribeResponseGroup()
	resp.Group = id
	g := s.groups[id]
	if g == nil || g.consumer == nil {
		resp.ErrorCode, resp.ErrorMessage = kerr.GroupIDNotFound.Code, g.isNot(id, "of the consumer protocol")
		return answer(t, resp)
	}
	c := g.consumer
	resp.State, resp.Epoch, resp.AssignmentEpoch, resp.AssignorName = string(c.phase()), c.epoch, c.targetEpoch, c.assignor()
	if len(c.members) == 0 { // nobody waits for an assignment: who compares the epochs must not see one that is late
		resp.AssignmentEpoch = c.epoch
	}
	resp.Members = []kmsg.ConsumerGroupDescribeResponseGroupMember{}
	for _, m := range c.ordered() {
		d := kmsg.NewConsumerGroupDescribeResponseGroupMember()
		d.MemberID, d.InstanceID, d.RackID, d.MemberEpoch, d.ClientID, d.ClientHost = m.id, nonEmpty(m.instance), nonEmpty(m.rack), m.epoch, m.clientID, m.clientHost
		d.SubscribedTopics, d.SubscribedTopicRegex, d.MemberType = slices.Clone(m.topics), nonEmpty(m.regex), 1
		if m.classic != nil {
			d.MemberType = 0
		}
		d.Assignment.TopicPartitions, d.TargetAssignment.TopicPartitions = topics.describe(m.assigned), topics.describe(c.target[m.id])
		resp.Members = append(resp.Members, d)
	}
	return answer(t, resp)
}

// describe names the partitions of a set; those of topics that are gone are left out.
func (t *Topics) describe(s partitionSet) []kmsg.AssignmentTopicPartition {
	out := []kmsg.AssignmentTopicPartition{}
	for _, tp := range s.topics() {
		if name, ok := t.names[uuid.UUID(tp.topic)]; ok {
			out = append(out, kmsg.AssignmentTopicPartition{TopicID: tp.topic, Topic: name, Partitions: tp.partitions})
		}
	}
	return out
}
