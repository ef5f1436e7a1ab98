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
	client    *rest.Catalog
	locator   catalog.Locator
	transport *transport
}

// Open asks the catalog for its configuration. Files are read and written with the
// buckets of locator, that is, with our own credentials.
func Open(ctx context.Context, locator catalog.Locator, cfg Config) (*Catalog, error) {
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
	client, err := rest.NewCatalog(ctx, "rest", strings.TrimRight(cfg.URI, "/"), opts...)
	if err != nil {
		t.base.CloseIdleConnections()
		return nil, fmt.Errorf("open REST catalog %s: %w", cfg.URI, err)
	}
	return &Catalog{client: client, locator: locator, transport: t}, nil
}

// Close ends the connections.
func (c *Catalog) Close() error {
	err := c.client.Close()
	c.transport.base.CloseIdleConnections()
	return err
}

// Load implements catalog.Catalog.
func (c *Catalog) Load(ctx context.Context, id table.Identifier) (*table.Table, error) {
	t, err := c.client.LoadTable(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("load table %v: %w", id, translate(err))
	}
	return c.table(id, t.Metadata(), t.MetadataLocation()), nil
}

func (c *Catalog) table(id table.Identifier, meta table.Metadata, location string) *table.Table {
	return table.New(id, meta, location, catalog.FS(c.locator), c.client)
}

// Create implements catalog.Catalog.
func (c *Catalog) Create(ctx context.Context, id table.Identifier, schema *iceberg.Schema, properties iceberg.Properties) (*table.Table, error) {
	namespace := id[:len(id)-1]
	for i := range namespace {
		err := c.client.CreateNamespace(ctx, namespace[:i+1], nil)
		if err != nil && !errors.Is(err, icecatalog.ErrNamespaceAlreadyExists) {
			return nil, fmt.Errorf("create namespace %v: %w", namespace[:i+1], err)
		}
	}
	t, err := c.client.CreateTable(ctx, id, schema, icecatalog.WithProperties(properties))
	if err != nil {
		return nil, fmt.Errorf("create table %v: %w", id, translate(err))
	}
	return c.table(id, t.Metadata(), t.MetadataLocation()), nil
}

// Commit implements catalog.Catalog.
func (c *Catalog) Commit(ctx context.Context, base *table.Table, change catalog.Commit) (*table.Table, error) {
	fs := catalog.NewIO(ctx, c.locator)
	p, err := catalog.Prepare(ctx, fs, base, change)
	if err != nil {
		return nil, err
	}
	id := base.Identifier()
	status := new(int)
	meta, location, err := c.client.CommitTable(context.WithValue(ctx, statusKey{}, status), id, p.Requirements, p.Updates)
	if err != nil {
		err = outcome(*status, err)
		if errors.Is(err, catalog.ErrCommitConflict) && p.SnapshotID != 0 {
			// Something between us and the catalog may have sent the request twice.
			if now, loadErr := c.Load(ctx, id); loadErr == nil && now.SnapshotByID(p.SnapshotID) != nil {
				return now, nil
			}
		}
		return nil, fmt.Errorf("commit %v: %w", id, err)
	}
	next := c.table(id, meta, location)
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
	if len(namespace) > 0 {
		return c.list(ctx, namespace, nil)
	}
	pending, err := c.client.ListNamespaces(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	var out []table.Identifier
	for len(pending) > 0 {
		ns := pending[0]
		pending = pending[1:]
		if out, err = c.list(ctx, ns, out); err != nil {
			return nil, err
		}
		// Some catalogs have one level only, and refuse or repeat themselves.
		below, err := c.client.ListNamespaces(ctx, ns)
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

func (c *Catalog) list(ctx context.Context, namespace table.Identifier, out []table.Identifier) ([]table.Identifier, error) {
	for id, err := range c.client.ListTables(ctx, namespace) {
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
	if err := c.client.DropTable(ctx, id); err != nil {
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
	status, _ := r.Context().Value(statusKey{}).(*int)
	if status != nil {
		*status = 0
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
		*status = resp.StatusCode
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
