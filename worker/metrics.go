package worker

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of all workers of a node. Lags are computed when they are asked for.
type Metrics struct {
	rows, files, bytes *prometheus.CounterVec
	dead               *prometheus.CounterVec

	mu      sync.Mutex
	workers map[*Worker]bool // guarded by mu
}

var (
	lagRecords = prometheus.NewDesc("tabletopic_table_lag_records", "Committed offsets of the log that the table does not hold.", []string{"topic", "partition"}, nil)
	lagSeconds = prometheus.NewDesc("tabletopic_table_lag_seconds", "Age of the oldest record on this node that the table does not hold.", []string{"topic"}, nil)
)

// NewMetrics registers the metrics with r.
func NewMetrics(r prometheus.Registerer) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tabletopic_worker_" + name, Help: help}, append([]string{"topic"}, labels...))
		r.MustRegister(v)
		return v
	}
	m := &Metrics{
		rows:    counter("rows_total", "Rows converted, also those that were converted again."),
		files:   counter("files_total", "Data files written."),
		bytes:   counter("bytes_total", "Bytes of data files written."),
		dead:    counter("dead_letters_total", "Records that became dead letters.", "cause"),
		workers: map[*Worker]bool{},
	}
	r.MustRegister(m)
	return m
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- lagRecords
	ch <- lagSeconds
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for w := range m.workers {
		for _, l := range w.Lag() {
			ch <- prometheus.MustNewConstMetric(lagRecords, prometheus.GaugeValue, float64(l.Records), w.topic.Name, itoa(l.Partition))
		}
		ch <- prometheus.MustNewConstMetric(lagSeconds, prometheus.GaugeValue, w.Age(time.Now()).Seconds(), w.topic.Name)
	}
}

func (m *Metrics) watch(w *Worker) (stop func()) {
	if m == nil {
		return func() {}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.workers[w] = true
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.workers, w)
	}
}

// topicMetrics are those of one topic, looked up once.
type topicMetrics struct {
	rows, files, bytes prometheus.Counter
	causes             map[string]prometheus.Counter
}

func (m *topicMetrics) dead(cause string) { m.causes[cause].Inc() }

// topic returns the metrics of one topic; those of a nil m are counted nowhere.
func (m *Metrics) topic(name string) *topicMetrics {
	if m == nil {
		m = NewMetrics(prometheus.NewRegistry())
	}
	t := &topicMetrics{
		rows:   m.rows.WithLabelValues(name),
		files:  m.files.WithLabelValues(name),
		bytes:  m.bytes.WithLabelValues(name),
		causes: map[string]prometheus.Counter{},
	}
	for _, c := range []string{CauseNoMagic, CauseUnknownSchema, CauseBadSchema, CauseIncompatible, CauseUndecodable} {
		t.causes[c] = m.dead.WithLabelValues(name, c)
	}
	return t
}
