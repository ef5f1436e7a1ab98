package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
)

// server is how administration commands reach a running node.
type server struct {
	bootstrap string
	http      string
	login
}

// serverFlags adds --bootstrap and --http with the defaults of serve.
func serverFlags(cmd *cobra.Command) *server {
	s := &server{}
	cmd.PersistentFlags().StringVar(&s.bootstrap, "bootstrap", "127.0.0.1:9092", "Kafka `HOST:PORT` of the server")
	cmd.PersistentFlags().StringVar(&s.http, "http", "127.0.0.1:8081", "HTTP `HOST:PORT` of the server; https:// is put before with --tls")
	s.login.flags(cmd)
	return s
}

func (s *server) kafka(opts ...kgo.Opt) (*kgo.Client, error) {
	own, err := s.login.kafka()
	if err != nil {
		return nil, err
	}
	conn, err := net.DialTimeout("tcp", s.bootstrap, 3*time.Second)
	if err != nil {
		return nil, s.unreachable(s.bootstrap, "--bootstrap", err)
	}
	conn.Close()
	opts = append(own, opts...)
	return kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(s.bootstrap), kgo.WithHooks(&outage{address: s.bootstrap, say: os.Stderr})}, opts...)...)
}

// outage says once that the server is gone, which the client waits out, and once that it
// is back.
type outage struct {
	address string
	say     io.Writer
	gone    atomic.Bool
}

// OnBrokerConnect implements kgo.HookBrokerConnect.
func (o *outage) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	switch {
	case errors.Is(err, context.Canceled):
	case err != nil && o.gone.CompareAndSwap(false, true):
		fmt.Fprintf(o.say, "tabletopic: the server at %s is gone (%v): waiting for it, Ctrl-C ends\n", o.address, err)
	case err == nil && o.gone.CompareAndSwap(true, false):
		fmt.Fprintf(o.say, "tabletopic: the server at %s is back\n", o.address)
	}
}

func (s *server) admin() (*kadm.Client, error) {
	cl, err := s.kafka()
	if err != nil {
		return nil, err
	}
	return kadm.NewClient(cl), nil
}

func (s *server) registry() (*sr.Client, error) {
	client, err := s.login.client()
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(s.url(""))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, usageError{fmt.Errorf("--http %q: want HOST:PORT", s.http)}
	}
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), u.Scheme)
	}
	conn, err := net.DialTimeout("tcp", address, 3*time.Second)
	if err != nil {
		return nil, s.unreachable(s.http, "--http", err)
	}
	conn.Close()
	opts := []sr.ClientOpt{sr.URLs(s.url("")), sr.HTTPClient(client)}
	if s.user != "" {
		opts = append(opts, sr.BasicAuth(s.user, s.password))
	}
	return sr.NewClient(opts...)
}

func (s *server) url(path string) string {
	if strings.Contains(s.http, "://") {
		return strings.TrimSuffix(s.http, "/") + path
	}
	if s.tls {
		return "https://" + s.http + path
	}
	return "http://" + s.http + path
}

func (s *server) unreachable(address, flag string, err error) error {
	return fmt.Errorf("no server at %s (%w): start one with 'tabletopic serve', or name another with %s", address, err, flag)
}

// api calls the administration API and decodes its answer into out.
func (s *server) api(ctx context.Context, method, path string, in, out any) error {
	body, err := s.open(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer body.Close()
	return json.NewDecoder(body).Decode(out)
}

// open calls the administration API and returns the body of a good answer.
func (s *server) open(ctx context.Context, method, path string, in any) (io.ReadCloser, error) {
	client, err := s.login.client()
	if err != nil {
		return nil, err
	}
	var payload io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		payload = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.url(path), payload)
	if err != nil {
		return nil, err
	}
	if s.user != "" {
		req.SetBasicAuth(s.user, s.password)
	}
	resp, err := client.Do(req)
	if err != nil {
		if errors.As(err, new(*net.OpError)) {
			return nil, s.unreachable(s.http, "--http", err)
		}
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		var e struct{ Message string }
		if json.Unmarshal(text, &e) == nil && e.Message != "" {
			return nil, errors.New(e.Message)
		}
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(text))
	}
	return resp.Body, nil
}

// kafkaError is the error of doing something to a topic: the server's explanation if it
// gave one, which says more than Kafka's code.
func kafkaError(doing, topic string, err error, message string) error {
	var ke *kerr.Error
	switch {
	case err == nil:
		return nil
	case message != "" && errors.As(err, &ke):
		return fmt.Errorf("%s (%s)", message, ke.Message)
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return fmt.Errorf("%s %s: there is no such topic: 'tabletopic topic list' shows those there are, 'tabletopic topic create %s' makes one", doing, topic, topic)
	}
	return fmt.Errorf("%s %s: %w", doing, topic, err)
}
