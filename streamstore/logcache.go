package streamstore

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

// logCache holds what is acknowledged: all of it until it is uploaded, then as much as fits.
// It is a queue of blocks; the last one is active and takes new bulks, the others are
// archived. For each stream it holds a contiguous run that ends at the confirm offset, so
// that a tail read makes no request.
type logCache struct {
	pool *bufferPool // where the memory of evicted blocks goes

	mu      sync.RWMutex
	active  *cacheBlock                // guarded by mu; nil while empty
	blocks  []*cacheBlock              // guarded by mu; archived, oldest first, uploaded ones too
	streams map[StreamID][]*streamSpan // guarded by mu; by offset, one per block
	bytes   int64                      // guarded by mu; of all blocks
}

// A cacheBlock is what one upload carries. It is read-only once archived.
type cacheBlock struct {
	spans    map[StreamID]*streamSpan
	memory   *lent  // chunks of its bulks
	bytes    int64  // of memory, as the WAL counts them
	mark     uint64 // the WAL may be trimmed below this once the block is uploaded
	born     time.Time
	taken    bool          // guarded by logCache.mu; its upload has begun
	uploaded chan struct{} // closed when committed
}

// A streamSpan is a contiguous run of one stream in one block. Its batches only ever grow
// at the end, so a reader may keep a part of them.
type streamSpan struct {
	memory  *lent // of its block
	stream  StreamID
	epoch   int64
	batches []RecordBatch
	sums    []uint32 // CRC-32C of each payload; 0 if not known
	bytes   int64    // in an object
	newest  int64    // largest timestamp
}

func (s *streamSpan) start() int64 { return s.batches[0].BaseOffset }
func (s *streamSpan) end() int64   { return s.batches[len(s.batches)-1].End() }

func (s *streamSpan) add(b RecordBatch, sum uint32) {
	s.batches = append(s.batches, b)
	s.sums = append(s.sums, sum)
	s.bytes += int64(batchHeaderSize + len(b.Payload))
	s.newest = max(s.newest, b.MaxTimestamp)
}

func newLogCache(pool *bufferPool) *logCache {
	return &logCache{pool: pool, streams: make(map[StreamID][]*streamSpan)}
}

func newCacheBlock(now time.Time, memory *lent) *cacheBlock {
	return &cacheBlock{memory: memory, spans: make(map[StreamID]*streamSpan), born: now, uploaded: make(chan struct{})}
}

func (b *cacheBlock) add(stream StreamID, epoch int64, batch RecordBatch, sum uint32) (*streamSpan, bool) {
	s, ok := b.spans[stream]
	if !ok {
		s = &streamSpan{memory: b.memory, stream: stream, epoch: epoch, newest: -1}
		b.spans[stream] = s
	}
	s.add(batch, sum)
	return s, !ok
}

// sorted returns the block's spans by stream.
func (b *cacheBlock) sorted() []*streamSpan {
	spans := make([]*streamSpan, 0, len(b.spans))
	for _, s := range b.spans {
		spans = append(spans, s)
	}
	slices.SortFunc(spans, func(a, b *streamSpan) int { return cmp.Compare(a.stream, b.stream) })
	return spans
}

// add puts an acknowledged bulk into the active block and archives that at limit bytes, or
// before it holds more than streams streams. It reports whether the upload loop must look: a
// block was born or archived.
func (c *logCache) add(b *bulk, limit int64, streams int, now time.Time) (look bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	begun := 0 // entry with which the last block began that did so here
	for i := range b.entries {
		e := &b.entries[i]
		if c.active != nil && len(c.active.spans) >= streams && c.active.spans[e.stream.id] == nil {
			c.active.mark = b.seq // the rest of the bulk comes with the next block
			c.archiveLocked()
		}
		if c.active == nil {
			c.active = newCacheBlock(now, lend(c.pool))
			look, begun = true, i
		}
		span, isNew := c.active.add(e.stream.id, e.stream.epoch, e.batch, e.sum)
		if isNew {
			c.streams[span.stream] = append(c.streams[span.stream], span)
		}
	}
	if (b.settled || invariant.Off("lease-bulk-settled")) && begun == 0 { // else a request may read them still, or two blocks have parts of them
		c.active.memory.buffers = append(c.active.memory.buffers, b.chunks...)
	}
	c.active.bytes += b.memory
	c.bytes += b.memory
	c.active.mark = b.seq + 1
	if c.active.bytes >= limit {
		c.archiveLocked()
		return true
	}
	return look
}

// forget drops what the cache holds of a stream: another node may have had it, and written to it,
// or have rewritten it.
func (c *logCache) forget(id StreamID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.streams, id)
}

// drop drops the runs of a stream that end at an offset or before, which objects hold, and returns
// where the cache begins then; math.MaxInt64 if it holds nothing more.
func (c *logCache) drop(id StreamID, end int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	spans := c.streams[id]
	n := 0
	for n < len(spans) && spans[n].end() <= end {
		n++
	}
	if n == len(spans) {
		delete(c.streams, id)
		return math.MaxInt64
	}
	c.streams[id] = slices.Clone(spans[n:])
	return spans[n].start()
}

func (c *logCache) archiveLocked() {
	if c.active != nil {
		c.blocks = append(c.blocks, c.active)
		c.active = nil
	}
}

// archive closes the active block if it was born no later than before, and returns the
// last block that is not uploaded yet; nil if there is none.
func (c *logCache) archive(before time.Time) *cacheBlock {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active != nil && !c.active.born.After(before) {
		c.archiveLocked()
	}
	if n := len(c.blocks); n > 0 && !isClosed(c.blocks[n-1].uploaded) {
		return c.blocks[n-1]
	}
	return nil
}

// born returns when the active block was born; false while there is none.
func (c *logCache) born() (time.Time, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.active == nil {
		return time.Time{}, false
	}
	return c.active.born, true
}

// take returns the oldest archived block whose upload has not begun; nil if there is none.
func (c *logCache) take() *cacheBlock {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.blocks {
		if !b.taken {
			b.taken = true
			return b
		}
	}
	return nil
}

// evict drops the oldest uploaded blocks until at most limit bytes are left. Uploads are
// committed in order, so a block that is not uploaded ends it.
func (c *logCache) evict(limit int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for n < len(c.blocks) && c.bytes > limit {
		if !isClosed(c.blocks[n].uploaded) && !invariant.Off("cache-evicts-uploaded-only") {
			break
		}
		for id, span := range c.blocks[n].spans {
			spans := c.streams[id]
			if len(spans) == 0 || spans[0] != span {
				continue // dropped when the stream was opened
			}
			if len(spans) == 1 {
				delete(c.streams, id)
			} else {
				c.streams[id] = slices.Clone(spans[1:])
			}
		}
		c.bytes -= c.blocks[n].bytes
		c.blocks[n].memory.release()
		n++
	}
	c.blocks = slices.Delete(c.blocks, 0, n)
}

// read returns the batches of [start, end) up to maxBytes, at least one, when the cache
// holds start. Otherwise it returns the offset from which on the cache holds the stream;
// end if it holds none of it.
func (c *logCache) read(stream StreamID, start, end int64, maxBytes int, lease *Lease) (batches []RecordBatch, from int64, ok bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	spans := c.streams[stream]
	if len(spans) == 0 {
		return nil, end, false
	}
	if from = spans[0].start(); start < from {
		return nil, min(from, end), false
	}
	i := sort.Search(len(spans), func(i int) bool { return spans[i].end() > start })
	left := maxBytes
	for ; i < len(spans) && start < end; i++ {
		var part []RecordBatch
		part, left = cut(spans[i].batches, start, end, left, len(batches) == 0)
		if len(part) == 0 {
			break
		}
		lease.add(spans[i].memory)
		if batches == nil {
			batches = part
		} else {
			batches = append(batches, part...) // part is clipped: this copies
		}
		start = part[len(part)-1].End()
		if left <= 0 || start < spans[i].end() {
			break
		}
	}
	return batches, from, true
}

// cut returns the part of batches that intersects [start, end), at most maxBytes of payload,
// but one batch at least if first is set, and what is left of maxBytes.
func cut(batches []RecordBatch, start, end int64, maxBytes int, first bool) ([]RecordBatch, int) {
	i := sort.Search(len(batches), func(i int) bool { return batches[i].End() > start })
	j := i
	for j < len(batches) && batches[j].BaseOffset < end {
		n := len(batches[j].Payload)
		if n > maxBytes && !(first && j == i) {
			maxBytes = 0
			break
		}
		maxBytes -= n
		j++
	}
	return batches[i:j:j], maxBytes
}

// findTimestamp returns the base offset of the first batch of [start, end) with a timestamp of
// ts or later, when the cache holds start. Otherwise it returns the offset from which on the
// cache holds the stream; end if it holds none of it.
func (c *logCache) findTimestamp(stream StreamID, start, end, ts int64) (offset int64, found bool, from int64) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	from = c.startLocked(stream, end)
	if start < from {
		return 0, false, from
	}
	for _, s := range c.streams[stream] {
		if s.newest < ts || s.end() <= start {
			continue
		}
		for _, b := range s.batches {
			if b.BaseOffset >= end {
				return 0, false, from
			}
			if b.End() > start && b.MaxTimestamp >= ts {
				return b.BaseOffset, true, from
			}
		}
	}
	return 0, false, from
}

// start returns the first offset that the cache holds of the stream; end if it holds none.
func (c *logCache) start(stream StreamID, end int64) int64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.startLocked(stream, end)
}

func (c *logCache) startLocked(stream StreamID, end int64) int64 {
	if spans := c.streams[stream]; len(spans) > 0 {
		return min(spans[0].start(), end)
	}
	return end
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
