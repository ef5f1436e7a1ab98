package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// The schemas of three types of records, by id.
const (
	typeA, typeB, typeC = 2, 3, 4
)

// typed returns an event of a type.
func typedEvent(t *testing.T, schema byte, id int64) record.Record {
	r := event(t, id)
	r.Value[4] = schema
	return r
}

func newFanOutMachine(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t)
	for id, name := range map[int32]string{typeA: "n.A", typeB: "n.B", typeC: "n.C"} {
		m.schemas[id] = strings.Replace(eventSchema, `"name":"Event"`, fmt.Sprintf(`"name":%q`, name), 1)
	}
	return m
}

func (l *life) createFanOut(partitions int, config ...string) {
	l.m.t.Helper()
	raw := map[string]string{"table.topic.enable": "true", "table.topic.target.lag.ms": "30", "table.topic.fan.out": "n.A:a,n.B:b"}
	for i := 0; i+1 < len(config); i += 2 {
		raw[config[i]] = config[i+1]
	}
	if _, err := l.set.CreateTopic(context.Background(), metadata.NewTopic{Name: "events", Partitions: partitions, Config: raw}); err != nil {
		l.m.t.Fatal(err)
	}
}

func (l *life) alter(config ...string) {
	l.m.t.Helper()
	raw := map[string]string{}
	for i := 0; i+1 < len(config); i += 2 {
		raw[config[i]] = config[i+1]
	}
	if _, err := l.set.AlterConfig(context.Background(), "events", raw, nil); err != nil {
		l.m.t.Fatal(err)
	}
}

// route returns the route of a type, "" for the topic's own table.
func (l *life) route(record string) partition.Route {
	l.m.t.Helper()
	topic, _ := l.set.Topic("events")
	routes, err := l.set.Routes(topic)
	if err != nil {
		l.m.t.Fatal(err)
	}
	i := slices.IndexFunc(routes, func(r partition.Route) bool { return r.Table.Record == record })
	if i < 0 {
		l.m.t.Fatalf("topic has no route for %q", record)
	}
	return routes[i]
}

// passed returns the table of a route when it has passed all records of the log.
func (l *life) passed(r partition.Route) (*table.Table, error) {
	id, err := coordinator.Identifier(r.Table.Namespace, r.Table.Name, r.Name)
	if err != nil {
		return nil, err
	}
	tab, err := l.m.catalog.Load(context.Background(), id)
	if err != nil {
		return nil, err
	}
	at, _, err := coordinator.ReadPosition(tab.Properties())
	if err != nil {
		return nil, err
	}
	for i := range int32(len(r.Topic.Partitions)) {
		p, err := l.set.Partition("events", i)
		if err != nil {
			return nil, err
		}
		if end := p.Offsets().LastStable; at.Topic != r.ID || at.Next[i] != end {
			return nil, fmt.Errorf("partition %d is at %d of %d", i, at.Next[i], end)
		}
	}
	return tab, nil
}

// wantTable waits until the table of a route has passed all records, and fails unless it, and the dead letters,
// then hold those that are the route's once: so many rows and letters.
func (l *life) wantTable(record string, rows, dead int64) {
	l.m.t.Helper()
	r := l.route(record)
	var tab *table.Table
	deadline := time.NewTimer(invariant.Patience(time.Minute))
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for tab == nil {
		var err error
		if tab, err = l.passed(r); err == nil {
			break
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			l.m.t.Fatalf("table of %s: %v", r.Name, err)
		}
	}
	for _, deep := range []bool{false, true} {
		in := coordinator.Verification{Topic: coordinator.Topic{ID: r.ID, Name: r.Name, Partitions: int32(len(r.Topic.Partitions))}, KafkaColumn: "_kafka",
			Locator: l.m.locator, Logs: map[int32]coordinator.LogReader{}, Letters: NewDeadLetterTopic(l.set, r).Each, Deep: deep}
		if e := NewElsewhere(r, coordinator.Elsewhere(tab), l.schemas); e != nil {
			in.Elsewhere = e.Has
		}
		for i := range in.Topic.Partitions {
			p, err := l.set.Partition("events", i)
			if err != nil {
				l.m.t.Fatal(err)
			}
			in.Logs[i] = Partition{P: p}
		}
		report, err := coordinator.Verify(context.Background(), tab, in)
		if err != nil {
			l.m.t.Fatal(err)
		}
		var gotRows, gotDead, leftOut int64
		for _, p := range report.Partitions {
			gotRows, gotDead, leftOut = gotRows+p.Rows, gotDead+p.Dead, leftOut+p.LeftOut
		}
		if !report.OK || gotRows != rows || deep && gotDead != dead {
			l.m.t.Errorf("%s, deep %t: %d rows, %d dead letters, %d left out; want %d and %d; report %+v", r.Name, deep, gotRows, gotDead, leftOut, rows, dead, report)
		}
	}
}

// letters returns how many dead letters there are of a cause.
func (l *life) letters(cause string) (n int) {
	l.m.t.Helper()
	for _, r := range []string{"", "n.A", "n.B"} {
		route := l.route(r)
		for i := range int32(len(route.Topic.Partitions)) {
			if err := NewDeadLetterTopic(l.set, route).Each(context.Background(), i, func(_ int64, c string) {
				if c == cause {
					n++
				}
			}); err != nil {
				l.m.t.Fatal(err)
			}
		}
	}
	return n
}

// Each record of a topic with tables for types of records is in the table of its type once, or in the dead
// letters once if its type has no table or it is none, whatever dies meanwhile.
func TestTypesHaveTheirOwnTables(t *testing.T) {
	m := newFanOutMachine(t)
	l := m.start()
	l.createFanOut(2)
	const rounds, each = 5, 10
	for round := range rounds {
		for n := range each {
			for i := range int32(2) {
				records := []record.Record{typedEvent(t, typeA, int64(n)), typedEvent(t, typeA, int64(n)), typedEvent(t, typeB, int64(n)), typedEvent(t, typeC, int64(n)),
					{Value: []byte("bad")}, {Value: []byte{0, 0, 0, 0, typeB, 0x80}}}
				if err := l.append(i, records...); err != nil {
					t.Fatal(err)
				}
			}
			if err := sleep(t.Context(), time.Duration(round*2)*time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
		l.crash()
		l = m.start()
	}
	defer l.stop()
	const all = rounds * each * 2
	l.wantTable("n.A", 2*all, 0)
	l.wantTable("n.B", all, all)
	l.wantTable("", 0, 2*all)
	if n := l.letters(CauseNoTable); n != all {
		t.Errorf("%d dead letters for want of a table, want %d", n, all)
	}
}

// With others=table the topic's own table has the records of types without a table; a type that gets a table
// later has it from the start of the log on, and one that loses it goes on in it when it comes back.
func TestOthersAreRowsOfTheOwnTable(t *testing.T) {
	l := newFanOutMachine(t).start()
	defer l.stop()
	l.createFanOut(1, "table.topic.fan.out.others", "table")
	produce := func(schemas ...byte) {
		t.Helper()
		for i, s := range schemas {
			if err := l.append(0, typedEvent(t, s, int64(i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	produce(typeA, typeB, typeC, typeC)
	l.wantTable("n.A", 1, 0)
	l.wantTable("n.B", 1, 0)
	l.wantTable("", 2, 0)
	l.alter("table.topic.fan.out", "n.A:a,n.B:b,n.C:c")
	produce(typeC)
	l.wantTable("n.C", 3, 0)
	l.wantTable("", 2, 0)
	l.alter("table.topic.fan.out", "n.A:a,n.B:b")
	produce(typeC, typeB)
	l.wantTable("", 3, 0)
	l.wantTable("n.B", 2, 0)
	l.alter("table.topic.fan.out", "n.A:a,n.B:b,n.C:c")
	produce(typeC)
	l.wantTable("n.C", 5, 0)
	l.wantTable("", 3, 0)
	l.alter("table.topic.fan.out", "")
	produce(typeA, typeB, typeC)
	l.wantTable("", 6, 0)
}

// The topic's own table, when it is dropped and made again, begins where the setting says by then, as a type that was
// added with latest made it say, and has none of the records of a type that has a table now. The table of the type
// has those of before when it, too, is made again from the start.
func TestOwnTableMadeAgainHasNoRecordsOfTypesWithTables(t *testing.T) {
	l := newFanOutMachine(t).start()
	defer l.stop()
	l.createFanOut(1, "table.topic.fan.out", "n.A:a", "table.topic.fan.out.others", "table")
	produce := func(schemas ...byte) {
		t.Helper()
		for i, s := range schemas {
			if err := l.append(0, typedEvent(t, s, int64(i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	drop := func(name string) {
		t.Helper()
		if err := l.m.catalog.Drop(t.Context(), table.Identifier{"default", name}); err != nil {
			t.Fatal(err)
		}
	}
	produce(typeC, typeC, typeB)
	l.wantTable("", 3, 0)
	l.alter("table.topic.fan.out", "n.A:a,n.C:c", "table.topic.start", "latest")
	produce(typeC, typeB)
	l.wantTable("n.C", 1, 0)
	l.wantTable("", 4, 0)
	drop("events")
	produce(typeB)
	l.wantTable("", 2, 0) // what came before the type did is left out
	l.wantTable("n.C", 1, 0)
	l.alter("table.topic.start", "earliest")
	drop("events")
	produce(typeB)
	l.wantTable("", 4, 0)    // the two of the type from before are in no table
	l.wantTable("n.C", 1, 0) // which is there, and goes on
	drop("c")
	produce(typeC)
	l.wantTable("n.C", 4, 0)
	l.wantTable("", 4, 0)
}

// The table knows which types had tables beside it, as far as a property has room.
func TestTableKnowsTheTypesOfOtherTables(t *testing.T) {
	m := newFanOutMachine(t)
	l := m.start()
	defer l.stop()
	l.createFanOut(1)
	types := func() string {
		t.Helper()
		if err := l.append(0, typedEvent(t, typeA, 1)); err != nil {
			t.Fatal(err)
		}
		l.wantTable("", 0, 0)
		tab, err := l.passed(l.route(""))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(coordinator.Elsewhere(tab), " ")
	}
	if got := types(); got != "n.A n.B" {
		t.Errorf("types with other tables: %q", got)
	}
	l.alter("table.topic.fan.out", "n.C:c,n.A:a")
	if got := types(); got != "n.B n.C n.A" {
		t.Errorf("types with other tables, one formerly: %q", got)
	}
}

// A record that became a dead letter because its type had no table stays one when the type gets a table, so
// that its replay makes the only row of it.
func TestLettersOfATypeStayDeadWhenItGetsATable(t *testing.T) {
	l := newFanOutMachine(t).start()
	defer l.stop()
	l.createFanOut(1)
	for i := range 5 {
		if err := l.append(0, typedEvent(t, typeA, int64(i)), typedEvent(t, typeC, int64(i))); err != nil {
			t.Fatal(err)
		}
	}
	l.wantTable("", 0, 5)
	l.alter("table.topic.fan.out", "n.A:a,n.B:b,n.C:c")
	if err := l.append(0, typedEvent(t, typeC, 9)); err != nil {
		t.Fatal(err)
	}
	l.wantTable("n.C", 1, 5)
	l.wantTable("n.A", 5, 0)
	l.wantTable("", 0, 5)
}

// guids are schemas by GUID.
type guids map[uuid.UUID]func() (int32, error)

func (g guids) GUID(_ context.Context, guid uuid.UUID) (int32, error) { return g[guid]() }

func (guids) Latest(context.Context, string) (int32, error) { return 0, metadata.ErrSchemaNotExist }

func (guids) Earlier(context.Context, int32, int) ([]int32, error) { return nil, nil }

// A schema that comes between the reads of two tables of a topic is, for each record, known to both or to neither:
// else each would leave the record to the other, or both would have it. The topic's own table decides, and the others
// wait until it holds the record.
func TestTablesAgreeOnASchemaThatCameMeanwhile(t *testing.T) {
	m := newFanOutMachine(t)
	guid := uuid.New()
	headers := []record.Header{{Key: headerValueSchema, Value: append([]byte{magicGUID}, guid[:]...)}}
	text := m.schemas[typeA]
	cfg, err := partition.ParseTopicConfig(map[string]string{"table.topic.fan.out": "n.A:a"})
	if err != nil {
		t.Fatal(err)
	}
	routes := partition.Routes(metadata.Topic{ID: uuid.New(), Name: "events"}, cfg)
	for _, byGUID := range []bool{false, true} {
		shared := NewShared(1, 0, nil)
		known := map[int32]string{}
		var schemas *control.Schemas
		reads := func(route int, index int32, offset int64) string {
			t.Helper()
			r, settings := typedEvent(t, typeA, 1), configOf(routes[route], shared)
			r.Offset = offset
			if byGUID {
				r.Headers = headers
			}
			takes, _, bad, err := (&reading{cfg: &settings, schemas: schemas, indexed: map[int32]bool{}, verdicts: shared.verdicts}).takes(t.Context(), index, &r)
			switch {
			case errors.Is(err, errUndecided):
				return "waits"
			case err != nil:
				t.Fatal(err)
			case bad != nil:
				return bad.cause
			}
			return fmt.Sprint(takes)
		}
		const own, a = 0, 1
		expect := func(route int, index int32, offset int64, want string) {
			t.Helper()
			if got := reads(route, index, offset); got != want {
				t.Errorf("route %d reads offset %d of partition %d as %s, want %s", route, offset, index, got, want)
			}
		}
		for _, first := range []int{own, a} { // whose table is ahead
			index := int32(first)
			delete(known, typeA)
			schemas = control.NewSchemas(func(_ context.Context, id int32) (control.RegisteredSchema, error) {
				if text, ok := known[id]; ok {
					return control.RegisteredSchema{Text: text}, nil
				}
				return control.RegisteredSchema{}, metadata.ErrSchemaNotExist
			}, guids{guid: func() (int32, error) {
				if _, ok := known[typeA]; ok {
					return typeA, nil
				}
				return 0, metadata.ErrSchemaNotExist
			}})
			at := partOf{routes[own].Topic.ID, index}
			dead := first == own
			if dead {
				expect(own, index, 10, CauseUnknownSchema)
			} else {
				expect(a, index, 10, "waits")
			}
			known[typeA] = text
			for _, offset := range []int64{5, 10} {
				if dead {
					expect(own, index, offset, CauseUnknownSchema)
					shared.verdicts.hold(at, offset)
					expect(a, index, offset, "waits")
					shared.verdicts.hold(at, offset+1)
					expect(a, index, offset, "false")
				} else {
					expect(own, index, offset, "false")
					expect(a, index, offset, "true")
				}
			}
			for route, want := range map[int]string{own: "false", a: "true"} {
				expect(route, index, 11, want)
				expect(route, index+10, 5, want)
			}
		}
	}
}

// A table that waits for the schema of a record decides nothing: when the schema comes the record is a row.
func TestPausedTableDecidesNothing(t *testing.T) {
	m := newFanOutMachine(t)
	text := m.schemas[typeA]
	cfg, err := partition.ParseTopicConfig(map[string]string{"table.topic.fan.out": "n.A:a", "table.topic.fan.out.others": "table", "table.topic.errors.tolerance": "pause"})
	if err != nil {
		t.Fatal(err)
	}
	routes, shared := partition.Routes(metadata.Topic{ID: uuid.New(), Name: "events"}, cfg), NewShared(1, 0, nil)
	known := map[int32]string{}
	schemas := control.NewSchemas(func(_ context.Context, id int32) (control.RegisteredSchema, error) {
		if text, ok := known[id]; ok {
			return control.RegisteredSchema{Text: text}, nil
		}
		return control.RegisteredSchema{}, metadata.ErrSchemaNotExist
	}, nil)
	takes := func(route int) (bool, *unfit, error) {
		r, settings := typedEvent(t, typeA, 1), configOf(routes[route], shared)
		takes, _, bad, err := (&reading{cfg: &settings, schemas: schemas, indexed: map[int32]bool{}, verdicts: shared.verdicts}).takes(t.Context(), 0, &r)
		return takes, bad, err
	}
	if _, bad, err := takes(0); err != nil || bad == nil || bad.cause != CauseUnknownSchema {
		t.Errorf("without a schema: %+v, %v", bad, err)
	}
	known[typeA] = text
	for route, want := range []bool{false, true} {
		if got, bad, err := takes(route); got != want || bad != nil || err != nil {
			t.Errorf("route %d takes the record: %t, %+v, %v; want %t", route, got, bad, err, want)
		}
	}
}

// A stuckCatalog does not make one table.
type stuckCatalog struct {
	catalog.Catalog
	table   string
	refused chan struct{} // closed by the first refusal
	once    sync.Once
}

func (c *stuckCatalog) Create(ctx context.Context, id table.Identifier, s *iceberg.Schema, props iceberg.Properties) (*table.Table, error) {
	if id[len(id)-1] == c.table {
		c.once.Do(func() { close(c.refused) })
		return nil, errAway
	}
	return c.Catalog.Create(ctx, id, s, props)
}

// A record whose schema does not exist when one table of the topic reads it, and does when the node has been killed and
// is back, is a row of the table of its type, or a dead letter, once: whichever table was ahead.
func TestTypesWaitForTheOwnTableToDecide(t *testing.T) {
	const late = 5
	for _, behind := range []string{"events", "a"} {
		m := newFanOutMachine(t)
		real, stuck := m.catalog, &stuckCatalog{Catalog: m.catalog, table: behind, refused: make(chan struct{})}
		m.catalog = stuck
		l := m.start()
		l.createFanOut(1)
		for _, s := range []byte{typeA, typeC, late, typeA} {
			if err := l.append(0, typedEvent(t, s, int64(s))); err != nil {
				t.Fatal(err)
			}
		}
		own, a := l.route(""), l.route("n.A")
		deadline := time.NewTimer(invariant.Patience(time.Minute))
		defer deadline.Stop()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		settled := func() bool { // what the table that is ahead does with the record
			if behind == "a" {
				_, err := l.passed(own)
				return err == nil
			}
			if _, err := l.passed(a); err == nil {
				return true
			}
			w := l.workers.Worker(a.ID)
			return w != nil && strings.Contains(w.Lag(time.Now())[0].Trouble, errUndecided.Error())
		}
		for !settled() {
			select {
			case <-tick.C:
			case <-deadline.C:
				t.Fatalf("%s is to be behind, and the other table neither waits nor is through", behind)
			}
		}
		select {
		case <-stuck.refused:
		case <-deadline.C:
			t.Fatalf("nobody wanted to make %s", behind)
		}
		l.crash()
		m.schemas[late] = m.schemas[typeA]
		m.catalog = real
		l = m.start()
		if behind == "events" {
			l.wantTable("n.A", 3, 0)
			l.wantTable("", 0, 1)
		} else {
			l.wantTable("n.A", 2, 0)
			l.wantTable("", 0, 2)
		}
		l.stop()
	}
}

// Only so many verdicts are remembered. Those that the dead letters tell are forgotten for others, and who read the dead
// letters before reads them again; while there are none of these, tables wait.
func TestForgottenVerdictsAreReadAgain(t *testing.T) {
	v := newVerdicts()
	at := partOf{uuid.New(), 0}
	enter := func(schema int32, offset, forgotten int64) (bool, error) {
		t.Helper()
		done, unknown, err := v.enter(t.Context(), schemaIn{at, schema, uuid.UUID{}}, offset, forgotten)
		if err == nil {
			done(!unknown)
		}
		return unknown, err
	}
	for i := range int32(maxVerdicts) {
		if unknown, err := enter(1+i, int64(i), 0); unknown || err != nil {
			t.Fatalf("schema %d: %t, %v", 1+i, unknown, err)
		}
	}
	if _, err := enter(maxVerdicts+1, maxVerdicts, 0); !errors.Is(err, errVerdicts) {
		t.Errorf("a verdict too many: %v", err)
	}
	if unknown, err := enter(7, 6, 0); !unknown || err != nil {
		t.Errorf("a verdict that is there: %t, %v", unknown, err)
	}
	v.hold(at, 100)
	if _, err := enter(maxVerdicts+1, maxVerdicts, 0); !errors.Is(err, errForgotten) {
		t.Errorf("after verdicts were forgotten: %v", err)
	}
	if unknown, err := enter(7, 6, 1); unknown || err != nil {
		t.Errorf("a verdict that was forgotten: %t, %v", unknown, err)
	}
	if unknown, err := enter(200, 199, 0); !unknown || err != nil {
		t.Errorf("a verdict that no dead letter tells yet: %t, %v", unknown, err)
	}
}

// A table of a type without the column by which the topic's tables have partitions has none, and its rows.
func TestTypeWithoutThePartitionColumn(t *testing.T) {
	m := newFanOutMachine(t)
	m.schemas[typeB] = `{"type":"record","name":"B","namespace":"n","fields":[{"name":"other","type":"long"}]}`
	l := m.start()
	defer l.stop()
	l.createFanOut(1, "table.topic.partition.by", "id")
	if err := l.append(0, typedEvent(t, typeA, 1), encode(t, typeB, m.schemas[typeB], map[string]any{"other": int64(1)})); err != nil {
		t.Fatal(err)
	}
	l.wantTable("n.A", 1, 0)
	l.wantTable("n.B", 1, 0)
	for record, want := range map[string]int{"n.A": 1, "n.B": 0} {
		tab, err := l.passed(l.route(record))
		if err != nil {
			t.Fatal(err)
		}
		if got := tab.Spec(); got.NumFields() != want {
			t.Errorf("table of %s has %d partition fields, want %d", record, got.NumFields(), want)
		}
	}
}
