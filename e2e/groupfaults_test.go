package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tabletopic/tabletopic/e2e/history"
)

// Two servers, and a store that misbehaves: a group whose coordinator assigns (KIP-848) and a share group (KIP-932) read what
// idempotent producers write, while now one server is killed and now both at once. Clients are told nothing that they may not be
// told, both groups get all, and when the servers have lost their disks both are where they were: one has the offsets that it had
// committed, and the other gives out nothing again that was accepted.
func TestGroupsOfTheCoordinatorOutliveAllServers(t *testing.T) {
	t.Parallel() // mostly waits
	length := 25 * time.Second
	if os.Getenv("TABLETOPIC_SOAK") != "" {
		length = 15 * time.Minute
	}
	c := newChaos(t, uint64(time.Now().UnixNano()), 2, "--group-consumer-heartbeat-interval", "500ms", "--group-consumer-min-heartbeat-interval", "500ms", "--group-share-heartbeat-interval", "500ms")
	h := &histories{t: t, servers: c.servers, groups: []string{"watch"}}
	const partitions = 4
	topics := map[string]int32{"source": partitions}
	one := c.servers[0]
	if _, err := one.admin().CreateTopic(context.Background(), partitions, 1, nil, "source"); err != nil {
		t.Fatal(err)
	}
	one.groupConfig("takers", "share.auto.offset.reset", "earliest")
	one.groupConfig("takers", "share.record.lock.duration.ms", "5000") // of what was given to a client while its server died
	one.groupConfig("takers", "share.delivery.count.limit", "100")     // and so often

	producing, stop := context.WithCancel(context.Background())
	reading, leave := context.WithCancel(context.Background())
	defer leave()
	defer stop()
	var producers, readers sync.WaitGroup
	taken := &takings{values: map[string]int{}}
	for n := range c.servers {
		producers.Go(func() { h.produce(producing, fmt.Sprint("producer-", n)) })
		readers.Go(func() {
			h.watch(reading, fmt.Sprint("watcher-", n), kgo.ConsumeTopics("source"), kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()))
		})
		readers.Go(func() { taken.take(reading, h) })
	}
	readers.Go(func() { h.observe(reading, topics) })
	rounds := 0
	for end := time.Now().Add(length); time.Now().Before(end) || rounds < 2; rounds++ {
		c.round()
		c.killAll()
	}
	stop()
	producers.Wait()

	log := history.Log{}
	h.read(log, "source", readCommitted(t, one, "source", partitions))
	eventually(t, 5*time.Minute, "all is seen", func() error { return h.Unread("watch", "source", log) })
	shareGroupDone(t, one, "takers", partitions)
	leave()
	readers.Wait()
	h.observeAtLast(topics)
	records := 0
	for at, values := range log {
		for o, v := range values {
			records++
			if taken.times(v) == 0 {
				t.Errorf("the share group never got %q, in %s at %d", v, at, o)
			}
		}
	}
	committed := map[string]map[history.TopicPartition]int64{"watch": h.committed("watch")}
	for _, v := range h.Check(log, map[string][]string{"watch": {"source"}}, committed) {
		t.Errorf("%s: %s", v.Property, v.Text)
	}
	if records < 500 {
		t.Errorf("only %d records: too few to tell", records)
	}
	t.Logf("%s; %d of %d records given out again; %d kills in %d rounds; %s", h.Counts(), taken.again(), records, c.kills, rounds, c.store)

	c.loseDisks()
	again := history.Log{}
	h.read(again, "source", readCommitted(t, one, "source", partitions))
	for at, values := range log {
		if !maps.Equal(values, again[at]) {
			t.Errorf("%s has %d records after the disks were lost, %d before", at, len(again[at]), len(values))
		}
	}
	if diff := cmp.Diff(committed["watch"], h.committed("watch")); diff != "" {
		t.Errorf("committed offsets before and after the disks were lost (-before +after):\n%s", diff)
	}
	checkNothingComesAgain(t, h, partitions)
}

// takings are what members of a share group got, by value.
type takings struct {
	mu     sync.Mutex
	values map[string]int // guarded by mu
}

func (k *takings) times(value string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.values[value]
}

// again counts what came more than once.
func (k *takings) again() (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, times := range k.values {
		if times > 1 {
			n++
		}
	}
	return n
}

// take accepts all that it is given, as a member of the share group takers, until ctx ends.
func (k *takings) take(ctx context.Context, h *histories) {
	cl := h.client(kgo.ShareGroup("takers"), kgo.ConsumeTopics("source"))
	if cl == nil {
		return
	}
	defer cl.Close()
	for ctx.Err() == nil {
		fetches := cl.PollFetches(ctx)
		k.mu.Lock()
		fetches.EachRecord(func(r *kgo.Record) { k.values[string(r.Value)]++ })
		k.mu.Unlock()
		cl.MarkAcks(kgo.AckAccept)
		wait, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		_ = cl.FlushAcks(wait) // what is not confirmed comes again
		cancel()
	}
}

// checkNothingComesAgain produces one more record to each partition; it is all that the share group is given.
func checkNothingComesAgain(t *testing.T, h *histories, partitions int) {
	t.Helper()
	last := h.client(kgo.DefaultProduceTopic("source"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer last.Close()
	want := map[string]int{}
	for p := range partitions {
		v := fmt.Sprint("last ", p)
		want[v] = 1
		if err := last.ProduceSync(context.Background(), &kgo.Record{Partition: int32(p), Value: []byte(v)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	taking, leave := context.WithCancel(context.Background())
	defer leave()
	taken := &takings{values: map[string]int{}}
	var taker sync.WaitGroup
	taker.Go(func() { taken.take(taking, h) })
	eventually(t, 2*time.Minute, "the last records are given out", func() error {
		for v := range want {
			if taken.times(v) == 0 {
				return fmt.Errorf("not %q", v)
			}
		}
		return nil
	})
	leave()
	taker.Wait()
	if diff := cmp.Diff(want, taken.values); diff != "" {
		t.Errorf("what the share group was given after all was accepted and the disks were lost (-want +got):\n%s", diff)
	}
}
