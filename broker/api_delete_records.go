package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

func handleDeleteRecords(ctx context.Context, b *Broker, r *request, req *kmsg.DeleteRecordsRequest) kmsg.Response {
	resp := kmsg.NewPtrDeleteRecordsResponse()
	for _, t := range req.Topics {
		rt := kmsg.NewDeleteRecordsResponseTopic()
		rt.Topic = t.Topic
		allowed := r.may(opDelete, onTopic, t.Topic)
		for _, tp := range t.Partitions {
			rp := kmsg.NewDeleteRecordsResponseTopicPartition()
			rp.Partition = tp.Partition
			low, err := int64(-1), error(kerr.TopicAuthorizationFailed)
			if allowed {
				low, err = b.deleteRecords(ctx, t.Topic, tp.Partition, tp.Offset)
			}
			if rp.LowWatermark = low; err != nil {
				rp.LowWatermark, rp.ErrorCode = -1, codeOf(err)
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func (b *Broker) deleteRecords(ctx context.Context, topic string, index int32, before int64) (int64, error) {
	if t, ok := b.set.Topic(topic); ok && t.Internal && !invariant.Off("internal-topic-stays") {
		return 0, kerr.InvalidTopicException
	}
	p, err := b.partition(topic, index, -1)
	if err != nil {
		return 0, err
	}
	if cfg := p.Config(); cfg.Compact && !cfg.Delete && !invariant.Off("compacted-topic-stays") {
		return 0, kerr.PolicyViolation // the last record of each key stays
	}
	high := p.Offsets().HighWatermark
	if before == -1 { // all that there is (KIP-107)
		before = high
	}
	if before < 0 || before > high {
		return 0, kerr.OffsetOutOfRange
	}
	low, err := p.DeleteRecords(ctx, before)
	return low, readError(err)
}
