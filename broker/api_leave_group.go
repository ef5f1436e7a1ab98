package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func handleLeaveGroup(ctx context.Context, b *Broker, _ *request, req *kmsg.LeaveGroupRequest) kmsg.Response {
	resp, err := b.groups.Leave(ctx, req)
	if err != nil {
		resp = kmsg.NewPtrLeaveGroupResponse()
		resp.ErrorCode = groupCode(err)
	}
	return resp
}
