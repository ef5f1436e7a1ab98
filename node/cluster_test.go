package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/tabletopic/tabletopic/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

// cluster is nodes on one PostgreSQL and one object store.
type cluster struct {
	t                       *testing.T
	data, objects, metadata string
}

func (c *cluster) open(id int) *Node {
	c.t.Helper()
	var cfg Config
	cfg.Fields()
	cfg.NodeID, cfg.Data, cfg.ObjectStore, cfg.Metadata = id, filepath.Join(c.data, fmt.Sprint(id)), "file://"+c.objects, c.metadata
	cfg.Kafka, cfg.HTTP = "127.0.0.1:0", "127.0.0.1:0"
	n, err := Open(c.t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		c.t.Fatalf("node %d: %v", id, err)
	}
	c.t.Cleanup(func() { n.Close() })
	return n
}

func (c *cluster) client(n *Node, opts ...kgo.Opt) *kgo.Client {
	c.t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(n.KafkaAddr())}, opts...)...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(cl.Close)
	return cl
}

func (c *cluster) produce(n *Node, topic string, values ...string) {
	c.t.Helper()
	cl := c.client(n, kgo.DefaultProduceTopic(topic))
	for _, v := range values {
		if err := cl.ProduceSync(c.t.Context(), kgo.StringRecord(v)).FirstErr(); err != nil {
			c.t.Fatalf("produce to %s: %v", topic, err)
		}
	}
}

// consume reads n records of a topic as a new group, and commits.
func (c *cluster) consume(node *Node, topic, group string, n int) (values []string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	cl := c.client(node, kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	for len(values) < n && ctx.Err() == nil {
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) { values = append(values, string(r.Value)) })
	}
	if err := cl.CommitUncommittedOffsets(ctx); err != nil {
		c.t.Fatalf("commit of group %s: %v", group, err)
	}
	cl.Close()
	return values
}

// Two nodes on one PostgreSQL and one bucket own what they created: each serves its topics
// and groups, says of the other's that it does not lead them, and outlives its restart.
// Ids that the cluster shares are given once.
func TestTwoNodesOneDatabase(t *testing.T) {
	c := &cluster{t: t, data: t.TempDir(), objects: t.TempDir(), metadata: lab.Postgres(t)}
	// They start at the same time, on an empty database.
	nodes := make([]*Node, 2)
	var both sync.WaitGroup
	for i := range nodes {
		both.Go(func() { nodes[i] = c.open(i + 1) })
	}
	both.Wait()
	for i, n := range nodes {
		admin := kadm.NewClient(c.client(n))
		if _, err := admin.CreateTopic(t.Context(), 2, 1, nil, fmt.Sprint("topic-", i+1)); err != nil {
			t.Fatal(err)
		}
		_, err := admin.CreateTopic(t.Context(), 2, 1, nil, "contested")
		if want := []error{nil, kerr.TopicAlreadyExists}[i]; !errors.Is(err, want) {
			t.Fatalf("node %d creates the topic contested: %v, want %v", i+1, err, want)
		}
		c.produce(n, fmt.Sprint("topic-", i+1), "a", "b")
	}
	for i, n := range nodes {
		topic := fmt.Sprint("topic-", 2-i)
		req := kmsg.NewPtrMetadataRequest()
		req.Topics = []kmsg.MetadataRequestTopic{{Topic: &topic}, {Topic: kmsg.StringPtr("nowhere")}}
		resp, err := req.RequestWith(t.Context(), c.client(n))
		if err != nil {
			t.Fatal(err)
		}
		for j, want := range []*kerr.Error{kerr.LeaderNotAvailable, kerr.UnknownTopicOrPartition} {
			if got := resp.Topics[j]; got.ErrorCode != want.Code || len(got.Partitions) != 0 {
				t.Errorf("node %d answers %v for %s, want %v", i+1, kerr.ErrorForCode(got.ErrorCode), *got.Topic, want)
			}
		}
	}

	t.Run("schema ids", func(t *testing.T) { testSharedSchemaIDs(t, nodes) })

	// The second node restarts while the first goes on; then the other way round.
	for i := range nodes {
		restarted, other := 1-i, i
		if err := nodes[restarted].Close(); err != nil {
			t.Fatal(err)
		}
		c.produce(nodes[other], fmt.Sprint("topic-", other+1), "c")
		nodes[restarted] = c.open(restarted + 1)
	}
	for i, n := range nodes {
		topic := fmt.Sprint("topic-", i+1)
		got := c.consume(n, topic, "readers", 3)
		if slices.Sort(got); !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Errorf("%s holds %q", topic, got)
		}
	}
	for i, n := range nodes {
		offsets, err := kadm.NewClient(c.client(n)).FetchOffsets(t.Context(), "readers")
		if err != nil {
			t.Fatal(err)
		}
		var sum int64
		offsets.Each(func(o kadm.OffsetResponse) {
			if o.Topic == fmt.Sprint("topic-", i+1) {
				sum += o.At
			}
		})
		if sum != 3 {
			t.Errorf("node %d: group committed up to %d in all, want 3", i+1, sum)
		}
	}
}

// Registered on both nodes at the same time, different schemas have different, dense ids.
func testSharedSchemaIDs(t *testing.T, nodes []*Node) {
	const each = 15
	var mu sync.Mutex
	var ids []int
	var both sync.WaitGroup
	for i, n := range nodes {
		cl, err := sr.NewClient(sr.URLs("http://" + n.HTTPAddr()))
		if err != nil {
			t.Fatal(err)
		}
		both.Go(func() {
			for j := range each {
				s, err := cl.CreateSchema(t.Context(), fmt.Sprintf("s-%d-%d", i, j),
					sr.Schema{Schema: fmt.Sprintf(`{"type": "record", "name": "R%d_%d", "fields": []}`, i, j)})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				ids = append(ids, s.ID)
				mu.Unlock()
			}
		})
	}
	both.Wait()
	slices.Sort(ids)
	for i, id := range ids {
		if id != i+1 {
			t.Fatalf("ids %v, want each once from 1 on", ids)
		}
	}
}

// What cannot work with a database that nodes share is refused when it is set.
func TestConfigOfACluster(t *testing.T) {
	for _, test := range []struct {
		wal, want string
		ok        bool
	}{{"", "s3", true}, {"s3", "s3", true}, {"file", "", false}} {
		var c Config
		c.Fields()
		c.Data, c.Metadata, c.WAL = t.TempDir(), "postgres://db/tabletopic", test.wal
		err := c.complete()
		if (err == nil) != test.ok || test.ok && c.WAL != test.want {
			t.Errorf("wal %q: %q, %v", test.wal, c.WAL, err)
		}
	}
}
