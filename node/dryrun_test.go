package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/schemaregistry"
)

// dryRunCases are two versions of a subject each, and values that are written with them.
var dryRunCases = []struct {
	name, kind  string // AVRO if empty
	v1, v2      string
	one, two    any // of Avro; else bytes
	config      map[string]string
	outcome     schemaregistry.TableOutcome
	deadLetters int
}{
	{name: "same", v1: fields(`{"name":"a","type":"int"}`), v2: fields(`{"name":"a","type":"int","doc":"x"}`), outcome: schemaregistry.TableFits},
	{name: "added", v1: fields(`{"name":"a","type":"int"}`), v2: fields(`{"name":"a","type":"int"},{"name":"b","type":["null","string"],"default":null}`),
		two: map[string]any{"a": 1, "b": "x"}, outcome: schemaregistry.TableEvolves},
	{name: "added_inside", v1: fields(`{"name":"s","type":{"type":"record","name":"S","fields":[{"name":"x","type":"int"}]}}`),
		v2:  fields(`{"name":"s","type":{"type":"record","name":"S","fields":[{"name":"x","type":"long"},{"name":"l","type":{"type":"array","items":"double"},"default":[]}]}}`),
		one: map[string]any{"s": map[string]any{"x": 1}}, two: map[string]any{"s": map[string]any{"x": int64(1), "l": []float64{1}}}, outcome: schemaregistry.TableEvolves},
	{name: "widened", v1: fields(`{"name":"a","type":"int"}`), v2: fields(`{"name":"a","type":"long"}`), two: map[string]any{"a": int64(1)}, outcome: schemaregistry.TableEvolves},
	{name: "narrower", v1: fields(`{"name":"a","type":"long"}`), v2: fields(`{"name":"a","type":"int"}`), one: map[string]any{"a": int64(1)}, outcome: schemaregistry.TableFits},
	{name: "renamed", v1: fields(`{"name":"a","type":"int"}`), v2: fields(`{"name":"b","aliases":["a"],"type":"long"}`), two: map[string]any{"b": int64(1)}, outcome: schemaregistry.TableEvolves},
	{name: "dropped", v1: fields(`{"name":"a","type":"int"},{"name":"b","type":"int"}`), v2: fields(`{"name":"a","type":"int"}`),
		one: map[string]any{"a": 1, "b": 1}, outcome: schemaregistry.TableFits},
	{name: "refused", v1: fields(`{"name":"a","type":"int"}`), v2: fields(`{"name":"a","type":"string"}`), two: map[string]any{"a": "x"}, outcome: schemaregistry.TableRefuses, deadLetters: 1},
	{name: "new_column", v1: fields(`{"name":"a","type":"int"}`), v2: fields(`{"name":"a","type":"string"}`), two: map[string]any{"a": "x"},
		config: map[string]string{"table.topic.on.incompatible": "new-column"}, outcome: schemaregistry.TableEvolves},
	{name: "by_case", v1: fields(`{"name":"a","type":"int"}`), v2: fields(`{"name":"A","type":"int"},{"name":"a","type":"int"}`), two: map[string]any{"A": 1, "a": 1}, outcome: schemaregistry.TableRefuses, deadLetters: 1},
	{name: "protobuf_renamed", kind: "PROTOBUF", v1: `syntax = "proto3"; message M { string a = 1; }`, v2: `syntax = "proto3"; message M { string b = 1; int64 c = 2; }`,
		one: []byte("\x00\x0a\x01x"), two: []byte("\x00\x0a\x01x\x10\x01"), outcome: schemaregistry.TableEvolves},
	{name: "protobuf_refused", kind: "PROTOBUF", v1: `syntax = "proto3"; message M { string a = 1; }`, v2: `syntax = "proto3"; message M { int32 a = 1; }`,
		one: []byte("\x00\x0a\x01x"), two: []byte("\x00\x08\x01"), outcome: schemaregistry.TableRefuses, deadLetters: 1},
	{name: "json_added", kind: "JSON", v1: `{"type":"object","properties":{"a":{"type":"integer"}}}`, v2: `{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"array","items":{"type":"string"}}}}`,
		one: []byte(`{"a":1}`), two: []byte(`{"a":1,"b":["x"]}`), outcome: schemaregistry.TableEvolves},
}

func fields(all string) string { return `{"type":"record","name":"R","fields":[` + all + `]}` }

// What a dry run says of the next version is what becomes of the table once a record comes that is
// written with it.
func TestDryRunForetellsTheTable(t *testing.T) {
	t.Parallel()
	c := &cluster{t: t, data: t.TempDir(), objects: t.TempDir()}
	c.metadata = "sqlite:" + c.data + "/metadata.db"
	n := c.open(1)
	if status, _, text := call(t, n, "PUT", "/config", map[string]string{"compatibility": "NONE"}); status != 200 {
		t.Fatal(text)
	}
	before := map[string][]string{}
	foretold := make([]schemaregistry.TableChange, len(dryRunCases))
	for _, test := range dryRunCases {
		on, lag := "true", "50"
		config := map[string]*string{"table.topic.enable": &on, "table.topic.target.lag.ms": &lag}
		for k, v := range test.config {
			config[k] = &v
		}
		if _, err := kadm.NewClient(c.client(n)).CreateTopic(t.Context(), 1, 1, config, test.name); err != nil {
			t.Fatal(err)
		}
		first := dryRunTable(t, n, test.name, test.kind, test.v1)
		if first.Outcome != schemaregistry.TableCreates {
			t.Errorf("%s: before there is a table: %+v", test.name, first)
		}
		c.writeVersion(n, test.name, test.kind, test.v1, orOne(test.one))
		until(t, test.name+" has a table", func() string { return waiting(n, test.name, 1, 0) })
		if before[test.name] = columnList(t, n, test.name); !slices.Equal(apply(nil, first.Columns), outermost(t, n, test.name)) {
			t.Errorf("%s: foretold %v, the table has %v", test.name, first.Columns, before[test.name])
		}
	}
	for i, test := range dryRunCases {
		foretold[i] = dryRunTable(t, n, test.name, test.kind, test.v2)
		two := test.two
		if two == nil {
			two = orOne(nil)
		}
		c.writeVersion(n, test.name, test.kind, test.v2, two)
	}
	for i, test := range dryRunCases {
		until(t, test.name+" has the second record", func() string { return waiting(n, test.name, 2-test.deadLetters, test.deadLetters) })
		if foretold[i].Outcome != test.outcome {
			t.Errorf("%s: outcome %s, want %s: %s", test.name, foretold[i].Outcome, test.outcome, foretold[i].Reason)
		}
		want, got := apply(before[test.name], foretold[i].Columns), columnList(t, n, test.name)
		if !slices.Equal(got, want) {
			t.Errorf("%s: foretold %v, which makes\n%v\nof\n%v\nthe table has\n%v", test.name, foretold[i].Columns, want, before[test.name], got)
		}
		if changed := !slices.Equal(got, before[test.name]); changed != (test.outcome == schemaregistry.TableEvolves) {
			t.Errorf("%s: %s, and changed is %t", test.name, test.outcome, changed)
		}
	}
}

func orOne(v any) any {
	if v == nil {
		return map[string]any{"a": 1}
	}
	return v
}

// writeVersion registers a schema, and writes a record with it.
func (c *cluster) writeVersion(n *Node, topic, kind, schema string, value any) {
	c.t.Helper()
	status, _, text := call(c.t, n, "POST", "/subjects/"+topic+"-value/versions", map[string]string{"schema": schema, "schemaType": kind})
	var answer struct{ ID byte }
	if err := json.Unmarshal([]byte(text), &answer); err != nil || status != 200 {
		c.t.Fatalf("%s: %d %s", topic, status, text)
	}
	payload, raw := value.([]byte)
	if !raw {
		parsed, err := avro.ParseWithCache(schema, "", &avro.SchemaCache{})
		if err == nil {
			payload, err = avro.Marshal(parsed, value)
		}
		if err != nil {
			c.t.Fatalf("%s: %v", topic, err)
		}
	}
	record := &kgo.Record{Topic: topic, Value: append([]byte{0, 0, 0, 0, answer.ID}, payload...)}
	if err := c.client(n).ProduceSync(c.t.Context(), record).FirstErr(); err != nil {
		c.t.Fatal(err)
	}
}

// dryRunTable asks what a schema does to the one table of a subject.
func dryRunTable(t *testing.T, n *Node, topic, kind, schema string) schemaregistry.TableChange {
	t.Helper()
	status, _, text := call(t, n, "POST", "/subjects/"+topic+"-value/versions?dryRun=table", map[string]string{"schema": schema, "schemaType": kind})
	var answer struct {
		Compatible bool `json:"is_compatible"`
		Tables     []schemaregistry.TableChange
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil || status != 200 || !answer.Compatible || len(answer.Tables) != 1 {
		t.Fatalf("%s: %d %s", topic, status, text)
	}
	return answer.Tables[0]
}

func call(t *testing.T, n *Node, method, path string, body any) (status int, h http.Header, text string) {
	t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+n.HTTPAddr()+path, strings.NewReader(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(out)
}

// waiting says what is missing until a table has so many rows and dead letters.
func waiting(n *Node, topic string, rows, deadLetters int) string {
	route, err := n.tableOf(topic)
	if err != nil {
		return err.Error()
	}
	_, tbl, err := n.load(context.Background(), route)
	if err != nil {
		return err.Error()
	}
	at, _, err := coordinator.ReadPosition(tbl.Properties())
	if err != nil {
		return err.Error()
	}
	if got := at.Next[0]; got != int64(rows+deadLetters) {
		return fmt.Sprintf("%d records are passed", got)
	}
	return ""
}

// columnList are the columns of a table without the Kafka column, inner ones too, as lines.
func columnList(t *testing.T, n *Node, topic string) (lines []string) {
	t.Helper()
	var walk func(path string, typ iceberg.Type, required bool)
	walk = func(path string, typ iceberg.Type, required bool) {
		switch c := typ.(type) {
		case *iceberg.StructType:
			lines = append(lines, fmt.Sprintf("%s struct %t", path, required))
			for _, f := range c.FieldList {
				walk(path+"."+f.Name, f.Type, f.Required)
			}
		case *iceberg.ListType:
			lines = append(lines, fmt.Sprintf("%s list %t", path, required))
			walk(path+".element", c.Element, c.ElementRequired)
		default:
			lines = append(lines, fmt.Sprintf("%s %s %t", path, typ, required))
		}
	}
	for _, f := range tableFields(t, n, topic) {
		walk(f.Name, f.Type, f.Required)
	}
	slices.Sort(lines)
	return lines
}

// outermost are the columns on top level, with all of their type.
func outermost(t *testing.T, n *Node, topic string) (lines []string) {
	for _, f := range tableFields(t, n, topic) {
		lines = append(lines, f.Name+" "+typeName(f.Type)+" false")
	}
	slices.Sort(lines)
	return lines
}

func tableFields(t *testing.T, n *Node, topic string) []iceberg.NestedField {
	t.Helper()
	route, err := n.tableOf(topic)
	if err != nil {
		t.Fatal(err)
	}
	_, tbl, err := n.load(t.Context(), route)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(slices.Clone(tbl.Schema().Fields()), func(f iceberg.NestedField) bool { return f.Name == route.Table.KafkaColumn })
}

// apply makes the changes to lines of columns.
func apply(lines []string, changes []schemaregistry.ColumnChange) []string {
	columns := map[string]string{}
	for _, l := range lines {
		path, rest, _ := strings.Cut(l, " ")
		columns[path] = rest
	}
	for _, c := range changes {
		switch at := c.Column; c.Change {
		case "added":
			if element, is := strings.CutPrefix(c.Type, "list<"); is && lines != nil { // the one nested type that the cases add to a table
				columns[at], columns[at+".element"] = "list false", strings.TrimSuffix(element, ">")+" false"
			} else if at != "_kafka" {
				columns[at] = c.Type + " false"
			}
		case "widened":
			columns[at] = strings.Replace(columns[at], c.From, c.Type, 1)
		case "renamed":
			columns[at] = columns[c.From]
			delete(columns, c.From)
		case "optional":
			columns[at] = strings.Replace(columns[at], "true", "false", 1)
		}
	}
	var out []string
	for _, path := range slices.Sorted(maps.Keys(columns)) {
		out = append(out, path+" "+columns[path])
	}
	return out
}

// A topic that enforces its table refuses the version that the table cannot hold, with the text of
// the dry run; one that warns says so in a header and takes it. Imports are not compared.
func TestTopicsDemandSchemasThatFit(t *testing.T) {
	t.Parallel()
	c := &cluster{t: t, data: t.TempDir(), objects: t.TempDir()}
	c.metadata = "sqlite:" + c.data + "/metadata.db"
	n := c.open(1)
	call(t, n, "PUT", "/config", map[string]string{"compatibility": "NONE"})
	number, text := fields(`{"name":"a","type":"int"}`), fields(`{"name":"a","type":"string"}`)
	for _, check := range []string{"off", "warn", "enforce"} {
		on, lag := "true", "50"
		if _, err := kadm.NewClient(c.client(n)).CreateTopic(t.Context(), 1, 1, map[string]*string{"table.topic.enable": &on, "table.topic.target.lag.ms": &lag, "table.topic.schema.check": &check}, check); err != nil {
			t.Fatal(err)
		}
		c.writeVersion(n, check, "", number, map[string]any{"a": 1})
		until(t, check+" has a table", func() string { return waiting(n, check, 1, 0) })
		said := dryRunTable(t, n, check, "", text).String()
		if !strings.Contains(said, "column a is int, the writer has string") {
			t.Errorf("%s: %s", check, said)
		}
		status, header, answer := call(t, n, "POST", "/subjects/"+check+"-value/versions", map[string]string{"schema": text})
		warning := header.Get("Tabletopic-Table-Warning")
		switch check {
		case "off":
			if status != 200 || warning != "" {
				t.Errorf("off: %d, warning %q", status, warning)
			}
		case "warn":
			if status != 200 || warning != said {
				t.Errorf("warn: %d, warning %q, want %q", status, warning, said)
			}
		case "enforce":
			if status != 409 || !strings.Contains(answer, said) {
				t.Errorf("enforce: %d %s, want %q", status, answer, said)
			}
			if _, _, versions := call(t, n, "GET", "/subjects/enforce-value/versions", nil); strings.TrimSpace(versions) != "[1]" {
				t.Errorf("versions %s", versions)
			}
		}
	}
}

// In a topic with tables for types of records a schema is tried on the table of its type; on none if the type
// has none.
func TestDryRunOfATypeIsOfItsTable(t *testing.T) {
	t.Parallel()
	c := &cluster{t: t, data: t.TempDir(), objects: t.TempDir()}
	c.metadata = "sqlite:" + c.data + "/metadata.db"
	n := c.open(1)
	for topic, others := range map[string]string{"one": "dlq", "two": "table"} {
		on, types := "true", "R:"+topic+"_rs"
		config := map[string]*string{"table.topic.enable": &on, "table.topic.fan.out": &types, "table.topic.fan.out.others": &others}
		if _, err := kadm.NewClient(c.client(n)).CreateTopic(t.Context(), 1, 1, config, topic); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct{ topic, record, want string }{
		{"one", "R", "one:R default.one_rs creates"},
		{"one", "S", ""},
		{"two", "R", "two:R default.two_rs creates"},
		{"two", "S", "two default.two creates"},
	} {
		schema := strings.Replace(fields(`{"name":"a","type":"int"}`), `"R"`, `"`+test.record+`"`, 1)
		_, _, text := call(t, n, "POST", "/subjects/"+test.topic+"-value/versions?dryRun=table", map[string]string{"schema": schema})
		var answer struct{ Tables []schemaregistry.TableChange }
		if err := json.Unmarshal([]byte(text), &answer); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		got := ""
		for _, c := range answer.Tables {
			got += strings.Join([]string{c.Topic, c.Table, string(c.Outcome)}, " ")
		}
		if got != test.want {
			t.Errorf("type %s of topic %s is tried on %q, want %q: %s", test.record, test.topic, got, test.want, text)
		}
	}
}
