package group

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/broker/share"
	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/internal/shard"
)

// recount counts anew what a state takes in memory.
func recount(s *State) (n int64) {
	for _, g := range s.groups {
		n += int64(g.recount())
		for tp, o := range g.offsets {
			n += int64(o.bytes(tp))
		}
	}
	for _, pending := range s.pending {
		for gp, p := range pending {
			n += int64(p.bytes(gp.topicPartition))
		}
	}
	return n
}

// recount adds up what is in a group, its offsets apart.
func (g *group) recount() int {
	n := groupBytes + len(g.id)
	for id := range g.invited {
		n += inviteBytes + len(id)
	}
	for _, m := range g.members {
		n += memberBytes + m.bytes()
	}
	if c := g.consumer; c != nil {
		counted := map[*matched]bool{}
		for _, m := range c.members {
			n += memberBytes + len(m.id) + m.said() + heldBytes*(len(m.assigned)+len(m.revoking))
			if !counted[m.matched] {
				counted[m.matched] = true
				n += m.matched.said()
			}
		}
		for _, target := range c.target {
			n += heldBytes * len(target)
		}
		n += ownerBytes * len(c.owners)
	}
	if c := g.share; c != nil {
		for _, m := range c.members {
			n += memberBytes + len(m.id) + m.said() + 2*heldBytes*len(m.assigned)
		}
		for _, st := range c.states {
			n += deliveredBytes + rangeBytes*len(st.saved.Ranges)
		}
	}
	return n
}

// sound returns what is wrong with the sums of a state, and with its deadlines: each group is looked at by the first
// time at which something of it is due, and one of which there is nothing is looked at some time.
func sound(s *State) error {
	if got, want := s.held(), recount(s); got != want {
		return fmt.Errorf("%d bytes are counted, of %d", got, want)
	}
	for id, g := range s.groups {
		said, protocols := 0, map[string]int{}
		for _, m := range g.members {
			said += m.said()
			for name := range protocolNames(m.protocols) {
				protocols[name]++
			}
		}
		if g.says.said != said || len(protocols) != len(g.says.protocols) {
			return fmt.Errorf("group %q: members say %d bytes, of %d, of protocols %v, of %v", id, g.says.said, said, g.says.protocols, protocols)
		}
		for name, n := range protocols {
			if g.says.protocols[name] != n {
				return fmt.Errorf("group %q: %d members have protocol %q, of %d", id, g.says.protocols[name], name, n)
			}
		}
		if g.place != notDue && s.deadlines[g.place] != g {
			return fmt.Errorf("group %q is not where it is among the deadlines", id)
		}
		for _, due := range g.dues() {
			if g.place == notDue || g.wake.After(due) {
				return fmt.Errorf("group %q: something is due at %v, and it is looked at by %v (%d)", id, due, g.wake, g.place)
			}
		}
		if !g.kept() && g.place == notDue {
			return fmt.Errorf("group %q: there is nothing of it, and nobody looks", id)
		}
	}
	for _, g := range s.deadlines {
		if s.groups[g.id] != g {
			return fmt.Errorf("group %q has ended, and is among the deadlines", g.id)
		}
	}
	return nil
}

// dues are all times at which something of a group is due.
func (g *group) dues() (all []time.Time) {
	for _, until := range g.invited {
		all = append(all, until)
	}
	if !g.deadline.IsZero() {
		all = append(all, g.deadline)
	}
	for _, m := range g.members {
		if m.join == 0 {
			all = append(all, m.expires)
		}
	}
	if g.consumer != nil {
		for _, m := range g.consumer.members {
			all = append(all, m.expires)
			for _, by := range []time.Time{m.revokeBy, m.due} {
				if !by.IsZero() {
					all = append(all, by)
				}
			}
		}
	}
	if g.share != nil {
		for _, m := range g.share.members {
			all = append(all, m.expires)
		}
	}
	for i, due := range all {
		if due.IsZero() { // known by replay alone: counts from the first tick
			all[i] = atOnce
		}
	}
	return all
}

// crowd sends what strangers and members send to one state.
type crowd struct {
	t      *testing.T
	s      *State
	now    time.Time
	topics *Topics
}

func newCrowd(t *testing.T, cfg Config) *crowd {
	topics := map[string]TopicInfo{}
	for i := range 100 {
		name := fmt.Sprint("topic-", i)
		topics[name] = TopicInfo{topicID(name), 100}
	}
	return &crowd{t, NewState(cfg), time.Unix(1000, 0), NewTopics(1, topics)}
}

func (c *crowd) apply(step shard.Step) any {
	c.t.Helper()
	for _, r := range step.Records {
		if err := c.s.Replay(r); err != nil {
			c.t.Fatal(err)
		}
	}
	if err := sound(c.s); err != nil {
		c.t.Fatal(err)
	}
	if len(step.Answers) == 0 {
		return nil
	}
	return step.Answers[0].Value
}

func (c *crowd) commit(group string, partition int32, metadata string) *kerr.Error {
	c.t.Helper()
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group, req.Generation = 8, group, -1
	req.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Partition: partition, Metadata: &metadata}}}}
	resp := c.apply(c.s.Commit(c.now, 1, req, func(string, int32) bool { return true })).(*kmsg.OffsetCommitResponse)
	return kerr.TypedErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
}

func (c *crowd) txnCommit(producer int64, group string, partition int32) *kerr.Error {
	c.t.Helper()
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.Version, req.Group, req.Generation, req.ProducerID = 3, group, -1, producer
	req.Topics = []kmsg.TxnOffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{{Partition: partition}}}}
	resp, records := c.s.TxnCommit(c.now, req, func(string, int32) bool { return true })
	c.apply(shard.Step{Records: records})
	return kerr.TypedErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
}

func (c *crowd) join(group string) *kerr.Error {
	c.t.Helper()
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.ProtocolType, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 3, group, "consumer", 10_000, 10_000
	req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range"}}
	resp := c.apply(c.s.Join(c.now, 1, req, Client{}, uuid.NewString(), c.topics))
	if resp == nil {
		return nil // it waits for the others
	}
	return kerr.TypedErrorForCode(resp.(*kmsg.JoinGroupResponse).ErrorCode)
}

func (c *crowd) beat(group, member string, epoch int32, topics ...string) *kmsg.ConsumerGroupHeartbeatResponse {
	c.t.Helper()
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.MemberEpoch, req.RebalanceTimeoutMillis, req.SubscribedTopicNames = 1, group, member, epoch, 60_000, topics
	return c.apply(c.s.ConsumerHeartbeat(c.now, 1, req, defaultTimeouts, Client{}, "", c.topics)).(*kmsg.ConsumerGroupHeartbeatResponse)
}

func (c *crowd) share(group, member string) *kmsg.ShareGroupHeartbeatResponse {
	c.t.Helper()
	req := kmsg.NewPtrShareGroupHeartbeatRequest()
	req.GroupID, req.MemberID, req.SubscribedTopicNames = group, member, []string{"topic-1"}
	return c.apply(c.s.ShareHeartbeat(c.now, 1, req, defaultTimeouts, Client{}, c.topics)).(*kmsg.ShareGroupHeartbeatResponse)
}

// Whatever names strangers think of, what groups take in memory stays within its bound. They are told so, whatever they
// ask for, and leave no trace; who was there before goes on, and comes back; there is room again when groups are deleted.
func TestMemoryOfGroupsIsBounded(t *testing.T) {
	const bound = 1 << 20
	fill := map[string]func(c *crowd, i int) *kerr.Error{
		"offsets": func(c *crowd, i int) *kerr.Error { return c.commit(fmt.Sprint("stranger-", i), 0, "") },
		"offsets of transactions": func(c *crowd, i int) *kerr.Error {
			return c.txnCommit(int64(i), fmt.Sprint("stranger-", i), 0)
		},
		"members": func(c *crowd, i int) *kerr.Error { return c.join(fmt.Sprint("stranger-", i)) },
		"members of the consumer protocol": func(c *crowd, i int) *kerr.Error {
			return kerr.TypedErrorForCode(c.beat(fmt.Sprint("stranger-", i), "m", 0, "topic-1").ErrorCode)
		},
		"members of share groups": func(c *crowd, i int) *kerr.Error {
			return kerr.TypedErrorForCode(c.share(fmt.Sprint("stranger-", i), "m").ErrorCode)
		},
	}
	for name, stranger := range fill {
		t.Run(name, func(t *testing.T) {
			c := newCrowd(t, Config{MemoryBytes: bound, Partitions: 1})
			if err := c.commit("own", 0, ""); err != nil {
				t.Fatal(err)
			}
			var err *kerr.Error
			n := 0
			for ; err == nil; n++ {
				if n > bound/groupBytes {
					t.Fatalf("%d groups in %d bytes", n, bound)
				}
				err = stranger(c, n)
			}
			if want := kerr.PolicyViolation; strings.HasPrefix(name, "offsets") && err != want {
				t.Errorf("a stranger too much: %v, want %v", err, want)
			} else if want := kerr.GroupMaxSizeReached; !strings.HasPrefix(name, "offsets") && err != want {
				t.Errorf("a stranger too much: %v, want %v", err, want)
			}
			for i := 0; c.commit(fmt.Sprint(i), 0, "") == nil; i++ { // what is too small for one more of them
			}
			if c.s.refused == 0 {
				t.Error("nobody is told that there was no room")
			}
			before := len(c.s.groups)
			if err := c.commit("other", 0, ""); err != kerr.PolicyViolation {
				t.Errorf("offsets of another group: %v", err)
			}
			if err := c.txnCommit(1<<40, "other", 0); err != kerr.PolicyViolation {
				t.Errorf("offsets of another group in a transaction: %v", err)
			}
			if err := c.join("other"); err != kerr.GroupMaxSizeReached {
				t.Errorf("a member of another group: %v", err)
			}
			if got := c.beat("other", "m", 0, "topic-1"); kerr.TypedErrorForCode(got.ErrorCode) != kerr.GroupMaxSizeReached || !strings.Contains(*got.ErrorMessage, "groups-memory-bytes") {
				t.Errorf("a member of another group of the consumer protocol: %d %s", got.ErrorCode, deref(got.ErrorMessage))
			}
			if got := c.share("other", "m"); kerr.TypedErrorForCode(got.ErrorCode) != kerr.GroupMaxSizeReached || !strings.Contains(*got.ErrorMessage, "groups-memory-bytes") {
				t.Errorf("a member of another share group: %d %s", got.ErrorCode, deref(got.ErrorMessage))
			}
			if len(c.s.groups) != before {
				t.Errorf("%d groups after refusals, there were %d", len(c.s.groups), before)
			}
			if err := c.commit("own", 0, ""); err != nil {
				t.Errorf("an offset that was there: %v", err)
			}
			if err := c.commit("own", 1, ""); err != nil {
				t.Errorf("another offset of a group that was there: %v", err)
			}
			if err := c.join("own"); err != nil {
				t.Errorf("a member of a group that was there: %v", err)
			}
			for i := range int32(bound / 1000) { // a stranger goes on with the name of a group that is there
				if c.s.groups["stranger-0"].occupied() || c.commit("stranger-0", i, strings.Repeat("x", 1000)) != nil {
					break
				}
			}
			if got := c.s.held(); got > bound {
				t.Errorf("groups take %d bytes, of %d", got, bound)
			}
		})
	}
}

// There is room again when a group is deleted, or has expired.
func TestDeletedGroupsMakeRoom(t *testing.T) {
	c := newCrowd(t, Config{MemoryBytes: 100_000, Partitions: 1})
	n := 0
	for c.commit(fmt.Sprint("g", n), 0, "") == nil {
		n++
	}
	c.apply(c.s.Delete(1, "g0"))
	if err := c.commit("another", 0, ""); err != nil {
		t.Errorf("in the place of a deleted group: %v", err)
	}
	if err := c.commit("one more", 0, ""); err != kerr.PolicyViolation {
		t.Errorf("beyond the bound: %v", err)
	}
	c.now = c.now.Add(8 * 24 * time.Hour)
	c.apply(c.s.Tick(c.now))
	c.apply(c.s.Tick(c.now.Add(4 * time.Hour)))
	if got := c.s.held(); got != 0 || len(c.s.groups) != 0 {
		t.Errorf("%d groups are left, of %d bytes", len(c.s.groups), got)
	}
	if err := c.commit("one more", 0, ""); err != nil {
		t.Errorf("after all have expired: %v", err)
	}
}

// The state of deliveries of share groups has the same bound, for partitions that were not used before.
func TestMemoryOfDeliveriesIsBounded(t *testing.T) {
	c := newCrowd(t, Config{MemoryBytes: 100_000, Partitions: 1})
	if got := c.share("s", "m"); got.ErrorCode != 0 {
		t.Fatal(*got.ErrorMessage)
	}
	load := func(index int32) error {
		_, records, err := c.s.LoadShare(c.now, share.Key{Group: "s", Topic: topicID("topic-1"), Index: index}, 1)
		c.apply(shard.Step{Records: records})
		return err
	}
	index := int32(0)
	for ; load(index) == nil; index++ {
		if index > 100_000/deliveredBytes {
			t.Fatalf("the states of %d partitions in 100,000 bytes", index)
		}
	}
	if err := load(0); err != nil {
		t.Errorf("a partition that was used before: %v", err)
	}
}

// Where a share group begins anew in partitions that it has used, nothing grows: that is done however full the memory is, and
// partitions that are new to it are refused.
func TestOffsetsOfShareGroupsAreAlteredInFullMemory(t *testing.T) {
	c := newCrowd(t, Config{MemoryBytes: 100_000, Partitions: 1})
	alter := func(partitions ...int32) error {
		starts := map[uuid.UUID]map[int32]int64{topicID("topic-1"): {}}
		for _, p := range partitions {
			starts[topicID("topic-1")][p] = 7
		}
		records, err := c.s.alterShareOffsets("s", starts, c.now)
		c.apply(shard.Step{Records: records})
		return err
	}
	if err := alter(0, 1, 2); err != nil {
		t.Fatal(err)
	}
	for i := int32(0); c.commit("own", i, strings.Repeat("x", 1000)) == nil; i++ {
	}
	for i := int32(0); c.commit("own", 1000+i, "") == nil; i++ {
	}
	if err := alter(0, 1, 2); err != nil {
		t.Errorf("partitions that were there: %v", err)
	}
	if err := alter(2, 3); !errors.Is(err, ErrNoRoom) {
		t.Errorf("with one that is new: %v, want %v", err, ErrNoRoom)
	}
	if got := len(c.s.groups["s"].share.states); got != 3 {
		t.Errorf("the group knows %d partitions, want 3", got)
	}
}

// A member counts with what it says itself, not with what the others of its group say: a group may fill most of the memory.
func TestMembersCountForThemselves(t *testing.T) {
	c := newCrowd(t, Config{MemoryBytes: 200_000, Partitions: 1, MaxBytes: 1 << 20})
	for i := range 15 {
		if got := c.beat("g", fmt.Sprint("m", i), 0, strings.Repeat("x", 10_000)); got.ErrorCode != 0 {
			t.Fatalf("member %d, where %d bytes of 200,000 are taken: %s", i, c.s.held(), *got.ErrorMessage)
		}
	}
}

// A member that names a great many protocols costs no more than the others: what all have, and what most prefer, is found
// without comparing each with each.
func TestManyProtocolsOfMembers(t *testing.T) {
	c := newCrowd(t, Config{MaxBytes: 1 << 30, MemoryBytes: 1 << 40})
	for i := range 3 {
		req := kmsg.NewPtrJoinGroupRequest()
		req.Version, req.Group, req.ProtocolType, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 3, "g", "consumer", 10_000, 10_000
		for p := range 50_000 {
			req.Protocols = append(req.Protocols, kmsg.JoinGroupRequestProtocol{Name: fmt.Sprint(i, "-", p)})
		}
		req.Protocols = append(req.Protocols, kmsg.JoinGroupRequestProtocol{Name: "range"})
		if got := c.apply(c.s.Join(c.now, shard.Ticket(i+1), req, Client{}, uuid.NewString(), c.topics)); got != nil {
			t.Fatalf("member %d: %v", i, kerr.ErrorForCode(got.(*kmsg.JoinGroupResponse).ErrorCode))
		}
	}
	step := c.s.Tick(c.now.Add(time.Second))
	c.apply(step)
	if len(step.Answers) != 3 {
		t.Fatalf("%d members are in the group, want 3", len(step.Answers))
	}
	if got := *step.Answers[0].Value.(*kmsg.JoinGroupResponse).Protocol; got != "range" {
		t.Errorf("protocol %q, want the one that all have", got)
	}
}

// What is counted is about what the heap has: half of it at least, twice as much at most.
func TestMemoryOfGroupsIsCountedAsItIs(t *testing.T) {
	many := func(c *crowd, step func(i int)) {
		for i := range 5000 {
			step(i)
		}
	}
	for name, fill := range map[string]func(c *crowd){
		"groups of an offset": func(c *crowd) {
			many(c, func(i int) {
				_ = c.s.Replay(offsetRecord(fmt.Sprint("group-", i), topicPartition{"topic", 0}, &offset{}))
			})
		},
		"a group of many offsets": func(c *crowd) {
			for i := range int32(50_000) {
				_ = c.s.Replay(offsetRecord("group", topicPartition{"a topic with a name", i}, &offset{metadata: "metadata"}))
			}
		},
		"offsets of transactions": func(c *crowd) {
			for i := range int32(50_000) {
				_ = c.s.Replay(pendingRecord("group", topicPartition{"topic", i}, shard.Producer{ID: 1}, offset{}))
			}
		},
		"groups of a member": func(c *crowd) {
			many(c, func(i int) {
				req := kmsg.NewPtrJoinGroupRequest()
				req.Version, req.Group, req.ProtocolType, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 3, fmt.Sprint("group-", i), "consumer", 10_000, 10_000
				req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: make([]byte, 100)}}
				c.s.Join(c.now, 1, req, Client{}, uuid.NewString(), c.topics)
			})
		},
		"members of many protocols": func(c *crowd) {
			for i := range 10 {
				req := kmsg.NewPtrJoinGroupRequest()
				req.Version, req.Group, req.ProtocolType, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 3, fmt.Sprint("group-", i), "consumer", 10_000, 10_000
				req.Protocols = make([]kmsg.JoinGroupRequestProtocol, 10_000)
				c.s.Join(c.now, 1, req, Client{}, uuid.NewString(), c.topics)
			}
		},
		"members with partitions": func(c *crowd) {
			for i := range 20 {
				req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
				req.Version, req.Group, req.MemberID, req.RebalanceTimeoutMillis = 1, fmt.Sprint("group-", i), "m", 60_000
				for name := range c.topics.byName {
					req.SubscribedTopicNames = append(req.SubscribedTopicNames, name)
				}
				c.s.ConsumerHeartbeat(c.now, 1, req, defaultTimeouts, Client{}, "", c.topics)
			}
		},
		"share groups with deliveries": func(c *crowd) {
			many(c, func(i int) {
				g := fmt.Sprint("group-", i/100)
				_ = c.s.Replay(shareGroupRecord(g, 1, 0, c.now))
				for j := range int32(10) {
					p := partitionID{topicID("topic-1"), int32(i%100)*10 + j}
					_ = c.s.Replay(shareStateRecord(g, p, &shareState{known: true, saved: share.Saved{Ranges: []share.Range{{Length: 1}}}}))
				}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCrowd(t, Config{MemoryBytes: 1 << 40})
			before := lab.Heap()
			fill(c)
			got := lab.Heap() - before
			if counted := c.s.held(); counted < got/2 || counted > 2*got {
				t.Errorf("%d bytes are counted, the heap has %d more", counted, got)
			} else {
				t.Logf("%d bytes are counted, the heap has %d more", counted, got)
			}
			runtime.KeepAlive(c)
		})
	}
}
