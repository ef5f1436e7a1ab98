package parquetio

import (
	"encoding/binary"
	"math/bits"
)

// Encodings of the Parquet format ("Parquet encoding definitions"), appended to a buffer.

// appendHybrid appends values in width bits each, as runs and as bit-packed groups of
// eight ("RLE / Bit-Packing Hybrid"). Of the last group the reader knows the count.
func appendHybrid[T int16 | int32](dst []byte, values []T, width int) []byte {
	for i := 0; i < len(values); {
		if n := runLength(values[i:]); n >= 8 || n == len(values)-i {
			dst = binary.AppendUvarint(dst, uint64(n)<<1)
			for w := 0; w < width; w += 8 {
				dst = append(dst, byte(uint32(values[i])>>w))
			}
			i += n
			continue
		}
		// Groups up to the one that begins a run.
		end := i + 8
		for end < len(values) && runLength(values[end:min(end+8, len(values))]) < 8 {
			end += 8
		}
		dst = binary.AppendUvarint(dst, uint64(end-i)/8<<1|1)
		dst = appendPacked(dst, values[i:min(end, len(values))], end-i, width)
		i = end
	}
	return dst
}

// runLength returns how many values at the start are equal.
func runLength[T int16 | int32](values []T) int {
	n := 1
	for n < len(values) && values[n] == values[0] {
		n++
	}
	return n
}

// appendPacked appends count values in width bits each, lowest bits first, zero where
// values ends early. The bits must fill whole bytes.
func appendPacked[T int16 | int32](dst []byte, values []T, count, width int) []byte {
	var acc uint64
	have := 0
	for _, v := range values {
		acc |= uint64(uint32(v)) << have
		if have += width; have >= 32 {
			dst = binary.LittleEndian.AppendUint32(dst, uint32(acc))
			acc >>= 32
			have -= 32
		}
	}
	for rest := have + (count-len(values))*width; rest > 0; rest -= 8 {
		dst = append(dst, byte(acc))
		acc >>= 8
	}
	return dst
}

const (
	deltaBlock     = 128
	deltaMiniblock = 32
)

// appendDelta appends integers as differences ("Delta Encoding", DELTA_BINARY_PACKED).
// Those of 32 bits wrap around in 32 bits, as readers do.
func appendDelta[T int32 | int64](dst []byte, values []T) []byte {
	dst = binary.AppendUvarint(dst, deltaBlock)
	dst = binary.AppendUvarint(dst, deltaBlock/deltaMiniblock)
	dst = binary.AppendUvarint(dst, uint64(len(values)))
	if len(values) == 0 {
		return append(dst, 0)
	}
	dst = binary.AppendVarint(dst, int64(values[0]))
	var deltas [deltaBlock]T
	for i := 1; i < len(values); i += deltaBlock {
		n := min(deltaBlock, len(values)-i)
		least := values[i] - values[i-1]
		for k := range n {
			deltas[k] = values[i+k] - values[i+k-1]
			least = min(least, deltas[k])
		}
		dst = binary.AppendVarint(dst, int64(least))
		widths := len(dst)
		dst = append(dst, 0, 0, 0, 0)
		for m := 0; m*deltaMiniblock < n; m++ {
			mini := deltas[m*deltaMiniblock : min(n, (m+1)*deltaMiniblock)]
			var any T
			for k := range mini {
				mini[k] -= least
				any |= mini[k]
			}
			width := bits.Len64(unsigned(any))
			dst[widths+m] = byte(width)
			dst = packMiniblock(dst, mini, width)
		}
	}
	return dst
}

func unsigned[T int32 | int64](v T) uint64 {
	switch v := any(v).(type) {
	case int32:
		return uint64(uint32(v))
	case int64:
		return uint64(v)
	}
	return 0
}

// packMiniblock appends 32 values in width bits each, zero where mini ends early.
func packMiniblock[T int32 | int64](dst []byte, mini []T, width int) []byte {
	if width == 0 {
		return dst
	}
	end := len(dst) + deltaMiniblock*width/8
	var acc uint64
	have := 0
	for _, v := range mini {
		u := unsigned(v)
		acc |= u << have
		if have += width; have >= 64 {
			dst = binary.LittleEndian.AppendUint64(dst, acc)
			have -= 64
			acc = u >> (width - have) // 0 if have is 0 and width 64
		}
	}
	for len(dst) < end {
		dst = append(dst, byte(acc))
		acc >>= 8
	}
	return dst
}
