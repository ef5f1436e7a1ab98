package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/internal/crc32c"
)

// Control event, the value of a record of the control topic; the record's key is the topic
// id. Integers are big-endian; those in a body are varints, unsigned where they count.
//
//	┌──────────┬───────┬────────┬──────────┬────────┬─────────┬────────┬───────┐
//	│ "TCTL" 4 │ ver 1 │ kind 1 │ event 16 │ part 2 │ parts 2 │ body … │ crc 4 │
//	└──────────┴───────┴────────┴──────────┴────────┴─────────┴────────┴───────┘
//
// An event whose body is large is cut into parts with the same event id, each a record of
// its own. The CRC-32C covers all that precedes it. A time is in milliseconds since 1970, 0
// for none. The bodies, by kind:
//
//	1 hello      worker 16, partitions
//	2 began      epoch, table 16
//	3 table      epoch, table 16, location, format version, spec, spec as JSON, last column
//	             id, kafka column, schema, writers, next offsets, new columns, former names,
//	             sort order, properties
//	4 needed     writer
//	5 refused    epoch, writer, reason
//	6 pending    worker 16, since, full
//	7 request    epoch, commit 16, next offsets
//	8 answer     epoch, commit 16, at, table 16, worker 16, partitions, since, files
//	9 journal    at, table 16, names
//	10 committed epoch, commit 16, snapshot, next offsets, names
//
// Versions: 1, the first, whose tables have no partitions: table lacks the spec as JSON, and
// a file in answer is one location and entry, and lacks the spec. 2 has both. 3 has the time of
// an answer. In 4 a writer is a schema id and the indexes of a message; before, the id alone. In 5
// its format, the text of a schema and whether it writes keys follow, table has what follows the
// next offsets, and answer its table.
const (
	eventMagic   = "TCTL"
	eventVersion = 5
	eventHeader  = 4 + 1 + 1 + 16 + 2 + 2

	maxPart  = 512 << 10 // bytes of body in one record
	maxEvent = 64 << 20  // bytes of body in all parts
)

// ErrCorrupt says that bytes are not a control event.
var ErrCorrupt = errors.New("corrupt control event")

// part is one record of an event.
type part struct {
	version  byte
	kind     kind
	event    uuid.UUID
	index, n int
	body     []byte
}

// split encodes e into parts that each fit a record.
func split(id uuid.UUID, e Event) ([]part, error) {
	body := e.appendBody(nil)
	if len(body) > maxEvent {
		return nil, fmt.Errorf("control event %T of %d bytes is larger than %d", e, len(body), maxEvent)
	}
	n := max(1, (len(body)+maxPart-1)/maxPart)
	parts := make([]part, n)
	for i := range parts {
		piece := body[i*maxPart : min(len(body), (i+1)*maxPart)]
		parts[i] = part{eventVersion, e.kind(), id, i, n, piece}
	}
	return parts, nil
}

func appendPart(dst []byte, p part) []byte {
	start := len(dst)
	dst = append(dst, eventMagic...)
	dst = append(dst, p.version, byte(p.kind))
	dst = append(dst, p.event[:]...)
	dst = binary.BigEndian.AppendUint16(dst, uint16(p.index))
	dst = binary.BigEndian.AppendUint16(dst, uint16(p.n))
	dst = append(dst, p.body...)
	return binary.BigEndian.AppendUint32(dst, crc32c.Checksum(dst[start:]))
}

// parsePart checks src, all of it, and points into it.
func parsePart(src []byte) (part, error) {
	if len(src) < eventHeader+4 || string(src[:4]) != eventMagic {
		return part{}, fmt.Errorf("%w: no event header", ErrCorrupt)
	}
	if v := src[4]; v > eventVersion {
		return part{}, fmt.Errorf("control event version %d was written by a newer release; this one reads up to %d", v, eventVersion)
	} else if v == 0 {
		return part{}, fmt.Errorf("%w: version 0", ErrCorrupt)
	}
	end := len(src) - 4
	if crc32c.Checksum(src[:end]) != binary.BigEndian.Uint32(src[end:]) {
		return part{}, fmt.Errorf("%w: checksum mismatch", ErrCorrupt)
	}
	p := part{
		version: src[4],
		kind:    kind(src[5]),
		event:   uuid.UUID(src[6:22]),
		index:   int(binary.BigEndian.Uint16(src[22:])),
		n:       int(binary.BigEndian.Uint16(src[24:])),
		body:    src[eventHeader:end],
	}
	if p.index >= p.n || p.n > maxEvent/maxPart || len(p.body) > maxPart {
		return part{}, fmt.Errorf("%w: part %d of %d with %d bytes", ErrCorrupt, p.index, p.n, len(p.body))
	}
	return p, nil
}

// An assembler joins parts to events. The parts of an event come in their order; those of
// several events may alternate.
type assembler struct {
	open  map[uuid.UUID][]byte
	order []uuid.UUID
}

// maxOpen bounds the events that wait for parts; the oldest was cut off by a crash.
const maxOpen = 16

// add returns the event that p completes, if it does.
func (a *assembler) add(p part) (Event, bool, error) {
	if p.n == 1 {
		e, err := parseBody(p.version, p.kind, p.body)
		return e, err == nil, err
	}
	if p.index == 0 {
		if a.open == nil {
			a.open = map[uuid.UUID][]byte{}
		}
		if len(a.order) == maxOpen {
			delete(a.open, a.order[0])
			a.order = a.order[1:]
		}
		a.order = append(a.order, p.event)
		a.open[p.event] = nil
	}
	body, ok := a.open[p.event]
	if !ok || len(body) != p.index*maxPart {
		return nil, false, nil // its beginning was before ours, or a part was lost
	}
	body = append(body, p.body...)
	a.open[p.event] = body
	if p.index+1 < p.n {
		return nil, false, nil
	}
	delete(a.open, p.event)
	for i, id := range a.order {
		if id == p.event {
			a.order = append(a.order[:i], a.order[i+1:]...)
			break
		}
	}
	e, err := parseBody(p.version, p.kind, body)
	return e, err == nil, err
}

func appendInt(dst []byte, v int64) []byte { return binary.AppendVarint(dst, v) }

func appendLen(dst []byte, n int) []byte { return binary.AppendUvarint(dst, uint64(n)) }

func appendTime(dst []byte, t time.Time) []byte {
	if t.IsZero() {
		return appendInt(dst, 0)
	}
	return appendInt(dst, t.UnixMilli())
}

func appendBool(dst []byte, b bool) []byte {
	if b {
		return append(dst, 1)
	}
	return append(dst, 0)
}

func appendInts(dst []byte, vs []int32) []byte {
	dst = appendLen(dst, len(vs))
	for _, v := range vs {
		dst = appendInt(dst, int64(v))
	}
	return dst
}

func appendOffsets(dst []byte, os []Offset) []byte {
	dst = appendLen(dst, len(os))
	for _, o := range os {
		dst = appendInt(dst, int64(o.Partition))
		dst = appendInt(dst, o.Offset)
	}
	return dst
}

func appendNames(dst []byte, names []string) []byte {
	dst = appendLen(dst, len(names))
	for _, n := range names {
		dst = appendBytes(dst, n)
	}
	return dst
}

func appendWriter(dst []byte, w Writer) []byte {
	dst = appendBytes(appendInt(dst, int64(w.Schema)), w.Message)
	return appendBool(appendBytes(append(dst, byte(w.Format)), w.Text), w.Key)
}

func (e Hello) appendBody(dst []byte) []byte {
	return appendInts(append(dst, e.Worker[:]...), e.Partitions)
}

func (e Began) appendBody(dst []byte) []byte {
	return append(appendInt(dst, int64(e.Epoch)), e.Table[:]...)
}

func (e Table) appendBody(dst []byte) []byte {
	dst = appendInt(dst, int64(e.Epoch))
	dst = append(dst, e.UUID[:]...)
	dst = appendBytes(dst, e.Location)
	dst = appendInt(dst, int64(e.FormatVersion))
	dst = appendInt(dst, int64(e.Spec))
	dst = appendBytes(dst, e.Partitions)
	dst = appendInt(dst, int64(e.LastColumnID))
	dst = appendBytes(dst, e.KafkaColumn)
	dst = appendBytes(dst, e.Schema)
	dst = appendLen(dst, len(e.Fits))
	for _, w := range e.Fits {
		dst = appendWriter(dst, w)
	}
	dst = appendOffsets(dst, e.Next)
	dst = appendBool(dst, e.NewColumns)
	dst = appendLen(dst, len(e.Former))
	for _, f := range e.Former {
		dst = appendBytes(appendInt(dst, int64(f.ID)), f.Name)
	}
	dst = appendBytes(dst, e.Order)
	dst = appendLen(dst, len(e.Writing))
	for _, p := range e.Writing {
		dst = appendBytes(appendBytes(dst, p.Name), p.Value)
	}
	return dst
}

func (e Needed) appendBody(dst []byte) []byte { return appendWriter(dst, e.Writer) }

func (e Refused) appendBody(dst []byte) []byte {
	dst = appendInt(dst, int64(e.Epoch))
	dst = appendWriter(dst, e.Writer)
	return appendBytes(dst, e.Reason)
}

func (e Pending) appendBody(dst []byte) []byte {
	dst = append(dst, e.Worker[:]...)
	return appendBool(appendTime(dst, e.Since), e.Full)
}

func (e Request) appendBody(dst []byte) []byte {
	dst = appendInt(dst, int64(e.Epoch))
	dst = append(dst, e.Commit[:]...)
	return appendOffsets(dst, e.Next)
}

func (e Answer) appendBody(dst []byte) []byte {
	dst = appendInt(dst, int64(e.Epoch))
	dst = append(dst, e.Commit[:]...)
	dst = appendTime(dst, e.At)
	dst = append(dst, e.Table[:]...)
	dst = append(dst, e.Worker[:]...)
	dst = appendInts(dst, e.Partitions)
	dst = appendTime(dst, e.Since)
	dst = appendLen(dst, len(e.Files))
	for _, f := range e.Files {
		dst = appendLen(dst, len(f.Data))
		for _, d := range f.Data {
			dst = appendBytes(dst, d.Location)
			dst = appendBytes(dst, d.Entry)
		}
		dst = appendInt(dst, int64(f.Schema))
		dst = appendInt(dst, int64(f.Spec))
		dst = appendInt(dst, f.Rows)
		dst = appendInt(dst, f.Bytes)
		dst = appendLen(dst, len(f.Ranges))
		for _, r := range f.Ranges {
			dst = appendInt(dst, int64(r.Partition))
			dst = appendInt(dst, r.Start)
			dst = appendInt(dst, r.End)
			dst = appendInt(dst, r.Gap)
			dst = appendInt(dst, r.Rows)
			dst = appendInt(dst, r.Dead)
		}
	}
	return dst
}

func (e Journal) appendBody(dst []byte) []byte {
	dst = appendTime(dst, e.At)
	return appendNames(append(dst, e.Table[:]...), e.Names)
}

func (e Committed) appendBody(dst []byte) []byte {
	dst = appendInt(dst, int64(e.Epoch))
	dst = append(dst, e.Commit[:]...)
	dst = appendInt(dst, e.Snapshot)
	dst = appendOffsets(dst, e.Next)
	return appendNames(dst, e.Names)
}

// parseBody decodes a body; every byte of it must be used.
func parseBody(version byte, k kind, src []byte) (Event, error) {
	d := &decoder{version: version, src: src}
	var e Event
	switch k {
	case kindHello:
		e = Hello{d.uuid(), d.ints()}
	case kindBegan:
		e = Began{d.int32(), d.uuid()}
	case kindTable:
		t := Table{Epoch: d.int32(), UUID: d.uuid(), Location: d.string(), FormatVersion: d.int(), Spec: d.int()}
		if version >= 2 {
			t.Partitions = d.bytes()
		}
		t.LastColumnID, t.KafkaColumn, t.Schema, t.Fits, t.Next = d.int(), d.string(), d.bytes(), d.writers(), d.offsets()
		if version >= 5 {
			t.NewColumns, t.Former, t.Order, t.Writing = d.bool(), d.former(), d.bytes(), d.properties()
		}
		e = t
	case kindNeeded:
		e = Needed{d.writer()}
	case kindRefused:
		e = Refused{d.int32(), d.writer(), d.string()}
	case kindPending:
		e = Pending{d.uuid(), d.time(), d.bool()}
	case kindRequest:
		e = Request{d.int32(), d.uuid(), d.offsets()}
	case kindAnswer:
		a := Answer{Epoch: d.int32(), Commit: d.uuid()}
		if version >= 3 {
			a.At = d.time()
		}
		if version >= 5 {
			a.Table = d.uuid()
		}
		a.Worker, a.Partitions, a.Since, a.Files = d.uuid(), d.ints(), d.time(), d.files()
		e = a
	case kindJournal:
		e = Journal{d.time(), d.uuid(), d.names()}
	case kindCommitted:
		e = Committed{d.int32(), d.uuid(), d.varint(), d.offsets(), d.names()}
	default:
		return nil, fmt.Errorf("%w: kind %d", ErrCorrupt, k)
	}
	if d.err == nil && len(d.src) > 0 {
		d.err = fmt.Errorf("%d bytes too many", len(d.src))
	}
	if d.err != nil {
		return nil, fmt.Errorf("%w: kind %d: %w", ErrCorrupt, k, d.err)
	}
	return e, nil
}

// decoder takes values off src until the first error.
type decoder struct {
	version byte
	src     []byte
	err     error
}

var errShort = errors.New("body ends early")

func (d *decoder) take(n int) []byte {
	if d.err != nil || n > len(d.src) {
		d.err = cmpErr(d.err, errShort)
		return nil
	}
	b := d.src[:n]
	d.src = d.src[n:]
	return b
}

func cmpErr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

func (d *decoder) varint() int64 {
	if d.err != nil {
		return 0
	}
	v, n := binary.Varint(d.src)
	if n <= 0 {
		d.err = errShort
		return 0
	}
	d.src = d.src[n:]
	return v
}

func (d *decoder) int32() int32 {
	v := d.varint()
	if v < math.MinInt32 || v > math.MaxInt32 {
		d.err = cmpErr(d.err, fmt.Errorf("%d is no 32-bit integer", v))
	}
	return int32(v)
}

func (d *decoder) int() int { return int(d.int32()) }

// len reads a count of elements that take at least one byte each.
func (d *decoder) len() int {
	if d.err != nil {
		return 0
	}
	v, n := binary.Uvarint(d.src)
	if n <= 0 || v > uint64(len(d.src)-n) {
		d.err = errShort
		return 0
	}
	d.src = d.src[n:]
	return int(v)
}

func (d *decoder) uuid() (id uuid.UUID) {
	copy(id[:], d.take(16))
	return id
}

func (d *decoder) bytes() []byte {
	if n := d.len(); n > 0 {
		return append([]byte(nil), d.take(n)...)
	}
	return nil
}

func (d *decoder) string() string { return string(d.take(d.len())) }

func (d *decoder) time() time.Time {
	if ms := d.varint(); ms != 0 {
		return time.UnixMilli(ms).UTC()
	}
	return time.Time{}
}

func (d *decoder) bool() bool {
	b := d.take(1)
	if len(b) == 1 && b[0] > 1 {
		d.err = fmt.Errorf("%d is no boolean", b[0])
	}
	return len(b) == 1 && b[0] == 1
}

func (d *decoder) byte() byte {
	if b := d.take(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

func (d *decoder) ints() (vs []int32) {
	for range d.len() {
		if d.err != nil {
			return nil
		}
		vs = append(vs, d.int32())
	}
	return vs
}

func (d *decoder) writer() Writer {
	w := Writer{Schema: d.int32()}
	if d.version >= 4 {
		w.Message = d.string()
	}
	if d.version >= 5 {
		w.Format, w.Text, w.Key = Format(d.byte()), d.string(), d.bool()
	}
	return w
}

func (d *decoder) writers() (ws []Writer) {
	for range d.len() {
		if d.err != nil {
			return nil
		}
		ws = append(ws, d.writer())
	}
	return ws
}

func (d *decoder) former() (names []FormerName) {
	for range d.len() {
		if d.err != nil {
			return nil
		}
		names = append(names, FormerName{d.int(), d.string()})
	}
	return names
}

func (d *decoder) properties() (all []Property) {
	for range d.len() {
		if d.err != nil {
			return nil
		}
		all = append(all, Property{d.string(), d.string()})
	}
	return all
}

func (d *decoder) offsets() (os []Offset) {
	for range d.len() {
		if d.err != nil {
			return nil
		}
		os = append(os, Offset{d.int32(), d.varint()})
	}
	return os
}

func (d *decoder) names() (names []string) {
	for range d.len() {
		if d.err != nil {
			return nil
		}
		names = append(names, d.string())
	}
	return names
}

func (d *decoder) files() (files []File) {
	for range d.len() {
		f := File{Data: d.dataFiles(), Schema: d.int()}
		if d.version >= 2 {
			f.Spec = d.int()
		}
		f.Rows, f.Bytes = d.varint(), d.varint()
		for range d.len() {
			if d.err != nil {
				return nil
			}
			f.Ranges = append(f.Ranges, Range{d.int32(), d.varint(), d.varint(), d.varint(), d.varint(), d.varint()})
		}
		if d.err != nil {
			return nil
		}
		files = append(files, f)
	}
	return files
}

func (d *decoder) dataFiles() (files []DataFile) {
	n := 1
	if d.version >= 2 {
		n = d.len()
	}
	for range n {
		f := DataFile{d.string(), d.bytes()}
		if d.err != nil || d.version < 2 && f.Location == "" {
			return nil
		}
		files = append(files, f)
	}
	return files
}

// Dump writes the value of a control record as annotated text.
func Dump(w io.Writer, data []byte) error {
	p, err := parsePart(data)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "control event, version %d, %d bytes, crc %08x\n", data[4], len(data), binary.BigEndian.Uint32(data[len(data)-4:]))
	fmt.Fprintf(w, "event %s, part %d of %d, body %d bytes\n", p.event, p.index+1, p.n, len(p.body))
	if p.n > 1 {
		_, err = fmt.Fprintf(w, "kind %d, the body is spread over %d records\n", p.kind, p.n)
		return err
	}
	e, err := parseBody(p.version, p.kind, p.body)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%T\n%s", e, Describe(e))
	return err
}

// Describe is an event as text, a line per field.
func Describe(e Event) string {
	var out []byte
	line := func(name, format string, args ...any) {
		out = fmt.Appendf(out, "  %-14s "+format+"\n", append([]any{name}, args...)...)
	}
	stamp := func(t time.Time) string {
		if t.IsZero() {
			return "none"
		}
		return t.UTC().Format("2006-01-02T15:04:05.000Z")
	}
	switch e := e.(type) {
	case Hello:
		line("worker", "%s", e.Worker)
		line("partitions", "%v", e.Partitions)
	case Began:
		line("epoch", "%d", e.Epoch)
		line("table", "%s", e.Table)
	case Table:
		line("epoch", "%d", e.Epoch)
		line("table", "%s", e.UUID)
		line("location", "%s", e.Location)
		line("format version", "%d", e.FormatVersion)
		line("spec", "%d", e.Spec)
		if len(e.Partitions) > 0 {
			line("partitions", "%s", e.Partitions)
		}
		line("last column", "%d", e.LastColumnID)
		line("kafka column", "%s", e.KafkaColumn)
		line("schema", "%s", e.Schema)
		line("fits", "%v", e.Fits)
		line("next", "%v", e.Next)
		if e.NewColumns {
			line("new columns", "%t", e.NewColumns)
		}
		if len(e.Former) > 0 {
			line("former", "%v", e.Former)
		}
		if len(e.Order) > 0 {
			line("order", "%s", e.Order)
		}
		for _, p := range e.Writing {
			line("property", "%s=%s", p.Name, p.Value)
		}
	case Needed:
		line("writer", "%s", e.Writer)
	case Refused:
		line("epoch", "%d", e.Epoch)
		line("writer", "%s", e.Writer)
		line("reason", "%s", e.Reason)
	case Pending:
		line("worker", "%s", e.Worker)
		line("since", "%s", stamp(e.Since))
		line("full", "%t", e.Full)
	case Request:
		line("epoch", "%d", e.Epoch)
		line("commit", "%s", e.Commit)
		line("next", "%v", e.Next)
	case Answer:
		line("epoch", "%d", e.Epoch)
		line("commit", "%s", e.Commit)
		if !e.At.IsZero() {
			line("at", "%s", stamp(e.At))
		}
		if e.Table != uuid.Nil {
			line("table", "%s", e.Table)
		}
		line("worker", "%s", e.Worker)
		line("partitions", "%v", e.Partitions)
		line("since", "%s", stamp(e.Since))
		for _, f := range e.Files {
			first, more := DataFile{}, f.Data
			if len(more) > 0 {
				first, more = more[0], more[1:]
			}
			line("file", "%q, schema %d, %d rows, %d bytes, manifest entry %x", first.Location, f.Schema, f.Rows, f.Bytes, first.Entry)
			for _, d := range more {
				line("  and", "%q, manifest entry %x", d.Location, d.Entry)
			}
			if f.Spec != 0 {
				line("  spec", "%d", f.Spec)
			}
			for _, r := range f.Ranges {
				line("  range", "partition %d, offsets %d to %d, gap %d, rows %d, dead %d", r.Partition, r.Start, r.End, r.Gap, r.Rows, r.Dead)
			}
		}
	case Journal:
		line("at", "%s", stamp(e.At))
		line("table", "%s", e.Table)
		for _, n := range e.Names {
			line("name", "%s", n)
		}
	case Committed:
		line("epoch", "%d", e.Epoch)
		line("commit", "%s", e.Commit)
		line("snapshot", "%d", e.Snapshot)
		line("next", "%v", e.Next)
		for _, n := range e.Names {
			line("name", "%s", n)
		}
	}
	return string(out)
}
