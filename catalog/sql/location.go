package sql

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/iceberg-go/table"
)

// Below reports whether a location lies below root. Iceberg Java writes file:/x for
// file:///x, Hadoop s3a: for s3:.
func Below(location, root string) bool {
	return strings.HasPrefix(plain(location), strings.TrimRight(plain(root), "/")+"/")
}

func plain(location string) string {
	scheme, rest, _ := strings.Cut(location, ":")
	switch scheme {
	case "file":
		return "file:/" + strings.TrimLeft(rest, "/")
	case "s3a", "s3n":
		return "s3:" + rest
	}
	return location
}

// Overlaps returns the names other than id of tables and views whose metadata file lies
// below location, or whose own location has it below: files in both places are at the
// mercy of both.
func (c *Catalog) Overlaps(ctx context.Context, id table.Identifier, location string) ([]string, error) {
	rows, err := c.db.QueryContext(ctx, `SELECT table_namespace, table_name, COALESCE(metadata_location, '') FROM iceberg_tables
		WHERE catalog_name = $1`, c.cfg.Name)
	if err != nil {
		return nil, fmt.Errorf("look for tables at %s: %w", location, err)
	}
	defer rows.Close()
	var names []string
	for rows.Next() {
		var namespace, name, file string
		if err := rows.Scan(&namespace, &name, &file); err != nil {
			return nil, fmt.Errorf("look for tables at %s: %w", location, err)
		}
		other := append(levels(namespace), unescape(name))
		if slices.Equal(other, id) {
			continue
		}
		if parent, ok := strings.CutSuffix(file[:max(0, strings.LastIndexByte(file, '/'))], "/metadata"); Below(file, location) || ok && Below(location+"/x", parent) {
			names = append(names, strings.Join(other, "."))
		}
	}
	return names, rows.Err()
}
