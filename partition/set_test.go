package partition

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/record"
	"github.com/tabletopic/tabletopic/streamstore"
)

// cluster is a bucket and a metadata store that outlive the nodes of a test.
type cluster struct {
	t      testing.TB
	bucket *objectstore.Memory
	meta   *metadata.Store
	cfg    Config
	wal    streamstore.Config
	faults objectstore.Faults
	now    *objectstore.Faulty // the way to the bucket of the life that runs
	life   *node
}

func newCluster(t testing.TB) *cluster {
	t.Helper()
	meta, err := metadata.Open(context.Background(), "sqlite::memory:", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { meta.Close() })
	return &cluster{t: t, bucket: objectstore.NewMemory(), meta: meta, cfg: Config{RetentionInterval: -1},
		wal: streamstore.Config{WALLinger: time.Millisecond}}
}

// node is one life of a node.
type node struct {
	*Set
	store   *streamstore.Store
	crashed bool
}

// start begins a life. Without a stop before, the life before crashes: it reaches the bucket
// no more.
func (c *cluster) start() *node {
	c.t.Helper()
	ctx := context.Background()
	if c.now != nil {
		c.now.Cut(true)
		c.life.crashed = true
	}
	c.faults.Seed++
	c.now = objectstore.NewFaulty(c.bucket, c.faults)
	store, err := streamstore.Open(ctx, c.wal, 1, c.now, c.meta, c.meta, slog.New(slog.DiscardHandler))
	if err != nil {
		c.t.Fatal(err)
	}
	set, err := OpenSet(ctx, c.cfg, store, c.meta, slog.New(slog.DiscardHandler))
	if err != nil {
		c.t.Fatal(err)
	}
	n := &node{Set: set, store: store}
	c.life = n
	c.t.Cleanup(n.stop)
	return n
}

// stop ends a life in order. One that lost the bucket cannot, and is given up.
func (n *node) stop() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if n.crashed {
		cancel()
	}
	n.Set.Close(ctx)
	n.store.Close(ctx)
}

func (n *node) create(t testing.TB, name string, partitions int, config map[string]string) *Partition {
	t.Helper()
	if _, err := n.CreateTopic(context.Background(), metadata.NewTopic{Name: name, Partitions: partitions, Config: config}); err != nil {
		t.Fatal(err)
	}
	return n.partition(t, name, 0)
}

func (n *node) partition(t testing.TB, name string, index int32) *Partition {
	t.Helper()
	p, err := n.Partition(name, index)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// produced is a batch as a client sends it.
type produced struct {
	producer int64 // none if 0
	epoch    int16
	sequence int32
	values   []string
	records  []record.Record // instead of values
	codec    record.Codec
	attr     func(*record.BatchOptions)
}

func (b produced) bytes(t testing.TB) []byte {
	t.Helper()
	records := b.records
	for _, v := range b.values {
		records = append(records, record.Record{Timestamp: time.Now().UnixMilli(), Key: []byte("k"), Value: []byte(v)})
	}
	o := record.BatchOptions{Codec: b.codec}
	if b.producer != 0 {
		o.Idempotent, o.ProducerID, o.ProducerEpoch, o.BaseSequence = true, b.producer, b.epoch, b.sequence
	}
	if b.attr != nil {
		b.attr(&o)
	}
	data, err := record.AppendBatch(nil, o, records)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

type answer struct {
	AppendResult
	err error
}

// send appends and returns where the answer will come.
func send(t testing.TB, p *Partition, b produced) (<-chan answer, error) {
	t.Helper()
	ch := make(chan answer, 1)
	err := p.Append(context.Background(), b.bytes(t), func(r AppendResult, err error) { ch <- answer{r, err} })
	return ch, err
}

// mustAppend appends, waits and returns the base offset.
func mustAppend(t testing.TB, p *Partition, b produced) int64 {
	t.Helper()
	ch, err := send(t, p, b)
	if err != nil {
		t.Fatal(err)
	}
	a := <-ch
	if a.err != nil {
		t.Fatal(a.err)
	}
	return a.BaseOffset
}

func wantRefused(t testing.TB, p *Partition, b produced, want error) {
	t.Helper()
	if _, err := send(t, p, b); !errors.Is(err, want) {
		t.Fatalf("append: %v, want %v", err, want)
	}
}

// readAll returns all records from an offset on, and checks that offsets have no gap.
func readAll(t testing.TB, p *Partition, from int64) []record.Record {
	t.Helper()
	var all []record.Record
	var rd record.Reader
	for {
		r, err := p.Read(context.Background(), from, 64<<10, ReadCommitted)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Batches) == 0 {
			return all
		}
		for _, b := range r.Batches {
			if err := b.Check(); err != nil {
				t.Fatal(err)
			}
			if err := rd.Reset(b); err != nil {
				t.Fatal(err)
			}
			for {
				var rec record.Record
				ok, err := rd.Next(&rec)
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					break
				}
				if rec.Offset < from {
					continue
				}
				if rec.Offset != from {
					t.Fatalf("offset %d follows %d", rec.Offset, from-1)
				}
				from++
				rec.Key, rec.Value = bytes.Clone(rec.Key), bytes.Clone(rec.Value)
				all = append(all, rec)
			}
		}
	}
}

func values(records []record.Record) string {
	var s []string
	for _, r := range records {
		s = append(s, string(r.Value))
	}
	return fmt.Sprint(s)
}

func wantValues(t testing.TB, p *Partition, from int64, want ...string) {
	t.Helper()
	if got := values(readAll(t, p, from)); got != fmt.Sprint(want) {
		t.Fatalf("from %d: %s, want %v", from, got, want)
	}
}

// What was acknowledged before a crash, or a clean stop, is read after it, and appends go on
// behind it in a new leader epoch.
func TestRecordsSurviveRestart(t *testing.T) {
	for _, clean := range []bool{true, false} {
		t.Run(fmt.Sprintf("clean=%v", clean), func(t *testing.T) {
			c := newCluster(t)
			n := c.start()
			p := n.create(t, "t", 2, map[string]string{"retention.ms": "-1"})
			if base := mustAppend(t, p, produced{values: []string{"a", "b"}}); base != 0 {
				t.Fatalf("base %d, want 0", base)
			}
			mustAppend(t, n.partition(t, "t", 1), produced{values: []string{"x"}, codec: record.CodecZstd})
			if clean {
				n.stop()
			}
			old := c.now
			n = c.start()
			p2 := n.partition(t, "t", 0)
			if p2.LeaderEpoch() != p.LeaderEpoch()+1 {
				t.Fatalf("leader epoch %d after %d, want one more", p2.LeaderEpoch(), p.LeaderEpoch())
			}
			if p2.Config().RetentionMillis != -1 {
				t.Fatal("the topic's configuration is lost")
			}
			wantValues(t, p2, 0, "a", "b")
			wantValues(t, n.partition(t, "t", 1), 0, "x")
			if base := mustAppend(t, p2, produced{values: []string{"c"}}); base != 2 {
				t.Fatalf("base %d, want 2", base)
			}
			wantValues(t, p2, 1, "b", "c")
			for epoch, want := range map[int32]int64{p.LeaderEpoch(): 2, p2.LeaderEpoch(): 3} {
				if e, end := p2.EndOffsetForLeaderEpoch(epoch); e != epoch || end != want {
					t.Errorf("end of epoch %d: %d, %d, want %d", epoch, e, end, want)
				}
			}
			if !clean {
				// The life before wakes up, and was fenced by the new one: it acknowledges nothing more.
				old.Cut(false)
				ch, err := send(t, p, produced{values: []string{"zombie"}})
				if err == nil {
					err = (<-ch).err
				}
				if !errors.Is(err, ErrNotLeader) {
					t.Fatalf("append by the fenced life: %v, want ErrNotLeader", err)
				}
				wantRefused(t, p, produced{values: []string{"zombie"}}, ErrNotLeader)
			}
		})
	}
}

// Topics are created, changed and deleted; a watcher sees the ones present and then every
// change, in order.
func TestTopicsAndWatch(t *testing.T) {
	ctx := context.Background()
	c := newCluster(t)
	n := c.start()
	n.create(t, "before", 1, nil)
	events := make(chan Event, 100)
	cancel := n.Watch(func(e Event) { events <- e })
	want := func(kind EventKind, name string) Event {
		t.Helper()
		e := <-events
		if e.Kind != kind || e.Topic.Name != name {
			t.Fatalf("event %d of %s, want %d of %s", e.Kind, e.Topic.Name, kind, name)
		}
		return e
	}
	want(TopicCreated, "before")
	p := n.create(t, "a.b", 1, nil)
	want(TopicCreated, "a.b")
	if _, err := n.CreatePartitions(ctx, "a.b", 3); err != nil {
		t.Fatal(err)
	}
	if e := want(TopicChanged, "a.b"); len(e.Topic.Partitions) != 3 {
		t.Fatalf("%d partitions, want 3", len(e.Topic.Partitions))
	}
	if n.partition(t, "a.b", 0) != p {
		t.Fatal("a new partition took the place of an old one")
	}
	mustAppend(t, n.partition(t, "a.b", 2), produced{values: []string{"v"}})
	if _, err := n.AlterConfig(ctx, "a.b", map[string]string{"automq.table.topic.enable": "true"}, nil); err != nil {
		t.Fatal(err)
	}
	if e := want(TopicChanged, "a.b"); e.Topic.Config["table.topic.enable"] != "true" || !p.Config().Table.Enable {
		t.Fatalf("the alias did not set table.topic.enable: %v", e.Topic.Config)
	}
	if _, err := n.AlterConfig(ctx, "a.b", nil, []string{"table.topic.enable"}); err != nil || p.Config().Table.Enable {
		t.Fatalf("remove: %v, still set: %v", err, p.Config().Table.Enable)
	}
	want(TopicChanged, "a.b")

	for _, bad := range []struct {
		topic metadata.NewTopic
		want  error
	}{
		{metadata.NewTopic{Name: "a_b", Partitions: 1}, ErrInvalidTopicName},
		{metadata.NewTopic{Name: "..", Partitions: 1}, ErrInvalidTopicName},
		{metadata.NewTopic{Name: "a.b", Partitions: 1}, metadata.ErrTopicExists},
		{metadata.NewTopic{Name: "c", Partitions: 1<<31 - 1}, ErrInvalidPartitions},
		{metadata.NewTopic{Name: "c", Partitions: 0}, ErrInvalidPartitions},
		{metadata.NewTopic{Name: "c", Partitions: 1, Config: map[string]string{"retention.msec": "1"}}, ErrInvalidConfig},
	} {
		if _, err := n.CreateTopic(ctx, bad.topic); !errors.Is(err, bad.want) {
			t.Errorf("create %+v: %v, want %v", bad.topic, err, bad.want)
		}
	}
	if _, err := n.CreatePartitions(ctx, "a.b", 2); !errors.Is(err, ErrInvalidPartitions) {
		t.Errorf("fewer partitions: %v, want ErrInvalidPartitions", err)
	}
	if _, err := n.AlterConfig(ctx, "a.b", map[string]string{"retention.ms": "x"}, nil); !errors.Is(err, ErrInvalidConfig) {
		t.Errorf("bad value: %v, want ErrInvalidConfig", err)
	}

	if err := n.DeleteTopic(ctx, "a.b"); err != nil {
		t.Fatal(err)
	}
	want(TopicDeleted, "a.b")
	wantRefused(t, p, produced{values: []string{"v"}}, ErrNotLeader)
	if _, err := n.Partition("a.b", 0); !errors.Is(err, ErrUnknownTopicOrPartition) {
		t.Errorf("partition of a deleted topic: %v", err)
	}
	again := n.create(t, "a.b", 1, nil)
	if again.TopicID() == p.TopicID() || again.Offsets().HighWatermark != 0 {
		t.Error("a topic that was deleted and made again is not new")
	}
	want(TopicCreated, "a.b")
	cancel()
	n.stop()
	n = c.start()
	if got := len(n.Topics()); got != 2 {
		t.Fatalf("%d topics after the restart, want 2", got)
	}
}

// A thousand partitions are taken over in two transactions: one raises the leader epochs, one
// opens the streams.
func TestTakesOverInTwoTransactions(t *testing.T) {
	ctx := context.Background()
	c := newCluster(t)
	n := c.start()
	mustAppend(t, n.create(t, "many", 1000, nil), produced{values: []string{"v"}})
	n.stop()
	store, err := streamstore.Open(ctx, c.wal, 1, c.bucket, c.meta, c.meta, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close(ctx)
	changes := func() int {
		t.Helper()
		all, err := c.meta.Changes(ctx, 0, 100_000)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[metadata.ChangeKind]int{}
		for _, change := range all {
			seen[change.Kind]++
		}
		return seen[metadata.ChangeNode] + seen[metadata.ChangeTopic] + seen[metadata.ChangeStream]
	}
	before := changes()
	set, err := OpenSet(ctx, c.cfg, store, c.meta, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close(ctx)
	if got := changes() - before; got != 2 {
		t.Fatalf("%d transactions, want 2", got)
	}
	p, err := set.Partition("many", 0)
	if err != nil {
		t.Fatal(err)
	}
	wantValues(t, p, 0, "v")
}

func BenchmarkOpen10000(b *testing.B) {
	c := newCluster(b)
	n := c.start()
	mustAppend(b, n.create(b, "many", 10_000, nil), produced{values: []string{"v"}})
	for b.Loop() {
		c.start()
	}
}

// A partition whose log is damaged is not served; all others are.
func TestDamagedPartitionStopsNoOther(t *testing.T) {
	c := newCluster(t)
	objects := func() []string {
		page, err := c.bucket.List(t.Context(), "data/", "")
		if err != nil {
			t.Fatal(err)
		}
		var keys []string
		for _, o := range page {
			keys = append(keys, o.Key)
		}
		return keys
	}
	n := c.start()
	mustAppend(t, n.create(t, "damaged", 1, nil), produced{values: []string{"gone"}})
	n.stop()
	first := objects()
	n = c.start()
	mustAppend(t, n.create(t, "sound", 1, nil), produced{values: []string{"kept"}})
	n.stop()
	lost := map[string][]byte{}
	for _, key := range first {
		data, err := c.bucket.Get(t.Context(), key, 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		lost[key] = data
	}
	if err := c.bucket.Delete(t.Context(), first...); err != nil {
		t.Fatal(err)
	}
	n = c.start()
	wantValues(t, n.partition(t, "sound", 0), 0, "kept")
	damaged := n.partition(t, "damaged", 0)
	if _, err := damaged.Read(t.Context(), 0, 1<<20, ReadUncommitted); !errors.Is(err, ErrDamaged) {
		t.Errorf("read: %v", err)
	}
	wantRefused(t, damaged, produced{values: []string{"more"}}, ErrDamaged)
	n.stop()
	for key, data := range lost {
		if err := c.bucket.Put(t.Context(), key, data); err != nil {
			t.Fatal(err)
		}
	}
	wantValues(t, c.start().partition(t, "damaged", 0), 0, "gone") // whole again once the objects are back
}

// Table settings that the node cannot serve are refused when they are set, and only then.
func TestTableSettingsAreChecked(t *testing.T) {
	c := newCluster(t)
	c.cfg.CheckTable = func(topic string, cfg TableConfig) error {
		if cfg.Catalog != "" {
			return fmt.Errorf("topic %s: no catalog %q", topic, cfg.Catalog)
		}
		return nil
	}
	n := c.start()
	wrong := map[string]string{"table.topic.catalog": "lake"}
	_, err := n.CreateTopic(t.Context(), metadata.NewTopic{Name: "a", Partitions: 1, Config: wrong})
	if !errors.Is(err, ErrInvalidConfig) || !strings.Contains(err.Error(), `topic a: no catalog "lake"`) {
		t.Errorf("create: %v", err)
	}
	if _, err := n.CreateTopic(t.Context(), metadata.NewTopic{Name: "a", Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.AlterConfig(t.Context(), "a", wrong, nil); !errors.Is(err, ErrInvalidConfig) {
		t.Errorf("alter: %v", err)
	}
	if topic, _ := n.Topic("a"); len(topic.Config) != 0 {
		t.Errorf("configuration is %v after a refusal", topic.Config)
	}
}
