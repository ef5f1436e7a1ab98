package sim

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/streamstore"
)

// inFlight is a bucket whose writes are on their way once they are sent: the death of the
// sender does not take them back.
type inFlight struct {
	objectstore.Bucket
	sent *sync.WaitGroup
}

func (b inFlight) send(ctx context.Context, do func(context.Context) error) error {
	answer := make(chan error, 1)
	b.sent.Go(func() { answer <- do(context.WithoutCancel(ctx)) })
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (b inFlight) Put(ctx context.Context, key string, body ...[]byte) error {
	data := slices.Concat(body...)
	return b.send(ctx, func(ctx context.Context) error { return b.Bucket.Put(ctx, key, data) })
}

func (b inFlight) PutIfAbsent(ctx context.Context, key string, body ...[]byte) error {
	data := slices.Concat(body...)
	return b.send(ctx, func(ctx context.Context) error { return b.Bucket.PutIfAbsent(ctx, key, data) })
}

func (b inFlight) Delete(ctx context.Context, keys ...string) error {
	return b.send(ctx, func(ctx context.Context) error { return b.Bucket.Delete(ctx, keys...) })
}

// Bounds on what one life may ask of the bucket.
const (
	maxRequests = 5_000   // in one second
	maxReceived = 4 << 20 // bytes in one answer
)

// A meter fails the world when a life asks for too much.
type meter struct {
	w  *world
	of string

	mu       sync.Mutex
	second   int64 // guarded by mu
	requests int   // guarded by mu; in it
}

func (m *meter) ObserveRequest(r objectstore.Request) {
	if r.Received > maxReceived {
		m.w.fail("%s received %d bytes of %s", m.of, r.Received, r.Key)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := time.Now().Unix(); now != m.second {
		m.second, m.requests = now, 0
	}
	if m.requests++; m.requests == maxRequests {
		m.w.fail("%s makes more than %d requests a second, the last: %s %s", m.of, maxRequests, r.Op, r.Key)
	}
	m.w.requests.Add(1)
}

// managers is what a store needs of metadata.
type managers interface {
	streamstore.StreamManager
	streamstore.ObjectManager
}

var errAway = errors.New("the database is away")

// A line is a life's way to the metadata: slow, losing calls and answers, cut off or still.
type line struct {
	managers
	seed    uint64
	latency time.Duration // the longest, each way
	away    float64       // share of calls that do not arrive
	lost    float64       // share of answers that do not

	mu    sync.Mutex
	cut   bool           // guarded by mu
	still chan struct{}  // guarded by mu; calls and answers wait until it is closed; nil if they do not
	seen  map[string]int // guarded by mu; calls so far
}

// call makes one call between the faults, which the seed, the kind of call and how often it came decide.
func (l *line) call(ctx context.Context, what string, effect func() error) error {
	l.mu.Lock()
	n := l.seen[what]
	l.seen[what]++
	l.mu.Unlock()
	hash := fnv.New64a()
	io.WriteString(hash, what)
	r := rand.New(rand.NewPCG(l.seed^hash.Sum64(), uint64(n)))
	if r.Float64() < l.away {
		return fmt.Errorf("%s: %w", what, errAway)
	}
	if err := l.pass(ctx, r); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := effect(); err != nil {
		return err
	}
	if err := l.pass(ctx, r); err != nil {
		return fmt.Errorf("%s: answer lost: %w", what, err)
	}
	if r.Float64() < l.lost {
		return fmt.Errorf("%s: answer lost: %w", what, errAway)
	}
	return nil
}

func (l *line) pass(ctx context.Context, r *rand.Rand) error {
	if err := wait(ctx, time.Duration(r.Int64N(int64(l.latency)+1))); err != nil {
		return err
	}
	l.mu.Lock()
	cut, still := l.cut, l.still
	l.mu.Unlock()
	if still != nil {
		select {
		case <-still:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if cut {
		return fmt.Errorf("cut off: %w", errAway)
	}
	return nil
}

func (l *line) setCut(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
}

func (l *line) setStill(still chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.still = still
}

func (l *line) RegisterNode(ctx context.Context, id streamstore.NodeID, wal streamstore.WALKind) (node streamstore.Node, earlier []streamstore.WALState, err error) {
	err = l.call(ctx, "register node", func() error { node, earlier, err = l.managers.RegisterNode(ctx, id, wal); return err })
	return node, earlier, err
}

func (l *line) RetireWAL(ctx context.Context, node streamstore.Node, epoch int64) error {
	return l.call(ctx, "retire WAL", func() error { return l.managers.RetireWAL(ctx, node, epoch) })
}

func (l *line) CreateStreams(ctx context.Context, node streamstore.Node, n int) (first streamstore.StreamID, err error) {
	err = l.call(ctx, "create streams", func() error { first, err = l.managers.CreateStreams(ctx, node, n); return err })
	return first, err
}

func (l *line) OpenStreams(ctx context.Context, node streamstore.Node, open []streamstore.OpenRequest) (states []streamstore.StreamState, err error) {
	err = l.call(ctx, "open streams", func() error { states, err = l.managers.OpenStreams(ctx, node, open); return err })
	if err != nil {
		return nil, err
	}
	return states, nil
}

func (l *line) Streams(ctx context.Context, id streamstore.NodeID) (states []streamstore.StreamState, err error) {
	err = l.call(ctx, "streams", func() error { states, err = l.managers.Streams(ctx, id); return err })
	return states, err
}

func (l *line) TrimStream(ctx context.Context, node streamstore.Node, id streamstore.StreamID, epoch, start int64) error {
	return l.call(ctx, "trim stream", func() error { return l.managers.TrimStream(ctx, node, id, epoch, start) })
}

func (l *line) CloseStreams(ctx context.Context, node streamstore.Node, close []streamstore.OpenRequest) error {
	return l.call(ctx, "close streams", func() error { return l.managers.CloseStreams(ctx, node, close) })
}

func (l *line) DeleteStreams(ctx context.Context, node streamstore.Node, ids []streamstore.StreamID) error {
	return l.call(ctx, "delete streams", func() error { return l.managers.DeleteStreams(ctx, node, ids) })
}

func (l *line) TakeOverNode(ctx context.Context, by streamstore.Node, id streamstore.NodeID) (node streamstore.Node, earlier []streamstore.WALState, err error) {
	err = l.call(ctx, "take over node", func() error { node, earlier, err = l.managers.TakeOverNode(ctx, by, id); return err })
	return node, earlier, err
}

func (l *line) ReleaseNode(ctx context.Context, by, node streamstore.Node) error {
	return l.call(ctx, "release node", func() error { return l.managers.ReleaseNode(ctx, by, node) })
}

func (l *line) Nodes(ctx context.Context) (nodes []streamstore.NodeState, err error) {
	err = l.call(ctx, "nodes", func() error { nodes, err = l.managers.Nodes(ctx); return err })
	return nodes, err
}

func (l *line) PrepareObjects(ctx context.Context, node streamstore.Node, n int, ttl time.Duration) (first streamstore.ObjectID, err error) {
	err = l.call(ctx, "prepare objects", func() error { first, err = l.managers.PrepareObjects(ctx, node, n, ttl); return err })
	return first, err
}

func (l *line) CommitUpload(ctx context.Context, node streamstore.Node, u streamstore.Upload) error {
	return l.call(ctx, "commit upload", func() error { return l.managers.CommitUpload(ctx, node, u) })
}

func (l *line) CommitCompaction(ctx context.Context, node streamstore.Node, c streamstore.Compaction) error {
	return l.call(ctx, "commit compaction", func() error { return l.managers.CommitCompaction(ctx, node, c) })
}

func (l *line) StreamSetObjects(ctx context.Context, id streamstore.NodeID, after streamstore.ObjectID, limit int) (sets []streamstore.LiveStreamSet, err error) {
	err = l.call(ctx, "stream set objects", func() error { sets, err = l.managers.StreamSetObjects(ctx, id, after, limit); return err })
	return sets, err
}

func (l *line) StreamObjects(ctx context.Context, id streamstore.StreamID, start, end int64, limit int) (found []streamstore.ObjectRange, err error) {
	err = l.call(ctx, "stream objects", func() error { found, err = l.managers.StreamObjects(ctx, id, start, end, limit); return err })
	return found, err
}

func (l *line) DeletableObjects(ctx context.Context, node streamstore.Node, grace time.Duration, limit int) (refs []streamstore.ObjectRef, err error) {
	err = l.call(ctx, "deletable objects", func() error { refs, err = l.managers.DeletableObjects(ctx, node, grace, limit); return err })
	return refs, err
}

func (l *line) ForgetObjects(ctx context.Context, node streamstore.Node, ids []streamstore.ObjectID) error {
	return l.call(ctx, "forget objects", func() error { return l.managers.ForgetObjects(ctx, node, ids) })
}

func (l *line) Objects(ctx context.Context, after streamstore.ObjectID, limit int) (found []streamstore.KnownObject, err error) {
	err = l.call(ctx, "objects", func() error { found, err = l.managers.Objects(ctx, after, limit); return err })
	return found, err
}

func (l *line) FindObjects(ctx context.Context, ids []streamstore.ObjectID) (found []streamstore.KnownObject, err error) {
	err = l.call(ctx, "find objects", func() error { found, err = l.managers.FindObjects(ctx, ids); return err })
	return found, err
}

func (l *line) ClaimSweep(ctx context.Context, node streamstore.Node, ttl time.Duration) (claim streamstore.SweepClaim, err error) {
	err = l.call(ctx, "claim sweep", func() error { claim, err = l.managers.ClaimSweep(ctx, node, ttl); return err })
	return claim, err
}

// wait returns after d, or with the cause when ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
