// Package catalog is the narrow view that Table Topic has of an Iceberg catalog: load,
// create, commit. Metadata, manifests and the protocols are iceberg-go's.
//
// Packages catalog/sql, catalog/rest, … open the catalogs; package catalogtest is
// their common conformance suite, centred on [Catalog.Commit].
package catalog

import (
	"context"
	"errors"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

// A Catalog is safe for concurrent use.
type Catalog interface {
	// Load returns the table as the catalog has it now. ErrNoTable if there is none.
	Load(ctx context.Context, id table.Identifier) (*table.Table, error)
	// Create makes the namespace if it is missing, and an unpartitioned table with the
	// field ids of schema as they are. ErrTableExists if the name is taken.
	Create(ctx context.Context, id table.Identifier, schema *iceberg.Schema, properties iceberg.Properties) (*table.Table, error)
	// Commit applies c on top of base, as one change, and only if the catalog still has
	// exactly base. It returns the new table. See ErrCommitConflict and ErrCommitUnknown;
	// any other error is definite: nothing was written, and a retry will not help.
	Commit(ctx context.Context, base *table.Table, c Commit) (*table.Table, error)
	// List returns the identifiers of the tables in a namespace, every one if it is empty.
	List(ctx context.Context, namespace table.Identifier) ([]table.Identifier, error)
	// Drop removes the table from the catalog and leaves its files. ErrNoTable if there is none.
	Drop(ctx context.Context, id table.Identifier) error
}

// A Commit is one change of a table. Schema stands alone; the other fields go together.
type Commit struct {
	// Schema becomes the current schema. It is an evolution of base's: new fields carry
	// ids above base's last assigned id.
	Schema *iceberg.Schema
	// Files are appended in one snapshot.
	Files []iceberg.DataFile
	// Snapshot makes a snapshot even if there are no files.
	Snapshot bool
	// Summary is added to the snapshot's summary.
	Summary iceberg.Properties
	// Properties of the table to set, in the same change.
	Properties iceberg.Properties
	// Expire drops snapshots and metadata that the table's own history properties no longer keep.
	Expire bool
}

// A commit that fails has one of two outcomes that callers must tell apart: after
// ErrCommitConflict nothing was written; after ErrCommitUnknown the table may have
// changed, and no file of the commit may be deleted until the table has been read again.
var (
	ErrCommitConflict = errors.New("commit conflict")
	ErrCommitUnknown  = errors.New("commit outcome unknown")
	ErrNoTable        = errors.New("table does not exist")
	ErrTableExists    = errors.New("table already exists")
)
