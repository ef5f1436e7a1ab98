package parquetiotest

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
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

// A JSON is a JSON Schema, and what its values mean, as encoding/json reads them.
type JSON struct {
	Kind   string   // boolean, long, …, struct, list, map, any
	Names  []string // of a struct
	Fields []JSON
	Item   *JSON // of a list or map
}

func (s JSON) Schema() any {
	object := func(pairs ...any) map[string]any {
		m := map[string]any{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i].(string)] = pairs[i+1]
		}
		return m
	}
	switch s.Kind {
	case "struct":
		var properties []byte // in order
		for i, f := range s.Fields {
			name, _ := json.Marshal(s.Names[i])
			inner, _ := json.Marshal(f.Schema())
			properties = append(append(append(append(properties, ','), name...), ':'), inner...)
		}
		if len(properties) > 0 {
			properties = properties[1:]
		}
		return object("type", "object", "properties", json.RawMessage("{"+string(properties)+"}"))
	case "list":
		return object("type", "array", "items", s.Item.Schema())
	case "map":
		return object("type", "object", "additionalProperties", s.Item.Schema())
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
		return object("type", "string", "format", s.Kind)
	}
	return object("type", s.Kind)
}

// A Pairs is an object as it is written.
type Pairs struct {
	Names  []string
	Values []any
}

// ParsePairs is an independent reader of JSON.
func ParsePairs(text []byte) (any, error) {
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
		return Pairs{names, values}, nil
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
	case Pairs:
		values = v.Values
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

var (
	uuidText     = regexp.MustCompile(`^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$`)
	timeText     = regexp.MustCompile(`^(\d\d:\d\d:\d\d(?:[.,]\d+)?)(Z|[+-]\d\d:\d\d)?$`)
	dateTimeText = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:`)
)

var errMisfit = errors.New("does not fit")

// plain returns the value of the column for v, nil for NULL.
func (s JSON) Plain(v any) (any, error) {
	if v == nil {
		return nil, nil
	}
	text, isText := v.(string)
	number, isNumber := v.(json.Number)
	switch s.Kind {
	case "struct":
		if v, ok := v.(Pairs); ok {
			return s.Row(v)
		}
	case "list":
		items, ok := v.([]any)
		if !ok {
			return nil, errMisfit
		}
		out := []any{}
		for _, x := range items {
			p, err := s.Item.Plain(x)
			if err != nil {
				return nil, err
			}
			out = append(out, p)
		}
		return out, nil
	case "map":
		pairs, ok := v.(Pairs)
		if !ok {
			return nil, errMisfit
		}
		out := map[string]any{}
		for i, x := range pairs.Values {
			p, err := s.Item.Plain(x)
			if err != nil {
				return nil, err
			}
			out[pairs.Names[i]] = p
		}
		return out, nil
	case "any":
		if nesting(v) > maxJSONDepth {
			return nil, errMisfit
		}
		return InJSON{v}, nil
	case "boolean":
		if v, ok := v.(bool); ok {
			return v, nil
		}
	case "long", "int":
		if isNumber {
			return integerOf(number, s.Kind)
		}
	case "double", "float":
		if isNumber {
			bits := 64
			if s.Kind == "float" {
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
		if isText && uuidText.MatchString(text) {
			return "0x" + strings.ToLower(strings.ReplaceAll(text, "-", "")), nil
		}
	case "date":
		if t, err := time.Parse(time.DateOnly, text); isText && err == nil {
			return new(big.Int).Div(big.NewInt(t.Unix()), big.NewInt(86400)).Int64(), nil
		}
	case "time":
		if m := timeText.FindStringSubmatch(text); isText && m != nil {
			t, err := time.Parse(time.RFC3339Nano, "2000-01-01T"+m[1]+stdcmp.Or(m[2], "Z"))
			if err == nil {
				u := t.UTC()
				return int64(u.Hour()*3600+u.Minute()*60+u.Second())*1_000_000 + int64(u.Nanosecond()/1000), nil
			}
		}
	case "date-time":
		if dateTimeText.MatchString(text) && isText {
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
func (s JSON) Row(v Pairs) (any, error) {
	out := map[string]any{}
	for _, name := range s.Names {
		out[name] = nil
	}
	for i, name := range v.Names {
		known := false
		for k := range s.Names {
			if s.Names[k] == name {
				p, err := s.Fields[k].Plain(v.Values[i])
				if err != nil {
					return nil, err
				}
				out[name], known = p, true
			}
		}
		if !known && nesting(v.Values[i]) > maxJSONDepth {
			return nil, errMisfit
		}
	}
	return out, nil
}

// ResolvePairs replaces expected JSON by the text of the row if that means the same.
func ResolvePairs(want, got any) any {
	switch w := want.(type) {
	case InJSON:
		s, _ := got.(string)
		if v, err := ParsePairs([]byte(s)); err == nil && cmp.Equal(v, w.Value, cmp.AllowUnexported(Pairs{})) {
			var compact bytes.Buffer
			if json.Compact(&compact, []byte(s)) == nil && compact.String() == s {
				return got
			}
		}
		return fmt.Sprintf("%#v", w.Value)
	case map[string]any:
		out, g := map[string]any{}, AsMap(got)
		for k, v := range w {
			out[k] = ResolvePairs(v, g[k])
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
			out = append(out, ResolvePairs(v, x))
		}
		return out
	}
	return want
}

func randomJSON(r *rand.Rand, depth int) JSON {
	if depth > 0 && r.IntN(3) == 0 {
		switch r.IntN(3) {
		case 0:
			item := randomJSON(r, depth-1)
			return JSON{Kind: "list", Item: &item}
		case 1:
			item := randomJSON(r, depth-1)
			if item.Kind == "any" {
				item.Kind = "long"
			}
			return JSON{Kind: "map", Item: &item}
		}
		return RandomJSON(r, depth)
	}
	kinds := []string{"boolean", "long", "int", "double", "float", "decimal", "string", "string", "binary", "uuid", "date", "time", "date-time", "any"}
	return JSON{Kind: kinds[r.IntN(len(kinds))]}
}

// RandomJSON is the shape of an object.
func RandomJSON(r *rand.Rand, depth int) JSON {
	s := JSON{Kind: "struct"}
	for i := range 1 + r.IntN(6) {
		s.Names = append(s.Names, fmt.Sprintf("f%d%s", i, []string{"", "ä", " \"\\/\n", "😀"}[r.IntN(4)]))
		s.Fields = append(s.Fields, randomJSON(r, depth-1))
	}
	return s
}

// Gap is white space, or none.
func Gap(r *rand.Rand) string { return []string{"", "", "", " ", "\n\t", "\r "}[r.IntN(6)] }

var escapes = map[rune]string{'"': `\"`, '\\': `\\`, '\n': `\n`, '\t': `\t`, '\r': `\r`, '\b': `\b`, '\f': `\f`}

// quote writes a string as some writer would.
func quote(r *rand.Rand, s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range s {
		escape, ok := escapes[c]
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
func (s JSON) Text(r *rand.Rand, misfits int) string {
	if misfits > 0 && r.IntN(misfits) == 0 {
		return randomJSON(r, 1).Text(r, 0)
	}
	if r.IntN(8) == 0 {
		return "null"
	}
	stamp := func(layout string) string {
		return quote(r, time.Unix(r.Int64N(8e9)-4e9, r.Int64N(1e9)).In(time.FixedZone("", 60*(r.IntN(1440)-720))).Format(layout))
	}
	switch s.Kind {
	case "struct":
		var members []string
		for range 1 + r.IntN(2)*r.IntN(2) {
			for _, i := range r.Perm(len(s.Names)) {
				if r.IntN(6) > 0 {
					members = append(members, quote(r, s.Names[i])+Gap(r)+":"+Gap(r)+s.Fields[i].Text(r, misfits))
				}
			}
		}
		if r.IntN(4) == 0 {
			members = append(members, quote(r, RandomText(r))+":"+randomJSON(r, 2).Text(r, 0))
		}
		r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		return "{" + Gap(r) + strings.Join(members, Gap(r)+","+Gap(r)) + "}"
	case "list":
		var items []string
		for range r.IntN(5) {
			items = append(items, s.Item.Text(r, misfits))
		}
		return "[" + Gap(r) + strings.Join(items, ","+Gap(r)) + Gap(r) + "]"
	case "map":
		var members []string
		for range r.IntN(5) * (1 + 4*r.IntN(2)) {
			members = append(members, quote(r, RandomText(r))+":"+Gap(r)+s.Item.Text(r, misfits))
		}
		return "{" + strings.Join(members, ",") + Gap(r) + "}"
	case "any":
		for {
			if inner := randomJSON(r, 2); inner.Kind != "any" {
				return inner.Text(r, 0)
			}
		}
	case "boolean":
		return strconv.FormatBool(r.IntN(2) == 0)
	case "long", "int", "double", "float", "decimal":
		if s.Kind == "decimal" && r.IntN(2) == 0 {
			return quote(r, base64.StdEncoding.EncodeToString(RandomBytes(r, 1+r.IntN(9))))
		}
		return randomNumber(r)
	case "binary":
		return quote(r, base64.StdEncoding.EncodeToString(RandomBytes(r, r.IntN(20))))
	case "uuid":
		return quote(r, (uuid.UUID(RandomBytes(r, 16)).String()))
	case "date":
		return stamp(time.DateOnly)
	case "time":
		return stamp([]string{"15:04:05", "15:04:05.999999999", "15:04:05.999Z07:00"}[r.IntN(3)])
	case "date-time":
		return stamp(time.RFC3339Nano)
	}
	return quote(r, RandomText(r))
}
