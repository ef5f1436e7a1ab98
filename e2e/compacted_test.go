package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// A keyState is what a topic may say of each key in the end: the values that the last record may have, null
// for a tombstone, and "" if there may be none.
type keyState struct {
	mu     sync.Mutex
	values map[string][]string // guarded by mu
}

func (k *keyState) is(key, value string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.values[key] = []string{value}
}

// maybe says that value is written, or not.
func (k *keyState) maybe(key, value string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.values[key] == nil {
		k.values[key] = []string{""}
	}
	k.values[key] = append(k.values[key], value)
}

// check compares the records of a topic, key and value of each, with what it must say.
func (k *keyState) check(t *testing.T, who string, records [][2]string) {
	t.Helper()
	got := map[string]string{}
	for _, r := range records {
		got[r[0]] = r[1]
	}
	for key, allowed := range k.values {
		value := got[key]
		if !slices.Contains(allowed, value) && !(value == "" && slices.Contains(allowed, "null")) {
			t.Errorf("%s: %s is %q, want one of %q", who, key, value, allowed)
		}
		delete(got, key)
	}
	if len(got) > 0 {
		t.Errorf("%s: nobody wrote %v", who, got)
	}
}

// A value of a record with a random number, or null.
func randomValue(r *rand.Rand, text string) (value string, payload []byte) {
	if r.IntN(5) == 0 {
		return "null", nil
	}
	return text, []byte(text)
}

// A topic is compacted all the time, with room for few keys, while idempotent and transactional producers write to it and
// the server is killed. Whoever reads it from its begin, in whatever language, ends with the state that the producers were told
// of, and reads little more than one record for each key.
func TestCompactedTopic(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s := startServer(t, "--upload-interval", "100ms", "--compaction-interval", "150ms", "--compaction-minor-interval", "200ms", "--compaction-major-interval", "300ms",
		"--compaction-force-split", "500ms", "--log-cleaner-interval", "50ms", "--metadata-snapshot-interval", "200ms", "--log-cleaner-dedupe-bytes", "32768", "--clean-interval", "500ms", "--delete-grace", "10s")
	createTopic(t, s, "state", "cleanup.policy", "compact", "min.cleanable.dirty.ratio", "0.01", "delete.retention.ms", "500")
	const keys = 300
	want := &keyState{values: map[string][]string{}}
	ctx, stop := context.WithCancel(context.Background())
	var producers sync.WaitGroup
	for n := range 2 {
		producers.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(n)))
			// kafkajs has no other codec.
			cl := s.client(kgo.DefaultProduceTopic("state"), kgo.ProducerBatchCompression([]kgo.CompressionCodec{kgo.GzipCompression(), kgo.NoCompression()}[n]))
			for i := 0; ctx.Err() == nil; i++ {
				var batch []*kgo.Record
				values := map[string]string{}
				for range 1 + r.IntN(50) {
					key := fmt.Sprintf("plain-%d-%d", n, r.IntN(keys))
					value, payload := randomValue(r, fmt.Sprint(i, strings.Repeat(".", r.IntN(100))))
					batch = append(batch, &kgo.Record{Key: []byte(key), Value: payload})
					values[key] = value
				}
				if err := cl.ProduceSync(context.Background(), batch...).FirstErr(); err != nil {
					t.Errorf("producer %d: %v", n, err)
					return
				}
				for key, value := range values {
					want.is(key, value)
				}
			}
		})
		producers.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(n+2)))
			for ctx.Err() == nil {
				transactState(ctx, s, r, n, keys, want)
			}
		})
	}
	for range 6 {
		timer := time.NewTimer(1500 * time.Millisecond)
		<-timer.C
		s.kill()
		s.start()
	}
	stop()
	producers.Wait()
	for n := range 2 { // fences what a producer may have left open
		cl := stateProducer(s, n)
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := cl.ProduceSync(context.Background(), &kgo.Record{Key: []byte("fence"), Value: []byte("fence")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := cl.EndTransaction(context.Background(), kgo.TryAbort); err != nil {
			t.Fatal(err)
		}
	}
	cl := s.client(kgo.DefaultProduceTopic("state"), kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err := cl.ProduceSync(context.Background(), &kgo.Record{Key: []byte("end"), Value: []byte("end")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	want.is("end", "end")
	live := 0
	for _, allowed := range want.values {
		if slices.ContainsFunc(allowed, func(v string) bool { return v != "" && v != "null" }) {
			live++
		}
	}
	ends, err := s.admin().ListEndOffsets(context.Background(), "state")
	if err != nil {
		t.Fatal(err)
	}
	end, _ := ends.Lookup("state", 0)
	records := readState(t, s)
	eventually(t, 5*time.Minute, "the topic is compacted", func() error {
		<-time.After(3 * time.Second) // the cleaner gives way to readers
		if records = readState(t, s); len(records) > live+live/4+50 {
			return fmt.Errorf("%d records are left for %d keys", len(records), live)
		}
		return nil
	})
	want.check(t, "franz-go", records)
	t.Logf("%d offsets, %d keys, %d records", end.Offset, live, len(records))
	if end.Offset < 4*int64(live) {
		t.Errorf("%d offsets for %d keys: the test tests little", end.Offset, live)
	}

	printed, _ := startKafkaTools(t, s).run("", "consumer.ConsoleConsumer", "--bootstrap-server", s.kafka, "--topic", "state", "--from-beginning",
		"--isolation-level", "read_committed", "--formatter-property", "print.key=true", "--max-messages", fmt.Sprint(len(readState(t, s))), "--timeout-ms", "60000")
	want.check(t, "Java", tabbed(printed))
	venv := filepath.Join(lab.Home(), "python-clients", "venv", "bin", "python")
	for _, p := range [][2]string{{python(), "confluent-kafka"}, {venv, "kafka-python"}, {venv, "aiokafka"}} {
		want.check(t, p[1], tabbed(run(t, []string{"PYTHONDONTWRITEBYTECODE=1"}, "timeout", "120", p[0], "lab/clients/state.py", p[1], s.kafka, "state")))
	}
	built := filepath.Join(t.TempDir(), "state")
	run(t, nil, "go", "build", "-C", "lab/clients/go", "-o", built, "./state")
	want.check(t, "sarama", tabbed(run(t, nil, "timeout", "120", built, "sarama", s.kafka, "state")))
	run(t, nil, "timeout", "120", built, "kafka-go", s.kafka, "state") // gets to the end; it does not leave out what was aborted
	want.check(t, "kafkajs", tabbed(run(t, []string{"NODE_PATH=" + filepath.Join(lab.Home(), "kafkajs", "node_modules")}, "timeout", "120", "node", "lab/clients/state.js", s.kafka, "state")))
}

// A compacted topic may have a table, which is one of what happened: each record is a row, tombstones too, also those that the
// log has no more, because the cleaner waits for the table.
func TestCompactedTopicHasATable(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--upload-interval", "100ms", "--compaction-interval", "150ms", "--compaction-force-split", "500ms",
		"--log-cleaner-interval", "50ms", "--metadata-snapshot-interval", "200ms")
	s.createTopic("state", 1, 300*time.Millisecond, "cleanup.policy", "compact", "min.cleanable.dirty.ratio", "0.01", "delete.retention.ms", "0",
		"table.topic.key.format", "string", "table.topic.key.column", "k")
	header := registerSchema(t, s, "state-value", eventSchema)
	cl := s.client(kgo.DefaultProduceTopic("state"))
	const rounds, keys = 60, 5
	want := []string{}
	for i := range rounds {
		if i == rounds/2 {
			s.kill()
			s.start()
		}
		for k := range keys {
			r := &kgo.Record{Key: fmt.Append(nil, "key", k), Value: encoded(t, header, eventSchema, event{int64(i), fmt.Sprint("v", k)})}
			line := fmt.Sprintf("%d,v%d,key%d", i, k, k)
			if k == 0 && i%2 == 1 {
				r.Value, line = nil, "NULL,NULL,key0"
			}
			if err := cl.ProduceSync(context.Background(), r).FirstErr(); err != nil {
				t.Fatal(err)
			}
			want = append(want, line)
		}
	}
	waitForTable(t, s, "state", rounds*keys, 3*time.Minute)
	eventually(t, 5*time.Minute, "the log is compacted", func() error {
		<-time.After(time.Second) // the cleaner gives way to readers
		if n := len(readUntil(t, s, func(r *kgo.Record) bool { return r.Offset == rounds*keys-1 })); n > rounds*keys/4 {
			return fmt.Errorf("%d of %d records are left", n, rounds*keys)
		}
		return nil
	})
	slices.Sort(want)
	text := "id,text,k\n" + strings.Join(want, "\n") + "\n"
	for _, engine := range []string{"duckdb", "pyiceberg"} {
		if got := run(t, nil, "lab/query", engine, "--uri", s.catalogURL(), "--sort", "SELECT id, text, k FROM ice.default.state"); got != text {
			t.Errorf("%s: %s", engine, diffLines(text, got))
		}
	}
	if out, code := s.cli("", "table", "verify", "state", "--deep"); code != 0 {
		t.Errorf("table verify: exit %d\n%s", code, out)
	}
}

func stateProducer(s *server, n int) *kgo.Client {
	return s.client(kgo.DefaultProduceTopic("state"), kgo.TransactionalID(fmt.Sprint("state-", n)), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.RecordDeliveryTimeout(10*time.Second), kgo.MaxProduceRequestsInflightPerBroker(1))
}

// transactState makes transactions until one fails or the time is over.
func transactState(ctx context.Context, s *server, r *rand.Rand, n, keys int, want *keyState) {
	cl := stateProducer(s, n)
	defer cl.Close()
	for i := 0; ctx.Err() == nil; i++ {
		if err := cl.BeginTransaction(); err != nil {
			return
		}
		values := map[string]string{}
		var failed atomic.Bool
		for j := range 1 + r.IntN(30) {
			key := fmt.Sprintf("txn-%d-%d", n, r.IntN(keys))
			value, payload := randomValue(r, fmt.Sprint(r.Uint64(), ".", j))
			cl.Produce(context.Background(), &kgo.Record{Key: []byte(key), Value: payload}, noteFailure(&failed))
			values[key] = value
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
		for key, value := range values {
			switch {
			case err == nil && try == kgo.TryCommit:
				want.is(key, value)
			case err != nil:
				want.maybe(key, value)
			}
		}
		if err != nil {
			return
		}
	}
}

// readState reads the topic as far as the record with the key "end".
func readState(t testing.TB, s *server) (records [][2]string) {
	t.Helper()
	return readUntil(t, s, func(r *kgo.Record) bool { return string(r.Key) == "end" })
}

// readUntil reads keys and values of the topic as far as the last record.
func readUntil(t testing.TB, s *server, last func(*kgo.Record) bool) (records [][2]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cl := s.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"state": {0: kgo.NewOffset().At(0)}}), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	defer cl.Close()
	at := int64(-1)
	for {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("read behind offset %d: %v", at, err)
		}
		end := false
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset <= at {
				t.Errorf("offset %d after %d", r.Offset, at)
			}
			at = r.Offset
			value := string(r.Value)
			if r.Value == nil {
				value = "null"
			}
			records = append(records, [2]string{string(r.Key), value})
			end = end || last(r)
		})
		if end {
			return records
		}
	}
}

func tabbed(printed string) (records [][2]string) {
	for line := range strings.SplitSeq(strings.TrimSpace(printed), "\n") {
		if key, value, ok := strings.Cut(line, "\t"); ok {
			records = append(records, [2]string{key, value})
		}
	}
	return records
}

// createTopic makes a topic of one partition.
func createTopic(t testing.TB, s *server, name string, config ...string) {
	t.Helper()
	set := map[string]*string{}
	for i := 0; i+1 < len(config); i += 2 {
		set[config[i]] = &config[i+1]
	}
	if resp, err := s.admin().CreateTopic(context.Background(), 1, 1, set, name); err != nil {
		t.Fatalf("create topic %s: %v %s", name, err, resp.ErrMessage)
	}
}
