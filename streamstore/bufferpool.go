package streamstore

import (
	"slices"
	"sync"
	"time"
	"unsafe"
)

const (
	// poolIdle is how long a buffer lies unused before it is let go: between one and two of it.
	poolIdle = 10 * time.Second
	// minPooled is the size from which on a buffer is worth it.
	minPooled = 16 << 10
	// maxPooled bounds how many lie unused.
	maxPooled = 1024
)

// A bufferPool keeps large buffers that nobody uses for those that come: to clear the memory of each, which is used once,
// and to collect it, costs more than much of what is done with it. All begin and end with blocks of memory, so that they
// can be written past the page cache.
type bufferPool struct {
	limit int64

	mu    sync.Mutex
	free  [][]byte // guarded by mu; by when they came
	bytes int64    // guarded by mu; of free
	old   int      // guarded by mu; the first so many were free when the timer last fired
	timer bool     // guarded by mu; one runs, as long as something is free
}

// newBufferPool returns a pool of up to limit bytes. What is beyond is left to the garbage collector.
func newBufferPool(limit int64) *bufferPool { return &bufferPool{limit: limit} }

// get returns an empty buffer with a capacity of least bytes or more, and of about want, which is not less: one of the
// pool if it has half of that or more and no more than a quarter too much, else a fresh one, which its user is to put on
// huge pages: that can take milliseconds.
func (p *bufferPool) get(least, want int) (b []byte, fresh bool) {
	if b := p.take(max(least, want/2), want); b != nil {
		return b, false
	}
	return alignedBuffer(want)[:0], true
}

// alignedBuffer returns n bytes, rounded up to whole blocks, whose place in memory is a multiple of walBlock.
func alignedBuffer(n int) []byte {
	n = int(wholeBlocks(int64(n)))
	b := make([]byte, n)
	if off := int(uintptr(unsafe.Pointer(unsafe.SliceData(b))) % walBlock); off != 0 { // the allocator does so for these sizes, without a promise
		b = make([]byte, n+walBlock)
		off = int(uintptr(unsafe.Pointer(unsafe.SliceData(b))) % walBlock)
		b = b[walBlock-off : walBlock-off+n : walBlock-off+n]
	}
	return b
}

// take returns the buffer from least bytes on that is nearest to want; nil if there is none.
func (p *bufferPool) take(least, want int) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	best, off := -1, 0
	for i, b := range p.free {
		n := cap(b)
		if n < least || n > want+want/4 {
			continue
		}
		if d := max(n-want, want-n); best < 0 || d < off {
			best, off = i, d
		}
	}
	if best < 0 {
		return nil
	}
	b := p.free[best]
	p.removeLocked(best)
	return b[:0]
}

// put gives the pool buffers of get that nobody reads or writes any more. Where it is full, what was free for longest goes: it
// does not fit what is wanted now.
func (p *bufferPool) put(all ...[]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range all {
		if cap(b) < minPooled || int64(cap(b)) > p.limit {
			continue
		}
		for p.bytes+int64(cap(b)) > p.limit || len(p.free) == maxPooled {
			p.removeLocked(0)
		}
		b = b[:cap(b)]
		if poison {
			for i := range b {
				b[i] = 0xdb
			}
		}
		p.free = append(p.free, b)
		p.bytes += int64(cap(b))
	}
	if len(p.free) > 0 && !p.timer {
		p.timer = true
		time.AfterFunc(poolIdle, p.age)
	}
}

func (p *bufferPool) removeLocked(i int) {
	p.bytes -= int64(cap(p.free[i]))
	p.free = slices.Delete(p.free, i, i+1)
	if i < p.old {
		p.old--
	}
}

// age lets go what was free when it was called before.
func (p *bufferPool) age() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.old > 0 {
		p.removeLocked(0)
	}
	p.old = len(p.free)
	if p.timer = p.old > 0; p.timer {
		time.AfterFunc(poolIdle, p.age)
	}
}
