package parquetio

import (
	"fmt"
	"slices"
	"strings"

	"github.com/apache/iceberg-go"
)

// kafkaFields are the fields of the struct that says where a row came from.
func kafkaFields() []iceberg.NestedField {
	header := &iceberg.StructType{FieldList: []iceberg.NestedField{
		{Name: "key", Type: iceberg.PrimitiveTypes.String},
		{Name: "value", Type: iceberg.PrimitiveTypes.Binary},
	}}
	return []iceberg.NestedField{
		{Name: "partition", Type: iceberg.PrimitiveTypes.Int32},
		{Name: "offset", Type: iceberg.PrimitiveTypes.Int64},
		{Name: "timestamp", Type: iceberg.PrimitiveTypes.TimestampTz},
		{Name: "timestamp_type", Type: iceberg.PrimitiveTypes.Int32},
		{Name: "key", Type: iceberg.PrimitiveTypes.Binary},
		{Name: "headers", Type: &iceberg.ListType{Element: header}},
	}
}

// A Mapping says how the fields of writers become columns of one table.
type Mapping struct {
	// KafkaColumn is the struct that says where a row came from (partition, offset, timestamp,
	// timestamp_type, key, headers); the table has none if it is empty.
	KafkaColumn string
	// KeyColumn has the keys that schemas describe ([ValueSchema.AsKey]); values leave it alone.
	KeyColumn string
}

// TableSchema returns the schema of a new table for v: its columns, all optional, then the
// Kafka column. Ids are assigned from 1, in the order in which iceberg-go would.
func (m Mapping) TableSchema(v *ValueSchema) (*iceberg.Schema, error) {
	next, _, err := m.Evolve(iceberg.NewSchema(0), 0, v)
	return next, err
}

// An IncompatibleError lists the columns that cannot hold what the writer writes.
type IncompatibleError struct {
	Columns []IncompatibleColumn
}

// An IncompatibleColumn is one column of an [IncompatibleError].
type IncompatibleColumn struct {
	Path          string // dotted, with element, key and value inside lists and maps
	Table, Writer iceberg.Type
}

func (e *IncompatibleError) Error() string {
	var b strings.Builder
	b.WriteString("schema does not fit the table: ")
	for i, c := range e.Columns {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "column %s is %s, the writer has %s", c.Path, c.Table, c.Writer)
	}
	return b.String()
}

// Evolve returns the schema that table must have to hold v: columns that table lacks,
// nested at any depth, are appended as optional with ids above lastID; int becomes long,
// float becomes double, a decimal gets the larger precision; a required column that the
// writer lacks or may leave null becomes optional. Columns keep their order and are never
// dropped. If table fits already it is returned as it is, and changed is false. The error
// is an [*IncompatibleError] if a column would have to change in another way.
//
// The same inputs always give the same ids.
func (m Mapping) Evolve(table *iceberg.Schema, lastID int, v *ValueSchema) (next *iceberg.Schema, changed bool, err error) {
	want, err := m.columns(v)
	if err != nil {
		return nil, false, err
	}
	if m.KafkaColumn != "" {
		want = append(want, iceberg.NestedField{
			Name: m.KafkaColumn, Type: &iceberg.StructType{FieldList: kafkaFields()},
		})
	}
	e := evolver{lastID: max(lastID, table.HighestFieldID())}
	fields := e.fields(table.Fields(), want, "")
	if len(e.bad) > 0 {
		return nil, false, &IncompatibleError{e.bad}
	}
	if !e.changed {
		return table, false, nil
	}
	next = iceberg.NewSchemaWithIdentifiers(table.ID+1, slices.Clone(table.IdentifierFieldIDs), fields...)
	if table.NumFields() == 0 {
		next.ID = 0
	}
	return next, true, nil
}

type evolver struct {
	lastID  int
	changed bool
	bad     []IncompatibleColumn
}

func (e *evolver) fields(have, want []iceberg.NestedField, path string) []iceberg.NestedField {
	out := slices.Clone(have)
	for i := range out {
		f := &out[i]
		w := matchField(want, have, f.Name)
		if (w < 0 || !want[w].Required) && f.Required {
			f.Required, e.changed = false, true
		}
		if w >= 0 {
			f.Type = e.typ(f.Type, want[w].Type, join(path, f.Name))
		}
	}
	var added []iceberg.NestedField
	for _, w := range want {
		if matchField(have, want, w.Name) < 0 {
			added = append(added, iceberg.NestedField{Name: w.Name, Type: optional(w.Type), Doc: w.Doc})
		}
	}
	if len(added) > 0 {
		e.changed = true
		out = append(out, assignIDs(added, &e.lastID)...)
	}
	return out
}

// matchField returns the index of the field that goes with name, -1 if there is none: the one of
// exactly that name, else the one that differs by case alone, unless peers, the fields beside
// name, have that exact name themselves.
func matchField(fields, peers []iceberg.NestedField, name string) int {
	byCase := -1
	for i := range fields {
		if fields[i].Name == name {
			return i
		}
		if byCase < 0 && strings.EqualFold(fields[i].Name, name) {
			byCase = i
		}
	}
	if byCase < 0 {
		return -1
	}
	for i := range peers {
		if peers[i].Name == fields[byCase].Name {
			return -1
		}
	}
	return byCase
}

func (e *evolver) typ(have, want iceberg.Type, path string) iceberg.Type {
	switch h := have.(type) {
	case *iceberg.StructType:
		if w, ok := want.(*iceberg.StructType); ok {
			return &iceberg.StructType{FieldList: e.fields(h.FieldList, w.FieldList, path)}
		}
	case *iceberg.ListType:
		if w, ok := want.(*iceberg.ListType); ok {
			out := *h
			if h.ElementRequired && !w.ElementRequired {
				out.ElementRequired, e.changed = false, true
			}
			out.Element = e.typ(h.Element, w.Element, join(path, "element"))
			return &out
		}
	case *iceberg.MapType:
		if w, ok := want.(*iceberg.MapType); ok {
			out := *h
			if h.ValueRequired && !w.ValueRequired {
				out.ValueRequired, e.changed = false, true
			}
			if !h.KeyType.Equals(w.KeyType) {
				break
			}
			out.ValueType = e.typ(h.ValueType, w.ValueType, join(path, "value"))
			return &out
		}
	default:
		if t := widen(have, want); t != nil {
			if !t.Equals(have) {
				e.changed = true
			}
			return t
		}
	}
	e.bad = append(e.bad, IncompatibleColumn{path, have, want})
	return have
}

// widen returns the narrowest primitive type that holds both and that Iceberg lets a
// column of type have become (spec, "Schema Evolution"), or nil.
func widen(have, want iceberg.Type) iceberg.Type {
	if have.Equals(want) {
		return have
	}
	switch h := have.(type) {
	case iceberg.Int32Type, iceberg.Float32Type:
		if promotes(have, want) {
			return want
		}
	case iceberg.DecimalType:
		if w, ok := want.(iceberg.DecimalType); ok && w.Scale() == h.Scale() {
			return iceberg.DecimalTypeOf(max(h.Precision(), w.Precision()), h.Scale())
		}
		return nil
	}
	if promotes(want, have) {
		return have
	}
	return nil
}

func promotes(from, to iceberg.Type) bool {
	switch from.(type) {
	case iceberg.Int32Type:
		_, ok := to.(iceberg.Int64Type)
		return ok
	case iceberg.Float32Type:
		_, ok := to.(iceberg.Float64Type)
		return ok
	}
	return false
}

// optional returns t with everything inside it optional, map keys excepted.
func optional(t iceberg.Type) iceberg.Type {
	switch t := t.(type) {
	case *iceberg.StructType:
		fields := slices.Clone(t.FieldList)
		for i := range fields {
			fields[i].Required = false
			fields[i].Type = optional(fields[i].Type)
		}
		return &iceberg.StructType{FieldList: fields}
	case *iceberg.ListType:
		return &iceberg.ListType{ElementID: t.ElementID, Element: optional(t.Element)}
	case *iceberg.MapType:
		return &iceberg.MapType{KeyID: t.KeyID, KeyType: t.KeyType, ValueID: t.ValueID, ValueType: optional(t.ValueType)}
	}
	return t
}

// assignIDs returns fields with ids from *last+1: each field before what it holds, the
// order in which iceberg-go assigns ids to a new table.
func assignIDs(fields []iceberg.NestedField, last *int) []iceberg.NestedField {
	out := slices.Clone(fields)
	for i := range out {
		*last++
		out[i].ID = *last
		out[i].Type = assignTypeIDs(out[i].Type, last)
	}
	return out
}

func assignTypeIDs(t iceberg.Type, last *int) iceberg.Type {
	switch t := t.(type) {
	case *iceberg.StructType:
		return &iceberg.StructType{FieldList: assignIDs(t.FieldList, last)}
	case *iceberg.ListType:
		out := *t
		*last++
		out.ElementID = *last
		out.Element = assignTypeIDs(t.Element, last)
		return &out
	case *iceberg.MapType:
		out := *t
		*last += 2
		out.KeyID, out.ValueID = *last-1, *last
		out.KeyType = assignTypeIDs(t.KeyType, last)
		out.ValueType = assignTypeIDs(t.ValueType, last)
		return &out
	}
	return t
}
