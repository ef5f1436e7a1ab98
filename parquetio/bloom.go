package parquetio

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/cespare/xxhash/v2"
)

// A bloomFilter collects the values of a column chunk for its Bloom filter (Parquet format,
// "BloomFilter": xxHash of the plain encoding). Distinct values are counted exactly as long as
// their hashes take less memory than the largest filter; a column with more gets that one.
type bloomFilter struct {
	kind   physical
	fpp    float64
	most   int64    // bytes
	hashes []uint64 // until there are too many
	large  metadata.BloomFilterBuilder
}

// add adds a value in its plain encoding, without length. Both zeros are added for one, which
// compare as equal, and for a NaN the one that readers look for.
func (f *bloomFilter) add(plain []byte) {
	f.addHash(xxhash.Sum64(plain))
	switch f.kind {
	case physicalFloat:
		switch x := math.Float32frombits(binary.LittleEndian.Uint32(plain)); {
		case x == 0:
			f.addHash(xxhash.Sum64([]byte{0, 0, 0, 0}))
			f.addHash(xxhash.Sum64([]byte{0, 0, 0, 0x80}))
		case x != x:
			f.addHash(xxhash.Sum64([]byte{0, 0, 0xc0, 0x7f}))
		}
	case physicalDouble:
		switch x := math.Float64frombits(binary.LittleEndian.Uint64(plain)); {
		case x == 0:
			f.addHash(xxhash.Sum64([]byte{0, 0, 0, 0, 0, 0, 0, 0}))
			f.addHash(xxhash.Sum64([]byte{0, 0, 0, 0, 0, 0, 0, 0x80}))
		case x != x:
			f.addHash(xxhash.Sum64([]byte{0, 0, 0, 0, 0, 0, 0xf8, 0x7f}))
		}
	}
}

// addValues adds the values from to to of a column, none of which is null.
func (f *bloomFilter) addValues(v values, width, from, to int) {
	var b [8]byte
	for i := from; i < to; i++ {
		switch f.kind {
		case physicalInt32, physicalFloat:
			binary.LittleEndian.PutUint32(b[:], uint32(v.i32[i]))
			f.add(b[:4])
		case physicalInt64, physicalDouble:
			binary.LittleEndian.PutUint64(b[:], uint64(v.i64[i]))
			f.add(b[:])
		case physicalBytes:
			f.add(v.data[v.offsets[i]:v.offsets[i+1]])
		case physicalFixed:
			f.add(v.data[i*width : (i+1)*width])
		}
	}
}

// addDictionary adds the entries of a dictionary, nothing if there is none.
func (f *bloomFilter) addDictionary(d *dictionary) {
	if d == nil {
		return
	}
	for i := range d.entries {
		f.add(d.data[d.entries[i].from:d.entries[i].to])
	}
}

func (f *bloomFilter) addHash(h uint64) {
	if f.large != nil {
		f.large.InsertHash(h)
		return
	}
	if n := len(f.hashes); n > 0 && f.hashes[n-1] == h {
		return
	}
	if f.hashes = append(f.hashes, h); 8*int64(len(f.hashes)) < f.most {
		return
	}
	if f.compact(); 16*int64(len(f.hashes)) < f.most {
		return // most were repeats
	}
	f.large = metadata.NewBloomFilter(uint32(f.most), uint32(f.most), memory.DefaultAllocator)
	f.large.InsertBulk(f.hashes)
	f.hashes = nil
}

func (f *bloomFilter) compact() {
	slices.Sort(f.hashes)
	f.hashes = slices.Compact(f.hashes)
}

// builder returns the filter, of a size for the values that there are; nil if there are none.
func (f *bloomFilter) builder() metadata.BloomFilterBuilder {
	if f.large != nil {
		return f.large
	}
	f.compact()
	if len(f.hashes) == 0 {
		return nil
	}
	out := metadata.NewBloomFilterFromNDVAndFPP(uint32(len(f.hashes)), f.fpp, f.most, memory.DefaultAllocator)
	out.InsertBulk(f.hashes)
	return out
}

// memory returns the bytes that f holds.
func (f *bloomFilter) memory() int64 {
	if f.large != nil {
		return f.large.Size()
	}
	return 8 * int64(cap(f.hashes))
}
