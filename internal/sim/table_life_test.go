package sim

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog"
	catalogsql "github.com/tabletopic/tabletopic/catalog/sql"
	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/streamstore"
	"github.com/tabletopic/tabletopic/worker"
)

// A tableNode lives many lives. Its loop starts one, lets it be, and decides how it ends.
type tableNode struct {
	w     *tableWorld
	id    streamstore.NodeID
	r     *rand.Rand // of the loop
	lives int
}

func (n *tableNode) run(ctx context.Context) {
	for ctx.Err() == nil {
		l := n.newLife()
		if err := l.open(); err != nil {
			l.log("dies before it serves: %v", err)
			l.end()
			_ = wait(ctx, time.Second)
			continue
		}
		l.serve()
		t := time.NewTimer(time.Duration(n.r.Int64N(int64(n.w.plan.life))))
		select {
		case <-t.C:
			n.over(ctx, l)
		case <-l.dying:
			l.end()
		case <-l.store.Fenced():
			l.log("ends: %v", l.store.Err())
			l.end()
		case <-ctx.Done():
			n.over(ctx, l)
		}
		t.Stop()
		if n.r.IntN(3) > 0 {
			_ = wait(ctx, time.Duration(n.r.Int64N(int64(n.w.plan.down))))
		}
	}
}

// over ends the life in one way or another. A zombie goes on beside the node's next life.
func (n *tableNode) over(ctx context.Context, l *tableLife) {
	fate := n.r.IntN(6)
	if ctx.Err() != nil {
		fate = n.r.IntN(2) // no zombies at the end
	}
	switch fate {
	case 0:
		l.log("crashes")
		l.end()
	case 1:
		l.close()
	case 2, 3: // a second process, while this one serves
		l.log("gets a rival")
		n.zombie(l, func() {})
	default:
		l.log("stands still")
		n.zombie(l, l.still())
	}
}

// zombie lets the life be until some time has passed, resumes it, and ends it a while later.
func (n *tableNode) zombie(l *tableLife, resume func()) {
	pause, rest := time.Duration(n.r.Int64N(int64(n.w.plan.held))), time.Duration(n.r.Int64N(int64(time.Minute)))
	n.w.zombies.Go(func() {
		_ = wait(l.ctx, pause)
		l.log("is back")
		resume()
		_ = wait(l.ctx, rest)
		l.log("ends: %v", l.store.Err())
		l.end()
	})
}

// A tableLife is one process: log, workers and coordinators, with its views of bucket, metadata and catalog.
type tableLife struct {
	n      *tableNode
	name   string
	ctx    context.Context // of all that the process does
	cancel context.CancelFunc
	actor  *actor

	streams *objectstore.Faulty // the bucket for the log
	line    *line
	store   *streamstore.Store
	set     *partition.Set
	ctl     *control.Topic

	workers      *worker.Manager
	coordinators *coordinator.Manager
	clients      sync.WaitGroup
	stopping     chan struct{} // closed when clients shall end
	dying        chan struct{} // closed when a step kills the process
	die          func()
	ended        sync.Once
}

func (n *tableNode) newLife() *tableLife {
	w := n.w
	n.lives++
	l := &tableLife{n: n, name: fmt.Sprintf("%d.%d", n.id, n.lives), stopping: make(chan struct{}), dying: make(chan struct{})}
	l.die = sync.OnceFunc(func() { close(l.dying) })
	l.ctx, l.cancel = context.WithCancel(w.failing)
	l.actor = &actor{w: w, name: l.name, ctx: l.ctx, die: l.die, seen: map[string]uint64{}}
	hash := fnv.New64a()
	fmt.Fprint(hash, w.seed, l.name)
	faults := w.plan.streams
	faults.Seed = hash.Sum64()
	l.streams = objectstore.NewFaulty(w.disk, faults)
	l.line = &line{managers: w.meta, seed: hash.Sum64(), seen: map[string]int{}, latency: time.Millisecond}
	return l
}

func (l *tableLife) log(format string, args ...any) { l.n.w.trace.add(l.name, format, args...) }

// open starts the process, as package node does.
func (l *tableLife) open() error {
	w, ctx, log := l.n.w, l.ctx, l.n.w.trace.log(l.name)
	l.log("starts")
	var err error
	if l.store, err = streamstore.Open(ctx, streamstore.Config{WALLinger: 10 * time.Millisecond, Jitter: l.jitter}, l.n.id,
		inFlight{l.streams, &w.sent}, l.line, l.line, slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	if l.set, err = partition.OpenSet(ctx, partition.Config{RetentionInterval: 3 * time.Second}, l.store, w.meta, log); err != nil {
		return err
	}
	if l.ctl, err = control.OpenNamed(ctx, l.set, l.n.controlTopic(), 2); err != nil {
		return err
	}
	if _, ok := l.set.Topic(l.topic().name); !ok {
		if err := l.createTopic(ctx); err != nil {
			return err
		}
	}
	cat, err := l.openCatalog()
	if err != nil {
		return err
	}
	schemas := control.NewSchemas(l.lookup, nil)
	data := locate(&tableBucket{inFlight{w.disk, &w.sent}, l.actor})
	locators := func(string) catalog.Locator { return data }
	shared := worker.NewShared(1, 0, nil)
	shared.Grace = w.plan.grace
	l.coordinators = coordinator.Open(l.set, l.ctl, func(string) (catalog.Catalog, error) { return cat, nil }, schemas, locators,
		coordinator.SweepConfig{Interval: w.plan.grace / 4, Grace: w.plan.grace}, shared, nil, log)
	l.workers = worker.Open(l.set, l.ctl, schemas, locators, shared, log)
	return nil
}

// openCatalog opens the catalog in the process, or one that another process serves: then what
// was sent to it is done whatever becomes of the sender.
func (l *tableLife) openCatalog() (catalog.Catalog, error) {
	w, r := l.n.w, l.actor.draw("catalog")
	within := l.actor
	if r.Float64() < w.plan.remote {
		l.log("has its catalog in another process")
		within = &actor{w: w, name: l.name + "c", ctx: w.failing, die: l.die, seen: map[string]uint64{}}
	}
	real, err := catalogsql.Open(l.ctx, w.meta.DB(), locate(&tableBucket{inFlight{w.disk, &w.sent}, within}), catalogsql.Config{
		Warehouse: "mem:///warehouse", Durable: func(ctx context.Context) error { return within.step(ctx, "swapped") },
	})
	return &tableCatalog{Catalog: real, l: l, remote: within != l.actor}, err
}

// jitter returns numbers that seed and moment decide, whoever asks first.
func (l *tableLife) jitter() float64 {
	return rand.New(rand.NewPCG(l.n.w.seed, uint64(time.Now().UnixNano()))).Float64()
}

// still stops everything that the life asks for, and every answer, until resume.
func (l *tableLife) still() (resume func()) {
	all := func(objectstore.Op, string) bool { return true }
	before, after := l.streams.Hold(objectstore.Before, all), l.streams.Hold(objectstore.After, all)
	gate := make(chan struct{})
	l.line.setStill(gate)
	l.actor.set(false, gate)
	return sync.OnceFunc(func() {
		before.Release(nil)
		after.Release(nil)
		l.line.setStill(nil)
		l.actor.set(false, nil)
		close(gate)
	})
}

// end ends the process without a word.
func (l *tableLife) end() {
	l.ended.Do(func() {
		close(l.stopping)
		l.streams.Cut(true)
		l.line.setCut(true)
		l.actor.set(true, nil)
		l.cancel()
		l.clients.Wait()
		l.closeTables()
		if l.set != nil {
			_ = l.set.Close(l.ctx)
		}
		if l.store != nil {
			_ = l.store.Close(l.ctx)
		}
	})
}

// close ends the process as an operator would.
func (l *tableLife) close() {
	l.ended.Do(func() {
		close(l.stopping)
		l.clients.Wait()
		l.closeTables()
		ctx, cancel := context.WithTimeout(l.ctx, 30*time.Second)
		defer cancel()
		err := errors.Join(l.set.Close(ctx), l.store.Close(ctx))
		l.log("closed: %v", err)
		l.streams.Cut(true)
		l.line.setCut(true)
		l.actor.set(true, nil)
		l.cancel()
	})
}

func (l *tableLife) closeTables() {
	if l.workers != nil {
		l.workers.Close()
		l.coordinators.Close()
	}
}

// An actor is who takes steps: a life, or the catalog that it uses in another process.
type actor struct {
	w    *tableWorld
	name string
	ctx  context.Context // ends with the process
	die  func()          // kills the life

	mu    sync.Mutex
	seen  map[string]uint64 // guarded by mu; steps so far
	cut   bool              // guarded by mu; the process is over
	still chan struct{}     // guarded by mu; steps wait until it is closed, if it is not nil
}

func (a *actor) set(cut bool, still chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cut, a.still = a.cut || cut, still
}

// draw returns the numbers that the seed, the actor, the kind of step and how often it came decide.
func (a *actor) draw(what string) *rand.Rand {
	a.mu.Lock()
	n := a.seen[what]
	a.seen[what]++
	a.mu.Unlock()
	hash := fnv.New64a()
	fmt.Fprint(hash, a.name, what)
	return rand.New(rand.NewPCG(a.w.seed^hash.Sum64(), n))
}

// step is a moment between two effects on a table. What happens then, the seed decides:
// nothing; the process dies; another writer changes the table; all waits; or the request
// fails here, before its effect or after.
func (a *actor) step(ctx context.Context, what string) error {
	r, p := a.draw(what), &a.w.plan.steps
	x := r.Float64()
	happens := func(share float64) bool { x -= share; return x < 0 }
	switch {
	case a.w.healed.Load():
	case happens(p.crash):
		a.w.trace.add(a.name, "dies: %s", what)
		a.die()
	case happens(p.foreign):
		a.w.foreign(r, a.name+" "+what)
	case happens(p.hold):
		d := time.Duration(r.Int64N(int64(a.w.plan.held)))
		a.w.trace.add(a.name, "held for %v: %s", d, what)
		_ = wait(ctx, d)
	case happens(p.fail):
		a.w.trace.add(a.name, "fails: %s", what)
		return fmt.Errorf("%s: %w", what, objectstore.ErrInjected)
	}
	return a.pass(ctx)
}

// pass waits while the process stands still, and fails when it is over.
func (a *actor) pass(ctx context.Context) error {
	a.mu.Lock()
	cut, still := a.cut, a.still
	a.mu.Unlock()
	if still != nil {
		select {
		case <-still:
		case <-ctx.Done():
		case <-a.ctx.Done():
		}
	}
	if cut {
		return fmt.Errorf("%w: the process is over", objectstore.ErrInjected)
	}
	return ctx.Err()
}

// A tableBucket is the bucket for the files of tables: between any two requests is a step.
type tableBucket struct {
	inFlight
	a *actor
}

// kind names the file of a table by its key.
func kind(key string) string {
	switch base := path.Base(key); {
	case strings.HasSuffix(base, ".parquet"):
		return "data file"
	case strings.HasSuffix(base, ".metadata.json"):
		return "metadata"
	case strings.HasPrefix(base, "snap-"):
		return "manifest list"
	default:
		return "manifest"
	}
}

func (b *tableBucket) steps(ctx context.Context, what string, effect func(context.Context) error) error {
	if err := b.a.step(ctx, what); err != nil {
		return err
	}
	err := effect(ctx)
	return errors.Join(err, b.a.step(ctx, what+" done"))
}

func (b *tableBucket) Put(ctx context.Context, key string, body ...[]byte) error {
	return b.send(ctx, func(ctx context.Context) error {
		return b.steps(ctx, "put "+kind(key), func(ctx context.Context) error { return b.Bucket.Put(ctx, key, body...) })
	})
}

func (b *tableBucket) PutIfAbsent(ctx context.Context, key string, body ...[]byte) error {
	b.a.w.own.Store(key, nil)
	return b.send(ctx, func(ctx context.Context) error {
		return b.steps(ctx, "put "+kind(key), func(ctx context.Context) error { return b.Bucket.PutIfAbsent(ctx, key, body...) })
	})
}

func (b *tableBucket) Delete(ctx context.Context, keys ...string) error {
	return b.send(ctx, func(ctx context.Context) error {
		return b.steps(ctx, "delete", func(ctx context.Context) error { return b.Bucket.Delete(ctx, keys...) })
	})
}

func (b *tableBucket) Get(ctx context.Context, key string, off, n int64) (data []byte, err error) {
	if err := b.a.step(ctx, "get "+kind(key)); err != nil {
		return nil, err
	}
	return b.Bucket.Get(ctx, key, off, n)
}

func (b *tableBucket) List(ctx context.Context, prefix, after string) ([]objectstore.Object, error) {
	if err := b.a.pass(ctx); err != nil {
		return nil, err
	}
	return b.Bucket.List(ctx, prefix, after)
}

func (b *tableBucket) Location(key string) string { return objectstore.Location(b.Bucket, key) }

var (
	errCatalogAway = errors.New("the catalog is away")
	errNoAnswer    = errors.New("no answer from the catalog")
)

// A tableCatalog is the catalog as a life reaches it.
type tableCatalog struct {
	catalog.Catalog
	l      *tableLife
	remote bool // what was sent is done, whatever becomes of the life
}

// ask makes one call. Unknown is what the failure of the way to the catalog means.
func (c *tableCatalog) ask(ctx context.Context, what string, unknown error, call func(context.Context) error) error {
	fails := func(err error) error {
		if unknown != nil {
			err = fmt.Errorf("%w: %w", unknown, err)
		}
		return err
	}
	if c.l.n.w.catalogAway.Load() {
		return fails(errCatalogAway)
	}
	if gate := c.l.n.w.catalogHangs.Load(); gate != nil {
		select {
		case <-*gate:
		case <-ctx.Done():
			return fails(fmt.Errorf("%w: %w", errNoAnswer, context.Cause(ctx)))
		}
	}
	if err := c.l.actor.step(ctx, what); err != nil {
		return fails(err)
	}
	if err := c.send(ctx, call); err != nil {
		return err
	}
	if err := c.l.actor.step(ctx, what+" done"); err != nil {
		return fails(err)
	}
	return nil
}

func (c *tableCatalog) send(ctx context.Context, call func(context.Context) error) error {
	if !c.remote {
		return call(ctx)
	}
	answer := make(chan error, 1)
	// It can end, or SQLite would wait for a lock in the time of the machine, in which the clock of the run stands still.
	served, done := context.WithCancel(context.WithoutCancel(ctx))
	c.l.n.w.sent.Go(func() { defer done(); answer <- call(served) })
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", catalog.ErrCommitUnknown, context.Cause(ctx))
	}
}

func (c *tableCatalog) Load(ctx context.Context, id table.Identifier) (*table.Table, error) {
	var t *table.Table
	err := c.ask(ctx, "load", nil, func(ctx context.Context) (err error) { t, err = c.Catalog.Load(ctx, id); return err })
	if err != nil {
		return nil, err
	}
	return t, nil
}

func (c *tableCatalog) Create(ctx context.Context, id table.Identifier, s *iceberg.Schema, props iceberg.Properties) (*table.Table, error) {
	var t *table.Table
	err := c.ask(ctx, "create", nil, func(ctx context.Context) (err error) { t, err = c.Catalog.Create(ctx, id, s, props); return err })
	if err != nil {
		return nil, err
	}
	return t, nil
}

func (c *tableCatalog) Commit(ctx context.Context, base *table.Table, change catalog.Commit) (*table.Table, error) {
	what := "commit properties"
	switch {
	case change.Schema != nil:
		what = "commit schema"
	case change.Snapshot:
		what = "commit data"
	}
	if c.l.n.w.plan.steps.fail > 0 && !c.l.n.w.healed.Load() && c.l.actor.draw("refuse").Float64() < c.l.n.w.plan.steps.fail {
		return nil, fmt.Errorf("%w: 409", catalog.ErrCommitConflict)
	}
	if change.Snapshot && c.l.n.w.frozen.Load() > 0 {
		if c.l.actor.draw("frozen").IntN(3) == 0 {
			return nil, errors.New("the catalog is read-only")
		}
		return nil, fmt.Errorf("%w: 503", catalog.ErrCommitUnknown)
	}
	var t *table.Table
	err := c.ask(ctx, what, catalog.ErrCommitUnknown, func(ctx context.Context) (err error) { t, err = c.Catalog.Commit(ctx, base, change); return err })
	if err != nil {
		return nil, err
	}
	return t, nil
}

func (l *tableLife) lookup(ctx context.Context, id int32) (control.RegisteredSchema, error) {
	if err := l.actor.step(ctx, "look up schema"); err != nil {
		return control.RegisteredSchema{}, err
	}
	if text, ok := writerSchemas[id]; ok && (id != lateSchema && id != latePayments || l.n.w.known.Load()) {
		return control.RegisteredSchema{Text: text}, nil
	}
	return control.RegisteredSchema{}, metadata.ErrSchemaNotExist
}

// controlTopic is a node's own: they do not reach each other.
func (n *tableNode) controlTopic() string { return fmt.Sprintf("%s-%d", control.TopicName, n.id) }
