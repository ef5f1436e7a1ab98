package broker

import (
	"context"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func handleListGroups(ctx context.Context, b *Broker, _ *request, req *kmsg.ListGroupsRequest) kmsg.Response {
	resp := kmsg.NewPtrListGroupsResponse()
	if len(req.TypesFilter) > 0 && !slices.ContainsFunc(req.TypesFilter, func(t string) bool { return strings.EqualFold(t, "classic") }) {
		return resp
	}
	groups, err := b.groups.List(ctx, req.StatesFilter)
	if err != nil {
		resp.ErrorCode = groupCode(err)
		return resp
	}
	resp.Groups = groups
	return resp
}
