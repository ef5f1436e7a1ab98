package parquetio

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/google/go-cmp/cmp"

	"github.com/tabletopic/tabletopic/internal/clickstream"
)

func mustParse(t *testing.T, schema string) *ValueSchema {
	t.Helper()
	v, err := ParseAvro(NewRules(), schema)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func mustTable(t *testing.T, schema string) *iceberg.Schema {
	t.Helper()
	table, err := withKafka.TableSchema(mustParse(t, schema))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// evolve returns the columns of the table with their ids after another writer schema.
func evolve(t *testing.T, table *iceberg.Schema, schema string) (*iceberg.Schema, bool) {
	t.Helper()
	next, changed, err := withKafka.Evolve(table, table.HighestFieldID(), mustParse(t, schema))
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := withKafka.Evolve(table, table.HighestFieldID(), mustParse(t, schema))
	if err != nil || again.String() != next.String() {
		t.Fatalf("the same inputs gave other ids: %v\n%s\n%s", err, next, again)
	}
	if _, more, err := withKafka.Evolve(next, next.HighestFieldID(), mustParse(t, schema)); err != nil || more {
		t.Fatalf("not stable: changed %v, error %v", more, err)
	}
	return next, changed
}

// A new table has all columns optional, the Kafka column last, and the ids that iceberg-go
// would assign, each once.
func TestTableSchema(t *testing.T) {
	table := mustTable(t, `{"type":"record","name":"R","fields":[
		{"name":"m","type":{"type":"map","values":{"type":"record","name":"V","fields":[{"name":"a","type":"int"},{"name":"b","type":"string"}]}}},
		{"name":"after","type":{"type":"array","items":"V"}}]}`)
	const want = `table {
	1: m: optional map<string, struct<4: a: optional int, 5: b: optional string>>
	6: after: optional list<struct<8: a: optional int, 9: b: optional string>>
	10: _kafka: optional struct<11: partition: optional int, 12: offset: optional long, 13: timestamp: optional timestamptz, 14: timestamp_type: optional int, 15: key: optional binary, 16: headers: optional list<struct<18: key: optional string, 19: value: optional binary>>>
}`
	if diff := cmp.Diff(want, table.String()); diff != "" {
		t.Error(diff)
	}
	fresh, err := iceberg.AssignFreshSchemaIDs(table, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fresh.String(), table.String()); diff != "" {
		t.Error(diff)
	}
	if table.ID != 0 {
		t.Errorf("schema id %d, want 0", table.ID)
	}
	bare, err := noKafka.TableSchema(mustParse(t, `"int"`))
	if err != nil || bare.NumFields() != 1 {
		t.Errorf("%v, %v; want one column", bare, err)
	}
	if _, err := (Mapping{KafkaColumn: "X"}).TableSchema(mustParse(t, one(`"int"`))); err == nil || !strings.Contains(err.Error(), "table.topic.kafka.column") {
		t.Errorf("error %v, want one that names the key to set", err)
	}
}

// New fields at any depth become columns behind those that are there; the first record
// that has them has their values; rows of both schemas alternate.
func TestEvolveNested(t *testing.T) {
	const v1 = `{"type":"record","name":"R","fields":[{"name":"order_id","type":"int"},
		{"name":"customer","type":{"type":"record","name":"C","fields":[{"name":"customer_id","type":"int"}]}},
		{"name":"items","type":{"type":"array","items":{"type":"record","name":"I","fields":[{"name":"product_id","type":"int"}]}}},
		{"name":"meta","type":{"type":"map","values":{"type":"record","name":"M","fields":[{"name":"k","type":"string"}]}}}]}`
	const v2 = `{"type":"record","name":"R","fields":[{"name":"order_id","type":"int"},{"name":"middle","type":"string","default":"d"},
		{"name":"customer","type":{"type":"record","name":"C","fields":[{"name":"details","type":["null",{"type":"record","name":"D","fields":[{"name":"name","type":"string"},{"name":"email","type":"string"}]}]},{"name":"customer_id","type":"int"}]}},
		{"name":"items","type":{"type":"array","items":{"type":"record","name":"I","fields":[{"name":"product_id","type":"int"},{"name":"qty","type":"int"}]}}},
		{"name":"meta","type":{"type":"map","values":{"type":"record","name":"M","fields":[{"name":"k","type":"string"},{"name":"v","type":"string"}]}}}]}`
	table, changed := evolve(t, mustTable(t, v1), v2)
	if !changed {
		t.Fatal("not changed")
	}
	const want = `table {
	1: order_id: optional int
	2: customer: optional struct<3: customer_id: optional int, 21: details: optional struct<22: name: optional string, 23: email: optional string>>
	4: items: optional list<struct<6: product_id: optional int, 24: qty: optional int>>
	7: meta: optional map<string, struct<10: k: optional string, 25: v: optional string>>
	11: _kafka: optional struct<12: partition: optional int, 13: offset: optional long, 14: timestamp: optional timestamptz, 15: timestamp_type: optional int, 16: key: optional binary, 17: headers: optional list<struct<19: key: optional string, 20: value: optional binary>>>
	26: middle: optional string
}`
	if diff := cmp.Diff(want, table.String()); diff != "" {
		t.Error(diff)
	}
	b, err := NewBuilder(table, "_kafka")
	if err != nil {
		t.Fatal(err)
	}
	var decoders [2]*Decoder
	for i, schema := range []string{v1, v2} {
		if decoders[i], err = withKafka.Compile(mustParse(t, schema), table); err != nil {
			t.Fatal(err)
		}
	}
	first := cat(long(1), long(2), long(1), long(3), long(0), long(1), text("m"), text("k"), long(0))
	second := cat(long(1), text("mid"), long(1), text("n"), text("e"), long(2), long(1), long(3), long(9), long(0), long(1), text("m"), text("k"), text("v"), long(0))
	for range 3 {
		for i, payload := range [][]byte{first, second} {
			if err := b.Append(decoders[i], payload, RecordMeta{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Append(decoders[1], first, RecordMeta{}); err == nil {
			t.Fatal("a record of another schema was accepted")
		}
	}
	row := func(details, qty, v, middle any) map[string]any {
		return map[string]any{"order_id": int64(1), "customer": map[string]any{"customer_id": int64(2), "details": details}, "middle": middle,
			"items": []any{map[string]any{"product_id": int64(3), "qty": qty}}, "meta": map[string]any{"m": map[string]any{"k": "k", "v": v}}}
	}
	var rows []map[string]any
	for range 3 {
		rows = append(rows, row(nil, nil, nil, nil), row(map[string]any{"name": "n", "email": "e"}, int64(9), "v", "mid"))
	}
	if diff := cmp.Diff(rows, readFile(t, writeFile(t, table, WriterConfig{}, finish(t, b)))); diff != "" {
		t.Error(diff)
	}
}

// Types widen as Iceberg allows; values of the narrow writer keep landing.
func TestEvolveWidens(t *testing.T) {
	decimal := func(p int) string {
		return strings.Replace(`{"type":"bytes","logicalType":"decimal","precision":P,"scale":2}`, "P", map[int]string{10: "10", 12: "12", 4: "4"}[p], 1)
	}
	for _, test := range []struct {
		narrow, wide string
		from, to     []byte
		want         []any
	}{
		{`"int"`, `"long"`, long(-3), long(1 << 40), []any{int64(-3), int64(1 << 40)}},
		{`"float"`, `"double"`, float(1.5), double(2.5), []any{1.5, 2.5}},
		{decimal(4), decimal(12), text("\x01"), text("\x00\xff\xff\xff"), []any{"0.01", "167772.15"}},
		{`"null"`, `"string"`, nil, text("x"), []any{nil, "x"}},
	} {
		table, changed := evolve(t, mustTable(t, one(test.narrow)), one(test.wide))
		if !changed {
			t.Errorf("%s: not changed", test.narrow)
		}
		if _, again := evolve(t, table, one(test.narrow)); again {
			t.Errorf("%s: a narrow writer changed a wide table", test.narrow)
		}
		b, err := NewBuilder(table, "_kafka")
		if err != nil {
			t.Fatal(err)
		}
		for i, schema := range []string{test.narrow, test.wide} {
			d, err := withKafka.Compile(mustParse(t, one(schema)), table)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Append(d, [][]byte{test.from, test.to}[i], RecordMeta{}); err != nil {
				t.Fatal(err)
			}
		}
		rows := readFile(t, writeFile(t, table, WriterConfig{}, finish(t, b)))
		if diff := cmp.Diff(test.want, []any{rows[0]["x"], rows[1]["x"]}); diff != "" {
			t.Error(diff)
		}
	}
}

// Changes that Iceberg does not allow are refused, each column by its path.
func TestEvolveIncompatible(t *testing.T) {
	const decimal = `{"type":"bytes","logicalType":"decimal","precision":12,"scale":S}`
	const millis = `{"type":"long","logicalType":"timestamp-micros"}`
	for _, test := range []struct{ from, to, path string }{
		{`"string"`, millis, "x"},
		{`"int"`, `"string"`, "x"},
		{`"long"`, `"double"`, "x"},
		{strings.Replace(decimal, "S", "2", 1), strings.Replace(decimal, "S", "4", 1), "x"},
		{`{"type":"array","items":"string"}`, `{"type":"array","items":"int"}`, "x.element"},
		{`{"type":"map","values":"string"}`, `{"type":"map","values":"int"}`, "x.value"},
		{`{"type":"map","values":"string"}`, `{"type":"array","items":"int"}`, "x"},
		{`"string"`, `["string","long",{"type":"record","name":"Q","fields":[]}]`, ""},
	} {
		_, _, err := withKafka.Evolve(mustTable(t, one(test.from)), 100, mustParse(t, one(test.to)))
		var bad *IncompatibleError
		if test.path == "" {
			if err != nil {
				t.Errorf("%s to %s: %v", test.from, test.to, err)
			}
			continue
		}
		if !errors.As(err, &bad) || len(bad.Columns) != 1 || bad.Columns[0].Path != test.path {
			t.Errorf("%s to %s: error %v, want column %s", test.from, test.to, err, test.path)
		}
		if _, err := withKafka.Compile(mustParse(t, one(test.to)), mustTable(t, one(test.from))); err == nil {
			t.Errorf("%s to %s: compiled", test.from, test.to)
		}
	}
}

// A required column, nested or not, becomes optional when a writer may leave it null, and
// stays required as long as none does; a tombstone then does not fit.
func TestEvolveRelaxesRequired(t *testing.T) {
	key := &iceberg.StructType{FieldList: []iceberg.NestedField{
		{ID: 3, Name: "a", Type: iceberg.PrimitiveTypes.Int32, Required: true}, {ID: 4, Name: "b", Type: iceberg.PrimitiveTypes.Int32, Required: true}}}
	table := iceberg.NewSchema(7, iceberg.NestedField{ID: 1, Name: "s", Type: iceberg.PrimitiveTypes.String, Required: true},
		iceberg.NestedField{ID: 2, Name: "key", Type: key, Required: true})
	const both = `{"type":"record","name":"R","fields":[{"name":"s","type":"string"},{"name":"key","type":{"type":"record","name":"K","fields":[{"name":"a","type":"int"},{"name":"b","type":"int"}]}}]}`
	const less = `{"type":"record","name":"R","fields":[{"name":"s","type":["null","string"]},{"name":"key","type":{"type":"record","name":"K","fields":[{"name":"a","type":"int"}]}}]}`
	kept, _ := evolve(t, table, both)
	if f, _ := kept.FindFieldByName("s"); !f.Required {
		t.Error("s became optional without need")
	}
	b, err := NewBuilder(kept, "_kafka")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.AppendNull(RecordMeta{}); err == nil || !strings.Contains(err.Error(), "required") {
		t.Errorf("tombstone in a table with a required column: %v", err)
	}
	next, _ := evolve(t, kept, less)
	if next.ID != 9 {
		t.Errorf("schema id %d, want 9", next.ID)
	}
	for name, required := range map[string]bool{"s": false, "key": true, "key.a": true, "key.b": false} {
		if f, ok := next.FindFieldByName(name); !ok || f.Required != required {
			t.Errorf("%s: required %v, want %v", name, f.Required, required)
		}
	}
	d, err := withKafka.Compile(mustParse(t, less), next)
	if err != nil {
		t.Fatal(err)
	}
	if b, err = NewBuilder(next, "_kafka"); err != nil {
		t.Fatal(err)
	}
	if err := b.Append(d, cat(long(0), long(5)), RecordMeta{}); err != nil {
		t.Fatal(err)
	}
	want := []map[string]any{{"s": nil, "key": map[string]any{"a": int64(5), "b": nil}}}
	if diff := cmp.Diff(want, readFile(t, writeFile(t, next, WriterConfig{}, finish(t, b)))); diff != "" {
		t.Error(diff)
	}
}

// A field that differs from a column by case alone is that column.
func TestEvolveIgnoresCase(t *testing.T) {
	table := mustTable(t, `{"type":"record","name":"R","fields":[{"name":"userid","type":"int"}]}`)
	const camel = `{"type":"record","name":"R","fields":[{"name":"userId","type":"int"}]}`
	next, changed := evolve(t, table, camel)
	if changed || next.NumFields() != 2 {
		t.Errorf("changed %v: %s", changed, next)
	}
	d, err := withKafka.Compile(mustParse(t, camel), table)
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewBuilder(table, "_kafka")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Append(d, long(4), RecordMeta{}); err != nil {
		t.Fatal(err)
	}
	if rows := readFile(t, writeFile(t, table, WriterConfig{}, finish(t, b))); rows[0]["userid"] != int64(4) {
		t.Errorf("row %v", rows[0])
	}
}

// A marker record gets its fields later, and keeps the rows from before.
func TestEvolveMarkerRecord(t *testing.T) {
	table, changed := evolve(t, mustTable(t, one(`["null",{"type":"record","name":"C","fields":[]}]`)), one(`["null",{"type":"record","name":"C","fields":[{"name":"by","type":"string"}]}]`))
	if f, ok := table.FindFieldByName("x.by"); !ok || !changed {
		t.Errorf("field %v in %s", f, table)
	}
}

// Compile of what does not fit says to evolve first.
func TestCompileNeedsEvolvedTable(t *testing.T) {
	if _, err := withKafka.Compile(mustParse(t, one(`"long"`)), mustTable(t, one(`"int"`))); err == nil || !strings.Contains(err.Error(), "evolve") {
		t.Errorf("error %v", err)
	}
	a, b := newRig(t, one(`"long"`)), newRig(t, one(`"string"`))
	if err := a.builder.Append(b.decoder, text("x"), RecordMeta{}); err == nil {
		t.Error("a decoder of another table was accepted")
	}
	// The same schema, read from JSON as a catalog would, is the same table.
	var copied iceberg.Schema
	data, err := json.Marshal(mustTable(t, clickstream.Schema))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &copied); err != nil {
		t.Fatal(err)
	}
	c, err := NewBuilder(&copied, "_kafka")
	if err != nil {
		t.Fatal(err)
	}
	d := newRig(t, clickstream.Schema).decoder
	if err := c.Append(d, nil, RecordMeta{}); err == nil || !strings.Contains(err.Error(), reasonShort) {
		t.Errorf("error %v", err)
	}
}

// The letters of column names are those that the topic asks for, at any depth; fields of other
// letters, aliases and former names find the columns all the same, and nothing comes twice.
func TestColumnNamesAreInTheCaseThatIsAskedFor(t *testing.T) {
	const v1 = `{"type":"record","name":"R","fields":[{"name":"userId","type":"int"},{"name":"Items","type":{"type":"array","items":
		{"type":"record","name":"I","fields":[{"name":"Qty","type":"int"}]}}},{"name":"E","type":{"type":"record","name":"N","fields":[]}}]}`
	const v2 = `{"type":"record","name":"R","fields":[{"name":"USERID","type":"long"},{"name":"items","type":{"type":"array","items":
		{"type":"record","name":"I","fields":[{"name":"Count","aliases":["Qty"],"type":"int"},{"name":"newOne","type":"int"}]}}},
		{"name":"e","type":{"type":"record","name":"N","fields":[]}}]}`
	for as, want := range map[Case][]string{
		CasePreserve: {"userId", "Items.element.Count", "Items.element.newOne", "E._present", "_kafka.partition"},
		CaseLower:    {"userid", "items.element.count", "items.element.newone", "e._present", "_kafka.partition"},
		CaseUpper:    {"USERID", "ITEMS.element.COUNT", "ITEMS.element.NEWONE", "E._present", "_kafka.partition"},
	} {
		m := Mapping{KafkaColumn: "_kafka", Case: as}
		before, err := m.TableSchema(mustParse(t, v1))
		if err != nil {
			t.Fatal(err)
		}
		table, changed, err := m.Evolve(before, before.HighestFieldID(), mustParse(t, v2))
		if err != nil || !changed {
			t.Fatalf("%s: changed %t, error %v", as, changed, err)
		}
		if n := before.NumFields(); table.NumFields() != n {
			t.Errorf("%s: %d columns became %d", as, n, table.NumFields())
		}
		for _, name := range want {
			if _, ok := table.FindFieldByName(name); !ok {
				t.Errorf("%s: there is no column %s in %s", as, name, table)
			}
		}
		m.Former = former(table, before)
		for _, v := range []string{v1, v2} {
			if _, again, err := m.Evolve(table, table.HighestFieldID(), mustParse(t, v)); err != nil || again {
				t.Errorf("%s: changed again: %t, error %v", as, again, err)
			}
		}
		rows := write(t, m, table, []string{v1, v2}, cat(long(1), long(1), long(2), long(0)), cat(long(3), long(1), long(4), long(5), long(0)))
		var got []string
		for _, row := range rows {
			delete(row, "_kafka")
			text, _ := json.Marshal(row)
			got = append(got, string(text))
		}
		fold := strings.NewReplacer("userId", as.of("userId"), "Items", as.of("Items"), "Count", as.of("Count"), "newOne", as.of("newOne"), `"E"`, `"`+as.of("E")+`"`)
		var expected []string
		for _, text := range []string{`{"E":{"_present":true},"Items":[{"Count":2,"newOne":null}],"userId":1}`, `{"E":{"_present":true},"Items":[{"Count":4,"newOne":5}],"userId":3}`} {
			var row map[string]any
			if err := json.Unmarshal([]byte(fold.Replace(text)), &row); err != nil {
				t.Fatal(err)
			}
			text, _ := json.Marshal(row)
			expected = append(expected, string(text))
		}
		if diff := cmp.Diff(expected, got); diff != "" {
			t.Errorf("%s: %s", as, diff)
		}
	}
}

// A letter without a partner in the other case stays as it is: its field finds the column again.
func TestLettersWithoutAPartnerKeepTheirCase(t *testing.T) {
	names := []string{"ı", "İ", "ß", "ẞx", "ſs", "K", "ǅ", "ﬀ", "ά", "ς", "Σσ", "a", "Z", "ё"}
	fields := make([]iceberg.NestedField, len(names))
	for i, name := range names {
		fields[i] = iceberg.NestedField{ID: i + 1, Name: name, Type: iceberg.PrimitiveTypes.Int32}
	}
	v := &ValueSchema{Fields: fields}
	for _, as := range []Case{CaseLower, CaseUpper} {
		m := Mapping{Case: as}
		table, err := m.TableSchema(v)
		if err != nil {
			t.Fatal(err)
		}
		for i, f := range table.Fields() {
			if foldCase(f.Name) != foldCase(names[i]) || !strings.EqualFold(f.Name, names[i]) {
				t.Errorf("%s: %q became %q, which is another name", as, names[i], f.Name)
			}
		}
		if _, changed, err := m.Evolve(table, table.HighestFieldID(), v); err != nil || changed {
			t.Errorf("%s: the schema makes columns again: %t, error %v", as, changed, err)
		}
	}
}

func FuzzCase(f *testing.F) {
	for _, s := range []string{"userId", "ı", "İß", "ſ", "K", "\xff", "日本"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if strings.EqualFold(a, b) != (foldCase(a) == foldCase(b)) {
			t.Errorf("%q and %q fold to %q and %q", a, b, foldCase(a), foldCase(b))
		}
		for _, as := range []Case{CasePreserve, CaseLower, CaseUpper} {
			if n := as.of(a); !strings.EqualFold(n, a) || as.of(n) != n {
				t.Errorf("%s: %q became %q, and then %q", as, a, n, as.of(n))
			}
		}
	})
}
