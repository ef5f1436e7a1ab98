package broker

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/security"
)

// handleCreateACLs adds those that can be meant, all in one step.
func handleCreateACLs(ctx context.Context, b *Broker, r *request, req *kmsg.CreateACLsRequest) kmsg.Response {
	resp := kmsg.NewPtrCreateACLsResponse()
	resp.Results = make([]kmsg.CreateACLsResponseResult, len(req.Creations))
	refused := b.checkACLs(r, opAlter)
	var create []metadata.ACL
	var which []int
	for i, c := range req.Creations {
		a := metadata.ACL{ResourceType: int8(c.ResourceType), ResourceName: c.ResourceName, PatternType: int8(c.ResourcePatternType),
			Principal: c.Principal, Host: c.Host, Operation: int8(c.Operation), Permission: int8(c.PermissionType)}
		err := refused
		if err == nil {
			if err = security.CheckACL(a); err != nil {
				err = refuse(kerr.InvalidRequest, "%v", err)
			}
		}
		if err == nil {
			create, which = append(create, a), append(which, i)
		}
		resp.Results[i].Default()
		resp.Results[i].ErrorCode, resp.Results[i].ErrorMessage = codeAndText(err)
	}
	if len(create) == 0 {
		return resp
	}
	err := b.access.CreateACLs(ctx, create)
	switch {
	case errors.Is(err, metadata.ErrTooManyACLs):
		err = refuse(kerr.InvalidRequest, "%v", err)
	case err != nil:
		b.log.Error("create ACLs", "err", err)
	default:
		b.log.Info("ACLs created", "principal", r.conn.session.client.Principal, "acls", create)
	}
	for _, i := range which {
		resp.Results[i].ErrorCode, resp.Results[i].ErrorMessage = codeAndText(err)
	}
	return resp
}
