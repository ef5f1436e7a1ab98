package parquetio

import (
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// Tokens of JSON text (RFC 8259). Functions that read return the position behind what they
// read; a token that is not JSON has a reason, and the position of the trouble.

const (
	reasonControl   = "text has a control character that is not escaped"
	reasonEscape    = "text has an escape that JSON does not know"
	reasonSurrogate = "text has half of a surrogate pair, which is no character"
	reasonNumber    = "number is not written as JSON demands"
	reasonValue     = "a JSON value is expected"
	reasonName      = "a property name in quotes is expected"
	reasonColon     = "a colon is expected"
	reasonNext      = "a comma or the end of the object or array is expected"
	reasonLong64    = "number does not fit 64 bits"
	reasonFraction  = "number is not an integer"
	reasonDouble    = "number is too large for its column"
	reasonDigits    = "number has more digits than its column"
)

// space skips white space.
func space(p []byte, i int) int {
	for i < len(p) && (p[i] == ' ' || p[i] == '\n' || p[i] == '\r' || p[i] == '\t') {
		i++
	}
	return i
}

const (
	ones = 0x0101010101010101
	tops = 0x8080808080808080
)

// zeros has the top bit of each byte of x that is zero, and perhaps of bytes above the first.
func zeros(x uint64) uint64 { return (x - ones) & ^x & tops }

// scanString reads the text that begins with the quote at i. Without a reason, p[i+1:end-1] is
// valid UTF-8 once its escapes are replaced, if it has any.
func scanString(p []byte, i int) (end int, escaped bool, reason string) {
	begin := i + 1
	var seen uint64 // tops of bytes that are not ASCII
	for i = begin; ; {
		for len(p)-i >= 8 {
			w := binary.LittleEndian.Uint64(p[i:])
			seen |= w & tops
			stop := zeros(w^'"'*ones) | zeros(w^'\\'*ones) | (w-0x20*ones)&^w&tops
			if stop != 0 {
				i += bits.TrailingZeros64(stop) >> 3
				break
			}
			i += 8
		}
		if i >= len(p) {
			return i, escaped, reasonShort
		}
		switch c := p[i]; {
		case c == '"':
			if seen != 0 && !utf8.Valid(p[begin:i]) {
				return begin - 1, escaped, reasonUTF8
			}
			return i + 1, escaped, ""
		case c == '\\':
			escaped = true
			n, reason := scanEscape(p[i:])
			if reason != "" {
				return i, escaped, reason
			}
			i += n
		case c < 0x20:
			return i, escaped, reasonControl
		default:
			seen |= uint64(c & 0x80)
			i++
		}
	}
}

// scanEscape returns the length of the escape that p begins with, both halves of a surrogate
// pair included.
func scanEscape(p []byte) (n int, reason string) {
	if len(p) < 2 {
		return 0, reasonShort
	}
	switch p[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2, ""
	case 'u':
		r := hexRune(p[2:])
		switch {
		case r < 0:
			return 0, reasonEscape
		case !utf16.IsSurrogate(r):
			return 6, ""
		case len(p) >= 12 && p[6] == '\\' && p[7] == 'u' && utf16.DecodeRune(r, hexRune(p[8:])) != utf8.RuneError:
			return 12, ""
		}
		return 0, reasonSurrogate
	}
	return 0, reasonEscape
}

// hexRune reads four hexadecimal digits; it returns -1 if there are none.
func hexRune(p []byte) rune {
	if len(p) < 4 {
		return -1
	}
	r := rune(0)
	for _, c := range p[:4] {
		d := hexDigit(c)
		if d > 15 {
			return -1
		}
		r = r<<4 | rune(d)
	}
	return r
}

var escapes = [256]byte{'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t', '"': '"', '\\': '\\', '/': '/'}

// appendUnescaped appends text, which scanString found good, with its escapes replaced.
func appendUnescaped(dst, text []byte) []byte {
	for i := 0; i < len(text); {
		c := text[i]
		switch {
		case c != '\\':
			dst = append(dst, c)
			i++
		case text[i+1] != 'u':
			dst = append(dst, escapes[text[i+1]])
			i += 2
		default:
			r := hexRune(text[i+2:])
			i += 6
			if utf16.IsSurrogate(r) {
				r = utf16.DecodeRune(r, hexRune(text[i+2:]))
				i += 6
			}
			dst = utf8.AppendRune(dst, r)
		}
	}
	return dst
}

// A number is the text of a JSON number, taken apart. Its value is ±mantissa × 10^exp, unless it
// is long.
type number struct {
	text     []byte
	mantissa uint64
	exp      int
	power    int // that the text states
	negative bool
	long     bool // has more digits than 64 bits surely hold
	fraction bool // has a point or an exponent
}

// maxExponent keeps exponents far from overflow. No text is long enough to bring a number with
// a larger one back to what a column holds.
const maxExponent = 1 << 40

// scanNumber reads the number at i.
func scanNumber(p []byte, i int) (n number, end int, reason string) {
	begin := i
	if i < len(p) && p[i] == '-' {
		n.negative = true
		i++
	}
	first := i
	for ; i < len(p) && p[i]-'0' < 10; i++ {
		n.mantissa = n.mantissa*10 + uint64(p[i]-'0')
	}
	digits := i - first
	if digits == 0 || p[first] == '0' && digits > 1 {
		return n, first, reasonNumber
	}
	if i < len(p) && p[i] == '.' {
		i++
		first = i
		for ; i < len(p) && p[i]-'0' < 10; i++ {
			n.mantissa = n.mantissa*10 + uint64(p[i]-'0')
		}
		if i == first {
			return n, i, reasonNumber
		}
		n.exp = first - i
		digits += i - first
		n.fraction = true
	}
	n.long = digits > 19
	if i < len(p) && (p[i] == 'e' || p[i] == 'E') {
		n.fraction = true
		i++
		minus := false
		if i < len(p) && (p[i] == '+' || p[i] == '-') {
			minus = p[i] == '-'
			i++
		}
		exp := 0
		first = i
		for ; i < len(p) && p[i]-'0' < 10; i++ {
			exp = min(exp*10+int(p[i]-'0'), maxExponent)
		}
		if i == first {
			return n, i, reasonNumber
		}
		if minus {
			exp = -exp
		}
		n.power = exp
		n.exp += exp
	}
	n.text = p[begin:i]
	return n, i, ""
}

// int64 returns n if it is an integer, however it is written, that fits.
func (n *number) int64() (v int64, reason string) {
	lo := n.mantissa
	if n.exp != 0 || n.long {
		var hi uint64
		if hi, lo, reason = n.scaled(0); reason != "" {
			return 0, reason
		}
		if hi != 0 {
			return 0, reasonLong64
		}
	}
	if n.negative {
		if lo > 1<<63 {
			return 0, reasonLong64
		}
		return -int64(lo), ""
	}
	if lo >= 1<<63 {
		return 0, reasonLong64
	}
	return int64(lo), ""
}

// scaled returns the magnitude of n × 10^scale as high and low word, if it is an integer.
func (n *number) scaled(scale int) (hi, lo uint64, reason string) {
	fits, zeros, exp := true, 0, n.power+scale
	point := false
	for _, c := range n.text {
		if c == 'e' || c == 'E' {
			break
		}
		if c == '-' || c == '.' {
			point = point || c == '.'
			continue
		}
		if point {
			exp--
		}
		if zeros++; c == '0' { // counts only if another digit follows
			continue
		}
		for ; zeros > 0 && hi|lo != 0 && fits; zeros-- {
			fits = timesTen(&hi, &lo)
		}
		zeros = 0
		var carry uint64
		lo, carry = bits.Add64(lo, uint64(c-'0'), 0)
		hi, carry = bits.Add64(hi, 0, carry)
		fits = fits && carry == 0
	}
	if hi|lo == 0 && fits {
		return 0, 0, ""
	}
	if exp += zeros; exp < 0 {
		return 0, 0, reasonFraction
	}
	for ; exp > 0 && fits; exp-- {
		fits = timesTen(&hi, &lo)
	}
	if !fits {
		return 0, 0, reasonLong64
	}
	return hi, lo, ""
}

// timesTen multiplies hi:lo by ten. It returns false if that does not fit.
func timesTen(hi, lo *uint64) bool {
	carry, low := bits.Mul64(*lo, 10)
	over, high := bits.Mul64(*hi, 10)
	high, more := bits.Add64(high, carry, 0)
	*hi, *lo = high, low
	return over|more == 0
}

// float64 returns the double nearest to n.
func (n *number) float64() (float64, bool) {
	if !n.long && n.mantissa < 1<<53 && n.exp >= -22 && n.exp <= 22 {
		// Both are exact, so that the one rounding is right.
		v := float64(n.mantissa)
		if n.exp < 0 {
			v /= tens[-n.exp]
		} else {
			v *= tens[n.exp]
		}
		if n.negative {
			v = -v
		}
		return v, true
	}
	v, err := strconv.ParseFloat(unsafe.String(unsafe.SliceData(n.text), len(n.text)), 64)
	return v, err == nil && !math.IsInf(v, 0)
}

var tens = [23]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22}

// literal returns the position behind word, which p has at i, or -1.
func literal(p []byte, i int, word string) int {
	if len(p)-i < len(word) || string(p[i:i+len(word)]) != word {
		return -1
	}
	return i + len(word)
}

// skipValue reads the value at i, whatever it is. typed says that it is, or holds, something
// other than null and empty arrays and objects.
func skipValue(p []byte, i, depth int) (end int, typed bool, reason string) {
	if i >= len(p) {
		return i, false, reasonShort
	}
	switch c := p[i]; c {
	case '"':
		end, _, reason = scanString(p, i)
		return end, true, reason
	case '{', '[':
		return skipItems(p, i, depth)
	case 't':
		end, typed = literal(p, i, "true"), true
	case 'f':
		end, typed = literal(p, i, "false"), true
	case 'n':
		end = literal(p, i, "null")
	default:
		if c != '-' && c-'0' > 9 {
			return i, false, reasonValue
		}
		_, end, reason = scanNumber(p, i)
		return end, true, reason
	}
	if end < 0 {
		return i, false, reasonValue
	}
	return end, typed, ""
}

// skipItems is skipValue for an array or object.
func skipItems(p []byte, i, depth int) (end int, typed bool, reason string) {
	if depth >= maxJSONDepth {
		return i, false, reasonDeep
	}
	object := p[i] == '{'
	i = space(p, i+1)
	if i < len(p) && (p[i] == '}' && object || p[i] == ']' && !object) {
		return i + 1, false, ""
	}
	for {
		if object {
			if i, reason = skipName(p, i); reason != "" {
				return i, false, reason
			}
		}
		var inner bool
		if i, inner, reason = skipValue(p, i, depth+1); reason != "" {
			return i, false, reason
		}
		typed = typed || inner
		i = space(p, i)
		switch {
		case i >= len(p):
			return i, false, reasonShort
		case p[i] == ',':
			i = space(p, i+1)
		case p[i] == '}' && object || p[i] == ']' && !object:
			return i + 1, typed, ""
		default:
			return i, false, reasonNext
		}
	}
}

// skipName reads a property name, and what is before its value.
func skipName(p []byte, i int) (end int, reason string) {
	if i >= len(p) {
		return i, reasonShort
	}
	if p[i] != '"' {
		return i, reasonName
	}
	if i, _, reason = scanString(p, i); reason != "" {
		return i, reason
	}
	return colon(p, i)
}

// colon reads what is between a property name and its value.
func colon(p []byte, i int) (end int, reason string) {
	if i = space(p, i); i >= len(p) {
		return i, reasonShort
	}
	if p[i] != ':' {
		return i, reasonColon
	}
	return space(p, i+1), ""
}

// appendCompact appends a JSON value, which skipValue found good, without the white space
// between its tokens.
func appendCompact(dst, value []byte) []byte {
	for i := 0; i < len(value); {
		switch c := value[i]; c {
		case ' ', '\n', '\r', '\t':
			i++
		case '"':
			end, _, _ := scanString(value, i)
			dst = append(dst, value[i:end]...)
			i = end
		default:
			dst = append(dst, c)
			i++
		}
	}
	return dst
}
