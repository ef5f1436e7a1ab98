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
// partition that holds the group part of it; before, the producer has (KIP-890). From version 6 on
// topics have ids (KIP-1319).
func handleTxnOffsetCommit(ctx context.Context, b *Broker, r *request, req *kmsg.TxnOffsetCommitRequest) kmsg.Response {
	var whole error // for all topics
	switch {
	case !r.may(opWrite, onTxn, req.TransactionalID):
		whole = kerr.TransactionalIDAuthorizationFailed
	case !r.may(opRead, onGroup, req.Group):
		whole = kerr.GroupAuthorizationFailed
	}
	var allowed []kmsg.TxnOffsetCommitRequestTopic
	var refused []kmsg.TxnOffsetCommitResponseTopic
	for _, t := range req.Topics {
		err := r.findTopic(&t.Topic, t.TopicID, 6)
		switch {
		case whole != nil:
			err = whole
		case err == nil && !r.may(opRead, onTopic, t.Topic):
			err = kerr.TopicAuthorizationFailed
		}
		if err != nil {
			refused = append(refused, refuseTxnCommit(t, codeOf(err)))
		} else {
			allowed = append(allowed, t)
		}
	}
	resp := kmsg.NewPtrTxnOffsetCommitResponse()
	if len(allowed) > 0 || len(refused) == 0 && whole == nil {
		req.Topics = allowed
		committed, err := b.txnOffsetCommit(ctx, r, req)
		if err != nil {
			for _, t := range allowed {
				refused = append(refused, refuseTxnCommit(t, txnCode(nil, err)))
			}
		} else {
			resp = committed
		}
	}
	for i := range resp.Topics {
		resp.Topics[i].TopicID = b.topicID(resp.Topics[i].Topic)
	}
	resp.Topics = append(resp.Topics, refused...)
	return resp
}

func refuseTxnCommit(t kmsg.TxnOffsetCommitRequestTopic, code int16) kmsg.TxnOffsetCommitResponseTopic {
	rt := kmsg.NewTxnOffsetCommitResponseTopic()
	rt.Topic, rt.TopicID = t.Topic, t.TopicID
	for _, p := range t.Partitions {
		rp := kmsg.NewTxnOffsetCommitResponseTopicPartition()
		rp.Partition, rp.ErrorCode = p.Partition, code
		rt.Partitions = append(rt.Partitions, rp)
	}
	return rt
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
