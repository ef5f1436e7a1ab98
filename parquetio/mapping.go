package parquetio

import (
	"fmt"

	"github.com/apache/iceberg-go"
)

// PresentField is the one field of a struct that stands for a record without fields.
const PresentField = "_present"

var presentField = iceberg.NestedField{Name: PresentField, Type: iceberg.PrimitiveTypes.Bool, Required: true}

// rootColumn holds the value of a schema whose root is no record.
const rootColumn = "value"

// ValueSchema is a writer schema as columns.
type ValueSchema struct {
	// Fields are the columns, with ids assigned from 1 as in a new table. A field is
	// required if the writer cannot write null.
	Fields []iceberg.NestedField
	// Single says that the root is no record: it has the one column "value", or none if it is
	// always null.
	Single bool

	aliases map[string][]string // earlier names of fields, by their path
	writer  writer
}

// A writer is a schema of one format.
type writer interface {
	// compile returns the program for the columns of a table, which hold all that is written.
	compile(t *target) (program, error)
}

// A Reference is a schema that another one names.
type Reference struct {
	Name string // as the other imports it; Avro takes the names from the text
	Text string
}

// ParseAvro maps an Avro schema to columns. References are the schemas that it
// names, each after those that it names itself. The error names the field and the reason.
func ParseAvro(rules Rules, schema string, references ...Reference) (*ValueSchema, error) {
	root, err := parseAvro(schema, references)
	if err != nil {
		return nil, err
	}
	single := root.kind != wireRecord
	if single {
		root = &node{kind: wireRecord, fields: []nodeField{{name: rootColumn, node: root}}}
	}
	return newValueSchema(rules, root, single, root)
}

// newValueSchema maps the fields of a record, which w reads, to columns.
func newValueSchema(rules Rules, root *node, single bool, w writer) (*ValueSchema, error) {
	m := mapper{rules: rules, open: map[*node]int{root: 1}, paths: map[string]string{}, aliases: map[string][]string{}}
	fields, err := m.fields(root, "")
	if err != nil {
		return nil, err
	}
	id := 0
	return &ValueSchema{Fields: assignIDs(fields, &id), Single: single, aliases: m.aliases, writer: w}, nil
}

// mapper walks a wire graph and unfolds it into column types, without ids.
type mapper struct {
	rules   Rules
	open    map[*node]int     // records, arrays and maps that the walk is inside of, and how often
	paths   map[string]string // folded, and as they are
	aliases map[string][]string
	depth   int
	columns int
}

func (m *mapper) fields(record *node, path string) ([]iceberg.NestedField, error) {
	var out []iceberg.NestedField
	for _, f := range record.fields {
		at := join(path, f.name)
		if f.name == "" {
			return nil, fmt.Errorf("field %s: has no name, which a column needs: rename it", at)
		}
		key := foldCase(at)
		switch other, taken := m.paths[key]; {
		case taken && other == at:
			return nil, fmt.Errorf("field %s: has a dot in its name, and the path of another field: rename one", at)
		case taken:
			return nil, fmt.Errorf("field %s: differs from field %s by case alone, which engines cannot tell apart: rename one", at, other)
		}
		m.paths[key] = at
		t, required, err := m.typeOf(f.node, at)
		if err != nil {
			return nil, err
		}
		if t != nil {
			column := iceberg.NestedField{Name: f.name, Type: t, Required: required, Doc: f.doc}
			if m.rules.Defaults {
				column.InitialDefault = defaultOf(f.node, t, f.fallback)
				column.WriteDefault = column.InitialDefault
			}
			out = append(out, column)
			if len(f.aliases) > 0 {
				m.aliases[at] = f.aliases
			}
		}
	}
	return out, nil
}

// typeOf returns the column type of n, and nil if n is always null.
func (m *mapper) typeOf(n *node, path string) (t iceberg.Type, required bool, err error) {
	if n.kind == wireUnion {
		if value, null := n.single(); value != nil {
			t, required, err = m.typeOf(value, path)
			return t, required && null < 0, err
		}
	}
	if m.columns++; m.columns > maxColumns {
		return nil, false, fmt.Errorf("field %s: more than %d columns, inner ones counted", path, maxColumns)
	}
	if m.depth++; m.depth > maxColumnDepth {
		return nil, false, fmt.Errorf("field %s: columns nested deeper than %d", path, maxColumnDepth)
	}
	defer func() { m.depth-- }()
	if n.size > maxFixedBytes {
		return nil, false, fmt.Errorf("field %s: fixed of %d bytes, at most %d are supported: use bytes", path, n.size, maxFixedBytes)
	}
	switch n.kind {
	case wireRecord, wireArray, wireMap:
		switch within := m.open[n]; {
		case within > 0 && m.rules.RefuseRecursion:
			return nil, false, fmt.Errorf("field %s: %w", path, ErrRecursion)
		case within > m.rules.Depth:
			return m.rules.jsonType(), true, nil
		}
		m.open[n]++
		defer func() { m.open[n]-- }()
	}
	switch n.kind {
	case wireNull:
		return nil, false, nil
	case wireUnion:
		return m.rules.jsonType(), !n.nullable(), nil
	case wireRecord:
		fields, err := m.fields(n, path)
		if err != nil {
			return nil, false, err
		}
		if len(fields) == 0 {
			fields = []iceberg.NestedField{presentField}
		}
		return &iceberg.StructType{FieldList: fields}, true, nil
	case wireArray:
		item, required, err := m.itemType(n.item, join(path, "element"))
		if err != nil {
			return nil, false, err
		}
		return &iceberg.ListType{Element: item, ElementRequired: required}, true, nil
	case wireMap:
		value, required, err := m.itemType(n.item, join(path, "value"))
		if err != nil {
			return nil, false, err
		}
		return &iceberg.MapType{KeyType: iceberg.PrimitiveTypes.String, ValueType: value, ValueRequired: required}, true, nil
	}
	return m.rules.primitiveType(n), true, nil
}

// itemType is typeOf for what a list or map holds, which must have some type.
func (m *mapper) itemType(n *node, path string) (iceberg.Type, bool, error) {
	t, required, err := m.typeOf(n, path)
	if err == nil && t == nil {
		t = iceberg.PrimitiveTypes.String
	}
	return t, required, err
}

func (n *node) nullable() bool {
	for _, b := range n.branches {
		if b.kind == wireNull {
			return true
		}
	}
	return false
}

// jsonType is that of values for which there is no other column.
func (r Rules) jsonType() iceberg.Type {
	if r.Variant {
		return iceberg.VariantType{}
	}
	return iceberg.PrimitiveTypes.String
}

// primitiveType is that of the node, with nanoseconds if the table has them.
func (r Rules) primitiveType(n *node) iceberg.Type {
	switch {
	case n.kind == wireAny:
		return r.jsonType()
	case r.Nanos && n.logical == logicalTimestampNanos:
		return iceberg.PrimitiveTypes.TimestampTzNs
	case r.Nanos && n.logical == logicalLocalNanos:
		return iceberg.PrimitiveTypes.TimestampNs
	}
	return n.primitiveType()
}

func (n *node) primitiveType() iceberg.Type {
	switch n.logical {
	case logicalDate:
		return iceberg.PrimitiveTypes.Date
	case logicalTimeMillis, logicalTimeMicros, logicalTimeNanos:
		return iceberg.PrimitiveTypes.Time
	case logicalTimestampMillis, logicalTimestampMicros, logicalTimestampNanos, logicalZoned:
		return iceberg.PrimitiveTypes.TimestampTz
	case logicalLocalMillis, logicalLocalMicros, logicalLocalNanos:
		return iceberg.PrimitiveTypes.Timestamp
	case logicalDecimal:
		return iceberg.DecimalTypeOf(n.precision, n.scale)
	case logicalUUID:
		return iceberg.PrimitiveTypes.UUID
	}
	switch n.kind {
	case wireBoolean:
		return iceberg.PrimitiveTypes.Bool
	case wireInt:
		return iceberg.PrimitiveTypes.Int32
	case wireLong:
		return iceberg.PrimitiveTypes.Int64
	case wireFloat:
		return iceberg.PrimitiveTypes.Float32
	case wireDouble:
		return iceberg.PrimitiveTypes.Float64
	case wireFixed:
		if n.size > 0 {
			return iceberg.FixedTypeOf(n.size)
		}
		return iceberg.PrimitiveTypes.Binary
	case wireBytes:
		return iceberg.PrimitiveTypes.Binary
	}
	return iceberg.PrimitiveTypes.String
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
