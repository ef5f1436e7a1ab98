package maintenance_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	catalogsql "github.com/tabletopic/tabletopic/catalog/sql"
	"github.com/tabletopic/tabletopic/maintenance"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/parquetio"
	"github.com/tabletopic/tabletopic/parquetio/parquetiotest"
)

// A rig is a table in the built-in catalog.
type rig struct {
	t       *testing.T
	catalog *catalogsql.Catalog
	table   *table.Table
	files   *catalog.IO
}

func newRig(t *testing.T, schema *iceberg.Schema, props iceberg.Properties) *rig {
	t.Helper()
	meta, err := metadata.Open(t.Context(), "sqlite::memory:", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = meta.Close() })
	locator := objectstore.NewLocator(objectstore.S3Config{})
	locator.Add(objectstore.NewMemory())
	c, err := catalogsql.Open(t.Context(), meta.DB(), locator, catalogsql.Config{Warehouse: "mem:///warehouse"})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, catalog: c, files: catalog.NewIO(context.Background(), locator)}
	if r.table, err = c.Create(t.Context(), table.Identifier{"n", "t"}, schema, props); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) commit(c catalog.Commit) {
	r.t.Helper()
	next, err := r.catalog.Commit(r.t.Context(), r.table, c)
	if err != nil {
		r.t.Fatal(err)
	}
	r.table = next
}

// write commits the payloads as one file for each partition.
func (r *rig) write(v *parquetio.ValueSchema, dir string, payloads ...[]byte) {
	r.t.Helper()
	mapping := parquetio.Mapping{}
	decoder, err := mapping.Compile(v, r.table.Schema())
	if err != nil {
		r.t.Fatal(err)
	}
	w, err := parquetio.NewTableWriter(r.table.Schema(), r.table.Spec(), "", parquetio.WriterConfig{})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, p := range payloads {
		if err := w.Append(decoder, p, parquetio.RecordMeta{}); err != nil {
			r.t.Fatal(err)
		}
	}
	var added []iceberg.DataFile
	if err := w.Close(func(p parquetio.Part) error {
		location := catalog.DataLocation(r.table, dir+"/"+uuid.NewString()+".parquet")
		df, err := p.DataFile(r.table.Spec(), location)
		added = append(added, df)
		return errors.Join(err, r.files.PutFile(location, p.Body))
	}); err != nil {
		r.t.Fatal(err)
	}
	r.commit(catalog.Commit{Files: added})
}

// rows are what a reader of the table gets, as text, in no order.
func (r *rig) rows(options ...table.ScanOption) (rows []string) {
	r.t.Helper()
	_, batches, err := r.table.Scan(options...).ToArrowRecords(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	for b, err := range batches {
		if err != nil {
			r.t.Fatal(err)
		}
		rows = append(rows, texts(b)...)
	}
	slices.Sort(rows)
	return rows
}

func texts(b arrow.RecordBatch) (rows []string) {
	for i := range int(b.NumRows()) {
		row := map[string]any{}
		for c, f := range b.Schema().Fields() {
			row[f.Name] = parquetiotest.Plain(b.Column(c), i)
		}
		rows = append(rows, fmt.Sprintf("%#v", row))
	}
	return rows
}

// compact makes as few files as possible, until there is nothing left to do.
func (r *rig) compact(p maintenance.Policy) (before, after int) {
	r.t.Helper()
	var looker maintenance.Looker
	for {
		s, err := looker.Look(r.t.Context(), r.table, p)
		if err != nil {
			r.t.Fatal(err)
		}
		groups := maintenance.Plan(s.Files, p)
		if len(groups) == 0 {
			return before, after
		}
		change := catalog.Commit{Replaces: &catalog.Replacement{Sequence: s.Sequence}}
		for _, g := range groups {
			out, err := maintenance.Rewrite(r.t.Context(), r.table, g, g.Names(r.table), p, r.table.SortOrder(), nil)
			if err != nil {
				r.t.Fatal(err)
			}
			before, after = before+len(g.Files), after+len(out)
			change.Files = append(change.Files, out...)
			for _, f := range g.Files {
				change.Replaces.Files = append(change.Replaces.Files, f.DataFile)
			}
		}
		r.commit(change)
	}
}

func avro(t *testing.T, schema string) *parquetio.ValueSchema {
	t.Helper()
	v, err := parquetio.ParseAvro(parquetio.NewRules(), schema)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func tableSchema(t *testing.T, v *parquetio.ValueSchema) *iceberg.Schema {
	t.Helper()
	s, err := parquetio.Mapping{}.TableSchema(v)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Rows of any types are the same rows in fewer files, and the files of two topics stay apart.
func TestRewrittenRowsAreTheSame(t *testing.T) {
	for seed := range uint64(15) {
		r := rand.New(rand.NewPCG(seed, 1))
		names := &parquetiotest.Names{}
		root := names.Record(r, 3)
		for len(root.Schema.(map[string]any)["fields"].([]any)) == 0 {
			root = names.Record(r, 3)
		}
		text, err := json.Marshal(root.Schema)
		if err != nil {
			t.Fatal(err)
		}
		v := avro(t, string(text))
		rig := newRig(t, tableSchema(t, v), iceberg.Properties{"format-version": fmt.Sprint(2 + r.IntN(2)), "write.parquet.compression-codec": []string{"zstd", "gzip", "snappy"}[r.IntN(3)]})
		topics := []string{uuid.NewString(), uuid.NewString(), "others"}
		for i := range 9 {
			var payloads [][]byte
			for range 1 + r.IntN(40) {
				p, _, _ := root.Value(r)
				payloads = append(payloads, p)
			}
			rig.write(v, topics[i%3], payloads...)
		}
		want := rig.rows()
		before, after := rig.compact(maintenance.Policy{Eager: true})
		if before != 9 || after != 3 {
			t.Errorf("seed %d: %d files became %d, want 9 and 3", seed, before, after)
		}
		if diff := cmp.Diff(want, rig.rows()); diff != "" {
			t.Fatalf("seed %d: %.2000s\n%s", seed, diff, text)
		}
	}
}

// Columns that were added, renamed and widened meanwhile are in the new file as a reader of the old ones
// sees them, whose values are by field id.
func TestRewriteFollowsTheSchema(t *testing.T) {
	v1 := avro(t, `{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"b","type":"string"}]}`)
	rig := newRig(t, tableSchema(t, v1), nil)
	long, str := parquetiotest.Long, parquetiotest.Text
	rig.write(v1, "x", slices.Concat(long(1), str("one")), slices.Concat(long(2), str("two")))
	fields := rig.table.Schema().Fields()
	fields[0].Type, fields[1].Name = iceberg.PrimitiveTypes.Int64, "c"
	fields = append(fields, iceberg.NestedField{ID: rig.table.Metadata().LastColumnID() + 1, Name: "b", Type: iceberg.PrimitiveTypes.String})
	rig.commit(catalog.Commit{Schema: iceberg.NewSchema(0, fields...)})
	v2 := avro(t, `{"type":"record","name":"R","fields":[{"name":"a","type":"long"},{"name":"c","type":"string"},{"name":"b","type":"string"}]}`)
	rig.write(v2, "x", slices.Concat(long(1<<40), str("three"), str("new")))
	want := rig.rows()
	if before, after := rig.compact(maintenance.Policy{Eager: true}); before != 2 || after != 1 {
		t.Errorf("%d files became %d", before, after)
	}
	if diff := cmp.Diff(want, rig.rows()); diff != "" || len(want) != 3 {
		t.Errorf("%d rows: %s", len(want), diff)
	}
}

// Files of one partition become one, with its values, whatever the transform; those of an earlier
// partition spec are left alone.
func TestRewriteKeepsPartitions(t *testing.T) {
	v := avro(t, `{"type":"record","name":"R","fields":[{"name":"s","type":["null","string"]},{"name":"n","type":"long"},
		{"name":"at","type":{"type":"long","logicalType":"timestamp-micros"}},{"name":"d","type":{"type":"int","logicalType":"date"}},{"name":"u","type":{"type":"string","logicalType":"uuid"}}]}`)
	schema := tableSchema(t, v)
	for _, c := range []struct {
		field     string
		transform iceberg.Transform
	}{
		{"s", iceberg.IdentityTransform{}}, {"n", iceberg.IdentityTransform{}}, {"d", iceberg.IdentityTransform{}}, {"u", iceberg.IdentityTransform{}}, {"at", iceberg.IdentityTransform{}},
		{"n", iceberg.BucketTransform{NumBuckets: 2}}, {"s", iceberg.TruncateTransform{Width: 1}}, {"at", iceberg.DayTransform{}}, {"at", iceberg.HourTransform{}},
		{"d", iceberg.MonthTransform{}}, {"at", iceberg.YearTransform{}},
	} {
		rig := newRig(t, schema, nil)
		long, str := parquetiotest.Long, parquetiotest.Text
		row := func(i int64) []byte {
			s := slices.Concat(long(1), str(fmt.Sprint("k", i%2)))
			if i%2 == 0 {
				s = long(0)
			}
			return slices.Concat(s, long(i%2), long(i%2*40*86400e6), long(i%2*40), str(fmt.Sprintf("00000000-0000-0000-0000-00000000000%d", i%2)))
		}
		rig.write(v, "x", row(0), row(1))
		rig.write(v, "x", row(2), row(3))
		f, _ := rig.table.Schema().FindFieldByName(c.field)
		spec := iceberg.NewPartitionSpecID(1, iceberg.PartitionField{SourceIDs: []int{f.ID}, FieldID: 1000, Name: "p", Transform: c.transform})
		rig.commit(catalog.Commit{Spec: &spec})
		for i := range int64(3) {
			rig.write(v, "x", row(2*i), row(2*i+1))
		}
		want, parts := rig.rows(), len(partitions(rig))
		before, after := rig.compact(maintenance.Policy{Eager: true})
		if before != 3*parts || after != parts {
			t.Errorf("%s of %s: %d files became %d, in %d partitions", c.transform, c.field, before, after, parts)
		}
		if diff := cmp.Diff(want, rig.rows()); diff != "" {
			t.Errorf("%s of %s: %s", c.transform, c.field, diff)
		}
		if got := len(partitions(rig)); got != parts {
			t.Errorf("%s of %s: %d partitions, want %d", c.transform, c.field, got, parts)
		}
	}
}

// partitions are those of the default spec that have files.
func partitions(r *rig) map[string]bool {
	r.t.Helper()
	out := map[string]bool{}
	manifests, err := r.table.CurrentSnapshot().Manifests(r.files)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, m := range manifests {
		entries, err := catalog.LiveEntries(r.files, m)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, e := range entries {
			if int(m.PartitionSpecID()) == r.table.Metadata().DefaultPartitionSpec() {
				out[fmt.Sprint(e.DataFile().Partition())] = true
			}
		}
	}
	return out
}

// In format version 3 each row keeps its id, and the sequence number of its last change.
func TestRewriteKeepsTheLineageOfRows(t *testing.T) {
	v := avro(t, `{"type":"record","name":"R","fields":[{"name":"a","type":"long"}]}`)
	rig := newRig(t, tableSchema(t, v), iceberg.Properties{"format-version": "3"})
	for i := range int64(6) {
		rig.write(v, "x", parquetiotest.Long(10*i), parquetiotest.Long(10*i+1))
	}
	want := rig.rows(table.WithRowLineage())
	for range 2 { // what was rewritten is rewritten again
		if before, after := rig.compact(maintenance.Policy{Eager: true}); before == 0 || after != 1 {
			t.Errorf("%d files became %d", before, after)
		}
		if diff := cmp.Diff(want, rig.rows(table.WithRowLineage())); diff != "" {
			t.Fatal(diff)
		}
		rig.write(v, "x", parquetiotest.Long(1000))
		want = rig.rows(table.WithRowLineage())
	}
}

// A file whose rows somebody has deleted is left alone, and so are those beside it from before; later
// ones become one.
func TestRowsThatWereDeletedStayDeleted(t *testing.T) {
	v := avro(t, `{"type":"record","name":"R","fields":[{"name":"a","type":"long"}]}`)
	rig := newRig(t, tableSchema(t, v), iceberg.Properties{"write.delete.mode": "merge-on-read"})
	for i := range int64(4) {
		rig.write(v, "x", parquetiotest.Long(10*i), parquetiotest.Long(10*i+1))
	}
	tx := rig.table.NewTransaction()
	if err := tx.Delete(t.Context(), iceberg.EqualTo(iceberg.Reference("a"), int64(11)), nil); err != nil {
		t.Fatal(err)
	}
	next, err := tx.Commit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rig.table = next
	for i := range int64(3) {
		rig.write(v, "x", parquetiotest.Long(100+i))
	}
	want := rig.rows()
	before, after := rig.compact(maintenance.Policy{Eager: true})
	if diff := cmp.Diff(want, rig.rows()); diff != "" || len(want) != 10 {
		t.Errorf("%d rows: %s", len(want), diff)
	}
	if before != 3 || after != 1 {
		t.Errorf("%d files became %d, want 3 and 1", before, after)
	}
}
