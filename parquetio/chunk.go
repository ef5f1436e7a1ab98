package parquetio

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/schema"
)

// physical is how Parquet stores the values of a column.
type physical uint8

const (
	physicalBoolean physical = iota
	physicalInt32
	physicalInt64
	physicalFloat
	physicalDouble
	physicalBytes
	physicalFixed
)

var physicals = map[parquet.Type]physical{
	parquet.Types.Boolean: physicalBoolean, parquet.Types.Int32: physicalInt32, parquet.Types.Int64: physicalInt64,
	parquet.Types.Float: physicalFloat, parquet.Types.Double: physicalDouble,
	parquet.Types.ByteArray: physicalBytes, parquet.Types.FixedLenByteArray: physicalFixed,
}

const (
	// pageRows ends a page, so that the page index can skip something.
	pageRows = 32 << 10
	// stepRows is how many rows go into a page between two looks at its size.
	stepRows = 1 << 10
)

// A columnChunk encodes one leaf column of one row group. Pages are compressed when they
// are full and kept until the row group ends, because the dictionary goes before them.
type columnChunk struct {
	column         *schema.Column
	kind           physical
	order          order
	text           bool
	width          int // of physicalFixed
	maxDef, maxRep int16
	itemDef        int16 // definition level from which a slot has a place in the leaf array
	codec          compress.Codec
	cfg            *WriterConfig

	encoding   parquet.Encoding
	dictionary *dictionary  // nil if there is none
	bloom      *bloomFilter // nil if there is none
	fallback   bool         // the dictionary became too large on the way: the rest is plain

	*page        // at hand
	bit      int // of booleans in plain
	slots    int
	pageRows int
	raw      int64 // bytes of its values, as if plain
	bounds   bounds

	pages      []dataPage
	plainPages bool // there is one without values
	compressed int64
	rows       int64 // in finished pages
	total      bounds
	*scratch
}

// A page holds the levels and values of one page until it is full.
type page struct {
	def, rep []int16
	i32      []int32
	i64      []int64
	index    []int32 // in the dictionary
	plain    []byte
}

func (p *page) reset() {
	p.def, p.rep, p.i32, p.i64, p.index, p.plain = p.def[:0], p.rep[:0], p.i32[:0], p.i64[:0], p.index[:0], p.plain[:0]
}

// Files come often and their columns need the same buffers again.
var pagePool = sync.Pool{New: func() any { return new(page) }}

// A scratch is what the columns of a writer use in turn.
type scratch struct {
	body, packed []byte
}

type dataPage struct {
	body         []byte
	uncompressed int
	slots        int
	firstRow     int64
	encoding     parquet.Encoding
	stats        metadata.EncodedStatistics
}

func newColumnChunk(column *schema.Column, dictionary bool, codec compress.Codec, cfg *WriterConfig, s *scratch) *columnChunk {
	c := &columnChunk{
		column: column, kind: physicals[column.PhysicalType()], width: column.TypeLength(),
		maxDef: column.MaxDefinitionLevel(), maxRep: column.MaxRepetitionLevel(),
		codec: codec, cfg: cfg, encoding: bareEncoding(column), page: pagePool.Get().(*page), scratch: s,
	}
	if column.SortOrder() == schema.SortSIGNED {
		c.order = orderSigned
	}
	_, c.text = column.LogicalType().(schema.StringLogicalType)
	c.itemDef = c.maxDef
	for n := column.SchemaNode(); n != nil && n.RepetitionType() != parquet.Repetitions.Repeated; n = n.Parent() {
		if n.RepetitionType() == parquet.Repetitions.Optional {
			c.itemDef--
		}
	}
	if c.maxRep == 0 {
		c.itemDef = 0
	}
	if dictionary && c.kind != physicalBoolean {
		prefix := 0
		if c.kind == physicalBytes {
			prefix = 4
		}
		c.dictionary, c.encoding = newDictionary(prefix), parquet.Encodings.RLEDict
	}
	return c
}

// bareEncoding returns how the values of a column are encoded without a dictionary.
func bareEncoding(column *schema.Column) parquet.Encoding {
	switch column.PhysicalType() {
	case parquet.Types.Int32, parquet.Types.Int64:
		return parquet.Encodings.DeltaBinaryPacked
	}
	return parquet.Encodings.Plain
}

// values are those of a leaf array as its column stores them.
type values struct {
	i32     []int32
	i64     []int64
	data    []byte
	offsets []int32
}

// valuesOf returns the values of an array, without a copy where it is stored alike.
func (c *columnChunk) valuesOf(a arrow.Array) (v values, err error) {
	raw := func(i int) []byte {
		if b := a.Data().Buffers(); i < len(b) && b[i] != nil {
			return b[i].Bytes()
		}
		return nil
	}
	switch t := a.(type) {
	case *array.Decimal128:
		return c.decimals(t), nil
	case *array.String, *array.Binary:
		if c.kind != physicalBytes {
			break
		}
		v.offsets, v.data = arrow.Int32Traits.CastFromBytes(raw(1)), raw(2)
		return v, nil
	case *array.Null:
		return v, nil
	}
	mismatch := fmt.Errorf("values of type %s do not go into a column of type %s", a.DataType(), c.column.PhysicalType())
	fixed, ok := a.DataType().(arrow.FixedWidthDataType)
	if !ok {
		return v, mismatch
	}
	ok = false
	switch c.kind {
	case physicalInt32, physicalFloat:
		ok = fixed.BitWidth() == 32
		v.i32 = arrow.Int32Traits.CastFromBytes(raw(1))
	case physicalInt64, physicalDouble:
		ok = fixed.BitWidth() == 64
		v.i64 = arrow.Int64Traits.CastFromBytes(raw(1))
	case physicalFixed:
		ok = fixed.BitWidth() == 8*c.width
		v.data = raw(1)
	case physicalBoolean:
		ok = fixed.BitWidth() == 1
		v.data = raw(1)
	}
	if !ok {
		return v, mismatch
	}
	return v, nil
}

// decimals returns decimals as integers where they fit, else as big-endian bytes.
func (c *columnChunk) decimals(a *array.Decimal128) (v values) {
	switch c.kind {
	case physicalInt32:
		v.i32 = make([]int32, a.Len())
		for i, d := range a.Values() {
			v.i32[i] = int32(d.LowBits())
		}
	case physicalInt64:
		v.i64 = make([]int64, a.Len())
		for i, d := range a.Values() {
			v.i64[i] = int64(d.LowBits())
		}
	default:
		v.data = make([]byte, 0, a.Len()*c.width)
		var big [16]byte
		for _, d := range a.Values() {
			binary.BigEndian.PutUint64(big[:], uint64(d.HighBits()))
			binary.BigEndian.PutUint64(big[8:], d.LowBits())
			v.data = append(v.data, big[16-c.width:]...)
		}
	}
	return v
}

// write appends the values of a leaf array, with the levels that the leveler made of it.
func (c *columnChunk) write(a arrow.Array, def, rep []int16) error {
	v, err := c.valuesOf(a)
	if err != nil {
		return err
	}
	slots := len(def)
	if def == nil {
		slots = a.Len()
	}
	for slot, item := 0, 0; slot < slots; {
		toSlot, rows := c.step(v, slot, slots, item, def, rep)
		if def == nil {
			c.put(v, item, item+toSlot-slot)
			item += toSlot - slot
		} else {
			item = c.putPresent(v, def[slot:toSlot], item)
			c.def = append(c.def, def[slot:toSlot]...)
		}
		if rep != nil {
			c.rep = append(c.rep, rep[slot:toSlot]...)
		}
		c.slots += toSlot - slot
		c.pageRows += rows
		slot = toSlot
		c.reconsider()
		if c.pageRows >= pageRows || c.raw+2*int64(len(c.def)+len(c.rep)) >= c.cfg.PageBytes {
			c.endPage()
		}
		if c.dictionary != nil && !c.fallback && int64(len(c.dictionary.data)) > c.cfg.DictionaryBytes {
			c.endPage()
			// It went with the page if that was the first and it did not pay.
			if c.dictionary != nil {
				c.fallback, c.encoding = true, parquet.Encodings.Plain
			}
		}
	}
	return nil
}

// reconsider drops the dictionary while the first page fills, as soon as its values come
// again too seldom. Numbers need more repeats than text: their deltas are small.
func (c *columnChunk) reconsider() {
	if c.dictionary == nil || len(c.pages) > 0 {
		return
	}
	n, distinct := len(c.index), len(c.dictionary.entries)
	text := c.kind == physicalBytes || c.kind == physicalFixed
	switch {
	case n < stepRows:
	case !text && distinct*2 > n, text && distinct*10 > n*9, text && n >= 8*stepRows && distinct*4 > n*3:
		c.dropDictionary()
	}
}

// dropDictionary goes on without, and puts the values of the first page back in.
func (c *columnChunk) dropDictionary() {
	d := c.dictionary
	c.dictionary, c.encoding = nil, bareEncoding(c.column)
	if c.bloom != nil {
		c.bloom.addDictionary(d)
	}
	for _, n := range c.index {
		e := &d.entries[n]
		v := d.data[e.from:e.to]
		switch {
		case c.encoding == parquet.Encodings.DeltaBinaryPacked && c.kind == physicalInt32:
			c.i32 = append(c.i32, int32(binary.LittleEndian.Uint32(v)))
		case c.encoding == parquet.Encodings.DeltaBinaryPacked:
			c.i64 = append(c.i64, int64(binary.LittleEndian.Uint64(v)))
		default:
			c.plain = append(c.plain, d.data[e.from-d.prefix:e.to]...)
		}
	}
	c.index = c.index[:0]
}

// step returns how far the next step goes: whole rows, few enough for one page if there is
// more than one of them.
func (c *columnChunk) step(v values, slot, slots, item int, def, rep []int16) (toSlot, rows int) {
	if rep == nil {
		rows = min(stepRows, slots-slot)
		for rows > 1 && v.size(item, item+rows) > c.cfg.PageBytes {
			rows /= 2
		}
		return slot + rows, rows
	}
	to := item
	for toSlot = slot; toSlot < slots; toSlot++ {
		if rep[toSlot] == 0 {
			if rows == stepRows || (rows > 0 && (v.size(item, to) > c.cfg.PageBytes || toSlot-slot > pageRows)) {
				break
			}
			rows++
		}
		if def[toSlot] >= c.itemDef {
			to++
		}
	}
	return toSlot, rows
}

// size returns the bytes of values without a fixed width, 0 for others.
func (v values) size(from, to int) int64 {
	if len(v.offsets) == 0 {
		return 0
	}
	return int64(v.offsets[to] - v.offsets[from])
}

// putPresent appends those of the values from item on whose slots are not null, and
// returns the item behind them.
func (c *columnChunk) putPresent(v values, def []int16, item int) int {
	from := item
	for _, d := range def {
		if d < c.itemDef {
			continue
		}
		if d != c.maxDef {
			c.put(v, from, item)
			from = item + 1
			c.bounds.nulls++
		}
		item++
	}
	c.put(v, from, item)
	if c.maxRep > 0 {
		// Empty and null lists count as nulls of the column, too.
		for _, d := range def {
			if d < c.itemDef {
				c.bounds.nulls++
			}
		}
	}
	return item
}

// put appends the values from to to, none of which is null, to the page.
func (c *columnChunk) put(v values, from, to int) {
	if from >= to {
		return
	}
	c.bounds.values += int64(to - from)
	dictionary := c.dictionary != nil && !c.fallback
	if c.bloom != nil && !dictionary { // that of a dictionary is made when it is complete
		c.bloom.addValues(v, c.width, from, to)
	}
	switch c.kind {
	case physicalBoolean:
		c.putBits(v.data, from, to)
	case physicalInt32:
		part := v.i32[from:to]
		low, top := part[0], part[0]
		for _, x := range part {
			low, top = min(low, x), max(top, x)
		}
		c.bounds.addInt(int64(low), int64(top))
		c.raw += 4 * int64(len(part))
		c.putInt32(part, dictionary)
	case physicalFloat:
		for _, x := range v.i32[from:to] {
			c.bounds.addFloat(float64(math.Float32frombits(uint32(x))))
		}
		c.raw += 4 * int64(to-from)
		c.putInt32(v.i32[from:to], dictionary)
	case physicalInt64:
		part := v.i64[from:to]
		low, top := part[0], part[0]
		for _, x := range part {
			low, top = min(low, x), max(top, x)
		}
		c.bounds.addInt(low, top)
		c.raw += 8 * int64(len(part))
		c.putInt64(part, dictionary)
	case physicalDouble:
		for _, x := range v.i64[from:to] {
			c.bounds.addFloat(math.Float64frombits(uint64(x)))
		}
		c.raw += 8 * int64(to-from)
		c.putInt64(v.i64[from:to], dictionary)
	case physicalBytes:
		for i := from; i < to; i++ {
			x := v.data[v.offsets[i]:v.offsets[i+1]]
			if dictionary {
				c.putIndex(x)
				continue
			}
			c.bounds.addBytes(x, false)
			c.plain = append(binary.LittleEndian.AppendUint32(c.plain, uint32(len(x))), x...)
		}
		c.raw += int64(v.offsets[to]-v.offsets[from]) + 4*int64(to-from)
	case physicalFixed:
		for i := from; i < to; i++ {
			x := v.data[i*c.width : (i+1)*c.width]
			if dictionary {
				c.putIndex(x)
				continue
			}
			c.bounds.addBytes(x, c.order == orderSigned)
			c.plain = append(c.plain, x...)
		}
		c.raw += int64((to - from) * c.width)
	}
}

// putIndex appends a value by its number. A value counts for the bounds of a page once.
func (c *columnChunk) putIndex(x []byte) {
	n := c.dictionary.number(x)
	c.index = append(c.index, n)
	if e := &c.dictionary.entries[n]; e.page != int32(len(c.pages)) {
		e.page = int32(len(c.pages))
		c.bounds.addBytes(x, c.order == orderSigned)
	}
}

func (c *columnChunk) putInt32(part []int32, dictionary bool) {
	switch {
	case dictionary:
		var b [4]byte
		for _, x := range part {
			binary.LittleEndian.PutUint32(b[:], uint32(x))
			c.index = append(c.index, c.dictionary.number(b[:]))
		}
	case c.encoding == parquet.Encodings.DeltaBinaryPacked:
		c.i32 = append(c.i32, part...)
	default:
		c.plain = append(c.plain, arrow.Int32Traits.CastToBytes(part)...)
	}
}

func (c *columnChunk) putInt64(part []int64, dictionary bool) {
	switch {
	case dictionary:
		var b [8]byte
		for _, x := range part {
			binary.LittleEndian.PutUint64(b[:], uint64(x))
			c.index = append(c.index, c.dictionary.number(b[:]))
		}
	case c.encoding == parquet.Encodings.DeltaBinaryPacked:
		c.i64 = append(c.i64, part...)
	default:
		c.plain = append(c.plain, arrow.Int64Traits.CastToBytes(part)...)
	}
}

func (c *columnChunk) putBits(data []byte, from, to int) {
	for i := from; i < to; i++ {
		v := data[i>>3] >> (i & 7) & 1
		if c.bit&7 == 0 {
			c.plain = append(c.plain, 0)
		}
		c.plain[len(c.plain)-1] |= v << (c.bit & 7)
		c.bit++
		c.bounds.addInt(int64(v), int64(v))
	}
	c.raw += int64(to-from)/8 + 1
}

// endPage encodes and compresses the page at hand and begins the next.
func (c *columnChunk) endPage() {
	if c.slots == 0 {
		return
	}
	if c.dictionary != nil && len(c.pages) == 0 && len(c.dictionary.entries)*10 > len(c.index)*6 {
		c.dropDictionary()
	}
	body := c.body[:0]
	if c.maxRep > 0 {
		body = appendLevels(body, c.rep, c.maxRep)
	}
	if c.maxDef > 0 {
		body = appendLevels(body, c.def, c.maxDef)
	}
	encoding := c.encoding
	if c.bounds.values == 0 {
		encoding = parquet.Encodings.Plain // of nothing
		c.plainPages = true
	}
	switch encoding {
	case parquet.Encodings.RLEDict:
		width := bits.Len(uint(max(len(c.dictionary.entries)-1, 1)))
		body = append(body, byte(width))
		body = appendHybrid(body, c.index, width)
	case parquet.Encodings.DeltaBinaryPacked:
		if c.kind == physicalInt32 {
			body = appendDelta(body, c.i32)
		} else {
			body = appendDelta(body, c.i64)
		}
	default:
		body = append(body, c.plain...)
	}
	c.body = body
	if bound := int(c.codec.CompressBound(int64(len(body)))); cap(c.packed) < bound {
		c.packed = make([]byte, bound)
	}
	packed := c.codec.(levelCodec).EncodeLevel(c.packed[:0], body, c.cfg.CompressionLevel)
	c.pages = append(c.pages, dataPage{
		body: append([]byte(nil), packed...), uncompressed: len(body), slots: c.slots, firstRow: c.rows,
		encoding: encoding, stats: c.bounds.encode(c.kind, c.order, c.text, true),
	})
	c.compressed += int64(len(packed))
	c.rows += int64(c.pageRows)
	c.total.merge(&c.bounds, c.kind, c.order == orderSigned)
	c.bounds.reset()
	c.page.reset()
	c.bit, c.slots, c.pageRows, c.raw = 0, 0, 0, 0
}

type levelCodec interface {
	EncodeLevel(dst, src []byte, level int) []byte
}

// appendLevels appends levels with their length (Parquet format, "Data Pages", version 1).
func appendLevels(dst []byte, levels []int16, max int16) []byte {
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = appendHybrid(dst, levels, bits.Len16(uint16(max)))
	binary.LittleEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	return dst
}

// flush ends the chunk and writes its pages.
func (c *columnChunk) flush(pager file.PageWriter, meta *metadata.ColumnChunkMetaDataBuilder) error {
	c.endPage()
	pagePool.Put(c.page)
	c.page = nil
	if c.dictionary != nil && len(c.dictionary.entries) == 0 {
		c.dictionary = nil
	}
	if c.bloom != nil {
		c.bloom.addDictionary(c.dictionary)
	}
	if c.dictionary != nil {
		page := file.NewDictionaryPage(memory.NewBufferBytes(c.dictionary.data), int32(len(c.dictionary.entries)), parquet.Encodings.Plain)
		if _, err := pager.WriteDictionaryPage(page); err != nil {
			return err
		}
	}
	for _, p := range c.pages {
		page := file.NewDataPageV1WithConfig(memory.NewBufferBytes(p.body), parquet.Encodings.RLE, parquet.Encodings.RLE, file.DataPageConfig{
			Num: int32(p.slots), Encoding: p.encoding, UncompressedSize: int32(p.uncompressed), Stats: p.stats, FirstRowIndex: p.firstRow,
		})
		if _, err := pager.WriteDataPage(page); err != nil {
			return err
		}
	}
	meta.SetStats(c.total.encode(c.kind, c.order, c.text, false))
	return pager.Close(c.dictionary != nil, c.fallback || c.plainPages)
}
