package parquetiotest

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// InJSON is an expected value that a column holds as JSON text.
type InJSON struct{ Value any }

// Resolve replaces expected JSON by the text of the row if that means the same.
func Resolve(want, got any) any {
	switch w := want.(type) {
	case InJSON:
		s, _ := got.(string)
		d := json.NewDecoder(strings.NewReader(s))
		d.UseNumber()
		var v any
		if err := d.Decode(&v); err == nil && sameJSON(v, w.Value) {
			return got
		}
		b, _ := json.Marshal(w.Value)
		return string(b)
	case map[string]any:
		out, g := map[string]any{}, AsMap(got)
		for k, v := range w {
			out[k] = Resolve(v, g[k])
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
			out = append(out, Resolve(v, x))
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

func AsMap(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

// Plain returns a value in a form that compares: integers as int64, micros since 1970 for
// timestamps, text for decimals and UUIDs, hex for bytes, bits for floats.
func Plain(a arrow.Array, i int) any {
	if a.IsNull(i) {
		return nil
	}
	switch a := a.(type) {
	case array.ExtensionArray:
		return Plain(a.Storage(), i)
	case *array.Boolean:
		return a.Value(i)
	case *array.Int32:
		return int64(a.Value(i))
	case *array.Int64:
		return a.Value(i)
	case *array.Float32:
		return plainFloat(float64(a.Value(i)))
	case *array.Float64:
		return plainFloat(a.Value(i))
	case *array.Date32:
		return int64(a.Value(i))
	case *array.Time64:
		return int64(a.Value(i))
	case *array.Timestamp:
		return int64(a.Value(i))
	case *array.String:
		return a.Value(i)
	case *array.Binary:
		return "0x" + hex.EncodeToString(a.Value(i))
	case *array.FixedSizeBinary:
		return "0x" + hex.EncodeToString(a.Value(i))
	case *array.Decimal128:
		return a.Value(i).ToString(a.DataType().(*arrow.Decimal128Type).Scale)
	case *array.Struct:
		out := map[string]any{}
		for k, f := range a.DataType().(*arrow.StructType).Fields() {
			out[f.Name] = Plain(a.Field(k), i)
		}
		return out
	case *array.Map:
		from, to := a.ValueOffsets(i)
		out := map[string]any{}
		for k := from; k < to; k++ {
			out[fmt.Sprint(Plain(a.Keys(), int(k)))] = Plain(a.Items(), int(k))
		}
		return out
	case *array.List:
		from, to := a.ValueOffsets(i)
		out := []any{}
		for k := from; k < to; k++ {
			out = append(out, Plain(a.ListValues(), int(k)))
		}
		return out
	}
	return fmt.Sprintf("%T", a)
}

func plainFloat(v float64) any {
	if math.IsNaN(v) {
		return "NaN"
	}
	return v
}

// Encoding by hand, so that tests can write what no encoder would.

func Long(v int64) []byte     { return binary.AppendVarint(nil, v) }
func Text(s string) []byte    { return append(Long(int64(len(s))), s...) }
func Double(v float64) []byte { return binary.LittleEndian.AppendUint64(nil, math.Float64bits(v)) }
func Float(v float32) []byte  { return binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)) }
