package node

import (
	"fmt"
	"strings"
	"testing"

	"github.com/apache/iceberg-go/table"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/streamstore"
)

// A node that is away takes what is known of its partitions with it: status and verification
// say so in their rows, with the node and what to do, and tell of the others.
func TestStatusOfWhatLeadersAwayHave(t *testing.T) {
	c := &cluster{t: t, data: t.TempDir(), objects: t.TempDir(), metadata: lab.Postgres(t)}
	nodes := map[streamstore.NodeID]*Node{1: c.open(1), 2: c.open(2)}
	on, lag := "true", "1000"
	if _, err := kadm.NewClient(c.client(nodes[1])).CreateTopic(t.Context(), 2, 1,
		map[string]*string{"table.topic.enable": &on, "table.topic.target.lag.ms": &lag}, "events"); err != nil {
		t.Fatal(err)
	}
	cl := c.client(nodes[1], kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic("events"))
	for i := range int32(2) {
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Partition: i, Value: nil, Key: []byte("k")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	status := func(n *Node) TableStatus {
		route, err := n.tableOf("events")
		if err != nil {
			t.Fatal(err)
		}
		away := map[streamstore.NodeID]error{}
		list := []TableStatus{n.status(t.Context(), route, true, away)}
		n.askStates(t.Context(), []partition.Route{route}, list, away)
		return list[0]
	}
	until(t, "both partitions are in the table", func() string {
		s := status(nodes[1])
		if s.Rows != 2 {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
	topic, _ := nodes[1].set.Topic("events")
	coordinates, other := topic.Partitions[0].Leader, topic.Partitions[1].Leader
	if coordinates == other {
		t.Fatalf("node %d leads both partitions", other)
	}
	// The coordinator alone knows why its table is paused; the other node asks it.
	id, tbl := table.Identifier{"default", "events"}, (*table.Table)(nil)
	set := func(main int64) {
		t.Helper()
		_, err := nodes[other].builtin.CommitTable(t.Context(), id, nil, []table.Update{table.NewSetSnapshotRefUpdate(table.MainBranch, main, table.BranchRef, 0, 0, 0)})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := cl.ProduceSync(t.Context(), &kgo.Record{Partition: 0, Key: []byte("k")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	until(t, "the third row is in the table, by another commit", func() (missing string) {
		var err error
		if tbl, err = nodes[other].builtin.Load(t.Context(), id); err != nil || status(nodes[other]).Rows != 3 || tbl.CurrentSnapshot().ParentSnapshotID == nil {
			return fmt.Sprint(tbl, err)
		}
		return ""
	})
	set(*tbl.CurrentSnapshot().ParentSnapshotID)
	for id, n := range nodes {
		until(t, fmt.Sprintf("node %d says that the table is paused", id), func() string {
			if s := status(n); s.State != coordinator.TablePaused || !strings.Contains(s.Message, "main does not descend") {
				return fmt.Sprintf("%s: %s", s.State, s.Message)
			}
			return ""
		})
	}
	set(tbl.CurrentSnapshot().SnapshotID)
	until(t, "the table is well again", func() string {
		return strings.TrimPrefix(string(status(nodes[other]).State), string(coordinator.TableOK))
	})
	for _, x := range []struct {
		away, here streamstore.NodeID
		lost, left int32
		state      coordinator.TableState
	}{{other, coordinates, 1, 0, coordinator.TableOK}, {coordinates, other, 0, 1, coordinator.TableUnknown}} {
		if err := nodes[x.away].Close(); err != nil {
			t.Fatal(err)
		}
		here, advice := nodes[x.here], fmt.Sprintf("tabletopic node recover %d", x.away)
		until(t, "it is known that the node is away", func() string {
			if here.set.Lives(x.away) {
				return "it lives"
			}
			return ""
		})
		s := status(here)
		if s.State != x.state || strings.Contains(s.Message, advice) != (x.state == coordinator.TableUnknown) {
			t.Errorf("without node %d the table is %s: %s; want %s", x.away, s.State, s.Message, x.state)
		}
		lost, left := s.Partitions[x.lost], s.Partitions[x.left]
		if !strings.Contains(lost.Message, advice) || lost.LogEnd != -1 || lost.LagRecords != 0 || lost.TableNext != 2-int64(x.lost) {
			t.Errorf("partition %d of node %d: %+v", x.lost, x.away, lost)
		}
		if left.Message != "" || left.LogEnd != 2-int64(x.left) || left.TableNext != left.LogEnd {
			t.Errorf("partition %d of node %d: %+v", x.left, x.here, left)
		}
		route, err := here.tableOf("events")
		if err != nil {
			t.Fatal(err)
		}
		r, err := here.verify(t.Context(), route, coordinator.Verification{Deep: true})
		if err != nil {
			t.Fatal(err)
		}
		if !r.OK || len(r.Unverified) != 1 || r.Unverified[0] != x.lost || !strings.Contains(r.UnverifiedReasons[x.lost], advice) ||
			len(r.Partitions) != 1 || r.Partitions[0].Rows != 2-int64(x.left) {
			t.Errorf("without node %d verification says %+v", x.away, r)
		}
		nodes[x.away] = c.open(int(x.away))
	}
}
