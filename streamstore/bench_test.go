package streamstore

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/objectstore"
)

// discard is a bucket that keeps WAL objects and forgets data objects, so that a benchmark
// measures the store and not the memory of a fake.
type discard struct{ objectstore.Bucket }

func (d discard) Put(context.Context, string, ...[]byte) error { return nil }

func (d discard) PutIfAbsent(ctx context.Context, key string, body ...[]byte) error { return nil }

// BenchmarkAppend is the throughput of appends by 4 goroutines to 16 streams, each batch
// durable before the goroutine is 64 batches further.
func BenchmarkAppend(b *testing.B) {
	for _, kind := range []WALKind{WALObject, WALFile} {
		for _, size := range []int{1 << 10, 16 << 10, 256 << 10} {
			b.Run(fmt.Sprintf("wal=%s/batch=%dKiB", kind, size>>10), func(b *testing.B) {
				e := newEnv(b)
				e.bucket = discard{e.memory}
				s := e.open(Config{WAL: kind, WALDir: b.TempDir(), CleanInterval: -1, WALLinger: 10 * time.Millisecond})
				streams := e.create(s, 16, 1)
				payload := make([]byte, size)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				const workers, window = 4, 64
				var wg sync.WaitGroup
				b.ResetTimer()
				for w := range workers {
					wg.Go(func() {
						slots := make(chan struct{}, window)
						done := func(err error) {
							if err != nil {
								b.Error(err)
							}
							<-slots
						}
						for i := w; i < b.N; i += workers {
							slots <- struct{}{}
							if _, err := streams[i%len(streams)].Append(context.Background(), RecordBatch{Count: 10, Payload: payload}, done); err != nil {
								b.Error(err)
								return
							}
						}
						for range window {
							slots <- struct{}{}
						}
					})
				}
				wg.Wait()
			})
		}
	}
}

// BenchmarkTailRead is a fetch of 64 batches of 1 KiB from the log cache.
func BenchmarkTailRead(b *testing.B) {
	e := newEnv(b)
	s := e.open(Config{WALLinger: time.Millisecond, CleanInterval: -1})
	st := e.create(s, 1, 1)[0]
	appendAll(b, st, numbered("r", 10_000, 1<<10)...)
	b.SetBytes(64 << 10)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		at := int64(i*64) % 9_900
		if _, err := st.Fetch(context.Background(), at, 10_000, 64<<10); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkColdReadMemory reads a stream of 64 MiB from start to end, out of objects in memory:
// what reading costs without a server.
func BenchmarkColdReadMemory(b *testing.B) {
	e := newEnv(b)
	s := e.open(Config{WALLinger: time.Millisecond, CleanInterval: -1, BlockCacheBytes: 32 << 20})
	st := e.create(s, 1, 1)[0]
	appendAll(b, st, numbered("r", 4<<10, 16<<10)...)
	if err := s.upload.flush(context.Background()); err != nil {
		b.Fatal(err)
	}
	s.cache.evict(0)
	b.SetBytes(64 << 20)
	b.ReportAllocs()
	before := e.gets.Load()
	n := 0
	for b.Loop() {
		for at, end := int64(0), st.ConfirmOffset(); at < end; {
			batches, err := st.Fetch(context.Background(), at, end, 1<<20)
			if err != nil {
				b.Fatal(err)
			}
			at = batches[len(batches)-1].End()
		}
		n++
	}
	b.ReportMetric(float64(e.gets.Load()-before)/float64(n), "GETs/op")
}
