package node

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/broker/group"
	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/internal/shard"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/streamstore"
)

// A share group takes records from partitions of both nodes, one of which coordinates it; partitions
// and the coordinator move, and nothing that was accepted comes again.
func TestShareGroupOfTwoNodes(t *testing.T) {
	t.Parallel() // mostly waits
	c := &cluster{t: t, data: t.TempDir(), objects: t.TempDir(), metadata: lab.Postgres(t)}
	one, two := c.open(1), c.open(2)
	nodes := map[streamstore.NodeID]*Node{1: one, 2: two}
	topic, err := one.set.CreateTopic(t.Context(), metadata.NewTopic{Name: "jobs", Partitions: 2, Leaders: []streamstore.NodeID{1, 2}})
	if err != nil {
		t.Fatal(err)
	}
	set := kmsg.NewPtrIncrementalAlterConfigsRequest()
	earliest, hour := "earliest", "3600000"
	set.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeGroupConfig, ResourceName: "workers",
		Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: "share.auto.offset.reset", Value: &earliest}, {Name: "share.record.lock.duration.ms", Value: &hour}}}}
	if resp, err := set.RequestWith(t.Context(), c.client(one)); err != nil || resp.Resources[0].ErrorCode != 0 {
		t.Fatal(err, resp)
	}
	produced := 0
	produce := func() {
		t.Helper()
		cl := c.client(one, kgo.RecordPartitioner(kgo.ManualPartitioner()))
		for range 20 {
			if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "jobs", Partition: int32(produced % 2), Value: fmt.Append(nil, produced)}).FirstErr(); err != nil {
				t.Fatal(err)
			}
			produced++
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), invariant.Patience(3*time.Minute))
	defer cancel()
	member := c.client(two, kgo.ShareGroup("workers"), kgo.ConsumeTopics("jobs"), kgo.MetadataMinAge(100*time.Millisecond))
	times := map[string]int{}
	consume := func() {
		t.Helper()
		for len(times) < produced {
			fetches := member.PollFetches(ctx)
			if ctx.Err() != nil {
				t.Fatalf("got %d of %d records", len(times), produced)
			}
			fetches.EachRecord(func(r *kgo.Record) {
				if times[string(r.Value)]++; times[string(r.Value)] > 1 {
					t.Errorf("%s comes again", r.Value)
				}
			})
			member.MarkAcks(kgo.AckAccept, fetches.Records()...)
			if err := member.FlushAcks(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	produce()
	consume()
	// Each partition goes to the other node, and so does the group.
	offsets, _ := one.set.Topic(group.Topic)
	ids := []partition.ID{{Topic: "jobs", Index: 0}, {Topic: "jobs", Index: 1}, {Topic: group.Topic, Index: shard.PartitionOf("workers", len(offsets.Partitions))}}
	for _, id := range ids {
		leader, _, ok := one.set.Leader(t.Context(), id)
		if !ok {
			t.Fatalf("who leads %v?", id)
		}
		if _, err := nodes[leader].set.Move(t.Context(), []partition.ID{id}, 3-leader); err != nil {
			t.Fatal(err)
		}
	}
	produce()
	consume()
	for ctx.Err() == nil {
		describe := kmsg.NewPtrDescribeShareGroupOffsetsRequest()
		describe.Groups = []kmsg.DescribeShareGroupOffsetsRequestGroup{{GroupID: "workers"}}
		resp, err := describe.RequestWith(ctx, c.client(one))
		if err != nil || resp.Groups[0].ErrorCode != 0 {
			t.Fatal(err, kerr.ErrorForCode(resp.Groups[0].ErrorCode))
		}
		sum := int64(0)
		for _, rt := range resp.Groups[0].Topics {
			for _, p := range rt.Partitions {
				sum += p.StartOffset
			}
		}
		if sum == int64(produced) {
			return
		}
	}
	t.Errorf("the group is not behind the last record of %v", topic.Name)
}
