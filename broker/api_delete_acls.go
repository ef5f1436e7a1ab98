package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/security"
)

func handleDeleteACLs(ctx context.Context, b *Broker, r *request, req *kmsg.DeleteACLsRequest) kmsg.Response {
	resp := kmsg.NewPtrDeleteACLsResponse()
	refused := b.checkACLs(r, opAlter)
	var all []metadata.ACL
	for _, f := range req.Filters {
		result := kmsg.NewDeleteACLsResponseResult()
		result.ErrorCode, result.ErrorMessage = codeAndText(refused)
		if refused == nil {
			found := b.access.ACLs(security.Filter{ResourceType: f.ResourceType, ResourceName: f.ResourceName, PatternType: f.ResourcePatternType,
				Principal: f.Principal, Host: f.Host, Operation: f.Operation, Permission: f.PermissionType})
			all = append(all, found...)
			for _, a := range found {
				m := kmsg.NewDeleteACLsResponseResultMatchingACL()
				m.ResourceType, m.ResourceName, m.ResourcePatternType = kmsg.ACLResourceType(a.ResourceType), a.ResourceName, kmsg.ACLResourcePatternType(a.PatternType)
				m.Principal, m.Host, m.Operation, m.PermissionType = a.Principal, a.Host, kmsg.ACLOperation(a.Operation), kmsg.ACLPermissionType(a.Permission)
				result.MatchingACLs = append(result.MatchingACLs, m)
			}
		}
		resp.Results = append(resp.Results, result)
	}
	if len(all) == 0 {
		return resp
	}
	err := b.access.DeleteACLs(ctx, all)
	if err == nil {
		b.log.Info("ACLs deleted", "principal", r.conn.session.client.Principal, "acls", all)
		return resp
	}
	b.log.Error("delete ACLs", "err", err)
	for i := range resp.Results {
		resp.Results[i].MatchingACLs = nil
		resp.Results[i].ErrorCode, resp.Results[i].ErrorMessage = codeAndText(err)
	}
	return resp
}
