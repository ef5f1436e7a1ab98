package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// handleSyncGroup waits for the leader's assignment.
func handleSyncGroup(ctx context.Context, b *Broker, r *request, req *kmsg.SyncGroupRequest) kmsg.Response {
	if !r.may(opRead, onGroup, req.Group) {
		resp := kmsg.NewPtrSyncGroupResponse()
		resp.ErrorCode = kerr.GroupAuthorizationFailed.Code
		return resp
	}
	r.waits()
	resp, err := b.groups.Sync(ctx, req)
	if err != nil {
		resp = kmsg.NewPtrSyncGroupResponse()
		resp.ErrorCode = groupCode(err)
	}
	return resp
}
