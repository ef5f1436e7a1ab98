package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// handleDescribeQuorum says that there is none.
func handleDescribeQuorum(_ context.Context, _ *Broker, r *request, _ *kmsg.DescribeQuorumRequest) kmsg.Response {
	resp := kmsg.NewPtrDescribeQuorumResponse()
	if !r.may(opDescribe, onCluster, cluster) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp
	}
	resp.ErrorCode, resp.ErrorMessage = codeAndText(refuse(kerr.InvalidRequest, "there is no quorum of controllers: metadata is in a database; 'tabletopic node list' shows the nodes"))
	return resp
}
