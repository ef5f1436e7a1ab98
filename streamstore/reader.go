package streamstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"sort"
	"sync"
	"unsafe"

	"github.com/tabletopic/tabletopic/objectstore"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"
)

const (
	minReadAhead = 512 << 10 // bytes; doubles for a sequential reader
	footerGuess  = 64 << 10  // bytes read from an object's end to find its index
	rangePage    = 64        // object ranges asked of metadata at a time
	maxRanges    = 4096      // streams whose object ranges are remembered
	maxSessions  = 4096      // sequential readers remembered
	maxPrefetch  = 8         // reads ahead in flight
)

// A reader reads objects: it finds the object of an offset, the object's index, then the
// block, each from a cache if it is there. Concurrent reads of the same bytes share one
// request, and a sequential reader's next blocks are read ahead, more of them each time.
// Requests in flight hold at most half of BlockCacheBytes, or one block if that is more.
type reader struct {
	ctx     context.Context // of the store; requests that several readers share run under it
	work    *sync.WaitGroup
	bucket  objectstore.Bucket
	objects ObjectManager
	metrics *metrics
	ahead   int64               // most to read ahead
	memory  *semaphore.Weighted // bytes of requests in flight
	most    int64               // that memory has
	group   singleflight.Group
	slots   chan struct{} // of reads ahead

	mu       sync.Mutex
	ranges   *lru[StreamID, []ObjectRange] // guarded by mu
	indexes  *lru[ObjectID, []indexEntry]  // guarded by mu
	blocks   *lru[blockKey, []RecordBatch] // guarded by mu
	sessions *lru[session, int64]          // guarded by mu; the window of the reader that comes next
	loading  map[blockKey]*blockLoad       // guarded by mu; blocks being read
	closed   bool                          // guarded by mu; no request is started any more
}

type blockKey struct {
	object   ObjectID
	position int64
}

// A session is a sequential reader, known by where it continues.
type session struct {
	stream StreamID
	next   int64
}

type blockLoad struct {
	done    chan struct{}
	batches []RecordBatch // after done
	err     error         // after done
}

func newReader(ctx context.Context, cfg Config, bucket objectstore.Bucket, objects ObjectManager, work *sync.WaitGroup, m *metrics) *reader {
	most := max(cfg.BlockCacheBytes/2, int64(cfg.BlockBytes))
	return &reader{
		metrics: m, memory: semaphore.NewWeighted(most), most: most,
		ctx: ctx, work: work, bucket: bucket, objects: objects,
		ahead:    min(cfg.ReadAheadBytes, cfg.BlockCacheBytes/4),
		slots:    make(chan struct{}, maxPrefetch),
		ranges:   newLRU[StreamID, []ObjectRange](maxRanges),
		indexes:  newLRU[ObjectID, []indexEntry](cfg.IndexCacheBytes),
		blocks:   newLRU[blockKey, []RecordBatch](cfg.BlockCacheBytes),
		sessions: newLRU[session, int64](maxSessions),
		loading:  make(map[blockKey]*blockLoad),
	}
}

// close lets no request start any more; those that run end with the store's context.
func (r *reader) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// read returns batches of [start, end), which objects hold, up to maxBytes but at least
// one. An object may vanish between look-up and read, when it was compacted or trimmed:
// then the look-up is repeated.
func (r *reader) read(ctx context.Context, stream StreamID, start, end int64, maxBytes int) ([]RecordBatch, error) {
	window := r.continueSession(stream, start)
	for try := 0; ; try++ {
		batches, err := r.readOnce(ctx, stream, start, end, maxBytes, window)
		if err == nil {
			r.endSession(stream, batches[len(batches)-1].End(), window)
			return batches, nil
		}
		if try == 2 || !errors.Is(err, objectstore.ErrNotFound) {
			return nil, err
		}
		r.forget(stream)
	}
}

// forget lets the stream's objects be looked up again.
func (r *reader) forget(stream StreamID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ranges.remove(stream)
}

// continueSession returns how far to read ahead: a little for a new reader, twice as
// much as before for one that continues.
func (r *reader) continueSession(stream StreamID, start int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := session{stream, start}
	window, ok := r.sessions.get(key)
	if !ok {
		return 0
	}
	r.sessions.remove(key)
	return min(max(2*window, minReadAhead), r.ahead)
}

func (r *reader) endSession(stream StreamID, next, window int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sessions.put(session{stream, next}, window, 1)
}

func (r *reader) readOnce(ctx context.Context, stream StreamID, start, end int64, maxBytes int, window int64) ([]RecordBatch, error) {
	var out []RecordBatch
	left := maxBytes
	for start < end && (len(out) == 0 || left > 0) {
		entries, err := r.locate(ctx, stream, start)
		if err != nil {
			return nil, err
		}
		for i := 0; i < len(entries) && start < end; i++ {
			batches, err := r.block(ctx, entries[i:], max(window, min(int64(left), r.ahead)))
			if err != nil {
				return nil, err
			}
			part, rest := cut(batches, start, end, left, len(out) == 0)
			left = rest
			if len(part) > 0 {
				out = append(out, part...)
				start = part[len(part)-1].End()
			}
			if left <= 0 || len(part) == 0 {
				r.readAhead(entries[i:], window)
				return out, nil
			}
		}
	}
	return out, nil
}

// locate finds the object that holds the stream's offset, and returns its index entries of
// the stream from the one with the offset on.
func (r *reader) locate(ctx context.Context, stream StreamID, offset int64) ([]indexEntry, error) {
	object, err := r.object(ctx, stream, offset)
	if err != nil {
		return nil, err
	}
	entries, err := r.index(ctx, object.ObjectRef)
	if err != nil {
		return nil, err
	}
	entries = entriesOf(entries, stream)
	i := sort.Search(len(entries), func(i int) bool { return entries[i].End > offset })
	if i == len(entries) || entries[i].Start > offset {
		return nil, fmt.Errorf("object %s, which metadata says holds stream %d from %d to %d, has no block with offset %d: %w",
			ObjectKey(object.ID), stream, object.Start, object.End, offset, ErrCorrupt)
	}
	return entries[i:], nil
}

func entriesOf(entries []indexEntry, stream StreamID) []indexEntry {
	i := sort.Search(len(entries), func(i int) bool { return entries[i].Stream >= stream })
	j := sort.Search(len(entries), func(i int) bool { return entries[i].Stream > stream })
	return entries[i:j]
}

func (r *reader) object(ctx context.Context, stream StreamID, offset int64) (ObjectRange, error) {
	find := func(ranges []ObjectRange) (ObjectRange, bool) {
		i := sort.Search(len(ranges), func(i int) bool { return ranges[i].End > offset })
		if i < len(ranges) && ranges[i].Start <= offset {
			return ranges[i], true
		}
		return ObjectRange{}, false
	}
	r.mu.Lock()
	ranges, _ := r.ranges.get(stream)
	r.mu.Unlock()
	if o, ok := find(ranges); ok {
		return o, nil
	}
	ranges, err := r.objects.StreamObjects(ctx, stream, offset, math.MaxInt64, rangePage)
	if err != nil {
		return ObjectRange{}, fmt.Errorf("find objects: %w", err)
	}
	o, ok := find(ranges)
	if !ok {
		return ObjectRange{}, fmt.Errorf("metadata names no object with offset %d: %w", offset, ErrOffsetOutOfRange)
	}
	r.mu.Lock()
	r.ranges.put(stream, ranges, 1)
	r.mu.Unlock()
	return o, nil
}

// index returns the index of an object. Concurrent calls share one read.
func (r *reader) index(ctx context.Context, object ObjectRef) ([]indexEntry, error) {
	r.mu.Lock()
	entries, ok := r.indexes.get(object.ID)
	r.mu.Unlock()
	if ok {
		return entries, nil
	}
	shared := r.group.DoChan(ObjectKey(object.ID), func() (any, error) {
		entries, err := readEntries(r.ctx, r.bucket, object)
		if err != nil {
			return nil, err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.indexes.put(object.ID, entries, int64(len(entries))*int64(unsafe.Sizeof(indexEntry{}))+64)
		return entries, nil
	})
	select {
	case res := <-shared:
		if res.Err != nil {
			return nil, res.Err
		}
		return res.Val.([]indexEntry), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// readEntries reads the index of an object of any kind. Each entry names the object that its
// block lies in.
func readEntries(ctx context.Context, bucket objectstore.Bucket, object ObjectRef) ([]indexEntry, error) {
	if object.Kind == KindComposite {
		c, err := readComposite(ctx, bucket, object)
		if err != nil {
			return nil, err
		}
		return c.entries(), nil
	}
	entries, err := readIndex(ctx, bucket, object)
	for i := range entries {
		entries[i].object = object.ID
	}
	return entries, err
}

func readComposite(ctx context.Context, bucket objectstore.Bucket, object ObjectRef) (c composite, err error) {
	key := ObjectKey(object.ID)
	data, err := bucket.Get(ctx, key, 0, object.Size)
	if err != nil {
		return c, fmt.Errorf("read composite %s: %w", key, err)
	}
	c, err = parseComposite(data)
	if err == nil && c.id != object.ID {
		err = corrupt("object %d, metadata says %d", c.id, object.ID)
	}
	if err != nil {
		return c, fmt.Errorf("composite %s: %w", key, err)
	}
	return c, nil
}

func readIndex(ctx context.Context, bucket objectstore.Bucket, object ObjectRef) ([]indexEntry, error) {
	key := ObjectKey(object.ID)
	n := min(object.Size, footerGuess)
	for {
		tail, err := bucket.Get(ctx, key, object.Size-n, n)
		if err != nil {
			return nil, fmt.Errorf("read index of %s: %w", key, err)
		}
		f, err := parseFooter(tail)
		if err == nil && (f.id != object.ID || f.size != object.Size) {
			err = corrupt("object %d of %d bytes, metadata says %d of %d", f.id, f.size, object.ID, object.Size)
		}
		if err != nil {
			return nil, fmt.Errorf("index of %s: %w", key, err)
		}
		if need := object.Size - f.index; need > int64(len(tail)) {
			n = need
			continue
		} else {
			tail = tail[int64(len(tail))-need:]
		}
		entries, err := parseIndex(tail)
		if err != nil {
			return nil, fmt.Errorf("index of %s: %w", key, err)
		}
		return entries, nil
	}
}

// block returns the batches of entries[0], and reads the entries after it along with it,
// up to window bytes in all.
func (r *reader) block(ctx context.Context, entries []indexEntry, window int64) ([]RecordBatch, error) {
	batches, load := r.lookup(entries, window, true)
	if load == nil {
		return batches, nil
	}
	select {
	case <-load.done:
		return load.batches, load.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// lookup returns the cached batches of entries[0], or the load that will bring them. If
// there is none yet, it starts one for the run of entries that are neither cached nor
// being read; with wait unset only if a slot for reading ahead is free.
func (r *reader) lookup(entries []indexEntry, window int64, wait bool) ([]RecordBatch, *blockLoad) {
	r.mu.Lock()
	defer r.mu.Unlock()
	object := entries[0].object
	first := blockKey{object, entries[0].Position}
	if batches, ok := r.blocks.get(first); ok {
		r.metrics.blockHits.Inc()
		return batches, nil
	}
	r.metrics.blockMisses.Inc()
	if load := r.loading[first]; load != nil {
		return nil, load
	}
	if r.closed {
		load := &blockLoad{done: make(chan struct{}), err: ErrStoreClosed}
		close(load.done)
		return nil, load
	}
	if !wait {
		select {
		case r.slots <- struct{}{}:
		default:
			return nil, nil
		}
	}
	n, size := 0, int64(0)
	var loads []*blockLoad
	for _, e := range entries {
		key := blockKey{e.object, e.Position}
		_, cached := r.blocks.items[key]
		if n > 0 && (e.object != object || size+int64(e.Size) > window || cached || r.loading[key] != nil || e.Position != entries[0].Position+size) {
			break
		}
		load := &blockLoad{done: make(chan struct{})}
		r.loading[key] = load
		loads = append(loads, load)
		size += int64(e.Size)
		n++
	}
	r.work.Go(func() {
		r.load(object, entries[:n], size, loads)
		if !wait {
			<-r.slots
		}
	})
	return nil, loads[0]
}

// load reads a run of adjacent blocks with one request and hands them out.
func (r *reader) load(object ObjectID, entries []indexEntry, size int64, loads []*blockLoad) {
	key := ObjectKey(object)
	var data []byte
	held := min(size, r.most)
	err := r.memory.Acquire(r.ctx, held)
	if err == nil {
		defer r.memory.Release(held)
		data, err = r.bucket.Get(r.ctx, key, entries[0].Position, size)
	}
	if err == nil && int64(len(data)) != size {
		err = corrupt("%d bytes, want %d", len(data), size)
	}
	if err != nil {
		err = fmt.Errorf("read %s at %d: %w", key, entries[0].Position, err)
	}
	for i, e := range entries {
		load := loads[i]
		load.err = err
		if err == nil {
			part := data[:e.Size:e.Size]
			data = data[e.Size:]
			if len(entries) > 1 {
				part = bytes.Clone(part) // so that each block is freed alone
			}
			if load.batches, load.err = checkBlock(part, e); load.err != nil {
				load.err = fmt.Errorf("block of %s at %d: %w", key, e.Position, load.err)
			}
		}
		r.mu.Lock()
		delete(r.loading, blockKey{object, e.Position})
		if load.err == nil {
			r.blocks.put(blockKey{object, e.Position}, load.batches, int64(e.Size)+int64(e.Batches)*48)
		}
		r.mu.Unlock()
		close(load.done)
	}
}

func checkBlock(data []byte, e indexEntry) ([]RecordBatch, error) {
	h, batches, err := parseBlock(data)
	if err != nil {
		return nil, err
	}
	if h.stream != e.Stream || h.start != e.Start || batches[len(batches)-1].End() != e.End {
		return nil, corrupt("block of stream %d from %d to %d, index says stream %d from %d to %d",
			h.stream, h.start, batches[len(batches)-1].End(), e.Stream, e.Start, e.End)
	}
	return batches, nil
}

// readAhead starts to read the blocks after entries[0] when less than half a window of
// them is in memory.
func (r *reader) readAhead(entries []indexEntry, window int64) {
	ahead := int64(0)
	for i := 1; i < len(entries) && ahead < window/2; i++ {
		key := blockKey{entries[i].object, entries[i].Position}
		r.mu.Lock()
		_, known := r.blocks.items[key]
		known = known || r.loading[key] != nil
		r.mu.Unlock()
		if !known {
			r.lookup(entries[i:], window, false)
			return
		}
		ahead += int64(entries[i].Size)
	}
}

// findTimestamp returns the base offset of the first batch in [start, end) with a timestamp
// of ts or later. It reads the index of each object on the way and one block. As with read,
// an object may vanish on the way, and is looked up again.
func (r *reader) findTimestamp(ctx context.Context, stream StreamID, start, end, ts int64) (int64, bool, error) {
	for next, try := start, 0; ; try++ {
		at, offset, found, err := r.findOnce(ctx, stream, next, end, ts)
		if at > next {
			next, try = at, 0
		}
		if err == nil {
			return offset, found, nil
		}
		if try == 2 || !errors.Is(err, objectstore.ErrNotFound) {
			return 0, false, fmt.Errorf("find timestamp in stream %d: %w", stream, err)
		}
		r.forget(stream)
	}
}

// findOnce is findTimestamp from next on until an object is missing. It returns how far
// there is nothing to find.
func (r *reader) findOnce(ctx context.Context, stream StreamID, next, end, ts int64) (at, offset int64, found bool, err error) {
	start := next
	for next < end {
		entries, err := r.locate(ctx, stream, next)
		if err != nil {
			return next, 0, false, err
		}
		for i, e := range entries {
			if e.MaxTimestamp < ts {
				next = e.End
				continue
			}
			batches, err := r.block(ctx, entries[i:], 0)
			if err != nil {
				return next, 0, false, err
			}
			for _, b := range batches {
				if b.MaxTimestamp >= ts && b.End() > start && b.BaseOffset < end {
					return next, b.BaseOffset, true, nil
				}
			}
			next = e.End
		}
	}
	return next, 0, false, nil
}
