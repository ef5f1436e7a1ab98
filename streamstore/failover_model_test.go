package streamstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tabletopic/tabletopic/objectstore"
)

// A cluster is a few nodes over one bucket and one manager, next to a model of what their
// streams must hold.
type cluster struct {
	t      *testing.T
	seed   uint64
	r      *rand.Rand
	memory *objectstore.Memory
	meta   *MemoryManager

	nodes   []*clusterNode // by id - 1; the newest process of each
	streams []*clusterStream
	zombies []*clusterNode // processes that stand still, or live on though replaced
	rescues sync.WaitGroup
	serial  int
	count   map[string]int // what happened how often, for the log
}

// A clusterNode is one process.
type clusterNode struct {
	*MemoryManager
	id     NodeID
	store  *Store
	bucket *objectstore.Faulty
	still  *objectstore.Hold // not nil while the process stands still
	gone   bool

	mu    sync.Mutex
	r     *rand.Rand    // guarded by mu
	pause chan struct{} // guarded by mu; calls to metadata wait for it; nil while the process runs
}

// A clusterStream is one stream and what is known of it.
type clusterStream struct {
	id     StreamID
	epoch  int64
	owner  *clusterNode
	handle *Stream
	old    []*Stream // handles that were replaced

	mu      sync.Mutex
	batches []*clusterBatch // guarded by mu; in the log, or not known to be
	start   int
}

type clusterBatch struct {
	payload string
	acked   bool // guarded by clusterStream.mu
	lost    bool // guarded by clusterStream.mu; it is not in the log
}

func (c *cluster) fatalf(format string, args ...any) {
	c.t.Helper()
	c.t.Fatalf("seed %d: %s", c.seed, fmt.Sprintf(format, args...))
}

// do calls metadata: it takes its time, stands still with the process, and may lose the
// question or the answer.
func (n *clusterNode) do(ctx context.Context, call func() error) error {
	n.mu.Lock()
	pause, latency, lost := n.pause, time.Duration(n.r.Int64N(int64(30*time.Millisecond))), n.r.IntN(20)
	n.mu.Unlock()
	<-time.After(latency)
	if pause != nil {
		select {
		case <-pause:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if lost == 0 {
		return errAway
	}
	err := call()
	if lost == 1 && err == nil {
		return errAway
	}
	return err
}

func (n *clusterNode) CommitUpload(ctx context.Context, node Node, u Upload) error {
	return n.do(ctx, func() error { return n.MemoryManager.CommitUpload(ctx, node, u) })
}

func (n *clusterNode) CommitCompaction(ctx context.Context, node Node, comp Compaction) error {
	return n.do(ctx, func() error { return n.MemoryManager.CommitCompaction(ctx, node, comp) })
}

func (n *clusterNode) RetireWAL(ctx context.Context, node Node, epoch int64) error {
	return n.do(ctx, func() error { return n.MemoryManager.RetireWAL(ctx, node, epoch) })
}

func (n *clusterNode) ReleaseNode(ctx context.Context, by, node Node) error {
	return n.do(ctx, func() error { return n.MemoryManager.ReleaseNode(ctx, by, node) })
}

// serves reports whether the process runs and may acknowledge, as far as it knows.
func (n *clusterNode) serves() bool { return !n.gone && n.still == nil && n.store.Err() == nil }

// start runs a new process of a node. An old one that stands still becomes a zombie.
func (c *cluster) start(id NodeID) {
	n := &clusterNode{MemoryManager: c.meta, id: id, r: rand.New(rand.NewPCG(c.r.Uint64(), 0))}
	faults := objectstore.Faults{Seed: c.r.Uint64(), Latency: 30 * time.Millisecond, Unavailable: 0.03, Lost: 0.03, Torn: 0.03}
	n.bucket = objectstore.NewFaulty(c.memory, faults)
	cfg := modelConfigs[int(c.seed)%len(modelConfigs)]
	cfg.WAL, cfg.DeleteGrace = WALObject, 30*time.Second
	var err error
	n.store, err = Open(context.Background(), cfg, id, n.bucket, n, n, newEnvLog())
	if errors.Is(err, ErrNodeFenced) {
		c.count["starts overtaken by a rescuer"]++
		return
	}
	if err != nil {
		c.fatalf("start node %d: %v", id, err)
	}
	c.t.Cleanup(n.store.abandon)
	if old := c.nodes[id-1]; old != nil && !old.gone {
		c.zombies = append(c.zombies, old)
	}
	c.nodes[id-1] = n
	c.count["starts"]++
}

func (c *cluster) stop(n *clusterNode) {
	n.still = n.bucket.Hold(objectstore.After, func(objectstore.Op, string) bool { return true })
	n.mu.Lock()
	n.pause = make(chan struct{})
	n.mu.Unlock()
	c.count["stops"]++
}

func (c *cluster) resume(n *clusterNode) {
	n.mu.Lock()
	close(n.pause)
	n.pause = nil
	n.mu.Unlock()
	n.still.Release(nil)
	n.still = nil
	c.count["resumes"]++
}

func (c *cluster) kill(n *clusterNode) {
	n.gone = true
	n.store.abandon()
	c.count["kills"]++
}

// serving returns a node that serves; nil if there is none.
func (c *cluster) serving() *clusterNode {
	for _, i := range c.r.Perm(len(c.nodes)) {
		if c.nodes[i].serves() {
			return c.nodes[i]
		}
	}
	return nil
}

// append appends through a handle. Through one that was replaced nothing may come of it.
func (c *cluster) append(st *clusterStream, h *Stream) {
	c.serial++
	b := &clusterBatch{payload: fmt.Sprintf("%d:%d:%0*d", st.id, c.serial, c.r.IntN(2000), 0), lost: h != st.handle}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	st.mu.Lock()
	if !b.lost {
		st.batches = append(st.batches, b)
	}
	st.mu.Unlock()
	_, err := h.Append(ctx, RecordBatch{Count: 1, MaxTimestamp: -1, Payload: []byte(b.payload)}, func(err error) {
		st.mu.Lock()
		defer st.mu.Unlock()
		if b.acked = err == nil; b.acked && b.lost {
			c.t.Errorf("seed %d: stream %d acknowledged %.20s, which is not in the log", c.seed, st.id, b.payload)
		}
	})
	if err != nil && !b.lost {
		st.mu.Lock()
		st.batches = st.batches[:len(st.batches)-1]
		st.mu.Unlock()
	}
}

// open opens the stream on n, if nobody else has it, and finds out what is in the log.
func (c *cluster) open(st *clusterStream, n *clusterNode) bool {
	st.epoch++
	handles, err := n.store.OpenStreams(context.Background(), []OpenRequest{{st.id, st.epoch}})
	if errors.Is(err, ErrConflict) || errors.Is(err, ErrNodeFenced) || n.store.Err() != nil {
		return false
	}
	if err != nil {
		c.fatalf("open stream %d: %v", st.id, err)
	}
	if st.handle != nil {
		st.old = append(st.old, st.handle)
	}
	st.owner, st.handle = n, handles[0]
	c.resolve(st)
	c.count["opens"]++
	return true
}

// resolve reads the stream. What was acknowledged must be there; what was not is there up to
// some batch, and what follows will never be.
func (c *cluster) resolve(st *clusterStream) {
	end := st.handle.ConfirmOffset()
	c.check(st, end)
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, b := range st.batches[end:] {
		if b.lost = true; b.acked {
			c.fatalf("stream %d lost %.20s, which was acknowledged", st.id, b.payload)
		}
	}
	st.batches = st.batches[:end]
}

// check compares the stream from its start to end with the model.
func (c *cluster) check(st *clusterStream, end int64) {
	var got []string
	for at := st.handle.StartOffset(); at < end; {
		batches, err := st.handle.Fetch(context.Background(), at, end, 10_000)
		if errors.Is(err, objectstore.ErrInjected) {
			continue
		}
		if err != nil || len(batches) == 0 {
			if st.owner.store.Err() != nil {
				return // the node was fenced meanwhile
			}
			c.fatalf("fetch stream %d from %d: %d batches, %v", st.id, at, len(batches), err)
		}
		for _, b := range batches {
			got = append(got, string(b.Payload))
			at = b.End()
		}
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if int(end) > len(st.batches) || int(st.handle.StartOffset()) != st.start {
		c.fatalf("stream %d spans [%d, %d), the model [%d, %d)", st.id, st.handle.StartOffset(), end, st.start, len(st.batches))
	}
	want := make([]string, 0, len(got))
	for _, b := range st.batches[st.start:end] {
		want = append(want, b.payload)
	}
	if !slices.Equal(got, want) {
		c.fatalf("stream %d holds %d batches, the model %d, or others", st.id, len(got), len(want))
	}
}

// rescue has a node recover another, in the background: it may die or stop in the middle, and
// so may others that try the same.
func (c *cluster) rescue(by *clusterNode, id NodeID) {
	c.count["rescues"]++
	c.rescues.Go(func() {
		if _, err := by.store.Recover(context.Background(), id, nil); err != nil && !errors.Is(err, ErrNodeFenced) && by.store.Err() == nil {
			c.t.Errorf("seed %d: recover node %d: %v", c.seed, id, err)
		}
	})
}

func (c *cluster) step() {
	st := c.streams[c.r.IntN(len(c.streams))]
	n := c.nodes[c.r.IntN(len(c.nodes))]
	switch op := c.r.IntN(100); {
	case op < 40:
		if st.owner != nil && !st.owner.gone {
			c.append(st, st.handle)
		}
	case op < 43:
		if len(st.old) > 0 {
			c.append(st, st.old[c.r.IntN(len(st.old))])
		}
	case op < 55:
		if by := c.serving(); by != nil && (st.owner == nil || !st.owner.serves()) {
			c.open(st, by)
		}
	case op < 62:
		if st.owner != nil && st.owner.serves() {
			c.check(st, st.handle.ConfirmOffset())
		}
	case op < 65: // move
		by := c.serving()
		if st.owner == nil || !st.owner.serves() || by == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if st.handle.Close(ctx) == nil {
			c.open(st, by)
		}
	case op < 68:
		if st.owner != nil && st.owner.serves() {
			start := st.start + c.r.IntN(int(st.handle.ConfirmOffset())-st.start+1)
			if st.handle.Trim(context.Background(), int64(start)) != nil {
				st.owner = nil // it was fenced; to be opened anew
			}
			c.trimmed(st)
		}
	case op < 73:
		if !n.gone {
			c.kill(n)
		}
	case op < 77:
		if n.serves() {
			c.stop(n)
		}
	case op < 80:
		if n.still != nil && !n.gone {
			c.resume(n)
		}
	case op < 83:
		if i := len(c.zombies); i > 0 {
			z := c.zombies[c.r.IntN(i)]
			if z.still != nil && !z.gone {
				c.resume(z)
			}
		}
	case op < 88:
		if !n.serves() {
			c.start(n.id)
		}
	case op < 94:
		if by := c.serving(); by != nil && by != n && (!n.serves() || c.r.IntN(10) == 0) {
			c.rescue(by, n.id)
		}
	default:
		<-time.After(time.Duration(c.r.Int64N(int64(500 * time.Millisecond))))
	}
}

// trimmed takes the start that metadata has.
func (c *cluster) trimmed(st *clusterStream) {
	c.meta.mu.Lock()
	defer c.meta.mu.Unlock()
	st.start = int(c.meta.streams[st.id].Start)
}

// finish ends all that goes on, has one node recover all the others, and reads every stream.
func (c *cluster) finish() {
	for _, n := range append(c.zombies, c.nodes...) {
		if n.still != nil && !n.gone {
			c.resume(n)
		}
	}
	<-time.After(10 * time.Second)
	for _, n := range append(c.zombies, c.nodes...) {
		if !n.gone {
			c.kill(n)
		}
	}
	c.rescues.Wait()
	c.start(1)
	last := c.nodes[0]
	for id := NodeID(2); int(id) <= len(c.nodes); id++ {
		if _, err := last.store.Recover(context.Background(), id, nil); err != nil {
			c.fatalf("recover node %d at the end: %v", id, err)
		}
	}
	for _, st := range c.streams {
		c.trimmed(st)
		if !c.open(st, last) {
			c.fatalf("stream %d cannot be opened at the end", st.id)
		}
	}
	c.kill(last)
}

// Nodes die, stand still, wake as zombies, come back and recover one another, at any moment
// and several at a time. Every acknowledged batch is in its stream once and in order, and
// nothing else is.
func TestFailoverModel(t *testing.T) {
	total := make(map[string]int)
	for seed := range *modelSeeds {
		synctest.Test(t, func(t *testing.T) {
			c := &cluster{
				t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 3)), memory: objectstore.NewMemory(), meta: NewMemoryManager(),
				nodes: make([]*clusterNode, 3), count: total,
			}
			for id := range c.nodes {
				c.start(NodeID(id + 1))
			}
			first, err := c.nodes[0].store.CreateStreams(context.Background(), 6)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 6 {
				st := &clusterStream{id: first + StreamID(i)}
				c.streams = append(c.streams, st)
				c.open(st, c.nodes[i%3])
			}
			for range 400 {
				c.step()
			}
			c.finish()
		})
	}
	t.Logf("%v", total)
}
