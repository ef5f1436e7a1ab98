package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/broker/txn"
)

// handleEndTxn decides a transaction. The answer says that the decision is durable; its markers
// follow. From version 5 on it has the producer's identity for its next transaction (KIP-890).
func handleEndTxn(ctx context.Context, b *Broker, r *request, req *kmsg.EndTxnRequest) kmsg.Response {
	resp := kmsg.NewPtrEndTxnResponse()
	if !r.may(opWrite, onTxn, req.TransactionalID) {
		resp.ErrorCode = kerr.TransactionalIDAuthorizationFailed.Code
		return resp
	}
	fresh, err := b.ids.get(ctx)
	if err != nil {
		b.log.Error("allocate producer ids", "err", err)
		resp.ErrorCode = kerr.CoordinatorNotAvailable.Code // the client tries again
		return resp
	}
	p := txn.Identity{ProducerID: req.ProducerID, Epoch: req.ProducerEpoch}
	result, err := b.txns.End(ctx, req.TransactionalID, p, req.Commit, transactionProtocol(r.version, 5), fresh)
	resp.ErrorCode = txnCode(result.Err, err)
	switch {
	case resp.ErrorCode == 0:
		resp.ProducerID, resp.ProducerEpoch = result.ProducerID, result.Epoch
	case resp.ErrorCode == kerr.ProducerFenced.Code && r.version < 2: // KIP-588
		resp.ErrorCode = kerr.InvalidProducerEpoch.Code
	}
	return resp
}
