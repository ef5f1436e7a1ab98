package parquetio

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxProtobufDepth is how deep messages may lie inside messages, the record included: the
// limit of the C++ and Java libraries.
const maxProtobufDepth = 100

const (
	reasonTag      = "field number is out of range"
	reasonField    = "field is malformed"
	reasonRequired = "required field is not set"
)

// decode reads a message of the Protobuf spec, "Encoding". Fields may come in any order and
// more than once: scalars replace what was there, lists grow, messages merge, and an arm of
// a oneof clears the others. No second pass is needed, for the columns know what is set: a
// column of row base holds more than base values. What is not set is filled in when the
// message is whole.
func (p protobufProgram) decode(b *Builder, payload []byte) bool {
	if len(b.folded) < p.slots {
		b.folded = make([][]byte, p.slots)
	}
	ok := b.message(p.root, payload, 0, b.rows) && b.settle(p.root, len(payload), b.rows)
	if !ok {
		clear(b.folded)
	}
	return ok
}

// readVarint reads a number of up to 64 bits; the position is as that of readLong.
func readVarint(p []byte, i int) (uint64, int) {
	if i < len(p) && p[i] < 0x80 {
		return uint64(p[i]), i + 1
	}
	var u uint64
	for shift := uint(0); shift < 64; shift += 7 {
		if i >= len(p) {
			return 0, -1
		}
		c := p[i]
		i++
		if shift == 63 && c > 1 {
			return 0, -2
		}
		u |= uint64(c&0x7f) << shift
		if c < 0x80 {
			return u, i
		}
	}
	return 0, -2
}

// message reads p from i to its end, which is m or a part of m, into the columns of row base.
func (b *Builder) message(m *protobufMessage, p []byte, i, base int) bool {
	for i < len(p) {
		at := i
		tag, i2 := readVarint(p, i)
		if i2 < 0 {
			return b.failed(-1, at, longReason(i2)) >= 0
		}
		i = i2
		if tag>>3 < 1 || tag>>3 > uint64(protowire.MaxValidNumber) {
			return b.failed(-1, at, reasonTag) >= 0
		}
		number, wire := protowire.Number(tag>>3), protowire.Type(tag&7)
		if f := m.find(number); f != nil {
			switch {
			case f.shape == shapeList && wire == protowire.BytesType && f.item.wire != wire && f.item.shape == shapeScalar:
				if i = b.packed(f, p, i); i < 0 {
					return false
				}
				continue
			case f.shape == shapeList && wire == f.item.wire:
				if i = b.element(f, p, i); i < 0 {
					return false
				}
				continue
			case f.shape == shapeMap && wire == f.wire:
				if i = b.entry(f, p, i); i < 0 {
					return false
				}
				continue
			case f.shape < shapeList && wire == f.wire:
				if f.oneof >= 0 && !b.choose(m, f, at, base) {
					return false
				}
				if i = b.value(f, p, i, base); i < 0 {
					return false
				}
				continue
			}
		}
		// Not in the schema, or in another encoding than the schema has, which is the same.
		n := protowire.ConsumeFieldValue(number, wire, p[i:])
		if n < 0 {
			return b.failed(-1, at, reasonField) >= 0
		}
		i += n
	}
	return true
}

// value reads an occurrence of a field that is not repeated.
func (b *Builder) value(f *protobufField, p []byte, i, base int) int {
	c := &b.cols[f.col]
	if f.shape == shapeScalar {
		if c.n > base {
			truncate(b.cols, f.col, base)
		}
		next := b.scalar(f, p, i)
		if f.zeroNull && next >= 0 && f.isZero(p[i:next]) {
			truncate(b.cols, f.col, base)
		}
		return next
	}
	from, to, next := b.extent(f, p, i)
	if next < 0 {
		return -1
	}
	switch f.shape {
	case shapeWrapper:
		if c.n == base && !b.zero(&f.message.fields[0]) {
			return -1
		}
	case shapeMessage:
		if c.n == base {
			c.present()
		}
	case shapeFolded:
		// Each occurrence is a message by itself: two that are none could be one together.
		for at := from; at < to; {
			_, _, n := protowire.ConsumeField(p[at:to])
			if n < 0 {
				return b.failed(f.col, at, reasonField)
			}
			at += n
		}
		if whole := b.folded[f.slot]; whole != nil {
			b.folded[f.slot] = append(whole, p[from:to]...)
		} else {
			b.folded[f.slot] = p[from:to:to] // clipped: what is appended goes to a copy
		}
		return next
	}
	if !b.message(f.message, p[:to], from, base) {
		return -1
	}
	return next
}

// extent returns where the message of f at i begins and ends, and where the next field is.
func (b *Builder) extent(f *protobufField, p []byte, i int) (from, to, next int) {
	if f.wire == protowire.StartGroupType {
		body, n := protowire.ConsumeGroup(f.number, p[i:])
		if n < 0 {
			return 0, 0, b.failed(f.col, i, reasonField)
		}
		return i, i + len(body), i + n
	}
	from, to = b.delimited(f.col, p, i)
	return from, to, to
}

// delimited returns where what follows a length begins and ends.
func (b *Builder) delimited(col int, p []byte, i int) (from, to int) {
	n, from := readVarint(p, i)
	if from < 0 {
		return 0, b.failed(col, i, longReason(from))
	}
	if n > uint64(len(p)-from) {
		return 0, b.failed(col, i, reasonShort)
	}
	return from, from + int(n)
}

// scalar reads one scalar into the column of f.
func (b *Builder) scalar(f *protobufField, p []byte, i int) int {
	var v uint64
	switch f.wire {
	case protowire.VarintType:
		next := 0
		if v, next = readVarint(p, i); next < 0 {
			return b.failed(f.col, i, longReason(next))
		}
		i = next
	case protowire.Fixed32Type:
		if len(p)-i < 4 {
			return b.failed(f.col, i, reasonShort)
		}
		v = uint64(binary.LittleEndian.Uint32(p[i:]))
		i += 4
	case protowire.Fixed64Type:
		if len(p)-i < 8 {
			return b.failed(f.col, i, reasonShort)
		}
		v = binary.LittleEndian.Uint64(p[i:])
		i += 8
	default:
		from, to := b.delimited(f.col, p, i)
		if to < 0 {
			return -1
		}
		if f.kind == protoreflect.StringKind && !utf8.Valid(p[from:to]) {
			return b.failed(f.col, i, reasonUTF8)
		}
		if !b.blob(f.col, p[from:to]) {
			return -1
		}
		return to
	}
	if !b.number(f, v, i) {
		return -1
	}
	return i
}

// isZero reports whether p is the default of the field.
func (f *protobufField) isZero(p []byte) bool {
	switch f.wire {
	case protowire.VarintType:
		v, _ := readVarint(p, 0)
		switch f.kind {
		case protoreflect.EnumKind:
			return protoreflect.EnumNumber(int32(v)) == f.zero
		case protoreflect.Int32Kind, protoreflect.Uint32Kind, protoreflect.Sint32Kind:
			return uint32(v) == 0
		}
		return v == 0
	case protowire.BytesType:
		return len(p) == 1 && p[0] == 0
	}
	return len(bytes.Trim(p, "\x00")) == 0
}

// number appends a scalar that is no string or bytes. Numbers of more bits than the field has
// are cut, as all libraries do.
func (b *Builder) number(f *protobufField, v uint64, at int) bool {
	c := &b.cols[f.col]
	switch f.kind {
	case protoreflect.BoolKind:
		c.appendBit(v != 0)
		return true
	case protoreflect.EnumKind:
		name, ok := f.symbols[protoreflect.EnumNumber(int32(v))]
		if !ok {
			name = strconv.AppendInt(nil, int64(int32(v)), 10)
		}
		if b.room -= len(name) / 8; b.room < 0 {
			return b.failed(f.col, at, reasonMany) >= 0
		}
		return b.blob(f.col, name)
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		if f.digits {
			return b.digits(f, v, at)
		}
		c.data = binary.LittleEndian.AppendUint64(c.data, v)
		c.data = binary.LittleEndian.AppendUint64(c.data, 0)
		c.present()
		return true
	case protoreflect.FloatKind:
		if f.wide {
			v = math.Float64bits(float64(math.Float32frombits(uint32(v))))
		}
	case protoreflect.Int32Kind, protoreflect.Sfixed32Kind:
		v = uint64(int32(v))
	case protoreflect.Sint32Kind:
		v = uint64(int32(protowire.DecodeZigZag(uint64(uint32(v)))))
	case protoreflect.Uint32Kind:
		v = uint64(uint32(v))
	case protoreflect.Sint64Kind:
		v = uint64(protowire.DecodeZigZag(v))
	}
	if c.kind == column4 {
		c.i32 = append(c.i32, int32(v))
	} else {
		c.i64 = append(c.i64, int64(v))
	}
	c.present()
	return true
}

// digits appends a number as text.
func (b *Builder) digits(f *protobufField, v uint64, at int) bool {
	text := strconv.AppendUint(nil, v, 10)
	if b.room -= len(text) / 8; b.room < 0 {
		return b.failed(f.col, at, reasonMany) >= 0
	}
	return b.blob(f.col, text)
}

// zero appends the default of a scalar.
func (b *Builder) zero(f *protobufField) bool {
	if f.kind == protoreflect.StringKind || f.kind == protoreflect.BytesKind {
		return b.blob(f.col, []byte{})
	}
	return b.number(f, uint64(f.zero), 0)
}

// packed reads the elements of a list that lie in one field.
func (b *Builder) packed(f *protobufField, p []byte, i int) int {
	from, to := b.delimited(f.col, p, i)
	if to < 0 {
		return -1
	}
	for i = from; i < to; {
		if !b.more(f, b.cols[f.item.col].n, i) {
			return -1
		}
		if i = b.scalar(f.item, p[:to], i); i < 0 {
			return -1
		}
	}
	return to
}

// element reads one element of a list.
func (b *Builder) element(f *protobufField, p []byte, i int) int {
	base := b.cols[f.item.col].n
	if !b.more(f, base, i) {
		return -1
	}
	next := b.value(f.item, p, i, base)
	if next < 0 || !b.finish(f.item, next, base) {
		return -1
	}
	return next
}

// entry reads one entry of a map (Protobuf spec, "Maps"): a message of key and value, of
// which either may be missing.
func (b *Builder) entry(f *protobufField, p []byte, i int) int {
	from, to := b.delimited(f.col, p, i)
	if to < 0 {
		return -1
	}
	base := b.cols[f.message.fields[0].col].n
	if !b.more(f, base, i) || !b.message(f.message, p[:to], from, base) || !b.settle(f.message, to, base) {
		return -1
	}
	return to
}

// more makes room for one more item of a list or map that holds n in all rows.
func (b *Builder) more(f *protobufField, n, at int) bool {
	if b.room -= f.cells; b.room < 0 {
		return b.failed(f.col, at, reasonMany) >= 0
	}
	if n >= b.limit {
		return b.fail(ErrFull) >= 0
	}
	return true
}

// choose clears the other arms of the oneof that f is an arm of.
func (b *Builder) choose(m *protobufMessage, f *protobufField, at, base int) bool {
	for _, i := range m.oneofs[f.oneof] {
		if arm := &m.fields[i]; arm != f && !b.unset(arm, at, base) {
			return false
		}
	}
	return true
}

// unset takes back what was read of f.
func (b *Builder) unset(f *protobufField, at, base int) bool {
	switch f.shape {
	case shapeFolded:
		// Read, so that it is refused if it is malformed.
		if b.folded[f.slot] == nil {
			return true
		}
		if !b.finish(f, at, base) {
			return false
		}
	case shapeMessage:
		if b.cols[f.col].n == base {
			return true
		}
		if b.room -= f.cells; b.room < 0 {
			return b.failed(f.col, at, reasonMany) >= 0
		}
		for i := range f.message.fields {
			if !b.unset(&f.message.fields[i], at, base) {
				return false
			}
		}
	}
	truncate(b.cols, f.col, base)
	return true
}

// settle completes row base of the columns of m, which is whole.
func (b *Builder) settle(m *protobufMessage, at, base int) bool {
	for i := range m.fields {
		if !b.finish(&m.fields[i], at, base) {
			return false
		}
	}
	for _, col := range m.lacks {
		b.lack(col)
	}
	if m.present >= 0 {
		b.cols[m.present].appendBit(true)
	}
	return true
}

// finish completes row base of what f reads into. Its message ends at at.
func (b *Builder) finish(f *protobufField, at, base int) bool {
	c := &b.cols[f.col]
	switch f.shape {
	case shapeList, shapeMap:
		if f.shape == shapeMap {
			b.dropReplaced(c)
		}
		c.offsets = append(c.offsets, int32(b.cols[c.kids[0]].n))
		c.present()
		return true
	case shapeFolded:
		if raw := b.folded[f.slot]; raw != nil {
			b.folded[f.slot] = nil
			return b.unfold(f, raw, at)
		}
	case shapeMessage:
		if c.n > base {
			return b.settle(f.message, at, base)
		}
	default:
		if c.n > base {
			return true
		}
	}
	switch f.absent {
	case absentRefused:
		return b.failed(f.col, at, reasonRequired) >= 0
	case absentNull:
		b.null(f.col)
		return true
	}
	switch f.shape {
	case shapeWrapper:
		return b.zero(&f.message.fields[0])
	case shapeFolded:
		return b.unfold(f, nil, at)
	case shapeMessage:
		c.present()
		return b.settle(f.message, at, base)
	}
	return b.zero(f)
}

// unfold appends the one value that a whole message becomes.
func (b *Builder) unfold(f *protobufField, raw []byte, at int) bool {
	switch f.known {
	case wellKnownTimestamp, wellKnownDuration:
		seconds, nanos, ok := secondsAndNanos(raw)
		if !ok {
			return b.failed(f.col, at, reasonField) >= 0
		}
		// Each part fits: nanos are an int32.
		micros := floorDiv(int64(nanos), 1000)
		if seconds > math.MaxInt64/1_000_000-3 || seconds < math.MinInt64/1_000_000+3 {
			return b.failed(f.col, at, reasonMicros) >= 0
		}
		c := &b.cols[f.col]
		c.i64 = append(c.i64, seconds*1_000_000+micros)
		c.present()
		return true
	}
	if f.known == wellKnownDecimal {
		return b.protobufDecimal(f, raw, at)
	}
	return b.protobufJSON(f, raw, at)
}

// protobufDecimal appends a confluent.type.Decimal: value has the unscaled number in two's complement,
// big-endian, and is nothing for zero.
func (b *Builder) protobufDecimal(f *protobufField, raw []byte, at int) bool {
	value, scale, ok := decimalParts(raw)
	if !ok {
		return b.failed(f.col, at, reasonField) >= 0
	}
	if len(value) == 0 {
		value, scale = []byte{0}, int32(f.scale)
	}
	if int(scale) != f.scale {
		return b.failed(f.col, at, fmt.Sprintf("decimal has the scale %d, and the column has %d", scale, f.scale)) >= 0
	}
	return b.decimal(&instruction{col: f.col, limit: f.limit}, &b.cols[f.col], value, at)
}

// decimalParts reads fields 1 and 3 of a confluent.type.Decimal; 2 is the precision.
func decimalParts(p []byte) (value []byte, scale int32, ok bool) {
	for len(p) > 0 {
		number, wire, n := protowire.ConsumeTag(p)
		if n < 0 || number > protowire.MaxValidNumber {
			return nil, 0, false
		}
		p = p[n:]
		switch {
		case number == 1 && wire == protowire.BytesType:
			value, n = protowire.ConsumeBytes(p)
		case number == 3 && wire == protowire.VarintType:
			var v uint64
			v, n = protowire.ConsumeVarint(p)
			scale = int32(v)
		default:
			n = protowire.ConsumeFieldValue(number, wire, p)
		}
		if n < 0 {
			return nil, 0, false
		}
		p = p[n:]
	}
	return value, scale, true
}

// secondsAndNanos reads the two fields of a Timestamp or a Duration.
func secondsAndNanos(p []byte) (seconds int64, nanos int32, ok bool) {
	for len(p) > 0 {
		number, wire, n := protowire.ConsumeTag(p)
		if n < 0 || number > protowire.MaxValidNumber {
			return 0, 0, false
		}
		p = p[n:]
		if wire != protowire.VarintType || number > 2 {
			n = protowire.ConsumeFieldValue(number, wire, p)
		} else {
			var v uint64
			if v, n = protowire.ConsumeVarint(p); number == 1 {
				seconds = int64(v)
			} else {
				nanos = int32(v)
			}
		}
		if n < 0 {
			return 0, 0, false
		}
		p = p[n:]
	}
	return seconds, nanos, true
}

// dropReplaced takes the entries out of the map that c is about to close whose key comes
// again later.
func (b *Builder) dropReplaced(c *column) {
	key := &b.cols[c.kids[0]]
	from := c.offsets[len(c.offsets)-1]
	if key.n-int(from) < 2 {
		return
	}
	b.order = b.order[:0]
	for i := from; i < int32(key.n); i++ {
		b.order = append(b.order, i)
	}
	slices.SortStableFunc(b.order, func(x, y int32) int { return bytes.Compare(key.key(x), key.key(y)) })
	kept := b.order[:0]
	for i, row := range b.order {
		if i+1 == len(b.order) || !bytes.Equal(key.key(row), key.key(b.order[i+1])) {
			kept = append(kept, row)
		}
	}
	if len(kept) == key.n-int(from) {
		return
	}
	slices.Sort(kept)
	if b.spare == nil {
		b.spare, _ = layout(b.table)
		for i := range b.spare {
			b.spare[i].reset()
		}
	}
	all := make([]int32, len(kept))
	for i := range all {
		all[i] = int32(i)
	}
	for _, k := range c.kids {
		gather(b.spare, b.cols, k, kept)
		truncate(b.cols, k, int(from))
		gather(b.cols, b.spare, k, all)
		truncate(b.spare, k, 0)
	}
}

// key returns the bytes of a map key.
func (c *column) key(i int32) []byte {
	switch c.kind {
	case columnBit:
		return truth[c.data[i>>3]>>(i&7)&1]
	case column4:
		return arrow.Int32Traits.CastToBytes(c.i32[i : i+1])
	case column8:
		return arrow.Int64Traits.CastToBytes(c.i64[i : i+1])
	}
	return c.blobAt(int(i))
}

var truth = [2][]byte{{0}, {1}}
