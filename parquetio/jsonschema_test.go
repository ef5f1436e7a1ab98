package parquetio

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// newJSONRig is newRig for a JSON Schema.
func newJSONRig(t testing.TB, schema string, references ...Reference) *rig {
	t.Helper()
	value, err := ParseJSONSchema(schema, references...)
	if err != nil {
		t.Fatal(err)
	}
	return rigOf(t, value)
}

// Every JSON Schema type has its column, and every value lands as what it means.
func TestJSONTypeMapping(t *testing.T) {
	const decimal = `{"type":"number","title":"org.apache.kafka.connect.data.Decimal","connect.type":"bytes","connect.parameters":{"scale":"2","connect.decimal.precision":"5"}}`
	const uuid = "12121212-1212-1212-1212-121212121212"
	tests := []struct {
		schema string // of the property x
		typ    string
		json   string
		want   any
	}{
		{`{"type":"boolean"}`, "boolean", `true`, true},
		{`{"type":"integer"}`, "long", `-5`, int64(-5)},
		{`{"type":"integer","minimum":0,"maximum":10}`, "long", `1e1`, int64(10)},
		{`{"type":"integer"}`, "long", `2.0`, int64(2)},
		{`{"type":"integer","connect.type":"int8"}`, "int", `-128`, int64(-128)},
		{`{"type":"integer","connect.type":"int64"}`, "long", `-9223372036854775808`, int64(-1 << 63)},
		{`{"type":"number"}`, "double", `1.5e3`, 1500.0},
		{`{"type":"number","connect.type":"float32"}`, "float", `0.1`, float64(float32(0.1))},
		{`{"type":"number","connect.type":"float64"}`, "double", `7`, 7.0},
		{`{"type":"string"}`, "string", `"a\u00e9\ud83d\ude00\n"`, "aé😀\n"},
		{`{"type":"string","format":"email"}`, "string", `"a@b"`, "a@b"},
		{`{"type":"string","format":"date"}`, "date", `"1969-12-31"`, int64(-1)},
		{`{"type":"string","format":"time"}`, "time", `"00:00:01.5+00:00"`, int64(1_500_000)},
		{`{"type":"string","format":"time"}`, "time", `"01:00:00+02:00"`, int64(23 * 3_600_000_000)},
		{`{"type":"string","format":"time"}`, "time", `"23:59:59.999999"`, int64(86_399_999_999)},
		{`{"type":"string","format":"date-time"}`, "timestamptz", `"1970-01-01T01:00:00.0000019+01:00"`, int64(1)},
		{`{"type":"string","format":"uuid"}`, "uuid", `"` + uuid + `"`, "0x" + strings.Repeat("12", 16)},
		{`{"type":"string","contentEncoding":"base64"}`, "binary", `"AP\/\/"`, "0x00ffff"},
		{`{"type":"string","connect.type":"bytes"}`, "binary", `""`, "0x"},
		{decimal, "decimal(5, 2)", `"/w=="`, "-0.01"},
		{decimal, "decimal(5, 2)", `-123.4`, "-123.40"},
		{decimal, "decimal(5, 2)", `12340e-2`, "123.40"},
		{strings.Replace(decimal, `,"connect.decimal.precision":"5"`, "", 1), "decimal(38, 2)", `999999999999999999999999999999999999.99`, strings.Repeat("9", 36) + ".99"},
		{`{"type":"integer","title":"org.apache.kafka.connect.data.Date","connect.type":"int32"}`, "date", `1`, int64(1)},
		{`{"type":"integer","title":"org.apache.kafka.connect.data.Time","connect.type":"int32"}`, "time", `1`, int64(1000)},
		{`{"type":"integer","title":"org.apache.kafka.connect.data.Timestamp","connect.type":"int64"}`, "timestamptz", `-1`, int64(-1000)},
		{`{"type":"integer","title":"io.debezium.time.MicroTimestamp","connect.type":"int64"}`, "timestamp", `7`, int64(7)},
		{`{"type":"string","title":"io.debezium.time.ZonedTimestamp"}`, "timestamptz", `"1970-01-01T00:00:00.000001Z"`, int64(1)},
		{`{"type":"array","items":{"type":"string"}}`, "list<string>", `["a", null ,"b"]`, []any{"a", nil, "b"}},
		{`{"type":"array"}`, "list<string>", `[1, {"a": "b c"}, "s", null]`, []any{"1", `{"a":"b c"}`, `"s"`, nil}},
		{`{"type":"array","items":[{"type":"integer"},{"type":"integer"}]}`, "list<long>", `[1,2]`, []any{int64(1), int64(2)}},
		{`{"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}]}`, "string", `[1, "a"]`, `[1,"a"]`},
		{`{"type":"array","prefixItems":[{"type":"integer"}],"items":{"type":"integer"}}`, "list<long>", `[]`, []any{}},
		{`{"type":"array","prefixItems":[{"type":"integer"}],"items":{"type":"boolean"}}`, "string", `[1,true]`, `[1,true]`},
		{`{"type":"object","additionalProperties":{"type":"integer"}}`, "map<string, long>", `{"a":1,"b":2,"a":3}`, map[string]any{"a": int64(3), "b": int64(2)}},
		{`{"type":"object","patternProperties":{"^x":{"type":"integer"}},"additionalProperties":false}`, "map<string, long>", `{"x":null}`, map[string]any{"x": nil}},
		{`{"type":"object","additionalProperties":true}`, "string", ` { "a" : [ 1 , "x y" ] } `, `{"a":[1,"x y"]}`},
		{`{"type":"object"}`, "string", `{}`, `{}`},
		{`{"properties":{"a":{"type":"integer"}}}`, "struct", `{"b":{"c":[]},"a":1}`, map[string]any{"a": int64(1)}},
		{`{"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"string"}}`, "struct", `{}`, map[string]any{"a": nil}},
		{`{"items":{"type":"integer"}}`, "list<long>", `[1]`, []any{int64(1)}},
		{`{"enum":["a","b",null]}`, "string", `"b"`, "b"},
		{`{"enum":[1,2]}`, "long", `2`, int64(2)},
		{`{"enum":[1,2.5]}`, "double", `2.5`, 2.5},
		{`{"enum":["a",1]}`, "string", `1`, `1`},
		{`{"type":"string","enum":["a","b"]}`, "string", `"a"`, "a"},
		{`{"const":true}`, "boolean", `true`, true},
		{`{"type":["string","null"]}`, "string", `null`, nil},
		{`{"type":["integer","number"]}`, "double", `1`, 1.0},
		{`{"type":["integer","string"]}`, "string", `"a"`, `"a"`},
		{`{"oneOf":[{"type":"null"},{"type":"integer"}]}`, "long", `3`, int64(3)},
		{`{"anyOf":[{"$ref":"#/definitions/n"},{"type":"null"}]}`, "long", `null`, nil},
		{`{"oneOf":[{"type":"string"},{"type":"integer"}]}`, "string", `"a b"`, `"a b"`},
		{`{"oneOf":[{"type":"string"},{"type":"integer"},{"type":"null"}]}`, "string", `null`, nil},
		{`{"anyOf":[{"type":"string","format":"date"},{"type":"string","format":"date"}]}`, "date", `"1970-01-01"`, int64(0)},
		{`{"anyOf":[{"type":"string","format":"date"},{"type":"string","maxLength":3}]}`, "string", `"abc"`, "abc"},
		{`{"oneOf":[{"properties":{"a":{"type":"integer"}}},{"properties":{"b":{"type":"integer"}}}]}`, "string", `{"a": 1}`, `{"a":1}`},
		{`{"type":"object","properties":{"a":{"type":"integer"},"b":{}},"oneOf":[{"required":["a"]},{"required":["b"]}]}`, "struct", `{"a":1}`, map[string]any{"a": int64(1), "b": nil}},
		{`{"allOf":[{"properties":{"a":{"type":"integer"}}},{"$ref":"#/definitions/o"}],"properties":{"c":{"type":"boolean"}}}`, "struct", `{"a":1,"b":"x","c":true}`, map[string]any{"a": int64(1), "b": "x", "c": true}},
		{`{"allOf":[{"type":"number"},{"type":"integer"}]}`, "long", `1`, int64(1)},
		{`{"$ref":"#/definitions/o/properties/b"}`, "string", `"x"`, "x"},
		{`{"$ref":"#anchored"}`, "long", `1`, int64(1)},
		{`true`, "string", `{"a": 1}`, `{"a":1}`},
		{`{}`, "string", `"s"`, `"s"`},
		{`{"type":"object","properties":{"n":{"type":"null"}}}`, "struct", `{"n":null}`, map[string]any{PresentField: true}},
	}
	for _, test := range tests {
		t.Run(test.schema, func(t *testing.T) {
			r := newJSONRig(t, `{"type":"object","properties":{"x":`+test.schema+`},"definitions":{
				"n":{"type":"integer"},"o":{"type":"object","properties":{"b":{"type":"string"}}},"p":{"$anchor":"anchored","type":"integer"}}}`)
			got := r.value.Fields[0].Type.String()
			if test.typ == "struct" {
				got = got[:len("struct")]
			}
			if got != test.typ {
				t.Fatalf("column %s, want %s", got, test.typ)
			}
			r.append([]byte(`{"x":` + test.json + `}`))
			if diff := cmp.Diff(test.want, r.rows()[0]["x"]); diff != "" {
				t.Error(diff)
			}
		})
	}
}
