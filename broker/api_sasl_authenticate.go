package broker

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/security"
)

// handleSASLAuthenticate takes a token (KIP-152). After a failure the connection is closed.
func handleSASLAuthenticate(ctx context.Context, b *Broker, r *request) (*answer, error) {
	req := kmsg.NewPtrSASLAuthenticateRequest()
	if err := r.decode(ctx, req); err != nil {
		return nil, err
	}
	resp := kmsg.NewPtrSASLAuthenticateResponse()
	if r.conn.session.exchange == nil {
		resp.ErrorCode, resp.ErrorMessage = codeAndText(refuse(kerr.IllegalSaslState, "there was no SaslHandshake before"))
		a := r.reply(resp)
		a.last = !r.conn.authenticated.Load()
		return a, nil
	}
	reply, lifetime, err := r.conn.authenticate(ctx, req.SASLAuthBytes)
	if err != nil {
		text := "the server cannot check it now"
		if refused := (*security.AuthenticationError)(nil); errors.As(err, &refused) {
			text = refused.Reason
		}
		resp.ErrorCode, resp.ErrorMessage = codeAndText(refuse(kerr.SaslAuthenticationFailed, "authentication failed: %s", text))
		a := r.reply(resp)
		a.last = true
		return a, nil
	}
	resp.SASLAuthBytes, resp.SessionLifetimeMillis = reply, lifetime.Milliseconds()
	return r.reply(resp), nil
}
