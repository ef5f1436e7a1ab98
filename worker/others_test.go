package worker

import (
	"bytes"
	"context"
	"strconv"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/iceberg-go"

	"github.com/tabletopic/tabletopic/catalog"
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
	if r := p.verify(); !r.OK() || r.Others != 6 || r.Partitions[0].Rows != 20 {
		t.Errorf("report %+v, want 6 rows of others and 20 of the log", r)
	}
}

// foreignRows appends 3 rows as an engine does that knows nothing of the Kafka column.
func (p *path) foreignRows(name string, nulls bool) {
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
	if nulls {
		fields = append(fields, field("_kafka", arrow.StructOf(
			field("_kafka.partition", arrow.PrimitiveTypes.Int32), field("_kafka.offset", arrow.PrimitiveTypes.Int64))))
	}
	rows := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
	defer rows.Release()
	for range 3 {
		rows.Field(0).(*array.Int64Builder).Append(-1)
		if nulls {
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
	b, err := iceberg.NewDataFileBuilder(tab.Spec(), iceberg.EntryContentData, location, iceberg.ParquetFile, nil, nil, nil, 3, int64(body.Len()))
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.catalog.Catalog.Commit(context.Background(), tab, catalog.Commit{Files: []iceberg.DataFile{b.Build()}}); err != nil {
		p.t.Fatal(err)
	}
}
