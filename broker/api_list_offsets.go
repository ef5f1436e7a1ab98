package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Timestamps that ask for something else than a time (KIP-79, KIP-405, KIP-734, KIP-1005, KIP-1023).
const (
	timestampLatest                = -1
	timestampEarliest              = -2
	timestampMax                   = -3 // from v7
	timestampEarliestLocal         = -4 // from v8
	timestampLatestTiered          = -5 // from v9
	timestampEarliestPendingUpload = -6 // from v11
)

func handleListOffsets(ctx context.Context, b *Broker, r *request, req *kmsg.ListOffsetsRequest) kmsg.Response {
	resp := kmsg.NewPtrListOffsetsResponse()
	for _, t := range req.Topics {
		rt := kmsg.NewListOffsetsResponseTopic()
		rt.Topic = t.Topic
		allowed := r.may(opDescribe, onTopic, t.Topic)
		for _, tp := range t.Partitions {
			rp := kmsg.NewListOffsetsResponseTopicPartition()
			rp.Partition = tp.Partition
			err := error(kerr.TopicAuthorizationFailed)
			if allowed {
				err = b.listOffset(ctx, r, req, t.Topic, tp, &rp)
			}
			if err != nil {
				rp.ErrorCode, rp.Offset, rp.Timestamp = codeOf(err), -1, -1
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

// listOffset looks one offset up. The log is in one tier, all of it local in Kafka's
// sense, so that there is never a tiered offset nor one that waits for its upload.
func (b *Broker) listOffset(ctx context.Context, r *request, req *kmsg.ListOffsetsRequest, topic string, tp kmsg.ListOffsetsRequestTopicPartition, resp *kmsg.ListOffsetsResponseTopicPartition) error {
	p, err := b.partition(topic, tp.Partition, tp.CurrentLeaderEpoch)
	if err != nil {
		return err
	}
	for ts, since := range map[int64]int16{timestampMax: 7, timestampEarliestLocal: 8, timestampLatestTiered: 9, timestampEarliestPendingUpload: 11} {
		if tp.Timestamp == ts && r.version < since {
			return kerr.UnsupportedVersion
		}
	}
	o := p.Offsets()
	end := o.HighWatermark
	if req.IsolationLevel == 1 {
		end = o.LastStable
	}
	switch ts := tp.Timestamp; {
	case ts == timestampLatest:
		resp.Offset, resp.LeaderEpoch = end, p.LeaderEpoch()
	case ts == timestampEarliest, ts == timestampEarliestLocal:
		resp.Offset = o.LogStart
	case ts == timestampLatestTiered, ts == timestampEarliestPendingUpload:
		resp.Offset = -1
	case ts == timestampMax:
		resp.Offset, resp.Timestamp, err = p.MaxTimestamp(ctx)
	case ts >= 0:
		resp.Offset, resp.Timestamp, err = p.OffsetForTimestamp(ctx, ts)
	default: // one of a later Kafka, which a client can do without
		return kerr.UnsupportedVersion
	}
	if (tp.Timestamp >= 0 || tp.Timestamp == timestampMax) && resp.Offset >= end { // found, but not visible at this isolation level
		resp.Offset, resp.Timestamp = -1, -1
	}
	return readError(err)
}
