package parquetio

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/apache/iceberg-go"
)

const (
	flushRows  = 32 << 10 // rows that go from the builder to a writer at a time
	flushBytes = 8 << 20

	// maxOpenWriters is how many partitions of the table are encoded while rows come. Rows
	// of more partitions wait in the builder, and go through one writer after the other.
	maxOpenWriters = 4
	// maxPartitions and maxEntryBytes bound the files of a TableWriter, and what their
	// manifest entries take together.
	maxPartitions = 10_000
	maxEntryBytes = 32 << 20
)

// A TableWriter makes data files of the rows of one table, one for each partition of the
// table that they belong to. It is not safe for concurrent use.
type TableWriter struct {
	table   *iceberg.Schema
	spec    iceberg.PartitionSpec
	cfg     WriterConfig
	builder *Builder
	keys    *partitions       // nil if the table has no partitions
	sorter  *sorter           // nil if the table is unsorted
	piece   *Builder          // takes the rows of one partition; nil until needed
	open    map[int32]*Writer // by partition id
	rows    int64
	flushAt int   // rows of the builder
	most    int   // partitions
	err     error // of a flush: what was on its way is lost, and nothing more is taken
}

// NewTableWriter returns a writer of rows for a table; see [NewBuilder] for the Kafka column.
func NewTableWriter(schema *iceberg.Schema, spec iceberg.PartitionSpec, kafkaColumn string, cfg WriterConfig) (*TableWriter, error) {
	b, err := NewBuilder(schema, kafkaColumn)
	if err != nil {
		return nil, err
	}
	w := &TableWriter{table: schema, spec: spec, cfg: cfg, builder: b, open: map[int32]*Writer{}, flushAt: flushRows}
	if w.keys, err = newPartitions(b, spec); err != nil {
		return nil, fmt.Errorf("new table writer: %w", err)
	}
	if w.sorter, err = newSorter(b, cfg.Order); err != nil {
		return nil, fmt.Errorf("new table writer: %w", err)
	}
	w.most = min(maxPartitions, maxEntryBytes/entryBytes(len(b.cols)))
	return w, nil
}

// entryBytes is about what a manifest entry of a table with that many columns takes.
func entryBytes(columns int) int { return 300 + 60*min(columns, maxMetrics) }

// Append is [Builder.Append]. ErrFull means that the files are full: close the writer, and
// append the record to the next.
func (w *TableWriter) Append(d *Decoder, payload []byte, m RecordMeta) error {
	return w.add(func() error { return w.builder.Append(d, payload, m) })
}

// AppendNull is [Builder.AppendNull], as Append.
func (w *TableWriter) AppendNull(m RecordMeta) error {
	return w.add(func() error { return w.builder.AppendNull(m) })
}

func (w *TableWriter) add(row func() error) error {
	switch {
	case w.err != nil:
		return w.err
	case w.keys != nil && len(w.keys.values) > w.most:
		return ErrFull
	}
	err := row()
	if errors.Is(err, ErrFull) {
		if w.sorter != nil {
			return err
		}
		if w.err = w.flush(); w.err != nil || w.builder.rows > 0 {
			return cmp.Or(w.err, err)
		}
		err = row()
	}
	if err != nil {
		return err
	}
	w.rows++
	if w.keys != nil {
		w.keys.add(w.builder.rows - 1)
	}
	if n := w.builder.rows; n >= w.flushAt || n%1024 == 0 && w.builder.Bytes() >= flushBytes {
		w.err = w.flush()
	}
	return w.err
}

// flush moves rows from the builder to writers, unless they are of too many partitions, or must be
// sorted first.
func (w *TableWriter) flush() error {
	switch {
	case w.builder.rows == 0:
		return nil
	case w.sorter != nil:
		w.flushAt = w.builder.rows + flushRows
		return nil
	case w.keys == nil:
		out, err := w.writer(0)
		if err != nil {
			return err
		}
		return writeBatch(out, w.builder)
	case len(w.keys.values) > maxOpenWriters:
		w.flushAt = w.builder.rows + flushRows
		return nil
	}
	for id, rows := range w.keys.byPartition() {
		if err := w.move(int32(id), rows); err != nil {
			return err
		}
	}
	w.builder.clear()
	w.keys.rows, w.flushAt = w.keys.rows[:0], flushRows
	return nil
}

// move writes rows of the builder to the writer of their partition.
func (w *TableWriter) move(id int32, rows []int32) error {
	if len(rows) == 0 {
		return nil
	}
	if w.sorter != nil {
		w.sorter.sort(rows)
	}
	if w.piece == nil {
		w.piece = w.builder.sibling()
	}
	out, err := w.writer(id)
	if err != nil {
		return err
	}
	for len(rows) > 0 {
		n := min(len(rows), flushRows)
		w.piece.gather(w.builder, rows[:n])
		if err := writeBatch(out, w.piece); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

func (w *TableWriter) writer(id int32) (*Writer, error) {
	if out := w.open[id]; out != nil {
		return out, nil
	}
	out, err := NewWriter(w.table, w.cfg)
	if err == nil {
		w.open[id] = out
	}
	return out, err
}

func writeBatch(w *Writer, b *Builder) error {
	batch, err := b.Finish()
	if err != nil {
		return err
	}
	defer batch.Release()
	return w.Write(batch)
}

// Rows returns the number of rows so far.
func (w *TableWriter) Rows() int64 { return w.rows }

// Partitions returns of how many partitions of the table the rows are, at most.
func (w *TableWriter) Partitions() int {
	if w.keys == nil {
		return 1
	}
	return len(w.keys.values)
}

// Memory returns what the rows and the files take, in bytes. It looks at every column: call
// it per batch, not per record.
func (w *TableWriter) Memory() int64 {
	n := w.builder.Bytes()
	for _, out := range w.open {
		n += out.Bytes() + out.unfinished()
	}
	if w.keys != nil {
		n += 4*int64(len(w.keys.rows)) + 500*int64(len(w.keys.values))
	}
	return n
}

// Full reports whether the files have about the size of target, in bytes, or rows of many
// partitions, or that must be sorted, take twice that before they are encoded.
func (w *TableWriter) Full(target int64) bool {
	var written int64
	for _, out := range w.open {
		written = max(written, out.Bytes())
	}
	if w.keys == nil && w.sorter == nil {
		return written+w.builder.Bytes() >= target
	}
	return written >= target || w.builder.Bytes() >= 2*target || w.keys != nil && len(w.keys.values) > w.most
}

// A Part is a finished file and the partition of the table that its rows are of.
type Part struct {
	*File
	values map[int]any
}

// Close ends the files and hands them over one by one, in the order in which their partitions
// came, so that only those are in memory that the callee keeps. It ends with its first error.
func (w *TableWriter) Close(part func(Part) error) error {
	if w.err != nil {
		return w.err
	}
	if w.keys == nil {
		flush := w.flush
		if w.sorter != nil {
			flush = func() error { return w.move(0, w.builder.all()) }
		}
		if err := flush(); err != nil {
			return err
		}
		return w.closeOne(0, nil, part)
	}
	for id, rows := range w.keys.byPartition() {
		if err := w.move(int32(id), rows); err != nil {
			return err
		}
		if err := w.closeOne(int32(id), w.keys.values[id], part); err != nil {
			return err
		}
	}
	return nil
}

func (w *TableWriter) closeOne(id int32, values map[int]any, part func(Part) error) error {
	out := w.open[id]
	if out == nil {
		return nil
	}
	delete(w.open, id)
	f, err := out.Close()
	if err != nil {
		return err
	}
	return part(Part{f, values})
}

// DataFile returns the manifest entry of the file once it lies at location.
func (p Part) DataFile(spec iceberg.PartitionSpec, location string) (iceberg.DataFile, error) {
	return p.File.dataFile(spec, p.values, location)
}
