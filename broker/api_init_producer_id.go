package broker

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/broker/txn"
)

// producerIDs hands out producer ids from blocks that metadata reserves. The rest of a
// block is lost when the process ends; ids are 63 bits.
type producerIDs struct {
	allocate func(ctx context.Context, n int) (first int64, err error)

	mu        sync.Mutex // also held during allocate: those who wait need its result
	next, end int64      // guarded by mu
}

const producerIDBlock = 1000

func (p *producerIDs) get(ctx context.Context) (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == p.end {
		first, err := p.allocate(ctx, producerIDBlock)
		if err != nil {
			return 0, err
		}
		p.next, p.end = first, first+producerIDBlock
	}
	p.next++
	return p.next - 1, nil
}

// handleInitProducerID gives a producer an id and an epoch. An idempotent one that has an id and
// asks for the next epoch of it (KIP-360) gets a new id instead, which is as good: without
// transactions nothing else ties the sequences of the old id to it.
func handleInitProducerID(ctx context.Context, b *Broker, r *request, req *kmsg.InitProducerIDRequest) kmsg.Response {
	resp := kmsg.NewPtrInitProducerIDResponse()
	resp.ProducerID, resp.ProducerEpoch = -1, -1
	if req.TransactionalID != nil && !r.may(opWrite, onTxn, *req.TransactionalID) {
		resp.ErrorCode = kerr.TransactionalIDAuthorizationFailed.Code
		return resp
	}
	if req.TransactionalID == nil && !b.access.AuthorizeAny(r.conn.session.client, opWrite, onTopic) && !r.may(opIdempotent, onCluster, cluster) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp
	}
	id, err := b.ids.get(ctx)
	if err != nil {
		b.log.Error("allocate producer ids", "err", err)
		resp.ErrorCode = kerr.CoordinatorNotAvailable.Code // the client tries again
		return resp
	}
	if req.TransactionalID == nil {
		resp.ProducerID, resp.ProducerEpoch = id, 0
		return resp
	}
	has := txn.Identity{ProducerID: req.ProducerID, Epoch: req.ProducerEpoch}
	if *req.TransactionalID == "" || (has.ProducerID < 0) != (has.Epoch < 0) {
		resp.ErrorCode = kerr.InvalidRequest.Code
		return resp
	}
	result, err := b.txns.Init(ctx, *req.TransactionalID, time.Duration(req.TransactionTimeoutMillis)*time.Millisecond, has, id)
	resp.ErrorCode = txnCode(result.Err, err)
	if resp.ErrorCode == kerr.ProducerFenced.Code && r.version < 4 { // KIP-588
		resp.ErrorCode = kerr.InvalidProducerEpoch.Code
	}
	if resp.ErrorCode == 0 {
		resp.ProducerID, resp.ProducerEpoch = result.ProducerID, result.Epoch
	}
	return resp
}
