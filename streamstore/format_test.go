package streamstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
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
	}
}

func formatBulk() []byte {
	b := testBulk(42, formatEntries())
	return bytes.Join(b.seal(Node{ID: 5, Epoch: 9}, nonce{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}), nil)
}

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

// What version 1 looks like is fixed: a fixture is read as its text says, and written again
// byte for byte.
func TestFormatV1(t *testing.T) {
	for _, f := range []struct {
		name   string
		encode func() []byte
		dump   func(io.Writer, []byte) error
		sum    int // where the checksum lies that covers the version; from the end if negative
	}{
		{"wal", formatBulk, DumpWAL, walHeaderSize - 4},
		{"wal_fence", formatFence, DumpWAL, walHeaderSize - 4},
		{"wal_segment", func() []byte { return slices.Concat(formatBulk(), formatBulk()) }, DumpWAL, walHeaderSize - 4},
		{"wal_segment_block", func() []byte { return append(formatBulk(), make([]byte, walBlock-len(formatBulk()))...) }, DumpWAL, walHeaderSize - 4},
		{"stream_set_object", formatStreamSet, DumpObject, objectHeaderSize - 4},
		{"stream_object", formatStream, DumpObject, objectHeaderSize - 4},
		{"composite_object", formatComposite, DumpComposite, -compositeTrailerSize},
	} {
		t.Run(f.name, func(t *testing.T) {
			bin := filepath.Join("testdata", "format", "v1", f.name+".bin")
			txt := filepath.Join("testdata", "format", "v1", f.name+".txt")
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
			if !bytes.Equal(f.encode(), data) {
				t.Error("the encoder writes other bytes than the fixture has")
			}
			// No bit can change unnoticed, or so that it looks like a newer version, and nothing
			// can be missing.
			for bit := range len(data) * 8 {
				flipped := bytes.Clone(data)
				flipped[bit/8] ^= 1 << (bit % 8)
				if err := f.dump(io.Discard, flipped); !errors.Is(err, ErrCorrupt) {
					t.Fatalf("bit %d of byte %d flipped: %v, want %v", bit%8, bit/8, err, ErrCorrupt)
				}
			}
			for n := range len(data) {
				if f.name == "wal_segment" && n == len(data)/2 || f.name == "wal_segment_block" && n >= len(formatBulk()) {
					continue // one whole bulk
				}
				if err := f.dump(io.Discard, data[:n]); err == nil {
					t.Fatalf("cut at %d of %d: no error", n, len(data))
				}
			}
			newer, sum := bytes.Clone(data), f.sum
			if sum < 0 {
				sum += len(data)
			}
			newer[4] = 2
			binary.BigEndian.PutUint32(newer[sum:], checksum(newer[:sum]))
			if err := f.dump(io.Discard, newer); !errors.Is(err, errNewer) || errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "version 2") {
				t.Fatalf("version 2: %v, want it refused by name", err)
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
		h, body, tail, err := parseBulk(fixBulk(data))
		if err != nil {
			return
		}
		data = fixBulk(data)
		size := len(data) - len(tail)
		var entries []entry
		for len(body) > 0 {
			r, rest, err := parseRecord(body)
			if err != nil {
				return
			}
			entries = append(entries, entry{stream: &Stream{id: r.stream, epoch: r.epoch}, batch: r.batch})
			body = rest
		}
		if h.kind != bulkData || len(entries) != int(h.count) {
			return
		}
		b := testBulk(h.seq, entries)
		again := bytes.Join(b.seal(Node{h.node, h.epoch}, h.nonce), nil)
		h2, _, _, err := parseBulk(again)
		if err != nil || h2 != h || len(again) != size {
			t.Fatalf("encoded again: %+v of %d bytes, %v, want %+v of %d", h2, len(again), err, h, size)
		}
	})
}

// fixBulk sets the checksums of what may be a bulk, so that the fuzzer gets past them.
func fixBulk(data []byte) []byte {
	if len(data) < walFenceSize {
		return data
	}
	data = bytes.Clone(data)
	h := bulkHeader{kind: data[5], body: uint64(len(data) - walFenceSize)}
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
