package share

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

// ErrClosed says that a Partition is not used any more: open it again.
var ErrClosed = errors.New("share-partition closed")

// A Key names a share-partition.
type Key struct {
	Group string
	Topic uuid.UUID
	Index int32
}

func (k Key) String() string { return fmt.Sprintf("%s:%s:%d", k.Group, k.Topic, k.Index) }

// A Store keeps what is saved of share-partitions.
type Store interface {
	// Load returns what was saved, and tells those who have led the partition before epoch from
	// then on that they do not. Found is false if nothing was saved yet.
	Load(ctx context.Context, k Key, leaderEpoch int32) (Loaded, error)
	// Save returns once saved is durable. It is refused if somebody led the partition in a later
	// epoch, or if the state was replaced since it was loaded.
	Save(ctx context.Context, k Key, stateEpoch, leaderEpoch int32, saved Saved) error
}

// Loaded is what a Store has of a share-partition.
type Loaded struct {
	Saved
	Found bool
	// StateEpoch is another one whenever the state was replaced from outside.
	StateEpoch int32
}

// saveTimeout bounds a Save; after it the state is what the store says.
const saveTimeout = 30 * time.Second

// A Manager has the share-partitions that are in use at a node: those of share sessions, whose number
// bounds them.
type Manager struct {
	store Store

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu    sync.Mutex
	parts map[Key]*Partition // guarded by mu
}

// Open starts without any share-partition.
func Open(store Store) *Manager {
	m := &Manager{store: store, parts: map[Key]*Partition{}}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m
}

// Close returns when what is left of share-partitions, which nobody uses any more, is saved, at the
// latest when ctx ends.
func (m *Manager) Close(ctx context.Context) {
	done := make(chan struct{})
	go func() { m.work.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
	}
	m.cancel()
	<-done
}

// A Partition is the State of a share-partition in use.
type Partition struct {
	m           *Manager
	key         Key
	leaderEpoch int32
	stateEpoch  int32
	users       int           // guarded by m.mu
	ready       chan struct{} // closed when it is loaded, or cannot be
	ended       chan struct{} // closed when nobody must use it any more
	kick        chan struct{} // cap 1: there is something to save, or a deadline has moved

	mu      sync.Mutex
	state   *State                // guarded by mu; nil until it is loaded
	err     error                 // guarded by mu; why it is closed
	version uint64                // guarded by mu; counts changes of what is to be saved
	saved   uint64                // guarded by mu; the last of them that is durable
	waiting []waiter              // guarded by mu
	watch   []chan<- struct{}     // guarded by mu; told when there is more to acquire
	begin   func() (int64, error) // where to begin if nothing was saved
	limits  Limits                // at the beginning
}

type waiter struct {
	version uint64
	done    chan<- error // cap 1
}

// Use returns a share-partition, to be given back with [Partition.Leave]. leaderEpoch is that of the
// partition at this node. If nothing was saved of it, it begins at the offset that begin returns,
// which is durable then. Use does not wait for that: [Partition.Ready] does.
func (m *Manager) Use(k Key, leaderEpoch int32, l Limits, begin func() (int64, error)) *Partition {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.parts[k]
	if p != nil && p.leaderEpoch == leaderEpoch && p.failed() == nil {
		p.users++
		return p
	}
	if p != nil {
		p.fail(fmt.Errorf("%w: it is used anew", ErrClosed))
	}
	before := p
	p = &Partition{m: m, key: k, leaderEpoch: leaderEpoch, users: 1, ready: make(chan struct{}), ended: make(chan struct{}), kick: make(chan struct{}, 1), begin: begin, limits: l}
	m.parts[k] = p
	m.work.Go(func() {
		if before != nil {
			<-before.ended
		}
		p.run(m.ctx)
	})
	return p
}

// Leave gives p back. What it has to save is saved.
func (p *Partition) Leave() {
	p.m.mu.Lock()
	p.users--
	p.m.mu.Unlock()
	p.poke()
}

// Ready waits until p is loaded.
func (p *Partition) Ready(ctx context.Context) error {
	select {
	case <-p.ready:
		return p.failed()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Check asks the store whether the state was replaced since it was loaded, by an administrator while
// sessions of former members were still open; then p fails.
func (p *Partition) Check(ctx context.Context) error {
	l, err := p.m.store.Load(ctx, p.key, p.leaderEpoch)
	if err == nil && (!l.Found || l.StateEpoch != p.stateEpoch) && !invariant.Off("share-check") {
		err = fmt.Errorf("%w: its state was replaced", ErrClosed)
	}
	if err != nil {
		p.fail(err)
	}
	return err
}

// Err returns why p must not be used any more, nil while it may.
func (p *Partition) Err() error { return p.failed() }

func (p *Partition) failed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// fail closes p: nobody is told that anything was saved which was not.
func (p *Partition) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return
	}
	p.err = err
	for _, w := range p.waiting {
		w.done <- err
	}
	p.waiting = nil
	p.tell()
	p.poke()
}

func (p *Partition) poke() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// tell wakes those who wait for something to acquire. The caller holds mu.
func (p *Partition) tell() {
	for _, ch := range p.watch {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// run loads p, saves what changes and ends deliveries in time, until nobody uses p or it fails.
func (p *Partition) run(ctx context.Context) {
	defer close(p.ended)
	err := p.load(ctx)
	if err != nil {
		p.fail(fmt.Errorf("load share-partition %s: %w", p.key, err))
	}
	close(p.ready)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for !p.unused() {
		select {
		case <-p.kick:
		case <-timer.C:
		case <-ctx.Done():
			p.fail(ErrClosed)
			return
		}
		if err := p.step(ctx); err != nil {
			p.fail(fmt.Errorf("save share-partition %s: %w", p.key, err))
		}
		p.mu.Lock()
		wait := time.Hour
		if wake := p.wake(); !wake.IsZero() {
			wait = max(0, time.Until(wake))
		}
		p.mu.Unlock()
		timer.Reset(wait)
	}
}

func (p *Partition) wake() time.Time {
	if p.err != nil || p.state == nil {
		return time.Time{}
	}
	return p.state.Wake()
}

// unused reports whether p has ended: it has failed, or nobody uses it and all is saved. Nobody finds it then.
func (p *Partition) unused() bool {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil && (p.users > 0 || p.version > p.saved) {
		return false
	}
	if p.err == nil {
		p.err = ErrClosed
	}
	if p.m.parts[p.key] == p {
		delete(p.m.parts, p.key)
	}
	return true
}

func (p *Partition) load(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	l, err := p.m.store.Load(ctx, p.key, p.leaderEpoch)
	if err != nil {
		return err
	}
	if !l.Found { // where it begins must not move with a restart
		if l.Start, err = p.begin(); err != nil {
			return err
		}
		if err := p.m.store.Save(ctx, p.key, l.StateEpoch, p.leaderEpoch, l.Saved); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stateEpoch, p.state = l.StateEpoch, NewState(p.limits, l.Saved)
	return nil
}

// step ends deliveries whose time is up, and saves.
func (p *Partition) step(ctx context.Context) error {
	p.mu.Lock()
	if p.err != nil {
		p.mu.Unlock()
		return nil
	}
	if p.state.Tick(time.Now()) {
		p.version++
		p.tell()
	}
	version, saved := p.version, p.state.Saved()
	clean := version == p.saved
	p.mu.Unlock()
	if clean {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	if err := p.m.store.Save(ctx, p.key, p.stateEpoch, p.leaderEpoch, saved); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.saved = version
	p.waiting = slices.DeleteFunc(p.waiting, func(w waiter) bool {
		if w.version > version {
			return false
		}
		w.done <- nil
		return true
	})
	if p.version > version {
		p.poke()
	}
	return nil
}

// Notify arranges a non-blocking send on ch whenever there may be more to acquire, or p has ended, until stop.
func (p *Partition) Notify(ch chan<- struct{}) (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watch = append(p.watch, ch)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if i := slices.Index(p.watch, ch); i >= 0 {
			p.watch = slices.Delete(p.watch, i, i+1)
		}
	}
}

// Next returns where to read for what may be acquired, of a log that begins at logStart; ok is false
// if there is no room for more.
func (p *Partition) Next(l Limits, logStart int64) (offset int64, ok bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return 0, false, p.err
	}
	p.state.Limits = l
	if p.state.LogStart(logStart) {
		p.changed()
	}
	offset, ok = p.state.Next()
	return offset, ok, nil
}

// Available tells whether some of the offsets first to last may be acquired.
func (p *Partition) Available(first, last int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.available(first, last)
}

// changed notes that there is something to save. The caller holds mu.
func (p *Partition) changed() {
	p.version++
	p.poke()
}

// Acquire is [State.Acquire]. What is given out needs not be saved before.
func (p *Partition) Acquire(from int64, batches []Batch, d Demand) ([]AcquiredRecords, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return nil, p.err
	}
	start := p.state.Start()
	got := p.state.Acquire(time.Now(), from, batches, d)
	if p.state.Start() != start {
		p.changed()
	} else if len(got) > 0 {
		p.poke() // a deadline
	}
	return got, nil
}

// Acknowledge is [State.Acknowledge]. If it returns no error, wait returns once what was said is durable.
func (p *Partition) Acknowledge(owner Owner, acks []Acknowledgement) (wait func(context.Context) error, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return nil, p.err
	}
	changed, err := p.state.Acknowledge(time.Now(), owner, acks)
	if err != nil {
		return nil, err
	}
	if changed {
		p.changed()
		p.tell()
	}
	if p.version == p.saved || invariant.Off("share-ack-durable") {
		return func(context.Context) error { return nil }, nil
	}
	done := make(chan error, 1)
	p.waiting = append(p.waiting, waiter{p.version, done})
	return func(ctx context.Context) error {
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}, nil
}

// Release ends all deliveries to an owner who is gone.
func (p *Partition) Release(owner Owner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil && p.state != nil && p.state.Release(time.Now(), owner) {
		p.changed()
		p.tell()
	}
}
