package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// handleOffsetFetch answers for one group, from version 8 on for several. Without
// transactions every offset is stable, so RequireStable asks for nothing more.
func handleOffsetFetch(ctx context.Context, b *Broker, r *request, req *kmsg.OffsetFetchRequest) kmsg.Response {
	resp := kmsg.NewPtrOffsetFetchResponse()
	if r.version >= 8 {
		for _, g := range req.Groups {
			resp.Groups = append(resp.Groups, b.fetchOffsets(ctx, g))
		}
		return resp
	}
	var topics []kmsg.OffsetFetchRequestGroupTopic
	if req.Topics != nil {
		topics = []kmsg.OffsetFetchRequestGroupTopic{}
	}
	for _, t := range req.Topics {
		topics = append(topics, kmsg.OffsetFetchRequestGroupTopic{Topic: t.Topic, Partitions: t.Partitions})
	}
	asked := kmsg.NewOffsetFetchRequestGroup()
	asked.Group, asked.Topics = req.Group, topics
	g := b.fetchOffsets(ctx, asked)
	resp.ErrorCode = g.ErrorCode
	for _, t := range g.Topics {
		rt := kmsg.NewOffsetFetchResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewOffsetFetchResponseTopicPartition()
			rp.Partition, rp.Offset, rp.LeaderEpoch, rp.Metadata, rp.ErrorCode = p.Partition, p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func (b *Broker) fetchOffsets(ctx context.Context, g kmsg.OffsetFetchRequestGroup) kmsg.OffsetFetchResponseGroup {
	member := ""
	if g.MemberID != nil {
		member = *g.MemberID
	}
	resp, err := b.groups.Fetch(ctx, g.Group, member, g.MemberEpoch, g.Topics)
	if err != nil {
		resp = kmsg.NewOffsetFetchResponseGroup()
		resp.Group, resp.ErrorCode = g.Group, groupCode(err)
	}
	return resp
}
