package schemaregistry

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// A protobufModel is a compiled file.
type protobufModel struct{ file protoreflect.FileDescriptor }

// cannotRead applies the rules of Confluent's registry: fields are matched by number and
// messages by name; what is encoded alike may change its name; a package, a message and a
// member of a oneof may not go, nor may a required field come or go. Messages that fields
// name are compared too, those of imports as well.
func (reader protobufModel) cannotRead(writer model, _ bool) []incompatibility {
	w, ok := writer.(protobufModel)
	if !ok {
		return otherType()
	}
	c := protobufComparison{known: map[messagePair]bool{}}
	if from, to := w.file.Package(), reader.file.Package(); from != to {
		c.add("PACKAGE_CHANGED", "#/", "the reader's package is %q, the writer's %q", to, from)
	}
	c.messages(reader.file.Messages(), w.file.Messages(), "#")
	return c.found
}

type messagePair struct {
	reader, writer protoreflect.MessageDescriptor
}

// A protobufComparison remembers what it found of pairs of messages. One that is under way
// counts as compatible, which ends the recursion of recursive types.
type protobufComparison struct {
	known map[messagePair]bool // whether the reader reads the writer's
	found []incompatibility
}

func (c *protobufComparison) add(kind, path, reason string, args ...any) {
	if len(c.found) < maxReasons {
		c.found = append(c.found, incompatibility{kind, path, fmt.Sprintf(reason, args...)})
	}
}

// messages compares messages by their names.
func (c *protobufComparison) messages(reader, writer protoreflect.MessageDescriptors, path string) {
	for i := range writer.Len() {
		w := writer.Get(i)
		if w.IsMapEntry() {
			continue
		}
		at := path + "/" + string(w.Name())
		if r := reader.ByName(w.Name()); r == nil || r.IsMapEntry() {
			c.add("MESSAGE_REMOVED", at, "the reader has no message %s", w.Name())
		} else {
			c.message(r, w, at)
		}
	}
}

// message reports whether reader reads writer's messages, and adds why not the first time.
func (c *protobufComparison) message(reader, writer protoreflect.MessageDescriptor, path string) bool {
	pair := messagePair{reader, writer}
	if reads, ok := c.known[pair]; ok {
		return reads
	}
	c.known[pair] = true
	before := len(c.found)
	c.oneofs(reader, writer, path)
	numbers := map[protoreflect.FieldNumber]bool{}
	for _, fields := range []protoreflect.FieldDescriptors{reader.Fields(), writer.Fields()} {
		for i := range fields.Len() {
			numbers[fields.Get(i).Number()] = true
		}
	}
	for _, n := range slices.Sorted(maps.Keys(numbers)) {
		r, w := reader.Fields().ByNumber(n), writer.Fields().ByNumber(n)
		switch {
		case r == nil:
			c.removed(w, reader, path)
		case w == nil && r.Cardinality() == protoreflect.Required:
			c.add("REQUIRED_FIELD_ADDED", fieldPath(path, r), "the reader requires field %s, which the writer does not have", r.Name())
		case w != nil:
			c.field(r, w, fieldPath(path, r))
		}
	}
	c.messages(reader.Messages(), writer.Messages(), path)
	c.known[pair] = len(c.found) == before
	return c.known[pair]
}

// oneofOf returns the oneof of a field, nil if it is in none. That which stands for proto3's
// "optional" is none.
func oneofOf(f protoreflect.FieldDescriptor) protoreflect.OneofDescriptor {
	if f == nil {
		return nil
	}
	if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() {
		return o
	}
	return nil
}

func fieldPath(path string, f protoreflect.FieldDescriptor) string {
	if o := oneofOf(f); o != nil {
		path += "/" + string(o.Name())
	}
	return path + "/" + strconv.Itoa(int(f.Number()))
}

// oneofs finds fields that exclude each other for the reader and did not for the writer.
func (c *protobufComparison) oneofs(reader, writer protoreflect.MessageDescriptor, path string) {
	for i := range reader.Oneofs().Len() {
		o := reader.Oneofs().Get(i)
		if o.IsSynthetic() {
			continue
		}
		origins, single := map[string]bool{}, 0 // where its members come from; how many were in no oneof
		for j := range o.Fields().Len() {
			w := writer.Fields().ByNumber(o.Fields().Get(j).Number())
			if from := oneofOf(w); from != nil {
				origins["oneof "+string(from.Name())] = true
			} else if w != nil {
				origins["field "+string(w.Name())] = true
				single++
			}
		}
		if len(origins) < 2 {
			continue
		}
		kind := "FIELD_MOVED_TO_EXISTING_ONEOF"
		if single > 1 {
			kind = "MULTIPLE_FIELDS_MOVED_TO_ONEOF"
		}
		c.add(kind, path+"/"+string(o.Name()), "the reader's oneof %s takes one of what the writer may set at once: %s", o.Name(), strings.Join(slices.Sorted(maps.Keys(origins)), ", "))
	}
}

// removed judges a field that the reader does not have. A oneof may go as a whole.
func (c *protobufComparison) removed(w protoreflect.FieldDescriptor, reader protoreflect.MessageDescriptor, path string) {
	o := oneofOf(w)
	switch {
	case o == nil && w.Cardinality() == protoreflect.Required:
		c.add("REQUIRED_FIELD_REMOVED", fieldPath(path, w), "the reader has no field %s, which the writer requires", w.Name())
	case o != nil && !goneWhole(o, reader):
		c.add("ONEOF_FIELD_REMOVED", fieldPath(path, w), "the reader has no field %s, which is in the writer's oneof %s", w.Name(), o.Name())
	}
}

func goneWhole(o protoreflect.OneofDescriptor, reader protoreflect.MessageDescriptor) bool {
	if r := reader.Oneofs().ByName(o.Name()); r != nil && !r.IsSynthetic() {
		return false
	}
	for i := range o.Fields().Len() {
		if reader.Fields().ByNumber(o.Fields().Get(i).Number()) != nil {
			return false
		}
	}
	return true
}

func (c *protobufComparison) field(reader, writer protoreflect.FieldDescriptor, path string) {
	rk, wk := shapeOf(reader), shapeOf(writer)
	if rk != wk {
		kind := "FIELD_KIND_CHANGED"
		if scalarShape(rk) && scalarShape(wk) {
			kind = "FIELD_SCALAR_KIND_CHANGED"
		}
		c.add(kind, path, "the reader's field %s is %s, the writer's %s", reader.Name(), typeOfField(reader), typeOfField(writer))
		return
	}
	switch rk {
	case "map":
		c.field(reader.MapKey(), writer.MapKey(), path)
		c.field(reader.MapValue(), writer.MapValue(), path)
	case "message", "group":
		c.named(reader, writer, path)
	case "string":
	default:
		if r, w := label(reader), label(writer); r != w && r != "" && w != "" {
			c.add("FIELD_NUMERIC_LABEL_CHANGED", path, "the reader's field %s is %s, the writer's %s", reader.Name(), r, w)
		}
	}
}

// named compares two fields whose types are messages, which may be in another package.
func (c *protobufComparison) named(reader, writer protoreflect.FieldDescriptor, path string) {
	r, w := reader.Message(), writer.Message()
	if localName(r) != localName(w) || !c.message(r, w, "#/"+strings.ReplaceAll(localName(r), ".", "/")) {
		c.add("FIELD_NAMED_TYPE_CHANGED", path, "the message %s of the reader's field %s cannot read the writer's %s", r.FullName(), reader.Name(), w.FullName())
	}
}

func localName(m protoreflect.MessageDescriptor) string {
	return strings.TrimPrefix(string(m.FullName()), string(m.ParentFile().Package())+".")
}

// shapeOf says how the values of a field are encoded; types of one shape read each other.
func shapeOf(f protoreflect.FieldDescriptor) string {
	switch k := f.Kind(); {
	case f.IsMap():
		return "map"
	case k == protoreflect.MessageKind || k == protoreflect.GroupKind:
		return k.String()
	}
	return scalarShapes[f.Kind()]
}

func scalarShape(s string) bool { return s != "map" && s != "message" && s != "group" }

var scalarShapes = map[protoreflect.Kind]string{
	protoreflect.Int32Kind: "varint", protoreflect.Int64Kind: "varint", protoreflect.Uint32Kind: "varint", protoreflect.Uint64Kind: "varint",
	protoreflect.BoolKind: "varint", protoreflect.EnumKind: "varint",
	protoreflect.Sint32Kind: "zigzag", protoreflect.Sint64Kind: "zigzag",
	protoreflect.StringKind: "string", protoreflect.BytesKind: "string",
	protoreflect.Fixed32Kind: "fixed32", protoreflect.Sfixed32Kind: "fixed32",
	protoreflect.Fixed64Kind: "fixed64", protoreflect.Sfixed64Kind: "fixed64",
	protoreflect.FloatKind: "float", protoreflect.DoubleKind: "double",
}

// typeOfField names the type of a field as its source does.
func typeOfField(f protoreflect.FieldDescriptor) string {
	switch {
	case f.IsMap():
		return fmt.Sprintf("map<%s, %s>", typeOfField(f.MapKey()), typeOfField(f.MapValue()))
	case f.Message() != nil:
		return "message " + string(f.Message().FullName())
	case f.Enum() != nil:
		return "enum " + string(f.Enum().FullName())
	}
	return f.Kind().String()
}

// label is the word before a field's type, "" if there is none. Only fields that both have
// one are compared by it, as the reference does.
func label(f protoreflect.FieldDescriptor) string {
	if f.HasOptionalKeyword() || f.Cardinality() != protoreflect.Optional {
		return f.Cardinality().String()
	}
	return ""
}
