package record_test

import (
	"fmt"
	"log"

	"github.com/tabletopic/tabletopic/record"
)

// A batch is built, cut off a stream of bytes, checked and read.
func Example() {
	data, err := record.AppendBatch(nil, record.BatchOptions{BaseOffset: 41, Codec: record.CodecLZ4}, []record.Record{
		{Timestamp: 1, Key: []byte("k"), Value: []byte("first")}, {Timestamp: 2, Value: []byte("second")},
	})
	if err != nil {
		log.Fatal(err)
	}
	batch, _, err := record.Split(data)
	if err != nil {
		log.Fatal(err)
	}
	if err := batch.Check(); err != nil {
		log.Fatal(err)
	}
	var r record.Reader
	if err := r.Reset(batch); err != nil {
		log.Fatal(err)
	}
	var rec record.Record
	for {
		ok, err := r.Next(&rec)
		if err != nil {
			log.Fatal(err)
		}
		if !ok {
			break
		}
		fmt.Println(rec.Offset, rec.Timestamp, rec.Key == nil, string(rec.Value))
	}
	// Output:
	// 41 1 false first
	// 42 2 true second
}
