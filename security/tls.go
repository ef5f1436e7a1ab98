package security

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"
)

// TLSConfig names the files of a server's TLS, in PEM.
type TLSConfig struct {
	Cert, Key string
	// ClientCA is what certificates of clients must be signed by. Needed if ClientAuth asks for any.
	ClientCA string
	// ClientAuth is Kafka's ssl.client.auth: none, requested or required. none if empty.
	ClientAuth string
}

// TLS is the certificates of a server, which are read again when their files change.
type TLS struct {
	cfg TLSConfig
	log *slog.Logger

	mu     sync.Mutex
	looked time.Time    // guarded by mu
	stamps [3]fileStamp // guarded by mu
	now    *tls.Config  // guarded by mu
}

type fileStamp struct {
	modified time.Time
	size     int64
}

// lookPause is how often at most the files are looked at.
const lookPause = time.Second

// OpenTLS reads the files.
func OpenTLS(cfg TLSConfig, log *slog.Logger) (*TLS, error) {
	switch cfg.ClientAuth {
	case "", "none", "requested", "required":
	default:
		return nil, fmt.Errorf("client authentication %q: want none, requested or required", cfg.ClientAuth)
	}
	if cfg.Cert == "" || cfg.Key == "" {
		return nil, errors.New("TLS needs a certificate and its key")
	}
	if asks := cfg.ClientAuth == "requested" || cfg.ClientAuth == "required"; asks && cfg.ClientCA == "" {
		return nil, fmt.Errorf("client authentication %s needs the certificate authority of the clients", cfg.ClientAuth)
	}
	t := &TLS{cfg: cfg, log: log}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t, t.load()
}

// Config is for a listener. Each handshake takes the files as they are then.
func (t *TLS) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return t.current(), nil }}
}

// current reads the files again if they have changed. While they cannot be read, such as
// between the replacement of one and of the other, those before stay.
func (t *TLS) current() *tls.Config {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.looked) < lookPause {
		return t.now
	}
	stamps, err := t.stamp()
	if err == nil && stamps != t.stamps {
		if err = t.load(); err == nil {
			t.log.Info("TLS certificate read again", "file", t.cfg.Cert)
		}
	}
	if err != nil {
		t.log.Error("TLS files cannot be read; those before stay in use", "err", err)
	}
	t.looked = time.Now()
	return t.now
}

func (t *TLS) stamp() (out [3]fileStamp, err error) {
	for i, path := range []string{t.cfg.Cert, t.cfg.Key, t.cfg.ClientCA} {
		if path == "" {
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			return out, err
		}
		out[i] = fileStamp{info.ModTime(), info.Size()}
	}
	return out, nil
}

// load reads the files. The caller holds t.mu.
func (t *TLS) load() error {
	stamps, err := t.stamp()
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(t.cfg.Cert, t.cfg.Key)
	if err != nil {
		return fmt.Errorf("TLS certificate %s with key %s: %w", t.cfg.Cert, t.cfg.Key, err)
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	switch t.cfg.ClientAuth {
	case "requested":
		cfg.ClientAuth = tls.VerifyClientCertIfGiven
	case "required":
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	if t.cfg.ClientCA != "" {
		if cfg.ClientCAs, err = CertPool(t.cfg.ClientCA); err != nil {
			return err
		}
	}
	t.now, t.stamps, t.looked = cfg, stamps, time.Now()
	return nil
}

// CertPool reads the certificates of a PEM file.
func CertPool(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate in PEM", path)
	}
	return pool, nil
}

// Loopback reports whether an address or URL is one of this machine alone.
func Loopback(address string) bool {
	host := address
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		host = u.Hostname()
	} else if h, _, err := net.SplitHostPort(address); err == nil {
		host = h
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// A Mapping makes a user name of the name in a certificate: Kafka's ssl.principal.mapping.rules,
// the first that matches. The zero value takes the name as it is, as "CN=a,OU=b".
type Mapping []mappingRule

type mappingRule struct {
	pattern     *regexp.Regexp // nil for DEFAULT
	replacement string
	change      func(string) string
}

// ParseMapping reads rules: RULE:PATTERN/REPLACEMENT/, with L or U behind it for lower or upper
// case, and DEFAULT, separated by commas. A slash in a pattern is written \/.
func ParseMapping(text string) (Mapping, error) {
	var m Mapping
	for rest := strings.TrimSpace(text); rest != ""; {
		if after, ok := strings.CutPrefix(rest, "DEFAULT"); ok {
			m, rest = append(m, mappingRule{}), after
		} else {
			after, ok := strings.CutPrefix(rest, "RULE:")
			pattern, after, ok2 := cutSlash(after)
			replacement, after, ok3 := cutSlash(after)
			if !ok || !ok2 || !ok3 {
				return nil, fmt.Errorf("principal mapping %q: want RULE:PATTERN/REPLACEMENT/ with L or U behind it or not, or DEFAULT", rest)
			}
			re, err := regexp.Compile(`^(?:` + pattern + `)$`)
			if err != nil {
				return nil, fmt.Errorf("principal mapping %q: %w", rest, err)
			}
			rule := mappingRule{pattern: re, replacement: groupReference.ReplaceAllString(replacement, `$${$1}`)}
			if lower, ok := strings.CutPrefix(after, "L"); ok {
				rule.change, after = strings.ToLower, lower
			} else if upper, ok := strings.CutPrefix(after, "U"); ok {
				rule.change, after = strings.ToUpper, upper
			}
			m, rest = append(m, rule), after
		}
		rest = strings.TrimSpace(rest)
		if rest == "" {
			break
		}
		if rest[0] != ',' {
			return nil, fmt.Errorf("principal mapping: want a comma before %q", rest)
		}
		rest = strings.TrimSpace(rest[1:])
	}
	return m, nil
}

var groupReference = regexp.MustCompile(`\$(\d)`)

// cutSlash cuts at the first slash that no backslash precedes.
func cutSlash(s string) (before, after string, ok bool) {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '/':
			return strings.ReplaceAll(s[:i], `\/`, "/"), s[i+1:], true
		}
	}
	return "", "", false
}

// Principal names the owner of a certificate.
func (m Mapping) Principal(cert *x509.Certificate) (string, error) {
	var subject pkix.RDNSequence
	if rest, err := asn1.Unmarshal(cert.RawSubject, &subject); err != nil || len(rest) > 0 {
		return "", errors.New("the name in the certificate of the client is malformed")
	}
	name, err := m.name(subject.String())
	if err != nil {
		return "", err
	}
	if err := CheckUserName(name); err != nil {
		return "", err
	}
	return "User:" + name, nil
}

func (m Mapping) name(subject string) (string, error) {
	if len(m) == 0 {
		return subject, nil
	}
	for _, rule := range m {
		if rule.pattern == nil {
			return subject, nil
		}
		match := rule.pattern.FindStringSubmatchIndex(subject)
		if match == nil {
			continue
		}
		name := string(rule.pattern.ExpandString(nil, rule.replacement, subject, match))
		if rule.change != nil {
			name = rule.change(name)
		}
		return name, nil
	}
	return "", fmt.Errorf("no rule of the principal mapping is for the certificate of %q", subject)
}

// ClientCertificate is this server's certificate, for where it is a client itself.
func (t *TLS) ClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return &t.current().Certificates[0], nil
}
