package parquetio

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/iceberg-go"

	"github.com/tabletopic/tabletopic/parquetio/parquetiotest"
)

// The mappings of tables with and without a Kafka column.
var withKafka, noKafka = Mapping{KafkaColumn: "_kafka"}, Mapping{}

// A rig is the whole way from one writer schema to a file.
type rig struct {
	t       testing.TB
	value   *ValueSchema
	table   *iceberg.Schema
	decoder *Decoder
	builder *Builder
}

func newRig(t testing.TB, schema string) *rig {
	t.Helper()
	v, err := ParseAvro(NewRules(), schema)
	if err != nil {
		t.Fatal(err)
	}
	return rigOf(t, v)
}

func rigOf(t testing.TB, v *ValueSchema) *rig {
	t.Helper()
	r := &rig{t: t, value: v}
	var err error
	if r.table, err = withKafka.TableSchema(r.value); err != nil {
		t.Fatal(err)
	}
	if r.decoder, err = withKafka.Compile(r.value, r.table); err != nil {
		t.Fatal(err)
	}
	if r.builder, err = NewBuilder(r.table, "_kafka"); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) append(payloads ...[]byte) {
	r.t.Helper()
	for i, p := range payloads {
		if err := r.builder.Append(r.decoder, p, RecordMeta{Offset: int64(i)}); err != nil {
			r.t.Fatal(err)
		}
	}
}

// rows writes what the builder holds to a file and reads it back.
func (r *rig) rows() []map[string]any {
	r.t.Helper()
	return readFile(r.t, writeFile(r.t, r.table, WriterConfig{}, finish(r.t, r.builder)))
}

func finish(t testing.TB, b *Builder) arrow.RecordBatch {
	t.Helper()
	for _, i := range b.top {
		if err := check(b.cols, i, b.rows); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

func writeFile(t testing.TB, table *iceberg.Schema, cfg WriterConfig, batches ...arrow.RecordBatch) *File {
	t.Helper()
	w, err := NewWriter(table, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range batches {
		if err := w.Write(b); err != nil {
			t.Fatal(err)
		}
		b.Release()
	}
	f, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// readFile returns the rows of a file as plain values, the Kafka column left out.
func readFile(t testing.TB, f *File) []map[string]any {
	t.Helper()
	reader, err := file.NewParquetReader(bytes.NewReader(bytes.Join(f.Body, nil)), file.WithReadProps(parquet.NewReaderProperties(memory.DefaultAllocator)))
	if err != nil {
		t.Fatal(err)
	}
	arrowReader, err := pqarrow.NewFileReader(reader, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	table, err := arrowReader.ReadTable(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer table.Release()
	rows := make([]map[string]any, table.NumRows())
	for i := range rows {
		rows[i] = map[string]any{}
	}
	for c := range int(table.NumCols()) {
		column := table.Column(c)
		at := 0
		for _, chunk := range column.Data().Chunks() {
			for i := range chunk.Len() {
				if column.Name() != "_kafka" {
					rows[at][column.Name()] = parquetiotest.Plain(chunk, i)
				}
				at++
			}
		}
	}
	return rows
}

// Encoding by hand, so that tests can write what no encoder would.
var long, text, double, float = parquetiotest.Long, parquetiotest.Text, parquetiotest.Double, parquetiotest.Float

func cat(parts ...[]byte) []byte { return slices.Concat(parts...) }
