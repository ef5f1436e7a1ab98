package sim

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/streamstore"
)

// serve starts the clients of the life.
func (l *life) serve() {
	l.log("serves")
	l.clients.Go(l.watch)
	for i := range l.n.w.plan.clients {
		r := rand.New(rand.NewPCG(l.n.w.seed, uint64(l.n.id)<<40|uint64(l.number)<<8|uint64(i)))
		l.clients.Go(func() { l.client(r) })
	}
}

// client works until the life stops or is fenced.
func (l *life) client(r *rand.Rand) {
	for {
		select {
		case <-l.stopping:
			return
		case <-l.store.Fenced():
			return
		case <-time.After(time.Duration(r.Int64N(int64(l.n.w.plan.think)))):
		}
		l.n.w.ops.Add(1)
		l.operate(r)
	}
}

// operate does one thing at random.
func (l *life) operate(r *rand.Rand) {
	h := l.anyHandle(r)
	op := r.IntN(100)
	switch {
	case op < 8 || h == nil:
		l.openStreams(r)
	case op < 50:
		h.append(r)
	case op < 75:
		h.fetch(r)
	case op < 80:
		h.find(r)
	case op < 87:
		h.trim(r)
	case op < 93:
		h.close(r)
	case op == 93:
		h.destroy()
	case op == 94:
		l.misuse(r)
	case op == 95 && r.IntN(2) == 0:
		l.rescue(r)
	case op == 95:
		_, err := l.store.Sweep(l.ctx)
		l.check(err, "sweep")
	case op < 98:
		_, err := l.store.Clean(l.ctx)
		l.check(err, "clean")
	default:
		err := l.store.Compact(l.ctx)
		for _, e := range []error{streamstore.ErrConflict, streamstore.ErrStreamNotExist, streamstore.ErrOffsetOutOfRange, objectstore.ErrNotFound} {
			if errors.Is(err, e) {
				return // the stream was moved or destroyed meanwhile
			}
		}
		l.check(err, "compact")
	}
}

// anyHandle draws one of the open handles.
func (l *life) anyHandle(r *rand.Rand) *handle {
	var open []*handle
	for _, s := range l.n.w.all() { // in order
		l.mu.Lock()
		h := l.handles[s.id]
		l.mu.Unlock()
		if h != nil {
			open = append(open, h)
		}
	}
	if len(open) == 0 {
		return nil
	}
	return open[r.IntN(len(open))]
}

// lock makes this client the one that opens and closes streams; false if the life ends.
func (l *life) lock() bool {
	select {
	case l.control <- struct{}{}:
		return true
	case <-l.ctx.Done():
		return false
	}
}

func (l *life) unlock() { <-l.control }

// openStreams opens some of the streams that this node shall have, again if they are open, or
// makes new ones. Now and then it asks for one of another node.
func (l *life) openStreams(r *rand.Rand) {
	if !l.lock() {
		return
	}
	defer l.unlock()
	w := l.n.w
	own, living := w.at(l.n.id), 0
	for _, s := range w.all() {
		if _, gone := s.where(); !gone {
			living++
		}
	}
	if living < w.plan.streams {
		n := 1 + r.IntN(2)
		first, err := l.store.CreateStreams(l.ctx, n)
		if err != nil {
			l.check(err, "create streams")
			return
		}
		l.log("created streams %d to %d", first, first+streamstore.StreamID(n)-1)
		w.addStreams(first, n, l.n.id)
		own = w.at(l.n.id)
	}
	if r.IntN(20) == 0 {
		own = w.all()
	}
	r.Shuffle(len(own), func(i, j int) { own[i], own[j] = own[j], own[i] })
	if len(own) > 0 {
		l.openThese(own[:1+r.IntN(min(len(own), 3))], r.IntN(2) == 0)
	}
}

// openThese opens the streams with new epochs; a lost answer is asked for again with repeat set.
func (l *life) openThese(streams []*stream, repeat bool) {
	requests := make([]streamstore.OpenRequest, len(streams))
	trimmed := make([]int64, len(streams))
	var old []*handle
	for i, s := range streams {
		requests[i] = streamstore.OpenRequest{ID: s.id, Epoch: s.nextEpoch()}
		trimmed[i] = s.trimmedTo()
		if h := l.drop(s); h != nil {
			old = append(old, h)
		}
	}
	opened, err := l.store.OpenStreams(l.ctx, requests)
	if repeat && errors.Is(err, errAway) {
		opened, err = l.store.OpenStreams(l.ctx, requests)
	}
	l.log("opened %v: %v", requests, err)
	if err != nil {
		for _, s := range streams {
			if _, gone := s.where(); gone && errors.Is(err, streamstore.ErrStreamNotExist) {
				return
			}
		}
		if errors.Is(err, streamstore.ErrConflict) || errors.Is(err, streamstore.ErrStreamFenced) {
			return // another node has one of them, or was faster
		}
		l.check(err, "open streams")
		return
	}
	l.retire(old...)
	for i, st := range opened {
		s, epoch := streams[i], requests[i].Epoch
		if err := s.opened(opening{epoch, st.ConfirmOffset(), l.name}, st.StartOffset(), trimmed[i]); err != nil {
			l.n.w.fail("%v", err)
		}
		s.move(l.n.id)
		h := &handle{l: l, s: s, st: st, epoch: epoch, turn: make(chan struct{}, 1), trims: make(chan struct{}, 1), next: st.ConfirmOffset()}
		l.mu.Lock()
		l.handles[s.id] = h
		l.mu.Unlock()
	}
}

// drop takes the handle of a stream, if it is open, which is closed by what comes next.
func (l *life) drop(s *stream) *handle {
	l.mu.Lock()
	h := l.handles[s.id]
	delete(l.handles, s.id)
	l.mu.Unlock()
	if h != nil {
		h.mu.Lock()
		h.closing = true
		h.mu.Unlock()
	}
	return h
}

// retire keeps handles of which nothing may come any more.
func (l *life) retire(old ...*handle) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stale = append(l.stale, old...)
	l.stale = l.stale[max(0, len(l.stale)-5):]
}

// misuse uses a handle that was closed, or whose stream was opened anew: it must not harm.
func (l *life) misuse(r *rand.Rand) {
	if !l.lock() {
		return
	}
	defer l.unlock()
	l.mu.Lock()
	if len(l.stale) == 0 {
		l.mu.Unlock()
		return
	}
	h := l.stale[r.IntN(len(l.stale))]
	l.mu.Unlock()
	start, confirm := h.st.StartOffset(), h.st.ConfirmOffset()
	var err error
	what := pick(r, "append", "trim", "close")
	switch what {
	case "append":
		_, err = h.st.Append(l.ctx, streamstore.RecordBatch{Count: 1, Payload: []byte("stale")}, func(error) {})
	case "trim":
		if start == confirm {
			return
		}
		err = h.st.Trim(l.ctx, confirm)
	case "close":
		if err = h.st.Close(l.ctx); err == nil {
			return // it was closed before
		}
	}
	if err == nil {
		l.n.w.fail("%s: %s of stream %d with epoch %d, which is stale, succeeds", l.name, what, h.s.id, h.epoch)
	}
	h.check(err, what)
}

// check fails the world if an error is explained neither by a fault nor by the closing of the handle.
func (h *handle) check(err error, what string) {
	if err == nil {
		return
	}
	h.mu.Lock()
	closing := h.closing
	h.mu.Unlock()
	if closing {
		for _, e := range []error{streamstore.ErrStreamClosed, streamstore.ErrStreamFenced, streamstore.ErrStreamNotExist} {
			if errors.Is(err, e) {
				return
			}
		}
	}
	h.l.check(err, "%s, stream %d, epoch %d", what, h.s.id, h.epoch)
}

func (h *handle) append(r *rand.Rand) {
	select {
	case h.turn <- struct{}{}:
	case <-h.l.ctx.Done():
		return
	}
	defer func() { <-h.turn }()
	for range 1 + r.IntN(8) {
		b := h.s.newBatch(r, attempt{h.epoch, h.seq}, h.next, h.l.n.w.plan.payload)
		h.s.attempt(b)
		given := bytes.Clone(b.Payload)
		base, err := h.st.Append(h.l.ctx, streamstore.RecordBatch{Count: b.Count, MaxTimestamp: b.MaxTimestamp, Payload: given}, func(err error) { h.done(b, err) })
		clear(given) // Append has copied it
		if err != nil {
			h.s.withdraw(b)
			h.check(err, "append")
			return
		}
		if base != h.next {
			h.l.n.w.fail("%s: append to stream %d, epoch %d: offset %d, want %d", h.l.name, h.s.id, h.epoch, base, h.next)
		}
		h.seq, h.next = h.seq+1, b.End()
	}
}

// done is the answer to an append.
func (h *handle) done(b *batch, err error) {
	w := h.l.n.w
	h.mu.Lock()
	if b.seq != h.answered || err == nil && h.failed {
		w.fail("%s: stream %d: answer %v to %s, after %d answers, one of them an error: %t", h.l.name, h.s.id, err, b, h.answered, h.failed)
	}
	h.answered++
	h.failed = h.failed || err != nil
	h.mu.Unlock()
	if err != nil {
		h.check(err, "answer to an append")
		return
	}
	w.acked.Add(1)
	if err := h.s.acknowledged(b); err != nil {
		w.fail("%s: %v", h.l.name, err)
	}
}

func (h *handle) fetch(r *rand.Rand) {
	start, confirm := h.st.StartOffset(), h.st.ConfirmOffset()
	from := start
	if confirm > start {
		from += r.Int64N(confirm - start)
	}
	if at := h.cursor.Load(); r.IntN(2) == 0 && at >= start && at < confirm {
		from = at // as a consumer does
	}
	to := from
	if confirm > from {
		to += 1 + r.Int64N(confirm-from)
	}
	maxBytes := r.IntN(4 * h.l.n.w.plan.payload)
	got, err := h.st.Fetch(h.l.ctx, from, to, maxBytes)
	if err != nil {
		if !errors.Is(err, streamstore.ErrOffsetOutOfRange) || !h.s.mayStartAbove(from) {
			h.check(err, "fetch")
		}
		return
	}
	if err := h.s.read(from, got); err != nil {
		h.l.n.w.fail("%s: fetch [%d, %d): %v", h.l.name, from, to, err)
	}
	if (len(got) == 0) != (from == to) {
		h.l.n.w.fail("%s: fetch [%d, %d) of stream %d: %d batches", h.l.name, from, to, h.s.id, len(got))
	}
	size := 0
	for i, b := range got {
		if size += len(b.Payload); b.BaseOffset >= to || i > 0 && size > maxBytes {
			h.l.n.w.fail("%s: fetch [%d, %d) of %d bytes of stream %d: too much, batch %d at %d", h.l.name, from, to, maxBytes, h.s.id, i, b.BaseOffset)
		}
		h.cursor.Store(b.End())
	}
	if start > 0 && r.IntN(10) == 0 {
		if got, err := h.st.Fetch(h.l.ctx, start-1, confirm, 1); !errors.Is(err, streamstore.ErrOffsetOutOfRange) {
			h.l.n.w.fail("%s: fetch below the start %d of stream %d: %d batches, %v", h.l.name, start, h.s.id, len(got), err)
		}
	}
}

// find looks for a timestamp: nothing that it passes may have it.
func (h *handle) find(r *rand.Rand) {
	ts := r.Int64N(1_100)
	start, confirm := h.st.StartOffset(), h.st.ConfirmOffset()
	first := h.s.firstWith(start, confirm, ts)
	offset, found, err := h.st.FindTimestamp(h.l.ctx, ts)
	if err != nil {
		if !errors.Is(err, streamstore.ErrOffsetOutOfRange) || !h.s.mayStartAbove(start) {
			h.check(err, "find timestamp")
		}
		return
	}
	if first != nil && h.st.StartOffset() == start && (!found || offset > first.BaseOffset) {
		h.l.n.w.fail("%s: stream %d: timestamp %d found at %d (%t), and %s has %d", h.l.name, h.s.id, ts, offset, found, first, first.MaxTimestamp)
	}
}

func (h *handle) trim(r *rand.Rand) {
	select {
	case h.trims <- struct{}{}:
	case <-h.l.ctx.Done():
		return
	}
	defer func() { <-h.trims }()
	start, confirm := h.st.StartOffset(), h.st.ConfirmOffset()
	to := start + r.Int64N(confirm-start+1)
	if to == start {
		return
	}
	h.s.trim(to, false)
	err := h.st.Trim(h.l.ctx, to)
	if err == nil {
		h.l.n.w.trimmed(h.l, h.s, to)
	}
	h.l.log("trimmed stream %d to %d: %v", h.s.id, to, err)
	h.check(err, "trim")
}

// close closes the stream, and may give it to another node.
func (h *handle) close(r *rand.Rand) {
	if !h.l.lock() {
		return
	}
	defer h.l.unlock()
	h.l.drop(h.s)
	err := h.st.Close(h.l.ctx)
	if err == nil {
		h.l.retire(h)
	}
	h.l.log("closed stream %d, epoch %d: %v", h.s.id, h.epoch, err)
	h.check(err, "close stream")
	if err == nil && r.IntN(2) == 0 {
		h.s.move(h.l.n.w.nodes[r.IntN(len(h.l.n.w.nodes))].id)
	}
}

func (h *handle) destroy() {
	if !h.l.lock() {
		return
	}
	defer h.l.unlock()
	h.s.destroy()
	h.l.drop(h.s)
	err := h.st.Destroy(h.l.ctx)
	h.l.log("destroyed stream %d: %v", h.s.id, err)
	h.check(err, "destroy")
}

// rescue recovers another node, mostly one that is away.
func (l *life) rescue(r *rand.Rand) {
	w := l.n.w
	other := w.nodes[r.IntN(len(w.nodes))]
	if other == l.n || other.serves() && r.IntN(4) > 0 {
		return
	}
	other.replace() // its lives end now
	_, err := l.store.Recover(l.ctx, other.id, nil)
	l.log("recovered node %d: %v", other.id, err)
	switch {
	case err == nil && other.wal == streamstore.WALFile:
		w.fail("%s recovered node %d, whose WAL is in files", l.name, other.id)
	case err == nil:
		for _, s := range w.at(other.id) {
			if r.IntN(2) == 0 {
				s.move(l.n.id)
			}
		}
	case other.wal == streamstore.WALFile, errors.Is(err, streamstore.ErrNodeNotExist), errors.Is(err, streamstore.ErrNodeFenced):
	default:
		l.check(err, "recover node %d", other.id)
	}
}
