package parquetio

import (
	"encoding/hex"
	"math"
	"reflect"
	"time"

	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/iceberg-go"
)

// maxExactDefault is the largest integer that a default may be: iceberg-go reads those of metadata
// as doubles, and so would write others back as another number.
const maxExactDefault = 1 << 53

// defaultOf returns the default of an Avro field as the JSON of a column's initial-default (Iceberg
// spec, "JSON single-value serialization") as encoding/json decodes it, so that it is the same
// after it was read. It is nil for null, for what is no scalar, and for what JSON does not hold.
func defaultOf(n *node, t iceberg.Type, fallback any) any {
	if fallback == nil {
		return nil
	}
	if n.kind == wireUnion {
		if n, _ = n.single(); n == nil {
			return nil
		}
	}
	var number int64
	var raw []byte
	switch v := fallback.(type) {
	case bool:
		return v
	case int:
		number = int64(v)
	case int64:
		number = v
	case float32:
		return float64(v)
	case float64:
		return v
	case string:
		return textDefault(n, v)
	case []byte:
		raw = v
	default: // an array of bytes
		a := reflect.ValueOf(fallback)
		if a.Kind() != reflect.Array || a.Type().Elem().Kind() != reflect.Uint8 {
			return nil
		}
		raw = make([]byte, a.Len())
		reflect.Copy(reflect.ValueOf(raw), a)
	}
	switch t := t.(type) {
	case iceberg.Int32Type, iceberg.Int64Type:
		if number < -maxExactDefault || number > maxExactDefault {
			return nil
		}
		return float64(number)
	case iceberg.DateType, iceberg.TimeType, iceberg.TimestampType, iceberg.TimestampTzType, iceberg.TimestampNsType, iceberg.TimestampTzNsType:
		return timeDefault(n, t, number)
	case iceberg.DecimalType:
		if hi, lo, ok := int128(raw); ok {
			return string(appendDecimal(nil, hi, lo, t.Scale()))
		}
	case iceberg.UUIDType:
		return string(appendUUID(nil, raw))
	case iceberg.FixedType, iceberg.BinaryType:
		return hex.EncodeToString(raw)
	}
	return nil
}

func textDefault(n *node, text string) any {
	switch n.logical {
	case logicalUUID:
		u, ok := parseUUID([]byte(text))
		if !ok {
			return nil
		}
		return string(appendUUID(nil, u[:]))
	case logicalZoned:
		t, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return nil
		}
		return t.UTC().Truncate(time.Microsecond).Format("2006-01-02T15:04:05.999999+00:00")
	}
	return text
}

// timeDefault writes a number of a logical type as the text of ISO 8601, if its year has four digits.
func timeDefault(n *node, t iceberg.Type, v int64) any {
	var at time.Time
	switch n.logical {
	case logicalDate:
		at = time.Unix(v*86400, 0)
	case logicalTimeMillis, logicalTimestampMillis, logicalLocalMillis:
		at = time.UnixMilli(v)
	case logicalTimeMicros, logicalTimestampMicros, logicalLocalMicros:
		at = time.UnixMicro(v)
	case logicalTimeNanos, logicalTimestampNanos, logicalLocalNanos:
		at = time.Unix(0, v)
	}
	at = at.UTC()
	if at.Year() < 1 || at.Year() > 9999 {
		return nil
	}
	switch t.(type) {
	case iceberg.DateType:
		return at.Format(time.DateOnly)
	case iceberg.TimeType:
		if v < 0 || at.Year() > 1970 || at.YearDay() > 1 {
			return nil
		}
		return at.Truncate(time.Microsecond).Format("15:04:05.000000")
	case iceberg.TimestampType:
		return at.Truncate(time.Microsecond).Format("2006-01-02T15:04:05.000000")
	case iceberg.TimestampTzType:
		return at.Truncate(time.Microsecond).Format("2006-01-02T15:04:05.000000+00:00")
	case iceberg.TimestampNsType:
		return at.Format("2006-01-02T15:04:05.000000000")
	}
	return at.Format("2006-01-02T15:04:05.000000000+00:00")
}

// A constant is a value of a column, in the form of its kind.
type constant struct {
	bit  bool
	i32  int32
	i64  int64
	data []byte
}

// fillOf reads the write-default of a column, whoever set it. It is nil if there is none, and for one
// that is not of the type.
func fillOf(t iceberg.Type, value any) *constant {
	switch v := value.(type) {
	case bool:
		if _, ok := t.(iceberg.BooleanType); ok {
			return &constant{bit: v}
		}
	case float64:
		whole := v == math.Trunc(v)
		switch t.(type) {
		case iceberg.Int32Type:
			if whole && v >= math.MinInt32 && v <= math.MaxInt32 {
				return &constant{i32: int32(v)}
			}
		case iceberg.Int64Type:
			if whole && v >= math.MinInt64 && v < math.MaxInt64 {
				return &constant{i64: int64(v)}
			}
		case iceberg.Float32Type:
			return &constant{i32: int32(math.Float32bits(float32(v)))}
		case iceberg.Float64Type:
			return &constant{i64: int64(math.Float64bits(v))}
		}
	case string:
		return textFill(t, v)
	}
	return nil
}

func textFill(t iceberg.Type, text string) *constant {
	micros := func(op opcode) *constant {
		if v, reason := isoMicros(op, text); reason == "" {
			return &constant{i64: v}
		}
		return nil
	}
	nanos := func(layout string) *constant {
		at, err := time.Parse(layout, text)
		if err != nil || at.Year() < 1678 || at.Year() > 2261 {
			return nil
		}
		return &constant{i64: at.UnixNano()}
	}
	switch t := t.(type) {
	case iceberg.StringType:
		return &constant{data: []byte(text)}
	case iceberg.DateType:
		if at, err := time.Parse(time.DateOnly, text); err == nil {
			return &constant{i32: int32(floorDiv(at.Unix(), 86400))}
		}
	case iceberg.TimeType:
		return micros(opTimeText)
	case iceberg.TimestampType:
		return micros(opLocalText)
	case iceberg.TimestampTzType:
		return micros(opZoned)
	case iceberg.TimestampNsType:
		return nanos("2006-01-02T15:04:05.999999999")
	case iceberg.TimestampTzNsType:
		return nanos(time.RFC3339Nano)
	case iceberg.UUIDType:
		if u, ok := parseUUID([]byte(text)); ok {
			return &constant{data: u[:]}
		}
	case iceberg.BinaryType:
		if data, err := hex.DecodeString(text); err == nil {
			return &constant{data: data}
		}
	case iceberg.FixedType:
		if data, err := hex.DecodeString(text); err == nil && len(data) == t.Len() {
			return &constant{data: data}
		}
	case iceberg.DecimalType:
		if v, err := decimal128.FromString(text, int32(t.Precision()), int32(t.Scale())); err == nil {
			c := column{}
			c.appendDecimal(uint64(v.HighBits()), v.LowBits(), false)
			return &constant{data: c.data}
		}
	}
	return nil
}
