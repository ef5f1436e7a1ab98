package broker

import (
	"context"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// handleSASLHandshake chooses the mechanism. With version 0 the tokens follow as they are,
// with version 1 in SaslAuthenticate. On a connection that is authenticated already it begins
// to do that again (KIP-368), if sessions end at all.
func handleSASLHandshake(ctx context.Context, b *Broker, r *request) (*answer, error) {
	req := kmsg.NewPtrSASLHandshakeRequest()
	if err := r.decode(ctx, req); err != nil {
		return nil, err
	}
	resp := kmsg.NewPtrSASLHandshakeResponse()
	resp.SupportedMechanisms = b.access.Mechanisms()
	s := &r.conn.session
	again := s.mechanism != ""
	if !r.conn.listener.SASL || again && s.expires.IsZero() || s.exchange != nil {
		resp.ErrorCode = kerr.IllegalSaslState.Code
		return r.reply(resp), nil
	}
	exchange, ok := b.access.Exchange(req.Mechanism)
	if !ok || again && req.Mechanism != s.mechanism {
		b.warn.Warn("mechanism refused", "peer", r.conn.peer, "mechanism", req.Mechanism, "offered", strings.Join(resp.SupportedMechanisms, ","))
		resp.ErrorCode = kerr.UnsupportedSaslMechanism.Code
		a := r.reply(resp)
		a.last = true
		return a, nil
	}
	s.handshake, s.offered, s.exchange = r, req.Mechanism, exchange
	if r.version == 0 {
		r.conn.raw.Store(true)
	}
	return r.reply(resp), nil
}
