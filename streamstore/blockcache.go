package streamstore

import (
	"container/list"
	"time"
)

const (
	// awaitedAge is how long a block waits for the reader that it was read for. After that it
	// is the first to go.
	awaitedAge = time.Minute
	// maxGhosts bounds the blocks whose names are remembered when they are gone.
	maxGhosts = 4096
	// keepHits is how often a block must be read again to be kept.
	keepHits = 2
	// maxHits bounds the rounds that a block is kept without being read.
	maxHits = 3
)

// A blockCache keeps blocks of objects up to a total cost, so that a reader of everything
// does not push out what others read again and again, nor a reader what was read ahead for
// another. It follows S3-FIFO: a block that is read once and passed is the first to go, also
// if a second reader comes close behind the first; one that is read a third time, or again
// not long after it had to go, is kept. The caller locks.
//
//	         read to its end           evicted
//	awaited ────────────────▶ passed ─────────▶ ghost: its name alone
//	   │ read a third time       │                │ loaded and read
//	   └─────────────▶ kept ◀────┴────────────────┘
//
// What must go is first what waited for awaitedAge, then of kept what is over half of the
// cache, then passed, then kept; awaited only for a block that a reader waits for.
type blockCache struct {
	limit, used           int64
	blocks                map[blockKey]*cachedBlock
	awaited, passed, kept blockQueue
	ghosts                *lru[blockKey, struct{}]
	wasted                func(s *session, bytes int64) // is told of what was read ahead and goes unread
}

// A blockQueue has its newest block in front.
type blockQueue struct {
	order list.List // of *cachedBlock
	bytes int64
}

type cachedBlock struct {
	key     blockKey
	batches []RecordBatch
	memory  *lent
	cost    int64
	queue   *blockQueue
	place   *list.Element
	since   time.Time // loaded or read, while awaited
	reached int64     // up to this offset it has been read
	ghost   bool      // it was here before
	hits    int       // times read again; while kept, since it was considered for eviction
	session *session  // whom it was read ahead for; nil once it is read
}

func newBlockCache(limit int64, wasted func(*session, int64)) *blockCache {
	return &blockCache{limit: limit, blocks: make(map[blockKey]*cachedBlock), ghosts: newLRU[blockKey, struct{}](limit), wasted: wasted}
}

func (c *blockCache) has(key blockKey) bool { return c.blocks[key] != nil }

func (c *blockCache) get(key blockKey, lease *Lease) ([]RecordBatch, bool) {
	if b := c.blocks[key]; b != nil {
		lease.add(b.memory)
		return b.batches, true
	}
	return nil, false
}

// put adds a block, with memory to be released when it goes. One that was read ahead for s, which is not nil then, takes no room from
// blocks that are awaited, and goes unread if there is no other.
func (c *blockCache) put(key blockKey, batches []RecordBatch, memory *lent, cost int64, s *session, now time.Time) {
	for cost <= c.limit && c.used+cost > c.limit {
		old := c.victim(s != nil, now)
		if old == nil {
			break
		}
		c.drop(old)
	}
	if c.used+cost > c.limit {
		memory.release()
		if s != nil {
			c.wasted(s, cost)
		}
		return
	}
	b := &cachedBlock{key: key, batches: batches, memory: memory, cost: cost, reached: batches[0].BaseOffset, session: s}
	_, b.ghost = c.ghosts.get(key)
	c.ghosts.remove(key)
	c.blocks[key] = b
	c.used += cost
	c.push(&c.awaited, b, now)
}

// read notes that the batches of [from, to) of a block were read, if it is here.
func (c *blockCache) read(key blockKey, from, to int64, now time.Time) {
	b := c.blocks[key]
	if b == nil {
		return
	}
	if from < b.reached {
		b.hits = min(b.hits+1, maxHits)
	}
	b.reached, b.session = to, nil
	switch {
	case b.queue == &c.kept:
	case b.ghost || b.hits >= keepHits:
		b.hits = 0
		c.push(&c.kept, b, now)
	case to >= b.batches[len(b.batches)-1].End():
		c.push(&c.passed, b, now)
	default:
		c.push(&c.awaited, b, now)
	}
}

// push moves b to the front of q.
func (c *blockCache) push(q *blockQueue, b *cachedBlock, now time.Time) {
	if b.queue != nil {
		b.queue.order.Remove(b.place)
		b.queue.bytes -= b.cost
	}
	b.queue, b.place, b.since = q, q.order.PushFront(b), now
	q.bytes += b.cost
}

func (q *blockQueue) oldest() *cachedBlock {
	if e := q.order.Back(); e != nil {
		return e.Value.(*cachedBlock)
	}
	return nil
}

// victim returns the block that must go next; nil if ahead is set and only awaited ones are left.
func (c *blockCache) victim(ahead bool, now time.Time) *cachedBlock {
	b := c.awaited.oldest()
	if b != nil && now.Sub(b.since) >= awaitedAge {
		return b
	}
	if c.kept.bytes > c.limit/2 {
		return c.leastRead(now)
	}
	if b := c.passed.oldest(); b != nil {
		return b
	}
	if c.kept.bytes > 0 {
		return c.leastRead(now)
	}
	if ahead {
		return nil
	}
	return b
}

// leastRead returns the oldest kept block that was not read since it was last looked at.
func (c *blockCache) leastRead(now time.Time) *cachedBlock {
	for {
		b := c.kept.oldest()
		if b.hits == 0 {
			return b
		}
		b.hits--
		c.push(&c.kept, b, now)
	}
}

func (c *blockCache) drop(b *cachedBlock) {
	if b.queue == &c.passed {
		c.ghosts.put(b.key, struct{}{}, max(b.cost, c.limit/maxGhosts))
	}
	b.queue.order.Remove(b.place)
	b.queue.bytes -= b.cost
	delete(c.blocks, b.key)
	b.memory.release()
	c.used -= b.cost
	if b.session != nil {
		c.wasted(b.session, b.cost)
	}
}

// roomAhead reports whether so many bytes may be read ahead: half of the cache is for blocks
// that readers wait for.
func (c *blockCache) roomAhead(bytes int64, now time.Time) bool {
	for b := c.awaited.oldest(); b != nil && now.Sub(b.since) >= awaitedAge; b = c.awaited.oldest() {
		c.drop(b)
	}
	return c.awaited.bytes+bytes <= c.limit/2
}
