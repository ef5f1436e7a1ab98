package worker

import (
	"context"
	"database/sql"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	catalogsql "github.com/tabletopic/tabletopic/catalog/sql"
	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/internal/clickstream"
	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
	"github.com/tabletopic/tabletopic/streamstore"
)

// machine is what outlives a process: bucket and metadata.
type machine struct {
	t       testing.TB
	bucket  objectstore.Bucket
	meta    *metadata.Store
	catalog catalog.Catalog
	locator *objectstore.Locator
	schemas map[int32]string
	typ     string // of the schemas; AVRO if empty
	memory  int64  // of its workers; the default if zero
}

func newMachine(t testing.TB) *machine {
	t.Helper()
	meta, err := metadata.Open(context.Background(), "sqlite::memory:", testLogTB(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { meta.Close() })
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "catalog.db")+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(10000)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	m := &machine{t: t, bucket: objectstore.NewMemory(), meta: meta, locator: objectstore.NewLocator(objectstore.S3Config{}), schemas: map[int32]string{1: eventSchema}}
	m.locator.Add(m.bucket)
	if m.catalog, err = catalogsql.Open(context.Background(), db, m.locator, catalogsql.Config{Warehouse: "mem:///warehouse"}); err != nil {
		t.Fatal(err)
	}
	return m
}

// life is one process on a machine.
type life struct {
	m            *machine
	cut          *objectstore.Faulty // what the process sees of the bucket
	store        *streamstore.Store
	set          *partition.Set
	ctl          *control.Topic
	shared       *Shared
	workers      *Manager
	coordinators *coordinator.Manager
	schemas      *control.Schemas
}

func (m *machine) start() *life {
	m.t.Helper()
	ctx, log := context.Background(), testLogTB(m.t)
	l := &life{m: m, cut: objectstore.NewFaulty(m.bucket, objectstore.Faults{})}
	locator := objectstore.NewLocator(objectstore.S3Config{})
	locator.Add(l.cut)
	var err error
	if l.store, err = streamstore.Open(ctx, streamstore.Config{WALLinger: time.Millisecond}, 1, l.cut, m.meta, m.meta, log); err != nil {
		m.t.Fatal(err)
	}
	if l.set, err = partition.OpenSet(ctx, partition.Config{}, l.store, m.meta, log); err != nil {
		m.t.Fatal(err)
	}
	if l.ctl, err = control.OpenTopic(ctx, l.set, 4); err != nil {
		m.t.Fatal(err)
	}
	schemas := control.NewSchemas(func(_ context.Context, id int32) (control.RegisteredSchema, error) {
		if text, ok := m.schemas[id]; ok {
			return control.RegisteredSchema{Type: m.typ, Text: text}, nil
		}
		return control.RegisteredSchema{}, metadata.ErrSchemaNotExist
	}, nil)
	l.schemas = schemas
	locators := func(string) catalog.Locator { return locator }
	l.coordinators = coordinator.Open(l.set, l.ctl, func(string) (catalog.Catalog, error) { return m.catalog, nil }, schemas, locators, coordinator.SweepConfig{}, nil, nil, log)
	l.shared = NewShared(0, m.memory, nil)
	l.workers = Open(l.set, l.ctl, schemas, locators, l.shared, log)
	return l
}

// crash ends the process as kill -9 does: nothing reaches the bucket any more.
func (l *life) crash() {
	l.cut.Cut(true)
	l.workers.Close()
	l.coordinators.Close()
	dead, cancel := context.WithCancel(context.Background())
	cancel()
	_ = l.set.Close(dead)
	_ = l.store.Close(dead)
}

func (l *life) stop() {
	l.m.t.Helper()
	l.workers.Close()
	l.coordinators.Close()
	if err := l.set.Close(context.Background()); err != nil {
		l.m.t.Error(err)
	}
	if err := l.store.Close(context.Background()); err != nil {
		l.m.t.Error(err)
	}
}

func (l *life) append(index int32, records ...record.Record) error {
	p, err := l.set.Partition("events", index)
	if err != nil {
		return err
	}
	_, err = p.AppendRecords(context.Background(), records)
	return err
}

// behind returns how many records the table lacks, dead letters counted as held.
func (l *life) behind() (int64, *table.Table, error) {
	tab, err := l.m.catalog.Load(context.Background(), table.Identifier{"default", "events"})
	if err != nil {
		return -1, nil, err
	}
	at, _, err := coordinator.ReadPosition(tab.Properties())
	if err != nil {
		return -1, nil, err
	}
	topic, _ := l.set.Topic("events")
	var n int64
	for i := range int32(len(topic.Partitions)) {
		p, err := l.set.Partition("events", i)
		if err != nil {
			return -1, nil, err
		}
		n += p.Offsets().LastStable - at.Next[i]
	}
	return n, tab, nil
}

func (l *life) caughtUp() *table.Table {
	l.m.t.Helper()
	deadline := time.NewTimer(60 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		n, tab, err := l.behind()
		if err == nil && n == 0 {
			return tab
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			l.m.t.Fatalf("table is %d records behind after 60 s, error %v", n, err)
		}
	}
}

func (l *life) verify(tab *table.Table) *coordinator.Report {
	l.m.t.Helper()
	topic, _ := l.set.Topic("events")
	logs := map[int32]coordinator.LogReader{}
	for i := range int32(len(topic.Partitions)) {
		p, err := l.set.Partition("events", i)
		if err != nil {
			l.m.t.Fatal(err)
		}
		logs[i] = Partition{P: p}
	}
	dead := NewDeadLetterTopic(l.set, partition.Routes(topic, partition.TopicConfig{})[0])
	r, err := coordinator.Verify(context.Background(), tab, coordinator.Verification{
		Topic: coordinator.Topic{ID: topic.ID, Name: topic.Name, Partitions: int32(len(topic.Partitions))}, KafkaColumn: "_kafka", Locator: l.m.locator, Logs: logs, Letters: dead.Each, Deep: true})
	if err != nil {
		l.m.t.Fatal(err)
	}
	return r
}

// A node that dies again and again, with bad records among the good, has each acknowledged
// record in the table or the dead letters once.
func TestNodeCrashesLoseAndDoubleNothing(t *testing.T) {
	m := newMachine(t)
	l := m.start()
	if _, err := l.set.CreateTopic(t.Context(), metadata.NewTopic{Name: "events", Partitions: 3,
		Config: map[string]string{"table.topic.enable": "true", "table.topic.target.lag.ms": "30"}}); err != nil {
		t.Fatal(err)
	}
	for round := range 8 {
		for n := range 10 {
			for i := range int32(3) {
				records := []record.Record{event(t, int64(n)), event(t, int64(n))}
				if n%3 == 0 {
					records = append(records, record.Record{Value: []byte("bad")})
				}
				if err := l.append(i, records...); err != nil {
					t.Fatal(err)
				}
			}
			if err := sleep(t.Context(), time.Duration(round*3)*time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
		l.crash()
		l = m.start()
	}
	tab := l.caughtUp()
	r := l.verify(tab)
	var rows, dead int64
	for _, p := range r.Partitions {
		rows, dead = rows+p.Rows, dead+p.Dead
	}
	if !r.OK || rows != 8*10*3*2 || dead != 8*4*3 {
		t.Errorf("%d rows and %d dead letters, want 480 and 96; report %+v", rows, dead, r)
	}
	dlq, err := l.set.Partition("events.dlq", 0)
	if err != nil {
		t.Fatal(err)
	}
	if n := dlq.Offsets().HighWatermark; n != 32 {
		t.Errorf("dead letter partition has %d records, want 32", n)
	}
	l.stop()
}

// A table whose catalog is away, and whose worker has all the memory that there is in files that wait for it,
// presses back no append: the log takes all, and the table has it when the catalog is back.
func TestCatalogAwayPressesNoAppendBack(t *testing.T) {
	m := newMachine(t)
	away := &faultyCatalog{Catalog: m.catalog}
	m.catalog, m.memory = away, 1 // one task at a time, and none while a file waits
	l := m.start()
	defer l.stop()
	topic, err := l.set.CreateTopic(t.Context(), metadata.NewTopic{Name: "events", Partitions: 2,
		Config: map[string]string{"table.topic.enable": "true", "table.topic.target.lag.ms": "20"}})
	if err != nil {
		t.Fatal(err)
	}
	append := func() {
		t.Helper()
		for i := range int32(2) {
			if err := l.append(i, event(t, 1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	append()
	l.caughtUp()
	away.away.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), invariant.Patience(2*time.Minute))
	defer cancel()
	worker := l.workers.Worker(topic.ID)
	for appended := 0; !l.shared.budget.short() || worker.Files() == 0 || away.refused.Load() == 0; appended++ {
		append()
		if sleep(ctx, time.Millisecond) != nil {
			t.Fatalf("after %d records %d files wait, and %d bytes of memory are held", 2*appended, worker.Files(), l.shared.budget.holds())
		}
	}
	for range 100 {
		append()
	}
	var unread int64
	for _, lag := range worker.Lag(time.Now()) {
		unread += lag.Unwritten
	}
	if unread < 200 {
		t.Errorf("%d records are in no file: the memory was not full while they came", unread)
	}
	away.away.Store(false)
	if r := l.verify(l.caughtUp()); !r.OK {
		t.Errorf("report %+v", r)
	}
}

// The table is switched on for a topic that has records, and off and on again.
func TestNodeSwitchesTableOnAndOff(t *testing.T) {
	m := newMachine(t)
	l := m.start()
	if _, err := l.set.CreateTopic(t.Context(), metadata.NewTopic{Name: "events", Partitions: 2}); err != nil {
		t.Fatal(err)
	}
	for i := range int32(2) {
		if err := l.append(i, event(t, 1), event(t, 2)); err != nil {
			t.Fatal(err)
		}
	}
	for round := range 3 {
		if _, err := l.set.AlterConfig(t.Context(), "events", map[string]string{"table.topic.enable": "true", "table.topic.target.lag.ms": "20"}, nil); err != nil {
			t.Fatal(err)
		}
		tab := l.caughtUp()
		if r := l.verify(tab); !r.OK || r.Partitions[0].Rows != int64(2+round) {
			t.Errorf("report %+v", r)
		}
		if _, err := l.set.AlterConfig(t.Context(), "events", map[string]string{"table.topic.enable": "false"}, nil); err != nil {
			t.Fatal(err)
		}
		for i := range int32(2) {
			if err := l.append(i, event(t, 1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	l.stop()
}

// What retention took while the table was switched off is a recorded gap when it is switched
// on again, and the records that the log still has become rows.
func TestRetentionWhileTheTableIsOff(t *testing.T) {
	m := newMachine(t)
	l := m.start()
	defer l.stop()
	if _, err := l.set.CreateTopic(t.Context(), metadata.NewTopic{Name: "events", Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	set := func(enable string) {
		t.Helper()
		if _, err := l.set.AlterConfig(t.Context(), "events", map[string]string{"table.topic.enable": enable, "table.topic.target.lag.ms": "20"}, nil); err != nil {
			t.Fatal(err)
		}
	}
	append := func(n int) {
		t.Helper()
		for range n {
			if err := l.append(0, event(t, 1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	set("true")
	append(3)
	l.caughtUp()
	set("false")
	append(5)
	p, err := l.set.Partition("events", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.DeleteRecords(t.Context(), 6); err != nil {
		t.Fatal(err)
	}
	append(1)
	set("true")
	tab := l.caughtUp()
	want := coordinator.LostSpan{Partition: 0, Start: 3, End: 6, Reason: coordinator.LostRetention}
	if r := l.verify(tab); !r.OK || r.Partitions[0].Rows != 6 || !slices.Equal(r.Partitions[0].GapRanges, []coordinator.LostSpan{want}) {
		t.Errorf("report %+v, want 6 rows and the gap %+v", r, want)
	}
}

// A topic that is deleted leaves no worker behind; the next of its name begins its own.
func TestDeletedTopicIsForgotten(t *testing.T) {
	m := newMachine(t)
	l := m.start()
	var ids []uuid.UUID
	for range 3 {
		topic, err := l.set.CreateTopic(t.Context(), metadata.NewTopic{Name: "events", Partitions: 2, Config: map[string]string{"table.topic.enable": "true", "table.topic.target.lag.ms": "20"}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, topic.ID)
		if err := l.append(0, event(t, 1)); err != nil {
			t.Fatal(err)
		}
		l.caughtUp()
		if err := l.set.DeleteTopic(t.Context(), "events"); err != nil {
			t.Fatal(err)
		}
	}
	defer l.stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, id := range ids {
		for l.workers.Worker(id) != nil {
			if sleep(ctx, time.Millisecond) != nil {
				t.Fatalf("topic %s is deleted and has a worker", id)
			}
		}
	}
}

// A clickFormat is one in which click events are written.
type clickFormat struct {
	name, typ, schema string
	head              []byte // of a payload
	encode            func(dst []byte, e *clickstream.Event) []byte
}

var clickFormats = []clickFormat{
	{"Avro", "", clickstream.Schema, []byte{0, 0, 0, 0, 1}, clickstream.AppendAvro},
	{"Protobuf", "PROTOBUF", clickstream.ProtobufSchema, []byte{0, 0, 0, 0, 1, 0}, clickstream.AppendProtobuf},
	{"JSON", "JSON", clickstream.JSONSchema, []byte{0, 0, 0, 0, 1}, clickstream.AppendJSON},
}

// clicks appends click events to four partitions of a new topic.
func (l *life) clicks(t testing.TB, rows int) { l.clicksIn(t, clickFormats[0], rows, 0) }

// clicksIn appends them in a format. If garbage is not 0, so manyth of them is cut off within a payload.
func (l *life) clicksIn(t testing.TB, f clickFormat, rows, garbage int) {
	t.Helper()
	const partitions = 4
	l.m.schemas[1], l.m.typ = f.schema, f.typ
	if _, err := l.set.CreateTopic(context.Background(), metadata.NewTopic{Name: "events", Partitions: partitions}); err != nil {
		t.Fatal(err)
	}
	g := clickstream.NewGenerator(1, time.UnixMilli(1_700_000_000_000))
	var e clickstream.Event
	for n := 0; n < rows; {
		batch := make([]record.Record, 1000)
		for i := range batch {
			g.Next(&e)
			v := f.encode(slices.Clone(f.head), &e)
			if garbage > 0 && i%garbage == 0 {
				v = v[:len(v)-1]
			}
			batch[i] = record.Record{Value: v}
		}
		if err := l.append(int32(n/1000%partitions), batch...); err != nil {
			t.Fatal(err)
		}
		n += len(batch)
	}
}

// drain has all records of the topic in its table, and returns how long that took.
func (l *life) drain(t testing.TB) time.Duration {
	t.Helper()
	start := time.Now()
	if _, err := l.set.AlterConfig(context.Background(), "events", map[string]string{"table.topic.enable": "true", "table.topic.target.lag.ms": "1000"}, nil); err != nil {
		t.Fatal(err)
	}
	l.caughtUp()
	return time.Since(start)
}

func TestMemoryIsNotAllocatedPerRecord(t *testing.T) {
	const rows = 100_000
	l := newMachine(t).start()
	defer l.stop()
	l.clicks(t, rows)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	l.drain(t)
	runtime.ReadMemStats(&after)
	most := 0.9
	if underRace {
		most = 2 // with its own
	}
	if n := float64(after.Mallocs-before.Mallocs) / rows; n > most {
		t.Errorf("%.2f allocations a record from the log to the table, want %v at most", n, most)
	}
}

// What dead letters take besides must not slow down the rows among which they are.
func TestDeadLettersShareTheirMemory(t *testing.T) {
	const rows, letters = 50_000, 25_000
	l := newMachine(t).start()
	defer l.stop()
	l.clicksIn(t, clickFormats[0], rows, rows/letters)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	l.drain(t)
	runtime.ReadMemStats(&after)
	most := 10.0
	if underRace {
		most = 20 // with its own
	}
	if n := float64(after.Mallocs-before.Mallocs) / letters; n > most {
		t.Errorf("%.2f allocations a dead letter from the log to its topic, want %v at most", n, most)
	}
}

// BenchmarkDrain converts and commits a million click events that are in the log already.
func BenchmarkDrain(b *testing.B) {
	const rows = 1_000_000
	for b.Loop() {
		b.StopTimer()
		l := newMachine(b).start()
		l.clicks(b, rows)
		b.StartTimer()
		b.ReportMetric(rows/l.drain(b).Seconds(), "rows/s")
		b.StopTimer()
		l.stop()
		b.StartTimer()
	}
}

// BenchmarkGarbage drains a million click events, and as many of which every hundredth is a dead letter, in turns.
// What is printed are medians of rows per CPU second of the process, and the median of their ratio.
func BenchmarkGarbage(b *testing.B) {
	const rows, rounds = 1_000_000, 5
	for _, format := range clickFormats {
		b.Run(format.name, func(b *testing.B) {
			var rates [2][]float64 // clean, with garbage
			var ratios []float64
			for b.Loop() {
				for round := range rounds {
					for turn := range 2 {
						side := (turn + round) % 2 // who begins alternates
						l := newMachine(b).start()
						l.clicksIn(b, format, rows, 100*side)
						runtime.GC()
						begin := lab.CPU(b)
						l.drain(b)
						rates[side] = append(rates[side], rows/(lab.CPU(b)-begin).Seconds())
						l.stop()
					}
					ratios = append(ratios, rates[1][len(rates[1])-1]/rates[0][len(rates[0])-1])
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(lab.Median(rates[0]), "clean_rows/cpu-s")
			b.ReportMetric(lab.Median(rates[1]), "garbage_rows/cpu-s")
			b.ReportMetric(lab.Median(ratios), "ratio")
		})
	}
}
