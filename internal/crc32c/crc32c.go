// Package crc32c is CRC-32C (Castagnoli), the checksum of Kafka's record batches and of all that the
// stream log writes, with what hash/crc32 lacks: the checksum of two texts from the checksums of each.
package crc32c

import "hash/crc32"

// table is for package hash/crc32.
var table = crc32.MakeTable(crc32.Castagnoli)

// Checksum returns that of data.
func Checksum(data []byte) uint32 { return crc32.Checksum(data, table) }

// Update returns the checksum of a text, of which crc is that of the beginning and data is the rest.
func Update(crc uint32, data []byte) uint32 { return crc32.Update(crc, table, data) }

// Extend returns the checksum of a text, of which crc is that of the beginning and data is the rest, whose own is sum
// if that is not 0. Long data is not looked at then.
func Extend(crc uint32, data []byte, sum uint32) uint32 {
	if sum == 0 || len(data) < WorthCombining {
		return Update(crc, data)
	}
	return Combine(crc, sum, int64(len(data)))
}

// WorthCombining is from how many bytes on [Combine] is faster than [Update]; see the benchmarks.
const WorthCombining = 4 << 10

// Combine returns the checksum of a text from those of its two parts, of which the second has n bytes. It takes
// about as long as [Update] takes for some thousand bytes, whatever n is.
//
// A checksum is the remainder of the text, as a polynomial over GF(2), by [crc32.Castagnoli]. With n bytes behind it the
// first part has 8n powers of x more; initial and final inversion of the two cancel each other.
func Combine(first, second uint32, n int64) uint32 {
	return times(power(uint64(n)), first) ^ second
}

// In a remainder the highest bit is that of x^0, as in the table of hash/crc32.
const one = uint32(1) << 31

// powers[k][i] is the remainder of x^8 to the power i·256^k.
var powers = func() (p [8][256]uint32) {
	base := one >> 8
	for k := range p {
		p[k][0] = one
		for i := 1; i < 256; i++ {
			p[k][i] = times(p[k][i-1], base)
		}
		base = times(p[k][255], base)
	}
	return p
}()

// power returns the remainder of x^(8n).
func power(n uint64) uint32 {
	p := one
	for k := 0; n > 0; k, n = k+1, n>>8 {
		p = times(p, powers[k][n&255])
	}
	return p
}

// times returns the remainder of the product of two remainders.
func times(a, b uint32) (product uint32) {
	for ; a != 0; a <<= 1 {
		product ^= b & -(a >> 31)
		b = b>>1 ^ crc32.Castagnoli&-(b&1)
	}
	return product
}
