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

// bench applies steps as a shard does.
type bench struct {
	b   *testing.B
	s   *State
	now time.Time
}

func (b *bench) apply(step shard.Step) {
	for _, r := range step.Records {
		if err := b.s.Replay(r); err != nil {
			b.b.Fatal(err)
		}
	}
}

// What it takes until all members are in a group that come at the same time.
func BenchmarkJoinOfManyMembers(b *testing.B) {
	topics := NewTopics(1, map[string]TopicInfo{"t": {topicID("t"), 100}})
	for _, members := range []int{1000, 10_000} {
		b.Run(fmt.Sprint("classic/", members), func(b *testing.B) {
			for b.Loop() {
				s := bench{b, NewState(Config{Partitions: 1}), time.Unix(1000, 0)}
				join := func(id, assigned string) *kmsg.JoinGroupResponse {
					req := kmsg.NewPtrJoinGroupRequest()
					req.Version, req.Group, req.MemberID, req.ProtocolType = 5, "g", id, "consumer"
					req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 45_000, 300_000
					for _, name := range []string{"range", "cooperative-sticky"} {
						req.Protocols = append(req.Protocols, kmsg.JoinGroupRequestProtocol{Name: name, Metadata: make([]byte, 50)})
					}
					step := s.s.Join(s.now, 1, req, Client{ID: "client"}, assigned, topics)
					s.apply(step)
					if len(step.Answers) == 0 {
						return nil
					}
					return step.Answers[0].Value.(*kmsg.JoinGroupResponse)
				}
				ids := make([]string, members)
				for i := range ids {
					ids[i] = "client-" + uuid.NewString()
					if got := join("", ids[i]); got.ErrorCode != kerr.MemberIDRequired.Code {
						b.Fatal(kerr.ErrorForCode(got.ErrorCode))
					}
				}
				for _, id := range ids {
					if got := join(id, ""); got != nil {
						b.Fatal(kerr.ErrorForCode(got.ErrorCode))
					}
				}
				s.now = s.now.Add(time.Second)
				step := s.s.Tick(s.now)
				s.apply(step)
				if len(step.Answers) != members {
					b.Fatalf("%d members are in the group, of %d", len(step.Answers), members)
				}
			}
		})
	}
	for _, members := range []int{1000, 10_000} {
		b.Run(fmt.Sprint("consumer/", members), func(b *testing.B) {
			for b.Loop() {
				s := bench{b, NewState(Config{Partitions: 1}), time.Unix(1000, 0)}
				join := func(id, epoch int) {
					req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
					req.Version, req.Group, req.MemberID, req.MemberEpoch, req.RebalanceTimeoutMillis = 1, "g", fmt.Sprint("m", id), int32(epoch), 300_000
					if epoch == epochJoin {
						req.SubscribedTopicNames = []string{"t"}
					}
					s.apply(s.s.ConsumerHeartbeat(s.now, 1, req, Timeouts{45 * time.Second, 5 * time.Second, time.Second}, Client{ID: "client"}, "", topics))
				}
				for i := range members {
					join(i, epochJoin)
				}
				s.now = s.now.Add(time.Second)
				join(0, 1)
				if c := s.s.groups["g"].consumer; len(c.members) != members || len(c.target) != members {
					b.Fatalf("%d members are in the group, %d are assigned something", len(c.members), len(c.target))
				}
			}
		})
	}
}

// What a look at the deadlines takes when one group of many is due.
func BenchmarkTickOfManyGroups(b *testing.B) {
	topics := NewTopics(1, nil)
	s := bench{b, NewState(Config{Partitions: 1}), time.Unix(1000, 0)}
	join := func(i int) {
		req := kmsg.NewPtrJoinGroupRequest()
		req.Version, req.Group, req.ProtocolType, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 3, fmt.Sprint("g", i), "consumer", 1_800_000, 10_000
		req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range"}}
		s.apply(s.s.Join(s.now, 1, req, Client{}, uuid.NewString(), topics))
	}
	const groups = 20_000
	for i := range groups {
		join(i)
	}
	s.now = s.now.Add(time.Second)
	s.apply(s.s.Tick(s.now))
	i := groups
	for b.Loop() {
		join(i)
		s.now = s.now.Add(500 * time.Millisecond)
		s.apply(s.s.Tick(s.now))
		i++
	}
}

// What one more assignment of a group of many members takes, when one of them has left and another has come.
func BenchmarkAssignment(b *testing.B) {
	for _, members := range []int{1000, 10_000} {
		b.Run(fmt.Sprint(members), func(b *testing.B) {
			topics := NewTopics(1, map[string]TopicInfo{"t": {topicID("t"), 2 * members}})
			s := bench{b, NewState(Config{Partitions: 1}), time.Unix(1000, 0)}
			interval := time.Hour
			beat := func(i, epoch int) {
				req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
				req.Version, req.Group, req.MemberID, req.MemberEpoch, req.RebalanceTimeoutMillis = 1, "g", fmt.Sprint("m", i), int32(epoch), 300_000
				if epoch == epochJoin {
					req.SubscribedTopicNames = []string{"t"}
				}
				step := s.s.ConsumerHeartbeat(s.now, 1, req, Timeouts{45 * time.Second, 5 * time.Second, interval}, Client{ID: "client"}, "", topics)
				s.apply(step)
				if got := step.Answers[0].Value.(*kmsg.ConsumerGroupHeartbeatResponse); got.ErrorCode != 0 {
					b.Fatal(kerr.ErrorForCode(got.ErrorCode))
				}
			}
			for i := range members {
				beat(i, epochJoin)
			}
			for i := members; b.Loop(); i++ {
				s.now = s.now.Add(time.Second)
				beat(i-members, epochLeave)
				interval = 0
				beat(i, epochJoin)
			}
			if c := s.s.groups["g"].consumer; c.epoch != c.targetEpoch || c.targeted != 2*members {
				b.Fatalf("%d partitions are assigned in epoch %d of %d", c.targeted, c.targetEpoch, c.epoch)
			}
		})
	}
}
