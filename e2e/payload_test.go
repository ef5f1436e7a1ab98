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
)

// Topics of text, of bytes, of records that name no schema, with and without a column of their
// keys, are tables that an engine reads.
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
		"pairs": {4, "SELECT a, _key.id AS id, _key.region AS region FROM ice.default.pairs", "a,id,region\nNULL,-9223372036854775808,é\nx,1,NULL\ny,NULL,NULL\nz,NULL,NULL\n"},
		"lines": {2, "SELECT value, who FROM ice.default.lines", "value,who\nfirst,ada\nsecond,NULL\n"},
		"blobs": {1, "SELECT octet_length(value) AS n FROM ice.default.blobs", "n\n2\n"},
		"bare":  {3, `SELECT id, text, _key.id AS k FROM ice.default.bare`, "id,text,k\n1,x,7\n2,y,9\nNULL,NULL,8\n"},
	} {
		waitForTable(t, s, topic, c.rows, 3*time.Minute)
		for _, engine := range []string{"duckdb", "trino"} {
			sql := c.sql
			if engine == "trino" {
				sql = strings.ReplaceAll(sql, "octet_length", "length") // of binary
			}
			if got := l.query(t, s, engine, sql); got != c.want {
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

// A table that is switched on later begins where its topic says.
func TestTableBeginsAtLatest(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	if _, err := s.admin().CreateTopic(context.Background(), 1, 1, map[string]*string{"table.topic.value.format": kadm.StringPtr("string"), "table.topic.target.lag.ms": kadm.StringPtr("300")}, "lines"); err != nil {
		t.Fatal(err)
	}
	produceAll(t, s, "lines", []byte("before"), []byte("before"))
	if out, code := s.cli("", "topic", "alter", "lines", "-c", "table.topic.enable=true", "-c", "table.topic.start=latest"); code != 0 {
		t.Fatal(out)
	}
	s.kill()
	s.start()
	produceAll(t, s, "lines", []byte("after"))
	waitForTable(t, s, "lines", 1, 3*time.Minute)
	if out, code := s.cli("", "table", "verify", "lines", "--deep"); code != 0 || !strings.Contains(out, "offsets 0 to 2 are not in the table: start") {
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

// Records of a serializer that names schemas by GUID, in headers, become rows.
func TestSchemasByGUIDInHeaders(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	s.createTopic("events", 1, 500*time.Millisecond, "table.topic.key.format", "schema-id")
	run(t, nil, python(), "-c", headerProducer, s.kafka, s.registryURL())
	waitForTable(t, s, "events", 10, 3*time.Minute)
	got := l.query(t, s, "duckdb", `SELECT count(*) AS n, sum(id) AS ids, sum(_key.id) AS keys, max(text) AS text, any_value(len(_kafka.headers)) AS headers FROM ice.default.events`)
	if want := "n,ids,keys,text,headers\n10,45,5,t9,2\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// Topics with names that no catalog would take become tables that two engines read under the name that
// the server tells, each topic its own; two topics that would have the same table are refused.
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
	if out, code := s.cli("", "topic", "create", "poc_kafka", "--table"); code != 1 || !strings.Contains(out, "Poc-Kafka") {
		t.Errorf("a topic of the same table: exit %d\n%s", code, out)
	}
}
