package streamstore_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/streamstore"
)

// A stream is appended to, outlives its node, and is read.
func Example() {
	ctx := context.Background()
	bucket := objectstore.NewMemory()
	meta := streamstore.NewMemoryManager()
	log := slog.New(slog.DiscardHandler)

	store, err := streamstore.Open(ctx, streamstore.Config{}, 1, bucket, meta, meta, log)
	if err != nil {
		panic(err)
	}
	id, _ := store.CreateStreams(ctx, 1)
	streams, _ := store.OpenStreams(ctx, []streamstore.OpenRequest{{ID: id, Epoch: 1}})
	done := make(chan error)
	batch := streamstore.RecordBatch{Count: 3, MaxTimestamp: -1, Payload: []byte("three records")}
	base, _ := streams[0].Append(ctx, batch, func(err error) { done <- err })
	fmt.Println("offset", base, "durable:", <-done == nil)

	// The same node again, as after a kill -9: the first one acknowledges nothing more.
	store, err = streamstore.Open(ctx, streamstore.Config{}, 1, bucket, meta, meta, log)
	if err != nil {
		panic(err)
	}
	defer store.Close(ctx)
	streams, _ = store.OpenStreams(ctx, []streamstore.OpenRequest{{ID: id, Epoch: 2}})
	batches, _ := streams[0].Fetch(ctx, 0, streams[0].ConfirmOffset(), 1<<20)
	fmt.Printf("[%d, %d) %s\n", batches[0].BaseOffset, batches[0].End(), batches[0].Payload)
	// Output:
	// offset 0 durable: true
	// [0, 3) three records
}
