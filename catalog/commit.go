package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

// A Prepared commit is what a catalog has to apply in one attempt.
type Prepared struct {
	Updates      []table.Update
	Requirements []table.Requirement
	// SnapshotID is the new snapshot's, 0 if there is none.
	SnapshotID int64
	// Attempt is for the name of the metadata file.
	Attempt uuid.UUID

	files   []string // manifest and manifest list that were written for it
	expired []int64
}

// Prepare writes the manifests of c, and returns the change. Errors that may pass are
// ErrCommitUnknown.
func Prepare(ctx context.Context, fs *IO, base *table.Table, c Commit) (*Prepared, error) {
	p := &Prepared{Requirements: requirements(base.Metadata()), Attempt: cmp.Or(c.Attempt, uuid.New())}
	if c.Schema != nil {
		return p, p.evolve(base, c)
	}
	if c.Spec != nil {
		p.respec(base, c.Spec)
		return p, nil
	}
	if c.Order != nil {
		p.reorder(base, c.Order)
		return p, nil
	}
	if len(c.Files) > 0 || c.Snapshot || c.Replaces != nil {
		if err := p.append(ctx, fs, base, c); err != nil {
			return nil, fmt.Errorf("prepare commit on %v: %w", base.Identifier(), err)
		}
	}
	if len(c.Properties) > 0 {
		p.Updates = append(p.Updates, table.NewSetPropertiesUpdate(c.Properties))
	}
	if len(p.Updates) == 0 {
		return nil, fmt.Errorf("prepare commit on %v: it changes nothing", base.Identifier())
	}
	return p, nil
}

// Names returns the locations of the files that [Catalog.Commit] may create for c on top of base:
// manifests, the manifest list and the metadata file. There may be fewer, and the metadata file has
// another name if the catalog itself writes it. c has an Attempt, and a SnapshotID if it makes a
// snapshot.
func Names(base *table.Table, c Commit) []string {
	meta := base.Metadata()
	var names []string
	if len(c.Files) > 0 || c.Snapshot || c.Replaces != nil {
		specs := map[int32]bool{}
		for _, f := range c.Files {
			specs[f.SpecID()] = true
		}
		for n := range max(1, len(specs)) {
			names = append(names, manifestLocation(meta, c.Attempt, n))
		}
		names = append(names, listLocation(meta, c.Attempt, c.SnapshotID))
	}
	props := maps.Clone(meta.Properties())
	maps.Copy(props, c.Properties)
	return append(names, metadataFile(meta.Location(), props, base.MetadataLocation(), c.Attempt))
}

// requirements pin what a commit depends on: another table of the same name, a snapshot,
// a schema, a partition spec or a sort order that came meanwhile is a conflict.
func requirements(base table.Metadata) []table.Requirement {
	var head *int64
	if s := base.CurrentSnapshot(); s != nil {
		head = &s.SnapshotID
	}
	reqs := []table.Requirement{
		table.AssertTableUUID(base.TableUUID()),
		table.AssertDefaultSpecID(base.DefaultPartitionSpec()),
		table.AssertDefaultSortOrderID(base.DefaultSortOrder()),
	}
	if !invariant.Off("commit-pins-snapshot") {
		reqs = append(reqs, table.AssertRefSnapshotID(table.MainBranch, head))
	}
	if !invariant.Off("commit-pins-schema") {
		reqs = append(reqs, table.AssertCurrentSchemaID(base.CurrentSchema().ID),
			table.AssertLastAssignedFieldID(base.LastColumnID()))
	}
	if last := base.LastPartitionSpecID(); last != nil {
		reqs = append(reqs, table.AssertLastAssignedPartitionID(*last))
	}
	return reqs
}

func (p *Prepared) evolve(base *table.Table, c Commit) error {
	if len(c.Files) > 0 || c.Snapshot || c.Replaces != nil {
		return errors.New("prepare schema commit: a schema goes without files")
	}
	next := iceberg.NewSchemaWithIdentifiers(0, c.Schema.IdentifierFieldIDs, c.Schema.Fields()...)
	current, err := iceberg.IndexByID(base.Schema())
	if err != nil {
		return fmt.Errorf("prepare schema commit on %v: %w", base.Identifier(), err)
	}
	fields, err := iceberg.IndexByID(next)
	if err != nil {
		return fmt.Errorf("prepare schema commit on %v: %w", base.Identifier(), err)
	}
	last := base.Metadata().LastColumnID()
	for id, f := range fields {
		if _, old := current[id]; !old && id <= last {
			return fmt.Errorf("prepare schema commit on %v: new field %q has id %d, and %d is assigned already",
				base.Identifier(), f.Name, id, last)
		}
	}
	p.Updates = []table.Update{table.NewAddSchemaUpdate(next), table.NewSetCurrentSchemaUpdate(-1)}
	if len(c.Properties) > 0 {
		p.Updates = append(p.Updates, table.NewSetPropertiesUpdate(c.Properties))
	}
	return nil
}

func (p *Prepared) respec(base *table.Table, spec *iceberg.PartitionSpec) {
	if base.Metadata().PartitionSpecByID(spec.ID()) != nil {
		p.Updates = []table.Update{table.NewSetDefaultSpecUpdate(spec.ID())}
		return
	}
	p.Updates = []table.Update{table.NewAddPartitionSpecUpdate(spec, false), table.NewSetDefaultSpecUpdate(-1)}
}

func (p *Prepared) reorder(base *table.Table, order *table.SortOrder) {
	for _, known := range base.Metadata().SortOrders() {
		if known.OrderID() == order.OrderID() {
			p.Updates = []table.Update{table.NewSetDefaultSortOrderUpdate(order.OrderID())}
			return
		}
	}
	p.Updates = []table.Update{table.NewAddSortOrderUpdate(order), table.NewSetDefaultSortOrderUpdate(-1)}
}

// append makes the new snapshot of main, and drops what expires with it.
func (p *Prepared) append(ctx context.Context, fs *IO, base *table.Table, c Commit) error {
	meta := base.Metadata()
	parent := meta.CurrentSnapshot()
	if ref, ok := meta.Ref(), true; ok && ref.SnapshotRefType == table.TagRef {
		return errors.New("main is a tag")
	}
	s := table.Snapshot{
		SnapshotID:     cmp.Or(c.SnapshotID, NewSnapshotID(meta)),
		SequenceNumber: meta.LastSequenceNumber() + 1,
		// A clock behind the table's must not stop commits.
		TimestampMs: max(time.Now().UnixMilli(), meta.LastUpdatedMillis()),
		SchemaID:    &meta.CurrentSchema().ID,
		Summary:     summary(parent, c),
	}
	if meta.Version() == 1 {
		s.SequenceNumber = 0
	}
	if parent != nil {
		s.ParentSnapshotID = &parent.SnapshotID
	}
	w := manifestWriter{ctx: ctx, fs: fs, meta: meta, snapshot: &s, attempt: p.Attempt}
	if err := w.write(parent, c.Files, c.Replaces); err != nil {
		return unknown(w.remove(err))
	}
	p.SnapshotID = s.SnapshotID
	p.files = w.files
	p.Updates = append(p.Updates, table.NewAddSnapshotUpdate(&s), setMain(meta, s.SnapshotID))
	if c.Expire {
		p.expired = expired(meta, s, time.Now())
		if len(p.expired) > 0 {
			p.Updates = append(p.Updates, table.NewRemoveSnapshotsUpdate(p.expired, false))
		}
	}
	return nil
}

// setMain keeps the branch's own retention, which the update would reset.
func setMain(meta table.Metadata, id int64) table.Update {
	var maxRefAge, maxSnapshotAge int64
	var minKeep int
	for name, ref := range meta.Refs() {
		if name != table.MainBranch {
			continue
		}
		if ref.MaxRefAgeMs != nil {
			maxRefAge = *ref.MaxRefAgeMs
		}
		if ref.MaxSnapshotAgeMs != nil {
			maxSnapshotAge = *ref.MaxSnapshotAgeMs
		}
		if ref.MinSnapshotsToKeep != nil {
			minKeep = *ref.MinSnapshotsToKeep
		}
	}
	return table.NewSetSnapshotRefUpdate(table.MainBranch, id, table.BranchRef, maxRefAge, maxSnapshotAge, minKeep)
}

// NewSnapshotID returns an id that no snapshot of the table has.
func NewSnapshotID(meta table.Metadata) int64 {
	for {
		u := uuid.New()
		var id int64
		for i := range 8 {
			id = id<<8 | int64(u[i]^u[i+8])
		}
		if id &= 1<<63 - 1; id != 0 && meta.SnapshotByID(id) == nil {
			return id
		}
	}
}

// summary counts what is added and what leaves, and goes on with the totals of parent as far as it
// has them.
func summary(parent *table.Snapshot, c Commit) *table.Summary {
	partitions := map[string]bool{}
	count := func(files []iceberg.DataFile) (records, bytes int64) {
		for _, f := range files {
			records += f.Count()
			bytes += f.FileSizeBytes()
			partitions[fmt.Sprint(f.SpecID(), f.Partition())] = true
		}
		return records, bytes
	}
	records, bytes := count(c.Files)
	operation, gone := table.OpAppend, []iceberg.DataFile(nil)
	if c.Replaces != nil {
		operation, gone = table.OpReplace, c.Replaces.Files
	}
	goneRecords, goneBytes := count(gone)
	p := iceberg.Properties{}
	for k, v := range c.Summary {
		p[k] = v
	}
	add := func(added, removed, total string, n, less int64) {
		if n > 0 {
			p[added] = strconv.FormatInt(n, 10)
		}
		if less > 0 {
			p[removed] = strconv.FormatInt(less, 10)
		}
		if parent == nil {
			p[total] = strconv.FormatInt(n, 10)
			return
		}
		if parent.Summary == nil {
			return
		}
		if old, err := strconv.ParseInt(parent.Summary.Properties[total], 10, 64); err == nil {
			p[total] = strconv.FormatInt(old+n-less, 10)
		}
	}
	add("added-data-files", "deleted-data-files", "total-data-files", int64(len(c.Files)), int64(len(gone)))
	add("added-records", "deleted-records", "total-records", records, goneRecords)
	add("added-files-size", "removed-files-size", "total-files-size", bytes, goneBytes)
	add("", "", "total-delete-files", 0, 0)
	add("", "", "total-position-deletes", 0, 0)
	add("", "", "total-equality-deletes", 0, 0)
	if len(partitions) > 0 {
		p["changed-partition-count"] = strconv.Itoa(len(partitions))
	}
	return &table.Summary{Operation: operation, Properties: p}
}

// unknown marks an error that may pass: a store or a catalog that is away.
func unknown(err error) error {
	if err == nil || errors.Is(err, errDefinite) || errors.Is(err, ErrFilesChanged) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrCommitUnknown, err)
}

// errDefinite marks what no retry on the same base can cure.
var errDefinite = errors.New("cannot be committed")

// Abandon deletes the manifests of a commit that definitely was not applied. Its data
// files are the caller's.
func (p *Prepared) Abandon(ctx context.Context, fs *IO) error {
	_, err := fs.DeleteFiles(ctx, p.files)
	return err
}
