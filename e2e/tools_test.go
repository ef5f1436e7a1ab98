package e2e

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// kafkaTools runs the command line tools of Kafka in one JVM (lab/tools).
type kafkaTools struct {
	t    *testing.T
	s    *server
	in   io.Writer
	out  *bufio.Reader
	log  *logBuffer
	kill *time.Timer
}

func startKafkaTools(t *testing.T, s *server) *kafkaTools {
	t.Helper()
	classes, jars := t.TempDir(), classpath(t, "kafka-tools")
	run(t, nil, "javac", "-nowarn", "-d", classes, "-cp", jars, "lab/tools/Tools.java")
	cmd := exec.Command("java", "-Xmx300m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", classes+":"+jars, "Tools")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	k := &kafkaTools{t: t, s: s, in: in, out: bufio.NewReader(out), log: &logBuffer{}}
	cmd.Stderr = k.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	k.kill = time.AfterFunc(5*time.Minute, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() {
		k.kill.Stop()
		_ = in.Close()
		_ = cmd.Process.Kill() // tools leave threads behind
		_ = cmd.Wait()
	})
	return k
}

// run runs a tool, which reads input, and returns what it printed and its exit code.
func (k *kafkaTools) run(input, class string, args ...string) (printed string, code int) {
	k.t.Helper()
	line := strings.Join(append([]string{strings.ReplaceAll(input, "\n", "%n"), "org.apache.kafka.tools." + class}, args...), "\t")
	if _, err := fmt.Fprintln(k.in, line); err != nil {
		k.t.Fatalf("%s: %v\n%s", class, err, k.log.tail(4<<10))
	}
	for {
		line, err := k.out.ReadString('\n')
		if err != nil {
			k.t.Fatalf("%s %v: %v\n%s\n%s", class, args, err, printed, k.log.tail(4<<10))
		}
		if exit, ok := strings.CutPrefix(line, "\f"); ok {
			code, err := strconv.Atoi(strings.TrimSpace(exit))
			if err != nil {
				k.t.Fatal(err)
			}
			return printed, code
		}
		printed += line
	}
}

// A newcomer's session with the tools that come with Kafka: each does what it is for, and what
// does not exist here is refused with the reason.
func TestKafkaTools(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	k := startKafkaTools(t, s)
	const topics, configs, groups, offsets = "TopicCommand", "ConfigCommand", "consumer.group.ConsumerGroupCommand", "GetOffsetShell"
	at := []string{"--bootstrap-server", s.kafka}
	assignment := t.TempDir() + "/assignment.json"
	deletion := t.TempDir() + "/deletion.json"
	for file, text := range map[string]string{
		assignment: `{"version":1,"partitions":[{"topic":"orders","partition":0,"replicas":[1]}]}`,
		deletion:   `{"version":1,"partitions":[{"topic":"orders","partition":0,"offset":-1}]}`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		input, class, args string
		code               int
		says               []string
	}{
		{"", topics, "--create --topic orders --partitions 1 --replication-factor 3 --config min.insync.replicas=2", 0, []string{"Created topic orders."}},
		{"", topics, "--list", 0, []string{"orders"}},
		{"k1:one\nk2:two\n", "ConsoleProducer", "--topic orders --reader-property parse.key=true --reader-property key.separator=:", 0, nil},
		{"", "consumer.ConsoleConsumer", "--topic orders --from-beginning --max-messages 2 --timeout-ms 60000 --group g", 0, []string{"one", "two", "a total of 2 messages"}},
		{"", groups, "--list", 0, []string{"g"}},
		{"", groups, "--describe --group g", 0, []string{"orders          0          2               2               0"}},
		{"", groups, "--describe --group g --state", 0, []string{"Empty"}},
		{"", groups, "--reset-offsets --group g --topic orders --to-earliest --execute", 0, []string{"orders          0          0"}},
		{"", groups, "--delete-offsets --group g --topic orders", 0, []string{"Successful"}},
		{"", "GroupsCommand", "--list", 0, []string{"g", "Classic"}},
		{"", groups, "--delete --group g", 0, []string{"was successful"}},
		{"", topics, "--alter --topic orders --partitions 3", 0, nil},
		{"", topics, "--describe --topic orders", 0, []string{"PartitionCount: 3", "ReplicationFactor: 1", "Configs: min.insync.replicas=2", "Partition: 2	Leader: 1	Replicas: 1	Isr: 1"}},
		{"", offsets, "--topic orders", 0, []string{"orders:0:2", "orders:2:0"}},
		{"", offsets, "--topic orders --time max-timestamp", 0, []string{"orders:0:1"}},
		{"", offsets, "--topic orders --time earliest-local", 0, []string{"orders:0:0"}},
		{"", offsets, "--topic orders --time latest-tiered", 0, nil},
		{"", "DeleteRecordsCommand", "--offset-json-file " + deletion, 0, []string{"orders-0", "low_watermark: 2"}},
		{"", offsets, "--topic orders --time earliest", 0, []string{"orders:0:2"}},
		{"", configs, "--alter --entity-type topics --entity-name orders --add-config retention.ms=100000,segment.bytes=1048576", 0, []string{"Completed updating config"}},
		{"", configs, "--describe --entity-type topics --entity-name orders", 0, []string{"retention.ms=100000", "segment.bytes=1048576"}},
		{"", configs, "--alter --entity-type topics --entity-name orders --delete-config retention.ms", 0, []string{"Completed updating config"}},
		{"", configs, "--alter --entity-type topics --entity-name orders --add-config retention.ms=soon", 1, []string{"want an integer"}},
		{"", configs, "--describe --entity-type brokers --entity-name 1 --all", 0, []string{"num.partitions=1"}},
		{"", configs, "--alter --entity-type brokers --entity-name 1 --add-config num.io.threads=3", 1, []string{"set them where it is started"}},
		{"", configs, "--describe --entity-type groups", 0, nil},
		{"", configs, "--alter --entity-type groups --entity-name g --add-config consumer.session.timeout.ms=50000", 1, []string{"groups have no configuration"}},
		{"", "LogDirsCommand", "--describe", 0, []string{`"logDir":"object-store"`, `"partition":"orders-0"`}},
		{"", "FeatureCommand", "describe", 0, nil},
		{"", "FeatureCommand", "upgrade --feature metadata.version=20", 1, []string{"cannot be set"}},
		{"", "BrokerApiVersionsCommand", "", 0, []string{"Produce(0): 0 to 13 [usable: 13]", "DescribeLogDirs(35)"}},
		{"", "ClusterTool", "cluster-id", 0, []string{"Cluster ID: "}},
		{"", "ClusterTool", "list-endpoints", 0, []string{"unfenced"}},
		{"", "ClientMetricsCommand", "--list", 0, nil},
		{"", "ClientMetricsCommand", "--alter --name m --metrics org.apache.kafka. --interval 10000", 1, []string{"not collected"}},
		{"", "LeaderElectionCommand", "--election-type preferred --all-topic-partitions", 0, nil},
		{"", "LeaderElectionCommand", "--election-type preferred --topic orders --partition 0", 0, []string{"Valid replica already elected"}},
		{"", "reassign.ReassignPartitionsCommand", "--reassignment-json-file " + assignment + " --execute", 0, []string{"Successfully started partition reassignment"}},
		{"", "reassign.ReassignPartitionsCommand", "--reassignment-json-file " + assignment + " --verify", 0, []string{"orders-0 is completed"}},
		{"", "reassign.ReassignPartitionsCommand", "--list", 0, []string{"No partition reassignments found."}},
		{"", "ProducerPerformance", "--topic orders --num-records 2000 --record-size 100 --throughput -1", 0, []string{"2000 records sent"}},
		{"", "ConsumerPerformance", "--topic orders --num-records 2000", 0, []string{", 2000,"}},
		{"", "VerifiableProducer", "--topic verified --max-messages 20", 0, []string{"startup_complete"}}, // tells the rest when its JVM ends
		{"", "consumer.ConsoleConsumer", "--topic verified --from-beginning --max-messages 20 --timeout-ms 60000", 0, []string{"a total of 20 messages"}},
		{"", "VerifiableConsumer", "--topic verified --group-id v --max-messages 20 --reset-policy earliest", 0, []string{"records_consumed", "offsets_committed"}},
		{"", topics, "--delete --topic orders", 0, nil},
	} {
		args := strings.Fields(tc.args)
		if tc.class == "ClusterTool" {
			args = append(args, at...)
		} else {
			args = append(append([]string(nil), at...), args...)
		}
		printed, code := k.run(tc.input, tc.class, args...)
		if code != tc.code {
			t.Errorf("%s %s: exit code %d, want %d\n%s", tc.class, tc.args, code, tc.code, printed)
		}
		for _, says := range tc.says {
			if !strings.Contains(printed, says) {
				t.Errorf("%s %s does not say %q:\n%s", tc.class, tc.args, says, printed)
			}
		}
	}
}
