package partition

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/streamstore"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

// nodes are several on one PostgreSQL and one bucket, which reach each other by calls.
type nodes struct {
	t      *testing.T
	url    string
	bucket *objectstore.Memory
	cfg    Config

	mu   sync.Mutex
	live map[streamstore.NodeID]*member // guarded by mu
}

// member is one life of a node.
type member struct {
	*Set
	store *streamstore.Store
	way   *objectstore.Faulty // to the bucket
	dead  bool
}

func newNodes(t *testing.T, n int) (*nodes, []*member) {
	t.Helper()
	c := &nodes{t: t, url: lab.Postgres(t), bucket: objectstore.NewMemory(), cfg: Config{RetentionInterval: -1, ProbeInterval: 50 * time.Millisecond}, live: map[streamstore.NodeID]*member{}}
	var all []*member
	for id := range n {
		all = append(all, c.start(streamstore.NodeID(id+1)))
	}
	return c, all
}

func (c *nodes) start(id streamstore.NodeID) *member {
	c.t.Helper()
	ctx, log := c.t.Context(), slog.New(slog.DiscardHandler)
	meta, err := metadata.Open(ctx, c.url, log)
	if err != nil {
		c.t.Fatal(err)
	}
	m := &member{way: objectstore.NewFaulty(c.bucket, objectstore.Faults{})}
	if m.store, err = streamstore.Open(ctx, streamstore.Config{WALLinger: time.Millisecond, CleanInterval: time.Hour}, id, m.way, meta, meta, log); err != nil {
		c.t.Fatal(err)
	}
	cfg := c.cfg
	cfg.Peers = c
	if m.Set, err = OpenSet(ctx, cfg, m.store, meta, log); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if m.dead {
			cancel()
		}
		m.Set.Close(ctx)
		m.store.Close(ctx)
		meta.Close()
	})
	if err := meta.AnnounceNode(ctx, m.store.Node(), metadata.NodeAddress{Kafka: fmt.Sprintf("kafka:%d", id), HTTP: fmt.Sprintf("http:%d", id)}); err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	c.live[id] = m
	others := c.live
	c.mu.Unlock()
	for _, o := range others {
		if err := o.Sync(ctx); err != nil {
			c.t.Fatal(err)
		}
	}
	return m
}

// kill takes a node from the others and from the bucket.
func (c *nodes) kill(id streamstore.NodeID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live[id].way.Cut(true)
	c.live[id].dead = true
	delete(c.live, id)
}

func (c *nodes) at(m metadata.Member) (*member, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o := c.live[m.ID]; o != nil && o.store.Node() == m.Node {
		return o, nil
	}
	return nil, fmt.Errorf("node %d does not answer", m.ID)
}

func (c *nodes) Alive(_ context.Context, m metadata.Member) bool {
	_, err := c.at(m)
	return err == nil
}

func (c *nodes) Sync(ctx context.Context, m metadata.Member) error {
	o, err := c.at(m)
	if err != nil {
		return err
	}
	return o.Set.Sync(ctx)
}

func (c *nodes) Read(ctx context.Context, m metadata.Member, id ID, from int64, maxBytes int, isolation Isolation) (ReadResult, error) {
	o, err := c.at(m)
	if err != nil {
		return ReadResult{}, err
	}
	p, err := o.Partition(id.Topic, id.Index)
	if err != nil {
		return ReadResult{}, err
	}
	if maxBytes == 0 {
		from = p.Offsets().HighWatermark
	}
	return p.Read(ctx, from, maxBytes, isolation)
}

func (c *nodes) AppendDeadLetters(ctx context.Context, m metadata.Member, id ID, sourceTopic uuid.UUID, sourcePartition int32, letters []DeadLetter) error {
	o, err := c.at(m)
	if err != nil {
		return err
	}
	p, err := o.Partition(id.Topic, id.Index)
	if err != nil {
		return err
	}
	return p.AppendDeadLetters(ctx, sourceTopic, sourcePartition, letters)
}

func (m *member) create(t *testing.T, name string, partitions int, leaders ...streamstore.NodeID) metadata.Topic {
	t.Helper()
	topic, err := m.CreateTopic(t.Context(), metadata.NewTopic{Name: name, Partitions: partitions, Leaders: leaders})
	if err != nil {
		t.Fatal(err)
	}
	return topic
}

func (m *member) partition(t *testing.T, name string, index int32) *Partition {
	t.Helper()
	p, err := m.Partition(name, index)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// until waits for a condition.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(invariant.Patience(2 * time.Minute)); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within two minutes: %s", what)
		}
	}
}

// What one node creates, changes and deletes is so at the other, which leads its share.
func TestClusterHasTheSameTopics(t *testing.T) {
	_, all := newNodes(t, 2)
	one, two := all[0], all[1]
	topic := one.create(t, "t", 4)
	leads := map[streamstore.NodeID]int{}
	for _, p := range topic.Partitions {
		leads[p.Leader]++
	}
	if leads[1] != 2 || leads[2] != 2 {
		t.Fatalf("4 partitions are led %v", leads)
	}
	for _, p := range topic.Partitions {
		here, there := all[p.Leader-1], all[2-p.Leader]
		mustAppend(t, here.partition(t, "t", p.Index), produced{values: []string{"v"}})
		if _, err := there.Partition("t", p.Index); !errors.Is(err, ErrNotLeader) {
			t.Errorf("partition %d at the node that does not lead it: %v", p.Index, err)
		}
		log, err := there.Log(t.Context(), ID{"t", p.Index})
		if err != nil || log.Offsets().HighWatermark != 1 {
			t.Fatalf("log of partition %d from elsewhere: %+v, %v", p.Index, log, err)
		}
		if r, err := log.Read(t.Context(), 0, 1<<20, ReadCommitted); err != nil || len(r.Batches) != 1 {
			t.Errorf("log of partition %d from elsewhere: %+v, %v", p.Index, r, err)
		}
	}
	if _, err := two.AlterConfig(t.Context(), "t", map[string]string{"retention.ms": "77"}, nil); err != nil {
		t.Fatal(err)
	}
	for _, n := range all {
		for index := range n.Led("t") {
			if got := n.partition(t, "t", index).Config().RetentionMillis; got != 77 {
				t.Errorf("node %d partition %d: retention %d", n.Node().ID, index, got)
			}
		}
	}
	if _, err := two.CreatePartitions(t.Context(), "t", 6); err != nil {
		t.Fatal(err)
	}
	if a, b := one.Led("t"), two.Led("t"); len(a) != 3 || len(b) != 3 {
		t.Errorf("6 partitions are led %v and %v", a, b)
	}
	if err := one.DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	if _, ok := two.Topic("t"); ok {
		t.Error("the deleted topic is still there at the other node")
	}
	if _, err := two.CreateTopic(t.Context(), metadata.NewTopic{Name: "t", Partitions: 1}); err != nil {
		t.Errorf("create it anew at the other node: %v", err)
	}
	one.create(t, "internal", 1)
	if again, err := two.EnsureInternal(t.Context(), metadata.NewTopic{Name: "internal", Partitions: 3}); err != nil || len(again.Partitions) != 1 {
		t.Errorf("an internal topic is once in the cluster: %+v, %v", again, err)
	}
}

// A change is followed without anybody being told.
func TestChangesAreFollowed(t *testing.T) {
	c := &nodes{t: t, url: lab.Postgres(t), bucket: objectstore.NewMemory(), live: map[streamstore.NodeID]*member{}}
	one, two := c.start(1), c.start(2)
	c.mu.Lock()
	delete(c.live, 2) // it is not told, nor asked
	c.mu.Unlock()
	one.create(t, "t", 2, 2, 1)
	until(t, "the other node leads its partition", func() bool { return len(two.Led("t")) == 1 })
	mustAppend(t, two.partition(t, "t", 0), produced{values: []string{"v"}})
	if err := one.DeleteTopic(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	until(t, "the topic is gone at the other node", func() bool { _, ok := two.Topic("t"); return !ok })
}

// A partition goes to and fro under an idempotent producer, which repeats what it got no answer
// for: every batch is in the log once, offsets are dense, leader epochs rise.
func TestMovesLoseAndDoubleNothing(t *testing.T) {
	_, all := newNodes(t, 2)
	all[0].create(t, "t", 2, 1)
	const batches = 200
	at := func() *Partition { // as a client finds it
		var p *Partition
		until(t, "somebody leads the partition", func() bool {
			for _, n := range all {
				if found, err := n.Partition("t", 0); err == nil && found.Err() == nil {
					p = found
					return true
				}
			}
			return false
		})
		return p
	}
	done := make(chan struct{})
	sent := make(chan struct{}, batches)
	go func() {
		defer close(done)
		for i := range batches {
			for {
				ch, err := send(t, at(), produced{producer: 7, sequence: int32(i), values: []string{fmt.Sprint(i)}})
				if err == nil {
					err = (<-ch).err
				}
				if err == nil {
					break
				}
				if !errors.Is(err, ErrNotLeader) {
					t.Errorf("batch %d: %v", i, err)
					return
				}
			}
			sent <- struct{}{}
		}
	}()
	const moves = 20
	for i := range moves {
		for range batches / moves / 2 { // there is something new each time
			select {
			case <-sent:
			case <-done:
			}
		}
		from, to := all[i%2], all[1-i%2]
		if _, err := from.Move(t.Context(), []ID{{"t", 0}}, to.Node().ID); err != nil {
			t.Fatalf("move %d: %v", i, err)
		}
		if _, err := from.Partition("t", 0); !errors.Is(err, ErrNotLeader) {
			t.Fatalf("move %d: the old leader says %v", i, err)
		}
		if p := to.partition(t, "t", 0); p.Err() != nil || p.LeaderEpoch() != int32(i+1) {
			t.Fatalf("move %d: the new leader has epoch %d, %v", i, p.LeaderEpoch(), p.Err())
		}
	}
	<-done
	records := readAll(t, at(), 0)
	if len(records) != batches {
		t.Fatalf("%d records, want %d", len(records), batches)
	}
	for i, r := range records {
		if string(r.Value) != fmt.Sprint(i) {
			t.Fatalf("offset %d holds %s", i, r.Value)
		}
	}
	// The last five batches of the producer are known wherever the partition went.
	if base := mustAppend(t, at(), produced{producer: 7, sequence: batches - 1, values: []string{fmt.Sprint(batches - 1)}}); base != batches-1 {
		t.Errorf("a repeat after the moves is at %d, want %d", base, batches-1)
	}
}

// A move that cannot be finished leaves the partition where it was, in a new epoch, with all
// its records.
func TestUnfinishedMoveGoesBack(t *testing.T) {
	_, all := newNodes(t, 2)
	one := all[0]
	one.create(t, "t", 1, 1)
	mustAppend(t, one.partition(t, "t", 0), produced{values: []string{"a"}})
	if err := one.partition(t, "t", 0).checkpoint(t.Context()); err != nil { // or the move would end there
		t.Fatal(err)
	}
	one.way.Cut(true)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := one.Move(ctx, []ID{{"t", 0}}, 2); err == nil {
		t.Fatal("moved without the bucket")
	}
	one.way.Cut(false)
	until(t, "the partition is served again", func() bool {
		p, err := one.Partition("t", 0)
		return err == nil && p.Err() == nil
	})
	p := one.partition(t, "t", 0)
	if p.LeaderEpoch() != 1 {
		t.Errorf("leader epoch %d, want 1", p.LeaderEpoch())
	}
	mustAppend(t, p, produced{values: []string{"b"}})
	wantValues(t, p, 0, "a", "b")
	if _, err := one.Move(t.Context(), []ID{{"t", 0}}, 2); err != nil {
		t.Fatal(err)
	}
	wantValues(t, all[1].partition(t, "t", 0), 0, "a", "b")
}

// What a dead node leads moves once it is recovered, not before, and nothing moves to a dead
// node. When it starts again it leads what metadata still assigns to it, and no more.
func TestMoveFromADeadNode(t *testing.T) {
	c, all := newNodes(t, 3)
	one, two := all[0], all[1]
	one.create(t, "t", 2, 1)
	for i := range int32(2) {
		mustAppend(t, one.partition(t, "t", i), produced{values: []string{fmt.Sprint(i)}})
	}
	if _, err := two.Move(t.Context(), []ID{{"t", 0}}, 3); !errors.Is(err, ErrNotLeader) {
		t.Errorf("moved by a node that does not lead it: %v", err)
	}
	c.kill(1)
	until(t, "the others know", func() bool { return !two.Lives(1) })
	if _, err := two.Move(t.Context(), []ID{{"t", 0}}, 2); !errors.Is(err, ErrNotLeader) {
		t.Errorf("moved from a dead node: %v", err)
	}
	if _, err := two.store.Recover(t.Context(), 1, nil); err != nil {
		t.Fatal(err)
	}
	if err := two.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := two.Move(t.Context(), []ID{{"t", 0}}, 1); !errors.Is(err, ErrNodeAway) {
		t.Errorf("moved to a dead node: %v", err)
	}
	if _, err := two.Move(t.Context(), []ID{{"t", 0}}, 3); err != nil {
		t.Fatal(err)
	}
	wantValues(t, all[2].partition(t, "t", 0), 0, "0")
	one = c.start(1)
	if led := one.Led("t"); len(led) != 1 || led[1] != 1 {
		t.Fatalf("the node that came back leads %v", led)
	}
	wantValues(t, one.partition(t, "t", 1), 0, "1")
	mustAppend(t, all[2].partition(t, "t", 0), produced{values: []string{"more"}})
}

// A node that writes nothing hears from the change log that another has recovered it, or that it was started again, and ends; nobody
// else does.
func TestIdleNodeHearsThatItWasReplaced(t *testing.T) {
	c, all := newNodes(t, 3)
	all[0].create(t, "t", 1, 1)
	ends := func(m *member) {
		t.Helper()
		select {
		case <-m.store.Fenced():
			if err := m.store.Err(); !errors.Is(err, streamstore.ErrNodeFenced) {
				t.Errorf("node %d ended: %v", m.store.Node().ID, err)
			}
		case <-time.After(invariant.Patience(2 * time.Minute)):
			t.Fatalf("node %d does not hear of it", m.store.Node().ID)
		}
	}
	if _, err := all[1].store.Recover(t.Context(), 1, nil); err != nil {
		t.Fatal(err)
	}
	ends(all[0])
	c.kill(1)
	again := c.start(3)
	ends(all[2])
	if err := again.store.Err(); err != nil {
		t.Errorf("the later life ended: %v", err)
	}
	if err := all[1].Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := all[1].store.Err(); err != nil {
		t.Errorf("the node that recovered it ended: %v", err)
	}
}

// Dead letters go to whoever leads their partition, once, whatever moves meanwhile.
func TestDeadLettersAcrossNodes(t *testing.T) {
	_, all := newNodes(t, 2)
	all[0].create(t, "t.dlq", 1, 2)
	source := uuid.New()
	id := ID{"t.dlq", 0}
	for i, n := range []*member{all[0], all[1], all[0]} {
		if err := n.AppendDeadLetters(t.Context(), id, source, 0, letters(3, int64(4+i))); err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			if _, err := all[1].Move(t.Context(), []ID{id}, 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	wantValues(t, all[0].partition(t, "t.dlq", 0), 0, "3", "4", "5", "6")
}
