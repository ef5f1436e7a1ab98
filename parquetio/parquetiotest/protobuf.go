package parquetiotest

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// A randomProto writes the text of a random schema.
type randomProto struct {
	r       *rand.Rand
	edition string // 2, 3 or 2023
	text    strings.Builder
	fields  int
}

const protoMessages = 5

// RandomProtobuf returns the text of a schema. Its first message may have no fields.
func RandomProtobuf(r *rand.Rand) string {
	p := &randomProto{r: r, edition: []string{"2", "3", "3", "2023"}[r.IntN(4)]}
	switch p.edition {
	case "2023":
		p.printf("edition = \"2023\";\n")
	default:
		p.printf("syntax = \"proto%s\";\n", p.edition)
	}
	p.printf("package rnd;\n")
	for _, name := range []string{"timestamp", "duration", "struct", "wrappers", "any", "empty", "field_mask"} {
		p.printf("import \"google/protobuf/%s.proto\";\n", name)
	}
	p.printf("enum E { E_ZERO = 0; E_ONE = 1; E_NEGATIVE = -1; E_BIG = 2147483647; }\n")
	for i := range protoMessages {
		p.printf("message M%d {\n", i)
		p.body(i, r.IntN(9))
		p.printf("}\n")
	}
	return p.text.String()
}

func (p *randomProto) printf(format string, args ...any) { fmt.Fprintf(&p.text, format, args...) }

// body writes fields of message i, which holds later messages, and at times itself or an earlier one.
func (p *randomProto) body(i, n int) {
	numbers := p.r.Perm(40)
	number := func(k int) int {
		if p.r.IntN(8) == 0 {
			return 20_000 + 1000*numbers[k]
		}
		return 1 + numbers[k]
	}
	for k := 0; k < n; k++ {
		p.fields++
		name := fmt.Sprintf("f%d", p.fields)
		switch p.r.IntN(8) {
		case 0:
			keys := []string{"int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "string"}
			p.printf("  map<%s, %s> %s = %d;\n", keys[p.r.IntN(len(keys))], p.typ(i), name, number(k))
		case 1, 2:
			typ, options := p.typ(i), ""
			if p.edition != "2023" && p.r.IntN(3) == 0 && strings.Contains("int32 sint64 double bool fixed32 E", typ) {
				options = []string{" [packed=true]", " [packed=false]"}[p.r.IntN(2)]
			}
			p.printf("  repeated %s %s = %d%s;\n", typ, name, number(k), options)
		case 3:
			p.printf("  oneof o%d {\n", p.fields)
			for range 1 + p.r.IntN(3) {
				p.fields++
				p.printf("    %s f%d = %d;\n", p.typ(i), p.fields, number(k))
				if k++; k >= n {
					break
				}
			}
			p.printf("  }\n")
		case 4:
			if p.edition == "2" {
				label := []string{"optional", "repeated"}[p.r.IntN(2)]
				p.printf("  %s group G%d = %d {\n", label, p.fields, number(k))
				p.body(i, p.r.IntN(3))
				p.printf("  }\n")
				continue
			}
			fallthrough
		default:
			typ, label, options := p.typ(i), "", ""
			message := strings.HasPrefix(typ, "M") || strings.HasPrefix(typ, "google")
			switch {
			case p.edition == "2":
				label = []string{"optional ", "optional ", "required "}[p.r.IntN(3)]
				if message {
					label = "optional " // a required message that contains itself is never whole
				}
			case p.edition == "3":
				label = []string{"", "", "optional "}[p.r.IntN(3)]
			case message && p.r.IntN(2) == 0:
				options = " [features.message_encoding = DELIMITED]"
			case !message:
				options = []string{"", " [features.field_presence = IMPLICIT]"}[p.r.IntN(2)]
			}
			p.printf("  %s%s %s = %d%s;\n", label, typ, name, number(k), options)
		}
	}
}

func (p *randomProto) typ(i int) string {
	switch p.r.IntN(5) {
	case 0, 1:
		if p.r.IntN(6) == 0 {
			return fmt.Sprintf("M%d", p.r.IntN(protoMessages))
		}
		if i+1 < protoMessages {
			return fmt.Sprintf("M%d", i+1+p.r.IntN(protoMessages-i-1))
		}
	case 2:
		known := []string{"Timestamp", "Duration", "Struct", "Value", "ListValue", "Any", "Empty", "FieldMask", "Int64Value", "UInt64Value",
			"Int32Value", "UInt32Value", "FloatValue", "DoubleValue", "BoolValue", "StringValue", "BytesValue"}
		return "google.protobuf." + known[p.r.IntN(len(known))]
	}
	scalars := []string{"int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "float", "double", "string", "bytes", "E"}
	return scalars[p.r.IntN(len(scalars))]
}

// EncodeProtobuf writes a message as a producer may: fields in any order, more than once, lists
// packed or not, messages in parts, entries of maps without what is a default, and fields that
// the schema does not know.
func EncodeProtobuf(r *rand.Rand, m protoreflect.Message) []byte { return strange{r: r}.message(m) }

// FillMessage sets random fields of m, all that are required among them.
func FillMessage(r *rand.Rand, m protoreflect.Message, depth int) {
	switch name := m.Descriptor().FullName(); name {
	case "google.protobuf.Timestamp", "google.protobuf.Duration":
		limit := int64(62_000_000_000)
		seconds, nanos := r.Int64N(2*limit)-limit, r.Int32N(1_000_000_000)
		if name == "google.protobuf.Duration" && seconds < 0 {
			nanos = -nanos
		}
		m.Set(m.Descriptor().Fields().ByNumber(1), protoreflect.ValueOfInt64(seconds))
		m.Set(m.Descriptor().Fields().ByNumber(2), protoreflect.ValueOfInt32(nanos))
		return
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Cardinality() != protoreflect.Required && (r.IntN(3) == 0 || depth <= 0 && f.Message() != nil) {
			continue
		}
		switch {
		case f.IsList():
			l := m.Mutable(f).List()
			for range r.IntN(4) {
				l.Append(fillOne(r, f, l.NewElement(), depth))
			}
		case f.IsMap():
			entries := m.Mutable(f).Map()
			for range r.IntN(4) {
				key := fillOne(r, f.MapKey(), protoreflect.Value{}, depth).MapKey()
				entries.Set(key, fillOne(r, f.MapValue(), entries.NewValue(), depth))
			}
		case f.Message() != nil:
			FillMessage(r, m.Mutable(f).Message(), depth-1)
		default:
			m.Set(f, fillOne(r, f, protoreflect.Value{}, depth))
		}
	}
}

func fillOne(r *rand.Rand, f protoreflect.FieldDescriptor, empty protoreflect.Value, depth int) protoreflect.Value {
	number := r.Uint64() >> r.IntN(64)
	if r.IntN(5) == 0 {
		number = []uint64{0, 1, math.MaxInt64, 1 << 63, math.MaxUint64, math.MaxInt32, 1 << 31, math.MaxUint32}[r.IntN(8)]
	}
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		FillMessage(r, empty.Message(), depth-1)
		return empty
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(number&1 == 1)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum([]protoreflect.EnumNumber{0, 1, -1, math.MaxInt32, 77, math.MinInt32}[r.IntN(6)])
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(number))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(int64(number))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(number))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(number)
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(math.Float32frombits(uint32(number)))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(math.Float64frombits(number))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(RandomBytes(r, r.IntN(20)))
	}
	return protoreflect.ValueOfString(RandomText(r))
}

// A strange encoder is that of [EncodeProtobuf].
type strange struct {
	r     *rand.Rand
	plain bool // writes nothing that something else replaces
}

func (s strange) message(m protoreflect.Message) []byte {
	var chunks [][][]byte // by field: what must keep its order
	add := func(parts ...[]byte) { chunks = append(chunks, parts) }
	oneofs := map[protoreflect.FullName]int{}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() && !m.Has(f) && m.WhichOneof(o) != nil && !s.plain && s.r.IntN(2) == 0 {
			// An arm that another replaces.
			other := dynamicpb.NewMessage(m.Descriptor())
			if f.Message() != nil {
				FillMessage(s.r, other.Mutable(f).Message(), 1)
			} else {
				other.Set(f, fillOne(s.r, f, protoreflect.Value{}, 1))
			}
			at := len(chunks)
			if k, ok := oneofs[o.FullName()]; ok {
				at = k
			} else {
				chunks = append(chunks, nil)
				oneofs[o.FullName()] = at
			}
			chunks[at] = append([][]byte{strange{s.r, true}.field(f, other.Get(f))}, chunks[at]...)
			continue
		}
		if !m.Has(f) {
			continue
		}
		v := m.Get(f)
		switch {
		case f.IsList():
			add(s.list(f, v.List())...)
		case f.IsMap():
			var entries [][]byte
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				entries = append(entries, s.entry(f, k, v))
				return true
			})
			if n := len(entries); n > 0 && !s.plain && s.r.IntN(2) == 0 {
				// An entry that a later one of the same key replaces.
				v.Map().Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
					value := v.Map().NewValue()
					other := fillOne(s.r, f.MapValue(), value, 1)
					entries = append([][]byte{strange{s.r, true}.entry(f, k, other)}, entries...)
					return s.r.IntN(2) == 0
				})
			}
			add(entries...)
		default:
			parts := s.singular(f, v)
			if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() {
				if at, ok := oneofs[o.FullName()]; ok {
					chunks[at] = append(chunks[at], parts...)
				} else {
					oneofs[o.FullName()] = len(chunks)
					add(parts...)
				}
				continue
			}
			add(parts...)
		}
	}
	if s.r.IntN(3) == 0 {
		add(s.unknown())
	}
	return s.shuffle(chunks)
}

// shuffle interleaves the chunks of different fields.
func (s strange) shuffle(chunks [][][]byte) (out []byte) {
	for len(chunks) > 0 {
		i := 0
		if s.r.IntN(2) == 0 {
			i = s.r.IntN(len(chunks))
		}
		if len(chunks[i]) > 0 {
			out = append(out, chunks[i][0]...)
			chunks[i] = chunks[i][1:]
		}
		if len(chunks[i]) == 0 {
			chunks = append(chunks[:i:i], chunks[i+1:]...)
		}
	}
	return out
}

func (s strange) unknown() []byte {
	b := protowire.AppendTag(nil, 536_870_911, protowire.BytesType)
	b = protowire.AppendString(b, "unknown")
	b = protowire.AppendTag(b, 536_870_910, protowire.StartGroupType)
	b = protowire.AppendTag(b, 1, protowire.Fixed32Type)
	b = protowire.AppendFixed32(b, 7)
	return protowire.AppendTag(b, 536_870_910, protowire.EndGroupType)
}

// singular writes a field that is not repeated, at times with an occurrence before that it
// replaces, or in two parts if it is a message.
func (s strange) singular(f protoreflect.FieldDescriptor, v protoreflect.Value) (parts [][]byte) {
	if f.Message() != nil {
		whole := s.message(v.Message())
		if s.r.IntN(3) > 0 {
			return [][]byte{s.wrap(f, whole)}
		}
		cut := 0
		for rest := whole; len(rest) > 0 && s.r.IntN(3) > 0; {
			_, _, n := protowire.ConsumeField(rest)
			cut, rest = cut+n, rest[n:]
		}
		return [][]byte{s.wrap(f, whole[:cut]), s.wrap(f, whole[cut:])}
	}
	if s.r.IntN(4) == 0 {
		parts = append(parts, s.field(f, fillOne(s.r, f, protoreflect.Value{}, 0)))
	}
	return append(parts, s.field(f, v))
}

func (s strange) list(f protoreflect.FieldDescriptor, l protoreflect.List) (parts [][]byte) {
	wire := wireType(f.Kind())
	for i := 0; i < l.Len(); {
		if wire == protowire.BytesType || wire == protowire.StartGroupType || s.r.IntN(2) == 0 {
			parts = append(parts, s.field(f, l.Get(i)))
			i++
			continue
		}
		var packed []byte
		for n := s.r.IntN(l.Len() - i + 1); n > 0; n-- {
			packed = append(packed, s.scalar(f, l.Get(i))...)
			i++
		}
		parts = append(parts, protowire.AppendBytes(protowire.AppendTag(nil, f.Number(), protowire.BytesType), packed))
	}
	return parts
}

func (s strange) entry(f protoreflect.FieldDescriptor, k protoreflect.MapKey, v protoreflect.Value) []byte {
	var chunks [][][]byte
	if s.r.IntN(2) == 0 || !k.Value().Equal(f.MapKey().Default()) {
		chunks = append(chunks, [][]byte{s.field(f.MapKey(), k.Value())})
	}
	isDefault := f.MapValue().Message() == nil && v.String() == f.MapValue().Default().String() // -0 is not 0
	if s.r.IntN(2) == 0 || !isDefault {
		chunks = append(chunks, s.singular(f.MapValue(), v))
	}
	if s.r.IntN(4) == 0 {
		chunks = append(chunks, [][]byte{s.unknown()})
	}
	s.r.Shuffle(len(chunks), func(i, j int) { chunks[i], chunks[j] = chunks[j], chunks[i] })
	return protowire.AppendBytes(protowire.AppendTag(nil, f.Number(), protowire.BytesType), s.shuffle(chunks))
}

func (s strange) wrap(f protoreflect.FieldDescriptor, message []byte) []byte {
	if f.Kind() == protoreflect.GroupKind {
		b := append(protowire.AppendTag(nil, f.Number(), protowire.StartGroupType), message...)
		return protowire.AppendTag(b, f.Number(), protowire.EndGroupType)
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, f.Number(), protowire.BytesType), message)
}

func (s strange) field(f protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	if f.Message() != nil {
		return s.wrap(f, s.message(v.Message()))
	}
	return append(protowire.AppendTag(nil, f.Number(), wireType(f.Kind())), s.scalar(f, v)...)
}

func wireType(k protoreflect.Kind) protowire.Type {
	switch k {
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return protowire.Fixed32Type
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return protowire.Fixed64Type
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind:
		return protowire.BytesType
	case protoreflect.GroupKind:
		return protowire.StartGroupType
	}
	return protowire.VarintType
}

func (s strange) scalar(f protoreflect.FieldDescriptor, v protoreflect.Value) []byte {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protowire.AppendVarint(nil, protowire.EncodeBool(v.Bool()))
	case protoreflect.EnumKind:
		return protowire.AppendVarint(nil, uint64(v.Enum()))
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		return protowire.AppendVarint(nil, uint64(v.Int()))
	case protoreflect.Sint32Kind, protoreflect.Sint64Kind:
		return protowire.AppendVarint(nil, protowire.EncodeZigZag(v.Int()))
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		return protowire.AppendVarint(nil, v.Uint())
	case protoreflect.Fixed32Kind:
		return protowire.AppendFixed32(nil, uint32(v.Uint()))
	case protoreflect.Fixed64Kind:
		return protowire.AppendFixed64(nil, v.Uint())
	case protoreflect.Sfixed32Kind:
		return protowire.AppendFixed32(nil, uint32(v.Int()))
	case protoreflect.Sfixed64Kind:
		return protowire.AppendFixed64(nil, uint64(v.Int()))
	case protoreflect.FloatKind:
		return protowire.AppendFixed32(nil, math.Float32bits(float32(v.Float())))
	case protoreflect.DoubleKind:
		return protowire.AppendFixed64(nil, math.Float64bits(v.Float()))
	case protoreflect.BytesKind:
		return protowire.AppendBytes(nil, v.Bytes())
	}
	return protowire.AppendString(nil, v.String())
}

// ProtobufRow is the row that m must become.
func ProtobufRow(m protoreflect.Message) map[string]any { return protobufRow(m, nil) }

// protobufRow is the row of a message inside of those that are open.
func protobufRow(m protoreflect.Message, open []protoreflect.FullName) map[string]any {
	open = append(open, m.Descriptor().FullName())
	row := map[string]any{}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.HasPresence() && !m.Has(f) {
			row[string(f.Name())] = nil
			continue
		}
		row[string(f.Name())] = modelField(f, m.Get(f), open)
	}
	if fields.Len() == 0 && len(open) > 1 {
		row[presentField] = true
	}
	return row
}

func modelField(f protoreflect.FieldDescriptor, v protoreflect.Value, open []protoreflect.FullName) any {
	switch {
	case f.IsList():
		out := []any{}
		for i := range v.List().Len() {
			out = append(out, modelValue(f, v.List().Get(i), open))
		}
		return out
	case f.IsMap():
		out := map[string]any{}
		v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			out[k.String()] = modelValue(f.MapValue(), v, open)
			return true
		})
		return out
	}
	return modelValue(f, v, open)
}

func modelValue(f protoreflect.FieldDescriptor, v protoreflect.Value, open []protoreflect.FullName) any {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		m := v.Message()
		switch name := m.Descriptor().FullName(); name {
		case "google.protobuf.Timestamp", "google.protobuf.Duration":
			fields := m.Descriptor().Fields()
			return m.Get(fields.ByName("seconds")).Int()*1_000_000 + int64(math.Floor(float64(m.Get(fields.ByName("nanos")).Int())/1000))
		case "google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue":
			return InJSON{modelJSON(m)}
		default:
			if strings.HasPrefix(string(name), "google.protobuf.") && strings.HasSuffix(string(name), "Value") {
				inner := m.Descriptor().Fields().Get(0)
				return modelValue(inner, m.Get(inner), open)
			}
			for _, o := range open {
				if o == name {
					return InJSON{modelJSON(m)}
				}
			}
			return protobufRow(m, open)
		}
	case protoreflect.BoolKind:
		return v.Bool()
	case protoreflect.EnumKind:
		return modelEnum(f, v)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return int64(v.Uint())
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return fmt.Sprint(v.Uint())
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return plainFloat(v.Float())
	case protoreflect.StringKind:
		return v.String()
	case protoreflect.BytesKind:
		return "0x" + hex.EncodeToString(v.Bytes())
	}
	return v.Int()
}

func modelEnum(f protoreflect.FieldDescriptor, v protoreflect.Value) string {
	if e := f.Enum().Values().ByNumber(v.Enum()); e != nil {
		return string(e.Name())
	}
	return fmt.Sprint(v.Enum())
}

func modelJSON(m protoreflect.Message) any {
	fields := m.Descriptor().Fields()
	get := func(name protoreflect.Name) protoreflect.Value { return m.Get(fields.ByName(name)) }
	switch name := m.Descriptor().FullName(); name {
	case "google.protobuf.Timestamp":
		return time.Unix(get("seconds").Int(), get("nanos").Int()).UTC().Format("2006-01-02T15:04:05.999999999Z")
	case "google.protobuf.Duration":
		v := new(big.Int).Mul(big.NewInt(get("seconds").Int()), big.NewInt(1e9))
		text := decimalText(v.Add(v, big.NewInt(get("nanos").Int())), 9)
		return strings.TrimRight(strings.TrimRight(text, "0"), ".") + "s"
	case "google.protobuf.Struct", "google.protobuf.ListValue":
		return modelJSONField(fields.Get(0), m.Get(fields.Get(0)))
	case "google.protobuf.Value":
		kind := m.WhichOneof(m.Descriptor().Oneofs().Get(0))
		if kind == nil || kind.Name() == "null_value" {
			return nil
		}
		return modelJSONField(kind, m.Get(kind))
	default:
		if strings.HasPrefix(string(name), "google.protobuf.") && strings.HasSuffix(string(name), "Value") {
			return modelJSONField(fields.Get(0), m.Get(fields.Get(0)))
		}
	}
	out := map[string]any{}
	for i := range fields.Len() {
		if f := fields.Get(i); !f.HasPresence() || m.Has(f) {
			out[string(f.Name())] = modelJSONField(f, m.Get(f))
		}
	}
	return out
}

func modelJSONField(f protoreflect.FieldDescriptor, v protoreflect.Value) any {
	switch {
	case f.IsList():
		out := []any{}
		for i := range v.List().Len() {
			out = append(out, modelJSONValue(f, v.List().Get(i)))
		}
		return out
	case f.IsMap():
		out := map[string]any{}
		v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			out[k.String()] = modelJSONValue(f.MapValue(), v)
			return true
		})
		return out
	}
	return modelJSONValue(f, v)
}

func modelJSONValue(f protoreflect.FieldDescriptor, v protoreflect.Value) any {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return modelJSON(v.Message())
	case protoreflect.BoolKind, protoreflect.StringKind:
		return v.Interface()
	case protoreflect.EnumKind:
		return modelEnum(f, v)
	case protoreflect.BytesKind:
		return base64.StdEncoding.EncodeToString(v.Bytes())
	case protoreflect.FloatKind:
		return jsonFloat(v.Float(), 32)
	case protoreflect.DoubleKind:
		return jsonFloat(v.Float(), 64)
	}
	return json.Number(v.String())
}
