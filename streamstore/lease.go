package streamstore

import (
	"sync/atomic"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

// A Lease keeps what [Stream.FetchFast] returned with it as it is until it is released. The
// store then uses that memory again: what goes through it at hundreds of megabytes a second
// would else be cleared before, and collected after. The zero Lease is ready for use, by one goroutine.
//
// Who fetches without one may keep what it gets, and the garbage collector has that memory.
type Lease struct {
	of []*lent
}

// Release ends the lease: the payloads that were fetched with it must not be touched any more.
// Without it they stay valid, and are garbage some day.
func (l *Lease) Release() {
	for _, m := range l.of {
		m.release()
	}
	l.of = nil
}

// add notes that the holder reads m, which a cache has. A nil lease is that of a reader who does
// not say when it has done.
func (l *Lease) add(m *lent) {
	if l == nil {
		m.kept.Store(!invariant.Off("lease-none-keeps"))
		return
	}
	if n := len(l.of); n > 0 && l.of[n-1] == m { // what is read in a row lies together
		return
	}
	if invariant.Off("lease-holds-memory") {
		return
	}
	m.readers.Add(1)
	l.of = append(l.of, m)
}

// lent is memory of a cache that is used again when the cache has dropped it and all leases of it have ended.
type lent struct {
	readers atomic.Int64 // leases, and the cache
	kept    atomic.Bool  // there is a reader without a lease: it is never used again
	pool    *bufferPool
	buffers [][]byte
}

// lend returns the memory of a cache that drops it by release. The cache may still add buffers.
func lend(pool *bufferPool, memory ...[]byte) *lent {
	m := &lent{pool: pool, buffers: memory}
	m.readers.Store(1)
	return m
}

func (m *lent) release() {
	if m.readers.Add(-1) == 0 && !m.kept.Load() {
		m.pool.put(m.buffers...)
		m.buffers = nil
	}
}
