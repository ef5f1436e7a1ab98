package broker

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/objectstore"
)

// startGated runs a broker whose store takes nothing until open is closed.
func startGated(t *testing.T, cfg Config) (b *testBroker, open func()) {
	gate := &gatedBucket{Bucket: objectstore.NewMemory(), open: make(chan struct{})}
	opened := false
	open = func() {
		if !opened {
			close(gate.open)
		}
		opened = true
	}
	set, meta, node := openSetOn(t, gate)
	b = startOn(t, cfg, set, meta, node)
	t.Cleanup(open)
	return b, open
}

// handled returns how many answers of the only connection wait behind the first.
func (b *testBroker) handled() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.conns {
		return len(c.answers)
	}
	return -1
}

// A connection's produce requests get their offsets before the first one is durable, and
// all answers come in the order of the requests, each when its records are durable.
func TestPipeline(t *testing.T) {
	b, open := startGated(t, Config{})
	topic := b.topic(t, "t", 1)
	w := b.dial(t)
	const requests = 20
	produce := produceRequest(9, topic, 0, -1, testBatch(t, 2, 10))
	for i := range int32(requests) {
		w.send(i, produce)
	}
	metadata := kmsg.NewPtrMetadataRequest()
	w.send(requests, metadata)
	eventually(t, "all are handled", func() bool { return b.handled() == requests })
	if p, err := b.set.Partition("t", 0); err != nil || p.Offsets().HighWatermark != 0 {
		t.Fatalf("records are visible before they are durable: %+v, %v", p.Offsets(), err)
	}
	open()
	for i := range int32(requests) {
		p := w.receive(i, produce).(*kmsg.ProduceResponse).Topics[0].Partitions[0]
		if p.ErrorCode != 0 || p.BaseOffset != int64(2*i) {
			t.Fatalf("answer %d: %v, offset %d, want %d", i, kerr.ErrorForCode(p.ErrorCode), p.BaseOffset, 2*i)
		}
	}
	w.receive(requests, metadata)
}

// The requests in flight on a connection are bounded; the rest stays in its socket.
func TestPipelineIsBounded(t *testing.T) {
	b, open := startGated(t, Config{MaxInFlight: 3})
	topic := b.topic(t, "t", 1)
	w := b.dial(t)
	produce := produceRequest(9, topic, 0, -1, testBatch(t, 1, 10))
	const requests = 20
	for i := range int32(requests) {
		w.send(i, produce)
	}
	eventually(t, "the pipeline is full", func() bool { return b.handled() == 3 })
	p, err := b.set.Partition("t", 0)
	if err != nil {
		t.Fatal(err)
	}
	open()
	for i := range int32(requests) {
		w.receive(i, produce)
	}
	if got := p.Offsets().HighWatermark; got != requests {
		t.Errorf("%d records, want %d", got, requests)
	}
}

// A produce that is not durable within its timeout says so; the records may come later.
func TestProduceTimesOut(t *testing.T) {
	b, open := startGated(t, Config{})
	topic := b.topic(t, "t", 1)
	w := b.dial(t)
	req := produceRequest(9, topic, 0, -1, testBatch(t, 1, 10))
	req.TimeoutMillis = 0 // which is minProduceTimeout
	p := w.ask(req).(*kmsg.ProduceResponse).Topics[0].Partitions[0]
	if p.ErrorCode != kerr.RequestTimedOut.Code || p.ErrorMessage == nil {
		t.Fatalf("%+v, want REQUEST_TIMED_OUT with a text", p)
	}
	open()
	eventually(t, "the record is there", func() bool {
		return w.ask(listOffsetsRequest("t", timestampLatest)).(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0].Offset == 1
	})
	assertIdle(t, b)
}

// A client that sends and goes has its records stored.
func TestProduceAndGo(t *testing.T) {
	b, open := startGated(t, Config{})
	topic := b.topic(t, "t", 1)
	w := b.dial(t)
	for i := range int32(5) {
		w.send(i, produceRequest(9, topic, 0, int16(i%2)-1, testBatch(t, 1, 10)))
	}
	w.Close()
	open()
	p, err := b.set.Partition("t", 0)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "records of a client that is gone", func() bool { return p.Offsets().HighWatermark == 5 })
	assertIdle(t, b)
}

// Answers that a peer does not take are bounded, and the peer is closed after a while.
func TestPeerThatDoesNotRead(t *testing.T) {
	b := start(t, Config{StallTimeout: 200e6, MaxAnswerMemory: 4 << 20})
	topic := b.topic(t, "t", 1)
	w := b.dial(t)
	for range 8 {
		w.ask(produceRequest(9, topic, 0, -1, testBatch(t, 900, 1000)))
	}
	fetch := fetchRequest(12, topic, 0)
	fetch.MaxBytes, fetch.Topics[0].Partitions[0].PartitionMaxBytes = 1<<30, 1<<30
	lazy := b.dial(t)
	for i := range int32(30) {
		lazy.send(i, fetch)
	}
	open := func() int { b.mu.Lock(); defer b.mu.Unlock(); return len(b.conns) }
	eventually(t, "the peer is served", func() bool { return open() == 2 })
	eventually(t, "the peer is closed", func() bool { return open() == 1 })
	w.ask(fetch)
	assertIdle(t, b)
}
