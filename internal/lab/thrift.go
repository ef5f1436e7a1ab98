package lab

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"
	"github.com/beltran/gohive/hive_metastore"
)

// A ThriftCall is a call on its way to a server.
type ThriftCall struct {
	Method string
	seq    int32
	raw    []byte
	server net.Conn
	answer *thriftReader
	kept   bool
}

// Deliver sends the call and returns the server's answer.
func (c *ThriftCall) Deliver() ([]byte, error) {
	if _, err := c.server.Write(c.raw); err != nil {
		return nil, err
	}
	_, answer, _, err := c.answer.message()
	return answer, err
}

// Keep lets the call be delivered after the client's connection is gone. Then Close must follow.
func (c *ThriftCall) Keep() { c.kept = true }

// Close ends the connection to the server.
func (c *ThriftCall) Close() { c.server.Close() }

// ThriftProxy starts a proxy on loopback in front of a Thrift server. It gives each call to
// handle, which returns what the client gets; nil ends the client's connection.
func ThriftProxy(t testing.TB, target string, handle func(c *ThriftCall) []byte) (address string) {
	t.Helper()
	return thriftProxy(t, target, func(client net.Conn, c *ThriftCall) error {
		answer := handle(c)
		if answer == nil {
			return io.EOF
		}
		_, err := client.Write(answer)
		return err
	})
}

func thriftProxy(t testing.TB, target string, handle func(client net.Conn, c *ThriftCall) error) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go serveThrift(client, target, handle)
		}
	}()
	return l.Addr().String()
}

func serveThrift(client net.Conn, target string, handle func(client net.Conn, c *ThriftCall) error) {
	defer client.Close()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	requests, answers := newThriftReader(client), newThriftReader(server)
	for {
		method, raw, seq, err := requests.message()
		if err != nil {
			server.Close()
			return
		}
		c := &ThriftCall{Method: method, seq: seq, raw: raw, server: server, answer: answers}
		if err := handle(client, c); err != nil {
			if !c.kept {
				server.Close()
			}
			return
		}
	}
}

// Metastore serves what of a Hive Metastore handler implements on l, until the test ends.
func Metastore(t testing.TB, l net.Listener, handler hive_metastore.ThriftHiveMetastore) {
	processor := hive_metastore.NewThriftHiveMetastoreProcessor(handler)
	var connections sync.WaitGroup
	connections.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			connections.Go(func() {
				defer conn.Close()
				defer context.AfterFunc(t.Context(), func() { conn.Close() })()
				protocol := thrift.NewTBinaryProtocolConf(thrift.NewTBufferedTransport(thrift.NewTSocketFromConnConf(conn, nil), 64<<10), nil)
				for ok, err := true, error(nil); ok && err == nil; {
					ok, err = processor.Process(t.Context(), protocol, protocol)
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		connections.Wait()
	})
}

// Modified is the answer of a metastore to an alter_table that found another file than
// expected.
func (c *ThriftCall) Modified() []byte {
	out := thrift.NewTMemoryBuffer()
	protocol := thrift.NewTBinaryProtocolConf(out, nil)
	ctx := context.Background()
	result := hive_metastore.ThriftHiveMetastoreAlterTableWithEnvironmentContextResult{
		O2: &hive_metastore.MetaException{Message: "The table has been modified. The parameter value for key 'metadata_location' is 'x'. The expected was value was 'y'"}}
	_ = protocol.WriteMessageBegin(ctx, c.Method, thrift.REPLY, c.seq)
	_ = result.Write(ctx, protocol)
	_ = protocol.WriteMessageEnd(ctx)
	return out.Bytes()
}

// AlterTable is the method that commits to a table.
const AlterTable = "alter_table_with_environment_context"

// ThriftProxy starts a proxy in front of a metastore, and returns its address. A gateway
// that a metastore lacks is a connection that ends; only AlterTable can conflict.
func (f *Faults) ThriftProxy(t testing.TB, target string) (address string) {
	t.Helper()
	ctx := t.Context()
	address = thriftProxy(t, target, func(client net.Conn, c *ThriftCall) error {
		do, later, slowly := f.draw(c.Method)
		switch {
		case do == conflicting && c.Method == AlterTable:
			_, err := client.Write(c.Modified())
			return err
		case do == lost || do == broken:
			_, _ = c.Deliver()
			cut(client)
			return io.EOF
		case do == held:
			c.Keep()
			f.tasks.Go(func() {
				wait(context.WithoutCancel(ctx), later)
				_, _ = c.Deliver()
				c.Close()
			})
			return io.EOF
		case do != passed:
			cut(client)
			return io.EOF
		}
		wait(ctx, later)
		answer, err := c.Deliver()
		if err == nil && slowly > 0 {
			_, err = trickle(ctx, slowly, answer, client.Write)
		} else if err == nil {
			_, err = client.Write(answer)
		}
		return err
	})
	t.Cleanup(f.tasks.Wait)
	return address
}

// thriftReader cuts a stream into messages.
type thriftReader struct {
	protocol *thrift.TBinaryProtocol
	raw      *bytes.Buffer
}

func newThriftReader(r io.Reader) *thriftReader {
	raw := &bytes.Buffer{}
	transport := thrift.NewStreamTransportR(oneByOne{io.TeeReader(r, raw)})
	return &thriftReader{thrift.NewTBinaryProtocolConf(transport, nil), raw}
}

func (r *thriftReader) message() (method string, raw []byte, seq int32, err error) {
	ctx := context.Background()
	r.raw.Reset()
	method, _, seq, err = r.protocol.ReadMessageBegin(ctx)
	if err == nil {
		err = r.protocol.Skip(ctx, thrift.STRUCT)
	}
	return method, bytes.Clone(r.raw.Bytes()), seq, err
}

// oneByOne keeps a buffered reader from reading into the next message.
type oneByOne struct{ r io.Reader }

func (o oneByOne) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	return o.r.Read(p[:1])
}
