package e2e

import (
	"strings"
	"testing"
	"time"
)

// What Confluent's Protobuf serializer sends is in the table as it was put into the messages: read
// by two engines, value for value.
func TestProtobuf(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	s.createTopic("events", 2, time.Second)
	want := run(t, nil, "lab/protobuf", "--bootstrap", s.kafka, "--registry", s.registryURL(), "events")
	waitForTable(t, s, "events", 5000, time.Minute)
	columns := strings.TrimSpace(run(t, nil, "lab/protobuf", "--columns"))
	for _, engine := range []string{"duckdb", "pyiceberg"} {
		if diff := diffLines(want, l.query(t, s, engine, "SELECT "+columns+" FROM ice.default.events")); diff != "" {
			t.Errorf("%s differs from the messages:\n%s", engine, diff)
		}
	}
	if out, code := s.cli("", "table", "verify", "events", "--deep"); code != 0 {
		t.Errorf("table verify: exit %d\n%s", code, out)
	}
}
