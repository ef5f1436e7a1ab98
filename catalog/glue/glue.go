// Package glue is the AWS Glue Data Catalog.
//
// A Glue table of table_type ICEBERG names the current metadata file in its parameter
// metadata_location. A commit is one UpdateTable with the VersionId of the table that was
// found to name the base's file: Glue refuses it with ConcurrentModificationException if
// anybody changed the table since. The request is sent once, never again by the SDK: an
// answer that is lost leaves the outcome unknown.
//
// Glue folds names to lower case, and lists columns for Athena's and its own console; the
// list follows the schema with each commit. Table properties stay in the metadata file.
package glue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/iceberg-go/table"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/glue"
	"github.com/aws/aws-sdk-go-v2/service/glue/types"
	"github.com/aws/smithy-go"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/awsconfig"
	"github.com/tabletopic/tabletopic/internal/invariant"
)

// Config of a Catalog.
type Config struct {
	// AWS is how Glue is reached.
	AWS awsconfig.Config
	// CatalogID is the AWS account that has the Data Catalog. The caller's own if empty.
	CatalogID string
	// Warehouse is the location below which new tables are made, <warehouse>/<database>/<table>.
	// Below the location of their database if empty.
	Warehouse string
	// Archive makes Glue keep each version of a table. It has a limit of versions, which
	// frequent commits reach. Not kept if false.
	Archive bool
	// Timeout of one request. 60 s if zero.
	Timeout time.Duration
}

// Catalog is safe for concurrent use.
type Catalog struct {
	catalog.PointerCatalog
	pointer *pointer
}

type pointer struct {
	client *glue.Client
	cfg    Config
}

// The parameters of a Glue table that make it an Iceberg table.
const (
	paramType     = "table_type"
	paramLocation = "metadata_location"
	paramPrevious = "previous_metadata_location"
	typeIceberg   = "ICEBERG"
)

// Open prepares a catalog and sends it nothing. Files are read and written with the buckets
// of locator.
func Open(ctx context.Context, locator catalog.Locator, cfg Config) (*Catalog, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	cfg.Warehouse = strings.TrimRight(cfg.Warehouse, "/")
	loaded, err := awsconfig.Load(ctx, cfg.AWS)
	if err != nil {
		return nil, fmt.Errorf("open Glue catalog: %w", err)
	}
	client := glue.NewFromConfig(loaded, func(o *glue.Options) {
		o.HTTPClient = awshttp.NewBuildableClient().WithTimeout(cfg.Timeout)
	})
	p := &pointer{client: client, cfg: cfg}
	return &Catalog{catalog.PointerCatalog{Pointer: p, Locator: locator, Recent: &catalog.Recent{}}, p}, nil
}

// Connect tells whether the catalog answers and lets us read it.
func (c *Catalog) Connect(ctx context.Context) error {
	one := int32(1)
	if _, err := c.pointer.client.GetDatabases(ctx, &glue.GetDatabasesInput{CatalogId: c.pointer.catalogID(), MaxResults: &one}); err != nil {
		return fmt.Errorf("list Glue databases: %w", err)
	}
	return nil
}

// Close does nothing: connections end when they are idle.
func (c *Catalog) Close() error { return nil }

// List implements catalog.Catalog.
func (c *Catalog) List(ctx context.Context, namespace table.Identifier) ([]table.Identifier, error) {
	databases := []string{}
	switch len(namespace) {
	case 0:
		pages := glue.NewGetDatabasesPaginator(c.pointer.client, &glue.GetDatabasesInput{CatalogId: c.pointer.catalogID()})
		for pages.HasMorePages() {
			page, err := pages.NextPage(ctx)
			if err != nil {
				return nil, fmt.Errorf("list Glue databases: %w", err)
			}
			for _, d := range page.DatabaseList {
				databases = append(databases, aws.ToString(d.Name))
			}
		}
	case 1:
		databases = append(databases, namespace[0])
	default:
		return nil, nil // Glue has one level of namespaces
	}
	var out []table.Identifier
	for _, database := range databases {
		pages := glue.NewGetTablesPaginator(c.pointer.client, &glue.GetTablesInput{CatalogId: c.pointer.catalogID(), DatabaseName: fold(database)})
		for pages.HasMorePages() {
			page, err := pages.NextPage(ctx)
			if errors.As(err, new(*types.EntityNotFoundException)) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("list tables of Glue database %s: %w", database, err)
			}
			for _, t := range page.TableList {
				if isIceberg(&t) {
					out = append(out, table.Identifier{database, aws.ToString(t.Name)})
				}
			}
		}
	}
	return out, nil
}

// Drop implements catalog.Catalog. A table that is not Iceberg's is left alone.
func (c *Catalog) Drop(ctx context.Context, id table.Identifier) error {
	_, err := c.pointer.table(ctx, id)
	if err == nil {
		_, err = c.pointer.client.DeleteTable(ctx, &glue.DeleteTableInput{CatalogId: c.pointer.catalogID(), DatabaseName: fold(id[0]), Name: fold(id[1])})
		err = missing(err)
	}
	if err != nil {
		return fmt.Errorf("drop table %v: %w", id, err)
	}
	return nil
}

func (p *pointer) catalogID() *string {
	if p.cfg.CatalogID == "" {
		return nil
	}
	return &p.cfg.CatalogID
}

// fold is a name as Glue has it.
func fold(name string) *string { return aws.String(strings.ToLower(name)) }

func isIceberg(t *types.Table) bool { return strings.EqualFold(t.Parameters[paramType], typeIceberg) }

func missing(err error) error {
	if errors.As(err, new(*types.EntityNotFoundException)) {
		return fmt.Errorf("%w: %w", catalog.ErrNoTable, err)
	}
	return err
}

func (p *pointer) table(ctx context.Context, id table.Identifier) (*types.Table, error) {
	out, err := p.client.GetTable(ctx, &glue.GetTableInput{CatalogId: p.catalogID(), DatabaseName: fold(id[0]), Name: fold(id[1])})
	if err != nil {
		return nil, missing(err)
	}
	if !isIceberg(out.Table) || out.Table.Parameters[paramLocation] == "" {
		return nil, fmt.Errorf("table %s.%s in Glue is not an Iceberg table: give the topic's table another name", id[0], id[1])
	}
	return out.Table, nil
}

// Location implements catalog.Pointer.
func (p *pointer) Location(ctx context.Context, id table.Identifier) (string, error) {
	t, err := p.table(ctx, id)
	if err != nil {
		return "", err
	}
	return t.Parameters[paramLocation], nil
}

// Parent implements catalog.Pointer.
func (p *pointer) Parent(ctx context.Context, namespace string) (string, error) {
	var parent string
	if p.cfg.Warehouse != "" {
		parent = p.cfg.Warehouse + "/" + catalog.PathName(*fold(namespace))
	}
	out, err := p.client.GetDatabase(ctx, &glue.GetDatabaseInput{CatalogId: p.catalogID(), Name: fold(namespace)})
	switch {
	case err == nil && parent == "":
		parent = aws.ToString(out.Database.LocationUri)
	case errors.As(err, new(*types.EntityNotFoundException)):
		input := &types.DatabaseInput{Name: fold(namespace)}
		if parent != "" {
			input.LocationUri = &parent
		}
		_, err = p.client.CreateDatabase(ctx, &glue.CreateDatabaseInput{CatalogId: p.catalogID(), DatabaseInput: input})
		if errors.As(err, new(*types.AlreadyExistsException)) {
			err = nil
		}
	}
	if err != nil {
		return "", fmt.Errorf("database %s in Glue: %w", namespace, err)
	}
	if parent == "" {
		return "", fmt.Errorf("database %s in Glue has no location: set one, or a warehouse for the catalog", namespace)
	}
	return parent, nil
}

// Insert implements catalog.Pointer.
func (p *pointer) Insert(ctx context.Context, t *table.Table) error {
	id := t.Identifier()
	input := &types.TableInput{Name: fold(id[1]), TableType: aws.String("EXTERNAL_TABLE"), Parameters: map[string]string{paramType: typeIceberg}}
	describe(input, t)
	_, err := p.client.CreateTable(ctx, &glue.CreateTableInput{CatalogId: p.catalogID(), DatabaseName: fold(id[0]), TableInput: input})
	if errors.As(err, new(*types.AlreadyExistsException)) {
		return fmt.Errorf("%w: %w", catalog.ErrTableExists, err)
	}
	return err
}

// Swap implements catalog.Pointer.
func (p *pointer) Swap(ctx context.Context, base, next *table.Table) error {
	id := base.Identifier()
	now, err := p.table(ctx, id)
	switch {
	case errors.Is(err, catalog.ErrNoTable):
		return fmt.Errorf("commit %v: %w", id, err)
	case err != nil:
		return fmt.Errorf("commit %v: %w", id, outcome(err))
	case now.Parameters[paramLocation] != base.MetadataLocation() && !invariant.Off("pointer-commit-compares"):
		return catalog.Moved(base, now.Parameters[paramLocation])
	case now.VersionId == nil && !invariant.Off("glue-version"):
		return fmt.Errorf("commit %v: Glue tells no VersionId of the table, without which a commit would overwrite others", id)
	}
	input := &types.TableInput{
		Name: now.Name, Description: now.Description, Owner: now.Owner, Retention: now.Retention, TableType: now.TableType,
		PartitionKeys: now.PartitionKeys, LastAccessTime: now.LastAccessTime, LastAnalyzedTime: now.LastAnalyzedTime,
		Parameters: maps.Clone(now.Parameters), StorageDescriptor: now.StorageDescriptor,
	}
	input.Parameters[paramPrevious] = base.MetadataLocation()
	describe(input, next)
	update := &glue.UpdateTableInput{CatalogId: p.catalogID(), DatabaseName: fold(id[0]), TableInput: input, VersionId: now.VersionId, SkipArchive: aws.Bool(!p.cfg.Archive)}
	if invariant.Off("glue-version") {
		update.VersionId = nil
	}
	_, err = p.client.UpdateTable(ctx, update, func(o *glue.Options) { o.Retryer = aws.NopRetryer{} })
	if err == nil {
		return nil
	}
	return fmt.Errorf("commit %v: %w", id, outcome(err))
}

// describe sets what of a Glue table follows from the Iceberg table.
func describe(input *types.TableInput, t *table.Table) {
	input.Parameters[paramLocation] = t.MetadataLocation()
	storage := types.StorageDescriptor{}
	if input.StorageDescriptor != nil {
		storage = *input.StorageDescriptor
	}
	storage.Location = aws.String(t.Location())
	comments := map[string]*string{} // that somebody gave in Glue, by field id
	for _, c := range storage.Columns {
		comments[c.Parameters["iceberg.field.id"]] = c.Comment
	}
	storage.Columns = nil
	for _, c := range catalog.HiveColumns(t.Schema(), "timestamp") {
		column := types.Column{Name: aws.String(c.Name), Type: aws.String(c.Type), Parameters: map[string]string{
			"iceberg.field.id": strconv.Itoa(c.ID), "iceberg.field.optional": strconv.FormatBool(c.Null), "iceberg.field.current": "true",
		}}
		if column.Comment = comments[strconv.Itoa(c.ID)]; c.Comment != "" {
			column.Comment = aws.String(c.Comment)
		}
		storage.Columns = append(storage.Columns, column)
	}
	input.StorageDescriptor = &storage
}

// outcome tells from the error of an update what became of it.
func outcome(err error) error {
	var api smithy.APIError
	var response *awshttp.ResponseError
	switch {
	case errors.As(err, new(*types.ConcurrentModificationException)):
		return fmt.Errorf("%w: %w", catalog.ErrCommitConflict, err)
	case errors.As(err, new(*types.EntityNotFoundException)):
		return fmt.Errorf("%w: %w", catalog.ErrNoTable, err)
	case !errors.As(err, &response) || !errors.As(err, &api):
		return fmt.Errorf("%w: %w", catalog.ErrCommitUnknown, err)
	}
	status := response.HTTPStatusCode()
	_, throttled := retry.DefaultThrottleErrorCodes[api.ErrorCode()]
	if status/100 != 4 || throttled || slices.Contains(mayPass, api.ErrorCode()) || slices.Contains([]int{http.StatusRequestTimeout, http.StatusTooManyRequests}, status) {
		return fmt.Errorf("%w: %w", catalog.ErrCommitUnknown, err)
	}
	return err
}

// mayPass are Glue's errors of status 400 that another attempt may not meet.
var mayPass = []string{"OperationTimeoutException", "ResourceNotReadyException", "ExpiredTokenException", "ExpiredToken", "RequestExpired"}
