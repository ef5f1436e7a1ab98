package partition

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/tabletopic/tabletopic/parquetio"
	"github.com/tabletopic/tabletopic/record"
)

// TopicConfig is the configuration of a topic, defaults filled in.
type TopicConfig struct {
	RetentionMillis int64 // how long records are kept; −1 is for ever
	RetentionBytes  int64 // how much of each partition is kept; −1 is all
	Delete          bool  // cleanup.policy has delete: retention applies
	Compact         bool  // cleanup.policy has compact: every record needs a key
	MaxMessageBytes int   // largest record batch
	// MaxDecompressedMessageBytes is the largest record of a compressed batch: what follows its length.
	MaxDecompressedMessageBytes int

	// Of compaction, in ms: how long tombstones are kept, and from and until which age a record is
	// compacted; math.MaxInt64 is without end. MinDirtyRatio is which part of the log must not have been cleaned for the
	// cleaner to begin.
	DeleteRetention  int64
	MinCompactionLag int64
	MaxCompactionLag int64
	MinDirtyRatio    float64

	LogAppendTime bool // records get the time of their append

	// TimestampBefore and TimestampAfter bound how far, in ms, a producer's time may lie
	// from the broker's.
	TimestampBefore int64
	TimestampAfter  int64

	// Recompress says that batches of another codec than Codec are compressed anew.
	Recompress bool
	Codec      record.Codec

	// The subjects of the schemas with which values and keys are written.
	ValueSubject, KeySubject SubjectStrategy
	// What is validated of values and keys before they are appended.
	ValidateValue, ValidateKey Validation

	Table TableConfig
}

// TableConfig says which table a topic becomes, and how.
type TableConfig struct {
	Enable          bool
	Catalog         string        // name of a registered catalog; "" is the built-in one
	Namespace       string        // levels separated by dots
	Name            string        // "" is derived from the topic's
	TargetLag       time.Duration // records are in the table after this time at the latest
	StuckLags       int           // a table without a commit for so many lags, while records wait, is stuck
	TargetFileBytes int64         // data files are closed at this size
	DLQ             string        // topic of the dead letters; "" is "<topic>.dlq"
	LetterTable     bool          // "<topic>.dlq" is a table, too
	KafkaColumn     string        // struct column of partition, offset, …; "" is none
	PartitionBy     string        // for ParsePartitionBy; "" leaves the table's partitions as they are
	SortBy          string        // for ParseSortBy; "" leaves the table's sort order as it is
	Engines         string        // that read the table, for parquetio.ParseEngines
	Properties      string        // for ParseProperties; those of the table that files follow
	OnRewind        string        // pause, replay or accept
	OnIncompatible  string        // dlq, new-column or pause
	ColumnCase      string        // preserve, lower or upper
	Mapping         parquetio.Rules
	FormatVersion   int        // of a new table: 2 or 3
	Validate        Validation // of the parts that name a schema; ValidateValue and ValidateKey include it
	SchemaCheck     string     // what a new schema that the table cannot hold meets at the registry: SchemaCheckOff, …
	Value, Key      Payload    // how they become columns; keys do not if the format is FormatBytes
	KeyColumn       string     // of the key, if it becomes one
	Tolerance       string     // what becomes of a record that cannot become a row: TolerateDLQ, …
	OnRecreate      string     // continue or pause
	OnDrop          string     // recreate or pause
	TableID         string     // the table that the topic fills, "" if another one may have its place
	FanOut          string     // types of records with tables of their own, for ParseFanOut
	Others          string     // what becomes of records of other types: OthersDLQ or OthersTable
	Record          string     // the type of records that the table of a [Route] takes; "" of a topic's own table
	Start           string     // where a table begins; for ParseStart
	Tombstone       string     // what a record without value becomes: TombstoneRow or TombstoneSkip
	// HoldMax is how much longer than retention says records are kept for a table that
	// lags behind; negative is without end.
	HoldMax time.Duration
	// ExpireSnapshots lets the coordinator expire snapshots that are older than ExpireAfter,
	// all but the last ExpireRetain. Every commit writes the list of the snapshots anew, so
	// that unless it is set ExpireAfter is what about 360 commits take.
	ExpireSnapshots bool
	ExpireAfter     time.Duration
	ExpireRetain    int
	// Compact says whether small data files become large ones: auto, true or false. So many small files
	// become one, and a file is small that has less than this percentage of the target size.
	Compact             string
	CompactMinFiles     int
	CompactSmallPercent int
}

// ConfigKey describes one topic configuration key.
type ConfigKey struct {
	Name     string
	Type     string // boolean, string, int, long, double or list
	Default  string
	Doc      string
	Synonyms []string // other names that mean the same

	set func(*TopicConfig, string) error
}

// aliasPrefix before a table.topic key makes the key of AutoMQ with the same meaning.
const aliasPrefix = "automq."

var configKeys = func() []ConfigKey {
	keys := slices.Concat(kafkaKeys(), subjectKeys(), tableKeys())
	sort.Slice(keys, func(i, j int) bool { return keys[i].Name < keys[j].Name })
	return keys
}()

// configIndex maps every name of a key to its place in configKeys.
var configIndex = func() map[string]int {
	index := map[string]int{}
	for i, k := range configKeys {
		index[k.Name] = i
		for _, s := range k.Synonyms {
			index[s] = i
		}
	}
	return index
}()

// TopicConfigKeys returns all keys, by name.
func TopicConfigKeys() []ConfigKey { return slices.Clone(configKeys) }

// ParseTopicConfig fills a configuration from what was set. Errors wrap ErrInvalidConfig
// and say what to change.
func ParseTopicConfig(raw map[string]string) (TopicConfig, error) {
	raw, err := canonicalConfig(raw)
	if err != nil {
		return TopicConfig{}, err
	}
	c := TopicConfig{Table: TableConfig{Mapping: parquetio.NewRules()}}
	for _, k := range configKeys {
		v, ok := raw[k.Name]
		if !ok {
			v = k.Default
		}
		if err := k.set(&c, v); err != nil {
			return TopicConfig{}, fmt.Errorf("%w: %s=%q: %w", ErrInvalidConfig, k.Name, v, err)
		}
	}
	if c.Table.ExpireAfter == 0 {
		c.Table.ExpireAfter = min(max(360*c.Table.TargetLag, 5*time.Minute), 24*time.Hour)
	}
	if err := c.Table.checkPayloads(); err != nil {
		return TopicConfig{}, fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	}
	if err := c.Table.checkFanOut(); err != nil {
		return TopicConfig{}, fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	}
	if err := c.setValidation(); err != nil {
		return TopicConfig{}, fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	}
	return c, nil
}

// throttledReplicas is what lists of replicas for reassignments look like: PARTITION:BROKER, separated by commas, or all.
var throttledReplicas = regexp.MustCompile(`^\s*(\*|\d+:\d+(\s*,\s*\d+:\d+)*)?\s*$`)

// checkSet refuses what does not go together, and what Kafka refuses of settings without effect here, for it is a mistake.
// It is for what is set now: a topic that was given such values before goes on with them.
func (c *TopicConfig) checkSet(raw map[string]string) error {
	if c.MinCompactionLag > c.MaxCompactionLag {
		return fmt.Errorf("%w: min.compaction.lag.ms=%d is above max.compaction.lag.ms=%d", ErrInvalidConfig, c.MinCompactionLag, c.MaxCompactionLag)
	}
	const gzipLevel = "compression.gzip.level"
	if v, ok := raw[gzipLevel]; ok && strings.TrimSpace(v) == "0" {
		return fmt.Errorf("%w: %s=%q: want an integer from 1 to 9, or -1", ErrInvalidConfig, gzipLevel, v)
	}
	for _, name := range []string{"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"} {
		if v := raw[name]; !throttledReplicas.MatchString(v) {
			return fmt.Errorf("%w: %s=%q: want PARTITION:BROKER, separated by commas, or *", ErrInvalidConfig, name, v)
		}
	}
	return nil
}

// canonicalConfig replaces aliases by the names they stand for.
func canonicalConfig(raw map[string]string) (map[string]string, error) {
	out := make(map[string]string, len(raw))
	for name, v := range raw {
		canonical, err := canonicalKey(name)
		if err != nil {
			return nil, err
		}
		if other, ok := out[canonical]; ok && other != v {
			return nil, fmt.Errorf("%w: %s is set twice, to %q and, by an alias, to %q: remove one", ErrInvalidConfig, canonical, other, v)
		}
		out[canonical] = v
	}
	return out, nil
}

func canonicalKey(name string) (string, error) {
	i, ok := configIndex[name]
	if !ok {
		return "", fmt.Errorf("%w: unknown key %q, the nearest known one is %q", ErrInvalidConfig, name, nearestKey(name))
	}
	return configKeys[i].Name, nil
}

// nearestKey is the known key with the smallest edit distance to name.
func nearestKey(name string) string {
	if len(name) > 100 {
		name = name[:100]
	}
	best, least := "", math.MaxInt
	for _, k := range configKeys {
		if d := editDistance(name, k.Name); d < least {
			best, least = k.Name, d
		}
	}
	return best
}

func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// maxTopicName is the longest topic name: Kafka's limit, so that names work everywhere.
const maxTopicName = 249

// CheckTopicName applies Kafka's rules. An error wraps ErrInvalidTopicName.
func CheckTopicName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrInvalidTopicName)
	case name == "." || name == "..":
		return fmt.Errorf("%w: %q means a directory", ErrInvalidTopicName, name)
	case len(name) > maxTopicName:
		return fmt.Errorf("%w: it has %d characters, at most %d are allowed", ErrInvalidTopicName, len(name), maxTopicName)
	}
	for _, r := range name {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-') {
			return fmt.Errorf("%w: %q holds %q, only ASCII letters, digits, '.', '_' and '-' are allowed", ErrInvalidTopicName, name, r)
		}
	}
	return nil
}

func boolean(set func(*TopicConfig, bool)) func(*TopicConfig, string) error {
	return func(c *TopicConfig, v string) error {
		switch strings.ToLower(v) {
		case "true":
			set(c, true)
		case "false":
			set(c, false)
		default:
			return fmt.Errorf("want true or false")
		}
		return nil
	}
}

func integer(low, high int64, set func(*TopicConfig, int64)) func(*TopicConfig, string) error {
	return func(c *TopicConfig, v string) error {
		n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
		if err != nil || n < low || n > high {
			return fmt.Errorf("want an integer from %d to %d", low, high)
		}
		if set != nil {
			set(c, n)
		}
		return nil
	}
}

func setDirtyRatio(c *TopicConfig, v string) error {
	f, err := strconv.ParseFloat(v, 64)
	if err != nil || !(f >= 0 && f <= 1) {
		return fmt.Errorf("want a number from 0 to 1")
	}
	c.MinDirtyRatio = f
	return nil
}

func text(set func(*TopicConfig, string)) func(*TopicConfig, string) error {
	return func(c *TopicConfig, v string) error {
		if len(v) > 1000 {
			return fmt.Errorf("%d characters are too many", len(v))
		}
		if set != nil {
			set(c, v)
		}
		return nil
	}
}

// only accepts the values that work today; reason says why others do not.
func only(reason string, values ...string) func(*TopicConfig, string) error {
	return func(_ *TopicConfig, v string) error {
		if !slices.Contains(values, v) {
			return fmt.Errorf("%s; use %s", reason, quoted(values))
		}
		return nil
	}
}

func quoted(values []string) string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = strconv.Quote(v)
	}
	return strings.Join(out, " or ")
}

func key(name, typ, def, doc string, set func(*TopicConfig, string) error) ConfigKey {
	return ConfigKey{Name: name, Type: typ, Default: def, Doc: doc, set: set}
}

// Kafka's topic keys ("Topic-Level Configs" in its documentation, those removed in 4.0
// included because tools still set them). The log is neither made of segment files nor
// replicated: keys about those are checked, stored and have no effect.
func kafkaKeys() []ConfigKey {
	const noEffect = "Stored without effect: "
	const segments = noEffect + "the log is not made of segment files."
	const replicas = noEffect + "the object store keeps the data safe, there are no replicas."
	const tiers = noEffect + "all data lives in the object store."
	const maxInt, maxLong = math.MaxInt32, math.MaxInt64
	return []ConfigKey{
		key("cleanup.policy", "list", "delete", "delete: retention removes old records. compact: the last record of each key is kept, and every record needs a key.", setCleanup),
		key("compression.type", "string", "producer", "Codec of the stored batches; producer keeps them as they come.", setCompression),
		key("compression.gzip.level", "int", "-1", noEffect+"batches are recompressed at the codec's default level.", integer(-1, 9, nil)),
		key("compression.lz4.level", "int", "9", noEffect+"batches are recompressed at the codec's default level.", integer(1, 17, nil)),
		key("compression.zstd.level", "int", "3", noEffect+"batches are recompressed at the codec's default level.", integer(-131072, 22, nil)),
		key("delete.retention.ms", "long", "86400000", "How long compaction keeps tombstones, and the markers of transactions of which it keeps no record.",
			integer(0, maxLong, func(c *TopicConfig, n int64) { c.DeleteRetention = n })),
		key("errors.deadletterqueue.group.enable", "boolean", "false", noEffect+"share groups have no dead letter queues.", boolean(func(*TopicConfig, bool) {})),
		key("file.delete.delay.ms", "long", "60000", segments, integer(0, maxLong, nil)),
		key("flush.messages", "long", "9223372036854775807", noEffect+"every acknowledged record is durable.", integer(1, maxLong, nil)),
		key("flush.ms", "long", "9223372036854775807", noEffect+"every acknowledged record is durable.", integer(0, maxLong, nil)),
		key("follower.replication.throttled.replicas", "list", "", replicas, text(nil)),
		key("index.interval.bytes", "int", "4096", segments, integer(0, maxInt, nil)),
		key("leader.replication.throttled.replicas", "list", "", replicas, text(nil)),
		key("local.retention.bytes", "long", "-2", tiers, integer(-2, maxLong, nil)),
		key("local.retention.ms", "long", "-2", tiers, integer(-2, maxLong, nil)),
		key("max.compaction.lag.ms", "long", "9223372036854775807", "Compaction starts when a record waits for it for so long, whatever min.cleanable.dirty.ratio says.",
			integer(1, maxLong, func(c *TopicConfig, n int64) { c.MaxCompactionLag = n })),
		key("max.decompressed.message.bytes", "int", "2147483639", "Largest record of a compressed batch, in bytes and decompressed. Records that are stored already are read whatever it is.",
			integer(1, 2147483639, func(c *TopicConfig, n int64) { c.MaxDecompressedMessageBytes = int(n) })),
		key("max.message.bytes", "int", "1048588", "Largest record batch in bytes, as sent.",
			integer(0, maxInt, func(c *TopicConfig, n int64) { c.MaxMessageBytes = int(n) })),
		key("message.downconversion.enable", "boolean", "true", noEffect+"removed in Kafka 4.0.", boolean(func(*TopicConfig, bool) {})),
		key("message.format.version", "string", "3.0-IV1", noEffect+"removed in Kafka 4.0.", text(nil)),
		key("message.timestamp.after.max.ms", "long", "3600000", "How far a record's time may lie after the broker's.",
			integer(0, maxLong, func(c *TopicConfig, n int64) { c.TimestampAfter = n })),
		key("message.timestamp.before.max.ms", "long", "9223372036854775807", "How far a record's time may lie before the broker's.",
			integer(0, maxLong, func(c *TopicConfig, n int64) { c.TimestampBefore = n })),
		key("message.timestamp.difference.max.ms", "long", "9223372036854775807", noEffect+"removed in Kafka 4.0, use message.timestamp.before.max.ms and message.timestamp.after.max.ms.",
			integer(0, maxLong, nil)),
		key("message.timestamp.type", "string", "CreateTime", "CreateTime: the producer's time. LogAppendTime: the broker's.", setTimestampType),
		key("min.cleanable.dirty.ratio", "double", "0.5", "Compaction starts when this part of the log is not compacted.", setDirtyRatio),
		key("min.compaction.lag.ms", "long", "0", "A record is not compacted before this time.",
			integer(0, maxLong, func(c *TopicConfig, n int64) { c.MinCompactionLag = n })),
		key("min.insync.replicas", "int", "1", replicas, integer(1, maxInt, nil)),
		key("preallocate", "boolean", "false", segments, boolean(func(*TopicConfig, bool) {})),
		key("remote.copy.lag.bytes", "long", "-1", tiers, integer(-1, maxLong, nil)),
		key("remote.copy.lag.ms", "long", "0", tiers, integer(-1, maxLong, nil)),
		key("remote.log.copy.disable", "boolean", "false", tiers, boolean(func(*TopicConfig, bool) {})),
		key("remote.log.delete.on.disable", "boolean", "false", tiers, boolean(func(*TopicConfig, bool) {})),
		key("remote.storage.enable", "boolean", "false", tiers, boolean(func(*TopicConfig, bool) {})),
		key("retention.bytes", "long", "-1", "How many bytes of a partition are kept at least; -1 keeps all.",
			integer(-1, maxLong, func(c *TopicConfig, n int64) { c.RetentionBytes = n })),
		key("retention.ms", "long", "604800000", "How long records are kept; -1 keeps them for ever.",
			integer(-1, maxLong, func(c *TopicConfig, n int64) { c.RetentionMillis = n })),
		key("segment.bytes", "int", "1073741824", segments, integer(14, maxInt, nil)),
		key("segment.index.bytes", "int", "10485760", segments, integer(4, maxInt, nil)),
		key("segment.jitter.ms", "long", "0", segments, integer(0, maxLong, nil)),
		key("segment.ms", "long", "604800000", segments, integer(1, maxLong, nil)),
		key("unclean.leader.election.enable", "boolean", "false", replicas, boolean(func(*TopicConfig, bool) {})),
	}
}

func setCleanup(c *TopicConfig, v string) error {
	c.Delete, c.Compact = false, false
	for policy := range strings.SplitSeq(v, ",") {
		switch strings.TrimSpace(policy) {
		case "delete":
			c.Delete = true
		case "compact":
			c.Compact = true
		case "":
		default:
			return fmt.Errorf("want delete, compact, or both")
		}
	}
	return nil
}

func setCompression(c *TopicConfig, v string) (err error) {
	if v == "producer" {
		c.Recompress = false
		return nil
	}
	c.Recompress = true
	if c.Codec, err = record.ParseCodec(v); err != nil {
		return fmt.Errorf("%w, uncompressed, or producer", err)
	}
	return nil
}

func setTimestampType(c *TopicConfig, v string) error {
	if v != "CreateTime" && v != "LogAppendTime" {
		return fmt.Errorf("want CreateTime or LogAppendTime")
	}
	c.LogAppendTime = v == "LogAppendTime"
	return nil
}

// notYet says why a value is refused that means something elsewhere.
const notYet = "this version cannot do it yet"

func tableKeys() []ConfigKey {
	keys := []ConfigKey{
		key("table.topic.enable", "boolean", "false", "Turns the topic into an Iceberg table, from the start of its log.",
			boolean(func(c *TopicConfig, v bool) { c.Table.Enable = v })),
		key("table.topic.catalog", "string", "", "Name of the registered catalog that holds the table; empty is the built-in one.",
			text(func(c *TopicConfig, v string) { c.Table.Catalog = v })),
		key("table.topic.namespace", "string", "default", "Namespace of the table, levels separated by dots. {topic} and {topic:REGEX} stand for the topic's name, or what the first group matches in it.",
			setName(func(c *TopicConfig, v string) { c.Table.Namespace = v })),
		key("table.topic.name", "string", "", "Name of the table, with its namespace if it has dots; empty is derived from the topic's. {topic}, {topic:REGEX} and {ns} are filled in.",
			setName(func(c *TopicConfig, v string) { c.Table.Name = v })),
		key("table.topic.target.lag.ms", "long", "10000", "Records are in the table after this time at the latest.",
			integer(1, 24*3600*1000, func(c *TopicConfig, n int64) { c.Table.TargetLag = time.Duration(n) * time.Millisecond })),
		key("table.topic.stuck.lags", "int", "10", "A table that gets no commit for so many times the target lag, while records wait for one, is reported as stuck.",
			integer(2, 1_000_000, func(c *TopicConfig, n int64) { c.Table.StuckLags = int(n) })),
		key("table.topic.target.file.bytes", "long", "67108864", "A data file is closed at about this size.",
			integer(1<<20, 4<<30, func(c *TopicConfig, n int64) { c.Table.TargetFileBytes = n })),
		key("table.topic.dlq", "string", "", `Topic that takes the records that fit no table; empty is "<topic>.dlq".`, setDLQ),
		key("table.topic.dlq.table", "boolean", "false", `Makes "<topic>.dlq" a table beside that of the topic, of its name and "__dlq".`,
			boolean(func(c *TopicConfig, v bool) { c.Table.LetterTable = v })),
		key("table.topic.kafka.column", "string", "_kafka", "Struct column with partition, offset, timestamp, key and headers; empty leaves it out.",
			setName(func(c *TopicConfig, v string) { c.Table.KafkaColumn = v })),
		key("table.topic.on.rewind", "string", "pause", "What to do when somebody rolled the table back: pause, replay the records, or accept the gap.", setOnRewind),
		key("table.topic.on.incompatible", "string", "dlq", "What to do with a schema that the table cannot hold: send its records to the dead letters, give the fields that do not fit a new column (x__v2 for x), or pause until somebody changes the table.", setOnIncompatible),
		key("table.topic.column.case", "string", "preserve", "Letters of the names of columns that the table gets: preserve, as the schema has them; lower; upper. Fields find their column whatever its case is.",
			oneOf(func(c *TopicConfig, v string) { c.Table.ColumnCase = v }, nil, "preserve", "lower", "upper")),
		key("table.topic.schema.check", "string", SchemaCheckOff, "What a new version of a subject of the topic meets at the registry if the table cannot hold it: off, nothing; warn, a warning; enforce, it is refused.",
			oneOf(func(c *TopicConfig, v string) { c.Table.SchemaCheck = v }, nil, SchemaCheckOff, SchemaCheckWarn, SchemaCheckEnforce)),
		key("table.topic.validate", "string", string(ValidateNone), "What is validated of the values, and keys, that name the schema of a column before they are appended: none, nothing; id, that the schema is a version of the subject; full, that the payload becomes a row too.",
			oneOf(func(c *TopicConfig, v string) { c.Table.Validate = Validation(v) }, nil, string(ValidateNone), string(ValidateID), string(ValidateFull))),
		key("table.topic.mapping.recursion", "string", "json", "What a record inside itself becomes in a table that is made: json, text, or text below N levels of columns with depth:N; dlq, its records are dead letters.",
			func(c *TopicConfig, v string) error { return c.Table.Mapping.SetRecursion(v) }),
		key("table.topic.mapping.protobuf.zero.as.null", "boolean", "false", "In a table that is made, the zero of a Protobuf field without presence is null, for nothing tells it from one that is not set.",
			boolean(func(c *TopicConfig, v bool) { c.Table.Mapping.ZeroAsNull = v })),
		key("table.topic.mapping.protobuf.uint64", "string", "decimal", "What uint64 and fixed64 become in a table that is made: decimal, of 20 digits, or string.",
			oneOf(func(c *TopicConfig, v string) { c.Table.Mapping.Uint64AsString = v == "string" }, nil, "decimal", "string")),
		key("table.topic.mapping.json", "string", "string", "What becomes of values for which there is no column of their own, in a table that is made: string, JSON text, or variant, which needs format version 3.",
			oneOf(func(c *TopicConfig, v string) { c.Table.Mapping.Variant = v == "variant" }, nil, "string", "variant")),
		key("table.topic.mapping.defaults", "boolean", "false", "In a table that is made, of format version 3, columns have the defaults of Avro's fields: rows without the field have them.",
			boolean(func(c *TopicConfig, v bool) { c.Table.Mapping.Defaults = v })),
		key("table.topic.format.version", "int", "2", "Format version of a table that is made: 2 or 3, which keeps nanoseconds, and the lineage of rows.",
			integer(2, 3, func(c *TopicConfig, n int64) { c.Table.FormatVersion, c.Table.Mapping.Nanos = int(n), n == 3 })),
		key("table.topic.hold.max.ms", "long", "604800000", "How much longer than retention says records are kept for a table that lags behind; -1 is without end.",
			integer(-1, math.MaxInt64/int64(time.Millisecond), func(c *TopicConfig, n int64) { c.Table.HoldMax = time.Duration(n) * time.Millisecond })),
		key("table.topic.schema.type", "string", "schema", "Where the schema of the values comes from.",
			only(notYet+": values carry the id of a registered schema", "schema", "none")),
		key("table.topic.transform.value.type", "string", "flatten", "How a value becomes columns: its fields on top level.",
			only(notYet+": the fields of a value are the columns", "flatten", "none")),
		key("table.topic.id.columns", "list", "", "Columns that identify a row.", only(notYet, "", "[]")),
		key("table.topic.partition.by", "list", "", "Partitions of the table: columns, year(c), month(c), day(c), hour(c), bucket(c, N), truncate(c, N) and void(c), separated by commas. Empty leaves those that the table has, [] takes them away.", setPartitionBy),
		key("table.topic.sort.by", "list", "", "Order of the rows in a file: columns, or transforms of them as of partitions, each with asc or desc and nulls first or nulls last, separated by commas. Empty leaves the order that the table has, [] takes it away.", setSortBy),
		key("table.topic.engine.profile", "list", "generic", "Engines that are to read the table: generic, athena, unity, duckdb, or several of them, separated by commas. Columns get types that all can read.",
			text(func(c *TopicConfig, v string) { c.Table.Engines = v })),
		key("table.topic.write.properties", "list", "", "Properties of the table that files follow, as write.parquet.compression-codec=gzip, separated by commas. Others that the table has stay.", setProperties),
		key("table.topic.upsert.enable", "boolean", "false", "Records replace the row of their key.", only(notYet+": the table is append only", "false")),
		key("table.topic.cdc.field", "string", "", "Field that says insert, update or delete.", only(notYet, "")),
		key("table.topic.expire.snapshot.enabled", "boolean", "true", "Old snapshots of the table are expired.",
			boolean(func(c *TopicConfig, v bool) { c.Table.ExpireSnapshots = v })),
		key("table.topic.expire.snapshot.older.than.hours", "int", "0", "Age from which snapshots are expired; 0 keeps about 360: 360 times the target lag, from 5 minutes to a day. Commits take longer with more: about 0.1 ms per snapshot.",
			integer(0, 1<<20, func(c *TopicConfig, n int64) { c.Table.ExpireAfter = time.Duration(n) * time.Hour })),
		key("table.topic.expire.snapshot.retain.last", "int", "1", "Number of snapshots that are never expired.",
			integer(1, math.MaxInt32, func(c *TopicConfig, n int64) { c.Table.ExpireRetain = int(n) })),
		key("table.topic.compact.enabled", "string", "auto", "Small data files of the table become large ones: true; false, only when it is asked for; auto, unless the catalog or another service does it.",
			oneOf(func(c *TopicConfig, v string) { c.Table.Compact = v }, nil, "auto", "true", "false")),
		key("table.topic.compact.min.files", "int", "5", "So many small files of about one size become one.",
			integer(2, 500, func(c *TopicConfig, n int64) { c.Table.CompactMinFiles = int(n) })),
		key("table.topic.compact.small.percent", "int", "75", "Files are small below this share of the target size, in percent. That is the table's write.target-file-size-bytes, or table.topic.target.file.bytes.",
			integer(1, 99, func(c *TopicConfig, n int64) { c.Table.CompactSmallPercent = int(n) })),
	}
	keys = slices.Concat(keys, payloadKeys(), fanOutKeys())
	for i := range keys {
		keys[i].Synonyms = append(keys[i].Synonyms, aliasPrefix+keys[i].Name)
		switch keys[i].Name {
		case "table.topic.target.lag.ms":
			keys[i].Synonyms = append(keys[i].Synonyms, aliasPrefix+"table.topic.commit.interval.ms")
		case "table.topic.hold.max.ms":
			keys[i].Synonyms = append(keys[i].Synonyms, "table.topic.hold.max")
		}
	}
	return keys
}

func setName(set func(*TopicConfig, string)) func(*TopicConfig, string) error {
	return func(c *TopicConfig, v string) error {
		for _, r := range v {
			if r < ' ' || r == '"' || r == '`' || r == '/' || r == '\\' || r == 0x7f {
				return fmt.Errorf("%q is allowed in no catalog's names", r)
			}
		}
		if len(v) > 255 {
			return fmt.Errorf("%d characters are too many, 255 are allowed", len(v))
		}
		set(c, v)
		return nil
	}
}

func setDLQ(c *TopicConfig, v string) error {
	if v != "" {
		if err := CheckTopicName(v); err != nil {
			return err
		}
	}
	c.Table.DLQ = v
	return nil
}

func setOnRewind(c *TopicConfig, v string) error {
	if v != "pause" && v != "replay" && v != "accept" {
		return fmt.Errorf("want pause, replay or accept")
	}
	c.Table.OnRewind = v
	return nil
}

func setOnIncompatible(c *TopicConfig, v string) error {
	if v != "dlq" && v != "new-column" && v != "pause" {
		return fmt.Errorf("want dlq, new-column or pause")
	}
	c.Table.OnIncompatible = v
	return nil
}
