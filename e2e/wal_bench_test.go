package e2e

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// BenchmarkSlowPut is one idempotent producer with acks=all on one connection to a server whose object
// store takes 100 ms more for each PUT: requests are pipelined, so its rate does not follow the latency.
func BenchmarkSlowPut(b *testing.B) {
	for b.Loop() {
		s := slowStore(b, func(time.Duration) {})
		s.benchTopic(false)
		b.ReportMetric(slowRate(b, s, benchTopic, 512<<20), "MiB/s")
	}
	b.ReportMetric(0, "ns/op")
}

// slowStore is a server whose object store, an S3 server, takes 100 ms more for each PUT. It tells how
// long those of the write-ahead log took, from many goroutines.
func slowStore(b *testing.B, took func(time.Duration)) *server {
	b.Helper()
	endpoint, _, _ := lab.Versitygw(b)
	slow := lab.Proxy(b, endpoint, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method != http.MethodPut {
			next.ServeHTTP(w, r)
			return
		}
		begin := time.Now()
		<-time.After(100 * time.Millisecond)
		next.ServeHTTP(w, r)
		if strings.Contains(r.URL.Path, "/wal/") {
			took(time.Since(begin))
		}
	})
	s := newServer(b, "--object-store", "s3://bucket/tt?region="+lab.Region+"&path-style=true&endpoint="+slow)
	s.env = s3Credentials
	s.start()
	return s
}

// slowRate is the rate, in MiB/s, of one producer of values of 64 KiB on one connection.
func slowRate(b *testing.B, s *server, topic string, bytes int64) float64 {
	b.Helper()
	const size = 64 << 10
	cl := s.client(kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.MaxBufferedRecords(1000))
	value := make([]byte, size)
	start := time.Now()
	send(b, cl, bytes/size, func(int64) *kgo.Record { return &kgo.Record{Value: value} }, nil)
	return float64(bytes) / (1 << 20) / time.Since(start).Seconds()
}

// send produces n records, as fast as the server takes them, and returns when all are acknowledged.
// acked, if not nil, is told of each.
func send(b *testing.B, cl *kgo.Client, n int64, record func(i int64) *kgo.Record, acked func(i int64)) {
	b.Helper()
	ctx, failed := context.WithCancelCause(context.Background())
	defer failed(nil)
	done := func(_ *kgo.Record, err error) {
		if err != nil {
			failed(err)
		}
	}
	for i := int64(0); i < n && ctx.Err() == nil; i++ {
		promise := done
		if acked != nil {
			promise = func(r *kgo.Record, err error) {
				acked(i)
				done(r, err)
			}
		}
		cl.Produce(ctx, record(i), promise)
	}
	if err := cl.Flush(context.Background()); err != nil {
		b.Fatal(err)
	}
	if err := context.Cause(ctx); err != nil {
		b.Fatalf("produce: %v", err)
	}
}
