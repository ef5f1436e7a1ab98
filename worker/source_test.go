package worker

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/tabletopic/tabletopic/partition"
	"github.com/tabletopic/tabletopic/record"
)

// memoryLog is a partition in memory.
type memoryLog struct {
	mu      sync.Mutex
	batches []record.Batch // guarded by mu
	start   int64          // guarded by mu
	end     int64          // guarded by mu
	codec   record.Codec   // of what is appended
	held    int64          // guarded by mu
	reads   int            // guarded by mu
	reading func()         // called before each read, if it is not nil
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
	b, err := record.AppendBatch(nil, record.BatchOptions{Codec: l.codec, ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1}, records)
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
	if l.reading != nil {
		l.reading()
	}
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

// batchLog is a partition of given batches, of which some are of aborted transactions.
type batchLog struct {
	batches []record.Batch
	aborted map[partition.AbortedTransaction]int64 // and the offsets of their markers
}

// add appends a batch of n records of a producer; a marker if n is 0.
func (l *batchLog) add(t *testing.T, producer int64, transactional bool, n int, marker byte) {
	t.Helper()
	o := record.BatchOptions{Idempotent: true, ProducerID: producer, Transactional: transactional}
	records := make([]record.Record, n)
	if n == 0 {
		o.Control = true
		records = []record.Record{{Key: []byte{0, 0, 0, marker}, Value: make([]byte, 6)}}
	}
	b, err := record.AppendBatch(nil, o, records)
	if err != nil {
		t.Fatal(err)
	}
	record.Batch(b).SetBaseOffset(l.end())
	l.batches = append(l.batches, record.Batch(b))
}

func (l *batchLog) end() int64 {
	if len(l.batches) == 0 {
		return 0
	}
	return l.batches[len(l.batches)-1].NextOffset()
}

func (l *batchLog) Offsets() partition.Offsets {
	return partition.Offsets{HighWatermark: l.end(), LastStable: l.end()}
}

// Read gives two batches at a time, with the aborted transactions that have records among them.
func (l *batchLog) Read(_ context.Context, from int64, _ int, _ partition.Isolation) (r partition.ReadResult, err error) {
	for _, b := range l.batches {
		if b.NextOffset() > from && len(r.Batches) < 2 {
			r.Batches = append(r.Batches, b)
		}
	}
	if len(r.Batches) == 0 {
		return r, nil
	}
	first, last := r.Batches[0].BaseOffset(), r.Batches[len(r.Batches)-1].LastOffset()
	for a, marker := range l.aborted {
		if a.FirstOffset <= last && first <= marker {
			r.Aborted = append(r.Aborted, a)
		}
	}
	slices.SortFunc(r.Aborted, func(a, b partition.AbortedTransaction) int { return cmp.Compare(a.FirstOffset, b.FirstOffset) })
	return r, nil
}

// Records of aborted transactions, and markers, are passed over, wherever a read begins and
// whatever other producers have written between.
func TestAbortedRecordsAndMarkersArePassedOver(t *testing.T) {
	const abort, commit = 0, 1
	l := &batchLog{}
	l.add(t, 1, true, 2, 0) // 0, 1: aborted
	l.add(t, 2, true, 1, 0) // 2: committed
	l.add(t, 3, false, 1, 0)
	l.add(t, 1, true, 1, 0)      // 4: aborted
	l.add(t, 2, true, 0, commit) // 5
	l.add(t, 1, true, 0, abort)  // 6
	l.add(t, 1, true, 1, 0)      // 7: the next transaction of the producer, committed
	l.add(t, 2, true, 1, 0)      // 8: aborted
	l.add(t, 1, true, 0, commit) // 9
	l.add(t, 2, true, 0, abort)  // 10
	l.add(t, 3, false, 1, 0)
	l.aborted = map[partition.AbortedTransaction]int64{{ProducerID: 1, FirstOffset: 0}: 6, {ProducerID: 2, FirstOffset: 8}: 10}
	for from := range l.end() {
		var got, want []int64
		for _, o := range []int64{2, 3, 7, 11} {
			if o >= from {
				want = append(want, o)
			}
		}
		for at := from; at < l.end(); {
			batches, next, err := Committed{l}.Read(t.Context(), at, 1<<20)
			if err != nil || next <= at {
				t.Fatalf("read at %d: %d, %v", at, next, err)
			}
			for _, b := range batches {
				for o := b.BaseOffset(); o < b.NextOffset(); o++ {
					got = append(got, o)
				}
			}
			at = next
		}
		if !slices.Equal(got, want) {
			t.Errorf("from %d: offsets %v, want %v", from, got, want)
		}
	}
}
