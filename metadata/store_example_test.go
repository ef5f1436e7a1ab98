package metadata_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/streamstore"
)

func Example() {
	ctx := context.Background()
	store, err := metadata.Open(ctx, "sqlite::memory:", slog.New(slog.DiscardHandler))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	node, _, err := store.RegisterNode(ctx, 1, streamstore.WALFile)
	fmt.Println(node, err)
	topic, err := store.CreateTopic(ctx, node, metadata.NewTopic{Name: "clicks", Partitions: 2})
	fmt.Println(topic.Name, topic.Partitions, err)
	// Output:
	// {1 1} <nil>
	// clicks [{0 1 0 1 2} {1 1 0 3 4}] <nil>
}
