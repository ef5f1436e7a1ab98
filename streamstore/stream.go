package streamstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Stream is a handle of an open stream. It is safe for concurrent use.
type Stream struct {
	store *Store
	id    StreamID
	epoch int64

	start   atomic.Int64
	trimmed atomic.Int64 // the start that metadata knows
	confirm atomic.Int64 // end of what is durable; moved by the WAL's goroutine

	readMu  sync.Mutex
	reading map[chan struct{}]struct{} // guarded by readMu; reads under way, each closed at its end

	// guarded by store.wal.mu
	next    int64
	stopped error         // why no append is accepted
	idle    chan struct{} // closed when confirm has reached next, if somebody waits
}

func newStream(s *Store, state StreamState) *Stream {
	st := &Stream{store: s, id: state.ID, epoch: state.Epoch, next: state.End}
	st.start.Store(state.Start)
	st.trimmed.Store(state.Start)
	st.confirm.Store(state.End)
	return st
}

// ID returns the stream's id.
func (st *Stream) ID() StreamID { return st.id }

// Epoch returns the epoch that the handle was opened with.
func (st *Stream) Epoch() int64 { return st.epoch }

// StartOffset returns the first offset that is not trimmed.
func (st *Stream) StartOffset() int64 { return st.start.Load() }

// ConfirmOffset returns the offset after the last durable batch.
func (st *Stream) ConfirmOffset() int64 { return st.confirm.Load() }

// NextOffset returns the offset that the next append gets.
func (st *Stream) NextOffset() int64 {
	st.store.wal.mu.Lock()
	defer st.store.wal.mu.Unlock()
	return st.next
}

// Append assigns offsets to b, whose BaseOffset is ignored, and returns the first one at
// once. The payload is copied before Append returns. done is called exactly once, in the
// order of appends, when b is durable or has failed; it must not block. A failed
// append fences the handle. Append blocks only while the WAL or the log cache is full. If
// it returns an error, nothing was appended and done is not called.
func (st *Stream) Append(ctx context.Context, b RecordBatch, done func(error)) (base int64, err error) {
	return st.AppendSummed(ctx, b, 0, done)
}

// AppendSummed is [Stream.Append] of a payload whose CRC-32C the caller knows to be sum: it goes into the checksums of what
// is written, which are then not computed from the bytes again. A wrong one makes what is written unreadable; 0 stands for
// one that is not known.
func (st *Stream) AppendSummed(ctx context.Context, b RecordBatch, sum uint32, done func(error)) (base int64, err error) {
	if b.Count < 1 {
		return 0, fmt.Errorf("append to stream %d: batch spans %d offsets, want at least 1", st.id, b.Count)
	}
	if len(b.Payload) > maxPayload {
		return 0, fmt.Errorf("append to stream %d: batch of %d bytes is over the limit of %d", st.id, len(b.Payload), maxPayload)
	}
	base, err = st.store.wal.append(ctx, st, b, sum, done)
	if err != nil {
		return 0, fmt.Errorf("append to stream %d: %w", st.id, err)
	}
	return base, nil
}

// appendable returns why the handle takes no append. The caller holds store.wal.mu.
func (st *Stream) appendable() error { return st.stopped }

// stop refuses further appends with err.
func (st *Stream) stop(err error) {
	st.store.wal.mu.Lock()
	defer st.store.wal.mu.Unlock()
	if st.stopped == nil {
		st.stopped = err
	}
	st.store.wal.makeRoomLocked() // appends that wait for room see it
}

// waitAcknowledged returns when every append is durable. Appends must be stopped.
func (st *Stream) waitAcknowledged(ctx context.Context) error {
	w := st.store.wal
	w.mu.Lock()
	if w.err != nil && !errors.Is(w.err, ErrStoreClosed) {
		defer w.mu.Unlock()
		return w.err
	}
	if st.confirm.Load() == st.next {
		w.mu.Unlock()
		return nil
	}
	if st.idle == nil {
		st.idle = make(chan struct{})
	}
	idle := st.idle
	w.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-st.store.fenced:
		return st.store.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Fetch returns the batches of [start, end), up to about maxBytes of payload but at least
// one. A batch that contains start or end in its middle is returned whole. Fewer batches
// than asked for are no error: Fetch waits for the first, and returns with it what is in
// memory behind it. No batch means start == end. ErrOffsetOutOfRange if start is below the
// start offset, or end above the confirm offset; also if a trim meets the fetch on its way and
// the data is gone. See [WithReader] for who waits for whom.
func (st *Stream) Fetch(ctx context.Context, start, end int64, maxBytes int) (_ []RecordBatch, err error) {
	defer st.store.metrics.fetch.since(time.Now(), &err)
	return st.fetch(ctx, start, end, maxBytes, nil)
}

// FetchFast is Fetch from memory alone: it never waits. ErrNotInMemory says that [Stream.Load]
// or Fetch must read an object first. A lease that is not nil bounds how long the payloads stay as they are.
func (st *Stream) FetchFast(start, end int64, maxBytes int, lease *Lease) ([]RecordBatch, error) {
	began := time.Now()
	batches, err := st.fetch(fromMemory, start, end, maxBytes, lease)
	if !errors.Is(err, ErrNotInMemory) { // the Fetch that follows counts
		st.store.metrics.fetch.since(began, &err)
	}
	return batches, err
}

// fetch waits for nothing if ctx is fromMemory.
func (st *Stream) fetch(ctx context.Context, start, end int64, maxBytes int, lease *Lease) ([]RecordBatch, error) {
	if start > end {
		return nil, fmt.Errorf("fetch stream %d: start %d is after end %d", st.id, start, end)
	}
	if first, confirm := st.start.Load(), st.confirm.Load(); start < first || end > confirm {
		return nil, fmt.Errorf("fetch stream %d from %d to %d, holds %d to %d: %w", st.id, start, end, first, confirm, ErrOffsetOutOfRange)
	}
	if start == end {
		return nil, nil
	}
	batches, from, ok := st.store.cache.read(st.id, start, end, maxBytes, lease)
	if ok {
		st.store.metrics.fromLogCache.Inc()
		return batches, nil
	}
	defer st.beginRead()()
	waited, err := false, error(ErrOffsetOutOfRange)
	if start >= st.start.Load() {
		batches, waited, err = st.store.reader.read(ctx, st.id, start, from, maxBytes, lease)
	}
	switch {
	case err != nil:
		return nil, st.readError("fetch", start, err)
	case waited:
		st.store.metrics.fromObjects.Inc()
	default:
		st.store.metrics.fromBlockCache.Inc()
	}
	return batches, nil
}

// Load brings the batch at start, and what follows up to about maxBytes, into memory, so that
// FetchFast finds it. It does nothing if it is there, or if start is not below the confirm offset.
func (st *Stream) Load(ctx context.Context, start int64, maxBytes int) error {
	defer st.beginRead()()
	if first := st.start.Load(); start < first {
		return fmt.Errorf("load stream %d from %d, starts at %d: %w", st.id, start, first, ErrOffsetOutOfRange)
	}
	confirm := st.confirm.Load()
	if start >= confirm || start >= st.store.cache.start(st.id, confirm) {
		return nil
	}
	if err := st.store.reader.load(ctx, st.id, start, maxBytes); err != nil {
		return st.readError("load", start, err)
	}
	return nil
}

func (st *Stream) readError(what string, start int64, err error) error {
	if first := st.start.Load(); start < first {
		return fmt.Errorf("%s stream %d from %d, trimmed to %d meanwhile: %w", what, st.id, start, first, ErrOffsetOutOfRange)
	}
	return fmt.Errorf("%s stream %d from %d: %w", what, st.id, start, err)
}

// beginRead notes a read of objects until end is called. It comes before a look at the start
// offset: a trim then either waits for the read, or the read sees it.
func (st *Stream) beginRead() (end func()) {
	done := make(chan struct{})
	st.readMu.Lock()
	defer st.readMu.Unlock()
	if st.reading == nil {
		st.reading = make(map[chan struct{}]struct{})
	}
	st.reading[done] = struct{}{}
	return func() {
		st.readMu.Lock()
		defer st.readMu.Unlock()
		delete(st.reading, done)
		close(done)
	}
}

// waitReads returns when the reads that have begun are over.
func (st *Stream) waitReads(ctx context.Context) error {
	st.readMu.Lock()
	begun := slices.Collect(maps.Keys(st.reading))
	st.readMu.Unlock()
	for _, done := range begun {
		select {
		case <-done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// FindTimestamp returns the base offset of the first batch whose MaxTimestamp is ts or
// later; found is false if there is none.
func (st *Stream) FindTimestamp(ctx context.Context, ts int64) (offset int64, found bool, err error) {
	start, end := st.start.Load(), st.confirm.Load()
	for {
		offset, found, cached := st.store.cache.findTimestamp(st.id, start, end, ts)
		if start >= cached {
			return offset, found, nil
		}
		offset, found, err := st.store.reader.findTimestamp(ctx, st.id, start, cached, ts)
		if found || err != nil {
			return offset, found, err
		}
		start = cached // where the cache began; it may have been evicted meanwhile
	}
}

// Trim makes start the first offset of the stream. A start that is not ahead changes nothing.
// Reads below start are refused at once; those under way are waited for before metadata
// learns of it, and so before any data can go. (The data of a read that outlives even that, in
// another handle of the stream, stays for DeleteGrace.) A trim survives the death of every
// node, but not the loss of the metadata database in the seconds until its next snapshot: the
// stream then starts where it did before, with its data.
func (st *Stream) Trim(ctx context.Context, start int64) (err error) {
	defer st.store.metrics.trim.since(time.Now(), &err)
	if confirm := st.confirm.Load(); start > confirm {
		return fmt.Errorf("trim stream %d to %d, holds up to %d: %w", st.id, start, confirm, ErrOffsetOutOfRange)
	}
	if start <= st.trimmed.Load() {
		return nil
	}
	raise(&st.start, start)
	if err := st.waitReads(ctx); err != nil {
		return fmt.Errorf("trim stream %d to %d: reads under way have not ended: %w", st.id, start, err)
	}
	_, err = retry(ctx, st.store.patience, "trim stream", func() (struct{}, error) {
		return struct{}{}, st.store.streams.TrimStream(ctx, st.store.node, st.id, st.epoch, start)
	})
	if err != nil {
		return fmt.Errorf("trim stream %d to %d: %w", st.id, start, err)
	}
	raise(&st.trimmed, start)
	st.store.compact.noteTrimmed(st.id)
	return nil
}

// raise makes v at least n.
func raise(v *atomic.Int64, n int64) {
	for old := v.Load(); old < n && !v.CompareAndSwap(old, n); old = v.Load() {
	}
}

// Close stops appends, waits for those before, uploads them and releases the stream.
// Fetches of this handle still work.
func (st *Stream) Close(ctx context.Context) error {
	return st.store.CloseStreams(ctx, []*Stream{st})
}

// Destroy deletes the stream and, after a grace period, its data.
func (st *Stream) Destroy(ctx context.Context) error {
	return st.store.DestroyStreams(ctx, []*Stream{st})
}

// DestroyStreams deletes the streams in one transaction, and their data after a grace period.
func (s *Store) DestroyStreams(ctx context.Context, streams []*Stream) (err error) {
	defer s.metrics.destroy.since(time.Now(), &err)
	ids := make([]StreamID, len(streams))
	for i, st := range streams {
		st.stop(ErrStreamNotExist)
		ids[i] = st.id
	}
	if err := s.streams.DeleteStreams(ctx, s.node, ids); err != nil {
		return fmt.Errorf("destroy %d streams: %w", len(streams), err)
	}
	s.forget(streams)
	return nil
}
