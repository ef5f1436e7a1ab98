package schemaregistry

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hamba/avro/v2"
)

// The kinds of incompatibility, with the names that Apache Avro gives them.
const (
	nameMismatch         = "NAME_MISMATCH"
	fixedSizeMismatch    = "FIXED_SIZE_MISMATCH"
	missingEnumSymbols   = "MISSING_ENUM_SYMBOLS"
	readerMissingDefault = "READER_FIELD_MISSING_DEFAULT_VALUE"
	typeMismatch         = "TYPE_MISMATCH"
	missingUnionBranch   = "MISSING_UNION_BRANCH"
)

// An avroModel is a parsed Avro schema.
type avroModel struct{ schema avro.Schema }

func (reader avroModel) cannotRead(writer model, _ bool) []incompatibility {
	w, ok := writer.(avroModel)
	if !ok {
		return otherType()
	}
	return avroIncompatibilities(reader.schema, w.schema)
}

// avroIncompatibilities returns why reader cannot read all data of writer, nothing if it
// can. The rules are those of the Avro specification, "Schema Resolution", as Apache Avro's
// SchemaCompatibility applies them: names are compared without namespace, only aliases of
// the reader count, logical types do not.
func avroIncompatibilities(reader, writer avro.Schema) []incompatibility {
	c := comparison{known: map[pair][]incompatibility{}}
	return c.compare(reader, writer, "")
}

type pair struct{ reader, writer avro.Schema }

// A comparison remembers the pairs that it compared. One that is under way counts as
// compatible, which ends the recursion of recursive types.
type comparison struct{ known map[pair][]incompatibility }

func (c *comparison) compare(reader, writer avro.Schema, path string) []incompatibility {
	p := pair{deref(reader), deref(writer)}
	if found, ok := c.known[p]; ok {
		return found
	}
	c.known[p] = nil
	found := c.types(p.reader, p.writer, path)
	if len(found) > maxReasons {
		found = found[:maxReasons]
	}
	c.known[p] = found
	return found
}

func deref(s avro.Schema) avro.Schema {
	if r, ok := s.(*avro.RefSchema); ok {
		return r.Schema()
	}
	return s
}

func (c *comparison) types(reader, writer avro.Schema, path string) []incompatibility {
	if w, ok := writer.(*avro.UnionSchema); ok {
		return c.writerUnion(reader, w, path)
	}
	switch r := reader.(type) {
	case *avro.UnionSchema:
		return c.readerUnion(r, writer, path)
	case *avro.RecordSchema:
		if w, ok := writer.(*avro.RecordSchema); ok {
			return append(names(r, w, path), c.fields(r, w, path)...)
		}
	case *avro.EnumSchema:
		if w, ok := writer.(*avro.EnumSchema); ok {
			return append(names(r, w, path), symbols(r, w, path)...)
		}
	case *avro.FixedSchema:
		if w, ok := writer.(*avro.FixedSchema); ok {
			found := names(r, w, path)
			if r.Size() != w.Size() {
				found = append(found, incompatibility{fixedSizeMismatch, path + "/size",
					fmt.Sprintf("the reader's fixed type %s has %d bytes, the writer's has %d", r.FullName(), r.Size(), w.Size())})
			}
			return found
		}
	case *avro.ArraySchema:
		if w, ok := writer.(*avro.ArraySchema); ok {
			return c.compare(r.Items(), w.Items(), path+"/items")
		}
	case *avro.MapSchema:
		if w, ok := writer.(*avro.MapSchema); ok {
			return c.compare(r.Values(), w.Values(), path+"/values")
		}
	default:
		if reader.Type() == writer.Type() || slices.Contains(promotions[reader.Type()], writer.Type()) {
			return nil
		}
	}
	return []incompatibility{{typeMismatch, where(path),
		fmt.Sprintf("the reader's type %s cannot read the writer's type %s", typeName(reader), typeName(writer))}}
}

// promotions lists for a reader's type the writer's types that it reads besides its own.
var promotions = map[avro.Type][]avro.Type{
	avro.Long:   {avro.Int},
	avro.Float:  {avro.Int, avro.Long},
	avro.Double: {avro.Int, avro.Long, avro.Float},
	avro.Bytes:  {avro.String},
	avro.String: {avro.Bytes},
}

func typeName(s avro.Schema) string {
	if n, ok := s.(avro.NamedSchema); ok {
		return string(s.Type()) + " " + n.FullName()
	}
	return string(s.Type())
}

// writerUnion: the reader must read each branch.
func (c *comparison) writerUnion(reader avro.Schema, writer *avro.UnionSchema, path string) []incompatibility {
	var found []incompatibility
	for i, branch := range writer.Types() {
		why := c.compare(reader, branch, path)
		if _, both := reader.(*avro.UnionSchema); both && len(why) > 0 {
			why = []incompatibility{missingBranch(branch, fmt.Sprintf("%s/%d", path, i), why)}
		}
		found = append(found, why...)
	}
	return found
}

// readerUnion: one branch must read the writer's type, which is no union.
func (c *comparison) readerUnion(reader *avro.UnionSchema, writer avro.Schema, path string) []incompatibility {
	var near []incompatibility // why the branch that looks most like the writer's type is not it
	for i, branch := range reader.Types() {
		if otherName(branch, writer) {
			continue // cheap, for unions of thousands of types
		}
		why := c.compare(branch, writer, fmt.Sprintf("%s/%d", path, i))
		if len(why) == 0 {
			return nil
		}
		if near == nil && deref(branch).Type() == writer.Type() {
			near = why
		}
	}
	return []incompatibility{missingBranch(writer, where(path), near)}
}

func otherName(branch, writer avro.Schema) bool {
	r, named := deref(branch).(avro.NamedSchema)
	w, both := writer.(avro.NamedSchema)
	return named && both && !sameName(r, w)
}

// missingBranch names the writer's type, and the first reason why the branch that looks like
// it is not it.
func missingBranch(writer avro.Schema, path string, near []incompatibility) incompatibility {
	reason := "the reader's union has no branch for the writer's type " + typeName(deref(writer))
	switch {
	case len(near) > 0 && near[0].kind == missingUnionBranch:
		reason = near[0].reason
	case len(near) > 0:
		reason += "; " + near[0].kind + " at " + near[0].path + ": " + near[0].reason
	}
	return incompatibility{missingUnionBranch, path, reason}
}

// names compares names without namespace; the reader's aliases are full names.
func names(reader, writer avro.NamedSchema, path string) []incompatibility {
	if sameName(reader, writer) {
		return nil
	}
	return []incompatibility{{nameMismatch, path + "/name",
		fmt.Sprintf("the reader's type is named %s, the writer's %s: an alias in the reader's schema would join them", reader.FullName(), writer.FullName())}}
}

func sameName(reader, writer avro.NamedSchema) bool {
	return reader.Name() == writer.Name() || slices.Contains(reader.Aliases(), writer.FullName())
}

func symbols(reader, writer *avro.EnumSchema, path string) []incompatibility {
	var missing []string
	for _, s := range writer.Symbols() {
		if !slices.Contains(reader.Symbols(), s) {
			missing = append(missing, s)
		}
	}
	if len(missing) == 0 || reader.HasDefault() {
		return nil
	}
	return []incompatibility{{missingEnumSymbols, path + "/symbols",
		fmt.Sprintf(`the reader's enum %s lacks the symbols [%s] of the writer's: give the enum type itself a "default" (one of its symbols; the default of a field does not do it) that stands for unknown symbols`,
			reader.FullName(), strings.Join(missing, ", "))}}
}

func (c *comparison) fields(reader, writer *avro.RecordSchema, path string) []incompatibility {
	written := map[string]*avro.Field{}
	for _, f := range writer.Fields() {
		written[f.Name()] = f
	}
	var found []incompatibility
	for i, f := range reader.Fields() {
		at := path + "/fields/" + strconv.Itoa(i)
		sources := lookup(written, f)
		switch {
		case len(sources) > 1:
			found = append(found, incompatibility{typeMismatch, at,
				fmt.Sprintf("the reader's field %s is by its aliases several fields of the writer: %s and %s", f.Name(), sources[0].Name(), sources[1].Name())})
		case len(sources) == 1:
			found = append(found, c.compare(f.Type(), sources[0].Type(), at+"/type")...)
		case !f.HasDefault():
			found = append(found, incompatibility{readerMissingDefault, at,
				fmt.Sprintf("the reader's field %s has no default value and the writer has no such field", f.Name())})
		}
	}
	return found
}

// lookup finds the writer's fields that a reader's field stands for.
func lookup(written map[string]*avro.Field, f *avro.Field) []*avro.Field {
	var sources []*avro.Field
	for _, name := range append([]string{f.Name()}, f.Aliases()...) {
		if w := written[name]; w != nil {
			sources = append(sources, w)
		}
	}
	return sources
}
