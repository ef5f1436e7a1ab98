package coordinator

import (
	"maps"
	"math/bits"
	"slices"
)

// offsetSet is a set of offsets, a bit each where they are dense.
type offsetSet struct {
	pages map[int64]*[1024]uint64
	count int64
}

// add returns false if o was there.
func (s *offsetSet) add(o int64) bool {
	page := s.pages[o>>16]
	if page == nil {
		if s.pages == nil {
			s.pages = map[int64]*[1024]uint64{}
		}
		page = new([1024]uint64)
		s.pages[o>>16] = page
	}
	word, bit := &page[o>>6&1023], uint64(1)<<(o&63)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	s.count++
	return true
}

func (s *offsetSet) has(o int64) bool {
	page := s.pages[o>>16]
	return page != nil && page[o>>6&1023]&(1<<(o&63)) != 0
}

// remove takes o out.
func (s *offsetSet) remove(o int64) {
	if s.has(o) {
		s.pages[o>>16][o>>6&1023] &^= 1 << (o & 63)
		s.count--
	}
}

// each calls fn with every offset, in order.
func (s *offsetSet) each(fn func(o int64)) {
	for _, i := range slices.Sorted(maps.Keys(s.pages)) {
		for j, word := range s.pages[i] {
			for ; word != 0; word &= word - 1 {
				fn(i<<16 | int64(j)<<6 | int64(bits.TrailingZeros64(word)))
			}
		}
	}
}
