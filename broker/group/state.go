package group

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/shard"
	"github.com/tabletopic/tabletopic/record"
)

// Config bounds what groups may ask for; the names are Kafka's.
type Config struct {
	// MinSession and MaxSession bound a member's session timeout. 6 s and 30 min if zero.
	MinSession, MaxSession time.Duration
	// InitialDelay is how long an empty group waits for more members before its first
	// rebalance. 500 ms if zero.
	InitialDelay time.Duration
	// MaxSize is the most members of a group. 10,000 if zero.
	MaxSize int
	// MaxMetadata is the largest metadata of a committed offset, in bytes. 4,096 if zero.
	MaxMetadata int
	// MaxBytes is the most that the members of a group say of themselves, and the most of an assignment of the classic
	// protocol, in bytes. A topic that a member names counts 16 bytes more, and a protocol 48, for what they take in memory. So does one that its
	// regular expression matches; of members with the same one and the same rights, once. 16 MiB if zero.
	MaxBytes int
	// MemoryBytes bounds what all groups take in memory, by estimate, in all nodes together: each partition of
	// __consumer_offsets has its part. Groups that are not there yet may fill three quarters of it. 512 MiB if zero.
	MemoryBytes int64
	// ConsumerSession is the session timeout of members of the consumer protocol, ConsumerHeartbeat
	// how often they are told to send heartbeats, in groups that have no settings of their own
	// (KIP-848). 45 s and 5 s if zero.
	ConsumerSession, ConsumerHeartbeat time.Duration
	// ConsumerMinSession to ConsumerMaxHeartbeat bound the settings of groups for that
	// (group.consumer.min.session.timeout.ms and the like). 45 s, 60 s, 5 s and 15 s if zero.
	ConsumerMinSession, ConsumerMaxSession     time.Duration
	ConsumerMinHeartbeat, ConsumerMaxHeartbeat time.Duration
	// ConsumerAssignment is how long after an assignment a group of the consumer protocol without a setting of its own has
	// its next one (group.consumer.assignment.interval.ms, KIP-1263), ShareAssignment the same of a share group. At once if zero.
	ConsumerAssignment, ShareAssignment time.Duration
	// ConsumerMinAssignment and ConsumerMaxAssignment bound that setting of groups. 0 and 15 s if zero.
	ConsumerMinAssignment, ConsumerMaxAssignment time.Duration
	// ShareSession and ShareHeartbeat are session and heartbeat for members of share groups, of which one has
	// at most ShareMaxSize (KIP-932). 45 s, 5 s and 200 if zero.
	ShareSession, ShareHeartbeat time.Duration
	ShareMaxSize                 int
	// Migration is which way a group with members may change its protocol
	// (group.consumer.migration.policy). Both if empty.
	Migration Migration
	// Retention is how long offsets of a group without members are kept. 7 days if zero.
	Retention time.Duration
	// Partitions of __consumer_offsets when it is created. 16 if zero.
	Partitions int
}

func (c *Config) setDefaults() {
	c.MinSession = cmp.Or(c.MinSession, 6*time.Second)
	c.MaxSession = cmp.Or(c.MaxSession, 30*time.Minute)
	c.InitialDelay = cmp.Or(c.InitialDelay, 500*time.Millisecond)
	c.MaxSize = cmp.Or(c.MaxSize, 10_000)
	c.MaxMetadata = cmp.Or(c.MaxMetadata, 4096)
	c.MaxBytes = cmp.Or(c.MaxBytes, 16<<20)
	c.MemoryBytes = cmp.Or(c.MemoryBytes, 512<<20)
	c.ConsumerSession = cmp.Or(c.ConsumerSession, 45*time.Second)
	c.ConsumerHeartbeat = cmp.Or(c.ConsumerHeartbeat, 5*time.Second)
	c.ConsumerMinSession = cmp.Or(c.ConsumerMinSession, 45*time.Second)
	c.ConsumerMaxSession = cmp.Or(c.ConsumerMaxSession, time.Minute)
	c.ConsumerMinHeartbeat = cmp.Or(c.ConsumerMinHeartbeat, 5*time.Second)
	c.ConsumerMaxHeartbeat = cmp.Or(c.ConsumerMaxHeartbeat, 15*time.Second)
	c.ConsumerMaxAssignment = cmp.Or(c.ConsumerMaxAssignment, 15*time.Second)
	c.ShareSession = cmp.Or(c.ShareSession, 45*time.Second)
	c.ShareHeartbeat = cmp.Or(c.ShareHeartbeat, 5*time.Second)
	c.ShareMaxSize = cmp.Or(c.ShareMaxSize, 200)
	c.Migration = cmp.Or(c.Migration, MigrateBoth)
	c.Retention = cmp.Or(c.Retention, 7*24*time.Hour)
	c.Partitions = cmp.Or(c.Partitions, 16)
}

// State is the groups of one partition of __consumer_offsets.
type State struct {
	cfg    Config
	groups map[string]*group
	// pending are the offsets that open transactions commit, by producer id.
	pending   map[int64]map[groupPartition]pendingOffset
	order     int64 // of the last offset record
	deadlines deadlines
	expiry    time.Time // next look for offsets past their retention; zero: at once

	// See memory.go.
	touched      []*group     // those that are other ones than were counted
	bytes        int64        // of the groups, as counted
	offsetBytes  int64        // of their offsets
	pendingBytes int64        // of pending
	refused      int          // how often there was no room
	shown        atomic.Int64 // held, as others than the owner of the state see it
}

// NewState returns the state of an empty partition. Of MemoryBytes it has the part of one of Partitions.
func NewState(cfg Config) *State {
	cfg.setDefaults()
	cfg.MemoryBytes /= int64(cfg.Partitions)
	return &State{cfg: cfg, groups: map[string]*group{}, pending: map[int64]map[groupPartition]pendingOffset{}}
}

type phase string // the names are what DescribeGroups shows

const (
	empty      phase = "Empty"
	preparing  phase = "PreparingRebalance"  // members join
	completing phase = "CompletingRebalance" // the leader assigns
	stable     phase = "Stable"
)

type group struct {
	id           string
	phase        phase
	protocolType string
	generation   int32
	protocol     string
	leader       string
	members      map[string]*member
	says         census               // of members
	static       map[string]string    // instance id to member id
	invited      map[string]time.Time // ids given out that have not joined yet, until when
	invitedBytes int                  // of these ids
	offsets      map[topicPartition]offset
	unstable     map[topicPartition]int // how many open transactions commit an offset
	since        time.Time              // when the phase was last written
	deadline     time.Time              // of preparing or completing
	initial      bool                   // preparing, and waiting for more first members
	joined       int                    // counts joins, for a stable order
	counted      int64                  // bytes in memory, without offsets, when last counted
	touched      bool                   // it is another one since
	offsetBytes  int64                  // of offsets
	wake         time.Time              // see deadlines
	place        int                    // among deadlines, or notDue

	// Not nil: the group is one of the consumer protocol, and of the above only id, phase empty,
	// protocolType, offsets, unstable and since are its.
	consumer *consumerGroup
	// Not nil: it is a share group, which has no offsets, and else as above.
	share *shareGroup
}

// occupied tells whether the group has members.
func (g *group) occupied() bool {
	return len(g.members) > 0 || g.consumer != nil && len(g.consumer.members) > 0 || g.share != nil && len(g.share.members) > 0
}

// tombstone is the record that ends the group.
func (g *group) tombstone() shard.Record {
	switch {
	case g.consumer != nil:
		return shard.Record{Record: record.Record{Key: consumerKey(consumerGroupKey, g.id)}}
	case g.share != nil:
		return shard.Record{Record: record.Record{Key: consumerKey(shareGroupKey, g.id)}}
	}
	return groupRecord(g.id, nil)
}

type member struct {
	id         string
	instance   string // static membership; empty if dynamic
	clientID   string
	clientHost string
	session    time.Duration
	rebalance  time.Duration
	protocols  []kmsg.JoinGroupRequestProtocol
	assignment []byte
	order      int
	expires    time.Time // zero right after a replay: counts from the first tick

	join     shard.Ticket // waits for the rebalance; zero if not
	joinResp *kmsg.JoinGroupResponse
	sync     shard.Ticket // waits for the assignment; zero if not
	syncResp *kmsg.SyncGroupResponse
}

func (s *State) group(id string) *group {
	g := s.groups[id]
	if g == nil {
		g = &group{
			id: id, place: notDue, phase: empty, members: map[string]*member{}, static: map[string]string{},
			invited: map[string]time.Time{}, offsets: map[topicPartition]offset{}, unstable: map[topicPartition]int{},
		}
		s.groups[id] = g
		s.touch(g)
		s.wakeBy(g, atOnce) // Tick drops it if nothing becomes of it
	}
	return g
}

// ordered returns the members in the order in which they first joined.
func (g *group) ordered() []*member {
	return slices.SortedFunc(maps.Values(g.members), func(a, b *member) int { return cmp.Compare(a.order, b.order) })
}

// Replay implements [shard.State].
func (s *State) Replay(r shard.Record) error {
	defer s.show()
	return s.replay(r)
}

func (s *State) replay(r shard.Record) error {
	if r.Marker != nil {
		s.endTxn(r.Marker.ProducerID, r.Marker.Commit)
		return nil
	}
	if len(r.Key) >= 2 {
		switch version := int16(binary.BigEndian.Uint16(r.Key)); version {
		case consumerGroupKey, consumerMemberKey, consumerTargetKey, consumerTargetMemberKey, consumerCurrentKey:
			return s.replayConsumer(version, r.Record)
		case shareMemberKey, shareGroupKey, shareCurrentKey, shareStateKey:
			return s.replayShare(version, r.Record)
		}
	}
	ok, ov, gk, gv, err := parseRecord(r.Record)
	switch {
	case err != nil:
		return err
	case ok != nil && ov == nil:
		s.forget(ok.Group, topicPartition{ok.Topic, ok.Partition})
	case ok != nil:
		epoch := ov.LeaderEpoch
		if ov.Version < 3 {
			epoch = -1
		}
		s.order++
		tp := topicPartition{ok.Topic, ok.Partition}
		o := offset{ov.Offset, epoch, ov.Metadata, time.UnixMilli(ov.CommitTimestamp), s.order}
		if r.Txn != nil {
			s.replayPending(ok.Group, tp, *r.Txn, o)
			return nil
		}
		s.setOffset(s.group(ok.Group), tp, o)
	case gv == nil:
		s.dropGroup(gk.Group)
	default:
		g := s.group(gk.Group)
		g.replay(gv)
		s.touch(g)
		s.wakeBy(g, atOnce) // members that the replay made need a deadline
	}
	return nil
}

// replay takes members and assignment as the record has them; what is known of members in
// memory beyond that stays.
func (g *group) replay(v *kmsg.GroupMetadataValue) {
	g.consumer, g.share = nil, nil
	g.protocolType, g.generation, g.protocol, g.leader = v.ProtocolType, v.Generation, deref(v.Protocol), deref(v.Leader)
	g.since, g.phase, g.deadline = time.UnixMilli(v.CurrentStateTimestamp), empty, time.Time{}
	members := map[string]*member{}
	g.says = census{}
	clear(g.static)
	for _, mv := range v.Members {
		m := g.members[mv.MemberID]
		if m == nil {
			g.joined++
			m = &member{id: mv.MemberID, order: g.joined}
		}
		m.instance, m.clientID, m.clientHost = deref(mv.InstanceID), mv.ClientID, mv.ClientHost
		m.session, m.rebalance = millis(mv.SessionTimeoutMillis), millis(mv.RebalanceTimeoutMillis)
		if m.expires.IsZero() { // known by replay alone
			m.protocols = []kmsg.JoinGroupRequestProtocol{{Name: g.protocol, Metadata: slices.Clone(mv.Subscription)}}
		}
		m.assignment = slices.Clone(mv.Assignment)
		if m.instance != "" {
			g.static[m.instance] = m.id
		}
		members[m.id] = m
		g.says.add(m)
		g.phase = stable
	}
	g.members = members
}

// record is what survives of the group, with the assignments given.
func (g *group) record(now time.Time, assignment func(*member) []byte) shard.Record {
	v := kmsg.NewGroupMetadataValue()
	v.ProtocolType, v.Generation, v.CurrentStateTimestamp = g.protocolType, g.generation, now.UnixMilli()
	if g.protocol == "" { // those who wait for the first generation join again
		return groupRecord(g.id, &v)
	}
	v.Protocol, v.Leader = &g.protocol, nonEmpty(g.leader)
	for _, m := range g.ordered() {
		mv := kmsg.NewGroupMetadataValueMember()
		mv.MemberID, mv.ClientID, mv.ClientHost = m.id, m.clientID, m.clientHost
		mv.InstanceID = nonEmpty(m.instance)
		mv.SessionTimeoutMillis, mv.RebalanceTimeoutMillis = int32(m.session.Milliseconds()), int32(m.rebalance.Milliseconds())
		mv.Subscription, mv.Assignment = m.metadata(g.protocol), assignment(m)
		v.Members = append(v.Members, mv)
	}
	return groupRecord(g.id, &v)
}

func (m *member) metadata(protocol string) []byte {
	for _, p := range m.protocols {
		if p.Name == protocol {
			return p.Metadata
		}
	}
	return nil
}

// Snapshot implements [shard.State].
func (s *State) Snapshot() []shard.Record {
	var out []shard.Record
	var offsets []orderedRecord
	for _, id := range slices.Sorted(maps.Keys(s.groups)) {
		g := s.groups[id]
		switch {
		case g.consumer != nil:
			out = append(out, g.consumer.records(g.id, g.since)...)
		case g.share != nil:
			out = append(out, g.share.records(g.id, g.since)...)
		case !g.since.IsZero():
			// A rebalance under way is not written, but that there was one: nobody leads the members, and
			// not all of them were in the last generation.
			saved := *g
			if saved.phase != stable {
				saved.leader = ""
			}
			out = append(out, saved.record(g.since, func(m *member) []byte { return m.assignment }))
		}
		for tp, o := range g.offsets {
			offsets = append(offsets, orderedRecord{o.order, offsetRecord(g.id, tp, &o)})
		}
	}
	for _, pending := range s.pending {
		for gp, p := range pending {
			offsets = append(offsets, orderedRecord{p.order, pendingRecord(gp.group, gp.topicPartition, p.txn, p.offset)})
		}
	}
	// Of two commits of one partition the later counts, also if a transaction ends later.
	slices.SortFunc(offsets, func(a, b orderedRecord) int { return cmp.Compare(a.order, b.order) })
	for _, o := range offsets {
		out = append(out, o.record)
	}
	return out
}

type orderedRecord struct {
	order  int64
	record shard.Record
}

// Tick implements [shard.State]: sessions that ended, rebalances whose time is up, offsets
// past their retention.
func (s *State) Tick(now time.Time) shard.Step {
	var step shard.Step
	for _, g := range s.due(now) {
		s.tick(g, now, &step)
		s.forgetEmpty(g) // never more than a first, unfinished join
	}
	s.expire(now, &step)
	s.show()
	return step
}

func (s *State) tick(g *group, now time.Time, step *shard.Step) {
	for id, until := range g.invited {
		if !now.Before(until) {
			s.uninvite(g, id)
		} else {
			s.wakeBy(g, until)
		}
	}
	if g.consumer != nil {
		s.tickConsumer(g, now, step)
		return
	}
	if g.share != nil {
		s.tickShare(g, now, step)
		return
	}
	for _, m := range g.ordered() {
		if m.expires.IsZero() {
			m.expires = now.Add(m.session)
		}
		if m.join == 0 && !now.Before(m.expires) {
			s.remove(g, m, now, step)
		}
	}
	if g.phase == stable && g.leader == "" { // it was of the consumer protocol, or saved in a rebalance
		s.rebalance(g, now, step)
	}
	if !g.deadline.IsZero() && !now.Before(g.deadline) {
		s.timeUp(g, now, step)
	}
	s.tryCompleteJoin(g, now, step)
	for _, m := range g.members {
		if m.join == 0 {
			s.wakeBy(g, m.expires)
		}
	}
	if !g.deadline.IsZero() {
		s.wakeBy(g, g.deadline)
	}
}

// timeUp ends a phase whose members did not all come.
func (s *State) timeUp(g *group, now time.Time, step *shard.Step) {
	switch g.phase {
	case preparing:
		if g.initial { // from here on as in any rebalance
			g.initial = false
			g.deadline = now.Add(g.rebalanceTimeout())
			return
		}
		for id := range g.invited {
			s.uninvite(g, id)
		}
		s.completeJoin(g, now, step)
	case completing:
		late := false
		for _, m := range g.ordered() {
			if m.sync == 0 {
				late = true
				s.drop(g, m, step)
			}
		}
		if late {
			s.rebalance(g, now, step)
		}
	}
}

func (g *group) rebalanceTimeout() time.Duration {
	timeout := time.Duration(0)
	for _, m := range g.members {
		timeout = max(timeout, m.rebalance)
	}
	return timeout
}

// expire forgets offsets of groups without members, and groups without offsets.
func (s *State) expire(now time.Time, step *shard.Step) {
	if s.expiry.IsZero() || !now.Before(s.expiry) {
		for _, id := range slices.Sorted(maps.Keys(s.groups)) {
			s.expireGroup(s.groups[id], now, step)
		}
		s.expiry = now.Add(s.cfg.Retention / 100)
	}
}

func (s *State) expireGroup(g *group, now time.Time, step *shard.Step) {
	if g.share != nil && len(g.share.states) > 0 {
		return // as in Kafka: what was delivered is known until somebody deletes the group
	}
	if g.occupied() || len(g.invited) > 0 || len(g.unstable) > 0 || now.Sub(g.since) < s.cfg.Retention {
		return
	}
	left := len(g.offsets)
	for tp, o := range g.offsets {
		if now.Sub(o.committed) >= s.cfg.Retention {
			step.Records = append(step.Records, offsetRecord(g.id, tp, nil))
			left--
		}
	}
	if left == 0 {
		step.Records = append(step.Records, g.tombstone())
	}
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func nonEmpty(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func millis(n int32) time.Duration { return time.Duration(n) * time.Millisecond }
