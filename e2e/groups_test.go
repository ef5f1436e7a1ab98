package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// consumed is what consumers of a group have seen, by value.
type consumed struct {
	mu    sync.Mutex
	times map[string]int    // guarded by mu
	by    map[string]int    // guarded by mu; records of each consumer
	place map[string]string // guarded by mu; value at "partition offset"
}

func newConsumed() *consumed {
	return &consumed{times: map[string]int{}, by: map[string]int{}, place: map[string]string{}}
}

func (c *consumed) add(t testing.TB, who, place, value string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.times[value]++
	c.by[who]++
	if other, ok := c.place[place]; ok && other != value {
		t.Errorf("at %s %s saw %s, another %s", place, who, value, other)
	}
	c.place[place] = value
}

// missing counts the values 0 to n that nobody has seen.
func (c *consumed) missing(n int) (count int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range n {
		if c.times[fmt.Sprint(i)] == 0 {
			count++
		}
	}
	return count
}

// consumer starts a program of the lab that consumes; leave ends it and waits until it has left.
func consumer(t testing.TB, seen *consumed, who, name string, args ...string) (leave func()) {
	t.Helper()
	cmd := exec.Command(name, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var log logBuffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done, left := make(chan struct{}), false
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			partition, rest, _ := strings.Cut(lines.Text(), " ")
			offset, value, ok := strings.Cut(rest, " ")
			switch {
			case lines.Text() == "left":
				left = true
			case ok && partition != "#":
				seen.add(t, who, partition+" "+offset, value)
			}
		}
		_ = cmd.Wait()
	}()
	var once sync.Once
	leave = func() {
		once.Do(func() {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			<-done
			if !left {
				t.Errorf("%s did not leave in order:\n%s", who, log.tail(4<<10))
			}
		})
	}
	t.Cleanup(leave)
	return leave
}

// Clients of three kinds share a group of the consumer protocol (KIP-848): the coordinator gives
// each its share, what one leaves the others take over, also across the death of the server, and
// nothing is missed.
func TestConsumerProtocol(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	const partitions = 6
	if _, err := s.admin().CreateTopic(context.Background(), partitions, 1, nil, "events"); err != nil {
		t.Fatal(err)
	}
	jars, err := os.ReadFile(filepath.Join(lab.Home(), "kafka-clients", "classpath"))
	if err != nil {
		t.Fatalf("%v: run make lab", err)
	}
	seen := newConsumed()
	leaveJava := consumer(t, seen, "java", "java", "-cp", strings.TrimSpace(string(jars)), "lab/groupconsumer/GroupConsumer.java", s.kafka, "g", "events")
	leavePython := consumer(t, seen, "python", python(), "lab/groupconsumer/consumer.py", s.kafka, "g", "events")
	cl := s.client(kgo.ConsumerGroup("g"), kgo.ConsumeTopics("events"), kgo.ServerSideBalancer(), kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.AutoCommitInterval(200*time.Millisecond), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	polling, stop := context.WithCancel(context.Background())
	polled := make(chan struct{})
	go func() {
		defer close(polled)
		for polling.Err() == nil {
			cl.PollFetches(polling).EachRecord(func(r *kgo.Record) {
				seen.add(t, "go", fmt.Sprint(r.Partition, " ", r.Offset), string(r.Value))
			})
		}
	}()
	defer func() { stop(); <-polled }()

	producer := s.client(kgo.DefaultProduceTopic("events"), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	sent := 0
	produce := func(n int) {
		t.Helper()
		for range n {
			producer.Produce(context.Background(), &kgo.Record{Value: fmt.Append(nil, sent)}, func(_ *kgo.Record, err error) {
				if err != nil {
					t.Errorf("produce: %v", err)
				}
			})
			sent++
		}
		if err := producer.Flush(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	all := func(what string) {
		t.Helper()
		eventually(t, 3*time.Minute, what, func() error {
			if n := seen.missing(sent); n > 0 {
				return fmt.Errorf("%d of %d records not consumed", n, sent)
			}
			return nil
		})
	}
	// stable waits until n members share the partitions evenly.
	stable := func(n int) {
		t.Helper()
		eventually(t, 3*time.Minute, fmt.Sprintf("%d members share the partitions", n), func() error {
			g, err := describeConsumerGroup(s, "g")
			if err != nil {
				return err
			}
			if g.State != "Stable" || len(g.Members) != n {
				return fmt.Errorf("%s with %d members", g.State, len(g.Members))
			}
			for _, m := range g.Members {
				held := 0
				for _, tp := range m.Assignment.TopicPartitions {
					held += len(tp.Partitions)
				}
				if held != partitions/n {
					return fmt.Errorf("%s has %d partitions, want %d", m.MemberID, held, partitions/n)
				}
			}
			return nil
		})
	}
	stable(3)
	produce(1200)
	all("three clients have consumed all")
	for _, who := range []string{"java", "python", "go"} {
		if seen.by[who] < 1200/partitions {
			t.Errorf("%s has consumed %d records, want a share", who, seen.by[who])
		}
	}
	leaveJava()
	stable(2)
	produce(600)
	all("two clients have consumed all")
	s.kill()
	s.start()
	produce(600)
	all("the clients go on after the server died")
	stable(2)
	leavePython()
	stable(1)
	produce(60)
	all("one client has consumed all")
	stop()
	<-polled
	cl.Close()
	eventually(t, time.Minute, "the group is empty", func() error {
		groups, err := s.admin().ListGroupsByType(context.Background(), []string{"consumer"})
		if err != nil {
			return err
		}
		if g := groups["g"]; g.State != "Empty" {
			return fmt.Errorf("group g: %+v", g)
		}
		return nil
	})
	// What a client that is gone has committed, a classic one goes on from.
	offsets, err := s.admin().FetchOffsets(context.Background(), "g")
	if err != nil {
		t.Fatal(err)
	}
	total := int64(0)
	offsets.Each(func(o kadm.OffsetResponse) { total += o.At })
	if total != int64(sent) {
		t.Errorf("committed offsets sum up to %d, want %d", total, sent)
	}
}

func describeConsumerGroup(s *server, group string) (g kmsg.ConsumerGroupDescribeResponseGroup, err error) {
	req := kmsg.NewPtrConsumerGroupDescribeRequest()
	req.Groups = []string{group}
	cl := s.client()
	defer cl.Close()
	resp, err := req.RequestWith(context.Background(), cl)
	if err != nil {
		return g, err
	}
	if len(resp.Groups) != 1 {
		return g, errors.New("no answer for the group")
	}
	return resp.Groups[0], nil
}
