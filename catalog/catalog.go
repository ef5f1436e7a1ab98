// Package catalog is the narrow view that Table Topic has of an Iceberg catalog: load,
// create, commit. Metadata, manifests and the protocols are iceberg-go's.
//
// Packages catalog/sql, catalog/rest, catalog/glue, … open the catalogs; package catalogtest
// is their common conformance suite, centred on [Catalog.Commit]. [PointerCatalog] is what
// those have in common that only name a metadata file.
//
// # How a commit is made
//
// [Prepare] turns a [Commit] on top of a base table into the updates and the
// requirements of Iceberg's REST specification, which each catalog then applies in one
// attempt. It is not an iceberg-go transaction, because those retry on a newer base
// with the older offsets, and read or grow with the table. Prepare reads one manifest
// list, writes one manifest and one list, and merges manifests of like size so that a
// table of n commits has O(log n) of them. What this process wrote it reads from memory ([Recent]). The requirements pin the branch, the schema,
// the last field id, the partition spec and the sort order of the base, so nothing that
// another writer changed is reverted. [Prepared.Clean] deletes the files that expired
// with the commit, after it is done.
//
// # Files
//
// A commit that fails deletes what it wrote if it can. [Names] tells beforehand what a process
// that dies may leave behind. All metadata goes through [IO], on the buckets that a [Locator] gives. Locations are
// taken as they stand, without percent decoding: file:///a b/c=1/%20 is that file. Every
// file is created, never replaced.
package catalog

import (
	"context"
	"errors"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"
)

// A Catalog is safe for concurrent use.
type Catalog interface {
	// Load returns the table as the catalog has it now. ErrNoTable if there is none.
	Load(ctx context.Context, id table.Identifier) (*table.Table, error)
	// Create makes the namespace if it is missing, and an unpartitioned table.
	// ErrTableExists if the name is taken. A REST catalog assigns fresh field ids, level by
	// level; others take those of schema as they are: go on with those of the table returned.
	Create(ctx context.Context, id table.Identifier, schema *iceberg.Schema, properties iceberg.Properties) (*table.Table, error)
	// Commit applies c on top of base, as one change, and only if the catalog still has
	// exactly base. It returns the new table. See ErrCommitConflict and ErrCommitUnknown;
	// any other error is definite: nothing was written, and a retry will not help until
	// somebody changes the table, the catalog or the rights. ErrNoTable if it is gone.
	Commit(ctx context.Context, base *table.Table, c Commit) (*table.Table, error)
	// List returns the identifiers of the tables in a namespace, every one if it is empty.
	List(ctx context.Context, namespace table.Identifier) ([]table.Identifier, error)
	// Drop removes the table from the catalog and leaves its files. ErrNoTable if there is none.
	Drop(ctx context.Context, id table.Identifier) error
}

// A Commit is one change of a table. Schema, Spec and Order each stand
// alone, but for Properties beside a Schema; the other fields go together.
type Commit struct {
	// Schema becomes the current schema. It is an evolution of base's: new fields carry
	// ids above base's last assigned id.
	Schema *iceberg.Schema
	// Spec becomes the default partition spec: one that the table has, by its id, or a new
	// one. Fields that the table has had in another keep their ids.
	Spec *iceberg.PartitionSpec
	// Order becomes the default sort order: one that the table has, by its id, or a new one.
	Order *table.SortOrder
	// Files are appended in one snapshot.
	Files []iceberg.DataFile
	// Replaces, if it is not nil, are files that leave the table in that snapshot, because the rows of
	// Files, as many, are theirs.
	Replaces *Replacement
	// Snapshot makes a snapshot even if there are no files.
	Snapshot bool
	// SnapshotID is that snapshot's, of [NewSnapshotID]. One of it if zero.
	SnapshotID int64
	// Attempt is in the names of the files that this attempt writes, and no other: see [Names].
	// A random one if zero.
	Attempt uuid.UUID
	// Summary is added to the snapshot's summary.
	Summary iceberg.Properties
	// Properties of the table to set, in the same change.
	Properties iceberg.Properties
	// Expire drops snapshots and metadata that the table's own history properties
	// (history.expire.max-snapshot-age-ms, 5 days, and min-snapshots-to-keep, 1) no longer
	// keep, a few at a time, if the commit makes a snapshot.
	Expire bool
}

// A Replacement is data files whose rows others hold from then on (Iceberg specification, snapshot
// operation "replace"). All are of one partition spec, and so are those that take their place.
type Replacement struct {
	Files []iceberg.DataFile
	// Sequence is the last sequence number of the table that their rows were read from. If a later
	// snapshot has brought delete files, of whatever rows, the commit is refused.
	Sequence int64
	// Manifests are the locations of those that named them then. They are looked through first.
	Manifests []string
}

// A commit that fails has one of two outcomes that callers must tell apart: after
// ErrCommitConflict nothing was written; after ErrCommitUnknown the table may have
// changed, and no file of the commit may be deleted until the table has been read again.
// A store or a catalog that is away is ErrCommitUnknown too: reading the table again is
// what tells when it is back. What the table then shows is not yet the end of an attempt
// that is still on its way; the next Commit is, because it needs the same base.
var (
	ErrCommitConflict = errors.New("commit conflict")
	ErrCommitUnknown  = errors.New("commit outcome unknown")
	ErrNoTable        = errors.New("table does not exist")
	ErrTableExists    = errors.New("table already exists")

	// ErrFilesChanged says that the files of a Replacement are not in the table as they were read: some
	// have left it, or rows of them may have been deleted. Nothing was written, and never will be on
	// any later base: what was to take their place is void.
	ErrFilesChanged = errors.New("the files to be replaced have changed")
)
