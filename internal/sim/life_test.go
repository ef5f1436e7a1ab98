package sim

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tabletopic/tabletopic/internal/strictfs"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/streamstore"
)

// A node lives many lives. Its loop starts one, lets it be, and decides how it ends.
type node struct {
	w    *world
	id   streamstore.NodeID
	r    *rand.Rand // of the loop
	wal  streamstore.WALKind
	disk *vfs.MemFS // of the file WAL; the loop's

	mu    sync.Mutex
	begun int     // guarded by mu; lives, also those that never served
	lives []*life // guarded by mu; those that are not over
}

func (n *node) run(ctx context.Context) {
	_ = wait(ctx, time.Duration(n.r.Int64N(int64(n.w.plan.pace))))
	for ctx.Err() == nil {
		l := n.start(ctx)
		if l == nil {
			continue
		}
		l.serve()
		t := time.NewTimer(time.Duration(n.r.Int64N(int64(n.w.plan.life))))
		select {
		case <-t.C:
		case <-l.store.Fenced():
		case <-ctx.Done():
		}
		t.Stop()
		n.end(ctx, l)
		if n.r.IntN(3) > 0 {
			_ = wait(ctx, time.Duration(n.r.Int64N(int64(n.w.plan.down))))
		}
	}
}

// start begins a life; nil if it dies in the attempt.
func (n *node) start(ctx context.Context) *life {
	l := n.newLife()
	limit := context.CancelFunc(func() {})
	opening := l.ctx
	if n.r.IntN(6) == 0 { // it dies while it recovers
		opening, limit = context.WithTimeout(l.ctx, time.Duration(n.r.Int64N(int64(2*time.Second))))
	}
	err := l.open(opening)
	limit()
	switch {
	case err == nil:
		return l
	case opening.Err() != nil:
		l.log("dies before it serves: %v", err)
	case l.expected(err):
		l.log("does not start: %v", err)
	default:
		n.w.fail("%s does not start: %v", l.name, err)
	}
	l.crash()
	_ = wait(ctx, n.w.plan.pace)
	return nil
}

// end ends the life in one way or another. A zombie goes on beside the node's next life.
func (n *node) end(ctx context.Context, l *life) {
	fate := n.r.IntN(8)
	switch {
	case ctx.Err() != nil:
		fate = n.r.IntN(2) // no zombies at the end
	case fate == 2 && n.wal == streamstore.WALFile:
		n.losePower()
		return
	}
	switch fate {
	case 0, 2, 3:
		l.log("crashes")
		l.crash()
	case 1:
		l.close()
	case 4, 5: // a second process, while this one serves
		l.log("gets a rival")
		n.zombie(l, func() {})
	case 6:
		l.log("stands still")
		n.zombie(l, l.still())
	case 7:
		l.log("is cut off")
		l.cut(true)
		n.zombie(l, func() { l.cut(false) })
	}
}

// losePower ends all lives of the node at once; its disk loses what was not synced.
func (n *node) losePower() {
	n.w.power <- struct{}{}
	synctest.Wait() // nobody is told anything between the loss and the end
	disk := n.disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: n.r.IntN(101), RNG: n.r})
	n.mu.Lock()
	lives := slices.Clone(n.lives)
	n.mu.Unlock()
	for _, l := range lives {
		l.log("loses power")
		l.crash()
	}
	n.disk = disk
	<-n.w.power
}

// zombie lets the life be until some time has passed, resumes it, and ends it when it has seen
// that it is fenced, or a while later.
func (n *node) zombie(l *life, resume func()) {
	pause, rest := time.Duration(n.r.Int64N(int64(2*n.w.plan.life))), time.Duration(n.r.Int64N(int64(n.w.plan.life)))
	n.w.zombies.Go(func() {
		_ = wait(l.ctx, pause)
		l.log("is back")
		resume()
		t := time.NewTimer(rest)
		defer t.Stop()
		select {
		case <-l.store.Fenced():
			_ = wait(l.ctx, time.Second) // its clients learn it
		case <-t.C:
		case <-l.ctx.Done():
		}
		l.log("ends: %v", l.store.Err())
		l.crash()
	})
}

// serves tells whether a life of the node goes on.
func (n *node) serves() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.lives) > 0
}

// replace lets the lives of the node end by themselves: another node recovers it, or the
// database that they use is lost.
func (n *node) replace() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.begun++
}

// A life is one process: a store with its views of bucket and metadata, and its clients.
type life struct {
	n      *node
	number int
	name   string
	ctx    context.Context // of all that the process does
	cancel context.CancelFunc

	faulty *objectstore.Faulty
	bucket objectstore.Bucket
	line   *line
	store  *streamstore.Store
	hangUp func(context.Context) // ends the connection to the metadata
	path   string                // of the database, with SQLite

	clients  sync.WaitGroup
	stopping chan struct{} // closed when clients shall end
	control  chan struct{} // cap 1: one opens and closes streams at a time

	mu      sync.Mutex
	over    bool                             // guarded by mu; it crashed or was closed
	stale   []*handle                        // guarded by mu; the last that were closed, or opened anew
	handles map[streamstore.StreamID]*handle // guarded by mu; open
}

// A handle is a stream that a life has open.
type handle struct {
	l     *life
	s     *stream
	st    *streamstore.Stream
	epoch int64

	turn   chan struct{} // cap 1: held by who appends, so that batches are numbered in order
	seq    int64         // of the next append; whoever has the turn
	next   int64         // its offset; whoever has the turn
	trims  chan struct{} // cap 1: held by who trims
	cursor atomic.Int64  // where a consumer has read to

	mu       sync.Mutex
	answered int64 // guarded by mu; appends whose done was called
	failed   bool  // guarded by mu; one of them has failed
	closing  bool  // guarded by mu; by a client
}

func (n *node) newLife() *life {
	n.mu.Lock()
	n.begun++
	number := n.begun
	n.mu.Unlock()
	w := n.w
	l := &life{
		n: n, number: number, name: fmt.Sprintf("%d.%d", n.id, number),
		stopping: make(chan struct{}), control: make(chan struct{}, 1), handles: map[streamstore.StreamID]*handle{},
		hangUp: func(context.Context) {}, path: w.database(),
	}
	l.ctx, l.cancel = context.WithCancel(w.failing)
	hash := fnv.New64a()
	fmt.Fprint(hash, w.seed, l.name)
	faults := w.plan.faults
	faults.Seed = hash.Sum64()
	l.faulty = objectstore.NewFaulty(w.disk, faults)
	l.bucket = objectstore.Observe(inFlight{l.faulty, &w.sent}, &meter{w: w, of: l.name})
	l.line = &line{seed: hash.Sum64(), seen: map[string]int{}, latency: w.plan.latency, away: w.plan.away, lost: w.plan.lost}
	n.mu.Lock()
	n.lives = append(n.lives, l)
	n.mu.Unlock()
	return l
}

// open connects to the metadata and opens the store.
func (l *life) open(ctx context.Context) error {
	l.log("starts")
	meta, hangUp, err := l.n.w.manager(ctx, l.path, l.bucket, l.n.w.trace.log(l.name))
	if err != nil {
		return err
	}
	l.line.managers, l.hangUp = meta, hangUp
	cfg := l.n.w.plan.config
	cfg.WAL, cfg.WALDir, cfg.WALFS = l.n.wal, "/wal", strictfs.FS{FS: l.n.disk}
	cfg.Jitter = l.jitter
	if s, ok := meta.(*metadata.Store); ok {
		cfg.Settled = s.Settled
	}
	l.store, err = streamstore.Open(ctx, cfg, l.n.id, l.bucket, l.line, l.line, l.n.w.trace.log(l.name))
	return err
}

// jitter returns numbers that seed and moment decide, whoever asks first.
func (l *life) jitter() float64 {
	return rand.New(rand.NewPCG(l.n.w.seed, uint64(time.Now().UnixNano()))).Float64()
}

func (l *life) log(format string, args ...any) { l.n.w.trace.add(l.name, format, args...) }

// cut disconnects the life from everything, or connects it again.
func (l *life) cut(off bool) {
	l.faulty.Cut(off)
	l.line.setCut(off)
}

// still stops every request of the life, and every answer, until resume.
func (l *life) still() (resume func()) {
	all := func(objectstore.Op, string) bool { return true }
	before, after := l.faulty.Hold(objectstore.Before, all), l.faulty.Hold(objectstore.After, all)
	gate := make(chan struct{})
	l.line.setStill(gate)
	return sync.OnceFunc(func() {
		before.Release(nil)
		after.Release(nil)
		l.line.setStill(nil)
		close(gate)
	})
}

// replaced tells whether a later life of the node began, which may fence this one.
func (l *life) replaced() bool {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	return l.n.begun > l.number
}

func (l *life) isOver() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

// end marks the life as over; it reports whether it was before.
func (l *life) end() bool {
	l.mu.Lock()
	over := l.over
	l.over = true
	l.mu.Unlock()
	if !over {
		close(l.stopping)
	}
	return over
}

// crash ends the process without a word.
func (l *life) crash() {
	if l.end() {
		return
	}
	l.cut(true)
	l.cancel()
	l.clients.Wait()
	if l.store != nil {
		_ = l.store.Close(l.ctx)
	}
	l.hangUp(l.ctx)
	l.forget()
}

// close ends the process as an operator would. What it cannot upload stays in the WAL.
func (l *life) close() {
	if l.end() {
		return
	}
	l.clients.Wait()
	ctx, cancel := context.WithTimeout(l.ctx, 30*time.Second)
	defer cancel()
	err := l.store.Close(ctx)
	l.log("closed: %v", err)
	l.check(err, "close store")
	l.cut(true)
	l.cancel()
	l.hangUp(l.ctx)
	l.forget()
}

func (l *life) forget() {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	for i, other := range l.n.lives {
		if other == l {
			l.n.lives = append(l.n.lives[:i:i], l.n.lives[i+1:]...)
			return
		}
	}
}

// expected tells whether a fault of the simulation explains the error. Whatever the faults,
// objects that are named do not go, and nothing is corrupt that was not read with a bit wrong.
func (l *life) expected(err error) bool {
	if errors.Is(err, streamstore.ErrCorrupt) || strings.Contains(err.Error(), "newer version") {
		return l.n.w.plan.faults.Flipped > 0
	}
	for _, e := range []error{objectstore.ErrInjected, errAway} {
		if errors.Is(err, e) {
			return true
		}
	}
	if l.ctx.Err() != nil || l.isOver() || l.replaced() {
		for _, e := range []error{
			streamstore.ErrNodeFenced, streamstore.ErrStreamFenced, streamstore.ErrStoreClosed, streamstore.ErrStreamClosed, streamstore.ErrConflict,
			objectstore.ErrNotFound, objectstore.ErrExists, context.Canceled, context.DeadlineExceeded, streamstore.ErrOffsetOutOfRange, streamstore.ErrStreamNotExist,
		} {
			if errors.Is(err, e) {
				return true
			}
		}
		return l.ctx.Err() != nil || l.n.w.plan.sql // of the database, that it is closed
	}
	return false
}

// check fails the world if an error of an operation is not explained.
func (l *life) check(err error, format string, args ...any) {
	if err != nil && !l.expected(err) {
		l.n.w.fail("%s: %s: %v", l.name, fmt.Sprintf(format, args...), err)
	}
}

// watch fails the world when the life ends by itself, or holds too much.
func (l *life) watch() {
	for {
		select {
		case <-l.stopping:
			return
		case <-l.store.Fenced():
			if !l.isOver() && !l.replaced() && !l.expected(l.store.Err()) {
				l.n.w.fail("%s ended by itself: %v", l.name, l.store.Err())
			}
			return
		case <-time.After(l.n.w.plan.chaos / 50):
		}
		l.measure()
	}
}

// measure compares what the store holds with its limits.
func (l *life) measure() {
	cfg := l.n.w.plan.config
	record := int64(l.n.w.plan.payload) + 4<<10
	limits := map[string]int64{
		"tabletopic_stream_wal_unflushed_bytes": cfg.WALUnflushedBytes + record,
		"tabletopic_stream_unuploaded_bytes":    cfg.LogCacheBytes + 2*(cfg.WALBytes+record),
		"tabletopic_stream_log_cache_bytes":     cfg.LogCacheBytes + cfg.WALBytes + record,
		"tabletopic_stream_block_cache_bytes":   cfg.BlockCacheBytes,
	}
	registry := prometheus.NewRegistry()
	for _, c := range l.store.Collectors() {
		registry.MustRegister(c)
	}
	families, err := registry.Gather()
	if err != nil {
		l.n.w.fail("%s: metrics: %v", l.name, err)
	}
	for _, f := range families {
		limit, ok := limits[f.GetName()]
		if !ok {
			continue
		}
		delete(limits, f.GetName())
		if v := int64(f.GetMetric()[0].GetGauge().GetValue()); v > limit {
			l.n.w.fail("%s: %s is %d, the limit is %d", l.name, f.GetName(), v, limit)
		}
	}
	for name := range limits {
		l.n.w.fail("%s: no metric %s", l.name, name)
	}
}
