package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// logDir is the one log directory that every node has: the object store.
const logDir = "object-store"

// handleDescribeLogDirs tells how large the partitions are that this node leads. The object
// store does not say how much room it has: total and usable bytes stay -1.
func handleDescribeLogDirs(_ context.Context, b *Broker, r *request, req *kmsg.DescribeLogDirsRequest) kmsg.Response {
	resp := kmsg.NewPtrDescribeLogDirsResponse()
	if !r.may(opDescribe, onCluster, cluster) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp
	}
	dir := kmsg.NewDescribeLogDirsResponseDir()
	dir.Dir = logDir
	var asked map[string][]int32 // nil for all
	if req.Topics != nil {
		asked = make(map[string][]int32, len(req.Topics))
		for _, t := range req.Topics {
			asked[t.Topic] = append(asked[t.Topic], t.Partitions...)
		}
	}
	for _, t := range b.set.Topics() {
		partitions := asked[t.Name]
		if asked == nil {
			for _, p := range t.Partitions {
				partitions = append(partitions, p.Index)
			}
		}
		rt := kmsg.NewDescribeLogDirsResponseDirTopic()
		rt.Topic = t.Name
		for _, index := range partitions {
			p, err := b.set.Partition(t.Name, index)
			if err != nil {
				continue // led elsewhere, or not at all: Kafka leaves it out too
			}
			rp := kmsg.NewDescribeLogDirsResponseDirTopicPartition()
			rp.Partition, rp.Size = index, p.Size()
			rt.Partitions = append(rt.Partitions, rp)
		}
		if len(rt.Partitions) > 0 {
			dir.Topics = append(dir.Topics, rt)
		}
	}
	resp.Dirs = append(resp.Dirs, dir)
	return resp
}
