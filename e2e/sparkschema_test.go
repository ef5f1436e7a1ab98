package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/iceberg-go"
	icebergrest "github.com/apache/iceberg-go/catalog/rest"
	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/node"
)

// A schemaHistory is every schema that a table was seen to have.
type schemaHistory struct {
	names map[int]string // by field id, of all levels
	ids   map[string]int
	seen  map[int]bool // ids of schemas
	last  table.Metadata

	renamed map[string]string // the first name of a column, by one that it got later; both without what it is in
}

func newSchemaHistory(renamed map[string]string) *schemaHistory {
	return &schemaHistory{names: map[int]string{}, ids: map[string]int{}, seen: map[int]bool{}, renamed: renamed}
}

// first returns the path of a column with the name that it had first.
func (h *schemaHistory) first(path string) string {
	i := strings.LastIndex(path, ".") + 1
	if name, ok := h.renamed[path[i:]]; ok {
		return path[:i] + name
	}
	return path
}

// fieldIDs returns the ids of all fields inside t, one that is there twice twice.
func fieldIDs(t iceberg.Type) (ids []int) {
	switch t := t.(type) {
	case *iceberg.StructType:
		for _, f := range t.FieldList {
			ids = append(append(ids, f.ID), fieldIDs(f.Type)...)
		}
	case *iceberg.ListType:
		ids = append(append(ids, t.ElementID), fieldIDs(t.Element)...)
	case *iceberg.MapType:
		ids = slices.Concat(ids, []int{t.KeyID, t.ValueID}, fieldIDs(t.KeyType), fieldIDs(t.ValueType))
	}
	return ids
}

// look adds what the table has now: an id is one column for ever, and a column has one id.
func (h *schemaHistory) look(t *testing.T, s *server) {
	t.Helper()
	ctx := context.Background()
	cat, err := icebergrest.NewCatalog(ctx, "ours", s.catalogURL())
	if err != nil {
		t.Fatal(err)
	}
	tab, err := cat.LoadTable(ctx, []string{"default", "events"})
	if err != nil {
		t.Fatal(err)
	}
	h.last = tab.Metadata()
	for _, schema := range h.last.Schemas() {
		h.seen[schema.ID] = true
		all := fieldIDs(&iceberg.StructType{FieldList: schema.Fields()})
		if slices.Sort(all); len(slices.Compact(slices.Clone(all))) < len(all) {
			t.Errorf("schema %d: two columns share a field id: %v", schema.ID, all)
		}
		index, err := iceberg.IndexNameByID(schema)
		if err != nil {
			t.Fatal(err)
		}
		for id, path := range index {
			name := h.first(path)
			if old, known := h.names[id]; known && old != name {
				t.Errorf("schema %d: field id %d is %s, and was %s", schema.ID, id, name, old)
			}
			if old, known := h.ids[name]; known && old != id {
				t.Errorf("schema %d: column %s has the id %d, and had %d", schema.ID, name, id, old)
			}
			if id > h.last.LastColumnID() {
				t.Errorf("schema %d: field id %d of %s is above the last, %d", schema.ID, id, name, h.last.LastColumnID())
			}
			h.names[id], h.ids[name] = name, id
		}
	}
}

// lost reports the columns that the table has no more.
func (h *schemaHistory) lost(t *testing.T) {
	t.Helper()
	current, err := iceberg.IndexNameByID(h.last.CurrentSchema())
	if err != nil {
		t.Fatal(err)
	}
	for id, name := range h.names {
		if path, ok := current[id]; !ok || h.first(path) != name {
			t.Errorf("column %s, field id %d, is lost", name, id)
		}
	}
}

// Spark adds columns, of the table and of a struct, while records come whose new schemas do the same, one
// of them by the very name that Spark has just used. Over all schemas that the table ever had a field id
// is one column, no column is lost on either side, and two engines read the same values.
func TestColumnsOfSparkBesideOurs(t *testing.T) {
	t.Parallel() // mostly waits
	l := directoryLake(t)
	l.queryEnv = sharedEngines(t)
	s := l.server(t)
	f := &foreignWriter{t: t, l: l, s: s, topic: "events"}
	s.createTopic("events", 2, time.Second)
	const versions, shared, records = 8, 6, 6 // shared: the version whose column Spark makes
	schema := func(v int) string {
		var top, inner []string
		for i := 1; i <= v; i++ {
			inner = append(inner, fmt.Sprintf(`{"name":"n%d","type":["null","long"],"default":null}`, i))
			if i > 1 {
				top = append(top, fmt.Sprintf(`,{"name":"f%d","type":["null","long"],"default":null}`, i))
			}
		}
		return rec(idField + `,{"name":"place","type":{"type":"record","name":"Place","fields":[` + strings.Join(inner, ",") + `]}}` + strings.Join(top, ""))
	}
	// What the engines are to read: a column by its name, a row by its id.
	var columns []string
	var expressions []string
	for i := 1; i <= versions; i++ {
		columns, expressions = append(columns, fmt.Sprint("n", i)), append(expressions, fmt.Sprintf("place.n%d AS n%d", i, i))
		if i > 1 {
			columns, expressions = append(columns, fmt.Sprint("f", i), fmt.Sprint("s", i)), append(expressions, fmt.Sprint("f", i), fmt.Sprint("s", i))
		}
		if i > 1 && i%2 == 1 {
			columns, expressions = append(columns, fmt.Sprint("t", i)), append(expressions, fmt.Sprintf("place.t%d AS t%d", i, i))
		}
	}
	var rows [][]string
	add := func(id int64, values map[string]string) {
		row := []string{fmt.Sprint(id)}
		for _, c := range columns {
			if v, ok := values[c]; ok {
				row = append(row, v)
			} else {
				row = append(row, "NULL")
			}
		}
		rows = append(rows, row)
	}
	produce := func(header []byte, v int, id int64) {
		t.Helper()
		place, value, row := obj{}, obj{"id": id}, map[string]string{}
		for i := 1; i <= v; i++ {
			n := id*1000 + int64(i)
			place[fmt.Sprint("n", i)], row[fmt.Sprint("n", i)] = in("long", n), fmt.Sprint(n)
			if i > 1 {
				value[fmt.Sprint("f", i)], row[fmt.Sprint("f", i)] = in("long", -n), fmt.Sprint(-n)
			}
		}
		value["place"] = place
		produceAll(t, s, "events", encoded(t, header, schema(v), value))
		add(id, row)
	}
	history := newSchemaHistory(nil)

	headers := [][]byte{nil, registerSchema(t, s, "events-value", schema(1))}
	produce(headers[1], 1, 100)
	tableHolds(t, s, "events")
	for v := 2; v <= versions; v++ {
		theirs := map[string]string{fmt.Sprint("s", v): fmt.Sprint("theirs ", v)}
		insert := fmt.Sprintf("INSERT INTO ice.default.events (id, s%d) VALUES (%d, 'theirs %d')", v, -v, v)
		if v == shared {
			f.write("spark", fmt.Sprintf("ALTER TABLE ice.default.events ADD COLUMN f%d bigint", v))
			insert = fmt.Sprintf("INSERT INTO ice.default.events (id, s%d, f%d) VALUES (%d, 'theirs %d', 5)", v, v, -v, v)
			theirs[fmt.Sprint("f", v)] = "5"
		}
		done := make(chan struct{})
		go func() { // at the same time
			defer close(done)
			f.write("spark", fmt.Sprintf("ALTER TABLE ice.default.events ADD COLUMN s%d string", v))
			if v%2 == 1 {
				f.write("spark", fmt.Sprintf("ALTER TABLE ice.default.events ADD COLUMN place.t%d string", v))
			}
			f.write("spark", insert)
		}()
		headers = append(headers, registerSchema(t, s, "events-value", schema(v)))
		for i := range int64(records) {
			writes := v - int(i%2) // the version before comes, too
			produce(headers[writes], writes, int64(v)*100+i)
		}
		<-done
		if t.Failed() {
			t.FailNow()
		}
		add(-int64(v), theirs)
		if v == versions/2 {
			s.kill()
			s.start()
		}
		tableHolds(t, s, "events")
		history.look(t, s)
	}

	slices.SortFunc(rows, slices.Compare)
	want := "id," + strings.Join(columns, ",") + "\n"
	for _, r := range rows {
		want += strings.Join(r, ",") + "\n"
	}
	for _, engine := range []string{"spark", "duckdb"} {
		if got := l.query(t, s, engine, "SELECT id, "+strings.Join(expressions, ", ")+" FROM ice.default.events"); got != want {
			t.Errorf("%s reads\n%swant\n%s", engine, got, want)
		}
	}
	history.lost(t)
	for _, c := range columns {
		if _, top := history.ids[c]; !top {
			if _, inner := history.ids["place."+c]; !inner {
				t.Errorf("the table never had the column %s", c)
			}
		}
	}
	if len(history.seen) <= 2*versions {
		t.Errorf("the table had %d schemas", len(history.seen))
	}
	if out, code := s.cli("", "table", "verify", "events", "--deep"); code != 0 {
		t.Errorf("table verify: exit %d\n%s", code, out)
	}
	t.Logf("%d schemas, %d field ids up to %d", len(history.seen), len(history.names), history.last.LastColumnID())
}

// Spark writes over the rows of a topic's table, and its commits go on. Spark replaces the table: that is
// told as what it is, a table that does not hold what was committed, and waits for its owner, who has the
// records read again, or accepts what is gone as a gap.
func TestTableThatSparkOverwritesOrReplaces(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	l.queryEnv = sharedEngines(t)
	s := l.server(t)
	f := &foreignWriter{t: t, l: l, s: s, topic: "events"}
	s.createTopic("events", 1, 500*time.Millisecond)
	header := registerSchema(t, s, "events-value", eventSchema)
	sent := int64(0)
	produce := func(n int) {
		t.Helper()
		for range n {
			produceAll(t, s, "events", encoded(t, header, eventSchema, event{sent, "ours"}))
			sent++
		}
	}
	reads := func(theirs string, ours ...int64) { // ids of rows, theirs with their text
		t.Helper()
		var lines []string
		for _, id := range ours {
			lines = append(lines, fmt.Sprintf("%d,ours", id))
		}
		lines = append(lines, theirs)
		slices.SortFunc(lines, func(a, b string) int { return slices.Compare(strings.Split(a, ","), strings.Split(b, ",")) })
		want := "id,text\n" + strings.Join(lines, "\n") + "\n"
		for _, engine := range []string{"spark", "duckdb"} {
			if got := l.query(t, s, engine, "SELECT id, text FROM ice.default.events"); got != want {
				t.Errorf("%s reads\n%swant\n%s", engine, got, want)
			}
		}
	}
	verify := func(want string) { // of the one partition: start, next, end, rows, dead, lost, duplicates, beyond, ahead, deleted, gaps
		t.Helper()
		out, code := s.cli("", "table", "verify", "events", "--deep")
		if lines := strings.Split(out, "\n"); code != 0 || len(lines) < 2 || strings.Join(strings.Fields(lines[1]), " ") != "0 "+want {
			t.Errorf("table verify: exit %d, want %s\n%s", code, want, out)
		}
	}
	alter := func(rewind string) {
		t.Helper()
		if out, code := s.cli("", "topic", "alter", "events", "--config", "table.topic.on.rewind="+rewind); code != 0 {
			t.Fatal(out)
		}
	}

	produce(4)
	tableHolds(t, s, "events")
	f.write("spark", "INSERT OVERWRITE ice.default.events (id, text) VALUES (-1, 'over')")
	produce(4)
	tableHolds(t, s, "events")
	stateOf(t, s, "events", "ok", time.Minute)
	reads("-1,over", 4, 5, 6, 7)
	verify("0 8 8 4 0 0 0 0 0 4 0")

	replace := func(id int) {
		t.Helper()
		f.write("spark", fmt.Sprintf("CREATE OR REPLACE TABLE ice.default.events USING iceberg AS SELECT CAST(%d AS BIGINT) AS id, 'new' AS text", id))
	}
	replace(-2)
	produce(2)
	ill := stateOf(t, s, "events", "paused", 3*time.Minute, "main does not descend from the last commit", "set table.topic.on.rewind to replay or accept")
	if ill.LagRecords != 2 || ill.Since == nil {
		t.Errorf("%+v, want 2 records that wait", ill)
	}
	reads("-2,new")
	alter("replay")
	tableHolds(t, s, "events")
	stateOf(t, s, "events", "ok", time.Minute)
	reads("-2,new", 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	verify("0 10 10 10 0 0 0 0 0 0 0")

	alter("pause")
	replace(-3)
	stateOf(t, s, "events", "paused", 3*time.Minute, "main does not descend from the last commit") // without a record
	alter("accept")
	produce(2)
	tableHolds(t, s, "events")
	stateOf(t, s, "events", "ok", time.Minute)
	reads("-3,new", 10, 11)
	verify("0 12 12 2 0 0 0 0 0 0 10")
	var status node.TableStatus
	if err := s.api("/api/tables/events", &status); err != nil || status.Message != "" {
		t.Errorf("%v: %q", err, status.Message)
	}
}
