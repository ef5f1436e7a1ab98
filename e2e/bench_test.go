package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
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

	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/internal/clickstream"
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
		before := s.scrape()
		start := time.Now()
		set := func(k, v string) kadm.AlterConfig { return kadm.AlterConfig{Op: kadm.SetConfig, Name: k, Value: &v} }
		if _, err := s.admin().AlterTopicConfigs(context.Background(), []kadm.AlterConfig{
			set("table.topic.enable", "true"), set("table.topic.target.lag.ms", fmt.Sprint(benchLag.Milliseconds()))}, benchTopic); err != nil {
			b.Fatal(err)
		}
		s.waitCommitted(rows)
		b.ReportMetric(rows/time.Since(start).Seconds(), "rows/s")
		reportCPU(b, before, s.scrape(), rows)
		b.ReportMetric(s.memory("VmHWM"), "MB_peak")
	})
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

func reportCPU(b *testing.B, before, after map[string]float64, rows float64) {
	const cpu = "process_cpu_seconds_total"
	b.ReportMetric((after[cpu]-before[cpu])*1e6/rows, "server_cpu_s/M")
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
