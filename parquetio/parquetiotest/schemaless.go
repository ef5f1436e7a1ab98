package parquetiotest

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/iceberg-go"
)

// A Schemaless is what JSON without a schema mostly holds in one place.
type Schemaless struct {
	Kind   string // boolean, long, double, number, string, mixed, object, array
	Names  []string
	Fields []Schemaless
	Item   *Schemaless
}

var scalarKinds = []string{"boolean", "long", "double", "string", "string", "number", "mixed"}

// RandomSchemaless is the shape of a record, which is an object.
func RandomSchemaless(r *rand.Rand, depth int) Schemaless {
	s := Schemaless{Kind: "object"}
	for i := range 1 + r.IntN(6) {
		s.Names = append(s.Names, fmt.Sprintf("f%d%s", i, []string{"", "ä", " \"\\/\n", "😀"}[r.IntN(4)]))
		s.Fields = append(s.Fields, randomSchemaless(r, depth-1))
	}
	return s
}

func randomSchemaless(r *rand.Rand, depth int) Schemaless {
	if depth > 0 && r.IntN(3) == 0 {
		if r.IntN(2) == 0 {
			return RandomSchemaless(r, depth)
		}
		item := randomSchemaless(r, depth-1)
		return Schemaless{Kind: "array", Item: &item}
	}
	return Schemaless{Kind: scalarKinds[r.IntN(len(scalarKinds))]}
}

// RandomKind is a shape all of whose values are of one kind.
func RandomKind(r *rand.Rand) Schemaless {
	item := Schemaless{Kind: scalarKinds[r.IntN(4)]}
	return []Schemaless{item, {Kind: "array", Item: &item}, {Kind: "object", Names: []string{"a", "b"}, Fields: []Schemaless{item, {Kind: "string"}}}}[r.IntN(3)]
}

// Text returns a value of the shape; one in misfits is of another, if that is not 0.
func (s Schemaless) Text(r *rand.Rand, misfits int) string {
	if misfits > 0 && r.IntN(misfits) == 0 {
		s = []Schemaless{{Kind: "mixed"}, {Kind: "array", Item: &Schemaless{Kind: "mixed"}},
			{Kind: "object", Names: []string{"a", "b"}, Fields: []Schemaless{{Kind: "mixed"}, {Kind: "long"}}}}[r.IntN(3)]
	}
	if r.IntN(8) == 0 {
		return "null"
	}
	switch s.Kind {
	case "boolean":
		return strconv.FormatBool(r.IntN(2) == 0)
	case "long":
		return strconv.FormatInt(int64(r.Uint64())>>r.IntN(64), 10)
	case "double":
		return fmt.Sprintf("%d.%d%s", r.IntN(2000)-1000, r.IntN(100_000), []string{"", "", "e3", "E-20"}[r.IntN(4)])
	case "number":
		return randomNumber(r)
	case "mixed":
		return Schemaless{Kind: scalarKinds[r.IntN(5)]}.Text(r, 0)
	case "array":
		var items []string
		for range r.IntN(5) {
			items = append(items, s.Item.Text(r, misfits))
		}
		return "[" + Gap(r) + strings.Join(items, ","+Gap(r)) + Gap(r) + "]"
	case "object":
		var members []string
		for _, i := range r.Perm(len(s.Names)) {
			name := s.Names[i]
			if r.IntN(20) == 0 {
				name = strings.ToUpper(name) // it has the same column
			}
			if r.IntN(6) > 0 {
				members = append(members, quote(r, name)+Gap(r)+":"+Gap(r)+s.Fields[i].Text(r, misfits))
			}
		}
		return "{" + Gap(r) + strings.Join(members, Gap(r)+","+Gap(r)) + Gap(r) + "}"
	}
	return quote(r, RandomText(r))
}

// A SchemalessTable says what becomes of JSON without a schema in a table that has its columns, by docs/tables.md
// alone.
type SchemalessTable struct {
	Columns    *iceberg.StructType // without those of Kafka and of the key
	NewColumns bool                // what does not fit x goes to x__v2, x__v3 and so on
}

// What keeps a value out of a column.
var (
	ErrMisfit = errors.New("does not fit")                                   // a dead letter
	ErrLacks  = errors.New("the table lacks a column that the record needs") // never in the end
)

// Row returns the row of a record, as [ParsePairs] gives it. A record that is no object is the property "value".
func (t SchemalessTable) Row(record any) (map[string]any, error) {
	pairs, ok := record.(Pairs)
	if !ok {
		pairs = Pairs{[]string{"value"}, []any{record}}
	}
	row, err := t.value(t.Columns, pairs)
	return AsMap(row), err
}

// Value is Row for a key, which is one value of a type.
func (t SchemalessTable) Value(column iceberg.Type, v any) (any, error) { return t.value(column, v) }

// beside returns the column of a property and those for what it does not hold, none if it has no column.
func (t SchemalessTable) beside(s *iceberg.StructType, name string) (columns []iceberg.NestedField) {
	for n := 1; ; n++ {
		at := name
		if n > 1 {
			at = fmt.Sprintf("%s__v%d", name, n)
		}
		i := slices.IndexFunc(s.FieldList, func(f iceberg.NestedField) bool { return strings.EqualFold(f.Name, at) })
		if i < 0 || n > 1 && !t.NewColumns {
			return columns
		}
		columns = append(columns, s.FieldList[i])
	}
}

func (t SchemalessTable) value(column iceberg.Type, v any) (any, error) {
	if v == nil {
		return nil, nil
	}
	text, isText := v.(string)
	number, isNumber := v.(json.Number)
	switch column := column.(type) {
	case iceberg.StringType:
		if isText {
			return text, nil
		}
		return InJSON{v}, nil
	case iceberg.BooleanType:
		if v, ok := v.(bool); ok {
			return v, nil
		}
	case iceberg.Int64Type:
		if isNumber {
			n, err := integerOf(number, "long")
			if err != nil {
				return nil, ErrMisfit
			}
			return n, nil
		}
	case iceberg.Float64Type:
		if isNumber {
			f, err := strconv.ParseFloat(string(number), 64)
			if err != nil {
				return nil, ErrMisfit
			}
			return f, nil
		}
	case *iceberg.ListType:
		if items, ok := v.([]any); ok {
			return t.items(column.Element, items)
		}
	case *iceberg.StructType:
		if pairs, ok := v.(Pairs); ok {
			return t.object(column, pairs)
		}
	}
	if HasValue(v) {
		return nil, ErrMisfit
	}
	return nil, nil
}

func (t SchemalessTable) items(element iceberg.Type, items []any) (any, error) {
	out, lacks := []any{}, error(nil)
	for _, x := range items {
		item, err := t.value(element, x)
		if err == ErrMisfit {
			return nil, err
		}
		if err != nil {
			lacks = err
		}
		out = append(out, item)
	}
	return out, lacks
}

func (t SchemalessTable) object(s *iceberg.StructType, pairs Pairs) (any, error) {
	out, lacks := map[string]any{}, error(nil)
	for _, f := range s.FieldList {
		out[f.Name] = nil
	}
	for i, name := range pairs.Names {
		columns, err := t.beside(s, name), error(nil)
		if len(columns) == 0 && HasValue(pairs.Values[i]) {
			lacks = fmt.Errorf("%w: %q", ErrLacks, name)
		}
		for _, f := range columns {
			var x any
			if x, err = t.value(f.Type, pairs.Values[i]); err == nil {
				out[f.Name] = x
				break
			}
			if err != ErrMisfit { // something inside of it
				lacks, err = err, nil
				break
			}
		}
		switch {
		case err != nil && t.NewColumns:
			lacks = fmt.Errorf("%w: one beside %q", ErrLacks, name)
		case err != nil:
			return nil, err
		}
	}
	return out, lacks
}

// HasValue reports whether there is more in a value than null, empty arrays and empty objects.
func HasValue(v any) bool {
	switch v := v.(type) {
	case nil:
		return false
	case Pairs:
		return slices.ContainsFunc(v.Values, HasValue)
	case []any:
		return slices.ContainsFunc(v, HasValue)
	}
	return true
}

// OrNull replaces what holds no value in an expected row by null where the row has that: when the record came there was
// no column for it yet.
func OrNull(want, got any) any {
	if got == nil && holdsNothing(want) {
		return nil
	}
	switch w := want.(type) {
	case map[string]any:
		out, g := map[string]any{}, AsMap(got)
		for k, v := range w {
			out[k] = OrNull(v, g[k])
		}
		return out
	case []any:
		out := slices.Clone(w)
		if g, _ := got.([]any); len(g) == len(w) {
			for i := range w {
				out[i] = OrNull(w[i], g[i])
			}
		}
		return out
	}
	return want
}

func holdsNothing(want any) bool {
	switch w := want.(type) {
	case nil:
		return true
	case InJSON:
		return !HasValue(w.Value)
	case map[string]any:
		for _, v := range w {
			if !holdsNothing(v) {
				return false
			}
		}
		return true
	case []any:
		return !slices.ContainsFunc(w, func(v any) bool { return !holdsNothing(v) })
	}
	return false
}

// An occurrence is a value in some place, in the order of records. A row is of a record that became one.
type occurrence struct {
	value any
	row   bool
}

// Unexplained names a column whose type none of the first values of its property explain, "" if there is none:
// what a table has is the work of the first record that has a value in a place, and of some of those behind it.
func (t SchemalessTable) Unexplained(records []any) string {
	var all []occurrence
	for _, v := range records {
		if _, ok := v.(Pairs); !ok {
			v = Pairs{[]string{"value"}, []any{v}}
		}
		_, err := t.Row(v)
		all = append(all, occurrence{v, err == nil})
	}
	return t.unexplainedFields(t.Columns, "", all)
}

func (t SchemalessTable) unexplainedFields(s *iceberg.StructType, path string, all []occurrence) string {
	explained := map[string]bool{}
	for _, f := range s.FieldList {
		if explained[f.Name] {
			continue
		}
		var values []occurrence
		for _, x := range all {
			pairs, _ := x.value.(Pairs)
			for i, name := range pairs.Names {
				if strings.EqualFold(name, f.Name) && HasValue(pairs.Values[i]) {
					values = append(values, occurrence{pairs.Values[i], x.row})
				}
			}
		}
		for _, column := range t.beside(s, f.Name) {
			explained[column.Name] = true
			if bad := t.unexplained(column.Type, path+"."+column.Name, values); bad != "" {
				return bad
			}
			values = slices.DeleteFunc(values, func(x occurrence) bool {
				_, err := t.value(column.Type, x.value)
				return err == nil
			})
		}
	}
	return ""
}

func (t SchemalessTable) unexplained(column iceberg.Type, path string, values []occurrence) string {
	want := "mixed"
	switch column.(type) {
	case *iceberg.StructType:
		want = "object"
	case *iceberg.ListType:
		want = "array"
	case iceberg.BooleanType:
		want = "boolean"
	case iceberg.Int64Type:
		want = "long"
	case iceberg.Float64Type:
		want = "double"
	}
	found := false
	for i := 0; i < len(values) && !found; i++ {
		kind := ""
		for _, x := range values[i:] {
			if kind = mergedKind(kind, kindOf(x.value)); kind == want || kind == "string" && want == "mixed" {
				found = true
			}
			if found || kind == "mixed" {
				break
			}
		}
		if values[i].row {
			break // its record could not be a row without the column
		}
	}
	if !found {
		return fmt.Sprintf("%s is %s, and the first values are %.200s", path, column, fmt.Sprint(values[:min(10, len(values))]))
	}
	switch column := column.(type) {
	case *iceberg.StructType:
		return t.unexplainedFields(column, path, values)
	case *iceberg.ListType:
		var items []occurrence
		for _, x := range values {
			list, _ := x.value.([]any)
			for _, v := range list {
				if HasValue(v) {
					items = append(items, occurrence{v, x.row})
				}
			}
		}
		return t.unexplained(column.Element, path+".element", items)
	}
	return ""
}

func kindOf(v any) string {
	switch v := v.(type) {
	case bool:
		return "boolean"
	case string:
		return "string"
	case Pairs:
		return "object"
	case []any:
		return "array"
	case json.Number:
		if strings.ContainsAny(string(v), ".eE") {
			if _, err := strconv.ParseFloat(string(v), 64); err == nil {
				return "double"
			}
			return "mixed"
		}
		if _, err := strconv.ParseInt(string(v), 10, 64); err == nil {
			return "long"
		}
	}
	return "mixed"
}

func mergedKind(a, b string) string {
	switch {
	case a == "" || a == b:
		return b
	case a+b == "longdouble" || a+b == "doublelong":
		return "double"
	}
	return "mixed"
}
