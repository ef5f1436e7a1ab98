package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// codecNumbers are those of record batches.
var codecNumbers = map[string]uint8{"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

// clientStep is a line that a program of lab/clients prints; its README has the contract.
type clientStep struct {
	Step   string
	Topic  bool
	Gone   bool
	Value  string
	Member string
	Offset int64
}

// Clients of other languages and of other times, side by side on one server, do what users do:
// they make, list and delete topics, produce with each codec they have, with acks of 1 and 0 and idempotently, seek by time, abort and
// commit, and share a group that one joins and leaves. What they say they sent is what the log has.
func TestClients(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	built := t.TempDir()
	run(t, nil, "go", "build", "-C", "lab/clients/go", "-o", built+"/", "./sarama", "./kafkago")
	run(t, nil, "javac", "-nowarn", "-d", built, "-cp", classpath(t, "kafka-clients-0.11"), "lab/clients/Client.java")
	java := func(component string) []string {
		return []string{"java", "-Xmx200m", "-XX:TieredStopAtLevel=1", "-cp", built + ":" + classpath(t, component), "Client"}
	}
	begin := strconv.FormatInt(time.Now().Add(-time.Hour).UnixMilli(), 10)
	const all, old = "none,gzip,snappy,lz4,zstd", "none,gzip,snappy,lz4"
	pythonClient := filepath.Join(lab.Home(), "python-clients", "venv", "bin", "python")
	programs := []struct {
		name, codecs string
		command      []string
	}{
		{"java-4.4", all, java("kafka-clients")},
		{"java-3.9", all, java("kafka-clients-3.9")},
		{"java-2.8", all, java("kafka-clients-2.8")},
		{"java-1.1", old, java("kafka-clients-1.1")},
		{"java-0.11", old, java("kafka-clients-0.11")},
		{"confluent-kafka", all, []string{python(), "lab/clients/confluent.py"}},
		{"kafka-python", all, []string{pythonClient, "lab/clients/kafka_python.py"}},
		{"aiokafka", all, []string{pythonClient, "lab/clients/aio_kafka.py"}},
		{"sarama", all, []string{filepath.Join(built, "sarama")}},
		{"kafka-go", all, []string{filepath.Join(built, "kafkago")}},
		{"kafkajs", all, []string{"node", "lab/clients/kafkajs.js"}},
	}
	together(t, len(programs), 4, func(i int) string { return programs[i].name }, func(t *testing.T, i int) {
		p := programs[i]
		topic := "topic-" + p.name
		env := []string{"NODE_PATH=" + filepath.Join(lab.Home(), "kafkajs-codecs", "node_modules"), "PYTHONDONTWRITEBYTECODE=1"}
		args := slices.Concat([]string{"180"}, p.command, []string{s.kafka, topic, p.codecs, begin})
		checkClient(t, s, topic, strings.Split(p.codecs, ","), p.name != "kafka-go", run(t, env, "timeout", args...))
	})
}

// The administration that Java clients of before Kafka 2.0 have works as it did with the brokers of their time: settings of
// topics and brokers, ACLs, and of 1.1 partitions, records and log directories. They have no word for prefixed ACLs, and are not shown them.
func TestAdministrationByOldJavaClients(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--kafka-protocol", "SASL_PLAINTEXT", "--sasl-mechanisms", "PLAIN,SCRAM-SHA-256", "--users", "admin:"+secretFile(t, "correct horse"), "--super-users", "User:admin")
	jaas := `org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" password="correct horse";`
	cl := s.client(kgo.SASL(scram.Auth{User: "admin", Pass: "correct horse"}.AsSha256Mechanism()))
	prefixed := kadm.NewACLs().Allow("User:bob").AllowHosts().Topics("old-").ResourcePatternType(kadm.ACLPatternPrefixed).Operations(kadm.OpRead)
	if made, err := kadm.NewClient(cl).CreateACLs(t.Context(), prefixed); err != nil || len(made) != 1 || made[0].Err != nil {
		t.Fatalf("a prefixed ACL: %+v, %v", made, err)
	}
	built := t.TempDir()
	run(t, nil, "javac", "-nowarn", "-d", built, "-cp", classpath(t, "kafka-clients-1.1"), "lab/clients/OldAdmin.java")
	const common = `retention.ms=604800000 default=true readonly=false
max.message.bytes=1048588 default=true readonly=false
retention.ms=100000 default=false readonly=false
retention.ms=604800000 default=true readonly=false
max.message.bytes=2000 default=false readonly=false
num.partitions=1 default=false readonly=true
TOPIC * User:alice READ ALLOW
TOPIC TOPICNAME User:alice READ ALLOW
TOPIC TOPICNAME User:alice READ ALLOW
deleted:
TOPIC TOPICNAME User:alice READ ALLOW
left:
TOPIC * User:alice READ ALLOW
`
	for _, v := range []struct {
		component, topic string
		more             []string
		want             string
	}{
		{"kafka-clients-0.11", "old-011", nil, common},
		{"kafka-clients-1.1", "old-11", []string{"newer"}, common + "partitions: 3\nlow watermark: 2\nobject-store: NONE, the topic's partitions: 3\nlog directory is what it was\n"},
	} {
		args := append([]string{"180", "java", "-Xmx200m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", built + ":" + classpath(t, v.component), "OldAdmin", s.kafka, v.topic, jaas}, v.more...)
		got := run(t, nil, "timeout", args...)
		if diff := cmp.Diff(strings.ReplaceAll(v.want, "TOPICNAME", v.topic), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", v.component, diff)
		}
	}
}

// classpath is that of a component of the lab.
func classpath(t *testing.T, component string) string {
	t.Helper()
	jars, err := os.ReadFile(lab.Path(t, component, "classpath"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(jars))
}

func checkClient(t *testing.T, s *server, topic string, codecs []string, transactions bool, output string) {
	t.Helper()
	var phases []clientStep // all but sent and got
	sent, got := []string{}, map[string]bool{}
	round := map[string]map[string]bool{} // who got something of the rounds of a phase
	left := false
	for line := range strings.Lines(output) {
		var step clientStep
		if json.Unmarshal([]byte(line), &step) != nil {
			continue // libraries say things too
		}
		switch step.Step {
		case "sent":
			sent = append(sent, step.Value)
		case "got":
			got[step.Value] = true
			phase := strings.TrimRight(step.Value, "0123456789-")
			if round[phase] == nil {
				round[phase] = map[string]bool{}
			}
			round[phase][step.Member] = true
			if left && step.Member == "b" {
				t.Errorf("b got %s after it had left", step.Value)
			}
		default:
			left = left || step.Step == "left"
			phases = append(phases, step)
		}
	}
	want := []clientStep{
		{Step: "created", Topic: true, Gone: true}, {Step: "deleted", Topic: true},
		{Step: "sought", Offset: 1, Value: codecs[0] + "-5"}, {Step: "transactions"}, {Step: "left"}, {Step: "done"},
	}
	if !transactions {
		want = slices.DeleteFunc(want, func(s clientStep) bool { return s.Step == "transactions" })
	} else if copied, err := s.admin().FetchOffsets(t.Context(), topic+"-copied"); err != nil || len(copied[topic]) != 1 || copied[topic][1].At != 7 {
		t.Errorf("offsets that were committed in a transaction: %v, %v", copied, err)
	}
	if diff := cmp.Diff(want, phases); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	if !round["both"]["a"] || !round["both"]["b"] || !round["rest"]["a"] {
		t.Errorf("who got records of the rounds: %v", round)
	}
	for v := range got {
		if strings.HasPrefix(v, "aborted-") {
			t.Errorf("a member of the group got %s", v)
		}
	}
	for _, v := range sent {
		if !got[v] {
			t.Errorf("%s was sent, and no member of the group got it", v)
		}
	}
	for _, kind := range []string{"acks1", "acks0", "idempotent"} {
		for i := range 4 {
			if v := fmt.Sprintf("%s-%d", kind, i); !slices.Contains(sent, v) && (transactions || kind != "idempotent") { // who has none has no idempotence either
				t.Errorf("%s was not sent", v)
			}
		}
	}
	var stored []string
	for _, r := range readAll(t, s, topic) {
		stored = append(stored, string(r.Value))
		codec, _, _ := strings.Cut(string(r.Value), "-")
		if number, ok := codecNumbers[codec]; ok && r.Attrs.CompressionType() != number {
			t.Errorf("%s is stored with codec %d", r.Value, r.Attrs.CompressionType())
		}
		if acks := strings.HasPrefix(codec, "acks"); acks && r.ProducerID >= 0 || codec == "idempotent" && r.ProducerID < 0 {
			t.Errorf("%s is of producer %d", r.Value, r.ProducerID)
		}
		if string(r.Key) != strings.Repeat(string(r.Value), 50) {
			t.Errorf("%s has the key %.30q…", r.Value, r.Key)
		}
	}
	slices.Sort(stored)
	slices.Sort(sent)
	if diff := cmp.Diff(sent, stored); diff != "" {
		t.Errorf("values in the log (-sent +stored):\n%s", diff)
	}
}

// readAll reads the committed records of a topic with a client of ours.
func readAll(t *testing.T, s *server, topic string) (records []*kgo.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	ends, err := s.admin().ListEndOffsets(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	cl := s.client(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	next := map[int32]int64{}
	for behind := true; behind; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		for _, r := range fetches.Records() {
			next[r.Partition] = r.Offset + 1
			if !r.Attrs.IsControl() {
				records = append(records, r)
			}
		}
		behind = slices.ContainsFunc(ends.Offsets().Sorted(), func(o kadm.Offset) bool { return next[o.Partition] < o.At })
	}
	return records
}
