package partition

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tabletopic/tabletopic/metadata"
)

func TestParseTopicDefaults(t *testing.T) {
	got, err := ParseTopicDefaults(" table.topic.enable = true; automq.table.topic.commit.interval.ms=1000 ;")
	if d := cmp.Diff(map[string]string{"table.topic.enable": "true", "table.topic.target.lag.ms": "1000"}, got); d != "" || err != nil {
		t.Errorf("%v %s", err, d)
	}
	for text, hint := range map[string]string{
		"table.topic.enable":                            "KEY=VALUE",
		"table.topic.enabel=true":                       "table.topic.enable",
		"table.topic.enable=yes":                        "true or false",
		"retention.ms=1":                                "table.topic.",
		"table.topic.enable=true;table.topic.enable=no": "twice",
	} {
		if _, err := ParseTopicDefaults(text); !errors.Is(err, ErrInvalidConfig) || !strings.Contains(err.Error(), hint) {
			t.Errorf("%q: %v, want ErrInvalidConfig with %s", text, err, hint)
		}
	}
}

// Topics have the defaults of the cluster where they set nothing, also by an alias; internal topics
// and those of dead letters do not. What does not work with them is refused.
func TestTopicsHaveDefaults(t *testing.T) {
	c := newCluster(t)
	var err error
	if c.cfg.Defaults, err = ParseTopicDefaults("table.topic.enable=true;table.topic.target.lag.ms=1000;table.topic.kafka.column=k"); err != nil {
		t.Fatal(err)
	}
	c.cfg.CheckTable = func(topic string, cfg TableConfig) error {
		if topic == "b" && cfg.Enable {
			return fmt.Errorf("its table is that of another topic")
		}
		return nil
	}
	n := c.start()
	table := func(name string, config map[string]string) TableConfig {
		t.Helper()
		topic, err := n.CreateTopic(t.Context(), metadata.NewTopic{Name: name, Partitions: 1, Config: config})
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(len(config), len(topic.Config)); d != "" {
			t.Errorf("%s: defaults were written down: %v", name, topic.Config)
		}
		cfg, err := n.TopicConfig(topic)
		if err != nil {
			t.Fatal(err)
		}
		return cfg.Table
	}
	if got := table("a", nil); !got.Enable || got.TargetLag.Milliseconds() != 1000 {
		t.Errorf("%+v", got)
	}
	if got := table("c", map[string]string{"automq.table.topic.commit.interval.ms": "5000"}); !got.Enable || got.TargetLag.Milliseconds() != 5000 {
		t.Errorf("%+v", got)
	}
	if got := table("a.dlq", nil); got.Enable {
		t.Error("the dead letters are a table")
	}
	if topic, err := n.EnsureInternal(t.Context(), metadata.NewTopic{Name: "__internal", Partitions: 1}); err != nil || n.Defaults(topic.Name) != nil {
		t.Errorf("internal topic: %v", err)
	}
	if _, err := n.CreateTopic(t.Context(), metadata.NewTopic{Name: "b", Partitions: 1}); !errors.Is(err, ErrInvalidConfig) {
		t.Errorf("a topic whose table is another's: %v", err)
	}
	if _, err := n.CreateTopic(t.Context(), metadata.NewTopic{Name: "d", Partitions: 1, Config: map[string]string{"table.topic.key.format": "string", "table.topic.key.column": "k"}}); !errors.Is(err, ErrInvalidConfig) {
		t.Errorf("a setting that does not go with a default: %v", err)
	}
}
