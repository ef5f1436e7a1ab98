package broker

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/security"
)

// An authority signs certificates into a directory.
type authority struct {
	t    testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	last int64
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.key = newKey(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.write("ca.pem", "CERTIFICATE", der)
	return a
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) write(name, kind string, der []byte) {
	a.t.Helper()
	if err := os.WriteFile(a.path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

// sign writes NAME.pem and NAME.key, of a server at 127.0.0.1 or a client.
func (a *authority) sign(file string, subject pkix.Name) {
	a.t.Helper()
	a.last++
	key := newKey(a.t)
	template := &x509.Certificate{SerialNumber: big.NewInt(100 + a.last), Subject: subject, NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(file+".key", "EC PRIVATE KEY", private)
	a.write(file+".pem", "CERTIFICATE", der)
}

// client trusts the authority, and shows a certificate unless file is "".
func (a *authority) client(file string) *tls.Config {
	a.t.Helper()
	pool, err := security.CertPool(a.path("ca.pem"))
	if err != nil {
		a.t.Fatal(err)
	}
	cfg := &tls.Config{RootCAs: pool}
	if file != "" {
		pair, err := tls.LoadX509KeyPair(a.path(file+".pem"), a.path(file+".key"))
		if err != nil {
			a.t.Fatal(err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg
}

func startTLS(t testing.TB, a *authority, clientAuth string, sasl bool) *testBroker {
	t.Helper()
	set, meta, node := openSet(t)
	access := openAccess(t, security.Config{Authorize: true, SuperUsers: []string{"User:duke", "User:alice"}, Mechanisms: []string{security.Plain}}, meta)
	if err := access.SetPassword(t.Context(), "alice", "alice's password"); err != nil {
		t.Fatal(err)
	}
	files, err := security.OpenTLS(security.TLSConfig{Cert: a.path("server.pem"), Key: a.path("server.key"), ClientCA: a.path("ca.pem"), ClientAuth: clientAuth}, slog.New(slog.DiscardHandler))
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
	a := newAuthority(t)
	a.sign("server", pkix.Name{CommonName: "server"})
	a.sign("duke", pkix.Name{CommonName: "Duke", Organization: []string{"Oak"}})
	a.sign("unmapped", pkix.Name{CommonName: "nobody"})
	stranger := newAuthority(t)
	stranger.sign("duke", pkix.Name{CommonName: "Duke", Organization: []string{"Oak"}})
	for clientAuth, want := range map[string]map[string]string{ // by certificate: who may create a topic, who may connect
		"none": {"": "connect", "duke": "connect"}, "requested": {"": "connect", "duke": "create", "unmapped": "", "stranger": ""},
		"required": {"": "", "duke": "create", "unmapped": "", "stranger": ""},
	} {
		b := startTLS(t, a, clientAuth, false)
		for cert, can := range want {
			cfg := a.client("")
			if cert == "stranger" {
				cfg.Certificates = stranger.client("duke").Certificates
			} else {
				cfg = a.client(cert)
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
	a := newAuthority(t)
	a.sign("server", pkix.Name{CommonName: "server"})
	b := startTLS(t, a, "none", true)
	cl := b.client(t, kgo.DialTLSConfig(a.client("")), kgo.SASL(mechanismOf("alice", "alice's password", security.Plain)))
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
	old := a.client("")
	old.MaxVersion = tls.VersionTLS11
	if c, err := tls.Dial("tcp", b.Addr().String(), old); err == nil {
		c.Close()
		t.Error("TLS 1.1 is spoken")
	}
}

// A certificate is replaced without a restart; while its files do not fit, the old one stays.
func TestCertificatesAreReadAgain(t *testing.T) {
	a := newAuthority(t)
	a.sign("server", pkix.Name{CommonName: "before"})
	b := startTLS(t, a, "none", false)
	shown := func() string {
		c, err := tls.Dial("tcp", b.Addr().String(), a.client(""))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	if got := shown(); got != "before" {
		t.Fatal(got)
	}
	a.sign("server", pkix.Name{CommonName: "after"})
	eventually(t, "the new certificate", func() bool { return shown() == "after" })
	a.write("server.key", "EC PRIVATE KEY", []byte("damaged"))
	a.sign("other", pkix.Name{CommonName: "other"})
	damaged, err := os.Stat(a.path("server.key"))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a look at the damaged key", func() bool { return time.Since(damaged.ModTime()) > 1200*time.Millisecond })
	if got := shown(); got != "after" {
		t.Fatalf("with a damaged key: %s", got)
	}
}

func TestTLSFilesThatCannotWork(t *testing.T) {
	a := newAuthority(t)
	a.sign("server", pkix.Name{CommonName: "server"})
	a.sign("other", pkix.Name{CommonName: "other"})
	for name, cfg := range map[string]security.TLSConfig{
		"no key": {Cert: a.path("server.pem")}, "missing": {Cert: a.path("none"), Key: a.path("none")}, "other key": {Cert: a.path("server.pem"), Key: a.path("other.key")},
		"no authority": {Cert: a.path("server.pem"), Key: a.path("server.key"), ClientAuth: "required"}, "word": {Cert: a.path("server.pem"), Key: a.path("server.key"), ClientAuth: "yes"},
		"authority of none": {Cert: a.path("server.pem"), Key: a.path("server.key"), ClientAuth: "required", ClientCA: a.path("server.key")},
	} {
		if _, err := security.OpenTLS(cfg, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
