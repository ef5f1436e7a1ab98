package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func handleShareGroupDescribe(ctx context.Context, b *Broker, r *request, req *kmsg.ShareGroupDescribeRequest) kmsg.Response {
	resp := kmsg.NewPtrShareGroupDescribeResponse()
	for _, name := range once(req.GroupIDs, itself) {
		var g kmsg.ShareGroupDescribeResponseGroup
		err := error(kerr.GroupAuthorizationFailed)
		if r.may(opDescribe, onGroup, name) {
			g, err = b.groups.DescribeShare(ctx, name)
		}
		if err == nil && req.IncludeAuthorizedOperations {
			g.AuthorizedOperations = b.access.Operations(r.conn.session.client, onGroup, name)
		}
		if err != nil {
			g = kmsg.NewShareGroupDescribeResponseGroup()
			g.GroupID, g.ErrorCode = name, groupCode(err)
		}
		resp.Groups = append(resp.Groups, g)
	}
	return resp
}
