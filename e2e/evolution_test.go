package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tabletopic/tabletopic/parquetio/parquetiotest"
	"github.com/tabletopic/tabletopic/worker"
)

// An evolvingColumn is a column of a table, which keeps its values whatever fields are called.
type evolvingColumn struct {
	name   string // that of the latest field
	suffix string // of a column for what that of the field does not hold
	fields []*evolvingColumn
	item   *evolvingColumn // of a list, and of the values of a map
}

// An evolvingField is a field of one version of a schema, or the item of a list or map.
type evolvingField struct {
	column   *evolvingColumn
	name     string
	former   []string // names that it had
	number   int      // of Protobuf
	required bool     // never null; in proto3 without presence
	typ      string   // boolean, int, long, float, double, string, decimal, record, list, map
	digits   int      // of a decimal
	fields   []evolvingField
	old      []evolvingField // fields that were dropped from a record
	item     *evolvingField
	// kinds has what the field was last, of each kind that shares no column with the others.
	kinds map[string]evolvingField
}

// kind is the same for types of which Iceberg widens one to the other, and for no others.
func (f *evolvingField) kind() string {
	switch f.typ {
	case "int", "long":
		return "integer"
	case "float", "double":
		return "number"
	case "list", "map":
		return f.typ + " of " + f.item.kind()
	}
	return f.typ
}

// An evolution walks through versions of a schema.
type evolution struct {
	r      *rand.Rand
	kind   sr.SchemaType
	proto2 bool
	// A field that becomes what its column cannot hold gets another; without newColumns the records of
	// such a version are dead letters, and the next one goes on from the version before.
	newColumns bool
	n          int // names and numbers given
}

var evolvingTypes = []string{"boolean", "int", "long", "float", "double", "string", "decimal", "record", "record", "list", "map"}

func (e *evolution) field(depth int) evolvingField {
	f := e.shape(depth, "")
	f.name = fmt.Sprintf("c%d", f.number)
	return f
}

// shape makes a field without a name; inside is the type of what it is the item of.
func (e *evolution) shape(depth int, inside string) evolvingField {
	e.n++
	f := evolvingField{column: &evolvingColumn{}, number: e.n, digits: 5, required: e.r.IntN(4) == 0, kinds: map[string]evolvingField{}}
	for f.typ == "" || depth == 0 && slices.Contains([]string{"record", "list", "map"}, f.typ) || f.typ == "decimal" && e.kind != sr.TypeAvro ||
		e.kind == sr.TypeProtobuf && inside != "" && slices.Contains([]string{"list", "map"}, f.typ) {
		f.typ = evolvingTypes[e.r.IntN(len(evolvingTypes))]
	}
	switch f.typ {
	case "record":
		for range 1 + e.r.IntN(3) {
			f.fields = append(f.fields, e.field(depth-1))
		}
	case "list", "map":
		item := e.shape(depth-1, f.typ)
		f.item = &item
	}
	return f
}

// step returns the next version of a record: at each level fields are added, dropped, put back,
// widened, renamed, moved, are null no more or may be null again, and become something else.
func (e *evolution) step(record evolvingField, depth int) evolvingField {
	record.fields, record.old = slices.Clone(record.fields), slices.Clone(record.old)
	for i := range record.fields {
		f := &record.fields[i]
		switch e.r.IntN(10) {
		case 0:
			if e.kind == sr.TypeJSON || len(f.kinds) > 0 {
				continue // nothing says that a property is another one; x__v2 keeps its name
			}
			e.n++
			f.former = append(slices.Clone(f.former), f.name)
			f.name = fmt.Sprintf("c%d", e.n)
		case 1:
			f.required = !f.required
		case 2:
			if e.newColumns {
				e.become(f, depth)
			}
		case 3, 4, 5, 6:
			e.grow(f, depth)
		}
	}
	if len(record.fields) > 1 && e.r.IntN(3) == 0 {
		i := e.r.IntN(len(record.fields))
		record.old = append(record.old, record.fields[i])
		record.fields = slices.Delete(record.fields, i, i+1)
	}
	if len(record.old) > 0 && e.r.IntN(3) == 0 {
		record.fields = append(record.fields, record.old[0])
		record.old = record.old[1:]
	}
	if e.r.IntN(2) == 0 {
		record.fields = slices.Insert(record.fields, e.r.IntN(len(record.fields)+1), e.field(depth))
	}
	if e.r.IntN(3) == 0 {
		e.r.Shuffle(len(record.fields), func(i, j int) { record.fields[i], record.fields[j] = record.fields[j], record.fields[i] })
	}
	return record
}

// grow changes a field, or the item of a list or map, so that its column can follow.
func (e *evolution) grow(f *evolvingField, depth int) {
	switch f.typ {
	case "int":
		f.typ = "long"
	case "float":
		f.typ = "double"
	case "decimal":
		f.digits += 2
	case "record":
		*f = e.step(*f, depth-1)
	case "list", "map":
		item := *f.item
		if e.r.IntN(4) == 0 && e.kind != sr.TypeProtobuf {
			item.required = !item.required
		}
		e.grow(&item, depth-1)
		f.item = &item
	}
}

// another makes a field something that its column cannot hold.
func (e *evolution) another(f *evolvingField, depth int) {
	was := f.kind()
	for f.kind() == was {
		x := e.shape(depth, "")
		f.typ, f.digits, f.fields, f.old, f.item = x.typ, x.digits, x.fields, nil, x.item
	}
}

// become makes a field something that another column holds: one that it has for that, or a new one.
func (e *evolution) become(f *evolvingField, depth int) {
	f.kinds[f.kind()] = *f
	next := *f
	e.another(&next, depth)
	if before, ok := f.kinds[next.kind()]; ok {
		next.column, next.typ, next.digits, next.fields, next.old, next.item = before.column, before.typ, before.digits, before.fields, before.old, before.item
	} else {
		next.column = &evolvingColumn{suffix: fmt.Sprintf("__v%d", len(f.kinds)+1)}
		f.kinds[next.kind()] = next
	}
	*f = next
}

// misfit returns a version whose records the table cannot hold, because of one field at any depth.
func (e *evolution) misfit(record evolvingField, depth int) evolvingField {
	record.fields = slices.Clone(record.fields)
	f := &record.fields[e.r.IntN(len(record.fields))]
	switch {
	case f.typ == "record" && e.r.IntN(3) > 0:
		*f = e.misfit(*f, depth-1)
	case f.item != nil && f.item.typ == "record" && e.r.IntN(3) > 0:
		item := e.misfit(*f.item, depth-2)
		f.item = &item
	default:
		e.another(f, max(depth, 0))
	}
	if e.r.IntN(2) == 0 {
		record.fields = append(record.fields, e.field(0)) // which the table does not get either
	}
	return record
}

// columns adds the fields of a later version to the columns that there are.
func (f evolvingField) columns() {
	for _, inner := range f.fields {
		if !slices.Contains(f.column.fields, inner.column) {
			f.column.fields = append(f.column.fields, inner.column)
		}
		inner.column.name = inner.name + inner.column.suffix
		inner.columns()
	}
	if f.item != nil {
		f.column.item = f.item.column
		f.item.columns()
	}
}

// schema is the text of a version.
func (e *evolution) schema(root evolvingField) string {
	switch e.kind {
	case sr.TypeProtobuf:
		return fmt.Sprintf("syntax = %q;\n", map[bool]string{true: "proto2", false: "proto3"}[e.proto2]) + e.message("R", root)
	case sr.TypeJSON:
		return e.jsonSchema(root)
	}
	return e.avroRecord("R", root)
}

func (e *evolution) avroRecord(name string, record evolvingField) string {
	var fields []string
	for _, f := range record.fields {
		aliases, _ := json.Marshal(append([]string{}, f.former...))
		fallback := ""
		if !f.required {
			fallback = `,"default":null`
		}
		fields = append(fields, fmt.Sprintf(`{"name":%q,"aliases":%s,"type":%s%s}`, f.name, aliases, e.avroType(f), fallback))
	}
	return fmt.Sprintf(`{"type":"record","name":%q,"fields":[%s]}`, name, strings.Join(fields, ","))
}

func (e *evolution) avroType(f evolvingField) string {
	typ := fmt.Sprintf("%q", f.typ)
	switch f.typ {
	case "record":
		typ = e.avroRecord(fmt.Sprintf("N%d", f.number), f)
	case "decimal":
		typ = fmt.Sprintf(`{"type":"bytes","logicalType":"decimal","precision":%d,"scale":2}`, f.digits)
	case "list":
		typ = fmt.Sprintf(`{"type":"array","items":%s}`, e.avroType(*f.item))
	case "map":
		typ = fmt.Sprintf(`{"type":"map","values":%s}`, e.avroType(*f.item))
	}
	if f.required {
		return typ
	}
	return fmt.Sprintf(`["null",%s]`, typ)
}

func (e *evolution) message(name string, record evolvingField) string {
	var b strings.Builder
	fmt.Fprintf(&b, "message %s {\n", name)
	for _, f := range record.fields {
		label := map[bool]string{false: "optional ", true: map[bool]string{true: "required "}[e.proto2]}[f.required]
		of := f
		switch f.typ {
		case "list":
			label, of = "repeated ", *f.item
		case "map":
			label, of = "", *f.item
		}
		typ := map[string]string{"boolean": "bool", "int": "sint32", "long": "sint64", "record": fmt.Sprintf("N%d", of.number)}[of.typ]
		if typ == "" {
			typ = of.typ
		}
		if of.typ == "record" {
			b.WriteString(e.message(typ, of))
		}
		if f.typ == "map" {
			typ = fmt.Sprintf("map<string, %s>", typ)
		}
		fmt.Fprintf(&b, "%s%s %s = %d;\n", label, typ, f.name, f.number)
	}
	b.WriteString("}\n")
	return b.String()
}

func (e *evolution) jsonSchema(f evolvingField) string {
	switch f.typ {
	case "record":
		var properties []string
		required := []string{}
		for _, f := range f.fields {
			properties = append(properties, fmt.Sprintf("%q:%s", f.name, e.jsonSchema(f)))
			if f.required {
				required = append(required, f.name)
			}
		}
		names, _ := json.Marshal(required)
		return `{"type":"object","properties":{` + strings.Join(properties, ",") + `},"required":` + string(names) + "}"
	case "list":
		return fmt.Sprintf(`{"type":"array","items":%s}`, e.jsonSchema(*f.item))
	case "map":
		return fmt.Sprintf(`{"type":"object","additionalProperties":%s}`, e.jsonSchema(*f.item))
	}
	return map[string]string{"int": `{"type":"integer","connect.type":"int32"}`, "long": `{"type":"integer"}`, "float": `{"type":"number","connect.type":"float32"}`,
		"double": `{"type":"number"}`, "string": `{"type":"string"}`, "boolean": `{"type":"boolean"}`}[f.typ]
}

// cells are values of columns: numbers, text, lists, maps, and the cells of a struct. What is not there is null.
type cells map[*evolvingColumn]any

// tag begins a field of Protobuf.
func (f *evolvingField) tag() []byte {
	t := protowire.BytesType
	switch f.typ {
	case "boolean", "int", "long":
		t = protowire.VarintType
	case "float":
		t = protowire.Fixed32Type
	case "double":
		t = protowire.Fixed64Type
	}
	return protowire.AppendTag(nil, protowire.Number(f.number), t)
}

// numbered is the field with another number, as entries of maps have them.
func (f evolvingField) numbered(number int) *evolvingField {
	f.number = number
	return &f
}

// zero is what a field of proto3 without presence is if it is not set; ok is false if it is null.
func (e *evolution) zero(f *evolvingField) (v any, ok bool) {
	if e.kind != sr.TypeProtobuf {
		return nil, false
	}
	switch f.typ {
	case "list":
		return []any{}, true
	case "map":
		return map[string]any{}, true
	case "record":
		return nil, false
	}
	if e.proto2 || !f.required {
		return nil, false
	}
	return map[string]any{"boolean": false, "int": int64(0), "long": int64(0), "float": 0.0, "double": 0.0, "string": ""}[f.typ], true
}

// value makes a value of a field that is not null: encoded, without a tag of Protobuf or a branch of Avro, and as a cell.
func (e *evolution) value(r *rand.Rand, f *evolvingField) (body []byte, cell any) {
	switch f.typ {
	case "boolean":
		v := r.IntN(2)
		if e.kind == sr.TypeJSON {
			return fmt.Append(nil, v == 1), v == 1
		}
		return []byte{byte(v)}, v == 1
	case "int", "long":
		v := int64(int32(r.Uint32()))
		if f.typ == "long" {
			v = int64(r.Uint64())
		}
		return map[sr.SchemaType][]byte{sr.TypeAvro: parquetiotest.Long(v), sr.TypeProtobuf: protowire.AppendVarint(nil, protowire.EncodeZigZag(v)), sr.TypeJSON: fmt.Append(nil, v)}[e.kind], v
	case "float", "double":
		v := float64(r.IntN(1_000_000)) / 16
		switch {
		case e.kind == sr.TypeJSON:
			return fmt.Append(nil, v), v
		case f.typ == "float":
			return parquetiotest.Float(float32(v)), v
		}
		return parquetiotest.Double(v), v
	case "decimal":
		v := int64(r.IntN(32_000))
		return []byte{4, byte(v >> 8), byte(v)}, fmt.Sprintf("%d.%02d", v/100, v%100) // two bytes
	case "string":
		v := parquetiotest.RandomText(r)
		text, _ := json.Marshal(v)
		return map[sr.SchemaType][]byte{sr.TypeAvro: parquetiotest.Text(v), sr.TypeProtobuf: protowire.AppendString(nil, v), sr.TypeJSON: text}[e.kind], v
	case "record":
		body, row := e.encode(r, f)
		if e.kind == sr.TypeProtobuf {
			body = protowire.AppendBytes(nil, body)
		}
		return body, row
	}
	return e.items(r, f)
}

// maybe is value for what may be null, for Avro behind its branch.
func (e *evolution) maybe(r *rand.Rand, f *evolvingField) (body []byte, cell any) {
	if !f.required && e.kind != sr.TypeProtobuf && r.IntN(5) == 0 {
		return map[sr.SchemaType][]byte{sr.TypeAvro: {0}, sr.TypeJSON: []byte("null")}[e.kind], nil
	}
	body, cell = e.value(r, f)
	if !f.required && e.kind == sr.TypeAvro {
		body = slices.Concat([]byte{2}, body)
	}
	return body, cell
}

// items makes a list or a map. For Protobuf it has the tags of its items.
func (e *evolution) items(r *rand.Rand, f *evolvingField) (body []byte, cell any) {
	n := r.IntN(4)
	list, entries := []any{}, map[string]any{}
	var bodies [][]byte
	for i := range n {
		b, v := e.maybe(r, f.item)
		list = append(list, v)
		if f.typ == "map" {
			key := fmt.Sprint(i, parquetiotest.RandomText(r))
			entries[key] = v
			text, _ := json.Marshal(key)
			switch e.kind {
			case sr.TypeAvro:
				b = append(parquetiotest.Text(key), b...)
			case sr.TypeProtobuf:
				b = slices.Concat(protowire.AppendTag(nil, 1, protowire.BytesType), protowire.AppendString(nil, key), f.item.numbered(2).tag(), b)
				b = protowire.AppendBytes(protowire.AppendTag(nil, protowire.Number(f.number), protowire.BytesType), b)
			case sr.TypeJSON:
				b = slices.Concat(text, []byte{':'}, b)
			}
		}
		bodies = append(bodies, b)
	}
	if cell = list; f.typ == "map" {
		cell = entries
	}
	switch e.kind {
	case sr.TypeAvro:
		if n > 0 {
			body = append(parquetiotest.Long(int64(n)), slices.Concat(bodies...)...)
		}
		return append(body, 0), cell
	case sr.TypeJSON:
		brackets := map[string]string{"list": "[]", "map": "{}"}[f.typ]
		return slices.Concat([]byte(brackets[:1]), bytes.Join(bodies, []byte{','}), []byte(brackets[1:])), cell
	}
	if f.typ == "map" {
		return slices.Concat(bodies...), cell
	}
	item := f.item.numbered(f.number)
	if packed := item.typ != "string" && item.typ != "record" && r.IntN(2) == 0; packed {
		return protowire.AppendBytes(protowire.AppendTag(nil, protowire.Number(f.number), protowire.BytesType), slices.Concat(bodies...)), cell
	}
	for _, b := range bodies {
		body = append(append(body, item.tag()...), b...)
	}
	return body, cell
}

// encode makes a value of a record, encoded, and as cells.
func (e *evolution) encode(r *rand.Rand, record *evolvingField) ([]byte, cells) {
	var out [][]byte
	row := cells{}
	for i := range record.fields {
		f := &record.fields[i]
		set := f.required && (e.kind != sr.TypeProtobuf || e.proto2) || r.IntN(4) > 0
		switch {
		case e.kind == sr.TypeAvro && !set:
			out = append(out, []byte{0})
			continue
		case !set:
			if v, ok := e.zero(f); ok {
				row[f.column] = v
			}
			continue
		}
		body, cell := e.value(r, f)
		row[f.column] = cell
		switch {
		case e.kind == sr.TypeAvro && !f.required:
			body = slices.Concat([]byte{2}, body)
		case e.kind == sr.TypeProtobuf && f.item == nil:
			body = slices.Concat(f.tag(), body)
		case e.kind == sr.TypeJSON:
			body = slices.Concat(fmt.Appendf(nil, "%q:", f.name), body)
		}
		out = append(out, body)
	}
	if e.kind == sr.TypeJSON {
		return slices.Concat([]byte{'{'}, bytes.Join(out, []byte{','}), []byte{'}'}), row
	}
	return slices.Concat(out...), row
}

// plain is what the table has of a cell of the column.
func (c *evolvingColumn) plain(cell any) any {
	switch cell := cell.(type) {
	case cells:
		return c.row(cell)
	case []any:
		out := []any{}
		for _, v := range cell {
			out = append(out, c.item.plain(v))
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for k, v := range cell {
			out[k] = c.item.plain(v)
		}
		return out
	}
	return cell
}

func (c *evolvingColumn) row(values cells) map[string]any {
	out := map[string]any{}
	for _, f := range c.fields {
		out[f.name] = f.plain(values[f])
	}
	return out
}

// randomEvolution also returns how many versions its table cannot hold, and how many columns it has for what others
// cannot.
func randomEvolution(seed uint64, versions, rows int) (x *randomTopic, misfits, beside int) {
	e := &evolution{r: rand.New(rand.NewPCG(seed, 4)), kind: []sr.SchemaType{sr.TypeAvro, sr.TypeProtobuf, sr.TypeJSON}[seed%3], newColumns: seed/3%2 == 0}
	e.proto2 = e.r.IntN(2) == 0
	root := evolvingField{column: &evolvingColumn{}, typ: "record", fields: []evolvingField{e.field(2), e.field(2)}}
	all, dead := []evolvingField{root}, map[int]bool{}
	good := root
	for len(all) < versions {
		if !e.newColumns && e.r.IntN(3) == 0 {
			dead[len(all)] = true
			all = append(all, e.misfit(good, 2))
			continue
		}
		good = e.step(good, 2)
		all = append(all, good)
	}
	var schemas []sr.Schema
	for i, v := range all {
		if !dead[i] {
			v.columns()
		}
		schemas = append(schemas, sr.Schema{Schema: e.schema(v), Type: e.kind})
	}
	x = &randomTopic{seed: seed, name: fmt.Sprintf("evolution-%d", seed), later: int64(rows / 2), schemas: schemas, inHeader: seed%5 == 0, resolve: parquetiotest.Resolve,
		settings: []string{"table.topic.on.incompatible", map[bool]string{true: "new-column", false: "dlq"}[e.newColumns]}}
	if e.kind == sr.TypeProtobuf {
		x.indexes = []byte{0}
	}
	x.records = func(fn func(int, func() []byte, func() (map[string]any, string))) {
		r := rand.New(rand.NewPCG(seed, 5))
		for i := range rows {
			newest := i * versions / rows
			version := newest
			if i > 0 && newest == (i-1)*versions/rows && r.IntN(2) == 0 { // an older writer
				version = r.IntN(newest + 1)
			}
			payload, values := e.encode(r, &all[version])
			fn(version, func() []byte { return payload }, func() (map[string]any, string) {
				if dead[version] {
					return nil, worker.CauseIncompatible
				}
				return root.column.row(values), ""
			})
		}
	}
	// DuckDB 1.5 damages its memory where structs in lists and maps lack fields of the table, if there are thousands
	// (duckdb-iceberg issue 903).
	x.spark = rows > 600 && root.column.hasStructItems()
	return x, len(dead), root.column.beside()
}

// beside counts the columns inside of one that are for what others cannot hold.
func (c *evolvingColumn) beside() (n int) {
	for _, f := range c.fields {
		if n += f.beside(); f.suffix != "" {
			n++
		}
	}
	if c.item != nil {
		n += c.item.beside()
	}
	return n
}

// hasStructItems reports whether a list or map inside of the column holds structs.
func (c *evolvingColumn) hasStructItems() bool {
	return c.item != nil && (len(c.item.fields) > 0 || c.item.hasStructItems()) || slices.ContainsFunc(c.fields, (*evolvingColumn).hasStructItems)
}

// Whatever becomes of a schema over its versions, and however old and new writers alternate, each value is in the
// column that it was written for, as two engines read it: fields of any type are added, dropped, put back, renamed,
// moved, widened, become required and optional again, inside of structs, lists and maps. What a column cannot hold
// is in one of its own, or the records of that version are dead letters, and no others. Half way the server dies, and
// older writers go on in two partitions.
func TestRandomEvolutionsInTwoEngines(t *testing.T) {
	t.Parallel()
	evolve(t, 30, 400, firstSeed())
}

// The same of 10,000 rows each.
func TestLongRandomEvolutionsInTwoEngines(t *testing.T) {
	t.Parallel()
	evolve(t, 100, 10_000, firstSeed()+1_000_000)
}

// evolve compares topics whose schemas evolve, ten times as many in a soak.
func evolve(t *testing.T, topics, rows int, seed uint64) {
	t.Helper()
	if os.Getenv("TABLETOPIC_SOAK") != "" {
		topics *= 10
	}
	for ; topics > 0; topics -= 100 {
		var all []*randomTopic
		dead, beside := 0, 0
		for range min(topics, 100) {
			x, misfits, more := randomEvolution(seed, 8, rows)
			all, dead, beside = append(all, x), dead+misfits, beside+more
			seed++
		}
		if dead < 5 || beside < 5 {
			t.Errorf("%d versions that tables cannot hold, and %d columns for what others cannot: too few to tell", dead, beside)
		}
		inTwoEngines(t, all)
	}
}
