package objectstore

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/google/go-cmp/cmp"
	"github.com/tabletopic/tabletopic/internal/lab"
)

func staticCredentials(access, secret string) aws.CredentialsProvider {
	return aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: access, SecretAccessKey: secret}, nil
	})
}

// faultyServer is a proxy before a real S3 server that spoils the answers it is told to.
type faultyServer struct {
	proxy *httputil.ReverseProxy

	mu     sync.Mutex
	spoil  []spoiler // guarded by mu; the first that matches is used up
	served []string  // guarded by mu; "METHOD path?query"
}

// spoiling serves a request otherwise than the proxy does.
type spoiling = func(s *faultyServer, w http.ResponseWriter, r *http.Request)

type spoiler struct {
	match func(*http.Request) bool
	serve spoiling
}

func (s *faultyServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.served = append(s.served, r.Method+" "+r.URL.String())
	serve := func(s *faultyServer, w http.ResponseWriter, r *http.Request) { s.proxy.ServeHTTP(w, r) }
	for i, sp := range s.spoil {
		if sp.match(r) {
			serve = sp.serve
			s.spoil = append(s.spoil[:i:i], s.spoil[i+1:]...)
			break
		}
	}
	s.mu.Unlock()
	serve(s, w, r)
}

// next spoils the next n requests of a method whose query holds the text.
func (s *faultyServer) next(n int, method, query string, serve spoiling) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range n {
		s.spoil = append(s.spoil, spoiler{
			match: func(r *http.Request) bool { return r.Method == method && strings.Contains(r.URL.RawQuery, query) },
			serve: serve,
		})
	}
}

// answer is an S3 error, without effect.
func answer(status int, code string) spoiling {
	return func(_ *faultyServer, w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		fmt.Fprintf(w, "<Error><Code>%s</Code><Message>made up</Message></Error>", code)
	}
}

// lost has the effect, and the connection breaks before the answer.
func lost(s *faultyServer, _ http.ResponseWriter, r *http.Request) {
	s.proxy.ServeHTTP(httptest.NewRecorder(), r)
	panic(http.ErrAbortHandler)
}

// torn breaks the connection in the middle of the answer.
func torn(s *faultyServer, w http.ResponseWriter, r *http.Request) {
	rec := httptest.NewRecorder()
	s.proxy.ServeHTTP(rec, r)
	for k, v := range rec.Header() {
		w.Header()[k] = v
	}
	w.WriteHeader(rec.Code)
	w.Write(rec.Body.Bytes()[:rec.Body.Len()/2])
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

// hung says nothing until the client gives up.
func hung(_ *faultyServer, _ http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// openFaulty starts versitygw behind a faultyServer.
func openFaulty(t *testing.T) (*S3, *faultyServer, *Counter) {
	endpoint, access, secret := lab.Versitygw(t)
	target, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	server := &faultyServer{proxy: &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // it is signed
	}}}
	srv := httptest.NewServer(server)
	t.Cleanup(srv.Close)
	s, err := NewS3(t.Context(), S3Config{
		Bucket: "bucket", Region: lab.Region, Endpoint: srv.URL, PathStyle: true,
		Credentials:  staticCredentials(access, secret),
		StallTimeout: 2 * time.Second, Attempts: 4, Backoff: time.Millisecond,
		MultipartBytes: 5 << 20, PartBytes: 5 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	c := &Counter{}
	return s.observed(c), server, c
}

// What may be gone by the next attempt is tried again, and nothing else.
func TestS3Retries(t *testing.T) {
	s, server, _ := openFaulty(t)
	body := bytes.Repeat([]byte("0123456789"), 10_000)
	if err := s.Put(t.Context(), "read", body); err != nil {
		t.Fatal(err)
	}
	create := func(b *S3) error { return b.PutIfAbsent(t.Context(), rndKey(), body[:50_000], body[50_000:]) }
	read := func(b *S3) error {
		got, err := b.Get(t.Context(), "read", 5, 90_000)
		if err == nil && !bytes.Equal(got, body[5:90_005]) {
			return errors.New("wrong bytes")
		}
		return err
	}
	list := func(b *S3) error { _, err := b.List(t.Context(), "read", ""); return err }
	remove := func(b *S3) error { return b.Delete(t.Context(), rndKey()) }
	for _, c := range []struct {
		name, method, query string
		times               int
		spoil               spoiling
		do                  func(*S3) error
		requests            int64
		want                error // nil: success
		text                string
	}{
		{"slow down", "PUT", "", 3, answer(503, "SlowDown"), create, 4, nil, ""},
		{"slow down for ever", "PUT", "", 4, answer(503, "SlowDown"), create, 4, ErrUnavailable, "4 attempts"},
		{"500", "PUT", "", 1, answer(500, "InternalError"), create, 2, nil, ""},
		{"429", "PUT", "", 1, answer(429, "TooManyRequests"), create, 2, nil, ""},
		{"conflict", "PUT", "", 2, answer(409, "ConditionalRequestConflict"), create, 3, nil, ""},
		{"conflict by another name", "PUT", "", 1, answer(409, "Conflict"), create, 2, nil, ""},
		{"lost answer", "PUT", "", 1, lost, create, 2, ErrExists, ""},
		{"hung", "PUT", "", 1, hung, create, 2, nil, ""},
		{"forbidden", "PUT", "", 1, answer(403, "AccessDenied"), create, 1, ErrRefused, "check the credentials"},
		{"bad request", "PUT", "", 1, answer(400, "InvalidRequest"), create, 1, ErrRefused, "InvalidRequest"},
		{"no bucket", "PUT", "", 1, answer(404, "NoSuchBucket"), create, 1, ErrRefused, "bucket bucket does not exist"},
		{"torn read", "GET", "", 2, torn, read, 3, nil, ""},
		{"hung read", "GET", "", 1, hung, read, 2, nil, ""},
		{"slow read", "GET", "", 1, answer(503, "SlowDown"), read, 2, nil, ""},
		{"torn list", "GET", "list-type", 1, torn, list, 2, nil, ""},
		{"lost delete", "POST", "delete", 1, lost, remove, 2, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			count := &Counter{}
			server.next(c.times, c.method, c.query, c.spoil)
			err := c.do(s.observed(count))
			switch {
			case c.want == nil && err != nil, c.want == errAny && err == nil,
				c.want != nil && c.want != errAny && !errors.Is(err, c.want):
				t.Errorf("%v, want %v", err, c.want)
			case err != nil && !strings.Contains(err.Error(), c.text):
				t.Errorf("error %q does not say %q", err, c.text)
			}
			if count.Requests() != c.requests {
				t.Errorf("%d requests, want %d", count.Requests(), c.requests)
			}
			server.mu.Lock()
			server.spoil = nil
			server.mu.Unlock()
		})
	}
}

var (
	errAny = errors.New("any error")
	keys   int
)

func rndKey() string {
	keys++
	return fmt.Sprintf("key/%d", keys)
}

// Large objects go in parts, with the same promises.
func TestS3Multipart(t *testing.T) {
	s, server, _ := openFaulty(t)
	body := make([]byte, 12<<20)
	for i := range body {
		body[i] = byte(i * 7 >> 3)
	}
	parts := [][]byte{body[:3], body[3 : 7<<20], {}, body[7<<20:]}
	want := func(key string) {
		t.Helper()
		got, err := s.Get(t.Context(), key, 0, -1)
		if err != nil || !bytes.Equal(got, body) {
			t.Fatalf("%s: %d bytes, %v, want the %d of the body", key, len(got), err, len(body))
		}
	}
	count := &Counter{}
	if err := s.observed(count).PutIfAbsent(t.Context(), "m/1", parts...); err != nil {
		t.Fatal(err)
	}
	want("m/1")
	if n := count.Requests(); n != 5 || count.Sent() != int64(len(body)) {
		t.Errorf("%d requests of %d bytes, want 5 of %d", n, count.Sent(), len(body))
	}
	if err := s.PutIfAbsent(t.Context(), "m/1", bytes.Repeat([]byte("x"), 6<<20)); !errors.Is(err, ErrExists) {
		t.Errorf("second create: %v, want %v", err, ErrExists)
	}
	want("m/1")
	if err := s.Put(t.Context(), "m/1", bytes.Repeat([]byte("x"), 6<<20)); err != nil {
		t.Errorf("replace: %v", err)
	}

	server.next(1, "PUT", "partNumber=2", answer(503, "SlowDown"))
	server.next(1, "PUT", "partNumber=3", lost)
	if err := s.PutIfAbsent(t.Context(), "m/2", parts...); err != nil {
		t.Fatalf("create with lost parts: %v", err)
	}
	want("m/2")

	server.next(1, "POST", "uploadId", answer(409, "ConditionalRequestConflict"))
	if err := s.PutIfAbsent(t.Context(), "m/3", parts...); err != nil {
		t.Fatalf("create with a conflict: %v", err)
	}
	want("m/3")

	// An upload that fails leaves no parts behind.
	server.next(1, "PUT", "partNumber=1", answer(403, "AccessDenied"))
	if err := s.Put(t.Context(), "m/6", parts...); err == nil {
		t.Error("put with a refused part succeeded")
	}
	server.mu.Lock()
	last := server.served[len(server.served)-1]
	server.mu.Unlock()
	if !strings.HasPrefix(last, "DELETE /bucket/m/6?") {
		t.Errorf("last request is %q, want the abort", last)
	}
}

// An upload that the store does not know any more has either been put together by an attempt
// whose answer was lost, or has expired, or was aborted by somebody. The first is success,
// of the others all is sent anew, and the object is whole in the end.
func TestS3UploadThatIsGone(t *testing.T) {
	s, server, _ := openFaulty(t)
	body := bytes.Repeat([]byte("0123456789abcdef"), 12<<20/16)
	gone := answer(404, "NoSuchUpload")
	other := func(ss *faultyServer, w http.ResponseWriter, r *http.Request) {
		if err := s.PutIfAbsent(r.Context(), strings.TrimPrefix(r.URL.Path, "/bucket/"), []byte("of another writer")); err != nil {
			t.Error(err)
		}
		gone(ss, w, r)
	}
	for _, c := range []struct {
		name, method, query string
		spoil               []spoiling
		put                 bool // replaces what is there
		begun               int  // uploads
		want                error
	}{
		{name: "part of an expired upload", method: "PUT", query: "partNumber=2", spoil: []spoiling{gone}, begun: 2},
		{name: "parts of expired uploads", method: "PUT", query: "partNumber=1", spoil: []spoiling{gone, gone}, begun: 3},
		{name: "completion of an expired upload", method: "POST", query: "uploadId", spoil: []spoiling{gone}, begun: 2},
		{name: "… of a put", method: "POST", query: "uploadId", spoil: []spoiling{gone}, put: true, begun: 2},
		{name: "completion whose answer was lost", method: "POST", query: "uploadId", spoil: []spoiling{lost}, begun: 1},
		{name: "… and which is then unknown", method: "POST", query: "uploadId", spoil: []spoiling{lost, gone}, begun: 1},
		{name: "… of a put", method: "POST", query: "uploadId", spoil: []spoiling{lost, gone}, put: true, begun: 1},
		{name: "… and then meets its own object", method: "POST", query: "uploadId", spoil: []spoiling{lost, answer(412, "PreconditionFailed")}, begun: 1},
		{name: "expired upload, and the key is taken", method: "POST", query: "uploadId", spoil: []spoiling{other}, begun: 2, want: ErrExists},
		{name: "always expired", method: "POST", query: "uploadId", spoil: []spoiling{gone, gone, gone, gone}, begun: 4, want: ErrUnavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, spoil := range c.spoil {
				server.next(1, c.method, c.query, spoil)
			}
			server.mu.Lock()
			server.served = nil
			server.mu.Unlock()
			key, create := rndKey(), s.PutIfAbsent
			if c.put {
				create = s.Put
			}
			if err := create(t.Context(), key, body[:7], body[7:]); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			got, err := s.Get(t.Context(), key, 0, -1)
			if whole := err == nil && bytes.Equal(got, body); whole != (c.want == nil) {
				t.Errorf("the object is there and whole: %v (%d bytes, %v)", whole, len(got), err)
			}
			server.mu.Lock()
			defer server.mu.Unlock()
			begun, aborted := 0, 0
			for _, r := range server.served {
				if strings.HasPrefix(r, "POST") && strings.Contains(r, "uploads") {
					begun++
				}
				if strings.HasPrefix(r, "DELETE") {
					aborted++
				}
			}
			if begun != c.begun || aborted < begun-1 {
				t.Errorf("%d uploads begun and %d aborted, want %d begun", begun, aborted, c.begun)
			}
			if len(server.spoil) > 0 {
				t.Errorf("%d spoiled answers were not asked for", len(server.spoil))
				server.spoil = nil
			}
		})
	}
}

// Delete says which keys may be left, tries those again that may go, and counts the missing as gone.
func TestS3DeleteNamesWhatIsLeft(t *testing.T) {
	s, server, count := openFaulty(t)
	one := func(key, code string) string {
		return fmt.Sprintf("<Error><Key>%s</Key><Code>%s</Code><Message>m</Message></Error>", key, code)
	}
	server.next(1, "POST", "delete", failing(one("b", "AccessDenied")+one("c", "NoSuchKey")))
	e, ok := errors.AsType[*DeleteError](s.Delete(t.Context(), "a", "b", "c"))
	if !ok || !cmp.Equal(e.Keys, []string{"b"}) || !strings.Contains(e.Error(), "AccessDenied") {
		t.Errorf("left: %v, want b for AccessDenied", e)
	}
	server.next(1, "POST", "delete", failing(one("b", "InternalError")))
	if err := s.Delete(t.Context(), "a", "b"); err != nil {
		t.Errorf("delete with a passing failure: %v", err)
	}
	if n := count.Count(OpDelete); n != 3 {
		t.Errorf("%d requests, want 3", n)
	}
	server.next(1, "POST", "delete", failing("<Error><Code>AccessDenied</Code><Message>m</Message></Error>"))
	e, ok = errors.AsType[*DeleteError](s.Delete(t.Context(), "a", "b"))
	if !ok || !cmp.Equal(e.Keys, []string{"a", "b"}) {
		t.Errorf("an error of a key that is not named leaves %v, want all", e)
	}
	if n := count.Count(OpDelete); n != 4 {
		t.Errorf("%d requests, want 4", n)
	}
	many := make([]string, 2500)
	for i := range many {
		many[i] = fmt.Sprintf("many/%d", i)
	}
	server.next(1, "POST", "delete", answer(403, "AccessDenied")) // the first thousand
	e, ok = errors.AsType[*DeleteError](s.Delete(t.Context(), many...))
	if !ok || !cmp.Equal(e.Keys, many[:1000]) {
		t.Errorf("left: %v, want the first thousand keys", ok)
	}
	if n := count.Count(OpDelete); n != 7 {
		t.Errorf("%d requests, want 7", n)
	}
}

// Stores list what they deleted or do not, whatever they were asked. Who is named in no error
// is gone, and is asked for once.
func TestS3DeleteNeedsNoListOfSuccesses(t *testing.T) {
	s, server, count := openFaulty(t)
	for i, xml := range []string{"", "<Deleted><Key>a</Key></Deleted>", "<Deleted><Key>a</Key></Deleted><Deleted><Key>b</Key></Deleted>"} {
		server.next(1, "POST", "delete", failing(xml))
		if err := s.Delete(t.Context(), "a", "b"); err != nil || count.Count(OpDelete) != int64(i)+1 {
			t.Errorf("answer %q: %v, %d requests", xml, err, count.Count(OpDelete))
		}
	}
}

// failing answers a bulk delete.
func failing(xml string) spoiling {
	return func(_ *faultyServer, w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/xml")
		fmt.Fprintf(w, "<DeleteResult>%s</DeleteResult>", xml)
	}
}

// capture is a server that keeps the last request's header and stores nothing.
func capture(t *testing.T, tls bool) (*S3, func() http.Header) {
	var mu sync.Mutex
	var last http.Header
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		mu.Lock()
		defer mu.Unlock()
		last = r.Header.Clone()
	})
	srv := httptest.NewUnstartedServer(handler)
	if tls {
		srv.StartTLS()
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
	client := NewHTTPClient()
	if tls {
		pool := x509.NewCertPool()
		pool.AddCert(srv.Certificate())
		client = client.WithTransportOptions(func(tr *http.Transport) { tr.TLSClientConfig.RootCAs = pool })
	}
	s, err := NewS3(t.Context(), S3Config{
		Bucket: "bucket", Region: "eu-north-1", Endpoint: srv.URL, PathStyle: true,
		Credentials: staticCredentials("a", "b"), HTTPClient: client, Attempts: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s, func() http.Header {
		mu.Lock()
		defer mu.Unlock()
		return last
	}
}

// A create carries its condition, a plain put does not.
func TestS3SendsCondition(t *testing.T) {
	s, last := capture(t, false)
	if err := s.PutIfAbsent(t.Context(), "wal/1", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if got := last().Get("If-None-Match"); got != "*" {
		t.Errorf("create sends If-None-Match %q, want *", got)
	}
	if err := s.Put(t.Context(), "wal/1", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if got := last().Get("If-None-Match"); got != "" {
		t.Errorf("put sends If-None-Match %q", got)
	}
}

// Bodies are hashed by TLS or by the signature, once, and by nothing else; nobody waits for 100-continue.
func TestS3HashesOnce(t *testing.T) {
	for _, tls := range []bool{true, false} {
		s, last := capture(t, tls)
		if err := s.Put(t.Context(), "k", make([]byte, 3<<20), []byte("x")); err != nil {
			t.Fatal(err)
		}
		h := last()
		if unsigned := h.Get("X-Amz-Content-Sha256") == "UNSIGNED-PAYLOAD"; unsigned != tls {
			t.Errorf("TLS %v: X-Amz-Content-Sha256 is %q", tls, h.Get("X-Amz-Content-Sha256"))
		}
		for _, name := range []string{"Expect", "X-Amz-Trailer", "X-Amz-Sdk-Checksum-Algorithm", "X-Amz-Checksum-Crc32", "Content-Encoding"} {
			if v := h.Get(name); v != "" {
				t.Errorf("TLS %v: header %s is %q, want none", tls, name, v)
			}
		}
	}
}

// Once Put has returned, its buffers are the caller's again: the race detector watches.
func TestS3LeavesBodyAlone(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s, err := NewS3(t.Context(), S3Config{
		Bucket: "bucket", Region: "x", Endpoint: "http://" + l.Addr().String(), PathStyle: true,
		Credentials: staticCredentials("a", "b"),
	})
	if err != nil {
		t.Fatal(err)
	}
	body := make([]byte, 32<<20) // more than the sockets' buffers take
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		accepted := make(chan net.Conn)
		go func() {
			c, err := l.Accept()
			if err == nil {
				io.ReadFull(c, make([]byte, 1<<20)) // the body has begun
				cancel()
			}
			accepted <- c
		}()
		if err := s.Put(ctx, "k", body); !errors.Is(err, context.Canceled) {
			t.Fatalf("put: %v, want %v", err, context.Canceled)
		}
		for i := range body {
			body[i]++
		}
		if c := <-accepted; c != nil {
			c.Close()
		}
	}
}

func TestBodySeeks(t *testing.T) {
	b := &body{parts: [][]byte{[]byte("ab"), {}, []byte("cde"), []byte("f")}, size: 6, progress: func() {}}
	for off := range int64(8) {
		if _, err := b.Seek(off, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(b)
		if want := "abcdef"[min(off, 6):]; err != nil || string(got) != want {
			t.Errorf("from %d: %q, %v, want %q", off, got, err, want)
		}
	}
	if end, err := b.Seek(-2, io.SeekEnd); end != 4 || err != nil {
		t.Errorf("seek to the end: %d, %v, want 4", end, err)
	}
	b.release()
	if _, err := b.Read(make([]byte, 1)); !errors.Is(err, errReleased) {
		t.Errorf("read after release: %v, want %v", err, errReleased)
	}
}
