package parquetio

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/iceberg-go"
)

// bloomOf returns the Bloom filter of the first column of a row group, nil if there is none.
func bloomOf(t *testing.T, f *File, group int) metadata.BloomFilter {
	t.Helper()
	r, err := openFile(t, f).GetBloomFilterReader().RowGroup(group)
	if err != nil {
		t.Fatal(err)
	}
	filter, err := r.GetColumnBloomFilter(0)
	if err != nil {
		t.Fatal(err)
	}
	return filter
}

// A Bloom filter has every value of its row group, whichever way the column is encoded, and lets few
// others pass; its size follows the distinct values, up to the limit.
func TestBloomFilters(t *testing.T) {
	const rows = 60_000
	number := func(i int64) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(i)) }
	for _, test := range []struct {
		name     string
		typ      string
		value    func(i int) int64
		distinct int
		most     int64
		limit    string // of bytes
	}{
		{"dictionary", `"long"`, func(i int) int64 { return int64(i % 100) }, 100, 128, ""},
		{"dictionary that does not pay", `"long"`, func(i int) int64 { return int64(i) * 7 }, rows, 128 << 10, ""},
		{"dictionary that becomes too large", `"long"`, func(i int) int64 { return int64(max(i-2000, i%20) * 7) }, rows - 2000 + 20, 128 << 10, ""},
		{"small limit", `"long"`, func(i int) int64 { return int64(i) }, rows, 16 << 10, "20000"},
		{"strings", `"string"`, func(i int) int64 { return int64(i) }, rows, 128 << 10, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, one(test.typ))
			for i := range rows {
				v := long(test.value(i))
				if test.typ == `"string"` {
					v = text(fmt.Sprint(test.value(i)))
				}
				r.append(v)
			}
			cfg := WriterConfig{DictionaryBytes: 32 << 10}
			props := iceberg.Properties{"write.parquet.bloom-filter-enabled.column.x": "true", "write.parquet.bloom-filter-fpp.column.x": "0.02"}
			if test.limit != "" {
				props["write.parquet.bloom-filter-max-bytes"] = test.limit
			}
			if err := cfg.Configure(props); err != nil {
				t.Fatal(err)
			}
			f := writeFile(t, r.table, cfg, finish(t, r.builder))
			filter := bloomOf(t, f, 0)
			if filter == nil {
				t.Fatal("there is no Bloom filter")
			}
			if filter.Size() > test.most || filter.Size()*16 < test.most {
				t.Errorf("%d values have a filter of %d bytes, want at most %d, and not much less", test.distinct, filter.Size(), test.most)
			}
			has := func(v int64) bool {
				if test.typ == `"string"` {
					return filter.CheckHash(filter.Hasher().Sum64(fmt.Append(nil, v)))
				}
				return filter.CheckHash(filter.Hasher().Sum64(number(v)))
			}
			wrong := 0
			for i := range rows {
				if !has(test.value(i)) {
					t.Fatalf("value %d is not in the filter", test.value(i))
				}
				if has(-1 - int64(i)) {
					wrong++
				}
			}
			if test.limit == "" && wrong > rows/20 {
				t.Errorf("%d of %d values that are not there pass, 2 %% are allowed", wrong, rows)
			}
		})
	}
}

// Each row group has its own filter; booleans and columns that are not asked for have none.
func TestBloomFiltersOfRowGroupsAndTypes(t *testing.T) {
	r := newRig(t, one(`"string"`))
	x := rand.New(rand.NewPCG(1, 1))
	for range 3000 {
		r.append(text(fmt.Sprintf("%064x", x.Uint64())))
	}
	first := finish(t, r.builder)
	for range 3000 {
		r.append(text("late" + fmt.Sprintf("%064x", x.Uint64())))
	}
	r.append(text("last"))
	cfg := WriterConfig{RowGroupBytes: 16 << 10, PageBytes: 4 << 10, Bloom: map[string]float64{"x": 0.01}}
	f := writeFile(t, r.table, cfg, first, finish(t, r.builder))
	if n := openFile(t, f).NumRowGroups(); n < 2 {
		t.Fatalf("%d row groups: this proves nothing", n)
	}
	for group, want := range []bool{false, true} {
		filter := bloomOf(t, f, group)
		if got := filter.CheckHash(filter.Hasher().Sum64([]byte("last"))); got != want {
			t.Errorf("row group %d has the last value: %t", group, got)
		}
	}
	for _, test := range []struct {
		typ   string
		bloom map[string]float64
	}{{`"boolean"`, map[string]float64{"x": 0.01}}, {`"long"`, map[string]float64{"y": 0.01}}, {`"long"`, nil}} {
		r := newRig(t, one(test.typ))
		r.append([]byte{0})
		if bloomOf(t, writeFile(t, r.table, WriterConfig{Bloom: test.bloom}, finish(t, r.builder)), 0) != nil {
			t.Errorf("%s with %v has a Bloom filter", test.typ, test.bloom)
		}
	}
}

// A reader that looks for one zero finds the other, which is equal, and one that looks for NaN any NaN.
func TestBloomFilterOfEqualFloats(t *testing.T) {
	negative := math.Copysign(0, -1)
	for _, pair := range [][2]float64{{0, negative}, {negative, 0}, {math.Float64frombits(0x7ff8000000000001), math.Float64frombits(0x7ff8000000000000)}} {
		r := newRig(t, one(`"double"`))
		r.append(double(pair[0]))
		filter := bloomOf(t, writeFile(t, r.table, WriterConfig{Bloom: map[string]float64{"x": 0.01}}, finish(t, r.builder)), 0)
		if !filter.CheckHash(filter.Hasher().Sum64(binary.LittleEndian.AppendUint64(nil, math.Float64bits(pair[1])))) {
			t.Errorf("%x is there and %x is not found", math.Float64bits(pair[0]), math.Float64bits(pair[1]))
		}
	}
}
