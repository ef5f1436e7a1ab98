package catalogtest

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
)

// A Proxy stands between one client and an HTTP catalog, and breaks commits.
type Proxy struct {
	// URI of the catalog through the proxy.
	URI string
	// IsCommit tells the requests that the faults are for.
	IsCommit func(r *http.Request, body []byte) bool
	// Conflict answers a commit as the catalog does when another came first.
	Conflict func(w http.ResponseWriter)
	// Modify, if set, changes the body of every answer.
	Modify func(body []byte) []byte

	next  atomic.Int32
	storm atomic.Int32
	held  chan func()
}

const (
	loseAnswer  = 1 + iota // the server commits, and the connection breaks
	badGateway             // the server commits, and 502 is answered
	loseRequest            // 503, and the server sees nothing
	holdRequest            // 504 now, delivered when the test says so
	sendTwice              // the answer to the second of two deliveries
)

// NewProxy starts a proxy in front of target, a URL, until the test ends.
func NewProxy(t *testing.T, target string) *Proxy {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{held: make(chan func(), 1)}
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: u.Scheme, Host: u.Host})
	forward.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	forward.ModifyResponse = func(r *http.Response) error {
		if p.Modify == nil || r.Header.Get("Content-Encoding") != "" {
			return nil
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		body = p.Modify(body)
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		r.Header.Del("Content-Length")
		return nil
	}
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		deliver := func(w http.ResponseWriter) {
			again := r.Clone(context.WithoutCancel(r.Context()))
			again.Body = io.NopCloser(bytes.NewReader(body))
			forward.ServeHTTP(w, again)
		}
		if !p.IsCommit(r, body) {
			deliver(w)
			return
		}
		if p.storm.Add(-1) >= 0 {
			p.Conflict(w)
			return
		}
		switch p.next.Swap(0) {
		case loseAnswer:
			deliver(httptest.NewRecorder())
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				conn.Close()
			}
		case badGateway:
			deliver(httptest.NewRecorder())
			w.WriteHeader(http.StatusBadGateway)
		case loseRequest:
			w.WriteHeader(http.StatusServiceUnavailable)
		case holdRequest:
			p.held <- func() { deliver(httptest.NewRecorder()) }
			w.WriteHeader(http.StatusGatewayTimeout)
		case sendTwice:
			deliver(httptest.NewRecorder())
			deliver(w)
		default:
			deliver(w)
		}
	}))
	t.Cleanup(h.Close)
	p.URI = h.URL + u.Path
	return p
}

// Arm gives a fixture the faults of the proxy.
func (p *Proxy) Arm(f Fixture) Fixture {
	f.LoseAnswer = func() { p.next.Store(loseAnswer) }
	f.BadGateway = func() { p.next.Store(badGateway) }
	f.LoseRequest = func() { p.next.Store(loseRequest) }
	f.Repeat = func() { p.next.Store(sendTwice) }
	f.Hold = func() (land func()) {
		p.next.Store(holdRequest)
		return func() { (<-p.held)() }
	}
	f.Storm = func(n int) { p.storm.Store(int32(n)) }
	return f
}
