package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
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
	cfg := b.groupConfig(req.Group)
	resp, err := b.groups.ConsumerHeartbeat(ctx, req, cfg.consumer.durations(), r.member())
	if err != nil {
		resp = kmsg.NewPtrConsumerGroupHeartbeatResponse()
		resp.ErrorCode = groupCode(err)
	}
	return resp
}
