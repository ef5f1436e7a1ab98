package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/tabletopic/tabletopic/parquetio/parquetiotest"
)

// A table of format version 3 is read by the engines that know it, its rows have the lineage that
// the version demands, over several commits, and nanoseconds are what they were, in the two that have them.
func TestFormatVersion3(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	l.queryEnv = sharedEngines(t)
	schema := rec(idField + `,{"name":"s","type":["null","string"]}`)
	s.createTopic("lineage", 1, 500*time.Millisecond, "table.topic.format.version", "3")
	header := registerSchema(t, s, "lineage-value", schema)
	produceAll(t, s, "lineage", encoded(t, header, schema, obj{"id": int64(1), "s": in("string", "a")}), encoded(t, header, schema, obj{"id": int64(2), "s": nil}))
	waitForTable(t, s, "lineage", 2, time.Minute)
	produceAll(t, s, "lineage", encoded(t, header, schema, obj{"id": int64(3), "s": in("string", "")}))
	waitForTable(t, s, "lineage", 3, time.Minute)

	times := rec(idField + `,{"name":"instant","type":{"type":"long","logicalType":"timestamp-nanos"}},{"name":"wall","type":["null",{"type":"long","logicalType":"local-timestamp-nanos"}]}`)
	s.createTopic("nanos", 1, 500*time.Millisecond, "table.topic.format.version", "3", "table.topic.partition.by", "hour(instant)")
	header = registerSchema(t, s, "nanos-value", times)
	const instant = micros*1000 + 789
	produceAll(t, s, "nanos", append(header[:len(header):len(header)], raw(1, instant, int64(1), int64(-1))...), append(header[:len(header):len(header)], raw(2, int64(-1), int64(0))...))
	waitForTable(t, s, "nanos", 2, time.Minute)

	want := "id,s\n1,a\n2,NULL\n3,\n"
	for _, engine := range engines {
		if got := l.query(t, s, engine, "SELECT id, s FROM ice.default.lineage"); got != want {
			t.Errorf("%s reads\n%swant\n%s", engine, got, want)
		}
	}
	want = "id,_row_id,_last_updated_sequence_number\n1,0,1\n2,1,1\n3,2,2\n"
	if got := l.query(t, s, "spark", "SELECT id, _row_id, _last_updated_sequence_number FROM ice.default.lineage"); got != want {
		t.Errorf("Spark reads\n%swant\n%s", got, want)
	}
	rows := []map[string]any{{"id": int64(1), "instant": instant, "wall": int64(-1)}, {"id": int64(2), "instant": int64(-1), "wall": nil}}
	want = "id,instant,wall\n1,2023-11-14 22:13:20.123456789 UTC,1969-12-31 23:59:59.999999999\n2,1969-12-31 23:59:59.999999999 UTC,NULL\n"
	if got := l.query(t, s, "trino", "SELECT id, CAST(instant AS varchar) AS instant, CAST(wall AS varchar) AS wall FROM ice.default.nanos"); got != want {
		t.Errorf("Trino reads\n%swant\n%s", got, want)
	}
	dir := t.TempDir() // DuckDB 1.5 and Spark 4.1 know no timestamptz_ns
	run(t, nil, "lab/query", "pyiceberg", "--uri", s.catalogURL(), "--parquet", dir, "SELECT * FROM ice.default.nanos")
	got := readParquet(t, filepath.Join(dir, "0.parquet"))
	for i := range got {
		delete(got[i], "_kafka")
	}
	if diff := cmp.Diff(rows, got); diff != "" {
		t.Errorf("PyIceberg: %s", diff)
	}
}

// Values without a column of their own are variants that engines read as what they are: of unions, of
// records inside themselves and of any JSON, also where an object has hundreds of names.
func TestVariants(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	l.queryEnv = sharedEngines(t)
	v3 := []string{"table.topic.format.version", "3", "table.topic.mapping.json", "variant"}

	const schema = `{"type":"record","name":"R","fields":[{"name":"id","type":"long"},{"name":"x","type":["null","long","string",{"type":"record","name":"P","fields":[{"name":"a","type":"boolean"}]}]},
		{"name":"self","type":["null","R"],"default":null}]}`
	s.createTopic("unions", 1, 500*time.Millisecond, v3...)
	header := registerSchema(t, s, "unions-value", schema)
	record := func(id int64, values ...any) []byte {
		return append(header[:len(header):len(header)], raw(id, values...)...)
	}
	produceAll(t, s, "unions", record(1, int64(0), int64(0)), record(2, int64(1), int64(-7), int64(0)), record(3, int64(2), "é", int64(0)),
		record(4, int64(3), []byte{1}, int64(1), int64(5), int64(0), int64(0)))
	waitForTable(t, s, "unions", 4, time.Minute)

	s.createTopic("any", 1, 500*time.Millisecond, v3...)
	header = registerSchemaOf(t, s, "any-value", sr.Schema{Type: sr.TypeJSON, Schema: `{"type":"object","properties":{"id":{"type":"integer"},"x":{}}}`})
	var many []string
	for i := range 300 {
		many = append(many, fmt.Sprintf(`"k%03d":%d`, i, i))
	}
	values := []string{`[1,"a"]`, `{"a":[null,{"b":-0.5}],"é":"😀"}`, `12345678901234567890`, "{" + strings.Join(many, ",") + "}", `null`, `[]`, `{}`, `""`, `false`, `[[[[]]]]`}
	want := map[string]string{
		"unions": "id,x\n1,NULL\n2,-7\n3,\"\"\"é\"\"\"\n4,\"{\"\"P\"\":{\"\"a\"\":true}}\"\n",
		"any":    "id,x\n",
	}
	for i, v := range values {
		produceAll(t, s, "any", fmt.Appendf(header[:len(header):len(header)], `{"id":%d,"x":%s}`, i, v))
		switch {
		case v == "null":
			v = "NULL"
		case strings.Contains(v, `"`):
			v = `"` + strings.ReplaceAll(v, `"`, `""`) + `"`
		}
		want["any"] += fmt.Sprintf("%d,%s\n", i, v)
	}
	waitForTable(t, s, "any", int64(len(values)), time.Minute)

	const proto = `syntax = "proto3"; import "google/protobuf/struct.proto"; message M { int64 id = 1; google.protobuf.Struct x = 2; }`
	structs := valueCase{topic: "structs", config: v3, kind: sr.TypeProtobuf, versions: []string{proto}, records: []versioned{
		{0, `id: 1 x { fields { key: "a" value { list_value { values { number_value: 1.5 } values { null_value: NULL_VALUE } } } } }`}, {0, `id: 2`}}}
	structs.produce(t, s)
	structs.await(t, s)
	want["structs"] = "id,x\n1,\"{\"\"a\"\":[1.5,null]}\"\n2,NULL\n"

	for engine, text := range map[string]string{ // PyIceberg 0.12 has no variants
		"spark":  "to_json(x)",
		"duckdb": "x::JSON::VARCHAR",
		"trino":  "json_format(CAST(x AS json))",
	} {
		for topic, want := range want {
			got := l.query(t, s, engine, fmt.Sprintf("SELECT id, CASE WHEN x IS NULL THEN NULL ELSE %s END AS x FROM ice.default.%s", text, topic))
			if got != want {
				t.Errorf("%s, %s: %s", engine, topic, diffLines(want, got))
			}
		}
		self := strings.Replace(text, "x", "self", 1)
		got := l.query(t, s, engine, fmt.Sprintf("SELECT id, CASE WHEN self IS NULL THEN NULL ELSE %s END AS x FROM ice.default.unions", self))
		if want := "id,x\n1,NULL\n2,NULL\n3,NULL\n4,\"{\"\"id\"\":5,\"\"self\"\":null,\"\"x\"\":null}\"\n"; got != want {
			t.Errorf("%s, a record inside itself: %s", engine, diffLines(want, got))
		}
	}
}

// Columns have the defaults of their fields in every engine: rows of before the column was added, and
// those of writers that do not know it. A null that was written is none.
func TestColumnDefaults(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	l.queryEnv = sharedEngines(t)
	s.createTopic("defaults", 1, 500*time.Millisecond, "table.topic.format.version", "3", "table.topic.mapping.defaults", "true")
	first := `{"type":"record","name":"R","fields":[{"name":"id","type":"long"}]}`
	second := `{"type":"record","name":"R","fields":[{"name":"id","type":"long"},{"name":"n","type":"int","default":-1},{"name":"s","type":["string","null"],"default":"é"},
		{"name":"d","type":{"type":"int","logicalType":"date"},"default":-1},{"name":"t","type":{"type":"long","logicalType":"timestamp-millis"},"default":-1},
		{"name":"m","type":{"type":"bytes","logicalType":"decimal","precision":5,"scale":2},"default":"\u00ff"},{"name":"f","type":"double","default":0.5},{"name":"b","type":"boolean","default":true}]}`
	h1 := registerSchema(t, s, "defaults-value", first)
	h2 := registerSchema(t, s, "defaults-value", second)
	record := func(header []byte, id int64, values ...any) []byte {
		return append(header[:len(header):len(header)], raw(id, values...)...)
	}
	produceAll(t, s, "defaults", record(h1, 1))
	waitForTable(t, s, "defaults", 1, time.Minute)
	produceAll(t, s, "defaults", record(h2, 2, int64(7), int64(1), int64(0), int64(0), int64(1), []byte{1}, parquetiotest.Double(2), []byte{0}), record(h1, 3))
	waitForTable(t, s, "defaults", 3, time.Minute)
	want := "id,n,s,d,t,m,f,b\n1,-1,é,1969-12-31,1969-12-31T23:59:59.999000,-0.01,0.5,true\n" +
		"2,7,NULL,1970-01-01,1970-01-01T00:00:00.000000,0.01,2.0,false\n3,-1,é,1969-12-31,1969-12-31T23:59:59.999000,-0.01,0.5,true\n"
	for _, engine := range engines {
		if got := l.query(t, s, engine, "SELECT id, n, s, d, t, m, f, b FROM ice.default.defaults"); got != want {
			t.Errorf("%s: %s", engine, diffLines(want, got))
		}
	}
}
