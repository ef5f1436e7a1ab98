package partition

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/record"
)

// The defaults are Kafka's, and every key has one that is valid, a type and a text.
func TestTopicConfigDefaults(t *testing.T) {
	c, err := ParseTopicConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.RetentionMillis != 7*24*3600*1000 || c.RetentionBytes != -1 || c.MaxMessageBytes != 1048588 || !c.Delete || c.Compact || c.Recompress ||
		c.LogAppendTime || c.TimestampAfter != 3600_000 {
		t.Errorf("Kafka's defaults differ: %+v", c)
	}
	if w := c.Table; w.Enable || w.TargetLag != 10*time.Second || w.TargetFileBytes != 64<<20 || w.KafkaColumn != "_kafka" || w.OnRewind != "pause" ||
		w.HoldMax != 7*24*time.Hour || !w.ExpireSnapshots {
		t.Errorf("table defaults: %+v", w)
	}
	for _, k := range TopicConfigKeys() {
		if k.Doc == "" || k.Type == "" {
			t.Errorf("%s has no type or no text", k.Name)
		}
		if _, err := ParseTopicConfig(map[string]string{k.Name: k.Default}); err != nil {
			t.Error(err)
		}
	}
}

func TestTopicConfigValues(t *testing.T) {
	c, err := ParseTopicConfig(map[string]string{
		"cleanup.policy": "compact, delete", "compression.type": "lz4", "message.timestamp.type": "LogAppendTime",
		"automq.table.topic.enable": "true", "automq.table.topic.commit.interval.ms": "1000", "table.topic.namespace": "a.b",
		"table.topic.hold.max": "-1",
	})
	if err != nil {
		t.Fatal(err)
	}
	if !c.Compact || !c.Delete || !c.Recompress || c.Codec != record.CodecLZ4 || !c.LogAppendTime || !c.Table.Enable ||
		c.Table.TargetLag != time.Second || c.Table.Namespace != "a.b" || c.Table.HoldMax >= 0 {
		t.Errorf("parsed %+v", c)
	}
}

// What cannot work is refused with a text that says what to do.
func TestTopicConfigRefuses(t *testing.T) {
	for kv, hint := range map[string]string{
		"retention.mss=1":                   `"retention.ms"`,
		"automq.table.topic.enabel=true":    `"table.topic.enable"`,
		"retention.ms=week":                 "integer",
		"retention.ms=-2":                   "from -1",
		"max.message.bytes=99999999999":     "integer",
		"cleanup.policy=shred":              "delete, compact",
		"compression.type=brotli":           "producer",
		"message.timestamp.type=Never":      "CreateTime",
		"min.cleanable.dirty.ratio=2":       "0 to 1",
		"table.topic.enable=yes":            "true or false",
		"table.topic.upsert.enable=true":    "not",
		"table.topic.on.rewind=explode":     "pause, replay",
		"table.topic.dlq=a/b":               "ASCII",
		"table.topic.name=a\nb":             "catalog",
		"table.topic.convert.key.type=cbor": "bytes",
	} {
		k, v, _ := strings.Cut(kv, "=")
		_, err := ParseTopicConfig(map[string]string{k: v})
		if !errors.Is(err, ErrInvalidConfig) || !strings.Contains(err.Error(), hint) {
			t.Errorf("%s: %v, want ErrInvalidConfig with %s", kv, err, hint)
		}
	}
	_, err := ParseTopicConfig(map[string]string{"automq.table.topic.enable": "true", "table.topic.enable": "false"})
	if !errors.Is(err, ErrInvalidConfig) {
		t.Errorf("a key set twice by an alias: %v", err)
	}
}

// What each value alone allows and Kafka refuses is refused when it is set, and where one is set of the whole that
// results; a topic that has it from before works on.
func TestSettingsThatDoNotGoTogetherAreRefusedWhenTheyAreSet(t *testing.T) {
	n := newCluster(t).start()
	create := func(topic string, config map[string]string) error {
		_, err := n.CreateTopic(t.Context(), metadata.NewTopic{Name: topic, Partitions: 1, Config: config})
		return err
	}
	for name, config := range map[string]map[string]string{
		"lags":     {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"},
		"gzip":     {"compression.gzip.level": "0"},
		"leader":   {"leader.replication.throttled.replicas": "all"},
		"follower": {"follower.replication.throttled.replicas": "0:1,1"},
	} {
		if err := create(name, config); !errors.Is(err, ErrInvalidConfig) {
			t.Errorf("%v: %v, want ErrInvalidConfig", config, err)
		}
		if _, err := ParseTopicConfig(config); err != nil {
			t.Errorf("%v of a topic that is there: %v", config, err)
		}
	}
	fits := map[string]string{"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "10", "compression.gzip.level": "-1",
		"leader.replication.throttled.replicas": "*", "follower.replication.throttled.replicas": "0:1, 1:1"}
	if err := create("fits", fits); err != nil {
		t.Fatal(err)
	}
	if _, err := n.AlterConfig(t.Context(), "fits", map[string]string{"max.compaction.lag.ms": "9"}, nil); !errors.Is(err, ErrInvalidConfig) {
		t.Errorf("a lag below the other that is set already: %v, want ErrInvalidConfig", err)
	}
	if _, err := n.AlterConfig(t.Context(), "fits", nil, []string{"max.compaction.lag.ms"}); err != nil {
		t.Error(err)
	}
}

func TestCheckTopicName(t *testing.T) {
	for _, name := range []string{"a", "A.b_c-9", "...", strings.Repeat("x", 249)} {
		if err := CheckTopicName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", ".", "..", "../x", "a b", "a\x00", "ä", strings.Repeat("x", 250)} {
		if err := CheckTopicName(name); !errors.Is(err, ErrInvalidTopicName) {
			t.Errorf("%q: %v, want ErrInvalidTopicName", name, err)
		}
	}
}

func FuzzParseTopicConfig(f *testing.F) {
	for _, k := range configKeys {
		f.Add(k.Name, k.Default)
	}
	f.Fuzz(func(t *testing.T, key, value string) {
		if _, err := ParseTopicConfig(map[string]string{key: value}); err != nil && !errors.Is(err, ErrInvalidConfig) {
			t.Fatal(err)
		}
	})
}

// A table with a short lag keeps its snapshots for less long: their number is what commits
// pay for.
func TestSnapshotsExpireByLagUnlessToldOtherwise(t *testing.T) {
	for _, c := range []struct {
		raw  map[string]string
		want time.Duration
	}{
		{nil, time.Hour},
		{map[string]string{"table.topic.target.lag.ms": "2000"}, 12 * time.Minute},
		{map[string]string{"table.topic.target.lag.ms": "100"}, 5 * time.Minute},
		{map[string]string{"table.topic.target.lag.ms": "3600000"}, 24 * time.Hour},
		{map[string]string{"table.topic.target.lag.ms": "100", "automq.table.topic.expire.snapshot.older.than.hours": "48"}, 48 * time.Hour},
	} {
		cfg, err := ParseTopicConfig(c.raw)
		if err != nil || cfg.Table.ExpireAfter != c.want {
			t.Errorf("%v: %s, %v, want %s", c.raw, cfg.Table.ExpireAfter, err, c.want)
		}
	}
}

// docs/tables.md has each setting of tables that can be set, once, with its default.
func TestTableSettingsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/tables.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(table\\.topic[a-z0-9.]+)` \\| `?([^|`]*?)`? ?\\|").FindAllStringSubmatch(string(text), -1) {
		if _, twice := documented[m[1]]; twice {
			t.Errorf("%s is there twice", m[1])
		}
		documented[m[1]] = m[2]
	}
	for _, k := range TopicConfigKeys() {
		def, ok := documented[k.Name]
		delete(documented, k.Name)
		if _, err := ParseTopicConfig(map[string]string{k.Name: "x"}); !strings.HasPrefix(k.Name, "table.topic.") || err != nil && strings.Contains(err.Error(), notYet) {
			continue
		}
		if !ok || def != k.Default {
			t.Errorf("%s: documented %t with default %q, it is %q", k.Name, ok, def, k.Default)
		}
	}
	for name := range documented {
		t.Errorf("%s is documented, and no setting", name)
	}
}

// kafkaTopicConfigs are the settings of topics that Kafka 4.4 has (LogConfig.configNames, without its internal one).
const kafkaTopicConfigs = "cleanup.policy compression.gzip.level compression.lz4.level compression.type compression.zstd.level delete.retention.ms " +
	"errors.deadletterqueue.group.enable file.delete.delay.ms flush.messages flush.ms follower.replication.throttled.replicas index.interval.bytes " +
	"leader.replication.throttled.replicas local.retention.bytes local.retention.ms max.compaction.lag.ms max.decompressed.message.bytes max.message.bytes " +
	"message.timestamp.after.max.ms message.timestamp.before.max.ms message.timestamp.type min.cleanable.dirty.ratio min.compaction.lag.ms " +
	"min.insync.replicas preallocate remote.copy.lag.bytes remote.copy.lag.ms remote.log.copy.disable remote.log.delete.on.disable remote.storage.enable " +
	"retention.bytes retention.ms segment.bytes segment.index.bytes segment.jitter.ms segment.ms unclean.leader.election.enable"

// Kafka's settings are all known, and docs/kafka.md names those without effect, and no others.
func TestEveryTopicConfigOfKafkaIsKnown(t *testing.T) {
	for _, name := range strings.Fields(kafkaTopicConfigs) {
		if i, ok := configIndex[name]; !ok || configKeys[i].Name != name {
			t.Errorf("%s is not known", name)
		}
	}
	text, err := os.ReadFile("../docs/kafka.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| setting of a topic | why |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	documented := map[string]bool{}
	for row := range strings.Lines(table) {
		names, _, _ := strings.Cut(strings.TrimPrefix(row, "|"), "|")
		for _, m := range regexp.MustCompile("`([a-z0-9.]+)`").FindAllStringSubmatch(names, -1) {
			documented[m[1]] = true
		}
	}
	for _, k := range configKeys {
		if inert := strings.HasPrefix(k.Doc, "Stored without effect"); inert != documented[k.Name] {
			t.Errorf("%s: without effect %t, documented as such %t", k.Name, inert, documented[k.Name])
		}
		delete(documented, k.Name)
	}
	for name := range documented {
		t.Errorf("%s is documented, and no setting", name)
	}
}
