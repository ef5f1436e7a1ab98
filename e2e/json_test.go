package e2e

import (
	"strings"
	"testing"
	"time"
)

// What Confluent's JSON Schema serializer sends is in the table as the records say it, value for
// value, in two engines; and so are the same records without a schema, in columns of the same
// types as far as JSON tells them.
func TestJSON(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	s.createTopic("events", 2, time.Second)
	s.createTopic("plain", 2, time.Second, "table.topic.value.format", "json")
	want := run(t, nil, "lab/json", "--bootstrap", s.kafka, "--registry", s.registryURL(), "events", "plain")
	waitForTable(t, s, "events", 5000, time.Minute)
	waitForTable(t, s, "plain", 5000, time.Minute)
	columns := strings.TrimSpace(run(t, nil, "lab/json", "--columns"))
	for _, engine := range []string{"duckdb", "pyiceberg"} {
		if diff := diffLines(want, l.query(t, s, engine, "SELECT "+columns+" FROM ice.default.events")); diff != "" {
			t.Errorf("%s differs from the records:\n%s", engine, diff)
		}
	}
	// PyIceberg gives columns in the order of the table, which is that in which they first had a value.
	for engine, same := range map[string]string{"duckdb": "id, name, note, ratio, ok, color, point, path", "pyiceberg": "id, name, ratio, color, path"} {
		if diff := diffLines(l.query(t, s, engine, "SELECT "+same+" FROM ice.default.events"), l.query(t, s, engine, "SELECT "+same+" FROM ice.default.plain")); diff != "" {
			t.Errorf("%s: without a schema the table differs:\n%s", engine, diff)
		}
	}
	for _, topic := range []string{"events", "plain"} {
		if out, code := s.cli("", "table", "verify", topic, "--deep"); code != 0 {
			t.Errorf("table verify: exit %d\n%s", code, out)
		}
	}
}
