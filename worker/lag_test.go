package worker

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// The age of the oldest record that the table lacks is that of its arrival: exact while
// there are few arrivals, never too young, and never older than what arrived before it.
func TestLagKnowsArrivals(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		begin := time.Unix(1_000_000, 0)
		var l lag
		l.begin(0, 0, begin)
		now, held := begin, int64(0)
		var arrived []time.Time // by offset
		for step := range 400 {
			now = now.Add(time.Duration(r.IntN(3000)) * time.Millisecond)
			for range r.IntN(5) {
				arrived = append(arrived, now)
			}
			end := int64(len(arrived))
			if r.IntN(3) == 0 {
				held += r.Int64N(end - held + 1)
			}
			l.look(held, end, now)
			for _, from := range []int64{held, held + (end-held)/2} {
				got := l.arrival(from, end)
				if from == end {
					if !got.IsZero() {
						t.Fatalf("seed %d, step %d: nothing waits since %v", seed, step, got)
					}
					continue
				}
				want := arrived[from]
				slack := markGap + now.Sub(want)
				if got.After(want) || want.Sub(got) > slack {
					t.Fatalf("seed %d, step %d: offset %d arrived %v, want %v, to within %v", seed, step, from, got, want, slack)
				}
				if end-held < maxMarks/8 && from == held && want.Sub(got) > markGap {
					t.Fatalf("seed %d, step %d: offset %d arrived %v, want %v", seed, step, from, got, want)
				}
			}
			if len(l.marks) > maxMarks {
				t.Fatalf("seed %d: %d marks", seed, len(l.marks))
			}
		}
	}
}

// Records that were there before the worker are as old as their own timestamps say; those
// that it saw coming are as old as that, whatever timestamp they have.
func TestLagOfEarlierRecords(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	var l lag
	l.begin(100, 200, now)
	if got := l.arrival(100, 200); !got.Equal(now) {
		t.Errorf("before anything is read: %v, want %v", got, now)
	}
	l.read(now.Add(-time.Hour))
	l.look(100, 300, now.Add(time.Minute))
	l.read(now.Add(-2 * time.Hour))
	for from, want := range map[int64]time.Time{100: now.Add(-time.Hour), 199: now.Add(-time.Hour), 200: now.Add(time.Minute), 300: {}} {
		if got := l.arrival(from, 300); !got.Equal(want) {
			t.Errorf("offset %d: %v, want %v", from, got, want)
		}
	}
	// The table goes back to before what the marks know.
	l.look(250, 300, now.Add(2*time.Minute))
	l.begin(50, 300, now.Add(3*time.Minute))
	l.read(now.Add(-3 * time.Hour))
	if got, want := l.arrival(50, 300), now.Add(-3*time.Hour); !got.Equal(want) {
		t.Errorf("after the table went back: %v, want %v", got, want)
	}
	// Work begins again where it was: what is known stays known.
	l.begin(50, 300, now.Add(4*time.Minute))
	l.read(now.Add(-9 * time.Hour))
	if got, want := l.arrival(50, 300), now.Add(-3*time.Hour); !got.Equal(want) {
		t.Errorf("after a new begin: %v, want %v", got, want)
	}
}

// Files that are written and not committed count for the table's lag and not for the
// worker's; a commit ends both; what a partition waits for is told.
func TestLagOfFilesAndTable(t *testing.T) {
	p := newPath(t, 2)
	p.start()
	p.produce(50)
	p.committed()
	lags := func() (out []PartitionLag) { return p.running.Lag(time.Now()) }
	none := func() bool {
		for _, l := range lags() {
			if l.Records != 0 || l.Unwritten != 0 || !l.Oldest.IsZero() || !l.OldestUnwritten.IsZero() {
				return false
			}
		}
		return p.running.Files() == 0
	}
	p.wait(none, func() string { return fmt.Sprintf("no lag, not %+v", lags()) })
	before := time.Now()
	p.catalog.away.Store(true)
	p.produce(20)
	written := func() bool { // what came after the round began waits for the next one
		some := false
		for _, l := range lags() {
			if l.Records != 20 || l.Oldest.IsZero() || l.OldestUnwritten.IsZero() != (l.Unwritten == 0) {
				return false
			}
			some = some || l.Unwritten < 20
		}
		return some && p.running.Files() > 0
	}
	p.wait(written, func() string { return fmt.Sprintf("20 records in files only, not %+v", lags()) })
	for _, l := range lags() {
		if l.Oldest.Before(before.Add(-markGap)) || l.Oldest.After(time.Now()) {
			t.Errorf("partition %d: the oldest record is of %v, produced after %v", l.Partition, l.Oldest, before)
		}
	}
	p.catalog.away.Store(false)
	p.committed()
	p.wait(none, func() string { return fmt.Sprintf("no lag, not %+v", lags()) })
	p.exact(140, 0)
}
