package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// Nodes that ask everybody who it is are a cluster like others: they know each other, a table has
// the records of both, and an ACL that is made on one holds on the other.
func TestNodesThatAskKnowEachOther(t *testing.T) {
	t.Parallel() // mostly waits
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, data: t.TempDir(), objects: t.TempDir(), metadata: lab.Postgres(t)}
	c.change = func(cfg *Config) {
		cfg.KafkaProtocol, cfg.SASLMechanisms = "SASL_PLAINTEXT", "PLAIN"
		cfg.Users, cfg.SuperUsers = "admin:"+password+",alice:"+password, "User:admin"
	}
	nodes := []*Node{c.open(1), c.open(2)}
	as := func(n *Node, user string, opts ...kgo.Opt) *kgo.Client {
		return c.client(n, append(opts, kgo.SASL(plain.Auth{User: user, Pass: "secret"}.AsMechanism()))...)
	}
	on, lag := "true", "1000"
	admin := kadm.NewClient(as(nodes[0], "admin"))
	if _, err := admin.CreateTopic(t.Context(), 2, 1, map[string]*string{"table.topic.enable": &on, "table.topic.target.lag.ms": &lag}, "events"); err != nil {
		t.Fatal(err)
	}
	producer := as(nodes[1], "admin", kgo.DefaultProduceTopic("events"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for p := range int32(2) {
		if err := producer.ProduceSync(t.Context(), &kgo.Record{Partition: p, Key: []byte("k")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	topic, _ := nodes[0].set.Topic("events")
	if topic.Partitions[0].Leader == topic.Partitions[1].Leader {
		t.Fatalf("node %d leads both partitions", topic.Partitions[0].Leader)
	}
	until(t, "records of both nodes are in the table", func() string {
		route, err := nodes[1].tableOf("events")
		if err != nil {
			return err.Error()
		}
		if s := nodes[1].status(t.Context(), route, true, nil); s.Rows != 2 {
			return fmt.Sprintf("%d rows: %s %s", s.Rows, s.State, s.Message)
		}
		return ""
	})
	alice := as(nodes[1], "alice", kgo.DefaultProduceTopic("events"))
	if err := alice.ProduceSync(t.Context(), kgo.StringRecord("x")).FirstErr(); !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Fatalf("without an ACL: %v", err)
	}
	acl := kadm.NewACLs().Topics("events").ResourcePatternType(kadm.ACLPatternLiteral).Operations(kadm.OpWrite).Allow("User:alice").AllowHosts("*")
	if results, err := admin.CreateACLs(t.Context(), acl); err != nil || results[0].Err != nil {
		t.Fatal(err, results)
	}
	until(t, "the ACL holds on both nodes", func() string {
		// A new client each time: one that was refused a producer id, by the node that learns of the ACL last, never asks again.
		alice := as(nodes[1], "alice", kgo.DefaultProduceTopic("events"))
		defer alice.Close()
		if err := alice.ProduceSync(t.Context(), kgo.StringRecord("x")).FirstErr(); err != nil {
			return err.Error()
		}
		return ""
	})
}
