package parquetio

import (
	"fmt"

	"github.com/apache/iceberg-go"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

type protobufWriter struct {
	rules   Rules
	message protoreflect.MessageDescriptor
}

// A protobufMessage reads one message into the columns of a struct, of a map's entry or of
// the table.
type protobufMessage struct {
	fields  []protobufField
	dense   [64]int16 // index+1 into fields, by number
	sparse  map[protowire.Number]int16
	oneofs  [][]int16 // arms, as indexes into fields
	lacks   []int     // columns that the writer lacks
	present int       // column that marks a message without fields, or -1
}

type protobufShape uint8

const (
	shapeScalar  protobufShape = iota
	shapeWrapper               // a message around one scalar
	shapeMessage               // a struct
	shapeFolded                // a message that becomes one value, read when it is whole
	shapeList
	shapeMap
)

// absence says what an unset field is in the table.
type absence uint8

const (
	absentNull    absence = iota
	absentDefault         // zero, empty, or a message with nothing set
	absentRefused         // the record is malformed
)

// A protobufField reads one field into one column, or the items of one field.
type protobufField struct {
	shape  protobufShape
	absent absence
	wire   protowire.Type
	kind   protoreflect.Kind
	wide   bool // int as long, float as double
	digits bool // a number as text
	// zeroNull says that a zero is NULL: nothing tells it from a field that is not set.
	zeroNull bool
	number   protowire.Number
	col      int
	oneof    int // index into the oneofs of the message, or -1

	symbols map[protoreflect.EnumNumber][]byte
	zero    protoreflect.EnumNumber // the default of an enum

	message *protobufMessage // of wrapper, message, map (its entry)
	item    *protobufField   // of list
	cells   int              // values that a message, or an item of a list or a map, puts into columns

	known  wellKnown // of folded: what is not a timestamp or a duration becomes JSON
	folded protoreflect.MessageDescriptor
	slot   int // where the bytes of a folded message wait
	// of a folded decimal
	limit [2]uint64
	scale int
	depth int // of a folded message in the record
}

// protobufProgram is the message that a record is.
type protobufProgram struct {
	root  *protobufMessage
	slots int // folded fields
}

func (w protobufWriter) compile(t *target) (program, error) {
	c := protobufCompiler{target: t, rules: w.rules}
	root := c.message(w.message, t.top)
	return protobufProgram{root, c.slots}, c.err
}

type protobufCompiler struct {
	*target
	rules Rules
	slots int
	depth int // of messages
	err   error
}

func (c *protobufCompiler) fail(col int, format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("column %s: %w", c.cols[col].path, fmt.Errorf(format, args...))
	}
}

// message compiles a message into the columns kids, which hold all its fields.
func (c *protobufCompiler) message(md protoreflect.MessageDescriptor, kids []int) *protobufMessage {
	c.depth++
	defer func() { c.depth-- }()
	m := &protobufMessage{present: -1, fields: make([]protobufField, md.Fields().Len())}
	names := make([]string, len(m.fields))
	for i := range names {
		names[i] = string(md.Fields().Get(i).Name())
	}
	columns, rest := c.bind(names, kids)
	for i, col := range columns {
		fd := md.Fields().Get(i)
		m.fields[i] = c.field(fd, col)
		m.index(fd.Number(), i)
	}
	for i := range md.Oneofs().Len() {
		if md.Oneofs().Get(i).IsSynthetic() {
			m.oneofs = append(m.oneofs, nil)
			continue
		}
		var arms []int16
		for k := range md.Oneofs().Get(i).Fields().Len() {
			arm := md.Oneofs().Get(i).Fields().Get(k).Index()
			m.fields[arm].oneof = i
			arms = append(arms, int16(arm))
		}
		m.oneofs = append(m.oneofs, arms)
	}
	for _, k := range rest {
		if len(m.fields) == 0 && c.cols[k].name == PresentField && c.cols[k].kind == columnBit {
			m.present = k
			continue
		}
		if c.cols[k].required {
			c.fail(k, "is required, and the writer lacks it")
		}
		m.lacks = append(m.lacks, k)
	}
	return m
}

func (m *protobufMessage) index(number protowire.Number, i int) {
	if int(number) < len(m.dense) {
		m.dense[number] = int16(i + 1)
		return
	}
	if m.sparse == nil {
		m.sparse = map[protowire.Number]int16{}
	}
	m.sparse[number] = int16(i + 1)
}

// find returns the field of that number, or nil.
func (m *protobufMessage) find(number protowire.Number) *protobufField {
	i := int16(0)
	if int(number) < len(m.dense) {
		i = m.dense[number]
	} else {
		i = m.sparse[number]
	}
	if i == 0 {
		return nil
	}
	return &m.fields[i-1]
}

// field compiles a field of a message into column col.
func (c *protobufCompiler) field(fd protoreflect.FieldDescriptor, col int) protobufField {
	column := &c.cols[col]
	switch {
	case fd.IsMap():
		f := protobufField{shape: shapeMap, wire: protowire.BytesType, col: col, oneof: -1}
		if column.kind != columnMap {
			c.fail(col, "is %s, which does not hold the writer's map", column.typ)
			return f
		}
		c.depth++
		defer func() { c.depth-- }()
		entry := &protobufMessage{present: -1}
		for i, half := range []protoreflect.FieldDescriptor{fd.MapKey(), fd.MapValue()} {
			h := c.value(half, column.kids[i])
			h.absent = absentDefault
			entry.fields = append(entry.fields, h)
			entry.index(half.Number(), i)
		}
		f.message, f.cells = entry, c.cellsOf(column.kids[0])+c.cellsOf(column.kids[1])
		return f
	case fd.IsList():
		f := protobufField{shape: shapeList, col: col, oneof: -1}
		if column.kind != columnList {
			c.fail(col, "is %s, which does not hold the writer's list", column.typ)
			return f
		}
		item := c.value(fd, column.kids[0])
		f.item, f.cells = &item, c.cellsOf(column.kids[0])
		return f
	}
	f := c.value(fd, col)
	switch {
	case fd.Cardinality() == protoreflect.Required:
		f.absent = absentRefused
	case !c.rules.nullable(fd):
		f.absent = absentDefault
	case !fd.HasPresence():
		f.zeroNull = true
	}
	return f
}

// cellsOf returns what a value of column col costs, what lies inside it included.
func (c *protobufCompiler) cellsOf(col int) int {
	cells := 0
	for i := col; i < c.cols[col].end; i++ {
		cells += 1 + c.cols[i].width/8
	}
	return cells
}

// value compiles one value of fd into column col.
func (c *protobufCompiler) value(fd protoreflect.FieldDescriptor, col int) protobufField {
	f := protobufField{col: col, oneof: -1, number: fd.Number(), kind: fd.Kind(), wire: wireTypes[fd.Kind()]}
	typ := c.cols[col].typ
	md := fd.Message()
	if md == nil {
		c.scalar(&f, fd, typ)
		return f
	}
	switch known := c.rules.wellKnownOf(fd); {
	case known == wellKnownWrapper:
		inner := md.Fields().Get(0)
		f.shape, f.message = shapeWrapper, &protobufMessage{present: -1, fields: []protobufField{c.value(inner, col)}}
		f.message.index(inner.Number(), 0)
	case known == ordinary && c.cols[col].kind == columnStruct && !c.cols[col].isVariant():
		f.shape, f.message, f.cells = shapeMessage, c.message(md, c.cols[col].kids), c.cellsOf(col)
	case known == wellKnownTimestamp && typ.Equals(iceberg.PrimitiveTypes.TimestampTz),
		known == wellKnownDuration && typ.Equals(iceberg.PrimitiveTypes.Int64),
		known == wellKnownDecimal && isDecimal(fd, typ),
		(known == wellKnownJSON || known == ordinary) && (typ.Equals(iceberg.PrimitiveTypes.String) || c.cols[col].isVariant()):
		f.shape, f.known, f.folded, f.slot = shapeFolded, known, md, c.slots
		f.depth = c.depth + 1
		if t, ok := typ.(iceberg.DecimalType); ok {
			f.limit, f.scale = powerOfTen(t.Precision()), t.Scale()
		}
		c.slots++
	default:
		c.fail(col, "is %s, which does not hold the writer's %s", typ, md.FullName())
	}
	return f
}

// isDecimal reports whether a column holds the decimals of fd.
func isDecimal(fd protoreflect.FieldDescriptor, typ iceberg.Type) bool {
	t, ok := typ.(iceberg.DecimalType)
	precision, scale, _ := decimalParameters(fd)
	return ok && t.Scale() == scale && t.Precision() >= precision
}

func (c *protobufCompiler) scalar(f *protobufField, fd protoreflect.FieldDescriptor, typ iceberg.Type) {
	switch t := typ.(type) {
	case iceberg.DecimalType:
		if c.rules.scalarType(f.kind).Type() == iceberg.DecimalTypeOf(20, 0).Type() && t.Scale() == 0 && t.Precision() >= 20 {
			return
		}
	default:
		if typ.Equals(c.rules.scalarType(f.kind)) {
			f.digits = c.rules.Uint64AsString && (f.kind == protoreflect.Uint64Kind || f.kind == protoreflect.Fixed64Kind)
			if e := fd.Enum(); e != nil {
				f.zero, f.symbols = e.Values().Get(0).Number(), map[protoreflect.EnumNumber][]byte{}
				for i := e.Values().Len() - 1; i >= 0; i-- { // the first of two aliases names the number
					f.symbols[e.Values().Get(i).Number()] = []byte(e.Values().Get(i).Name())
				}
			}
			return
		}
		if promotes(c.rules.scalarType(f.kind), typ) {
			f.wide = true
			return
		}
	}
	c.fail(f.col, "is %s, which does not hold the writer's %s", typ, f.kind)
}

var wireTypes = map[protoreflect.Kind]protowire.Type{
	protoreflect.BoolKind: protowire.VarintType, protoreflect.EnumKind: protowire.VarintType,
	protoreflect.Int32Kind: protowire.VarintType, protoreflect.Sint32Kind: protowire.VarintType, protoreflect.Uint32Kind: protowire.VarintType,
	protoreflect.Int64Kind: protowire.VarintType, protoreflect.Sint64Kind: protowire.VarintType, protoreflect.Uint64Kind: protowire.VarintType,
	protoreflect.Fixed32Kind: protowire.Fixed32Type, protoreflect.Sfixed32Kind: protowire.Fixed32Type, protoreflect.FloatKind: protowire.Fixed32Type,
	protoreflect.Fixed64Kind: protowire.Fixed64Type, protoreflect.Sfixed64Kind: protowire.Fixed64Type, protoreflect.DoubleKind: protowire.Fixed64Type,
	protoreflect.StringKind: protowire.BytesType, protoreflect.BytesKind: protowire.BytesType,
	protoreflect.MessageKind: protowire.BytesType, protoreflect.GroupKind: protowire.StartGroupType,
}
