package node

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tabletopic/tabletopic/objectstore"
)

// storeMetrics counts the requests to the object store, which are what it charges for.
// docs/metrics.md lists all metrics of a node.
type storeMetrics struct {
	requests *prometheus.CounterVec
	bytes    *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

func newStoreMetrics(r prometheus.Registerer) *storeMetrics {
	m := &storeMetrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tabletopic_objectstore_requests_total", Help: "Requests to the object store, by what they are for, kind and outcome: ok, not_found, exists, unavailable or error."},
			[]string{"purpose", "kind", "outcome"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tabletopic_objectstore_bytes_total", Help: "Bytes sent to and received from the object store, by what they are for, kind and outcome of the request."},
			[]string{"purpose", "kind", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tabletopic_objectstore_request_seconds", Help: "Time of requests to the object store, by what they are for and kind.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14)}, []string{"purpose", "kind"}),
	}
	r.MustRegister(m.requests, m.bytes, m.seconds)
	return m
}

// ObserveRequest implements objectstore.Observer.
func (m *storeMetrics) ObserveRequest(r objectstore.Request) {
	purpose, kind, outcome := string(r.Purpose), string(r.Op), outcome(r.Err)
	m.requests.WithLabelValues(purpose, kind, outcome).Inc()
	m.bytes.WithLabelValues(purpose, kind, outcome).Add(float64(r.Sent + r.Received))
	m.seconds.WithLabelValues(purpose, kind).Observe(r.Duration.Seconds())
}

// outcome tells answers that are expected, and those that another attempt may better, from
// the others.
func outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, objectstore.ErrNotFound):
		return "not_found"
	case errors.Is(err, objectstore.ErrExists):
		return "exists"
	case errors.Is(err, objectstore.ErrUnavailable):
		return "unavailable"
	}
	return "error"
}
