package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/sr"
	"golang.org/x/sync/errgroup"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// Serializers of other registries and languages register with ours, write to and read from our broker, read
// each other's records, and all of these are in the table.
func TestRegistryClients(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	s.createTopic("clicks", 1, time.Second)
	env := []string{"NODE_PATH=" + filepath.Join(lab.Path(t, "kafkajs-registry"), "node_modules")}
	lines := func(out string, prefix string) (all []string) {
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, prefix) { // libraries say things too
				all = append(all, strings.TrimSpace(line))
			}
		}
		slices.Sort(all)
		return all
	}
	want := []string{`{"id":1,"page":"/1"}`, `{"id":2,"page":"/2"}`, `{"id":3,"page":"/3"}`}
	if d := cmp.Diff(want, lines(run(t, env, "timeout", "180", "node", "lab/registry/kafkajs.js", s.kafka, s.registryURL(), "clicks"), `{"id"`)); d != "" {
		t.Errorf("kafkajs read (-want +got):\n%s", d)
	}
	for _, id := range []string{"11", "12", "13"} {
		want = append(want, `{"id":`+id+`,"page":"/`+id+`"}`)
	}
	slices.Sort(want)
	out := run(t, nil, "timeout", "180", "java", "-Xmx200m", "-cp", classpath(t, "apicurio-serde"), "lab/registry/ApicurioSerde.java", s.kafka, s.registryURL(), "clicks")
	if d := cmp.Diff(want, lines(strings.ReplaceAll(out, `": `, `":`), `{"id"`), cmp.Transformer("spaces", func(s string) string { return strings.ReplaceAll(s, " ", "") })); d != "" {
		t.Errorf("Apicurio read (-want +got):\n%s", d)
	}
	waitForTable(t, s, "clicks", 6, 3*time.Minute)
	if got, want := l.query(t, s, "duckdb", "SELECT id, page FROM ice.default.clicks"), "id,page\n1,/1\n11,/11\n12,/12\n13,/13\n2,/2\n3,/3\n"; got != want {
		t.Errorf("the table has\n%swant\n%s", got, want)
	}
}

// confluent-kafka's serializers of all types of schemas refer to other subjects, and what they sent is in tables.
func TestConfluentSerializersWithReferences(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	names := []string{"avro", "protobuf", "json"}
	var topics, want []string
	for _, name := range names {
		topics = append(topics, name+"-visits")
		s.createTopic(name+"-visits", 1, time.Second)
		for _, id := range []string{"1", "2", "3"} {
			want = append(want, name+` {"id":`+id+`,"page":{"path":"/`+name+"/"+id+`"}}`)
		}
	}
	out := run(t, nil, "timeout", append([]string{"180", python(), "lab/registry/confluent.py", s.kafka, s.registryURL()}, topics...)...)
	if d := cmp.Diff(want, strings.Split(strings.TrimSpace(out), "\n")); d != "" {
		t.Errorf("read (-want +got):\n%s", d)
	}
	for i, name := range names {
		waitForTable(t, s, topics[i], 3, 3*time.Minute)
		got := l.query(t, s, "duckdb", `SELECT id, page.path AS path FROM ice.default.`+name+`_visits`)
		if want := "id,path\n1,/" + name + "/1\n2,/" + name + "/2\n3,/" + name + "/3\n"; got != want {
			t.Errorf("the table of %s has\n%swant\n%s", topics[i], got, want)
		}
	}
}

// Three servers register hundreds of schemas at once, in make soak ten thousand, each of them at two servers, while one after the other is
// killed: no schema has two ids, and no id two schemas, whichever server is asked.
func TestSchemaIDsThroughKills(t *testing.T) {
	t.Parallel()
	const workers = 16
	each := 100
	if os.Getenv("TABLETOPIC_SOAK") != "" {
		each = 1250
	}
	shared := []string{"--metadata", lab.Postgres(t), "--object-store", "file://" + t.TempDir()}
	var servers []*server
	var urls []string
	for i := range 3 {
		s := startServer(t, append([]string{"--node-id", strconv.Itoa(i + 1)}, shared...)...)
		servers, urls = append(servers, s), append(urls, s.registryURL())
	}
	var clients []*sr.Client
	for i := range 3 {
		cl, err := sr.NewClient(sr.URLs(append(urls[i:3:3], urls[:i]...)...)) // the others if one does not answer
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, cl)
	}
	var mu sync.Mutex
	ids, texts := map[string]int{}, map[int]string{}
	registered := make(chan struct{}, 2*workers*each)
	all, failed := errgroup.WithContext(t.Context())
	for w := range workers {
		all.Go(func() error {
			for i := range each {
				text := fmt.Sprintf(`{"type":"enum","name":"E%d","symbols":["A"]}`, (w/2)*each+i) // as another worker does
				added, err := clients[(w+i)%3].CreateSchema(t.Context(), fmt.Sprintf("s-%d-%d", w, i), sr.Schema{Schema: text})
				if err != nil {
					return fmt.Errorf("worker %d schema %d: %w", w, i, err)
				}
				mu.Lock()
				if was, ok := ids[text]; ok && was != added.ID {
					t.Errorf("%s has the ids %d and %d", text, was, added.ID)
				}
				if was, ok := texts[added.ID]; ok && was != text {
					t.Errorf("id %d is %s and %s", added.ID, was, text)
				}
				ids[text], texts[added.ID] = added.ID, text
				mu.Unlock()
				registered <- struct{}{}
			}
			return nil
		})
	}
	for _, s := range servers {
		for range workers * each / 5 {
			select {
			case <-registered:
			case <-failed.Done():
			}
		}
		s.kill()
		s.start()
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(ids) != workers/2*each || len(texts) != len(ids) {
		t.Fatalf("%d schemas have %d ids, want %d", len(ids), len(texts), workers/2*each)
	}
	for id, text := range texts {
		if got, err := clients[id%3].SchemaByID(t.Context(), id); err != nil || got.Schema != text {
			t.Errorf("id %d: %s, %v, want %s", id, got.Schema, err, text)
		}
	}
}
