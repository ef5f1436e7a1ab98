package coordinator

import (
	"slices"
	"testing"
)

func exampleHeads() Position {
	p := examplePosition()
	p.Heads = []int64{1<<63 - 1, 5, 7200}
	return p
}

// The heads of version 1 are read as they were written, and written the same.
func TestHeadsFormatV1(t *testing.T) {
	checkFixture(t, "v1/heads", exampleHeads().properties(nil), exampleHeads())
}

// A changed character in the heads is noticed, those of another commit count for nothing, and
// the longest value is not longer than a catalog keeps.
func TestHeadsAreCheckedAndBounded(t *testing.T) {
	props := exampleHeads().properties(nil)
	value := props[keyHeads]
	for i := range value {
		props[keyHeads] = value[:i] + string(value[i]^1) + value[i+1:]
		if p, _, err := ReadPosition(props); err == nil {
			t.Fatalf("with character %d changed: %+v", i, p)
		}
	}
	other := exampleHeads()
	other.Sequence++
	props[keyHeads] = other.headsProperty()
	if p, _, err := ReadPosition(props); err != nil || p.Heads != nil {
		t.Errorf("heads of another commit are read as %v, error %v", p.Heads, err)
	}
	many := exampleHeads()
	many.Sequence = 1<<63 - 1
	many.Heads = slices.Repeat([]int64{-1 << 63}, 2*maxHeads)
	if n := len(many.headsProperty()); n > maxValue {
		t.Errorf("a value has %d bytes, want at most %d", n, maxValue)
	}
	if p, _, err := ReadPosition(many.properties(nil)); err != nil || len(p.Heads) != maxHeads {
		t.Errorf("%d heads are read, error %v; want %d", len(p.Heads), err, maxHeads)
	}
}
