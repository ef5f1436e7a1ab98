package security

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/metadata"
)

// Names of SASL mechanisms.
const (
	Plain           = "PLAIN"
	ScramSHA256Name = "SCRAM-SHA-256"
	ScramSHA512Name = "SCRAM-SHA-512"
	OAuthBearer     = "OAUTHBEARER"
)

// Mechanisms are all that there are.
var Mechanisms = []string{Plain, ScramSHA256Name, ScramSHA512Name, OAuthBearer}

func knownMechanism(name string) bool { return slices.Contains(Mechanisms, name) }

// An Identity is who proved to be whom.
type Identity struct {
	Principal string
	Expires   time.Time // zero if never
}

// An Exchange is one SASL exchange, of the server's side. Next takes what the client sent and
// returns what is to be sent back; the exchange is over when it returns an identity or an
// error. Errors of type [AuthenticationError] may be shown to the client, others not.
type Exchange interface {
	Next(ctx context.Context, token []byte) (answer []byte, id *Identity, err error)
}

// An AuthenticationError says why a client is not who it says, without telling what would help
// to guess.
type AuthenticationError struct{ Reason string }

func (e *AuthenticationError) Error() string { return e.Reason }

func refuse(format string, args ...any) error {
	return &AuthenticationError{fmt.Sprintf(format, args...)}
}

// Exchange begins an exchange, or returns false for a mechanism that is not offered. Nodes of
// the cluster can always use SCRAM-SHA-256.
func (a *Access) Exchange(mechanism string) (Exchange, bool) {
	offered := slices.Contains(a.cfg.Mechanisms, mechanism)
	switch {
	case mechanism == Plain && offered:
		return &plainExchange{a}, true
	case mechanism == ScramSHA256Name:
		return &scramExchange{a: a, mechanism: ScramSHA256, nodesOnly: !offered}, true
	case mechanism == ScramSHA512Name && offered:
		return &scramExchange{a: a, mechanism: ScramSHA512}, true
	case mechanism == OAuthBearer && offered:
		return &oauthExchange{a: a}, true
	}
	return nil, false
}

// Failed counts and writes down that a client at host could not prove who it is.
func (a *Access) Failed(mechanism, host string, err error) {
	if !knownMechanism(mechanism) && mechanism != "TLS" {
		mechanism = "other"
	}
	a.m.failures.WithLabelValues(mechanism).Inc()
	a.audit.Warn("authentication failed", "mechanism", mechanism, "host", host, "reason", err)
}

// plainExchange is PLAIN (RFC 4616).
type plainExchange struct{ a *Access }

func (e *plainExchange) Next(ctx context.Context, token []byte) ([]byte, *Identity, error) {
	parts := bytes.Split(token, []byte{0})
	if len(parts) != 3 {
		return nil, nil, refuse("a PLAIN token has three parts, this one %d", len(parts))
	}
	authzid, user, password := string(parts[0]), string(parts[1]), string(parts[2])
	switch {
	case user == "" || password == "":
		return nil, nil, refuse("the user name or the password is empty")
	case authzid != "" && authzid != user:
		return nil, nil, refuse("to act as another user is not supported")
	}
	principal, err := e.a.Password(ctx, user, password)
	if err != nil {
		return nil, nil, err
	}
	return []byte{}, &Identity{Principal: principal}, nil
}

// scramExchange is SCRAM without channel binding (RFC 5802, RFC 7677).
type scramExchange struct {
	a         *Access
	mechanism int8
	nodesOnly bool

	credential  metadata.ScramCredential
	clientFirst string // without its gs2 header
	serverFirst string
	gs2         string
	nonce       string
}

const maxNonce = 256

func (e *scramExchange) Next(_ context.Context, token []byte) ([]byte, *Identity, error) {
	if !utf8.Valid(token) {
		return nil, nil, refuse("a SCRAM message is not UTF-8")
	}
	if e.serverFirst == "" {
		answer, err := e.first(string(token))
		return answer, nil, err
	}
	return e.final(string(token))
}

// first takes n,[a=NAME],n=NAME,r=NONCE[,extensions].
func (e *scramExchange) first(message string) ([]byte, error) {
	flag, rest, ok := strings.Cut(message, ",")
	authzid, bare, ok2 := strings.Cut(rest, ",")
	if !ok || !ok2 || flag != "n" && flag != "y" {
		return nil, refuse("the first SCRAM message is malformed, or asks for channel binding, which is not supported")
	}
	fields := strings.Split(bare, ",")
	if len(fields) < 2 || !strings.HasPrefix(fields[0], "n=") || !strings.HasPrefix(fields[1], "r=") {
		return nil, refuse("the first SCRAM message has no user and nonce")
	}
	user, err := scramName(fields[0][2:])
	if err != nil {
		return nil, err
	}
	if authzid != "" {
		if name, err := scramName(strings.TrimPrefix(authzid, "a=")); err != nil || !strings.HasPrefix(authzid, "a=") || name != user {
			return nil, refuse("to act as another user is not supported")
		}
	}
	for _, ext := range fields[2:] {
		if ext == "tokenauth=true" {
			return nil, refuse("delegation tokens are not supported")
		}
	}
	client := fields[1][2:]
	if client == "" || len(client) > maxNonce {
		return nil, refuse("the nonce has %d bytes: want 1 to %d", len(client), maxNonce)
	}
	random := make([]byte, 24)
	_, _ = rand.Read(random) // it never fails
	e.nonce = client
	if !invariant.Off("scram-own-nonce") {
		e.nonce += base64.RawURLEncoding.EncodeToString(random)
	}
	e.credential = e.a.scramCredential(user, e.mechanism)
	if e.nodesOnly && user != nodeUser {
		return nil, refuse("the mechanism is not offered")
	}
	e.gs2 = flag + "," + authzid + ","
	e.clientFirst = bare
	e.serverFirst = "r=" + e.nonce + ",s=" + base64.StdEncoding.EncodeToString(e.credential.Salt) + ",i=" + strconv.Itoa(e.credential.Iterations)
	return []byte(e.serverFirst), nil
}

// final takes c=GS2,r=NONCE[,extensions],p=PROOF.
func (e *scramExchange) final(message string) ([]byte, *Identity, error) {
	i := strings.LastIndex(message, ",p=")
	if i < 0 {
		return nil, nil, refuse("the last SCRAM message has no proof")
	}
	withoutProof := message[:i]
	proof, err := base64.StdEncoding.DecodeString(message[i+3:])
	fields := strings.Split(withoutProof, ",")
	h := scramHash(e.mechanism)
	switch {
	case err != nil || len(proof) != h().Size():
		return nil, nil, refuse("the proof of the last SCRAM message is malformed")
	case len(fields) < 2 || fields[0] != "c="+base64.StdEncoding.EncodeToString([]byte(e.gs2)):
		return nil, nil, refuse("the channel binding of the last SCRAM message is not that of the first")
	case fields[1] != "r="+e.nonce:
		return nil, nil, refuse("the nonce of the last SCRAM message is not that of this exchange")
	}
	auth := e.clientFirst + "," + e.serverFirst + "," + withoutProof
	signature := mac(h, e.credential.StoredKey, auth)
	key := make([]byte, len(proof))
	subtle.XORBytes(key, proof, signature)
	stored := h()
	stored.Write(key)
	if !hmac.Equal(stored.Sum(nil), e.credential.StoredKey) {
		return nil, nil, errCredentials
	}
	return []byte("v=" + base64.StdEncoding.EncodeToString(mac(h, e.credential.ServerKey, auth))), &Identity{Principal: "User:" + e.credential.User}, nil
}

// scramName undoes the escapes of a name: =2C is a comma, =3D an equals sign.
func scramName(s string) (string, error) {
	if s == "" || len(s) > 3*255 {
		return "", refuse("the user name is empty or too long")
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] != '=':
			b.WriteByte(s[i])
		case strings.HasPrefix(s[i:], "=2C"):
			b.WriteByte(',')
			i += 2
		case strings.HasPrefix(s[i:], "=3D"):
			b.WriteByte('=')
			i += 2
		default:
			return "", refuse("the user name has an unknown escape")
		}
	}
	return b.String(), nil
}
