package broker

import (
	"context"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func handleDeleteTopics(ctx context.Context, b *Broker, r *request, req *kmsg.DeleteTopicsRequest) kmsg.Response {
	resp := kmsg.NewPtrDeleteTopicsResponse()
	topics := req.Topics
	if r.version < 6 {
		for _, name := range req.TopicNames {
			topics = append(topics, kmsg.DeleteTopicsRequestTopic{Topic: &name})
		}
	}
	for _, t := range topics {
		rt := kmsg.NewDeleteTopicsResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		rt.ErrorCode, rt.ErrorMessage = codeAndText(b.deleteTopic(ctx, r, &rt))
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

// deleteTopic deletes the topic that t names or identifies and completes t with the other.
func (b *Broker) deleteTopic(ctx context.Context, r *request, t *kmsg.DeleteTopicsResponseTopic) error {
	if byID := t.TopicID != [16]byte{}; byID {
		if t.Topic != nil {
			return refuse(kerr.InvalidRequest, "both a name and an id are given")
		}
		topic, ok := b.set.TopicByID(uuid.UUID(t.TopicID))
		if !ok {
			return kerr.UnknownTopicID
		}
		if !r.sees(onTopic, topic.Name) && !r.may(opDelete, onTopic, topic.Name) {
			return kerr.TopicAuthorizationFailed // without its name
		}
		t.Topic = &topic.Name
	}
	if t.Topic == nil {
		return refuse(kerr.InvalidRequest, "neither a name nor an id is given")
	}
	if !r.may(opDelete, onTopic, *t.Topic) {
		return kerr.TopicAuthorizationFailed
	}
	topic, err := b.writableTopic(*t.Topic)
	if err != nil {
		return err
	}
	if err := r.mayMutate(5); err != nil {
		return err
	}
	if err := b.set.DeleteTopic(ctx, topic.Name); err != nil {
		return b.topicError(err)
	}
	r.mutated(len(topic.Partitions))
	t.TopicID = topic.ID
	b.log.Info("topic deleted", "topic", topic.Name, "topic_id", topic.ID)
	return nil
}
