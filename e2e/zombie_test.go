package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// A steady producer sends numbered records to one server until it is stopped, and knows
// which were acknowledged.
type steady struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex
	acked map[string]bool // guarded by mu
}

func produceSteadily(t *testing.T, s *server, topic, name string) *steady {
	t.Helper()
	cl := s.client(kgo.DefaultProduceTopic(topic), kgo.ProducerLinger(time.Millisecond), kgo.MaxBufferedRecords(1000), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	ctx, cancel := context.WithCancel(context.Background())
	p := &steady{cancel: cancel, done: make(chan struct{}), acked: map[string]bool{}}
	go func() {
		defer close(p.done)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			value := fmt.Sprintf("%s-%d", name, i)
			cl.Produce(ctx, kgo.StringRecord(value), func(_ *kgo.Record, err error) {
				if err == nil {
					p.mu.Lock()
					p.acked[value] = true
					p.mu.Unlock()
				}
			})
			<-tick.C
		}
	}()
	t.Cleanup(p.stop)
	return p
}

func (p *steady) stop() {
	p.cancel()
	<-p.done
}

func (p *steady) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.acked)
}

// waitFor returns when n more records are acknowledged.
func (p *steady) waitFor(t *testing.T, n int) {
	t.Helper()
	n += p.count()
	eventually(t, time.Minute, fmt.Sprintf("%d records acknowledged", n), func() error {
		if got := p.count(); got < n {
			return fmt.Errorf("%d are", got)
		}
		return nil
	})
}

// A process is stopped, or its writes are held up on their way, while its producer sends; a
// second one under the same node id takes over and serves. When the first goes on, and its
// writes arrive, it acknowledges nothing, says why and ends by itself; what was acknowledged,
// by the one or the other, is there, once.
func TestZombieServer(t *testing.T) {
	t.Parallel()
	t.Run("stopped process", func(t *testing.T) {
		t.Parallel()
		endpoint, _, _ := lab.Versitygw(t)
		z := newTakeover(t, endpoint, endpoint)
		z.first.signalOnly(syscall.SIGSTOP)
		z.takeOver(func() { z.first.signalOnly(syscall.SIGCONT) })
	})
	t.Run("writes held up", func(t *testing.T) {
		t.Parallel()
		endpoint, _, _ := lab.Versitygw(t)
		held := &heldPuts{release: make(chan struct{})}
		z := newTakeover(t, lab.Proxy(t, endpoint, held.handle), endpoint)
		defer held.late.Wait()
		held.on("/wal/")
		for n := 1; n <= 4; n++ { // what all producers have under way is in one write: a new one makes another
			eventually(t, time.Minute, fmt.Sprintf("%d writes held up", n), func() error {
				if got := held.count(); got < n {
					return fmt.Errorf("%d are", got)
				}
				return nil
			})
			z.produce()
		}
		z.takeOver(func() { close(held.release) })
	})
}

// A takeover is two servers under one node id, of which the first has steady producers.
type takeover struct {
	t             *testing.T
	first, second *server
	producers     []*steady // of the first
}

// produce starts one more producer.
func (z *takeover) produce() *steady {
	z.t.Helper()
	p := produceSteadily(z.t, z.first, "t", fmt.Sprint("first-", len(z.producers)))
	z.producers = append(z.producers, p)
	return p
}

// acknowledged is how many records the first acknowledged.
func (z *takeover) acknowledged() (n int) {
	for _, p := range z.producers {
		n += p.count()
	}
	return n
}

func newTakeover(t *testing.T, firstEndpoint, secondEndpoint string) *takeover {
	t.Helper()
	prepare := func(endpoint string) *server {
		s := newServer(t, "--object-store", "s3://bucket/tt?region="+lab.Region+"&path-style=true&endpoint="+endpoint)
		s.env = s3Credentials
		return s
	}
	z := &takeover{t: t, first: prepare(firstEndpoint), second: prepare(secondEndpoint)}
	z.second.data = z.first.data
	z.first.start()
	if _, err := z.first.admin().CreateTopic(t.Context(), 2, 1, nil, "t"); err != nil {
		t.Fatal(err)
	}
	z.produce().waitFor(t, 500)
	return z
}

// takeOver starts the second server, has the first go on, and checks what both say.
func (z *takeover) takeOver(goOn func()) {
	z.t.Helper()
	z.second.start()
	before := z.acknowledged() // the second serves: what the first acknowledged has long arrived
	other := produceSteadily(z.t, z.second, "t", "second")
	other.waitFor(z.t, 100)
	goOn()
	if code := z.first.exitCode(time.Minute); code != 1 {
		z.t.Errorf("the first ended with code %d, want 1", code)
	}
	z.first.cmd = nil
	if log := z.first.log.String(); !strings.Contains(log, "this node acknowledges nothing more") || !strings.Contains(log, "was written by another process") {
		z.t.Errorf("the first does not say why it ended:\n%s", tail([]byte(log), 2000))
	}
	if after := z.acknowledged(); after != before {
		z.t.Errorf("the first acknowledged %d records after the second served", after-before)
	}
	for _, p := range z.producers {
		p.stop()
	}
	other.waitFor(z.t, 100)
	other.stop()

	copies := map[string]int{}
	for _, value := range readLog(z.t, z.second, "t", 2) {
		copies[value]++
	}
	missing, double := 0, 0
	for _, p := range append(z.producers, other) {
		p.mu.Lock()
		for value := range p.acked {
			if copies[value] == 0 {
				missing++
			}
		}
		p.mu.Unlock()
	}
	for _, n := range copies {
		if n > 1 {
			double++
		}
	}
	if missing+double > 0 {
		z.t.Errorf("of %d acknowledged by the first and %d by the second %d are missing; %d are in the log more than once", z.acknowledged(), other.count(), missing, double)
	}
}

// signalOnly sends a signal and does not wait for the end.
func (s *server) signalOnly(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// heldPuts keeps PUTs as a network would that delivers them late: when they are released
// they arrive, though their sender has long given them up.
type heldPuts struct {
	release chan struct{}
	late    sync.WaitGroup

	mu   sync.Mutex
	part string // guarded by mu; of the paths of what is held; empty holds nothing
	held int    // guarded by mu
}

func (h *heldPuts) on(part string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.part = part
}

func (h *heldPuts) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held
}

func (h *heldPuts) handle(w http.ResponseWriter, r *http.Request, next http.Handler) {
	h.mu.Lock()
	hold := h.part != "" && r.Method == http.MethodPut && strings.Contains(r.URL.Path, h.part)
	h.mu.Unlock()
	if !hold {
		next.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	h.mu.Lock()
	h.held++
	h.mu.Unlock()
	answer := &lateAnswer{header: http.Header{}}
	delivered := make(chan struct{})
	h.late.Go(func() {
		defer close(delivered)
		<-h.release
		late := r.Clone(context.WithoutCancel(r.Context()))
		late.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(answer, late)
	})
	select {
	case <-delivered:
		for k, v := range answer.header {
			w.Header()[k] = v
		}
		w.WriteHeader(answer.status)
		w.Write(answer.body.Bytes())
	case <-r.Context().Done(): // nobody waits for the answer any more
	}
}

// lateAnswer keeps an answer that perhaps nobody will read.
type lateAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *lateAnswer) Header() http.Header         { return a.header }
func (a *lateAnswer) WriteHeader(status int)      { a.status = status }
func (a *lateAnswer) Write(p []byte) (int, error) { return a.body.Write(p) }
