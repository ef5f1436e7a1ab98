package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func handleConsumerGroupDescribe(ctx context.Context, b *Broker, _ *request, req *kmsg.ConsumerGroupDescribeRequest) kmsg.Response {
	resp := kmsg.NewPtrConsumerGroupDescribeResponse()
	for _, name := range req.Groups {
		g, err := b.groups.DescribeConsumer(ctx, name)
		if err != nil {
			g = kmsg.NewConsumerGroupDescribeResponseGroup()
			g.Group, g.ErrorCode = name, groupCode(err)
		}
		resp.Groups = append(resp.Groups, g)
	}
	return resp
}
