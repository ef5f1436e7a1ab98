package parquetio

import (
	"bytes"
	"encoding/binary"
	"math"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/parquet/metadata"
)

// order is how values of a column compare (Parquet format, "ColumnOrder").
type order uint8

const (
	orderUnsigned order = iota // bytes
	orderSigned                // numbers
)

const (
	// maxPageBound is the length to which bounds of a page are cut. It is long enough for
	// all that has a fixed length.
	maxPageBound = 64
	// maxChunkBound is the length above which a column chunk has no bounds: they are exact.
	maxChunkBound = 4096
)

// bounds are the least and the greatest value of a page or of a column chunk.
type bounds struct {
	set      bool
	low, top int64   // of integers and booleans
	flow     float64 // of floats, never NaN
	ftop     float64
	min, max []byte // of bytes
	nulls    int64
	values   int64 // that are not null
}

func (b *bounds) reset() {
	*b = bounds{min: b.min[:0], max: b.max[:0]}
}

func (b *bounds) addInt(low, top int64) {
	if !b.set {
		b.set, b.low, b.top = true, low, top
		return
	}
	b.low, b.top = min(b.low, low), max(b.top, top)
}

func (b *bounds) addFloat(v float64) {
	switch {
	case v != v:
	case !b.set:
		b.set, b.flow, b.ftop = true, v, v
	case v < b.flow:
		b.flow = v
	case v > b.ftop:
		b.ftop = v
	}
}

func (b *bounds) addBytes(v []byte, signed bool) {
	if !b.set {
		b.set = true
		b.min, b.max = append(b.min[:0], v...), append(b.max[:0], v...)
		return
	}
	if compareBytes(v, b.min, signed) < 0 {
		b.min = append(b.min[:0], v...)
	} else if compareBytes(v, b.max, signed) > 0 {
		b.max = append(b.max[:0], v...)
	}
}

// compareBytes compares strings, or two's complement numbers of one length.
func compareBytes(a, b []byte, signed bool) int {
	if signed && len(a) > 0 && len(b) > 0 && (a[0]^b[0])&0x80 != 0 {
		return int(b[0]>>7) - int(a[0]>>7)
	}
	return bytes.Compare(a, b)
}

// merge adds what a page holds to a chunk.
func (b *bounds) merge(page *bounds, k physical, signed bool) {
	b.nulls += page.nulls
	b.values += page.values
	if !page.set {
		return
	}
	switch k {
	case physicalBoolean, physicalInt32, physicalInt64:
		b.addInt(page.low, page.top)
	case physicalFloat, physicalDouble:
		b.addFloat(page.flow)
		b.addFloat(page.ftop)
	default:
		b.addBytes(page.min, signed)
		b.addBytes(page.max, signed)
	}
}

// floats returns the bounds of floats. Zero has two signs, which compare as equal: the bounds take in
// both.
func (b *bounds) floats() (low, top float64) {
	low, top = b.flow, b.ftop
	if low == 0 {
		low = math.Copysign(0, -1)
	}
	if top == 0 {
		top = 0
	}
	return low, top
}

// encode returns the bounds as Parquet stores them. Cut bounds still enclose all values.
func (b *bounds) encode(k physical, o order, text, cut bool) metadata.EncodedStatistics {
	s := metadata.EncodedStatistics{Signed: o == orderSigned, HasNullCount: true, NullCount: b.nulls, AllNullValue: b.values == 0}
	if !b.set {
		return s
	}
	var low, top []byte
	switch k {
	case physicalBoolean:
		low, top = []byte{byte(b.low)}, []byte{byte(b.top)}
	case physicalInt32:
		low, top = binary.LittleEndian.AppendUint32(nil, uint32(b.low)), binary.LittleEndian.AppendUint32(nil, uint32(b.top))
	case physicalInt64:
		low, top = binary.LittleEndian.AppendUint64(nil, uint64(b.low)), binary.LittleEndian.AppendUint64(nil, uint64(b.top))
	case physicalFloat, physicalDouble:
		flow, ftop := b.floats()
		if k == physicalFloat {
			low = binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(flow)))
			top = binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(ftop)))
		} else {
			low = binary.LittleEndian.AppendUint64(nil, math.Float64bits(flow))
			top = binary.LittleEndian.AppendUint64(nil, math.Float64bits(ftop))
		}
	default:
		low, top = bytes.Clone(b.min), bytes.Clone(b.max)
		if k == physicalBytes && cut {
			low, top = cutLow(low, text), cutTop(top, text)
		}
		if !cut && (len(low) > maxChunkBound || len(top) > maxChunkBound) {
			return s
		}
	}
	if low == nil {
		low = []byte{}
	}
	if top == nil {
		top = []byte{}
	}
	s.SetMin(low)
	s.SetMax(top)
	return s
}

func cutLow(v []byte, text bool) []byte {
	if len(v) <= maxPageBound {
		return v
	}
	return v[:cutAt(v, text)]
}

// cutTop returns a shorter value that is still greater, or v if there is none.
func cutTop(v []byte, text bool) []byte {
	if len(v) <= maxPageBound {
		return v
	}
	if top := above(v[:cutAt(v, text)], text); top != nil {
		return top
	}
	return v
}

// above returns a value that is greater than all that begin with v, and no longer than v; nil if there
// is none.
func above(v []byte, text bool) []byte {
	short := bytes.Clone(v)
	if !text {
		for i := len(short) - 1; i >= 0; i-- {
			if short[i] < 0xff {
				short[i]++
				return short[:i+1]
			}
		}
		return nil
	}
	for len(short) > 0 {
		r, n := utf8.DecodeLastRune(short)
		short = short[:len(short)-n]
		if r++; r == 0xd800 {
			r = 0xe000 // no surrogates
		}
		if r <= utf8.MaxRune {
			return utf8.AppendRune(short, r)
		}
	}
	return nil
}

// cutAt returns where to cut: not within a character of text.
func cutAt(v []byte, text bool) int {
	at := maxPageBound
	for text && at > 0 && !utf8.RuneStart(v[at]) {
		at--
	}
	return at
}
