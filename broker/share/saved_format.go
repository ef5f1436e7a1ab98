package share

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// What is saved of a share-partition, as part of a record of its group, which has version and
// checksum. Integers are varints, those of v without sign.
//
//	┌─────────┬──────┬─────────────────────────────────────────────┬───┐
//	│ start z │ n  v │ length v │ state 1 │ deliveries v            │ … │
//	└─────────┴──────┴─────────────────────────────────────────────┴───┘
//	                  n ranges of offsets, neighbours, the first at start
//
// state: 0 available, 2 acknowledged, 4 archived.

// Saved is what survives of a share-partition.
type Saved struct {
	// Start is the first offset that is not done.
	Start int64
	// Ranges are what is in flight, from Start on.
	Ranges []Range
}

// A Range is neighbouring offsets of one fate.
type Range struct {
	Length     int64
	State      RecordState
	Deliveries int16
}

// Done is how many offsets from Start on are done.
func (s Saved) Done() (n int64) {
	for _, r := range s.Ranges {
		if r.State != Available {
			n += r.Length
		}
	}
	return n
}

// Append appends the form in which s is kept.
func (s Saved) Append(dst []byte) []byte {
	dst = binary.AppendVarint(dst, s.Start)
	dst = binary.AppendUvarint(dst, uint64(len(s.Ranges)))
	for _, r := range s.Ranges {
		dst = binary.AppendUvarint(dst, uint64(r.Length))
		dst = append(dst, byte(r.State))
		dst = binary.AppendUvarint(dst, uint64(r.Deliveries))
	}
	return dst
}

var errCorruptSaved = errors.New("corrupt state of a share-partition")

// ParseSaved reads what Append has written, which is all of src.
func ParseSaved(src []byte) (s Saved, err error) {
	ok := true
	uvarint := func(most uint64) uint64 {
		v, n := binary.Uvarint(src)
		if n <= 0 || v > most {
			ok = false
			return 0
		}
		src = src[n:]
		return v
	}
	start, n := binary.Varint(src)
	if n <= 0 || start < 0 {
		return s, fmt.Errorf("%w: start", errCorruptSaved)
	}
	src = src[n:]
	s.Start = start
	next := start
	for n := uvarint(uint64(len(src))); n > 0 && ok; n-- {
		r := Range{Length: int64(uvarint(uint64(math.MaxInt64 - next)))}
		if !ok || len(src) == 0 || r.Length == 0 {
			return s, fmt.Errorf("%w: range %d", errCorruptSaved, len(s.Ranges))
		}
		r.State, src = RecordState(src[0]), src[1:]
		r.Deliveries = int16(uvarint(math.MaxInt16))
		if r.State != Available && r.State != Acknowledged && r.State != Archived {
			ok = false
		}
		next += r.Length
		s.Ranges = append(s.Ranges, r)
	}
	if !ok || len(src) > 0 {
		return s, fmt.Errorf("%w: range %d, %d bytes left", errCorruptSaved, len(s.Ranges), len(src))
	}
	return s, nil
}
