package streamstore

import (
	"cmp"
	"container/list"
	"slices"
)

const (
	maxRequestBytes = 4 << 20   // of one read, unless a single block is larger
	mergeGap        = 512 << 10 // bytes between two blocks that one request reads along
	maxAheadQueued  = 64        // reads ahead that wait to start
)

// A lane lets reads of objects start: so many requests, so many bytes at a time. Readers take
// turns, so that one with many streams does not delay another by more than a request. Read-ahead
// comes last and leaves a quarter to reads that somebody waits for. What waits in the lane
// near by in the same object becomes one request. The caller locks.
type lane struct {
	requests, bytes         int64 // that may be in flight
	running, held           int64 // that are
	aheadRunning, aheadHeld int64 // of them read-ahead

	turns   list.List        // of *turn, the next one first; each has requests
	readers map[any]*turn    // by reader
	ahead   []*request       // read-ahead, first come first served
	start   func(r *request) // is called when r is on its way; it returns at once
}

// A turn is what one reader waits for.
type turn struct {
	reader   any
	requests []*request
	place    *list.Element
}

// A request is a read of a range of an object: of blocks, or of its index.
type request struct {
	reader   any
	object   ObjectID
	from, to int64
	blocks   []*blockLoad // by position
	index    *indexLoad   // if there are no blocks
	waiters  int          // fetches that wait for it
	state    requestState
	ahead    bool // it started as read-ahead
}

type requestState int8

const (
	waiting requestState = iota // in the turn of its reader
	waitingAhead
	onItsWay
)

func newLane(requests, bytes int64, start func(*request)) *lane {
	return &lane{requests: requests, bytes: bytes, readers: make(map[any]*turn), start: start}
}

// holds is what r counts; a single block that is larger than the lane has all of it.
func (l *lane) holds(r *request) int64 { return min(r.to-r.from, l.bytes) }

// add lets r wait for its turn.
func (l *lane) add(r *request) {
	r.state = waiting
	t := l.readers[r.reader]
	if t == nil {
		t = &turn{reader: r.reader}
		t.place = l.turns.PushBack(t)
		l.readers[r.reader] = t
	}
	t.requests = append(t.requests, r)
}

// aheadFull reports whether no more read-ahead may wait.
func (l *lane) aheadFull() bool { return len(l.ahead) >= maxAheadQueued }

// addAhead lets r wait until nothing else does.
func (l *lane) addAhead(r *request) {
	r.state = waitingAhead
	l.ahead = append(l.ahead, r)
}

// want notes that reader waits for r, be it read-ahead until now.
func (l *lane) want(r *request, reader any) {
	r.waiters++
	if r.state == waitingAhead {
		l.ahead = remove(l.ahead, r)
		r.reader = reader
		l.add(r)
	}
}

// giveUp notes that somebody waits for r no more. It reports whether r then left the lane.
func (l *lane) giveUp(r *request) bool {
	r.waiters--
	if r.waiters > 0 || r.state != waiting {
		return false
	}
	l.leave(r)
	return true
}

func remove(list []*request, r *request) []*request {
	i := slices.Index(list, r)
	return slices.Delete(list, i, i+1)
}

// leave takes a waiting request out.
func (l *lane) leave(r *request) {
	if r.state == waitingAhead {
		l.ahead = remove(l.ahead, r)
		return
	}
	t := l.readers[r.reader]
	t.requests = remove(t.requests, r)
	if len(t.requests) == 0 {
		l.turns.Remove(t.place)
		delete(l.readers, t.reader)
	}
}

// dispatch starts what may start.
func (l *lane) dispatch() {
	for l.turns.Len() > 0 {
		t := l.turns.Front().Value.(*turn)
		r := t.requests[0]
		if l.running == l.requests || l.held+l.holds(r) > l.bytes {
			return // nothing overtakes it
		}
		l.turns.MoveToBack(t.place)
		l.leave(r)
		l.merge(r)
		l.launch(r)
	}
	for len(l.ahead) > 0 {
		r := l.ahead[0]
		fits := l.aheadRunning < l.requests*3/4 && l.aheadHeld+l.holds(r) <= l.bytes*3/4
		if l.running == l.requests || l.held+l.holds(r) > l.bytes || !fits && l.aheadRunning > 0 {
			return
		}
		l.leave(r)
		r.ahead = true
		l.aheadRunning++
		l.aheadHeld += l.holds(r)
		l.launch(r)
	}
}

func (l *lane) launch(r *request) {
	r.state = onItsWay
	l.running++
	l.held += l.holds(r)
	l.start(r)
}

// done makes room for the next ones.
func (l *lane) done(r *request) {
	l.running--
	l.held -= l.holds(r)
	if r.ahead {
		l.aheadRunning--
		l.aheadHeld -= l.holds(r)
	}
	l.dispatch()
}

// merge adds to r what waits near by in the same object, of any reader and read-ahead too.
func (l *lane) merge(r *request) {
	if r.index != nil {
		return
	}
	for more := true; more; {
		more = false
		for _, other := range l.inObject(r.object) {
			from, to := min(r.from, other.from), max(r.to, other.to)
			gap := to - from - (r.to - r.from) - (other.to - other.from)
			if gap > mergeGap || to-from > maxRequestBytes || l.held+to-from > l.bytes {
				continue
			}
			l.leave(other)
			r.from, r.to, r.waiters, more = from, to, r.waiters+other.waiters, true
			for _, b := range other.blocks {
				b.request = r
			}
			r.blocks = append(r.blocks, other.blocks...)
		}
	}
	slices.SortFunc(r.blocks, func(a, b *blockLoad) int { return cmp.Compare(a.entry.Position, b.entry.Position) })
}

// inObject returns the reads of blocks of an object that wait.
func (l *lane) inObject(object ObjectID) (found []*request) {
	for e := l.turns.Front(); e != nil; e = e.Next() {
		for _, r := range e.Value.(*turn).requests {
			if r.object == object && r.index == nil {
				found = append(found, r)
			}
		}
	}
	for _, r := range l.ahead {
		if r.object == object && r.index == nil {
			found = append(found, r)
		}
	}
	return found
}
