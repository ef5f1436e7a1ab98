package e2e

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// dataFiles returns the Parquet files of a server that keeps them in a directory.
func dataFiles(t *testing.T, s *server, table string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(s.data, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".parquet") && strings.Contains(path, "/"+table+"/") {
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("no data files of %s: %v", table, err)
	}
	return files
}

// What a topic says of its files is in the table's properties and in the files, as another reader
// sees them: codec, Bloom filters that know what is not there, and bounds of the columns that are
// to have some, inside of structs too. A change goes into the next file; what cannot be is refused.
func TestWritePropertiesOfATopic(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	s.createTopic("events", 1, 300*time.Millisecond,
		"table.topic.write.properties", "write.parquet.compression-codec=gzip, write.parquet.bloom-filter-enabled.column.text=true, write.parquet.bloom-filter-fpp.column.text=0.000001, write.metadata.metrics.column.id=counts")
	header := registerSchema(t, s, "events-value", eventSchema)
	var values [][]byte
	for i := range 1000 {
		values = append(values, encoded(t, header, eventSchema, event{int64(i), fmt.Sprintf("text %d", i)}))
	}
	produceAll(t, s, "events", values...)
	waitForTable(t, s, "events", 1000, time.Minute)
	files := strings.Join(dataFiles(t, s, "events"), "', '")
	query := func(want, sql string) {
		t.Helper()
		if got := l.query(t, s, "duckdb", sql); got != want {
			t.Errorf("%s: %s", sql, diffLines(want, got))
		}
	}
	query("codec\nGZIP\n", fmt.Sprintf("SELECT DISTINCT compression AS codec FROM parquet_metadata(['%s'])", files))
	query("c\ntext\n", fmt.Sprintf("SELECT DISTINCT path_in_schema AS c FROM parquet_metadata(['%s']) WHERE bloom_filter_offset IS NOT NULL", files))
	// Whether the filters say that no row group can have the value.
	query("absent\ntrue\n", fmt.Sprintf("SELECT bool_and(bloom_filter_excludes) AS absent FROM parquet_bloom_probe(['%s'], 'text', 'text 1000')", files))
	query("absent\nfalse\n", fmt.Sprintf("SELECT bool_and(bloom_filter_excludes) AS absent FROM parquet_bloom_probe(['%s'], 'text', 'text 999')", files))
	query("n\n1\n", "SELECT count(*) AS n FROM ice.default.events WHERE text = 'text 999'")
	bounds := run(t, nil, python(), "-c", `
import sys
from pyiceberg.catalog import load_catalog
t = load_catalog("ice", uri=sys.argv[1]).load_table("default.events")
offset = t.schema().find_field("_kafka.offset").field_id
for f in t.inspect.files().select(["readable_metrics", "lower_bounds"]).to_pylist():
    m = f["readable_metrics"]
    print(m["id"]["lower_bound"], m["id"]["value_count"], m["text"]["lower_bound"], offset in dict(f["lower_bounds"]))
print(t.properties["write.parquet.compression-codec"])`, s.catalogURL())
	if !strings.HasPrefix(bounds, "None ") || !strings.Contains(bounds, " text 0 True\n") || !strings.HasSuffix(strings.TrimSpace(bounds), "gzip") {
		t.Errorf("PyIceberg reads the metrics %s", bounds)
	}
	if out, code := s.cli("", "topic", "alter", "events", "--config", "table.topic.write.properties=write.parquet.compression-codec=snappy"); code != 0 {
		t.Fatal(out)
	}
	eventually(t, time.Minute, "a file of the codec that was set", func() error {
		produceAll(t, s, "events", values[0])
		got, err := l.tryQuery(s, "duckdb", fmt.Sprintf("SELECT DISTINCT compression AS codec FROM parquet_metadata(['%s'])", strings.Join(dataFiles(t, s, "events"), "', '")))
		if err != nil || got != "codec\nGZIP\nSNAPPY\n" {
			return fmt.Errorf("%s, %v", got, err)
		}
		return nil
	})
	for setting, hint := range map[string]string{
		"write.parquet.compression-codec=lzo":                    "zstd, gzip, snappy",
		"write.target-file-size-bytes=1000":                      "docs/tables.md",
		"write.parquet.bloom-filter-fpp.column.text=2":           "between 0 and 1",
		"write.parquet.bloom-filter-enabled.column.text":         "NAME=VALUE",
		"write.metadata.metrics.default=some":                    "truncate(N)",
		"write.parquet.bloom-filter-max-bytes=a":                 "a number from",
		"write.parquet.page-size-bytes=1,write.parquet.x.y.z=no": "write.parquet.x.y.z",
	} {
		out, code := s.cli("", "topic", "alter", "events", "--config", "table.topic.write.properties="+setting)
		if code != 1 || !strings.Contains(out, hint) {
			t.Errorf("%s: exit %d, want %q in %s", setting, code, hint, out)
		}
	}
}
