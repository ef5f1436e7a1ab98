package hive

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"
	"github.com/beltran/gohive/hive_metastore"

	"github.com/tabletopic/tabletopic/catalog/catalogtest"
)

// A proxy stands between one client and a metastore, and breaks the requests that alter tables.
type proxy struct {
	address string
	target  string
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
)

const alterMethod = "alter_table_with_environment_context"

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	p := &proxy{address: l.Addr().String(), target: target, held: make(chan func(), 1)}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(conn)
		}
	}()
	return p
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	requests, answers := newReader(client), newReader(server)
	deliver := func(request []byte) ([]byte, error) {
		if _, err := server.Write(request); err != nil {
			return nil, err
		}
		_, answer, _, err := answers.message()
		return answer, err
	}
	held := false
	defer func() {
		if !held {
			server.Close()
		}
	}()
	for {
		name, request, seq, err := requests.message()
		if err != nil {
			return
		}
		if before, ok := p.before.LoadAndDelete(name); ok {
			before.(func())()
		}
		if name == alterMethod {
			if p.storm.Add(-1) >= 0 {
				_, _ = client.Write(modified(seq))
				continue
			}
			switch p.next.Swap(0) {
			case loseAnswer:
				_, _ = deliver(request)
				return
			case loseRequest:
				return
			case holdRequest:
				held = true
				p.held <- func() {
					_, _ = deliver(request)
					server.Close()
				}
				return
			}
		}
		answer, err := deliver(request)
		if err != nil {
			return
		}
		if name == "heartbeat" {
			p.beats.Add(1)
		}
		if _, err := client.Write(answer); err != nil {
			return
		}
	}
}

// modified is the answer of a metastore that found another file than expected.
func modified(seq int32) []byte {
	out := thrift.NewTMemoryBuffer()
	protocol := thrift.NewTBinaryProtocolConf(out, nil)
	ctx := context.Background()
	result := hive_metastore.ThriftHiveMetastoreAlterTableWithEnvironmentContextResult{
		O2: &hive_metastore.MetaException{Message: "The table has been modified. The parameter value for key 'metadata_location' is 'x'. The expected was value was 'y'"}}
	_ = protocol.WriteMessageBegin(ctx, alterMethod, thrift.REPLY, seq)
	_ = result.Write(ctx, protocol)
	_ = protocol.WriteMessageEnd(ctx)
	return out.Bytes()
}

// reader cuts a stream into Thrift messages.
type reader struct {
	protocol *thrift.TBinaryProtocol
	raw      *bytes.Buffer
}

func newReader(r io.Reader) *reader {
	raw := &bytes.Buffer{}
	transport := thrift.NewStreamTransportR(oneByOne{io.TeeReader(r, raw)})
	return &reader{thrift.NewTBinaryProtocolConf(transport, nil), raw}
}

func (r *reader) message() (name string, raw []byte, seq int32, err error) {
	ctx := context.Background()
	r.raw.Reset()
	name, _, seq, err = r.protocol.ReadMessageBegin(ctx)
	if err == nil {
		err = r.protocol.Skip(ctx, thrift.STRUCT)
	}
	return name, bytes.Clone(r.raw.Bytes()), seq, err
}

// oneByOne keeps a buffered reader from reading into the next message.
type oneByOne struct{ r io.Reader }

func (o oneByOne) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	return o.r.Read(p[:1])
}

// arm gives a fixture the faults of the proxy.
func (p *proxy) arm(f catalogtest.Fixture) catalogtest.Fixture {
	f.LoseAnswer = func() { p.next.Store(loseAnswer) }
	f.LoseRequest = func() { p.next.Store(loseRequest) }
	f.Hold = func() (land func()) {
		p.next.Store(holdRequest)
		return func() { (<-p.held)() }
	}
	f.Storm = func(n int) { p.storm.Store(int32(n)) }
	return f
}
