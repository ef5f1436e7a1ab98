package broker

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

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
