package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/sr"
)

// makeTable runs a Python script that has PyIceberg's catalog as cat.
func makeTable(t *testing.T, s *server, script string) {
	t.Helper()
	run(t, nil, python(), "-c", fmt.Sprintf(`
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import *
from pyiceberg.partitioning import PartitionSpec, PartitionField
from pyiceberg.transforms import *
import datetime, pyarrow as pa, pyarrow.parquet as pq
cat = load_catalog("c", type="rest", uri=%q)
dir = %q
cat.create_namespace_if_not_exists("default")
%s`, s.catalogURL(), t.TempDir(), script))
}

// Tables that engines made, with partitions and rows, are filled on: columns go by name in any case
// and keep their ids, wider types and columns of the table's own stay, required ones that records
// lack become optional. Two engines read the rows of both, by value.
func TestTablesOfOthersAreAdopted(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	l.queryEnv = sharedEngines(t)
	s := l.server(t)
	const visit = `{"type":"record","name":"Visit","fields":[{"name":"id","type":"int"},{"name":"text","type":"string"},{"name":"moment","type":{"type":"long","logicalType":"timestamp-micros"}}]}`
	makeTable(t, s, `
schema = Schema(NestedField(3, "Text", StringType()), NestedField(7, "id", LongType(), required=True), NestedField(9, "moment", TimestamptzType()), NestedField(11, "only_here", StringType(), required=True))
t = cat.create_table("default.by_pyiceberg", schema, partition_spec=PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "text_part")))
day = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
t.append(pa.table({"Text": ["theirs"], "id": [-1], "moment": [day], "only_here": ["x"]}, t.schema().as_arrow()))
t = cat.create_table("default.without_ids", pa.schema([("id", pa.int64()), ("text", pa.string()), ("moment", pa.timestamp("us", "UTC"))]))
pq.write_table(pa.table({"id": [-1], "text": ["theirs"], "moment": [day]}, pa.schema([("id", pa.int64()), ("text", pa.string()), ("moment", pa.timestamp("us", "UTC"))])), dir + "/f.parquet")
t.add_files([dir + "/f.parquet"])
assert "schema.name-mapping.default" in t.properties`)
	for engine, statements := range map[string][]string{
		"spark": {"CREATE TABLE ice.default.by_spark (moment timestamp, id bigint NOT NULL, text string, only_here int NOT NULL) USING iceberg PARTITIONED BY (days(moment), truncate(2, text))",
			"INSERT INTO ice.default.by_spark VALUES (timestamp '2026-01-02 03:04:05', -1, 'theirs', 5)"},
		"trino": {"CREATE TABLE ice.default.by_trino (id bigint, text varchar, moment timestamp(6) with time zone, only_here decimal(10,2)) WITH (partitioning = ARRAY['text', 'month(moment)'], sorted_by = ARRAY['id'])",
			"INSERT INTO ice.default.by_trino VALUES (-1, 'theirs', timestamp '2026-01-02 03:04:05 UTC', 1.5)"},
	} {
		for _, sql := range statements {
			if _, err := l.tryQuery(s, engine, sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
	}
	readers := map[string][]string{"by_pyiceberg": {"duckdb", "spark"}, "without_ids": {"pyiceberg", "spark"}, "by_spark": {"duckdb", "trino"}, "by_trino": {"duckdb", "spark"}}
	for topic := range readers {
		s.createTopic(topic, 1, 300*time.Millisecond)
		header := registerSchema(t, s, topic+"-value", visit)
		produceAll(t, s, topic, encoded(t, header, visit, obj{"id": 1, "text": "ours", "moment": time.UnixMicro(micros)}), encoded(t, header, visit, obj{"id": 2, "text": "ours", "moment": time.UnixMicro(-1)}))
	}
	onlyHere := map[string]string{"by_pyiceberg": "x", "by_spark": "5", "by_trino": "1.50"} // null in our rows
	for topic, engines := range readers {
		waitForTable(t, s, topic, 3, time.Minute)
		want := "id,text,moment\n-1,theirs,2026-01-02T03:04:05.000000\n1,ours,2023-11-14T22:13:20.123456\n2,ours,1969-12-31T23:59:59.999999\n"
		if v := onlyHere[topic]; v != "" {
			want = strings.NewReplacer("moment\n", "moment,only_here\n", "05.000000\n", "05.000000,"+v+"\n", "20.123456\n", "20.123456,NULL\n", "59.999999\n", "59.999999,NULL\n").Replace(want)
		}
		for _, engine := range engines {
			columns := "id, text AS text, moment" // whatever the case of the table's column
			if engine == "pyiceberg" {
				columns = "id, text, moment"
			}
			if onlyHere[topic] != "" {
				columns += ", only_here"
			}
			got := l.query(t, s, engine, "SELECT "+columns+" FROM ice.default."+topic)
			if got != want {
				t.Errorf("%s by %s: %s", topic, engine, diffLines(want, got))
			}
		}
		if out, code := s.cli("", "table", "verify", topic, "--deep"); code != 0 { // of without_ids, too, whose file has no more than a path
			t.Errorf("table verify %s: exit %d\n%s", topic, code, out)
		}
	}
	makeTable(t, s, `
t = cat.load_table("default.by_pyiceberg")
first = t.schemas()[0]
names = cat.load_table("default.without_ids").name_mapping()
assert [f.names for f in names.root][:3] == [["id"], ["text"], ["moment"]] and [f.names for f in names.root if "_kafka" in f.names and len(f.fields) == 6], names
assert all(t.schema().find_field(f.field_id).name == f.name for f in first.fields), t.schema()
assert [f.required for f in t.schema().fields if f.name in ("Text", "id", "moment", "only_here")] == [False, True, False, False], t.schema()`)
}

// Fields in mixed case go to the columns of a table that Trino made, which are in lower case, at any depth and however a
// later version writes them: there is one column of each name, as four engines read it.
func TestFieldsGoToColumnsInLowerCase(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	l.queryEnv = sharedEngines(t)
	s := l.server(t)
	makeTable(t, s, "") // the namespace
	for _, sql := range []string{"CREATE TABLE ice.default.visits (userId bigint, place ROW(zipcode varchar, town varchar)) WITH (partitioning = ARRAY['bucket(userId, 4)'])",
		"INSERT INTO ice.default.visits VALUES (-1, ROW('0', 'theirs'))"} {
		if _, err := l.tryQuery(s, "trino", sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	const place = `{"name":%q,"type":{"type":"record","name":"P","fields":[{"name":%q,"type":"string"},{"name":%q,"type":["null","string"],"default":null}]}}`
	c := valueCase{
		topic: "visits",
		kind:  sr.TypeAvro,
		versions: []string{rec(field("userId", `"long"`) + "," + fmt.Sprintf(place, "Place", "zipCode", "Town")),
			rec(field("USERID", `"long"`) + "," + fmt.Sprintf(place, "place", "ZIPCODE", "streetName")),
			rec(field("userId", `"long"`) + "," + field("userid", `"long"`))},
		records: []versioned{
			{0, obj{"userId": int64(1), "Place": obj{"zipCode": "a", "Town": in("string", "Rome")}}},
			{1, obj{"USERID": int64(2), "place": obj{"ZIPCODE": "b", "streetName": in("string", "x")}}},
			{2, obj{"userId": int64(3), "userid": int64(4)}},
			{0, obj{"userId": int64(5), "Place": obj{"zipCode": "", "Town": nil}}},
		},
		dead: 1, // it has two fields for one column
	}
	c.produce(t, s)
	waitForTable(t, s, c.topic, 4, time.Minute)
	if got := dlqList(t, s, c.topic); len(got) != 1 || got[0].SourceOffset != 2 || got[0].Cause != "unusable-schema" {
		t.Errorf("dead letters %+v", got)
	}
	want := "userid,place\n" +
		"-1,\"{\"\"streetName\"\":null,\"\"town\"\":\"\"theirs\"\",\"\"zipcode\"\":\"\"0\"\"}\"\n" +
		"1,\"{\"\"streetName\"\":null,\"\"town\"\":\"\"Rome\"\",\"\"zipcode\"\":\"\"a\"\"}\"\n" +
		"2,\"{\"\"streetName\"\":\"\"x\"\",\"\"town\"\":null,\"\"zipcode\"\":\"\"b\"\"}\"\n" +
		"5,\"{\"\"streetName\"\":null,\"\"town\"\":null,\"\"zipcode\"\":\"\"\"\"}\"\n"
	for _, engine := range engines {
		if got := l.query(t, s, engine, "SELECT userid, place FROM ice.default.visits"); got != want {
			t.Errorf("%s: %s", engine, diffLines(want, got))
		}
	}
	const types = "long, struct<zipcode: string, town: string, streetName: string>, struct<"
	if got := run(t, nil, "lab/query", "pyiceberg", "--uri", s.catalogURL(), "--types", "ice.default.visits"); !strings.HasPrefix(got, types) || strings.Count(got, "struct<") != 3 {
		t.Errorf("the columns are %s, want %s… of _kafka", got, types)
	}
	if out, code := s.cli("", "table", "verify", "visits", "--deep"); code != 0 {
		t.Errorf("table verify: exit %d\n%s", code, out)
	}
}

// A table whose columns cannot hold what the records have gets none: its state says for each column
// what the two have and what is wrong. It is filled when the columns are changed.
func TestTableOfOthersIsRefusedByColumn(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	makeTable(t, s, `
cat.create_table("default.events", Schema(NestedField(1, "id", StringType()), NestedField(2, "text", StructType(NestedField(3, "a", LongType())))))`)
	s.createTopic("events", 1, 300*time.Millisecond)
	header := registerSchema(t, s, "events-value", eventSchema)
	produceAll(t, s, "events", encoded(t, header, eventSchema, event{1, "x"}))
	eventually(t, time.Minute, "the difference in the state", func() error {
		out, _ := s.cli("", "table", "status", "events")
		for _, part := range []string{"paused", "was there before the topic", "column id is string, the writer has long: Iceberg widens only", "column text is struct<", "the writer has string: one is nested", "table.topic.name to another table"} {
			if !strings.Contains(out, part) {
				return fmt.Errorf("no %q in %s", part, out)
			}
		}
		return nil
	})
	if log := s.log.String(); !strings.Contains(log, "column id is string") {
		t.Error("the difference is not in the log")
	}
	if ends, err := s.admin().ListEndOffsets(context.Background(), "events.dlq"); err == nil && ends.Error() == nil {
		t.Error("there are dead letters")
	}
	makeTable(t, s, `
t = cat.load_table("default.events")
with t.update_schema(allow_incompatible_changes=True) as u:
    u.delete_column("id")
    u.delete_column("text")`)
	waitForTable(t, s, "events", 1, time.Minute)
}
