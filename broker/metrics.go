package broker

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tabletopic/tabletopic/security"
)

// metrics are the numbers of a broker, all called tabletopic_broker_….
type metrics struct {
	connections    prometheus.Gauge
	refused        prometheus.Counter
	protocolErrors prometheus.Counter
	panics         prometheus.Counter
	bytesIn        prometheus.Counter
	bytesOut       prometheus.Counter
	produced       prometheus.Counter
	fetched        prometheus.Counter

	sessionPartitions prometheus.Gauge
	shareSessions     prometheus.Gauge
	telemetry         prometheus.Counter
	throttleSeconds   *prometheus.CounterVec // by quota
	requestsByIndex   []prometheus.Observer  // by api.index
}

func newMetrics(reg prometheus.Registerer, apis *apiTable) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "tabletopic", Subsystem: "broker", Name: name, Help: help})
	}
	m := &metrics{
		connections:    prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "tabletopic", Subsystem: "broker", Name: "connections", Help: "Open Kafka connections."}),
		refused:        counter("connections_refused_total", "Connections closed at once since there were too many."),
		protocolErrors: counter("protocol_errors_total", "Connections closed since the peer broke the protocol or stalled."),
		panics:         counter("panics_total", "Requests that met a bug; each is in the log with its stack."),
		bytesIn:        counter("request_bytes_total", "Bytes of requests read."),
		bytesOut:       counter("answer_bytes_total", "Bytes of answers written."),
		produced:       counter("produced_bytes_total", "Bytes of record batches in Produce requests."),
		fetched:        counter("fetched_bytes_total", "Bytes of record batches in Fetch answers."),

		sessionPartitions: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "tabletopic", Subsystem: "broker", Name: "fetch_session_partitions", Help: "Partitions in fetch sessions and share sessions."}),
		shareSessions:     prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "tabletopic", Subsystem: "broker", Name: "share_sessions", Help: "Share sessions: members of share groups that fetch here."}),
		telemetry:         counter("client_telemetry_bytes_total", "Bytes of metrics that clients pushed."),
	}
	m.throttleSeconds = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "tabletopic", Subsystem: "broker", Name: "throttle_seconds_total",
		Help: "Time that clients were told to be silent, by quota.",
	}, []string{"quota"})
	for _, quota := range []string{security.ProducerByteRate, security.ConsumerByteRate, security.RequestPercentage, security.ControllerMutationRate, security.ConnectionCreationRate} {
		m.throttleSeconds.WithLabelValues(quota)
	}
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "tabletopic", Subsystem: "broker", Name: "request_seconds",
		Help:    "Time from a request read to its answer written, by API. Fetch includes its long poll.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
	}, []string{"api"})
	for i := range apis.list {
		m.requestsByIndex = append(m.requestsByIndex, seconds.WithLabelValues(apis.list[i].name()))
	}
	if reg != nil {
		reg.MustRegister(m.connections, m.refused, m.protocolErrors, m.panics, m.bytesIn, m.bytesOut, m.produced, m.fetched, m.sessionPartitions, m.shareSessions, m.telemetry, m.throttleSeconds, seconds)
	}
	return m
}

func (m *metrics) observe(r *request) {
	m.requestsByIndex[r.api.index].Observe(time.Since(r.start).Seconds())
}

// throttled notes that a quota makes a client silent, if it does.
func (m *metrics) throttled(quota string, wait time.Duration) {
	if wait > 0 {
		m.throttleSeconds.WithLabelValues(quota).Add(wait.Seconds())
	}
}
