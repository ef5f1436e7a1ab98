package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/tabletopic/tabletopic/coordinator/control"
)

// A table that was made with the first version of the type mapping keeps to it, whatever the release,
// until somebody migrates it; then new rows follow the newest version and the settings, and old ones
// are what they were, in two engines.
func TestMigrateMapping(t *testing.T) {
	t.Parallel()
	l := directoryLake(t)
	s := l.server(t)
	const first = `syntax = "proto3"; message R { int64 id = 1; }`
	const schema = `syntax = "proto3"; import "confluent/meta.proto"; import "confluent/type/decimal.proto"; message R { int64 id = 1; int32 n = 2;
		confluent.type.Decimal amount = 3 [(confluent.field_meta) = { params: [{ key: "precision", value: "10" }, { key: "scale", value: "2" }] }]; }`
	s.createTopic("sales", 1, 500*time.Millisecond, "table.topic.on.incompatible", "new-column")
	cl, rows := s.client(kgo.DefaultProduceTopic("sales")), int64(0)
	produce := func(schema, record string) {
		t.Helper()
		header := registerSchemaOf(t, s, "sales-value", sr.Schema{Schema: schema, Type: sr.TypeProtobuf})
		body := valueCase{kind: sr.TypeProtobuf}.encode(t, schema, record)
		if err := cl.ProduceSync(context.Background(), &kgo.Record{Value: append(header, body...)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		rows++
		waitForTable(t, s, "sales", rows, 3*time.Minute)
	}
	sale := func(id int) string {
		return fmt.Sprintf(`id: %d amount { value: "\x04\xd2" precision: 10 scale: 2 }`, id)
	}
	alter := func(settings ...string) {
		t.Helper()
		args := []string{"topic", "alter", "sales"}
		for _, setting := range settings {
			args = append(args, "--config", setting)
		}
		if out, code := s.cli("", args...); code != 0 {
			t.Fatal(out)
		}
	}

	// The table of an earlier release.
	produce(first, `id: 0`)
	alter("table.topic.enable=false")
	resp, err := http.Post(s.catalogURL()+"/v1/namespaces/default/tables/sales", "application/json",
		strings.NewReader(`{"requirements":[],"updates":[{"action":"set-properties","updates":{"tabletopic.mapping":"1"}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("set a property: %s", resp.Status)
	}
	alter("table.topic.enable=true")
	produce(schema, sale(1))
	before := "id,n,amount\n1,0,\"{\"\"precision\"\":10,\"\"scale\"\":2,\"\"value\"\":\"\"04d2\"\"}\"\n"
	same := func(when, sql, want string) {
		t.Helper()
		for _, engine := range []string{"duckdb", "pyiceberg"} {
			if got := l.query(t, s, engine, sql); got != want {
				t.Errorf("%s, %s:\n%swant\n%s", when, engine, got, want)
			}
		}
	}
	same("version 1", "SELECT id, n, amount FROM ice.default.sales WHERE id = 1", before)

	migrate := func(want string, flags ...string) {
		t.Helper()
		out, code := s.cli("", append([]string{"table", "migrate-mapping", "sales"}, flags...)...)
		if code != 0 || !strings.Contains(out, want) {
			t.Fatalf("exit %d, want %q in\n%s", code, want, out)
		}
	}
	migrate("1 to 3: would be migrated", "--dry-run")
	alter("table.topic.mapping.protobuf.zero.as.null=true", "table.topic.on.incompatible=dlq")
	if out, code := s.cli("", "table", "migrate-mapping", "sales"); code != 1 || !strings.Contains(out, "table.topic.on.incompatible=new-column") {
		t.Errorf("a migration after which no record would fit: exit %d\n%s", code, out)
	}
	alter("table.topic.on.incompatible=new-column")
	migrate("amount__v2", "--dry-run") // nothing was done
	migrate("1 to 3;zero=null: migrated")
	if name := metadataLocation(t, s, "sales"); !controlLogNames(t, s, name) {
		t.Errorf("the control log does not name %s, which a sweep would not find", name)
	}
	migrate("3;zero=null to 3;zero=null: nothing to do")

	// The leader notices within a commit, or when it has had nothing to do for a while.
	for id := 2; ; id++ {
		var status struct {
			Columns []struct{ Name string }
		}
		if err := s.api("/api/tables/sales", &status); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(fmt.Sprint(status.Columns), "amount__v2") {
			break
		}
		if id == 100 {
			t.Fatalf("the columns are %v", status.Columns)
		}
		produce(schema, sale(id))
	}
	produce(schema, sale(1000))
	after := "id,n,amount,amount__v2\n1,0,\"{\"\"precision\"\":10,\"\"scale\"\":2,\"\"value\"\":\"\"04d2\"\"}\",NULL\n1000,NULL,NULL,12.34\n"
	same("version 3", "SELECT id, n, amount, amount__v2 FROM ice.default.sales WHERE id IN (1, 1000)", after)
}

// metadataLocation is that of a topic's table, as the catalog has it now.
func metadataLocation(t *testing.T, s *server, topic string) string {
	t.Helper()
	resp, err := http.Get(s.catalogURL() + "/v1/namespaces/default/tables/" + topic)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var table struct {
		Location string `json:"metadata-location"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&table); err != nil || table.Location == "" {
		t.Fatalf("%s: %v", resp.Status, err)
	}
	return table.Location
}

// controlLogNames reports whether a file is named in what the control log has by now.
func controlLogNames(t *testing.T, s *server, name string) bool {
	t.Helper()
	ends, err := s.admin().ListEndOffsets(context.Background(), control.TopicName)
	if err != nil {
		t.Fatal(err)
	}
	from, left := map[int32]kgo.Offset{}, int64(0)
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			from[o.Partition] = kgo.NewOffset().AtStart()
			left += o.Offset
		}
	})
	cl := s.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{control.TopicName: from}))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for left > 0 {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			t.Fatal(err)
		}
		for r := range fetches.RecordsAll() {
			if left--; bytes.Contains(r.Value, []byte(name)) {
				return true
			}
		}
	}
	return false
}
