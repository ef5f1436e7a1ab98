package e2e

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A table of format version 3 is read by the engines that know it, its rows have the lineage that
// the version demands, over several commits, and nanoseconds are what they were.
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
	s.createTopic("nanos", 1, 500*time.Millisecond, "table.topic.format.version", "3")
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
	dir := t.TempDir() // DuckDB 1.5 knows no timestamptz_ns
	run(t, nil, "lab/query", "pyiceberg", "--uri", s.catalogURL(), "--parquet", dir, "SELECT * FROM ice.default.nanos")
	got := readParquet(t, filepath.Join(dir, "0.parquet"))
	for i := range got {
		delete(got[i], "_kafka")
	}
	if diff := cmp.Diff(rows, got); diff != "" {
		t.Errorf("PyIceberg: %s", diff)
	}
}
