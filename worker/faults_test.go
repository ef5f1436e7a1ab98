package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	catalogsql "github.com/tabletopic/tabletopic/catalog/sql"
	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/parquetio"
	"github.com/tabletopic/tabletopic/record"
)

// Whatever a commit's answer is, each record is in the table once.
func TestEachRecordOnceWhateverTheCatalogAnswers(t *testing.T) {
	p := newPath(t, 2)
	r := rand.New(rand.NewPCG(7, 0))
	p.catalog.fault = func(int) fault { return fault(r.IntN(4)) }
	p.start()
	for range 8 {
		p.produce(20)
		p.committed()
	}
	p.exact(320, 0)
}

// A process that dies at any moment of a commit loses nothing and doubles nothing.
func TestCrashAtAnyMomentOfACommit(t *testing.T) {
	p := newPath(t, 2)
	for round := range 12 {
		var armed atomic.Bool
		reached := make(chan struct{}, 1)
		p.catalog.mu.Lock()
		p.catalog.fault = func(int) fault {
			if armed.CompareAndSwap(false, true) {
				reached <- struct{}{}
				return []fault{faultApplied, faultLost, faultNone}[round%3]
			}
			return faultNone
		}
		p.catalog.mu.Unlock()
		p.start()
		p.produce(10)
		<-reached
		p.crash()
		// What an outside compaction leaves is a snapshot on top of ours.
		if round%2 == 1 {
			p.foreignCommit()
		}
	}
	p.start()
	p.committed()
	p.exact(240, 0)
}

// foreignCommit adds a snapshot of another writer.
func (p *path) foreignCommit() {
	p.t.Helper()
	tab, err := p.load()
	if errors.Is(err, catalog.ErrNoTable) {
		return
	}
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.catalog.Catalog.Commit(context.Background(), tab, catalog.Commit{Snapshot: true}); err != nil {
		p.t.Fatal(err)
	}
}

// Another writer that commits all the time delays our commits and does not stop them.
func TestForeignCommitsDoNotStopOurs(t *testing.T) {
	p := newPath(t, 1)
	p.catalog.fault = func(n int) fault {
		if n%4 != 3 {
			p.foreignCommit()
		}
		return faultNone
	}
	p.start()
	for range 5 {
		p.produce(5)
		p.committed()
	}
	p.exact(25, 0)
}

// A coordinator that was replaced is stopped by the table, whatever it still believes.
func TestZombieCoordinatorIsFenced(t *testing.T) {
	p := newPath(t, 1)
	p.start()
	p.produce(5)
	p.committed()

	// The zombie is held in its catalog call while the next epoch commits.
	hold := &heldCatalog{Catalog: p.catalog.Catalog, at: make(chan struct{}), release: make(chan struct{})}
	p.crash()
	cut := &control.Memory{} // it hears nothing of the next epoch but by the table
	zombie := p.coordinatorOn(cut, p.epoch+1, hold)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	worker := New(Topic{p.topic, p.name}, map[int32]Source{0: p.logs[0]}, cut, control.NewSchemas(p.call, p), p.letters, p.locator,
		NewShared(0, 0, nil), p.worker, testLog(t))
	workerEnded := make(chan struct{})
	workerCtx, stopWorker := context.WithCancel(ctx)
	go func() { defer close(workerEnded); _ = worker.Run(workerCtx) }()
	go func() { ended <- zombie.Run(ctx) }()
	p.produce(5)
	<-hold.at
	stopWorker()
	<-workerEnded

	p.epoch++
	p.start()
	p.produce(5)
	p.committed()
	p.crash()
	close(hold.release)
	p.wait(func() bool { return len(ended) > 0 }, func() string { return "the zombie to stop" })
	if err := <-ended; !errors.Is(err, coordinator.ErrFenced) {
		t.Fatalf("zombie ended with %v, want ErrFenced", err)
	}
	p.exact(15, 0)
}

// heldCatalog holds data commits until release.
type heldCatalog struct {
	catalog.Catalog
	once        atomic.Bool
	at, release chan struct{}
	calls       atomic.Int64 // that have ended
}

func (c *heldCatalog) Commit(ctx context.Context, base *table.Table, change catalog.Commit) (*table.Table, error) {
	if change.Snapshot {
		if c.once.CompareAndSwap(false, true) {
			close(c.at)
		}
		<-c.release
		defer c.calls.Add(1)
	}
	return c.Catalog.Commit(context.WithoutCancel(ctx), base, change) // the request outlives its client
}

// A first coordinator whose call hangs cannot double what a second one of the same epoch
// has committed: its commit continues a table that is no more.
func TestCommitContinuesTheTable(t *testing.T) {
	p := newPath(t, 1)
	p.start()
	p.produce(5)
	p.committed()
	p.crash()

	hold := &heldCatalog{Catalog: p.catalog.Catalog, at: make(chan struct{}), release: make(chan struct{})}
	first := p.coordinator(p.epoch+1, hold)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	worker := New(Topic{p.topic, p.name}, map[int32]Source{0: p.logs[0]}, p.control, control.NewSchemas(p.call, p), p.letters, p.locator,
		NewShared(0, 0, nil), p.worker, testLog(t))
	workerEnded := make(chan struct{})
	workerCtx, stopWorker := context.WithCancel(ctx)
	go func() { defer close(workerEnded); _ = worker.Run(workerCtx) }()
	go func() { defer close(ended); _ = first.Run(ctx) }()
	p.produce(5)
	<-hold.at
	stopWorker()
	<-workerEnded
	p.start() // the same epoch
	p.committed()
	described := func() (n int) {
		for _, e := range p.control.All(p.topic) {
			if _, ok := e.(control.Table); ok {
				n++
			}
		}
		return n
	}
	before := described()
	close(hold.release)
	// Either it begins anew from the table, or it has committed again.
	p.wait(func() bool { return hold.calls.Load() >= 2 || hold.calls.Load() == 1 && described() > before },
		func() string { return "the first coordinator to begin anew" })
	cancel()
	<-ended
	p.crash()
	p.exact(10, 0)
}

// While the catalog is away the log goes on; after, everything is in the table once.
func TestCatalogAway(t *testing.T) {
	p := newPath(t, 2)
	p.start()
	p.produce(10)
	p.committed()
	p.catalog.away.Store(true)
	for i := range int64(5) {
		p.produce(10)
		p.wait(func() bool { return p.catalog.refused.Load() > 2*i }, func() string { return "the catalog to be asked again" })
	}
	p.catalog.away.Store(false)
	p.committed()
	p.exact(120, 0)
}

// A store that fails costs time: files are written in the end, and once in the table.
func TestStoreFails(t *testing.T) {
	p := newPath(t, 2)
	p.bucket.SetFaults(objectstore.Faults{Seed: 3, Unavailable: 0.2, Lost: 0.1})
	p.start()
	for range 5 {
		p.produce(10)
	}
	p.committed()
	p.bucket.SetFaults(objectstore.Faults{})
	p.exact(100, 0)
}

// Records that cannot be decoded become dead letters with their cause and position, and
// their neighbours rows; a tombstone is a row.
func TestBadRecordsBecomeDeadLetters(t *testing.T) {
	p := newPath(t, 1)
	p.start()
	l := p.logs[0]
	l.append(t, event(t, 1),
		record.Record{Value: []byte{0, 0, 0, 0, 99, 1, 2}},
		record.Record{Value: []byte(`{"not":"wire"}`), Headers: []record.Header{{Key: "h", Value: []byte("v")}}},
		record.Record{Value: event(t, 2).Value[:6]},
		record.Record{Key: []byte("k1")},
		event(t, 3))
	p.committed()
	p.exact(3, 3)
	letters := p.letters.all(0)
	want := []string{CauseUnknownSchema, CauseNoMagic, CauseUndecodable}
	for i, x := range letters {
		if x.Cause != want[i] || x.Record.Offset != int64(i)+1 || x.Detail == "" {
			t.Errorf("letter %d: cause %q at offset %d (%s), want %q at %d", i, x.Cause, x.Record.Offset, x.Detail, want[i], i+1)
		}
	}
	if len(letters) != 3 || letters[0].SchemaID != 99 || len(letters[1].Record.Headers) != 1 {
		t.Errorf("letters %+v", letters)
	}
}

// Dead letters are written once, also when a crash makes their records be read again.
func TestDeadLettersOnceAcrossCrashes(t *testing.T) {
	p := newPath(t, 1)
	for round := range 6 {
		reached := make(chan struct{}, 100)
		p.catalog.mu.Lock()
		p.catalog.fault = func(int) fault {
			reached <- struct{}{}
			return []fault{faultLost, faultApplied}[round%2]
		}
		p.catalog.mu.Unlock()
		p.start()
		p.logs[0].append(t, event(t, 1), record.Record{Value: []byte("bad")}, event(t, 2))
		<-reached
		p.crash()
	}
	p.catalog.fault = nil
	p.start()
	p.committed()
	p.exact(12, 6)
}

// A record that was a dead letter before a crash stays one, even if it could be decoded now:
// it must not be in both.
func TestDeadLetterStaysDead(t *testing.T) {
	p := newPath(t, 1)
	reached := make(chan struct{}, 100)
	p.catalog.fault = func(int) fault { reached <- struct{}{}; return faultLost }
	p.start()
	later := encode(t, 2, eventSchema, map[string]any{"id": int64(5), "name": nil})
	p.logs[0].append(t, event(t, 1), later)
	<-reached
	p.crash()
	p.catalog.fault = nil
	p.schemas[2] = eventSchema
	p.start()
	p.logs[0].append(t, event(t, 2))
	p.committed()
	p.exact(2, 1)
}

// The answer comes after the dead letters of its ranges.
func TestLettersAreDurableBeforeTheAnswer(t *testing.T) {
	p := newPath(t, 1)
	asked, release := make(chan struct{}, 100), make(chan struct{})
	let := sync.OnceFunc(func() { close(release) })
	t.Cleanup(let)
	p.letters.refuse = func() error {
		asked <- struct{}{}
		<-release
		return nil
	}
	p.cfg.Timeout = 50 * time.Millisecond
	p.start()
	p.logs[0].append(t, event(t, 1), record.Record{Value: []byte("bad")})
	<-asked
	p.wait(func() bool { // two rounds begin and end without the files
		n := 0
		for _, e := range p.control.All(p.topic) {
			if _, ok := e.(control.Request); ok {
				n++
			}
			if a, ok := e.(control.Answer); ok && len(a.Files) > 0 {
				t.Fatalf("answer %+v before its dead letter was durable", a)
			}
		}
		return n >= 1
	}, func() string { return "a round" })
	if err := sleep(t.Context(), 150*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	for _, e := range p.control.All(p.topic) {
		if a, ok := e.(control.Answer); ok && len(a.Files) > 0 {
			t.Fatalf("answer %+v before its dead letter was durable", a)
		}
	}
	let()
	p.committed()
	p.exact(1, 1)
}

// While the registry is away the partition waits: nothing becomes a dead letter.
func TestRegistryAwayMakesNoDeadLetters(t *testing.T) {
	p := newPath(t, 2)
	real := p.lookup
	var calls atomic.Int64
	p.lookup = func(ctx context.Context, id int32) (control.RegisteredSchema, error) {
		if calls.Add(1) < 20 {
			return control.RegisteredSchema{}, errors.New("registry is away")
		}
		return real(ctx, id)
	}
	p.start()
	p.produce(10)
	p.committed()
	p.exact(20, 0)

	// And when the table is there already and a new schema comes while it is away.
	p.mu.Lock()
	p.schemas[2] = eventSchema
	p.mu.Unlock()
	calls.Store(0)
	p.logs[0].append(t, encode(t, 2, eventSchema, map[string]any{"id": int64(5), "name": nil}))
	p.logs[1].append(t, event(t, 1))
	p.committed()
	p.exact(22, 0)
}

// A partition that waits for a column asks again: the coordinator could not read the schema
// when it was asked, and nothing else happens to the table.
func TestColumnIsAskedForAgain(t *testing.T) {
	p := newPath(t, 1)
	real := p.lookup
	var calls atomic.Int64
	p.lookup = func(ctx context.Context, id int32) (control.RegisteredSchema, error) {
		if id == 2 && calls.Add(1) == 2 { // the worker reads it first
			return control.RegisteredSchema{}, errors.New("registry is away")
		}
		return real(ctx, id)
	}
	p.schemas[2] = wideSchema
	p.start()
	p.produce(5)
	p.committed()
	p.logs[0].append(t, encode(t, 2, wideSchema, map[string]any{"id": int64(5), "extra": "x", "name": nil}))
	p.committed()
	p.exact(6, 0)
}

const wideSchema = `{"type":"record","name":"Event","fields":[{"name":"id","type":"long"},{"name":"extra","type":["null","string"],"default":null},{"name":"name","type":["null","string"],"default":null}]}`

// A new field of a writer becomes a column, versions may alternate, and one file holds them all.
func TestSchemaEvolvesInMidStream(t *testing.T) {
	p := newPath(t, 2)
	p.mu.Lock()
	p.schemas[2] = wideSchema
	p.mu.Unlock()
	p.start()
	p.produce(10)
	p.committed()
	for range 10 {
		p.logs[0].append(t, encode(t, 2, wideSchema, map[string]any{"id": int64(5), "extra": "x", "name": nil}))
		p.logs[0].append(t, event(t, 1))
		p.logs[1].append(t, event(t, 1))
	}
	tab := p.committed()
	p.exact(50, 0)
	if _, ok := tab.Schema().FindFieldByName("extra"); !ok {
		t.Errorf("table has no column extra: %v", tab.Schema())
	}
}

// A schema that the table cannot hold makes dead letters of its records alone.
func TestIncompatibleSchema(t *testing.T) {
	p := newPath(t, 2)
	const other = `{"type":"record","name":"Event","fields":[{"name":"id","type":"string"}]}`
	p.mu.Lock()
	p.schemas[3] = other
	p.mu.Unlock()
	p.start()
	p.produce(5)
	p.committed()
	p.logs[0].append(t, encode(t, 3, other, map[string]any{"id": "x"}))
	p.produce(5)
	p.committed()
	p.exact(20, 1)
	if got := p.letters.all(0); got[0].Cause != CauseIncompatible || !strings.Contains(got[0].Detail, "id") {
		t.Errorf("letter %+v, want cause %s that names the column", got[0], CauseIncompatible)
	}
}

// A topic that was deleted and made again begins its own offsets in the table.
func TestNewIncarnationOfATopic(t *testing.T) {
	p := newPath(t, 1)
	p.start()
	p.produce(100)
	p.committed()
	p.crash()
	p.topic, p.logs[0], p.epoch = uuid.New(), &memoryLog{}, 0
	p.start()
	p.produce(30)
	p.committed()
	p.exact(30, 0)
	if r := p.verify(); r.Earlier != 100 {
		t.Errorf("%d rows of the earlier topic, want 100", r.Earlier)
	}
}

// A table that was dropped and made again gets no file that was meant for the old one.
func TestTableReplacedWhileFilesWait(t *testing.T) {
	p := newPath(t, 1)
	v, err := parquetio.ParseAvro(parquetio.NewRules(), wideSchema)
	if err != nil {
		t.Fatal(err)
	}
	other, err := parquetio.Mapping{KafkaColumn: "_kafka"}.TableSchema(v) // other field ids
	if err != nil {
		t.Fatal(err)
	}
	var once atomic.Bool
	p.catalog.fault = func(int) fault {
		if once.CompareAndSwap(false, true) {
			if err := p.catalog.Drop(context.Background(), p.ident()); err != nil {
				t.Error(err)
			}
			if _, err := p.catalog.Catalog.Create(context.Background(), p.ident(), other, nil); err != nil {
				t.Error(err)
			}
			return faultConflict
		}
		return faultNone
	}
	p.start()
	p.produce(10)
	p.wait(once.Load, func() string { return "the commit" })
	p.committed()
	p.exact(10, 0)
	p.produce(10)
	p.committed()
	p.exact(20, 0)
}

// With table.topic.on.drop=pause nothing is made in the place of a table that was dropped, and another
// table of the name gets no row, also by the next coordinator, until the setting changes; a table that
// comes back is filled on.
func TestDroppedTablePauses(t *testing.T) {
	p := newPath(t, 1)
	p.cfg.OnDrop = coordinator.DropPause
	p.start()
	p.produce(10)
	first := p.committed()
	id := first.Metadata().TableUUID()
	p.cfg.TableID = strings.Join(p.ident(), ".") + "@" + id.String() // as the settings of the topic have it
	pauses := func(mention string) {
		t.Helper()
		p.wait(func() bool {
			if tab, err := p.load(); err == nil && tab.CurrentSnapshot() != nil && tab.Metadata().TableUUID() != id {
				t.Fatal("another table has the rows")
			}
			err := p.commits.Trouble()
			return err != nil && strings.Contains(err.Error(), mention) && strings.Contains(err.Error(), id.String()) && strings.Contains(err.Error(), "table.topic.on.drop=recreate")
		}, func() string { return fmt.Sprintf("the table to pause: %s, not %v", mention, p.commits.Trouble()) })
	}
	drop := func() {
		t.Helper()
		if err := p.catalog.Drop(context.Background(), p.ident()); err != nil {
			t.Fatal(err)
		}
	}
	drop()
	p.produce(10)
	pauses("was dropped")
	p.crash()
	p.start()
	pauses("was dropped")
	if _, err := p.load(); !errors.Is(err, catalog.ErrNoTable) {
		t.Errorf("a table was made: %v", err)
	}
	other, err := p.catalog.Catalog.Create(context.Background(), p.ident(), first.Schema(), nil)
	if err != nil {
		t.Fatal(err)
	}
	pauses(other.Metadata().TableUUID().String())
	p.crash()
	p.start()
	pauses(other.Metadata().TableUUID().String())
	if tab, err := p.load(); err != nil || tab.MetadataLocation() != other.MetadataLocation() {
		t.Errorf("the other table changed: %v", err)
	}
	p.crash()
	p.cfg.OnDrop = coordinator.DropRecreate
	p.start()
	tab := p.committed()
	if tab.Metadata().TableUUID() != other.Metadata().TableUUID() {
		t.Error("the rows are in another table")
	}
	p.exact(20, 0)
}

// Existing data is taken from the log's start when the table is switched on, and what
// retention had removed before the table had it is a recorded gap.
func TestBackfillAndGap(t *testing.T) {
	p := newPath(t, 1)
	p.produce(50)
	p.logs[0].trim(20)
	p.start()
	p.committed()
	p.exact(30, 0)
	p.crash()
	p.produce(50)
	p.logs[0].trim(70)
	p.start()
	p.committed()
	p.exact(60, 0)
	if r := p.verify(); r.Partitions[0].Gaps != 20 {
		t.Errorf("%d offsets in recorded gaps, want 20", r.Partitions[0].Gaps)
	}
}

// A catalog that does not keep properties is refused: nothing is committed to it.
func TestCatalogThatDropsPropertiesIsRefused(t *testing.T) {
	p := newPath(t, 1)
	p.catalog.forget.Store(true)
	p.start()
	p.produce(5)
	says := func(err error) bool {
		return err != nil && strings.Contains(err.Error(), "does not keep table properties")
	}
	p.wait(func() bool { return says(p.commits.Trouble()) }, func() string { return fmt.Sprintf("the reason, not %v", p.commits.Trouble()) })
	if tab, err := p.load(); err != nil || tab.CurrentSnapshot() != nil {
		t.Fatalf("table %v, error %v; want no snapshot", tab, err)
	}
	p.catalog.forget.Store(false)
	p.committed()
	p.exact(5, 0)
}

// Each snapshot moves an offset: none is made for a topic without new records, however often
// its coordinator begins.
func TestIdleTopicMakesNoSnapshot(t *testing.T) {
	p := newPath(t, 2)
	for round := range int64(3) {
		p.start()
		p.logs[0].append(t, event(t, 1), event(t, 2))
		p.committed()
		p.crash()
		for range 2 {
			p.start()
			p.wait(func() bool { return p.running.Lag(time.Now())[0].Committed == 2*(round+1) }, func() string { return "the worker to know the table" })
			p.crash()
		}
	}
	tab, err := p.load()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range tab.Metadata().Snapshots() {
		if sum, ok, err := coordinator.ReadSummary(s.Summary.Properties); err != nil || !ok || len(sum.Ranges) == 0 {
			t.Errorf("snapshot %+v moves no offset, error %v", s, err)
		}
	}
	p.exact(6, 0)
}

func planned(t *testing.T, tab *table.Table) map[string]bool {
	t.Helper()
	tasks, err := tab.Scan().PlanFiles(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, task := range tasks {
		out[task.File.FilePath()] = true
	}
	return out
}

// rollback sets main to the snapshot before the current one.
func (p *path) rollback() {
	p.t.Helper()
	tab, err := p.load()
	if err != nil {
		p.t.Fatal(err)
	}
	_, err = p.catalog.Catalog.(*catalogsql.Catalog).CommitTable(context.Background(), p.ident(), nil,
		[]table.Update{table.NewSetSnapshotRefUpdate(table.MainBranch, *tab.CurrentSnapshot().ParentSnapshotID, table.BranchRef, 0, 0, 0)})
	if err != nil {
		p.t.Fatal(err)
	}
}

// A table that a user rolled back is noticed: by default nothing is committed until it is as
// it was; replay brings the rows again, accept leaves them out and records it.
func TestRewind(t *testing.T) {
	for _, c := range []struct {
		policy string
		rows   int64
		gaps   int64
	}{{coordinator.RewindPause, 10, 0}, {coordinator.RewindReplay, 30, 0}, {coordinator.RewindAccept, 20, 10}} {
		t.Run(c.policy, func(t *testing.T) {
			p := newPath(t, 1)
			p.start()
			p.produce(10)
			p.committed()
			p.produce(10)
			p.wait(func() bool { tab, err := p.load(); return err == nil && len(tab.Metadata().Snapshots()) >= 2 }, func() string { return "two snapshots" })
			p.committed()
			p.crash()
			p.rollbackTo(10)
			p.cfg.OnRewind = c.policy
			p.start()
			p.produce(10)
			if c.policy == coordinator.RewindPause {
				says := func(err error) bool { return err != nil && strings.Contains(err.Error(), "table.topic.on.rewind") }
				p.wait(func() bool { return says(p.commits.Trouble()) }, func() string { return fmt.Sprintf("the reason, not %v", p.commits.Trouble()) })
				if r := p.verify(); r.Partitions[0].Rows != c.rows {
					t.Fatalf("%d rows while paused, want %d", r.Partitions[0].Rows, c.rows)
				}
				p.crash()
				p.cfg.OnRewind = coordinator.RewindReplay
				p.start()
				c.rows = 30
			}
			p.wait(func() bool { return p.verify().Partitions[0].Rows == c.rows }, func() string { return "the rows" })
			p.exact(c.rows, 0)
			if r := p.verify(); r.Partitions[0].Gaps != c.gaps {
				t.Errorf("%d offsets in recorded gaps, want %d", r.Partitions[0].Gaps, c.gaps)
			}
		})
	}
}

// A rollback to before a partition's first row does not make it one that never began: what the
// log has lost of it when it is replayed is a recorded gap.
func TestReplayFromBeforeTheFirstRowRecordsTheGap(t *testing.T) {
	p := newPath(t, 1)
	p.cfg.OnRewind = coordinator.RewindReplay
	v, err := parquetio.ParseAvro(parquetio.NewRules(), eventSchema)
	if err != nil {
		t.Fatal(err)
	}
	schema, err := parquetio.Mapping{KafkaColumn: "_kafka"}.TableSchema(v)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.catalog.Create(t.Context(), p.ident(), schema, nil); err != nil {
		t.Fatal(err)
	}
	p.foreignCommit()
	p.start()
	p.produce(10)
	p.committed()
	p.crash()
	p.rollbackTo(0)
	p.logs[0].trim(5)
	p.start()
	p.produce(10)
	p.wait(func() bool { return p.verify().Partitions[0].Rows == 15 }, func() string { return "the rows" })
	p.exact(15, 0)
	if r := p.verify(); r.Partitions[0].Gaps != 5 {
		t.Errorf("%d offsets in recorded gaps, want 5", r.Partitions[0].Gaps)
	}
}

// rollbackTo rolls back until the table has that many rows.
func (p *path) rollbackTo(rows int64) {
	p.t.Helper()
	for p.verify().Partitions[0].Rows > rows {
		p.rollback()
	}
	if got := p.verify().Partitions[0].Rows; got != rows {
		p.t.Fatalf("%d rows after the rollback, want %d", got, rows)
	}
}

// Two topics that would share one table do not.
func TestTableOfAnotherTopicIsRefused(t *testing.T) {
	p := newPath(t, 1)
	p.start()
	p.produce(5)
	p.committed()
	p.crash()
	first := p.topic
	p.topic, p.name, p.epoch, p.logs[0] = uuid.New(), "Events", 0, &memoryLog{}
	p.start()
	p.produce(5)
	says := func(err error) bool { return err != nil && strings.Contains(err.Error(), `that of topic "events"`) }
	p.wait(func() bool { return says(p.commits.Trouble()) }, func() string { return fmt.Sprintf("the reason, not %v", p.commits.Trouble()) })
	tab, err := p.load()
	if err != nil {
		t.Fatal(err)
	}
	if at, _, err := coordinator.ReadPosition(tab.Properties()); err != nil || at.Topic != first {
		t.Errorf("table is at %+v of topic %s, error %v", at, first, err)
	}
}

// Of two topics that begin to fill a table of nobody, one has it: the other finds out when its
// first commit meets the first of the other.
func TestTwoTopicsRaceForATable(t *testing.T) {
	p := newPath(t, 1)
	v, err := parquetio.ParseAvro(parquetio.NewRules(), eventSchema)
	if err != nil {
		t.Fatal(err)
	}
	schema, err := parquetio.Mapping{KafkaColumn: "_kafka"}.TableSchema(v)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.catalog.Create(t.Context(), p.ident(), schema, nil); err != nil {
		t.Fatal(err)
	}
	other := &path{t: t, topic: uuid.New(), name: "others", logs: map[int32]*memoryLog{0: {}}, letters: &memoryLetters{}, control: &control.Memory{},
		schemas: p.schemas, lookup: p.lookup, catalog: &faultyCatalog{Catalog: p.catalog.Catalog}, bucket: p.bucket, locator: p.locator, cfg: p.cfg, worker: p.worker}
	other.cfg.Table = "events"
	t.Cleanup(other.crash)
	var once sync.Once
	p.catalog.fault = func(int) fault {
		once.Do(func() {
			other.start()
			other.produce(5)
			other.committed()
		})
		return faultNone
	}
	p.start()
	p.produce(7)
	says := func(err error) bool { return err != nil && strings.Contains(err.Error(), `that of topic "others"`) }
	p.wait(func() bool { return says(p.commits.Trouble()) }, func() string { return fmt.Sprintf("the reason, not %v", p.commits.Trouble()) })
	p.crash()
	other.exact(5, 0)
	if r := other.verify(); r.Earlier != 0 {
		t.Errorf("the table has %d rows of the other topic", r.Earlier)
	}
}
