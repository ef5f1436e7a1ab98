package e2e

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
