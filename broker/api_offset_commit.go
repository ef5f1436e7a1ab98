package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func handleOffsetCommit(ctx context.Context, b *Broker, _ *request, req *kmsg.OffsetCommitRequest) kmsg.Response {
	resp, err := b.groups.Commit(ctx, req)
	if err == nil {
		return resp
	}
	resp = kmsg.NewPtrOffsetCommitResponse()
	for _, t := range req.Topics {
		rt := kmsg.NewOffsetCommitResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewOffsetCommitResponseTopicPartition()
			rp.Partition, rp.ErrorCode = p.Partition, groupCode(err)
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}
