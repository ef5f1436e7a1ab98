package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/parquetio"
)

// A RegisteredSchema is a schema as the registry has it.
type RegisteredSchema struct {
	Type       string // AVRO, PROTOBUF or JSON; empty means AVRO
	Text       string
	References []parquetio.Reference // the schemas that it names, each after those that it names itself
}

// A Lookup reads the registry. metadata.ErrSchemaNotExist says that the id does not exist,
// by a read that cannot be stale; any other error says that the registry cannot tell now.
type Lookup func(ctx context.Context, id int32) (RegisteredSchema, error)

// Names gives the ids of schemas by what else names them. Its errors are those of a [Lookup].
type Names interface {
	// Latest returns the schema of the latest version of a subject.
	Latest(ctx context.Context, subject string) (id int32, err error)
	// GUID returns the schema of that identity.
	GUID(ctx context.Context, guid uuid.UUID) (id int32, err error)
	// Earlier returns the schemas of the versions before that one in its subjects, newest first,
	// at most limit.
	Earlier(ctx context.Context, id int32, limit int) (ids []int32, err error)
}

// ErrUnusableSchema says that a schema exists and cannot become columns. No retry helps.
var ErrUnusableSchema = errors.New("schema cannot become columns")

// Schemas gives what writers write as columns, and remembers the last 1,000: an id never
// changes its meaning.
type Schemas struct {
	lookup Lookup
	names  Names

	mu      sync.Mutex
	known   map[mapped]columns  // guarded by mu
	guids   map[uuid.UUID]int32 // guarded by mu
	records map[Writer]string   // guarded by mu; their names
}

// mapped is a writer, as the rules of some table have it.
type mapped struct {
	writer Writer
	rules  parquetio.Rules
}

// columns are what a writer writes, or why that is certain not to become columns: each of its
// records asks.
type columns struct {
	value *parquetio.ValueSchema
	err   error
}

// LetterSchema is the Avro schema of the rows that dead letters become. All but value and key is
// null of a record that is no letter: a marker of a replay, or a client's own.
const LetterSchema = `{"type":"record","name":"dead_letter","fields":[
{"name":"cause","type":["null","string"],"doc":"why the record could not become a row"},
{"name":"detail","type":["null","string"]},
{"name":"schema_id","type":["null","int"],"doc":"of the registry, if the payload names one"},
{"name":"source_topic","type":["null","string"]},
{"name":"source_topic_id","type":["null",{"type":"string","logicalType":"uuid"}]},
{"name":"source_partition","type":["null","int"]},
{"name":"source_offset","type":["null","long"]},
{"name":"source_timestamp","type":["null",{"type":"long","logicalType":"timestamp-millis"}]},
{"name":"key","type":["null","bytes"]},
{"name":"value","type":["null","bytes"]},
{"name":"headers","type":{"type":"array","items":{"type":"record","name":"header","fields":[{"name":"key","type":"string"},{"name":"value","type":["null","bytes"]}]}},"doc":"the record's own"}]}`

const typeProtobuf = "PROTOBUF"

// maxSchemas bounds the cache.
const maxSchemas = 1000

// NewSchemas returns a cache over a registry.
func NewSchemas(lookup Lookup, names Names) *Schemas {
	return &Schemas{lookup: lookup, names: names, known: map[mapped]columns{}, guids: map[uuid.UUID]int32{}, records: map[Writer]string{}}
}

// Indexed reports whether payloads of a schema have the indexes of a message in front, as those of
// Protobuf do.
func (s *Schemas) Indexed(ctx context.Context, id int32) (bool, error) {
	r, err := s.lookup(ctx, id)
	if err != nil {
		return false, fmt.Errorf("schema %d: %w", id, err)
	}
	return r.Type == typeProtobuf, nil
}

// Latest returns what writes the values of records that name no schema: the latest version of a
// subject, and of a Protobuf schema the message of that full name, the first if it is empty. The
// registry is asked each time.
func (s *Schemas) Latest(ctx context.Context, subject, message string) (w Writer, err error) {
	if w.Schema, err = s.names.Latest(ctx, subject); err != nil {
		return w, fmt.Errorf("subject %s: %w", subject, err)
	}
	if message == "" {
		return w, nil
	}
	r, err := s.lookup(ctx, w.Schema)
	if err != nil {
		return w, fmt.Errorf("schema %d: %w", w.Schema, err)
	}
	if r.Type != typeProtobuf {
		return w, fmt.Errorf("subject %s: %w: it is of type %s, and has no message %s", subject, ErrUnusableSchema, r.Type, message)
	}
	if w.Message, err = parquetio.MessageIndexes(r.Text, message, r.References...); err != nil {
		return w, fmt.Errorf("subject %s: %w: %w", subject, ErrUnusableSchema, err)
	}
	return w, nil
}

// GUID returns the id of a schema that a record names by its GUID.
func (s *Schemas) GUID(ctx context.Context, guid uuid.UUID) (int32, error) {
	s.mu.Lock()
	id, ok := s.guids[guid]
	s.mu.Unlock()
	if ok {
		return id, nil
	}
	id, err := s.names.GUID(ctx, guid)
	if err != nil {
		return 0, fmt.Errorf("schema %s: %w", guid, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.guids) >= maxSchemas {
		clear(s.guids)
	}
	s.guids[guid] = id
	return id, nil
}

// Value returns the columns of w in a table of such rules. Its error is metadata.ErrSchemaNotExist
// or ErrUnusableSchema if that is certain; any other may pass.
func (s *Schemas) Value(ctx context.Context, w Writer, rules parquetio.Rules) (*parquetio.ValueSchema, error) {
	s.mu.Lock()
	c, ok := s.known[mapped{w, rules}]
	s.mu.Unlock()
	switch {
	case ok:
		return c.value, c.err
	case w.Format == FormatString:
		return parquetio.StringValue(), nil
	case w.Format == FormatBytes:
		return parquetio.BytesValue(), nil
	case w.Format == FormatLetter:
		return parquetio.ParseAvro(rules, LetterSchema)
	case w.Format == FormatJSON:
		v, err := parquetio.ParseJSONSchema(rules, w.Text)
		if err != nil {
			return nil, fmt.Errorf("schema %s: %w: %w", w, ErrUnusableSchema, err)
		}
		return v, nil
	}
	r, err := s.lookup(ctx, w.Schema)
	if err != nil {
		return nil, fmt.Errorf("schema %s: %w", w, err)
	}
	var earlier []int32
	if r.Type == typeProtobuf {
		if earlier, err = s.names.Earlier(ctx, w.Schema, MaxEarlier); err != nil {
			return nil, fmt.Errorf("versions before schema %s: %w", w, err)
		}
	}
	if c.value, err = s.Columns(ctx, rules, r, w.Message, earlier); err != nil {
		err = fmt.Errorf("schema %s: %w", w, err)
		if !Certain(err) {
			return nil, err
		}
		c.err = err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= maxSchemas {
		clear(s.known)
	}
	s.known[mapped{w, rules}] = c
	return c.value, c.err
}

// Columns returns what a schema, which need not be registered yet, writes as columns: for Protobuf
// the message with these indexes, empty for the first, after the versions that came before it, newest
// first. Its errors are those of Value.
func (s *Schemas) Columns(ctx context.Context, rules parquetio.Rules, r RegisteredSchema, message string, earlier []int32) (v *parquetio.ValueSchema, err error) {
	switch r.Type {
	case "", "AVRO":
		v, err = parquetio.ParseAvro(rules, r.Text, r.References...)
	case typeProtobuf:
		v, err = parquetio.ParseProtobuf(rules, r.Text, message, r.References...)
	case "JSON":
		v, err = parquetio.ParseJSONSchema(rules, r.Text, r.References...)
	default:
		err = fmt.Errorf("type %s has no table mapping", r.Type)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnusableSchema, err)
	}
	if r.Type == typeProtobuf {
		if err := s.renamed(ctx, message, v, earlier); err != nil {
			return nil, fmt.Errorf("an earlier version: %w", err)
		}
	}
	return v, nil
}

// MaxEarlier bounds the versions that tell the former names of Protobuf fields.
const MaxEarlier = 20

// renamed has v know what its fields were called in earlier versions.
func (s *Schemas) renamed(ctx context.Context, message string, v *parquetio.ValueSchema, earlier []int32) error {
	for _, id := range earlier {
		r, err := s.lookup(ctx, id)
		if errors.Is(err, metadata.ErrSchemaNotExist) || err == nil && r.Type != typeProtobuf {
			continue
		}
		if err != nil {
			return err
		}
		if earlier, err := parquetio.ParseProtobuf(parquetio.Rules{}, r.Text, message, r.References...); err == nil { // else it never made columns
			v.Renamed(earlier)
		}
	}
	return nil
}

// Record returns the [RecordName] of what w writes. Its errors are those of Value.
func (s *Schemas) Record(ctx context.Context, w Writer) (string, error) {
	s.mu.Lock()
	name, ok := s.records[w]
	s.mu.Unlock()
	if ok {
		return name, nil
	}
	r, err := s.lookup(ctx, w.Schema)
	if err != nil {
		return "", fmt.Errorf("schema %s: %w", w, err)
	}
	if name, err = RecordName(r, w.Message); err != nil {
		return "", fmt.Errorf("schema %s: %w: %w", w, ErrUnusableSchema, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.records) >= maxSchemas {
		clear(s.records)
	}
	s.records[w] = name
	return name, nil
}

// RecordName returns what the strategies of subjects call the record of a schema: the full name of
// an Avro type, or of a Protobuf message, the title of a JSON Schema; empty if it has none.
func RecordName(r RegisteredSchema, message string) (string, error) {
	switch r.Type {
	case typeProtobuf:
		return parquetio.MessageName(r.Text, message, r.References...)
	case "JSON":
		var s struct{ Title string }
		if r.Text == "true" || r.Text == "false" {
			return "", nil
		}
		err := json.Unmarshal([]byte(r.Text), &s)
		return s.Title, err
	}
	var s struct{ Namespace, Name string }
	if !strings.HasPrefix(strings.TrimSpace(r.Text), "{") {
		return "", nil // a union or a primitive
	}
	if err := json.Unmarshal([]byte(r.Text), &s); err != nil || s.Namespace == "" || strings.Contains(s.Name, ".") {
		return s.Name, err
	}
	return s.Namespace + "." + s.Name, nil
}

// Certain reports whether err of Value says something that no retry changes.
func Certain(err error) bool {
	return errors.Is(err, metadata.ErrSchemaNotExist) || errors.Is(err, ErrUnusableSchema)
}
