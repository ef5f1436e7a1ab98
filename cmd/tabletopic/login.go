package main

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/tabletopic/tabletopic/node"
	"github.com/tabletopic/tabletopic/security"
)

// login is who an administration command is, and how it trusts the server.
type login struct {
	user, passwordFile, mechanism string
	tls                           bool
	ca, cert, key                 string
	file                          string

	password string // read from passwordFile
	ready    bool
	cmd      *cobra.Command
}

// loginConfig names a file with the settings of login, so that they need not be said each time.
const loginConfig = "TABLETOPIC_CLIENT_CONFIG"

func (l *login) flags(cmd *cobra.Command) {
	f := cmd.PersistentFlags()
	f.StringVar(&l.user, "user", "", "`NAME` to log in with")
	f.StringVar(&l.passwordFile, "password-file", "", "`FILE` with the password of --user")
	f.StringVar(&l.mechanism, "sasl-mechanism", security.ScramSHA512Name, "how to log in to Kafka: SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN")
	f.BoolVar(&l.tls, "tls", false, "use TLS")
	f.StringVar(&l.ca, "tls-ca", "", "`FILE` of the authorities to trust, in PEM; those of the system if empty")
	f.StringVar(&l.cert, "tls-cert", "", "`FILE` of a certificate to show, in PEM")
	f.StringVar(&l.key, "tls-key", "", "`FILE` of its key, in PEM")
	f.StringVar(&l.file, "client-config", os.Getenv(loginConfig), "YAML `FILE` with values of these flags; by default the one that "+loginConfig+" names")
	l.cmd = cmd
}

// read completes the flags from the file, and reads the password.
func (l *login) read() error {
	if l.ready {
		return nil
	}
	if l.file != "" {
		k := koanf.New("/")
		if err := k.Load(file.Provider(l.file), yaml.Parser()); err != nil {
			return fmt.Errorf("client configuration %s: %w", l.file, err)
		}
		for _, key := range k.Keys() {
			f := l.cmd.PersistentFlags().Lookup(key)
			if f == nil || key == "client-config" {
				return usageError{fmt.Errorf("%s: key %s is unknown: want bootstrap, http, user, password-file, sasl-mechanism, tls, tls-ca, tls-cert or tls-key", l.file, key)}
			}
			if f.Changed {
				continue
			}
			if err := f.Value.Set(fmt.Sprint(k.Get(key))); err != nil {
				return usageError{fmt.Errorf("%s: key %s: %w", l.file, key, err)}
			}
		}
	}
	if (l.user == "") != (l.passwordFile == "") {
		return usageError{fmt.Errorf("--user and --password-file go together")}
	}
	if l.user != "" {
		var err error
		if l.password, err = node.ReadPassword(l.passwordFile); err != nil {
			return fmt.Errorf("--password-file: %w", err)
		}
	}
	l.ready = true
	return nil
}

func (l *login) trust() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if l.ca != "" {
		pool, err := security.CertPool(l.ca)
		if err != nil {
			return nil, fmt.Errorf("--tls-ca: %w", err)
		}
		cfg.RootCAs = pool
	}
	if l.cert != "" || l.key != "" {
		pair, err := tls.LoadX509KeyPair(l.cert, l.key)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert and --tls-key: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// kafka is how a client of Kafka logs in.
func (l *login) kafka() (opts []kgo.Opt, err error) {
	if err := l.read(); err != nil {
		return nil, err
	}
	if l.tls {
		trust, err := l.trust()
		if err != nil {
			return nil, err
		}
		opts = append(opts, kgo.DialTLSConfig(trust))
	}
	if l.user == "" {
		return opts, nil
	}
	switch l.mechanism {
	case security.ScramSHA512Name:
		return append(opts, kgo.SASL(scram.Auth{User: l.user, Pass: l.password}.AsSha512Mechanism())), nil
	case security.ScramSHA256Name:
		return append(opts, kgo.SASL(scram.Auth{User: l.user, Pass: l.password}.AsSha256Mechanism())), nil
	case security.Plain:
		return append(opts, kgo.SASL(plain.Auth{User: l.user, Pass: l.password}.AsMechanism())), nil
	}
	return nil, usageError{fmt.Errorf("--sasl-mechanism %q: want SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN", l.mechanism)}
}

// client is for the HTTP port.
func (l *login) client() (*http.Client, error) {
	if err := l.read(); err != nil {
		return nil, err
	}
	trust, err := l.trust()
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = trust
	return &http.Client{Transport: transport}, nil
}
