package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/broker/txn"
	"github.com/tabletopic/tabletopic/partition"
)

// handleAddOffsetsToTxn makes the partition that holds a group part of a transaction.
func handleAddOffsetsToTxn(ctx context.Context, b *Broker, r *request, req *kmsg.AddOffsetsToTxnRequest) kmsg.Response {
	resp := kmsg.NewPtrAddOffsetsToTxnResponse()
	switch {
	case !r.may(opWrite, onTxn, req.TransactionalID):
		resp.ErrorCode = kerr.TransactionalIDAuthorizationFailed.Code
		return resp
	case !r.may(opRead, onGroup, req.Group):
		resp.ErrorCode = kerr.GroupAuthorizationFailed.Code
		return resp
	}
	id, _, err := b.groups.Find(ctx, req.Group)
	if err != nil {
		resp.ErrorCode = txnCode(nil, err)
		return resp
	}
	refused, err := b.txns.Enlist(ctx, txn.Enlistment{
		TransactionalID: req.TransactionalID, Producer: txn.Identity{ProducerID: req.ProducerID, Epoch: req.ProducerEpoch},
		Partitions: []partition.ID{id}, Version: 1,
	})
	resp.ErrorCode = txnCode(refused, err)
	if resp.ErrorCode == kerr.ProducerFenced.Code && r.version < 2 { // KIP-588
		resp.ErrorCode = kerr.InvalidProducerEpoch.Code
	}
	return resp
}
