package schemaregistry_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/schemaregistry"
)

func Example() {
	ctx := context.Background()
	log := slog.New(slog.DiscardHandler)
	store, err := metadata.Open(ctx, "sqlite::memory:", log)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	registry := schemaregistry.New(store, nil, schemaregistry.Config{}, log)
	v, _, err := registry.Register(ctx, "clicks-value", schemaregistry.Request{Schema: `{"type": "record", "name": "Click", "fields": []}`}, false)
	fmt.Println(v.Schema.ID, v.Version, err)
	s, err := registry.Schema(ctx, v.Schema.ID)
	fmt.Println(s.Text, err)
	// Output:
	// 1 1 <nil>
	// {"type":"record","name":"Click","fields":[]} <nil>
}
