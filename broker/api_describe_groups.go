package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func handleDescribeGroups(ctx context.Context, b *Broker, r *request, req *kmsg.DescribeGroupsRequest) kmsg.Response {
	resp := kmsg.NewPtrDescribeGroupsResponse()
	for _, name := range req.Groups {
		g, err := b.groups.Describe(ctx, name, r.version)
		if err != nil {
			g = kmsg.NewDescribeGroupsResponseGroup()
			g.Group, g.ErrorCode = name, groupCode(err)
		}
		resp.Groups = append(resp.Groups, g)
	}
	return resp
}
