package metadata

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/streamstore"
)

func openAll(t *testing.T, s *Store, node streamstore.Node, topic Topic) error {
	t.Helper()
	_, err := s.OpenStreams(t.Context(), node, requests(topic))
	return err
}

func requests(topic Topic) (all []streamstore.OpenRequest) {
	for _, p := range topic.Partitions {
		all = append(all, streamstore.OpenRequest{ID: p.Meta, Epoch: int64(p.LeaderEpoch)}, streamstore.OpenRequest{ID: p.Log, Epoch: int64(p.LeaderEpoch)})
	}
	return all
}

func lives(t *testing.T, s *Store, ids ...streamstore.NodeID) (nodes []streamstore.Node) {
	t.Helper()
	for _, id := range ids {
		n, _, err := s.RegisterNode(t.Context(), id, streamstore.WALObject)
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// Partitions go round the leaders that are asked for, and each can open its own at once, and
// no other's.
func TestTopicOverSeveralNodes(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		nodes := lives(t, s, 1, 2)
		topic := create(t, s, nodes[0], NewTopic{Name: "a", Partitions: 3, Leaders: []streamstore.NodeID{2, 1}})
		topic, err := s.CreatePartitions(t.Context(), nodes[0], "a", 5, 1, 2)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []streamstore.NodeID{2, 1, 2, 1, 2} {
			p := topic.Partitions[i]
			if p.Leader != want {
				t.Errorf("partition %d is led by node %d, want %d", i, p.Leader, want)
			}
			one := Topic{Partitions: []Partition{p}}
			if err := openAll(t, s, nodes[2-want], one); !errors.Is(err, streamstore.ErrConflict) {
				t.Errorf("partition %d opened by the node that does not lead it: %v", i, err)
			}
			if err := openAll(t, s, nodes[want-1], one); err != nil {
				t.Errorf("partition %d: %v", i, err)
			}
		}
		if _, err := s.CreateTopic(t.Context(), nodes[0], NewTopic{Name: "b", Partitions: 1, Leaders: []streamstore.NodeID{7}}); !errors.Is(err, streamstore.ErrNodeNotExist) {
			t.Errorf("led by a node that never was: %v", err)
		}
		// Any node deletes it, though the other has half of it open.
		if err := s.DeleteTopic(t.Context(), nodes[0], topic.ID); err != nil {
			t.Fatal(err)
		}
		if err := s.CloseStreams(t.Context(), nodes[1], requests(Topic{Partitions: topic.Partitions[:1]})); err != nil {
			t.Errorf("close streams of a deleted topic: %v", err)
		}
	})
}

// A move is by the leader, of closed streams, to a node that was not given up; the old leader
// then opens nothing, and the new one with the raised epoch.
func TestMovePartitions(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		nodes := lives(t, s, 1, 2, 3)
		topic := create(t, s, nodes[0], NewTopic{Name: "a", Partitions: 2})
		move := func(by streamstore.Node, index int32, from, to streamstore.NodeID) error {
			return s.MovePartitions(t.Context(), by, []PartitionMove{{topic.ID, index, from, to}})
		}
		refused := func(what string, err, want error) {
			t.Helper()
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", what, err, want)
			}
		}
		refused("open streams", move(nodes[0], 0, 1, 2), streamstore.ErrConflict)
		if err := s.CloseStreams(t.Context(), nodes[0], requests(topic)); err != nil {
			t.Fatal(err)
		}
		refused("not by the leader", move(nodes[1], 0, 1, 2), streamstore.ErrConflict)
		refused("not from the leader", move(nodes[0], 0, 2, 3), streamstore.ErrConflict)
		refused("to nobody", move(nodes[0], 0, 1, 9), streamstore.ErrNodeNotExist)
		refused("no such partition", move(nodes[0], 7, 1, 2), ErrTopicNotExist)
		refused("no such topic", s.MovePartitions(t.Context(), nodes[0], []PartitionMove{{uuid.New(), 0, 1, 2}}), ErrTopicNotExist)
		refused("all or none", s.MovePartitions(t.Context(), nodes[0], []PartitionMove{{topic.ID, 0, 1, 2}, {topic.ID, 1, 3, 2}}), streamstore.ErrConflict)
		if now, err := s.Topic(t.Context(), topic.ID); err != nil || cmp.Diff(now, topic) != "" {
			t.Fatalf("refused moves changed the topic: %v\n%s", err, cmp.Diff(now, topic))
		}

		if err := move(nodes[0], 1, 1, 2); err != nil {
			t.Fatal(err)
		}
		moved, err := s.Topic(t.Context(), topic.ID)
		if err != nil || moved.Partitions[1].Leader != 2 || moved.Partitions[1].LeaderEpoch != 1 || moved.Partitions[0] != topic.Partitions[0] {
			t.Fatalf("%+v, %v", moved.Partitions, err)
		}
		if err := openAll(t, s, nodes[1], Topic{Partitions: moved.Partitions[1:]}); err != nil {
			t.Fatal(err)
		}
		refused("the old leader opens it", openAll(t, s, nodes[0], Topic{Partitions: moved.Partitions[1:]}), streamstore.ErrConflict)

		// To itself: the epoch alone, whether the streams are open or not.
		if err := move(nodes[1], 1, 2, 2); err != nil {
			t.Fatal(err)
		}
		if moved, err = s.Topic(t.Context(), topic.ID); err != nil || moved.Partitions[1].Leader != 2 || moved.Partitions[1].LeaderEpoch != 2 {
			t.Fatalf("%+v, %v", moved.Partitions, err)
		}
	})
}

// What a dead node leads moves once it is recovered, by any node; and not any more once it has
// started again. Nothing moves to a node that was given up.
func TestMoveFromARecoveredNode(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		nodes := lives(t, s, 1, 2, 3)
		topic := create(t, s, nodes[0], NewTopic{Name: "a", Partitions: 2})
		move := func(by streamstore.Node, index int32, from, to streamstore.NodeID) error {
			return s.MovePartitions(t.Context(), by, []PartitionMove{{topic.ID, index, from, to}})
		}
		led, earlier, err := s.TakeOverNode(t.Context(), nodes[1], 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := move(nodes[1], 0, 1, 2); !errors.Is(err, streamstore.ErrConflict) {
			t.Errorf("before the end of its recovery: %v", err)
		}
		for _, w := range earlier {
			if err := s.RetireWAL(t.Context(), led, w.Epoch); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.ReleaseNode(t.Context(), nodes[1], led); err != nil {
			t.Fatal(err)
		}
		if err := move(nodes[2], 0, 1, 1); err != nil {
			t.Errorf("raise the epoch of what a recovered node leads: %v", err)
		}
		if err := move(nodes[2], 0, 1, 2); err != nil {
			t.Errorf("after its recovery: %v", err)
		}
		members, err := s.Members(t.Context())
		if err != nil || len(members) != 0 {
			t.Errorf("members before anyone announced itself: %v, %v", members, err)
		}
		if err := move(nodes[1], 0, 2, 1); !errors.Is(err, streamstore.ErrConflict) {
			t.Errorf("to a node that was given up: %v", err)
		}
		back := lives(t, s, 1)[0]
		if err := move(nodes[1], 1, 1, 2); !errors.Is(err, streamstore.ErrConflict) {
			t.Errorf("from a node that has started again: %v", err)
		}
		taken, err := s.TakePartitions(t.Context(), back)
		if err != nil || len(taken) != 1 || taken[0].Partitions[0].Leader != 2 || taken[0].Partitions[1].Leader != 1 || taken[0].Partitions[1].LeaderEpoch != 1 {
			t.Errorf("the node takes what moved away from it: %+v, %v", taken, err)
		}
		if err := s.AnnounceNode(t.Context(), back, NodeAddress{Kafka: "k:1", HTTP: "h:1"}); err != nil {
			t.Fatal(err)
		}
		if members, err = s.Members(t.Context()); err != nil || len(members) != 1 || members[0] != (Member{back, NodeAddress{Kafka: "k:1", HTTP: "h:1"}}) {
			t.Errorf("members: %v, %v", members, err)
		}
	})
}
