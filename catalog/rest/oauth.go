package rest

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// tokens gets bearer tokens by OAuth2 client credentials, and renews each before it ends.
// It is iceberg-go's AuthManager.
type tokens struct {
	cfg    clientcredentials.Config
	client *http.Client
	now    func() time.Time

	asking chan struct{} // held by the one who asks for a token

	mu    sync.Mutex
	token string    // guarded by mu; "" if there is none
	renew time.Time // guarded by mu; when to ask for the next; never if zero
	ends  time.Time // guarded by mu
}

// maxRenewAhead is the longest that a token is renewed before its end; a third of its life
// if that is less.
const maxRenewAhead = 5 * time.Minute

func newTokens(cfg Config, transport http.RoundTripper, now func() time.Time) *tokens {
	id, secret, found := strings.Cut(cfg.Credential, ":")
	if !found {
		id, secret = "", cfg.Credential
	}
	t := &tokens{client: &http.Client{Transport: transport}, now: now, asking: make(chan struct{}, 1)}
	t.cfg = clientcredentials.Config{ClientID: id, ClientSecret: secret, TokenURL: cfg.TokenURI, Scopes: []string{cfg.Scope}, AuthStyle: oauth2.AuthStyleInParams}
	t.cfg.EndpointParams = url.Values{}
	for name, value := range map[string]string{"audience": cfg.Audience, "resource": cfg.Resource} {
		if value != "" {
			t.cfg.EndpointParams.Set(name, value)
		}
	}
	return t
}

// AuthHeader implements rest.AuthManager.
func (t *tokens) AuthHeader() (string, string, error) {
	return t.AuthHeaderWithContext(context.Background())
}

// AuthHeaderWithContext implements rest.ContextAuthManager.
func (t *tokens) AuthHeaderWithContext(ctx context.Context) (string, string, error) {
	token, err := t.get(ctx)
	return "Authorization", "Bearer " + token, err
}

// get returns a token that is valid for a while.
func (t *tokens) get(ctx context.Context) (string, error) {
	if token, good := t.current(); good {
		return token, nil
	}
	select {
	case t.asking <- struct{}{}:
		defer func() { <-t.asking }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	old, good := t.current()
	if good {
		return old, nil
	}
	fresh, err := t.cfg.Token(context.WithValue(ctx, oauth2.HTTPClient, t.client))
	if err != nil {
		if old != "" { // the next request asks again
			return old, nil
		}
		return "", fmt.Errorf("token from %s: %w", t.cfg.TokenURL, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.token, t.renew, t.ends = fresh.AccessToken, time.Time{}, time.Time{}
	if !fresh.Expiry.IsZero() {
		life := time.Until(fresh.Expiry)
		t.ends = t.now().Add(life)
		t.renew = t.ends.Add(-min(life/3, maxRenewAhead))
	}
	return t.token, nil
}

// current returns the token while it is valid, and whether it is not to be renewed yet.
func (t *tokens) current() (token string, good bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	if !t.ends.IsZero() && !now.Before(t.ends) {
		t.token = ""
	}
	return t.token, t.token != "" && (t.renew.IsZero() || now.Before(t.renew))
}

// drop forgets a token that the catalog did not take.
func (t *tokens) drop(header string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if header == "Bearer "+t.token {
		t.token = ""
	}
}
