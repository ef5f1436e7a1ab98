package control

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

var (
	worker = uuid.MustParse("0b2f4d3c-58c1-4a52-9a4e-0f8f3c3f0001")
	commit = uuid.MustParse("0b2f4d3c-58c1-4a52-9a4e-0f8f3c3f0002")
	tab    = uuid.MustParse("0b2f4d3c-58c1-4a52-9a4e-0f8f3c3f0003")
	event  = uuid.MustParse("0b2f4d3c-58c1-4a52-9a4e-0f8f3c3f0004")
	at     = time.UnixMilli(1_700_000_000_123).UTC()
)

// examples has each kind once.
var examples = []struct {
	name  string
	event Event
}{
	{"hello", Hello{worker, []int32{0, 3}}},
	{"began", Began{7, tab}},
	{"table", Table{7, tab, "s3://bucket/warehouse/default/t/data", 2, 0, nil, 9, "_kafka", false, nil, []byte(`{"type":"struct"}`), []Writer{{Schema: 1}, {Schema: 2}}, []Offset{{0, 10}, {3, 1 << 40}}, nil, nil}},
	{"needed", Needed{Writer{Schema: 42}}},
	{"refused", Refused{7, Writer{Schema: 42}, "column id is long, the writer has string"}},
	{"pending", Pending{worker, at, true}},
	{"request", Request{7, commit, []Offset{{0, 10}}}},
	{"answer", Answer{7, commit, time.Time{}, uuid.Nil, worker, []int32{0, 3}, []File{
		{[]DataFile{{"s3://bucket/warehouse/default/t/data/1.parquet", []byte{1, 2, 3}}}, 1, 0, 20, 4096, []Range{{0, 10, 30, 0, 18, 2}, {3, 7, 9, 5, 2, 0}}},
		{nil, 0, 0, 0, 0, []Range{{0, 30, 31, 0, 0, 1}}},
	}, at}},
	{"journal", Journal{at, tab, []string{"s3://bucket/warehouse/default/t/data/1.parquet"}}},
	{"committed", Committed{7, commit, 123456789, []Offset{{0, 31}, {3, 9}}, []string{"s3://bucket/warehouse/default/t/data/1.parquet"}}},
}

// partitioned has what came with version 2.
var partitioned = []struct {
	name  string
	event Event
}{
	{"table-partitioned", Table{7, tab, "s3://bucket/warehouse/default/t/data", 2, 3, []byte(`{"spec-id":3,"fields":[]}`), 9, "_kafka", false, nil, []byte(`{"type":"struct"}`), nil, nil, nil, nil}},
	{"answer-partitioned", Answer{7, commit, time.Time{}, uuid.Nil, worker, []int32{0}, []File{
		{[]DataFile{{"s3://bucket/t/1.parquet", []byte{1}}, {"s3://bucket/t/2.parquet", []byte{2}}}, 1, 3, 20, 8192, []Range{{0, 10, 30, 0, 20, 0}}},
	}, at}},
}

// timed has what came with version 3.
var timed = []struct {
	name  string
	event Event
}{
	{"answer-timed", Answer{7, commit, at, uuid.Nil, worker, []int32{0, 1}, nil, at}},
}

// messages has what came with version 4.
var messages = []struct {
	name  string
	event Event
}{
	{"table-messages", Table{Epoch: 7, UUID: tab, FormatVersion: 2, Fits: []Writer{{Schema: 1}, {Schema: 2, Message: "\x04\x00\x02"}}}},
	{"needed-message", Needed{Writer{Schema: 42, Message: "\x02\x02"}}},
	{"refused-message", Refused{7, Writer{Schema: 42, Message: "\x02\x02"}, "column id is long, the writer has string"}},
}

// formats has what came with version 5.
var formats = []struct {
	name  string
	event Event
}{
	{"table-formats", Table{Epoch: 7, UUID: tab, FormatVersion: 2, Fits: []Writer{{Format: FormatString}, {Schema: 3, Key: true}}}},
	{"needed-text", Needed{Writer{Format: FormatJSON, Text: `{"type":"object"}`}}},
	{"refused-key", Refused{7, Writer{Format: FormatBytes, Key: true}, "column _key is long, the writer has binary"}},
	{"table-writing", Table{Epoch: 7, UUID: tab, FormatVersion: 2, Order: []byte(`{"order-id":1,"fields":[]}`), Writing: []Property{{"write.parquet.compression-codec", "gzip"}}}},
	{"answer-of-table", Answer{7, commit, at, tab, worker, []int32{0, 1}, nil, at}},
	{"table-mapping", Table{Epoch: 7, UUID: tab, FormatVersion: 2, NewColumns: true, Former: []FormerName{{3, "a"}, {3, "b"}, {7, "c"}}}},
}

// The fixtures of version 1 are read as they were written.
func TestFormatV1(t *testing.T) {
	for _, x := range examples {
		t.Run(x.name, func(t *testing.T) { checkFixture(t, filepath.Join("testdata", "format", "v1", x.name), x.event) })
	}
}

// So are those of version 2.
func TestFormatV2(t *testing.T) {
	for _, x := range slices.Concat(examples, partitioned) {
		t.Run(x.name, func(t *testing.T) { checkFixture(t, filepath.Join("testdata", "format", "v2", x.name), x.event) })
	}
}

// And those of version 3.
func TestFormatV3(t *testing.T) {
	for _, x := range slices.Concat(examples, partitioned, timed) {
		t.Run(x.name, func(t *testing.T) { checkFixture(t, filepath.Join("testdata", "format", "v3", x.name), x.event) })
	}
}

// And those of version 4.
func TestFormatV4(t *testing.T) {
	for _, x := range slices.Concat(examples, partitioned, timed, messages) {
		t.Run(x.name, func(t *testing.T) { checkFixture(t, filepath.Join("testdata", "format", "v4", x.name), x.event) })
	}
}

// Those of version 5 are written the same, too.
func TestFormatV5(t *testing.T) {
	for _, x := range slices.Concat(examples, partitioned, timed, messages, formats) {
		t.Run(x.name, func(t *testing.T) {
			parts, err := split(event, x.event)
			if err != nil || len(parts) != 1 {
				t.Fatalf("%d parts, error %v", len(parts), err)
			}
			data := appendPart(nil, parts[0])
			base := filepath.Join("testdata", "format", "v5", x.name)
			want, err := os.ReadFile(base + ".bin")
			if errors.Is(err, os.ErrNotExist) && os.Getenv("TABLETOPIC_NEW_FIXTURES") != "" {
				writeFixture(t, base, data)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(data, want) {
				t.Errorf("encoded\n%x, the fixture is\n%x", data, want)
			}
			checkFixture(t, base, x.event)
		})
	}
}

// checkFixture fails unless a fixture is the event, and its text is that of the dump.
func checkFixture(t *testing.T, base string, event Event) {
	t.Helper()
	data, err := os.ReadFile(base + ".bin")
	if err != nil {
		t.Fatal(err)
	}
	var a assembler
	p, err := parsePart(data)
	if err != nil {
		t.Fatal(err)
	}
	got, whole, err := a.add(p)
	if err != nil || !whole {
		t.Fatalf("whole %t, error %v", whole, err)
	}
	if d := cmp.Diff(event, got); d != "" {
		t.Error(d)
	}
	text, err := os.ReadFile(base + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := Dump(&b, data); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(text), b.String()); d != "" {
		t.Error(d)
	}
}

func writeFixture(t *testing.T, base string, data []byte) {
	t.Helper()
	var b bytes.Buffer
	if err := Dump(&b, data); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{base + ".bin": data, base + ".txt": b.Bytes()} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// A flipped bit anywhere in an event is noticed.
func TestFlippedBitIsCorrupt(t *testing.T) {
	for _, x := range slices.Concat(examples, partitioned, timed, messages, formats) {
		parts, err := split(event, x.event)
		if err != nil {
			t.Fatal(err)
		}
		data := appendPart(nil, parts[0])
		for i := range len(data) * 8 {
			flipped := bytes.Clone(data)
			flipped[i/8] ^= 1 << (i % 8)
			if p, err := parsePart(flipped); err == nil {
				t.Fatalf("%s: bit %d flipped: parsed %+v", x.name, i, p)
			}
		}
	}
}

// Events larger than a record are joined again, also when those of two writers alternate
// and a third was cut off.
func TestPartsAreJoined(t *testing.T) {
	big := func(c byte) Event {
		return Table{Epoch: int32(c), Schema: bytes.Repeat([]byte{c}, 3*maxPart)}
	}
	var all [][]part
	for _, c := range "abc" {
		p, err := split(uuid.New(), big(byte(c)))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	var a assembler
	var got []Event
	for i := range all[0] {
		for j, p := range all {
			if j == 2 && i == 1 {
				continue // lost: the third is never whole
			}
			x, err := parsePart(appendPart(nil, p[i]))
			if err != nil {
				t.Fatal(err)
			}
			e, whole, err := a.add(x)
			if err != nil {
				t.Fatal(err)
			}
			if whole {
				got = append(got, e)
			}
		}
	}
	if !reflect.DeepEqual(got, []Event{big('a'), big('b')}) {
		t.Errorf("%d events, want the first two as they were", len(got))
	}
	for range 100 { // cut off ones do not pile up
		p, _ := split(uuid.New(), big('d'))
		if _, _, err := a.add(p[0]); err != nil {
			t.Fatal(err)
		}
	}
	if len(a.open) > maxOpen || len(a.order) > maxOpen {
		t.Errorf("%d events wait for parts, want at most %d", len(a.open), maxOpen)
	}
}

func TestNewerVersionIsNamed(t *testing.T) {
	parts, _ := split(event, Needed{})
	data := appendPart(nil, parts[0])
	data[4] = eventVersion + 1
	if _, err := parsePart(data); err == nil || errors.Is(err, ErrCorrupt) {
		t.Errorf("error %v, want one that names the version", err)
	}
}

// Whatever bytes come, decoding does not panic, and what it reads it writes the same.
func FuzzEvent(f *testing.F) {
	for _, x := range append(examples, partitioned...) {
		f.Add(byte(eventVersion), byte(x.event.kind()), x.event.appendBody(nil))
	}
	f.Fuzz(func(t *testing.T, version, k byte, body []byte) {
		e, err := parseBody(version%(eventVersion+1), kind(k), body)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("error %v is not ErrCorrupt", err)
			}
			return
		}
		again, err := parseBody(eventVersion, e.kind(), e.appendBody(nil))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(e, again); d != "" {
			t.Fatal(d)
		}
		_ = Describe(e)
	})
}

func FuzzPart(f *testing.F) {
	for _, x := range examples {
		parts, _ := split(event, x.event)
		f.Add(appendPart(nil, parts[0]))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := parsePart(data)
		if err != nil {
			return
		}
		if again := appendPart(nil, p); !bytes.Equal(again, data) {
			t.Fatalf("%x became %x", data, again)
		}
		_ = Dump(&bytes.Buffer{}, data)
	})
}
