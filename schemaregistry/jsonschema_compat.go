package schemaregistry

import (
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// A jsonModel is a compiled JSON Schema.
type jsonModel struct{ root *jsonschema.Schema }

// What one comparison may cost: combinations of combinations are many.
const (
	maxJSONPairs = 100_000
	maxJSONDepth = 1000
)

// cannotRead applies the rules of Confluent's registry: whatever is valid for the writer's
// schema must be valid for the reader's. Added properties count by the content model of the
// writer: an open one may hold such a property with any value already. The lenient policy
// lets them come and go.
func (reader jsonModel) cannotRead(writer model, lenient bool) []incompatibility {
	w, ok := writer.(jsonModel)
	if !ok {
		return otherType()
	}
	all, budget := shapes{}, maxJSONPairs
	refuted := map[shapePair][]incompatibility{}
	for {
		c := jsonComparison{shapes: all, lenient: lenient, known: map[shapePair][]incompatibility{}, refuted: refuted, open: map[shapePair]bool{}, budget: &budget}
		found := c.compare(reader.root, w.root)
		if budget <= 0 {
			return []incompatibility{{"TOO_COMPLEX", "#/", "the schemas have too many combinations to compare"}}
		}
		next := map[shapePair][]incompatibility{}
		for p, why := range c.known {
			if len(why) > 0 {
				next[p] = why
			}
		}
		if !c.assumed || len(next) == len(refuted) {
			return found
		}
		refuted = next
	}
}

type shapePair struct{ reader, writer *shape }

// A jsonComparison remembers the pairs that it compared, with paths below the pair. One that
// is under way is assumed to be compatible, unless an earlier round refuted that; rounds go
// on until none refutes more.
type jsonComparison struct {
	shapes  shapes
	lenient bool
	known   map[shapePair][]incompatibility
	refuted map[shapePair][]incompatibility
	open    map[shapePair]bool // under way
	assumed bool
	budget  *int // of comparisons
}

// A finding is a list of reasons in the making.
type finding []incompatibility

func (f *finding) add(kind, path, reason string, args ...any) {
	if len(*f) < maxReasons {
		*f = append(*f, incompatibility{kind, "#/" + path, fmt.Sprintf(reason, args...)})
	}
}

// below adds reasons found at path.
func (f *finding) below(path string, found []incompatibility) {
	for _, why := range found {
		if len(*f) == maxReasons {
			return
		}
		if rest := why.path[len("#/"):]; rest != "" {
			why.path = "#/" + path + "/" + rest
		} else {
			why.path = "#/" + path
		}
		*f = append(*f, why)
	}
}

func (c *jsonComparison) compare(reader, writer *jsonschema.Schema) []incompatibility {
	return c.pair(c.shapes.of(reader), c.shapes.of(writer))
}

func (c *jsonComparison) pair(reader, writer *shape) []incompatibility {
	p := shapePair{reader, writer}
	if found, ok := c.known[p]; ok {
		return found
	}
	if c.open[p] {
		c.assumed = c.assumed || c.refuted[p] == nil
		return c.refuted[p]
	}
	if *c.budget--; *c.budget <= 0 || len(c.open) == maxJSONDepth {
		*c.budget = 0
		return nil
	}
	c.open[p] = true
	found := c.shape(reader, writer)
	delete(c.open, p)
	c.known[p] = found
	return found
}

func (c *jsonComparison) shape(r, w *shape) []incompatibility {
	var f finding
	switch {
	case c.branchReads(r, w):
		return nil
	case !r.sameClass(w):
		if w.class != classFalse && r.class != classTrue && !(connectBytes(r) && connectBytes(w)) {
			f.add("TYPE_CHANGED", "", "the reader's type is %s, the writer's %s", r.class, w.class)
		}
		return f
	case r.combined():
		c.combination(&f, r, w)
		return f
	}
	switch r.class {
	case classString:
		texts(&f, r.schema, w.schema)
	case classNumber, classInteger:
		numbers(&f, r, w)
	case classEnum:
		enums(&f, r.schema, w.schema)
	case classConst:
		if !maps.Equal(valueSet([]any{*r.schema.Const}), valueSet([]any{*w.schema.Const})) {
			f.add("ENUM_ARRAY_CHANGED", "const", "the reader's constant is another than the writer's")
		}
	case classNot:
		// What the reader excludes, the writer must exclude.
		if why := c.compare(w.schema.Not, r.schema.Not); len(why) > 0 {
			f.add("NOT_TYPE_EXTENDED", "not", "the reader excludes more than the writer")
		}
	case classObject:
		c.object(&f, r.schema, w.schema)
	case classArray:
		c.array(&f, arrayOfSchema(r.schema), arrayOfSchema(w.schema))
		arrayLimits(&f, r.schema, w.schema)
	}
	return f
}

// connectBytes reports whether a schema is of bytes to Kafka Connect, which has written them
// as a string and as a number.
func connectBytes(s *shape) bool { return sourceOf(s.schema)["connect.type"] == "bytes" }

// branchReads reports whether a combination and a schema that is none agree by one branch.
func (c *jsonComparison) branchReads(r, w *shape) bool {
	switch {
	case r.combined() && !w.combined() && (len(r.parts) == 1 || r.class != allOf):
		return slices.ContainsFunc(r.parts, func(part *shape) bool { return len(c.pair(part, w)) == 0 })
	case w.combined() && !r.combined() && (len(w.parts) == 1 || w.class == allOf):
		return slices.ContainsFunc(w.parts, func(part *shape) bool { return len(c.pair(r, part)) == 0 })
	}
	return false
}

// combination matches the branches of two combinations.
func (c *jsonComparison) combination(f *finding, r, w *shape) {
	single := func(s *shape) bool { return len(s.parts) == 1 }
	if r.class != w.class && r.class != anyOf && !(single(r) && single(w)) && !(single(w) && r.class == oneOf) && !(single(r) && w.class == allOf) {
		f.add("COMBINED_TYPE_CHANGED", "", "the reader's schema is a combination %s, the writer's %s", r.class, w.class)
		return
	}
	switch {
	case len(w.parts) < len(r.parts) && r.class == allOf:
		f.add("PRODUCT_TYPE_EXTENDED", "", "the reader's allOf has %d branches, the writer's %d", len(r.parts), len(w.parts))
	case len(w.parts) > len(r.parts) && w.class != allOf:
		f.add("SUM_TYPE_NARROWED", "", "the reader's %s has %d branches, the writer's %d", w.class, len(r.parts), len(w.parts))
	}
	reads := func(i, j int) bool { return len(c.pair(r.parts[j], w.parts[i])) == 0 }
	if n := matching(len(w.parts), len(r.parts), reads); n < min(len(w.parts), len(r.parts)) {
		f.add("COMBINED_TYPE_SUBSCHEMAS_CHANGED", "", "%d branches of the reader's %s can each take the data of one of the writer's, of %d and %d", n, r.class, len(r.parts), len(w.parts))
	}
}

// matching returns how many pairs (i, j) of m and n there can be at most, each i and j in one
// pair only.
func matching(m, n int, edge func(i, j int) bool) int {
	matched := make([]int, n) // i+1 for each j
	var augment func(i int, seen []bool) bool
	augment = func(i int, seen []bool) bool {
		for j := range n {
			if seen[j] || !edge(i, j) {
				continue
			}
			seen[j] = true
			if matched[j] == 0 || augment(matched[j]-1, seen) {
				matched[j] = i + 1
				return true
			}
		}
		return false
	}
	size := 0
	for i := range m {
		if augment(i, make([]bool, n)) {
			size++
		}
	}
	return size
}

// most compares an upper limit: the reader's may not be lower. least is the other way round.
func (f *finding) most(kind, keyword string, r, w *big.Rat)  { f.limit(kind, keyword, r, w, 1) }
func (f *finding) least(kind, keyword string, r, w *big.Rat) { f.limit(kind, keyword, r, w, -1) }

func (f *finding) limit(kind, keyword string, r, w *big.Rat, sign int) {
	switch {
	case r == nil:
	case w == nil:
		f.add(kind+"_ADDED", keyword, "the reader's %s is %s, the writer has none", keyword, r.RatString())
	case w.Cmp(r) == sign:
		change := map[int]string{1: "_DECREASED", -1: "_INCREASED"}[sign]
		f.add(kind+change, keyword, "the reader's %s is %s, the writer's %s", keyword, r.RatString(), w.RatString())
	}
}

func texts(f *finding, r, w *jsonschema.Schema) {
	f.most("MAX_LENGTH", "maxLength", number(r.MaxLength), number(w.MaxLength))
	f.least("MIN_LENGTH", "minLength", number(r.MinLength), number(w.MinLength))
	switch {
	case r.Pattern == nil:
	case w.Pattern == nil:
		f.add("PATTERN_ADDED", "pattern", "the reader has the pattern %s, the writer none", r.Pattern)
	case r.Pattern.String() != w.Pattern.String():
		f.add("PATTERN_CHANGED", "pattern", "the reader's pattern is %s, the writer's %s", r.Pattern, w.Pattern)
	}
}

func numbers(f *finding, r, w *shape) {
	rs, ws := r.schema, w.schema
	f.most("MAXIMUM", "maximum", rs.Maximum, ws.Maximum)
	f.least("MINIMUM", "minimum", rs.Minimum, ws.Minimum)
	f.most("EXCLUSIVE_MAXIMUM", "exclusiveMaximum", rs.ExclusiveMaximum, ws.ExclusiveMaximum)
	f.least("EXCLUSIVE_MINIMUM", "exclusiveMinimum", rs.ExclusiveMinimum, ws.ExclusiveMinimum)
	divides := func(a, b *big.Rat) bool { return a.Sign() != 0 && new(big.Rat).Quo(b, a).IsInt() }
	switch rm, wm := rs.MultipleOf, ws.MultipleOf; {
	case rm == nil || wm != nil && rm.Cmp(wm) == 0:
	case wm == nil:
		f.add("MULTIPLE_OF_ADDED", "multipleOf", "the reader takes multiples of %s, the writer any number", rm.RatString())
	case divides(wm, rm):
		f.add("MULTIPLE_OF_EXPANDED", "multipleOf", "the reader takes multiples of %s, the writer of %s", rm.RatString(), wm.RatString())
	case !divides(rm, wm):
		f.add("MULTIPLE_OF_CHANGED", "multipleOf", "the reader takes multiples of %s, the writer of %s", rm.RatString(), wm.RatString())
	}
	if r.class == classInteger && w.class == classNumber {
		f.add("TYPE_NARROWED", "", "the reader takes integers, the writer any number")
	}
}

func enums(f *finding, r, w *jsonschema.Schema) {
	rv, wv := valueSet(r.Enum.Values), valueSet(w.Enum.Values)
	switch {
	case includes(rv, wv):
	case includes(wv, rv):
		f.add("ENUM_ARRAY_NARROWED", "enum", "the reader's enum lacks values of the writer's")
	default:
		f.add("ENUM_ARRAY_CHANGED", "enum", "the reader's enum has other values than the writer's")
	}
}

func includes(set, subset map[string]bool) bool {
	for v := range subset {
		if !set[v] {
			return false
		}
	}
	return true
}

func (c *jsonComparison) object(f *finding, r, w *jsonschema.Schema) {
	c.properties(f, r, w)
	c.dependencies(f, r, w)
	rs, rClosed := additional(r.AdditionalProperties)
	ws, wClosed := additional(w.AdditionalProperties)
	const at = "additionalProperties"
	switch {
	case rClosed && !wClosed:
		f.strictly(c, "ADDITIONAL_PROPERTIES_REMOVED", at, "the reader takes no additional properties, the writer does")
	case rClosed || wClosed || rs == nil:
	case ws == nil:
		f.strictly(c, "ADDITIONAL_PROPERTIES_NARROWED", at, "the reader has a schema for additional properties, the writer none")
	default:
		f.below(at, c.compare(rs, ws))
	}
	c.rest(f, "UNEVALUATED_PROPERTIES", "unevaluatedProperties", r.UnevaluatedProperties, w.UnevaluatedProperties, c.lenient)
	f.most("MAX_PROPERTIES", "maxProperties", number(r.MaxProperties), number(w.MaxProperties))
	f.least("MIN_PROPERTIES", "minProperties", number(r.MinProperties), number(w.MinProperties))
}

// strictly adds a reason that the lenient policy overlooks.
func (f *finding) strictly(c *jsonComparison, kind, path, reason string) {
	if !c.lenient {
		f.add(kind, path, "%s", reason)
	}
}

func (c *jsonComparison) properties(f *finding, r, w *jsonschema.Schema) {
	names := maps.Clone(r.Properties)
	if names == nil {
		names = map[string]*jsonschema.Schema{}
	}
	maps.Copy(names, w.Properties)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		rp, wp := r.Properties[name], w.Properties[name]
		required := slices.Contains(r.Required, name)
		switch {
		case rp == nil:
			c.propertyRemoved(f, r, name, wp)
		case wp == nil:
			c.propertyAdded(f, w, name, rp, required)
		default:
			if required && !slices.Contains(w.Required, name) && rp.Default == nil {
				f.add("REQUIRED_ATTRIBUTE_ADDED", "required/"+name, "the reader requires the property %q without a default, the writer does not require it", name)
			}
			f.below("properties/"+name, c.compare(rp, wp))
		}
	}
}

func (c *jsonComparison) propertyRemoved(f *finding, r *jsonschema.Schema, name string, wp *jsonschema.Schema) {
	at := "properties/" + name
	if c.openObject(r) {
		return
	}
	if partial := c.partial(r, name); partial != nil {
		if why := c.compare(partial, wp); len(why) > 0 {
			f.below(at, why)
			f.strictly(c, "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", at, "the reader does not name the property, and what it takes of others does not cover it")
		}
		return
	}
	if c.shapes.of(wp).class != classFalse {
		f.strictly(c, "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", at, "the reader takes no properties that it does not name, and this one is not among them")
	}
}

func (c *jsonComparison) propertyAdded(f *finding, w *jsonschema.Schema, name string, rp *jsonschema.Schema, required bool) {
	at := "properties/" + name
	if c.openObject(w) {
		switch {
		case c.shapes.of(rp).class == classTrue:
		case required && rp.Default == nil:
			f.add("REQUIRED_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", at, "the reader requires the property without a default, the writer does not name it")
		case required:
			f.strictly(c, "REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL", at, "the writer does not name the property and may write any value under its name")
		default:
			f.strictly(c, "OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", at, "the writer does not name the property and may write any value under its name")
		}
		return
	}
	if partial := c.partial(w, name); partial != nil {
		if why := c.compare(rp, partial); len(why) > 0 {
			f.below(at, why)
			f.strictly(c, "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", at, "the writer may write values under this name that the reader does not take")
		}
	}
	if required && rp.Default == nil {
		f.add("REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL", at, "the reader requires the property without a default, the writer does not name it")
	}
}

// openObject reports whether any property may hold any value, besides those that are named.
func (c *jsonComparison) openObject(s *jsonschema.Schema) bool {
	schema, closed := additional(s.AdditionalProperties)
	return !closed && schema == nil && len(s.PatternProperties) == 0 && c.unlimited(s.UnevaluatedProperties)
}

func (c *jsonComparison) unlimited(rest *jsonschema.Schema) bool {
	return rest == nil || c.shapes.of(rest).class == classTrue
}

// partial returns the schema for a property that is not named; nil if there is none.
func (c *jsonComparison) partial(s *jsonschema.Schema, name string) *jsonschema.Schema {
	patterns := map[string]*jsonschema.Schema{}
	for p, schema := range s.PatternProperties {
		if p.MatchString(name) {
			patterns[p.String()] = schema
		}
	}
	if len(patterns) > 0 {
		return patterns[slices.Min(slices.Collect(maps.Keys(patterns)))]
	}
	schema, closed := additional(s.AdditionalProperties)
	if schema != nil || closed {
		return schema
	}
	return c.limited(s.UnevaluatedProperties)
}

// limited is a schema of what is left over that says something, or nil.
func (c *jsonComparison) limited(rest *jsonschema.Schema) *jsonschema.Schema {
	if class := c.shapes.of(rest); rest == nil || class.class == classTrue || class.class == classFalse {
		return nil
	}
	return rest
}

// rest compares the schemas of what no other keyword has looked at.
func (c *jsonComparison) rest(f *finding, kind, at string, r, w *jsonschema.Schema, overlooked bool) {
	if r == nil || c.shapes.of(r).class == classTrue && w != nil {
		return
	}
	rFalse := c.shapes.of(r).class == classFalse
	switch {
	case overlooked && (w == nil || rFalse || c.unlimited(w)):
	case w != nil && c.shapes.of(w).class == classFalse:
	case rFalse:
		f.add(kind+"_REMOVED", at, "the reader takes nothing more, the writer does")
	case w == nil || c.unlimited(w):
		f.add(kind+"_NARROWED", at, "the reader has a schema for what is left over, the writer none")
	default:
		f.below(at, c.compare(r, w))
	}
}

func (c *jsonComparison) dependencies(f *finding, r, w *jsonschema.Schema) {
	rn, rs := dependenciesOf(r)
	wn, ws := dependenciesOf(w)
	for _, name := range slices.Sorted(maps.Keys(rn)) {
		at := "dependencies/" + name
		switch written, both := wn[name]; {
		case !both:
			f.add("DEPENDENCY_ARRAY_ADDED", at, "the reader requires other properties beside %q, the writer none", name)
		case includes(written, rn[name]):
		case includes(rn[name], written):
			f.add("DEPENDENCY_ARRAY_EXTENDED", at, "the reader requires more properties beside %q than the writer", name)
		default:
			f.add("DEPENDENCY_ARRAY_CHANGED", at, "the reader requires other properties beside %q than the writer", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(rs)) {
		at := "dependencies/" + name
		if ws[name] == nil {
			f.add("DEPENDENCY_SCHEMA_ADDED", at, "the reader has a schema for objects with %q, the writer none", name)
		} else {
			f.below(at, c.compare(rs[name], ws[name]))
		}
	}
}

// dependenciesOf reads the keywords of all drafts.
func dependenciesOf(s *jsonschema.Schema) (names map[string]map[string]bool, schemas map[string]*jsonschema.Schema) {
	names, schemas = map[string]map[string]bool{}, map[string]*jsonschema.Schema{}
	add := func(name string, list []string) {
		names[name] = map[string]bool{}
		for _, n := range list {
			names[name][n] = true
		}
	}
	for name, d := range s.Dependencies {
		switch d := d.(type) {
		case []string:
			add(name, d)
		case *jsonschema.Schema:
			schemas[name] = d
		}
	}
	for name, list := range s.DependentRequired {
		add(name, list)
	}
	maps.Copy(schemas, s.DependentSchemas)
	return names, schemas
}

func (c *jsonComparison) array(f *finding, r, w arrayOf) {
	switch {
	case r.all == nil:
	case w.all == nil:
		f.add("SCHEMA_ADDED", "items", "the reader has a schema for items, the writer none")
	default:
		f.below("items", c.compare(r.all, w.all))
	}
	for i := range max(len(r.first), len(w.first)) {
		at := "items/" + strconv.Itoa(i)
		switch {
		case i >= len(r.first):
			c.itemRemoved(f, r, at, w.first[i])
		case i >= len(w.first):
			c.itemAdded(f, w, at, r.first[i])
		default:
			f.below(at, c.compare(r.first[i], w.first[i]))
		}
	}
	const at = "additionalItems"
	switch {
	case r.closed && !w.closed:
		f.add("ADDITIONAL_ITEMS_REMOVED", at, "the reader takes no additional items, the writer does")
	case r.closed || w.closed || r.additional == nil:
	case w.additional == nil:
		f.add("ADDITIONAL_ITEMS_NARROWED", at, "the reader has a schema for additional items, the writer none")
	default:
		f.below(at, c.compare(r.additional, w.additional))
	}
	c.rest(f, "UNEVALUATED_ITEMS", "unevaluatedItems", r.rest, w.rest, false)
}

// openArray reports whether any item may follow those that are named.
func (c *jsonComparison) openArray(a arrayOf) bool {
	return !a.closed && a.additional == nil && c.unlimited(a.rest)
}

// following is the schema of items behind those that are named, nil if there is none.
func (c *jsonComparison) following(a arrayOf) *jsonschema.Schema {
	if a.additional != nil || a.closed {
		return a.additional
	}
	return c.limited(a.rest)
}

func (c *jsonComparison) itemRemoved(f *finding, r arrayOf, at string, wi *jsonschema.Schema) {
	if c.openArray(r) {
		return
	}
	if partial := c.following(r); partial != nil {
		if why := c.compare(partial, wi); len(why) > 0 {
			f.below(at, why)
			f.add("ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", at, "the reader does not name the item, and what it takes of others does not cover it")
		}
		return
	}
	if c.shapes.of(wi).class != classFalse {
		f.add("ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL", at, "the reader takes no items that it does not name, and this one is not among them")
	}
}

func (c *jsonComparison) itemAdded(f *finding, w arrayOf, at string, ri *jsonschema.Schema) {
	if c.openArray(w) {
		if c.shapes.of(ri).class != classTrue {
			f.add("ITEM_ADDED_TO_OPEN_CONTENT_MODEL", at, "the writer does not name the item and may write any value in its place")
		}
		return
	}
	if partial := c.following(w); partial != nil {
		if why := c.compare(ri, partial); len(why) > 0 {
			f.below(at, why)
			f.add("ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", at, "the writer may write values in this place that the reader does not take")
		}
	}
}

func arrayLimits(f *finding, r, w *jsonschema.Schema) {
	f.most("MAX_ITEMS", "maxItems", number(r.MaxItems), number(w.MaxItems))
	f.least("MIN_ITEMS", "minItems", number(r.MinItems), number(w.MinItems))
	if r.UniqueItems && !w.UniqueItems {
		f.add("UNIQUE_ITEMS_ADDED", "uniqueItems", "the reader's items are unique, the writer's need not be")
	}
	f.most("MAX_CONTAINS", "maxContains", number(r.MaxContains), number(w.MaxContains))
	f.least("MIN_CONTAINS", "minContains", number(r.MinContains), number(w.MinContains))
}
