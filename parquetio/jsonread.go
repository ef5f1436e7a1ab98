package parquetio

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"time"
	"unsafe"

	"github.com/apache/iceberg-go"
)

// ErrLacksColumn says that a plain JSON record has a property with a value for which the table
// has no column. It is no fault of the record: see [JSONInference].
var ErrLacksColumn = errors.New("table lacks a column for a property of the record")

// A jsonProgram reads JSON text into columns as it comes: nothing is kept of a record but where
// the reader is.
type jsonProgram struct {
	root jsonRecord
	// whole is the field that takes a record that is no object, and of a schema that is no
	// object every record. nil if there is none.
	whole  *jsonValue
	field  int  // of root, that whole is
	always bool // whole takes objects, too
	grows  bool // plain JSON: unknown properties become columns
}

// A jsonRecord is the properties of an object that have columns.
type jsonRecord struct {
	fields  []jsonField
	index   map[string]int // by name, into fields
	folded  map[string]int // by name, its case folded; nil if the case of names counts
	others  map[int][]int  // the fields x__v2, x__v3 and so on of a field, for what its column does not hold
	rest    []int          // columns that no property fills
	present int            // column that says that there is an object without fields; -1 if there is none
}

type jsonField struct {
	quoted string // name as most writers write it, in quotes
	jsonValue
}

// A jsonValue says which column takes a value, and how.
type jsonValue struct {
	op     opcode
	col    int // -1 if none
	record *jsonRecord
	// of lists and maps
	item  *jsonValue
	key   int // column of the keys
	cells int // values that an item puts into columns
	// of decimals
	limit [2]uint64
	scale int
}

// A jsonSchema is the writer of JSON records.
type jsonSchema struct {
	root   *node // a record
	single bool  // whose one field takes all of a value
	plain  bool  // made of the table's own columns, for records without a schema
}

func (s jsonSchema) compile(t *target) (program, error) {
	c := jsonCompiler{target: t, plain: s.plain}
	p := &jsonProgram{grows: s.plain, always: s.single}
	p.root = *c.record(s.root, t.top)
	if c.err != nil {
		return nil, c.err
	}
	if at, ok := p.root.index[rootColumn]; ok && (s.single || s.plain) {
		p.whole, p.field = &p.root.fields[at].jsonValue, at
	}
	return p, nil
}

type jsonCompiler struct {
	*target
	plain bool
	err   error
}

// record binds the fields of n to the columns kids.
func (c *jsonCompiler) record(n *node, kids []int) *jsonRecord {
	r := &jsonRecord{index: make(map[string]int, len(n.fields)), present: -1}
	if c.plain {
		r.folded = make(map[string]int, len(n.fields))
	}
	names := make([]string, len(n.fields))
	for i, f := range n.fields {
		names[i] = f.name
	}
	columns, rest := c.bind(names, kids)
	for i, f := range n.fields {
		value := jsonValue{op: opNothing, col: -1}
		if columns[i] >= 0 {
			value = c.value(f.node, columns[i])
		}
		r.index[f.name] = i
		if c.plain {
			r.folded[foldCase(f.name)] = i
		}
		r.fields = append(r.fields, jsonField{string(appendQuoted(nil, []byte(f.name))), value})
	}
	for i := range n.fields {
		if c.plain && columns[i] >= 0 {
			for _, former := range c.mapping.Former[c.cols[columns[i]].id] {
				c.also(r, former, i)
			}
		}
	}
	if c.plain && c.mapping.NewColumns {
		r.others = map[int][]int{}
		for i, f := range n.fields {
			for k := 2; ; k++ {
				other, ok := r.folded[foldCase(another(f.name, k))]
				if !ok || columns[other] < 0 {
					break
				}
				r.others[i] = append(r.others[i], other)
			}
		}
	}
	for _, k := range rest {
		if len(rest) == len(kids) && c.cols[k].name == PresentField && c.cols[k].kind == columnBit {
			r.present = k
			continue
		}
		if c.cols[k].required {
			c.fail(k, "is required, and the writer lacks it")
		}
		r.rest = append(r.rest, k)
	}
	return r
}

// also finds field i by a name that it had before, if no other has the name.
func (c *jsonCompiler) also(r *jsonRecord, name string, i int) {
	if _, taken := r.folded[foldCase(name)]; !taken {
		r.index[name], r.folded[foldCase(name)] = i, i
	}
}

func (c *jsonCompiler) fail(col int, format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("column %s: %w", c.cols[col].path, fmt.Errorf(format, args...))
	}
}

func (c *jsonCompiler) value(n *node, col int) jsonValue {
	for n.kind == wireUnion {
		n, _ = n.single()
	}
	column := &c.cols[col]
	v := jsonValue{col: col}
	switch t := column.typ.(type) {
	case *iceberg.StructType:
		if n.kind == wireRecord {
			v.op, v.record = opStruct, c.record(n, column.kids)
		}
	case *iceberg.ListType:
		if n.kind == wireArray {
			v.op = opList
			c.item(&v, n, column.kids[0])
		}
	case *iceberg.MapType:
		if n.kind == wireMap {
			v.op, v.key = opMap, column.kids[0]
			c.item(&v, n, column.kids[1])
		}
	case iceberg.DecimalType:
		if n.logical == logicalDecimal && n.scale == t.Scale() {
			v.op, v.limit, v.scale = opDecimalNumber, powerOfTen(t.Precision()), n.scale
		}
	default:
		v.op = jsonPrimitiveOp(n, t)
	}
	if v.op == opNothing && n.kind != wireNull {
		c.fail(col, "is %s, which does not hold the writer's value", column.typ)
	}
	return v
}

func (c *jsonCompiler) item(v *jsonValue, n *node, col int) {
	item := c.value(n.item, col)
	v.item = &item
	for i := col; i < c.cols[col].end; i++ {
		v.cells += 1 + c.cols[i].width/8
	}
}

func jsonPrimitiveOp(n *node, t iceberg.Type) opcode {
	op := primitiveOp(n, t)
	switch {
	case t.Equals(iceberg.PrimitiveTypes.String):
		switch n.kind {
		case wireText:
			return opText
		case wireAny, wireArray, wireMap:
			return opJSON
		}
	case n.kind == wireBytes && op == opBytes:
		return opBase64
	case n.kind != wireString, op == opTimeString:
	case n.logical == logicalDate:
		return opDateText
	case n.logical == logicalTimeMicros:
		return opTimeText
	case n.logical == logicalLocalMicros:
		return opLocalText
	}
	return op
}

func (j *jsonProgram) decode(b *Builder, p []byte) bool {
	d := jsonReader{b: b, p: p, grows: j.grows}
	if len(p) >= 3 && p[0] == 0xef && p[1] == 0xbb && p[2] == 0xbf {
		return b.failed(-1, 0, "text begins with a byte order mark, which JSON must not have") >= 0
	}
	i := space(p, 0)
	switch {
	case i == len(p):
		i = b.failed(-1, i, "there is no JSON text")
	case p[i] == '{' && !j.always:
		i = d.object(&j.root, b.rows, i)
	default:
		i = d.whole(j, i)
	}
	if i < 0 {
		return false
	}
	if i = space(p, i); i != len(p) {
		return b.failed(-1, i, fmt.Sprintf("%d bytes are left over", len(p)-i)) >= 0
	}
	return true
}

// A jsonReader reads one record. Its methods return the position behind what they read, or -1
// with b.bad or b.err set.
type jsonReader struct {
	b     *Builder
	p     []byte
	grows bool
}

func (d *jsonReader) failed(col, at int, reason string) int { return d.b.failed(col, at, reason) }

// whole reads a record that is one value.
func (d *jsonReader) whole(j *jsonProgram, i int) int {
	at := i
	switch {
	case j.whole != nil && j.whole.col >= 0:
		if i = d.value(j.whole, at); i < 0 && !j.always {
			i = d.other(&j.root, j.field, d.b.rows, at)
		}
		if i < 0 {
			return -1
		}
	case d.p[i] == 'n' || j.whole != nil:
		if i = d.nothing(-1, i); i < 0 {
			return -1
		}
	default:
		end, typed, reason := skipValue(d.p, i, 0)
		if reason != "" {
			return d.failed(-1, end, reason)
		}
		if !d.grows {
			return d.failed(-1, i, "record is "+kindOf(d.p[i])+", and its schema says that it is an object")
		}
		if typed {
			return d.b.fail(ErrLacksColumn)
		}
		i = end
	}
	return d.absent(&j.root, d.b.rows, at, i)
}

// object reads an object into columns that have start values each.
func (d *jsonReader) object(r *jsonRecord, start, i int) int {
	b, p, open := d.b, d.p, i
	next, filled := 0, 0
	i = space(p, i+1)
	if i < len(p) && p[i] == '}' {
		return d.absent(r, start, open, i+1)
	}
	for {
		var f int
		var reason string
		at := i
		if next < len(r.fields) { // most writers keep the order of their schema
			f, i = next, literal(p, at, r.fields[next].quoted)
		}
		if i < 0 || next == len(r.fields) {
			if f, i, reason = d.name(r, at); reason != "" {
				return d.failed(-1, i, reason)
			}
		}
		if i, reason = colon(p, i); reason != "" {
			return d.failed(-1, i, reason)
		}
		if f < 0 {
			var typed bool
			if i, typed, reason = skipValue(p, i, 0); reason != "" {
				return d.failed(-1, i, reason)
			}
			if typed && d.grows {
				return b.fail(ErrLacksColumn)
			}
		} else {
			next = f + 1
			v := &r.fields[f].jsonValue
			switch {
			case v.col < 0:
			case b.cols[v.col].n == start:
				filled++
			case d.again(r, f, start, open, at) < 0:
				return -1
			}
			from := i
			if i = d.value(v, from); i < 0 {
				if i = d.other(r, f, start, from); i < 0 {
					return -1
				}
			}
		}
		i = space(p, i)
		if i >= len(p) {
			return d.failed(-1, i, reasonShort)
		}
		if p[i] == '}' {
			break
		}
		if p[i] != ',' {
			return d.failed(-1, i, reasonNext)
		}
		i = space(p, i+1)
	}
	if filled == len(r.fields) && len(r.rest) == 0 && r.present < 0 {
		return i + 1
	}
	return d.absent(r, start, open, i+1)
}

// other reads a value that the column of field f does not hold into the first of those beside it that
// does.
func (d *jsonReader) other(r *jsonRecord, f, start, i int) int {
	b := d.b
	if r.others == nil || b.err != nil || b.room < 0 {
		return -1
	}
	if _, _, reason := skipValue(d.p, i, 0); reason != "" {
		return -1 // it is no value, and b.bad says so
	}
	for _, k := range append([]int{f}, r.others[f]...) {
		v := &r.fields[k].jsonValue
		if v.col < 0 || k != f && b.cols[v.col].n > start { // there is a property of that name, too
			continue
		}
		if k != f {
			if end := d.value(v, i); end >= 0 || b.err != nil {
				return end
			}
		}
		truncate(b.cols, v.col, start)
	}
	return b.fail(ErrLacksColumn)
}

// name reads a property name, and finds the field of that name, -1 if there is none.
func (d *jsonReader) name(r *jsonRecord, i int) (field, end int, reason string) {
	if i >= len(d.p) {
		return -1, i, reasonShort
	}
	if d.p[i] != '"' {
		return -1, i, reasonName
	}
	end, escaped, reason := scanString(d.p, i)
	if reason != "" {
		return -1, end, reason
	}
	name := d.p[i+1 : end-1]
	if escaped {
		name = appendUnescaped(nil, name)
	}
	if f, ok := r.index[string(name)]; ok {
		return f, end, ""
	}
	if r.folded != nil {
		if f, ok := r.folded[foldCase(string(name))]; ok {
			return f, end, ""
		}
	}
	return -1, end, ""
}

// again makes room for a property that comes once more, its name at at: the last one counts. Two
// of which the names differ by case are two properties, of which the column takes one.
func (d *jsonReader) again(r *jsonRecord, f, start, open, at int) int {
	b, col := d.b, r.fields[f].col
	if r.folded != nil {
		b.room -= (at - open) / 8
		name, before := d.nameAt(at), false
		for i := space(d.p, open+1); i < at; {
			other, end, _ := d.name(r, i)
			if before = before || other == f; other == f && d.nameAt(i) != name {
				return d.failed(col, at, fmt.Sprintf("properties %q and %q have the same column", d.nameAt(i), name))
			}
			i, _ = colon(d.p, end)
			i, _, _ = skipValue(d.p, i, 0)
			i = space(d.p, space(d.p, i)+1)
		}
		if !before {
			return d.failed(col, at, fmt.Sprintf("property %q has the column of a value that its own did not hold", name))
		}
	}
	if b.room -= b.cols[col].end - col; b.room < 0 {
		return d.failed(col, at, reasonMany)
	}
	truncate(b.cols, col, start)
	return at
}

// nameAt returns the property name at i, which was read before.
func (d *jsonReader) nameAt(i int) string {
	end, _, _ := scanString(d.p, i)
	return string(appendUnescaped(nil, d.p[i+1:end-1]))
}

// absent nulls the columns of an object that begins at open and ends at i, so far as it did not
// fill them.
func (d *jsonReader) absent(r *jsonRecord, start, open, i int) int {
	b := d.b
	for f := range r.fields {
		col := r.fields[f].col
		if col < 0 || b.cols[col].n > start {
			continue
		}
		if b.cols[col].required {
			return d.failed(col, open, "is missing, and the column is required")
		}
		b.null(col)
	}
	for _, col := range r.rest {
		b.lack(col)
	}
	if r.present >= 0 {
		b.cols[r.present].appendBit(true)
	}
	return i
}

// value reads the value at i into its column.
func (d *jsonReader) value(v *jsonValue, i int) int {
	b, p := d.b, d.p
	if i >= len(p) {
		return d.failed(v.col, i, reasonShort)
	}
	if p[i] == 'n' || v.op == opNothing {
		return d.nothing(v.col, i)
	}
	c := &b.cols[v.col]
	switch v.op {
	case opStruct:
		if p[i] == '{' {
			n := c.n
			c.present()
			return d.object(v.record, n, i)
		}
	case opList:
		if p[i] == '[' {
			return d.list(v, i)
		}
	case opMap:
		if p[i] == '{' {
			return d.mapping(v, i)
		}
	case opBoolean:
		yes := p[i] == 't'
		if !yes && p[i] != 'f' {
			break
		}
		end := literal(p, i, strconv.FormatBool(yes))
		if end < 0 {
			return d.failed(v.col, i, reasonValue)
		}
		c.appendBit(yes)
		return end
	case opJSON:
		return d.json(v.col, i)
	case opText:
		if p[i] != '"' {
			return d.json(v.col, i)
		}
		return d.string(v.col, i)
	case opString:
		if p[i] == '"' {
			return d.string(v.col, i)
		}
	case opUUID, opUUIDString, opTimeString, opDateText, opTimeText, opLocalText, opZoned, opBase64:
		if p[i] == '"' {
			return d.text(v, i)
		}
	case opDecimalNumber:
		if p[i] == '"' {
			return d.text(v, i)
		}
		fallthrough
	default:
		if p[i] == '-' || p[i]-'0' < 10 {
			return d.number(v, i)
		}
	}
	end, typed, reason := skipValue(p, i, 0)
	if reason != "" {
		return d.failed(v.col, end, reason)
	}
	if d.grows && !typed && !c.required { // it would have made no column
		b.null(v.col)
		return end
	}
	return d.failed(v.col, i, fmt.Sprintf("value is %s, and the column is %s", kindOf(p[i]), c.typ))
}

// kindOf names the value that begins with c.
func kindOf(c byte) string {
	switch c {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

// nothing reads null. A property whose schema says that it is null, or whose column no JSON value
// fits, may have no other.
func (d *jsonReader) nothing(col, i int) int {
	end := literal(d.p, i, "null")
	if end < 0 {
		if end, _, reason := skipValue(d.p, i, 0); reason != "" {
			return d.failed(col, end, reason)
		}
		if col < 0 {
			return d.failed(col, i, "value is "+kindOf(d.p[i])+", and the schema says that it is null")
		}
		return d.failed(col, i, fmt.Sprintf("value is %s, and the column is %s", kindOf(d.p[i]), d.b.cols[col].typ))
	}
	if col < 0 {
		return end
	}
	if d.b.cols[col].required {
		return d.failed(col, i, "is null, and the column is required")
	}
	d.b.null(col)
	return end
}

// json keeps the value as JSON text, or as a variant.
func (d *jsonReader) json(col, i int) int {
	end, _, reason := skipValue(d.p, i, 0)
	if reason != "" {
		return d.failed(col, end, reason)
	}
	if !d.b.endJSON(col, appendCompact(d.b.jsonTo(&d.b.cols[col]), d.p[i:end]), i) {
		return -1
	}
	return end
}

func (d *jsonReader) string(col, i int) int {
	c := &d.b.cols[col]
	end, escaped, reason := scanString(d.p, i)
	if reason != "" {
		return d.failed(col, end, reason)
	}
	if escaped {
		c.data = appendUnescaped(c.data, d.p[i+1:end-1])
	} else {
		c.data = append(c.data, d.p[i+1:end-1]...)
	}
	return d.endBytes(c, end)
}

// endBytes ends a value of variable length, whose bytes are in c already.
func (d *jsonReader) endBytes(c *column, end int) int {
	if len(c.data) > d.b.limit {
		return d.b.fail(ErrFull)
	}
	c.offsets = append(c.offsets, int32(len(c.data)))
	c.present()
	return end
}

// text reads a string that is not stored as it is.
func (d *jsonReader) text(v *jsonValue, i int) int {
	c := &d.b.cols[v.col]
	end, escaped, reason := scanString(d.p, i)
	if reason != "" {
		return d.failed(v.col, end, reason)
	}
	text := d.p[i+1 : end-1]
	if escaped {
		text = appendUnescaped(nil, text)
	}
	switch v.op {
	case opUUID:
		u, ok := parseUUID(text)
		if !ok {
			return d.failed(v.col, i, "text is not a UUID")
		}
		c.data = append(c.data, u[:]...)
	case opUUIDString:
		u, ok := parseUUID(text)
		if !ok {
			return d.failed(v.col, i, "text is not a UUID")
		}
		c.data = appendUUID(c.data, u[:])
		return d.endBytes(c, end)
	case opTimeString:
		micros, reason := isoMicros(opTimeText, unsafe.String(unsafe.SliceData(text), len(text)))
		if reason != "" {
			return d.failed(v.col, i, reason)
		}
		c.data = appendTime(c.data, micros)
		return d.endBytes(c, end)
	case opBase64:
		var err error
		if c.data, err = base64.StdEncoding.AppendDecode(c.data, text); err != nil {
			return d.failed(v.col, i, "text is not base64")
		}
		return d.endBytes(c, end)
	case opDecimalNumber:
		// Connect writes the bytes of the unscaled number, if it is not told to write numbers.
		unscaled, err := base64.StdEncoding.AppendDecode(nil, text)
		if err != nil {
			return d.failed(v.col, i, "text is not base64 of a decimal")
		}
		if !d.b.decimal(&instruction{col: v.col, limit: v.limit}, c, unscaled, i) {
			return -1
		}
		return end
	case opDateText:
		t, err := time.Parse(time.DateOnly, unsafe.String(unsafe.SliceData(text), len(text)))
		if err != nil {
			return d.failed(v.col, i, "text is not an ISO 8601 date")
		}
		c.i32 = append(c.i32, int32(floorDiv(t.Unix(), 86400)))
	default:
		micros, reason := isoMicros(v.op, unsafe.String(unsafe.SliceData(text), len(text)))
		if reason != "" {
			return d.failed(v.col, i, reason)
		}
		c.i64 = append(c.i64, micros)
	}
	c.present()
	return end
}

// isoMicros returns the microseconds of a time of day, in UTC, or of a timestamp.
func isoMicros(op opcode, text string) (micros int64, reason string) {
	switch op {
	case opTimeText:
		t, err := time.Parse("15:04:05.999999999Z07:00", text)
		if err != nil {
			t, err = time.Parse("15:04:05.999999999", text)
		}
		if err != nil || text[2] != ':' {
			return 0, "text is not an ISO 8601 time of day"
		}
		const day = 86_400_000_000
		return (t.UTC().UnixMicro()%day + day) % day, ""
	case opLocalText:
		t, err := time.Parse("2006-01-02T15:04:05.999999999", text)
		if err != nil || text[13] != ':' {
			return 0, "text is not an ISO 8601 timestamp without an offset"
		}
		return t.UnixMicro(), ""
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || text[13] != ':' {
		return 0, "text is not an ISO 8601 timestamp with an offset"
	}
	return t.UnixMicro(), ""
}

func (d *jsonReader) number(v *jsonValue, i int) int {
	c := &d.b.cols[v.col]
	n, end, reason := scanNumber(d.p, i)
	if reason != "" {
		return d.failed(v.col, end, reason)
	}
	switch v.op {
	case opDouble, opFloatToDouble:
		f, ok := n.float64()
		if !ok {
			return d.failed(v.col, i, reasonDouble)
		}
		c.i64 = append(c.i64, int64(math.Float64bits(f)))
		c.present()
		return end
	case opFloat:
		f, err := strconv.ParseFloat(unsafe.String(unsafe.SliceData(n.text), len(n.text)), 32)
		if err != nil {
			return d.failed(v.col, i, reasonDouble)
		}
		c.i32 = append(c.i32, int32(math.Float32bits(float32(f))))
		c.present()
		return end
	case opDecimalNumber:
		hi, lo, reason := n.scaled(v.scale)
		if reason != "" || int64(hi) < 0 || !fitsBelow(hi, lo, v.limit) {
			return d.failed(v.col, i, reasonDigits)
		}
		c.appendDecimal(hi, lo, n.negative)
		return end
	}
	x, reason := n.int64()
	if reason != "" {
		return d.failed(v.col, i, reason)
	}
	switch v.op {
	case opInt:
		if int64(int32(x)) != x {
			return d.failed(v.col, i, reasonInt)
		}
		c.i32 = append(c.i32, int32(x))
		c.present()
		return end
	case opTimeMillis, opTimeMicros, opTimeNanos:
		var ok bool
		if x, ok = timeOfDay(v.op, x); !ok {
			return d.failed(v.col, i, reasonTime)
		}
	case opTimestampMillis:
		if x > math.MaxInt64/1000 || x < math.MinInt64/1000 {
			return d.failed(v.col, i, reasonMicros)
		}
		x *= 1000
	case opTimestampNanos:
		x = floorDiv(x, 1000)
	}
	c.i64 = append(c.i64, x)
	c.present()
	return end
}

func (d *jsonReader) list(v *jsonValue, i int) int {
	b, p, kid := d.b, d.p, v.item.col
	i = space(p, i+1)
	if i < len(p) && p[i] == ']' {
		i++
	} else {
		for more := true; more; {
			if i = d.room(v, kid, i); i < 0 {
				return -1
			}
			if i = d.value(v.item, i); i < 0 {
				return -1
			}
			if i, more = d.more(v.col, ']', i); i < 0 {
				return -1
			}
		}
	}
	c := &b.cols[v.col]
	c.offsets = append(c.offsets, int32(b.cols[kid].n))
	c.present()
	return i
}

// room counts an item of a list or map.
func (d *jsonReader) room(v *jsonValue, kid, i int) int {
	if d.b.room -= v.cells; d.b.room < 0 {
		return d.failed(v.col, i, reasonMany)
	}
	if d.b.cols[kid].n >= d.b.limit {
		return d.b.fail(ErrFull)
	}
	return i
}

// more reads what is between two items, or the end.
func (d *jsonReader) more(col int, end byte, i int) (int, bool) {
	i = space(d.p, i)
	switch {
	case i >= len(d.p):
		return d.failed(col, i, reasonShort), false
	case d.p[i] == ',':
		return space(d.p, i+1), true
	case d.p[i] == end:
		return i + 1, false
	}
	return d.failed(col, i, reasonNext), false
}

// mapping reads an object into a map. The last entry of a key counts.
func (d *jsonReader) mapping(v *jsonValue, i int) int {
	b, p := d.b, d.p
	i = space(p, i+1)
	if i < len(p) && p[i] == '}' {
		i++
	} else {
		for more := true; more; {
			if i = d.room(v, v.key, i); i < 0 {
				return -1
			}
			if i >= len(p) || p[i] != '"' {
				return d.failed(v.col, i, reasonName)
			}
			if i = d.string(v.key, i); i < 0 {
				return -1
			}
			var reason string
			if i, reason = colon(p, i); reason != "" {
				return d.failed(v.col, i, reason)
			}
			if i = d.value(v.item, i); i < 0 {
				return -1
			}
			if i, more = d.more(v.col, '}', i); i < 0 {
				return -1
			}
		}
	}
	c := &b.cols[v.col]
	b.dropReplaced(c)
	c.offsets = append(c.offsets, int32(b.cols[v.key].n))
	c.present()
	return i
}

// appendDecimal appends a number of which hi:lo is the magnitude.
func (c *column) appendDecimal(hi, lo uint64, negative bool) {
	if negative {
		var carry uint64
		lo, carry = bits.Add64(^lo, 1, 0)
		hi = ^hi + carry
	}
	c.data = binary.LittleEndian.AppendUint64(c.data, lo)
	c.data = binary.LittleEndian.AppendUint64(c.data, hi)
	c.present()
}
