package parquetio

import (
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go"
)

type columnKind uint8

const (
	columnBit     columnKind = iota // boolean
	column4                         // int, float, date
	column8                         // long, double, time, timestamp
	columnFixed                     // fixed, uuid, decimal: width bytes each
	columnBytes                     // string, binary
	columnStruct                    // no buffer but validity; of a variant, too
	columnList                      // one kid
	columnMap                       // two kids
	columnUnknown                   // a type that no writer schema maps to: always null
)

// A column is the raw buffers of one field of the table, inner ones included. Columns lie
// in one slice in pre-order: those inside of the column at i are i+1 to end-1.
type column struct {
	kind  columnKind
	width int   // of columnFixed
	kids  []int // of struct, list and map
	end   int

	path     string
	name     string
	typ      iceberg.Type
	required bool
	id       int       // 0 of the two columns of a variant
	fill     *constant // in rows whose writers lack the column; nil for null

	// n values, of which nulls are null. valid is empty as long as nulls is 0.
	n, nulls int
	valid    []byte

	i32     []int32
	i64     []int64
	data    []byte  // bits, fixed or variable bytes
	offsets []int32 // n+1 of them, into data or the kid

	homes [4]home // of i32, i64, data, offsets
}

// A home takes back the memory of a released buffer, for the next batch to use.
type home struct {
	mu    sync.Mutex
	spare []byte // guarded by mu; the largest that came back, nil if none
}

// Allocate and Reallocate make home an allocator of Arrow. Buffers of a batch never grow.
func (h *home) Allocate(size int) []byte { return make([]byte, size) }
func (h *home) Reallocate(size int, b []byte) []byte {
	return append(make([]byte, 0, size), b...)[:size]
}

// Free keeps b.
func (h *home) Free(b []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if cap(b) > cap(h.spare) {
		h.spare = b[:0]
	}
}

// take returns an empty buffer with room for need bytes if one of that size came back.
func (h *home) take(need int) []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.spare
	h.spare = nil
	if cap(b) < need {
		return make([]byte, 0, need)
	}
	return b
}

// layout returns the empty columns of a table and the index of each top-level one.
func layout(table *iceberg.Schema) (cols []column, top []int) {
	for _, f := range table.Fields() {
		top = append(top, len(cols))
		cols = addColumn(cols, "", f)
	}
	return cols, top
}

func addColumn(cols []column, parent string, f iceberg.NestedField) []column {
	at, path := len(cols), join(parent, f.Name)
	cols = append(cols, column{path: path, name: f.Name, typ: f.Type, required: f.Required, id: f.ID, fill: fillOf(f.Type, f.WriteDefault)})
	var kids []int
	add := func(f iceberg.NestedField) {
		kids = append(kids, len(cols))
		cols = addColumn(cols, path, f)
	}
	kind, width := columnUnknown, 0
	switch t := f.Type.(type) {
	case *iceberg.StructType:
		kind = columnStruct
		for _, f := range t.FieldList {
			add(f)
		}
	case iceberg.VariantType:
		kind = columnStruct
		add(iceberg.NestedField{Name: "metadata", Type: iceberg.PrimitiveTypes.Binary, Required: true})
		add(iceberg.NestedField{Name: "value", Type: iceberg.PrimitiveTypes.Binary, Required: true})
	case *iceberg.ListType:
		kind = columnList
		add(t.ElementField())
	case *iceberg.MapType:
		kind = columnMap
		add(t.KeyField())
		add(t.ValueField())
	case iceberg.BooleanType:
		kind = columnBit
	case iceberg.Int32Type, iceberg.Float32Type, iceberg.DateType:
		kind = column4
	case iceberg.Int64Type, iceberg.Float64Type, iceberg.TimeType, iceberg.TimestampType, iceberg.TimestampTzType,
		iceberg.TimestampNsType, iceberg.TimestampTzNsType:
		kind = column8
	case iceberg.StringType, iceberg.BinaryType:
		kind = columnBytes
	case iceberg.UUIDType:
		kind, width = columnFixed, 16
	case iceberg.DecimalType:
		kind, width = columnFixed, 16
	case iceberg.FixedType:
		kind, width = columnFixed, t.Len()
	}
	c := &cols[at]
	c.kind, c.width, c.kids, c.end = kind, width, kids, len(cols)
	return cols
}

// reset empties the column, with room for what it held before.
func (c *column) reset() {
	c.n, c.nulls, c.valid = 0, 0, nil
	switch c.kind {
	case column4:
		c.i32 = arrow.Int32Traits.CastFromBytes(c.homes[0].take(4 * roomier(len(c.i32))))[:0]
	case column8:
		c.i64 = arrow.Int64Traits.CastFromBytes(c.homes[1].take(8 * roomier(len(c.i64))))[:0]
	case columnBit, columnFixed:
		c.data = c.homes[2].take(roomier(len(c.data)))
	case columnBytes:
		c.data = c.homes[2].take(roomier(len(c.data)))
		fallthrough
	case columnList, columnMap:
		c.offsets = append(arrow.Int32Traits.CastFromBytes(c.homes[3].take(4 * roomier(len(c.offsets))))[:0], 0)
	}
}

func roomier(n int) int { return n + n/16 }

// present counts a value that the caller has put into the buffers.
func (c *column) present() {
	if c.nulls != 0 {
		c.valid = setBit(c.valid, c.n)
	}
	c.n++
}

// absent counts a null. The caller has put a placeholder into the buffers.
func (c *column) absent() {
	if c.required {
		// Only below a null of an outer struct, which hides it.
		c.present()
		return
	}
	if c.nulls == 0 {
		c.valid = allOnes(c.valid[:0], c.n)
	}
	c.nulls++
	if c.n&7 == 0 {
		c.valid = append(c.valid, 0)
	}
	c.n++
}

// setBit appends a one as bit n to a bitmap of n bits.
func setBit(b []byte, n int) []byte {
	if n&7 == 0 {
		return append(b, 1)
	}
	b[n>>3] |= 1 << (n & 7)
	return b
}

func allOnes(b []byte, n int) []byte {
	for range n >> 3 {
		b = append(b, 0xff)
	}
	if rest := n & 7; rest != 0 {
		b = append(b, 1<<rest-1)
	}
	return b
}

// truncate cuts the column at index i of cols, and what lies inside it, down to n values.
// The column may have fewer, if its last row was not finished.
func truncate(cols []column, i, n int) {
	c := &cols[i]
	if c.n > n {
		if c.nulls != 0 {
			for j := n; j < c.n; j++ {
				if c.valid[j>>3]&(1<<(j&7)) == 0 {
					c.nulls--
				}
			}
			c.valid = cutBits(c.valid, n)
		}
		c.n = n
	}
	switch c.kind {
	case columnBit:
		c.data = cutBits(c.data, c.n)
	case column4:
		c.i32 = c.i32[:c.n]
	case column8:
		c.i64 = c.i64[:c.n]
	case columnFixed:
		c.data = c.data[:c.n*c.width]
	case columnBytes:
		c.offsets = c.offsets[:c.n+1]
		c.data = c.data[:c.offsets[c.n]]
	case columnStruct:
		for _, k := range c.kids {
			truncate(cols, k, n)
		}
	case columnList, columnMap:
		c.offsets = c.offsets[:c.n+1]
		for _, k := range c.kids {
			truncate(cols, k, int(c.offsets[c.n]))
		}
	}
}

// cutBits cuts a bitmap to n bits and clears those above in the last byte.
func cutBits(b []byte, n int) []byte {
	b = b[:(n+7)>>3]
	if rest := n & 7; rest != 0 {
		b[len(b)-1] &= 1<<rest - 1
	}
	return b
}

// bytes returns the size of what the column holds.
func (c *column) bytes() int {
	return len(c.valid) + 4*len(c.i32) + 8*len(c.i64) + len(c.data) + 4*len(c.offsets)
}
