package server

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog"
	catalogsql "github.com/tabletopic/tabletopic/catalog/sql"
	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/parquetio"
)

// partitionedValues are long texts whose first 16 characters are alike or cannot be counted
// up, and times before and after 1970.
func partitionedValues() (texts []string, times []time.Time) {
	alike := strings.Repeat("a", 31)
	texts = []string{alike + "a", alike + "z", strings.Repeat("z", 32), strings.Repeat("\U0010FFFF", 32), "short", "a b/c=d%20é", ""}
	for _, at := range []string{"1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00Z", "1899-03-01T12:00:00Z", "2026-11-30T17:00:00Z", "1969-12-31T00:00:00Z", "2100-02-28T23:59:59.999999Z", "0001-01-01T00:00:00Z"} {
		t, err := time.Parse(time.RFC3339Nano, at)
		if err != nil {
			panic(err)
		}
		times = append(times, t)
	}
	return texts, times
}

// writePartitioned makes a table with partitions of every kind and one row for each value.
func writePartitioned(t *testing.T, c *catalogsql.Catalog, locator catalog.Locator) *table.Table {
	t.Helper()
	value, err := parquetio.ParseAvro(parquetio.NewRules(), `{"type":"record","name":"R","fields":[{"name":"id","type":"long"},{"name":"p","type":["null","string"]},
		{"name":"moment","type":{"type":"long","logicalType":"timestamp-micros"}},{"name":"box","type":{"type":"record","name":"I","fields":[{"name":"id","type":"int"}]}}]}`)
	if err != nil {
		t.Fatal(err)
	}
	schema, err := parquetio.Mapping{KafkaColumn: "_kafka"}.TableSchema(value)
	if err != nil {
		t.Fatal(err)
	}
	tbl, err := c.Create(t.Context(), table.Identifier{"web", "parts"}, schema, nil)
	if err != nil {
		t.Fatal(err)
	}
	field := func(n int, column, name string, x iceberg.Transform) iceberg.PartitionField {
		f, ok := tbl.Schema().FindFieldByName(column)
		if !ok {
			t.Fatal(column)
		}
		return iceberg.PartitionField{SourceIDs: []int{f.ID}, FieldID: 1000 + n, Name: name, Transform: x}
	}
	spec := iceberg.NewPartitionSpecID(1, field(0, "p", "p", iceberg.IdentityTransform{}), field(1, "p", "p_trunc_3", iceberg.TruncateTransform{Width: 3}),
		field(2, "moment", "moment_day", iceberg.DayTransform{}), field(3, "id", "id_bucket_4", iceberg.BucketTransform{NumBuckets: 4}),
		field(4, "box.id", "box_id", iceberg.IdentityTransform{}), field(5, "_kafka.partition", "gone", iceberg.VoidTransform{}))
	if tbl, err = c.Commit(t.Context(), tbl, catalog.Commit{Spec: &spec}); err != nil {
		t.Fatal(err)
	}
	decoder, err := parquetio.Mapping{KafkaColumn: "_kafka"}.Compile(value, tbl.Schema())
	if err != nil {
		t.Fatal(err)
	}
	texts, times := partitionedValues()
	for round := range 2 { // two manifests, so that engines choose between them
		w, err := parquetio.NewTableWriter(tbl.Schema(), tbl.Spec(), "_kafka", parquetio.WriterConfig{})
		if err != nil {
			t.Fatal(err)
		}
		for i, text := range texts {
			if i%2 != round {
				continue
			}
			row := binary.AppendVarint(nil, int64(i))
			row = append(binary.AppendVarint(append(row, 2), int64(len(text))), text...)
			row = binary.AppendVarint(row, times[i].UnixMicro())
			row = binary.AppendVarint(row, int64(i))
			if err := w.Append(decoder, row, parquetio.RecordMeta{Offset: int64(i)}); err != nil {
				t.Fatal(err)
			}
		}
		var files []iceberg.DataFile
		if err := w.Close(func(p parquetio.Part) error {
			location := catalog.DataLocation(tbl, fmt.Sprintf("%d-%d.parquet", round, len(files)))
			var body []byte
			for _, b := range p.Body {
				body = append(body, b...)
			}
			if err := catalog.NewIO(t.Context(), locator).WriteFile(location, body); err != nil {
				return err
			}
			f, err := p.DataFile(tbl.Spec(), location)
			files = append(files, f)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if tbl, err = c.Commit(t.Context(), tbl, catalog.Commit{Files: files}); err != nil {
			t.Fatal(err)
		}
	}
	return tbl
}

// Engines that skip files by partition find each row of a partitioned table by its long text
// and by its time, before 1970 too, and where a partition field is void.
func TestEnginesFindRowsByPartition(t *testing.T) {
	python := lab.Path(t, "python", "venv", "bin", "python")
	lab.Path(t, "duckdb", "venv")
	trino := lab.SharedTrino(t)
	uri, c, store := engineFixture(t, Config{})
	writePartitioned(t, c, store)
	texts, times := partitionedValues()
	if _, err := lab.TrinoQuery(trino, fmt.Sprintf(`CREATE CATALOG parts USING iceberg WITH ("iceberg.catalog.type"='rest', "iceberg.rest-catalog.uri"='%s', "fs.local.enabled"='true', "local.location"='/')`, uri)); err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	fmt.Fprintf(&script, `
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo, And
t = load_catalog("c", type="rest", uri=%q).load_table("web.parts")
def check(filter, want):
    got = t.scan(row_filter=filter).to_arrow().column("id").to_pylist()
    assert got == [want], f"{filter}: {got}, want {want}"
    files = len(list(t.scan(row_filter=filter).plan_files()))
    assert files == 1, f"{filter}: {files} files"
`, uri)
	for i, text := range texts {
		at := times[i].Format("2006-01-02 15:04:05.000000")
		fmt.Fprintf(&script, "check(EqualTo('p', %q), %d)\ncheck(EqualTo('moment', '%s+00:00'), %d)\n", text, i, strings.Replace(at, " ", "T", 1), i)
		want := fmt.Sprintf("[[%d]]", i)
		for _, where := range []string{"p = '" + text + "'", "moment = TIMESTAMP '" + at + " UTC'", fmt.Sprintf("box.id = %d", i)} {
			rows, err := lab.TrinoQuery(trino, "SELECT id FROM parts.web.parts WHERE "+where)
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(rows); got != want {
				t.Errorf("trino: %s: %s, want %s", where, got, want)
			}
			if strings.HasPrefix(where, "moment") && times[i].Before(time.Unix(0, 0)) {
				continue // DuckDB 1.5.5 rounds days before 1970 up where it prunes, and finds nothing
			}
			where = strings.Replace(where, " UTC'", "+00:00'", 1)
			where = strings.Replace(where, "TIMESTAMP", "TIMESTAMPTZ", 1)
			if got, want := query(t, "duckdb", uri, "SELECT id FROM ice.web.parts WHERE "+where), fmt.Sprintf("id\n%d", i); got != want {
				t.Errorf("duckdb: %s: %s, want %s", where, got, want)
			}
		}
	}
	run(t, script.String(), python, "-")
}
