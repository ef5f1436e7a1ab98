package parquetio

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/apache/iceberg-go"
)

// kafkaFields are the fields of the struct that says where a row came from.
func kafkaFields() []iceberg.NestedField {
	header := &iceberg.StructType{FieldList: []iceberg.NestedField{
		{Name: "key", Type: iceberg.PrimitiveTypes.String},
		{Name: "value", Type: iceberg.PrimitiveTypes.Binary},
	}}
	return []iceberg.NestedField{
		{Name: "partition", Type: iceberg.PrimitiveTypes.Int32},
		{Name: "offset", Type: iceberg.PrimitiveTypes.Int64},
		{Name: "timestamp", Type: iceberg.PrimitiveTypes.TimestampTz},
		{Name: "timestamp_type", Type: iceberg.PrimitiveTypes.Int32},
		{Name: "key", Type: iceberg.PrimitiveTypes.Binary},
		{Name: "headers", Type: &iceberg.ListType{Element: header}},
	}
}

// A Mapping says how the fields of writers become columns of one table.
type Mapping struct {
	// KafkaColumn is the struct that says where a row came from (partition, offset, timestamp,
	// timestamp_type, key, headers); the table has none if it is empty.
	KafkaColumn string
	// KeyColumn has the keys that schemas describe ([ValueSchema.AsKey]); values leave it alone.
	KeyColumn string
	// NewColumns gives a field that its column cannot hold a column of its own, x__v2 for x,
	// then x__v3, and so on. Without it the schema is refused.
	NewColumns bool
	// Case is that of the names of columns that a table gets.
	Case Case
	// Engines read the table: a field of a type that one of them cannot read gets a column of
	// another that has its values.
	Engines Engines
	// Former are names that columns had before, by field id. A writer that knows a column by
	// such a name still writes it.
	Former map[int][]string
}

// A Case says in which letters the names of new columns are written. Which column a field goes to does
// not depend on it: names that differ by case alone are the same column in all.
type Case string

// The values of table.topic.column.case.
const (
	CasePreserve Case = "preserve" // as the schema has them; "" means the same
	CaseLower    Case = "lower"
	CaseUpper    Case = "upper"
)

// of returns name in the letters of c. A letter whose other form does not fold back to it stays, as
// the ı of Turkish, whose capital is an I: the field would not find its column.
func (c Case) of(name string) string {
	var other func(rune) rune
	switch {
	case name == PresentField:
		return name
	case c == CaseLower:
		other = unicode.ToLower
	case c == CaseUpper:
		other = unicode.ToUpper
	default:
		return name
	}
	return strings.Map(func(r rune) rune {
		if o := other(r); strings.EqualFold(string(o), string(r)) {
			return o
		}
		return r
	}, name)
}

// foldCase is the same for names that differ by case alone, as [strings.EqualFold] tells, and for no others.
func foldCase(name string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for o := unicode.SimpleFold(r); o != r; o = unicode.SimpleFold(o) {
			least = min(least, o)
		}
		return least
	}, name)
}

// inside returns t with the names of all fields inside it in the letters of c.
func (c Case) inside(t iceberg.Type) iceberg.Type {
	switch t := t.(type) {
	case *iceberg.StructType:
		fields := slices.Clone(t.FieldList)
		for i := range fields {
			fields[i].Name, fields[i].Type = c.of(fields[i].Name), c.inside(fields[i].Type)
		}
		return &iceberg.StructType{FieldList: fields}
	case *iceberg.ListType:
		out := *t
		out.Element = c.inside(t.Element)
		return &out
	case *iceberg.MapType:
		out := *t
		out.KeyType, out.ValueType = c.inside(t.KeyType), c.inside(t.ValueType)
		return &out
	}
	return t
}

// reserved reports whether name, of a top-level column, is that of the Kafka column or the key's.
func (m Mapping) reserved(name string) bool {
	return isColumn(m.KafkaColumn, name) || isColumn(m.KeyColumn, name)
}

// TableSchema returns the schema of a new table for v: its columns, all optional, then the
// Kafka column. Ids are assigned from 1, in the order in which iceberg-go would.
func (m Mapping) TableSchema(v *ValueSchema) (*iceberg.Schema, error) {
	next, _, err := m.Evolve(iceberg.NewSchema(0), 0, v)
	return next, err
}

// An IncompatibleError lists the columns that cannot hold what the writer writes.
type IncompatibleError struct {
	Columns []IncompatibleColumn
}

// An IncompatibleColumn is one column of an [IncompatibleError].
type IncompatibleColumn struct {
	Path          string // dotted, with element, key and value inside lists and maps
	Table, Writer iceberg.Type
}

func (e *IncompatibleError) Error() string {
	var b strings.Builder
	b.WriteString("schema does not fit the table: ")
	for i, c := range e.Columns {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "column %s is %s, the writer has %s: %s", c.Path, c.Table, c.Writer, c.reason())
	}
	return b.String()
}

// reason says what is wrong with the pair.
func (c IncompatibleColumn) reason() string {
	_, table := c.Table.(iceberg.PrimitiveType)
	_, writer := c.Writer.(iceberg.PrimitiveType)
	have, isDecimal := c.Table.(iceberg.DecimalType)
	want, toDecimal := c.Writer.(iceberg.DecimalType)
	switch {
	case !table && !writer && c.Table.Type() == c.Writer.Type():
		return "the keys of a map keep their type"
	case !table || !writer:
		return "one is nested and the other is not, or otherwise"
	case isDecimal && toDecimal && have.Scale() != want.Scale():
		return "a decimal keeps its scale"
	case isInstant(c.Table) && isWallClock(c.Writer), isWallClock(c.Table) && isInstant(c.Writer):
		return "one is an instant and the other the time of a wall clock"
	}
	return "Iceberg widens only int to long, float to double and decimals of one scale"
}

func isInstant(t iceberg.Type) bool {
	switch t.(type) {
	case iceberg.TimestampTzType, iceberg.TimestampTzNsType:
		return true
	}
	return false
}

func isWallClock(t iceberg.Type) bool {
	switch t.(type) {
	case iceberg.TimestampType, iceberg.TimestampNsType:
		return true
	}
	return false
}

// Evolve returns the schema that table must have to hold v: columns that table lacks,
// nested at any depth, are appended as optional with ids above lastID; int becomes long,
// float becomes double, a decimal gets the larger precision; a required column that the
// writer lacks or may leave null becomes optional. A column takes the name of the field that
// names it as an alias. New names are in the letters of Case. Columns keep their order and are never
// dropped. If table fits already it is returned as it is, and changed is false. The error
// is an [*IncompatibleError] if a column would have to change in another way, unless
// NewColumns says what to do then.
//
// The same inputs always give the same ids.
func (m Mapping) Evolve(table *iceberg.Schema, lastID int, v *ValueSchema) (next *iceberg.Schema, changed bool, err error) {
	next, changed, _, err = m.evolve(table, lastID, v)
	return next, changed, err
}

// evolve also returns which column a field has that does not go by its name, by the path of the
// record's column and the name of the field.
func (m Mapping) evolve(table *iceberg.Schema, lastID int, v *ValueSchema) (next *iceberg.Schema, changed bool, names map[string]string, err error) {
	want, err := m.columns(v)
	if err == nil {
		want, err = m.Engines.columns(want, "")
	}
	if err != nil {
		return nil, false, nil, err
	}
	if m.KafkaColumn != "" {
		want = append(want, iceberg.NestedField{
			Name: m.KafkaColumn, Type: &iceberg.StructType{FieldList: kafkaFields()},
		})
	}
	e := evolver{mapping: m, aliases: v.aliases, key: v.isKey(), lastID: max(lastID, table.HighestFieldID()), names: map[string]string{}}
	if e.key {
		e.aliases = make(map[string][]string, len(v.aliases))
		for path, names := range v.aliases {
			e.aliases[join(m.KeyColumn, path)] = names
		}
	}
	fields := e.fields(table.Fields(), want, "", "")
	if len(e.bad) > 0 {
		return nil, false, nil, &IncompatibleError{e.bad}
	}
	if !e.changed {
		return table, false, e.names, nil
	}
	next = iceberg.NewSchemaWithIdentifiers(table.ID+1, slices.Clone(table.IdentifierFieldIDs), fields...)
	if table.NumFields() == 0 {
		next.ID = 0
	}
	return next, true, e.names, nil
}

type evolver struct {
	mapping Mapping
	aliases map[string][]string // of fields, by their path in the writer
	key     bool                // the writer leaves all columns alone but that of the key

	lastID  int
	changed bool
	bad     []IncompatibleColumn
	names   map[string]string
}

// fields evolves the fields of a struct at path, for a record that is at from in the writer.
func (e *evolver) fields(have, want []iceberg.NestedField, path, from string) []iceberg.NestedField {
	out := slices.Clone(have)
	columns := e.bind(out, want, from)
	required := make([]bool, len(out))
	var added []iceberg.NestedField
	for i, w := range want {
		at := columns[i]
		if at >= 0 {
			t, bad := e.try(out[at].Type, w.Type, join(path, out[at].Name), join(from, w.Name))
			switch {
			case len(bad) == 0:
				out[at].Type = t
			case e.mapping.NewColumns && !(path == "" && e.mapping.reserved(w.Name)):
				at, w.Name = e.another(out, added, w, path, from)
			default:
				e.bad = append(e.bad, bad...)
				continue
			}
		}
		if at < 0 {
			w.Type, w.Required = optional(w.Type), false
			switch { // those two columns have the names of their settings
			case path == "" && isColumn(e.mapping.KafkaColumn, w.Name):
			case path == "" && isColumn(e.mapping.KeyColumn, w.Name):
				w.Type = e.mapping.Case.inside(w.Type)
			default:
				w.Name, w.Type = e.mapping.Case.of(w.Name), e.mapping.Case.inside(w.Type)
			}
			added = append(added, w)
			continue
		}
		required[at] = w.Required
		if out[at].Name != want[i].Name {
			e.names[join(path, want[i].Name)] = out[at].Name
		}
	}
	for i := range out {
		if out[i].Required && !required[i] && !(path == "" && e.key) {
			out[i].Required, e.changed = false, true
		}
	}
	if len(added) > 0 {
		e.changed = true
		out = append(out, assignIDs(added, &e.lastID)...)
	}
	return out
}

// bind returns the column of each field, -1 if it has none yet: the one of its name, or that had
// the name before, or that the field names as an alias, which then takes the name of the field.
func (e *evolver) bind(have, want []iceberg.NestedField, from string) []int {
	columns := make([]int, len(want))
	taken := make([]bool, len(have))
	for i, w := range want {
		if columns[i] = matchField(have, want, w.Name); columns[i] >= 0 {
			taken[columns[i]] = true
		}
	}
	find := func(names ...string) int {
		for _, same := range []func(a, b string) bool{func(a, b string) bool { return a == b }, strings.EqualFold} {
			for at := len(have) - 1; at >= 0; at-- { // the youngest, if several had the name
				if !taken[at] && slices.ContainsFunc(names, func(n string) bool {
					return same(n, have[at].Name) || slices.ContainsFunc(e.mapping.Former[have[at].ID], func(f string) bool { return same(n, f) })
				}) {
					taken[at] = true
					return at
				}
			}
		}
		return -1
	}
	for i, w := range want {
		if columns[i] < 0 {
			columns[i] = find(w.Name)
		}
	}
	for i, w := range want {
		if aliases := e.aliases[join(from, w.Name)]; columns[i] < 0 && len(aliases) > 0 {
			if columns[i] = find(aliases...); columns[i] >= 0 {
				have[columns[i]].Name, e.changed = e.mapping.Case.of(w.Name), true
			}
		}
	}
	return columns
}

// another is the name of the nth column for a field.
func another(name string, n int) string { return fmt.Sprintf("%s__v%d", name, n) }

// another finds the column x__v2, x__v3 and so on that holds w, a field that the column x does not
// hold, or returns -1 and the first such name that is free.
func (e *evolver) another(have, added []iceberg.NestedField, w iceberg.NestedField, path, from string) (at int, name string) {
	for n := 2; ; n++ {
		name = another(w.Name, n)
		at = matchField(have, nil, name)
		if at < 0 && matchField(added, nil, name) < 0 {
			return -1, name
		}
		if at < 0 {
			continue
		}
		if t, bad := e.try(have[at].Type, w.Type, join(path, have[at].Name), join(from, w.Name)); len(bad) == 0 {
			have[at].Type = t
			return at, name
		}
	}
}

// try evolves a type, or changes nothing and says which columns are in the way.
func (e *evolver) try(have, want iceberg.Type, path, from string) (iceberg.Type, []IncompatibleColumn) {
	inner := *e
	inner.bad, inner.names = nil, maps.Clone(e.names)
	t := inner.typ(have, want, path, from)
	if len(inner.bad) > 0 {
		return nil, inner.bad
	}
	inner.bad = e.bad
	*e = inner
	return t, nil
}

// matchField returns the index of the field that goes with name, -1 if there is none: the one of
// exactly that name, else the one that differs by case alone, unless peers, the fields beside
// name, have that exact name themselves.
func matchField(fields, peers []iceberg.NestedField, name string) int {
	byCase := -1
	for i := range fields {
		if fields[i].Name == name {
			return i
		}
		if byCase < 0 && strings.EqualFold(fields[i].Name, name) {
			byCase = i
		}
	}
	if byCase < 0 {
		return -1
	}
	for i := range peers {
		if peers[i].Name == fields[byCase].Name {
			return -1
		}
	}
	return byCase
}

func (e *evolver) typ(have, want iceberg.Type, path, from string) iceberg.Type {
	switch h := have.(type) {
	case *iceberg.StructType:
		if w, ok := want.(*iceberg.StructType); ok {
			return &iceberg.StructType{FieldList: e.fields(h.FieldList, w.FieldList, path, from)}
		}
	case *iceberg.ListType:
		if w, ok := want.(*iceberg.ListType); ok {
			out := *h
			if h.ElementRequired && !w.ElementRequired {
				out.ElementRequired, e.changed = false, true
			}
			out.Element = e.typ(h.Element, w.Element, join(path, "element"), join(from, "element"))
			return &out
		}
	case *iceberg.MapType:
		if w, ok := want.(*iceberg.MapType); ok {
			out := *h
			if h.ValueRequired && !w.ValueRequired {
				out.ValueRequired, e.changed = false, true
			}
			if !h.KeyType.Equals(w.KeyType) {
				break
			}
			out.ValueType = e.typ(h.ValueType, w.ValueType, join(path, "value"), join(from, "value"))
			return &out
		}
	default:
		if t := widen(have, want); t != nil {
			if !t.Equals(have) {
				e.changed = true
			}
			return t
		}
	}
	e.bad = append(e.bad, IncompatibleColumn{path, have, want})
	return have
}

// widen returns the narrowest primitive type that holds both and that Iceberg lets a
// column of type have become (spec, "Schema Evolution"), or nil.
func widen(have, want iceberg.Type) iceberg.Type {
	if have.Equals(want) {
		return have
	}
	switch h := have.(type) {
	case iceberg.Int32Type, iceberg.Float32Type:
		if promotes(have, want) {
			return want
		}
	case iceberg.DecimalType:
		if w, ok := want.(iceberg.DecimalType); ok && w.Scale() == h.Scale() {
			return iceberg.DecimalTypeOf(max(h.Precision(), w.Precision()), h.Scale())
		}
		return nil
	}
	if promotes(want, have) {
		return have
	}
	return nil
}

func promotes(from, to iceberg.Type) bool {
	switch from.(type) {
	case iceberg.Int32Type:
		_, ok := to.(iceberg.Int64Type)
		return ok
	case iceberg.Float32Type:
		_, ok := to.(iceberg.Float64Type)
		return ok
	}
	return false
}

// optional returns t with everything inside it optional, map keys excepted.
func optional(t iceberg.Type) iceberg.Type {
	switch t := t.(type) {
	case *iceberg.StructType:
		fields := slices.Clone(t.FieldList)
		for i := range fields {
			fields[i].Required = false
			fields[i].Type = optional(fields[i].Type)
		}
		return &iceberg.StructType{FieldList: fields}
	case *iceberg.ListType:
		return &iceberg.ListType{ElementID: t.ElementID, Element: optional(t.Element)}
	case *iceberg.MapType:
		return &iceberg.MapType{KeyID: t.KeyID, KeyType: t.KeyType, ValueID: t.ValueID, ValueType: optional(t.ValueType)}
	}
	return t
}

// assignIDs returns fields with ids from *last+1: each field before what it holds, the
// order in which iceberg-go assigns ids to a new table.
func assignIDs(fields []iceberg.NestedField, last *int) []iceberg.NestedField {
	out := slices.Clone(fields)
	for i := range out {
		*last++
		out[i].ID = *last
		out[i].Type = assignTypeIDs(out[i].Type, last)
	}
	return out
}

func assignTypeIDs(t iceberg.Type, last *int) iceberg.Type {
	switch t := t.(type) {
	case *iceberg.StructType:
		return &iceberg.StructType{FieldList: assignIDs(t.FieldList, last)}
	case *iceberg.ListType:
		out := *t
		*last++
		out.ElementID = *last
		out.Element = assignTypeIDs(t.Element, last)
		return &out
	case *iceberg.MapType:
		out := *t
		*last += 2
		out.KeyID, out.ValueID = *last-1, *last
		out.KeyType = assignTypeIDs(t.KeyType, last)
		out.ValueType = assignTypeIDs(t.ValueType, last)
		return &out
	}
	return t
}
