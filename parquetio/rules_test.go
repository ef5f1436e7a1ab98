package parquetio

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"
)

// What a table says of its rules is read as it was written, and nothing that this release does not
// know is taken for something else.
func TestRulesAreReadAsTheyWereWritten(t *testing.T) {
	for _, want := range []Rules{{Version: 1}, NewRules(), {Version: 2, Depth: 3}, {Version: 2, RefuseRecursion: true, ZeroAsNull: true}, {Version: 1, Depth: MaxRecursion, ZeroAsNull: true, Uint64AsString: true}, {Version: 2, Nanos: true}, {Version: 3, Nanos: true, Variant: true, Defaults: true}} {
		if got, err := ParseRules(want.String()); err != nil || got != want {
			t.Errorf("%s: %+v, %v", want, got, err)
		}
	}
	if got, err := ParseRules(""); err != nil || got != (Rules{Version: 1}) {
		t.Errorf("a table without the property: %+v, %v", got, err)
	}
	for _, bad := range []string{"4", "0", "x", "1;", "2;recursion=depth:0", "2;recursion=depth:9", "2;recursion=", "2;zero=0", "2;other=1"} {
		if got, err := ParseRules(bad); err == nil {
			t.Errorf("%q is taken for %+v", bad, got)
		}
	}
}

// pbRig is newRig for a Protobuf schema under some rules, and append for messages as text.
func pbRig(t *testing.T, rules Rules, schema string, messages ...string) []map[string]any {
	t.Helper()
	v, err := ParseProtobuf(rules, schema, "")
	if err != nil {
		t.Fatal(err)
	}
	r := rigOf(t, v)
	for _, text := range messages {
		m := dynamicpb.NewMessage(v.writer.(protobufWriter).message)
		if err := prototext.Unmarshal([]byte(text), m); err != nil {
			t.Fatal(err)
		}
		payload, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		r.append(payload)
	}
	return r.rows()
}

// A record inside itself becomes as many levels of columns as the rules say, and then text.
func TestRecursionIsUnfoldedToADepth(t *testing.T) {
	const node = `{"type":"record","name":"Node","fields":[{"name":"id","type":"int"},{"name":"next","type":["null","Node"]}]}`
	payload := cat(long(1), long(1), long(2), long(1), long(3), long(1), long(4), long(0))
	for depth, want := range map[int]any{
		0: `{"id":2,"next":{"id":3,"next":{"id":4,"next":null}}}`,
		1: map[string]any{"id": int64(2), "next": `{"id":3,"next":{"id":4,"next":null}}`},
		2: map[string]any{"id": int64(2), "next": map[string]any{"id": int64(3), "next": `{"id":4,"next":null}`}},
	} {
		v, err := ParseAvro(Rules{Version: 2, Depth: depth}, node)
		if err != nil {
			t.Fatal(err)
		}
		r := rigOf(t, v)
		r.append(payload)
		if diff := cmp.Diff(map[string]any{"id": int64(1), "next": want}, r.rows()[0]); diff != "" {
			t.Errorf("depth %d: %s", depth, diff)
		}
	}
	got := pbRig(t, Rules{Version: 2, Depth: 1}, `syntax = "proto3"; message Node { int32 id = 1; repeated Node kids = 2; }`, `id: 1 kids { id: 2 kids { id: 3 } }`)
	want := map[string]any{"id": int64(1), "kids": []any{map[string]any{"id": int64(2), "kids": []any{`{"id":3,"kids":[]}`}}}}
	if diff := cmp.Diff(want, got[0]); diff != "" {
		t.Error(diff)
	}
}

// Schemas with records inside themselves are refused where the rules say so, and no others.
func TestRecursionIsRefused(t *testing.T) {
	rules := Rules{Version: 2, RefuseRecursion: true}
	for _, parse := range []func() (*ValueSchema, error){
		func() (*ValueSchema, error) {
			return ParseAvro(rules, `{"type":"record","name":"Node","fields":[{"name":"kids","type":{"type":"array","items":"Node"}}]}`)
		},
		func() (*ValueSchema, error) {
			return ParseProtobuf(rules, `syntax = "proto3"; message A { B b = 1; } message B { A a = 1; }`, "")
		},
		func() (*ValueSchema, error) {
			return ParseJSONSchema(rules, `{"type":"object","properties":{"next":{"$ref":"#"}}}`)
		},
	} {
		if _, err := parse(); !errors.Is(err, ErrRecursion) {
			t.Errorf("error %v, want ErrRecursion", err)
		}
	}
	if _, err := ParseProtobuf(rules, `syntax = "proto3"; import "google/protobuf/struct.proto"; message A { google.protobuf.Struct s = 1; B b = 2; B c = 3; } message B {}`, ""); err != nil {
		t.Error(err)
	}
}

// With zero as null, nothing but the zero of a field without presence is null, also where a
// producer writes it out.
func TestZeroIsNull(t *testing.T) {
	const schema = `syntax = "proto3"; message R { int32 i = 1; sint64 s = 2; fixed64 f = 3; double d = 4; bool b = 5; string t = 6; bytes y = 7; E e = 8; optional int32 o = 9; repeated int32 l = 10; map<string, int32> m = 11; N n = 12; } enum E { NONE = 0; ONE = 1; } message N { uint32 x = 1; }`
	rules := Rules{Version: 2, ZeroAsNull: true}
	got := pbRig(t, rules, schema, ``, `o: 0 l: [0] m { key: "" value: 0 } n {}`, `i: 1 s: -1 f: 1 d: -0.0 b: true t: "a" y: "b" e: ONE n { x: 1 }`)
	null := map[string]any{"i": nil, "s": nil, "f": nil, "d": nil, "b": nil, "t": nil, "y": nil, "e": nil, "o": nil, "l": []any{}, "m": map[string]any{}, "n": nil}
	with := func(more map[string]any) map[string]any {
		out := map[string]any{}
		for k, v := range null {
			out[k] = v
		}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	want := []map[string]any{
		null,
		with(map[string]any{"o": int64(0), "l": []any{int64(0)}, "m": map[string]any{"": int64(0)}, "n": map[string]any{"x": nil}}),
		with(map[string]any{"i": int64(1), "s": int64(-1), "f": "1", "d": 0.0, "b": true, "t": "a", "y": "0x62", "e": "ONE", "n": map[string]any{"x": int64(1)}}),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	v, err := ParseProtobuf(rules, schema, "")
	if err != nil {
		t.Fatal(err)
	}
	r := rigOf(t, v)
	r.append(
		[]byte{1 << 3, 0, 2 << 3, 0, 3<<3 | 1, 0, 0, 0, 0, 0, 0, 0, 0, 4<<3 | 1, 0, 0, 0, 0, 0, 0, 0, 0, 5 << 3, 0, 6<<3 | 2, 0, 7<<3 | 2, 0, 8 << 3, 0}, // written out
		[]byte{1 << 3, 5, 1 << 3, 0},                 // the last counts
		[]byte{1 << 3, 0x80, 0x80, 0x80, 0x80, 0x10}, // 2^32: cut to 32 bits
	)
	if diff := cmp.Diff([]map[string]any{null, null, null}, r.rows()); diff != "" {
		t.Error(diff)
	}
}

// Numbers of 64 bits without a sign are digits where the rules say so, also in lists, maps and
// wrappers.
func TestUint64IsText(t *testing.T) {
	got := pbRig(t, Rules{Version: 2, Uint64AsString: true}, `syntax = "proto3"; import "google/protobuf/wrappers.proto"; message R { uint64 u = 1; fixed64 f = 2; repeated uint64 l = 3; map<uint64, fixed64> m = 4; google.protobuf.UInt64Value w = 5; uint32 v = 6; }`,
		`u: 18446744073709551615 f: 9223372036854775808 l: [0, 7] m { key: 18446744073709551615 value: 3 } w { value: 5 } v: 4294967295`, ``)
	want := []map[string]any{
		{"u": "18446744073709551615", "f": "9223372036854775808", "l": []any{"0", "7"}, "m": map[string]any{"18446744073709551615": "3"}, "w": "5", "v": int64(4294967295)},
		{"u": "0", "f": "0", "l": []any{}, "m": map[string]any{}, "w": nil, "v": int64(0)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A confluent.type.Decimal whose field says how many digits it has is a decimal in version 2. In
// version 1, and without that, it is the struct that it is.
func TestConfluentDecimalIsADecimal(t *testing.T) {
	const schema = `syntax = "proto3"; import "confluent/meta.proto"; import "confluent/type/decimal.proto"; message R {
		confluent.type.Decimal d = 1 [(confluent.field_meta) = { params: [{ key: "precision", value: "10" }, { key: "scale", value: "2" }] }];
		repeated confluent.type.Decimal l = 2 [(confluent.field_meta) = { params: [{ key: "precision", value: "38" }, { key: "scale", value: "0" }] }];
		confluent.type.Decimal other = 3; }`
	row := `d { value: "\xff\x85" precision: 10 scale: 2 } l { value: "\x7f" } other { value: "\x01" scale: 1 }`
	got := pbRig(t, Rules{Version: 2}, schema, row, `d {}`)
	want := []map[string]any{
		{"d": "-1.23", "l": []any{"127"}, "other": map[string]any{"value": "0x01", "precision": int64(0), "scale": int64(1)}},
		{"d": "0.00", "l": []any{}, "other": nil},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := pbRig(t, Rules{Version: 1}, schema, row)[0]["d"]; !cmp.Equal(got, any(map[string]any{"value": "0xff85", "precision": int64(10), "scale": int64(2)})) {
		t.Errorf("version 1 makes %v", got)
	}

	v, err := ParseProtobuf(NewRules(), schema, "")
	if err != nil {
		t.Fatal(err)
	}
	r := rigOf(t, v)
	for _, bad := range [][]byte{
		{1<<3 | 2, 5, 1<<3 | 2, 1, 7, 3 << 3, 3},                      // another scale
		{1<<3 | 2, 9, 1<<3 | 2, 5, 2, 0x54, 0x0b, 0xe4, 0, 3 << 3, 2}, // 10^10: eleven digits
		{1<<3 | 2, 1, 1<<3 | 2},                                       // ends early
	} {
		var wrong *DecodeError
		if err := r.builder.Append(r.decoder, bad, RecordMeta{}); !errors.As(err, &wrong) {
			t.Errorf("%x: error %v, want a DecodeError", bad, err)
		}
	}
}
