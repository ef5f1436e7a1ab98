package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	icebergrest "github.com/apache/iceberg-go/catalog/rest"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/internal/lab"
)

// A catalogCall is what a server asked of a catalog about one table.
type catalogCall struct {
	Server   int
	Commit   string // id of the commit; empty if it was a load
	Epoch    int    // of the coordinator
	Base     int64  // snapshot that main has to be at; 0 for none
	Snapshot int64  // that main shall be at
}

// A catalogAnswer is what the catalog said.
type catalogAnswer struct {
	Status int
	Head   int64 // snapshot that main is at, if a load has the status 200
}

// A commitLog notes, right in front of a catalog, what is done to the table events, by which server, and
// between which moments.
type commitLog struct {
	began time.Time

	mu  sync.Mutex
	ops []porcupine.Operation // guarded by mu
}

// proxy starts the way of one server to the catalog.
func (l *commitLog) proxy(t *testing.T, server int, catalog string) string {
	return lab.Proxy(t, catalog, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		call := catalogCall{Server: server}
		body, commits := snapshotOf(r, "events")
		loads := r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/tables/events")
		if !commits && !loads {
			next.ServeHTTP(w, r)
			return
		}
		if commits {
			if err := call.parse(body); err != nil {
				t.Errorf("commit of server %d: %v\n%s", server, err, body)
			}
		}
		r.Header.Del("Accept-Encoding") // the answer is to be read
		start := time.Since(l.began)
		answer := deliver(r, next)
		end := time.Since(l.began)
		said := catalogAnswer{Status: answer.Code}
		if answer.Code == http.StatusOK {
			var table struct {
				Metadata struct {
					Head *int64 `json:"current-snapshot-id"`
				}
			}
			if err := json.Unmarshal(answer.Body.Bytes(), &table); err != nil {
				t.Errorf("answer of the catalog: %v", err)
			}
			if head := table.Metadata.Head; head != nil && *head > 0 {
				said.Head = *head
			}
		}
		l.mu.Lock()
		l.ops = append(l.ops, porcupine.Operation{ClientId: server, Input: call, Call: start.Nanoseconds(), Output: said, Return: end.Nanoseconds()})
		l.mu.Unlock()
		reply(w, answer)
	})
}

// parse reads what a commit asks for.
func (c *catalogCall) parse(body []byte) error {
	var in struct {
		Requirements []struct {
			Type       string
			Ref        string
			SnapshotID *int64 `json:"snapshot-id"`
		}
		Updates []struct {
			Action   string
			Snapshot struct {
				ID      int64 `json:"snapshot-id"`
				Summary map[string]string
			}
		}
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return err
	}
	conditional := false
	for _, r := range in.Requirements {
		if r.Type == "assert-ref-snapshot-id" && r.Ref == "main" {
			conditional = true
			if r.SnapshotID != nil {
				c.Base = *r.SnapshotID
			}
		}
	}
	if !conditional {
		return fmt.Errorf("it does not say which snapshot it is built on")
	}
	for _, u := range in.Updates {
		if u.Action == "add-snapshot" {
			c.Snapshot, c.Commit = u.Snapshot.ID, u.Snapshot.Summary["tabletopic.commit.id"]
			epoch, err := strconv.Atoi(u.Snapshot.Summary["tabletopic.epoch"])
			if err != nil || c.Commit == "" {
				return fmt.Errorf("its snapshot does not say who commits: %v", err)
			}
			c.Epoch = epoch
		}
	}
	return nil
}

// A pointer is what a catalog names for a table, and who put it there.
type pointer struct {
	head  int64
	epoch int
}

// commitRight is what a table's place in a catalog may do: each commit comes onto the snapshot that it was
// built on, none of an earlier epoch after one of a later, and whoever loads sees where it is.
var commitRight = porcupine.Model{
	Init: func() any { return pointer{} },
	Step: func(state, input, output any) (bool, any) {
		at, call, said := state.(pointer), input.(catalogCall), output.(catalogAnswer)
		switch {
		case call.Commit == "":
			return said.Head == at.head, at
		case said.Status == http.StatusOK:
			return call.Base == at.head && call.Epoch >= at.epoch, pointer{call.Snapshot, call.Epoch}
		default: // refused
			return call.Base != at.head, at
		}
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

// The right to commit to a table goes from server to server and back while the catalog holds commits, loses
// answers and is slow, and while servers are killed, stand still and come back: at any moment one has it.
// What both did to the table has an order in which each commit comes onto the one before, those of each
// epoch of the coordinator together; one server has each epoch; and each commit was asked for in the
// control log by the coordinator of its epoch. Each record is in the table once.
func TestOneServerHasTheRightToCommit(t *testing.T) {
	t.Parallel() // mostly waits
	rounds := 12
	if os.Getenv("TABLETOPIC_SOAK") != "" {
		rounds = 200
	}
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	tables := lab.IcebergREST(t, "file://"+t.TempDir(), "")
	log := &commitLog{began: time.Now()}
	shared := []string{"--metadata", lab.Postgres(t), "--object-store", "file://" + t.TempDir()}
	var plan []string
	note := func(format string, args ...any) {
		plan = append(plan, fmt.Sprintf("%8.3fs  ", time.Since(log.began).Seconds())+fmt.Sprintf(format, args...))
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d, schedule:\n%s", seed, strings.Join(plan, "\n"))
		}
	})
	var servers []*server
	var faults []*lab.Faults
	for i := range 2 {
		f := lab.NewFaults(seed + uint64(i))
		way := f.Proxy(t, log.proxy(t, i+1, tables), lab.Dialect{})
		faults = append(faults, f)
		servers = append(servers, startServer(t, append([]string{"--node-id", fmt.Sprint(i + 1), "--catalog-uri", way}, shared...)...))
	}
	servers[0].createTopic("events", 2, 300*time.Millisecond, "table.topic.expire.snapshot.enabled", "false", "table.topic.compact.enabled", "false")
	header := registerSchema(t, servers[0], "events-value", eventSchema)
	producing, stop := context.WithCancel(t.Context())
	acked := &acks{places: map[place]string{}}
	var producers sync.WaitGroup
	defer producers.Wait()
	defer stop()
	for n, s := range servers {
		producers.Go(func() { produceUntil(producing, t, s, "events", header, n, 10*time.Millisecond, acked) })
	}
	acked.waitFor(t, 100)
	tableHolds(t, servers[0], "events")

	pause := func(most time.Duration) { <-time.After(time.Duration(random.Int64N(int64(most)))) }
	restart := func(s *server) { // it has been taken over, and ends by itself
		if code := s.exitCode(2 * time.Minute); code != 1 {
			t.Errorf("a server that was taken over ended with code %d, want 1", code)
		}
		s.cmd = nil
		s.start()
	}
	for range rounds {
		set := drawCommitFault(random)
		note("%s", set.Name)
		for _, f := range faults {
			f.Set(set)
		}
		pause(time.Second)
		has := partitionRows(t, servers[0], "events")[0].Leader
		holder, other := servers[has-1], servers[2-has]
		from, to := fmt.Sprint(has), fmt.Sprint(3-has)
		take := func() { mustMove(t, other, "--all-from", from, "--to", to, "--recover") }
		switch random.IntN(5) {
		case 0, 1:
			note("the right goes from %s to %s and back", from, to)
			mustMove(t, other, "events", "0", "--to", to)
			mustMove(t, holder, "events", "0", "--to", from)
		case 2:
			note("%s is killed, %s takes over", from, to)
			holder.kill()
			take()
			holder.start()
		case 3:
			note("%s stands still, %s takes over", from, to)
			holder.signalOnly(syscall.SIGSTOP)
			take()
			pause(time.Second)
			holder.signalOnly(syscall.SIGCONT)
			restart(holder)
		case 4:
			note("%s stands still", from)
			holder.signalOnly(syscall.SIGSTOP)
			pause(2 * time.Second)
			holder.signalOnly(syscall.SIGCONT)
			mustMove(t, holder, "events", "0", "--to", to)
		}
		pause(time.Second)
		for _, f := range faults {
			f.Set(lab.Fault{})
		}
		before := acked.count()
		acked.waitFor(t, before+50)
		pause(time.Second)
	}
	stop()
	producers.Wait()
	tableHolds(t, servers[0], "events")
	for _, s := range servers {
		if out, code := s.cli("", "table", "verify", "events", "--deep"); code != 0 {
			t.Errorf("verify: exit %d\n%s", code, out)
		}
	}
	rows := run(t, nil, "lab/query", "duckdb", "--uri", tables, `SELECT id, text, _kafka."partition" AS p, _kafka."offset" AS o FROM ice.default.events`)
	checkRows(t, servers[1], "events", rows, readLog(t, servers[1], "events", 2))
	log.check(t, tables, requestsOf(t, servers[0]))
}

func (a *acks) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.places)
}

// What the check is to find: two commits onto one snapshot, one of an epoch that is over, one that was
// refused without a reason, and a load that does not see what was done before it.
func TestCommitsWithoutRightAreFound(t *testing.T) {
	commit := func(epoch int, base, snapshot int64, status int, from, to int64) porcupine.Operation {
		return porcupine.Operation{ClientId: epoch % 2, Input: catalogCall{Commit: "c", Epoch: epoch, Base: base, Snapshot: snapshot}, Output: catalogAnswer{Status: status}, Call: from, Return: to}
	}
	load := func(head, from, to int64) porcupine.Operation {
		return porcupine.Operation{Input: catalogCall{}, Output: catalogAnswer{Status: http.StatusOK, Head: head}, Call: from, Return: to}
	}
	first := commit(1, 0, 10, http.StatusOK, 0, 1)
	for what, c := range map[string]struct {
		then []porcupine.Operation
		good bool
	}{
		"one after the other":            {[]porcupine.Operation{load(10, 2, 3), commit(2, 10, 20, http.StatusOK, 2, 5), load(20, 4, 6)}, true},
		"at once, and one is refused":    {[]porcupine.Operation{commit(2, 10, 20, http.StatusOK, 2, 5), commit(1, 10, 30, http.StatusConflict, 2, 5)}, true},
		"two onto one snapshot":          {[]porcupine.Operation{commit(2, 10, 20, http.StatusOK, 2, 5), commit(2, 10, 30, http.StatusOK, 2, 5)}, false},
		"an earlier epoch after a later": {[]porcupine.Operation{commit(2, 10, 20, http.StatusOK, 2, 3), commit(1, 20, 30, http.StatusOK, 4, 5)}, false},
		"refused without a reason":       {[]porcupine.Operation{commit(2, 10, 20, http.StatusConflict, 2, 3)}, false},
		"a load that looks back":         {[]porcupine.Operation{commit(2, 10, 20, http.StatusOK, 2, 3), load(10, 4, 5)}, false},
	} {
		if got := porcupine.CheckOperations(commitRight, append([]porcupine.Operation{first}, c.then...)); got != c.good {
			t.Errorf("%s: an order explains it: %t, want %t", what, got, c.good)
		}
	}
}

// drawCommitFault draws what becomes of commits and other calls for a while.
func drawCommitFault(r *rand.Rand) lab.Fault {
	commits := func(call string) bool {
		return strings.HasPrefix(call, "POST ") && strings.HasSuffix(call, "/tables/events")
	}
	return []lab.Fault{
		{Name: "calm"},
		{Name: "half of the commits are held", Matches: commits, Hold: 0.5, Late: 3 * time.Second},
		{Name: "half of the answers to commits are lost", Matches: commits, Lose: 0.5},
		{Name: "half of the commits are done behind a bad gateway", Matches: commits, Break: 0.5},
		{Name: "commits are slow", Matches: commits, Slow: 2 * time.Second},
		{Name: "the catalog is away", Reset: 1},
	}[r.IntN(6)]
}

// requestsOf returns the epochs of the commits that are asked for in the control log, by id.
func requestsOf(t *testing.T, s *server) map[string]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ends, err := s.admin().ListEndOffsets(ctx, control.TopicName)
	if err != nil {
		t.Fatal(err)
	}
	left := int64(0)
	offsets := map[int32]kgo.Offset{}
	starts, err := s.admin().ListStartOffsets(ctx, control.TopicName)
	if err != nil {
		t.Fatal(err)
	}
	ends.Each(func(o kadm.ListedOffset) {
		start, _ := starts.Lookup(o.Topic, o.Partition)
		left += o.Offset - start.Offset
		offsets[o.Partition] = kgo.NewOffset().At(start.Offset)
	})
	cl := s.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{control.TopicName: offsets}))
	epochs := map[string]int{}
	for left > 0 {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d control events were not read", left)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			left--
			var text bytes.Buffer
			if err := control.Dump(&text, r.Value); err != nil {
				t.Errorf("control event at %d-%d: %v", r.Partition, r.Offset, err)
			}
			if !strings.Contains(text.String(), "control.Request\n") {
				return
			}
			epoch, commit := 0, ""
			for line := range strings.Lines(text.String()) {
				switch f := strings.Fields(line); {
				case len(f) == 2 && f[0] == "epoch":
					epoch, _ = strconv.Atoi(f[1])
				case len(f) == 2 && f[0] == "commit":
					commit = f[1]
				}
			}
			epochs[commit] = epoch
		})
	}
	return epochs
}

// check finds an order of what was noted, and compares it with what the table says of itself.
func (l *commitLog) check(t *testing.T, tables string, requests map[string]int) {
	t.Helper()
	ctx := context.Background()
	cat, err := icebergrest.NewCatalog(ctx, "theirs", tables)
	if err != nil {
		t.Fatal(err)
	}
	table, err := cat.LoadTable(ctx, []string{"default", "events"})
	if err != nil {
		t.Fatal(err)
	}
	history := map[int64]int64{} // parents of all that main ever was
	for s := table.CurrentSnapshot(); s != nil; {
		if s.ParentSnapshotID == nil {
			history[s.SnapshotID] = 0
			break
		}
		history[s.SnapshotID] = *s.ParentSnapshotID
		s = table.Metadata().SnapshotByID(*s.ParentSnapshotID)
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	var ops []porcupine.Operation
	made, refused, loads, holders, epochs := 0, 0, 0, map[int]int{}, map[int]bool{}
	for _, op := range l.ops {
		call, said := op.Input.(catalogCall), op.Output.(catalogAnswer)
		if call.Commit == "" {
			if said.Status == http.StatusOK {
				loads++
				ops = append(ops, op)
			}
			continue
		}
		if by, known := holders[call.Epoch]; known && by != call.Server {
			t.Errorf("servers %d and %d both commit in epoch %d", by, call.Server, call.Epoch)
		}
		holders[call.Epoch] = call.Server
		parent, landed := history[call.Snapshot]
		switch said.Status {
		case http.StatusOK:
			made++
			epochs[call.Epoch] = true
			if !landed || parent != call.Base {
				t.Errorf("%+v was committed; its parent in the table is %d, %t", call, parent, landed)
			}
			if epoch, asked := requests[call.Commit]; !asked || epoch != call.Epoch {
				t.Errorf("%+v was committed; the control log has a request for it: %t, of epoch %d", call, asked, epoch)
			}
		case http.StatusConflict:
			refused++
			if landed {
				t.Errorf("%+v was refused and is in the table", call)
			}
		default:
			t.Errorf("%+v: the catalog answered %d", call, said.Status)
			continue
		}
		ops = append(ops, op)
	}
	if made != len(history) {
		t.Errorf("%d commits were made, the table has %d snapshots", made, len(history))
	}
	if result := porcupine.CheckOperationsTimeout(commitRight, ops, 5*time.Minute); result != porcupine.Ok {
		t.Errorf("no order of what was done to the table explains it: %s", result)
		for _, op := range ops {
			t.Logf("%d-%d: %s", op.Call, op.Return, commitRight.DescribeOperation(op.Input, op.Output))
		}
	}
	if len(epochs) < 3 {
		t.Errorf("the right to commit was used in %d epochs", len(epochs))
	}
	t.Logf("%d commits in %d epochs, %d refused, %d loads", made, len(epochs), refused, loads)
}
