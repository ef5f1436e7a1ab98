// Package coordinator makes the table of a topic and is the only one that commits to it.
//
// [State] decides and [Coordinator] acts. State has no clock, no goroutine and no I/O, so
// every interleaving can be written down in testdata. The Coordinator of a topic sits with
// the topic's partition 0, and the leader epoch of that partition is its own: the table
// records it, and a coordinator that meets a later one there stops.
//
//	worker ── pending ──▶ ┌─────────┐ ── request ──▶ workers
//	worker ── answer ───▶ │ control │
//	worker ── needed ───▶ │   log   │ ◀── began, table, refused, committed ── coordinator ──▶ catalog
//	                      └─────────┘
//
// Nothing but the table says how far the table is: each data commit sets the next offset of
// every partition in the same change as its snapshot, and is conditional on the table that
// it was built on. A coordinator therefore begins by reading the table, and needs nothing of
// what its predecessor knew. table_format.go has what it writes there.
package coordinator

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/maintenance"
	"github.com/tabletopic/tabletopic/parquetio"
	"github.com/tabletopic/tabletopic/partition"
)

// Topic is the topic that a Coordinator commits, or a [partition.Route] of it, which has an id and a name
// of its own.
type Topic struct {
	ID         uuid.UUID
	Name       string
	Partitions int32
	Epoch      int32 // leader epoch of partition 0
}

// Config of a Coordinator.
type Config struct {
	Namespace   string // of the table; may have dots
	Table       string // name of the table; the topic's, made legal, if empty
	KafkaColumn string // the column for topic, partition and offset; none if empty
	KeyColumn   string // the column that keys become; none if empty
	PartitionBy string // for partition.ParsePartitionBy; the table keeps its partitions if empty
	SortBy      string // for partition.ParseSortBy; the table keeps its sort order if empty
	Engines     string // that read the table, for parquetio.ParseEngines; none in particular if empty
	Properties  string // for partition.ParseProperties; the table keeps all that are not named
	OnRewind    string // RewindPause, RewindReplay or RewindAccept. RewindPause if empty
	OnRecreate  string // RecreateContinue or RecreatePause. RecreateContinue if empty
	OnDrop      string // DropRecreate or DropPause. DropRecreate if empty
	Catalog     string // name of the catalog, "" for the built-in one
	TableID     string // the table that the topic filled, as its settings name it; "" if they name none
	// Takes is which records of a topic with several tables this one has, as partition.TableConfig.Takes
	// says it. "" if it has all.
	Takes string
	// OnIncompatible says what becomes of records whose schema the table cannot hold:
	// IncompatibleDLQ, IncompatibleNewColumn or IncompatiblePause. IncompatibleDLQ if empty.
	OnIncompatible string
	ColumnCase     parquetio.Case  // of the names of new columns
	Rules          parquetio.Rules // of the type mapping of a new table
	FormatVersion  int             // of a new table. 2 if zero
	Lag            time.Duration   // records wait no longer than this for a round. 10 s if zero
	Timeout        time.Duration   // a round waits no longer than this for answers. 30 s if zero
	MinBackoff     time.Duration   // first pause between attempts at the catalog. 100 ms if zero
	MaxBackoff     time.Duration   // longest. 10 s if zero
	StuckLags      int             // a table without a commit for so many lags, while records wait, is stuck. 10 if zero
	Grace          time.Duration   // of the [Sweeper]. 1 h if zero

	Compact         string  // CompactAuto, CompactTrue or CompactFalse. CompactAuto if empty
	CompactMinFiles int     // so many small files become one. 5 if zero
	CompactSmall    float64 // share of the target size below which files are small. 0.75 if zero
	TargetFileBytes int64   // of files that are compacted, unless the table says it. 64 MiB if zero

	KeepAll      bool          // commits expire no snapshots
	ExpireAfter  time.Duration // age of snapshots that a new table's commits expire. 1 h if zero
	ExpireRetain int           // snapshots that stay whatever their age. 1 if zero
}

func (c *Config) setDefaults() {
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{{&c.Lag, 10 * time.Second}, {&c.Timeout, 30 * time.Second}, {&c.MinBackoff, 100 * time.Millisecond}, {&c.MaxBackoff, 10 * time.Second}, {&c.Grace, time.Hour}} {
		if *d.v <= 0 {
			*d.v = d.def
		}
	}
	if c.ExpireAfter <= 0 {
		c.ExpireAfter = time.Hour
	}
	c.ExpireRetain = max(c.ExpireRetain, 1)
	c.CompactMinFiles = max(2, cmp.Or(c.CompactMinFiles, 5))
	c.CompactSmall = cmp.Or(c.CompactSmall, 0.75)
	c.TargetFileBytes = cmp.Or(c.TargetFileBytes, 64<<20)
	if c.StuckLags <= 0 {
		c.StuckLags = 10
	}
	if c.FormatVersion == 0 {
		c.FormatVersion = 2
	}
	if c.OnRewind == "" {
		c.OnRewind = RewindPause
	}
}

// Schemas gives writer schemas as columns; [control.Schemas] says what its errors mean.
type Schemas interface {
	Value(ctx context.Context, w control.Writer, rules parquetio.Rules) (*parquetio.ValueSchema, error)
}

// A Coordinator commits one topic. Only Run touches its fields, but for watch.
type Coordinator struct {
	topic   Topic
	cfg     Config
	ident   table.Identifier
	catalog catalog.Catalog
	control control.Log
	schemas Schemas
	log     *slog.Logger
	metrics topicMetrics
	jitter  *rand.Rand // of pauses: two coordinators of a topic do not meet again and again

	table     *table.Table                                    // as last loaded or committed; nil before there is one
	uuid      uuid.UUID                                       // of the table that the files are for
	pinned    string                                          // the table that the topic filled, as [Config.TableID]
	keepPin   func(ctx context.Context, tableID string) error // into the settings of the topic; nil if they are not kept
	own       bool                                            // the table has had a commit of this topic
	heads     heads                                           // snapshots of it that hold the last data commit, as far as seen
	attempt   attempt                                         // the next, or nothing
	commits   int
	announced announcement     // what the workers know of
	fits      []control.Writer // what the current table schema is known to hold
	watch     watch
	turns     *turns // of looks at idle tables; of all coordinators of a node, nil if there is one alone

	compaction compactor
	asks       chan *compactionAsk
	slots      *slots            // of compactions; of all coordinators of a node, nil if there is one alone
	cores      maintenance.Cores // that are shared with the workers; may be nil
	maintainer Maintainer        // nil if the catalog leaves tables alone
}

// New returns a coordinator that has not begun. The metrics may be nil.
func New(topic Topic, cat catalog.Catalog, ctl control.Log, schemas Schemas, cfg Config, m *Metrics, log *slog.Logger) (*Coordinator, error) {
	cfg.setDefaults()
	ident, err := Identifier(cfg.Namespace, cfg.Table, topic.Name)
	if err != nil {
		return nil, err
	}
	c := &Coordinator{
		topic: topic, cfg: cfg, ident: ident, control: ctl, schemas: schemas, pinned: cfg.TableID,
		log:     log.With("topic", topic.Name, "table", strings.Join(ident, "."), "epoch", topic.Epoch),
		metrics: m.topic(topic.Name),
		asks:    make(chan *compactionAsk),
		jitter:  rand.New(rand.NewPCG(binary.BigEndian.Uint64(topic.ID[:8]), uint64(topic.Epoch))),
	}
	c.maintainer, _ = cat.(Maintainer)
	c.catalog = &watched{cat, &c.watch, c.metrics.up}
	return c, nil
}

// Run coordinates until ctx ends, or a newer coordinator has the table (ErrFenced).
func (c *Coordinator) Run(ctx context.Context) error {
	for attempt := 0; ; attempt++ {
		err := c.run(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, ErrFenced) {
			c.watch.tell(func(h *Health, now time.Time) { h.Paused(err, now) })
			c.log.Warn("coordinator stops", "error", err)
			return err
		}
		c.watch.tell(func(h *Health, now time.Time) { h.Broken(err, now) })
		c.log.Error("coordinator begins again from the table", "error", err)
		if err := c.pause(ctx, attempt); err != nil {
			return err
		}
	}
}

// run owns the State, from the table as it is now. It returns when ctx ends, when the
// coordinator is fenced, and with an error after which it must begin anew.
func (c *Coordinator) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	tail, err := c.control.Tail(c.topic.ID)
	if err != nil {
		return fmt.Errorf("tail control log: %w", err)
	}
	events := make(chan control.Event, 64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer tail.Close()
		for {
			e, err := tail.Next(ctx)
			if err != nil {
				cancel(err)
				return
			}
			select {
			case events <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	defer func() { cancel(nil); <-done }()

	next, err := c.open(ctx)
	if err != nil {
		return err
	}
	if err := c.arrange(ctx); err != nil {
		return err
	}
	st := NewState(c.topic.Epoch, c.topic.Partitions, next, c.cfg.Lag, c.cfg.Timeout)
	if err := c.append(ctx, control.Began{Epoch: c.topic.Epoch, Table: c.uuid}); err != nil {
		return err
	}
	if err := c.announce(ctx, st); err != nil {
		return err
	}
	c.watch.tell(func(h *Health, now time.Time) { h.Begun(now) })

	c.compaction = compactor{done: make(chan *rewritten, 1), fresh: c.cfg.CompactMinFiles}
	defer func() {
		cancel(nil)
		c.compaction.owned.Wait()
		select {
		case r := <-c.compaction.done:
			r.forget()
		default:
		}
		if a := c.compaction.asked; a != nil {
			a.end <- errors.New("the coordinator of the table has stopped: try it again")
		}
	}()
	c.compact(ctx)

	var wake <-chan time.Time
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	idle := time.NewTimer(c.cfg.Lag)
	defer idle.Stop()
	turn := false // to glance at the table, when idle is over
	for {
		var step Step
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case e := <-events:
			step, err = c.handle(ctx, st, e)
		case <-wake:
			step = st.Tick(uuid.New(), time.Now())
			c.foresee(&step)
		case <-idle.C:
			wait := time.Until(c.watch.lastCall().Add(c.cfg.Lag))
			if wait > 0 {
				turn = false
			} else if !turn {
				wait, turn = c.turns.next(time.Now()), true
			}
			if wait > 0 {
				idle.Reset(wait)
				continue
			}
			turn = false
			step, err = c.glance(ctx, st)
			idle.Reset(c.cfg.Lag)
		case r := <-c.compaction.done:
			if err = c.compacted(ctx, r); err == nil && c.table != nil {
				err = c.announceChange(ctx, st)
			}
			step.Wake = st.wake()
		case a := <-c.asks:
			c.ask(a)
			step.Wake = st.wake()
		}
		c.watch.tell(func(h *Health, _ time.Time) { h.Waits(st.Waits()) })
		if err == nil {
			err = c.act(ctx, st, &step)
		}
		if err != nil {
			return err
		}
		c.watch.show(c.table)
		c.watch.tell(func(h *Health, _ time.Time) { h.Waits(st.Waits()) })
		c.compact(ctx)
		wake = nil
		if c.table != nil && !step.Wake.IsZero() {
			timer.Reset(time.Until(step.Wake))
			wake = timer.C
		}
	}
}

// act does what a step says, in order.
func (c *Coordinator) act(ctx context.Context, st *State, step *Step) error {
	if step.Ignored != "" {
		c.log.Debug("answer ignored", "reason", step.Ignored)
	}
	if err := c.append(ctx, step.Append...); err != nil {
		return err
	}
	if step.Commit == nil {
		return nil
	}
	cm := step.Commit
	held, forget := c.keepNamed(ctx, control.Journal{At: cm.Named, Table: c.uuid, Names: cm.names()})
	snapshot, names, err := c.commit(held, cm)
	forget()
	switch {
	case err == nil:
		c.watch.tell(func(h *Health, now time.Time) { h.Committed(now) })
		*step = st.Done(snapshot, names, time.Now())
		c.metrics.committed(cm)
		for _, f := range cm.Files {
			c.compaction.fresh += len(f.Data)
		}
		for _, g := range cm.gaps() {
			level, what := slog.LevelWarn, "the log had lost offsets before they reached the table; the snapshot records the gap"
			if g.Reason == LostStart {
				level, what = slog.LevelInfo, "the table begins at table.topic.start; the snapshot records what is before"
			}
			c.log.Log(ctx, level, what, "partition", g.Partition, "offset", g.Start, "until", g.End)
		}
		c.log.Info("committed", "commit_id", cm.ID, "snapshot", snapshot, "files", len(cm.Files), "ranges", len(cm.Ranges))
		if err := c.append(ctx, step.Append...); err != nil {
			return err
		}
		return c.announceChange(ctx, st)
	case errors.Is(err, errMoved), errors.Is(err, errReplaced), errors.Is(err, errRewound), errors.Is(err, errLapsed):
		c.log.Warn("commit is void: the workers begin again from the table", "commit_id", cm.ID, "error", err)
		*step, err = c.restart(ctx, st)
		return err
	case errors.Is(err, ErrFenced), ctx.Err() != nil:
		return err
	}
	c.metrics.failures.Inc()
	c.refused(err)
	c.log.Error("commit refused: its records wait and are tried again", "commit_id", cm.ID, "error", err)
	*step = st.Failed(time.Now(), c.cfg.MaxBackoff)
	return c.reload(ctx)
}

// restart begins again from the table, with the workers.
func (c *Coordinator) restart(ctx context.Context, st *State) (Step, error) {
	next, err := c.open(ctx)
	if err != nil {
		return Step{}, err
	}
	st.Reset(next)
	if c.table == nil {
		return Step{}, c.append(ctx, control.Began{Epoch: c.topic.Epoch, Table: c.uuid})
	}
	return Step{Wake: st.wake()}, c.announce(ctx, st)
}

// glance loads a table that had no call to its catalog for a while, so that it is noticed without
// a record when the catalog is away, and when the table was dropped, replaced or rolled back.
func (c *Coordinator) glance(ctx context.Context, st *State) (Step, error) {
	step := Step{Wake: st.wake()}
	within, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	t, err := c.catalog.Load(within, c.ident)
	cancel()
	dropped := errors.Is(err, catalog.ErrNoTable)
	switch {
	case c.table == nil, err != nil && !dropped: // the state of the table tells of the error
		return step, nil
	case dropped:
		err = fmt.Errorf("%w: it was dropped", errReplaced)
	default:
		c.table = t
		var v view
		if v, err = c.look(ctx); err == nil && !maps.Equal(v.next, st.next) {
			err = errMoved
		}
		if err == nil {
			c.renew(ctx, v)
		}
	}
	switch {
	case errors.Is(err, ErrFenced), ctx.Err() != nil:
		return step, err
	case err != nil:
		c.log.Warn("the table is not as it was left: the workers begin again from it", "error", err)
		return c.restart(ctx, st)
	}
	return step, c.announceChange(ctx, st)
}

// renew has the table name snapshots that hold its last data commit, when those that it names
// have expired. If that fails the next glance does it.
func (c *Coordinator) renew(ctx context.Context, v view) {
	for _, id := range v.position.Heads {
		if c.table.SnapshotByID(id) != nil {
			return
		}
	}
	if len(v.heads) == 0 {
		return
	}
	p := v.position
	p.Heads = v.heads
	t, err := c.alter(ctx, catalog.Commit{Properties: iceberg.Properties{keyHeads: p.headsProperty()}})
	if err != nil {
		c.log.Info("snapshots that hold the last commit are not recorded: trying again later", "error", err)
		return
	}
	c.table = t
}

// announceChange tells the workers of a schema, a partition spec, a sort order or write properties
// that another writer set.
func (c *Coordinator) announceChange(ctx context.Context, st *State) error {
	if c.announced.equal(c.announcement()) {
		return nil
	}
	c.fits = nil
	return c.announce(ctx, st)
}

// turns spreads the glances at the tables of a node.
type turns struct {
	mu   sync.Mutex
	free time.Time // guarded by mu; the next turn
}

// glancesPerSecond bounds what idle tables cost their catalogs, whatever their number.
const glancesPerSecond = 20

// next returns how long to wait for a turn, which is taken.
func (t *turns) next(now time.Time) time.Duration {
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	at := later(now, t.free)
	t.free = at.Add(time.Second / glancesPerSecond)
	return at.Sub(now)
}

// handle folds an event into the State, or serves it.
func (c *Coordinator) handle(ctx context.Context, st *State, e control.Event) (Step, error) {
	now := time.Now()
	switch e := e.(type) {
	case control.Began:
		if e.Epoch > c.topic.Epoch {
			return Step{}, fmt.Errorf("%w: epoch %d began", ErrFenced, e.Epoch)
		}
	case control.Hello:
		if c.table == nil {
			return st.Apply(e, now), c.append(ctx, control.Began{Epoch: c.topic.Epoch, Table: c.uuid})
		}
		return st.Apply(e, now), c.announce(ctx, st)
	case control.Needed:
		if err := c.fit(ctx, st, e.Writer); err != nil {
			return Step{}, err
		}
	}
	return st.Apply(e, now), nil
}

func (c *Coordinator) append(ctx context.Context, events ...control.Event) error {
	if len(events) == 0 {
		return nil
	}
	if err := c.control.Append(ctx, c.topic.ID, events...); err != nil {
		return fmt.Errorf("append to control log: %w", err)
	}
	return nil
}

// An announcement is what workers know of how files are written.
type announcement struct {
	schema, spec, order int
	writing             iceberg.Properties
}

func (c *Coordinator) announcement() announcement {
	t := c.table
	a := announcement{t.Schema().ID, t.Metadata().DefaultPartitionSpec(), t.Metadata().DefaultSortOrder(), iceberg.Properties{}}
	for name, value := range t.Properties() {
		if parquetio.IsWriteProperty(name) {
			a.writing[name] = value
		}
	}
	if rules, err := RulesOf(c.cfg, t); err == nil { // else look has refused the table
		a.writing[keyMapping] = rules.String()
	}
	return a
}

func (a announcement) equal(b announcement) bool {
	return a.schema == b.schema && a.spec == b.spec && a.order == b.order && maps.Equal(a.writing, b.writing)
}

// sortOrder returns the sort order of the table as JSON, nothing if files are not sorted.
func (c *Coordinator) sortOrder() ([]byte, error) {
	order := c.table.SortOrder()
	if order.Len() == 0 {
		return nil, nil
	}
	if err := parquetio.CheckSortOrder(c.table.Schema(), order); err != nil {
		c.log.Warn("files are written unsorted", "error", err)
		return nil, nil
	}
	text, err := json.Marshal(order)
	if err != nil {
		return nil, fmt.Errorf("sort order of table %v: %w", c.ident, err)
	}
	return text, nil
}

// announce tells the workers what the table is and holds.
func (c *Coordinator) announce(ctx context.Context, st *State) error {
	if c.table == nil {
		return nil
	}
	schema, err := json.Marshal(c.table.Schema())
	if err != nil {
		return fmt.Errorf("schema of table %v: %w", c.ident, err)
	}
	if err := c.checkSpec(); err != nil {
		return err
	}
	var partitions []byte
	if spec := c.table.Spec(); spec.NumFields() > 0 {
		if partitions, err = json.Marshal(spec); err != nil {
			return fmt.Errorf("partitions of table %v: %w", c.ident, err)
		}
	}
	order, err := c.sortOrder()
	if err != nil {
		return err
	}
	meta, m := c.table.Metadata(), mapping(c.cfg, c.table)
	c.announced = c.announcement()
	return c.append(ctx, control.Table{
		Epoch:         c.topic.Epoch,
		UUID:          meta.TableUUID(),
		Location:      strings.TrimSuffix(catalog.DataLocation(c.table, ""), "/"),
		FormatVersion: meta.Version(),
		Spec:          meta.DefaultPartitionSpec(),
		Partitions:    partitions,
		LastColumnID:  meta.LastColumnID(),
		KafkaColumn:   m.KafkaColumn,
		NewColumns:    m.NewColumns,
		Former:        control.FormerNames(m.Former),
		Schema:        schema,
		Fits:          c.fits,
		Next:          st.Next(),
		Order:         order,
		Writing:       control.Properties(c.announced.writing),
	})
}

// open loads the table, if there is one, and returns what it holds. It waits while the
// catalog is away, and while the table is rewound or gone and the policy is to pause.
func (c *Coordinator) open(ctx context.Context) (map[int32]int64, error) {
	c.table, c.uuid, c.own, c.fits = nil, uuid.UUID{}, false, nil
	for attempt := 0; ; attempt++ {
		err := c.reload(ctx)
		if err != nil && !errors.Is(err, errReplaced) {
			return nil, err
		}
		c.uuid = uuid.UUID{}
		if err != nil {
			c.table = nil
		} else {
			c.uuid = c.table.Metadata().TableUUID()
		}
		err = c.checkDropped(c.uuid)
		if err == nil && c.table == nil {
			c.metrics.paused.Set(0)
			c.watch.show(nil)
			c.watch.tell(func(h *Health, now time.Time) { h.Begun(now) })
			return map[int32]int64{}, nil // made when a worker needs it
		}
		var v view
		if err == nil {
			v, err = c.look(ctx)
		}
		if err == nil {
			c.remember(ctx)
			c.metrics.paused.Set(0)
			c.watch.show(c.table)
			c.watch.tell(func(h *Health, now time.Time) { h.Begun(now); h.Filled(v.own) })
			c.foreseen(v)
			return v.next, c.prove(ctx)
		}
		if errors.Is(err, ErrFenced) {
			return nil, err
		}
		c.metrics.paused.Set(1)
		c.watch.show(c.table)
		c.watch.tell(func(h *Health, now time.Time) { h.Paused(err, now) })
		if attempt == 0 {
			c.log.Error("table paused", "error", err)
		}
		if err := c.pause(ctx, attempt); err != nil {
			return nil, err
		}
	}
}

// CheckOwner refuses a table that another topic fills.
func CheckOwner(t *table.Table, topic string) error {
	if owner, ok := t.Properties()[keyTopic]; ok && owner != topic && !invariant.Off("table-of-another-topic") {
		name, setting := topic, "table.topic.name"
		if base, record := partition.SplitRoute(topic); record != "" {
			name, setting = base, "table.topic.fan.out"
		}
		return fmt.Errorf("table %s is that of topic %q: set %s of topic %q to another name", strings.Join(t.Identifier(), "."), owner, setting, name)
	}
	return nil
}

// refused notes why a commit, or the table itself, did not come about.
func (c *Coordinator) refused(err error) {
	c.watch.tell(func(h *Health, now time.Time) { h.Refused(err, now) })
}

// foreseen logs what an operator should know of before the next commit.
func (c *Coordinator) foreseen(v view) {
	if !v.own && v.position.Topic != (uuid.UUID{}) {
		c.log.Warn("the table holds rows of an earlier topic of this name: the records of this one are added to them",
			"earlier_topic_id", v.position.Topic, "topic_id", c.topic.ID)
	}
	for _, a := range v.accepted {
		c.log.Warn("rows that a rollback removed from the table are left out; the next snapshot records the gap",
			"partition", a.Partition, "offset", a.Start, "until", a.End)
	}
}

// fit makes or evolves the table so that it holds what w writes, and answers the worker.
// A registry that is away leaves the question open: the worker asks again.
func (c *Coordinator) fit(ctx context.Context, st *State, w control.Writer) error {
	for attempt := 0; ; attempt++ {
		v, err := c.columns(ctx, w)
		if control.Certain(err) {
			return c.refuse(ctx, w, err)
		} else if err != nil {
			c.log.Warn("schema not read: the worker asks again", "error", err)
			return nil
		}
		done, err := c.tryFit(ctx, v)
		switch {
		case errors.Is(err, errUnfit) && (c.adopts() || c.cfg.OnIncompatible == IncompatiblePause):
			if c.adopts() {
				err = fmt.Errorf("the table was there before the topic, and its columns are not those of the records: %w; change these columns of the table, set table.topic.on.incompatible=new-column to give the fields columns of their own, or table.topic.name to another table", err)
			} else {
				err = fmt.Errorf("%w; change the table, or set table.topic.on.incompatible to dlq or new-column", err)
			}
			c.log.Warn("schema does not fit the table: its records wait", "schema", w, "error", err)
			c.watch.tell(func(h *Health, now time.Time) { h.Unfit(w.String(), err, now) })
			return nil // the worker asks again
		case errors.Is(err, errUnfit):
			return c.refuse(ctx, w, err)
		case err != nil:
			return err // of the catalog, and no fault of the records
		case done:
			c.watch.tell(func(h *Health, now time.Time) { h.Unfit(w.String(), nil, now) })
			if w != (control.Writer{}) && w.Format != control.FormatJSON { // which no worker looks up
				c.fits = append(c.fits[:len(c.fits):len(c.fits)], w)
				if len(c.fits) > 100 {
					c.fits = c.fits[1:]
				}
			}
			c.metrics.schema.Set(float64(c.table.Schema().ID))
			if err := c.arrange(ctx); err != nil {
				return err
			}
			return c.announce(ctx, st)
		}
		if err := c.pause(ctx, attempt); err != nil {
			return err
		}
	}
}

// columns returns what w writes, in the table as it is.
func (c *Coordinator) columns(ctx context.Context, w control.Writer) (*parquetio.ValueSchema, error) {
	if w == (control.Writer{}) {
		return &parquetio.ValueSchema{}, nil
	}
	rules, err := RulesOf(c.cfg, c.table)
	if err != nil {
		return nil, err
	}
	v, err := c.schemas.Value(ctx, w, rules)
	if err == nil && w.Key {
		v = v.AsKey()
	}
	return v, err
}

func (c *Coordinator) refuse(ctx context.Context, w control.Writer, err error) error {
	c.log.Warn("schema refused: its records become dead letters", "schema", w, "error", err)
	return c.append(ctx, control.Refused{Epoch: c.topic.Epoch, Writer: w, Reason: err.Error()})
}

// adopts reports whether somebody else made the table, and no record of the topic is in it yet.
func (c *Coordinator) adopts() bool {
	if c.table == nil {
		return false
	}
	_, ours := c.table.Properties()[keyTopic]
	return !ours
}

// What becomes of records whose schema the table cannot hold.
const (
	IncompatibleDLQ       = "dlq"        // they become dead letters
	IncompatibleNewColumn = "new-column" // fields that do not fit get a column of their own
	IncompatiblePause     = "pause"      // they wait until somebody changes the table
)

// tryFit is one attempt; done is false if the catalog must be asked again.
func (c *Coordinator) tryFit(ctx context.Context, v *parquetio.ValueSchema) (done bool, err error) {
	if c.table == nil {
		return c.create(ctx, v)
	}
	next, changed, err := plan(c.cfg, c.table, v)
	if err != nil {
		return false, err
	}
	if !changed {
		return true, nil
	}
	commit := catalog.Commit{Schema: next}
	if names, err := extendNameMapping(c.table.Properties()[table.DefaultNameMappingKey], c.table.Schema(), next); err != nil {
		c.log.Warn("the table's name mapping stays as it is", "error", err)
	} else if names != "" {
		commit.Properties = iceberg.Properties{table.DefaultNameMappingKey: names}
	}
	t, err := c.alter(ctx, commit)
	switch {
	case err == nil:
		c.log.Info("table schema evolved", "schema", next.ID, "columns", next.NumFields())
		c.table, c.fits = t, nil
		return true, nil
	case errors.Is(err, catalog.ErrCommitConflict), errors.Is(err, catalog.ErrCommitUnknown):
		c.log.Info("schema commit not done: reading the table again", "error", err)
		c.fits = nil
		if err := c.reload(ctx); err != nil {
			return false, err
		}
		_, err := c.look(ctx)
		return false, err
	}
	return false, err
}

// create makes the table and proves that its catalog keeps what we set.
func (c *Coordinator) create(ctx context.Context, v *parquetio.ValueSchema) (done bool, err error) {
	schema, _, err := plan(c.cfg, nil, v)
	if err != nil {
		return false, err
	}
	props := c.properties()
	asked, err := lackingProperties(c.cfg.Properties, props)
	if err != nil {
		return false, fmt.Errorf("create table %v: %w", c.ident, err)
	}
	maps.Copy(props, asked)
	props[keyProbe] = probe
	if _, err = c.catalog.Create(ctx, c.ident, schema, props); err == nil {
		c.log.Info("table created", "columns", schema.NumFields())
	} else if ctx.Err() == nil {
		c.refused(err)
		c.log.Warn("create table: reading what is there", "error", err)
	}
	next, err := c.open(ctx)
	if err == nil && len(next) > 0 {
		return false, fmt.Errorf("%w: it came back", errMoved)
	}
	return false, err // the next attempt finds the table, or makes it again
}

// probe is a property as long as the longest that a commit sets.
var probe = strings.Repeat("0123456789abcdef", maxValue/16)

// prove refuses a catalog that drops or shortens the properties that we rely on: it reads
// the table that was just made, or sets and reads one of a table that was there before.
func (c *Coordinator) prove(ctx context.Context) error {
	for attempt := 0; ; attempt++ {
		switch c.table.Properties()[keyProbe] {
		case probe, "ok":
			return nil
		}
		if attempt > 0 && !invariant.Off("property-probe") {
			return fmt.Errorf("the catalog does not keep table properties of %d bytes: table %v cannot record how far it is; use another catalog", maxValue, c.ident)
		}
		_, err := c.alter(ctx, catalog.Commit{Properties: iceberg.Properties{keyProbe: probe}})
		if err != nil && !errors.Is(err, catalog.ErrCommitConflict) && !errors.Is(err, catalog.ErrCommitUnknown) {
			return fmt.Errorf("set a property of table %v: %w", c.ident, err)
		}
		if err != nil {
			attempt = -1 // not a proof of anything
		}
		if err := c.pause(ctx, 0); err != nil {
			return err
		}
		if err := c.reload(ctx); err != nil {
			return err
		}
		if invariant.Off("property-probe") {
			return nil
		}
	}
}
