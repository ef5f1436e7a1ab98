package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/objectstore"
)

// together runs n subtests at the same time, however few cores there are, but not more than
// most: they mostly wait.
func together(t *testing.T, n, most int, name func(i int) string, test func(t *testing.T, i int)) {
	t.Helper()
	slots := make(chan struct{}, most)
	var all sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			t.Run(name(i), func(t *testing.T) { test(t, i) })
		})
	}
	all.Wait()
}

// Schedules of what goes wrong between a server, its catalog and its store, by seed: requests
// that are held and arrive late, lost answers, conflicts, errors after the effect, slow
// bodies, tokens that expire; while the server is killed, and others commit to the table.
// Each record is in the table once, as Spark reads it through the catalog; each file that the
// table names is there; and data files that no commit took are gone after their grace.
func TestSchedules(t *testing.T) {
	t.Parallel() // mostly waits
	schedules := 12
	if os.Getenv("TABLETOPIC_SOAK") != "" {
		schedules = 60
	}
	first := uint64(time.Now().Unix())
	s3, _, _ := lab.Versitygw(t, "lake")
	kinds := breakableCatalogs(t, s3)
	engines := sharedEngines(t)
	together(t, schedules, 12, func(i int) string { return fmt.Sprintf("%s-%d", kinds[i%len(kinds)].kind, first+uint64(i)) }, func(t *testing.T, i int) {
		newSchedule(t, first+uint64(i), kinds[i%len(kinds)], engines, s3).run()
	})
}

// A breakable catalog is one that is reached through a proxy too, which breaks it.
type breakable struct {
	kind     string
	commits  func(call string) bool                        // which calls to the proxy are commits
	proxy    func(t *testing.T, faults *lab.Faults) string // starts one, and returns its address
	settings func(address, warehouse string) []string      // of `catalog add`
	direct   func(warehouse string) (spark []string)       // how an engine reaches it, past any proxy
}

func breakableCatalogs(t *testing.T, s3 string) []breakable {
	rest := lab.IcebergREST(t, "s3://lake/tables", s3)
	glue := lab.Glue(t)
	hive := lab.HiveMetastore(t, 10*time.Second)
	aws := func(status int, code string) func(w http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/x-amz-json-1.1")
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"__type": %q, "message": "made up"}`, code)
		}
	}
	// A metastore without compare and swap has only the lock: it is to outlast whatever is held, in
	// the hands of who lives (settle), and of who was killed (10 s).
	return []breakable{
		{
			kind:    "rest",
			commits: func(call string) bool { return strings.HasPrefix(call, "POST ") && strings.Contains(call, "/tables/") },
			proxy: func(t *testing.T, faults *lab.Faults) string {
				return lab.ExpiringTokens(t, faults.Proxy(t, rest, lab.Dialect{Conflict: func(w http.ResponseWriter) {
					w.Header().Set("Content-Type", "application/json")
					w.WriteHeader(http.StatusConflict)
					io.WriteString(w, `{"error": {"message": "made up", "type": "CommitFailedException", "code": 409}}`)
				}}), 30*time.Second)
			},
			settings: func(address, _ string) []string {
				return []string{"uri=" + address, "credential=id:secret", "timeout=15s"}
			},
			direct: func(string) []string { return []string{"type=rest", "uri=" + rest} },
		},
		{
			kind:    "glue",
			commits: func(call string) bool { return call == "AWSGlue.UpdateTable" },
			proxy: func(t *testing.T, faults *lab.Faults) string {
				return faults.Proxy(t, glue, lab.Dialect{
					Call:     func(r *http.Request) string { return r.Header.Get("X-Amz-Target") },
					Refuse:   aws(http.StatusInternalServerError, "InternalServiceException"),
					Conflict: aws(http.StatusBadRequest, "ConcurrentModificationException"),
				})
			},
			settings: func(address, warehouse string) []string {
				return []string{"endpoint=" + address, "region=" + lab.Region, "warehouse=" + warehouse, "timeout=15s",
					"access-key-id=" + lab.AccessKey, "secret-access-key=" + lab.SecretKey}
			},
			direct: func(warehouse string) []string {
				return []string{"type=glue", "glue.endpoint=" + glue, "warehouse=" + warehouse}
			},
		},
		{
			kind:    "hive",
			commits: func(call string) bool { return call == lab.AlterTable },
			proxy:   func(t *testing.T, faults *lab.Faults) string { return faults.ThriftProxy(t, hive) },
			settings: func(address, warehouse string) []string {
				return []string{"uri=thrift://" + address, "warehouse=" + warehouse, "timeout=15s", "heartbeat=2s", "settle=8s", "lock-wait=20s"}
			},
			direct: func(warehouse string) []string {
				return []string{"type=hive", "uri=thrift://" + hive, "warehouse=" + warehouse}
			},
		},
	}
}

// drawCatalogFaults draws what a catalog does wrong, round after round.
func drawCatalogFaults(r *rand.Rand, commits func(string) bool) []lab.Fault {
	share := float64(3+r.IntN(5)) / 10
	all := []lab.Fault{
		{Name: fmt.Sprintf("%.0f %% of commits are held", 100*share), Matches: commits, Hold: share, Late: 4 * time.Second},
		{Name: fmt.Sprintf("%.0f %% of answers to commits are lost", 100*share), Matches: commits, Lose: share},
		{Name: fmt.Sprintf("%.0f %% of commits are done behind a bad gateway", 100*share), Matches: commits, Break: share},
		{Name: "commits conflict", Matches: commits, Conflict: 1},
		{Name: fmt.Sprintf("%.0f %% is refused", 100*share), Refuse: share},
		{Name: fmt.Sprintf("%.0f %% of all answers are lost", 100*share), Lose: share},
		{Name: "the catalog is away", Reset: 1},
		{Name: "answers trickle", Trickle: 3 * time.Second},
		{Name: "the catalog is slow", Slow: 3 * time.Second},
	}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// A schedule is a server behind two proxies, and what happens to it.
type schedule struct {
	t        *testing.T
	random   *rand.Rand
	s        *server
	s3       string
	name     string // of the namespace
	spark    []string
	engines  []string
	store    *lab.Faults
	catalog  *lab.Faults
	faults   []lab.Fault
	theirs   map[int64]bool // rows of other writers
	location string
	stray    []string // data files that an expiry of Spark may have left, which failed half way
	changes  []string // what others can do
	began    time.Time
	plan     []string
}

func newSchedule(t *testing.T, seed uint64, kind breakable, engines []string, s3 string) *schedule {
	c := &schedule{t: t, random: rand.New(rand.NewPCG(seed, 0)), s3: s3, name: fmt.Sprintf("s%d", seed), engines: engines,
		store: lab.NewFaults(seed), catalog: lab.NewFaults(seed), theirs: map[int64]bool{}, began: time.Now()}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d, schedule:\n%s\nstore %s\ncatalog %s", seed, strings.Join(c.plan, "\n"), c.store, c.catalog)
		}
	})
	warehouse := "s3://lake/" + c.name + "/tables"
	c.spark = kind.direct(warehouse)
	c.faults = drawCatalogFaults(c.random, kind.commits)
	table := "ice." + c.name + ".events"
	c.changes = []string{
		"INSERT INTO " + table + " (id, text) VALUES (%d, 'theirs')",
		"INSERT INTO " + table + " (id, text) VALUES (%d, 'theirs')",
		"CALL ice.system.rewrite_data_files(table => '" + c.name + ".events', options => map('min-input-files', '2'))",
		"CALL ice.system.expire_snapshots(table => '" + c.name + ".events', older_than => timestamp '2100-01-01', retain_last => 1)",
		"CALL ice.system.rewrite_manifests('" + c.name + ".events')",
		"ALTER TABLE " + table + " ADD COLUMN region string",
	}
	c.random.Shuffle(len(c.changes), func(i, j int) { c.changes[i], c.changes[j] = c.changes[j], c.changes[i] })
	address := kind.proxy(t, c.catalog)
	c.s = newServer(t, "--object-store", "s3://lake/"+c.name+"/tt?region=us-east-1&path-style=true&endpoint="+c.store.Proxy(t, s3, storeDialect),
		"--secrets-key", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "--log-cache-bytes", "67108864", "--upload-bytes", "4194304", "--table-memory-bytes", "67108864",
		"--table-sweep-interval", "2s", "--table-sweep-grace", "25s")
	c.s.env = s3Credentials
	t.Cleanup(c.calm) // it ends sooner
	c.s.start()
	f := foreign{kind: kind.kind, settings: kind.settings(address, warehouse)}
	f.add(t, c.s, "lake")
	return c
}

func (c *schedule) note(format string, args ...any) {
	c.plan = append(c.plan, fmt.Sprintf("%8.3fs  ", time.Since(c.began).Seconds())+fmt.Sprintf(format, args...))
}

const (
	scheduleRounds     = 6
	schedulePartitions = 2
)

func (c *schedule) run() {
	t, s := c.t, c.s
	s.createTopic("events", schedulePartitions, time.Second, "table.topic.catalog", "lake", "table.topic.namespace", c.name)
	header := registerSchema(t, s, "events-value", eventSchema)
	producing, stop := context.WithCancel(t.Context())
	acked := &acks{places: map[place]string{}}
	var producer sync.WaitGroup
	defer producer.Wait()
	defer stop()
	producer.Go(func() { produceUntil(producing, t, s, "events", header, 0, 10*time.Millisecond, acked) })
	acked.waitFor(t, 20)
	tableHolds(t, s, "events")
	var status struct{ Location string }
	if err := s.api("/api/tables/events", &status); err != nil {
		t.Fatal(err)
	}
	c.location = status.Location
	for i := range scheduleRounds {
		c.round(i)
	}
	stop()
	producer.Wait()
	tableHolds(t, s, "events")

	log := readLog(t, s, "events", schedulePartitions)
	for p, v := range acked.places {
		if log[p] != v {
			t.Errorf("acknowledged %q at %v, the log has %q", v, p, log[p])
		}
	}
	c.checkTable(log)
	if out, code := s.cli("", "table", "verify", "events", "--deep"); code != 0 {
		t.Errorf("verify: exit %d\n%s", code, out)
	}
	c.checkFiles()
	t.Logf("%d acknowledged, %d in the log; store %s; catalog %s", len(acked.places), len(log), c.store, c.catalog)
}

// round is something wrong with the catalog, and with the store perhaps, in which the server
// may die and somebody else may commit; and the calm after it.
func (c *schedule) round(i int) {
	fault, length := c.faults[i], time.Duration(2000+c.random.IntN(4000))*time.Millisecond
	c.note("%s, for %s", fault.Name, length)
	c.catalog.Set(fault)
	if c.random.IntN(2) == 0 {
		fault := drawFault(c.random)
		c.note("store: %s", fault.Name)
		c.store.Set(fault)
	}
	kill, commit := c.random.IntN(2) == 0, c.random.IntN(3) > 0
	moment := time.Duration(c.random.Int64N(int64(length)))
	c.wait(moment)
	if commit {
		c.change(i)
	}
	if kill {
		c.note("kill -9 and start")
		c.s.kill()
		if err := c.s.launch(); err != nil {
			c.t.Fatal(err)
		}
	}
	c.wait(length - moment)
	c.calm()
	if kill {
		c.s.waitReady()
	}
	c.wait(time.Duration(c.random.IntN(2000)) * time.Millisecond)
}

func (c *schedule) calm() {
	c.store.Set(lab.Fault{})
	c.catalog.Set(lab.Fault{})
}

// wait lets time pass. The server may not end in it.
func (c *schedule) wait(d time.Duration) {
	c.t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.s.exited:
		c.t.Fatalf("the server ended by itself, with code %d:\n%s", c.s.cmd.ProcessState.ExitCode(), c.s.log.tail(8<<10))
	}
}

// change has Spark commit to the table, past the proxies, until it is not too late.
func (c *schedule) change(i int) {
	c.t.Helper()
	statement, id := c.changes[i], -1-int64(i)
	if strings.HasPrefix(statement, "INSERT") {
		statement = fmt.Sprintf(statement, id)
		c.theirs[id] = true
	}
	for attempt := 1; ; attempt++ {
		_, err := c.query(statement)
		if err == nil {
			c.note("%s, at attempt %d", statement, attempt)
			return
		}
		// On a busy machine our commits are many times as fast. And where a server died before it could
		// say that a commit had landed, the sweep, whose grace is short here, may take the manifests of
		// a snapshot that Spark has expired and is about to read for the last time. Nobody deletes then
		// what only that snapshot named: the small files that a compaction had replaced.
		swept := strings.Contains(statement, "expire_snapshots") && strings.Contains(err.Error(), "NoSuchKey")
		if attempt == 30 || !tooLate(err) && !swept {
			c.t.Fatal(err)
		}
		if swept {
			c.stray = append(c.stray, c.list()...)
		}
		c.note("%s: %.300s", statement, err)
	}
}

func (c *schedule) query(statement string) (string, error) {
	return foreign{s3: c.s3, spark: c.spark}.query(c.engines, "spark", statement)
}

// checkTable compares the rows of the table with the log, and with what others added.
func (c *schedule) checkTable(log map[place]string) {
	c.t.Helper()
	rows, err := c.query("SELECT id, text, _kafka.partition AS p, _kafka.offset AS o FROM ice." + c.name + ".events WHERE id >= 0")
	if err != nil {
		c.t.Fatal(err)
	}
	checkRows(c.t, c.s, "events", rows, log)
	want := "id\n"
	for id := int64(-1); id >= -scheduleRounds; id-- {
		if c.theirs[id] {
			want += fmt.Sprintf("%d\n", id)
		}
	}
	if got, err := c.query("SELECT id FROM ice." + c.name + ".events WHERE id < 0"); err != nil || got != want {
		c.t.Errorf("rows of others: %v\n%swant\n%s", err, got, want)
	}
}

// checkFiles checks what lies in the bucket: all that the table names, and no data file of
// ours for long that it does not name.
func (c *schedule) checkFiles() {
	t := c.t
	t.Helper()
	there, named := c.list(), c.named()
	for f := range named {
		if !slices.Contains(there, f) {
			t.Errorf("%s is named by the table and missing", f)
		}
	}
	eventually(t, 2*time.Minute, "no data files that no commit took", func() error {
		var errs []error
		for _, f := range c.list() {
			// Spark's files lie in the same directory, without the topic's id.
			ours := strings.HasSuffix(f, ".parquet") && strings.Count(strings.TrimPrefix(f, c.location), "/") == 3
			if ours && !named[f] && !slices.Contains(c.stray, f) {
				errs = append(errs, errors.New(f))
			}
		}
		if errs != nil {
			named = c.named() // a compaction may have come since
		}
		return errors.Join(errs...)
	})
}

// named returns the files that the table names, as Spark reads it.
func (c *schedule) named() map[string]bool {
	c.t.Helper()
	table := "ice." + c.name + ".events"
	out, err := c.query("SELECT file_path AS f FROM " + table + ".all_files UNION SELECT path FROM " + table + ".all_manifests UNION SELECT manifest_list FROM " +
		table + ".snapshots UNION SELECT file FROM " + table + ".metadata_log_entries")
	if err != nil {
		c.t.Fatal(err)
	}
	named := map[string]bool{}
	for _, f := range strings.Fields(out)[1:] {
		named[f] = true
	}
	return named
}

// list returns what lies in the bucket of the table.
func (c *schedule) list() (names []string) {
	c.t.Helper()
	bucket, err := objectstore.NewS3(c.t.Context(), objectstore.S3Config{Bucket: "lake", Region: lab.Region, Endpoint: c.s3, PathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(lab.AccessKey, lab.SecretKey, "")})
	if err != nil {
		c.t.Fatal(err)
	}
	for after := ""; ; {
		page, err := bucket.List(c.t.Context(), strings.TrimPrefix(c.location, "s3://lake/")+"/", after)
		if err != nil {
			c.t.Fatal(err)
		}
		if len(page) == 0 {
			return names
		}
		for _, o := range page {
			names = append(names, "s3://lake/"+o.Key)
		}
		after = page[len(page)-1].Key
	}
}
