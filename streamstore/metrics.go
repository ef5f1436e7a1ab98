package streamstore

import (
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// An operation counts and times one kind of work by its outcome.
type operation struct {
	ok, failed prometheus.Counter
	seconds    prometheus.Observer
}

// since counts a piece of work that began then and ended now. It is meant to be deferred.
func (o operation) since(began time.Time, err *error) {
	if *err != nil {
		o.failed.Inc()
	} else {
		o.ok.Inc()
	}
	o.seconds.Observe(time.Since(began).Seconds())
}

// metrics of one store. docs/metrics.md lists them.
type metrics struct {
	all []prometheus.Collector // for the caller of Open to register

	append, fetch, trim, open, close, destroy operation // of streams
	upload, compact, clean, sweep             operation // in the background

	bulks, walBytes                   prometheus.Counter
	walSeconds                        prometheus.Histogram
	uploadBytes                       prometheus.Counter
	fromLogCache, fromBlockCache      prometheus.Counter // fetches
	fromObjects                       prometheus.Counter // …
	blockHits, blockMisses            prometheus.Counter
	readAheadWasted                   prometheus.Counter
	indexHits, indexMisses            prometheus.Counter
	compactions                       *prometheus.CounterVec
	compactionRead, compactionWritten prometheus.Counter
	deletedObjects, deletedBytes      prometheus.Counter
	orphans, orphanBytes              prometheus.Counter
	foreign, young                    prometheus.Gauge
	objects                           *objectCounts
}

const metricPrefix = "tabletopic_stream_"

func newMetrics(s *Store) *metrics {
	m := &metrics{}
	add := func(c prometheus.Collector) { m.all = append(m.all, c) }
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: metricPrefix + name, Help: help})
		add(c)
		return c
	}
	counterVec := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricPrefix + name, Help: help}, labels)
		add(c)
		return c
	}
	counterFunc := func(name, help string, value func() int64) {
		add(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: metricPrefix + name, Help: help}, func() float64 { return float64(value()) }))
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: metricPrefix + name, Help: help})
		add(g)
		return g
	}
	gaugeFunc := func(name, help string, value func() int64) {
		add(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: metricPrefix + name, Help: help}, func() float64 { return float64(value()) }))
	}

	operations := counterVec("operations_total", "Operations that ended, by outcome: ok or error. An append is one batch.", "operation", "outcome")
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: metricPrefix + "operation_seconds", Help: "Time of operations. Of appends: from the oldest of a WAL bulk to the answer of all in it.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 4, 11), // to 524 s
	}, []string{"operation"})
	add(seconds)
	for name, o := range map[string]*operation{
		"append": &m.append, "fetch": &m.fetch, "trim": &m.trim, "open": &m.open, "close": &m.close, "destroy": &m.destroy,
		"upload": &m.upload, "compact": &m.compact, "clean": &m.clean, "sweep": &m.sweep,
	} {
		*o = operation{operations.WithLabelValues(name, "ok"), operations.WithLabelValues(name, "error"), seconds.WithLabelValues(name)}
	}

	m.bulks = counter("wal_bulks_total", "WAL bulks acknowledged.")
	m.walBytes = counter("wal_bytes_total", "Bytes of the WAL bulks acknowledged.")
	m.walSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: metricPrefix + "wal_write_seconds", Help: "Time to make one WAL bulk durable, retries included.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15),
	})
	add(m.walSeconds)
	gaugeFunc("wal_unflushed_bytes", "Bytes appended that are not durable yet; appends wait at WALUnflushedBytes.", func() int64 {
		s.wal.mu.Lock()
		defer s.wal.mu.Unlock()
		return s.wal.unflushed
	})
	counterFunc("wal_hedges_total", "WAL objects sent a second time because the answer took unusually long.", s.hedges.sent.Load)
	counterFunc("wal_hedges_won_total", "WAL objects sent a second time whose second sending was answered first.", s.hedges.won.Load)

	m.uploadBytes = counter("upload_bytes_total", "Bytes of the objects that uploads committed.")
	gaugeFunc("unuploaded_bytes", "Bytes of memory appended that no object holds yet; appends wait at LogCacheBytes.", s.unuploaded)

	fetches := counterVec("fetches_total", "Fetches, by where the first batch was: log_cache, block_cache, or objects, for which they waited.", "from")
	m.fromLogCache, m.fromBlockCache, m.fromObjects = fetches.WithLabelValues("log_cache"), fetches.WithLabelValues("block_cache"), fetches.WithLabelValues("objects")
	gaugeFunc("log_cache_bytes", "Bytes in the log cache.", func() int64 {
		s.cache.mu.RLock()
		defer s.cache.mu.RUnlock()
		return s.cache.bytes
	})
	m.blockHits = counter("block_cache_hits_total", "Data blocks found in the block cache.")
	m.blockMisses = counter("block_cache_misses_total", "Data blocks that had to be read or waited for.")
	m.readAheadWasted = counter("read_ahead_wasted_bytes_total", "Bytes of blocks that were read ahead and left the block cache unread.")
	gaugeFunc("block_cache_bytes", "Bytes in the block cache.", func() int64 {
		s.reader.mu.Lock()
		defer s.reader.mu.Unlock()
		return s.reader.blocks.used
	})

	m.indexHits = counter("index_cache_hits_total", "Indexes of objects found in the index cache.")
	m.indexMisses = counter("index_cache_misses_total", "Indexes of objects that had to be read or waited for.")
	gaugeFunc("index_cache_bytes", "Bytes in the index cache.", func() int64 {
		s.reader.mu.Lock()
		defer s.reader.mu.Unlock()
		return s.reader.indexes.used
	})

	m.compactions = counterVec("compactions_total", "Compactions committed, by kind: sets (of stream set objects), minor (merge), major (link), cleanup (of composites) or rewrite (of what the cleaner of compacted topics changed).", "kind")
	for _, kind := range compactionKinds {
		m.compactions.WithLabelValues(kind)
	}
	m.compactionRead = counter("compaction_read_bytes_total", "Bytes that compaction read.")
	m.compactionWritten = counter("compaction_written_bytes_total", "Bytes that compaction wrote.")
	gaugeFunc("compaction_debt_bytes", "Bytes of stream set objects that wait for compaction, or that the run under way has still to rewrite.", func() int64 { return s.compact.debt() })
	add(&waitingStreams{s, prometheus.NewDesc(metricPrefix+"compaction_waiting_streams", "Open streams that a kind of compaction will look at: minor, major or cleanup.", []string{"kind"}, nil)})

	m.deletedObjects = counter("objects_deleted_total", "Objects deleted after nothing named them for the grace, or that were never committed.")
	m.deletedBytes = counter("objects_deleted_bytes_total", "Bytes of the objects deleted that had been committed.")
	m.orphans = counter("orphans_deleted_total", "Objects that metadata does not know, which a sweep deleted.")
	m.orphanBytes = counter("orphans_deleted_bytes_total", "Bytes of the orphans deleted.")
	m.young = gauge("sweep_young_objects", "Objects that metadata does not know and the last sweep left: younger than the grace, or than the sweep.")
	m.foreign = gauge("sweep_foreign_keys", "Keys below data/ that are none of Table Topic's, as of the last sweep. They are left alone.")
	m.objects = &objectCounts{
		count: prometheus.NewDesc(metricPrefix+"objects", "Objects that metadata knows, by state: prepared, referenced or destroyed. Counted about once in CleanInterval.", []string{"state"}, nil),
		bytes: prometheus.NewDesc(metricPrefix+"object_bytes", "Bytes of the objects that metadata knows, by state.", []string{"state"}, nil),
	}
	add(m.objects)
	gaugeFunc("open_streams", "Streams that are open.", func() int64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return int64(len(s.open))
	})
	return m
}

// Collectors returns the store's metrics, for the caller to register.
func (s *Store) Collectors() []prometheus.Collector { return s.metrics.all }

// unuploaded is the memory of what was appended and lies in no object yet.
func (s *Store) unuploaded() int64 {
	s.wal.mu.Lock()
	defer s.wal.mu.Unlock()
	return s.wal.unuploaded
}

// waitingStreams tells how much each kind of compaction has to look at.
type waitingStreams struct {
	s    *Store
	desc *prometheus.Desc
}

func (w *waitingStreams) Describe(ch chan<- *prometheus.Desc) { ch <- w.desc }

func (w *waitingStreams) Collect(ch chan<- prometheus.Metric) {
	for kind, n := range w.s.compact.waiting() {
		ch <- prometheus.MustNewConstMetric(w.desc, prometheus.GaugeValue, float64(n), kind)
	}
}

// objectCounts are the numbers of objects as they were counted last.
type objectCounts struct {
	count, bytes *prometheus.Desc

	mu   sync.Mutex
	last map[ObjectState]ObjectCount // guarded by mu
}

func (c *objectCounts) set(counts map[ObjectState]ObjectCount) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = maps.Clone(counts)
}

// Describe implements prometheus.Collector.
func (c *objectCounts) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.count
	ch <- c.bytes
}

// Collect implements prometheus.Collector.
func (c *objectCounts) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, state := range []ObjectState{ObjectPrepared, ObjectReferenced, ObjectDestroyed} {
		n := c.last[state]
		ch <- prometheus.MustNewConstMetric(c.count, prometheus.GaugeValue, float64(n.Objects), string(state))
		ch <- prometheus.MustNewConstMetric(c.bytes, prometheus.GaugeValue, float64(n.Bytes), string(state))
	}
}
