package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/node"
)

// partitionRows asks a server for the partitions of a topic.
func partitionRows(t *testing.T, s *server, topic string) []node.PartitionRow {
	t.Helper()
	var list struct{ Partitions []node.PartitionRow }
	if err := s.api("/api/partitions?topic="+topic, &list); err != nil {
		t.Fatal(err)
	}
	return list.Partitions
}

// mustMove moves by the command, asks the server given, and returns the pause that it made.
func mustMove(t *testing.T, s *server, args ...string) time.Duration {
	t.Helper()
	out, code := s.cli("", append([]string{"partition", "move", "--output", "json"}, args...)...)
	var done node.MoveStatus
	if err := json.Unmarshal([]byte(out), &done); code != 0 || err != nil || !done.Done || done.Moved != done.Total {
		t.Fatalf("partition move %v: exit %d, %v\n%s", args, code, err, out)
	}
	return time.Duration(done.Pause) * time.Millisecond
}

// One topic is led by two servers, under idempotent producers and a group consumer. Partitions
// move to and fro, by any server; one server is drained, killed with kill -9 in the middle of a
// move, recovered, emptied, and comes back. The log, the table and what the consumer saw are the
// same in the end, record for record, and verify agrees at both servers.
func TestMovesUnderLoad(t *testing.T) {
	t.Parallel() // mostly waits
	l := directoryLake(t)
	shared := []string{"--metadata", lab.Postgres(t), "--object-store", "file://" + t.TempDir(), "--upload-interval", "500ms"}
	var servers []*server
	for id := range 2 {
		servers = append(servers, startServer(t, append([]string{"--node-id", strconv.Itoa(id + 1)}, shared...)...))
	}
	one, two := servers[0], servers[1]
	const partitions = 4
	one.createTopic("events", partitions, 500*time.Millisecond)
	header := registerSchema(t, two, "events-value", eventSchema)
	var leaders []int32
	for _, p := range partitionRows(t, two, "events") {
		leaders = append(leaders, p.Leader)
	}
	if slices.Sort(leaders); !slices.Equal(leaders, []int32{1, 1, 2, 2}) {
		t.Fatalf("a new topic of 4 partitions is led by %v", leaders)
	}

	ctx, stop := context.WithCancel(t.Context())
	acked, seen := &acks{places: map[place]string{}}, &acks{places: map[place]string{}}
	var producers, consumers sync.WaitGroup
	for n, s := range []*server{one, two} {
		producers.Go(func() { produceUntil(ctx, t, s, "events", header, n, time.Millisecond, acked) })
	}
	consumerCtx, stopConsumer := context.WithCancel(t.Context())
	defer stopConsumer()
	consumers.Go(func() { consumeUntil(consumerCtx, t, two, "events", seen) })
	flows := func(what string) { // the cluster takes records in every partition
		t.Helper()
		before := acked.ends()
		eventually(t, 3*time.Minute, what+": records are taken", func() error {
			for p, end := range acked.ends() {
				if end <= before[p] {
					return fmt.Errorf("none in partition %d", p)
				}
			}
			if len(before) > 0 && len(before) < partitions {
				return errors.New("not all partitions have records")
			}
			return nil
		})
	}
	eventually(t, 3*time.Minute, "records in all partitions", func() error {
		if n := len(acked.ends()); n < partitions {
			return fmt.Errorf("in %d", n)
		}
		return nil
	})

	// To and fro, partition 0 with the coordinator included, asked at the one server and the other.
	var took []time.Duration
	for i := range 20 {
		p := i % partitions
		to := 3 - partitionRows(t, servers[i%2], "events")[p].Leader
		took = append(took, mustMove(t, servers[i%2], "events", fmt.Sprint(p), "--to", fmt.Sprint(to)))
		if got := partitionRows(t, servers[1-i%2], "events")[p]; got.Leader != to || got.LogEnd < 0 {
			t.Fatalf("move %d: the other server says %+v", i, got)
		}
		if i%5 == 4 {
			flows(fmt.Sprintf("move %d", i))
		}
	}
	slices.Sort(took)
	t.Logf("20 moves paused for %v in the median, %v at most", took[len(took)/2], took[len(took)-1])

	// Drained: groups, control log and dead letters go too.
	mustMove(t, two, "--all-from", "1", "--to", "2")
	flows("drained")
	if rows := partitionRows(t, one, ""); slices.ContainsFunc(rows, func(r node.PartitionRow) bool { return r.Leader != 2 }) {
		t.Fatalf("not drained: %+v", rows)
	}
	mustMove(t, one, "--all-from", "2", "--to", "1")
	flows("moved back")
	mustMove(t, one, "events", "1", "--to", "2")

	// Killed at some moment of giving everything away.
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range 3 {
		moving := make(chan struct{})
		go func() {
			defer close(moving)
			two.cli("", "partition", "move", "--all-from", "1", "--to", "2") // how far it comes is open
		}()
		<-time.After(time.Duration(random.IntN(600)) * time.Millisecond)
		one.kill()
		<-moving
		out, code := two.cli("", "partition", "move", "--all-from", "1", "--to", "2")
		if over := code == 0 && strings.Contains(out, "leads 0 more"); !over && (code != 1 || !strings.Contains(out, "node recover 1")) {
			t.Fatalf("move from a dead node: exit %d\n%s", code, out)
		} else {
			t.Logf("round %d: the move was over before the server was killed: %t", round, over)
		}
		if out, code := two.cli("", "partition", "move", "events", "1", "--to", "1"); code != 1 || !strings.Contains(out, "node 1 is silent") {
			t.Fatalf("move to a dead node: exit %d\n%s", code, out)
		}
		mustMove(t, two, "--all-from", "1", "--to", "2", "--recover")
		flows("after the recovery")
		one.start()
		if rows := partitionRows(t, one, ""); slices.ContainsFunc(rows, func(r node.PartitionRow) bool { return r.Leader == 1 }) {
			t.Fatalf("the server that came back leads what was moved away: %+v", rows)
		}
		mustMove(t, one, "--all-from", "2", "--to", "1")
		mustMove(t, one, "events", "1", "--to", "2")
		flows("moved to the server that came back")
	}

	stop()
	producers.Wait()
	log := readLog(t, two, "events", partitions)
	if len(acked.places) < 1000 {
		t.Errorf("only %d records acknowledged", len(acked.places))
	}
	checkLog(t, log, acked, seen)
	stopConsumer()
	consumers.Wait()
	checkTable(t, l, one, "events", log)
	for i, s := range servers {
		if out, code := s.cli("", "table", "verify", "events", "--deep"); code != 0 {
			t.Errorf("verify at server %d: exit %d\n%s", i+1, code, out)
		}
	}
	if out, code := two.cli("", "partition", "list", "--topic", "events"); code != 0 || strings.Count(out, "events") != partitions || !strings.Contains(out, one.kafka) || !strings.Contains(out, two.kafka) {
		t.Errorf("partition list: exit %d\n%s", code, out)
	}
	t.Logf("%d acknowledged, %d in the log", len(acked.places), len(log))
}

// ends returns the offset after the last acknowledged record of each partition.
func (a *acks) ends() map[int32]int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	ends := map[int32]int64{}
	for p := range a.places {
		ends[p.partition] = max(ends[p.partition], p.offset+1)
	}
	return ends
}
