package schemaregistry

import (
	"encoding/json"
	"math/big"
	"strconv"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// A shape is a schema as the rules see it: of one class, or a combination of others. A schema
// with keywords of several classes is the combination allOf of one shape for each.
type shape struct {
	class  string
	schema *jsonschema.Schema // whose keywords of that class count
	parts  []*shape           // of a combination
}

const (
	classTrue        = "true" // also {}
	classFalse       = "false"
	classNull        = "null"
	classBoolean     = "boolean"
	classString      = "string"
	classNumber      = "number"
	classInteger     = "integer" // the same class as number, but for a rule of its own
	classObject      = "object"
	classArray       = "array"
	classEnum        = "enum"
	classConst       = "const"
	classNot         = "not"
	classConditional = "if"
	allOf            = "allOf"
	anyOf            = "anyOf"
	oneOf            = "oneOf"
)

func (s *shape) combined() bool { return s.class == allOf || s.class == anyOf || s.class == oneOf }

// sameClass compares classes; all combinations are one.
func (s *shape) sameClass(t *shape) bool {
	numeric := func(s *shape) bool { return s.class == classNumber || s.class == classInteger }
	return s.class == t.class || s.combined() && t.combined() || numeric(s) && numeric(t)
}

// shapes gives each schema one shape, as far as they are asked for: schemas may be recursive.
type shapes map[*jsonschema.Schema]*shape

func (all shapes) of(s *jsonschema.Schema) *shape {
	if s == nil {
		return nil
	}
	if found := all[s]; found != nil {
		return found
	}
	target := &shape{class: classTrue, schema: s} // what a reference to itself says: nothing
	all[s] = target
	parts := all.parts(s)
	switch len(parts) {
	case 0:
		if s.Bool != nil && !*s.Bool {
			target.class = classFalse
		}
	case 1:
		*target, all[s] = *parts[0], parts[0]
	default:
		*target = shape{class: allOf, schema: s, parts: parts}
	}
	return all[s]
}

func (all shapes) parts(s *jsonschema.Schema) []*shape {
	var parts []*shape
	one := func(class string) { parts = append(parts, &shape{class: class, schema: s}) }
	for _, ref := range []*jsonschema.Schema{s.Ref, s.RecursiveRef} {
		if ref != nil {
			parts = append(parts, all.of(ref))
		}
	}
	if s.DynamicRef != nil {
		parts = append(parts, all.of(s.DynamicRef.Ref))
	}
	if s.Enum != nil {
		one(classEnum)
	}
	if s.Const != nil {
		one(classConst)
	}
	for _, c := range []struct {
		class string
		list  []*jsonschema.Schema
	}{{allOf, s.AllOf}, {anyOf, s.AnyOf}, {oneOf, s.OneOf}} {
		if len(c.list) > 0 {
			parts = append(parts, all.combination(s, c.class, c.list))
		}
	}
	if s.Not != nil {
		one(classNot)
	}
	if s.If != nil || s.Then != nil || s.Else != nil {
		one(classConditional)
	}
	return append(parts, typed(s)...)
}

// combination drops branches that are there twice.
func (all shapes) combination(s *jsonschema.Schema, class string, list []*jsonschema.Schema) *shape {
	c := &shape{class: class, schema: s}
	seen := map[string]bool{}
	for _, b := range list {
		text, _ := json.Marshal(sourceOf(b)) // what was decoded encodes
		if b.Bool != nil {
			text = strconv.AppendBool(nil, *b.Bool)
		}
		if !seen[string(text)] {
			seen[string(text)] = true
			c.parts = append(c.parts, all.of(b))
		}
	}
	return c
}

// typed are the shapes of the types that a schema names, or of which it has keywords.
func typed(s *jsonschema.Schema) []*shape {
	var parts []*shape
	if s.Types != nil && !s.Types.IsEmpty() {
		for _, t := range s.Types.ToStrings() {
			parts = append(parts, &shape{class: t, schema: s})
		}
		if len(parts) > 1 {
			return []*shape{{class: anyOf, schema: s, parts: parts}}
		}
		return parts
	}
	for _, k := range []struct {
		class string
		has   bool
	}{
		{classArray, s.MinItems != nil || s.MaxItems != nil || s.UniqueItems || s.Contains != nil || s.Items != nil || s.AdditionalItems != nil ||
			s.PrefixItems != nil || s.Items2020 != nil || s.UnevaluatedItems != nil},
		{classObject, s.MaxProperties != nil || s.MinProperties != nil || s.Required != nil || s.PropertyNames != nil || s.Properties != nil ||
			s.PatternProperties != nil || s.AdditionalProperties != nil || s.Dependencies != nil || s.DependentRequired != nil || s.DependentSchemas != nil ||
			s.UnevaluatedProperties != nil},
		{classNumber, s.Maximum != nil || s.Minimum != nil || s.ExclusiveMaximum != nil || s.ExclusiveMinimum != nil || s.MultipleOf != nil},
		{classString, s.MinLength != nil || s.MaxLength != nil || s.Pattern != nil || s.Format != nil},
	} {
		if k.has {
			parts = append(parts, &shape{class: k.class, schema: s})
		}
	}
	return parts
}

// arrayOf is an array schema in the words of all drafts: the schema of all items, or those of
// the first items and what may follow them.
type arrayOf struct {
	all        *jsonschema.Schema
	first      []*jsonschema.Schema
	additional *jsonschema.Schema // nil if anything may follow, or nothing
	closed     bool               // nothing may follow
	rest       *jsonschema.Schema // unevaluatedItems
}

func arrayOfSchema(s *jsonschema.Schema) arrayOf {
	a := arrayOf{first: s.PrefixItems, rest: s.UnevaluatedItems}
	more := s.AdditionalItems
	switch items := s.Items.(type) {
	case *jsonschema.Schema:
		a.all = items
	case []*jsonschema.Schema:
		a.first = items
	}
	if s.Items2020 != nil {
		if a.first == nil {
			a.all = s.Items2020
		} else {
			more = s.Items2020
		}
	}
	a.additional, a.closed = additional(more)
	return a
}

// additional reads a keyword that is a boolean or a schema.
func additional(v any) (s *jsonschema.Schema, closed bool) {
	switch v := v.(type) {
	case bool:
		return nil, !v
	case *jsonschema.Schema:
		if v.Bool != nil {
			return nil, !*v.Bool
		}
		return v, false
	}
	return nil, false
}

// valueSet is a set of JSON values by their canonical text.
func valueSet(values []any) map[string]bool {
	set := map[string]bool{}
	for _, v := range values {
		b, err := json.Marshal(v)
		if err == nil { // a decoded value encodes
			set[string(b)] = true
		}
	}
	return set
}

func number(n *int) *big.Rat {
	if n == nil {
		return nil
	}
	return big.NewRat(int64(*n), 1)
}
