package broker

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// handleWriteTxnMarkers writes markers as an administrator asks for it, who aborts a transaction
// that its coordinator does not know any more.
func handleWriteTxnMarkers(ctx context.Context, b *Broker, r *request, req *kmsg.WriteTxnMarkersRequest) kmsg.Response {
	resp := kmsg.NewPtrWriteTxnMarkersResponse()
	allowed := r.allowed(opAlter, onCluster, cluster) || r.may(opClusterAction, onCluster, cluster)
	for _, m := range req.Markers {
		rm := kmsg.NewWriteTxnMarkersResponseMarker()
		rm.ProducerID = m.ProducerID
		marker := record.Marker{ProducerID: m.ProducerID, ProducerEpoch: m.ProducerEpoch, CoordinatorEpoch: m.CoordinatorEpoch, Commit: m.Committed}
		for _, t := range m.Topics {
			rt := kmsg.NewWriteTxnMarkersResponseMarkerTopic()
			rt.Topic = t.Topic
			for _, index := range t.Partitions {
				rp := kmsg.NewWriteTxnMarkersResponseMarkerTopicPartition()
				rp.Partition = index
				if rp.ErrorCode = kerr.ClusterAuthorizationFailed.Code; allowed {
					rp.ErrorCode = b.writeMarker(ctx, partition.ID{Topic: t.Topic, Index: index}, marker, m.TransactionVersion >= 2)
				}
				rt.Partitions = append(rt.Partitions, rp)
			}
			rm.Topics = append(rm.Topics, rt)
		}
		resp.Markers = append(resp.Markers, rm)
	}
	return resp
}

func (b *Broker) writeMarker(ctx context.Context, id partition.ID, marker record.Marker, bumped bool) int16 {
	if marker.ProducerID < 0 || marker.ProducerEpoch < 0 {
		return kerr.InvalidRequest.Code
	}
	err := b.txns.AppendMarker(ctx, id, marker, bumped)
	if errors.Is(err, partition.ErrCoordinatorFenced) {
		return kerr.TransactionCoordinatorFenced.Code
	}
	if err = produceError(err); err == nil {
		b.log.Info("marker written on request", "topic", id.Topic, "partition", id.Index, "producer_id", marker.ProducerID, "producer_epoch", marker.ProducerEpoch, "commit", marker.Commit)
	}
	return txnCode(nil, err)
}
