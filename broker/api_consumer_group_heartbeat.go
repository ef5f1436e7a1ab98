package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/broker/group"
)

func handleConsumerGroupHeartbeat(ctx context.Context, b *Broker, r *request, req *kmsg.ConsumerGroupHeartbeatRequest) kmsg.Response {
	refused := func(code *kerr.Error) kmsg.Response {
		resp := kmsg.NewPtrConsumerGroupHeartbeatResponse()
		resp.ErrorCode, resp.ErrorMessage = codeAndText(code)
		return resp
	}
	if !r.may(opRead, onGroup, req.Group) {
		return refused(kerr.GroupAuthorizationFailed)
	}
	for _, topic := range req.SubscribedTopicNames {
		if !r.may(opDescribe, onTopic, topic) {
			return refused(kerr.TopicAuthorizationFailed)
		}
	}
	resp, err := b.groups.ConsumerHeartbeat(ctx, req, group.Client{ID: r.clientID, Host: "/" + r.host()})
	if err != nil {
		resp = kmsg.NewPtrConsumerGroupHeartbeatResponse()
		resp.ErrorCode = groupCode(err)
	}
	return resp
}
