package parquetio

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tabletopic/tabletopic/internal/clickstream"
)

// newJSONRig is newRig for a JSON Schema.
func newJSONRig(t testing.TB, schema string, references ...Reference) *rig {
	t.Helper()
	value, err := ParseJSONSchema(NewRules(), schema, references...)
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

// What is inside itself folds to the JSON of the inner value, through properties, arrays, maps,
// references and alternatives, and is found by the names that schemas have.
func TestJSONSchemasInsideThemselves(t *testing.T) {
	tests := []struct {
		schema     string
		references []Reference
		columns    string
		json, want string
	}{
		{`{"type":"object","properties":{"v":{"type":"integer"},"next":{"$ref":"#"}}}`, nil, "v long, next string",
			`{"v":1,"next":{"v":2, "next":null}}`, `{"next":"{\"v\":2,\"next\":null}","v":1}`},
		{`{"type":"object","properties":{"t":{"description":"d","$ref":"#/$defs/t"}},"$defs":{"t":{"properties":{"v":{"type":"integer"},"kids":{"type":"array","items":{"$ref":"#/$defs/t"}}}}}}`, nil,
			"t struct<v long, kids list<string>>", `{"t":{"v":1,"kids":[{"v": 2}]}}`, `{"t":{"kids":["{\"v\":2}"],"v":1}}`},
		{`{"$id":"http://x/a.json","type":"array","items":{"$ref":"a.json"}}`, nil, "value list<string>", `[[],[[ ]]]`, `{"value":["[]","[[]]"]}`},
		{`{"type":"object","additionalProperties":{"anyOf":[{"type":"null"},{"$ref":"#"}]}}`, nil, "value map<string, string>", `{"a":{"b":{"c": {}}},"d":null}`, `{"value":{"a":"{\"b\":{\"c\":{}}}"}}`},
		{`{"type":"object","properties":{"v":{"type":"integer"},"next":{"description":"d","oneOf":[{"type":"null"},{"$ref":"#"}]},"other":{"anyOf":[{"$ref":"#/$defs/o"},{"type":"null"}]}},"$defs":{"o":{"type":"object","properties":{"root":{"$ref":"#"},"self":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/o"}]}}}}}`, nil,
			"v long, next string, other struct<root string, self string>", `{"v":1,"next":{"v":2},"other":{"root":{"v":3},"self":{}}}`, `{"next":"{\"v\":2}","other":{"root":"{\"v\":3}","self":"{}"},"v":1}`},
		{`{"$ref":"other.json#/definitions/n"}`, []Reference{{"other.json", `{"definitions":{"n":{"type":"object","properties":{"m":{"$ref":"#/definitions/n"},"k":{"$ref":"third.json"}}}}}`}, {"third.json", `{"type":"boolean"}`}},
			"m string, k boolean", `{"m":{"k": true},"k":false}`, `{"k":false,"m":"{\"k\":true}"}`},
		{`{"$ref":"http://x/y/other.json"}`, []Reference{{"o", `{"$id":"http://x/y/other.json","properties":{"a":{"$ref":"#here"}},"$defs":{"h":{"$anchor":"here","type":"string"}}}`}}, "a string", `{"a":"b"}`, `{"a":"b"}`},
	}
	for _, test := range tests {
		r := newJSONRig(t, test.schema, test.references...)
		p := &plainRig{rig: r}
		if got := p.columnsOf(); got != test.columns {
			t.Errorf("%s: columns %s, want %s", test.schema, got, test.columns)
		}
		r.append([]byte(test.json))
		if diff := cmp.Diff([]string{test.want}, p.all()); diff != "" {
			t.Errorf("%s: %s", test.schema, diff)
		}
	}
}

// Schemas that cannot become columns are refused with the field and the reason; those made to
// exhaust the process are, too.
func TestJSONSchemasThatAreRefused(t *testing.T) {
	nested := strings.Repeat(`{"type":"array","items":`, 70) + `{"type":"string"}` + strings.Repeat("}", 70)
	costly := `{"$defs":{"a":{"allOf":[{"minLength":1}` + strings.Repeat(`,{"minLength":1}`, 1000) + `]}},"anyOf":[{"title":"0","$ref":"#/$defs/a"}`
	for i := range 500 {
		costly += fmt.Sprintf(`,{"title":"%d","$ref":"#/$defs/a"}`, i)
	}
	costly += "]}"
	wide := `{"$defs":{`
	for i := range 20 {
		wide += fmt.Sprintf(`"d%d":{"type":"object","properties":{"a":{"$ref":"#/$defs/d%d"},"b":{"$ref":"#/$defs/d%d"}}},`, i, i+1, i+1)
	}
	wide += `"d20":{"type":"string"}},"$ref":"#/$defs/d0"}`
	for schema, message := range map[string]string{
		`{`:      "unexpected EOF",
		`{} {}`:  "text goes on after the schema",
		`[]`:     "neither an object nor a boolean",
		`"text"`: "neither an object nor a boolean",
		`{"type":"object","properties":{"a":{"$ref":"http://example.com/a.json"}}}`:    `field a: $ref "http://example.com/a.json" is neither in the schema nor among its references`,
		`{"type":"object","properties":{"a":{"$ref":"#/definitions/b"}}}`:              `field a: $ref "#/definitions/b" leads nowhere`,
		`{"type":"object","properties":{"a":{"$ref":"#b"}}}`:                           `field a: $ref "#b" names an anchor that is nowhere`,
		`{"type":"object","properties":{"a":1}}`:                                       "field a: its schema is neither an object nor a boolean",
		`{"type":"object","properties":{"a":{"type":"string"},"A":{"type":"string"}}}`: "field A: differs from field a by case alone",
		`{"type":"object","properties":{"":{"type":"string"}}}`:                        "has no name",
		`{"type":"object","properties":{"a.b":{},"a":{"properties":{"b":{}}}}}`:        "field a.b: has a dot in its name",
		strings.Repeat(`{"items":`, 600) + "{}" + strings.Repeat("}", 600):             "nested deeper than 512 brackets",
		nested: "columns nested deeper than 64",
		wide:   "more than 10000 columns",
		costly: "refers to the same subschemas too often: it takes more than 262144 steps to read",
	} {
		if _, err := ParseJSONSchema(NewRules(), schema); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%.100s: error %v, want %q", schema, err, message)
		}
	}
}

// Schemas whose alternatives lead to each other, or to themselves, are read, although there are twice as many ways
// through them with every step.
func TestJSONSchemasWithManyWaysThroughThemAreRead(t *testing.T) {
	fan := func(depth int) string {
		out := `{"properties":{"a":{"$ref":"#/$defs/d0"}},"$defs":{`
		for i := range depth {
			out += fmt.Sprintf(`"d%d":{"anyOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
		}
		return out + fmt.Sprintf(`"d%d":{"type":"integer"}}}`, depth)
	}
	for schema, typ := range map[string]string{
		fan(30): "long",
		fan(60): "string", // JSON: the type is deeper than is looked
		`{"properties":{"a":{"type":["null","object"],"oneOf":[{"$ref":"#/properties/a"},{"$ref":"#/properties/a"}]}}}`:  "string",
		`{"properties":{"a":{"type":["null","integer"],"anyOf":[{"$ref":"#/properties/a"},{"$ref":"#/properties/a"}]}}}`: "long",
	} {
		r := newJSONRig(t, schema)
		f, ok := r.table.FindFieldByName("a")
		if !ok || f.Type.String() != typ {
			t.Errorf("%.100s: column %v, want a %s", schema, f, typ)
		}
	}
}

// No schema text makes the parser panic, and what it accepts can be compiled.
func FuzzParseJSONSchema(f *testing.F) {
	for _, s := range []string{clickstream.JSONSchema, `{"$ref":"#"}`, `{"allOf":[{"$ref":"#"},{"properties":{"a":{"$ref":"#"}}}]}`, `{"type":["null","object"],"oneOf":[{"$ref":"#"},{"$ref":"#"}]}`, `{"prefixItems":[{"$ref":"#"},{"$ref":"#/prefixItems/0"}]}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, schema string) {
		v, err := ParseJSONSchema(NewRules(), schema)
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
		if err := b.Append(d, []byte("null"), RecordMeta{}); err != nil {
			t.Fatal(err)
		}
		writeFile(t, table, WriterConfig{}, finish(t, b))
	})
}
