package streamstore

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/tabletopic/tabletopic/internal/crc32c"
	"github.com/tabletopic/tabletopic/internal/hugepage"
	"github.com/tabletopic/tabletopic/internal/invariant"
)

// A walDevice makes the bulks of one life durable.
type walDevice interface {
	// write returns nil once the bulk is durable and the device has seen that no fence was
	// there. Each piece of the bulk is whole blocks, in memory too. It retries what may pass,
	// until ctx ends. Any error is final: the bulk and all after it must not be acknowledged.
	// With settled nothing reads the bulk any more.
	write(ctx context.Context, seq uint64, bulk [][]byte) (settled bool, err error)
	// trim removes bulks below mark. Metadata must have moved the mark before.
	trim(ctx context.Context, mark uint64) error
	close() error
}

// A bulk collects the records of many streams on their way into the WAL. Payloads are
// copied into its chunks once; the device, the log cache, fetches and uploads share them.
type bulk struct {
	seq     uint64   // set when its write starts
	chunks  [][]byte // chunk 0 starts with the header; chunks never move, and begin and end with blocks
	fresh   [][]byte // chunks that are to be put on huge pages
	entries []entry
	size    int64          // bytes up to here: header, records, and the filling of all chunks but the last
	memory  int64          // what the bulk occupies: whole chunks, and the overhead of its batches
	opened  time.Time      // when its first append came
	due     time.Time      // when to close it
	copying sync.WaitGroup // appenders that still copy into it
	err     error          // outcome of the write …
	settled bool           // … nothing of the device reads the chunks any more …
	written bool           // … once this is set, by the WAL's loop
}

// An entry is one appended batch.
type entry struct {
	stream *Stream
	batch  RecordBatch
	sum    uint32 // CRC-32C of the payload; 0 if not known
	done   func(error)
}

// reserve returns n bytes that stay where they are. chunk is about the capacity of a new chunk.
func (b *bulk) reserve(n, chunk int, pool *bufferPool) []byte {
	last := len(b.chunks) - 1
	if last < 0 || cap(b.chunks[last])-len(b.chunks[last]) < n+walTrailerSize {
		b.grow(n+walTrailerSize, chunk, pool)
		last++
	}
	at := len(b.chunks[last])
	b.chunks[last] = b.chunks[last][:at+n]
	b.size += int64(n)
	return b.chunks[last][at : at+n : at+n]
}

// grow begins a chunk with room for least bytes, of about the capacity chunk.
func (b *bulk) grow(least, chunk int, pool *bufferPool) {
	c, fresh := pool.get(least, max(least, chunk))
	b.chunks = append(b.chunks, c)
	if fresh {
		b.fresh = append(b.fresh, c[:cap(c)])
	}
	b.memory += int64(cap(c))
	b.size = wholeBlocks(b.size)
}

// whole is the size of the bulk if nothing more comes.
func (b *bulk) whole() int64 { return wholeBlocks(b.size + walTrailerSize) }

// seal completes the bulk and returns the bytes to write, which are the chunks' own.
func (b *bulk) seal(node Node, by nonce) [][]byte {
	b.copying.Wait()
	for _, c := range b.fresh { // now that there are pages under them, and nobody waits for the lock
		hugepage.Back(c)
	}
	b.fresh = nil
	h := bulkHeader{
		version: walVersion, kind: bulkData, node: node.ID, count: uint32(len(b.entries)), epoch: node.Epoch,
		seq: b.seq, nonce: by, body: uint64(b.whole() - walFenceSize),
	}
	appendBulkHeader(b.chunks[0][:0], h)
	pieces := make([][]byte, len(b.chunks))
	last := len(pieces) - 1
	crc, at, next := crc32c.Checksum(b.chunks[0][:walHeaderSize]), walHeaderSize, 0
	for i, c := range b.chunks {
		trailer := 0
		if i == last {
			trailer = walTrailerSize
		}
		pieces[i] = c[:wholeBlocks(int64(len(c)+trailer))]
		filling := pieces[i][len(c) : len(pieces[i])-trailer]
		fill(filling)
		for ; at < len(c); next++ {
			e := &b.entries[next]
			crc = crc32c.Extend(crc32c.Update(crc, c[at:at+walRecordSize]), e.batch.Payload, e.sum)
			at += walRecordSize + len(e.batch.Payload)
		}
		at = 0
		crc = crc32c.Update(crc, filling)
	}
	appendBulkTrailer(pieces[last][:len(pieces[last])-walTrailerSize], h.size(), crc)
	return pieces
}

// wal is the write-ahead log of this life of the node. Appends join the current bulk; its
// loop writes bulks, many at a time, and acknowledges them as a contiguous prefix.
type wal struct {
	node   Node
	nonce  nonce
	device walDevice
	cfg    Config
	pool   *bufferPool // of chunks

	ack    func(*bulk) // called by the loop, in order of sequence
	failed func(error) // called by the loop, once, before the failed appends are answered
	evict  func(int64) // makes the log cache hold no more than this, as far as uploads allow

	pressed func() // called when an append waits for room
	seconds prometheus.Observer
	lost    prometheus.Counter // appends that failed

	wake    chan struct{} // cap 1: the loop must look again
	written chan *bulk    // from the writers; cap WALInflight
	stopped chan struct{} // closed when the loop has returned

	mu         sync.Mutex
	cur        *bulk         // guarded by mu; nil if nothing waits
	sealed     []*bulk       // guarded by mu; closed, not started
	unflushed  int64         // guarded by mu; bytes appended and not acknowledged
	waiting    int64         // guarded by mu; memory of the bulks that are not acknowledged
	unuploaded int64         // guarded by mu; memory of what is appended and not uploaded, unflushed included
	room       chan struct{} // guarded by mu; closed and replaced when either shrinks
	lastSeal   time.Time     // guarded by mu; when a bulk was last closed …
	lastOpen   time.Time     // guarded by mu; … and when the one before it was
	lastSize   int64         // guarded by mu; bytes of the bulk last closed
	chunkHint  int           // guarded by mu; size of the next bulk's first chunk
	flushing   bool          // guarded by mu; close the current bulk now
	closing    bool          // guarded by mu
	err        error         // guarded by mu; why nothing is appended any more
}

const (
	minChunk = 4 << 10

	// quietRate is the bytes a second below which WALIdleLinger may be longer than WALLinger.
	quietRate = 1 << 20

	// batchOverhead is about what a batch costs in memory beside its record, until it is
	// evicted: its entry in a bulk and its place in the log cache.
	batchOverhead = 176
)

func newWAL(node Node, by nonce, device walDevice, cfg Config, pool *bufferPool) *wal {
	return &wal{
		node: node, nonce: by, device: device, cfg: cfg, pool: pool,
		wake:    make(chan struct{}, 1),
		written: make(chan *bulk, cfg.WALInflight),
		stopped: make(chan struct{}),
		room:    make(chan struct{}),
	}
}

// inflight is how many bulks are written at a time: one into a file, whose fsync groups them.
func (w *wal) inflight() int {
	if w.cfg.WAL == WALFile {
		return 1
	}
	return w.cfg.WALInflight
}

// append gives the batch its offset and a place in the current bulk. It blocks only while
// the WAL or the log cache is full.
func (w *wal) append(ctx context.Context, st *Stream, b RecordBatch, sum uint32, done func(error)) (int64, error) {
	size := walRecordSize + len(b.Payload)
	w.mu.Lock()
	for {
		if err := st.appendable(); err != nil {
			w.mu.Unlock()
			return 0, err
		}
		if w.err != nil {
			err := w.err
			w.mu.Unlock()
			return 0, err
		}
		if !w.full(int64(size)) {
			break
		}
		room := w.room
		w.mu.Unlock()
		w.pressed()
		select {
		case <-room:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		w.mu.Lock()
	}
	b.BaseOffset = st.next
	st.next += int64(b.Count)
	if w.cur != nil && w.cur.size+int64(size) > w.cfg.WALBytes && len(w.cur.entries) > 0 {
		w.sealLocked()
	}
	if w.cur == nil {
		w.openLocked(size)
	}
	cur := w.cur
	held, before := cur.memory, cur.size
	rec := cur.reserve(size, int(max(minChunk, min(cur.size, w.cfg.WALBytes-cur.size))), w.pool)
	cur.memory += batchOverhead
	payload := b.Payload
	b.Payload = rec[walRecordSize:]
	cur.entries = append(cur.entries, entry{st, b, sum, done})
	cur.copying.Add(1)
	w.unflushed += cur.size - before
	w.waiting += cur.memory - held
	w.unuploaded += cur.memory - held
	if cur.size >= w.cfg.WALBytes {
		w.sealLocked()
	}
	epoch := st.epoch
	w.mu.Unlock()

	putRecordHeader(rec, walRecord{stream: st.id, epoch: epoch, batch: b})
	copy(b.Payload, payload)
	cur.copying.Done()
	return b.BaseOffset, nil
}

// full reports whether a record of size bytes must wait. One that is larger than a bound
// passes alone.
func (w *wal) full(size int64) bool {
	return w.unflushed > 0 && w.unflushed+size > w.cfg.WALUnflushedBytes ||
		w.unuploaded > 0 && w.unuploaded+size+batchOverhead > w.cfg.LogCacheBytes
}

// openLocked starts a bulk, whose first record has the given size.
func (w *wal) openLocked(size int) {
	now := time.Now()
	w.cur = &bulk{opened: now, due: w.dueLocked(now)}
	w.cur.grow(walFenceSize+size, w.chunkHint, w.pool)
	w.cur.reserve(walHeaderSize, 0, w.pool)
	w.unflushed += w.cur.size
	w.waiting += w.cur.memory
	w.unuploaded += w.cur.memory
	w.evict(max(0, w.cfg.LogCacheBytes-w.waiting-w.cfg.WALBytes))
	w.signal()
}

// dueLocked is when a bulk that is opened now is closed, unless it is full before. Bulks are
// WALLinger apart, because each is a request; half of it is enough if nothing is in flight: a
// producer that awaits each answer before it sends on would wait for the rest in vain, and
// any other keeps something in flight.
func (w *wal) dueLocked(now time.Time) time.Time {
	gap, wait := w.cfg.WALLinger, w.cfg.WALIdleLinger
	if w.unflushed == 0 {
		gap /= 2
	}
	if rate := float64(w.lastSize) / now.Sub(w.lastOpen).Seconds(); rate >= quietRate {
		wait = min(wait, gap)
	}
	due := now.Add(wait)
	if next := w.lastSeal.Add(gap); next.After(due) {
		return next
	}
	return due
}

func (w *wal) sealLocked() {
	w.lastOpen, w.lastSeal, w.lastSize = w.lastSeal, time.Now(), w.cur.size
	w.sealed = append(w.sealed, w.cur)
	w.chunkHint = int(min(max(w.cur.size/4, minChunk), w.cfg.WALBytes/4)) // chunks then double
	w.cur = nil
	w.signal()
}

func (w *wal) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// release takes n uploaded bytes off the bound of the log cache.
func (w *wal) release(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unuploaded -= n
	w.makeRoomLocked()
}

func (w *wal) makeRoomLocked() {
	close(w.room)
	w.room = make(chan struct{})
}

// flush closes the current bulk without waiting for its time.
func (w *wal) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flushing = true
	w.signal()
}

// close refuses further appends with err, waits for those before, and ends the loop.
func (w *wal) close(ctx context.Context, err error) error {
	w.mu.Lock()
	if w.err == nil {
		w.err = err
	}
	w.closing, w.flushing = true, true
	w.makeRoomLocked()
	w.mu.Unlock()
	w.signal()
	select {
	case <-w.stopped:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// run writes and acknowledges bulks until close is done, ctx ends or a write fails. It is
// the goroutine that calls every done of an append.
func (w *wal) run(ctx context.Context) {
	defer close(w.stopped)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var (
		queue   []*bulk // started and not acknowledged, by sequence
		writers int
		seq     uint64
	)
	for {
		start, wait, finished := w.next(w.inflight()-writers, writers == 0 && len(queue) == 0)
		for _, b := range start {
			b.seq = seq
			seq++
			queue = append(queue, b)
			writers++
			go func() {
				began := time.Now()
				b.settled, b.err = w.device.write(ctx, b.seq, b.seal(w.node, w.nonce))
				w.seconds.Observe(time.Since(began).Seconds())
				w.written <- b
			}()
		}
		if finished {
			return
		}
		var due <-chan time.Time
		if wait >= 0 {
			timer.Reset(wait)
			due = timer.C
		}
		select {
		case <-w.wake:
		case <-due:
		case b := <-w.written:
			writers--
			if b.err == nil {
				b.written = true
				queue = w.acknowledge(queue)
				break
			}
			cancel()
			for range writers {
				<-w.written
			}
			w.fail(queue, b.err)
			return
		case <-ctx.Done():
			for range writers {
				<-w.written
			}
			w.fail(queue, context.Cause(ctx))
			return
		}
	}
}

// next takes up to free closed bulks to write, after closing the current one if it is
// due; wait is how long until that, negative if there is nothing to wait for. With nothing
// in flight (idle) and nothing left, a closing WAL has finished.
func (w *wal) next(free int, idle bool) (start []*bulk, wait time.Duration, finished bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wait = -1
	if w.cur != nil {
		if w.cfg.WAL == WALFile {
			if free > 0 && len(w.sealed) == 0 {
				w.sealLocked()
			}
		} else if now := time.Now(); w.flushing || !now.Before(w.cur.due) {
			w.sealLocked()
		} else {
			wait = w.cur.due.Sub(now)
		}
	}
	if w.cur == nil {
		w.flushing = false
	}
	n := min(free, len(w.sealed))
	start = slices.Clone(w.sealed[:n])
	w.sealed = slices.Delete(w.sealed, 0, n)
	return start, wait, w.closing && idle && n == 0 && w.cur == nil && len(w.sealed) == 0
}

// acknowledge answers the contiguous prefix of the queue that is durable and returns the rest.
func (w *wal) acknowledge(queue []*bulk) []*bulk {
	if invariant.Off("wal-contiguous-prefix") {
		slices.SortStableFunc(queue, func(a, b *bulk) int {
			if a.written != b.written && a.written {
				return -1
			}
			return 0
		})
	}
	n := 0
	var bytes, memory int64
	for n < len(queue) && queue[n].written {
		bytes += queue[n].size
		memory += queue[n].memory
		n++
	}
	if n == 0 {
		return queue
	}
	w.mu.Lock()
	w.unflushed -= bytes // before the answers: what a producer sends then meets a WAL with nothing in flight
	w.mu.Unlock()
	for _, b := range queue[:n] {
		w.ack(b)
	}
	w.mu.Lock()
	w.waiting -= memory
	w.makeRoomLocked()
	w.mu.Unlock()
	return slices.Delete(queue, 0, n)
}

// wakeIdle tells those who wait for the last append of a stream in b.
func (w *wal) wakeIdle(b *bulk) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range b.entries {
		st := b.entries[i].stream
		if st.idle != nil && st.confirm.Load() == st.next {
			close(st.idle)
			st.idle = nil
		}
	}
}

// fail answers everything that is not acknowledged with err, in order.
func (w *wal) fail(queue []*bulk, err error) {
	err = errors.Join(ErrStreamFenced, err)
	w.mu.Lock()
	w.err = err
	queue = append(queue, w.sealed...)
	if w.cur != nil {
		queue = append(queue, w.cur)
	}
	w.sealed, w.cur = nil, nil
	w.makeRoomLocked()
	w.mu.Unlock()
	w.failed(err)
	for _, b := range queue {
		w.lost.Add(float64(len(b.entries)))
		for _, e := range b.entries {
			e.done(err)
		}
	}
}
