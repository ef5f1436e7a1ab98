package parquetio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/apache/iceberg-go"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tabletopic/tabletopic/internal/protofile"
)

// maxMessageIndexes bounds how deep the message of a record may be declared inside others.
const maxMessageIndexes = 32

// ParseProtobuf maps a message of a Protobuf schema to columns. The schema is a file, as text
// or as a FileDescriptorProto in base64; message is as [SplitMessageIndexes] and
// [MessageIndexes] return it. References are the files that it imports, directly or not, by
// the path of the import. The error names the field and the reason.
func ParseProtobuf(rules Rules, schema, message string, references ...Reference) (*ValueSchema, error) {
	file, err := compileProtobuf(schema, references)
	if err != nil {
		return nil, err
	}
	md, err := messageOf(file, message)
	if err != nil {
		return nil, err
	}
	m := protobufMapper{rules: rules, open: map[protoreflect.FullName]int{}}
	fields, err := m.fields(md, "")
	if err != nil {
		return nil, err
	}
	id := 0
	return &ValueSchema{Fields: assignIDs(fields, &id), writer: protobufWriter{rules, md}}, nil
}

// MessageName returns the full name of a message that is given as [ParseProtobuf] takes it.
func MessageName(schema, message string, references ...Reference) (string, error) {
	file, err := compileProtobuf(schema, references)
	if err != nil {
		return "", err
	}
	md, err := messageOf(file, message)
	if err != nil {
		return "", err
	}
	return string(md.FullName()), nil
}

func messageOf(file protoreflect.FileDescriptor, message string) (protoreflect.MessageDescriptor, error) {
	path := []int{0}
	if message != "" {
		var err error
		if path, _, err = readIndexes([]byte(message)); err != nil {
			return nil, err
		}
	}
	return protofile.Message(file, path...)
}

// MessageIndexes returns the message of that full name, as [ParseProtobuf] takes it.
func MessageIndexes(schema, name string, references ...Reference) (message string, err error) {
	file, err := compileProtobuf(schema, references)
	if err != nil {
		return "", err
	}
	path, err := protofile.Path(file, name)
	if err != nil {
		return "", err
	}
	return appendIndexes(path), nil
}

// SplitMessageIndexes splits what stands before a Protobuf message in the wire format of
// registries from the message: the number of indexes and the indexes, which say where in the
// schema the message is declared, as zig-zag numbers, or one zero byte for the first message.
// The same message always gives the same text, which is empty for the first.
func SplitMessageIndexes(payload []byte) (message string, rest []byte, err error) {
	if len(payload) > 0 && payload[0] == 0 {
		return "", payload[1:], nil
	}
	path, n, err := readIndexes(payload)
	if err != nil {
		return "", nil, err
	}
	return appendIndexes(path), payload[n:], nil
}

func readIndexes(p []byte) (path []int, n int, err error) {
	count, i := readLong(p, 0)
	if i < 0 || count < 1 || count > maxMessageIndexes {
		return nil, 0, fmt.Errorf("message indexes: their number is missing, or not 1 to %d", maxMessageIndexes)
	}
	path = make([]int, count)
	for k := range path {
		index, next := readLong(p, i)
		if next < 0 || index < 0 || index > 1<<30 {
			return nil, 0, errors.New("message indexes: an index is missing or out of range")
		}
		path[k], i = int(index), next
	}
	return path, i, nil
}

func appendIndexes(path []int) string {
	if len(path) == 1 && path[0] == 0 {
		return ""
	}
	b := binary.AppendVarint(nil, int64(len(path)))
	for _, i := range path {
		b = binary.AppendVarint(b, int64(i))
	}
	return string(b)
}

func compileProtobuf(schema string, references []Reference) (protoreflect.FileDescriptor, error) {
	return protofile.Compile(schema, func(path string) (string, bool) {
		for _, r := range references {
			if r.Name == path {
				return r.Text, true
			}
		}
		return "", false
	})
}

// wellKnown says what a message of Google's is as a column, if not a struct of its fields.
type wellKnown uint8

const (
	ordinary           wellKnown = iota
	wellKnownTimestamp           // timestamptz
	wellKnownDuration            // long
	wellKnownWrapper             // what it wraps, or null
	wellKnownJSON                // string
	wellKnownDecimal             // decimal
)

// wellKnownOf takes a message for what its name says only if it is from the file that
// protoc has.
func wellKnownOf(m protoreflect.MessageDescriptor) wellKnown {
	name := string(m.Name())
	switch m.ParentFile().Path() {
	case "google/protobuf/timestamp.proto":
		return wellKnownTimestamp
	case "google/protobuf/duration.proto":
		return wellKnownDuration
	case "google/protobuf/wrappers.proto":
		return wellKnownWrapper
	case "google/protobuf/struct.proto":
		if name == "Struct" || name == "Value" || name == "ListValue" {
			return wellKnownJSON
		}
	}
	return ordinary
}

// wellKnownOf is [wellKnownOf] for the message of a field, which may say more about it.
func (r Rules) wellKnownOf(f protoreflect.FieldDescriptor) wellKnown {
	m := f.Message()
	if m.ParentFile().Path() != "confluent/type/decimal.proto" || r.Version < 2 {
		return wellKnownOf(m)
	}
	if _, _, ok := decimalParameters(f); ok {
		return wellKnownDecimal
	}
	return ordinary
}

// decimalParameters returns what the option confluent.field_meta of a field says of decimals, and
// false if it does not say what a column can have.
func decimalParameters(f protoreflect.FieldDescriptor) (precision, scale int, ok bool) {
	f.Options().ProtoReflect().Range(func(option protoreflect.FieldDescriptor, meta protoreflect.Value) bool {
		if option.FullName() != "confluent.field_meta" || option.Message() == nil {
			return true
		}
		params := meta.Message().Get(option.Message().Fields().ByName("params")).Map()
		number := func(name string) int {
			n, err := strconv.Atoi(params.Get(protoreflect.ValueOfString(name).MapKey()).String())
			if err != nil {
				return -1
			}
			return n
		}
		precision, scale = number("precision"), number("scale")
		ok = precision >= 1 && precision <= 38 && scale >= 0 && scale <= precision
		return false
	})
	return precision, scale, ok
}

// protobufMapper unfolds a message into column types, without ids.
type protobufMapper struct {
	rules   Rules
	open    map[protoreflect.FullName]int // messages that the walk is inside of, and how often
	depth   int
	columns int
}

func (m *protobufMapper) fields(message protoreflect.MessageDescriptor, path string) ([]iceberg.NestedField, error) {
	m.open[message.FullName()]++
	defer func() { m.open[message.FullName()]-- }()
	names := map[string]string{}
	var out []iceberg.NestedField
	for i := range message.Fields().Len() {
		f := message.Fields().Get(i)
		name := string(f.Name())
		at := join(path, name)
		if other, ok := names[foldCase(name)]; ok {
			return nil, fmt.Errorf("field %s: differs from field %s by case alone, which engines cannot tell apart: rename one", at, other)
		}
		names[foldCase(name)] = at
		t, err := m.typeOf(f, at)
		if err != nil {
			return nil, err
		}
		out = append(out, iceberg.NestedField{Name: name, Type: t, Required: !m.rules.nullable(f)})
	}
	return out, nil
}

func (m *protobufMapper) typeOf(f protoreflect.FieldDescriptor, path string) (iceberg.Type, error) {
	switch {
	case f.IsMap():
		key, err := m.valueType(f.MapKey(), join(path, "key"))
		if err != nil {
			return nil, err
		}
		value, err := m.valueType(f.MapValue(), join(path, "value"))
		if err != nil {
			return nil, err
		}
		return &iceberg.MapType{KeyType: key, ValueType: value, ValueRequired: true}, m.count(path)
	case f.IsList():
		element, err := m.valueType(f, join(path, "element"))
		if err != nil {
			return nil, err
		}
		return &iceberg.ListType{Element: element, ElementRequired: true}, m.count(path)
	}
	return m.valueType(f, path)
}

func (m *protobufMapper) count(path string) error {
	if m.columns++; m.columns > maxColumns {
		return fmt.Errorf("field %s: more than %d columns, inner ones counted", path, maxColumns)
	}
	return nil
}

// valueType returns the type of one value of f.
func (m *protobufMapper) valueType(f protoreflect.FieldDescriptor, path string) (iceberg.Type, error) {
	if err := m.count(path); err != nil {
		return nil, err
	}
	message := f.Message()
	if message == nil {
		return m.rules.scalarType(f.Kind()), nil
	}
	switch m.rules.wellKnownOf(f) {
	case wellKnownDecimal:
		precision, scale, _ := decimalParameters(f)
		return iceberg.DecimalTypeOf(precision, scale), nil
	case wellKnownTimestamp:
		return iceberg.PrimitiveTypes.TimestampTz, nil
	case wellKnownDuration:
		return iceberg.PrimitiveTypes.Int64, nil
	case wellKnownWrapper:
		return m.rules.scalarType(message.Fields().Get(0).Kind()), nil
	case wellKnownJSON:
		return m.rules.jsonType(), nil
	}
	switch within := m.open[message.FullName()]; {
	case within > 0 && m.rules.RefuseRecursion:
		return nil, fmt.Errorf("field %s: %w", path, ErrRecursion)
	case within > m.rules.Depth:
		return m.rules.jsonType(), nil
	}
	if m.depth++; m.depth > maxColumnDepth/2 {
		return nil, fmt.Errorf("field %s: messages nested deeper than %d", path, maxColumnDepth/2)
	}
	defer func() { m.depth-- }()
	fields, err := m.fields(message, path)
	if err != nil {
		return nil, err
	}
	if len(fields) == 0 {
		fields = []iceberg.NestedField{presentField}
	}
	return &iceberg.StructType{FieldList: fields}, nil
}

// nullable reports whether the column of a field may be null.
func (r Rules) nullable(f protoreflect.FieldDescriptor) bool {
	if f.HasPresence() {
		return f.Cardinality() != protoreflect.Required
	}
	return r.ZeroAsNull && f.Cardinality() != protoreflect.Repeated
}

func (r Rules) scalarType(k protoreflect.Kind) iceberg.Type {
	switch k {
	case protoreflect.BoolKind:
		return iceberg.PrimitiveTypes.Bool
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return iceberg.PrimitiveTypes.Int32
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind, protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return iceberg.PrimitiveTypes.Int64
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		if r.Uint64AsString {
			return iceberg.PrimitiveTypes.String
		}
		return iceberg.DecimalTypeOf(20, 0)
	case protoreflect.FloatKind:
		return iceberg.PrimitiveTypes.Float32
	case protoreflect.DoubleKind:
		return iceberg.PrimitiveTypes.Float64
	case protoreflect.BytesKind:
		return iceberg.PrimitiveTypes.Binary
	}
	return iceberg.PrimitiveTypes.String
}
