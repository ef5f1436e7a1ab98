package broker

import (
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func handleListGroups(ctx context.Context, b *Broker, r *request, req *kmsg.ListGroupsRequest) kmsg.Response {
	resp := kmsg.NewPtrListGroupsResponse()
	groups, err := b.groups.List(ctx, req.StatesFilter, req.TypesFilter)
	if err != nil {
		resp.ErrorCode = groupCode(err)
		return resp
	}
	if !r.sees(onCluster, cluster) {
		groups = slices.DeleteFunc(groups, func(g kmsg.ListGroupsResponseGroup) bool { return !r.sees(onGroup, g.Group) })
	}
	resp.Groups = groups
	return resp
}
