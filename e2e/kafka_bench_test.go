package e2e

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/record"
)

var (
	kafkaBytes       = flag.Int64("kafka.bytes", 1<<30, "BenchmarkKafka: bytes of a turn with values of 1 KiB; those of 100 B are a quarter of it")
	kafkaRounds      = flag.Int("kafka.rounds", 3, "BenchmarkKafka: turns of each side; what is printed are medians")
	kafkaLatency     = flag.Duration("kafka.latency", 10*time.Second, "BenchmarkKafka: how long a turn measures latency")
	kafkaConnections = flag.Int("kafka.connections", 5000, "BenchmarkKafka: connections at the same time")
)

const (
	kib        = 1 << 10
	smallValue = 100
	gib        = 1 << 30

	peakMemory = "peak resident memory in all turns above, MB"
)

// BenchmarkKafka runs an Apache Kafka broker beside our server, both on the same disk: the same
// clients send them the same records, in turns, and one table is printed.
func BenchmarkKafka(b *testing.B) {
	for b.Loop() {
		k := &kafkaRun{comparison: newComparison("Kafka", "Table Topic"), b: b, broker: [2]*entrant{kafkaBroker(b), ourBroker(b)}}
		if *kafkaRounds > 1 { // one that does not count warms them up
			for side := range k.broker {
				k.throughput(side, 0, kib, 1, *kafkaBytes/2)
				k.throughput(side, 0, smallValue, 50, *kafkaBytes/8)
			}
			k.comparison = newComparison("Kafka", "Table Topic")
		}
		for round := 1; round <= *kafkaRounds; round++ {
			turn := func(do func(side int)) { // who begins alternates
				do(round % 2)
				do(1 - round%2)
			}
			k.peak = [2]float64{}
			for _, partitions := range []int32{1, 50} {
				turn(func(side int) { k.throughput(side, round, kib, partitions, *kafkaBytes) })
				turn(func(side int) { k.throughput(side, round, smallValue, partitions, *kafkaBytes/4) })
				turn(func(side int) { k.perfTest(side, round, partitions) })
			}
			turn(k.kernelAlone)
			for side, peak := range k.peak {
				k.add(side, peakMemory, peak)
			}
			for _, partitions := range []int32{1, 50} {
				rate := k.flushRate(round, partitions) / 2
				turn(func(side int) { k.latency(side, round, partitions, rate) })
			}
		}
		k.want(peakMemory, fmt.Sprintf("ours ≤ %.0f, a quarter of Kafka's heap", quarterHeap))
		k.smallCaches()
		k.connections()
		k.slowPut()
		fmt.Printf("\n%s\n\n", peerVersions(b, [2]string{"kafka", "kafka_2.13"}))
		k.print(os.Stdout)
	}
	b.ReportMetric(0, "ns/op")
}

type kafkaRun struct {
	*comparison
	b      *testing.B
	broker [2]*entrant
	peak   [2]float64 // MB, in this round
}

// kafkaBroker is Kafka with the settings that its own files come with, and its scripts' JVM.
func kafkaBroker(b *testing.B) *entrant {
	dir := b.TempDir()
	cmd, address := kafkaNode(b, dir)
	return &entrant{server: &server{t: b, kafka: address, data: dir}, counted: []*exec.Cmd{cmd}}
}

// ourBroker is our server on a directory, with its defaults.
func ourBroker(b *testing.B) *entrant {
	s := startServer(b)
	return &entrant{server: s, counted: []*exec.Cmd{s.cmd}}
}

func loadName(size int, partitions int32) string {
	unit := fmt.Sprintf("%d B", size)
	if size == kib {
		unit = "1 KiB"
	}
	if partitions == 1 {
		return unit + ", 1 partition"
	}
	return fmt.Sprintf("%s, %d partitions", unit, partitions)
}

// rate reports what moving bytes of values took since m began.
func (k *kafkaRun) rate(side int, what string, m *measurement, bytes int64) {
	took, cpu := time.Since(m.start).Seconds(), m.cpu()
	k.peak[side] = max(k.peak[side], m.peakMB())
	k.add(side, what+", MB/s", float64(bytes)/1e6/took)
	k.want(what+", MB/s", "≥ 1")
	k.add(side, what+": server CPU s per GiB", cpu*gib/float64(bytes))
	k.want(what+": server CPU s per GiB", "≤ 0.7")
}

// throughput produces values to a new topic and consumes them.
func (k *kafkaRun) throughput(side, round, size int, partitions int32, bytes int64) {
	e := k.broker[side]
	topic := fmt.Sprintf("rate_%d_%d_%d", round, size, partitions)
	addTopic(e.server, topic, partitions)
	n := bytes / int64(size)

	m := e.measure()
	k.flood(e.server, topic, partitions, size, n)
	k.rate(side, "produce "+loadName(size, partitions), m, n*int64(size))

	m = e.measure()
	k.consume(e.server, topic, partitions, 0, n)
	k.rate(side, "consume "+loadName(size, partitions), m, n*int64(size))

	if size == kib && partitions == 1 {
		tail := min(n, 64<<20/kib)
		times := max(1, bytes/(tail*kib)/2)
		m = e.measure()
		for range times {
			k.consume(e.server, topic, partitions, n-tail, tail)
		}
		k.rate(side, "consume the last 64 MiB, several times", m, times*tail*kib)

		// Our log cache has the newest 128 MiB, the page cache none of the rest.
		k.dropPages(e.data)
		m = e.measure()
		k.consume(e.server, topic, partitions, 0, n/4)
		k.rate(side, "consume the oldest quarter from the disk", m, n/4*kib)
	}
	k.deleteTopic(e.server, topic)
}

// flood produces n values as fast as the server takes them.
func (k *kafkaRun) flood(s *server, topic string, partitions int32, size int, n int64) {
	cl := producer(s, topic, kgo.MaxBufferedRecords(100_000))
	defer cl.Close()
	value := randomBytes(size)
	send(k.b, cl, n, func(i int64) *kgo.Record { return &kgo.Record{Value: value, Partition: int32(i % int64(partitions))} }, nil)
}

// producer is idempotent, acks=all, without compression; it sends records where they say, and lingers
// as long as Kafka's own.
func producer(s *server, topic string, opts ...kgo.Opt) *kgo.Client {
	return s.client(append([]kgo.Opt{kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerLinger(5 * time.Millisecond), kgo.RecordPartitioner(kgo.ManualPartitioner())}, opts...)...)
}

func randomBytes(n int) []byte {
	r := rand.NewChaCha8([32]byte{1})
	p := make([]byte, n)
	r.Read(p)
	return p
}

// consume reads n records from an offset on, the same in all partitions.
func (k *kafkaRun) consume(s *server, topic string, partitions int32, from, n int64) {
	k.b.Helper()
	offsets := map[int32]kgo.Offset{}
	for p := range partitions {
		offsets[p] = kgo.NewOffset().At(from)
	}
	cl := s.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: offsets}))
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	for got := int64(0); got < n; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			k.b.Fatalf("consume %s, %d of %d records: %v", topic, got, n, err)
		}
		got += int64(fetches.NumRecords())
	}
}

// dropPages writes the files below dir to the disk and has the kernel forget what is in memory of them.
func (k *kafkaRun) dropPages(dir string) {
	k.b.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return ignoreGone(err)
		}
		f, err := os.Open(path)
		if err != nil {
			return ignoreGone(err)
		}
		defer f.Close()
		if err := f.Sync(); err != nil {
			return err
		}
		return dropCache(f)
	})
	if err != nil {
		k.b.Fatal(err)
	}
}

// ignoreGone: a server deletes files meanwhile.
func ignoreGone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func (k *kafkaRun) deleteTopic(s *server, topic string) {
	k.b.Helper()
	admin := s.admin()
	defer admin.Close()
	if _, err := admin.DeleteTopics(context.Background(), topic); err != nil {
		k.b.Fatal(err)
	}
}

var (
	producedMB = regexp.MustCompile(`(?m)^\d+ records sent, .*\(([\d.]+) MB/sec\), .* 99\.9th\.`)
	consumedMB = regexp.MustCompile(`(?m)^\d[^,\n]*, \d[^,\n]*, (?:[\d.]+, ){6}([\d.]+), [\d.]+$`)
)

// perfTest has Kafka's own perf-test tools, with acks=all, do the same to both.
func (k *kafkaRun) perfTest(side, round int, partitions int32) {
	e := k.broker[side]
	topic := fmt.Sprintf("perf_%d_%d", round, partitions)
	addTopic(e.server, topic, partitions)
	n := *kafkaBytes / 4 / kib
	tool := func(class string, args ...string) string {
		return run(k.b, nil, "java", append([]string{"-Xmx512m", "@" + lab.Path(k.b, "kafka-tools", "java.args"), "org.apache.kafka.tools." + class,
			"--bootstrap-server", e.kafka, "--topic", topic}, args...)...)
	}
	m := e.measure()
	out := tool("ProducerPerformance", "--num-records", fmt.Sprint(n), "--record-size", fmt.Sprint(kib), "--throughput", "-1", "--command-property", "acks=all")
	k.perfRate(side, "kafka-producer-perf-test "+loadName(kib, partitions), m, n*kib, out, producedMB)

	m = e.measure()
	out = tool("ConsumerPerformance", "--num-records", fmt.Sprint(n), "--timeout", "60000")
	k.perfRate(side, "kafka-consumer-perf-test "+loadName(kib, partitions), m, n*kib, out, consumedMB)
	k.deleteTopic(e.server, topic)
}

// perfRate reports the rate that the tool printed last: its JVM starts in the same turn.
func (k *kafkaRun) perfRate(side int, what string, m *measurement, bytes int64, out string, line *regexp.Regexp) {
	k.b.Helper()
	cpu := m.cpu()
	k.peak[side] = max(k.peak[side], m.peakMB())
	all := line.FindAllStringSubmatch(out, -1)
	if len(all) == 0 {
		k.b.Fatalf("%s prints no result:\n%s", what, out)
	}
	rate, err := strconv.ParseFloat(all[len(all)-1][1], 64)
	if err != nil {
		k.b.Fatalf("%s: %v\n%s", what, err, out)
	}
	k.add(side, what+", MB/s", rate*(1<<20)/1e6) // what the tools call MB is 1 MiB
	k.want(what+", MB/s", "≥ 1")
	k.add(side, what+": server CPU s per GiB", cpu*gib/float64(bytes))
	k.want(what+": server CPU s per GiB", "≤ 0.7")
}

// kernelAlone sends as much as a turn's consumer gets, with no server around it: the way of Kafka from a file, and that of ours from memory.
func (k *kafkaRun) kernelAlone(side int) {
	k.b.Helper()
	memory := randomBytes(256 << 20) // more than any processor's cache
	var f *os.File
	if side == theirs {
		var err error
		if f, err = os.CreateTemp(k.b.TempDir(), ""); err != nil {
			k.b.Fatal(err)
		}
		defer f.Close()
		defer os.Remove(f.Name()) // or it is written to the disk while the next turns measure
		if _, err := f.Write(memory); err != nil {
			k.b.Fatal(err)
		}
	}
	cpu, err := sendAlone(f, memory, *kafkaBytes)
	if err != nil {
		k.b.Fatal(err)
	}
	k.add(side, "the kernel alone sends, sendfile and write: CPU s per GiB", cpu.Seconds()*gib/float64(*kafkaBytes))
}

// flushed has Kafka call fsync for each batch before it answers; we always do.
func flushed(s *server, topic string, partitions int32) {
	addTopic(s, topic, partitions, "flush.messages", "1")
}

// flushRate is how many records of 1 KiB a second Kafka takes at most if it calls fsync before it answers.
func (k *kafkaRun) flushRate(round int, partitions int32) float64 {
	e := k.broker[theirs]
	topic := fmt.Sprintf("flush_%d_%d", round, partitions)
	flushed(e.server, topic, partitions)
	n := *kafkaBytes / 8 / kib
	begin := time.Now()
	k.flood(e.server, topic, partitions, kib, n)
	rate := float64(n) / time.Since(begin).Seconds()
	k.add(theirs, "most with flush.messages=1, "+loadName(kib, partitions)+", records/s", rate)
	k.deleteTopic(e.server, topic)
	return rate
}

// latency produces records of 1 KiB at a rate.
func (k *kafkaRun) latency(side, round int, partitions int32, rate float64) {
	e := k.broker[side]
	topic := fmt.Sprintf("latency_%d_%d", round, partitions)
	flushed(e.server, topic, partitions)
	k.paced(e.server, topic, partitions, rate, time.Second) // leaders, producer ids
	delays := k.paced(e.server, topic, partitions, rate, *kafkaLatency)
	what := "produce at half of that, flush.messages=1, " + loadName(kib, partitions)
	k.add(side, what+": p50, ms", 1e3*quantile(delays, 0.5))
	k.add(side, what+": p99, ms", 1e3*quantile(delays, 0.99))
	k.want(what+": p99, ms", "≤ 1")
	k.deleteTopic(e.server, topic)
}

// paced produces records of 1 KiB at a rate and returns, sorted, how long each took from when it was due to
// when it was acknowledged.
func (k *kafkaRun) paced(s *server, topic string, partitions int32, rate float64, d time.Duration) []time.Duration {
	k.b.Helper()
	cl := producer(s, topic, kgo.MaxBufferedRecords(1_000_000))
	defer cl.Close()
	if err := cl.Ping(context.Background()); err != nil {
		k.b.Fatal(err)
	}
	value := randomBytes(kib)
	n := int64(max(1, rate*d.Seconds()))
	delays := make([]time.Duration, n)
	begin := time.Now()
	due := func(i int64) time.Time { return begin.Add(time.Duration(float64(i) / rate * 1e9)) }
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	send(k.b, cl, n, func(i int64) *kgo.Record {
		for time.Now().Before(due(i)) {
			<-tick.C
		}
		return &kgo.Record{Value: value, Partition: int32(i % int64(partitions))}
	}, func(i int64) { delays[i] = time.Since(due(i)) })
	slices.Sort(delays)
	return delays
}

// quarterHeap is a quarter of brokerHeap, in MB.
const quarterHeap = (1 << 30) / 4 / 1e6

// smallCaches is our server with small caches, which keep less of what is produced in memory.
func (k *kafkaRun) smallCaches() {
	const partitions = 50
	s := startServer(k.b, "--log-cache-bytes", fmt.Sprint(64<<20), "--upload-bytes", fmt.Sprint(32<<20), "--block-cache-bytes", fmt.Sprint(16<<20))
	e := &entrant{server: s, counted: []*exec.Cmd{s.cmd}}
	m := e.measure()
	for _, size := range []int{kib, smallValue} {
		topic := fmt.Sprintf("small_%d", size)
		addTopic(s, topic, partitions)
		n := *kafkaBytes / 2 / int64(size)
		begin := time.Now()
		k.flood(s, topic, partitions, size, n)
		k.add(ours, "produce "+loadName(size, partitions)+", log cache of 64 MiB, MB/s", float64(n*int64(size))/1e6/time.Since(begin).Seconds())
		k.consume(s, topic, partitions, 0, n)
	}
	what := "produce and consume with a log cache of 64 MiB, peak resident, MB"
	k.add(ours, what, m.peakMB())
	k.want(what, fmt.Sprintf("≤ %.0f, a quarter of Kafka's heap", quarterHeap))
	s.stop()
}

// connections opens many connections to a new server of ours, of which most only ask for metadata, one in
// ten produces a record a second, and one in ten waits for records.
func (k *kafkaRun) connections() {
	e := ourBroker(k.b)
	const topic, partitions = "connections", 10
	addTopic(e.server, topic, partitions)
	m := e.measure()
	conns := make([]*plainConn, *kafkaConnections)
	for i := range conns {
		c, err := dialPlain(e.kafka)
		if err != nil {
			k.b.Fatalf("connection %d: %v", i, err)
		}
		defer c.Close()
		conns[i] = c
	}
	batch, err := record.AppendBatch(nil, record.BatchOptions{}, []record.Record{{Value: randomBytes(smallValue)}})
	if err != nil {
		k.b.Fatal(err)
	}
	end := time.Now().Add(*kafkaLatency)
	g := errgroup.Group{}
	g.SetLimit(len(conns))
	for i, c := range conns {
		g.Go(func() error {
			if err := c.ask(metadataOf(topic)); err != nil {
				return err
			}
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for time.Now().Before(end) {
				switch partition := int32(i % partitions); i % 10 {
				case 3:
					if err := c.ask(produceOf(topic, partition, batch)); err != nil {
						return err
					}
				case 6:
					if err := c.ask(fetchOf(topic, partition)); err != nil {
						return err
					}
				default:
					return nil
				}
				<-tick.C
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		k.b.Fatal(err)
	}
	what := fmt.Sprintf("%d connections to a new server, peak resident, MB", len(conns))
	k.add(ours, what, m.peakMB())
	k.want(what, "≤ 300")
	e.stop()
}

// A plainConn is a connection with one request in flight.
type plainConn struct {
	net.Conn
	in *bufio.Reader
}

func dialPlain(address string) (*plainConn, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return &plainConn{c, bufio.NewReaderSize(c, 512)}, nil
}

// ask sends a request and reads the answer, of which it looks at nothing but the length.
func (c *plainConn) ask(req kmsg.Request) error {
	c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := c.Write(kmsg.NewRequestFormatter(kmsg.FormatterClientID("bench")).AppendRequest(nil, req, 1)); err != nil {
		return err
	}
	var size [4]byte
	if _, err := io.ReadFull(c.in, size[:]); err != nil {
		return fmt.Errorf("answer to %s: %w", kmsg.NameForKey(req.Key()), err)
	}
	_, err := c.in.Discard(int(size[0])<<24 | int(size[1])<<16 | int(size[2])<<8 | int(size[3]))
	return err
}

func metadataOf(topic string) kmsg.Request {
	req := kmsg.NewPtrMetadataRequest()
	req.Version = 8
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = &topic
	req.Topics = append(req.Topics, t)
	return req
}

func produceOf(topic string, partition int32, batch []byte) kmsg.Request {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = 8, -1, 30_000
	p := kmsg.NewProduceRequestTopicPartition()
	p.Partition, p.Records = partition, batch
	t := kmsg.NewProduceRequestTopic()
	t.Topic, t.Partitions = topic, append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return req
}

// fetchOf waits up to half a second for more than there is.
func fetchOf(topic string, partition int32) kmsg.Request {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxWaitMillis, req.MinBytes, req.MaxBytes = 11, 500, 1<<20, 1<<20
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.PartitionMaxBytes, p.CurrentLeaderEpoch = partition, 1<<20, -1
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.Partitions = topic, append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return req
}

// slowPut is our server on an S3 server that takes 100 ms more for each PUT. Its log lingers as long
// as by default.
func (k *kafkaRun) slowPut() {
	const linger, rate = 250 * time.Millisecond, 2000
	var mu sync.Mutex
	var puts []time.Duration // guarded by mu
	s := slowStore(k.b, func(d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		puts = append(puts, d)
	})
	const topic, partitions = "slow", 4 // a producer has five batches of 1 MB of a partition on their way: of one, no more than 48 MiB/s could be in 100 ms
	addTopic(s, topic, partitions)
	what := "S3 with 100 ms more for each PUT: "
	k.add(ours, what+"one connection, 4 partitions, MiB/s", slowRate(k.b, s, topic, *kafkaBytes/2))
	k.want(what+"one connection, 4 partitions, MiB/s", "≥ 50")

	k.paced(s, topic, 1, rate, time.Second)
	mu.Lock()
	puts = nil
	mu.Unlock()
	delays := k.paced(s, topic, 1, rate, *kafkaLatency)
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(puts)
	produce, put := 1e3*quantile(delays, 0.99), 1e3*quantile(puts, 0.99)
	what += fmt.Sprintf("%d records of 1 KiB a second: ", rate)
	k.add(ours, what+"p99 of PUT, ms", put)
	k.add(ours, what+"p99 of produce, ms", produce)
	most := put + float64(linger.Milliseconds()) + 10
	k.want(what+"p99 of produce, ms", fmt.Sprintf("≤ %.0f: PUT + linger of 250 + 10", most))
	s.stop()
}

// The comparison with a Kafka broker runs to its end, and both sides have a number where both can.
func TestBenchKafka(t *testing.T) {
	if os.Getenv("TABLETOPIC_SOAK") == "" {
		t.Skip("it takes minutes: make soak has it")
	}
	out := run(t, nil, "lab/bench-kafka", "--quick")
	for _, row := range []string{"produce 1 KiB, 50 partitions, MB/s", "consume 100 B, 1 partition: server CPU s per GiB", "consume the oldest quarter from the disk, MB/s",
		"kafka-producer-perf-test 1 KiB, 1 partition, MB/s", "kafka-consumer-perf-test 1 KiB, 50 partitions: server CPU s per GiB",
		peakMemory, "produce at half of that, flush.messages=1, 1 KiB, 50 partitions: p99, ms"} {
		if !regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(row) + ` \| [\d.]+ \| [\d.]+ \| [\d.e+-]+ \| .*[≤≥]`).MatchString(out) {
			t.Errorf("no row %q with two numbers in\n%s", row, out)
		}
	}
	for _, row := range []string{"500 connections to a new server, peak resident, MB", "S3 with 100 ms more for each PUT: one connection, 4 partitions, MiB/s"} {
		if !regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(row) + ` \|  \| [\d.]+ \|  \| `).MatchString(out) {
			t.Errorf("no row %q with our number in\n%s", row, out)
		}
	}
}
