package catalog

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

// A Pointer names the current metadata file of each table, as Glue and the Hive Metastore
// do. Names have two levels: a namespace and a table.
type Pointer interface {
	// Location of the current metadata file. ErrNoTable if there is no table.
	Location(ctx context.Context, id table.Identifier) (string, error)
	// Parent makes the namespace if it is missing, and returns the location below which its
	// tables get theirs.
	Parent(ctx context.Context, namespace string) (string, error)
	// Insert names a new table. ErrTableExists if the name is taken.
	Insert(ctx context.Context, t *table.Table) error
	// Swap names next's metadata file if base's is still the one that is named. After
	// ErrCommitUnknown it may do so yet; after any other error, ErrCommitConflict among them,
	// it never will.
	Swap(ctx context.Context, base, next *table.Table) error
}

// PointerCatalog is a catalog as far as a Pointer suffices: all but List and Drop.
type PointerCatalog struct {
	Pointer Pointer
	Locator Locator
	Recent  *Recent // for commits; nil for none
}

// Load implements Catalog.
func (c PointerCatalog) Load(ctx context.Context, id table.Identifier) (*table.Table, error) {
	if err := twoLevels(id); err != nil {
		return nil, err
	}
	location, err := c.Pointer.Location(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("load table %v: %w", id, err)
	}
	meta, err := ReadMetadata(NewIO(ctx, c.Locator), location)
	if err != nil {
		return nil, fmt.Errorf("load table %v: %w", id, err)
	}
	return c.table(id, meta, location), nil
}

func (c PointerCatalog) table(id table.Identifier, meta table.Metadata, location string) *table.Table {
	return table.New(id, meta, location, FS(c.Locator), c)
}

func twoLevels(id table.Identifier) error {
	if len(id) != 2 {
		return fmt.Errorf("table %q: this catalog has one level of namespaces: NAMESPACE.TABLE is wanted", strings.Join(id, "."))
	}
	return nil
}

// LoadTable and CommitTable let iceberg-go's own transactions commit to the catalog.
func (c PointerCatalog) LoadTable(ctx context.Context, id table.Identifier) (*table.Table, error) {
	return c.Load(ctx, id)
}

// CommitTable applies updates in one attempt, if requirements hold for the table as it is.
func (c PointerCatalog) CommitTable(ctx context.Context, id table.Identifier, requirements []table.Requirement, updates []table.Update) (table.Metadata, string, error) {
	base, err := c.Load(ctx, id)
	if err != nil {
		return nil, "", err
	}
	for _, r := range requirements {
		if err := r.Validate(base.Metadata()); err != nil {
			return nil, "", fmt.Errorf("commit %v: %w: %w", id, ErrCommitConflict, err)
		}
	}
	next, err := c.replace(ctx, base, updates, uuid.New())
	if err != nil {
		return nil, "", err
	}
	return next.Metadata(), next.MetadataLocation(), nil
}

// Create implements Catalog. Field ids stay as they are.
func (c PointerCatalog) Create(ctx context.Context, id table.Identifier, schema *iceberg.Schema, properties iceberg.Properties) (*table.Table, error) {
	if err := twoLevels(id); err != nil {
		return nil, err
	}
	switch _, err := c.Pointer.Location(ctx, id); {
	case err == nil:
		return nil, fmt.Errorf("create table %v: %w", id, ErrTableExists)
	case !errors.Is(err, ErrNoTable):
		return nil, fmt.Errorf("create table %v: %w", id, err)
	}
	parent, err := c.Pointer.Parent(ctx, id[0])
	if err != nil {
		return nil, fmt.Errorf("create table %v: %w", id, err)
	}
	fs := NewIO(ctx, c.Locator)
	location, err := FreeLocation(fs, parent, id[1])
	if err != nil {
		return nil, fmt.Errorf("create table %v: %w", id, err)
	}
	meta, err := NewMetadata(schema, location, properties)
	if err != nil {
		return nil, fmt.Errorf("create table %v: %w", id, err)
	}
	file, err := WriteMetadata(fs, meta, "", uuid.New())
	if err != nil {
		return nil, fmt.Errorf("create table %v: %w", id, err)
	}
	t := c.table(id, meta, file)
	err = c.Pointer.Insert(ctx, t)
	if errors.Is(err, ErrTableExists) && !invariant.Off("pointer-create-looks") {
		err = c.lost(ctx, t, err)
	}
	if err != nil {
		if errors.Is(err, ErrTableExists) && !errors.Is(err, ErrCommitUnknown) {
			_ = fs.Remove(file) // nobody else knows it
		}
		return nil, fmt.Errorf("create table %v: %w", id, err)
	}
	return t, nil
}

// Commit implements Catalog.
func (c PointerCatalog) Commit(ctx context.Context, base *table.Table, change Commit) (*table.Table, error) {
	fs := NewIO(ctx, c.Locator).Recently(c.Recent)
	// Look first, so that a base that is old already costs no file.
	if err := c.unchanged(ctx, base); err != nil {
		return nil, err
	}
	p, err := Prepare(ctx, fs, base, change)
	if err != nil {
		return nil, err
	}
	next, err := c.replace(ctx, base, p.Updates, p.Attempt)
	if err != nil {
		if !errors.Is(err, ErrCommitUnknown) {
			err = errors.Join(err, p.Abandon(context.WithoutCancel(ctx), fs)) // nobody knows these manifests
		}
		return nil, err
	}
	// The commit is done; files that could not be deleted stay for orphan removal.
	_ = p.Clean(ctx, fs, base, next)
	return next, nil
}

func (c PointerCatalog) unchanged(ctx context.Context, base *table.Table) error {
	now, err := c.Pointer.Location(ctx, base.Identifier())
	switch {
	case errors.Is(err, ErrNoTable):
		return fmt.Errorf("commit %v: %w", base.Identifier(), err)
	case err != nil:
		return fmt.Errorf("commit %v: %w: %w", base.Identifier(), ErrCommitUnknown, err)
	case now != base.MetadataLocation() && !invariant.Off("pointer-commit-compares"):
		return Moved(base, now)
	}
	return nil
}

// Moved is the conflict of a commit on base with the catalog, which names another metadata file.
func Moved(base *table.Table, now string) error {
	return fmt.Errorf("commit %v: %w: its metadata is %s by now, not %s", base.Identifier(), ErrCommitConflict, now, base.MetadataLocation())
}

// replace writes the metadata file that follows base's, and swaps.
func (c PointerCatalog) replace(ctx context.Context, base *table.Table, updates []table.Update, attempt uuid.UUID) (*table.Table, error) {
	id := base.Identifier()
	meta, err := table.UpdateTableMetadata(base.Metadata(), updates, base.MetadataLocation())
	if err != nil {
		return nil, fmt.Errorf("commit %v: %w", id, err)
	}
	fs := NewIO(ctx, c.Locator)
	location, err := WriteMetadata(fs, meta, base.MetadataLocation(), attempt)
	if err != nil {
		return nil, fmt.Errorf("commit %v: %w: %w", id, ErrCommitUnknown, err)
	}
	next := c.table(id, meta, location)
	err = c.Pointer.Swap(ctx, base, next)
	if errors.Is(err, ErrCommitConflict) && !invariant.Off("pointer-conflict-looks") {
		err = c.lost(ctx, next, err)
	}
	if err != nil {
		if !errors.Is(err, ErrCommitUnknown) {
			_ = NewIO(context.WithoutCancel(ctx), c.Locator).Remove(location) // nobody else knows it
		}
		return nil, err
	}
	RemoveOldMetadata(fs, base.Metadata(), meta)
	return next, nil
}

// lost looks whether next really lost against another version, or table: something between us and the
// catalog may have sent its request twice, and the second met the first.
func (c PointerCatalog) lost(ctx context.Context, next *table.Table, conflict error) error {
	now, err := c.Load(ctx, next.Identifier())
	if errors.Is(err, ErrNoTable) {
		return conflict
	}
	if err != nil {
		return fmt.Errorf("commit %v: %w: %w, and then %w", next.Identifier(), ErrCommitUnknown, conflict, err)
	}
	if now.MetadataLocation() == next.MetadataLocation() {
		return nil
	}
	for entry := range now.Metadata().PreviousFiles() {
		if entry.MetadataFile == next.MetadataLocation() {
			return nil
		}
	}
	return conflict
}

// FreeLocation chooses where a new table lies: <parent>/<name>, with a suffix if an earlier
// table of that name left files there. What is not plain in the name becomes ~ and two
// hexadecimal digits.
func FreeLocation(fs *IO, parent, name string) (string, error) {
	location := strings.TrimRight(parent, "/") + "/" + PathName(name)
	empty, err := fs.Empty(location)
	if err != nil {
		return "", fmt.Errorf("new location %s: %w", location, err)
	}
	if !empty {
		var b [4]byte
		_, _ = rand.Read(b[:]) // it never fails
		location += "-" + hex.EncodeToString(b[:])
	}
	return location, nil
}

// PathName is a name as one segment of a location.
func PathName(name string) string {
	var b strings.Builder
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-', c == '.' && i > 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "~%02x", c)
		}
	}
	return b.String()
}

// RemoveOldMetadata deletes the metadata files that fell out of the log between two versions
// of a table, if the table asks for it.
func RemoveOldMetadata(fs *IO, before, after table.Metadata) {
	if after.Properties()[table.MetadataDeleteAfterCommitEnabledKey] != "true" {
		return
	}
	named := map[string]bool{}
	for entry := range after.PreviousFiles() {
		named[entry.MetadataFile] = true
	}
	for entry := range before.PreviousFiles() {
		if !named[entry.MetadataFile] {
			_ = fs.Remove(entry.MetadataFile)
		}
	}
}
