package parquetio

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the zones are there wherever the tests run

	"github.com/google/go-cmp/cmp"
)

// columns prints the columns of a schema, one per line.
func columns(v *ValueSchema) string {
	var b strings.Builder
	for _, f := range v.Fields {
		required := ""
		if f.Required {
			required = " required"
		}
		fmt.Fprintf(&b, "%s %s%s\n", f.Name, f.Type, required)
	}
	return strings.TrimSpace(b.String())
}

// Every Avro type has its column and every value lands as what it means, logical types
// named on the type, beside it on the field, or by Connect and Debezium included.
func TestTypeMapping(t *testing.T) {
	fixed := func(n int, more string) string {
		return fmt.Sprintf(`{"type":"fixed","size":%d,"name":"F"%s}`, n, more)
	}
	uuid := strings.Repeat("\x12", 16)
	tests := []struct {
		field string // after "name"
		typ   string
		data  []byte
		want  any
	}{
		{`"type":"boolean"`, "boolean", []byte{1}, true},
		{`"type":"int"`, "int", long(-5), int64(-5)},
		{`"type":"float"`, "float", float(1.5), 1.5},
		{`"type":` + fixed(0, ""), "binary", nil, "0x"},
		{`"type":` + fixed(2, ""), "fixed[2]", []byte("ab"), "0x6162"},
		{`"type":` + fixed(16, `,"logicalType":"uuid"`), "uuid", []byte(uuid), "0x" + strings.Repeat("12", 16)},
		{`"type":{"type":"string","logicalType":"uuid"}`, "uuid", text("12121212-1212-1212-1212-121212121212"), "0x" + strings.Repeat("12", 16)},
		{`"type":` + fixed(12, `,"logicalType":"duration"`), "fixed[12]", []byte("abcdefghijkl"), "0x6162636465666768696a6b6c"},
		{`"type":"long","logicalType":"timestamp-millis"`, "timestamptz", long(-1), int64(-1000)},
		{`"type":["null","long"],"logicalType":"timestamp-micros"`, "timestamptz", cat(long(1), long(7)), int64(7)},
		{`"type":{"type":"long","logicalType":"timestamp-nanos"}`, "timestamptz", long(-1), int64(-1)},
		{`"type":{"type":"long","logicalType":"local-timestamp-millis"}`, "timestamp", long(5), int64(5000)},
		{`"type":{"type":"long","logicalType":"local-timestamp-nanos"}`, "timestamp", long(1999), int64(1)},
		{`"type":{"type":"long","logicalType":"timestamp-micros","adjust-to-utc":false}`, "timestamp", long(5), int64(5)},
		{`"type":{"type":"long","logicalType":"timestamp-micros","adjust-to-utc":true}`, "timestamptz", long(5), int64(5)},
		{`"type":{"type":"int","logicalType":"date"}`, "date", long(-1), int64(-1)},
		{`"type":"int","logicalType":"time-millis"`, "time", long(3), int64(3000)},
		{`"type":{"type":"long","logicalType":"unheard-of"}`, "long", long(3), int64(3)},
		{`"type":{"type":"string","logicalType":"date"}`, "string", text("x"), "x"},
		{`"type":{"type":"bytes","logicalType":"decimal","precision":39}`, "binary", text("x"), "0x78"},
		{`"type":{"type":"bytes","logicalType":"decimal","precision":2,"scale":3}`, "binary", text("x"), "0x78"},
		{`"type":` + fixed(1, `,"logicalType":"decimal","precision":3`), "fixed[1]", []byte("x"), "0x78"},
		{`"type":` + fixed(2, `,"logicalType":"decimal","precision":4,"scale":2`), "decimal(4, 2)", []byte{0xff, 0xfe}, "-0.02"},
		{`"type":"bytes","logicalType":"decimal","precision":38,"scale":0`, "decimal(38, 0)", text("\x7f"), "127"},
		{`"type":"bytes","logicalType":"decimal","precision":38,"scale":0`, "decimal(38, 0)", text("\x4b\x3b\x4c\xa8\x5a\x86\xc4\x7a\x09\x8a\x22\x3f\xff\xff\xff\xff"), strings.Repeat("9", 38)},
		{`"type":"bytes","logicalType":"decimal","precision":38,"scale":0`, "decimal(38, 0)", text("\xb4\xc4\xb3\x57\xa5\x79\x3b\x85\xf6\x75\xdd\xc0\x00\x00\x00\x01"), "-" + strings.Repeat("9", 38)},
		{`"type":{"type":"int","connect.name":"io.debezium.time.Date"}`, "date", long(1), int64(1)},
		{`"type":{"type":"int","connect.name":"io.debezium.time.Time"}`, "time", long(1), int64(1000)},
		{`"type":{"type":"long","connect.name":"io.debezium.time.MicroTime"}`, "time", long(1), int64(1)},
		{`"type":{"type":"long","connect.name":"io.debezium.time.NanoTime"}`, "time", long(1999), int64(1)},
		{`"type":{"type":"long","connect.name":"io.debezium.time.Timestamp"}`, "timestamp", long(1), int64(1000)},
		{`"type":["null",{"type":"long","connect.name":"io.debezium.time.MicroTimestamp"}]`, "timestamp", cat(long(1), long(1)), int64(1)},
		{`"type":"long","connect.name":"io.debezium.time.NanoTimestamp"`, "timestamp", long(-1), int64(-1)},
		{`"type":{"type":"string","connect.name":"io.debezium.time.ZonedTimestamp"}`, "timestamptz", text("1970-01-01T01:00:00.000001+01:00"), int64(1)},
		{`"type":{"type":"int","connect.name":"org.apache.kafka.connect.data.Date"}`, "date", long(1), int64(1)},
		{`"type":{"type":"int","connect.name":"org.apache.kafka.connect.data.Time"}`, "time", long(1), int64(1000)},
		{`"type":{"type":"long","connect.name":"org.apache.kafka.connect.data.Timestamp"}`, "timestamptz", long(1), int64(1000)},
		{`"type":{"type":"bytes","connect.name":"org.apache.kafka.connect.data.Decimal","connect.parameters":{"scale":"2","connect.decimal.precision":"5"}}`, "decimal(5, 2)", text("\x01"), "0.01"},
		{`"type":["string","null"],"default":""`, "string", long(1), nil},
		{`"type":["null",{"type":"string","connect.default":"d"}]`, "string", long(0), nil},
		{`"type":["long"]`, "long", cat(long(0), long(9)), int64(9)},
		{`"type":{"type":"array","items":["null","string"]}`, "list<string>", cat(long(3), long(1), text("a"), long(0), long(1), text("b"), long(0)), []any{"a", nil, "b"}},
		{`"type":{"type":"array","items":"null"}`, "list<string>", cat(long(2), long(0)), []any{nil, nil}},
		{`"type":{"type":"map","values":{"type":"array","items":"int"}}`, "map<string, list<int>>", cat(long(1), text("k"), long(1), long(4), long(0), long(0)), map[string]any{"k": []any{int64(4)}}},
		{`"type":{"type":"record","name":"E","fields":[]}`, "struct<1: _present: required boolean>", nil, map[string]any{PresentField: true}},
		{`"type":["null","string","long"]`, "string", cat(long(2), long(5)), "5"},
		{`"type":["null","string","long"]`, "string", cat(long(1), text("a\"b")), `"a\"b"`},
		{`"type":["null","string","long"]`, "string", long(0), nil},
		{`"type":["boolean",{"type":"record","name":"n.A","fields":[{"name":"x","type":["null","int"]}]},"n.A2"]`, "", nil, nil},
		{`"type":["boolean",{"type":"record","name":"A","namespace":"n","fields":[{"name":"x","type":["null","int"]}]}]`, "string", cat(long(1), long(1), long(3)), `{"n.A":{"x":3}}`},
	}
	for _, test := range tests {
		t.Run(test.field, func(t *testing.T) {
			schema := `{"type":"record","name":"R","fields":[{"name":"x",` + test.field + `}]}`
			if test.typ == "" {
				if _, err := ParseAvro(NewRules(), schema); err == nil {
					t.Error("accepted")
				}
				return
			}
			r := newRig(t, schema)
			got := r.value.Fields[0].Type.String()
			if i := strings.Index(test.typ, "<1"); i >= 0 {
				got, test.typ = got[:6], test.typ[:6]
			}
			if got != test.typ {
				t.Fatalf("column %s, want %s", got, test.typ)
			}
			r.append(test.data)
			if diff := cmp.Diff(test.want, r.rows()[0]["x"]); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Dates, times and timestamps of every format do not depend on the time zone of the process.
func TestTimestampsInEveryTimeZone(t *testing.T) {
	if os.Getenv("PARQUETIO_ZONE") != "" {
		if _, offset := time.Now().Zone(); offset == 0 {
			t.Fatalf("the process is not in the zone %s", os.Getenv("TZ"))
		}
		return
	}
	// Among them the largest and the smallest offset, parts of hours, and clocks that left out a day (Apia in 2011, Manila in 1844).
	for _, zone := range []string{"Asia/Shanghai", "America/New_York", "Pacific/Kiritimati", "Pacific/Pago_Pago", "America/St_Johns", "Asia/Kathmandu", "Pacific/Apia", "Asia/Manila"} {
		cmd := exec.Command(os.Args[0], "-test.v", "-test.run", "^(Test.*TypeMapping|TestTimestampsInEveryTimeZone)$/./(?i)(date|time)")
		cmd.Env = append(os.Environ(), "TZ="+zone, "PARQUETIO_ZONE=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", zone, err, out)
		}
		for _, test := range []string{"TestTimestampsInEveryTimeZone ", "TestDocumentedTypeMapping/Avro/", "TestDocumentedTypeMapping/Protobuf/", "TestDocumentedTypeMapping/JSON_Schema/"} {
			if !strings.Contains(string(out), "--- PASS: "+test) {
				t.Errorf("%s: no %s passed", zone, test)
			}
		}
	}
}

// A root that is no record becomes the one column "value".
func TestRootWithoutRecord(t *testing.T) {
	for _, test := range []struct {
		schema string
		data   []byte
		want   any
	}{
		{`"string"`, text("x"), "x"},
		{`"long"`, long(5), int64(5)},
		{`["null","long"]`, long(0), nil},
		{`{"type":"array","items":"int"}`, cat(long(1), long(2), long(0)), []any{int64(2)}},
		{`{"type":"map","values":"int"}`, cat(long(1), text("k"), long(2), long(0)), map[string]any{"k": int64(2)}},
		{`["int","string"]`, cat(long(1), text("s")), `"s"`},
		{`["null",{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}]`, cat(long(1), long(3)), map[string]any{"a": int64(3)}},
		{`{"type":"enum","name":"E","symbols":["A"]}`, long(0), "A"},
	} {
		r := newRig(t, test.schema)
		r.append(test.data)
		if diff := cmp.Diff([]map[string]any{{"value": test.want}}, r.rows()); diff != "" {
			t.Errorf("%s: %s", test.schema, diff)
		}
	}
}

// A record inside itself is kept as JSON from the second level on, whatever way it gets there.
func TestRecursiveRecord(t *testing.T) {
	r := newRig(t, `{"type":"record","name":"Node","namespace":"n","fields":[{"name":"v","type":"long"},{"name":"next","type":["null","Node"]},{"name":"kids","type":{"type":"array","items":"Node"}},
		{"name":"t","type":["null",{"type":"long","logicalType":"timestamp-micros"}]},{"name":"b","type":"bytes"}]}`)
	leaf := cat(long(2), long(0), long(0), long(1), long(1), text("b"))
	r.append(cat(long(1), long(1), leaf, long(1), leaf, long(0), long(0), text("")))
	const inner = `{"v":2,"next":null,"kids":[],"t":"1970-01-01T00:00:00.000001Z","b":"Yg=="}`
	want := []map[string]any{{"v": int64(1), "next": inner, "kids": []any{inner}, "t": nil, "b": "0x"}}
	if diff := cmp.Diff(want, r.rows()); diff != "" {
		t.Error(diff)
	}
	deep := []byte{}
	for range maxJSONDepth + 10 {
		deep = append(deep, cat(long(1), long(1))...)
	}
	if err := r.builder.Append(r.decoder, deep, RecordMeta{}); err == nil || !strings.Contains(err.Error(), reasonDeep) {
		t.Errorf("error %v, want %q", err, reasonDeep)
	}
}

// What cannot become a table is refused, with the field and the reason.
func TestParseAvroRefuses(t *testing.T) {
	deep := `"int"`
	for range maxColumnDepth + 1 {
		deep = `{"type":"array","items":` + deep + `}`
	}
	wide := `"int"`
	for i := range 8 {
		wide = fmt.Sprintf(`{"type":"record","name":"R%d","fields":[{"name":"a","type":%s}`, i, wide)
		for j := range 9 {
			inner := `"int"`
			if i > 0 {
				inner = fmt.Sprintf(`"R%d"`, i-1)
			}
			wide += fmt.Sprintf(`,{"name":"b%d","type":%s}`, j, inner)
		}
		wide += "]}"
	}
	for _, test := range []struct{ schema, message string }{
		{`{"type":"record","name":"R","fields":[{"name":"userId","type":"int"},{"name":"s","type":{"type":"record","name":"S","fields":[{"name":"a","type":"int"},{"name":"A","type":"int"}]}}]}`, "field s.A: differs from field s.a by case alone"},
		{`{"type":"recor`, "parse avro schema"},
		{`{"type":"array","items":"missing"}`, "missing"},
		{strings.Repeat(`{"type":"array","items":`, 10000), "nested deeper"},
		{strings.Repeat(" ", maxSchemaBytes+1), "text is"},
		{deep, "columns nested deeper"},
		{wide, "more than 10000 columns"},
		{one(`{"type":"fixed","size":2000000000,"name":"F"}`), "field x: fixed of"},
	} {
		if _, err := ParseAvro(NewRules(), test.schema); err == nil || !strings.Contains(err.Error(), test.message) {
			t.Errorf("error %v, want %q", err, test.message)
		}
	}
}

// A schema may use the types of the schemas that it refers to.
func TestReferences(t *testing.T) {
	v, err := ParseAvro(NewRules(), `{"type":"record","name":"R","fields":[{"name":"a","type":"n.B"},{"name":"c","type":"n.B"}]}`,
		Reference{Text: `{"type":"fixed","name":"n.F","size":2}`}, Reference{Text: `{"type":"record","name":"B","namespace":"n","fields":[{"name":"f","type":"F"}]}`})
	if err != nil {
		t.Fatal(err)
	}
	const want = "a struct<2: f: required fixed[2]> required\nc struct<4: f: required fixed[2]> required"
	if got := columns(v); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
