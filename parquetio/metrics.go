package parquetio

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

// maxMetrics is of how many columns a manifest entry has metrics, the first of the table: what
// Iceberg's own writers keep to.
const maxMetrics = 100

// A metricsMode says what a manifest entry has of a column (Iceberg documentation,
// write.metadata.metrics.default).
type metricsMode struct {
	counts bool
	bounds bool
	length int // to which bounds of text and bytes are cut; 0 for none
}

// parseMetricsMode reads none, counts, truncate(N) or full.
func parseMetricsMode(text string) (m metricsMode, ok bool) {
	switch text = strings.ToLower(strings.TrimSpace(text)); text {
	case "none":
		return metricsMode{}, true
	case "counts":
		return metricsMode{counts: true}, true
	case "full":
		return metricsMode{counts: true, bounds: true}, true
	}
	n, is := strings.CutPrefix(text, "truncate(")
	n, closed := strings.CutSuffix(n, ")")
	length, err := strconv.Atoi(n)
	return metricsMode{true, true, length}, is && closed && err == nil && length > 0
}

// metricsModes returns the mode of each leaf column: that of its own property, else the default of
// the table, else truncate(16) of the first columns and none of the others.
func metricsModes(leaves []leafColumn, properties iceberg.Properties) []metricsMode {
	standard, own := parseMetricsMode(properties[table.DefaultWriteMetricsModeKey])
	out := make([]metricsMode, len(leaves))
	for i := range leaves {
		if m, ok := parseMetricsMode(properties[table.MetricsModeColumnConfPrefix+"."+leaves[i].path]); ok {
			out[i] = m
		} else if own {
			out[i] = standard
		} else if i < maxMetrics {
			out[i] = metricsMode{true, true, 16}
		}
	}
	return out
}

// A leafColumn is a column of a table that has values of its own, and so is one of its files.
type leafColumn struct {
	path string // dotted
	id   int
	typ  iceberg.Type
}

func leafColumns(table *iceberg.Schema) (leaves []leafColumn) {
	cols, _ := layout(table)
	for i := range cols {
		if c := &cols[i]; len(c.kids) == 0 {
			leaves = append(leaves, leafColumn{c.path, c.id, c.typ})
		}
	}
	return leaves
}

// dataFile describes the file for a manifest. That is not left to iceberg-go, which in 0.7.0 has no
// bounds of columns inside of structs: those inside of lists and maps are none, as Iceberg's own
// writers have it.
func (f *File) dataFile(spec iceberg.PartitionSpec, values map[int]any, location string) (iceberg.DataFile, error) {
	partition, logical := map[int]any{}, map[int]string{}
	for _, field := range spec.Fields() {
		partition[field.FieldID] = values[field.FieldID]
		if source, ok := f.table.FindFieldByID(field.SourceID()); ok {
			if name := avroLogical(field.Transform.ResultType(source.Type)); name != "" {
				logical[field.FieldID] = name
			}
		}
	}
	b, err := iceberg.NewDataFileBuilder(spec, iceberg.EntryContentData, location, iceberg.ParquetFile, partition, logical, nil, f.Rows, f.Size)
	if err != nil {
		return nil, fmt.Errorf("describe data file %s: %w", location, err)
	}
	leaves := leafColumns(f.table)
	modes := metricsModes(leaves, f.cfg.Metrics)
	sizes, counts, nulls := map[int]int64{}, map[int]int64{}, map[int]int64{}
	lower, upper := map[int][]byte{}, map[int][]byte{}
	var splits []int64
	for g := range f.meta.NumRowGroups() {
		group := f.meta.RowGroup(g)
		for i := range leaves {
			chunk, err := group.ColumnChunk(i)
			if err != nil {
				return nil, fmt.Errorf("describe data file %s: %w", location, err)
			}
			if i == 0 {
				at := chunk.DataPageOffset()
				if chunk.HasDictionaryPage() {
					at = min(at, chunk.DictionaryPageOffset())
				}
				splits = append(splits, at)
			}
			if modes[i].counts && leaves[i].id != 0 {
				sizes[leaves[i].id] += chunk.TotalCompressedSize()
				counts[leaves[i].id] += chunk.NumValues()
			}
		}
	}
	for i := range leaves {
		id, total := leaves[i].id, &f.totals[i]
		if id == 0 { // of a variant, whose parts have none
			continue
		}
		if modes[i].counts {
			nulls[id] = total.nulls
		}
		if !modes[i].bounds || f.meta.Schema.Column(i).MaxRepetitionLevel() > 0 {
			continue
		}
		low, top := total.iceberg(leaves[i].typ, modes[i].length)
		if len(low) > 0 {
			lower[id] = low
		}
		if len(top) > 0 {
			upper[id] = top
		}
	}
	b.ColumnSizes(sizes).ValueCounts(counts).NullValueCounts(nulls).SplitOffsets(splits)
	if len(lower) > 0 {
		b.LowerBoundValues(lower)
	}
	if len(upper) > 0 {
		b.UpperBoundValues(upper)
	}
	if id := f.cfg.Order.OrderID(); id != table.UnsortedSortOrderID {
		b.SortOrderID(id)
	}
	return b.Build(), nil
}

// avroLogical is the logical type of a partition value in the manifest.
func avroLogical(t iceberg.Type) string {
	switch t.(type) {
	case iceberg.DateType:
		return "date"
	case iceberg.TimeType:
		return "time-micros"
	case iceberg.TimestampType, iceberg.TimestampTzType:
		return "timestamp-micros"
	case iceberg.DecimalType:
		return "decimal"
	case iceberg.UUIDType:
		return "uuid"
	}
	return ""
}

// iceberg returns the bounds in Iceberg's binary single-value serialization, nothing where there is
// none. Text and bytes are cut to length, if that is not 0, so that they still enclose all values.
func (b *bounds) iceberg(t iceberg.Type, length int) (low, top []byte) {
	if !b.set {
		return nil, nil
	}
	switch t := t.(type) {
	case iceberg.BooleanType:
		return []byte{byte(b.low)}, []byte{byte(b.top)}
	case iceberg.Int32Type, iceberg.DateType:
		return binary.LittleEndian.AppendUint32(nil, uint32(b.low)), binary.LittleEndian.AppendUint32(nil, uint32(b.top))
	case iceberg.Int64Type, iceberg.TimeType, iceberg.TimestampType, iceberg.TimestampTzType, iceberg.TimestampNsType, iceberg.TimestampTzNsType:
		return binary.LittleEndian.AppendUint64(nil, uint64(b.low)), binary.LittleEndian.AppendUint64(nil, uint64(b.top))
	case iceberg.Float32Type:
		flow, ftop := b.floats()
		return binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(flow))), binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(ftop)))
	case iceberg.Float64Type:
		flow, ftop := b.floats()
		return binary.LittleEndian.AppendUint64(nil, math.Float64bits(flow)), binary.LittleEndian.AppendUint64(nil, math.Float64bits(ftop))
	case iceberg.DecimalType:
		if t.Precision() <= 18 { // stored as integers
			return shortest(decimal128.FromI64(b.low)), shortest(decimal128.FromI64(b.top))
		}
		return slices.Clone(withoutSign(b.min)), slices.Clone(withoutSign(b.max))
	case iceberg.StringType:
		return cutBounds(b.min, b.max, length, true)
	case iceberg.BinaryType:
		return cutBounds(b.min, b.max, length, false)
	case iceberg.UUIDType, iceberg.FixedType:
		return slices.Clone(b.min), slices.Clone(b.max)
	}
	return nil, nil
}

// cutBounds cuts both bounds to n characters of text, or bytes, the upper one upwards. There may be
// none above.
func cutBounds(low, top []byte, n int, text bool) ([]byte, []byte) {
	low = slices.Clone(low[:prefix(low, n, text)])
	if at := prefix(top, n, text); at < len(top) {
		return low, above(top[:at], text)
	}
	return low, slices.Clone(top)
}

// prefix returns the bytes of the first n characters of text, or of the first n bytes; of all if n is 0.
func prefix(v []byte, n int, text bool) int {
	if n == 0 || len(v) <= n {
		return len(v)
	}
	if !text {
		return n
	}
	at := 0
	for ; n > 0 && at < len(v); n-- {
		_, size := utf8.DecodeRune(v[at:])
		at += size
	}
	return at
}
