// Package s3tables is the catalog of an Amazon S3 table bucket, named by its ARN: the Iceberg
// REST catalog of the bucket's region, with requests signed for the service s3tables.
//
// Namespaces have one level; names are folded to lower case, as analytics services want
// them. The bucket stores the files, chooses their location, and does its own maintenance of
// snapshots and unreferenced files: it lets nobody delete or list objects. A drop deletes the files.
package s3tables

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/awsconfig"
	"github.com/tabletopic/tabletopic/catalog/rest"
)

// Config of a Catalog.
type Config struct {
	// Bucket is the ARN of the table bucket: arn:aws:s3tables:REGION:ACCOUNT:bucket/NAME.
	Bucket string
	// AWS is how S3 Tables is reached. The region is the ARN's if empty.
	AWS awsconfig.Config
	// Timeout of one request. 60 s if zero.
	Timeout time.Duration
}

// Catalog is safe for concurrent use.
type Catalog struct{ rest *rest.Catalog }

// MaintainsTables is true: the service compacts tables, unless it is told not to.
func (c *Catalog) MaintainsTables() bool { return true }

// Open prepares a catalog and asks it nothing.
func Open(locator catalog.Locator, cfg Config) (*Catalog, error) {
	partition, region, err := parse(cfg.Bucket)
	if err != nil {
		return nil, err
	}
	if cfg.AWS.Region == "" {
		cfg.AWS.Region = region
	}
	uri := strings.TrimRight(cfg.AWS.Endpoint, "/")
	if uri == "" {
		domain := "amazonaws.com"
		if partition == "aws-cn" {
			domain += ".cn"
		}
		uri = fmt.Sprintf("https://s3tables.%s.%s/iceberg", region, domain)
	}
	c, err := rest.Open(locator, rest.Config{
		URI: uri, Warehouse: cfg.Bucket, SigV4: &rest.SigV4{AWS: cfg.AWS, Service: "s3tables"}, PurgeOnDrop: true, Timeout: cfg.Timeout,
	})
	if err != nil {
		return nil, err
	}
	return &Catalog{c}, nil
}

// parse takes an ARN of a table bucket apart.
func parse(arn string) (partition, region string, err error) {
	parts := strings.Split(arn, ":")
	if len(parts) != 6 || parts[0] != "arn" || parts[2] != "s3tables" || parts[3] == "" || !strings.HasPrefix(parts[5], "bucket/") || parts[5] == "bucket/" {
		return "", "", fmt.Errorf("table bucket %q: an ARN arn:aws:s3tables:REGION:ACCOUNT:bucket/NAME is wanted", arn)
	}
	return parts[1], parts[3], nil
}

// Connect asks the catalog for its configuration unless it is known.
func (c *Catalog) Connect(ctx context.Context) error { return c.rest.Connect(ctx) }

// Close ends the connections.
func (c *Catalog) Close() error { return c.rest.Close() }

func fold(id table.Identifier) (table.Identifier, error) {
	if len(id) != 2 {
		return nil, fmt.Errorf("table %q: a table bucket has one level of namespaces: NAMESPACE.TABLE is wanted", strings.Join(id, "."))
	}
	return table.Identifier{strings.ToLower(id[0]), strings.ToLower(id[1])}, nil
}

// Load implements catalog.Catalog.
func (c *Catalog) Load(ctx context.Context, id table.Identifier) (*table.Table, error) {
	id, err := fold(id)
	if err != nil {
		return nil, err
	}
	return c.rest.Load(ctx, id)
}

// createdBy is a property by which the maker of a table knows it: SeaweedFS answers the
// creation of a table that is there with that table.
const createdBy = "tabletopic.created-by"

// Create implements catalog.Catalog.
func (c *Catalog) Create(ctx context.Context, id table.Identifier, schema *iceberg.Schema, properties iceberg.Properties) (*table.Table, error) {
	id, err := fold(id)
	if err != nil {
		return nil, err
	}
	marked := iceberg.Properties{createdBy: uuid.NewString()}
	maps.Copy(marked, properties)
	t, err := c.rest.Create(ctx, id, schema, marked)
	if err == nil && t.Properties()[createdBy] != marked[createdBy] {
		return nil, fmt.Errorf("create table %v: %w", id, catalog.ErrTableExists)
	}
	return t, err
}

// Commit implements catalog.Catalog.
func (c *Catalog) Commit(ctx context.Context, base *table.Table, change catalog.Commit) (*table.Table, error) {
	return c.rest.Commit(ctx, base, change)
}

// List implements catalog.Catalog.
func (c *Catalog) List(ctx context.Context, namespace table.Identifier) ([]table.Identifier, error) {
	folded := make(table.Identifier, len(namespace))
	for i, level := range namespace {
		folded[i] = strings.ToLower(level)
	}
	return c.rest.List(ctx, folded)
}

// Drop implements catalog.Catalog, and deletes the files.
func (c *Catalog) Drop(ctx context.Context, id table.Identifier) error {
	id, err := fold(id)
	if err != nil {
		return err
	}
	return c.rest.Drop(ctx, id)
}
