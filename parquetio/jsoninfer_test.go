package parquetio

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/google/go-cmp/cmp"

	"github.com/tabletopic/tabletopic/parquetio/parquetiotest"
)

// A plainRig is a table that plain JSON makes: before each record that needs more columns it gets
// them.
type plainRig struct {
	*rig
	mapping Mapping
	files   []map[string]any
}

func newPlainRig(t testing.TB) *plainRig {
	p := &plainRig{rig: &rig{t: t}, mapping: withKafka}
	var err error
	if p.table, err = withKafka.TableSchema(&ValueSchema{}); err != nil {
		t.Fatal(err)
	}
	p.describe(p.table)
	return p
}

func (p *plainRig) describe(table *iceberg.Schema) {
	p.t.Helper()
	var err error
	p.table = table
	if p.decoder, err = p.mapping.CompileJSON(table); err != nil {
		p.t.Fatal(err)
	}
	if p.builder, err = NewBuilder(table, "_kafka"); err != nil {
		p.t.Fatal(err)
	}
}

// grow gives the table what the records need.
func (p *plainRig) grow(records ...string) error {
	p.t.Helper()
	x := p.mapping.InferJSON(p.table)
	for _, r := range records {
		if err := x.Add([]byte(r)); err != nil {
			return err
		}
	}
	return p.widen(x)
}

// widen gives the table what an inference found.
func (p *plainRig) widen(x *JSONInference) error {
	p.t.Helper()
	text, lacks := x.Schema()
	if !lacks {
		p.t.Fatal("nothing more is needed, and the decoder says it is")
	}
	v, err := ParseJSONSchema(NewRules(), text)
	if err != nil {
		return err
	}
	next, changed, err := p.mapping.Evolve(p.table, p.table.HighestFieldID(), v)
	if err != nil {
		return err
	}
	if !changed {
		p.t.Fatalf("%s adds nothing to the table", text)
	}
	p.keep()
	p.describe(next)
	return nil
}

// add appends a record, and returns why it cannot be a row.
func (p *plainRig) add(r string) error {
	p.t.Helper()
	err := p.builder.Append(p.decoder, []byte(r), RecordMeta{})
	if errors.Is(err, ErrLacksColumn) {
		if err := p.grow(r); err != nil {
			return err
		}
		err = p.builder.Append(p.decoder, []byte(r), RecordMeta{})
	}
	var bad *DecodeError
	if err != nil && !errors.As(err, &bad) {
		p.t.Fatalf("%s: %v", r, err)
	}
	return err
}

// addOf appends the first of some records; if the table lacks a column for it, it gets what the others need, too.
func (p *plainRig) addOf(records []string) error {
	p.t.Helper()
	err := p.builder.Append(p.decoder, []byte(records[0]), RecordMeta{})
	if !errors.Is(err, ErrLacksColumn) {
		return err
	}
	x := p.mapping.InferJSON(p.table)
	if err := x.Add([]byte(records[0])); err != nil {
		return err
	}
	for _, r := range records[1:] {
		_ = x.Add([]byte(r))
	}
	if err := p.widen(x); err != nil {
		return err
	}
	return p.add(records[0])
}

// keep writes the rows of the builder to a file.
func (p *plainRig) keep() {
	if p.builder.Rows() > 0 {
		p.files = append(p.files, p.rows()...)
	}
}

// all returns all rows, without what is null.
func (p *plainRig) all() (rows []string) {
	p.keep()
	for _, r := range p.files {
		text, err := json.Marshal(withoutNull(r))
		if err != nil {
			p.t.Fatal(err)
		}
		rows = append(rows, string(text))
	}
	return rows
}

func withoutNull(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, x := range v {
			if x != nil {
				out[k] = withoutNull(x)
			}
		}
		return out
	case []any:
		for i := range v {
			v[i] = withoutNull(v[i])
		}
	}
	return v
}

// columnsOf prints the columns of the table, without the Kafka column and without ids.
func (p *plainRig) columnsOf() string {
	var all []string
	for _, f := range p.table.Fields() {
		if f.Name != "_kafka" {
			all = append(all, f.Name+" "+typeText(f.Type))
		}
	}
	return strings.Join(all, ", ")
}

func typeText(t iceberg.Type) string {
	switch t := t.(type) {
	case *iceberg.StructType:
		var all []string
		for _, f := range t.FieldList {
			all = append(all, f.Name+" "+typeText(f.Type))
		}
		return "struct<" + strings.Join(all, ", ") + ">"
	case *iceberg.ListType:
		return "list<" + typeText(t.Element) + ">"
	}
	return t.String()
}

// null, [], {} and what holds nothing else make no column until there is a value.
func TestInferenceWaitsForAValue(t *testing.T) {
	p := newPlainRig(t)
	for _, r := range []string{`{"a":null,"b":[],"c":{},"d":[null],"e":[{}],"f":{"g":null}}`, `{}`, `null`, `[]`} {
		if err := p.add(r); err != nil {
			t.Fatal(err)
		}
	}
	if got := p.columnsOf(); got != "" {
		t.Fatalf("columns %s, want none", got)
	}
	for _, r := range []string{`{"a":1,"b":["x"],"c":{"k":1}}`, `{"d":[null,true],"e":[{},{"x":1.5}],"f":{"g":[[]],"h":"s"}}`, `{"f":{"g":[[],[7]]},"b":[],"c":{},"d":[null]}`} {
		if err := p.add(r); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := p.columnsOf(), "a long, b list<string>, c struct<k long>, d list<boolean>, e list<struct<x double>>, f struct<h string, g list<list<long>>>"; got != want {
		t.Errorf("columns\n%s, want\n%s", got, want)
	}
	want := []string{`{}`, `{}`, `{}`, `{}`, `{"a":1,"b":["x"],"c":{"k":1}}`, `{"d":[null,true],"e":[{},{"x":1.5}],"f":{"h":"s"}}`, `{"b":[],"c":{},"d":[null],"f":{"g":[[],[7]]}}`}
	if diff := cmp.Diff(want, p.all()); diff != "" {
		t.Error(diff)
	}
}

// What a sample of records makes of each property.
func TestInferenceTypes(t *testing.T) {
	tests := []struct {
		values string // of x, one a record, separated by ;
		want   string
	}{
		{`true;false`, "x boolean"},
		{`1;-9223372036854775808`, "x long"},
		{`1;2.0`, "x double"},
		{`1e3`, "x double"},
		{`9223372036854775808`, "x string"},
		{`1;9223372036854775808`, "x string"},
		{`"2026-01-01";"a"`, "x string"},
		{`1;"a"`, "x string"},
		{`{"a":1};[1]`, "x string"},
		{`{"a":1};{"b":{"c":[1,2.5]}}`, "x struct<a long, b struct<c list<double>>>"},
		{`[1];["a"]`, "x list<string>"},
		{`[{"a":1},{"A":2,"b":true}]`, "x list<struct<a long, b boolean>>"},
		{`null;{"a b.c":1}`, "x struct<a b.c long>"},
		{strings.Repeat(`[`, 20) + "1" + strings.Repeat(`]`, 20), "x " + strings.Repeat("list<", 15) + "string" + strings.Repeat(">", 15)},
	}
	for _, test := range tests {
		p := newPlainRig(t)
		var records []string
		for _, v := range strings.Split(test.values, ";") {
			records = append(records, `{"x":`+v+`}`)
		}
		if err := p.grow(records...); err != nil {
			t.Fatal(err)
		}
		if got := p.columnsOf(); got != test.want {
			t.Errorf("%s: columns %s, want %s", test.values, got, test.want)
		}
		for _, r := range records {
			if err := p.add(r); err != nil {
				t.Errorf("%s: %v", r, err)
			}
		}
	}
}

// A record that is no object is the column "value"; one that is has no part in that.
func TestInferenceOfRootsThatAreNoObjects(t *testing.T) {
	for root, want := range map[string]string{`true`: "value boolean", `[1,2]`: "value list<long>", `"s"`: "value string", `5`: "value long"} {
		p := newPlainRig(t)
		for _, r := range []string{root, `null`, root} {
			if err := p.add(r); err != nil {
				t.Fatal(err)
			}
		}
		if got := p.columnsOf(); got != want {
			t.Errorf("columns %s, want %s", got, want)
		}
		row := `{"value":` + root + `}`
		if diff := cmp.Diff([]string{row, `{}`, row}, p.all()); diff != "" {
			t.Error(diff)
		}
	}
}

// A string column takes any value as its JSON text; another column refuses what it does not hold,
// and the records around it are rows.
func TestInferredColumnsKeepTheirType(t *testing.T) {
	p := newPlainRig(t)
	for _, r := range []string{`{"s":"a","n":1,"o":{"k":1}}`, `{"s":{"a": [1, "b c"]}}`, `{"s":-1.50}`, `{"n":2.0,"o":[]}`} {
		if err := p.add(r); err != nil {
			t.Fatal(err)
		}
	}
	for r, message := range map[string]string{`{"n":1.5}`: "field n at byte 5: number is not an integer", `{"n":"1"}`: "value is a string, and the column is long",
		`{"o":[1]}`: "field o at byte 5: value is an array", `{"new":1,"n":true}`: "value is a boolean"} {
		if err := p.add(r); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%s: error %v, want %q", r, err, message)
		}
	}
	want := []string{`{"n":1,"o":{"k":1},"s":"a"}`, `{"s":"{\"a\":[1,\"b c\"]}"}`, `{"s":"-1.50"}`, `{"n":2}`}
	if diff := cmp.Diff(want, p.all()); diff != "" {
		t.Error(diff)
	}
}

// Names go to a column of any case; two in one record that have the same column are refused. A
// former name of a column still finds it.
func TestInferenceOfNames(t *testing.T) {
	p := newPlainRig(t)
	p.mapping.Former = map[int][]string{20: {"before"}}
	p.describe(iceberg.NewSchema(1, append(p.table.Fields(), iceberg.NestedField{ID: 20, Name: "userid", Type: iceberg.PrimitiveTypes.Int64})...))
	for _, r := range []string{`{"userId":1}`, `{"userid":2,"x":1}`, `{"before":3}`, `{"USERID":4,"USERID":5}`} {
		if err := p.add(r); err != nil {
			t.Fatal(err)
		}
	}
	for r, message := range map[string]string{
		`{"userId":1,"x":2,"userid":2}`:                 `properties "userId" and "userid" have the same column`,
		`{"y":{"a":1,"A":2}}`:                           `properties "a" and "A" have the same column`,
		`{"":1}`:                                        "a property without a name",
		`{"` + strings.Repeat("n", 256) + `":1}`:        "a name of 256 bytes",
		`{"_kafka":1}`:                                  "the name is taken by a column for the key, or for topic, partition and offset",
		`{"v.w":1,"v":{"w":1}}`:                         "has a dot in its name, and the path of another field",
		`{"a":1`:                                        reasonShort,
		`{"nested":{"deep":"` + "\xff" + `"}}`:          reasonUTF8,
		`{"many":{` + manyProperties(2_001) + `"x":1}}`: "more than 2000 columns",
	} {
		if err := p.add(r); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%.60s: error %v, want %q", r, err, message)
		}
	}
	if diff := cmp.Diff([]string{`{"userid":1}`, `{"userid":2,"x":1}`, `{"userid":3}`, `{"userid":5}`}, p.all()); diff != "" {
		t.Error(diff)
	}
}

func manyProperties(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"p%d":1,`, i)
	}
	return b.String()
}

// A record that cannot be a row leaves nothing in an inference.
func TestInferenceTakesARecordBack(t *testing.T) {
	x := withKafka.InferJSON(nil)
	if err := x.Add([]byte(`{"a":1,"o":{"k":[1]}}`)); err != nil {
		t.Fatal(err)
	}
	want, _ := x.Schema()
	for _, bad := range []string{`{"a":"s","o":[1],"new":[{"x":1}],"":1}`, `{"o":{"k":["s"],"l":{"m":1}},"_kafka":1}`, `{"a":1,"many":{` + manyProperties(2_001) + `"x":1}}`} {
		if err := x.Add([]byte(bad)); err == nil {
			t.Errorf("%.60s was accepted", bad)
		}
		if got, _ := x.Schema(); got != want {
			t.Errorf("%.60s: schema %s, want %s", bad, got, want)
		}
	}
	if err := x.Add([]byte(`{` + strings.TrimSuffix(manyProperties(1_996), ",") + `}`)); err != nil {
		t.Error(err)
	}
}

// Columns that a user made take what stands for their type in JSON.
func TestPlainJSONIntoColumnsOfUsers(t *testing.T) {
	field := func(id int, name string, typ iceberg.Type) iceberg.NestedField {
		return iceberg.NestedField{ID: id, Name: name, Type: typ}
	}
	table := iceberg.NewSchema(0,
		field(1, "i", iceberg.PrimitiveTypes.Int32), field(2, "f", iceberg.PrimitiveTypes.Float32), field(3, "d", iceberg.PrimitiveTypes.Date),
		field(4, "t", iceberg.PrimitiveTypes.Time), field(5, "ts", iceberg.PrimitiveTypes.Timestamp), field(6, "tz", iceberg.PrimitiveTypes.TimestampTz),
		field(7, "u", iceberg.PrimitiveTypes.UUID), field(8, "b", iceberg.PrimitiveTypes.Binary), field(9, "dec", iceberg.DecimalTypeOf(9, 2)),
		field(10, "m", &iceberg.MapType{KeyID: 11, KeyType: iceberg.PrimitiveTypes.String, ValueID: 12, ValueType: iceberg.PrimitiveTypes.Int64}),
		field(13, "fixed", iceberg.FixedTypeOf(2)), field(14, "m2", &iceberg.MapType{KeyID: 15, KeyType: iceberg.PrimitiveTypes.Int32, ValueID: 16, ValueType: iceberg.PrimitiveTypes.Int64}))
	d, err := noKafka.CompileJSON(table)
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewBuilder(table, "")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, table: table, decoder: d, builder: b}
	r.append([]byte(`{"i":7,"f":0.5,"d":"1970-01-02","t":"00:00:01","ts":"1970-01-01T00:00:00.5","tz":"1970-01-01T01:00:00+01:00","u":"00000000-0000-0000-0000-000000000001","b":"AQ==","dec":-1.5,"m":{"a":1},"fixed":null,"m2":null}`))
	for _, bad := range []string{`{"i":2147483648}`, `{"ts":"1970-01-01T00:00:00Z"}`, `{"fixed":"ab"}`, `{"m2":{"1":1}}`} {
		var wrong *DecodeError
		if err := b.Append(d, []byte(bad), RecordMeta{}); !errors.As(err, &wrong) || wrong.Field == "" {
			t.Errorf("%s: error %v, want a DecodeError with a field", bad, err)
		}
	}
	want := map[string]any{"i": int64(7), "f": 0.5, "d": int64(1), "t": int64(1_000_000), "ts": int64(500_000), "tz": int64(0), "u": "0x" + strings.Repeat("00", 15) + "01", "b": "0x01", "dec": "-1.50",
		"m": map[string]any{"a": int64(1)}, "fixed": nil, "m2": nil}
	rows := r.rows()
	if len(rows) != 1 {
		t.Fatalf("%d rows, want 1", len(rows))
	}
	if diff := cmp.Diff(want, rows[0]); diff != "" {
		t.Error(diff)
	}
}

// With new-column, what does not fit the column of a property is in one beside it: the first that
// holds it, however kinds alternate, also inside of structs and lists; and a column that would fit
// widened is widened.
func TestMisfitsOfPlainJSONGetColumnsBeside(t *testing.T) {
	p := newPlainRig(t)
	p.mapping.NewColumns = true
	records := []string{
		`{"x":1,"s":{"a":true},"l":[{"b":1}]}`,
		`{"x":1.5}`,
		`{"x":"a","s":{"a":"b"},"l":[{"b":"c"},{"b":2}]}`,
		`{"x":2,"s":"no struct","l":7}`,
		`{"x":{"y":1},"s":{"a":false}}`,
		`{"x":[1]}`,
		`{"x__v2":3,"x":2.5}`,
	}
	want := []string{
		`{"l":[{"b":1}],"s":{"a":true},"x":1}`,
		`{"x__v2":1.5}`,
		`{"l":[{"b__v2":"c"},{"b":2}],"s":{"a__v2":"b"},"x__v3":"a"}`,
		`{"l__v2":7,"s__v2":"no struct","x":2}`,
		`{"s":{"a":false},"x__v3":"{\"y\":1}"}`,
		`{"x__v3":"[1]"}`,
		`{"x__v3":"2.5","x__v2":3}`,
	}
	for _, r := range append(records, records...) {
		if err := p.add(r); err != nil {
			t.Fatalf("%s: %v", r, err)
		}
	}
	for i, got := range p.all() {
		var a, b any
		if json.Unmarshal([]byte(got), &a) != nil || json.Unmarshal([]byte(want[i%len(want)]), &b) != nil || !cmp.Equal(a, b) {
			t.Errorf("%s makes %s, want %s", records[i%len(want)], got, want[i%len(want)])
		}
	}

	fields := []iceberg.NestedField{{ID: 1, Name: "i", Type: iceberg.PrimitiveTypes.Int32}, {ID: 2, Name: "d", Type: iceberg.PrimitiveTypes.Date}}
	p.describe(mustEvolve(t, p.mapping, iceberg.NewSchema(0, fields...)))
	p.files = nil
	for _, r := range []string{`{"i":4294967296,"d":"2020-01-01"}`, `{"d":"soon"}`} {
		if err := p.add(r); err != nil {
			t.Fatalf("%s: %v", r, err)
		}
	}
	if diff := cmp.Diff([]string{`{"d":18262,"i":4294967296}`, `{"d__v2":"soon"}`}, p.all()); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{`{"i":`, `{"d":"later","d__v2":"own"}`} { // no JSON; two values of one column
		if err := p.add(bad); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}

func mustEvolve(t *testing.T, m Mapping, table *iceberg.Schema) *iceberg.Schema {
	t.Helper()
	next, _, err := m.Evolve(table, table.HighestFieldID(), &ValueSchema{})
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// Whatever records come, each is a row that says the same, or refused with a reason, and the
// table settles: the same records need nothing more.
func TestInferenceOfRandomRecords(t *testing.T) {
	rows := 0
	for seed := range uint64(jsonSeeds) {
		r := rand.New(rand.NewPCG(seed, 3))
		p := newPlainRig(t)
		var good []string
		for range 30 {
			record := parquetiotest.RandomJSON(r, 3).Text(r, 0)
			if p.add(record) == nil {
				good = append(good, record)
			}
		}
		all := p.all()
		if len(all) != len(good) {
			t.Fatalf("seed %d: %d rows, want %d", seed, len(all), len(good))
		}
		rows += len(all)
		for i, record := range good {
			if err := p.builder.Append(p.decoder, []byte(record), RecordMeta{}); err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, record)
			}
			v, err := parquetiotest.ParsePairs([]byte(record))
			if err != nil {
				t.Fatal(err)
			}
			want, err := parquetiotest.ParsePairs([]byte(all[i]))
			if err != nil {
				t.Fatal(err)
			}
			if !holds(want, v) {
				t.Fatalf("seed %d: row %s, record %s", seed, all[i], record)
			}
		}
	}
	if rows < 5*jsonSeeds {
		t.Errorf("%d rows: too few to tell", rows)
	}
}

// holds reports whether the row says what the record does, as far as that has values.
func holds(row, record any) bool {
	switch v := record.(type) {
	case parquetiotest.Pairs:
		r, ok := row.(parquetiotest.Pairs)
		last := map[string]any{}
		for i, name := range v.Names {
			last[name] = v.Values[i]
		}
		for name, x := range last {
			if !parquetiotest.HasValue(x) {
				continue
			}
			at := -1
			for i := range r.Names {
				if r.Names[i] == name {
					at = i
				}
			}
			if !ok && kept(row, record) {
				return true
			}
			if at < 0 || !holds(r.Values[at], x) {
				return false
			}
		}
		return true
	case []any:
		r, ok := row.([]any)
		if !ok {
			return kept(row, record)
		}
		for i := range v {
			if len(r) != len(v) || !holds(r[i], v[i]) {
				return false
			}
		}
		return true
	case json.Number:
		if n, ok := row.(json.Number); ok {
			a, _ := v.Float64()
			b, _ := n.Float64()
			return a == b
		}
		return kept(row, record)
	case nil:
		return true
	}
	return row == record || kept(row, record)
}

// kept reports whether a row has a value as JSON text.
func kept(row, value any) bool {
	s, _ := row.(string)
	v, err := parquetiotest.ParsePairs([]byte(s))
	return err == nil && cmp.Equal(v, value, cmp.AllowUnexported(parquetiotest.Pairs{}))
}

// Of random records without a schema, some of whose values are not what the others are, each is the row, or the
// dead letter, that docs/tables.md says, whether columns are made for one record at a time or for several; and the
// type of each column comes from the first values of its property.
func TestInferredRowsAreThoseOfTheModel(t *testing.T) {
	rows, misfits := 0, 0
	for seed := range uint64(jsonSeeds) {
		r := rand.New(rand.NewPCG(seed, 4))
		p := newPlainRig(t)
		p.mapping.NewColumns = seed%2 == 0
		p.describe(p.table)
		shape := parquetiotest.RandomSchemaless(r, 3)
		var records []string
		for range 60 {
			records = append(records, shape.Text(r, 40))
		}
		var parsed []any
		dead := map[int]error{}
		for i, record := range records {
			v, err := parquetiotest.ParsePairs([]byte(record))
			if err != nil {
				t.Fatal(err)
			}
			parsed = append(parsed, v)
			if err := p.addOf(records[i:min(len(records), i+1+r.IntN(20))]); err != nil {
				dead[i] = err
			}
		}
		p.keep()
		table := parquetiotest.SchemalessTable{Columns: &iceberg.StructType{}, NewColumns: p.mapping.NewColumns}
		for _, f := range p.table.Fields() {
			if f.Name != "_kafka" {
				table.Columns.FieldList = append(table.Columns.FieldList, f)
			}
		}
		if bad := table.Unexplained(parsed); bad != "" {
			t.Errorf("seed %d: %s", seed, bad)
		}
		at := 0
		for i, v := range parsed {
			want, err := table.Row(v)
			if err != nil || dead[i] != nil {
				if misfits++; (err == nil) != (dead[i] == nil) || errors.Is(err, parquetiotest.ErrLacks) {
					t.Fatalf("seed %d: error %v, want %v: %s\n%s", seed, dead[i], err, records[i], p.columnsOf())
				}
				continue
			}
			got := p.files[at]
			delete(got, "_kafka")
			for _, f := range table.Columns.FieldList {
				if _, ok := got[f.Name]; !ok {
					got[f.Name] = nil // the column came later
				}
			}
			if diff := cmp.Diff(withoutNull(parquetiotest.ResolvePairs(parquetiotest.OrNull(want, got), got)), withoutNull(any(got))); diff != "" {
				t.Fatalf("seed %d: %s\n%s\n%s", seed, records[i], p.columnsOf(), diff)
			}
			at++
		}
		if at != len(p.files) {
			t.Fatalf("seed %d: %d rows, want %d", seed, len(p.files), at)
		}
		rows += at
	}
	if rows < 40*jsonSeeds || misfits < jsonSeeds {
		t.Errorf("%d rows and %d dead letters: too few to tell", rows, misfits)
	}
}
