package objectstore_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/objectstore"
)

const benchBytes = 4 << 20

func bench(b *testing.B, bytes int, do func(i int) error) {
	b.ReportAllocs()
	b.SetBytes(int64(bytes))
	begin, i := lab.CPU(b), 0
	for b.Loop() {
		if err := do(i); err != nil {
			b.Fatal(err)
		}
		i++
	}
	b.ReportMetric(float64((lab.CPU(b)-begin).Microseconds())/float64(b.N)/1000, "cpu-ms/op")
}

func benchBucket(b *testing.B, bucket objectstore.Bucket) {
	ctx := context.Background()
	half := make([]byte, benchBytes/2)
	for i := range half {
		half[i] = byte(i * 7 >> 5)
	}
	run := fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())
	b.Run("Put4MiB", func(b *testing.B) {
		bench(b, benchBytes, func(i int) error { return bucket.Put(ctx, "put", half, half) })
	})
	b.Run("PutIfAbsent4KiB", func(b *testing.B) {
		n := 0
		bench(b, 4096, func(int) error {
			n++
			return bucket.PutIfAbsent(ctx, fmt.Sprintf("create/%s/%d", run, n), half[:4096])
		})
	})
	b.Run("Get4MiB", func(b *testing.B) {
		bench(b, benchBytes, func(int) error { _, err := bucket.Get(ctx, "put", 0, -1); return err })
	})
	b.Run("Get4KiB", func(b *testing.B) {
		bench(b, 4096, func(i int) error { _, err := bucket.Get(ctx, "put", int64(i%512)*4096, 4096); return err })
	})
}

func BenchmarkMemory(b *testing.B) { benchBucket(b, objectstore.NewMemory()) }

func BenchmarkDir(b *testing.B) {
	d, err := objectstore.OpenDir(vfs.Default, b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	benchBucket(b, d)
}

func BenchmarkS3(b *testing.B) { benchBucket(b, openVersitygw(b)("bench")) }

func BenchmarkS3TLS(b *testing.B) { benchBucket(b, openVersitygwTLS(b)) }
