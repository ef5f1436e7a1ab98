package e2e

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// shared is what the members of a share group say of each number.
type shared struct {
	mu         sync.Mutex
	deliveries map[string]int // guarded by mu; the most that a member was told
	done       map[string]int // guarded by mu; how often "accept 5" and the like were confirmed
}

func (s *shared) note(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rest, ok := strings.CutPrefix(line, "got "); ok {
		value, n, _ := strings.Cut(rest, " ")
		count, _ := strconv.Atoi(n)
		s.deliveries[value] = max(s.deliveries[value], count)
		return
	}
	s.done[line]++
}

// missing counts the numbers below n that are neither accepted nor rejected. Those of which a member
// does not know may be either: a server that is killed may have done what it was asked for.
func (s *shared) missing(n int) (count int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range n {
		times := 0
		for _, of := range []string{"accept ", "reject ", "unsure accept ", "unsure reject "} {
			times += s.done[fmt.Sprint(of, i)]
		}
		if times == 0 {
			count++
		}
	}
	return count
}

// shareConsumer starts the program of the lab; leave ends it and waits until it has left, crash kills it.
func shareConsumer(t *testing.T, s *server, seen *shared, group, topic string) (leave, crash func()) {
	t.Helper()
	cmd := exec.Command("java", "-Xmx200m", "-XX:TieredStopAtLevel=1", "-cp", classpath(t, "kafka-clients"), "lab/shareconsumer/ShareConsumer.java", s.kafka, group, topic)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var log logBuffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done, ready, left := make(chan struct{}), make(chan struct{}), false
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			switch lines.Text() {
			case "ready":
				close(ready)
			case "left":
				left = true
			}
			seen.note(lines.Text())
		}
		_ = cmd.Wait()
	}()
	var once sync.Once
	leave = func() {
		once.Do(func() {
			select {
			case <-ready:
			case <-done:
			}
			_ = cmd.Process.Signal(syscall.SIGTERM)
			<-done
			if !left || t.Failed() {
				t.Errorf("a member left in order: %v\n%s", left, log.tail(4<<10))
			}
		})
	}
	crash = func() {
		once.Do(func() {
			_ = cmd.Process.Kill()
			<-done
		})
	}
	t.Cleanup(leave)
	return leave, crash
}

// groupConfig sets a setting of a group.
func (s *server) groupConfig(group, name, value string) {
	s.t.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	res := kmsg.NewIncrementalAlterConfigsRequestResource()
	res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeGroupConfig, group
	c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	c.Name, c.Value = name, &value
	res.Configs = append(res.Configs, c)
	req.Resources = append(req.Resources, res)
	resp, err := req.RequestWith(context.Background(), s.client())
	if err == nil {
		err = kerr.ErrorForCode(resp.Resources[0].ErrorCode)
	}
	if err != nil {
		s.t.Fatalf("set %s of group %s: %v", name, group, err)
	}
}

// Java's members share a topic (KIP-932) while the server is killed twice and one of them once: each
// number is accepted or rejected, and what was released comes again and says how often.
func TestShareGroup(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	if _, err := s.admin().CreateTopic(context.Background(), 3, 1, nil, "jobs"); err != nil {
		t.Fatal(err)
	}
	s.groupConfig("workers", "share.auto.offset.reset", "earliest")
	s.groupConfig("workers", "share.heartbeat.interval.ms", "1000")
	s.groupConfig("workers", "share.session.timeout.ms", "10000") // of the one that is killed, which has a partition for itself
	produce := func(from, to int) {
		cl := s.client()
		for i := from; i < to; i += 5 { // small batches, for each is given out whole
			var batch []*kgo.Record
			for j := range 5 {
				batch = append(batch, &kgo.Record{Topic: "jobs", Value: []byte(strconv.Itoa(i + j))})
			}
			if err := cl.ProduceSync(context.Background(), batch...).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
	produce(0, 1000)
	seen := &shared{deliveries: map[string]int{}, done: map[string]int{}}
	var leave []func()
	var crash func()
	for range 2 {
		l, c := shareConsumer(t, s, seen, "workers", "jobs")
		leave, crash = append(leave, l), c
	}
	for _, n := range []int{30, 200} {
		eventually(t, 3*time.Minute, "some are done", func() error {
			if done := 1000 - seen.missing(1000); done < n {
				return fmt.Errorf("%d", done)
			}
			return nil
		})
		s.kill()
		s.start()
		if n == 30 {
			crash()
			l, _ := shareConsumer(t, s, seen, "workers", "jobs")
			leave[1] = l
		}
	}
	produce(1000, 1500)
	eventually(t, 3*time.Minute, "all are done", func() error {
		if n := seen.missing(1500); n > 0 {
			return fmt.Errorf("%d are missing", n)
		}
		return nil
	})
	for _, l := range leave {
		l()
	}
	shareGroupDone(t, s, "workers", 3)
	seen.mu.Lock()
	defer seen.mu.Unlock()
	for i := range 1500 {
		v := strconv.Itoa(i)
		if i%10 == 3 && seen.done["accept "+v] > 0 && seen.deliveries[v] < 2 {
			t.Errorf("%s was released, and came %d times", v, seen.deliveries[v])
		}
		if i%10 == 7 && seen.done["accept "+v] > 0 {
			t.Errorf("%s was accepted", v)
		}
	}
}

// shareGroupDone waits until a share group has nothing before it in any of its partitions.
func shareGroupDone(t *testing.T, s *server, group string, partitions int) {
	t.Helper()
	describe := kmsg.NewPtrDescribeShareGroupOffsetsRequest()
	describe.Groups = []kmsg.DescribeShareGroupOffsetsRequestGroup{{GroupID: group}}
	cl := s.client()
	eventually(t, 3*time.Minute, "the share group has nothing before it", func() error {
		ends, err := s.admin().ListEndOffsets(context.Background())
		if err != nil {
			return err
		}
		at := map[string]bool{}
		for _, resp := range cl.RequestSharded(context.Background(), describe) {
			if resp.Err != nil {
				return resp.Err
			}
			g := resp.Resp.(*kmsg.DescribeShareGroupOffsetsResponse).Groups[0]
			if g.ErrorCode != 0 {
				return kerr.ErrorForCode(g.ErrorCode)
			}
			for _, rt := range g.Topics {
				for _, p := range rt.Partitions {
					// Where another server leads the partition than that of the group, the lag is not known: -1.
					if end, _ := ends.Lookup(rt.Topic, p.Partition); p.Lag > 0 || p.Lag < 0 && p.StartOffset != end.Offset {
						return fmt.Errorf("%s-%d is at %d of %d, with %d records before it", rt.Topic, p.Partition, p.StartOffset, end.Offset, p.Lag)
					}
					at[fmt.Sprint(rt.Topic, p.Partition)] = true
				}
			}
		}
		if len(at) != partitions {
			return fmt.Errorf("%d partitions", len(at))
		}
		return nil
	})
}

// The tools that come with Kafka consume in a share group, and say and change how far it is.
func TestKafkaToolsOfShareGroups(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	k := startKafkaTools(t, s)
	k.session([]toolRun{
		{"", topicTool, "--create --topic jobs --partitions 1", 0, nil},
		{"one\ntwo\nthree\n", "ConsoleProducer", "--topic jobs", 0, nil},
		{"", configTool, "--alter --entity-type groups --entity-name w --add-config share.auto.offset.reset=earliest,share.record.lock.duration.ms=60000", 0, []string{"Completed updating config"}},
		{"", configTool, "--describe --entity-type groups --entity-name w", 0, []string{"share.auto.offset.reset=earliest", "share.record.lock.duration.ms=60000"}},
		{"", configTool, "--describe --entity-type groups", 0, []string{"w"}},
		{"", "consumer.ConsoleShareConsumer", "--topic jobs --group w --max-messages 3 --timeout-ms 60000", 0, []string{"one", "two", "three", "a total of 3 messages"}},
		{"", shareTool, "--list", 0, []string{"w"}},
		{"", "GroupsCommand", "--list", 0, []string{"w", "Share"}},
		{"", shareTool, "--describe --group w --state", 0, []string{"Empty"}},
		{"", shareTool, "--describe --group w --members", 0, nil},
		{"", shareTool, "--describe --group w", 0, []string{"jobs", "3"}},
		{"", shareTool, "--reset-offsets --group w --topic jobs --to-earliest --execute", 0, []string{"jobs"}},
		{"", "consumer.ConsoleShareConsumer", "--topic jobs --group w --max-messages 3 --timeout-ms 60000 --reject", 0, []string{"one", "a total of 3 messages"}},
		{"", shareTool, "--delete-offsets --group w --topic jobs", 0, []string{"Successful"}},
		{"", shareTool, "--delete-offsets --group w --topic jobs", 0, []string{"has no offsets of topic"}},
		{"", "VerifiableShareConsumer", "--topic jobs --group-id w --max-messages 3", 0, []string{"records_consumed", "offsets_acknowledged"}},
		{"", shareTool, "--delete --group w", 0, []string{"successful"}},
		{"", configTool, "--alter --entity-type groups --entity-name perf --add-config share.auto.offset.reset=earliest", 0, []string{"Completed updating config"}},
		{"", "ShareConsumerPerformance", "--topic jobs --group perf --num-records 3", 0, []string{", 3, "}},
	}, "--bootstrap-server", s.kafka)
}
