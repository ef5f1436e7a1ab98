package parquetio

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

const sortedSchema = `{"type":"record","name":"R","fields":[{"name":"id","type":"long"},{"name":"d","type":["null","double"]},{"name":"s","type":["null","string"]},
	{"name":"n","type":["null",{"type":"record","name":"N","fields":[{"name":"x","type":["null","int"]}]}]},
	{"name":"dec","type":["null",{"type":"bytes","logicalType":"decimal","precision":20,"scale":2}]},
	{"name":"at","type":["null",{"type":"long","logicalType":"timestamp-micros"}]}]}`

// sortedRow is a row of sortedSchema; nil is null.
type sortedRow struct {
	id  int64
	d   *float64
	s   *string
	x   *int64
	dec *int64
	at  *int64
}

func (r sortedRow) payload() []byte {
	option := func(null bool, v func() []byte) []byte {
		if null {
			return long(0)
		}
		return append(long(1), v()...)
	}
	return cat(long(r.id),
		option(r.d == nil, func() []byte { return double(*r.d) }),
		option(r.s == nil, func() []byte { return text(*r.s) }),
		option(false, func() []byte { return option(r.x == nil, func() []byte { return long(*r.x) }) }),
		option(r.dec == nil, func() []byte { return text(string(decimalBytes(*r.dec))) }),
		option(r.at == nil, func() []byte { return long(*r.at) }))
}

// one of the values, or null.
func pick[T any](r *rand.Rand, values ...T) *T {
	if r.IntN(4) == 0 {
		return nil
	}
	return &values[r.IntN(len(values))]
}

// by compares two optional values.
func by[T any](get func(sortedRow) *T, compare func(a, b T) int, descending, nullsFirst bool) func(a, b sortedRow) int {
	return func(a, b sortedRow) int {
		x, y := get(a), get(b)
		switch {
		case x == nil && y == nil:
			return 0
		case x == nil || y == nil:
			if (x == nil) == nullsFirst {
				return -1
			}
			return 1
		case descending:
			return compare(*y, *x)
		}
		return compare(*x, *y)
	}
}

// floats is the order of Iceberg's spec, by rank.
var floats = []float64{math.Float64frombits(0xfff8000000000000), math.Inf(-1), -2.5, math.Copysign(0, -1), 0, 1e-300, 3, math.Inf(1), math.NaN()}

func floatRank(v float64) int {
	return slices.IndexFunc(floats, func(f float64) bool { return math.Float64bits(f) == math.Float64bits(v) })
}

// The rows of a file are in the order of the table, nulls and floats where the spec has them, rows
// that are equal as they came, in each partition of the table; and the file says which order it is.
func TestRowsAreSorted(t *testing.T) {
	floorTo := func(n int64) func(a, b int64) int {
		return func(a, b int64) int { return cmp.Compare(floorDiv(a, n), floorDiv(b, n)) }
	}
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 3))
		rig := newRig(t, sortedSchema)
		id := func(name string) int {
			f, ok := rig.table.FindFieldByName(name)
			if !ok {
				t.Fatal(name)
			}
			return f.ID
		}
		var fields []table.SortField
		var compare []func(a, b sortedRow) int
		for _, at := range r.Perm(6)[:1+r.IntN(3)] {
			desc, first := r.IntN(2) == 0, r.IntN(2) == 0
			f := table.SortField{Transform: iceberg.IdentityTransform{}, Direction: table.SortASC, NullOrder: table.NullsLast}
			if desc {
				f.Direction = table.SortDESC
			}
			if first {
				f.NullOrder = table.NullsFirst
			}
			source := ""
			switch at {
			case 0:
				source = "d"
				compare = append(compare, by(func(r sortedRow) *float64 { return r.d }, func(a, b float64) int { return floatRank(a) - floatRank(b) }, desc, first))
			case 1:
				source = "s"
				compare = append(compare, by(func(r sortedRow) *string { return r.s }, strings.Compare, desc, first))
			case 2:
				source = "n.x"
				compare = append(compare, by(func(r sortedRow) *int64 { return r.x }, cmp.Compare[int64], desc, first))
			case 3:
				source = "dec"
				compare = append(compare, by(func(r sortedRow) *int64 { return r.dec }, cmp.Compare[int64], desc, first))
			case 4:
				source, f.Transform = "at", iceberg.DayTransform{}
				compare = append(compare, by(func(r sortedRow) *int64 { return r.at }, floorTo(86_400_000_000), desc, first))
			case 5:
				source, f.Transform = "n.x", iceberg.TruncateTransform{Width: 10}
				compare = append(compare, by(func(r sortedRow) *int64 { return r.x }, floorTo(10), desc, first))
			}
			f.SourceIDs = []int{id(source)}
			fields = append(fields, f)
		}
		order, err := table.NewSortOrder(7, fields)
		if err != nil {
			t.Fatal(err)
		}
		spec := *iceberg.UnpartitionedSpec
		if seed%2 == 1 {
			spec = specOf(id("s"), iceberg.IdentityTransform{})
		}
		w, err := NewTableWriter(rig.table, spec, "_kafka", WriterConfig{Order: order})
		if err != nil {
			t.Fatal(err)
		}
		var rows []sortedRow
		for i := range int64(flushRows + 1 + r.IntN(1000)) {
			row := sortedRow{
				id: i, d: pick(r, floats...), s: pick(r, "", "a", "ab", "b", "ä", "\U0010ffff"), x: pick(r, math.MinInt32+8, -11, -10, -1, 0, 9, int64(math.MaxInt32)),
				dec: pick(r, -100_000, -1, 0, 1, 99, int64(1e17)), at: pick(r, -86_400_000_001, -1, 0, 1, int64(86_400_000_000)),
			}
			rows = append(rows, row)
			if err := w.Append(rig.decoder, row.payload(), RecordMeta{Offset: i}); err != nil {
				t.Fatal(err)
			}
		}
		want := map[string][]int64{}
		slices.SortStableFunc(rows, func(a, b sortedRow) int {
			for _, c := range compare {
				if c := c(a, b); c != 0 {
					return c
				}
			}
			return 0
		})
		group := func(s *string) string {
			switch {
			case spec.NumFields() == 0:
				return ""
			case s == nil:
				return "null"
			}
			return fmt.Sprintf("%q", *s)
		}
		for _, row := range rows {
			want[group(row.s)] = append(want[group(row.s)], row.id)
		}
		if err := w.Close(func(p Part) error {
			entry, err := p.DataFile(spec, "mem:///f")
			if err != nil {
				return err
			}
			if n := entry.SortOrderID(); n == nil || *n != 7 {
				t.Errorf("seed %d: sort order id %v, want 7", seed, n)
			}
			var got []int64
			var s *string
			for _, row := range readFile(t, p.File) {
				got = append(got, row["id"].(int64))
				if v, ok := row["s"].(string); ok {
					s = &v
				}
			}
			if !slices.Equal(got, want[group(s)]) {
				t.Fatalf("seed %d: order %v: partition %s is not sorted", seed, order, group(s))
			}
			delete(want, group(s))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if len(want) > 0 {
			t.Errorf("seed %d: no files of %d partitions", seed, len(want))
		}
	}
}

// A sort order that rows cannot be written by says which field is why.
func TestSortOrderThatCannotBe(t *testing.T) {
	r := newRig(t, `{"type":"record","name":"R","fields":[{"name":"l","type":{"type":"array","items":"int"}},{"name":"s","type":"string"}]}`)
	list, _ := r.table.FindFieldByName("l")
	item, _ := r.table.FindFieldByName("l.element")
	text, _ := r.table.FindFieldByName("s")
	for want, f := range map[string]table.SortField{
		"column l, a list":                    {SourceIDs: []int{list.ID}, Transform: iceberg.IdentityTransform{}},
		"in no list or map":                   {SourceIDs: []int{item.ID}, Transform: iceberg.IdentityTransform{}},
		"day of column s, a string":           {SourceIDs: []int{text.ID}, Transform: iceberg.DayTransform{}},
		"no column with id 99":                {SourceIDs: []int{99}, Transform: iceberg.IdentityTransform{}},
		"cannot work out void of column s, a": {SourceIDs: []int{text.ID}, Transform: iceberg.VoidTransform{}},
	} {
		f.Direction, f.NullOrder = table.SortASC, table.NullsFirst
		order, err := table.NewSortOrder(1, []table.SortField{f})
		if err != nil {
			t.Fatal(err)
		}
		if err := CheckSortOrder(r.table, order); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
