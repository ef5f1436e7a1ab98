package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tabletopic/tabletopic/internal/lab"
)

var (
	peerRows   = flag.Int64("peer.rows", 5_000_000, "BenchmarkPeer: rows of each drain and each live turn")
	peerRounds = flag.Int("peer.rounds", 3, "BenchmarkPeer: turns of each side; what is printed are medians")
	peerCommit = flag.Duration("peer.commit", 10*time.Second, "BenchmarkPeer: commit interval of the sink, and our lag target")
)

const (
	peerWarm = 1000   // rows that make a table before something is measured
	peerRate = 20_000 // rows/s of the freshness turns
)

// An entrant is one side of the comparison: a Kafka address, a registry of the Confluent
// protocol, and a way to turn topics into tables of one catalog. The server it embeds has the
// two addresses; clients see no difference.
type entrant struct {
	*server
	namespace string                                   // of its tables
	counted   []*exec.Cmd                              // processes whose CPU and memory count
	attach    func(topic string, commit time.Duration) // begins to fill the table of a topic that exists
	detach    func(topic string)                       // ends it
	failed    func(topic string) error                 // why it does not go on, if so
}

// BenchmarkPeer runs Kafka, Kafka Connect, the Iceberg sink and Apicurio's registry beside our
// server: the same producer, schema, catalog and file system, in turns, and prints one table.
// After each turn DuckDB counts the rows.
func BenchmarkPeer(b *testing.B) {
	for b.Loop() {
		p := newPeerRun(b)
		for _, e := range p.entrants {
			p.drain(e, 0, *peerRows/2)
		}
		p.comparison = newComparison("Kafka + Connect", "Table Topic") // that was to warm them up
		for round := 1; round <= *peerRounds; round++ {
			for _, turn := range p.turns() {
				for i := range p.entrants {
					turn(p.entrants[(i+round)%2], round) // who begins alternates
				}
			}
		}
		fmt.Printf("\n%s\n\n", peerVersions(b, peerJars...))
		p.print(os.Stdout)
	}
	b.ReportMetric(0, "ns/op")
}

type peerRun struct {
	*comparison
	b        *testing.B
	catalog  string // URI
	entrants [2]*entrant
}

func newPeerRun(b *testing.B) *peerRun {
	p := &peerRun{b: b, catalog: lab.IcebergREST(b, "file://"+b.TempDir(), ""), comparison: newComparison("Kafka + Connect", "Table Topic")}
	p.entrants = [2]*entrant{kafkaAndConnect(b, p.catalog), tableTopic(b, p.catalog)}
	for _, e := range p.entrants { // the sink's tasks would race to do it, and this catalog fails the second
		if err := call(http.MethodPost, p.catalog+"/v1/namespaces", map[string][]string{"namespace": {e.namespace}}, nil); err != nil {
			b.Fatal(err)
		}
	}
	return p
}

func (p *peerRun) turns() []func(e *entrant, round int) {
	turns := []func(e *entrant, round int){
		func(e *entrant, round int) { p.drain(e, round, *peerRows) },
		func(e *entrant, round int) { p.live(e, round, *peerRows) },
		func(e *entrant, round int) { p.freshness(e, round, *peerCommit) },
	}
	if *peerCommit > time.Second {
		turns = append(turns, func(e *entrant, round int) { p.freshness(e, round, time.Second) })
	}
	return turns
}

// drain produces rows to a topic without a table, which is a measurement too, and then makes
// a table of it.
func (p *peerRun) drain(e *entrant, round int, rows int64) {
	topic := fmt.Sprintf("drain_%d", round)
	addTopic(e.server, topic, benchPartitions)
	clicks := newClicksTo(p.b, e.server, topic)
	m := e.measure()
	clicks.produce(rows, 0, nil)
	p.report(e, "produce alone", m, rows)

	m = e.measure()
	e.attach(topic, *peerCommit)
	p.waitRows(e, topic, rows)
	p.report(e, "drain", m, rows)
	p.finish(e, topic, clicks)
}

// live measures from the first produce to the last row in the table.
func (p *peerRun) live(e *entrant, round int, rows int64) {
	topic := fmt.Sprintf("live_%d", round)
	clicks := p.warmTable(e, topic, *peerCommit)
	m := e.measure()
	clicks.produce(rows, 0, nil)
	p.waitRows(e, topic, clicks.rows)
	p.report(e, "live, produce to table", m, rows)
	p.add(e, "live, peak memory, MB", m.peakMB())
	p.finish(e, topic, clicks)
}

// freshness produces at a rate that both sides bear. The row that was produced as the k-th
// counts as visible from when the table holds k rows.
func (p *peerRun) freshness(e *entrant, round int, commit time.Duration) {
	name := fmt.Sprintf("freshness at %d rows/s, commits each %v", peerRate, commit)
	topic := fmt.Sprintf("fresh_%dms_%d", commit.Milliseconds(), round)
	clicks := p.warmTable(e, topic, commit)
	rows := peerRate * int64(max(20*time.Second, 6*commit)/time.Second)

	var seen []sighting // all partitions as one
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for done := false; !done; {
			select {
			case <-tick.C:
			case <-ctx.Done():
				done = true
			}
			if n, err := p.rows(e, topic); err == nil && (len(seen) == 0 || n > seen[len(seen)-1].next) {
				seen = append(seen, sighting{n, time.Now()})
			}
		}
	}()
	acked := make(chan time.Time, rows)
	m := e.measure()
	clicks.produce(rows, peerRate, func(r *kgo.Record) { acked <- r.Timestamp })
	p.waitRows(e, topic, clicks.rows)
	p.add(e, name+": CPU s per million rows", m.cpu()*1e6/float64(rows))
	stop()
	<-stopped

	close(acked)
	var sent []time.Time
	for t := range acked {
		sent = append(sent, t)
	}
	slices.SortFunc(sent, time.Time.Compare)
	delays := make([]time.Duration, len(sent))
	at := 0
	for k := range sent {
		for seen[at].next < peerWarm+int64(k)+1 {
			at++
		}
		delays[k] = seen[at].at.Sub(sent[k])
	}
	slices.Sort(delays)
	p.add(e, name+": p50, s", delays[len(delays)/2].Seconds())
	p.add(e, name+": p99, s", delays[len(delays)*99/100].Seconds())
	p.finish(e, topic, clicks)
}

// warmTable makes a topic whose table has its first rows.
func (p *peerRun) warmTable(e *entrant, topic string, commit time.Duration) *clicks {
	addTopic(e.server, topic, benchPartitions)
	e.attach(topic, commit)
	clicks := newClicksTo(p.b, e.server, topic)
	clicks.produce(peerWarm, 0, nil)
	p.waitRows(e, topic, peerWarm)
	return clicks
}

// finish has another engine count what the catalog only says is there, and cleans up.
func (p *peerRun) finish(e *entrant, topic string, clicks *clicks) {
	e.detach(topic)
	got := run(p.b, nil, "lab/query", "duckdb", fmt.Sprintf("SELECT count(*) AS n, count(DISTINCT event_id) AS ids, sum(event_id) AS sum FROM ice.%s.%s",
		e.namespace, topic), "--uri", p.catalog)
	n := clicks.rows
	if want := fmt.Sprintf("n,ids,sum\n%d,%d,%d\n", n, n, n*(n+1)/2); got != want {
		p.b.Fatalf("the table %s.%s has %q, want %q", e.namespace, topic, got, want)
	}
	clicks.client.Close()
	if _, err := e.admin().DeleteTopics(context.Background(), topic); err != nil {
		p.b.Fatal(err)
	}
}

// rows is what the table's current snapshot says that it holds.
func (p *peerRun) rows(e *entrant, topic string) (int64, error) {
	var table struct {
		Metadata struct {
			Current   int64 `json:"current-snapshot-id"`
			Snapshots []struct {
				ID      int64             `json:"snapshot-id"`
				Summary map[string]string `json:"summary"`
			} `json:"snapshots"`
		} `json:"metadata"`
	}
	if err := call(http.MethodGet, p.catalog+"/v1/namespaces/"+e.namespace+"/tables/"+topic, nil, &table); err != nil {
		return 0, err
	}
	for _, s := range table.Metadata.Snapshots {
		if s.ID == table.Metadata.Current {
			return strconv.ParseInt(s.Summary["total-records"], 10, 64)
		}
	}
	return 0, nil
}

func (p *peerRun) waitRows(e *entrant, topic string, rows int64) {
	p.b.Helper()
	look := time.Now()
	eventually(p.b, 30*time.Minute, fmt.Sprintf("%d rows in %s.%s", rows, e.namespace, topic), func() error {
		n, err := p.rows(e, topic)
		if err == nil && n != rows {
			err = fmt.Errorf("it holds %d", n)
		}
		if err != nil && time.Since(look) > 5*time.Second {
			if err := e.failed(topic); err != nil {
				p.b.Fatal(err)
			}
			look = time.Now()
		}
		return err
	})
}

func (p *peerRun) report(e *entrant, what string, m *measurement, rows int64) {
	p.add(e, what+", rows/s", float64(rows)/time.Since(m.start).Seconds())
	p.add(e, what+": CPU s per million rows", m.cpu()*1e6/float64(rows))
}

// add keeps one result.
func (p *peerRun) add(e *entrant, measure string, value float64) {
	p.comparison.add(slices.Index(p.entrants[:], e), measure, value)
}

// A measurement is of the counted processes of an entrant, from its begin on.
type measurement struct {
	e      *entrant
	start  time.Time
	before float64 // CPU seconds
}

func (e *entrant) measure() *measurement {
	e.t.Helper()
	for _, c := range e.counted {
		// From now on the peak of resident memory counts anew.
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", c.Process.Pid), []byte("5"), 0); err != nil {
			e.t.Fatal(err)
		}
	}
	m := &measurement{e: e, start: time.Now()}
	m.before = m.cpu()
	return m
}

// cpu is the seconds, user and system, since the measurement began.
func (m *measurement) cpu() float64 {
	const ticks = 100 // a second, on Linux always
	var sum float64
	for _, c := range m.e.counted {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Process.Pid))
		if err != nil {
			m.e.t.Fatal(err)
		}
		// Fields follow the name, which ends with a parenthesis; user and system time are the 12th and 13th.
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		for _, f := range fields[11:13] {
			n, err := strconv.ParseFloat(f, 64)
			if err != nil {
				m.e.t.Fatal(err)
			}
			sum += n / ticks
		}
	}
	return sum - m.before
}

func (m *measurement) peakMB() (sum float64) {
	for _, c := range m.e.counted {
		sum += (&server{t: m.e.t, cmd: c}).memory("VmHWM")
	}
	return sum
}

// addTopic makes a topic, with configurations, each a name and a value, and waits until clients can write to it.
func addTopic(s *server, topic string, partitions int32, config ...string) {
	s.t.Helper()
	ctx, admin := context.Background(), s.admin()
	defer admin.Close()
	set := map[string]*string{}
	for i := 0; i < len(config); i += 2 {
		set[config[i]] = &config[i+1]
	}
	if resp, err := admin.CreateTopic(ctx, partitions, 1, set, topic); err != nil {
		s.t.Fatalf("create topic %s: %v %s", topic, err, resp.ErrMessage)
	}
	eventually(s.t, time.Minute, "leaders of "+topic, func() error {
		found, err := admin.ListEndOffsets(ctx, topic)
		if err != nil {
			return err
		}
		if n := len(found[topic]); n != int(partitions) {
			return fmt.Errorf("%d partitions", n)
		}
		return found.Error()
	})
}

// ---------------------------------------------------------------- our side

// tableTopic is one server on a directory, with tables in the external catalog.
func tableTopic(b *testing.B, catalog string) *entrant {
	s := &server{t: b, kafka: freeAddress(b), http: freeAddress(b)}
	s.cmd = exec.Command(binary, "serve", "--data", b.TempDir(), "--kafka", s.kafka, "--http", s.http, "--catalog-uri", catalog)
	s.cmd.Env = environment()
	lab.Start(b, s.cmd, time.Minute, func() error { return call(http.MethodGet, s.registryURL()+"/readyz", nil, nil) })
	set := func(k, v string) kadm.AlterConfig { return kadm.AlterConfig{Op: kadm.SetConfig, Name: k, Value: &v} }
	const namespace = "ours"
	return &entrant{server: s, namespace: namespace, counted: []*exec.Cmd{s.cmd},
		attach: func(topic string, commit time.Duration) {
			if _, err := s.admin().AlterTopicConfigs(context.Background(), []kadm.AlterConfig{
				set("table.topic.enable", "true"), set("table.topic.namespace", namespace),
				set("table.topic.target.lag.ms", fmt.Sprint(commit.Milliseconds()))}, topic); err != nil {
				b.Fatal(err)
			}
		},
		detach: func(string) {},
		failed: func(string) error { return nil },
	}
}

// -------------------------------------------------------------- their side

// Kafka's start scripts give these to the JVM.
var (
	kafkaJVM = []string{"-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
		"-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15", "-Djava.awt.headless=true"}
	brokerHeap  = []string{"-Xms1G", "-Xmx1G"}
	connectHeap = []string{"-Xms256M", "-Xmx2G"}
)

// kafkaAndConnect is a Kafka node, a worker of Connect and a registry, each with the settings
// that its own scripts and files come with.
func kafkaAndConnect(b *testing.B, catalog string) *entrant {
	registry := apicurio(b)
	broker, kafka := kafkaNode(b, b.TempDir())
	worker, connect := connectWorker(b, kafka, registry)
	s := &server{t: b, kafka: kafka, http: registry + "/apis/ccompat/v7"}
	const namespace = "peer"
	return &entrant{server: s, namespace: namespace, counted: []*exec.Cmd{broker, worker},
		attach: func(topic string, commit time.Duration) {
			control := "control-" + topic
			addTopic(s, control, 1)
			if err := call(http.MethodPut, connect+"/connectors/"+topic+"/config", map[string]string{
				"connector.class":                    "org.apache.iceberg.connect.IcebergSinkConnector",
				"tasks.max":                          "2",
				"topics":                             topic,
				"iceberg.catalog.type":               "rest",
				"iceberg.catalog.uri":                catalog,
				"iceberg.tables":                     namespace + "." + topic,
				"iceberg.tables.auto-create-enabled": "true",
				"iceberg.control.topic":              control,
				"iceberg.control.commit.interval-ms": fmt.Sprint(commit.Milliseconds()),
				// The default, 30 s, is for intervals of 10 s: a task that misses the first request delays the commit by it.
				"iceberg.control.commit.timeout-ms": fmt.Sprint(3 * commit.Milliseconds()),
			}, nil); err != nil {
				b.Fatal(err)
			}
		},
		detach: func(topic string) {
			if err := call(http.MethodDelete, connect+"/connectors/"+topic, nil, nil); err != nil {
				b.Fatal(err)
			}
			if _, err := s.admin().DeleteTopics(context.Background(), "control-"+topic); err != nil {
				b.Fatal(err)
			}
		},
		failed: func(topic string) error {
			var status struct {
				Tasks []struct{ State, Trace string }
			}
			if err := call(http.MethodGet, connect+"/connectors/"+topic+"/status", nil, &status); err != nil {
				return err
			}
			for _, task := range status.Tasks {
				if task.State == "FAILED" {
					return fmt.Errorf("a task of connector %s failed: %s", topic, task.Trace)
				}
			}
			return nil
		},
	}
}

// kafkaNode starts broker and controller as one process, whose log is in dir.
func kafkaNode(b *testing.B, dir string) (cmd *exec.Cmd, address string) {
	address = freeAddress(b)
	controller := freeAddress(b)
	config := properties(b, "server.properties",
		"process.roles=broker,controller", "node.id=1",
		"listeners=PLAINTEXT://"+address+",CONTROLLER://"+controller,
		"controller.listener.names=CONTROLLER", "controller.quorum.voters=1@"+controller,
		"log.dirs="+dir,
		"offsets.topic.replication.factor=1", "transaction.state.log.replication.factor=1", "transaction.state.log.min.isr=1",
		"share.coordinator.state.topic.replication.factor=1", "share.coordinator.state.topic.min.isr=1")
	args := "@" + lab.Path(b, "kafka", "java.args")
	run(b, nil, "java", args, "kafka.tools.StorageTool", "format", "--cluster-id", "AAAAAAAAAAAAAAAAAAAAAQ", "--config", config)
	cmd = exec.Command("java", slices.Concat(kafkaJVM, brokerHeap, []string{args, "kafka.Kafka", config})...)
	lab.Start(b, cmd, 2*time.Minute, func() error {
		cl, err := kgo.NewClient(kgo.SeedBrokers(address))
		if err != nil {
			return err
		}
		defer cl.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return cl.Ping(ctx)
	})
	return cmd, address
}

func connectWorker(b *testing.B, kafka, registry string) (cmd *exec.Cmd, url string) {
	url = "http://" + freeAddress(b)
	config := properties(b, "worker.properties",
		"bootstrap.servers="+kafka, "group.id=connect", "listeners="+url,
		"config.storage.topic=connect-configs", "offset.storage.topic=connect-offsets", "status.storage.topic=connect-status",
		"config.storage.replication.factor=1", "offset.storage.replication.factor=1", "status.storage.replication.factor=1",
		// A task at the end of its topic waits this long for more before it sees that a commit is due. By default a minute,
		// so that the last rows of a drain would wait that long: what is measured is the better peer.
		"offset.flush.interval.ms=500",
		"plugin.discovery=service_load", // what is on the class path is not searched
		"key.converter=org.apache.kafka.connect.storage.StringConverter",
		"value.converter=io.apicurio.registry.utils.converter.AvroConverter",
		"value.converter.apicurio.registry.url=http://"+registry+"/apis/registry/v2",
		"value.converter.apicurio.registry.as-confluent=true", "value.converter.apicurio.registry.use-id=contentId")
	cmd = exec.Command("java", slices.Concat(kafkaJVM, connectHeap,
		[]string{"@" + lab.Path(b, "connect", "java.args"), "org.apache.kafka.connect.cli.ConnectDistributed", config})...)
	lab.Start(b, cmd, 3*time.Minute, func() error { return call(http.MethodGet, url+"/connectors", nil, nil) })
	return cmd, url
}

// apicurio starts the registry and returns host and port.
func apicurio(b *testing.B) (address string) {
	jars, err := filepath.Glob(filepath.Join(lab.Path(b, "apicurio", "classes"), "*-runner.jar"))
	if err != nil || len(jars) != 1 {
		b.Fatalf("the registry's jars: %v, %v", jars, err)
	}
	address = freeAddress(b)
	host, port, _ := strings.Cut(address, ":")
	lab.Start(b, exec.Command("java", "-Xmx512m", "-Dquarkus.http.host="+host, "-Dquarkus.http.port="+port, "-jar", jars[0]),
		3*time.Minute, func() error { // the first schema takes seconds
			return call(http.MethodPost, "http://"+address+"/apis/ccompat/v7/subjects/ready/versions", map[string]string{"schema": `"string"`}, nil)
		})
	return address
}

// The jars that tell the versions of what BenchmarkPeer compares with, each after the part of the lab that has it.
var peerJars = [][2]string{{"kafka", "kafka_2.13"}, {"connect", "connect-runtime"}, {"connect", "iceberg-kafka-connect"}, {"apicurio", "apicurio-registry-app"}}

// peerVersions tells what is compared with, by the names of the jars.
func peerVersions(b *testing.B, jars ...[2]string) string {
	var out []string
	for _, jar := range jars {
		text, err := os.ReadFile(lab.Path(b, jar[0], "classpath"))
		if err != nil {
			b.Fatal(err)
		}
		m := regexp.MustCompile(`/` + regexp.QuoteMeta(jar[1]) + `-(\d[^/:]*?)(-all\.tar\.gz|\.jar)`).FindSubmatch(text)
		if m == nil {
			b.Fatalf("no %s in the class path of %s", jar[1], jar[0])
		}
		out = append(out, fmt.Sprintf("%s %s", jar[1], m[1]))
	}
	return "theirs: " + strings.Join(out, ", ")
}

func properties(b *testing.B, name string, lines ...string) (path string) {
	path = filepath.Join(b.TempDir(), name)
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	return path
}

// call sends in, and reads out, as JSON; either may be nil.
func call(method, url string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	if in == nil {
		body = nil
	}
	req, err := http.NewRequest(method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %s", method, url, resp.Status, text)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(text, out)
}
