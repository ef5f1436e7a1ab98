package parquetio

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/hamba/avro/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/tabletopic/tabletopic/internal/clickstream"
	"github.com/tabletopic/tabletopic/internal/lab"
)

const benchRows = 200_000

var benchStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func benchPayloads(encode func([]byte, *clickstream.Event) []byte) (payloads [][]byte, size int64) {
	g, e := clickstream.NewGenerator(1, benchStart), clickstream.Event{}
	var buf []byte
	for range benchRows {
		g.Next(&e)
		at := len(buf)
		buf = encode(buf, &e)
		payloads = append(payloads, buf[at:len(buf):len(buf)])
	}
	return payloads, int64(len(buf))
}

// report gives the rates since CPU time begin.
func report(b *testing.B, begin time.Duration, size int64, file int64) {
	rows := float64(b.N) * benchRows
	b.ReportMetric(rows/b.Elapsed().Seconds(), "rows/s")
	b.ReportMetric(rows/(lab.CPU(b)-begin).Seconds(), "rows/cpu-s")
	b.ReportMetric(float64(b.N)*float64(size)/1e6/b.Elapsed().Seconds(), "MB/s")
	b.ReportMetric(float64(file)/benchRows, "fileB/row")
}

// The way of this package: decode into raw buffers, tuned Parquet.
func BenchmarkConvert(b *testing.B) {
	payloads, size := benchPayloads(clickstream.AppendAvro)
	benchConvert(b, newRig(b, clickstream.Schema), payloads, size)
}

func BenchmarkConvertProtobuf(b *testing.B) {
	payloads, size := benchPayloads(clickstream.AppendProtobuf)
	benchConvert(b, rigOf(b, mustProtobuf(b, clickstream.ProtobufSchema)), payloads, size)
}

func BenchmarkConvertJSON(b *testing.B) {
	payloads, size := benchPayloads(clickstream.AppendJSON)
	benchConvert(b, newJSONRig(b, clickstream.JSONSchema), payloads, size)
}

func benchConvert(b *testing.B, r *rig, payloads [][]byte, size int64) {
	b.ReportAllocs()
	var file int64
	begin := lab.CPU(b)
	for b.Loop() {
		w, err := NewWriter(r.table, WriterConfig{})
		if err != nil {
			b.Fatal(err)
		}
		for i, p := range payloads {
			if err := r.builder.Append(r.decoder, p, RecordMeta{Partition: 1, Offset: int64(i), Timestamp: 1767225600000 + int64(i/10)}); err != nil {
				b.Fatal(err)
			}
			if r.builder.Rows() == 50_000 {
				batch, _ := r.builder.Finish()
				if err := w.Write(batch); err != nil {
					b.Fatal(err)
				}
				batch.Release()
			}
		}
		f, err := w.Close()
		if err != nil {
			b.Fatal(err)
		}
		file = f.Size
	}
	report(b, begin, size, file)
}

// Arrow's C++ writer, by one thread of pyarrow, writes the rows of BenchmarkConvert from memory: what
// that does besides decoding. The rate is that of the best of five files.
func BenchmarkConvertPyArrow(b *testing.B) {
	python := lab.Path(b, "python", "venv", "bin", "python")
	payloads, _ := benchPayloads(clickstream.AppendAvro)
	r := newRig(b, clickstream.Schema)
	w, err := NewWriter(r.table, WriterConfig{})
	if err != nil {
		b.Fatal(err)
	}
	for i, p := range payloads {
		if err := r.builder.Append(r.decoder, p, RecordMeta{Partition: 1, Offset: int64(i), Timestamp: 1767225600000 + int64(i/10)}); err != nil {
			b.Fatal(err)
		}
	}
	batch, _ := r.builder.Finish()
	if err := w.Write(batch); err != nil {
		b.Fatal(err)
	}
	batch.Release()
	f, err := w.Close()
	if err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(b.TempDir(), "rows.parquet")
	if err := os.WriteFile(path, bytes.Join(f.Body, nil), 0o600); err != nil {
		b.Fatal(err)
	}
	const script = `
import sys, time
import pyarrow as pa, pyarrow.parquet as pq
rows = pq.read_table(sys.argv[1]).replace_schema_metadata(None)
pa.set_cpu_count(1)
best = float("inf")
for _ in range(5):
    sink = pa.BufferOutputStream()
    begin = time.process_time()
    pq.write_table(rows, sink, compression="zstd", compression_level=1)
    best = min(best, time.process_time() - begin)
    size = sink.getvalue().size
print(rows.num_rows / best, size / rows.num_rows)
`
	var rate, size float64
	for b.Loop() {
		out, err := exec.CommandContext(b.Context(), python, "-c", script, path).Output()
		if err != nil {
			b.Fatal(err)
		}
		if _, err := fmt.Sscan(string(out), &rate, &size); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
	}
	b.ReportMetric(rate, "rows/cpu-s")
	b.ReportMetric(size, "fileB/row")
}

func BenchmarkDecode(b *testing.B) {
	payloads, size := benchPayloads(clickstream.AppendAvro)
	benchDecode(b, newRig(b, clickstream.Schema), payloads, size)
}

func BenchmarkDecodeProtobuf(b *testing.B) {
	payloads, size := benchPayloads(clickstream.AppendProtobuf)
	benchDecode(b, rigOf(b, mustProtobuf(b, clickstream.ProtobufSchema)), payloads, size)
}

func BenchmarkDecodeJSON(b *testing.B) {
	payloads, size := benchPayloads(clickstream.AppendJSON)
	benchDecode(b, newJSONRig(b, clickstream.JSONSchema), payloads, size)
}

func benchDecode(b *testing.B, r *rig, payloads [][]byte, size int64) {
	b.ReportAllocs()
	begin := lab.CPU(b)
	for b.Loop() {
		for i, p := range payloads {
			if err := r.builder.Append(r.decoder, p, RecordMeta{Partition: 1, Offset: int64(i), Timestamp: 1767225600000}); err != nil {
				b.Fatal(err)
			}
		}
		batch, _ := r.builder.Finish()
		batch.Release()
	}
	report(b, begin, size, 0)
}

// The plain way, for comparison: maps, Arrow builders, defaults of arrow-go with zstd.
func BenchmarkConvertPlainWay(b *testing.B) {
	payloads, size := benchPayloads(clickstream.AppendAvro)
	schema := avro.MustParse(clickstream.Schema)
	benchPlainWay(b, payloads, size, func(rb *array.RecordBuilder, p []byte, i int) {
		var m map[string]any
		if err := avro.Unmarshal(schema, p, &m); err != nil {
			b.Fatal(err)
		}
		plainAppend(rb, m, i)
	})
}

// The plain way of Protobuf has dynamic messages of Google's library instead of maps.
func BenchmarkConvertProtobufPlainWay(b *testing.B) {
	payloads, size := benchPayloads(clickstream.AppendProtobuf)
	md := mustProtobuf(b, clickstream.ProtobufSchema).writer.(protobufWriter).message
	m := dynamicpb.NewMessage(md)
	benchPlainWay(b, payloads, size, func(rb *array.RecordBuilder, p []byte, i int) {
		if err := proto.Unmarshal(p, m); err != nil {
			b.Fatal(err)
		}
		plainAppendMessage(rb, m, i)
	})
}

// The plain way of JSON has the maps of encoding/json, in which every number is a double.
func BenchmarkConvertJSONPlainWay(b *testing.B) {
	payloads, size := benchPayloads(clickstream.AppendJSON)
	benchPlainWay(b, payloads, size, func(rb *array.RecordBuilder, p []byte, i int) {
		m, err := plainJSON(p)
		if err != nil {
			b.Fatal(err)
		}
		plainAppend(rb, m, i)
	})
}

// BenchmarkDecodeJSONPlainWay is the reading alone.
func BenchmarkDecodeJSONPlainWay(b *testing.B) {
	payloads, size := benchPayloads(clickstream.AppendJSON)
	begin := lab.CPU(b)
	for b.Loop() {
		for _, p := range payloads {
			if _, err := plainJSON(p); err != nil {
				b.Fatal(err)
			}
		}
	}
	report(b, begin, size, 0)
}

// plainJSON returns an event in the types of the Avro reader.
func plainJSON(p []byte) (m map[string]any, err error) {
	if err := json.Unmarshal(p, &m); err != nil {
		return nil, err
	}
	for _, name := range []string{"event_id", "user_id"} {
		m[name] = int64(m[name].(float64))
	}
	m["duration_ms"] = int(m["duration_ms"].(float64))
	m["event_time"], err = time.Parse(time.RFC3339Nano, m["event_time"].(string))
	return m, err
}

func benchPlainWay(b *testing.B, payloads [][]byte, size int64, add func(rb *array.RecordBuilder, payload []byte, offset int)) {
	arrowSchema := arrow.NewSchema([]arrow.Field{
		{Name: "event_id", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "event_time", Type: arrow.FixedWidthTypes.Timestamp_us, Nullable: true},
		{Name: "user_id", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "session_id", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "event_type", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "url", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "referrer", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "duration_ms", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
		{Name: "price", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
		{Name: "device", Type: arrow.StructOf(
			arrow.Field{Name: "os", Type: arrow.BinaryTypes.String, Nullable: true},
			arrow.Field{Name: "browser", Type: arrow.BinaryTypes.String, Nullable: true},
			arrow.Field{Name: "mobile", Type: arrow.FixedWidthTypes.Boolean, Nullable: true}), Nullable: true},
		{Name: "properties", Type: arrow.MapOf(arrow.BinaryTypes.String, arrow.BinaryTypes.String), Nullable: true},
		{Name: "_partition", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
		{Name: "_offset", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "_timestamp", Type: arrow.FixedWidthTypes.Timestamp_us, Nullable: true},
	}, nil)
	b.ReportAllocs()
	var file int64
	begin := lab.CPU(b)
	for b.Loop() {
		var out chunks
		w, err := pqarrow.NewFileWriter(arrowSchema, &out, parquet.NewWriterProperties(parquet.WithCompression(compress.Codecs.Zstd)), pqarrow.DefaultWriterProps())
		if err != nil {
			b.Fatal(err)
		}
		rb := array.NewRecordBuilder(memory.DefaultAllocator, arrowSchema)
		for i, p := range payloads {
			add(rb, p, i)
			if (i+1)%50_000 == 0 {
				batch := rb.NewRecordBatch()
				if err := w.WriteBuffered(batch); err != nil {
					b.Fatal(err)
				}
				batch.Release()
			}
		}
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
		file = out.size
	}
	report(b, begin, size, file)
}

func plainAppend(rb *array.RecordBuilder, m map[string]any, offset int) {
	str := func(i int, v any) {
		if s, ok := v.(string); ok {
			rb.Field(i).(*array.StringBuilder).Append(s)
		} else {
			rb.Field(i).AppendNull()
		}
	}
	rb.Field(0).(*array.Int64Builder).Append(m["event_id"].(int64))
	rb.Field(1).(*array.TimestampBuilder).Append(arrow.Timestamp(m["event_time"].(time.Time).UnixMicro()))
	rb.Field(2).(*array.Int64Builder).Append(m["user_id"].(int64))
	str(3, m["session_id"])
	str(4, m["event_type"])
	str(5, m["url"])
	str(6, m["referrer"])
	rb.Field(7).(*array.Int32Builder).Append(int32(m["duration_ms"].(int)))
	if v, ok := m["price"].(float64); ok {
		rb.Field(8).(*array.Float64Builder).Append(v)
	} else {
		rb.Field(8).AppendNull()
	}
	device := m["device"].(map[string]any)
	s := rb.Field(9).(*array.StructBuilder)
	s.Append(true)
	s.FieldBuilder(0).(*array.StringBuilder).Append(device["os"].(string))
	s.FieldBuilder(1).(*array.StringBuilder).Append(device["browser"].(string))
	s.FieldBuilder(2).(*array.BooleanBuilder).Append(device["mobile"].(bool))
	mb := rb.Field(10).(*array.MapBuilder)
	mb.Append(true)
	for k, v := range m["properties"].(map[string]any) {
		mb.KeyBuilder().(*array.StringBuilder).Append(k)
		mb.ItemBuilder().(*array.StringBuilder).Append(v.(string))
	}
	rb.Field(11).(*array.Int32Builder).Append(1)
	rb.Field(12).(*array.Int64Builder).Append(int64(offset))
	rb.Field(13).(*array.TimestampBuilder).Append(arrow.Timestamp(1767225600000000))
}

func plainAppendMessage(rb *array.RecordBuilder, m protoreflect.Message, offset int) {
	fields := m.Descriptor().Fields()
	text := func(b array.Builder, m protoreflect.Message, name protoreflect.Name) {
		f := m.Descriptor().Fields().ByName(name)
		if f.HasPresence() && !m.Has(f) {
			b.AppendNull()
		} else {
			b.(*array.StringBuilder).Append(m.Get(f).String())
		}
	}
	rb.Field(0).(*array.Int64Builder).Append(m.Get(fields.ByName("event_id")).Int())
	at := m.Get(fields.ByName("event_time")).Message()
	rb.Field(1).(*array.TimestampBuilder).Append(arrow.Timestamp(at.Get(at.Descriptor().Fields().ByName("seconds")).Int()*1_000_000 + at.Get(at.Descriptor().Fields().ByName("nanos")).Int()/1000))
	rb.Field(2).(*array.Int64Builder).Append(m.Get(fields.ByName("user_id")).Int())
	text(rb.Field(3), m, "session_id")
	kind := fields.ByName("event_type")
	rb.Field(4).(*array.StringBuilder).Append(string(kind.Enum().Values().ByNumber(m.Get(kind).Enum()).Name()))
	text(rb.Field(5), m, "url")
	text(rb.Field(6), m, "referrer")
	rb.Field(7).(*array.Int32Builder).Append(int32(m.Get(fields.ByName("duration_ms")).Int()))
	if price := fields.ByName("price"); m.Has(price) {
		rb.Field(8).(*array.Float64Builder).Append(m.Get(price).Float())
	} else {
		rb.Field(8).AppendNull()
	}
	device := m.Get(fields.ByName("device")).Message()
	s := rb.Field(9).(*array.StructBuilder)
	s.Append(true)
	text(s.FieldBuilder(0), device, "os")
	text(s.FieldBuilder(1), device, "browser")
	s.FieldBuilder(2).(*array.BooleanBuilder).Append(device.Get(device.Descriptor().Fields().ByName("mobile")).Bool())
	mb := rb.Field(10).(*array.MapBuilder)
	mb.Append(true)
	m.Get(fields.ByName("properties")).Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		mb.KeyBuilder().(*array.StringBuilder).Append(k.String())
		mb.ItemBuilder().(*array.StringBuilder).Append(v.String())
		return true
	})
	rb.Field(11).(*array.Int32Builder).Append(1)
	rb.Field(12).(*array.Int64Builder).Append(int64(offset))
	rb.Field(13).(*array.TimestampBuilder).Append(arrow.Timestamp(1767225600000000))
}
