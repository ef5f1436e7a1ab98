package e2e

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// One server on S3 lives through three minutes of kill -9 and of a store that answers 503, loses
// answers, is slow to read and to list, and resets connections. Nothing that was
// acknowledged is lost or twice, in the log and in the table; nothing is left behind.
func TestChaos(t *testing.T) {
	t.Parallel() // mostly waits
	testChaos(t, 1, 3*time.Minute)
}

// The same with two servers that share a PostgreSQL database, for longer.
func TestChaosOfTwo(t *testing.T) {
	if os.Getenv("TABLETOPIC_SOAK") == "" {
		t.Skip("half an hour: make soak")
	}
	t.Parallel()
	testChaos(t, 2, 3*time.Minute)
}

func testChaos(t *testing.T, servers int, length time.Duration) {
	if os.Getenv("TABLETOPIC_SOAK") != "" {
		length *= 10
	}
	c := newChaos(t, uint64(time.Now().UnixNano()), servers)
	const partitions = 3
	producing, stop := context.WithCancel(context.Background())
	watching, unwatch := context.WithCancel(context.Background())
	defer unwatch()
	defer stop()
	var producers, watchers sync.WaitGroup
	acked, seen := make([]*acks, servers), make([]*acks, servers)
	topic := func(i int) string { return fmt.Sprint("events", i) }
	for i, s := range c.servers {
		s.createTopic(topic(i), partitions, time.Second)
		header := registerSchema(t, s, topic(i)+"-value", eventSchema)
		acked[i], seen[i] = &acks{places: map[place]string{}}, &acks{places: map[place]string{}}
		for n := range 2 {
			producers.Go(func() { produceUntil(producing, t, s, topic(i), header, n, 5*time.Millisecond, acked[i]) })
		}
		watchers.Go(func() { consumeUntil(watching, t, s, topic(i), seen[i]) })
	}

	for end := time.Now().Add(length); time.Now().Before(end); {
		c.round()
	}
	stop()
	producers.Wait()
	for i, s := range c.servers {
		log := readLog(t, s, topic(i), partitions)
		if len(acked[i].places) < 1000 {
			t.Errorf("only %d records acknowledged", len(acked[i].places))
		}
		checkLog(t, log, acked[i], seen[i])
		checkTable(t, c.lake, s, topic(i), log)
		if out, code := s.cli("", "table", "verify", topic(i)); code != 0 {
			t.Errorf("verify %s: exit %d\n%s", topic(i), code, out)
		}
		c.measure(s)
		t.Logf("%s: %d acknowledged, %d in the log", topic(i), len(acked[i].places), len(log))
	}
	unwatch()
	watchers.Wait()
	c.checkObjects()
	const most = 1000 // MB; the caches may hold a quarter of it
	if c.peak > most {
		t.Errorf("a server used %.0f MB at its peak, want %d at most", c.peak, most)
	}
	t.Logf("%d kills, %.0f MB at the peak; %s", c.kills, c.peak, c.store)
}

// chaos is servers on a store that misbehaves, and the schedule by which they die.
type chaos struct {
	t       *testing.T
	random  *rand.Rand
	lake    *lake
	servers []*server
	store   *faultyStore
	began   time.Time
	plan    []string // what was done, and when
	kills   int
	peak    float64 // MB, of all lives
}

func newChaos(t *testing.T, seed uint64, servers int) *chaos {
	endpoint, _, _ := lab.Versitygw(t, "lake")
	c := &chaos{t: t, random: rand.New(rand.NewPCG(seed, 0)), began: time.Now(), store: newFaultyStore(t, endpoint, seed)}
	c.lake = &lake{env: s3Credentials, queryArgs: []string{"--s3-endpoint", endpoint}}
	c.lake.flags = []string{
		"--object-store", "s3://lake/tt?region=us-east-1&path-style=true&endpoint=" + c.store.url,
		"--log-cache-bytes", "67108864", "--upload-bytes", "4194304", "--block-cache-bytes", "16777216", "--compaction-memory-bytes", "33554432", "--table-memory-bytes", "67108864",
		"--upload-interval", "500ms", "--compaction-interval", "1s", "--compaction-minor-interval", "2s", "--compaction-major-interval", "3s",
		"--delete-grace", "10s", "--orphan-sweep-interval", "5s", "--orphan-sweep-grace", "5s",
	}
	if servers > 1 {
		c.lake.flags = append(c.lake.flags, "--metadata", lab.Postgres(t))
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d, schedule:\n%s", seed, strings.Join(c.plan, "\n"))
		}
	})
	for i := range servers {
		s := newServer(t, append(c.lake.flags, "--node-id", fmt.Sprint(i+1))...)
		s.env = c.lake.env
		s.start()
		c.servers = append(c.servers, s)
	}
	return c
}

func (c *chaos) note(format string, args ...any) {
	c.plan = append(c.plan, fmt.Sprintf("%8.3fs  ", time.Since(c.began).Seconds())+fmt.Sprintf(format, args...))
}

// round is one fault of the store, in which a server may die and start, and the calm after it.
func (c *chaos) round() {
	f := drawFault(c.random)
	length := time.Duration(500+c.random.IntN(4000)) * time.Millisecond
	c.note("%s for %s", f.name, length)
	c.store.set(f)
	var killed *server
	if c.random.IntN(3) == 0 {
		moment := time.Duration(c.random.Int64N(int64(length)))
		c.wait(moment)
		length -= moment
		killed = c.servers[c.random.IntN(len(c.servers))]
		c.measure(killed)
		c.note("kill -9 and start")
		c.kills++
		killed.kill()
		if err := killed.launch(); err != nil {
			c.t.Fatal(err)
		}
	}
	c.wait(length)
	c.store.set(fault{})
	if killed != nil {
		killed.waitReady()
	}
	c.wait(time.Duration(c.random.IntN(1500)) * time.Millisecond)
}

// wait lets time pass. No server may end in it.
func (c *chaos) wait(d time.Duration) {
	c.t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
	for i, s := range c.servers {
		select {
		case <-s.exited:
			c.note("server %d has ended", i+1)
			c.t.Fatalf("server %d ended by itself, with code %d:\n%s", i+1, s.cmd.ProcessState.ExitCode(), s.log.tail(8<<10))
		default:
		}
	}
}

// checkObjects checks what lies in the bucket: all that metadata names, and no orphan for long.
func (c *chaos) checkObjects() {
	c.t.Helper()
	s := c.servers[0]
	if out, code := s.cli("", "object", "check"); code != 0 {
		c.t.Errorf("object check: exit %d\n%s", code, out)
	}
	eventually(c.t, 60*time.Second, "no orphans in the bucket", func() error {
		out, code := s.cli("", "object", "list", "--state", "orphaned", "--output", "json")
		if code != 0 || out != "" {
			return fmt.Errorf("exit %d\n%s", code, out)
		}
		return nil
	})
}

// measure notes the memory of a life that is about to end.
func (c *chaos) measure(s *server) { c.peak = max(c.peak, s.memory("VmHWM")) }

// A fault is what a store does to requests that match. Shares are probabilities.
type fault struct {
	name        string
	method      string        // of the requests; all if empty
	list        bool          // only listings
	unavailable float64       // answered with 503 SlowDown
	lost        float64       // done, and the connection reset instead of an answer
	slow        time.Duration // the longest wait before it is done
	reset       bool          // the connection is reset
}

func drawFault(r *rand.Rand) fault {
	share := float64(1+r.IntN(5)) / 10
	slow := time.Duration(200+r.IntN(2000)) * time.Millisecond
	return []fault{
		{name: "calm"},
		{name: fmt.Sprintf("503 to %.0f %%", 100*share), unavailable: share},
		{name: "503 to all", unavailable: 1},
		{name: fmt.Sprintf("%.0f %% of answers lost", 100*share), lost: share},
		{name: fmt.Sprintf("%.0f %% of the answers to PUT lost", 100*share), method: http.MethodPut, lost: share},
		{name: fmt.Sprintf("GET takes up to %s", slow), method: http.MethodGet, slow: slow},
		{name: fmt.Sprintf("LIST takes up to %s", 2*slow), list: true, slow: 2 * slow},
		{name: fmt.Sprintf("PUT takes up to %s", slow), method: http.MethodPut, slow: slow},
		{name: "connections are reset", reset: true},
	}[r.IntN(9)]
}

func (f fault) matches(r *http.Request) bool {
	isList := r.Method == http.MethodGet && r.URL.Query().Has("list-type")
	return (f.method == "" || f.method == r.Method) && (!f.list || isList)
}

// A faultyStore is a proxy to an S3 server. What happens to a request is decided by the seed, the
// request and how often it came before.
type faultyStore struct {
	url  string
	seed uint64

	mu                                     sync.Mutex
	now                                    fault          // guarded by mu
	seen                                   map[string]int // guarded by mu; requests so far
	passed, unavailable, lost, slow, reset int            // guarded by mu
}

func newFaultyStore(t *testing.T, endpoint string, seed uint64) *faultyStore {
	f := &faultyStore{seed: seed, seen: map[string]int{}}
	f.url = lab.Proxy(t, endpoint, f.handle)
	return f
}

func (f *faultyStore) set(now fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = now
}

func (f *faultyStore) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fmt.Sprintf("requests: %d passed on, %d with 503, %d answers lost, %d slow, %d reset", f.passed, f.unavailable, f.lost, f.slow, f.reset)
}

func (f *faultyStore) handle(w http.ResponseWriter, r *http.Request, next http.Handler) {
	what := r.Method + " " + r.URL.String()
	f.mu.Lock()
	now, n := f.now, f.seen[what]
	f.seen[what]++
	f.mu.Unlock()
	hash := fnv.New64a()
	io.WriteString(hash, what)
	random := rand.New(rand.NewPCG(f.seed^hash.Sum64(), uint64(n)))
	if !now.matches(r) {
		now = fault{}
	}
	switch {
	case now.reset:
		f.count(&f.reset)
		resetConnection(w)
	case random.Float64() < now.unavailable:
		f.count(&f.unavailable)
		io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(w, "<Error><Code>SlowDown</Code><Message>made up</Message></Error>")
	case random.Float64() < now.lost:
		f.count(&f.lost)
		next.ServeHTTP(httptest.NewRecorder(), r)
		resetConnection(w)
	case now.slow > 0:
		f.count(&f.slow)
		timer := time.NewTimer(time.Duration(random.Int64N(int64(now.slow))))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
		}
		next.ServeHTTP(w, r)
	default:
		f.count(&f.passed)
		next.ServeHTTP(w, r)
	}
}

func (f *faultyStore) count(n *int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*n++
}

// resetConnection ends a connection without an answer.
func resetConnection(w http.ResponseWriter) {
	c, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	c.Close()
}
