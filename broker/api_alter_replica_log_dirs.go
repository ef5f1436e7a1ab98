package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// handleAlterReplicaLogDirs accepts that a partition is where it is. There is no other
// directory to move it to.
func handleAlterReplicaLogDirs(_ context.Context, b *Broker, r *request, req *kmsg.AlterReplicaLogDirsRequest) kmsg.Response {
	resp := kmsg.NewPtrAlterReplicaLogDirsResponse()
	allowed := r.may(opAlter, onCluster, cluster)
	for _, d := range req.Dirs {
		for _, t := range d.Topics {
			rt := kmsg.NewAlterReplicaLogDirsResponseTopic()
			rt.Topic = t.Topic
			for _, index := range t.Partitions {
				rp := kmsg.NewAlterReplicaLogDirsResponseTopicPartition()
				rp.Partition = index
				if !allowed {
					rp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
				} else if d.Dir != logDir {
					rp.ErrorCode = kerr.LogDirNotFound.Code
				} else if _, err := b.set.Partition(t.Topic, index); err != nil {
					rp.ErrorCode = kerr.ReplicaNotAvailable.Code
				}
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
	}
	return resp
}
