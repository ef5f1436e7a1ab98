package parquetio

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
)

// Files follow the write properties of the table, and what is wrong with one does not touch the
// others.
func TestWriteProperties(t *testing.T) {
	var c WriterConfig
	if err := c.Configure(iceberg.Properties{
		"write.parquet.compression-codec": "GZIP", "write.parquet.compression-level": "9", "write.parquet.row-group-size-bytes": "1048576",
		"write.parquet.page-size-bytes": "65536", "write.parquet.dict-size-bytes": "131072", "write.metadata.metrics.column.x": "full", "write.format.default": "avro",
	}); err != nil {
		t.Fatal(err)
	}
	want := WriterConfig{Codec: "gzip", CompressionLevel: 9, RowGroupBytes: 1 << 20, PageBytes: 64 << 10, DictionaryBytes: 128 << 10,
		Metrics: iceberg.Properties{"write.metadata.metrics.column.x": "full"}}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("configured %+v, want %+v", c, want)
	}
	err := c.Configure(iceberg.Properties{
		"write.parquet.compression-codec": "lzo", "write.parquet.row-group-size-bytes": "many", "write.parquet.page-size-bytes": "32768", "write.metadata.metrics.default": "some",
	})
	for _, name := range []string{"compression-codec is \"lzo\"", "row-group-size-bytes is \"many\"", "metrics.default is \"some\""} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v does not name %s", err, name)
		}
	}
	if c.Codec != "gzip" || c.PageBytes != 32<<10 || c.RowGroupBytes != 1<<20 {
		t.Errorf("configured %+v", c)
	}
}

// A manifest has the metrics of the columns that the table asks for: of the first 100 if it does not.
func TestMetricsModes(t *testing.T) {
	var fields []string
	for i := range 150 {
		fields = append(fields, fmt.Sprintf(`{"name":"f%d","type":"long"}`, i))
	}
	value := mustParse(t, `{"type":"record","name":"R","fields":[`+strings.Join(fields, ",")+`]}`)
	schema, err := noKafka.TableSchema(value)
	if err != nil {
		t.Fatal(err)
	}
	decoder, err := noKafka.Compile(value, schema)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		properties iceberg.Properties
		columns    int
		last       bool
	}{
		"default":    {nil, 100, false},
		"one more":   {iceberg.Properties{"write.metadata.metrics.column.f149": "full"}, 101, true},
		"all":        {iceberg.Properties{"write.metadata.metrics.default": "full"}, 150, true},
		"none":       {iceberg.Properties{"write.metadata.metrics.default": "none"}, 0, false},
		"all but it": {iceberg.Properties{"write.metadata.metrics.default": "full", "write.metadata.metrics.column.f149": "none"}, 149, false},
	} {
		var c WriterConfig
		if err := c.Configure(test.properties); err != nil {
			t.Fatal(err)
		}
		b, err := NewBuilder(schema, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Append(decoder, make([]byte, 150), RecordMeta{}); err != nil {
			t.Fatal(err)
		}
		entry, err := writeFile(t, schema, c, finish(t, b)).DataFile(*iceberg.UnpartitionedSpec, "mem:///f")
		if err != nil {
			t.Fatal(err)
		}
		_, last := entry.LowerBoundValues()[150]
		if n := len(entry.LowerBoundValues()); n != test.columns || last != test.last {
			t.Errorf("%s: %d columns have bounds, the last one: %t; want %d, %t", name, n, last, test.columns, test.last)
		}
	}
}
