package security

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// An issuer has a key, and says which at a URL.
type issuer struct {
	*httptest.Server
	key   *ecdsa.PrivateKey
	asked int
}

func newIssuer(t testing.TB) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{key: key}
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		i.asked++
		json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "one", Algorithm: "ES256", Use: "sig"}}})
	}))
	t.Cleanup(i.Close)
	return i
}

func signed(t testing.TB, alg jose.SignatureAlgorithm, key any, id string, claims map[string]any) string {
	t.Helper()
	opts := (&jose.SignerOptions{}).WithHeader("kid", id)
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, opts)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(s).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// A token is accepted for what its issuer signed, as long as it is good, and for nothing else.
func TestTokens(t *testing.T) {
	i := newIssuer(t)
	oauth, err := NewOAuth(OAuthConfig{JWKS: i.URL, Issuer: "https://issuer", Audience: "tabletopic"})
	if err != nil {
		t.Fatal(err)
	}
	a := openAccess(t, Config{Mechanisms: []string{OAuthBearer}, OAuth: oauth})
	now := time.Now()
	claims := func(change func(map[string]any)) map[string]any {
		c := map[string]any{"sub": "alice", "iss": "https://issuer", "aud": "tabletopic", "exp": now.Add(time.Minute).Unix()}
		change(c)
		return c
	}
	good := claims(func(map[string]any) {})
	token := signed(t, jose.ES256, i.key, "one", good)
	id, err := a.Bearer(t.Context(), token)
	if err != nil || id.Principal != "User:alice" || id.Expires.Unix() != now.Add(time.Minute).Unix() {
		t.Fatalf("%+v, %v", id, err)
	}
	parts := strings.Split(token, ".")
	encode := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public, err := json.Marshal(jose.JSONWebKey{Key: i.key.Public()})
	if err != nil {
		t.Fatal(err)
	}
	for name, token := range map[string]string{
		"alg none":              encode(`{"alg":"none"}`) + "." + parts[1] + ".",
		"alg none, signed":      encode(`{"alg":"none","kid":"one"}`) + "." + parts[1] + "." + parts[2],
		"HMAC with the key":     signed(t, jose.HS256, []byte(strings.Repeat(string(public), 2)), "one", good),
		"another key":           signed(t, jose.ES256, other, "one", good),
		"another key's id":      signed(t, jose.ES256, i.key, "two", good),
		"changed claims":        parts[0] + "." + encode(`{"sub":"admin"}`) + "." + parts[2],
		"expired":               signed(t, jose.ES256, i.key, "one", claims(func(c map[string]any) { c["exp"] = now.Add(-time.Minute).Unix() })),
		"not yet":               signed(t, jose.ES256, i.key, "one", claims(func(c map[string]any) { c["nbf"] = now.Add(time.Minute).Unix() })),
		"for ever":              signed(t, jose.ES256, i.key, "one", claims(func(c map[string]any) { delete(c, "exp") })),
		"another audience":      signed(t, jose.ES256, i.key, "one", claims(func(c map[string]any) { c["aud"] = "else" })),
		"no audience":           signed(t, jose.ES256, i.key, "one", claims(func(c map[string]any) { delete(c, "aud") })),
		"another issuer":        signed(t, jose.ES256, i.key, "one", claims(func(c map[string]any) { c["iss"] = "https://else" })),
		"nobody":                signed(t, jose.ES256, i.key, "one", claims(func(c map[string]any) { delete(c, "sub") })),
		"a node of the cluster": signed(t, jose.ES256, i.key, "one", claims(func(c map[string]any) { c["sub"] = "__node" })),
		"a number":              signed(t, jose.ES256, i.key, "one", claims(func(c map[string]any) { c["sub"] = 7 })),
		"huge":                  signed(t, jose.ES256, i.key, "one", claims(func(c map[string]any) { c["x"] = strings.Repeat("x", maxTokenBytes) })),
		"nothing":               "",
	} {
		if id, err := a.Bearer(t.Context(), token); !errors.As(err, new(*AuthenticationError)) {
			t.Errorf("%s: %+v, %v", name, id, err)
		}
	}
	// Who names keys that are not there does not make this server ask for each.
	if i.asked > 2 {
		t.Errorf("the issuer was asked %d times", i.asked)
	}
	// The exchange tells a client why in its own form, and ends when the client has understood.
	e := exchange(t, a, OAuthBearer)
	if _, id, err := e.Next(t.Context(), []byte("n,,\x01auth=Bearer "+token+"\x01\x01")); err != nil || id == nil || id.Principal != "User:alice" {
		t.Errorf("exchange: %+v, %v", id, err)
	}
	e = exchange(t, a, OAuthBearer)
	if answer, id, err := e.Next(t.Context(), []byte("n,a=bob,\x01auth=Bearer "+token+"\x01\x01")); err != nil || id != nil || !strings.Contains(string(answer), "invalid_token") {
		t.Errorf("as another user: %s, %+v, %v", answer, id, err)
	}
	if _, id, err := e.Next(t.Context(), []byte("\x01")); !errors.As(err, new(*AuthenticationError)) {
		t.Errorf("and then: %+v, %v", id, err)
	}
}

func TestOAuthConfigRefused(t *testing.T) {
	good := OAuthConfig{JWKS: "https://issuer/keys", Issuer: "i", Audience: "a"}
	if _, err := NewOAuth(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*OAuthConfig){
		"no keys": func(c *OAuthConfig) { c.JWKS = "" }, "no issuer": func(c *OAuthConfig) { c.Issuer = "" },
		"no audience": func(c *OAuthConfig) { c.Audience = "" }, "keys over http": func(c *OAuthConfig) { c.JWKS = "http://issuer/keys" },
	} {
		c := good
		change(&c)
		if _, err := NewOAuth(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestPrincipalMapping(t *testing.T) {
	const name = "CN=Duke,OU=ServiceUsers,O=Unknown,C=UK"
	for rules, want := range map[string]string{
		"": name, "DEFAULT": name,
		`RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/`:       "Duke",
		`RULE:^CN=(.*?),OU=ServiceUsers.*$/$1@$1x/L`:  "duke@dukex",
		`RULE:^CN=(.*?),O=no$/$1/ , RULE:^.*$/all/U`:  "ALL",
		`RULE:^CN=none$/x/,DEFAULT`:                   name,
		`RULE:^CN=(\w+),(.*\/|)OU=(\w+),.*$/$3\/$1/U`: "SERVICEUSERS/DUKE",
	} {
		m, err := ParseMapping(rules)
		if err != nil {
			t.Errorf("%s: %v", rules, err)
			continue
		}
		if got, err := m.name(name); got != want || err != nil {
			t.Errorf("%s: got %q, want %q, %v", rules, got, want, err)
		}
	}
	for _, bad := range []string{"x", "RULE:a", "RULE:a/b", "RULE:(/x/", "DEFAULT DEFAULT", "RULE:a/b/X"} {
		if _, err := ParseMapping(bad); err == nil {
			t.Errorf("%s: accepted", bad)
		}
	}
	m, err := ParseMapping("RULE:^CN=none$/x/")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := m.name(name); err == nil {
		t.Errorf("a name that no rule is for becomes %q", got)
	}
}
