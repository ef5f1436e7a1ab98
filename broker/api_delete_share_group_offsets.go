package broker

import (
	"context"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func handleDeleteShareGroupOffsets(ctx context.Context, b *Broker, r *request, req *kmsg.DeleteShareGroupOffsetsRequest) kmsg.Response {
	resp := kmsg.NewPtrDeleteShareGroupOffsetsResponse()
	if !r.may(opDelete, onGroup, req.GroupID) {
		resp.ErrorCode, resp.ErrorMessage = codeAndText(kerr.GroupAuthorizationFailed)
		return resp
	}
	var topics []uuid.UUID
	for _, t := range req.Topics {
		rt := kmsg.NewDeleteShareGroupOffsetsResponseTopic()
		rt.Topic = t.Topic
		var err error
		if topic, known := b.set.Topic(t.Topic); !r.may(opRead, onTopic, t.Topic) {
			err = kerr.TopicAuthorizationFailed
		} else if !known {
			err = kerr.UnknownTopicOrPartition
		} else {
			rt.TopicID = topic.ID
			topics = append(topics, topic.ID)
		}
		rt.ErrorCode, rt.ErrorMessage = codeAndText(err)
		resp.Topics = append(resp.Topics, rt)
	}
	known, err := b.groups.DeleteShareOffsets(ctx, req.GroupID, topics)
	if err != nil {
		resp.ErrorCode, resp.ErrorMessage, resp.Topics = groupCode(err), textOf(err), nil
		return resp
	}
	for i := range resp.Topics {
		if t := &resp.Topics[i]; t.ErrorCode == 0 && !known[t.TopicID] {
			t.ErrorCode, t.ErrorMessage = codeAndText(refuse(kerr.UnknownTopicOrPartition, "group %q has no offsets of topic %q to delete", req.GroupID, t.Topic))
		}
	}
	return resp
}
