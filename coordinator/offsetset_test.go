package coordinator

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// A set of offsets is a set, whether they are dense or far apart, and gives them in order.
func TestOffsetSet(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 0))
		var s offsetSet
		model := map[int64]bool{}
		spread := int64(1) << (5 + r.IntN(58))
		for range 500 {
			o := r.Int64N(spread)
			if r.IntN(3) == 0 {
				s.remove(o)
				delete(model, o)
			} else if added := s.add(o); added == model[o] {
				t.Fatalf("seed %d: add of %d, which was there: %t, says it was added: %t", seed, o, model[o], added)
			} else {
				model[o] = true
			}
			if o = r.Int64N(spread); s.has(o) != model[o] {
				t.Fatalf("seed %d: has %d: %t", seed, o, s.has(o))
			}
		}
		var got []int64
		s.each(func(o int64) { got = append(got, o) })
		if want := slices.Sorted(maps.Keys(model)); !slices.Equal(got, want) || s.count != int64(len(want)) {
			t.Fatalf("seed %d: %d offsets %v, want %v", seed, s.count, got, want)
		}
	}
}
