package metadata

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var snapshotV1 = SnapshotInfo{Cluster: "0123456789abcdefABCDEF", Generation: 3, Number: 1000, Schema: 3, Change: 1 << 40,
	Taken: time.UnixMilli(1_700_000_000_123), fingerprint: 1 << 63}

var snapshotV2 = SnapshotInfo{Cluster: "0123456789abcdefABCDEF", Generation: 3, Number: 1000, Schema: 10, Change: 1 << 40,
	Taken: time.UnixMilli(1_700_000_000_123), fingerprint: 1 << 63, subjects: 7, bases: []snapshotBase{{1, 2, 1 << 33}, {900, 1 << 39, 32}}}

var sameSnapshot = cmp.AllowUnexported(SnapshotInfo{}, snapshotBase{})

type snapshotTable struct {
	Name    string
	Columns []string
	Rows    [][]any
}

var snapshotTablesV1 = []snapshotTable{
	{"stream", []string{"id", "end_offset"}, [][]any{{int64(1), int64(-1)}, {int64(1 << 62), nil}}},
	{"empty", []string{"x"}, nil},
	{"schema", []string{"text", "hash"}, [][]any{{"é\x00", []byte{0, 255}}, {"", []byte{}}}},
}

var snapshotTablesV2 = []snapshotTable{
	{changedSubject, []string{"subject"}, [][]any{{"a"}, {""}}},
	{"subject", []string{"name", "revision"}, [][]any{{"a", int64(2)}}},
}

func writeSnapshot(t testing.TB, h SnapshotInfo, tables []snapshotTable) []byte {
	t.Helper()
	w := newSnapshotWriter(h)
	for _, table := range tables {
		w.table(table.Name, table.Columns)
		for _, r := range table.Rows {
			if err := w.row(r); err != nil {
				t.Fatal(err)
			}
		}
		w.end()
	}
	data, err := w.finish()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func readSnapshot(data []byte) (h SnapshotInfo, tables []snapshotTable, err error) {
	h, err = parseSnapshot(data, snapshotVisitor{
		table: func(name string, columns []string) error {
			tables = append(tables, snapshotTable{Name: name, Columns: columns})
			return nil
		},
		row: func(values []any) error {
			last := &tables[len(tables)-1]
			last.Rows = append(last.Rows, values)
			return nil
		},
	})
	return h, tables, err
}

// The fixture of version 1 is read; what is written now is read as the same. The bytes may
// differ, for other versions of zstd compress otherwise.
func TestSnapshotFormatV1(t *testing.T) {
	const path = "testdata/format/v1/snapshot"
	bin, err := os.ReadFile(path + ".bin")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(path + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"fixture": bin, "written": writeSnapshot(t, snapshotV1, snapshotTablesV1)} {
		h, tables, err := readSnapshot(data)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d := cmp.Diff(h, snapshotV1, sameSnapshot); d != "" {
			t.Fatalf("%s: header (-got +want):\n%s", name, d)
		}
		if d := cmp.Diff(tables, snapshotTablesV1, cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("%s: tables (-got +want):\n%s", name, d)
		}
	}
	var text bytes.Buffer
	if err := DumpSnapshot(&text, bin); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(text.String(), string(want)); d != "" {
		t.Fatalf("dump (-got +want):\n%s", d)
	}
}

// The fixture of version 2, a difference, is read, and written as it is up to its tables.
func TestSnapshotFormatV2(t *testing.T) {
	const path = "testdata/format/v2/snapshot"
	bin, err := os.ReadFile(path + ".bin")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(path + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	h, tables, err := readSnapshot(bin)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(h, snapshotV2, sameSnapshot); d != "" {
		t.Fatalf("header (-got +want):\n%s", d)
	}
	if d := cmp.Diff(tables, snapshotTablesV2, cmpopts.EquateEmpty()); d != "" {
		t.Fatalf("tables (-got +want):\n%s", d)
	}
	if head := appendSnapshotHeader(nil, snapshotV2); !bytes.Equal(head, bin[:len(head)]) {
		t.Fatalf("header %x, want %x", head, bin[:len(head)])
	}
	var text bytes.Buffer
	if err := DumpSnapshot(&text, bin); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(text.String(), string(want)); d != "" {
		t.Fatalf("dump (-got +want):\n%s", d)
	}
}

// Every changed bit and every missing byte is noticed.
func TestSnapshotFormatNoticesDamage(t *testing.T) {
	good := writeSnapshot(t, snapshotV2, snapshotTablesV1)
	for i := range len(good) * 8 {
		bad := bytes.Clone(good)
		bad[i/8] ^= 1 << (i % 8)
		if _, _, err := readSnapshot(bad); !errors.Is(err, errCorruptSnapshot) {
			t.Fatalf("bit %d flipped: %v, want %v", i, err, errCorruptSnapshot)
		}
	}
	for i := range good {
		if _, _, err := readSnapshot(good[:i]); err == nil {
			t.Fatalf("cut to %d bytes: no error", i)
		}
	}
	wantNewer(t, good, 3, snapshotHeaderSize, func(data []byte) error { _, _, err := readSnapshot(data); return err })
}

// wantNewer checks that what a newer version begins with, up to its checksum, is refused by name.
func wantNewer(t *testing.T, good []byte, version byte, head int, parse func([]byte) error) {
	t.Helper()
	newer := bytes.Clone(good)
	newer[4] = version
	copy(newer, sealed(newer[:head-4:head-4]))
	if err := parse(newer); err == nil || !strings.Contains(err.Error(), fmt.Sprint("version ", version)) {
		t.Fatalf("version %d: %v, want it refused by name", version, err)
	}
}

// Nothing makes the decoder panic, and what is decoded is encoded to the same tables.
func FuzzParseSnapshot(f *testing.F) {
	f.Add(writeSnapshot(f, snapshotV1, snapshotTablesV1))
	f.Add(writeSnapshot(f, snapshotV2, nil))
	f.Fuzz(func(t *testing.T, src []byte) {
		if len(src) > snapshotHeaderSize+4 { // inputs with any checksum would all end there
			copy(src, sealed(src[:snapshotHeaderSize-4:snapshotHeaderSize-4]))
			src = sealed(src[: len(src)-4 : len(src)-4])
		}
		h, tables, err := readSnapshot(src)
		if err != nil {
			return
		}
		again, same, err := readSnapshot(writeSnapshot(t, h, tables))
		if d := cmp.Diff(again, h, sameSnapshot); err != nil || d != "" {
			t.Fatalf("%v, header (-again +first):\n%s", err, d)
		}
		if d := cmp.Diff(same, tables, cmpopts.EquateEmpty()); d != "" {
			t.Fatal(d)
		}
	})
}

var generationV1 = generation{number: 258, cluster: "0123456789abcdefABCDEF", nonce: "000102030405060708090a0b0c0d0e0f"}

// The fixture of version 1 is read and, as long as 1 is current, written as it is.
func TestGenerationFormatV1(t *testing.T) {
	const path = "testdata/format/v1/generation"
	bin, err := os.ReadFile(path + ".bin")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(path + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	if g, err := parseGeneration(bin); err != nil || g != generationV1 {
		t.Fatalf("%+v, %v, want %+v", g, err, generationV1)
	}
	if data, err := appendGeneration(nil, generationV1); err != nil || !bytes.Equal(data, bin) {
		t.Fatalf("encoded %x, %v, want %x", data, err, bin)
	}
	wantNewer(t, bin, 2, len(bin), func(data []byte) error { _, err := parseGeneration(data); return err })
	var text bytes.Buffer
	if err := DumpGeneration(&text, bin); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(text.String(), string(want)); d != "" {
		t.Fatalf("dump (-got +want):\n%s", d)
	}
}

// Whatever is decoded is encoded to the same bytes, and every flipped bit is noticed.
func FuzzParseGeneration(f *testing.F) {
	good, err := appendGeneration(nil, generationV1)
	if err != nil {
		f.Fatal(err)
	}
	for i := range len(good) * 8 {
		bad := bytes.Clone(good)
		bad[i/8] ^= 1 << (i % 8)
		if _, err := parseGeneration(bad); !errors.Is(err, errCorruptGeneration) {
			f.Fatalf("bit %d flipped: %v, want %v", i, err, errCorruptGeneration)
		}
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, src []byte) {
		if len(src) > 4 {
			src = sealed(src[: len(src)-4 : len(src)-4])
		}
		g, err := parseGeneration(src)
		if err != nil {
			return
		}
		if again, err := appendGeneration(nil, g); err != nil || !bytes.Equal(again, src) {
			t.Fatalf("decoded %x, encoded %x, %v", src, again, err)
		}
	})
}

// Keys are read as they are built, and nothing else is one.
func TestKeys(t *testing.T) {
	for _, n := range []int64{1, 255, 1 << 40, 1<<63 - 1} {
		if g, ok := parseGenerationKey(generationKey(n)); !ok || g != n {
			t.Errorf("generation %d: %d, %t", n, g, ok)
		}
		if g, m, ok := parseSnapshotKey(snapshotKey(n, n-1)); !ok || g != n || m != n-1 {
			t.Errorf("snapshot %d %d: %d %d, %t", n, n-1, g, m, ok)
		}
	}
	for _, key := range []string{"", "metadata/generation/1", "metadata/snapshot/0000000000000001", "metadata/snapshot/0000000000000001/1", "metadata/snapshot/0000000000000001/000000000000000A"} {
		_, g := parseGenerationKey(key)
		_, _, s := parseSnapshotKey(key)
		if g || s {
			t.Errorf("%q is taken for a key", key)
		}
	}
}
