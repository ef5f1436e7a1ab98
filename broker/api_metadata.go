package broker

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/security"
)

func handleMetadata(ctx context.Context, b *Broker, r *request, req *kmsg.MetadataRequest) kmsg.Response {
	resp := kmsg.NewPtrMetadataResponse()
	resp.ClusterID = kmsg.StringPtr(b.meta.ClusterID())
	resp.ControllerID = int32(b.node.ID)
	for _, p := range b.peers(r.conn.listener) {
		broker := kmsg.NewMetadataResponseBroker()
		broker.NodeID, broker.Host, broker.Port, broker.Rack = p.id, p.host, p.port, p.rack
		resp.Brokers = append(resp.Brokers, broker)
	}
	if req.IncludeClusterAuthorizedOperations {
		resp.AuthorizedOperations = b.access.Operations(r.conn.session.client, onCluster, cluster)
	}
	// No list asks for all topics; so does an empty one in version 0.
	if req.Topics == nil || r.version == 0 && len(req.Topics) == 0 {
		for _, t := range b.set.Topics() {
			if r.sees(onTopic, t.Name) {
				resp.Topics = append(resp.Topics, b.metadataTopic(t))
			}
		}
	}
	look := topicLook{r: r, create: !b.cfg.NoAutoCreate && (r.version < 4 || req.AllowAutoTopicCreation), room: b.cfg.MaxAutoCreate}
	for _, t := range once(req.Topics, func(t kmsg.MetadataRequestTopic) askedTopic {
		return askedTopic{t.TopicID, t.Topic == nil, deref(t.Topic)}
	}) {
		resp.Topics = append(resp.Topics, b.metadataOf(ctx, &look, t))
	}
	if req.IncludeTopicAuthorizedOperations {
		for i := range resp.Topics {
			if t := &resp.Topics[i]; t.ErrorCode == 0 && t.Topic != nil {
				t.AuthorizedOperations = b.access.Operations(r.conn.session.client, onTopic, *t.Topic)
			}
		}
	}
	return resp
}

// askedTopic is a topic as a request names it.
type askedTopic struct {
	id   [16]byte
	null bool // instead of a name
	name string
}

// A topicLook looks up the topics that a request names. However many they are, metadata is asked once
// whether others have made some, and only so many are created.
type topicLook struct {
	r      *request
	create bool // what is missing
	room   int  // how many
	asked  bool // metadata
}

// missing is what is said of a topic that is not there. A name that none can have is not unknown, which clients take for
// a reason to ask again.
func missing(name string) *kerr.Error {
	if partition.CheckTopicName(name) != nil {
		return kerr.InvalidTopicException
	}
	return kerr.UnknownTopicOrPartition
}

// metadataOf looks one topic up by name, creating it if it may, or by id.
func (b *Broker) metadataOf(ctx context.Context, look *topicLook, want kmsg.MetadataRequestTopic) kmsg.MetadataResponseTopic {
	r := look.r
	fail := func(err error) kmsg.MetadataResponseTopic {
		t := kmsg.NewMetadataResponseTopic()
		t.Topic, t.TopicID, t.ErrorCode = want.Topic, want.TopicID, codeOf(err)
		return t
	}
	switch byID := want.TopicID != [16]byte{}; {
	case want.Topic == nil && !byID, byID && r.version < 12: // v10 and v11 have the field, and no place for the answer
		return fail(kerr.InvalidRequest)
	case byID: // the Java client gives an empty name with it
		want.Topic = nil
		t, ok := b.set.TopicByID(uuid.UUID(want.TopicID))
		if !ok || !r.may(opDescribe, onTopic, t.Name) { // whoever has only an id learns no more from it
			return fail(kerr.UnknownTopicID)
		}
		return b.metadataTopic(t)
	}
	if !r.may(opDescribe, onTopic, *want.Topic) {
		return fail(kerr.TopicAuthorizationFailed)
	}
	t, ok := b.set.Topic(*want.Topic)
	if ok {
		return b.metadataTopic(t)
	}
	create := look.create && r.mayCreate(*want.Topic)
	if !create {
		switch t, ok = look.again(ctx, b, *want.Topic); {
		case ok:
			return b.metadataTopic(t)
		case look.create:
			return fail(kerr.TopicAuthorizationFailed)
		}
		return fail(missing(*want.Topic))
	}
	t, err := look.make(ctx, b, *want.Topic)
	if err != nil {
		return fail(err)
	}
	return b.metadataTopic(t)
}

// again looks for a topic that another node may have created just now.
func (l *topicLook) again(ctx context.Context, b *Broker, name string) (metadata.Topic, bool) {
	if b.meta.Shared() && !l.asked {
		l.asked = true
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := b.set.Sync(ctx); err != nil {
			b.log.Debug("look for a topic", "topic", name, "err", err)
		}
	}
	return b.set.Topic(name)
}

// make creates a topic. Beyond the bound, and for a client that owes to its quota, it says what Kafka says of
// a topic that is about to be there: clients ask again.
func (l *topicLook) make(ctx context.Context, b *Broker, name string) (metadata.Topic, error) {
	if wait, ok := b.quotas.admits(security.ControllerMutationRate, l.r); !ok {
		l.r.mute = max(l.r.mute, wait)
		return metadata.Topic{}, kerr.LeaderNotAvailable
	}
	if l.room == 0 && !invariant.Off("auto-create-bounded") {
		return metadata.Topic{}, kerr.LeaderNotAvailable
	}
	t, err := b.createTopic(ctx, metadata.NewTopic{Name: name, Partitions: b.cfg.DefaultPartitions})
	switch {
	case err == nil:
		l.room--
		l.r.mutated(len(t.Partitions))
	case errors.Is(err, kerr.TopicAlreadyExists): // another client was faster
		l.asked = false
		var ok bool
		if t, ok = l.again(ctx, b, name); !ok {
			return t, kerr.LeaderNotAvailable
		}
		return t, nil
	default:
		b.warn.Warn("topic not created on first use", "topic", name, "err", err)
	}
	return t, err
}

func (b *Broker) metadataTopic(t metadata.Topic) kmsg.MetadataResponseTopic {
	m := kmsg.NewMetadataResponseTopic()
	m.Topic, m.TopicID, m.IsInternal = kmsg.StringPtr(t.Name), t.ID, t.Internal
	m.Partitions = make([]kmsg.MetadataResponseTopicPartition, len(t.Partitions))
	for i, p := range t.Partitions {
		mp := kmsg.NewMetadataResponseTopicPartition()
		mp.Partition, mp.Leader, mp.LeaderEpoch = p.Index, int32(p.Leader), p.LeaderEpoch
		mp.Replicas = []int32{mp.Leader}
		mp.ISR = mp.Replicas
		if !b.set.Lives(p.Leader) {
			mp.ErrorCode, mp.Leader = kerr.LeaderNotAvailable.Code, -1
			mp.ISR, mp.OfflineReplicas = []int32{}, mp.Replicas
		}
		m.Partitions[i] = mp
	}
	return m
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
