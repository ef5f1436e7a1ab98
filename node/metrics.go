package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tabletopic/tabletopic/objectstore"
)

// storeMetrics counts the requests to the object store, which are what it charges for.
type storeMetrics struct {
	requests *prometheus.CounterVec
	bytes    *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

func newStoreMetrics(r prometheus.Registerer) *storeMetrics {
	m := &storeMetrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tabletopic_objectstore_requests_total", Help: "Requests to the object store, by operation and outcome."}, []string{"op", "outcome"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tabletopic_objectstore_bytes_total", Help: "Bytes sent to and received from the object store."}, []string{"op"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tabletopic_objectstore_request_seconds", Help: "Time of requests to the object store.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14)}, []string{"op"}),
	}
	r.MustRegister(m.requests, m.bytes, m.seconds)
	return m
}

// ObserveRequest implements objectstore.Observer.
func (m *storeMetrics) ObserveRequest(r objectstore.Request) {
	outcome := "ok"
	if r.Err != nil {
		outcome = "error"
	}
	op := string(r.Op)
	m.requests.WithLabelValues(op, outcome).Inc()
	m.bytes.WithLabelValues(op).Add(float64(r.Sent + r.Received))
	m.seconds.WithLabelValues(op).Observe(r.Duration.Seconds())
}
