package e2e

import (
	"context"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
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
	var rows []string
	for id := range 40 {
		rows = append(rows, fmt.Sprintf("%d,xxxxxxxxxx\n", id))
	}
	slices.Sort(rows)
	want := "id,text\n" + strings.Join(rows, "")
	for _, engine := range []string{"duckdb", "pyiceberg"} { // each record is a row once
		if got := run(t, nil, "lab/query", engine, "--uri", s.catalogURL(), "--sort", "SELECT id, text FROM ice.default.events"); got != want {
			t.Errorf("%s: %s", engine, diffLines(want, got))
		}
	}
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
		gone := false // the server, which the replay may notice before it is killed too
		select {
		case err = <-ended:
		case <-time.After(time.Duration(20+attempt*7) * time.Millisecond):
			if gone = attempt%5 == 4; gone {
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
		if !errors.As(err, new(*exec.ExitError)) || cmd.ProcessState.ExitCode() > 0 && !gone {
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

// Dead letters become rows of a table when the topic says so, also those that were there before:
// two engines read the same values in all of its columns as `dlq list` has of the topic.
func TestDeadLettersAreATable(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	s.createTopic("events", 1, 300*time.Millisecond)
	header := registerSchema(t, s, "events-value", eventSchema)
	whole := encoded(t, header, eventSchema, event{2, "good"})
	cl := s.client(kgo.DefaultProduceTopic("events"))
	produce := func(values ...[]byte) {
		t.Helper()
		for i, v := range values {
			r := &kgo.Record{Key: fmt.Append(nil, "key ", i), Value: v, Headers: []kgo.RecordHeader{{Key: "own", Value: []byte{0xff, byte(i)}}}}
			if i == 0 {
				r.Key, r.Headers = nil, nil
			}
			if err := cl.ProduceSync(context.Background(), r).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
	produce([]byte(`{"not": "wire"}`), []byte{0, 0, 0, 0, 99}, whole, whole[:len(whole)-2], append(slices.Clone(whole), 0), []byte{})
	const columns = "cause, detail, schema_id, source_topic, source_topic_id, source_partition, source_offset, source_timestamp, key, value, headers"
	letters := func(n int) (want string) {
		t.Helper()
		eventually(t, time.Minute, "dead letters", func() error {
			var list []struct {
				SourceTopicID   string    `json:"source_topic_id"`
				SourceTimestamp time.Time `json:"source_timestamp"`
				Cause, Detail   string
				SchemaID        *int64 `json:"schema_id"`
				SourcePartition int    `json:"source_partition"`
				SourceOffset    int    `json:"source_offset"`
				Key, Value      []byte
				Headers         []struct {
					Key   string
					Value []byte
				}
			}
			printed, code := s.cli("", "dlq", "list", "events", "--output", "json")
			if err := json.Unmarshal([]byte(printed), &list); code != 0 || err != nil || len(list) != n {
				return fmt.Errorf("%d of %d, %v: %s", len(list), n, err, printed)
			}
			var lines [][]string
			for _, l := range list {
				schema, key, headers := "NULL", "NULL", "[]"
				if l.SchemaID != nil {
					schema = fmt.Sprint(*l.SchemaID)
				}
				if l.Key != nil {
					key = hex.EncodeToString(l.Key)
				}
				if len(l.Headers) > 0 {
					headers = fmt.Sprintf(`[{"key":%q,"value":"%x"}]`, l.Headers[0].Key, l.Headers[0].Value)
				}
				lines = append(lines, []string{l.Cause, l.Detail, schema, "events", l.SourceTopicID, fmt.Sprint(l.SourcePartition), fmt.Sprint(l.SourceOffset),
					l.SourceTimestamp.UTC().Format("2006-01-02T15:04:05.000000"), key, hex.EncodeToString(l.Value), headers})
			}
			slices.SortFunc(lines, slices.Compare)
			var b strings.Builder
			out := csv.NewWriter(&b)
			if err := errors.Join(out.Write(strings.Split(columns, ", ")), out.WriteAll(lines)); err != nil {
				t.Fatal(err)
			}
			want = b.String()
			return nil
		})
		return want
	}
	same := func(want string) {
		t.Helper()
		eventually(t, time.Minute, "the rows of the letters", func() error {
			got, err := l.tryQuery(s, "duckdb", "SELECT "+columns+" FROM ice.default.events__dlq")
			if err == nil && got != want {
				err = fmt.Errorf("%s", diffLines(want, got))
			}
			return err
		})
		if got := l.query(t, s, "pyiceberg", "SELECT "+columns+" FROM ice.default.events__dlq"); got != want {
			t.Errorf("PyIceberg: %s", diffLines(want, got))
		}
	}
	want := letters(5)
	_, metrics := fetched(t, s, "/metrics")
	for cause, n := range map[string]int{"no-magic-byte": 2, "unknown-schema": 1, "undecodable": 2} {
		if line := fmt.Sprintf("tabletopic_worker_dead_letters_total{cause=%q,topic=\"events\"} %d\n", cause, n); !strings.Contains(metrics, line) {
			t.Errorf("no %s in the metrics", line)
		}
	}
	if out, code := s.cli("", "topic", "alter", "events", "--config", "table.topic.dlq.table=true"); code != 0 {
		t.Fatal(out)
	}
	same(want)
	produce([]byte("one more"))
	same(letters(6))
	if out, code := s.cli("", "table", "verify", "events.dlq", "--deep"); code != 0 {
		t.Errorf("table verify: exit %d\n%s", code, out)
	}
	if out, code := s.cli("", "topic", "alter", "events", "--config", "table.topic.dlq=bad"); code != 1 || !strings.Contains(out, "table.topic.value.format=dead-letter of topic bad") {
		t.Errorf("a topic of another name: exit %d\n%s", code, out)
	}
}

// With `skip` a record that cannot become a row is left out, and counted; with `pause` its partition waits for it, through a
// restart, while the other goes on, until its schema is there. Neither has dead letters, and two engines read the rows.
func TestToleranceOfRecordsThatBecomeNoRows(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	s.createTopic("skips", 2, 300*time.Millisecond, "table.topic.errors.tolerance", "skip")
	s.createTopic("pauses", 2, 300*time.Millisecond, "table.topic.errors.tolerance", "pause")
	known := registerSchema(t, s, "skips-value", eventSchema)
	registerSchema(t, s, "pauses-value", eventSchema)
	next := slices.Clone(known)
	next[len(next)-1]++
	later := strings.Replace(eventSchema, "]}", `, {"name": "more", "type": ["null", "string"], "default": null}]}`, 1)
	cl := s.client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	produce := func(topic string, partition int32, payloads ...[]byte) {
		t.Helper()
		for _, p := range payloads {
			if err := cl.ProduceSync(context.Background(), &kgo.Record{Topic: topic, Partition: partition, Value: p}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
	good := func(id int64) []byte { return encoded(t, known, eventSchema, event{id, "good"}) }
	ahead := encoded(t, next, later, obj{"id": int64(2), "text": "ahead", "more": in("string", "x")})
	same := func(topic, columns, want string) {
		t.Helper()
		for _, engine := range []string{"duckdb", "pyiceberg"} {
			if got := l.query(t, s, engine, "SELECT "+columns+" FROM ice.default."+topic); got != want {
				t.Errorf("%s by %s: %s", topic, engine, diffLines(want, got))
			}
		}
	}
	for _, topic := range []string{"skips", "pauses"} {
		produce(topic, 0, good(1), ahead, good(3))
		produce(topic, 1, good(11))
	}
	produce("skips", 1, []byte("garbage"), good(12))

	waitForTable(t, s, "skips", 4, 3*time.Minute)
	same("skips", "id, text", "id,text\n1,good\n11,good\n12,good\n3,good\n")
	_, metrics := fetched(t, s, "/metrics")
	for _, cause := range []string{"unknown-schema", "no-magic-byte"} {
		if line := fmt.Sprintf("tabletopic_worker_dead_letters_total{cause=%q,topic=\"skips\"} 1\n", cause); !strings.Contains(metrics, line) {
			t.Errorf("no %s in %s", line, lines(metrics, "dead_letters"))
		}
	}
	if out, code := s.cli("", "table", "verify", "skips", "--deep"); code != 0 || !strings.Contains(out, "partition 0: 1 records were left out") || !strings.Contains(out, "partition 1: 1 records were left out") {
		t.Errorf("table verify: exit %d\n%s", code, out)
	}

	waits := func(rows int64) {
		t.Helper()
		eventually(t, 3*time.Minute, "a partition that waits, and another that does not", func() error {
			var status tableStatus
			if err := s.api("/api/tables/pauses", &status); err != nil || status.Rows != rows || status.LagRecords != 2 {
				return fmt.Errorf("%+v, %v", status, err)
			}
			out, code := s.cli("", "table", "status", "pauses")
			for _, word := range []string{"partition 0", "offset 1", "unknown-schema", "table.topic.errors.tolerance"} {
				if code != 0 || !strings.Contains(out, word) {
					return fmt.Errorf("exit %d, want %q in %s", code, word, out)
				}
			}
			return nil
		})
	}
	waits(2)
	s.kill()
	s.start()
	produce("pauses", 1, good(12))
	waits(3)
	same("pauses", "id, text", "id,text\n1,good\n11,good\n12,good\n")
	if got := registerSchema(t, s, "pauses-value", later); !slices.Equal(got, next) {
		t.Fatalf("the schema has header %x, the record has %x", got, next)
	}
	waitForTable(t, s, "pauses", 5, 3*time.Minute)
	same("pauses", "id, text, more", "id,text,more\n1,good,NULL\n11,good,NULL\n12,good,NULL\n2,ahead,x\n3,good,NULL\n")
	if out, code := s.cli("", "table", "verify", "pauses", "--deep"); code != 0 {
		t.Errorf("table verify: exit %d\n%s", code, out)
	}
	topics, err := s.admin().ListTopics(context.Background())
	if err != nil || topics.Has("skips.dlq") || topics.Has("pauses.dlq") {
		t.Errorf("topics %v: %v", topics.Names(), err)
	}
}
