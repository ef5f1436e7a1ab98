package server

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/catalogtest"
	catalogsql "github.com/tabletopic/tabletopic/catalog/sql"
	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/objectstore"
)

// engineFixture serves a catalog on local files, in a directory whose name needs no
// escaping anywhere but in careless code.
func engineFixture(t *testing.T) (uri string, c *catalogsql.Catalog, store catalogtest.Store) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "a b=1%20")
	dir, err := objectstore.OpenDir(vfs.Default, root)
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "metadata.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	store = catalogtest.Store{Prefix: "file://" + root + "/", Bucket: dir}
	c, err = catalogsql.Open(t.Context(), db, store, catalogsql.Config{Warehouse: "file://" + root + "/warehouse"})
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(New(c, store, Config{}, slog.New(slog.NewTextHandler(os.Stderr, nil))))
	t.Cleanup(h.Close)
	return h.URL, c, store
}

// appendRows commits n rows with the ids from first on, in one file.
func appendRows(t *testing.T, c *catalogsql.Catalog, store catalogtest.Store, tbl *table.Table, first, n int64) *table.Table {
	t.Helper()
	schema, err := table.SchemaToArrowSchema(tbl.Schema(), nil, true, false)
	if err != nil {
		t.Fatal(err)
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	for i := first; i < first+n; i++ {
		b.Field(0).(*array.Int64Builder).Append(i)
		b.Field(1).(*array.StringBuilder).Append(fmt.Sprintf("name %d", i))
		k := b.Field(2).(*array.StructBuilder)
		k.Append(true)
		k.FieldBuilder(0).(*array.Int32Builder).Append(int32(i % 2))
		k.FieldBuilder(1).(*array.Int64Builder).Append(i)
	}
	rows := b.NewRecordBatch()
	defer rows.Release()
	var body bytes.Buffer
	w, err := pqarrow.NewFileWriter(schema, &body, parquet.NewWriterProperties(), pqarrow.DefaultWriterProps())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Write(rows), w.Close()); err != nil {
		t.Fatal(err)
	}
	footer, err := w.FileMetadata()
	if err != nil {
		t.Fatal(err)
	}
	location := catalog.DataLocation(tbl, fmt.Sprintf("%d.parquet", first))
	if err := catalog.NewIO(t.Context(), store).WriteFile(location, body.Bytes()); err != nil {
		t.Fatal(err)
	}
	file, err := table.DataFileFromMetadata(table.DataFileArgs{Schema: tbl.Schema(), Spec: tbl.Spec(), Metadata: footer, FilePath: location,
		FileSize: int64(body.Len()), FormatVersion: tbl.Metadata().Version(), Format: iceberg.ParquetFile, Content: iceberg.EntryContentData})
	if err != nil {
		t.Fatal(err)
	}
	next, err := c.Commit(t.Context(), tbl, catalog.Commit{Files: []iceberg.DataFile{file}, Properties: iceberg.Properties{"next": fmt.Sprint(first + n)}})
	if err != nil {
		t.Fatal(err)
	}
	return next
}

func run(t *testing.T, stdin string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s\n%s", filepath.Base(name), strings.Join(args, " "), err, out.String(), errs.String())
	}
	return strings.TrimSpace(out.String())
}

func query(t *testing.T, engine, uri, statement string) string {
	t.Helper()
	return run(t, "", "../../e2e/lab/query", engine, "--uri", uri, "--sort", statement)
}

// Engines read what our commits made, through merged manifests, and write to it.
func TestEngines(t *testing.T) {
	lab.Path(t, "duckdb", "venv")
	python := lab.Path(t, "python", "venv", "bin", "python")
	uri, c, store := engineFixture(t)
	tbl, err := c.Create(t.Context(), table.Identifier{"web", "clicks"}, catalogtest.Schema(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(25) { // merges manifests twice
		tbl = appendRows(t, c, store, tbl, i*40, 40)
	}
	want := "n,s\n1000,499500"
	sum := "SELECT count(*) AS n, sum(id) AS s FROM ice.web.clicks"
	if got := query(t, "duckdb", uri, sum); got != want {
		t.Errorf("duckdb: %s, want %s", got, want)
	}
	if got := query(t, "pyiceberg", uri, "ice.web.clicks"); strings.Count(got, "\n") != 1000 || !strings.Contains(got, "name 999") {
		t.Errorf("pyiceberg: %d lines", strings.Count(got, "\n"))
	}
	run(t, fmt.Sprintf(`
import pyarrow as pa
from pyiceberg.catalog import load_catalog
c = load_catalog("c", type="rest", uri=%q)
t = c.load_table("web.clicks")
with t.update_schema() as u:
    u.add_column("country", __import__("pyiceberg.types").types.StringType())
rows = pa.table({"id": pa.array([1000], pa.int64()), "name": ["py"], "country": ["CH"]})
t.append(rows)
c.create_namespace("py", {"owner": "me"})
own = c.create_table("py.own", schema=rows.schema)
own.append(rows)
with c.create_table_transaction("py.staged", schema=rows.schema) as tx:
    tx.append(rows)
assert c.load_table("py.staged").scan().to_arrow().num_rows == 1
c.rename_table("py.own", "py.renamed")
assert c.load_table("py.renamed").scan().to_arrow().num_rows == 1
assert sorted(c.list_tables("py")) == [("py", "renamed"), ("py", "staged")], c.list_tables("py")
c.drop_table("py.renamed")
c.purge_table("py.staged")
c.drop_namespace("py")
assert c.list_namespaces() == [("web",)], c.list_namespaces()
`, uri), python)
	want = "n,s,c\n1001,500500,1"
	sum = "SELECT count(*) AS n, sum(id) AS s, count(country) AS c FROM ice.web.clicks"
	if got := query(t, "duckdb", uri, sum); got != want {
		t.Errorf("duckdb after pyiceberg: %s, want %s", got, want)
	}
	if tbl, err = c.Load(t.Context(), tbl.Identifier()); err != nil {
		t.Fatal(err)
	}
	if _, ok := tbl.Schema().FindFieldByName("country"); !ok {
		t.Error("the column that PyIceberg added is gone")
	}
}
