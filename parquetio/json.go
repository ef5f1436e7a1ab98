package parquetio

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"math/big"
	"strconv"
	"time"
	"unicode/utf8"
)

// Bounds on one value that is kept as JSON: names of fields can make it far longer than
// the data.
const (
	maxJSONDepth = 256
	maxJSONBytes = 64 << 20
)

// json appends the value at i to column c as JSON text, or as a variant; the null branch of a union of
// several types is NULL.
func (b *Builder) json(in *instruction, c *column, p []byte, i int) int {
	if n := in.node; n.kind == wireUnion {
		if branch, _ := readLong(p, i); branch >= 0 && branch < int64(len(n.branches)) && n.branches[branch].kind == wireNull {
			_, next := readLong(p, i)
			if next > 0 {
				b.null(in.col)
				return next
			}
		}
	}
	dst, at := b.jsonTo(c), i
	w := jsonWriter{b: b, col: in.col, dst: dst, start: len(dst)}
	if i = w.value(in.node, p, i, 0); i < 0 || !b.endJSON(in.col, w.dst, at) {
		return -1
	}
	return i
}

// jsonWriter appends JSON text to the data of a column. What it leaves behind after an
// error is cut off with the row.
type jsonWriter struct {
	b     *Builder
	col   int
	dst   []byte
	start int // of the value in dst
}

func (w *jsonWriter) failed(at int, reason string) int { return w.b.failed(w.col, at, reason) }

func (w *jsonWriter) value(n *node, p []byte, i, depth int) int {
	if depth > maxJSONDepth {
		return w.failed(i, reasonDeep)
	}
	if len(w.dst)-w.start > maxJSONBytes {
		return w.failed(i, "value is longer than 64 MiB as JSON")
	}
	switch n.kind {
	case wireNull:
		w.dst = append(w.dst, "null"...)
	case wireBoolean:
		if i >= len(p) {
			return w.failed(i, reasonShort)
		}
		if p[i] > 1 {
			return w.failed(i, "boolean is neither 0 nor 1")
		}
		w.dst = strconv.AppendBool(w.dst, p[i] == 1)
		i++
	case wireInt, wireLong:
		v, next := w.b.long(p, i, w.col)
		if next < 0 {
			return -1
		}
		if n.kind == wireInt && int64(int32(v)) != v {
			return w.failed(i, reasonInt)
		}
		w.number(n, v)
		i = next
	case wireFloat:
		if len(p)-i < 4 {
			return w.failed(i, reasonShort)
		}
		w.float(float64(math.Float32frombits(binary.LittleEndian.Uint32(p[i:]))), 32)
		i += 4
	case wireDouble:
		if len(p)-i < 8 {
			return w.failed(i, reasonShort)
		}
		w.float(math.Float64frombits(binary.LittleEndian.Uint64(p[i:])), 64)
		i += 8
	case wireBytes, wireString:
		v, next := w.take(p, i)
		if next < 0 {
			return -1
		}
		if n.kind == wireString {
			if !utf8.Valid(v) {
				return w.failed(i, reasonUTF8)
			}
			w.text(v)
		} else if !w.binary(n, v, i) {
			return -1
		}
		i = next
	case wireFixed:
		if len(p)-i < n.size {
			return w.failed(i, reasonShort)
		}
		if !w.binary(n, p[i:i+n.size], i) {
			return -1
		}
		i += n.size
	case wireEnum:
		v, next := w.b.long(p, i, w.col)
		if next < 0 {
			return -1
		}
		if uint64(v) >= uint64(len(n.symbols)) {
			return w.failed(i, "enum index is out of range")
		}
		w.text([]byte(n.symbols[v]))
		i = next
	case wireRecord:
		return w.record(n, p, i, depth)
	case wireArray, wireMap:
		return w.repeated(n, p, i, depth)
	case wireUnion:
		return w.union(n, p, i, depth)
	}
	return i
}

// take returns the bytes that follow a length.
func (w *jsonWriter) take(p []byte, i int) ([]byte, int) {
	n, next := w.b.long(p, i, w.col)
	if next < 0 {
		return nil, -1
	}
	if uint64(n) > uint64(len(p)-next) {
		return nil, w.failed(i, lengthReason(n))
	}
	return p[next : next+int(n)], next + int(n)
}

func (w *jsonWriter) record(n *node, p []byte, i, depth int) int {
	w.dst = append(w.dst, '{')
	for k, f := range n.fields {
		if k > 0 {
			w.dst = append(w.dst, ',')
		}
		w.text([]byte(f.name))
		w.dst = append(w.dst, ':')
		if i = w.value(f.node, p, i, depth+1); i < 0 {
			return -1
		}
	}
	w.dst = append(w.dst, '}')
	return i
}

func (w *jsonWriter) union(n *node, p []byte, i, depth int) int {
	branch, next := w.b.long(p, i, w.col)
	if next < 0 {
		return -1
	}
	if uint64(branch) >= uint64(len(n.branches)) {
		return w.failed(i, reasonUnion)
	}
	value := n.branches[branch]
	several, _ := n.single()
	tag := several == nil && value.kind == wireRecord
	if tag {
		w.dst = append(w.dst, '{')
		w.text([]byte(value.name))
		w.dst = append(w.dst, ':')
	}
	i = w.value(value, p, next, depth+1)
	if tag && i >= 0 {
		w.dst = append(w.dst, '}')
	}
	return i
}

func (w *jsonWriter) repeated(n *node, p []byte, i, depth int) int {
	open, shut, least := byte('['), byte(']'), n.item.minSize(16)
	if n.kind == wireMap {
		open, shut, least = '{', '}', least+1
	}
	w.dst = append(w.dst, open)
	for first := true; ; {
		at := i
		var count int64
		if count, i = w.b.long(p, i, w.col); i < 0 {
			return -1
		}
		if count == 0 {
			break
		}
		end := -1
		if count < 0 {
			size, next := w.b.long(p, i, w.col)
			if next < 0 {
				return -1
			}
			if uint64(size) > uint64(len(p)-next) {
				return w.failed(at, lengthReason(size))
			}
			i, end = next, next+int(size)
			if count = -count; count < 0 {
				return w.failed(at, "block count is out of range")
			}
		}
		if least > 0 && count > int64((len(p)-i)/least) {
			return w.failed(at, "block holds more items than the data has bytes for")
		}
		if count > int64(w.b.room) {
			return w.failed(at, reasonMany)
		}
		w.b.room -= int(count)
		for ; count > 0; count-- {
			if !first {
				w.dst = append(w.dst, ',')
			}
			first = false
			if n.kind == wireMap {
				var key []byte
				if key, i = w.take(p, i); i < 0 {
					return -1
				}
				if !utf8.Valid(key) {
					return w.failed(at, reasonUTF8)
				}
				w.text(key)
				w.dst = append(w.dst, ':')
			}
			if i = w.value(n.item, p, i, depth+1); i < 0 {
				return -1
			}
		}
		if end >= 0 && i != end {
			return w.failed(at, "size of the block is not that of its items")
		}
	}
	w.dst = append(w.dst, shut)
	return i
}

func (w *jsonWriter) number(n *node, v int64) {
	var t time.Time
	layout := "2006-01-02T15:04:05.999999999Z"
	switch n.logical {
	case logicalDate:
		t, layout = time.Unix(v*86400, 0), "2006-01-02"
	case logicalTimeMillis:
		t, layout = time.UnixMilli(v), "15:04:05.999"
	case logicalTimeMicros:
		t, layout = time.UnixMicro(v), "15:04:05.999999"
	case logicalTimeNanos:
		t, layout = time.Unix(0, v), "15:04:05.999999999"
	case logicalTimestampMillis, logicalLocalMillis:
		t = time.UnixMilli(v)
	case logicalTimestampMicros, logicalLocalMicros:
		t = time.UnixMicro(v)
	case logicalTimestampNanos, logicalLocalNanos:
		t = time.Unix(0, v)
	default:
		w.dst = strconv.AppendInt(w.dst, v, 10)
		return
	}
	if n.logical >= logicalLocalMillis {
		layout = layout[:len(layout)-1]
	}
	w.dst = append(w.dst, '"')
	w.dst = t.UTC().AppendFormat(w.dst, layout)
	w.dst = append(w.dst, '"')
}

func (w *jsonWriter) float(v float64, bits int) {
	switch {
	case math.IsNaN(v):
		w.dst = append(w.dst, `"NaN"`...)
	case math.IsInf(v, 1):
		w.dst = append(w.dst, `"Infinity"`...)
	case math.IsInf(v, -1):
		w.dst = append(w.dst, `"-Infinity"`...)
	default:
		w.dst = strconv.AppendFloat(w.dst, v, 'g', -1, bits)
	}
}

// binary appends bytes or fixed, which may be a decimal or a UUID.
func (w *jsonWriter) binary(n *node, v []byte, at int) bool {
	w.dst = append(w.dst, '"')
	switch n.logical {
	case logicalDecimal:
		hi, lo, ok := int128(v)
		if !ok {
			w.failed(at, "decimal has no bytes or more than 16 that count")
			return false
		}
		w.dst = appendDecimal(w.dst, hi, lo, n.scale)
	case logicalUUID:
		w.dst = appendUUID(w.dst, v)
	default:
		w.dst = base64.StdEncoding.AppendEncode(w.dst, v)
	}
	w.dst = append(w.dst, '"')
	return true
}

func appendDecimal(dst []byte, hi, lo uint64, scale int) []byte {
	v := new(big.Int).Lsh(big.NewInt(int64(hi)), 64)
	v.Or(v, new(big.Int).SetUint64(lo))
	if v.Sign() < 0 {
		dst = append(dst, '-')
	}
	digits := v.Abs(v).String()
	for len(digits) <= scale {
		digits = "0" + digits
	}
	dst = append(dst, digits[:len(digits)-scale]...)
	if scale > 0 {
		dst = append(dst, '.')
		dst = append(dst, digits[len(digits)-scale:]...)
	}
	return dst
}

func appendUUID(dst, v []byte) []byte {
	for i, c := range v {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			dst = append(dst, '-')
		}
		dst = append(dst, "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
	}
	return dst
}

func (w *jsonWriter) text(v []byte) { w.dst = appendQuoted(w.dst, v) }

// appendQuoted appends a JSON string (RFC 8259, section 7).
func appendQuoted(dst, v []byte) []byte {
	dst = append(dst, '"')
	for _, c := range v {
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}
