package worker

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/record"
)

// holds returns what the budget is used for.
func (b *budget) holds() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// events returns n events.
func (p *path) events(n int) []record.Record {
	out := make([]record.Record, n)
	for i := range out {
		out[i] = event(p.t, int64(i))
	}
	return out
}

// A topic whose records never end takes neither the cores nor the memory of the node from a quiet
// one beside it, and all workers together hold no more than the budget; when it ends it is in its
// table, too.
func TestFloodLeavesCoresAndMemoryToOthers(t *testing.T) {
	const limit, chunk = 1 << 20, 32 << 10
	shared := NewShared(1, limit, nil)
	flood, quiet := newPath(t, 3), newPath(t, 2)
	for _, p := range []*path{flood, quiet} {
		p.shared, p.worker.ChunkBytes = shared, chunk
	}
	var most atomic.Int64 // that was held when something was read
	var ended atomic.Bool
	look := func() {
		held := shared.budget.holds()
		for most.Load() < held {
			most.Store(held)
		}
	}
	more := flood.events(300)
	for _, l := range flood.logs {
		l.reading = func() { // there is more to read after each read than before
			look()
			if !ended.Load() {
				for range 5 {
					l.append(t, slices.Clone(more)...)
				}
			}
		}
	}
	for _, l := range quiet.logs {
		l.reading = look
	}
	flood.produce(1)
	flood.start()
	quiet.start()
	for range 10 {
		quiet.produce(5)
		quiet.committed()
	}
	ended.Store(true)
	flood.committed()
	if n := most.Load(); n > limit || n < limit/2 {
		t.Errorf("%d bytes were held, want up to %d and more than half of that", n, limit)
	}
}

// A topic that only waits for its commit gives the memory of its open files to one that comes: they are
// written before their time.
func TestIdleTopicGivesMemoryUp(t *testing.T) {
	const limit, chunk = 1 << 20, 32 << 10
	shared := NewShared(1, limit, nil)
	idle, other := newPath(t, 1), newPath(t, 1)
	for _, p := range []*path{idle, other} {
		p.shared, p.worker.ChunkBytes = shared, chunk
	}
	idle.produce(1)
	idle.start()
	idle.committed() // there is a table
	idle.crash()
	idle.cfg.Lag = time.Hour
	idle.start()
	for shared.budget.holds() <= limit-taskBytes(chunk) {
		idle.logs[0].append(t, idle.events(gatherRecords)...)
		_, end := idle.logs[0].Bounds()
		idle.wait(func() bool { return int64(idle.rowsRead()) == end-1 }, func() string { return "the rows to be read" })
	}
	other.produce(1)
	other.start()
	other.committed()
}
