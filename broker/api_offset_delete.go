package broker

import (
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func handleOffsetDelete(ctx context.Context, b *Broker, r *request, req *kmsg.OffsetDeleteRequest) kmsg.Response {
	resp := kmsg.NewPtrOffsetDeleteResponse()
	if !r.may(opDelete, onGroup, req.Group) {
		resp.ErrorCode = kerr.GroupAuthorizationFailed.Code
		return resp
	}
	var refused []kmsg.OffsetDeleteResponseTopic
	req.Topics = slices.DeleteFunc(req.Topics, func(t kmsg.OffsetDeleteRequestTopic) bool { return len(t.Partitions) == 0 })
	for i := range req.Topics {
		t := &req.Topics[i]
		rt := kmsg.NewOffsetDeleteResponseTopic()
		rt.Topic = t.Topic
		readable := r.may(opRead, onTopic, t.Topic)
		topic, _ := b.set.Topic(t.Topic)
		t.Partitions = slices.DeleteFunc(t.Partitions, func(p kmsg.OffsetDeleteRequestTopicPartition) bool {
			rp := kmsg.NewOffsetDeleteResponseTopicPartition()
			rp.Partition = p.Partition
			switch {
			case !readable:
				rp.ErrorCode = kerr.TopicAuthorizationFailed.Code
			case p.Partition < 0 || int(p.Partition) >= len(topic.Partitions):
				rp.ErrorCode = kerr.UnknownTopicOrPartition.Code
			default:
				return false
			}
			rt.Partitions = append(rt.Partitions, rp)
			return true
		})
		refused = append(refused, rt)
	}
	if !slices.ContainsFunc(req.Topics, func(t kmsg.OffsetDeleteRequestTopic) bool { return len(t.Partitions) > 0 }) {
		resp.Topics = refused // whether there is a group is not asked, as in Kafka
		return resp
	}
	got, err := b.groups.DeleteOffsets(ctx, req)
	if err != nil {
		resp.ErrorCode = groupCode(err)
		return resp
	}
	for i := range got.Topics { // in the order of the request
		got.Topics[i].Partitions = append(got.Topics[i].Partitions, refused[i].Partitions...)
	}
	return got
}
