package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// handleSyncGroup waits for the leader's assignment.
func handleSyncGroup(ctx context.Context, b *Broker, r *request, req *kmsg.SyncGroupRequest) kmsg.Response {
	r.doneDecoding()
	resp, err := b.groups.Sync(ctx, req)
	if err != nil {
		resp = kmsg.NewPtrSyncGroupResponse()
		resp.ErrorCode = groupCode(err)
	}
	return resp
}
