package control

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/parquetio"
)

// A RegisteredSchema is a schema as the registry has it.
type RegisteredSchema struct {
	Type       string // AVRO or PROTOBUF; empty means AVRO
	Text       string
	References []parquetio.Reference // the schemas that it names, each after those that it names itself
}

// A Lookup reads the registry. metadata.ErrSchemaNotExist says that the id does not exist,
// by a read that cannot be stale; any other error says that the registry cannot tell now.
type Lookup func(ctx context.Context, id int32) (RegisteredSchema, error)

// ErrUnusableSchema says that a schema exists and cannot become columns. No retry helps.
var ErrUnusableSchema = errors.New("schema cannot become columns")

// Schemas gives what writers write as columns, and remembers the last 1,000: an id never
// changes its meaning.
type Schemas struct {
	lookup Lookup

	mu    sync.Mutex
	known map[Writer]*parquetio.ValueSchema // guarded by mu
}

// maxSchemas bounds the cache.
const maxSchemas = 1000

// NewSchemas returns a cache over lookup.
func NewSchemas(lookup Lookup) *Schemas {
	return &Schemas{lookup: lookup, known: map[Writer]*parquetio.ValueSchema{}}
}

// Value returns the columns of w. Its error is metadata.ErrSchemaNotExist or ErrUnusableSchema if
// that is certain; any other may pass.
func (s *Schemas) Value(ctx context.Context, w Writer) (*parquetio.ValueSchema, error) {
	s.mu.Lock()
	v := s.known[w]
	s.mu.Unlock()
	switch {
	case v != nil:
		return v, nil
	case w.Format == FormatString:
		return parquetio.StringValue(), nil
	case w.Format == FormatBytes:
		return parquetio.BytesValue(), nil
	}
	r, err := s.lookup(ctx, w.Schema)
	if err != nil {
		return nil, fmt.Errorf("schema %s: %w", w, err)
	}
	switch r.Type {
	case "", "AVRO":
		v, err = parquetio.ParseAvro(r.Text, r.References...)
	case "PROTOBUF":
		v, err = parquetio.ParseProtobuf(r.Text, w.Message, r.References...)
	default:
		err = fmt.Errorf("type %s has no table mapping yet; use Avro or Protobuf", r.Type)
	}
	if err != nil {
		return nil, fmt.Errorf("schema %s: %w: %w", w, ErrUnusableSchema, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= maxSchemas {
		clear(s.known)
	}
	s.known[w] = v
	return v, nil
}

// Certain reports whether err of Value says something that no retry changes.
func Certain(err error) bool {
	return errors.Is(err, metadata.ErrSchemaNotExist) || errors.Is(err, ErrUnusableSchema)
}
