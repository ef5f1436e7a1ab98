package group

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/shard"
	"github.com/tabletopic/tabletopic/record"
)

// Records of groups of the consumer protocol are Kafka's own too (ConsumerGroup… of its message
// definitions). Keys are the version and classic strings; values are compact, and end in tags.
//
//	key    ┌───┬─────────────────────┐
//	       │ 3 │ group               │  group epoch and the hash of the topics it was made for
//	       │ 5 │ group, member       │  what the member says of itself
//	       │ 6 │ group               │  epoch of the target assignment, and when it was made
//	       │ 7 │ group, member       │  its target assignment
//	       │ 8 │ group, member       │  its epoch, and what it holds and gives up
//	       └───┴─────────────────────┘
//	value  version 0; null deletes
const (
	consumerGroupKey        = 3
	consumerMemberKey       = 5
	consumerTargetKey       = 6
	consumerTargetMemberKey = 7
	consumerCurrentKey      = 8

	metadataHashTag  = 0 // of the value of consumerGroupKey
	assignedAtTag    = 0 // of the value of consumerTargetKey: milliseconds since 1970 (KIP-1263)
	classicMemberTag = 0 // of the value of consumerMemberKey: what a member of the classic protocol says
)

func consumerKey(version int16, names ...string) []byte {
	key := kbin.AppendInt16(nil, version)
	for _, name := range names {
		key = kbin.AppendString(key, name)
	}
	return key
}

func consumerValue() []byte { return kbin.AppendInt16(nil, 0) }

// noTags ends a value.
func noTags(v []byte) []byte { return append(v, 0) }

func consumerGroupRecord(group string, epoch int32, hash uint64, now time.Time) shard.Record {
	v := kbin.AppendInt32(consumerValue(), epoch)
	v = append(v, 1, metadataHashTag, 8) // one tag, of 8 bytes
	v = binary.BigEndian.AppendUint64(v, hash)
	return shard.Record{Record: record.Record{Key: consumerKey(consumerGroupKey, group), Value: v, Timestamp: now.UnixMilli()}}
}

func consumerMemberRecord(group, member string, s *subscription) shard.Record {
	v := kbin.AppendCompactNullableString(consumerValue(), nonEmpty(s.instance))
	v = kbin.AppendCompactNullableString(v, nonEmpty(s.rack))
	v = kbin.AppendCompactString(v, s.clientID)
	v = kbin.AppendCompactString(v, s.clientHost)
	v = kbin.AppendCompactArrayLen(v, len(s.topics))
	for _, topic := range s.topics {
		v = kbin.AppendCompactString(v, topic)
	}
	v = kbin.AppendCompactNullableString(v, nonEmpty(s.regex))
	v = kbin.AppendInt32(v, int32(s.rebalance.Milliseconds()))
	v = kbin.AppendCompactNullableString(v, nonEmpty(s.assignor))
	if s.classic == nil {
		v = noTags(v)
	} else {
		tag := s.classic.append(nil)
		v = append(v, 1, classicMemberTag)
		v = append(kbin.AppendUvarint(v, uint32(len(tag))), tag...)
	}
	return shard.Record{Record: record.Record{Key: consumerKey(consumerMemberKey, group, member), Value: v}}
}

func (c *classicMember) append(v []byte) []byte {
	v = append(v, 1) // it is not null
	v = kbin.AppendInt32(v, int32(c.session.Milliseconds()))
	v = kbin.AppendCompactArrayLen(v, len(c.protocols))
	for _, p := range c.protocols {
		v = kbin.AppendCompactString(v, p.Name)
		v = noTags(kbin.AppendCompactBytes(v, p.Metadata))
	}
	return noTags(v)
}

func readClassicMember(b []byte) (*classicMember, error) {
	r := kbin.Reader{Src: b}
	if r.Int8() < 0 {
		return nil, r.Complete()
	}
	c := &classicMember{session: millis(r.Int32())}
	for n := r.CompactArrayLen(); n > 0 && r.Ok(); n-- {
		p := kmsg.JoinGroupRequestProtocol{Name: r.CompactString(), Metadata: slices.Clone(r.CompactBytes())}
		readTags(&r, nil)
		c.protocols = append(c.protocols, p)
	}
	readTags(&r, nil)
	return c, r.Complete()
}

func (c *classicMember) equal(o *classicMember) bool {
	if c == nil || o == nil {
		return c == o
	}
	return c.session == o.session && slices.EqualFunc(c.protocols, o.protocols, func(a, b kmsg.JoinGroupRequestProtocol) bool {
		return a.Name == b.Name && bytes.Equal(a.Metadata, b.Metadata)
	})
}

// consumerTargetRecord is that of a target assignment made at a time; zero if nobody knows.
func consumerTargetRecord(group string, epoch int32, at time.Time) shard.Record {
	v := kbin.AppendInt32(consumerValue(), epoch)
	if at.IsZero() {
		v = noTags(v)
	} else {
		v = append(v, 1, assignedAtTag, 8) // one tag, of 8 bytes
		v = binary.BigEndian.AppendUint64(v, uint64(at.UnixMilli()))
	}
	return shard.Record{Record: record.Record{Key: consumerKey(consumerTargetKey, group), Value: v}}
}

func consumerTargetMemberRecord(group, member string, target partitionSet) shard.Record {
	return shard.Record{Record: record.Record{Key: consumerKey(consumerTargetMemberKey, group, member), Value: noTags(target.append(consumerValue()))}}
}

func consumerCurrentRecord(group, member string, c *current) shard.Record {
	v := kbin.AppendInt32(consumerValue(), c.epoch)
	v = kbin.AppendInt32(v, c.previous)
	v = append(v, byte(c.state))
	v = c.assigned.append(v)
	v = c.revoking.append(v)
	return shard.Record{Record: record.Record{Key: consumerKey(consumerCurrentKey, group, member), Value: noTags(v)}}
}

// partitionID names a partition by the id of its topic.
type partitionID struct {
	topic uuid.UUID
	index int32
}

// partitionSet is a set of partitions.
type partitionSet map[partitionID]struct{}

// topics returns the partitions of each topic, in order.
func (s partitionSet) topics() []topicPartitions {
	byTopic := map[uuid.UUID][]int32{}
	for p := range s {
		byTopic[p.topic] = append(byTopic[p.topic], p.index)
	}
	out := make([]topicPartitions, 0, len(byTopic))
	for topic, list := range byTopic {
		slices.Sort(list)
		out = append(out, topicPartitions{topic, list})
	}
	slices.SortFunc(out, func(a, b topicPartitions) int { return strings.Compare(string(a.topic[:]), string(b.topic[:])) })
	return out
}

type topicPartitions struct {
	topic      uuid.UUID
	partitions []int32
}

func (s partitionSet) append(v []byte) []byte {
	topics := s.topics()
	v = kbin.AppendCompactArrayLen(v, len(topics))
	for _, t := range topics {
		v = kbin.AppendUuid(v, t.topic)
		v = kbin.AppendCompactArrayLen(v, len(t.partitions))
		for _, p := range t.partitions {
			v = kbin.AppendInt32(v, p)
		}
		v = noTags(v)
	}
	return v
}

func readPartitionSet(r *kbin.Reader) partitionSet {
	s := partitionSet{}
	for n := r.CompactArrayLen(); n > 0 && r.Ok(); n-- {
		topic := uuid.UUID(r.Uuid())
		for m := r.CompactArrayLen(); m > 0 && r.Ok(); m-- {
			s[partitionID{topic, r.Int32()}] = struct{}{}
		}
		readTags(r, nil)
	}
	return s
}

// readTags passes the tags of a value; take, if not nil, gets each.
func readTags(r *kbin.Reader, take func(tag uint32, v []byte)) {
	for n := r.Uvarint(); n > 0 && r.Ok(); n-- {
		tag, size := r.Uvarint(), r.Uvarint()
		if int64(size) > int64(len(r.Src)) {
			r.Span(len(r.Src) + 1) // makes r bad
			return
		}
		if v := r.Span(int(size)); take != nil {
			take(tag, v)
		}
	}
}

// replayConsumer folds a record of the consumer protocol in. Values are absolute, so that
// folding the same records in again changes nothing.
func (s *State) replayConsumer(version int16, r record.Record) error {
	key := kbin.Reader{Src: r.Key[2:]}
	id, member := key.String(), ""
	if version == consumerMemberKey || version == consumerTargetMemberKey || version == consumerCurrentKey {
		member = key.String()
	}
	if err := key.Complete(); err != nil {
		return fmt.Errorf("group record key %d: %w", version, err)
	}
	if r.Value == nil {
		s.forgetConsumer(version, id, member)
		return nil
	}
	v := kbin.Reader{Src: r.Value}
	if valueVersion := v.Int16(); valueVersion != 0 {
		return fmt.Errorf("group record %d: value version %d: this release reads 0", version, valueVersion)
	}
	g := s.group(id)
	s.touch(g)
	c := g.becomeConsumer()
	switch version {
	case consumerGroupKey:
		epoch, hash := v.Int32(), uint64(0)
		readTags(&v, func(tag uint32, b []byte) {
			if tag == metadataHashTag && len(b) == 8 {
				hash = binary.BigEndian.Uint64(b)
			}
		})
		c.epoch, c.hash, g.since = epoch, hash, time.UnixMilli(r.Timestamp)
	case consumerMemberKey:
		sub := subscription{instance: deref(v.CompactNullableString()), rack: deref(v.CompactNullableString()), clientID: v.CompactString(), clientHost: v.CompactString()}
		for n := v.CompactArrayLen(); n > 0 && v.Ok(); n-- {
			sub.topics = append(sub.topics, v.CompactString())
		}
		sub.regex = deref(v.CompactNullableString())
		sub.rebalance, sub.assignor = millis(v.Int32()), deref(v.CompactNullableString())
		var err error
		readTags(&v, func(tag uint32, b []byte) {
			if tag == classicMemberTag {
				sub.classic, err = readClassicMember(b)
			}
		})
		if err != nil {
			return fmt.Errorf("group record %d of group %q: classic member: %w", version, id, err)
		}
		if v.Ok() {
			m := c.member(member)
			c.said += sub.said() - m.said()
			m.subscription = sub
			if sub.instance != "" {
				c.instances[sub.instance] = member
			}
		}
	case consumerTargetKey:
		c.targetEpoch, c.pace.last = v.Int32(), time.Time{}
		readTags(&v, func(tag uint32, b []byte) {
			if tag == assignedAtTag && len(b) == 8 {
				if at := int64(binary.BigEndian.Uint64(b)); at > 0 {
					c.pace.last = time.UnixMilli(at)
				}
			}
		})
	case consumerTargetMemberKey:
		target := readPartitionSet(&v)
		c.targeted += len(target) - len(c.target[member])
		c.target[member] = target
		readTags(&v, nil)
	case consumerCurrentKey:
		now := current{epoch: v.Int32(), previous: v.Int32(), state: memberState(v.Int8()), assigned: readPartitionSet(&v), revoking: readPartitionSet(&v)}
		readTags(&v, nil)
		c.hold(c.member(member), now)
	}
	if err := v.Complete(); err != nil {
		return fmt.Errorf("group record %d of group %q: %w", version, id, err)
	}
	if len(v.Src) > 0 {
		return fmt.Errorf("group record %d of group %q: %w", version, id, errors.New("bytes behind its end"))
	}
	s.wakeBy(g, atOnce) // members need their deadlines
	return nil
}

func (s *State) forgetConsumer(version int16, id, member string) {
	g := s.groups[id]
	if g == nil || g.consumer == nil {
		return
	}
	s.touch(g)
	c := g.consumer
	switch m := c.members[member]; version {
	case consumerGroupKey:
		s.dropGroup(id)
	case consumerMemberKey:
		if m != nil {
			c.hold(m, current{})
			c.share(m, nil)
			c.said -= len(m.id) + m.said()
			if c.instances[m.instance] == member {
				delete(c.instances, m.instance)
			}
			delete(c.members, member)
		}
	case consumerTargetMemberKey:
		c.targeted -= len(c.target[member])
		delete(c.target, member)
	case consumerCurrentKey:
		if m != nil {
			c.hold(m, current{})
		}
	}
}

// records are what survives of a group of the consumer protocol, its offsets apart.
func (c *consumerGroup) records(id string, since time.Time) []shard.Record {
	out := []shard.Record{consumerGroupRecord(id, c.epoch, c.hash, since)}
	for _, m := range c.ordered() {
		out = append(out, consumerMemberRecord(id, m.id, &m.subscription))
	}
	out = append(out, consumerTargetRecord(id, c.targetEpoch, c.pace.last))
	for _, member := range slices.Sorted(maps.Keys(c.target)) {
		out = append(out, consumerTargetMemberRecord(id, member, c.target[member]))
	}
	for _, m := range c.ordered() {
		out = append(out, consumerCurrentRecord(id, m.id, &m.current))
	}
	return out
}
