package parquetio

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/google/go-cmp/cmp"

	"github.com/tabletopic/tabletopic/internal/clickstream"
	"github.com/tabletopic/tabletopic/parquetio/parquetiotest"
)

// Random documents of random schemas come back from the file as encoding/json reads them, with
// fields in any order, some twice, escapes and white space; what it says does not fit is refused,
// and leaves no trace.
func TestRandomJSONRoundTrip(t *testing.T) {
	accepted, refused := 0, 0
	for seed := range uint64(jsonSeeds) {
		r := rand.New(rand.NewPCG(seed, 2))
		shape := parquetiotest.RandomJSON(r, 4)
		schema, err := json.Marshal(shape.Schema())
		if err != nil {
			t.Fatal(err)
		}
		rig := newJSONRig(t, string(schema))
		var want []any
		for range 60 {
			text := []byte(parquetiotest.Gap(r) + shape.Text(r, 150) + parquetiotest.Gap(r))
			v, err := parquetiotest.ParsePairs(text)
			if err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, text)
			}
			row, misfit := shape.Plain(v)
			if v == nil {
				row, misfit = shape.Row(parquetiotest.Pairs{})
			}
			err = rig.builder.Append(rig.decoder, text, RecordMeta{})
			if (err == nil) != (misfit == nil) {
				t.Fatalf("seed %d: error %v, want %v\n%s\n%s", seed, err, misfit, schema, text)
			}
			if misfit != nil {
				refused++
				continue
			}
			want = append(want, row)
			if cut := text[:r.IntN(len(text))]; !json.Valid(cut) {
				if err := rig.builder.Append(rig.decoder, cut, RecordMeta{}); err == nil {
					t.Fatalf("seed %d: accepted %s", seed, cut)
				}
			}
		}
		accepted += len(want)
		if len(want) == 0 {
			continue
		}
		got := rig.rows()
		if len(got) != len(want) {
			t.Fatalf("seed %d: %d rows, want %d", seed, len(got), len(want))
		}
		for i := range got {
			if diff := cmp.Diff(parquetiotest.ResolvePairs(want[i], any(got[i])), any(got[i])); diff != "" {
				t.Fatalf("seed %d, row %d: %s\n%s", seed, i, diff, schema)
			}
		}
	}
	if accepted < 10*jsonSeeds || refused < jsonSeeds/2 {
		t.Errorf("%d documents accepted and %d refused: too few to tell", accepted, refused)
	}
}

// Whatever the bytes are, the decoder accepts and refuses what encoding/json and the columns say,
// and reads the same values.
func FuzzJSON(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 1))
	shape := parquetiotest.JSON{Kind: "struct"}
	for _, kind := range []string{"boolean", "long", "int", "double", "float", "decimal", "string", "binary", "uuid", "date", "time", "date-time", "any"} {
		shape.Names, shape.Fields = append(shape.Names, kind), append(shape.Fields, parquetiotest.JSON{Kind: kind})
	}
	inner := shape
	list := parquetiotest.JSON{Kind: "list", Item: &inner}
	dict := parquetiotest.JSON{Kind: "map", Item: &list}
	shape.Names, shape.Fields = append(shape.Names, "list", "map"), append(shape.Fields, list, dict)
	schema, err := json.Marshal(shape.Schema())
	if err != nil {
		f.Fatal(err)
	}
	rig := newJSONRig(f, string(schema))
	for range 30 {
		f.Add([]byte(shape.Text(r, 0)))
	}
	for _, s := range []string{"\ufeff{}", ` {"any":"\ud800"}`, `{"string":"\ud800\u0041"}`, `{"x":01}`, `{"x":+1}`, `{"x":1.}`, `{"x":.5}`, `{"x":1e}`, `{"x":-}`,
		`{"any":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + "}", `{"string":"` + "\x01" + `"}`, `{"string":"` + "\xff" + `"}`, `{"a":1,}`, `[1]`, `nul`, `{"x":tru}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		v, want := parquetiotest.ParsePairs(text)
		var row any
		if want == nil {
			if v == nil {
				v = parquetiotest.Pairs{}
			}
			row, want = shape.Plain(v)
		}
		err := rig.builder.Append(rig.decoder, text, RecordMeta{})
		if (err == nil) != (want == nil) {
			t.Fatalf("error %v, want %v", err, want)
		}
		batch := finish(t, rig.builder)
		defer batch.Release()
		if want != nil {
			if batch.NumRows() != 0 {
				t.Fatal("a refused record left a row")
			}
			return
		}
		got := map[string]any{}
		for c := range len(shape.Names) {
			got[batch.ColumnName(c)] = parquetiotest.Plain(batch.Column(c), 0)
		}
		if diff := cmp.Diff(parquetiotest.ResolvePairs(row, any(got)), any(got)); diff != "" {
			t.Fatal(diff)
		}
	})
}

// What is wrong with a record is said, with its field, and the rows around it are whole.
func TestJSONRefusesDamagedRecords(t *testing.T) {
	const deep = maxJSONDepth + 1
	tests := []struct {
		schema  string // of the property x
		good    string
		bad     string
		field   string
		message string
	}{
		{`{"type":"integer"}`, `{"x":1}`, `{"x":"1"}`, "x", "value is a string, and the column is long"},
		{`{"type":"integer"}`, `{"x":1}`, `{"x":{}}`, "x", "value is an object, and the column is long"},
		{`{"type":"integer"}`, `{"x":1.0}`, `{"x":1.5}`, "x", reasonFraction},
		{`{"type":"integer"}`, `{"x":9223372036854775807}`, `{"x":9223372036854775808}`, "x", reasonLong64},
		{`{"type":"integer"}`, `{"x":-9223372036854775808}`, `{"x":-9223372036854775809}`, "x", reasonLong64},
		{`{"type":"integer"}`, `{"x":1e18}`, `{"x":1e999999999999999999999}`, "x", reasonLong64},
		{`{"type":"integer"}`, `{"x":0e999999999999999999999}`, `{"x":1e-999999999999999999999}`, "x", reasonFraction},
		{`{"type":"integer"}`, `{"x":1}`, `{"x":01}`, "x", reasonNumber},
		{`{"type":"integer"}`, `{"x":-1}`, `{"x":-}`, "x", reasonNumber},
		{`{"type":"integer","connect.type":"int32"}`, `{"x":2147483647}`, `{"x":2147483648}`, "x", reasonInt},
		{`{"type":"number"}`, `{"x":1e308}`, `{"x":1e309}`, "x", reasonDouble},
		{`{"type":"number"}`, `{"x":1}`, `{"x":NaN}`, "x", reasonValue},
		{`{"type":"number"}`, `{"x":1}`, `{"x":1.}`, "x", reasonNumber},
		{`{"type":"boolean"}`, `{"x":true}`, `{"x":1}`, "x", "value is a number"},
		{`{"type":"boolean"}`, `{"x":false}`, `{"x":fals}`, "x", reasonValue},
		{`{"type":"boolean"}`, `{"x":null}`, `{"x":nul}`, "x", reasonValue},
		{`{"type":"null"}`, `{"x":null}`, `{"x":1}`, "", "the schema says that it is null"},
		{`{"type":"string"}`, `{"x":"a"}`, `{"x":a}`, "x", reasonValue},
		{`{"type":"string"}`, `{"x":"é"}`, "{\"x\":\"\xe9\"}", "x", reasonUTF8},
		{`{"type":"string"}`, `{"x":"é"}`, "{\"x\":\"" + strings.Repeat("long enough ", 5) + "\xe9\"}", "x", reasonUTF8},
		{`{"type":"string"}`, `{"x":"\n"}`, "{\"x\":\"\n\"}", "x", reasonControl},
		{`{"type":"string"}`, `{"x":"\ud83d\ude00"}`, `{"x":"\ud83d"}`, "x", reasonSurrogate},
		{`{"type":"string"}`, `{"x":"\ud83d\ude00"}`, `{"x":"\ude00\ud83d"}`, "x", reasonSurrogate},
		{`{"type":"string"}`, `{"x":"\u00e9"}`, `{"x":"\u00g9"}`, "x", reasonEscape},
		{`{"type":"string"}`, `{"x":"\/"}`, `{"x":"\x"}`, "x", reasonEscape},
		{`{"type":"string"}`, `{"x":"a"}`, `{"x":"a}`, "x", reasonShort},
		{`{"type":"string"}`, `{"x":"a"}`, `{"x":"a\`, "x", reasonShort},
		{`{"type":"string","format":"date"}`, `{"x":"2026-02-28"}`, `{"x":"2026-02-30"}`, "x", "not an ISO 8601 date"},
		{`{"type":"string","format":"date-time"}`, `{"x":"2026-01-01T00:00:00Z"}`, `{"x":"2026-01-01T00:00:00"}`, "x", "with an offset"},
		{`{"type":"string","format":"time"}`, `{"x":"23:59:59"}`, `{"x":"24:00:00"}`, "x", "time of day"},
		{`{"type":"string","format":"uuid"}`, `{"x":null}`, `{"x":"1"}`, "x", "not a UUID"},
		{`{"type":"string","contentEncoding":"base64"}`, `{"x":"AA=="}`, `{"x":"AA"}`, "x", "not base64"},
		{`{"type":"array","items":{"type":"integer"}}`, `{"x":[1,2]}`, `{"x":[1,"2"]}`, "x.element", "value is a string"},
		{`{"type":"array","items":{"type":"integer"}}`, `{"x":[]}`, `{"x":[1,]}`, "x.element", reasonValue},
		{`{"type":"array","items":{"type":"integer"}}`, `{"x":[]}`, `{"x":[1 2]}`, "x", reasonNext},
		{`{"type":"array","items":{"type":"integer"}}`, `{"x":[]}`, `{"x":[1`, "x", reasonShort},
		{`{"type":"object","additionalProperties":{"type":"integer"}}`, `{"x":{}}`, `{"x":{"a":true}}`, "x.value", "value is a boolean"},
		{`{"type":"object","additionalProperties":{"type":"integer"}}`, `{"x":{}}`, `{"x":{"a" 1}}`, "x", reasonColon},
		{`{"type":"object","additionalProperties":{"type":"integer"}}`, `{"x":{}}`, `{"x":{a:1}}`, "x", reasonName},
		{`{"type":"object","properties":{"y":{"type":"integer"}}}`, `{"x":{"y":1}}`, `{"x":{"y":[1]}}`, "x.y", "value is an array"},
		{`{"type":"integer"}`, `{}`, ``, "", "no JSON text"},
		{`{"type":"integer"}`, " {\n\"x\"\t:\r1 } ", ` `, "", "no JSON text"},
		{`{"type":"integer"}`, `null`, `nil`, "", reasonValue},
		{`{"type":"integer"}`, `{}`, `[1]`, "", "record is an array, and its schema says that it is an object"},
		{`{"type":"integer"}`, `{}`, `{} {}`, "", "2 bytes are left over"},
		{`{"type":"integer"}`, `{}`, "\ufeff{}", "", "byte order mark"},
		{`{"type":"integer"}`, `{}`, `{"x":1`, "", reasonShort},
		{`{"type":"integer"}`, `{}`, `{"x":1,}`, "", reasonName},
		{`{"type":"integer"}`, `{}`, `{"y":[1,{"a":}]}`, "", reasonValue},
		{`{"type":"integer"}`, `{}`, `{"y":` + strings.Repeat("[", deep) + strings.Repeat("]", deep) + `}`, "", reasonDeep},
		{`{}`, `{"x":` + strings.Repeat("[", deep-1) + strings.Repeat("]", deep-1) + `}`, `{"x":` + strings.Repeat(`{"":[`, deep) + `}`, "x", reasonDeep},
	}
	for i, test := range tests {
		t.Run(fmt.Sprint(i, test.message), func(t *testing.T) {
			r := newJSONRig(t, `{"type":"object","properties":{"x":`+test.schema+`,"other":{"type":"string"}}}`)
			r.append([]byte(test.good), []byte(test.good))
			want := r.rows()
			for range 2 {
				r.append([]byte(test.good))
				err := r.builder.Append(r.decoder, []byte(test.bad), RecordMeta{})
				var bad *DecodeError
				if !errors.As(err, &bad) || !strings.Contains(err.Error(), test.message) || bad.Field != test.field {
					t.Fatalf("error %v, want %q of field %s", err, test.message, test.field)
				}
			}
			if diff := cmp.Diff(want, r.rows()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Of properties with the same name the last counts, whatever the earlier ones put into columns.
func TestJSONLastPropertyCounts(t *testing.T) {
	r := newJSONRig(t, `{"type":"object","properties":{"a":{"type":"integer"},"s":{"type":"object","properties":{"x":{"type":"string"},"l":{"type":"array","items":{"type":"boolean"}}}},
		"m":{"type":"object","additionalProperties":{"type":"object","properties":{"k":{"type":"integer"}}}}}}`)
	var many strings.Builder
	for i := range 30 {
		fmt.Fprintf(&many, `"k%d":{"k":%d},`, i%20, i)
	}
	r.append([]byte(`{"a":1,"s":{"x":"a","l":[true,false]},"a":2,"s":{"l":[true],"l":[false,null,true]},"a":null,"a":4}`),
		[]byte(`{"a":1,"m":{"p":{"k":1},"q":{"k":2,"k":3},"p":null},"a":null}`),
		[]byte(`{"m":{`+many.String()+`"z":{"k":1,"k":null}}}`),
		[]byte(`{"s":{"x":"a"},"s":null}`))
	big := map[string]any{"z": map[string]any{"k": nil}}
	for i := range 20 {
		big[fmt.Sprint("k", i)] = map[string]any{"k": int64(i)}
	}
	for i := 20; i < 30; i++ {
		big[fmt.Sprint("k", i-20)] = map[string]any{"k": int64(i)}
	}
	want := []map[string]any{
		{"a": int64(4), "s": map[string]any{"x": nil, "l": []any{false, nil, true}}, "m": nil},
		{"a": nil, "s": nil, "m": map[string]any{"p": nil, "q": map[string]any{"k": int64(3)}}},
		{"a": nil, "s": nil, "m": big},
		{"a": nil, "s": nil, "m": nil},
	}
	if diff := cmp.Diff(want, r.rows()); diff != "" {
		t.Error(diff)
	}
}

// Keys of a JSON Schema are a column beside the values of another one, objects and single values.
func TestJSONKeys(t *testing.T) {
	value, err := ParseJSONSchema(NewRules(), `{"type":"object","properties":{"id":{"type":"integer"}}}`)
	if err != nil {
		t.Fatal(err)
	}
	for schema, keys := range map[string]map[string]any{
		`{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"array","items":{"type":"integer"}}}}`: {`{"b":[1],"a":"x"}`: map[string]any{"a": "x", "b": []any{int64(1)}}, `{}`: map[string]any{"a": nil, "b": nil}},
		`{"type":"integer"}`: {`7`: int64(7)},
		`{"type":"object"}`:  {`{"a": 1}`: `{"a":1}`},
	} {
		key, err := ParseJSONSchema(NewRules(), schema)
		if err != nil {
			t.Fatal(err)
		}
		r := newKeyRig(t, value, key)
		for text, want := range keys {
			m := RecordMeta{KeyDecoder: r.key, KeyPayload: []byte(text)}
			bad := RecordMeta{KeyDecoder: r.key, KeyPayload: []byte(text + "]")}
			for range 2 {
				if err := r.builder.Append(r.value, []byte(`{"id":1}`), bad); err == nil {
					t.Fatal("a damaged key was accepted")
				}
				if err := r.builder.Append(r.value, []byte(`{"id":1}`), m); err != nil {
					t.Fatal(err)
				}
			}
			rows := readFile(t, writeFile(t, r.table, WriterConfig{}, finish(t, r.builder)))
			for _, row := range rows {
				if diff := cmp.Diff(map[string]any{"id": int64(1), "_key": want}, row); diff != "" {
					t.Errorf("%s: %s", text, diff)
				}
			}
			if len(rows) != 2 {
				t.Errorf("%d rows, want 2", len(rows))
			}
		}
	}
}

// Decoding allocates nothing per row once the buffers have their size.
func TestAppendJSONDoesNotAllocate(t *testing.T) {
	r := newJSONRig(t, clickstream.JSONSchema)
	g, e := clickstream.NewGenerator(5, benchStart), clickstream.Event{}
	payloads := make([][]byte, 2000)
	for i := range payloads {
		g.Next(&e)
		payloads[i] = clickstream.AppendJSON(nil, &e)
	}
	per := testing.AllocsPerRun(5, func() {
		for _, p := range payloads {
			if err := r.builder.Append(r.decoder, p, RecordMeta{}); err != nil {
				t.Fatal(err)
			}
		}
		finish(t, r.builder).Release()
	})
	if per/float64(len(payloads)) > 0.15 {
		t.Errorf("%.0f allocations for %d rows", per, len(payloads))
	}
}

// Zero keeps its sign, and the doubles that are hardest to read are read as strconv does.
func TestJSONDoubles(t *testing.T) {
	texts := []string{"-0", "-0.0", "0", "5e-324", "2.2250738585072011e-308", "1.7976931348623157e308", "9007199254740993", "1e23", "8.41e21", "0.1", "123456789012345678901234567890",
		"1e-400", "0.000000000000000000000000000000000000000000000000001", "9007199254740992e22", "9007199254740991e-22", "179769313486231570793e288"}
	r := newJSONRig(t, `{"type":"number"}`)
	for _, s := range texts {
		r.append([]byte(s))
	}
	for i, row := range r.rows() {
		want, _ := strconv.ParseFloat(texts[i], 64)
		if got := row["value"].(float64); math.Float64bits(got) != math.Float64bits(want) {
			t.Errorf("%s is %v, want %v", texts[i], got, want)
		}
	}
}

// A column that must have a value gets none from null or absence, and the field is named.
func TestJSONRequiredColumn(t *testing.T) {
	value, err := ParseJSONSchema(NewRules(), `{"type":"object","properties":{"id":{"type":"integer"},"n":{"type":"string"}},"required":["id"]}`)
	if err != nil {
		t.Fatal(err)
	}
	table := iceberg.NewSchema(0, iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64, Required: true}, iceberg.NestedField{ID: 2, Name: "n", Type: iceberg.PrimitiveTypes.String})
	d, err := noKafka.Compile(value, table)
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewBuilder(table, "")
	if err != nil {
		t.Fatal(err)
	}
	for text, message := range map[string]string{`{"n":"a"}`: "field id at byte 0: is missing, and the column is required", `{"id":null}`: "field id at byte 6: is null, and the column is required", `{"id":1}`: "<nil>"} {
		if err := b.Append(d, []byte(text), RecordMeta{}); !strings.Contains(fmt.Sprint(err), message) {
			t.Errorf("error %v, want %q", err, message)
		}
	}
	if b.Rows() != 1 {
		t.Errorf("%d rows, want 1", b.Rows())
	}
}

// A record cannot make the decoder work out of proportion to its size: an object that comes again
// and again, with many columns below.
func TestJSONHostileRecord(t *testing.T) {
	var wide strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&wide, `,"f%d":{"type":"integer"}`, i)
	}
	r := newJSONRig(t, `{"type":"object","properties":{"s":{"type":"object","properties":{`+wide.String()[1:]+`}}}}`)
	err := r.builder.Append(r.decoder, []byte("{"+strings.Repeat(`"s":{},`, 10_000)+`"s":{}}`), RecordMeta{})
	if err == nil || !strings.Contains(err.Error(), reasonMany) {
		t.Errorf("error %v, want %q", err, reasonMany)
	}
}
