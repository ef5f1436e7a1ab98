package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func handleDeleteGroups(ctx context.Context, b *Broker, r *request, req *kmsg.DeleteGroupsRequest) kmsg.Response {
	resp := kmsg.NewPtrDeleteGroupsResponse()
	for _, name := range req.Groups {
		var g kmsg.DeleteGroupsResponseGroup
		err := error(kerr.GroupAuthorizationFailed)
		if r.may(opDelete, onGroup, name) {
			g, err = b.groups.Delete(ctx, name)
		}
		if err != nil {
			g = kmsg.NewDeleteGroupsResponseGroup()
			g.Group, g.ErrorCode = name, groupCode(err)
		}
		if failed := kerr.ErrorForCode(g.ErrorCode); failed != nil {
			g.ErrorMessage = textOf(failed)
		}
		resp.Groups = append(resp.Groups, g)
	}
	return resp
}
