package partition

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/internal/crc32c"
)

// A checkpoint is one batch of a partition's meta stream: all that the partition knows of
// its log up to an offset, so that a start reads the last checkpoint and the log behind it.
// Version 3:
//
//	┌──────────┬───────┬────────┬──────────┬───────────┬──────────┬──────────────┬─────────┬─────────┬───────────┬─────────┐
//	│ "TCKP" 4 │ ver 1 │ next v │ max time │ epochs n× │ sizes n× │ producers n× │ letters │ aborted │ cleaned v │ crc32 4 │
//	└──────────┴───────┴────────┴──────────┴───────────┴──────────┴──────────────┴─────────┴─────────┴───────────┴─────────┘
//
// Between version and checksum all numbers are varints, signed ones in zigzag. next is the
// log offset that the checkpoint reflects; max time is the largest time of the log (signed)
// and the base offset of its batch (signed); cleaned is the offset up to which the log was
// cleaned. Each list has its length first:
//
//	epochs     leader epoch, start offset; ascending
//	sizes      total and step before the length; offset, bytes before it; ascending
//	producers  id, epoch, last seen ms (signed), coordinator epoch of the last marker, first offset
//	           of the open transaction and its time in ms (signed, −1 for none), batches n× (first
//	           sequence, last sequence, base offset, append time (signed)); ascending by id
//	letters    source topic id (16 bytes), source partition, last source offset; ascending
//	aborted    transactions: offset of the marker minus that of the one before, minus the first
//	           offset, producer id, first offset that was undecided after it minus that of the
//	           one before (signed); ascending by marker
//
// The CRC-32C, big-endian, covers all bytes before it.
//
// Versions: 1, the first, without transactions: no aborted, and a producer has no coordinator
// epoch and nothing open. 2 added them. 3 added cleaned, which was 0.
const (
	checkpointMagic   = "TCKP"
	checkpointVersion = 3
)

var (
	errCheckpoint        = errors.New("corrupt checkpoint")
	errCheckpointVersion = errors.New("checkpoint of a newer version")
)

func appendCheckpoint(dst []byte, s *state) []byte {
	start := len(dst)
	dst = append(append(dst, checkpointMagic...), checkpointVersion)
	dst = appendUints(dst, uint64(s.next))
	dst = appendInts(dst, s.maxTimestamp, s.maxTimestampAt)
	dst = appendUints(dst, uint64(len(s.epochs)))
	for _, e := range s.epochs {
		dst = appendUints(dst, uint64(e.epoch), uint64(e.start))
	}
	dst = appendUints(dst, uint64(s.sizes.total), uint64(s.sizes.step), uint64(len(s.sizes.marks)))
	for _, m := range s.sizes.marks {
		dst = appendUints(dst, uint64(m.offset), uint64(m.before))
	}
	dst = appendUints(dst, uint64(len(s.producers)))
	for _, id := range slices.Sorted(maps.Keys(s.producers)) {
		p := s.producers[id]
		dst = appendUints(dst, uint64(id), uint64(p.epoch))
		dst = appendInts(dst, p.seen, int64(p.coordinator), p.begun, p.begunAt)
		dst = appendUints(dst, uint64(len(p.batches)))
		for _, b := range p.batches {
			dst = appendUints(dst, uint64(b.first), uint64(b.last), uint64(b.base))
			dst = appendInts(dst, b.appendTime)
		}
	}
	dst = appendUints(dst, uint64(len(s.letters)))
	for _, source := range sortedSources(s.letters) {
		dst = append(dst, source.topic[:]...)
		dst = appendUints(dst, uint64(source.partition), uint64(s.letters[source]))
	}
	dst = appendUints(dst, uint64(len(s.aborted)))
	var before abortedTransaction
	for _, t := range s.aborted {
		dst = appendUints(dst, uint64(t.last-before.last), uint64(t.last-t.first), uint64(t.producer))
		dst = appendInts(dst, t.stable-before.stable)
		before = t
	}
	dst = appendUints(dst, uint64(s.cleaned))
	return binary.BigEndian.AppendUint32(dst, crc32c.Checksum(dst[start:]))
}

func sortedSources(letters map[letterSource]int64) []letterSource {
	return slices.SortedFunc(maps.Keys(letters), func(a, b letterSource) int {
		if c := slices.Compare(a.topic[:], b.topic[:]); c != 0 {
			return c
		}
		return int(a.partition) - int(b.partition)
	})
}

// parseCheckpoint reads one checkpoint into s, which must be new.
func parseCheckpoint(s *state, src []byte) error {
	if len(src) < len(checkpointMagic)+1+4 || string(src[:len(checkpointMagic)]) != checkpointMagic {
		return fmt.Errorf("%w: %d bytes without its magic", errCheckpoint, len(src))
	}
	body, sum := src[:len(src)-4], binary.BigEndian.Uint32(src[len(src)-4:])
	version := src[len(checkpointMagic)]
	if v := version; v == 0 || v > checkpointVersion {
		return fmt.Errorf("%w: %d, this program reads up to %d", errCheckpointVersion, v, checkpointVersion)
	}
	if got := crc32c.Checksum(body); got != sum {
		return fmt.Errorf("%w: checksum %08x, it says %08x", errCheckpoint, got, sum)
	}
	r := &varints{src: body[len(checkpointMagic)+1:]}
	s.next = r.offset()
	s.maxTimestamp, s.maxTimestampAt = r.int(), r.int()
	for range r.count(2) {
		s.epochs = append(s.epochs, epochStart{epoch: int32(r.upTo(1<<31 - 1)), start: r.offset()})
	}
	s.sizes.total, s.sizes.step = r.offset(), r.offset()
	for range r.count(2) {
		s.sizes.marks = append(s.sizes.marks, sizeMark{offset: r.offset(), before: r.offset()})
	}
	for range r.count(4) {
		r.producer(s, version)
	}
	slices.SortFunc(s.open, func(a, b openTransaction) int { return cmp.Compare(a.first, b.first) })
	for i := range max(len(s.open)-1, 0) {
		if s.open[i].first == s.open[i+1].first { // an offset is one producer's
			r.failed = true
		}
	}
	for range r.count(18) {
		var source letterSource
		copy(source.topic[:], r.bytes(16))
		source.partition = int32(r.upTo(1<<31 - 1))
		s.letters[source] = r.offset()
	}
	if version >= 2 {
		r.aborted(s)
	}
	if version >= 3 {
		s.cleaned = r.offset()
	}
	if r.failed || len(r.src) != 0 {
		return fmt.Errorf("%w: its content does not parse, %d bytes before the end", errCheckpoint, len(r.src))
	}
	return nil
}

func (r *varints) producer(s *state, version byte) {
	id := r.offset()
	p := newProducer(int16(r.upTo(1<<15 - 1)))
	p.seen = r.int()
	if version >= 2 {
		coordinator := r.int()
		p.coordinator, p.begun, p.begunAt = int32(coordinator), r.int(), r.int()
		if int64(p.coordinator) != coordinator || p.coordinator < -1 || p.begun < -1 {
			r.failed = true
		}
	}
	if s.producers[id] != nil || r.failed {
		r.failed = true
		return
	}
	if p.begun >= 0 {
		s.open = append(s.open, openTransaction{id, p.begun})
	}
	n := r.upTo(keptBatches)
	if n > 0 {
		p.batches = make([]producedBatch, 0, keptBatches)
	}
	for range n {
		p.batches = append(p.batches, producedBatch{first: int32(r.upTo(1<<31 - 1)), last: int32(r.upTo(1<<31 - 1)), base: r.offset(), appendTime: r.int()})
	}
	s.producers[id] = p
}

func (r *varints) aborted(s *state) {
	var before abortedTransaction
	for range r.count(4) {
		t := abortedTransaction{last: before.last + r.offset()}
		t.first, t.producer = t.last-r.offset(), r.offset()
		t.stable = before.stable + r.int()
		if t.last < before.last || t.first < 0 || t.stable < 0 {
			r.failed = true
			return
		}
		s.aborted = append(s.aborted, t)
		before = t
	}
}

// DumpCheckpoint writes the fields of a checkpoint, one a line.
func DumpCheckpoint(w io.Writer, data []byte) error {
	s := newState(0, 0)
	if err := parseCheckpoint(s, data); err != nil {
		return err
	}
	d := &dump{w: w}
	d.line("partition checkpoint, version %d, %d bytes", data[len(checkpointMagic)], len(data))
	d.line("next offset %d", s.next)
	d.line("max timestamp %d in the batch at offset %d", s.maxTimestamp, s.maxTimestampAt)
	d.line("leader epochs %d", len(s.epochs))
	for _, e := range s.epochs {
		d.line("  epoch %d from offset %d", e.epoch, e.start)
	}
	d.line("sizes: %d bytes ever appended, a mark every %d, %d marks", s.sizes.total, s.sizes.step, len(s.sizes.marks))
	for _, m := range s.sizes.marks {
		d.line("  %d bytes before offset %d", m.before, m.offset)
	}
	d.line("producers %d", len(s.producers))
	for _, id := range slices.Sorted(maps.Keys(s.producers)) {
		p := s.producers[id]
		d.line("  producer %d epoch %d seen %d", id, p.epoch, p.seen)
		if p.coordinator >= 0 {
			d.line("    last marker by coordinator epoch %d", p.coordinator)
		}
		if p.begun >= 0 {
			d.line("    transaction open from offset %d, time %d", p.begun, p.begunAt)
		}
		for _, b := range p.batches {
			d.line("    sequence %d to %d at offset %d, append time %d", b.first, b.last, b.base, b.appendTime)
		}
	}
	d.line("dead letter sources %d", len(s.letters))
	for _, source := range sortedSources(s.letters) {
		d.line("  topic %s partition %d up to offset %d", uuid.UUID(source.topic), source.partition, s.letters[source])
	}
	if data[len(checkpointMagic)] >= 2 {
		d.line("aborted transactions %d", len(s.aborted))
	}
	for _, t := range s.aborted {
		d.line("  producer %d from offset %d, marker at %d, undecided from %d", t.producer, t.first, t.last, t.stable)
	}
	if data[len(checkpointMagic)] >= 3 {
		d.line("cleaned below offset %d", s.cleaned)
	}
	d.line("crc %x", data[len(data)-4:])
	return d.err
}

type dump struct {
	w   io.Writer
	err error
}

func (d *dump) line(format string, args ...any) {
	if d.err == nil {
		_, d.err = fmt.Fprintf(d.w, format+"\n", args...)
	}
}

func appendUints(dst []byte, vs ...uint64) []byte {
	for _, v := range vs {
		dst = binary.AppendUvarint(dst, v)
	}
	return dst
}

func appendInts(dst []byte, vs ...int64) []byte {
	for _, v := range vs {
		dst = binary.AppendVarint(dst, v)
	}
	return dst
}

// varints reads numbers off src; after one that does not fit, failed is set and all are 0.
type varints struct {
	src    []byte
	failed bool
}

func (r *varints) upTo(limit uint64) uint64 {
	v, n := binary.Uvarint(r.src)
	if n <= 0 || v > limit || r.failed {
		r.failed = true
		return 0
	}
	r.src = r.src[n:]
	return v
}

func (r *varints) offset() int64 { return int64(r.upTo(1<<63 - 1)) }

func (r *varints) int() int64 {
	v, n := binary.Varint(r.src)
	if n <= 0 || r.failed {
		r.failed = true
		return 0
	}
	r.src = r.src[n:]
	return v
}

// count reads the length of a list whose items take size bytes at least.
func (r *varints) count(size int) int { return int(r.upTo(uint64(len(r.src) / size))) }

func (r *varints) bytes(n int) []byte {
	if r.failed || len(r.src) < n {
		r.failed = true
		return nil
	}
	b := r.src[:n]
	r.src = r.src[n:]
	return b
}
