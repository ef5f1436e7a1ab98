package streamstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/objectstore"
)

// requestCount counts requests by purpose.
type requestCount struct {
	mu sync.Mutex
	n  map[objectstore.Purpose]int // guarded by mu
}

func (c *requestCount) ObserveRequest(r objectstore.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n[r.Purpose]++
}

// BenchmarkRecovery has a node recover a WAL of 1 GiB that no object holds: another node's, in
// an S3 server; and its own, in memory and in files.
func BenchmarkRecovery(b *testing.B) {
	b.Run("another's/s3", func(b *testing.B) {
		bucket := objectstore.Bucket(benchS3(b))
		benchmarkRecovery(b, bucket, Config{WAL: WALObject}, func(e *env, cfg Config) error {
			s, err := Open(context.Background(), cfg, 2, e.bucket, e.meta, e.meta, newEnvLog())
			if err != nil {
				return err
			}
			defer s.abandon()
			done, err := s.Recover(context.Background(), 1, nil)
			if err == nil && done.Bytes != 1<<30 {
				err = fmt.Errorf("recovered %+v", done)
			}
			return err
		})
	})
	for name, cfg := range map[string]Config{"own/memory": {WAL: WALObject}, "own/file": {WAL: WALFile, WALDir: b.TempDir()}} {
		b.Run(name, func(b *testing.B) {
			benchmarkRecovery(b, objectstore.NewMemory(), cfg, func(e *env, cfg Config) error {
				s, err := Open(context.Background(), cfg, 1, e.bucket, e.meta, e.meta, newEnvLog())
				if err == nil {
					s.abandon()
				}
				return err
			})
		})
	}
}

func benchmarkRecovery(b *testing.B, bucket objectstore.Bucket, cfg Config, recover func(e *env, cfg Config) error) {
	b.SetBytes(1 << 30)
	count := &requestCount{n: make(map[objectstore.Purpose]int)}
	for range b.N {
		b.StopTimer()
		e := newEnv(b)
		e.bucket = bucket
		cfg.CleanInterval = -1
		lazy := cfg
		lazy.UploadBytes, lazy.LogCacheBytes, lazy.WALUnflushedBytes, lazy.UploadInterval = 1<<40, 1<<41, 1<<40, time.Hour
		s := e.open(lazy)
		streams := e.create(s, 100, 1)
		payload := make([]byte, 64<<10)
		for i := range payload {
			payload[i] = byte(rand.Uint32())
		}
		var wg sync.WaitGroup
		for i := range 16 << 10 {
			wg.Add(1)
			if _, err := streams[i%len(streams)].Append(context.Background(), RecordBatch{Count: 10, Payload: payload}, func(error) { wg.Done() }); err != nil {
				b.Fatal(err)
			}
		}
		wg.Wait()
		s.abandon()
		s.cache = nil // which holds all of it
		runtime.GC()
		e.bucket = objectstore.Observe(bucket, count)
		b.StartTimer()
		if err := recover(e, cfg); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/GiB")
	for purpose, n := range count.n {
		b.ReportMetric(float64(n)/float64(b.N), string(purpose)+"-requests")
	}
	b.ReportMetric(0, "ns/op")
}
