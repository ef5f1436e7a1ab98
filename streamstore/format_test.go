package streamstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tabletopic/tabletopic/objectstore"
)

var newFixtures = flag.Bool("new-fixtures", false, "write the fixtures of a format version that has none; never over those that exist")

func formatEntries() []entry {
	return []entry{
		{stream: &Stream{id: 7, epoch: 3}, batch: RecordBatch{BaseOffset: 100, Count: 5, MaxTimestamp: 1_700_000_000_123, Payload: []byte("hello, log")}},
		{stream: &Stream{id: 8, epoch: 1}, batch: RecordBatch{BaseOffset: 0, Count: 1, MaxTimestamp: -1}},
		{stream: &Stream{id: 7, epoch: 3}, batch: RecordBatch{BaseOffset: 105, Count: 1, MaxTimestamp: 1_700_000_000_456, Payload: bytes.Repeat([]byte{0xab}, 40)}},
		{stream: &Stream{id: 7, epoch: 3}, batch: RecordBatch{BaseOffset: 106, Count: 2, MaxTimestamp: -1, Payload: bytes.Repeat([]byte{0xcd}, 4000)}}, // in the next chunk
	}
}

func formatBulk() []byte {
	b := testBulk(42, formatEntries())
	return bytes.Join(b.seal(Node{ID: 5, Epoch: 9}, nonce{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}), nil)
}

// formatSegment is the end of a segment file.
func formatSegment() []byte {
	return slices.Concat(formatBulk(), formatBulk(), make([]byte, walBlock))
}

// formatBulkV1 is the size of the first bulk of the fixtures of version 1.
const formatBulkV1 = 262

func formatFence() []byte {
	return appendFence(nil, 5, 9, 43, nonce{0xf0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16})
}

func formatStreamSet() []byte {
	b := newObjectBuilder(KindStreamSet, 77)
	b.addStream(3, []RecordBatch{{BaseOffset: 1 << 40, Count: 2, MaxTimestamp: -1, Payload: []byte("far out")}}, nil, 64)
	b.addStream(7, []RecordBatch{
		{BaseOffset: 100, Count: 5, MaxTimestamp: 1_700_000_000_123, Payload: []byte("hello, log")},
		{BaseOffset: 105, Count: math.MaxInt32, MaxTimestamp: 1_700_000_000_456, Payload: bytes.Repeat([]byte{0xab}, 40)},
	}, nil, 64)
	body, _ := b.finish()
	return bytes.Join(body, nil)
}

func formatStream() []byte {
	b := newObjectBuilder(KindStream, 78)
	b.addStream(9, []RecordBatch{{BaseOffset: 0, Count: 1, MaxTimestamp: 1, Payload: []byte("a")}, {BaseOffset: 1, Count: 1, MaxTimestamp: 2}}, nil, 512)
	body, _ := b.finish()
	return bytes.Join(body, nil)
}

func formatComposite() []byte {
	entry := func(start, end, at int64) indexEntry {
		return indexEntry{Stream: 9, Start: start, End: end, Position: at, MaxTimestamp: start * 1000, Size: 100, Batches: 2}
	}
	return appendComposite(nil, composite{id: 90, stream: 9, parts: []compositePart{
		{id: 81, size: 400, entries: []indexEntry{entry(5, 1<<33, 20), entry(1<<33, 1<<33+7, 120)}},
		{id: 78, size: 500, entries: []indexEntry{entry(1<<33+7, 1<<33+9, 20)}},
	}})
}

// What each version looks like is fixed: a fixture is read as its text says, and what is written
// today is that of the newest, byte for byte.
func TestFormats(t *testing.T) {
	for _, f := range []struct {
		name   string
		encode func() []byte // nil if it is not written any more
		dump   func(io.Writer, []byte) error
		newest byte
		sum    int                // where the checksum lies that covers the version; from the end if negative
		whole  func(cut int) bool // whether what a cut leaves is right
	}{
		{"v1/wal", nil, DumpWAL, walVersion, walHeaderSize - 4, nil},
		{"v1/wal_fence", nil, DumpWAL, walVersion, walHeaderSize - 4, nil},
		{"v1/wal_segment", nil, DumpWAL, walVersion, walHeaderSize - 4, func(cut int) bool { return cut == formatBulkV1 }},
		{"v1/wal_segment_block", nil, DumpWAL, walVersion, walHeaderSize - 4, func(cut int) bool { return cut >= formatBulkV1 }},
		{"v2/wal", formatBulk, DumpWAL, walVersion, walHeaderSize - 4, nil},
		{"v2/wal_fence", formatFence, DumpWAL, walVersion, walHeaderSize - 4, nil},
		{"v2/wal_segment", formatSegment, DumpWAL, walVersion, walHeaderSize - 4, func(cut int) bool { return cut == len(formatBulk()) || cut >= 2*len(formatBulk()) }},
		{"v1/stream_set_object", formatStreamSet, DumpObject, objectVersion, objectHeaderSize - 4, nil},
		{"v1/stream_object", formatStream, DumpObject, objectVersion, objectHeaderSize - 4, nil},
		{"v1/composite_object", formatComposite, DumpComposite, compositeVersion, -compositeTrailerSize, nil},
	} {
		t.Run(f.name, func(t *testing.T) {
			bin := filepath.Join("testdata", "format", f.name+".bin")
			txt := filepath.Join("testdata", "format", f.name+".txt")
			if _, err := os.Stat(bin); *newFixtures && errors.Is(err, os.ErrNotExist) {
				var text bytes.Buffer
				if err := errors.Join(f.dump(&text, f.encode()), os.MkdirAll(filepath.Dir(bin), 0o755),
					os.WriteFile(bin, f.encode(), 0o644), os.WriteFile(txt, text.Bytes(), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			data, err := os.ReadFile(bin)
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(txt)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if err := f.dump(&got, data); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(strings.Split(got.String(), "\n"), strings.Split(string(want), "\n")); d != "" {
				t.Errorf("dump (-got +want):\n%s", d)
			}
			if f.encode != nil && !bytes.Equal(f.encode(), data) {
				t.Error("the encoder writes other bytes than the fixture has")
			}
			// No bit can change unnoticed, or so that it looks like a newer version, and nothing
			// can be missing.
			for bit := 0; bit < len(data)*8; bit += 1 + len(data)/5000 {
				flipped := bytes.Clone(data)
				flipped[bit/8] ^= 1 << (bit % 8)
				if err := f.dump(io.Discard, flipped); !errors.Is(err, ErrCorrupt) {
					t.Fatalf("bit %d of byte %d flipped: %v, want %v", bit%8, bit/8, err, ErrCorrupt)
				}
			}
			for n := range len(data) {
				if f.whole != nil && f.whole(n) {
					continue
				}
				if err := f.dump(io.Discard, data[:n]); err == nil {
					t.Fatalf("cut at %d of %d: no error", n, len(data))
				}
			}
			newer, sum := bytes.Clone(data), f.sum
			if sum < 0 {
				sum += len(data)
			}
			newer[4] = f.newest + 1
			binary.BigEndian.PutUint32(newer[sum:], checksum(newer[:sum]))
			if err := f.dump(io.Discard, newer); !errors.Is(err, errNewer) || errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), fmt.Sprintf("version %d", f.newest+1)) {
				t.Fatalf("version %d: %v, want it refused by name", f.newest+1, err)
			}
		})
	}
}

// Keys parse to what they were built from, sort by sequence, and pass the bucket's check.
func TestKeys(t *testing.T) {
	last := ""
	for _, seq := range []uint64{0, 1, 9, 10, 255, 1 << 40, math.MaxUint64} {
		key := walKey(3, 12, seq)
		node, epoch, got, ok := parseWALKey(key)
		if !ok || node != 3 || epoch != 12 || got != seq || key <= last || objectstore.CheckKey(key) != nil {
			t.Errorf("%s: %d %d %d %t", key, node, epoch, got, ok)
		}
		last = key
	}
	prefixes := make(map[string]bool)
	for id := range ObjectID(1000) {
		key := ObjectKey(id)
		got, ok := parseObjectKey(key)
		if !ok || got != id || objectstore.CheckKey(key) != nil {
			t.Errorf("%s: %d %t", key, got, ok)
		}
		prefixes[filepath.Dir(key)] = true
	}
	if len(prefixes) != 256 {
		t.Errorf("%d prefixes, want 256", len(prefixes))
	}
	for _, key := range []string{"", "wal/1/2", "wal/1/000000000000000c/1", "wal/x/000000000000000c/0000000000000001", "data/00/xyz", "data/01/0000000000000001"} {
		if _, _, _, ok := parseWALKey(key); ok {
			t.Errorf("WAL key %q parsed", key)
		}
		if _, ok := parseObjectKey(key); ok {
			t.Errorf("object key %q parsed", key)
		}
	}
}

// Whatever the bytes, a bulk either is refused or encodes to them again.
func FuzzWALBulk(f *testing.F) {
	f.Add(formatBulk())
	f.Add(formatFence())
	f.Fuzz(func(t *testing.T, data []byte) {
		h, body, _, err := parseBulk(fixBulk(data))
		if err != nil {
			return
		}
		entries, ok := bulkEntries(body)
		if !ok || h.kind != bulkData || len(entries) != int(h.count) {
			return
		}
		again := bytes.Join(testBulk(h.seq, entries).seal(Node{h.node, h.epoch}, h.nonce), nil)
		h2, body, tail, err := parseBulk(again)
		if err != nil || len(tail) > 0 || h2.seq != h.seq || h2.node != h.node || h2.epoch != h.epoch || h2.nonce != h.nonce || h2.count != h.count {
			t.Fatalf("encoded again: %+v, %v, want %+v", h2, err, h)
		}
		entries2, ok := bulkEntries(body)
		if !ok || !reflect.DeepEqual(entries2, entries) {
			t.Fatalf("encoded again: other records")
		}
	})
}

// Filling, which is in two blocks where the trailer finds no room behind the records, is no record:
// a bulk of records of whatever sizes is read as what was put into it.
func TestBulksOfAllSizes(t *testing.T) {
	for size := range 2*walBlock + 100 {
		for _, more := range [][]int{nil, {0}, {walBlock, 1}} {
			var want []entry
			for i, n := range append([]int{size}, more...) {
				want = append(want, entry{stream: &Stream{id: 1, epoch: 2}, batch: RecordBatch{BaseOffset: int64(i), Count: 1, MaxTimestamp: 3, Payload: bytes.Repeat([]byte{recordFilling}, n)}})
			}
			_, body, tail, err := parseBulk(bytes.Join(testBulk(1, want).seal(Node{1, 1}, nonce{1}), nil))
			if err != nil || len(tail) > 0 {
				t.Fatalf("%d bytes and %d: %d bytes too many, %v", size, more, len(tail), err)
			}
			if got, ok := bulkEntries(body); !ok || !reflect.DeepEqual(got, want) {
				t.Fatalf("%d bytes and %d: read %d records, %t, want %d", size, more, len(got), ok, len(want))
			}
		}
	}
}

// bulkEntries returns the records of a body; false if one is refused.
func bulkEntries(body []byte) (entries []entry, ok bool) {
	for at := skipFilling(body, 0); at < len(body); {
		r, rest, err := parseRecord(body[at:])
		if err != nil {
			return nil, false
		}
		entries = append(entries, entry{stream: &Stream{id: r.stream, epoch: r.epoch}, batch: r.batch})
		at = skipFilling(body, len(body)-len(rest))
	}
	return entries, true
}

// fixBulk sets the checksums of what may be a bulk, so that the fuzzer gets past them.
func fixBulk(data []byte) []byte {
	if len(data) < walFenceSize {
		return data
	}
	data = bytes.Clone(data)
	h := bulkHeader{version: walVersion, kind: data[5], body: uint64(len(data) - walFenceSize)}
	if old, _, err := parseBulkHeader(data); err == nil {
		h = old
		h.body = uint64(len(data) - walFenceSize)
	} else {
		h.count = uint32(data[15])
		h.seq = uint64(data[31])
	}
	appendBulkHeader(data[:0], h)
	appendBulkTrailer(data[:len(data)-walTrailerSize], h.size(), checksum(data[:len(data)-walTrailerSize]))
	return data
}

// Whatever the bytes, a block either is refused or encodes to them again.
func FuzzBlock(f *testing.F) {
	for _, object := range [][]byte{formatStreamSet(), formatStream()} {
		ft, err := parseFooter(object)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(object[objectHeaderSize:ft.index])
		entries, err := parseIndex(object[ft.index:])
		if err != nil {
			f.Fatal(err)
		}
		for _, e := range entries {
			f.Add(object[e.Position : e.Position+int64(e.Size)])
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) >= blockHeaderSize {
			data = bytes.Clone(data)
			putBlockCRC(data, checksum(data[:28], data[blockHeaderSize:]))
		}
		h, batches, err := parseBlock(data)
		if err != nil {
			return
		}
		b := newObjectBuilder(KindStream, 1)
		b.addStream(h.stream, batches, nil, math.MaxInt)
		body, _ := b.finish()
		again := bytes.Join(body, nil)[objectHeaderSize:][:len(data)]
		clear(data[24:28]) // reserved: whatever it holds is passed over
		putBlockCRC(data, checksum(data[:28], data[blockHeaderSize:]))
		if !bytes.Equal(again, data) {
			t.Fatalf("encoded again:\n%x, want\n%x", again, data)
		}
	})
}

// Whatever the bytes, the tail of an object either is refused or gives a sound index.
func FuzzIndex(f *testing.F) {
	for _, object := range [][]byte{formatStreamSet(), formatStream()} {
		ft, _ := parseFooter(object)
		f.Add(object[ft.index:])
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) >= footerSize {
			data = bytes.Clone(data)
			index, end := data[:len(data)-footerSize], data[len(data)-footerSize:]
			ft := footer{blocks: uint32(len(index) / indexEntrySize), index: objectHeaderSize + int64(end[0])<<8, indexCRC: checksum(index)}
			ft.size = ft.index + int64(ft.blocks)*indexEntrySize + footerSize
			copy(end, appendFooter(nil, ft))
		}
		entries, err := parseIndex(data)
		if err != nil {
			return
		}
		var again []byte
		for _, e := range entries {
			again = appendIndexEntry(again, e)
		}
		if !bytes.Equal(again, data[:len(data)-footerSize]) {
			t.Fatalf("encoded again:\n%x, want\n%x", again, data)
		}
		DumpObject(io.Discard, data)
	})
}

// Whatever the bytes, a composite either is refused or encodes to them again.
func FuzzComposite(f *testing.F) {
	f.Add(formatComposite())
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) >= compositeTrailerSize {
			data = bytes.Clone(data)
			body := data[:len(data)-compositeTrailerSize]
			binary.BigEndian.PutUint32(data[len(body):], checksum(body))
			copy(data[len(body)+4:], compositeTrailerMagic[:])
		}
		c, err := parseComposite(data)
		if err != nil {
			return
		}
		clear(data[5:8]) // reserved: whatever it holds is passed over
		again := appendComposite(nil, c)
		if !bytes.Equal(again[:len(again)-compositeTrailerSize], data[:len(data)-compositeTrailerSize]) {
			t.Fatalf("encoded again:\n%x, want\n%x", again, data)
		}
	})
}

func checksum(parts ...[]byte) uint32 {
	var crc uint32
	for _, p := range parts {
		crc = crcUpdate(crc, p)
	}
	return crc
}
