package sql

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/internal/invariant"
)

// Commit implements catalog.Catalog.
func (c *Catalog) Commit(ctx context.Context, base *table.Table, change catalog.Commit) (*table.Table, error) {
	fs := catalog.NewIO(ctx, c.locator).Recently(&c.recent)
	// Look first, so that a base that is old already costs no file.
	if now, err := c.location(ctx, base.Identifier(), Table); errors.Is(err, catalog.ErrNoTable) {
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
	next, err := c.replace(ctx, base, p.Updates, p.Attempt)
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
func (c *Catalog) replace(ctx context.Context, base *table.Table, updates []table.Update, attempt uuid.UUID) (*table.Table, error) {
	next, err := c.attempt(ctx, []Change{{ID: base.Identifier(), Updates: updates, Attempt: attempt}}, []*table.Table{base})
	if err != nil {
		return nil, err
	}
	return next[0], nil
}

// A Change is a commit to one table, as Iceberg's REST specification has it.
type Change struct {
	ID           table.Identifier
	Requirements []table.Requirement
	Updates      []table.Update
	Attempt      uuid.UUID // for the name of the metadata file; random, and another with each try, if zero
}

// CommitTable applies updates to a table if requirements hold for it, and makes the
// table if they are met by there being none. It retries as long as other commits come
// first. A requirement that fails is ErrCommitConflict.
func (c *Catalog) CommitTable(ctx context.Context, id table.Identifier, requirements []table.Requirement, updates []table.Update) (*table.Table, error) {
	next, err := c.CommitTables(ctx, []Change{{ID: id, Requirements: requirements, Updates: updates}})
	if err != nil {
		return nil, err
	}
	return next[0], nil
}

// CommitTables is CommitTable for several tables, each named once: all changes are made, or none.
func (c *Catalog) CommitTables(ctx context.Context, changes []Change) ([]*table.Table, error) {
	var last error
	for range maxTries {
		bases, err := c.bases(ctx, changes)
		if err != nil {
			return nil, err
		}
		next, err := c.attempt(ctx, changes, bases)
		if !errors.Is(err, catalog.ErrCommitConflict) {
			return next, err
		}
		last = err
	}
	return nil, last
}

// bases loads the tables and checks the requirements. A table that is to be made is nil.
func (c *Catalog) bases(ctx context.Context, changes []Change) ([]*table.Table, error) {
	bases := make([]*table.Table, len(changes))
	for i, ch := range changes {
		var meta table.Metadata
		base, err := c.Load(ctx, ch.ID)
		switch {
		case errors.Is(err, catalog.ErrNoTable) && creates(ch.Requirements):
			if err := c.Free(ctx, ch.ID, Table); err != nil {
				return nil, err
			}
			if err := c.namespaceThere(ctx, ch.ID[:len(ch.ID)-1]); err != nil {
				return nil, err
			}
		case err != nil:
			return nil, err
		default:
			bases[i], meta = base, base.Metadata()
		}
		for _, r := range ch.Requirements {
			if err := require(r, meta); err != nil {
				return nil, fmt.Errorf("commit %s: %w", join(ch.ID), err)
			}
		}
		if err := follows(ch.Updates, meta); err != nil {
			return nil, fmt.Errorf("commit %s: %w", join(ch.ID), err)
		}
	}
	return bases, nil
}

// follows checks that added snapshots come after the table's last one, which may be on another
// branch than the requirements name. The client did not know of that, and can build them again.
func follows(updates []table.Update, meta table.Metadata) error {
	if meta == nil {
		return nil
	}
	for _, u := range updates {
		if u.Action() != table.UpdateAddSnapshot {
			continue
		}
		text, err := json.Marshal(u)
		var added struct {
			Snapshot struct {
				Parent   *int64 `json:"parent-snapshot-id"`
				Sequence int64  `json:"sequence-number"`
				FirstRow *int64 `json:"first-row-id"`
			}
		}
		if err == nil {
			err = json.Unmarshal(text, &added)
		}
		if err != nil {
			return fmt.Errorf("%w: snapshot: %w", ErrInvalid, err)
		}
		s := added.Snapshot
		if meta.Version() >= 2 && s.Parent != nil && s.Sequence <= meta.LastSequenceNumber() {
			return &RequirementError{What: "last sequence number changed", Detail: fmt.Errorf("the snapshot has %d, and the table is at %d", s.Sequence, meta.LastSequenceNumber())}
		}
		if meta.Version() >= 3 && s.FirstRow != nil && *s.FirstRow < meta.NextRowID() {
			return &RequirementError{What: "next row id changed", Detail: fmt.Errorf("the snapshot begins at %d, and the table is at %d", *s.FirstRow, meta.NextRowID())}
		}
	}
	return nil
}

func creates(requirements []table.Requirement) bool {
	return slices.ContainsFunc(requirements, func(r table.Requirement) bool {
		return r.GetType() == table.AssertCreate().GetType()
	})
}

// A RequirementError is a requirement of a commit that does not hold. It is an
// ErrCommitConflict.
type RequirementError struct {
	What   string // as the reference implementation says it, which clients' tests look for
	Detail error
}

func (e *RequirementError) Error() string { return e.What + ": " + e.Detail.Error() }
func (e *RequirementError) Unwrap() error { return catalog.ErrCommitConflict }

var failed = map[string]string{
	"assert-create":                     "table already exists",
	"assert-table-uuid":                 "UUID does not match",
	"assert-view-uuid":                  "view UUID does not match",
	"assert-ref-snapshot-id":            "branch or tag has changed",
	"assert-last-assigned-field-id":     "last assigned field id changed",
	"assert-current-schema-id":          "current schema changed",
	"assert-last-assigned-partition-id": "last assigned partition id changed",
	"assert-default-spec-id":            "default partition spec changed",
	"assert-default-sort-order-id":      "default sort order changed",
}

// require checks one requirement for the metadata of a table, nil if there is none.
func require(r table.Requirement, meta table.Metadata) error {
	err := guarded(func() error { return r.Validate(meta) })
	if err == nil || errors.Is(err, ErrInvalid) {
		return err
	}
	return &RequirementError{What: failed[r.GetType()], Detail: err}
}

// guarded runs code of iceberg-go on what a client sent. It takes fields for granted that
// may be missing.
func guarded(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: a field is missing or of the wrong kind (%v)", ErrInvalid, p)
		}
	}()
	return do()
}

// attempt writes a metadata file for each change and names all of them in one transaction.
// ErrCommitConflict if a table is not its base any more; nothing was changed then.
func (c *Catalog) attempt(ctx context.Context, changes []Change, bases []*table.Table) ([]*table.Table, error) {
	fs := catalog.NewIO(ctx, c.locator)
	next := make([]*table.Table, len(changes))
	statements := make([]statement, len(changes))
	remove := func() {
		fs := catalog.NewIO(context.WithoutCancel(ctx), c.locator)
		for _, t := range next {
			if t != nil {
				_ = fs.Remove(t.MetadataLocation()) // nobody else knows it
			}
		}
	}
	for i, ch := range changes {
		meta, previous, err := changed(bases[i], ch.Updates)
		if err != nil {
			remove()
			return nil, fmt.Errorf("commit %s: %w: %w", join(ch.ID), ErrInvalid, err)
		}
		location, err := catalog.WriteMetadata(fs, meta, previous, cmp.Or(ch.Attempt, uuid.New()))
		if err != nil {
			remove()
			return nil, fmt.Errorf("commit %s: %w: %w", join(ch.ID), catalog.ErrCommitUnknown, err)
		}
		next[i] = c.table(ch.ID, meta, location)
		if bases[i] == nil {
			statements[i], err = c.row(ch.ID, Table, location)
		} else {
			statements[i], err = c.swapRow(ch.ID, Table, previous, location)
		}
		if err != nil {
			remove()
			return nil, err
		}
	}
	done, err := c.exec(ctx, statements...)
	if errors.Is(err, ErrKeyUsed) {
		remove()
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("commit %s: %w: %w", join(changes[0].ID), catalog.ErrCommitUnknown, err)
	}
	if !done {
		remove()
		return nil, conflict(changes[0].ID, "another commit came first")
	}
	for i, t := range next {
		c.cache.put(t.MetadataLocation(), tableDocument(t.Metadata()))
		if bases[i] != nil {
			catalog.RemoveOldMetadata(fs, bases[i].Metadata(), t.Metadata())
		}
	}
	return next, nil
}

// changed applies updates to base, or to nothing: the second half of a staged create.
func changed(base *table.Table, updates []table.Update) (meta table.Metadata, previous string, err error) {
	err = guarded(func() error {
		if base != nil {
			previous = base.MetadataLocation()
			meta, err = table.UpdateTableMetadata(base.Metadata(), updates, previous)
			return err
		}
		builder, err := table.NewMetadataBuilder(formatVersion(updates))
		if err != nil {
			return err
		}
		for _, u := range schemaFirst(updates) {
			if err := u.Apply(builder); err != nil {
				return err
			}
		}
		meta, err = builder.Build()
		return err
	})
	if err == nil && meta.Location() == "" {
		err = errors.New("the table has no location")
	}
	return meta, previous, err
}

// schemaFirst are the updates of a new table with its schema set before partitions and sort
// orders are added, which iceberg-go wants. DuckDB sets the schema last.
func schemaFirst(updates []table.Update) []table.Update {
	index := func(actions ...string) int {
		return slices.IndexFunc(updates, func(u table.Update) bool { return slices.Contains(actions, u.Action()) })
	}
	first, set := index(table.UpdateAddSpec, table.UpdateAddSortOrder), index(table.UpdateSetCurrentSchema)
	if first < 0 || set < first {
		return updates
	}
	return slices.Concat(updates[:first], updates[set:set+1], updates[first:set], updates[set+1:])
}

// formatVersion is what updates upgrade to, which the metadata builder wants to know before.
func formatVersion(updates []table.Update) int {
	for _, u := range updates {
		var wire struct {
			Version int `json:"format-version"`
		}
		if u.Action() != table.UpdateUpgradeFormatVersion {
			continue
		}
		if data, err := json.Marshal(u); err == nil && json.Unmarshal(data, &wire) == nil && wire.Version > 0 {
			return wire.Version
		}
	}
	return 2
}
