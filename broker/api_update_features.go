package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// handleUpdateFeatures refuses every change: levels of features come with the program.
func handleUpdateFeatures(_ context.Context, _ *Broker, r *request, req *kmsg.UpdateFeaturesRequest) kmsg.Response {
	resp := kmsg.NewPtrUpdateFeaturesResponse()
	if !r.may(opAlter, onCluster, cluster) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp
	}
	for _, u := range req.FeatureUpdates {
		// Tools say themselves of which feature; from version 2 on one error is for all.
		err := refuse(kerr.InvalidUpdateVersion, "levels of features come with the version of Table Topic and cannot be set")
		if r.version >= 2 {
			resp.ErrorCode, resp.ErrorMessage = codeAndText(err)
			break
		}
		result := kmsg.NewUpdateFeaturesResponseResult()
		result.Feature = u.Feature
		result.ErrorCode, result.ErrorMessage = codeAndText(err)
		resp.Results = append(resp.Results, result)
	}
	return resp
}
