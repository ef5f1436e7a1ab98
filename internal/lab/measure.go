package lab

import (
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"
)

// CPU is what the process of the test has used, user and system, whatever else the machine does.
func CPU(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Median is the one in the middle, or between the two that are. It leaves v as it is, which is not empty.
func Median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// Heap is how many bytes live objects take on the heap.
func Heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what the first one found is swept
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
