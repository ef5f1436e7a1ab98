package worker

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/tabletopic/tabletopic/record"
)

// memoryLog is a partition in memory.
type memoryLog struct {
	mu      sync.Mutex
	batches []record.Batch // guarded by mu
	start   int64          // guarded by mu
	end     int64          // guarded by mu
	held    int64          // guarded by mu
	reads   int            // guarded by mu
	notify  []chan<- struct{}
}

func (l *memoryLog) append(t *testing.T, records ...record.Record) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range records {
		records[i].Offset = l.end + int64(i)
		if records[i].Timestamp == 0 {
			records[i].Timestamp = 1_700_000_000_000 + records[i].Offset
		}
	}
	b, err := record.AppendBatch(nil, record.BatchOptions{ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1}, records)
	if err != nil {
		t.Fatal(err)
	}
	record.Batch(b).SetBaseOffset(l.end)
	l.batches = append(l.batches, record.Batch(b))
	l.end += int64(len(records))
	l.poke()
}

func (l *memoryLog) poke() {
	for _, ch := range l.notify {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// trim moves the log's start, as retention does.
func (l *memoryLog) trim(start int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.start = start
	l.batches = slices.DeleteFunc(l.batches, func(b record.Batch) bool { return b.NextOffset() <= start })
	l.poke()
}

func (l *memoryLog) Read(_ context.Context, from int64, maxBytes int) ([]record.Batch, int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads++
	if from < l.start {
		return nil, 0, ErrBelowStart
	}
	var out []record.Batch
	size := 0
	for _, b := range l.batches {
		if b.NextOffset() <= from {
			continue
		}
		if len(out) > 0 && size+len(b) > maxBytes {
			break
		}
		out = append(out, b)
		size += len(b)
		from = b.NextOffset()
	}
	return out, from, nil
}

func (l *memoryLog) Bounds() (int64, int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.start, l.end
}

func (l *memoryLog) Notify(ch chan<- struct{}) func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.notify = append(l.notify, ch)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.notify = slices.DeleteFunc(l.notify, func(o chan<- struct{}) bool { return o == ch })
	}
}

func (l *memoryLog) Hold(offset int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = offset
}

// memoryLetters is a dead letter topic in memory, with the rule of the real one: a letter at
// or below the last of its partition is there already.
type memoryLetters struct {
	mu      sync.Mutex
	letters map[int32][]Letter // guarded by mu
	refuse  func() error       // guarded by mu
}

func (d *memoryLetters) Append(ctx context.Context, partition int32, letters []Letter) error {
	d.mu.Lock()
	refuse := d.refuse
	d.mu.Unlock()
	if refuse != nil {
		if err := refuse(); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.letters == nil {
		d.letters = map[int32][]Letter{}
	}
	for _, l := range letters {
		have := d.letters[partition]
		if len(have) == 0 || l.Record.Offset > have[len(have)-1].Record.Offset {
			d.letters[partition] = append(have, l)
		}
	}
	return nil
}

func (d *memoryLetters) Each(_ context.Context, partition int32, fn func(offset int64, cause string)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.letters[partition] {
		fn(l.Record.Offset, l.Cause)
	}
	return nil
}

func (d *memoryLetters) Since(_ context.Context, partition int32, from int64) (map[int64]bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[int64]bool{}
	for _, l := range d.letters[partition] {
		if l.Record.Offset >= from {
			out[l.Record.Offset] = true
		}
	}
	return out, nil
}

func (d *memoryLetters) all(partition int32) []Letter {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.letters[partition])
}
