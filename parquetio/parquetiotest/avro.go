package parquetiotest

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// An Avro makes values of one random Avro type: encoded, as [Plain] gives them
// back from a file, and as they appear inside of JSON.
type Avro struct {
	Schema any
	Value  func(r *rand.Rand) (encoded []byte, plain any, json any)
}

// Names numbers the named types of one schema.
type Names struct{ n int }

func (t *Names) name(prefix string) string { t.n++; return fmt.Sprintf("%s%d", prefix, t.n) }

// Random is a type of any kind.
func (t *Names) Random(r *rand.Rand, depth int) Avro {
	if depth > 0 && r.IntN(3) > 0 {
		switch r.IntN(5) {
		case 0:
			return t.Record(r, depth)
		case 1:
			return list(t.Random(r, depth-1))
		case 2:
			return mapOf(t.Random(r, depth-1))
		case 3:
			return t.union(r, depth)
		default:
			return nullable(r, t.noUnion(r, depth-1))
		}
	}
	return t.primitive(r)
}

func (t *Names) noUnion(r *rand.Rand, depth int) Avro {
	for {
		x := t.Random(r, depth)
		if _, ok := x.Schema.([]any); !ok {
			return x
		}
	}
}

func logicalOf(base, name string) map[string]any {
	return map[string]any{"type": base, "logicalType": name}
}

func (t *Names) primitive(r *rand.Rand) Avro {
	anyLong := func(r *rand.Rand) int64 { return int64(r.Uint64()) >> r.IntN(64) }
	anyInt := func(r *rand.Rand) int64 { return int64(int32(r.Uint64()) >> r.IntN(32)) }
	iso := func(v int64) string { return time.UnixMicro(v).UTC().Format("2006-01-02T15:04:05.999999999") }
	longs := func(schema any, gen func(*rand.Rand) int64, convert func(int64) int64, asJSON func(int64) any) Avro {
		return Avro{schema, func(r *rand.Rand) ([]byte, any, any) {
			v := gen(r)
			return Long(v), convert(v), asJSON(v)
		}}
	}
	same := func(v int64) int64 { return v }
	number := func(v int64) any { return json.Number(fmt.Sprint(v)) }
	within := func(limit int64) func(*rand.Rand) int64 {
		return func(r *rand.Rand) int64 { return r.Int64N(2*limit) - limit }
	}
	day := func(limit int64) func(*rand.Rand) int64 {
		return func(r *rand.Rand) int64 { return r.Int64N(limit) }
	}
	floor := func(v int64) int64 { return int64(math.Floor(float64(v) / 1000)) }
	clock := func(unit time.Duration) func(int64) any {
		return func(v int64) any {
			return time.Unix(0, v*int64(unit)).UTC().Format("15:04:05.999999999")
		}
	}
	switch r.IntN(23) {
	case 0:
		return Avro{"boolean", func(r *rand.Rand) ([]byte, any, any) {
			v := r.IntN(2)
			return []byte{byte(v)}, v == 1, v == 1
		}}
	case 1:
		return longs("int", anyInt, same, number)
	case 2:
		return longs("long", anyLong, same, number)
	case 3:
		return Avro{"float", func(r *rand.Rand) ([]byte, any, any) {
			v := math.Float32frombits(r.Uint32())
			return Float(v), plainFloat(float64(v)), jsonFloat(float64(v), 32)
		}}
	case 4:
		return Avro{"double", func(r *rand.Rand) ([]byte, any, any) {
			v := math.Float64frombits(r.Uint64())
			return Double(v), plainFloat(v), jsonFloat(v, 64)
		}}
	case 5, 6, 7:
		return Avro{"string", func(r *rand.Rand) ([]byte, any, any) {
			v := RandomText(r)
			return Text(v), v, v
		}}
	case 8:
		return Avro{"bytes", func(r *rand.Rand) ([]byte, any, any) {
			v := RandomBytes(r, r.IntN(40))
			return append(Long(int64(len(v))), v...), "0x" + hex.EncodeToString(v), base64.StdEncoding.EncodeToString(v)
		}}
	case 9:
		n := 1 + r.IntN(20)
		return Avro{map[string]any{"type": "fixed", "size": n, "name": t.name("Fixed")}, func(r *rand.Rand) ([]byte, any, any) {
			v := RandomBytes(r, n)
			return v, "0x" + hex.EncodeToString(v), base64.StdEncoding.EncodeToString(v)
		}}
	case 10:
		symbols := []any{"A", "B", "C_3"}
		return Avro{map[string]any{"type": "enum", "symbols": symbols, "name": t.name("Enum")}, func(r *rand.Rand) ([]byte, any, any) {
			i := r.IntN(3)
			return Long(int64(i)), symbols[i], symbols[i]
		}}
	case 11:
		return longs(logicalOf("int", "date"), within(1_000_000), same, func(v int64) any { return time.Unix(v*86400, 0).UTC().Format("2006-01-02") })
	case 12:
		return longs(logicalOf("int", "time-millis"), day(86_400_000), func(v int64) int64 { return v * 1000 }, clock(time.Millisecond))
	case 13:
		return longs(logicalOf("long", "time-micros"), day(86_400_000_000), same, clock(time.Microsecond))
	case 14:
		return longs(logicalOf("long", "timestamp-millis"), within(1e14), func(v int64) int64 { return v * 1000 }, func(v int64) any { return iso(v*1000) + "Z" })
	case 15:
		return longs(logicalOf("long", "timestamp-micros"), within(1e17), same, func(v int64) any { return iso(v) + "Z" })
	case 16:
		return longs(logicalOf("long", "timestamp-nanos"), within(1e15), floor, func(v int64) any {
			return time.Unix(0, v).UTC().Format("2006-01-02T15:04:05.999999999Z")
		})
	case 17:
		return longs(logicalOf("long", "local-timestamp-millis"), within(1e14), func(v int64) int64 { return v * 1000 }, func(v int64) any { return iso(v * 1000) })
	case 18:
		return longs(logicalOf("long", "local-timestamp-micros"), within(1e17), same, func(v int64) any { return iso(v) })
	case 19:
		return longs(logicalOf("long", "local-timestamp-nanos"), within(1e15), floor, func(v int64) any {
			return time.Unix(0, v).UTC().Format("2006-01-02T15:04:05.999999999")
		})
	case 20:
		return Avro{logicalOf("string", "uuid"), func(r *rand.Rand) ([]byte, any, any) {
			v := RandomBytes(r, 16)
			u := uuid.UUID(v).String()
			return Text(u), "0x" + hex.EncodeToString(v), u
		}}
	}
	// decimal, in bytes or fixed
	precision := 1 + r.IntN(38)
	scale := r.IntN(precision + 1)
	schema := map[string]any{"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
	size := 0
	if r.IntN(2) == 0 {
		size = 17
		schema = map[string]any{"type": "fixed", "size": size, "name": t.name("Decimal"), "logicalType": "decimal", "precision": precision, "scale": scale}
	}
	limit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(1+precision-1)), nil)
	return Avro{schema, func(r *rand.Rand) ([]byte, any, any) {
		v := new(big.Int).SetBytes(RandomBytes(r, 1+r.IntN(16)))
		v.Mod(v, limit)
		if r.IntN(2) == 0 {
			v.Neg(v)
		}
		n := size
		if n == 0 {
			n = 1 + r.IntN(2) + len(v.Bytes()) // sometimes longer than it must
		}
		b := twosComplement(v, n)
		s := decimalText(v, scale)
		if size == 0 {
			return append(Long(int64(len(b))), b...), s, s
		}
		return b, s, s
	}}
}

func jsonFloat(v float64, bits int) any {
	switch {
	case math.IsNaN(v):
		return "NaN"
	case math.IsInf(v, 1):
		return "Infinity"
	case math.IsInf(v, -1):
		return "-Infinity"
	}
	b, _ := json.Marshal(v)
	if bits == 32 {
		b, _ = json.Marshal(float32(v))
	}
	return json.Number(b)
}

func decimalText(v *big.Int, scale int) string {
	s := new(big.Int).Abs(v).String()
	if pad := scale + 1 - len(s); pad > 0 {
		s = strings.Repeat("0", pad) + s
	}
	if scale > 0 {
		s = s[:len(s)-scale] + "." + s[len(s)-scale:]
	}
	if v.Sign() < 0 {
		s = "-" + s
	}
	return s
}

func twosComplement(v *big.Int, n int) []byte {
	if v.Sign() < 0 {
		v = new(big.Int).Add(v, new(big.Int).Lsh(big.NewInt(1), uint(8*n)))
	}
	return v.FillBytes(make([]byte, n))
}

// RandomText is text, now and then of few distinct values.
func RandomText(r *rand.Rand) string {
	if r.IntN(2) == 0 {
		return []string{"", "a", "repeated value", "äöü", "日本語 text", "\x00\x1f\"\\"}[r.IntN(6)]
	}
	var b strings.Builder
	for range r.IntN(100) {
		b.WriteRune([]rune("abcdefgh XYZ09_ä€😀")[r.IntN(18)])
	}
	return b.String()
}

// RandomBytes are n bytes.
func RandomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// Record is a record of some fields, or of none.
func (t *Names) Record(r *rand.Rand, depth int) Avro {
	var fields []any
	var inner []Avro
	for i := range r.IntN(5) {
		inner = append(inner, t.Random(r, depth-1))
		fields = append(fields, map[string]any{"name": fmt.Sprintf("f%d", i), "type": inner[i].Schema})
	}
	if fields == nil {
		fields = []any{}
	}
	return Avro{map[string]any{"type": "record", "name": t.name("Record"), "fields": fields}, func(r *rand.Rand) ([]byte, any, any) {
		var out []byte
		plain, asJSON := map[string]any{}, map[string]any{}
		for i, f := range inner {
			b, v, j := f.Value(r)
			out = append(out, b...)
			plain[fmt.Sprintf("f%d", i)], asJSON[fmt.Sprintf("f%d", i)] = v, j
		}
		if len(inner) == 0 {
			plain[presentField] = true
		}
		return out, plain, asJSON
	}}
}

// blocks encodes items in blocks as an encoder may: several, with and without a size.
func blocks(r *rand.Rand, items [][]byte) (out []byte) {
	for len(items) > 0 {
		n := 1 + r.IntN(len(items))
		body := slices.Concat(items[:n]...)
		if r.IntN(2) == 0 {
			out = append(out, slices.Concat(Long(int64(-n)), Long(int64(len(body))))...)
		} else {
			out = append(out, Long(int64(n))...)
		}
		out = append(out, body...)
		items = items[n:]
	}
	return append(out, 0)
}

func list(item Avro) Avro {
	return Avro{map[string]any{"type": "array", "items": item.Schema}, func(r *rand.Rand) ([]byte, any, any) {
		var items [][]byte
		plain, asJSON := []any{}, []any{}
		for range r.IntN(5) {
			b, v, j := item.Value(r)
			items, plain, asJSON = append(items, b), append(plain, v), append(asJSON, j)
		}
		return blocks(r, items), plain, asJSON
	}}
}

func mapOf(item Avro) Avro {
	return Avro{map[string]any{"type": "map", "values": item.Schema}, func(r *rand.Rand) ([]byte, any, any) {
		var items [][]byte
		plain, asJSON := map[string]any{}, map[string]any{}
		for i := range r.IntN(4) {
			b, v, j := item.Value(r)
			key := fmt.Sprintf("k%d%s", i, RandomText(r))
			items = append(items, append(Text(key), b...))
			plain[key], asJSON[key] = v, j
		}
		return blocks(r, items), plain, asJSON
	}}
}

func nullable(r *rand.Rand, x Avro) Avro {
	null := r.IntN(2)
	schema := []any{"null", x.Schema}
	if null == 1 {
		schema = []any{x.Schema, "null"}
	}
	return Avro{schema, func(r *rand.Rand) ([]byte, any, any) {
		if r.IntN(3) == 0 {
			return Long(int64(null)), nil, nil
		}
		b, v, j := x.Value(r)
		return append(Long(int64(1-null)), b...), v, j
	}}
}

// union has several branches, so its column is JSON. Its plain value is marked as such.
func (t *Names) union(r *rand.Rand, depth int) Avro {
	record := t.Record(r, depth-1)
	branches := []Avro{
		{"null", func(*rand.Rand) ([]byte, any, any) { return nil, nil, nil }},
		list(t.Random(r, depth-1)),
		record,
		{"string", func(r *rand.Rand) ([]byte, any, any) { s := RandomText(r); return Text(s), s, s }},
	}
	r.Shuffle(len(branches), func(i, j int) { branches[i], branches[j] = branches[j], branches[i] })
	var schema []any
	for _, b := range branches {
		schema = append(schema, b.Schema)
	}
	return Avro{schema, func(r *rand.Rand) ([]byte, any, any) {
		i := r.IntN(len(branches))
		b, _, j := branches[i].Value(r)
		b = append(Long(int64(i)), b...)
		if branches[i].Schema == "null" {
			return b, nil, nil
		}
		if m, ok := branches[i].Schema.(map[string]any); ok && m["type"] == "record" {
			j = map[string]any{m["name"].(string): j}
		}
		return b, InJSON{j}, j
	}}
}
