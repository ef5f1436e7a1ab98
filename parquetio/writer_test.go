package parquetio

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/iceberg-go"
	"github.com/google/go-cmp/cmp"

	"github.com/tabletopic/tabletopic/internal/clickstream"
)

// lit decodes a bound of a data file.
func lit(t *testing.T, typ iceberg.Type, bounds map[int][]byte) string {
	t.Helper()
	bound, ok := bounds[1]
	if !ok {
		return "none"
	}
	l, err := iceberg.LiteralFromBytes(typ, bound)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(l)
}

// The manifest entry has counts, nulls and bounds that enclose every value, for each type;
// long text is cut downwards below and upwards above; NaN is no bound.
func TestDataFileMetrics(t *testing.T) {
	long40 := strings.Repeat("m", 40)
	decimal := func(p int) string {
		return fmt.Sprintf(`{"type":"bytes","logicalType":"decimal","precision":%d,"scale":1}`, p)
	}
	for _, test := range []struct {
		typ      string
		values   [][]byte
		low, top string
	}{
		{`"int"`, [][]byte{long(5), long(-3), long(4)}, "-3", "5"},
		{`"long"`, [][]byte{long(math.MaxInt64), long(math.MinInt64)}, "-9223372036854775808", "9223372036854775807"},
		{`"double"`, [][]byte{double(math.NaN()), double(1), double(-2), double(math.NaN())}, "-2", "1"},
		{`"double"`, [][]byte{double(math.NaN()), double(math.NaN())}, "none", "none"},
		{`"float"`, [][]byte{float(float32(math.Inf(1))), float(float32(math.NaN()))}, "+Inf", "+Inf"},
		{`"double"`, [][]byte{double(0)}, "-0", "0"},
		{`"boolean"`, [][]byte{{0}, {1}}, "false", "true"},
		{`"string"`, [][]byte{text("b"), text("a"), text("")}, "none", "b"}, // iceberg-go leaves an empty bound out, which is safe
		{`"string"`, [][]byte{text(long40)}, long40[:16], long40[:15] + "n"},
		{`"string"`, [][]byte{text(strings.Repeat("\U0010FFFF", 40))}, strings.Repeat("\U0010FFFF", 16), "none"},
		{`{"type":"long","logicalType":"timestamp-micros"}`, [][]byte{long(-7), long(7)}, "1969-12-31 23:59:59.999993", "1970-01-01 00:00:00.000007"},
		{decimal(9), [][]byte{text("\x01"), text("\xff")}, "-0.1", "0.1"},
		{decimal(18), [][]byte{text("\x01"), text("\xff")}, "-0.1", "0.1"},
		{decimal(38), [][]byte{text("\x01"), text("\xff"), text("\x00")}, "-0.1", "0.1"},
		{`{"type":"fixed","size":16,"name":"U","logicalType":"uuid"}`, [][]byte{bytes.Repeat([]byte{0xf0}, 16), bytes.Repeat([]byte{0x10}, 16)}, "10101010-1010-1010-1010-101010101010", "f0f0f0f0-f0f0-f0f0-f0f0-f0f0f0f0f0f0"},
	} {
		r := newRig(t, one(test.typ))
		r.append(test.values...)
		if err := r.builder.AppendNull(RecordMeta{}); err != nil {
			t.Fatal(err)
		}
		f := writeFile(t, r.table, WriterConfig{}, finish(t, r.builder))
		d, err := f.DataFile(*iceberg.UnpartitionedSpec, "file:///t/f.parquet")
		if err != nil {
			t.Fatalf("%s: %v", test.typ, err)
		}
		rows := int64(len(test.values) + 1)
		if d.Count() != rows || f.Rows != rows || d.FileSizeBytes() != f.Size || d.FilePath() != "file:///t/f.parquet" {
			t.Errorf("%s: %d rows, %d bytes at %s", test.typ, d.Count(), d.FileSizeBytes(), d.FilePath())
		}
		typ := r.table.Field(0).Type
		low, top := lit(t, typ, d.LowerBoundValues()), lit(t, typ, d.UpperBoundValues())
		if low != test.low || top != test.top {
			t.Errorf("%s: bounds %s to %s, want %s to %s", test.typ, low, top, test.low, test.top)
		}
		if test.low != "none" && d.NullValueCounts()[1] != 1 || d.ValueCounts()[1] != rows {
			t.Errorf("%s: %d nulls of %d", test.typ, d.NullValueCounts()[1], d.ValueCounts()[1])
		}
		if len(d.SplitOffsets()) != 1 || d.SplitOffsets()[0] != 4 {
			t.Errorf("split offsets %v", d.SplitOffsets())
		}
	}
}

// Cut bounds enclose what they were cut from, for every value.
func TestCutBounds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 20000 {
		text := r.IntN(2) == 0
		var v []byte
		for len(v) < 40+r.IntN(60) {
			if text {
				v = append(v, string([]rune{'a', 0x7f, 0x7ff, 0xd7ff, 0xffff, 0x10ffff}[r.IntN(6)])...)
			} else {
				v = append(v, []byte{0, 0x7f, 0xff, 0xff}[r.IntN(4)])
			}
		}
		low, top := cutLow(v, text), cutTop(v, text)
		if bytes.Compare(low, v) > 0 || bytes.Compare(top, v) < 0 || len(low) > maxPageBound {
			t.Fatalf("%x: bounds %x, %x", v, low, top)
		}
	}
}

// openFile reads the footer of a file.
func openFile(t *testing.T, f *File) *file.Reader {
	t.Helper()
	r, err := file.NewParquetReader(bytes.NewReader(bytes.Join(f.Body, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func encodings(t *testing.T, r *file.Reader, group, column int) []parquet.Encoding {
	t.Helper()
	c, err := r.MetaData().RowGroup(group).ColumnChunk(column)
	if err != nil {
		t.Fatal(err)
	}
	return c.Encodings()
}

// Few distinct strings get a dictionary and next to no space; distinct ones do not; a
// dictionary that grows too large on the way is left behind. The values stay the same.
func TestDictionary(t *testing.T) {
	const rows = 40_000
	r := rand.New(rand.NewPCG(2, 2))
	for _, test := range []struct {
		name       string
		value      func(i int) string
		dictionary bool
		most       int64
	}{
		{"three", func(int) string { return []string{"alpha", "beta", "a longer value than these"}[r.IntN(3)] }, true, rows / 2},
		{"one", func(int) string { return "same" }, true, 8000},
		{"distinct", func(i int) string { return fmt.Sprintf("%x-%x", r.Uint64(), i) }, false, 30 * rows},
		{"grows", func(i int) string {
			if i < 36_000 {
				return "early"
			}
			return fmt.Sprintf("late value %d", i)
		}, true, 30 * rows},
	} {
		rig := newRig(t, one(`"string"`))
		var want []map[string]any
		for i := range rows {
			v := test.value(i)
			rig.append(text(v))
			want = append(want, map[string]any{"x": v})
		}
		f := writeFile(t, rig.table, WriterConfig{DictionaryBytes: 50_000}, finish(t, rig.builder))
		if got := slices.Contains(encodings(t, openFile(t, f), 0, 0), parquet.Encodings.RLEDict); got != test.dictionary {
			t.Errorf("%s: dictionary %v, want %v", test.name, got, test.dictionary)
		}
		if f.Size > test.most {
			t.Errorf("%s: %d bytes, want at most %d", test.name, f.Size, test.most)
		}
		if diff := cmp.Diff(want, readFile(t, f)); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
}

// Integers of every spread survive delta encoding and dictionaries of numbers.
func TestIntegerEncodings(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for name, value := range map[string]func(i int) int64{
		"sequence": func(i int) int64 { return int64(i) },
		"constant": func(int) int64 { return 7 },
		"extremes": func(i int) int64 { return []int64{math.MinInt64, math.MaxInt64, 0, -1}[r.IntN(4)] },
		"random":   func(int) int64 { return int64(r.Uint64()) },
		"widths":   func(int) int64 { return int64(r.Uint64()) >> r.IntN(64) },
	} {
		for _, typ := range []string{"long", "int"} {
			for _, rows := range []int{1, 2, 32, 33, 129, 1500} {
				rig := newRig(t, one(`"`+typ+`"`))
				var want []map[string]any
				for i := range rows {
					v := value(i)
					if typ == "int" {
						v = int64(int32(v ^ v>>32))
					}
					rig.append(long(v))
					want = append(want, map[string]any{"x": v})
				}
				f := writeFile(t, rig.table, WriterConfig{}, finish(t, rig.builder))
				if diff := cmp.Diff(want, readFile(t, f)); diff != "" {
					t.Fatalf("%s of %s, %d rows: %s", name, typ, rows, diff)
				}
			}
		}
	}
}

// The file names its fields by id, has lists and maps of three levels, a page index that
// covers all rows, and the Iceberg schema in its footer.
func TestFileLayout(t *testing.T) {
	r := newRig(t, clickstream.Schema)
	g, e := clickstream.NewGenerator(1, benchStart), clickstream.Event{}
	for range 70_000 {
		g.Next(&e)
		r.append(clickstream.AppendAvro(nil, &e))
	}
	f := writeFile(t, r.table, WriterConfig{}, finish(t, r.builder))
	reader := openFile(t, f)
	var paths []string
	for i := range reader.MetaData().Schema.NumColumns() {
		c := reader.MetaData().Schema.Column(i)
		paths = append(paths, fmt.Sprintf("%s %d", c.Path(), c.SchemaNode().FieldID()))
	}
	want := []string{"event_id 1", "event_time 2", "user_id 3", "session_id 4", "event_type 5", "url 6", "referrer 7", "duration_ms 8", "price 9",
		"device.os 11", "device.browser 12", "device.mobile 13", "properties.key_value.key 15", "properties.key_value.value 16",
		"_kafka.partition 18", "_kafka.offset 19", "_kafka.timestamp 20", "_kafka.timestamp_type 21", "_kafka.key 22", "_kafka.headers.list.element.key 25", "_kafka.headers.list.element.value 26"}
	if diff := cmp.Diff(want, paths); diff != "" {
		t.Error(diff)
	}
	if v := reader.MetaData().KeyValueMetadata().FindValue("iceberg.schema"); v == nil || !strings.Contains(*v, `"event_id"`) {
		t.Errorf("iceberg.schema: %v", v)
	}
	index, err := reader.GetPageIndexReader().RowGroup(0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range want {
		offsets, err := index.GetOffsetIndex(i)
		if err != nil || offsets == nil {
			t.Fatalf("%s: offset index %v, %v", want[i], offsets, err)
		}
		pages := offsets.GetPageLocations()
		if len(pages) < 2 {
			t.Errorf("%s: %d pages, want several", want[i], len(pages))
		}
		columnIndex, err := index.GetColumnIndex(i)
		if err != nil || columnIndex == nil {
			t.Fatalf("%s: column index %v, %v", want[i], columnIndex, err)
		}
		if len(columnIndex.GetNullPages()) != len(pages) {
			t.Errorf("%s: %d pages in the column index, %d in the offset index", want[i], len(columnIndex.GetNullPages()), len(pages))
		}
	}
	ids, err := index.GetColumnIndex(0)
	if err != nil {
		t.Fatal(err)
	}
	typed := ids.(*metadata.TypedColumnIndex[int64])
	if low := typed.MinValues(); low[0] != 1 || low[1] != pageRows+1 {
		t.Errorf("least event_id of the pages %v", low)
	}
}

// Values larger than a page, and than a bound may be, are written and read.
func TestLargeValues(t *testing.T) {
	r := newRig(t, `{"type":"record","name":"R","fields":[{"name":"x","type":"string"},{"name":"l","type":{"type":"array","items":"string"}}]}`)
	var want []map[string]any
	for i := range 40 {
		s := strings.Repeat(string(rune('a'+i%26)), 1+i%3*100_000)
		r.append(cat(text(s), long(2), text(s), text(""), long(0)))
		want = append(want, map[string]any{"x": s, "l": []any{s, ""}})
	}
	f := writeFile(t, r.table, WriterConfig{}, finish(t, r.builder))
	if diff := cmp.Diff(want, readFile(t, f)); diff != "" {
		t.Error(diff[:min(len(diff), 1000)])
	}
	if _, err := f.DataFile(*iceberg.UnpartitionedSpec, "file:///t/f.parquet"); err != nil {
		t.Error(err)
	}
}

// A writer without rows, or closed, refuses; so does one of another table.
func TestWriterRefuses(t *testing.T) {
	r := newRig(t, one(`"long"`))
	w, err := NewWriter(r.table, WriterConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(finish(t, r.builder)); err != nil {
		t.Errorf("an empty batch: %v", err)
	}
	if _, err := w.Close(); err == nil {
		t.Error("a file without rows was made")
	}
	r.append(long(1))
	if err := w.Write(finish(t, r.builder)); err != nil {
		t.Error(err)
	}
	if w.Rows() != 1 || w.Bytes() < 4 {
		t.Errorf("%d rows, %d bytes", w.Rows(), w.Bytes())
	}
	other := newRig(t, one(`"string"`))
	other.append(text("x"))
	if err := w.Write(finish(t, other.builder)); err == nil {
		t.Error("a batch of another table was accepted")
	}
	if _, err := w.Close(); err != nil {
		t.Error(err)
	}
	if _, err := w.Close(); err == nil {
		t.Error("closed twice")
	}
}
