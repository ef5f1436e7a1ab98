package broker

import (
	"context"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/broker/group"
)

func handleDescribeShareGroupOffsets(ctx context.Context, b *Broker, r *request, req *kmsg.DescribeShareGroupOffsetsRequest) kmsg.Response {
	resp := kmsg.NewPtrDescribeShareGroupOffsetsResponse()
	for _, g := range once(req.Groups, func(g kmsg.DescribeShareGroupOffsetsRequestGroup) string { return g.GroupID }) {
		rg := kmsg.NewDescribeShareGroupOffsetsResponseGroup()
		rg.GroupID = g.GroupID
		err := error(kerr.GroupAuthorizationFailed)
		var offsets map[uuid.UUID][]group.ShareOffset
		if r.may(opDescribe, onGroup, g.GroupID) {
			offsets, err = b.groups.ShareOffsets(ctx, g.GroupID)
		}
		if err != nil {
			rg.ErrorCode = groupCode(err)
			rg.ErrorMessage = textOf(err)
		} else if g.Topics == nil {
			rg.Topics = b.allShareOffsets(r, offsets)
		} else {
			for _, t := range once(g.Topics, func(t kmsg.DescribeShareGroupOffsetsRequestGroupTopic) string { return t.Topic }) {
				rg.Topics = append(rg.Topics, b.shareOffsets(r, t.Topic, t.Partitions, offsets))
			}
		}
		resp.Groups = append(resp.Groups, rg)
	}
	return resp
}

// allShareOffsets are those of the topics that the client may see.
func (b *Broker) allShareOffsets(r *request, offsets map[uuid.UUID][]group.ShareOffset) []kmsg.DescribeShareGroupOffsetsResponseGroupTopic {
	var out []kmsg.DescribeShareGroupOffsetsResponseGroupTopic
	for _, t := range b.set.Topics() {
		if len(offsets[t.ID]) == 0 || !r.sees(onTopic, t.Name) {
			continue
		}
		var partitions []int32
		for _, o := range offsets[t.ID] {
			partitions = append(partitions, o.Partition)
		}
		out = append(out, b.shareOffsets(r, t.Name, partitions, offsets))
	}
	return out
}

// shareOffsets says how far a group is in partitions of a topic, and how many records it has before it.
func (b *Broker) shareOffsets(r *request, topic string, partitions []int32, offsets map[uuid.UUID][]group.ShareOffset) kmsg.DescribeShareGroupOffsetsResponseGroupTopic {
	rt := kmsg.NewDescribeShareGroupOffsetsResponseGroupTopic()
	rt.Topic = topic
	t, exists := b.set.Topic(topic)
	err := error(kerr.TopicAuthorizationFailed)
	if r.may(opDescribe, onTopic, topic) {
		err, rt.TopicID = nil, t.ID
		if !exists {
			err = kerr.UnknownTopicOrPartition
		}
	}
	known := map[int32]group.ShareOffset{}
	for _, o := range offsets[t.ID] {
		known[o.Partition] = o
	}
	for _, index := range partitions {
		rp := kmsg.NewDescribeShareGroupOffsetsResponseGroupTopicPartition()
		rp.Partition, rp.StartOffset, rp.Lag = index, -1, -1
		rp.ErrorCode, rp.ErrorMessage = codeAndText(err)
		if o, ok := known[index]; err == nil && ok {
			rp.StartOffset, rp.LeaderEpoch = o.Start, o.LeaderEpoch
			if p, err := b.set.Partition(topic, index); err == nil && o.Start >= 0 {
				rp.Lag = max(p.Offsets().HighWatermark-o.Start-o.Done, 0)
			}
		}
		rt.Partitions = append(rt.Partitions, rp)
	}
	return rt
}
