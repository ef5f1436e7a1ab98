package parquetio

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/apache/iceberg-go"
)

type opcode uint8

const (
	opNothing         opcode = iota // a field that has no column and no bytes
	opNull                          // a column whose field is always null
	opLack                          // a column that the writer lacks
	opBoolean                       //
	opInt                           // int, date
	opIntToLong                     //
	opLong                          // long, timestamp-micros
	opFloat                         //
	opFloatToDouble                 //
	opDouble                        //
	opBytes                         //
	opString                        //
	opEnum                          //
	opFixed                         // fixed, uuid
	opFixedZero                     // fixed(0) as empty binary
	opTimeMillis                    //
	opTimeMicros                    //
	opTimeNanos                     //
	opTimestampMillis               //
	opTimestampNanos                //
	opZoned                         // text with an offset
	opDecimalBytes                  //
	opDecimalFixed                  //
	opUUID                          // from text
	opUUIDString                    // text, as text
	opUUIDFixedString               // fixed, as text
	opFixedBinary                   // fixed, as binary
	opTimeString                    // a time of day, as text
	opJSON                          // any value, as JSON text or a variant
	opStruct                        // its fields follow in the program
	opPresent                       // the marker of a record without fields
	opList                          // its item follows in the program
	opMap                           // its value follows in the program

	// of JSON alone
	opText          // a string as it is, any other value as JSON text
	opBase64        //
	opDateText      //
	opTimeText      //
	opLocalText     // a timestamp without an offset
	opDecimalNumber //
)

type unionShape uint8

const (
	noUnion unionShape = iota
	nullFirst
	nullSecond
	oneBranch
)

// An instruction reads one value of the writer into one column. What it holds follows it,
// up to end.
type instruction struct {
	op    opcode
	union unionShape
	col   int
	end   int
	// of lists and maps
	key     int // column of the keys
	minSize int // of an item, in bytes
	cells   int // values that an item puts into columns
	// of fixed and decimal
	size  int
	limit [2]uint64 // high and low word: 10^precision
	node  *node
}

// A Decoder is the program for one pair of writer schema and table schema. It is safe for
// concurrent use.
type Decoder struct {
	table   *iceberg.Schema
	key     int // the column of the key, which a decoder of values leaves alone; noKey if there is none
	program program
}

// A program decodes records of one writer into one row each.
type program interface {
	// decode puts the whole payload into the columns of b. It returns false, with b.bad or
	// b.err set, if it cannot; the caller cuts off what it left behind.
	decode(b *Builder, payload []byte) bool
}

// avroProgram is the fields of a record, and what they hold, in the order of their bytes.
type avroProgram []instruction

func (a avroProgram) decode(b *Builder, payload []byte) bool {
	i := b.run(a, 0, len(a), payload, 0)
	if i >= 0 && i != len(payload) {
		i = b.failed(-1, i, fmt.Sprintf("%d bytes are left over", len(payload)-i))
	}
	return i >= 0
}

// Compile builds the decoder of records written with v into rows of table. Columns that the
// writer lacks become null. It is an error if table does not hold v: see [Mapping.Evolve].
func (m Mapping) Compile(v *ValueSchema, table *iceberg.Schema) (*Decoder, error) {
	_, changed, names, err := m.evolve(table, table.HighestFieldID(), v)
	if err != nil {
		return nil, err
	}
	if changed {
		return nil, fmt.Errorf("compile decoder: the table lacks columns or widths that the writer schema needs: evolve the table first")
	}
	t := &target{mapping: m, names: names}
	t.cols, t.top = layout(table)
	p, err := v.writer.compile(t)
	if err != nil {
		return nil, fmt.Errorf("compile decoder: %w", err)
	}
	return &Decoder{table, t.key(), p}, nil
}

// CompileAlone builds the decoder of records written with v into rows of a table that has their
// columns and no others, and returns the schema of that table too.
func CompileAlone(v *ValueSchema) (*Decoder, *iceberg.Schema, error) {
	var m Mapping
	table, err := m.TableSchema(v)
	if err != nil {
		return nil, nil, err
	}
	d, err := m.Compile(v, table)
	return d, table, err
}

// A target is the columns of a table that a program fills.
type target struct {
	mapping Mapping
	names   map[string]string // of columns, see [Mapping.evolve]
	cols    []column
	top     []int
}

// bind returns the column of each field of a record whose columns are kids, -1 for a field
// without one, and the columns that no field fills, but the Kafka column and that of the key. They must become null.
func (t *target) bind(fields []string, kids []int) (columns, rest []int) {
	have := make([]iceberg.NestedField, len(kids))
	for i, k := range kids {
		have[i].Name = t.cols[k].name
	}
	path := ""
	if len(kids) > 0 {
		first := &t.cols[kids[0]]
		path = strings.TrimSuffix(strings.TrimSuffix(first.path, first.name), ".")
	}
	want := make([]iceberg.NestedField, len(fields))
	for i, f := range fields {
		want[i].Name = cmp.Or(t.names[join(path, f)], f)
	}
	columns = make([]int, len(fields))
	filled := make(map[int]bool, len(kids))
	for i := range fields {
		columns[i] = -1
		if at := matchField(have, want, want[i].Name); at >= 0 {
			columns[i] = kids[at]
			filled[kids[at]] = true
		}
	}
	for _, k := range kids {
		if !filled[k] && !t.reserved(k) {
			rest = append(rest, k)
		}
	}
	return columns, rest
}

// reserved reports whether a column is one that values leave alone.
func (t *target) reserved(col int) bool {
	c := &t.cols[col]
	return c.path == c.name && t.mapping.reserved(c.name)
}

// isColumn reports whether name, of a column on top level, is that of column, which is empty for
// none.
func isColumn(column, name string) bool { return column != "" && strings.EqualFold(column, name) }

func (n *node) compile(t *target) (program, error) {
	c := compiler{target: t}
	c.fields(n, t.top)
	return c.program, c.err
}

type compiler struct {
	*target
	program avroProgram
	err     error
}

func (c *compiler) fail(col int, format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("column %s: %w", c.cols[col].path, fmt.Errorf(format, args...))
	}
}

// fields emits the fields of a record into the columns kids, which hold them all.
func (c *compiler) fields(record *node, kids []int) {
	names := make([]string, len(record.fields))
	for i, f := range record.fields {
		names[i] = f.name
	}
	columns, rest := c.bind(names, kids)
	for i, f := range record.fields {
		switch {
		case columns[i] >= 0:
			c.value(f.node, columns[i])
		case f.node.kind == wireUnion:
			// Always null, and still a byte.
			c.program = append(c.program, instruction{op: opNothing, union: oneBranch, col: -1, end: len(c.program) + 1, node: f.node})
		}
	}
	for _, k := range rest {
		if len(record.fields) == 0 && c.cols[k].name == PresentField && c.cols[k].kind == columnBit {
			c.program = append(c.program, instruction{op: opPresent, col: k, end: len(c.program) + 1})
			continue
		}
		if c.cols[k].required {
			c.fail(k, "is required, and the writer lacks it")
		}
		c.program = append(c.program, instruction{op: opLack, col: k, end: len(c.program) + 1})
	}
}

// value emits one value of n into column col.
func (c *compiler) value(n *node, col int) {
	if c.err != nil {
		return
	}
	at := len(c.program)
	in := instruction{col: col, node: n}
	if n.kind == wireUnion {
		if value, null := n.single(); value != nil {
			switch {
			case len(n.branches) == 1:
				in.union = oneBranch
			case null == 0:
				in.union = nullFirst
			default:
				in.union = nullSecond
			}
			n = value
			in.node = value
		}
	}
	column := &c.cols[col]
	c.program = append(c.program, in)
	op := opNothing
	switch t := column.typ.(type) {
	case *iceberg.StructType:
		if n.kind == wireRecord {
			op = opStruct
			c.fields(n, column.kids)
		}
	case *iceberg.ListType:
		if n.kind == wireArray {
			op = opList
			c.value(n.item, column.kids[0])
			c.items(at, n, column.kids[0])
		}
	case *iceberg.MapType:
		if n.kind == wireMap {
			op = opMap
			c.program[at].key = column.kids[0]
			c.value(n.item, column.kids[1])
			c.items(at, n, column.kids[1])
		}
	case iceberg.DecimalType:
		if n.logical == logicalDecimal && n.scale == t.Scale() {
			op = opDecimalBytes
			if n.kind == wireFixed {
				op = opDecimalFixed
			}
			c.program[at].limit = powerOfTen(t.Precision())
		}
	default:
		op = primitiveOp(n, t)
	}
	if n.kind == wireNull {
		op = opNull
	}
	if op == opNothing {
		c.fail(col, "is %s, which does not hold the writer's value", column.typ)
	}
	c.program[at].op = op
	c.program[at].size = n.size
	c.program[at].end = len(c.program)
}

func (c *compiler) items(at int, n *node, col int) {
	in := &c.program[at]
	in.minSize = n.item.minSize(16)
	if n.kind == wireMap {
		in.minSize++
	}
	for i := col; i < c.cols[col].end; i++ {
		in.cells += 1 + c.cols[i].width/8
	}
}

func primitiveOp(n *node, t iceberg.Type) opcode {
	switch t.(type) {
	case iceberg.BooleanType:
		if n.kind == wireBoolean {
			return opBoolean
		}
	case iceberg.Int32Type:
		if n.kind == wireInt && n.logical == logicalNone {
			return opInt
		}
	case iceberg.DateType:
		if n.logical == logicalDate {
			return opInt
		}
	case iceberg.Int64Type:
		switch {
		case n.logical != logicalNone:
		case n.kind == wireInt:
			return opIntToLong
		case n.kind == wireLong:
			return opLong
		}
	case iceberg.Float32Type:
		if n.kind == wireFloat {
			return opFloat
		}
	case iceberg.Float64Type:
		switch n.kind {
		case wireFloat:
			return opFloatToDouble
		case wireDouble:
			return opDouble
		}
	case iceberg.TimeType, iceberg.TimestampType, iceberg.TimestampTzType:
		if !t.Equals(n.primitiveType()) {
			return opNothing
		}
		return timeOps[n.logical]
	case iceberg.TimestampTzNsType:
		if n.logical == logicalTimestampNanos {
			return opLong
		}
	case iceberg.TimestampNsType:
		if n.logical == logicalLocalNanos {
			return opLong
		}
	case iceberg.UUIDType:
		switch {
		case n.logical != logicalUUID:
		case n.kind == wireFixed:
			return opFixed
		default:
			return opUUID
		}
	case iceberg.FixedType:
		if n.kind == wireFixed && t.Equals(n.primitiveType()) {
			return opFixed
		}
	case iceberg.BinaryType:
		switch {
		case n.logical != logicalNone:
		case n.kind == wireBytes:
			return opBytes
		case n.kind == wireFixed && n.size == 0:
			return opFixedZero
		case n.kind == wireFixed:
			return opFixedBinary
		}
	case iceberg.VariantType:
		switch n.kind {
		case wireUnion, wireRecord, wireAny, wireArray, wireMap:
			return opJSON
		}
	case iceberg.StringType:
		switch {
		case n.kind == wireString && n.logical == logicalNone:
			return opString
		case n.kind == wireEnum:
			return opEnum
		case n.logical == logicalUUID && n.kind == wireFixed:
			return opUUIDFixedString
		case n.logical == logicalUUID:
			return opUUIDString
		case n.logical == logicalTimeMillis, n.logical == logicalTimeMicros, n.logical == logicalTimeNanos:
			return opTimeString
		case n.kind == wireUnion, n.kind == wireRecord:
			return opJSON
		}
	}
	return opNothing
}

var timeOps = map[logical]opcode{
	logicalTimeMillis: opTimeMillis, logicalTimeMicros: opTimeMicros, logicalTimeNanos: opTimeNanos,
	logicalTimestampMillis: opTimestampMillis, logicalTimestampMicros: opLong, logicalTimestampNanos: opTimestampNanos,
	logicalLocalMillis: opTimestampMillis, logicalLocalMicros: opLong, logicalLocalNanos: opTimestampNanos,
	logicalZoned: opZoned,
}
