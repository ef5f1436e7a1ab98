// Package rest is an external Iceberg REST catalog, spoken to by iceberg-go.
//
// A commit is one POST. Its outcome is told from the HTTP status, which a transport of
// our own notes for each call: 409 is a conflict, a definite 4xx is final, and all else,
// lost answers and answers that cannot be read included, is unknown. The transport also
// removes fields of newer format versions that iceberg-go would refuse.
//
// Tokens and vended credentials are renewed when two thirds of their life are over, or five
// minutes before its end, so that none is ever seen to end.
package rest

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/iceberg-go"
	icecatalog "github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/catalog/rest"
	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/awsconfig"
)

// Config of a Catalog.
type Config struct {
	// URI of the catalog, without /v1.
	URI string
	// Prefix of the catalog's paths, behind /v1. What the catalog says itself if empty.
	Prefix string
	// Warehouse, for catalogs that serve several.
	Warehouse string

	// Token is sent as a bearer token. It, Credential and SigV4 exclude each other; without
	// any of them there is no authentication.
	Token string
	// Credential is client_id:client_secret of OAuth2. Tokens are renewed before they end,
	// and when the catalog refuses one.
	Credential string
	// Scope of the OAuth2 token. "catalog" if empty.
	Scope string
	// Audience and Resource of the OAuth2 token, for servers that ask for them.
	Audience, Resource string
	// TokenURI is where tokens are asked for. <URI>/v1/oauth/tokens if empty.
	TokenURI string
	// SigV4 signs requests as AWS wants it. Unsigned if nil.
	SigV4 *SigV4

	// Headers are sent with each request.
	Headers map[string]string
	// TLS says whom to trust, and which certificate to show. The system's trust if nil.
	TLS *tls.Config
	// OwnCredentials keeps to our own credentials for files, also if the catalog vends some.
	OwnCredentials bool
	// PurgeOnDrop makes Drop delete the files too, for catalogs that know no other drop.
	PurgeOnDrop bool
	// Timeout of one request. 60 s if zero.
	Timeout time.Duration
}

// SigV4 is how requests are signed.
type SigV4 struct {
	// AWS gives region and credentials.
	AWS awsconfig.Config
	// Service is the signing name. "execute-api" if empty.
	Service string
}

// Catalog is safe for concurrent use.
type Catalog struct {
	cfg       Config
	locator   catalog.Locator
	transport *transport
	now       func() time.Time
	recent    catalog.Recent

	connecting chan struct{}                // held by the one who asks for the configuration
	client     atomic.Pointer[rest.Catalog] // nil until the catalog has told it
	storage    map[string]string            // what it told of where files are; set before client
	life       context.Context              // of the client
	end        context.CancelFunc

	mu       sync.Mutex
	grants   map[string]*grant    // guarded by mu; by location: no more than the tables that are loaded
	borrowed map[string]time.Time // guarded by mu; when Borrow last asked for a table
}

// ErrUnavailable says that a catalog does not answer, or not for now.
var ErrUnavailable = errors.New("catalog is not available")

// Open prepares a catalog and asks it nothing: the first call does, and each one after that
// until the catalog has answered, so that a catalog that is away costs nothing but its
// tables. Files are read and written with the buckets of locator. If that is a [Lender],
// and the catalog vends credentials for a table, the table's files are reached with those.
func Open(locator catalog.Locator, cfg Config) (*Catalog, error) { return open(locator, cfg, time.Now) }

func open(locator catalog.Locator, cfg Config, now func() time.Time) (*Catalog, error) {
	cfg.URI = strings.TrimRight(cfg.URI, "/")
	if err := checkAddress("REST catalog", cfg.URI); err != nil {
		return nil, err
	}
	ways := 0
	for _, way := range []bool{cfg.Token != "", cfg.Credential != "", cfg.SigV4 != nil} {
		if way {
			ways++
		}
	}
	if ways > 1 {
		return nil, fmt.Errorf("REST catalog %s: a token, a credential and a signature exclude each other", cfg.URI)
	}
	if cfg.TokenURI == "" {
		cfg.TokenURI = cfg.URI + "/v1/oauth/tokens"
	}
	if err := checkAddress("token URI of REST catalog "+cfg.URI, cfg.TokenURI); err != nil {
		return nil, err
	}
	if cfg.Scope == "" {
		cfg.Scope = "catalog"
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	t := &transport{timeout: cfg.Timeout, base: http.DefaultTransport.(*http.Transport).Clone(), secrets: cfg.secrets()}
	t.base.TLSClientConfig = cfg.TLS
	if cfg.Credential != "" {
		t.tokens = newTokens(cfg, &transport{timeout: cfg.Timeout, base: t.base, secrets: t.secrets}, now)
	}
	c := &Catalog{cfg: cfg, locator: locator, transport: t, now: now, connecting: make(chan struct{}, 1), grants: map[string]*grant{}, borrowed: map[string]time.Time{}}
	c.life, c.end = context.WithCancel(context.Background())
	return c, nil
}

// checkAddress refuses what is no address, and what holds more than one, without showing it: errors
// and logs name addresses.
func checkAddress(what, address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return fmt.Errorf("%s: it cannot be read: an http or https address is wanted", what)
	case u.User != nil:
		return fmt.Errorf("%s at %s: its address has a user or a password, which errors would show: use a token, a credential or a header", what, u.Host)
	case u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("%s %q: an http or https address is wanted", what, address)
	}
	return nil
}

// options are iceberg-go's.
func (c *Catalog) options(ctx context.Context) ([]rest.Option, error) {
	cfg := c.cfg
	out := []rest.Option{rest.WithCustomTransport(c.transport), rest.WithWarehouseLocation(cfg.Warehouse),
		rest.WithPrefix(cfg.Prefix), rest.WithHeaders(cfg.headers()), rest.WithOAuthToken(cfg.Token)}
	if c.transport.tokens != nil {
		out = append(out, rest.WithAuthManager(c.transport.tokens))
	}
	if cfg.SigV4 != nil {
		loaded, err := awsconfig.Load(ctx, cfg.SigV4.AWS)
		if err != nil {
			return nil, err
		}
		out = append(out, rest.WithAwsConfig(loaded), rest.WithSigV4RegionSvc(loaded.Region, cfg.SigV4.Service))
	}
	return out, nil
}

func (c Config) headers() map[string]string {
	out := maps.Clone(c.Headers)
	if c.OwnCredentials {
		if out == nil {
			out = map[string]string{}
		}
		out["X-Iceberg-Access-Delegation"] = "" // iceberg-go asks for credentials by itself
	}
	return out
}

// Connect asks the catalog for its configuration unless it is known. ErrUnavailable if a
// later attempt may succeed; any other error is the catalog's refusal.
func (c *Catalog) Connect(ctx context.Context) error {
	_, err := c.connect(ctx)
	return err
}

func (c *Catalog) connect(ctx context.Context) (*rest.Catalog, error) {
	if client := c.client.Load(); client != nil {
		return client, nil
	}
	select {
	case c.connecting <- struct{}{}:
		defer func() { <-c.connecting }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if client := c.client.Load(); client != nil {
		return client, nil
	}
	status := new(atomic.Int32)
	var config []byte
	life, end := context.WithCancel(context.WithValue(context.WithValue(c.life, statusKey{}, status), bodyKey{}, &config))
	stop := context.AfterFunc(ctx, end)
	options, err := c.options(ctx)
	if err != nil {
		stop()
		end()
		return nil, fmt.Errorf("open REST catalog %s: %w", c.cfg.URI, err)
	}
	client, err := rest.NewCatalog(life, "rest", c.cfg.URI, options...)
	if !stop() && err == nil { // too late: its life has ended
		_ = client.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		end()
		c.transport.base.CloseIdleConnections()
		if definite := status.Load() >= 400 && !errors.Is(outcome(int(status.Load()), err), catalog.ErrCommitUnknown); !definite {
			err = fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		return nil, fmt.Errorf("open REST catalog %s: %w", c.cfg.URI, err)
	}
	c.storage = storageOf(config)
	c.client.Store(client)
	return client, nil
}

// Close ends the connections.
func (c *Catalog) Close() error {
	var err error
	if client := c.client.Load(); client != nil {
		err = client.Close()
	}
	c.end()
	c.transport.base.CloseIdleConnections()
	return err
}

// Load implements catalog.Catalog.
func (c *Catalog) Load(ctx context.Context, id table.Identifier) (*table.Table, error) {
	client, err := c.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("load table %v: %w", id, err)
	}
	t, err := c.load(ctx, client, id)
	if err != nil {
		return nil, fmt.Errorf("load table %v: %w", id, err)
	}
	return c.table(client, id, t.Metadata(), t.MetadataLocation()), nil
}

func (c *Catalog) table(client *rest.Catalog, id table.Identifier, meta table.Metadata, location string) *table.Table {
	return table.New(id, meta, location, catalog.FS(c.locator), client)
}

// Create implements catalog.Catalog.
func (c *Catalog) Create(ctx context.Context, id table.Identifier, schema *iceberg.Schema, properties iceberg.Properties) (*table.Table, error) {
	client, err := c.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("create table %v: %w", id, err)
	}
	namespace := id[:len(id)-1]
	for i := range namespace {
		err := client.CreateNamespace(ctx, namespace[:i+1], nil)
		if err != nil && !errors.Is(err, icecatalog.ErrNamespaceAlreadyExists) {
			return nil, fmt.Errorf("create namespace %v: %w", namespace[:i+1], err)
		}
	}
	var body []byte
	t, err := client.CreateTable(context.WithValue(ctx, bodyKey{}, &body), id, schema, icecatalog.WithProperties(properties))
	if err == nil {
		err = c.borrow(ctx, t, body)
	}
	if err != nil {
		return nil, fmt.Errorf("create table %v: %w", id, translate(err))
	}
	return c.table(client, id, t.Metadata(), t.MetadataLocation()), nil
}

// Commit implements catalog.Catalog.
func (c *Catalog) Commit(ctx context.Context, base *table.Table, change catalog.Commit) (*table.Table, error) {
	client, err := c.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("commit %v: %w: %w", base.Identifier(), catalog.ErrCommitUnknown, err)
	}
	fs := catalog.NewIO(ctx, c.locator).Recently(&c.recent)
	p, err := catalog.Prepare(ctx, fs, base, change)
	if err != nil {
		return nil, err
	}
	id := base.Identifier()
	status := new(atomic.Int32)
	meta, location, err := client.CommitTable(context.WithValue(ctx, statusKey{}, status), id, p.Requirements, p.Updates)
	if err != nil {
		err = outcome(int(status.Load()), err)
		if errors.Is(err, catalog.ErrCommitConflict) && p.SnapshotID != 0 {
			// Something between us and the catalog may have sent the request twice.
			if now, loadErr := c.Load(ctx, id); loadErr == nil && now.SnapshotByID(p.SnapshotID) != nil {
				return now, nil
			}
		}
		return nil, fmt.Errorf("commit %v: %w", id, err)
	}
	next := c.table(client, id, meta, location)
	// The commit is done; files that could not be deleted stay for orphan removal.
	_ = p.Clean(ctx, fs, base, next)
	return next, nil
}

// outcome tells from the status of the last response, 0 if there was none, what became
// of a commit.
func outcome(status int, err error) error {
	switch {
	case status == http.StatusConflict:
		return fmt.Errorf("%w: %w", catalog.ErrCommitConflict, err)
	case status == http.StatusNotFound:
		return fmt.Errorf("%w: %w", catalog.ErrNoTable, err)
	case status == http.StatusRequestTimeout, status == 419, status == http.StatusTooEarly, status == http.StatusTooManyRequests:
		return fmt.Errorf("%w: %w", catalog.ErrCommitUnknown, err)
	case status >= 400 && status < 500, status == http.StatusNotImplemented:
		return err
	default:
		return fmt.Errorf("%w: %w", catalog.ErrCommitUnknown, err)
	}
}

func translate(err error) error {
	switch {
	case errors.Is(err, icecatalog.ErrNoSuchTable):
		return fmt.Errorf("%w: %w", catalog.ErrNoTable, err)
	case errors.Is(err, icecatalog.ErrTableAlreadyExists):
		return fmt.Errorf("%w: %w", catalog.ErrTableExists, err)
	}
	return err
}

// List implements catalog.Catalog.
func (c *Catalog) List(ctx context.Context, namespace table.Identifier) ([]table.Identifier, error) {
	client, err := c.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	if len(namespace) > 0 {
		return list(ctx, client, namespace, nil)
	}
	pending, err := client.ListNamespaces(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	var out []table.Identifier
	for len(pending) > 0 {
		ns := pending[0]
		pending = pending[1:]
		if out, err = list(ctx, client, ns, out); err != nil {
			return nil, err
		}
		// Some catalogs have one level only, and refuse or repeat themselves.
		below, err := client.ListNamespaces(ctx, ns)
		if err != nil {
			continue
		}
		for _, child := range below {
			if len(child) > len(ns) {
				pending = append(pending, child)
			}
		}
	}
	return out, nil
}

func list(ctx context.Context, client *rest.Catalog, namespace table.Identifier, out []table.Identifier) ([]table.Identifier, error) {
	for id, err := range client.ListTables(ctx, namespace) {
		if errors.Is(err, icecatalog.ErrNoSuchNamespace) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("list tables of %v: %w", namespace, err)
		}
		out = append(out, id)
	}
	return out, nil
}

// Drop implements catalog.Catalog.
func (c *Catalog) Drop(ctx context.Context, id table.Identifier) error {
	client, err := c.connect(ctx)
	if err != nil {
		return fmt.Errorf("drop table %v: %w", id, err)
	}
	drop := client.DropTable
	if c.cfg.PurgeOnDrop {
		drop = client.PurgeTable
	}
	if err := drop(ctx, id); err != nil {
		return fmt.Errorf("drop table %v: %w", id, translate(err))
	}
	return nil
}

type (
	statusKey struct{} // *atomic.Int32: the status of the last response, 0 if there was none
	bodyKey   struct{} // *[]byte: its body
)

// transport notes the response in the context's values, bounds each request in time, renews
// a token that is refused, and removes fields that iceberg-go refuses.
type transport struct {
	base    *http.Transport
	timeout time.Duration
	tokens  *tokens  // nil without OAuth2
	secrets []string // that requests carry
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(r.Context(), t.timeout)
	defer cancel()
	status, _ := r.Context().Value(statusKey{}).(*atomic.Int32)
	if status != nil {
		status.Store(0)
	}
	resp, err := t.base.RoundTrip(r.WithContext(ctx))
	if err == nil && resp.StatusCode == http.StatusUnauthorized && t.tokens != nil {
		resp, err = t.again(ctx, r, resp)
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err == nil && len(body) > maxBody {
		err = fmt.Errorf("answer to %s %s is over %d MiB", r.Method, r.URL.Path, maxBody>>20)
	}
	if err != nil {
		return nil, err
	}
	if status != nil {
		status.Store(int32(resp.StatusCode))
	}
	if resp.StatusCode >= 400 {
		body = t.hide(body, resp.Request)
	} else if stripped, ok := catalog.StripNewerFields(body); ok {
		body = stripped
	}
	if noted, ok := r.Context().Value(bodyKey{}).(*[]byte); ok {
		*noted = body
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	resp.ContentLength = int64(len(body))
	resp.Header.Del("Content-Length")
	return resp, nil
}

// again sends a request once more with a new token, after the catalog did not take the last:
// it had no effect. It returns the first answer if there is no new token.
func (t *transport) again(ctx context.Context, r *http.Request, first *http.Response) (*http.Response, error) {
	t.tokens.drop(r.Header.Get("Authorization"))
	token, err := t.tokens.get(ctx)
	if err != nil || r.Body != nil && r.GetBody == nil {
		return first, nil
	}
	repeat := r.Clone(ctx)
	if r.Body != nil {
		if repeat.Body, err = r.GetBody(); err != nil {
			return first, nil
		}
	}
	first.Body.Close()
	repeat.Header.Set("Authorization", "Bearer "+token)
	return t.base.RoundTrip(repeat)
}

// maxBody is the largest answer that is read: table metadata of a long history.
const maxBody = 256 << 20

// secrets returns what requests carry by the configuration and nobody else may see.
func (c Config) secrets() (all []string) {
	all = append(all, c.Token)
	if _, secret, found := strings.Cut(c.Credential, ":"); found {
		all = append(all, secret)
	}
	all = append(all, c.Credential)
	return slices.AppendSeq(all, maps.Values(c.Headers))
}

// hide takes out of a refusal what it repeats of its request: it becomes a message that is logged, and
// shown to whoever asks how a table is. What is shorter than leastSecret may be part of any word.
func (t *transport) hide(body []byte, r *http.Request) []byte {
	_, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	for _, secret := range append(t.secrets[:len(t.secrets):len(t.secrets)], token) {
		if len(secret) >= leastSecret {
			body = bytes.ReplaceAll(body, []byte(secret), []byte("(secret)"))
		}
	}
	return body
}

const leastSecret = 6
