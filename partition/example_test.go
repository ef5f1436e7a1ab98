package partition_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
	"github.com/tabletopic/tabletopic/streamstore"
)

// A topic is made, a batch appended as a client sends it, and read back.
func Example() {
	ctx, log := context.Background(), slog.New(slog.DiscardHandler)
	meta, err := metadata.Open(ctx, "sqlite::memory:", log)
	if err != nil {
		panic(err)
	}
	defer meta.Close()
	store, err := streamstore.Open(ctx, streamstore.Config{}, 1, objectstore.NewMemory(), meta, meta, log)
	if err != nil {
		panic(err)
	}
	defer store.Close(ctx)
	set, err := partition.OpenSet(ctx, partition.Config{}, store, meta, log)
	if err != nil {
		panic(err)
	}
	defer set.Close(ctx)

	_, err = set.CreateTopic(ctx, metadata.NewTopic{Name: "clicks", Partitions: 1, Config: map[string]string{"retention.ms": "3600000"}})
	if err != nil {
		panic(err)
	}
	p, err := set.Partition("clicks", 0)
	if err != nil {
		panic(err)
	}
	batch, err := record.AppendBatch(nil, record.BatchOptions{Codec: record.CodecZstd}, []record.Record{
		{Timestamp: 1, Key: []byte("alice"), Value: []byte("home")}, {Timestamp: 2, Key: []byte("bob"), Value: []byte("cart")},
	})
	if err != nil {
		panic(err)
	}
	durable := make(chan error, 1)
	if err := p.Append(ctx, batch, func(_ partition.AppendResult, err error) { durable <- err }); err != nil {
		panic(err)
	}
	if err := <-durable; err != nil {
		panic(err)
	}

	result, err := p.Read(ctx, 1, 1<<20, partition.ReadCommitted) // from the middle of the batch
	if err != nil {
		panic(err)
	}
	var r record.Reader
	for _, b := range result.Batches {
		if err := r.Reset(b); err != nil {
			panic(err)
		}
		var rec record.Record
		for {
			ok, err := r.Next(&rec)
			if err != nil {
				panic(err)
			}
			if !ok {
				break
			}
			fmt.Printf("%d %s %s\n", rec.Offset, rec.Key, rec.Value)
		}
	}
	fmt.Println("high watermark", result.HighWatermark)
	// Output:
	// 0 alice home
	// 1 bob cart
	// high watermark 2
}
