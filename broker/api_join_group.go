package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// handleJoinGroup waits for the rebalance, which is as long as the slowest member. The
// group keeps its own copy of what it needs, so the decoded body does not count meanwhile.
func handleJoinGroup(ctx context.Context, b *Broker, r *request, req *kmsg.JoinGroupRequest) kmsg.Response {
	if !r.may(opRead, onGroup, req.Group) {
		resp := kmsg.NewPtrJoinGroupResponse()
		resp.ErrorCode = kerr.GroupAuthorizationFailed.Code
		resp.Generation, resp.MemberID = -1, req.MemberID
		return resp
	}
	r.waits()
	resp, err := b.groups.Join(ctx, req, r.member())
	if err != nil {
		resp = kmsg.NewPtrJoinGroupResponse()
		resp.ErrorCode, resp.Generation, resp.MemberID = groupCode(err), -1, req.MemberID
	}
	return resp
}
