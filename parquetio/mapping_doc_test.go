package parquetio

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/iceberg-go"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tabletopic/tabletopic/parquetio/parquetiotest"
)

// A mappingCase is a schema that a row of the type mapping in docs/tables.md is about, and values of
// it, those at its edges among them.
type mappingCase struct {
	row    string // its first cell
	schema string
	values []mappedValue
	rules  func(*Rules) // what the row chooses; nil if nothing
	lists  int          // the row is about the items of so many lists in lists
}

type mappedValue struct {
	data     []byte
	want, v3 any // in format version 3 likewise, if v3 is nil
}

// A mappingFormat is one table of the type mapping.
type mappingFormat struct {
	heading string
	column  string // that the schemas make
	cases   []mappingCase
	parse   func(rules Rules, c mappingCase) (*ValueSchema, error)
	payload func(data []byte) []byte
	// optional returns a case of the same values, and null, if the schema can be such. nil if none can.
	optional func(c mappingCase) (mappingCase, bool)
}

var mappingFormats = []mappingFormat{
	{"Avro", "x", avroCases, parseAvroCase, asItIs, optionalAvro},
	{"Protobuf", "x", protobufCases, parseProtobufCase, asItIs, optionalProtobuf},
	{"JSON Schema", "x", jsonCases, parseJSONCase, asProperty, optionalJSON},
	{"JSON without a schema", "x", plainJSONCases, inferCase, asProperty, nil},
	{"Text and bytes", "value", plainCases, parsePlainCase, asItIs, nil},
}

// Each row of the type mapping in docs/tables.md is what the code makes, in both format versions, and
// the columns hold the values at the edges of their types, and null. A row that no case is about
// fails, and so does a case without a row.
func TestDocumentedTypeMapping(t *testing.T) {
	for _, f := range mappingFormats {
		t.Run(f.heading, func(t *testing.T) {
			rows, tested := documentedMapping(t, f.heading), map[string]bool{}
			for _, c := range f.cases {
				tested[c.row] = true
				want, ok := rows[c.row]
				if !ok {
					t.Errorf("docs/tables.md has no row %q", c.row)
					continue
				}
				if len(c.values) == 0 {
					t.Errorf("row %q: a case without a value", c.row)
				}
				t.Run(c.row, func(t *testing.T) {
					for v, rules := range []Rules{NewRules(), {Version: MappingVersion, Nanos: true, Variant: true}} {
						name := fmt.Sprintf("%s in format version %d", c.schema, v+2)
						f.check(t, name, c, rules, v == 1, want)
						if f.optional != nil && !slices.ContainsFunc(c.values, func(v mappedValue) bool { return v.want == nil }) {
							if o, ok := f.optional(c); ok {
								f.check(t, name+", optional", o, rules, v == 1, want)
							}
						}
					}
				})
			}
			for row := range rows {
				if !tested[row] {
					t.Errorf("row %q of docs/tables.md has no case", row)
				}
			}
		})
	}
}

// check compares the column of a case in one format version with what is documented of both.
func (f mappingFormat) check(t *testing.T, name string, c mappingCase, rules Rules, v3 bool, documented [2]string) {
	t.Helper()
	column := documented[0]
	if v3 {
		column = documented[1]
	}
	if c.rules != nil {
		c.rules(&rules)
	}
	value, err := f.parse(rules, c)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	r := rigOf(t, value)
	got := "none"
	for _, field := range r.table.Fields() {
		if field.Name == f.column {
			for range c.lists {
				field.Type = field.Type.(*iceberg.ListType).Element
			}
			got = columnText(field.Type) + ifRequired(field.Required)
		}
	}
	if got != column {
		t.Errorf("%s: column %s, documented is %s", name, got, column)
		return
	}
	if v3 && documented[0] == documented[1] { // the same column holds the same values
		return
	}
	if f.heading == "JSON without a schema" {
		if r.decoder, err = withKafka.CompileJSON(r.table); err != nil {
			t.Fatal(err)
		}
	}
	want := []any{}
	for _, v := range c.values {
		r.append(f.payload(v.data))
		switch {
		case column == "variant" && c.lists == 0 && v.want == nil:
			want = append(want, "NULL")
		case v3 && v.v3 != nil:
			want = append(want, v.v3)
		default:
			want = append(want, v.want)
		}
	}
	if got == "none" {
		return
	}
	a, rows := columnIn(t, r, f.column), []any{}
	for i := range a.Len() {
		rows = append(rows, plainWithVariants(t, a, i))
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("%s: %.2000s", name, diff)
	}
}

// plainWithVariants is [parquetiotest.Plain] for variants, too, also in lists.
func plainWithVariants(t *testing.T, a arrow.Array, i int) any {
	t.Helper()
	switch a := a.(type) {
	case *extensions.VariantArray:
		return variantText(t, a, i)
	case *array.List:
		if a.IsNull(i) {
			return nil
		}
		out := []any{}
		from, to := a.ValueOffsets(i)
		for k := from; k < to; k++ {
			out = append(out, plainWithVariants(t, a.ListValues(), int(k)))
		}
		return out
	}
	return parquetiotest.Plain(a, i)
}

// documentedMapping returns the columns in format versions 2 and 3 of each row of the first table under
// a heading, with the types of the cases for T, K and what else stands for any.
func documentedMapping(t *testing.T, heading string) map[string][2]string {
	t.Helper()
	text, err := os.ReadFile("../docs/tables.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n## "+heading+"\n")
	_, table, ok2 := strings.Cut(section, "\n|---|---|---|---|\n")
	table, _, ok3 := strings.Cut(table, "\n\n")
	if !ok || !ok2 || !ok3 {
		t.Fatalf("docs/tables.md has no table of four columns under %q", heading)
	}
	rows := map[string][2]string{}
	anything := strings.NewReplacer("`", "", "…", "a long", "p, s", "10, 2", "[n]", "[2]")
	free := regexp.MustCompile(`\b[TK]\b`)
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " |")
		if len(cells) < 3 {
			t.Fatalf("docs/tables.md, under %q: row %q has %d cells", heading, line, len(cells))
		}
		for i, c := range cells[:3] {
			cells[i] = strings.TrimSpace(c)
		}
		if cells[2] == "" {
			cells[2] = cells[1]
		}
		if _, twice := rows[cells[0]]; twice {
			t.Errorf("row %q is there twice", cells[0])
		}
		column := func(c string) string { return free.ReplaceAllString(anything.Replace(c), "long") }
		rows[cells[0]] = [2]string{column(cells[1]), column(cells[2])}
	}
	return rows
}

// columnText writes a type as docs/tables.md does.
func columnText(t iceberg.Type) string {
	switch t := t.(type) {
	case *iceberg.StructType:
		var all []string
		for _, f := range t.FieldList {
			all = append(all, f.Name+" "+columnText(f.Type)+ifRequired(f.Required))
		}
		return "struct<" + strings.Join(all, ", ") + ">"
	case *iceberg.ListType:
		return "list<" + columnText(t.Element) + ifRequired(t.ElementRequired) + ">"
	case *iceberg.MapType:
		return "map<" + columnText(t.KeyType) + ", " + columnText(t.ValueType) + ifRequired(t.ValueRequired) + ">"
	}
	return t.String()
}

func ifRequired(required bool) string {
	if required {
		return " required"
	}
	return ""
}

// Edges of types, in the units of their columns.
const (
	year1     = int64(-62_135_596_800_000_000)
	year9999  = int64(253_402_300_799_999_999)
	dayOf1    = int64(-719_162)
	dayOf9999 = int64(2_932_896)
	lastOfDay = int64(86_399_999_999)
)

var (
	megabyte  = strings.Repeat("é", 1<<19)
	minusZero = math.Copysign(0, -1)
)

func asItIs(data []byte) []byte     { return data }
func asProperty(data []byte) []byte { return cat([]byte(`{"x":`), data, []byte(`}`)) }

func binaryText(s string) string { return "0x" + hex.EncodeToString([]byte(s)) }

// floor divides, rounding down.
func floor(v, by int64) int64 {
	if v%by < 0 {
		return v/by - 1
	}
	return v / by
}

func same(v int64) int64       { return v }
func fromMillis(v int64) int64 { return v * 1000 }
func fromNanos(v int64) int64  { return floor(v, 1000) }

func parseAvroCase(rules Rules, c mappingCase) (*ValueSchema, error) {
	return ParseAvro(rules, `{"type":"record","name":"R","fields":[{"name":"x","type":`+c.schema+`}]}`)
}

func optionalAvro(c mappingCase) (mappingCase, bool) {
	if c.schema[0] == '[' || c.schema == `"null"` {
		return c, false
	}
	out := mappingCase{row: c.row, schema: `["null",` + c.schema + `]`, values: []mappedValue{{data: long(0)}}}
	for _, v := range c.values {
		out.values = append(out.values, mappedValue{cat(long(1), v.data), v.want, v.v3})
	}
	return out, true
}

// avroLongs are numbers as Avro writes them, and as a column has them.
func avroLongs(column func(int64) int64, values ...int64) (out []mappedValue) {
	for _, v := range values {
		out = append(out, mappedValue{data: long(v), want: column(v)})
	}
	return out
}

// avroNanos are nanoseconds, which format version 3 keeps.
func avroNanos(values ...int64) (out []mappedValue) {
	for _, v := range values {
		out = append(out, mappedValue{long(v), fromNanos(v), v})
	}
	return out
}

func avroDecimals() (out []mappedValue) {
	for v, want := range map[int64]string{-9_999_999_999: "-99999999.99", 9_999_999_999: "99999999.99", 0: "0.00", -1: "-0.01"} {
		out = append(out, mappedValue{data: text(string(binary.BigEndian.AppendUint64(nil, uint64(v)))), want: want})
	}
	return out
}

var avroTexts = []mappedValue{{data: text(""), want: ""}, {data: text("a\x00é😀"), want: "a\x00é😀"}, {data: text(megabyte), want: megabyte}}

var avroCases = []mappingCase{
	{row: "`boolean`", schema: `"boolean"`, values: []mappedValue{{data: []byte{0}, want: false}, {data: []byte{1}, want: true}}},
	{row: "`int`", schema: `"int"`, values: avroLongs(same, math.MinInt32, -1, 0, math.MaxInt32)},
	{row: "`long`", schema: `"long"`, values: avroLongs(same, math.MinInt64, -1, 0, math.MaxInt64)},
	{row: "`float`", schema: `"float"`, values: []mappedValue{
		{data: float(math.MaxFloat32), want: math.MaxFloat32}, {data: float(-math.SmallestNonzeroFloat32), want: -math.SmallestNonzeroFloat32},
		{data: float(float32(math.NaN())), want: "NaN"}, {data: float(float32(math.Inf(-1))), want: math.Inf(-1)}, {data: float(float32(minusZero)), want: minusZero}, {data: float(0), want: 0.0}}},
	{row: "`double`", schema: `"double"`, values: []mappedValue{
		{data: double(math.MaxFloat64), want: math.MaxFloat64}, {data: double(-math.SmallestNonzeroFloat64), want: -math.SmallestNonzeroFloat64},
		{data: double(math.NaN()), want: "NaN"}, {data: double(math.Inf(1)), want: math.Inf(1)}, {data: double(minusZero), want: minusZero}, {data: double(0), want: 0.0}}},
	{row: "`bytes`", schema: `"bytes"`, values: []mappedValue{{data: text(""), want: "0x"}, {data: text("\x00\xff"), want: "0x00ff"}, {data: text(megabyte), want: binaryText(megabyte)}}},
	{row: "`string`", schema: `"string"`, values: avroTexts},
	{row: "`fixed` of n bytes", schema: `{"type":"fixed","name":"F","size":2}`, values: []mappedValue{{data: []byte{0, 0}, want: "0x0000"}, {data: []byte{0xff, 0xff}, want: "0xffff"}}},
	{row: "`fixed` of 0 bytes", schema: `{"type":"fixed","name":"F","size":0}`, values: []mappedValue{{want: "0x"}}},
	{row: "`enum`", schema: `{"type":"enum","name":"E","symbols":["FIRST","LAST"]}`, values: []mappedValue{{data: long(0), want: "FIRST"}, {data: long(1), want: "LAST"}}},
	{row: "`record`", schema: `{"type":"record","name":"S","fields":[{"name":"a","type":"long"}]}`, values: []mappedValue{{data: long(math.MinInt64), want: map[string]any{"a": int64(math.MinInt64)}}}},
	{row: "`record` without fields", schema: `{"type":"record","name":"S","fields":[]}`, values: []mappedValue{{want: map[string]any{PresentField: true}}}},
	{row: "`array` of T", schema: `{"type":"array","items":"long"}`, values: []mappedValue{{data: long(0), want: []any{}}, {data: cat(long(2), long(math.MaxInt64), long(-1), long(0)), want: []any{int64(math.MaxInt64), int64(-1)}}}},
	{row: "`map` of T", schema: `{"type":"map","values":"long"}`, values: []mappedValue{{data: long(0), want: map[string]any{}}, {data: cat(long(1), text(""), long(math.MinInt64), long(0)), want: map[string]any{"": int64(math.MinInt64)}}}},
	{row: "`null`", schema: `"null"`, values: []mappedValue{{}}},
	{row: "`array` of `null`", schema: `{"type":"array","items":"null"}`, values: []mappedValue{{data: cat(long(2), long(0)), want: []any{nil, nil}}}},
	{row: "`map` of `null`", schema: `{"type":"map","values":"null"}`, values: []mappedValue{{data: cat(long(1), text("k"), long(0)), want: map[string]any{"k": nil}}}},
	{row: "`[\"null\", T]`, `[T, \"null\"]`", schema: `["null","long"]`, values: []mappedValue{{data: long(0)}, {data: cat(long(1), long(math.MinInt64)), want: int64(math.MinInt64)}}},
	{row: "`[\"null\", T]`, `[T, \"null\"]`", schema: `["long","null"]`, values: []mappedValue{{data: long(1)}, {data: cat(long(0), long(math.MaxInt64)), want: int64(math.MaxInt64)}}},
	{row: "`[T]`", schema: `["long"]`, values: []mappedValue{{data: cat(long(0), long(-1)), want: int64(-1)}}},
	{row: "a union of two or more types", schema: `["long","string","double"]`, values: []mappedValue{
		{cat(long(0), long(math.MinInt64)), "-9223372036854775808", "a number -9223372036854775808"},
		{cat(long(1), text(megabyte)), `"` + megabyte + `"`, `a string "` + megabyte + `"`}, {cat(long(1), text("")), `""`, `a string ""`},
		{cat(long(2), double(math.NaN())), `"NaN"`, `a string "NaN"`}}},
	{row: "a union of two or more types and `null`", schema: `["string","null","long"]`, values: []mappedValue{{data: long(1)}, {cat(long(2), long(math.MaxInt64)), "9223372036854775807", "a number 9223372036854775807"}}},
	{row: "`[\"null\", R]` inside of the record R", schema: `["null","R"]`, values: []mappedValue{{data: long(0)}, {cat(long(1), long(1), long(0)), `{"x":{"x":null}}`, `an object {"x":{"x":null}}`}}},
	{row: "`date`", schema: `{"type":"int","logicalType":"date"}`, values: avroLongs(same, dayOf1, -1, 0, dayOf9999, math.MinInt32, math.MaxInt32)},
	{row: "`time-millis`, `time-micros`", schema: `{"type":"int","logicalType":"time-millis"}`, values: avroLongs(fromMillis, 0, 86_399_999)},
	{row: "`time-millis`, `time-micros`", schema: `{"type":"long","logicalType":"time-micros"}`, values: avroLongs(same, 0, lastOfDay)},
	{row: "`time-nanos`", schema: `{"type":"long","logicalType":"time-nanos"}`, values: avroLongs(fromNanos, 0, 1999, lastOfDay*1000+999)},
	{row: "`timestamp-millis`, `timestamp-micros`", schema: `{"type":"long","logicalType":"timestamp-millis"}`, values: avroLongs(fromMillis, year1/1000, -1, 0, floor(year9999, 1000), math.MinInt64/1000, math.MaxInt64/1000)},
	{row: "`timestamp-millis`, `timestamp-micros`", schema: `{"type":"long","logicalType":"timestamp-micros"}`, values: avroLongs(same, year1, -1, 0, year9999, math.MinInt64, math.MaxInt64)},
	{row: "`timestamp-nanos`", schema: `{"type":"long","logicalType":"timestamp-nanos"}`, values: avroNanos(math.MinInt64, -1, 0, 1999, math.MaxInt64)},
	{row: "`local-timestamp-millis`, `local-timestamp-micros`", schema: `{"type":"long","logicalType":"local-timestamp-millis"}`, values: avroLongs(fromMillis, year1/1000, -1, floor(year9999, 1000))},
	{row: "`local-timestamp-millis`, `local-timestamp-micros`", schema: `{"type":"long","logicalType":"local-timestamp-micros"}`, values: avroLongs(same, year1, -1, year9999, math.MinInt64, math.MaxInt64)},
	{row: "`local-timestamp-nanos`", schema: `{"type":"long","logicalType":"local-timestamp-nanos"}`, values: avroNanos(math.MinInt64, -1, 1999, math.MaxInt64)},
	{row: "`timestamp-millis`, `timestamp-micros` with `\"adjust-to-utc\": false`", schema: `{"type":"long","logicalType":"timestamp-millis","adjust-to-utc":false}`, values: avroLongs(fromMillis, year1/1000, -1, floor(year9999, 1000))},
	{row: "`timestamp-millis`, `timestamp-micros` with `\"adjust-to-utc\": false`", schema: `{"type":"long","logicalType":"timestamp-micros","adjust-to-utc":false}`, values: avroLongs(same, year1, -1, year9999)},
	{row: "`timestamp-nanos` with `\"adjust-to-utc\": false`", schema: `{"type":"long","logicalType":"timestamp-nanos","adjust-to-utc":false}`, values: avroNanos(math.MinInt64, -1, math.MaxInt64)},
	{row: "`decimal` of p digits, at most 38, s of them behind the point", schema: `{"type":"bytes","logicalType":"decimal","precision":10,"scale":2}`, values: avroDecimals()},
	{row: "`decimal` of p digits, at most 38, s of them behind the point", schema: `{"type":"fixed","name":"F","size":8,"logicalType":"decimal","precision":10,"scale":2}`, values: []mappedValue{{data: []byte("\xff\xff\xff\xfd\xab\xf4\x1c\x01"), want: "-99999999.99"}, {data: make([]byte, 8), want: "0.00"}}},
	{row: "`decimal` of more digits", schema: `{"type":"bytes","logicalType":"decimal","precision":39,"scale":2}`, values: []mappedValue{{data: text(""), want: "0x"}, {data: text("\x80"), want: "0x80"}}},
	{row: "`uuid`", schema: `{"type":"string","logicalType":"uuid"}`, values: []mappedValue{{data: text("00000000-0000-0000-0000-000000000000"), want: "0x" + strings.Repeat("00", 16)}, {data: text("FFFFFFFF-ffff-ffff-ffff-ffffffffffff"), want: "0x" + strings.Repeat("ff", 16)}}},
	{row: "`uuid`", schema: `{"type":"fixed","name":"F","size":16,"logicalType":"uuid"}`, values: []mappedValue{{data: make([]byte, 16), want: "0x" + strings.Repeat("00", 16)}}},
	{row: "`duration`", schema: `{"type":"fixed","name":"F","size":12,"logicalType":"duration"}`, values: []mappedValue{{data: []byte(strings.Repeat("\xff", 12)), want: "0x" + strings.Repeat("ff", 12)}}},
	{row: "another logical type of T, or one that does not fit T", schema: `{"type":"long","logicalType":"unheard-of"}`, values: avroLongs(same, math.MinInt64)},
	{row: "another logical type of T, or one that does not fit T", schema: `{"type":"long","logicalType":"date"}`, values: avroLongs(same, math.MaxInt64)},
	{row: "`io.debezium.time.Date`", schema: `{"type":"int","connect.name":"io.debezium.time.Date"}`, values: avroLongs(same, dayOf1, -1, dayOf9999)},
	{row: "`io.debezium.time.Time`, `MicroTime`, `NanoTime`", schema: `{"type":"int","connect.name":"io.debezium.time.Time"}`, values: avroLongs(fromMillis, 0, 86_399_999)},
	{row: "`io.debezium.time.Time`, `MicroTime`, `NanoTime`", schema: `{"type":"long","connect.name":"io.debezium.time.MicroTime"}`, values: avroLongs(same, 0, lastOfDay)},
	{row: "`io.debezium.time.Time`, `MicroTime`, `NanoTime`", schema: `{"type":"long","connect.name":"io.debezium.time.NanoTime"}`, values: avroLongs(fromNanos, 0, 1999, lastOfDay*1000+999)},
	{row: "`io.debezium.time.Timestamp`, `MicroTimestamp`", schema: `{"type":"long","connect.name":"io.debezium.time.Timestamp"}`, values: avroLongs(fromMillis, year1/1000, -1, floor(year9999, 1000))},
	{row: "`io.debezium.time.Timestamp`, `MicroTimestamp`", schema: `{"type":"long","connect.name":"io.debezium.time.MicroTimestamp"}`, values: avroLongs(same, year1, -1, year9999)},
	{row: "`io.debezium.time.NanoTimestamp`", schema: `{"type":"long","connect.name":"io.debezium.time.NanoTimestamp"}`, values: avroNanos(math.MinInt64, -1, math.MaxInt64)},
	{row: "`io.debezium.time.ZonedTimestamp`", schema: `{"type":"string","connect.name":"io.debezium.time.ZonedTimestamp"}`, values: []mappedValue{
		{data: text("0001-01-01T00:00:00Z"), want: year1}, {data: text("1969-12-31T23:59:59.999999Z"), want: int64(-1)}, {data: text("9999-12-31T23:59:59.9999999Z"), want: year9999}, {data: text("1970-01-01T01:00:00+01:00"), want: int64(0)}}},
	{row: "`org.apache.kafka.connect.data.Date`", schema: `{"type":"int","connect.name":"org.apache.kafka.connect.data.Date"}`, values: avroLongs(same, dayOf1, -1, dayOf9999)},
	{row: "`org.apache.kafka.connect.data.Time`", schema: `{"type":"int","connect.name":"org.apache.kafka.connect.data.Time"}`, values: avroLongs(fromMillis, 0, 86_399_999)},
	{row: "`org.apache.kafka.connect.data.Timestamp`", schema: `{"type":"long","connect.name":"org.apache.kafka.connect.data.Timestamp"}`, values: avroLongs(fromMillis, year1/1000, -1, floor(year9999, 1000))},
	{row: "`org.apache.kafka.connect.data.Decimal`", schema: `{"type":"bytes","connect.name":"org.apache.kafka.connect.data.Decimal","connect.parameters":{"scale":"2","connect.decimal.precision":"10"}}`, values: avroDecimals()},
	{row: "another `connect.name` of T", schema: `{"type":"long","connect.name":"io.debezium.time.MicroDuration"}`, values: avroLongs(same, math.MinInt64)},
}

func parseProtobufCase(rules Rules, c mappingCase) (*ValueSchema, error) {
	schema := c.schema
	if !strings.HasPrefix(schema, "syntax") {
		fields, more, _ := strings.Cut(schema, "|")
		schema = one3(fields, more)
	}
	return ParseProtobuf(rules, schema, "")
}

var scalarField = regexp.MustCompile(`^[a-zE][a-z0-9]* x = 1;$`)

// optionalProtobuf is what has presence and is not set, too.
func optionalProtobuf(c mappingCase) (mappingCase, bool) {
	if !scalarField.MatchString(c.schema) {
		return c, false
	}
	c.schema = "optional " + c.schema
	c.values = append([]mappedValue{{}}, c.values...)
	return c, true
}

func protobufFixed32(v uint32) []byte {
	return protowire.AppendFixed32(protowire.AppendTag(nil, 1, protowire.Fixed32Type), v)
}

func protobufFixed64(v uint64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(nil, 1, protowire.Fixed64Type), v)
}

func protobufVarints[T int64 | uint64](encode func(T) uint64, values ...T) (out []mappedValue) {
	for _, v := range values {
		out = append(out, mappedValue{data: varintField(1, encode(v)), want: int64(v)})
	}
	return out
}

// twos is a number as int32 and int64 have it.
func twos(v int64) uint64 { return uint64(v) }

// seconds is a Timestamp or a Duration.
func seconds(s, nanos int64) []byte {
	return bytesField(1, varintField(1, twos(s)), varintField(2, twos(nanos)))
}

// wrapped puts values of field 1 into a message around them; unset is NULL.
func wrapped(values []mappedValue, zero any) (out []mappedValue) {
	for _, v := range values {
		out = append(out, mappedValue{data: bytesField(1, v.data), want: v.want})
	}
	return append(out, mappedValue{data: bytesField(1), want: zero}, mappedValue{})
}

var (
	protobufInt32s  = protobufVarints(twos, math.MinInt32, -1, 0, math.MaxInt32)
	protobufInt64s  = protobufVarints(twos, math.MinInt64, -1, 0, math.MaxInt64)
	protobufUint32s = protobufVarints(twos, 0, math.MaxUint32)
	protobufUint64s = []mappedValue{{data: varintField(1, 0), want: "0"}, {data: varintField(1, math.MaxUint64), want: "18446744073709551615"}}
	protobufBools   = []mappedValue{{data: varintField(1, 0), want: false}, {data: varintField(1, 1), want: true}}
	protobufFloats  = []mappedValue{
		{data: protobufFixed32(math.Float32bits(math.MaxFloat32)), want: math.MaxFloat32}, {data: protobufFixed32(math.Float32bits(float32(math.NaN()))), want: "NaN"},
		{data: protobufFixed32(1 << 31), want: minusZero}, {data: protobufFixed32(math.Float32bits(float32(math.Inf(-1)))), want: math.Inf(-1)}}
	protobufDoubles = []mappedValue{
		{data: protobufFixed64(math.Float64bits(-math.MaxFloat64)), want: -math.MaxFloat64}, {data: protobufFixed64(math.Float64bits(math.NaN())), want: "NaN"},
		{data: protobufFixed64(1 << 63), want: minusZero}, {data: protobufFixed64(math.Float64bits(math.Inf(1))), want: math.Inf(1)}}
	protobufTexts  = []mappedValue{{data: textField(1, ""), want: ""}, {data: textField(1, "a\x00é😀"), want: "a\x00é😀"}, {data: textField(1, megabyte), want: megabyte}}
	protobufBinary = []mappedValue{{data: textField(1, ""), want: "0x"}, {data: textField(1, "\x00\xff"), want: "0x00ff"}, {data: textField(1, megabyte), want: binaryText(megabyte)}}
	fixed64s       = []mappedValue{{data: protobufFixed64(0), want: "0"}, {data: protobufFixed64(math.MaxUint64), want: "18446744073709551615"}}
)

func uint64AsString(r *Rules) { r.Uint64AsString = true }

func confluentDecimal(meta string) string {
	return `syntax = "proto3"; import "confluent/meta.proto"; import "confluent/type/decimal.proto"; message R { confluent.type.Decimal x = 1 ` + meta + `; }`
}

var protobufCases = []mappingCase{
	{row: "`bool`", schema: "bool x = 1;", values: protobufBools},
	{row: "`int32`, `sint32`, `sfixed32`", schema: "int32 x = 1;", values: protobufInt32s},
	{row: "`int32`, `sint32`, `sfixed32`", schema: "sint32 x = 1;", values: protobufVarints(protowire.EncodeZigZag, math.MinInt32, -1, math.MaxInt32)},
	{row: "`int32`, `sint32`, `sfixed32`", schema: "sfixed32 x = 1;", values: []mappedValue{{data: protobufFixed32(1 << 31), want: int64(math.MinInt32)}, {data: protobufFixed32(math.MaxInt32), want: int64(math.MaxInt32)}}},
	{row: "`int64`, `sint64`, `sfixed64`", schema: "int64 x = 1;", values: protobufInt64s},
	{row: "`int64`, `sint64`, `sfixed64`", schema: "sint64 x = 1;", values: protobufVarints(protowire.EncodeZigZag, math.MinInt64, -1, math.MaxInt64)},
	{row: "`int64`, `sint64`, `sfixed64`", schema: "sfixed64 x = 1;", values: []mappedValue{{data: protobufFixed64(1 << 63), want: int64(math.MinInt64)}, {data: protobufFixed64(math.MaxInt64), want: int64(math.MaxInt64)}}},
	{row: "`uint32`, `fixed32`", schema: "uint32 x = 1;", values: protobufUint32s},
	{row: "`uint32`, `fixed32`", schema: "fixed32 x = 1;", values: []mappedValue{{data: protobufFixed32(0), want: int64(0)}, {data: protobufFixed32(math.MaxUint32), want: int64(math.MaxUint32)}}},
	{row: "`uint64`, `fixed64`", schema: "uint64 x = 1;", values: protobufUint64s},
	{row: "`uint64`, `fixed64`", schema: "fixed64 x = 1;", values: fixed64s},
	{row: "`uint64`, `fixed64`, with `table.topic.mapping.protobuf.uint64=string`", schema: "uint64 x = 1;", values: protobufUint64s, rules: uint64AsString},
	{row: "`uint64`, `fixed64`, with `table.topic.mapping.protobuf.uint64=string`", schema: "fixed64 x = 1;", values: fixed64s, rules: uint64AsString},
	{row: "`float`", schema: "float x = 1;", values: protobufFloats},
	{row: "`double`", schema: "double x = 1;", values: protobufDoubles},
	{row: "`string`", schema: "string x = 1;", values: protobufTexts},
	{row: "`bytes`", schema: "bytes x = 1;", values: protobufBinary},
	{row: "an enum", schema: "E x = 1;", values: []mappedValue{{data: varintField(1, 0), want: "ZERO"}, {data: varintField(1, 1), want: "ONE"}, {data: varintField(1, math.MaxInt32), want: "2147483647"}, {data: varintField(1, twos(math.MinInt32)), want: "-2147483648"}}},
	{row: "a message", schema: "M x = 1;|message M { int64 a = 1; }", values: []mappedValue{{}, {data: bytesField(1), want: map[string]any{"a": int64(0)}}, {data: bytesField(1, varintField(1, 1<<63)), want: map[string]any{"a": int64(math.MinInt64)}}}},
	{row: "a group of proto2", schema: `syntax = "proto2"; message R { optional group X = 1 { required int64 a = 1; } }`, values: []mappedValue{{}, {data: cat([]byte{1<<3 | 3}, varintField(1, 1<<63), []byte{1<<3 | 4}), want: map[string]any{"a": int64(math.MinInt64)}}}},
	{row: "a message without fields", schema: "M x = 1;|message M {}", values: []mappedValue{{}, {data: bytesField(1), want: map[string]any{PresentField: true}}}},
	{row: "`repeated T`", schema: "repeated int64 x = 1;", values: []mappedValue{{want: []any{}}, {data: cat(varintField(1, 1<<63), varintField(1, 0)), want: []any{int64(math.MinInt64), int64(0)}}}},
	{row: "`map<K, T>`", schema: "map<int64, int64> x = 1;", values: []mappedValue{{want: map[string]any{}}, {data: bytesField(1), want: map[string]any{"0": int64(0)}}, {data: bytesField(1, varintField(1, 1<<63), varintField(2, math.MaxInt64)), want: map[string]any{"-9223372036854775808": int64(math.MaxInt64)}}}},
	{row: "`optional T`, and all of proto2", schema: "optional int64 x = 1;", values: append(protobufInt64s, mappedValue{})},
	{row: "`optional T`, and all of proto2", schema: `syntax = "proto2"; message R { optional int64 x = 1 [default = 5]; }`, values: append(protobufInt64s, mappedValue{})},
	{row: "`required T` of proto2", schema: `syntax = "proto2"; message R { required int64 x = 1; }`, values: protobufInt64s},
	{row: "T without presence, with `table.topic.mapping.protobuf.zero.as.null=true`", schema: "int64 x = 1;", values: []mappedValue{{}, {data: varintField(1, 0)}, {data: varintField(1, 1<<63), want: int64(math.MinInt64)}}, rules: func(r *Rules) { r.ZeroAsNull = true }},
	{row: "arms of a `oneof`", schema: "oneof o { int64 x = 1; int64 y = 2; }", values: []mappedValue{{}, {data: varintField(1, 0), want: int64(0)}, {data: varintField(2, 1)}, {data: cat(varintField(2, 1), varintField(1, 1<<63)), want: int64(math.MinInt64)}}},
	{row: "a message inside itself", schema: "R x = 1; int64 n = 2;", values: []mappedValue{{}, {bytesField(1, bytesField(1, varintField(2, 1<<63)), varintField(2, 7)), `{"x":{"n":-9223372036854775808},"n":7}`, `an object {"n":7,"x":{"n":-9223372036854775808}}`}}},
	{row: "`google.protobuf.Timestamp`", schema: "google.protobuf.Timestamp x = 1;", values: []mappedValue{{}, {data: bytesField(1), want: int64(0)}, {data: seconds(-1, 999_999_999), want: int64(-1)}, {data: seconds(year1/1_000_000, 0), want: year1}, {data: seconds(floor(year9999, 1_000_000), 999_999_999), want: year9999}}},
	{row: "`google.protobuf.Duration`", schema: "google.protobuf.Duration x = 1;", values: []mappedValue{{}, {data: bytesField(1), want: int64(0)}, {data: seconds(-1, -1), want: int64(-1_000_001)}, {data: seconds(-315_576_000_000, -999_999_999), want: int64(-315_576_000_001_000_000)}, {data: seconds(315_576_000_000, 999_999_999), want: int64(315_576_000_000_999_999)}}},
	{row: "`google.protobuf.BoolValue`", schema: "google.protobuf.BoolValue x = 1;", values: wrapped(protobufBools, false)},
	{row: "`google.protobuf.Int32Value`", schema: "google.protobuf.Int32Value x = 1;", values: wrapped(protobufInt32s, int64(0))},
	{row: "`google.protobuf.Int64Value`, `UInt32Value`", schema: "google.protobuf.Int64Value x = 1;", values: wrapped(protobufInt64s, int64(0))},
	{row: "`google.protobuf.Int64Value`, `UInt32Value`", schema: "google.protobuf.UInt32Value x = 1;", values: wrapped(protobufUint32s, int64(0))},
	{row: "`google.protobuf.UInt64Value`", schema: "google.protobuf.UInt64Value x = 1;", values: wrapped(protobufUint64s, "0")},
	{row: "`google.protobuf.FloatValue`", schema: "google.protobuf.FloatValue x = 1;", values: wrapped(protobufFloats, 0.0)},
	{row: "`google.protobuf.DoubleValue`", schema: "google.protobuf.DoubleValue x = 1;", values: wrapped(protobufDoubles, 0.0)},
	{row: "`google.protobuf.StringValue`", schema: "google.protobuf.StringValue x = 1;", values: wrapped(protobufTexts, "")},
	{row: "`google.protobuf.BytesValue`", schema: "google.protobuf.BytesValue x = 1;", values: wrapped(protobufBinary, "0x")},
	{row: "`google.protobuf.Struct`, `Value`, `ListValue`", schema: "google.protobuf.Struct x = 1;", values: []mappedValue{{}, {bytesField(1), "{}", "an object {}"}, {bytesField(1, bytesField(1, textField(1, "k"), bytesField(2, textField(3, megabyte)))), `{"k":"` + megabyte + `"}`, `an object {"k":"` + megabyte + `"}`}}},
	{row: "`google.protobuf.Struct`, `Value`, `ListValue`", schema: "google.protobuf.Value x = 1;", values: []mappedValue{{}, {bytesField(1, varintField(4, 1)), "true", "a boolean true"}}},
	{row: "`google.protobuf.Struct`, `Value`, `ListValue`", schema: "google.protobuf.ListValue x = 1;", values: []mappedValue{{}, {bytesField(1), "[]", "an array []"}}},
	{row: "`google.protobuf.Any`", schema: "google.protobuf.Any x = 1;", values: []mappedValue{{}, {data: bytesField(1), want: map[string]any{"type_url": "", "value": "0x"}}, {data: bytesField(1, textField(1, "t"), textField(2, megabyte)), want: map[string]any{"type_url": "t", "value": binaryText(megabyte)}}}},
	{row: "`confluent.type.Decimal` with `precision` p and `scale` s in `confluent.field_meta`", schema: confluentDecimal(`[(confluent.field_meta) = { params: [{ key: "precision", value: "10" }, { key: "scale", value: "2" }] }]`), values: []mappedValue{{}, {data: bytesField(1), want: "0.00"},
		{data: bytesField(1, textField(1, "\xfd\xab\xf4\x1c\x01"), varintField(3, 2)), want: "-99999999.99"}, {data: bytesField(1, textField(1, "\x02\x54\x0b\xe3\xff"), varintField(3, 2)), want: "99999999.99"}}},
	{row: "`confluent.type.Decimal` without these", schema: confluentDecimal(""), values: []mappedValue{{}, {data: bytesField(1, textField(1, "\x80"), varintField(3, 2)), want: map[string]any{"value": "0x80", "precision": int64(0), "scale": int64(2)}}}},
}

func parseJSONCase(rules Rules, c mappingCase) (*ValueSchema, error) {
	schema, required := c.schema, `["x"]`
	if s, ok := strings.CutPrefix(schema, "not required "); ok {
		schema, required = s, "[]"
	}
	return ParseJSONSchema(rules, `{"type":"object","required":`+required+`,"properties":{"x":`+schema+`},"definitions":{"o":{"type":"object","required":["a"],"properties":{"a":{"type":"integer"}}}}}`)
}

func optionalJSON(c mappingCase) (mappingCase, bool) {
	c.schema = "not required " + c.schema
	c.values = append([]mappedValue{{data: []byte("null")}}, c.values...)
	return c, true
}

func jsonText(text string, want any) mappedValue { return mappedValue{data: []byte(text), want: want} }

// jsonOr is text that format version 3 has as a variant.
func jsonOr(text, want, variant string) mappedValue { return mappedValue{[]byte(text), want, variant} }

func jsonLongs(column func(int64) int64, values ...int64) (out []mappedValue) {
	for _, v := range values {
		out = append(out, jsonText(fmt.Sprint(v), column(v)))
	}
	return out
}

// connectJSON is a schema that a converter of Connect wrote.
func connectJSON(typ, connect, title string) string {
	return `{"type":"` + typ + `","connect.type":"` + connect + `","title":"` + title + `"}`
}

var (
	jsonTexts   = []mappedValue{jsonText(`""`, ""), jsonText(`"a\u0000é\ud83d\ude00"`, "a\x00é😀"), jsonText(`"`+megabyte+`"`, megabyte)}
	jsonAnyText = []mappedValue{jsonOr(`""`, `""`, `a string ""`), jsonOr(`"`+megabyte+`"`, `"`+megabyte+`"`, `a string "`+megabyte+`"`), jsonOr("-9223372036854775808", "-9223372036854775808", "a number -9223372036854775808")}
	jsonNull    = jsonText("null", nil)
	jsonStamps  = []mappedValue{jsonText(`"0001-01-01T00:00:00Z"`, year1), jsonText(`"1969-12-31T23:59:59.9999999Z"`, int64(-1)), jsonText(`"9999-12-31T23:59:59.9999999Z"`, year9999), jsonText(`"1970-01-01T01:00:00+01:00"`, int64(0))}
)

// jsonBoth is text that format version 3 has otherwise.
func jsonBoth(text string, want, v3 any) mappedValue { return mappedValue{[]byte(text), want, v3} }

var jsonCases = []mappingCase{
	{row: "`boolean`", schema: `{"type":"boolean"}`, values: []mappedValue{jsonText("false", false), jsonText("true", true)}},
	{row: "`integer`", schema: `{"type":"integer"}`, values: append(jsonLongs(same, math.MinInt64, -1, 0, math.MaxInt64), jsonText("-0.0", int64(0)), jsonText("1e3", int64(1000)))},
	{row: "`integer` with `connect.type` `int8`, `int16` or `int32`", schema: connectJSON("integer", "int8", ""), values: jsonLongs(same, math.MinInt8, math.MaxInt8)},
	{row: "`integer` with `connect.type` `int8`, `int16` or `int32`", schema: connectJSON("integer", "int16", ""), values: jsonLongs(same, math.MinInt16, math.MaxInt16)},
	{row: "`integer` with `connect.type` `int8`, `int16` or `int32`", schema: connectJSON("integer", "int32", ""), values: jsonLongs(same, math.MinInt32, math.MaxInt32)},
	{row: "`number`", schema: `{"type":"number"}`, values: []mappedValue{jsonText("1.7976931348623157e308", math.MaxFloat64), jsonText("-5e-324", -math.SmallestNonzeroFloat64), jsonText("-0.0", minusZero), jsonText("0", 0.0)}},
	{row: "`number` with `connect.type` `float32`", schema: connectJSON("number", "float32", ""), values: []mappedValue{jsonText("3.4028234663852886e38", math.MaxFloat32), jsonText("-0.0", minusZero)}},
	{row: "`string`", schema: `{"type":"string"}`, values: jsonTexts},
	{row: "`string`, `format` `date`", schema: `{"type":"string","format":"date"}`, values: []mappedValue{jsonText(`"0001-01-01"`, dayOf1), jsonText(`"1969-12-31"`, int64(-1)), jsonText(`"9999-12-31"`, dayOf9999)}},
	{row: "`string`, `format` `time`", schema: `{"type":"string","format":"time"}`, values: []mappedValue{jsonText(`"00:00:00Z"`, int64(0)), jsonText(`"23:59:59.9999999"`, lastOfDay), jsonText(`"01:00:00+02:00"`, int64(23*3_600_000_000))}},
	{row: "`string`, `format` `date-time`", schema: `{"type":"string","format":"date-time"}`, values: jsonStamps},
	{row: "`string`, `format` `uuid`", schema: `{"type":"string","format":"uuid"}`, values: []mappedValue{jsonText(`"00000000-0000-0000-0000-000000000000"`, "0x"+strings.Repeat("00", 16)), jsonText(`"FFFFFFFF-ffff-ffff-ffff-ffffffffffff"`, "0x"+strings.Repeat("ff", 16))}},
	{row: "`string`, another `format`", schema: `{"type":"string","format":"email"}`, values: jsonTexts},
	{row: "`string`, `contentEncoding` `base64`, or `connect.type` `bytes`", schema: `{"type":"string","contentEncoding":"base64"}`, values: []mappedValue{jsonText(`""`, "0x"), jsonText(`"AP8="`, "0x00ff"), jsonText(`"`+base64.StdEncoding.EncodeToString([]byte(megabyte))+`"`, binaryText(megabyte))}},
	{row: "`string`, `contentEncoding` `base64`, or `connect.type` `bytes`", schema: connectJSON("string", "bytes", ""), values: []mappedValue{jsonText(`""`, "0x"), jsonText(`"AP8="`, "0x00ff")}},
	{row: "`enum`, `const` of one type", schema: `{"enum":[1,2]}`, values: jsonLongs(same, 1, 2)},
	{row: "`enum`, `const` of one type", schema: `{"const":1}`, values: jsonLongs(same, 1)},
	{row: "`enum` of several types", schema: `{"enum":["",1]}`, values: []mappedValue{jsonOr(`""`, `""`, `a string ""`), jsonOr("1", "1", "a number 1")}},
	{row: "`array`", schema: `{"type":"array","items":{"type":"integer"}}`, values: []mappedValue{jsonText("[]", []any{}), jsonText("[-9223372036854775808]", []any{int64(math.MinInt64)})}},
	{row: "`array` without `items`", schema: `{"type":"array"}`, values: []mappedValue{jsonBoth("[]", []any{}, []any{}), jsonBoth(`[-1, "", null, {}]`, []any{"-1", `""`, nil, "{}"}, []any{"a number -1", `a string ""`, "NULL", "an object {}"})}},
	{row: "a tuple of items of one scalar type", schema: `{"type":"array","items":[{"type":"integer"},{"type":"integer"}]}`, values: []mappedValue{jsonText("[]", []any{}), jsonText("[1,-1]", []any{int64(1), int64(-1)})}},
	{row: "a tuple of items of one scalar type", schema: `{"type":"array","prefixItems":[{"type":"integer"}]}`, values: []mappedValue{jsonText("[1,-1]", []any{int64(1), int64(-1)})}},
	{row: "another tuple", schema: `{"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}]}`, values: []mappedValue{jsonOr("[]", "[]", "an array []"), jsonOr(`[-1, ""]`, `[-1,""]`, `an array [-1,""]`)}},
	{row: "`object` with `properties`", schema: `{"type":"object","required":["a"],"properties":{"a":{"type":"integer"}}}`, values: []mappedValue{jsonText(`{"a":-9223372036854775808,"other":[]}`, map[string]any{"a": int64(math.MinInt64)})}},
	{row: "`object` with `properties` that are all `null`", schema: `{"type":"object","properties":{"n":{"type":"null"}}}`, values: []mappedValue{jsonText("{}", map[string]any{PresentField: true}), jsonText(`{"n":null}`, map[string]any{PresentField: true})}},
	{row: "`object` without `properties`, with a schema in `additionalProperties`", schema: `{"type":"object","additionalProperties":{"type":"integer"}}`, values: []mappedValue{jsonText("{}", map[string]any{}), jsonText(`{"":-1,"b":2}`, map[string]any{"": int64(-1), "b": int64(2)})}},
	{row: "`object` without `properties`, with a schema in `additionalProperties`", schema: `{"type":"object","patternProperties":{"^a":{"type":"integer"}}}`, values: []mappedValue{jsonText(`{"a":1}`, map[string]any{"a": int64(1)})}},
	{row: "any other `object`", schema: `{"type":"object"}`, values: []mappedValue{jsonOr("{}", "{}", "an object {}"), jsonOr(`{ "a" : [ "`+megabyte+`" ] }`, `{"a":["`+megabyte+`"]}`, `an object {"a":["`+megabyte+`"]}`)}},
	{row: "`null`, `false`", schema: `{"type":"null"}`, values: []mappedValue{jsonText("null", nil)}},
	{row: "`null`, `false`", schema: `false`, values: []mappedValue{jsonText("null", nil)}},
	{row: "an array of `null`", schema: `{"type":"array","items":{"type":"null"}}`, values: []mappedValue{jsonText("[]", []any{}), jsonText("[null]", []any{nil})}},
	{row: "T or `null`, as a list of types, in `oneOf` or in `anyOf`", schema: `{"type":["integer","null"]}`, values: append(jsonLongs(same, math.MinInt64), jsonText("null", nil))},
	{row: "T or `null`, as a list of types, in `oneOf` or in `anyOf`", schema: `{"oneOf":[{"type":"null"},{"type":"integer"}]}`, values: append(jsonLongs(same, math.MinInt64), jsonText("null", nil))},
	{row: "T or `null`, as a list of types, in `oneOf` or in `anyOf`", schema: `{"anyOf":[{"type":"integer"},{"type":"null"}]}`, values: append(jsonLongs(same, math.MinInt64), jsonText("null", nil))},
	{row: "T that is not `required`", schema: `not required {"type":"integer"}`, values: append(jsonLongs(same, math.MinInt64), jsonText(`null,"y":1`, nil))},
	{row: "several types, in `type`, `oneOf` or `anyOf`", schema: `{"type":["string","integer"]}`, values: jsonAnyText},
	{row: "several types, in `type`, `oneOf` or `anyOf`", schema: `{"oneOf":[{"type":"string"},{"type":"integer"}]}`, values: jsonAnyText},
	{row: "several types, in `type`, `oneOf` or `anyOf`", schema: `{"anyOf":[{"type":"string"},{"type":"integer"}]}`, values: jsonAnyText},
	{row: "`oneOf`, `anyOf` of several objects or arrays", schema: `{"type":"object","oneOf":[{"properties":{"a":{"type":"integer"}}},{"properties":{"b":{"type":"integer"}}}]}`, values: []mappedValue{jsonOr("{}", "{}", "an object {}"), jsonOr(`{"b": -1}`, `{"b":-1}`, `an object {"b":-1}`)}},
	{row: "`oneOf`, `anyOf` of which one alone has the type T", schema: `{"type":"integer","oneOf":[{"type":"integer"},{"type":"string"}]}`, values: jsonLongs(same, math.MinInt64)},
	{row: "`allOf`, `$ref`", schema: `{"$ref":"#/definitions/o"}`, values: []mappedValue{jsonText(`{"a":-1}`, map[string]any{"a": int64(-1)})}},
	{row: "`allOf`, `$ref`", schema: `{"type":"object","allOf":[{"properties":{"a":{"type":"integer"}}},{"required":["a"]}]}`, values: []mappedValue{jsonText(`{"a":-1}`, map[string]any{"a": int64(-1)})}},
	{row: "a schema inside itself", schema: `{"anyOf":[{"type":"null"},{"$ref":"#"}]}`, values: []mappedValue{jsonNull, jsonOr(`{"x": {}}`, `{"x":{}}`, `an object {"x":{}}`)}},
	{row: "`{}`, `true`", schema: `{}`, values: append(jsonAnyText, jsonNull)},
	{row: "`{}`, `true`", schema: `true`, values: append(jsonAnyText, jsonNull)},
	{row: "title `org.apache.kafka.connect.data.Date`, `io.debezium.time.Date`", schema: connectJSON("integer", "int32", "org.apache.kafka.connect.data.Date"), values: jsonLongs(same, dayOf1, -1, dayOf9999)},
	{row: "title `org.apache.kafka.connect.data.Date`, `io.debezium.time.Date`", schema: connectJSON("integer", "int32", "io.debezium.time.Date"), values: jsonLongs(same, dayOf1, -1, dayOf9999)},
	{row: "title `org.apache.kafka.connect.data.Time`, `io.debezium.time.Time`", schema: connectJSON("integer", "int32", "org.apache.kafka.connect.data.Time"), values: jsonLongs(fromMillis, 0, 86_399_999)},
	{row: "title `org.apache.kafka.connect.data.Time`, `io.debezium.time.Time`", schema: connectJSON("integer", "int32", "io.debezium.time.Time"), values: jsonLongs(fromMillis, 0, 86_399_999)},
	{row: "title `io.debezium.time.MicroTime`, `NanoTime`", schema: connectJSON("integer", "int64", "io.debezium.time.MicroTime"), values: jsonLongs(same, 0, lastOfDay)},
	{row: "title `io.debezium.time.MicroTime`, `NanoTime`", schema: connectJSON("integer", "int64", "io.debezium.time.NanoTime"), values: jsonLongs(fromNanos, 0, 1999, lastOfDay*1000+999)},
	{row: "title `org.apache.kafka.connect.data.Timestamp`", schema: connectJSON("integer", "int64", "org.apache.kafka.connect.data.Timestamp"), values: jsonLongs(fromMillis, year1/1000, -1, floor(year9999, 1000))},
	{row: "title `io.debezium.time.Timestamp`, `MicroTimestamp`", schema: connectJSON("integer", "int64", "io.debezium.time.Timestamp"), values: jsonLongs(fromMillis, year1/1000, -1, floor(year9999, 1000))},
	{row: "title `io.debezium.time.Timestamp`, `MicroTimestamp`", schema: connectJSON("integer", "int64", "io.debezium.time.MicroTimestamp"), values: jsonLongs(same, year1, -1, year9999)},
	{row: "title `io.debezium.time.NanoTimestamp`", schema: connectJSON("integer", "int64", "io.debezium.time.NanoTimestamp"), values: []mappedValue{jsonBoth("-1", int64(-1), int64(-1)), jsonBoth("9223372036854775807", int64(9223372036854775), int64(math.MaxInt64)), jsonBoth("-9223372036854775808", int64(-9223372036854776), int64(math.MinInt64))}},
	{row: "title `io.debezium.time.ZonedTimestamp`", schema: `{"type":"string","title":"io.debezium.time.ZonedTimestamp"}`, values: jsonStamps},
	{row: "title `org.apache.kafka.connect.data.Decimal`", schema: `{"type":"number","title":"org.apache.kafka.connect.data.Decimal","connect.type":"bytes","connect.parameters":{"scale":"2","connect.decimal.precision":"10"}}`, values: []mappedValue{jsonText("-99999999.99", "-99999999.99"), jsonText("99999999.99", "99999999.99"), jsonText("-0.0", "0.00"), jsonText(`"/w=="`, "-0.01")}},
	{row: "`connect.type` `map` with keys that are no strings", schema: `{"type":"array","connect.type":"map","items":{"type":"object","required":["key","value"],"properties":{"key":{"type":"integer"},"value":{"type":"integer"}}}}`, values: []mappedValue{jsonText("[]", []any{}), jsonText(`[{"key":-1,"value":1}]`, []any{map[string]any{"key": int64(-1), "value": int64(1)}})}},
}

// inferCase has the columns that the values of the case make in a table without any.
func inferCase(rules Rules, c mappingCase) (*ValueSchema, error) {
	x := withKafka.InferJSON(nil)
	for _, v := range c.values {
		if err := x.Add(asProperty(v.data)); err != nil {
			return nil, err
		}
	}
	schema, lacks := x.Schema()
	if !lacks {
		return &ValueSchema{writer: jsonSchema{root: &node{kind: wireRecord}, plain: true}}, nil
	}
	return ParseJSONSchema(rules, schema)
}

// inLists puts v into n lists in lists.
func inLists(n int, v any) any {
	for range n {
		v = []any{v}
	}
	return v
}

var plainJSONCases = []mappingCase{
	{row: "`true`, `false`", values: []mappedValue{jsonText("true", true), jsonText("false", false), jsonText("null", nil)}},
	{row: "numbers without point and exponent, of 64 bits", values: append(jsonLongs(same, math.MinInt64, -1, 0, math.MaxInt64), jsonText("null", nil))},
	{row: "numbers, some with a point or an exponent", values: []mappedValue{jsonText("1", 1.0), jsonText("-0.0", minusZero), jsonText("1.7976931348623157e308", math.MaxFloat64), jsonText("null", nil)}},
	{row: "numbers, some of them integers of more than 64 bits", values: []mappedValue{jsonOr("9223372036854775808", "9223372036854775808", "a number 9223372036854775808"), jsonOr("1", "1", "a number 1"), jsonNull}},
	{row: "strings", values: append(jsonTexts, jsonText(`"9999-12-31"`, "9999-12-31"), jsonText("null", nil))},
	{row: "arrays of T", values: []mappedValue{jsonText("[]", []any{}), jsonText("[-9223372036854775808,null]", []any{int64(math.MinInt64), nil}), jsonText("null", nil)}},
	{row: "objects", values: []mappedValue{jsonText("{}", map[string]any{"a": nil}), jsonText(`{"a":-1}`, map[string]any{"a": int64(-1)}), jsonText("null", nil)}},
	{row: "of several types", values: []mappedValue{jsonOr(`""`, "", `a string ""`), jsonOr("-1", "-1", "a number -1"), jsonOr(`"`+megabyte+`"`, megabyte, `a string "`+megabyte+`"`), jsonNull}},
	{row: "deeper than 16 columns", lists: 15, values: []mappedValue{jsonBoth(strings.Repeat("[", 17)+"-1"+strings.Repeat("]", 17), inLists(15, "[[-1]]"), inLists(15, "an array [[-1]]")), jsonText("null", nil)}},
	{row: "`null`, `[]`, `{}`, and what holds nothing else", values: []mappedValue{jsonText("null", nil), jsonText("[]", nil), jsonText("{}", nil), jsonText("[{}]", nil)}},
}

func parsePlainCase(_ Rules, c mappingCase) (*ValueSchema, error) {
	if c.schema == "string" {
		return StringValue(), nil
	}
	return BytesValue(), nil
}

var plainCases = []mappingCase{
	{row: "`string`", schema: "string", values: []mappedValue{{want: ""}, {data: []byte("a\x00é😀"), want: "a\x00é😀"}, {data: []byte(megabyte), want: megabyte}}},
	{row: "`bytes`", schema: "bytes", values: []mappedValue{{want: "0x"}, {data: []byte("\x00\xff"), want: "0x00ff"}, {data: []byte(megabyte), want: binaryText(megabyte)}}},
}
