package parquetio

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/google/go-cmp/cmp"

	"github.com/tabletopic/tabletopic/parquetio/parquetiotest"
)

// former returns the names that the columns of now had in the schemas before.
func former(now *iceberg.Schema, before ...*iceberg.Schema) map[int][]string {
	names := map[int][]string{}
	for _, s := range before {
		byID, _ := iceberg.IndexByID(s)
		for id, f := range byID {
			if n, ok := now.FindFieldByID(id); ok && n.Name != f.Name {
				names[id] = append(names[id], f.Name)
			}
		}
	}
	return names
}

// write decodes one payload of each schema into the table, and returns its rows.
func write(t *testing.T, m Mapping, table *iceberg.Schema, schemas []string, payloads ...[]byte) []map[string]any {
	t.Helper()
	b, err := NewBuilder(table, m.KafkaColumn)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range payloads {
		d, err := m.Compile(mustParse(t, schemas[i%len(schemas)]), table)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Append(d, p, RecordMeta{}); err != nil {
			t.Fatal(err)
		}
	}
	return readFile(t, writeFile(t, table, WriterConfig{}, finish(t, b)))
}

// A field renamed with an alias keeps its column, at any depth, and writers that know the old
// name still write it.
func TestAliasRenamesColumn(t *testing.T) {
	const v1 = `{"type":"record","name":"R","fields":[{"name":"user","type":"string"},{"name":"items","type":{"type":"array","items":
		{"type":"record","name":"I","fields":[{"name":"qty","type":"int"}]}}},{"name":"last","type":"int"}]}`
	const v2 = `{"type":"record","name":"R","fields":[{"name":"account","aliases":["user","login"],"type":"string"},{"name":"items","type":{"type":"array","items":
		{"type":"record","name":"I","fields":[{"name":"count","aliases":["qty"],"type":"long"}]}}},{"name":"last","type":"int"}]}`
	before := mustTable(t, v1)
	table, changed := evolve(t, before, v2)
	if !changed || table.NumFields() != before.NumFields() {
		t.Fatalf("changed %t: %s", changed, table)
	}
	for _, pair := range [][2]string{{"user", "account"}, {"items.element.qty", "items.element.count"}} {
		from, _ := before.FindFieldByName(pair[0])
		if to, ok := table.FindFieldByName(pair[1]); !ok || to.ID != from.ID {
			t.Errorf("column %s has id %d, want that of %s, %d", pair[1], to.ID, pair[0], from.ID)
		}
	}
	m := Mapping{KafkaColumn: "_kafka", Former: former(table, before)}
	if _, again, err := m.Evolve(table, table.HighestFieldID(), mustParse(t, v1)); err != nil || again {
		t.Fatalf("a writer of the old name changed the table: %t, error %v", again, err)
	}
	payload := func(name string, qty int64) []byte { return cat(text(name), long(1), long(qty), long(0), long(7)) }
	got := write(t, m, table, []string{v1, v2}, payload("a", 1), payload("b", 1<<40), payload("c", 2))
	var want []map[string]any
	for _, x := range []struct {
		name string
		qty  int64
	}{{"a", 1}, {"b", 1 << 40}, {"c", 2}} {
		want = append(want, map[string]any{"account": x.name, "items": []any{map[string]any{"count": x.qty}}, "last": int64(7)})
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// An alias takes no column that the writer has by its own name, and none that another field has.
func TestAliasOfAFieldThatIsThere(t *testing.T) {
	table := mustTable(t, `{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"b","type":"int"}]}`)
	next, _ := evolve(t, table, `{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"b","aliases":["a"],"type":"int"},{"name":"c","aliases":["a","_kafka"],"type":"int"}]}`)
	for name, id := range map[string]int{"a": 1, "b": 2, "c": next.HighestFieldID()} {
		if f, _ := next.FindFieldByName(name); f.ID != id {
			t.Errorf("column %s has id %d, want %d", name, f.ID, id)
		}
	}
}

// A column that others renamed is still the field's, until there is another of its name.
func TestColumnRenamedByOthers(t *testing.T) {
	const writer = `{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}`
	before := mustTable(t, writer)
	fields := slices.Clone(before.Fields())
	fields[0].Name = "b"
	table := iceberg.NewSchema(1, fields...)
	m := Mapping{KafkaColumn: "_kafka", Former: former(table, before)}
	if _, changed, err := m.Evolve(table, table.HighestFieldID(), mustParse(t, writer)); err != nil || changed {
		t.Fatalf("changed %t, error %v", changed, err)
	}
	if d := cmp.Diff([]map[string]any{{"b": int64(5)}}, write(t, m, table, []string{writer}, long(5))); d != "" {
		t.Error(d)
	}
	both := iceberg.NewSchema(2, append(fields, iceberg.NestedField{ID: 50, Name: "a", Type: iceberg.PrimitiveTypes.Int32})...)
	if d := cmp.Diff([]map[string]any{{"a": int64(6), "b": nil}}, write(t, m, both, []string{writer}, long(6))); d != "" {
		t.Error(d)
	}
}

// A field that its column cannot hold gets a column of its own, the same one each time, and the
// writers before it keep theirs.
func TestFieldThatDoesNotFitGetsAColumn(t *testing.T) {
	m := Mapping{KafkaColumn: "_kafka", NewColumns: true}
	record := func(typ string) string {
		return one(`{"type":"record","name":"N","fields":[{"name":"v","type":` + typ + `},{"name":"list","type":{"type":"array","items":` + typ + `}}]}`)
	}
	writers := []string{record(`"long"`), record(`"string"`), record(`"double"`), record(`"int"`)}
	table := iceberg.NewSchema(0)
	for range 2 {
		for _, w := range writers {
			next, _, err := m.Evolve(table, table.HighestFieldID(), mustParse(t, w))
			if err != nil {
				t.Fatal(err)
			}
			table = next
		}
	}
	if f, ok := table.FindFieldByName("x.v__v4"); ok {
		t.Errorf("column %v: the writers need three", f)
	}
	each := func(v []byte) []byte { return cat(v, long(1), v, long(0)) }
	got := write(t, m, table, writers, each(long(1)), each(text("s")), each(double(2.5)), each(long(3)))
	column := func(name string, v any) map[string]any {
		row := map[string]any{"v": nil, "v__v2": nil, "v__v3": nil, "list": nil, "list__v2": nil, "list__v3": nil}
		row["v"+name], row["list"+name] = v, []any{v}
		return map[string]any{"x": row}
	}
	want := []map[string]any{column("", int64(1)), column("__v2", "s"), column("__v3", 2.5), column("", int64(3))}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// The Kafka column is never another one: it is what completeness is proved by.
func TestKafkaColumnThatDoesNotFitIsRefused(t *testing.T) {
	table := iceberg.NewSchema(0, iceberg.NestedField{ID: 1, Name: "_kafka", Type: iceberg.PrimitiveTypes.String})
	m := Mapping{KafkaColumn: "_kafka", NewColumns: true}
	if _, _, err := m.Evolve(table, 1, mustParse(t, one(`"int"`))); err == nil || !strings.Contains(err.Error(), "column _kafka is string") {
		t.Errorf("error %v", err)
	}
}

// renamed returns a row as the columns of t have it.
func renamed(v any, t iceberg.Type, names map[string]string, path string) any {
	switch t := t.(type) {
	case *iceberg.StructType:
		in, ok := v.(map[string]any)
		if !ok {
			return v
		}
		out := map[string]any{}
		for _, f := range t.FieldList {
			if path != "" || f.Name != "_kafka" {
				out[f.Name] = nil
			}
		}
		for name, v := range in {
			if n, ok := names[join(path, name)]; ok {
				name = n
			}
			for _, f := range t.FieldList {
				if f.Name == name {
					out[name] = renamed(v, f.Type, names, join(path, name))
				}
			}
		}
		return out
	case *iceberg.ListType:
		in, ok := v.([]any)
		if !ok {
			return v
		}
		out := []any{}
		for _, v := range in {
			out = append(out, renamed(v, t.Element, names, join(path, "element")))
		}
		return out
	case *iceberg.MapType:
		in, ok := v.(map[string]any)
		if !ok {
			return v
		}
		out := map[string]any{}
		for k, v := range in {
			out[k] = renamed(v, t.ValueType, names, join(path, "value"))
		}
		return out
	}
	return v
}

// Whatever versions a schema has, one table holds them all: no id is used twice, no version
// changes the table when it comes again, and each value is in the column that was chosen for it.
func TestRandomVersionsShareATable(t *testing.T) {
	for seed := range uint64(rowSeeds) {
		r := rand.New(rand.NewPCG(seed, 2))
		m := Mapping{KafkaColumn: "_kafka", NewColumns: true}
		table := iceberg.NewSchema(0)
		var versions []parquetiotest.Avro
		var schemas []string
		for range 2 + r.IntN(4) {
			names := &parquetiotest.Names{}
			root := names.Record(r, 3)
			for len(root.Schema.(map[string]any)["fields"].([]any)) == 0 {
				root = names.Record(r, 3)
			}
			text, err := json.Marshal(root.Schema)
			if err != nil {
				t.Fatal(err)
			}
			if table, _, err = m.Evolve(table, table.HighestFieldID(), mustParse(t, string(text))); err != nil {
				t.Fatalf("seed %d: %v\n%s\n%s", seed, err, table, text)
			}
			versions, schemas = append(versions, root), append(schemas, string(text))
		}
		ids := map[int]bool{}
		cols, _ := layout(table)
		for i := range cols {
			if ids[cols[i].id] {
				t.Fatalf("seed %d: id %d is used twice in\n%s", seed, cols[i].id, table)
			}
			ids[cols[i].id] = true
		}
		var payloads [][]byte
		var want []any
		for i := range 3 * len(versions) {
			v := mustParse(t, schemas[i%len(schemas)])
			_, changed, names, err := m.evolve(table, table.HighestFieldID(), v)
			if err != nil || changed {
				t.Fatalf("seed %d: version %d changed the table again: %t, error %v", seed, i, changed, err)
			}
			payload, row, _ := versions[i%len(versions)].Value(r)
			payloads = append(payloads, payload)
			want = append(want, renamed(row, &iceberg.StructType{FieldList: table.Fields()}, names, ""))
		}
		for i, got := range write(t, m, table, schemas, payloads...) {
			if d := cmp.Diff(parquetiotest.Resolve(want[i], any(got)), any(got)); d != "" {
				t.Fatalf("seed %d, row %d: %s\n%s", seed, i, d, fmt.Sprint(schemas))
			}
		}
	}
}
