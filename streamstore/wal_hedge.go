package streamstore

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// hedgeWindow is how many PUTs of a size class are remembered, hedgeEnough how many it
	// takes to know the slowest in a hundred.
	hedgeWindow = 128
	hedgeEnough = 100
	// hedgeClasses are the size classes: below 32 KiB, 128 KiB, 512 KiB, 2 MiB and 8 MiB, and the rest.
	hedgeClasses = 6
	// hedgeBurst is how many hedges may follow one another, if there was none for long.
	hedgeBurst = 4
)

// A hedger decides when a PUT without an answer is sent a second time, its hedge: when it
// takes longer than 99 of 100 PUTs of about its size. Hedges stay a small share of all
// PUTs even when the whole store has become slow: then another request would not help.
type hedger struct {
	min      time.Duration // no PUT is hedged earlier; negative: none is
	inflight int           // most hedges at a time
	percent  int           // of PUTs, in the long run

	sent, won atomic.Int64

	mu      sync.Mutex
	classes [hedgeClasses]latencies // guarded by mu
	running int                     // guarded by mu
	credit  int                     // guarded by mu; hundredths of a hedge
}

// latencies are the last of a size class, in a ring.
type latencies struct {
	ring  [hedgeWindow]time.Duration
	count int // of all so far
}

func newHedger(cfg Config) *hedger {
	return &hedger{min: cfg.WALHedgeMin, inflight: cfg.WALHedgeInflight, percent: cfg.WALHedgePercent}
}

func hedgeClass(size int64) int {
	return min(max(bits.Len64(uint64(size))-14, 0)/2, hedgeClasses-1)
}

// after returns when a PUT of size bytes that begins now is due for its hedge; ok is false
// if it gets none, because too few of its size are known.
func (h *hedger) after(size int64) (d time.Duration, ok bool) {
	if h.min < 0 {
		return 0, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.credit = min(h.credit+h.percent, hedgeBurst*100)
	l := &h.classes[hedgeClass(size)]
	if l.count < hedgeEnough {
		return 0, false
	}
	known := slices.Clone(l.ring[:min(l.count, hedgeWindow)])
	slices.Sort(known)
	return max(known[(len(known)*99+99)/100-1], h.min), true
}

// observe takes the time from the first sending of a PUT to its first success.
func (h *hedger) observe(size int64, took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := &h.classes[hedgeClass(size)]
	l.ring[l.count%hedgeWindow] = took
	l.count++
}

// start takes leave to send a hedge; end gives back its place among those under way.
func (h *hedger) start() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.running >= h.inflight || h.credit < 100 {
		return false
	}
	h.running++
	h.credit -= 100
	h.sent.Add(1)
	return true
}

func (h *hedger) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running--
}
