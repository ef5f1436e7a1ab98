package e2e

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// BenchmarkSlowPut is one idempotent producer with acks=all on one connection to a server whose object
// store takes 100 ms more for each PUT: requests are pipelined, so its rate does not follow the latency.
func BenchmarkSlowPut(b *testing.B) {
	const total, size = 512 << 20, 64 << 10
	for b.Loop() {
		endpoint, _, _ := lab.Versitygw(b)
		slow := lab.Proxy(b, endpoint, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.Method == http.MethodPut {
				<-time.After(100 * time.Millisecond)
			}
			next.ServeHTTP(w, r)
		})
		s := newServer(b, "--object-store", "s3://bucket/tt?region="+lab.Region+"&path-style=true&endpoint="+slow)
		s.env = s3Credentials
		s.start()
		s.benchTopic(false)
		cl := s.client(kgo.DefaultProduceTopic(benchTopic), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.MaxBufferedRecords(1000))
		value := make([]byte, size)
		var failed atomic.Int64
		start := time.Now()
		for range total / size {
			cl.Produce(context.Background(), &kgo.Record{Value: value}, func(_ *kgo.Record, err error) {
				if err != nil {
					failed.Add(1)
				}
			})
		}
		if err := cl.Flush(context.Background()); err != nil || failed.Load() > 0 {
			b.Fatalf("flush: %v, %d records failed", err, failed.Load())
		}
		b.ReportMetric(total/(1<<20)/time.Since(start).Seconds(), "MiB/s")
	}
	b.ReportMetric(0, "ns/op")
}
