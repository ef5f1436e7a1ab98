package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	// refused are commits that were not made because the group was about to rebalance; what they
	// would have committed comes again.
	refused []string // guarded by mu
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

func (c *consumed) refuse(who, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused = append(c.refused, who+": "+why)
}

// counts are the records of each consumer.
func (c *consumed) counts() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.by)
}

// twice are the values that were seen more than once, in order.
func (c *consumed) twice() (values []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for value, n := range c.times {
		if n > 1 {
			values = append(values, value)
		}
	}
	slices.Sort(values)
	return values
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
			case strings.HasPrefix(lines.Text(), "# commit refused"):
				seen.refuse(who, lines.Text())
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

// A group is moved to the consumer protocol and back, one client of three libraries after the other,
// while records come: in between members of both protocols share the partitions. Nothing is missed,
// and nothing consumed twice whose commit was confirmed, so no partition has two members and no commit is lost.
func TestGroupChangesItsProtocol(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for _, kind := range []struct {
		name, java string
		balancer   kgo.GroupBalancer
	}{
		{"cooperative-sticky", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor", kgo.CooperativeStickyBalancer()},
		{"range", "org.apache.kafka.clients.consumer.RangeAssignor", kgo.RangeBalancer()},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			changeProtocol(t, s, kind.name, kind.java, kind.balancer)
		})
	}
}

func changeProtocol(t *testing.T, s *server, name, java string, balancer kgo.GroupBalancer) {
	topic := "of-" + name
	const partitions = 6
	if _, err := s.admin().CreateTopic(context.Background(), partitions, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	jars, err := os.ReadFile(filepath.Join(lab.Home(), "kafka-clients", "classpath"))
	if err != nil {
		t.Fatalf("%v: run make lab", err)
	}
	seen := newConsumed()
	begin := map[string]func(classic bool) (leave func()){
		"java": func(classic bool) func() {
			args := []string{"-cp", strings.TrimSpace(string(jars)), "lab/groupconsumer/GroupConsumer.java", s.kafka, name, topic}
			if classic {
				args = append(args, java)
			}
			return consumer(t, seen, "java", "java", args...)
		},
		"python": func(classic bool) func() {
			args := []string{"lab/groupconsumer/consumer.py", s.kafka, name, topic}
			if classic {
				args = append(args, name)
			}
			return consumer(t, seen, "python", python(), args...)
		},
		"go": func(classic bool) func() {
			opts := []kgo.Opt{kgo.ConsumerGroup(name), kgo.ConsumeTopics(topic), kgo.Balancers(balancer), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
				kgo.HeartbeatInterval(500 * time.Millisecond), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())}
			if !classic {
				opts = append(opts, kgo.ServerSideBalancer())
			}
			return goConsumer(t, s.client(opts...), seen)
		},
	}
	producing, stop := context.WithCancel(context.Background())
	var sent atomic.Int64
	produced := make(chan struct{})
	go func() {
		defer close(produced)
		cl := s.client(kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
		for pace := time.NewTicker(5 * time.Millisecond); producing.Err() == nil; <-pace.C {
			if err := cl.ProduceSync(context.Background(), &kgo.Record{Value: fmt.Append(nil, sent.Load())}).FirstErr(); err != nil {
				t.Errorf("produce: %v", err)
				return
			}
			sent.Add(1)
		}
	}()
	defer func() { stop(); <-produced }()
	// shared waits until the group is of a type and everybody has consumed since.
	shared := func(what, groupType string) {
		t.Helper()
		before := seen.counts()
		eventually(t, 2*time.Minute, what, func() error {
			groups, err := s.admin().ListGroupsByType(context.Background(), []string{groupType})
			if err != nil {
				return err
			}
			if g := groups[name]; g.State != "Stable" {
				now, err := describeConsumerGroup(s, name)
				return fmt.Errorf("the %s group is %+v; of the consumer protocol: %+v, %v", groupType, g, now, err)
			}
			now := seen.counts()
			for who := range begin {
				if now[who] < before[who]+20 {
					return fmt.Errorf("%s has consumed %d records since", who, now[who]-before[who])
				}
			}
			return nil
		})
	}
	clients := []string{"java", "go", "python"}
	leave := map[string]func(){}
	for _, who := range clients {
		leave[who] = begin[who](true)
	}
	shared("three classic clients share the partitions", "classic")
	for _, classic := range []bool{false, true} {
		for i, who := range clients {
			leave[who]()
			leave[who] = begin[who](classic)
			groupType := "consumer"
			if classic && i == len(clients)-1 {
				groupType = "classic"
			}
			shared(fmt.Sprintf("%s came back, classic: %v", who, classic), groupType)
		}
	}
	stop()
	<-produced
	eventually(t, 3*time.Minute, "all is consumed", func() error {
		if n := seen.missing(int(sent.Load())); n > 0 {
			return fmt.Errorf("%d of %d records not consumed", n, sent.Load())
		}
		return nil
	})
	for _, who := range clients {
		leave[who]()
	}
	if twice := seen.twice(); len(twice) > 0 && len(seen.refused) == 0 {
		t.Errorf("%d of %d records were consumed twice, although no commit was refused: %v", len(twice), sent.Load(), twice[:min(10, len(twice))])
	} else {
		t.Logf("%d of %d records were consumed twice; commits that were refused: %q", len(twice), sent.Load(), seen.refused)
	}
	offsets, err := s.admin().FetchOffsets(context.Background(), name)
	if err != nil {
		t.Fatal(err)
	}
	total := int64(0)
	offsets.Each(func(o kadm.OffsetResponse) { total += o.At })
	if total > sent.Load() || total < sent.Load() && len(seen.refused) == 0 { // what was refused last nobody commits again
		t.Errorf("committed offsets sum up to %d, want %d", total, sent.Load())
	}
}

// goConsumer consumes with franz-go, commits after each poll, and leaves in order.
func goConsumer(t *testing.T, cl *kgo.Client, seen *consumed) (leave func()) {
	polling, stop := context.WithCancel(context.Background())
	polled := make(chan struct{})
	go func() {
		defer close(polled)
		for polling.Err() == nil {
			cl.PollFetches(polling).EachRecord(func(r *kgo.Record) {
				seen.add(t, "go", fmt.Sprint(r.Partition, " ", r.Offset), string(r.Value))
			})
			if err := cl.CommitUncommittedOffsets(context.Background()); err != nil {
				seen.refuse("go", err.Error())
			}
			cl.AllowRebalance()
		}
	}()
	var once sync.Once
	leave = func() {
		once.Do(func() {
			stop()
			<-polled
			cl.Close()
		})
	}
	t.Cleanup(leave)
	return leave
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
