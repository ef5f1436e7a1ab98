package broker

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/streamstore"
)

// A coldBroker serves topic t, whose records were written in an earlier life of the node: the
// bucket has them, in an object for each partition, and no cache.
type coldBroker struct {
	*testBroker
	topic  metadata.Topic
	bucket *objectstore.Faulty
}

const coldRecordBytes = 2000

func startCold(t *testing.T, partitions int, cfg streamstore.Config) *coldBroker {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	meta, err := metadata.Open(t.Context(), "sqlite::memory:", log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { meta.Close() })
	c := &coldBroker{bucket: objectstore.NewFaulty(objectstore.NewMemory(), objectstore.Faults{})}
	cfg.WALLinger, cfg.SplitBytes, cfg.CompactionInterval, cfg.MinorInterval, cfg.MajorInterval = time.Millisecond, 1, -1, -1, -1
	open := func() (*partition.Set, streamstore.Node, func()) {
		store, err := streamstore.Open(t.Context(), cfg, 1, c.bucket, meta, meta, log)
		if err != nil {
			t.Fatal(err)
		}
		set, err := partition.OpenSet(t.Context(), partition.Config{}, store, meta, log)
		if err != nil {
			t.Fatal(err)
		}
		var once sync.Once
		return set, store.Node(), func() {
			once.Do(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				if err := set.Close(ctx); err != nil {
					t.Errorf("close partitions: %v", err)
				}
				if err := store.Close(ctx); err != nil {
					t.Errorf("close store: %v", err)
				}
			})
		}
	}
	set, node, end := open()
	first := startOn(t, Config{}, set, meta, node)
	c.topic = first.topic(t, "t", partitions)
	w := first.dial(t)
	for p := range int32(partitions) {
		for range 3 {
			if code := w.ask(produceRequest(9, c.topic, p, -1, testBatch(t, 1, coldRecordBytes))).(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode; code != 0 {
				t.Fatal(kerr.ErrorForCode(code))
			}
		}
	}
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	end()
	set, node, end = open()
	t.Cleanup(end)
	c.testBroker = startOn(t, Config{}, set, meta, node)
	return c
}

// fetch asks for the partitions from the offsets on.
func (c *coldBroker) fetch(wait time.Duration, offsets map[int32]int64) *kmsg.FetchRequest {
	req := fetchRequest(12, c.topic, 0)
	req.MaxWaitMillis = int32(wait.Milliseconds())
	one := req.Topics[0].Partitions[0]
	req.Topics[0].Partitions = nil
	for p := range int32(len(offsets)) {
		one.Partition, one.FetchOffset = p, offsets[p]
		req.Topics[0].Partitions = append(req.Topics[0].Partitions, one)
	}
	return req
}

// sizes are the bytes of records of each partition in the answer.
func sizes(t *testing.T, resp kmsg.Response) (sizes []int) {
	t.Helper()
	for _, p := range resp.(*kmsg.FetchResponse).Topics[0].Partitions {
		if p.ErrorCode != 0 {
			t.Fatalf("partition %d: %v", p.Partition, kerr.ErrorForCode(p.ErrorCode))
		}
		sizes = append(sizes, len(p.RecordBatches))
	}
	return sizes
}

// A hold of every read of the bucket.
func (c *coldBroker) holdReads() *objectstore.Hold {
	return c.bucket.Hold(objectstore.Before, func(op objectstore.Op, _ string) bool { return op == objectstore.OpGet })
}

// While the bucket does not answer, a partition at the tail is read again and again beside one
// that must be read from it, by the same connection. When it answers, the next fetch has both.
func TestTailPartitionsDoNotWaitForColdOnes(t *testing.T) {
	c := startCold(t, 2, streamstore.Config{})
	hold := c.holdReads()
	consumer, producer := c.dial(t), c.dial(t)
	tail := int64(3)
	for range 5 {
		producer.ask(produceRequest(9, c.topic, 1, -1, testBatch(t, 1, 100)))
		req := c.fetch(time.Minute, map[int32]int64{0: 0, 1: tail})
		if got := sizes(t, consumer.ask(req)); got[0] != 0 || got[1] == 0 {
			t.Fatalf("%v bytes while the bucket does not answer, want some of the tail alone", got)
		}
		tail++
	}
	<-hold.Reached() // the read of partition 0 is under way, though each answer left without it
	hold.Release(nil)
	producer.ask(produceRequest(9, c.topic, 1, -1, testBatch(t, 1, 100)))
	eventually(t, "the cold partition is in an answer", func() bool {
		return sizes(t, consumer.ask(c.fetch(time.Minute, map[int32]int64{0: 0, 1: tail})))[0] > 0
	})
}

// A record that arrives at the tail ends the wait for a cold partition.
func TestNewRecordEndsTheWaitForColdOnes(t *testing.T) {
	c := startCold(t, 2, streamstore.Config{})
	hold := c.holdReads()
	defer hold.Release(nil)
	consumer, producer := c.dial(t), c.dial(t)
	req := c.fetch(time.Minute, map[int32]int64{0: 0, 1: 3})
	consumer.send(1, req)
	<-hold.Reached()
	producer.ask(produceRequest(9, c.topic, 1, -1, testBatch(t, 1, 100)))
	if got := sizes(t, consumer.receive(1, req)); got[0] != 0 || got[1] == 0 {
		t.Fatalf("%v bytes, want some of the tail alone", got)
	}
}

// A fetch whose records are all in the bucket has them, whatever its client would wait for new ones.
func TestColdFetchIsAnsweredWithRecords(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Minute} {
		c := startCold(t, 1, streamstore.Config{})
		if got := sizes(t, c.dial(t).ask(c.fetch(wait, map[int32]int64{0: 0}))); got[0] < 3*coldRecordBytes {
			t.Errorf("with a wait of %v: %v bytes, want three batches", wait, got)
		}
	}
}

// A bucket that does not answer does not hold up the answer for longer than the client waits, or
// coldWait.
func TestColdFetchIsAnsweredInTime(t *testing.T) {
	c := startCold(t, 1, streamstore.Config{})
	hold := c.holdReads()
	defer hold.Release(nil)
	if got := sizes(t, c.dial(t).ask(c.fetch(0, map[int32]int64{0: 0}))); got[0] != 0 {
		t.Errorf("%v bytes while the bucket does not answer", got)
	}
}

// inFlight counts the reads that a bucket has not answered.
type inFlight struct {
	mu   sync.Mutex
	keys map[string]int // guarded by mu
}

func (c *coldBroker) countReads() (*inFlight, *objectstore.Hold) {
	n := &inFlight{keys: make(map[string]int)}
	return n, c.bucket.Hold(objectstore.Before, func(op objectstore.Op, key string) bool {
		if op != objectstore.OpGet {
			return false
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.keys[key]++
		return true
	})
}

// The cold partitions of a fetch are read side by side, but not more than maxColdReads at a
// time; all of them have their turn.
func TestColdPartitionsAreReadSideBySide(t *testing.T) {
	const partitions = maxColdReads + 8
	c := startCold(t, partitions, streamstore.Config{})
	n, hold := c.countReads()
	w := c.dial(t)
	offsets := make(map[int32]int64)
	for p := range int32(partitions) {
		offsets[p] = 0
	}
	req := c.fetch(time.Minute, offsets)
	w.send(1, req)
	eventually(t, "reads side by side", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.keys) == maxColdReads
	})
	hold.Release(nil)
	seen := make(map[int32]bool)
	note := func(resp kmsg.Response) {
		for p, size := range sizes(t, resp) {
			if size > 0 {
				seen[int32(p)] = true
				offsets[int32(p)] = 3
			}
		}
	}
	note(w.receive(1, req))
	for range partitions {
		if len(seen) < partitions {
			note(w.ask(c.fetch(time.Minute, offsets)))
		}
	}
	if len(seen) != partitions {
		t.Fatalf("%d of %d partitions were answered", len(seen), partitions)
	}
}

// A cold partition is read though its blocks never stay in memory and there are always records at
// the tail of another.
func TestColdPartitionIsNotStarved(t *testing.T) {
	c := startCold(t, 2, streamstore.Config{BlockCacheBytes: 1})
	consumer, producer := c.dial(t), c.dial(t)
	cold, tail := int64(0), int64(3)
	for range 200 {
		producer.ask(produceRequest(9, c.topic, 1, -1, testBatch(t, 1, 100)))
		got := sizes(t, consumer.ask(c.fetch(time.Minute, map[int32]int64{0: cold, 1: tail})))
		if tail++; got[0] > 0 {
			cold++ // a batch of one record
		}
		if cold == 3 {
			return
		}
	}
	t.Fatalf("after 200 fetches the cold partition is at offset %d of 3", cold)
}

// What cannot be read is an error of its partition, and of no other.
func TestUnreadableColdPartition(t *testing.T) {
	c := startCold(t, 2, streamstore.Config{})
	c.bucket.SetFaults(objectstore.Faults{Unavailable: 1})
	resp := c.dial(t).ask(c.fetch(time.Minute, map[int32]int64{0: 0, 1: 3})).(*kmsg.FetchResponse)
	p := resp.Topics[0].Partitions
	if p[0].ErrorCode != kerr.UnknownServerError.Code || p[1].ErrorCode != 0 || p[0].HighWatermark != 3 {
		t.Fatalf("got %v and %v, high watermark %d", kerr.ErrorForCode(p[0].ErrorCode), kerr.ErrorForCode(p[1].ErrorCode), p[0].HighWatermark)
	}
	c.bucket.SetFaults(objectstore.Faults{})
	if got := sizes(t, c.dial(t).ask(c.fetch(time.Minute, map[int32]int64{0: 0, 1: 3}))); got[0] == 0 {
		t.Fatal("no records once the bucket answers again")
	}
}

// Reads for a peer that is gone end with it.
func TestColdReadsEndWithTheirPeer(t *testing.T) {
	c := startCold(t, 1, streamstore.Config{})
	hold := c.holdReads()
	defer hold.Release(nil)
	w := c.dial(t)
	w.send(1, c.fetch(time.Minute, map[int32]int64{0: 0}))
	<-hold.Reached()
	w.Close()
	eventually(t, "connection is gone", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.conns) == 0
	})
}

// A fetch waits for as many bytes as its client wants, from the bucket, the log cache and what
// arrives meanwhile, and returns them in order.
func TestFetchGathersMinBytes(t *testing.T) {
	c := startCold(t, 1, streamstore.Config{})
	consumer, producer := c.dial(t), c.dial(t)
	batch := testBatch(t, 1, 1000)
	producer.ask(produceRequest(9, c.topic, 0, -1, batch))
	req := c.fetch(time.Minute, map[int32]int64{0: 0})
	req.MinBytes = 3*coldRecordBytes + 1000
	if got := sizes(t, consumer.ask(req)); got[0] < int(req.MinBytes) {
		t.Fatalf("%d bytes of bucket and log cache, want %d", got[0], req.MinBytes)
	}
	req.MinBytes += 1000
	consumer.send(1, req)
	producer.ask(produceRequest(9, c.topic, 0, -1, batch))
	records := consumer.receive(1, req).(*kmsg.FetchResponse).Topics[0].Partitions[0].RecordBatches
	if len(records) < int(req.MinBytes) {
		t.Fatalf("%d bytes, want %d", len(records), req.MinBytes)
	}
	var offsets bytes.Buffer
	for b := records; len(b) > 0; {
		fmt.Fprint(&offsets, b[7], " ")
		b = b[12+int(b[10])<<8+int(b[11]):]
	}
	if got := offsets.String(); got != "0 1 2 3 4 " {
		t.Fatalf("batches at the offsets %s", got)
	}
}
