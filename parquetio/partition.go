package parquetio

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/iceberg-go"
	"github.com/google/uuid"
	"github.com/twmb/murmur3"
)

// partitions tells the rows of a builder apart by the partition of the table that they
// belong to (Iceberg spec, "Partitioning").
type partitions struct {
	b      *Builder
	fields []partitionField
	ids    map[string]int32
	values []map[int]any // by id: the partition's values by field id, as manifests take them
	rows   []int32       // ids of the builder's rows
	key    []byte
}

// A partitionField makes one value of a partition. The value is worked out in a form whose
// equality is that of its bytes, and turned into what manifests take once per partition.
type partitionField struct {
	id     int
	path   []int // from the top-level column to the source; nil if the value is always null
	result iceberg.Type
	// apply appends the value of a row that is not null.
	apply func(dst []byte, c *column, row int) []byte
}

// newPartitions returns nil if the table has no partitions.
func newPartitions(b *Builder, spec iceberg.PartitionSpec) (*partitions, error) {
	if spec.IsUnpartitioned() && spec.NumFields() == 0 {
		return nil, nil
	}
	p := &partitions{b: b, ids: map[string]int32{}}
	for _, f := range spec.Fields() {
		field, transform := partitionField{id: f.FieldID}, f.Transform
		_, void := transform.(iceberg.VoidTransform)
		if void {
			transform = iceberg.IdentityTransform{} // has the same type, and void takes every column
		}
		if field.path = b.pathOf(f.SourceID()); field.path == nil {
			if !void || b.has(f.SourceID()) {
				return nil, fmt.Errorf("partition field %s: the table has no column with id %d that is in no list or map", f.Name, f.SourceID())
			}
			p.fields = append(p.fields, field) // of a column that was dropped
			continue
		}
		c := &b.cols[field.path[len(field.path)-1]]
		if !transform.CanTransform(c.typ) {
			return nil, fmt.Errorf("partition field %s: %s of column %s, a %s, is not possible", f.Name, f.Transform, c.path, c.typ)
		}
		field.result = transform.ResultType(c.typ)
		if _, decimal := field.result.(iceberg.DecimalType); decimal {
			// iceberg-go 0.7.0 gives the Avro type of the value no name, and then refuses it.
			return nil, fmt.Errorf("partition field %s: manifests cannot hold the decimal values of column %s: use bucket(%s, N)", f.Name, c.path, c.path)
		}
		if field.apply = transformOf(transform, c); field.apply == nil {
			return nil, fmt.Errorf("partition field %s: this version cannot work out %s of column %s, a %s", f.Name, f.Transform, c.path, c.typ)
		}
		if void {
			field.path = nil
		}
		p.fields = append(p.fields, field)
	}
	return p, nil
}

// CheckPartitions refuses a partition spec that rows of a table cannot be written by.
func CheckPartitions(schema *iceberg.Schema, spec iceberg.PartitionSpec) error {
	b := &Builder{table: schema}
	b.cols, b.top = layout(schema)
	_, err := newPartitions(b, spec)
	return err
}

// has reports whether there is a column of a field id, in lists and maps too.
func (b *Builder) has(id int) bool {
	for i := range b.cols {
		if b.cols[i].id == id {
			return true
		}
	}
	return false
}

// pathOf returns the way through structs to the column of a field id, nil if there is none.
func (b *Builder) pathOf(id int) []int {
	for i := range b.cols {
		if b.cols[i].id != id {
			continue
		}
		var path []int
		kids := b.top
		for at := -1; at != i; {
			at = -1
			for _, k := range kids {
				if k <= i && i < b.cols[k].end {
					at = k
				}
			}
			path = append(path, at)
			if at != i && b.cols[at].kind != columnStruct {
				return nil
			}
			kids = b.cols[at].kids
		}
		return path
	}
	return nil
}

// add notes the partition of a row of the builder, the one behind those that it knows.
func (p *partitions) add(row int) {
	p.key = p.key[:0]
	for i := range p.fields {
		f := &p.fields[i]
		if f.path == nil || p.b.nullAt(f.path, row) {
			p.key = append(p.key, 0)
			continue
		}
		p.key = append(p.key, 1, 0, 0, 0, 0)
		from := len(p.key)
		p.key = f.apply(p.key, &p.b.cols[f.path[len(f.path)-1]], row)
		binary.BigEndian.PutUint32(p.key[from-4:], uint32(len(p.key)-from))
	}
	id, ok := p.ids[string(p.key)]
	if !ok {
		id = int32(len(p.values))
		p.ids[string(p.key)] = id
		p.values = append(p.values, p.decode(p.key))
	}
	p.rows = append(p.rows, id)
}

func (b *Builder) nullAt(path []int, row int) bool {
	for _, i := range path {
		if c := &b.cols[i]; c.nulls > 0 && c.valid[row>>3]&(1<<(row&7)) == 0 || c.kind == columnUnknown {
			return true
		}
	}
	return false
}

// decode is the inverse of add.
func (p *partitions) decode(key []byte) map[int]any {
	out := make(map[int]any, len(p.fields))
	for _, f := range p.fields {
		if key[0] == 0 {
			out[f.id], key = nil, key[1:]
			continue
		}
		n := binary.BigEndian.Uint32(key[1:])
		out[f.id] = manifestValue(f.result, key[5:5+n])
		key = key[5+n:]
	}
	return out
}

// byPartition returns the rows of the builder by partition id, in their order.
func (p *partitions) byPartition() [][]int32 {
	counts := make([]int, len(p.values))
	for _, id := range p.rows {
		counts[id]++
	}
	all := make([]int32, len(p.rows))
	out := make([][]int32, len(counts))
	for id, n := range counts {
		out[id], all = all[:0:n], all[n:]
	}
	for row, id := range p.rows {
		out[id] = append(out[id], int32(row))
	}
	return out
}

func appendNumber(dst []byte, v int64) []byte { return binary.BigEndian.AppendUint64(dst, uint64(v)) }

// number returns a value of a column of numbers.
func (c *column) number(row int) int64 {
	switch c.kind {
	case columnBit:
		return int64(c.data[row>>3] >> (row & 7) & 1)
	case column4:
		return int64(c.i32[row])
	}
	return c.i64[row]
}

// blobAt returns a value of a column of bytes.
func (c *column) blobAt(row int) []byte {
	if c.kind == columnFixed {
		return c.data[row*c.width : (row+1)*c.width]
	}
	return c.data[c.offsets[row]:c.offsets[row+1]]
}

func (c *column) decimalAt(row int) decimal128.Num {
	b := c.blobAt(row)
	return decimal128.New(int64(binary.LittleEndian.Uint64(b[8:])), binary.LittleEndian.Uint64(b))
}

func (c *column) isNumber() bool {
	return c.kind == columnBit || c.kind == column4 || c.kind == column8
}

// transformOf returns how the values of a column are transformed, nil if it is not known.
func transformOf(t iceberg.Transform, c *column) func(dst []byte, c *column, row int) []byte {
	switch t := t.(type) {
	case iceberg.IdentityTransform:
		if c.isNumber() {
			return func(dst []byte, c *column, row int) []byte { return appendNumber(dst, c.number(row)) }
		}
		return func(dst []byte, c *column, row int) []byte { return append(dst, c.blobAt(row)...) }
	case iceberg.YearTransform:
		return calendar(c, func(days int64) int64 { return int64(dateOf(days).Year()) - 1970 })
	case iceberg.MonthTransform:
		return calendar(c, func(days int64) int64 {
			d := dateOf(days)
			return 12*(int64(d.Year())-1970) + int64(d.Month()) - 1
		})
	case iceberg.DayTransform:
		return calendar(c, func(days int64) int64 { return days })
	case iceberg.HourTransform:
		day := dayOf(c.typ)
		return func(dst []byte, c *column, row int) []byte {
			return appendNumber(dst, floorDiv(c.number(row), day/24))
		}
	case iceberg.BucketTransform:
		return bucket(c, int64(t.NumBuckets))
	case iceberg.TruncateTransform:
		return truncation(c, t.Width)
	}
	return nil
}

func dateOf(days int64) time.Time { return time.Unix(days*86400, 0).UTC() }

// dayOf is a day in the unit of a type of time.
func dayOf(t iceberg.Type) int64 {
	switch t.(type) {
	case iceberg.DateType:
		return 1
	case iceberg.TimestampNsType, iceberg.TimestampTzNsType:
		return int64(24 * time.Hour)
	}
	return int64(24 * time.Hour / time.Microsecond)
}

func calendar(c *column, of func(days int64) int64) func(dst []byte, c *column, row int) []byte {
	day := dayOf(c.typ)
	return func(dst []byte, c *column, row int) []byte {
		return appendNumber(dst, of(floorDiv(c.number(row), day)))
	}
}

// bucket hashes as Iceberg's spec says in appendix B.
func bucket(c *column, n int64) func(dst []byte, c *column, row int) []byte {
	var hash func(c *column, row int) uint32
	switch c.typ.(type) {
	case iceberg.DecimalType:
		hash = func(c *column, row int) uint32 { return murmur3.Sum32(shortest(c.decimalAt(row))) }
	case iceberg.TimestampNsType, iceberg.TimestampTzNsType:
		hash = func(c *column, row int) uint32 { return hashNumber(floorDiv(c.number(row), 1000)) }
	default:
		hash = func(c *column, row int) uint32 { return murmur3.Sum32(c.blobAt(row)) }
		if c.isNumber() {
			hash = func(c *column, row int) uint32 { return hashNumber(c.number(row)) }
		}
	}
	return func(dst []byte, c *column, row int) []byte {
		return appendNumber(dst, int64(hash(c, row)&math.MaxInt32)%n)
	}
}

func hashNumber(v int64) uint32 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(v))
	return murmur3.Sum32(b[:])
}

// shortest is the two's complement of a number, big-endian, in as few bytes as it needs.
func shortest(d decimal128.Num) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(d.HighBits()))
	b = binary.BigEndian.AppendUint64(b, d.LowBits())
	return withoutSign(b)
}

// withoutSign returns a number in two's complement, big-endian, in as few bytes as it needs.
func withoutSign(b []byte) []byte {
	sign := byte(int8(b[0]) >> 7)
	for len(b) > 1 && b[0] == sign && (b[1]^sign)&0x80 == 0 {
		b = b[1:]
	}
	return b
}

func truncation(c *column, width int) func(dst []byte, c *column, row int) []byte {
	n := int64(width)
	switch c.typ.(type) {
	case iceberg.Int32Type:
		return func(dst []byte, c *column, row int) []byte {
			v := c.number(row)
			return appendNumber(dst, int64(int32(v-(v%n+n)%n))) // wraps, as everywhere
		}
	case iceberg.Int64Type:
		return func(dst []byte, c *column, row int) []byte {
			v := c.number(row)
			return appendNumber(dst, v-(v%n+n)%n)
		}
	case iceberg.StringType:
		return func(dst []byte, c *column, row int) []byte {
			v, at := c.blobAt(row), 0
			for i := 0; i < width && at < len(v); i++ {
				_, size := utf8.DecodeRune(v[at:])
				at += size
			}
			return append(dst, v[:at]...)
		}
	case iceberg.BinaryType:
		return func(dst []byte, c *column, row int) []byte {
			v := c.blobAt(row)
			return append(dst, v[:min(width, len(v))]...)
		}
	}
	return nil
}

// manifestValue returns a transformed value as manifests take it.
func manifestValue(t iceberg.Type, v []byte) any {
	var n int64
	if len(v) == 8 {
		n = int64(binary.BigEndian.Uint64(v))
	}
	switch t.(type) {
	case iceberg.BooleanType:
		return n != 0
	case iceberg.Int32Type:
		return int32(n)
	case iceberg.Int64Type:
		return n
	case iceberg.Float32Type:
		return math.Float32frombits(uint32(n))
	case iceberg.Float64Type:
		return math.Float64frombits(uint64(n))
	case iceberg.DateType:
		return iceberg.Date(n)
	case iceberg.TimeType:
		return iceberg.Time(n)
	case iceberg.TimestampType, iceberg.TimestampTzType:
		return iceberg.Timestamp(n)
	case iceberg.TimestampNsType, iceberg.TimestampTzNsType:
		return iceberg.TimestampNano(n)
	case iceberg.UUIDType:
		return uuid.UUID(v)
	case iceberg.StringType:
		return string(v)
	}
	return append([]byte{}, v...)
}
