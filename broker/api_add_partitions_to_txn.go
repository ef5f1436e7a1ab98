package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/broker/txn"
	"github.com/tabletopic/tabletopic/partition"
)

// handleAddPartitionsToTxn makes partitions part of transactions. Up to version 3 a producer asks
// for its one; from 4 on there may be several, and it may only be asked whether they are part.
func handleAddPartitionsToTxn(ctx context.Context, b *Broker, r *request, req *kmsg.AddPartitionsToTxnRequest) kmsg.Response {
	resp := kmsg.NewPtrAddPartitionsToTxnResponse()
	if r.version < 4 {
		t := kmsg.AddPartitionsToTxnRequestTransaction{TransactionalID: req.TransactionalID, ProducerID: req.ProducerID, ProducerEpoch: req.ProducerEpoch}
		for _, topic := range req.Topics {
			t.Topics = append(t.Topics, kmsg.AddPartitionsToTxnRequestTransactionTopic{Topic: topic.Topic, Partitions: topic.Partitions})
		}
		if !r.may(opWrite, onTxn, req.TransactionalID) {
			resp.Topics = answerPartitions(t.Topics, func(string, int32) int16 { return kerr.TransactionalIDAuthorizationFailed.Code })
			return resp
		}
		resp.Topics = b.addPartitions(ctx, r, t)
		return resp
	}
	if !r.may(opClusterAction, onCluster, cluster) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp
	}
	for _, t := range req.Transactions {
		rt := kmsg.NewAddPartitionsToTxnResponseTransaction()
		rt.TransactionalID = t.TransactionalID
		for _, topic := range b.addPartitions(ctx, r, t) {
			out := kmsg.NewAddPartitionsToTxnResponseTransactionTopic()
			out.Topic = topic.Topic
			for _, p := range topic.Partitions {
				out.Partitions = append(out.Partitions, kmsg.AddPartitionsToTxnResponseTransactionTopicPartition{Partition: p.Partition, ErrorCode: p.ErrorCode})
			}
			rt.Topics = append(rt.Topics, out)
		}
		resp.Transactions = append(resp.Transactions, rt)
	}
	return resp
}

// addPartitions makes all partitions part of a transaction, or none.
func (b *Broker) addPartitions(ctx context.Context, r *request, t kmsg.AddPartitionsToTxnRequestTransaction) []kmsg.AddPartitionsToTxnResponseTopic {
	e := txn.Enlistment{
		TransactionalID: t.TransactionalID, Producer: txn.Identity{ProducerID: t.ProducerID, Epoch: t.ProducerEpoch},
		Verify: t.VerifyOnly, Version: transactionProtocol(r.version, 5),
	}
	refused := map[partition.ID]int16{}
	for _, topic := range t.Topics {
		known, ok := b.set.Topic(topic.Topic)
		allowed := r.version >= 4 || r.may(opWrite, onTopic, topic.Topic)
		for _, index := range topic.Partitions {
			id := partition.ID{Topic: topic.Topic, Index: index}
			switch {
			case !allowed:
				refused[id] = kerr.TopicAuthorizationFailed.Code
			case !ok || known.Internal || index < 0 || int(index) >= len(known.Partitions):
				refused[id] = kerr.UnknownTopicOrPartition.Code
			}
			e.Partitions = append(e.Partitions, id)
		}
	}
	code := kerr.OperationNotAttempted.Code
	if len(refused) == 0 {
		fenced, err := b.txns.Enlist(ctx, e)
		if code = txnCode(fenced, err); code == kerr.ProducerFenced.Code && r.version < 2 { // KIP-588
			code = kerr.InvalidProducerEpoch.Code
		}
	}
	return answerPartitions(t.Topics, func(topic string, index int32) int16 {
		if own, ok := refused[partition.ID{Topic: topic, Index: index}]; ok {
			return own
		}
		return code
	})
}

// answerPartitions answers each partition with its code.
func answerPartitions(topics []kmsg.AddPartitionsToTxnRequestTransactionTopic, code func(topic string, index int32) int16) []kmsg.AddPartitionsToTxnResponseTopic {
	var out []kmsg.AddPartitionsToTxnResponseTopic
	for _, topic := range topics {
		rt := kmsg.NewAddPartitionsToTxnResponseTopic()
		rt.Topic = topic.Topic
		for _, index := range topic.Partitions {
			p := kmsg.NewAddPartitionsToTxnResponseTopicPartition()
			p.Partition, p.ErrorCode = index, code(topic.Topic, index)
			rt.Partitions = append(rt.Partitions, p)
		}
		out = append(out, rt)
	}
	return out
}

// transactionProtocol is the protocol of transactions that a request belongs to: the second from
// some version of it on (KIP-890).
func transactionProtocol(version, second int16) int16 {
	if version >= second {
		return 2
	}
	return 1
}
