package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// unknownLetters produces records whose schema is not registered yet, in values of size bytes, and
// waits until they are dead letters. It returns the header that the next schema will have.
func unknownLetters(t *testing.T, s *server, topic string, partitions, n, size int) (header []byte) {
	t.Helper()
	first := registerSchema(t, s, "other-value", `"long"`)
	header = append([]byte(nil), first...)
	header[len(header)-1]++
	cl := s.client(kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for i := range n {
		r := &kgo.Record{Partition: int32(i % partitions), Key: fmt.Append(nil, i), Value: encoded(t, header, eventSchema, event{int64(i), strings.Repeat("x", size)}),
			Headers: []kgo.RecordHeader{{Key: "own", Value: []byte("h")}}}
		cl.Produce(context.Background(), r, func(_ *kgo.Record, err error) {
			if err != nil {
				t.Errorf("record %d: %v", i, err)
			}
		})
	}
	if err := cl.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 3*time.Minute, "dead letters", func() error {
		if got := len(dlqList(t, s, topic)); got != n {
			return fmt.Errorf("%d of %d", got, n)
		}
		return nil
	})
	return header
}

type listedLetter struct {
	Cause           string `json:"cause"`
	SourcePartition int32  `json:"source_partition"`
	SourceOffset    int64  `json:"source_offset"`
	SchemaID        int    `json:"schema_id"`
	Replayed        bool   `json:"replayed"`
}

func dlqList(t *testing.T, s *server, topic string, flags ...string) (list []listedLetter) {
	t.Helper()
	out, code := s.cli("", append([]string{"dlq", "list", topic, "--limit", "100000", "--output", "json"}, flags...)...)
	if code != 0 {
		t.Fatal(out)
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return list
}

// registerNext registers the schema that the letters wait for.
func registerNext(t *testing.T, s *server, topic string, header []byte) {
	t.Helper()
	if got := registerSchema(t, s, topic+"-value", eventSchema); string(got) != string(header) {
		t.Fatalf("the schema has header %x, the letters have %x", got, header)
	}
}

// Dead letters are listed with their cause, and after the schema is there they are replayed once:
// with key, value, headers and time, and a header that says which record each is.
func TestDeadLettersAreReplayed(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.createTopic("events", 2, 300*time.Millisecond)
	if out, code := s.cli("", "dlq", "list", "events"); code != 0 || strings.Count(out, "\n") != 1 {
		t.Errorf("a topic without letters: exit %d\n%s", code, out)
	}
	if out, code := s.cli("", "dlq", "list", "absent"); code != 1 || !strings.Contains(out, "absent") {
		t.Errorf("a topic that does not exist: exit %d\n%s", code, out)
	}
	header := unknownLetters(t, s, "events", 2, 40, 10)
	produceAll(t, s, "events", []byte("never good"))
	eventually(t, 2*time.Minute, "the last letter", func() error {
		if got := dlqList(t, s, "events", "--cause", "no-magic-byte"); len(got) != 1 || got[0].SourceOffset != 20 {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	if got := dlqList(t, s, "events", "--partition", "1"); len(got) != 20 || got[0].SchemaID != int(header[4]) || got[0].Cause != "unknown-schema" {
		t.Errorf("letters of partition 1: %d, the first %+v", len(got), got[0])
	}
	registerNext(t, s, "events", header)
	replay := func(want string, flags ...string) {
		t.Helper()
		if out, code := s.cli("", append([]string{"dlq", "replay", "events"}, flags...)...); code != 0 || !strings.Contains(out, want) {
			t.Errorf("replay %v: exit %d, want %q in\n%s", flags, code, want, out)
		}
	}
	replay("40 dead letters would be replayed", "--dry-run", "--cause", "unknown-schema")
	replay("replayed 5 dead letters", "--limit", "5", "--cause", "unknown-schema")
	replay("replayed 35 dead letters", "--cause", "unknown-schema")
	replay("replayed 0 dead letters", "--cause", "unknown-schema")
	waitForTable(t, s, "events", 40, 3*time.Minute)
	checkReplayed(t, s, "events", 2, 40)
	for _, l := range dlqList(t, s, "events") {
		if l.Replayed != (l.Cause == "unknown-schema") {
			t.Errorf("letter %+v", l)
		}
	}
	replay("replayed 1 dead letters") // and it is a dead letter again
	eventually(t, 2*time.Minute, "the letter that is one again", func() error {
		if got := dlqList(t, s, "events", "--cause", "no-magic-byte"); len(got) != 2 || !got[0].Replayed || got[1].Replayed {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	if out, code := s.cli("", "table", "verify", "events", "--deep"); code != 0 {
		t.Errorf("table verify: exit %d\n%s", code, out)
	}
}

// checkReplayed fails unless each of n letters is in its topic once more, as it was.
func checkReplayed(t *testing.T, s *server, topic string, partitions int32, n int) {
	t.Helper()
	ends, err := s.admin().ListEndOffsets(context.Background(), topic)
	if err != nil {
		t.Fatal(err)
	}
	offsets, want := map[int32]kgo.Offset{}, int64(0)
	for p := range partitions {
		end, _ := ends.Lookup(topic, p)
		offsets[p], want = kgo.NewOffset().At(0), want+end.Offset
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cl := s.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: offsets}))
	originals, copies := map[string]*kgo.Record{}, map[string]*kgo.Record{}
	for read := int64(0); read < want; {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("read %d of %d records", read, want)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			read++
			last := r.Headers[max(0, len(r.Headers)-1):]
			if len(last) == 0 || last[0].Key != "tabletopic.replay.of" {
				originals[fmt.Sprintf("%d/%d", r.Partition, r.Offset)] = r
				return
			}
			_, of, _ := strings.Cut(string(last[0].Value), "/")
			if copies[of] != nil {
				t.Errorf("record %s is replayed twice", of)
			}
			copies[of] = r
		})
	}
	for of, c := range copies {
		o := originals[of]
		same := o != nil && string(o.Key) == string(c.Key) && string(o.Value) == string(c.Value) && o.Timestamp.Equal(c.Timestamp)
		if !same || len(c.Headers) != 2 || c.Headers[0].Key != "own" || string(c.Headers[0].Value) != "h" {
			t.Fatalf("record %s is replayed as %s at %s with headers %v, it was %.20s at %s with %v", of, c.Key, c.Timestamp, c.Headers, o.Key, o.Timestamp, o.Headers)
		}
	}
	if len(copies) != n {
		t.Errorf("%d records are replayed, want %d", len(copies), n)
	}
}

// A replay that is killed again and again, also together with the server, and run again until it is
// done, has replayed each letter once.
func TestKilledReplayReplaysOnce(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.createTopic("events", 1, 300*time.Millisecond)
	const n = 400
	header := unknownLetters(t, s, "events", 1, n, 10_000) // about 16 batches
	registerNext(t, s, "events", header)
	killed := 0
	for attempt := 0; ; attempt++ {
		cmd := exec.Command(binary, "dlq", "replay", "events", "--bootstrap", s.kafka, "--http", s.http)
		cmd.Env = environment()
		out := &logBuffer{}
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		// Later with each attempt, so that every step is met, and the last attempt ends.
		var err error
		select {
		case err = <-ended:
		case <-time.After(time.Duration(20+attempt*7) * time.Millisecond):
			if attempt%5 == 4 {
				s.kill()
			}
			_ = cmd.Process.Kill()
			killed++
			err = <-ended
		}
		if s.cmd == nil {
			s.start()
		}
		if err == nil {
			break
		}
		if !errors.As(err, new(*exec.ExitError)) || cmd.ProcessState.ExitCode() > 0 {
			t.Fatalf("replay: %v\n%s", err, out)
		}
		if attempt > 200 {
			t.Fatal("200 attempts do not end")
		}
	}
	if killed < 3 {
		t.Errorf("the replay was killed %d times only: this proves little", killed)
	}
	t.Logf("killed %d times", killed)
	waitForTable(t, s, "events", n, 3*time.Minute)
	checkReplayed(t, s, "events", 1, n)
}
