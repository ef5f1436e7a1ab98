package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
	"golang.org/x/sync/errgroup"

	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/internal/clickstream"
	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/metadata"
)

// The benchmarks drive the real binary as a process of its own from this one, which has
// the producer: what a metric calls server CPU is the server's alone. Each runs once per
// iteration, for 10 to 60 seconds; `make bench` runs them with -benchtime 1x.
const (
	benchTopic      = "clicks"
	benchPartitions = 4
	benchLag        = time.Second
)

// The demo's own figures.
func BenchmarkDemo(b *testing.B) {
	figures := regexp.MustCompile(`produced in (\S+), all in the table (\S+) after the first record`)
	for b.Loop() {
		cmd := exec.Command(binary, "demo", "--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0")
		cmd.Env = environment()
		out, err := cmd.CombinedOutput()
		m := figures.FindStringSubmatch(string(out))
		if err != nil || m == nil {
			b.Fatalf("%v\n%s", err, out)
		}
		for i, unit := range []string{"s_produced", "s_in_table"} {
			d, err := time.ParseDuration(m[i+1])
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(d.Seconds(), unit)
		}
		cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		b.ReportMetric(cpu.Seconds(), "cpu_s") // producer, server and reading back
	}
	b.ReportMetric(0, "ns/op")
}

// Memory of a server that was started on an empty directory, after 30 s of nothing.
func BenchmarkIdle(b *testing.B) {
	for b.Loop() {
		s := startServer(b)
		<-time.After(30 * time.Second)
		b.ReportMetric(s.memory("VmRSS"), "MB_resident")
	}
	b.ReportMetric(0, "ns/op")
}

// Produce with acks=all and idempotence to a topic without a table.
func BenchmarkProduce(b *testing.B) {
	const rows = 3_000_000
	onEachLake(b, func(b *testing.B, l *lake) {
		s := l.server(b)
		s.benchTopic(false)
		before := s.scrape()
		start := time.Now()
		newClicks(b, s).produce(rows, 0, nil)
		b.ReportMetric(rows/time.Since(start).Seconds(), "rows/s")
		after := s.scrape()
		reportCPU(b, before, after, rows)
		b.ReportMetric(s.memory("VmHWM"), "MB_peak")
	})
}

// From the first produce to the last row in the table, producer on the same cores.
func BenchmarkLive(b *testing.B) {
	const rows = 3_000_000
	onEachLake(b, func(b *testing.B, l *lake) {
		s := l.server(b)
		s.benchTopic(true)
		before := s.scrape()
		start := time.Now()
		clicks := newClicks(b, s)
		clicks.produce(rows, 0, nil)
		s.waitCommitted(rows)
		b.ReportMetric(rows/time.Since(start).Seconds(), "rows/s")
		after := s.scrape()
		reportCPU(b, before, after, rows)
		b.ReportMetric(s.memory("VmHWM"), "MB_peak")
		reportRequests(b, before, after, clicks.bytes)
	})
}

// Rows that are in the log already, from the moment that the table is switched on.
func BenchmarkDrain(b *testing.B) {
	const rows = 5_000_000
	onEachLake(b, func(b *testing.B, l *lake) {
		s := l.server(b)
		s.benchTopic(false)
		newClicks(b, s).produce(rows, 0, nil)
		took, cpu := s.drain(rows)
		b.ReportMetric(rows/took.Seconds(), "rows/s")
		b.ReportMetric(cpu*1e6/rows, "server_cpu_s/M")
		b.ReportMetric(s.memory("VmHWM"), "MB_peak")
	})
}

// drain enables the table of a topic that has rows records and waits until it holds them.
func (s *server) drain(rows int64) (took time.Duration, cpuSeconds float64) {
	s.t.Helper()
	before := s.scrape()
	start := time.Now()
	s.alter("table.topic.enable", "true", "table.topic.target.lag.ms", fmt.Sprint(benchLag.Milliseconds()))
	s.waitCommitted(rows)
	return time.Since(start), s.scrape()[cpuMetric] - before[cpuMetric]
}

// alter sets configurations of the topic, each a name and a value.
func (s *server) alter(config ...string) {
	s.t.Helper()
	var set []kadm.AlterConfig
	for i := 0; i < len(config); i += 2 {
		set = append(set, kadm.AlterConfig{Op: kadm.SetConfig, Name: config[i], Value: &config[i+1]})
	}
	if _, err := s.admin().AlterTopicConfigs(context.Background(), set, benchTopic); err != nil {
		s.t.Fatal(err)
	}
}

// A hundredth of the records is no Avro and becomes dead letters: the rate of a drain, and its CPU,
// beside those of one without, in turns of which each begins every other round, after one that does not count.
// What is printed are medians, and the medians of the ratios of the two turns of a round. The table, and the topic
// of the dead letters, are there before: what it takes to make them does not depend on how many records there are.
func BenchmarkGarbage(b *testing.B) {
	const before = 1000
	rows := *garbageRows
	var took, cpu [2][]float64 // clean, with garbage
	turn := func(side int) (seconds, cpuSeconds float64) {
		s := directoryLake(b).server(b)
		s.benchTopic(true)
		c := newClicks(b, s)
		c.garbage = int64(100 * side)
		c.produce(before, 0, nil)
		s.waitCommitted(before)
		s.alter("table.topic.enable", "false")
		c.produce(rows, 0, nil)
		c.client.Close()
		s.waitIdle()
		t, cpuSeconds := s.drain(before + rows)
		s.stop()
		if err := os.RemoveAll(s.data); err != nil {
			b.Error(err)
		}
		return t.Seconds(), cpuSeconds
	}
	for b.Loop() {
		turn(0)
		for round := range *garbageRounds {
			for i := range 2 {
				side := (round + i) % 2
				t, seconds := turn(side)
				took[side], cpu[side] = append(took[side], t), append(cpu[side], seconds)
			}
			fmt.Fprintf(os.Stderr, "round %d: clean %.2f s, %.2f s of CPU; with garbage %.2f s, %.2f s of CPU\n", round+1, took[0][round], cpu[0][round], took[1][round], cpu[1][round])
		}
	}
	ratio := func(v [2][]float64) float64 {
		var all []float64
		for i := range v[0] {
			all = append(all, v[0][i]/v[1][i])
		}
		return lab.Median(all)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ratio(took), "rate_ratio")
	b.ReportMetric(ratio(cpu), "cpu_ratio")
	for i, side := range []string{"clean", "garbage"} {
		b.ReportMetric(float64(rows)/lab.Median(took[i]), side+"_rows/s")
		b.ReportMetric(float64(rows)/lab.Median(cpu[i]), side+"_rows/cpu-s")
	}
}

// waitIdle waits until the server uses less than a twentieth of a core: it has done with the records what it does
// beside their table.
func (s *server) waitIdle() {
	s.t.Helper()
	const look = 500 * time.Millisecond
	tick := time.NewTicker(look)
	defer tick.Stop()
	deadline := time.Now().Add(time.Minute)
	for before := s.scrape()[cpuMetric]; time.Now().Before(deadline); {
		<-tick.C
		now := s.scrape()[cpuMetric]
		if now-before < look.Seconds()/20 {
			return
		}
		before = now
	}
	s.t.Fatal("the server is not idle after a minute")
}

// For each record, the time from its produce call to the first snapshot that holds its
// offset, as a client of the REST catalog sees it who asks every 20 ms. The server's CPU is
// that of 10 s before, in which nobody asks.
func BenchmarkFreshness(b *testing.B) {
	const rate, seconds, quiet = 20_000, 25, 10
	onEachLake(b, func(b *testing.B, l *lake) {
		s := l.server(b)
		s.benchTopic(true)
		clicks := newClicks(b, s)
		clicks.produce(1000, rate, nil) // makes the table
		s.waitCommitted(1000)
		before := s.scrape()
		clicks.produce(quiet*rate, rate, nil)
		reportCPU(b, before, s.scrape(), quiet*rate)

		var mu sync.Mutex
		var sent [benchPartitions][]time.Time // by offset; zero: not of this phase
		for p := range sent {
			sent[p] = make([]time.Time, 1000+(quiet+seconds)*rate)
		}
		seen := [benchPartitions][]sighting{}
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			var last [benchPartitions]int64
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for done := false; !done; {
				select {
				case <-tick.C:
				case <-stop:
					done = true
				}
				next, err := s.committed()
				now := time.Now()
				for p := range seen {
					if n := next[int32(p)]; err == nil && n > last[p] {
						seen[p] = append(seen[p], sighting{n, now})
						last[p] = n
					}
				}
			}
		}()
		clicks.produce(seconds*rate, rate, func(r *kgo.Record) {
			mu.Lock()
			defer mu.Unlock()
			sent[r.Partition][r.Offset] = r.Timestamp
		})
		s.waitCommitted(clicks.rows)
		close(stop)
		<-stopped

		var delays []time.Duration
		for p, all := range seen {
			at := int64(0)
			for _, o := range all {
				for ; at < o.next; at++ {
					if t := sent[p][at]; !t.IsZero() {
						delays = append(delays, o.at.Sub(t))
					}
				}
			}
		}
		if len(delays) != seconds*rate {
			b.Fatalf("%d delays of %d records", len(delays), seconds*rate)
		}
		slices.Sort(delays)
		b.ReportMetric(delays[len(delays)/2].Seconds(), "s_p50")
		b.ReportMetric(delays[len(delays)*99/100].Seconds(), "s_p99")
		b.ReportMetric(delays[len(delays)-1].Seconds(), "s_max")
	})
}

// The latency of commits and the CPU of the server, from the first to the one given by -commits:
// one record every 5 ms, a lag target of 1 ms, so that one round follows the other and the time
// from commit to commit is that of a round: request, file, answer, catalog, committed. The table keeps
// 360 snapshots, as tables do by default; ours are expired as it grows.
func BenchmarkCommits(b *testing.B) {
	const window, kept = 100, 360
	for b.Loop() {
		s := startServer(b)
		s.createTopic(benchTopic, 1, time.Millisecond, "table.topic.expire.snapshot.retain.last", fmt.Sprint(kept))
		clicks := newClicks(b, s)
		clicks.produce(1, 0, nil)
		s.waitCommitted(1)
		s.setTableProperties(benchTopic, map[string]string{"history.expire.max-snapshot-age-ms": "1"})

		produced, enough := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(produced)
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					clicks.produce(1, 0, nil)
				case <-enough:
					return
				}
			}
		}()
		at := func(n int) map[string]float64 {
			eventually(b, time.Hour, fmt.Sprintf("%d commits", n), func() error { // by the log: a scrape costs the server
				if done := strings.Count(s.log.String(), " msg=committed "); done < n {
					return fmt.Errorf("%d", done)
				}
				return nil
			})
			return s.scrape()
		}
		// measure gives wall time and CPU per commit, in seconds, of a window.
		measure := func(from int) (wall, cpu float64) {
			const seconds = "process_cpu_seconds_total"
			before, begin := at(from), time.Now()
			after := at(from + window)
			n := after[commitsOf(benchTopic)] - before[commitsOf(benchTopic)]
			return time.Since(begin).Seconds() / n, (after[seconds] - before[seconds]) / n
		}
		earlyWall, earlyCPU := measure(10)
		lateWall, lateCPU := measure(*commits - window)
		close(enough)
		<-produced

		intervals := s.commitIntervals()[benchTopic]
		slices.Sort(intervals)
		b.ReportMetric(1e3*earlyWall, "ms/commit_early")
		b.ReportMetric(1e3*lateWall, "ms/commit_late")
		b.ReportMetric(lateWall/earlyWall, "late/early")
		b.ReportMetric(1e3*earlyCPU, "cpu_ms_early")
		b.ReportMetric(1e3*lateCPU, "cpu_ms_late")
		b.ReportMetric(lateCPU/earlyCPU, "cpu_late/early")
		b.ReportMetric(float64(len(intervals)), "commits")
		b.ReportMetric(1e3*quantile(intervals, 0.5), "ms_p50")
		b.ReportMetric(1e3*quantile(intervals, 0.99), "ms_p99")
	}
	b.ReportMetric(0, "ns/op")
}

var (
	garbageRows   = flag.Int64("garbage.rows", 6_000_000, "BenchmarkGarbage: rows of a turn")
	garbageRounds = flag.Int("garbage.rounds", 5, "BenchmarkGarbage: turns of each side")
	commits       = flag.Int("commits", 10_000, "how many commits BenchmarkCommits makes")
	topics        = flag.Int("topics", 1000, "how many topics BenchmarkTopics has")
	schemas       = flag.Int("schemas", 2000, "how many schemas BenchmarkManySchemas registers")
	schemasBefore = flag.Int("schemas-before", 0, "how many schemas are there before it does")
	minutes       = flag.Int("minutes", 4, "how long BenchmarkTopics produces")
)

// Many topics with a table each, one partition, a lag target of 60 s, 10 records a second to each
// from one producer that gathers for 100 ms. CPU and memory of the server from the moment that
// every topic has a table; the longest time from commit to commit of any topic tells fairness.
func BenchmarkTopics(b *testing.B) {
	const rate = 10
	for b.Loop() {
		s := startServer(b)
		config := map[string]*string{"table.topic.enable": kadm.StringPtr("true"), "table.topic.target.lag.ms": kadm.StringPtr("60000")}
		names := make([]string, *topics)
		for i := range names {
			names[i] = fmt.Sprintf("clicks-%04d", i)
		}
		admin := s.admin()
		admin.SetTimeoutMillis(60_000)
		for some := range slices.Chunk(names, 10) { // one after the other, each waits for a snapshot of the metadata
			if _, err := admin.CreateTopics(context.Background(), 1, 1, config, some...); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(s.memory("VmRSS"), "MB_before")
		client := s.client(kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(100*time.Millisecond), kgo.MaxBufferedRecords(200_000))
		header := registerSchema(b, s, benchTopic+"-value", clickstream.Schema)
		gen := clickstream.NewGenerator(1, time.Now().UTC().Truncate(time.Second))
		var event clickstream.Event
		var failed atomic.Pointer[error]
		produce := func(topic string) {
			gen.Next(&event)
			value := clickstream.AppendAvro(slices.Clip(header), &event)
			client.Produce(context.Background(), &kgo.Record{Topic: topic, Value: value}, func(_ *kgo.Record, err error) {
				if err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			})
		}
		var sent int64
		run := func(d time.Duration) {
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for start, n := time.Now(), int64(0); time.Since(start) < d && failed.Load() == nil; {
				<-tick.C
				for due := int64(time.Since(start).Seconds() * rate * float64(*topics)); n < due; n++ {
					produce(names[sent%int64(len(names))])
					sent++
				}
			}
			if err := failed.Load(); err != nil {
				b.Fatalf("produce: %v", *err)
			}
		}
		run(time.Minute) // the tables are made
		const cpu = "process_cpu_seconds_total"
		before, begin := s.scrape(), time.Now()
		run(time.Duration(*minutes) * time.Minute)
		after, wall := s.scrape(), time.Since(begin).Seconds()
		b.ReportMetric((after[cpu]-before[cpu])/wall, "cores")
		b.ReportMetric(s.memory("VmRSS"), "MB_resident")
		b.ReportMetric(s.memory("VmHWM"), "MB_peak")
		b.ReportMetric(after["go_goroutines"], "goroutines")
		if err := client.Flush(context.Background()); err != nil {
			b.Fatal(err)
		}
		eventually(b, 5*time.Minute, "every record in a table", func() error {
			var rows float64
			for name, v := range s.scrape() {
				if strings.HasPrefix(name, "tabletopic_table_rows_total{") {
					rows += v
				}
			}
			if rows != float64(sent) {
				return fmt.Errorf("%.0f rows of %d", rows, sent)
			}
			return nil
		})
		var longest []time.Duration
		for _, intervals := range s.commitIntervals() {
			longest = append(longest, slices.Max(intervals))
		}
		if len(longest) != *topics {
			b.Fatalf("%d topics had two commits, of %d", len(longest), *topics)
		}
		slices.Sort(longest)
		b.ReportMetric(quantile(longest, 0.5), "s_longest_p50")
		b.ReportMetric(quantile(longest, 1), "s_longest_max")
	}
	b.ReportMetric(0, "ns/op")
}

func quantile(sorted []time.Duration, q float64) float64 {
	return sorted[int(q*float64(len(sorted)-1))].Seconds()
}

func commitsOf(topic string) string {
	return fmt.Sprintf("tabletopic_table_commits_total{topic=%q}", topic)
}

// commitIntervals are the times between the commits of each topic, as the server's log has them.
func (s *server) commitIntervals() map[string][]time.Duration {
	s.t.Helper()
	line := regexp.MustCompile(`(?m)^time=(\S+) level=INFO msg=committed topic=(\S+) `)
	last, out := map[string]time.Time{}, map[string][]time.Duration{}
	for _, m := range line.FindAllStringSubmatch(s.log.String(), -1) {
		at, err := time.Parse(time.RFC3339Nano, m[1])
		if err != nil {
			s.t.Fatal(err)
		}
		if before, ok := last[m[2]]; ok {
			out[m[2]] = append(out[m[2]], at.Sub(before))
		}
		last[m[2]] = at
	}
	return out
}

// setTableProperties changes a table through the REST catalog, as its user would.
func (s *server) setTableProperties(table string, properties map[string]string) {
	s.t.Helper()
	body, err := json.Marshal(map[string]any{"requirements": []any{}, "updates": []any{map[string]any{"action": "set-properties", "updates": properties}}})
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := http.Post(s.catalogURL()+"/v1/namespaces/default/tables/"+table, "application/json", bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		s.t.Fatalf("set properties of %s: %s", table, resp.Status)
	}
}

// A sighting is when the table was first seen to hold a partition up to next.
type sighting struct {
	next int64
	at   time.Time
}

// onEachLake runs a benchmark on the directory store and on an S3 server.
func onEachLake(b *testing.B, bench func(b *testing.B, l *lake)) {
	for name, open := range map[string]func(testing.TB) *lake{"directory": directoryLake, "s3": s3Lake} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				bench(b, open(b))
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// benchTopic makes the topic of a benchmark, with a table or without.
func (s *server) benchTopic(table bool) {
	s.t.Helper()
	config := map[string]*string{}
	if table {
		config["table.topic.enable"] = kadm.StringPtr("true")
		config["table.topic.target.lag.ms"] = kadm.StringPtr(fmt.Sprint(benchLag.Milliseconds()))
	}
	if resp, err := s.admin().CreateTopic(context.Background(), benchPartitions, 1, config, benchTopic); err != nil {
		s.t.Fatalf("create topic: %v %s", err, resp.ErrMessage)
	}
}

// clicks produces the clickstream as one application would: idempotent, acks=all.
type clicks struct {
	t      testing.TB
	client *kgo.Client
	header []byte
	gen    *clickstream.Generator
	rows   int64
	bytes  int64 // of keys and values

	garbage int64 // every so manyth value is cut off in the middle; 0: none
}

func newClicks(t testing.TB, s *server) *clicks { return newClicksTo(t, s, benchTopic) }

func newClicksTo(t testing.TB, s *server, topic string) *clicks {
	t.Helper()
	return &clicks{
		t: t,
		client: s.client(kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(kgo.NoCompression()),
			kgo.ProducerLinger(5*time.Millisecond), kgo.MaxBufferedRecords(100_000)),
		header: registerSchema(t, s, topic+"-value", clickstream.Schema),
		gen:    clickstream.NewGenerator(1, time.Now().UTC().Truncate(time.Second)),
	}
}

// produce sends n records, rate per second if that is not zero, and returns when all are
// acknowledged. acked gets each; its timestamp is that of the call.
func (c *clicks) produce(n int64, rate int, acked func(*kgo.Record)) {
	c.t.Helper()
	ctx := context.Background()
	var failed atomic.Pointer[error]
	var event clickstream.Event
	var chunk []byte // of many payloads
	var tick <-chan time.Time
	perTick := 0
	if rate > 0 {
		const pace = 2 * time.Millisecond
		ticker := time.NewTicker(pace)
		defer ticker.Stop()
		tick, perTick = ticker.C, rate*int(pace)/int(time.Second)
	}
	start := time.Now()
	for i := int64(0); i < n && failed.Load() == nil; {
		burst := n - i
		if rate > 0 {
			<-tick
			burst = min(burst, max(0, int64(time.Since(start).Seconds()*float64(rate))-i), int64(10*perTick)) // makes up for late ticks
		}
		for range burst {
			c.gen.Next(&event)
			if cap(chunk)-len(chunk) < 1<<10 {
				chunk = make([]byte, 0, 256<<10)
			}
			at := len(chunk)
			chunk = clickstream.AppendAvro(append(chunk, c.header...), &event)
			r := &kgo.Record{Key: strconv.AppendInt(nil, event.UserID, 10), Value: chunk[at:len(chunk):len(chunk)]}
			if c.garbage > 0 && i%c.garbage == 0 {
				r.Value = r.Value[:len(r.Value)/2]
			}
			if acked != nil {
				r.Timestamp = time.Now()
			}
			c.bytes += int64(len(r.Key) + len(r.Value))
			i++
			c.client.Produce(ctx, r, func(r *kgo.Record, err error) {
				if err != nil {
					failed.CompareAndSwap(nil, &err)
				} else if acked != nil {
					acked(r)
				}
			})
		}
	}
	if err := c.client.Flush(ctx); err != nil {
		c.t.Fatal(err)
	}
	if err := failed.Load(); err != nil {
		c.t.Fatalf("produce: %v", *err)
	}
	c.rows += n
}

// committed returns the next offsets of the table, as the REST catalog tells engines.
func (s *server) committed() (map[int32]int64, error) {
	resp, err := http.Get(s.catalogURL() + "/v1/namespaces/default/tables/" + benchTopic)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	var table struct {
		Metadata struct {
			Properties map[string]string `json:"properties"`
		} `json:"metadata"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&table); err != nil {
		return nil, err
	}
	p, _, err := coordinator.ReadPosition(table.Metadata.Properties)
	return p.Next, err
}

// waitCommitted waits until the table holds rows records.
func (s *server) waitCommitted(rows int64) {
	s.t.Helper()
	eventually(s.t, 2*time.Minute, fmt.Sprintf("%d rows in the table", rows), func() error {
		next, err := s.committed()
		if err != nil {
			return err
		}
		var sum int64
		for _, n := range next {
			sum += n
		}
		if sum != rows {
			return fmt.Errorf("it holds %d", sum)
		}
		return nil
	})
}

// scrape returns the server's metrics; those with labels by name{labels}.
func (s *server) scrape() map[string]float64 {
	s.t.Helper()
	resp, err := http.Get("http://" + s.http + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	out := map[string]float64{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if i := strings.LastIndexByte(lines.Text(), ' '); i > 0 && lines.Text()[0] != '#' {
			out[lines.Text()[:i]], _ = strconv.ParseFloat(lines.Text()[i+1:], 64)
		}
	}
	if err := lines.Err(); err != nil {
		s.t.Fatal(err)
	}
	return out
}

// memory returns a field of the process status in MB: VmRSS, or its peak VmHWM.
func (s *server) memory(field string) float64 {
	s.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == field+":" {
			kib, err := strconv.ParseFloat(f[1], 64)
			if err != nil {
				s.t.Fatal(err)
			}
			return kib * 1024 / 1e6
		}
	}
	s.t.Fatalf("no %s in\n%s", field, text)
	return 0
}

const cpuMetric = "process_cpu_seconds_total"

func reportCPU(b *testing.B, before, after map[string]float64, rows float64) {
	b.ReportMetric((after[cpuMetric]-before[cpuMetric])*1e6/rows, "server_cpu_s/M")
}

// reportRequests gives the requests to the object store per GiB that producers sent: all, and
// by what they are for and kind.
func reportRequests(b *testing.B, before, after map[string]float64, bytes int64) {
	series := regexp.MustCompile(`^tabletopic_objectstore_requests_total{kind="(\w+)",outcome="\w+",purpose="(\w+)"}$`)
	by, total := map[string]float64{}, 0.0
	for name, v := range after {
		if m := series.FindStringSubmatch(name); m != nil {
			by[m[2]+"-"+m[1]] += v - before[name]
			total += v - before[name]
		}
	}
	gib := float64(bytes) / (1 << 30)
	for unit, v := range by {
		if v > 0 {
			b.ReportMetric(v/gib, unit+"/GiB")
		}
	}
	b.ReportMetric(total/gib, "requests/GiB")
}

// clickSchema is the schema of a version of a subject, in canonical form.
func clickSchema(subject, version int) string {
	return fmt.Sprintf(`{"type":"record","name":"Event%d","fields":[{"name":"id","type":"long"},{"name":"at","type":{"type":"long","logicalType":"timestamp-micros"}},`+
		`{"name":"page","type":"string"},{"name":"f%d","type":["null","double"],"default":null}]}`, subject, version)
}

// fillSchemas puts schemas into the database of a server that does not run, from subject first on.
func fillSchemas(b *testing.B, s *server, first, subjects, versions int) {
	store, err := metadata.Open(b.Context(), "sqlite:"+filepath.Join(s.data, "metadata.db"), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	g := errgroup.Group{}
	g.SetLimit(32)
	for i := first; i < first+subjects; i++ {
		g.Go(func() error {
			subject := metadata.Subject{Name: fmt.Sprintf("events-%d-value", i)}
			for v := range versions {
				added, err := store.RegisterSchema(b.Context(), subject, 0, metadata.Schema{Type: "AVRO", Text: clickSchema(i, v)})
				if err != nil {
					return err
				}
				subject.Revision, subject.Versions = subject.Revision+1, append(subject.Versions, added)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
}

// A registry of many schemas, ten versions a subject: how fast 32 clients register some over HTTP beside those
// that are there, how long the server takes to start with all, and what it holds in memory once each was looked
// up by its id.
func BenchmarkManySchemas(b *testing.B) {
	const versions, clients = 10, 32
	for b.Loop() {
		s := startServer(b)
		before := *schemasBefore / versions
		if before > 0 {
			s.stop()
			fillSchemas(b, s, *schemas/versions, before, versions)
			s.start()
		}
		all := func(n int, do func(cl *sr.Client, i int) error) time.Duration {
			start := time.Now()
			g, next := errgroup.Group{}, atomic.Int64{}
			cl, err := sr.NewClient(sr.URLs(s.registryURL()), sr.HTTPClient(&http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: clients}}))
			if err != nil {
				b.Fatal(err)
			}
			for range clients {
				g.Go(func() error {
					for {
						i := int(next.Add(1)) - 1
						if i >= n {
							return nil
						}
						if err := do(cl, i); err != nil {
							return fmt.Errorf("%d: %w", i, err)
						}
					}
				})
			}
			if err := g.Wait(); err != nil {
				b.Fatal(err)
			}
			return time.Since(start)
		}
		cpu := s.scrape()[cpuMetric]
		took := all(*schemas/versions, func(cl *sr.Client, i int) error {
			for v := range versions {
				if _, err := cl.RegisterSchema(b.Context(), fmt.Sprintf("events-%d-value", i), sr.Schema{Schema: clickSchema(i, v)}, -1, -1); err != nil {
					return err
				}
			}
			return nil
		})
		b.ReportMetric(float64(*schemas)/took.Seconds(), "registrations/s")
		b.ReportMetric((s.scrape()[cpuMetric]-cpu)*1e3/float64(*schemas), "server_cpu_ms/registration")
		s.stop()
		start := time.Now()
		s.start()
		b.ReportMetric(time.Since(start).Seconds(), "s_start")
		total := *schemas + before*versions
		took = all(total, func(cl *sr.Client, i int) error {
			_, err := cl.SchemaByID(b.Context(), i+1)
			return err
		})
		b.ReportMetric(float64(total)/took.Seconds(), "lookups/s")
		b.ReportMetric(s.memory("VmRSS"), "MB_resident")
		b.ReportMetric(s.memory("VmHWM"), "MB_peak")
		s.stop()
	}
	b.ReportMetric(0, "ns/op")
}
