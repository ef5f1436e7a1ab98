package partition

import (
	"fmt"
	"strings"

	"github.com/google/uuid"
)

// A Payload says how the values, or the keys, of a topic's records become columns.
type Payload struct {
	Format  string // FormatSchemaID, …
	Subject string // of FormatLatest; "" is derived from the topic's name
	Message string // of FormatLatest: full name of a Protobuf message; "" is the first
}

// Of returns p with that subject, unless it has one.
func (p Payload) Of(subject string) Payload {
	if p.Subject == "" {
		p.Subject = subject
	}
	return p
}

// Formats of payloads.
const (
	FormatSchemaID = "schema-id"   // the payload, or a header, names a schema of the registry
	FormatLatest   = "latest"      // the latest schema of a subject: payloads do not name it
	FormatString   = "string"      // UTF-8 text
	FormatBytes    = "bytes"       // any bytes
	FormatJSON     = "json"        // JSON without a schema: columns are inferred
	FormatLetter   = "dead-letter" // records of a dead letter topic; of values only
)

// What becomes of a record that cannot become a row.
const (
	TolerateDLQ   = "dlq"   // a dead letter
	TolerateSkip  = "skip"  // nothing but a count
	ToleratePause = "pause" // its partition waits
)

// What a record without value becomes.
const (
	TombstoneRow  = "null-row" // a row whose columns of the value are null
	TombstoneSkip = "skip"     // nothing
)

// payloadKeys are the settings of what records are. The names of AutoMQ for the same are
// synonyms, and so are its values.
func payloadKeys() []ConfigKey {
	formats := map[string]string{"by_schema_id": FormatSchemaID, "by_latest_schema": FormatLatest, "raw": FormatBytes}
	keys := []ConfigKey{
		key("table.topic.value.format", "string", FormatSchemaID, "How values become columns: schema-id, as the registered schema that each names; latest, as the latest version of a subject; string and bytes, as the one column value; json, as the properties that records have; dead-letter, as where a dead letter comes from and why it is one.",
			oneOf(func(c *TopicConfig, v string) { c.Table.Value.Format = v }, formats, FormatSchemaID, FormatLatest, FormatString, FormatBytes, FormatJSON, FormatLetter)),
		key("table.topic.value.subject", "string", "", `Subject of values of the format latest; empty is "<topic>-value".`, text(func(c *TopicConfig, v string) { c.Table.Value.Subject = v })),
		key("table.topic.value.message", "string", "", "Full name of the Protobuf message that values of the format latest are; empty is the first of the schema.", text(func(c *TopicConfig, v string) { c.Table.Value.Message = v })),
		key("table.topic.key.format", "string", FormatBytes, "How keys become a column of their own: bytes, they do not; schema-id, as the registered schema that each names; latest, as the latest version of a subject; string, as text; json, as the value that it is.",
			oneOf(func(c *TopicConfig, v string) { c.Table.Key.Format = v }, formats, FormatBytes, FormatSchemaID, FormatLatest, FormatString, FormatJSON)),
		key("table.topic.key.subject", "string", "", `Subject of keys of the format latest; empty is "<topic>-key".`, text(func(c *TopicConfig, v string) { c.Table.Key.Subject = v })),
		key("table.topic.key.message", "string", "", "Full name of the Protobuf message that keys of the format latest are; empty is the first of the schema.", text(func(c *TopicConfig, v string) { c.Table.Key.Message = v })),
		key("table.topic.key.column", "string", "_key", "Column of the key, unless its format is bytes.",
			setName(func(c *TopicConfig, v string) { c.Table.KeyColumn = v })),
		key("table.topic.errors.tolerance", "string", TolerateDLQ, "What becomes of a record that cannot become a row: dlq, a dead letter; skip, it is left out and counted; pause, its partition waits.",
			oneOf(func(c *TopicConfig, v string) { c.Table.Tolerance = v }, map[string]string{"invalid_data": TolerateDLQ, "all": TolerateDLQ, "none": ToleratePause}, TolerateDLQ, TolerateSkip, ToleratePause)),
		key("table.topic.start", "string", "earliest", "Where a table begins that has no records of the topic yet: earliest, latest, a time in ISO 8601 or milliseconds since 1970, or partition:offset, separated by commas. What is left out is recorded.", setStart),
		key("table.topic.on.recreate", "string", "continue", "What to do when the topic was deleted and made again, and the table has rows of the earlier one: continue, and add to them, or pause.",
			oneOf(func(c *TopicConfig, v string) { c.Table.OnRecreate = v }, nil, "continue", "pause")),
		key("table.topic.on.drop", "string", "recreate", "What to do when the table was dropped, or another one has its name: recreate, make or fill that from the start of the log, or pause.",
			oneOf(func(c *TopicConfig, v string) { c.Table.OnDrop = v }, nil, "recreate", "pause")),
		key("table.topic.table.id", "string", "", "With table.topic.on.drop=pause the table that the topic fills, as [CATALOG/]NAMESPACE.TABLE@UUID, written by the server.", setTableID),
		key("table.topic.tombstone", "string", TombstoneRow, "What a record without value becomes: null-row, a row whose columns of the value are null; skip, nothing.",
			oneOf(func(c *TopicConfig, v string) { c.Table.Tombstone = v }, nil, TombstoneRow, TombstoneSkip)),
	}
	for i := range keys {
		switch part, name, _ := strings.Cut(strings.TrimPrefix(keys[i].Name, "table.topic."), "."); {
		case part != "value" && part != "key":
		case name == "format":
			keys[i].Synonyms = alias("table.topic.convert." + part + ".type")
		case name == "subject":
			keys[i].Synonyms = alias("table.topic.convert." + part + ".by_latest_schema.subject")
		case name == "message":
			keys[i].Synonyms = alias("table.topic.convert." + part + ".by_latest_schema.message.full.name")
		}
	}
	return keys
}

func setTableID(c *TopicConfig, v string) error {
	if name, id, _ := strings.Cut(v, "@"); v != "" && (name == "" || uuid.Validate(id) != nil) {
		return fmt.Errorf("want [CATALOG/]NAMESPACE.TABLE@UUID, or nothing to take the table that has the name")
	}
	c.Table.TableID = v
	return nil
}

// alias returns a name and that of AutoMQ.
func alias(name string) []string { return []string{name, aliasPrefix + name} }

// oneOf accepts some values, and others as their synonyms.
func oneOf(set func(*TopicConfig, string), synonyms map[string]string, values ...string) func(*TopicConfig, string) error {
	return func(c *TopicConfig, v string) error {
		if same, ok := synonyms[v]; ok {
			v = same
		}
		for _, known := range values {
			if v == known {
				set(c, v)
				return nil
			}
		}
		return fmt.Errorf("want %s", quoted(values))
	}
}

// ColumnOfKey returns the column that keys become, "" if they become none.
func (t *TableConfig) ColumnOfKey() string {
	if t.Key.Format == FormatBytes {
		return ""
	}
	return t.KeyColumn
}

// checkPayloads refuses what does not go together.
func (t *TableConfig) checkPayloads() error {
	if t.LetterTable && t.DLQ != "" {
		return fmt.Errorf("table.topic.dlq.table is for dead letters in <topic>%s: leave table.topic.dlq empty, or set table.topic.enable=true and table.topic.value.format=%s of topic %s", DeadLetterSuffix, FormatLetter, t.DLQ)
	}
	switch {
	case t.Mapping.Variant && t.FormatVersion < 3:
		return fmt.Errorf("table.topic.mapping.json=variant is of format version 3, which has variants: set table.topic.format.version=3 too")
	case t.Mapping.Defaults && t.FormatVersion < 3:
		return fmt.Errorf("table.topic.mapping.defaults=true is of format version 3, which has defaults: set table.topic.format.version=3 too")
	}
	for part, p := range map[string]Payload{"value": t.Value, "key": t.Key} {
		if p.Format != FormatLatest && p.Subject+p.Message != "" {
			return fmt.Errorf("table.topic.%s.subject and .message are of the format %s: set table.topic.%s.format too", part, FormatLatest, part)
		}
	}
	if t.Key.Format == FormatBytes {
		return nil
	}
	switch {
	case t.KeyColumn == "":
		return fmt.Errorf("table.topic.key.format=%s makes a column of the key: table.topic.key.column must have its name", t.Key.Format)
	case strings.EqualFold(t.KeyColumn, t.KafkaColumn):
		return fmt.Errorf("table.topic.key.column and table.topic.kafka.column are both %q: set one to another name", t.KeyColumn)
	}
	return nil
}
