package streamstore

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/objectstore"
)

// benchS3 returns a client of a new S3 server.
func benchS3(b *testing.B) *objectstore.S3 {
	endpoint, access, secret := lab.Versitygw(b)
	s, err := objectstore.NewS3(b.Context(), objectstore.S3Config{
		Bucket: "bucket", Region: lab.Region, Endpoint: endpoint, PathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(access, secret, ""),
	})
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// appendWindow appends n bytes in batches of size, at most window of them not yet durable, to
// the streams in turn, and returns when all are durable. The last bulk does not linger.
func appendWindow(b *testing.B, s *Store, streams []*Stream, n, size, window int) {
	payload := make([]byte, size)
	slots := make(chan struct{}, window)
	done := func(err error) {
		if err != nil {
			b.Error(err)
		}
		<-slots
	}
	for i := range n / size {
		slots <- struct{}{}
		if _, err := streams[i%len(streams)].Append(context.Background(), RecordBatch{Count: 1, MaxTimestamp: -1, Payload: payload}, done); err != nil {
			b.Fatal(err)
		}
	}
	s.wal.flush()
	for range window {
		slots <- struct{}{}
	}
}

// BenchmarkAppendS3 appends to a WAL on an S3 server, and in turns has the bare client put as
// many bytes there, in objects of 8 MiB, as many at a time. The ratio is that of the rates. With
// uploads each byte is put a second time, by both.
func BenchmarkAppendS3(b *testing.B) {
	const round, rounds, warm = 128 << 20, 8, 4
	for _, uploads := range []bool{false, true} {
		b.Run(fmt.Sprintf("uploads=%v", uploads), func(b *testing.B) {
			var bare, own time.Duration
			moved := 0
			for range b.N {
				client := benchS3(b)
				e := newEnv(b)
				e.bucket = client
				cfg := onlyWAL()
				cfg.UploadInterval = time.Hour
				if !uploads {
					cfg.UploadBytes, cfg.LogCacheBytes = round+32<<20, 2*round+64<<20
				}
				s := e.open(cfg)
				streams := e.create(s, 16, 1)
				for r := range warm + rounds { // the heap grows in the first
					n := round
					if uploads {
						n *= 2
					}
					alone := putBare(b, client, fmt.Sprint("bare/", r), n, s.cfg.WALInflight)
					began := time.Now()
					appendWindow(b, s, streams, round, 64<<10, 2048)
					took := time.Since(began)
					if err := s.upload.flush(b.Context()); err != nil {
						b.Fatal(err)
					}
					if uploads {
						took = time.Since(began)
					}
					if r >= warm {
						bare, own, moved = bare+alone, own+took, moved+n
					}
				}
				s.abandon()
			}
			b.ReportMetric(float64(moved)/1e6/bare.Seconds(), "bare_MB/s")
			b.ReportMetric(float64(moved)/1e6/own.Seconds(), "MB/s")
			b.ReportMetric(bare.Seconds()/own.Seconds(), "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// putBare puts n bytes in objects of 8 MiB, inflight at a time, and returns how long it took.
func putBare(b *testing.B, client *objectstore.S3, prefix string, n, inflight int) time.Duration {
	body := make([]byte, 8<<20)
	began := time.Now()
	var wg sync.WaitGroup
	slots := make(chan struct{}, inflight)
	for i := range n / len(body) {
		slots <- struct{}{}
		wg.Go(func() {
			if err := client.PutIfAbsent(b.Context(), fmt.Sprintf("%s/%d", prefix, i), body); err != nil {
				b.Error(err)
			}
			<-slots
		})
	}
	wg.Wait()
	return time.Since(began)
}

// keepWAL is a memory store for the WAL; it forgets data objects, or it would be full.
type keepWAL struct{ objectstore.Bucket }

func (k keepWAL) Put(context.Context, string, ...[]byte) error { return nil }

// BenchmarkAppendMemory is what one core moves from appends through WAL, log cache and upload,
// into memory.
func BenchmarkAppendMemory(b *testing.B) {
	for _, size := range []int{1 << 10, 16 << 10, 256 << 10} {
		b.Run(fmt.Sprintf("batch=%dKiB", size>>10), func(b *testing.B) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			e := newEnv(b)
			e.bucket = keepWAL{e.memory}
			s := e.open(onlyWAL())
			streams := e.create(s, 16, 1)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			appendWindow(b, s, streams, b.N*size, size, 64<<20/size)
		})
	}
}

// BenchmarkAppendSlowPut is one producer, with a window of what is not acknowledged yet, on a
// store that takes 100 ms for a PUT.
func BenchmarkAppendSlowPut(b *testing.B) {
	for _, window := range []int{5 << 20, 8 << 20, 32 << 20} {
		b.Run(fmt.Sprintf("window=%dMiB", window>>20), func(b *testing.B) {
			const total, size = 256 << 20, 256 << 10
			var took time.Duration
			for b.Loop() {
				e := newEnv(b)
				e.bucket = keepWAL{newSlowPuts(e.memory, 100*time.Millisecond)}
				s := e.open(onlyWAL())
				st := e.create(s, 1, 1)
				began := time.Now()
				appendWindow(b, s, st, total, size, window/size)
				took += time.Since(began)
				s.abandon()
			}
			b.ReportMetric(float64(b.N*total)/(1<<20)/took.Seconds(), "MiB/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkAppendLatency is one producer that awaits each answer, on an S3 server: what an append
// takes beside the PUT and half the linger.
func BenchmarkAppendLatency(b *testing.B) {
	e := newEnv(b)
	client := benchS3(b)
	e.bucket = client
	s := e.open(onlyWAL())
	st := e.create(s, 1, 1)[0]
	payload := strings.Repeat("x", 1<<10)
	var put, took time.Duration
	for i := 0; b.Loop(); i++ {
		began := time.Now()
		if err := client.Put(b.Context(), fmt.Sprint("bare/", i), []byte(payload)); err != nil {
			b.Fatal(err)
		}
		put += time.Since(began)
		began = time.Now()
		appendAll(b, st, payload)
		took += time.Since(began)
	}
	b.ReportMetric(float64(put.Microseconds())/1e3/float64(b.N), "ms_PUT")
	b.ReportMetric(float64(took.Microseconds())/1e3/float64(b.N), "ms")
	b.ReportMetric(0, "ns/op")
}
