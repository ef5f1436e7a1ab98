// Package sql is the built-in catalog: Iceberg tables and views named in the metadata
// database, in the table layout of Iceberg's JDBC catalog (schema version 1), so that other
// clients of that layout can read it.
//
// A table is a row with the location of its current metadata file. Every change of a table
// is one UPDATE that compares the old location; a change of several is one transaction of
// such. Transactions have to be serializable, and db must make them so, which SQLite always
// does and PostgreSQL by default_transaction_isolation. Namespaces exist by their rows in
// iceberg_namespace_properties. The third table, iceberg_request_keys, is our own: see [Key].
//
// [Catalog] is a catalog.Catalog for the coordinator, and has what an Iceberg REST
// server needs beyond that: see package catalog/server.
package sql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/internal/invariant"
)

// Config of a Catalog.
type Config struct {
	// Name tells catalogs in one database apart. "tabletopic" if empty.
	Name string
	// Durable is called after each change, before it is answered, and returns when the change
	// survives the loss of the database. If it fails the change was made and its outcome is
	// unknown. At once if nil.
	Durable func(ctx context.Context) error
	// Warehouse is the location below which tables get theirs: <warehouse>/<namespace>/<table>.
	Warehouse string
	// CacheBytes bounds the memory for metadata that was used last: parsed, and as the text
	// that the REST server sends. 64 MiB if zero; a negative number keeps none.
	CacheBytes int64
}

// Catalog is safe for concurrent use, also by several processes on one database.
type Catalog struct {
	db      *sql.DB
	locator catalog.Locator
	cfg     Config
	cache   *cache
	recent  catalog.Recent
	swept   atomic.Int64 // when request keys were deleted last, in Unix milliseconds
}

// maxValue is the longest property of a namespace that the layout has room for. SQLite
// would take more, and the database could not move to PostgreSQL.
const maxValue = 1000

// The layout of Iceberg's org.apache.iceberg.jdbc.JdbcUtil, schema version 1, and a table of ours.
var layout = []string{
	`CREATE TABLE IF NOT EXISTS iceberg_tables (
		catalog_name VARCHAR(255) NOT NULL,
		table_namespace VARCHAR(255) NOT NULL,
		table_name VARCHAR(255) NOT NULL,
		metadata_location VARCHAR(1000),
		previous_metadata_location VARCHAR(1000),
		iceberg_type VARCHAR(5),
		PRIMARY KEY (catalog_name, table_namespace, table_name))`,
	`CREATE TABLE IF NOT EXISTS iceberg_namespace_properties (
		catalog_name VARCHAR(255) NOT NULL,
		namespace VARCHAR(255) NOT NULL,
		property_key VARCHAR(255) NOT NULL,
		property_value VARCHAR(1000),
		PRIMARY KEY (catalog_name, namespace, property_key))`,
	`CREATE TABLE IF NOT EXISTS iceberg_request_keys (
		catalog_name VARCHAR(255) NOT NULL,
		request_key VARCHAR(64) NOT NULL,
		request VARCHAR(64) NOT NULL,
		status INTEGER NOT NULL,
		answer TEXT NOT NULL,
		expires_at BIGINT NOT NULL,
		PRIMARY KEY (catalog_name, request_key))`,
	`CREATE INDEX IF NOT EXISTS iceberg_request_keys_expire ON iceberg_request_keys (expires_at)`,
}

// Open makes the tables if db lacks them. The caller keeps and closes db.
func Open(ctx context.Context, db *sql.DB, locator catalog.Locator, cfg Config) (*Catalog, error) {
	if cfg.Name == "" {
		cfg.Name = "tabletopic"
	}
	if cfg.CacheBytes == 0 {
		cfg.CacheBytes = 64 << 20
	}
	cfg.Warehouse = strings.TrimRight(cfg.Warehouse, "/")
	if _, _, err := locator.Resolve(ctx, cfg.Warehouse+"/t"); err != nil {
		return nil, fmt.Errorf("warehouse %q: %w", cfg.Warehouse, err)
	}
	cache, err := newCache(cfg.CacheBytes)
	if err != nil {
		return nil, err
	}
	c := &Catalog{db: db, locator: locator, cfg: cfg, cache: cache}
	for _, s := range layout {
		if _, err := c.change(ctx, statement{sql: s, mayChangeNothing: true}); err != nil {
			return nil, fmt.Errorf("create catalog tables: %w", err)
		}
	}
	return c, nil
}

// Layout returns the statements that make the catalog's tables, if a database lacks them.
func Layout() []string { return slices.Clone(layout) }

// Warehouse is the location below which new tables are made.
func (c *Catalog) Warehouse() string { return c.cfg.Warehouse }

// Load implements catalog.Catalog.
func (c *Catalog) Load(ctx context.Context, id table.Identifier) (*table.Table, error) {
	location, err := c.location(ctx, id, Table)
	if err != nil {
		return nil, err
	}
	d, err := c.readTable(ctx, location)
	if err != nil {
		return nil, fmt.Errorf("load table %s: %w", join(id), err)
	}
	return c.table(id, d.Table, location), nil
}

// Document returns the metadata of a table that this catalog returned, with its text.
func (c *Catalog) Document(t *table.Table) *Document {
	return c.cache.put(t.MetadataLocation(), tableDocument(t.Metadata()))
}

// location is the metadata location of a table or view.
func (c *Catalog) location(ctx context.Context, id table.Identifier, kind Kind) (string, error) {
	there, location, err := c.lookup(ctx, id)
	if err == nil && there != kind {
		err = nameError(kind.missing(), id)
	}
	return location, err
}

// Exists returns nil if there is a table, or a view, of that name.
func (c *Catalog) Exists(ctx context.Context, id table.Identifier, kind Kind) error {
	_, err := c.location(ctx, id, kind)
	return err
}

// lookup returns what has a name, "" if nothing has.
func (c *Catalog) lookup(ctx context.Context, id table.Identifier) (kind Kind, location string, err error) {
	namespace, name, err := split(id)
	if err != nil {
		return "", "", err
	}
	err = c.db.QueryRowContext(ctx, `SELECT COALESCE(iceberg_type, 'TABLE'), COALESCE(metadata_location, '') FROM iceberg_tables
		WHERE catalog_name = $1 AND table_namespace = $2 AND table_name = $3`, c.cfg.Name, namespace, name).Scan(&kind, &location)
	if errors.Is(err, sql.ErrNoRows) {
		return "", "", nil
	}
	if err != nil {
		return "", "", fmt.Errorf("look up %s: %w", join(id), err)
	}
	return kind, location, nil
}

// Free returns the error of making a kind with a name that is taken, nil if it is free.
func (c *Catalog) Free(ctx context.Context, id table.Identifier, kind Kind) error {
	there, _, err := c.lookup(ctx, id)
	if err == nil && there != "" {
		err = nameError(kind.taken(there), id)
	}
	return err
}

func (c *Catalog) table(id table.Identifier, meta table.Metadata, location string) *table.Table {
	return table.New(id, meta, location, catalog.FS(c.locator), committer{c})
}

// Create implements catalog.Catalog.
func (c *Catalog) Create(ctx context.Context, id table.Identifier, schema *iceberg.Schema, properties iceberg.Properties) (*table.Table, error) {
	if err := c.Free(ctx, id, Table); err != nil {
		return nil, err
	}
	if err := c.CreateNamespace(ctx, id[:len(id)-1], nil); err != nil && !errors.Is(err, ErrNamespaceExists) {
		return nil, err
	}
	location, err := c.NewLocation(ctx, id)
	if err != nil {
		return nil, err
	}
	meta, err := catalog.NewMetadata(schema, location, properties)
	if err != nil {
		return nil, fmt.Errorf("create table %s: %w", join(id), err)
	}
	return c.insert(ctx, id, meta)
}

// CreateTable makes a table of metadata that the caller has built, at a location of
// [Catalog.NewLocation] or another one. The namespace must exist.
func (c *Catalog) CreateTable(ctx context.Context, id table.Identifier, meta table.Metadata) (*table.Table, error) {
	if err := c.Free(ctx, id, Table); err != nil {
		return nil, err
	}
	return c.insert(ctx, id, meta)
}

func (c *Catalog) insert(ctx context.Context, id table.Identifier, meta table.Metadata) (*table.Table, error) {
	fs := catalog.NewIO(ctx, c.locator)
	location, err := catalog.WriteMetadata(fs, meta, "", uuid.New())
	if err != nil {
		return nil, fmt.Errorf("create table %s: %w", join(id), err)
	}
	if err := c.insertRow(ctx, id, Table, location); err != nil {
		if definite(err) {
			_ = fs.Remove(location) // nobody else knows it
		}
		return nil, err
	}
	c.cache.put(location, tableDocument(meta))
	return c.table(id, meta, location), nil
}

// definite reports that a change was refused, rather than lost on its way.
func definite(err error) bool {
	return errors.As(err, new(*NameError)) || errors.Is(err, ErrKeyUsed)
}

// row is the statement that names a new table or view, if its namespace is there and the
// name is free.
func (c *Catalog) row(id table.Identifier, kind Kind, location string) (statement, error) {
	namespace, name, err := split(id)
	if err != nil {
		return statement{}, err
	}
	return statement{sql: `INSERT INTO iceberg_tables
		(catalog_name, table_namespace, table_name, metadata_location, previous_metadata_location, iceberg_type)
		SELECT $1, $2, $3, $4, NULL, $5
		WHERE EXISTS (SELECT 1 FROM iceberg_namespace_properties WHERE catalog_name = $6 AND namespace = $7)
		ON CONFLICT DO NOTHING`,
		args: []any{c.cfg.Name, namespace, name, location, string(kind), c.cfg.Name, namespace}}, nil
}

func (c *Catalog) insertRow(ctx context.Context, id table.Identifier, kind Kind, location string) error {
	row, err := c.row(id, kind, location)
	if err != nil {
		return err
	}
	created, err := c.exec(ctx, row)
	if err != nil {
		return fmt.Errorf("create %s: %w", join(id), err)
	}
	if created {
		return nil
	}
	if err := c.namespaceThere(ctx, id[:len(id)-1]); err != nil {
		return err
	}
	if err := c.Free(ctx, id, kind); err != nil {
		return err
	}
	return nameError(kind.taken(kind), id) // and dropped since
}

// NewLocation chooses where a new table or view lies: <warehouse>/<namespace>/<name>, or
// below the location of the namespace if it has one, with a suffix if an earlier one of
// that name left files there.
func (c *Catalog) NewLocation(ctx context.Context, id table.Identifier) (string, error) {
	namespace, name, err := split(id)
	if err != nil {
		return "", err
	}
	parent := c.cfg.Warehouse + "/" + catalog.PathName(namespace)
	if properties, err := c.Namespace(ctx, id[:len(id)-1]); err == nil && properties["location"] != "" {
		parent = strings.TrimRight(properties["location"], "/")
	}
	return catalog.FreeLocation(catalog.NewIO(ctx, c.locator), parent, name)
}

// Register names a table that exists already by its metadata file, of which the caller has
// the content, from [Catalog.ReadTable]. With overwrite it takes the place of a table of
// that name, whose files stay.
func (c *Catalog) Register(ctx context.Context, id table.Identifier, meta table.Metadata, location string, overwrite bool) (*table.Table, error) {
	there, old, err := c.lookup(ctx, id)
	if err != nil {
		return nil, err
	}
	if overwrite && there == Table {
		err = c.swap(ctx, id, Table, old, location)
	} else {
		err = c.insertRow(ctx, id, Table, location)
	}
	if err != nil {
		return nil, err
	}
	c.cache.put(location, tableDocument(meta))
	return c.table(id, meta, location), nil
}

// ReadTable reads a metadata file that the catalog need not know.
func (c *Catalog) ReadTable(ctx context.Context, location string) (table.Metadata, error) {
	return catalog.ReadMetadata(catalog.NewIO(ctx, c.locator), location)
}

// List implements catalog.Catalog.
func (c *Catalog) List(ctx context.Context, namespace table.Identifier) ([]table.Identifier, error) {
	rows, err := c.db.QueryContext(ctx, `SELECT table_namespace, table_name FROM iceberg_tables
		WHERE catalog_name = $1 AND ($2 OR table_namespace = $3) AND COALESCE(iceberg_type, 'TABLE') = 'TABLE'
		ORDER BY table_namespace, table_name`, c.cfg.Name, len(namespace) == 0, join(namespace))
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	return identifiers(rows)
}

// ListPage returns up to limit names of one kind in a namespace, in order, that come after a name.
func (c *Catalog) ListPage(ctx context.Context, namespace table.Identifier, kind Kind, after string, limit int) ([]table.Identifier, error) {
	rows, err := c.db.QueryContext(ctx, `SELECT table_namespace, table_name FROM iceberg_tables
		WHERE catalog_name = $1 AND table_namespace = $2 AND COALESCE(iceberg_type, 'TABLE') = $3 AND table_name > $4
		ORDER BY table_name LIMIT $5`, c.cfg.Name, join(namespace), string(kind), escaper.Replace(after), limit)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", join(namespace), err)
	}
	return identifiers(rows)
}

func identifiers(rows *sql.Rows) ([]table.Identifier, error) {
	defer rows.Close()
	var out []table.Identifier
	for rows.Next() {
		var namespace, name string
		if err := rows.Scan(&namespace, &name); err != nil {
			return nil, fmt.Errorf("list names: %w", err)
		}
		out = append(out, append(levels(namespace), unescape(name)))
	}
	return out, rows.Err()
}

// Drop implements catalog.Catalog.
func (c *Catalog) Drop(ctx context.Context, id table.Identifier) error { return c.drop(ctx, id, Table) }

func (c *Catalog) drop(ctx context.Context, id table.Identifier, kind Kind) error {
	namespace, name, err := split(id)
	if err != nil {
		return err
	}
	dropped, err := c.exec(ctx, statement{sql: `DELETE FROM iceberg_tables WHERE catalog_name = $1 AND table_namespace = $2 AND table_name = $3
		AND COALESCE(iceberg_type, 'TABLE') = $4`, args: []any{c.cfg.Name, namespace, name, string(kind)}})
	if err != nil {
		return fmt.Errorf("drop %s: %w", join(id), err)
	}
	if !dropped {
		return nameError(kind.missing(), id)
	}
	return nil
}

// Unregister removes a table and leaves its files, and returns it as it was last: no commit
// comes after.
func (c *Catalog) Unregister(ctx context.Context, id table.Identifier) (*table.Table, error) {
	namespace, name, err := split(id)
	if err != nil {
		return nil, err
	}
	for range maxTries {
		t, err := c.Load(ctx, id)
		if err != nil {
			return nil, err
		}
		gone, err := c.exec(ctx, statement{sql: `DELETE FROM iceberg_tables WHERE catalog_name = $1 AND table_namespace = $2 AND table_name = $3
			AND metadata_location = $4`, args: []any{c.cfg.Name, namespace, name, t.MetadataLocation()}})
		if err != nil {
			return nil, fmt.Errorf("unregister table %s: %w", join(id), err)
		}
		if gone {
			return t, nil
		}
	}
	return nil, conflict(id, "other commits came first %d times", maxTries)
}

// Rename gives a table another name, in a namespace that exists.
func (c *Catalog) Rename(ctx context.Context, from, to table.Identifier) error {
	return c.rename(ctx, from, to, Table)
}

func (c *Catalog) rename(ctx context.Context, from, to table.Identifier, kind Kind) error {
	fromNamespace, fromName, err := split(from)
	if err != nil {
		return err
	}
	toNamespace, toName, err := split(to)
	if err != nil {
		return err
	}
	if err := c.Exists(ctx, from, kind); err != nil {
		return err
	}
	if err := c.namespaceThere(ctx, to[:len(to)-1]); err != nil {
		return err
	}
	taken := func(by Kind) error {
		return &NameError{Err: by.taken(by), Name: strings.Join(to, "."), From: strings.Join(from, ".")}
	}
	if there, _, err := c.lookup(ctx, to); err != nil || there != "" {
		return errors.Join(err, taken(there))
	}
	renamed, err := c.exec(ctx, statement{sql: `UPDATE iceberg_tables SET table_namespace = $1, table_name = $2
		WHERE catalog_name = $3 AND table_namespace = $4 AND table_name = $5 AND COALESCE(iceberg_type, 'TABLE') = $6
		AND EXISTS (SELECT 1 FROM iceberg_namespace_properties WHERE catalog_name = $7 AND namespace = $8)
		AND NOT EXISTS (SELECT 1 FROM iceberg_tables WHERE catalog_name = $9 AND table_namespace = $10 AND table_name = $11)`,
		args: []any{toNamespace, toName, c.cfg.Name, fromNamespace, fromName, string(kind), c.cfg.Name, toNamespace, c.cfg.Name, toNamespace, toName}})
	if err != nil {
		return fmt.Errorf("rename %s to %s: %w", join(from), join(to), err)
	}
	if !renamed {
		return taken(kind)
	}
	return nil
}

func (c *Catalog) readTable(ctx context.Context, location string) (*Document, error) {
	if d := c.cache.get(location); d != nil && d.Table != nil {
		return d, nil
	}
	meta, err := catalog.ReadMetadata(catalog.NewIO(ctx, c.locator), location)
	if err != nil {
		return nil, err
	}
	return c.cache.put(location, tableDocument(meta)), nil
}

// swap names another metadata file: one statement, compare and set.
func (c *Catalog) swap(ctx context.Context, id table.Identifier, kind Kind, from, to string) error {
	s, err := c.swapRow(id, kind, from, to)
	if err != nil {
		return err
	}
	changed, err := c.exec(ctx, s)
	if errors.Is(err, ErrKeyUsed) {
		return err
	}
	if err != nil {
		return fmt.Errorf("commit %s: %w: %w", join(id), catalog.ErrCommitUnknown, err)
	}
	if !changed {
		return conflict(id, "another commit came first")
	}
	return nil
}

func (c *Catalog) swapRow(id table.Identifier, kind Kind, from, to string) (statement, error) {
	namespace, name, err := split(id)
	if err != nil {
		return statement{}, err
	}
	s := statement{sql: `UPDATE iceberg_tables SET metadata_location = $1, previous_metadata_location = $2
		WHERE catalog_name = $3 AND table_namespace = $4 AND table_name = $5 AND COALESCE(iceberg_type, 'TABLE') = $6`,
		args: []any{to, from, c.cfg.Name, namespace, name, string(kind)}}
	if !invariant.Off("sql-commit-compares") {
		s.sql += ` AND metadata_location = $7`
		s.args = append(s.args, from)
	}
	return s, nil
}

func conflict(id table.Identifier, format string, args ...any) error {
	return fmt.Errorf("commit %s: %w: %s", join(id), catalog.ErrCommitConflict, fmt.Sprintf(format, args...))
}

// committer lets iceberg-go's own transactions commit to the catalog.
type committer struct{ c *Catalog }

func (a committer) LoadTable(ctx context.Context, id table.Identifier) (*table.Table, error) {
	return a.c.Load(ctx, id)
}

func (a committer) CommitTable(ctx context.Context, id table.Identifier, requirements []table.Requirement, updates []table.Update) (table.Metadata, string, error) {
	t, err := a.c.CommitTable(ctx, id, requirements, updates)
	if err != nil {
		return nil, "", err
	}
	return t.Metadata(), t.MetadataLocation(), nil
}
