package partition

import (
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/metadata"
)

// MaxFanOut bounds the record types of a topic that have tables of their own: each is read, converted
// and committed by itself.
const MaxFanOut = 32

// What becomes of the records of a topic with table.topic.fan.out that are of no type in it.
const (
	OthersDLQ   = "dlq"   // dead letters
	OthersTable = "table" // rows of the topic's own table
)

// A RecordTable is an item of table.topic.fan.out: a type of records, by the full name of its Avro record
// or Protobuf message or the title of its JSON Schema, and the table that takes them, named as
// table.topic.name names one.
type RecordTable struct {
	Record, Table string
}

// ParseFanOut reads a value of table.topic.fan.out: RECORD:TABLE, separated by commas. Neither may have a
// comma; the last colon divides them. Those inside the braces of a pattern do not count.
func ParseFanOut(list string) ([]RecordTable, error) {
	if strings.TrimSpace(list) == "" {
		return nil, nil
	}
	var all []RecordTable
	records, tables := map[string]bool{}, map[string]bool{}
	for _, item := range splitOutsideBraces(list, ',') {
		item = strings.TrimSpace(item)
		parts := splitOutsideBraces(item, ':')
		last := len(parts) - 1
		t := RecordTable{strings.TrimSpace(strings.Join(parts[:last], ":")), strings.TrimSpace(parts[last])}
		switch {
		case t.Record == "" || t.Table == "":
			return nil, fmt.Errorf("%q: want RECORD:TABLE, as in com.example.Order:orders", item)
		case t.Record == "*":
			return nil, fmt.Errorf("%q: name each type of records; those of other types are dead letters, or rows of the topic's own table with table.topic.fan.out.others=%s", item, OthersTable)
		case len(t.Record) > 255:
			return nil, fmt.Errorf("%q: the name of a type has at most 255 characters", item)
		case records[t.Record]:
			return nil, fmt.Errorf("%s is there twice", t.Record)
		case tables[t.Table]:
			return nil, fmt.Errorf("table %s is there twice: each table takes the records of one type", t.Table)
		case len(all) == MaxFanOut:
			return nil, fmt.Errorf("more than %d types: use more topics", MaxFanOut)
		}
		for _, r := range t.Record {
			if r < ' ' || r == 0x7f {
				return nil, fmt.Errorf("%q: no type has %q in its name", item, r)
			}
		}
		if err := setName(func(*TopicConfig, string) {})(nil, t.Table); err != nil {
			return nil, fmt.Errorf("%q: %w", item, err)
		}
		records[t.Record], tables[t.Table] = true, true
		all = append(all, t)
	}
	return all, nil
}

// splitOutsideBraces splits text at a character, but not inside braces.
func splitOutsideBraces(text string, at rune) (parts []string) {
	begin, depth := 0, 0
	for i, r := range text {
		switch {
		case r == '{':
			depth++
		case r == '}':
			depth--
		case r == at && depth <= 0:
			parts = append(parts, text[begin:i])
			begin = i + 1
		}
	}
	return append(parts, text[begin:])
}

func fanOutKeys() []ConfigKey {
	return []ConfigKey{
		key("table.topic.fan.out", "list", "", "Types of records with tables of their own: RECORD:TABLE, separated by commas. RECORD is the full name of an Avro record or a Protobuf message, or the title of a JSON Schema, TABLE is a name as of table.topic.name.",
			func(c *TopicConfig, v string) error {
				_, err := ParseFanOut(v)
				c.Table.FanOut = v
				return err
			}),
		key("table.topic.fan.out.others", "string", OthersDLQ, "With table.topic.fan.out, what becomes of records of other types: dlq, dead letters; table, rows of the topic's own table.",
			oneOf(func(c *TopicConfig, v string) { c.Table.Others = v }, nil, OthersDLQ, OthersTable)),
	}
}

// checkFanOut refuses what does not go together with tables of record types.
func (t *TableConfig) checkFanOut() error {
	if strings.TrimSpace(t.FanOut) == "" {
		return nil
	}
	switch {
	case t.Value.Format != FormatSchemaID:
		return fmt.Errorf("table.topic.fan.out goes by the schema that each value names, and values of table.topic.value.format=%s name none: set it to %s", t.Value.Format, FormatSchemaID)
	case t.KafkaColumn == "":
		return fmt.Errorf("table.topic.fan.out needs table.topic.kafka.column: a table has no other column until the first record of its type comes")
	case t.OnDrop == "pause":
		return fmt.Errorf("table.topic.fan.out does not go with table.topic.on.drop=pause, which remembers the id of one table: set that to recreate")
	}
	return nil
}

// A Route is a table of a topic with what fills it. To coordinator, workers and control log it is like
// a topic: it has an id and a name of its own, and reads the partitions of the topic by itself.
type Route struct {
	ID    uuid.UUID // that of the topic; of a type of records one that is derived from it
	Name  string    // that of the topic; of a type of records TOPIC:RECORD
	Topic metadata.Topic
	Table TableConfig // with the name of this table
}

// Routes returns the routes of a topic: that of its own table, then one for each type of records with a
// table. The topic need not be a table.
func Routes(t metadata.Topic, cfg TopicConfig) []Route {
	own := Route{ID: t.ID, Name: t.Name, Topic: t, Table: cfg.Table}
	list, _ := ParseFanOut(cfg.Table.FanOut) // the settings are checked
	if len(list) > 0 && own.Table.Others == OthersDLQ {
		own.Table.PartitionBy, own.Table.SortBy = "", "" // it gets no columns
	}
	all := []Route{own}
	for _, r := range list {
		table := cfg.Table
		table.Record, table.Name, table.TableID, table.LetterTable = r.Record, r.Table, "", false
		all = append(all, Route{ID: RouteID(t.ID, r.Record), Name: RouteName(t.Name, r.Record), Topic: t, Table: table})
	}
	return all
}

// RouteID is the id of the route of a type of records. It depends on nothing else, so that a type that
// gets its table back goes on in it.
func RouteID(topic uuid.UUID, record string) uuid.UUID { return uuid.NewSHA1(topic, []byte(record)) }

// RouteName is the name of the route of a type of records. No topic has a colon in its name.
func RouteName(topic, record string) string { return topic + ":" + record }

// SplitRoute returns the topic of a route by its name, and the type of records, "" for that of the
// topic's own table.
func SplitRoute(name string) (topic, record string) {
	topic, record, _ = strings.Cut(name, ":")
	return topic, record
}

// TakesOthers stands for the records that are of no type with a table.
const TakesOthers = "*"

// Takes returns which records the table has of a topic with several: those of a type, by its name, or
// TakesOthers and, after commas, the types that it does not take. "" if the topic has one table.
func (t *TableConfig) Takes() string {
	list, _ := ParseFanOut(t.FanOut)
	if t.Record != "" || len(list) == 0 {
		return t.Record
	}
	takes := TakesOthers
	for _, r := range list {
		takes += "," + r.Record
	}
	return takes
}

// tables returns how many tables the topic fills.
func (t *TableConfig) tables() int {
	list, _ := ParseFanOut(t.FanOut)
	return 1 + len(list)
}

// Routes returns the routes of a topic, none if it is no table.
func (s *Set) Routes(t metadata.Topic) ([]Route, error) {
	cfg, err := s.TopicConfig(t)
	if err != nil || !cfg.Table.Enable {
		return nil, err
	}
	return Routes(t, cfg), nil
}

// RouteByID returns the route of that id, whether its topic is a table now or not.
func (s *Set) RouteByID(id uuid.UUID) (Route, bool, error) {
	if t, ok := s.TopicByID(id); ok {
		cfg, err := s.TopicConfig(t)
		if err != nil {
			return Route{}, false, err
		}
		return Routes(t, cfg)[0], true, nil
	}
	for _, t := range s.Topics() {
		cfg, err := s.TopicConfig(t)
		if err != nil || cfg.Table.FanOut == "" {
			continue
		}
		for _, r := range Routes(t, cfg) {
			if r.ID == id {
				return r, true, nil
			}
		}
	}
	return Route{}, false, nil
}
