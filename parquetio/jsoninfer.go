package parquetio

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/apache/iceberg-go"
)

// Bounds on what records without a schema may make of a table.
const (
	maxInferredColumns = 2_000 // of the table, inner ones counted
	maxInferredDepth   = 16    // columns inside columns; what is deeper is kept as JSON text
	maxInferredName    = 255   // bytes
)

// CompileJSON builds the decoder of plain JSON: of records without a schema, for which the columns
// of table say what their properties are. Append returns [ErrLacksColumn] for a record that
// needs more: see [Mapping.InferJSON].
func (m Mapping) CompileJSON(table *iceberg.Schema) (*Decoder, error) {
	t := &target{mapping: m}
	t.cols, t.top = layout(table)
	root := &node{kind: wireRecord}
	for _, f := range table.Fields() {
		if !m.reserved(f.Name) {
			root.fields = append(root.fields, nodeField{name: f.Name, node: plainNode(f.Type)})
		}
	}
	p, err := jsonSchema{root: root, plain: true}.compile(t)
	if err != nil {
		return nil, fmt.Errorf("compile decoder of plain JSON: %w", err)
	}
	return &Decoder{table, t.key(), p}, nil
}

// CompileJSONKey is CompileJSON for keys, which are values of the column of the key. The table must
// have it: the error is [ErrLacksColumn] if it has not.
func (m Mapping) CompileJSONKey(table *iceberg.Schema) (*Decoder, error) {
	t := &target{mapping: m}
	t.cols, t.top = layout(table)
	key := t.key()
	if key == noKey {
		return nil, fmt.Errorf("compile decoder of keys: %w", ErrLacksColumn)
	}
	root := &node{kind: wireRecord, fields: []nodeField{{name: rootColumn, node: plainNode(t.cols[key].typ)}}}
	v := &ValueSchema{Single: true, writer: jsonSchema{root: root, single: true, plain: true}}
	p, err := v.AsKey().writer.compile(t)
	if err != nil {
		return nil, fmt.Errorf("compile decoder of plain JSON: %w", err)
	}
	return &Decoder{table, key, p}, nil
}

// plainNode returns the node of the values that a column takes from plain JSON: null alone, if no
// JSON value stands for its type.
func plainNode(t iceberg.Type) *node {
	switch t := t.(type) {
	case *iceberg.StructType:
		n := &node{kind: wireRecord}
		for _, f := range t.FieldList {
			n.fields = append(n.fields, nodeField{name: f.Name, node: plainNode(f.Type)})
		}
		return n
	case *iceberg.ListType:
		return &node{kind: wireArray, item: plainNode(t.Element)}
	case *iceberg.MapType:
		if t.KeyType.Equals(iceberg.PrimitiveTypes.String) {
			return &node{kind: wireMap, item: plainNode(t.ValueType)}
		}
	case iceberg.DecimalType:
		return &node{kind: wireDouble, logical: logicalDecimal, precision: t.Precision(), scale: t.Scale()}
	case iceberg.BooleanType:
		return &node{kind: wireBoolean}
	case iceberg.Int32Type:
		return &node{kind: wireInt}
	case iceberg.Int64Type:
		return &node{kind: wireLong}
	case iceberg.Float32Type:
		return &node{kind: wireFloat}
	case iceberg.Float64Type:
		return &node{kind: wireDouble}
	case iceberg.StringType:
		return &node{kind: wireText}
	case iceberg.VariantType:
		return &node{kind: wireAny}
	case iceberg.BinaryType:
		return &node{kind: wireBytes}
	case iceberg.UUIDType:
		return &node{kind: wireString, logical: logicalUUID}
	case iceberg.DateType:
		return &node{kind: wireString, logical: logicalDate}
	case iceberg.TimeType:
		return &node{kind: wireString, logical: logicalTimeMicros}
	case iceberg.TimestampType:
		return &node{kind: wireString, logical: logicalLocalMicros}
	case iceberg.TimestampTzType:
		return &node{kind: wireString, logical: logicalZoned}
	}
	return &node{kind: wireNull}
}

// A JSONInference finds the columns that plain JSON records need and a table lacks. What it finds
// only grows with the records that are added.
type JSONInference struct {
	mapping Mapping
	holders map[string]*holder // by the path of a column
	root    inferred
	columns int  // of the table, with those found
	key     bool // of keys: root has the one column of the key
}

// InferJSON begins an inference. The table is nil if there is none yet.
func (m Mapping) InferJSON(table *iceberg.Schema) *JSONInference {
	x := &JSONInference{mapping: m, holders: map[string]*holder{}}
	columns := []iceberg.NestedField{}
	if table != nil {
		cols, _ := layout(table)
		x.columns = len(cols)
		for _, f := range table.Fields() {
			if !m.reserved(f.Name) {
				columns = append(columns, f)
			}
		}
	}
	x.root.column = &iceberg.StructType{FieldList: columns}
	return x
}

// InferJSONKey is InferJSON for keys, which are values of the column of the key.
func (m Mapping) InferJSONKey(table *iceberg.Schema) *JSONInference {
	x := m.InferJSON(table)
	x.key, x.mapping = true, Mapping{Former: m.Former}
	x.root.column = &iceberg.StructType{}
	if table != nil {
		for _, f := range table.Fields() {
			if isColumn(m.KeyColumn, f.Name) {
				x.root.column = &iceberg.StructType{FieldList: []iceberg.NestedField{{ID: f.ID, Name: rootColumn, Type: f.Type}}}
			}
		}
	}
	return x
}

type inferredKind uint8

const (
	inferredNothing inferredKind = iota // only null, and empty arrays and objects, were seen
	inferredBoolean
	inferredLong
	inferredDouble
	inferredString
	inferredMixed // kept as text: strings as they are, other values as JSON
	inferredObject
	inferredArray
)

// inferred is what is known of the values in one place.
type inferred struct {
	column iceberg.Type // of the table; nil if it lacks one
	kind   inferredKind
	name   string   // of the property
	names  []string // keys of an object's fields, in the order in which they were seen
	fields map[string]*inferred
	item   *inferred // of an array, or of a map of the table
}

// Add takes a record into account. The error is a [*DecodeError] if it is not JSON, or needs a
// column that the table cannot have; it is not taken into account then.
func (x *JSONInference) Add(payload []byte) error {
	begin := space(payload, 0)
	end, typed, reason := skipValue(payload, begin, 0)
	if reason == "" {
		if end = space(payload, end); end != len(payload) {
			reason = fmt.Sprintf("%d bytes are left over", len(payload)-end)
		}
	}
	if reason != "" {
		return &DecodeError{Byte: end, Reason: reason}
	}
	if !typed {
		return nil
	}
	r := inferrer{JSONInference: x, p: payload}
	if payload[begin] == '{' && !x.key {
		r.value(&x.root, "", begin, 0)
	} else {
		r.property(&x.root, "", rootColumn, begin, 0)
	}
	if r.err != nil {
		for _, undo := range slices.Backward(r.undo) {
			undo()
		}
		return r.err
	}
	return nil
}

// inferrer walks a record that is JSON.
type inferrer struct {
	*JSONInference
	p    []byte
	err  *DecodeError
	undo []func() // what takes the record back
}

// value adds the value at i to n, and returns the position behind it.
func (r *inferrer) value(n *inferred, path string, i, depth int) int {
	end, typed, _ := skipValue(r.p, i, 0)
	if !typed || r.err != nil {
		return end
	}
	switch c := r.p[i]; {
	case c == '{':
		r.object(n, path, i, depth)
	case c == '[':
		r.array(n, path, i, depth)
	case c == '"':
		r.merge(n, inferredString)
	case c == 't' || c == 'f':
		r.merge(n, inferredBoolean)
	default:
		r.merge(n, numberKind(r.p, i))
	}
	return end
}

// numberKind is long for what is written as an integer, double for other numbers. An integer of
// more than 64 bits is kept as text, digit by digit.
func numberKind(p []byte, i int) inferredKind {
	n, _, _ := scanNumber(p, i)
	if n.fraction {
		if _, ok := n.float64(); !ok {
			return inferredMixed
		}
		return inferredDouble
	}
	if _, reason := n.int64(); reason != "" {
		return inferredMixed
	}
	return inferredLong
}

// merge makes n a kind that takes values of kind, too.
func (r *inferrer) merge(n *inferred, kind inferredKind) {
	if n.column != nil || n.kind == kind || n.kind == inferredMixed {
		return
	}
	before := *n
	r.undo = append(r.undo, func() { *n = before })
	switch {
	case n.kind == inferredNothing:
		n.kind = kind
	case n.kind == inferredLong && kind == inferredDouble, n.kind == inferredDouble && kind == inferredLong:
		n.kind = inferredDouble
	default:
		n.kind, n.names, n.fields, n.item = inferredMixed, nil, nil, nil
	}
}

func (r *inferrer) object(n *inferred, path string, i, depth int) {
	m, isMap := n.column.(*iceberg.MapType)
	_, isStruct := n.column.(*iceberg.StructType)
	switch {
	case n.column != nil && !isMap && !isStruct:
		return
	case n.column == nil && depth >= maxInferredDepth:
		r.merge(n, inferredMixed)
		return
	}
	if r.merge(n, inferredObject); n.kind == inferredMixed {
		return
	}
	for i = space(r.p, i+1); r.p[i] != '}'; {
		end, _, _ := scanString(r.p, i)
		name := string(appendUnescaped(nil, r.p[i+1:end-1]))
		i, _ = colon(r.p, end)
		if isMap {
			if n.item == nil {
				n.item = &inferred{column: m.ValueType}
			}
			i = r.value(n.item, join(path, "value"), i, depth+1)
		} else {
			i = r.property(n, path, name, i, depth)
		}
		if i = space(r.p, i); r.p[i] == ',' {
			i = space(r.p, i+1)
		}
	}
}

// property adds the value at i to the property of n of that name.
func (r *inferrer) property(n *inferred, path, name string, i, depth int) int {
	end, typed, _ := skipValue(r.p, i, 0)
	if !typed || r.err != nil {
		return end
	}
	var column iceberg.Type
	key := foldCase(name) // what differs by case alone has one column
	if s, ok := n.column.(*iceberg.StructType); ok {
		column = r.columnOf(s, name)
		if column != nil && r.mapping.NewColumns {
			var holds string
			if holds, column = r.columnThatHolds(s, path, name, r.p[i:end]); column != nil {
				name, key = holds, foldCase(holds)
			} else {
				key += beside
			}
		}
	}
	at := join(path, name)
	f := n.fields[key]
	if f == nil {
		f = &inferred{name: name, column: column}
		if f.column == nil {
			switch {
			case n == &r.root && r.mapping.reserved(name):
				r.err = &DecodeError{Field: at, Byte: i, Reason: "the name is taken by a column for the key, or for topic, partition and offset: set table.topic.key.column or table.topic.kafka.column to another name"}
			case name == "":
				r.err = &DecodeError{Field: path, Byte: i, Reason: "a property without a name cannot become a column"}
			case len(name) > maxInferredName:
				r.err = &DecodeError{Field: path, Byte: i, Reason: fmt.Sprintf("a property with a name of %d bytes cannot become a column: at most %d", len(name), maxInferredName)}
			case r.columns >= maxInferredColumns:
				r.err = &DecodeError{Field: at, Byte: i, Reason: fmt.Sprintf("the table would have more than %d columns, inner ones counted: keep what has names of its own in an array, or give the topic a schema", maxInferredColumns)}
			}
			if r.err != nil {
				return end
			}
			r.columns++
		}
		if n.fields == nil {
			n.fields = map[string]*inferred{}
		}
		n.fields[key] = f
		n.names = append(n.names, key)
		r.undo = append(r.undo, func() {
			delete(n.fields, key)
			n.names = n.names[:len(n.names)-1]
			if f.column == nil {
				r.columns--
			}
		})
	}
	return r.value(f, at, i, depth+1)
}

// beside ends the key of what none of the columns of a property holds.
const beside = "\x00"

// lacks reports whether the table lacks something of n.
func (n *inferred) lacks() bool {
	_, lacks := n.appendSchema(nil)
	return lacks
}

// columnThatHolds returns the first of the columns of a property that takes a value, nil if none does.
func (r *inferrer) columnThatHolds(s *iceberg.StructType, path, name string, value []byte) (string, iceberg.Type) {
	for at, k := name, 2; ; at, k = another(name, k), k+1 {
		t := r.columnOf(s, at)
		if t == nil || r.holds(join(path, at), t, value) {
			return at, t
		}
	}
}

// A holder tries values on a column.
type holder struct {
	decoder *Decoder
	builder *Builder
}

// holds reports whether a column takes a value, but for what columns inside of it would get beside
// them.
func (x *JSONInference) holds(path string, t iceberg.Type, value []byte) bool {
	h := x.holders[path]
	if h == nil {
		table := iceberg.NewSchema(0, iceberg.NestedField{ID: math.MaxInt32, Name: rootColumn, Type: t})
		b, err := NewBuilder(table, "")
		if err != nil {
			return false
		}
		target := &target{mapping: Mapping{NewColumns: true}}
		target.cols, target.top = layout(table)
		root := &node{kind: wireRecord, fields: []nodeField{{name: rootColumn, node: plainNode(t)}}}
		p, err := jsonSchema{root: root, single: true, plain: true}.compile(target)
		if err != nil {
			return false
		}
		h = &holder{&Decoder{table, noKey, p}, b}
		x.holders[path] = h
	}
	err := h.builder.Append(h.decoder, value, RecordMeta{})
	for _, i := range h.builder.top {
		truncate(h.builder.cols, i, 0)
	}
	h.builder.rows = 0
	return err == nil || errors.Is(err, ErrLacksColumn)
}

// columnOf returns the type of the column that properties of that name have, nil if there is none.
func (r *inferrer) columnOf(s *iceberg.StructType, name string) iceberg.Type {
	if c := matchField(s.FieldList, nil, name); c >= 0 {
		return s.FieldList[c].Type
	}
	for _, f := range s.FieldList {
		for _, former := range r.mapping.Former[f.ID] {
			if strings.EqualFold(former, name) {
				return f.Type
			}
		}
	}
	return nil
}

func (r *inferrer) array(n *inferred, path string, i, depth int) {
	l, isList := n.column.(*iceberg.ListType)
	switch {
	case n.column != nil && !isList:
		return
	case n.column == nil && depth >= maxInferredDepth:
		r.merge(n, inferredMixed)
		return
	}
	if r.merge(n, inferredArray); n.kind == inferredMixed {
		return
	}
	if n.item == nil {
		n.item = &inferred{}
		if isList {
			n.item.column = l.Element
		} else {
			r.columns++
			r.undo = append(r.undo, func() { r.columns-- })
		}
	}
	for i = space(r.p, i+1); r.p[i] != ']'; {
		i = r.value(n.item, join(path, "element"), i, depth+1)
		if i = space(r.p, i); r.p[i] == ',' {
			i = space(r.p, i+1)
		}
	}
}

// Schema returns what the table lacks as a JSON Schema, of keys that of the key itself, and false if
// it lacks nothing.
func (x *JSONInference) Schema() (text string, lacks bool) {
	n := &x.root
	if x.key {
		if n = n.fields[foldCase(rootColumn)]; n == nil {
			return "", false
		}
	}
	dst, lacks := n.appendSchema(nil)
	return string(dst), lacks
}

// appendSchema appends the schema of n, so far as the table lacks it.
func (n *inferred) appendSchema(dst []byte) (out []byte, lacks bool) {
	switch n.column.(type) {
	case nil:
		lacks = n.kind != inferredNothing
	case *iceberg.StructType:
		n.kind = inferredObject
	case *iceberg.ListType:
		n.kind = inferredArray
	case *iceberg.MapType:
		if n.item == nil {
			return dst, false
		}
		dst = append(dst, `{"type":"object","additionalProperties":`...)
		dst, lacks = n.item.appendSchema(dst)
		return append(dst, '}'), lacks
	}
	switch n.kind {
	case inferredBoolean:
		dst = append(dst, `{"type":"boolean"}`...)
	case inferredLong:
		dst = append(dst, `{"type":"integer"}`...)
	case inferredDouble:
		dst = append(dst, `{"type":"number"}`...)
	case inferredString:
		dst = append(dst, `{"type":"string"}`...)
	case inferredMixed:
		dst = append(dst, `{}`...)
	case inferredObject:
		dst = append(dst, `{"type":"object","properties":{`...)
		first := true
		for _, key := range n.names {
			at, f := len(dst), n.fields[key]
			if of, is := strings.CutSuffix(key, beside); is && n.fields[of] != nil && n.fields[of].lacks() {
				continue // one at a time: both have the same name
			}
			if !first {
				dst = append(dst, ',')
			}
			dst = append(appendQuoted(dst, []byte(f.name)), ':')
			var inner bool
			if dst, inner = f.appendSchema(dst); !inner {
				dst = dst[:at]
				continue
			}
			first, lacks = false, true
		}
		dst = append(dst, "}}"...)
	case inferredArray:
		if n.item == nil {
			return dst, false
		}
		dst = append(dst, `{"type":"array","items":`...)
		var inner bool
		dst, inner = n.item.appendSchema(dst)
		lacks = lacks || inner
		dst = append(dst, '}')
	}
	return dst, lacks
}
