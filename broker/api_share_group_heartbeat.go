package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func handleShareGroupHeartbeat(ctx context.Context, b *Broker, r *request, req *kmsg.ShareGroupHeartbeatRequest) kmsg.Response {
	refused := func(code *kerr.Error) kmsg.Response {
		resp := kmsg.NewPtrShareGroupHeartbeatResponse()
		resp.ErrorCode, resp.ErrorMessage = codeAndText(code)
		return resp
	}
	if !r.may(opRead, onGroup, req.GroupID) {
		return refused(kerr.GroupAuthorizationFailed)
	}
	for _, topic := range req.SubscribedTopicNames {
		if !r.may(opDescribe, onTopic, topic) {
			return refused(kerr.TopicAuthorizationFailed)
		}
	}
	cfg := b.groupConfig(req.GroupID)
	resp, err := b.groups.ShareHeartbeat(ctx, req, cfg.share.durations(), r.member())
	if err != nil {
		resp = kmsg.NewPtrShareGroupHeartbeatResponse()
		resp.ErrorCode = groupCode(err)
	}
	return resp
}
