package streamstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sort"
	"sync"
	"time"
	"unsafe"

	"github.com/tabletopic/tabletopic/internal/hugepage"
	"github.com/tabletopic/tabletopic/objectstore"
)

const (
	minReadAhead  = 512 << 10   // bytes; doubles as a sequential reader goes on
	calmTime      = time.Minute // without growth, after read-ahead that went unread
	footerGuess   = 64 << 10    // bytes read from an object's end to find its index
	rangePage     = 64          // object ranges asked of metadata at a time
	maxRanges     = 4096        // streams whose object ranges are remembered
	sessionBytes  = 8 << 20     // of the sequential readers that are remembered
	sessionChunk  = 64          // blocks that a session takes from an index at a time
	sessionBlocks = 256         // blocks from which on it takes no more
	indexesAhead  = 2           // indexes read ahead of a session
	maxPaging     = 4           // questions to metadata ahead of sessions
	blockOverhead = 256         // bytes that a cached block costs besides its data
)

// ErrNotInMemory says that a fetch from memory did not find the batch there.
var ErrNotInMemory = errors.New("batch is not in memory")

// A reader reads objects: it finds the object of an offset, the object's index, then the
// block, each from a cache if it is there. Concurrent reads of the same bytes share one
// request. What a read asks of the bucket takes its turn in the lane; what is in memory
// waits for nothing.
//
// A sequential reader is a session. It knows its next blocks and objects, so that most reads
// ask neither metadata nor an index. The blocks that follow are read ahead: more of them as
// the reader goes on, fewer after some went unread.
type reader struct {
	readCtx, indexCtx context.Context // of the store; requests that several readers share run under them
	work              *sync.WaitGroup
	bucket            objectstore.Bucket
	manager           ObjectManager
	metrics           *metrics
	pool              *bufferPool // of blocks
	maxWindow         int64       // most to read ahead of one session

	mu       sync.Mutex
	lane     *lane                         // guarded by mu
	waking   bool                          // guarded by mu; see wakeLocked
	ranges   *lru[StreamID, []ObjectRange] // guarded by mu; the page that a reader of the stream asked for last
	indexes  *lru[ObjectID, []indexEntry]  // guarded by mu
	blocks   *blockCache                   // guarded by mu
	sessions *lru[position, *session]      // guarded by mu
	loading  map[blockKey]*blockLoad       // guarded by mu; blocks being read
	indexing map[ObjectID]*indexLoad       // guarded by mu; indexes being read
	seq      int64                         // guarded by mu; of the last refresh
	fresh    map[StreamID]int64            // guarded by mu; refresh before which nothing counts that is known of the objects of a stream
	ahead    int64                         // guarded by mu; bytes of blocks being read ahead
	paging   int                           // guarded by mu; questions to metadata ahead
	closed   bool                          // guarded by mu; no request is started any more
}

type blockKey struct {
	object   ObjectID
	position int64
}

func (e indexEntry) key() blockKey { return blockKey{e.object, e.Position} }

// A position is where a sequential reader goes on.
type position struct {
	stream StreamID
	next   int64
}

// A session is a sequential reader. While a read is under way the session is its own, and
// not in reader.sessions. All is guarded by reader.mu.
type session struct {
	blocks  []indexEntry  // of the stream, the next ones, without gap
	objects []ObjectRange // of the stream, without gap; the next ones and some before
	more    bool          // metadata may know of objects after them
	paging  bool          // … and is being asked for them
	window  int64         // how much to read ahead; 0 for a session that has read nothing yet
	mark    int64         // offset at which the window grows
	calm    time.Time     // until when it does not
	seq     int64         // of the refresh after which it looked up its objects
}

// cost counts objects as if there were the most.
func (s *session) cost() int64 {
	return int64(unsafe.Sizeof(*s)) + int64(cap(s.blocks))*int64(unsafe.Sizeof(indexEntry{})) + 2*rangePage*int64(unsafe.Sizeof(ObjectRange{}))
}

// A blockLoad is a block being read.
type blockLoad struct {
	entry   indexEntry
	session *session // whom it is read ahead for; nil if a fetch waits for it
	request *request
	memory  []byte // of the request that is on its way
	kept    bool   // who waits for it reads it without a lease
	done    chan struct{}
	batches []RecordBatch // after done
	err     error         // after done
}

// An indexLoad is the index of an object being read.
type indexLoad struct {
	object  ObjectRef
	request *request
	then    func() // nil, or what a session does next that had it read ahead
	done    chan struct{}
	entries []indexEntry // after done
	err     error        // after done
}

func newReader(ctx context.Context, cfg Config, bucket objectstore.Bucket, manager ObjectManager, work *sync.WaitGroup, m *metrics, pool *bufferPool) *reader {
	r := &reader{
		readCtx: objectstore.For(ctx, objectstore.ForRead), indexCtx: objectstore.For(ctx, objectstore.ForIndex),
		work: work, bucket: bucket, manager: manager, metrics: m, pool: pool,
		maxWindow: min(cfg.ReadAheadBytes, cfg.BlockCacheBytes/4),
		fresh:     make(map[StreamID]int64),
		ranges:    newLRU[StreamID, []ObjectRange](maxRanges),
		indexes:   newLRU[ObjectID, []indexEntry](cfg.IndexCacheBytes),
		sessions:  newLRU[position, *session](sessionBytes),
		loading:   make(map[blockKey]*blockLoad),
		indexing:  make(map[ObjectID]*indexLoad),
	}
	r.blocks = newBlockCache(cfg.BlockCacheBytes, func(s *session, bytes int64) {
		s.window = max(s.window/2, min(minReadAhead, r.maxWindow))
		s.calm = time.Now().Add(calmTime)
		m.readAheadWasted.Add(float64(bytes))
	})
	r.lane = newLane(int64(cfg.ReadInflight), max(cfg.BlockCacheBytes/2, int64(cfg.BlockBytes)), func(q *request) {
		work.Go(func() { r.run(q) })
	})
	return r
}

// close lets no request start any more; those that run end with the store's context.
func (r *reader) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// fromMemory is in the place of a context where a read waits for nothing.
var fromMemory context.Context

type readerKey struct{}

// WithReader returns a context whose fetches are those of one reader, which id, a comparable
// value, names. Readers take turns at the bucket, so that one of many streams does not delay
// one of a few. Without it each stream counts as a reader.
func WithReader(ctx context.Context, id any) context.Context {
	return context.WithValue(ctx, readerKey{}, id)
}

// readerOf returns whose turn a read takes.
func readerOf(ctx context.Context, stream StreamID) any {
	if id := ctx.Value(readerKey{}); id != nil {
		return id
	}
	return stream
}

// read returns batches of [start, end), which objects hold, up to maxBytes but at least one.
// Only for the first does it wait, and if ctx is fromMemory not for that: see ErrNotInMemory. waited
// says that it was not in memory.
func (r *reader) read(ctx context.Context, stream StreamID, start, end int64, maxBytes int, lease *Lease) (batches []RecordBatch, waited bool, err error) {
	err = r.session(stream, start, func(s *session) (next int64, err error) {
		batches, waited, err = r.readLocked(ctx, s, stream, start, end, maxBytes, lease)
		if err != nil {
			return start, err
		}
		s.window = max(s.window, min(minReadAhead, r.maxWindow))
		return batches[len(batches)-1].End(), nil
	})
	return batches, waited, err
}

// load brings what the next read from start on needs into memory.
func (r *reader) load(ctx context.Context, stream StreamID, start int64, maxBytes int) error {
	var lease Lease
	defer lease.Release()
	return r.session(stream, start, func(s *session) (int64, error) {
		_, _, err := r.blockLocked(ctx, s, stream, start, maxBytes, &lease)
		return start, err
	})
}

// session calls do, with mu held, with the session that goes on at start, and keeps it for
// who goes on where do says. An object may vanish between look-up and read, when it was
// compacted or trimmed: then do is called again, to look up again.
func (r *reader) session(stream StreamID, start int64, do func(*session) (next int64, err error)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.sessions.get(position{stream, start})
	if !ok {
		s = &session{seq: r.seq}
	}
	r.sessions.remove(position{stream, start})
	if s.seq < r.fresh[stream] {
		r.resetLocked(s, stream)
	}
	next, err := do(s)
	for try := 0; try < 2 && errors.Is(err, objectstore.ErrNotFound); try++ {
		r.resetLocked(s, stream)
		next, err = do(s)
	}
	at := position{stream, next}
	if other, ok := r.sessions.get(at); !ok || other.window <= s.window {
		r.sessions.put(at, s, s.cost())
	}
	return err
}

// resetLocked lets the session look up its objects again.
func (r *reader) resetLocked(s *session, stream StreamID) {
	s.blocks, s.objects, s.seq = nil, nil, r.seq
	r.ranges.remove(stream)
}

// refresh lets the stream's objects be looked up again by reads that begin from now on.
func (r *reader) refresh(stream StreamID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq++
	r.fresh[stream] = r.seq
	r.ranges.remove(stream)
}

// forget lets the stream's objects be looked up again, by readers that do not know them yet.
func (r *reader) forget(stream StreamID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ranges.remove(stream)
}

func (r *reader) readLocked(ctx context.Context, s *session, stream StreamID, start, end int64, maxBytes int, lease *Lease) (out []RecordBatch, waited bool, err error) {
	batches, waited, err := r.blockLocked(ctx, s, stream, start, maxBytes, lease)
	for left := maxBytes; err == nil; batches, err = r.nextLocked(s, stream, start, lease) {
		var part []RecordBatch
		part, left = cut(batches, start, end, left, len(out) == 0)
		if len(part) == 0 {
			break
		}
		start = part[len(part)-1].End()
		r.blocks.read(s.blocks[0].key(), part[0].BaseOffset, start, time.Now())
		if out == nil {
			out = part
		} else {
			out = append(out, part...) // part is clipped: this copies
		}
		if left <= 0 || start >= end || start < s.blocks[0].End {
			break
		}
	}
	if len(out) > 0 {
		return out, waited, nil
	}
	return nil, waited, err
}

// nextLocked returns the batches of the block with the offset if it is in memory.
func (r *reader) nextLocked(s *session, stream StreamID, offset int64, lease *Lease) ([]RecordBatch, error) {
	if err := r.locateLocked(fromMemory, s, stream, offset); err != nil {
		return nil, err
	}
	batches, ok := r.blocks.get(s.blocks[0].key(), lease)
	if !ok {
		return nil, ErrNotInMemory
	}
	r.metrics.blockHits.Inc()
	return batches, nil
}

// blockLocked returns the batches of the block with the offset, which is s.blocks[0] then.
// If it must be read, the blocks behind it up to maxBytes are read along. The window of
// the session is read ahead. Of a block that was waited for a lease does not keep the payloads.
func (r *reader) blockLocked(ctx context.Context, s *session, stream StreamID, offset int64, maxBytes int, lease *Lease) (batches []RecordBatch, waited bool, err error) {
	batches, err = r.nextLocked(s, stream, offset, lease)
	if err == nil {
		r.readAheadLocked(s, stream, offset)
		return batches, false, nil
	}
	if ctx == fromMemory || !errors.Is(err, ErrNotInMemory) {
		return nil, false, err
	}
	r.metrics.blockMisses.Inc()
	if err := r.locateLocked(ctx, s, stream, offset); err != nil {
		return nil, true, err
	}
	l := r.loading[s.blocks[0].key()]
	if l == nil {
		// It may have come while its index was waited for.
		if batches, ok := r.blocks.get(s.blocks[0].key(), lease); ok {
			return batches, true, nil
		}
		if r.closed {
			return nil, true, ErrStoreClosed
		}
		n, _ := r.runLocked(s.blocks, min(max(int64(maxBytes), s.window/2), r.maxWindow, maxRequestBytes))
		q := r.requestLocked(readerOf(ctx, stream), s, s.blocks[:n])
		l = q.blocks[0]
		r.lane.add(q)
	}
	if l.session != nil { // somebody waits for it now
		l.session = nil
		r.ahead -= int64(l.entry.Size)
	}
	l.kept = l.kept || lease == nil
	r.lane.want(l.request, readerOf(ctx, stream))
	r.wakeLocked()
	r.readAheadLocked(s, stream, offset)
	if err := r.awaitLocked(ctx, l.done, &l.request); err != nil {
		return nil, true, err
	}
	return l.batches, true, l.err
}

// locateLocked makes s.blocks[0] the block with the offset. With fromMemory it waits for nothing.
func (r *reader) locateLocked(ctx context.Context, s *session, stream StreamID, offset int64) error {
	i := sort.Search(len(s.blocks), func(i int) bool { return s.blocks[i].End > offset })
	if s.blocks = s.blocks[i:]; len(s.blocks) > 0 && s.blocks[0].Start <= offset {
		return nil
	}
	s.blocks = nil
	object, err := r.objectLocked(ctx, s, stream, offset)
	if err != nil {
		return err
	}
	entries, err := r.indexLocked(ctx, object.ObjectRef, stream)
	if err != nil {
		return err
	}
	return s.take(stream, offset, object, entries)
}

// take adds the blocks of an object from the one with the offset on.
func (s *session) take(stream StreamID, offset int64, object ObjectRange, entries []indexEntry) error {
	entries = entriesOf(entries, stream)
	i := sort.Search(len(entries), func(i int) bool { return entries[i].End > offset })
	if i == len(entries) || entries[i].Start > offset {
		return fmt.Errorf("object %s, which metadata says holds stream %d from %d to %d, has no block with offset %d: %w",
			ObjectKey(object.ID), stream, object.Start, object.End, offset, ErrCorrupt)
	}
	s.blocks = append(s.blocks, entries[i:min(i+sessionChunk, len(entries))]...)
	return nil
}

func entriesOf(entries []indexEntry, stream StreamID) []indexEntry {
	i := sort.Search(len(entries), func(i int) bool { return entries[i].Stream >= stream })
	j := sort.Search(len(entries), func(i int) bool { return entries[i].Stream > stream })
	return entries[i:j]
}

// objectLocked returns the object with the offset, from what is known or from metadata.
func (r *reader) objectLocked(ctx context.Context, s *session, stream StreamID, offset int64) (ObjectRange, error) {
	if i, ok := findRange(s.objects, offset); ok {
		if s.more && len(s.objects)-i <= rangePage/4 {
			r.pageAheadLocked(s, stream)
		}
		return s.objects[i], nil
	}
	found, _ := r.ranges.get(stream)
	i, ok := findRange(found, offset)
	if !ok && ctx == fromMemory {
		return ObjectRange{}, ErrNotInMemory
	}
	if !ok {
		var err error
		r.mu.Unlock()
		found, err = r.manager.StreamObjects(ctx, stream, offset, math.MaxInt64, rangePage)
		r.mu.Lock()
		if err != nil {
			return ObjectRange{}, fmt.Errorf("find objects: %w", err)
		}
		if i, ok = findRange(found, offset); !ok {
			return ObjectRange{}, fmt.Errorf("metadata names no object with offset %d: %w", offset, ErrOffsetOutOfRange)
		}
		if s.seq >= r.fresh[stream] {
			r.ranges.put(stream, found, 1)
		}
	}
	s.objects, s.more = found, len(found) == rangePage
	return found[i], nil
}

func findRange(ranges []ObjectRange, offset int64) (int, bool) {
	i := sort.Search(len(ranges), func(i int) bool { return ranges[i].End > offset })
	return i, i < len(ranges) && ranges[i].Start <= offset
}

// pageAheadLocked asks metadata for the objects after those that the session knows, before it
// needs them. If that fails, the session asks when it gets there.
func (r *reader) pageAheadLocked(s *session, stream StreamID) {
	if s.paging || r.paging == maxPaging || r.closed {
		return
	}
	s.paging = true
	r.paging++
	after, seq := s.objects[len(s.objects)-1].End, s.seq
	r.work.Go(func() {
		found, err := r.manager.StreamObjects(r.indexCtx, stream, after, math.MaxInt64, rangePage)
		r.mu.Lock()
		defer r.mu.Unlock()
		s.paging = false
		r.paging--
		n := len(s.objects)
		if err != nil || n == 0 || s.objects[n-1].End != after || s.seq != seq {
			return // what it knew is no longer what it knows
		}
		s.objects, s.more = slices.Concat(s.objects[max(0, n-rangePage):], found), len(found) == rangePage
	})
}

// serving reports whether a fetch waits for an object, or for its turn.
func (r *reader) serving() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lane.running > r.lane.aheadRunning || r.lane.turns.Len() > 0
}

// indexLocked returns the index of an object. Concurrent calls share one read.
func (r *reader) indexLocked(ctx context.Context, object ObjectRef, stream StreamID) ([]indexEntry, error) {
	if entries, ok := r.indexes.get(object.ID); ok {
		r.metrics.indexHits.Inc()
		return entries, nil
	}
	if ctx == fromMemory {
		return nil, ErrNotInMemory
	}
	r.metrics.indexMisses.Inc()
	l := r.indexing[object.ID]
	if l == nil {
		if r.closed {
			return nil, ErrStoreClosed
		}
		l = r.newIndexLoad(readerOf(ctx, stream), object)
		r.lane.add(l.request)
	}
	r.lane.want(l.request, readerOf(ctx, stream))
	r.wakeLocked()
	if err := r.awaitLocked(ctx, l.done, &l.request); err != nil {
		return nil, err
	}
	return l.entries, l.err
}

func (r *reader) newIndexLoad(reader any, object ObjectRef) *indexLoad {
	n := min(object.Size, footerGuess)
	if object.Kind == KindComposite {
		n = object.Size
	}
	l := &indexLoad{object: object, done: make(chan struct{})}
	l.request = &request{reader: reader, object: object.ID, from: object.Size - n, to: object.Size, index: l}
	r.indexing[object.ID] = l
	return l
}

// runLocked returns how many of the blocks, which one request can read, are neither in
// memory nor being read: one at least, else up to size bytes, or a little more to leave no
// short rest of a long run.
func (r *reader) runLocked(blocks []indexEntry, size int64) (n int, bytes int64) {
	rest := int64(0)
	for i, e := range blocks {
		if i > 0 && (r.knownLocked(e.key()) || e.object != blocks[0].object || e.Position != blocks[0].Position+bytes+rest) {
			return i, bytes + rest
		}
		if i == 0 || rest == 0 && bytes+int64(e.Size) <= size {
			bytes += int64(e.Size)
			n++
			continue
		}
		if rest += int64(e.Size); rest > min(minReadAhead, bytes/4) {
			break
		}
	}
	return n, bytes
}

func (r *reader) knownLocked(key blockKey) bool {
	return r.blocks.has(key) || r.loading[key] != nil
}

// requestLocked makes the request for a run of blocks, all read ahead until somebody waits.
func (r *reader) requestLocked(reader any, s *session, run []indexEntry) *request {
	last := run[len(run)-1]
	q := &request{reader: reader, object: run[0].object, from: run[0].Position, to: last.Position + int64(last.Size)}
	for _, e := range run {
		l := &blockLoad{entry: e, session: s, request: q, done: make(chan struct{})}
		q.blocks = append(q.blocks, l)
		r.loading[e.key()] = l
		r.ahead += int64(e.Size)
	}
	return q
}

// wakeLocked lets the lane start requests once other readers that can run now have added
// theirs: those that a shared index or one fetch of many streams set off are then merged.
func (r *reader) wakeLocked() {
	if r.waking || r.closed {
		return
	}
	r.waking = true
	r.work.Go(func() {
		runtime.Gosched()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.waking = false
		r.lane.dispatch()
	})
}

// awaitLocked waits for a load, whose request may become another by merging, without mu. What
// nobody waits for any more before it starts is not read.
func (r *reader) awaitLocked(ctx context.Context, done <-chan struct{}, q **request) (err error) {
	r.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	r.mu.Lock()
	if r.lane.giveUp(*q) {
		if l := (*q).index; l != nil {
			r.endIndexLocked(l, nil, err)
		}
		for _, l := range (*q).blocks {
			r.endBlockLocked(l, nil, err)
		}
		r.wakeLocked()
	}
	return err
}

// readAheadLocked reads the blocks behind the offset, which is in s.blocks[0], as far as the
// session's window goes.
func (r *reader) readAheadLocked(s *session, stream StreamID, offset int64) {
	if s.window == 0 || r.closed {
		return
	}
	now := time.Now()
	if offset >= s.mark && !now.Before(s.calm) {
		s.window, s.mark = min(2*s.window, r.maxWindow), offset+1
	}
	size := min(s.window/2, maxRequestBytes)
	started := false
	for i, covered := 0, int64(0); covered < s.window && (i < len(s.blocks) || r.extendLocked(s, stream)); {
		e := s.blocks[i]
		if r.knownLocked(e.key()) {
			covered += int64(e.Size)
			i++
			continue
		}
		n, bytes := r.runLocked(s.blocks[i:], size)
		if i+n == len(s.blocks) && bytes < size && r.extendLocked(s, stream) {
			continue // the run may be longer
		}
		if covered+max(size, bytes) > s.window || !r.blocks.roomAhead(r.ahead+bytes, now) || r.lane.aheadFull() {
			break
		}
		if !started {
			s.mark, started = e.Start, true
		}
		r.lane.addAhead(r.requestLocked(nil, s, s.blocks[i:i+n]))
		r.wakeLocked()
		covered += bytes
		i += n
	}
}

// extendLocked adds blocks to those that the session knows, if their index is in memory. If
// not it is read, and the one after it, and the session reads on ahead when it comes.
func (r *reader) extendLocked(s *session, stream StreamID) bool {
	if len(s.blocks) == 0 || len(s.blocks) >= sessionBlocks {
		return false
	}
	next := s.blocks[len(s.blocks)-1].End
	object, err := r.objectLocked(fromMemory, s, stream, next)
	if err != nil {
		return false
	}
	if entries, ok := r.indexes.get(object.ID); ok {
		return s.take(stream, next, object, entries) == nil
	}
	first, _ := findRange(s.objects, next)
	for _, o := range s.objects[first:min(first+indexesAhead, len(s.objects))] {
		if _, ok := r.indexes.get(o.ID); ok || r.indexing[o.ID] != nil {
			continue
		}
		if r.lane.aheadFull() {
			break
		}
		l := r.newIndexLoad(nil, o.ObjectRef)
		l.then = func() {
			if len(s.blocks) > 0 {
				r.readAheadLocked(s, stream, s.blocks[0].Start)
			}
		}
		r.lane.addAhead(l.request)
		r.wakeLocked()
	}
	return false
}

// run does a request and makes room in the lane.
func (r *reader) run(q *request) {
	if q.index != nil {
		r.runIndex(q)
		return
	}
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.lane.done(q)
	}()
	parts := make([]objectstore.Part, len(q.blocks)) // a block each, so that it is freed alone
	for i, l := range q.blocks {
		size := int(l.entry.Size)
		if size < minPooled { // no whole blocks for what the pool does not keep
			l.memory = make([]byte, size)
		} else {
			n := objectstore.PartMemory(size)
			memory, fresh := r.pool.get(n, n)
			if l.memory = memory[:n]; fresh {
				hugepage.Back(l.memory)
			}
		}
		parts[i] = objectstore.Part{Off: l.entry.Position, Size: size, Memory: l.memory}
	}
	key := ObjectKey(q.object)
	err := objectstore.GetParts(r.readCtx, r.bucket, key, parts)
	if errors.Is(err, objectstore.ErrShort) {
		err = corrupt("%v", err)
	}
	if err != nil {
		err = fmt.Errorf("read %s at %d: %w", key, q.from, err)
	}
	for i, l := range q.blocks {
		var batches []RecordBatch
		err := err
		if err == nil {
			if batches, err = checkBlock(parts[i].Data, l.entry); err != nil {
				err = fmt.Errorf("block of %s at %d: %w", key, l.entry.Position, err)
			}
		}
		r.endBlock(l, batches, err)
	}
}

func (r *reader) endBlock(l *blockLoad, batches []RecordBatch, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endBlockLocked(l, batches, err)
}

// endBlockLocked hands a block to those who wait for it.
func (r *reader) endBlockLocked(l *blockLoad, batches []RecordBatch, err error) {
	delete(r.loading, l.entry.key())
	if l.session != nil {
		r.ahead -= int64(l.entry.Size)
	}
	if err == nil {
		cost := int64(cap(l.memory)) + int64(l.entry.Batches)*int64(unsafe.Sizeof(RecordBatch{})) + blockOverhead
		memory := lend(r.pool, l.memory)
		memory.kept.Store(l.kept)
		r.blocks.put(l.entry.key(), batches, memory, cost, l.session, time.Now())
	}
	l.batches, l.err = batches, err
	close(l.done)
}

// runIndex reads the index of an object. One that is longer than it was guessed takes
// another turn.
func (r *reader) runIndex(q *request) {
	l := q.index
	entries, need, err := readTail(r.indexCtx, r.bucket, l.object, q.to-q.from)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil && need > q.to-q.from {
		l.request = &request{reader: q.reader, object: q.object, from: q.to - need, to: q.to, index: l, waiters: q.waiters}
		r.lane.add(l.request)
	} else {
		r.endIndexLocked(l, entries, err)
	}
	r.lane.done(q)
}

// endIndexLocked hands an index to those who wait for it.
func (r *reader) endIndexLocked(l *indexLoad, entries []indexEntry, err error) {
	delete(r.indexing, l.object.ID)
	if err == nil {
		r.indexes.put(l.object.ID, entries, int64(len(entries))*int64(unsafe.Sizeof(indexEntry{}))+blockOverhead)
		if l.then != nil {
			l.then()
		}
	}
	l.entries, l.err = entries, err
	close(l.done)
}

// readTail reads the last n bytes of an object of any kind and returns its index, or how many
// bytes that takes. Of a composite n is all. Each entry names the object that its block lies in.
func readTail(ctx context.Context, bucket objectstore.Bucket, object ObjectRef, n int64) (entries []indexEntry, need int64, err error) {
	if object.Kind == KindComposite {
		c, err := readComposite(ctx, bucket, object)
		if err != nil {
			return nil, 0, err
		}
		return c.entries(), n, nil
	}
	entries, need, err = readIndexTail(ctx, bucket, object, n)
	for i := range entries {
		entries[i].object = object.ID
	}
	return entries, need, err
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
	for n := min(object.Size, footerGuess); ; {
		entries, need, err := readIndexTail(ctx, bucket, object, n)
		if err != nil || need <= n {
			return entries, err
		}
		n = need
	}
}

// readIndexTail reads the last n bytes of an object. It returns the index if they hold it,
// and how many bytes do.
func readIndexTail(ctx context.Context, bucket objectstore.Bucket, object ObjectRef, n int64) (entries []indexEntry, need int64, err error) {
	key := ObjectKey(object.ID)
	tail, err := bucket.Get(ctx, key, object.Size-n, n)
	if err != nil {
		return nil, 0, fmt.Errorf("read index of %s: %w", key, err)
	}
	f, err := parseFooter(tail)
	if err != nil {
		err = readVersion(ctx, bucket, key, err)
	}
	if err == nil && (f.id != object.ID || f.size != object.Size) {
		err = corrupt("object %d of %d bytes, metadata says %d of %d", f.id, f.size, object.ID, object.Size)
	}
	need = object.Size - f.index
	if err == nil && need <= int64(len(tail)) {
		entries, err = parseIndex(tail[int64(len(tail))-need:])
	}
	if err != nil {
		return nil, 0, fmt.Errorf("index of %s: %w", key, err)
	}
	return entries, need, nil
}

// readVersion tells what is wrong with a data object whose footer makes no sense: a newer
// version may have another.
func readVersion(ctx context.Context, bucket objectstore.Bucket, key string, bad error) error {
	head, err := bucket.Get(ctx, key, 0, objectHeaderSize)
	if err != nil {
		return err
	}
	if _, _, _, err := parseObjectHeader(head); errors.Is(err, errNewer) {
		return err
	}
	return bad
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

// findTimestamp returns the base offset of the first batch in [start, end) with a timestamp
// of ts or later. It reads the index of each object on the way and one block.
func (r *reader) findTimestamp(ctx context.Context, stream StreamID, start, end, ts int64) (offset int64, found bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &session{seq: r.seq}
	var lease Lease
	defer lease.Release()
	for next, try := start, 0; next < end; {
		err := r.locateLocked(ctx, s, stream, next)
		if err == nil && s.blocks[0].MaxTimestamp < ts {
			next, try = s.blocks[0].End, 0
			continue
		}
		var batches []RecordBatch
		if err == nil {
			batches, _, err = r.blockLocked(ctx, s, stream, next, 0, &lease)
		}
		if err == nil {
			for _, b := range batches {
				if b.MaxTimestamp >= ts && b.End() > start && b.BaseOffset < end {
					return b.BaseOffset, true, nil
				}
			}
			next, try = s.blocks[0].End, 0
			continue
		}
		if try == 2 || !errors.Is(err, objectstore.ErrNotFound) {
			return 0, false, fmt.Errorf("find timestamp in stream %d: %w", stream, err)
		}
		try++
		r.resetLocked(s, stream)
	}
	return 0, false, nil
}
