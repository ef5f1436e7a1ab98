// Package sql is the built-in catalog: Iceberg tables named in the metadata database, in
// the table layout of Iceberg's JDBC catalog (schema version 1), so that other clients of
// that layout can read it.
//
// A table is a row with the location of its current metadata file. Every change of a
// table is one UPDATE that compares the old location; every statement stands alone, so
// the catalog needs no transaction of its own, but serializable ones: db must make them so,
// which SQLite always does and PostgreSQL by default_transaction_isolation. Namespaces exist by their rows in
// iceberg_namespace_properties.
//
// [Catalog] is a catalog.Catalog for the coordinator, and has what an Iceberg REST
// server needs beyond that: see package catalog/server.
package sql

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

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
}

// Catalog is safe for concurrent use, also by several processes on one database.
type Catalog struct {
	db      *sql.DB
	locator catalog.Locator
	cfg     Config
	cache   cache
}

// Errors that the catalog has beyond those of package catalog.
var (
	ErrNoNamespace       = errors.New("namespace does not exist")
	ErrNamespaceExists   = errors.New("namespace already exists")
	ErrNamespaceNotEmpty = errors.New("namespace is not empty")
	ErrInvalid           = errors.New("invalid request")
)

// maxValue is the longest property of a namespace that the layout has room for. SQLite
// would take more, and the database could not move to PostgreSQL.
const maxValue = 1000

// The layout of Iceberg's org.apache.iceberg.jdbc.JdbcUtil, schema version 1.
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
}

// Open makes the two tables if db lacks them. The caller keeps and closes db.
func Open(ctx context.Context, db *sql.DB, locator catalog.Locator, cfg Config) (*Catalog, error) {
	if cfg.Name == "" {
		cfg.Name = "tabletopic"
	}
	cfg.Warehouse = strings.TrimRight(cfg.Warehouse, "/")
	if _, _, err := locator.Resolve(ctx, cfg.Warehouse+"/t"); err != nil {
		return nil, fmt.Errorf("warehouse %q: %w", cfg.Warehouse, err)
	}
	c := &Catalog{db: db, locator: locator, cfg: cfg, cache: cache{byLocation: map[string]table.Metadata{}}}
	for _, statement := range layout {
		if _, err := c.change(ctx, statement); err != nil {
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
	location, err := c.location(ctx, id)
	if err != nil {
		return nil, err
	}
	meta, err := c.read(ctx, location)
	if err != nil {
		return nil, fmt.Errorf("load table %s: %w", join(id), err)
	}
	return c.table(id, meta, location), nil
}

// location is the metadata location of a table, ErrNoTable if it is not there.
func (c *Catalog) location(ctx context.Context, id table.Identifier) (string, error) {
	namespace, name, err := split(id)
	if err != nil {
		return "", err
	}
	var location sql.NullString
	err = c.db.QueryRowContext(ctx, `SELECT metadata_location FROM iceberg_tables
		WHERE catalog_name = $1 AND table_namespace = $2 AND table_name = $3
		AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL)`, c.cfg.Name, namespace, name).Scan(&location)
	if errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("table %s: %w", join(id), catalog.ErrNoTable)
	}
	if err != nil {
		return "", fmt.Errorf("load table %s: %w", join(id), err)
	}
	return location.String, nil
}

func (c *Catalog) table(id table.Identifier, meta table.Metadata, location string) *table.Table {
	return table.New(id, meta, location, catalog.FS(c.locator), committer{c})
}

// Commit implements catalog.Catalog.
func (c *Catalog) Commit(ctx context.Context, base *table.Table, change catalog.Commit) (*table.Table, error) {
	fs := catalog.NewIO(ctx, c.locator)
	// Look first, so that a base that is old already costs no file.
	if now, err := c.location(ctx, base.Identifier()); errors.Is(err, catalog.ErrNoTable) {
		return nil, err
	} else if err != nil {
		return nil, fmt.Errorf("%w: %w", catalog.ErrCommitUnknown, err)
	} else if now != base.MetadataLocation() && !invariant.Off("sql-commit-compares") {
		return nil, conflict(base.Identifier(), "its metadata is %s by now, not %s", now, base.MetadataLocation())
	}
	p, err := catalog.Prepare(ctx, fs, base, change)
	if err != nil {
		return nil, err
	}
	next, err := c.replace(ctx, base, p.Updates)
	if errors.Is(err, catalog.ErrCommitConflict) {
		// The comparison is final here: nobody knows these manifests.
		return nil, errors.Join(err, p.Abandon(context.WithoutCancel(ctx), fs))
	}
	if err != nil {
		return nil, err
	}
	// The commit is done; files that could not be deleted stay for orphan removal.
	_ = p.Clean(ctx, fs, base, next)
	return next, nil
}

// replace applies updates to base and swaps the table's metadata location, if it is still base's.
func (c *Catalog) replace(ctx context.Context, base *table.Table, updates []table.Update) (*table.Table, error) {
	id := base.Identifier()
	meta, err := table.UpdateTableMetadata(base.Metadata(), updates, base.MetadataLocation())
	if err != nil {
		return nil, fmt.Errorf("commit %s: %w: %w", join(id), ErrInvalid, err)
	}
	fs := catalog.NewIO(ctx, c.locator)
	location, err := catalog.WriteMetadata(fs, meta, base.MetadataLocation())
	if err != nil {
		return nil, fmt.Errorf("commit %s: %w: %w", join(id), catalog.ErrCommitUnknown, err)
	}
	changed, err := c.swap(ctx, id, base.MetadataLocation(), location)
	if err != nil {
		return nil, fmt.Errorf("commit %s: %w: %w", join(id), catalog.ErrCommitUnknown, err)
	}
	if !changed {
		_ = fs.Remove(location) // nobody else knows it
		return nil, conflict(id, "another commit came first")
	}
	c.cache.put(location, meta)
	catalog.RemoveOldMetadata(fs, base.Metadata(), meta)
	return c.table(id, meta, location), nil
}

// swap is the commit: one statement, compare and set.
func (c *Catalog) swap(ctx context.Context, id table.Identifier, from, to string) (bool, error) {
	namespace, name, err := split(id)
	if err != nil {
		return false, err
	}
	statement := `UPDATE iceberg_tables SET metadata_location = $1, previous_metadata_location = $2
		WHERE catalog_name = $3 AND table_namespace = $4 AND table_name = $5`
	args := []any{to, from, c.cfg.Name, namespace, name}
	if !invariant.Off("sql-commit-compares") {
		statement += ` AND metadata_location = $6`
		args = append(args, from)
	}
	return c.exec(ctx, statement, args...)
}

// maxTries is how often a statement that concurrent ones made fail is tried.
const maxTries = 20

// exec runs a statement that changes rows or does not.
func (c *Catalog) exec(ctx context.Context, statement string, args ...any) (bool, error) {
	changed, err := c.change(ctx, statement, args...)
	if err != nil || !changed || c.cfg.Durable == nil || invariant.Off("sql-durable") {
		return changed, err
	}
	return true, c.cfg.Durable(ctx)
}

// change is exec without the wait. PostgreSQL may refuse a statement because of others at the
// same time; it has changed nothing then, and sees what they did when it is tried again.
func (c *Catalog) change(ctx context.Context, statement string, args ...any) (bool, error) {
	for try := 1; ; try++ {
		result, err := c.db.ExecContext(ctx, statement, args...)
		if err == nil {
			n, err := result.RowsAffected()
			return n > 0, err
		}
		if try == maxTries || !refused(err) {
			return false, err
		}
	}
}

// refused reports that a statement met concurrent ones: serialization failure, deadlock, or
// a row that came while it ran.
func refused(err error) bool {
	var e interface{ SQLState() string }
	return errors.As(err, &e) && slices.Contains([]string{"40001", "40P01", "23505"}, e.SQLState())
}

func conflict(id table.Identifier, format string, args ...any) error {
	return fmt.Errorf("commit %s: %w: %s", join(id), catalog.ErrCommitConflict, fmt.Sprintf(format, args...))
}

// CommitTable applies updates to a table if requirements hold for it, and makes the
// table if they are met by there being none. It retries as long as other commits come
// first. A requirement that fails is ErrCommitConflict.
func (c *Catalog) CommitTable(ctx context.Context, id table.Identifier, requirements []table.Requirement, updates []table.Update) (*table.Table, error) {
	const attempts = 10
	var last error
	for range attempts {
		base, err := c.Load(ctx, id)
		if errors.Is(err, catalog.ErrNoTable) && creates(requirements) {
			return c.createStaged(ctx, id, requirements, updates)
		}
		if err != nil {
			return nil, err
		}
		for _, r := range requirements {
			if err := r.Validate(base.Metadata()); err != nil {
				return nil, conflict(id, "%v", err)
			}
		}
		next, err := c.replace(ctx, base, updates)
		if err == nil {
			return next, nil
		}
		if !errors.Is(err, catalog.ErrCommitConflict) {
			return nil, err
		}
		last = err
	}
	return nil, last
}

func creates(requirements []table.Requirement) bool {
	return slices.ContainsFunc(requirements, func(r table.Requirement) bool {
		return r.GetType() == table.AssertCreate().GetType()
	})
}

// createStaged makes a table of updates alone: the second half of a staged create.
func (c *Catalog) createStaged(ctx context.Context, id table.Identifier, requirements []table.Requirement, updates []table.Update) (*table.Table, error) {
	for _, r := range requirements {
		if err := r.Validate(nil); err != nil {
			return nil, conflict(id, "%v", err)
		}
	}
	version := 2
	for _, u := range updates {
		if u.Action() != table.UpdateUpgradeFormatVersion {
			continue
		}
		var wire struct {
			Version int `json:"format-version"`
		}
		if data, err := json.Marshal(u); err == nil && json.Unmarshal(data, &wire) == nil && wire.Version > 0 {
			version = wire.Version
		}
	}
	builder, err := table.NewMetadataBuilder(version)
	if err != nil {
		return nil, fmt.Errorf("create table %s: %w: %w", join(id), ErrInvalid, err)
	}
	for _, u := range updates {
		if err := u.Apply(builder); err != nil {
			return nil, fmt.Errorf("create table %s: %w: %w", join(id), ErrInvalid, err)
		}
	}
	meta, err := builder.Build()
	if err != nil {
		return nil, fmt.Errorf("create table %s: %w: %w", join(id), ErrInvalid, err)
	}
	if meta.Location() == "" {
		return nil, fmt.Errorf("create table %s: %w: the table has no location", join(id), ErrInvalid)
	}
	return c.insert(ctx, id, meta)
}

// Create implements catalog.Catalog.
func (c *Catalog) Create(ctx context.Context, id table.Identifier, schema *iceberg.Schema, properties iceberg.Properties) (*table.Table, error) {
	namespace, _, err := split(id)
	if err != nil {
		return nil, err
	}
	if _, err := c.location(ctx, id); err == nil {
		return nil, fmt.Errorf("create table %s: %w", join(id), catalog.ErrTableExists)
	}
	if err := c.insertNamespace(ctx, namespace, nil); err != nil && !errors.Is(err, ErrNamespaceExists) {
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
	if _, err := c.location(ctx, id); err == nil {
		return nil, fmt.Errorf("create table %s: %w", join(id), catalog.ErrTableExists)
	}
	return c.insert(ctx, id, meta)
}

func (c *Catalog) insert(ctx context.Context, id table.Identifier, meta table.Metadata) (*table.Table, error) {
	fs := catalog.NewIO(ctx, c.locator)
	location, err := catalog.WriteMetadata(fs, meta, "")
	if err != nil {
		return nil, fmt.Errorf("create table %s: %w", join(id), err)
	}
	if err := c.insertRow(ctx, id, location); err != nil {
		if errors.Is(err, catalog.ErrTableExists) || errors.Is(err, ErrNoNamespace) {
			_ = fs.Remove(location)
		}
		return nil, err
	}
	c.cache.put(location, meta)
	return c.table(id, meta, location), nil
}

// insertRow names a table, if its namespace is there and the name is free.
func (c *Catalog) insertRow(ctx context.Context, id table.Identifier, location string) error {
	namespace, name, err := split(id)
	if err != nil {
		return err
	}
	created, err := c.exec(ctx, `INSERT INTO iceberg_tables
		(catalog_name, table_namespace, table_name, metadata_location, previous_metadata_location, iceberg_type)
		SELECT $1, $2, $3, $4, NULL, 'TABLE'
		WHERE EXISTS (SELECT 1 FROM iceberg_namespace_properties WHERE catalog_name = $5 AND namespace = $6)
		ON CONFLICT DO NOTHING`, c.cfg.Name, namespace, name, location, c.cfg.Name, namespace)
	if err != nil {
		return fmt.Errorf("create table %s: %w", join(id), err)
	}
	if created {
		return nil
	}
	if there, err := c.namespaceExists(ctx, namespace); err != nil || !there {
		return errors.Join(err, fmt.Errorf("create table %s: %w", join(id), ErrNoNamespace))
	}
	return fmt.Errorf("create table %s: %w", join(id), catalog.ErrTableExists)
}

// NewLocation chooses where a new table lies: <warehouse>/<namespace>/<table>, with a
// suffix if an earlier table of that name left files there.
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

// Register names a table that exists already by its metadata file.
func (c *Catalog) Register(ctx context.Context, id table.Identifier, location string) (*table.Table, error) {
	if strings.Contains(location, "/../") || strings.Contains(location, "/./") {
		return nil, fmt.Errorf("register table %s: %w: location %s", join(id), ErrInvalid, location)
	}
	meta, err := c.read(ctx, location)
	if err != nil {
		return nil, fmt.Errorf("register table %s: %w: %w", join(id), ErrInvalid, err)
	}
	if err := c.insertRow(ctx, id, location); err != nil {
		return nil, err
	}
	return c.table(id, meta, location), nil
}

// List implements catalog.Catalog.
func (c *Catalog) List(ctx context.Context, namespace table.Identifier) ([]table.Identifier, error) {
	rows, err := c.db.QueryContext(ctx, `SELECT table_namespace, table_name FROM iceberg_tables
		WHERE catalog_name = $1 AND ($2 OR table_namespace = $3) AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL)
		ORDER BY table_namespace, table_name`, c.cfg.Name, len(namespace) == 0, join(namespace))
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	defer rows.Close()
	var out []table.Identifier
	for rows.Next() {
		var ns, name string
		if err := rows.Scan(&ns, &name); err != nil {
			return nil, fmt.Errorf("list tables: %w", err)
		}
		out = append(out, append(levels(ns), unescape(name)))
	}
	return out, rows.Err()
}

// Drop implements catalog.Catalog.
func (c *Catalog) Drop(ctx context.Context, id table.Identifier) error {
	namespace, name, err := split(id)
	if err != nil {
		return err
	}
	dropped, err := c.exec(ctx, `DELETE FROM iceberg_tables WHERE catalog_name = $1 AND table_namespace = $2 AND table_name = $3
		AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL)`, c.cfg.Name, namespace, name)
	if err == nil && !dropped {
		err = catalog.ErrNoTable
	}
	if err != nil {
		return fmt.Errorf("drop table %s: %w", join(id), err)
	}
	return nil
}

// Rename gives a table another name, in a namespace that exists.
func (c *Catalog) Rename(ctx context.Context, from, to table.Identifier) error {
	fromNamespace, fromName, err := split(from)
	if err != nil {
		return err
	}
	toNamespace, toName, err := split(to)
	if err != nil {
		return err
	}
	if _, err := c.location(ctx, from); err != nil {
		return err
	}
	if there, err := c.namespaceExists(ctx, toNamespace); err != nil || !there {
		return errors.Join(err, fmt.Errorf("rename table to %s: %w", join(to), ErrNoNamespace))
	}
	renamed, err := c.exec(ctx, `UPDATE iceberg_tables SET table_namespace = $1, table_name = $2
		WHERE catalog_name = $3 AND table_namespace = $4 AND table_name = $5
		AND NOT EXISTS (SELECT 1 FROM iceberg_tables WHERE catalog_name = $6 AND table_namespace = $7 AND table_name = $8)`,
		toNamespace, toName, c.cfg.Name, fromNamespace, fromName, c.cfg.Name, toNamespace, toName)
	if err == nil && !renamed {
		err = catalog.ErrTableExists
	}
	if err != nil {
		return fmt.Errorf("rename table %s to %s: %w", join(from), join(to), err)
	}
	return nil
}

func (c *Catalog) read(ctx context.Context, location string) (table.Metadata, error) {
	if meta := c.cache.get(location); meta != nil {
		return meta, nil
	}
	meta, err := catalog.ReadMetadata(catalog.NewIO(ctx, c.locator), location)
	if err == nil {
		c.cache.put(location, meta)
	}
	return meta, err
}

// cache holds the metadata of the last locations; a metadata file never changes.
type cache struct {
	mu         sync.Mutex
	byLocation map[string]table.Metadata // guarded by mu
	order      []string                  // guarded by mu, oldest first
}

const cacheTables = 32

func (c *cache) get(location string) table.Metadata {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byLocation[location]
}

func (c *cache) put(location string, meta table.Metadata) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byLocation[location] == nil {
		c.order = append(c.order, location)
	}
	c.byLocation[location] = meta
	if len(c.order) > cacheTables {
		delete(c.byLocation, c.order[0])
		c.order = slices.Delete(c.order, 0, 1)
	}
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

// Names. The layout joins the levels of a namespace by dots; a dot or a percent sign
// inside a level is escaped, which plain names never show.

var escaper = strings.NewReplacer("%", "%25", ".", "%2E")

func join(namespace table.Identifier) string {
	parts := make([]string, len(namespace))
	for i, level := range namespace {
		parts[i] = escaper.Replace(level)
	}
	return strings.Join(parts, ".")
}

func unescape(s string) string {
	if plain, err := url.PathUnescape(s); err == nil {
		return plain
	}
	return s
}

func levels(joined string) table.Identifier {
	var out table.Identifier
	for _, level := range strings.Split(joined, ".") {
		out = append(out, unescape(level))
	}
	return out
}

func split(id table.Identifier) (namespace, name string, err error) {
	if len(id) < 2 {
		return "", "", fmt.Errorf("table %q: %w: it needs a namespace", strings.Join(id, "."), ErrInvalid)
	}
	if err := valid(id); err != nil {
		return "", "", err
	}
	return join(id[:len(id)-1]), escaper.Replace(id[len(id)-1]), nil
}

func valid(id table.Identifier) error {
	for _, level := range id {
		if level == "" || strings.ContainsFunc(level, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return fmt.Errorf("name %q: %w: levels must not be empty or hold control characters", id, ErrInvalid)
		}
	}
	if n := len(join(id)); n > 255 {
		return fmt.Errorf("name %.40q…: %w: %d bytes long, 255 are allowed", join(id), ErrInvalid, n)
	}
	return nil
}
