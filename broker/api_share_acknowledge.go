package broker

import (
	"context"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/broker/share"
)

// handleShareAcknowledge answers once what the member says of records is durable.
func handleShareAcknowledge(ctx context.Context, b *Broker, r *request, req *kmsg.ShareAcknowledgeRequest) kmsg.Response {
	resp := kmsg.NewPtrShareAcknowledgeResponse()
	refused := func(err error) kmsg.Response {
		resp.ErrorCode, resp.ErrorMessage = codeAndText(err)
		return resp
	}
	s, err := r.shareSession(req.GroupID, req.MemberID, req.ShareSessionEpoch, false)
	if err != nil {
		return refused(err)
	}
	cfg := b.groupConfig(s.key.group)
	f := &shareFetch{b: b, r: r, s: s, results: map[sharePartitionKey]*shareResult{}}
	for i := range req.Topics {
		t := &req.Topics[i]
		for j := range t.Partitions {
			tp := &t.Partitions[j]
			key := sharePartitionKey{uuid.UUID(t.TopicID), tp.Partition}
			acks := make([]share.Acknowledgement, 0, len(tp.AcknowledgementBatches))
			for _, a := range tp.AcknowledgementBatches {
				acks = append(acks, acknowledgement(a.FirstOffset, a.LastOffset, a.AcknowledgeTypes))
			}
			res := f.result(key)
			res.wait, res.ackErr = s.acknowledge(r, key, acks, req.IsRenewAck && cfg.renew)
		}
	}
	f.settle(ctx)
	if req.ShareSessionEpoch == finalEpoch {
		s.end()
	}
	resp.AcquisitionLockTimeoutMillis = int32(cfg.lockMillis)
	topics := map[uuid.UUID]int{}
	var leaders redirects
	for _, res := range f.order {
		rp := kmsg.NewShareAcknowledgeResponseTopicPartition()
		rp.Partition = res.index
		rp.ErrorCode, rp.ErrorMessage = codeAndText(res.ackErr)
		rp.CurrentLeader.LeaderID, rp.CurrentLeader.LeaderEpoch = leaders.find(r, res.topic, res.index, res.ackErr)
		at, ok := topics[res.topic]
		if !ok {
			at = len(resp.Topics)
			topics[res.topic] = at
			rt := kmsg.NewShareAcknowledgeResponseTopic()
			rt.TopicID = res.topic
			resp.Topics = append(resp.Topics, rt)
		}
		resp.Topics[at].Partitions = append(resp.Topics[at].Partitions, rp)
	}
	for _, p := range leaders.peers {
		n := kmsg.NewShareAcknowledgeResponseNodeEndpoint()
		n.NodeID, n.Host, n.Port, n.Rack = p.id, p.host, p.port, p.rack
		resp.NodeEndpoints = append(resp.NodeEndpoints, n)
	}
	return resp
}
