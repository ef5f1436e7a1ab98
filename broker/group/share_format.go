package group

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kbin"

	"github.com/tabletopic/tabletopic/broker/share"
	"github.com/tabletopic/tabletopic/internal/shard"
	"github.com/tabletopic/tabletopic/record"
)

// Records of share groups are Kafka's own (ShareGroup… of its message definitions), but for the
// last: Kafka keeps what was delivered in a topic of its own. Keys are the version and classic
// strings; values are compact, and end in tags.
//
//	key    ┌──────┬───────────────────────┐
//	       │   10 │ group, member         │  what the member says of itself
//	       │   11 │ group                 │  group epoch and the hash of the topics it was made for
//	       │   14 │ group, member         │  its epoch, and what it has
//	       │ 1000 │ group, topic id, index│  what was delivered of a share-partition
//	       └──────┴───────────────────────┘
//	value  version 0; null deletes
//
//	value of 1000 ┌───────────────┬────────────────┬─────────┬───────────────────┬──────┐
//	              │ state epoch 4 │ leader epoch 4 │ known 1 │ share.Saved, bytes│ tags │
//	              └───────────────┴────────────────┴─────────┴───────────────────┴──────┘
const (
	shareMemberKey  = 10
	shareGroupKey   = 11
	shareCurrentKey = 14
	shareStateKey   = 1000
)

func shareGroupRecord(group string, epoch int32, hash uint64, now time.Time) shard.Record {
	v := kbin.AppendInt32(consumerValue(), epoch)
	v = kbin.AppendInt64(v, int64(hash))
	return shard.Record{Record: record.Record{Key: consumerKey(shareGroupKey, group), Value: noTags(v), Timestamp: now.UnixMilli()}}
}

func shareMemberRecord(group, member string, s *shareSubscription) shard.Record {
	v := kbin.AppendCompactNullableString(consumerValue(), nonEmpty(s.rack))
	v = kbin.AppendCompactString(v, s.clientID)
	v = kbin.AppendCompactString(v, s.clientHost)
	v = kbin.AppendCompactArrayLen(v, len(s.topics))
	for _, topic := range s.topics {
		v = kbin.AppendCompactString(v, topic)
	}
	return shard.Record{Record: record.Record{Key: consumerKey(shareMemberKey, group, member), Value: noTags(v)}}
}

func shareCurrentRecord(group, member string, c *shareCurrent) shard.Record {
	v := kbin.AppendInt32(consumerValue(), c.epoch)
	v = kbin.AppendInt32(v, c.previous)
	v = append(v, 0) // stable, as every member is
	v = c.assigned.append(v)
	return shard.Record{Record: record.Record{Key: consumerKey(shareCurrentKey, group, member), Value: noTags(v)}}
}

func shareStateKeyOf(group string, p partitionID) []byte {
	key := consumerKey(shareStateKey, group)
	key = kbin.AppendUuid(key, p.topic)
	return kbin.AppendInt32(key, p.index)
}

// shareStateRecord keeps a state; nil deletes it.
func shareStateRecord(group string, p partitionID, s *shareState) shard.Record {
	r := shard.Record{Record: record.Record{Key: shareStateKeyOf(group, p)}}
	if s == nil {
		return r
	}
	v := kbin.AppendInt32(consumerValue(), s.stateEpoch)
	v = kbin.AppendInt32(v, s.leaderEpoch)
	v = kbin.AppendBool(v, s.known)
	v = kbin.AppendCompactBytes(v, s.saved.Append(nil))
	r.Value = noTags(v)
	return r
}

// replayShare folds a record of a share group in. Values are absolute.
func (s *State) replayShare(version int16, r record.Record) error {
	key := kbin.Reader{Src: r.Key[2:]}
	id, member := key.String(), ""
	var p partitionID
	switch version {
	case shareMemberKey, shareCurrentKey:
		member = key.String()
	case shareStateKey:
		p = partitionID{uuid.UUID(key.Uuid()), key.Int32()}
	}
	if err := key.Complete(); err != nil {
		return fmt.Errorf("group record key %d: %w", version, err)
	}
	if r.Value == nil {
		s.forgetShare(version, id, member, p)
		return nil
	}
	v := kbin.Reader{Src: r.Value}
	if valueVersion := v.Int16(); valueVersion != 0 {
		return fmt.Errorf("group record %d: value version %d: this release reads 0", version, valueVersion)
	}
	g := s.group(id)
	s.touch(g)
	c := g.becomeShare()
	switch version {
	case shareGroupKey:
		c.epoch, c.hash, g.since = v.Int32(), uint64(v.Int64()), time.UnixMilli(r.Timestamp)
	case shareMemberKey:
		sub := shareSubscription{rack: deref(v.CompactNullableString()), clientID: v.CompactString(), clientHost: v.CompactString()}
		for n := v.CompactArrayLen(); n > 0 && v.Ok(); n-- {
			sub.topics = append(sub.topics, v.CompactString())
		}
		if v.Ok() {
			m := c.member(member)
			c.said += sub.said() - m.said()
			m.shareSubscription = sub
		}
	case shareCurrentKey:
		now := shareCurrent{epoch: v.Int32(), previous: v.Int32()}
		v.Int8()
		now.assigned = readPartitionSet(&v)
		m := c.member(member)
		c.held += len(now.assigned) - len(m.assigned)
		m.shareCurrent = now
	case shareStateKey:
		st := shareState{stateEpoch: v.Int32(), leaderEpoch: v.Int32(), known: v.Bool()}
		var err error
		if st.saved, err = share.ParseSaved(v.CompactBytes()); err != nil {
			return fmt.Errorf("group record %d of group %q: %w", version, id, err)
		}
		c.ranges += len(st.saved.Ranges) - len(c.states[p].saved.Ranges)
		c.states[p] = st
	}
	readTags(&v, nil)
	if err := v.Complete(); err != nil {
		return fmt.Errorf("group record %d of group %q: %w", version, id, err)
	}
	if len(v.Src) > 0 {
		return fmt.Errorf("group record %d of group %q: %w", version, id, errors.New("bytes behind its end"))
	}
	s.wakeBy(g, atOnce) // members need their deadlines
	return nil
}

func (s *State) forgetShare(version int16, id, member string, p partitionID) {
	g := s.groups[id]
	if g == nil || g.share == nil {
		return
	}
	s.touch(g)
	c := g.share
	switch m := c.members[member]; version {
	case shareGroupKey:
		s.dropGroup(id)
	case shareMemberKey:
		if m != nil {
			c.said -= len(m.id) + m.said()
			c.held -= len(m.assigned)
			delete(c.members, member)
			delete(c.target, member)
		}
	case shareCurrentKey:
		if m != nil {
			c.held -= len(m.assigned)
			m.shareCurrent = shareCurrent{}
		}
	case shareStateKey:
		c.ranges -= len(c.states[p].saved.Ranges)
		delete(c.states, p)
	}
}

// records are what survives of a share group.
func (c *shareGroup) records(id string, since time.Time) []shard.Record {
	out := []shard.Record{shareGroupRecord(id, c.epoch, c.hash, since)}
	for _, m := range c.ordered() {
		out = append(out, shareMemberRecord(id, m.id, &m.shareSubscription), shareCurrentRecord(id, m.id, &m.shareCurrent))
	}
	for _, p := range c.partitions() {
		st := c.states[p]
		out = append(out, shareStateRecord(id, p, &st))
	}
	return out
}

// partitions are those with a state, in order.
func (c *shareGroup) partitions() []partitionID {
	set := partitionSet{}
	for p := range c.states {
		set[p] = struct{}{}
	}
	return sortedPartitions(set)
}
