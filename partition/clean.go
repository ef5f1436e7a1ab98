package partition

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/record"
	"github.com/tabletopic/tabletopic/streamstore"
)

// A cleaning is one pass over the log of a compacted topic, as Kafka's log cleaner makes it: first
// index looks at what came since the last pass and notes the last offset of each key, then clean
// goes over all from the log start on and leaves out what a later record of its key replaces, and
// what was aborted. It has no clock and no I/O.
//
// Offsets stay what they are. The last record of each key stays, and so do records from end on, which
// may not be cleaned yet. A record without value, a tombstone, goes once it has been
// the last of its key for as long as delete.retention.ms says: the pass that first meets it
// writes that time into its batch, the delete horizon (KIP-534). So does the first that finds no record
// of a marker's transaction any more, and a later one removes the marker.
type cleaning struct {
	cleanPass
	now     int64                 // ms
	horizon int64                 // delete horizon of what may go later, ms
	latest  *keyMap               // last offsets of keys below end, of those that are indexed
	aborted map[int64][]abortSpan // by producer, by offset
	listed  map[int64]bool        // markers of transactions that readers are told of as aborted
	with    map[int64]bool        // producers with records since their last marker
	reader  *record.Reader
}

// A cleanPass is what a cleaning came to.
type cleanPass struct {
	end     int64     // what is from here on stays as it is
	sizes   sizeIndex // of what is left below end
	before  int64     // bytes below end until now
	removed int64     // records
	took    time.Duration
}

// over is the pass with one before it over the same records that was not settled: the bytes before are
// those before both.
func (c *cleanPass) over(unsettled *cleanPass) {
	c.removed += unsettled.removed
	c.before += unsettled.before - unsettled.sizes.total
	c.took += unsettled.took
}

// abortSpan is where an aborted transaction of a producer lies.
type abortSpan struct {
	first, last int64 // the last is its marker
}

func newCleaning(end, now, deleteRetention int64, keys int, aborted []abortedTransaction, reader *record.Reader) *cleaning {
	c := &cleaning{
		cleanPass: cleanPass{end: end}, now: now, horizon: now + min(deleteRetention, 1<<62-now), latest: newKeyMap(keys), reader: reader,
		aborted: map[int64][]abortSpan{}, listed: map[int64]bool{}, with: map[int64]bool{},
	}
	for _, t := range aborted {
		c.aborted[t.producer] = append(c.aborted[t.producer], abortSpan{t.first, t.last})
		c.listed[t.last] = true
	}
	return c
}

// isAborted reports whether the records of b do not count.
func (c *cleaning) isAborted(b record.Batch) bool {
	if !b.IsTransactional() || b.IsControl() {
		return false
	}
	spans := c.aborted[b.ProducerID()]
	at, _ := slices.BinarySearchFunc(spans, b.BaseOffset(), func(s abortSpan, offset int64) int {
		if s.last < offset {
			return -1
		}
		return 1
	})
	return at < len(spans) && spans[at].first <= b.BaseOffset()
}

// index notes the keys of a batch, from an offset on. If there is no room for more, end moves down to
// the first record that is not noted, and index returns false.
func (c *cleaning) index(b record.Batch, from int64) (room bool, err error) {
	if b.IsControl() || c.isAborted(b) || b.NumRecords() == 0 {
		return true, nil
	}
	if err := c.reader.Reset(b); err != nil {
		return false, err
	}
	var r record.Record
	for {
		ok, err := c.reader.Next(&r)
		if err != nil || !ok || r.Offset >= c.end {
			return err == nil, err
		}
		if r.Key == nil || r.Offset < from {
			continue
		}
		if !c.latest.put(r.Key, r.Offset) {
			c.end = r.Offset
			return false, nil
		}
	}
}

// maxEmpty bounds the offsets of a batch without records.
const maxEmpty = 1 << 30

// clean returns what is left of batches that follow those of the last call, and whether that differs.
func (c *cleaning) clean(batches []streamstore.RecordBatch) (out []streamstore.RecordBatch, changed bool, err error) {
	for _, in := range batches {
		b := record.Batch(in.Payload)
		if len(b) < record.HeaderSize || b.BaseOffset() != in.BaseOffset || b.Count() != in.Count {
			return nil, false, fmt.Errorf("%w at offset %d", ErrCorrupt, in.BaseOffset)
		}
		if in.BaseOffset >= c.end {
			out = append(out, in)
			continue
		}
		c.before += int64(len(b))
		kept, err := c.batch(b)
		if err != nil {
			return nil, false, fmt.Errorf("clean the batch at offset %d: %w", in.BaseOffset, err)
		}
		if kept == nil {
			kept = record.AppendEmpty(nil, in.BaseOffset, in.Count, b.LeaderEpoch())
		}
		if n := len(out); kept.NumRecords() == 0 && n > 0 {
			if last := record.Batch(out[n-1].Payload); last.NumRecords() == 0 && last.LeaderEpoch() == b.LeaderEpoch() && int64(out[n-1].Count)+int64(in.Count) <= maxEmpty {
				out[n-1].Count += in.Count
				out[n-1].Payload = record.AppendEmpty(nil, last.BaseOffset(), out[n-1].Count, last.LeaderEpoch())
				changed = true
				continue
			}
		}
		if len(kept) != len(b) || &kept[0] != &b[0] {
			changed = changed || b.NumRecords() > 0
			in.Payload = kept
			if in.MaxTimestamp = kept.MaxTimestamp(); kept.NumRecords() == 0 {
				in.MaxTimestamp = -1
			}
		}
		out = append(out, in)
	}
	for _, b := range out {
		if b.BaseOffset < c.end {
			c.sizes.add(b.BaseOffset, int64(len(b.Payload)))
		}
	}
	return out, changed, nil
}

// batch returns b if it stays as it is, what is left of it, or nil for nothing.
func (c *cleaning) batch(b record.Batch) (record.Batch, error) {
	switch {
	case b.NumRecords() == 0:
		return nil, nil
	case b.IsControl():
		return c.marker(b)
	case c.isAborted(b):
		c.removed += int64(b.NumRecords())
		return nil, nil
	}
	if err := c.reader.Reset(b); err != nil {
		return nil, err
	}
	horizon, has := b.DeleteHorizon()
	var kept []record.Record
	all, tombstones := 0, false
	for {
		var r record.Record
		ok, err := c.reader.Next(&r)
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		all++
		last, known := c.latest.get(r.Key)
		if r.Offset < c.end {
			if r.Key == nil || known && last > r.Offset || r.Value == nil && has && horizon <= c.now {
				continue
			}
			tombstones = tombstones || r.Value == nil
		}
		kept = append(kept, r)
	}
	c.removed += int64(all - len(kept))
	if len(kept) == 0 {
		return nil, nil
	}
	if b.IsTransactional() {
		c.with[b.ProducerID()] = true
	}
	set := int64(-1)
	if tombstones && !has {
		set = c.horizon
	}
	if len(kept) == all && set < 0 {
		return b, nil
	}
	return record.AppendFiltered(nil, b, kept, set)
}

// marker keeps the marker of a transaction until nothing of that is in the log, no reader is told
// of it, and its delete horizon has come: without it, a reader that is told of an aborted transaction
// would leave out the producer's next one.
func (c *cleaning) marker(b record.Batch) (record.Batch, error) {
	id := b.ProducerID()
	needed := c.with[id] || c.listed[b.BaseOffset()]
	delete(c.with, id)
	horizon, has := b.DeleteHorizon()
	switch {
	case needed && !invariant.Off("clean-marker-needed"):
		return b, nil
	case has && horizon <= c.now:
		c.removed++
		return nil, nil
	case has:
		return b, nil
	}
	if err := c.reader.Reset(b); err != nil {
		return nil, err
	}
	var r record.Record
	if ok, err := c.reader.Next(&r); err != nil || !ok {
		return nil, fmt.Errorf("%w: a control batch without record: %w", ErrCorrupt, err)
	}
	return record.AppendFiltered(nil, b, []record.Record{r}, c.horizon)
}

// A keyMap holds the largest offset of keys, by 128 bits of their SHA-256: nobody finds two keys
// that have the same. It does not grow.
type keyMap struct {
	slots []keySlot
	used  int
	most  int
}

type keySlot struct {
	hash [2]uint64
	next int64 // offset + 1; 0 in a free slot
}

// keySlotBytes is the memory of a slot.
const keySlotBytes = 24

// newKeyMap makes a map for at most so many keys.
func newKeyMap(keys int) *keyMap {
	return &keyMap{slots: make([]keySlot, keys+keys/3+1), most: keys}
}

// slot returns where a key is, or would be.
func (m *keyMap) slot(key []byte) (*keySlot, [2]uint64) {
	sum := sha256.Sum256(key)
	hash := [2]uint64{binary.BigEndian.Uint64(sum[:]), binary.BigEndian.Uint64(sum[8:])}
	for i := hash[0] % uint64(len(m.slots)); ; i = (i + 1) % uint64(len(m.slots)) {
		if s := &m.slots[i]; s.next == 0 || s.hash == hash {
			return s, hash
		}
	}
}

// put notes an offset, if there is room for its key.
func (m *keyMap) put(key []byte, offset int64) bool {
	s, hash := m.slot(key)
	if s.next == 0 {
		if m.used == m.most {
			return false
		}
		m.used++
		s.hash = hash
	}
	s.next = max(s.next, offset+1)
	return true
}

func (m *keyMap) get(key []byte) (offset int64, known bool) {
	if key == nil || m.used == 0 {
		return 0, false
	}
	s, _ := m.slot(key)
	return s.next - 1, s.next > 0
}
