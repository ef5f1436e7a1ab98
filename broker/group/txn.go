package group

import (
	"iter"
	"maps"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/shard"
)

// groupPartition is a partition that a group commits offsets of.
type groupPartition struct {
	group string
	topicPartition
}

// pendingOffset counts once the transaction that it is part of is committed.
type pendingOffset struct {
	offset
	txn shard.Producer
}

// TxnCommit handles TxnOffsetCommit (KIP-98, KIP-447), for a producer whose transaction the
// partition of the group is a part of.
func (s *State) TxnCommit(now time.Time, req *kmsg.TxnOffsetCommitRequest, exists func(topic string, partition int32) bool) (*kmsg.TxnOffsetCommitResponse, []shard.Record) {
	resp := req.ResponseKind().(*kmsg.TxnOffsetCommitResponse)
	refusal := s.checkTxnCommit(req)
	free := s.free(s.groups[req.Group])
	txn := shard.Producer{ID: req.ProducerID, Epoch: req.ProducerEpoch}
	var records []shard.Record
	for _, rt := range req.Topics {
		st := kmsg.NewTxnOffsetCommitResponseTopic()
		st.Topic = rt.Topic
		for _, rp := range rt.Partitions {
			sp := kmsg.NewTxnOffsetCommitResponseTopicPartition()
			sp.Partition = rp.Partition
			switch {
			case refusal != nil:
				sp.ErrorCode = refusal.Code
			case !exists(rt.Topic, rp.Partition):
				sp.ErrorCode = kerr.UnknownTopicOrPartition.Code
			case len(deref(rp.Metadata)) > s.cfg.MaxMetadata:
				sp.ErrorCode = kerr.OffsetMetadataTooLarge.Code
			default:
				o := offset{offset: rp.Offset, leaderEpoch: rp.LeaderEpoch, metadata: deref(rp.Metadata), committed: now}
				tp := topicPartition{rt.Topic, rp.Partition}
				if !s.takes(&free, s.pendingGrowth(groupPartition{req.Group, tp}, txn, &o)) {
					sp.ErrorCode = kerr.PolicyViolation.Code
					break
				}
				records = append(records, pendingRecord(req.Group, tp, txn, o))
			}
			st.Partitions = append(st.Partitions, sp)
		}
		resp.Topics = append(resp.Topics, st)
	}
	return resp, records
}

func (s *State) checkTxnCommit(req *kmsg.TxnOffsetCommitRequest) *kerr.Error {
	switch g := s.groups[req.Group]; {
	case req.Group == "":
		return kerr.InvalidGroupID
	case g != nil && g.share != nil:
		return kerr.GroupIDNotFound
	case req.Generation < 0 && req.MemberID == "": // before KIP-447 producers said no more
		return nil
	case g == nil:
		return kerr.IllegalGeneration
	case g.consumer != nil:
		return g.consumer.checkEpoch(req.MemberID, req.Generation)
	default:
		_, err := g.check(req.MemberID, deref(req.InstanceID), req.Generation)
		return err
	}
}

// replayPending notes an offset of an open transaction.
func (s *State) replayPending(group string, tp topicPartition, txn shard.Producer, o offset) {
	pending := s.pending[txn.ID]
	if pending == nil {
		pending = map[groupPartition]pendingOffset{}
		s.pending[txn.ID] = pending
	}
	gp := groupPartition{group, tp}
	if old, again := pending[gp]; again {
		s.pendingBytes -= int64(old.bytes(tp))
	} else {
		s.group(group).unstable[tp]++
	}
	pending[gp] = pendingOffset{o, txn}
	s.pendingBytes += int64(o.bytes(tp))
}

// pendingGrowth is what an offset of a transaction takes more than the one before it.
func (s *State) pendingGrowth(gp groupPartition, txn shard.Producer, o *offset) int {
	n := o.bytes(gp.topicPartition)
	if old, again := s.pending[txn.ID][gp]; again {
		n -= old.bytes(gp.topicPartition)
	}
	return n
}

// endTxn makes the offsets of a transaction count, unless later ones do, or drops them.
func (s *State) endTxn(producer int64, commit bool) {
	for gp, p := range s.pending[producer] {
		g := s.group(gp.group)
		g.settle(gp.topicPartition)
		s.pendingBytes -= int64(p.bytes(gp.topicPartition))
		if commit && p.order > g.offsets[gp.topicPartition].order {
			s.setOffset(g, gp.topicPartition, p.offset)
		}
		s.wakeIfEmpty(g)
	}
	delete(s.pending, producer)
}

// settle counts one open transaction less for a partition.
func (g *group) settle(tp topicPartition) {
	if g.unstable[tp]--; g.unstable[tp] <= 0 {
		delete(g.unstable, tp)
	}
}

// forget drops what a group committed of a partition, and what open transactions would.
func (s *State) forget(group string, tp topicPartition) {
	g := s.groups[group]
	if g == nil {
		return
	}
	defer s.wakeIfEmpty(g)
	s.dropOffset(g, tp)
	if g.unstable[tp] == 0 {
		return
	}
	delete(g.unstable, tp)
	for producer, pending := range s.pending {
		if p, some := pending[groupPartition{group, tp}]; some {
			s.pendingBytes -= int64(p.bytes(tp))
			delete(pending, groupPartition{group, tp})
		}
		if len(pending) == 0 {
			delete(s.pending, producer)
		}
	}
}

// has reports whether the group committed an offset of a partition, or a transaction may.
func (g *group) has(tp topicPartition) bool {
	_, ok := g.offsets[tp]
	return ok || g.unstable[tp] > 0
}

// partitions are those that the group has something of.
func (g *group) partitions() iter.Seq[topicPartition] {
	all := map[topicPartition]bool{}
	for tp := range g.offsets {
		all[tp] = true
	}
	for tp := range g.unstable {
		all[tp] = true
	}
	return maps.Keys(all)
}
