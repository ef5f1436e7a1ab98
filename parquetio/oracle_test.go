package parquetio

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hamba/avro/v2"
)

// A randomType makes values of one random Avro type: encoded, as [plain] would give them
// back from a file, and as they appear inside of JSON.
type randomType struct {
	schema any
	value  func(r *rand.Rand) (encoded []byte, plain any, json any)
}

// types numbers the named types of one schema.
type types struct{ n int }

func (t *types) name(prefix string) string { t.n++; return fmt.Sprintf("%s%d", prefix, t.n) }

func (t *types) random(r *rand.Rand, depth int) randomType {
	if depth > 0 && r.IntN(3) > 0 {
		switch r.IntN(5) {
		case 0:
			return t.record(r, depth)
		case 1:
			return list(t.random(r, depth-1))
		case 2:
			return mapOf(t.random(r, depth-1))
		case 3:
			return t.union(r, depth)
		default:
			return nullable(r, t.noUnion(r, depth-1))
		}
	}
	return t.primitive(r)
}

func (t *types) noUnion(r *rand.Rand, depth int) randomType {
	for {
		x := t.random(r, depth)
		if _, ok := x.schema.([]any); !ok {
			return x
		}
	}
}

func logicalOf(base, name string) map[string]any {
	return map[string]any{"type": base, "logicalType": name}
}

func (t *types) primitive(r *rand.Rand) randomType {
	anyLong := func(r *rand.Rand) int64 { return int64(r.Uint64()) >> r.IntN(64) }
	anyInt := func(r *rand.Rand) int64 { return int64(int32(r.Uint64()) >> r.IntN(32)) }
	iso := func(v int64) string { return time.UnixMicro(v).UTC().Format("2006-01-02T15:04:05.999999999") }
	longs := func(schema any, gen func(*rand.Rand) int64, convert func(int64) int64, asJSON func(int64) any) randomType {
		return randomType{schema, func(r *rand.Rand) ([]byte, any, any) {
			v := gen(r)
			return long(v), convert(v), asJSON(v)
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
		return randomType{"boolean", func(r *rand.Rand) ([]byte, any, any) {
			v := r.IntN(2)
			return []byte{byte(v)}, v == 1, v == 1
		}}
	case 1:
		return longs("int", anyInt, same, number)
	case 2:
		return longs("long", anyLong, same, number)
	case 3:
		return randomType{"float", func(r *rand.Rand) ([]byte, any, any) {
			v := math.Float32frombits(r.Uint32())
			return float(v), plainFloat(float64(v)), jsonFloat(float64(v), 32)
		}}
	case 4:
		return randomType{"double", func(r *rand.Rand) ([]byte, any, any) {
			v := math.Float64frombits(r.Uint64())
			return double(v), plainFloat(v), jsonFloat(v, 64)
		}}
	case 5, 6, 7:
		return randomType{"string", func(r *rand.Rand) ([]byte, any, any) {
			v := randomText(r)
			return text(v), v, v
		}}
	case 8:
		return randomType{"bytes", func(r *rand.Rand) ([]byte, any, any) {
			v := randomBytes(r, r.IntN(40))
			return append(long(int64(len(v))), v...), "0x" + hex.EncodeToString(v), base64.StdEncoding.EncodeToString(v)
		}}
	case 9:
		n := 1 + r.IntN(20)
		return randomType{map[string]any{"type": "fixed", "size": n, "name": t.name("Fixed")}, func(r *rand.Rand) ([]byte, any, any) {
			v := randomBytes(r, n)
			return v, "0x" + hex.EncodeToString(v), base64.StdEncoding.EncodeToString(v)
		}}
	case 10:
		symbols := []any{"A", "B", "C_3"}
		return randomType{map[string]any{"type": "enum", "symbols": symbols, "name": t.name("Enum")}, func(r *rand.Rand) ([]byte, any, any) {
			i := r.IntN(3)
			return long(int64(i)), symbols[i], symbols[i]
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
		return randomType{logicalOf("string", "uuid"), func(r *rand.Rand) ([]byte, any, any) {
			v := randomBytes(r, 16)
			u := string(appendUUID(nil, v))
			return text(u), "0x" + hex.EncodeToString(v), u
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
	return randomType{schema, func(r *rand.Rand) ([]byte, any, any) {
		v := new(big.Int).SetBytes(randomBytes(r, 1+r.IntN(16)))
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
			return append(long(int64(len(b))), b...), s, s
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

func randomText(r *rand.Rand) string {
	if r.IntN(2) == 0 {
		return []string{"", "a", "repeated value", "äöü", "日本語 text", "\x00\x1f\"\\"}[r.IntN(6)]
	}
	var b strings.Builder
	for range r.IntN(100) {
		b.WriteRune([]rune("abcdefgh XYZ09_ä€😀")[r.IntN(18)])
	}
	return b.String()
}

func randomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func (t *types) record(r *rand.Rand, depth int) randomType {
	var fields []any
	var inner []randomType
	for i := range r.IntN(5) {
		inner = append(inner, t.random(r, depth-1))
		fields = append(fields, map[string]any{"name": fmt.Sprintf("f%d", i), "type": inner[i].schema})
	}
	if fields == nil {
		fields = []any{}
	}
	return randomType{map[string]any{"type": "record", "name": t.name("Record"), "fields": fields}, func(r *rand.Rand) ([]byte, any, any) {
		var out []byte
		plain, asJSON := map[string]any{}, map[string]any{}
		for i, f := range inner {
			b, v, j := f.value(r)
			out = append(out, b...)
			plain[fmt.Sprintf("f%d", i)], asJSON[fmt.Sprintf("f%d", i)] = v, j
		}
		if len(inner) == 0 {
			plain[PresentField] = true
		}
		return out, plain, asJSON
	}}
}

// blocks encodes items in blocks as an encoder may: several, with and without a size.
func blocks(r *rand.Rand, items [][]byte) (out []byte) {
	for len(items) > 0 {
		n := 1 + r.IntN(len(items))
		body := cat(items[:n]...)
		if r.IntN(2) == 0 {
			out = append(out, cat(long(int64(-n)), long(int64(len(body))))...)
		} else {
			out = append(out, long(int64(n))...)
		}
		out = append(out, body...)
		items = items[n:]
	}
	return append(out, 0)
}

func list(item randomType) randomType {
	return randomType{map[string]any{"type": "array", "items": item.schema}, func(r *rand.Rand) ([]byte, any, any) {
		var items [][]byte
		plain, asJSON := []any{}, []any{}
		for range r.IntN(5) {
			b, v, j := item.value(r)
			items, plain, asJSON = append(items, b), append(plain, v), append(asJSON, j)
		}
		return blocks(r, items), plain, asJSON
	}}
}

func mapOf(item randomType) randomType {
	return randomType{map[string]any{"type": "map", "values": item.schema}, func(r *rand.Rand) ([]byte, any, any) {
		var items [][]byte
		plain, asJSON := map[string]any{}, map[string]any{}
		for i := range r.IntN(4) {
			b, v, j := item.value(r)
			key := fmt.Sprintf("k%d%s", i, randomText(r))
			items = append(items, append(text(key), b...))
			plain[key], asJSON[key] = v, j
		}
		return blocks(r, items), plain, asJSON
	}}
}

func nullable(r *rand.Rand, x randomType) randomType {
	null := r.IntN(2)
	schema := []any{"null", x.schema}
	if null == 1 {
		schema = []any{x.schema, "null"}
	}
	return randomType{schema, func(r *rand.Rand) ([]byte, any, any) {
		if r.IntN(3) == 0 {
			return long(int64(null)), nil, nil
		}
		b, v, j := x.value(r)
		return append(long(int64(1-null)), b...), v, j
	}}
}

// union has several branches, so its column is JSON. Its plain value is marked as such.
func (t *types) union(r *rand.Rand, depth int) randomType {
	record := t.record(r, depth-1)
	branches := []randomType{
		{"null", func(*rand.Rand) ([]byte, any, any) { return nil, nil, nil }},
		list(t.random(r, depth-1)),
		record,
		{"string", func(r *rand.Rand) ([]byte, any, any) { s := randomText(r); return text(s), s, s }},
	}
	r.Shuffle(len(branches), func(i, j int) { branches[i], branches[j] = branches[j], branches[i] })
	var schema []any
	for _, b := range branches {
		schema = append(schema, b.schema)
	}
	return randomType{schema, func(r *rand.Rand) ([]byte, any, any) {
		i := r.IntN(len(branches))
		b, _, j := branches[i].value(r)
		b = append(long(int64(i)), b...)
		if branches[i].schema == "null" {
			return b, nil, nil
		}
		if m, ok := branches[i].schema.(map[string]any); ok && m["type"] == "record" {
			j = map[string]any{m["name"].(string): j}
		}
		return b, inJSON{j}, j
	}}
}

type inJSON struct{ value any }

// resolve replaces expected JSON by the text of the row if that means the same.
func resolve(want, got any) any {
	switch w := want.(type) {
	case inJSON:
		s, _ := got.(string)
		d := json.NewDecoder(strings.NewReader(s))
		d.UseNumber()
		var v any
		if err := d.Decode(&v); err == nil && sameJSON(v, w.value) {
			return got
		}
		b, _ := json.Marshal(w.value)
		return string(b)
	case map[string]any:
		out, g := map[string]any{}, asMap(got)
		for k, v := range w {
			out[k] = resolve(v, g[k])
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
			out = append(out, resolve(v, x))
		}
		return out
	}
	return want
}

func sameJSON(a, b any) bool {
	if x, ok := a.(json.Number); ok {
		y, ok := b.(json.Number)
		if !ok {
			return false
		}
		if x == y {
			return true
		}
		f, _ := x.Float64()
		g, _ := y.Float64()
		return f == g && strings.ContainsAny(string(x)+string(y), ".e")
	}
	if x, ok := a.(map[string]any); ok {
		y, ok := b.(map[string]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for k := range x {
			if v, ok := y[k]; !ok || !sameJSON(x[k], v) {
				return false
			}
		}
		return true
	}
	if x, ok := a.([]any); ok {
		y, ok := b.([]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for i := range x {
			if !sameJSON(x[i], y[i]) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(a, b)
}

func asMap(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

// Random values of random schemas come back from the file as they went in, through small
// pages and row groups, and an independent decoder agrees that the bytes are Avro. A
// truncated copy of each record between them leaves no trace.
func TestRandomSchemasRoundTrip(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		names := &types{}
		root := names.record(r, 4)
		for len(root.schema.(map[string]any)["fields"].([]any)) == 0 {
			root = names.record(r, 4)
		}
		schema, err := json.Marshal(root.schema)
		if err != nil {
			t.Fatal(err)
		}
		reference := avro.MustParse(string(schema))
		rig := newRig(t, string(schema))
		w, err := NewWriter(rig.table, WriterConfig{Codec: []string{"", "gzip", "snappy", "brotli", "uncompressed"}[r.IntN(5)], PageBytes: 1 + int64(r.IntN(2000)), RowGroupBytes: 1 + int64(r.IntN(5000)), DictionaryBytes: 1 + int64(r.IntN(500))})
		if err != nil {
			t.Fatal(err)
		}
		var want []any
		for range 1 + r.IntN(4) {
			for range 1 + r.IntN(60) {
				payload, row, _ := root.value(r)
				if len(payload) > 0 {
					if err := rig.builder.Append(rig.decoder, payload[:r.IntN(len(payload))], RecordMeta{}); err == nil {
						t.Fatalf("seed %d: truncated record was accepted", seed)
					}
				}
				if err := rig.builder.Append(rig.decoder, payload, RecordMeta{}); err != nil {
					t.Fatalf("seed %d: %v\n%s", seed, err, schema)
				}
				var ignored any
				if err := avro.Unmarshal(reference, payload, &ignored); err != nil && !strings.Contains(err.Error(), "decimal") {
					t.Fatalf("seed %d: reference decoder: %v\n%s", seed, err, schema)
				}
				want = append(want, row)
			}
			batch := finish(t, rig.builder)
			if err := w.Write(batch); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			batch.Release()
		}
		f, err := w.Close()
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		got := readFile(t, f)
		if len(got) != len(want) {
			t.Fatalf("seed %d: %d rows, want %d", seed, len(got), len(want))
		}
		for i := range got {
			if diff := cmp.Diff(resolve(want[i], any(got[i])), any(got[i])); diff != "" {
				t.Fatalf("seed %d, row %d: %s\n%s", seed, i, diff, schema)
			}
		}
	}
}
