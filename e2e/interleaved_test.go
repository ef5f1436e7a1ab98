package e2e

import (
	"bytes"
	"context"
	wire "encoding/binary"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// interleavedVersions is how many versions the schema of [interleavedSchema] has.
const interleavedVersions = 7

// interleavedSchema is a version of a schema. Each has a field more in the record, in a struct of it and
// in the structs of a list; some widen one, at each of these depths; the fourth renames one.
func interleavedSchema(v int) string {
	var top, place, item string
	for i := 2; i <= v; i++ {
		more := fmt.Sprintf(`%d","type":["null","long"],"default":null}`, i)
		top, place, item = top+`,{"name":"f`+more, place+`,{"name":"p`+more, item+`,{"name":"k`+more
	}
	since := func(version int, before, after string) string {
		if v < version {
			return before
		}
		return after
	}
	return rec(idField + `,{"name":"w","type":"int"},{"name":"n","type":` + since(3, `"int"`, `"long"`) + `},` +
		since(4, `{"name":"text","type":"string"}`, `{"name":"label","aliases":["text"],"type":"string"}`) +
		`,{"name":"price","type":{"type":"bytes","logicalType":"decimal","precision":` + since(5, "9", "12") + `,"scale":2}}` +
		`,{"name":"place","type":{"type":"record","name":"Place","fields":[{"name":"x","type":` + since(4, `"float"`, `"double"`) + `}` + place + `]}}` +
		`,{"name":"items","type":{"type":"array","items":{"type":"record","name":"Item","fields":[{"name":"k","type":` + since(6, `"int"`, `"long"`) + `}` + item + `]}}}` + top)
}

// What Spark renames; the writers never hear of it. And what they rename themselves.
var interleavedNames = map[string]string{"f2": "g2", "s2": "r2", "p2": "q2", "text": "label"}

// nameNow is that of the column in the end which a field had first.
func nameNow(first string) string {
	if name, ok := interleavedNames[first]; ok {
		return name
	}
	return first
}

// interleavedValue is what a writer of a version writes under an id, and its row: what is not null in it.
// A value of a widened field does not fit what the field was.
func interleavedValue(v int, id int64) (value obj, row map[string]any) {
	var n, x, k, price any = int32(id), float32(id%1000) + 0.5, int32(-id), id % 1_000_000
	if v >= 3 {
		n = 1<<40 + id
	}
	if v >= 4 {
		x = 1e9 + float64(id) + 0.125
	}
	if v >= 5 {
		price = 100_000_000_000 + id
	}
	if v >= 6 {
		k = -1<<40 - id
	}
	text, field := fmt.Sprintf("text %d of %d", id, v), "text"
	if v >= 4 {
		field = "label"
	}
	place, item, placeRow, itemRow := obj{"x": x}, obj{"k": k}, obj{"x": x}, obj{"k": k}
	value = obj{"id": id, "w": int32(id), "n": n, field: text, "price": big.NewRat(price.(int64), 100), "place": place, "items": []any{item}}
	row = obj{"id": id, "w": id, "n": n, "label": text, "price": fmt.Sprintf("%d.%02d", price.(int64)/100, price.(int64)%100), "place": placeRow, "items": []any{itemRow}}
	for i := 2; i <= v; i++ {
		f, p, k := fmt.Sprint("f", i), fmt.Sprint("p", i), fmt.Sprint("k", i)
		n := id*100 + int64(i)
		value[f], place[p], item[k] = in("long", n), in("long", -n), in("long", n+50)
		row[nameNow(f)], placeRow[nameNow(p)], itemRow[nameNow(k)] = n, -n, n+50
	}
	return value, row
}

// filled is what a column of the type has of v, with null for the fields that v lacks.
func filled(t iceberg.Type, v any) any {
	switch t := t.(type) {
	case *iceberg.StructType:
		if v, ok := v.(map[string]any); ok {
			out := map[string]any{}
			for _, f := range t.FieldList {
				out[f.Name] = filled(f.Type, v[f.Name])
			}
			return out
		}
	case *iceberg.ListType:
		if v, ok := v.([]any); ok {
			out := []any{}
			for _, item := range v {
				out = append(out, filled(t.Element, item))
			}
			return out
		}
	}
	return v
}

// printed is a value as lab/query prints it.
func printed(t *testing.T, v any) string {
	switch v := v.(type) {
	case nil:
		return "NULL"
	case map[string]any, []any:
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	return fmt.Sprint(v)
}

// interleavedWriters write old and new versions at the same time.
type interleavedWriters struct {
	schemas [interleavedVersions + 1]avro.Schema
	headers [interleavedVersions + 1][]byte // of those up to newest
	newest  atomic.Int64
	acked   *acks
}

// produce writes until ctx ends, then waits until each record has an answer: the newest version if n is
// even, one after the other of those that there are if it is odd.
func (w *interleavedWriters) produce(ctx context.Context, t *testing.T, cl *kgo.Client, n int) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		<-tick.C
		v := int(w.newest.Load())
		if n%2 == 1 {
			v = 1 + i%v
		}
		value, _ := interleavedValue(v, int64(1_000_000*(n+1)+i))
		body, err := avro.Marshal(w.schemas[v], value)
		if err != nil {
			t.Error(err)
			return
		}
		cl.Produce(context.Background(), &kgo.Record{Value: slices.Concat(w.headers[v], body)}, func(r *kgo.Record, err error) {
			if err == nil { // otherwise it may be in the log, once
				w.acked.add(place{r.Partition, r.Offset}, string(r.Value))
			}
		})
	}
	wait, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if err := cl.Flush(wait); err != nil {
		t.Errorf("producer %d: flush: %v", n, err)
	}
}

// taken waits until each partition has a record of the version.
func (w *interleavedWriters) taken(t *testing.T, v int, partitions int) {
	t.Helper()
	eventually(t, 3*time.Minute, fmt.Sprintf("records of version %d are taken in all partitions", v), func() error {
		w.acked.mu.Lock()
		defer w.acked.mu.Unlock()
		in := map[int32]bool{}
		for p, value := range w.acked.places {
			if w.versionOf(value) == v {
				in[p.partition] = true
			}
		}
		if len(in) < partitions {
			return fmt.Errorf("in %d", len(in))
		}
		return nil
	})
}

// versionOf is that of the schema that a payload names.
func (w *interleavedWriters) versionOf(value string) int {
	return slices.IndexFunc(w.headers[:], func(h []byte) bool { return h != nil && strings.HasPrefix(value, string(h)) })
}

// rows is the log as a table of a schema, with rows of others, as engines print it.
func (w *interleavedWriters) rows(t *testing.T, columns []iceberg.NestedField, log map[place]string, others []map[string]any) string {
	t.Helper()
	var lines [][]string
	add := func(row map[string]any) {
		var line []string
		for _, c := range columns {
			line = append(line, printed(t, filled(c.Type, row[c.Name])))
		}
		lines = append(lines, line)
	}
	for at, value := range log {
		v := w.versionOf(value)
		if v < 1 {
			t.Fatalf("the record at %v names no schema of ours: %q", at, value)
		}
		id, _ := wire.Varint([]byte(value)[len(w.headers[v]):]) // the first field; Avro has zigzag, too
		_, row := interleavedValue(v, id)
		add(row)
	}
	for _, row := range others {
		add(row)
	}
	slices.SortFunc(lines, slices.Compare)
	var header []string
	for _, c := range columns {
		header = append(header, c.Name)
	}
	var out bytes.Buffer
	if err := csv.NewWriter(&out).WriteAll(append([][]string{header}, lines...)); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// interleavedStatements is what Spark does to the table while the version v comes.
func interleavedStatements(v int) []string {
	const table = "ice.default.events"
	statements := []string{fmt.Sprintf("ALTER TABLE %s ADD COLUMN s%d string", table, v)}
	if v%2 == 0 {
		statements = append(statements, fmt.Sprintf("ALTER TABLE %s ADD COLUMN items.element.u%d string", table, v))
	} else {
		statements = append(statements, fmt.Sprintf("ALTER TABLE %s ADD COLUMN place.t%d string", table, v))
	}
	if change := map[int]string{3: "RENAME COLUMN f2 TO g2", 4: "RENAME COLUMN s2 TO r2", 5: "RENAME COLUMN place.p2 TO q2", 6: "ALTER COLUMN w TYPE bigint"}[v]; change != "" {
		statements = append(statements, "ALTER TABLE "+table+" "+change)
	}
	return append(statements,
		"CALL ice.system.rewrite_data_files(table => 'default.events', options => map('rewrite-all', 'true'))",
		fmt.Sprintf("INSERT INTO %s (id, s%d) VALUES (%d, 'theirs %d')", table, v, -v, v))
}

// Two servers have workers of one topic, whose partitions move between them, while old and new versions of
// its schema are written side by side, new ones keep coming, and Spark adds, renames and widens columns and
// rewrites all files; one server is killed with kill -9 while it gives its partitions away. Over all schemas
// that the table ever had a field id is one column, no column is lost, and two engines read each record once,
// as it was written, also after the files have been compacted by us.
func TestWorkersOfManySchemasBesideSpark(t *testing.T) {
	t.Parallel() // mostly waits
	l := directoryLake(t)
	l.queryEnv = sharedEngines(t)
	shared := []string{"--metadata", lab.Postgres(t), "--object-store", "file://" + t.TempDir(), "--upload-interval", "500ms"}
	var servers []*server
	for id := range 2 {
		servers = append(servers, startServer(t, append([]string{"--node-id", strconv.Itoa(id + 1)}, shared...)...))
	}
	one, two := servers[0], servers[1]
	const partitions, killed = 4, 5 // killed: the version during which one server is; an odd one, when Spark asks the other
	// What we compact by ourselves Spark could not rewrite at the same time.
	one.createTopic("events", partitions, time.Second, "table.topic.compact.enabled", "false")
	setCompatibilityNone(t, one, "events-value")
	w := &interleavedWriters{acked: &acks{places: map[place]string{}}}
	comes := func(v int) {
		t.Helper()
		w.schemas[v] = avro.MustParse(interleavedSchema(v))
		w.headers[v] = registerSchema(t, servers[(v+1)%2], "events-value", interleavedSchema(v))
		w.newest.Store(int64(v))
	}
	comes(1)
	producing, stop := context.WithCancel(t.Context())
	var producers, spark sync.WaitGroup
	defer producers.Wait()
	defer stop()
	defer spark.Wait()
	for n := range 4 {
		cl := servers[n/2].client(kgo.DefaultProduceTopic("events"), kgo.ProducerLinger(5*time.Millisecond), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
		producers.Go(func() { w.produce(producing, t, cl, n) })
	}
	w.taken(t, 1, partitions)
	tableHolds(t, one, "events")

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	renamed := map[string]string{}
	for first, name := range interleavedNames {
		renamed[name] = first
	}
	history := newSchemaHistory(renamed)
	var theirs []map[string]any
	for v := 2; v <= interleavedVersions; v++ {
		f := &foreignWriter{t: t, l: l, s: servers[v%2], topic: "events"}
		comes(v)
		spark.Go(func() { // at the same time
			for _, statement := range interleavedStatements(v) {
				f.write("spark", statement)
			}
		})
		if v == killed {
			moving := make(chan struct{})
			go func() {
				defer close(moving)
				two.cli("", "partition", "move", "--all-from", "1", "--to", "2") // how far it comes is open
			}()
			<-time.After(time.Duration(random.IntN(600)) * time.Millisecond)
			one.kill()
			<-moving
			mustMove(t, two, "--all-from", "1", "--to", "2", "--recover")
			w.taken(t, v, partitions)
			one.start()
			for _, p := range []string{"0", "2"} {
				mustMove(t, one, "events", p, "--to", "1")
			}
		} else {
			for _, p := range []int{0, 1 + v%(partitions-1)} { // 0 has the coordinator with it
				to := 3 - partitionRows(t, servers[v%2], "events")[p].Leader
				mustMove(t, servers[v%2], "events", fmt.Sprint(p), "--to", fmt.Sprint(to))
			}
		}
		spark.Wait()
		if t.Failed() {
			t.FailNow()
		}
		theirs = append(theirs, map[string]any{"id": int64(-v), nameNow(fmt.Sprint("s", v)): fmt.Sprint("theirs ", v)})
		w.taken(t, v, partitions)
		tableHolds(t, f.s, "events")
		history.look(t, f.s)
	}
	stop()
	producers.Wait()

	log := readLog(t, two, "events", partitions)
	once, versions := map[string]place{}, make([]int, interleavedVersions+1)
	for at, value := range log {
		if other, twice := once[value]; twice {
			t.Errorf("%q is at %v and at %v", value, at, other)
		}
		once[value] = at
		if v := w.versionOf(value); v > 0 {
			versions[v]++
		}
	}
	for at, value := range w.acked.places {
		if log[at] != value {
			t.Errorf("acknowledged %q at %v, the log has %q", value, at, log[at])
		}
	}
	for _, e := range w.acked.errs {
		t.Error(e)
	}
	tableHolds(t, two, "events")
	history.look(t, one)
	history.lost(t)
	var columns []iceberg.NestedField
	var names []string
	for _, c := range history.last.CurrentSchema().Fields() {
		if c.Name != "_kafka" {
			columns, names = append(columns, c), append(names, c.Name)
		}
	}
	want := w.rows(t, columns, log, theirs)
	compare := func(when string) {
		t.Helper()
		for i, engine := range []string{"spark", "duckdb"} {
			if diff := diffLines(want, l.query(t, servers[i], engine, "SELECT "+strings.Join(names, ", ")+" FROM ice.default.events")); diff != "" {
				t.Errorf("%s, %s differs from the log:\n%s", when, engine, diff)
			}
		}
		for i, s := range servers {
			if out, code := s.cli("", "table", "verify", "events", "--deep"); code != 0 {
				t.Errorf("%s, verify at server %d: exit %d\n%s", when, i+1, code, out)
			}
		}
	}
	compare("in the end")
	if out, code := one.cli("", "table", "compact", "events"); code != 0 {
		t.Errorf("table compact: exit %d\n%s", code, out)
	}
	compare("after our compaction")
	if letters := readDeadLetters(t, two, "events.dlq"); len(letters) > 0 {
		t.Errorf("%d dead letters: %v", len(letters), letters)
	}
	for i := 2; i <= interleavedVersions; i++ { // each came with five columns, two of them of Spark
		inner := map[int]string{0: fmt.Sprint("items.element.u", i), 1: fmt.Sprint("place.t", i)}[i%2]
		for _, path := range []string{fmt.Sprint("f", i), fmt.Sprint("place.p", i), fmt.Sprint("items.element.k", i), fmt.Sprint("s", i), inner} {
			if _, ok := history.ids[path]; !ok {
				t.Errorf("the table never had the column %s", path)
			}
		}
	}
	t.Logf("%d acknowledged, %d in the log, %v by version; %d schemas, %d field ids up to %d", len(w.acked.places), len(log), versions[1:], len(history.seen), len(history.names), history.last.LastColumnID())
}
