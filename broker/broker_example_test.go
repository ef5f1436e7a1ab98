package broker_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tabletopic/tabletopic/broker"
	"github.com/tabletopic/tabletopic/broker/group"
	"github.com/tabletopic/tabletopic/broker/txn"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/security"
	"github.com/tabletopic/tabletopic/streamstore"
)

// A broker over a store in memory takes a record from a Kafka client and gives it back.
func Example() {
	ctx, log := context.Background(), slog.New(slog.DiscardHandler)
	check := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	meta, err := metadata.Open(ctx, "sqlite::memory:", log)
	check(err)
	defer meta.Close()
	store, err := streamstore.Open(ctx, streamstore.Config{}, 1, objectstore.NewMemory(), meta, meta, log)
	check(err)
	defer store.Close(ctx)
	set, err := partition.OpenSet(ctx, partition.Config{}, store, meta, log)
	check(err)
	defer set.Close(ctx)
	groups := group.Open(set, group.Config{}, nil, log)
	defer groups.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	txns := txn.Open(set, txn.Config{}, group.Topic, groups, nil, log)
	defer txns.Close()
	access, err := security.Open(ctx, security.Config{}, meta, log, nil) // everybody may do everything
	check(err)
	defer access.Close()
	b, err := broker.Open(broker.Config{}, []broker.Listener{{Listener: listener}}, access, set, groups, txns, meta, store.Node(), log, nil)
	check(err)
	defer b.Close(ctx)

	client, err := kgo.NewClient(kgo.SeedBrokers(b.Addr().String()), kgo.AllowAutoTopicCreation(), kgo.ConsumeTopics("greetings"))
	check(err)
	defer client.Close()
	check(client.ProduceSync(ctx, &kgo.Record{Topic: "greetings", Value: []byte("hello")}).FirstErr())
	for _, r := range client.PollFetches(ctx).Records() {
		fmt.Printf("%s-%d at %d: %s\n", r.Topic, r.Partition, r.Offset, r.Value)
	}
	// Output: greetings-0 at 0: hello
}
