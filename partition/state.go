package partition

import (
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/record"
)

const (
	// keptBatches is how many batches of a producer are known, so that a repeat is noticed:
	// clients have at most 5 requests in flight (KIP-98, KIP-679).
	keptBatches = 5
	// maxEpochs bounds the leader epochs that are remembered; the oldest go first.
	maxEpochs = 4096
)

// state is what a partition knows of its log besides the records. It changes only by
// replay: apply folds one batch into it, after its append and at start alike. It has no
// clock and no I/O.
type state struct {
	next           int64 // offset after the last batch applied
	maxTimestamp   int64 // largest time of all records so far, −1 if none …
	maxTimestampAt int64 // … and the base offset of the first batch that has it
	producers      map[int64]*producer
	open           []openTransaction    // by first offset
	aborted        []abortedTransaction // with records that may still be in the log, by last offset
	epochs         []epochStart
	letters        map[letterSource]int64 // last source offset accepted
	sizes          sizeIndex
	cleaned        int64 // the last pass of the cleaner went over what is below

	maxProducers int
	maxAborted   int
	reader       record.Reader // for dead letters and markers
}

// producer is what is known of an idempotent or transactional producer.
type producer struct {
	epoch   int16
	seen    int64           // ms; when it last appended, or was replayed
	batches []producedBatch // of the epoch, up to keptBatches, oldest first

	coordinator int32 // epoch of the coordinator of its last marker; −1 if there was none
	begun       int64 // first offset of its open transaction; −1 if there is none
	begunAt     int64 // ms; time of the first batch
	ended       int64 // offset of its last marker that this leader knows of; −1 if none
}

func newProducer(epoch int16) *producer {
	return &producer{epoch: epoch, coordinator: -1, begun: -1, begunAt: -1, ended: -1}
}

type producedBatch struct {
	first, last int32 // sequence numbers, which wrap from 2³¹−1 to 0
	base        int64
	appendTime  int64 // −1 if the producer's time counts
}

type epochStart struct {
	epoch int32
	start int64
}

// letterSource is a partition that dead letters come from. There are as many as the topics
// with that dead letter topic have partitions.
type letterSource struct {
	topic     uuid.UUID
	partition int32
}

func newState(maxProducers, maxAborted int) *state {
	return &state{maxTimestamp: -1, maxTimestampAt: -1, producers: map[int64]*producer{},
		letters: map[letterSource]int64{}, maxProducers: maxProducers, maxAborted: maxAborted}
}

// check tells whether b may be appended next. It returns the first attempt if b repeats
// one of the producer's last batches.
func (s *state) check(b record.Batch) (repeated *producedBatch, err error) {
	id := b.ProducerID()
	if id < 0 || b.IsControl() { // checkMarker looks at those
		return nil, nil
	}
	p, epoch, sequence := s.producers[id], b.ProducerEpoch(), b.BaseSequence()
	if p == nil {
		// Not known, or forgotten by expiry: any number starts it (KIP-360).
		return nil, nil
	}
	if p.begun >= 0 && !b.IsTransactional() {
		return nil, fmt.Errorf("%w: producer %d has a transaction open here, and the batch is not part of it", ErrInvalidTxnState, id)
	}
	if epoch < p.epoch && !invariant.Off("producer-epoch") {
		return nil, fmt.Errorf("%w: producer %d has epoch %d, the batch %d", ErrInvalidProducerEpoch, id, p.epoch, epoch)
	}
	if epoch > p.epoch {
		// A producer that raised its own epoch after an error starts anew (KIP-360).
		if sequence > 0 {
			return nil, fmt.Errorf("%w: producer %d starts epoch %d with %d, want 0", ErrOutOfOrderSequence, id, epoch, sequence)
		}
		return nil, nil
	}
	if sequence < 0 { // a coordinator's, which does not count
		return nil, nil
	}
	for i := range p.batches {
		if k := &p.batches[i]; k.first == sequence && k.last == b.LastSequence() && !invariant.Off("producer-repeat") {
			return k, nil
		}
	}
	want := int32(0) // after a marker that raised the epoch
	if n := len(p.batches); n > 0 {
		want = int32((uint32(p.batches[n-1].last) + 1) & (1<<31 - 1))
	}
	if sequence != want && !invariant.Off("producer-sequence") {
		return nil, fmt.Errorf("%w: producer %d epoch %d sent %d, want %d", ErrOutOfOrderSequence, id, epoch, sequence, want)
	}
	return nil, nil
}

// apply folds a batch, offsets assigned, into the state. An error says that it holds dead
// letters or a marker that cannot be read.
func (s *state) apply(b record.Batch, now int64) error {
	base, next := b.BaseOffset(), b.NextOffset()
	if t := b.MaxTimestamp(); t > s.maxTimestamp {
		s.maxTimestamp, s.maxTimestampAt = t, base
	}
	if e := b.LeaderEpoch(); len(s.epochs) == 0 || e > s.epochs[len(s.epochs)-1].epoch {
		s.startEpoch(e, base)
	}
	s.sizes.add(base, int64(len(b)))
	s.next = next
	if b.IsControl() {
		return s.applyMarker(b, now)
	}
	if id := b.ProducerID(); id >= 0 {
		s.applyProducer(b, id, now)
	}
	if isDeadLetters(b) {
		return s.applyLetters(b)
	}
	return nil
}

func (s *state) applyProducer(b record.Batch, id, now int64) {
	p := s.producer(id, b.ProducerEpoch())
	p.seen = now
	if b.IsTransactional() && p.begun < 0 {
		p.begun, p.begunAt = b.BaseOffset(), now
		s.open = append(s.open, openTransaction{id, p.begun})
	}
	if b.BaseSequence() < 0 {
		return
	}
	if p.batches == nil {
		p.batches = make([]producedBatch, 0, keptBatches)
	}
	if len(p.batches) == keptBatches {
		p.batches = p.batches[:copy(p.batches, p.batches[1:])]
	}
	kept := producedBatch{first: b.BaseSequence(), last: b.LastSequence(), base: b.BaseOffset(), appendTime: -1}
	if b.LogAppendTime() {
		kept.appendTime = b.MaxTimestamp()
	}
	p.batches = append(p.batches, kept)
}

// producer returns what is known of a producer, in the epoch of what it appends now.
func (s *state) producer(id int64, epoch int16) *producer {
	p := s.producers[id]
	if p == nil {
		if len(s.producers) >= s.maxProducers {
			s.forgetOldest()
		}
		p = newProducer(epoch)
		s.producers[id] = p
	}
	if p.epoch != epoch {
		p.epoch, p.batches = epoch, p.batches[:0]
	}
	return p
}

// forgetOldest makes room by dropping the tenth of the producers not seen for the longest time,
// of those that have no transaction open.
func (s *state) forgetOldest() {
	ids := make([]int64, 0, len(s.producers))
	for id, p := range s.producers {
		if p.begun < 0 {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b int64) int {
		if d := s.producers[a].seen - s.producers[b].seen; d != 0 {
			return int(max(min(d, 1), -1))
		}
		return int(max(min(a-b, 1), -1))
	})
	for _, id := range ids[:min(len(ids), max(1, len(ids)/10))] {
		delete(s.producers, id)
	}
}

// expire drops the producers that were not seen since the time before, in ms.
func (s *state) expire(before int64) {
	for id, p := range s.producers {
		if p.seen < before && p.begun < 0 {
			delete(s.producers, id)
		}
	}
}

// startEpoch notes that the leader of epoch appends from start on. Epochs in which nothing
// was appended leave no trace (KIP-101, KIP-279).
func (s *state) startEpoch(epoch int32, start int64) {
	for n := len(s.epochs); n > 0 && s.epochs[n-1].start >= start; n-- {
		s.epochs = s.epochs[:n-1]
	}
	if len(s.epochs) == maxEpochs {
		s.epochs = s.epochs[:copy(s.epochs, s.epochs[1:])]
	}
	s.epochs = append(s.epochs, epochStart{epoch, start})
}

// endOffset returns the largest epoch up to the one asked for and where it ends; −1, −1 if
// the epoch is not known yet.
func (s *state) endOffset(epoch int32, logEnd int64) (int32, int64) {
	n := len(s.epochs)
	if n == 0 || epoch < 0 || epoch > s.epochs[n-1].epoch {
		return -1, -1
	}
	if epoch == s.epochs[n-1].epoch {
		return epoch, logEnd
	}
	next, _ := slices.BinarySearchFunc(s.epochs, epoch+1, func(e epochStart, want int32) int { return int(e.epoch) - int(want) })
	if next == 0 {
		return epoch, s.epochs[0].start
	}
	return s.epochs[next-1].epoch, s.epochs[next].start
}

// trim forgets what lies wholly below start.
func (s *state) trim(start int64) {
	for len(s.epochs) > 1 && s.epochs[1].start <= start {
		s.epochs = s.epochs[1:]
	}
	if len(s.epochs) > 0 {
		s.epochs[0].start = max(s.epochs[0].start, start)
	}
	s.sizes.trim(start)
	s.trimAborted(start)
}

const (
	minSizeStep  = 64 << 10
	maxSizeMarks = 256
)

// sizeIndex knows about how many bytes of the log lie behind an offset. Its marks are at
// most maxSizeMarks, so they get farther apart as the log grows: a mark is good to a 64th of
// the log.
type sizeIndex struct {
	marks []sizeMark
	total int64 // bytes ever appended
	step  int64 // distance of new marks
}

type sizeMark struct {
	offset int64
	before int64 // bytes appended before the offset
}

func (x *sizeIndex) add(offset, n int64) {
	x.step = max(x.step, minSizeStep)
	if k := len(x.marks); k == 0 || x.total-x.marks[k-1].before >= x.step {
		if k < maxSizeMarks/4 && x.step > minSizeStep {
			x.step /= 2
		}
		if k == maxSizeMarks {
			for i := range maxSizeMarks / 2 {
				x.marks[i] = x.marks[2*i]
			}
			x.marks = x.marks[:maxSizeMarks/2]
			x.step *= 2
		}
		x.marks = append(x.marks, sizeMark{offset, x.total})
	}
	x.total += n
}

func (x *sizeIndex) trim(start int64) {
	for len(x.marks) > 1 && x.marks[1].offset <= start {
		x.marks = x.marks[1:]
	}
}

// size is about how many bytes the log holds.
func (x *sizeIndex) size() int64 {
	if len(x.marks) == 0 {
		return 0
	}
	return x.total - x.marks[0].before
}

// keep returns the largest marked offset that leaves at least n bytes behind it.
func (x *sizeIndex) keep(n int64) (offset int64, ok bool) {
	for i := len(x.marks) - 1; i >= 0; i-- {
		if x.total-x.marks[i].before >= n {
			return x.marks[i].offset, true
		}
	}
	return 0, false
}
