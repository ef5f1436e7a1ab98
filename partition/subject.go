package partition

import (
	"context"
	"fmt"
	"strings"

	"github.com/tabletopic/tabletopic/record"
)

// What a new version of a subject meets at the registry if the table of the topic cannot hold it.
const (
	SchemaCheckOff     = "off"     // nothing: the table does what it does when the first record comes
	SchemaCheckWarn    = "warn"    // a warning
	SchemaCheckEnforce = "enforce" // it is refused
)

// A SubjectStrategy says of which subject the schemas of a topic's values, or keys, are versions.
type SubjectStrategy string

// The strategies of Confluent's serializers, by the last part of their class names.
const (
	TopicNameStrategy       SubjectStrategy = "TopicNameStrategy"       // "<topic>-value" or "<topic>-key"
	RecordNameStrategy      SubjectStrategy = "RecordNameStrategy"      // the name of the record's type
	TopicRecordNameStrategy SubjectStrategy = "TopicRecordNameStrategy" // "<topic>-" and that name
)

// Subject returns the subject of a topic's values, or keys, of a type with that name.
func (s SubjectStrategy) Subject(topic string, key bool, record string) string {
	switch {
	case s == RecordNameStrategy:
		return record
	case s == TopicRecordNameStrategy:
		return topic + "-" + record
	case key:
		return topic + "-key"
	}
	return topic + "-value"
}

// Record returns the type, the name of a record or "" for any, with which values, or keys, of a topic
// are written if a schema is a version of that subject; false if they are not.
func (s SubjectStrategy) Record(topic string, key bool, subject string) (record string, ok bool) {
	switch s {
	case RecordNameStrategy:
		return subject, true
	case TopicRecordNameStrategy:
		record, ok = strings.CutPrefix(subject, topic+"-")
		return record, ok && record != ""
	}
	return "", subject == s.Subject(topic, key, "")
}

// A Validation is what is validated of a payload before it is appended.
type Validation string

const (
	ValidateNone Validation = "none"
	ValidateID   Validation = "id"   // it names a schema that is a version of its subject
	ValidateFull Validation = "full" // and it decodes
)

// A Validator judges what clients append.
type Validator interface {
	// Validate returns what is wrong with a record, as cfg asks, "" if nothing is. An error says
	// that this is not known now. It keeps nothing of the record.
	Validate(ctx context.Context, topic string, cfg *TopicConfig, r *record.Record) (reason string, err error)
}

func (c *TopicConfig) validates() bool {
	return c.ValidateValue != ValidateNone || c.ValidateKey != ValidateNone
}

// setValidation adds what table.topic.validate asks for to what Confluent's settings do.
func (c *TopicConfig) setValidation() error {
	if c.Table.Validate == ValidateNone {
		return nil
	}
	values, keys := c.Table.Value.Format == FormatSchemaID, c.Table.Key.Format == FormatSchemaID
	if !values && !keys {
		return fmt.Errorf("table.topic.validate=%s: neither values nor keys name a schema: table.topic.value.format or table.topic.key.format must be %s", c.Table.Validate, FormatSchemaID)
	}
	if values {
		c.ValidateValue = c.Table.Validate
	}
	if keys {
		c.ValidateKey = c.Table.Validate
	}
	return nil
}

const strategyPackage = "io.confluent.kafka.serializers.subject."

// subjectKeys are the settings that Confluent's broker has for subjects.
func subjectKeys() []ConfigKey {
	strategy := func(set func(*TopicConfig, SubjectStrategy)) func(*TopicConfig, string) error {
		return func(c *TopicConfig, v string) error {
			switch s := SubjectStrategy(strings.TrimPrefix(v, strategyPackage)); s {
			case TopicNameStrategy, RecordNameStrategy, TopicRecordNameStrategy:
				set(c, s)
				return nil
			}
			return fmt.Errorf("want %s, %s or %s, with or without %s in front", TopicNameStrategy, RecordNameStrategy, TopicRecordNameStrategy, strategyPackage)
		}
	}
	depth := map[bool]Validation{false: ValidateNone, true: ValidateID}
	return []ConfigKey{
		key("confluent.value.schema.validation", "boolean", "false", "Values must name a schema that is a version of their subject, by confluent.value.subject.name.strategy.",
			boolean(func(c *TopicConfig, v bool) { c.ValidateValue = depth[v] })),
		key("confluent.key.schema.validation", "boolean", "false", "The same for keys.",
			boolean(func(c *TopicConfig, v bool) { c.ValidateKey = depth[v] })),
		key("confluent.value.subject.name.strategy", "string", strategyPackage+string(TopicNameStrategy), "Of which subject the schemas of values are versions: TopicNameStrategy, <topic>-value; RecordNameStrategy, the name of the record's type; TopicRecordNameStrategy, <topic>- and that name.",
			strategy(func(c *TopicConfig, s SubjectStrategy) { c.ValueSubject = s })),
		key("confluent.key.subject.name.strategy", "string", strategyPackage+string(TopicNameStrategy), "The same for keys; of TopicNameStrategy it is <topic>-key.",
			strategy(func(c *TopicConfig, s SubjectStrategy) { c.KeySubject = s })),
	}
}
