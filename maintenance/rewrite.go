package maintenance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/apache/iceberg-go"
	icebergio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/parquetio"
)

const (
	batchRows = 4096
	// wholeBytes is the size up to which a file is read by one request.
	wholeBytes = 8 << 20
	// leastSplit is the size from which rows may go to several files. What a file will have is not known
	// before its rows are encoded, and a group is to become one.
	leastSplit = 32 << 20
	// MaxOutputs is how many files a group becomes at most: rows that take more room than before, because
	// the table has another codec by now, may need more than one.
	MaxOutputs = 4
)

// Names returns the locations of the files that a group may become. Each call draws others.
func (g Group) Names(t *table.Table) (names []string) {
	base := uuid.NewString()
	if dir := g.Files[0].dir; dir != "" {
		base = dir + "/" + base
	} else {
		base = "compacted/" + base
	}
	for n := range MaxOutputs {
		names = append(names, catalog.DataLocation(t, fmt.Sprintf("%s-%d.parquet", base, n)))
	}
	return names
}

// Cores are shared with who has more urgent work. Enter waits for one, and returns false if ctx ended.
type Cores interface {
	Enter(ctx context.Context) bool
	Leave()
}

// Rewrite reads the files of a group and writes their rows to the first of names, and the next when
// one has twice the target size. It returns the entries of what it wrote. The order is what rows of one file are sorted
// by; none if it is zero. Nothing of the table changes. Cores may be nil.
func Rewrite(ctx context.Context, t *table.Table, g Group, names []string, p Policy, order table.SortOrder, cores Cores) ([]iceberg.DataFile, error) {
	files, err := rewrite(ctx, t, g, names, p.withDefaults(), order, cores)
	if err != nil {
		return nil, fmt.Errorf("rewrite %d files from %s on: %w", len(g.Files), g.Files[0].FilePath(), err)
	}
	return files, nil
}

func rewrite(ctx context.Context, t *table.Table, g Group, names []string, p Policy, order table.SortOrder, cores Cores) ([]iceberg.DataFile, error) {
	own, err := catalog.FilesOf(ctx, t)
	if err != nil {
		return nil, err
	}
	cfg := parquetio.WriterConfig{Order: order}
	_ = cfg.Configure(t.Properties()) // what cannot be followed is left out, as the workers do
	w := &rewriter{table: t, group: g, names: names, files: own, schema: t.Schema(), cfg: cfg}
	options := []table.ScanOption{table.WithMaxConcurrency(1), table.WithArrowBatchSize(batchRows)}
	if t.Metadata().Version() >= 3 {
		w.schema = iceberg.SchemaWithRowLineage(w.schema)
		options = append(options, table.WithRowLineage())
	}
	reading := table.New(t.Identifier(), t.Metadata(), t.MetadataLocation(), func(ctx context.Context) (icebergio.IO, error) {
		return sources{IO: own, group: g}, nil
	}, nil)
	scan := reading.Scan(options...)
	defer scan.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_, batches, err := scan.ReadTasks(ctx, g.tasks())
	if err != nil {
		return nil, err
	}
	for b, err := range batches {
		if err != nil {
			return nil, err
		}
		if cores != nil && !cores.Enter(ctx) {
			b.Release()
			return nil, context.Cause(ctx)
		}
		w.rows += b.NumRows()
		err = w.open()
		if err == nil && b.NumRows() > 0 {
			err = w.out.AppendRecords(b)
		}
		b.Release()
		if err == nil && w.out.Full(max(2*p.Target, leastSplit)) {
			err = w.close()
		}
		if cores != nil {
			cores.Leave()
		}
		if err != nil {
			return nil, err
		}
	}
	if err := w.close(); err != nil {
		return nil, err
	}
	if len(w.done) >= len(g.Files) {
		return nil, fmt.Errorf("they would become %d", len(w.done))
	}
	if w.rows != g.Rows || w.written != g.Rows {
		return nil, fmt.Errorf("%d rows were read and %d written, the table says %d", w.rows, w.written, g.Rows)
	}
	return w.done, nil
}

// tasks are the files of a group as iceberg-go reads them, whole and without deletes.
func (g Group) tasks() (tasks []table.FileScanTask) {
	for _, f := range g.Files {
		sequence := f.Sequence
		tasks = append(tasks, table.FileScanTask{
			File: FormatNamed{f.DataFile}, Length: f.FileSizeBytes(), FirstRowID: f.FirstRowID(), DataSequenceNumber: &sequence,
		})
	}
	return tasks
}

// FormatNamed is a file of any writer as iceberg-go reads it: the name of its format is in capitals. DuckDB writes
// "parquet".
type FormatNamed struct{ iceberg.DataFile }

func (f FormatNamed) FileFormat() iceberg.FileFormat {
	return iceberg.FileFormat(strings.ToUpper(string(f.DataFile.FileFormat())))
}

// A rewriter writes the files of one group.
type rewriter struct {
	table  *table.Table
	group  Group
	names  []string
	files  *catalog.IO
	schema *iceberg.Schema
	cfg    parquetio.WriterConfig

	out           *parquetio.TableWriter // nil between two files
	rows, written int64
	done          []iceberg.DataFile
}

func (w *rewriter) open() (err error) {
	if w.out == nil {
		w.out, err = parquetio.NewTableWriter(w.schema, w.table.Spec(), "", w.cfg)
	}
	return err
}

// close ends the file at hand and puts it where its name says.
func (w *rewriter) close() error {
	if w.out == nil || w.out.Rows() == 0 {
		return nil
	}
	out := w.out
	w.out = nil
	parts := 0
	return out.Close(func(part parquetio.Part) error {
		if parts++; parts > 1 {
			return errors.New("rows of several partitions are in files that the table has in one")
		}
		if len(w.done) == len(w.names) {
			return fmt.Errorf("it becomes more than %d files", len(w.names))
		}
		location := w.names[len(w.done)]
		df, err := part.DataFile(w.table.Spec(), location)
		if err != nil {
			return err
		}
		if got, want := placeOf(int(df.SpecID()), df.Partition()), placeOf(int(df.SpecID()), w.group.Files[0].Partition()); got != want {
			return fmt.Errorf("rows are of partition %s, the table says %s", got, want)
		}
		if err := w.files.PutFile(location, part.Body); err != nil {
			return err
		}
		w.written += part.Rows
		w.done = append(w.done, df)
		return nil
	})
}

// sources reads small files by one request each.
type sources struct {
	*catalog.IO
	group Group
}

// Open implements icebergio.IO.
func (s sources) Open(location string) (icebergio.File, error) {
	for _, f := range s.group.Files {
		if f.FilePath() != location || f.FileSizeBytes() > wholeBytes {
			continue
		}
		body, err := s.ReadFile(location)
		if err != nil {
			return nil, err
		}
		if int64(len(body)) != f.FileSizeBytes() {
			return nil, fmt.Errorf("%s has %d bytes, the table says %d", location, len(body), f.FileSizeBytes())
		}
		return &whole{Reader: bytes.NewReader(body), location: location, size: f.FileSizeBytes()}, nil
	}
	return s.IO.Open(location)
}

// A whole is a file in memory.
type whole struct {
	*bytes.Reader
	location string
	size     int64
}

func (w *whole) Close() error               { return nil }
func (w *whole) Stat() (fs.FileInfo, error) { return w, nil }
func (w *whole) Name() string               { return path.Base(w.location) }
func (w *whole) Size() int64                { return w.size }
func (w *whole) Mode() fs.FileMode          { return 0o444 }
func (w *whole) ModTime() time.Time         { return time.Time{} }
func (w *whole) IsDir() bool                { return false }
func (w *whole) Sys() any                   { return nil }
