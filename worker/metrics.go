package worker

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of all workers of a node. Lags are computed when they are asked for.
type Metrics struct {
	rows, files, bytes *prometheus.CounterVec
	dead, others       *prometheus.CounterVec
	decoders           *prometheus.CounterVec

	mu      sync.Mutex
	workers map[*Worker]bool // guarded by mu
}

var (
	partitionLabels   = []string{"topic", "partition"}
	lagRecords        = prometheus.NewDesc("tabletopic_table_lag_records", "Committed offsets of the log that the table does not hold.", partitionLabels, nil)
	lagSeconds        = prometheus.NewDesc("tabletopic_table_lag_seconds", "Age of the oldest record that the table does not hold.", partitionLabels, nil)
	writtenLagRecords = prometheus.NewDesc("tabletopic_worker_lag_records", "Committed offsets of the log that no data file holds.", partitionLabels, nil)
	writtenLagSeconds = prometheus.NewDesc("tabletopic_worker_lag_seconds", "Age of the oldest record that no data file holds.", partitionLabels, nil)
	waitingFiles      = prometheus.NewDesc("tabletopic_worker_waiting_files", "Data files of this node that the table does not hold yet.", []string{"topic"}, nil)
)

// maxPartitionSeries bounds the partitions with series of their own. A topic that does not
// fit has one with the partition "", of the sum of its records and the age of the oldest.
const maxPartitionSeries = 10_000

// NewMetrics registers the metrics with r.
func NewMetrics(r prometheus.Registerer) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tabletopic_worker_" + name, Help: help}, append([]string{"topic"}, labels...))
		r.MustRegister(v)
		return v
	}
	m := &Metrics{
		rows:     counter("rows_total", "Rows converted, also those that were converted again."),
		files:    counter("files_total", "Data files written."),
		bytes:    counter("bytes_total", "Bytes of data files written."),
		dead:     counter("dead_letters_total", "Records that became dead letters, or were left out as table.topic.errors.tolerance and table.topic.tombstone say.", "cause"),
		others:   counter("other_records_total", "Records of a topic with several tables that are for others of them."),
		decoders: counter("decoders_total", "Decoders made, of a schema of writers for the columns of the table; few, however often writers of several schemas take turns."),
		workers:  map[*Worker]bool{},
	}
	r.MustRegister(m)
	return m
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{lagRecords, lagSeconds, writtenLagRecords, writtenLagSeconds, waitingFiles} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	workers := slices.SortedFunc(maps.Keys(m.workers), func(a, b *Worker) int { return strings.Compare(a.topic.Name, b.topic.Name) })
	left, now := maxPartitionSeries, time.Now()
	for _, w := range workers {
		gauge := func(d *prometheus.Desc, v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{w.topic.Name}, labels...)...)
		}
		gauge(waitingFiles, float64(w.Files()))
		lags := w.Lag(now)
		name := func(l PartitionLag) string { return itoa(l.Partition) }
		if len(lags) > left {
			lags, name = []PartitionLag{sum(lags)}, func(PartitionLag) string { return "" }
		}
		left -= len(lags)
		for _, l := range lags {
			gauge(lagSeconds, age(l.Oldest, now).Seconds(), name(l))
			gauge(writtenLagSeconds, age(l.OldestUnwritten, now).Seconds(), name(l))
			if l.Records >= 0 {
				gauge(lagRecords, float64(l.Records), name(l))
				gauge(writtenLagRecords, float64(l.Unwritten), name(l))
			}
		}
	}
}

// sum returns the lag of several partitions together.
func sum(lags []PartitionLag) (all PartitionLag) {
	for _, l := range lags {
		all.Records += l.Records
		all.Unwritten += l.Unwritten
		all.Oldest = earlier(all.Oldest, l.Oldest)
		all.OldestUnwritten = earlier(all.OldestUnwritten, l.OldestUnwritten)
	}
	return all
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
	others, decoders   prometheus.Counter
	causes             map[string]prometheus.Counter
}

func (m *topicMetrics) dead(cause string) { m.causes[cause].Inc() }

// forget lets go of the counters of a topic that is gone.
func (m *Metrics) forget(topic string) {
	if m == nil {
		return
	}
	for _, v := range []*prometheus.CounterVec{m.rows, m.files, m.bytes, m.dead, m.others, m.decoders} {
		v.DeletePartialMatch(prometheus.Labels{"topic": topic})
	}
}

// topic returns the metrics of one topic; those of a nil m are counted nowhere.
func (m *Metrics) topic(name string) *topicMetrics {
	if m == nil {
		m = NewMetrics(prometheus.NewRegistry())
	}
	t := &topicMetrics{
		rows:     m.rows.WithLabelValues(name),
		files:    m.files.WithLabelValues(name),
		bytes:    m.bytes.WithLabelValues(name),
		others:   m.others.WithLabelValues(name),
		decoders: m.decoders.WithLabelValues(name),
		causes:   map[string]prometheus.Counter{},
	}
	for _, c := range []string{CauseBadHeader, CauseNoMagic, CauseUnknownSchema, CauseBadSchema, CauseIncompatible, CauseUndecodable, CauseNoTable, CauseTombstone} {
		t.causes[c] = m.dead.WithLabelValues(name, c)
	}
	return t
}
