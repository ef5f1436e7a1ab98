package broker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/security"
)

const (
	// maxAuthBytes bounds a request of a peer that has not proved who it is; authMemory all of
	// them at a time, apart from the memory of those who have.
	maxAuthBytes = 64 << 10
	authMemory   = 16 << 20
	// authFailureDelay is how long a peer waits for the news that it is not who it says, so
	// that it does not guess faster.
	authFailureDelay = 100 * time.Millisecond
)

// session is who is at the other end. It belongs to the goroutine that handles requests.
type session struct {
	client    security.Client
	mechanism string    // of SASL; "" if there was none
	expires   time.Time // zero if never

	handshake *request          // the last SaslHandshake
	offered   string            // the mechanism that it chose
	exchange  security.Exchange // nil unless one is under way
}

// secure makes the connection one of TLS, if its listener wants it, and names its peer. It
// returns when the handshake is over.
func (c *conn) secure() error {
	c.session.client = security.Client{Principal: security.Anonymous, Host: hostOf(c.peer)}
	c.authBy = time.Now().Add(c.b.cfg.AuthTimeout)
	if c.listener.TLS == nil {
		c.authenticated.Store(!c.listener.SASL)
		return nil
	}
	ctx, cancel := context.WithDeadline(c.ctx, c.authBy)
	defer cancel()
	t := c.nc.(*tls.Conn)
	if err := t.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("TLS handshake: %w", err)
	}
	if certs := t.ConnectionState().PeerCertificates; len(certs) > 0 && !c.listener.SASL {
		principal, err := c.listener.Mapping.Principal(certs[0])
		if err != nil {
			c.b.access.Failed("TLS", c.session.client.Host, err)
			return err
		}
		c.session.client.Principal = principal
	}
	c.authenticated.Store(!c.listener.SASL)
	return nil
}

// admit refuses a request whose peer would have to prove first who it is. An error closes the
// connection.
func (c *conn) admit(r *request) error {
	switch r.api.key {
	case kmsg.ApiVersions, kmsg.SASLHandshake, kmsg.SASLAuthenticate:
		return nil
	}
	if !c.authenticated.Load() && !invariant.Off("kafka-authenticate-first") {
		return errors.New("a request before authentication")
	}
	if s := &c.session; !s.expires.IsZero() && time.Now().After(s.expires) && !invariant.Off("kafka-session-expires") {
		return fmt.Errorf("the session of %s has expired, and was not authenticated again", s.client.Principal)
	}
	return nil
}

// rawToken takes a token of a client that began with SaslHandshake v0: it comes without the
// header of a request, and goes so.
func (c *conn) rawToken(ctx context.Context, token []byte) (*answer, error) {
	reply, _, err := c.authenticate(ctx, token)
	if err != nil {
		return nil, fmt.Errorf("authentication failed: %w", err) // there is no place for an error
	}
	return &answer{req: c.session.handshake, bufs: [][]byte{append(make([]byte, 4, 4+len(reply)), reply...)}}, nil
}

// authenticate takes the next token of an exchange. lifetime is how long the session lasts, 0
// if for ever or if the exchange goes on. An error ends the connection.
func (c *conn) authenticate(ctx context.Context, token []byte) (reply []byte, lifetime time.Duration, err error) {
	s := &c.session
	reply, id, err := s.exchange.Next(ctx, token)
	if err == nil && id != nil && s.mechanism != "" && id.Principal != s.client.Principal && !invariant.Off("reauthentication-same-principal") {
		err = &security.AuthenticationError{Reason: fmt.Sprintf("cannot become %s while authenticated as %s", id.Principal, s.client.Principal)}
	}
	if err != nil {
		s.exchange = nil
		c.b.access.Failed(s.offered, s.client.Host, err)
		select { // those who wait are bounded by the number of connections
		case <-time.After(authFailureDelay):
		case <-ctx.Done():
		}
		return nil, 0, err
	}
	if id == nil {
		return reply, 0, nil
	}
	now := time.Now()
	s.exchange, s.mechanism, s.client.Principal, s.expires = nil, s.offered, id.Principal, id.Expires
	if d := c.b.access.SessionLifetime(); d > 0 && (s.expires.IsZero() || now.Add(d).Before(s.expires)) {
		s.expires = now.Add(d)
	}
	if !s.expires.IsZero() {
		lifetime = max(s.expires.Sub(now), time.Millisecond)
	}
	c.raw.Store(false)
	c.authenticated.Store(true)
	return reply, lifetime, nil
}

// readDeadline is when the peer must have sent something, at the latest after d.
func (c *conn) readDeadline(d time.Duration) time.Time {
	t := time.Now().Add(d)
	if !c.authenticated.Load() && c.authBy.Before(t) {
		return c.authBy
	}
	return t
}

// frameBounds are the least and the most bytes of a request.
func (c *conn) frameBounds() (least, most int64) {
	switch {
	case c.raw.Load():
		return 1, maxAuthBytes
	case !c.authenticated.Load():
		return 8, min(maxAuthBytes, int64(c.b.cfg.MaxRequestBytes))
	}
	return 8, int64(c.b.cfg.MaxRequestBytes)
}
