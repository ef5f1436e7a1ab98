package parquetio

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/tabletopic/tabletopic/parquetio/parquetiotest"
)

func mustProtobuf(t testing.TB, schema string, references ...Reference) *ValueSchema {
	t.Helper()
	v, err := ParseProtobuf(NewRules(), schema, "", references...)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Fields of a message, encoded by hand.

func varintField(number protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), v)
}

func bytesField(number protowire.Number, parts ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), cat(parts...))
}

func textField(number protowire.Number, s string) []byte { return bytesField(number, []byte(s)) }

// one3 is a proto3 schema with one message of these fields.
func one3(fields string, more ...string) string {
	return `syntax = "proto3"; import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto"; import "google/protobuf/wrappers.proto";
		import "google/protobuf/struct.proto"; import "google/protobuf/any.proto"; import "google/protobuf/empty.proto";
		message R { ` + fields + ` } enum E { ZERO = 0; ONE = 1; } ` + strings.Join(more, " ")
}

// Every Protobuf type has its column, at its least and greatest values too.
func TestProtobufTypeMapping(t *testing.T) {
	fixed32 := func(v uint32) []byte {
		return protowire.AppendFixed32(protowire.AppendTag(nil, 1, protowire.Fixed32Type), v)
	}
	fixed64 := func(v uint64) []byte {
		return protowire.AppendFixed64(protowire.AppendTag(nil, 1, protowire.Fixed64Type), v)
	}
	zigzag := protowire.EncodeZigZag
	minus := func(v int64) uint64 { return uint64(v) }
	big := strings.Repeat("x", 1<<20)
	tests := []struct {
		field string // before "x = 1"
		typ   string
		data  []byte
		want  any
	}{
		{"bool", "boolean", varintField(1, 1), true},
		{"int32", "int", varintField(1, minus(math.MinInt32)), int64(math.MinInt32)},
		{"int32", "int", varintField(1, math.MaxInt32), int64(math.MaxInt32)},
		{"sint32", "int", varintField(1, zigzag(math.MinInt32)), int64(math.MinInt32)},
		{"sfixed32", "int", fixed32(1 << 31), int64(math.MinInt32)},
		{"uint32", "long", varintField(1, math.MaxUint32), int64(math.MaxUint32)},
		{"fixed32", "long", fixed32(math.MaxUint32), int64(math.MaxUint32)},
		{"int64", "long", varintField(1, 1<<63), int64(math.MinInt64)},
		{"sint64", "long", varintField(1, zigzag(math.MinInt64)), int64(math.MinInt64)},
		{"sfixed64", "long", fixed64(math.MaxInt64), int64(math.MaxInt64)},
		{"float", "float", fixed32(math.Float32bits(1.5)), 1.5},
		{"float", "float", fixed32(math.Float32bits(float32(math.NaN()))), "NaN"},
		{"double", "double", fixed64(math.Float64bits(math.Inf(-1))), math.Inf(-1)},
		{"double", "double", fixed64(1 << 63), math.Copysign(0, -1)},
		{"string", "string", textField(1, big), big},
		{"string", "string", textField(1, ""), ""},
		{"bytes", "binary", textField(1, "\xff\x00"), "0xff00"},
		{"E", "string", varintField(1, 1), "ONE"},
		{"E", "string", varintField(1, 7), "7"},
		{"E", "string", varintField(1, minus(-7)), "-7"},
		{"repeated int32", "list<int>", cat(varintField(1, 1), bytesField(1, []byte{2, 3}), varintField(1, 4)), []any{int64(1), int64(2), int64(3), int64(4)}},
		{"repeated string", "list<string>", nil, []any{}},
		{"map<string, int64>", "map<string, long>", bytesField(1, textField(1, "k"), varintField(2, 5)), map[string]any{"k": int64(5)}},
		{"map<bool, E>", "map<boolean, string>", bytesField(1, varintField(1, 1)), map[string]any{"true": "ZERO"}},
		{"map<uint64, string>", "map<decimal(20, 0), string>", bytesField(1, varintField(1, math.MaxUint64), textField(2, "v")), map[string]any{"18446744073709551615": "v"}},
		{"google.protobuf.Timestamp", "timestamptz", bytesField(1, varintField(1, minus(-1)), varintField(2, 999_999_999)), int64(-1)},
		{"google.protobuf.Timestamp", "timestamptz", bytesField(1, varintField(1, 253_402_300_799), varintField(2, 999_999_000)), int64(253_402_300_799_999_999)},
		{"google.protobuf.Timestamp", "timestamptz", bytesField(1, varintField(1, minus(-62_135_596_800))), int64(-62_135_596_800_000_000)},
		{"google.protobuf.Timestamp", "timestamptz", bytesField(1), int64(0)},
		{"google.protobuf.Duration", "long", bytesField(1, varintField(1, minus(-1)), varintField(2, minus(-1))), int64(-1_000_001)},
		{"google.protobuf.Int64Value", "long", bytesField(1, varintField(1, 7)), int64(7)},
		{"google.protobuf.Int64Value", "long", bytesField(1), int64(0)},
		{"google.protobuf.StringValue", "string", nil, nil},
		{"google.protobuf.UInt64Value", "decimal(20, 0)", bytesField(1, varintField(1, math.MaxUint64)), "18446744073709551615"},
		{"repeated google.protobuf.Int32Value", "list<int>", cat(bytesField(1, varintField(1, 7)), bytesField(1)), []any{int64(7), int64(0)}},
		{"google.protobuf.Any", "struct<1: type_url: required string, 2: value: required binary>", bytesField(1, textField(1, "t"), textField(2, "v")), map[string]any{"type_url": "t", "value": "0x76"}},
		{"google.protobuf.Empty", "struct<1: _present: required boolean>", bytesField(1), map[string]any{"_present": true}},
		{"google.protobuf.Struct", "string", bytesField(1, bytesField(1, textField(1, "k"), bytesField(2, textField(3, "v")))), `{"k":"v"}`},
		{"google.protobuf.Value", "string", bytesField(1, varintField(1, 0)), "null"},
	}
	for _, test := range tests {
		v := mustProtobuf(t, one3(test.field+" x = 1;"))
		r := rigOf(t, v)
		typ := strings.NewReplacer("2: _present", "1: _present", "2: type_url", "1: type_url", "3: value", "2: value").Replace(v.Fields[0].Type.String())
		if typ != test.typ {
			t.Errorf("%s: column %s, want %s", test.field, typ, test.typ)
		}
		r.append(test.data)
		if got := r.rows()[0]["x"]; !cmp.Equal(got, test.want) {
			t.Errorf("%s: value %v, want %v", test.field, got, test.want)
		}
	}
}

// What has presence and is not set is NULL; what has none has its zero value (in proto2, in
// proto3 and in editions).
func TestUnsetProtobufFields(t *testing.T) {
	tests := []struct {
		schema string
		want   map[string]any
	}{
		{one3("optional int64 n = 1; int64 m = 2; M s = 3; oneof o { int64 a = 4; string b = 5; } E e = 6; bytes y = 7; bool t = 8; double d = 9; uint64 u = 10;", "message M {}"),
			map[string]any{"n": nil, "m": int64(0), "s": nil, "a": nil, "b": nil, "e": "ZERO", "y": "0x", "t": false, "d": float64(0), "u": "0"}},
		{`syntax = "proto2"; message R { optional int32 a = 1 [default = 5]; optional string b = 2; optional E e = 3; repeated int32 l = 4; } enum E { FIVE = 5; }`,
			map[string]any{"a": nil, "b": nil, "e": nil, "l": []any{}}},
		{`edition = "2023"; message R { int32 a = 1; int32 b = 2 [features.field_presence = IMPLICIT]; }`,
			map[string]any{"a": nil, "b": int64(0)}},
	}
	for _, test := range tests {
		r := rigOf(t, mustProtobuf(t, test.schema))
		r.append([]byte{})
		if diff := cmp.Diff(test.want, r.rows()[0]); diff != "" {
			t.Errorf("%s: %s", test.schema, diff)
		}
	}
	// Set to zero is not unset.
	r := rigOf(t, mustProtobuf(t, one3("optional int64 n = 1; oneof o { int64 a = 4; string b = 5; }")))
	r.append(cat(varintField(1, 0), varintField(4, 0)))
	if diff := cmp.Diff(map[string]any{"n": int64(0), "a": int64(0), "b": nil}, r.rows()[0]); diff != "" {
		t.Error(diff)
	}
}

// Arms of one message type are columns of their own, and an empty one is not lost.
func TestOneofArmsOfOneType(t *testing.T) {
	r := rigOf(t, mustProtobuf(t, one3("oneof v { T a = 1; T b = 2; F c = 3; F d = 4; }", "message T {} message F { int32 x = 1; }")))
	r.append(bytesField(1), bytesField(2), bytesField(4, varintField(1, 5)), cat(bytesField(3, varintField(1, 1)), bytesField(2), bytesField(4)))
	present, row := map[string]any{PresentField: true}, func(name string, v any) map[string]any {
		out := map[string]any{"a": nil, "b": nil, "c": nil, "d": nil}
		out[name] = v
		return out
	}
	want := []map[string]any{row("a", present), row("b", present), row("d", map[string]any{"x": int64(5)}), row("d", map[string]any{"x": int64(0)})}
	if diff := cmp.Diff(want, r.rows()); diff != "" {
		t.Error(diff)
	}
}

// An arm without fields gets one later: rows before it keep that they were there.
func TestEmptyMessageGetsAField(t *testing.T) {
	v1 := mustProtobuf(t, one3("oneof e { Created c = 1; Deleted d = 2; }", "message Created {} message Deleted {}"))
	v2 := mustProtobuf(t, one3("oneof e { Created c = 1; Deleted d = 2; }", "message Created { string by = 1; } message Deleted {}"))
	rows := protobufRows(t, []*ValueSchema{v1, v2}, bytesField(1), bytesField(1, textField(1, "me")), bytesField(2), bytesField(1))
	want := []map[string]any{
		{"c": map[string]any{PresentField: true, "by": nil}, "d": nil},
		{"c": map[string]any{PresentField: nil, "by": "me"}, "d": nil},
		{"c": nil, "d": map[string]any{PresentField: true}},
		{"c": map[string]any{PresentField: nil, "by": ""}, "d": nil},
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Error(diff)
	}
}

// protobufRows decodes payloads by schemas in turn into one table that was evolved for each.
func protobufRows(t *testing.T, schemas []*ValueSchema, payloads ...[]byte) []map[string]any {
	t.Helper()
	table := iceberg.NewSchema(0)
	for _, v := range schemas {
		next, _, err := withKafka.Evolve(table, table.HighestFieldID(), v)
		if err != nil {
			t.Fatal(err)
		}
		table = next
	}
	ids := map[int]bool{}
	cols, _ := layout(table)
	for i := range cols {
		if ids[cols[i].id] {
			t.Fatalf("id %d is used twice in\n%s", cols[i].id, table)
		}
		ids[cols[i].id] = true
	}
	b, err := NewBuilder(table, "_kafka")
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range payloads {
		d, err := withKafka.Compile(schemas[i%len(schemas)], table)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Append(d, p, RecordMeta{}); err != nil {
			t.Fatal(err)
		}
	}
	return readFile(t, writeFile(t, table, WriterConfig{}, finish(t, b)))
}

// Fields that are added to a struct in a struct, in a list and in a map become columns, with
// ids of their own, and the first record that has them is whole.
func TestProtobufFieldsAddedInside(t *testing.T) {
	v1 := mustProtobuf(t, one3("int32 order_id = 1; C customer = 2; repeated I items = 3; map<string, M> meta = 4; int64 last = 5;",
		"message C { int32 customer_id = 1; } message I { int32 product_id = 1; } message M { string k = 1; }"))
	v2 := mustProtobuf(t, one3("int64 order_id = 1; C customer = 2; repeated I items = 3; map<string, M> meta = 4; int64 last = 5;",
		"message C { int32 customer_id = 1; D details = 2; } message D { string name = 1; string email = 2; } message I { int32 product_id = 1; optional int32 qty = 2; } message M { string k = 1; string v = 2; }"))
	record := func(details, qty, value []byte) []byte {
		return cat(varintField(1, 1), bytesField(2, varintField(1, 2), details), bytesField(3, varintField(1, 3), qty), bytesField(4, textField(1, "a"), bytesField(2, textField(1, "b"), value)), varintField(5, 6))
	}
	rows := protobufRows(t, []*ValueSchema{v2, v1}, record(bytesField(2, textField(1, "n"), textField(2, "e")), varintField(2, 4), textField(2, "c")), record(nil, nil, nil))
	row := func(details, qty, value any) map[string]any {
		return map[string]any{"order_id": int64(1), "customer": map[string]any{"customer_id": int64(2), "details": details},
			"items": []any{map[string]any{"product_id": int64(3), "qty": qty}}, "meta": map[string]any{"a": map[string]any{"k": "b", "v": value}}, "last": int64(6)}
	}
	if diff := cmp.Diff([]map[string]any{row(map[string]any{"name": "n", "email": "e"}, int64(4), "c"), row(nil, nil, nil)}, rows); diff != "" {
		t.Error(diff)
	}
}

// A message inside itself is JSON from the second level on, and google.protobuf.Struct is JSON.
func TestRecursiveProtobufMessages(t *testing.T) {
	r := rigOf(t, mustProtobuf(t, one3("string name = 1; repeated R children = 2; R parent = 3; google.protobuf.Struct details = 4;")))
	value := bytesField(1, textField(1, "list"), bytesField(2, bytesField(6, bytesField(1, protowire.AppendFixed64(protowire.AppendTag(nil, 2, protowire.Fixed64Type), math.Float64bits(1.5))), bytesField(1, varintField(4, 1)))))
	child := cat(textField(1, "c"), bytesField(2, textField(1, "d\"")))
	r.append(cat(textField(1, "root"), bytesField(2, child), bytesField(3), bytesField(4, value), bytesField(2)))
	empty := `{"name":"","children":[]}`
	want := map[string]any{"name": "root", "details": `{"list":[1.5,true]}`, "parent": empty,
		"children": []any{`{"name":"c","children":[{"name":"d\"","children":[]}]}`, empty}}
	if diff := cmp.Diff(want, r.rows()[0]); diff != "" {
		t.Error(diff)
	}
}

// The last of several occurrences counts, messages are merged, and entries of maps replaced
// (Protobuf spec, "Last One Wins").
func TestRepeatedOccurrences(t *testing.T) {
	const schema = `syntax = "proto3"; import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";
		message R { int32 n = 1; M m = 2; map<string, M> e = 3; google.protobuf.Timestamp t = 4; google.protobuf.StringValue s = 5; oneof o { M a = 6; R b = 7; } map<int32, int32> i = 8; }
		message M { int32 x = 1; repeated int32 l = 2; M2 in = 3; } message M2 { string p = 1; string q = 2; }`
	r := rigOf(t, mustProtobuf(t, schema))
	entry := func(key string, value ...[]byte) []byte {
		return bytesField(3, textField(1, key), bytesField(2, value...))
	}
	number := func(k, v uint64) []byte { return bytesField(8, varintField(1, k), varintField(2, v)) }
	r.append(cat(varintField(1, 1), bytesField(2, varintField(1, 1), varintField(2, 1), bytesField(3, textField(1, "p"))),
		entry("k", varintField(1, 1)), entry("z"), entry("k", varintField(2, 9)), entry("k", varintField(1, 3)),
		bytesField(4, varintField(1, 5)), varintField(1, 2), bytesField(2, varintField(2, 2), bytesField(3, textField(2, "q")), varintField(1, 0)), bytesField(4, varintField(2, 7000)),
		bytesField(5, textField(1, "s")), bytesField(5), bytesField(6, varintField(1, 1)), bytesField(7), bytesField(6, varintField(2, 4)),
		number(2, 1), number(1, 1), number(2, 3)))
	m := func(x int64, l []any, in any) map[string]any { return map[string]any{"x": x, "l": l, "in": in} }
	want := map[string]any{"n": int64(2), "m": m(0, []any{int64(1), int64(2)}, map[string]any{"p": "p", "q": "q"}),
		"e": map[string]any{"z": m(0, []any{}, nil), "k": m(3, []any{}, nil)}, "t": int64(5_000_007), "s": "s", "a": m(0, []any{int64(4)}, nil), "b": nil,
		"i": map[string]any{"1": int64(1), "2": int64(3)}}
	if diff := cmp.Diff(want, r.rows()[0]); diff != "" {
		t.Error(diff)
	}
}

// Each kind of damage is refused with a reason, and the rows around it are whole.
func TestAppendRefusesDamagedProtobuf(t *testing.T) {
	const message = "message M { string s = 1; }"
	tests := []struct {
		schema  string
		good    []byte
		bad     []byte
		message string
	}{
		{one3("int32 x = 1;"), varintField(1, 1), []byte{0x08}, reasonShort},
		{one3("int32 x = 1;"), varintField(1, 1), []byte{0x08, 0x80}, reasonShort},
		{one3("int32 x = 1;"), varintField(1, 1), append([]byte{0x08}, slices.Repeat([]byte{0xff}, 10)...), reasonLong},
		{one3("int32 x = 1;"), nil, []byte{0x00, 0x01}, reasonTag},
		{one3("int32 x = 1;"), nil, cat(protowire.AppendVarint(nil, 1<<32), []byte{1}), reasonTag},
		{one3("int32 x = 1;"), nil, []byte{0x0c}, reasonField},
		{one3("int32 x = 1;"), nil, []byte{0x0e}, reasonField},
		{one3("int32 x = 1;"), nil, []byte{0x13, 0x08, 0x01}, reasonField},
		{one3("fixed32 x = 1;"), nil, []byte{0x0d, 1, 2, 3}, reasonShort},
		{one3("double x = 1;"), nil, []byte{0x09, 1, 2, 3}, reasonShort},
		{one3("string x = 1;"), textField(1, "ä"), textField(1, "\xff"), reasonUTF8},
		{one3("string x = 1;"), nil, cat(textField(1, "\xff"), textField(1, "ok")), reasonUTF8},
		{one3("string x = 1;"), nil, []byte{0x0a, 2, 'a'}, reasonShort},
		{one3("string x = 1;"), nil, []byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, reasonShort},
		{one3("repeated int32 x = 1;"), nil, bytesField(1, []byte{1, 0x80}), reasonShort},
		{one3("map<string, int32> x = 1;"), nil, bytesField(1, textField(1, "\xff")), reasonUTF8},
		{one3("M x = 1;", message), nil, bytesField(1, textField(1, "\xff")), "field x.s"},
		{one3("oneof o { M x = 1; int32 y = 2; }", message), nil, cat(bytesField(1, []byte{0x0a}), varintField(2, 1)), reasonShort},
		{one3("oneof o { google.protobuf.Struct x = 1; int32 y = 2; }"), nil, cat(bytesField(1, []byte{0x0a}), varintField(2, 1)), "malformed"},
		{one3("google.protobuf.Struct x = 1;"), bytesField(1, bytesField(1, textField(1, "k"))), bytesField(1, bytesField(1, textField(1, "k"), varintField(1, 4))), "the decoder fails: "},
		{one3("google.protobuf.Timestamp x = 1;"), nil, bytesField(1, varintField(1, math.MaxInt64/1_000_000)), reasonMicros},
		{one3("google.protobuf.Timestamp x = 1;"), nil, bytesField(1, []byte{0x08}), reasonField},
		{one3("google.protobuf.Int32Value x = 1;"), nil, bytesField(1, []byte{0x08}), reasonShort},
		{one3("R x = 1; int32 y = 2;"), bytesField(1, varintField(2, 1)), bytesField(1, []byte{0x10}), "malformed"},
		{`syntax = "proto2"; message R { required int32 x = 1; }`, varintField(1, 0), nil, reasonRequired},
		{`syntax = "proto2"; message R { optional string x = 1; }`, nil, textField(1, "\xff"), reasonUTF8},
		{`syntax = "proto2"; message R { optional group X = 1 { required int32 y = 2; } }`, cat([]byte{0x0b}, varintField(2, 1), []byte{0x0c}), []byte{0x0b, 0x0c}, "field x.y"},
		{`syntax = "proto2"; message R { optional group X = 1 { optional int32 y = 2; } }`, []byte{0x0b, 0x0c}, []byte{0x0b, 0x14}, reasonField},
	}
	for i, test := range tests {
		t.Run(fmt.Sprint(i, test.message), func(t *testing.T) {
			r := rigOf(t, mustProtobuf(t, test.schema))
			r.append(test.good, test.good)
			want := r.rows()
			for range 2 {
				r.append(test.good)
				err := r.builder.Append(r.decoder, test.bad, RecordMeta{})
				var bad *DecodeError
				if !errors.As(err, &bad) || !strings.Contains(err.Error(), test.message) {
					t.Fatalf("error %v, want %q", err, test.message)
				}
			}
			if diff := cmp.Diff(want, r.rows()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The index path says which message a record is, nested ones included, and one message has one
// name however it is written.
func TestMessageIndexes(t *testing.T) {
	const schema = `syntax = "proto3"; package p; message A { int32 a = 1; } message B { message C { int32 c = 1; } message D { message E { int32 e = 1; } } }`
	tests := []struct {
		payload []byte
		name    string
		column  string
	}{
		{[]byte{0}, "p.A", "a"},
		{cat(long(1), long(0)), "p.A", "a"},
		{[]byte{0x82, 0x00, 0x80, 0x00}, "p.A", "a"},
		{cat(long(2), long(1), long(0)), "p.B.C", "c"},
		{cat(long(3), long(1), long(1), long(0)), "p.B.D.E", "e"},
	}
	for _, test := range tests {
		message, rest, err := SplitMessageIndexes(append(test.payload, "rest"...))
		if err != nil || string(rest) != "rest" {
			t.Fatalf("%x: rest %q, error %v", test.payload, rest, err)
		}
		if named, err := MessageIndexes(schema, test.name); err != nil || named != message {
			t.Errorf("%s: indexes %x, of the payload %x, error %v", test.name, named, message, err)
		}
		v, err := ParseProtobuf(NewRules(), schema, message)
		if err != nil || v.Fields[0].Name != test.column {
			t.Errorf("%s: columns %v, error %v", test.name, v, err)
		}
	}
	for _, bad := range [][]byte{nil, long(-1), long(33), long(1), cat(long(1), long(-1)), cat(long(1), long(1<<40)), {0x80}} {
		if message, _, err := SplitMessageIndexes(bad); err == nil {
			t.Errorf("%x was read as %x", bad, message)
		}
	}
	for _, name := range []string{"p.Z", "p.B.Z", "A", "", "p..A"} {
		if _, err := MessageIndexes(schema, name); err == nil {
			t.Errorf("message %q was found", name)
		}
	}
	if _, err := ParseProtobuf(NewRules(), schema, string(cat(long(1), long(2)))); err == nil {
		t.Error("the third of two messages was found")
	}
	if n := testing.AllocsPerRun(10, func() { SplitMessageIndexes([]byte{0, 1}) }); n > 0 {
		t.Errorf("%.0f allocations for the first message", n)
	}
}

// A schema is text or a descriptor, and imports its references by name.
func TestProtobufReferences(t *testing.T) {
	const common = `syntax = "proto3"; package c; import "deep/er.proto"; message M { d.D d = 1; }`
	const deeper = `syntax = "proto3"; package d; message D { int64 x = 1; }`
	const schema = `syntax = "proto3"; import "common.proto"; import "confluent/meta.proto"; message R { c.M m = 1 [(confluent.field_meta).doc = "d"]; }`
	references := []Reference{{"deep/er.proto", deeper}, {"common.proto", common}}
	text := mustProtobuf(t, schema, references...)
	file := text.writer.(protobufWriter).message.ParentFile()
	serialized := func(f protoreflect.FileDescriptor) string {
		b, err := proto.Marshal(protodesc.ToFileDescriptorProto(f))
		if err != nil {
			t.Fatal(err)
		}
		return base64.StdEncoding.EncodeToString(b)
	}
	references[1].Text = serialized(file.Imports().Get(0).FileDescriptor)
	if a, b := columns(text), columns(mustProtobuf(t, serialized(file), references...)); a != b || !strings.Contains(a, "x: required long") {
		t.Errorf("columns of the text:\n%s\nof the descriptor:\n%s", a, b)
	}
	for _, bad := range []string{"", "bad", `message R { int32 x = 1;`, `syntax = "proto3"; import "common.proto"; message R {}`, `syntax = "proto3";`, `syntax = "proto3"; import "/"; message R {}`,
		one3("int32 x = 1; int32 X = 2;"), one3("Z x = 1;"), strings.Repeat("message A {", 100), `syntax = "proto3"; message ` + strings.Repeat("A", 300) + ` {}`} {
		if v, err := ParseProtobuf(NewRules(), bad, ""); err == nil {
			t.Errorf("%.80s was accepted: %v", bad, v.Fields)
		}
	}
}

// A record costs no more than in proportion to its size, or is refused.
func TestHostileProtobuf(t *testing.T) {
	deep := func(levels int) []byte {
		p := []byte{}
		for range levels {
			p = bytesField(1, p)
		}
		return p
	}
	r := rigOf(t, mustProtobuf(t, one3("R x = 1; int32 y = 2;")))
	r.append(deep(maxProtobufDepth - 1))
	var bad *DecodeError
	if err := r.builder.Append(r.decoder, deep(maxProtobufDepth), RecordMeta{}); !errors.As(err, &bad) {
		t.Errorf("error %v of a record that is nested too deep", err)
	}
	r = rigOf(t, mustProtobuf(t, one3("repeated R x = 1;")))
	r.append(bytesField(1, slices.Repeat([]byte{0x0a, 0}, 1000)))
	if err := r.builder.Append(r.decoder, bytesField(1, slices.Repeat([]byte{0x0a, 0}, maxProtobufJSON/2+1)), RecordMeta{}); !errors.As(err, &bad) || !strings.Contains(bad.Reason, "4 MiB") {
		t.Errorf("error %v of a record that is too much JSON", err)
	}
	var fields strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&fields, "uint64 f%d = %d; ", i, i+1)
	}
	wide := rigOf(t, mustProtobuf(t, one3("repeated W w = 1; oneof o { W a = 2; W b = 3; }", "message W { "+fields.String()+" }")))
	if err := wide.builder.Append(wide.decoder, slices.Repeat([]byte{0x0a, 0}, 100_000), RecordMeta{}); !errors.As(err, &bad) || bad.Reason != reasonMany {
		t.Errorf("error %v of a record that fills too many columns", err)
	}
	if err := wide.builder.Append(wide.decoder, slices.Repeat([]byte{0x12, 0, 0x1a, 0}, 100_000), RecordMeta{}); !errors.As(err, &bad) || bad.Reason != reasonMany {
		t.Errorf("error %v of a record that changes its mind too often", err)
	}
}

// Decoding allocates nothing per row once the buffers have their size.
func TestProtobufAppendDoesNotAllocate(t *testing.T) {
	r := rigOf(t, mustProtobuf(t, one3("int64 a = 1; string b = 2; M m = 3; repeated int32 l = 4; map<string, string> p = 5; google.protobuf.Timestamp t = 6; E e = 7; oneof o { M x = 8; string y = 9; }", "message M { string s = 1; double d = 2; }")))
	pair := func(k string) []byte { return bytesField(5, textField(1, k), textField(2, "v")) }
	payload := cat(varintField(1, 1), textField(2, "b"), bytesField(3, textField(1, "s")), bytesField(4, []byte{1, 2, 3}), pair("b"), pair("a"), pair("c"), bytesField(6, varintField(1, 5)), varintField(7, 1), textField(9, "y"))
	fill := func() {
		for range 2000 {
			r.append(payload)
		}
	}
	fill()
	finish(t, r.builder).Release()
	per := testing.AllocsPerRun(5, func() {
		fill()
		batch, err := r.builder.Finish()
		if err != nil {
			t.Fatal(err)
		}
		batch.Release()
	})
	if per/2000 > 0.15 {
		t.Errorf("%.0f allocations for 2000 rows", per)
	}
}

// unmarshalProtobuf reads a message with Google's decoder, which panics (google.golang.org/protobuf 1.36.12)
// where an entry of a map has a key, and another of a wire type that is not the key's.
func unmarshalProtobuf(payload []byte, m proto.Message) (panics bool, err error) {
	defer func() { panics = recover() != nil }()
	return false, proto.UnmarshalOptions{RecursionLimit: maxProtobufDepth, Resolver: noTypes}.Unmarshal(payload, m)
}

// Whatever the bytes are, Google's decoder and this one agree on whether they are a message
// and on its values, and no bytes make the columns disagree.
func FuzzProtobuf(f *testing.F) {
	const schema = `syntax = "proto3"; import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto"; import "google/protobuf/struct.proto";
		message R { int32 a = 1; optional uint64 b = 2; string c = 3; repeated sint64 d = 4; map<string, M> e = 5; map<int32, bool> f = 6;
			oneof o { M g = 7; string h = 8; R i = 9; google.protobuf.Timestamp j = 10; } repeated M k = 11; E l = 12; M m = 13;
			google.protobuf.StringValue n = 14; google.protobuf.Value p = 15; repeated google.protobuf.Timestamp q = 16; repeated string r = 17; float s = 18; repeated fixed32 t = 19; }
		message M { string x = 1; double y = 2; repeated R z = 3; bytes w = 4; M2 v = 5; } message M2 { bool u = 1; google.protobuf.Int32Value t = 2; map<bool, string> s = 3; }
		enum E { ZERO = 0; ONE = 1; }`
	const old = `syntax = "proto2"; message R { optional group G = 1 { optional int32 a = 2; repeated group H = 3 { optional bytes b = 4; } } optional sfixed64 c = 5; repeated E d = 6 [packed = true]; extensions 100 to 200; } enum E { A = 1; }`
	var rigs []*rig
	for _, s := range []string{schema, old} {
		rigs = append(rigs, rigOf(f, mustProtobuf(f, s)))
	}
	f.Add(cat(varintField(1, 1), bytesField(5, textField(1, "k"), bytesField(2, bytesField(3, bytesField(9)))), bytesField(5, textField(1, "k")), bytesField(7), textField(8, "h")))
	f.Add(cat(bytesField(10, varintField(1, 5)), bytesField(10, varintField(2, 5)), bytesField(13, bytesField(5, bytesField(2))), bytesField(15, bytesField(5, bytesField(1, textField(1, "k"))))))
	f.Add(cat([]byte{0x0b, 0x10, 1, 0x1b, 0x1c, 0x0c}, bytesField(6, []byte{1, 2}), bytesField(19, []byte{1, 2, 3, 4})))
	f.Fuzz(func(t *testing.T, payload []byte) {
		for _, r := range rigs {
			r.t = t
			m := dynamicpb.NewMessage(r.value.writer.(protobufWriter).message)
			panics, theirs := unmarshalProtobuf(payload, m)
			if panics {
				continue
			}
			ours := r.builder.Append(r.decoder, payload, RecordMeta{})
			if ours != nil && strings.Contains(ours.Error(), reasonMicros) {
				return
			}
			if (ours == nil) != (theirs == nil) {
				t.Fatalf("error %v, Google's decoder: %v", ours, theirs)
			}
			for _, i := range r.builder.top {
				if err := check(r.builder.cols, i, r.builder.rows); err != nil {
					t.Fatal(err)
				}
			}
			if ours != nil {
				continue
			}
			got, want := any(r.rows()[0]), any(parquetiotest.ProtobufRow(m))
			if diff := cmp.Diff(parquetiotest.Resolve(want, got), got); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}

// No schema text makes the parser panic, and what it accepts can be compiled and written.
func FuzzParseProtobuf(f *testing.F) {
	f.Add(one3("R x = 1; repeated E e = 2; map<int32, google.protobuf.Any> m = 3; oneof o { int32 a = 4; bytes b = 5; }"))
	f.Add(`syntax = "proto2"; message R { optional group G = 1 { required int32 a = 2 [default = 3]; } extensions 100 to max; } extend R { optional R r = 100; }`)
	f.Add(`edition = "2023"; option features.field_presence = IMPLICIT; message R { R r = 1 [features.message_encoding = DELIMITED]; }`)
	f.Fuzz(func(t *testing.T, schema string) {
		v, err := ParseProtobuf(NewRules(), schema, "")
		if err != nil {
			return
		}
		table, err := withKafka.TableSchema(v)
		if err != nil {
			return
		}
		d, err := withKafka.Compile(v, table)
		if err != nil {
			t.Fatalf("%v\n%s", err, schema)
		}
		b, err := NewBuilder(table, "_kafka")
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Append(d, []byte{}, RecordMeta{}); err != nil && !strings.Contains(err.Error(), reasonRequired) {
			t.Fatal(err)
		}
		writeFile(t, table, WriterConfig{}, finish(t, b))
	})
}

// A message that becomes one value may come in parts, each a message by itself. Bytes that are a
// message only when they are put together are refused, as Google's decoder does.
func TestProtobufPartsAreMessages(t *testing.T) {
	r := rigOf(t, mustProtobuf(t, one3("google.protobuf.Timestamp t = 1;")))
	seconds := varintField(1, 300)
	for cut := 1; cut < len(seconds); cut++ {
		var bad *DecodeError
		if err := r.builder.Append(r.decoder, cat(bytesField(1, seconds[:cut]), bytesField(1, seconds[cut:])), RecordMeta{}); !errors.As(err, &bad) || bad.Reason != reasonField {
			t.Errorf("cut at %d: error %v", cut, err)
		}
	}
	r.append(cat(bytesField(1, seconds), bytesField(1, varintField(2, 5000))))
	if rows := r.rows(); len(rows) != 1 || rows[0]["t"] != int64(300_000_005) {
		t.Errorf("rows %v", rows)
	}
}
