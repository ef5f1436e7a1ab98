// Package shard runs a state machine whose state is a replayed log. Consumer groups use it.
//
// A handler looks at the state and returns records and answers. The runtime replays the
// records into the state, appends them to the log, and sends the answers once the log has
// them: recovery, which is replay from the start, is then the normal path. Many appends may
// be under way; answers keep their order, so that nobody is told of a state that could
// still be lost. When an append fails the shard ends, and whoever opens it again replays.
//
// Records may be part of a producer's transaction, and markers end one (KIP-98). What they mean
// before and after their marker is the state's to know.
//
// Once the log has grown by SnapshotBytes, the whole state is appended and what came before
// is trimmed, which keeps a start short.
package shard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tabletopic/tabletopic/record"
)

// A Log is an ordered, durable sequence of record batches: a partition.
type Log interface {
	// Append appends one batch; done is called in order of appends once it is durable, and
	// must not block. After an error done is not called.
	Append(ctx context.Context, batch []byte, done func(base int64, err error)) error
	// Read returns batches from the one that contains from, none at the end.
	Read(ctx context.Context, from int64, maxBytes int) ([]record.Batch, error)
	// Offsets returns the first offset and the one after the last.
	Offsets() (start, end int64)
	// Trim drops what lies before an offset.
	Trim(ctx context.Context, before int64) error
}

// A State is owned by one goroutine. It has no clock, goroutine or I/O.
type State interface {
	// Replay folds one record in. It is the only way that durable state changes.
	Replay(r Record) error
	// Snapshot returns records that build the durable state from nothing.
	Snapshot() []Record
	// Tick does what is due at now.
	Tick(now time.Time) Step
	// Wake is when Tick is next due; zero means never.
	Wake() time.Time
}

// A Ticket names a request until it is answered. Zero is nobody.
type Ticket uint64

// A Record is one of the log.
type Record struct {
	record.Record
	Txn    *Producer      // whose transaction it is part of; nil if of none
	Marker *record.Marker // if it is a marker, which then is all of it
}

// A Producer of a transaction.
type Producer struct {
	ID    int64
	Epoch int16
}

// A Step is what a handler wants done: records first, then answers.
type Step struct {
	Records []Record
	Answers []Answer
}

// An Answer ends the request To with Value.
type Answer struct {
	To    Ticket
	Value any
}

// Config bounds a shard.
type Config struct {
	// Queue is how many requests wait for the shard's goroutine. 1,024 if zero.
	Queue int
	// BatchBytes bounds one appended batch. 512 KiB if zero.
	BatchBytes int
	// SnapshotBytes is the growth of the log after which it is compacted. 16 MiB if zero.
	SnapshotBytes int64
}

func (c *Config) setDefaults() {
	if c.Queue == 0 {
		c.Queue = 1024
	}
	if c.BatchBytes == 0 {
		c.BatchBytes = 512 << 10
	}
	if c.SnapshotBytes == 0 {
		c.SnapshotBytes = 16 << 20
	}
}

// ErrClosed says that the shard has ended; open it again to go on.
var ErrClosed = errors.New("shard closed")

// A Shard is a running state machine.
type Shard[S State] struct {
	cfg      Config
	log      Log
	state    S
	requests chan request[S]
	acked    chan struct{} // signals that acks is not empty
	cancel   context.CancelFunc
	done     chan struct{} // closed when run has returned
	err      error         // why it ended; read after done

	mu   sync.Mutex
	acks []ack // guarded by mu

	// owned by run
	waiting map[Ticket]chan any
	pending []*pending // appends not yet durable, in order
	ticket  Ticket
	grown   int64 // bytes appended since the last snapshot
	cutting bool  // a snapshot is on its way
	cut     int64 // where it starts
}

type request[S State] struct {
	handle func(S, time.Time, Ticket) Step
	answer chan any
}

type pending struct {
	answers []Answer
	first   bool // the first batch of a snapshot
	last    bool // the last batch of a snapshot
}

type ack struct {
	base int64
	err  error
}

// Open replays the log into state and starts to serve.
func Open[S State](ctx context.Context, log Log, state S, cfg Config) (*Shard[S], error) {
	cfg.setDefaults()
	s := &Shard[S]{
		cfg: cfg, log: log, state: state,
		requests: make(chan request[S], cfg.Queue),
		acked:    make(chan struct{}, 1),
		done:     make(chan struct{}),
		waiting:  map[Ticket]chan any{},
	}
	if err := s.replay(ctx); err != nil {
		return nil, err
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	go func() {
		defer close(s.done)
		s.err = s.run(run)
	}()
	return s, nil
}

func (s *Shard[S]) replay(ctx context.Context) error {
	var reader record.Reader
	next, end := s.log.Offsets()
	for next < end {
		batches, err := s.log.Read(ctx, next, 4<<20)
		if err != nil {
			return fmt.Errorf("replay from offset %d: %w", next, err)
		}
		if len(batches) == 0 {
			return fmt.Errorf("replay from offset %d: the log ends before %d", next, end)
		}
		for _, b := range batches {
			s.grown += int64(len(b))
			if err := s.replayBatch(&reader, b, next); err != nil {
				return err
			}
			next = b.NextOffset()
		}
	}
	return nil
}

func (s *Shard[S]) replayBatch(reader *record.Reader, b record.Batch, from int64) error {
	if b.IsControl() {
		m, err := record.ParseMarker(reader, b)
		if err == nil {
			err = s.state.Replay(Record{Marker: &m})
		}
		if err != nil {
			return fmt.Errorf("replay marker at offset %d: %w", b.BaseOffset(), err)
		}
		return nil
	}
	var txn *Producer
	if b.IsTransactional() {
		txn = &Producer{b.ProducerID(), b.ProducerEpoch()}
	}
	if err := reader.Reset(b); err != nil {
		return fmt.Errorf("replay batch at offset %d: %w", b.BaseOffset(), err)
	}
	var r record.Record
	for {
		ok, err := reader.Next(&r)
		if err != nil {
			return fmt.Errorf("replay batch at offset %d: %w", b.BaseOffset(), err)
		}
		if !ok {
			return nil
		}
		if r.Offset < from {
			continue
		}
		if err := s.state.Replay(Record{Record: r, Txn: txn}); err != nil {
			return fmt.Errorf("replay record at offset %d: %w", r.Offset, err)
		}
	}
}

// Do runs handle on the shard's goroutine and waits for the answer to its ticket, which may
// come from a later step. A ticket must be answered exactly once.
func (s *Shard[S]) Do(ctx context.Context, handle func(state S, now time.Time, t Ticket) Step) (any, error) {
	answer := make(chan any, 1)
	select {
	case s.requests <- request[S]{handle, answer}:
	case <-s.done:
		return nil, s.closed()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case v := <-answer:
		return v, nil
	case <-s.done:
		select {
		case v := <-answer:
			return v, nil
		default:
			return nil, s.closed()
		}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *Shard[S]) closed() error {
	if s.err != nil {
		return fmt.Errorf("%w: %w", ErrClosed, s.err)
	}
	return ErrClosed
}

// Done is closed when the shard has ended.
func (s *Shard[S]) Done() <-chan struct{} { return s.done }

// Close ends the shard; requests without an answer get ErrClosed.
func (s *Shard[S]) Close() {
	s.cancel()
	<-s.done
}

// run owns the state. It returns when ctx ends or an append fails.
func (s *Shard[S]) run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if wake := s.state.Wake(); !wake.IsZero() {
			timer.Reset(max(0, time.Until(wake)))
		} else {
			timer.Reset(time.Hour)
		}
		var err error
		select {
		case <-ctx.Done():
			return nil
		case r := <-s.requests:
			s.ticket++
			s.waiting[s.ticket] = r.answer
			err = s.apply(ctx, r.handle(s.state, time.Now(), s.ticket))
		case <-s.acked:
			err = s.complete(ctx)
		case <-timer.C:
			err = s.apply(ctx, s.state.Tick(time.Now()))
		}
		if err == nil && s.grown > s.cfg.SnapshotBytes && !s.cutting {
			err = s.snapshot(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// apply replays and appends the records of a step; its answers wait for every append before them.
func (s *Shard[S]) apply(ctx context.Context, step Step) error {
	for _, r := range step.Records {
		if err := s.state.Replay(r); err != nil {
			return fmt.Errorf("replay own record: %w", err)
		}
	}
	if err := s.append(ctx, step.Records); err != nil {
		return err
	}
	if n := len(s.pending); n > 0 {
		s.pending[n-1].answers = append(s.pending[n-1].answers, step.Answers...)
		return nil
	}
	s.deliver(step.Answers)
	return nil
}

// append writes records in batches of bounded size.
func (s *Shard[S]) append(ctx context.Context, records []Record) error {
	for len(records) > 0 {
		batch, n, err := s.batch(records)
		if err != nil {
			return err
		}
		records = records[n:]
		s.grown += int64(len(batch))
		s.pending = append(s.pending, &pending{})
		err = s.log.Append(ctx, batch, func(base int64, err error) {
			s.mu.Lock()
			s.acks = append(s.acks, ack{base, err})
			s.mu.Unlock()
			select {
			case s.acked <- struct{}{}:
			default:
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// batch makes a batch of the first n of records: those of one transaction, or of none, or a marker.
func (s *Shard[S]) batch(records []Record) (batch []byte, n int, err error) {
	first := records[0]
	if first.Marker != nil {
		batch, err = record.AppendMarker(nil, *first.Marker, first.Timestamp)
		return batch, 1, err
	}
	var plain []record.Record
	for size := 0; n < len(records) && (n == 0 || size < s.cfg.BatchBytes); n++ {
		r := records[n]
		if r.Marker != nil || (r.Txn == nil) != (first.Txn == nil) || r.Txn != nil && *r.Txn != *first.Txn {
			break
		}
		size += len(r.Key) + len(r.Value) + 16
		plain = append(plain, r.Record)
	}
	var o record.BatchOptions
	if p := first.Txn; p != nil {
		o = record.BatchOptions{Idempotent: true, ProducerID: p.ID, ProducerEpoch: p.Epoch, BaseSequence: record.NoSequence, Transactional: true}
	}
	batch, err = record.AppendBatch(nil, o, plain)
	return batch, n, err
}

// complete answers what the log has by now.
func (s *Shard[S]) complete(ctx context.Context) error {
	s.mu.Lock()
	acks := s.acks
	s.acks = nil
	s.mu.Unlock()
	for _, a := range acks {
		if a.err != nil {
			return a.err
		}
		p := s.pending[0]
		s.pending = s.pending[1:]
		s.deliver(p.answers)
		if p.first {
			s.cut = a.base
		}
		if p.last {
			if err := s.log.Trim(ctx, s.cut); err != nil {
				return fmt.Errorf("trim before offset %d: %w", s.cut, err)
			}
			s.cutting = false
		}
	}
	return nil
}

func (s *Shard[S]) deliver(answers []Answer) {
	for _, a := range answers {
		if ch, ok := s.waiting[a.To]; ok {
			delete(s.waiting, a.To)
			ch <- a.Value
		}
	}
}

// snapshot appends the whole state; once it is durable, complete trims what came before.
func (s *Shard[S]) snapshot(ctx context.Context) error {
	first := len(s.pending)
	if err := s.append(ctx, s.state.Snapshot()); err != nil {
		return err
	}
	s.grown = 0
	if len(s.pending) > first { // an empty state has nothing to append
		s.cutting = true
		s.pending[first].first = true
		s.pending[len(s.pending)-1].last = true
	}
	return nil
}
