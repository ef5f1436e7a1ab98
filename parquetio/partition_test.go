package parquetio

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/codec"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/parquetio/parquetiotest"
)

// specOf is a spec with one field per transform, of the column with that field id.
func specOf(source int, transforms ...iceberg.Transform) iceberg.PartitionSpec {
	var fields []iceberg.PartitionField
	for i, x := range transforms {
		fields = append(fields, iceberg.PartitionField{SourceIDs: []int{source}, FieldID: 1000 + i, Name: fmt.Sprint("p", i), Transform: x})
	}
	return iceberg.NewPartitionSpecID(1, fields...)
}

// A typedValue is an Avro payload and the literal that it is.
type typedValue struct {
	payload []byte
	literal iceberg.Literal
}

func decimalBytes(v int64) []byte { return shortest(decimal128.FromI64(v)) }

// typedValues has values of each type that can be partitioned by, around where signs, days,
// years and characters change.
func typedValues() map[string][]typedValue {
	out := map[string][]typedValue{}
	numbers := []int64{0, 1, -1, 7, -7, 34, 365, -365, -366, 1e6, -1e6, math.MaxInt32, math.MinInt32}
	for _, n := range numbers {
		out[`"int"`] = append(out[`"int"`], typedValue{long(n), iceberg.Int32Literal(n)})
		out[`{"type":"int","logicalType":"date"}`] = append(out[`{"type":"int","logicalType":"date"}`], typedValue{long(n % 200_000), iceberg.DateLiteral(n % 200_000)})
		out[`{"type":"bytes","logicalType":"decimal","precision":38,"scale":2}`] = append(out[`{"type":"bytes","logicalType":"decimal","precision":38,"scale":2}`],
			typedValue{text(string(decimalBytes(n))), iceberg.DecimalLiteral{Val: decimal128.FromI64(n), Scale: 2}})
	}
	const day = 86_400_000_000
	for _, n := range append(numbers, day, day-1, -day, -day-1, -1000, -365*day, 1_700_000_000_000_000, -62_135_596_800_000_000, 253_402_300_799_999_999) {
		out[`"long"`] = append(out[`"long"`], typedValue{long(n), iceberg.Int64Literal(n)})
		out[`{"type":"long","logicalType":"timestamp-micros"}`] = append(out[`{"type":"long","logicalType":"timestamp-micros"}`], typedValue{long(n), iceberg.TimestampLiteral(n)})
		out[`{"type":"long","logicalType":"time-micros"}`] = append(out[`{"type":"long","logicalType":"time-micros"}`], typedValue{long(max(0, n%day)), iceberg.TimeLiteral(max(0, n%day))})
	}
	for _, s := range []string{"", "a", "iceberg", "ice", "naïve", "日本語テキスト", "\U0010FFFF\U0010FFFF\U0010FFFF\U0010FFFF", strings.Repeat("x", 100)} {
		out[`"string"`] = append(out[`"string"`], typedValue{text(s), iceberg.StringLiteral(s)})
		out[`"bytes"`] = append(out[`"bytes"`], typedValue{text(s), iceberg.BinaryLiteral(s)})
	}
	id := uuid.MustParse("f79c3e09-677c-4bbd-a479-3f349cb785e7")
	out[`{"type":"fixed","size":16,"name":"U","logicalType":"uuid"}`] = []typedValue{{id[:], iceberg.UUIDLiteral(id)}}
	out[`"boolean"`] = []typedValue{{[]byte{0}, iceberg.BoolLiteral(false)}, {[]byte{1}, iceberg.BoolLiteral(true)}}
	return out
}

// Partition values are those of iceberg-go's transforms, before 1970 too, null where the
// column is null, and survive the way through a manifest entry.
func TestTransformsAreThoseOfIceberg(t *testing.T) {
	transforms := []iceberg.Transform{iceberg.IdentityTransform{}, iceberg.YearTransform{}, iceberg.MonthTransform{}, iceberg.DayTransform{}, iceberg.HourTransform{},
		iceberg.BucketTransform{NumBuckets: 7}, iceberg.BucketTransform{NumBuckets: 1 << 20}, iceberg.TruncateTransform{Width: 3}, iceberg.TruncateTransform{Width: 1000}, iceberg.VoidTransform{}}
	for typ, values := range typedValues() {
		r := newRig(t, one(typ))
		column, spec := r.table.Field(0), iceberg.PartitionSpec{}
		var able []iceberg.Transform
		for _, x := range transforms {
			if _, decimal := x.ResultType(column.Type).(iceberg.DecimalType); x.CanTransform(column.Type) && !decimal {
				able = append(able, x)
			}
		}
		spec = specOf(column.ID, able...)
		for i, v := range append(values, typedValue{}) {
			w, err := NewTableWriter(r.table, spec, "_kafka", WriterConfig{})
			if err != nil {
				t.Fatal(err)
			}
			if v.literal == nil {
				err = w.AppendNull(RecordMeta{})
			} else {
				err = w.Append(r.decoder, v.payload, RecordMeta{})
			}
			if err != nil {
				t.Fatalf("%s, value %d: %v", typ, i, err)
			}
			var got map[int]any
			if err := w.Close(func(p Part) error {
				entry, err := p.DataFile(spec, "file:///t/1.parquet")
				if err != nil {
					return err
				}
				body, err := codec.EncodeDataFile(entry, spec, r.table, 2)
				if err != nil {
					return err
				}
				if entry, err = codec.DecodeDataFile(body, spec, r.table, 2); err == nil {
					got = entry.Partition()
				}
				return err
			}); err != nil {
				t.Fatalf("%s, value %d: %v", typ, i, err)
			}
			for k, x := range able {
				var want any
				if out := x.Apply(iceberg.Optional[iceberg.Literal]{Valid: v.literal != nil, Val: v.literal}); out.Valid {
					want = out.Val.Any()
				}
				if d := fmt.Sprint(got[1000+k]); d != fmt.Sprint(want) {
					t.Errorf("%s of %s, value %v: %s (%T), want %v (%T)", x, typ, v.literal, d, got[1000+k], want, want)
				}
			}
		}
	}
}

// Buckets are those that the specification lists in appendix B.
func TestBucketHashesOfTheSpecification(t *testing.T) {
	const buckets = 1 << 20
	id := uuid.MustParse("f79c3e09-677c-4bbd-a479-3f349cb785e7")
	for _, c := range []struct {
		typ     string
		payload []byte
		hash    int32
	}{
		{`"int"`, long(34), 2017239379},
		{`"long"`, long(34), 2017239379},
		{`{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}`, text(string(decimalBytes(1420))), -500754589},
		{`{"type":"int","logicalType":"date"}`, long(17486), -653330422},
		{`{"type":"long","logicalType":"time-micros"}`, long(81_068_000_000), -662762989},
		{`{"type":"long","logicalType":"timestamp-micros"}`, long(1_510_871_468_000_000), -2047944441},
		{`"string"`, text("iceberg"), 1210000089},
		{`{"type":"fixed","size":16,"name":"U","logicalType":"uuid"}`, id[:], 1488055340},
		{`"bytes"`, text("\x00\x01\x02\x03"), -188683207},
	} {
		r := newRig(t, one(c.typ))
		w, err := NewTableWriter(r.table, specOf(r.table.Field(0).ID, iceberg.BucketTransform{NumBuckets: buckets}), "_kafka", WriterConfig{})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Append(r.decoder, c.payload, RecordMeta{}); err != nil {
			t.Fatal(err)
		}
		if got, want := w.keys.values[0][1000], c.hash&math.MaxInt32%buckets; got != want {
			t.Errorf("%s: bucket %v, want %v", c.typ, got, want)
		}
	}
}

// Rows of any types, taken from a builder in any order, are the same rows.
func TestGatheredRowsAreTheSame(t *testing.T) {
	for seed := range uint64(rowSeeds) {
		r := rand.New(rand.NewPCG(seed, 2))
		names := &parquetiotest.Names{}
		root := names.Record(r, 4)
		for len(root.Schema.(map[string]any)["fields"].([]any)) == 0 {
			root = names.Record(r, 4)
		}
		schema, err := json.Marshal(root.Schema)
		if err != nil {
			t.Fatal(err)
		}
		rig := newRig(t, string(schema))
		var want []any
		to := rig.builder.sibling()
		var order []int32
		for range 1 + r.IntN(100) {
			payload, row, _ := root.Value(r)
			rig.append(payload)
			want, order = append(want, row), append(order, int32(len(order)))
		}
		r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		cut := r.IntN(len(order))
		to.gather(rig.builder, order[:cut])
		to.gather(rig.builder, order[cut:])
		got := readFile(t, writeFile(t, rig.table, WriterConfig{}, finish(t, to)))
		for i, row := range order {
			if diff := cmp.Diff(parquetiotest.Resolve(want[row], any(got[i])), any(got[i])); diff != "" {
				t.Fatalf("seed %d, row %d: %s\n%s", seed, i, diff, schema)
			}
		}
		rig.builder.clear()
		rig.builder.gather(to, nil)
		if rig.builder.Rows() != 0 {
			t.Fatalf("seed %d: rows after clear", seed)
		}
	}
}

// Each row is in one file, that of its partition, in the order in which rows came, with few
// partitions, which are encoded as rows come, and with many.
func TestRowsGoToTheFilesOfTheirPartition(t *testing.T) {
	for _, partitions := range []int64{1, maxOpenWriters, maxOpenWriters + 1, 500} {
		r := newRig(t, `{"type":"record","name":"R","fields":[{"name":"k","type":"long"},{"name":"v","type":["null","string"],"default":null}]}`)
		k, _ := r.table.FindFieldByName("k")
		w, err := NewTableWriter(r.table, specOf(k.ID, iceberg.IdentityTransform{}), "_kafka", WriterConfig{})
		if err != nil {
			t.Fatal(err)
		}
		const rows = 3 * flushRows
		want := map[int64][]any{}
		for i := range int64(rows) {
			v := fmt.Sprint(i)
			if err := w.Append(r.decoder, cat(long(i%partitions), long(1), text(v)), RecordMeta{Offset: i}); err != nil {
				t.Fatal(err)
			}
			want[i%partitions] = append(want[i%partitions], v)
		}
		if w.Rows() != rows || w.Partitions() != int(partitions) {
			t.Errorf("%d rows of %d partitions, want %d of %d", w.Rows(), w.Partitions(), rows, partitions)
		}
		if encoded := w.builder.Rows() == 0; encoded != (partitions <= maxOpenWriters) {
			t.Errorf("%d partitions: %d rows wait in the builder", partitions, w.builder.Rows())
		}
		got := map[int64][]any{}
		if err := w.Close(func(p Part) error {
			key := p.values[1000].(int64)
			for _, row := range readFile(t, p.File) {
				if row["k"] != key {
					t.Fatalf("row %v in the file of %d", row, key)
				}
				got[key] = append(got[key], row["v"])
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%d partitions: %.500s", partitions, d)
		}
	}
}

// The number of files of a writer is bounded: the record that would go beyond is left for
// the next.
func TestPartitionsOfAWriterAreBounded(t *testing.T) {
	r := newRig(t, one(`"long"`))
	w, err := NewTableWriter(r.table, specOf(r.table.Field(0).ID, iceberg.IdentityTransform{}), "_kafka", WriterConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var n int64
	for err == nil {
		err = w.Append(r.decoder, long(n), RecordMeta{})
		n++
	}
	if !errors.Is(err, ErrFull) || !w.Full(1<<40) || w.Partitions() != maxPartitions+1 || w.Rows() != maxPartitions+1 {
		t.Errorf("after %d partitions of %d rows: %v", w.Partitions(), w.Rows(), err)
	}
}

// A spec that names no column, or one within a list, or a transform that its type does not
// have, is refused.
func TestTableWriterRefusesSpecs(t *testing.T) {
	r := newRig(t, `{"type":"record","name":"R","fields":[{"name":"l","type":{"type":"array","items":"long"}},{"name":"s","type":"string"},
		{"name":"d","type":{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}}]}`)
	id := func(name string) int {
		f, ok := r.table.FindFieldByName(name)
		if !ok {
			t.Fatal(name)
		}
		return f.ID
	}
	for hint, spec := range map[string]iceberg.PartitionSpec{
		"no column with id 77": specOf(77, iceberg.IdentityTransform{}),
		"in no list":           specOf(id("l.element"), iceberg.IdentityTransform{}),
		"use bucket(d, N)":     specOf(id("d"), iceberg.IdentityTransform{}),
		"not possible":         specOf(id("s"), iceberg.DayTransform{}),
	} {
		if _, err := NewTableWriter(r.table, spec, "_kafka", WriterConfig{}); err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("%v, want %s", err, hint)
		}
	}
}

// A table of many columns has metrics of the first hundred, so that its manifests stay small.
func TestMetricsOfWideTables(t *testing.T) {
	var fields []string
	var payload []byte
	for i := range 300 {
		fields = append(fields, fmt.Sprintf(`{"name":"c%d","type":"long"}`, i))
		payload = append(payload, long(int64(i))...)
	}
	r := newRig(t, `{"type":"record","name":"R","fields":[`+strings.Join(fields, ",")+`]}`)
	r.append(payload)
	d, err := writeFile(t, r.table, WriterConfig{}, finish(t, r.builder)).DataFile(*iceberg.UnpartitionedSpec, "file:///t/1.parquet")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(d.LowerBoundValues()); n != maxMetrics || !bytes.Equal(d.LowerBoundValues()[r.table.Field(7).ID], []byte{7, 0, 0, 0, 0, 0, 0, 0}) {
		t.Errorf("%d bounds, column c7 %x", n, d.LowerBoundValues()[r.table.Field(7).ID])
	}
	if slices.ContainsFunc(r.table.Fields()[maxMetrics:], func(f iceberg.NestedField) bool { return d.ValueCounts()[f.ID] != 0 }) {
		t.Error("columns behind the first hundred have metrics")
	}
}
