package coordinator

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/schema"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/record"
)

// A LogReader is a partition of the topic as Verify reads it.
type LogReader interface {
	// Read returns batches of committed records from offset from on and the offset that
	// follows what it passed, which is from at the end.
	Read(ctx context.Context, from int64, maxBytes int) (batches []record.Batch, next int64, err error)
	// Bounds returns the first offset of the log and the end of what Read returns.
	Bounds() (start, end int64)
}

// A Report compares a table with the log of its topic.
type Report struct {
	Topic      string            `json:"topic"`
	Table      string            `json:"table"`
	Snapshot   int64             `json:"snapshot"`
	Files      int               `json:"files"`
	Partitions []PartitionReport `json:"partitions"`
	Earlier    int64             `json:"earlier_rows"` // rows of earlier topics of the name
	Others     int64             `json:"other_rows"`   // rows of other writers, which name no offset
	Broken     []string          `json:"broken"`       // data files that cannot be read, with the reason
	Deletes    int               `json:"delete_files"` // of other writers: rows are counted before them
}

// PartitionReport is what Verify found of one partition. Every committed record between
// Start and Next must be a row or a dead letter, once.
type PartitionReport struct {
	Partition  int32    `json:"partition"`
	Start      int64    `json:"log_start"`
	End        int64    `json:"log_end"`
	Next       int64    `json:"next"` // first offset that the table does not hold yet
	Rows       int64    `json:"rows"`
	Dead       int64    `json:"dead_letters"`
	Duplicates int64    `json:"duplicates"` // rows or dead letters too many
	Lost       int64    `json:"lost"`       // records that are nowhere
	Beyond     int64    `json:"beyond"`     // rows that the table says it does not hold
	Gaps       int64    `json:"gaps"`       // offsets recorded as lost before they were read, or accepted
	Examples   []string `json:"examples,omitempty"`
}

// OK reports whether the table holds what it says.
func (r *Report) OK() bool {
	if len(r.Broken) > 0 {
		return false
	}
	for _, p := range r.Partitions {
		if p.Duplicates+p.Lost+p.Beyond > 0 {
			return false
		}
	}
	return true
}

// Verify reads every data file of the table's current snapshot, the committed records of
// the log that the table must hold, and the dead letters, and compares them offset by
// offset. It needs the Kafka column. Dead returns the source offsets of a partition's dead
// letters.
func Verify(ctx context.Context, t *table.Table, topic Topic, kafkaColumn string, locator catalog.Locator,
	logs map[int32]LogReader, dead func(ctx context.Context, partition int32) (map[int64]bool, error)) (*Report, error) {
	pos, ok, err := ReadPosition(t.Properties())
	if err != nil {
		return nil, fmt.Errorf("verify table %v: %w", t.Identifier(), err)
	}
	if !ok || pos.Topic != topic.ID {
		pos.Next = map[int32]int64{}
	}
	v := &verifier{topic: topic, locator: locator, rows: map[int32]*offsetSet{}, report: &Report{
		Topic: topic.Name, Table: strings.Join(t.Identifier(), "."),
	}, extra: map[int32]int64{}, examples: map[int32][]string{}}
	if v.partition, v.offset, err = kafkaFields(t.Schema(), kafkaColumn); err != nil {
		return nil, fmt.Errorf("verify table %v: %w", t.Identifier(), err)
	}
	if err := v.files(ctx, t); err != nil {
		return nil, fmt.Errorf("verify table %v: %w", t.Identifier(), err)
	}
	gaps := recordedGaps(t.Metadata(), topic)
	for _, p := range slices.Sorted(maps.Keys(logs)) {
		letters, err := dead(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("dead letters of partition %d: %w", p, err)
		}
		r, err := v.compare(ctx, p, pos.Next[p], logs[p], letters, gaps[p])
		if err != nil {
			return nil, fmt.Errorf("log of partition %d: %w", p, err)
		}
		v.report.Partitions = append(v.report.Partitions, r)
	}
	return v.report, nil
}

type verifier struct {
	topic             Topic
	locator           catalog.Locator
	partition, offset int // field ids
	rows              map[int32]*offsetSet
	extra             map[int32]int64 // rows too many
	examples          map[int32][]string
	report            *Report
}

// maxExamples bounds what a report lists per partition.
const maxExamples = 10

func (v *verifier) example(p int32, format string, args ...any) {
	if len(v.examples[p]) < maxExamples {
		v.examples[p] = append(v.examples[p], fmt.Sprintf(format, args...))
	}
}

// kafkaFields returns the ids of partition and offset in the Kafka column.
func kafkaFields(s *iceberg.Schema, column string) (partition, offset int, err error) {
	p, ok1 := s.FindFieldByName(column + ".partition")
	o, ok2 := s.FindFieldByName(column + ".offset")
	if column == "" || !ok1 || !ok2 {
		return 0, 0, fmt.Errorf("it has no column %q with partition and offset, which verification needs", column)
	}
	return p.ID, o.ID, nil
}

// files reads the origin of every row.
func (v *verifier) files(ctx context.Context, t *table.Table) error {
	s := t.CurrentSnapshot()
	if s == nil {
		return nil
	}
	v.report.Snapshot = s.SnapshotID
	tasks, err := t.Scan().PlanFiles(ctx)
	if err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	for _, task := range tasks {
		v.report.Files++
		v.report.Deletes += len(task.DeleteFiles) + len(task.EqualityDeleteFiles) + len(task.DeletionVectorFiles)
		if err := v.file(ctx, task.File); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			v.report.Broken = append(v.report.Broken, fmt.Sprintf("%s: %v", task.File.FilePath(), err))
		}
	}
	return nil
}

// file reads the partition and offset of each row of one data file.
func (v *verifier) file(ctx context.Context, df iceberg.DataFile) error {
	bucket, key, err := v.locator.Resolve(ctx, df.FilePath())
	if err != nil {
		return err
	}
	body, err := bucket.Get(ctx, key, 0, -1)
	if err != nil {
		return err
	}
	if int64(len(body)) != df.FileSizeBytes() {
		return fmt.Errorf("has %d bytes, the table says %d", len(body), df.FileSizeBytes())
	}
	r, err := file.NewParquetReader(bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer r.Close()
	if r.NumRows() != df.Count() {
		return fmt.Errorf("has %d rows, the table says %d", r.NumRows(), df.Count())
	}
	origin := directory(df.FilePath())
	own := origin == v.topic.ID.String()
	if _, err := uuid.Parse(origin); err == nil && len(origin) == 36 && !own {
		v.report.Earlier += r.NumRows()
		return nil
	}
	pc, oc := leaf(r.MetaData().Schema, v.partition), leaf(r.MetaData().Schema, v.offset)
	if pc < 0 || oc < 0 {
		if own {
			return errors.New("has no columns for partition and offset")
		}
		v.report.Others += r.NumRows()
		return nil
	}
	for i := range r.NumRowGroups() {
		g := r.RowGroup(i)
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
		for j, o := range offsets {
			p := partitions[j]
			if !p.Valid || !o.Valid {
				if own {
					return errors.New("has rows without partition or offset")
				}
				v.report.Others++
				continue
			}
			set := v.rows[p.V]
			if set == nil {
				set = &offsetSet{}
				v.rows[p.V] = set
			}
			if !set.add(o.V) {
				v.extra[p.V]++
				v.example(p.V, "offset %d is in more than one row", o.V)
			}
		}
	}
	return nil
}

// directory returns the last directory of a file's location. For a worker's file that is
// the id of its topic; a file that somebody has rewritten lies elsewhere, and counts for
// the topic that asks.
func directory(location string) string {
	parts := strings.Split(location, "/")
	return parts[max(0, len(parts)-2)]
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

// recordedGaps are the gaps that the summaries of the snapshots tell of.
func recordedGaps(meta table.Metadata, topic Topic) map[int32][]span {
	gaps := map[int32][]span{}
	for _, s := range meta.Snapshots() {
		if s.Summary == nil {
			continue
		}
		sum, ok, err := ReadSummary(s.Summary.Properties)
		if err != nil || !ok || sum.Topic != topic.ID {
			continue
		}
		for _, g := range append(sum.gaps, sum.accepted...) {
			gaps[g.partition] = append(gaps[g.partition], g)
		}
	}
	return gaps
}

// compare looks for each record of the log below next among the rows and letters.
func (v *verifier) compare(ctx context.Context, p int32, next int64, log LogReader, letters map[int64]bool, gaps []span) (PartitionReport, error) {
	start, end := log.Bounds()
	r := PartitionReport{Partition: p, Start: start, End: end, Next: next, Duplicates: v.extra[p]}
	for _, g := range gaps {
		r.Gaps += g.end - g.start
	}
	rows := v.rows[p]
	if rows == nil {
		rows = &offsetSet{}
	}
	r.Rows, r.Beyond = rows.count+r.Duplicates, rows.from(next)
	if r.Beyond > 0 {
		v.example(p, "%d rows have offsets of %d or more", r.Beyond, next)
	}
	for o := range letters {
		if o < next {
			r.Dead++
			if rows.has(o) {
				r.Duplicates++
				v.example(p, "offset %d is a row and a dead letter", o)
			}
		}
	}
	accepted := func(o int64) bool {
		return slices.ContainsFunc(gaps, func(g span) bool { return g.start <= o && o < g.end })
	}
	var reader record.Reader
	var rec record.Record
	for at := start; at < next; {
		batches, after, err := log.Read(ctx, at, 1<<20)
		if err != nil {
			return r, err
		}
		if after <= at {
			break
		}
		for _, b := range batches {
			if err := reader.Reset(b); err != nil {
				return r, fmt.Errorf("batch at offset %d: %w", b.BaseOffset(), err)
			}
			for {
				ok, err := reader.Next(&rec)
				if err != nil {
					return r, fmt.Errorf("batch at offset %d: %w", b.BaseOffset(), err)
				}
				if !ok {
					break
				}
				if rec.Offset < at || rec.Offset >= next || rows.has(rec.Offset) || letters[rec.Offset] || accepted(rec.Offset) {
					continue
				}
				r.Lost++
				v.example(p, "offset %d is neither a row nor a dead letter", rec.Offset)
			}
		}
		at = after
	}
	r.Examples = v.examples[p]
	return r, nil
}

// offsetSet is a set of offsets, a bit each where they are dense.
type offsetSet struct {
	pages map[int64]*[1024]uint64
	count int64
}

// add returns false if o was there.
func (s *offsetSet) add(o int64) bool {
	page := s.pages[o>>16]
	if page == nil {
		if s.pages == nil {
			s.pages = map[int64]*[1024]uint64{}
		}
		page = new([1024]uint64)
		s.pages[o>>16] = page
	}
	word, bit := &page[o>>6&1023], uint64(1)<<(o&63)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	s.count++
	return true
}

func (s *offsetSet) has(o int64) bool {
	page := s.pages[o>>16]
	return page != nil && page[o>>6&1023]&(1<<(o&63)) != 0
}

// from counts the offsets of o and above.
func (s *offsetSet) from(o int64) (n int64) {
	for i, page := range s.pages {
		if i < o>>16 {
			continue
		}
		for j := range page {
			for bit := range int64(64) {
				if page[j]&(1<<bit) != 0 && i<<16|int64(j)<<6|bit >= o {
					n++
				}
			}
		}
	}
	return n
}
