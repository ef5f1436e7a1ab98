package parquetio

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/arrow-go/v18/parquet/variant"
	"github.com/apache/iceberg-go"
	"github.com/google/go-cmp/cmp"
)

var variants = Rules{Version: MappingVersion, Nanos: true, Variant: true}

// columnIn returns a column of a file that was written and read.
func columnIn(t *testing.T, r *rig, name string) arrow.Array {
	t.Helper()
	f := writeFile(t, r.table, WriterConfig{}, finish(t, r.builder))
	reader, err := file.NewParquetReader(bytes.NewReader(bytes.Join(f.Body, nil)), file.WithReadProps(parquet.NewReaderProperties(memory.DefaultAllocator)))
	if err != nil {
		t.Fatal(err)
	}
	in, err := pqarrow.NewFileReader(reader, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	table, err := in.ReadTable(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(table.Release)
	return table.Column(table.Schema().FieldIndices(name)[0]).Data().Chunk(0)
}

// variantsOf returns the values of a column of variants, each as its JSON.
func variantsOf(t *testing.T, r *rig, name string) (texts []string) {
	t.Helper()
	a, ok := columnIn(t, r, name).(*extensions.VariantArray)
	if !ok {
		t.Fatalf("column %s is %s", name, columnIn(t, r, name).DataType())
	}
	for i := range a.Len() {
		texts = append(texts, variantText(t, a, i))
	}
	return texts
}

func variantText(t *testing.T, a *extensions.VariantArray, i int) string {
	t.Helper()
	if a.IsNull(i) {
		return "NULL"
	}
	v, err := a.Value(i)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(plainVariant(t, v))
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s %s", kindOf(text[0]), text)
}

// plainVariant returns what json.Marshal writes as the variant, of which arrow-go writes [] as null.
func plainVariant(t *testing.T, v variant.Value) any {
	switch x := v.Value().(type) {
	case variant.ArrayValue:
		out := make([]any, 0)
		for item := range x.Values() {
			out = append(out, plainVariant(t, item))
		}
		return out
	case variant.ObjectValue:
		out := map[string]any{}
		for name, item := range x.Values() {
			out[name] = plainVariant(t, item)
		}
		return out
	case float64:
		if x == 0 && math.Signbit(x) {
			return json.Number("-0.0")
		}
	case variant.DecimalValue[decimal.Decimal128]:
		return json.Number(decimal128.Num(x.Value.(decimal.Decimal128)).BigInt().String())
	}
	return v.Value()
}

// What has no column of its own is a variant of its JSON, with the numbers that it has, whatever
// wrote it and wherever it lies; null is NULL.
func TestValuesWithoutAColumnAreVariants(t *testing.T) {
	v, err := ParseJSONSchema(variants, `{"type":"object","properties":{"x":{}}}`)
	if err != nil {
		t.Fatal(err)
	}
	r := rigOf(t, v)
	long := strings.Repeat("é", 1<<20)
	many := make([]string, 100) // the reader of arrow-go 18.8 panics at more than about 120; end-to-end tests have them
	for i := range many {
		many[i] = fmt.Sprintf(`"k%03d":%d`, i, i)
	}
	deep := strings.Repeat("[", 200) + strings.Repeat("]", 200)
	tests := []struct{ json, want string }{
		{`null`, "NULL"},
		{`true`, "a boolean true"},
		{`0`, "a number 0"},
		{`-128`, "a number -128"},
		{`32767`, "a number 32767"},
		{`-2147483648`, "a number -2147483648"},
		{`9223372036854775807`, "a number 9223372036854775807"},
		{`-9223372036854775808`, "a number -9223372036854775808"},
		{`9223372036854775808`, "a number 9223372036854775808"},
		{`-99999999999999999999999999999999999999`, "a number -99999999999999999999999999999999999999"},
		{`100000000000000000000000000000000000000`, "a number 1e+38"},
		{`-0.0`, "a number -0.0"},
		{`1.5e3`, "a number 1500"},
		{`1e400`, `a string "1e400"`},
		{`""`, `a string ""`},
		{`"a\u00e9\n\ud83d\ude00"`, `a string "aé\n😀"`},
		{`"` + long + `"`, `a string "` + long + `"`},
		{`[]`, "an array []"},
		{`{}`, "an object {}"},
		{` [ 1 , "a" , null , { "b" : [ ] } ] `, `an array [1,"a",null,{"b":[]}]`},
		{`{"b":1,"a":{"b":2,"é":false}}`, `an object {"a":{"b":2,"é":false},"b":1}`},
		{`{"a":1,"b":[3],"a":"last"}`, `an object {"a":"last","b":[3]}`},
		{`{` + strings.Join(many, ",") + `}`, `an object {` + strings.Join(many, ",") + `}`},
		{deep, "an array " + deep},
	}
	var want []string
	for _, test := range tests {
		r.append([]byte(`{"x":` + test.json + `}`))
		want = append(want, test.want)
	}
	if diff := cmp.Diff(want, variantsOf(t, r, "x")); diff != "" {
		t.Error(diff)
	}
}

// Unions of several types and records inside themselves are variants, in lists, maps and structs,
// too; so are the messages that are JSON.
func TestVariantsOfEveryFormat(t *testing.T) {
	const schema = `{"type":"record","name":"R","fields":[
		{"name":"u","type":["null","int","string",{"type":"fixed","name":"F","size":2}]},
		{"name":"self","type":["null","R"]},
		{"name":"l","type":{"type":"array","items":["int","string"]}},
		{"name":"s","type":{"type":"record","name":"S","fields":[{"name":"u","type":["boolean","double"]}]}}]}`
	v, err := ParseAvro(variants, schema)
	if err != nil {
		t.Fatal(err)
	}
	empty := cat(long(0), long(0), long(0), long(0), []byte{1})
	r := rigOf(t, v)
	r.append(cat(long(2), text("x"), long(1), empty, long(2), long(0), long(7), long(1), text("y"), long(0), long(1), double(-0.5)), empty)
	b := finish(t, r.builder)
	defer b.Release()
	at := func(name string) arrow.Array { return b.Column(b.Schema().FieldIndices(name)[0]) }
	var got []string
	for _, a := range []arrow.Array{at("u"), at("self"), at("l").(*array.List).ListValues(), at("s").(*array.Struct).Field(0)} {
		for i := range a.Len() {
			got = append(got, variantText(t, a.(*extensions.VariantArray), i))
		}
	}
	want := []string{`a string "x"`, "NULL", `an object {"l":[],"s":{"u":true},"self":null,"u":null}`, "NULL", "a number 7", `a string "y"`, "a number -0.5", "a boolean true"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	const proto = `syntax = "proto3"; import "google/protobuf/struct.proto"; message R { google.protobuf.Struct s = 1; R r = 2; repeated google.protobuf.Value l = 3; }`
	if v, err = ParseProtobuf(variants, proto, ""); err != nil {
		t.Fatal(err)
	}
	r = rigOf(t, v)
	r.append([]byte{0x12, 0x02, 0x1a, 0x00}) // r { l {} }
	if got := variantsOf(t, r, "r"); len(got) != 1 || !strings.HasPrefix(got[0], `an object {"l":[`) {
		t.Errorf("recursive message %q", got)
	}
}

// A variant that readers would refuse for its size makes the record a bad one, and leaves nothing of it
// behind.
func TestVariantThatIsTooLargeIsRefused(t *testing.T) {
	v, err := ParseJSONSchema(variants, `{"type":"object","properties":{"x":{}}}`)
	if err != nil {
		t.Fatal(err)
	}
	r := rigOf(t, v)
	err = r.builder.Append(r.decoder, []byte(`{"x":["`+strings.Repeat("a", maxVariantBytes)+`"]}`), RecordMeta{})
	if err == nil || !strings.Contains(err.Error(), "field x") || !strings.Contains(err.Error(), reasonVariant) {
		t.Errorf("error %v", err)
	}
	r.append([]byte(`{"x":1}`))
	if diff := cmp.Diff([]string{"a number 1"}, variantsOf(t, r, "x")); diff != "" {
		t.Error(diff)
	}
}

// An engine that has no variants, as the topic says, gets JSON text.
func TestEngineWithoutVariantsGetsText(t *testing.T) {
	v, err := ParseJSONSchema(variants, `{"type":"object","properties":{"x":{}}}`)
	if err != nil {
		t.Fatal(err)
	}
	table, err := Mapping{Engines: Engines{"athena"}}.TableSchema(v)
	if err != nil {
		t.Fatal(err)
	}
	if f := table.Field(0); !f.Type.Equals(iceberg.PrimitiveTypes.String) {
		t.Errorf("column %s", f)
	}
	if _, err := (Mapping{Engines: Engines{"athena"}}).Compile(v, table); err != nil {
		t.Error(err)
	}
}
