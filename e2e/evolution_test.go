package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tabletopic/tabletopic/parquetio/parquetiotest"
)

// An evolvingColumn is a column of a table, which keeps its values whatever fields are called.
type evolvingColumn struct {
	name   string // that of the latest field
	fields []*evolvingColumn
}

// An evolvingField is a field of one version of a schema. All are optional.
type evolvingField struct {
	column *evolvingColumn
	name   string
	former []string // names that it had
	number int      // of Protobuf
	typ    string   // int, long, float, double, string, decimal, record
	digits int      // of a decimal
	fields []evolvingField
	old    []evolvingField // fields that were dropped from a record
}

// An evolution walks through versions of a schema.
type evolution struct {
	r    *rand.Rand
	kind sr.SchemaType
	n    int // names and numbers given
}

func (e *evolution) field(depth int) evolvingField {
	e.n++
	f := evolvingField{column: &evolvingColumn{}, name: fmt.Sprintf("c%d", e.n), number: e.n, digits: 5}
	types := []string{"int", "long", "float", "double", "string", "record", "record", "decimal"}
	f.typ = types[e.r.IntN(len(types))]
	for f.typ == "record" && depth == 0 || f.typ == "decimal" && e.kind != sr.TypeAvro {
		f.typ = types[e.r.IntN(5)]
	}
	if f.typ == "record" {
		for range 1 + e.r.IntN(3) {
			f.fields = append(f.fields, e.field(depth-1))
		}
	}
	return f
}

// step returns the next version of a record: at each level fields are added, dropped, put back,
// widened, renamed and moved.
func (e *evolution) step(record evolvingField, depth int) evolvingField {
	record.fields, record.old = slices.Clone(record.fields), slices.Clone(record.old)
	for i := range record.fields {
		f := &record.fields[i]
		switch e.r.IntN(8) {
		case 0:
			switch f.typ {
			case "int":
				f.typ = "long"
			case "float":
				f.typ = "double"
			case "decimal":
				f.digits += 2
			}
		case 1:
			if e.kind == sr.TypeJSON {
				continue // nothing says that a property is another one
			}
			e.n++
			f.former = append(slices.Clone(f.former), f.name)
			f.name = fmt.Sprintf("c%d", e.n)
		case 2, 3, 4:
			if f.typ == "record" {
				*f = e.step(*f, depth-1)
			}
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

// columns adds the fields of a later version to the columns that there are.
func (f evolvingField) columns() {
	for _, inner := range f.fields {
		if !slices.Contains(f.column.fields, inner.column) {
			f.column.fields = append(f.column.fields, inner.column)
		}
		inner.column.name = inner.name
		inner.columns()
	}
}

// schema is the text of a version.
func (e *evolution) schema(root evolvingField) string {
	switch e.kind {
	case sr.TypeProtobuf:
		return "syntax = \"proto3\";\n" + e.message("R", root)
	case sr.TypeJSON:
		return e.jsonSchema(root)
	}
	return e.avroRecord("R", root)
}

func (e *evolution) avroRecord(name string, record evolvingField) string {
	var fields []string
	for _, f := range record.fields {
		typ := fmt.Sprintf("%q", f.typ)
		switch f.typ {
		case "record":
			typ = e.avroRecord(fmt.Sprintf("N%d", f.number), f)
		case "decimal":
			typ = fmt.Sprintf(`{"type":"bytes","logicalType":"decimal","precision":%d,"scale":2}`, f.digits)
		}
		aliases, _ := json.Marshal(append([]string{}, f.former...))
		fields = append(fields, fmt.Sprintf(`{"name":%q,"aliases":%s,"type":["null",%s],"default":null}`, f.name, aliases, typ))
	}
	return fmt.Sprintf(`{"type":"record","name":%q,"fields":[%s]}`, name, strings.Join(fields, ","))
}

func (e *evolution) message(name string, record evolvingField) string {
	var b strings.Builder
	fmt.Fprintf(&b, "message %s {\n", name)
	for _, f := range record.fields {
		typ := map[string]string{"int": "sint32", "long": "sint64", "record": fmt.Sprintf("N%d", f.number)}[f.typ]
		if typ == "" {
			typ = f.typ
		}
		if f.typ == "record" {
			b.WriteString(e.message(typ, f))
		}
		fmt.Fprintf(&b, "optional %s %s = %d;\n", typ, f.name, f.number)
	}
	b.WriteString("}\n")
	return b.String()
}

func (e *evolution) jsonSchema(record evolvingField) string {
	var properties []string
	for _, f := range record.fields {
		typ := map[string]string{"int": `{"type":"integer","connect.type":"int32"}`, "long": `{"type":"integer"}`, "float": `{"type":"number","connect.type":"float32"}`,
			"double": `{"type":"number"}`, "string": `{"type":"string"}`}[f.typ]
		if f.typ == "record" {
			typ = e.jsonSchema(f)
		}
		properties = append(properties, fmt.Sprintf("%q:%s", f.name, typ))
	}
	return `{"type":"object","properties":{` + strings.Join(properties, ",") + "}}"
}

// cells are values of columns: numbers, text, and the cells of a struct. What is not there is null.
type cells map[*evolvingColumn]any

// encode makes a value of a record, encoded, and as cells.
func (e *evolution) encode(r *rand.Rand, record evolvingField) ([]byte, cells) {
	var out []byte
	row := cells{}
	for _, f := range record.fields {
		var body []byte // Avro: behind the branch; Protobuf: with the tag; JSON: the text
		var value any
		tag := func(t protowire.Type) []byte { return protowire.AppendTag(nil, protowire.Number(f.number), t) }
		set := r.IntN(4) > 0
		switch f.typ {
		case "int", "long":
			v := int64(int32(r.Uint32()))
			if f.typ == "long" {
				v = int64(r.Uint64())
			}
			value = v
			body = map[sr.SchemaType][]byte{sr.TypeAvro: parquetiotest.Long(v), sr.TypeProtobuf: protowire.AppendVarint(tag(protowire.VarintType), protowire.EncodeZigZag(v)), sr.TypeJSON: fmt.Append(nil, v)}[e.kind]
		case "float", "double":
			v := float64(r.IntN(1_000_000)) / 16
			value = v
			body = map[sr.SchemaType][]byte{sr.TypeAvro: parquetiotest.Double(v), sr.TypeProtobuf: protowire.AppendFixed64(tag(protowire.Fixed64Type), math.Float64bits(v)), sr.TypeJSON: fmt.Append(nil, v)}[e.kind]
			if f.typ == "float" && e.kind != sr.TypeJSON {
				body = map[sr.SchemaType][]byte{sr.TypeAvro: parquetiotest.Float(float32(v)), sr.TypeProtobuf: protowire.AppendFixed32(tag(protowire.Fixed32Type), math.Float32bits(float32(v)))}[e.kind]
			}
		case "decimal":
			v := int64(r.IntN(32_000))
			value = fmt.Sprintf("%d.%02d", v/100, v%100)
			body = []byte{4, byte(v >> 8), byte(v)} // two bytes
		case "string":
			v := parquetiotest.RandomText(r)
			value = v
			text, _ := json.Marshal(v)
			body = map[sr.SchemaType][]byte{sr.TypeAvro: parquetiotest.Text(v), sr.TypeProtobuf: protowire.AppendString(tag(protowire.BytesType), v), sr.TypeJSON: text}[e.kind]
		case "record":
			inner, row := e.encode(r, f)
			value = row
			body = inner
			if e.kind == sr.TypeProtobuf {
				body = protowire.AppendBytes(tag(protowire.BytesType), inner)
			}
		}
		if set {
			row[f.column] = value
		}
		switch {
		case e.kind == sr.TypeAvro && set:
			out = append(append(out, 2), body...)
		case e.kind == sr.TypeAvro:
			out = append(out, 0)
		case e.kind == sr.TypeJSON && set:
			out = append(append(append(out, ',', '"'), f.name...), '"', ':')
			out = append(out, body...)
		case set:
			out = append(out, body...)
		}
	}
	if e.kind == sr.TypeJSON {
		out = slices.Concat([]byte{'{'}, out[min(1, len(out)):], []byte{'}'})
	}
	return out, row
}

// row is what the table has of cells.
func (c *evolvingColumn) row(values cells) map[string]any {
	out := map[string]any{}
	for _, f := range c.fields {
		out[f.name] = values[f]
		if inner, ok := values[f].(cells); ok {
			out[f.name] = f.row(inner)
		}
	}
	return out
}

func randomEvolution(seed uint64, versions, rows int) randomTopic {
	e := &evolution{r: rand.New(rand.NewPCG(seed, 4)), kind: []sr.SchemaType{sr.TypeAvro, sr.TypeProtobuf, sr.TypeJSON}[seed%3]}
	root := &evolvingColumn{}
	all := []evolvingField{{column: root, typ: "record", fields: []evolvingField{e.field(2), e.field(2)}}}
	for len(all) < versions {
		all = append(all, e.step(all[len(all)-1], 2))
	}
	var schemas []sr.Schema
	for _, v := range all {
		v.columns()
		schemas = append(schemas, sr.Schema{Schema: e.schema(v), Type: e.kind})
	}
	return randomTopic{seed, fmt.Sprintf("evolution-%d", seed), schemas, func(fn func(int, func() []byte, func() map[string]any)) {
		r := rand.New(rand.NewPCG(seed, 5))
		for i := range rows {
			newest := i * versions / rows
			version := newest
			if i > 0 && newest == (i-1)*versions/rows && r.IntN(2) == 0 { // an older writer
				version = r.IntN(newest + 1)
			}
			payload, values := e.encode(r, all[version])
			if e.kind == sr.TypeProtobuf {
				payload = slices.Concat([]byte{0}, payload)
			}
			fn(version, func() []byte { return payload }, func() map[string]any { return root.row(values) })
		}
	}, parquetiotest.Resolve}
}

// Whatever becomes of a schema over its versions, and however old and new writers alternate, each
// value is in the column that it was written for, as two engines read it.
func TestRandomEvolutionsInTwoEngines(t *testing.T) {
	t.Parallel()
	topics, seed := 30, firstSeed()
	if os.Getenv("TABLETOPIC_SOAK") != "" {
		topics = 300
	}
	for ; topics > 0; topics -= 100 {
		var all []randomTopic
		for range min(topics, 100) {
			all = append(all, randomEvolution(seed, 8, 400))
			seed++
		}
		inTwoEngines(t, all)
	}
}
