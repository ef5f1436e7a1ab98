package streamstore

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
)

// leased is a configuration with blocks and chunks that are large enough to be used again.
func leased() Config {
	cfg := quiet()
	cfg.BlockBytes, cfg.BlockCacheBytes = 64<<10, 8<<20
	cfg.UploadBytes, cfg.LogCacheBytes, cfg.WALBytes = 4<<20, 16<<20, 1<<20
	return cfg
}

// patterns are n payloads, none like another.
func patterns(n int, seed byte) (all []string) {
	for i := range n {
		p := bytes.Repeat([]byte{seed, byte(i), byte(i >> 8)}, 30<<10/3)
		all = append(all, string(p))
	}
	return all
}

// What was fetched with a lease stays as it is, in the log cache and in the block cache, whatever goes through them, until the lease is
// released; and what was fetched without one stays for ever.
func TestLeasedMemoryStaysAsItIs(t *testing.T) {
	for _, from := range []string{"log cache", "block cache"} {
		for _, lease := range []*Lease{{}, nil} {
			synctest.Test(t, func(t *testing.T) {
				e := newEnv(t)
				s := e.open(leased())
				st := e.create(s, 1, 1)[0]
				want := patterns(20, 1)
				appendAll(t, st, want...)
				if from == "block cache" {
					drop(t, s)
				}
				got := fetchFast(t, st, lease)
				churn(t, s, st)
				for i, b := range got {
					if string(b.Payload) != want[i] {
						t.Fatalf("%s, with a lease: %v; batch %d has become %.20q", from, lease != nil, i, b.Payload)
					}
				}
			})
		}
	}
}

// Once the last lease is released, and the cache has dropped it, memory is used again: for what is appended, and for what is read.
func TestMemoryIsUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		s := e.open(leased())
		st := e.create(s, 1, 1)[0]
		appendAll(t, st, patterns(20, 1)...)
		for _, from := range []string{"log cache", "block cache"} {
			var first, second Lease
			got := fetchFast(t, st, &first)
			fetchFast(t, st, &second)
			drop(t, s)
			first.Release()
			if free(s.wal.pool, got) {
				t.Fatalf("%s: dropped memory is free though a lease holds it", from)
			}
			second.Release()
			if !free(s.wal.pool, got) {
				t.Fatalf("%s: the memory is not used again", from)
			}
		}
	})
}

// A request to the WAL that nobody waits for any more may still read the bulk: its memory is never used again.
func TestMemoryOfAHedgedBulkIsNotUsedAgain(t *testing.T) {
	p := newBufferPool(1 << 20)
	c := newLogCache(p)
	for _, settled := range []bool{false, true} {
		st := &Stream{id: 1, epoch: 1}
		b := &bulk{settled: settled}
		b.reserve(walHeaderSize, 64<<10, p)
		rec := b.reserve(walRecordSize+100, 64<<10, p)
		b.entries = []entry{{stream: st, batch: RecordBatch{Count: 1, Payload: rec[walRecordSize:]}}}
		c.add(b, 1, 10, time.Time{})
		close(c.blocks[0].uploaded)
		c.evict(0)
		if used := len(p.free) > 0; used != settled {
			t.Errorf("a bulk that is settled: %v; its memory is used again: %v", settled, used)
		}
	}
}

// Buffers that nothing needs are let go; those that are too many, or not worth it, are not kept.
func TestIdleBuffersAreLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newBufferPool(1 << 20)
		have := func(when string, buffers int, bytes int64) {
			t.Helper()
			p.mu.Lock()
			defer p.mu.Unlock()
			if len(p.free) != buffers || p.bytes != bytes {
				t.Fatalf("%s: %d buffers of %d bytes, want %d of %d", when, len(p.free), p.bytes, buffers, bytes)
			}
		}
		p.put(make([]byte, 64<<10), make([]byte, 128<<10), make([]byte, minPooled-1), make([]byte, 2<<20))
		have("at first", 2, 192<<10)
		if b, _ := p.get(1, 100<<10); len(b) != 0 || cap(b) != 64<<10 {
			t.Fatalf("a buffer of %d bytes for 100 KiB, want the one of 64 KiB", cap(b))
		}
		if b, _ := p.get(1, 260<<10); cap(b) != 260<<10 {
			t.Fatalf("a buffer of %d bytes for 260 KiB, want a new one", cap(b))
		}
		have("after one was taken", 1, 128<<10)
		<-time.After(poolIdle + poolIdle/2)
		p.put(make([]byte, 64<<10))
		have("when another comes", 2, 192<<10)
		<-time.After(poolIdle)
		have("after the first was idle", 1, 64<<10)
		<-time.After(poolIdle)
		have("after all were", 0, 0)
	})
}

// A pool that is full of buffers that do not fit lets the oldest go for what comes: else what is wanted now, and comes back
// again and again, would never be in it.
func TestFullPoolLetsGoOfTheOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newBufferPool(256 << 10)
		for range 4 {
			p.put(make([]byte, 64<<10))
		}
		p.put(make([]byte, 120<<10))
		if b, _ := p.get(1, 120<<10); cap(b) != 120<<10 || len(p.free) != 2 || p.bytes != 128<<10 {
			t.Errorf("a buffer of %d bytes, and %d of %d are left", cap(b), len(p.free), p.bytes)
		}
		if b := p.take(120<<10, 120<<10); b != nil {
			t.Errorf("a new one of %d bytes is in the pool", cap(b))
		}
		p.put(make([]byte, 257<<10))
		if len(p.free) != 2 {
			t.Errorf("%d buffers after one that is larger than all, want 2", len(p.free))
		}
	})
}

func fetchFast(t *testing.T, st *Stream, lease *Lease) (all []RecordBatch) {
	t.Helper()
	for at := int64(0); at < 20; at = all[len(all)-1].End() {
		if err := st.Load(t.Context(), at, 1<<20); err != nil {
			t.Fatal(err)
		}
		got, err := st.FetchFast(at, 20, 1<<20, lease)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, got...)
	}
	return all
}

// drop lets the caches drop all they have.
func drop(t *testing.T, s *Store) {
	t.Helper()
	upload(t, s)
	s.reader.forgetBlocks()
}

// churn fills memory that is free with something else.
func churn(t *testing.T, s *Store, st *Stream) {
	t.Helper()
	for range 3 {
		drop(t, s)
		appendAll(t, st, patterns(60, 2)...)
		drop(t, s)
		if err := st.Load(context.Background(), 30, 1<<20); err != nil {
			t.Fatal(err)
		}
	}
}

// free reports whether a batch lies in memory that is free.
func free(p *bufferPool, batches []RecordBatch) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.free {
		begin := uintptr(unsafe.Pointer(unsafe.SliceData(f)))
		for _, b := range batches {
			if at := uintptr(unsafe.Pointer(unsafe.SliceData(b.Payload))); at >= begin && at < begin+uintptr(cap(f)) {
				return true
			}
		}
	}
	return false
}
