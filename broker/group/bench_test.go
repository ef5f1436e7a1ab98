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
	b.Run("consumer/1000", func(b *testing.B) {
		for b.Loop() {
			s := bench{b, NewState(Config{Partitions: 1}), time.Unix(1000, 0)}
			for i := range 1000 {
				req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
				req.Version, req.Group, req.MemberID, req.RebalanceTimeoutMillis, req.SubscribedTopicNames = 1, "g", fmt.Sprint("m", i), 300_000, []string{"t"}
				s.apply(s.s.ConsumerHeartbeat(s.now, 1, req, Timeouts{45 * time.Second, 5 * time.Second}, Client{ID: "client"}, "", topics))
			}
			if got := len(s.s.groups["g"].consumer.members); got != 1000 {
				b.Fatalf("%d members are in the group", got)
			}
		}
	})
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
