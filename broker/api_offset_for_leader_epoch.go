package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func handleOffsetForLeaderEpoch(_ context.Context, b *Broker, r *request, req *kmsg.OffsetForLeaderEpochRequest) kmsg.Response {
	resp := kmsg.NewPtrOffsetForLeaderEpochResponse()
	for _, t := range req.Topics {
		rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
		rt.Topic = t.Topic
		allowed := r.may(opDescribe, onTopic, t.Topic)
		for _, tp := range t.Partitions {
			rp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
			rp.Partition = tp.Partition
			if !allowed {
				rp.ErrorCode = kerr.TopicAuthorizationFailed.Code
			} else if p, err := b.partition(t.Topic, tp.Partition, tp.CurrentLeaderEpoch); err != nil {
				rp.ErrorCode = codeOf(err)
			} else {
				rp.LeaderEpoch, rp.EndOffset = p.EndOffsetForLeaderEpoch(tp.LeaderEpoch)
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}
