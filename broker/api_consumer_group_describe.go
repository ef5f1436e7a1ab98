package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func handleConsumerGroupDescribe(ctx context.Context, b *Broker, r *request, req *kmsg.ConsumerGroupDescribeRequest) kmsg.Response {
	resp := kmsg.NewPtrConsumerGroupDescribeResponse()
	for _, name := range once(req.Groups, itself) {
		var g kmsg.ConsumerGroupDescribeResponseGroup
		err := error(kerr.GroupAuthorizationFailed)
		if r.may(opDescribe, onGroup, name) {
			g, err = b.groups.DescribeConsumer(ctx, name)
		}
		if err == nil && req.IncludeAuthorizedOperations {
			g.AuthorizedOperations = b.access.Operations(r.conn.session.client, onGroup, name)
		}
		if err != nil {
			g = kmsg.NewConsumerGroupDescribeResponseGroup()
			g.Group, g.ErrorCode = name, groupCode(err)
		}
		resp.Groups = append(resp.Groups, g)
	}
	return resp
}
