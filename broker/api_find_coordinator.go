package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/streamstore"
)

// Coordinator types of FindCoordinator.
const (
	coordinatorGroup       = 0
	coordinatorTransaction = 1
)

// handleFindCoordinator sends every group to the node that leads its partition of
// __consumer_offsets, and every transactional id to that of __transaction_state.
func handleFindCoordinator(ctx context.Context, b *Broker, r *request, req *kmsg.FindCoordinatorRequest) kmsg.Response {
	resp := kmsg.NewPtrFindCoordinatorResponse()
	if r.version < 4 {
		p, err := b.coordinator(ctx, r, req.CoordinatorType, req.CoordinatorKey)
		resp.ErrorCode, resp.ErrorMessage = codeAndText(err)
		resp.NodeID, resp.Host, resp.Port = p.id, p.host, p.port
		return resp
	}
	for _, key := range req.CoordinatorKeys {
		p, err := b.coordinator(ctx, r, req.CoordinatorType, key)
		c := kmsg.NewFindCoordinatorResponseCoordinator()
		c.Key, c.NodeID, c.Host, c.Port = key, p.id, p.host, p.port
		c.ErrorCode, c.ErrorMessage = codeAndText(err)
		resp.Coordinators = append(resp.Coordinators, c)
	}
	return resp
}

func (b *Broker) coordinator(ctx context.Context, r *request, kind int8, key string) (peer, error) {
	var leader streamstore.NodeID
	var err error
	switch kind {
	case coordinatorGroup:
		if !r.may(opDescribe, onGroup, key) {
			return nobody, kerr.GroupAuthorizationFailed
		}
		_, leader, err = b.groups.Find(ctx, key)
	case coordinatorTransaction:
		if key == "" {
			return nobody, refuse(kerr.InvalidRequest, "the transactional id is empty")
		}
		if !r.may(opDescribe, onTxn, key) {
			return nobody, kerr.TransactionalIDAuthorizationFailed
		}
		leader, err = b.txns.Leader(ctx, key)
	default:
		return nobody, refuse(kerr.InvalidRequest, "coordinators of type %d are not supported", kind)
	}
	if err != nil {
		return nobody, refuse(kerr.CoordinatorNotAvailable, "%v", err)
	}
	return b.peer(r.conn.listener, leader)
}
