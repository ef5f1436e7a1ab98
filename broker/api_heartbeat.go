package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func handleHeartbeat(ctx context.Context, b *Broker, r *request, req *kmsg.HeartbeatRequest) kmsg.Response {
	if !r.may(opRead, onGroup, req.Group) {
		resp := kmsg.NewPtrHeartbeatResponse()
		resp.ErrorCode = kerr.GroupAuthorizationFailed.Code
		return resp
	}
	resp, err := b.groups.Heartbeat(ctx, req)
	if err != nil {
		resp = kmsg.NewPtrHeartbeatResponse()
		resp.ErrorCode = groupCode(err)
	}
	return resp
}
