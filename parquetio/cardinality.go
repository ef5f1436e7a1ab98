package parquetio

import (
	"hash/maphash"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

const (
	sampleSize = 4096
	// A dictionary pays if values come again this often within a sample.
	sampleRepeats = 2
)

var sampleSeed = maphash.MakeSeed()

// lowCardinality reports whether the values of a leaf come again often enough for a
// dictionary. It looks at a sample from all over the array.
func lowCardinality(a arrow.Array) bool {
	n := a.Len()
	value := valueBytes(a)
	if value == nil {
		return false
	}
	stride := max(1, n/sampleSize)
	seen := make(map[uint64]struct{}, sampleSize)
	values := 0
	for i := 0; i < n; i += stride {
		if a.IsNull(i) {
			continue
		}
		values++
		seen[maphash.Bytes(sampleSeed, value(i))] = struct{}{}
	}
	return values > 0 && (len(seen)*sampleRepeats <= values || values < 16)
}

// valueBytes returns how to look at a value of a, nil if a dictionary is no use.
func valueBytes(a arrow.Array) func(i int) []byte {
	switch a := a.(type) {
	case *array.String:
		data, offsets := a.ValueBytes(), a.ValueOffsets()
		return func(i int) []byte { return data[offsets[i]:offsets[i+1]] }
	case *array.Binary:
		return a.Value
	case *array.Boolean:
		return nil
	}
	fixed, ok := a.DataType().(arrow.FixedWidthDataType)
	if !ok || len(a.Data().Buffers()) < 2 || a.Data().Buffers()[1] == nil {
		return nil
	}
	width, data := fixed.BitWidth()/8, a.Data().Buffers()[1].Bytes()
	return func(i int) []byte { return data[i*width : (i+1)*width] }
}
