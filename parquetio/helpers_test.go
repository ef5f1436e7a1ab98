package parquetio

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/iceberg-go"
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
	v, err := ParseAvro(schema)
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
					rows[at][column.Name()] = plain(chunk, i)
				}
				at++
			}
		}
	}
	return rows
}

// plain returns a value in a form that compares: integers as int64, micros since 1970 for
// timestamps, text for decimals and UUIDs, hex for bytes, bits for floats.
func plain(a arrow.Array, i int) any {
	if a.IsNull(i) {
		return nil
	}
	switch a := a.(type) {
	case array.ExtensionArray:
		return plain(a.Storage(), i)
	case *array.Boolean:
		return a.Value(i)
	case *array.Int32:
		return int64(a.Value(i))
	case *array.Int64:
		return a.Value(i)
	case *array.Float32:
		return plainFloat(float64(a.Value(i)))
	case *array.Float64:
		return plainFloat(a.Value(i))
	case *array.Date32:
		return int64(a.Value(i))
	case *array.Time64:
		return int64(a.Value(i))
	case *array.Timestamp:
		return int64(a.Value(i))
	case *array.String:
		return a.Value(i)
	case *array.Binary:
		return "0x" + hex.EncodeToString(a.Value(i))
	case *array.FixedSizeBinary:
		return "0x" + hex.EncodeToString(a.Value(i))
	case *array.Decimal128:
		return a.Value(i).ToString(a.DataType().(*arrow.Decimal128Type).Scale)
	case *array.Struct:
		out := map[string]any{}
		for k, f := range a.DataType().(*arrow.StructType).Fields() {
			out[f.Name] = plain(a.Field(k), i)
		}
		return out
	case *array.Map:
		from, to := a.ValueOffsets(i)
		out := map[string]any{}
		for k := from; k < to; k++ {
			out[fmt.Sprint(plain(a.Keys(), int(k)))] = plain(a.Items(), int(k))
		}
		return out
	case *array.List:
		from, to := a.ValueOffsets(i)
		out := []any{}
		for k := from; k < to; k++ {
			out = append(out, plain(a.ListValues(), int(k)))
		}
		return out
	}
	return fmt.Sprintf("%T", a)
}

func plainFloat(v float64) any {
	if math.IsNaN(v) {
		return "NaN"
	}
	return v
}

// Encoding by hand, so that tests can write what no encoder would.

func long(v int64) []byte        { return binary.AppendVarint(nil, v) }
func text(s string) []byte       { return append(long(int64(len(s))), s...) }
func double(v float64) []byte    { return binary.LittleEndian.AppendUint64(nil, math.Float64bits(v)) }
func float(v float32) []byte     { return binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)) }
func cat(parts ...[]byte) []byte { return slices.Concat(parts...) }
