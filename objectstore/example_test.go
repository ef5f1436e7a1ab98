package objectstore_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/tabletopic/tabletopic/objectstore"
)

// Two nodes create the next object of a log: one of them learns that it was too late.
func Example() {
	ctx := context.Background()
	store, err := objectstore.Open(ctx, "mem:")
	if err != nil {
		panic(err)
	}
	if err := objectstore.Probe(ctx, store); err != nil {
		panic(err)
	}
	header, records := []byte("header "), []byte("records")
	fmt.Println(store.PutIfAbsent(ctx, "wal/1/7", header, records))
	err = store.PutIfAbsent(ctx, "wal/1/7", []byte("fence"))
	fmt.Println(errors.Is(err, objectstore.ErrExists))

	tail, err := store.Get(ctx, "wal/1/7", -7, 0)
	fmt.Printf("%s %v\n", tail, err)
	fmt.Println(objectstore.Location(store, "wal/1/7"))
	// Output:
	// <nil>
	// true
	// records <nil>
	// mem:///wal/1/7
}
