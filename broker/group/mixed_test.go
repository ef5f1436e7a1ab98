package group

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/shard"
)

// Members of both protocols come, leave, die, change from one to the other, lose answers, and the
// coordinator restarts, while topics grow: no partition is ever consumed by two members, no commit
// that was confirmed is lost, and once nothing changes any more each partition has one. Then the
// group is one of the consumer protocol if it has a member of that, and else a classic one.
func TestMixedGroupModel(t *testing.T) {
	upgrades, downgrades := 0, 0
	for seed := range uint64(300) {
		m := newMixedModel(t, seed, 3)
		m.cooperative = seed%2 == 0
		for step := range 300 {
			m.where = fmt.Sprintf("seed %d step %d", seed, step)
			if step%50 == 0 {
				m.classics = m.r.IntN(3) * 50
			}
			m.step()
			m.exclusive()
		}
		m.where = fmt.Sprintf("seed %d, at the end", seed)
		m.settle()
		upgrades, downgrades = upgrades+m.upgrades, downgrades+m.downgrades
	}
	if upgrades < 100 || downgrades < 100 {
		t.Errorf("groups with members changed their protocol %d and %d times: the model does not try it", upgrades, downgrades)
	}
}

// A mixedClient is a client of either protocol. A classic one has next: what it does next.
type mixedClient struct {
	consumerClient // told and lost are of the consumer protocol

	name     int
	classic  bool
	next     string                         // join, joining, sync, syncing, beat
	leads    []kmsg.JoinGroupResponseMember // not nil: it leads these
	assigned int                            // how many partitions there were when it assigned them
	wait     shard.Ticket
}

// A waiter is a client that waits for an answer.
type waiter struct {
	client *mixedClient
	take   func(any)
}

type mixedModel struct {
	t           *testing.T
	r           *rand.Rand
	state       *State
	log         []shard.Record
	now         time.Time
	topics      *Topics
	version     uint64
	partitions  int
	timeouts    Timeouts
	cooperative bool // classic clients keep what they have while they join
	clients     map[int]*mixedClient
	tickets     map[shard.Ticket]*waiter
	ticket      shard.Ticket
	named       int
	committed   map[int32]int64 // of each partition, as it was confirmed
	where       string

	calm                 bool   // no answer is lost any more
	classics             int    // how many of 100 clients that start are classic
	last                 string // protocol
	upgrades, downgrades int
}

func newMixedModel(t *testing.T, seed uint64, partitions int) *mixedModel {
	m := &mixedModel{
		t: t, r: rand.New(rand.NewPCG(seed, 2)), state: NewState(Config{}), now: time.Unix(1000, 0),
		clients: map[int]*mixedClient{}, tickets: map[shard.Ticket]*waiter{}, partitions: partitions, committed: map[int32]int64{}, timeouts: defaultTimeouts,
	}
	m.timeouts.Assignment = time.Duration(seed/2%3) * time.Second
	m.grow()
	return m
}

// A cooperative member that does not know yet what the leader has taken from it holds that when the
// group becomes one of the consumer protocol, and nobody else is given it before it says otherwise.
func TestUpgradeKeepsWhatMembersStillHold(t *testing.T) {
	m := newMixedModel(t, 1, 4)
	m.cooperative, m.calm, m.where = true, true, "here"
	until := func(c *mixedClient, next string) {
		t.Helper()
		for range 10 {
			if c.next == next {
				return
			}
			m.pass(time.Second)
			m.beat(c)
		}
		t.Fatalf("client %d is to %s, want to %s", c.name, c.next, next)
	}
	a, b := m.start(true), m.start(true)
	for range 20 {
		m.pass(time.Second)
		m.beatAll()
	}
	if len(a.holds) != 2 || len(b.holds) != 2 {
		t.Fatalf("the members hold %v and %v", a.holds, b.holds)
	}
	c := m.start(true)
	until(c, "joining")
	until(a, "joining")
	until(b, "sync") // who joins last has its answer at once
	leader, other := a, b
	if len(b.leads) > 0 {
		leader, other = b, a
	}
	m.sync(leader)
	if len(other.holds) != 2 {
		t.Fatalf("client %d holds %v", other.name, other.holds)
	}
	m.start(false)
	m.exclusive()
	for range 20 {
		m.beatAll()
	}
	m.settle()
}

func (m *mixedModel) grow() {
	m.version++
	m.topics = NewTopics(m.version, map[string]TopicInfo{"t": {topicID("t"), m.partitions}})
}

func (m *mixedModel) names() []int { return slices.Sorted(maps.Keys(m.clients)) }

// apply does a step as the shard does it, and hands answers to those who wait for them.
func (m *mixedModel) apply(step shard.Step) {
	for _, r := range step.Records {
		if err := m.state.Replay(r); err != nil {
			m.t.Fatalf("%s: %v", m.where, err)
		}
		m.log = append(m.log, r)
	}
	if len(m.log)%8 == 0 { // which takes as long as all the rest
		if err := sound(m.state); err != nil {
			m.t.Fatalf("%s: %v", m.where, err)
		}
	}
	switch now := m.protocol(); {
	case m.last == "classic" && now == "consumer":
		m.upgrades++
	case m.last == "consumer" && now == "classic":
		m.downgrades++
	}
	m.last = m.protocol()
	for _, a := range step.Answers {
		w := m.tickets[a.To]
		if w == nil {
			m.t.Fatalf("%s: an answer that nobody waits for: %+v", m.where, a.Value)
		}
		delete(m.tickets, a.To)
		if w.client == nil || w.client.wait == a.To {
			w.take(a.Value)
		}
	}
}

// protocol is that of the group if it has members.
func (m *mixedModel) protocol() string {
	switch g := m.state.groups["g"]; {
	case g == nil || !g.occupied():
		return ""
	case g.consumer != nil:
		return "consumer"
	}
	return "classic"
}

// ask is a ticket for an answer; that of a client replaces what it waited for before.
func (m *mixedModel) ask(c *mixedClient, take func(any)) shard.Ticket {
	m.ticket++
	m.tickets[m.ticket] = &waiter{c, take}
	if c != nil {
		c.wait = m.ticket
	}
	return m.ticket
}

func (m *mixedModel) step() {
	names := m.names()
	switch op := m.r.IntN(100); {
	case op < 8 && len(names) < 6:
		m.start(m.r.IntN(100) < m.classics)
	case len(names) == 0:
	case op < 16: // leaves, most often to come again, be it with the other protocol
		m.leave(m.clients[names[m.r.IntN(len(names))]])
		if m.r.IntN(4) > 0 {
			m.start(m.r.IntN(100) < m.classics)
		}
	case op < 17: // dies; its session ends
		delete(m.clients, names[m.r.IntN(len(names))])
		for range 10 {
			m.pass(5 * time.Second)
			for range 3 {
				m.beatAll()
			}
		}
	case op < 18:
		m.partitions += m.r.IntN(2)
		m.grow()
	case op < 21: // the coordinator starts anew
		m.restart()
	case op < 30:
		m.pass(time.Second)
	default:
		m.beat(m.clients[names[m.r.IntN(len(names))]])
	}
}

func (m *mixedModel) start(classic bool) *mixedClient {
	m.named++
	c := &mixedClient{consumerClient: consumerClient{lost: true, epoch: -1}, name: m.named, classic: classic, next: "join"}
	m.clients[c.name] = c
	if !classic {
		c.id, c.epoch = fmt.Sprintf("m%d", c.name), epochJoin
	}
	m.beat(c)
	return c
}

func (m *mixedModel) leave(c *mixedClient) {
	m.commit(c)
	c.holds = nil
	delete(m.clients, c.name)
	if !c.classic {
		m.heartbeat(c, epochLeave)
		return
	}
	if c.id == "" {
		return
	}
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Version, req.Group, req.Members = 5, "g", []kmsg.LeaveGroupRequestMember{{MemberID: c.id}}
	m.apply(m.state.Leave(m.now, m.ask(c, func(any) {}), req))
}

func (m *mixedModel) restart() {
	if m.r.IntN(2) == 0 {
		m.log = m.state.Snapshot()
	}
	m.state = NewState(Config{})
	for _, r := range m.log {
		if err := m.state.Replay(r); err != nil {
			m.t.Fatalf("%s: %v", m.where, err)
		}
	}
	clear(m.tickets)
	for _, c := range m.clients {
		if c.next == "joining" || c.next == "syncing" { // its connection ends
			c.next, c.wait = "join", 0
		}
	}
}

func (m *mixedModel) pass(d time.Duration) {
	end := m.now.Add(d)
	for wake := m.state.Wake(); !wake.IsZero() && !wake.After(end); wake = m.state.Wake() {
		if wake.After(m.now) {
			m.now = wake
		}
		m.apply(m.state.Tick(m.now))
	}
	m.now = end
}

func (m *mixedModel) beatAll() {
	for _, name := range m.names() {
		m.beat(m.clients[name])
		m.exclusive()
	}
}

// beat is the next request of a client.
func (m *mixedModel) beat(c *mixedClient) {
	if m.r.IntN(2) == 0 {
		m.commit(c)
	}
	if !c.classic {
		for _, p := range sortedPartitions(c.holds) { // gives up what it must, before it says so
			if _, keep := c.told[p]; !keep && m.r.IntN(3) > 0 {
				delete(c.holds, p)
			}
		}
		m.heartbeat(c, c.epoch)
		return
	}
	switch c.next {
	case "join":
		m.join(c)
	case "sync":
		m.sync(c)
	case "beat", "syncing":
		if c.next == "beat" && len(c.leads) > 0 && c.assigned != m.partitions { // leaders watch topics
			m.join(c)
			return
		}
		m.classicHeartbeat(c)
	}
}

// lose tells whether an answer is lost; a classic client then joins again.
func (m *mixedModel) lose(c *mixedClient) bool {
	if m.calm || m.r.IntN(20) > 0 {
		return false
	}
	c.next = "join"
	return true
}

// refused does what clients do with an error.
func (m *mixedModel) refused(c *mixedClient, code int16) bool {
	switch code {
	case 0:
		return false
	case kerr.RebalanceInProgress.Code:
		c.next = "join"
	case kerr.UnknownMemberID.Code:
		c.next, c.id, c.epoch, c.holds = "join", "", -1, nil
	case kerr.IllegalGeneration.Code:
		c.next, c.epoch, c.holds = "join", -1, nil
	default:
		m.t.Fatalf("%s: client %d: %v", m.where, c.name, kerr.ErrorForCode(code))
	}
	return true
}

func (m *mixedModel) join(c *mixedClient) {
	m.commit(c)
	name := "cooperative"
	if !m.cooperative {
		c.holds, name = nil, "eager"
	}
	sub := kmsg.NewConsumerMemberMetadata()
	sub.Version, sub.Topics, sub.Generation = 2, []string{"t"}, c.epoch
	for _, tp := range c.holds.topics() {
		sub.OwnedPartitions = append(sub.OwnedPartitions, kmsg.ConsumerMemberMetadataOwnedPartition{Topic: "t", Partitions: tp.partitions})
	}
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.MemberID, req.ProtocolType = 9, "g", c.id, "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 45_000, 300_000
	req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: name, Metadata: sub.AppendTo(nil)}}
	c.next = "joining"
	m.apply(m.state.Join(m.now, m.ask(c, func(v any) {
		resp := v.(*kmsg.JoinGroupResponse)
		if resp.ErrorCode == kerr.MemberIDRequired.Code {
			c.id, c.next = resp.MemberID, "join"
			return
		}
		if m.lose(c) || m.refused(c, resp.ErrorCode) {
			return
		}
		c.next, c.id, c.epoch, c.leads = "sync", resp.MemberID, resp.Generation, nil
		if resp.LeaderID == c.id {
			c.leads = resp.Members
		}
	}), req, Client{ID: "c", Host: "/h"}, fmt.Sprintf("m%d-%d", c.name, m.ticket), m.topics))
}

func (m *mixedModel) sync(c *mixedClient) {
	req := kmsg.NewPtrSyncGroupRequest()
	req.Version, req.Group, req.MemberID, req.Generation = 5, "g", c.id, c.epoch
	req.GroupAssignment = m.assign(c.leads)
	c.assigned = m.partitions
	c.next = "syncing"
	m.apply(m.state.Sync(m.now, m.ask(c, func(v any) {
		resp := v.(*kmsg.SyncGroupResponse)
		if m.lose(c) || m.refused(c, resp.ErrorCode) {
			return
		}
		var a kmsg.ConsumerMemberAssignment
		if err := a.ReadFrom(resp.MemberAssignment); err != nil && len(resp.MemberAssignment) > 0 {
			m.t.Fatalf("%s: %v", m.where, err)
		}
		told := partitionSet{}
		for _, t := range a.Topics {
			for _, p := range t.Partitions {
				told[partitionID{topicID(t.Topic), p}] = struct{}{}
			}
		}
		c.next = "beat"
		for p := range c.holds {
			if _, keep := told[p]; !keep {
				c.next = "join" // it says that it has given up
			}
		}
		if c.next == "join" {
			m.commit(c)
		}
		c.holds = told
	}), req, m.topics))
}

// assign is an assignor of clients: partitions in turn to each, but a cooperative one leaves out those
// that somebody else still has.
func (m *mixedModel) assign(members []kmsg.JoinGroupResponseMember) (out []kmsg.SyncGroupRequestGroupAssignment) {
	owner := map[int32]string{}
	for _, jm := range members {
		var sub kmsg.ConsumerMemberMetadata
		if err := sub.ReadFrom(jm.ProtocolMetadata); err != nil {
			m.t.Fatalf("%s: %v", m.where, err)
		}
		for _, t := range sub.OwnedPartitions {
			for _, p := range t.Partitions {
				owner[p] = jm.MemberID
			}
		}
	}
	for i, jm := range members {
		a := kmsg.NewConsumerMemberAssignment()
		mine := kmsg.ConsumerMemberAssignmentTopic{Topic: "t"}
		for p := range int32(m.partitions) {
			if other, held := owner[p]; int(p)%len(members) == i && (!held || other == jm.MemberID) {
				mine.Partitions = append(mine.Partitions, p)
			}
		}
		a.Topics = append(a.Topics, mine)
		out = append(out, kmsg.SyncGroupRequestGroupAssignment{MemberID: jm.MemberID, MemberAssignment: a.AppendTo(nil)})
	}
	return out
}

func (m *mixedModel) classicHeartbeat(c *mixedClient) {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.Generation = 4, "g", c.id, c.epoch
	waits := c.next == "syncing"
	m.ticket++
	m.tickets[m.ticket] = &waiter{nil, func(v any) {
		if code := v.(*kmsg.HeartbeatResponse).ErrorCode; !waits {
			m.refused(c, code)
		}
	}}
	m.apply(m.state.Heartbeat(m.now, m.ticket, req, m.topics))
}

func (m *mixedModel) heartbeat(c *mixedClient, epoch int32) {
	m.apply(m.state.ConsumerHeartbeat(m.now, m.ask(c, func(v any) {
		if err := c.hear(epoch, v.(*kmsg.ConsumerGroupHeartbeatResponse), func() bool { return !m.calm && m.r.IntN(20) == 0 }); err != nil {
			m.t.Fatalf("%s: %v", m.where, err)
		}
	}), c.beat(epoch, "t"), m.timeouts, Client{ID: "c", Host: "/h"}, "", m.topics))
}

// commit commits one offset more of each partition that a client has.
func (m *mixedModel) commit(c *mixedClient) {
	if len(c.holds) == 0 {
		return
	}
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group, req.MemberID, req.Generation = 9, "g", c.id, c.epoch
	topic := kmsg.OffsetCommitRequestTopic{Topic: "t"}
	for _, p := range sortedPartitions(c.holds) {
		topic.Partitions = append(topic.Partitions, kmsg.OffsetCommitRequestTopicPartition{Partition: p.index, Offset: m.committed[p.index] + 1})
	}
	req.Topics = []kmsg.OffsetCommitRequestTopic{topic}
	m.ticket++
	m.tickets[m.ticket] = &waiter{nil, func(v any) {
		for _, p := range v.(*kmsg.OffsetCommitResponse).Topics[0].Partitions {
			if p.ErrorCode == 0 {
				m.committed[p.Partition]++
			}
		}
	}}
	m.apply(m.state.Commit(m.now, m.ticket, req, func(string, int32) bool { return true }))
}

func (m *mixedModel) exclusive() {
	owner := map[partitionID]*mixedClient{}
	for _, name := range m.names() {
		c := m.clients[name]
		for p := range c.holds {
			if other, twice := owner[p]; twice {
				m.t.Fatalf("%s: partition %d is consumed by %+v and %+v", m.where, p.index, other, c)
			}
			owner[p] = c
		}
	}
}

// settle lets the members that are there go on until nothing is left to do.
func (m *mixedModel) settle() {
	m.calm = true
	for range 200 {
		m.pass(time.Second)
		m.beatAll()
	}
	if len(m.clients) == 0 {
		return
	}
	held, want := 0, "classic"
	for _, c := range m.clients {
		held += len(c.holds)
		if !c.classic {
			want = "consumer"
		}
	}
	if held != m.partitions || m.protocol() != want {
		m.t.Fatalf("%s: %d of %d partitions are consumed in a %s group, want a %s group", m.where, held, m.partitions, m.protocol(), want)
	}
	for p, offset := range m.committed {
		if got := m.state.groups["g"].offsets[topicPartition{"t", p}].offset; got != offset {
			m.t.Fatalf("%s: offset %d of partition %d is committed, and %d was confirmed", m.where, got, p, offset)
		}
	}
	if len(m.committed) == 0 {
		m.t.Fatalf("%s: nothing was committed", m.where)
	}
}

// classicGroup makes a state with a classic group of one member, m.
func classicGroup(t *testing.T, cfg Config, instance *string, protocolType string, metadata, assignment []byte) (*State, *Topics, func(shard.Step) any) {
	t.Helper()
	s, topics := NewState(cfg), NewTopics(1, map[string]TopicInfo{"t": {topicID("t"), 2}})
	apply := func(step shard.Step) any {
		t.Helper()
		for _, r := range step.Records {
			if err := s.Replay(r); err != nil {
				t.Fatal(err)
			}
		}
		if len(step.Answers) == 0 {
			return nil
		}
		return step.Answers[0].Value
	}
	now := time.Unix(1000, 0)
	join := kmsg.NewPtrJoinGroupRequest()
	join.Version, join.Group, join.InstanceID, join.ProtocolType, join.SessionTimeoutMillis, join.RebalanceTimeoutMillis = 3, "g", instance, protocolType, 45_000, 60_000
	if instance != nil {
		join.Version = 9
	}
	join.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: metadata}}
	apply(s.Join(now, 1, join, Client{}, "m", topics))
	apply(s.Tick(now.Add(time.Second)))
	sync := kmsg.NewPtrSyncGroupRequest()
	sync.Version, sync.Group, sync.MemberID, sync.InstanceID, sync.Generation = 5, "g", "m", instance, 1
	sync.GroupAssignment = []kmsg.SyncGroupRequestGroupAssignment{{MemberID: "m", MemberAssignment: assignment}}
	if got := apply(s.Sync(now.Add(time.Second), 2, sync, topics)).(*kmsg.SyncGroupResponse); got.ErrorCode != 0 {
		t.Fatal(kerr.ErrorForCode(got.ErrorCode))
	}
	return s, topics, apply
}

func wants(topics ...string) []byte {
	sub := kmsg.NewConsumerMemberMetadata()
	sub.Topics = topics
	return sub.AppendTo(nil)
}

func assigns(partitions []int32, userData []byte) []byte {
	a := kmsg.NewConsumerMemberAssignment()
	a.Topics, a.UserData = []kmsg.ConsumerMemberAssignmentTopic{{Topic: "t", Partitions: partitions}}, userData
	return a.AppendTo(nil)
}

func joinsConsumer(id string, instance *string) *kmsg.ConsumerGroupHeartbeatRequest {
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.InstanceID, req.MemberEpoch = 1, "g", id, instance, epochJoin
	req.RebalanceTimeoutMillis, req.SubscribedTopicNames, req.Topics = 60_000, []string{"t"}, []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	return req
}

// A classic group stays one if the policy says so, if its members are not consumers, and if their
// assignor is their own or cannot be read.
func TestGroupsThatKeepTheirProtocol(t *testing.T) {
	both := []int32{0, 1}
	for name, c := range map[string]struct {
		policy               Migration
		protocolType         string
		metadata, assignment []byte
		refused              bool
	}{
		"consumers":       {MigrateBoth, "consumer", wants("t"), assigns(both, nil), false},
		"upgrades only":   {MigrateUp, "consumer", wants("t"), assigns(both, nil), false},
		"downgrades only": {MigrateDown, "consumer", wants("t"), assigns(both, nil), true},
		"disabled":        {MigrateNot, "consumer", wants("t"), assigns(both, nil), true},
		"connect":         {MigrateBoth, "connect", wants("t"), assigns(both, nil), true},
		"own assignor":    {MigrateBoth, "consumer", wants("t"), assigns(both, []byte("mine")), true},
		"no subscription": {MigrateBoth, "consumer", []byte{0}, assigns(both, nil), true},
		"no assignment":   {MigrateBoth, "consumer", wants("t"), []byte{0}, true},
	} {
		s, topics, apply := classicGroup(t, Config{Migration: c.policy}, nil, c.protocolType, c.metadata, c.assignment)
		got := apply(s.ConsumerHeartbeat(time.Unix(1001, 0), 3, joinsConsumer("n", nil), defaultTimeouts, Client{}, "", topics)).(*kmsg.ConsumerGroupHeartbeatResponse)
		want := int16(0)
		if c.refused {
			want = kerr.GroupIDNotFound.Code
		}
		if got.ErrorCode != want || (s.groups["g"].consumer == nil) != c.refused {
			t.Errorf("%s: %v, %s, a consumer group: %t", name, kerr.ErrorForCode(got.ErrorCode), deref(got.ErrorMessage), s.groups["g"].consumer != nil)
		}
		if c.refused {
			beat := kmsg.NewPtrHeartbeatRequest()
			beat.Group, beat.MemberID, beat.Generation = "g", "m", 1
			if got := apply(s.Heartbeat(time.Unix(1001, 0), 4, beat, topics)).(*kmsg.HeartbeatResponse); got.ErrorCode != 0 {
				t.Errorf("%s: the classic member: %v", name, kerr.ErrorForCode(got.ErrorCode))
			}
		}
	}
}

// A static member keeps its place when it comes back with the other protocol, although it does not
// leave: the new process has the partitions, and the old one is fenced.
func TestStaticMemberChangesItsProtocol(t *testing.T) {
	one := kmsg.StringPtr("one")
	s, topics, apply := classicGroup(t, Config{}, one, "consumer", wants("t"), assigns([]int32{0, 1}, nil))
	now := time.Unix(1001, 0)
	got := apply(s.ConsumerHeartbeat(now, 3, joinsConsumer("n", one), defaultTimeouts, Client{}, "", topics)).(*kmsg.ConsumerGroupHeartbeatResponse)
	if got.ErrorCode != 0 || got.Assignment == nil || len(got.Assignment.Topics) != 1 || len(got.Assignment.Topics[0].Partitions) != 2 {
		t.Fatalf("the new process: %v, %+v", kerr.ErrorForCode(got.ErrorCode), got.Assignment)
	}
	beat := kmsg.NewPtrHeartbeatRequest()
	beat.Version, beat.Group, beat.MemberID, beat.InstanceID, beat.Generation = 4, "g", "m", one, 1
	if got := apply(s.Heartbeat(now, 4, beat, topics)).(*kmsg.HeartbeatResponse); got.ErrorCode != kerr.FencedInstanceID.Code {
		t.Errorf("the old process: %v", kerr.ErrorForCode(got.ErrorCode))
	}
	join := kmsg.NewPtrJoinGroupRequest()
	join.Version, join.Group, join.InstanceID, join.ProtocolType, join.SessionTimeoutMillis, join.RebalanceTimeoutMillis = 9, "g", one, "consumer", 45_000, 60_000
	join.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: wants("t")}}
	joined := apply(s.Join(now, 5, join, Client{}, "o", topics)).(*kmsg.JoinGroupResponse)
	sync := kmsg.NewPtrSyncGroupRequest()
	sync.Version, sync.Group, sync.MemberID, sync.InstanceID, sync.Generation = 5, "g", joined.MemberID, one, joined.Generation
	synced := apply(s.Sync(now, 6, sync, topics)).(*kmsg.SyncGroupResponse)
	var a kmsg.ConsumerMemberAssignment
	if err := a.ReadFrom(synced.MemberAssignment); err != nil || len(a.Topics) != 1 || len(a.Topics[0].Partitions) != 2 {
		t.Errorf("back again: %v, %v: %+v, %v", kerr.ErrorForCode(joined.ErrorCode), kerr.ErrorForCode(synced.ErrorCode), a, err)
	}
}
