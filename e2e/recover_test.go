package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/node"
)

// A node is killed while it takes records. Another one recovers it on request: whatever was
// acknowledged lies in objects then, and is read once, in order and without gaps, when the
// node starts again.
func TestRecoverAKilledNode(t *testing.T) {
	t.Parallel()
	endpoint, _, _ := lab.Versitygw(t, "log")
	shared := []string{"--metadata", lab.Postgres(t), "--object-store", "s3://log/cluster?region=us-east-1&path-style=true&endpoint=" + endpoint}
	var servers []*server
	for id := range 2 {
		s := newServer(t, append([]string{"--node-id", strconv.Itoa(id + 1)}, shared...)...)
		s.env = s3Credentials
		s.start()
		servers = append(servers, s)
	}
	one, two := servers[0], servers[1]
	const topic, partitions = "events", 4
	one.createTopicAt(topic, 1, partitions)
	acked := produceUntilKilled(t, one, topic)

	if out, code := two.cli("", "node", "list"); code != 0 || !strings.Contains(out, "silent") || !strings.Contains(out, "serving") {
		t.Fatalf("node list: exit %d\n%s", code, out)
	}
	for args, want := range map[string]string{"node recover 2": "is this server", "node recover 7": "never registered"} {
		if out, code := two.cli("", strings.Fields(args)...); code != 1 || !strings.Contains(out, want) {
			t.Errorf("%s: exit %d, want 1 and %q\n%s", args, code, want, out)
		}
	}
	out, code := two.cli("", "node", "recover", "1", "--output", "json")
	var done node.RecoverStatus
	if err := json.Unmarshal([]byte(out), &done); code != 0 || err != nil || !done.Done || done.Batches == 0 || done.Streams < 2*partitions {
		t.Fatalf("node recover: exit %d, %v\n%s", code, err, out)
	}
	out, _ = two.cli("", "node", "list", "--output", "json")
	var nodes []node.NodeStatus
	if err := json.Unmarshal([]byte(out), &nodes); err != nil || nodes[0].State != node.NodeRecovered || nodes[0].WALs != 0 || nodes[0].OpenStreams != 0 {
		t.Fatalf("node list: %v\n%s", err, out)
	}
	if out, code := two.cli("", "node", "recover", "1"); code != 0 || !strings.Contains(out, "0 batches of 0 bytes") {
		t.Fatalf("recovered once more: exit %d\n%s", code, out)
	}
	one.start()
	if out, code := two.cli("", "node", "recover", "1"); code != 1 || !strings.Contains(out, "node 1 is alive") {
		t.Fatalf("recover a living node: exit %d\n%s", code, out)
	}
	checkOnce(t, one, topic, acked)
}

// createTopicAt makes a topic that one node leads.
func (s *server) createTopicAt(name string, node int32, partitions int) {
	s.t.Helper()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, -1, -1
	for i := range partitions {
		topic.ReplicaAssignment = append(topic.ReplicaAssignment, kmsg.CreateTopicsRequestTopicReplicaAssignment{Partition: int32(i), Replicas: []int32{node}})
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(context.Background(), s.client())
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	if err != nil {
		s.t.Fatalf("create topic %s: %v", name, err)
	}
}

// produceUntilKilled produces numbered records, kills the server in the middle of it, and
// returns the acknowledged ones of each partition.
func produceUntilKilled(t *testing.T, s *server, topic string) map[int32][]string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cl := s.client(kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()), kgo.ProducerBatchMaxBytes(16<<10))
	var mu sync.Mutex
	acked := map[int32][]string{}
	enough := make(chan struct{})
	var once sync.Once
	total := 0
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := 0; ctx.Err() == nil; i++ {
			cl.Produce(ctx, &kgo.Record{Value: fmt.Appendf(nil, "%d-%0*d", i, 500, 0)}, func(r *kgo.Record, err error) {
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					acked[r.Partition] = append(acked[r.Partition], string(r.Value))
					if total++; total >= 20_000 {
						once.Do(func() { close(enough) })
					}
				}
			})
		}
	}()
	select {
	case <-enough:
	case <-time.After(2 * time.Minute):
		t.Fatal("20,000 records are not acknowledged within 2 minutes")
	}
	s.kill()
	cancel()
	<-sent
	cl.Close()
	mu.Lock()
	defer mu.Unlock()
	return acked
}

// checkOnce reads a topic and checks that each partition holds the acknowledged records once
// and in order, at dense offsets; records that were not acknowledged may be among them.
func checkOnce(t *testing.T, s *server, topic string, acked map[int32][]string) {
	t.Helper()
	ends, err := s.admin().ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	got, read, want := map[int32][]string{}, int64(0), int64(0)
	ends.Each(func(o kadm.ListedOffset) { want += o.Offset })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cl := s.client(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	for read < want && ctx.Err() == nil {
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			if r.Offset != int64(len(got[r.Partition])) {
				t.Fatalf("partition %d: offset %d after %d records", r.Partition, r.Offset, len(got[r.Partition]))
			}
			got[r.Partition] = append(got[r.Partition], string(r.Value))
			read++
		})
	}
	if read != want {
		t.Fatalf("%d records read, the partitions end at %d in all", read, want)
	}
	for p, list := range acked {
		seen, i := map[string]bool{}, 0
		for _, v := range got[p] {
			if seen[v] {
				t.Errorf("partition %d holds %.20s twice", p, v)
			}
			seen[v] = true
			if i < len(list) && v == list[i] {
				i++
			}
		}
		if i < len(list) {
			t.Errorf("partition %d: %.20s was acknowledged and is lost, or not in order", p, list[i])
		}
	}
}
