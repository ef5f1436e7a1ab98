package sql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

// existsKey marks a namespace that has no properties, as Iceberg's JDBC catalog does.
const existsKey = "exists"

// CreateNamespace makes a namespace. ErrNamespaceExists if it is there.
func (c *Catalog) CreateNamespace(ctx context.Context, namespace table.Identifier, properties iceberg.Properties) error {
	if len(namespace) == 0 {
		return fmt.Errorf("create namespace: %w: it has no name", ErrInvalid)
	}
	if err := valid(namespace); err != nil {
		return err
	}
	name := join(namespace)
	statements := []statement{{sql: `INSERT INTO iceberg_namespace_properties (catalog_name, namespace, property_key, property_value)
		SELECT $1, $2, $3, 'true' WHERE NOT EXISTS
		(SELECT 1 FROM iceberg_namespace_properties WHERE catalog_name = $4 AND namespace = $5)
		ON CONFLICT DO NOTHING`, args: []any{c.cfg.Name, name, existsKey, c.cfg.Name, name}}}
	for key, value := range properties {
		if err := validProperty(key, value); err != nil {
			return fmt.Errorf("create namespace %s: %w", name, err)
		}
		statements = append(statements, c.setProperty(name, key, value))
	}
	created, err := c.exec(ctx, statements...)
	if err != nil {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	if !created {
		return nameError(ErrNamespaceExists, namespace)
	}
	return nil
}

func (c *Catalog) setProperty(namespace, key, value string) statement {
	return statement{sql: `INSERT INTO iceberg_namespace_properties (catalog_name, namespace, property_key, property_value)
		VALUES ($1, $2, $3, $4)
		ON CONFLICT (catalog_name, namespace, property_key) DO UPDATE SET property_value = excluded.property_value`,
		args: []any{c.cfg.Name, namespace, key, value}}
}

func validProperty(key, value string) error {
	switch {
	case utf8.RuneCountInString(key) > 255 || utf8.RuneCountInString(value) > maxValue:
		return fmt.Errorf("property %.40q: %w: names have up to 255 characters, values up to %d", key, ErrInvalid, maxValue)
	case !utf8.ValidString(key) || !utf8.ValidString(value) || strings.ContainsRune(key+value, 0):
		return fmt.Errorf("property %.40q: %w: it is not text", key, ErrInvalid)
	}
	return nil
}

// namespaceThere returns ErrNoNamespace if a namespace is not there.
func (c *Catalog) namespaceThere(ctx context.Context, namespace table.Identifier) error {
	var one int
	err := c.db.QueryRowContext(ctx, `SELECT 1 FROM iceberg_namespace_properties
		WHERE catalog_name = $1 AND namespace = $2 LIMIT 1`, c.cfg.Name, join(namespace)).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return nameError(ErrNoNamespace, namespace)
	}
	if err != nil {
		return fmt.Errorf("look up namespace %s: %w", join(namespace), err)
	}
	return nil
}

// Namespace returns the properties of a namespace. ErrNoNamespace if it is not there.
func (c *Catalog) Namespace(ctx context.Context, namespace table.Identifier) (iceberg.Properties, error) {
	name := join(namespace)
	rows, err := c.db.QueryContext(ctx, `SELECT property_key, COALESCE(property_value, '') FROM iceberg_namespace_properties
		WHERE catalog_name = $1 AND namespace = $2`, c.cfg.Name, name)
	if err != nil {
		return nil, fmt.Errorf("load namespace %s: %w", name, err)
	}
	defer rows.Close()
	properties := iceberg.Properties{}
	found := false
	for rows.Next() {
		var key, value string
		if err := rows.Scan(&key, &value); err != nil {
			return nil, fmt.Errorf("load namespace %s: %w", name, err)
		}
		found = true
		if key != existsKey {
			properties[key] = value
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("load namespace %s: %w", name, err)
	}
	if !found {
		return nil, nameError(ErrNoNamespace, namespace)
	}
	return properties, nil
}

// Namespaces lists the namespaces one level below parent, by name.
func (c *Catalog) Namespaces(ctx context.Context, parent table.Identifier) ([]table.Identifier, error) {
	if len(parent) > 0 {
		if _, err := c.Namespace(ctx, parent); err != nil {
			return nil, err
		}
	}
	rows, err := c.db.QueryContext(ctx, `SELECT DISTINCT namespace FROM iceberg_namespace_properties
		WHERE catalog_name = $1 ORDER BY namespace`, c.cfg.Name)
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	defer rows.Close()
	out := []table.Identifier{}
	seen := map[string]bool{}
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, fmt.Errorf("list namespaces: %w", err)
		}
		id := levels(name)
		if len(id) <= len(parent) || !slices.Equal(id[:len(parent)], parent) {
			continue
		}
		id = id[:len(parent)+1]
		if !seen[join(id)] {
			seen[join(id)] = true
			out = append(out, id)
		}
	}
	return out, rows.Err()
}

// DropNamespace removes a namespace without tables and without namespaces below it.
func (c *Catalog) DropNamespace(ctx context.Context, namespace table.Identifier) error {
	name := join(namespace)
	if _, err := c.Namespace(ctx, namespace); err != nil {
		return err
	}
	below := strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(name) + ".%"
	dropped, err := c.exec(ctx, statement{sql: `DELETE FROM iceberg_namespace_properties WHERE catalog_name = $1 AND namespace = $2
		AND NOT EXISTS (SELECT 1 FROM iceberg_tables WHERE catalog_name = $3 AND table_namespace = $4)
		AND NOT EXISTS (SELECT 1 FROM iceberg_namespace_properties n WHERE n.catalog_name = $5 AND n.namespace LIKE $6 ESCAPE '\')`,
		args: []any{c.cfg.Name, name, c.cfg.Name, name, c.cfg.Name, below}})
	if err != nil {
		return fmt.Errorf("drop namespace %s: %w", name, err)
	}
	if !dropped {
		return nameError(ErrNamespaceNotEmpty, namespace)
	}
	return nil
}

// SetNamespaceProperties sets and removes properties, as one change, and returns the keys
// of removals that were not there.
func (c *Catalog) SetNamespaceProperties(ctx context.Context, namespace table.Identifier, set iceberg.Properties, remove []string) (missing []string, err error) {
	name := join(namespace)
	for range maxTries {
		old, err := c.Namespace(ctx, namespace)
		if err != nil {
			return nil, err
		}
		missing = nil
		var statements []statement
		for key, value := range set {
			if err := validProperty(key, value); err != nil {
				return nil, fmt.Errorf("set property of namespace %s: %w", name, err)
			}
			statements = append(statements, c.setProperty(name, key, value))
		}
		for _, key := range remove {
			if _, ok := old[key]; !ok {
				missing = append(missing, key)
				continue
			}
			delete(old, key) // removals may name it twice
			statements = append(statements, statement{sql: `DELETE FROM iceberg_namespace_properties
				WHERE catalog_name = $1 AND namespace = $2 AND property_key = $3`, args: []any{c.cfg.Name, name, key}})
		}
		if len(statements) == 0 {
			return missing, nil
		}
		// Properties must not bring a namespace back that is dropped meanwhile.
		there := statement{sql: `UPDATE iceberg_namespace_properties SET property_value = property_value
			WHERE catalog_name = $1 AND namespace = $2`, args: []any{c.cfg.Name, name}}
		changed, err := c.exec(ctx, append([]statement{there}, statements...)...)
		if err != nil {
			return nil, fmt.Errorf("set properties of namespace %s: %w", name, err)
		}
		if changed {
			return missing, nil
		}
	}
	return nil, conflict(namespace, "others changed its properties %d times", maxTries)
}
