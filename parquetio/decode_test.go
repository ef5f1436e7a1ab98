package parquetio

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tabletopic/tabletopic/internal/clickstream"
	"github.com/tabletopic/tabletopic/parquetio/parquetiotest"
	"github.com/tabletopic/tabletopic/record"
)

// one is the schema of a record with a single field x.
func one(fieldType string) string {
	return `{"type":"record","name":"R","fields":[{"name":"x","type":` + fieldType + `}]}`
}

// Each kind of damage is refused with a reason, and the rows around it are whole.
func TestAppendRefusesDamagedRecords(t *testing.T) {
	const array = `{"type":"array","items":"long"}`
	const dict = `{"type":"map","values":"long"}`
	const decimal = `{"type":"bytes","logicalType":"decimal","precision":4,"scale":2}`
	const fixedDecimal = `{"type":"fixed","size":4,"name":"F","logicalType":"decimal","precision":4,"scale":2}`
	const many = `["null","long",{"type":"array","items":"long"},{"type":"map","values":"string"}]`
	long10 := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02}
	tests := []struct {
		schema  string
		good    []byte
		bad     []byte
		message string
	}{
		{`"long"`, long(1), nil, reasonShort},
		{`"long"`, long(1), []byte{0x80}, reasonShort},
		{`"long"`, long(1), long10, reasonLong},
		{`"long"`, long(1), cat(long(1), []byte{0}), "1 bytes are left over"},
		{`"int"`, long(1), long(math.MaxInt32 + 1), reasonInt},
		{`"int"`, long(1), long(math.MinInt32 - 1), reasonInt},
		{`"boolean"`, []byte{1}, []byte{2}, "boolean is neither"},
		{`"boolean"`, []byte{1}, nil, reasonShort},
		{`"float"`, float(1), float(1)[:3], reasonShort},
		{`"double"`, double(1), double(1)[:7], reasonShort},
		{`"string"`, text("a"), long(5), reasonShort},
		{`"string"`, text("a"), long(-5), reasonLength},
		{`"string"`, text("a"), long(math.MaxInt64), reasonShort},
		{`"string"`, text("a"), long(math.MinInt64), reasonLength},
		{`"string"`, text("a"), text("\xff"), reasonUTF8},
		{`"bytes"`, text("\xff"), long(1), reasonShort},
		{`{"type":"fixed","size":3,"name":"F"}`, []byte("abc"), []byte("ab"), reasonShort},
		{`{"type":"enum","symbols":["A"],"name":"E"}`, long(0), long(1), "enum index"},
		{`{"type":"enum","symbols":["A"],"name":"E"}`, long(0), long(-1), "enum index"},
		{`["null","long"]`, long(0), long(2), reasonUnion},
		{`["null","long"]`, long(0), long(-1), reasonUnion},
		{`["long"]`, cat(long(0), long(7)), long(1), reasonUnion},
		{array, long(0), cat(long(1<<40), long(1)), "more items than the data"},
		{array, long(0), long(1), "more items than the data"},
		{array, long(0), cat(long(1), long(1)), reasonShort},
		{array, cat(long(-1), long(1), long(4), long(0)), cat(long(-1), long(2), long(4), long(0)), "size of the block"},
		{array, long(0), cat(long(-1), long(100), long(4), long(0)), reasonShort},
		{array, long(0), cat(long(-1), long(-1), long(4), long(0)), reasonLength},
		{array, long(0), cat(long(math.MinInt64), long(1), long(4), long(0)), "block count"},
		{`{"type":"array","items":"null"}`, cat(long(2), long(0)), cat(long(1<<40), long(0)), reasonMany},
		{`{"type":"array","items":{"type":"record","name":"E","fields":[]}}`, cat(long(2), long(0)), cat(long(1<<40), long(0)), reasonMany},
		{dict, cat(long(1), text("k"), long(1), long(0)), cat(long(1), text("\xff"), long(1), long(0)), reasonUTF8},
		{dict, long(0), cat(long(1), long(9), long(1), long(0)), reasonShort},
		{dict, long(0), cat(long(1), long(-9), long(1), long(0)), reasonLength},
		{decimal, text("\x00"), text(""), "decimal has no bytes"},
		{decimal, text("\x27\x0f"), text("\x27\x10"), "more digits"},
		{decimal, text("\xd8\xf1"), text("\xd8\xf0"), "more digits"},
		{decimal, text(strings.Repeat("\x00", 30) + "\x01"), text("\x01" + strings.Repeat("\x00", 16)), "16 that count"},
		{fixedDecimal, []byte{0, 0, 0x27, 0x0f}, []byte{0, 1, 0x27, 0x0f}, "more digits"},
		{`{"type":"int","logicalType":"time-millis"}`, long(86_399_999), long(86_400_000), reasonTime},
		{`{"type":"int","logicalType":"time-millis"}`, long(0), long(math.MaxInt64 / 500), reasonTime},
		{`{"type":"long","logicalType":"time-micros"}`, long(0), long(-1), reasonTime},
		{`{"type":"long","logicalType":"timestamp-millis"}`, long(math.MaxInt64 / 1000), long(math.MaxInt64/1000 + 1), reasonMicros},
		{`{"type":"string","logicalType":"uuid"}`, text("00000000-0000-0000-0000-0000000000Ff"), text("00000000-0000-0000-0000-0000000000g0"), "not a UUID"},
		{`{"type":"string","logicalType":"uuid"}`, text("00000000-0000-0000-0000-000000000000"), text("00000000000000000000000000000000"), "not a UUID"},
		{`{"type":"string","connect.name":"io.debezium.time.ZonedTimestamp"}`, text("2026-01-01T00:00:00Z"), text("2026-01-01"), "not an ISO 8601"},
		{many, long(0), long(4), reasonUnion},
		{many, long(0), cat(long(2), long(1<<40)), "more items than the data"},
		{many, long(0), cat(long(2), long(-2), long(5), long(1), long(1), long(0)), reasonShort},
		{many, long(0), cat(long(2), long(-1), long(2), long(1), long(0)), "size of the block"},
		{many, long(0), cat(long(3), long(1), text("k"), text("\xff")), reasonUTF8},
	}
	for i, test := range tests {
		t.Run(fmt.Sprint(i, test.message), func(t *testing.T) {
			r := newRig(t, one(test.schema))
			r.append(test.good, test.good)
			want := r.rows()
			for range 2 {
				r.append(test.good)
				err := r.builder.Append(r.decoder, test.bad, RecordMeta{})
				var bad *DecodeError
				if !errors.As(err, &bad) || !strings.Contains(err.Error(), test.message) {
					t.Fatalf("error %v, want %q", err, test.message)
				}
			}
			if diff := cmp.Diff(want, r.rows()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A builder with random failures in between holds exactly what one without them holds.
func TestFailedRowsLeaveNoTrace(t *testing.T) {
	clean, dirty := newRig(t, clickstream.Schema), newRig(t, clickstream.Schema)
	broken := *dirty.decoder
	broken.program = panicking{broken.program}
	g, e := clickstream.NewGenerator(5, benchStart), clickstream.Event{}
	r := rand.New(rand.NewPCG(5, 5))
	for i := range 2000 {
		g.Next(&e)
		payload := clickstream.AppendAvro(nil, &e)
		meta := RecordMeta{Offset: int64(i), Key: []byte("k"), Headers: []record.Header{{Key: "h", Value: []byte{1}}, {Key: "n"}}}
		for range r.IntN(3) {
			if err := dirty.builder.Append(dirty.decoder, payload[:r.IntN(len(payload))], meta); err == nil {
				t.Fatal("truncated record was accepted")
			}
			var wrong *DecodeError
			err := dirty.builder.Append(&broken, payload[:r.IntN(len(payload)+1)], meta)
			if !errors.As(err, &wrong) || !strings.Contains(wrong.Reason, "the decoder fails: a fault") || !bytes.Contains(wrong.Stack, []byte("panicking.decode")) {
				t.Fatalf("a decoder that panics: %v\n%s", err, wrong.Stack)
			}
		}
		for _, rig := range []*rig{clean, dirty} {
			if i%17 == 0 {
				if err := rig.builder.AppendNull(meta); err != nil {
					t.Fatal(err)
				}
			}
			if err := rig.builder.Append(rig.decoder, payload, meta); err != nil {
				t.Fatal(err)
			}
		}
	}
	a, b := finish(t, clean.builder), finish(t, dirty.builder)
	if a.NumRows() != b.NumRows() {
		t.Fatalf("%d rows, want %d", b.NumRows(), a.NumRows())
	}
	for c := range int(a.NumCols()) {
		for i := range int(a.NumRows()) {
			if diff := cmp.Diff(parquetiotest.Plain(a.Column(c), i), parquetiotest.Plain(b.Column(c), i)); diff != "" {
				t.Fatalf("row %d, column %s: %s", i, a.ColumnName(c), diff)
			}
		}
	}
}

// panicking has a fault that shows when it has put some of a record, or all, into the columns.
type panicking struct{ program }

func (p panicking) decode(b *Builder, payload []byte) bool {
	p.program.decode(b, payload)
	panic("a fault")
}

// Decoding allocates nothing per row once the buffers have their size.
func TestAppendDoesNotAllocate(t *testing.T) {
	r := newRig(t, clickstream.Schema)
	g, e := clickstream.NewGenerator(5, benchStart), clickstream.Event{}
	payloads := make([][]byte, 2000)
	for i := range payloads {
		g.Next(&e)
		payloads[i] = clickstream.AppendAvro(nil, &e)
	}
	meta := RecordMeta{Offset: 1, Key: []byte("key"), Headers: []record.Header{{Key: "h", Value: []byte("v")}}}
	fill := func() {
		for _, p := range payloads {
			if err := r.builder.Append(r.decoder, p, meta); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill()
	finish(t, r.builder).Release()
	per := testing.AllocsPerRun(5, func() {
		fill()
		batch, err := r.builder.Finish()
		if err != nil {
			t.Fatal(err)
		}
		batch.Release()
	})
	if per/float64(len(payloads)) > 0.15 {
		t.Errorf("%.0f allocations for %d rows", per, len(payloads))
	}
}

// A full builder says so, keeps its rows, and takes the record after Finish; a record that
// no builder can hold is the record's fault.
func TestFullBuilder(t *testing.T) {
	r := newRig(t, one(`"string"`))
	r.builder.limit = 100
	big := text(strings.Repeat("x", 60))
	r.append(big)
	if err := r.builder.Append(r.decoder, big, RecordMeta{}); !errors.Is(err, ErrFull) {
		t.Fatalf("error %v, want ErrFull", err)
	}
	if rows := r.rows(); len(rows) != 1 {
		t.Fatalf("%d rows, want 1", len(rows))
	}
	r.append(big)
	r.rows()
	var bad *DecodeError
	if err := r.builder.Append(r.decoder, text(strings.Repeat("x", 101)), RecordMeta{}); !errors.As(err, &bad) {
		t.Fatalf("error %v, want a DecodeError", err)
	}
}

// A batch that was not released yet keeps its values while the builder goes on.
func TestBatchesDoNotShareMemory(t *testing.T) {
	r := newRig(t, one(`"long"`))
	r.append(long(1), long(2))
	first := finish(t, r.builder)
	r.append(long(3), long(4))
	second := finish(t, r.builder)
	second.Release()
	r.append(long(5), long(6))
	if got := parquetiotest.Plain(first.Column(0), 1); got != int64(2) {
		t.Errorf("value %v, want 2", got)
	}
	first.Release()
}

// The Kafka column says where a row came from; what cannot be said is null.
func TestKafkaColumn(t *testing.T) {
	r := newRig(t, one(`"long"`))
	metas := []RecordMeta{
		{Partition: 3, Offset: 7, Timestamp: 1000, TimestampType: 1, Key: []byte("k"), Headers: []record.Header{{Key: "a", Value: []byte("1")}, {Key: "a"}, {Key: "\xff", Value: []byte{}}}},
		{Timestamp: -1},
		{Timestamp: math.MaxInt64, Key: []byte{}},
	}
	for _, m := range metas {
		if err := r.builder.Append(r.decoder, long(1), m); err != nil {
			t.Fatal(err)
		}
	}
	batch := finish(t, r.builder)
	want := []any{
		map[string]any{"partition": int64(3), "offset": int64(7), "timestamp": int64(1_000_000), "timestamp_type": int64(1), "key": "0x6b", "headers": []any{
			map[string]any{"key": "a", "value": "0x31"}, map[string]any{"key": "a", "value": nil}, map[string]any{"key": "\uFFFD", "value": "0x"}}},
		map[string]any{"partition": int64(0), "offset": int64(0), "timestamp": nil, "timestamp_type": int64(0), "key": nil, "headers": []any{}},
		map[string]any{"partition": int64(0), "offset": int64(0), "timestamp": nil, "timestamp_type": int64(0), "key": "0x", "headers": []any{}},
	}
	for i := range want {
		if diff := cmp.Diff(want[i], parquetiotest.Plain(batch.Column(1), i)); diff != "" {
			t.Error(diff)
		}
	}
}

// No bytes under no schema make the decoder panic or the columns disagree.
func FuzzAppend(f *testing.F) {
	const all = `{"type":"record","name":"R","fields":[
		{"name":"a","type":["null","long"]},{"name":"b","type":"string"},{"name":"c","type":{"type":"array","items":["null","string"]}},
		{"name":"d","type":{"type":"map","values":{"type":"record","name":"I","fields":[{"name":"x","type":"int"},{"name":"y","type":["null","R"]}]}}},
		{"name":"e","type":["null","boolean","I","bytes",{"type":"array","items":"I"}]},
		{"name":"f","type":{"type":"bytes","logicalType":"decimal","precision":20,"scale":3}},
		{"name":"g","type":{"type":"array","items":{"type":"array","items":"null"}}},
		{"name":"h","type":{"type":"long","logicalType":"timestamp-nanos"}},{"name":"i","type":{"type":"enum","name":"E","symbols":["A","B"]}}]}`
	g, e := clickstream.NewGenerator(1, benchStart), clickstream.Event{}
	for range 5 {
		g.Next(&e)
		f.Add(clickstream.AppendAvro(nil, &e))
	}
	f.Add(cat(long(0), text("b"), long(2), long(0), long(1), text("s"), long(0), long(1), text("k"), long(5), long(0), long(0),
		long(2), long(9), long(0), text("\x01"), long(1), long(3), long(0), long(0), long(1), long(1)))
	rigs := []*rig{newRig(f, all), newRig(f, clickstream.Schema)}
	f.Fuzz(func(t *testing.T, payload []byte) {
		for _, r := range rigs {
			for range 2 {
				rows := r.builder.rows
				err := r.builder.Append(r.decoder, payload, RecordMeta{})
				if (err == nil) != (r.builder.rows == rows+1) {
					t.Fatalf("%d rows before, %d after, error %v", rows, r.builder.rows, err)
				}
				for _, i := range r.builder.top {
					if err := check(r.builder.cols, i, r.builder.rows); err != nil {
						t.Fatal(err)
					}
				}
			}
			if r.builder.rows > 100 {
				writeFile(t, r.table, WriterConfig{PageBytes: 500}, finish(t, r.builder))
			}
		}
	})
}

// No schema text makes the parser panic, and what it accepts can be compiled.
func FuzzParseAvro(f *testing.F) {
	for _, s := range []string{clickstream.Schema, `"string"`, one(`["null",{"type":"array","items":"R"}]`), one(`{"type":"fixed","size":0,"name":"F"}`)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, schema string) {
		v, err := ParseAvro(NewRules(), schema)
		if err != nil {
			return
		}
		table, err := withKafka.TableSchema(v)
		if err != nil {
			return
		}
		if _, err := withKafka.Compile(v, table); err != nil {
			t.Fatalf("%v\n%s", err, schema)
		}
		b, err := NewBuilder(table, "_kafka")
		if err != nil {
			t.Fatal(err)
		}
		if err := b.AppendNull(RecordMeta{}); err != nil {
			t.Fatal(err)
		}
		writeFile(t, table, WriterConfig{}, finish(t, b))
	})
}
