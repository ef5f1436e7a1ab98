package worker

import (
	"cmp"
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
	worker := New(Topic{p.topic, p.name}, map[int32]Source{0: p.logs[0]}, cut, control.NewSchemas(p.call), p.letters, p.locator,
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
	worker := New(Topic{p.topic, p.name}, map[int32]Source{0: p.logs[0]}, p.control, control.NewSchemas(p.call), p.letters, p.locator,
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
	v, err := parquetio.ParseAvro(wideSchema)
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
	v, err := parquetio.ParseAvro(eventSchema)
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
	v, err := parquetio.ParseAvro(eventSchema)
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

// A file is in the journal before it is in the store.
func TestJournalComesBeforeTheFile(t *testing.T) {
	p := newPath(t, 1)
	var early atomic.Int64
	hold := p.bucket.Hold(objectstore.Before, func(op objectstore.Op, key string) bool {
		if op != objectstore.OpPut || !strings.HasSuffix(key, ".parquet") {
			return false
		}
		for _, e := range p.control.All(p.topic) {
			if j, ok := e.(control.Journal); ok && strings.HasSuffix(j.Names[0], key) {
				return false
			}
		}
		early.Add(1)
		return false
	})
	defer hold.Release(nil)
	requested := make(chan struct{})
	var once sync.Once
	p.control.Refuse(func(e control.Event) error {
		switch e.(type) {
		case control.Request:
			once.Do(func() { close(requested) })
		case control.Journal: // is slow, once the file is asked for
			select {
			case <-requested:
			case <-time.After(5 * time.Second):
			}
			return sleep(t.Context(), 200*time.Millisecond)
		}
		return nil
	})
	p.start()
	p.produce(5)
	p.committed()
	p.exact(5, 0)
	if n := early.Load(); n > 0 {
		t.Errorf("%d files were written before the journal had their names", n)
	}
}

// The files of a commit are journalled again and again while the catalog keeps it waiting,
// though the worker that wrote them has no part in that.
func TestWaitingCommitKeepsItsFilesNamed(t *testing.T) {
	p := newPath(t, 1)
	p.cfg.Grace = 400 * time.Millisecond
	var mu sync.Mutex
	var once sync.Once
	entries, again := map[string]int{}, make(chan struct{})
	p.control.Refuse(func(e control.Event) error {
		mu.Lock()
		defer mu.Unlock()
		if j, ok := e.(control.Journal); ok {
			for _, n := range j.Names {
				if entries[n]++; entries[n] == 3 && strings.HasSuffix(n, ".parquet") {
					once.Do(func() { close(again) })
				}
			}
		}
		return nil
	})
	p.catalog.fault = func(int) fault {
		select {
		case <-again:
		case <-time.After(10 * time.Second):
			t.Error("the files of a commit that waits are not journalled again")
		}
		return faultNone
	}
	p.start()
	p.produce(5)
	p.committed()
	p.exact(5, 0)
}

// A commit whose files cannot be journalled for half the grace asks no catalog to take them any
// more: the sweep may have them. The next round takes what the workers have then.
func TestCommitIsVoidWhenItsFilesCannotBeNamed(t *testing.T) {
	p := newPath(t, 1)
	p.cfg.Grace = 200 * time.Millisecond
	var answered atomic.Bool
	var rounds atomic.Int32
	p.control.Refuse(func(e control.Event) error {
		switch e := e.(type) {
		case control.Request:
			rounds.Add(1)
		case control.Answer:
			answered.Store(true)
		case control.Journal:
			if answered.Load() {
				return fmt.Errorf("the log takes no names: %v", e.Names)
			}
		}
		return nil
	})
	p.catalog.fault = func(int) fault {
		if rounds.Load() == 1 {
			return faultConflict
		}
		return faultNone
	}
	p.start()
	p.produce(5)
	p.committed()
	p.exact(5, 0)
}

// A worker whose files cannot be journalled again for half the grace offers them no more: it
// converts their records again, and names the files once more, for the sweep.
func TestWorkerGivesUpFilesThatCannotBeNamed(t *testing.T) {
	p := newPath(t, 1)
	p.worker.Grace = 200 * time.Millisecond
	var mu sync.Mutex
	entries := map[string]int{}
	var first string
	var others, offered atomic.Bool
	p.control.Refuse(func(e control.Event) error {
		mu.Lock()
		defer mu.Unlock()
		switch e := e.(type) {
		case control.Journal:
			name := e.Names[0]
			first = cmp.Or(first, name)
			others.Store(others.Load() || name != first)
			if entries[name] > 0 && !others.Load() {
				return errors.New("the log does not take the name again")
			}
			entries[name]++
		case control.Answer:
			for _, f := range e.Files {
				offered.Store(offered.Load() || f.Data[0].Location != first)
			}
		}
		return nil
	})
	p.catalog.fault = func(int) fault {
		if !offered.Load() {
			return faultRefused
		}
		return faultNone
	}
	p.start()
	p.produce(5)
	for n := range planned(t, p.committed()) {
		if n == first {
			t.Errorf("the table has %s, which the worker could not name", n)
		}
	}
	p.exact(5, 0)
	p.wait(func() bool { mu.Lock(); defer mu.Unlock(); return entries[first] > 1 }, func() string { return "the first file to be named for the sweep" })
}

// A lane that is sealed while the journal refuses its names has all of them in every entry that
// follows: what the worker takes for named again is.
func TestNamesAreTakenAnewAfterAFailure(t *testing.T) {
	p := newPath(t, 1)
	p.cfg.PartitionBy = "[id]"
	p.worker.Grace = 2 * time.Second
	const partitions = namedAhead + 2
	lane := func(name string) string { return name[:strings.LastIndex(name, "-")] }
	var mu sync.Mutex
	entries := map[string]int{}
	sealed := map[string]time.Time{} // when a lane's last names were entered
	refused, renewed := make(chan struct{}), make(chan struct{})
	var refusedOnce, renewedOnce sync.Once
	p.control.Refuse(func(e control.Event) error {
		switch e := e.(type) {
		case control.Request: // seals
			await(refused)
		case control.Journal:
			mu.Lock()
			defer mu.Unlock()
			of := lane(e.Names[0])
			entries[of]++
			switch at, ok := sealed[of]; {
			case entries[of] == 1:
			case len(e.Names) == partitions-namedAhead:
				sealed[of] = e.At
			case !ok:
				refusedOnce.Do(func() { close(refused) })
				return errors.New("the log takes no name again before the lane is sealed")
			case e.At.After(at):
				if len(e.Names) != partitions {
					t.Errorf("an entry of %v has %d names of a lane that had %d files at %v", e.At, len(e.Names), partitions, at)
				}
				renewedOnce.Do(func() { close(renewed) })
			}
		}
		return nil
	})
	p.catalog.fault = func(int) fault { await(renewed); return faultNone }
	for id := range int64(partitions) {
		p.logs[0].append(t, event(t, id))
	}
	p.start()
	p.committed()
	p.exact(partitions, 0)
	p.wait(func() bool { return closed(renewed) }, func() string { return "an entry of the sealed lane" })
}

// await waits for ch, but not for ever.
func await(ch <-chan struct{}) {
	select {
	case <-ch:
	case <-time.After(10 * time.Second):
	}
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// Files that no commit adopted are deleted after the grace, and none that the table has.
func TestSweepDeletesWhatNoCommitAdopted(t *testing.T) {
	p := newPath(t, 1)
	p.start()
	p.produce(10)
	tab := p.committed()
	p.crash()
	orphan := catalog.DataLocation(tab, "orphan.parquet")
	b, key, err := p.locator.Resolve(t.Context(), orphan)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Put(t.Context(), key, []byte("x")); err != nil {
		t.Fatal(err)
	}
	live := planned(t, tab)
	names := []string{orphan}
	for n := range live {
		names = append(names, n)
	}
	swept := &sweepLog{topic: p.topic}
	now := time.Now()
	swept.events = []control.Event{control.Journal{At: now.Add(-2 * time.Hour), Names: names}}
	s := &coordinator.Sweeper{Log: swept, Grace: time.Hour, Logger: testLog(t),
		Load: func(context.Context, uuid.UUID) (*table.Table, catalog.Locator, error) {
			tab, err := p.load()
			return tab, p.locator, err
		}}

	// Named again a minute ago: a worker still holds it.
	swept.events = append(swept.events, control.Journal{At: now.Add(-time.Minute), Names: []string{orphan}})
	if err := s.Sweep(t.Context(), 0, now); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(t.Context(), key, 0, -1); err != nil {
		t.Fatalf("file of a living worker: %v", err)
	}
	if swept.trimmed != 1 {
		t.Errorf("control log trimmed to %d, want 1", swept.trimmed)
	}

	// Offered a minute ago; and then a sweep could not ask the table, and entered it as it was.
	answer := control.Answer{At: now.Add(-time.Minute), Files: []control.File{{Data: []control.DataFile{{Location: orphan}}}}}
	swept.events = []control.Event{swept.events[0], answer, swept.events[0]}
	if err := s.Sweep(t.Context(), 0, now); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(t.Context(), key, 0, -1); err != nil {
		t.Fatalf("file that a worker offered: %v", err)
	}
	swept.events = []control.Event{control.Journal{At: now.Add(-2 * time.Hour), Names: names}}
	if err := s.Sweep(t.Context(), 0, now); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(t.Context(), key, 0, -1); !errors.Is(err, objectstore.ErrNotFound) {
		t.Errorf("file that nobody adopted: %v, want not found", err)
	}
	p.exact(10, 0)
}

// sweepLog is a control log of one partition.
type sweepLog struct {
	topic   uuid.UUID
	events  []control.Event
	trimmed int64
}

func (l *sweepLog) Append(_ context.Context, _ uuid.UUID, events ...control.Event) error {
	l.events = append(l.events, events...)
	return nil
}

func (l *sweepLog) Partitions() int { return 1 }

func (l *sweepLog) Scan(_ context.Context, _ int32, from int64, fn func(uuid.UUID, int64, control.Event) error) (int64, error) {
	for i := from; i < int64(len(l.events)); i++ {
		if err := fn(l.topic, i, l.events[i]); err != nil {
			return i, err
		}
	}
	return int64(len(l.events)), nil
}

func (l *sweepLog) Trim(_ context.Context, _ int32, offset int64) error {
	l.trimmed = offset
	return nil
}
