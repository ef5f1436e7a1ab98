package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/streamstore"
)

func handleCreatePartitions(ctx context.Context, b *Broker, r *request, req *kmsg.CreatePartitionsRequest) kmsg.Response {
	resp := kmsg.NewPtrCreatePartitionsResponse()
	times := make(map[string]int, len(req.Topics))
	for _, t := range req.Topics {
		times[t.Topic]++
	}
	more := 0
	for _, t := range req.Topics {
		if topic, ok := b.set.Topic(t.Topic); ok && b.checkPartitions(int(t.Count)) == nil {
			more += max(0, int(t.Count)-len(topic.Partitions))
		}
	}
	tooMany := b.checkTogether(more)
	for _, t := range req.Topics {
		n := times[t.Topic]
		if n == 0 {
			continue // answered
		}
		delete(times, t.Topic)
		rt := kmsg.NewCreatePartitionsResponseTopic()
		rt.Topic = t.Topic
		err := refuse(kerr.InvalidRequest, "topic %q is in the request %d times", t.Topic, n)
		switch {
		case !r.may(opAlter, onTopic, t.Topic):
			err = kerr.TopicAuthorizationFailed
		case n == 1 && tooMany != nil:
			err = tooMany
		case n == 1:
			err = b.createPartitions(ctx, r, t, req.ValidateOnly)
		}
		rt.ErrorCode, rt.ErrorMessage = codeAndText(err)
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func (b *Broker) createPartitions(ctx context.Context, r *request, t kmsg.CreatePartitionsRequestTopic, validateOnly bool) error {
	topic, err := b.writableTopic(t.Topic)
	if err != nil {
		return err
	}
	have := len(topic.Partitions)
	if int(t.Count) <= have {
		return refuse(kerr.InvalidPartitions, "topic %q has %d partitions: it can only get more, not %d", t.Topic, have, t.Count)
	}
	if err := b.checkPartitions(int(t.Count)); err != nil {
		return err
	}
	var leaders []streamstore.NodeID
	if t.Assignment != nil { // kafka-topics --alter sends an empty one if it is given fewer than there are partitions
		if len(t.Assignment) != int(t.Count)-have {
			return refuse(kerr.InvalidReplicaAssignment, "%d new partitions, but an assignment of %d", int(t.Count)-have, len(t.Assignment))
		}
		for _, a := range t.Assignment {
			leader, err := b.checkReplicas(a.Replicas)
			if err != nil {
				return err
			}
			leaders = append(leaders, leader)
		}
	}
	if validateOnly {
		return nil
	}
	if err := r.mayMutate(3); err != nil {
		return err
	}
	if _, err = b.set.CreatePartitions(ctx, t.Topic, int(t.Count), leaders...); err == nil {
		r.mutated(int(t.Count) - have)
	}
	return b.topicError(err)
}
