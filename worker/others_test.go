package worker

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/iceberg-go"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/coordinator"
)

// Rows that other writers add name no offset, in a null or by leaving the column out: they
// are counted apart, and the table still verifies.
func TestVerifyCountsRowsOfOtherWriters(t *testing.T) {
	p := newPath(t, 1)
	p.start()
	p.produce(10)
	p.committed()
	p.foreignRows("nulls", true)
	p.foreignRows("no-column", false)
	p.produce(10)
	p.committed()
	if r := p.verify(); !r.OK || r.Others != 6 || r.Partitions[0].Rows != 20 {
		t.Errorf("report %+v, want 6 rows of others and 20 of the log", r)
	}
}

// A column that another writer adds while our commit is on its way stays, through that
// commit and through the columns that we add ourselves.
func TestColumnOfAnotherWriterStays(t *testing.T) {
	p := newPath(t, 1)
	p.schemas[2] = wideSchema
	p.catalog.fault = func(n int) fault {
		if n == 1 {
			p.foreignColumn("region")
		}
		return faultNone
	}
	p.start()
	for range 3 {
		p.produce(5)
		p.committed()
	}
	p.logs[0].append(t, encode(t, 2, wideSchema, map[string]any{"id": int64(5), "extra": "x", "name": nil}))
	tab := p.committed()
	for _, name := range []string{"region", "extra"} {
		if _, ok := tab.Schema().FindFieldByName(name); !ok {
			t.Errorf("the table has lost column %s: %v", name, tab.Schema())
		}
	}
	p.exact(16, 0)
}

// foreignColumn adds a column as ALTER TABLE does.
func (p *path) foreignColumn(name string) {
	p.t.Helper()
	tab, err := p.load()
	if err != nil {
		p.t.Error(err)
		return
	}
	fields := append(slices.Clone(tab.Schema().Fields()), iceberg.NestedField{ID: tab.Metadata().LastColumnID() + 1, Name: name, Type: iceberg.PrimitiveTypes.String})
	if _, err := p.catalog.Catalog.Commit(context.Background(), tab, catalog.Commit{Schema: iceberg.NewSchema(tab.Schema().ID+1, fields...)}); err != nil {
		p.t.Error(err)
	}
}

// Records of three schemas, one after the other, that are committed together are in one snapshot, and there
// once, also if the process dies when the catalog was called: a commit is one whatever the number of
// schemas in it.
func TestSchemasOfOneRoundAreOneCommit(t *testing.T) {
	const third = `{"type":"record","name":"Event","fields":[{"name":"id","type":"long"},{"name":"other","type":["null","long"],"default":null}]}`
	for _, f := range []fault{faultNone, faultApplied, faultLost} {
		p := newPath(t, 2)
		p.schemas[2], p.schemas[3] = wideSchema, third
		interleave := func(times int) {
			for _, l := range p.logs {
				for range times {
					l.append(t, event(t, 1))
					l.append(t, encode(t, 2, wideSchema, map[string]any{"id": int64(5), "extra": "x", "name": nil}))
					l.append(t, encode(t, 3, third, map[string]any{"id": int64(6), "other": int64(7)}))
				}
			}
		}
		interleave(1) // the table has all columns
		p.start()
		p.committed()
		p.crash()
		before, err := p.load()
		if err != nil {
			t.Fatal(err)
		}
		p.cfg.Lag = time.Hour // what is there is one backlog, and one round
		interleave(3)
		reached := make(chan struct{}, 1)
		p.catalog.mu.Lock()
		p.catalog.fault = func(int) fault {
			select {
			case reached <- struct{}{}:
			default:
			}
			return f
		}
		p.catalog.mu.Unlock()
		p.start()
		<-reached
		if f != faultNone {
			p.crash()
			p.catalog.mu.Lock()
			p.catalog.fault = nil
			p.catalog.mu.Unlock()
			p.start()
		}
		after := p.committed()
		p.exact(24, 0)
		if got := len(after.Metadata().Snapshots()) - len(before.Metadata().Snapshots()); got != 1 {
			t.Errorf("fault %d: %d snapshots of one round of three schemas, want 1", f, got)
		}
		sum, ok, err := coordinator.ReadSummary(after.CurrentSnapshot().Summary.Properties)
		var rows int64
		for _, r := range sum.Ranges {
			rows += r.Rows
		}
		if err != nil || !ok || rows != 18 {
			t.Errorf("fault %d: the snapshot has %d rows, want 18: %+v, %v", f, rows, sum, err)
		}
		p.crash()
	}
}

// foreignRows appends 3 rows as an engine does that knows nothing of the Kafka column.
func (p *path) foreignRows(name string, nulls bool) { p.foreignFile(name, nulls, make([]*place, 3)...) }

// place is a partition and an offset in it.
type place struct {
	partition int32
	offset    int64
}

// foreignFile appends a file of another writer, with a row for each place that it names; nil
// names none, by a null in the Kafka column or, for all rows, by leaving the column out.
func (p *path) foreignFile(name string, column bool, places ...*place) {
	p.t.Helper()
	tab, err := p.load()
	if err != nil {
		p.t.Fatal(err)
	}
	field := func(name string, typ arrow.DataType) arrow.Field {
		f, ok := tab.Schema().FindFieldByName(name)
		if !ok {
			p.t.Fatalf("no column %s", name)
		}
		leaf := name[max(0, bytes.LastIndexByte([]byte(name), '.')+1):]
		return arrow.Field{Name: leaf, Type: typ, Nullable: true, Metadata: arrow.NewMetadata([]string{"PARQUET:field_id"}, []string{strconv.Itoa(f.ID)})}
	}
	fields := []arrow.Field{field("id", arrow.PrimitiveTypes.Int64)}
	if column {
		fields = append(fields, field("_kafka", arrow.StructOf(
			field("_kafka.partition", arrow.PrimitiveTypes.Int32), field("_kafka.offset", arrow.PrimitiveTypes.Int64))))
	}
	rows := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
	defer rows.Release()
	for _, at := range places {
		rows.Field(0).(*array.Int64Builder).Append(-1)
		switch {
		case at != nil:
			kafka := rows.Field(1).(*array.StructBuilder)
			kafka.Append(true)
			kafka.FieldBuilder(0).(*array.Int32Builder).Append(at.partition)
			kafka.FieldBuilder(1).(*array.Int64Builder).Append(at.offset)
		case column:
			rows.Field(1).AppendNull()
		}
	}
	batch := rows.NewRecordBatch()
	defer batch.Release()
	var body bytes.Buffer
	w, err := pqarrow.NewFileWriter(batch.Schema(), &body, parquet.NewWriterProperties(), pqarrow.DefaultWriterProps())
	if err == nil {
		err = w.Write(batch)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	location := catalog.DataLocation(tab, name+".parquet")
	bucket, key, err := p.locator.Resolve(p.t.Context(), location)
	if err == nil {
		err = bucket.Put(p.t.Context(), key, body.Bytes())
	}
	if err != nil {
		p.t.Fatal(err)
	}
	b, err := iceberg.NewDataFileBuilder(tab.Spec(), iceberg.EntryContentData, location, iceberg.ParquetFile, nil, nil, nil, int64(len(places)), int64(body.Len()))
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.catalog.Catalog.Commit(context.Background(), tab, catalog.Commit{Files: []iceberg.DataFile{b.Build()}}); err != nil {
		p.t.Fatal(err)
	}
}
