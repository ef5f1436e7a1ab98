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

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

// engineFixture serves a catalog on local files, in a directory whose name needs no
// escaping anywhere but in careless code.
func engineFixture(t *testing.T, cfg Config) (uri string, c *catalogsql.Catalog, store catalogtest.Store) {
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
	h := httptest.NewServer(New(c, store, cfg, slog.New(slog.NewTextHandler(os.Stderr, nil))))
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
	uri, c, store := engineFixture(t, Config{})
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
	run(t, fmt.Sprintf(`
import duckdb, glob, sys
db = duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False})
for name in ("httpfs", "avro", "iceberg"):
    db.sql("LOAD '%%s'" %% glob.glob(sys.prefix + "/lib/python*/site-packages/duckdb_extension_" + name + "/extensions/*/*.duckdb_extension")[0])
db.sql("ATTACH '' AS ice (TYPE iceberg, ENDPOINT '%s', AUTHORIZATION_TYPE 'none', ACCESS_DELEGATION_MODE 'none')")
db.sql("CREATE SCHEMA ice.duck")
db.sql("CREATE TABLE ice.duck.own (id BIGINT, name VARCHAR)")
db.sql("INSERT INTO ice.duck.own SELECT i, 'n' || i FROM range(10) r(i)")
db.sql("BEGIN")
db.sql("INSERT INTO ice.duck.own VALUES (10, 'ten')")
db.sql("INSERT INTO ice.web.clicks (id, name) VALUES (1001, 'duck')")
db.sql("COMMIT") # one transaction of two tables
assert db.sql("SELECT sum(id) FROM ice.duck.own").fetchall() == [(55,)]
db.sql("DELETE FROM ice.duck.own WHERE id = 10")
assert db.sql("SELECT sum(id) FROM ice.duck.own").fetchall() == [(45,)]
db.sql("DROP TABLE ice.duck.own")
db.sql("DROP SCHEMA ice.duck")
`, uri), lab.Path(t, "duckdb", "venv", "bin", "python"))
	if tbl, err = c.Load(t.Context(), tbl.Identifier()); err != nil {
		t.Fatal(err)
	}
	if _, ok := tbl.Schema().FindFieldByName("country"); !ok {
		t.Error("the column that PyIceberg added is gone")
	}
	if _, err = c.Commit(t.Context(), tbl, catalog.Commit{Snapshot: true}); err != nil { // on top of theirs
		t.Fatal(err)
	}
	if got := query(t, "duckdb", uri, sum); got != "n,s,c\n1002,501501,1" {
		t.Errorf("duckdb at the end: %s", got)
	}
}

// Spark creates (staged, as a query), writes, changes and drops tables, and sees ours.
func TestSpark(t *testing.T) {
	python := lab.Path(t, "spark", "venv", "bin", "python")
	jars, err := os.ReadFile(lab.Path(t, "spark", "classpath"))
	if err != nil {
		t.Fatal(err)
	}
	uri, c, store := engineFixture(t, Config{})
	tbl, err := c.Create(t.Context(), table.Identifier{"web", "clicks"}, catalogtest.Schema(), nil)
	if err != nil {
		t.Fatal(err)
	}
	appendRows(t, c, store, tbl, 0, 100)
	run(t, fmt.Sprintf(`
from pyspark.sql import SparkSession
b = SparkSession.builder.master("local[1]")
for k, v in {
    "spark.jars": %q, "spark.driver.memory": "700m", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1",
    "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog", "spark.sql.catalog.ice.type": "rest",
    "spark.sql.catalog.ice.uri": %q, "spark.sql.catalog.ice.cache-enabled": "false"}.items():
    b = b.config(k, v)
s = b.getOrCreate()
def rows(q):
    return [tuple(r) for r in s.sql(q).collect()]
def want(q, r):
    got = rows(q)
    assert got == r, f"{q}: {got}, want {r}"
want("SELECT count(*), sum(id), max(_kafka.offset) FROM ice.web.clicks", [(100, 4950, 99)])
s.sql("ALTER TABLE ice.web.clicks ADD COLUMN country string")
s.sql("INSERT INTO ice.web.clicks (id, country) VALUES (100, 'CH')")
s.sql("DELETE FROM ice.web.clicks WHERE id = 0")
want("SELECT count(*), sum(id), count(country) FROM ice.web.clicks", [(100, 5050, 1)])
s.sql("CREATE NAMESPACE ice.lab")
s.sql("CREATE TABLE ice.lab.a (id bigint, d date) USING iceberg PARTITIONED BY (days(d)) TBLPROPERTIES ('format-version'='2')")
s.sql("INSERT INTO ice.lab.a VALUES (1, date '2026-01-01'), (2, date '2026-01-02')")
s.sql("CREATE TABLE ice.lab.b USING iceberg AS SELECT * FROM ice.lab.a")
s.sql("CREATE OR REPLACE TABLE ice.lab.b USING iceberg AS SELECT id + 1 AS n FROM ice.lab.a")
want("SELECT sum(n) FROM ice.lab.b", [(5,)])
s.sql("ALTER TABLE ice.lab.a RENAME TO lab.c")
s.sql("ALTER TABLE ice.lab.c REPLACE PARTITION FIELD days(d) WITH months(d)")
s.sql("UPDATE ice.lab.c SET id = 20 WHERE id = 2")
s.sql("CALL ice.system.rewrite_data_files('lab.c')")
s.sql("CALL ice.system.rewrite_manifests('lab.c')")
s.sql("CALL ice.system.expire_snapshots(table => 'lab.c', older_than => timestamp '2100-01-01', retain_last => 1)")
want("SELECT sum(id) FROM ice.lab.c", [(21,)])
want("SHOW TABLES IN ice.lab", [("lab", "b", False), ("lab", "c", False)])
s.sql("CREATE VIEW ice.lab.v (total COMMENT 'of all') AS SELECT sum(id) FROM ice.lab.c")
want("SELECT total FROM ice.lab.v", [(21,)])
s.sql("CREATE OR REPLACE VIEW ice.lab.v AS SELECT sum(id) + 1 AS total FROM ice.lab.c")
s.sql("ALTER VIEW ice.lab.v RENAME TO ice.lab.w")
want("SELECT total FROM ice.lab.w", [(22,)])
want("SHOW VIEWS IN ice.lab", [("lab", "w", False)])
s.sql("DROP VIEW ice.lab.w")
s.sql("DROP TABLE ice.lab.b PURGE")
s.sql("DROP TABLE ice.lab.c")
s.sql("DROP NAMESPACE ice.lab")
want("SHOW NAMESPACES IN ice", [("web",)])
`, strings.ReplaceAll(strings.TrimSpace(string(jars)), ":", ","), uri), python)
	// Our next commit goes on top of Spark's.
	if tbl, err = c.Load(t.Context(), tbl.Identifier()); err != nil {
		t.Fatal(err)
	}
	schema := iceberg.NewSchema(0, append(tbl.Schema().Fields(),
		iceberg.NestedField{ID: tbl.Metadata().LastColumnID() + 1, Name: "ours", Type: iceberg.PrimitiveTypes.String})...)
	if tbl, err = c.Commit(t.Context(), tbl, catalog.Commit{Schema: schema}); err != nil {
		t.Fatal(err)
	}
	if _, err = c.Commit(t.Context(), tbl, catalog.Commit{Snapshot: true}); err != nil {
		t.Fatal(err)
	}
	want := "n,s\n100,5050"
	if got := query(t, "duckdb", uri, "SELECT count(*) AS n, sum(id) AS s FROM ice.web.clicks"); got != want {
		t.Errorf("duckdb after spark: %s, want %s", got, want)
	}
}

// Trino reads our table, changes it, and makes its own.
func TestTrino(t *testing.T) {
	url := lab.SharedTrino(t)
	uri, c, store := engineFixture(t, Config{})
	tbl, err := c.Create(t.Context(), table.Identifier{"web", "clicks"}, catalogtest.Schema(), nil)
	if err != nil {
		t.Fatal(err)
	}
	appendRows(t, c, store, tbl, 0, 100)
	for _, step := range []struct{ statement, want string }{
		{fmt.Sprintf(`CREATE CATALOG ice USING iceberg WITH ("iceberg.catalog.type"='rest', "iceberg.rest-catalog.uri"='%s', "fs.local.enabled"='true', "local.location"='/')`, uri), ""},
		{"SELECT count(*), sum(id), max(_kafka.\"offset\") FROM ice.web.clicks", "[[100 4950 99]]"},
		{"INSERT INTO ice.web.clicks (id) VALUES 100", "[[1]]"},
		{"DELETE FROM ice.web.clicks WHERE id < 10", "[[10]]"},
		{"ALTER TABLE ice.web.clicks ADD COLUMN country varchar", ""},
		{"SELECT count(*), sum(id), count(country) FROM ice.web.clicks", "[[91 5005 0]]"},
		{"CREATE SCHEMA ice.lab", ""},
		{"CREATE TABLE ice.lab.a WITH (partitioning = ARRAY['bucket(id, 2)']) AS SELECT id FROM ice.web.clicks", "[[91]]"},
		{"ALTER TABLE ice.lab.a RENAME TO ice.lab.b", ""},
		{"ALTER TABLE ice.lab.b EXECUTE optimize", ""},
		{"SELECT sum(id) FROM ice.lab.b", "[[5005]]"},
		{"CREATE VIEW ice.lab.v AS SELECT sum(id) AS total FROM ice.lab.b", ""},
		{"SELECT total FROM ice.lab.v", "[[5005]]"},
		{"CREATE OR REPLACE VIEW ice.lab.v AS SELECT sum(id) + 1 AS total FROM ice.lab.b", ""},
		{"ALTER VIEW ice.lab.v RENAME TO ice.lab.w", ""},
		{"SELECT total FROM ice.lab.w", "[[5006]]"},
		{"DROP VIEW ice.lab.w", ""},
		{"DROP TABLE ice.lab.b", ""},
		{"DROP SCHEMA ice.lab", ""},
		{"SHOW TABLES FROM ice.web", "[[clicks]]"},
	} {
		rows, err := lab.TrinoQuery(url, step.statement)
		if err != nil {
			t.Fatalf("%s: %v", step.statement, err)
		}
		if got := fmt.Sprint(rows); step.want != "" && got != step.want {
			t.Errorf("%s: %s, want %s", step.statement, got, step.want)
		}
	}
	if tbl, err = c.Load(t.Context(), tbl.Identifier()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Commit(t.Context(), tbl, catalog.Commit{Snapshot: true}); err != nil {
		t.Fatal(err)
	}
}
