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

	"github.com/tabletopic/tabletopic/broker/group"
	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/internal/shard"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/streamstore"
)

func TestMain(m *testing.M) {
	os.Setenv("AWS_ACCESS_KEY_ID", lab.AccessKey)
	os.Setenv("AWS_SECRET_ACCESS_KEY", lab.SecretKey)
	os.Exit(lab.Main(m))
}

// cluster is nodes on one PostgreSQL and one object store.
type cluster struct {
	t                       *testing.T
	data, objects, metadata string
	change                  func(*Config) // nil for the defaults
}

func (c *cluster) open(id int) *Node {
	c.t.Helper()
	var cfg Config
	cfg.Fields()
	cfg.NodeID, cfg.Data, cfg.ObjectStore, cfg.Metadata = id, filepath.Join(c.data, fmt.Sprint(id)), "file://"+c.objects, c.metadata
	cfg.Kafka, cfg.HTTP = "127.0.0.1:0", "127.0.0.1:0"
	if c.change != nil {
		c.change(&cfg)
	}
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
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
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

// Two nodes on one PostgreSQL and one bucket are one cluster: each knows all topics and groups,
// and who leads them, whoever was asked to create them. A node that is away takes its partitions
// with it until it is back. Ids that the cluster shares are given once.
func TestTwoNodesOneDatabase(t *testing.T) {
	t.Parallel() // mostly waits
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
	}
	for i, n := range nodes {
		c.produce(n, fmt.Sprint("topic-", 2-i), "a", "b")
		topics, err := kadm.NewClient(c.client(n)).Metadata(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if ids := topics.Brokers.NodeIDs(); !slices.Equal(ids, []int32{1, 2}) || topics.Brokers[1-i].Port == topics.Brokers[i].Port {
			t.Errorf("node %d knows the nodes %+v", i+1, topics.Brokers)
		}
		for name, topic := range topics.Topics {
			if leads := leadersOf(topic); name[0] != '_' && (leads[1] != 1 || leads[2] != 1) {
				t.Errorf("node %d: %s is led %v", i+1, name, leads)
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
		until(t, "the partitions of a node that is away have no leader", func() string {
			topics, err := kadm.NewClient(c.client(nodes[other])).Metadata(t.Context(), "contested")
			if err != nil {
				return err.Error()
			}
			if leads := leadersOf(topics.Topics["contested"]); leads[-1] != 1 || leads[int32(other)+1] != 1 {
				return fmt.Sprint("led ", leads)
			}
			return ""
		})
		nodes[restarted] = c.open(restarted + 1)
		c.produce(nodes[other], fmt.Sprint("topic-", other+1), "c")
	}
	for i, n := range nodes {
		topic := fmt.Sprint("topic-", 2-i)
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
			sum += max(0, o.At)
		})
		if sum != 6 {
			t.Errorf("node %d: group committed up to %d in all, want 6", i+1, sum)
		}
	}
}

// leadersOf counts the partitions of a topic by leader.
func leadersOf(topic kadm.TopicDetail) map[int32]int {
	leads := map[int32]int{}
	for _, p := range topic.Partitions {
		leads[p.Leader]++
	}
	return leads
}

// A group goes where its partition of __consumer_offsets goes; the node that it left sends its
// members there.
func TestGroupMoves(t *testing.T) {
	t.Parallel() // mostly waits
	c := &cluster{t: t, data: t.TempDir(), objects: t.TempDir(), metadata: lab.Postgres(t)}
	one, two := c.open(1), c.open(2)
	if _, err := kadm.NewClient(c.client(one)).CreateTopic(t.Context(), 2, 1, nil, "events"); err != nil {
		t.Fatal(err)
	}
	c.produce(one, "events", "a", "b")
	if got := c.consume(two, "events", "readers", 2); len(got) != 2 {
		t.Fatalf("consumed %q", got)
	}
	nodes := map[int32]*Node{1: one, 2: two}
	coordinator := func() int32 {
		t.Helper()
		at := kadm.NewClient(c.client(one)).FindGroupCoordinators(t.Context(), "readers")["readers"]
		if at.Err != nil {
			t.Fatal(at.Err)
		}
		return at.NodeID
	}
	was := coordinator()
	topic, _ := one.set.Topic(group.Topic)
	id := partition.ID{Topic: group.Topic, Index: shard.PartitionOf("readers", len(topic.Partitions))}

	if _, err := nodes[was].set.Move(t.Context(), []partition.ID{id}, streamstore.NodeID(3-was)); err != nil {
		t.Fatal(err)
	}
	if now := coordinator(); now != 3-was {
		t.Fatalf("the group is at node %d, want %d", now, 3-was)
	}
	offsets := kmsg.NewPtrOffsetFetchRequest()
	offsets.Group = "readers"
	offsets.Groups = []kmsg.OffsetFetchRequestGroup{{Group: "readers"}}
	resp, err := c.client(nodes[was]).Broker(int(was)).Request(t.Context(), offsets)
	if err != nil {
		t.Fatal(err)
	}
	if code := resp.(*kmsg.OffsetFetchResponse).Groups[0].ErrorCode; code != kerr.NotCoordinator.Code {
		t.Errorf("the node that the group left answers %v", kerr.ErrorForCode(code))
	}
	committed, err := kadm.NewClient(c.client(one)).FetchOffsets(t.Context(), "readers")
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	committed.Each(func(o kadm.OffsetResponse) { sum += max(0, o.At) })
	if sum != 2 {
		t.Errorf("committed up to %d in all after the move, want 2", sum)
	}
	if got := c.consume(one, "events", "others", 2); len(got) != 2 {
		t.Errorf("consumed %q after the move", got)
	}
}

// A node that is asked for a partition of another one says who leads it and where.
func TestWrongNodeNamesTheLeader(t *testing.T) {
	t.Parallel() // mostly waits
	c := &cluster{t: t, data: t.TempDir(), objects: t.TempDir(), metadata: lab.Postgres(t)}
	one, two := c.open(1), c.open(2)
	topic, err := two.set.CreateTopic(t.Context(), metadata.NewTopic{Name: "events", Partitions: 1, Leaders: []streamstore.NodeID{2}})
	if err != nil {
		t.Fatal(err)
	}
	fetch := kmsg.NewPtrFetchRequest()
	fetch.MaxBytes = 1 << 20
	ft := kmsg.NewFetchRequestTopic()
	ft.Topic, ft.TopicID = topic.Name, topic.ID
	fp := kmsg.NewFetchRequestTopicPartition()
	fp.PartitionMaxBytes = 1 << 20
	ft.Partitions = append(ft.Partitions, fp)
	fetch.Topics = append(fetch.Topics, ft)
	fetched, err := fetch.RequestWith(t.Context(), c.client(one).Broker(1))
	if err != nil {
		t.Fatal(err)
	}
	if p := fetched.Topics[0].Partitions[0]; p.ErrorCode != kerr.NotLeaderForPartition.Code || p.CurrentLeader.LeaderID != 2 || p.CurrentLeader.LeaderEpoch != 0 {
		t.Errorf("fetch: %+v", p)
	}
	if len(fetched.Brokers) != 1 || fetched.Brokers[0].NodeID != 2 || fmt.Sprintf("%s:%d", fetched.Brokers[0].Host, fetched.Brokers[0].Port) != two.KafkaAddr() {
		t.Errorf("fetch: brokers %+v, want node 2 at %s", fetched.Brokers, two.KafkaAddr())
	}
	produce := kmsg.NewPtrProduceRequest()
	produce.Acks, produce.TimeoutMillis = -1, 1000
	pt := kmsg.NewProduceRequestTopic()
	pt.Topic, pt.TopicID = topic.Name, topic.ID
	pt.Partitions = []kmsg.ProduceRequestTopicPartition{{Records: []byte("never looked at")}}
	produce.Topics = append(produce.Topics, pt)
	produced, err := produce.RequestWith(t.Context(), c.client(one).Broker(1))
	if err != nil {
		t.Fatal(err)
	}
	if p := produced.Topics[0].Partitions[0]; p.ErrorCode != kerr.NotLeaderForPartition.Code || p.CurrentLeader.LeaderID != 2 {
		t.Errorf("produce: %+v", p)
	}
	if len(produced.Brokers) != 1 || produced.Brokers[0].NodeID != 2 {
		t.Errorf("produce: brokers %+v", produced.Brokers)
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
