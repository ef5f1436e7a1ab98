package metadata

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tabletopic/tabletopic/streamstore"
)

var rangesV1 = []streamstore.StreamRange{
	{Stream: 0, Epoch: 0, Start: 0, End: 1},
	{Stream: 7, Epoch: 3, Start: 1000, End: 1128},
	{Stream: 300, Epoch: 1 << 40, Start: 1 << 60, End: 1<<60 + 1},
}

// The fixture of version 1 is read and, as long as 1 is current, written as it is.
func TestRangesFormatV1(t *testing.T) {
	const path = "testdata/format/v1/stream_set_ranges"
	bin, err := os.ReadFile(path + ".bin")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(path + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseRanges(bin)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(got, rangesV1); d != "" {
		t.Fatalf("decoded (-got +want):\n%s", d)
	}
	var text bytes.Buffer
	if err := DumpRanges(&text, bin); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(text.String(), string(want)); d != "" {
		t.Fatalf("dump (-got +want):\n%s", d)
	}
	if !bytes.Equal(appendRanges(nil, rangesV1), bin) {
		t.Fatalf("encoded %x, want %x", appendRanges(nil, rangesV1), bin)
	}
}

// Every changed bit and every missing byte is noticed.
func TestRangesFormatNoticesDamage(t *testing.T) {
	good := appendRanges(nil, rangesV1)
	for i := range len(good) * 8 {
		bad := bytes.Clone(good)
		bad[i/8] ^= 1 << (i % 8)
		if _, err := parseRanges(bad); !errors.Is(err, errCorruptRanges) {
			t.Fatalf("bit %d flipped: %v, want %v", i, err, errCorruptRanges)
		}
	}
	for i := range good {
		if _, err := parseRanges(good[:i]); err == nil {
			t.Fatalf("cut to %d bytes: no error", i)
		}
	}
	wantNewer(t, good, 2, len(good), func(data []byte) error { _, err := parseRanges(data); return err })
}

// Whatever is decoded is encoded to the same bytes, and nothing makes the decoder panic.
func FuzzParseRanges(f *testing.F) {
	f.Add(appendRanges(nil, rangesV1))
	f.Add(appendRanges(nil, nil))
	f.Fuzz(func(t *testing.T, src []byte) {
		// Inputs with any checksum would all end there: give each its own.
		if len(src) > rangesHeader+4 {
			src = sealed(src[:len(src)-4])
		}
		ranges, err := parseRanges(src)
		if err != nil {
			return
		}
		if again := appendRanges(nil, ranges); !bytes.Equal(again, src) {
			t.Fatalf("decoded %x, encoded %x", src, again)
		}
		if err := DumpRanges(&bytes.Buffer{}, src); err != nil {
			t.Fatal(err)
		}
	})
}
