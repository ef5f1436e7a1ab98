package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/security"
)

func handleDescribeACLs(_ context.Context, b *Broker, r *request, req *kmsg.DescribeACLsRequest) kmsg.Response {
	resp := kmsg.NewPtrDescribeACLsResponse()
	filter := security.Filter{ResourceType: req.ResourceType, ResourceName: req.ResourceName, PatternType: req.ResourcePatternType,
		Principal: req.Principal, Host: req.Host, Operation: req.Operation, Permission: req.PermissionType}
	if err := b.checkACLs(r, opDescribe); err != nil {
		resp.ErrorCode, resp.ErrorMessage = codeAndText(err)
		return resp
	}
	// One entry for each resource; those of one are beside each other.
	var last *kmsg.DescribeACLsResponseResource
	for _, a := range b.access.ACLs(filter) {
		typ, pattern := kmsg.ACLResourceType(a.ResourceType), kmsg.ACLResourcePatternType(a.PatternType)
		if last == nil || last.ResourceType != typ || last.ResourceName != a.ResourceName || last.ResourcePatternType != pattern {
			res := kmsg.NewDescribeACLsResponseResource()
			res.ResourceType, res.ResourceName, res.ResourcePatternType = typ, a.ResourceName, pattern
			resp.Resources = append(resp.Resources, res)
			last = &resp.Resources[len(resp.Resources)-1]
		}
		acl := kmsg.NewDescribeACLsResponseResourceACL()
		acl.Principal, acl.Host, acl.Operation, acl.PermissionType = a.Principal, a.Host, kmsg.ACLOperation(a.Operation), kmsg.ACLPermissionType(a.Permission)
		last.ACLs = append(last.ACLs, acl)
	}
	return resp
}

// checkACLs refuses what has to do with ACLs if there are none, or if the client may not.
func (b *Broker) checkACLs(r *request, op kmsg.ACLOperation) error {
	if !r.may(op, onCluster, cluster) {
		return kerr.ClusterAuthorizationFailed
	}
	if !b.access.Enabled() {
		return refuse(kerr.SecurityDisabled, "ACLs are not asked here: start the servers with authorization acl")
	}
	return nil
}
