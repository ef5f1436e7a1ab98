package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/node"
)

// stateOf waits until `table status` says that a table is in a state, with these words.
func stateOf(t testing.TB, s *server, topic, state string, within time.Duration, words ...string) node.TableStatus {
	t.Helper()
	var found node.TableStatus
	eventually(t, within, "state "+state, func() error {
		out, code := s.cli("", "table", "status", topic, "--output", "json")
		var all []node.TableStatus
		if err := json.Unmarshal([]byte(out), &all); err != nil || code != 0 || len(all) != 1 {
			return fmt.Errorf("exit %d: %v: %s", code, err, out)
		}
		found = all[0]
		if string(found.State) != state {
			return fmt.Errorf("state %s: %s", found.State, found.Message)
		}
		for _, w := range words {
			if !strings.Contains(found.Message, w) {
				return fmt.Errorf("message %q lacks %q", found.Message, w)
			}
		}
		return nil
	})
	return found
}

// fetched returns status and body of a page of a server.
func fetched(t testing.TB, s *server, path string) (int, string) {
	t.Helper()
	resp, err := http.Get("http://" + s.http + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// A table tells how it is: waiting, ok, degraded with the catalog's own words when it goes
// away or hangs, and ok again by itself. Readiness stays, the tables are named beside it; a
// monitor that asks for tables gets an error; lag grows and falls.
func TestTableStates(t *testing.T) {
	t.Parallel() // mostly waits
	port, data, warehouse := lab.FreePort(t), t.TempDir(), "file://"+t.TempDir()
	stop := lab.IcebergRESTOn(t, port, data, warehouse, "")
	s := startServer(t, "--catalog-uri", fmt.Sprintf("http://127.0.0.1:%d", port))
	s.createTopic("events", 2, time.Second)
	stateOf(t, s, "events", "waiting", 2*time.Minute)
	header := registerSchema(t, s, "events-value", eventSchema)
	produceAll(t, s, "events", encoded(t, header, eventSchema, event{1, "x"}), []byte("not Avro"))
	waitForTable(t, s, "events", 1, 3*time.Minute)
	ok := stateOf(t, s, "events", "ok", time.Minute)
	if ok.Snapshot == 0 || ok.Committed == nil || ok.Rows != 1 || ok.LagRecords != 0 || ok.DeadLetters["no-magic-byte"] != 1 || len(ok.Partitions) != 2 || ok.Message != "" {
		t.Errorf("%+v", ok)
	}
	if code, body := fetched(t, s, "/readyz"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("/readyz: %d %q", code, body)
	}
	if out, code := s.cli("", "table", "status", "--check"); code != 0 {
		t.Errorf("check of a table that is well: exit %d\n%s", code, out)
	}

	stop()
	produceAll(t, s, "events", encoded(t, header, eventSchema, event{2, "x"}))
	ill := stateOf(t, s, "events", "degraded", 3*time.Minute, "connection refused")
	if ill.Since == nil || ill.LagRecords < 1 || ill.LagMillis < 1 || ill.Rows != 1 {
		t.Errorf("%+v", ill)
	}
	if code, body := fetched(t, s, "/readyz"); code != http.StatusOK || !strings.HasPrefix(body, "ok, but\n") || !strings.Contains(body, "table of topic events is degraded: ") {
		t.Errorf("/readyz: %d %q", code, body)
	}
	if code, body := fetched(t, s, "/readyz?tables=required"); code != http.StatusServiceUnavailable || !strings.Contains(body, "connection refused") {
		t.Errorf("/readyz?tables=required: %d %q", code, body)
	}
	if _, body := fetched(t, s, "/metrics"); !strings.Contains(body, `tabletopic_table_state{state="degraded",topic="events"} 1`) ||
		!strings.Contains(body, `tabletopic_table_state{state="ok",topic="events"} 0`) {
		t.Errorf("/metrics: %s", lines(body, "tabletopic_table_state"))
	}
	if out, code := s.cli("", "table", "status", "--check"); code != 1 {
		t.Errorf("check of a table that is not well: exit %d\n%s", code, out)
	}

	lab.IcebergRESTOn(t, port, data, warehouse, "")
	waitForTable(t, s, "events", 2, 3*time.Minute)
	if again := stateOf(t, s, "events", "ok", time.Minute); again.LagRecords != 0 || again.LagMillis != 0 {
		t.Errorf("%+v", again)
	}
	if code, _ := fetched(t, s, "/readyz?tables=required"); code != http.StatusOK {
		t.Errorf("/readyz?tables=required: %d", code)
	}
}

// A catalog that takes calls and never answers degrades the table; one that refuses every
// commit as a conflict makes it stuck after some lags; both heal by themselves.
func TestCatalogHangsOrRefuses(t *testing.T) {
	t.Parallel() // mostly waits
	const open, hangs, conflicts = 0, 1, 2
	var mode atomic.Int32
	released := make(chan struct{})
	uri := lab.Proxy(t, lab.IcebergREST(t, "file://"+t.TempDir(), ""), func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		switch {
		case mode.Load() == hangs:
			select {
			case <-released:
			case <-r.Context().Done():
				return
			}
		case mode.Load() == conflicts && r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/tables/events"):
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusConflict)
			fmt.Fprint(w, `{"error": {"message": "somebody was faster", "type": "CommitFailedException", "code": 409}}`)
			return
		}
		next.ServeHTTP(w, r)
	})
	s := startServer(t, "--catalog-uri", uri)
	s.createTopic("events", 1, time.Second, "table.topic.stuck.lags=3")
	header := registerSchema(t, s, "events-value", eventSchema)
	produceAll(t, s, "events", encoded(t, header, eventSchema, event{1, "x"}))
	waitForTable(t, s, "events", 1, 3*time.Minute)

	mode.Store(hangs)
	produceAll(t, s, "events", encoded(t, header, eventSchema, event{2, "x"}))
	stateOf(t, s, "events", "degraded", 3*time.Minute, "the catalog has not answered")
	mode.Store(open)
	close(released)
	waitForTable(t, s, "events", 2, 3*time.Minute)
	stateOf(t, s, "events", "ok", 2*time.Minute)

	mode.Store(conflicts)
	produceAll(t, s, "events", encoded(t, header, eventSchema, event{3, "x"}))
	ill := stateOf(t, s, "events", "stuck", 3*time.Minute, "no commit came")
	if ill.UnwrittenRecords != 0 || ill.LagRecords != 1 || ill.Waiting == 0 {
		t.Errorf("%+v, want a written file that waits", ill)
	}
	mode.Store(open)
	waitForTable(t, s, "events", 3, 3*time.Minute)
	stateOf(t, s, "events", "ok", 2*time.Minute)
}

// A table that somebody rolled back is paused, and says what to do; when that is done it
// goes on by itself. Rows that PyIceberg adds and deletes meanwhile are told as those of others.
func TestPausedTableAndForeignRows(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	s.createTopic("events", 1, 500*time.Millisecond)
	header := registerSchema(t, s, "events-value", eventSchema)
	for i := range int64(4) {
		produceAll(t, s, "events", encoded(t, header, eventSchema, event{i, "x"}))
		waitForTable(t, s, "events", i+1, 3*time.Minute)
	}
	foreign := func(code string) {
		t.Helper()
		run(t, nil, python(), "-c", fmt.Sprintf(`
import pyarrow as pa
from pyiceberg.catalog import load_catalog
table = load_catalog("t", type="rest", uri=%q).load_table("default.events")
`, s.catalogURL())+code)
	}
	report := func(args ...string) (r coordinator.Report, code int) {
		t.Helper()
		out, code := s.cli("", append([]string{"table", "verify", "events", "--output", "json"}, args...)...)
		if err := json.NewDecoder(strings.NewReader(out)).Decode(&r); err != nil { // what follows is the error
			t.Fatalf("exit %d: %v: %s", code, err, out)
		}
		return r, code
	}
	foreign(`
table.append(pa.table({"id": pa.array([100, 101, 102], pa.int64())}))
table.delete("id = 1")
`)
	r, code := report("--deep")
	if p := r.Partitions[0]; code != 0 || p.Rows != 3 || p.Deleted != 1 || p.Lost != 0 || r.Others != 3 || len(r.Foreign) == 0 || r.Foreign[0].Snapshot == 0 {
		t.Errorf("exit %d: %+v, want 3 rows, 1 deleted, 3 of others", code, r)
	}
	if _, code := report("--deep", "--strict"); code != 1 {
		t.Errorf("strict: exit %d, want 1", code)
	}
	if r, code := report(); code != 0 {
		t.Errorf("by the commits: exit %d: %+v", code, r)
	}
	if _, code := s.cli("", "table", "verify", "events", "--strict"); code != 2 {
		t.Errorf("--strict without --deep: exit %d, want 2", code)
	}

	// Back to the second of our commits.
	foreign(`
ids = [s.snapshot_id for s in table.metadata.snapshots]
table.manage_snapshots().rollback_to_snapshot(ids[1]).commit()
`)
	produceAll(t, s, "events", encoded(t, header, eventSchema, event{9, "x"}))
	stateOf(t, s, "events", "paused", 3*time.Minute, "table.topic.on.rewind")
	if r, code := report("--deep"); code != 1 || r.Partitions[0].Lost == 0 {
		t.Errorf("rolled back: exit %d: %+v", code, r)
	}
	if out, code := s.cli("", "topic", "alter", "events", "--config", "table.topic.on.rewind=replay"); code != 0 {
		t.Fatal(out)
	}
	waitForTable(t, s, "events", 5, 3*time.Minute)
	stateOf(t, s, "events", "ok", 2*time.Minute)
	if r, code := report("--deep"); code != 0 {
		t.Errorf("after the replay: exit %d: %+v", code, r)
	}
}

// lines returns the lines of text with a word.
func lines(text, word string) string {
	var out strings.Builder
	for l := range strings.Lines(text) {
		if strings.Contains(l, word) {
			out.WriteString(l)
		}
	}
	return out.String()
}
