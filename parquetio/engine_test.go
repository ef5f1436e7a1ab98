package parquetio

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/google/go-cmp/cmp"
)

// Types that an engine cannot read get a column of another that has their values, at any depth and
// also as a field that is added later; others stay. All engines of a list are heard.
func TestEnginesGetColumnsThatTheyRead(t *testing.T) {
	const first = `{"type":"record","name":"R","fields":[{"name":"u","type":{"type":"string","logicalType":"uuid"}},{"name":"d","type":"double"}]}`
	const then = `{"type":"record","name":"R","fields":[{"name":"u","type":{"type":"string","logicalType":"uuid"}},{"name":"d","type":"double"},
		{"name":"f","type":{"type":"fixed","size":3,"name":"F"}},{"name":"g","type":["null",{"type":"fixed","size":16,"name":"G","logicalType":"uuid"}]},
		{"name":"ms","type":{"type":"int","logicalType":"time-millis"}},{"name":"us","type":{"type":"long","logicalType":"time-micros"}},{"name":"at","type":{"type":"long","logicalType":"timestamp-micros"}},
		{"name":"l","type":{"type":"array","items":{"type":"long","logicalType":"time-micros"}}},{"name":"m","type":{"type":"map","values":{"type":"record","name":"S","fields":[{"name":"u","type":{"type":"string","logicalType":"uuid"}}]}}}]}`
	id := []byte{0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff}
	payload := bytes.Join([][]byte{text("00112233-4455-6677-8899-AABBCCDDEEFF"), double(1.5), {1, 2, 3}, {2}, id, long(45_296_007), long(86_399_999_999), long(0),
		long(1), long(0), long(0), long(1), text("k"), text("00112233-4455-6677-8899-aabbccddeeff"), long(0)}, nil)
	for _, test := range []struct {
		list string
		want string
	}{
		{"generic", ""},
		{"duckdb", ""},
		{"athena", "u string, d double, f binary, g string, ms string, us string, at timestamptz, l list<string>, m map<string, struct<u: string>>"},
		{"duckdb, unity", "u string, d double, f binary, g string, ms string, us string, at timestamptz, l list<string>, m map<string, struct<u: string>>"},
	} {
		engines, err := ParseEngines(test.list)
		if err != nil {
			t.Fatal(err)
		}
		m := Mapping{Engines: engines}
		table, err := m.TableSchema(mustParse(t, first))
		if err != nil {
			t.Fatal(err)
		}
		v := mustParse(t, then)
		if table, _, err = m.Evolve(table, table.HighestFieldID(), v); err != nil {
			t.Fatal(err)
		}
		if err := engines.Check(table); err != nil {
			t.Error(err)
		}
		var columns []string
		var strip func(typ iceberg.Type) string
		strip = func(typ iceberg.Type) string {
			switch typ := typ.(type) {
			case *iceberg.ListType:
				return "list<" + strip(typ.Element) + ">"
			case *iceberg.MapType:
				return "map<" + strip(typ.KeyType) + ", " + strip(typ.ValueType) + ">"
			case *iceberg.StructType:
				return "struct<" + typ.FieldList[0].Name + ": " + strip(typ.FieldList[0].Type) + ">"
			}
			return typ.String()
		}
		for _, f := range table.Fields() {
			columns = append(columns, f.Name+" "+strip(f.Type))
		}
		if got := strings.Join(columns, ", "); test.want != "" && got != test.want {
			t.Errorf("%s: columns %s, want %s", test.list, got, test.want)
		}
		d, err := m.Compile(v, table)
		if err != nil {
			t.Fatal(err)
		}
		b, err := NewBuilder(table, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Append(d, payload, RecordMeta{}); err != nil {
			t.Fatalf("%s: %v", test.list, err)
		}
		rows := readFile(t, writeFile(t, table, WriterConfig{}, finish(t, b)))
		if test.want == "" {
			continue
		}
		want := map[string]any{"u": "00112233-4455-6677-8899-aabbccddeeff", "g": "00112233-4455-6677-8899-aabbccddeeff", "ms": "12:34:56.007000", "us": "23:59:59.999999"}
		got := map[string]any{}
		for name := range want {
			got[name] = rows[0][name]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", test.list, diff)
		}
		if text, err := json.Marshal(rows[0]["l"]); err != nil || !strings.Contains(string(text), "00:00:00.000000") {
			t.Errorf("%s: list %s, %v", test.list, text, err)
		}
	}
}

// What is not readable is refused with the rule and its source.
func TestEnginesRefuse(t *testing.T) {
	if _, err := ParseEngines("athena,presto"); err == nil || !strings.Contains(err.Error(), `"presto"`) {
		t.Errorf("an unknown engine: %v", err)
	}
	for _, test := range []struct{ engine, name, mention string }{
		{"athena", `{"name":"` + strings.Repeat("x", 256) + `","type":"long"}`, "256 bytes"},
		{"athena", `{"name":"s","type":{"type":"record","name":"S","fields":[{"name":"a","type":"long"}]}}`, ""},
	} {
		engines, err := ParseEngines(test.engine)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Mapping{Engines: engines}.TableSchema(mustParse(t, `{"type":"record","name":"R","fields":[`+test.name+`]}`))
		if test.mention == "" && err == nil {
			continue
		}
		if err == nil || !strings.Contains(err.Error(), test.mention) || !strings.Contains(err.Error(), "docs.aws.amazon.com") {
			t.Errorf("%.40s: %v, want %s", test.name, err, test.mention)
		}
	}
	table, err := noKafka.TableSchema(mustParse(t, one(`{"type":"array","items":{"type":"string","logicalType":"uuid"}}`)))
	if err != nil {
		t.Fatal(err)
	}
	engines, _ := ParseEngines("athena")
	if err := engines.CheckFormat(3); err == nil || !strings.Contains(err.Error(), "format version 3") || !strings.Contains(err.Error(), "https://docs.aws") {
		t.Errorf("a table of format version 3: %v", err)
	}
	if err := errors.Join(engines.CheckFormat(2), Engines{"duckdb", "unity"}.CheckFormat(3)); err != nil {
		t.Error(err)
	}
	if err := engines.Check(table); err == nil || !strings.Contains(err.Error(), "column x.element is uuid, which engine athena does not read (https://docs.aws") {
		t.Errorf("a table with a UUID: %v", err)
	}
}

// JSON's times and UUIDs become the same text, or no row at all.
func TestEnginesReadJSON(t *testing.T) {
	engines, _ := ParseEngines("unity")
	m := Mapping{Engines: engines}
	v, err := ParseJSONSchema(NewRules(), `{"type":"object","properties":{"u":{"type":"string","format":"uuid"},"t":{"type":"string","format":"time"}}}`)
	if err != nil {
		t.Fatal(err)
	}
	table, err := m.TableSchema(v)
	if err != nil {
		t.Fatal(err)
	}
	d, err := m.Compile(v, table)
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewBuilder(table, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Append(d, []byte(`{"u":"00112233-4455-6677-8899-AABBCCDDEEFF","t":"14:00:00.5+02:00"}`), RecordMeta{}); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{`{"u":"0011"}`, `{"t":"noon"}`} {
		if err := b.Append(d, []byte(bad), RecordMeta{}); err == nil {
			t.Errorf("%s became a row", bad)
		}
	}
	rows := readFile(t, writeFile(t, table, WriterConfig{}, finish(t, b)))
	want := []map[string]any{{"u": "00112233-4455-6677-8899-aabbccddeeff", "t": "12:00:00.500000"}}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Error(diff)
	}
}

// An engine that has no nanoseconds reads microseconds, rounded down, also in a table of format version 3.
func TestEnginesReadNanosecondsAsMicroseconds(t *testing.T) {
	v, err := ParseAvro(Rules{Version: MappingVersion, Nanos: true}, `{"type":"record","name":"R","fields":[{"name":"at","type":{"type":"long","logicalType":"timestamp-nanos"}},{"name":"local","type":{"type":"long","logicalType":"local-timestamp-nanos"}}]}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, engines := range []Engines{{"duckdb"}, {"unity"}, {"athena"}} {
		m := Mapping{Engines: engines}
		table, err := m.TableSchema(v)
		if err != nil {
			t.Fatal(err)
		}
		if got := table.Field(0).Type.String() + " " + table.Field(1).Type.String(); got != "timestamptz timestamp" {
			t.Errorf("%s: columns %s", engines, got)
		}
		d, err := m.Compile(v, table)
		if err != nil {
			t.Fatal(err)
		}
		b, err := NewBuilder(table, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Append(d, cat(long(-1), long(1_999)), RecordMeta{}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]map[string]any{{"at": int64(-1), "local": int64(1)}}, readFile(t, writeFile(t, table, WriterConfig{}, finish(t, b)))); diff != "" {
			t.Errorf("%s: %s", engines, diff)
		}
	}
}
