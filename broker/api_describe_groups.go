package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func handleDescribeGroups(ctx context.Context, b *Broker, r *request, req *kmsg.DescribeGroupsRequest) kmsg.Response {
	resp := kmsg.NewPtrDescribeGroupsResponse()
	for _, name := range once(req.Groups, itself) {
		var g kmsg.DescribeGroupsResponseGroup
		err := error(kerr.GroupAuthorizationFailed)
		if r.may(opDescribe, onGroup, name) {
			g, err = b.groups.Describe(ctx, name, r.version)
		}
		if err == nil && req.IncludeAuthorizedOperations {
			g.AuthorizedOperations = b.access.Operations(r.conn.session.client, onGroup, name)
		}
		if err != nil {
			g = kmsg.NewDescribeGroupsResponseGroup()
			g.Group, g.ErrorCode = name, groupCode(err)
		}
		resp.Groups = append(resp.Groups, g)
	}
	return resp
}
