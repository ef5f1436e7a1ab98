package parquetio

import (
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Renamed takes over the names that fields of a Protobuf message had in an earlier version, where a
// field is the one of the same number and type, at any depth: [Mapping.Evolve] then renames their
// columns. Versions of other formats change nothing, nor do those that lack the message.
func (v *ValueSchema) Renamed(earlier *ValueSchema) {
	now, ok := v.writer.(protobufWriter)
	before, also := earlier.writer.(protobufWriter)
	if !ok || !also || now.message.FullName() != before.message.FullName() {
		return
	}
	if v.aliases == nil {
		v.aliases = map[string][]string{}
	}
	r := renames{aliases: v.aliases}
	r.message(now.message, before.message, "")
}

type renames struct {
	aliases map[string][]string
	depth   int
}

func (r *renames) message(now, before protoreflect.MessageDescriptor, path string) {
	if r.depth++; r.depth > maxColumnDepth/2 {
		return // recursion: folded to one column
	}
	defer func() { r.depth-- }()
	for i := range now.Fields().Len() {
		f := now.Fields().Get(i)
		old := before.Fields().ByNumber(f.Number())
		if old == nil || !sameShape(f, old) {
			continue
		}
		at := join(path, string(f.Name()))
		if name := string(old.Name()); old.Name() != f.Name() && before.Fields().ByName(f.Name()) == nil && now.Fields().ByName(old.Name()) == nil &&
			!slices.Contains(r.aliases[at], name) {
			r.aliases[at] = append(r.aliases[at], name)
		}
		switch {
		case f.IsMap():
			f, old, at = f.MapValue(), old.MapValue(), join(at, "value")
		case f.IsList():
			at = join(at, "element")
		}
		if f.Message() != nil && wellKnownOf(f.Message()) == ordinary {
			r.message(f.Message(), old.Message(), at)
		}
	}
}

// sameShape reports whether two fields of one number are of one type: else the number was used
// again for another field.
func sameShape(a, b protoreflect.FieldDescriptor) bool {
	if a.Kind() != b.Kind() || a.IsMap() != b.IsMap() || a.IsList() != b.IsList() {
		return false
	}
	if a.IsMap() {
		return sameShape(a.MapKey(), b.MapKey()) && sameShape(a.MapValue(), b.MapValue())
	}
	return a.Message() == nil || a.Message().Name() == b.Message().Name()
}
