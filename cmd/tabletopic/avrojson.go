package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hamba/avro/v2"
)

// Plain JSON stands for Avro values as people write it: unions without their branch name
// (it is accepted), bytes and fixed as base64, timestamps as RFC 3339 text or as the number
// of units, dates as 2006-01-02, times as 15:04:05.999999, decimals as number or text.

// encodeJSON writes the Avro binary form of v, which comes from a json.Decoder with UseNumber.
func encodeJSON(w *avro.Writer, schema avro.Schema, v any, path string) error {
	if ref, ok := schema.(*avro.RefSchema); ok {
		schema = ref.Schema()
	}
	wrong := func(want string) error {
		return fmt.Errorf("%s: %s is no %s", pathOr(path), brief(v), want)
	}
	switch s := schema.(type) {
	case *avro.NullSchema:
		if v != nil {
			return wrong("null")
		}
		return nil
	case *avro.RecordSchema:
		return encodeRecord(w, s, v, path)
	case *avro.ArraySchema:
		list, ok := v.([]any)
		if !ok {
			return wrong("array")
		}
		if len(list) > 0 {
			w.WriteLong(int64(len(list)))
		}
		for i, item := range list {
			if err := encodeJSON(w, s.Items(), item, fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
		w.WriteLong(0)
		return nil
	case *avro.MapSchema:
		m, ok := v.(map[string]any)
		if !ok {
			return wrong("object")
		}
		if len(m) > 0 {
			w.WriteLong(int64(len(m)))
		}
		for _, k := range sortedKeys(m) {
			w.WriteString(k)
			if err := encodeJSON(w, s.Values(), m[k], join(path, k)); err != nil {
				return err
			}
		}
		w.WriteLong(0)
		return nil
	case *avro.UnionSchema:
		return encodeUnion(w, s, v, path)
	case *avro.EnumSchema:
		text, _ := v.(string)
		i := slices.Index(s.Symbols(), text)
		if i < 0 {
			return wrong("symbol of " + s.FullName() + " (" + strings.Join(s.Symbols(), ", ") + ")")
		}
		w.WriteInt(int32(i))
		return nil
	case *avro.FixedSchema:
		b, err := encodeBytes(s.Logical(), v, s.Size())
		if err != nil || len(b) != s.Size() {
			return wrong(fmt.Sprintf("fixed(%d) in base64", s.Size()))
		}
		_, err = w.Write(b)
		return err
	case *avro.PrimitiveSchema:
		return encodePrimitive(w, s, v, wrong)
	}
	return fmt.Errorf("%s: Avro type %s is not supported", pathOr(path), schema.Type())
}

func encodeRecord(w *avro.Writer, s *avro.RecordSchema, v any, path string) error {
	m, ok := v.(map[string]any)
	if !ok {
		return fmt.Errorf("%s: %s is no object for record %s", pathOr(path), brief(v), s.FullName())
	}
	seen := 0
	for _, f := range s.Fields() {
		item, ok := m[f.Name()]
		if ok {
			seen++
		} else if f.HasDefault() {
			var err error
			if item, err = plainDefault(f); err != nil {
				return err
			}
		} else if u, isUnion := f.Type().(*avro.UnionSchema); !isUnion || !u.Nullable() {
			return fmt.Errorf("%s: field is missing and has no default", join(path, f.Name()))
		}
		if err := encodeJSON(w, f.Type(), item, join(path, f.Name())); err != nil {
			return err
		}
	}
	if seen == len(m) {
		return nil
	}
	for _, k := range sortedKeys(m) {
		if !slices.ContainsFunc(s.Fields(), func(f *avro.Field) bool { return f.Name() == k }) {
			return fmt.Errorf("%s: record %s has no such field", join(path, k), s.FullName())
		}
	}
	return nil
}

// plainDefault returns the default of a field as decoded JSON.
func plainDefault(f *avro.Field) (any, error) {
	b, err := json.Marshal(f.Default())
	if err != nil {
		return nil, fmt.Errorf("default of %s: %w", f.Name(), err)
	}
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.UseNumber()
	var v any
	err = d.Decode(&v)
	return v, err
}

// encodeUnion takes the branch that v names, as Avro's JSON encoding does, or the first that fits.
func encodeUnion(w *avro.Writer, s *avro.UnionSchema, v any, path string) error {
	if m, ok := v.(map[string]any); ok && len(m) == 1 {
		for i, branch := range s.Types() {
			if inner, named := m[branchName(branch)]; named {
				w.WriteInt(int32(i))
				return encodeJSON(w, branch, inner, path)
			}
		}
	}
	var reasons []string
	for i, branch := range s.Types() {
		if v == nil && branch.Type() != avro.Null {
			continue
		}
		try := avro.NewWriter(nil, 64)
		if err := encodeJSON(try, branch, v, path); err != nil {
			reasons = append(reasons, err.Error())
			continue
		}
		w.WriteInt(int32(i))
		_, err := w.Write(try.Buffer())
		return err
	}
	return fmt.Errorf("%s: %s fits no branch of the union: %s", pathOr(path), brief(v), strings.Join(reasons, "; "))
}

func branchName(s avro.Schema) string {
	if named, ok := s.(avro.NamedSchema); ok {
		return named.FullName()
	}
	return string(s.Type())
}

func encodePrimitive(w *avro.Writer, s *avro.PrimitiveSchema, v any, wrong func(string) error) error {
	switch s.Type() {
	case avro.Boolean:
		b, ok := v.(bool)
		if !ok {
			return wrong("boolean")
		}
		w.WriteBool(b)
	case avro.Int, avro.Long:
		n, err := encodeInteger(s.Logical(), v)
		if err != nil || s.Type() == avro.Int && n != int64(int32(n)) {
			return wrong(describe(s))
		}
		if s.Type() == avro.Int {
			w.WriteInt(int32(n))
		} else {
			w.WriteLong(n)
		}
	case avro.Float, avro.Double:
		n, ok := v.(json.Number)
		f, err := n.Float64()
		if !ok || err != nil {
			return wrong("number")
		}
		if s.Type() == avro.Float {
			w.WriteFloat(float32(f))
		} else {
			w.WriteDouble(f)
		}
	case avro.String:
		text, ok := v.(string)
		if !ok {
			return wrong("string")
		}
		w.WriteString(text)
	case avro.Bytes:
		b, err := encodeBytes(s.Logical(), v, 0)
		if err != nil {
			return wrong("bytes in base64")
		}
		w.WriteBytes(b)
	case avro.Null:
		if v != nil {
			return wrong("null")
		}
	}
	return nil
}

func describe(s *avro.PrimitiveSchema) string {
	if s.Logical() != nil {
		return string(s.Type()) + " (" + string(s.Logical().Type()) + ")"
	}
	return string(s.Type())
}

// unitsPerSecond of the logical types that count time.
var unitsPerSecond = map[avro.LogicalType]int64{
	avro.TimestampMillis: 1e3, avro.TimestampMicros: 1e6,
	avro.LocalTimestampMillis: 1e3, avro.LocalTimestampMicros: 1e6,
	avro.TimeMillis: 1e3, avro.TimeMicros: 1e6,
}

func encodeInteger(logical avro.LogicalSchema, v any) (int64, error) {
	if n, ok := v.(json.Number); ok {
		return n.Int64()
	}
	text, ok := v.(string)
	if !ok || logical == nil {
		return 0, fmt.Errorf("not a number")
	}
	switch kind := logical.Type(); kind {
	case avro.Date:
		t, err := time.Parse(time.DateOnly, text)
		return t.Unix() / 86400, err
	case avro.TimeMillis, avro.TimeMicros:
		t, err := time.Parse("15:04:05.999999", text)
		if err != nil {
			return 0, err
		}
		midnight := time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, time.UTC)
		return int64(t.Sub(midnight)) / (1e9 / unitsPerSecond[kind]), nil
	case avro.TimestampMillis, avro.TimestampMicros:
		t, err := time.Parse(time.RFC3339Nano, text)
		return floorUnits(t, unitsPerSecond[kind]), err
	case avro.LocalTimestampMillis, avro.LocalTimestampMicros:
		t, err := time.Parse("2006-01-02T15:04:05.999999999", text)
		return floorUnits(t, unitsPerSecond[kind]), err
	}
	return 0, fmt.Errorf("not a number")
}

func floorUnits(t time.Time, perSecond int64) int64 {
	return t.Unix()*perSecond + int64(t.Nanosecond())/(1e9/perSecond)
}

// encodeBytes gives the two's complement of a decimal, in size bytes if size > 0, or decodes base64.
func encodeBytes(logical avro.LogicalSchema, v any, size int) ([]byte, error) {
	dec, ok := logical.(*avro.DecimalLogicalSchema)
	if !ok {
		text, ok := v.(string)
		if !ok {
			return nil, fmt.Errorf("not base64")
		}
		return base64.StdEncoding.DecodeString(text)
	}
	text, ok := v.(string)
	if n, isNumber := v.(json.Number); isNumber {
		text, ok = n.String(), true
	}
	r, parsed := new(big.Rat).SetString(text)
	if !ok || !parsed {
		return nil, fmt.Errorf("not a decimal")
	}
	r.Mul(r, new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(dec.Scale())), nil)))
	if !r.IsInt() || len(new(big.Int).Abs(r.Num()).String()) > dec.Precision() {
		return nil, fmt.Errorf("does not fit decimal(%d,%d)", dec.Precision(), dec.Scale())
	}
	return twosComplement(r.Num(), size), nil
}

func twosComplement(n *big.Int, size int) []byte {
	if size == 0 {
		size = n.BitLen()/8 + 1
	}
	mod := new(big.Int).Lsh(big.NewInt(1), uint(size)*8)
	return new(big.Int).Mod(n, mod).FillBytes(make([]byte, size))
}

// appendJSON reads one Avro value and appends its JSON.
func appendJSON(dst []byte, r *avro.Reader, schema avro.Schema) []byte {
	if ref, ok := schema.(*avro.RefSchema); ok {
		schema = ref.Schema()
	}
	switch s := schema.(type) {
	case *avro.RecordSchema:
		dst = append(dst, '{')
		for i, f := range s.Fields() {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendText(dst, f.Name()), ':')
			dst = appendJSON(dst, r, f.Type())
		}
		return append(dst, '}')
	case *avro.ArraySchema:
		dst = append(dst, '[')
		first := true
		r.ReadArrayCB(func(r *avro.Reader) bool {
			if !first {
				dst = append(dst, ',')
			}
			first = false
			dst = appendJSON(dst, r, s.Items())
			return r.Error == nil
		})
		return append(dst, ']')
	case *avro.MapSchema:
		dst = append(dst, '{')
		first := true
		r.ReadMapCB(func(r *avro.Reader, key string) bool {
			if !first {
				dst = append(dst, ',')
			}
			first = false
			dst = append(appendText(dst, key), ':')
			dst = appendJSON(dst, r, s.Values())
			return r.Error == nil
		})
		return append(dst, '}')
	case *avro.UnionSchema:
		i := r.ReadLong()
		if i < 0 || i >= int64(len(s.Types())) {
			r.ReportError("union", fmt.Sprintf("branch %d of %d", i, len(s.Types())))
			return dst
		}
		return appendJSON(dst, r, s.Types()[i])
	case *avro.EnumSchema:
		i := r.ReadInt()
		if i < 0 || int(i) >= len(s.Symbols()) {
			r.ReportError("enum", fmt.Sprintf("symbol %d of %d", i, len(s.Symbols())))
			return dst
		}
		return appendText(dst, s.Symbols()[i])
	case *avro.FixedSchema:
		b := make([]byte, s.Size())
		r.Read(b)
		return appendBytes(dst, s.Logical(), b)
	case *avro.NullSchema:
		return append(dst, "null"...)
	case *avro.PrimitiveSchema:
		return appendPrimitive(dst, r, s)
	}
	r.ReportError("json", fmt.Sprintf("Avro type %s", schema.Type()))
	return dst
}

func appendPrimitive(dst []byte, r *avro.Reader, s *avro.PrimitiveSchema) []byte {
	switch s.Type() {
	case avro.Boolean:
		return strconv.AppendBool(dst, r.ReadBool())
	case avro.Int:
		return appendInteger(dst, s.Logical(), int64(r.ReadInt()))
	case avro.Long:
		return appendInteger(dst, s.Logical(), r.ReadLong())
	case avro.Float:
		return appendFloat(dst, float64(r.ReadFloat()), 32)
	case avro.Double:
		return appendFloat(dst, r.ReadDouble(), 64)
	case avro.Bytes:
		return appendBytes(dst, s.Logical(), r.ReadBytes())
	case avro.String:
		return appendText(dst, r.ReadString())
	}
	return append(dst, "null"...)
}

func appendInteger(dst []byte, logical avro.LogicalSchema, n int64) []byte {
	if logical == nil {
		return strconv.AppendInt(dst, n, 10)
	}
	kind := logical.Type()
	per := unitsPerSecond[kind]
	switch kind {
	case avro.Date:
		return time.Unix(n*86400, 0).UTC().AppendFormat(dst, `"2006-01-02"`)
	case avro.TimeMillis, avro.TimeMicros:
		return time.Unix(0, n*(1e9/per)).UTC().AppendFormat(dst, `"15:04:05.999999"`)
	case avro.TimestampMillis, avro.TimestampMicros:
		return timeOf(n, per).AppendFormat(dst, `"2006-01-02T15:04:05.999999Z"`)
	case avro.LocalTimestampMillis, avro.LocalTimestampMicros:
		return timeOf(n, per).AppendFormat(dst, `"2006-01-02T15:04:05.999999"`)
	}
	return strconv.AppendInt(dst, n, 10)
}

func timeOf(n, perSecond int64) time.Time {
	seconds := n / perSecond
	if n%perSecond < 0 {
		seconds--
	}
	return time.Unix(seconds, (n-seconds*perSecond)*(1e9/perSecond)).UTC()
}

func appendFloat(dst []byte, f float64, bits int) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(append(append(dst, '"'), strconv.FormatFloat(f, 'g', -1, bits)...), '"')
	}
	return strconv.AppendFloat(dst, f, 'g', -1, bits)
}

func appendBytes(dst []byte, logical avro.LogicalSchema, b []byte) []byte {
	dec, ok := logical.(*avro.DecimalLogicalSchema)
	if !ok {
		dst = append(dst, '"')
		return append(base64.StdEncoding.AppendEncode(dst, b), '"')
	}
	n := new(big.Int).SetBytes(b)
	if len(b) > 0 && b[0]&0x80 != 0 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(len(b))*8))
	}
	scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(dec.Scale())), nil)
	return append(dst, new(big.Rat).SetFrac(n, scale).FloatString(dec.Scale())...)
}

func appendText(dst []byte, s string) []byte {
	b, _ := json.Marshal(s) // a string always marshals
	return append(dst, b...)
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func pathOr(path string) string {
	if path == "" {
		return "value"
	}
	return path
}

// brief is v as JSON, short enough for an error.
func brief(v any) string {
	b, _ := json.Marshal(v) // v came from JSON
	if len(b) > 60 {
		return string(b[:57]) + "..."
	}
	return string(b)
}
