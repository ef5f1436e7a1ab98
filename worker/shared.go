package worker

import (
	"cmp"
	"context"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/record"
)

// Shared is what the workers of a node share: cores, memory and metrics.
type Shared struct {
	slots    chan struct{}
	budget   *budget
	readers  sync.Pool // *record.Reader
	metrics  *Metrics
	verdicts *verdicts

	mu      sync.Mutex
	workers map[*Worker]bool // guarded by mu; that run

	// Grace of the workers' [Config]; set before they are opened.
	Grace time.Duration
}

// NewShared lets the workers of a node convert on cores at a time (GOMAXPROCS if zero) and
// hold up to memory bytes of rows and files that are not written (256 MiB if zero). The
// metrics may be nil.
func NewShared(cores int, memory int64, m *Metrics) *Shared {
	if cores <= 0 {
		cores = runtime.GOMAXPROCS(0)
	}
	if memory <= 0 {
		memory = 256 << 20
	}
	return &Shared{
		slots:    make(chan struct{}, cores),
		budget:   &budget{limit: memory, wake: make(chan struct{})},
		readers:  sync.Pool{New: func() any { return new(record.Reader) }},
		metrics:  m,
		verdicts: newVerdicts(),
		workers:  map[*Worker]bool{},
	}
}

// join makes w one of those that [Shared.press] may choose, until leave.
func (s *Shared) join(w *Worker) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.workers[w] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.workers, w)
	}
}

// press has the worker with the most memory in open files write one of them before its time, because
// w got none. That may be w itself; another may wait long for its commit, and need its memory for nothing
// else.
func (s *Shared) press(w *Worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	largest := w
	for o := range s.workers {
		if o.openBytes.Load() > largest.openBytes.Load() && !invariant.Off("worker-gives-memory") {
			largest = o
		}
	}
	select {
	case largest.pressed <- struct{}{}:
	default:
	}
}

// enter waits for a core; false if ctx ended first.
func (s *Shared) enter(ctx context.Context) bool {
	select {
	case s.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *Shared) leave() { <-s.slots }

// Enter and Leave let others share the cores.
func (s *Shared) Enter(ctx context.Context) bool { return s.enter(ctx) }
func (s *Shared) Leave()                         { s.leave() }

// budget bounds memory. What a task adds is reserved before, at its largest, and corrected
// after.
type budget struct {
	limit int64

	mu      sync.Mutex
	used    int64         // guarded by mu
	refused bool          // guarded by mu; somebody waits
	wake    chan struct{} // guarded by mu; closed when memory was freed
}

// reserve takes n bytes if they are there; the first to come gets them whatever the limit.
func (b *budget) reserve(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used > 0 && b.used+n > b.limit && !invariant.Off("worker-memory") {
		b.refused = true
		return false
	}
	b.used += n
	return true
}

// add corrects what is used by n.
func (b *budget) add(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used += n
	if n < 0 && b.refused {
		b.refused = false
		close(b.wake)
		b.wake = make(chan struct{})
	}
}

// short reports whether memory was refused, and none was freed since.
func (b *budget) short() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refused
}

// freed is closed when memory was freed after a refusal.
func (b *budget) freed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wake
}

func (c *Config) setDefaults() {
	if c.TargetFileBytes <= 0 {
		c.TargetFileBytes = 64 << 20
	}
	if c.ChunkBytes <= 0 {
		c.ChunkBytes = 1 << 20
	}
	if c.MaxLanes <= 0 {
		c.MaxLanes = runtime.GOMAXPROCS(0)
	}
	if c.Retry <= 0 {
		c.Retry = time.Second
	}
	if c.Grace <= 0 {
		c.Grace = time.Hour
	}
	if c.Gather <= 0 {
		c.Gather = time.Second
	}
	if c.Offer <= 0 {
		c.Offer = 30 * time.Second
	}
}

func sortedKeys[V any](m map[int32]V) []int32 { return slices.Sorted(maps.Keys(m)) }

func sortedParts(parts map[int32]*part) []*part {
	return slices.SortedFunc(maps.Values(parts), func(a, b *part) int { return cmp.Compare(a.index, b.index) })
}

func offsets(at map[int32]int64) []control.Offset {
	out := make([]control.Offset, 0, len(at))
	for _, p := range sortedKeys(at) {
		out = append(out, control.Offset{Partition: p, Offset: at[p]})
	}
	return out
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
