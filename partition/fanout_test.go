package partition

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/metadata"
)

// A list of types names a table for each; patterns of tables may have colons and commas in braces.
func TestFanOutIsParsed(t *testing.T) {
	got, err := ParseFanOut(` com.example.Order : orders, a title: with a colon:sales.{topic:^(.{1,3}):}_x `)
	want := []RecordTable{{"com.example.Order", "orders"}, {"a title: with a colon", "sales.{topic:^(.{1,3}):}_x"}}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	if got, err := ParseFanOut(" "); err != nil || got != nil {
		t.Errorf("nothing is %v, %v", got, err)
	}
}

// What cannot work is refused with a text that says what to do.
func TestFanOutRefuses(t *testing.T) {
	var many []string
	for i := range MaxFanOut + 1 {
		many = append(many, fmt.Sprintf("R%d:t%d", i, i))
	}
	for _, c := range []struct {
		hint string
		kv   []string
	}{
		{"want RECORD:TABLE", []string{"com.example.Order"}},
		{"want RECORD:TABLE", []string{":orders"}},
		{"want RECORD:TABLE", []string{"A:a,"}},
		{"A is there twice", []string{"A:a,A:b"}},
		{"table a is there twice", []string{"A:a,B:a"}},
		{"name each type", []string{"*:a"}},
		{"more than 32", []string{strings.Join(many, ",")}},
		{"255", []string{strings.Repeat("r", 256) + ":a"}},
		{"catalog", []string{"A:a/b"}},
		{`"dlq" or "table"`, []string{"A:a", "table.topic.fan.out.others", "drop"}},
		{"table.topic.value.format=json name none", []string{"A:a", "table.topic.value.format", "json"}},
		{"table.topic.value.format=latest name none", []string{"A:a", "table.topic.value.format", "latest"}},
		{"table.topic.kafka.column", []string{"A:a", "table.topic.kafka.column", ""}},
		{"table.topic.on.drop", []string{"A:a", "table.topic.on.drop", "pause"}},
	} {
		raw := map[string]string{"table.topic.fan.out": c.kv[0]}
		for i := 1; i+1 < len(c.kv); i += 2 {
			raw[c.kv[i]] = c.kv[i+1]
		}
		if _, err := ParseTopicConfig(raw); !errors.Is(err, ErrInvalidConfig) || !strings.Contains(err.Error(), c.hint) {
			t.Errorf("%.80v: %v, want ErrInvalidConfig with %s", raw, err, c.hint)
		}
	}
}

// A topic has its own table and one for each type. A type that is taken away and comes back has the id that it
// had, and another topic's another one.
func TestRoutesOfATopic(t *testing.T) {
	cfg, err := ParseTopicConfig(map[string]string{"table.topic.fan.out": "A:a,B:n.b", "table.topic.partition.by": "id"})
	if err != nil {
		t.Fatal(err)
	}
	topic := metadata.Topic{ID: uuid.New(), Name: "events"}
	var names []string
	for _, r := range Routes(topic, cfg) {
		names = append(names, strings.Join([]string{r.Name, r.Table.Record, r.Table.Name, r.Table.Takes(), r.Table.PartitionBy}, " "))
	}
	if got, want := strings.Join(names, ", "), "events   *,A,B , events:A A a A [id], events:B B n.b B [id]"; got != want {
		t.Errorf("routes %q, want %q", got, want)
	}
	own, a := Routes(topic, cfg)[0], Routes(topic, cfg)[1]
	if own.ID != topic.ID || a.ID == own.ID || a.ID != RouteID(topic.ID, "A") || a.ID == RouteID(uuid.New(), "A") || a.ID == RouteID(topic.ID, "B") {
		t.Errorf("ids %s and %s of topic %s", own.ID, a.ID, topic.ID)
	}
	if topic, record := SplitRoute(a.Name); topic != "events" || record != "A" {
		t.Errorf("%s is of %q and %q", a.Name, topic, record)
	}
	one, err := ParseTopicConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	if all := Routes(topic, one); len(all) != 1 || all[0].Table != one.Table || all[0].Table.Takes() != "" {
		t.Errorf("a topic with one table has routes %+v", all)
	}
}

// Retention waits for the table that is furthest behind, for one that has not begun, and not for one that is
// gone.
func TestRetentionWaitsForEveryTable(t *testing.T) {
	n := newCluster(t).start()
	p := n.create(t, "t", 1, map[string]string{"retention.ms": "0", "table.topic.enable": "true", "table.topic.fan.out": "A:a"})
	for _, v := range []string{"a", "b", "c"} {
		mustAppend(t, p, produced{values: []string{v}})
	}
	now := time.Now()
	retained := func(what string, want int64) {
		t.Helper()
		now = now.Add(time.Hour)
		if err := p.retain(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		if got := p.Offsets().LogStart; got != want {
			t.Errorf("%s: the log begins at %d, want %d", what, got, want)
		}
	}
	own, a := uuid.New(), uuid.New()
	retained("no table has begun", 0)
	p.Hold(own, 3)
	retained("one has not begun", 0)
	p.Hold(a, 1)
	retained("one is behind", 1)
	p.Hold(a, 2)
	retained("it goes on", 2)
	if _, err := n.AlterConfig(t.Context(), "t", map[string]string{"table.topic.fan.out": ""}, nil); err != nil {
		t.Fatal(err)
	}
	p.Release(a)
	retained("it is gone", 3)
}
