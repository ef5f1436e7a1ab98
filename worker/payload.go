package worker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

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
	decoder *parquetio.Decoder
	body    []byte
}

// An unfit is why a record cannot become a row: a cause of dead letters, and what is wrong.
type unfit struct {
	cause, detail string
}

// written tells what wrote data, and what of it is for the decoder.
func written(format string, key bool, data []byte, headers []record.Header) (p payload, bad *unfit) {
	p = payload{writer: control.Writer{Key: key}, body: data}
	switch format {
	case partition.FormatString:
		p.writer.Format = control.FormatString
		return p, nil
	case partition.FormatBytes:
		p.writer.Format = control.FormatBytes
		return p, nil
	}
	name, reason := headerValueSchema, noMagic
	if key {
		name, reason = headerKeySchema, noMagicKey
	}
	for i := len(headers) - 1; i >= 0; i-- {
		if headers[i].Key != name {
			continue
		}
		switch h := headers[i].Value; {
		case len(h) >= wireID && h[0] == magicID:
			p.writer.Schema = int32(binary.BigEndian.Uint32(h[1:]))
			return p, nil
		case len(h) >= wireGUID && h[0] == magicGUID:
			return p, &unfit{CauseUnknownSchema, fmt.Sprintf("header %s names a schema by GUID, which this registry does not know: let the serializer write ids", name)}
		}
		return p, &unfit{CauseBadHeader, fmt.Sprintf("header %s holds neither a zero byte and a schema id, nor a one and a GUID", name)}
	}
	if len(data) < wireID || data[0] != magicID {
		return p, &unfit{CauseNoMagic, reason}
	}
	p.writer.Schema = int32(binary.BigEndian.Uint32(data[1:]))
	p.body = data[wireID:]
	return p, nil
}

// payload finds the decoder of data, or why there can be none. With neither, needed or err says
// what must come first.
func (t *task) payload(ctx context.Context, format string, key bool, data []byte, headers []record.Header) (payload, *unfit) {
	p, bad := written(format, key, data, headers)
	if bad == nil {
		p.decoder, bad = t.decoder(ctx, p.writer)
	}
	return p, bad
}

// decoder returns the decoder of what w writes, or why its records cannot become rows. With
// neither, needed or err says what must come first.
func (t *task) decoder(ctx context.Context, w control.Writer) (*parquetio.Decoder, *unfit) {
	if d := t.decoders[w]; d != nil {
		return d, nil
	}
	if d, ok := t.table.decoders.Load(w); ok {
		t.decoders[w] = d.(*parquetio.Decoder)
		return t.decoders[w], nil
	}
	v, err := t.w.schemas.Value(ctx, w)
	switch {
	case errors.Is(err, metadata.ErrSchemaNotExist):
		return nil, &unfit{CauseUnknownSchema, err.Error()}
	case control.Certain(err):
		return nil, &unfit{CauseBadSchema, err.Error()}
	case err != nil && !invariant.Off("registry-down-waits"):
		t.err = fmt.Errorf("the registry does not answer; the partition waits: %w", err)
		return nil, nil
	case err != nil:
		return nil, &unfit{CauseUnknownSchema, err.Error()}
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
		t.needed = &w
		return nil, nil
	}
	t.table.decoders.Store(w, d)
	t.decoders[w] = d
	return d, nil
}
