package broker

import (
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// handleOffsetFetch answers for one group, from version 8 on for several.
func handleOffsetFetch(ctx context.Context, b *Broker, r *request, req *kmsg.OffsetFetchRequest) kmsg.Response {
	resp := kmsg.NewPtrOffsetFetchResponse()
	if r.version >= 8 {
		for _, g := range once(req.Groups, func(g kmsg.OffsetFetchRequestGroup) string { return g.Group }) {
			resp.Groups = append(resp.Groups, b.fetchOffsets(ctx, r, g, req.RequireStable))
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
	g := b.fetchOffsets(ctx, r, asked, req.RequireStable)
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

func (b *Broker) fetchOffsets(ctx context.Context, r *request, g kmsg.OffsetFetchRequestGroup, requireStable bool) kmsg.OffsetFetchResponseGroup {
	refused := func(code int16) kmsg.OffsetFetchResponseGroup {
		resp := kmsg.NewOffsetFetchResponseGroup()
		resp.Group, resp.ErrorCode = g.Group, code
		return resp
	}
	if !r.may(opDescribe, onGroup, g.Group) {
		return refused(kerr.GroupAuthorizationFailed.Code)
	}
	seen := map[askedPartition]bool{}
	for i := range g.Topics {
		t := &g.Topics[i]
		t.Partitions = slices.DeleteFunc(t.Partitions, func(p int32) bool { return again(seen, askedPartition{t.Topic, t.TopicID, p}) })
	}
	allowed := g.Topics
	var denied []kmsg.OffsetFetchResponseGroupTopic
	if g.Topics != nil {
		allowed = []kmsg.OffsetFetchRequestGroupTopic{} // nil would be all
		for _, t := range g.Topics {
			err := r.findTopic(&t.Topic, t.TopicID, 10)
			if err == nil && !r.may(opDescribe, onTopic, t.Topic) {
				err = kerr.TopicAuthorizationFailed
			}
			if err != nil {
				denied = append(denied, refuseFetch(t, codeOf(err)))
			} else {
				allowed = append(allowed, t)
			}
		}
	}
	member := ""
	if g.MemberID != nil {
		member = *g.MemberID
	}
	resp, err := b.groups.Fetch(ctx, g.Group, member, g.MemberEpoch, allowed, requireStable)
	if err != nil {
		return refused(groupCode(err))
	}
	for i := range resp.Topics {
		resp.Topics[i].TopicID = b.topicID(resp.Topics[i].Topic)
	}
	if g.Topics == nil {
		resp.Topics = slices.DeleteFunc(resp.Topics, func(t kmsg.OffsetFetchResponseGroupTopic) bool {
			return !r.sees(onTopic, t.Topic) || r.version >= 10 && t.TopicID == [16]byte{} // it is deleted, and has no other name here
		})
	}
	resp.Topics = append(resp.Topics, denied...)
	return resp
}

func refuseFetch(t kmsg.OffsetFetchRequestGroupTopic, code int16) kmsg.OffsetFetchResponseGroupTopic {
	rt := kmsg.NewOffsetFetchResponseGroupTopic()
	rt.Topic, rt.TopicID = t.Topic, t.TopicID
	for _, p := range t.Partitions {
		rp := kmsg.NewOffsetFetchResponseGroupTopicPartition()
		rp.Partition, rp.Offset, rp.ErrorCode = p, -1, code
		rt.Partitions = append(rt.Partitions, rp)
	}
	return rt
}
