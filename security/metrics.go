package security

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	denied   *prometheus.CounterVec
	failures *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tabletopic", Subsystem: "security", Name: name, Help: help}, labels)
	}
	m := metrics{
		denied:   counter("denied_total", "Requests for something that the client may not do.", "resource_type", "operation"),
		failures: counter("authentication_failures_total", "Clients that could not prove who they are.", "mechanism"),
	}
	for typ, ops := range operations { // from zero on, so that an alarm sees the first
		for _, op := range ops {
			m.denied.WithLabelValues(TypeName(typ), op.String())
		}
	}
	for _, mechanism := range append([]string{"TLS", "other"}, Mechanisms...) {
		m.failures.WithLabelValues(mechanism)
	}
	if reg != nil {
		reg.MustRegister(m.denied, m.failures)
	}
	return m
}
