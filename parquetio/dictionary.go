package parquetio

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
)

// A dictionary numbers the distinct values of a column in the order of their arrival.
type dictionary struct {
	data    []byte // the page: entries in PLAIN encoding
	entries []dictionaryEntry
	slots   []uint32 // number + 1 by hash, open addressing, a power of two
	prefix  int      // bytes of length before each entry in data
	last    int32    // the value that came last, -1 if none
}

type dictionaryEntry struct {
	from, to int // in data, without the prefix
	hash     uint32
	page     int32 // the last page that holds it
}

var dictionarySeed = maphash.MakeSeed()

func newDictionary(prefix int) *dictionary {
	return &dictionary{slots: make([]uint32, 64), prefix: prefix, last: -1}
}

// number returns the number of v, which may be new.
func (d *dictionary) number(v []byte) int32 {
	if d.last >= 0 {
		if e := &d.entries[d.last]; bytes.Equal(d.data[e.from:e.to], v) {
			return d.last
		}
	}
	hash := uint32(maphash.Bytes(dictionarySeed, v))
	mask := uint32(len(d.slots) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		slot := d.slots[i]
		if slot == 0 {
			d.last = d.add(v, hash, i)
			return d.last
		}
		if e := &d.entries[slot-1]; e.hash == hash && bytes.Equal(d.data[e.from:e.to], v) {
			d.last = int32(slot - 1)
			return d.last
		}
	}
}

func (d *dictionary) add(v []byte, hash, slot uint32) int32 {
	if d.prefix > 0 {
		d.data = binary.LittleEndian.AppendUint32(d.data, uint32(len(v)))
	}
	from := len(d.data)
	d.data = append(d.data, v...)
	d.entries = append(d.entries, dictionaryEntry{from: from, to: len(d.data), hash: hash, page: -1})
	d.slots[slot] = uint32(len(d.entries))
	if len(d.entries)*2 > len(d.slots) {
		d.slots = make([]uint32, 2*len(d.slots))
		mask := uint32(len(d.slots) - 1)
		for n, e := range d.entries {
			i := e.hash & mask
			for d.slots[i] != 0 {
				i = (i + 1) & mask
			}
			d.slots[i] = uint32(n + 1)
		}
	}
	return int32(len(d.entries) - 1)
}
