package coordinator

import (
	"fmt"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/parquetio"
)

func partitionSchema(t *testing.T) *iceberg.Schema {
	t.Helper()
	v, err := parquetio.ParseAvro(parquetio.NewRules(), `{"type":"record","name":"R","fields":[
		{"name":"id","type":"long"},{"name":"at","type":{"type":"long","logicalType":"timestamp-micros"}},
		{"name":"at_day","type":"string"},{"name":"a_b","type":"int"},{"name":"Region","type":["null","string"]},
		{"name":"a","type":{"type":"record","name":"A","fields":[{"name":"b","type":"string"},{"name":"tags","type":{"type":"array","items":"string"}}]}},
		{"name":"d","type":{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}}]}`)
	if err != nil {
		t.Fatal(err)
	}
	schema, err := parquetio.Mapping{KafkaColumn: "_kafka"}.TableSchema(v)
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// Partition fields are named in letters, digits and underscores, and as no column is that they
// do not come from; columns are found without regard to case if need be.
func TestPartitionFieldNames(t *testing.T) {
	schema := partitionSchema(t)
	for by, want := range map[string]string{
		"id":                              "id",
		"day(at)":                         "at_day_2", // at_day is a column
		"hour(_kafka.timestamp)":          "_kafka_timestamp_hour",
		"a.b":                             "a_b_2", // a_b is a column
		"a.b,truncate(a.b,2)":             "a_b_2 a_b_trunc_2",
		"bucket(id,4),bucket(id,8)":       "id_bucket_4 id_bucket_8",
		"region,month(AT),bucket(d,16)":   "Region at_month d_bucket_16",
		"void(id),bucket(id,4),void(a.b)": "id_void id_bucket_4 a_b_void",
	} {
		spec, err := specFor("["+by+"]", schema, nil)
		if err != nil {
			t.Errorf("%s: %v", by, err)
			continue
		}
		var names []string
		for _, f := range spec.Fields() {
			names = append(names, f.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: %s, want %s", by, got, want)
		}
		// The specification's own rules, as iceberg-go keeps them.
		if _, err := spec.BindToSchema(schema, nil, nil); err != nil {
			t.Errorf("%s: %v", by, err)
		}
	}
}

// What a table cannot be partitioned by is refused with the column and the reason.
func TestPartitionsThatATableCannotHave(t *testing.T) {
	schema := partitionSchema(t)
	meta, err := catalog.NewMetadata(schema, "file:///t", nil)
	if err != nil {
		t.Fatal(err)
	}
	for by, hint := range map[string]string{
		"nothing":              `no column "nothing"`,
		"a.c":                  `no column "a.c"`,
		"day(id)":              "not possible",
		"hour(at_day)":         "not possible",
		"truncate(at,3)":       "not possible",
		"bucket(Region,0)":     "N from 1",
		"a":                    "not possible",
		"a.tags":               "not possible",
		"d":                    "bucket(d, N)",
		"a.tags.element":       "in no list",
		"_kafka.headers":       "not possible",
		"bucket(a.tags,16)":    "not possible",
		"void(a)":              "not possible",
		"void(d)":              "cannot hold the decimal values",
		"void(a.tags.element)": "in no list",
	} {
		if _, err := specFor("["+by+"]", schema, meta); err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("%s: %v, want %q", by, err, hint)
		}
	}
	if spec, err := specFor("", schema, meta); spec != nil || err != nil {
		t.Errorf("nothing set: %v, %v", spec, err)
	}
	if spec, err := specFor("[]", schema, meta); spec != nil || err != nil {
		t.Errorf("no partitions, as it is: %s, %v", fmt.Sprint(spec), err)
	}
}
