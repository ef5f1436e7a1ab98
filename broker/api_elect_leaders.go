package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/metadata"
)

const electUnclean = 1 // else the preferred leader

// handleElectLeaders elects nobody. A partition has one replica, which leads it as long as its
// node lives; what a dead node has acknowledged must be recovered before another may lead.
func handleElectLeaders(_ context.Context, b *Broker, r *request, req *kmsg.ElectLeadersRequest) kmsg.Response {
	resp := kmsg.NewPtrElectLeadersResponse()
	if !r.may(opAlter, onCluster, cluster) {
		if failed, ok := errorResponse(r, kerr.ClusterAuthorizationFailed.Code); ok {
			return failed // version 0 has the error in each partition
		}
		return resp
	}
	if req.Topics == nil { // all; those that need no election are left out
		for _, t := range b.set.Topics() {
			rt := kmsg.NewElectLeadersResponseTopic()
			rt.Topic = t.Name
			for _, p := range t.Partitions {
				if !b.set.Lives(p.Leader) {
					rt.Partitions = append(rt.Partitions, b.electLeader(t, p.Index, req.ElectionType))
				}
			}
			if len(rt.Partitions) > 0 {
				resp.Topics = append(resp.Topics, rt)
			}
		}
		return resp
	}
	for _, asked := range req.Topics {
		rt := kmsg.NewElectLeadersResponseTopic()
		rt.Topic = asked.Topic
		t, _ := b.set.Topic(asked.Topic)
		for _, index := range asked.Partitions {
			rt.Partitions = append(rt.Partitions, b.electLeader(t, index, req.ElectionType))
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func (b *Broker) electLeader(t metadata.Topic, index int32, election int8) kmsg.ElectLeadersResponseTopicPartition {
	rp := kmsg.NewElectLeadersResponseTopicPartition()
	rp.Partition = index
	var err error
	switch {
	case index < 0 || int(index) >= len(t.Partitions):
		err = refuse(kerr.UnknownTopicOrPartition, "the partition does not exist")
	case b.set.Lives(t.Partitions[index].Leader):
		err = refuse(kerr.ElectionNotNeeded, "node %d leads it; to move it to another node, reassign it", t.Partitions[index].Leader)
	default:
		code := kerr.PreferredLeaderNotAvailable
		if election == electUnclean {
			code = kerr.EligibleLeadersNotAvailable
		}
		err = refuse(code, "node %d, which leads it, is not alive: start it, or recover it with 'tabletopic node recover %[1]d'", t.Partitions[index].Leader)
	}
	rp.ErrorCode, rp.ErrorMessage = codeAndText(err)
	return rp
}
