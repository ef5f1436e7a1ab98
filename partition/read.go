package partition

import (
	"context"
	"errors"
	"fmt"

	"github.com/tabletopic/tabletopic/record"
)

// Isolation says up to where a reader sees the log.
type Isolation int8

const (
	ReadUncommitted Isolation = iota // up to the high watermark
	ReadCommitted                    // up to the last stable offset
)

// ReadResult is what a Read saw, all of one moment.
type ReadResult struct {
	Batches          []record.Batch // whole batches; they must not be modified
	HighWatermark    int64
	LastStableOffset int64
	LogStartOffset   int64
	// Aborted are the aborted transactions with records among the batches, for ReadCommitted.
	Aborted []AbortedTransaction
}

// AbortedTransaction says that the records of a producer from an offset on, up to its next
// abort marker, are not committed.
type AbortedTransaction struct {
	ProducerID  int64
	FirstOffset int64
}

// Read returns whole batches, in order, from the one that contains from, about maxBytes of
// them but at least one if there is one below the bound of the isolation. At the end it
// returns none and no error. ErrOffsetOutOfRange says that from is below the log start or
// above the high watermark; the offsets of the result are set then too.
func (p *Partition) Read(ctx context.Context, from int64, maxBytes int, isolation Isolation) (ReadResult, error) {
	p.mu.Lock()
	closed, o := p.closed, p.offsetsLocked()
	p.mu.Unlock()
	r := ReadResult{HighWatermark: o.HighWatermark, LastStableOffset: o.LastStable, LogStartOffset: o.LogStart}
	if closed != nil {
		return r, closed
	}
	if from < o.LogStart || from > o.HighWatermark {
		return r, fmt.Errorf("read %s from %d, holds %d to %d: %w", p, from, o.LogStart, o.HighWatermark, ErrOffsetOutOfRange)
	}
	bound := o.HighWatermark
	if isolation == ReadCommitted {
		bound = o.LastStable
	}
	if from >= bound {
		return r, nil
	}
	batches, err := p.log.Fetch(ctx, from, bound, maxBytes)
	if err != nil {
		return r, fmt.Errorf("read %s: %w", p, streamError(err))
	}
	r.Batches = make([]record.Batch, len(batches))
	for i, b := range batches {
		r.Batches[i] = record.Batch(b.Payload)
	}
	return r, nil
}

// OffsetForTimestamp returns offset and time of the first record whose time is ts or later;
// −1, −1 if there is none.
func (p *Partition) OffsetForTimestamp(ctx context.Context, ts int64) (offset, timestamp int64, err error) {
	offset, timestamp, err = p.findRecord(ctx, ts, func(t int64) bool { return t >= ts })
	if err != nil {
		return -1, -1, fmt.Errorf("find time %d in %s: %w", ts, p, err)
	}
	return offset, timestamp, nil
}

// MaxTimestamp returns offset and time of the first record with the largest time; −1, −1 if
// there are no records with a time.
func (p *Partition) MaxTimestamp(ctx context.Context) (offset, timestamp int64, err error) {
	p.mu.Lock()
	latest, at, o := p.state.maxTimestamp, p.state.maxTimestampAt, p.offsetsLocked()
	p.mu.Unlock()
	if at < o.LogStart || at >= o.HighWatermark {
		// That batch is trimmed, or not durable yet: halve the times up to it.
		low, high := int64(-1), latest // a time ≥ low+1 is there only if low is less than the result
		for low < high {
			middle := low + (high-low+1)/2
			_, found, err := p.log.FindTimestamp(ctx, middle)
			if err != nil {
				return -1, -1, fmt.Errorf("find the largest time in %s: %w", p, streamError(err))
			}
			if found {
				low = middle
			} else {
				high = middle - 1
			}
		}
		latest = low
	}
	if latest < 0 {
		return -1, -1, nil
	}
	return p.OffsetForTimestamp(ctx, latest)
}

// findRecord returns the first durable record that match accepts, starting at the batch that
// the stream finds for ts.
func (p *Partition) findRecord(ctx context.Context, ts int64, match func(int64) bool) (offset, timestamp int64, err error) {
	from, found, err := p.log.FindTimestamp(ctx, ts)
	if err != nil || !found {
		return -1, -1, streamError(err)
	}
	rd, err := p.set.reader(ctx)
	if err != nil {
		return -1, -1, err
	}
	defer p.set.release(rd)
	// The first batch may have the record only below the log start: go on then.
	for start := p.log.StartOffset(); ; {
		r, err := p.Read(ctx, max(from, start), 1<<20, ReadUncommitted)
		if errors.Is(err, ErrOffsetOutOfRange) && r.LogStartOffset > from {
			start = r.LogStartOffset
			continue
		}
		if err != nil || len(r.Batches) == 0 {
			if errors.Is(err, ErrOffsetOutOfRange) {
				err = nil // durable but not yet below the high watermark
			}
			return -1, -1, err
		}
		for _, b := range r.Batches {
			from = b.NextOffset()
			if b.MaxTimestamp() < ts {
				continue
			}
			if err := rd.Reset(b); err != nil {
				return -1, -1, err
			}
			for {
				var rec record.Record
				ok, err := rd.Next(&rec)
				if err != nil {
					return -1, -1, err
				}
				if !ok {
					break
				}
				if rec.Offset >= start && match(rec.Timestamp) {
					return rec.Offset, rec.Timestamp, nil
				}
			}
		}
	}
}

// EndOffsetForLeaderEpoch returns the largest leader epoch up to the one asked for and the
// offset where it ended; −1, −1 if the epoch is not known.
func (p *Partition) EndOffsetForLeaderEpoch(epoch int32) (int32, int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.endOffset(epoch, p.highWatermark)
}
