package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func handleHeartbeat(ctx context.Context, b *Broker, _ *request, req *kmsg.HeartbeatRequest) kmsg.Response {
	resp, err := b.groups.Heartbeat(ctx, req)
	if err != nil {
		resp = kmsg.NewPtrHeartbeatResponse()
		resp.ErrorCode = groupCode(err)
	}
	return resp
}
