package broker

import (
	"context"
	"errors"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/streamstore"
)

func handleCreateTopics(ctx context.Context, b *Broker, r *request, req *kmsg.CreateTopicsRequest) kmsg.Response {
	resp := kmsg.NewPtrCreateTopicsResponse()
	times := make(map[string]int, len(req.Topics))
	for _, t := range req.Topics {
		times[t.Topic]++
	}
	tooMany := b.checkTogether(b.partitionsOf(req))
	for _, t := range req.Topics {
		n := times[t.Topic]
		if n == 0 {
			continue // answered
		}
		delete(times, t.Topic)
		rt := kmsg.NewCreateTopicsResponseTopic()
		rt.Topic = t.Topic
		var topic metadata.Topic
		want, err := b.newTopic(t)
		if tooMany != nil && err == nil {
			err = tooMany
		}
		switch {
		case !r.mayCreate(t.Topic):
			err = kerr.TopicAuthorizationFailed
		case n > 1:
			err = refuse(kerr.InvalidRequest, "topic %q is in the request %d times", t.Topic, n)
		case err == nil && req.ValidateOnly:
			topic, err = b.validateTopic(want)
		case err == nil:
			if err = r.mayMutate(6); err == nil {
				topic, err = b.createTopic(ctx, want)
			}
			if err == nil {
				r.mutated(want.Partitions)
			}
		}
		if rt.ErrorCode, rt.ErrorMessage = codeAndText(err); err == nil {
			rt.Configs = []kmsg.CreateTopicsResponseTopicConfig{} // null would say that they are secret
			rt.TopicID, rt.NumPartitions, rt.ReplicationFactor = topic.ID, int32(want.Partitions), 1
			if !r.may(opDescribeConfig, onTopic, t.Topic) { // the topic is there; only its settings are not shown
				rt.Configs, rt.ConfigErrorCode = nil, kerr.TopicAuthorizationFailed.Code
				rt.NumPartitions, rt.ReplicationFactor = -1, -1
				resp.Topics = append(resp.Topics, rt)
				continue
			}
			for _, c := range describeTopic(topic, b.set.Defaults(topic.Name), nil) {
				rc := kmsg.NewCreateTopicsResponseTopicConfig()
				rc.Name, rc.Value, rc.Source = c.Name, c.Value, int8(c.Source)
				rt.Configs = append(rt.Configs, rc)
			}
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

// mayCreate reports whether the client may create a topic: any, or this one.
func (r *request) mayCreate(topic string) bool {
	b, c := r.conn.b, r.conn.session.client
	return b.access.Allows(c, opCreate, onCluster, cluster) || r.may(opCreate, onTopic, topic)
}

// partitionsOf is how many partitions the topics of a request have that could be made each by itself.
func (b *Broker) partitionsOf(req *kmsg.CreateTopicsRequest) int {
	all := 0
	for _, t := range req.Topics {
		n := int(t.NumPartitions)
		switch {
		case len(t.ReplicaAssignment) > 0:
			n = len(t.ReplicaAssignment)
		case n == -1:
			n = b.cfg.DefaultPartitions
		}
		if b.checkPartitions(n) == nil {
			all += n
		}
	}
	return all
}

// checkTogether refuses a request that wants more partitions than one may make.
func (b *Broker) checkTogether(partitions int) error {
	if partitions > b.cfg.MaxPartitions && !invariant.Off("create-together-bounded") {
		return refuse(kerr.PolicyViolation, "the request makes %d partitions, one may make %d: send several, one after the other", partitions, b.cfg.MaxPartitions)
	}
	return nil
}

// newTopic checks what the request says beside name and configuration. Replication is
// the object store's: the factors that users' scripts ask for are accepted.
func (b *Broker) newTopic(t kmsg.CreateTopicsRequestTopic) (metadata.NewTopic, error) {
	want := metadata.NewTopic{Name: t.Topic, Partitions: int(t.NumPartitions), Config: map[string]string{}}
	for _, c := range t.Configs {
		if c.Value == nil {
			return want, refuse(kerr.InvalidConfig, "config %q has no value", c.Name)
		}
		if _, ok := want.Config[c.Name]; ok {
			return want, refuse(kerr.InvalidConfig, "config %q is given twice", c.Name)
		}
		want.Config[c.Name] = *c.Value
	}
	if len(t.ReplicaAssignment) > 0 {
		if t.NumPartitions != -1 || t.ReplicationFactor != -1 {
			return want, refuse(kerr.InvalidRequest, "both an assignment and a number of partitions or replicas are given")
		}
		want.Partitions = len(t.ReplicaAssignment)
		want.Leaders = make([]streamstore.NodeID, want.Partitions)
		seen := make(map[int32]bool, len(t.ReplicaAssignment))
		for _, a := range t.ReplicaAssignment {
			if seen[a.Partition] || a.Partition < 0 || int(a.Partition) >= want.Partitions {
				return want, refuse(kerr.InvalidReplicaAssignment, "partitions of an assignment must be 0 to %d, each once", want.Partitions-1)
			}
			seen[a.Partition] = true
			leader, err := b.checkReplicas(a.Replicas)
			if err != nil {
				return want, err
			}
			want.Leaders[a.Partition] = leader
		}
		return want, b.checkPartitions(want.Partitions)
	}
	if t.ReplicationFactor != -1 && (t.ReplicationFactor < 1 || t.ReplicationFactor > 3) {
		return want, refuse(kerr.InvalidReplicationFactor, "replication factor %d is not 1, 2, 3 or -1 (the object store replicates)", t.ReplicationFactor)
	}
	if want.Partitions == -1 {
		want.Partitions = b.cfg.DefaultPartitions
	}
	return want, b.checkPartitions(want.Partitions)
}

// checkReplicas returns the node that an assignment means: the first. The object store
// replicates, so the others have no meaning; but they must be nodes, each once.
func (b *Broker) checkReplicas(replicas []int32) (streamstore.NodeID, error) {
	for i, r := range replicas {
		if !b.isNode(r) || slices.Contains(replicas[:i], r) {
			return 0, refuse(kerr.InvalidReplicaAssignment, "replicas %v: there is no node %d, or it is named twice; 'tabletopic node list' shows those there are", replicas, r)
		}
	}
	if len(replicas) == 0 {
		return 0, refuse(kerr.InvalidReplicaAssignment, "no replicas: name the node that is to lead the partition")
	}
	first := streamstore.NodeID(replicas[0])
	if !b.set.Lives(first) {
		return 0, refuse(kerr.InvalidReplicaAssignment, "replicas %v: node %d, which would lead, is not alive", replicas, first)
	}
	return first, nil
}

func (b *Broker) checkPartitions(n int) error {
	if n < 1 || n > b.cfg.MaxPartitions {
		return refuse(kerr.InvalidPartitions, "%d partitions: must be 1 to %d", n, b.cfg.MaxPartitions)
	}
	return nil
}

// createTopic creates a topic for a client.
func (b *Broker) createTopic(ctx context.Context, want metadata.NewTopic) (metadata.Topic, error) {
	if err := b.checkReserved(want.Name); err != nil {
		return metadata.Topic{}, err
	}
	topic, err := b.set.CreateTopic(ctx, want)
	if err != nil {
		return topic, b.topicError(err)
	}
	b.log.Info("topic created", "topic", topic.Name, "topic_id", topic.ID, "partitions", len(topic.Partitions))
	return topic, nil
}

func (b *Broker) checkReserved(name string) error {
	if slices.Contains(b.cfg.ReservedTopics, name) {
		return refuse(kerr.InvalidTopicException, "topic %q is internal: clients cannot create it", name)
	}
	return nil
}

// validateTopic tells what createTopic would do.
func (b *Broker) validateTopic(want metadata.NewTopic) (metadata.Topic, error) {
	topic := metadata.Topic{Name: want.Name, Config: want.Config}
	if err := b.checkReserved(want.Name); err != nil {
		return topic, err
	}
	if _, ok := b.set.Topic(want.Name); ok {
		return topic, b.topicError(metadata.ErrTopicExists)
	}
	if err := partition.CheckTopicName(want.Name); err != nil {
		return topic, b.topicError(err)
	}
	_, err := b.set.CheckConfig(want.Name, want.Config)
	return topic, b.topicError(err)
}

// topicError chooses the Kafka code for a refused change of a topic.
func (b *Broker) topicError(err error) error {
	var code *kerr.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, metadata.ErrTopicExists):
		code = kerr.TopicAlreadyExists
	case errors.Is(err, metadata.ErrTopicNotExist), errors.Is(err, partition.ErrUnknownTopicOrPartition):
		code = kerr.UnknownTopicOrPartition
	case errors.Is(err, partition.ErrInvalidTopicName):
		code = kerr.InvalidTopicException
	case errors.Is(err, partition.ErrInvalidConfig):
		code = kerr.InvalidConfig
	case errors.Is(err, partition.ErrInvalidPartitions):
		code = kerr.InvalidPartitions
	case errors.Is(err, partition.ErrNotLeader):
		code = kerr.NotController
	default:
		b.log.Error("change a topic", "err", err)
		return err
	}
	return refuse(code, "%v", err)
}

// writableTopic finds a topic that a client may change.
func (b *Broker) writableTopic(name string) (metadata.Topic, error) {
	t, ok := b.set.Topic(name)
	switch {
	case !ok:
		return t, refuse(kerr.UnknownTopicOrPartition, "topic %q does not exist", name)
	case t.Internal && !invariant.Off("internal-topic-stays"):
		return t, refuse(kerr.InvalidTopicException, "topic %q is internal: clients cannot change it", name)
	}
	return t, nil
}
