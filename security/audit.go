package security

import (
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	auditBurst  = 100
	auditPerSec = 10
)

// audit writes down who was refused, a few lines a second at most: what is left out is counted
// in the next line.
type audit struct {
	log *slog.Logger
	now func() time.Time
	mu  *sync.Mutex
	st  *auditState // guarded by mu
}

type auditState struct {
	tokens  float64
	at      time.Time
	dropped int
}

func newAudit(log *slog.Logger) audit {
	return audit{log, time.Now, &sync.Mutex{}, &auditState{tokens: auditBurst}}
}

func (a audit) warn(what string, args ...any) {
	a.mu.Lock()
	now := a.now()
	if !a.st.at.IsZero() {
		a.st.tokens = min(auditBurst, a.st.tokens+now.Sub(a.st.at).Seconds()*auditPerSec)
	}
	a.st.at = now
	if a.st.tokens < 1 {
		a.st.dropped++
		a.mu.Unlock()
		return
	}
	a.st.tokens--
	dropped := a.st.dropped
	a.st.dropped = 0
	a.mu.Unlock()
	if dropped > 0 {
		args = append(args, "left_out", dropped)
	}
	a.log.Warn(what, args...)
}

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
