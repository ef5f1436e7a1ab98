package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// A Share is which records of a topic with several tables are for one of them. The zero Share is all.
type Share struct {
	Topic  uuid.UUID       // of all of them
	Record string          // the type of records; "" for those of types without a table, and of no type
	Routed map[string]bool // types with a table of their own; nil if the topic has one table
	Others string          // of those without: partition.OthersDLQ or partition.OthersTable
}

// ShareOf returns what a route takes.
func ShareOf(r partition.Route) Share {
	t := r.Table
	list, _ := partition.ParseFanOut(t.FanOut) // the settings are checked
	if len(list) == 0 {
		return Share{}
	}
	s := Share{Topic: r.Topic.ID, Record: t.Record, Routed: map[string]bool{}, Others: t.Others}
	for _, x := range list {
		s.Routed[x.Record] = true
	}
	return s
}

// Takes reports whether records of a type become rows of the table.
func (s Share) Takes(record string) bool {
	switch {
	case s.Routed == nil:
		return true
	case s.Record != "":
		return record == s.Record
	}
	return !s.Routed[record] && s.Others == partition.OthersTable
}

// own reports whether they are those of the topic's own table, beside others.
func (s Share) own() bool { return s.Routed != nil && s.Record == "" }

// A typed is the type of a record.
type typed struct {
	name string // "" if its schema has no name
	bad  *unfit // why it has no type for certain
	held int64  // of the partition, by the topic's own table, before the registry was asked; -1 if that is not known
}

// takes reports whether a record of a partition is for the table of this worker. Each record is for one table of
// the topic, whatever it holds: one of no type that is known is for the topic's own. With bad it is for this worker
// and becomes no row. An error says that its type is not known now.
func (r *reading) takes(ctx context.Context, index int32, rec *record.Record) (takes bool, w control.Writer, bad *unfit, err error) {
	s := &r.cfg.Share
	if s.Routed == nil {
		return true, w, nil, nil
	}
	own := s.own()
	if rec.Value == nil {
		if s.Others == partition.OthersDLQ && !r.cfg.SkipTombstones {
			bad = &unfit{CauseNoTable, "a record without value is of no type: set table.topic.tombstone=skip, or table.topic.fan.out.others=table for a row of the topic's own table"}
		}
		return own, w, bad, nil
	}
	w, t, err := r.typed(ctx, index, rec)
	if err != nil {
		return false, w, nil, err
	}
	switch {
	case !own && t.bad != nil && t.bad.cause == CauseUnknownSchema && rec.Offset >= t.held && r.verdicts != nil && !invariant.Off("the-own-table-decides"):
		return false, w, nil, fmt.Errorf("%w: %s", errUndecided, t.bad.detail)
	case !own:
		return t.bad == nil && t.name == s.Record || invariant.Off("types-have-their-own-tables"), w, nil, nil
	case t.bad != nil:
		return true, w, t.bad, nil
	case s.Routed[t.name]:
		return false, w, nil, nil
	case s.Others == partition.OthersDLQ && !invariant.Off("no-table-is-a-dead-letter"):
		return true, w, &unfit{CauseNoTable, noTable(t.name)}, nil
	}
	return s.Others == partition.OthersTable, w, nil, nil
}

func noTable(record string) string {
	if record == "" {
		return "the schema of the record has no name: give its type one, or set table.topic.fan.out.others=table"
	}
	return fmt.Sprintf("no table takes records of type %s: add it to table.topic.fan.out, or set table.topic.fan.out.others=table", record)
}

// typed returns the type of a record, and what wrote it.
func (r *reading) typed(ctx context.Context, index int32, rec *record.Record) (control.Writer, typed, error) {
	p, bad, err := r.payload(ctx, false, rec.Value, rec.Headers)
	if bad != nil {
		return p.writer, typed{bad: bad}, nil
	}
	if t, known := r.types[p.writer]; known && err == nil {
		return p.writer, t, nil
	}
	in := schemaIn{partOf: partOf{r.cfg.Share.Topic, index}, schema: p.writer.Schema, guid: p.guid}
	if in.guid != (uuid.UUID{}) {
		in.schema = 0 // which is not known before the GUID is
	}
	t := typed{held: r.verdicts.held(in.partOf)}
	done, unknown, err := r.verdicts.enter(ctx, in, rec.Offset, r.forgotten)
	if err != nil {
		return p.writer, typed{}, err
	}
	if unknown {
		done(false)
		t.bad = &unfit{CauseUnknownSchema, "the schema did not exist when the record was read for the topic's own table"}
		return p.writer, t, nil
	}
	if p, t.bad, err = r.payload(ctx, false, rec.Value, rec.Headers); err == nil && t.bad == nil {
		t.name, err = r.schemas.Record(ctx, p.writer)
	}
	decides := r.cfg.Share.own() && r.cfg.Tolerance != partition.ToleratePause // which waits for the schema
	done(errors.Is(err, metadata.ErrSchemaNotExist) && decides)
	if err != nil {
		if t.bad = certain(err); t.bad == nil {
			return p.writer, t, err
		}
	}
	if t.bad != nil {
		return p.writer, t, nil // asked again for the next record: the schema may come
	}
	if r.types == nil {
		r.types = map[control.Writer]typed{}
	}
	r.types[p.writer] = t
	return p.writer, t, nil
}

// verdicts has the tables of a topic agree on which records were written with a schema that did not exist. It may
// come between the reads of two of them: each would leave the record to the other, or both would have it. So the
// topic's own table decides, whose dead letters they are, and the others pass such a record only when it has, and they
// still find no schema then: a restart changes nothing of that, because the dead letters tell. Until then its verdict is
// remembered here; what was said of an offset holds for all before it.
type verdicts struct {
	turn      chan struct{}      // cap 1; taken by who asks the registry
	ends      map[schemaIn]int64 // of who has the turn; below, the schema did not exist
	forgotten atomic.Int64       // times that some of ends was

	mu     sync.Mutex
	passed map[partOf]int64 // guarded by mu; what the topics' own tables hold
}

// A partOf is a partition of a topic.
type partOf struct {
	topic uuid.UUID
	index int32
}

// A schemaIn is a schema in a partition, by its id or its GUID, as records name it.
type schemaIn struct {
	partOf
	schema int32
	guid   uuid.UUID
}

// maxVerdicts bounds how many are remembered.
const maxVerdicts = 10_000

var errVerdicts = fmt.Errorf("more than %d schema ids that do not exist are in records that the topic's own table does not hold yet: it waits for its commit", maxVerdicts)

// errForgotten says that what is known of dead letters is to be read again.
var errForgotten = errors.New("the dead letters are read again")

func newVerdicts() *verdicts {
	return &verdicts{turn: make(chan struct{}, 1), ends: map[schemaIn]int64{}, passed: map[partOf]int64{}}
}

// enter waits for the turn to ask the registry, and says whether the answer is known: the schema is not. done gives
// the turn back, and says whether the topic's own table finds that it does not exist. A nil v knows nothing. The
// error is errForgotten if v has forgotten more than forgotten, how often it had when the dead letters were read: they have
// that now.
func (v *verdicts) enter(ctx context.Context, s schemaIn, offset int64, forgotten int64) (done func(unknown bool), unknown bool, err error) {
	if v == nil || s.schema == 0 && s.guid == (uuid.UUID{}) || invariant.Off("one-verdict-on-a-schema") {
		return func(bool) {}, false, nil
	}
	select {
	case v.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
	if unknown = offset < v.ends[s]; !unknown && len(v.ends) >= maxVerdicts {
		v.forget()
	}
	switch {
	case unknown:
	case forgotten != v.forgotten.Load() && !invariant.Off("forgotten-verdicts-are-read-again"):
		err = errForgotten
	case len(v.ends) >= maxVerdicts:
		err = errVerdicts
	}
	if err != nil {
		<-v.turn
		return nil, false, err
	}
	return func(unknown bool) {
		if unknown {
			v.ends[s] = max(v.ends[s], offset+1)
		}
		<-v.turn
	}, unknown, nil
}

// forget drops what the dead letters tell by now. Who calls has the turn.
func (v *verdicts) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	before := len(v.ends)
	maps.DeleteFunc(v.ends, func(s schemaIn, end int64) bool { return end <= v.passed[s.partOf] })
	if len(v.ends) < before {
		v.forgotten.Add(1)
	}
}

// hold says what the topic's own table holds of a partition: below next, all.
func (v *verdicts) hold(at partOf, next int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.passed[at] = next
}

// leave forgets what the topic's own table holds: another worker will say so.
func (v *verdicts) leave(at partOf) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.passed, at)
}

// held returns what the topic's own table holds of a partition, -1 if that is not known.
func (v *verdicts) held(at partOf) int64 {
	if v == nil {
		return -1
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if next, known := v.passed[at]; known {
		return next
	}
	return -1
}

// errUndecided says that the record may still become one of this table.
var errUndecided = errors.New("whether the record is a dead letter of the topic's own table is not known until that has passed it")

// takes reports whether rec is for the table. With done it needs no more: it is for another table, has become a
// dead letter, or has to wait, and then ok is false.
func (t *task) takes(ctx context.Context, rec *record.Record) (done, ok bool) {
	takes, w, bad, err := t.reading.takes(ctx, t.p.index, rec)
	t.kind = t.reading.types[w].name
	switch {
	case errors.Is(err, errForgotten):
		t.skip = nil
		fallthrough
	case errors.Is(err, errUndecided), errors.Is(err, errVerdicts):
		t.err = err
		return true, false
	case err != nil:
		if bad = t.unknown(err); bad == nil {
			return true, false
		}
		return true, t.dead(rec, bad, w.Schema)
	case !takes:
		t.died++
		t.others++
		return true, true
	case bad != nil:
		return true, t.dead(rec, bad, w.Schema)
	}
	return false, true
}

// An Elsewhere tells which records of a topic are for other tables of it, for verification. It is of one reader.
type Elsewhere struct {
	reading *reading
}

// NewElsewhere returns what tells it for the table of a route; former are types that have, or had, tables beside
// the topic's own. nil if there are no other tables.
func NewElsewhere(r partition.Route, former []string, schemas Schemas) *Elsewhere {
	cfg := configOf(r, &Shared{})
	s := &cfg.Share
	if s.Routed == nil && len(former) > 0 {
		s.Routed, s.Others = map[string]bool{}, partition.OthersTable
	}
	for _, record := range former {
		s.Routed[record] = true
	}
	if s.Routed == nil {
		return nil
	}
	return &Elsewhere{&reading{cfg: &cfg, schemas: schemas, indexed: map[int32]bool{}}}
}

// Has reports whether a record is for another table.
func (e *Elsewhere) Has(ctx context.Context, rec *record.Record) (bool, error) {
	takes, _, _, err := e.reading.takes(ctx, -1, rec)
	return !takes && err == nil, err
}
