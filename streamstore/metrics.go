package streamstore

import "github.com/prometheus/client_golang/prometheus"

// metrics of one store.
type metrics struct {
	bulks, walBytes, batches prometheus.Counter
	walSeconds               prometheus.Histogram
	uploads, uploadBytes     prometheus.Counter
	reads                    *prometheus.CounterVec
	fromLogCache             prometheus.Counter // of reads
	fromBlockCache           prometheus.Counter // …
	fromObjects              prometheus.Counter // …
	blockHits, blockMisses   prometheus.Counter
	readAheadWasted          prometheus.Counter
	compactions              *prometheus.CounterVec
	compactionRead           prometheus.Counter
	compactionWritten        prometheus.Counter
	gauges                   []prometheus.Collector
}

func newMetrics(s *Store) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "tabletopic_stream_" + name, Help: help})
	}
	gauge := func(name, help string, value func() int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tabletopic_stream_" + name, Help: help}, func() float64 { return float64(value()) })
	}
	counterFunc := func(name, help string, value func() int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "tabletopic_stream_" + name, Help: help}, func() float64 { return float64(value()) })
	}
	m := &metrics{
		bulks:    counter("wal_bulks_total", "WAL bulks acknowledged."),
		walBytes: counter("wal_bytes_total", "Bytes of the WAL bulks acknowledged."),
		batches:  counter("append_batches_total", "Batches acknowledged."),
		walSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tabletopic_stream_wal_write_seconds", Help: "Time to make one WAL bulk durable, retries included.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15),
		}),
		uploads:     counter("uploads_total", "Log cache blocks uploaded and committed."),
		uploadBytes: counter("upload_bytes_total", "Bytes of the objects committed."),
		reads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tabletopic_stream_fetches_total", Help: "Fetches, by where the first batch was: the log cache, the block cache, or objects, for which they waited.",
		}, []string{"from"}),
		compactions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tabletopic_stream_compactions_total", Help: "Compactions committed: of stream set objects, minor, major, or cleanup of composites.",
		}, []string{"kind"}),
		compactionRead:    counter("compaction_read_bytes_total", "Bytes that compaction read."),
		compactionWritten: counter("compaction_written_bytes_total", "Bytes that compaction wrote."),
		blockHits:         counter("block_cache_hits_total", "Data blocks found in the block cache."),
		readAheadWasted:   counter("read_ahead_wasted_bytes_total", "Bytes of blocks that were read ahead and left the block cache unread."),
		blockMisses:       counter("block_cache_misses_total", "Data blocks that had to be read or waited for."),
	}
	m.fromLogCache, m.fromBlockCache, m.fromObjects = m.reads.WithLabelValues("log_cache"), m.reads.WithLabelValues("block_cache"), m.reads.WithLabelValues("objects")
	m.gauges = []prometheus.Collector{
		gauge("wal_unflushed_bytes", "Bytes appended that are not durable yet.", func() int64 {
			s.wal.mu.Lock()
			defer s.wal.mu.Unlock()
			return s.wal.unflushed
		}),
		gauge("unuploaded_bytes", "Bytes of memory appended that no object holds yet; appends wait at LogCacheBytes.", func() int64 {
			s.wal.mu.Lock()
			defer s.wal.mu.Unlock()
			return s.wal.unuploaded
		}),
		counterFunc("wal_hedges_total", "WAL objects sent a second time because the answer took unusually long.", s.hedges.sent.Load),
		counterFunc("wal_hedges_won_total", "WAL objects sent a second time whose second sending was answered first.", s.hedges.won.Load),
		gauge("log_cache_bytes", "Bytes in the log cache.", func() int64 {
			s.cache.mu.RLock()
			defer s.cache.mu.RUnlock()
			return s.cache.bytes
		}),
		gauge("block_cache_bytes", "Bytes in the block cache.", func() int64 {
			s.reader.mu.Lock()
			defer s.reader.mu.Unlock()
			return s.reader.blocks.used
		}),
		gauge("compaction_debt_bytes", "Bytes of stream set objects that the compaction under way has still to rewrite.", s.compact.debt.Load),
		gauge("open_streams", "Streams that are open.", func() int64 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return int64(len(s.open))
		}),
	}
	return m
}

// Collectors returns the store's metrics, for the caller to register.
func (s *Store) Collectors() []prometheus.Collector {
	m := s.metrics
	return append([]prometheus.Collector{
		m.bulks, m.walBytes, m.batches, m.walSeconds, m.uploads, m.uploadBytes, m.reads, m.blockHits, m.blockMisses, m.readAheadWasted,
		m.compactions, m.compactionRead, m.compactionWritten,
	}, m.gauges...)
}
