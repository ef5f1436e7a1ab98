package parquetio

import (
	"fmt"
	"math"
	"strconv"

	"github.com/hamba/avro/v2"
)

// Bounds on schemas, against those that are made to exhaust the process.
const (
	maxSchemaBytes   = 4 << 20 // of JSON text
	maxSchemaNesting = 512     // brackets in the JSON text
	maxColumnDepth   = 64      // columns inside columns
	maxColumns       = 10_000  // of one table, inner ones counted
	maxFixedBytes    = 1 << 20 // of a value of type fixed, which a null takes as well
)

type wireKind uint8

const (
	wireNull wireKind = iota
	wireBoolean
	wireInt
	wireLong
	wireFloat
	wireDouble
	wireBytes
	wireString
	wireFixed
	wireEnum
	wireRecord
	wireArray
	wireMap
	wireUnion

	// of JSON alone
	wireAny  // any value, kept as JSON
	wireText // a string as it is, any other value as JSON
)

type logical uint8

const (
	logicalNone logical = iota
	logicalDate
	logicalTimeMillis
	logicalTimeMicros
	logicalTimeNanos
	logicalTimestampMillis
	logicalTimestampMicros
	logicalTimestampNanos
	logicalLocalMillis
	logicalLocalMicros
	logicalLocalNanos
	logicalZoned // text with an offset
	logicalDecimal
	logicalUUID
)

// A node says how a value lies in the bytes of a record. Records may refer to themselves,
// so nodes form a graph.
type node struct {
	kind             wireKind
	logical          logical
	precision, scale int      // of decimals
	size             int      // of fixed
	name             string   // of named types, in full
	symbols          []string // of enums
	fields           []nodeField
	item             *node // array items, map values
	branches         []*node
}

type nodeField struct {
	name     string
	aliases  []string
	doc      string
	node     *node
	fallback any // the default that Avro's parser found, nil for null or none
}

// parseAvro parses schema text into nodes.
func parseAvro(schema string, references []Reference) (n *node, err error) {
	// The parser is others' code, and schemas come from outside.
	defer func() {
		if r := recover(); r != nil {
			n, err = nil, fmt.Errorf("parse avro schema: %v", r)
		}
	}()
	cache := &avro.SchemaCache{}
	for i, r := range references {
		if err := checkNesting(r.Text); err != nil {
			return nil, fmt.Errorf("parse avro reference %d: %w", i, err)
		}
		if _, err := avro.ParseWithCache(r.Text, "", cache); err != nil {
			return nil, fmt.Errorf("parse avro reference %d: %w", i, err)
		}
	}
	if err := checkNesting(schema); err != nil {
		return nil, fmt.Errorf("parse avro schema: %w", err)
	}
	parsed, err := avro.ParseWithCache(schema, "", cache)
	if err != nil {
		return nil, fmt.Errorf("parse avro schema: %w", err)
	}
	g := grapher{records: map[string]*node{}}
	return g.node(parsed), nil
}

func checkNesting(text string) error {
	if len(text) > maxSchemaBytes {
		return fmt.Errorf("text is %d bytes long, at most %d are read", len(text), maxSchemaBytes)
	}
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > maxSchemaNesting {
				return fmt.Errorf("nested deeper than %d brackets", maxSchemaNesting)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}

type grapher struct {
	records map[string]*node // by full name, so that a record within itself is a cycle
}

func (g grapher) node(s avro.Schema) *node {
	switch s := s.(type) {
	case *avro.RefSchema:
		return g.node(s.Schema())
	case *avro.PrimitiveSchema:
		n := &node{kind: primitiveKinds[s.Type()]}
		n.setLogical(s.Logical(), s.Props())
		return n
	case *avro.FixedSchema:
		n := &node{kind: wireFixed, size: s.Size(), name: s.FullName()}
		n.setLogical(s.Logical(), s.Props())
		return n
	case *avro.EnumSchema:
		return &node{kind: wireEnum, symbols: s.Symbols(), name: s.FullName()}
	case *avro.ArraySchema:
		return &node{kind: wireArray, item: g.node(s.Items())}
	case *avro.MapSchema:
		return &node{kind: wireMap, item: g.node(s.Values())}
	case *avro.UnionSchema:
		n := &node{kind: wireUnion}
		for _, t := range s.Types() {
			n.branches = append(n.branches, g.node(t))
		}
		return n
	case *avro.RecordSchema:
		if n := g.records[s.FullName()]; n != nil {
			return n
		}
		n := &node{kind: wireRecord, name: s.FullName()}
		g.records[s.FullName()] = n
		for _, f := range s.Fields() {
			n.fields = append(n.fields, nodeField{f.Name(), f.Aliases(), f.Doc(), g.node(f.Type()).withFieldProps(f.Props()), f.Default()})
		}
		return n
	}
	return &node{kind: wireNull}
}

var primitiveKinds = map[avro.Type]wireKind{
	avro.Boolean: wireBoolean, avro.Int: wireInt, avro.Long: wireLong, avro.Float: wireFloat,
	avro.Double: wireDouble, avro.Bytes: wireBytes, avro.String: wireString, avro.Null: wireNull,
}

// withFieldProps returns n with the logical type that its field states, if n states none.
func (n *node) withFieldProps(props map[string]any) *node {
	if len(props) == 0 {
		return n
	}
	switch n.kind {
	case wireUnion:
		out := *n
		out.branches = make([]*node, len(n.branches))
		for i, b := range n.branches {
			out.branches[i] = b.withFieldProps(props)
		}
		return &out
	case wireRecord, wireArray, wireMap, wireNull, wireEnum:
		return n
	}
	if n.logical != logicalNone {
		return n
	}
	out := *n
	out.setLogical(nil, props)
	return &out
}

// setLogical finds the logical type in what the parser recognised, or in the properties
// that it did not.
func (n *node) setLogical(known avro.LogicalSchema, props map[string]any) {
	name, _ := props["logicalType"].(string)
	if known != nil {
		name = string(known.Type())
	}
	if d, ok := known.(*avro.DecimalLogicalSchema); ok {
		n.precision, n.scale = d.Precision(), d.Scale()
	} else if name == "decimal" {
		n.precision, n.scale = intProp(props["precision"], 0), intProp(props["scale"], 0)
	}
	local := false
	if utc, ok := props["adjust-to-utc"].(bool); ok {
		local = !utc
	}
	if n.logical = n.fit(name, local); n.logical != logicalNone {
		return
	}
	connect, _ := props["connect.name"].(string)
	if connect == "org.apache.kafka.connect.data.Decimal" {
		parameters, _ := props["connect.parameters"].(map[string]any)
		n.scale = intProp(parameters["scale"], -1)
		n.precision = intProp(parameters["connect.decimal.precision"], 38)
	}
	n.logical = n.fit(connectNames[connect], false)
}

var connectNames = map[string]string{
	"io.debezium.time.Date":                   "date",
	"io.debezium.time.Time":                   "time-millis",
	"io.debezium.time.MicroTime":              "time-micros",
	"io.debezium.time.NanoTime":               "time-nanos",
	"io.debezium.time.Timestamp":              "local-timestamp-millis",
	"io.debezium.time.MicroTimestamp":         "local-timestamp-micros",
	"io.debezium.time.NanoTimestamp":          "local-timestamp-nanos",
	"io.debezium.time.ZonedTimestamp":         "zoned",
	"org.apache.kafka.connect.data.Date":      "date",
	"org.apache.kafka.connect.data.Time":      "time-millis",
	"org.apache.kafka.connect.data.Timestamp": "timestamp-millis",
	"org.apache.kafka.connect.data.Decimal":   "decimal",
}

// fit returns the logical type of that name if it may annotate n, else none.
func (n *node) fit(name string, local bool) logical {
	switch n.kind {
	case wireInt:
		switch name {
		case "date":
			return logicalDate
		case "time-millis":
			return logicalTimeMillis
		}
	case wireLong:
		l := longLogicals[name]
		if local && l >= logicalTimestampMillis && l <= logicalTimestampNanos {
			l += logicalLocalMillis - logicalTimestampMillis
		}
		return l
	case wireString:
		switch name {
		case "uuid":
			return logicalUUID
		case "zoned":
			return logicalZoned
		}
	case wireFixed:
		if name == "uuid" && n.size == 16 {
			return logicalUUID
		}
		// The largest precision that n.size bytes hold: Avro spec, "Decimal".
		held := int(math.Floor(float64(8*n.size-1) * math.Log10(2)))
		if name == "decimal" && n.decimalFits() && n.precision <= held {
			return logicalDecimal
		}
	case wireBytes:
		if name == "decimal" && n.decimalFits() {
			return logicalDecimal
		}
	}
	return logicalNone
}

var longLogicals = map[string]logical{
	"time-micros": logicalTimeMicros, "time-nanos": logicalTimeNanos,
	"timestamp-millis": logicalTimestampMillis, "timestamp-micros": logicalTimestampMicros, "timestamp-nanos": logicalTimestampNanos,
	"local-timestamp-millis": logicalLocalMillis, "local-timestamp-micros": logicalLocalMicros, "local-timestamp-nanos": logicalLocalNanos,
}

func (n *node) decimalFits() bool {
	return n.precision >= 1 && n.precision <= 38 && n.scale >= 0 && n.scale <= n.precision
}

func intProp(v any, missing int) int {
	switch v := v.(type) {
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<30 {
			return int(v)
		}
	case int:
		return v
	case string:
		if i, err := strconv.Atoi(v); err == nil {
			return i
		}
	}
	return missing
}

// single returns what a union holds when it has one branch besides null, and the index of
// null, -1 if it has none. It returns nil for a union of several types.
func (n *node) single() (value *node, null int) {
	null = -1
	for i, b := range n.branches {
		switch {
		case b.kind == wireNull:
			null = i
		case value != nil:
			return nil, -1
		default:
			value = b
		}
	}
	if value == nil {
		value = &node{kind: wireNull}
	}
	return value, null
}

// minSize returns the least number of bytes of an encoded n, up to a cap that keeps the
// search short.
func (n *node) minSize(depth int) int {
	switch n.kind {
	case wireNull:
		return 0
	case wireFloat:
		return 4
	case wireDouble:
		return 8
	case wireFixed:
		return n.size
	case wireRecord:
		if depth == 0 {
			return 0
		}
		size := 0
		for _, f := range n.fields {
			if size += f.node.minSize(depth - 1); size > 64 {
				return size
			}
		}
		return size
	}
	return 1
}
