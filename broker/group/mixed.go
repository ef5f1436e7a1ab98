package group

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/internal/shard"
)

// Members of the classic protocol in a group of the consumer protocol (KIP-848, "Supporting online
// consumer group upgrade"): a group changes its protocol while it is at work, member by member.
//
//   - The first member of the consumer protocol makes a classic group one of that protocol. Its
//     members stay, with what they hold, and their generation is the group's epoch.
//   - A classic member is assigned by the coordinator as all are. Whenever its epoch is not that of
//     the target assignment, or it has to give up partitions, or gets more, its heartbeat says that a rebalance is
//     in progress. It joins again at once, waits for nobody, and leads nothing: its generation is
//     its member epoch, and SyncGroup brings what it may hold. What it holds it says in its
//     subscription, nothing if it is one that gives up all before it joins.
//   - When the last member of the consumer protocol has gone, and all others have what they were
//     assigned, the group is a classic one again, without a leader, so its members join anew.

// Migration is which way a group with members may change its protocol
// (group.consumer.migration.policy).
type Migration string

// The policies of Kafka.
const (
	MigrateBoth Migration = "bidirectional"
	MigrateUp   Migration = "upgrade"   // from the classic to the consumer protocol
	MigrateDown Migration = "downgrade" // back
	MigrateNot  Migration = "disabled"
)

// Migrations are all policies, the default first.
var Migrations = []Migration{MigrateBoth, MigrateUp, MigrateDown, MigrateNot}

func (m Migration) up() bool   { return m == MigrateBoth || m == MigrateUp }
func (m Migration) down() bool { return m == MigrateBoth || m == MigrateDown }

// classicMember is what a member of the classic protocol says of itself beyond the rest.
type classicMember struct {
	session   time.Duration
	protocols []kmsg.JoinGroupRequestProtocol
}

// maxSubscription bounds the subscription of a classic member in a group of the consumer protocol,
// which is unfolded in memory.
const maxSubscription = 1 << 20

// readSubscription reads what a classic consumer subscribes to and holds.
func readSubscription(protocols []kmsg.JoinGroupRequestProtocol) (sub kmsg.ConsumerMemberMetadata, ok bool) {
	if len(protocols) == 0 || len(protocols[0].Metadata) > maxSubscription {
		return sub, false
	}
	sub.Default()
	return sub, sub.ReadFrom(protocols[0].Metadata) == nil
}

// holds are the partitions that a classic member says that it holds, be it since an earlier
// generation: if an answer was lost, it still has them.
func holds(sub *kmsg.ConsumerMemberMetadata, topics *Topics) partitionSet {
	set := partitionSet{}
	for _, t := range sub.OwnedPartitions {
		if info, ok := topics.byName[t.Topic]; ok {
			for _, p := range t.Partitions {
				set[partitionID{info.ID, p}] = struct{}{}
			}
		}
	}
	return set
}

// upgrade makes a classic group with members one of the consumer protocol, and returns those that
// wait for a rebalance, which they have to be told about.
func (s *State) upgrade(g *group, topics *Topics, now time.Time, step *shard.Step) ([]*member, *refusal) {
	not := func(format string, args ...any) ([]*member, *refusal) {
		return nil, refuse(kerr.GroupIDNotFound, "group %q has members of the classic protocol: "+format, append([]any{g.id}, args...)...)
	}
	switch {
	case !s.cfg.Migration.up():
		return not("they have to leave first, for the policy of migration is %s", s.cfg.Migration)
	case len(g.members) > 0 && g.protocolType != consumerProtocol:
		return not("they are no consumers but of type %q", g.protocolType)
	}
	members, subs, held := g.ordered(), map[string]*kmsg.ConsumerMemberMetadata{}, map[string]partitionSet{}
	owners := map[partitionID]string{}
	hold := func(member, topic string, partitions []int32) {
		info, exists := topics.byName[topic]
		for _, p := range partitions {
			id := partitionID{info.ID, p}
			if _, taken := owners[id]; exists && !taken {
				owners[id], held[member][id] = member, struct{}{}
			}
		}
	}
	for _, m := range members {
		sub, ok := readSubscription(m.protocols)
		var a kmsg.ConsumerMemberAssignment
		if !ok || len(m.assignment) > 0 && a.ReadFrom(m.assignment) != nil {
			return not("what %q says of its subscription or assignment cannot be read", m.id)
		}
		if len(a.UserData) > 0 {
			return not("they have an assignor of their own, whose data would be lost")
		}
		subs[m.id], held[m.id] = &sub, partitionSet{}
		for _, t := range a.Topics {
			hold(m.id, t.Topic, t.Partitions)
		}
	}
	for _, m := range members { // who does not know its new assignment yet holds what it held before
		for _, t := range subs[m.id].OwnedPartitions {
			if !invariant.Off("group-upgrade-claims") {
				hold(m.id, t.Topic, t.Partitions)
			}
		}
	}
	epoch := g.generation
	s.write(step, consumerGroupRecord(g.id, epoch, 0, now))
	for _, m := range members {
		sub, held := m.subscription(subs[m.id]), held[m.id]
		s.write(step, consumerMemberRecord(g.id, m.id, &sub))
		s.write(step, consumerTargetMemberRecord(g.id, m.id, held))
		s.write(step, consumerCurrentRecord(g.id, m.id, &current{epoch: epoch, previous: epoch, assigned: held}))
	}
	s.write(step, consumerTargetRecord(g.id, epoch, time.Time{})) // the first one of the coordinator comes at once
	var waiting []*member
	for _, m := range members {
		g.consumer.members[m.id].expires = m.expires
		switch {
		case m.sync != 0:
			m.syncResp.ErrorCode = kerr.RebalanceInProgress.Code
			step.Answers = append(step.Answers, shard.Answer{To: m.sync, Value: m.syncResp})
		case m.join != 0:
			waiting = append(waiting, m)
		}
	}
	return waiting, nil
}

// subscription is what a classic member is in a group of the consumer protocol.
func (m *member) subscription(sub *kmsg.ConsumerMemberMetadata) subscription {
	return subscription{
		instance: m.instance, rack: deref(sub.Rack), clientID: m.clientID, clientHost: m.clientHost, rebalance: m.rebalance,
		topics: slices.Compact(slices.Sorted(slices.Values(sub.Topics))), classic: &classicMember{m.session, m.protocols},
	}
}

// joinConsumer handles JoinGroup of a classic member in a group of the consumer protocol.
func (s *State) joinConsumer(g *group, now time.Time, t shard.Ticket, req *kmsg.JoinGroupRequest, client Client, newID string, topics *Topics) shard.Step {
	resp := req.ResponseKind().(*kmsg.JoinGroupResponse)
	resp.MemberID = req.MemberID
	var step shard.Step
	refuse := func(err *kerr.Error) shard.Step {
		resp.ErrorCode, resp.Generation = err.Code, -1
		step.Answers = append(step.Answers, shard.Answer{To: t, Value: resp})
		return step
	}
	c, id, instance := g.consumer, req.MemberID, deref(req.InstanceID)
	sub, ok := readSubscription(req.Protocols)
	if !ok || req.ProtocolType != consumerProtocol || !c.supports(req) {
		return refuse(kerr.InconsistentGroupProtocol)
	}
	m := c.members[id]
	_, invited := g.invited[id]
	old := c.members[c.instances[instance]]
	switch {
	case id == "" && instance != "":
		id = newID
	case id == "" && req.Version >= 4: // KIP-394: a member first learns its id
		resp.MemberID = newID
		return refuse(s.invite(g, newID, now.Add(millis(req.SessionTimeoutMillis))))
	case id == "":
		id = newID
	case instance != "" && old == nil, m == nil && !invited, m != nil && m.classic == nil:
		return refuse(kerr.UnknownMemberID)
	case instance != "" && old.id != id:
		return refuse(kerr.FencedInstanceID)
	}
	asked := member{instance: instance}
	asked.update(req, client)
	next := asked.subscription(&sub)
	if err := s.roomInConsumer(g, cmp.Or(m, old), id, &next, nil); err != nil {
		return refuse(err.code)
	}
	resp.MemberID = id
	s.uninvite(g, id)
	switch {
	case m != nil:
	case old != nil:
		m = s.replaceInstance(g, old, id, &step)
	case len(c.members) >= s.cfg.MaxSize:
		return refuse(kerr.GroupMaxSizeReached)
	default:
		s.write(&step, consumerMemberRecord(g.id, id, &subscription{instance: instance, classic: &classicMember{}}))
		m = c.members[id]
	}
	s.enter(g, m, next, &sub, resp, now, topics, &step)
	step.Answers = append(step.Answers, shard.Answer{To: t, Value: resp})
	return step
}

// supports tells whether some protocol of req is one that every other classic member has.
func (c *consumerGroup) supports(req *kmsg.JoinGroupRequest) bool {
	others, have := 0, map[string]int{}
	for _, m := range c.members {
		if m.classic != nil && m.id != req.MemberID && (m.instance == "" || m.instance != deref(req.InstanceID)) {
			others++
			for name := range protocolNames(m.classic.protocols) {
				have[name]++
			}
		}
	}
	return slices.ContainsFunc(req.Protocols, func(p kmsg.JoinGroupRequestProtocol) bool { return have[p.Name] == others })
}

// enter brings a classic member that joined as close to its target as is possible now.
func (s *State) enter(g *group, m *consumerMember, next subscription, sub *kmsg.ConsumerMemberMetadata, resp *kmsg.JoinGroupResponse, now time.Time, topics *Topics, step *shard.Step) {
	c := g.consumer
	s.subscribe(g, m, next, false, topics, now, step)
	s.retarget(g, topics, now, step)
	s.reconcile(g, m, holds(sub, topics), topics, now, step)
	m.expires, m.due = now.Add(m.classic.session), now.Add(m.rebalance)
	s.wakeBy(g, m.expires)
	s.wakeBy(g, m.due)
	resp.ErrorCode, resp.Generation, resp.MemberID = 0, m.epoch, m.id
	resp.Protocol, resp.ProtocolType = kmsg.StringPtr(c.vote()), kmsg.StringPtr(consumerProtocol)
}

// vote picks the protocol that classic members are told.
func (c *consumerGroup) vote() string {
	var lists [][]kmsg.JoinGroupRequestProtocol
	for _, m := range c.ordered() {
		if m.classic != nil {
			lists = append(lists, m.classic.protocols)
		}
	}
	return vote(lists)
}

// classic finds the classic member that a request speaks for.
func (c *consumerGroup) classic(id, instance string, generation int32) (*consumerMember, *kerr.Error) {
	if err := checkInstance(c.instances, instance, id); err != nil {
		return nil, err
	}
	m := c.members[id]
	switch {
	case m == nil || m.classic == nil:
		return nil, kerr.UnknownMemberID
	case generation != m.epoch:
		return nil, kerr.IllegalGeneration
	}
	return m, nil
}

// rejoins tells whether a classic member has to join again: there is another target, or it has
// to give up partitions, or those that it waits for are free.
func (c *consumerGroup) rejoins(m *consumerMember) bool {
	return m.epoch < c.targetEpoch || m.state == memberUnrevoked || m.state == memberUnreleased && !c.waits(m)
}

// waits tells whether somebody else still holds something of a member's target.
func (c *consumerGroup) waits(m *consumerMember) bool {
	for p := range c.target[m.id] {
		if owner, held := c.owners[p]; held && owner != m.id {
			return true
		}
	}
	return false
}

// call gives a classic member that has to join again its time for that.
func (s *State) call(g *group, m *consumerMember, now time.Time) {
	if m.due.IsZero() {
		m.due = now.Add(m.rebalance)
	}
	s.wakeBy(g, m.due)
}

// syncConsumer handles SyncGroup of a classic member in a group of the consumer protocol.
func (s *State) syncConsumer(g *group, now time.Time, t shard.Ticket, req *kmsg.SyncGroupRequest, topics *Topics) shard.Step {
	resp := req.ResponseKind().(*kmsg.SyncGroupResponse)
	refuse := func(err *kerr.Error) shard.Step {
		resp.ErrorCode = err.Code
		return answer(t, resp)
	}
	c := g.consumer
	m, err := c.classic(req.MemberID, deref(req.InstanceID), req.Generation)
	switch {
	case err != nil:
		return refuse(err)
	case req.ProtocolType != nil && *req.ProtocolType != consumerProtocol,
		req.Protocol != nil && !slices.ContainsFunc(m.classic.protocols, func(p kmsg.JoinGroupRequestProtocol) bool { return p.Name == *req.Protocol }):
		return refuse(kerr.InconsistentGroupProtocol)
	}
	m.expires, m.due = now.Add(m.classic.session), time.Time{}
	if m.epoch < c.targetEpoch && m.state != memberUnrevoked {
		s.call(g, m, now)
		return refuse(kerr.RebalanceInProgress)
	}
	resp.MemberAssignment = m.assigned.classic(topics)
	resp.Protocol, resp.ProtocolType = kmsg.StringPtr(c.vote()), kmsg.StringPtr(consumerProtocol)
	if req.Protocol != nil {
		resp.Protocol = req.Protocol
	}
	return answer(t, resp)
}

// classic is an assignment as the classic protocol has it, of the topics that exist.
func (s partitionSet) classic(topics *Topics) []byte {
	a := kmsg.NewConsumerMemberAssignment()
	for _, tp := range s.topics() {
		if name, ok := topics.names[uuid.UUID(tp.topic)]; ok {
			a.Topics = append(a.Topics, kmsg.ConsumerMemberAssignmentTopic{Topic: name, Partitions: tp.partitions})
		}
	}
	slices.SortFunc(a.Topics, func(a, b kmsg.ConsumerMemberAssignmentTopic) int { return strings.Compare(a.Topic, b.Topic) })
	return a.AppendTo(nil)
}

// heartbeatConsumer handles Heartbeat of a classic member in a group of the consumer protocol.
func (s *State) heartbeatConsumer(g *group, now time.Time, t shard.Ticket, req *kmsg.HeartbeatRequest, topics *Topics) shard.Step {
	resp := req.ResponseKind().(*kmsg.HeartbeatResponse)
	c := g.consumer
	m, err := c.classic(req.MemberID, deref(req.InstanceID), req.Generation)
	if err != nil {
		resp.ErrorCode = err.Code
		return answer(t, resp)
	}
	m.expires = now.Add(m.classic.session)
	var step shard.Step
	s.raise(g, false, topics, now, &step)
	s.retarget(g, topics, now, &step)
	switch {
	case c.rejoins(m):
		s.call(g, m, now)
		resp.ErrorCode = kerr.RebalanceInProgress.Code
	case s.cfg.Migration.down() && c.allClassic() && c.phase() == stable:
		step.Records = append(step.Records, g.downgrade(now, topics)) // it joins the rebalance with its next heartbeat
	}
	step.Answers = append(step.Answers, shard.Answer{To: t, Value: resp})
	return step
}

// allClassic tells whether no member is of the consumer protocol.
func (c *consumerGroup) allClassic() bool {
	for _, m := range c.members {
		if m.classic == nil {
			return false
		}
	}
	return true
}

// downgrade is the record that makes a group of the consumer protocol, whose members are all
// classic and have what they were assigned, a classic one. Nobody leads it, so the next tick makes
// all join again: members hold what they have until then, and say so.
func (g *group) downgrade(now time.Time, topics *Topics) shard.Record {
	c := g.consumer
	invariant.Check(c.allClassic() && c.phase() == stable, "group %q is not to become a classic one", g.id)
	protocol := c.vote()
	v := kmsg.NewGroupMetadataValue()
	v.ProtocolType, v.Generation, v.Protocol, v.CurrentStateTimestamp = consumerProtocol, c.epoch, &protocol, now.UnixMilli()
	for _, m := range c.ordered() {
		mv := kmsg.NewGroupMetadataValueMember()
		mv.MemberID, mv.InstanceID, mv.ClientID, mv.ClientHost = m.id, nonEmpty(m.instance), m.clientID, m.clientHost
		mv.SessionTimeoutMillis, mv.RebalanceTimeoutMillis = int32(m.classic.session.Milliseconds()), int32(m.rebalance.Milliseconds())
		mv.Subscription, mv.Assignment = (&member{protocols: m.classic.protocols}).metadata(protocol), m.assigned.classic(topics)
		v.Members = append(v.Members, mv)
	}
	return groupRecord(g.id, &v)
}
