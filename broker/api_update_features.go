package broker

import (
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// handleUpdateFeatures refuses every change: levels of features come with the program. A level that a feature has
// already is none, so that scripts may ask for it.
func handleUpdateFeatures(_ context.Context, _ *Broker, r *request, req *kmsg.UpdateFeaturesRequest) kmsg.Response {
	resp := kmsg.NewPtrUpdateFeaturesResponse()
	if !r.may(opAlter, onCluster, cluster) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp
	}
	for _, u := range req.FeatureUpdates {
		has := slices.ContainsFunc(features, func(f feature) bool { return f.name == u.Feature && f.level == u.MaxVersionLevel })
		var err error
		if !has {
			err = refuse(kerr.InvalidUpdateVersion, "level %d of %q is not the one that there is: levels of features come with the version of Table Topic and cannot be set", u.MaxVersionLevel, u.Feature)
		}
		if r.version >= 2 { // one error is for all, and tools say it of each
			if resp.ErrorCode, resp.ErrorMessage = codeAndText(err); err != nil {
				break
			}
			continue
		}
		result := kmsg.NewUpdateFeaturesResponseResult()
		result.Feature = u.Feature
		result.ErrorCode, result.ErrorMessage = codeAndText(err)
		resp.Results = append(resp.Results, result)
	}
	return resp
}
