// Package rest is an external Iceberg REST catalog, spoken to by iceberg-go.
//
// A commit is one POST. Its outcome is told from the HTTP status, which a transport of
// our own notes for each call: 409 is a conflict, a definite 4xx is final, and all else,
// lost answers and answers that cannot be read included, is unknown. The transport also
// removes fields of newer format versions that iceberg-go would refuse.
package rest

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/iceberg-go"
	icecatalog "github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/catalog/rest"
	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog"
)

// Config of a Catalog.
type Config struct {
	// URI of the catalog, without /v1.
	URI string
	// Warehouse, for catalogs that serve several.
	Warehouse string
	// Token is sent as a bearer token. No authentication if it and Credential are empty.
	Token string
	// Credential is client_id:client_secret of OAuth2. Tokens are renewed before they end.
	Credential string
	// Scope of the OAuth2 token. The catalog's default if empty.
	Scope string
	// TokenURI is where tokens are asked for. <URI>/v1/oauth/tokens if empty.
	TokenURI string
	// Properties are handed to iceberg-go as they are.
	Properties iceberg.Properties
	// Timeout of one request. 60 s if zero.
	Timeout time.Duration
}

// Catalog is safe for concurrent use.
type Catalog struct {
	uri       string
	opts      []rest.Option
	locator   catalog.Locator
	transport *transport

	connecting chan struct{}                // held by the one who asks for the configuration
	client     atomic.Pointer[rest.Catalog] // nil until the catalog has told it
	life       context.Context              // of the client, which renews its tokens under it
	end        context.CancelFunc
}

// ErrUnavailable says that a catalog does not answer, or not for now.
var ErrUnavailable = errors.New("catalog is not available")

// Open prepares a catalog and asks it nothing: the first call does, and each one after that
// until the catalog has answered, so that a catalog that is away costs nothing but its
// tables. Files are read and written with the buckets of locator, that is, with our own
// credentials.
func Open(locator catalog.Locator, cfg Config) (*Catalog, error) {
	if u, err := url.Parse(cfg.URI); err != nil || u.Host == "" {
		return nil, fmt.Errorf("REST catalog %q: an http or https address is wanted", cfg.URI)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	t := &transport{timeout: cfg.Timeout, base: http.DefaultTransport.(*http.Transport).Clone()}
	opts := []rest.Option{rest.WithTransportFactory(func(c *tls.Config) (http.RoundTripper, func()) {
		if c != nil {
			t.base.TLSClientConfig = c
		}
		return t, t.base.CloseIdleConnections
	})}
	if cfg.Warehouse != "" {
		opts = append(opts, rest.WithWarehouseLocation(cfg.Warehouse))
	}
	if cfg.Token != "" {
		opts = append(opts, rest.WithOAuthToken(cfg.Token))
	}
	if cfg.Credential != "" {
		opts = append(opts, rest.WithCredential(cfg.Credential))
	}
	if cfg.Scope != "" {
		opts = append(opts, rest.WithScope(cfg.Scope))
	}
	if cfg.TokenURI != "" {
		u, err := url.Parse(cfg.TokenURI)
		if err != nil {
			return nil, fmt.Errorf("token URI of REST catalog %s: %w", cfg.URI, err)
		}
		opts = append(opts, rest.WithAuthURI(u))
	}
	if len(cfg.Properties) > 0 {
		opts = append(opts, rest.WithAdditionalProps(cfg.Properties))
	}
	c := &Catalog{uri: strings.TrimRight(cfg.URI, "/"), opts: opts, locator: locator, transport: t, connecting: make(chan struct{}, 1)}
	c.life, c.end = context.WithCancel(context.Background())
	return c, nil
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
	life, end := context.WithCancel(context.WithValue(c.life, statusKey{}, status))
	stop := context.AfterFunc(ctx, end)
	client, err := rest.NewCatalog(life, "rest", c.uri, c.opts...)
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
		return nil, fmt.Errorf("open REST catalog %s: %w", c.uri, err)
	}
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
	t, err := client.LoadTable(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("load table %v: %w", id, translate(err))
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
	t, err := client.CreateTable(ctx, id, schema, icecatalog.WithProperties(properties))
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
	fs := catalog.NewIO(ctx, c.locator)
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
	if err := client.DropTable(ctx, id); err != nil {
		return fmt.Errorf("drop table %v: %w", id, translate(err))
	}
	return nil
}

type statusKey struct{}

// transport notes the status of each response in the context's statusKey, bounds each
// request in time, and removes fields that iceberg-go refuses.
type transport struct {
	base    *http.Transport
	timeout time.Duration
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(r.Context(), t.timeout)
	defer cancel()
	status, _ := r.Context().Value(statusKey{}).(*atomic.Int32)
	if status != nil {
		status.Store(0)
	}
	resp, err := t.base.RoundTrip(r.WithContext(ctx))
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
	if stripped, ok := catalog.StripNewerFields(body); ok {
		body = stripped
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	resp.ContentLength = int64(len(body))
	resp.Header.Del("Content-Length")
	return resp, nil
}

// maxBody is the largest answer that is read: table metadata of a long history.
const maxBody = 256 << 20
