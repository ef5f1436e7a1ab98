package streamstore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// A laneEnv records what starts.
type laneEnv struct {
	*lane
	started []*request
}

func newLaneEnv(requests, bytes int64) *laneEnv {
	e := &laneEnv{}
	e.lane = newLane(requests, bytes, func(r *request) { e.started = append(e.started, r) })
	return e
}

// blockAt is a request for one block.
func blockRequest(reader any, object ObjectID, from, size int64) *request {
	r := &request{reader: reader, object: object, from: from, to: from + size, waiters: 1}
	r.blocks = []*blockLoad{{entry: indexEntry{Position: from, Size: uint32(size)}, request: r}}
	return r
}

// A reader of 64 streams does not delay one of a single stream by more than a request.
func TestReadersTakeTurns(t *testing.T) {
	e := newLaneEnv(1, 1<<20)
	for i := range ObjectID(64) {
		e.add(blockRequest("many", i, 0, 100))
	}
	e.dispatch()
	e.add(blockRequest("one", 100, 0, 100))
	for len(e.started) < 4 {
		e.done(e.started[len(e.started)-1])
	}
	var order []any
	for _, r := range e.started {
		order = append(order, r.reader)
	}
	if want := []any{"many", "many", "one", "many"}; !slices.Equal(order, want) {
		t.Fatalf("started in the order %v, want %v", order, want)
	}
}

// What waits near by in the same object, of whichever stream, becomes one request; what is far
// away, in another object or too much does not.
func TestWaitingReadsOfAnObjectBecomeOne(t *testing.T) {
	e := newLaneEnv(1, 64<<20)
	e.add(blockRequest(0, 9, 0, 100))
	e.dispatch() // the lane is full
	const kib = 1 << 10
	e.add(blockRequest(1, 1, 1000*kib, 100*kib))
	e.add(blockRequest(2, 1, 1100*kib, 100*kib))                // adjacent
	e.add(blockRequest(3, 1, 500*kib, 100*kib))                 // before, within the gap
	e.add(blockRequest(4, 1, 1200*kib+mergeGap+1, 100*kib))     // too far
	e.add(blockRequest(5, 2, 1000*kib, 100*kib))                // another object
	e.add(blockRequest(6, 1, 1200*kib+mergeGap-50*kib, 40*kib)) // within, and makes 4 near
	e.addAhead(blockRequest(7, 1, 600*kib, 50*kib))             // read-ahead goes along
	e.done(e.started[0])
	e.done(e.started[1])
	if len(e.started) != 3 {
		t.Fatalf("%d requests, want 3", len(e.started))
	}
	one := e.started[1]
	if one.from != 500*kib || one.to != 1300*kib+mergeGap+1 || len(one.blocks) != 6 || one.waiters != 6 {
		t.Fatalf("one request of [%d, %d) for %d blocks and %d readers", one.from, one.to, len(one.blocks), one.waiters)
	}
	for _, b := range one.blocks {
		if b.request != one {
			t.Fatal("a block does not know the request that it is in")
		}
	}
	if other := e.started[2]; other.object != 2 {
		t.Fatalf("then object %d, want 2", other.object)
	}
}

// A request never grows beyond its limit.
func TestMergedReadsAreBounded(t *testing.T) {
	e := newLaneEnv(1, 64<<20)
	e.add(blockRequest(0, 9, 0, 100))
	e.dispatch()
	for i := range int64(20) {
		e.add(blockRequest(i, 1, i<<20, 1<<20))
	}
	for i := 0; i < len(e.started); i++ {
		e.done(e.started[i])
	}
	if len(e.started) != 6 {
		t.Fatalf("20 MiB in %d requests, want 5 and the first", len(e.started))
	}
	for _, r := range e.started[1:] {
		if r.to-r.from != maxRequestBytes {
			t.Fatalf("a request of %d bytes, want %d", r.to-r.from, maxRequestBytes)
		}
	}
}

// Read-ahead waits for every read that somebody waits for, and leaves it room; once somebody
// waits for it, it is such a read.
func TestReadAheadComesLast(t *testing.T) {
	e := newLaneEnv(8, 1<<20)
	for i := range ObjectID(10) {
		e.addAhead(blockRequest(nil, i, 0, 100))
	}
	e.dispatch()
	if len(e.started) != 6 {
		t.Fatalf("%d reads ahead at a time, want three quarters of 8", len(e.started))
	}
	e.add(blockRequest("a", 20, 0, 100))
	wanted := e.ahead[3]
	e.want(wanted, "b")
	e.dispatch()
	if n := len(e.started); n != 8 || e.started[6].object != 20 || e.started[7] != wanted {
		t.Fatalf("%d started, want those two that are waited for", n)
	}
	e.add(blockRequest("a", 21, 0, 100))
	e.done(e.started[0])
	if n := len(e.started); n != 9 || e.started[8].object != 21 {
		t.Fatalf("%d started, want the one that is waited for", n)
	}
}

// What nobody waits for any more does not start; what others wait for does.
func TestAbandonedReadLeavesLane(t *testing.T) {
	e := newLaneEnv(1, 1<<20)
	e.add(blockRequest(0, 9, 0, 100))
	e.dispatch()
	a, b := blockRequest("a", 1, 0, 100), blockRequest("b", 2, 0, 100)
	e.add(a)
	e.add(b)
	e.want(b, "c")
	if !e.giveUp(a) || e.giveUp(b) || e.giveUp(e.started[0]) {
		t.Fatal("want a to leave, b to stay for c, and what is on its way to go on")
	}
	e.done(e.started[0])
	if len(e.started) != 2 || e.started[1] != b {
		t.Fatalf("%d started, want b alone", len(e.started)-1)
	}
}

// Whatever comes and goes, no more requests and bytes than allowed are on their way, nothing is
// forgotten, and every block is read once.
func TestLaneModel(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		e := newLaneEnv(1+r.Int64N(8), 1+r.Int64N(8<<20))
		var open, all []*blockLoad
		ended := make(map[*blockLoad]bool)
		running := make(map[*request]bool)
		taken := make(map[blockKey]bool)
		seen := 0
		finish := func(q *request) {
			delete(running, q)
			for _, b := range q.blocks {
				if ended[b] {
					t.Fatalf("seed %d: a block is read twice", seed)
				}
				ended[b] = true
			}
			e.done(q)
		}
		for range 300 {
			switch r.IntN(5) {
			case 0, 1, 2:
				object, from := ObjectID(r.Int64N(3)), r.Int64N(40)<<18
				if key := (blockKey{object, from}); taken[key] {
					continue
				} else {
					taken[key] = true
				}
				q := blockRequest(fmt.Sprint(r.IntN(4)), object, from, 1+r.Int64N(1<<18))
				open, all = append(open, q.blocks[0]), append(all, q.blocks[0])
				if r.IntN(3) == 0 && !e.aheadFull() {
					q.waiters = 0
					e.addAhead(q)
				} else {
					e.add(q)
				}
				e.dispatch()
			case 3:
				if len(open) == 0 {
					continue
				}
				b := open[r.IntN(len(open))]
				if q := b.request; !ended[b] && q.state == waitingAhead {
					e.want(q, "late")
				} else if !ended[b] && q.state == waiting && q.waiters > 0 && e.giveUp(q) {
					for _, b := range q.blocks {
						ended[b] = true
					}
				}
			default:
				for q := range running {
					finish(q)
					break
				}
			}
			for ; seen < len(e.started); seen++ {
				running[e.started[seen]] = true
			}
			held := int64(0)
			for q := range running {
				held += e.holds(q)
			}
			if int64(len(running)) != e.running || e.running > e.requests || held != e.held || held > e.bytes {
				t.Fatalf("seed %d: %d requests on their way with %d bytes, counted %d and %d, allowed %d and %d",
					seed, len(running), held, e.running, e.held, e.requests, e.bytes)
			}
		}
		for len(running) > 0 {
			for q := range running {
				finish(q)
				break
			}
			for ; seen < len(e.started); seen++ {
				running[e.started[seen]] = true
			}
		}
		for _, b := range all {
			if !ended[b] {
				t.Fatalf("seed %d: a block was never read", seed)
			}
		}
		if e.running != 0 || e.held != 0 || e.aheadRunning != 0 || e.aheadHeld != 0 || len(e.readers) != 0 || e.turns.Len() != 0 {
			t.Fatalf("seed %d: the lane is not empty at the end", seed)
		}
	}
}
