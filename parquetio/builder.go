package parquetio

import (
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/record"
)

// ErrFull means that the builder has no room for one more row: call Finish, then append
// the same record again. It is no fault of the record.
var ErrFull = errors.New("builder is full")

// maxColumnData is the most that one column may hold: Arrow offsets have 31 bits.
const maxColumnData = math.MaxInt32

// A Builder gathers rows of one table schema as raw column buffers. Rows of several
// decoders may alternate. It is not safe for concurrent use.
type Builder struct {
	table  *iceberg.Schema
	schema *arrow.Schema
	cols   []column
	top    []int
	kafka  *kafkaColumns // nil if the table has none
	rows   int
	last   [2]*Decoder // of values and keys, known to be of the same table schema

	limit int // of bytes in one column, maxColumnData but in tests
	// of the record at hand
	room int // values that it may still put into lists and maps
	bad  DecodeError
	err  error // instead of bad

	folded  [][]byte // Protobuf messages that wait until they are whole, nil between records
	order   []int32  // of the keys of a map
	spare   []column // of the table, empty between records
	folding []byte   // JSON that becomes a variant, empty between records
}

// A RecordMeta is what the Kafka column holds.
type RecordMeta struct {
	Partition     int32
	Offset        int64
	Timestamp     int64 // milliseconds since 1970; null in the table if it is below 0 or does not fit microseconds
	TimestampType int8  // 0 set by the producer, 1 by the broker
	Key           []byte
	Headers       []record.Header

	// KeyDecoder puts KeyPayload into the column of the key; null if it is nil, and there is one.
	KeyDecoder *Decoder
	KeyPayload []byte
}

type kafkaColumns struct {
	root, partition, offset, timestamp, timestampType, key int
	headers, header, headerKey, headerValue                int
	end                                                    int
}

// NewBuilder returns an empty builder. The table must have the Kafka column as [Mapping.TableSchema]
// and [Mapping.Evolve] make it, unless kafkaColumn is empty.
func NewBuilder(schema *iceberg.Schema, kafkaColumn string) (*Builder, error) {
	arrowSchema, err := table.SchemaToArrowSchema(schema, nil, true, false)
	if err != nil {
		return nil, fmt.Errorf("new builder: %w", err)
	}
	b := &Builder{table: schema, schema: arrowSchema, limit: maxColumnData}
	b.cols, b.top = layout(schema)
	for i := range b.cols {
		c := &b.cols[i]
		if c.kind == columnUnknown && c.required {
			return nil, fmt.Errorf("new builder: column %s: required %s cannot be written", c.path, c.typ)
		}
		c.reset()
	}
	if kafkaColumn != "" {
		if b.kafka, err = b.findKafka(kafkaColumn); err != nil {
			return nil, fmt.Errorf("new builder: %w", err)
		}
	}
	return b, nil
}

func (b *Builder) findKafka(name string) (*kafkaColumns, error) {
	k := &kafkaColumns{root: -1}
	for _, i := range b.top {
		if isColumn(name, b.cols[i].name) {
			k.root = i
		}
	}
	if k.root < 0 {
		return nil, fmt.Errorf("table lacks the column %s: evolve it first", name)
	}
	k.end = b.cols[k.root].end
	find := func(parent int, name string, kind columnKind) (int, error) {
		for _, i := range b.cols[parent].kids {
			if c := &b.cols[i]; strings.EqualFold(c.name, name) && c.kind == kind {
				return i, nil
			}
		}
		return 0, fmt.Errorf("column %s lacks the field %s of the type that it needs: evolve the table first", b.cols[parent].path, name)
	}
	var errs [8]error
	k.partition, errs[0] = find(k.root, "partition", column4)
	k.offset, errs[1] = find(k.root, "offset", column8)
	k.timestamp, errs[2] = find(k.root, "timestamp", column8)
	k.timestampType, errs[3] = find(k.root, "timestamp_type", column4)
	k.key, errs[4] = find(k.root, "key", columnBytes)
	if k.headers, errs[5] = find(k.root, "headers", columnList); errs[5] == nil {
		k.header = b.cols[k.headers].kids[0]
		k.headerKey, errs[6] = find(k.header, "key", columnBytes)
		k.headerValue, errs[7] = find(k.header, "value", columnBytes)
	}
	return k, errors.Join(errs[:]...)
}

// Schema returns the schema of the batches that Finish returns.
func (b *Builder) Schema() *arrow.Schema { return b.schema }

// Rows returns the number of rows since the last Finish.
func (b *Builder) Rows() int { return b.rows }

// Bytes returns the size of the buffers since the last Finish. It looks at every column:
// call it per batch, not per record.
func (b *Builder) Bytes() int64 {
	n := 0
	for i := range b.cols {
		n += b.cols[i].bytes()
	}
	return int64(n)
}

// Append decodes one record, without the wire format header, into one row. After an error
// the builder is as it was before the call. The error is [ErrFull], or a [*DecodeError]
// if the record is to blame. Append keeps no reference to its arguments.
func (b *Builder) Append(d *Decoder, payload []byte, m RecordMeta) error {
	if err := b.check(d, m.KeyDecoder); err != nil {
		return err
	}
	b.room, b.err = MaxValues, nil
	return b.endRow(b.decode(d.program, payload) && b.putKey(d.key, m), m)
}

// decode has a program put a payload into the row at hand. If it panics, in others' code or in ours, that is
// the error of the record: a log holds it for good, and a server that ends with it would end each time it comes there.
func (b *Builder) decode(p program, payload []byte) (ok bool) {
	defer func() {
		if r := recover(); r != nil {
			clear(b.folded)
			b.spare, b.folding = nil, b.folding[:0]
			ok = b.failed(-1, 0, fmt.Sprintf("the decoder fails: %v", r)) >= 0
			b.bad.Stack = debug.Stack()
		}
	}()
	return p.decode(b, payload)
}

// check refuses decoders that do not fit the table, or each other.
func (b *Builder) check(value, key *Decoder) error {
	if key != nil && (value != nil && value.key != key.key) {
		return errKeyColumn
	}
	for i, d := range []*Decoder{value, key} {
		if d == nil || d == b.last[i] {
			continue
		}
		if d.table != b.table && !d.table.Equals(b.table) {
			return fmt.Errorf("append record: decoder and builder have different table schemas")
		}
		b.last[i] = d
	}
	return nil
}

// AppendNull adds the row of a tombstone: a record whose value is null. Every value column
// is null, so it is an error if the table has a required one.
func (b *Builder) AppendNull(m RecordMeta) error {
	if err := b.check(nil, m.KeyDecoder); err != nil {
		return err
	}
	b.room, b.err = MaxValues, nil
	key, ok := noKey, true
	if m.KeyDecoder != nil {
		key = m.KeyDecoder.key
	}
	for _, i := range b.top {
		if i == key || b.kafka != nil && i == b.kafka.root {
			continue
		}
		if b.cols[i].required {
			b.failed(i, 0, "record has no value, and the column is required")
			ok = false
			break
		}
		b.null(i)
	}
	return b.endRow(ok && b.putKey(noKey, m), m)
}

// endRow completes the row with its origin, or takes it back.
func (b *Builder) endRow(ok bool, m RecordMeta) error {
	if ok && b.kafka != nil {
		ok = b.origin(b.kafka, m)
	}
	if ok {
		b.rows++
		return nil
	}
	if !invariant.Off("parquetio-row-rollback") {
		for _, i := range b.top {
			truncate(b.cols, i, b.rows)
		}
	}
	if b.err != nil {
		if b.rows > 0 || b.err != ErrFull {
			return b.err
		}
		b.bad = DecodeError{Reason: "record is too large for one column"}
	}
	bad := b.bad
	return &bad
}

// fail notes an error that is no fault of the record, and returns -1.
func (b *Builder) fail(err error) int {
	b.err = err
	return -1
}

// null appends a null to the column at i, and what keeps the columns inside it in step.
func (b *Builder) null(i int) {
	c := &b.cols[i]
	switch c.kind {
	case columnBit:
		if c.n&7 == 0 {
			c.data = append(c.data, 0)
		}
	case column4:
		c.i32 = append(c.i32, 0)
	case column8:
		c.i64 = append(c.i64, 0)
	case columnFixed:
		for range c.width {
			c.data = append(c.data, 0)
		}
	case columnBytes, columnList, columnMap:
		c.offsets = append(c.offsets, c.offsets[len(c.offsets)-1])
	case columnStruct:
		for _, k := range c.kids {
			b.null(k)
		}
	}
	c.absent()
}

// lack appends to the column at i what it has in a row whose writer does not know it: its default, or
// null.
func (b *Builder) lack(i int) {
	c := &b.cols[i]
	f := c.fill
	if f == nil {
		b.null(i)
		return
	}
	switch c.kind {
	case columnBit:
		c.appendBit(f.bit)
		return
	case column4:
		c.i32 = append(c.i32, f.i32)
	case column8:
		c.i64 = append(c.i64, f.i64)
	case columnFixed:
		c.data = append(c.data, f.data...)
	case columnBytes:
		b.blob(i, f.data)
		return
	}
	c.present()
}

// origin fills the Kafka column.
func (b *Builder) origin(k *kafkaColumns, m RecordMeta) bool {
	b.cols[k.root].present()
	c := &b.cols[k.partition]
	c.i32 = append(c.i32, m.Partition)
	c.present()
	c = &b.cols[k.offset]
	c.i64 = append(c.i64, m.Offset)
	c.present()
	if m.Timestamp >= 0 && m.Timestamp <= math.MaxInt64/1000 {
		c = &b.cols[k.timestamp]
		c.i64 = append(c.i64, m.Timestamp*1000)
		c.present()
	} else {
		b.null(k.timestamp)
	}
	c = &b.cols[k.timestampType]
	c.i32 = append(c.i32, int32(m.TimestampType))
	c.present()
	if !b.blob(k.key, m.Key) {
		return false
	}
	for _, h := range m.Headers {
		key := h.Key
		if !utf8.ValidString(key) {
			key = strings.ToValidUTF8(key, "\uFFFD")
		}
		c = &b.cols[k.headerKey]
		if len(c.data)+len(key) > b.limit {
			return b.fail(ErrFull) >= 0
		}
		c.data = append(c.data, key...)
		c.offsets = append(c.offsets, int32(len(c.data)))
		c.present()
		if !b.blob(k.headerValue, h.Value) {
			return false
		}
		b.cols[k.header].present()
	}
	c = &b.cols[k.headers]
	c.offsets = append(c.offsets, int32(b.cols[k.header].n))
	c.present()
	return b.extras(k)
}

// extras nulls fields that somebody added to the Kafka column.
func (b *Builder) extras(k *kafkaColumns) bool {
	for i := k.root + 1; i < k.end; i = b.cols[i].end {
		if b.cols[i].n == b.rows {
			b.null(i)
		}
	}
	for _, i := range b.cols[k.header].kids {
		for b.cols[i].n < b.cols[k.header].n {
			b.null(i)
		}
	}
	return true
}

func (b *Builder) blob(i int, v []byte) bool {
	if v == nil {
		b.null(i)
		return true
	}
	c := &b.cols[i]
	if len(c.data)+len(v) > b.limit {
		b.fail(ErrFull)
		return false
	}
	c.data = append(c.data, v...)
	c.offsets = append(c.offsets, int32(len(c.data)))
	c.present()
	return true
}

// Finish hands over the rows since the last Finish as one batch and starts anew. When the
// caller has released the batch, on whatever goroutine, the builder uses its memory again.
func (b *Builder) Finish() (arrow.RecordBatch, error) {
	columns := make([]arrow.Array, len(b.top))
	for i, c := range b.top {
		data := b.arrowData(c, b.schema.Field(i).Type)
		columns[i] = array.MakeFromData(data)
		data.Release()
	}
	batch := array.NewRecordBatch(b.schema, columns, int64(b.rows))
	for _, c := range columns {
		c.Release()
	}
	for i := range b.cols {
		b.cols[i].reset()
	}
	b.rows = 0
	return batch, nil
}

func (b *Builder) arrowData(i int, t arrow.DataType) arrow.ArrayData {
	c := &b.cols[i]
	var valid *memory.Buffer
	if c.nulls > 0 {
		valid = memory.NewBufferBytes(c.valid)
	}
	buffers := []*memory.Buffer{valid}
	var kids []arrow.ArrayData
	switch c.kind {
	case columnBit, columnFixed:
		buffers = append(buffers, memory.NewBufferWithAllocator(c.data, &c.homes[2]))
	case column4:
		buffers = append(buffers, memory.NewBufferWithAllocator(arrow.Int32Traits.CastToBytes(c.i32), &c.homes[0]))
	case column8:
		buffers = append(buffers, memory.NewBufferWithAllocator(arrow.Int64Traits.CastToBytes(c.i64), &c.homes[1]))
	case columnBytes:
		buffers = append(buffers, memory.NewBufferWithAllocator(arrow.Int32Traits.CastToBytes(c.offsets), &c.homes[3]), memory.NewBufferWithAllocator(c.data, &c.homes[2]))
	case columnStruct:
		fields, ok := t.(*arrow.StructType)
		if !ok { // a variant
			fields = t.(arrow.ExtensionType).StorageType().(*arrow.StructType)
		}
		for k, kid := range c.kids {
			kids = append(kids, b.arrowData(kid, fields.Field(k).Type))
		}
	case columnList:
		buffers = append(buffers, memory.NewBufferWithAllocator(arrow.Int32Traits.CastToBytes(c.offsets), &c.homes[3]))
		kids = append(kids, b.arrowData(c.kids[0], t.(*arrow.ListType).Elem()))
	case columnMap:
		buffers = append(buffers, memory.NewBufferWithAllocator(arrow.Int32Traits.CastToBytes(c.offsets), &c.homes[3]))
		entry := t.(*arrow.MapType).Elem().(*arrow.StructType)
		pairs := []arrow.ArrayData{b.arrowData(c.kids[0], entry.Field(0).Type), b.arrowData(c.kids[1], entry.Field(1).Type)}
		kids = append(kids, array.NewData(entry, b.cols[c.kids[0]].n, []*memory.Buffer{nil}, pairs, 0, 0))
		releaseAll(pairs)
	case columnUnknown:
		a := array.MakeArrayOfNull(memory.DefaultAllocator, t, c.n)
		a.Data().Retain()
		a.Release()
		return a.Data()
	}
	data := array.NewData(t, c.n, buffers, kids, c.nulls, 0)
	releaseAll(kids)
	for _, b := range buffers {
		if b != nil {
			b.Release()
		}
	}
	return data
}

func releaseAll(data []arrow.ArrayData) {
	for _, d := range data {
		d.Release()
	}
}
