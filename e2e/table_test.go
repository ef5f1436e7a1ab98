package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/internal/lab"
)

// encoded returns a payload of v in the wire format.
func encoded(t testing.TB, header []byte, schema string, v any) []byte {
	t.Helper()
	body, err := avro.Marshal(avro.MustParse(schema), v)
	if err != nil {
		t.Fatal(err)
	}
	return append(append([]byte(nil), header...), body...)
}

func produceAll(t testing.TB, s *server, topic string, values ...[]byte) {
	t.Helper()
	cl := s.client(kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for i, v := range values {
		if err := cl.ProduceSync(context.Background(), &kgo.Record{Value: v}).FirstErr(); err != nil {
			t.Fatalf("record %d: %v", i, err)
		}
	}
}

// A nullable field is added in mid-stream: the column appears, old rows are null, and the
// first new record has its value.
func TestAddedFieldBecomesColumn(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	l.queryEnv = sharedEngines(t)
	s := l.server(t)
	s.createTopic("people", 1, 500*time.Millisecond)
	v1 := `{"type": "record", "name": "P", "fields": [{"name": "id", "type": "long"}, {"name": "home", "type": {"type": "record", "name": "H", "fields": [{"name": "city", "type": "string"}]}}]}`
	v2 := `{"type": "record", "name": "P", "fields": [{"name": "id", "type": "long"}, {"name": "nick", "type": ["null", "string"], "default": null},
		{"name": "home", "type": {"type": "record", "name": "H", "fields": [{"name": "city", "type": "string"}, {"name": "zip", "type": ["null", "int"], "default": null}]}}]}`
	type home1 struct {
		City string `avro:"city"`
	}
	type home2 struct {
		City string `avro:"city"`
		Zip  *int   `avro:"zip"`
	}
	type person1 struct {
		ID   int64 `avro:"id"`
		Home home1 `avro:"home"`
	}
	type person2 struct {
		ID   int64   `avro:"id"`
		Nick *string `avro:"nick"`
		Home home2   `avro:"home"`
	}
	nick, zip := "ada", 12345
	h1 := registerSchema(t, s, "people-value", v1)
	produceAll(t, s, "people", encoded(t, h1, v1, person1{1, home1{"Rome"}}), encoded(t, h1, v1, person1{2, home1{"Oslo"}}))
	waitForTable(t, s, "people", 2, 3*time.Minute)
	h2 := registerSchema(t, s, "people-value", v2)
	produceAll(t, s, "people",
		encoded(t, h2, v2, person2{3, &nick, home2{"Bonn", &zip}}),
		encoded(t, h1, v1, person1{4, home1{"Lima"}}),
		encoded(t, h2, v2, person2{5, nil, home2{"Bern", nil}}))
	waitForTable(t, s, "people", 5, 3*time.Minute)
	want := "id,nick,city,zip\n1,NULL,Rome,NULL\n2,NULL,Oslo,NULL\n3,ada,Bonn,12345\n4,NULL,Lima,NULL\n5,NULL,Bern,NULL\n"
	for _, engine := range []string{"duckdb", "spark"} {
		if got := l.query(t, s, engine, "SELECT id, nick, home.city AS city, home.zip AS zip FROM ice.default.people"); got != want {
			t.Errorf("%s reads\n%swant\n%s", engine, got, want)
		}
	}
}

// With `pause` records whose schema the table cannot hold wait, and so do those behind them; the other partition goes on, also
// through a restart. What waits becomes rows when the setting says where they go, and nothing is a dead letter.
func TestIncompatibleRecordsWait(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	s.createTopic("waits", 2, 300*time.Millisecond, "table.topic.on.incompatible", "pause")
	setCompatibilityNone(t, s, "waits-value")
	text, number := rec(idField+`,{"name":"x","type":"string"}`), rec(idField+`,{"name":"x","type":"int"}`)
	h1, h2 := registerSchema(t, s, "waits-value", text), registerSchema(t, s, "waits-value", number)
	cl := s.client(kgo.DefaultProduceTopic("waits"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	produce := func(partition int32, payloads ...[]byte) {
		t.Helper()
		for _, p := range payloads {
			if err := cl.ProduceSync(context.Background(), &kgo.Record{Partition: partition, Value: p}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
	texts := func(id int64, x string) []byte { return encoded(t, h1, text, obj{"id": id, "x": x}) }
	numbers := func(id int64, x int) []byte { return encoded(t, h2, number, obj{"id": id, "x": x}) }
	same := func(sql, want string) {
		t.Helper()
		for _, engine := range []string{"duckdb", "pyiceberg"} {
			if got := l.query(t, s, engine, sql); got != want {
				t.Errorf("%s: %s", engine, diffLines(want, got))
			}
		}
	}
	produce(0, texts(1, "a"), numbers(2, 5), texts(3, "b"))
	produce(1, texts(11, "c"))
	if found := stateOf(t, s, "waits", "paused", 3*time.Minute, "column x is string", "table.topic.on.incompatible"); found.LagRecords < 2 {
		t.Errorf("%+v", found)
	}
	s.kill()
	s.start()
	produce(1, texts(12, "d"))
	eventually(t, 3*time.Minute, "rows of the other partition", func() error {
		var status tableStatus
		if err := s.api("/api/tables/waits", &status); err != nil || status.Rows != 3 || status.LagRecords != 2 {
			return fmt.Errorf("%+v, %v", status, err)
		}
		return nil
	})
	same("SELECT id, x FROM ice.default.waits", "id,x\n1,a\n11,c\n12,d\n")
	if out, code := s.cli("", "topic", "alter", "waits", "-c", "table.topic.on.incompatible=new-column"); code != 0 {
		t.Fatal(out)
	}
	waitForTable(t, s, "waits", 5, 3*time.Minute)
	same("SELECT id, x, x__v2 FROM ice.default.waits", "id,x,x__v2\n1,a,NULL\n11,c,NULL\n12,d,NULL\n2,NULL,5\n3,b,NULL\n")
	if topics, err := s.admin().ListTopics(context.Background()); err != nil || topics.Has("waits.dlq") {
		t.Errorf("topics %v: %v", topics.Names(), err)
	}
	if out, code := s.cli("", "table", "verify", "waits", "--deep"); code != 0 {
		t.Errorf("table verify: exit %d\n%s", code, out)
	}
}

// What a schema says of its fields is what engines say of the columns, inside of structs and of fields that are added later, too.
func TestDocsOfFieldsAreThoseOfColumns(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	l.queryEnv = sharedEngines(t)
	s := l.server(t)
	cases := []valueCase{
		{topic: "docs_avro", kind: sr.TypeAvro, versions: []string{
			`{"type":"record","name":"R","doc":"rows","fields":[{"name":"id","type":"long","doc":"who"},{"name":"home","doc":"where","type":{"type":"record","name":"H","doc":"no field","fields":[{"name":"zip","type":"string","doc":"digits"}]}}]}`,
			`{"type":"record","name":"R","doc":"rows","fields":[{"name":"id","type":"long","doc":"who"},{"name":"nick","type":["null","string"],"default":null,"doc":"given later, é"},
				{"name":"home","doc":"where","type":{"type":"record","name":"H","fields":[{"name":"zip","type":"string","doc":"digits"},{"name":"town","type":["null","string"],"default":null,"doc":"since then"}]}}]}`},
			records: []versioned{{0, obj{"id": int64(1), "home": obj{"zip": "0"}}}, {1, obj{"id": int64(2), "nick": nil, "home": obj{"zip": "1", "town": nil}}}}},
		{topic: "docs_json", kind: sr.TypeJSON, versions: []string{
			`{"type":"object","description":"rows","properties":{"id":{"type":"integer","description":"who"},"home":{"type":"object","description":"where","properties":{"zip":{"type":"string","description":"digits"}}}}}`,
			`{"type":"object","properties":{"id":{"type":"integer","description":"who"},"nick":{"type":["null","string"],"description":"given later, é"},
				"home":{"type":"object","description":"where","properties":{"zip":{"type":"string","description":"digits"},"town":{"type":"string","description":"since then"}}}}}`},
			records: []versioned{js(0, `{"id":1,"home":{"zip":"0"}}`), js(1, `{"id":2,"nick":null,"home":{"zip":"1"}}`)}},
	}
	for _, c := range cases {
		c.produce(t, s)
		c.await(t, s)
		for engine, describe := range map[string]string{"spark": "DESCRIBE TABLE ice.default." + c.topic, "trino": "SHOW COLUMNS FROM ice.default." + c.topic} {
			got := l.query(t, s, engine, describe)
			for name, doc := range map[string]string{"id": "who", "home": "where", "nick": "\"given later, é\""} {
				if !regexp.MustCompile(`(?m)^` + name + `,.*,` + doc + `$`).MatchString(got) {
					t.Errorf("%s: column %s is not %s in what %s describes:\n%s", c.topic, name, doc, engine, got)
				}
			}
		}
		makeTable(t, s, fmt.Sprintf(`
schema = cat.load_table("default.%s").schema()
docs = {n: schema.find_field(n).doc for n in ["id", "home", "home.zip", "nick", "home.town", "_kafka"]}
assert docs == {"id": "who", "home": "where", "home.zip": "digits", "nick": "given later, é", "home.town": "since then", "_kafka": None}, docs`, c.topic))
	}
}

// throttles counts answers by which brokers have a client wait.
type throttles struct{ atomic.Int64 }

// OnBrokerThrottle implements kgo.HookBrokerThrottle.
func (n *throttles) OnBrokerThrottle(kgo.BrokerMetadata, time.Duration, bool) { n.Add(1) }

// The catalog is away for a minute: records are acknowledged as they are in a topic without a table, a
// server that is killed starts again, nothing is lost, and the rows appear after.
func TestCatalogAway(t *testing.T) {
	t.Parallel() // mostly waits
	const away = time.Minute
	port, data, warehouse := lab.FreePort(t), t.TempDir(), "file://"+t.TempDir()
	uri := fmt.Sprintf("http://127.0.0.1:%d", port)
	stop := lab.IcebergRESTOn(t, port, data, warehouse, "")
	s := startServer(t, "--catalog-uri", uri)
	s.createTopic("events", 2, 500*time.Millisecond)
	if _, err := s.admin().CreateTopic(t.Context(), 2, 1, nil, "plain"); err != nil {
		t.Fatal(err)
	}
	header := registerSchema(t, s, "events-value", eventSchema)
	value := func(id int) []byte { return encoded(t, header, eventSchema, event{int64(id), "x"}) }
	const before = 100
	var first [][]byte
	for id := range before {
		first = append(first, value(id))
	}
	produceAll(t, s, "events", first...)
	waitForTable(t, s, "events", before, 3*time.Minute)
	stop()

	until, cancel := context.WithTimeout(t.Context(), away)
	defer cancel()
	var throttled throttles
	// produce sends a record whenever the one before it is acknowledged.
	produce := func(topic string) (acked int) {
		cl := s.client(kgo.DefaultProduceTopic(topic), kgo.WithHooks(&throttled))
		for until.Err() == nil {
			if err := cl.ProduceSync(context.Background(), &kgo.Record{Value: value(before + acked)}).FirstErr(); err != nil {
				t.Errorf("produce to %s while the catalog is away, after %d records: %v", topic, acked, err)
				break
			}
			acked++
		}
		return acked
	}
	var ours, plain int
	var producing sync.WaitGroup
	producing.Go(func() { ours = produce("events") })
	producing.Go(func() { plain = produce("plain") })
	halfway := time.NewTimer(away / 2)
	<-halfway.C
	s.kill()
	s.start()
	producing.Wait()
	produced := before + ours
	t.Logf("%d records acknowledged while the catalog was away, %d in a topic without a table", ours, plain)
	if n := throttled.Load(); n > 0 || ours == 0 || 2*ours < plain {
		t.Errorf("%d records acknowledged while the catalog was away, %d in a topic without a table; throttled %d times", ours, plain, n)
	}
	var status tableStatus
	if err := s.api("/api/tables/events", &status); err != nil || status.LagRecords < int64(ours) {
		t.Errorf("while the catalog is away the table lags by %d records, want %d at least: %v", status.LagRecords, ours, err)
	}
	lab.IcebergRESTOn(t, port, data, warehouse, "")
	waitForTable(t, s, "events", int64(produced), 3*time.Minute)
	got := run(t, nil, "lab/query", "duckdb", "--uri", uri, "--sort", "SELECT count(*) AS n, count(DISTINCT id) AS ids, sum(id) AS total FROM ice.default.events")
	want := fmt.Sprintf("n,ids,total\n%d,%d,%d\n", produced, produced, produced*(produced-1)/2)
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if out, code := s.cli("", "table", "verify", "events", "--deep"); code != 0 {
		t.Errorf("table verify: exit %d\n%s", code, out)
	}
}

// What retention takes while the table is off is a gap that the metrics count, a snapshot records and verify tells; the table goes on
// behind it.
func TestRetentionTakesWhatTheTableWasOffFor(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--retention-check-interval", "200ms", "--upload-interval", "200ms")
	s.createTopic("events", 1, 300*time.Millisecond)
	header := registerSchema(t, s, "events-value", eventSchema)
	want := "id,text\n"
	produce := func(first, n int, text string, row bool) {
		t.Helper()
		var values [][]byte
		for i := range n {
			values = append(values, encoded(t, header, eventSchema, event{int64(first + i), text}))
			if row {
				want += fmt.Sprintf("%d,%s\n", first+i, text)
			}
		}
		produceAll(t, s, "events", values...)
	}
	set := func(config ...string) {
		t.Helper()
		args := []string{"topic", "alter", "events"}
		for _, c := range config {
			args = append(args, "-c", c)
		}
		if out, code := s.cli("", args...); code != 0 {
			t.Fatal(out)
		}
	}
	produce(100, 20, "before", true)
	tableHolds(t, s, "events")
	set("table.topic.enable=false")
	produce(200, 30, "lost", false)
	set("retention.ms=1")
	eventually(t, time.Minute, "retention takes all", func() error {
		starts, err := s.admin().ListStartOffsets(context.Background(), "events")
		if o, _ := starts.Lookup("events", 0); err != nil || o.Offset != 50 {
			return fmt.Errorf("the log begins at %d: %v", o.Offset, err)
		}
		return nil
	})
	set("retention.ms=-1", "table.topic.enable=true")
	produce(300, 10, "after", true)
	tableHolds(t, s, "events")
	for _, engine := range []string{"duckdb", "pyiceberg"} {
		if got := run(t, nil, "lab/query", engine, "--uri", s.catalogURL(), "--sort", "SELECT id, text FROM ice.default.events"); got != want {
			t.Errorf("%s: %s", engine, diffLines(want, got))
		}
	}
	if _, body := fetched(t, s, "/metrics"); lines(body, "tabletopic_table_gap_offsets_total{") != "tabletopic_table_gap_offsets_total{topic=\"events\"} 30\n" {
		t.Errorf("/metrics: %s", lines(body, "tabletopic_table_gap"))
	}
	said := lines(s.log.String(), "the log had lost offsets before they reached the table")
	if strings.Count(said, "\n") != 1 || !strings.Contains(said, "level=WARN") || !strings.Contains(said, "topic=events") || !strings.HasSuffix(said, " partition=0 offset=20 until=50\n") {
		t.Errorf("the log says of the gap: %s", said)
	}
	makeTable(t, s, `
gaps = [{k: v for k, v in s.summary.additional_properties.items() if k.startswith("tabletopic.gaps.")} for s in cat.load_table("default.events").snapshots()]
assert [g for g in gaps if g] == [{"tabletopic.gaps.0": "0:20-50"}], gaps`)
	s.kill() // what a server has in memory is not what they say
	s.start()
	for _, flags := range [][]string{nil, {"--deep"}} {
		out, code := s.cli("", append([]string{"table", "verify", "events"}, flags...)...)
		// partition, start, next, end, rows, dead, lost, duplicates, beyond, ahead, deleted, gaps
		got := strings.Split(out, "\n")
		if code != 0 || len(got) < 3 || !slices.Equal(strings.Fields(got[1]), strings.Fields("0 50 60 60 30 0 0 0 0 0 0 30")) || got[2] != "partition 0: offsets 20 to 50 are not in the table: retention" {
			t.Errorf("table verify %v: exit %d\n%s", flags, code, out)
		}
	}
	out, code := s.cli("", "table", "verify", "events", "--output", "json")
	var report coordinator.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil || code != 0 || len(report.Partitions) != 1 {
		t.Fatalf("table verify: exit %d, %v\n%s", code, err, out)
	}
	gap := []coordinator.LostSpan{{Start: 20, End: 50, Reason: coordinator.LostRetention}}
	if p := report.Partitions[0]; p.Gaps != 30 || !slices.Equal(p.GapRanges, gap) {
		t.Errorf("table verify has gaps of %d offsets, %+v, want %+v", p.Gaps, p.GapRanges, gap)
	}
}

// A topic that was deleted and is made again, with offsets from 0, goes on in the table that it had: rows of both are there
// once, also when the server is killed between.
func TestTopicMadeAnewGoesOnInItsTable(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	want := "id,text\n"
	produce := func(first, n int, text string) {
		t.Helper()
		header := registerSchema(t, s, "events-value", eventSchema)
		var values [][]byte
		for i := range n {
			values = append(values, encoded(t, header, eventSchema, event{int64(first + i), text}))
			want += fmt.Sprintf("%d,%s\n", first+i, text)
		}
		produceAll(t, s, "events", values...)
		tableHolds(t, s, "events")
	}
	s.createTopic("events", 1, 300*time.Millisecond)
	produce(100, 30, "first")
	for i, text := range []string{"second", "third"} {
		if _, err := s.admin().DeleteTopics(context.Background(), "events"); err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			s.kill()
			s.start()
		}
		s.createTopic("events", 1, 300*time.Millisecond)
		produce(200+100*i, 10, text)
		for _, engine := range []string{"duckdb", "pyiceberg"} {
			if got := l.query(t, s, engine, "SELECT id, text FROM ice.default.events"); got != want {
				t.Errorf("%s: %s", engine, diffLines(want, got))
			}
		}
		if out, code := s.cli("", "table", "verify", "events", "--deep"); code != 0 {
			t.Errorf("table verify: exit %d\n%s", code, out)
		}
	}
}

// What cannot be decoded goes to the dead letters with its cause; its neighbours land.
func TestBadPayloads(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	l.queryEnv = sharedEngines(t)
	s := l.server(t)
	s.createTopic("events", 1, 500*time.Millisecond)
	header := registerSchema(t, s, "events-value", eventSchema)
	good := func(id int64) []byte { return encoded(t, header, eventSchema, event{id, "good"}) }
	whole := good(2)
	produceAll(t, s, "events",
		good(0),
		[]byte(`{"not": "wire format"}`),
		[]byte{0, 0, 0, 0x27, 0x0f, 1, 2}, // schema id 9999
		whole[:len(whole)-2],
		append(good(3), 0), // a byte too many
		[]byte{},
		nil, // a tombstone is a row without values
		good(1))
	waitForTable(t, s, "events", 3, 3*time.Minute)
	for engine, sql := range map[string]string{"duckdb": `SELECT id, text, _kafka."offset" AS o FROM ice.default.events`, "spark": "SELECT id, text, _kafka.offset AS o FROM ice.default.events"} {
		if got, want := l.query(t, s, engine, sql), "id,text,o\n0,good,0\n1,good,7\nNULL,NULL,6\n"; got != want {
			t.Errorf("%s reads\n%swant\n%s", engine, got, want)
		}
	}
	out, code := s.cli("", "consume", "events.dlq", "--meta")
	if code != 0 {
		t.Fatal(out)
	}
	for offset, cause := range map[int]string{1: "no-magic-byte", 2: "unknown-schema", 3: "undecodable", 4: "undecodable", 5: "no-magic-byte"} {
		found := false
		for line := range strings.Lines(out) {
			found = found || strings.Contains(line, fmt.Sprintf(`"tabletopic.source.offset","value":"%d"`, offset)) && strings.Contains(line, cause)
		}
		if !found {
			t.Errorf("no dead letter of offset %d with cause %s in\n%s", offset, cause, out)
		}
	}
	if n := strings.Count(out, "\n"); n != 5 {
		t.Errorf("%d dead letters, want 5", n)
	}
	if out, code := s.cli("", "table", "verify", "events", "--deep"); code != 0 {
		t.Errorf("table verify: exit %d\n%s", code, out)
	}
}

// Requests that cannot work are refused with a reason, and the server goes on.
func TestRefusedRequests(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ctx := context.Background()
	adm := s.admin()
	create := func(topic string, config map[string]string) error {
		set := map[string]*string{}
		for k, v := range config {
			set[k] = kadm.StringPtr(v)
		}
		resp, err := adm.CreateTopic(ctx, 1, 1, set, topic)
		if err != nil {
			return fmt.Errorf("%w: %s", err, resp.ErrMessage)
		}
		return nil
	}
	for _, c := range []struct {
		name   string
		err    error
		code   *kerr.Error
		reason string
	}{
		{"unknown key", create("a", map[string]string{"table.topic.enabled": "true"}), kerr.InvalidConfig, "table.topic.enable"},
		{"value of the wrong kind", create("b", map[string]string{"table.topic.target.lag.ms": "soon"}), kerr.InvalidConfig, "table.topic.target.lag.ms"},
		{"table name that no catalog takes", create("c", map[string]string{"table.topic.enable": "true", "table.topic.name": "../Über"}), kerr.InvalidConfig, "table.topic.name"},
		{"table of another topic", errors.Join(create("e", map[string]string{"table.topic.enable": "true"}), create("f", map[string]string{"table.topic.enable": "true", "table.topic.name": "e"})), kerr.InvalidConfig, "table.topic.name"},
		{"catalog that does not exist", create("d", map[string]string{"table.topic.enable": "true", "table.topic.catalog": "lake"}), kerr.InvalidConfig, "table.topic.catalog"},
		{"topic name", create("no/slash", nil), kerr.InvalidTopicException, ""},
	} {
		if !errors.Is(c.err, c.code) || !strings.Contains(fmt.Sprint(c.err), c.reason) {
			t.Errorf("%s: got %v, want %s with %q", c.name, c.err, c.code.Message, c.reason)
		}
	}

	// A topic name that no catalog takes gets a table name that all do.
	for topic, table := range map[string]string{"Orders.v1": "orders_v1", "1st-Topic": "_1st_topic"} {
		s.createTopic(topic, 1, 500*time.Millisecond)
		header := registerSchema(t, s, topic+"-value", eventSchema)
		produceAll(t, s, topic, encoded(t, header, eventSchema, event{1, topic}))
		waitForTable(t, s, topic, 1, 3*time.Minute)
		var status struct{ Table string }
		if err := s.api("/api/tables/"+topic, &status); err != nil || !strings.HasSuffix(status.Table, table) {
			t.Errorf("topic %s is table %q, %v; want %s", topic, status.Table, err, table)
		}
	}

	// A record of 20 MB is refused, by a client that does not refuse it itself.
	cl := s.client(kgo.DefaultProduceTopic("Orders.v1"), kgo.ProducerBatchMaxBytes(64<<20), kgo.BrokerMaxWriteBytes(80<<20), kgo.RecordRetries(0))
	if err := cl.ProduceSync(ctx, &kgo.Record{Value: make([]byte, 20<<20)}).FirstErr(); !errors.Is(err, kerr.MessageTooLarge) {
		t.Errorf("20 MB record: %v, want MESSAGE_TOO_LARGE", err)
	}
	header := registerSchema(t, s, "Orders.v1-value", eventSchema)
	produceAll(t, s, "Orders.v1", encoded(t, header, eventSchema, event{2, "still here"}))
	waitForTable(t, s, "Orders.v1", 2, 3*time.Minute)
}

// On a full disk produce is told that it timed out, the server says why and stays up, and
// goes on by itself once there is room. What was acknowledged is there.
func TestFullDisk(t *testing.T) {
	t.Parallel() // mostly waits
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a small tmpfs")
	}
	disk := t.TempDir()
	mount := func(options string) ([]byte, error) {
		return exec.Command("mount", "-t", "tmpfs", "-o", options, "tmpfs", disk).CombinedOutput()
	}
	if out, err := mount("size=48m"); err != nil {
		t.Skipf("mount a small tmpfs: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", disk).Run() })
	s := newServer(t)
	s.data = disk
	s.start()
	s.createTopic("events", 1, 500*time.Millisecond)
	header := registerSchema(t, s, "events-value", eventSchema)
	cl := s.client(kgo.DefaultProduceTopic("events"), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProduceRequestTimeout(2*time.Second),
		kgo.DisableIdempotentWrite(), kgo.RecordDeliveryTimeout(10*time.Second), kgo.RecordRetries(2)) // an idempotent one would wait for room
	var acked int64
	var failure error
	for i := int64(0); failure == nil; i++ {
		if i > 2000 {
			t.Fatal("200 MB fit into 48 MB")
		}
		value := encoded(t, header, eventSchema, event{i, fmt.Sprintf("%0100000d", i)})
		if failure = cl.ProduceSync(context.Background(), &kgo.Record{Value: value}).FirstErr(); failure == nil {
			acked++
		}
	}
	t.Logf("%d records until: %v", acked, failure)
	if log := s.log.String(); !strings.Contains(log, "no space left on device") || !strings.Contains(log, "is full") {
		t.Errorf("the server does not say that the disk is full:\n%s", tail([]byte(log), 3000))
	}
	if out, err := mount("remount,size=1g"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cl = s.client(kgo.DefaultProduceTopic("events"))
	if err := cl.ProduceSync(context.Background(), &kgo.Record{Value: encoded(t, header, eventSchema, event{-1, "after"})}).FirstErr(); err != nil {
		t.Fatalf("produce once there is room: %v", err)
	}
	s.kill()
	s.start()
	log := readLog(t, s, "events", 1)
	if int64(len(log)) < acked+1 {
		t.Errorf("%d records in the log, %d were acknowledged", len(log), acked+1)
	}
	waitForTable(t, s, "events", int64(len(log)), 3*time.Minute)
}

// Each command that says something says it as JSON too.
func TestOutputJSON(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	dir := t.TempDir()
	schema, common, event := filepath.Join(dir, "event.avsc"), filepath.Join(dir, "common.proto"), filepath.Join(dir, "event.proto")
	for file, text := range map[string]string{
		schema: eventSchema,
		common: `syntax = "proto3"; message Common {}`,
		event:  `syntax = "proto3"; import "common.proto"; message Event { Common c = 1; }`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		stdin string
		args  []string
		want  string
	}{
		{"", []string{"topic", "create", "a", "-p", "2", "--table", "-c", "table.topic.target.lag.ms=100"}, `"partitions":2`},
		{"", []string{"schema", "register", "a-value", schema}, `"id":1`},
		{`{"id": 1, "text": "x"}` + "\n", []string{"produce", "a"}, `"produced":1`},
		{"", []string{"topic", "list"}, `"log_end_offset":1`},
		{"", []string{"topic", "describe", "a"}, `"log_end_offset":1`},
		{"", []string{"topic", "alter", "a", "-p", "3"}, `"topic":"a"`},
		{"", []string{"table", "list"}, `"table":"default.a"`},
		{"", []string{"table", "describe", "a"}, `"table":"default.a"`},
		{"", []string{"schema", "list"}, `"id":1`},
		{"", []string{"schema", "get", "1"}, `"schema":`},
		{"", []string{"schema", "check", "a-value", schema}, `"is_compatible":true`},
		{"", []string{"schema", "register", "common", common}, `"schemaType":"PROTOBUF"`},
		{"", []string{"schema", "register", "event", event, "--reference", "common.proto=common:1"}, `"references":[{"name":"common.proto","subject":"common","version":1}]`},
		{"", []string{"schema", "check", "event", event, "--reference", "common.proto=common:1"}, `"is_compatible":true`},
		{"", []string{"schema", "compatibility"}, `"level":"BACKWARD"`},
		{"", []string{"schema", "delete", "a-value"}, `"versions":[1]`},
		{"", []string{"topic", "delete", "a"}, `"topic":"a"`},
	} {
		out, code := s.cli(c.stdin, append(c.args, "--output", "json")...)
		var compact bytes.Buffer
		if err := json.Compact(&compact, []byte(out)); err != nil || code != 0 || !strings.Contains(compact.String(), c.want) {
			t.Errorf("%s: exit %d, %v, want %s in\n%s", strings.Join(c.args, " "), code, err, c.want, out)
		}
	}
}

// A command that waits for records says that the server is gone, and goes on when it is back.
func TestConsumeOutlivesTheServer(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.createTopic("a", 1, time.Second)
	printed := &logBuffer{}
	cmd := exec.Command(binary, "consume", "a", "--follow", "--bootstrap", s.kafka, "--http", s.http)
	cmd.Env = environment()
	cmd.Stdout, cmd.Stderr = printed, printed
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	says := func(what string) {
		t.Helper()
		eventually(t, 2*time.Minute, "consume says "+what, func() error {
			if out := printed.String(); !strings.Contains(out, what) {
				return errors.New(out)
			}
			return nil
		})
	}
	produceAll(t, s, "a", []byte("first"))
	says("first")
	s.kill()
	says("is gone")
	s.start()
	produceAll(t, s, "a", []byte("second"))
	says("is back")
	says("second")
}
