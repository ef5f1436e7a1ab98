package group

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/shard"
)

// paced drives the group g, whose interval is set, of a State, and keeps its log.
type paced struct {
	t        *testing.T
	s        *State
	log      []shard.Record
	now      time.Time
	interval time.Duration
	topics   *Topics
	next     time.Duration // when the member that was heard last is to send its next heartbeat
}

func newPaced(t *testing.T, interval time.Duration) *paced {
	return &paced{t: t, s: NewState(Config{}), now: time.Unix(1000, 0), interval: interval, topics: NewTopics(1, map[string]TopicInfo{
		"t": {topicID("t"), 4}, "u": {topicID("u"), 2},
	})}
}

func (p *paced) apply(step shard.Step) any {
	p.t.Helper()
	for _, r := range step.Records {
		if err := p.s.Replay(r); err != nil {
			p.t.Fatal(err)
		}
		p.log = append(p.log, r)
	}
	if err := sound(p.s); err != nil {
		p.t.Fatal(err)
	}
	return step.Answers[0].Value
}

// restart replays the log, or a snapshot in its place.
func (p *paced) restart(snapshot bool) {
	p.t.Helper()
	if snapshot {
		p.log = p.s.Snapshot()
	}
	p.s = NewState(Config{})
	for _, r := range p.log {
		if err := p.s.Replay(r); err != nil {
			p.t.Fatal(err)
		}
	}
}

// beat is a heartbeat of a member that says what it subscribes to if change does. It returns what the member is told.
func (p *paced) beat(member string, epoch int32, change func(*kmsg.ConsumerGroupHeartbeatRequest)) string {
	p.t.Helper()
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.MemberEpoch, req.RebalanceTimeoutMillis = 1, "g", member, epoch, 60_000
	change(req)
	timeouts := Timeouts{45 * time.Second, 5 * time.Second, p.interval}
	resp := p.apply(p.s.ConsumerHeartbeat(p.now, 1, req, timeouts, Client{}, "", p.topics)).(*kmsg.ConsumerGroupHeartbeatResponse)
	if resp.ErrorCode != 0 {
		p.t.Fatal(kerr.ErrorForCode(resp.ErrorCode), deref(resp.ErrorMessage))
	}
	p.next = millis(resp.HeartbeatIntervalMillis)
	held := 0
	if m := p.s.groups["g"].consumer.members[member]; m != nil {
		held = len(m.assigned)
	}
	return fmt.Sprintf("epoch %d, %d partitions, next in %v", resp.MemberEpoch, held, p.next)
}

func subscribesTo(topics ...string) func(*kmsg.ConsumerGroupHeartbeatRequest) {
	return func(req *kmsg.ConsumerGroupHeartbeatRequest) { req.SubscribedTopicNames = topics }
}

func nothingNew(*kmsg.ConsumerGroupHeartbeatRequest) {}

// phase is the state that is shown, with the epochs of the group and of its assignment.
func (p *paced) phase() string {
	p.t.Helper()
	d := p.apply(p.s.DescribeConsumer(1, "g", p.topics)).(kmsg.ConsumerGroupDescribeResponseGroup)
	return fmt.Sprintf("%s %d/%d", d.State, d.AssignmentEpoch, d.Epoch)
}

func (p *paced) want(what, got, want string) {
	p.t.Helper()
	if got != want {
		p.t.Errorf("%s: %s, want %s", what, got, want)
	}
}

// The first member of a group is assigned partitions at once. Those that come within the interval have nothing until it
// is over, and then there is one assignment for all of them; after another interval the next one comes at once.
func TestChangesWithinTheIntervalAreOneAssignment(t *testing.T) {
	p := newPaced(t, time.Second)
	p.want("the first", p.beat("a", 0, subscribesTo("t")), "epoch 2, 4 partitions, next in 5s")
	p.now = p.now.Add(300 * time.Millisecond)
	p.want("the second", p.beat("b", 0, subscribesTo("t")), "epoch 2, 0 partitions, next in 701ms")
	p.want("the group", p.phase(), "Assigning 2/3")
	p.now = p.now.Add(300 * time.Millisecond)
	p.want("the third", p.beat("c", 0, subscribesTo("t")), "epoch 2, 0 partitions, next in 401ms")
	p.want("the second again", p.beat("b", 2, nothingNew), "epoch 2, 0 partitions, next in 401ms")
	p.want("the group", p.phase(), "Assigning 2/4")
	p.now = p.now.Add(p.next)
	p.want("the second, after the interval", p.beat("b", 2, nothingNew), "epoch 4, 0 partitions, next in 5s")
	p.want("the group", p.phase(), "Reconciling 4/4")
	if c := p.s.groups["g"].consumer; len(c.target["a"]) != 2 || len(c.target["b"]) != 1 || len(c.target["c"]) != 1 {
		t.Errorf("the target is %v", c.target)
	}
	p.now = p.now.Add(time.Second)
	p.want("one that comes later", p.beat("d", 0, subscribesTo("u")), "epoch 5, 2 partitions, next in 5s")
}

// What a member does not subscribe to any more it gives up before the interval is over, and has again if it changes its
// mind.
func TestMembersUnsubscribeWithinTheInterval(t *testing.T) {
	p := newPaced(t, time.Second)
	p.beat("a", 0, subscribesTo("t", "u"))
	p.beat("b", 0, subscribesTo("t"))
	p.beat("b", -1, nothingNew)
	p.want("a, that wants less", p.beat("a", 2, subscribesTo("u")), "epoch 2, 2 partitions, next in 1.001s")
	p.want("the group", p.phase(), "Assigning 2/5")
	p.want("a, that has given up", p.beat("a", 2, func(req *kmsg.ConsumerGroupHeartbeatRequest) { req.Topics = owned("u:0,1") }), "epoch 2, 2 partitions, next in 1.001s")
	p.want("a, that wants all again", p.beat("a", 2, subscribesTo("t", "u")), "epoch 2, 6 partitions, next in 1.001s")
	p.now = p.now.Add(p.next)
	p.want("a, after the interval", p.beat("a", 2, nothingNew), "epoch 6, 6 partitions, next in 5s")
	p.want("the group", p.phase(), "Stable 6/6")
}

// A change that waits for its assignment survives a restart, and so does the time of the last one.
func TestAPendingChangeSurvivesARestart(t *testing.T) {
	for _, snapshot := range []bool{false, true} {
		p := newPaced(t, 10*time.Second)
		p.beat("a", 0, subscribesTo("t"))
		p.now = p.now.Add(time.Second)
		p.beat("b", 0, subscribesTo("u"))
		p.restart(snapshot)
		p.now = p.now.Add(time.Second)
		p.want("before the interval is over", p.beat("b", 2, nothingNew), "epoch 2, 0 partitions, next in 5s")
		p.now = p.now.Add(8 * time.Second)
		p.want("after it", p.beat("b", 2, nothingNew), "epoch 3, 2 partitions, next in 5s")
	}
}

// One who subscribes by a regular expression waits for its assignment when the coordinator starts anew: another member's
// heartbeat assigns by what is known, and its own brings what it should have.
func TestAPendingRegularExpressionSurvivesARestart(t *testing.T) {
	regex := func(req *kmsg.ConsumerGroupHeartbeatRequest) { req.SubscribedTopicRegex = kmsg.StringPtr("u") }
	p := newPaced(t, time.Second)
	p.beat("a", 0, subscribesTo("t"))
	p.beat("b", 0, regex)
	p.restart(false)
	p.now = p.now.Add(time.Second)
	p.beat("a", 2, nothingNew)
	p.now = p.now.Add(time.Second)
	p.want("b", p.beat("b", 2, nothingNew), "epoch 4, 2 partitions, next in 5s")
	p.now = p.now.Add(time.Second)
	p.want("a", p.beat("a", 3, nothingNew), "epoch 4, 4 partitions, next in 5s")
	p.restart(true)
	p.now = p.now.Add(time.Second)
	p.want("a, after a restart that changes nothing", p.beat("a", 4, nothingNew), "epoch 4, 4 partitions, next in 5s")
	p.want("b, after a restart that changes nothing", p.beat("b", 4, nothingNew), "epoch 4, 2 partitions, next in 5s")
}

// An interval that is set anew holds for what waits already; zero has all assigned at once; a clock that was set back makes
// nobody wait longer than the interval.
func TestIntervalIsSetAnewWhileAChangeWaits(t *testing.T) {
	p := newPaced(t, 10*time.Second)
	p.beat("a", 0, subscribesTo("t"))
	p.beat("b", 0, subscribesTo("u"))
	p.now, p.interval = p.now.Add(2*time.Second), 3*time.Second
	p.want("a shorter one", p.beat("b", 2, nothingNew), "epoch 2, 0 partitions, next in 1.001s")
	p.interval = 2 * time.Second
	p.want("one that is over", p.beat("b", 2, nothingNew), "epoch 3, 2 partitions, next in 5s")
	p.interval = 0
	p.want("none", p.beat("c", 0, subscribesTo("t")), "epoch 4, 0 partitions, next in 5s")
	p.interval = 10 * time.Second
	p.want("one again", p.beat("d", 0, subscribesTo("t")), "epoch 4, 0 partitions, next in 5s")
	p.now = p.now.Add(-time.Hour)
	p.want("before the last assignment", p.beat("d", 4, nothingNew), "epoch 5, 0 partitions, next in 5s")
}

// Members of a share group that come within the interval have nothing until it is over.
func TestChangesOfAShareGroupWithinTheIntervalAreOneAssignment(t *testing.T) {
	s := newShareScript(t)
	s.interval = time.Second
	want := func(what string, resp *kmsg.ShareGroupHeartbeatResponse, want string) {
		t.Helper()
		got := fmt.Sprintf("epoch %d, %d partitions, next in %v", resp.MemberEpoch, len(s.state.groups["g"].share.members[*resp.MemberID].assigned), millis(resp.HeartbeatIntervalMillis))
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	epochs := func() string {
		d := s.state.DescribeShare(1, "g", s.topics).Answers[0].Value.(kmsg.ShareGroupDescribeResponseGroup)
		return fmt.Sprintf("%s %d/%d", d.GroupState, d.AssignmentEpoch, d.GroupEpoch)
	}
	want("the first", s.heartbeat("a", 0, "t", "u"), "epoch 2, 4 partitions, next in 5s")
	s.now = s.now.Add(400 * time.Millisecond)
	want("the second", s.heartbeat("b", 0, "t"), "epoch 2, 0 partitions, next in 601ms")
	want("the first, that wants less", s.heartbeat("a", 2, "t"), "epoch 2, 3 partitions, next in 601ms")
	if got := epochs(); got != "Stable 2/4" {
		t.Errorf("the group is %s", got)
	}
	s.now = s.now.Add(601 * time.Millisecond)
	want("the second, after the interval", s.heartbeat("b", 2), "epoch 4, 1 partitions, next in 5s")
	want("the first, after the interval", s.heartbeat("a", 2), "epoch 4, 2 partitions, next in 5s")
	s.heartbeat("b", -1)
	want("the first, alone again", s.heartbeat("a", 4), "epoch 4, 2 partitions, next in 1.001s")
	s.restart(false)
	want("the first, after a restart", s.heartbeat("a", 4), "epoch 5, 3 partitions, next in 5s")
}

// A member of a share group that loses two answers, the second of them while a change waits, is still in the group.
func TestLostAnswersWhileAShareGroupWaits(t *testing.T) {
	s := newShareScript(t)
	s.interval = time.Second
	s.heartbeat("a", 0, "t", "u")
	s.heartbeat("b", 0, "t")
	s.now = s.now.Add(time.Second)
	if got := s.heartbeat("a", 2).MemberEpoch; got != 3 {
		t.Fatalf("epoch %d after the interval, want 3", got)
	}
	s.heartbeat("c", 0, "t")
	s.heartbeat("a", 2, "t")
	if got := s.heartbeat("a", 2, "t"); got.ErrorCode != 0 || got.MemberEpoch != 3 {
		t.Errorf("the third time: epoch %d, %v", got.MemberEpoch, kerr.ErrorForCode(got.ErrorCode))
	}
}

// A static member that returns has what it says that it holds, nothing: what became another's meanwhile it need not give
// up, and its epoch is one with which it can go on.
func TestInstanceThatReturnsHasNothingToGiveUp(t *testing.T) {
	p := newPaced(t, 0)
	joins := func(req *kmsg.ConsumerGroupHeartbeatRequest) {
		req.InstanceID, req.SubscribedTopicNames, req.Topics = kmsg.StringPtr("i"), []string{"t"}, []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	}
	p.beat("a", 0, joins)
	p.beat("a", -2, func(req *kmsg.ConsumerGroupHeartbeatRequest) { req.InstanceID = kmsg.StringPtr("i") })
	p.want("another", p.beat("b", 0, subscribesTo("t")), "epoch 3, 0 partitions, next in 5s")
	p.want("the instance", p.beat("a2", 0, joins), "epoch 3, 2 partitions, next in 5s")
	p.want("the other again", p.beat("b", 3, nothingNew), "epoch 3, 2 partitions, next in 5s")
	p.want("the instance again", p.beat("a2", 3, func(req *kmsg.ConsumerGroupHeartbeatRequest) { req.InstanceID = kmsg.StringPtr("i") }), "epoch 3, 2 partitions, next in 5s")
	p.want("the group", p.phase(), "Stable 3/3")
}

// The first member of a group of either protocol makes its epoch 2, as in Kafka: 1 is that of a group in which nobody ever
// was, such as a share group whose offsets were set before.
func TestFirstMemberMakesTheEpochTwo(t *testing.T) {
	p := newPaced(t, 0)
	p.want("a consumer", p.beat("a", 0, subscribesTo("t")), "epoch 2, 4 partitions, next in 5s")
	p.want("its group", p.phase(), "Stable 2/2")
	for _, altered := range []bool{false, true} {
		s := newShareScript(t)
		if altered {
			records, err := s.state.alterShareOffsets("g", map[uuid.UUID]map[int32]int64{topicID("t"): {0: 1}}, s.now)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range records {
				if err := s.state.Replay(r); err != nil {
					t.Fatal(err)
				}
			}
			if got := s.state.groups["g"].share.epoch; got != 1 {
				t.Errorf("a group without members is in epoch %d, want 1", got)
			}
		}
		if got := s.heartbeat("a", 0, "t").MemberEpoch; got != 2 {
			t.Errorf("offsets set before: %t: the first member is in epoch %d, want 2", altered, got)
		}
	}
}
