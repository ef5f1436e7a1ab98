package group

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/shard"
	"github.com/tabletopic/tabletopic/record"
)

// script drives a State by the verbs of testdata and prints what it answers.
type script struct {
	state   *State
	log     []shard.Record // what is durable
	now     time.Time
	tickets map[shard.Ticket]string
	topics  *Topics
	next    shard.Ticket
	out     strings.Builder
}

func newScript() *script {
	s := &script{state: NewState(Config{}), now: time.Unix(1000, 0), tickets: map[shard.Ticket]string{}}
	s.setTopics("t=4 u=2 __internal=2")
	return s
}

// setTopics makes the topics that there are: name=partitions.
func (s *script) setTopics(list string) {
	topics, version := map[string]TopicInfo{}, uint64(1)
	for _, w := range strings.Fields(list) {
		name, n, _ := strings.Cut(w, "=")
		partitions, _ := strconv.Atoi(n)
		topics[name] = TopicInfo{ID: topicID(name), Partitions: partitions}
	}
	if s.topics != nil {
		version = s.topics.Version + 1
	}
	s.topics = NewTopics(version, topics)
}

// defaultTimeouts are those of groups without settings.
var defaultTimeouts = Timeouts{Session: 45 * time.Second, Heartbeat: 5 * time.Second}

func topicID(name string) uuid.UUID { return uuid.NewSHA1(uuid.Nil, []byte(name)) }

// owned reads t:0,1;u:0.
func owned(list string) []kmsg.ConsumerGroupHeartbeatRequestTopic {
	out := []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	for _, part := range strings.FieldsFunc(list, func(r rune) bool { return r == ';' }) {
		name, numbers, _ := strings.Cut(part, ":")
		t := kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: topicID(name)}
		for _, n := range strings.Split(numbers, ",") {
			p, _ := strconv.Atoi(n)
			t.Partitions = append(t.Partitions, int32(p))
		}
		out = append(out, t)
	}
	return out
}

// held prints partitions as owned reads them.
func (s *script) held(list []kmsg.AssignmentTopicPartition) string {
	var out []string
	for _, t := range list {
		out = append(out, t.Topic+":"+strings.Trim(strings.ReplaceAll(fmt.Sprint(t.Partitions), " ", ","), "[]"))
	}
	slices.Sort(out)
	return "{" + strings.Join(out, ";") + "}"
}

func (s *script) apply(step shard.Step) {
	for _, r := range step.Records {
		if err := s.state.Replay(r); err != nil {
			fmt.Fprintln(&s.out, "replay:", err)
		}
		s.log = append(s.log, r)
	}
	if err := sound(s.state); err != nil {
		fmt.Fprintln(&s.out, err)
	}
	for _, a := range step.Answers {
		fmt.Fprintf(&s.out, "%s: %s\n", s.tickets[a.To], s.show(a.Value))
	}
}

func (s *script) ticket(name string) shard.Ticket {
	s.next++
	s.tickets[s.next] = name
	return s.next
}

func (s *script) show(v any) string {
	switch r := v.(type) {
	case *kmsg.ConsumerGroupHeartbeatResponse:
		if r.ErrorCode != 0 {
			return fmt.Sprintf("%s: %s", code(r.ErrorCode, ""), deref(r.ErrorMessage))
		}
		out := fmt.Sprintf("epoch %d", r.MemberEpoch)
		if r.Assignment != nil {
			var list []kmsg.AssignmentTopicPartition
			for _, t := range r.Assignment.Topics {
				list = append(list, kmsg.AssignmentTopicPartition{Topic: s.topics.names[t.TopicID], Partitions: t.Partitions})
			}
			out += " holds " + s.held(list)
		}
		return out
	case kmsg.ConsumerGroupDescribeResponseGroup:
		if r.ErrorCode != 0 {
			return code(r.ErrorCode, "")
		}
		out := fmt.Sprintf("%s epoch=%d assigned=%d by %s", r.State, r.Epoch, r.AssignmentEpoch, r.AssignorName)
		for _, m := range r.Members {
			out += fmt.Sprintf(" %s%s@%d %s->%s", m.MemberID, deref(m.InstanceID), m.MemberEpoch, s.held(m.Assignment.TopicPartitions), s.held(m.TargetAssignment.TopicPartitions))
		}
		return out
	case *kmsg.JoinGroupResponse:
		if r.ErrorCode != 0 {
			return fmt.Sprintf("%v member=%s", kerr.TypedErrorForCode(r.ErrorCode).Message, r.MemberID)
		}
		out := fmt.Sprintf("joined generation=%d protocol=%s member=%s leader=%s", r.Generation, deref(r.Protocol), r.MemberID, r.LeaderID)
		for _, m := range r.Members {
			out += fmt.Sprintf(" %s(%s)", m.MemberID, m.ProtocolMetadata)
		}
		if r.SkipAssignment {
			out += " skip-assignment"
		}
		return out
	case *kmsg.SyncGroupResponse:
		return code(r.ErrorCode, "assigned "+string(r.MemberAssignment))
	case *kmsg.HeartbeatResponse:
		return code(r.ErrorCode, "alive")
	case *kmsg.LeaveGroupResponse:
		out := code(r.ErrorCode, "left")
		for _, m := range r.Members {
			out += fmt.Sprintf(" %s%s=%s", m.MemberID, deref(m.InstanceID), code(m.ErrorCode, "left"))
		}
		return out
	case *kmsg.OffsetCommitResponse:
		return code(r.Topics[0].Partitions[0].ErrorCode, "committed")
	case kmsg.OffsetFetchResponseGroup:
		out := code(r.ErrorCode, "offsets")
		for _, t := range r.Topics {
			for _, p := range t.Partitions {
				out += fmt.Sprintf(" %s-%d=%d", t.Topic, p.Partition, p.Offset)
			}
		}
		return out
	case kmsg.DescribeGroupsResponseGroup:
		out := fmt.Sprintf("%s protocol=%s", r.State, r.Protocol)
		for _, m := range r.Members {
			out += fmt.Sprintf(" %s%s(%s)", m.MemberID, deref(m.InstanceID), m.MemberAssignment)
		}
		return out
	case []kmsg.ListGroupsResponseGroup:
		out := "groups"
		for _, g := range r {
			out += " " + g.Group + "=" + g.GroupState
			if g.GroupType != "classic" {
				out += "(" + g.GroupType + ")"
			}
		}
		return out
	case kmsg.DeleteGroupsResponseGroup:
		return code(r.ErrorCode, "deleted")
	case *kmsg.OffsetDeleteResponse:
		if r.ErrorCode != 0 {
			return code(r.ErrorCode, "")
		}
		return code(r.Topics[0].Partitions[0].ErrorCode, "deleted")
	}
	return fmt.Sprintf("%T", v)
}

func code(c int16, ok string) string {
	if c == 0 {
		return ok
	}
	return kerr.TypedErrorForCode(c).Message
}

// run executes one line of a script: a verb and name=value arguments.
func (s *script) run(line string) {
	words := strings.Fields(line)
	args := map[string]string{"group": "g", "session": "10s", "rebalance": "20s", "protocol": "range", "generation": "-1", "version": "9"}
	for _, w := range words[1:] {
		k, v, _ := strings.Cut(w, "=")
		args[k] = v
	}
	num := func(k string) (n int64) { fmt.Sscan(args[k], &n); return n }
	dur := func(k string) time.Duration { d, _ := time.ParseDuration(args[k]); return d }
	opt := func(k string) *string { return nonEmpty(args[k]) }
	name := words[0]
	if id := args["member"] + args["instance"] + args["new"]; id != "" {
		name += " " + id
	}
	switch words[0] {
	case "join":
		req := kmsg.NewPtrJoinGroupRequest()
		req.Version, req.Group, req.MemberID, req.InstanceID, req.ProtocolType = int16(num("version")), args["group"], args["member"], opt("instance"), "consumer"
		req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = int32(dur("session").Milliseconds()), int32(dur("rebalance").Milliseconds())
		for _, p := range strings.Split(args["protocol"], ",") {
			n, meta, _ := strings.Cut(p, ":")
			req.Protocols = append(req.Protocols, kmsg.JoinGroupRequestProtocol{Name: n, Metadata: []byte(meta)})
		}
		s.apply(s.state.Join(s.now, s.ticket(name), req, Client{ID: "client", Host: "/host"}, args["new"], s.topics))
	case "consumer":
		req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
		req.Version, req.Group, req.MemberID, req.MemberEpoch, req.InstanceID = 1, args["group"], args["member"], int32(num("epoch")), opt("instance")
		req.SubscribedTopicRegex, req.ServerAssignor = opt("regex"), opt("assignor")
		if args["topics"] != "" {
			req.SubscribedTopicNames = strings.Split(args["topics"], ",")
		}
		if req.MemberEpoch == 0 {
			req.RebalanceTimeoutMillis = int32(dur("rebalance").Milliseconds())
		}
		if owns, ok := args["owns"]; ok {
			req.Topics = owned(owns)
		}
		s.apply(s.state.ConsumerHeartbeat(s.now, s.ticket(name), req, defaultTimeouts, Client{ID: "client", Host: "/host"}, args["new"], s.topics))
	case "describe-consumer":
		s.apply(s.state.DescribeConsumer(s.ticket(name), args["group"], s.topics))
	case "topics":
		s.setTopics(strings.Join(words[1:], " "))
	case "sync":
		req := kmsg.NewPtrSyncGroupRequest()
		req.Version, req.Group, req.MemberID, req.InstanceID, req.Generation = 5, args["group"], args["member"], opt("instance"), int32(num("generation"))
		for _, a := range strings.Split(args["assign"], ",") {
			if m, v, ok := strings.Cut(a, ":"); ok {
				req.GroupAssignment = append(req.GroupAssignment, kmsg.SyncGroupRequestGroupAssignment{MemberID: m, MemberAssignment: []byte(v)})
			}
		}
		s.apply(s.state.Sync(s.now, s.ticket(name), req, s.topics))
	case "heartbeat":
		req := kmsg.NewPtrHeartbeatRequest()
		req.Version, req.Group, req.MemberID, req.InstanceID, req.Generation = 4, args["group"], args["member"], opt("instance"), int32(num("generation"))
		s.apply(s.state.Heartbeat(s.now, s.ticket(name), req, s.topics))
	case "leave":
		req := kmsg.NewPtrLeaveGroupRequest()
		req.Version, req.Group = 5, args["group"]
		req.Members = []kmsg.LeaveGroupRequestMember{{MemberID: args["member"], InstanceID: opt("instance")}}
		s.apply(s.state.Leave(s.now, s.ticket(name), req))
	case "commit":
		req := kmsg.NewPtrOffsetCommitRequest()
		req.Version, req.Group, req.MemberID, req.InstanceID, req.Generation = 9, args["group"], args["member"], opt("instance"), int32(num("generation"))
		req.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Partition: int32(num("p")), Offset: num("offset"), Metadata: opt("metadata")}}}}
		s.apply(s.state.Commit(s.now, s.ticket(name), req, func(_ string, p int32) bool { return p < 4 }))
	case "fetch":
		epoch := int32(-1)
		if args["epoch"] != "" {
			epoch = int32(num("epoch"))
		}
		s.apply(s.state.Fetch(s.ticket(name), args["group"], args["member"], epoch, nil, args["stable"] == "true"))
	case "delete-offsets":
		req := kmsg.NewPtrOffsetDeleteRequest()
		req.Group = args["group"]
		req.Topics = []kmsg.OffsetDeleteRequestTopic{{Topic: "t", Partitions: []kmsg.OffsetDeleteRequestTopicPartition{{Partition: int32(num("p"))}}}}
		s.apply(s.state.DeleteOffsets(s.ticket(name), req))
	case "delete-group":
		s.apply(s.state.Delete(s.ticket(name), args["group"]))
	case "describe":
		s.apply(s.state.Describe(s.ticket(name), args["group"], 6))
	case "list":
		s.apply(s.state.List(s.ticket(name), nil, nil))
	case "tick": // lets time pass, with every tick that was asked for on the way
		end := s.now.Add(dur("after"))
		for wake := s.state.Wake(); !wake.IsZero() && !wake.After(end); wake = s.state.Wake() {
			if wake.After(s.now) {
				s.now = wake
			}
			s.apply(s.state.Tick(s.now))
		}
		s.now = end
	case "crash", "compact": // a new state from the log, or from a snapshot
		if words[0] == "compact" {
			s.log = s.state.Snapshot()
		}
		s.state = NewState(Config{})
		for _, r := range s.log {
			if err := s.state.Replay(r); err != nil {
				fmt.Fprintln(&s.out, "replay:", err)
			}
		}
	default:
		fmt.Fprintf(&s.out, "unknown verb %s\n", words[0])
	}
}

func TestState(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := newScript()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.out.Reset()
			for line := range strings.Lines(d.Input) {
				s.run(line)
			}
			if s.out.Len() == 0 {
				return "-\n"
			}
			return s.out.String()
		})
	})
}

// Offsets of topics that a consumer subscribes to stay while it is a member, of either protocol; those of others go. Members
// that are no consumers keep all.
func TestOffsetsOfTopicsThatAreSubscribedToStay(t *testing.T) {
	subscription := kmsg.NewConsumerMemberMetadata()
	subscription.Topics = []string{"t"}
	for name, tc := range map[string]struct {
		join string // the protocol type of a classic member; else a line of a script
		want string
	}{
		"consumer":              {"consumer", "GROUP_SUBSCRIBED_TO_TOPIC, "},
		"connect":               {"connect", "NON_EMPTY_GROUP"},
		"consumer protocol":     {"consumer member=a epoch=0 topics=t owns=", "GROUP_SUBSCRIBED_TO_TOPIC, "},
		"a regular expression":  {"consumer member=a epoch=0 regex=t owns=", "GROUP_SUBSCRIBED_TO_TOPIC, "},
		"nobody after a commit": {"commit offset=5", ", "},
	} {
		s := newScript()
		if strings.Contains(tc.join, " ") {
			s.run("topics t=4 u=4")
			s.run(tc.join)
		} else {
			req := kmsg.NewPtrJoinGroupRequest()
			req.Version, req.Group, req.ProtocolType, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 3, "g", tc.join, 60_000, 60_000
			req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: subscription.AppendTo(nil)}}
			s.apply(s.state.Join(s.now, s.ticket("a"), req, Client{}, "a", s.topics))
			s.run("tick after=1s")
			s.run("sync member=a generation=1 assign=a:x")
		}
		req := kmsg.NewPtrOffsetDeleteRequest()
		req.Group = "g"
		for _, topic := range []string{"t", "u"} {
			req.Topics = append(req.Topics, kmsg.OffsetDeleteRequestTopic{Topic: topic, Partitions: []kmsg.OffsetDeleteRequestTopicPartition{{}}})
		}
		resp := s.state.DeleteOffsets(1, req).Answers[0].Value.(*kmsg.OffsetDeleteResponse)
		text := func(code int16) string {
			if code == 0 {
				return ""
			}
			return kerr.TypedErrorForCode(code).Message
		}
		got := text(resp.ErrorCode)
		if got == "" {
			got = text(resp.Topics[0].Partitions[0].ErrorCode) + ", " + text(resp.Topics[1].Partitions[0].ErrorCode)
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q\n%s", name, got, tc.want, s.out.String())
		}
	}
}

func TestReplayRefusesNewerRecords(t *testing.T) {
	err := NewState(Config{}).Replay(shard.Record{Record: record.Record{Key: []byte{0, 9, 1}, Value: []byte{0}}})
	if err == nil || !strings.Contains(err.Error(), "version 9") {
		t.Errorf("got %v, want an error that names version 9", err)
	}
}

func FuzzReplay(f *testing.F) {
	s := newScript()
	for _, line := range []string{"join new=a version=3", "tick after=1s", "sync member=a generation=1 assign=a:x", "commit member=a generation=1 offset=5",
		"consumer group=h member=b instance=i epoch=0 topics=t owns=", "consumer group=h member=c epoch=0 regex=u owns=", "consumer group=h member=b epoch=1"} {
		s.run(line)
	}
	for _, r := range s.log {
		f.Add(r.Key, r.Value)
	}
	f.Fuzz(func(t *testing.T, key, value []byte) {
		state := NewState(Config{})
		if state.Replay(shard.Record{Record: record.Record{Key: key, Value: value}}) != nil {
			return
		}
		// What was accepted can be written again and means the same.
		again := NewState(Config{})
		for _, r := range state.Snapshot() {
			if err := again.Replay(r); err != nil {
				t.Fatal(err)
			}
		}
		if a, b := len(state.Snapshot()), len(again.Snapshot()); a != b {
			t.Fatalf("snapshot of %d records, then %d", a, b)
		}
	})
}

// What the members of a group say of themselves, and what its leader says to them, is bounded in all: a
// member too much is refused and the others go on, as is an assignment.
func TestWhatMembersSayIsBounded(t *testing.T) {
	s := NewState(Config{MaxBytes: 1000})
	now, topics := time.Unix(1000, 0), NewTopics(1, nil)
	join := func(id string, bytes int) *kmsg.JoinGroupResponse {
		t.Helper()
		req := kmsg.NewPtrJoinGroupRequest()
		req.Version, req.Group, req.ProtocolType, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 3, "g", "consumer", 10_000, 10_000
		req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: make([]byte, bytes)}}
		step := s.Join(now, 1, req, Client{ID: "c"}, id, topics)
		for _, a := range step.Answers {
			return a.Value.(*kmsg.JoinGroupResponse)
		}
		return nil // it waits for the others
	}
	if got := join("a", 600); got != nil {
		t.Fatalf("the first member: %+v", got)
	}
	if got := join("b", 600); got == nil || got.ErrorCode != kerr.GroupMaxSizeReached.Code {
		t.Errorf("beyond the bound: %+v", got)
	}
	if got := join("c", 250); got != nil { // a protocol counts 48 bytes more
		t.Errorf("within the bound: %+v", got)
	}
	now = now.Add(time.Minute)
	s.Tick(now)
	sync := func(bytes int) int16 {
		t.Helper()
		req := kmsg.NewPtrSyncGroupRequest()
		req.Version, req.Group, req.MemberID, req.Generation = 3, "g", s.groups["g"].leader, s.groups["g"].generation
		req.GroupAssignment = []kmsg.SyncGroupRequestGroupAssignment{{MemberID: req.MemberID, MemberAssignment: make([]byte, bytes)}}
		step := s.Sync(now, 2, req, topics)
		if len(step.Answers) == 0 {
			t.Fatal("the leader waits")
		}
		return step.Answers[0].Value.(*kmsg.SyncGroupResponse).ErrorCode
	}
	if got := kerr.ErrorForCode(sync(1001)); got != kerr.InvalidRequest {
		t.Errorf("an assignment beyond the bound: %v", got)
	}
	if got := kerr.ErrorForCode(sync(900)); got != nil {
		t.Errorf("an assignment within the bound: %v", got)
	}
}

// What members of the consumer protocol say of themselves is bounded in all, however small each is: one too much is
// refused and leaves no trace, the others go on, and there is room again when one leaves. A member of the classic
// protocol in such a group counts too.
func TestSubscriptionsOfAGroupAreBounded(t *testing.T) {
	s := NewState(Config{MaxBytes: 1000})
	now, topics := time.Unix(1000, 0), NewTopics(1, nil)
	names := func(n int) (names []string) { // 20 bytes each, and 16 for being one
		for i := range n {
			names = append(names, fmt.Sprintf("%020d", i))
		}
		return names
	}
	beat := func(id string, epoch int32, names []string) *kerr.Error {
		t.Helper()
		req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
		req.Version, req.Group, req.MemberID, req.MemberEpoch, req.RebalanceTimeoutMillis, req.SubscribedTopicNames = 1, "g", id, epoch, 60_000, names
		step := s.ConsumerHeartbeat(now, 1, req, defaultTimeouts, Client{}, "", topics)
		return kerr.TypedErrorForCode(step.Answers[0].Value.(*kmsg.ConsumerGroupHeartbeatResponse).ErrorCode)
	}
	members := func() int { return len(s.groups["g"].consumer.members) }
	if err := beat("a", 0, names(20)); err != nil {
		t.Fatalf("the first member: %v", err)
	}
	if err := beat("b", 0, names(20)); err != kerr.GroupMaxSizeReached || members() != 1 {
		t.Errorf("beyond the bound: %v, %d members", err, members())
	}
	if err := beat("b", 0, names(5)); err != nil || members() != 2 {
		t.Errorf("within the bound: %v, %d members", err, members())
	}
	epoch := func(id string) int32 { return s.groups["g"].consumer.members[id].epoch }
	if err := beat("b", epoch("b"), names(20)); err != kerr.GroupMaxSizeReached || len(s.groups["g"].consumer.members["b"].topics) != 5 {
		t.Errorf("a member that wants more: %v, it has %d topics", err, len(s.groups["g"].consumer.members["b"].topics))
	}
	if err := beat("a", epoch("a"), names(20)); err != nil {
		t.Errorf("a member that says what it said before: %v", err)
	}
	join := kmsg.NewPtrJoinGroupRequest()
	join.Version, join.Group, join.ProtocolType, join.SessionTimeoutMillis, join.RebalanceTimeoutMillis = 3, "g", "consumer", 10_000, 10_000
	sub := kmsg.NewConsumerMemberMetadata()
	sub.Topics = names(8)
	join.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: sub.AppendTo(nil)}}
	step := s.Join(now, 2, join, Client{}, "classic", topics)
	if got := kerr.TypedErrorForCode(step.Answers[0].Value.(*kmsg.JoinGroupResponse).ErrorCode); got != kerr.GroupMaxSizeReached || members() != 2 {
		t.Errorf("a classic member beyond the bound: %v, %d members", got, members())
	}
	if err := beat("a", -1, nil); err != nil {
		t.Fatalf("a leaves: %v", err)
	}
	step = s.Join(now, 3, join, Client{}, "classic", topics)
	if got := kerr.TypedErrorForCode(step.Answers[0].Value.(*kmsg.JoinGroupResponse).ErrorCode); got != nil {
		t.Errorf("a classic member in the place of another: %v", got)
	}
	if err := beat("b", epoch("b"), names(20)); err != nil {
		t.Errorf("a member in the place of another: %v", err)
	}
}

// What the regular expressions of a group's members match counts as if the members had named it, once for those that
// match the same with the same rights; a member too much is refused and leaves no trace. So is one for which topics were made.
func TestWhatRegularExpressionsMatchIsBounded(t *testing.T) {
	s := NewState(Config{MaxBytes: 1000})
	now, byName := time.Unix(1000, 0), map[string]TopicInfo{}
	for i := range 20 { // 20 bytes each, and 16 for being one
		name := fmt.Sprintf("%020d", i)
		byName[name] = TopicInfo{topicID(name), 1}
	}
	topics := NewTopics(1, byName)
	beat := func(id string, epoch int32, regex string) *kerr.Error {
		t.Helper()
		req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
		req.Version, req.Group, req.MemberID, req.MemberEpoch, req.RebalanceTimeoutMillis, req.SubscribedTopicRegex = 1, "g", id, epoch, 60_000, &regex
		step := s.ConsumerHeartbeat(now, 1, req, defaultTimeouts, Client{Principal: "User:u"}, "", topics)
		return kerr.TypedErrorForCode(step.Answers[0].Value.(*kmsg.ConsumerGroupHeartbeatResponse).ErrorCode)
	}
	members := func() map[string]*consumerMember { return s.groups["g"].consumer.members }
	for _, id := range []string{"a", "b", "c"} {
		if err := beat(id, 0, ".*"); err != nil {
			t.Fatalf("%s, which matches what others do: %v", id, err)
		}
	}
	if members()["a"].matched != members()["c"].matched {
		t.Error("members that match the same do not share it")
	}
	if err := beat("d", 0, "0.*"); err != kerr.GroupMaxSizeReached || len(members()) != 3 {
		t.Errorf("beyond the bound: %v, %d members", err, len(members()))
	}
	if err := beat("d", 0, ".*[0-4]"); err != kerr.GroupMaxSizeReached || len(members()) != 3 {
		t.Errorf("10 topics beside 20: %v, %d members", err, len(members()))
	}
	if err := beat("d", 0, ".*[0-1]"); err != nil {
		t.Errorf("4 topics beside 20: %v", err)
	}
	for i := range 10 {
		name := fmt.Sprintf("%020d", 100+i)
		byName[name] = TopicInfo{topicID(name), 1}
	}
	topics = NewTopics(2, byName)
	if err := beat("a", members()["a"].epoch, ".*"); err != kerr.GroupMaxSizeReached {
		t.Errorf("a member for which topics were made: %v", err)
	}
}

// Clients that ask for a member id and never join with it are as many as may be members, with no more bytes. Their
// places are free again when their time is up.
func TestInvitationsAreBounded(t *testing.T) {
	now, topics := time.Unix(1000, 0), NewTopics(1, nil)
	for name, cfg := range map[string]Config{"by number": {MaxSize: 3}, "by bytes": {MaxBytes: 3 * 20}} {
		s := NewState(cfg)
		invite := func(i int) *kerr.Error {
			t.Helper()
			req := kmsg.NewPtrJoinGroupRequest()
			req.Version, req.Group, req.ProtocolType, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 9, "g", "consumer", 10_000, 10_000
			req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range"}}
			step := s.Join(now, 1, req, Client{}, fmt.Sprintf("%020d", i), topics)
			return kerr.TypedErrorForCode(step.Answers[0].Value.(*kmsg.JoinGroupResponse).ErrorCode)
		}
		for i := range 3 {
			if err := invite(i); err != kerr.MemberIDRequired {
				t.Fatalf("%s: the %d. client: %v", name, i+1, err)
			}
		}
		if err := invite(3); err != kerr.GroupMaxSizeReached {
			t.Errorf("%s: beyond the bound: %v", name, err)
		}
		s.Tick(now.Add(11 * time.Second))
		if err := invite(4); err != kerr.MemberIDRequired {
			t.Errorf("%s: when the time of the others is up: %v", name, err)
		}
	}
}
