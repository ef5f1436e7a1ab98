package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// snapshotOf reports whether a request to a REST catalog commits a snapshot to the table of a topic, and
// returns its body, which can be read again.
func snapshotOf(r *http.Request, topic string) (body []byte, yes bool) {
	if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/tables/"+topic) {
		return nil, false
	}
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body, err == nil && bytes.Contains(body, []byte(`"add-snapshot"`))
}

// deliver has a request done whatever becomes of who sent it, and keeps the answer.
func deliver(r *http.Request, next http.Handler) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	next.ServeHTTP(answer, r.Clone(context.WithoutCancel(r.Context())))
	return answer
}

// reply sends an answer that was kept.
func reply(w http.ResponseWriter, answer *httptest.ResponseRecorder) {
	for k, v := range answer.Header() {
		w.Header()[k] = v
	}
	w.WriteHeader(answer.Code)
	w.Write(answer.Body.Bytes())
}

// A heldCommit is a proxy in front of a REST catalog that keeps one commit to the table events: on its
// way, or, if it lands, the answer to it.
type heldCommit struct {
	lands     bool
	armed     atomic.Bool
	at        chan struct{} // closed when it is held
	release   chan struct{}
	status    chan int // of the catalog's answer to it
	passed    sync.WaitGroup
	committed atomic.Int64 // later commits that the catalog took
}

func (h *heldCommit) handle(w http.ResponseWriter, r *http.Request, next http.Handler) {
	_, commits := snapshotOf(r, "events")
	if !commits || !h.armed.CompareAndSwap(true, false) {
		if !commits {
			next.ServeHTTP(w, r)
			return
		}
		answer := deliver(r, next)
		if answer.Code < 300 {
			h.committed.Add(1)
		}
		reply(w, answer)
		return
	}
	h.passed.Add(1)
	defer h.passed.Done()
	var answer *httptest.ResponseRecorder
	if h.lands {
		answer = deliver(r, next)
	}
	close(h.at)
	<-h.release
	if !h.lands {
		answer = deliver(r, next)
	}
	h.status <- answer.Code
	reply(w, answer)
}

// A server stands still while the catalog has a commit of it, which another server does not wait for: it
// takes over, and commits five rounds. When the first goes on, and its commit with it, the catalog
// refuses what comes now, and what had landed before is there once; the first commits nothing more and
// ends, and serves again when it is started. Two engines read each record once.
func TestServerThatStoodStillCommitsNothing(t *testing.T) {
	t.Parallel()
	for name, lands := range map[string]bool{"commit on its way": false, "commit without answer": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // mostly waits
			testStandstill(t, lands)
		})
	}
}

func testStandstill(t *testing.T, lands bool) {
	tables := lab.IcebergREST(t, "file://"+t.TempDir(), "")
	held := &heldCommit{lands: lands, at: make(chan struct{}), release: make(chan struct{}), status: make(chan int, 1)}
	goOn := sync.OnceFunc(func() { close(held.release) })
	shared := []string{"--metadata", lab.Postgres(t), "--object-store", "file://" + t.TempDir()}
	one := startServer(t, append([]string{"--node-id", "1", "--catalog-uri", lab.Proxy(t, tables, held.handle)}, shared...)...)
	t.Cleanup(func() { goOn(); held.passed.Wait() })
	one.createTopic("events", 2, 300*time.Millisecond) // all of it is led by the only server
	two := startServer(t, append([]string{"--node-id", "2", "--catalog-uri", tables}, shared...)...)
	header := registerSchema(t, one, "events-value", eventSchema)
	sent := int64(0)
	produce := func(s *server, n int64) {
		t.Helper()
		cl := s.client(kgo.DefaultProduceTopic("events"), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
		defer cl.Close()
		var records []*kgo.Record
		for range n {
			records = append(records, &kgo.Record{Value: encoded(t, header, eventSchema, event{sent, "x"})})
			sent++
		}
		if err := cl.ProduceSync(context.Background(), records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	produce(one, 100)
	waitForTable(t, two, "events", sent, 3*time.Minute)

	held.armed.Store(true)
	produce(one, 100)
	select {
	case <-held.at:
	case <-time.After(3 * time.Minute):
		t.Fatal("no commit came")
	}
	one.signalOnly(syscall.SIGSTOP)
	t.Cleanup(func() {
		if one.cmd != nil {
			_ = one.cmd.Process.Signal(syscall.SIGCONT) // or it does not end
		}
	})
	held.committed.Store(0)
	mustMove(t, two, "--all-from", "1", "--to", "2", "--recover")
	for range 5 {
		produce(two, 20)
		waitForTable(t, two, "events", sent, 3*time.Minute)
	}
	one.signalOnly(syscall.SIGCONT)
	goOn()
	if status := <-held.status; lands != (status == http.StatusOK) || !lands && status != http.StatusConflict {
		t.Errorf("the catalog answered %d to the commit that was held", status)
	}
	if code := one.exitCode(2 * time.Minute); code != 1 {
		t.Errorf("the server that stood still ended with code %d, want 1", code)
	}
	one.cmd = nil
	if n := held.committed.Load(); n > 0 {
		t.Errorf("it made %d commits after another server had its table", n)
	}

	one.start()
	mustMove(t, one, "events", "1", "--to", "1")
	produce(one, 100)
	waitForTable(t, two, "events", sent, 3*time.Minute)
	mustMove(t, two, "events", "0", "--to", "1") // and the right to commit
	produce(two, 100)
	waitForTable(t, one, "events", sent, 3*time.Minute)
	eventually(t, 10*time.Second, "a commit of the server that has the table again", func() error { // the table shows it before its answer is counted
		if held.committed.Load() == 0 {
			return errors.New("none")
		}
		return nil
	})
	for i, s := range []*server{one, two} {
		if out, code := s.cli("", "table", "verify", "events", "--deep"); code != 0 {
			t.Errorf("verify at server %d: exit %d\n%s", i+1, code, out)
		}
	}
	log := readLog(t, two, "events", 2)
	if int64(len(log)) != sent {
		t.Errorf("%d records in the log, want %d", len(log), sent)
	}
	checkRows(t, two, "events", run(t, nil, "lab/query", "duckdb", "--uri", tables, `SELECT id, text, _kafka."partition" AS p, _kafka."offset" AS o FROM ice.default.events`), log)
	if got := run(t, nil, "lab/query", "pyiceberg", "--uri", tables, "--sort", "SELECT id FROM ice.default.events"); strings.Count(got, "\n") != int(sent)+1 {
		t.Errorf("PyIceberg reads %d rows, want %d", strings.Count(got, "\n")-1, sent)
	} else {
		ids := map[string]bool{}
		for id := range strings.FieldsSeq(got) {
			ids[id] = true
		}
		if int64(len(ids)) != sent+1 {
			t.Errorf("PyIceberg reads %d ids, want %d", len(ids)-1, sent)
		}
	}
	t.Logf("%d records", sent)
}
