package group

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/broker/share"
	"github.com/tabletopic/tabletopic/internal/shard"
)

// shareScript drives the share groups of a State, and keeps their log.
type shareScript struct {
	t      *testing.T
	state  *State
	log    []shard.Record
	now    time.Time
	topics *Topics

	interval time.Duration // of assignments
}

func newShareScript(t *testing.T) *shareScript {
	return &shareScript{t: t, state: NewState(Config{}), now: time.Unix(1000, 0), topics: NewTopics(1, map[string]TopicInfo{
		"t": {topicID("t"), 3}, "u": {topicID("u"), 1},
	})}
}

func (s *shareScript) apply(records []shard.Record) {
	s.t.Helper()
	for _, r := range records {
		if err := s.state.Replay(r); err != nil {
			s.t.Fatal(err)
		}
		s.log = append(s.log, r)
	}
	if err := sound(s.state); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shareScript) heartbeat(member string, epoch int32, topics ...string) *kmsg.ShareGroupHeartbeatResponse {
	s.t.Helper()
	req := kmsg.NewPtrShareGroupHeartbeatRequest()
	req.Version, req.GroupID, req.MemberID, req.MemberEpoch, req.SubscribedTopicNames = 1, "g", member, epoch, topics
	step := s.state.ShareHeartbeat(s.now, 1, req, Timeouts{45 * time.Second, 5 * time.Second, s.interval}, Client{ID: "c", Host: "/h"}, s.topics)
	s.apply(step.Records)
	return step.Answers[0].Value.(*kmsg.ShareGroupHeartbeatResponse)
}

// restart replays the log, or a snapshot in its place.
func (s *shareScript) restart(snapshot bool) {
	s.t.Helper()
	log := s.log
	if snapshot {
		log = s.state.Snapshot()
	}
	s.state, s.log = NewState(Config{}), nil
	s.apply(log)
}

// Members come, change what they want, leave and fall silent, topics come and grow, and the
// coordinator restarts. Once each has sent its heartbeat, every partition that somebody wants has a
// member, who wants it; and every member that wants a partition has one.
func TestShareAssignment(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		s := newShareScript(t)
		s.interval = time.Duration(seed%3) * time.Second
		topics := map[string]TopicInfo{}
		for i := range 1 + r.IntN(3) {
			name := fmt.Sprint("t", i)
			topics[name] = TopicInfo{topicID(name), 1 + r.IntN(4)}
		}
		version := uint64(1)
		s.topics = NewTopics(version, maps.Clone(topics))
		wants, epochs := map[string][]string{}, map[string]int32{}
		for range 40 {
			m := fmt.Sprint("m", r.IntN(6))
			names := slices.Sorted(maps.Keys(topics))
			switch _, in := wants[m]; {
			case r.IntN(8) == 0:
				s.restart(r.IntN(2) == 0)
			case r.IntN(8) == 0:
				name := names[r.IntN(len(names))]
				info := topics[name]
				info.Partitions++
				topics[name] = info
				version++
				s.topics = NewTopics(version, maps.Clone(topics))
			case in && r.IntN(3) == 0:
				s.heartbeat(m, -1)
				delete(wants, m)
			default:
				wants[m] = names[:1+r.IntN(len(names))]
				epoch := epochs[m]
				if !in {
					epoch = 0
				}
				resp := s.heartbeat(m, epoch, wants[m]...)
				if resp.ErrorCode != 0 {
					t.Fatalf("seed %d: %v: %s", seed, kerr.ErrorForCode(resp.ErrorCode), *resp.ErrorMessage)
				}
				epochs[m] = resp.MemberEpoch
			}
			if r.IntN(3) > 0 {
				continue
			}
			for range 2 { // the first may be what raises the epoch
				s.now = s.now.Add(s.interval)
				for m := range wants {
					resp := s.heartbeat(m, epochs[m])
					if resp.ErrorCode != 0 {
						t.Fatalf("seed %d: %v", seed, kerr.ErrorForCode(resp.ErrorCode))
					}
					epochs[m] = resp.MemberEpoch
				}
			}
			checkShares(t, seed, s, wants, topics)
		}
	}
}

func checkShares(t *testing.T, seed uint64, s *shareScript, wants map[string][]string, topics map[string]TopicInfo) {
	t.Helper()
	held := partitionSet{}
	for m, names := range wants {
		member := s.state.groups["g"].share.members[m]
		if len(member.assigned) == 0 {
			t.Fatalf("seed %d: %s wants %v and has nothing", seed, m, names)
		}
		for p := range member.assigned {
			held[p] = struct{}{}
			if i := slices.IndexFunc(names, func(n string) bool { return topics[n].ID == p.topic }); i < 0 || int(p.index) >= topics[names[i]].Partitions {
				t.Fatalf("seed %d: %s wants %v and has %v", seed, m, names, p)
			}
		}
	}
	for _, names := range wants {
		for _, name := range names {
			for i := range topics[name].Partitions {
				if _, ok := held[partitionID{topics[name].ID, int32(i)}]; !ok {
					t.Fatalf("seed %d: nobody has %s-%d", seed, name, i)
				}
			}
		}
	}
}

// A member that is silent leaves when its session ends, also after a restart; one whose epoch is
// another has to join again; and no other kind of group is a share group.
func TestShareMembership(t *testing.T) {
	s := newShareScript(t)
	joined := s.heartbeat("a", 0, "t")
	if joined.ErrorCode != 0 || joined.Assignment == nil || len(joined.Assignment.TopicPartitions) != 1 {
		t.Fatalf("%+v", joined)
	}
	if resp := s.heartbeat("a", joined.MemberEpoch+5); resp.ErrorCode != kerr.FencedMemberEpoch.Code {
		t.Errorf("an epoch to come: %v", kerr.ErrorForCode(resp.ErrorCode))
	}
	if resp := s.heartbeat("b", 3); resp.ErrorCode != kerr.UnknownMemberID.Code {
		t.Errorf("a stranger: %v", kerr.ErrorForCode(resp.ErrorCode))
	}
	s.restart(true)
	s.apply(s.state.Tick(s.now).Records)
	s.now = s.now.Add(44 * time.Second)
	s.apply(s.state.Tick(s.now).Records)
	if n := len(s.state.groups["g"].share.members); n != 1 {
		t.Fatalf("%d members before the session ends", n)
	}
	s.now = s.now.Add(time.Second)
	s.apply(s.state.Tick(s.now).Records)
	if n := len(s.state.groups["g"].share.members); n != 0 {
		t.Fatalf("%d members after it", n)
	}
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Group, req.RebalanceTimeoutMillis, req.SubscribedTopicNames = "g", 1000, []string{"t"}
	if got := s.state.ConsumerHeartbeat(s.now, 1, req, defaultTimeouts, Client{}, "x", s.topics).Answers[0].Value.(*kmsg.ConsumerGroupHeartbeatResponse); got.ErrorCode != kerr.GroupIDNotFound.Code {
		t.Errorf("a consumer of a share group: %v", kerr.ErrorForCode(got.ErrorCode))
	}
	req.Group = "h"
	s.apply(s.state.ConsumerHeartbeat(s.now, 1, req, defaultTimeouts, Client{}, "x", s.topics).Records)
	share := kmsg.NewPtrShareGroupHeartbeatRequest()
	share.GroupID, share.MemberID, share.SubscribedTopicNames = "h", "a", []string{"t"}
	if got := s.state.ShareHeartbeat(s.now, 1, share, Timeouts{}, Client{}, s.topics).Answers[0].Value.(*kmsg.ShareGroupHeartbeatResponse); got.ErrorCode != kerr.GroupIDNotFound.Code {
		t.Errorf("a member of a consumer group: %v", kerr.ErrorForCode(got.ErrorCode))
	}
	for _, c := range []struct{ id, classic, consumer, share string }{
		{"none", `there is no group "none"`, `there is no group "none"`, `there is no group "none"`},
		{"g", `group "g" is not of the classic protocol`, `group "g" is not of the consumer protocol`, ""},
		{"h", `group "h" is not of the classic protocol`, "", `group "h" is not a share group`},
	} {
		classic := s.state.Describe(1, c.id, 6).Answers[0].Value.(kmsg.DescribeGroupsResponseGroup).ErrorMessage
		consumer := s.state.DescribeConsumer(1, c.id, s.topics).Answers[0].Value.(kmsg.ConsumerGroupDescribeResponseGroup).ErrorMessage
		share := s.state.DescribeShare(1, c.id, s.topics).Answers[0].Value.(kmsg.ShareGroupDescribeResponseGroup).ErrorMessage
		if deref(classic) != c.classic || deref(consumer) != c.consumer || deref(share) != c.share {
			t.Errorf("%s described: %q, %q and %q, want %+v", c.id, deref(classic), deref(consumer), deref(share), c)
		}
	}
}

// A session timeout that is set holds for members that are silent, too: those of which a coordinator
// that has restarted only knows that they were there.
func TestShareSessionTimeoutIsSet(t *testing.T) {
	s := newShareScript(t)
	s.heartbeat("silent", 0, "t")
	s.restart(true)
	s.apply(s.state.Tick(s.now).Records)
	req := kmsg.NewPtrShareGroupHeartbeatRequest()
	req.Version, req.GroupID, req.MemberID, req.SubscribedTopicNames = 1, "g", "other", []string{"t"}
	s.apply(s.state.ShareHeartbeat(s.now, 1, req, Timeouts{Session: 10 * time.Second, Heartbeat: time.Second}, Client{}, s.topics).Records)
	s.now = s.now.Add(9 * time.Second)
	if wake := s.state.Wake(); wake.After(s.now.Add(time.Second)) {
		t.Fatalf("looks again at %v, and a session ends a second after %v", wake, s.now)
	}
	s.apply(s.state.Tick(s.now).Records)
	if n := len(s.state.groups["g"].share.members); n != 2 {
		t.Fatalf("%d members before the session ends", n)
	}
	s.now = s.now.Add(time.Second)
	s.apply(s.state.Tick(s.now).Records)
	if n := len(s.state.groups["g"].share.members); n != 0 {
		t.Errorf("%d members after it", n)
	}
}

// What was delivered is kept for the last leader that has loaded it, as long as nobody replaced it;
// others are refused. It survives a restart, and goes with its topic and its group.
func TestShareState(t *testing.T) {
	s := newShareScript(t)
	k := share.Key{Group: "g", Topic: topicID("t"), Index: 1}
	saved := share.Saved{Start: 7, Ranges: []share.Range{{Length: 3, State: share.Available, Deliveries: 2}, {Length: 1, State: share.Acknowledged, Deliveries: 1}}}
	save := func(stateEpoch, leaderEpoch int32) error {
		records, err := s.state.SaveShare(k, stateEpoch, leaderEpoch, saved)
		s.apply(records)
		return err
	}
	load := func(leaderEpoch int32) (share.Loaded, error) {
		l, records, err := s.state.LoadShare(s.now, k, leaderEpoch)
		s.apply(records)
		return l, err
	}
	if _, err := load(1); !errors.Is(err, ErrShareFenced) {
		t.Fatalf("without a group: %v", err)
	}
	s.heartbeat("a", 0, "t")
	if err := save(0, 1); !errors.Is(err, ErrShareFenced) {
		t.Fatalf("saved what was not loaded: %v", err)
	}
	first, err := load(3)
	if err != nil || first.Found {
		t.Fatal(first, err)
	}
	epoch := first.StateEpoch
	if err := save(epoch, 3); err != nil {
		t.Fatal(err)
	}
	if _, err := load(2); !errors.Is(err, ErrShareFenced) {
		t.Errorf("loaded by a former leader: %v", err)
	}
	for _, snapshot := range []bool{false, true} {
		s.restart(snapshot)
		if l, err := load(3); err != nil || !cmp.Equal(l, share.Loaded{Saved: saved, Found: true, StateEpoch: epoch}) {
			t.Errorf("after a restart: %+v, %v", l, err)
		}
	}
	if _, err := load(4); err != nil {
		t.Fatal(err)
	}
	if err := save(epoch, 3); !errors.Is(err, ErrShareFenced) {
		t.Errorf("saved by a former leader: %v", err)
	}
	st := s.state.groups["g"].share.states[partitionID{k.Topic, k.Index}]
	st.stateEpoch++
	s.apply([]shard.Record{shareStateRecord("g", partitionID{k.Topic, k.Index}, &st)})
	if err := save(epoch, 4); !errors.Is(err, ErrShareFenced) {
		t.Errorf("saved what was replaced: %v", err)
	}
	if err := save(epoch+1, 4); err != nil {
		t.Error(err)
	}
	s.apply(s.state.ForgetTopic(1, "u", topicID("u")).Records)
	if n := len(s.state.groups["g"].share.states); n != 1 {
		t.Fatal("the state went with another topic")
	}
	s.apply(s.state.ForgetTopic(1, "t", topicID("t")).Records)
	if err := save(epoch+1, 4); !errors.Is(err, ErrShareFenced) {
		t.Errorf("saved for a topic that is gone: %v", err)
	}
	_, _ = load(4)
	s.apply(s.state.Delete(1, "g").Records)
	if s.state.groups["g"] == nil {
		t.Fatal("a group with a member was deleted")
	}
	s.heartbeat("a", -1)
	s.apply(s.state.Delete(1, "g").Records)
	if s.restart(false); s.state.groups["g"] != nil {
		t.Error("a group that was deleted is back")
	}
}

// Who has loaded a state that an administrator deletes, alone or with its group, does not save it over
// what somebody else has loaded since, be it at the same node in the same epoch.
func TestDeletedShareStateStaysDeleted(t *testing.T) {
	for name, remove := range map[string]func(s *shareScript, p partitionID){
		"offsets": func(s *shareScript, p partitionID) { s.apply([]shard.Record{shareStateRecord("g", p, nil)}) },
		"group": func(s *shareScript, p partitionID) {
			s.heartbeat("a", -1)
			s.apply(s.state.Delete(1, "g").Records)
			s.heartbeat("a", 0, "t")
		},
	} {
		s := newShareScript(t)
		s.heartbeat("a", 0, "t")
		k := share.Key{Group: "g", Topic: topicID("t"), Index: 1}
		before, records, err := s.state.LoadShare(s.now, k, 3)
		if err != nil {
			t.Fatal(err)
		}
		s.apply(records)
		s.now = s.now.Add(time.Millisecond)
		remove(s, partitionID{k.Topic, k.Index})
		after, records, err := s.state.LoadShare(s.now, k, 3)
		if err != nil || after.Found {
			t.Fatalf("%s deleted: loaded %+v, %v", name, after, err)
		}
		s.apply(records)
		if _, err := s.state.SaveShare(k, before.StateEpoch, 3, share.Saved{Start: 7}); !errors.Is(err, ErrShareFenced) {
			t.Errorf("%s deleted: what was loaded before is saved: %v", name, err)
		}
		if _, err := s.state.SaveShare(k, after.StateEpoch, 3, share.Saved{Start: 9}); err != nil {
			t.Errorf("%s deleted: what was loaded since is not saved: %v", name, err)
		}
	}
}

// What a release has written of deliveries is read by later ones.
func TestShareStateFormat(t *testing.T) {
	p := partitionID{uuid.UUID{1, 2, 3}, 4}
	want := shareState{stateEpoch: 5, leaderEpoch: 6, known: true, saved: share.Saved{Start: 300, Ranges: []share.Range{{Length: 3, Deliveries: 2}}}}
	const key = "03e8" + "000167" + "01020300000000000000000000000000" + "00000004"
	const value = "0000" + "00000005" + "00000006" + "01" + "07d80401030002" + "00"
	r := shareStateRecord("g", p, &want)
	if k, v := hex.EncodeToString(r.Key), hex.EncodeToString(r.Value); k != key || v != value {
		t.Errorf("written as %s = %s, was %s = %s", k, v, key, value)
	}
	r.Key, _ = hex.DecodeString(key)
	r.Value, _ = hex.DecodeString(value)
	s := NewState(Config{})
	if err := s.Replay(r); err != nil {
		t.Fatal(err)
	}
	if got := s.groups["g"].share.states[p]; !reflect.DeepEqual(got, want) {
		t.Errorf("read as %+v, was %+v", got, want)
	}
	for n := range r.Value {
		cut := r
		cut.Value = r.Value[:n]
		if err := NewState(Config{}).Replay(cut); err == nil {
			t.Errorf("%d of %d bytes are read", n, len(r.Value))
		}
	}
}

// What members of a share group say of themselves is bounded in all: one too much is refused and leaves no trace, and
// the others go on.
func TestSubscriptionsOfAShareGroupAreBounded(t *testing.T) {
	s := newShareScript(t)
	s.state = NewState(Config{MaxBytes: 1000})
	names := func(n int) (names []string) { // 20 bytes each, and 16 for being one
		for i := range n {
			names = append(names, fmt.Sprintf("%020d", i))
		}
		return names
	}
	members := func() int { return len(s.state.groups["g"].share.members) }
	if got := s.heartbeat("a", 0, names(20)...); got.ErrorCode != 0 {
		t.Fatalf("the first member: %v", kerr.ErrorForCode(got.ErrorCode))
	}
	if got := s.heartbeat("b", 0, names(20)...); got.ErrorCode != kerr.GroupMaxSizeReached.Code || members() != 1 {
		t.Errorf("beyond the bound: %v, %d members", kerr.ErrorForCode(got.ErrorCode), members())
	}
	if got := s.heartbeat("b", 0, names(5)...); got.ErrorCode != 0 || members() != 2 {
		t.Errorf("within the bound: %v, %d members", kerr.ErrorForCode(got.ErrorCode), members())
	}
	epoch := s.state.groups["g"].share.members["b"].epoch
	if got := s.heartbeat("b", epoch, names(20)...); got.ErrorCode != kerr.GroupMaxSizeReached.Code {
		t.Errorf("a member that wants more: %v", kerr.ErrorForCode(got.ErrorCode))
	}
	if got := s.heartbeat("b", epoch, names(5)...); got.ErrorCode != 0 {
		t.Errorf("a member that says what it said before: %v", kerr.ErrorForCode(got.ErrorCode))
	}
	s.heartbeat("a", -1)
	if got := s.heartbeat("b", s.state.groups["g"].share.members["b"].epoch, names(20)...); got.ErrorCode != 0 {
		t.Errorf("a member in the place of another: %v", kerr.ErrorForCode(got.ErrorCode))
	}
}
