package parquetio

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

// A sorter orders the rows of a builder as the sort order of the table says (Iceberg spec,
// "Sorting"). Rows that are equal keep their order.
type sorter struct {
	b      *Builder
	fields []sortField
}

type sortField struct {
	path       []int // from the top-level column to the source
	descending bool
	nullsFirst bool
	compare    func(c *column, x, y int) int // of rows that are not null
}

// newSorter returns nil if the table is unsorted.
func newSorter(b *Builder, order table.SortOrder) (*sorter, error) {
	if order.Len() == 0 {
		return nil, nil
	}
	s := &sorter{b: b}
	for i, f := range order.Fields() {
		field := sortField{path: b.pathOf(f.SourceID()), descending: f.Direction == table.SortDESC, nullsFirst: f.NullOrder == table.NullsFirst}
		if field.path == nil {
			return nil, fmt.Errorf("sort order, field %d: the table has no column with id %d that is in no list or map", i+1, f.SourceID())
		}
		c := &b.cols[field.path[len(field.path)-1]]
		if len(c.kids) > 0 || !f.Transform.CanTransform(c.typ) {
			return nil, fmt.Errorf("sort order, field %d: %s of column %s, a %s, is not possible", i+1, f.Transform, c.path, c.typ)
		}
		if field.compare = comparison(f.Transform, c); field.compare == nil {
			return nil, fmt.Errorf("sort order, field %d: this version cannot work out %s of column %s, a %s", i+1, f.Transform, c.path, c.typ)
		}
		s.fields = append(s.fields, field)
	}
	return s, nil
}

// CheckSortOrder refuses a sort order that rows of a table cannot be written by.
func CheckSortOrder(schema *iceberg.Schema, order table.SortOrder) error {
	b := &Builder{table: schema}
	b.cols, b.top = layout(schema)
	_, err := newSorter(b, order)
	return err
}

// sort sorts rows of the builder.
func (s *sorter) sort(rows []int32) {
	slices.SortStableFunc(rows, func(x, y int32) int {
		for i := range s.fields {
			if c := s.fields[i].order(s.b, int(x), int(y)); c != 0 {
				return c
			}
		}
		return 0
	})
}

func (f *sortField) order(b *Builder, x, y int) int {
	switch xNull, yNull := b.nullAt(f.path, x), b.nullAt(f.path, y); {
	case xNull && yNull:
		return 0
	case xNull || yNull:
		if xNull == f.nullsFirst {
			return -1
		}
		return 1
	}
	c := f.compare(&b.cols[f.path[len(f.path)-1]], x, y)
	if f.descending {
		return -c
	}
	return c
}

// comparison returns how transformed values of a column compare, nil if it is not known.
func comparison(t iceberg.Transform, c *column) func(c *column, x, y int) int {
	if _, identity := t.(iceberg.IdentityTransform); identity {
		return natural(c)
	}
	apply := transformOf(t, c)
	if apply == nil {
		return nil
	}
	var a, b []byte
	if c.isNumber() || !isTruncation(t) {
		return func(c *column, x, y int) int {
			a, b = apply(a[:0], c, x), apply(b[:0], c, y)
			return cmp.Compare(int64(binary.BigEndian.Uint64(a)), int64(binary.BigEndian.Uint64(b)))
		}
	}
	return func(c *column, x, y int) int {
		a, b = apply(a[:0], c, x), apply(b[:0], c, y)
		return bytes.Compare(a, b)
	}
}

func isTruncation(t iceberg.Transform) bool {
	_, ok := t.(iceberg.TruncateTransform)
	return ok
}

// natural is the order of a type's values (Iceberg spec, "Sorting"): -NaN < -Infinity < … < -0 < 0 <
// … < Infinity < NaN, and bytes as unsigned.
func natural(c *column) func(c *column, x, y int) int {
	switch c.typ.(type) {
	case iceberg.Float32Type:
		return func(c *column, x, y int) int { return cmp.Compare(total32(c.i32[x]), total32(c.i32[y])) }
	case iceberg.Float64Type:
		return func(c *column, x, y int) int { return cmp.Compare(total64(c.i64[x]), total64(c.i64[y])) }
	case iceberg.DecimalType:
		return func(c *column, x, y int) int { return c.decimalAt(x).Cmp(c.decimalAt(y)) }
	}
	if c.isNumber() {
		return func(c *column, x, y int) int { return cmp.Compare(c.number(x), c.number(y)) }
	}
	return func(c *column, x, y int) int { return bytes.Compare(c.blobAt(x), c.blobAt(y)) }
}

// total32 and total64 map the bits of a float to an integer of the same order.
func total32(bits int32) int32 { return bits ^ bits>>31&math.MaxInt32 }
func total64(bits int64) int64 { return bits ^ bits>>63&math.MaxInt64 }
