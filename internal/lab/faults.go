package lab

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// A Fault is what a proxy does to the calls that match. The shares are probabilities, taken
// in their order.
type Fault struct {
	Name     string
	Matches  func(call string) bool // all if nil
	Reset    float64                // not done; the connection is reset
	Refuse   float64                // not done; the server says that it cannot now
	Conflict float64                // not done; the server says that somebody else was faster
	Lose     float64                // done, and the connection is reset instead of an answer
	Break    float64                // done, and a gateway says that it knows no answer
	Hold     float64                // a gateway gives up, and it is done up to Late after
	Late     time.Duration
	Slow     time.Duration // what is done otherwise is done up to this late
	Trickle  time.Duration // and its answer takes up to this long to arrive, piece by piece
}

type effect int

const (
	passed effect = iota
	reset
	refused
	conflicting
	lost
	broken
	held
)

var effectNames = [...]string{"passed on", "reset", "refused", "told of a conflict", "with the answer lost", "done behind a bad gateway", "held"}

// Faults decides what happens to the calls of a proxy: by the seed, the call and how often
// it came before.
type Faults struct {
	seed  uint64
	tasks sync.WaitGroup // calls that are held

	mu     sync.Mutex
	now    Fault                   // guarded by mu
	seen   map[string]uint64       // guarded by mu; calls so far
	counts [len(effectNames)]int64 // guarded by mu
}

func NewFaults(seed uint64) *Faults { return &Faults{seed: seed, seen: map[string]uint64{}} }

// Set is what happens from now on; the zero Fault is none.
func (f *Faults) Set(now Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = now
}

// String counts the calls by what happened to them.
func (f *Faults) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := "calls:"
	for i, n := range f.counts {
		if n > 0 {
			s += fmt.Sprintf(" %d %s", n, effectNames[i])
		}
	}
	return s
}

// draw says what happens to a call, after which wait, and how slowly it is answered.
func (f *Faults) draw(call string) (do effect, wait, trickle time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, n := f.now, f.seen[call]
	f.seen[call]++
	if now.Matches != nil && !now.Matches(call) {
		now = Fault{}
	}
	hash := fnv.New64a()
	io.WriteString(hash, call)
	random := rand.New(rand.NewPCG(f.seed^hash.Sum64(), n))
	within := func(most time.Duration) time.Duration { return time.Duration(random.Float64() * float64(most)) }
	for i, share := range []float64{now.Reset, now.Refuse, now.Conflict, now.Lose, now.Break, now.Hold} {
		if random.Float64() < share {
			do = effect(i + 1)
			break
		}
	}
	f.counts[do]++
	switch do {
	case passed:
		return do, within(now.Slow), within(now.Trickle)
	case held:
		return do, within(now.Late), 0
	}
	return do, 0, 0
}

// wait returns after d, or when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// A Dialect is how calls of an HTTP server are named, and how it refuses.
type Dialect struct {
	Call             func(r *http.Request) string // "METHOD URL" if nil
	Refuse, Conflict func(w http.ResponseWriter)  // 503 and 409 without a body if nil
}

// Proxy starts a proxy in front of the HTTP server at target, and returns its URL.
func (f *Faults) Proxy(t testing.TB, target string, d Dialect) (url string) {
	t.Helper()
	url = Proxy(t, target, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		call := r.Method + " " + r.URL.String()
		if d.Call != nil {
			call = d.Call(r)
		}
		do, later, trickle := f.draw(call)
		switch do {
		case reset:
			resetConnection(w)
		case refused:
			answer(w, r, d.Refuse, http.StatusServiceUnavailable)
		case conflicting:
			answer(w, r, d.Conflict, http.StatusConflict)
		case lost:
			next.ServeHTTP(httptest.NewRecorder(), r)
			resetConnection(w)
		case broken:
			next.ServeHTTP(httptest.NewRecorder(), r)
			w.WriteHeader(http.StatusBadGateway)
		case held:
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			late := r.Clone(context.WithoutCancel(r.Context()))
			late.Body = io.NopCloser(bytes.NewReader(body))
			f.tasks.Go(func() {
				wait(late.Context(), later)
				next.ServeHTTP(httptest.NewRecorder(), late)
			})
			w.WriteHeader(http.StatusGatewayTimeout)
		default:
			wait(r.Context(), later)
			if trickle > 0 {
				w = &tricklingWriter{w, r.Context(), trickle}
			}
			next.ServeHTTP(w, r)
		}
	})
	t.Cleanup(f.tasks.Wait)
	return url
}

func answer(w http.ResponseWriter, r *http.Request, with func(http.ResponseWriter), status int) {
	io.Copy(io.Discard, r.Body)
	if with == nil {
		w.WriteHeader(status)
		return
	}
	with(w)
}

// tricklingWriter writes each piece of a body in smaller ones.
type tricklingWriter struct {
	http.ResponseWriter
	ctx  context.Context
	over time.Duration
}

func (w *tricklingWriter) Write(p []byte) (n int, err error) {
	return trickle(w.ctx, w.over, p, func(p []byte) (int, error) {
		n, err := w.ResponseWriter.Write(p)
		http.NewResponseController(w.ResponseWriter).Flush()
		return n, err
	})
}

const pieces = 8

// trickle writes p in pieces over a time.
func trickle(ctx context.Context, over time.Duration, p []byte, write func(p []byte) (int, error)) (n int, err error) {
	for i := range pieces {
		end := len(p) * (i + 1) / pieces
		m, err := write(p[n:end])
		n += m
		if err != nil {
			return n, err
		}
		wait(ctx, over/pieces)
	}
	return n, nil
}

// resetConnection ends a connection without an answer.
func resetConnection(w http.ResponseWriter) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	cut(c)
}

func cut(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	c.Close()
}
