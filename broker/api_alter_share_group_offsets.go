package broker

import (
	"context"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func handleAlterShareGroupOffsets(ctx context.Context, b *Broker, r *request, req *kmsg.AlterShareGroupOffsetsRequest) kmsg.Response {
	resp := kmsg.NewPtrAlterShareGroupOffsetsResponse()
	if !r.may(opRead, onGroup, req.GroupID) {
		resp.ErrorCode, resp.ErrorMessage = codeAndText(kerr.GroupAuthorizationFailed)
		return resp
	}
	starts := map[uuid.UUID]map[int32]int64{}
	for _, t := range req.Topics {
		rt := kmsg.NewAlterShareGroupOffsetsResponseTopic()
		rt.Topic = t.Topic
		topic, known := b.set.Topic(t.Topic)
		allowed := r.may(opRead, onTopic, t.Topic)
		if allowed {
			rt.TopicID = topic.ID
		}
		for _, tp := range t.Partitions {
			var err error
			switch {
			case !allowed:
				err = kerr.TopicAuthorizationFailed
			case !known || tp.Partition < 0 || int(tp.Partition) >= len(topic.Partitions):
				err = kerr.UnknownTopicOrPartition
			case tp.StartOffset < 0:
				err = refuse(kerr.InvalidRequest, "offset %d of %s-%d: want 0 or more", tp.StartOffset, t.Topic, tp.Partition)
			default:
				if starts[topic.ID] == nil {
					starts[topic.ID] = map[int32]int64{}
				}
				starts[topic.ID][tp.Partition] = tp.StartOffset
			}
			rp := kmsg.NewAlterShareGroupOffsetsResponseTopicPartition()
			rp.Partition = tp.Partition
			rp.ErrorCode, rp.ErrorMessage = codeAndText(err)
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	if len(starts) == 0 {
		return resp
	}
	if err := b.groups.AlterShareOffsets(ctx, req.GroupID, starts); err != nil {
		resp.ErrorCode, resp.ErrorMessage, resp.Topics = groupCode(err), textOf(err), nil
	}
	return resp
}
