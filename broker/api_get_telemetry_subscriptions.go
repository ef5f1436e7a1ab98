package broker

import (
	"context"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	telemetryMaxBytes       = 1 << 20 // of one push, as Kafka's default
	telemetryIntervalMillis = 5 * 60 * 1000
	telemetrySubscription   = 1 // the one there is
	telemetryCodecs         = 5 // gzip, snappy, lz4 and zstd, and none
)

// handleGetTelemetrySubscriptions tells a client that none of its metrics are wanted
// (KIP-714), and gives it an id. It asks again after the interval.
func handleGetTelemetrySubscriptions(_ context.Context, _ *Broker, _ *request, req *kmsg.GetTelemetrySubscriptionsRequest) kmsg.Response {
	resp := kmsg.NewPtrGetTelemetrySubscriptionsResponse()
	resp.ClientInstanceID = req.ClientInstanceID
	if req.ClientInstanceID == [16]byte{} {
		resp.ClientInstanceID = uuid.New()
	}
	resp.SubscriptionID = telemetrySubscription
	resp.AcceptedCompressionTypes = []int8{4, 3, 1, 2} // zstd, lz4, gzip, snappy, in the order of Kafka
	resp.PushIntervalMillis, resp.TelemetryMaxBytes = telemetryIntervalMillis, telemetryMaxBytes
	resp.DeltaTemporality = true
	return resp
}
