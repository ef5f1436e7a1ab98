package worker

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"
	"github.com/hamba/avro/v2"
	_ "modernc.org/sqlite"

	"github.com/tabletopic/tabletopic/catalog"
	catalogsql "github.com/tabletopic/tabletopic/catalog/sql"
	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/record"
)

// path is the table path of one topic: logs, dead letters, registry and control log in
// memory, a real catalog with faults on a store with faults, one worker, one coordinator.
type path struct {
	t       *testing.T
	topic   uuid.UUID
	name    string
	logs    map[int32]*memoryLog
	letters *memoryLetters
	control *control.Memory
	catalog *faultyCatalog
	bucket  *objectstore.Faulty
	locator *objectstore.Locator
	lookup  control.Lookup
	cfg     coordinator.Config
	worker  Config
	shared  *Shared // of its own if nil
	metrics *coordinator.Metrics
	limit   time.Duration // of wait; 20 s if zero

	mu      sync.Mutex
	schemas map[int32]string    // guarded by mu
	latest  map[string]int32    // guarded by mu; by subject
	guids   map[uuid.UUID]int32 // guarded by mu
	typ     string              // of the schemas; AVRO if empty

	running *Worker
	commits *coordinator.Coordinator // that runs with it
	stop    func()
	epoch   int32
}

const eventSchema = `{"type":"record","name":"Event","fields":[{"name":"id","type":"long"},{"name":"name","type":["null","string"],"default":null}]}`

func newPath(t *testing.T, partitions int32) *path {
	t.Helper()
	return newPathOn(t, partitions, objectstore.NewMemory(), "mem:///warehouse")
}

func newPathOn(t *testing.T, partitions int32, bucket objectstore.Bucket, warehouse string) *path {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "metadata.db")+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(10000)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	p := &path{
		t: t, topic: uuid.New(), name: "events", logs: map[int32]*memoryLog{}, letters: &memoryLetters{},
		control: &control.Memory{}, schemas: map[int32]string{1: eventSchema},
		bucket:  objectstore.NewFaulty(bucket, objectstore.Faults{}),
		locator: objectstore.NewLocator(objectstore.S3Config{}),
		cfg:     coordinator.Config{KafkaColumn: "_kafka", Lag: 20 * time.Millisecond, Timeout: 5 * time.Second, MinBackoff: time.Millisecond, MaxBackoff: 20 * time.Millisecond},
		worker:  Config{Retry: 5 * time.Millisecond, Offer: 200 * time.Millisecond},
	}
	p.locator.Add(p.bucket)
	p.lookup = func(_ context.Context, id int32) (control.RegisteredSchema, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if text, ok := p.schemas[id]; ok {
			return control.RegisteredSchema{Type: p.typ, Text: text}, nil
		}
		return control.RegisteredSchema{}, metadata.ErrSchemaNotExist
	}
	real, err := catalogsql.Open(t.Context(), db, p.locator, catalogsql.Config{Warehouse: warehouse})
	if err != nil {
		t.Fatal(err)
	}
	p.catalog = &faultyCatalog{Catalog: real}
	for i := range partitions {
		p.logs[i] = &memoryLog{}
	}
	t.Cleanup(p.crash)
	return p
}

func testLog(t *testing.T) *slog.Logger { return testLogTB(t) }

func testLogTB(t testing.TB) *slog.Logger {
	var w io.Writer = io.Discard
	if os.Getenv("TABLETOPIC_TEST_LOG") != "" {
		w = t.Output()
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// start runs a worker and a coordinator of the next epoch.
func (p *path) start() {
	p.t.Helper()
	p.epoch++
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	sources := map[int32]Source{}
	for i, l := range p.logs {
		sources[i] = l
	}
	p.running = New(Topic{p.topic, p.name}, sources, p.control, control.NewSchemas(p.call, p), p.letters, p.locator,
		cmp.Or(p.shared, NewShared(0, 0, nil)), p.worker, testLog(p.t))
	wg.Go(func() { _ = p.running.Run(ctx) })
	c := p.coordinator(p.epoch, p.catalog)
	p.commits = c
	wg.Go(func() { _ = c.Run(ctx) })
	p.stop = func() { cancel(); wg.Wait() }
}

func (p *path) coordinator(epoch int32, cat catalog.Catalog) *coordinator.Coordinator {
	p.t.Helper()
	return p.coordinatorOn(p.control, epoch, cat)
}

func (p *path) coordinatorOn(ctl control.Log, epoch int32, cat catalog.Catalog) *coordinator.Coordinator {
	p.t.Helper()
	c, err := coordinator.New(coordinator.Topic{ID: p.topic, Name: p.name, Partitions: int32(len(p.logs)), Epoch: epoch},
		cat, ctl, control.NewSchemas(p.call, p), p.cfg, p.metrics, testLog(p.t))
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// call is the registry; tests replace lookup while it runs.
func (p *path) call(ctx context.Context, id int32) (control.RegisteredSchema, error) {
	p.mu.Lock()
	lookup := p.lookup
	p.mu.Unlock()
	return lookup(ctx, id)
}

// Latest implements control.Names.
func (p *path) Latest(_ context.Context, subject string) (int32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id, ok := p.latest[subject]; ok {
		return id, nil
	}
	return 0, metadata.ErrSchemaNotExist
}

// Earlier implements control.Names: all schemas are versions of one subject.
func (p *path) Earlier(_ context.Context, id int32, limit int) (ids []int32, err error) {
	for earlier := id - 1; earlier > 0 && len(ids) < limit; earlier-- {
		ids = append(ids, earlier)
	}
	return ids, nil
}

// GUID implements control.Names.
func (p *path) GUID(_ context.Context, guid uuid.UUID) (int32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id, ok := p.guids[guid]; ok {
		return id, nil
	}
	return 0, metadata.ErrSchemaNotExist
}

// crash drops everything that is not in logs, bucket and catalog.
func (p *path) crash() {
	if p.stop != nil {
		p.stop()
		p.stop = nil
	}
}

// event is a record of schema 1.
func event(t *testing.T, id int64) record.Record {
	t.Helper()
	return encode(t, 1, eventSchema, map[string]any{"id": id, "name": fmt.Sprintf("name %d", id)})
}

func encode(t *testing.T, id byte, schema string, value map[string]any) record.Record {
	t.Helper()
	body, err := avro.Marshal(avro.MustParse(schema), value)
	if err != nil {
		t.Fatal(err)
	}
	return record.Record{Key: []byte("k"), Value: append([]byte{0, 0, 0, 0, id}, body...)}
}

// produce appends n events to each partition.
func (p *path) produce(n int) {
	p.t.Helper()
	for i := range p.logs {
		p.produceTo(n, i)
	}
}

// produceTo appends n events to each of some partitions.
func (p *path) produceTo(n int, partitions ...int32) {
	p.t.Helper()
	for _, i := range partitions {
		for range n {
			p.logs[i].append(p.t, event(p.t, int64(i)))
		}
	}
}

func (p *path) ident() table.Identifier { return table.Identifier{"default", "events"} }

func (p *path) load() (*table.Table, error) {
	return p.catalog.Catalog.Load(context.Background(), p.ident())
}

// committed waits until the table holds all that the logs have, and returns it.
func (p *path) committed() *table.Table {
	p.t.Helper()
	var at coordinator.Position
	var tab *table.Table
	p.wait(func() bool {
		var err error
		if tab, err = p.load(); err != nil {
			return false
		}
		at, _, err = coordinator.ReadPosition(tab.Properties())
		if err != nil {
			p.t.Fatal(err)
		}
		for i, l := range p.logs {
			start, end := l.Bounds()
			if start < end && (at.Topic != p.topic || at.Next[i] < end) {
				return false
			}
		}
		return true
	}, func() string { return fmt.Sprintf("the table to hold everything; it is at %+v", at) })
	return tab
}

// wait polls a condition.
func (p *path) wait(done func() bool, what func() string) {
	p.t.Helper()
	limit := invariant.Patience(cmp.Or(p.limit, 2*time.Minute))
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline.C:
			for _, e := range p.control.All(p.topic) {
				p.t.Logf("%T\n%.2000s", e, control.Describe(e))
			}
			p.t.Fatalf("waited %v for %s", limit, what())
		}
	}
}

// verify compares table and logs.
func (p *path) verify() *coordinator.Report {
	p.t.Helper()
	tab, err := p.load()
	if err != nil {
		p.t.Fatal(err)
	}
	logs := map[int32]coordinator.LogReader{}
	for i, l := range p.logs {
		logs[i] = l
	}
	r, err := coordinator.Verify(context.Background(), tab, coordinator.Verification{
		Topic: coordinator.Topic{ID: p.topic, Name: p.name, Partitions: int32(len(p.logs))}, KafkaColumn: p.cfg.KafkaColumn, Locator: p.locator, Logs: logs, Letters: p.letters.Each, Deep: true})
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

// exact fails unless rows and letters are what the logs have, once.
func (p *path) exact(rows, dead int64) {
	p.t.Helper()
	r := p.verify()
	var gotRows, gotDead int64
	for _, x := range r.Partitions {
		gotRows += x.Rows
		gotDead += x.Dead
	}
	if !r.OK || gotRows != rows || gotDead != dead {
		p.t.Fatalf("table has %d rows and %d dead letters, want %d and %d; report %+v", gotRows, gotDead, rows, dead, r)
	}
}

// faultyCatalog makes commits of data fail as a real catalog's do.
type faultyCatalog struct {
	catalog.Catalog
	mu      sync.Mutex
	fault   func(n int) fault // guarded by mu; of the nth data commit
	n       int               // guarded by mu
	away    atomic.Bool
	refused atomic.Int64 // calls, because it was away
	forget  atomic.Bool  // drops properties
}

// asked returns an error while the catalog is away.
func (c *faultyCatalog) asked() error {
	if !c.away.Load() {
		return nil
	}
	c.refused.Add(1)
	return errAway
}

type fault int

const (
	faultNone    fault = iota
	faultApplied       // it happens and the answer is lost
	faultLost          // it does not happen, and who knows
	faultConflict
	faultRefused // the catalog says no
)

var errAway = errors.New("catalog is away")

func (c *faultyCatalog) Load(ctx context.Context, id table.Identifier) (*table.Table, error) {
	if err := c.asked(); err != nil {
		return nil, err
	}
	return c.Catalog.Load(ctx, id)
}

func (c *faultyCatalog) Create(ctx context.Context, id table.Identifier, s *iceberg.Schema, props iceberg.Properties) (*table.Table, error) {
	if err := c.asked(); err != nil {
		return nil, err
	}
	if c.forget.Load() {
		props = nil
	}
	return c.Catalog.Create(ctx, id, s, props)
}

func (c *faultyCatalog) Commit(ctx context.Context, base *table.Table, change catalog.Commit) (*table.Table, error) {
	if err := c.asked(); err != nil {
		return nil, fmt.Errorf("%w: %w", catalog.ErrCommitUnknown, err)
	}
	if c.forget.Load() && change.Schema == nil && !change.Snapshot {
		return base, nil
	}
	f := faultNone
	if change.Snapshot {
		c.mu.Lock()
		if c.fault != nil {
			f = c.fault(c.n)
		}
		c.n++
		c.mu.Unlock()
	}
	switch f {
	case faultApplied:
		if _, err := c.Catalog.Commit(ctx, base, change); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%w: answer lost", catalog.ErrCommitUnknown)
	case faultLost:
		return nil, fmt.Errorf("%w: request lost", catalog.ErrCommitUnknown)
	case faultConflict:
		return nil, fmt.Errorf("%w: injected", catalog.ErrCommitConflict)
	case faultRefused:
		return nil, errors.New("the catalog says no")
	}
	return c.Catalog.Commit(ctx, base, change)
}

// Records become rows, once each, and the table says how far it is.
func TestRecordsBecomeRows(t *testing.T) {
	p := newPath(t, 4)
	p.start()
	for range 5 {
		p.produce(100)
	}
	tab := p.committed()
	p.exact(2000, 0)
	if n, _ := tab.Schema().FindFieldByName("name"); n.ID == 0 {
		t.Errorf("table has no column name: %v", tab.Schema())
	}
}
