package parquetio

import (
	"errors"
	"fmt"
	"slices"

	"github.com/apache/iceberg-go"
)

// AsKey returns v as a schema of keys: a [Mapping] makes one column of it, beside those of the
// values.
func (v *ValueSchema) AsKey() *ValueSchema {
	return &ValueSchema{Fields: v.Fields, Single: v.Single, aliases: v.aliases, writer: keyWriter{v}}
}

func (v *ValueSchema) isKey() bool {
	_, ok := v.writer.(keyWriter)
	return ok
}

// columns returns what v writes, without the Kafka column.
func (m Mapping) columns(v *ValueSchema) ([]iceberg.NestedField, error) {
	if v.isKey() {
		if m.KeyColumn == "" {
			return nil, errors.New("the table has no column for keys: set table.topic.key.column")
		}
		id := 0
		return assignIDs([]iceberg.NestedField{v.asColumn(m.KeyColumn)}, &id), nil
	}
	for _, f := range v.Fields {
		switch {
		case isColumn(m.KafkaColumn, f.Name):
			return nil, fmt.Errorf("field %s: the name is taken by the column for topic, partition and offset: set table.topic.kafka.column to another name, or empty to leave it out", f.Name)
		case isColumn(m.KeyColumn, f.Name):
			return nil, fmt.Errorf("field %s: the name is taken by the column of the key: set table.topic.key.column to another name", f.Name)
		}
	}
	return slices.Clip(slices.Clone(v.Fields)), nil
}

// asColumn returns v as one field: the value itself if the root of the schema is no record, else a
// struct of its fields.
func (v *ValueSchema) asColumn(name string) iceberg.NestedField {
	f := iceberg.NestedField{Name: name, Required: true}
	switch {
	case v.Single && len(v.Fields) == 1:
		f.Type, f.Required = v.Fields[0].Type, v.Fields[0].Required
	case v.Single: // always null
		f.Type, f.Required = iceberg.PrimitiveTypes.String, false
	case len(v.Fields) == 0:
		f.Type = &iceberg.StructType{FieldList: []iceberg.NestedField{presentField}}
	default:
		f.Type = &iceberg.StructType{FieldList: v.Fields}
	}
	return f
}

// noKey stands for the column of the key in a table that has none.
const noKey = -1

// key returns the column of the key.
func (t *target) key() int {
	for _, k := range t.top {
		if isColumn(t.mapping.KeyColumn, t.cols[k].name) {
			return k
		}
	}
	return noKey
}

// A keyWriter writes the column of the key, and nothing else.
type keyWriter struct {
	of *ValueSchema
}

func (w keyWriter) compile(t *target) (program, error) {
	p := keyProgram{col: t.key(), record: !w.of.Single}
	own := &target{mapping: Mapping{Former: t.mapping.Former}, names: t.names, cols: t.cols, top: t.cols[p.col].kids}
	if !p.record {
		own.cols, own.top = slices.Clone(t.cols), []int{p.col}
		own.cols[p.col].name = rootColumn
	}
	var err error
	p.program, err = w.of.writer.compile(own)
	return p, err
}

// A keyProgram puts keys into their column.
type keyProgram struct {
	program
	col    int
	record bool // the column is a struct
}

func (p keyProgram) decode(b *Builder, payload []byte) bool {
	if p.record {
		b.cols[p.col].present()
	}
	return p.program.decode(b, payload)
}

// errKeyColumn says that a row would have two values, or none, in the column of the key.
var errKeyColumn = errors.New("append record: decoders of key and value are not of the same columns")

// putKey fills the column of the key in the row at hand.
func (b *Builder) putKey(col int, m RecordMeta) bool {
	if m.KeyDecoder != nil {
		return b.decode(m.KeyDecoder.program, m.KeyPayload)
	}
	if col != noKey {
		b.null(col)
	}
	return true
}
