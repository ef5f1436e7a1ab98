package sim

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/streamstore"
)

// A plan is what a seed decides once for a whole run.
type plan struct {
	nodes, streams, clients int
	sql                     bool          // metadata in SQLite, with a copy in the bucket
	restores                int           // how often its database is lost
	chaos                   time.Duration // how long nodes come and go
	life, down              time.Duration // the longest that a node lives, and is away
	think                   time.Duration // the longest that a client waits between operations
	pace                    time.Duration // the unit of the stores' intervals
	payload                 int           // the largest
	faults                  objectstore.Faults
	latency                 time.Duration // of the metadata
	away, lost              float64       // shares of the calls of metadata
	config                  streamstore.Config
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func newPlan(seed uint64, r *rand.Rand) plan {
	p := plan{
		nodes: 1 + r.IntN(3), streams: 1 + r.IntN(5), clients: 1 + r.IntN(2),
		sql:     seed%25 == 0,
		chaos:   15 * time.Second,
		life:    pick(r, time.Second, 8*time.Second),
		down:    pick(r, 100*time.Millisecond, 3*time.Second),
		think:   60 * time.Millisecond,
		pace:    pick(r, 50*time.Millisecond, 500*time.Millisecond),
		payload: pick(r, 50, 3_000, 20_000),
		latency: pick(r, 100*time.Microsecond, 5*time.Millisecond, 100*time.Millisecond),
		away:    pick(r, 0, 0.02, 0.1),
		lost:    pick(r, 0, 0.02, 0.1),
		faults: objectstore.Faults{
			Latency:     pick(r, time.Millisecond, 30*time.Millisecond, 300*time.Millisecond),
			Unavailable: pick(r, 0, 0.02, 0.15),
			Lost:        pick(r, 0, 0.02, 0.15),
			Torn:        pick(r, 0, 0.05),
			Flipped:     pick(r, 0, 0, 0, 0.02),
		},
	}
	slower := pick[time.Duration](r, 1, 4, 100) // when all takes its time, so do zombies
	if p.sql {                                  // what the engine does takes real time: less of everything, but not of what it keeps
		p.restores = r.IntN(3)
		slower, p.pace, p.nodes, p.clients = 4, 500*time.Millisecond, min(p.nodes, 2), 1
		p.faults.Latency, p.faults.Flipped = min(p.faults.Latency, 30*time.Millisecond), 0
		p.faults.Unavailable, p.faults.Lost = min(p.faults.Unavailable, 0.02), min(p.faults.Lost, 0.02)
	}
	p.chaos, p.life, p.down, p.think, p.pace = p.chaos*slower, p.life*slower, p.down*slower, p.think*slower, p.pace*slower
	// No two intervals are the same, so that what they start has an order.
	about := func(paces ...time.Duration) time.Duration {
		return pick(r, paces...)*p.pace + time.Duration(r.Int64N(int64(p.pace)/10))
	}
	upload := pick[int64](r, 4<<10, 32<<10, 256<<10)
	p.config = streamstore.Config{
		WALBytes:           pick[int64](r, 1, 4<<10, 64<<10, 1<<20),
		WALLinger:          pick(r, time.Millisecond, 50*time.Millisecond, 250*time.Millisecond),
		WALInflight:        pick(r, 1, 3, 16),
		WALUnflushedBytes:  pick[int64](r, 1, 32<<10, 1<<20),
		UploadBytes:        upload,
		LogCacheBytes:      upload * pick[int64](r, 2, 3, 8),
		UploadInterval:     about(1, 10, 100),
		UploadInflight:     pick(r, 1, 3),
		SplitBytes:         pick[int64](r, 1, 8<<10, 1<<20),
		BlockBytes:         pick(r, 1, 2<<10, 64<<10),
		BlockCacheBytes:    pick[int64](r, 1, 16<<10, 1<<20),
		IndexCacheBytes:    pick[int64](r, 1, 1<<10, 64<<10),
		ReadAheadBytes:     pick[int64](r, 1, 8<<10, 1<<20),
		CleanInterval:      about(3, 30),
		CompactionInterval: about(2, 10, 50),
		CompactionBytes:    pick[int64](r, 64<<10, 1<<20),
		CompactionObjects:  pick(r, 2, 10, 500),
		CompactionRate:     pick[int64](r, 64<<10, 1<<30),
		ForceSplit:         about(10, 200),
		CleanupInterval:    about(3, 30),
		CleanupBytes:       pick[int64](r, 1, 8<<10),
		MinorInterval:      about(3, 30),
		MinorBytes:         pick[int64](r, 2<<10, 32<<10),
		MajorInterval:      about(4, 40),
		MajorBytes:         pick[int64](r, 32<<10, 4<<20),
		SweepInterval:      about(10, 100),
		SweepGrace:         pick(r, time.Nanosecond, time.Minute),
		DeleteGrace:        pick(r, 30*time.Second, 5*time.Minute),
	}
	return p
}

// A world is one run of the simulation.
type world struct {
	simulation
	plan plan
	disk *objectstore.Memory // the bucket as it is
	meta *streamstore.MemoryManager
	dir  string // of the SQLite databases

	requests atomic.Int64
	ops      atomic.Int64
	acked    atomic.Int64
	sent     sync.WaitGroup // requests under way
	zombies  sync.WaitGroup // lives whose node goes on without them

	nodes []*node
	power chan struct{} // cap 1: one node loses it at a time

	mu      sync.Mutex
	streams []*stream // guarded by mu; also those that are gone
	path    string    // guarded by mu; of the database now
	lost    int       // guarded by mu; databases so far
}

func newWorld(t *testing.T, seed uint64) *world {
	r := rand.New(rand.NewPCG(seed, 0))
	w := &world{simulation: newSimulation(t, seed), plan: newPlan(seed, r), disk: objectstore.NewMemory(), power: make(chan struct{}, 1)}
	if w.plan.sql {
		w.dir = t.TempDir()
		w.path = filepath.Join(w.dir, "metadata-0.db")
		w.createDatabase()
	} else {
		w.meta = streamstore.NewMemoryManager()
	}
	for i := range w.plan.nodes {
		n := &node{w: w, id: streamstore.NodeID(i + 1), r: rand.New(rand.NewPCG(seed, uint64(i+1))), wal: streamstore.WALObject, disk: vfs.NewCrashableMem()}
		if r.IntN(4) == 0 {
			n.wal = streamstore.WALFile
		}
		w.nodes = append(w.nodes, n)
	}
	w.trace.add("world", "%+v", w.plan)
	return w
}

// createDatabase makes the first database, as the first node does before there are others.
func (w *world) createDatabase() {
	s, err := metadata.Open(context.Background(), "sqlite:"+w.path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		w.t.Fatal(err)
	}
}

// run lets nodes come and go, then checks what is left.
func (w *world) run() {
	ctx, cancel := context.WithTimeout(w.failing, w.plan.chaos)
	defer cancel()
	var nodes sync.WaitGroup
	for _, n := range w.nodes {
		nodes.Go(func() { n.run(ctx) })
	}
	w.loseDatabases(ctx)
	nodes.Wait()
	w.zombies.Wait()
	w.sent.Wait()
	if w.failing.Err() == nil {
		w.finish()
	}
	w.sent.Wait()
	w.trace.add("world", "%d operations, %d batches acknowledged, %d requests", w.ops.Load(), w.acked.Load(), w.requests.Load())
}

// manager connects a life to the metadata. With SQLite it is a store of its own, which
// keeps the bucket's copy, as that of another process would be.
func (w *world) manager(ctx context.Context, path string, bucket objectstore.Bucket, log *slog.Logger) (managers, func(context.Context), error) {
	if !w.plan.sql {
		return w.meta, func(context.Context) {}, nil
	}
	s, err := metadata.Open(ctx, "sqlite:"+path, log)
	if err != nil {
		return nil, nil, err
	}
	b, err := s.Backup(ctx, bucket, metadata.BackupConfig{Interval: w.plan.pace * 2})
	if err != nil {
		s.Close()
		return nil, nil, err
	}
	return s, func(ctx context.Context) {
		_ = b.Close(ctx) // what the last snapshot lacks was not acknowledged
		s.Close()
	}, nil
}

// loseDatabases replaces the database by one that is restored from the bucket, some times.
// Lives that have the old one go on with it for a while, as far as it lets them.
func (w *world) loseDatabases(ctx context.Context) {
	r := rand.New(rand.NewPCG(w.seed, 1<<32))
	for range w.plan.restores {
		if wait(ctx, w.plan.chaos/time.Duration(w.plan.restores+1)-time.Duration(r.Int64N(int64(w.plan.chaos/10)))) != nil {
			return
		}
		w.trace.add("world", "the database is lost")
		bucket := objectstore.NewFaulty(w.disk, objectstore.Faults{})
		var next string
		for {
			w.mu.Lock()
			w.lost++
			next = filepath.Join(w.dir, fmt.Sprintf("metadata-%d.db", w.lost))
			w.mu.Unlock()
			info, err := metadata.Restore(w.failing, "sqlite:"+next, bucket, nil, nil)
			if err == nil {
				w.trace.add("world", "restored generation %d, snapshot %d", info.Generation, info.Number)
				break
			}
			w.trace.add("world", "not restored: %v", err)
			if wait(w.failing, w.plan.pace) != nil {
				return
			}
		}
		w.mu.Lock()
		w.path = next
		for _, s := range w.streams {
			s.restored()
		}
		w.mu.Unlock()
		for _, n := range w.nodes {
			n.replace()
		}
	}
}

// database is where the database is that nodes use now.
func (w *world) database() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.path
}

func (w *world) addStreams(first streamstore.StreamID, n int, home streamstore.NodeID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range n {
		w.streams = append(w.streams, &stream{
			id: first + streamstore.StreamID(i), home: home, attempts: map[attempt]*batch{}, known: map[int64]*batch{},
		})
	}
}

// at returns the streams that node id shall have.
func (w *world) at(id streamstore.NodeID) (found []*stream) {
	for _, s := range w.all() {
		if home, gone := s.where(); home == id && !gone {
			found = append(found, s)
		}
	}
	return found
}

func (w *world) all() []*stream {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.streams)
}

// trimmed notes a trim that life l was told of, unless it was of a database that is lost.
func (w *world) trimmed(l *life, s *stream, start int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.path == w.path {
		s.trim(start, true)
	}
}

// A trace is what happened, with virtual times.
type trace struct {
	began time.Time

	mu    sync.Mutex
	lines []string // guarded by mu; the last maxTrace
}

const maxTrace = 4_000

func newTrace() *trace { return &trace{began: time.Now()} }

func (t *trace) add(who, format string, args ...any) {
	line := fmt.Sprintf("%14.6f %-6s %s", time.Since(t.began).Seconds(), who, fmt.Sprintf(format, args...))
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lines = append(t.lines, line); len(t.lines) == 2*maxTrace {
		t.lines = append([]string(nil), t.lines[maxTrace:]...)
	}
}

func (t *trace) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.lines[max(0, len(t.lines)-maxTrace):], "\n")
}

// log returns a logger whose lines become part of the trace.
func (t *trace) log(who string) *slog.Logger {
	return slog.New(slog.NewTextHandler(traceWriter{t, who}, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			switch a.Key {
			case slog.TimeKey, "node", "node_epoch", "took":
				return slog.Attr{}
			}
			return a
		},
	}))
}

type traceWriter struct {
	t   *trace
	who string
}

var _ io.Writer = traceWriter{}

func (w traceWriter) Write(p []byte) (int, error) {
	w.t.add(w.who, "%s", strings.TrimSpace(string(p)))
	return len(p), nil
}
