package streamstore_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/streamstore"
)

// BenchmarkOpenStreams opens 100,000 streams on one node, appends a batch to each and uploads
// them: how long each step takes, and what the open streams take of memory, as heap and as
// the process's resident pages, which hold the metadata database too.
func BenchmarkOpenStreams(b *testing.B) {
	for _, kind := range []string{"memory", "sqlite"} {
		b.Run("metadata="+kind, func(b *testing.B) {
			for range b.N {
				openManyStreams(b, kind, 100_000)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func openManyStreams(b *testing.B, kind string, n int) {
	ctx := context.Background()
	var streams streamstore.StreamManager
	var objects streamstore.ObjectManager
	if kind == "memory" {
		m := streamstore.NewMemoryManager()
		streams, objects = m, m
	} else {
		m, err := metadata.Open(ctx, "sqlite:"+b.TempDir()+"/metadata.db", nil)
		if err != nil {
			b.Fatal(err)
		}
		defer m.Close()
		streams, objects = m, m
	}
	store, err := streamstore.Open(ctx, streamstore.Config{CleanInterval: -1, CompactionInterval: -1}, 1, objectstore.NewMemory(), streams, objects, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close(ctx)
	first, err := store.CreateStreams(ctx, n)
	if err != nil {
		b.Fatal(err)
	}
	open := make([]streamstore.OpenRequest, n)
	for i := range open {
		open[i] = streamstore.OpenRequest{ID: first + streamstore.StreamID(i), Epoch: 1}
	}
	heap, resident := memory(b)
	began := time.Now()
	handles, err := store.OpenStreams(ctx, open)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(time.Since(began).Seconds(), "s/open")
	heapOpen, residentOpen := memory(b)
	b.ReportMetric(float64(heapOpen-heap)/float64(n), "heap-B/stream")
	b.ReportMetric(float64(residentOpen)/(1<<20), "MiB-resident")
	b.ReportMetric(float64(residentOpen-resident)/float64(n), "resident-B/stream")

	began = time.Now()
	var done sync.WaitGroup
	payload := []byte(strings.Repeat("x", 100))
	for _, st := range handles {
		done.Add(1)
		if _, err := st.Append(ctx, streamstore.RecordBatch{Count: 1, MaxTimestamp: -1, Payload: payload}, func(err error) {
			if err != nil {
				b.Error(err)
			}
			done.Done()
		}); err != nil {
			b.Fatal(err)
		}
	}
	done.Wait()
	b.ReportMetric(time.Since(began).Seconds(), "s/append")
	began = time.Now()
	if err := store.CloseStreams(ctx, handles); err != nil { // uploads them
		b.Fatal(err)
	}
	b.ReportMetric(time.Since(began).Seconds(), "s/upload+close")
	_, residentEnd := memory(b)
	b.ReportMetric(float64(residentEnd)/(1<<20), "MiB-resident-at-end")
	runtime.KeepAlive(handles)
}

// memory returns the live heap and the resident pages of the process, in bytes.
func memory(b *testing.B) (heap, resident int64) {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		b.Skip(fmt.Errorf("resident memory: %w", err))
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return int64(m.HeapAlloc), pages * int64(os.Getpagesize())
}
