package crc32c

import (
	"math/rand/v2"
	"testing"
)

// The checksum of a text is that of its parts, wherever it is cut.
func TestCombine(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	text := make([]byte, 1<<20)
	for i := range text {
		text[i] = byte(r.Uint32())
	}
	for range 2000 {
		part := text[:r.IntN(1+1<<r.IntN(20))]
		cut := r.IntN(len(part) + 1)
		if got, want := Combine(Checksum(part[:cut]), Checksum(part[cut:]), int64(len(part)-cut)), Checksum(part); got != want {
			t.Fatalf("%d and %d bytes: %08x, want %08x", cut, len(part)-cut, got, want)
		}
	}
	// The check value of RFC 3720, and zeros that double and double.
	if got := Checksum([]byte("123456789")); got != 0xe3069283 {
		t.Errorf("%08x", got)
	}
	crc, n := Checksum(make([]byte, 1<<20)), int64(1<<20)
	for range 8 {
		crc, n = Combine(crc, crc, n), 2*n
	}
	piece, want := make([]byte, 1<<20), uint32(0)
	for range n >> 20 {
		want = Update(want, piece)
	}
	if crc != want {
		t.Errorf("%d zeros: %08x, want %08x", n, crc, want)
	}
}

func FuzzCombine(f *testing.F) {
	f.Add([]byte("a"), []byte(""))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		if got, want := Combine(Checksum(a), Checksum(b), int64(len(b))), Update(Checksum(a), b); got != want {
			t.Errorf("%08x, want %08x", got, want)
		}
	})
}

func BenchmarkCombine(b *testing.B) {
	for n := int64(1); b.Loop(); n += 12345 {
		Combine(uint32(n), 1, n&(1<<20-1))
	}
}

func BenchmarkUpdate(b *testing.B) {
	data := make([]byte, 16<<10)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		Update(0, data)
	}
}
