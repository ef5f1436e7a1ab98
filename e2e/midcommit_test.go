package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// A deadlyCatalog is a proxy in front of a REST catalog. The next commit to the table events is taken
// away from it, and whoever waits for the moment is told.
type deadlyCatalog struct {
	mu   sync.Mutex
	next chan *takenCommit // guarded by mu; nil: all commits pass
}

// A takenCommit is a commit that a server has asked for, and hears nothing of.
type takenCommit struct {
	deliver func() *httptest.ResponseRecorder
	gone    <-chan struct{} // closed when nobody waits for its answer any more
}

// takes returns where the next commit will be.
func (d *deadlyCatalog) takes() <-chan *takenCommit {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next = make(chan *takenCommit, 1)
	return d.next
}

func (d *deadlyCatalog) handle(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if _, commits := snapshotOf(r, "events"); commits {
		d.mu.Lock()
		to := d.next
		d.next = nil
		d.mu.Unlock()
		if to != nil {
			to <- &takenCommit{func() *httptest.ResponseRecorder { return deliver(r, next) }, r.Context().Done()}
			<-r.Context().Done()
			return
		}
	}
	next.ServeHTTP(w, r)
}

// A server is killed while a commit is with the catalog, fifty times: the commit is lost, or has come
// about, or comes through while the next life of the server reads the table, or commits by itself. No
// data file is added to the table twice, as Spark lists them, and each record is a row once.
func TestKilledInTheMiddleOfACommit(t *testing.T) {
	t.Parallel() // mostly waits
	rounds := 50
	if os.Getenv("TABLETOPIC_SOAK") != "" {
		rounds = 500
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var d deadlyCatalog
	tables := lab.IcebergREST(t, "file://"+t.TempDir(), "")
	s := startServer(t, "--catalog-uri", lab.Proxy(t, tables, d.handle))
	s.createTopic("events", 2, 100*time.Millisecond, "table.topic.expire.snapshot.enabled", "false", "table.topic.compact.enabled", "false")
	header := registerSchema(t, s, "events-value", eventSchema)
	var late sync.WaitGroup
	defer late.Wait()
	rows, answers := int64(0), map[string]int{}
	for range rounds {
		taken := d.takes()
		var records []*kgo.Record
		for range 1 + random.IntN(5) {
			records = append(records, &kgo.Record{Value: encoded(t, header, eventSchema, event{rows, "x"})})
			rows++
		}
		cl := s.client(kgo.DefaultProduceTopic("events"), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
		if err := cl.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		cl.Close()
		var c *takenCommit
		select {
		case c = <-taken:
		case <-time.After(3 * time.Minute):
			t.Fatal("no commit came")
		}
		die := func() { s.kill(); <-c.gone }
		switch random.IntN(3) {
		case 0:
			die()
			answers["lost"]++
		case 1:
			answers[fmt.Sprint("in time: ", c.deliver().Code)]++
			die()
		case 2:
			die()
			after := time.Duration(random.IntN(1500)) * time.Millisecond
			answers["late"]++
			late.Go(func() {
				<-time.After(after)
				c.deliver()
			})
		}
		s.start()
	}
	late.Wait()
	waitForTable(t, s, "events", rows, 3*time.Minute)
	t.Logf("%d records; commits by what became of them: %v", rows, answers)

	spark := foreign{spark: []string{"type=rest", "uri=" + tables}}
	twice, err := spark.query(sharedEngines(t), "spark", "SELECT data_file.file_path AS f, count(*) AS n FROM ice.default.events.all_entries WHERE status = 1 GROUP BY 1 HAVING count(*) > 1")
	if err != nil || twice != "f,n\n" {
		t.Errorf("data files that were added twice: %v\n%s", err, twice)
	}
	checkRows(t, s, "events", run(t, nil, "lab/query", "duckdb", "--uri", tables, `SELECT id, text, _kafka."partition" AS p, _kafka."offset" AS o FROM ice.default.events`), readLog(t, s, "events", 2))
	if out, code := s.cli("", "table", "verify", "events", "--deep"); code != 0 {
		t.Errorf("verify: exit %d\n%s", code, out)
	}
}
