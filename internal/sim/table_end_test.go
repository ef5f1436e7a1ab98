package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// finish starts every node again, without faults, waits until the tables hold their logs, and
// compares them; then until what no commit adopted is swept.
func (w *tableWorld) finish() {
	w.trace.add("world", "the end begins")
	w.healed.Store(true)
	w.known.Store(true)
	w.plan.streams = objectstore.Faults{}
	for _, n := range w.nodes {
		l := n.newLife()
		if err := l.open(); err != nil {
			w.fail("%s does not start at the end: %v", l.name, err)
			l.end()
			return
		}
		checks := []func() error{l.heal, l.caughtUp, l.compare, l.swept}
		if w.plan.shared {
			checks = []func() error{l.heal, l.owns}
		}
		for _, check := range checks {
			if err := check(); err != nil {
				w.fail("%s: %v", l.topic().name, err)
				l.end()
				return
			}
		}
		l.end()
	}
}

// heal does what only the owner of a table can: one that was rolled back goes on.
func (l *tableLife) heal() error {
	w, name := l.n.w, l.topic().name
	topic, ok := l.set.Topic(name)
	if !ok {
		return fmt.Errorf("topic %s has gone", name)
	}
	rewind := w.plan.rewind
	if rewind == "pause" {
		rewind = "replay"
	}
	set := map[string]string{"table.topic.enable": "true", "table.topic.target.lag.ms": "1000", "table.topic.on.rewind": rewind}
	if _, err := l.set.AlterConfig(l.ctx, name, set, []string{"retention.ms"}); err != nil {
		return err
	}
	if err := l.decide(); err != nil {
		return err
	}
	for i := range topic.Partitions {
		l.append(l.ctx, topic.ID, int32(i), narrow, wide) // whoever had nothing to do looks at the table
		if w.plan.types > 0 {
			l.append(l.ctx, topic.ID, int32(i), payment, refund)
		}
	}
	return nil
}

// owns checks the table that two topics want: it has the rows of one, and the other is told so.
func (l *tableLife) owns() error {
	w := l.n.w
	for end := time.Now().Add(patience); time.Now().Before(end); {
		t, err := w.catalog.Load(l.ctx, l.topic().table)
		if err == nil && t.Properties()["tabletopic.topic"] == l.topic().name {
			return errors.Join(l.caughtUp(), l.compare())
		}
		topic, _ := l.set.Topic(l.topic().name)
		if why := l.coordinators.Trouble(topic.ID); err == nil && why != nil && strings.Contains(why.Error(), "is that of topic") {
			_, err := w.replay(l.topic().table)
			return err
		}
		if err := wait(l.ctx, time.Second); err != nil {
			return err
		}
	}
	return errors.New("the table is of neither topic")
}

// patience is how long a table may take at the end.
const patience = 30 * time.Minute

// caughtUp waits until the table holds the whole log.
func (l *tableLife) caughtUp() error {
	var why error
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if why = l.behind(); why == nil {
			return nil
		}
		if errors.Is(why, errSettingNeeded) {
			l.log("%v", why)
			if _, err := l.set.AlterConfig(l.ctx, l.topic().name, map[string]string{"table.topic.on.rewind": "accept"}, nil); err != nil {
				return err
			}
		}
		if err := wait(l.ctx, time.Second); err != nil {
			return err
		}
	}
	return fmt.Errorf("the table does not catch up: %w", why)
}

// errSettingNeeded says that the table waits for its owner, who is asked to accept a loss.
var errSettingNeeded = errors.New("the table waits for table.topic.on.rewind=accept")

func (l *tableLife) behind() error {
	topic, _ := l.set.Topic(l.topic().name)
	for _, r := range l.topic().routes(topic.ID) {
		if err := l.routeBehind(topic, r); err != nil {
			return fmt.Errorf("%s: %w", r.table[1], err)
		}
	}
	return nil
}

func (l *tableLife) routeBehind(topic metadata.Topic, r tableRoute) error {
	if err := l.coordinators.Trouble(r.id); err != nil {
		if strings.Contains(err.Error(), "set table.topic.on.rewind=accept") {
			return errSettingNeeded
		}
		return err
	}
	t, err := l.n.w.catalog.Load(l.ctx, r.table)
	if err != nil {
		return err
	}
	at, _, err := coordinator.ReadPosition(t.Properties())
	if err != nil {
		return err
	}
	if at.Topic != r.id {
		return fmt.Errorf("it is at topic %s, not %s", at.Topic, r.id)
	}
	for i := range topic.Partitions {
		p, err := l.set.Partition(topic.Name, int32(i))
		if err != nil {
			return err
		}
		if o := p.Offsets(); o.LastStable != at.Next[int32(i)] {
			return fmt.Errorf("partition %d is at %d of %d", i, at.Next[int32(i)], o.LastStable)
		}
	}
	return nil
}

// A row is what a table says of a record.
type row struct {
	key   int64
	id    *int64
	extra string
	more  int64
	file  string
}

// An inTable is what is in one table of a topic, and in the dead letters of it.
type inTable struct {
	tableRoute
	rows    map[place]map[int64]row
	letters map[place]map[int64]int
	h       *history
}

func (f *inTable) rowsOf(partition int32) map[int64]row    { return f.rows[place{f.id, partition}] }
func (f *inTable) lettersOf(partition int32) map[int64]int { return f.letters[place{f.id, partition}] }

// compare checks the tables against the log, what was sent, the dead letters, and their own histories.
func (l *tableLife) compare() error {
	w, name := l.n.w, l.topic().name
	letters, err := l.readLetters()
	if err != nil {
		return err
	}
	topic, _ := l.set.Topic(name)
	var tables []*inTable
	snapshots, compactions := 0, 0
	for _, r := range l.topic().routes(topic.ID) {
		t, err := w.catalog.Load(l.ctx, r.table)
		if err != nil {
			return err
		}
		f := &inTable{tableRoute: r, letters: letters}
		if f.h, err = w.replay(r.table); err != nil {
			return err
		}
		if err := w.missing(t); err != nil {
			return err
		}
		if f.rows, err = w.readTable(t); err != nil {
			return err
		}
		if err := l.abortedNowhere(t, f.h); err != nil {
			return err
		}
		tables = append(tables, f)
		snapshots, compactions = snapshots+len(t.Metadata().Snapshots()), compactions+f.h.compactions
	}
	n := 0
	for i := range topic.Partitions {
		p, err := l.set.Partition(name, int32(i))
		if err != nil {
			return err
		}
		at := place{topic.ID, int32(i)}
		want, err := l.expected(p, at)
		if err != nil {
			return err
		}
		n += len(want)
		if err := l.comparePartition(at, want, tables); err != nil {
			return fmt.Errorf("partition %d: %w", i, err)
		}
		for _, f := range tables {
			at := place{f.id, at.partition}
			if w.holdsAll() && (f.h.begun[at] > 0 || len(f.h.gaps[at]) > 0) {
				return fmt.Errorf("partition %d: retention removed what the table %s did not have: it began at %d and left out %v", i, f.table[1], f.h.begun[at], f.h.gaps[at])
			}
		}
	}
	l.log("compared %d records, %d snapshots, %d compactions", n, snapshots, compactions)
	return nil
}

// abortedNowhere checks that no data file of a topic that a snapshot ever had holds a record of a
// transaction that was aborted, whatever became of the file since.
func (l *tableLife) abortedNowhere(t *table.Table, h *history) error {
	w, topic := l.n.w, l.topic()
	if w.plan.transactions == 0 {
		return nil
	}
	for _, m := range h.metas {
		if m.TableUUID() != t.Metadata().TableUUID() {
			return nil // files of another table have other columns
		}
	}
	for location := range h.adopted {
		if _, err := uuid.Parse(path.Base(path.Dir(location))); err != nil || h.live[location] {
			continue // of a stranger, or compared with the log
		}
		_, err := w.readFile(locate(w.disk.all), location, t.Schema(), func(p int32, o int64, r row) error {
			topic.mu.Lock()
			defer topic.mu.Unlock()
			if s := topic.sent[r.key]; s != nil && s.aborted {
				return fmt.Errorf("record %d, offset %d of partition %d, of a transaction that was aborted, was a row", r.key, o, p)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("data file %s: %w", location, err)
		}
	}
	return nil
}

// holdsAll tells whether the log must hold all records for the table, for as long as it takes.
func (w *tableWorld) holdsAll() bool {
	removes := []string{"delete records", "off and on", "roll back", "drop", "replace"}
	return w.plan.hold < 0 && !slices.ContainsFunc(slices.Concat(w.plan.admin, w.plan.foreign), func(act string) bool { return slices.Contains(removes, act) })
}

// expected returns what was sent, by offset: what the log has, and what was acknowledged and is there no more.
func (l *tableLife) expected(p *partition.Partition, at place) (map[int64]int64, error) {
	want := map[int64]int64{}
	err := readLog(l.ctx, p, func(r *record.Record) error {
		n, err := strconv.ParseInt(string(r.Key), 10, 64)
		want[r.Offset] = n
		return err
	})
	if err != nil {
		return nil, err
	}
	t := l.topic()
	t.mu.Lock()
	defer t.mu.Unlock()
	for n, s := range t.sent {
		if (place{s.topic, s.partition}) != at || s.offset < 0 {
			continue
		}
		if got, ok := want[s.offset]; ok && got != n || !ok && s.offset >= p.Offsets().LogStart {
			return nil, fmt.Errorf("the log has record %d at offset %d, where %d was acknowledged", got, s.offset, n)
		}
		want[s.offset] = n
	}
	return want, nil
}

func readLog(ctx context.Context, p *partition.Partition, fn func(*record.Record) error) error {
	var reader record.Reader
	var rec record.Record
	from := p.Offsets().LogStart
	for at := from; at < p.Offsets().HighWatermark; {
		res, err := p.Read(ctx, at, 1<<20, partition.ReadUncommitted)
		if err != nil {
			return err
		}
		for _, b := range res.Batches {
			at = b.NextOffset()
			if b.IsControl() {
				continue
			}
			if err := reader.Reset(b); err != nil {
				return err
			}
			for {
				ok, err := reader.Next(&rec)
				if err != nil {
					return err
				}
				if !ok {
					break
				}
				if rec.Offset >= from {
					if err := fn(&rec); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// comparePartition checks that each record is a row of the table for its type or a dead letter, once, or in a gap that
// a commit recorded.
func (l *tableLife) comparePartition(at place, want map[int64]int64, tables []*inTable) error {
	t := l.topic()
	t.mu.Lock()
	defer t.mu.Unlock()
	for o, n := range want {
		s := t.sent[n]
		var r row
		var in *inTable
		nRows, nLetters, leftOut, said := 0, 0, false, ""
		for _, f := range tables {
			if x, isRow := f.rowsOf(at.partition)[o]; isRow {
				r, in = x, f
				nRows++
			}
			if got := f.lettersOf(at.partition)[o]; got > 0 {
				if nLetters += got; f.record != "" {
					return fmt.Errorf("record %d, offset %d, of form %d, is a dead letter of %s", n, o, s.form, f.table[1])
				}
			}
			own := place{f.id, at.partition}
			if f.record == "" || f.record == s.form.typed() {
				leftOut = leftOut || f.h.leftOut(own, o)
				said += fmt.Sprintf("; %s began at %d and left out %v", f.table[1], f.h.begun[own], f.h.gaps[own])
			}
		}
		shouldRow, certain := s.form.isRow()
		switch {
		case s.aborted && nRows+nLetters > 0:
			return fmt.Errorf("record %d, offset %d, of a transaction that was aborted, is %d rows", n, o, nRows)
		case s.aborted:
		case nRows > 0 && nLetters > 0:
			return fmt.Errorf("record %d, offset %d, is a row and a dead letter", n, o)
		case nRows > 1:
			return fmt.Errorf("record %d, offset %d, is in %d tables", n, o, nRows)
		case nLetters > 1:
			return fmt.Errorf("record %d, offset %d, is %d dead letters", n, o, nLetters)
		case nRows+nLetters == 0:
			if !leftOut {
				return fmt.Errorf("record %d, offset %d, form %d, is nowhere%s", n, o, s.form, said)
			}
		case certain && (nRows > 0) != shouldRow:
			return fmt.Errorf("record %d, offset %d, of form %d, is a row: %t", n, o, s.form, nRows > 0)
		case nRows > 0 && len(tables) > 1 && in.record != t.typeOf(s.form):
			return fmt.Errorf("record %d, offset %d, of form %d, is in %s", n, o, s.form, in.table[1])
		case nRows > 0:
			if err := s.form.matches(n, r); err != nil {
				return fmt.Errorf("record %d, offset %d, of form %d, in %s: %w", n, o, s.form, r.file, err)
			}
		}
	}
	for _, f := range tables {
		for o, r := range f.rowsOf(at.partition) {
			if s := t.sent[r.key]; want[o] == 0 && (s == nil || (place{s.topic, s.partition}) != at || s.offset >= 0 && s.offset != o) {
				return fmt.Errorf("the table %s has record %d at offset %d, which nobody sent there", f.table[1], r.key, o)
			}
		}
	}
	return nil
}

// typeOf returns the type of a form if it has a table.
func (t *tableTopic) typeOf(f form) string {
	if slices.ContainsFunc(t.types, func(r tableRoute) bool { return r.record == f.typed() }) {
		return f.typed()
	}
	return ""
}

// matches compares a row with record n of the form.
func (f form) matches(n int64, r row) error {
	want := row{key: n, id: &n}
	switch f {
	case wide:
		want.extra = fmt.Sprint("extra ", n)
	case wider, latePayment:
		want.more = 2 * n
	case tombstone:
		want.id = nil
	}
	if r.key != n || (r.id == nil) != (want.id == nil) || r.id != nil && *r.id != n || r.extra != want.extra || r.more != want.more {
		return fmt.Errorf("the row is %+v", r)
	}
	return nil
}

// leftOut tells whether the table says that it does not hold an offset: it began above, or a commit recorded it.
func (h *history) leftOut(at place, offset int64) bool {
	if begun, ok := h.begun[at]; ok && offset < begun {
		return true
	}
	for _, x := range h.gaps[at] {
		if x.start <= offset && offset < x.end {
			return true
		}
	}
	return false
}

// readTable reads the rows of the head of main that come from a log. None may be there twice.
func (w *tableWorld) readTable(t *table.Table) (map[place]map[int64]row, error) {
	live, err := w.files.live(t.CurrentSnapshot())
	if err != nil {
		return nil, err
	}
	rows := map[place]map[int64]row{}
	for location, df := range live {
		topic, err := uuid.Parse(path.Base(path.Dir(location)))
		if err != nil {
			continue // of a stranger
		}
		n, err := w.readFile(w.locator, location, t.Schema(), func(p int32, o int64, r row) error {
			at := place{topic, p}
			if rows[at] == nil {
				rows[at] = map[int64]row{}
			}
			if old, twice := rows[at][o]; twice {
				return fmt.Errorf("offset %d of partition %d of topic %s is in %s and %s", o, p, topic, old.file, r.file)
			}
			rows[at][o] = r
			return nil
		})
		if err == nil && n != df.Count() {
			err = fmt.Errorf("it has %d rows, the table says %d", n, df.Count())
		}
		if err != nil {
			return nil, fmt.Errorf("data file %s: %w", location, err)
		}
	}
	return rows, nil
}

func (w *tableWorld) readFile(from *objectstore.Locator, location string, schema *iceberg.Schema, fn func(p int32, o int64, r row) error) (n int64, err error) {
	bucket, key, err := from.Resolve(w.failing, location)
	if err != nil {
		return 0, err
	}
	body, err := bucket.Get(w.failing, key, 0, -1)
	if err != nil {
		return 0, err
	}
	t, err := pqarrow.ReadTable(w.failing, bytes.NewReader(body), parquet.NewReaderProperties(nil), pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		return 0, err
	}
	defer t.Release()
	reader := array.NewTableReader(t, 1<<20)
	defer reader.Release()
	for reader.Next() {
		b := reader.RecordBatch()
		column := func(name string) arrow.Array {
			want, _ := schema.FindFieldByName(name)
			for i, f := range b.Schema().Fields() {
				if id, _ := f.Metadata.GetValue("PARQUET:field_id"); id == strconv.Itoa(want.ID) {
					return b.Column(i)
				}
			}
			return array.NewNull(int(b.NumRows()))
		}
		kafka, ok := column("_kafka").(*array.Struct)
		if !ok {
			return n, errors.New("no column _kafka")
		}
		field := func(name string) arrow.Array {
			i, _ := kafka.DataType().(*arrow.StructType).FieldIdx(name)
			return kafka.Field(i)
		}
		partitions, offsets, keys := field("partition").(*array.Int32), field("offset").(*array.Int64), field("key").(*array.Binary)
		ids, extras, more := column("id"), column("extra"), column("more")
		for i := range int(b.NumRows()) {
			r := row{file: location}
			if r.key, err = strconv.ParseInt(string(keys.Value(i)), 10, 64); err != nil {
				return n, err
			}
			if id, ok := ids.(*array.Int64); ok && id.IsValid(i) {
				v := id.Value(i)
				r.id = &v
			}
			if extra, ok := extras.(*array.String); ok && extra.IsValid(i) {
				r.extra = extra.Value(i)
			}
			if m, ok := more.(*array.Int64); ok && m.IsValid(i) {
				r.more = m.Value(i)
			}
			if err := fn(partitions.Value(i), offsets.Value(i), r); err != nil {
				return n, err
			}
			n++
		}
	}
	return n, reader.Err()
}

// readLetters counts the dead letters of the topic, of all its incarnations, by source offset.
func (l *tableLife) readLetters() (map[place]map[int64]int, error) {
	letters := map[place]map[int64]int{}
	topic, ok := l.set.Topic(l.topic().name + ".dlq")
	if !ok {
		return letters, nil
	}
	for i := range topic.Partitions {
		p, err := l.set.Partition(topic.Name, int32(i))
		if err != nil {
			return nil, err
		}
		err = readLog(l.ctx, p, func(r *record.Record) error {
			headers := map[string]string{}
			for _, h := range r.Headers {
				headers[h.Key] = string(h.Value)
			}
			source, err1 := uuid.Parse(headers[partition.HeaderSourceTopicID])
			index, err2 := strconv.Atoi(headers[partition.HeaderSourcePartition])
			offset, err3 := strconv.ParseInt(headers[partition.HeaderSourceOffset], 10, 64)
			at := place{source, int32(index)}
			if letters[at] == nil {
				letters[at] = map[int64]int{}
			}
			letters[at][offset]++
			return errors.Join(err1, err2, err3)
		})
		if err != nil {
			return nil, err
		}
	}
	return letters, nil
}

// swept waits until the files that no commit adopted are deleted, and no others. Those of a
// topic or of a table that is gone stay, as do all if the control topic was lost.
func (l *tableLife) swept() error {
	w := l.n.w
	for _, act := range w.plan.admin {
		if act == "lose control topic" || act == "recreate topic" {
			return nil
		}
	}
	_ = wait(l.ctx, 2*w.plan.grace)
	for _, r := range l.topic().routes(uuid.UUID{}) {
		if err := w.sweptTable(l.ctx, r.table); err != nil {
			return err
		}
	}
	return nil
}

func (w *tableWorld) sweptTable(ctx context.Context, id table.Identifier) error {
	h, err := w.replay(id)
	if err != nil {
		return err
	}
	t, err := w.catalog.Load(ctx, id)
	if err != nil {
		return err
	}
	if err := w.missing(t); err != nil {
		return fmt.Errorf("after the sweep: %w", err)
	}
	for _, m := range h.metas {
		if m.TableUUID() != t.Metadata().TableUUID() {
			return nil
		}
	}
	for after := ""; ; {
		page, err := w.disk.List(w.failing, "warehouse/default/"+id[1]+"/", after)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, o := range page {
			after = o.Key
			location := objectstore.Location(w.disk, o.Key)
			if _, own := w.own.Load(o.Key); own && !h.named[location] && !strings.HasPrefix(path.Base(o.Key), "00000-") {
				return fmt.Errorf("%s is of an attempt that came to nothing, and was not swept", location)
			}
			name, isData := strings.CutSuffix(path.Base(o.Key), ".parquet")
			if uuid.Validate(name) == nil {
				continue // another writer's, whose commit may have failed
			}
			if _, err := uuid.Parse(path.Base(path.Dir(o.Key))); err == nil && isData && !h.adopted[location] {
				return fmt.Errorf("%s is in no snapshot, and was not swept", location)
			}
		}
	}
}
