package broker

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// values returns those that a consumer gets of a topic, sorted, once it has n.
func (b *testBroker) values(t testing.TB, topic string, n int, isolation kgo.IsolationLevel) []string {
	t.Helper()
	cl := b.client(t, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(isolation))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var values []string
	for len(values) < n {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("after %v: %v", values, err)
		}
		fetches.EachRecord(func(r *kgo.Record) { values = append(values, string(r.Value)) })
	}
	slices.Sort(values)
	return values
}

// What a producer commits is read, what it aborts is read by those only who read everything.
func TestTransactions(t *testing.T) {
	b := start(t, Config{})
	b.topic(t, "t", 3)
	cl := b.client(t, kgo.TransactionalID("id"), kgo.DefaultProduceTopic("t"))
	var want, all []string
	for i := range 10 {
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		for j := range 5 {
			value := fmt.Sprintf("%02d-%d", i, j)
			if err := cl.ProduceSync(t.Context(), kgo.StringRecord(value)).FirstErr(); err != nil {
				t.Fatal(err)
			}
			all = append(all, value)
			if i%3 != 0 {
				want = append(want, value)
			}
		}
		if err := cl.EndTransaction(t.Context(), kgo.TransactionEndTry(i%3 != 0)); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.values(t, "t", len(want), kgo.ReadCommitted()); !slices.Equal(got, want) {
		t.Errorf("read committed %v, want %v", got, want)
	}
	if got := b.values(t, "t", len(all), kgo.ReadUncommitted()); !slices.Equal(got, all) {
		t.Errorf("read uncommitted %v, want %v", got, all)
	}
}

// A group that consumes, transforms and produces in transactions has every record once in what it
// produced, and its committed offsets are those of the committed transactions; the aborted ones are
// consumed again. Both generations of the protocol.
func TestConsumeTransformProduce(t *testing.T) {
	for name, opts := range map[string][]kgo.Opt{"KIP-890": nil, "before": {kgo.MaxVersions(kversion.V3_6_0())}} {
		t.Run(name, func(t *testing.T) {
			b := start(t, Config{})
			b.topic(t, "in", 2)
			b.topic(t, "out", 2)
			in := b.client(t, kgo.DefaultProduceTopic("in"))
			var want []string
			for i := range 200 {
				value := fmt.Sprintf("%03d", i)
				want = append(want, value)
				in.Produce(t.Context(), kgo.StringRecord(value), nil)
			}
			if err := in.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			s, err := kgo.NewGroupTransactSession(append(opts, kgo.SeedBrokers(b.Addr().String()), kgo.TransactionalID("ctp"), kgo.ConsumerGroup("g"),
				kgo.ConsumeTopics("in"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))...)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			for committed, round := 0, 0; committed < len(want); round++ {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				fetches := s.PollRecords(ctx, 20)
				cancel()
				if err := fetches.Err(); err != nil {
					t.Fatal(err)
				}
				if err := s.Begin(); err != nil {
					t.Fatal(err)
				}
				fetches.EachRecord(func(r *kgo.Record) {
					s.Produce(t.Context(), &kgo.Record{Topic: "out", Value: r.Value}, nil)
				})
				ended, err := s.End(t.Context(), kgo.TransactionEndTry(round%3 != 1))
				if err != nil {
					t.Fatal(err)
				}
				if ended {
					committed += fetches.NumRecords()
				}
			}
			if got := b.values(t, "out", len(want), kgo.ReadCommitted()); !slices.Equal(got, want) {
				t.Errorf("read %d values, want each of %d once: %v", len(got), len(want), got)
			}
			offsets, err := kadm.NewClient(in).FetchOffsets(t.Context(), "g")
			if err != nil {
				t.Fatal(err)
			}
			sum := int64(0)
			offsets.Each(func(o kadm.OffsetResponse) { sum += o.At })
			if sum != int64(len(want)) {
				t.Errorf("the group has committed %d records, want %d", sum, len(want))
			}
		})
	}
}

// A transaction that was aborted is once in an answer, also if its records were read in parts:
// consumers take the next one of its producer for aborted else.
func TestAbortedTransactionIsListedOnce(t *testing.T) {
	b := start(t, Config{})
	b.topic(t, "t", 1)
	p, err := b.set.Partition("t", 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range int32(3) {
		v, _ := p.Verification(7, 0)
		data := testBatchOf(t, 1, func(b *kmsg.RecordBatch) {
			b.Attributes, b.ProducerID, b.ProducerEpoch, b.FirstSequence = 0x10, 7, 0, i
		}, 100)
		done := make(chan error, 1)
		if err := p.AppendTransactional(t.Context(), data, v, func(_ partition.AppendResult, err error) { done <- err }); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if err := p.AppendMarker(t.Context(), record.Marker{ProducerID: 7}, false); err != nil {
		t.Fatal(err)
	}
	f := &fetch{b: b.Broker, isolation: partition.ReadCommitted}
	fp := &fetchPartition{p: p, maxBytes: 1 << 20}
	for _, f.maxBytes = range []int{1, 1 << 20} {
		f.readPartition(fp)
	}
	if len(fp.res.Batches) != 4 || !slices.Equal(fp.res.Aborted, []partition.AbortedTransaction{{ProducerID: 7}}) {
		t.Errorf("%d batches, aborted %+v, want 4 and the transaction from offset 0 once", len(fp.res.Batches), fp.res.Aborted)
	}
}

// txnWire is a transactional producer of requests.
type txnWire struct {
	*wire
	topic    metadata.Topic
	id       string
	producer int64
	epoch    int16
	sequence int32
}

// transactional makes one.
func (b *testBroker) transactional(t testing.TB, topic metadata.Topic, id string) *txnWire {
	x := &txnWire{wire: b.dial(t), topic: topic, id: id}
	x.init()
	return x
}

func (x *txnWire) init() {
	x.t.Helper()
	req := kmsg.NewPtrInitProducerIDRequest()
	req.Version, req.TransactionalID, req.TransactionTimeoutMillis = 4, &x.id, 600_000
	eventually(x.t, "a producer id", func() bool {
		resp := x.ask(req).(*kmsg.InitProducerIDResponse)
		x.producer, x.epoch, x.sequence = resp.ProducerID, resp.ProducerEpoch, 0
		return x.retry(resp.ErrorCode)
	})
}

// retry reports whether a request is done, and fails unless it may be repeated else.
func (x *txnWire) retry(code int16) (done bool) {
	x.t.Helper()
	if code != 0 && code != kerr.ConcurrentTransactions.Code && code != kerr.NotCoordinator.Code && code != kerr.NotEnoughReplicas.Code {
		x.t.Fatal(kerr.ErrorForCode(code))
	}
	return code == 0
}

// produce appends one record to the transaction, which begins with the first. Of the first generation, before
// version 12, it adds the partition before.
func (x *txnWire) produce(version int16) {
	x.t.Helper()
	if version < 12 {
		add := kmsg.NewPtrAddPartitionsToTxnRequest()
		add.Version, add.TransactionalID, add.ProducerID, add.ProducerEpoch = 3, x.id, x.producer, x.epoch
		add.Topics = []kmsg.AddPartitionsToTxnRequestTopic{{Topic: x.topic.Name, Partitions: []int32{0}}}
		eventually(x.t, "the partition in the transaction", func() bool {
			return x.retry(x.ask(add).(*kmsg.AddPartitionsToTxnResponse).Topics[0].Partitions[0].ErrorCode)
		})
	}
	req := produceRequest(version, x.topic, 0, -1, testBatchOf(x.t, 1, func(b *kmsg.RecordBatch) {
		b.Attributes, b.ProducerID, b.ProducerEpoch, b.FirstSequence = 0x10, x.producer, x.epoch, x.sequence
	}, 1))
	req.TransactionID = &x.id
	eventually(x.t, "the record", func() bool {
		return x.retry(x.ask(req).(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode)
	})
	x.sequence++
}

// end sends EndTxn as whatever producer, and returns the answer.
func (x *txnWire) end(version int16, commit bool, producer int64, epoch int16) *kmsg.EndTxnResponse {
	x.t.Helper()
	req := kmsg.NewPtrEndTxnRequest()
	req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = version, x.id, producer, epoch, commit
	return x.ask(req).(*kmsg.EndTxnResponse)
}

// ends ends the transaction as its producer.
func (x *txnWire) ends(version int16, commit bool) {
	x.t.Helper()
	var resp *kmsg.EndTxnResponse
	eventually(x.t, "the end of the transaction", func() bool {
		resp = x.end(version, commit, x.producer, x.epoch)
		return x.retry(resp.ErrorCode)
	})
	if version >= 5 {
		x.producer, x.epoch, x.sequence = resp.ProducerID, resp.ProducerEpoch, 0
	}
}

// state is what DescribeTransactions says.
func (x *txnWire) state() kmsg.DescribeTransactionsResponseTransactionState {
	x.t.Helper()
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{x.id}
	return x.ask(req).(*kmsg.DescribeTransactionsResponse).TransactionStates[0]
}

// offsets are the last stable offset and the high watermark of a partition 0.
func (b *testBroker) offsets(t testing.TB, topic string) (stable, high int64) {
	t.Helper()
	p, err := b.set.Partition(topic, 0)
	if err != nil {
		t.Fatal(err)
	}
	o := p.Offsets()
	return o.LastStable, o.HighWatermark
}

// An EndTxn that was sent for a transaction and comes when the next has begun, of whatever version and with either
// decision, does not end it (P10): in the second generation of the protocol because each transaction has its own epoch (KIP-890), in
// the first if the producer has asked for one meanwhile.
func TestLateEndTxnDoesNotEndTheNextTransaction(t *testing.T) {
	for name, g := range map[string]struct{ produce, end int16 }{"KIP-890": {12, 5}, "before": {11, 4}} {
		t.Run(name, func(t *testing.T) {
			b := start(t, Config{})
			x := b.transactional(t, b.topic(t, "t", 1), "id")
			x.produce(g.produce)
			producer, epoch := x.producer, x.epoch
			x.ends(g.end, true)
			if g.end < 5 {
				x.init()
			} else { // it asks again because the answer was lost
				var again *kmsg.EndTxnResponse
				eventually(t, "the same answer", func() bool {
					again = x.end(5, true, producer, epoch)
					return x.retry(again.ErrorCode)
				})
				if again.ProducerID != x.producer || again.ProducerEpoch != x.epoch {
					t.Fatalf("asked again: %+v, want epoch %d", again, x.epoch)
				}
			}
			if producer == x.producer && epoch == x.epoch {
				t.Fatalf("the next transaction has epoch %d too", epoch)
			}
			x.produce(g.produce)
			stable, high := b.offsets(t, "t")
			for version := int16(0); version <= 5; version++ {
				want := kerr.ProducerFenced
				if version < 2 {
					want = kerr.InvalidProducerEpoch
				}
				for _, commit := range []bool{true, false} {
					late := *x
					late.wire = b.dial(t)
					if code := late.end(version, commit, producer, epoch).ErrorCode; code != want.Code {
						t.Errorf("late EndTxn v%d, commit %t: %v, want %v", version, commit, kerr.ErrorForCode(code), want)
					}
				}
			}
			if s := x.state(); s.State != "Ongoing" || s.ProducerEpoch != x.epoch || len(s.Topics) != 1 {
				t.Errorf("the next transaction: %+v, want it ongoing", s)
			}
			x.produce(g.produce)
			if s, h := b.offsets(t, "t"); s != stable || h != high+1 {
				t.Errorf("stable up to %d of %d, want %d of %d", s, h, stable, high+1)
			}
			x.ends(g.end, true)
			b.values(t, "t", 3, kgo.ReadCommitted())
		})
	}
}

// Only the producer that has a transactional id ends its transaction.
func TestEndTxnOfAnotherProducer(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 1)
	other := b.transactional(t, topic, "other")
	x := b.transactional(t, topic, "id")
	x.init() // epoch 1
	x.produce(12)
	for name, tc := range map[string]struct {
		producer int64
		epoch    int16
		want     *kerr.Error
	}{
		"producer of another id": {other.producer, other.epoch, kerr.InvalidProducerIDMapping},
		"producer of nobody":     {1 << 40, x.epoch, kerr.InvalidProducerIDMapping},
		"no producer":            {-1, -1, kerr.InvalidProducerIDMapping},
		"the epoch before":       {x.producer, x.epoch - 1, kerr.ProducerFenced},
		"an epoch to come":       {x.producer, x.epoch + 1, kerr.ProducerFenced},
		"a negative epoch":       {x.producer, -1, kerr.ProducerFenced},
	} {
		for version := int16(2); version <= 5; version++ {
			for _, commit := range []bool{true, false} {
				if code := x.end(version, commit, tc.producer, tc.epoch).ErrorCode; code != tc.want.Code {
					t.Errorf("%s, v%d, commit %t: %v, want %v", name, version, commit, kerr.ErrorForCode(code), tc.want)
				}
			}
		}
	}
	unknown := *x
	unknown.id = "of nobody"
	if code := unknown.end(5, true, x.producer, x.epoch).ErrorCode; code != kerr.InvalidProducerIDMapping.Code {
		t.Errorf("a transactional id of nobody: %v", kerr.ErrorForCode(code))
	}
	if code := other.end(5, true, other.producer, other.epoch).ErrorCode; code != kerr.InvalidTxnState.Code {
		t.Errorf("to commit what has not begun: %v", kerr.ErrorForCode(code))
	}
	if s := x.state(); s.State != "Ongoing" {
		t.Errorf("the transaction: %+v, want it ongoing", s)
	}
	x.ends(5, true)
	b.values(t, "t", 1, kgo.ReadCommitted())
}

// A transaction that is open in a partition and that no coordinator knows is found as the tools of Kafka find it, by what
// partitions and coordinators say (KIP-664), and aborted; one that its coordinator knows is listed, described, and goes on.
func TestHangingTransactionIsFoundAndAborted(t *testing.T) {
	b := start(t, Config{})
	topic := b.topic(t, "t", 1)
	p, err := b.set.Partition("t", 0)
	if err != nil {
		t.Fatal(err)
	}
	const lost = 1 << 40 // a producer id that nobody has
	v, _ := p.Verification(lost, 3)
	hanging := testBatchOf(t, 1, func(b *kmsg.RecordBatch) {
		b.Attributes, b.ProducerID, b.ProducerEpoch, b.FirstSequence = 0x10, lost, 3, 0
	}, 1)
	done := make(chan error, 1)
	if err := p.AppendTransactional(t.Context(), hanging, v, func(_ partition.AppendResult, err error) { done <- err }); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	x := b.transactional(t, topic, "open")
	x.produce(12)
	b.transactional(t, topic, "idle")

	list := func(change func(*kmsg.ListTransactionsRequest)) (ids []string) {
		t.Helper()
		req := kmsg.NewPtrListTransactionsRequest()
		req.Version, req.DurationFilterMillis = 2, -1
		change(req)
		resp := x.ask(req).(*kmsg.ListTransactionsResponse)
		if resp.ErrorCode != 0 {
			t.Fatal(kerr.ErrorForCode(resp.ErrorCode))
		}
		for _, s := range resp.TransactionStates {
			ids = append(ids, fmt.Sprintf("%s %s %d", s.TransactionalID, s.TransactionState, s.ProducerID))
		}
		slices.Sort(ids)
		return ids
	}
	open := fmt.Sprintf("open Ongoing %d", x.producer)
	for name, tc := range map[string]struct {
		change func(*kmsg.ListTransactionsRequest)
		want   []string
	}{
		"ongoing":             {func(r *kmsg.ListTransactionsRequest) { r.StateFilters = []string{"Ongoing"} }, []string{open}},
		"of a producer":       {func(r *kmsg.ListTransactionsRequest) { r.ProducerIDFilters = []int64{x.producer} }, []string{open}},
		"of the lost one":     {func(r *kmsg.ListTransactionsRequest) { r.ProducerIDFilters = []int64{lost} }, nil},
		"longer than an hour": {func(r *kmsg.ListTransactionsRequest) { r.DurationFilterMillis = 3_600_000 }, nil},
		"of a pattern":        {func(r *kmsg.ListTransactionsRequest) { r.TransactionalIDPattern = kmsg.StringPtr("o.en") }, []string{open}},
		"of no state":         {func(r *kmsg.ListTransactionsRequest) { r.StateFilters = []string{"Nothing"} }, nil},
	} {
		if got := list(tc.change); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	if got := list(func(*kmsg.ListTransactionsRequest) {}); len(got) != 2 {
		t.Errorf("all: %v, want open and idle", got)
	}
	if s := x.state(); s.State != "Ongoing" || s.ProducerID != x.producer || s.TimeoutMillis != 600_000 || s.StartTimestamp <= 0 || len(s.Topics) != 1 || s.Topics[0].Topic != "t" || !slices.Equal(s.Topics[0].Partitions, []int32{0}) {
		t.Errorf("described %+v", s)
	}

	describe := kmsg.NewPtrDescribeProducersRequest()
	describe.Topics = []kmsg.DescribeProducersRequestTopic{{Topic: "t", Partitions: []int32{0}}}
	known := map[int64]int64{} // start of the transaction of each producer
	var found kmsg.DescribeProducersResponseTopicPartitionActiveProducer
	for _, a := range x.ask(describe).(*kmsg.DescribeProducersResponse).Topics[0].Partitions[0].ActiveProducers {
		known[a.ProducerID] = a.CurrentTxnStartOffset
		if len(list(func(r *kmsg.ListTransactionsRequest) { r.ProducerIDFilters = []int64{a.ProducerID} })) == 0 {
			found = a
		}
	}
	if len(known) != 2 || known[lost] != 0 || known[x.producer] != 1 || found.ProducerID != lost || found.ProducerEpoch != 3 {
		t.Fatalf("transactions of %v, the hanging one of %+v", known, found)
	}
	if stable, high := b.offsets(t, "t"); stable != 0 || high != 2 {
		t.Fatalf("stable up to %d of %d, want 0 of 2", stable, high)
	}
	abort := kmsg.NewPtrWriteTxnMarkersRequest()
	abort.Version = 1
	abort.Markers = []kmsg.WriteTxnMarkersRequestMarker{{ProducerID: found.ProducerID, ProducerEpoch: int16(found.ProducerEpoch), CoordinatorEpoch: max(found.CoordinatorEpoch, 0),
		Topics: []kmsg.WriteTxnMarkersRequestMarkerTopic{{Topic: "t", Partitions: []int32{0}}}}}
	if code := x.ask(abort).(*kmsg.WriteTxnMarkersResponse).Markers[0].Topics[0].Partitions[0].ErrorCode; code != 0 {
		t.Fatal(kerr.ErrorForCode(code))
	}
	if stable, high := b.offsets(t, "t"); stable != 1 || high != 3 { // up to the open one; the marker is at 2
		t.Errorf("stable up to %d of %d, want 1 of 3", stable, high)
	}
	x.produce(12)
	x.ends(5, true)
	b.values(t, "t", 2, kgo.ReadCommitted())
	b.values(t, "t", 3, kgo.ReadUncommitted())
}
