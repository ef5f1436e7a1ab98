package e2e

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
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
		if out, code := s.cli("", "table", "verify", topic(i), "--deep"); code != 0 {
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
	store   *lab.Faults
	began   time.Time
	plan    []string // what was done, and when
	pauses  bool     // servers may stand still, too
	kills   int
	peak    float64 // MB, of all lives
}

func newChaos(t *testing.T, seed uint64, servers int, more ...string) *chaos {
	endpoint, _, _ := lab.Versitygw(t, "lake")
	c := &chaos{t: t, random: rand.New(rand.NewPCG(seed, 0)), began: time.Now(), store: lab.NewFaults(seed)}
	c.lake = &lake{env: s3Credentials, queryArgs: []string{"--s3-endpoint", endpoint}}
	c.lake.flags = []string{
		"--object-store", "s3://lake/tt?region=us-east-1&path-style=true&endpoint=" + c.store.Proxy(t, endpoint, storeDialect),
		"--log-cache-bytes", "67108864", "--upload-bytes", "4194304", "--block-cache-bytes", "16777216", "--compaction-memory-bytes", "33554432", "--table-memory-bytes", "67108864",
		"--upload-interval", "500ms", "--compaction-interval", "1s", "--compaction-minor-interval", "2s", "--compaction-major-interval", "3s",
		"--delete-grace", "10s", "--orphan-sweep-interval", "5s", "--orphan-sweep-grace", "5s",
	}
	if servers > 1 {
		c.lake.flags = append(c.lake.flags, "--metadata", lab.Postgres(t))
	}
	c.lake.flags = append(c.lake.flags, more...)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d, schedule:\n%s", seed, strings.Join(c.plan, "\n"))
		}
	})
	for i := range servers {
		s := newServer(t, slices.Concat(c.lake.flags, []string{"--node-id", fmt.Sprint(i + 1)})...)
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
	c.note("%s for %s", f.Name, length)
	c.store.Set(f)
	var killed, paused *server
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
	} else if c.pauses && c.random.IntN(3) == 0 {
		paused = c.servers[c.random.IntN(len(c.servers))]
		c.note("pause")
		paused.signalOnly(syscall.SIGSTOP)
	}
	c.wait(length)
	if paused != nil {
		paused.signalOnly(syscall.SIGCONT)
	}
	c.store.Set(lab.Fault{})
	if killed != nil {
		killed.waitReady()
	}
	c.wait(time.Duration(c.random.IntN(1500)) * time.Millisecond)
}

// killAll kills all servers at once and starts them, whatever the store does.
func (c *chaos) killAll() {
	c.note("kill -9 all and start")
	for _, s := range c.servers {
		c.measure(s)
		c.kills++
	}
	for _, s := range c.servers {
		s.kill()
	}
	c.startAll()
}

func (c *chaos) startAll() {
	c.t.Helper()
	for _, s := range c.servers {
		if err := s.launch(); err != nil {
			c.t.Fatal(err)
		}
	}
	for _, s := range c.servers {
		s.waitReady()
	}
}

// loseDisks ends all servers, takes from them all that is not in the bucket and in the database, and starts them.
func (c *chaos) loseDisks() {
	c.t.Helper()
	for _, s := range c.servers {
		s.kill()
		if err := os.RemoveAll(s.data); err != nil {
			c.t.Fatal(err)
		}
	}
	c.startAll()
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
	eventually(c.t, 3*time.Minute, "no orphans in the bucket", func() error {
		out, code := s.cli("", "object", "list", "--state", "orphaned", "--output", "json")
		if code != 0 || out != "" {
			return fmt.Errorf("exit %d\n%s", code, out)
		}
		return nil
	})
}

// measure notes the memory of a life that is about to end.
func (c *chaos) measure(s *server) { c.peak = max(c.peak, s.memory("VmHWM")) }

// drawFault draws what a store does wrong for a while.
func drawFault(r *rand.Rand) lab.Fault {
	share := float64(1+r.IntN(5)) / 10
	slow := time.Duration(200+r.IntN(2000)) * time.Millisecond
	method := func(m string) func(string) bool {
		return func(call string) bool { return strings.HasPrefix(call, m+" ") }
	}
	return []lab.Fault{
		{Name: "calm"},
		{Name: fmt.Sprintf("503 to %.0f %%", 100*share), Refuse: share},
		{Name: "503 to all", Refuse: 1},
		{Name: fmt.Sprintf("%.0f %% of answers lost", 100*share), Lose: share},
		{Name: fmt.Sprintf("%.0f %% of the answers to PUT lost", 100*share), Matches: method(http.MethodPut), Lose: share},
		{Name: fmt.Sprintf("GET takes up to %s", slow), Matches: method(http.MethodGet), Slow: slow},
		{Name: fmt.Sprintf("LIST takes up to %s", 2*slow), Matches: func(call string) bool { return strings.Contains(call, "list-type=") }, Slow: 2 * slow},
		{Name: fmt.Sprintf("PUT takes up to %s", slow), Matches: method(http.MethodPut), Slow: slow},
		{Name: "connections are reset", Reset: 1},
	}[r.IntN(9)]
}

// storeDialect is how S3 is asked to slow down.
var storeDialect = lab.Dialect{Refuse: func(w http.ResponseWriter) {
	w.WriteHeader(http.StatusServiceUnavailable)
	io.WriteString(w, "<Error><Code>SlowDown</Code><Message>made up</Message></Error>")
}}
