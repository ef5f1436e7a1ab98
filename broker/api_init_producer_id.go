package broker

import (
	"context"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
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

// handleInitProducerID gives an idempotent producer an id. One that has an id and asks
// for the next epoch of it (KIP-360) gets a new id instead, which is as good: without
// transactions nothing else ties the sequences of the old id to it.
func handleInitProducerID(ctx context.Context, b *Broker, r *request, req *kmsg.InitProducerIDRequest) kmsg.Response {
	resp := kmsg.NewPtrInitProducerIDResponse()
	resp.ProducerEpoch = -1
	if req.TransactionalID != nil && !r.may(opWrite, onTxn, *req.TransactionalID) {
		resp.ErrorCode = kerr.TransactionalIDAuthorizationFailed.Code
		return resp
	}
	if req.TransactionalID == nil && !b.access.AuthorizeAny(r.conn.session.client, opWrite, onTopic) && !r.may(opIdempotent, onCluster, cluster) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp
	}
	if req.TransactionalID != nil {
		b.log.Warn("transactional producer refused: transactions are not supported", "peer", r.conn.peer, "transactional_id", *req.TransactionalID)
		resp.ErrorCode = kerr.TransactionalIDAuthorizationFailed.Code
		return resp
	}
	id, err := b.ids.get(ctx)
	if err != nil {
		b.log.Error("allocate producer ids", "err", err)
		resp.ErrorCode = kerr.CoordinatorNotAvailable.Code // the client tries again
		return resp
	}
	resp.ProducerID, resp.ProducerEpoch = id, 0
	return resp
}
