package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func handleOffsetCommit(ctx context.Context, b *Broker, r *request, req *kmsg.OffsetCommitRequest) kmsg.Response {
	if !r.may(opRead, onGroup, req.Group) {
		return &kmsg.OffsetCommitResponse{Topics: refuseCommits(req.Topics, kerr.GroupAuthorizationFailed.Code)}
	}
	var allowed, denied []kmsg.OffsetCommitRequestTopic
	for _, t := range req.Topics {
		if r.may(opRead, onTopic, t.Topic) {
			allowed = append(allowed, t)
		} else {
			denied = append(denied, t)
		}
	}
	refused := refuseCommits(denied, kerr.TopicAuthorizationFailed.Code)
	if len(allowed) == 0 && len(denied) > 0 {
		return &kmsg.OffsetCommitResponse{Topics: refused}
	}
	req.Topics = allowed
	resp, err := b.groups.Commit(ctx, req)
	if err != nil {
		resp = kmsg.NewPtrOffsetCommitResponse()
		resp.Topics = refuseCommits(allowed, groupCode(err))
	}
	resp.Topics = append(resp.Topics, refused...)
	return resp
}

func refuseCommits(topics []kmsg.OffsetCommitRequestTopic, code int16) []kmsg.OffsetCommitResponseTopic {
	var out []kmsg.OffsetCommitResponseTopic
	for _, t := range topics {
		rt := kmsg.NewOffsetCommitResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewOffsetCommitResponseTopicPartition()
			rp.Partition, rp.ErrorCode = p.Partition, code
			rt.Partitions = append(rt.Partitions, rp)
		}
		out = append(out, rt)
	}
	return out
}
