package rest

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/catalogtest"
	"github.com/tabletopic/tabletopic/objectstore"
)

// clock is set by the test.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// issuer gives tokens that live 30 s, and lets only those in.
type issuer struct {
	clock *clock
	next  http.Handler

	mu      sync.Mutex
	ends    map[string]time.Time // by token
	issued  int
	refused int
	away    bool // no tokens for now
}

func (i *issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := i.clock.now()
	if strings.HasSuffix(r.URL.Path, "/oauth/tokens") {
		if r.FormValue("grant_type") != "client_credentials" || r.FormValue("client_id") != "id" || r.FormValue("client_secret") != "se:cret" ||
			r.FormValue("scope") != "all" || r.FormValue("audience") != "tables" || i.away {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		i.issued++
		token := fmt.Sprintf("token-%d", i.issued)
		i.ends[token] = now.Add(30 * time.Second)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":%q,"token_type":"bearer","expires_in":30}`, token)
		return
	}
	if end, ok := i.ends[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]; !ok || !now.Before(end) {
		i.refused++
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"error":{"message":"no valid token","type":"NotAuthorizedException","code":401}}`)
		return
	}
	i.next.ServeHTTP(w, r)
}

func forward(t *testing.T, target string) (http.Handler, string) {
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	return httputil.NewSingleHostReverseProxy(&url.URL{Scheme: u.Scheme, Host: u.Host}), u.Path
}

// Tokens of 30 s serve a catalog for minutes without one refusal: each is renewed before its
// end. One that the catalog drops is renewed when it says so, and the request is done.
func TestTokensAreRenewedBeforeTheyEnd(t *testing.T) {
	store := catalogtest.Store{Prefix: "file:///w/", Bucket: objectstore.NewMemory()}
	next, path := forward(t, ownServer(t, store))
	i := &issuer{clock: &clock{at: time.Unix(1e9, 0)}, next: next, ends: map[string]time.Time{}}
	h := httptest.NewServer(i)
	defer h.Close()
	c, err := open(store, Config{URI: h.URL + path, Credential: "id:se:cret", Scope: "all", Audience: "tables"}, i.clock.now)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	tbl := create(t, c)
	for n := range 60 {
		i.clock.advance(5 * time.Second)
		if tbl, err = c.Commit(t.Context(), tbl, appendFile(t, tbl, fmt.Sprint(n))); err != nil {
			t.Fatalf("after %d s: %v", 5*(n+1), err)
		}
	}
	if i.refused != 0 || i.issued < 10 {
		t.Errorf("%d requests refused, want 0, with %d tokens", i.refused, i.issued)
	}
	clear(i.ends)
	if tbl, err = c.Commit(t.Context(), tbl, appendFile(t, tbl, "revoked")); err != nil || i.refused != 1 {
		t.Errorf("commit with a revoked token: %v, refused %d times", err, i.refused)
	}
	// A token server that is away at renewal is no matter while the token lives.
	i.away = true
	i.clock.advance(25 * time.Second)
	if tbl, err = c.Commit(t.Context(), tbl, appendFile(t, tbl, "early")); err != nil {
		t.Errorf("commit with a token to be renewed: %v", err)
	}
	i.clock.advance(10 * time.Second)
	if _, err = c.Commit(t.Context(), tbl, appendFile(t, tbl, "late")); !errors.Is(err, catalog.ErrCommitUnknown) {
		t.Errorf("commit without a token: %v, want %v", err, catalog.ErrCommitUnknown)
	}
}

// Prefix, warehouse and headers reach the catalog as they were configured.
func TestRequestsCarryWhatIsConfigured(t *testing.T) {
	store := catalogtest.Store{Prefix: "file:///w/", Bucket: objectstore.NewMemory()}
	next, path := forward(t, ownServer(t, store))
	var bad []string
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rest := strings.TrimPrefix(r.URL.Path, path+"/v1/")
		switch {
		case r.Header.Get("X-Realm") != "r1", r.Header.Get("Authorization") != "Bearer secret", r.Header.Get("X-Iceberg-Access-Delegation") != "":
			bad = append(bad, fmt.Sprint(r.URL.Path, r.Header))
		case rest == "config" && r.URL.Query().Get("warehouse") != "house":
			bad = append(bad, r.URL.String())
		case rest != "config" && !strings.HasPrefix(rest, "lake/one/"):
			bad = append(bad, r.URL.String())
		}
		r.URL.Path = strings.Replace(r.URL.Path, "/lake/one/", "/", 1)
		next.ServeHTTP(w, r)
	}))
	defer h.Close()
	c, err := Open(store, Config{URI: h.URL + path + "/", Prefix: "lake/one", Warehouse: "house", Token: "secret",
		Headers: map[string]string{"X-Realm": "r1"}, OwnCredentials: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	tbl := create(t, c)
	if _, err := c.Commit(t.Context(), tbl, appendFile(t, tbl, "a")); err != nil {
		t.Error(err)
	}
	for _, b := range bad {
		t.Error(b)
	}
}

// A catalog with a certificate of its own is trusted if that is configured, else not spoken to.
func TestTLSTrust(t *testing.T) {
	store := catalogtest.Store{Prefix: "file:///w/", Bucket: objectstore.NewMemory()}
	next, path := forward(t, ownServer(t, store))
	h := httptest.NewUnstartedServer(next)
	h.Config.ErrorLog = log.New(io.Discard, "", 0)
	h.StartTLS()
	defer h.Close()
	pool := x509.NewCertPool()
	pool.AddCert(h.Certificate())
	for _, trust := range []*tls.Config{{RootCAs: pool}, nil} {
		c, err := Open(store, Config{URI: h.URL + path, TLS: trust})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.Connect(t.Context()); (err == nil) != (trust != nil) {
			t.Errorf("trust %v: %v", trust != nil, err)
		}
	}
}

// What cannot be meant is refused before anything is asked.
func TestOpenRefuses(t *testing.T) {
	for _, cfg := range []Config{
		{URI: "catalog:8181"}, {URI: "ftp://catalog"}, {URI: "http://c", Token: "t", Credential: "a:b"},
		{URI: "http://c", Token: "t", SigV4: &SigV4{}}, {URI: "http://c", Credential: "a:b", TokenURI: "tokens"},
		{URI: "http://u:hushhush@c"}, {URI: "http://u:hushhush%zz@c"}, {URI: "http://c", Credential: "a:b", TokenURI: "https://hushhush@c/tokens"},
	} {
		if _, err := Open(catalogtest.Store{}, cfg); err == nil || strings.Contains(err.Error(), "hushhush") {
			t.Errorf("%+v: %v, want a refusal without the password", cfg, err)
		}
	}
}

// A catalog, or its token server, that repeats in a refusal what it was asked with is quoted without
// what is secret in that.
func TestRefusalsAreQuotedWithoutSecrets(t *testing.T) {
	tokens := false // are given
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		if strings.HasSuffix(r.URL.Path, "/oauth/tokens") && tokens {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"access_token":"issued-secret","token_type":"bearer","expires_in":3600}`)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		said := fmt.Sprintf("you said %s, %s, %s", r.Header.Get("Authorization"), r.Header.Get("X-Key"), r.PostForm.Get("client_secret"))
		fmt.Fprintf(w, `{"error":{"message":%q,"type":"ForbiddenException","code":403}}`, said)
	}))
	defer h.Close()
	for _, c := range []struct {
		cfg    Config
		tokens bool
	}{
		{Config{Token: "bearer-secret"}, false},
		{Config{Credential: "id:client-secret"}, false},
		{Config{Credential: "id:client-secret"}, true},
		{Config{Headers: map[string]string{"X-Key": "header-secret"}}, false},
	} {
		tokens, c.cfg.URI = c.tokens, h.URL
		cat, err := Open(catalogtest.Store{}, c.cfg)
		if err != nil {
			t.Fatal(err)
		}
		_, err = cat.Load(t.Context(), table.Identifier{"a", "b"})
		if err == nil || !strings.Contains(err.Error(), "you said") || !strings.Contains(err.Error(), "(secret)") || strings.Contains(err.Error(), "-secret") {
			t.Errorf("%+v: %v", c.cfg, err)
		}
		cat.Close()
	}
}

// vendor is a store that lets in who has keys that its catalog gave in the last 60 s.
type vendor struct {
	clock  *clock
	bucket objectstore.Bucket

	mu      sync.Mutex
	keys    int
	ends    map[string]time.Time // by access key
	refused int
	puts    int
}

// grant says in the catalog's configuration where the store is, and adds new keys to the
// answers that hold a table.
func (v *vendor) grant(endpoint string) func(body []byte) []byte {
	return func(body []byte) []byte {
		if strings.Contains(string(body), `"overrides"`) { // of the configuration
			return []byte(fmt.Sprintf(`{"defaults":{"s3.endpoint":%q,"s3.path-style-access":"true"},"overrides":{"client.region":"us-east-1"}}`, endpoint))
		}
		if !strings.Contains(string(body), `"metadata-location"`) {
			return body
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		v.keys++
		key, end := fmt.Sprintf("key-%d", v.keys), v.clock.now().Add(time.Minute)
		v.ends[key] = end
		settings := fmt.Sprintf(`"s3.access-key-id":%q,"s3.secret-access-key":"s","s3.session-token":"t","s3.session-token-expires-at-ms":"%d"`, key, end.UnixMilli())
		return []byte(fmt.Sprintf(`{"config":{},"storage-credentials":[{"prefix":"s3://w/","config":{%s}}],`, settings) +
			strings.TrimPrefix(strings.Replace(string(body), `"config":{},`, "", 1), "{"))
	}
}

func (v *vendor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v.mu.Lock()
	_, key, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	key, _, _ = strings.Cut(key, "/")
	valid := v.clock.now().Before(v.ends[key]) && r.Header.Get("X-Amz-Security-Token") == "t"
	if !valid {
		v.refused++
	}
	v.mu.Unlock()
	key = strings.TrimPrefix(r.URL.Path, "/w/")
	switch {
	case !valid:
		w.WriteHeader(http.StatusForbidden)
	case r.Method == http.MethodPut:
		v.mu.Lock()
		v.puts++
		v.mu.Unlock()
		body, _ := io.ReadAll(r.Body)
		if err := v.bucket.PutIfAbsent(r.Context(), key, body); err != nil {
			w.WriteHeader(http.StatusPreconditionFailed)
		}
	case r.Method == http.MethodGet:
		body, err := v.bucket.Get(r.Context(), key, 0, -1)
		if err != nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body)
	default:
		w.WriteHeader(http.StatusNotImplemented)
	}
}

// Files of a table are reached with the keys that its catalog vends, which are renewed before
// they end; each table has its own.
func TestVendedCredentialsAreRenewed(t *testing.T) {
	memory := objectstore.NewMemory()
	v := &vendor{clock: &clock{at: time.Unix(2e9, 0)}, bucket: memory, ends: map[string]time.Time{}}
	s3 := httptest.NewServer(v)
	defer s3.Close()
	p := newProxy(t, ownServer(t, catalogtest.Store{Prefix: "s3://w/", Bucket: memory}))
	p.Modify = v.grant(s3.URL)
	locator := objectstore.NewLocator(objectstore.S3Config{Endpoint: "http://127.0.0.1:1", Region: "us-east-1"})
	c, err := open(locator, Config{URI: p.URI}, v.clock.now)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	tbl := create(t, c)
	for n := range 60 {
		v.clock.advance(5 * time.Second)
		if tbl, err = c.Commit(t.Context(), tbl, appendFile(t, tbl, fmt.Sprint(n))); err != nil {
			t.Fatalf("after %d s: %v", 5*(n+1), err)
		}
	}
	if v.refused != 0 || v.puts < 100 || v.keys < 6 {
		t.Errorf("%d requests refused, want 0, of %d writes with %d keys", v.refused, v.puts, v.keys)
	}
	// Another server that only writes files borrows them, once in ten minutes.
	elsewhere := objectstore.NewLocator(objectstore.S3Config{Endpoint: "http://127.0.0.1:1", Region: "us-east-1"})
	writer, err := open(elsewhere, Config{URI: p.URI}, v.clock.now)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	keys := v.keys
	for range 3 {
		if err := writer.Borrow(t.Context(), tbl.Identifier()); err != nil {
			t.Fatal(err)
		}
	}
	bucket, key, err := elsewhere.Resolve(t.Context(), tbl.Location()+"/data/x")
	if err != nil {
		t.Fatal(err)
	}
	if err := bucket.PutIfAbsent(t.Context(), key, []byte("x")); err != nil || v.keys != keys+1 {
		t.Errorf("put with borrowed keys: %v; %d keys were given, want 1", err, v.keys-keys)
	}
	other, err := c.Create(t.Context(), table.Identifier{"web", "other"}, catalogtest.Schema(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.grants) != 2 {
		t.Errorf("%d grants, want one for each table", len(c.grants))
	}
	if _, err := c.Commit(t.Context(), other, appendFile(t, other, "a")); err != nil {
		t.Error(err)
	}
}
