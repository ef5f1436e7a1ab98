package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A transaction is what a producer wrote as one, and what it was told became of it.
type transaction struct {
	values  []string // Avro, without header
	outcome string   // committed, aborted, or unknown: the server died meanwhile
}

// Transactional producers commit and abort at random, their transactions lie between each other,
// and the server is killed in the middle; one producer vanishes and leaves a transaction open.
// What was told to be committed is read by a consumer of committed records, what was aborted is
// not, and of what is not known all is or nothing. The table has just these records.
func TestTransactionsAndTable(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	const partitions = 2
	s.createTopic("events", partitions, 300*time.Millisecond)
	header := registerSchema(t, s, "events-value", eventSchema)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)

	producing, stop := context.WithCancel(context.Background())
	var mu sync.Mutex
	var all []transaction
	var producers sync.WaitGroup
	for n := range 3 {
		producers.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(n)))
			for i := 0; producing.Err() == nil; i++ {
				for _, txn := range transact(producing, t, s, r, header, n, i) {
					mu.Lock()
					all = append(all, txn)
					mu.Unlock()
				}
			}
		})
	}
	for range 5 {
		timer := time.NewTimer(2 * time.Second)
		<-timer.C
		s.kill()
		s.start()
	}
	stop()
	producers.Wait()
	// One that vanishes: what it wrote is aborted when its time is up.
	open := transactional(t, s, "vanishes", kgo.TransactionTimeout(3*time.Second))
	if err := open.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		value, payload := eventPayload(t, header, 99, fmt.Sprint("open ", i))
		if err := open.ProduceSync(context.Background(), &kgo.Record{Partition: int32(i % partitions), Value: payload}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		all = append(all, transaction{[]string{value}, "aborted"})
	}

	log := readCommitted(t, s, "events", partitions)
	times := map[string]int{}
	for _, v := range log {
		times[v[len(header):]]++
	}
	counts := map[string]int{}
	for _, txn := range all {
		counts[txn.outcome]++
		there := 0
		for _, v := range txn.values {
			if times[v] > 1 {
				t.Errorf("%q is %d times in the log", v, times[v])
			}
			there += times[v]
		}
		if txn.outcome == "committed" && there != len(txn.values) || txn.outcome == "aborted" && there > 0 || there > 0 && there != len(txn.values) {
			t.Errorf("%d of %d records of a transaction are there that was %s", there, len(txn.values), txn.outcome)
		}
	}
	t.Logf("%v transactions, %d committed records", counts, len(log))
	if counts["committed"] < 20 || counts["aborted"] < 20 {
		t.Errorf("%v: too few to tell", counts)
	}
	checkTable(t, l, s, "events", log)
	if out, code := s.cli("", "table", "verify", "events", "--deep"); code != 0 {
		t.Errorf("table verify: exit %d\n%s", code, out)
	}
}

// Bounds of transactions that are given where a server is started hold: partitions of a transaction, producers that a
// partition knows, and aborted transactions in its log.
func TestBoundsOfTransactionsAreFlags(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--transaction-max-partitions=2", "--partition-max-producers=3", "--partition-max-aborted-transactions=5")
	if _, err := s.admin().CreateTopic(t.Context(), 3, 1, nil, "t"); err != nil {
		t.Fatal(err)
	}
	begin := func(id string, partitions ...int32) (*kgo.Client, error) {
		cl := transactional(t, s, id)
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		var records []*kgo.Record
		for _, p := range partitions {
			records = append(records, &kgo.Record{Topic: "t", Partition: p, Value: []byte(id)})
		}
		return cl, cl.ProduceSync(t.Context(), records...).FirstErr()
	}
	abort := func(cl *kgo.Client) {
		t.Helper()
		if err := cl.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := begin("wide", 0, 1, 2); !errors.Is(err, kerr.PolicyViolation) {
		t.Errorf("a transaction of three partitions: %v, want %v", err, kerr.PolicyViolation)
	}
	if _, err := begin("narrow", 1, 2); err != nil {
		t.Errorf("a transaction of two partitions: %v", err)
	}
	var open []*kgo.Client
	for i := range 3 {
		cl, err := begin(fmt.Sprint("producer-", i), 0)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, cl)
	}
	if _, err := begin("fourth", 0); !errors.Is(err, kerr.PolicyViolation) {
		t.Errorf("a transaction beside three in the same partition: %v, want %v", err, kerr.PolicyViolation)
	}
	for _, cl := range open {
		abort(cl)
	}
	for i := range 2 {
		eventually(t, time.Minute, "another transaction, once the markers of three are there", func() error {
			cl, err := begin(fmt.Sprint("another-", i), 0)
			if err == nil {
				abort(cl)
			}
			return err
		})
	}
	if _, err := begin("sixth", 0); !errors.Is(err, kerr.PolicyViolation) {
		t.Errorf("a transaction where five were aborted: %v, want %v", err, kerr.PolicyViolation)
	}
}

func transactional(t testing.TB, s *server, id string, opts ...kgo.Opt) *kgo.Client {
	return s.client(append([]kgo.Opt{kgo.TransactionalID(id), kgo.DefaultProduceTopic("events"), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RecordDeliveryTimeout(10 * time.Second), kgo.MaxProduceRequestsInflightPerBroker(1)}, opts...)...)
}

func eventPayload(t testing.TB, header []byte, id int64, text string) (value string, payload []byte) {
	v, err := avro.Marshal(avro.MustParse(eventSchema), event{ID: id, Text: text})
	if err != nil {
		t.Error(err)
	}
	return string(v), append(header[:len(header):len(header)], v...)
}

// noteFailure is a promise: a record that was given up is no error of Flush, nor of the transaction.
func noteFailure(failed *atomic.Bool) func(*kgo.Record, error) {
	return func(_ *kgo.Record, err error) {
		if err != nil {
			failed.Store(true)
		}
	}
}

// transact makes transactions of producer n, its life-th client, until one fails or the time is over.
func transact(ctx context.Context, t *testing.T, s *server, r *rand.Rand, header []byte, n, life int) (done []transaction) {
	cl := transactional(t, s, fmt.Sprint("producer-", n))
	defer cl.Close()
	for i := 0; ctx.Err() == nil; i++ {
		if err := cl.BeginTransaction(); err != nil {
			return done
		}
		txn := transaction{outcome: "unknown"}
		var failed atomic.Bool
		for j := range 1 + r.IntN(20) {
			value, payload := eventPayload(t, header, int64(n), fmt.Sprint("life ", life, " transaction ", i, " record ", j))
			txn.values = append(txn.values, value)
			cl.Produce(context.Background(), &kgo.Record{Partition: int32(r.IntN(2)), Value: payload}, noteFailure(&failed))
		}
		try := kgo.TransactionEndTry(r.IntN(3) > 0)
		end, cancel := context.WithTimeout(context.Background(), time.Minute)
		err := cl.Flush(end)
		if err == nil && failed.Load() {
			err = errors.New("not all records were taken")
		}
		if err == nil {
			err = cl.EndTransaction(end, try)
		}
		cancel()
		switch {
		case err == nil && try == kgo.TryCommit:
			txn.outcome = "committed"
		case err == nil:
			txn.outcome = "aborted"
		}
		done = append(done, txn)
		if err != nil {
			return done // the next client fences what this one may have left open
		}
	}
	return done
}

// readCommitted reads the committed records of a topic up to its end, which no transaction holds
// open any more: the last record of each partition is a marker.
func readCommitted(t testing.TB, s *server, topic string, partitions int32) map[place]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	ends := map[int32]int64{}
	eventually(t, 2*time.Minute, "no transaction is open", func() error {
		high, err := s.admin().ListEndOffsets(ctx, topic)
		if err != nil {
			return err
		}
		stable, err := s.admin().ListCommittedOffsets(ctx, topic)
		if err != nil {
			return err
		}
		for p := range partitions {
			h, _ := high.Lookup(topic, p)
			l, _ := stable.Lookup(topic, p)
			if ends[p] = h.Offset; l.Offset != h.Offset {
				return fmt.Errorf("%s-%d is stable up to %d of %d", topic, p, l.Offset, h.Offset)
			}
		}
		return nil
	})
	offsets := map[int32]kgo.Offset{}
	for p := range partitions {
		offsets[p] = kgo.NewOffset().At(0)
	}
	cl := s.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: offsets}), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	log, next := map[place]string{}, map[int32]int64{}
	for behind := true; behind; {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("read up to %v of %v", next, ends)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset < next[r.Partition] {
				t.Errorf("%s-%d: offset %d after %d", topic, r.Partition, r.Offset, next[r.Partition]-1)
			}
			next[r.Partition] = r.Offset + 1
			if !r.Attrs.IsControl() {
				log[place{r.Partition, r.Offset}] = string(r.Value)
			}
		})
		behind = false
		for p, end := range ends {
			behind = behind || next[p] < end
		}
	}
	for at, v := range log {
		if strings.Contains(v, "open ") {
			t.Errorf("%v is of a transaction that nobody committed", at)
		}
	}
	return log
}
