package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

// Clients are those who may use the catalog, read from a file:
//
//	# comment
//	key BASE64                    32 bytes that sign the access tokens
//	client ID SHA256              a client's id, and the SHA-256 of its secret in hexadecimal
//
// Secrets are drawn by [AddClient], 256 bits each, so their plain hash gives nothing away
// and is cheap to compare. The file is read again when it changes, so a client that is
// added or removed needs no restart; a token ends with its client. Nodes of a cluster have
// the same file.
type Clients struct {
	path string
	now  func() time.Time

	mu     sync.Mutex
	read   stamp             // guarded by mu; of the file as it was read
	key    []byte            // guarded by mu
	hashes map[string][]byte // guarded by mu; by client id
}

type stamp struct {
	modified time.Time
	size     int64
}

// TokenLifetime is how long an access token is good for.
const TokenLifetime = time.Hour

const tokenPath = "/v1/oauth/tokens"

var clientID = regexp.MustCompile(`^[A-Za-z0-9._@-]{1,128}$`)

// OpenClients reads a file of clients.
func OpenClients(path string) (*Clients, error) {
	c := &Clients{path: path, now: time.Now}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c, c.reload()
}

// reload reads the file if it has changed. The caller holds c.mu.
func (c *Clients) reload() error {
	info, err := os.Stat(c.path)
	if err != nil {
		return fmt.Errorf("clients of the REST catalog: %w", err)
	}
	now := stamp{info.ModTime(), info.Size()}
	if now == c.read {
		return nil
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("clients of the REST catalog: %s has secrets that others on this machine can read: chmod 600 it", c.path)
	}
	data, err := os.ReadFile(c.path)
	if err != nil {
		return fmt.Errorf("clients of the REST catalog: %w", err)
	}
	key, hashes, err := parseClients(data)
	if err != nil {
		return fmt.Errorf("clients of the REST catalog: %s: %w", c.path, err)
	}
	c.read, c.key, c.hashes = now, key, hashes
	return nil
}

func parseClients(data []byte) (key []byte, hashes map[string][]byte, err error) {
	hashes = map[string][]byte{}
	scan := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; scan.Scan(); n++ {
		fields := strings.Fields(scan.Text())
		switch {
		case len(fields) == 0 || strings.HasPrefix(fields[0], "#"):
		case fields[0] == "key" && len(fields) == 2 && key == nil:
			if key, err = base64.StdEncoding.DecodeString(fields[1]); err != nil || len(key) != 32 {
				return nil, nil, fmt.Errorf("line %d: the key is not 32 bytes in base64", n)
			}
		case fields[0] == "client" && len(fields) == 3 && clientID.MatchString(fields[1]) && hashes[fields[1]] == nil:
			hash, err := hex.DecodeString(fields[2])
			if err != nil || len(hash) != sha256.Size {
				return nil, nil, fmt.Errorf("line %d: not a SHA-256 in hexadecimal", n)
			}
			hashes[fields[1]] = hash
		default:
			return nil, nil, fmt.Errorf("line %d: want one \"key BASE64\", and \"client ID SHA256\" once for each id", n)
		}
	}
	if key == nil {
		return nil, nil, errors.New("there is no key: let `tabletopic catalog-client add` make the file")
	}
	return key, hashes, scan.Err()
}

// AddClient adds a client to a file, which is made if it is missing, and returns the secret,
// which nobody can read there.
func AddClient(path, id string) (secret string, err error) {
	if !clientID.MatchString(id) {
		return "", fmt.Errorf("client id %q: 1 to 128 letters, digits and . _ @ - are allowed", id)
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		key := make([]byte, 32)
		_, _ = rand.Read(key) // it never fails
		data, err = fmt.Appendf(nil, "key %s\n", base64.StdEncoding.EncodeToString(key)), nil
	}
	if err != nil {
		return "", err
	}
	_, hashes, err := parseClients(data)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	if hashes[id] != nil {
		return "", fmt.Errorf("%s: client %s exists: remove its line first", path, id)
	}
	random := make([]byte, 32)
	_, _ = rand.Read(random)
	secret = hex.EncodeToString(random)
	hash := sha256.Sum256([]byte(secret))
	if len(data) > 0 && data[len(data)-1] != '\n' {
		data = append(data, '\n')
	}
	data = fmt.Appendf(data, "client %s %s\n", id, hex.EncodeToString(hash[:]))
	return secret, replaceFile(path, data)
}

func replaceFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// A token is what an access token says: base64url(JSON).base64url(HMAC-SHA256 of that), under
// a key of the file and of the client's hash. To clients it is opaque.
type token struct {
	Client  string `json:"c"`
	Expires int64  `json:"e"` // seconds since 1970
}

// sign returns the access token of a client, or false if there is none of that id. The
// caller holds c.mu.
func (c *Clients) sign(t token) (string, bool) {
	hash, ok := c.hashes[t.Client]
	if !ok {
		return "", false
	}
	payload, err := json.Marshal(t)
	if err != nil {
		return "", false
	}
	text := base64.RawURLEncoding.EncodeToString(payload)
	mac := hmac.New(sha256.New, append(append([]byte{}, c.key...), hash...))
	mac.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil)), true
}

// Authenticated reports whether a request carries an access token of a client that is good now.
func (c *Clients) Authenticated(r *http.Request) bool {
	scheme, access, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	_, ok, err := c.authenticated(strings.TrimSpace(access))
	return ok && err == nil && strings.EqualFold(scheme, "Bearer")
}

// Users are those who may use the catalog besides its own clients, as whoever runs the server
// knows them.
type Users interface {
	// Token gives a user an access token for its password, and says how long it is good for. ok
	// is false if there is no such user, or its password is another.
	Token(ctx context.Context, user, password string) (token string, lifetime time.Duration, ok bool, err error)
	// Renewed gives an access token for one that is about to expire.
	Renewed(token string) (renewed string, lifetime time.Duration, ok bool)
}

// authenticated returns the client of an access token that is good now.
func (c *Clients) authenticated(access string) (client string, ok bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.reload(); err != nil {
		return "", false, err
	}
	text, _, _ := strings.Cut(access, ".")
	payload, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return "", false, nil
	}
	var t token
	if json.Unmarshal(payload, &t) != nil {
		return "", false, nil
	}
	want, ok := c.sign(t)
	if !ok || !hmac.Equal([]byte(want), []byte(access)) || c.now().Unix() >= t.Expires {
		return "", false, nil
	}
	return t.Client, true, nil
}

// login returns whether there is a client with that id and secret.
func (c *Clients) login(id, secret string) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.reload(); err != nil {
		return false, err
	}
	got := sha256.Sum256([]byte(secret))
	return subtle.ConstantTimeCompare(got[:], c.hashes[id]) == 1, nil
}

func (c *Clients) issue(id string) (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sign(token{id, c.now().Add(TokenLifetime).Unix()})
}

var errNoToken = errors.New("not authorized: a valid bearer token of this catalog is wanted")

// authenticate checks the bearer token of a request, if there are clients.
func (s *Server) authenticate(e endpoint, r *http.Request) error {
	if s.cfg.Clients == nil || e.path == tokenPath || s.cfg.Authenticated != nil && s.cfg.Authenticated(r) {
		return nil
	}
	scheme, access, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return errNoToken
	}
	_, ok, err := s.cfg.Clients.authenticated(strings.TrimSpace(access))
	if err == nil && !ok {
		err = errNoToken
	}
	return err
}

// An oauthError is the error body of OAuth2 (RFC 6749, 5.2).
type oauthError struct {
	status      int
	Kind        string `json:"error"`
	Description string `json:"error_description"`
}

func (e *oauthError) Error() string { return e.Kind + ": " + e.Description }

// token hands out access tokens: for a client's id and secret, and for a token that is
// about to expire. Every client has all rights; a scope is taken note of and grants nothing.
func (s *Server) token(r *request) (any, error) {
	form, err := url.ParseQuery(string(r.body))
	if err != nil {
		return nil, &oauthError{http.StatusBadRequest, "invalid_request", "the body is no form"}
	}
	id, secret, basic := r.BasicAuth()
	if basic { // RFC 6749, 2.3.1: the parts are form encoded
		if plain, err := url.QueryUnescape(id); err == nil {
			id = plain
		}
		if plain, err := url.QueryUnescape(secret); err == nil {
			secret = plain
		}
	} else {
		id, secret = form.Get("client_id"), form.Get("client_secret")
	}
	if access, lifetime, ok, err := s.userToken(r.Context(), id, secret, form); err != nil || ok {
		return tokenAnswer(access, lifetime, form), err
	}
	if s.cfg.Clients == nil {
		return nil, errClient
	}
	var ok bool
	switch grant := form.Get("grant_type"); grant {
	case "client_credentials":
		ok, err = s.cfg.Clients.login(id, secret)
	case "urn:ietf:params:oauth:grant-type:token-exchange":
		id, ok, err = s.cfg.Clients.authenticated(form.Get("subject_token"))
	default:
		return nil, &oauthError{http.StatusBadRequest, "unsupported_grant_type", "client_credentials and token-exchange are there"}
	}
	if err != nil {
		return nil, err
	}
	access, known := s.cfg.Clients.issue(id)
	if !ok || !known {
		return nil, errClient
	}
	return tokenAnswer(access, TokenLifetime, form), nil
}

var errClient = &oauthError{http.StatusUnauthorized, "invalid_client", "the client, its secret or its token is not valid"}

// userToken is token for those who are users.
func (s *Server) userToken(ctx context.Context, id, secret string, form url.Values) (access string, lifetime time.Duration, ok bool, err error) {
	if s.cfg.Users == nil {
		return "", 0, false, nil
	}
	if form.Get("grant_type") == "client_credentials" {
		return s.cfg.Users.Token(ctx, id, secret)
	}
	access, lifetime, ok = s.cfg.Users.Renewed(form.Get("subject_token"))
	return access, lifetime, ok, nil
}

func tokenAnswer(access string, lifetime time.Duration, form url.Values) map[string]any {
	answer := map[string]any{"access_token": access, "token_type": "bearer", "expires_in": int(lifetime.Seconds()),
		"issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}
	if scope := form.Get("scope"); scope != "" {
		answer["scope"] = scope
	}
	return answer
}
