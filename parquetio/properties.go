package parquetio

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

// The properties of a table that its files follow, as Iceberg's own writers know them ("Write
// properties" in its documentation).
const (
	propCodec         = "write.parquet.compression-codec" // zstd (default), gzip, snappy, brotli, uncompressed
	propLevel         = "write.parquet.compression-level" // zstd: 1 by default
	propRowGroupBytes = "write.parquet.row-group-size-bytes"
	propPageBytes     = "write.parquet.page-size-bytes"
	propDictBytes     = "write.parquet.dict-size-bytes"
	propMetrics       = "write.metadata.metrics." // default, column.COLUMN: none, counts, truncate(N), full
)

// codecs are the compression codecs by the names of propCodec.
var codecs = map[string]compress.Compression{
	"zstd": compress.Codecs.Zstd, "gzip": compress.Codecs.Gzip, "snappy": compress.Codecs.Snappy, "brotli": compress.Codecs.Brotli,
	"uncompressed": compress.Codecs.Uncompressed,
}

// IsWriteProperty reports whether files follow the table property of that name.
func IsWriteProperty(name string) bool {
	switch name {
	case propCodec, propLevel, propRowGroupBytes, propPageBytes, propDictBytes:
		return true
	}
	return strings.HasPrefix(name, propMetrics)
}

// Configure takes the properties of a table over. One that cannot be followed is left out, and the
// error names it: somebody else set it, and files are written all the same.
func (c *WriterConfig) Configure(properties iceberg.Properties) error {
	var errs []error
	number := func(name string, least, most int64, set func(int64)) {
		text, ok := properties[name]
		if !ok {
			return
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < least || n > most {
			errs = append(errs, fmt.Errorf("table property %s is %q, want a number from %d to %d", name, text, least, most))
			return
		}
		set(n)
	}
	if name, ok := properties[propCodec]; ok {
		if _, known := codecs[strings.ToLower(name)]; known {
			c.Codec = strings.ToLower(name)
		} else {
			errs = append(errs, fmt.Errorf("table property %s is %q, want zstd, gzip, snappy, brotli or uncompressed", propCodec, name))
		}
	}
	switch c.Codec {
	case "", "zstd":
		number(propLevel, 1, 22, func(n int64) { c.CompressionLevel = int(n) })
	case "gzip":
		number(propLevel, 1, 9, func(n int64) { c.CompressionLevel = int(n) })
	case "brotli":
		number(propLevel, 0, 11, func(n int64) { c.CompressionLevel = int(n) })
	}
	number(propRowGroupBytes, 64<<10, 1<<30, func(n int64) { c.RowGroupBytes = n })
	number(propPageBytes, 4<<10, 64<<20, func(n int64) { c.PageBytes = n })
	number(propDictBytes, 1<<10, 64<<20, func(n int64) { c.DictionaryBytes = n })
	c.Metrics = nil
	for name, mode := range properties {
		if !strings.HasPrefix(name, propMetrics) || name == propMetrics+"max-inferred-column-defaults" {
			continue
		}
		if !isMetricsMode(mode) {
			errs = append(errs, fmt.Errorf("table property %s is %q, want none, counts, truncate(N) or full", name, mode))
			continue
		}
		if c.Metrics == nil {
			c.Metrics = iceberg.Properties{}
		}
		c.Metrics[name] = mode
	}
	return errors.Join(errs...)
}

func isMetricsMode(mode string) bool {
	switch mode = strings.ToLower(strings.TrimSpace(mode)); mode {
	case "none", "counts", "full":
		return true
	}
	n, ok := strings.CutPrefix(mode, "truncate(")
	n, closed := strings.CutSuffix(n, ")")
	length, err := strconv.Atoi(n)
	return ok && closed && err == nil && length > 0
}

// maxMetrics is of how many columns a manifest entry has metrics, the first of the table: what
// Iceberg's own writers keep to.
const maxMetrics = 100

// metricsOf says of which columns of a table there are metrics: those that modes name, and of the
// first of the others, unless it has another default.
func metricsOf(schema *iceberg.Schema, modes iceberg.Properties) iceberg.Properties {
	cols, _ := layout(schema)
	if _, own := modes[table.DefaultWriteMetricsModeKey]; own || len(cols) <= maxMetrics {
		return modes
	}
	out := iceberg.Properties{table.DefaultWriteMetricsModeKey: "none"}
	for i := range cols {
		if c := &cols[i]; len(c.kids) == 0 && len(out) <= maxMetrics {
			out[table.MetricsModeColumnConfPrefix+"."+c.path] = table.DefaultWriteMetricsModeDefault
		}
	}
	for name, mode := range modes {
		out[name] = mode
	}
	return out
}
