package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func handleOffsetDelete(ctx context.Context, b *Broker, _ *request, req *kmsg.OffsetDeleteRequest) kmsg.Response {
	resp, err := b.groups.DeleteOffsets(ctx, req)
	if err != nil {
		resp = kmsg.NewPtrOffsetDeleteResponse()
		resp.ErrorCode = groupCode(err)
	}
	return resp
}
