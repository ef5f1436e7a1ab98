package parquetio

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/iceberg-go"
)

// The properties of a table that its files follow, as Iceberg's own writers know them ("Write
// properties" in its documentation).
const (
	propCodec         = "write.parquet.compression-codec" // zstd (default), gzip, snappy, brotli, uncompressed
	propLevel         = "write.parquet.compression-level" // zstd: 1 by default
	propRowGroupBytes = "write.parquet.row-group-size-bytes"
	propPageBytes     = "write.parquet.page-size-bytes"
	propDictBytes     = "write.parquet.dict-size-bytes"
	propBloomBytes    = "write.parquet.bloom-filter-max-bytes"
	propBloom         = "write.parquet.bloom-filter-enabled.column."
	propBloomFPP      = "write.parquet.bloom-filter-fpp.column."
	propMetrics       = "write.metadata.metrics." // default, column.COLUMN: none, counts, truncate(N), full
)

// bloomFPP is the share of a Bloom filter's false positives, unless the table has another.
const bloomFPP = 0.01

// codecs are the compression codecs by the names of propCodec.
var codecs = map[string]compress.Compression{
	"zstd": compress.Codecs.Zstd, "gzip": compress.Codecs.Gzip, "snappy": compress.Codecs.Snappy, "brotli": compress.Codecs.Brotli,
	"uncompressed": compress.Codecs.Uncompressed,
}

// IsWriteProperty reports whether files follow the table property of that name.
func IsWriteProperty(name string) bool {
	switch name {
	case MappingProperty, propCodec, propLevel, propRowGroupBytes, propPageBytes, propDictBytes, propBloomBytes:
		return true
	}
	return strings.HasPrefix(name, propMetrics) || strings.HasPrefix(name, propBloom) || strings.HasPrefix(name, propBloomFPP)
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
	number(propBloomBytes, 1<<10, 16<<20, func(n int64) { c.BloomBytes = 1 << (bits.Len64(uint64(n)) - 1) })
	c.Bloom = nil
	for name, text := range properties {
		column, ok := strings.CutPrefix(name, propBloom)
		if !ok {
			continue
		}
		enabled, err := strconv.ParseBool(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("table property %s is %q, want true or false", name, text))
		}
		if !enabled {
			continue
		}
		if c.Bloom == nil {
			c.Bloom = map[string]float64{}
		}
		c.Bloom[column] = bloomFPP
	}
	for name, text := range properties {
		column, ok := strings.CutPrefix(name, propBloomFPP)
		if !ok {
			continue
		}
		fpp, err := strconv.ParseFloat(text, 64)
		if err != nil || !(fpp > 0 && fpp < 1) {
			errs = append(errs, fmt.Errorf("table property %s is %q, want a number between 0 and 1", name, text))
			continue
		}
		if _, enabled := c.Bloom[column]; enabled {
			c.Bloom[column] = fpp
		}
	}
	c.Metrics = nil
	for name, mode := range properties {
		if !strings.HasPrefix(name, propMetrics) || name == propMetrics+"max-inferred-column-defaults" {
			continue
		}
		if _, ok := parseMetricsMode(mode); !ok {
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
