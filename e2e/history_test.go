package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/tabletopic/tabletopic/e2e/history"
)

// Two servers on one database and one store: idempotent producers write to source; copiers, a group,
// read it and write what they read to target, offsets and records in one transaction; others
// commit and abort at random in mixed, are fenced in the middle, or vanish, for good or to come again, or hear again of
// the end of a transaction when the next is open; a group reads both, and all is noted. Producers speak both generations of
// the protocol of transactions, before KIP-890 and since. Meanwhile servers are killed and paused, and the store misbehaves.
// In the end no client was told what it may not be told, no transaction stays open, and each record of source is in target
// once. The same is there when the servers have lost their disks: records, ends of partitions, committed offsets.
func TestHistories(t *testing.T) {
	t.Parallel() // mostly waits
	length := time.Minute
	if os.Getenv("TABLETOPIC_SOAK") != "" {
		length = 30 * time.Minute
	}
	c := newChaos(t, uint64(time.Now().UnixNano()), 2)
	c.pauses = true
	h := &histories{t: t, servers: c.servers, seed: c.random.Uint64(), groups: []string{"copy", "watch"}}
	topics := map[string]int32{"source": 4, "target": 4, "mixed": 2}
	for i, topic := range slices.Sorted(maps.Keys(topics)) {
		if _, err := c.servers[i%2].admin().CreateTopic(context.Background(), topics[topic], 1, nil, topic); err != nil {
			t.Fatal(err)
		}
	}

	producing, stop := context.WithCancel(context.Background())
	copying, stopCopying := context.WithCancel(context.Background())
	watching, unwatch := context.WithCancel(context.Background())
	defer unwatch()
	defer stopCopying()
	defer stop()
	var producers, copiers, watchers sync.WaitGroup
	for n := range c.servers {
		producers.Go(func() { h.produce(producing, fmt.Sprint("producer-", n)) })
		producers.Go(func() { h.mix(producing, n) })
		copiers.Go(func() { h.copy(copying, n) })
		watchers.Go(func() {
			h.watch(watching, fmt.Sprint("watcher-", n), kgo.ConsumeTopics("target", "mixed"), kgo.SessionTimeout(10*time.Second))
		})
	}
	watchers.Go(func() { h.observe(watching, topics) })
	for end := time.Now().Add(length); time.Now().Before(end); {
		c.round()
	}
	stop()
	producers.Wait()

	one := c.servers[0]
	source := readCommitted(t, one, "source", topics["source"])
	eventually(t, 5*time.Minute, "all is copied", func() error { return h.caughtUp("copy", "source", source) })
	stopCopying()
	copiers.Wait()
	log := history.Log{}
	for topic, partitions := range topics {
		h.read(log, topic, readCommitted(t, one, topic, partitions))
	}
	for topic := range topics {
		if topic != "source" {
			eventually(t, 5*time.Minute, topic+" is seen", func() error { return h.Unread("watch", topic, log) })
		}
	}
	unwatch()
	watchers.Wait()
	h.observeAtLast(topics)
	committed := map[string]map[history.TopicPartition]int64{"copy": h.committed("copy"), "watch": h.committed("watch")}
	for _, v := range h.Check(log, map[string][]string{"copy": {"source"}, "watch": {"target", "mixed"}}, committed) {
		t.Errorf("%s: %s", v.Property, v.Text)
	}
	h.checkCopies(log)
	told := fmt.Sprintf("%d transactions copied, %d fenced, %d left for good, %d ended late, %d mixed committed, %d aborted, %d unknown", h.copied.Load(), h.fenced.Load(),
		h.left.Load(), h.late.Load(), h.mixed[history.OK].Load(), h.mixed[history.Failed].Load(), h.mixed[history.Unknown].Load())
	if h.copied.Load() < 20 || h.fenced.Load() < 1 || h.left.Load() < 1 || h.late.Load() < 1 || h.mixed[history.OK].Load() < 5 || h.mixed[history.Failed].Load() < 5 {
		t.Errorf("%s: too few to tell", told)
	}
	t.Logf("%s; %s; %d kills; %s", h.Counts(), told, c.kills, c.store)

	c.loseDisks()
	again := history.Log{}
	for topic, partitions := range topics {
		h.read(again, topic, readCommitted(t, one, topic, partitions))
	}
	for at, records := range log {
		if !maps.Equal(records, again[at]) {
			t.Errorf("%s has %d records after the disks were lost, %d before", at, len(again[at]), len(records))
		}
	}
	for _, group := range h.groups {
		if after := h.committed(group); !maps.Equal(committed[group], after) {
			t.Errorf("group %s has committed %v after the disks were lost, %v before", group, after, committed[group])
		}
	}
	h.observeAtLast(topics)
	for _, v := range h.Check(again, nil, committed) {
		t.Errorf("after the disks were lost: %s: %s", v.Property, v.Text)
	}
}

// histories are the clients of one test, and what they were told.
type histories struct {
	history.History
	t       *testing.T
	servers []*server
	seed    uint64
	groups  []string // whose offsets are observed
	copied  atomic.Int64
	fenced  atomic.Int64
	left    atomic.Int64    // transactions that nobody ends, nor fences
	late    atomic.Int64    // ends of transactions that came in the next
	mixed   [3]atomic.Int64 // by outcome
}

func (h *histories) read(into history.Log, topic string, records map[place]string) {
	for p, v := range records {
		at := history.TopicPartition{Topic: topic, Index: p.partition}
		if into[at] == nil {
			into[at] = map[int64]string{}
		}
		into[at][p.offset] = v
	}
}

// client knows the addresses of all servers: one may be dead when it asks.
func (h *histories) client(opts ...kgo.Opt) *kgo.Client {
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(h.servers[0].kafka, h.servers[1].kafka), kgo.RecordDeliveryTimeout(30 * time.Second),
		kgo.TransactionTimeout(10 * time.Second), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.MetadataMinAge(100 * time.Millisecond)}, opts...)...)
	if err != nil {
		h.t.Error(err)
		return nil
	}
	return cl
}

// sent returns the promise of a record that notes what became of it.
func (h *histories) sent(producer string, txn *history.Transaction, sends *[]history.Send) func(*kgo.Record, error) {
	return func(r *kgo.Record, err error) {
		s := history.Send{Producer: producer, Value: string(r.Value), Partition: history.TopicPartition{Topic: r.Topic, Index: r.Partition}, Transaction: txn}
		if err == nil {
			s.Outcome, s.Offset = history.OK, r.Offset
		}
		*sends = append(*sends, s) // promises of one client are called one after the other
	}
}

func (h *histories) note(sends []history.Send) {
	for _, s := range sends {
		h.Sent(s)
	}
}

// produce writes to source, idempotent, until ctx ends.
func (h *histories) produce(ctx context.Context, name string) {
	cl := h.client(kgo.DefaultProduceTopic("source"), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()), kgo.MaxBufferedRecords(200))
	if cl == nil {
		return
	}
	defer cl.Close()
	var sends []history.Send
	promise := h.sent(name, nil, &sends)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		<-tick.C
		cl.Produce(context.Background(), &kgo.Record{Value: fmt.Appendf(nil, "%s %d", name, i)}, promise)
	}
	wait, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := cl.Flush(wait); err != nil {
		h.t.Errorf("%s: flush: %v", name, err)
	}
	h.note(sends)
}

// mix commits and aborts in mixed, until ctx ends. Now and then a second producer comes with the same
// transactional id while the first has a transaction open, or one vanishes, and its transactional id with it or not.
func (h *histories) mix(ctx context.Context, n int) {
	r := rand.New(rand.NewPCG(h.seed, uint64(n)))
	ids := 0
	for life := 0; ctx.Err() == nil; life++ {
		name := fmt.Sprint("mix-", n, "-", ids)
		cl := h.mixer(r, name)
		if cl == nil {
			return
		}
		if vanished := h.mixLife(ctx, cl, r, name, life); vanished && (ids == 0 || r.IntN(2) == 0) { // the next life does not fence it: its timeout does
			ids++
			h.left.Add(1)
		}
		cl.Close()
	}
}

func (h *histories) mixer(r *rand.Rand, id string) *kgo.Client {
	return h.client(generation(r.IntN(2) == 0), kgo.TransactionalID(id), kgo.DefaultProduceTopic("mixed"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
}

// generation is that of the protocol of transactions: with KIP-890, or the one before.
func generation(before bool) kgo.Opt {
	if before {
		return kgo.MaxVersions(kversion.V3_6_0())
	}
	return kgo.MaxVersions(kversion.Stable())
}

func (h *histories) mixLife(ctx context.Context, cl *kgo.Client, r *rand.Rand, name string, life int) (vanished bool) {
	var before identity
	for i := 0; ctx.Err() == nil; i++ {
		txn := &history.Transaction{Name: fmt.Sprintf("%s life %d transaction %d", name, life, i)}
		sends, err := h.fill(cl, r, txn)
		if err == nil {
			before = h.endLate(cl, r, name, txn, before)
		}
		if err == nil && r.IntN(12) == 0 { // it vanishes
			txn.Outcome = history.Failed
			h.end(sends, txn)
			return true
		}
		if err == nil && r.IntN(12) == 0 && h.usurp(r, name, txn.Name) {
			if err := h.finish(cl, kgo.TryCommit); err == nil {
				h.t.Errorf("%s was committed after another producer had its transactional id", txn.Name)
			}
			txn.Outcome = history.Failed
			h.fenced.Add(1)
			h.end(sends, txn)
			return false
		}
		txn.Outcome = history.Failed // nobody asked to commit it
		if err == nil {
			try := kgo.TransactionEndTry(r.IntN(3) > 0)
			if err = h.finish(cl, try); try == kgo.TryCommit {
				txn.Outcome = history.OK
				if err != nil {
					txn.Outcome = history.Unknown
				}
			}
		}
		h.end(sends, txn)
		if err != nil {
			return false
		}
	}
	return false
}

// identity is what a transaction knows its producer by.
type identity struct {
	id    int64
	epoch int16
}

// endLate asks, while a transaction is open, to end the one before it, as a request does that was long on its way. It returns the
// producer of the open one. Before KIP-890 both have the same, so that nobody can tell the requests apart.
func (h *histories) endLate(cl *kgo.Client, r *rand.Rand, id string, open *history.Transaction, before identity) (now identity) {
	wait, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var err error
	if now.id, now.epoch, err = cl.ProducerID(wait); err != nil {
		return identity{}
	}
	if before == (identity{}) || before == now || r.IntN(3) > 0 {
		return now
	}
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = id, before.id, before.epoch, r.IntN(2) == 0
	resp, err := req.RequestWith(wait, cl)
	if err != nil {
		return now // no server answered
	}
	switch resp.ErrorCode {
	case 0:
		h.t.Errorf("%s was open when the one before it was ended again, and the coordinator agreed", open.Name)
	case kerr.ProducerFenced.Code, kerr.InvalidProducerEpoch.Code:
		h.late.Add(1)
	}
	return now
}

func (h *histories) end(sends []history.Send, txn *history.Transaction) {
	h.mixed[txn.Outcome].Add(1)
	h.note(sends)
}

// fill begins a transaction and writes to both partitions.
func (h *histories) fill(cl *kgo.Client, r *rand.Rand, txn *history.Transaction) (sends []history.Send, err error) {
	if err := cl.BeginTransaction(); err != nil {
		return nil, err
	}
	promise := h.sent(txn.Name, txn, &sends)
	for j := range 1 + r.IntN(10) {
		cl.Produce(context.Background(), &kgo.Record{Partition: int32(r.IntN(2)), Value: fmt.Appendf(nil, "%s record %d", txn.Name, j)}, promise)
	}
	wait, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return sends, errors.Join(cl.Flush(wait), failed(sends))
}

func failed(sends []history.Send) error {
	for _, s := range sends {
		if s.Outcome != history.OK {
			return errors.New("not all records were acknowledged")
		}
	}
	return nil
}

func (h *histories) finish(cl *kgo.Client, try kgo.TransactionEndTry) error {
	wait, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return cl.EndTransaction(wait, try)
}

// usurp commits a transaction as another producer with the same transactional id; it reports
// whether that one got as far as to write.
func (h *histories) usurp(r *rand.Rand, id, victim string) bool {
	cl := h.mixer(r, id)
	if cl == nil {
		return false
	}
	defer cl.Close()
	txn := &history.Transaction{Name: victim + " usurper"}
	sends, err := h.fill(cl, r, txn)
	wrote := err == nil
	if err == nil && h.finish(cl, kgo.TryCommit) == nil {
		txn.Outcome = history.OK
	}
	h.end(sends, txn)
	return wrote
}

// copy is a member of a group that copies source to target, each batch in a transaction with the
// offsets of what it read, until ctx ends.
func (h *histories) copy(ctx context.Context, n int) {
	for life := 0; ctx.Err() == nil; life++ {
		id := fmt.Sprint("copier-", n)
		h.copyLife(ctx, fmt.Sprint(id, " life ", life), id, generation((n+life)%2 == 0))
	}
}

func (h *histories) copyLife(ctx context.Context, name, id string, generation kgo.Opt) {
	reader := &assignments{name: name}
	session, err := kgo.NewGroupTransactSession(generation, kgo.SeedBrokers(h.servers[0].kafka, h.servers[1].kafka), kgo.TransactionalID(id), kgo.ConsumerGroup("copy"), kgo.ConsumeTopics("source"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.DefaultProduceTopic("target"),
		kgo.TransactionTimeout(10*time.Second), kgo.RecordDeliveryTimeout(30*time.Second), kgo.SessionTimeout(10*time.Second), kgo.RebalanceTimeout(10*time.Second), kgo.MetadataMinAge(100*time.Millisecond),
		kgo.OnPartitionsAssigned(reader.assigned), kgo.MaxConcurrentFetches(1))
	if err != nil {
		h.t.Error(err)
		return
	}
	defer session.Close()
	for i := 0; ctx.Err() == nil; i++ {
		poll, cancel := context.WithTimeout(ctx, 2*time.Second)
		fetches := session.PollRecords(poll, 200)
		cancel()
		if fetches.NumRecords() == 0 {
			continue
		}
		txn := &history.Transaction{Name: fmt.Sprint(name, " transaction ", i), Group: "copy", Offsets: map[history.TopicPartition]int64{}}
		if err := session.Begin(); err != nil {
			return
		}
		var sends []history.Send
		promise := h.sent(txn.Name, txn, &sends)
		fetches.EachRecord(func(r *kgo.Record) {
			at := history.TopicPartition{Topic: r.Topic, Index: r.Partition}
			h.Polled("copy", reader.current(), at, r.Offset, string(r.Value))
			txn.Offsets[at] = r.Offset + 1
			session.Produce(context.Background(), &kgo.Record{Value: fmt.Appendf(nil, "%s of %s at %d", txn.Name, at, r.Offset)}, promise)
		})
		wait, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		err := errors.Join(session.Client().Flush(wait), failed(sends))
		committed, endErr := session.End(wait, err == nil)
		cancel()
		switch {
		case endErr != nil:
		case committed:
			txn.Outcome = history.OK
			h.copied.Add(1)
		default:
			txn.Outcome = history.Failed
		}
		h.note(sends)
		if endErr != nil {
			return
		}
		if !committed {
			reader.again() // it goes back to what is committed
		}
	}
}

// checkCopies checks that each record of source is in target once.
func (h *histories) checkCopies(log history.Log) {
	h.t.Helper()
	copies := map[string]int{}
	for at, records := range log {
		for _, v := range records {
			if _, of, is := strings.Cut(v, " of "); is && at.Topic == "target" {
				copies[of]++
			}
		}
	}
	n := 0
	for at, records := range log {
		if at.Topic != "source" {
			continue
		}
		for o := range records {
			n++
			if times := copies[fmt.Sprintf("%s at %d", at, o)]; times != 1 {
				h.t.Errorf("the record of %s at %d was copied %d times", at, o, times)
			}
		}
	}
	if n != len(copies) {
		h.t.Errorf("%d records in source, %d in target", n, len(copies))
	}
}

// An assignments names a consumer anew with each assignment.
type assignments struct {
	name string
	n    atomic.Int64
}

func (a *assignments) assigned(context.Context, *kgo.Client, map[string][]int32) { a.again() }
func (a *assignments) again()                                                    { a.n.Add(1) }
func (a *assignments) current() string {
	return a.name + " assignment " + strconv.FormatInt(a.n.Load(), 10)
}

// watch reads topics as a member of the group watch, which commits after it has read.
func (h *histories) watch(ctx context.Context, name string, opts ...kgo.Opt) {
	reader := &assignments{name: name}
	cl := h.client(append(opts, kgo.ConsumerGroup("watch"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.RebalanceTimeout(10*time.Second), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(), kgo.OnPartitionsAssigned(reader.assigned))...)
	if cl == nil {
		return
	}
	defer cl.CloseAllowingRebalance()
	for ctx.Err() == nil {
		fetches := cl.PollFetches(ctx)
		fetches.EachRecord(func(r *kgo.Record) {
			h.Polled("watch", reader.current(), history.TopicPartition{Topic: r.Topic, Index: r.Partition}, r.Offset, string(r.Value))
		})
		wait, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_ = cl.CommitUncommittedOffsets(wait) // what is not committed is read again
		cancel()
		cl.AllowRebalance()
	}
}

// observe asks for the ends of the partitions and the offsets of the groups until ctx ends.
func (h *histories) observe(ctx context.Context, topics map[string]int32) {
	cl := h.client()
	if cl == nil {
		return
	}
	defer cl.Close()
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		_ = h.observeOnce(ctx, cl, slices.Sorted(maps.Keys(topics))) // a server may be down
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// observeAtLast observes what is there when nothing is written any more: without it, the last observation may be of before
// the last record. Then no transaction is open: those whose producer vanished end by their timeout.
func (h *histories) observeAtLast(topics map[string]int32) {
	h.t.Helper()
	cl := h.client()
	if cl == nil {
		return
	}
	defer cl.Close()
	eventually(h.t, 2*time.Minute, "a last observation", func() error {
		if err := h.observeOnce(context.Background(), cl, slices.Sorted(maps.Keys(topics))); err != nil {
			return err
		}
		return h.Open()
	})
}

// observeOnce returns an error if it did not observe all logs.
func (h *histories) observeOnce(ctx context.Context, cl *kgo.Client, topics []string) error {
	admin := kadm.NewClient(cl)
	ask, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	starts, err1 := admin.ListStartOffsets(ask, topics...)
	stable, err2 := admin.ListCommittedOffsets(ask, topics...)
	ends, err3 := admin.ListEndOffsets(ask, topics...)
	failed := errors.Join(err1, err2, err3)
	if failed == nil {
		starts.Each(func(o kadm.ListedOffset) {
			l, _ := stable.Lookup(o.Topic, o.Partition)
			e, _ := ends.Lookup(o.Topic, o.Partition)
			if err := errors.Join(o.Err, l.Err, e.Err); err != nil {
				failed = err
			} else {
				h.Observed(history.TopicPartition{Topic: o.Topic, Index: o.Partition}, o.Offset, l.Offset, e.Offset)
			}
		})
	}
	for _, group := range h.groups {
		offsets, err := admin.FetchOffsets(ask, group)
		if err != nil {
			continue
		}
		offsets.Each(func(o kadm.OffsetResponse) {
			if o.Err == nil {
				h.Committed(group, history.TopicPartition{Topic: o.Topic, Index: o.Partition}, o.At)
			}
		})
	}
	return failed
}

// committed returns what a group has committed.
func (h *histories) committed(group string) map[history.TopicPartition]int64 {
	out := map[history.TopicPartition]int64{}
	eventually(h.t, 2*time.Minute, "offsets of "+group, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		offsets, err := h.servers[0].admin().FetchOffsets(ctx, group)
		if err == nil {
			err = offsets.Error()
		}
		if err != nil {
			return err
		}
		offsets.Each(func(o kadm.OffsetResponse) { out[history.TopicPartition{Topic: o.Topic, Index: o.Partition}] = o.At })
		return nil
	})
	return out
}

// caughtUp returns what a group has not committed of a topic's records.
func (h *histories) caughtUp(group, topic string, records map[place]string) error {
	offsets := h.committed(group)
	for p := range records {
		if next := offsets[history.TopicPartition{Topic: topic, Index: p.partition}]; next <= p.offset {
			return fmt.Errorf("group %s has committed %d of %s-%d, which has a record at %d", group, next, topic, p.partition, p.offset)
		}
	}
	return nil
}
