package broker

import (
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// maxDescribedPartitions is the most that one answer holds (KIP-966).
const maxDescribedPartitions = 2000

// handleDescribeTopicPartitions answers page by page, topics by name, from the cursor on.
func handleDescribeTopicPartitions(_ context.Context, b *Broker, r *request, req *kmsg.DescribeTopicPartitionsRequest) kmsg.Response {
	resp := kmsg.NewPtrDescribeTopicPartitionsResponse()
	var names []string
	for _, t := range req.Topics {
		names = append(names, t.Topic)
	}
	if len(names) == 0 {
		for _, t := range b.set.Topics() {
			if r.sees(onTopic, t.Name) {
				names = append(names, t.Name)
			}
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	left := maxDescribedPartitions
	if req.ResponsePartitionLimit > 0 {
		left = min(left, int(req.ResponsePartitionLimit))
	}
	for _, name := range names {
		from := 0
		if c := req.Cursor; c != nil {
			if name < c.Topic {
				continue
			}
			if name == c.Topic {
				from = max(int(c.Partition), 0)
			}
		}
		if left == 0 {
			resp.NextCursor = &kmsg.DescribeTopicPartitionsResponseNextCursor{Topic: name, Partition: int32(from)}
			break
		}
		t := b.describeTopicPartitions(r, name, from, left)
		resp.Topics = append(resp.Topics, t)
		left -= len(t.Partitions)
		if next := from + len(t.Partitions); left == 0 && t.ErrorCode == 0 {
			if topic, ok := b.set.Topic(name); ok && next < len(topic.Partitions) {
				resp.NextCursor = &kmsg.DescribeTopicPartitionsResponseNextCursor{Topic: name, Partition: int32(next)}
				break
			}
		}
	}
	return resp
}

func (b *Broker) describeTopicPartitions(r *request, name string, from, limit int) kmsg.DescribeTopicPartitionsResponseTopic {
	rt := kmsg.NewDescribeTopicPartitionsResponseTopic()
	rt.Topic = &name
	if !r.may(opDescribe, onTopic, name) {
		rt.ErrorCode = kerr.TopicAuthorizationFailed.Code
		return rt
	}
	topic, ok := b.set.Topic(name)
	if !ok {
		rt.ErrorCode = missing(name).Code
		return rt
	}
	m := b.metadataTopic(topic)
	rt.TopicID, rt.IsInternal, rt.AuthorizedOperations = m.TopicID, m.IsInternal, b.access.Operations(r.conn.session.client, onTopic, name)
	for i := from; i < len(m.Partitions) && i < from+limit; i++ {
		p := kmsg.NewDescribeTopicPartitionsResponseTopicPartition()
		p.Partition, p.LeaderID, p.LeaderEpoch = m.Partitions[i].Partition, m.Partitions[i].Leader, m.Partitions[i].LeaderEpoch
		p.Replicas, p.ISR, p.OfflineReplicas = m.Partitions[i].Replicas, m.Partitions[i].ISR, m.Partitions[i].OfflineReplicas
		p.ErrorCode = m.Partitions[i].ErrorCode
		p.EligibleLeaderReplicas, p.LastKnownELR = []int32{}, []int32{} // the Java client fails on null
		rt.Partitions = append(rt.Partitions, p)
	}
	return rt
}
