package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// mostGarbagePercent is how much the heap grows between collections at most, in percent of what is in use: half
	// of the runtime's default, which would double what the caches hold.
	mostGarbagePercent = 50
	// leastGarbagePercent bounds how often a large heap is collected.
	leastGarbagePercent = 10
	// garbagePerScanned times what a collection looks at may wait for it, which bounds what it costs.
	garbagePerScanned = 3
)

// limitGarbage lets the heap grow by limit bytes between collections, or a few times what a collection has to look at, within
// the two percentages above, unless GOGC says otherwise. Most of a large heap is records, which have no pointers:
// a collection takes no longer because of them, and the garbage that is waited for need not be more, either.
func limitGarbage(limit int64) {
	if os.Getenv("GOGC") != "" {
		return
	}
	heap := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/total:bytes"}}
	percent := mostGarbagePercent
	debug.SetGCPercent(percent)
	afterEachCollection(func() {
		metrics.Read(heap)
		p := garbagePercent(int64(heap[0].Value.Uint64()), int64(heap[1].Value.Uint64()), limit)
		if p != percent { // to set it stops all goroutines for a moment
			percent = p
			debug.SetGCPercent(p)
		}
	})
}

// garbagePercent is by how much a heap grows in which live bytes are in use, of which scanned bytes may hold pointers.
func garbagePercent(live, scanned, limit int64) int {
	limit = max(limit, garbagePerScanned*scanned)
	return int(min(max(100*limit/max(live, 1), leastGarbagePercent), mostGarbagePercent))
}

// afterEachCollection calls do after each garbage collection, until the process ends.
func afterEachCollection(do func()) {
	type sentinel struct{ _ *int } // with a pointer: what has none may share its place with others that stay
	var watch func()
	watch = func() {
		runtime.AddCleanup(new(sentinel), func(struct{}) {
			do()
			watch()
		}, struct{}{})
	}
	watch()
}
