package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func handleListGroups(ctx context.Context, b *Broker, _ *request, req *kmsg.ListGroupsRequest) kmsg.Response {
	resp := kmsg.NewPtrListGroupsResponse()
	groups, err := b.groups.List(ctx, req.StatesFilter, req.TypesFilter)
	if err != nil {
		resp.ErrorCode = groupCode(err)
		return resp
	}
	resp.Groups = groups
	return resp
}
