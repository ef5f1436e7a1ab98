package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/iceberg-go/codec"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/parquetio"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// A lane is an open file, or one for each partition of the table that its rows are of. A
// partition's records go to one lane until it is sealed, so that its offsets follow each other
// within a file and from file to file. One task at a time has the lane; between tasks the loop
// has it.
type lane struct {
	table    *tableInfo
	location string        // of its files, without their number
	named    chan struct{} // closed when the journal has the first names
	entered  atomic.Int64  // time of the journal entry that keeps the files, in ns since 1970; 0 before there is one
	first    int           // how many
	out      *parquetio.TableWriter
	ranges   map[int32]*control.Range
	letters  map[int32][]Letter
	copies   []byte // of what letters hold of their records, the newest of them
	held     int    // bytes of letters
	busy     bool   // a task has it
	sealing  bool   // to be sealed when the task is over
	full     bool   // files have their size
	reserved int64  // bytes of the memory budget
}

// namedAhead is how many files of a lane in a table with partitions are journalled when it is
// opened. The names of more are when it is sealed, which costs the time of a write.
const namedAhead = 4

// names returns the locations of n files of the lane.
func (l *lane) names(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s-%d.parquet", l.location, i)
	}
	return out
}

// A file is a sealed lane.
type file struct {
	control.File
	lane     *lane
	names    int // of the lane that the journal has; 0 if it has no rows
	reserved int64
	done     bool // durable, with its dead letters
}

// within reports whether the table, which is at, holds all of the file.
func (f *file) within(at map[int32]int64) bool {
	for _, r := range f.Ranges {
		if reached, begun := at[r.Partition]; !begun || r.End > reached {
			return false
		}
	}
	return true
}

// follows reports whether the file continues the table, and moves at over it if so.
func (f *file) follows(at map[int32]int64) bool {
	for _, r := range f.Ranges {
		if reached, begun := at[r.Partition]; begun && r.Start-r.Gap != reached {
			return false
		}
	}
	for _, r := range f.Ranges {
		at[r.Partition] = r.End
	}
	return true
}

func follows(ranges map[int32]*control.Range, at map[int32]int64) bool {
	for p, r := range ranges {
		if reached, begun := at[p]; begun && r.Start-r.Gap != reached {
			return false
		}
		at[p] = r.End
	}
	return true
}

const (
	maxLetters   = 4 << 20  // bytes of dead letters that a lane holds until it is sealed
	laneBacklog  = 1 << 16  // records per open file before another is worth it
	maxEntries   = 64 << 20 // bytes of manifest entries that wait for a commit before the topic waits, too
	maxAnswer    = 32 << 20 // … that an answer has
	maxAsked     = 1000     // writers that are remembered as asked for, and as refused
	askAgainBase = 5 * time.Second

	quietShare     = 8       // of a chunk: a partition with less is read with others of its records
	gatherRecords  = 4 << 10 // as many do not wait for company
	urgentPatience = 5       // retries that a request waits for what it hurried
)

// schedule starts the tasks that can run now.
func (w *Worker) schedule(ctx context.Context) {
	now := time.Now()
	var backlog int64
	for _, p := range w.order {
		start, end := p.source.Bounds()
		backlog += max(0, end-max(p.next, start))
		p.lag.look(max(p.committed.Load(), start), end, now)
	}
	if backlog == 0 {
		return
	}
	if w.table == nil || w.table.bare {
		w.scout(ctx, now)
		return
	}
	w.sealFull(ctx)
	if w.gen.entries() > maxEntries {
		return // a commit must take them first
	}
	lanes := min(w.cfg.MaxLanes, 1+int(backlog/laneBacklog))
	for i, first := 0, w.cursor; i < len(w.order); i++ {
		at := (first + i) % len(w.order)
		p := w.order[at]
		if p.busy || now.Before(p.retryAt) || !w.waiting(p) || w.gathers(p, now) {
			continue
		}
		l := w.laneFor(p, lanes)
		if l == nil {
			continue
		}
		chunk := w.cfg.ChunkBytes
		if !p.later.IsZero() {
			chunk /= quietShare
		}
		if !w.shared.budget.reserve(taskBytes(chunk)) {
			w.shared.press(w)
			return
		}
		w.gen.running += taskBytes(chunk)
		w.cursor = at + 1
		w.start(p, l, chunk)
	}
}

// taskBytes is what a task may add to memory: the chunk, decompressed, and its columns.
func taskBytes(chunk int) int64 { return 4 * int64(chunk) }

// gathers reports whether the records of p wait for company. A partition of which a task read
// little is read again after a while, or for a request: with a thousand such a task for each batch
// would be most of the work.
func (w *Worker) gathers(p *part, now time.Time) bool {
	_, end := p.source.Bounds()
	return p.urgent == 0 && now.Before(p.later) && end-p.next < gatherRecords
}

// hurry has what waits for company read for the request.
func (w *Worker) hurry() {
	now := time.Now()
	for _, p := range w.order {
		p.urgent = 0
		if !p.busy && !p.later.IsZero() && !now.Before(p.retryAt) && w.waiting(p) {
			_, p.urgent = p.source.Bounds()
		}
	}
}

// settle closes the files for the request, when they have what it hurried. Memory may be short:
// a request does not wait long for that.
func (w *Worker) settle(ctx context.Context) {
	urgent := slices.ContainsFunc(w.order, func(p *part) bool { return p.urgent > 0 })
	if w.open && (!urgent || time.Since(w.sealed) > urgentPatience*w.cfg.Retry) {
		w.open = false
		w.seal(ctx)
	}
}

// laneFor returns the lane of p, or another that is free, or a new one if there are fewer than n.
func (w *Worker) laneFor(p *part, n int) *lane {
	if p.lane != nil {
		if p.lane.busy || p.lane.sealing {
			return nil
		}
		return p.lane
	}
	for _, l := range w.gen.lanes {
		if !l.busy && !l.sealing {
			return l
		}
	}
	if len(w.gen.lanes) >= n {
		return nil
	}
	l, err := w.newLane()
	if err != nil {
		w.log.Error("open data file", "error", err)
		p.retryAt = time.Now().Add(w.cfg.Retry)
		return nil
	}
	w.gen.lanes = append(w.gen.lanes, l)
	return l
}

func (w *Worker) newLane() (*lane, error) {
	t := w.table
	l := &lane{
		table:    t,
		location: t.Location + "/" + w.topic.ID.String() + "/" + uuid.NewString(),
		named:    make(chan struct{}),
		first:    1,
		ranges:   map[int32]*control.Range{},
		letters:  map[int32][]Letter{},
	}
	var err error
	if l.out, err = parquetio.NewTableWriter(t.schema, t.spec, t.KafkaColumn, t.writing); err != nil {
		return nil, err
	}
	if t.spec.NumFields() > 0 {
		l.first = namedAhead
	}
	g := w.gen
	g.tasks.Go(func() {
		if at, err := w.journal(g.ctx, t.UUID, l.names(l.first)); err == nil {
			l.entered.Store(at.UnixNano())
			close(l.named)
		}
	})
	return l, nil
}

// journal names files until the journal has them, and returns the time of the entry. Only for
// names that stay the same meanwhile, and that no entry keeps yet.
func (w *Worker) journal(ctx context.Context, table uuid.UUID, names []string) (at time.Time, err error) {
	for {
		at = time.Now()
		err := w.control.Append(ctx, w.topic.ID, control.Journal{At: at, Table: table, Names: names})
		if err == nil {
			return at, nil
		}
		if ctx.Err() != nil {
			return at, context.Cause(ctx)
		}
		w.log.Warn("journal file name: trying again", "error", err)
		if err := sleep(ctx, w.cfg.Retry); err != nil {
			return at, err
		}
	}
}

// rejournal names the files that wait for a commit, if it is time to, so that they do not look
// forgotten. After a failure the loop does it again, with the names of then: a lane that was sealed
// meanwhile has more of them, which an entry of the old ones would not keep.
func (w *Worker) rejournal() {
	g, t := w.gen, w.table
	lanes, names := g.named()
	if !w.due || g.naming {
		return
	}
	if w.due = false; len(names) == 0 {
		return
	}
	g.naming = true
	entry := control.Journal{At: time.Now(), Table: t.UUID, Names: names} // older than what a lane is sealed with after it
	g.tasks.Go(func() {
		err := w.control.Append(g.ctx, w.topic.ID, entry)
		g.report(func() {
			g.naming = false
			if err != nil {
				w.log.Warn("journal the names of files that wait: trying again", "error", err)
				w.due = true
				return
			}
			for _, l := range lanes {
				if l.entered.Load() != 0 && !w.lapsed(l) { // else it came too late, or before the first
					l.entered.Store(entry.At.UnixNano())
				}
			}
		})
	})
}

// lapsed reports whether the journal does not keep the files of a lane any more.
func (w *Worker) lapsed(l *lane) bool {
	at := l.entered.Load()
	return at != 0 && !time.Now().Before(control.Lapses(time.Unix(0, at), w.cfg.Grace)) && !invariant.Off("worker-lapses")
}

// giveUp converts again what the table does not hold, and lets no round wait for that. Files
// that were written are named once more, for the sweep to find.
func (w *Worker) giveUp(ctx context.Context) {
	_, names := w.gen.named()
	w.begin(ctx, w.table, w.held())
	w.send(ctx, control.Journal{At: time.Now(), Table: w.table.UUID, Names: names})
	w.send(ctx, control.Hello{Worker: w.id, Partitions: w.indexes()})
}

// start runs a task that converts a chunk of p into l.
func (w *Worker) start(p *part, l *lane, chunk int) {
	g, t := w.gen, w.table
	p.busy, l.busy, p.lane = true, true, l
	task := &task{w: w, p: p, l: l, chunk: chunk, table: t, refused: w.refused, joins: l.ranges[p.index] != nil, next: p.next, gap: p.gap, skip: p.skip,
		reading: w.reading(), decoders: map[control.Writer]*parquetio.Decoder{}}
	if p.skip != nil {
		task.reading.forgotten = p.forgotten
	}
	g.tasks.Go(func() {
		if !w.shared.enter(g.ctx) {
			return
		}
		task.run(g.ctx)
		w.shared.leave()
		g.report(func() { w.finish(task) })
	})
}

// A task converts a chunk of one partition into a lane. Its results are fields.
type task struct {
	w       *Worker
	p       *part
	l       *lane
	chunk   int // bytes to read, about
	table   *tableInfo
	refused map[control.Writer]string

	reading  *reading
	decoders map[control.Writer]*parquetio.Decoder // those of table, as far as used
	before   [2]payload                            // the last value and key: the next has mostly the same decoder

	joins     bool  // the lane has records of the partition
	begin     int64 // first offset passed
	next      int64 // to be read next
	gap       int64
	skip      map[int64]bool // as [DeadLetters.Since] gives them
	last      int64          // the largest of skip that is the table's own
	rows      int64
	kind      string                   // type of the record at hand, in a topic with several tables; "" if it is not known
	died      int64                    // records that cannot become rows, or are for other tables
	others    int64                    // … of these
	needed    *control.Writer          // the table must hold what it writes first; nil if none
	inference *parquetio.JSONInference // of what plain JSON needs; nil if it lacks nothing
	inferred  bool                     // it is of keys
	split     bool                     // what is read next belongs into another file: a gap is before it, or the lane has no room
	full      bool                     // the lane's files have their size
	err       error                    // what stopped the task; next is where to go on
	size      int64                    // of the lane
	read      int                      // bytes
	letterRow []byte                   // of [appendLetterRow]
	ended     bool                     // all is read that there was when the task began
	first     int64                    // timestamp of the first batch, in milliseconds; 0 if none was read
}

// run converts until the chunk ends, or a record needs what is not there yet.
func (t *task) run(ctx context.Context) {
	begin := t.prepare(ctx)
	if t.err == nil && !t.split {
		t.convert(ctx)
	}
	t.begin = begin
	t.size = t.l.out.Memory() + int64(t.l.held)
	t.full = t.full || t.l.out.Full(t.w.cfg.TargetFileBytes)
}

// prepare finds where to begin, and which records became dead letters in an earlier life.
func (t *task) prepare(ctx context.Context) (begin int64) {
	if t.next < 0 {
		if t.err = t.skipTo(ctx); t.err != nil {
			return t.next
		}
	}
	if start, _ := t.p.source.Bounds(); t.next < start {
		if t.next >= 0 {
			if t.joins {
				t.split = true
				return t.next
			}
			t.gap += start - t.next
		}
		t.next = start
	}
	if t.skip == nil {
		t.skip, t.err = t.w.dead.Since(ctx, t.p.index, t.next)
	}
	for offset, own := range t.skip {
		if own {
			t.last = max(t.last, offset)
		}
	}
	return t.next
}

// skipTo leaves out what is before the start of the table, if that is not the log's.
func (t *task) skipTo(ctx context.Context) error {
	if t.w.cfg.Start == nil {
		return nil
	}
	from, err := t.w.cfg.Start(ctx, t.p.index)
	if err != nil {
		return err
	}
	if start, _ := t.p.source.Bounds(); from > start {
		t.gap, t.next = from-start, from
		t.p.begins.Store(from)
	}
	return nil
}

// convert decodes a chunk of records.
func (t *task) convert(ctx context.Context) {
	_, end := t.p.source.Bounds()
	defer func() { t.ended = t.next >= end }()
	if t.next >= end {
		return
	}
	batches, next, err := t.p.source.Read(ctx, t.next, t.chunk)
	if err != nil {
		if !errors.Is(err, ErrBelowStart) { // else prepare finds the gap
			t.err = err
		}
		return
	}
	reader := t.w.shared.readers.Get().(*record.Reader)
	defer t.w.shared.readers.Put(reader)
	var rec record.Record
	if len(batches) > 0 {
		t.first = batches[0].MaxTimestamp()
	}
	for i, b := range batches {
		t.read += len(b)
		if err := reader.Reset(b); err != nil {
			t.err = fmt.Errorf("batch at offset %d: %w", b.BaseOffset(), err)
			return
		}
		m := parquetio.RecordMeta{Partition: t.p.index}
		if b.LogAppendTime() {
			m.TimestampType = 1
		}
		for {
			ok, err := reader.Next(&rec)
			if err != nil {
				t.err = fmt.Errorf("record after offset %d: %w", t.next, err)
				return
			}
			if !ok {
				break
			}
			if rec.Offset < t.next {
				continue
			}
			if !t.record(ctx, &rec, m) {
				if t.inference != nil {
					t.sample(reader, batches[i+1:])
				}
				return
			}
			t.next = rec.Offset + 1
		}
		if ctx.Err() != nil {
			t.err = ctx.Err()
			return
		}
	}
	t.next = max(t.next, next)
}

// record makes a row or a dead letter of rec. It returns false if neither can be made now.
func (t *task) record(ctx context.Context, rec *record.Record, m parquetio.RecordMeta) bool {
	if own, dead := t.skip[rec.Offset]; dead && !(own && invariant.Off("dead-letter-stays-dead")) && (own || !invariant.Off("letters-of-the-topic-stay-dead")) {
		t.died++
		return true
	}
	if t.w.cfg.Share.Routed != nil {
		if done, ok := t.takes(ctx, rec); done {
			return ok
		}
	}
	m.Offset, m.Timestamp, m.Key, m.Headers = rec.Offset, rec.Timestamp, rec.Key, rec.Headers
	var value payload
	data := rec.Value
	if t.w.cfg.Value.Format == partition.FormatLetter {
		t.letterRow = appendLetterRow(t.letterRow[:0], rec)
		data = t.letterRow
	}
	if data != nil {
		var bad *unfit
		if value, bad = t.payload(ctx, false, data, rec.Headers); bad != nil {
			return t.dead(rec, bad, value.writer.Schema)
		}
		if value.decoder == nil {
			return false
		}
	} else if t.w.cfg.SkipTombstones {
		t.leaveOut(CauseTombstone)
		return true
	}
	if rec.Key != nil && t.w.cfg.KeyColumn != "" {
		key, bad := t.payload(ctx, true, rec.Key, rec.Headers)
		if bad != nil {
			return t.dead(rec, bad, key.writer.Schema)
		}
		if key.decoder == nil && t.err == nil && t.needed == nil { // the first key that is not null makes the column
			if bad := t.infer(rec, true); bad != nil {
				return t.dead(rec, bad, 0)
			}
		}
		if t.err != nil || t.needed != nil {
			return false
		}
		m.KeyDecoder, m.KeyPayload = key.decoder, key.body
	}
	var err error
	if value.decoder == nil {
		err = t.l.out.AppendNull(m)
	} else {
		err = t.l.out.Append(value.decoder, value.body, m)
	}
	if err == nil {
		t.rows++
		return true
	}
	var wrong *parquetio.DecodeError
	switch {
	case errors.As(err, &wrong):
		// What names no schema may be of one that was registered since the chunk was read.
		switch again, err := t.reading.renewed(ctx); {
		case err != nil:
			t.err = err
			return false
		case again:
			return t.record(ctx, rec, m)
		}
		if wrong.Stack != nil {
			t.w.faults.Warn("a decoder fails: this is a fault of the program, and the record is not lost", "partition", t.p.index, "offset", rec.Offset,
				"schema", value.writer, "error", err, "stack", string(wrong.Stack))
		}
		return t.dead(rec, &unfit{CauseUndecodable, err.Error()}, value.writer.Schema)
	case errors.Is(err, parquetio.ErrFull):
		t.split, t.full = true, true
		return false
	case errors.Is(err, parquetio.ErrLacksColumn):
		return t.lack(rec)
	default:
		t.err = err
		return false
	}
}

// dead does with a record that cannot become a row what the topic's setting says.
func (t *task) dead(rec *record.Record, bad *unfit, id int32) bool {
	switch t.w.cfg.Tolerance {
	case partition.ToleratePause:
		t.err = fmt.Errorf("record cannot become a row: %s: %s; set table.topic.errors.tolerance to dlq or skip, or restore what it needs", bad.cause, bad.detail)
		return false
	case partition.TolerateSkip:
	default:
		if !t.letter(rec, bad, id) {
			return false
		}
	}
	t.leaveOut(bad.cause)
	return true
}

// leaveOut counts a record that is no row.
func (t *task) leaveOut(cause string) {
	t.died++
	t.w.metrics.dead(cause)
}

// letter keeps a copy of rec until the lane is sealed. It returns false if a later record
// is a dead letter already: this one was good when that was written, and would be taken for
// a repeat.
func (t *task) letter(rec *record.Record, bad *unfit, id int32) bool {
	if rec.Offset < t.last {
		t.err = fmt.Errorf("record was good before a restart and is not now: %s: %s; restore the schema, or skip the record by deleting records up to it", bad.cause, bad.detail)
		return false
	}
	l := Letter{Record: record.Record{Offset: rec.Offset, Timestamp: rec.Timestamp, Key: t.l.copy(rec.Key), Value: t.l.copy(rec.Value)},
		Cause: bad.cause, Detail: bad.detail, SchemaID: id, Type: t.kind}
	for _, h := range rec.Headers {
		l.Record.Headers = append(l.Record.Headers, record.Header{Key: strings.Clone(h.Key), Value: t.l.copy(h.Value)})
		t.l.held += len(h.Key) + len(h.Value)
	}
	t.l.letters[t.p.index] = append(t.l.letters[t.p.index], l)
	t.l.held += len(l.Record.Key) + len(l.Record.Value) + len(bad.detail) + 200
	return true
}

// copy returns a copy of b, in memory that the letters of the lane share; nil if b is nil.
func (l *lane) copy(b []byte) []byte {
	const piece = 32 << 10
	if len(b) == 0 || len(b) > piece/4 {
		return slices.Clone(b)
	}
	if cap(l.copies)-len(l.copies) < len(b) {
		l.copies = make([]byte, 0, piece)
	}
	at := len(l.copies)
	l.copies = append(l.copies, b...)
	return l.copies[at:len(l.copies):len(l.copies)]
}

// finish takes the result of a task.
func (w *Worker) finish(t *task) {
	t.p.busy, t.l.busy = false, false
	if t.next > t.begin {
		r := t.l.ranges[t.p.index]
		if r == nil {
			r = &control.Range{Partition: t.p.index, Start: t.begin, Gap: t.gap}
			t.l.ranges[t.p.index] = r
			t.gap = 0
		}
		r.End = t.next
		r.Rows += t.rows
		r.Dead += t.died
	}
	t.p.next, t.p.gap, t.p.skip, t.p.forgotten = t.next, t.gap, t.skip, t.reading.forgotten
	stopped := t.next == t.begin || t.err != nil || t.needed != nil || t.split
	if stopped || t.next >= t.p.urgent {
		t.p.urgent = 0
	}
	t.p.later = time.Time{}
	if !stopped && t.ended && t.read < w.cfg.ChunkBytes/quietShare {
		t.p.later = time.Now().Add(w.cfg.Gather)
	}
	w.gen.running -= taskBytes(t.chunk)
	w.shared.budget.add(t.size - t.l.reserved - taskBytes(t.chunk))
	t.l.reserved, t.l.full = t.size, t.full
	w.metrics.rows.Add(float64(t.rows))
	w.metrics.others.Add(float64(t.others))
	if t.next == t.begin && t.needed == nil && t.err == nil && !t.split {
		t.p.retryAt = time.Now().Add(w.cfg.Retry) // the log gave nothing
	}
	if t.first > 0 {
		t.p.lag.read(time.UnixMilli(t.first))
	}
	t.p.lag.ails(t.trouble(), time.Now())
	if t.needed != nil {
		t.p.waits, t.p.retryAt = true, time.Now().Add(askAgainBase) // the answer may have come before, or never
		w.need(w.gen.ctx, *t.needed)
	}
	if t.err != nil {
		if !errors.Is(t.err, errUndecided) && !errors.Is(t.err, errForgotten) { // that is soon over
			w.log.Warn("partition waits", "partition", t.p.index, "offset", t.next, "error", t.err)
		}
		t.p.retryAt = time.Now().Add(w.cfg.Retry)
	}
	if t.l.sealing || t.split {
		w.sealLane(t.l)
	}
}

// trouble says why the task did not go on.
func (t *task) trouble() string {
	switch {
	case t.err != nil:
		return fmt.Sprintf("partition %d waits at offset %d: %v", t.p.index, t.next, t.err)
	case t.needed != nil:
		return fmt.Sprintf("partition %d waits at offset %d for a table that holds schema %s", t.p.index, t.next, *t.needed)
	}
	return ""
}

// need asks the coordinator for a table that holds what a writer writes, and again after a while.
func (w *Worker) need(ctx context.Context, writer control.Writer) {
	if time.Since(w.asked[writer]) < askAgainBase {
		return
	}
	if len(w.asked) >= maxAsked {
		clear(w.asked)
	}
	w.asked[writer] = time.Now()
	w.send(ctx, control.Needed{Writer: writer})
}

// scout finds out what table the first records need, while there is none, or one that has no place for
// where they come from.
func (w *Worker) scout(ctx context.Context, now time.Time) {
	for _, p := range w.order {
		if p.busy || now.Before(p.retryAt) || !w.waiting(p) {
			continue
		}
		p.busy = true
		p.retryAt = now.Add(askAgainBase)
		g, from := w.gen, p.next
		g.tasks.Go(func() {
			first, any, err := w.firstWriter(g.ctx, p, from)
			g.report(func() {
				p.busy = false
				if err != nil {
					p.lag.ails(fmt.Sprintf("partition %d waits: %v", p.index, err), time.Now())
					w.log.Warn("partition waits", "partition", p.index, "error", err)
					p.retryAt = time.Now().Add(w.cfg.Retry)
					return
				}
				p.lag.ails("", time.Now())
				if any && (w.table == nil || w.table.bare) {
					w.need(ctx, first)
				}
			})
		})
	}
}

// firstWriter returns the first usable writer of a chunk, the zero Writer if there is none, and
// whether there are records.
func (w *Worker) firstWriter(ctx context.Context, p *part, from int64) (none control.Writer, any bool, err error) {
	start, end := p.source.Bounds()
	if from < 0 && w.cfg.Start != nil {
		if from, err = w.cfg.Start(ctx, p.index); err != nil {
			return none, false, err
		}
		p.begins.Store(from)
	}
	if from = max(from, start); from >= end {
		return none, false, nil
	}
	batches, _, err := p.source.Read(ctx, from, w.cfg.ChunkBytes)
	if err != nil {
		return none, false, err
	}
	reader := w.shared.readers.Get().(*record.Reader)
	defer w.shared.readers.Put(reader)
	var rec record.Record
	bad, reading := map[control.Writer]bool{}, w.reading()
	for _, b := range batches {
		if err := reader.Reset(b); err != nil {
			return none, false, fmt.Errorf("batch at offset %d: %w", b.BaseOffset(), err)
		}
		for {
			ok, err := reader.Next(&rec)
			if err != nil {
				return none, false, fmt.Errorf("batch at offset %d: %w", b.BaseOffset(), err)
			}
			if !ok {
				break
			}
			if rec.Value == nil {
				continue
			}
			switch takes, _, bad, err := reading.takes(ctx, p.index, &rec); {
			case errors.Is(err, errUndecided):
				continue
			case err != nil:
				return none, false, err
			case !takes || bad != nil:
				continue
			}
			value, unfit, err := reading.payload(ctx, false, rec.Value, rec.Headers)
			if err != nil && !control.Certain(err) {
				return none, false, err
			}
			writer := value.writer
			if err != nil || unfit != nil || bad[writer] {
				continue
			}
			if writer.Format == control.FormatJSON {
				return none, true, nil // its columns come when they are needed
			}
			_, err = w.schemas.Value(ctx, writer, w.cfg.Rules)
			if err == nil {
				return writer, true, nil
			}
			if !control.Certain(err) {
				return none, false, err
			}
			bad[writer] = true
		}
	}
	return none, true, nil
}

// seal closes every open file; one that a task has is closed when the task is over.
func (w *Worker) seal(context.Context) {
	for _, l := range slices.Clone(w.gen.lanes) {
		if l.busy {
			l.sealing = true
		} else {
			w.sealLane(l)
		}
	}
}

// sealFull closes files that have their size, or hold many dead letters.
func (w *Worker) sealFull(ctx context.Context) {
	for _, l := range slices.Clone(w.gen.lanes) {
		if l.busy || l.sealing {
			continue
		}
		if l.full {
			w.sealLane(l)
			w.told = true
			w.send(ctx, control.Pending{Worker: w.id, Since: w.oldest, Full: true})
		} else if l.held >= maxLetters {
			w.sealLane(l)
		}
	}
}

// relieve closes the largest open file, because memory is short.
func (w *Worker) relieve(ctx context.Context) {
	var largest *lane
	for _, l := range w.gen.lanes {
		if !l.busy && !l.sealing && len(l.ranges) > 0 && (largest == nil || l.reserved > largest.reserved) {
			largest = l
		}
	}
	if largest != nil {
		w.sealLane(largest)
		w.send(ctx, control.Pending{Worker: w.id, Since: w.oldest, Full: true})
	}
}

// sealLane makes a file of a lane and begins to write it.
func (w *Worker) sealLane(l *lane) {
	g := w.gen
	g.lanes = slices.DeleteFunc(g.lanes, func(o *lane) bool { return o == l })
	for _, p := range w.order {
		if p.lane == l {
			p.lane = nil
		}
	}
	if len(l.ranges) == 0 {
		w.shared.budget.add(-l.reserved)
		return
	}
	f := &file{lane: l, reserved: l.reserved}
	for _, p := range sortedKeys(l.ranges) {
		f.Ranges = append(f.Ranges, *l.ranges[p])
	}
	if f.Rows = l.out.Rows(); f.Rows > 0 {
		f.names = l.out.Partitions()
	}
	g.files = append(g.files, f)
	before, after := g.letters, make(chan struct{})
	g.letters = after
	g.tasks.Go(func() {
		if w.writeLetters(g.ctx, l, before) == nil {
			close(after)
		}
	})
	g.tasks.Go(func() {
		out, err := w.write(g.ctx, l, f.File)
		if err == nil && !invariant.Off("letters-before-answer") {
			select {
			case <-after:
			case <-g.ctx.Done():
			}
		}
		if g.ctx.Err() != nil {
			return
		}
		if err != nil {
			w.log.Error("data file lost; its records are converted again", "file", l.location, "error", err)
			g.report(func() { w.giveUp(g.parent) })
			return
		}
		g.report(func() {
			f.File, f.done = out, true
			held := out.EntryBytes()
			w.shared.budget.add(held - f.reserved)
			f.reserved, f.lane.out = held, nil
			w.metrics.files.Add(float64(len(out.Data)))
			w.metrics.bytes.Add(float64(f.Bytes))
		})
	})
}

// writeLetters makes the dead letters of a lane durable, after those of the lanes before it:
// they are accepted in the order of their offsets only.
func (w *Worker) writeLetters(ctx context.Context, l *lane, before <-chan struct{}) error {
	select {
	case <-before:
	case <-ctx.Done():
		return ctx.Err()
	}
	appends, ctx := errgroup.WithContext(ctx)
	appends.SetLimit(maxPuts)
	for _, p := range sortedKeys(l.letters) {
		appends.Go(func() error { return w.appendLetters(ctx, p, l.letters[p]) })
	}
	return appends.Wait()
}

// appendLetters appends the dead letters of a partition until they are durable, or ctx ends.
func (w *Worker) appendLetters(ctx context.Context, partition int32, letters []Letter) error {
	for {
		err := w.dead.Append(ctx, partition, letters)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		w.log.Warn("dead letters not written; the commit waits", "partition", partition, "error", err)
		if err := sleep(ctx, w.cfg.Retry); err != nil {
			return err
		}
	}
}

// maxPuts is how many files of a lane are on their way to the store at a time, and how many
// partitions' dead letters to their log.
const maxPuts = 8

// write ends the files of a lane and PUTs them, after the journal has their names.
func (w *Worker) write(ctx context.Context, l *lane, f control.File) (control.File, error) {
	if f.Rows == 0 {
		return f, nil
	}
	entered := w.shared.enter(ctx)
	if !entered {
		return f, ctx.Err()
	}
	names, named := l.names(l.out.Partitions()), make(chan struct{})
	puts, putCtx := errgroup.WithContext(ctx)
	puts.SetLimit(maxPuts)
	puts.Go(func() error { defer close(named); return w.awaitNames(putCtx, l) })
	err := l.out.Close(func(p parquetio.Part) error {
		location := names[len(f.Data)]
		entry, err := p.DataFile(l.table.spec, location)
		if err != nil {
			return err
		}
		d := control.DataFile{Location: location}
		if d.Entry, err = codec.EncodeDataFile(entry, l.table.spec, l.table.schema, l.table.FormatVersion); err != nil {
			return err
		}
		f.Data = append(f.Data, d)
		f.Bytes += p.Size
		w.shared.leave() // others convert while this waits for the store
		puts.Go(func() error { return w.put(putCtx, l, named, location, p.Body) })
		if entered = w.shared.enter(putCtx); !entered {
			return context.Cause(putCtx)
		}
		return nil
	})
	if entered {
		w.shared.leave()
	}
	if err = errors.Join(err, puts.Wait()); err != nil {
		return f, err
	}
	f.Schema, f.Spec = l.table.schema.ID, l.table.spec.ID()
	return f, nil
}

// awaitNames returns when the journal has the names of all files of a lane.
func (w *Worker) awaitNames(ctx context.Context, l *lane) error {
	if invariant.Off("journal-before-put") {
		return nil
	}
	select {
	case <-l.named:
	case <-ctx.Done():
		return ctx.Err()
	}
	if n := l.out.Partitions(); n > l.first {
		_, err := w.journal(ctx, l.table.UUID, l.names(n)[l.first:])
		return err
	}
	return nil
}

// errLapsed says that files can wait no longer, because the journal could not be written.
var errLapsed = errors.New("could not be named in the control log for so long that the sweep may take it")

// put writes a file of l once it is named, again until the store has it, the journal does not
// keep it any more, or ctx ends.
func (w *Worker) put(ctx context.Context, l *lane, named <-chan struct{}, location string, body [][]byte) error {
	<-named
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for attempt := 0; ; attempt++ {
		if w.lapsed(l) {
			return errLapsed
		}
		bucket, key, err := w.locator.Resolve(ctx, location) // anew: its catalog may be another by now
		if err == nil {
			err = bucket.Put(ctx, key, body...)
		}
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		w.log.Warn("data file not written; trying again", "file", location, "attempt", attempt+1, "error", err)
		if err := sleep(ctx, min(w.cfg.Retry<<min(attempt, 4), 15*time.Second)); err != nil {
			return err
		}
	}
}

// held returns what the table holds, as far as the worker knows.
func (w *Worker) held() []control.Offset {
	at := map[int32]int64{}
	for _, p := range w.order {
		if c := p.committed.Load(); c >= 0 {
			at[p.index] = c
		}
	}
	return offsets(at)
}
