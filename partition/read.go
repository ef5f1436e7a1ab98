package partition

import (
	"context"
	"errors"
	"fmt"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/record"
	"github.com/tabletopic/tabletopic/streamstore"
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
	// Aborted are the aborted transactions with records among the batches, by first offset, for
	// ReadCommitted.
	Aborted []AbortedTransaction
}

// Read returns whole batches, in order, from the one that contains from, about maxBytes of
// them but at least one if there is one below the bound of the isolation. At the end it
// returns none and no error. ErrOffsetOutOfRange says that from is below the log start or
// above the high watermark; the offsets of the result are set then too. If the first batch is
// not in memory, Read waits for the object store; see [streamstore.WithReader].
func (p *Partition) Read(ctx context.Context, from int64, maxBytes int, isolation Isolation) (ReadResult, error) {
	return p.read(from, isolation, func(bound int64) ([]streamstore.RecordBatch, error) {
		return p.log.Fetch(ctx, from, bound, maxBytes)
	})
}

// ReadFast is Read from memory alone: it never waits. ErrNotInMemory says that [Partition.Load]
// must come first; the offsets of the result are set then. A lease that is not nil bounds how long the batches stay as they are.
func (p *Partition) ReadFast(from int64, maxBytes int, isolation Isolation, lease *streamstore.Lease) (ReadResult, error) {
	return p.read(from, isolation, func(bound int64) ([]streamstore.RecordBatch, error) {
		return p.log.FetchFast(from, bound, maxBytes, lease)
	})
}

// Load brings the batch that contains from, and about maxBytes of what follows, into memory.
func (p *Partition) Load(ctx context.Context, from int64, maxBytes int) error {
	if err := p.log.Load(ctx, from, maxBytes); err != nil {
		return fmt.Errorf("read %s: %w", p, streamError(err))
	}
	return nil
}

func (p *Partition) read(from int64, isolation Isolation, fetch func(bound int64) ([]streamstore.RecordBatch, error)) (ReadResult, error) {
	for {
		r, err := p.readOnce(from, isolation, fetch)
		if err != errCleaned {
			return r, err
		}
	}
}

func (p *Partition) readOnce(from int64, isolation Isolation, fetch func(bound int64) ([]streamstore.RecordBatch, error)) (ReadResult, error) {
	p.mu.Lock()
	closed, o, cleanings := p.closed, p.offsetsLocked(), p.cleanings
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
	batches, err := fetch(bound)
	if err != nil {
		return r, fmt.Errorf("read %s: %w", p, streamError(err))
	}
	r.Batches = make([]record.Batch, len(batches))
	for i, b := range batches {
		r.Batches[i] = record.Batch(b.Payload)
	}
	if n := len(r.Batches); isolation == ReadCommitted && n > 0 {
		p.mu.Lock()
		defer p.mu.Unlock()
		if start := p.log.StartOffset(); start > from { // what was aborted may be forgotten already
			return ReadResult{HighWatermark: r.HighWatermark, LastStableOffset: r.LastStableOffset, LogStartOffset: start},
				fmt.Errorf("read %s from %d, it begins at %d now: %w", p, from, start, ErrOffsetOutOfRange)
		}
		if p.cleanings != cleanings && !invariant.Off("clean-read-again") {
			return r, errCleaned // these batches may have aborted records that are not known as such any more
		}
		r.Aborted = p.state.abortedIn(from, r.Batches[n-1].NextOffset())
	}
	return r, nil
}

// errCleaned says that the log was cleaned while it was read.
var errCleaned = errors.New("cleaned meanwhile")

// OffsetForTimestamp returns offset and time of the first record whose time is ts or later;
// −1, −1 if there is none.
func (p *Partition) OffsetForTimestamp(ctx context.Context, ts int64) (offset, timestamp int64, err error) {
	offset, timestamp, err = p.findRecord(ctx, ts)
	if err != nil {
		return -1, -1, fmt.Errorf("find time %d in %s: %w", ts, p, err)
	}
	return offset, timestamp, nil
}

// MaxTimestamp returns offset and time of the first record with the largest time. A record without time
// counts as one of −1, as in Kafka; −1, −1 if there are no records.
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
	if offset, timestamp, err = p.OffsetForTimestamp(ctx, latest); err != nil || offset >= 0 {
		return offset, timestamp, err
	}
	// DeleteRecords cut a batch behind the record with its largest time, which hides the
	// smaller times of later batches from the search: look at all.
	if latest, err = p.scanMaxTimestamp(ctx); err != nil {
		return -1, -1, err
	}
	return p.OffsetForTimestamp(ctx, latest)
}

// scanMaxTimestamp reads the log for the largest time of the records above the log start.
func (p *Partition) scanMaxTimestamp(ctx context.Context) (latest int64, err error) {
	start := p.log.StartOffset()
	latest = -1
	for from := start; ; {
		r, err := p.Read(ctx, from, 1<<20, ReadUncommitted)
		if err != nil || len(r.Batches) == 0 {
			return latest, err
		}
		for _, b := range r.Batches {
			from = b.NextOffset()
			if b.BaseOffset() >= start {
				latest = max(latest, b.MaxTimestamp())
				continue
			}
			err := p.eachTime(ctx, b, func(offset, timestamp int64) bool {
				if offset >= start {
					latest = max(latest, timestamp)
				}
				return true
			})
			if err != nil {
				return -1, err
			}
		}
	}
}

// findRecord returns the first durable record of time ts or later, starting at the batch
// that the stream finds for ts.
func (p *Partition) findRecord(ctx context.Context, ts int64) (offset, timestamp int64, err error) {
	from, found, err := p.log.FindTimestamp(ctx, ts)
	if err != nil || !found {
		return -1, -1, streamError(err)
	}
	// The first batch may have the record only below the log start: go on then.
	for start := p.log.StartOffset(); ; {
		r, err := p.Read(ctx, max(from, start), 1<<20, ReadUncommitted)
		if errors.Is(err, ErrOffsetOutOfRange) {
			if r.LogStartOffset > max(from, start) {
				start = r.LogStartOffset
				continue
			}
			return -1, -1, nil // durable but not yet below the high watermark
		}
		if err != nil || len(r.Batches) == 0 {
			return -1, -1, err
		}
		for _, b := range r.Batches {
			from = b.NextOffset()
			if b.MaxTimestamp() < ts {
				continue
			}
			offset = -1
			err := p.eachTime(ctx, b, func(o, t int64) bool {
				if o >= start && t >= ts {
					offset, timestamp = o, t
				}
				return offset < 0
			})
			if err != nil || offset >= 0 {
				return offset, timestamp, err
			}
		}
	}
}

// eachTime calls fn with offset and time of each record of b until it returns false.
func (p *Partition) eachTime(ctx context.Context, b record.Batch, fn func(offset, timestamp int64) bool) error {
	rd, err := takeReader(ctx, p.set.readers)
	if err != nil {
		return err
	}
	defer func() { p.set.readers <- rd }()
	if err := rd.Reset(b); err != nil {
		return err
	}
	for {
		var rec record.Record
		ok, err := rd.Next(&rec)
		if err != nil || !ok || !fn(rec.Offset, rec.Timestamp) {
			return err
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
