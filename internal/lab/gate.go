package lab

import (
	"io"
	"net"
	"sync"
	"testing"
)

// A Gate is a way to a server that can be shut: then who uses it finds nobody there.
type Gate struct {
	Addr   string // HOST:PORT of this side
	target string

	mu    sync.Mutex
	shut  bool              // guarded by mu
	conns map[net.Conn]bool // guarded by mu; of both sides
}

// NewGate opens a gate to a TCP server at target, HOST:PORT, until the test ends.
func NewGate(t testing.TB, target string) *Gate {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &Gate{Addr: l.Addr().String(), target: target, conns: map[net.Conn]bool{}}
	t.Cleanup(func() {
		l.Close()
		g.Shut()
	})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go g.pass(c)
		}
	}()
	return g
}

// Shut cuts all connections, and those to come at once.
func (g *Gate) Shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
	for c := range g.conns {
		c.Close()
	}
	clear(g.conns)
}

// Open lets connections pass again.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = false
}

func (g *Gate) pass(c net.Conn) {
	s, err := net.Dial("tcp", g.target)
	if err != nil {
		c.Close()
		return
	}
	g.mu.Lock()
	if g.conns[c], g.conns[s] = true, true; g.shut {
		c.Close()
		s.Close()
	}
	g.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.Copy(s, c)
		s.Close()
	}()
	io.Copy(c, s)
	c.Close()
	<-done
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
	delete(g.conns, s)
}
