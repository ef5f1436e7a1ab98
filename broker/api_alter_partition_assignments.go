package broker

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/streamstore"
)

// Mover moves partitions, whichever node leads them: all or, with an error, some.
type Mover interface {
	Move(ctx context.Context, ids []partition.ID, to streamstore.NodeID) error
}

// maxMoveWait bounds how long a reassignment is waited for, whatever the client allows.
const maxMoveWait = 5 * time.Minute

// handleAlterPartitionAssignments moves each partition to the first node of its replicas. The
// others have no meaning, since the object store replicates. Unlike Kafka, which goes on
// after it has answered, the moves are done when the answer comes.
func handleAlterPartitionAssignments(ctx context.Context, b *Broker, r *request, req *kmsg.AlterPartitionAssignmentsRequest) kmsg.Response {
	resp := kmsg.NewPtrAlterPartitionAssignmentsResponse()
	resp.AllowReplicationFactorChange = req.AllowReplicationFactorChange
	if !r.may(opAlter, onCluster, cluster) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp
	}
	wait := min(max(time.Duration(req.TimeoutMillis)*time.Millisecond, time.Second), maxMoveWait)
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	failed := map[partition.ID]error{}
	moves := map[streamstore.NodeID][]partition.ID{}
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			id := partition.ID{Topic: t.Topic, Index: p.Partition}
			if to, err := b.planReassignment(id, p.Replicas); err != nil {
				failed[id] = err
			} else {
				moves[to] = append(moves[to], id)
			}
		}
	}
	for to, ids := range moves {
		err := b.cfg.Mover.Move(ctx, ids, to)
		if err == nil {
			b.log.Info("partitions reassigned", "partitions", len(ids), "to", to)
			continue
		}
		for _, id := range ids {
			failed[id] = refuse(kerr.InvalidReplicaAssignment, "%v", err)
		}
	}
	for _, t := range req.Topics {
		rt := kmsg.NewAlterPartitionAssignmentsResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewAlterPartitionAssignmentsResponseTopicPartition()
			rp.Partition = p.Partition
			rp.ErrorCode, rp.ErrorMessage = codeAndText(failed[partition.ID{Topic: t.Topic, Index: p.Partition}])
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

// planReassignment returns the node that is to lead a partition.
func (b *Broker) planReassignment(id partition.ID, replicas []int32) (streamstore.NodeID, error) {
	t, ok := b.set.Topic(id.Topic)
	switch {
	case !ok || id.Index < 0 || int(id.Index) >= len(t.Partitions):
		return 0, refuse(kerr.UnknownTopicOrPartition, "%s does not exist", id)
	case replicas == nil:
		return 0, refuse(kerr.NoReassignmentInProgress, "%s: a reassignment is done when it is answered, there is none to cancel", id)
	case b.cfg.Mover == nil:
		return 0, refuse(kerr.InvalidReplicaAssignment, "%s: this node is alone", id)
	}
	return b.checkReplicas(replicas)
}
