package parquetio

import (
	"encoding/json"
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go"
	"github.com/google/go-cmp/cmp"

	"github.com/tabletopic/tabletopic/parquetio/parquetiotest"
)

// Rows of any types that come as Arrow columns, in pieces that begin anywhere, are the same rows.
func TestAppendedRecordsAreTheSame(t *testing.T) {
	for seed := range uint64(rowSeeds) {
		r := rand.New(rand.NewPCG(seed, 4))
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
		to, err := NewTableWriter(rig.table, *iceberg.UnpartitionedSpec, "", WriterConfig{})
		if err != nil {
			t.Fatal(err)
		}
		var want []any
		for range 1 + r.IntN(3) {
			rows := 1 + r.IntN(100)
			for range rows {
				payload, row, _ := root.Value(r)
				rig.append(payload)
				want = append(want, row)
			}
			batch := finish(t, rig.builder)
			for at := 0; at < rows; {
				end := at + 1 + r.IntN(rows-at)
				piece := batch.NewSlice(int64(at), int64(end))
				if err := to.AppendRecords(piece); err != nil {
					t.Fatalf("seed %d: %v\n%s", seed, err, schema)
				}
				piece.Release()
				at = end
			}
			batch.Release()
		}
		if to.Rows() != int64(len(want)) {
			t.Fatalf("seed %d: %d rows, want %d", seed, to.Rows(), len(want))
		}
		var got []map[string]any
		if err := to.Close(func(p Part) error { got = readFile(t, p.File); return nil }); err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if diff := cmp.Diff(parquetiotest.Resolve(want[i], any(got[i])), any(got[i])); diff != "" {
				t.Fatalf("seed %d, row %d: %s\n%s", seed, i, diff, schema)
			}
		}
	}
}

// Values that are not what the table has are refused, and not taken for something else.
func TestAppendRecordsRefusesOtherTypes(t *testing.T) {
	r := newRig(t, `{"type":"record","name":"R","fields":[{"name":"k","type":"long"}]}`)
	batch := finish(t, r.builder)
	defer batch.Release()
	columns := batch.Columns()
	floats := array.MakeArrayOfNull(nil, arrow.PrimitiveTypes.Float64, 0)
	columns[0] = floats
	fields := batch.Schema().Fields()
	fields[0].Type = floats.DataType()
	other := array.NewRecordBatch(arrow.NewSchema(fields, nil), columns, 0)
	defer other.Release()
	if err := r.builder.AppendRecords(other); err == nil {
		t.Error("doubles were taken for longs")
	}
	if err := CheckCopy(iceberg.NewSchema(0, iceberg.NestedField{ID: 1, Name: "v", Type: iceberg.VariantType{}})); err == nil {
		t.Error("a table with variants was not refused")
	}
	if err := CheckCopy(r.table); err != nil {
		t.Error(err)
	}
}
