package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/tabletopic/tabletopic/internal/protofile"
)

// A valueCase is a topic: what is written with which version of its schema, and what engines
// read. Rows are told apart by their first column.
type valueCase struct {
	topic    string
	config   []string // of the topic
	kind     sr.SchemaType
	versions []string
	records  []versioned
	columns  string
	types    string // of the columns, in Iceberg
	want     string // CSV, sorted
	dead     int64
	times    bool // it has values that a time zone may shift
}

// versioned is a value and the version that it is written with. It is what the format's encoder
// takes: for Protobuf the text of the first message, for JSON the text itself. A []byte is the
// payload; nil is a record without a value.
type versioned struct {
	version int
	value   any
}

// rawBody is the encoded fields of a record, for what the encoder would take in another form.
type rawBody []byte

// Whatever the versions of a schema are, and whatever the time zone of the server, each value is what
// two engines read, in a column of its type; what cannot become a row is a dead letter, and its neighbours are rows.
func TestValuesInTwoEngines(t *testing.T) {
	t.Parallel()
	all := slices.Concat(avroCases(), protobufCases(), jsonSchemaCases(), plainJSONCases())
	times := slices.DeleteFunc(slices.Clone(all), func(c valueCase) bool { return !c.times })
	for zone, cases := range map[string][]valueCase{
		"Asia/Shanghai":    all,
		"America/New_York": times,
		"Pacific/Apia":     times, // 13 hours ahead of UTC, since it left out a day
	} {
		t.Run(strings.ReplaceAll(zone, "/", "-"), func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.env = []string{"TZ=" + zone}
			s.start()
			if offset := inZone(t, zone).Format("-07:00"); !strings.Contains(s.log.String(), offset) {
				t.Fatalf("the log has no time at %s: the server is not in the zone\n%s", offset, s.log.tail(1<<10))
			}
			for _, c := range cases {
				c.produce(t, s)
			}
			var statements []string
			for _, c := range cases {
				c.await(t, s)
				statements = append(statements, fmt.Sprintf("SELECT %s FROM ice.default.%s", c.columns, tableName(c.topic)))
			}
			for _, engine := range []string{"duckdb", "pyiceberg"} {
				got := run(t, nil, "lab/query", append([]string{engine, "--uri", s.catalogURL(), "--sort"}, statements...)...)
				for i, result := range strings.SplitN(got, "\n\n", len(cases)) {
					if strings.TrimSuffix(result, "\n") != strings.TrimSuffix(cases[i].want, "\n") {
						t.Errorf("%s: %s reads\n%s\nwant\n%s", cases[i].topic, engine, tail([]byte(result), 8<<10), tail([]byte(cases[i].want), 8<<10))
					}
				}
				if n := strings.Count(got, "\n\n") + 1; n != len(cases) {
					t.Errorf("%s: %d results of %d statements", engine, n, len(cases))
				}
			}
			types := strings.Split(strings.TrimSuffix(run(t, nil, "lab/query", append([]string{"pyiceberg", "--uri", s.catalogURL(), "--types"}, statements...)...), "\n"), "\n")
			if len(types) != len(cases) {
				t.Fatalf("types of %d tables, want %d", len(types), len(cases))
			}
			for i, c := range cases {
				if types[i] != c.types {
					t.Errorf("%s: the columns are\n%s\nwant\n%s", c.topic, types[i], c.types)
				}
			}
		})
	}
}

// Maps of structs, lists with nulls, columns in lower and upper case, and a table that is partitioned by a field inside a struct and the hour of the Kafka
// timestamp, as the engines read them that TestValuesInTwoEngines does not ask.
func TestNestedValuesInSparkAndTrino(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	l.queryEnv = sharedEngines(t)
	s := l.server(t)
	cases := slices.DeleteFunc(avroCases(), func(c valueCase) bool {
		return !slices.Contains([]string{"maps-and-nulls", "nested.partition-source", "case-lower", "case-upper"}, c.topic)
	})
	for _, c := range cases {
		c.produce(t, s)
	}
	for _, c := range cases {
		c.await(t, s)
		for _, engine := range []string{"spark", "trino"} {
			if got := l.query(t, s, engine, fmt.Sprintf("SELECT %s FROM ice.default.%s", c.columns, tableName(c.topic))); got != c.want {
				t.Errorf("%s: %s reads\n%swant\n%s", c.topic, engine, got, c.want)
			}
		}
	}
	makeTable(t, s, `
names = [f.name for f in cat.load_table("default.nested_partition_source").spec().fields]
assert names == ["_kafka_timestamp_hour", "a_b"], names`)
	const pruned = "SELECT id FROM ice.default.nested_partition_source WHERE a.b = 'ü'"
	for _, engine := range []string{"spark", "trino", "duckdb", "pyiceberg"} {
		if got := l.query(t, s, engine, pruned); got != "id\n2\n" {
			t.Errorf("%s finds by the partition's source\n%s", engine, got)
		}
	}
}

// inZone is the time as the clocks of a zone show it.
func inZone(t *testing.T, name string) time.Time {
	t.Helper()
	zone, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return time.Now().In(zone)
}

// produce writes the records of c to one partition.
func (c valueCase) produce(t *testing.T, s *server) {
	t.Helper()
	s.createTopic(c.topic, 1, 500*time.Millisecond, c.config...)
	setCompatibilityNone(t, s, c.topic+"-value")
	var headers [][]byte
	for _, v := range c.versions {
		headers = append(headers, registerSchemaOf(t, s, c.topic+"-value", sr.Schema{Schema: v, Type: c.kind}))
	}
	cl := s.client(kgo.DefaultProduceTopic(c.topic), kgo.ProducerBatchMaxBytes(4<<20))
	for i, r := range c.records {
		var value []byte
		switch v := r.value.(type) {
		case nil:
		case []byte:
			value = v
		case rawBody:
			value = slices.Concat(headers[r.version], v)
		default:
			value = slices.Concat(headers[r.version], c.encode(t, c.versions[r.version], v))
		}
		if err := cl.ProduceSync(context.Background(), &kgo.Record{Value: value}).FirstErr(); err != nil {
			t.Fatalf("%s: record %d: %v", c.topic, i, err)
		}
	}
}

func setCompatibilityNone(t testing.TB, s *server, subject string) {
	t.Helper()
	for _, r := range s.registry().SetCompatibility(context.Background(), sr.SetCompatibility{Level: sr.CompatNone}, subject) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
}

// tableName is that of a topic's table.
func tableName(topic string) string {
	return strings.NewReplacer("-", "_", ".", "_").Replace(strings.ToLower(topic))
}

// encode returns the body of a value behind the id of its schema.
func (c valueCase) encode(t *testing.T, schema string, v any) (body []byte) {
	t.Helper()
	var err error
	switch c.kind {
	case sr.TypeAvro:
		body, err = avro.Marshal(avro.MustParse(schema), v)
	case sr.TypeJSON:
		body = []byte(v.(string))
	case sr.TypeProtobuf:
		m, partial := newMessage(t, schema), prototext.UnmarshalOptions{AllowPartial: true}
		if err = partial.Unmarshal([]byte(v.(string)), m); err == nil {
			body, err = proto.MarshalOptions{AllowPartial: true}.Marshal(m)
		}
		body = slices.Concat([]byte{0}, body) // the first message
	}
	if err != nil {
		t.Fatalf("%s: %v: %v", c.topic, v, err)
	}
	return body
}

// newMessage returns an empty message of the first type that a Protobuf schema has.
func newMessage(t testing.TB, schema string) *dynamicpb.Message {
	t.Helper()
	file, err := protofile.Compile(schema, func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatalf("%v\n%s", err, schema)
	}
	return dynamicpb.NewMessage(file.Messages().Get(0))
}

// await waits until each record is a row or a dead letter.
func (c valueCase) await(t *testing.T, s *server) {
	t.Helper()
	waitForTable(t, s, c.topic, int64(len(c.records))-c.dead, 3*time.Minute)
	if c.dead == 0 {
		return
	}
	ends, err := kadm.NewClient(s.client()).ListEndOffsets(context.Background(), c.topic+".dlq")
	if err != nil {
		t.Fatal(err)
	}
	if o, _ := ends.Lookup(c.topic+".dlq", 0); o.Offset != c.dead {
		t.Errorf("%s: %d dead letters, want %d", c.topic, o.Offset, c.dead)
	}
}
