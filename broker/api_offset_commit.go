package broker

import (
	"context"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// handleOffsetCommit commits offsets; from version 10 on topics have ids (KIP-848).
func handleOffsetCommit(ctx context.Context, b *Broker, r *request, req *kmsg.OffsetCommitRequest) kmsg.Response {
	group := r.may(opRead, onGroup, req.Group)
	var allowed []kmsg.OffsetCommitRequestTopic
	var refused []kmsg.OffsetCommitResponseTopic
	for _, t := range req.Topics {
		err := r.findTopic(&t.Topic, t.TopicID, 10)
		switch {
		case !group:
			err = kerr.GroupAuthorizationFailed
		case err == nil && !r.may(opRead, onTopic, t.Topic):
			err = kerr.TopicAuthorizationFailed
		}
		if err != nil {
			refused = append(refused, refuseCommit(t, codeOf(err)))
		} else {
			allowed = append(allowed, t)
		}
	}
	resp := kmsg.NewPtrOffsetCommitResponse()
	if len(allowed) > 0 || len(refused) == 0 && group { // a commit of nothing keeps a member alive
		req.Topics = allowed
		committed, err := b.groups.Commit(ctx, req)
		if err != nil {
			for _, t := range allowed {
				refused = append(refused, refuseCommit(t, groupCode(err)))
			}
		} else {
			resp = committed
		}
	}
	for i := range resp.Topics {
		resp.Topics[i].TopicID = b.topicID(resp.Topics[i].Topic)
	}
	resp.Topics = append(resp.Topics, refused...)
	return resp
}

func refuseCommit(t kmsg.OffsetCommitRequestTopic, code int16) kmsg.OffsetCommitResponseTopic {
	rt := kmsg.NewOffsetCommitResponseTopic()
	rt.Topic, rt.TopicID = t.Topic, t.TopicID
	for _, p := range t.Partitions {
		rp := kmsg.NewOffsetCommitResponseTopicPartition()
		rp.Partition, rp.ErrorCode = p.Partition, code
		rt.Partitions = append(rt.Partitions, rp)
	}
	return rt
}

// findTopic sets the name of a topic that a request has by its id, which it does from a version on.
func (r *request) findTopic(name *string, id [16]byte, from int16) error {
	if r.version < from {
		return nil
	}
	topic, ok := r.conn.b.set.TopicByID(uuid.UUID(id))
	if !ok {
		return kerr.UnknownTopicID
	}
	*name = topic.Name
	return nil
}

// topicID returns the id of a topic, zero if there is none of that name.
func (b *Broker) topicID(name string) [16]byte {
	topic, _ := b.set.Topic(name)
	return topic.ID
}
