package broker

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/broker/txn"
	"github.com/tabletopic/tabletopic/partition"
)

// handleTxnOffsetCommit commits offsets as part of a transaction. From version 5 on it makes the
// partition that holds the group part of it; before, the producer has (KIP-890).
func handleTxnOffsetCommit(ctx context.Context, b *Broker, r *request, req *kmsg.TxnOffsetCommitRequest) kmsg.Response {
	switch {
	case !r.may(opWrite, onTxn, req.TransactionalID):
		return &kmsg.TxnOffsetCommitResponse{Topics: refuseTxnCommits(req.Topics, kerr.TransactionalIDAuthorizationFailed.Code)}
	case !r.may(opRead, onGroup, req.Group):
		return &kmsg.TxnOffsetCommitResponse{Topics: refuseTxnCommits(req.Topics, kerr.GroupAuthorizationFailed.Code)}
	}
	var allowed, denied []kmsg.TxnOffsetCommitRequestTopic
	for _, t := range req.Topics {
		if r.may(opRead, onTopic, t.Topic) {
			allowed = append(allowed, t)
		} else {
			denied = append(denied, t)
		}
	}
	refused := refuseTxnCommits(denied, kerr.TopicAuthorizationFailed.Code)
	if len(allowed) == 0 && len(denied) > 0 {
		return &kmsg.TxnOffsetCommitResponse{Topics: refused}
	}
	req.Topics = allowed
	resp, err := b.txnOffsetCommit(ctx, r, req)
	if err != nil {
		resp = kmsg.NewPtrTxnOffsetCommitResponse()
		resp.Topics = refuseTxnCommits(allowed, txnCode(nil, err))
	}
	resp.Topics = append(resp.Topics, refused...)
	return resp
}

func refuseTxnCommits(topics []kmsg.TxnOffsetCommitRequestTopic, code int16) []kmsg.TxnOffsetCommitResponseTopic {
	var out []kmsg.TxnOffsetCommitResponseTopic
	for _, t := range topics {
		rt := kmsg.NewTxnOffsetCommitResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewTxnOffsetCommitResponseTopicPartition()
			rp.Partition, rp.ErrorCode = p.Partition, code
			rt.Partitions = append(rt.Partitions, rp)
		}
		out = append(out, rt)
	}
	return out
}

func (b *Broker) txnOffsetCommit(ctx context.Context, r *request, req *kmsg.TxnOffsetCommitRequest) (*kmsg.TxnOffsetCommitResponse, error) {
	id, _, err := b.groups.Find(ctx, req.Group)
	if err != nil {
		return nil, err
	}
	p, err := b.set.Partition(id.Topic, id.Index)
	if err != nil {
		return nil, kerr.NotCoordinator
	}
	v, refused, err := b.enlist(ctx, txn.Enlistment{
		TransactionalID: req.TransactionalID, Producer: txn.Identity{ProducerID: req.ProducerID, Epoch: req.ProducerEpoch},
		Verify: r.version < 5, Version: 2,
	}, []*partition.Partition{p})
	switch {
	case err != nil: // clients try again
		return nil, refuse(kerr.CoordinatorLoadInProgress, "the coordinator of the transaction did not answer: %v", err)
	case refused == kerr.ProducerFenced:
		return nil, kerr.InvalidProducerEpoch
	case refused == kerr.ConcurrentTransactions && r.version < 5:
		return nil, kerr.CoordinatorLoadInProgress
	case refused != nil:
		return nil, refused
	}
	resp, err := b.groups.TxnCommit(ctx, req, v[p])
	switch {
	case errors.Is(err, partition.ErrInvalidProducerEpoch):
		return nil, kerr.InvalidProducerEpoch
	case errors.Is(err, partition.ErrInvalidTxnState):
		return nil, kerr.InvalidTxnState
	case errors.Is(err, partition.ErrTooManyTransactions):
		return nil, kerr.PolicyViolation
	}
	return resp, err
}
