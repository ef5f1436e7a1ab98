package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// s3Store is an S3 server behind a proxy, and a directory for the nodes on it.
type s3Store struct {
	t    *testing.T
	data string
	url  string // of the bucket, through the proxy

	mu    sync.Mutex
	spoil func(r *http.Request) (status int, code string) // guarded by mu; 0 forwards the request
}

func newS3Store(t *testing.T) *s3Store {
	t.Helper()
	endpoint, _, _ := lab.Versitygw(t)
	s := &s3Store{t: t, data: t.TempDir()}
	proxy := lab.Proxy(t, endpoint, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		s.mu.Lock()
		spoil := s.spoil
		s.mu.Unlock()
		if spoil != nil {
			if status, code := spoil(r); status != 0 {
				io.Copy(io.Discard, r.Body)
				w.WriteHeader(status)
				if code != "" {
					fmt.Fprintf(w, "<Error><Code>%s</Code><Message>made up</Message></Error>", code)
				}
				return
			}
		}
		next.ServeHTTP(w, r)
	})
	s.url = "s3://bucket/p?region=" + lab.Region + "&endpoint=" + proxy
	return s
}

func (s *s3Store) set(spoil func(r *http.Request) (int, string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spoil = spoil
}

// open starts a node; all have the same id and database.
func (s *s3Store) open(ctx context.Context, log *logged) (*Node, error) {
	var cfg Config
	cfg.Fields()
	cfg.Data, cfg.ObjectStore, cfg.Metadata = s.data, s.url, "sqlite:"+filepath.Join(s.data, "metadata.db")
	cfg.Kafka, cfg.HTTP = "127.0.0.1:0", "127.0.0.1:0"
	return Open(ctx, cfg, slog.New(slog.NewTextHandler(log, nil)))
}

// logged collects what is logged.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) says(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.buf.String(), text)
}

// A start on a store that answers 503 to one kind of request after the other waits, says for
// what, and ends well: the probe, the metadata's generation, the listing of the write-ahead
// log of the life before, its fence and its data.
func TestStartOutlastsBusyObjectStore(t *testing.T) {
	t.Parallel() // mostly waits
	s := newS3Store(t)
	var first, second logged
	busy := func(log *logged, until map[string]string) func(r *http.Request) (int, string) {
		return func(r *http.Request) (int, string) {
			for request, text := range until {
				if strings.Contains(r.Method+" "+r.URL.String(), request) && !log.says(text) {
					return http.StatusServiceUnavailable, "SlowDown"
				}
			}
			return 0, ""
		}
	}
	s.set(busy(&first, map[string]string{
		"PUT /bucket/p/probe/":      `for="probe of conditional creation"`,
		"prefix=p%2Fmetadata%2Fgen": `for="snapshots of the metadata"`,
	}))
	n, err := s.open(t.Context(), &first)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	cl, err := kgo.NewClient(kgo.SeedBrokers(n.KafkaAddr()), kgo.DefaultProduceTopic("t"), kgo.AllowAutoTopicCreation())
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.ProduceSync(t.Context(), kgo.StringRecord("acknowledged")).FirstErr(); err != nil {
		t.Fatal(err)
	}

	s.set(busy(&second, map[string]string{
		"prefix=p%2Fwal%2F":     "list WAL",
		"PUT /bucket/p/wal/":    "WAL not fenced",
		"GET /bucket/p/wal/1/0": "read WAL",
	}))
	next, err := s.open(t.Context(), &second)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	for _, text := range []string{"list WAL", "WAL not fenced", "read WAL"} {
		if !second.says(text) {
			t.Errorf("the log does not say %q", text)
		}
	}
	consumer, err := kgo.NewClient(kgo.SeedBrokers(next.KafkaAddr()), kgo.ConsumeTopics("t"))
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Close()
	fetches := consumer.PollFetches(t.Context())
	if records := fetches.Records(); len(records) != 1 || string(records[0].Value) != "acknowledged" {
		t.Errorf("%d records, errors %v, want the one that was acknowledged", len(records), fetches.Errors())
	}
}

// A start that the store refuses ends with what to do about it.
func TestStartEndsWhenRefused(t *testing.T) {
	s := newS3Store(t)
	for code, c := range map[string]struct {
		status int
		text   string
	}{
		"AccessDenied": {http.StatusForbidden, "check the credentials"},
		"NoSuchBucket": {http.StatusNotFound, "bucket bucket does not exist: create it"},
	} {
		var log logged
		s.set(func(*http.Request) (int, string) { return c.status, code })
		n, err := s.open(t.Context(), &log)
		if err == nil {
			n.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.text) || log.says("tries again") {
			t.Errorf("%s: %v, want an error at once that says %q", code, err, c.text)
		}
	}
}

// A store that does not honour conditional PUTs, and takes a second one for the first, is
// refused at the start, with the reason.
func TestStoreWithoutConditionIsRefused(t *testing.T) {
	s := newS3Store(t)
	var creates atomic.Int64
	s.set(func(r *http.Request) (int, string) {
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/once") && creates.Add(1) > 1 {
			return http.StatusOK, ""
		}
		return 0, ""
	})
	var log logged
	n, err := s.open(t.Context(), &log)
	if err == nil {
		n.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "does not honour If-None-Match") {
		t.Errorf("%v, want it refused", err)
	}
}

// A start that waits can be given up.
func TestStartGivenUp(t *testing.T) {
	t.Parallel() // mostly waits
	s := newS3Store(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var log logged
	s.set(func(r *http.Request) (int, string) {
		if r.Method != http.MethodPut {
			return 0, ""
		}
		if log.says("the start tries again") {
			cancel()
		}
		return http.StatusServiceUnavailable, "SlowDown"
	})
	if n, err := s.open(ctx, &log); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v, want it given up", n, err)
	}
}
