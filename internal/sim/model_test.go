package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/tabletopic/tabletopic/streamstore"
)

// A stream is what one stream must hold, whoever has it open.
type stream struct {
	id streamstore.StreamID

	mu       sync.Mutex
	home     streamstore.NodeID // guarded by mu; the node that shall open it next
	epoch    int64              // guarded by mu; the highest that an open was tried with
	opens    []opening          // guarded by mu; by epoch
	attempts map[attempt]*batch // guarded by mu; appended, whatever came of it
	known    map[int64]*batch   // guarded by mu; acknowledged or read, by base offset: these stay
	end      int64              // guarded by mu; after the last of known
	trimmed  int64              // guarded by mu; acknowledged: nothing below is read again
	trimming int64              // guarded by mu; the highest that a trim was tried with
	gone     bool               // guarded by mu; destroyed, or perhaps
}

// An opening is an answer to an open.
type opening struct {
	epoch, end int64
	by         string
}

// An attempt names a batch among all of its stream: the how-many-eth append of a handle.
type attempt struct {
	epoch, seq int64
}

type batch struct {
	attempt
	streamstore.RecordBatch
	acked bool
}

func (b *batch) String() string {
	return fmt.Sprintf("[%d, %d) (epoch %d, append %d, acknowledged %t)", b.BaseOffset, b.End(), b.epoch, b.seq, b.acked)
}

const payloadHeader = 24

// newBatch draws a batch whose payload says which it is.
func (s *stream) newBatch(r *rand.Rand, a attempt, base int64, largest int) *batch {
	b := &batch{attempt: a, RecordBatch: streamstore.RecordBatch{
		BaseOffset: base, Count: 1 + r.Int32N(3), MaxTimestamp: r.Int64N(1_000), Payload: make([]byte, payloadHeader+r.IntN(largest)),
	}}
	binary.BigEndian.PutUint64(b.Payload, uint64(s.id))
	binary.BigEndian.PutUint64(b.Payload[8:], uint64(a.epoch))
	binary.BigEndian.PutUint64(b.Payload[16:], uint64(a.seq))
	for i := payloadHeader; i < len(b.Payload); i += payloadHeader {
		copy(b.Payload[i:], b.Payload[:payloadHeader])
	}
	return b
}

// nextEpoch takes an epoch for an open.
func (s *stream) nextEpoch() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch++
	return s.epoch
}

// opened checks what an open found. trimmed is what it must at least have found trimmed.
func (s *stream) opened(o opening, start, trimmed int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.known {
		if b.epoch < o.epoch && b.End() > o.end {
			return fmt.Errorf("stream %d was opened by %s with epoch %d and end %d, and lacks %s", s.id, o.by, o.epoch, o.end, b)
		}
		if b.epoch >= o.epoch && b.BaseOffset < o.end {
			return fmt.Errorf("stream %d was opened by %s with epoch %d and end %d, and there is %s", s.id, o.by, o.epoch, o.end, b)
		}
	}
	if start < trimmed || start > s.trimming {
		return fmt.Errorf("stream %d was opened by %s with start %d, trimmed to %d, tried up to %d", s.id, o.by, start, trimmed, s.trimming)
	}
	at, _ := slices.BinarySearchFunc(s.opens, o.epoch, func(o opening, epoch int64) int { return int(o.epoch - epoch) })
	if at > 0 && s.opens[at-1].end > o.end || at < len(s.opens) && s.opens[at].end < o.end {
		return fmt.Errorf("stream %d was opened by %s with epoch %d and end %d, between %v", s.id, o.by, o.epoch, o.end, s.opens)
	}
	s.opens = slices.Insert(s.opens, at, o)
	return nil
}

// acknowledged checks that no later opening lacks the batch.
func (s *stream) acknowledged(b *batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.opens {
		if o.epoch > b.epoch && o.end < b.End() && !s.gone {
			return fmt.Errorf("stream %d: %s was acknowledged, though %s had opened it with epoch %d and end %d", s.id, b, o.by, o.epoch, o.end)
		}
	}
	b.acked = true
	return s.learnLocked(b)
}

func (s *stream) learnLocked(b *batch) error {
	if other := s.known[b.BaseOffset]; other != nil && other != b {
		return fmt.Errorf("stream %d: at %d is %s, and was %s", s.id, b.BaseOffset, b, other)
	}
	s.known[b.BaseOffset] = b
	s.end = max(s.end, b.End())
	return nil
}

// find returns the batch that was appended with these bytes.
func (s *stream) findLocked(b streamstore.RecordBatch) (*batch, error) {
	if len(b.Payload) < payloadHeader {
		return nil, fmt.Errorf("stream %d: batch at %d has %d bytes, which nobody appended", s.id, b.BaseOffset, len(b.Payload))
	}
	a := attempt{int64(binary.BigEndian.Uint64(b.Payload[8:])), int64(binary.BigEndian.Uint64(b.Payload[16:]))}
	want := s.attempts[a]
	if binary.BigEndian.Uint64(b.Payload) != uint64(s.id) || want == nil {
		return nil, fmt.Errorf("stream %d: batch at %d, epoch %d, append %d, was never appended here", s.id, b.BaseOffset, a.epoch, a.seq)
	}
	if b.BaseOffset != want.BaseOffset || b.Count != want.Count || b.MaxTimestamp != want.MaxTimestamp || !bytes.Equal(b.Payload, want.Payload) {
		return nil, fmt.Errorf("stream %d: batch [%d, %d) differs from what was appended, %s", s.id, b.BaseOffset, b.End(), want)
	}
	return want, nil
}

// read checks consecutive batches that were read from offset from on.
func (s *stream) read(from int64, batches []streamstore.RecordBatch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var last *batch
	for i, got := range batches {
		b, err := s.findLocked(got)
		if err != nil {
			return err
		}
		switch {
		case i == 0 && (b.BaseOffset > from || b.End() <= from):
			return fmt.Errorf("stream %d, read from %d: the first batch is %s", s.id, from, b)
		case last != nil && b.BaseOffset != last.End():
			return fmt.Errorf("stream %d: %s comes after %s", s.id, b, last)
		case last != nil && (b.epoch < last.epoch || b.epoch == last.epoch && b.seq != last.seq+1 || b.epoch > last.epoch && b.seq != 0):
			return fmt.Errorf("stream %d: %s comes after %s: appends are missing", s.id, b, last)
		}
		if err := s.learnLocked(b); err != nil {
			return err
		}
		last = b
	}
	return nil
}

// mayStartAbove tells whether somebody asked to trim beyond offset.
func (s *stream) mayStartAbove(offset int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trimming > offset || s.gone
}

// whole checks that the stream was read from start to end without anything that must be there missing.
func (s *stream) whole(start, end int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if end < s.end {
		return fmt.Errorf("stream %d ends at %d, and held %d before", s.id, end, s.end)
	}
	if start < s.trimmed || start > s.trimming {
		return fmt.Errorf("stream %d starts at %d, trimmed to %d, tried up to %d", s.id, start, s.trimmed, s.trimming)
	}
	return nil
}

// firstWith returns the first batch known in [start, end) with a timestamp of ts or later.
func (s *stream) firstWith(start, end, ts int64) *batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	var first *batch
	for _, b := range s.known {
		if b.End() > start && b.End() <= end && b.MaxTimestamp >= ts && (first == nil || b.BaseOffset < first.BaseOffset) {
			first = b
		}
	}
	return first
}

// attempt notes that a batch is about to be appended.
func (s *stream) attempt(b *batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempts[b.attempt] = b
}

// withdraw notes that it was not.
func (s *stream) withdraw(b *batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.attempts, b.attempt)
}

// where returns the node that shall have the stream, and whether it may be gone.
func (s *stream) where() (home streamstore.NodeID, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.home, s.gone
}

func (s *stream) move(home streamstore.NodeID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.home = home
}

func (s *stream) destroy() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
}

// trim notes that a trim is tried, or done.
func (s *stream) trim(start int64, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trimming = max(s.trimming, start)
	if done {
		s.trimmed = max(s.trimmed, start)
	}
}

func (s *stream) trimmedTo() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trimmed
}

// restored forgets what the loss of the database may undo: trims.
func (s *stream) restored() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trimmed = 0
}
