package streamstore_test

import (
	"context"
	"errors"
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

// must ends an example that went wrong.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// openStore opens a node on a bucket and metadata of its own, in memory.
func openStore(ctx context.Context) *streamstore.Store {
	meta := streamstore.NewMemoryManager()
	return must(streamstore.Open(ctx, streamstore.Config{}, 1, objectstore.NewMemory(), meta, meta, slog.New(slog.DiscardHandler)))
}

// openStream creates a stream on s and opens it.
func openStream(ctx context.Context, s *streamstore.Store) *streamstore.Stream {
	id := must(s.CreateStreams(ctx, 1))
	return must(s.OpenStreams(ctx, []streamstore.OpenRequest{{ID: id, Epoch: 1}}))[0]
}

// appendLines appends each line as a batch of its own and returns when all are durable.
func appendLines(ctx context.Context, st *streamstore.Stream, lines ...string) {
	done := make(chan error, len(lines))
	for _, line := range lines {
		must(st.Append(ctx, streamstore.RecordBatch{Count: 1, MaxTimestamp: -1, Payload: []byte(line)}, func(err error) { done <- err }))
	}
	for range lines {
		must(0, <-done)
	}
}

// Appends are not waited for one by one: many are under way, and they complete in order.
func ExampleStream_Append() {
	ctx := context.Background()
	store := openStore(ctx)
	defer store.Close(ctx)
	st := openStream(ctx, store)

	done := make(chan string, 3)
	for _, word := range []string{"one", "two", "three"} {
		batch := streamstore.RecordBatch{Count: 1, MaxTimestamp: -1, Payload: []byte(word)}
		if _, err := st.Append(ctx, batch, func(err error) {
			done <- fmt.Sprint(word, " ", err) // called by the store: it must not block
		}); err != nil {
			panic(err) // nothing was appended
		}
	}
	fmt.Println("next offset", st.NextOffset())
	for range 3 {
		fmt.Println(<-done)
	}
	// Output:
	// next offset 3
	// one <nil>
	// two <nil>
	// three <nil>
}

// A fetch returns whole batches, also the one that holds the start in its middle, and at
// least one, however few bytes were asked for.
func ExampleStream_Fetch() {
	ctx := context.Background()
	store := openStore(ctx)
	defer store.Close(ctx)
	st := openStream(ctx, store)
	done := make(chan error, 2)
	for _, text := range []string{"five records", "five more"} {
		must(st.Append(ctx, streamstore.RecordBatch{Count: 5, MaxTimestamp: -1, Payload: []byte(text)}, func(err error) { done <- err }))
	}
	<-done
	<-done

	for next := int64(3); next < st.ConfirmOffset(); {
		batches := must(st.Fetch(ctx, next, st.ConfirmOffset(), 1))
		for _, b := range batches {
			fmt.Printf("[%d, %d) %s\n", b.BaseOffset, b.End(), b.Payload)
			next = b.End()
		}
	}
	_, err := st.Fetch(ctx, 0, 100, 1)
	fmt.Println(errors.Is(err, streamstore.ErrOffsetOutOfRange))
	// Output:
	// [0, 5) five records
	// [5, 10) five more
	// true
}

// What is trimmed is out of range at once; its bytes are deleted after a grace.
func ExampleStream_Trim() {
	ctx := context.Background()
	store := openStore(ctx)
	defer store.Close(ctx)
	st := openStream(ctx, store)
	appendLines(ctx, st, "old", "new")

	fmt.Println(st.Trim(ctx, 1), st.StartOffset())
	_, err := st.Fetch(ctx, 0, 2, 1<<20)
	fmt.Println(errors.Is(err, streamstore.ErrOffsetOutOfRange))
	// Output:
	// <nil> 1
	// true
}

// Closing makes a stream free for another node; a higher epoch makes its opener the writer.
func ExampleStream_Close() {
	ctx := context.Background()
	bucket, meta, log := objectstore.NewMemory(), streamstore.NewMemoryManager(), slog.New(slog.DiscardHandler)
	one := must(streamstore.Open(ctx, streamstore.Config{}, 1, bucket, meta, meta, log))
	defer one.Close(ctx)
	two := must(streamstore.Open(ctx, streamstore.Config{}, 2, bucket, meta, meta, log))
	defer two.Close(ctx)
	st := openStream(ctx, one)
	appendLines(ctx, st, "written on node 1")

	open := []streamstore.OpenRequest{{ID: st.ID(), Epoch: 2}}
	_, err := two.OpenStreams(ctx, open)
	fmt.Println("open on node 1:", errors.Is(err, streamstore.ErrConflict))
	if err := st.Close(ctx); err != nil {
		panic(err)
	}
	moved := must(two.OpenStreams(ctx, open))[0]
	appendLines(ctx, moved, "written on node 2")
	for next := int64(0); next < moved.ConfirmOffset(); {
		for _, b := range must(moved.Fetch(ctx, next, moved.ConfirmOffset(), 1<<20)) {
			fmt.Printf("%d %s\n", b.BaseOffset, b.Payload)
			next = b.End()
		}
	}
	// Output:
	// open on node 1: true
	// 0 written on node 1
	// 1 written on node 2
}

// A destroyed stream is gone for good.
func ExampleStream_Destroy() {
	ctx := context.Background()
	store := openStore(ctx)
	defer store.Close(ctx)
	st := openStream(ctx, store)
	appendLines(ctx, st, "soon gone")

	fmt.Println(st.Destroy(ctx))
	_, err := store.OpenStreams(ctx, []streamstore.OpenRequest{{ID: st.ID(), Epoch: 2}})
	fmt.Println(errors.Is(err, streamstore.ErrStreamNotExist))
	// Output:
	// <nil>
	// true
}

// Node 1 is gone, and its machine with it. Node 2 reads its WAL in the bucket and can open
// its streams then. Should node 1 still run, it acknowledges nothing more.
func ExampleStore_Recover() {
	ctx := context.Background()
	bucket, meta, log := objectstore.NewMemory(), streamstore.NewMemoryManager(), slog.New(slog.DiscardHandler)
	one := must(streamstore.Open(ctx, streamstore.Config{}, 1, bucket, meta, meta, log))
	st := openStream(ctx, one)
	appendLines(ctx, st, "acknowledged by node 1")

	two := must(streamstore.Open(ctx, streamstore.Config{}, 2, bucket, meta, meta, log))
	defer two.Close(ctx)
	done := must(two.Recover(ctx, 1, nil))
	fmt.Println(done.Records, "batch uploaded,", done.Streams, "stream closed")
	st = must(two.OpenStreams(ctx, []streamstore.OpenRequest{{ID: st.ID(), Epoch: 2}}))[0]
	fmt.Printf("%s\n", must(st.Fetch(ctx, 0, 1, 1<<20))[0].Payload)
	// Output:
	// 1 batch uploaded, 1 stream closed
	// acknowledged by node 1
}
