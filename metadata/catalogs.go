package metadata

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// ErrCatalogNotExist says that no catalog is registered under the name.
var ErrCatalogNotExist = errors.New("catalog does not exist")

// A CatalogEntry is a named Iceberg catalog. Secrets in Config are the caller's to encrypt.
type CatalogEntry struct {
	Name    string
	Kind    string // rest, glue, hive, sql …
	Config  string // JSON
	Changed time.Time
}

// PutCatalog adds a catalog or replaces the one of that name. Changed is set here.
func (s *Store) PutCatalog(ctx context.Context, c CatalogEntry) error {
	return s.updateDurably(ctx, fmt.Sprintf("put catalog %s", c.Name), func(t *tx) error {
		if _, err := t.exec(`INSERT INTO catalog_entry (name, kind, config, changed) VALUES ($1, $2, $3, $4)
			ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, config = excluded.config, changed = excluded.changed`,
			c.Name, c.Kind, c.Config, s.now().UnixMilli()); err != nil {
			return err
		}
		return t.change(ChangeCatalog, c.Name)
	})
}

// DeleteCatalog removes a catalog, or returns ErrCatalogNotExist.
func (s *Store) DeleteCatalog(ctx context.Context, name string) error {
	return s.updateDurably(ctx, fmt.Sprintf("delete catalog %s", name), func(t *tx) error {
		n, err := t.exec(`DELETE FROM catalog_entry WHERE name = $1`, name)
		if err != nil {
			return err
		}
		if n == 0 {
			return ErrCatalogNotExist
		}
		return t.change(ChangeCatalog, name)
	})
}

// Catalog returns the catalog of a name, or ErrCatalogNotExist.
func (s *Store) Catalog(ctx context.Context, name string) (CatalogEntry, error) {
	c := CatalogEntry{Name: name}
	var changed int64
	err := s.readers.QueryRowContext(ctx, `SELECT kind, config, changed FROM catalog_entry WHERE name = $1`, name).Scan(&c.Kind, &c.Config, &changed)
	if errors.Is(err, sql.ErrNoRows) {
		return CatalogEntry{}, ErrCatalogNotExist
	}
	if err != nil {
		return CatalogEntry{}, fmt.Errorf("read catalog %s: %w", name, err)
	}
	c.Changed = time.UnixMilli(changed)
	return c, nil
}

// Catalogs returns all catalogs by name.
func (s *Store) Catalogs(ctx context.Context) ([]CatalogEntry, error) {
	var all []CatalogEntry
	err := eachRow(ctx, s.readers, func(rows *sql.Rows) error {
		var c CatalogEntry
		var changed int64
		err := rows.Scan(&c.Name, &c.Kind, &c.Config, &changed)
		c.Changed = time.UnixMilli(changed)
		all = append(all, c)
		return err
	}, `SELECT name, kind, config, changed FROM catalog_entry ORDER BY name`)
	if err != nil {
		return nil, fmt.Errorf("read catalogs: %w", err)
	}
	return all, nil
}
