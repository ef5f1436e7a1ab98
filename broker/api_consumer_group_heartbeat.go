package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/broker/group"
)

func handleConsumerGroupHeartbeat(ctx context.Context, b *Broker, r *request, req *kmsg.ConsumerGroupHeartbeatRequest) kmsg.Response {
	resp, err := b.groups.ConsumerHeartbeat(ctx, req, group.Client{ID: r.clientID, Host: "/" + r.host()})
	if err != nil {
		resp = kmsg.NewPtrConsumerGroupHeartbeatResponse()
		resp.ErrorCode = groupCode(err)
	}
	return resp
}
