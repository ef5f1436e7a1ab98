package parquetio

import (
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/arrow-go/v18/parquet/schema"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

// WriterConfig tunes the files that a [Writer] makes.
type WriterConfig struct {
	// Codec compresses pages: zstd, gzip, snappy, brotli or uncompressed. zstd if empty.
	Codec string
	// CompressionLevel of the codec, as its command line counts. Of zstd 1 if zero, else what the
	// codec takes for its default.
	CompressionLevel int
	// RowGroupBytes ends a row group when it has this many bytes after compression.
	// 128 MiB if zero.
	RowGroupBytes int64
	// PageBytes ends a page when it has this many bytes before compression. 1 MiB if zero.
	PageBytes int64
	// DictionaryBytes is how large the dictionary of one column may become before the
	// column goes on without. 2 MiB if zero.
	DictionaryBytes int64
	// Order is the sort order of the table: rows of a file are sorted by it, and must wait in
	// memory for that. Unsorted if zero.
	Order table.SortOrder
	// Metrics are the modes of column metrics in manifests, as write.metadata.metrics properties.
	// Bounds of 16 characters of the first 100 columns if empty.
	Metrics iceberg.Properties
	// Bloom are the columns that get a Bloom filter in each row group, by their dotted path, and
	// the share of the values that are not there which it may let pass. Booleans get none.
	Bloom map[string]float64
	// BloomBytes is how large the Bloom filter of one column in one row group may be, a power of
	// two. 1 MiB if zero.
	BloomBytes int64
}

func (c *WriterConfig) setDefaults() {
	if c.Codec == "" {
		c.Codec = "zstd"
	}
	if c.CompressionLevel == 0 {
		c.CompressionLevel = compress.DefaultCompressionLevel
		if c.Codec == "zstd" {
			c.CompressionLevel = 1
		}
	}
	if c.RowGroupBytes == 0 {
		c.RowGroupBytes = 128 << 20
	}
	if c.PageBytes == 0 {
		c.PageBytes = 1 << 20
	}
	if c.DictionaryBytes == 0 {
		c.DictionaryBytes = 2 << 20
	}
	if c.BloomBytes == 0 {
		c.BloomBytes = 1 << 20
	}
}

// A Writer makes one Parquet file in memory. It encodes the pages itself and leaves headers,
// footer and page index to arrow-go. A column has a
// dictionary if the values of its first page come again often enough. It is not safe for concurrent use.
type Writer struct {
	table  *iceberg.Schema
	cfg    WriterConfig
	schema *arrow.Schema
	parts  chunks

	// set by the first batch
	props      *parquet.WriterProperties
	meta       *metadata.FileMetaDataBuilder
	index      *metadata.PageIndexBuilder
	parq       *schema.Schema
	blooms     metadata.FileBloomFilterBuilder
	codec      compress.Codec
	dictionary []bool   // by column: worth a try
	totals     []bounds // by column
	paths      []string // by column, as Iceberg knows them

	group   []*columnChunk // the row group at hand, nil between two
	groups  int16
	filters int64 // bytes of the Bloom filters of finished row groups
	levels  leveler
	scratch scratch
	rows    int64 // in all
	inRows  int   // in the row group at hand
	closed  bool
}

// A File is a finished Parquet file.
type File struct {
	Body [][]byte // the bytes, in order
	Size int64
	Rows int64

	table  *iceberg.Schema
	meta   *metadata.FileMetaData
	totals []bounds // by leaf column
	cfg    *WriterConfig
}

// NewWriter returns the writer of one file for rows of a table.
func NewWriter(schema *iceberg.Schema, cfg WriterConfig) (*Writer, error) {
	cfg.setDefaults()
	if _, ok := codecs[cfg.Codec]; !ok {
		return nil, fmt.Errorf("new writer: unknown codec %q", cfg.Codec)
	}
	arrowSchema, err := table.SchemaToArrowSchema(schema, nil, true, false)
	if err != nil {
		return nil, fmt.Errorf("new writer: %w", err)
	}
	return &Writer{table: schema, cfg: cfg, schema: arrowSchema}, nil
}

// Bytes returns the size of the file so far. It lags behind by the pages that are not full.
func (w *Writer) Bytes() int64 { return w.parts.size + w.pending() }

// pending returns the compressed size of the pages of the row group at hand.
func (w *Writer) pending() (n int64) {
	for _, c := range w.group {
		n += c.compressed
		if c.dictionary != nil {
			n += int64(len(c.dictionary.data)) / 2
		}
	}
	return n
}

// unfinished returns the memory of the pages that are not full, and of Bloom filters.
func (w *Writer) unfinished() (n int64) {
	n = w.filters
	for _, c := range w.group {
		if p := c.page; p != nil {
			n += int64(2*(cap(p.def)+cap(p.rep)) + 4*(cap(p.i32)+cap(p.index)) + 8*cap(p.i64) + cap(p.plain))
		}
		if c.bloom != nil {
			n += c.bloom.memory()
		}
	}
	return n
}

// Rows returns the number of rows so far.
func (w *Writer) Rows() int64 { return w.rows }

// Write appends the rows of a batch that a [Builder] of the same table made. It keeps no
// reference. After an error the writer is of no more use.
func (w *Writer) Write(batch arrow.RecordBatch) error {
	if w.closed {
		return fmt.Errorf("write batch: the file is closed")
	}
	if batch.NumRows() == 0 {
		return nil
	}
	if int(batch.NumCols()) != w.schema.NumFields() {
		return fmt.Errorf("write batch: %d columns, the table has %d", batch.NumCols(), w.schema.NumFields())
	}
	var all []leaf
	var err error
	for i := range int(batch.NumCols()) {
		if all, err = leaves(all, nil, batch.Column(i), w.schema.Field(i).Nullable); err != nil {
			return err
		}
	}
	if w.meta == nil {
		if err := w.open(); err != nil {
			return fmt.Errorf("open parquet file: %w", err)
		}
	}
	if len(all) != w.parq.NumColumns() {
		return fmt.Errorf("write batch: %d leaf columns, the table has %d", len(all), w.parq.NumColumns())
	}
	if w.group == nil {
		w.group = make([]*columnChunk, len(all))
		for i := range w.group {
			w.group[i] = newColumnChunk(w.parq.Column(i), w.dictionary[i], w.codec, &w.cfg, &w.scratch)
			if fpp, ok := w.cfg.Bloom[w.paths[i]]; ok && w.group[i].kind != physicalBoolean {
				w.group[i].bloom = &bloomFilter{kind: w.group[i].kind, fpp: fpp, most: w.cfg.BloomBytes}
			}
		}
	}
	for i, f := range all {
		def, rep := w.levels.levels(f)
		if err := w.group[i].write(f.array, def, rep); err != nil {
			return fmt.Errorf("write column %s: %w", w.parq.Column(i).Path(), err)
		}
	}
	w.rows += batch.NumRows()
	w.inRows += int(batch.NumRows())
	if w.pending() >= w.cfg.RowGroupBytes {
		return w.endGroup()
	}
	return nil
}

// open starts the file.
func (w *Writer) open() (err error) {
	properties := []parquet.WriterProperty{
		parquet.WithVersion(parquet.V2_6),
		parquet.WithCreatedBy("tabletopic"),
		parquet.WithCompression(codecs[w.cfg.Codec]),
		parquet.WithDictionaryDefault(false),
		parquet.WithStoreDecimalAsInteger(true),
	}
	w.parq, err = pqarrow.ToParquet(w.schema, parquet.NewWriterProperties(properties...), pqarrow.DefaultWriterProps())
	if err != nil {
		return err
	}
	if w.codec, err = compress.GetCodec(codecs[w.cfg.Codec]); err != nil {
		return err
	}
	for _, c := range leafColumns(w.table) {
		w.paths = append(w.paths, c.path)
	}
	w.totals = make([]bounds, len(w.paths))
	invariant.Check(len(w.paths) == w.parq.NumColumns(), "%d leaf columns of the table are %d of the file", len(w.paths), w.parq.NumColumns())
	w.blooms.Schema = w.parq
	for i := range w.parq.NumColumns() {
		column := w.parq.Column(i)
		properties = append(properties, parquet.WithEncodingPath(column.ColumnPath(), bareEncoding(column)))
		w.dictionary = append(w.dictionary, true)
	}
	w.props = parquet.NewWriterProperties(properties...)
	text, err := json.Marshal(w.table)
	if err != nil {
		return err
	}
	keys := metadata.NewKeyValueMetadata()
	if err := keys.Append("iceberg.schema", string(text)); err != nil {
		return err
	}
	w.meta = metadata.NewFileMetadataBuilder(w.parq, w.props, keys)
	w.index = &metadata.PageIndexBuilder{Schema: w.parq}
	_, err = w.parts.Write(magic)
	return err
}

var magic = []byte("PAR1")

// endGroup writes the row group at hand to the file.
func (w *Writer) endGroup() error {
	if w.group == nil {
		return nil
	}
	if err := w.index.AppendRowGroup(); err != nil {
		return fmt.Errorf("end row group: %w", err)
	}
	group := w.meta.AppendRowGroup()
	blooms := map[string]metadata.BloomFilterBuilder{}
	for i, c := range w.group {
		column := group.NextColumnChunk()
		pager, err := file.NewPageWriter(&w.parts, codecs[w.cfg.Codec], w.cfg.CompressionLevel, column, w.groups, int16(i), memory.DefaultAllocator, false, nil, nil)
		if err != nil {
			return fmt.Errorf("end row group: %w", err)
		}
		columnIndex, err := w.index.GetColumnIndexBuilder(i)
		if err != nil {
			return fmt.Errorf("end row group: %w", err)
		}
		offsetIndex, err := w.index.GetOffsetIndexBuilder(i)
		if err != nil {
			return fmt.Errorf("end row group: %w", err)
		}
		pager.SetIndexBuilders(columnIndex, offsetIndex)
		if err := c.flush(pager, column); err != nil {
			return fmt.Errorf("end row group: column %s: %w", w.parq.Column(i).Path(), err)
		}
		w.totals[i].merge(&c.total, c.kind, c.order == orderSigned)
		if c.bloom != nil {
			if filter := c.bloom.builder(); filter != nil {
				blooms[w.parq.Column(i).Path()] = filter
				w.filters += filter.Size()
			}
		}
		w.dictionary[i] = (c.dictionary != nil || c.total.values == 0) && !c.fallback
		invariant.Check(c.rows == int64(w.inRows), "column %s has %d rows, its row group %d", w.parq.Column(i).Path(), c.rows, w.inRows)
	}
	w.blooms.AppendRowGroup(group, blooms)
	group.SetNumRows(w.inRows)
	if err := group.Finish(0, w.groups); err != nil {
		return fmt.Errorf("end row group: %w", err)
	}
	w.group, w.inRows = nil, 0
	w.groups++
	return nil
}

// Close ends the file. A file needs at least one row.
func (w *Writer) Close() (*File, error) {
	if w.closed || w.meta == nil {
		return nil, fmt.Errorf("close parquet file: no rows were written, or it is closed")
	}
	w.closed = true
	if err := w.endGroup(); err != nil {
		return nil, fmt.Errorf("close parquet file: %w", err)
	}
	meta, err := w.footer()
	if err != nil {
		return nil, fmt.Errorf("close parquet file: %w", err)
	}
	return &File{Body: w.parts.done(), Size: w.parts.size, Rows: w.rows, table: w.table, meta: meta, totals: w.totals, cfg: &w.cfg}, nil
}

func (w *Writer) footer() (*metadata.FileMetaData, error) {
	if err := w.blooms.WriteTo(&w.parts); err != nil {
		return nil, err
	}
	w.index.Finish()
	var at metadata.PageIndexLocation
	if err := w.index.WriteTo(&w.parts, &at); err != nil {
		return nil, err
	}
	if err := w.meta.SetPageIndexLocation(at); err != nil {
		return nil, err
	}
	meta, err := w.meta.Finish()
	if err != nil {
		return nil, err
	}
	n, err := meta.WriteTo(&w.parts, nil)
	if err != nil {
		return nil, err
	}
	_, err = w.parts.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(n)), magic...))
	return meta, err
}

// DataFile returns the manifest entry of the file once it lies at location, with counts, sizes,
// bounds and split offsets. The table must be unpartitioned.
func (f *File) DataFile(spec iceberg.PartitionSpec, location string) (iceberg.DataFile, error) {
	return f.dataFile(spec, nil, location)
}

// chunks is a growing file in memory that never moves what it holds.
type chunks struct {
	full [][]byte
	last []byte
	size int64
}

const (
	firstChunk = 4 << 10 // a small file is not to hold much while it is written: there may be a thousand
	largeChunk = 4 << 20
)

func (c *chunks) Write(p []byte) (int, error) {
	n := len(p)
	c.size += int64(n)
	for len(p) > 0 {
		if len(c.last) == cap(c.last) {
			if c.last != nil {
				c.full = append(c.full, c.last)
			}
			c.last = make([]byte, 0, min(max(firstChunk, 2*cap(c.last)), largeChunk))
		}
		fit := min(len(p), cap(c.last)-len(c.last))
		c.last = append(c.last, p[:fit]...)
		p = p[fit:]
	}
	return n, nil
}

// Tell returns the position of the next byte.
func (c *chunks) Tell() int64 { return c.size }

func (c *chunks) done() [][]byte { return append(c.full, c.last) }
