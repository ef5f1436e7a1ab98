package worker

import (
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// PartitionLag is how far files and table are behind a partition. Offsets are of committed
// records; Records counts offsets.
type PartitionLag struct {
	Partition int32
	Committed int64 // next offset of the table; -1 if it has not begun
	Written   int64 // next offset of the data files, of the table and waiting for it
	End       int64 // of the committed records of the log
	Records   int64 // that the table lacks; -1 until the coordinator said where the table is
	Unwritten int64 // of those, that no data file has either; -1 likewise

	// Arrival of the oldest record that the table lacks, and that no data file has either;
	// zero if there is none.
	Oldest, OldestUnwritten time.Time

	Trouble string    // why it is not read for now; "" if it is
	Since   time.Time // of Trouble
}

// Lag returns the lag of each partition. It is safe for concurrent use, and does not need
// the worker to be well.
func (w *Worker) Lag(now time.Time) []PartitionLag {
	known := w.known.Load()
	out := make([]PartitionLag, len(w.order))
	for i, p := range w.order {
		start, end := p.source.Bounds()
		l := PartitionLag{Partition: p.index, Committed: p.committed.Load(), Written: p.written.Load(), End: end, Records: -1, Unwritten: -1}
		held := max(l.Committed, start, p.begins.Load())
		written := max(l.Written, held)
		if known {
			l.Records, l.Unwritten = max(0, end-held), max(0, end-written)
		}
		p.lag.look(held, end, now)
		l.Oldest, l.OldestUnwritten = p.lag.arrival(held, end), p.lag.arrival(written, end)
		l.Trouble, l.Since = p.lag.ailment()
		out[i] = l
	}
	return out
}

// age is zero if nothing waits.
func age(since, now time.Time) time.Duration {
	if since.IsZero() {
		return 0
	}
	return max(0, now.Sub(since))
}

// earlier returns the earlier of two times that are not zero.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// DeadLetters returns how many records became dead letters here, by cause, since this node
// started.
func (w *Worker) DeadLetters() map[string]int64 {
	out := map[string]int64{}
	for cause, counter := range w.metrics.causes {
		var m dto.Metric
		if counter.Write(&m) == nil && m.GetCounter().GetValue() > 0 {
			out[cause] = int64(m.GetCounter().GetValue())
		}
	}
	return out
}

// Files returns how many data files the worker has that the table does not hold yet, those
// that are being written included.
func (w *Worker) Files() int { return int(w.waitingFiles.Load()) }

// A lag knows when the records of a partition arrived that the table lacks.
type lag struct {
	mu      sync.Mutex
	marks   []mark    // guarded by mu; in the order of the log
	base    int64     // guarded by mu; marks know of the offsets from here on
	guess   bool      // guarded by mu; the first mark is of records that were there before
	trouble string    // guarded by mu; why the partition is not read
	since   time.Time // guarded by mu
}

// A mark says that the records below end, and not below the mark before, arrived after a time.
type mark struct {
	end   int64
	after time.Time
}

// Arrivals are exact to markGap while there are fewer than maxMarks. Beyond that every second
// one is forgotten, so that records seem older than they are by a part of their age.
const (
	maxMarks = 64
	markGap  = 100 * time.Millisecond
)

// look notes that the log ends at end now, and what of it the table holds.
func (l *lag) look(held, end int64, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.marks) > 0 && l.marks[0].end <= held {
		l.marks, l.guess = l.marks[1:], false
	}
	if held > l.base {
		l.base = held
	}
	last := len(l.marks) - 1
	switch {
	case end <= held || last >= 0 && end <= l.marks[last].end:
	case last >= 0 && now.Sub(l.marks[last].after) < markGap:
		l.marks[last].end = end
	case last+1 < maxMarks:
		l.marks = append(l.marks, mark{end, now})
	default:
		kept := make([]mark, 0, maxMarks)
		for i := 0; i < len(l.marks); i += 2 {
			kept = append(kept, mark{l.marks[min(i+1, last)].end, l.marks[i].after})
		}
		l.marks = append(kept, mark{end, now})
	}
}

// arrival returns when the oldest record of [from, end) arrived; zero if there is none.
func (l *lag) arrival(from, end int64) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.marks {
		if from < m.end && from < end {
			return m.after
		}
	}
	return time.Time{}
}

// behind reports whether a record of [from, end) may have arrived before t.
func (l *lag) behind(from, end int64, t time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.marks {
		if from < m.end && from < end {
			return l.guess || m.after.Before(t)
		}
	}
	return false
}

// begin says that work begins where the table ends, at held. Records of which no mark knows
// came before: they are as old as the timestamp of the first that is read says.
func (l *lag) begin(held, end int64, now time.Time) {
	l.mu.Lock()
	known := len(l.marks) > 0 && held >= l.base
	if !known {
		l.base, l.guess = held, held < end
	}
	l.trouble, l.since = "", time.Time{}
	l.mu.Unlock()
	l.look(held, end, now)
}

// read says which timestamp the first record has that was read since begin.
func (l *lag) read(timestamp time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.guess && len(l.marks) > 0 && timestamp.Before(l.marks[0].after) {
		l.marks[0].after = timestamp
	}
	l.guess = false
}

// ails says why the partition is not read, "" if it is.
func (l *lag) ails(trouble string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case trouble == "":
		l.since = time.Time{}
	case l.trouble == "":
		l.since = now
	}
	l.trouble = trouble
}

func (l *lag) ailment() (trouble string, since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trouble, l.since
}
