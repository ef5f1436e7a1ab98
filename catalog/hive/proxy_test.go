package hive

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tabletopic/tabletopic/catalog/catalogtest"
	"github.com/tabletopic/tabletopic/internal/lab"
)

// A proxy stands between one client and a metastore, and breaks the requests that alter tables.
type proxy struct {
	address string
	next    atomic.Int32
	storm   atomic.Int32
	held    chan func()
	beats   atomic.Int32 // heartbeats answered
	before  sync.Map     // func() by method: runs, once, before such a request is forwarded
}

const (
	loseAnswer  = 1 + iota // the metastore alters, and the connection breaks
	loseRequest            // the connection breaks, and the metastore sees nothing
	holdRequest            // the connection breaks, and the request is delivered when the test says so
	sendTwice              // the answer to the second of two deliveries
)

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	p := &proxy{held: make(chan func(), 1)}
	p.address = lab.ThriftProxy(t, target, p.handle)
	return p
}

func (p *proxy) handle(c *lab.ThriftCall) []byte {
	if before, ok := p.before.LoadAndDelete(c.Method); ok {
		before.(func())()
	}
	if c.Method == lab.AlterTable {
		if p.storm.Add(-1) >= 0 {
			return c.Modified()
		}
		switch p.next.Swap(0) {
		case loseAnswer:
			_, _ = c.Deliver()
			return nil
		case loseRequest:
			return nil
		case sendTwice:
			_, _ = c.Deliver()
		case holdRequest:
			c.Keep()
			p.held <- func() {
				_, _ = c.Deliver()
				c.Close()
			}
			return nil
		}
	}
	answer, err := c.Deliver()
	if err != nil {
		return nil
	}
	if c.Method == "heartbeat" {
		p.beats.Add(1)
	}
	return answer
}

// arm gives a fixture the faults of the proxy.
func (p *proxy) arm(f catalogtest.Fixture) catalogtest.Fixture {
	f.LoseAnswer = func() { p.next.Store(loseAnswer) }
	f.LoseRequest = func() { p.next.Store(loseRequest) }
	f.Hold = func() (land func()) {
		p.next.Store(holdRequest)
		return func() { (<-p.held)() }
	}
	f.Repeat = func() { p.next.Store(sendTwice) }
	f.Storm = func(n int) { p.storm.Store(int32(n)) }
	return f
}
