package partition

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/record"
)

func TestParseStart(t *testing.T) {
	for v, want := range map[string]Start{
		"earliest":                  {Time: -1},
		"latest":                    {Time: -1, Latest: true},
		"1767225600000":             {Time: 1767225600000},
		"2026-01-01":                {Time: 1767225600000},
		"2026-01-01T01:00:00+01:00": {Time: 1767225600000},
		"2026-01-01T00:00:00.5":     {Time: 1767225600500},
		"0:5, 12:0":                 {Time: -1, Offsets: map[int32]int64{0: 5, 12: 0}},
	} {
		got, err := ParseStart(v)
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("%s: %v %s", v, err, d)
		}
	}
	for _, v := range []string{"", "soon", "-1", "0:-1", "-1:0", "0:1,0:2", "0", "1:", "0:1,", "1969-12-31", "99999999999:1"} {
		if _, err := ParseTopicConfig(map[string]string{"table.topic.start": v}); v != "0" && !errors.Is(err, ErrInvalidConfig) {
			t.Errorf("%q: %v, want ErrInvalidConfig", v, err)
		}
	}
}

// What latest means is written into the setting when the table is switched on, so that it does not
// change with a restart; a new topic has nothing to leave out.
func TestLatestStartIsWrittenDown(t *testing.T) {
	c := newCluster(t)
	n := c.start()
	start := func() string { topic, _ := n.Topic("a"); return topic.Config["table.topic.start"] }
	if _, err := n.CreateTopic(t.Context(), metadata.NewTopic{Name: "a", Partitions: 3, Config: map[string]string{"table.topic.start": "latest"}}); err != nil {
		t.Fatal(err)
	}
	for i, count := range []int{2, 0, 1} {
		for range count {
			if _, err := n.partition(t, "a", int32(i)).AppendRecords(t.Context(), []record.Record{{Value: []byte("x")}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if start() != "latest" {
		t.Errorf("start is %q while there is no table", start())
	}
	alter := func(config map[string]string) {
		t.Helper()
		if _, err := n.AlterConfig(t.Context(), "a", config, nil); err != nil {
			t.Fatal(err)
		}
	}
	alter(map[string]string{"table.topic.enable": "true"})
	if start() != "0:2,2:1" {
		t.Errorf("start is %q, want the ends of the partitions", start())
	}
	if _, err := n.partition(t, "a", 0).AppendRecords(t.Context(), []record.Record{{Value: []byte("y")}}); err != nil {
		t.Fatal(err)
	}
	alter(map[string]string{"table.topic.target.lag.ms": "1000"})
	if start() != "0:2,2:1" {
		t.Errorf("start is %q after another change", start())
	}
	topic, err := n.CreateTopic(t.Context(), metadata.NewTopic{Name: "b", Partitions: 1, Config: map[string]string{"table.topic.start": "latest", "table.topic.enable": "true"}})
	if err != nil || topic.Config["table.topic.start"] != "earliest" {
		t.Errorf("a new topic: %v, %v", topic.Config, err)
	}
}

// Starts are offsets of a partition: those that are set, or that of a time.
func TestStartOffset(t *testing.T) {
	c := newCluster(t)
	n := c.start()
	p := n.create(t, "a", 1, nil)
	for i := range int64(4) {
		if _, err := p.AppendRecords(t.Context(), []record.Record{{Timestamp: 1000 + 10*i, Value: []byte("x")}}); err != nil {
			t.Fatal(err)
		}
	}
	for v, want := range map[string]int64{"earliest": 0, "0:3": 3, "0:9": 9, "1:3": 0, "1000": 0, "1001": 1, "1030": 3, "1031": 4} {
		s, err := ParseStart(v)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.Offset(t.Context(), p); got != want || err != nil {
			t.Errorf("%s: offset %d, %v; want %d", v, got, err, want)
		}
	}
}
