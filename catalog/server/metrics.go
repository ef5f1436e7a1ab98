package server

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	requests *prometheus.CounterVec
	reports  *prometheus.CounterVec
	repeated prometheus.Counter
}

func newMetrics(r prometheus.Registerer) metrics {
	m := metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tabletopic_rest_catalog_requests_total", Help: "Requests to the Iceberg REST catalog, by endpoint and class of status."}, []string{"endpoint", "status"}),
		reports: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tabletopic_rest_catalog_reports_total", Help: "Metrics reports that engines sent to the Iceberg REST catalog, by type."}, []string{"type"}),
		repeated: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tabletopic_rest_catalog_repeated_total", Help: "Requests with an idempotency key that had come before."}),
	}
	if r != nil {
		r.MustRegister(m.requests, m.reports, m.repeated)
	}
	return m
}

// statusWriter remembers the status.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// class is 2xx, 3xx, 4xx or 5xx.
func (w *statusWriter) class() string {
	if w.status == 0 {
		return "2xx"
	}
	return strconv.Itoa(w.status/100) + "xx"
}
