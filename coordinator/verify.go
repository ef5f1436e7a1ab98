package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/coordinator/control"
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

// Verification is what Verify compares, and how.
type Verification struct {
	Topic       Topic // with the number of its partitions: rows that name others are of other writers
	KafkaColumn string
	Locator     catalog.Locator
	Logs        map[int32]LogReader // the partitions to verify
	// Letters calls fn with the source offset and the cause of each dead letter of a partition; the cause is
	// empty if it may be of a record that is for another table of the topic.
	Letters func(ctx context.Context, partition int32, fn func(offset int64, cause string)) error
	// Deep reads every data file, and compares offset by offset; else the commits are
	// compared with the log by what they say of themselves.
	Deep bool
	// LeavesOut says that table.topic.errors.tolerance or table.topic.tombstone is skip.
	LeavesOut bool
	// Elsewhere reports whether a record is for another table of its topic; nil if it has one table.
	Elsewhere func(ctx context.Context, rec *record.Record) (bool, error)
	// Strict makes rows that others deleted a difference.
	Strict bool
	// Progress is called now and then. May be nil.
	Progress func(Progress)
}

// Progress says how far a verification is.
type Progress struct {
	Files      int64 `json:"files"`
	TotalFiles int64 `json:"total_files"`
	Offsets    int64 `json:"offsets"`
	Total      int64 `json:"total_offsets"`
}

// A Report compares a table with the log of its topic. The names of its fields are stable.
type Report struct {
	Topic      string            `json:"topic"`
	Table      string            `json:"table"`
	Snapshot   int64             `json:"snapshot"`
	Deep       bool              `json:"deep"`
	OK         bool              `json:"ok"` // no difference, in the partitions that are verified
	Files      int64             `json:"files"`
	Records    int64             `json:"records"` // that the files have by the manifests, before deletes
	Partitions []PartitionReport `json:"partitions"`

	// Found by reading the files.
	Earlier      int64         `json:"earlier_rows"`  // of earlier topics of the name
	Others       int64         `json:"foreign_rows"`  // of other writers, which name no offset
	OtherFiles   int64         `json:"foreign_files"` // that have such rows
	Foreign      []ForeignFile `json:"foreign,omitempty"`
	Deletes      int           `json:"delete_files"` // of other writers; they are applied
	Missing      []string      `json:"missing_files,omitempty"`
	Broken       []string      `json:"broken_files,omitempty"`          // with the reason
	Unverified   []int32       `json:"unverified_partitions,omitempty"` // that nobody answers for
	MissingCount int64         `json:"missing"`
	BrokenCount  int64         `json:"broken"`

	// UnverifiedReasons says why, by partition, and what to do.
	UnverifiedReasons map[int32]string `json:"unverified_reasons,omitempty"`
}

// Pass notes that a partition is not verified, and why.
func (r *Report) Pass(partition int32, why error) {
	r.Unverified = append(r.Unverified, partition)
	slices.Sort(r.Unverified)
	if r.UnverifiedReasons == nil {
		r.UnverifiedReasons = map[int32]string{}
	}
	r.UnverifiedReasons[partition] = why.Error()
}

// errLetters says that dead letters could not be read: their leader may be away.
var errLetters = errors.New("dead letters not read")

// A ForeignFile is a data file with rows that other writers added.
type ForeignFile struct {
	Path     string `json:"path"`
	Rows     int64  `json:"rows"` // that name no offset
	Snapshot int64  `json:"snapshot_id"`
}

// PartitionReport is what Verify found of one partition. Every committed record between
// Start and Next must be a row or a dead letter, once.
type PartitionReport struct {
	Partition  int32            `json:"partition"`
	Start      int64            `json:"log_start"`
	End        int64            `json:"log_end"`
	Next       int64            `json:"next"` // first offset that the table does not hold yet
	Rows       int64            `json:"rows"` // deep: in the table; else as its commits say
	Dead       int64            `json:"dead_letters"`
	Causes     map[string]int64 `json:"dead_letters_by_cause,omitempty"`
	Duplicates int64            `json:"duplicates"`           // rows or dead letters too many
	Lost       int64            `json:"lost"`                 // records that are nowhere
	Beyond     int64            `json:"beyond"`               // rows that the table says it does not hold; offsets of commits, if not deep
	Ahead      int64            `json:"ahead"`                // offsets that the table holds, and the log never gave
	Deleted    int64            `json:"deleted"`              // rows that others deleted
	LeftOut    int64            `json:"left_out"`             // deep: records that topic settings leave out of table and dead letters, or that are for other tables of the topic; else dead_letters counts them
	Gaps       int64            `json:"gaps"`                 // offsets of GapRanges
	GapRanges  []LostSpan       `json:"gap_ranges,omitempty"` // recorded as lost, with the reason
	Examples   []string         `json:"examples,omitempty"`
}

// differs reports whether the partition is not as it must be.
func (p *PartitionReport) differs(strict bool) bool {
	return p.Duplicates+p.Lost+p.Beyond+p.Ahead > 0 || strict && p.Deleted > 0
}

// What a report lists at most: per partition, and of files.
const (
	maxExamples = 10
	maxGaps     = 1000
	maxFiles    = 1000
)

type verifier struct {
	Verification
	table    *table.Table
	position Position
	lost     []LostSpan
	declared bool             // the snapshot counts as many rows as its manifests
	found    map[int32]*found // by partition, those of Logs
	report   *Report
	progress Progress
}

// found is what the table has of a partition.
type found struct {
	ranges   []control.Range // of the commits that main still knows, in order
	rows     offsetSet       // in the table
	deleted  offsetSet       // in files, and deleted by others
	extra    int64           // rows too many
	beyond   int64           // rows of offsets that the table says it does not hold
	examples []string
}

func (f *found) example(format string, args ...any) {
	if len(f.examples) < maxExamples {
		f.examples = append(f.examples, fmt.Sprintf(format, args...))
	}
}

// Verify compares the table's current snapshot with the committed records of the log that it
// must hold, and with the dead letters. Its memory is a bit per offset, and what lists hold.
//
// A partition whose dead letters cannot be read is one of those that are not verified.
func Verify(ctx context.Context, t *table.Table, in Verification) (*Report, error) {
	pos, ok, err := ReadPosition(t.Properties())
	if err != nil {
		return nil, fmt.Errorf("verify table %v: %w", t.Identifier(), err)
	}
	if !ok || pos.Topic != in.Topic.ID {
		pos = Position{Next: map[int32]int64{}}
	}
	v := &verifier{
		Verification: in, table: t, position: pos, found: map[int32]*found{},
		report: &Report{Topic: in.Topic.Name, Table: strings.Join(t.Identifier(), "."), Deep: in.Deep},
	}
	for p, log := range in.Logs {
		v.found[p] = &found{}
		start, end := log.Bounds()
		v.progress.Total += max(0, min(end, pos.Next[p])-start)
	}
	if err := v.history(); err != nil {
		return nil, fmt.Errorf("verify table %v: %w", t.Identifier(), err)
	}
	if in.Deep {
		if err := v.files(ctx); err != nil {
			return nil, fmt.Errorf("verify table %v: %w", t.Identifier(), err)
		}
	}
	v.report.OK = v.report.MissingCount+v.report.BrokenCount == 0
	for _, p := range slices.Sorted(maps.Keys(in.Logs)) {
		r, err := v.partition(ctx, p)
		if errors.Is(err, errLetters) && ctx.Err() == nil {
			v.report.Pass(p, err)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("partition %d: %w", p, err)
		}
		v.report.Partitions = append(v.report.Partitions, r)
		v.report.OK = v.report.OK && !r.differs(in.Strict)
	}
	return v.report, nil
}

// history reads the snapshots: what those of main's ancestors cover, and what was lost.
func (v *verifier) history() error {
	meta := v.table.Metadata()
	v.lost = slices.Clone(v.position.Lost)
	if s := meta.CurrentSnapshot(); s != nil && s.Summary != nil {
		v.report.Snapshot = s.SnapshotID
		v.report.Files = int64(s.Summary.Properties.GetInt("total-data-files", 0))
		v.report.Records = int64(s.Summary.Properties.GetInt("total-records", 0))
	}
	for s := meta.CurrentSnapshot(); s != nil; {
		if s.Summary != nil {
			sum, ok, err := ReadSummary(s.Summary.Properties)
			if err != nil {
				return err
			}
			if ok && sum.Topic == v.Topic.ID {
				for _, r := range sum.Ranges {
					if f := v.found[r.Partition]; f != nil {
						f.ranges = append(f.ranges, r)
					}
				}
				v.lost = append(v.lost, sum.Lost...)
			}
		}
		if s.ParentSnapshotID == nil {
			break
		}
		s = meta.SnapshotByID(*s.ParentSnapshotID)
	}
	for _, f := range v.found {
		slices.SortStableFunc(f.ranges, func(a, b control.Range) int { return cmp.Compare(a.Start, b.Start) })
	}
	return nil
}

func (v *verifier) tick() {
	if v.Progress != nil {
		v.Progress(v.progress)
	}
}

// partition compares one partition.
func (v *verifier) partition(ctx context.Context, p int32) (PartitionReport, error) {
	log, next, f := v.Logs[p], v.position.Next[p], v.found[p]
	start, end := log.Bounds()
	r := PartitionReport{Partition: p, Start: start, End: end, Next: next, Ahead: max(0, next-end), Duplicates: f.extra}
	if r.Ahead > 0 {
		f.example("the table holds offsets up to %d, and the log ends at %d: has the log been restored from an older copy?", next, end)
	}
	spans := lostOf(v.lost, p)
	for _, l := range spans {
		r.Gaps += l.End - l.Start
	}
	r.GapRanges = spans[:min(len(spans), maxGaps)]
	c := &counter{found: f, start: start, next: min(next, end), spans: spans, total: v.position.Totals[p]}
	c.cut()
	if v.Deep {
		if err := v.deep(ctx, &r, c); err != nil {
			return r, err
		}
	}
	if err := v.scan(ctx, log, c); err != nil {
		return r, err
	}
	commits := v.commits(&r, c)
	if v.Deep {
		v.settle(&r, c, commits)
	}
	r.Examples = f.examples
	return r, nil
}

// scan counts the records of the log that the table must hold.
func (v *verifier) scan(ctx context.Context, log LogReader, c *counter) error {
	var reader record.Reader
	var rec record.Record
	for at := c.start; at < c.next; {
		batches, after, err := log.Read(ctx, at, 1<<20)
		if err != nil {
			return fmt.Errorf("log at offset %d: %w", at, err)
		}
		if after <= at {
			break
		}
		for _, b := range batches {
			if c.takes(b, at, v.Elsewhere != nil) {
				continue
			}
			if err := reader.Reset(b); err != nil {
				return fmt.Errorf("batch at offset %d: %w", b.BaseOffset(), err)
			}
			for {
				ok, err := reader.Next(&rec)
				if err != nil {
					return fmt.Errorf("batch at offset %d: %w", b.BaseOffset(), err)
				}
				if !ok {
					break
				}
				if rec.Offset < at || rec.Offset >= c.next {
					continue
				}
				if c.counts[c.cell(rec.Offset)]++; !c.misses(rec.Offset) {
					continue
				}
				if v.Elsewhere != nil {
					elsewhere, err := v.Elsewhere(ctx, &rec)
					if err != nil {
						return fmt.Errorf("record at offset %d: %w", rec.Offset, err)
					}
					if elsewhere {
						c.elsewhere++
						continue
					}
				}
				c.missing.add(rec.Offset)
			}
		}
		v.progress.Offsets += min(after, c.next) - at
		v.tick()
		at = after
	}
	return nil
}

// commits compares what the commits say of themselves with the log, and reports whether
// that is sound. Without the files at hand it is the verdict.
func (v *verifier) commits(r *PartitionReport, c *counter) (sound bool) {
	var lost, twice int64
	rows, dead := int64(0), int64(0)
	at := int64(-1)
	for _, x := range c.ranges {
		rows, dead = rows+x.Rows, dead+x.Dead
		if at >= 0 && x.Start < at {
			twice += min(at, x.End) - x.Start
			c.example("offsets %d to %d are in more than one commit", x.Start, min(at, x.End))
		}
		if at >= 0 && x.Start > at {
			if n := c.unexplained(at, x.Start); n > 0 {
				lost += n
				c.example("offsets %d to %d are in no commit", at, x.Start)
			}
		}
		at = max(at, x.End)
		if n, whole := c.records(x.Start, x.End), x.Start >= c.start; whole && n > x.Rows+x.Dead {
			lost += n - x.Rows - x.Dead
			c.example("offsets %d to %d have %d records, and their commit %d rows and %d dead letters", x.Start, x.End, n, x.Rows, x.Dead)
		}
	}
	if at >= 0 && at < r.Next {
		if n := c.unexplained(at, r.Next); n > 0 {
			lost += n
			c.example("the snapshots of main cover offsets below %d, and the table says %d: was it rolled back?", at, r.Next)
		}
	}
	beyond := max(0, at-r.Next)
	if beyond > 0 {
		c.example("the snapshots of main cover offsets below %d, and the table says %d: has a property of it been removed?", at, r.Next)
	}
	t, counted := v.position.Totals[r.Partition]
	if counted {
		rows, dead = t.Rows, t.Dead
		if n := c.unexplained(t.Begin, r.Next); c.start <= t.Begin && n-t.Rows-t.Dead > lost {
			lost = n - t.Rows - t.Dead
			c.example("offsets %d to %d have %d records, and all commits of them %d rows and %d dead letters", t.Begin, r.Next, n, t.Rows, t.Dead)
		}
		if over := t.Rows + t.Dead + t.Gaps - (r.Next - t.Begin); over > twice {
			twice = over
			c.example("%d rows, dead letters and lost offsets are counted in offsets %d to %d", t.Rows+t.Dead+t.Gaps, t.Begin, r.Next)
		}
	}
	if !v.Deep {
		r.Rows, r.Dead, r.Lost, r.Duplicates, r.Beyond = rows, dead, lost, twice, beyond
	}
	return lost+twice == 0
}

// A counter counts the records of a log between the offsets where something begins or ends,
// so that most batches need not be decoded.
type counter struct {
	*found
	start, next int64 // what is looked at
	spans       []LostSpan
	total       Total

	cuts   []int64 // ascending; cell i is from cuts[i] to cuts[i+1]
	counts []int64

	dead, missing *offsetSet // deep only
	elsewhere     int64      // records of other tables, which are not in missing; deep only
}

// cut makes the cells.
func (c *counter) cut() {
	cuts := []int64{c.start, c.next, c.total.Begin}
	for _, x := range c.ranges {
		cuts = append(cuts, x.Start, x.End)
	}
	for _, x := range c.spans {
		cuts = append(cuts, x.Start, x.End)
	}
	slices.Sort(cuts)
	c.cuts = slices.Compact(cuts)
	c.counts = make([]int64, len(c.cuts)+1)
}

// cell returns the cell of an offset: of the offsets below the first cut it is 0.
func (c *counter) cell(offset int64) int {
	i, found := slices.BinarySearch(c.cuts, offset)
	if found {
		i++
	}
	return i
}

// takes counts a batch from offset at on, if that does not need its records one by one. With the files
// at hand it does if not all are for the table.
func (c *counter) takes(b record.Batch, at int64, shared bool) bool {
	base, next := b.BaseOffset(), b.NextOffset()
	if next <= at || base >= c.next {
		return true
	}
	dense := b.NumRecords() == int(b.Count())
	switch {
	case c.dead != nil && dense && !shared:
		for o := max(base, at); o < min(next, c.next); o++ {
			if c.counts[c.cell(o)]++; c.misses(o) {
				c.missing.add(o)
			}
		}
		return true
	case c.dead == nil && base >= at && next <= c.next && c.cell(base) == c.cell(next-1):
		c.counts[c.cell(base)] += int64(b.NumRecords())
		return true
	}
	return false
}

// misses looks for a record, with the files at hand.
func (c *counter) misses(offset int64) bool {
	return c.dead != nil && !c.rows.has(offset) && !c.dead.has(offset) && !c.deleted.has(offset) && !c.inSpan(offset)
}

// inSpan reports whether an offset is recorded as lost.
func (c *counter) inSpan(offset int64) bool {
	i, _ := slices.BinarySearchFunc(c.spans, offset, func(l LostSpan, o int64) int {
		if l.End <= o {
			return -1
		}
		return 1
	})
	return i < len(c.spans) && c.spans[i].Start <= offset
}

// records returns how many records the log has in [from, to).
func (c *counter) records(from, to int64) (n int64) {
	from, to = max(from, c.start), min(to, c.next)
	for i := c.cell(from); from < to && i <= len(c.cuts); i++ {
		if i > 0 && c.cuts[i-1] >= to {
			break
		}
		n += c.counts[i]
	}
	return n
}

// unexplained returns how many records the log has in [from, to) that are not recorded as lost.
func (c *counter) unexplained(from, to int64) int64 {
	n := c.records(from, to)
	for _, x := range c.spans {
		n -= c.records(max(from, x.Start), min(to, x.End))
	}
	return n
}
