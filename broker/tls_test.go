package broker

import (
	"bytes"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/security"
)

func startTLS(t testing.TB, a *lab.Authority, clientAuth string, sasl bool) *testBroker {
	t.Helper()
	set, meta, node := openSet(t)
	access := openAccess(t, security.Config{Authorize: true, SuperUsers: []string{"User:duke", "User:alice"}, Mechanisms: []string{security.Plain}}, meta)
	if err := access.SetPassword(t.Context(), "alice", "alice's password"); err != nil {
		t.Fatal(err)
	}
	files, err := security.OpenTLS(security.TLSConfig{Cert: a.Path("server.pem"), Key: a.Path("server.key"), ClientCA: a.Path("ca.pem"), ClientAuth: clientAuth}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	mapping, err := security.ParseMapping("RULE:^CN=(\\w+),.*$/$1/L")
	if err != nil {
		t.Fatal(err)
	}
	return startWith(t, Config{AuthTimeout: time.Second}, Listener{Listener: listen(t), Name: "SECURE", TLS: files.Config(), Mapping: mapping, SASL: sasl}, access, set, meta, node)
}

// Who a certificate names is who a client is, where certificates are asked for.
func TestCertificatesNameClients(t *testing.T) {
	a := lab.NewAuthority(t)
	a.Sign("server", pkix.Name{CommonName: "server"})
	a.Sign("duke", pkix.Name{CommonName: "Duke", Organization: []string{"Oak"}})
	a.Sign("unmapped", pkix.Name{CommonName: "nobody"})
	stranger := lab.NewAuthority(t)
	stranger.Sign("duke", pkix.Name{CommonName: "Duke", Organization: []string{"Oak"}})
	for clientAuth, want := range map[string]map[string]string{ // by certificate: who may create a topic, who may connect
		"none": {"": "connect", "duke": "connect"}, "requested": {"": "connect", "duke": "create", "unmapped": "", "stranger": ""},
		"required": {"": "", "duke": "create", "unmapped": "", "stranger": ""},
	} {
		b := startTLS(t, a, clientAuth, false)
		for cert, can := range want {
			cfg := a.Client("")
			if cert == "stranger" {
				cfg.Certificates = stranger.Client("duke").Certificates
			} else {
				cfg = a.Client(cert)
			}
			cl := b.client(t, kgo.DialTLSConfig(cfg), kgo.RequestRetries(0), kgo.RetryTimeout(3*time.Second))
			got := ""
			if err := cl.Ping(t.Context()); err == nil {
				got = "connect"
			}
			if resp, err := kadm.NewClient(cl).CreateTopic(t.Context(), 1, 1, nil, "of-"+cert); got != "" && err == nil && resp.Err == nil {
				got = "create"
			}
			if got != can {
				t.Errorf("%s: certificate %q can %q, want %q", clientAuth, cert, got, can)
			}
		}
	}
}

// With both, the user is who logged in; the wire is TLS from the first byte on.
func TestLoginOverTLS(t *testing.T) {
	a := lab.NewAuthority(t)
	a.Sign("server", pkix.Name{CommonName: "server"})
	b := startTLS(t, a, "none", true)
	cl := b.client(t, kgo.DialTLSConfig(a.Client("")), kgo.SASL(mechanismOf("alice", "alice's password", security.Plain)))
	if _, err := kadm.NewClient(cl).CreateTopic(t.Context(), 1, 1, nil, "clicks"); err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "clicks", Value: make([]byte, 300_000)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	// A Kafka client without TLS, and one that connects and says nothing, are let go.
	for _, hello := range [][]byte{kmsg.NewRequestFormatter().AppendRequest(nil, kmsg.NewPtrApiVersionsRequest(), 1), nil} {
		w := b.dial(t)
		w.Write(hello)
		if raw, err := w.frame(); err == nil && len(raw) > 64 {
			t.Errorf("an answer without TLS: %x", raw)
		}
	}
	old := a.Client("")
	old.MaxVersion = tls.VersionTLS11
	if c, err := tls.Dial("tcp", b.Addr().String(), old); err == nil {
		c.Close()
		t.Error("TLS 1.1 is spoken")
	}
}

// What is no TLS after the handshake, and what is no request inside of TLS, closes its connection with one line in the
// log; others go on.
func TestGarbageAfterTheHandshake(t *testing.T) {
	a := lab.NewAuthority(t)
	a.Sign("server", pkix.Name{CommonName: "server"})
	b := startTLS(t, a, "none", false)
	good := b.client(t, kgo.DialTLSConfig(a.Client("")))
	versions := kmsg.NewRequestFormatter().AppendRequest(nil, kmsg.NewPtrApiVersionsRequest(), 1)
	for name, tc := range map[string]struct {
		plain, inside []byte
		reason        string
	}{
		"a request in plain":      {versions, nil, "received record with version"},
		"bytes":                   {bytes.Repeat([]byte{0x5a}, 1000), nil, ""},
		"a record of another key": {append([]byte{23, 3, 3, 0, 64}, make([]byte, 64)...), nil, "bad record MAC"},
		"a record that is long":   {[]byte{23, 3, 3, 0xff, 0xff, 0}, nil, "oversized record"},
		"a handshake again":       {[]byte{22, 3, 3, 0, 4, 1, 0, 0, 0}, nil, ""},
		"HTTP inside":             {nil, []byte("GET / HTTP/1.1\r\n\r\n"), "is this a Kafka client"},
		"TLS inside of TLS":       {nil, []byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3}, "is this a Kafka client"},
	} {
		before := len(b.logged.String())
		w := b.dial(t)
		cfg := a.Client("")
		cfg.ServerName = "127.0.0.1"
		c := tls.Client(w.Conn, cfg)
		if err := c.HandshakeContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(versions); err != nil { // the handshake is over, and the connection works
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		if tc.inside != nil {
			c.Write(tc.inside)
		} else {
			w.Write(tc.plain)
		}
		if _, err := io.Copy(io.Discard, w.Conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection was not closed", name)
		}
		line := func() string { return b.logged.String()[before:] }
		eventually(t, name+": a line in the log", func() bool { return strings.Contains(line(), "\n") })
		if got := line(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "peer=127.0.0.1:") || !strings.Contains(got, tc.reason) {
			t.Errorf("%s: log %q, want one line with the peer and %q", name, got, tc.reason)
		}
		if err := good.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// A certificate is replaced without a restart; while its files do not fit, the old one stays.
func TestCertificatesAreReadAgain(t *testing.T) {
	a := lab.NewAuthority(t)
	a.Sign("server", pkix.Name{CommonName: "before"})
	b := startTLS(t, a, "none", false)
	shown := func() string {
		c, err := tls.Dial("tcp", b.Addr().String(), a.Client(""))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	if got := shown(); got != "before" {
		t.Fatal(got)
	}
	a.Sign("server", pkix.Name{CommonName: "after"})
	eventually(t, "the new certificate", func() bool { return shown() == "after" })
	a.Write("server.key", "EC PRIVATE KEY", []byte("damaged"))
	a.Sign("other", pkix.Name{CommonName: "other"})
	damaged, err := os.Stat(a.Path("server.key"))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a look at the damaged key", func() bool { return time.Since(damaged.ModTime()) > 1200*time.Millisecond })
	if got := shown(); got != "after" {
		t.Fatalf("with a damaged key: %s", got)
	}
}

func TestTLSFilesThatCannotWork(t *testing.T) {
	a := lab.NewAuthority(t)
	a.Sign("server", pkix.Name{CommonName: "server"})
	a.Sign("other", pkix.Name{CommonName: "other"})
	for name, cfg := range map[string]security.TLSConfig{
		"no key": {Cert: a.Path("server.pem")}, "missing": {Cert: a.Path("none"), Key: a.Path("none")}, "other key": {Cert: a.Path("server.pem"), Key: a.Path("other.key")},
		"no authority": {Cert: a.Path("server.pem"), Key: a.Path("server.key"), ClientAuth: "required"}, "word": {Cert: a.Path("server.pem"), Key: a.Path("server.key"), ClientAuth: "yes"},
		"authority of none": {Cert: a.Path("server.pem"), Key: a.Path("server.key"), ClientAuth: "required", ClientCA: a.Path("server.key")},
	} {
		if _, err := security.OpenTLS(cfg, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
