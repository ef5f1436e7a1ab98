package worker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/parquetio"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// The headers in which serializers name the schema of value and key, if not in front of the
// payload: Confluent's HeaderSchemaIdSerializer. They begin as a payload does.
const (
	headerValueSchema = "__value_schema_id"
	headerKeySchema   = "__key_schema_id"
)

const (
	wireID     = 1 + 4  // magic byte 0, schema id
	wireGUID   = 1 + 16 // magic byte 1, GUID of a schema
	magicID    = 0
	magicGUID  = 1
	noMagic    = "the payload does not begin with a zero byte and a schema id: use a schema registry serializer, or set table.topic.value.format"
	noMagicKey = "the key does not begin with a zero byte and a schema id: use a schema registry serializer, or set table.topic.key.format"
)

// A payload is the value or the key of a record, as it is decoded.
type payload struct {
	writer  control.Writer
	guid    uuid.UUID // by which the record names the schema, if it does
	decoder *parquetio.Decoder
	body    []byte
}

// An unfit is why a record cannot become a row: a cause of dead letters, and what is wrong.
type unfit struct {
	cause, detail string
}

// A reading finds out what wrote the payloads of a chunk of records.
type reading struct {
	cfg       *Config
	schemas   Schemas
	indexed   map[int32]bool // schemas whose payloads have the indexes of a message in front, or have not
	latest    [2]*control.Writer
	types     map[control.Writer]typed
	verdicts  *verdicts
	forgotten int64 // how often verdicts had, before the dead letters were read
}

func (w *Worker) reading() *reading {
	v := w.shared.verdicts
	return &reading{cfg: &w.cfg, schemas: w.schemas, indexed: map[int32]bool{}, verdicts: v, forgotten: v.forgotten.Load()}
}

// format is that of values, or of keys.
func (c *Config) format(key bool) *partition.Payload {
	if key {
		return &c.Key
	}
	return &c.Value
}

// side is the index of a part of the record in [reading.latest].
func side(key bool) int {
	if key {
		return 1
	}
	return 0
}

// payload tells what wrote data, the value or the key of a record, and what of it is for the
// decoder. An error says that this is not known now.
func (r *reading) payload(ctx context.Context, key bool, data []byte, headers []record.Header) (p payload, bad *unfit, err error) {
	p.body, p.writer.Key = data, key
	format := r.cfg.format(key)
	switch format.Format {
	case partition.FormatString:
		p.writer.Format = control.FormatString
		return p, nil, nil
	case partition.FormatBytes:
		p.writer.Format = control.FormatBytes
		return p, nil, nil
	case partition.FormatJSON:
		p.writer.Format = control.FormatJSON
		return p, nil, nil
	case partition.FormatLetter:
		p.writer.Format = control.FormatLetter
		return p, nil, nil
	case partition.FormatLatest:
		if r.latest[side(key)] == nil {
			if err := r.renew(ctx, key); err != nil {
				return p, nil, err
			}
		}
		p.writer = *r.latest[side(key)]
		return p, nil, nil
	}
	name, reason := headerValueSchema, noMagic
	if key {
		name, reason = headerKeySchema, noMagicKey
	}
	indexes, inHeader := data, false
	if h, ok := lastHeader(headers, name); ok {
		p.guid = guidIn(h)
		if indexes, bad, err = r.schemaID(ctx, &p.writer, h); bad != nil {
			bad = &unfit{CauseBadHeader, fmt.Sprintf("header %s holds neither a zero byte and a schema id, nor a one and a GUID", name)}
		}
		inHeader = true
	} else if len(data) < wireID || data[0] != magicID {
		return p, &unfit{CauseNoMagic, reason}, nil
	} else {
		indexes, bad, err = r.schemaID(ctx, &p.writer, data)
		p.body = indexes
	}
	if bad != nil || err != nil {
		return p, bad, err
	}
	indexed, known := r.indexed[p.writer.Schema]
	if !known {
		indexed, err = r.schemas.Indexed(ctx, p.writer.Schema)
		if err != nil {
			return p, nil, err
		}
		r.indexed[p.writer.Schema] = indexed
	}
	if !indexed || inHeader && len(indexes) == 0 {
		return p, nil, nil
	}
	message, rest, err := parquetio.SplitMessageIndexes(indexes)
	if err != nil {
		return p, &unfit{CauseUndecodable, err.Error()}, nil
	}
	if p.writer.Message = message; !inHeader {
		p.body = rest
	}
	return p, nil, nil
}

// guidIn returns the GUID by which a header names a schema, if it does.
func guidIn(data []byte) (guid uuid.UUID) {
	if len(data) >= wireGUID && data[0] == magicGUID {
		guid = uuid.UUID(data[1:wireGUID])
	}
	return guid
}

// schemaID reads which schema a header, or what is in front of a payload, names.
func (r *reading) schemaID(ctx context.Context, w *control.Writer, data []byte) (rest []byte, bad *unfit, err error) {
	switch {
	case len(data) >= wireID && data[0] == magicID:
		w.Schema = int32(binary.BigEndian.Uint32(data[1:]))
		return data[wireID:], nil, nil
	case len(data) >= wireGUID && data[0] == magicGUID:
		w.Schema, err = r.schemas.GUID(ctx, uuid.UUID(data[1:wireGUID]))
		return data[wireGUID:], nil, err
	}
	return nil, &unfit{cause: CauseBadHeader}, nil
}

// lastHeader returns the header of that name that counts.
func lastHeader(headers []record.Header, name string) ([]byte, bool) {
	for i := len(headers) - 1; i >= 0; i-- {
		if headers[i].Key == name {
			return headers[i].Value, true
		}
	}
	return nil, false
}

// renew asks for the latest schema of values, or of keys.
func (r *reading) renew(ctx context.Context, key bool) error {
	format := r.cfg.format(key)
	w, err := r.schemas.Latest(ctx, format.Subject, format.Message)
	if errors.Is(err, metadata.ErrSchemaNotExist) || errors.Is(err, control.ErrUnusableSchema) {
		return fmt.Errorf("records wait for a version of the subject: %s", err) // which may come: it is no fault of theirs
	}
	if err != nil {
		return err
	}
	w.Key = key
	r.latest[side(key)] = &w
	return nil
}

// renewed reports whether values or keys that name no schema have another one by now.
func (r *reading) renewed(ctx context.Context) (bool, error) {
	changed := false
	for i, was := range r.latest {
		if was == nil {
			continue
		}
		if err := r.renew(ctx, i == side(true)); err != nil {
			return false, err
		}
		changed = changed || *r.latest[i] != *was
	}
	return changed, nil
}

// payload finds the decoder of data, or why there can be none. With neither, needed or err says
// what must come first.
func (t *task) payload(ctx context.Context, key bool, data []byte, headers []record.Header) (payload, *unfit) {
	p, bad, err := t.reading.payload(ctx, key, data, headers)
	if err != nil {
		return p, t.unknown(err)
	}
	if bad != nil {
		return p, bad
	}
	before := &t.before[side(key)]
	if before.decoder == nil || before.writer != p.writer {
		before.writer = p.writer
		before.decoder, bad = t.decoder(ctx, p.writer)
	}
	p.decoder = before.decoder
	return p, bad
}

// unknown says what an error of the registry means for a record.
func (t *task) unknown(err error) *unfit {
	if bad := certain(err); bad != nil {
		return bad
	}
	if !invariant.Off("registry-down-waits") {
		t.err = fmt.Errorf("the registry does not answer; the partition waits: %w", err)
		return nil
	}
	return &unfit{CauseUnknownSchema, err.Error()}
}

// certain says what an error of the registry means for a record, nil if it may pass.
func certain(err error) *unfit {
	switch {
	case errors.Is(err, metadata.ErrSchemaNotExist):
		return &unfit{CauseUnknownSchema, err.Error()}
	case control.Certain(err):
		return &unfit{CauseBadSchema, err.Error()}
	}
	return nil
}

// decoder returns the decoder of what w writes, or why its records cannot become rows. With
// neither, needed or err says what must come first; nothing does if the table has no column yet for keys
// that are plain JSON.
func (t *task) decoder(ctx context.Context, w control.Writer) (*parquetio.Decoder, *unfit) {
	if d := t.decoders[w]; d != nil {
		return d, nil
	}
	if d, ok := t.table.decoders.Load(w); ok {
		t.decoders[w] = d.(*parquetio.Decoder)
		return t.decoders[w], nil
	}
	if w.Format == control.FormatJSON {
		compile := t.table.mapping.CompileJSON
		if w.Key {
			compile = t.table.mapping.CompileJSONKey
		}
		d, err := compile(t.table.schema)
		if errors.Is(err, parquetio.ErrLacksColumn) {
			return nil, nil
		}
		if err != nil {
			return nil, &unfit{CauseIncompatible, err.Error()}
		}
		return t.keep(w, d), nil
	}
	v, err := t.w.schemas.Value(ctx, w, t.table.rules)
	if err != nil {
		return nil, t.unknown(err)
	}
	if w.Key {
		v = v.AsKey()
	}
	if reason, ok := t.refused[w]; ok {
		return nil, &unfit{CauseIncompatible, reason}
	}
	d, err := t.table.mapping.Compile(v, t.table.schema)
	if err != nil && slices.Contains(t.table.Fits, w) {
		return nil, &unfit{CauseIncompatible, err.Error()}
	}
	if err != nil {
		t.need(w)
		return nil, nil
	}
	return t.keep(w, d), nil
}

// need says what the table must hold first. Here, w does not escape from all who look for a decoder.
func (t *task) need(w control.Writer) { t.needed = &w }

// keep has d found without being compiled again.
func (t *task) keep(w control.Writer, d *parquetio.Decoder) *parquetio.Decoder {
	t.w.metrics.decoders.Inc()
	t.table.decoders.Store(w, d)
	t.decoders[w] = d
	return d
}
