package broker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// handlePushTelemetry takes the metrics of a client, counts their bytes and drops them.
func handlePushTelemetry(_ context.Context, b *Broker, _ *request, req *kmsg.PushTelemetryRequest) kmsg.Response {
	resp := kmsg.NewPtrPushTelemetryResponse()
	switch {
	case req.ClientInstanceID == [16]byte{}:
		resp.ErrorCode = kerr.InvalidRequest.Code
	case req.SubscriptionID != telemetrySubscription:
		resp.ErrorCode = kerr.UnknownSubscriptionID.Code
	case req.CompressionType < 0 || req.CompressionType >= telemetryCodecs:
		resp.ErrorCode = kerr.UnsupportedCompressionType.Code
	case len(req.Metrics) > telemetryMaxBytes:
		resp.ErrorCode = kerr.TelemetryTooLarge.Code
	default:
		b.m.telemetry.Add(float64(len(req.Metrics)))
	}
	return resp
}
