package group

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/internal/shard"
)

// Commit handles OffsetCommit. exists tells whether a partition is there to commit for.
func (s *State) Commit(now time.Time, t shard.Ticket, req *kmsg.OffsetCommitRequest, exists func(topic string, partition int32) bool) shard.Step {
	resp := req.ResponseKind().(*kmsg.OffsetCommitResponse)
	refusal := s.checkCommit(now, req)
	g := s.groups[req.Group]
	free := s.free(g)
	var step shard.Step
	for _, rt := range req.Topics {
		st := kmsg.NewOffsetCommitResponseTopic()
		st.Topic = rt.Topic
		for _, rp := range rt.Partitions {
			sp := kmsg.NewOffsetCommitResponseTopicPartition()
			sp.Partition = rp.Partition
			switch {
			case refusal != nil:
				sp.ErrorCode = refusal.Code
			case !exists(rt.Topic, rp.Partition):
				sp.ErrorCode = kerr.UnknownTopicOrPartition.Code
			case len(deref(rp.Metadata)) > s.cfg.MaxMetadata:
				sp.ErrorCode = kerr.OffsetMetadataTooLarge.Code
			default:
				o := offset{offset: rp.Offset, leaderEpoch: -1, metadata: deref(rp.Metadata), committed: now}
				if req.Version >= 6 {
					o.leaderEpoch = rp.LeaderEpoch
				}
				tp := topicPartition{rt.Topic, rp.Partition}
				if !s.takes(&free, g.offsetGrowth(tp, &o)) {
					sp.ErrorCode = kerr.PolicyViolation.Code
					break
				}
				step.Records = append(step.Records, offsetRecord(req.Group, tp, &o))
			}
			st.Partitions = append(st.Partitions, sp)
		}
		resp.Topics = append(resp.Topics, st)
	}
	step.Answers = []shard.Answer{{To: t, Value: resp}}
	return step
}

func (s *State) checkCommit(now time.Time, req *kmsg.OffsetCommitRequest) *kerr.Error {
	if req.Group == "" {
		return kerr.InvalidGroupID
	}
	g := s.groups[req.Group]
	if g != nil && g.share != nil {
		return kerr.GroupIDNotFound
	}
	if req.Generation < 0 && req.MemberID == "" { // a consumer that assigns its partitions itself
		if g != nil && g.occupied() {
			return kerr.UnknownMemberID
		}
		return nil
	}
	if g == nil {
		return kerr.IllegalGeneration
	}
	if g.consumer != nil {
		if m := g.consumer.members[req.MemberID]; req.Version < 9 && m != nil && m.classic == nil { // knows no member epochs
			return kerr.UnsupportedVersion
		}
		return g.consumer.checkEpoch(req.MemberID, req.Generation)
	}
	m, err := g.check(req.MemberID, deref(req.InstanceID), req.Generation)
	if err != nil {
		return err
	}
	m.expires = now.Add(m.session)
	if g.phase == completing {
		return kerr.RebalanceInProgress
	}
	return nil
}

// Fetch returns the offsets of one group, all of them if topics is nil. A member of the
// consumer protocol says its epoch; others none, -1.
func (s *State) Fetch(t shard.Ticket, group, member string, epoch int32, topics []kmsg.OffsetFetchRequestGroupTopic, requireStable bool) shard.Step {
	resp := kmsg.NewOffsetFetchResponseGroup()
	resp.Group = group
	var offsets map[topicPartition]offset
	var unstable map[topicPartition]int
	if g := s.groups[group]; g != nil {
		offsets = g.offsets
		if requireStable && !invariant.Off("group-stable-offset") {
			unstable = g.unstable
		}
		if g.consumer != nil && (member != "" || epoch >= 0) {
			if err := g.consumer.checkEpoch(member, epoch); err != nil {
				resp.ErrorCode = err.Code
				return answer(t, resp)
			}
		}
	}
	if topics == nil {
		topics = allTopics(offsets, unstable)
	}
	for _, rt := range topics {
		st := kmsg.NewOffsetFetchResponseGroupTopic()
		st.Topic = rt.Topic
		for _, p := range rt.Partitions {
			sp := kmsg.NewOffsetFetchResponseGroupTopicPartition()
			sp.Partition, sp.Offset, sp.LeaderEpoch, sp.Metadata = p, -1, -1, kmsg.StringPtr("")
			tp := topicPartition{rt.Topic, p}
			if unstable[tp] > 0 {
				sp.ErrorCode = kerr.UnstableOffsetCommit.Code
			} else if o, ok := offsets[tp]; ok {
				sp.Offset, sp.LeaderEpoch, sp.Metadata = o.offset, o.leaderEpoch, kmsg.StringPtr(o.metadata)
			}
			st.Partitions = append(st.Partitions, sp)
		}
		resp.Topics = append(resp.Topics, st)
	}
	return answer(t, resp)
}

func allTopics(offsets map[topicPartition]offset, unstable map[topicPartition]int) []kmsg.OffsetFetchRequestGroupTopic {
	partitions := map[string][]int32{}
	for tp := range offsets {
		partitions[tp.topic] = append(partitions[tp.topic], tp.partition)
	}
	for tp := range unstable {
		if _, ok := offsets[tp]; !ok {
			partitions[tp.topic] = append(partitions[tp.topic], tp.partition)
		}
	}
	var out []kmsg.OffsetFetchRequestGroupTopic
	for _, topic := range slices.Sorted(maps.Keys(partitions)) {
		slices.Sort(partitions[topic])
		out = append(out, kmsg.OffsetFetchRequestGroupTopic{Topic: topic, Partitions: partitions[topic]})
	}
	return out
}

// DeleteOffsets handles OffsetDelete: offsets of topics that no member is subscribed to. A group of the classic
// protocol whose members are no consumers keeps all while it has some.
func (s *State) DeleteOffsets(t shard.Ticket, req *kmsg.OffsetDeleteRequest) shard.Step {
	resp := req.ResponseKind().(*kmsg.OffsetDeleteResponse)
	g := s.groups[req.Group]
	if g == nil || g.share != nil {
		resp.ErrorCode = kerr.GroupIDNotFound.Code
		return answer(t, resp)
	}
	if len(g.members) > 0 && g.protocolType != consumerProtocol {
		resp.ErrorCode = kerr.NonEmptyGroup.Code
		return answer(t, resp)
	}
	var step shard.Step
	subscribed := g.subscribed()
	for _, rt := range req.Topics {
		st := kmsg.NewOffsetDeleteResponseTopic()
		st.Topic = rt.Topic
		for _, rp := range rt.Partitions {
			sp := kmsg.NewOffsetDeleteResponseTopicPartition()
			sp.Partition = rp.Partition
			tp := topicPartition{rt.Topic, rp.Partition}
			if subscribed(rt.Topic) {
				sp.ErrorCode = kerr.GroupSubscribedToTopic.Code
			} else if g.has(tp) {
				step.Records = append(step.Records, offsetRecord(g.id, tp, nil))
			}
			st.Partitions = append(st.Partitions, sp)
		}
		resp.Topics = append(resp.Topics, st)
	}
	step.Answers = []shard.Answer{{To: t, Value: resp}}
	return step
}

// subscribed returns what tells whether a member may be subscribed to a topic. Of one whose subscription cannot be
// read, or whose regular expression has not been looked at since a replay, it may be any.
func (g *group) subscribed() func(topic string) bool {
	names := map[string]bool{}
	add := func(topics []string) {
		for _, name := range topics {
			names[name] = true
		}
	}
	unknown := false
	for _, m := range g.members {
		sub, ok := readSubscription(m.protocols)
		unknown = unknown || !ok
		add(sub.Topics)
	}
	if g.consumer != nil {
		for _, m := range g.consumer.members {
			add(m.topics)
			if m.matched != nil {
				add(m.matched.names)
			} else if m.regex != "" {
				unknown = true
			}
		}
	}
	return func(topic string) bool { return unknown || names[topic] }
}

// ForgetTopic drops the offsets of a deleted topic, and what share groups had delivered of it.
func (s *State) ForgetTopic(t shard.Ticket, topic string, topicID uuid.UUID) shard.Step {
	step := answer(t, nil)
	for _, id := range slices.Sorted(maps.Keys(s.groups)) {
		for tp := range s.groups[id].partitions() {
			if tp.topic == topic {
				step.Records = append(step.Records, offsetRecord(id, tp, nil))
			}
		}
		if c := s.groups[id].share; c != nil {
			for _, p := range c.partitions() {
				if p.topic == topicID {
					step.Records = append(step.Records, shareStateRecord(id, p, nil))
				}
			}
		}
	}
	return step
}

// Delete removes a group without members, with its offsets.
func (s *State) Delete(t shard.Ticket, group string) shard.Step {
	resp := kmsg.NewDeleteGroupsResponseGroup()
	resp.Group = group
	g := s.groups[group]
	switch {
	case g == nil:
		resp.ErrorCode = kerr.GroupIDNotFound.Code
		return answer(t, resp)
	case g.occupied():
		resp.ErrorCode = kerr.NonEmptyGroup.Code
		return answer(t, resp)
	}
	step := answer(t, resp)
	for tp := range g.partitions() {
		step.Records = append(step.Records, offsetRecord(group, tp, nil))
	}
	if g.share != nil {
		for _, p := range g.share.partitions() {
			step.Records = append(step.Records, shareStateRecord(group, p, nil))
		}
	}
	step.Records = append(step.Records, g.tombstone())
	return step
}

// List returns the groups, of the given states and types if there are any. Case does not count, as in Kafka.
func (s *State) List(t shard.Ticket, states, types []string) shard.Step {
	list := []kmsg.ListGroupsResponseGroup{}
	asked := func(list []string, have string) bool {
		return len(list) == 0 || slices.ContainsFunc(list, func(s string) bool { return strings.EqualFold(s, have) })
	}
	for _, id := range slices.Sorted(maps.Keys(s.groups)) {
		g := s.groups[id]
		kind, state := "classic", g.phase
		if g.consumer != nil {
			kind, state = "consumer", g.consumer.phase()
		}
		if g.share != nil {
			kind, state = "share", g.share.phase()
		}
		if !asked(states, string(state)) || !asked(types, kind) {
			continue
		}
		lg := kmsg.NewListGroupsResponseGroup()
		lg.Group, lg.ProtocolType, lg.GroupState, lg.GroupType = id, g.protocolType, string(state), kind
		list = append(list, lg)
	}
	return answer(t, list)
}

// isNot says that the group of an id, nil if there is none, is not of a kind.
func (g *group) isNot(id, kind string) *string {
	if g == nil {
		return kmsg.StringPtr(fmt.Sprintf("there is no group %q", id))
	}
	return kmsg.StringPtr(fmt.Sprintf("group %q is not %s", id, kind))
}

// Describe returns one group; a group that does not exist is Dead, as Kafka says.
func (s *State) Describe(t shard.Ticket, group string, version int16) shard.Step {
	resp := kmsg.NewDescribeGroupsResponseGroup()
	resp.Group = group
	g := s.groups[group]
	if g == nil || g.consumer != nil || g.share != nil {
		resp.State = "Dead"
		if version >= 6 {
			resp.ErrorCode = kerr.GroupIDNotFound.Code
			resp.ErrorMessage = g.isNot(group, "of the classic protocol")
		}
		return answer(t, resp)
	}
	resp.State, resp.ProtocolType = string(g.phase), g.protocolType
	if g.phase == stable {
		resp.Protocol = g.protocol
	}
	for _, m := range g.ordered() {
		dm := kmsg.NewDescribeGroupsResponseGroupMember()
		dm.MemberID, dm.InstanceID, dm.ClientID, dm.ClientHost = m.id, nonEmpty(m.instance), m.clientID, m.clientHost
		if g.phase == stable {
			dm.ProtocolMetadata, dm.MemberAssignment = m.metadata(g.protocol), m.assignment
		}
		resp.Members = append(resp.Members, dm)
	}
	return answer(t, resp)
}
