package group

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/shard"
)

// Every partition of a subscribed topic has one owner, who subscribes to it; loads of members
// that want the same are even; and who has no more than its share loses nothing.
func TestAssignors(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 0))
		topics := map[string]TopicInfo{}
		for i := range 1 + r.IntN(5) {
			topics[fmt.Sprintf("t%d", i)] = TopicInfo{ID: uuid.NewSHA1(uuid.Nil, fmt.Append(nil, i)), Partitions: 1 + r.IntN(12)}
		}
		names := slices.Sorted(maps.Keys(topics))
		same := r.IntN(2) == 0
		a := assignable{topics: map[string][]string{}, present: NewTopics(1, topics), target: map[string]partitionSet{}}
		for round := range 4 { // members come and go
			for range 1 + r.IntN(4) {
				m := fmt.Sprintf("m%02d", r.IntN(12))
				if _, there := a.topics[m]; there && len(a.topics) > 1 && r.IntN(2) == 0 {
					delete(a.topics, m)
					continue
				}
				a.topics[m] = names
				if !same {
					a.topics[m] = names[:1+r.IntN(len(names))]
				}
			}
			a.members = slices.Sorted(maps.Keys(a.topics))
			for _, assignor := range assignors {
				got := a.solve(assignor)
				checkAssignment(t, &a, got)
				if assignor != uniform {
					continue
				}
				low, high := 1<<30, 0
				for _, m := range a.members {
					low, high = min(low, len(got[m])), max(high, len(got[m]))
				}
				if same && high > low+1 {
					t.Fatalf("seed %d round %d: between %d and %d partitions", seed, round, low, high)
				}
				if again := (&assignable{members: a.members, topics: a.topics, present: a.present, target: got}).solve(uniform); !maps.EqualFunc(got, again, maps.Equal) {
					t.Fatalf("seed %d round %d: an assignment that is even moves", seed, round)
				}
				for _, m := range a.members {
					for p := range a.target[m] {
						if _, kept := got[m][p]; same && !kept && len(a.target[m]) <= low {
							t.Fatalf("seed %d round %d: %s lost a partition although it had %d, and others get %d", seed, round, m, len(a.target[m]), low)
						}
					}
				}
				a.target = got
			}
		}
	}
}

func checkAssignment(t *testing.T, a *assignable, got map[string]partitionSet) {
	t.Helper()
	owner := map[partitionID]string{}
	for m, set := range got {
		for p := range set {
			if other, twice := owner[p]; twice {
				t.Fatalf("%v is both %s's and %s's", p, m, other)
			}
			owner[p] = m
			if !slices.Contains(a.topics[m], a.present.names[p.topic]) {
				t.Fatalf("%s has %s without a subscription", m, a.present.names[p.topic])
			}
		}
	}
	wanted := 0
	for topic := range a.subscribers() {
		wanted += a.present.byName[topic].Partitions
	}
	if len(owner) != wanted {
		t.Fatalf("%d partitions have an owner, want %d", len(owner), wanted)
	}
}

// A consumerClient is a member as the protocol wants it: what it was told to give up it
// gives up before it says so.
type consumerClient struct {
	id    string
	epoch int32
	holds partitionSet // consumes from now
	told  partitionSet // may consume
	lost  bool         // an answer; says all about itself the next time
}

// Members join, leave, die, lose answers, and the coordinator restarts, while topics grow: no
// partition is ever consumed by two members, and once nothing changes any more each has one.
func TestConsumerGroupModel(t *testing.T) {
	for seed := range uint64(100) {
		m := &consumerModel{t: t, r: rand.New(rand.NewPCG(seed, 1)), state: NewState(Config{}), now: time.Unix(1000, 0), clients: map[string]*consumerClient{}, partitions: 3}
		m.timeouts = defaultTimeouts
		m.timeouts.Assignment = time.Duration(seed%4) * time.Second
		m.grow()
		for step := range 200 {
			m.where = fmt.Sprintf("seed %d step %d", seed, step)
			m.step()
			m.exclusive()
		}
		m.where = fmt.Sprintf("seed %d, at the end", seed)
		m.settle()
	}
}

type consumerModel struct {
	t          *testing.T
	r          *rand.Rand
	state      *State
	log        []shard.Record
	now        time.Time
	topics     *Topics
	version    uint64
	partitions int
	clients    map[string]*consumerClient
	timeouts   Timeouts
	joined     int
	where      string
}

func (m *consumerModel) grow() {
	m.version++
	m.topics = NewTopics(m.version, map[string]TopicInfo{"t": {ID: topicID("t"), Partitions: m.partitions}, "u": {ID: topicID("u"), Partitions: 2}})
}

func (m *consumerModel) apply(step shard.Step) any {
	for _, r := range step.Records {
		if err := m.state.Replay(r); err != nil {
			m.t.Fatalf("%s: %v", m.where, err)
		}
		m.log = append(m.log, r)
	}
	if err := sound(m.state); err != nil {
		m.t.Fatalf("%s: %v", m.where, err)
	}
	if len(step.Answers) == 0 {
		return nil
	}
	return step.Answers[0].Value
}

func (m *consumerModel) step() {
	ids := slices.Sorted(maps.Keys(m.clients))
	switch op := m.r.IntN(100); {
	case op < 10 && len(ids) < 8:
		m.joined++
		id := fmt.Sprintf("m%d", m.joined)
		m.clients[id] = &consumerClient{id: id, lost: true}
		m.heartbeat(m.clients[id], 0)
	case len(ids) == 0:
	case op < 14: // leaves
		c := m.clients[ids[m.r.IntN(len(ids))]]
		c.holds = nil
		m.heartbeat(c, epochLeave)
		delete(m.clients, c.id)
	case op < 16: // dies; its session ends
		delete(m.clients, ids[m.r.IntN(len(ids))])
		for range 10 {
			m.pass(5 * time.Second)
			for _, id := range slices.Sorted(maps.Keys(m.clients)) {
				m.beat(m.clients[id])
			}
		}
	case op < 18:
		m.partitions += m.r.IntN(3)
		m.grow()
	case op < 22: // the coordinator starts anew
		if m.r.IntN(2) == 0 {
			m.log = m.state.Snapshot()
		}
		m.state = NewState(Config{})
		for _, r := range m.log {
			if err := m.state.Replay(r); err != nil {
				m.t.Fatalf("%s: %v", m.where, err)
			}
		}
	case op < 40:
		m.pass(time.Second)
	default:
		m.beat(m.clients[ids[m.r.IntN(len(ids))]])
	}
}

func (m *consumerModel) pass(d time.Duration) {
	m.now = m.now.Add(d)
	if wake := m.state.Wake(); !wake.IsZero() && !wake.After(m.now) {
		m.apply(m.state.Tick(m.now))
	}
}

// beat is one heartbeat as a client sends it; some answers are lost.
func (m *consumerModel) beat(c *consumerClient) {
	for _, p := range sortedPartitions(c.holds) { // gives up what it must, before it says so
		if _, keep := c.told[p]; !keep && m.r.IntN(3) > 0 {
			delete(c.holds, p)
		}
	}
	m.heartbeat(c, c.epoch)
}

func (m *consumerModel) heartbeat(c *consumerClient, epoch int32) {
	resp := m.apply(m.state.ConsumerHeartbeat(m.now, 1, c.beat(epoch, "t", "u"), m.timeouts, Client{ID: "c", Host: "/h"}, "", m.topics)).(*kmsg.ConsumerGroupHeartbeatResponse)
	if err := c.hear(epoch, resp, func() bool { return m.r.IntN(10) == 0 }); err != nil {
		m.t.Fatalf("%s: %v", m.where, err)
	}
}

// beat is the next heartbeat of a member.
func (c *consumerClient) beat(epoch int32, topics ...string) *kmsg.ConsumerGroupHeartbeatRequest {
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.MemberEpoch = 1, "g", c.id, epoch
	if epoch == epochJoin || c.lost {
		req.RebalanceTimeoutMillis, req.SubscribedTopicNames = 300_000, topics
	}
	req.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	for _, tp := range c.holds.topics() {
		req.Topics = append(req.Topics, kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: tp.topic, Partitions: tp.partitions})
	}
	return req
}

// hear takes the answer to a heartbeat of an epoch, which may be lost.
func (c *consumerClient) hear(epoch int32, resp *kmsg.ConsumerGroupHeartbeatResponse, loses func() bool) error {
	switch {
	case resp.ErrorCode == kerr.FencedMemberEpoch.Code || resp.ErrorCode == kerr.UnknownMemberID.Code || resp.ErrorCode == kerr.GroupIDNotFound.Code:
		c.holds, c.told, c.epoch, c.lost = nil, nil, epochJoin, true // gives up all and joins again
		return nil
	case resp.ErrorCode != 0:
		return fmt.Errorf("%w: %s", kerr.ErrorForCode(resp.ErrorCode), deref(resp.ErrorMessage))
	case epoch < 0:
		return nil
	case loses():
		c.lost = true
		return nil
	}
	c.epoch, c.lost = resp.MemberEpoch, false
	if resp.Assignment == nil {
		return nil
	}
	c.told = partitionSet{}
	for _, t := range resp.Assignment.Topics {
		for _, p := range t.Partitions {
			c.told[partitionID{t.TopicID, p}] = struct{}{}
		}
	}
	if c.holds == nil {
		c.holds = partitionSet{}
	}
	maps.Copy(c.holds, c.told)
	return nil
}

func (m *consumerModel) exclusive() {
	owner := map[partitionID]string{}
	for id, c := range m.clients {
		for p := range c.holds {
			if other, twice := owner[p]; twice {
				m.t.Fatalf("%s: %v is consumed by %s and %s", m.where, p, id, other)
			}
			owner[p] = id
		}
	}
}

// settle lets the members that are there beat until nothing is left to do.
func (m *consumerModel) settle() {
	for range 60 {
		m.pass(time.Second)
		for _, id := range slices.Sorted(maps.Keys(m.clients)) {
			m.beat(m.clients[id])
			m.exclusive()
		}
	}
	if len(m.clients) == 0 {
		return
	}
	for range 5 {
		for _, id := range slices.Sorted(maps.Keys(m.clients)) {
			m.beat(m.clients[id])
		}
	}
	held := 0
	for _, c := range m.clients {
		held += len(c.holds)
	}
	if want := m.partitions + 2; held != want {
		m.t.Fatalf("%s: %d of %d partitions are consumed", m.where, held, want)
	}
}

// The session timeout of a group is that of its settings, from each member's next heartbeat on.
func TestSessionTimeoutOfAGroup(t *testing.T) {
	s, now, topics := NewState(Config{}), time.Unix(1000, 0), NewTopics(1, map[string]TopicInfo{"t": {topicID("t"), 1}})
	members := func() int { return len(s.groups["g"].consumer.members) }
	apply := func(step shard.Step) {
		t.Helper()
		for _, r := range step.Records {
			if err := s.Replay(r); err != nil {
				t.Fatal(err)
			}
		}
	}
	beat := func(epoch int32, session time.Duration) {
		t.Helper()
		req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
		req.Version, req.Group, req.MemberID, req.MemberEpoch = 1, "g", "m", epoch
		req.RebalanceTimeoutMillis, req.SubscribedTopicNames = 60_000, []string{"t"}
		step := s.ConsumerHeartbeat(now, 1, req, Timeouts{Session: session, Heartbeat: 7 * time.Second}, Client{}, "", topics)
		if resp := step.Answers[0].Value.(*kmsg.ConsumerGroupHeartbeatResponse); resp.ErrorCode != 0 || resp.HeartbeatIntervalMillis != 7000 {
			t.Fatalf("%v, a heartbeat each %d ms", kerr.ErrorForCode(resp.ErrorCode), resp.HeartbeatIntervalMillis)
		}
		apply(step)
	}
	beat(0, 45*time.Second)
	now = now.Add(40 * time.Second)
	beat(2, time.Minute)
	now = now.Add(59 * time.Second)
	if apply(s.Tick(now)); members() != 1 {
		t.Error("a member is gone before the session timeout of its group")
	}
	now = now.Add(time.Second)
	if apply(s.Tick(now)); members() != 0 {
		t.Error("a member is there after the session timeout of its group")
	}
}

// regexMember sends heartbeats for a member that subscribes to all topics, and returns what it may have.
func regexMember(t *testing.T, s **State, id string, client func() Client, topics **Topics) func(epoch int32) string {
	has := "nothing"
	return func(epoch int32) string {
		t.Helper()
		req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
		req.Version, req.Group, req.MemberID, req.MemberEpoch = 1, "g", id, epoch
		if epoch == 0 {
			req.RebalanceTimeoutMillis, req.SubscribedTopicRegex, req.Topics = 60_000, kmsg.StringPtr(".*"), []kmsg.ConsumerGroupHeartbeatRequestTopic{}
		}
		for {
			step := (*s).ConsumerHeartbeat(time.Unix(1000, 0), 1, req, defaultTimeouts, client(), "", *topics)
			for _, r := range step.Records {
				if err := (*s).Replay(r); err != nil {
					t.Fatal(err)
				}
			}
			resp := step.Answers[0].Value.(*kmsg.ConsumerGroupHeartbeatResponse)
			if resp.ErrorCode != 0 {
				t.Fatal(kerr.ErrorForCode(resp.ErrorCode), deref(resp.ErrorMessage))
			}
			if resp.Assignment == nil {
				return fmt.Sprintf("%s in epoch %d", has, resp.MemberEpoch)
			}
			var names []string
			req = kmsg.NewPtrConsumerGroupHeartbeatRequest()
			req.Version, req.Group, req.MemberID, req.MemberEpoch, req.Topics = 1, "g", id, resp.MemberEpoch, []kmsg.ConsumerGroupHeartbeatRequestTopic{}
			for _, at := range resp.Assignment.Topics {
				for _, p := range at.Partitions {
					names = append(names, fmt.Sprintf("%s-%d", (*topics).names[at.TopicID], p))
				}
				req.Topics = append(req.Topics, kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: at.TopicID, Partitions: at.Partitions})
			}
			slices.Sort(names)
			has = fmt.Sprint(names)
		}
	}
}

// What a regular expression matches is what its member may describe, each member for itself; it
// follows ACLs and topics with the next heartbeat, and a restart of the coordinator moves nothing.
func TestRegularExpressionsFollowRights(t *testing.T) {
	s := NewState(Config{})
	topics := NewTopics(1, map[string]TopicInfo{"a": {topicID("a"), 1}, "b": {topicID("b"), 1}})
	sees := map[string]bool{"a": true, "b": true}
	rights := uint64(1)
	limited := func() Client {
		return Client{Principal: "User:m", Rights: rights, Sees: func(topic string) bool { return sees[topic] }}
	}
	m := regexMember(t, &s, "m", limited, &topics)
	want := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	want(m(0), "[a-0 b-0] in epoch 2")
	delete(sees, "b")
	rights++
	want(m(2), "[a-0] in epoch 3")
	rights++ // of others
	want(m(3), "[a-0] in epoch 3")
	topics = NewTopics(2, map[string]TopicInfo{"a": {topicID("a"), 1}, "b": {topicID("b"), 1}, "c": {topicID("c"), 1}})
	want(m(3), "[a-0] in epoch 3")
	sees["c"] = true
	rights++
	want(m(3), "[a-0 c-0] in epoch 4")

	again := NewState(Config{})
	for _, r := range s.Snapshot() {
		if err := again.Replay(r); err != nil {
			t.Fatal(err)
		}
	}
	s = again
	want(m(4), "[a-0 c-0] in epoch 4")

	// One that sees all has what the other may not see.
	all := regexMember(t, &s, "n", func() Client { return Client{} }, &topics)
	all(0)
	want(m(4), "[a-0 c-0] in epoch 5")
	want(all(5), "[b-0] in epoch 5")
}
