package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func handleLeaveGroup(ctx context.Context, b *Broker, r *request, req *kmsg.LeaveGroupRequest) kmsg.Response {
	if !r.may(opRead, onGroup, req.Group) {
		resp := kmsg.NewPtrLeaveGroupResponse()
		resp.ErrorCode = kerr.GroupAuthorizationFailed.Code
		return resp
	}
	resp, err := b.groups.Leave(ctx, req)
	if err != nil {
		resp = kmsg.NewPtrLeaveGroupResponse()
		resp.ErrorCode = groupCode(err)
	}
	return resp
}
