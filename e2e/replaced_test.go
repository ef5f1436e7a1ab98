package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	icebergrest "github.com/apache/iceberg-go/catalog/rest"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// A replacement is what an engine puts in the place of a topic's table, and what the topic is to make of it.
type replacement struct {
	topic, onDrop, engine string
	statements            []string // %s is the table
	state                 string   // of the topic's table then
	words                 []string // of its message, where FIRST is the id of the first table and OTHER that of the other
	remedy                func(t *testing.T, x *replacing)
	columns               string // that are compared
	theirs                string // the engine's own row, in the end
	ours                  string // how a row of ours is, of id and text
}

// replacing is a server with topics whose tables get replaced.
type replacing struct {
	s        *server
	uri      string // of the catalog, for engines
	queryEnv []string
	hold     func(topics []string) (release func()) // keeps commits from reaching the catalog
	waits    func(topic string) error               // nil when files of the topic wait for a commit
}

// Another table of the name takes no file that was written for the first, whose field ids are other columns' there, by the topic's
// policy: with recreate it is filled from the start of the log, once, beside the rows that the engine put there; with pause it
// stays as the engine made it, through a restart too, until the setting is changed; one whose columns cannot hold the records is left
// alone and the state says which. Two engines read the tables by value.
func TestTablesReplacedWhileFilesWait(t *testing.T) {
	t.Parallel() // mostly waits
	env := sharedEngines(t)
	for name, open := range map[string]func(t *testing.T) *replacing{"commit on its way": commitHeld, "commit not due": commitNotDue} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := open(t)
			x.queryEnv = env
			x.test(t)
		})
	}
}

// commitHeld has commits on their way to another server's catalog when the table is replaced: they arrive after.
func commitHeld(t *testing.T) *replacing {
	uri := lab.IcebergREST(t, "file://"+t.TempDir(), "")
	var mu sync.Mutex
	held := map[string]bool{}
	var holding atomic.Bool
	released := make(chan struct{})
	proxy := lab.Proxy(t, uri, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if holding.Load() { // what is asked as well: between DROP and CREATE the server would make the table again
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			if i := strings.LastIndex(r.URL.Path, "/tables/"); i >= 0 && r.Method == http.MethodPost {
				mu.Lock()
				held[r.URL.Path[i+len("/tables/"):]] = true
				mu.Unlock()
			}
			select {
			case <-released:
			case <-t.Context().Done():
				return
			}
			r = r.WithContext(context.WithoutCancel(r.Context())) // it arrives, also when the server has given it up
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		next.ServeHTTP(w, r)
	})
	s := startServer(t, "--catalog-uri", proxy)
	return &replacing{s: s, uri: uri,
		hold: func([]string) func() {
			holding.Store(true)
			return func() {
				holding.Store(false)
				close(released)
			}
		},
		waits: func(topic string) error {
			mu.Lock()
			defer mu.Unlock()
			if !held[topic] {
				return fmt.Errorf("no commit to the table of %s", topic)
			}
			return nil
		},
	}
}

// commitNotDue has the table in the built-in catalog replaced long before the next commit is due.
func commitNotDue(t *testing.T) *replacing {
	s := startServer(t)
	set := func(topics []string, lag string) {
		for _, topic := range topics {
			if out, code := s.cli("", "topic", "alter", topic, "-c", "table.topic.target.lag.ms="+lag); code != 0 {
				t.Fatal(out)
			}
		}
	}
	return &replacing{s: s, uri: s.catalogURL(),
		hold: func(topics []string) func() {
			set(topics, "3600000")
			return func() { set(topics, "300") }
		},
		waits: func(topic string) error {
			var status tableStatus
			if err := s.api("/api/tables/"+topic, &status); err != nil {
				return err
			}
			if status.Rows != 20 || status.LagRecords != 10 {
				return fmt.Errorf("%d rows, lag %d records", status.Rows, status.LagRecords)
			}
			return nil
		},
	}
}

func (x *replacing) ask(t testing.TB, engine, sql string) string {
	t.Helper()
	return run(t, x.queryEnv, "lab/query", engine, "--uri", x.uri, "--sort", sql)
}

// id is the UUID of the table of a topic.
func (x *replacing) id(t *testing.T, topic string) string {
	t.Helper()
	cat, err := icebergrest.NewCatalog(context.Background(), "c", x.uri)
	if err != nil {
		t.Fatal(err)
	}
	tab, err := cat.LoadTable(context.Background(), []string{"default", topic})
	if err != nil {
		t.Fatal(err)
	}
	return tab.Metadata().TableUUID().String()
}

func (x *replacing) test(t *testing.T) {
	bySpark := []string{"DROP TABLE %s PURGE",
		"CREATE TABLE %s (extra bigint, text string, since date, id bigint) USING iceberg PARTITIONED BY (truncate(1, text))",
		"INSERT INTO %s VALUES (7, 'theirs', date '2026-01-02', -1)"}
	replacements := []replacement{
		{topic: "recreated", onDrop: "recreate", engine: "spark", statements: bySpark, state: "ok",
			columns: "id, text, extra, since", theirs: "-1,theirs,7,2026-01-02\n", ours: "%d,%s,NULL,NULL\n"},
		{topic: "paused", onDrop: "pause", engine: "spark", statements: bySpark, state: "paused",
			words: []string{"the table of the topic was dropped, its id was FIRST, and another one has its name, with id OTHER", "set table.topic.on.drop=recreate"},
			remedy: func(t *testing.T, x *replacing) {
				if out, code := x.s.cli("", "topic", "alter", "paused", "-c", "table.topic.on.drop=recreate"); code != 0 {
					t.Fatal(out)
				}
			},
			columns: "id, text, extra, since", theirs: "-1,theirs,7,2026-01-02\n", ours: "%d,%s,NULL,NULL\n"},
		{topic: "refused", onDrop: "recreate", engine: "trino", state: "paused",
			statements: []string{"DROP TABLE %s", "CREATE TABLE %s (text varchar, id varchar)", "INSERT INTO %s VALUES ('theirs', 'x')"},
			words:      []string{"column id is string, the writer has long"},
			remedy:     func(t *testing.T, x *replacing) { x.ask(t, "trino", "ALTER TABLE ice.default.refused DROP COLUMN id") },
			columns:    "id, text", theirs: "NULL,theirs\n", ours: "%d,%s\n"},
	}
	var topics []string
	headers, first := map[string][]byte{}, map[string]string{}
	produce := func(topic string, from, n int) {
		t.Helper()
		var values [][]byte
		for i := range n {
			values = append(values, encoded(t, headers[topic], eventSchema, event{int64(from + i), fmt.Sprintf("r%d", from+i)}))
		}
		produceAll(t, x.s, topic, values...)
	}
	for _, r := range replacements {
		topics = append(topics, r.topic)
		x.s.createTopic(r.topic, 1, 300*time.Millisecond, "table.topic.on.drop", r.onDrop)
		headers[r.topic] = registerSchema(t, x.s, r.topic+"-value", eventSchema)
		produce(r.topic, 100, 20)
	}
	for _, topic := range topics {
		waitForTable(t, x.s, topic, 20, 3*time.Minute)
		first[topic] = x.id(t, topic)
	}
	release := x.hold(topics)
	for _, topic := range topics {
		produce(topic, 200, 10)
	}
	other := map[string]string{}
	for _, r := range replacements {
		eventually(t, 2*time.Minute, "files wait", func() error { return x.waits(r.topic) })
		for _, statement := range r.statements {
			x.ask(t, r.engine, fmt.Sprintf(statement, "ice.default."+r.topic))
		}
		if other[r.topic] = x.id(t, r.topic); other[r.topic] == first[r.topic] {
			t.Fatalf("table of %s is not another one", r.topic)
		}
	}
	release()
	states := func() {
		t.Helper()
		for _, r := range replacements {
			var words []string
			for _, w := range r.words {
				words = append(words, strings.NewReplacer("FIRST", first[r.topic], "OTHER", other[r.topic]).Replace(w))
			}
			got := stateOf(t, x.s, r.topic, r.state, 3*time.Minute, words...)
			if r.remedy == nil && got.Message != "" {
				t.Errorf("%s: message %q", r.topic, got.Message)
			}
		}
	}
	// whole has two engines read a table that the topic fills: the engine's row, and all of ours.
	whole := func(r replacement) {
		t.Helper()
		want := []string{r.theirs}
		for _, batch := range []struct{ from, n int }{{100, 20}, {200, 10}, {300, 10}} {
			for i := range batch.n {
				want = append(want, fmt.Sprintf(r.ours, batch.from+i, fmt.Sprintf("r%d", batch.from+i)))
			}
		}
		for _, engine := range []string{"duckdb", "trino"} {
			slices.Sort(want)
			all := strings.ReplaceAll(r.columns, " ", "") + "\n" + strings.Join(want, "")
			if got := x.ask(t, engine, fmt.Sprintf("SELECT %s FROM ice.default.%s", r.columns, r.topic)); got != all {
				t.Errorf("%s: %s: %s", r.topic, engine, diffLines(all, got))
			}
		}
		if got := x.id(t, r.topic); got != other[r.topic] {
			t.Errorf("%s: the table's id is %s, want %s, the other table's", r.topic, got, other[r.topic])
		}
	}
	waitForTable(t, x.s, "recreated", 31, 3*time.Minute)
	states()
	x.s.kill()
	x.s.start()
	for _, topic := range topics { // goes on, whatever the table
		produce(topic, 300, 10)
	}
	states()
	waitForTable(t, x.s, "recreated", 41, 3*time.Minute)
	whole(replacements[0])
	for _, topic := range []string{"paused", "refused"} {
		if got, want := x.ask(t, "duckdb", "SELECT text FROM ice.default."+topic), "text\ntheirs\n"; got != want {
			t.Errorf("%s: rows %q, want the engine's alone", topic, got)
		}
	}
	for _, r := range replacements {
		if r.remedy != nil {
			r.remedy(t, x)
			waitForTable(t, x.s, r.topic, 41, 3*time.Minute)
			whole(r)
		}
		stateOf(t, x.s, r.topic, "ok", time.Minute)
		if out, code := x.s.cli("", "table", "verify", r.topic, "--deep"); code != 0 {
			t.Errorf("table verify %s: exit %d\n%s", r.topic, code, out)
		}
	}
}
