// Package named keeps the catalogs that topics can name in table.topic.catalog: what they
// are stands in the metadata database, secrets sealed, and each server opens them as they
// are asked for.
//
// A [Handle] follows its name: it looks up what is registered with each call, so that a
// change or a removal on any server holds on all of them from the next commit on. Requests
// to a catalog that is replaced meanwhile may fail, with an outcome that is unknown.
package named

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/metadata"
)

// Store keeps the entries. *metadata.Store is one.
type Store interface {
	PutCatalog(ctx context.Context, c metadata.CatalogEntry) error
	DeleteCatalog(ctx context.Context, name string) error
	Catalog(ctx context.Context, name string) (metadata.CatalogEntry, error)
	Catalogs(ctx context.Context) ([]metadata.CatalogEntry, error)
}

// Catalogs is safe for concurrent use.
type Catalogs struct {
	store   Store
	locator catalog.Locator
	key     Key

	mu   sync.Mutex
	open map[string]*opened // guarded by mu; by name: no more than are registered
}

// opened is a catalog as it was registered.
type opened struct {
	entry   metadata.CatalogEntry
	locator catalog.Locator // of its tables' files
	external
}

// Info is what is shown of a catalog.
type Info struct {
	Name     string            `json:"name"`
	Kind     string            `json:"kind"`
	Settings map[string]string `json:"settings"` // secrets as [Hidden]
	Changed  time.Time         `json:"changed"`
}

// Hidden stands for a secret.
const Hidden = "(secret)"

// New returns the catalogs of a store. key may be nil: then none can have secrets.
func New(store Store, locator catalog.Locator, key Key) *Catalogs {
	return &Catalogs{store: store, locator: locator, key: key, open: map[string]*opened{}}
}

// Close closes those that are open.
func (c *Catalogs) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for name, o := range c.open {
		errs = append(errs, o.Close())
		delete(c.open, name)
	}
	return errors.Join(errs...)
}

var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// Add registers a catalog, or replaces the one of that name, after it has been tried.
func (c *Catalogs) Add(ctx context.Context, name, kindName string, values map[string]string) error {
	if !nameForm.MatchString(name) {
		return fmt.Errorf("name of catalog %q: up to 64 of a–z, 0–9, - and _ are wanted, the first a letter or digit", name)
	}
	k, err := kind(kindName)
	if err != nil {
		return err
	}
	if err := k.check(values); err != nil {
		return err
	}
	config, err := appendEntry(nil, name, k, values, c.key)
	if err != nil {
		return err
	}
	fresh, err := c.openKind(ctx, k, values)
	if err != nil {
		return err
	}
	err = try(ctx, fresh)
	if err := errors.Join(err, fresh.Close()); err != nil {
		return fmt.Errorf("catalog %s was not added: %w", name, err)
	}
	return c.store.PutCatalog(ctx, metadata.CatalogEntry{Name: name, Kind: kindName, Config: string(config)})
}

// Test tells whether a catalog answers and lets us list a namespace.
func (c *Catalogs) Test(ctx context.Context, name string) error {
	o, err := c.current(ctx, name)
	if err != nil {
		return err
	}
	return try(ctx, o)
}

func try(ctx context.Context, c external) error {
	if err := c.Connect(ctx); err != nil {
		return err
	}
	_, err := c.List(ctx, table.Identifier{"default"}) // of a namespace that may be missing
	return err
}

// Remove takes a catalog from the list. Its tables stay. metadata.ErrCatalogNotExist if
// there is none.
func (c *Catalogs) Remove(ctx context.Context, name string) error {
	if err := c.store.DeleteCatalog(ctx, name); err != nil {
		return err
	}
	c.forget(name)
	return nil
}

// List shows all catalogs, by name.
func (c *Catalogs) List(ctx context.Context) ([]Info, error) {
	entries, err := c.store.Catalogs(ctx)
	if err != nil {
		return nil, err
	}
	out := []Info{}
	for _, e := range entries {
		values, _, err := parseEntry([]byte(e.Config), e.Name, e.Kind, c.key)
		if err != nil && values == nil {
			return nil, err
		}
		k, err := kind(e.Kind)
		if err != nil {
			return nil, fmt.Errorf("catalog %s: %w", e.Name, err)
		}
		for key := range values {
			if s, err := k.setting(key); err != nil || s.Secret {
				values[key] = Hidden
			}
		}
		out = append(out, Info{e.Name, e.Kind, values, e.Changed})
	}
	return out, nil
}

// Get returns the handle of a catalog that is registered.
func (c *Catalogs) Get(ctx context.Context, name string) (*Handle, error) {
	if _, err := c.lookup(ctx, name); err != nil {
		return nil, err
	}
	return &Handle{c, name}, nil
}

func (c *Catalogs) lookup(ctx context.Context, name string) (metadata.CatalogEntry, error) {
	e, err := c.store.Catalog(ctx, name)
	if errors.Is(err, metadata.ErrCatalogNotExist) {
		return e, fmt.Errorf("catalog %q: %w: 'tabletopic catalog list' shows those there are, 'tabletopic catalog add' makes one", name, err)
	}
	return e, err
}

// current returns the catalog as it is registered now, or as it was if the metadata database
// does not answer.
func (c *Catalogs) current(ctx context.Context, name string) (*opened, error) {
	e, err := c.lookup(ctx, name)
	if errors.Is(err, metadata.ErrCatalogNotExist) {
		c.forget(name)
		return nil, err
	}
	c.mu.Lock()
	was := c.open[name]
	c.mu.Unlock()
	switch {
	case was != nil && (err != nil || was.is(e)):
		return was, nil
	case err != nil:
		return nil, err
	}
	fresh, err := c.openEntry(ctx, e)
	if err != nil {
		return nil, fmt.Errorf("catalog %s: %w", name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.open[name]; now != nil {
		if now.is(e) { // somebody else was faster
			_ = fresh.Close()
			return now, nil
		}
		_ = now.Close() // nobody needs it any more
	}
	fresh.entry = e
	c.open[name] = fresh
	return fresh, nil
}

func (o *opened) is(e metadata.CatalogEntry) bool {
	return o.entry.Kind == e.Kind && o.entry.Config == e.Config
}

func (c *Catalogs) openEntry(ctx context.Context, e metadata.CatalogEntry) (*opened, error) {
	k, err := kind(e.Kind)
	if err != nil {
		return nil, err
	}
	values, sealed, err := parseEntry([]byte(e.Config), e.Name, e.Kind, c.key)
	if err == nil && sealed {
		err = ErrNoKey
	}
	if err != nil {
		return nil, err
	}
	return c.openKind(ctx, k, values)
}

func (c *Catalogs) openKind(ctx context.Context, k Kind, values map[string]string) (*opened, error) {
	s := &settings{values: values}
	files, err := s.storage(c.locator)
	if err != nil {
		return nil, err
	}
	out, err := k.open(ctx, files, s)
	if err != nil {
		return nil, err
	}
	return &opened{locator: files, external: out}, nil
}

func (c *Catalogs) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o := c.open[name]; o != nil {
		_ = o.Close() // nobody needs it any more
		delete(c.open, name)
	}
}

// A Lender makes the files of a table reachable with credentials of its catalog.
type Lender interface {
	Borrow(ctx context.Context, id table.Identifier) error
}

// A Handle is whatever catalog is registered under a name. It is a catalog.Catalog.
type Handle struct {
	catalogs *Catalogs
	name     string
}

// MaintainsTables tells whether the catalog compacts its tables by itself, and true if that is not
// known for now.
func (h *Handle) MaintainsTables(ctx context.Context) bool {
	c, err := h.catalogs.current(ctx, h.name)
	if err != nil {
		return true
	}
	m, ok := c.external.(interface{ MaintainsTables() bool })
	return ok && m.MaintainsTables()
}

// Load implements catalog.Catalog.
func (h *Handle) Load(ctx context.Context, id table.Identifier) (*table.Table, error) {
	c, err := h.catalogs.current(ctx, h.name)
	if err != nil {
		return nil, fmt.Errorf("load table %v: %w", id, err)
	}
	return c.Load(ctx, id)
}

// Create implements catalog.Catalog.
func (h *Handle) Create(ctx context.Context, id table.Identifier, schema *iceberg.Schema, properties iceberg.Properties) (*table.Table, error) {
	c, err := h.catalogs.current(ctx, h.name)
	if err != nil {
		return nil, fmt.Errorf("create table %v: %w", id, err)
	}
	return c.Create(ctx, id, schema, properties)
}

// Commit implements catalog.Catalog. A catalog that is not registered any more is waited
// for, like one that is away.
func (h *Handle) Commit(ctx context.Context, base *table.Table, change catalog.Commit) (*table.Table, error) {
	c, err := h.catalogs.current(ctx, h.name)
	if err != nil {
		return nil, fmt.Errorf("commit %v: %w: %w", base.Identifier(), catalog.ErrCommitUnknown, err)
	}
	return c.Commit(ctx, base, change)
}

// Lender returns what vends credentials for the files of the catalog's tables, nil if nothing does.
func (h *Handle) Lender(ctx context.Context) (Lender, error) {
	c, err := h.catalogs.current(ctx, h.name)
	if err != nil {
		return nil, err
	}
	l, _ := c.external.(Lender)
	return l, nil
}

// List implements catalog.Catalog.
func (h *Handle) List(ctx context.Context, namespace table.Identifier) ([]table.Identifier, error) {
	c, err := h.catalogs.current(ctx, h.name)
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	return c.List(ctx, namespace)
}

// Drop implements catalog.Catalog.
func (h *Handle) Drop(ctx context.Context, id table.Identifier) error {
	c, err := h.catalogs.current(ctx, h.name)
	if err != nil {
		return fmt.Errorf("drop table %v: %w", id, err)
	}
	return c.Drop(ctx, id)
}
