package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Endpoint types of DescribeCluster (KIP-919).
const (
	endpointBrokers     = 1
	endpointControllers = 2
)

func handleDescribeCluster(_ context.Context, b *Broker, r *request, req *kmsg.DescribeClusterRequest) kmsg.Response {
	resp := kmsg.NewPtrDescribeClusterResponse()
	if r.version >= 1 && req.EndpointType != endpointBrokers {
		err := refuse(kerr.UnsupportedEndpointType, "unknown endpoint type %d", req.EndpointType)
		if req.EndpointType == endpointControllers {
			err = refuse(kerr.MismatchedEndpointType, "this is the endpoint of a broker, there is none of a controller")
		}
		resp.ErrorCode, resp.ErrorMessage = codeAndText(err)
		return resp
	}
	resp.ClusterID, resp.ControllerID = b.meta.ClusterID(), int32(b.node.ID)
	for _, p := range b.peers(r.conn.listener) {
		broker := kmsg.NewDescribeClusterResponseBroker()
		broker.NodeID, broker.Host, broker.Port, broker.Rack = p.id, p.host, p.port, p.rack
		resp.Brokers = append(resp.Brokers, broker)
	}
	if req.IncludeClusterAuthorizedOperations {
		resp.ClusterAuthorizedOperations = b.access.Operations(r.conn.session.client, onCluster, cluster)
	}
	return resp
}
