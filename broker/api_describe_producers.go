package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/partition"
)

// handleDescribeProducers lists what partitions know of their producers (KIP-664).
func handleDescribeProducers(_ context.Context, b *Broker, r *request, req *kmsg.DescribeProducersRequest) kmsg.Response {
	resp := kmsg.NewPtrDescribeProducersResponse()
	seen := map[askedPartition]bool{}
	for _, t := range req.Topics {
		rt := kmsg.NewDescribeProducersResponseTopic()
		rt.Topic = t.Topic
		allowed := r.may(opRead, onTopic, t.Topic)
		for _, index := range t.Partitions {
			if again(seen, askedPartition{topic: t.Topic, index: index}) {
				continue
			}
			rp := kmsg.NewDescribeProducersResponseTopicPartition()
			rp.Partition = index
			var p *partition.Partition
			var err error = kerr.TopicAuthorizationFailed
			if allowed {
				p, err = b.partition(t.Topic, index, -1)
			}
			if rp.ErrorCode, rp.ErrorMessage = codeAndText(err); err == nil {
				for _, k := range p.Producers() {
					ap := kmsg.NewDescribeProducersResponseTopicPartitionActiveProducer()
					ap.ProducerID, ap.ProducerEpoch, ap.LastSequence, ap.LastTimestamp = k.ID, int32(k.Epoch), k.LastSequence, k.LastTimestamp
					ap.CoordinatorEpoch, ap.CurrentTxnStartOffset = k.CoordinatorEpoch, k.TxnStartOffset
					rp.ActiveProducers = append(rp.ActiveProducers, ap)
				}
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}
