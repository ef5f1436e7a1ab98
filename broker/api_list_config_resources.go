package broker

import (
	"context"
	"maps"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// handleListConfigResources lists what DescribeConfigs knows (KIP-1142): topics, nodes, and groups of which something is set. Version 0 is
// about client metrics alone, of which there are none.
func handleListConfigResources(ctx context.Context, b *Broker, r *request, req *kmsg.ListConfigResourcesRequest) kmsg.Response {
	resp := kmsg.NewPtrListConfigResourcesResponse()
	if !r.may(opDescribeConfig, onCluster, cluster) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp
	}
	if r.version == 0 {
		return resp
	}
	known := []kmsg.ConfigResourceType{kmsg.ConfigResourceTypeTopic, kmsg.ConfigResourceTypeBroker, kmsg.ConfigResourceTypeBrokerLogger,
		kmsg.ConfigResourceTypeClientMetrics, kmsg.ConfigResourceTypeGroupConfig}
	types := make([]kmsg.ConfigResourceType, 0, len(req.ResourceTypes))
	for _, t := range req.ResourceTypes {
		types = append(types, kmsg.ConfigResourceType(t))
	}
	if len(types) == 0 {
		types = known
	}
	slices.Sort(types)
	for _, typ := range slices.Compact(types) {
		if !slices.Contains(known, typ) {
			resp.ErrorCode, resp.ConfigResources = kerr.UnsupportedVersion.Code, nil // as Kafka
			return resp
		}
		add := func(name string) {
			c := kmsg.NewListConfigResourcesResponseConfigResource()
			c.Name, c.Type = name, int8(typ)
			resp.ConfigResources = append(resp.ConfigResources, c)
		}
		switch typ {
		case kmsg.ConfigResourceTypeTopic:
			for _, t := range b.set.Topics() {
				add(t.Name)
			}
		case kmsg.ConfigResourceTypeGroupConfig:
			for _, group := range slices.Sorted(maps.Keys(b.rawGroupConfigs(ctx))) {
				add(group)
			}
		case kmsg.ConfigResourceTypeBroker:
			for _, p := range b.peers(r.conn.listener) {
				add(strconv.Itoa(int(p.id)))
			}
		}
	}
	return resp
}
