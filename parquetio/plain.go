package parquetio

import (
	"unicode/utf8"

	"github.com/apache/iceberg-go"
)

// StringValue is what writers of UTF-8 text write: the one column "value", of type string.
func StringValue() *ValueSchema { return plainValue(iceberg.PrimitiveTypes.String) }

// BytesValue is what writers of any bytes write: the one column "value", of type binary.
func BytesValue() *ValueSchema { return plainValue(iceberg.PrimitiveTypes.Binary) }

func plainValue(t iceberg.Type) *ValueSchema {
	field := iceberg.NestedField{ID: 1, Name: rootColumn, Type: t, Required: true}
	return &ValueSchema{Fields: []iceberg.NestedField{field}, Single: true, writer: plainWriter{t}}
}

// A plainWriter writes payloads that are one value, without any encoding.
type plainWriter struct {
	typ iceberg.Type
}

func (w plainWriter) compile(t *target) (program, error) {
	columns, rest := t.bind([]string{rootColumn}, t.top)
	return plainProgram{col: columns[0], text: w.typ.Equals(iceberg.PrimitiveTypes.String), rest: rest}, nil
}

type plainProgram struct {
	col  int
	text bool  // UTF-8
	rest []int // columns that no value fills
}

func (p plainProgram) decode(b *Builder, payload []byte) bool {
	if p.text && !utf8.Valid(payload) {
		b.failed(p.col, 0, reasonUTF8)
		return false
	}
	for _, k := range p.rest {
		b.lack(k)
	}
	if payload == nil {
		payload = []byte{}
	}
	return b.blob(p.col, payload)
}
