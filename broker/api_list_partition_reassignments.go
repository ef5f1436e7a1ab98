package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// handleListPartitionReassignments lists none: a reassignment is done when it is answered.
func handleListPartitionReassignments(_ context.Context, _ *Broker, r *request, _ *kmsg.ListPartitionReassignmentsRequest) kmsg.Response {
	resp := kmsg.NewPtrListPartitionReassignmentsResponse()
	if !r.may(opDescribe, onCluster, cluster) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
	}
	return resp
}
