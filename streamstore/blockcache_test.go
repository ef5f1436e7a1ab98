package streamstore

import (
	"container/list"
	"math/rand/v2"
	"testing"
	"time"
)

// A cacheEnv is a block cache of blocks of cost 1 with ten offsets each, and what went unread of it.
type cacheEnv struct {
	*blockCache
	now    time.Time
	unread map[*session]int64
}

func newCacheEnv(limit int64) *cacheEnv {
	e := &cacheEnv{now: time.Unix(0, 0), unread: make(map[*session]int64)}
	e.blockCache = newBlockCache(limit, func(s *session, bytes int64) { e.unread[s] += bytes })
	return e
}

func (e *cacheEnv) load(n int64, s *session) {
	e.put(blockKey{1, n}, []RecordBatch{{BaseOffset: 10 * n, Count: 10}}, lend(newBufferPool(0)), 1, s, e.now)
}

// pass reads a block to its end, as a sequential reader does; it reports whether it was there.
func (e *cacheEnv) pass(n int64) bool {
	_, ok := e.get(blockKey{1, n}, nil)
	if !ok {
		e.load(n, nil)
	}
	e.read(blockKey{1, n}, 10*n, 10*n+10, e.now)
	return ok
}

func (e *cacheEnv) has(n int64) bool { return e.blocks[blockKey{1, n}] != nil }

// A reader that goes through everything once does not push out what others read again and
// again, even if they pause meanwhile, and though they read less often than the scan fills the cache.
func TestScanDoesNotEmptyBlockCache(t *testing.T) {
	e := newCacheEnv(64)
	const hot = 16
	for round := range int64(3) { // in every round the scan fills the cache
		for n := range int64(hot) {
			e.pass(n)
		}
		for n := range int64(64) {
			e.pass(1000 + 64*round + n)
		}
	}
	for n := range int64(10_000) {
		e.pass(100_000 + n)
	}
	for n := range int64(hot) {
		if !e.has(n) {
			t.Errorf("block %d, read in each round, is gone after a scan", n)
		}
	}
}

// What is read often outlasts what is read twice, by two readers one close behind the other.
func TestTwoScansDoNotEmptyBlockCache(t *testing.T) {
	e := newCacheEnv(64)
	for range 5 {
		for n := range int64(8) {
			e.pass(n)
		}
	}
	for n := range int64(2000) {
		e.pass(1000 + n)
		if n >= 4 {
			e.pass(1000 + n - 4)
		}
		if n%100 == 0 {
			for n := range int64(8) {
				e.pass(n)
			}
		}
	}
	for n := range int64(8) {
		if !e.has(n) {
			t.Errorf("block %d is gone", n)
		}
	}
}

// Blocks that a reader has passed go first, then those kept; what is read ahead goes last, for
// somebody who waits.
func TestPassedBlocksGoFirst(t *testing.T) {
	e := newCacheEnv(8)
	s := &session{}
	e.load(1, s)
	e.load(2, s)
	for range 1 + keepHits {
		e.pass(3)
	}
	for n := int64(4); n < 9; n++ {
		e.pass(n)
	}
	for n := int64(9); n < 14; n++ { // each takes the place of one that was passed
		e.load(n, nil)
		if e.has(n - 5) {
			t.Fatalf("block %d, which was passed, is still there", n-5)
		}
	}
	if !e.has(1) || !e.has(2) || !e.has(3) {
		t.Fatal("a block that was passed is left, and another had to go")
	}
	e.load(14, nil)
	if e.has(3) || !e.has(1) {
		t.Fatal("want the kept block to go before what was read ahead")
	}
	e.load(15, nil)
	if e.has(1) || e.unread[s] != 1 {
		t.Fatalf("what was read ahead, the oldest: there %v, %d bytes unread", e.has(1), e.unread[s])
	}
}

// Read-ahead never takes the place of blocks that are awaited: it is refused, and its reader
// hears of it. Awaited for too long, it goes first.
func TestReadAheadDoesNotEvictReadAhead(t *testing.T) {
	e := newCacheEnv(8)
	a, b := &session{}, &session{}
	for n := range int64(8) {
		e.load(n, a)
	}
	e.load(100, b)
	if e.has(100) || e.unread[b] != 1 || e.unread[a] != 0 {
		t.Fatalf("want the new one refused: there %v, unread %v", e.has(100), e.unread)
	}
	if e.roomAhead(1, e.now) {
		t.Fatal("room to read ahead while all is awaited")
	}
	e.now = e.now.Add(awaitedAge)
	e.load(100, b)
	if !e.has(100) || e.has(0) || e.unread[a] != 1 {
		t.Fatalf("after a minute: there %v, unread %v", e.has(100), e.unread)
	}
	if !e.roomAhead(1, e.now) || e.has(1) {
		t.Fatal("no room to read ahead once all else has waited too long")
	}
}

// Half of the cache may be awaited before read-ahead stops.
func TestReadAheadLeavesRoom(t *testing.T) {
	e := newCacheEnv(64)
	s := &session{}
	n := int64(0)
	for ; e.roomAhead(1, e.now); n++ {
		e.load(n, s)
	}
	if n != 32 {
		t.Fatalf("%d of 64 may be read ahead, want 32", n)
	}
}

// A block read in pieces is read once.
func TestPiecesOfABlockAreOneRead(t *testing.T) {
	e := newCacheEnv(8)
	e.load(1, nil)
	for at := int64(10); at < 20; at += 2 {
		if b := e.blocks[blockKey{1, 1}]; b.queue != &e.awaited {
			t.Fatalf("at offset %d the block is not awaited", at)
		}
		e.read(blockKey{1, 1}, at, at+2, e.now)
	}
	if b := e.blocks[blockKey{1, 1}]; b.queue != &e.passed {
		t.Fatal("read to its end, the block is not passed")
	}
	for range keepHits {
		e.read(blockKey{1, 1}, 14, 20, e.now)
	}
	if b := e.blocks[blockKey{1, 1}]; b.queue != &e.kept {
		t.Fatal("read again and again, the block is not kept")
	}
}

// The bound holds exactly, whatever happens, and nothing is lost count of.
func TestBlockCacheIsBounded(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		limit := r.Int64N(500)
		e := newCacheEnv(limit)
		sessions := []*session{nil, {}, {}}
		for range 2000 {
			key := blockKey{ObjectID(r.Int64N(3)), r.Int64N(60)}
			switch r.IntN(4) {
			case 0, 1:
				if _, ok := e.get(key, nil); !ok {
					e.put(key, []RecordBatch{{BaseOffset: 0, Count: 10}}, lend(newBufferPool(0)), 1+r.Int64N(100), sessions[r.IntN(3)], e.now)
				}
			case 2:
				from := r.Int64N(10)
				e.read(key, from, from+1+r.Int64N(10-from), e.now)
			default:
				e.now = e.now.Add(time.Duration(r.Int64N(int64(5 * time.Second))))
				e.roomAhead(r.Int64N(100), e.now)
			}
			var sum, queued int64
			for _, b := range e.blocks {
				sum += b.cost
			}
			count := 0
			for _, q := range []*blockQueue{&e.awaited, &e.passed, &e.kept} {
				queued += q.bytes
				count += q.order.Len()
				eachBlock(&q.order, func(b *cachedBlock) {
					if b.queue != q || e.blocks[b.key] != b {
						t.Fatalf("seed %d: block %v is in the wrong queue", seed, b.key)
					}
				})
			}
			if e.used > limit || e.used != sum || queued != sum || count != len(e.blocks) || e.ghosts.used > limit || len(e.ghosts.items) > maxGhosts {
				t.Fatalf("seed %d: %d of %d used by %d blocks of %d, queues have %d of %d", seed, e.used, limit, len(e.blocks), sum, count, queued)
			}
		}
	}
}

func eachBlock(l *list.List, f func(*cachedBlock)) {
	for e := l.Front(); e != nil; e = e.Next() {
		f(e.Value.(*cachedBlock))
	}
}
