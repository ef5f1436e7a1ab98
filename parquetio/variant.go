package parquetio

import (
	"github.com/apache/arrow-go/v18/arrow/decimal"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/parquet/variant"
	"github.com/apache/iceberg-go"
)

// maxVariantBytes bounds value and metadata of one variant, each: Spark reads none that is larger.
const maxVariantBytes = 16 << 20

const reasonVariant = "value is longer than 16 MiB as a variant"

// isVariant reports whether the column holds variants: a struct of the bytes of their metadata and
// of their value (Parquet format, "Variant Binary Encoding"), not shredded.
func (c *column) isVariant() bool {
	_, ok := c.typ.(iceberg.VariantType)
	return ok
}

// jsonTo returns what the JSON text of a value for c is appended to: the text itself is the value,
// or becomes a variant.
func (b *Builder) jsonTo(c *column) []byte {
	if c.isVariant() {
		return b.folding[:0]
	}
	return c.data
}

// endJSON ends the value of the column at col: its text, which is JSON that is well-formed, is the
// end of dst.
func (b *Builder) endJSON(col int, dst []byte, at int) bool {
	c := &b.cols[col]
	if c.isVariant() {
		if b.folding = dst; cap(dst) > 1<<20 {
			b.folding = nil
		}
		return b.variant(c, dst, at)
	}
	if len(dst) > b.limit {
		return b.fail(ErrFull) >= 0
	}
	c.data = dst
	c.offsets = append(c.offsets, int32(len(c.data)))
	c.present()
	return true
}

// variant appends JSON text as a variant.
func (b *Builder) variant(c *column, text []byte, at int) bool {
	w := variantWriter{p: text}
	w.out.SetAllowDuplicates(true) // the last counts
	w.value(0)
	v, err := w.out.Build()
	if err != nil || w.err != nil || len(v.Bytes()) > maxVariantBytes || len(v.Metadata().Bytes()) > maxVariantBytes {
		return b.failed(c.kids[0]-1, at, reasonVariant) >= 0
	}
	c.present()
	return b.blob(c.kids[0], v.Metadata().Bytes()) && b.blob(c.kids[1], v.Bytes())
}

// A variantWriter turns JSON that is well-formed into a variant.
type variantWriter struct {
	p   []byte
	out variant.Builder // of one variant: in arrow-go 18.8, what Reset leaves behind makes the next one longer
	err error           // there is too much of something
}

// value appends the value at i, and returns the position behind it.
func (w *variantWriter) value(i int) int {
	i = space(w.p, i)
	if w.err != nil {
		return len(w.p)
	}
	switch w.p[i] {
	case '{':
		return w.object(i)
	case '[':
		return w.array(i)
	case '"':
		text, end := w.string(i)
		w.err = w.out.AppendString(text)
		return end
	case 't', 'f':
		yes := w.p[i] == 't'
		w.err = w.out.AppendBool(yes)
		if yes {
			return i + len("true")
		}
		return i + len("false")
	case 'n':
		w.err = w.out.AppendNull()
		return i + len("null")
	}
	return w.number(i)
}

func (w *variantWriter) object(i int) int {
	start := w.out.Offset()
	var fields []variant.FieldEntry
	for i = space(w.p, i+1); w.p[i] != '}'; {
		name, end := w.string(i)
		i, _ = colon(w.p, end)
		fields = append(fields, w.out.NextField(start, name))
		if i = w.value(i); w.err != nil {
			return i
		}
		if i = space(w.p, i); w.p[i] == ',' {
			i = space(w.p, i+1)
		}
	}
	w.err = w.out.FinishObject(start, fields)
	return i + 1
}

func (w *variantWriter) array(i int) int {
	start := w.out.Offset()
	var offsets []int
	for i = space(w.p, i+1); w.p[i] != ']'; {
		offsets = append(offsets, w.out.NextElement(start))
		if i = w.value(i); w.err != nil {
			return i
		}
		if i = space(w.p, i); w.p[i] == ',' {
			i = space(w.p, i+1)
		}
	}
	w.err = w.out.FinishArray(start, offsets)
	return i + 1
}

func (w *variantWriter) string(i int) (text string, end int) {
	end, escaped, _ := scanString(w.p, i)
	if escaped {
		return string(appendUnescaped(nil, w.p[i+1:end-1])), end
	}
	return string(w.p[i+1 : end-1]), end
}

// number appends an integer of up to 38 digits as it is, and any other number as a double, or as its
// text if it is beyond a double.
func (w *variantWriter) number(i int) int {
	n, end, _ := scanNumber(w.p, i)
	text := string(w.p[i:end])
	if !n.fraction {
		if v, reason := n.int64(); reason == "" {
			w.err = w.out.AppendInt(v)
			return end
		}
		if v, err := decimal128.FromString(text, 38, 0); err == nil {
			w.err = w.out.AppendDecimal16(0, decimal.Decimal128(v))
			return end
		}
	}
	if v, ok := n.float64(); ok {
		w.err = w.out.AppendFloat64(v)
	} else {
		w.err = w.out.AppendString(text)
	}
	return end
}
