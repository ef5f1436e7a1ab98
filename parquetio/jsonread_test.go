package parquetio

import (
	"bytes"
	stdcmp "cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/apache/iceberg-go"
	"github.com/google/go-cmp/cmp"

	"github.com/tabletopic/tabletopic/internal/clickstream"
)

// A jsonShape is a JSON Schema, and what its values mean, as encoding/json reads them.
type jsonShape struct {
	kind   string
	names  []string // of a struct
	fields []jsonShape
	item   *jsonShape // of a list or map
}

func (s jsonShape) schema() any {
	object := func(pairs ...any) map[string]any {
		m := map[string]any{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i].(string)] = pairs[i+1]
		}
		return m
	}
	switch s.kind {
	case "struct":
		var properties []byte // in order
		for i, f := range s.fields {
			name, _ := json.Marshal(s.names[i])
			inner, _ := json.Marshal(f.schema())
			properties = append(append(append(append(properties, ','), name...), ':'), inner...)
		}
		if len(properties) > 0 {
			properties = properties[1:]
		}
		return object("type", "object", "properties", json.RawMessage("{"+string(properties)+"}"))
	case "list":
		return object("type", "array", "items", s.item.schema())
	case "map":
		return object("type", "object", "additionalProperties", s.item.schema())
	case "any":
		return object("type", []any{"string", "object", "number", "array", "boolean"})
	case "long":
		return object("type", "integer")
	case "int":
		return object("type", "integer", "connect.type", "int32")
	case "double":
		return object("type", "number")
	case "float":
		return object("type", "number", "connect.type", "float32")
	case "decimal":
		return object("type", "number", "title", "org.apache.kafka.connect.data.Decimal",
			"connect.parameters", object("scale", "3", "connect.decimal.precision", "20"))
	case "binary":
		return object("type", "string", "contentEncoding", "base64")
	case "date", "time", "date-time", "uuid":
		return object("type", "string", "format", s.kind)
	}
	return object("type", s.kind)
}

// A jsonPairs is an object as it is written.
type jsonPairs struct {
	names  []string
	values []any
}

// parsePairs is an independent reader of JSON.
func parsePairs(text []byte) (any, error) {
	if !json.Valid(text) {
		return nil, errors.New("not JSON")
	}
	if !utf8.Valid(text) || halfSurrogates(text) {
		return nil, errors.New("not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return readPairs(d)
}

func readPairs(d *json.Decoder) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	delim, ok := token.(json.Delim)
	if !ok {
		return token, nil
	}
	var names []string
	values := []any{}
	for d.More() {
		if delim == '{' {
			name, err := d.Token()
			if err != nil {
				return nil, err
			}
			names = append(names, name.(string))
		}
		v, err := readPairs(d)
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if delim == '{' {
		return jsonPairs{names, values}, nil
	}
	return values, nil
}

var unicodeEscape = regexp.MustCompile(`\\(u[dD][89abAB]..\\u[dD][c-fC-F]..|u[dD][89a-fA-F]..|.)`)

// halfSurrogates reports whether JSON text has a surrogate without its other half.
func halfSurrogates(text []byte) bool {
	for _, m := range unicodeEscape.FindAll(text, -1) {
		if len(m) == 6 {
			return true
		}
	}
	return false
}

func nesting(v any) int {
	inner := 0
	var values []any
	switch v := v.(type) {
	case jsonPairs:
		values = v.values
	case []any:
		values = v
	default:
		return 0
	}
	for _, x := range values {
		inner = max(inner, nesting(x))
	}
	return inner + 1
}

var errMisfit = errors.New("does not fit")

// plain returns the value of the column for v, nil for NULL.
func (s jsonShape) plain(v any) (any, error) {
	if v == nil {
		return nil, nil
	}
	text, isText := v.(string)
	number, isNumber := v.(json.Number)
	switch s.kind {
	case "struct":
		if v, ok := v.(jsonPairs); ok {
			return s.row(v)
		}
	case "list":
		items, ok := v.([]any)
		if !ok {
			return nil, errMisfit
		}
		out := []any{}
		for _, x := range items {
			p, err := s.item.plain(x)
			if err != nil {
				return nil, err
			}
			out = append(out, p)
		}
		return out, nil
	case "map":
		pairs, ok := v.(jsonPairs)
		if !ok {
			return nil, errMisfit
		}
		out := map[string]any{}
		for i, x := range pairs.values {
			p, err := s.item.plain(x)
			if err != nil {
				return nil, err
			}
			out[pairs.names[i]] = p
		}
		return out, nil
	case "any":
		if nesting(v) > maxJSONDepth {
			return nil, errMisfit
		}
		return inJSON{v}, nil
	case "boolean":
		if v, ok := v.(bool); ok {
			return v, nil
		}
	case "long", "int":
		if isNumber {
			return integerOf(number, s.kind)
		}
	case "double", "float":
		if isNumber {
			bits := 64
			if s.kind == "float" {
				bits = 32
			}
			f, err := strconv.ParseFloat(string(number), bits)
			return f, err
		}
	case "decimal":
		var n *big.Int
		if isNumber {
			r, ok := rational(number)
			if !ok || !r.Mul(r, big.NewRat(1000, 1)).IsInt() {
				return nil, errMisfit
			}
			n = r.Num()
		} else if isText {
			b, err := base64.StdEncoding.DecodeString(text)
			if err != nil || len(b) == 0 || len(b) > 16 {
				return nil, errMisfit
			}
			n = new(big.Int).SetBytes(b)
			if b[0] >= 0x80 {
				n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
			}
		} else {
			return nil, errMisfit
		}
		if new(big.Int).Abs(n).Cmp(new(big.Int).Exp(big.NewInt(10), big.NewInt(20), nil)) >= 0 {
			return nil, errMisfit
		}
		return decimalText(n, 3), nil
	case "string":
		if isText {
			return text, nil
		}
	case "binary":
		if isText {
			b, err := base64.StdEncoding.DecodeString(text)
			return "0x" + hex.EncodeToString(b), err
		}
	case "uuid":
		if isText && regexp.MustCompile(`^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$`).MatchString(text) {
			return "0x" + strings.ToLower(strings.ReplaceAll(text, "-", "")), nil
		}
	case "date":
		if t, err := time.Parse(time.DateOnly, text); isText && err == nil {
			return new(big.Int).Div(big.NewInt(t.Unix()), big.NewInt(86400)).Int64(), nil
		}
	case "time":
		if m := regexp.MustCompile(`^(\d\d:\d\d:\d\d(?:[.,]\d+)?)(Z|[+-]\d\d:\d\d)?$`).FindStringSubmatch(text); isText && m != nil {
			t, err := time.Parse(time.RFC3339Nano, "2000-01-01T"+m[1]+stdcmp.Or(m[2], "Z"))
			if err == nil {
				u := t.UTC()
				return int64(u.Hour()*3600+u.Minute()*60+u.Second())*1_000_000 + int64(u.Nanosecond()/1000), nil
			}
		}
	case "date-time":
		if regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:`).MatchString(text) && isText {
			if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
				return t.Unix()*1_000_000 + int64(t.Nanosecond()/1000), nil
			}
		}
	}
	return nil, errMisfit
}

// rational returns n, and false if that takes too many digits.
func rational(n json.Number) (*big.Rat, bool) {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(string(n)), "e")
	if exp, err := strconv.Atoi(exponent); exponent != "" && (err != nil || exp < -10_000 || exp > 10_000) {
		return new(big.Rat), strings.Trim(mantissa, "-0.") == ""
	}
	return new(big.Rat).SetString(string(n))
}

func integerOf(n json.Number, kind string) (any, error) {
	r, ok := rational(n)
	if !ok || !r.IsInt() || !r.Num().IsInt64() {
		return nil, errMisfit
	}
	v := r.Num().Int64()
	if kind == "int" && int64(int32(v)) != v {
		return nil, errMisfit
	}
	return v, nil
}

// row is plain for the properties of an object.
func (s jsonShape) row(v jsonPairs) (any, error) {
	out := map[string]any{}
	for _, name := range s.names {
		out[name] = nil
	}
	for i, name := range v.names {
		known := false
		for k := range s.names {
			if s.names[k] == name {
				p, err := s.fields[k].plain(v.values[i])
				if err != nil {
					return nil, err
				}
				out[name], known = p, true
			}
		}
		if !known && nesting(v.values[i]) > maxJSONDepth {
			return nil, errMisfit
		}
	}
	return out, nil
}

// resolvePairs replaces expected JSON by the text of the row if that means the same.
func resolvePairs(want, got any) any {
	switch w := want.(type) {
	case inJSON:
		s, _ := got.(string)
		if v, err := parsePairs([]byte(s)); err == nil && cmp.Equal(v, w.value, cmp.AllowUnexported(jsonPairs{})) {
			var compact bytes.Buffer
			if json.Compact(&compact, []byte(s)) == nil && compact.String() == s {
				return got
			}
		}
		return fmt.Sprintf("%#v", w.value)
	case map[string]any:
		out, g := map[string]any{}, asMap(got)
		for k, v := range w {
			out[k] = resolvePairs(v, g[k])
		}
		return out
	case []any:
		out := []any{}
		g, _ := got.([]any)
		for i, v := range w {
			var x any
			if i < len(g) {
				x = g[i]
			}
			out = append(out, resolvePairs(v, x))
		}
		return out
	}
	return want
}

func randomShape(r *rand.Rand, depth int) jsonShape {
	if depth > 0 && r.IntN(3) == 0 {
		switch r.IntN(3) {
		case 0:
			item := randomShape(r, depth-1)
			return jsonShape{kind: "list", item: &item}
		case 1:
			item := randomShape(r, depth-1)
			if item.kind == "any" {
				item.kind = "long"
			}
			return jsonShape{kind: "map", item: &item}
		}
		return randomStruct(r, depth)
	}
	kinds := []string{"boolean", "long", "int", "double", "float", "decimal", "string", "string", "binary", "uuid", "date", "time", "date-time", "any"}
	return jsonShape{kind: kinds[r.IntN(len(kinds))]}
}

func randomStruct(r *rand.Rand, depth int) jsonShape {
	s := jsonShape{kind: "struct"}
	for i := range 1 + r.IntN(6) {
		s.names = append(s.names, fmt.Sprintf("f%d%s", i, []string{"", "ä", " \"\\/\n", "😀"}[r.IntN(4)]))
		s.fields = append(s.fields, randomShape(r, depth-1))
	}
	return s
}

// gap is white space, or none.
func gap(r *rand.Rand) string { return []string{"", "", "", " ", "\n\t", "\r "}[r.IntN(6)] }

// quote writes a string as some writer would.
func quote(r *rand.Rand, s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range s {
		escape, ok := map[rune]string{'"': `\"`, '\\': `\\`, '\n': `\n`, '\t': `\t`, '\r': `\r`, '\b': `\b`, '\f': `\f`}[c]
		switch {
		case c > 0xffff && r.IntN(3) == 0:
			c -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04X`, 0xd800+c>>10, 0xdc00+c&0x3ff)
		case c <= 0xffff && (c < 0x20 && !ok || r.IntN(20) == 0):
			fmt.Fprintf(&b, `\u%04x`, c)
		case ok:
			b.WriteString(escape)
		case c == '/' && r.IntN(2) == 0:
			b.WriteString(`\/`)
		default:
			b.WriteRune(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func randomNumber(r *rand.Rand) string {
	switch r.IntN(8) {
	case 0:
		return []string{"0", "-0", "-0.0", "1e0", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "1e19", "1e400", "5e-324", "1e-400",
			"2147483647", "-2147483648", "2147483648", "0.1", "1.7976931348623157e308", "1000000000000000000000e-20", "0e999999999999", "10000000000000000000000000000e-28", "99999999999999999.999", "100000000000000000"}[r.IntN(21)]
	case 1:
		return strconv.FormatFloat(math.Float64frombits(r.Uint64()&^(0x7ff<<52)|r.Uint64N(0x7ff)<<52), []byte("eE")[r.IntN(2)], -1, 64)
	case 2:
		return fmt.Sprintf("%d.%0*d", r.IntN(1000)-500, 1+r.IntN(3), r.IntN(10))
	case 3:
		return fmt.Sprintf("%d.%s", r.IntN(100), strings.Repeat("0", 1+r.IntN(30)))
	case 4:
		return fmt.Sprintf("%d%se%d", 1+r.IntN(100), []string{"", ".5", ".25"}[r.IntN(3)], r.IntN(8)-3)
	}
	return strconv.FormatInt(int64(r.Uint64())>>r.IntN(64), 10)
}

// text returns a value of the shape; sometimes it is of another one.
func (s jsonShape) text(r *rand.Rand, misfits int) string {
	if misfits > 0 && r.IntN(misfits) == 0 {
		return randomShape(r, 1).text(r, 0)
	}
	if r.IntN(8) == 0 {
		return "null"
	}
	stamp := func(layout string) string {
		return quote(r, time.Unix(r.Int64N(8e9)-4e9, r.Int64N(1e9)).In(time.FixedZone("", 60*(r.IntN(1440)-720))).Format(layout))
	}
	switch s.kind {
	case "struct":
		var members []string
		for range 1 + r.IntN(2)*r.IntN(2) {
			for _, i := range r.Perm(len(s.names)) {
				if r.IntN(6) > 0 {
					members = append(members, quote(r, s.names[i])+gap(r)+":"+gap(r)+s.fields[i].text(r, misfits))
				}
			}
		}
		if r.IntN(4) == 0 {
			members = append(members, quote(r, randomText(r))+":"+randomShape(r, 2).text(r, 0))
		}
		r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		return "{" + gap(r) + strings.Join(members, gap(r)+","+gap(r)) + "}"
	case "list":
		var items []string
		for range r.IntN(5) {
			items = append(items, s.item.text(r, misfits))
		}
		return "[" + gap(r) + strings.Join(items, ","+gap(r)) + gap(r) + "]"
	case "map":
		var members []string
		for range r.IntN(5) * (1 + 4*r.IntN(2)) {
			members = append(members, quote(r, randomText(r))+":"+gap(r)+s.item.text(r, misfits))
		}
		return "{" + strings.Join(members, ",") + gap(r) + "}"
	case "any":
		for {
			if inner := randomShape(r, 2); inner.kind != "any" {
				return inner.text(r, 0)
			}
		}
	case "boolean":
		return strconv.FormatBool(r.IntN(2) == 0)
	case "long", "int", "double", "float", "decimal":
		if s.kind == "decimal" && r.IntN(2) == 0 {
			return quote(r, base64.StdEncoding.EncodeToString(randomBytes(r, 1+r.IntN(9))))
		}
		return randomNumber(r)
	case "binary":
		return quote(r, base64.StdEncoding.EncodeToString(randomBytes(r, r.IntN(20))))
	case "uuid":
		return quote(r, string(appendUUID(nil, randomBytes(r, 16))))
	case "date":
		return stamp(time.DateOnly)
	case "time":
		return stamp([]string{"15:04:05", "15:04:05.999999999", "15:04:05.999Z07:00"}[r.IntN(3)])
	case "date-time":
		return stamp(time.RFC3339Nano)
	}
	return quote(r, randomText(r))
}

// Random documents of random schemas come back from the file as encoding/json reads them, with
// fields in any order, some twice, escapes and white space; what it says does not fit is refused,
// and leaves no trace.
func TestRandomJSONRoundTrip(t *testing.T) {
	accepted, refused := 0, 0
	for seed := range uint64(jsonSeeds) {
		r := rand.New(rand.NewPCG(seed, 2))
		shape := randomStruct(r, 4)
		schema, err := json.Marshal(shape.schema())
		if err != nil {
			t.Fatal(err)
		}
		rig := newJSONRig(t, string(schema))
		var want []any
		for range 60 {
			text := []byte(gap(r) + shape.text(r, 150) + gap(r))
			v, err := parsePairs(text)
			if err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, text)
			}
			row, misfit := shape.plain(v)
			if v == nil {
				row, misfit = shape.row(jsonPairs{})
			}
			err = rig.builder.Append(rig.decoder, text, RecordMeta{})
			if (err == nil) != (misfit == nil) {
				t.Fatalf("seed %d: error %v, want %v\n%s\n%s", seed, err, misfit, schema, text)
			}
			if misfit != nil {
				refused++
				continue
			}
			want = append(want, row)
			if cut := text[:r.IntN(len(text))]; !json.Valid(cut) {
				if err := rig.builder.Append(rig.decoder, cut, RecordMeta{}); err == nil {
					t.Fatalf("seed %d: accepted %s", seed, cut)
				}
			}
		}
		accepted += len(want)
		if len(want) == 0 {
			continue
		}
		got := rig.rows()
		if len(got) != len(want) {
			t.Fatalf("seed %d: %d rows, want %d", seed, len(got), len(want))
		}
		for i := range got {
			if diff := cmp.Diff(resolvePairs(want[i], any(got[i])), any(got[i])); diff != "" {
				t.Fatalf("seed %d, row %d: %s\n%s", seed, i, diff, schema)
			}
		}
	}
	if accepted < 10*jsonSeeds || refused < jsonSeeds/2 {
		t.Errorf("%d documents accepted and %d refused: too few to tell", accepted, refused)
	}
}

// Whatever the bytes are, the decoder accepts and refuses what encoding/json and the columns say,
// and reads the same values.
func FuzzJSON(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 1))
	shape := jsonShape{kind: "struct"}
	for _, kind := range []string{"boolean", "long", "int", "double", "float", "decimal", "string", "binary", "uuid", "date", "time", "date-time", "any"} {
		shape.names, shape.fields = append(shape.names, kind), append(shape.fields, jsonShape{kind: kind})
	}
	inner := shape
	list := jsonShape{kind: "list", item: &inner}
	dict := jsonShape{kind: "map", item: &list}
	shape.names, shape.fields = append(shape.names, "list", "map"), append(shape.fields, list, dict)
	schema, err := json.Marshal(shape.schema())
	if err != nil {
		f.Fatal(err)
	}
	rig := newJSONRig(f, string(schema))
	for range 30 {
		f.Add([]byte(shape.text(r, 0)))
	}
	for _, s := range []string{"\ufeff{}", ` {"any":"\ud800"}`, `{"string":"\ud800\u0041"}`, `{"x":01}`, `{"x":+1}`, `{"x":1.}`, `{"x":.5}`, `{"x":1e}`, `{"x":-}`,
		`{"any":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + "}", `{"string":"` + "\x01" + `"}`, `{"string":"` + "\xff" + `"}`, `{"a":1,}`, `[1]`, `nul`, `{"x":tru}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		v, want := parsePairs(text)
		var row any
		if want == nil {
			if v == nil {
				v = jsonPairs{}
			}
			row, want = shape.plain(v)
		}
		err := rig.builder.Append(rig.decoder, text, RecordMeta{})
		if (err == nil) != (want == nil) {
			t.Fatalf("error %v, want %v", err, want)
		}
		batch := finish(t, rig.builder)
		defer batch.Release()
		if want != nil {
			if batch.NumRows() != 0 {
				t.Fatal("a refused record left a row")
			}
			return
		}
		got := map[string]any{}
		for c := range len(shape.names) {
			got[batch.ColumnName(c)] = plain(batch.Column(c), 0)
		}
		if diff := cmp.Diff(resolvePairs(row, any(got)), any(got)); diff != "" {
			t.Fatal(diff)
		}
	})
}

// What is wrong with a record is said, with its field, and the rows around it are whole.
func TestJSONRefusesDamagedRecords(t *testing.T) {
	const deep = maxJSONDepth + 1
	tests := []struct {
		schema  string // of the property x
		good    string
		bad     string
		field   string
		message string
	}{
		{`{"type":"integer"}`, `{"x":1}`, `{"x":"1"}`, "x", "value is a string, and the column is long"},
		{`{"type":"integer"}`, `{"x":1}`, `{"x":{}}`, "x", "value is an object, and the column is long"},
		{`{"type":"integer"}`, `{"x":1.0}`, `{"x":1.5}`, "x", reasonFraction},
		{`{"type":"integer"}`, `{"x":9223372036854775807}`, `{"x":9223372036854775808}`, "x", reasonLong64},
		{`{"type":"integer"}`, `{"x":-9223372036854775808}`, `{"x":-9223372036854775809}`, "x", reasonLong64},
		{`{"type":"integer"}`, `{"x":1e18}`, `{"x":1e999999999999999999999}`, "x", reasonLong64},
		{`{"type":"integer"}`, `{"x":0e999999999999999999999}`, `{"x":1e-999999999999999999999}`, "x", reasonFraction},
		{`{"type":"integer"}`, `{"x":1}`, `{"x":01}`, "x", reasonNumber},
		{`{"type":"integer"}`, `{"x":-1}`, `{"x":-}`, "x", reasonNumber},
		{`{"type":"integer","connect.type":"int32"}`, `{"x":2147483647}`, `{"x":2147483648}`, "x", reasonInt},
		{`{"type":"number"}`, `{"x":1e308}`, `{"x":1e309}`, "x", reasonDouble},
		{`{"type":"number"}`, `{"x":1}`, `{"x":NaN}`, "x", reasonValue},
		{`{"type":"number"}`, `{"x":1}`, `{"x":1.}`, "x", reasonNumber},
		{`{"type":"boolean"}`, `{"x":true}`, `{"x":1}`, "x", "value is a number"},
		{`{"type":"boolean"}`, `{"x":false}`, `{"x":fals}`, "x", reasonValue},
		{`{"type":"boolean"}`, `{"x":null}`, `{"x":nul}`, "x", reasonValue},
		{`{"type":"null"}`, `{"x":null}`, `{"x":1}`, "", "the schema says that it is null"},
		{`{"type":"string"}`, `{"x":"a"}`, `{"x":a}`, "x", reasonValue},
		{`{"type":"string"}`, `{"x":"é"}`, "{\"x\":\"\xe9\"}", "x", reasonUTF8},
		{`{"type":"string"}`, `{"x":"é"}`, "{\"x\":\"" + strings.Repeat("long enough ", 5) + "\xe9\"}", "x", reasonUTF8},
		{`{"type":"string"}`, `{"x":"\n"}`, "{\"x\":\"\n\"}", "x", reasonControl},
		{`{"type":"string"}`, `{"x":"\ud83d\ude00"}`, `{"x":"\ud83d"}`, "x", reasonSurrogate},
		{`{"type":"string"}`, `{"x":"\ud83d\ude00"}`, `{"x":"\ude00\ud83d"}`, "x", reasonSurrogate},
		{`{"type":"string"}`, `{"x":"\u00e9"}`, `{"x":"\u00g9"}`, "x", reasonEscape},
		{`{"type":"string"}`, `{"x":"\/"}`, `{"x":"\x"}`, "x", reasonEscape},
		{`{"type":"string"}`, `{"x":"a"}`, `{"x":"a}`, "x", reasonShort},
		{`{"type":"string"}`, `{"x":"a"}`, `{"x":"a\`, "x", reasonShort},
		{`{"type":"string","format":"date"}`, `{"x":"2026-02-28"}`, `{"x":"2026-02-30"}`, "x", "not an ISO 8601 date"},
		{`{"type":"string","format":"date-time"}`, `{"x":"2026-01-01T00:00:00Z"}`, `{"x":"2026-01-01T00:00:00"}`, "x", "with an offset"},
		{`{"type":"string","format":"time"}`, `{"x":"23:59:59"}`, `{"x":"24:00:00"}`, "x", "time of day"},
		{`{"type":"string","format":"uuid"}`, `{"x":null}`, `{"x":"1"}`, "x", "not a UUID"},
		{`{"type":"string","contentEncoding":"base64"}`, `{"x":"AA=="}`, `{"x":"AA"}`, "x", "not base64"},
		{`{"type":"array","items":{"type":"integer"}}`, `{"x":[1,2]}`, `{"x":[1,"2"]}`, "x.element", "value is a string"},
		{`{"type":"array","items":{"type":"integer"}}`, `{"x":[]}`, `{"x":[1,]}`, "x.element", reasonValue},
		{`{"type":"array","items":{"type":"integer"}}`, `{"x":[]}`, `{"x":[1 2]}`, "x", reasonNext},
		{`{"type":"array","items":{"type":"integer"}}`, `{"x":[]}`, `{"x":[1`, "x", reasonShort},
		{`{"type":"object","additionalProperties":{"type":"integer"}}`, `{"x":{}}`, `{"x":{"a":true}}`, "x.value", "value is a boolean"},
		{`{"type":"object","additionalProperties":{"type":"integer"}}`, `{"x":{}}`, `{"x":{"a" 1}}`, "x", reasonColon},
		{`{"type":"object","additionalProperties":{"type":"integer"}}`, `{"x":{}}`, `{"x":{a:1}}`, "x", reasonName},
		{`{"type":"object","properties":{"y":{"type":"integer"}}}`, `{"x":{"y":1}}`, `{"x":{"y":[1]}}`, "x.y", "value is an array"},
		{`{"type":"integer"}`, `{}`, ``, "", "no JSON text"},
		{`{"type":"integer"}`, " {\n\"x\"\t:\r1 } ", ` `, "", "no JSON text"},
		{`{"type":"integer"}`, `null`, `nil`, "", reasonValue},
		{`{"type":"integer"}`, `{}`, `[1]`, "", "record is an array, and its schema says that it is an object"},
		{`{"type":"integer"}`, `{}`, `{} {}`, "", "2 bytes are left over"},
		{`{"type":"integer"}`, `{}`, "\ufeff{}", "", "byte order mark"},
		{`{"type":"integer"}`, `{}`, `{"x":1`, "", reasonShort},
		{`{"type":"integer"}`, `{}`, `{"x":1,}`, "", reasonName},
		{`{"type":"integer"}`, `{}`, `{"y":[1,{"a":}]}`, "", reasonValue},
		{`{"type":"integer"}`, `{}`, `{"y":` + strings.Repeat("[", deep) + strings.Repeat("]", deep) + `}`, "", reasonDeep},
		{`{}`, `{"x":` + strings.Repeat("[", deep-1) + strings.Repeat("]", deep-1) + `}`, `{"x":` + strings.Repeat(`{"":[`, deep) + `}`, "x", reasonDeep},
	}
	for i, test := range tests {
		t.Run(fmt.Sprint(i, test.message), func(t *testing.T) {
			r := newJSONRig(t, `{"type":"object","properties":{"x":`+test.schema+`,"other":{"type":"string"}}}`)
			r.append([]byte(test.good), []byte(test.good))
			want := r.rows()
			for range 2 {
				r.append([]byte(test.good))
				err := r.builder.Append(r.decoder, []byte(test.bad), RecordMeta{})
				var bad *DecodeError
				if !errors.As(err, &bad) || !strings.Contains(err.Error(), test.message) || bad.Field != test.field {
					t.Fatalf("error %v, want %q of field %s", err, test.message, test.field)
				}
			}
			if diff := cmp.Diff(want, r.rows()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Of properties with the same name the last counts, whatever the earlier ones put into columns.
func TestJSONLastPropertyCounts(t *testing.T) {
	r := newJSONRig(t, `{"type":"object","properties":{"a":{"type":"integer"},"s":{"type":"object","properties":{"x":{"type":"string"},"l":{"type":"array","items":{"type":"boolean"}}}},
		"m":{"type":"object","additionalProperties":{"type":"object","properties":{"k":{"type":"integer"}}}}}}`)
	var many strings.Builder
	for i := range 30 {
		fmt.Fprintf(&many, `"k%d":{"k":%d},`, i%20, i)
	}
	r.append([]byte(`{"a":1,"s":{"x":"a","l":[true,false]},"a":2,"s":{"l":[true],"l":[false,null,true]},"a":null,"a":4}`),
		[]byte(`{"a":1,"m":{"p":{"k":1},"q":{"k":2,"k":3},"p":null},"a":null}`),
		[]byte(`{"m":{`+many.String()+`"z":{"k":1,"k":null}}}`),
		[]byte(`{"s":{"x":"a"},"s":null}`))
	big := map[string]any{"z": map[string]any{"k": nil}}
	for i := range 20 {
		big[fmt.Sprint("k", i)] = map[string]any{"k": int64(i)}
	}
	for i := 20; i < 30; i++ {
		big[fmt.Sprint("k", i-20)] = map[string]any{"k": int64(i)}
	}
	want := []map[string]any{
		{"a": int64(4), "s": map[string]any{"x": nil, "l": []any{false, nil, true}}, "m": nil},
		{"a": nil, "s": nil, "m": map[string]any{"p": nil, "q": map[string]any{"k": int64(3)}}},
		{"a": nil, "s": nil, "m": big},
		{"a": nil, "s": nil, "m": nil},
	}
	if diff := cmp.Diff(want, r.rows()); diff != "" {
		t.Error(diff)
	}
}

// Keys of a JSON Schema are a column beside the values of another one, objects and single values.
func TestJSONKeys(t *testing.T) {
	value, err := ParseJSONSchema(`{"type":"object","properties":{"id":{"type":"integer"}}}`)
	if err != nil {
		t.Fatal(err)
	}
	for schema, keys := range map[string]map[string]any{
		`{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"array","items":{"type":"integer"}}}}`: {`{"b":[1],"a":"x"}`: map[string]any{"a": "x", "b": []any{int64(1)}}, `{}`: map[string]any{"a": nil, "b": nil}},
		`{"type":"integer"}`: {`7`: int64(7)},
		`{"type":"object"}`:  {`{"a": 1}`: `{"a":1}`},
	} {
		key, err := ParseJSONSchema(schema)
		if err != nil {
			t.Fatal(err)
		}
		r := newKeyRig(t, value, key)
		for text, want := range keys {
			m := RecordMeta{KeyDecoder: r.key, KeyPayload: []byte(text)}
			bad := RecordMeta{KeyDecoder: r.key, KeyPayload: []byte(text + "]")}
			for range 2 {
				if err := r.builder.Append(r.value, []byte(`{"id":1}`), bad); err == nil {
					t.Fatal("a damaged key was accepted")
				}
				if err := r.builder.Append(r.value, []byte(`{"id":1}`), m); err != nil {
					t.Fatal(err)
				}
			}
			rows := readFile(t, writeFile(t, r.table, WriterConfig{}, finish(t, r.builder)))
			for _, row := range rows {
				if diff := cmp.Diff(map[string]any{"id": int64(1), "_key": want}, row); diff != "" {
					t.Errorf("%s: %s", text, diff)
				}
			}
			if len(rows) != 2 {
				t.Errorf("%d rows, want 2", len(rows))
			}
		}
	}
}

// Decoding allocates nothing per row once the buffers have their size.
func TestAppendJSONDoesNotAllocate(t *testing.T) {
	r := newJSONRig(t, clickstream.JSONSchema)
	g, e := clickstream.NewGenerator(5, benchStart), clickstream.Event{}
	payloads := make([][]byte, 2000)
	for i := range payloads {
		g.Next(&e)
		payloads[i] = clickstream.AppendJSON(nil, &e)
	}
	per := testing.AllocsPerRun(5, func() {
		for _, p := range payloads {
			if err := r.builder.Append(r.decoder, p, RecordMeta{}); err != nil {
				t.Fatal(err)
			}
		}
		finish(t, r.builder).Release()
	})
	if per/float64(len(payloads)) > 0.15 {
		t.Errorf("%.0f allocations for %d rows", per, len(payloads))
	}
}

// Zero keeps its sign, and the doubles that are hardest to read are read as strconv does.
func TestJSONDoubles(t *testing.T) {
	texts := []string{"-0", "-0.0", "0", "5e-324", "2.2250738585072011e-308", "1.7976931348623157e308", "9007199254740993", "1e23", "8.41e21", "0.1", "123456789012345678901234567890",
		"1e-400", "0.000000000000000000000000000000000000000000000000001", "9007199254740992e22", "9007199254740991e-22", "179769313486231570793e288"}
	r := newJSONRig(t, `{"type":"number"}`)
	for _, s := range texts {
		r.append([]byte(s))
	}
	for i, row := range r.rows() {
		want, _ := strconv.ParseFloat(texts[i], 64)
		if got := row["value"].(float64); math.Float64bits(got) != math.Float64bits(want) {
			t.Errorf("%s is %v, want %v", texts[i], got, want)
		}
	}
}

// A column that must have a value gets none from null or absence, and the field is named.
func TestJSONRequiredColumn(t *testing.T) {
	value, err := ParseJSONSchema(`{"type":"object","properties":{"id":{"type":"integer"},"n":{"type":"string"}},"required":["id"]}`)
	if err != nil {
		t.Fatal(err)
	}
	table := iceberg.NewSchema(0, iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64, Required: true}, iceberg.NestedField{ID: 2, Name: "n", Type: iceberg.PrimitiveTypes.String})
	d, err := noKafka.Compile(value, table)
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewBuilder(table, "")
	if err != nil {
		t.Fatal(err)
	}
	for text, message := range map[string]string{`{"n":"a"}`: "field id at byte 0: is missing, and the column is required", `{"id":null}`: "field id at byte 6: is null, and the column is required", `{"id":1}`: "<nil>"} {
		if err := b.Append(d, []byte(text), RecordMeta{}); !strings.Contains(fmt.Sprint(err), message) {
			t.Errorf("error %v, want %q", err, message)
		}
	}
	if b.Rows() != 1 {
		t.Errorf("%d rows, want 1", b.Rows())
	}
}

// A record cannot make the decoder work out of proportion to its size: an object that comes again
// and again, with many columns below.
func TestJSONHostileRecord(t *testing.T) {
	var wide strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&wide, `,"f%d":{"type":"integer"}`, i)
	}
	r := newJSONRig(t, `{"type":"object","properties":{"s":{"type":"object","properties":{`+wide.String()[1:]+`}}}}`)
	err := r.builder.Append(r.decoder, []byte("{"+strings.Repeat(`"s":{},`, 10_000)+`"s":{}}`), RecordMeta{})
	if err == nil || !strings.Contains(err.Error(), reasonMany) {
		t.Errorf("error %v, want %q", err, reasonMany)
	}
}
