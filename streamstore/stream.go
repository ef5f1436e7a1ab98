package streamstore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
)

// Stream is a handle of an open stream. It is safe for concurrent use.
type Stream struct {
	store *Store
	id    StreamID
	epoch int64

	start   atomic.Int64
	confirm atomic.Int64 // end of what is durable; moved by the WAL's goroutine

	// guarded by store.wal.mu
	next    int64
	stopped error         // why no append is accepted
	idle    chan struct{} // closed when confirm has reached next, if somebody waits
}

func newStream(s *Store, state StreamState) *Stream {
	st := &Stream{store: s, id: state.ID, epoch: state.Epoch, next: state.End}
	st.start.Store(state.Start)
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
	if b.Count < 1 {
		return 0, fmt.Errorf("append to stream %d: batch spans %d offsets, want at least 1", st.id, b.Count)
	}
	if len(b.Payload) > maxPayload {
		return 0, fmt.Errorf("append to stream %d: batch of %d bytes is over the limit of %d", st.id, len(b.Payload), maxPayload)
	}
	base, err = st.store.wal.append(ctx, st, b, done)
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
// one; fewer than asked for is no error, no batch means start == end. A batch that contains start or
// end in its middle is returned whole. ErrOffsetOutOfRange if start is below the start
// offset or end above the confirm offset.
func (st *Stream) Fetch(ctx context.Context, start, end int64, maxBytes int) ([]RecordBatch, error) {
	if start > end {
		return nil, fmt.Errorf("fetch stream %d: start %d is after end %d", st.id, start, end)
	}
	if first, confirm := st.start.Load(), st.confirm.Load(); start < first || end > confirm {
		return nil, fmt.Errorf("fetch stream %d from %d to %d, holds %d to %d: %w", st.id, start, end, first, confirm, ErrOffsetOutOfRange)
	}
	if start == end {
		return nil, nil
	}
	batches, from, ok := st.store.cache.read(st.id, start, end, maxBytes)
	if ok {
		st.store.metrics.tail.Inc()
		return batches, nil
	}
	st.store.metrics.cold.Inc()
	batches, err := st.store.reader.read(ctx, st.id, start, from, maxBytes)
	if err != nil {
		if first := st.start.Load(); start < first {
			return nil, fmt.Errorf("fetch stream %d from %d, trimmed to %d meanwhile: %w", st.id, start, first, ErrOffsetOutOfRange)
		}
		return nil, fmt.Errorf("fetch stream %d from %d: %w", st.id, start, err)
	}
	return batches, nil
}

// FindTimestamp returns the base offset of the first batch whose MaxTimestamp is ts or
// later; found is false if there is none.
func (st *Stream) FindTimestamp(ctx context.Context, ts int64) (offset int64, found bool, err error) {
	start, end := st.start.Load(), st.confirm.Load()
	if cached := st.store.cache.start(st.id, end); start < cached {
		offset, found, err = st.store.reader.findTimestamp(ctx, st.id, start, cached, ts)
		if found || err != nil {
			return offset, found, err
		}
		start = cached
	}
	offset, found = st.store.cache.findTimestamp(st.id, start, end, ts)
	return offset, found, nil
}

// Trim makes start the first offset of the stream. A start that is not ahead changes nothing.
func (st *Stream) Trim(ctx context.Context, start int64) error {
	if confirm := st.confirm.Load(); start > confirm {
		return fmt.Errorf("trim stream %d to %d, holds up to %d: %w", st.id, start, confirm, ErrOffsetOutOfRange)
	}
	for {
		old := st.start.Load()
		if start <= old {
			return nil
		}
		if st.start.CompareAndSwap(old, start) {
			break
		}
	}
	_, err := retry(ctx, st.store.patience, "trim stream", func() (struct{}, error) {
		return struct{}{}, st.store.streams.TrimStream(ctx, st.store.node, st.id, st.epoch, start)
	})
	if err != nil {
		return fmt.Errorf("trim stream %d to %d: %w", st.id, start, err)
	}
	st.store.compact.noteTrimmed(st.id)
	return nil
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
func (s *Store) DestroyStreams(ctx context.Context, streams []*Stream) error {
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
