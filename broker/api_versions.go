package broker

import (
	"context"
	"regexp"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// softwareName is what KIP-511 allows as the name and version of a client.
var softwareName = regexp.MustCompile(`^[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?$`)

// transactionVersion is the feature (KIP-584) that tells producers to use the second protocol of
// transactions (KIP-890): epochs go up with each of them, and produce requests enlist partitions.
const transactionVersion = "transaction.version"

// groupVersion is the feature by which Kafka says that it has the consumer protocol (KIP-848); tools show it.
const groupVersion = "group.version"

// shareVersion is the feature that tells clients of share groups (KIP-932).
const shareVersion = "share.version"

// features are served at their newest level, which nothing changes.
var features = []feature{{groupVersion, 1}, {shareVersion, 1}, {transactionVersion, 2}}

type feature struct {
	name  string
	level int16
}

// handleAPIVersions answers any version above ours in version 0 with
// UNSUPPORTED_VERSION and all ranges, so that the client can ask again (KIP-511).
func handleAPIVersions(ctx context.Context, b *Broker, r *request) (*answer, error) {
	resp := kmsg.NewPtrApiVersionsResponse()
	for _, a := range b.apis.list {
		k := kmsg.NewApiVersionsResponseApiKey()
		k.ApiKey, k.MinVersion, k.MaxVersion = int16(a.key), a.min, a.max
		resp.ApiKeys = append(resp.ApiKeys, k)
	}
	resp.FinalizedFeaturesEpoch = 0
	for _, f := range features {
		resp.SupportedFeatures = append(resp.SupportedFeatures, kmsg.ApiVersionsResponseSupportedFeature{Name: f.name, MaxVersion: f.level})
		resp.FinalizedFeatures = append(resp.FinalizedFeatures, kmsg.ApiVersionsResponseFinalizedFeature{Name: f.name, MaxVersionLevel: f.level, MinVersionLevel: f.level})
	}
	if r.version > r.api.max {
		r.version = 0
		resp.ErrorCode = kerr.UnsupportedVersion.Code
		return r.reply(resp), nil
	}
	req := kmsg.NewPtrApiVersionsRequest()
	if err := r.decode(ctx, req); err != nil {
		return nil, err
	}
	if code := b.checkAPIVersions(req); code != 0 {
		resp.ErrorCode, resp.ApiKeys = code, nil
	}
	return r.reply(resp), nil
}

func (b *Broker) checkAPIVersions(req *kmsg.ApiVersionsRequest) int16 {
	if req.Version >= 3 && (!softwareName.MatchString(req.ClientSoftwareName) || !softwareName.MatchString(req.ClientSoftwareVersion)) {
		return kerr.InvalidRequest.Code
	}
	if req.Version >= 5 { // KIP-1242: a client that was routed to the wrong broker
		switch known := req.ClusterID != nil; {
		case known != (req.NodeID >= 0):
			return kerr.InvalidRequest.Code
		case known && (*req.ClusterID != b.meta.ClusterID() || req.NodeID != int32(b.node.ID)):
			return kerr.RebootstrapRequired.Code
		}
	}
	return 0
}
