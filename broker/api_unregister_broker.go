package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// handleUnregisterBroker refuses: a node is not registered with a controller, and forgetting one would forget what it
// leads. Without it tools would say that the cluster does not support this, and exit as if all were well.
func handleUnregisterBroker(_ context.Context, b *Broker, r *request, req *kmsg.UnregisterBrokerRequest) kmsg.Response {
	resp := kmsg.NewPtrUnregisterBrokerResponse()
	err := error(kerr.ClusterAuthorizationFailed)
	if r.may(opAlter, onCluster, cluster) {
		err = refuse(kerr.BrokerIDNotRegistered, "there is no node %d", req.BrokerID)
		if b.isNode(req.BrokerID) {
			err = refuse(kerr.InvalidRequest, "a node is not unregistered: 'tabletopic partition move --all-from %d' takes what it leads, and then it can be stopped", req.BrokerID)
		}
	}
	resp.ErrorCode, resp.ErrorMessage = codeAndText(err)
	return resp
}
