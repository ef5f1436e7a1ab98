package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/internal/lab"
)

var engines = []string{"duckdb", "pyiceberg", "trino", "spark"}

// A lake is where a server keeps its data, and how engines reach it.
type lake struct {
	flags     []string // of serve
	env       []string // of serve
	queryArgs []string // of lab/query
	queryEnv  []string // environment of lab/query
}

func directoryLake(testing.TB) *lake { return &lake{} }

func s3Lake(t testing.TB) *lake {
	endpoint, _, _ := lab.Versitygw(t, "lake")
	return &lake{
		flags:     []string{"--object-store", "s3://lake/tt?region=us-east-1&path-style=true&endpoint=" + endpoint},
		env:       s3Credentials,
		queryArgs: []string{"--s3-endpoint", endpoint},
	}
}

// forEachLake runs a test on the directory store and on S3, side by side.
func forEachLake(t *testing.T, test func(t *testing.T, l *lake)) {
	for name, open := range map[string]func(testing.TB) *lake{"directory": directoryLake, "s3": s3Lake} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

func (l *lake) server(t testing.TB) *server {
	t.Helper()
	s := newServer(t, l.flags...)
	s.env = l.env
	s.start()
	return s
}

// query runs SQL in one engine and returns sorted CSV.
func (l *lake) query(t testing.TB, s *server, engine, sql string) string {
	t.Helper()
	out, err := l.tryQuery(s, engine, sql)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (l *lake) tryQuery(s *server, engine, sql string) (string, error) {
	args := append([]string{engine, "--uri", s.catalogURL(), "--sort"}, l.queryArgs...)
	return tryRun(l.queryEnv, "lab/query", append(args, sql)...)
}

// produceExample runs one of the examples' producers and returns what it says it did.
func produceExample(t testing.TB, s *server, language, topic string, first, count int) (done struct {
	Acked      int64 `json:"acked"`
	SumDwellMS int64 `json:"sum_dwell_ms"`
	SumEventID int64 `json:"sum_event_id"`
}) {
	t.Helper()
	var name string
	var args []string
	switch language {
	case "python":
		name, args = python(), []string{"../examples/python/produce.py"}
	case "java":
		name, args = "java", []string{"-cp", javaExamples(t), "ClickProducer"}
	case "go":
		name, args = "go", []string{"run", "../examples/go"}
	}
	args = append(args, "--bootstrap", s.kafka, "--registry", s.registryURL(), "--schema", "../examples/click.avsc",
		"--topic", topic, "--first", fmt.Sprint(first), "--count", fmt.Sprint(count))
	out := run(t, nil, name, args...)
	if err := json.Unmarshal([]byte(out), &done); err != nil {
		t.Fatalf("%s producer printed %q: %v", language, out, err)
	}
	if done.Acked != int64(count) {
		t.Fatalf("%s producer: %d of %d acknowledged", language, done.Acked, count)
	}
	return done
}

// javaExamples compiles the Java example and returns its class path.
func javaExamples(t testing.TB) string {
	t.Helper()
	classpath, err := os.ReadFile(filepath.Join(lab.Home(), "kafka-clients", "classpath"))
	if err != nil {
		t.Fatalf("%v: run make lab", err)
	}
	dir := t.TempDir()
	files, err := filepath.Glob("../examples/java/*.java")
	if err != nil {
		t.Fatal(err)
	}
	jars := strings.TrimSpace(string(classpath))
	run(t, nil, "javac", append([]string{"-nowarn", "-d", dir, "-cp", jars}, files...)...)
	return dir + ":" + jars
}

// waitForTable waits until the table of topic holds rows rows and lags nowhere.
func waitForTable(t testing.TB, s *server, topic string, rows int64, within time.Duration) {
	t.Helper()
	eventually(t, within, fmt.Sprintf("%d rows in the table of %s", rows, topic), func() error {
		var status tableStatus
		if err := s.api("/api/tables/"+topic, &status); err != nil {
			return err
		}
		if status.Rows != rows || status.LagRecords != 0 {
			return fmt.Errorf("%d rows, lag %d records: %s", status.Rows, status.LagRecords, status.Message)
		}
		return nil
	})
}

type tableStatus struct {
	Rows       int64  `json:"rows"`
	LagRecords int64  `json:"lag_records"`
	Message    string `json:"message"`
}

// 200,000 records from three clients in three languages are, row for row and value for
// value, the same in four engines as a Kafka consumer sees them.
func TestEnginesAgreeWithTheLog(t *testing.T) {
	t.Parallel()
	forEachLake(t, func(t *testing.T, l *lake) {
		s := l.server(t)
		l.queryEnv = sharedEngines(t)
		s.createTopic("clicks", 4, time.Second)
		var sumDwell, sumID int64
		counts := map[string]int{"python": 60_000, "java": 70_000, "go": 70_000}
		first := 0
		for _, language := range []string{"python", "java", "go"} {
			done := produceExample(t, s, language, "clicks", first, counts[language])
			sumDwell += done.SumDwellMS
			sumID += done.SumEventID
			first += counts[language]
		}
		waitForTable(t, s, "clicks", 200_000, 2*time.Minute)

		want := run(t, nil, "lab/oracle", "--bootstrap", s.kafka, "--registry", s.registryURL(), "--sort", "clicks")
		aggregates := fmt.Sprintf("200000,%d,%d,0,199999,200000\n", sumDwell, sumID)
		for _, engine := range engines {
			t.Run(engine, func(t *testing.T) {
				if diff := diffLines(want, l.query(t, s, engine, "SELECT * FROM ice.default.clicks")); diff != "" {
					t.Errorf("%s differs from the log:\n%s", engine, diff)
				}
				if engine == "pyiceberg" { // has no SQL to aggregate
					return
				}
				got := l.query(t, s, engine, "SELECT count(*) AS n, sum(dwell_ms) AS dwell, sum(event_id) AS ids, min(event_id) AS lo, max(event_id) AS hi, "+
					"count(DISTINCT CAST(_kafka.partition AS BIGINT) * 1000000000 + _kafka.offset) AS places FROM ice.default.clicks")
				if _, row, _ := strings.Cut(got, "\n"); row != aggregates {
					t.Errorf("%s aggregates %q, want %q", engine, row, aggregates)
				}
			})
		}
		if out, code := s.cli("", "table", "verify", "clicks", "--deep"); code != 0 {
			t.Errorf("table verify: exit %d\n%s", code, out)
		}
	})
}

// A real data set with nulls, delays below zero, local and UTC times, value for value.
func TestFlights(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	l.queryEnv = sharedEngines(t)
	s.createTopic("flights", 3, time.Second)
	want := run(t, nil, "lab/flights", "--bootstrap", s.kafka, "--registry", s.registryURL(), "flights")
	if n := strings.Count(want, "\n") - 1; n != 336_776 {
		t.Fatalf("the data set has %d rows", n)
	}
	waitForTable(t, s, "flights", 336_776, 2*time.Minute)
	columns := strings.TrimSpace(run(t, nil, "lab/flights", "--columns"))
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			if diff := diffLines(want, l.query(t, s, engine, "SELECT "+columns+" FROM ice.default.flights")); diff != "" {
				t.Errorf("%s differs from the data set:\n%s", engine, diff)
			}
		})
	}
}

// diffLines returns the first differences between two texts of sorted lines after a header.
func diffLines(want, got string) string {
	if want == got {
		return ""
	}
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	var b strings.Builder
	if len(w) != len(g) {
		fmt.Fprintf(&b, "want %d lines, got %d\n", len(w), len(g))
	}
	shown := 0
	for i := 0; i < len(w) && i < len(g) && shown < 3; i++ {
		if w[i] != g[i] {
			fmt.Fprintf(&b, "line %d\n  want %s\n  got  %s\n", i+1, w[i], g[i])
			shown++
		}
	}
	return b.String()
}
