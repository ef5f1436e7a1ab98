package streamstore

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// BenchmarkFileWAL makes bulks durable one after another, on the disk of TMPDIR, through the page
// cache and past it in turns: CPU of the process a GiB and a bulk, and how long a bulk takes.
func BenchmarkFileWAL(b *testing.B) {
	const rounds = 6
	for _, size := range []int{1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20} {
		b.Run(fmt.Sprintf("bulk=%dKiB", size>>10), func(b *testing.B) {
			n := min(400, 256<<20/size)
			var cpu [2]time.Duration
			var took [2][]time.Duration
			for range b.N {
				for round := range rounds {
					for way, fs := range []vfs.FS{vfs.Default, machineFS{vfs.Default}} {
						used, times := writeBulks(b, fs, n, size)
						if round > 0 { // the first meets a disk that is idle
							cpu[way] += used
							took[way] = append(took[way], times...)
						}
					}
				}
			}
			b.ReportMetric(0, "ns/op")
			for way, name := range []string{"cache", "direct"} {
				slices.Sort(took[way])
				bulks := float64(len(took[way]))
				b.ReportMetric(cpu[way].Seconds()/(bulks*float64(size)/(1<<30)), name+"_CPU-s/GiB")
				b.ReportMetric(float64(cpu[way].Microseconds())/bulks, name+"_CPU-µs/bulk")
				b.ReportMetric(float64(took[way][len(took[way])/2].Microseconds()), name+"_p50-µs")
			}
		})
	}
}

// writeBulks writes n bulks of so many bytes to a new WAL; a chunk of a bulk has 1 MiB at most.
func writeBulks(b *testing.B, fs vfs.FS, n, size int) (cpu time.Duration, took []time.Duration) {
	w, err := openFileWAL(fs, b.TempDir(), Node{ID: 1, Epoch: 1}, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	chunks := slices.Collect(slices.Chunk(make([]byte, size), 1<<20))
	began := lab.CPU(b)
	for seq := range n {
		start := time.Now()
		if _, err := w.write(context.Background(), uint64(seq), slices.Clone(chunks)); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	cpu = lab.CPU(b) - began
	if err := w.close(); err != nil {
		b.Fatal(err)
	}
	return cpu, took
}
