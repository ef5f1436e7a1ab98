package broker

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"golang.org/x/sync/semaphore"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

const (
	// A frame is read in stages: this much, then up to 16 times what has arrived, so
	// that a length that is only announced costs its peer bytes before it costs memory.
	frameStage       = 64 << 10
	frameStageFactor = 16
	// A peer that does not send or take this much, or the rest of a message, within
	// StallTimeout is stalled; of a larger request it must send a part in so many, so that none holds
	// memory for much longer than that many timeouts.
	progressBytes = 256 << 10
	progressParts = 16
	// Answers below this are not counted in Broker.ansMemory.
	smallAnswer = 4 << 10
)

// conn is one connection.
type conn struct {
	b        *Broker
	listener *Listener
	nc       net.Conn
	in       *bufio.Reader
	peer     string
	authBy   time.Time // when the peer must have proved who it is
	session  session   // of handle

	authenticated atomic.Bool // the peer may ask for what needs it
	raw           atomic.Bool // the next frame is a token of SASL, without a header

	frames    chan frame                       // read → handle
	unhandled atomic.Int64                     // frames read that handle has not released
	freed     chan struct{}                    // from handle when it has released one; cap 1
	answers   chan *answer                     // handle → write; its capacity bounds the requests in flight
	handled   chan struct{}                    // closed when handle has ended
	pending   atomic.Int64                     // requests read and not yet answered
	cold      *coldReads                       // of handle
	fetches   *fetchSession                    // of handle; nil for none
	shares    map[shareMemberKey]*shareSession // of handle

	ctx    context.Context // ends when the peer is gone or the broker begins to stop
	cancel context.CancelFunc
}

// frame is the bytes of one request behind its length.
type frame struct {
	data     []byte
	size     int64 // of the request
	rest     int64 // of size, what is on the connection still, for the handler to read; see produceBody
	memory   *semaphore.Weighted
	reserved int64 // of memory
	b        *Broker
	large    int64 // of reserved, what counts in Broker.largeMemory

	arrived int64         // bytes since the peer last made progress
	stalled time.Duration // for which reads have waited since then
}

// release gives the memory back, the first time.
func (f *frame) release() {
	f.memory.Release(f.reserved)
	f.b.largeMemory.Release(f.large)
	f.data, f.reserved, f.large = nil, 0, 0
}

// answer is a place in the order of a connection's answers.
type answer struct {
	req     *request
	bufs    []byteSlice // the frame of the answer; nil for none
	produce *produce    // if not nil, waited for and encoded when its turn comes
	release func()      // nil, or called when bufs were written
	last    bool        // the connection is closed after it
}

type byteSlice = []byte

func newConn(b *Broker, l *Listener, nc net.Conn) *conn {
	peer := nc.RemoteAddr().String()
	if l.TLS != nil {
		nc = tls.Server(nc, l.TLS)
	}
	c := &conn{
		b: b, listener: l, nc: nc, in: bufio.NewReader(nc), peer: peer,
		frames:  make(chan frame, 1),
		freed:   make(chan struct{}, 1),
		answers: make(chan *answer, b.cfg.MaxInFlight),
		handled: make(chan struct{}),
		shares:  make(map[shareMemberKey]*shareSession),
	}
	c.ctx, c.cancel = context.WithCancel(b.ctx)
	c.cold = newColdReads(c)
	return c
}

// serve runs the connection and returns when its three goroutines, and the reads of objects
// for it, have ended.
func (c *conn) serve() {
	if err := c.secure(); err != nil {
		if reason := c.readError(err); reason != nil {
			c.closing(reason)
		}
		c.nc.Close()
		c.cancel()
		return
	}
	readDone, writeDone := make(chan struct{}), make(chan struct{})
	go func() { defer close(readDone); c.read() }()
	go func() { defer close(writeDone); c.write() }()
	c.handle()
	<-writeDone
	c.nc.Close() // ends read where handle ended first
	<-readDone
	for f := range c.frames {
		f.release()
	}
	c.cancel()
	c.cold.work.Wait()
}

// stop makes the connection take no further request. Those that were read are answered.
func (c *conn) stop() {
	c.cancel()
	c.nc.SetReadDeadline(time.Unix(1, 0))
}

// closing logs why the connection is closed by this side.
func (c *conn) closing(err error) {
	c.b.m.protocolErrors.Inc()
	c.b.warn.Warn("connection closed", "peer", c.peer, "reason", err)
}

// read passes frames to handle until the peer is gone, stalls, or sends what is no frame.
func (c *conn) read() {
	defer close(c.frames)
	defer c.cancel()
	for {
		f, err := c.readFrame()
		if err != nil {
			if reason := c.readError(err); reason != nil {
				c.closing(reason)
			}
			return
		}
		c.pending.Add(1)
		c.unhandled.Add(1)
		c.b.m.bytesIn.Add(float64(f.size + 4))
		select {
		case c.frames <- f:
		case <-c.handled:
			f.release()
			return
		}
		if f.rest > 0 && c.awaitHandled() != nil { // until then it is the handler that reads
			return
		}
	}
}

// readError returns nil for what is no fault of the peer.
func (c *conn) readError(err error) error {
	var ne net.Error
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "local error": // of crypto/tls: what the peer sent is no TLS
		return err
	case c.b.stopping.Load(), errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), errors.Is(err, io.ErrClosedPipe), errors.Is(err, errIdle), errors.Is(err, context.Canceled):
		return nil
	case errors.As(err, &ne) && !ne.Timeout(): // reset by peer
		return nil
	}
	return err
}

var errIdle = errors.New("idle")

func (c *conn) readFrame() (frame, error) {
	if err := c.awaitRequest(); err != nil {
		return frame{}, err
	}
	head, err := c.in.Peek(4)
	if err != nil {
		return frame{}, fmt.Errorf("a request ends in its length: %w", noEOF(err))
	}
	size := int64(int32(binary.BigEndian.Uint32(head)))
	least, most := c.frameBounds()
	if size < least || size > most {
		return frame{}, fmt.Errorf("request of %d bytes (0x%x): the limit is %d, the least %d; is this a Kafka client, and does it use TLS just as the listener %s does?", size, head, most, least, c.listener.Name)
	}
	c.in.Discard(4)
	f := frame{b: c.b, memory: c.b.reqMemory, size: size, rest: size}
	if !c.authenticated.Load() && !invariant.Off("kafka-auth-memory") {
		f.memory = c.b.authMemory
	}
	f.data, err = c.readOn(&f, nil, min(size, frameStage))
	if err == nil && f.rest > 0 && !(size > streamed && c.streams(f.data)) {
		if size > frameAlone && !invariant.Off("large-requests-one-by-one") {
			err = c.awaitHandled()
		}
		if err == nil {
			f.data, err = c.readOn(&f, f.data, size)
		}
	}
	if err != nil {
		f.release()
		return frame{}, err
	}
	return f, nil
}

// readOn reads so much of a request that f.data holds n bytes: those of have, a part of f.data, and what follows them. It
// may read somewhat more, where n is small. It returns all that it then has.
func (c *conn) readOn(f *frame, have []byte, n int64) ([]byte, error) {
	_, most := c.frameBounds()
	want := min(max(n, frameStage), int64(len(have))+f.rest)
	for int64(len(have)) < n {
		stage := min(want, max(int64(cap(f.data)), frameStage, int64(len(have))*frameStageFactor))
		data := f.data[:cap(f.data)]
		if stage > int64(len(data)) {
			room := stage
			if of := frameRoom(stage); stage == want && of <= most {
				room = of
			}
			if err := c.reserve(f, room-int64(len(data))); err != nil {
				return nil, err
			}
			data = c.b.frames.get(stage, room)
		}
		at := copy(data, have)
		if stage > int64(cap(f.data)) {
			c.b.frames.put(f.data)
			f.data = data
		}
		got, err := c.readAtLeast(f, data[at:stage], int(min(n, stage))-at)
		f.rest -= int64(got)
		if err != nil {
			return nil, fmt.Errorf("request of %d bytes stops after %d: %w", f.size, f.size-f.rest, noEOF(err))
		}
		have = data[:at+got]
	}
	return have, nil
}

// awaitHandled returns when the requests before have been handled. Of large ones a connection has one in memory, and not
// three: one that is handled, one that waits for it, and one that is read. The rest waits as well in the buffers of the
// sockets, for its turn comes no sooner.
func (c *conn) awaitHandled() error {
	for c.unhandled.Load() > 0 {
		select {
		case <-c.freed:
		case <-c.handled:
			return context.Canceled
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		}
	}
	return nil
}

// reserve lets f have so many more bytes. Who has some already does not wait for long: all others that read might do
// the same, and none go on. Large requests, whose peers have sent a part of what is reserved, leave some to small ones.
func (c *conn) reserve(f *frame, more int64) error {
	large := f.reserved + more - max(f.reserved, frameStage)
	if large < 0 || invariant.Off("large-requests-leave-room") {
		large = 0
	}
	ctx := c.ctx
	if f.reserved > 0 && !invariant.Off("request-memory-no-deadlock") {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.b.cfg.StallTimeout)
		defer cancel()
	}
	var err error
	if large > 0 { // who wants none does not queue behind those who do
		err = c.b.largeMemory.Acquire(ctx, large)
	}
	if err == nil {
		f.large += large
		err = f.memory.Acquire(ctx, more)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("request of %d bytes: no memory for the rest of it within %v, %d bytes are for all (max-request-memory)", f.size, c.b.cfg.StallTimeout, c.b.cfg.MaxRequestMemory)
	}
	if err == nil {
		f.reserved += more
	}
	return err
}

// readAtLeast reads into p until it has so many bytes. Of the request, in whatever pieces it is read, progressBytes or a part in
// progressParts must come for each StallTimeout that reads wait.
func (c *conn) readAtLeast(f *frame, p []byte, least int) (n int, err error) {
	progress := max(progressBytes, f.size/progressParts)
	for n < least && err == nil {
		part := p[n:min(int64(len(p)), int64(n)+progress-f.arrived)]
		more := min(least-n, len(part))
		waits := c.in.Buffered() < more
		began := time.Now()
		if waits {
			c.nc.SetReadDeadline(c.readDeadline(c.b.cfg.StallTimeout - f.stalled))
			if c.b.stopping.Load() { // the deadline above may have come after that of Close
				c.stop()
			}
		}
		var m int
		m, err = io.ReadAtLeast(c.in, part, more)
		n += m
		f.arrived += int64(m)
		if waits && !invariant.Off("stall-of-the-request") {
			f.stalled += time.Since(began)
		}
		if f.arrived >= progress {
			f.arrived, f.stalled = 0, 0
		}
	}
	return n, err
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// awaitRequest returns when the first byte of a request is there.
func (c *conn) awaitRequest() error {
	for c.in.Buffered() == 0 {
		c.nc.SetReadDeadline(c.readDeadline(c.b.cfg.IdleTimeout))
		if c.b.stopping.Load() {
			return errIdle
		}
		_, err := c.in.Peek(1)
		var ne net.Error
		if errors.As(err, &ne) && ne.Timeout() {
			if !c.authenticated.Load() && !c.b.stopping.Load() {
				return fmt.Errorf("not authenticated within %v", c.b.cfg.AuthTimeout)
			}
			if c.pending.Load() > 0 && !c.b.stopping.Load() {
				continue
			}
			return errIdle
		}
		if err != nil {
			return err
		}
	}
	if c.in.Buffered() < 4 { // the length itself must not trickle
		c.nc.SetReadDeadline(c.readDeadline(c.b.cfg.StallTimeout))
	}
	return nil
}

// handle handles requests in order until read has ended or a request cannot be understood.
func (c *conn) handle() {
	defer c.endSession()
	defer c.endShareSessions()
	defer close(c.answers)
	defer close(c.handled)
	for f := range c.frames {
		a, err := c.handleFrame(&f)
		for f.rest > 0 && err == nil { // bytes behind the message mean nothing
			_, err = c.readOn(&f, nil, min(f.rest, frameStage))
		}
		if err == nil && a.produce != nil {
			c.b.frames.put(f.data) // its records were copied when they were appended
		}
		f.release()
		if err != nil { // before read may go on: it does not know where the next request begins
			if reason := c.readError(err); reason != nil {
				c.closing(reason)
			}
			return
		}
		c.unhandled.Add(-1)
		select {
		case c.freed <- struct{}{}:
		default:
		}
		c.answers <- a // write drains it to the end, also when the peer is gone
		if a.last {
			return
		}
		c.muted(a.req.mute)
	}
}

func (c *conn) handleFrame(f *frame) (*answer, error) {
	if c.raw.Load() {
		return c.rawToken(c.ctx, f.data)
	}
	r, err := parseRequest(c.b.apis, f.data)
	if err != nil {
		return nil, err
	}
	r.conn, r.frame, r.start = c, f, time.Now()
	if err := c.admit(r); err != nil {
		return nil, fmt.Errorf("%s v%d: %w", r.api.name(), r.version, err)
	}
	a, err := c.dispatch(r)
	if err == nil {
		a.req, r.body, r.frame = r, nil, nil // what waits for its turn does not hold the frame
		err = c.reserveAnswer(a)
	}
	if err != nil {
		return nil, fmt.Errorf("%s v%d: %w", r.api.name(), r.version, err)
	}
	return a, nil
}

// reserveAnswer accounts for an answer that may wait for long behind a peer that does not
// read. Small ones are bounded by their number, fetches have reserved before they read.
func (c *conn) reserveAnswer(a *answer) error {
	size := int64(0)
	for _, b := range a.bufs {
		size += int64(len(b))
	}
	if a.produce != nil {
		size = int64(a.produce.places) * produceResultBytes
	}
	if a.release != nil || size < smallAnswer {
		return nil
	}
	size = min(size, c.b.cfg.MaxAnswerMemory)
	if err := c.b.ansMemory.Acquire(c.b.ctx, size); err != nil {
		return err
	}
	a.release = func() { c.b.ansMemory.Release(size) }
	return nil
}

// dispatch calls the handler of the request and turns its panic into an answer.
func (c *conn) dispatch(r *request) (a *answer, err error) {
	partly := r.frame.rest > 0 // then the body is not in memory any more
	defer r.doneDecoding()
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		c.b.m.panics.Inc()
		c.b.log.Error("panic in a request", "api", r.api.name(), "version", r.version, "peer", c.peer, "panic", p, "stack", string(debug.Stack()))
		resp, ok := errorResponse(r, kerr.UnknownServerError.Code)
		if !ok || partly {
			a, err = nil, errors.New("panic, and the request has no place for an error in its answer")
			return
		}
		a, err = r.reply(resp), nil
	}()
	return r.api.handle(c.b.ctx, c.b, r)
}

// write writes the answers in order. After a write fails it only takes them.
func (c *conn) write() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	broken := false
	for a := range c.answers {
		err := a.await(timer)
		if err == nil && !broken {
			err = c.writeAnswer(a)
		}
		if a.release != nil {
			a.release()
		}
		c.pending.Add(-1)
		c.b.m.observe(a.req)
		if err != nil && !broken {
			broken = true
			if reason := c.readError(err); reason != nil {
				c.closing(reason)
			}
			c.nc.Close() // ends read, and so handle
		}
	}
}

// await waits for the answer of a produce and encodes it. An error closes the connection.
func (a *answer) await(timer *time.Timer) (err error) {
	if a.produce == nil {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return a.produce.answer(a, timer)
}

func (c *conn) writeAnswer(a *answer) error {
	if len(a.bufs) == 0 {
		return nil
	}
	size := 0
	for _, b := range a.bufs {
		size += len(b)
	}
	binary.BigEndian.PutUint32(a.bufs[0], uint32(size-4))
	for bufs := a.bufs; len(bufs) > 0; {
		part, rest := cut(bufs, progressBytes)
		c.nc.SetWriteDeadline(time.Now().Add(c.b.cfg.StallTimeout))
		n, err := (*net.Buffers)(&part).WriteTo(c.nc)
		c.b.m.bytesOut.Add(float64(n))
		if err != nil {
			return fmt.Errorf("write answer to %s: %w", a.req.api.name(), err)
		}
		bufs = rest
	}
	return nil
}

// cut splits bufs so that the first part has n bytes, or all.
func cut(bufs [][]byte, n int) (first, rest [][]byte) {
	for i, b := range bufs {
		if len(b) > n {
			first = append(bufs[:i:i], b[:n])
			bufs[i] = b[n:]
			return first, bufs[i:]
		}
		n -= len(b)
	}
	return bufs, nil
}
