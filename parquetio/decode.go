package parquetio

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"time"
	"unicode/utf8"
	"unsafe"
)

// A DecodeError says what is wrong with a record.
type DecodeError struct {
	Field  string // dotted path of the column, empty for the record as a whole
	Byte   int    // position in the payload
	Reason string
	Stack  []byte // of a decoder that panicked, nil if the record alone is to blame
}

func (e *DecodeError) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("decode record: at byte %d: %s", e.Byte, e.Reason)
	}
	return fmt.Sprintf("decode record: field %s at byte %d: %s", e.Field, e.Byte, e.Reason)
}

const (
	reasonShort  = "data ends early"
	reasonLong   = "number has more than 64 bits"
	reasonInt    = "int is out of range"
	reasonUnion  = "union index is out of range"
	reasonLength = "length is negative"
	reasonUTF8   = "text is not valid UTF-8"
	reasonTime   = "time of day is out of range"
	reasonMicros = "timestamp does not fit microseconds in 64 bits"
	reasonMany   = "record holds more values in lists and maps than a row may"
	reasonDeep   = "value is nested too deep"
)

// failed notes what is wrong with the record at hand and returns -1.
func (b *Builder) failed(col, at int, reason string) int {
	b.bad = DecodeError{Byte: at, Reason: reason}
	if col >= 0 {
		b.bad.Field = b.cols[col].path
	}
	return -1
}

// readLong reads a zig-zag number (Avro spec, "Binary Encoding") and returns the position
// behind it; -1 if the data ends early, -2 if it has more than 64 bits.
func readLong(p []byte, i int) (int64, int) {
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
			return int64(u>>1) ^ -int64(u&1), i
		}
	}
	return 0, -2
}

func longReason(i int) string {
	if i == -1 {
		return reasonShort
	}
	return reasonLong
}

// long is readLong for column col, with the way for one byte inlined by hand where it
// matters. The position is -1 after an error.
func (b *Builder) long(p []byte, i, col int) (int64, int) {
	v, next := readLong(p, i)
	if next < 0 {
		return 0, b.failed(col, i, longReason(next))
	}
	return v, next
}

// run decodes what the instructions from pc to end say, from p at i, and returns the
// position behind it, or -1 with b.bad set.
func (b *Builder) run(program []instruction, pc, end int, p []byte, i int) int {
	for pc < end {
		in := &program[pc]
		body := pc + 1
		pc = in.end
		if in.union != noUnion {
			var branch int64
			if i < len(p) && p[i] < 0x80 {
				branch = int64(p[i]>>1) ^ -int64(p[i]&1)
				i++
			} else if branch, i = b.long(p, i, in.col); i < 0 {
				return -1
			}
			if uint64(branch) > 1 || (in.union == oneBranch && branch != 0) {
				return b.failed(in.col, i, reasonUnion)
			}
			if in.union != oneBranch && (branch == 0) == (in.union == nullFirst) {
				b.null(in.col)
				continue
			}
		}
		switch in.op {
		case opNothing:
			continue
		case opNull:
			b.null(in.col)
			continue
		case opLack:
			b.lack(in.col)
			continue
		}
		c := &b.cols[in.col]
		switch in.op {
		case opInt, opIntToLong, opLong, opTimeMillis, opTimeMicros, opTimeNanos, opTimestampMillis, opTimestampNanos, opTimeString:
			var v int64
			at := i
			if i < len(p) && p[i] < 0x80 {
				v = int64(p[i]>>1) ^ -int64(p[i]&1)
				i++
			} else if v, i = readLong(p, i); i < 0 {
				return b.failed(in.col, at, longReason(i))
			}
			switch in.op {
			case opInt:
				if int64(int32(v)) != v {
					return b.failed(in.col, at, reasonInt)
				}
				c.i32 = append(c.i32, int32(v))
				c.present()
				continue
			case opIntToLong:
				if int64(int32(v)) != v {
					return b.failed(in.col, at, reasonInt)
				}
			case opTimeMillis, opTimeMicros, opTimeNanos:
				var ok bool
				if v, ok = timeOfDay(in.op, v); !ok {
					return b.failed(in.col, at, reasonTime)
				}
			case opTimeString:
				v, ok := timeOfDay(timeOps[in.node.logical], v)
				if !ok {
					return b.failed(in.col, at, reasonTime)
				}
				if !b.blob(in.col, appendTime(nil, v)) {
					return -1
				}
				continue
			case opTimestampMillis:
				if v > math.MaxInt64/1000 || v < math.MinInt64/1000 {
					return b.failed(in.col, at, reasonMicros)
				}
				v *= 1000
			case opTimestampNanos:
				v = floorDiv(v, 1000)
			}
			c.i64 = append(c.i64, v)
			c.present()
		case opString, opBytes, opUUID, opUUIDString, opZoned, opDecimalBytes:
			var n int64
			at := i
			if i < len(p) && p[i] < 0x80 {
				n = int64(p[i]>>1) ^ -int64(p[i]&1)
				i++
			} else if n, i = readLong(p, i); i < 0 {
				return b.failed(in.col, at, longReason(i))
			}
			if uint64(n) > uint64(len(p)-i) {
				return b.failed(in.col, at, lengthReason(n))
			}
			v := p[i : i+int(n)]
			i += int(n)
			switch in.op {
			case opString:
				if !utf8.Valid(v) {
					return b.failed(in.col, at, reasonUTF8)
				}
				fallthrough
			case opBytes:
				if len(c.data)+len(v) > b.limit {
					return b.fail(ErrFull)
				}
				c.data = append(c.data, v...)
				c.offsets = append(c.offsets, int32(len(c.data)))
				c.present()
			default:
				if !b.text(in, c, v, at) {
					return -1
				}
			}
		case opStruct:
			c.present()
			pc = body
		case opBoolean:
			if i >= len(p) {
				return b.failed(in.col, i, reasonShort)
			}
			if p[i] > 1 {
				return b.failed(in.col, i, "boolean is neither 0 nor 1")
			}
			c.appendBit(p[i] == 1)
			i++
		case opPresent:
			c.appendBit(true)
		case opFloat, opFloatToDouble:
			if len(p)-i < 4 {
				return b.failed(in.col, i, reasonShort)
			}
			v := binary.LittleEndian.Uint32(p[i:])
			i += 4
			if in.op == opFloat {
				c.i32 = append(c.i32, int32(v))
			} else {
				c.i64 = append(c.i64, int64(math.Float64bits(float64(math.Float32frombits(v)))))
			}
			c.present()
		case opDouble:
			if len(p)-i < 8 {
				return b.failed(in.col, i, reasonShort)
			}
			c.i64 = append(c.i64, int64(binary.LittleEndian.Uint64(p[i:])))
			i += 8
			c.present()
		case opFixed:
			if len(p)-i < in.size {
				return b.failed(in.col, i, reasonShort)
			}
			c.data = append(c.data, p[i:i+in.size]...)
			i += in.size
			c.present()
		case opFixedBinary, opUUIDFixedString:
			if len(p)-i < in.size {
				return b.failed(in.col, i, reasonShort)
			}
			v := p[i : i+in.size]
			if in.op == opUUIDFixedString {
				v = appendUUID(nil, v)
			}
			if !b.blob(in.col, v) {
				return -1
			}
			i += in.size
		case opFixedZero:
			c.offsets = append(c.offsets, int32(len(c.data)))
			c.present()
		case opDecimalFixed:
			if len(p)-i < in.size {
				return b.failed(in.col, i, reasonShort)
			}
			if !b.decimal(in, c, p[i:i+in.size], i) {
				return -1
			}
			i += in.size
		case opEnum:
			at := i
			var v int64
			if v, i = b.long(p, i, in.col); i < 0 {
				return -1
			}
			if uint64(v) >= uint64(len(in.node.symbols)) {
				return b.failed(in.col, at, "enum index is out of range")
			}
			symbol := in.node.symbols[v]
			if b.room -= len(symbol) / 8; b.room < 0 {
				return b.failed(in.col, at, reasonMany)
			}
			if len(c.data)+len(symbol) > b.limit {
				return b.fail(ErrFull)
			}
			c.data = append(c.data, symbol...)
			c.offsets = append(c.offsets, int32(len(c.data)))
			c.present()
		case opJSON:
			if i = b.json(in, c, p, i); i < 0 {
				return -1
			}
		case opList, opMap:
			if i = b.repeated(program, in, body, p, i); i < 0 {
				return -1
			}
		}
	}
	return i
}

func lengthReason(n int64) string {
	if n < 0 {
		return reasonLength
	}
	return reasonShort
}

func floorDiv(v, by int64) int64 {
	q := v / by
	if v%by < 0 {
		q--
	}
	return q
}

// timeOfDay returns v in microseconds since midnight.
func timeOfDay(op opcode, v int64) (int64, bool) {
	const day = 86_400_000_000
	switch op {
	case opTimeMillis:
		return v * 1000, v >= 0 && v < day/1000
	case opTimeNanos:
		v = floorDiv(v, 1000)
	}
	return v, v >= 0 && v < day
}

func (c *column) appendBit(v bool) {
	if v {
		c.data = setBit(c.data, c.n)
	} else if c.n&7 == 0 {
		c.data = append(c.data, 0)
	}
	c.present()
}

// repeated decodes the blocks of an array or map (Avro spec, "Arrays").
func (b *Builder) repeated(program []instruction, in *instruction, body int, p []byte, i int) int {
	kid := program[body].col
	for {
		at := i
		var count int64
		if count, i = b.long(p, i, in.col); i < 0 {
			return -1
		}
		if count == 0 {
			break
		}
		end := -1
		if count < 0 {
			var size int64
			if size, i = b.long(p, i, in.col); i < 0 {
				return -1
			}
			if uint64(size) > uint64(len(p)-i) {
				return b.failed(in.col, at, lengthReason(size))
			}
			if count = -count; count < 0 {
				return b.failed(in.col, at, "block count is out of range")
			}
			end = i + int(size)
		}
		if in.minSize > 0 && count > int64((len(p)-i)/in.minSize) {
			return b.failed(in.col, at, "block holds more items than the data has bytes for")
		}
		if count > int64(b.room/in.cells) {
			return b.failed(in.col, at, reasonMany)
		}
		b.room -= int(count) * in.cells
		if int64(b.cols[kid].n)+count > int64(b.limit) {
			return b.fail(ErrFull)
		}
		for ; count > 0; count-- {
			if in.op == opMap {
				if i = b.mapKey(&b.cols[in.key], p, i, in.key); i < 0 {
					return -1
				}
			}
			if i = b.run(program, body, in.end, p, i); i < 0 {
				return -1
			}
		}
		if end >= 0 && i != end {
			return b.failed(in.col, at, "size of the block is not that of its items")
		}
	}
	c := &b.cols[in.col]
	c.offsets = append(c.offsets, int32(b.cols[kid].n))
	c.present()
	return i
}

func (b *Builder) mapKey(c *column, p []byte, i, col int) int {
	at := i
	n, i := b.long(p, i, col)
	if i < 0 {
		return -1
	}
	if uint64(n) > uint64(len(p)-i) {
		return b.failed(col, at, lengthReason(n))
	}
	v := p[i : i+int(n)]
	if !utf8.Valid(v) {
		return b.failed(col, at, reasonUTF8)
	}
	if len(c.data)+len(v) > b.limit {
		return b.fail(ErrFull)
	}
	c.data = append(c.data, v...)
	c.offsets = append(c.offsets, int32(len(c.data)))
	c.present()
	return i + int(n)
}

// text decodes the values that come with a length and are not stored as they are.
func (b *Builder) text(in *instruction, c *column, v []byte, at int) bool {
	switch in.op {
	case opDecimalBytes:
		return b.decimal(in, c, v, at)
	case opZoned:
		t, err := time.Parse(time.RFC3339Nano, unsafe.String(unsafe.SliceData(v), len(v)))
		if err != nil {
			b.failed(in.col, at, "text is not an ISO 8601 timestamp with an offset")
			return false
		}
		c.i64 = append(c.i64, t.UnixMicro())
	case opUUID:
		u, ok := parseUUID(v)
		if !ok {
			b.failed(in.col, at, "text is not a UUID")
			return false
		}
		c.data = append(c.data, u[:]...)
	case opUUIDString:
		u, ok := parseUUID(v)
		if !ok {
			b.failed(in.col, at, "text is not a UUID")
			return false
		}
		return b.blob(in.col, appendUUID(nil, u[:]))
	}
	c.present()
	return true
}

// appendTime appends a time of day in microseconds as 15:04:05.000000.
func appendTime(dst []byte, micros int64) []byte {
	return time.UnixMicro(micros).UTC().AppendFormat(dst, "15:04:05.000000")
}

// parseUUID reads the 36-character form of RFC 9562.
func parseUUID(v []byte) (u [16]byte, ok bool) {
	if len(v) != 36 || v[8] != '-' || v[13] != '-' || v[18] != '-' || v[23] != '-' {
		return u, false
	}
	j := 0
	for i := 0; i < 36; i++ {
		if v[i] == '-' && (i == 8 || i == 13 || i == 18 || i == 23) {
			continue
		}
		d := hexDigit(v[i])
		if d > 15 {
			return u, false
		}
		u[j>>1] = u[j>>1]<<4 | d
		j++
	}
	return u, true
}

func hexDigit(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10
	}
	return 0xff
}

// decimal appends a big-endian two's complement number as 16 little-endian bytes.
func (b *Builder) decimal(in *instruction, c *column, v []byte, at int) bool {
	hi, lo, ok := int128(v)
	if !ok {
		b.failed(in.col, at, "decimal has no bytes or more than 16 that count")
		return false
	}
	if !fitsBelow(hi, lo, in.limit) {
		b.failed(in.col, at, "decimal has more digits than its precision allows")
		return false
	}
	c.data = binary.LittleEndian.AppendUint64(c.data, lo)
	c.data = binary.LittleEndian.AppendUint64(c.data, hi)
	c.present()
	return true
}

func int128(v []byte) (hi, lo uint64, ok bool) {
	if len(v) == 0 {
		return 0, 0, false
	}
	sign := byte(int8(v[0]) >> 7)
	for len(v) > 16 {
		if v[0] != sign || (v[1]^sign)&0x80 != 0 {
			return 0, 0, false
		}
		v = v[1:]
	}
	hi = uint64(int64(int8(sign)))
	lo = hi
	for _, d := range v {
		hi = hi<<8 | lo>>56
		lo = lo<<8 | uint64(d)
	}
	return hi, lo, true
}

// fitsBelow reports whether the magnitude of hi:lo is below limit.
func fitsBelow(hi, lo uint64, limit [2]uint64) bool {
	if int64(hi) < 0 {
		var carry uint64
		lo, carry = bits.Add64(^lo, 1, 0)
		hi = ^hi + carry
	}
	return hi < limit[0] || (hi == limit[0] && lo < limit[1])
}

// powerOfTen returns 10^n as high and low word, n at most 38.
func powerOfTen(n int) [2]uint64 {
	hi, lo := uint64(0), uint64(1)
	for range n {
		carry, low := bits.Mul64(lo, 10)
		hi, lo = hi*10+carry, low
	}
	return [2]uint64{hi, lo}
}
