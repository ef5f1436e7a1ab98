package metadata

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/streamstore"
)

func create(t *testing.T, s *Store, node streamstore.Node, n NewTopic) Topic {
	t.Helper()
	topic, err := s.CreateTopic(t.Context(), node, n)
	if err != nil {
		t.Fatal(err)
	}
	return topic
}

func topics(t *testing.T, s *Store) []Topic {
	t.Helper()
	all, err := s.Topics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A topic is what was asked for, and its streams are open at the leader epoch at once.
func TestCreateTopic(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		node := register(t, s)
		made := create(t, s, node, NewTopic{Name: "clicks", Partitions: 3, Config: map[string]string{"retention.ms": "5"}})
		create(t, s, node, NewTopic{Name: "__consumer_offsets", Partitions: 1, Internal: true})
		if _, err := s.CreateTopic(t.Context(), node, NewTopic{Name: "clicks", Partitions: 1}); !errors.Is(err, ErrTopicExists) {
			t.Fatalf("second of a name: got %v", err)
		}
		all := topics(t, s)
		if len(all) != 2 || all[0].Name != "__consumer_offsets" || !all[0].Internal {
			t.Fatalf("got %+v", all)
		}
		if d := cmp.Diff(all[1], made); d != "" {
			t.Fatalf("read and made differ:\n%s", d)
		}
		seen := map[streamstore.StreamID]bool{}
		for i, p := range made.Partitions {
			if int(p.Index) != i || p.Leader != node.ID || p.LeaderEpoch != 0 || seen[p.Meta] || seen[p.Log] || p.Meta == p.Log {
				t.Fatalf("partition %d: %+v", i, p)
			}
			seen[p.Meta], seen[p.Log] = true, true
			open := []streamstore.OpenRequest{{ID: p.Meta}, {ID: p.Log}}
			if _, err := s.OpenStreams(t.Context(), node, open); err != nil {
				t.Fatalf("partition %d: %v", i, err)
			}
		}
	})
}

// A new life raises every leader epoch once, and its streams open with the new epochs.
func TestTakePartitions(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		create(t, s, register(t, s), NewTopic{Name: "a", Partitions: 2})
		other, _, err := s.RegisterNode(t.Context(), 2, streamstore.WALFile)
		if err != nil {
			t.Fatal(err)
		}
		create(t, s, other, NewTopic{Name: "b", Partitions: 1})
		node := register(t, s)
		for life := range int32(2) {
			taken, err := s.TakePartitions(t.Context(), node)
			if err != nil {
				t.Fatal(err)
			}
			if len(taken) != 1 || taken[0].Name != "a" || len(taken[0].Partitions) != 2 {
				t.Fatalf("took %+v", taken)
			}
			for _, p := range taken[0].Partitions {
				if p.LeaderEpoch != life+1 {
					t.Fatalf("leader epoch %d, want %d", p.LeaderEpoch, life+1)
				}
				open := []streamstore.OpenRequest{{ID: p.Meta, Epoch: int64(p.LeaderEpoch)}, {ID: p.Log, Epoch: int64(p.LeaderEpoch)}}
				if _, err := s.OpenStreams(t.Context(), node, open); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

func TestDeleteTopic(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		node := register(t, s)
		a := create(t, s, node, NewTopic{Name: "a", Partitions: 2, Config: map[string]string{"k": "v"}})
		b := create(t, s, node, NewTopic{Name: "b", Partitions: 1})
		if err := s.DeleteTopic(t.Context(), node, a.ID); err != nil {
			t.Fatal(err)
		}
		if err := s.DeleteTopic(t.Context(), node, a.ID); !errors.Is(err, ErrTopicNotExist) {
			t.Fatalf("second delete: got %v", err)
		}
		if d := cmp.Diff(topics(t, s), []Topic{b}); d != "" {
			t.Fatal(d)
		}
		states, err := s.Streams(t.Context(), node.ID)
		if err != nil || len(states) != 2 {
			t.Fatalf("streams %v, %v: want those of b", states, err)
		}
		again := create(t, s, node, NewTopic{Name: "a", Partitions: 1})
		if again.ID == a.ID || len(again.Config) != 0 || again.Partitions[0].Log <= b.Partitions[0].Log {
			t.Fatalf("the new topic has something of the old: %+v", again)
		}
		if err := s.DeleteTopic(t.Context(), node, uuid.New()); !errors.Is(err, ErrTopicNotExist) {
			t.Fatalf("unknown topic: got %v", err)
		}
	})
}

func TestCreatePartitionsAndAlterConfig(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		node := register(t, s)
		create(t, s, node, NewTopic{Name: "a", Partitions: 2, Config: map[string]string{"x": "1", "y": "2"}})
		for range 2 { // a repeat changes nothing
			topic, err := s.CreatePartitions(t.Context(), node, "a", 5)
			if err != nil || len(topic.Partitions) != 5 {
				t.Fatalf("got %d partitions, %v", len(topic.Partitions), err)
			}
		}
		if _, err := s.CreatePartitions(t.Context(), node, "a", 4); err == nil {
			t.Fatal("the topic shrank")
		}
		if _, err := s.CreatePartitions(t.Context(), node, "none", 4); !errors.Is(err, ErrTopicNotExist) {
			t.Fatalf("got %v", err)
		}
		topic, err := s.AlterTopicConfig(t.Context(), node, "a", map[string]string{"x": "3", "z": ""}, []string{"y", "unknown"})
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"x": "3", "z": ""}
		if d := cmp.Diff(topic.Config, want); d != "" {
			t.Fatal(d)
		}
		if d := cmp.Diff(topics(t, s), []Topic{topic}); d != "" {
			t.Fatal(d)
		}
		if _, err := s.AlterTopicConfig(t.Context(), node, "none", nil, nil); !errors.Is(err, ErrTopicNotExist) {
			t.Fatalf("got %v", err)
		}
	})
}

// An old life changes no topic and takes no producer id.
func TestTopicsRefuseOldLife(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		old := register(t, s)
		topic := create(t, s, old, NewTopic{Name: "a", Partitions: 1})
		register(t, s)
		ctx := context.Background()
		_, e1 := s.CreateTopic(ctx, old, NewTopic{Name: "b", Partitions: 1})
		_, e2 := s.CreatePartitions(ctx, old, "a", 2)
		_, e3 := s.AlterTopicConfig(ctx, old, "a", map[string]string{"a": "b"}, nil)
		_, e4 := s.TakePartitions(ctx, old)
		_, e5 := s.AllocateProducerIDs(ctx, old, 1)
		for i, err := range []error{e1, e2, e3, e4, e5, s.DeleteTopic(ctx, old, topic.ID)} {
			if !errors.Is(err, streamstore.ErrNodeFenced) {
				t.Fatalf("call %d: got %v, want %v", i+1, err, streamstore.ErrNodeFenced)
			}
		}
		if d := cmp.Diff(topics(t, s), []Topic{topic}); d != "" {
			t.Fatal(d)
		}
	})
}

func TestAllocateProducerIDs(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		node := register(t, s)
		for _, want := range []int64{0, 1000, 2000} {
			if got, err := s.AllocateProducerIDs(t.Context(), node, 1000); err != nil || got != want {
				t.Fatalf("got %d, %v, want %d", got, err, want)
			}
		}
	})
}

// Every change is in the log, in order and without gap; a follower too far behind learns it.
func TestChanges(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		node := register(t, s)
		topic := create(t, s, node, NewTopic{Name: "a", Partitions: 1})
		changes, err := s.Changes(t.Context(), 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		if len(changes) != 2 || changes[0].Kind != ChangeNode || changes[1].Kind != ChangeTopic || changes[1].Subject != topic.ID.String() {
			t.Fatalf("got %+v", changes)
		}
		if rest, err := s.Changes(t.Context(), changes[1].Seq, 10); err != nil || len(rest) != 0 {
			t.Fatalf("after the last: %v, %v", rest, err)
		}
		if _, err := s.writer.Exec(`DELETE FROM change_log WHERE seq = 1`); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Changes(t.Context(), 0, 10); !errors.Is(err, ErrChangesPruned) {
			t.Fatalf("after pruning: got %v", err)
		}
	})
}

// No two topics have names that metrics and tables cannot tell apart, and the refusal names the other;
// a name is free again when its topic is gone. Topics of the broker's own are always made.
func TestTopicNamesThatCollide(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		s := openStore(t, d, nil)
		node := register(t, s)
		first := create(t, s, node, NewTopic{Name: "a.b_c", Partitions: 1})
		for _, name := range []string{"a-b_c", "a.b-c", "a.b_cd", "A.b_c"} {
			create(t, s, node, NewTopic{Name: name, Partitions: 1})
		}
		for _, name := range []string{"a_b_c", "a.b.c", "a_b.c"} {
			if _, err := s.CreateTopic(t.Context(), node, NewTopic{Name: name, Partitions: 1}); !errors.Is(err, ErrTopicCollides) || !strings.Contains(err.Error(), "topic a.b_c:") {
				t.Errorf("%s beside a.b_c: %v, want %v", name, err, ErrTopicCollides)
			}
		}
		if err := s.DeleteTopic(t.Context(), node, first.ID); err != nil {
			t.Fatal(err)
		}
		create(t, s, node, NewTopic{Name: "a_b.c", Partitions: 1})
		create(t, s, node, NewTopic{Name: "_.consumer_offsets", Partitions: 1})
		create(t, s, node, NewTopic{Name: "__consumer_offsets", Partitions: 1, Internal: true})
	})
}
