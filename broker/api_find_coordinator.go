package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Coordinator types of FindCoordinator.
const (
	coordinatorGroup       = 0
	coordinatorTransaction = 1
)

// handleFindCoordinator sends every group to this node. The error for transactions is
// the one that no client retries: librdkafka takes all others as passing.
func handleFindCoordinator(_ context.Context, b *Broker, r *request, req *kmsg.FindCoordinatorRequest) kmsg.Response {
	resp := kmsg.NewPtrFindCoordinatorResponse()
	var err error
	switch req.CoordinatorType {
	case coordinatorGroup:
	case coordinatorTransaction:
		err = refuse(kerr.TransactionalIDAuthorizationFailed, "transactions are not supported: remove transactional.id")
	default:
		err = refuse(kerr.InvalidRequest, "coordinators of type %d are not supported", req.CoordinatorType)
	}
	node, host, port := int32(b.node.ID), b.host, b.port
	if err != nil {
		node, host, port = -1, "", -1
	}
	if r.version < 4 {
		resp.ErrorCode, resp.ErrorMessage = codeAndText(err)
		resp.NodeID, resp.Host, resp.Port = node, host, port
		return resp
	}
	for _, key := range req.CoordinatorKeys {
		c := kmsg.NewFindCoordinatorResponseCoordinator()
		c.Key, c.NodeID, c.Host, c.Port = key, node, host, port
		c.ErrorCode, c.ErrorMessage = codeAndText(err)
		resp.Coordinators = append(resp.Coordinators, c)
	}
	return resp
}
