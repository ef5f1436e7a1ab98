package e2e

import (
	"context"
	"encoding/csv"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	icebergrest "github.com/apache/iceberg-go/catalog/rest"
	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
)

const eventSchema = `{"type": "record", "name": "Event", "fields": [{"name": "id", "type": "long"}, {"name": "text", "type": "string"}]}`

type event struct {
	ID   int64  `avro:"id"`
	Text string `avro:"text"`
}

// registerSchema returns the wire-format header of a registered schema.
func registerSchema(t testing.TB, s *server, subject, schema string) []byte {
	t.Helper()
	return registerSchemaOf(t, s, subject, sr.Schema{Schema: schema})
}

func registerSchemaOf(t testing.TB, s *server, subject string, schema sr.Schema) []byte {
	t.Helper()
	ss, err := s.registry().CreateSchema(context.Background(), subject, schema)
	if err != nil {
		t.Fatalf("register %s: %v", subject, err)
	}
	header, err := new(sr.ConfluentHeader).AppendEncode(nil, ss.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	return header
}

type place struct {
	partition int32
	offset    int64
}

// acks collects what producers were told. One value at one place, for ever.
type acks struct {
	mu     sync.Mutex
	places map[place]string // guarded by mu
	errs   []string         // guarded by mu
}

func (a *acks) add(p place, value string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if old, taken := a.places[p]; taken && old != value {
		a.errs = append(a.errs, fmt.Sprintf("%v acknowledged for %q and for %q", p, old, value))
	}
	a.places[p] = value
}

// Idempotent producers with acks=all run while the server is killed at random moments; one
// record in a hundred is undecodable. Every acknowledged record is in the table or in the
// dead letters exactly once, offsets are dense, consumers see the same, and verify agrees,
// until a data file is taken away. Compaction runs all the time.
func TestKillNine(t *testing.T) {
	t.Parallel() // mostly waits
	rounds := 25
	if os.Getenv("TABLETOPIC_SOAK") != "" {
		rounds = 1000
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	l := directoryLake(t)
	// Uploads and compaction are under way whenever the server dies.
	l.flags = append(l.flags, "--upload-interval", "100ms", "--compaction-interval", "150ms", "--compaction-minor-interval", "200ms", "--compaction-major-interval", "300ms")
	s := l.server(t)
	const partitions = 4
	s.createTopic("events", partitions, 500*time.Millisecond)
	header := registerSchema(t, s, "events-value", eventSchema)

	ctx, stop := context.WithCancel(context.Background())
	acked := &acks{places: map[place]string{}}
	var producers, consumers sync.WaitGroup
	for n := range 3 {
		producers.Go(func() { produceUntil(ctx, t, s, "events", header, n, 0, acked) })
	}
	seen := &acks{places: map[place]string{}}
	consumerCtx, stopConsumer := context.WithCancel(context.Background())
	defer stopConsumer()
	consumers.Go(func() { consumeUntil(consumerCtx, t, s, "events", seen) })

	for range rounds {
		timer := time.NewTimer(time.Duration(200+random.IntN(1500)) * time.Millisecond)
		<-timer.C
		s.kill()
		s.start()
	}
	stop()
	producers.Wait()

	log := readLog(t, s, "events", partitions)
	if len(acked.places) < 1000 {
		t.Errorf("only %d records acknowledged in %d rounds", len(acked.places), rounds)
	}
	checkLog(t, log, acked, seen)
	stopConsumer()
	consumers.Wait()
	checkTable(t, l, s, "events", log)

	t.Run("verify", func(t *testing.T) {
		if out, code := s.cli("", "table", "verify", "events", "--deep"); code != 0 {
			t.Fatalf("exit %d\n%s", code, out)
		}
		name := removeDataFile(t, s)
		if out, code := s.cli("", "table", "verify", "events", "--deep"); code != 1 || !strings.Contains(out, name) {
			t.Errorf("with data file %s taken away: exit %d\n%s", name, code, out)
		}
	})
	t.Logf("%d rounds, %d acknowledged, %d in the log", rounds, len(acked.places), len(log))
}

// produceUntil sends events until ctx ends, one each interval or as fast as they are answered,
// then waits until each has an answer.
func produceUntil(ctx context.Context, t *testing.T, s *server, topic string, header []byte, n int, interval time.Duration, acked *acks) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(s.kafka), kgo.DefaultProduceTopic(topic), kgo.MaxBufferedRecords(200), kgo.ProducerLinger(5*time.Millisecond),
		kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	if err != nil {
		t.Error(err)
		return
	}
	defer cl.Close()
	schema := avro.MustParse(eventSchema)
	var due <-chan time.Time
	if interval > 0 {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		due = tick.C
	}
	for i := int64(0); ctx.Err() == nil; i++ {
		if due != nil {
			<-due
		}
		id := int64(n)*1_000_000_000 + i
		var value []byte
		if i%100 == 99 {
			value = []byte(fmt.Sprintf("garbage %d", id))
		} else {
			body, err := avro.Marshal(schema, event{id, strings.Repeat("x", int(i%50))})
			if err != nil {
				t.Error(err)
				return
			}
			value = append(append([]byte(nil), header...), body...)
		}
		cl.Produce(context.Background(), &kgo.Record{Value: value}, func(r *kgo.Record, err error) {
			if err != nil { // unknown outcome: it may be in the log, once
				return
			}
			acked.add(place{r.Partition, r.Offset}, string(r.Value))
		})
	}
	wait, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := cl.Flush(wait); err != nil {
		t.Errorf("producer %d: flush: %v", n, err)
	}
}

// consumeUntil reads as a member of a group, across the restarts.
func consumeUntil(ctx context.Context, t *testing.T, s *server, topic string, seen *acks) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(s.kafka), kgo.ConsumeTopics(topic), kgo.ConsumerGroup("watcher"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Error(err)
		return
	}
	defer cl.Close()
	for ctx.Err() == nil {
		fetches := cl.PollFetches(ctx)
		fetches.EachRecord(func(r *kgo.Record) { seen.add(place{r.Partition, r.Offset}, string(r.Value)) })
	}
}

// readLog reads a topic from the start to its end and checks that offsets are dense from 0.
func readLog(t testing.TB, s *server, topic string, partitions int32) map[place]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	ends, err := s.admin().ListEndOffsets(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	want := int64(0)
	offsets := map[int32]kgo.Offset{}
	for p := range partitions {
		end, _ := ends.Lookup(topic, p)
		want += end.Offset
		offsets[p] = kgo.NewOffset().At(0)
	}
	log := map[place]string{}
	cl := s.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: offsets}))
	next := map[int32]int64{}
	for int64(len(log)) < want {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("read %d of %d records of %s", len(log), want, topic)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset != next[r.Partition] {
				t.Errorf("%s-%d: offset %d follows %d", topic, r.Partition, r.Offset, next[r.Partition]-1)
			}
			next[r.Partition] = r.Offset + 1
			log[place{r.Partition, r.Offset}] = string(r.Value)
		})
	}
	return log
}

// checkLog compares a log with what producers were told and a consumer has seen, or is about to.
func checkLog(t *testing.T, log map[place]string, acked, seen *acks) {
	t.Helper()
	unique := map[string]place{}
	for p, v := range log {
		if other, twice := unique[v]; twice {
			t.Errorf("%q is at %v and at %v", v, p, other)
		}
		unique[v] = p
	}
	for p, v := range acked.places {
		if log[p] != v {
			t.Errorf("acknowledged %q at %v, the log has %q", v, p, log[p])
		}
	}
	eventually(t, 3*time.Minute, "the consumer has seen the log", func() error {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		for p, v := range log {
			if got, ok := seen.places[p]; !ok || got != v {
				return fmt.Errorf("at %v: %q, want %q", p, got, v)
			}
		}
		return nil
	})
	for _, e := range append(acked.errs, seen.errs...) {
		t.Error(e)
	}
}

// checkTable compares table and dead letters with the log, place by place.
func checkTable(t *testing.T, l *lake, s *server, topic string, log map[place]string) {
	t.Helper()
	var good int64
	for _, v := range log {
		if !strings.HasPrefix(v, "garbage") {
			good++
		}
	}
	waitForTable(t, s, topic, good, 3*time.Minute)
	rows := l.query(t, s, "duckdb", `SELECT id, text, _kafka."partition" AS p, _kafka."offset" AS o FROM ice.default.`+topic)
	checkRows(t, s, topic, rows, log)
}

// checkRows compares id, text, partition and offset of a table's rows, and the dead letters,
// with the log, place by place.
func checkRows(t *testing.T, s *server, topic, rows string, log map[place]string) {
	t.Helper()
	count := map[place]int{}
	schema := avro.MustParse(eventSchema)
	records, err := csv.NewReader(strings.NewReader(rows)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records[1:] {
		p, _ := strconv.ParseInt(r[2], 10, 32)
		o, _ := strconv.ParseInt(r[3], 10, 64)
		at := place{int32(p), o}
		count[at]++
		var e event
		if v := log[at]; len(v) < 5 || avro.Unmarshal(schema, []byte(v[5:]), &e) != nil || fmt.Sprint(e.ID) != r[0] || e.Text != r[1] {
			t.Errorf("row %v: the log has %q", r, v)
		}
	}
	letters := readDeadLetters(t, s, topic+".dlq")
	for at, payload := range letters {
		count[at.place]++
		if log[at.place] != payload {
			t.Errorf("dead letter of %v is %q, the log has %q", at.place, payload, log[at.place])
		}
	}
	for at, v := range log {
		if count[at] != 1 {
			t.Errorf("%v (%.20q) is %d times in table and dead letters", at, v, count[at])
		}
	}
	if len(count) != len(log) {
		t.Errorf("table and dead letters hold %d places, the log %d", len(count), len(log))
	}
}

// letterAt is one dead letter: where its source was, and the how-many-eth of that source it is.
type letterAt struct {
	place
	copy int
}

func readDeadLetters(t testing.TB, s *server, topic string) map[letterAt]string {
	t.Helper()
	topics, err := s.admin().ListTopics(context.Background(), topic)
	if err != nil || topics[topic].Err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ends, err := s.admin().ListEndOffsets(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	left := int64(0)
	ends.Each(func(o kadm.ListedOffset) { left += o.Offset })
	cl := s.client(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	letters := map[letterAt]string{}
	for left > 0 {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d dead letters were not read", left)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			left--
			at := letterAt{place: sourceOf(t, r)}
			for _, taken := letters[at]; taken; _, taken = letters[at] {
				at.copy++
			}
			letters[at] = string(r.Value)
		})
	}
	return letters
}

func sourceOf(t testing.TB, r *kgo.Record) (p place) {
	t.Helper()
	found := 0
	for _, h := range r.Headers {
		n, err := strconv.ParseInt(string(h.Value), 10, 64)
		switch h.Key {
		case "tabletopic.source.partition":
			p.partition = int32(n)
		case "tabletopic.source.offset":
			p.offset = n
		default:
			continue
		}
		if err != nil {
			t.Errorf("dead letter header %s: %v", h.Key, err)
		}
		found++
	}
	if found != 2 {
		t.Errorf("dead letter at %d-%d does not say where it comes from", r.Partition, r.Offset)
	}
	return p
}

// removeDataFile takes away a file that the table events names, not one that a killed server
// left, and returns its name.
func removeDataFile(t testing.TB, s *server) string {
	t.Helper()
	cat, err := icebergrest.NewCatalog(context.Background(), "ours", s.catalogURL())
	if err != nil {
		t.Fatal(err)
	}
	tab, err := cat.LoadTable(context.Background(), []string{"default", "events"})
	if err != nil {
		t.Fatal(err)
	}
	files, err := tab.Scan().PlanFiles(context.Background())
	if err != nil || len(files) == 0 {
		t.Fatalf("%d data files, %v", len(files), err)
	}
	name := files[len(files)/2].File.FilePath()
	if err := os.Remove(strings.TrimPrefix(name, "file://")); err != nil {
		t.Fatal(err)
	}
	return filepath.Base(name)
}

// Two processes run under one node id on one store: the second serves; the first
// acknowledges nothing more, says why, and ends.
func TestSecondProcessFencesTheFirst(t *testing.T) {
	t.Parallel()
	for _, wal := range []string{"file", "s3"} {
		t.Run("wal="+wal, func(t *testing.T) {
			t.Parallel()
			first := startServer(t, "--wal", wal)
			first.createTopic("t", 1, time.Second)
			produce := func(s *server, value string) error {
				cl, err := kgo.NewClient(kgo.SeedBrokers(s.kafka), kgo.DefaultProduceTopic("t"), kgo.RecordDeliveryTimeout(5*time.Second), kgo.RecordRetries(3))
				if err != nil {
					return err
				}
				defer cl.Close()
				return cl.ProduceSync(context.Background(), kgo.StringRecord(value)).FirstErr()
			}
			if err := produce(first, "before"); err != nil {
				t.Fatal(err)
			}
			second := newServer(t, "--wal", wal)
			second.data = first.data
			second.start()
			if err := produce(first, "to the first"); err == nil {
				t.Error("the fenced node acknowledged a record")
			}
			if code := first.exitCode(30 * time.Second); code != 1 {
				t.Errorf("the fenced node ended with code %d, want 1", code)
			}
			if log := first.log.String(); !strings.Contains(log, "fenced") {
				t.Errorf("the fenced node does not say so:\n%s", tail([]byte(log), 2000))
			}
			first.cmd = nil
			if err := produce(second, "to the second"); err != nil {
				t.Fatal(err)
			}
			log := readLog(t, second, "t", 1)
			if len(log) != 2 || log[place{0, 0}] != "before" || log[place{0, 1}] != "to the second" {
				t.Errorf("log %v", log)
			}
		})
	}
}
