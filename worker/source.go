package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// Partition makes a Source of a partition that this node leads, for the table of a route.
type Partition struct {
	P     *partition.Partition
	Route uuid.UUID // its id
}

// Committed reads the committed records of a partition, without those of aborted transactions
// and without control batches.
type Committed struct {
	Log partition.Log
}

// Read implements Source.
func (s Partition) Read(ctx context.Context, from int64, maxBytes int) ([]record.Batch, int64, error) {
	return Committed{s.P}.Read(ctx, from, maxBytes)
}

// Read returns batches from an offset on, and the offset that follows what it passed.
func (s Committed) Read(ctx context.Context, from int64, maxBytes int) ([]record.Batch, int64, error) {
	res, err := s.Log.Read(ctx, from, maxBytes, partition.ReadCommitted)
	if errors.Is(err, partition.ErrOffsetOutOfRange) && from < s.Log.Offsets().LogStart {
		return nil, from, fmt.Errorf("%w: %w", ErrBelowStart, err)
	}
	if err != nil {
		return nil, from, err
	}
	next := from
	out := res.Batches[:0:0]
	aborted := abortedFilter{pending: res.Aborted}
	for _, b := range res.Batches {
		next = b.NextOffset()
		drop, err := aborted.drop(b)
		if err != nil {
			return nil, from, err
		}
		if !drop {
			out = append(out, b)
		}
	}
	return out, next, nil
}

// Bounds implements Source.
func (s Partition) Bounds() (start, end int64) { return Committed{s.P}.Bounds() }

// Bounds returns the first offset, and the end of what Read returns.
func (s Committed) Bounds() (start, end int64) {
	o := s.Log.Offsets()
	return o.LogStart, o.LastStable
}

// Notify implements Source.
func (s Partition) Notify(ch chan<- struct{}) (stop func()) { return s.P.Notify(ch) }

// Hold implements Source.
func (s Partition) Hold(offset int64) { s.P.Hold(s.Route, offset) }

// abortedFilter drops what a read-committed reader must not see, as KIP-98 describes it: a
// transaction is open from its first offset to its producer's next marker.
type abortedFilter struct {
	pending []partition.AbortedTransaction // by first offset
	open    map[int64]bool                 // by producer id
}

// drop reports whether b holds nothing for the table. Batches come by offset.
func (f *abortedFilter) drop(b record.Batch) (bool, error) {
	for len(f.pending) > 0 && f.pending[0].FirstOffset <= b.LastOffset() {
		if f.open == nil {
			f.open = map[int64]bool{}
		}
		f.open[f.pending[0].ProducerID] = true
		f.pending = f.pending[1:]
	}
	if b.IsControl() {
		if len(f.open) == 0 {
			return true, nil
		}
		var r record.Reader
		m, err := record.ParseMarker(&r, b)
		if err == nil && !m.Commit {
			delete(f.open, m.ProducerID)
		}
		return true, err
	}
	return b.IsTransactional() && f.open[b.ProducerID()] && !invariant.Off("aborted-left-out"), nil
}
