package parquetio

import (
	"encoding/base64"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
)

// maxProtobufJSON bounds the bytes of a message that is kept as JSON: while it is read, a field of
// two bytes takes a hundred times as much memory.
const maxProtobufJSON = 4 << 20

// noTypes resolves no extension.
var noTypes = new(protoregistry.Types)

// protobufJSON appends a message as JSON text, or as a variant.
func (b *Builder) protobufJSON(f *protobufField, raw []byte, at int) bool {
	if len(raw) > maxProtobufJSON {
		return b.failed(f.col, at, "message is longer than 4 MiB, and would be JSON") >= 0
	}
	m := dynamicpb.NewMessage(f.folded)
	err := proto.UnmarshalOptions{DiscardUnknown: true, Resolver: noTypes, RecursionLimit: maxProtobufDepth - f.depth + 1}.Unmarshal(raw, m)
	if err != nil {
		return b.failed(f.col, at, reasonField) >= 0
	}
	dst := b.jsonTo(&b.cols[f.col])
	w := jsonWriter{b: b, col: f.col, dst: dst, start: len(dst)}
	return w.message(m, at) && b.endJSON(f.col, w.dst, at)
}

// message appends a message as a JSON object of its fields, but for those of protoc's files that
// have a form of their own (Protobuf spec, "ProtoJSON Format").
func (w *jsonWriter) message(m protoreflect.Message, at int) bool {
	if len(w.dst)-w.start > maxJSONBytes {
		return w.failed(at, "value is longer than 64 MiB as JSON") >= 0
	}
	md := m.Descriptor()
	fields := md.Fields()
	switch wellKnownOf(md) {
	case wellKnownTimestamp, wellKnownDuration:
		w.dst = append(w.dst, '"')
		seconds, nanos := m.Get(fields.ByNumber(1)).Int(), m.Get(fields.ByNumber(2)).Int()
		if wellKnownOf(md) == wellKnownTimestamp {
			w.dst = time.Unix(seconds, nanos).UTC().AppendFormat(w.dst, "2006-01-02T15:04:05.999999999Z")
		} else {
			w.dst = appendSeconds(w.dst, seconds, nanos)
		}
		w.dst = append(w.dst, '"')
		return true
	case wellKnownWrapper:
		return w.single(fields.Get(0), m.Get(fields.Get(0)), at)
	case wellKnownJSON:
		switch md.Name() {
		case "Struct", "ListValue":
			return w.field(fields.Get(0), m.Get(fields.Get(0)), at)
		}
		kind := m.WhichOneof(md.Oneofs().Get(0))
		if kind == nil || kind.Kind() == protoreflect.EnumKind {
			w.dst = append(w.dst, "null"...)
			return true
		}
		return w.single(kind, m.Get(kind), at)
	}
	w.dst = append(w.dst, '{')
	for i, first := 0, true; i < fields.Len(); i++ {
		f := fields.Get(i)
		if f.HasPresence() && !m.Has(f) {
			continue
		}
		if !first {
			w.dst = append(w.dst, ',')
		}
		first = false
		w.text([]byte(f.Name()))
		w.dst = append(w.dst, ':')
		if !w.field(f, m.Get(f), at) {
			return false
		}
	}
	w.dst = append(w.dst, '}')
	return true
}

func (w *jsonWriter) field(f protoreflect.FieldDescriptor, v protoreflect.Value, at int) bool {
	switch {
	case f.IsList():
		w.dst = append(w.dst, '[')
		for i := range v.List().Len() {
			if i > 0 {
				w.dst = append(w.dst, ',')
			}
			if !w.single(f, v.List().Get(i), at) {
				return false
			}
		}
		w.dst = append(w.dst, ']')
		return true
	case f.IsMap():
		type pair struct {
			key   string
			value protoreflect.Value
		}
		var pairs []pair
		v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			pairs = append(pairs, pair{k.String(), v})
			return true
		})
		slices.SortFunc(pairs, func(x, y pair) int {
			if x.key < y.key {
				return -1
			}
			return 1
		})
		w.dst = append(w.dst, '{')
		for i, p := range pairs {
			if i > 0 {
				w.dst = append(w.dst, ',')
			}
			w.text([]byte(p.key))
			w.dst = append(w.dst, ':')
			if !w.single(f.MapValue(), p.value, at) {
				return false
			}
		}
		w.dst = append(w.dst, '}')
		return true
	}
	return w.single(f, v, at)
}

func (w *jsonWriter) single(f protoreflect.FieldDescriptor, v protoreflect.Value, at int) bool {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return w.message(v.Message(), at)
	case protoreflect.BoolKind:
		w.dst = strconv.AppendBool(w.dst, v.Bool())
	case protoreflect.EnumKind:
		if e := f.Enum().Values().ByNumber(v.Enum()); e != nil {
			w.text([]byte(e.Name()))
		} else {
			w.dst = append(strconv.AppendInt(append(w.dst, '"'), int64(v.Enum()), 10), '"')
		}
	case protoreflect.StringKind:
		if !utf8.ValidString(v.String()) {
			return w.failed(at, reasonUTF8) >= 0
		}
		w.text([]byte(v.String()))
	case protoreflect.BytesKind:
		w.dst = append(base64.StdEncoding.AppendEncode(append(w.dst, '"'), v.Bytes()), '"')
	case protoreflect.FloatKind:
		w.float(v.Float(), 32)
	case protoreflect.DoubleKind:
		w.float(v.Float(), 64)
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		w.dst = strconv.AppendUint(w.dst, v.Uint(), 10)
	default:
		w.dst = strconv.AppendInt(w.dst, v.Int(), 10)
	}
	return true
}

// appendSeconds appends a Duration as ProtoJSON has it: 3 seconds and 1 millisecond is 3.001s.
func appendSeconds(dst []byte, seconds, nanos int64) []byte {
	if seconds < 0 || nanos < 0 {
		dst = append(dst, '-')
	}
	dst = strconv.AppendUint(dst, uint64(max(seconds, -seconds)), 10)
	if nanos != 0 {
		digits := strconv.AppendInt(nil, 1_000_000_000+max(nanos, -nanos), 10)
		for digits[len(digits)-1] == '0' {
			digits = digits[:len(digits)-1]
		}
		dst = append(append(dst, '.'), digits[1:]...)
	}
	return append(dst, 's')
}
