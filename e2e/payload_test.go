package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
)

// Topics of text, of bytes, of records that name no schema, with and without a column of their
// keys, are tables that two engines read.
func TestWhatRecordsAre(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	l.queryEnv = sharedEngines(t)
	s := l.server(t)
	lag := 500 * time.Millisecond
	s.createTopic("lines", 1, lag, "table.topic.value.format", "string", "table.topic.key.format", "string", "table.topic.key.column", "who")
	s.createTopic("blobs", 1, lag, "automq.table.topic.convert.value.type", "raw", "table.topic.tombstone", "skip")
	s.createTopic("bare", 1, lag, "table.topic.value.format", "latest", "table.topic.key.format", "schema-id")
	const key = `{"type":"record","name":"K","fields":[{"name":"id","type":"long"}]}`
	s.createTopic("pairs", 1, lag, "table.topic.value.format", "json", "table.topic.key.format", "json")
	const messages = `syntax = "proto3"; package shop; message Other { string id = 1; } message Order { message Line { int64 id = 1; Order whole = 2; } int64 total = 1; }`
	s.createTopic("messages", 1, lag, "table.topic.value.format", "latest", "table.topic.value.subject", "shop", "table.topic.value.message", "shop.Order.Line")
	registerSchemaOf(t, s, "shop", sr.Schema{Schema: messages, Type: sr.TypeProtobuf})
	s.createTopic("headed", 1, lag) // the header names the schema of the value, of a message with its indexes
	headed := registerSchema(t, s, "headed-value", eventSchema)
	headedMessage := append(registerSchemaOf(t, s, "headed-message", sr.Schema{Schema: paymentSchema, Type: sr.TypeProtobuf}), 2, 2)
	registerSchema(t, s, "bare-value", eventSchema)
	keyHeader := registerSchema(t, s, "bare-key", key)
	type keyed struct {
		ID int64 `avro:"id"`
	}
	cl := s.client()
	for _, r := range []*kgo.Record{
		{Topic: "lines", Key: []byte("ada"), Value: []byte("first")},
		{Topic: "lines", Value: []byte("second")},
		{Topic: "lines", Key: []byte("eve"), Value: []byte{0xff}},
		{Topic: "blobs", Value: []byte{0, 1}},
		{Topic: "blobs"},
		{Topic: "bare", Key: encoded(t, keyHeader, key, keyed{7}), Value: encoded(t, nil, eventSchema, event{1, "x"})},
		{Topic: "bare", Key: encoded(t, keyHeader, key, keyed{8})},
		// Messages without anything in front, as protoc's code writes them: id 5, and id -1 of an order of 300.
		{Topic: "messages", Value: []byte{1 << 3, 5}},
		{Topic: "messages", Value: []byte{1 << 3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2<<3 | 2, 3, 1 << 3, 0xac, 2}},
		{Topic: "messages"},
		{Topic: "messages", Value: []byte{1<<3 | 2, 1, 'x'}}, // of Other: a field in the encoding of another type is left out
		{Topic: "headed", Value: encoded(t, nil, eventSchema, event{1, "x"}), Headers: []kgo.RecordHeader{{Key: "__value_schema_id", Value: headed}}},
		{Topic: "headed", Value: []byte{1 << 3, 2, 2<<3 | 2, 1, 'y'}, Headers: []kgo.RecordHeader{{Key: "__value_schema_id", Value: headedMessage}}},
		{Topic: "headed", Value: encoded(t, headed, eventSchema, event{3, "z"})},
		{Topic: "pairs", Key: []byte(`{"id":1}`), Value: []byte(`{"a":"x"}`)},
		{Topic: "pairs", Key: []byte(`null`), Value: []byte(`{"a":"y"}`)},
		{Topic: "pairs", Value: []byte(`{"a":"z"}`)},
		{Topic: "pairs", Key: []byte(`{"id":-9223372036854775808,"region":"é"}`)},
		// As newer serializers do it, the header names the schema of the key.
		{Topic: "bare", Key: encoded(t, nil, key, keyed{9}), Value: encoded(t, nil, eventSchema, event{2, "y"}), Headers: []kgo.RecordHeader{{Key: "__key_schema_id", Value: keyHeader}}},
	} {
		if err := cl.ProduceSync(context.Background(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	for topic, c := range map[string]struct {
		rows      int64
		sql, want string
	}{
		"pairs":    {4, "SELECT a, _key.id AS id, _key.region AS region FROM ice.default.pairs", "a,id,region\nNULL,-9223372036854775808,é\nx,1,NULL\ny,NULL,NULL\nz,NULL,NULL\n"},
		"headed":   {3, "SELECT id, text FROM ice.default.headed", "id,text\n1,x\n2,y\n3,z\n"},
		"messages": {4, "SELECT id, whole FROM ice.default.messages", "id,whole\n-1,\"{\"\"total\"\":300}\"\n0,NULL\n5,NULL\nNULL,NULL\n"},
		"lines":    {2, "SELECT value, who FROM ice.default.lines", "value,who\nfirst,ada\nsecond,NULL\n"},
		"blobs":    {1, "SELECT value FROM ice.default.blobs", "value\n0001\n"},
		"bare":     {3, `SELECT id, text, _key.id AS k FROM ice.default.bare`, "id,text,k\n1,x,7\n2,y,9\nNULL,NULL,8\n"},
	} {
		waitForTable(t, s, topic, c.rows, 3*time.Minute)
		for _, engine := range []string{"duckdb", "trino"} {
			if got := l.query(t, s, engine, c.sql); got != c.want {
				t.Errorf("%s by %s:\n%swant\n%s", topic, engine, got, c.want)
			}
		}
		if out, code := s.cli("", "table", "verify", topic, "--deep"); code != 0 {
			t.Errorf("table verify %s: exit %d\n%s", topic, code, out)
		}
	}
	if got := dlqList(t, s, "lines"); len(got) != 1 || got[0].SourceOffset != 2 {
		t.Errorf("dead letters %+v, want that of the text that is not UTF-8", got)
	}
}

// A table that is switched on later begins where its topic says, also after a restart: with what comes, at a time, or at
// offsets of partitions. What came before is accounted for, and two engines read all the rest.
func TestTableBeginsWhereItsTopicSays(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	noon := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	cl := s.client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	produce := func(topic string, hours ...int) {
		t.Helper()
		for p := range int32(2) {
			for _, h := range hours {
				r := &kgo.Record{Topic: topic, Partition: p, Timestamp: noon.Add(time.Duration(h) * time.Hour), Value: fmt.Appendf(nil, "%d at %d", p, h)}
				if err := cl.ProduceSync(context.Background(), r).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	all := []int{0, 1, 2, 3, 4}
	topics := map[string]struct {
		start  string
		hours  [2][]int // of the rows of a partition
		verify []string // what was left out
	}{
		"at_latest":  {"latest", [2][]int{all[4:], all[4:]}, []string{"offsets 0 to 4 are not in the table: start"}},
		"at_a_time":  {"2026-01-31T14:30:00+01:00", [2][]int{all[2:], all[2:]}, []string{"offsets 0 to 2 are not in the table: start"}}, // 13:30 in UTC
		"at_millis":  {fmt.Sprint(noon.Add(3 * time.Hour).UnixMilli()), [2][]int{all[3:], all[3:]}, []string{"offsets 0 to 3 are not in the table: start"}},
		"at_offsets": {"1:3", [2][]int{all, all[3:]}, []string{"offsets 0 to 3 are not in the table: start"}},
		"earliest":   {"earliest", [2][]int{all, all}, nil},
	}
	for topic, c := range topics {
		if _, err := s.admin().CreateTopic(context.Background(), 2, 1, map[string]*string{"table.topic.value.format": kadm.StringPtr("string"), "table.topic.target.lag.ms": kadm.StringPtr("300"),
			"retention.ms": kadm.StringPtr("-1")}, topic); err != nil { // the records are old
			t.Fatal(err)
		}
		produce(topic, all[:4]...)
		if out, code := s.cli("", "topic", "alter", topic, "-c", "table.topic.enable=true", "-c", "table.topic.start="+c.start); code != 0 {
			t.Fatal(out)
		}
	}
	s.kill()
	s.start()
	for topic, c := range topics {
		produce(topic, 4)
		var rows []string
		for p, hours := range c.hours {
			for _, h := range hours {
				rows = append(rows, fmt.Sprintf("%d at %d\n", p, h))
			}
		}
		waitForTable(t, s, topic, int64(len(rows)), 3*time.Minute)
		want := "value\n" + strings.Join(rows, "")
		for _, engine := range []string{"duckdb", "pyiceberg"} {
			if got := l.query(t, s, engine, "SELECT value FROM ice.default."+topic); got != want {
				t.Errorf("%s by %s: %s", topic, engine, diffLines(want, got))
			}
		}
		out, code := s.cli("", "table", "verify", topic, "--deep")
		if code != 0 || c.verify == nil && strings.Contains(out, "not in the table") {
			t.Errorf("table verify: exit %d\n%s", code, out)
		}
		for _, line := range c.verify {
			if !strings.Contains(out, line) {
				t.Errorf("table verify %s: no %q in\n%s", topic, line, out)
			}
		}
	}
}

// The column that says where a row came from has the name of its setting: a field may then have the usual one. Two
// engines read both, every member by value. A field of the name that was set is refused.
func TestKafkaColumnOfAnotherName(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	s.createTopic("renamed", 1, 300*time.Millisecond, "retention.ms", "-1", "table.topic.kafka.column", "Source", "table.topic.column.case", "lower") // the records are old
	schema := rec(idField + `,{"name":"_kafka","type":"string"}`)
	clash := rec(idField + `,{"name":"source","type":"string"}`)
	setCompatibilityNone(t, s, "renamed-value")
	header, clashing := registerSchema(t, s, "renamed-value", schema), registerSchema(t, s, "renamed-value", clash)
	cl := s.client(kgo.DefaultProduceTopic("renamed"))
	for _, r := range []*kgo.Record{
		{Timestamp: time.UnixMilli(micros / 1000), Key: []byte("k"), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte{0xff}}, {Key: "h"}}, Value: encoded(t, header, schema, obj{"id": int64(1), "_kafka": "own"})},
		{Timestamp: time.UnixMilli(1), Value: encoded(t, clashing, clash, obj{"id": int64(2), "source": "x"})},
		{Timestamp: time.UnixMilli(0), Value: encoded(t, header, schema, obj{"id": int64(3), "_kafka": ""})},
	} {
		if err := cl.ProduceSync(context.Background(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	waitForTable(t, s, "renamed", 2, 3*time.Minute)
	want := "id,_kafka,Source\n" +
		"1,own,\"{\"\"headers\"\":[{\"\"key\"\":\"\"h\"\",\"\"value\"\":\"\"ff\"\"},{\"\"key\"\":\"\"h\"\",\"\"value\"\":null}],\"\"key\"\":\"\"6b\"\",\"\"offset\"\":0,\"\"partition\"\":0,\"\"timestamp\"\":\"\"2023-11-14T22:13:20.123000\"\",\"\"timestamp_type\"\":0}\"\n" +
		"3,,\"{\"\"headers\"\":[],\"\"key\"\":null,\"\"offset\"\":2,\"\"partition\"\":0,\"\"timestamp\"\":\"\"1970-01-01T00:00:00.000000\"\",\"\"timestamp_type\"\":0}\"\n"
	for _, engine := range []string{"duckdb", "pyiceberg"} {
		if got := l.query(t, s, engine, "SELECT id, _kafka, Source FROM ice.default.renamed"); got != want {
			t.Errorf("%s: %s", engine, diffLines(want, got))
		}
	}
	if out, code := s.cli("", "dlq", "list", "renamed"); code != 0 || !strings.Contains(out, "field source: the name is taken by the column for topic, partition and offset: set table.topic.kafka.column to another name") {
		t.Errorf("dead letters: exit %d\n%s", code, out)
	}
	if out, code := s.cli("", "table", "verify", "renamed", "--deep"); code != 0 {
		t.Errorf("table verify: exit %d\n%s", code, out)
	}
}

// The commands of docs/tables.md work, in order.
func TestTablesDocument(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/tables.md")
	if err != nil {
		t.Fatal(err)
	}
	s := startServer(t)
	n, inside := 0, false
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "```") {
			inside = !inside
		}
		command, is := strings.CutPrefix(line, "tabletopic ")
		if !inside || !is {
			continue
		}
		command, _, _ = strings.Cut(command, " #")
		if out, code := s.cli("", strings.Fields(command)...); code != 0 {
			t.Errorf("%s: exit %d\n%s", strings.TrimSpace(line), code, out)
		}
		n++
	}
	if n < 5 {
		t.Errorf("%d commands", n)
	}
}

// With defaults of the cluster a topic that sets nothing is a table, by the name that the pattern
// makes; tools see where a setting comes from, the dead letters stay a topic, and two topics never
// get one table.
func TestTopicDefaults(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--topic-defaults", "table.topic.enable=true;table.topic.value.format=string;table.topic.target.lag.ms=300;table.topic.name={topic:^prod[.](.*)};table.topic.namespace=lake.raw")
	ctx, adm := context.Background(), s.admin()
	if _, err := adm.CreateTopic(ctx, 1, 1, nil, "prod.orders"); err != nil {
		t.Fatal(err)
	}
	produceAll(t, s, "prod.orders", []byte("one"), []byte{0xff})
	waitForTable(t, s, "prod.orders", 1, 3*time.Minute)
	var status struct{ Table string }
	if err := s.api("/api/tables/prod.orders", &status); err != nil || status.Table != "lake.raw.orders" {
		t.Errorf("table %q, %v", status.Table, err)
	}
	configs, err := adm.DescribeTopicConfigs(ctx, "prod.orders", "prod.orders.dlq")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range configs {
		for _, kv := range c.Configs {
			if kv.Key != "table.topic.enable" {
				continue
			}
			want, source := "true", "STATIC_BROKER_CONFIG"
			if c.Name == "prod.orders.dlq" {
				want, source = "false", "DEFAULT_CONFIG"
			}
			if *kv.Value != want || kv.Source.String() != source {
				t.Errorf("%s: %s from %s, want %s from %s", c.Name, *kv.Value, kv.Source, want, source)
			}
		}
	}
	resp, err := adm.CreateTopic(ctx, 1, 1, nil, "prod.Orders")
	if err == nil || !strings.Contains(resp.ErrMessage, `"prod.orders"`) {
		t.Errorf("a second topic of the table: %v %s", err, resp.ErrMessage)
	}
	if resp, err := adm.CreateTopic(ctx, 1, 1, nil, "test.orders"); err == nil || !strings.Contains(resp.ErrMessage, "does not match") {
		t.Errorf("a topic that the pattern does not match: %v %s", err, resp.ErrMessage)
	}
}

// headerProducer is confluent-kafka's Avro serializer, told to name schemas by GUID in headers.
const headerProducer = `
import sys
from confluent_kafka import SerializingProducer
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
kafka, registry = sys.argv[1:]
client = SchemaRegistryClient({"url": registry})
def serializer(schema):
    return AvroSerializer(client, schema, conf={"schema.id.serializer": header_schema_id_serializer})
producer = SerializingProducer({
    "bootstrap.servers": kafka,
    "key.serializer": serializer('{"type": "record", "name": "K", "fields": [{"name": "id", "type": "long"}]}'),
    "value.serializer": serializer('{"type": "record", "name": "E", "fields": [{"name": "id", "type": "long"}, {"name": "text", "type": "string"}]}'),
})
for i in range(10):
    producer.produce("events", key={"id": i % 2}, value={"id": i, "text": "t%d" % i}, headers=[])
assert producer.flush(30) == 0
`

// Records of a serializer that names schemas by GUID, in headers, become rows that two engines read as they were.
func TestSchemasByGUIDInHeaders(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	s.createTopic("events", 1, 500*time.Millisecond, "table.topic.key.format", "schema-id")
	run(t, nil, python(), "-c", headerProducer, s.kafka, s.registryURL())
	waitForTable(t, s, "events", 10, 3*time.Minute)
	want := "id,text,_key\n"
	for i := range 10 {
		want += fmt.Sprintf("%d,t%d,\"{\"\"id\"\":%d}\"\n", i, i, i%2)
	}
	for _, engine := range []string{"duckdb", "pyiceberg"} {
		if got := l.query(t, s, engine, "SELECT id, text, _key FROM ice.default.events"); got != want {
			t.Errorf("%s: %s", engine, diffLines(want, got))
		}
	}
	const both = "headers\n\"[\"\"__key_schema_id\"\",\"\"__value_schema_id\"\"]\"\n"
	if got := l.query(t, s, "duckdb", "SELECT DISTINCT list_sort([h.key FOR h IN _kafka.headers]) AS headers FROM ice.default.events"); got != both {
		t.Errorf("got\n%swant\n%s", got, both)
	}
}

// Topics with names that no catalog would take become tables that two engines read under the name that
// the server tells, each topic its own, which the table names; so does one with a name for its table. Two topics that would have the same
// table are refused.
func TestTopicNamesBecomeTableNames(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	l.queryEnv = sharedEngines(t)
	s := l.server(t)
	topics := []string{"orders.v1", "Poc-Kafka", "a..b", "1abc", "_", "select", strings.Repeat("x", 249), strings.Repeat("x", 248) + "y"}
	names := map[string]string{}
	for i, topic := range topics {
		s.createTopic(topic, 1, 300*time.Millisecond, "table.topic.value.format", "string")
		produceAll(t, s, topic, []byte(fmt.Sprint("row of ", i)))
	}
	for i, topic := range topics {
		waitForTable(t, s, topic, 1, time.Minute)
		var status struct{ Table string }
		if err := s.api("/api/tables/"+topic, &status); err != nil {
			t.Fatal(err)
		}
		namespace, name, _ := strings.Cut(status.Table, ".")
		if other, taken := names[status.Table]; taken || namespace != "default" || len(name) > 128 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			t.Errorf("topic %s is table %s, which topic %q is too, or no catalog takes", topic, status.Table, other)
		}
		names[status.Table] = topic
		for _, engine := range []string{"duckdb", "trino"} {
			want := fmt.Sprintf("value\nrow of %d\n", i)
			if got := l.query(t, s, engine, fmt.Sprintf(`SELECT value FROM ice.default."%s"`, name)); got != want {
				t.Errorf("topic %s by %s reads %q, want %q", topic, engine, got, want)
			}
		}
	}
	properties := ""
	for table, topic := range names {
		properties += fmt.Sprintf("assert cat.load_table(%q).properties[\"tabletopic.topic\"] == %q\n", table, topic)
	}
	makeTable(t, s, properties)
	s.createTopic("Its.Own", 1, 300*time.Millisecond, "table.topic.value.format", "string", "table.topic.name", "analytics.orders")
	produceAll(t, s, "Its.Own", []byte("row of its own"))
	waitForTable(t, s, "Its.Own", 1, time.Minute)
	for _, engine := range []string{"duckdb", "trino"} {
		if got, want := l.query(t, s, engine, "SELECT value FROM ice.analytics.orders"), "value\nrow of its own\n"; got != want {
			t.Errorf("a topic with a name for its table, by %s, reads %q, want %q", engine, got, want)
		}
	}
	if out, code := s.cli("", "topic", "create", "poc_kafka", "--table"); code != 1 || !strings.Contains(out, "Poc-Kafka") {
		t.Errorf("a topic of the same table: exit %d\n%s", code, out)
	}
}
