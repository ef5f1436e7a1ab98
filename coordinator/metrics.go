package coordinator

import "github.com/prometheus/client_golang/prometheus"

// Metrics of all coordinators of a node.
type Metrics struct {
	commits, conflicts, unknowns, failures, rows, dead, files *prometheus.CounterVec
	gaps                                                      *prometheus.CounterVec
	seconds                                                   *prometheus.HistogramVec
	compactions, replaced, replacedBytes                      *prometheus.CounterVec
	voids, compactionFailures                                 *prometheus.CounterVec
	catalogUp, paused, schema, small                          *prometheus.GaugeVec
}

// NewMetrics registers the metrics with r.
func NewMetrics(r prometheus.Registerer) *Metrics {
	counter := func(name, help string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tabletopic_table_" + name, Help: help}, []string{"topic"})
		r.MustRegister(v)
		return v
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tabletopic_table_" + name, Help: help}, []string{"topic"})
		r.MustRegister(v)
		return v
	}
	m := &Metrics{
		commits:   counter("commits_total", "Snapshots committed."),
		conflicts: counter("commit_conflicts_total", "Commits that met another change and were tried again."),
		unknowns:  counter("commit_unknown_total", "Commits whose outcome had to be read from the table."),
		failures:  counter("commit_failures_total", "Commits that the catalog refused."),
		rows:      counter("rows_total", "Rows committed."),
		dead:      counter("left_out_total", "Records that a commit passed and that became no rows: dead letters, what settings leave out, and what is for other tables of the topic."),
		files:     counter("files_total", "Data files committed."),
		gaps:      counter("gap_offsets_total", "Offsets that the log lost before they reached the table."),

		compactions:        counter("compactions_total", "Snapshots that made large files of small ones."),
		replaced:           counter("compacted_files_total", "Small files that were replaced."),
		replacedBytes:      counter("compacted_bytes_total", "Size of the small files that were replaced."),
		voids:              counter("compaction_void_total", "Compactions that came to nothing because the table had changed."),
		compactionFailures: counter("compaction_failures_total", "Compactions that failed and are tried again."),
		small:              gauge("small_files", "Data files that are smaller than the table's files should be, when it was last looked through."),

		catalogUp: gauge("catalog_up", "1 if the last call to the catalog was answered."),
		paused:    gauge("paused", "1 if the table waits for an operator."),
		schema:    gauge("schema_id", "Current schema of the table."),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tabletopic_table_commit_seconds", Help: "Time of one call to the catalog.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 14),
		}, []string{"topic"}),
	}
	r.MustRegister(m.seconds)
	return m
}

// topicMetrics are those of one topic, looked up once.
type topicMetrics struct {
	commits, conflicts, unknowns, failures, rows, dead, files, gaps prometheus.Counter
	commitSeconds                                                   prometheus.Observer
	compactions, replaced, replacedBytes                            prometheus.Counter
	voids, compactionFailures                                       prometheus.Counter
	catalogUp, paused, schema, small                                prometheus.Gauge
}

// topic returns the metrics of one topic; those of a nil m are counted nowhere.
func (m *Metrics) topic(name string) topicMetrics {
	if m == nil {
		m = NewMetrics(prometheus.NewRegistry())
	}
	return topicMetrics{
		commits:       m.commits.WithLabelValues(name),
		conflicts:     m.conflicts.WithLabelValues(name),
		unknowns:      m.unknowns.WithLabelValues(name),
		failures:      m.failures.WithLabelValues(name),
		rows:          m.rows.WithLabelValues(name),
		dead:          m.dead.WithLabelValues(name),
		files:         m.files.WithLabelValues(name),
		gaps:          m.gaps.WithLabelValues(name),
		commitSeconds: m.seconds.WithLabelValues(name),
		compactions:   m.compactions.WithLabelValues(name),
		replaced:      m.replaced.WithLabelValues(name),
		replacedBytes: m.replacedBytes.WithLabelValues(name),
		voids:         m.voids.WithLabelValues(name),
		small:         m.small.WithLabelValues(name),

		compactionFailures: m.compactionFailures.WithLabelValues(name),

		catalogUp: m.catalogUp.WithLabelValues(name),
		paused:    m.paused.WithLabelValues(name),
		schema:    m.schema.WithLabelValues(name),
	}
}

// forget lets go of the series of a topic that is gone.
func (m *Metrics) forget(topic string) {
	if m == nil {
		return
	}
	for _, v := range []*prometheus.MetricVec{m.commits.MetricVec, m.conflicts.MetricVec, m.unknowns.MetricVec, m.failures.MetricVec, m.rows.MetricVec, m.dead.MetricVec,
		m.compactions.MetricVec, m.replaced.MetricVec, m.replacedBytes.MetricVec, m.voids.MetricVec, m.compactionFailures.MetricVec, m.small.MetricVec,
		m.files.MetricVec, m.gaps.MetricVec, m.seconds.MetricVec, m.catalogUp.MetricVec, m.paused.MetricVec, m.schema.MetricVec} {
		v.DeletePartialMatch(prometheus.Labels{"topic": topic})
	}
}

func (m *topicMetrics) up(yes bool) {
	v := 0.0
	if yes {
		v = 1
	}
	m.catalogUp.Set(v)
}

func (m *topicMetrics) committed(c *Commit) {
	m.commits.Inc()
	for _, r := range c.Ranges {
		m.rows.Add(float64(r.Rows))
		m.dead.Add(float64(r.Dead))
		m.gaps.Add(float64(r.Gap))
	}
	m.files.Add(float64(len(c.Files)))
}
