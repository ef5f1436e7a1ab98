package parquetio

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/google/go-cmp/cmp"
)

// A column that is added has the default of its field in the metadata, and rows of writers that do not
// know the field have it too; what is null is NULL, and what is written is what it is.
func TestColumnsHaveDefaults(t *testing.T) {
	const first = `{"type":"record","name":"R","fields":[{"name":"id","type":"int"},{"name":"s","type":{"type":"record","name":"S","fields":[{"name":"a","type":"int"}]}}]}`
	tests := []struct {
		field    string // of the second version
		value    any    // the default in the metadata
		want     any    // in the row of a writer of the first
		explicit []byte // a value, in Avro
		row      any
	}{
		{`"type":"boolean","default":true`, true, true, []byte{0}, false},
		{`"type":"int","default":-2147483648`, -2147483648.0, int64(-2147483648), long(1), int64(1)},
		{`"type":"long","default":9007199254740992`, 9007199254740992.0, int64(9007199254740992), long(1), int64(1)},
		{`"type":"long","default":9223372036854775807`, nil, nil, long(1), int64(1)},
		{`"type":"float","default":0.5`, 0.5, 0.5, float(2), 2.0},
		{`"type":"double","default":-1e300`, -1e300, -1e300, double(2), 2.0},
		{`"type":"string","default":""`, "", "", text("x"), "x"},
		{`"type":["string","null"],"default":"é"`, "é", "é", long(1), nil},
		{`"type":["null","string"],"default":null`, nil, nil, long(0), nil},
		{`"type":"bytes","default":"\u0000\u00ff"`, "00ff", "0x00ff", text("x"), "0x78"},
		{`"type":{"type":"fixed","name":"F","size":2},"default":"\u0001b"`, "0162", "0x0162", []byte("xy"), "0x7879"},
		{`"type":{"type":"enum","name":"E","symbols":["A","B"]},"default":"B"`, "B", "B", long(0), "A"},
		{`"type":{"type":"int","logicalType":"date"},"default":-1`, "1969-12-31", int64(-1), long(0), int64(0)},
		{`"type":{"type":"int","logicalType":"date"},"default":2932896`, "9999-12-31", int64(2932896), long(0), int64(0)},
		{`"type":{"type":"int","logicalType":"date"},"default":2932897`, nil, nil, long(0), int64(0)},
		{`"type":{"type":"int","logicalType":"time-millis"},"default":86399999`, "23:59:59.999000", int64(86399999000), long(0), int64(0)},
		{`"type":{"type":"long","logicalType":"timestamp-millis"},"default":-1`, "1969-12-31T23:59:59.999000+00:00", int64(-1000), long(0), int64(0)},
		{`"type":{"type":"long","logicalType":"local-timestamp-micros"},"default":1`, "1970-01-01T00:00:00.000001", int64(1), long(0), int64(0)},
		{`"type":{"type":"long","logicalType":"timestamp-nanos"},"default":-1`, "1969-12-31T23:59:59.999999999+00:00", int64(-1), long(0), int64(0)},
		{`"type":{"type":"string","logicalType":"uuid"},"default":"F81D4FAE-7DEC-11D0-A765-00A0C91E6BF6"`, "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "0xf81d4fae7dec11d0a76500a0c91e6bf6",
			text("00000000-0000-0000-0000-000000000000"), "0x00000000000000000000000000000000"},
		{`"type":{"type":"bytes","logicalType":"decimal","precision":38,"scale":2},"default":"\u00ff"`, "-0.01", "-0.01", cat(long(1), []byte{5}), "0.05"},
		{`"type":{"type":"array","items":"int"},"default":[]`, nil, nil, long(0), []any{}},
		{`"type":["int","string"],"default":1`, nil, nil, cat(long(0), long(2)), "2"},
	}
	rules := Rules{Version: MappingVersion, Nanos: true, Defaults: true}
	v1, err := ParseAvro(rules, first)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range tests {
		t.Run(test.field, func(t *testing.T) {
			table, err := withKafka.TableSchema(v1)
			if err != nil {
				t.Fatal(err)
			}
			// Once on top, and once inside of a struct.
			v2, err := ParseAvro(rules, strings.Replace(first[:len(first)-2], `{"name":"a"`, `{"name":"b",`+test.field+`},{"name":"a"`, 1)+`,{"name":"x",`+strings.NewReplacer(`"F"`, `"F2"`, `"E"`, `"E2"`).Replace(test.field)+`}]}`)
			if err != nil {
				t.Fatal(err)
			}
			next, _, err := withKafka.Evolve(table, table.HighestFieldID(), v2)
			if err != nil {
				t.Fatal(err)
			}
			f, _ := next.FindFieldByName("x")
			inner, _ := next.FindFieldByName("s.b")
			for _, f := range []iceberg.NestedField{f, inner} {
				if diff := cmp.Diff([]any{test.value, test.value}, []any{f.InitialDefault, f.WriteDefault}); diff != "" {
					t.Error(diff)
				}
			}
			// The catalog gives back what it was given.
			body, err := json.Marshal(next)
			if err != nil {
				t.Fatal(err)
			}
			read := new(iceberg.Schema)
			if err := json.Unmarshal(body, read); err != nil {
				t.Fatal(err)
			}
			if !read.Equals(next) {
				t.Fatalf("read again, %s is %s", next, read)
			}
			r := &rig{t: t, table: read}
			if r.builder, err = NewBuilder(read, "_kafka"); err != nil {
				t.Fatal(err)
			}
			for i, v := range []*ValueSchema{v1, v2} {
				if r.decoder, err = withKafka.Compile(v, read); err != nil {
					t.Fatal(err)
				}
				r.append([][]byte{cat(long(1), long(2)), cat(long(1), test.explicit, long(2), test.explicit)}[i])
			}
			want := []map[string]any{
				{"id": int64(1), "s": map[string]any{"a": int64(2), "b": test.want}, "x": test.want},
				{"id": int64(1), "s": map[string]any{"a": int64(2), "b": test.row}, "x": test.row},
			}
			if diff := cmp.Diff(want, r.rows()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Without the choice there are none, as in format version 2.
func TestNoDefaultsByDefault(t *testing.T) {
	v, err := ParseAvro(NewRules(), `{"type":"record","name":"R","fields":[{"name":"x","type":"int","default":1}]}`)
	if err != nil {
		t.Fatal(err)
	}
	table, err := noKafka.TableSchema(v)
	if err != nil {
		t.Fatal(err)
	}
	if f := table.Field(0); f.InitialDefault != nil || f.WriteDefault != nil {
		t.Errorf("field %s has the defaults %v and %v", f, f.InitialDefault, f.WriteDefault)
	}
}

// A default that another writer set fills the rows of all formats; one that is not of the type is none.
func TestDefaultsOfOthersFillRows(t *testing.T) {
	field := func(id int, name string, typ iceberg.Type, value any) iceberg.NestedField {
		return iceberg.NestedField{ID: id, Name: name, Type: typ, WriteDefault: value}
	}
	table := iceberg.NewSchema(0, field(1, "value", iceberg.PrimitiveTypes.String, nil), field(2, "n", iceberg.PrimitiveTypes.Int64, 7.0),
		field(3, "bad", iceberg.PrimitiveTypes.Date, "no date"), field(4, "half", iceberg.PrimitiveTypes.Int32, 0.5), field(5, "d", iceberg.DecimalTypeOf(4, 1), "-1.5"))
	proto, err := ParseProtobuf(NewRules(), `syntax = "proto3"; message R { string value = 1; }`, "")
	if err != nil {
		t.Fatal(err)
	}
	schema, err := ParseJSONSchema(NewRules(), `{"type":"object","properties":{"value":{"type":"string"}}}`)
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewBuilder(table, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []struct {
		v       *ValueSchema
		payload string
	}{{StringValue(), "a"}, {proto, "\x0a\x01a"}, {schema, `{"value":"a"}`}} {
		d, err := noKafka.Compile(w.v, table)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Append(d, []byte(w.payload), RecordMeta{}); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]any{"value": "a", "n": int64(7), "bad": nil, "half": nil, "d": "-1.5"}
	for i, row := range readFile(t, writeFile(t, table, WriterConfig{}, finish(t, b))) {
		if diff := cmp.Diff(want, row); diff != "" {
			t.Error(fmt.Sprint(i), diff)
		}
	}
}
