package partition

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/record"
)

// AbortedTransaction says that the records of a producer from an offset on, up to its next
// abort marker, are not committed.
type AbortedTransaction struct {
	ProducerID  int64
	FirstOffset int64
}

// openTransaction has records here and no marker.
type openTransaction struct {
	producer int64
	first    int64
}

// abortedTransaction has records here that readers of what is committed leave out.
type abortedTransaction struct {
	producer int64
	first    int64
	last     int64 // offset of its marker
	stable   int64 // first offset of the transactions that were open after it: later ones are behind it
}

// decided is a transaction whose marker is in the log, but not yet durable.
type decided struct {
	first, last int64
}

// A Verification, other than the zero value, lets a batch begin a transaction. It comes from before the coordinator was asked
// whether the partition takes part: a marker that came since then refuses the batch, which would
// else open a transaction that nobody ends.
type Verification struct {
	producer int64
	ended    int64
	known    bool
}

// Verification reports whether the producer has a transaction open here, in its epoch. If not,
// its coordinator must agree, after this call, before AppendTransactional.
func (p *Partition) Verification(producerID int64, epoch int16) (v Verification, open bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v = Verification{producerID, -1, true}
	if known := p.state.producers[producerID]; known != nil {
		v.ended = known.ended
		open = known.begun >= 0 && known.epoch == epoch
	}
	return v, open
}

// check makes sure that a batch which begins a transaction may.
func (v Verification) check(b record.Batch) func(*state) error {
	return func(s *state) error {
		if !b.IsTransactional() {
			return nil
		}
		return s.checkBegin(b.ProducerID(), v)
	}
}

// checkBegin returns why a producer that has no transaction open may not begin one.
func (s *state) checkBegin(producer int64, v Verification) error {
	ended := int64(-1)
	if p := s.producers[producer]; p != nil {
		if p.begun >= 0 {
			return nil
		}
		ended = p.ended
	}
	if (!v.known || v.producer != producer || v.ended != ended) && !invariant.Off("transaction-verified") {
		return fmt.Errorf("%w: producer %d begins a transaction that its coordinator does not know, or that ended meanwhile", ErrInvalidTxnState, producer)
	}
	return s.roomForTransaction()
}

func (s *state) roomForTransaction() error {
	if len(s.open) >= s.maxProducers || len(s.aborted)+len(s.open) >= s.maxAborted {
		return fmt.Errorf("%w: %d are open, at most %d may be, and %d aborted ones are in the log, at most %d may be: retention.ms and DeleteRecords remove them with their records",
			ErrTooManyTransactions, len(s.open), s.maxProducers, len(s.aborted), s.maxAborted)
	}
	return nil
}

// AppendTransactional is Append of a batch that may begin a transaction.
func (p *Partition) AppendTransactional(ctx context.Context, batches []byte, v Verification, done func(AppendResult, error)) error {
	b, err := p.validate(ctx, batches, p.now())
	if err != nil {
		return fmt.Errorf("append to %s: %w", p, err)
	}
	return p.append(ctx, b, v.check(b), done)
}

// CheckTransaction returns why a producer may not append to its transaction; v is of before its
// coordinator was asked, if it was.
func (p *Partition) CheckTransaction(producerID int64, epoch int16, v Verification) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.state.producers[producerID]; known != nil && epoch < known.epoch {
		return fmt.Errorf("%w: producer %d has epoch %d, not %d", ErrInvalidProducerEpoch, producerID, known.epoch, epoch)
	}
	return p.state.checkBegin(producerID, v)
}

// AppendOwn appends a batch that a part of this process made for an internal topic: also records
// of a transaction, without sequence numbers, and markers, if CheckTransaction and CheckMarker
// allow them.
func (p *Partition) AppendOwn(ctx context.Context, b record.Batch, done func(AppendResult, error)) error {
	return p.append(ctx, b, func(*state) error { return nil }, done)
}

// AppendMarker ends the transaction of a producer here, and returns when that is durable. Bumped
// says that the marker's epoch is above the one that the records of the transaction have
// (KIP-890): one that is late does not end the next transaction. ErrInvalidProducerEpoch and
// ErrCoordinatorFenced refuse what is too late. A marker that comes twice does no harm.
func (p *Partition) AppendMarker(ctx context.Context, m record.Marker, bumped bool) error {
	b, err := record.AppendMarker(nil, m, p.now())
	if err != nil {
		return fmt.Errorf("append to %s: %w", p, err)
	}
	durable := make(chan error, 1)
	check := func(s *state) error { return s.checkMarker(m, bumped) }
	if err := p.append(ctx, b, check, func(_ AppendResult, err error) { durable <- err }); err != nil {
		return err
	}
	select {
	case err := <-durable:
		return err
	case <-ctx.Done():
		return fmt.Errorf("append a marker to %s: outcome unknown: %w", p, context.Cause(ctx))
	}
}

// CheckMarker returns why AppendMarker would refuse a marker.
func (p *Partition) CheckMarker(m record.Marker, bumped bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.checkMarker(m, bumped)
}

func (s *state) checkMarker(m record.Marker, bumped bool) error {
	p := s.producers[m.ProducerID]
	switch {
	case p == nil:
		return nil
	case m.CoordinatorEpoch < p.coordinator && !invariant.Off("marker-coordinator"):
		return fmt.Errorf("%w: marker of producer %d by coordinator epoch %d, there was one by %d", ErrCoordinatorFenced, m.ProducerID, m.CoordinatorEpoch, p.coordinator)
	case m.ProducerEpoch < p.epoch && !invariant.Off("marker-epoch"):
		return fmt.Errorf("%w: marker of producer %d in epoch %d, it has epoch %d", ErrInvalidProducerEpoch, m.ProducerID, m.ProducerEpoch, p.epoch)
	case bumped && m.ProducerEpoch == p.epoch && p.begun >= 0 && !invariant.Off("marker-late"):
		return fmt.Errorf("%w: marker of producer %d is of an earlier transaction than the one that is open", ErrInvalidProducerEpoch, m.ProducerID)
	}
	return nil
}

// applyMarker folds a control batch into the state.
func (s *state) applyMarker(b record.Batch, now int64) error {
	m, err := record.ParseMarker(&s.reader, b)
	if err != nil {
		return err
	}
	p := s.producer(m.ProducerID, m.ProducerEpoch)
	p.seen, p.coordinator, p.ended = now, m.CoordinatorEpoch, b.BaseOffset()
	if p.begun < 0 {
		return nil
	}
	first := p.begun
	p.begun, p.begunAt = -1, -1
	at, _ := slices.BinarySearchFunc(s.open, first, func(t openTransaction, first int64) int { return cmp.Compare(t.first, first) })
	s.open = slices.Delete(s.open, at, at+1)
	if m.Commit {
		return nil
	}
	stable := b.NextOffset()
	if len(s.open) > 0 {
		stable = s.open[0].first
	}
	s.aborted = append(s.aborted, abortedTransaction{m.ProducerID, first, b.BaseOffset(), stable})
	return nil
}

// begun returns the first offset of a producer's open transaction; −1 if there is none.
func (s *state) begun(producer int64) int64 {
	if p := s.producers[producer]; p != nil {
		return p.begun
	}
	return -1
}

// abortedIn returns the aborted transactions with records from an offset up to another, by first
// offset.
func (s *state) abortedIn(from, to int64) []AbortedTransaction {
	var in []AbortedTransaction
	at, _ := slices.BinarySearchFunc(s.aborted, from, func(t abortedTransaction, from int64) int { return cmp.Compare(t.last, from) })
	for _, t := range s.aborted[at:] {
		if t.first < to {
			in = append(in, AbortedTransaction{t.producer, t.first})
		}
		if t.stable >= to {
			break
		}
	}
	slices.SortFunc(in, func(a, b AbortedTransaction) int { return cmp.Compare(a.FirstOffset, b.FirstOffset) })
	return in
}

// trimAborted forgets the aborted transactions that are wholly below start.
func (s *state) trimAborted(start int64) {
	at, _ := slices.BinarySearchFunc(s.aborted, start, func(t abortedTransaction, start int64) int { return cmp.Compare(t.last, start) })
	if at > 0 {
		s.aborted = append([]abortedTransaction(nil), s.aborted[at:]...)
	}
}

// lastStableLocked is the end of what is decided: the first offset of a transaction that is open,
// or whose marker may still be lost, or the high watermark.
func (p *Partition) lastStableLocked() int64 {
	stable := min(p.highWatermark, p.state.next)
	if open := p.state.open; len(open) > 0 {
		stable = min(stable, open[0].first)
	}
	if !invariant.Off("marker-durable") {
		for _, d := range p.decided {
			stable = min(stable, d.first)
		}
	}
	return max(stable, min(p.log.StartOffset(), p.highWatermark))
}

// decideLocked notes what a marker ends, before the state learns of it.
func (p *Partition) decideLocked(b record.Batch) {
	if first := p.state.begun(b.ProducerID()); b.IsControl() && first >= 0 {
		p.decided = append(p.decided, decided{first, b.BaseOffset()})
		p.dropDecidedLocked()
	}
}

// dropDecidedLocked forgets the transactions whose markers are durable.
func (p *Partition) dropDecidedLocked() {
	n := 0
	for n < len(p.decided) && p.decided[n].last < p.highWatermark {
		n++
	}
	if p.decided = p.decided[n:]; len(p.decided) == 0 {
		p.decided = nil
	}
}

// A Producer is what a partition knows of one.
type Producer struct {
	ID               int64
	Epoch            int16
	CoordinatorEpoch int32 // of its last marker; −1 if there was none
	LastSequence     int32 // −1 if not known
	LastTimestamp    int64 // ms; when it was last seen
	TxnStartOffset   int64 // of its open transaction; −1 if there is none
	TxnStart         int64 // ms; −1 if there is none
}

// Producers returns the producers that the partition knows, by id.
func (p *Partition) Producers() []Producer {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]Producer, 0, len(p.state.producers))
	for id, k := range p.state.producers {
		all = append(all, k.describe(id))
	}
	slices.SortFunc(all, func(a, b Producer) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

func (k *producer) describe(id int64) Producer {
	out := Producer{ID: id, Epoch: k.epoch, CoordinatorEpoch: k.coordinator, LastSequence: -1, LastTimestamp: k.seen, TxnStartOffset: k.begun, TxnStart: k.begunAt}
	if n := len(k.batches); n > 0 {
		out.LastSequence = k.batches[n-1].last
	}
	return out
}
