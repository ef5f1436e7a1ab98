package node

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/apache/iceberg-go/table"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/streamstore"
)

// createBoth has two nodes create a topic each at the same time, and returns how each fared.
func (c *cluster) createBoth(nodes [2]*Node, names [2]string, config map[string]*string) (errs [2]error) {
	var both sync.WaitGroup
	begin := make(chan struct{})
	for i, n := range nodes {
		admin := kadm.NewClient(c.client(n))
		both.Go(func() {
			<-begin
			made, err := admin.CreateTopic(c.t.Context(), 1, 1, config, names[i])
			if errs[i] = err; made.ErrMessage != "" {
				errs[i] = fmt.Errorf("%w: %s", err, made.ErrMessage)
			}
		})
	}
	close(begin)
	both.Wait()
	return errs
}

// Of topics that two nodes create at the same time, under names that metrics cannot tell apart, the
// cluster has one.
func TestNamesThatCollideAreCreatedOnce(t *testing.T) {
	t.Parallel() // mostly waits
	c := &cluster{t: t, data: t.TempDir(), objects: t.TempDir(), metadata: lab.Postgres(t)}
	nodes := [2]*Node{c.open(1), c.open(2)}
	for round := range 10 {
		names := [2]string{fmt.Sprintf("round.%d", round), fmt.Sprintf("round_%d", round)}
		errs := c.createBoth(nodes, names, nil)
		loser := 0
		if errs[0] == nil {
			loser = 1
		}
		if errs[1-loser] != nil || !errors.Is(errs[loser], kerr.InvalidTopicException) || !strings.Contains(errs[loser].Error(), "collides with the topic "+names[1-loser]) {
			t.Fatalf("created at the same time, %q: %v, want that one is and the other is told of it", names, errs)
		}
	}
}

// A table has one topic, also if topics whose tables get the same name are created at two nodes at
// the same time: the other is refused when it is created, or its table is paused; both say why.
func TestTablesThatCollideHaveOneTopic(t *testing.T) {
	t.Parallel() // mostly waits
	c := &cluster{t: t, data: t.TempDir(), objects: t.TempDir(), metadata: lab.Postgres(t)}
	nodes := [2]*Node{c.open(1), c.open(2)}
	on, lag := "true", "1000"
	config := map[string]*string{"table.topic.enable": &on, "table.topic.target.lag.ms": &lag}
	status := func(n *Node, topic string) TableStatus {
		route, err := n.tableOf(topic)
		if err != nil {
			return TableStatus{Message: err.Error()}
		}
		list, away := []TableStatus{n.status(t.Context(), route, true, map[streamstore.NodeID]error{})}, map[streamstore.NodeID]error{}
		n.askStates(t.Context(), []partition.Route{route}, list, away)
		return list[0]
	}
	for round := range 3 {
		names := [2]string{fmt.Sprintf("pair-%d", round), fmt.Sprintf("pair_%d", round)}
		errs := c.createBoth(nodes, names, config)
		for i, err := range errs {
			if err == nil {
				if err := c.client(nodes[i]).ProduceSync(t.Context(), &kgo.Record{Topic: names[i], Key: []byte("k")}).FirstErr(); err != nil {
					t.Fatal(err)
				}
			} else if !errors.Is(err, kerr.InvalidConfig) || !strings.Contains(err.Error(), fmt.Sprintf("is that of topic %q", names[1-i])) {
				t.Fatalf("create %s: %v, want no error, or that the table is that of %s", names[i], err, names[1-i])
			}
		}
		var owner string
		until(t, "one topic has its row in the table", func() string {
			tbl, err := nodes[0].builtin.Load(t.Context(), table.Identifier{"default", names[1]})
			if err != nil {
				return err.Error()
			}
			owner = tbl.Properties()["tabletopic.topic"]
			if s := status(nodes[0], owner); s.Rows != 1 {
				return fmt.Sprintf("%+v", s)
			}
			return ""
		})
		other := 0
		if owner == names[0] {
			other = 1
		}
		if errs[1-other] != nil || owner != names[1-other] {
			t.Fatalf("the table is that of %q, whose creation was answered %v", owner, errs[1-other])
		}
		if errs[other] != nil {
			continue
		}
		for i, n := range nodes {
			until(t, fmt.Sprintf("node %d says that the table of %s is paused", i+1, names[other]), func() string {
				if s := status(n, names[other]); s.State != coordinator.TablePaused || !strings.Contains(s.Message, fmt.Sprintf("is that of topic %q", owner)) {
					return fmt.Sprintf("%s: %s", s.State, s.Message)
				}
				return ""
			})
		}
		if s := status(nodes[0], owner); s.Rows != 1 {
			t.Errorf("the table has %d rows, want that of %s", s.Rows, owner)
		}
	}
	// What one node has is known to another before it judges a topic.
	if _, err := kadm.NewClient(c.client(nodes[0])).CreateTopic(t.Context(), 1, 1, config, "later-on"); err != nil {
		t.Fatal(err)
	}
	made, err := kadm.NewClient(c.client(nodes[1])).CreateTopic(t.Context(), 1, 1, config, "later_on")
	if !errors.Is(err, kerr.InvalidConfig) || !strings.Contains(made.ErrMessage, `is that of topic "later-on"`) {
		t.Errorf("a topic of a table that another has: %v: %s", err, made.ErrMessage)
	}
}
