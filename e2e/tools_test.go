package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
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

// Classes of tools that have several uses.
const (
	topicTool  = "TopicCommand"
	configTool = "ConfigCommand"
	groupTool  = "consumer.group.ConsumerGroupCommand"
	offsetTool = "GetOffsetShell"
	aclTool    = "AclCommand"
	shareTool  = "consumer.group.ShareGroupCommand"
)

// A toolRun is one command, and what it must print.
type toolRun struct {
	input, class, args string
	code               int
	says               []string
}

// session runs tools one after the other, each with the arguments that say where the server is.
func (k *kafkaTools) session(runs []toolRun, at ...string) {
	k.t.Helper()
	for _, r := range runs {
		args := append(slices.Clone(at), strings.Fields(r.args)...)
		if r.class == "ClusterTool" {
			args = append(strings.Fields(r.args), at...)
		}
		printed, code := k.run(r.input, r.class, args...)
		if code != r.code {
			k.t.Errorf("%s %s: exit code %d, want %d\n%s", r.class, r.args, code, r.code, printed)
		}
		if r.code == 0 && strings.Contains(printed, "\n\tat ") { // of what the server refuses tools print the trace that they print with Kafka
			k.t.Errorf("%s %s: a stack trace:\n%s", r.class, r.args, printed)
		}
		for _, says := range r.says {
			if !strings.Contains(printed, says) {
				k.t.Errorf("%s %s does not say %q:\n%s", r.class, r.args, says, printed)
			}
		}
	}
}

// A newcomer's session with the tools that come with Kafka: each does what it is for, and what
// does not exist here is refused with the reason.
func TestKafkaTools(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--rack", "zone-a")
	k := startKafkaTools(t, s)
	at := []string{"--bootstrap-server", s.kafka}
	assignment := t.TempDir() + "/assignment.json"
	deletion := t.TempDir() + "/deletion.json"
	toMove := t.TempDir() + "/topics.json"
	for file, text := range map[string]string{
		assignment: `{"version":1,"partitions":[{"topic":"orders","partition":0,"replicas":[1]}]}`,
		deletion:   `{"version":1,"partitions":[{"topic":"orders","partition":0,"offset":-1}]}`,
		toMove:     `{"version":1,"topics":[{"topic":"orders"}]}`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	k.session([]toolRun{
		{"", topicTool, "--create --topic orders --partitions 1 --replication-factor 3 --config min.insync.replicas=2", 0, []string{"Created topic orders."}},
		{"", topicTool, "--list", 0, []string{"orders"}},
		{"k1:one\nk2:two\n", "ConsoleProducer", "--topic orders --reader-property parse.key=true --reader-property key.separator=:", 0, nil},
		{"", "consumer.ConsoleConsumer", "--topic orders --from-beginning --max-messages 2 --timeout-ms 60000 --group g", 0, []string{"one", "two", "a total of 2 messages"}},
		{"", groupTool, "--list", 0, []string{"g"}},
		{"", groupTool, "--describe --group g", 0, []string{"orders          0          2               2               0"}},
		{"", groupTool, "--describe --group g --state", 0, []string{"Empty"}},
		{"", groupTool, "--describe --all-groups --members --verbose", 0, nil},
		{"", groupTool, "--describe --all-groups --offsets", 0, []string{"orders          0          2"}},
		{"", groupTool, "--reset-offsets --group g --all-topics --shift-by -1 --dry-run", 0, []string{"orders          0          1"}},
		{"", groupTool, "--reset-offsets --group g --topic orders --by-duration PT1H --dry-run", 0, []string{"orders          0          0"}},
		{"", groupTool, "--reset-offsets --group g --topic orders --to-datetime 2020-01-01T00:00:00.000 --dry-run", 0, []string{"orders          0          0"}},
		{"", groupTool, "--reset-offsets --group g --topic orders:0 --to-offset 1 --export", 0, []string{"orders"}},
		{"", groupTool, "--reset-offsets --group g --topic orders --to-earliest --execute", 0, []string{"orders          0          0"}},
		{"", "StreamsResetter", "--application-id g --input-topics orders --to-latest --force", 0, []string{"Reset-offsets for input topics [orders]", "Done."}},
		{"", groupTool, "--describe --group g --offsets", 0, []string{"orders          0          2               2               0"}},
		{"", groupTool, "--delete-offsets --group g --topic orders", 0, []string{"Successful"}},
		{"", "GroupsCommand", "--list", 0, []string{"g", "Classic"}},
		{"", "GroupsCommand", "--list --consumer", 0, []string{"g"}},
		{"", "streams.StreamsGroupCommand", "--list", 0, nil},
		{"", "consumer.ConsoleConsumer", "--topic __consumer_offsets --partition 7 --offset earliest --max-messages 2 --timeout-ms 60000 --formatter org.apache.kafka.tools.consumer.OffsetsMessageFormatter", 0, []string{`"group":"g"`}},
		{"", "consumer.ConsoleConsumer", "--topic __consumer_offsets --partition 7 --offset earliest --max-messages 2 --timeout-ms 60000 --formatter org.apache.kafka.tools.consumer.GroupMetadataMessageFormatter", 0, []string{`"protocolType":"consumer"`}},
		{"", groupTool, "--delete --group g", 0, []string{"was successful"}},
		{"", topicTool, "--alter --topic orders --partitions 3", 0, nil},
		{"", topicTool, "--describe --topic orders", 0, []string{"PartitionCount: 3", "ReplicationFactor: 1", "Configs: min.insync.replicas=2", "Partition: 2	Leader: 1	Replicas: 1	Isr: 1"}},
		{"", topicTool, "--describe --under-replicated-partitions", 0, nil},
		{"", topicTool, "--describe --unavailable-partitions", 0, nil},
		{"", topicTool, "--describe --topics-with-overrides --exclude-internal", 0, []string{"orders"}},
		{"", offsetTool, "--topic orders", 0, []string{"orders:0:2", "orders:2:0"}},
		{"", offsetTool, "--topic-partitions orders:0-1 --exclude-internal-topics", 0, []string{"orders:0:2"}},
		{"", offsetTool, "--topic orders --time max-timestamp", 0, []string{"orders:0:1"}},
		{"", offsetTool, "--topic orders --time earliest-local", 0, []string{"orders:0:0"}},
		{"", offsetTool, "--topic orders --time latest-tiered", 0, nil},
		{"", "DeleteRecordsCommand", "--offset-json-file " + deletion, 0, []string{"orders-0", "low_watermark: 2"}},
		{"", offsetTool, "--topic orders --time earliest", 0, []string{"orders:0:2"}},
		{"", configTool, "--alter --entity-type topics --entity-name orders --add-config retention.ms=100000,segment.bytes=1048576", 0, []string{"Completed updating config"}},
		{"", configTool, "--describe --entity-type topics --entity-name orders", 0, []string{"retention.ms=100000", "segment.bytes=1048576"}},
		{"", configTool, "--alter --entity-type topics --entity-name orders --delete-config retention.ms", 0, []string{"Completed updating config"}},
		{"", configTool, "--alter --entity-type topics --entity-name orders --add-config retention.ms=soon", 1, []string{"want an integer"}},
		{"", configTool, "--alter --entity-type topics --entity-name orders --add-config min.compaction.lag.ms=10,max.compaction.lag.ms=5", 1, []string{"min.compaction.lag.ms=10 is above max.compaction.lag.ms=5"}},
		{"", configTool, "--describe --entity-type brokers --entity-name 1 --all", 0, []string{"num.partitions=1"}},
		{"", configTool, "--alter --entity-type brokers --entity-name 1 --add-config num.io.threads=3", 1, []string{"set them where it is started"}},
		{"", configTool, "--alter --entity-type brokers --entity-name 1 --add-config leader.replication.throttled.rate=1000000", 0, []string{"Completed updating config for broker 1"}},
		{"", configTool, "--alter --entity-type brokers --entity-default --delete-config num.io.threads", 0, []string{"Completed updating default config for brokers"}},
		{"", configTool, "--describe --entity-type brokers --entity-default", 0, []string{"Default configs for brokers"}},
		{"", configTool, "--describe --entity-type brokers", 0, []string{"Dynamic configs for broker 1"}},
		{"", configTool, "--describe --entity-type broker-loggers --entity-name 1", 0, nil},
		{"", configTool, "--describe --entity-type client-metrics", 0, nil},
		{"", configTool, "--describe --entity-type users", 0, nil},
		{"", configTool, "--describe --entity-type clients --entity-default", 0, nil},
		{"", configTool, "--describe --entity-type ips", 0, nil},
		{"", configTool, "--describe --entity-type groups", 0, nil},
		{"", configTool, "--alter --entity-type groups --entity-name g --add-config consumer.session.timeout.ms=50000", 0, []string{"Completed updating config for group g"}},
		{"", configTool, "--alter --entity-type groups --entity-name g --add-config consumer.session.timeout.ms=60001", 1, []string{"between 45000 and 60000"}},
		{"", configTool, "--alter --entity-type groups --entity-name g --add-config consumer.nothing=1", 1, []string{"there are consumer.assignment.interval.ms"}},
		{"", configTool, "--describe --entity-type groups --entity-name g", 0, []string{"consumer.session.timeout.ms=50000"}},
		{"", "LogDirsCommand", "--describe", 0, []string{`"logDir":"object-store"`, `"partition":"orders-0"`}},
		{"", "FeatureCommand", "describe", 0, []string{"group.version", "share.version", "transaction.version"}},
		{"", "FeatureCommand", "upgrade --feature metadata.version=20", 1, []string{"cannot be set"}},
		{"", "FeatureCommand", "upgrade --feature group.version=1 --feature share.version=9", 1, []string{`level 9 of "share.version"`}},
		{"", "FeatureCommand", "upgrade --feature group.version=1", 0, []string{"group.version was upgraded to 1."}},
		{"", "BrokerApiVersionsCommand", "", 0, []string{"Produce(0): 0 to 13 [usable: 13]", "DescribeLogDirs(35)"}},
		{"", "ClusterTool", "cluster-id", 0, []string{"Cluster ID: "}},
		{"", "ClusterTool", "list-endpoints", 0, []string{"unfenced", "zone-a"}},
		{"", "ClusterTool", "unregister --id 1", 1, []string{"a node is not unregistered"}},
		{"", "ClusterTool", "unregister --id 9", 1, []string{"BrokerIdNotRegisteredException"}},
		{"", "MetadataQuorumCommand", "describe --status", 1, []string{"metadata is in a database"}},
		{"", "MetadataQuorumCommand", "describe --replication", 1, []string{"metadata is in a database"}},
		{"", "ClientMetricsCommand", "--list", 0, nil},
		{"", "ClientMetricsCommand", "--alter --name m --metrics org.apache.kafka. --interval 10000", 1, []string{"not collected"}},
		{"", "LeaderElectionCommand", "--election-type preferred --all-topic-partitions", 0, nil},
		{"", "LeaderElectionCommand", "--election-type preferred --topic orders --partition 0", 0, []string{"Valid replica already elected"}},
		{"", "reassign.ReassignPartitionsCommand", "--reassignment-json-file " + assignment + " --execute", 0, []string{"Successfully started partition reassignment"}},
		{"", "reassign.ReassignPartitionsCommand", "--reassignment-json-file " + assignment + " --verify", 0, []string{"orders-0 is completed"}},
		{"", "reassign.ReassignPartitionsCommand", "--topics-to-move-json-file " + toMove + " --broker-list 1 --generate", 0, []string{"Proposed partition reassignment configuration"}},
		{"", "reassign.ReassignPartitionsCommand", "--reassignment-json-file " + assignment + " --execute --throttle 1000000", 0, []string{"Successfully started partition reassignment"}},
		{"", "reassign.ReassignPartitionsCommand", "--reassignment-json-file " + assignment + " --verify", 0, []string{"orders-0 is completed", "Clearing broker-level throttles"}},
		{"", "reassign.ReassignPartitionsCommand", "--reassignment-json-file " + assignment + " --cancel", 0, []string{"None of the specified partition reassignments are active."}},
		{"", "reassign.ReassignPartitionsCommand", "--list", 0, []string{"No partition reassignments found."}},
		{"", "ProducerPerformance", "--topic orders --num-records 2000 --record-size 100 --throughput -1", 0, []string{"2000 records sent"}},
		{"", "ConsumerPerformance", "--topic orders --num-records 2000", 0, []string{", 2000,"}},
		{"", "ProducerPerformance", "--topic transactional --num-records 500 --record-size 100 --throughput -1 --transactional-id perf --transaction-duration-ms 100", 0, []string{"500 records sent"}},
		{"", "TransactionsCommand", "list", 0, []string{"perf", "CompleteCommit"}},
		{"", "consumer.ConsoleConsumer", "--topic __transaction_state --from-beginning --max-messages 1 --timeout-ms 60000 --formatter org.apache.kafka.tools.consumer.TransactionLogMessageFormatter", 0, []string{`"transactionalId":"perf"`}},
		{"", "EndToEndLatency", "--topic latency --num-records 20 --producer-acks all --record-size 100", 0, []string{"Avg latency", "Percentiles"}},
		{"", "VerifiableProducer", "--topic verified --max-messages 20", 0, []string{"startup_complete"}}, // tells the rest when its JVM ends
		{"", "consumer.ConsoleConsumer", "--topic verified --from-beginning --max-messages 20 --timeout-ms 60000", 0, []string{"a total of 20 messages"}},
		{"", "VerifiableConsumer", "--topic verified --group-id v --max-messages 20 --reset-policy earliest", 0, []string{"records_consumed", "offsets_committed"}},
		{"", "TransactionsCommand", "describe-producers --topic orders --partition 0", 0, []string{"ProducerId", "None"}},
		{"", topicTool, "--delete --topic orders", 0, nil},
		{"", "TransactionsCommand", "list", 0, []string{"TransactionalId"}},
		{"", "TransactionsCommand", "describe --transactional-id nobody", 1, []string{"the ID could not be found"}},
		{"", "TransactionsCommand", "find-hanging --broker-id 1", 0, []string{"Coordinator"}},
		{"", aclTool, "--list", 1, []string{"SecurityDisabledException"}},
	}, at...)
}

// The tool for transactions shows one that is open, with its producer, does not take it for one that hangs, and aborts it.
func TestKafkaToolsOfTransactions(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.createTopic("orders", 1, time.Second)
	cl := s.client(kgo.TransactionalID("copier"), kgo.DefaultProduceTopic("orders"), kgo.TransactionTimeout(10*time.Minute))
	begin := func() error {
		return errors.Join(cl.BeginTransaction(), cl.ProduceSync(t.Context(), kgo.StringRecord("v")).FirstErr())
	}
	if err := errors.Join(begin(), cl.EndTransaction(t.Context(), kgo.TryCommit), begin()); err != nil { // one that is over, one that stays open
		t.Fatal(err)
	}
	stable := func() int64 {
		offsets, err := s.admin().ListCommittedOffsets(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		o, _ := offsets.Lookup("orders", 0)
		return o.Offset
	}
	if got := stable(); got != 2 { // a record and its marker
		t.Fatalf("stable up to %d, want 2", got)
	}
	id, _, err := cl.ProducerID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	k := startKafkaTools(t, s)
	k.session([]toolRun{
		{"", "TransactionsCommand", "list", 0, []string{"copier", "Ongoing", fmt.Sprint(id)}},
		{"", "TransactionsCommand", "list --duration-filter 3600000", 0, []string{"TransactionalId"}},
		{"", "TransactionsCommand", "describe --transactional-id copier", 0, []string{"Ongoing", "600000", "orders-0"}},
		{"", "TransactionsCommand", "describe-producers --topic orders --partition 0", 0, []string{fmt.Sprint(id), "2"}},
		{"", "TransactionsCommand", "find-hanging --broker-id 1", 0, []string{"Coordinator"}},
		{"", "TransactionsCommand", "abort --topic orders --partition 0 --start-offset 2", 0, nil},
		{"", "TransactionsCommand", "describe-producers --topic orders --partition 0", 0, []string{"None"}},
	}, "--bootstrap-server", s.kafka)
	if got := stable(); got != 4 {
		t.Errorf("stable up to %d after it was aborted, want 4", got)
	}
	// The client begins again, for its transaction is open at the coordinator, which the tool then ends, and fences it.
	if err := cl.ProduceSync(t.Context(), kgo.StringRecord("late")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	k.session([]toolRun{
		{"", "TransactionsCommand", "forceTerminateTransaction --transactionalId copier", 0, nil},
		{"", "TransactionsCommand", "describe --transactional-id copier", 0, []string{"Empty", "30000", "None"}},
		{"", "TransactionsCommand", "describe-producers --topic orders --partition 0", 0, []string{"None"}},
		{"", "TransactionsCommand", "forceTerminateTransaction --transactionalId nobody", 0, nil},
		{"", "TransactionsCommand", "abort --topic orders --partition 0 --start-offset 4", 1, []string{"Could not find any open transactions starting at offset 4"}},
	}, "--bootstrap-server", s.kafka)
	if got := stable(); got != 6 {
		t.Errorf("stable up to %d after it was terminated, want 6", got)
	}
	if err := cl.ProduceSync(t.Context(), kgo.StringRecord("fenced")).FirstErr(); !errors.Is(err, kerr.InvalidProducerEpoch) {
		t.Errorf("the producer of a transaction that was terminated: %v, want InvalidProducerEpoch", err)
	}
	if printed, code := k.run("", "TransactionsCommand", "--bootstrap-server", s.kafka, "find-hanging", "--broker-id", "1"); code != 0 || strings.Contains(printed, "orders") {
		t.Errorf("exit %d: a transaction of a coordinator is taken for one that hangs:\n%s", code, printed)
	}
}

// The tool for groups shows the members of one that is at work, and refuses what would take offsets from under them, as
// with Kafka; offsets of topics that they do not subscribe to may go.
func TestKafkaToolsOfGroupsWithMembers(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for _, topic := range []string{"orders", "other"} {
		s.createTopic(topic, 1, time.Hour)
	}
	cl := s.client(kgo.DefaultProduceTopic("orders"), kgo.ConsumeTopics("orders"), kgo.ConsumerGroup("g"), kgo.ClientID("loader"), kgo.InstanceID("instance-one"),
		kgo.DisableAutoCommit(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err := cl.ProduceSync(t.Context(), kgo.StringRecord("v")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	fetches := cl.PollFetches(t.Context())
	if err := errors.Join(fetches.Err(), cl.CommitRecords(t.Context(), fetches.Records()...)); err != nil {
		t.Fatal(err)
	}
	k := startKafkaTools(t, s)
	inactive := "Assignments can only be reset if the group 'g' is inactive, but the current state is Stable."
	k.session([]toolRun{
		{"", groupTool, "--describe --group g", 0, []string{"orders          0          1               1               0               instance-one-", "loader"}},
		{"", groupTool, "--describe --group g --members --verbose", 0, []string{"GROUP-INSTANCE-ID", "instance-one ", "orders:0"}},
		{"", groupTool, "--describe --group g --state", 0, []string{"Stable"}},
		{"", groupTool, "--list --state stable --type classic", 0, []string{"g "}},
		{"", groupTool, "--reset-offsets --group g --topic orders --to-earliest --execute", 0, []string{inactive}},
		{"", groupTool, "--reset-offsets --group g --topic orders --to-earliest --dry-run", 0, []string{inactive}},
		{"", groupTool, "--delete --group g", 0, []string{"GroupNotEmptyException: The group is not empty."}},
		{"", groupTool, "--delete-offsets --group g --topic orders --topic other", 0, []string{"orders          0          Error: org.apache.kafka.common.errors.GroupSubscribedToTopicException", "other           0          Successful"}},
		{"", groupTool, "--delete-offsets --group g --topic orders:7", 0, []string{"orders          7          Error: org.apache.kafka.common.errors.UnknownTopicOrPartitionException"}},
		{"", groupTool, "--describe --group g --offsets", 0, []string{"orders          0          1               1               0"}},
	}, "--bootstrap-server", s.kafka)
}

// Settings that only Table Topic has, kafka-topics refuses by itself, as docs/kafka.md says; kafka-configs sets and shows them.
// Those of Confluent that have no meaning here are unknown, as in Kafka.
func TestKafkaToolsMakeATopicATable(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	k := startKafkaTools(t, s)
	k.session([]toolRun{
		{"", topicTool, "--create --topic orders --config table.topic.enable=true", 1, []string{"Unknown topic config name: table.topic.enable"}},
		{"", topicTool, "--create --topic orders", 0, []string{"Created topic orders."}},
		{"", configTool, "--alter --entity-type topics --entity-name orders --add-config table.topic.enable=true,table.topic.value.format=json,table.topic.sort.by=[customer,at]", 0, []string{"Completed updating config for topic orders."}},
		{"", configTool, "--alter --entity-type topics --entity-name orders --add-config confluent.key.schema.validation=true", 0, []string{"Completed updating config for topic orders."}},
		{"", configTool, "--alter --entity-type topics --entity-name orders --add-config confluent.placement.constraints=x", 1, []string{"InvalidConfigurationException"}},
		{"", configTool, "--describe --entity-type topics --entity-name orders", 0, []string{"table.topic.enable=true", "table.topic.sort.by=customer,at", "confluent.key.schema.validation=true"}},
		{"", topicTool, "--describe --topic orders", 0, []string{"table.topic.enable=true"}},
	}, "--bootstrap-server", s.kafka)
}

// The tools that administer users and access, by a user who may do everything: what they give and
// take is what another user may do.
func TestKafkaToolsOfSecurity(t *testing.T) {
	t.Parallel()
	admin := secretFile(t, "correct horse")
	s := startServer(t, "--kafka-protocol", "SASL_PLAINTEXT", "--users", "admin:"+admin, "--super-users", "User:admin")
	k := startKafkaTools(t, s)
	login := func(user, password string) string {
		path := filepath.Join(t.TempDir(), user)
		text := fmt.Sprintf("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username=%q password=%q;\n", user, password)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	at, alice := []string{"--bootstrap-server", s.kafka, "--command-config", login("admin", "correct horse")}, login("alice", "secret")
	asAlice := []string{"--bootstrap-server", s.kafka, "--command-config", alice}
	k.session([]toolRun{
		{"", topicTool, "--create --topic orders", 0, []string{"Created topic orders."}},
		{"", configTool, "--alter --entity-type users --entity-name alice --add-config SCRAM-SHA-256=[password=secret]", 0, []string{"Completed updating config for user alice"}},
		{"", configTool, "--alter --entity-type users --entity-name alice --add-config producer_byte_rate=1000000", 0, []string{"Completed updating config for user alice"}},
		{"", configTool, "--alter --entity-type clients --entity-default --add-config request_percentage=200", 0, []string{"Completed updating default config for clients"}},
		{"", configTool, "--alter --entity-type ips --entity-name 10.0.0.1 --add-config connection_creation_rate=20", 0, []string{"Completed updating config for ip 10.0.0.1"}},
		{"", configTool, "--describe --entity-type users --entity-name alice", 0, []string{"producer_byte_rate=1000000.0", "SCRAM-SHA-256=iterations="}},
		{"", configTool, "--describe --entity-type clients", 0, []string{"default client-id", "request_percentage=200.0"}},
		{"", configTool, "--alter --entity-type users --entity-name alice --delete-config producer_byte_rate", 0, []string{"Completed updating config for user alice"}},
		{"", aclTool, "--list", 0, nil},
		{"", "DelegationTokenCommand", "--create --max-life-time-period -1", 1, []string{"does not support CREATE_DELEGATION_TOKEN"}},
		{"", aclTool, "--add --allow-principal User:alice --producer --topic orders", 0, []string{"operation=WRITE, permissionType=ALLOW"}},
		{"", aclTool, "--add --allow-principal User:alice --operation read --group team- --resource-pattern-type prefixed", 0, []string{"patternType=PREFIXED"}},
		{"", aclTool, "--add --allow-principal Group:staff --operation read --topic orders", 1, []string{"InvalidRequestException"}},
		{"", aclTool, "--list --principal User:alice", 0, []string{"resourceType=TOPIC, name=orders", "resourceType=GROUP, name=team-"}},
	}, at...)
	k.session([]toolRun{
		{"one\n", "ConsoleProducer", "--topic orders", 0, nil},
		{"", offsetTool, "--topic orders", 0, []string{"orders:0:"}}, // describe comes with write
		{"", topicTool, "--delete --topic orders", 1, []string{"TopicAuthorizationException"}},
		{"", aclTool, "--list", 1, []string{"ClusterAuthorizationException"}},
		{"", configTool, "--describe --entity-type users", 1, []string{"ClusterAuthorizationException: Cluster authorization failed."}},
		{"", "ClientMetricsCommand", "--alter --name m --metrics org.apache.kafka. --interval 10000", 1, []string{"Cluster authorization failed."}},
		{"", "consumer.ConsoleConsumer", "--topic orders --group team-a --from-beginning --max-messages 1 --timeout-ms 20000", 0, []string{"Not authorized to access topics: [orders]"}},
	}, asAlice...)
	k.session([]toolRun{
		{"", aclTool, "--add --allow-principal User:alice --consumer --topic orders --group team-a", 0, nil},
	}, at...)
	k.session([]toolRun{
		{"", "consumer.ConsoleConsumer", "--topic orders --group team-a --from-beginning --max-messages 1 --timeout-ms 60000", 0, []string{"one"}},
	}, asAlice...)
	k.session([]toolRun{
		{"", aclTool, "--remove --force --allow-principal User:alice --producer --topic orders", 0, nil},
		{"", aclTool, "--list --topic orders", 0, []string{"operation=READ"}},
		{"", configTool, "--alter --entity-type users --entity-name alice --delete-config SCRAM-SHA-256", 0, []string{"Completed updating config for user alice"}},
	}, at...)
	k.session([]toolRun{
		{"", offsetTool, "--topic orders", 1, []string{"SaslAuthenticationException"}},
	}, asAlice...)
}

// toolClasses are the classes of the scripts in Kafka's bin.
var toolClasses = map[string]string{
	"kafka-acls": "AclCommand", "kafka-topics": "TopicCommand", "kafka-groups": "GroupsCommand", "kafka-get-offsets": "GetOffsetShell", "kafka-delete-records": "DeleteRecordsCommand",
	"kafka-transactions": "TransactionsCommand", "kafka-consumer-groups": "consumer.group.ConsumerGroupCommand", "kafka-share-groups": "consumer.group.ShareGroupCommand",
	"kafka-streams-application-reset": "StreamsResetter", "kafka-streams-groups": "streams.StreamsGroupCommand", "kafka-configs": "ConfigCommand",
	"kafka-console-producer": "ConsoleProducer", "kafka-console-consumer": "consumer.ConsoleConsumer", "kafka-console-share-consumer": "consumer.ConsoleShareConsumer",
	"kafka-producer-perf-test": "ProducerPerformance", "kafka-consumer-perf-test": "ConsumerPerformance", "kafka-share-consumer-perf-test": "ShareConsumerPerformance", "kafka-e2e-latency": "EndToEndLatency",
	"kafka-verifiable-producer": "VerifiableProducer", "kafka-verifiable-consumer": "VerifiableConsumer", "kafka-verifiable-share-consumer": "VerifiableShareConsumer",
	"kafka-broker-api-versions": "BrokerApiVersionsCommand", "kafka-cluster": "ClusterTool", "kafka-log-dirs": "LogDirsCommand", "kafka-reassign-partitions": "reassign.ReassignPartitionsCommand",
	"kafka-leader-election": "LeaderElectionCommand", "kafka-features": "FeatureCommand", "kafka-client-metrics": "ClientMetricsCommand", "kafka-metadata-quorum": "MetadataQuorumCommand",
	"kafka-delegation-tokens": "DelegationTokenCommand",
}

// docs/kafka.md names the scripts that the sessions here run, all and no other.
func TestToolsThatTheDocumentNamesAreRun(t *testing.T) {
	doc, err := os.ReadFile("../docs/kafka.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(doc), "\n## Kafka's tools\n")
	if !ok {
		t.Fatal("docs/kafka.md has no section Kafka's tools")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	named := map[string]bool{}
	for line := range strings.Lines(section) {
		scripts, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " |")
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		for script := range strings.SplitSeq(scripts, ", ") {
			named[strings.Trim(script, "`")] = true
		}
	}
	var sessions string
	for _, file := range []string{"tools_test.go", "share_test.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sessions += string(text)
	}
	for constant, class := range map[string]string{"topicTool": topicTool, "configTool": configTool, "groupTool": groupTool, "offsetTool": offsetTool, "aclTool": aclTool, "shareTool": shareTool} {
		sessions = strings.ReplaceAll(sessions, `", `+constant+`, "`, fmt.Sprintf(`", %q, "`, class))
	}
	for script, class := range toolClasses {
		if !named[script] {
			t.Errorf("docs/kafka.md does not name %s", script)
		}
		if !strings.Contains(sessions, fmt.Sprintf(`", %q, "`, class)) {
			t.Errorf("no session runs %s, which is %s", script, class)
		}
	}
	for script := range named {
		if toolClasses[script] == "" {
			t.Errorf("docs/kafka.md names %s, which no session runs", script)
		}
	}
}
