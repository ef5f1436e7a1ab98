// Package worker turns the records of a topic into data files for its table.
//
// There is one [Worker] per table of a topic on a node, for the partitions that the node leads. It
// reads committed batches in process and converts them as they arrive, several partitions
// into one file, so that a file is nearly ready when the coordinator asks for it:
//
//	partitions ─▶ tasks (decode, on all cores) ─▶ lanes (one open file each) ─▶ files, journalled, PUT ─▶ answer
//
// Promises. A file is named in the journal before it is written. What is in an answer is
// durable: its files, and the dead letters of its ranges. Files wait for the commit that
// adopts them and are offered again in every round until then, never written twice. A
// record becomes a dead letter only if what is wrong with it is certain; while the registry
// is away its partition waits, and the others go on. Workers know no catalog: what they must
// know of the table comes by the control log.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/internal/limitlog"
	"github.com/tabletopic/tabletopic/parquetio"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// Topic is the topic that a Worker converts, or a [partition.Route] of it, which has an id and a name of
// its own.
type Topic struct {
	ID   uuid.UUID
	Name string
}

// A Source is a partition as a worker reads it.
type Source interface {
	// Read returns the batches of committed records from offset from on, at least one if
	// there is any, and the offset that follows what it passed. The first batch may begin
	// before from. ErrBelowStart if the log begins after from.
	Read(ctx context.Context, from int64, maxBytes int) (batches []record.Batch, next int64, err error)
	// Bounds returns the first offset of the log, and the end of what Read returns.
	Bounds() (start, end int64)
	// Notify sends on ch, without blocking, whenever the bounds moved, until stop.
	Notify(ch chan<- struct{}) (stop func())
	// Hold keeps retention away from offset and what follows.
	Hold(offset int64)
}

// ErrBelowStart says that the log no longer has the offset.
var ErrBelowStart = errors.New("offset below the log's start")

// Schemas gives writer schemas as columns; [control.Schemas] says what its errors mean.
type Schemas interface {
	Value(ctx context.Context, w control.Writer, rules parquetio.Rules) (*parquetio.ValueSchema, error)
	Indexed(ctx context.Context, id int32) (bool, error)
	Latest(ctx context.Context, subject, message string) (control.Writer, error)
	GUID(ctx context.Context, guid uuid.UUID) (int32, error)
	Record(ctx context.Context, w control.Writer) (string, error)
}

// DeadLetters takes the records that cannot become rows.
type DeadLetters interface {
	// Append returns when the letters of a source partition, by offset, are durable. Those
	// at or below the last one that it has for the partition are there already.
	Append(ctx context.Context, partition int32, letters []Letter) error
	// Since returns the offsets, from from on, whose records are dead letters already: true for those
	// of this table, false for those of the topic's own table, of a time when it took them.
	Since(ctx context.Context, partition int32, from int64) (map[int64]bool, error)
}

// A Letter is a record that cannot become a row.
type Letter struct {
	Record   record.Record // its offset and timestamp are those of the source
	Cause    string        // one of the Cause constants
	Detail   string
	SchemaID int32  // 0 if the payload does not name one
	Type     string // of the record, in a topic with several tables; "" if it is not known
}

// Causes of dead letters.
const (
	CauseBadHeader     = "bad-schema-header"   // the header that names the schema is not in a form of serializers
	CauseNoMagic       = "no-magic-byte"       // the payload is not in the wire format of schema registries
	CauseUnknownSchema = "unknown-schema"      // the registry says that the id does not exist
	CauseBadSchema     = "unusable-schema"     // the schema cannot become columns
	CauseIncompatible  = "incompatible-schema" // the table cannot hold what it describes
	CauseUndecodable   = "undecodable"         // the payload is not what the schema says
	CauseNoTable       = "no-table"            // the topic has tables for types of records, and none for this one
	CauseTombstone     = "tombstone"           // there is no payload; never a letter, but counted with table.topic.tombstone=skip
)

// Config of a Worker.
type Config struct {
	TargetFileBytes int64             // a file is closed when it has this size. 64 MiB if zero
	ChunkBytes      int               // a task reads about this much. 1 MiB if zero
	MaxLanes        int               // files open at a time. GOMAXPROCS if zero
	Retry           time.Duration     // pause before the registry or a store is asked again. 1 s if zero
	Grace           time.Duration     // of the sweep; files that wait are journalled again after a quarter of it. 1 h if zero
	Offer           time.Duration     // files that no commit took are offered again after this. 30 s if zero
	Value           partition.Payload // what values are; with FormatSchemaID if it has no format
	Key             partition.Payload // what keys are, if they become a column
	KeyColumn       string            // that they become; none if empty
	Engines         parquetio.Engines // that read the table
	SkipTombstones  bool              // a record without value becomes nothing, instead of a row of nulls
	Rules           parquetio.Rules   // of the type mapping, while there is no table
	Share           Share             // of the records of the topic
	Tolerance       string            // partition.TolerateDLQ, …: what becomes of a record that cannot become a row. TolerateDLQ if empty
	// Start returns where a partition begins of which the table has nothing; at the start of its
	// log if nil.
	Start  func(ctx context.Context, partition int32) (int64, error)
	Gather time.Duration // a partition with few records is read after this, or for a commit. 1 s if zero
}

// A Worker converts the partitions of one topic that this node leads. Only run touches the
// fields without a comment of their own.
type Worker struct {
	topic   Topic
	cfg     Config
	id      uuid.UUID
	control control.Log
	schemas Schemas
	dead    DeadLetters
	locator catalog.Locator
	shared  *Shared
	log     *slog.Logger
	faults  *limitlog.Logger // of decoders: each record may show one
	metrics *topicMetrics

	parts   map[int32]*part
	order   []*part // by index, for fairness
	cursor  int
	epoch   int32
	table   *tableInfo // nil until the coordinator described it
	refused map[control.Writer]string
	gen     *generation
	request *control.Request // to be answered
	sealed  time.Time        // when request came; what its answer lacks counts as arrived then
	open    bool             // what request waits for is still being read
	upto    int              // files that the answer has; -1 while lanes are being sealed
	oldest  time.Time        // arrival of the oldest record that no answer has; zero if none
	told    bool             // the coordinator knows of oldest
	offered time.Time        // when files were last offered
	due     bool             // files that wait are to be named in the journal again
	asked   map[control.Writer]time.Time
	out     chan control.Event // to the sender, in order

	known        atomic.Bool  // the coordinator has said where the table is
	waitingFiles atomic.Int64 // sealed, and not in the table

	openBytes atomic.Int64  // bytes of the memory budget in open files that no task has
	pressed   chan struct{} // somebody needs memory, and this worker has the most of it
}

// part is a partition.
type part struct {
	index  int32
	source Source

	committed atomic.Int64 // what the table holds; -1 if the partition has not begun there
	begins    atomic.Int64 // where it begins, if the table has nothing of it and that is known; 0 if not
	written   atomic.Int64 // what data files hold, as far as they are durable without a hole; -1 likewise
	lag       lag

	next    int64 // to be read; -1 at the log's start
	gap     int64 // offsets before next that the log had lost
	busy    bool  // a task reads it
	lane    *lane // where its records go until the lane is sealed
	waits   bool  // for the answer to Needed
	retryAt time.Time
	later   time.Time      // few records come: they are read together then …
	urgent  int64          // … or now, up to this offset: a request waits for them; 0 if none does
	skip    map[int64]bool // dead letters of an earlier life, as [DeadLetters.Since] gives them; nil until known
	// forgotten is how often the verdicts had, before skip was read.
	forgotten int64
}

// tableInfo is what the worker knows of the table. It does not change.
type tableInfo struct {
	control.Table
	mapping parquetio.Mapping
	rules   parquetio.Rules
	schema  *iceberg.Schema
	spec    iceberg.PartitionSpec
	writing parquetio.WriterConfig
	bare    bool // it lacks columns that every row has: somebody else made it, or dropped them

	decoders sync.Map // control.Writer → *parquetio.Decoder
}

// generation is the work on one line of offsets. When the coordinator says that the table
// is not where the work continues, the generation ends and its files are void.
type generation struct {
	parent  context.Context // of the run
	ctx     context.Context
	cancel  context.CancelFunc
	tasks   sync.WaitGroup
	running int64         // bytes that tasks have reserved
	results chan func()   // run by the loop
	lanes   []*lane       // open files
	files   []*file       // sealed, in the order of their offsets, until the table holds them
	naming  bool          // they are being journalled again
	letters chan struct{} // closed when the dead letters of all sealed lanes are durable
}

func newGeneration(ctx context.Context) *generation {
	g := &generation{parent: ctx, results: make(chan func(), 16), letters: make(chan struct{})}
	g.ctx, g.cancel = context.WithCancel(ctx)
	close(g.letters)
	return g
}

// end gives up the work, and returns when its last goroutine has.
func (g *generation) end(s *Shared) {
	g.cancel()
	g.tasks.Wait()
	s.budget.add(-g.running)
	for _, l := range g.lanes {
		s.budget.add(-l.reserved)
	}
	for _, f := range g.files {
		s.budget.add(-f.reserved)
	}
	g.lanes, g.files, g.running = nil, nil, 0
}

// open returns the memory of open files that no task has.
func (g *generation) open() (n int64) {
	for _, l := range g.lanes {
		if !l.busy && !l.sealing {
			n += l.reserved
		}
	}
	return n
}

// entries returns the size of the manifest entries that wait for a commit.
func (g *generation) entries() (n int64) {
	for _, f := range g.files {
		if f.done {
			n += f.reserved
		}
	}
	return n
}

// named returns the lanes of open files and of files that wait for a commit, and their names.
func (g *generation) named() (lanes []*lane, names []string) {
	for _, l := range g.lanes {
		lanes, names = append(lanes, l), append(names, l.names(l.first)...)
	}
	for _, f := range g.files {
		lanes, names = append(lanes, f.lane), append(names, f.lane.names(f.names)...)
	}
	return lanes, names
}

// report hands fn to the loop, unless the generation has ended.
func (g *generation) report(fn func()) {
	select {
	case g.results <- fn:
	case <-g.ctx.Done():
	}
}

// New returns a worker for sources, by partition.
func New(topic Topic, sources map[int32]Source, ctl control.Log, schemas Schemas, dead DeadLetters,
	locator catalog.Locator, shared *Shared, cfg Config, log *slog.Logger) *Worker {
	cfg.setDefaults()
	w := &Worker{
		topic: topic, cfg: cfg, id: uuid.New(), control: ctl, schemas: schemas, dead: dead, locator: locator,
		shared: shared, log: log.With("topic", topic.Name), metrics: shared.metrics.topic(topic.Name),
		parts: map[int32]*part{}, asked: map[control.Writer]time.Time{},
		out: make(chan control.Event, 64), pressed: make(chan struct{}, 1),
	}
	for i, s := range sources {
		p := &part{index: i, source: s}
		p.committed.Store(-1)
		w.parts[i] = p
	}
	w.faults = limitlog.New(w.log)
	w.order = sortedParts(w.parts)
	return w
}

// Run converts until ctx ends.
func (w *Worker) Run(ctx context.Context) error {
	defer w.shared.metrics.watch(w)()
	for attempt := 0; ; attempt++ {
		err := w.run(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		w.log.Warn("table worker begins again", "error", err)
		if err := sleep(ctx, min(w.cfg.Retry<<min(attempt, 5), 10*time.Second)); err != nil {
			return err
		}
	}
}

// run owns the worker's state. It returns when ctx ends or the control log is lost.
func (w *Worker) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var owned sync.WaitGroup
	defer owned.Wait()
	defer cancel(nil)
	tail, err := w.control.Tail(w.topic.ID)
	if err != nil {
		return fmt.Errorf("tail control log: %w", err)
	}
	events := make(chan control.Event, 64)
	owned.Go(func() { w.follow(ctx, tail, events, cancel) })
	owned.Go(func() { w.sender(ctx) })
	moved := make(chan struct{}, 1)
	for _, p := range w.order {
		defer p.source.Notify(moved)()
	}
	w.begin(ctx, nil, nil)
	defer func() {
		w.gen.end(w.shared)
		for _, p := range w.order {
			if w.cfg.Share.own() {
				w.shared.verdicts.leave(partOf{w.cfg.Share.Topic, p.index})
			}
		}
	}()
	defer w.shared.join(w)()
	w.send(ctx, control.Hello{Worker: w.id, Partitions: w.indexes()})

	tick := time.NewTicker(w.cfg.Retry)
	defer tick.Stop()
	refresh := time.NewTicker(control.Refresh(w.cfg.Grace))
	defer refresh.Stop()
	for {
		w.schedule(ctx)
		w.settle(ctx)
		w.tell(ctx)
		w.answer(ctx)
		w.openBytes.Store(w.gen.open())
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case e := <-events:
			w.handle(ctx, e)
		case fn := <-w.gen.results:
			fn()
			w.note()
		case <-moved:
		case <-w.shared.budget.freed():
		case <-w.pressed:
			if w.shared.budget.short() {
				w.relieve(ctx)
			}
		case <-tick.C:
			w.rejournal()
		case <-refresh.C:
			w.due = true
			w.rejournal()
		}
	}
}

// follow hands events to the loop until ctx ends.
func (w *Worker) follow(ctx context.Context, tail control.Tail, events chan<- control.Event, cancel context.CancelCauseFunc) {
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
}

// sender appends what the loop says, in order. An event that is appended twice because its
// first outcome was not known does no harm.
func (w *Worker) sender(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-w.out:
			for w.control.Append(ctx, w.topic.ID, e) != nil {
				if sleep(ctx, w.cfg.Retry) != nil {
					return
				}
			}
		}
	}
}

func (w *Worker) send(ctx context.Context, e control.Event) {
	select {
	case w.out <- e:
	case <-ctx.Done():
	}
}

// handle folds one control event into the worker.
func (w *Worker) handle(ctx context.Context, e control.Event) {
	switch e := e.(type) {
	case control.Began:
		if e.Epoch < w.epoch {
			return
		}
		w.epoch, w.request, w.open, w.told = e.Epoch, nil, false, false
		if w.oldest.IsZero() && len(w.gen.files)+len(w.gen.lanes) > 0 {
			w.oldest = time.Now()
		}
		clear(w.asked)
		for _, p := range w.order {
			p.retryAt = time.Time{}
		}
		if e.Table == (uuid.UUID{}) {
			w.known.Store(true)
		}
		if w.table != nil && w.table.UUID != e.Table {
			w.begin(ctx, nil, nil)
		}
	case control.Table:
		if e.Epoch >= w.epoch {
			w.epoch = e.Epoch
			w.describe(ctx, e)
		}
	case control.Refused:
		if e.Epoch >= w.epoch {
			refused := map[control.Writer]string{e.Writer: e.Reason}
			if len(w.refused) < maxAsked {
				maps.Copy(refused, w.refused)
			}
			w.refused = refused // tasks have the old one
			w.resume()
		}
	case control.Request:
		if e.Epoch >= w.epoch && w.table != nil {
			w.epoch = e.Epoch
			w.reconcile(ctx, e.Next, true)
			w.request, w.sealed, w.upto, w.open = &e, time.Now(), -1, true
			w.hurry()
			w.oldest, w.told = time.Time{}, true // the answer tells
		}
	case control.Committed:
		if e.Epoch >= w.epoch && w.table != nil {
			w.epoch = e.Epoch
			w.reconcile(ctx, e.Next, false)
		}
	}
}

// describe takes a description of the table.
func (w *Worker) describe(ctx context.Context, e control.Table) {
	t := &tableInfo{Table: e, mapping: e.Mapping(), schema: &iceberg.Schema{}, spec: iceberg.NewPartitionSpecID(e.Spec)}
	t.mapping.KeyColumn, t.mapping.Engines = w.cfg.KeyColumn, w.cfg.Engines
	err := t.schema.UnmarshalJSON(e.Schema)
	if err == nil && len(e.Partitions) > 0 {
		err = t.spec.UnmarshalJSON(e.Partitions)
	}
	if err == nil && len(e.Order) > 0 {
		err = t.writing.Order.UnmarshalJSON(e.Order)
	}
	properties := iceberg.Properties{}
	for _, p := range e.Writing {
		properties[p.Name] = p.Value
	}
	if err == nil {
		t.rules, err = parquetio.ParseRules(properties[parquetio.MappingProperty])
	}
	if err != nil {
		w.log.Error("the coordinator described a table that cannot be read; is it a newer release?", "error", err)
		return
	}
	_, err = parquetio.NewBuilder(t.schema, t.KafkaColumn)
	t.bare = err != nil
	if err := t.writing.Configure(properties); err != nil {
		w.log.Warn("files are written without it", "error", err)
	}
	w.refused = nil
	clear(w.asked)
	defer w.known.Store(true)
	defer w.resume()
	if w.table == nil || w.table.UUID != t.UUID || w.table.Location != t.Location {
		w.begin(ctx, t, e.Next)
		return
	}
	if w.table.schema.ID != t.schema.ID || w.table.spec.ID() != t.spec.ID() || !reflect.DeepEqual(w.table.mapping, t.mapping) || w.table.rules != t.rules || !reflect.DeepEqual(w.table.writing, t.writing) {
		w.seal(ctx) // a file has one table schema, one partition spec and one sort order
	} else {
		t = w.table
	}
	w.table = t
	w.reconcile(ctx, e.Next, true)
}

// resume lets the partitions that wait for a schema try again.
func (w *Worker) resume() {
	for _, p := range w.order {
		if p.waits {
			p.waits, p.retryAt = false, time.Time{}
		}
	}
}

// begin ends what is under way, and reads on from next; from the log's start where next has
// no offset.
func (w *Worker) begin(ctx context.Context, t *tableInfo, next []control.Offset) {
	if w.gen != nil {
		w.gen.end(w.shared)
	}
	w.gen = newGeneration(ctx)
	w.table, w.request, w.open, w.told, w.upto = t, nil, false, false, 0
	w.oldest = time.Time{}
	for _, p := range w.order {
		p.next, p.gap, p.busy, p.lane, p.waits, p.retryAt, p.skip = -1, 0, false, nil, false, time.Time{}, nil
		p.later, p.urgent = time.Time{}, 0
		p.committed.Store(-1)
		p.begins.Store(0)
		start, _ := p.source.Bounds()
		p.source.Hold(start)
	}
	defer w.note()
	for _, o := range next {
		if p := w.parts[o.Partition]; p != nil {
			p.next = o.Offset
			p.committed.Store(o.Offset)
			p.source.Hold(o.Offset)
		}
	}
	for _, p := range w.order {
		start, end := p.source.Bounds()
		p.lag.begin(max(p.committed.Load(), start), end, time.Now())
	}
}

// note says how far data files are that are durable, for those who ask for the lag, and the topic's own table how far
// it is, for the others of the topic.
func (w *Worker) note() {
	w.waitingFiles.Store(int64(len(w.gen.files)))
	at, hole := map[int32]int64{}, map[int32]bool{}
	for _, f := range w.gen.files {
		for _, r := range f.Ranges {
			hole[r.Partition] = hole[r.Partition] || !f.done
			if !hole[r.Partition] {
				at[r.Partition] = r.End
			}
		}
	}
	for _, p := range w.order {
		written, ok := at[p.index]
		if !ok {
			written = p.committed.Load()
		}
		p.written.Store(written)
		if at := p.committed.Load(); at >= 0 && w.cfg.Share.own() {
			w.shared.verdicts.hold(partOf{w.cfg.Share.Topic, p.index}, at)
		}
	}
}

// reconcile compares the work with where the table is. Files that the table holds are
// dropped; if the rest does not continue the table all work is void and begins again. All
// says that next names every partition that the table has begun.
func (w *Worker) reconcile(ctx context.Context, next []control.Offset, all bool) {
	at := map[int32]int64{}
	if !all {
		for _, p := range w.order {
			if c := p.committed.Load(); c >= 0 {
				at[p.index] = c
			}
		}
	}
	for _, o := range next {
		if p := w.parts[o.Partition]; p != nil {
			at[o.Partition] = o.Offset
			p.committed.Store(o.Offset)
			p.source.Hold(o.Offset)
		}
	}
	begins := offsets(at)
	for _, p := range w.order {
		if _, begun := at[p.index]; !begun && p.committed.Load() >= 0 {
			w.begin(ctx, w.table, begins) // the table went back to before the partition's first row
			return
		}
	}
	kept := w.gen.files[:0:0]
	for _, f := range w.gen.files {
		if f.within(at) {
			w.shared.budget.add(-f.reserved)
			f.reserved = 0
			continue // the table holds it
		}
		if !f.follows(at) {
			w.log.Warn("the table is not where the files of this worker begin: converting again from there", "file", f.lane.location)
			w.begin(ctx, w.table, begins)
			return
		}
		kept = append(kept, f)
	}
	dropped := len(w.gen.files) - len(kept)
	w.gen.files = kept
	for _, l := range w.gen.lanes {
		if !follows(l.ranges, at) {
			w.log.Warn("the table is not where an open file begins: converting again from there", "file", l.location)
			w.begin(ctx, w.table, begins)
			return
		}
	}
	for _, p := range w.order {
		if reached, ok := at[p.index]; ok && !p.busy && p.next >= 0 && p.next-p.gap != reached {
			w.log.Warn("the table is not where the partition is read: converting again from there", "partition", p.index, "offset", p.next, "reached", reached)
			w.begin(ctx, w.table, begins)
			return
		}
	}
	if w.upto > 0 {
		w.upto = max(0, w.upto-dropped)
	}
	w.note()
}

// tell says once that records wait, again when files were offered and no commit came, and when
// all of a backlog is read: its records are older than the moment when the worker saw them.
func (w *Worker) tell(ctx context.Context) {
	if w.request != nil || w.table == nil {
		return
	}
	if len(w.gen.files) > 0 && !w.told && time.Since(w.offered) > w.cfg.Offer && w.oldest.IsZero() {
		w.oldest = w.offered
	}
	if w.oldest.IsZero() && slices.ContainsFunc(w.order, w.waiting) {
		w.oldest, w.told = time.Now(), false
	}
	if w.oldest.IsZero() {
		return
	}
	if since := w.backlog(); !since.IsZero() && w.oldest.Sub(since) > backlogAge {
		w.oldest, w.told = since, false
	}
	if !w.told {
		w.told = true
		w.offered = time.Now()
		w.send(ctx, control.Pending{Worker: w.id, Since: w.oldest})
	}
}

// backlogAge is how much older than told a record must be to be told of again. Arrivals are not exact.
const backlogAge = time.Second

// backlog returns when the oldest record arrived that is read and in no answer; zero if there is
// none, or records are still to be read that arrived before oldest. Those of a partition that
// waits for something do not count: the others' do not wait for it.
func (w *Worker) backlog() (since time.Time) {
	if len(w.gen.lanes) == 0 && w.upto >= len(w.gen.files) {
		return time.Time{}
	}
	now := time.Now()
	for _, p := range w.order {
		start, end := p.source.Bounds()
		if !now.Before(p.retryAt) && p.lag.behind(max(p.next, start), end, w.oldest) {
			return time.Time{}
		}
	}
	for _, l := range w.gen.lanes {
		for i, r := range l.ranges {
			since = earlier(since, w.parts[i].lag.arrival(r.Start, r.End))
		}
	}
	for _, f := range w.gen.files[min(max(w.upto, 0), len(w.gen.files)):] {
		for _, r := range f.Ranges {
			since = earlier(since, w.parts[r.Partition].lag.arrival(r.Start, r.End))
		}
	}
	return since
}

// waiting reports whether p has records that are not read.
func (w *Worker) waiting(p *part) bool {
	start, end := p.source.Bounds()
	return max(p.next, start) < end
}

// answer answers the request when every file of it is durable.
func (w *Worker) answer(ctx context.Context) {
	if w.request == nil || w.open || slices.ContainsFunc(w.gen.lanes, func(l *lane) bool { return l.sealing }) {
		return
	}
	if w.upto < 0 {
		w.upto = len(w.gen.files)
	}
	a := control.Answer{Epoch: w.request.Epoch, Commit: w.request.Commit, At: time.Now(), Table: w.table.UUID, Worker: w.id, Partitions: w.indexes()}
	var size int64
	for i, f := range w.gen.files[:w.upto] {
		if !f.done {
			return
		}
		if w.lapsed(f.lane) {
			w.log.Warn("files that wait for a commit could not be named in the control log for so long that the sweep may take them: their records are converted again", "file", f.lane.location)
			w.giveUp(ctx)
			return
		}
		if size += f.reserved; size > maxAnswer && i > 0 {
			w.upto = i // the next round takes the rest, at once
			defer w.send(ctx, control.Pending{Worker: w.id, Since: w.sealed, Full: true})
			break
		}
		a.Files = append(a.Files, f.File)
	}
	if slices.ContainsFunc(w.order, w.waiting) || len(w.gen.lanes) > 0 || w.upto < len(w.gen.files) {
		w.oldest = w.sealed // a slow round must not make the next one late
		a.Since = w.oldest
	}
	w.request = nil
	w.told = !w.oldest.IsZero()
	w.offered = time.Now()
	w.send(ctx, a)
}

func itoa(i int32) string { return strconv.Itoa(int(i)) }

func (w *Worker) indexes() []int32 {
	out := make([]int32, len(w.order))
	for i, p := range w.order {
		out[i] = p.index
	}
	return out
}
