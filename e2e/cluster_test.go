package e2e

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// twoServers starts two on one PostgreSQL and one object store.
func twoServers(t *testing.T) []*server {
	t.Helper()
	shared := []string{"--metadata", lab.Postgres(t), "--object-store", "file://" + t.TempDir()}
	return []*server{
		startServer(t, append([]string{"--node-id", "1", "--rack", "zone-1"}, shared...)...),
		startServer(t, append([]string{"--node-id", "2", "--rack", "zone-2"}, shared...)...),
	}
}

// Two servers on one PostgreSQL and one object store make the tables of their topics, which
// both lead in part, also after one of them was killed; each answers for all.
func TestTwoServersOneDatabase(t *testing.T) {
	t.Parallel()
	servers := twoServers(t)
	for i, s := range servers {
		eventually(t, 2*time.Minute, fmt.Sprintf("server %d knows where both stand", i+1), func() error {
			brokers, err := s.admin().ListBrokers(context.Background())
			if err != nil {
				return err
			}
			racks := map[int32]string{}
			for _, b := range brokers {
				if b.Rack != nil {
					racks[b.NodeID] = *b.Rack
				}
			}
			if len(brokers) != 2 || racks[1] != "zone-1" || racks[2] != "zone-2" {
				return fmt.Errorf("%d brokers, in racks %v", len(brokers), racks)
			}
			return nil
		})
	}
	schema := avro.MustParse(eventSchema)
	const each = 100
	produce := func(s *server, topic string) {
		t.Helper()
		header := registerSchema(t, s, topic+"-value", eventSchema)
		cl := s.client(kgo.DefaultProduceTopic(topic))
		for i := range int64(each) {
			body, err := avro.Marshal(schema, event{i, topic})
			if err != nil {
				t.Fatal(err)
			}
			cl.Produce(context.Background(), &kgo.Record{Value: append(append([]byte(nil), header...), body...)}, func(_ *kgo.Record, err error) {
				if err != nil {
					t.Errorf("produce to %s: %v", topic, err)
				}
			})
		}
		if err := cl.Flush(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	for i, s := range servers {
		topic := fmt.Sprint("events", i+1)
		s.createTopic(topic, 2, 300*time.Millisecond)
		produce(s, topic)
	}
	servers[1].kill()
	servers[1].start()
	produce(servers[0], "events2")
	produce(servers[1], "events1")
	for i, s := range servers {
		topic := fmt.Sprint("events", i+1)
		waitForTable(t, servers[1-i], topic, 2*each, 3*time.Minute)
		if out, code := s.cli("", "table", "verify", topic, "--deep"); code != 0 {
			t.Errorf("verify %s: exit %d\n%s", topic, code, out)
		}
		var table struct {
			Location string `json:"metadata-location"`
		}
		if err := servers[1-i].api("/iceberg/v1/namespaces/default/tables/"+topic, &table); err != nil || table.Location == "" {
			t.Errorf("the other server's catalog has no table %s: %v", topic, err)
		}
	}
}

// A record may follow the registration of its schema at once, through another server, hundreds of times: none is a dead
// letter, and two engines read its row.
func TestSchemasAreKnownToOtherServersAtOnce(t *testing.T) {
	t.Parallel()
	servers := twoServers(t)
	servers[0].createTopic("events", 2, 300*time.Millisecond)
	led := map[int32]int32{} // partitions by leader
	for _, p := range partitionRows(t, servers[0], "events") {
		led[p.Leader] = p.Partition
	}
	if len(led) != 2 {
		t.Fatalf("two servers lead %v", led)
	}
	cl := servers[0].client(kgo.DefaultProduceTopic("events"), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))
	const n = 200
	ids := map[string]bool{}
	var producing sync.WaitGroup
	defer producing.Wait()
	want := "id,text\n"
	for i := range n {
		registers, other := servers[i%2], int32(2-i%2)
		schema := strings.Replace(eventSchema, `"name": "Event"`, fmt.Sprintf(`"name": "Event", "doc": "%d"`, i), 1)
		header := registerSchema(t, registers, "events-value", schema)
		if ids[string(header)] = true; len(ids) != i+1 {
			t.Fatalf("%d schemas have %d ids", i+1, len(ids))
		}
		text := fmt.Sprintf("row %04d", i)
		want += fmt.Sprintf("%d,%s\n", 1000+i, text)
		producing.Add(1)
		cl.Produce(context.Background(), &kgo.Record{Partition: led[other], Value: encoded(t, header, schema, event{int64(1000 + i), text})}, func(_ *kgo.Record, err error) {
			defer producing.Done()
			if err != nil {
				t.Errorf("record %d: %v", i, err)
			}
		})
	}
	producing.Wait()
	waitForTable(t, servers[1], "events", n, 3*time.Minute)
	for i, engine := range []string{"duckdb", "pyiceberg"} {
		if got := run(t, nil, "lab/query", engine, "--uri", servers[i].catalogURL(), "--sort", "SELECT id, text FROM ice.default.events"); got != want {
			t.Errorf("%s reads\n%swant\n%s", engine, got, want)
		}
	}
}

// The database, and so the registry, is out of a server's reach for a minute, while records come with a schema that the server
// has not seen: they are taken, no row and no dead letter is made of them, and after the minute they are rows.
func TestRegistryAwayForAMinute(t *testing.T) {
	t.Parallel() // mostly waits
	database, err := url.Parse(lab.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	gate, direct := lab.NewGate(t, database.Host), database.String()
	database.Host = gate.Addr
	tables := lab.IcebergREST(t, "file://"+t.TempDir(), "")
	shared := []string{"--object-store", "file://" + t.TempDir(), "--catalog-uri", tables}
	cut := startServer(t, append([]string{"--node-id", "1", "--metadata", database.String()}, shared...)...)
	cut.createTopic("events", 1, 300*time.Millisecond)
	header := registerSchema(t, cut, "events-value", eventSchema)
	other := startServer(t, append([]string{"--node-id", "2", "--metadata", direct}, shared...)...)
	produceAll(t, cut, "events", encoded(t, header, eventSchema, event{1, "before"}))
	waitForTable(t, cut, "events", 1, 3*time.Minute)
	wider := strings.Replace(eventSchema, `]}`, `, {"name": "more", "type": ["null", "string"], "default": null}]}`, 1)
	header = registerSchema(t, other, "events-value", wider)
	cl := cut.client(kgo.DefaultProduceTopic("events"))
	if err := cl.Ping(context.Background()); err != nil {
		t.Fatal(err)
	}

	gate.Shut()
	want := "id,text,more\n1,before,NULL\n"
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for i := range int64(60) {
		if err := cl.ProduceSync(context.Background(), &kgo.Record{Value: encoded(t, header, wider, obj{"id": 100 + i, "text": "meanwhile", "more": in("string", "x")})}).FirstErr(); err != nil {
			t.Fatalf("produce while the database is away: %v", err)
		}
		want += fmt.Sprintf("%d,meanwhile,x\n", 100+i)
		<-tick.C
	}
	if got := run(t, nil, "lab/query", "duckdb", "--uri", tables, "SELECT id FROM ice.default.events"); got != "id\n1\n" {
		t.Errorf("while the database is away the table has\n%s", got)
	}
	gate.Open()
	waitForTable(t, other, "events", 61, 3*time.Minute)
	topics, err := other.admin().ListTopics(context.Background())
	if err != nil || topics.Has("events.dlq") {
		t.Errorf("topics %v: %v", topics.Names(), err)
	}
	for _, engine := range []string{"duckdb", "pyiceberg"} {
		if got := run(t, nil, "lab/query", engine, "--uri", tables, "--sort", "SELECT id, text, more FROM ice.default.events"); got != want {
			t.Errorf("%s reads\n%swant\n%s", engine, got, want)
		}
	}
}

// The commands of docs/cluster.md work when they are pasted, in order, into one shell; with the
// database of the test in the place of its own.
func TestClusterDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/cluster.md")
	if err != nil {
		t.Fatal(err)
	}
	ours := []string{"'postgres://tabletopic:secret@127.0.0.1:5432/tabletopic'", "'" + lab.Postgres(t) + "'"}
	out := runCommands(t, strings.NewReplacer(ours...).Replace(string(text)))
	for _, want := range []string{"node 2 leads", "node 1 is recovered", "recovered"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not printed:\n%s", want, out)
		}
	}
}
