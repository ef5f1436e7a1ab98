package metadata

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/tabletopic/tabletopic/internal/crc32c"
	"github.com/tabletopic/tabletopic/streamstore"
)

// Ranges of a stream set object, the value stream_set_object.ranges.
//
//	┌──────────┬────────┬─────────┬─────────┬───┬──────────┐
//	│ "TTSR" 4 │ ver  1 │ count v │ range … │ … │ crc32c 4 │
//	└──────────┴────────┴─────────┴─────────┴───┴──────────┘
//	range: stream v (less the one before), epoch v, start v, length v
//
// v is an unsigned varint; the checksum is big-endian, over all bytes before it. Ranges are
// sorted by stream, each stream once.
//
// Versions: 1, the first.
const (
	rangesMagic   = "TTSR"
	rangesVersion = 1
	rangesHeader  = len(rangesMagic) + 1
	minRangeSize  = 4
)

// errCorruptRanges says that a stored value is not what was written.
var errCorruptRanges = errors.New("corrupt stream set ranges")

// appendRanges packs ranges, which are sorted by stream and not empty.
func appendRanges(dst []byte, ranges []streamstore.StreamRange) []byte {
	begin := len(dst)
	dst = append(dst, rangesMagic...)
	dst = append(dst, rangesVersion)
	dst = binary.AppendUvarint(dst, uint64(len(ranges)))
	var before streamstore.StreamID
	for _, r := range ranges {
		dst = binary.AppendUvarint(dst, uint64(r.Stream-before))
		dst = binary.AppendUvarint(dst, uint64(r.Epoch))
		dst = binary.AppendUvarint(dst, uint64(r.Start))
		dst = binary.AppendUvarint(dst, uint64(r.End-r.Start))
		before = r.Stream
	}
	return append(dst[:begin], sealed(dst[begin:])...)
}

// sealed appends the checksum.
func sealed(body []byte) []byte {
	return binary.BigEndian.AppendUint32(body, crc32c.Checksum(body))
}

// unsealed returns what is before the checksum, if that is right. It comes before a look at
// the version, in whose every value the checksum is the last thing: a version that was damaged
// is not taken for a newer one.
func unsealed(src []byte) (body []byte, ok bool) {
	if len(src) < 4 {
		return nil, false
	}
	body = src[:len(src)-4]
	return body, crc32c.Checksum(body) == binary.BigEndian.Uint32(src[len(body):])
}

// parseRanges reads what appendRanges wrote, and nothing else.
func parseRanges(src []byte) ([]streamstore.StreamRange, error) {
	if len(src) < rangesHeader+4 || string(src[:len(rangesMagic)]) != rangesMagic {
		return nil, fmt.Errorf("%w: no magic", errCorruptRanges)
	}
	body, ok := unsealed(src)
	if !ok {
		return nil, fmt.Errorf("%w: checksum", errCorruptRanges)
	}
	if v := src[len(rangesMagic)]; v != rangesVersion {
		return nil, fmt.Errorf("stream set ranges of version %d, this program reads version %d", v, rangesVersion)
	}
	in := uvarints{src: body[rangesHeader:]}
	count := in.next()
	if count > uint64(len(in.src)/minRangeSize) {
		return nil, fmt.Errorf("%w: count %d", errCorruptRanges, count)
	}
	ranges := make([]streamstore.StreamRange, 0, count)
	var before int64
	for range count {
		stream, epoch, start, length := in.int63(), in.int63(), in.int63(), in.int63()
		if (len(ranges) > 0 && stream == 0) || length == 0 || stream+before < before || start+length < start {
			return nil, fmt.Errorf("%w: range %d", errCorruptRanges, len(ranges))
		}
		before += stream
		ranges = append(ranges, streamstore.StreamRange{
			Stream: streamstore.StreamID(before), Epoch: epoch, Start: start, End: start + length})
	}
	if in.bad || len(in.src) > 0 {
		return nil, fmt.Errorf("%w: length", errCorruptRanges)
	}
	return ranges, nil
}

// uvarints reads varints in their shortest form until the first bad one.
type uvarints struct {
	src []byte
	bad bool
}

func (u *uvarints) next() uint64 {
	v, n := binary.Uvarint(u.src)
	if n <= 0 || (n > 1 && u.src[n-1] == 0) {
		u.bad, u.src = true, nil
		return 0
	}
	u.src = u.src[n:]
	return v
}

func (u *uvarints) int63() int64 {
	v := u.next()
	if v > 1<<63-1 {
		u.bad = true
		return 0
	}
	return int64(v)
}

// DumpRanges writes the annotated text of a value of stream_set_object.ranges.
func DumpRanges(w io.Writer, data []byte) error {
	ranges, err := parseRanges(data)
	if err != nil {
		return err
	}
	body := data[rangesHeader : len(data)-4]
	_, n := binary.Uvarint(body)
	lines := []string{
		fmt.Sprintf("%-28x magic %q\n", data[:4], data[:4]),
		fmt.Sprintf("%-28x version %d\n", data[4:5], data[4]),
		fmt.Sprintf("%-28x ranges %d\n", body[:n], len(ranges)),
	}
	rest := body[n:]
	for _, r := range ranges {
		size := 0
		for range 4 {
			_, n := binary.Uvarint(rest[size:])
			size += n
		}
		lines = append(lines, fmt.Sprintf("%-28x stream %d epoch %d [%d, %d)\n", rest[:size], r.Stream, r.Epoch, r.Start, r.End))
		rest = rest[size:]
	}
	lines = append(lines, fmt.Sprintf("%-28x crc32c\n", data[len(data)-4:]))
	for _, l := range lines {
		if _, err := io.WriteString(w, l); err != nil {
			return err
		}
	}
	return nil
}

// sortedRanges returns ranges by stream, and refuses what cannot be stored.
func sortedRanges(ranges []streamstore.StreamRange) ([]streamstore.StreamRange, error) {
	sorted := slices.Clone(ranges)
	slices.SortFunc(sorted, func(a, b streamstore.StreamRange) int { return cmp.Compare(a.Stream, b.Stream) })
	for i, r := range sorted {
		if r.Stream < 0 || r.Epoch < 0 || r.Start < 0 || r.End <= r.Start {
			return nil, fmt.Errorf("bad range %+v", r)
		}
		if i > 0 && sorted[i-1].Stream == r.Stream {
			return nil, fmt.Errorf("stream %d twice in one object", r.Stream)
		}
	}
	return sorted, nil
}
