package security

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// OAuthConfig says whose tokens are accepted.
type OAuthConfig struct {
	// JWKS is where the issuer's keys are: an https:// (or http:// on loopback) URL, or a file.
	JWKS string
	// Issuer and Audience are what the claims iss and aud must be, or hold.
	Issuer, Audience string
	// Principal is the claim that names the user. "sub" if empty.
	Principal string
	// Skew is how far clocks may be apart. 30 s if zero.
	Skew time.Duration
}

// OAuth checks bearer tokens: JWTs that are signed, by a key of the issuer, with an asymmetric
// algorithm that the key is for.
type OAuth struct {
	cfg    OAuthConfig
	client *http.Client
	now    func() time.Time

	mu     sync.Mutex
	keys   jose.JSONWebKeySet // guarded by mu
	read   time.Time          // guarded by mu; the last try
	failed error              // guarded by mu; of the last try
}

const (
	maxJWKS       = 1 << 20
	keysFor       = time.Hour        // before the keys are read again
	keysPause     = 10 * time.Second // at least, between two reads, whatever tokens name
	jwksPatience  = 10 * time.Second
	maxTokenBytes = 16 << 10
)

// algorithms are those that a token may be signed with. none and those with a shared secret
// are not among them.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA}

// NewOAuth checks the configuration. The keys are read when the first token comes.
func NewOAuth(cfg OAuthConfig) (*OAuth, error) {
	if cfg.Principal == "" {
		cfg.Principal = "sub"
	}
	if cfg.Skew == 0 {
		cfg.Skew = 30 * time.Second
	}
	switch {
	case cfg.JWKS == "" || cfg.Issuer == "" || cfg.Audience == "":
		return nil, errors.New("tokens are accepted only of a named issuer, for a named audience, and with its keys: set all three")
	case strings.HasPrefix(cfg.JWKS, "http://") && !Loopback(cfg.JWKS):
		return nil, fmt.Errorf("keys from %s could be exchanged on the way: want https://", cfg.JWKS)
	}
	return &OAuth{cfg: cfg, client: &http.Client{Timeout: jwksPatience}, now: time.Now}, nil
}

// check returns who a token is for.
func (o *OAuth) check(ctx context.Context, token string) (*Identity, error) {
	if len(token) > maxTokenBytes {
		return nil, refuse("the token has %d bytes: at most %d are read", len(token), maxTokenBytes)
	}
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil || len(parsed.Headers) != 1 {
		return nil, refuse("the token is no JWT signed with one of %v", algorithms)
	}
	keys, err := o.keysFor(ctx, parsed.Headers[0].KeyID)
	if err != nil {
		return nil, err
	}
	var claims jwt.Claims
	var all map[string]any
	verified := false
	for _, k := range keys {
		if k.Algorithm != "" && k.Algorithm != parsed.Headers[0].Algorithm || k.Use != "" && k.Use != "sig" || !k.IsPublic() {
			continue
		}
		if parsed.Claims(k.Key, &claims, &all) == nil {
			verified = true
			break
		}
	}
	if !verified {
		return nil, refuse("the token is not signed by its issuer")
	}
	if claims.Expiry == nil {
		return nil, refuse("the token never expires: such tokens are not accepted")
	}
	if err := claims.ValidateWithLeeway(jwt.Expected{Issuer: o.cfg.Issuer, AnyAudience: jwt.Audience{o.cfg.Audience}, Time: o.now()}, o.cfg.Skew); err != nil {
		return nil, refuse("the token is not valid here and now: %v", err)
	}
	name, _ := all[o.cfg.Principal].(string)
	if err := CheckUserName(name); err != nil {
		return nil, refuse("the claim %s of the token names no user: %v", o.cfg.Principal, err)
	}
	return &Identity{Principal: "User:" + name, Expires: claims.Expiry.Time()}, nil
}

// keysFor returns the issuer's keys, those of an id if the token names one. A key that is not
// known is looked for, but seldom: anybody can name one.
func (o *OAuth) keysFor(ctx context.Context, id string) ([]jose.JSONWebKey, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	find := func() []jose.JSONWebKey {
		if id == "" {
			return o.keys.Keys
		}
		return o.keys.Key(id)
	}
	age := o.now().Sub(o.read)
	if o.read.IsZero() || age > keysFor || age > keysPause && (len(find()) == 0 || o.failed != nil) {
		o.read = o.now()
		if keys, err := o.load(context.WithoutCancel(ctx)); err != nil {
			o.failed = fmt.Errorf("keys of tokens: %s: %w", o.cfg.JWKS, err)
		} else {
			o.keys, o.failed = keys, nil
		}
	}
	found := find()
	if len(found) == 0 && o.failed != nil {
		return nil, o.failed
	}
	return found, nil
}

func (o *OAuth) load(ctx context.Context) (keys jose.JSONWebKeySet, err error) {
	var text []byte
	if strings.Contains(o.cfg.JWKS, "://") {
		text, err = o.fetch(ctx)
	} else {
		text, err = os.ReadFile(o.cfg.JWKS)
	}
	if err != nil {
		return keys, err
	}
	if err := json.Unmarshal(text, &keys); err != nil {
		return keys, err
	}
	if len(keys.Keys) == 0 {
		return keys, errors.New("no keys there")
	}
	return keys, nil
}

func (o *OAuth) fetch(ctx context.Context) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, o.cfg.JWKS, nil)
	if err != nil {
		return nil, err
	}
	resp, err := o.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxJWKS+1))
	if err == nil && len(text) > maxJWKS {
		err = fmt.Errorf("more than %d bytes", maxJWKS)
	}
	return text, err
}

// Bearer returns who a token is for.
func (a *Access) Bearer(ctx context.Context, token string) (*Identity, error) {
	if strings.HasPrefix(token, ownToken) {
		return a.userOf(token)
	}
	if a.cfg.OAuth == nil {
		return nil, refuse("tokens are not accepted")
	}
	return a.cfg.OAuth.check(ctx, token)
}

// oauthExchange is OAUTHBEARER (RFC 7628).
type oauthExchange struct {
	a      *Access
	failed error // the client was told, and says that it understood
}

func (e *oauthExchange) Next(ctx context.Context, token []byte) ([]byte, *Identity, error) {
	if e.failed != nil {
		return nil, nil, e.failed
	}
	authzid, bearer, err := parseOAuthMessage(token)
	if err != nil {
		return nil, nil, err
	}
	id, err := e.a.Bearer(ctx, bearer)
	if err == nil && authzid != "" && "User:"+authzid != id.Principal {
		err = refuse("to act as another user is not supported")
	}
	if ae := (*AuthenticationError)(nil); errors.As(err, &ae) {
		e.failed = err
		return []byte(`{"status":"invalid_token"}`), nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	return []byte{}, id, nil
}

// parseOAuthMessage takes n,[a=NAME],^Aauth=Bearer TOKEN^A[KEY=VALUE^A…]^A.
func parseOAuthMessage(message []byte) (authzid, token string, err error) {
	malformed := refuse("the OAUTHBEARER message is malformed")
	header, rest, ok := bytes.Cut(message, []byte{1})
	gs2 := strings.Split(string(header), ",")
	if !ok || len(gs2) != 3 || gs2[0] != "n" && gs2[0] != "y" || gs2[2] != "" || gs2[1] != "" && !strings.HasPrefix(gs2[1], "a=") {
		return "", "", malformed
	}
	if gs2[1] != "" {
		if authzid, err = scramName(gs2[1][2:]); err != nil {
			return "", "", malformed
		}
	}
	body, ok := bytes.CutSuffix(rest, []byte{1, 1})
	if !ok {
		return "", "", malformed
	}
	pairs := strings.Split(string(body), "\x01")
	i := slices.IndexFunc(pairs, func(p string) bool { return strings.HasPrefix(p, "auth=") })
	if i < 0 {
		return "", "", malformed
	}
	scheme, token, ok := strings.Cut(pairs[i][len("auth="):], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", "", malformed
	}
	return authzid, strings.TrimSpace(token), nil
}
