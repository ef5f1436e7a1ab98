package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

// What waits to be collected is bounded in bytes, whatever the records in memory, and by what a collection costs.
func TestGarbageIsBoundedInBytes(t *testing.T) {
	const limit, mib = 64 << 20, 1 << 20
	for _, c := range []struct {
		live, scanned int64
		percent       int
	}{
		{0, 0, 50}, {20, 10, 50}, {128, 10, 50}, {160, 10, 40}, {320, 10, 20}, {640, 10, 10}, {4096, 10, 10},
		{320, 40, 37}, {320, 100, 50},
	} {
		if got := garbagePercent(c.live*mib, c.scanned*mib, limit); got != c.percent {
			t.Errorf("%d MiB in use, %d of them with pointers: the heap grows by %d %%, want %d %%", c.live, c.scanned, got, c.percent)
		}
	}
}

// The bound follows what is in use, collection by collection.
func TestGarbageIsBoundedWhileTheHeapGrowsAndShrinks(t *testing.T) {
	t.Setenv("GOGC", "")
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	limitGarbage(8 << 20)
	percent := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	reaches := func(what string, ok func(percent uint64) bool) {
		t.Helper()
		for deadline := time.Now().Add(invariant.Patience(time.Minute)); ; runtime.Gosched() {
			runtime.GC()
			metrics.Read(percent)
			if got := percent[0].Value.Uint64(); ok(got) {
				return
			} else if time.Now().After(deadline) {
				t.Fatalf("%s: the heap grows by %d %%", what, got)
			}
		}
	}
	held := make([]byte, 1<<30) // untouched: no more than an address
	reaches("1 GiB is in use", func(p uint64) bool { return p < 20 })
	runtime.KeepAlive(held)
	held = nil
	reaches("nothing is in use any more", func(p uint64) bool { return p >= 20 })
}
