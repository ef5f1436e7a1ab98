package coordinator

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/schema"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/maintenance"
	"github.com/tabletopic/tabletopic/objectstore"
)

// kafkaFields returns the ids of partition and offset in the Kafka column.
func kafkaFields(s *iceberg.Schema, column string) (partition, offset int, err error) {
	p, ok1 := s.FindFieldByName(column + ".partition")
	o, ok2 := s.FindFieldByName(column + ".offset")
	if column == "" || !ok1 || !ok2 {
		return 0, 0, fmt.Errorf("it has no column %q with partition and offset, which verification needs", column)
	}
	return p.ID, o.ID, nil
}

// files reads the origin of every row of the current snapshot.
func (v *verifier) files(ctx context.Context) error {
	partition, offset, err := kafkaFields(v.table.Schema(), v.KafkaColumn)
	if err != nil {
		return err
	}
	d := &deepReader{verifier: v, partition: partition, offset: offset}
	tasks, err := v.table.Scan().PlanFiles(ctx)
	if err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	declared := v.report.Records
	v.report.Files, v.report.Records, v.progress.TotalFiles = int64(len(tasks)), 0, int64(len(tasks))
	deletes := map[string]bool{}
	for _, task := range tasks {
		for _, list := range [][]iceberg.DataFile{task.DeleteFiles, task.EqualityDeleteFiles, task.DeletionVectorFiles} {
			for _, f := range list {
				deletes[f.FilePath()] = true
			}
		}
		v.report.Records += task.File.Count()
		if err := d.task(ctx, task); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			v.unreadable(task.File.FilePath(), err)
		}
		v.progress.Files++
		v.tick()
	}
	v.report.Deletes, v.declared = len(deletes), declared == v.report.Records
	return d.attribute(ctx)
}

// unreadable lists a data file that cannot be read.
func (v *verifier) unreadable(path string, err error) {
	if errors.Is(err, objectstore.ErrNotFound) {
		if v.report.MissingCount++; len(v.report.Missing) < maxFiles {
			v.report.Missing = append(v.report.Missing, path)
		}
		return
	}
	if v.report.BrokenCount++; len(v.report.Broken) < maxFiles {
		v.report.Broken = append(v.report.Broken, fmt.Sprintf("%s: %v", path, err))
	}
}

// A deepReader reads the origins of the rows of data files.
type deepReader struct {
	*verifier
	partition, offset int // field ids
}

// origin is where a row comes from.
type origin struct {
	partition int32
	offset    int64
	valid     bool // it says so, and that is a place in the topic
}

// at returns the origin that a row names.
func (d *deepReader) at(partition int32, offset int64, named bool) origin {
	return origin{partition, offset, named && partition >= 0 && partition < d.Topic.Partitions && offset >= 0}
}

// held reports whether the table says that it holds the origin of a row, in a partition that is
// verified. Only such are remembered one by one: what other writers name has no bound.
func (d *deepReader) held(o origin) bool {
	return o.valid && d.found[o.partition] != nil && o.offset < d.position.Next[o.partition]
}

// task reads one data file, and what others have deleted of it.
func (d *deepReader) task(ctx context.Context, task table.FileScanTask) error {
	df := task.File
	topic := topicOf(d.table, df.FilePath())
	own := topic == d.Topic.ID.String()
	if topic != "" && !own {
		d.report.Earlier += df.Count()
		return nil
	}
	foreign := int64(0)
	defer func() { d.foreign(df.FilePath(), foreign) }()
	if len(task.DeleteFiles)+len(task.EqualityDeleteFiles)+len(task.DeletionVectorFiles) == 0 {
		return d.file(ctx, df, func(o origin) error {
			switch {
			case o.valid:
				d.live(o, df)
			case own:
				return errors.New("has rows without partition or offset")
			default:
				foreign++
			}
			return nil
		})
	}
	all := map[int32]*offsetSet{}
	for p := range d.found {
		all[p] = &offsetSet{}
	}
	if err := d.file(ctx, df, func(o origin) error {
		if d.held(o) {
			all[o.partition].add(o.offset)
		}
		return nil
	}); err != nil {
		return err
	}
	err := d.undeleted(ctx, task, func(o origin) {
		if !o.valid {
			foreign++
			return
		}
		if d.held(o) {
			all[o.partition].remove(o.offset)
		}
		d.live(o, df)
	})
	for p, set := range all {
		set.each(func(offset int64) { d.found[p].deleted.add(offset) })
	}
	return err
}

// live notes a row of the table.
func (d *deepReader) live(o origin, df iceberg.DataFile) {
	f := d.found[o.partition]
	switch {
	case f == nil: // its partition is not verified
	case !d.held(o):
		f.beyond++
	case !f.rows.add(o.offset):
		f.extra++
		f.example("offset %d is in more than one row, again in %s", o.offset, df.FilePath())
	}
}

func (d *deepReader) foreign(path string, rows int64) {
	if rows == 0 {
		return
	}
	d.report.Others += rows
	if d.report.OtherFiles++; len(d.report.Foreign) < maxFiles {
		d.report.Foreign = append(d.report.Foreign, ForeignFile{Path: path, Rows: rows})
	}
}

// attribute finds the snapshots that added the foreign files.
func (d *deepReader) attribute(ctx context.Context) error {
	at := map[string]int{}
	for i, f := range d.report.Foreign {
		at[f.Path] = i
	}
	s := d.table.CurrentSnapshot()
	if len(at) == 0 || s == nil {
		return nil
	}
	fs := catalog.NewIO(ctx, d.Locator)
	manifests, err := s.Manifests(fs)
	if err != nil {
		return fmt.Errorf("manifests of snapshot %d: %w", s.SnapshotID, err)
	}
	for _, m := range manifests {
		for e, err := range m.Entries(fs, true) {
			if err != nil {
				return fmt.Errorf("manifest %s: %w", m.FilePath(), err)
			}
			if i, ok := at[e.DataFile().FilePath()]; ok {
				d.report.Foreign[i].Snapshot = e.SnapshotID()
			}
		}
	}
	return nil
}

// undeleted reads the rows of a task that nobody has deleted.
func (d *deepReader) undeleted(ctx context.Context, task table.FileScanTask, fn func(origin)) error {
	scan := d.table.Scan(table.WithSelectedFields(d.KafkaColumn+".partition", d.KafkaColumn+".offset"))
	defer scan.Close()
	task.File = maintenance.FormatNamed{DataFile: task.File}
	for _, list := range []*[]iceberg.DataFile{&task.DeleteFiles, &task.EqualityDeleteFiles, &task.DeletionVectorFiles} {
		named := make([]iceberg.DataFile, len(*list))
		for i, f := range *list {
			named[i] = maintenance.FormatNamed{DataFile: f}
		}
		*list = named
	}
	_, batches, err := scan.ReadTasks(ctx, []table.FileScanTask{task})
	if err != nil {
		return err
	}
	for b, err := range batches {
		if err != nil {
			return err
		}
		err := d.eachOrigin(b, fn)
		b.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// eachOrigin reads a batch of the Kafka column alone.
func (d *deepReader) eachOrigin(b arrow.RecordBatch, fn func(origin)) error {
	if b.NumCols() == 0 {
		return errors.New("scan gave no Kafka column")
	}
	kafka, ok := b.Column(0).(*array.Struct)
	if !ok || kafka.NumField() != 2 {
		return fmt.Errorf("scan gave a %s for the Kafka column", b.Column(0).DataType())
	}
	partitions, ok1 := kafka.Field(0).(*array.Int32)
	offsets, ok2 := kafka.Field(1).(*array.Int64)
	if !ok1 || !ok2 {
		return fmt.Errorf("scan gave a %s for the Kafka column", kafka.DataType())
	}
	for i := range kafka.Len() {
		fn(d.at(partitions.Value(i), offsets.Value(i), kafka.IsValid(i) && partitions.IsValid(i) && offsets.IsValid(i)))
	}
	return nil
}

// file reads the partition and offset of each row of one data file, deleted ones too.
func (d *deepReader) file(ctx context.Context, df iceberg.DataFile, fn func(origin) error) error {
	bucket, key, err := d.Locator.Resolve(ctx, df.FilePath())
	if err != nil {
		return err
	}
	// A byte more than it should have tells a file that has grown.
	tail, err := bucket.Get(ctx, key, max(0, df.FileSizeBytes()-1), 2)
	if err != nil {
		return err
	}
	if len(tail) != 1 {
		return fmt.Errorf("does not have the %d bytes that the table says", df.FileSizeBytes())
	}
	r, err := file.NewParquetReader(&objectReader{ctx: ctx, bucket: bucket, key: key, size: df.FileSizeBytes()})
	if err != nil {
		return err
	}
	defer r.Close()
	if r.NumRows() != df.Count() {
		return fmt.Errorf("has %d rows, the table says %d", r.NumRows(), df.Count())
	}
	pc, oc := leaf(r.MetaData().Schema, d.partition), leaf(r.MetaData().Schema, d.offset)
	if pc < 0 || oc < 0 {
		for range r.NumRows() {
			if err := fn(origin{}); err != nil {
				return err
			}
		}
		return nil
	}
	for i := range r.NumRowGroups() {
		if err := d.eachOfGroup(r.RowGroup(i), pc, oc, fn); err != nil {
			return err
		}
	}
	return nil
}

func (d *deepReader) eachOfGroup(g *file.RowGroupReader, pc, oc int, fn func(origin) error) error {
	partitions, err := readLeaf[int32](g, pc)
	if err != nil {
		return err
	}
	offsets, err := readLeaf[int64](g, oc)
	if err != nil {
		return err
	}
	if int64(len(partitions)) != g.NumRows() || int64(len(offsets)) != g.NumRows() {
		return fmt.Errorf("has %d partitions and %d offsets in %d rows", len(partitions), len(offsets), g.NumRows())
	}
	for i, o := range offsets {
		if err := fn(d.at(partitions[i].V, o.V, partitions[i].Valid && o.Valid)); err != nil {
			return err
		}
	}
	return nil
}

// deep counts what the files and the dead letters have of a partition.
func (v *verifier) deep(ctx context.Context, r *PartitionReport, c *counter) error {
	c.dead, c.missing = &offsetSet{}, &offsetSet{}
	r.Beyond = c.beyond
	r.Rows = c.rows.count + r.Duplicates + r.Beyond
	if r.Beyond > 0 {
		c.example("%d rows have offsets of %d or more", r.Beyond, r.Next)
	}
	r.Causes = map[string]int64{}
	err := v.Letters(ctx, r.Partition, func(offset int64, cause string) {
		if offset >= r.Next || !c.dead.add(offset) {
			return
		}
		if cause != "" { // else of a record that may be for another table
			r.Dead++
			r.Causes[cause]++
		}
		if c.rows.has(offset) {
			r.Duplicates++
			c.example("offset %d is a row and a dead letter", offset)
		}
	})
	if err != nil {
		return fmt.Errorf("%w: %w", errLetters, err)
	}
	return nil
}

// settle says of each record that is not in the table whether others have deleted it. They
// have if a delete file says so; or if our commits had brought it there, and the table
// declares itself to be without it. A file that went missing from the manifests by a fault
// is still in the count of the snapshot. If
// the topic leaves records out, as many as the commits tell of without a letter are missing rightly.
func (v *verifier) settle(r *PartitionReport, c *counter, commits bool) {
	c.deleted.each(func(offset int64) {
		if !c.rows.has(offset) {
			r.Deleted++
		}
	})
	leftOut := int64(0)
	if v.LeavesOut {
		leftOut = c.dying() - r.Dead
	}
	r.LeftOut = c.elsewhere
	c.missing.each(func(offset int64) {
		if commits && r.LeftOut < leftOut && c.committed(offset) {
			r.LeftOut++
			return
		}
		if v.declared && commits && c.committed(offset) {
			r.Deleted++
			c.example("offset %d was a row, and others deleted it", offset)
			return
		}
		r.Lost++
		c.example("offset %d is neither a row nor a dead letter", offset)
	})
}

// dying returns how many records did not become rows, as the commits say.
func (c *counter) dying() (n int64) {
	if c.total != (Total{}) {
		return c.total.Dead
	}
	for _, x := range c.ranges {
		n += x.Dead
	}
	return n
}

// committed reports whether a commit of ours tells of the offset.
func (c *counter) committed(offset int64) bool {
	if c.total != (Total{}) && offset >= c.total.Begin {
		return true
	}
	for _, x := range c.ranges {
		if x.Start <= offset && offset < x.End {
			return true
		}
	}
	return false
}

// topicOf returns the topic id in the location of a worker's file, which lies below a
// directory of that name in the table's data; "" for a file that somebody else has written,
// or rewritten, which counts for the topic that asks.
func topicOf(t *table.Table, location string) string {
	below, ok := strings.CutPrefix(location, catalog.DataLocation(t, ""))
	first, _, _ := strings.Cut(below, "/")
	if _, err := uuid.Parse(first); !ok || err != nil || len(first) != 36 {
		return ""
	}
	return first
}

// objectReader reads an object by ranges.
type objectReader struct {
	ctx    context.Context // of the verification; io.ReaderAt carries none
	bucket objectstore.Bucket
	key    string
	size   int64
	at     int64
}

// ReadAt implements io.ReaderAt.
func (o *objectReader) ReadAt(p []byte, off int64) (int, error) {
	if off >= o.size {
		return 0, io.EOF
	}
	body, err := o.bucket.Get(o.ctx, o.key, off, int64(len(p)))
	if err != nil {
		return 0, err
	}
	n := copy(p, body)
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// Read implements io.Reader.
func (o *objectReader) Read(p []byte) (int, error) {
	n, err := o.ReadAt(p, o.at)
	o.at += int64(n)
	return n, err
}

// Seek implements io.Seeker.
func (o *objectReader) Seek(off int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		off += o.at
	case io.SeekEnd:
		off += o.size
	}
	if off < 0 {
		return 0, fmt.Errorf("seek to %d", off)
	}
	o.at = off
	return off, nil
}

func leaf(s *schema.Schema, id int) int {
	for i := range s.NumColumns() {
		if int(s.Column(i).SchemaNode().FieldID()) == id {
			return i
		}
	}
	return -1
}

// readLeaf returns a column that is not repeated, one value a row.
func readLeaf[T int32 | int64](g *file.RowGroupReader, column int) ([]sql.Null[T], error) {
	c, err := g.Column(column)
	if err != nil {
		return nil, err
	}
	r, ok := c.(interface {
		ReadBatch(batchSize int64, values []T, defLvls, repLvls []int16) (total int64, valuesRead int, err error)
	})
	if !ok {
		return nil, fmt.Errorf("column %d is a %T", column, c)
	}
	full := c.Descriptor().MaxDefinitionLevel()
	out := make([]sql.Null[T], 0, g.NumRows())
	buf, levels := make([]T, 4096), make([]int16, 4096)
	for c.HasNext() {
		rows, _, err := r.ReadBatch(int64(len(buf)), buf, levels, nil)
		if err != nil {
			return nil, err
		}
		next := 0
		for _, level := range levels[:rows] {
			var cell sql.Null[T]
			if full == 0 || level == full {
				cell = sql.Null[T]{V: buf[next], Valid: true}
				next++
			}
			out = append(out, cell)
		}
	}
	return out, c.Err()
}
