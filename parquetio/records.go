package parquetio

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go"
)

// CheckCopy refuses a table that has columns whose values this version cannot read and write again:
// those of types that it does not know, and variants, which other writers may shred.
func CheckCopy(schema *iceberg.Schema) error {
	cols, _ := layout(schema)
	for i := range cols {
		_, null := cols[i].typ.(iceberg.UnknownType)
		if _, variant := cols[i].typ.(iceberg.VariantType); variant || cols[i].kind == columnUnknown && !null {
			return fmt.Errorf("column %s is a %s, which this version cannot write again", cols[i].path, cols[i].typ)
		}
	}
	return nil
}

// AppendRecords appends rows that were read from other files of the table, as columns of its schema
// in their order. After an error the builder is of no more use.
func (b *Builder) AppendRecords(batch arrow.RecordBatch) error {
	if int(batch.NumCols()) != len(b.top) {
		return fmt.Errorf("append records: %d columns, the table has %d", batch.NumCols(), len(b.top))
	}
	for n, i := range b.top {
		if err := copyColumn(b.cols, i, batch.Column(n), b.schema.Field(n).Type, b.limit); err != nil {
			return fmt.Errorf("append records: %w", err)
		}
	}
	b.rows += int(batch.NumRows())
	return nil
}

// copyColumn appends an array to the column at i, and what lies inside it to those inside.
func copyColumn(cols []column, i int, a arrow.Array, want arrow.DataType, limit int) error {
	c := &cols[i]
	if e, ok := a.(array.ExtensionArray); ok {
		a = e.Storage()
	}
	if e, ok := want.(arrow.ExtensionType); ok {
		want = e.StorageType()
	}
	if c.kind == columnUnknown {
		if a.NullN() != a.Len() {
			return fmt.Errorf("column %s: values of type %s cannot be written", c.path, a.DataType())
		}
		for range a.Len() {
			c.absent()
		}
		return nil
	}
	if len(c.kids) == 0 && !arrow.TypeEqual(a.DataType(), want) {
		return fmt.Errorf("column %s: values of type %s, want %s", c.path, a.DataType(), want)
	}
	data := a.Data()
	from, n := data.Offset(), a.Len()
	if n == 0 {
		return nil
	}
	raw := func(buffer int) []byte {
		if buffers := data.Buffers(); buffer < len(buffers) && buffers[buffer] != nil {
			return buffers[buffer].Bytes()
		}
		return nil
	}
	switch c.kind {
	case column4:
		c.i32 = append(c.i32, arrow.Int32Traits.CastFromBytes(raw(1))[from:from+n]...)
	case column8:
		c.i64 = append(c.i64, arrow.Int64Traits.CastFromBytes(raw(1))[from:from+n]...)
	case columnFixed:
		c.data = append(c.data, raw(1)[from*c.width:(from+n)*c.width]...)
	case columnBit:
		bits := raw(1)
		for at := range n {
			if (c.n+at)&7 == 0 {
				c.data = append(c.data, 0)
			}
			c.data[(c.n+at)>>3] |= bits[(from+at)>>3] >> ((from + at) & 7) & 1 << ((c.n + at) & 7)
		}
	case columnBytes:
		offsets, body := arrow.Int32Traits.CastFromBytes(raw(1))[from:from+n+1], raw(2)
		if len(c.data)+int(offsets[n]-offsets[0]) > limit {
			return fmt.Errorf("column %s: more than %d bytes wait to be written", c.path, limit)
		}
		shift := int32(len(c.data)) - offsets[0]
		c.data = append(c.data, body[offsets[0]:offsets[n]]...)
		for _, o := range offsets[1:] {
			c.offsets = append(c.offsets, o+shift)
		}
	case columnStruct:
		s, ok := a.(*array.Struct)
		t, wanted := want.(*arrow.StructType)
		if !ok || !wanted || s.NumField() != len(c.kids) {
			return fmt.Errorf("column %s: values of type %s, want %s", c.path, a.DataType(), want)
		}
		for k, kid := range c.kids {
			if err := copyColumn(cols, kid, s.Field(k), t.Field(k).Type, limit); err != nil {
				return err
			}
		}
	case columnList, columnMap:
		if err := copyItems(cols, i, a, want, limit); err != nil {
			return err
		}
	}
	for at := range n {
		if a.IsNull(at) {
			c.absent()
		} else {
			c.present()
		}
	}
	return nil
}

// copyItems appends the items of lists, or the entries of maps, and where each ends.
func copyItems(cols []column, i int, a arrow.Array, want arrow.DataType, limit int) error {
	c := &cols[i]
	var kids []arrow.Array
	var types []arrow.DataType
	list, _ := a.(array.ListLike)
	ok := false
	switch a := a.(type) {
	case *array.Map: // which is a list, too
		t, wanted := want.(*arrow.MapType)
		if ok = wanted; ok {
			kids, types = []arrow.Array{a.Keys(), a.Items()}, []arrow.DataType{t.KeyType(), t.ItemType()}
		}
	case *array.List:
		t, wanted := want.(*arrow.ListType)
		if ok = wanted; ok {
			kids, types = []arrow.Array{a.ListValues()}, []arrow.DataType{t.Elem()}
		}
	}
	if !ok || len(kids) != len(c.kids) {
		return fmt.Errorf("column %s: values of type %s, want %s", c.path, a.DataType(), want)
	}
	// Items of rows that follow each other are mostly one piece.
	var from, to int64
	piece := func() error {
		for k, kid := range c.kids {
			if from == to {
				break
			}
			part := array.NewSlice(kids[k], from, to)
			err := copyColumn(cols, kid, part, types[k], limit)
			part.Release()
			if err != nil {
				return err
			}
		}
		return nil
	}
	end := int64(c.offsets[len(c.offsets)-1])
	for at := range a.Len() {
		if a.IsValid(at) {
			first, last := list.ValueOffsets(at)
			if first != to {
				if err := piece(); err != nil {
					return err
				}
				from = first
			}
			to = last
			end += last - first
		}
		c.offsets = append(c.offsets, int32(end))
	}
	if end > int64(limit) {
		return fmt.Errorf("column %s: more than %d items wait to be written", c.path, limit)
	}
	return piece()
}

// AppendRecords is [Builder.AppendRecords]. After an error the writer is of no more use.
func (w *TableWriter) AppendRecords(batch arrow.RecordBatch) error {
	if w.err != nil || batch.NumRows() == 0 {
		return w.err
	}
	before := w.builder.rows
	if w.err = w.builder.AppendRecords(batch); w.err != nil {
		return w.err
	}
	w.rows += batch.NumRows()
	for row := before; w.keys != nil && row < w.builder.rows; row++ {
		w.keys.add(row)
	}
	if w.builder.rows >= w.flushAt || w.builder.Bytes() >= flushBytes {
		w.err = w.flush()
	}
	return w.err
}

// Values returns the partition of the table that the rows of the file are of, by field id, as
// manifests have it.
func (p Part) Values() map[int]any { return p.values }
