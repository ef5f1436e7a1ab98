package parquetio_test

import (
	"fmt"

	"github.com/apache/iceberg-go"

	"github.com/tabletopic/tabletopic/parquetio"
)

// From a writer schema and a record to the manifest entry of a data file.
func Example() {
	value, err := parquetio.ParseAvro(parquetio.NewRules(), `{"type":"record","name":"Order","fields":[
		{"name":"id","type":"long"}, {"name":"note","type":["null","string"]}]}`)
	if err != nil {
		panic(err)
	}
	mapping := parquetio.Mapping{KafkaColumn: "_kafka"}
	table, _ := mapping.TableSchema(value)
	decoder, _ := mapping.Compile(value, table)
	builder, _ := parquetio.NewBuilder(table, "_kafka")
	for offset, payload := range [][]byte{{2, 0}, {4, 2, 4, 'h', 'i'}, {6}} {
		if err := builder.Append(decoder, payload, parquetio.RecordMeta{Offset: int64(offset)}); err != nil {
			fmt.Println(err)
		}
	}
	batch, _ := builder.Finish()
	writer, _ := parquetio.NewWriter(table, parquetio.WriterConfig{})
	if err := writer.Write(batch); err != nil {
		panic(err)
	}
	batch.Release()
	file, _ := writer.Close()
	entry, _ := file.DataFile(*iceberg.UnpartitionedSpec, "s3://bucket/orders/1.parquet")
	fmt.Println(entry.Count(), "rows,", entry.NullValueCounts()[2], "without a note")
	// Output:
	// decode record: field note at byte 1: data ends early
	// 2 rows, 1 without a note
}
