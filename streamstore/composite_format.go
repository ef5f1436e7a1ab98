package streamstore

import (
	"encoding/binary"
	"io"

	"github.com/tabletopic/tabletopic/internal/crc32c"
)

// Composite object, version 1: a second-level index of one stream. It holds no data, but the
// index entries of the stream objects that it links, its parts; positions are in the part.
// Parts are never composites. Integers are big-endian. Magic, version and trailer keep their
// places in every version.
//
//	┌──────────┬───────┬─────┬─────────────┬──────────┬─────────┬──────────┐
//	│ "TCMP" 4 │ ver 1 │ 0 3 │ object id 8 │ stream 8 │ parts 4 │ blocks 4 │ header, 32
//	├──────────┴───────┴─────┴─────────────┴──────────┴─────────┴──────────┤
//	│ parts of 20, by offset                                               │
//	├──────────────────────────────────────────────────────────────────────┤
//	│ index entries of 48 (object_format.go), those of the first part first│
//	├──────────────────────────────────────────────────────────────────────┤
//	│ CRC-32C 4 of all before │ "PMCT" 4                                   │ trailer, 8
//	└──────────────────────────────────────────────────────────────────────┘
//	┌─────────────┬────────────────────┬──────────┐
//	│ object id 8 │ size of the part 8 │ blocks 4 │ part, 20
//	└─────────────┴────────────────────┴──────────┘
//
// Versions:
//
//	1  first
const (
	compositeVersion = 1

	compositeHeaderSize  = 32
	compositePartSize    = 20
	compositeTrailerSize = 8
)

var (
	compositeMagic        = [4]byte{'T', 'C', 'M', 'P'}
	compositeTrailerMagic = [4]byte{'P', 'M', 'C', 'T'}
)

// A composite is what a composite object says.
type composite struct {
	id     ObjectID
	stream StreamID
	parts  []compositePart
}

type compositePart struct {
	id      ObjectID
	size    int64
	entries []indexEntry
}

func (p compositePart) start() int64 { return p.entries[0].Start }
func (p compositePart) end() int64   { return p.entries[len(p.entries)-1].End }

// bytes returns the size of the data that c links.
func (c composite) bytes() (n int64) {
	for _, p := range c.parts {
		n += p.size
	}
	return n
}

// entries returns the index entries of all parts, each with the part that it lies in.
func (c composite) entries() []indexEntry {
	var all []indexEntry
	for _, p := range c.parts {
		for _, e := range p.entries {
			e.object = p.id
			all = append(all, e)
		}
	}
	return all
}

func appendComposite(dst []byte, c composite) []byte {
	at := len(dst)
	blocks := 0
	for _, p := range c.parts {
		blocks += len(p.entries)
	}
	dst = append(dst, compositeMagic[:]...)
	dst = append(dst, compositeVersion, 0, 0, 0)
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.id))
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.stream))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(c.parts)))
	dst = binary.BigEndian.AppendUint32(dst, uint32(blocks))
	for _, p := range c.parts {
		dst = binary.BigEndian.AppendUint64(dst, uint64(p.id))
		dst = binary.BigEndian.AppendUint64(dst, uint64(p.size))
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(p.entries)))
	}
	for _, p := range c.parts {
		for _, e := range p.entries {
			dst = appendIndexEntry(dst, e)
		}
	}
	dst = binary.BigEndian.AppendUint32(dst, crc32c.Checksum(dst[at:]))
	return append(dst, compositeTrailerMagic[:]...)
}

// parseComposite parses a whole composite object.
func parseComposite(src []byte) (c composite, err error) {
	if len(src) < compositeHeaderSize+compositeTrailerSize || [4]byte(src) != compositeMagic {
		return c, corrupt("composite object of %d bytes, % x, want magic %q", len(src), src[:min(len(src), 4)], compositeMagic[:])
	}
	body, trailer := src[:len(src)-compositeTrailerSize], src[len(src)-compositeTrailerSize:]
	if got, want := crc32c.Checksum(body), binary.BigEndian.Uint32(trailer); got != want || [4]byte(trailer[4:]) != compositeTrailerMagic {
		return c, corrupt("composite object checksum %08x, want %08x, and magic %q at the end", got, want, compositeTrailerMagic[:])
	}
	if err := checkVersion("composite object", src[4], compositeVersion); err != nil {
		return c, err
	}
	c.id, c.stream = ObjectID(binary.BigEndian.Uint64(src[8:])), StreamID(binary.BigEndian.Uint64(src[16:]))
	parts, blocks := int64(binary.BigEndian.Uint32(src[24:])), int64(binary.BigEndian.Uint32(src[28:]))
	if int64(len(body)) != compositeHeaderSize+parts*compositePartSize+blocks*indexEntrySize || parts == 0 {
		return c, corrupt("composite object of %d bytes with %d parts and %d blocks", len(src), parts, blocks)
	}
	table, entries := body[compositeHeaderSize:compositeHeaderSize+parts*compositePartSize], body[compositeHeaderSize+parts*compositePartSize:]
	next := int64(-1)
	for i := range parts {
		row := table[i*compositePartSize:]
		p := compositePart{id: ObjectID(binary.BigEndian.Uint64(row)), size: int64(binary.BigEndian.Uint64(row[8:]))}
		n := int64(binary.BigEndian.Uint32(row[16:]))
		if n == 0 || n*indexEntrySize > int64(len(entries)) || p.size < 0 {
			return c, corrupt("part %d of %d bytes with %d blocks", i, p.size, n)
		}
		p.entries = make([]indexEntry, n)
		for k := range p.entries {
			e := parseIndexEntry(entries[k*indexEntrySize:])
			if e.Stream != c.stream || e.Start < 0 || e.End <= e.Start || next >= 0 && e.Start != next ||
				e.Position < objectHeaderSize || e.Position > p.size-int64(e.Size) || e.Size < blockHeaderSize {
				return c, corrupt("block %d of part %d does not follow %d: %+v", k, i, next, e)
			}
			p.entries[k], next = e, e.End
		}
		entries = entries[n*indexEntrySize:]
		c.parts = append(c.parts, p)
	}
	if len(entries) > 0 {
		return c, corrupt("%d bytes after the blocks of the last part", len(entries))
	}
	return c, nil
}

// DumpComposite prints a composite object, field by field. It returns an error where the data
// is not what was written.
func DumpComposite(w io.Writer, data []byte) error {
	c, err := parseComposite(data)
	if err != nil {
		return err
	}
	d := &dumper{w: w}
	d.title("composite object %d", c.id)
	rest := d.field(data, 4, "magic %q", compositeMagic[:])
	rest = d.field(rest, 1, "version %d", data[4])
	rest = d.field(rest, 3, "zero")
	rest = d.field(rest, 8, "object id %d", c.id)
	rest = d.field(rest, 8, "stream %d", c.stream)
	rest = d.field(rest, 4, "parts %d", len(c.parts))
	rest = d.field(rest, 4, "blocks %d", len(c.entries()))
	for i, p := range c.parts {
		d.title("part %d", i)
		rest = d.field(rest, 8, "object id %d", p.id)
		rest = d.field(rest, 8, "size of the part %d", p.size)
		rest = d.field(rest, 4, "blocks %d", len(p.entries))
	}
	for i, e := range c.entries() {
		d.title("index entry %d, in object %d", i, e.object)
		rest = d.indexEntry(rest, e)
	}
	d.title("trailer")
	rest = d.field(rest, 4, "CRC-32C of all before")
	d.field(rest, 4, "magic %q", compositeTrailerMagic[:])
	return d.err
}
