package parquetio

import (
	"context"
	"encoding/json"
	"fmt"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/arrow-go/v18/parquet/schema"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

// WriterConfig tunes the files that a [Writer] makes.
type WriterConfig struct {
	// CompressionLevel of zstd, as its command line counts. 1 if zero.
	CompressionLevel int
	// RowGroupBytes ends a row group when it has this many bytes after compression.
	// 128 MiB if zero.
	RowGroupBytes int64
	// PageBytes ends a page when it has this many bytes before compression. 1 MiB if zero.
	PageBytes int64
	// DictionaryBytes is how large the dictionary of one column may become before the
	// column goes on without. 1 MiB if zero.
	DictionaryBytes int64
}

func (c *WriterConfig) setDefaults() {
	if c.CompressionLevel == 0 {
		c.CompressionLevel = 1
	}
	if c.RowGroupBytes == 0 {
		c.RowGroupBytes = 128 << 20
	}
	if c.PageBytes == 0 {
		c.PageBytes = 1 << 20
	}
	if c.DictionaryBytes == 0 {
		c.DictionaryBytes = 1 << 20
	}
}

// A Writer makes one Parquet file in memory. Which columns get a dictionary is decided from
// the values of the first batch. It is not safe for concurrent use.
type Writer struct {
	table  *iceberg.Schema
	cfg    WriterConfig
	schema *arrow.Schema
	parts  chunks
	file   *file.Writer // opened by the first batch
	group  file.BufferedRowGroupWriter
	levels leveler
	rows   int64
	closed bool
}

// A File is a finished Parquet file.
type File struct {
	Body [][]byte // the bytes, in order
	Size int64
	Rows int64

	table *iceberg.Schema
	meta  *metadata.FileMetaData
}

// NewWriter returns the writer of one file for rows of a table.
func NewWriter(schema *iceberg.Schema, cfg WriterConfig) (*Writer, error) {
	cfg.setDefaults()
	arrowSchema, err := table.SchemaToArrowSchema(schema, nil, true, false)
	if err != nil {
		return nil, fmt.Errorf("new writer: %w", err)
	}
	return &Writer{table: schema, cfg: cfg, schema: arrowSchema}, nil
}

// Bytes returns the size of the file so far. It lags behind by the pages that are not full.
func (w *Writer) Bytes() int64 {
	n := w.parts.size
	if w.group != nil {
		n += w.group.TotalBytesWritten()
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
	var all []leaf
	var err error
	for i := range int(batch.NumCols()) {
		if all, err = leaves(all, nil, batch.Column(i), w.schema.Field(i).Nullable); err != nil {
			return err
		}
	}
	if err := w.open(all); err != nil {
		return fmt.Errorf("open parquet file: %w", err)
	}
	if w.group == nil {
		if w.group, err = w.file.AppendBufferedRowGroupChecked(); err != nil {
			return fmt.Errorf("begin row group: %w", err)
		}
	}
	if len(all) != w.file.NumColumns() {
		return fmt.Errorf("write batch: %d leaf columns, the table has %d", len(all), w.file.NumColumns())
	}
	for i, f := range all {
		if err := w.writeLeaf(i, f); err != nil {
			return fmt.Errorf("write column %s: %w", w.file.Schema.Column(i).Path(), err)
		}
	}
	w.rows += batch.NumRows()
	if w.group.TotalBytesWritten() >= w.cfg.RowGroupBytes {
		if err := w.group.Close(); err != nil {
			return fmt.Errorf("end row group: %w", err)
		}
		w.group = nil
	}
	return nil
}

func (w *Writer) writeLeaf(i int, f leaf) error {
	column, err := w.group.Column(i)
	if err != nil {
		return err
	}
	def, rep := w.levels.levels(f)
	nullable := f.path[len(f.path)-1].nullable && f.array.NullN() > 0
	return pqarrow.WriteArrowToColumn(pqarrow.NewArrowWriteContext(context.Background(), nil), column, f.array, def, rep, nullable)
}

// open starts the file with what the first batch tells about its columns.
func (w *Writer) open(first []leaf) error {
	if w.file != nil {
		return nil
	}
	properties := []parquet.WriterProperty{
		parquet.WithVersion(parquet.V2_6),
		parquet.WithCreatedBy("tabletopic"),
		parquet.WithCompression(compress.Codecs.Zstd),
		parquet.WithCompressionLevel(w.cfg.CompressionLevel),
		parquet.WithDataPageSize(w.cfg.PageBytes),
		parquet.WithDictionaryPageSizeLimit(w.cfg.DictionaryBytes),
		parquet.WithDictionaryDefault(false),
		parquet.WithMaxRowGroupLength(math.MaxInt64),
		parquet.WithPageIndexEnabled(true),
		parquet.WithStoreDecimalAsInteger(true),
	}
	sc, err := pqarrow.ToParquet(w.schema, parquet.NewWriterProperties(properties...), pqarrow.DefaultWriterProps())
	if err != nil {
		return err
	}
	if len(first) > sc.NumColumns() {
		return fmt.Errorf("batch has %d leaf columns, the table has %d", len(first), sc.NumColumns())
	}
	for i, f := range first {
		properties = append(properties, encodingOf(sc.Column(i), f)...)
	}
	text, err := json.Marshal(w.table)
	if err != nil {
		return err
	}
	meta := metadata.NewKeyValueMetadata()
	if err := meta.Append("iceberg.schema", string(text)); err != nil {
		return err
	}
	w.file, err = file.NewParquetWriterWithError(&w.parts, sc.Root(),
		file.WithWriterProps(parquet.NewWriterProperties(properties...)), file.WithWriteMetadata(meta))
	return err
}

// encodingOf chooses how a column is encoded from a sample of its values.
func encodingOf(column *schema.Column, f leaf) []parquet.WriterProperty {
	path := column.ColumnPath()
	if lowCardinality(f.array) {
		// The cost check of arrow-go looks at one page only; the sample is better.
		return []parquet.WriterProperty{parquet.WithDictionaryPath(path, true), parquet.WithDictionaryCostFallbackPath(path, false)}
	}
	switch column.PhysicalType() {
	case parquet.Types.Int32, parquet.Types.Int64:
		return []parquet.WriterProperty{parquet.WithEncodingPath(path, parquet.Encodings.DeltaBinaryPacked)}
	}
	return nil
}

// Close ends the file. A file needs at least one row.
func (w *Writer) Close() (*File, error) {
	if w.closed || w.file == nil {
		return nil, fmt.Errorf("close parquet file: no rows were written, or it is closed")
	}
	w.closed = true
	if err := w.file.Close(); err != nil {
		return nil, fmt.Errorf("close parquet file: %w", err)
	}
	meta, err := w.file.FileMetadata()
	if err != nil {
		return nil, fmt.Errorf("close parquet file: %w", err)
	}
	return &File{Body: w.parts.done(), Size: w.parts.size, Rows: w.rows, table: w.table, meta: meta}, nil
}

// DataFile returns the manifest entry of the file once it lies at location: counts, sizes,
// bounds and split offsets come from the footer. The table must be unpartitioned.
func (f *File) DataFile(spec iceberg.PartitionSpec, location string) (iceberg.DataFile, error) {
	d, err := table.DataFileFromMetadata(table.DataFileArgs{
		Schema: f.table, Spec: spec, Format: iceberg.ParquetFile, Metadata: f.meta,
		FilePath: location, FileSize: f.Size, Content: iceberg.EntryContentData, FormatVersion: 2,
	})
	if err != nil {
		return nil, fmt.Errorf("describe data file %s: %w", location, err)
	}
	return d, nil
}

// chunks is a growing file in memory that never moves what it holds.
type chunks struct {
	full [][]byte
	last []byte
	size int64
}

const (
	firstChunk = 64 << 10
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

func (c *chunks) done() [][]byte { return append(c.full, c.last) }
