package sql

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/apache/iceberg-go/view"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
)

// A LoadedView is a view as the catalog has it.
type LoadedView struct {
	Location string // of its metadata file
	*Document
}

// LoadView returns a view. ErrNoView if there is none.
func (c *Catalog) LoadView(ctx context.Context, id table.Identifier) (LoadedView, error) {
	location, err := c.location(ctx, id, View)
	if err != nil {
		return LoadedView{}, err
	}
	d, err := c.readView(ctx, location)
	if err != nil {
		return LoadedView{}, fmt.Errorf("load view %s: %w", join(id), err)
	}
	return LoadedView{location, d}, nil
}

func (c *Catalog) readView(ctx context.Context, location string) (*Document, error) {
	if d := c.cache.get(location); d != nil && d.View != nil {
		return d, nil
	}
	meta, err := c.ReadView(ctx, location)
	if err != nil {
		return nil, err
	}
	return c.cache.put(location, viewDocument(meta)), nil
}

// ReadView reads a metadata file that the catalog need not know.
func (c *Catalog) ReadView(ctx context.Context, location string) (meta view.Metadata, err error) {
	data, err := catalog.NewIO(ctx, c.locator).ReadFile(location)
	if err != nil {
		return nil, err
	}
	if err := guarded(func() error { meta, err = view.ParseMetadataBytes(data); return err }); err != nil {
		return nil, fmt.Errorf("read %s: %w", location, err)
	}
	return meta, nil
}

// NewView is the metadata of a new view.
func NewView(location string, schema *iceberg.Schema, version *view.Version, properties iceberg.Properties) (view.Metadata, error) {
	builder, err := view.NewMetadataBuilder()
	if err != nil {
		return nil, err
	}
	return build(func() (*view.MetadataBuildResult, error) {
		return builder.SetLoc(location).SetCurrentVersion(version, schema).SetProperties(properties).Build()
	})
}

func build(result func() (*view.MetadataBuildResult, error)) (meta view.Metadata, err error) {
	err = guarded(func() error {
		r, err := result()
		if err == nil {
			meta = r.Metadata
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return meta, nil
}

// CreateView makes a view, in a namespace that exists.
func (c *Catalog) CreateView(ctx context.Context, id table.Identifier, meta view.Metadata) (LoadedView, error) {
	if err := c.Free(ctx, id, View); err != nil {
		return LoadedView{}, err
	}
	d := viewDocument(meta)
	location, err := c.writeView(ctx, d, "")
	if err != nil {
		return LoadedView{}, fmt.Errorf("create view %s: %w", join(id), err)
	}
	if err := c.insertRow(ctx, id, View, location); err != nil {
		if definite(err) {
			c.removeFile(ctx, location)
		}
		return LoadedView{}, err
	}
	return LoadedView{location, c.cache.put(location, d)}, nil
}

func (c *Catalog) removeFile(ctx context.Context, location string) {
	_ = catalog.NewIO(context.WithoutCancel(ctx), c.locator).Remove(location) // nobody else knows it
}

// writeView creates the metadata file that follows previous, "" for a new view:
// <version>-<uuid>.metadata.json below metadata, or below write.metadata.path.
func (c *Catalog) writeView(ctx context.Context, d *Document, previous string) (string, error) {
	data, err := d.JSON()
	if err != nil {
		return "", err
	}
	version := -1
	_, _ = fmt.Sscanf(path.Base(previous), "%d-", &version) // a registered one may have another name
	dir := strings.TrimRight(d.View.Location(), "/") + "/metadata"
	if p := d.View.Properties()["write.metadata.path"]; p != "" {
		dir = strings.TrimRight(p, "/")
	}
	location := fmt.Sprintf("%s/%05d-%s.metadata.json", dir, version+1, uuid.New())
	return location, catalog.NewIO(ctx, c.locator).WriteFile(location, data)
}

// CommitView applies updates to a view if requirements hold for it. It retries as long as
// other commits come first.
func (c *Catalog) CommitView(ctx context.Context, id table.Identifier, requirements []view.Requirement, updates []view.Update) (LoadedView, error) {
	var last error
	for range maxTries {
		base, err := c.LoadView(ctx, id)
		if err != nil {
			return LoadedView{}, err
		}
		for _, r := range requirements {
			if err := r.Validate(base.View); err != nil {
				return LoadedView{}, fmt.Errorf("commit view %s: %w", join(id), &RequirementError{What: failed[r.GetType()], Detail: err})
			}
		}
		next, err := c.replaceView(ctx, id, base, updates)
		if !errors.Is(err, catalog.ErrCommitConflict) {
			return next, err
		}
		last = err
	}
	return LoadedView{}, last
}

func (c *Catalog) replaceView(ctx context.Context, id table.Identifier, base LoadedView, updates []view.Update) (LoadedView, error) {
	builder, err := view.MetadataBuilderFromBase(base.View)
	if err != nil {
		return LoadedView{}, fmt.Errorf("commit view %s: %w", join(id), err)
	}
	meta, err := build(func() (*view.MetadataBuildResult, error) {
		for _, u := range updates {
			if err := u.Apply(builder); err != nil {
				return nil, err
			}
		}
		return builder.Build()
	})
	if err != nil {
		return LoadedView{}, fmt.Errorf("commit view %s: %w", join(id), err)
	}
	d := viewDocument(meta)
	location, err := c.writeView(ctx, d, base.Location)
	if err != nil {
		return LoadedView{}, fmt.Errorf("commit view %s: %w: %w", join(id), catalog.ErrCommitUnknown, err)
	}
	if err := c.swap(ctx, id, View, base.Location, location); err != nil {
		if !errors.Is(err, catalog.ErrCommitUnknown) {
			c.removeFile(ctx, location)
		}
		return LoadedView{}, err
	}
	return LoadedView{location, c.cache.put(location, d)}, nil
}

// RegisterView names a view that exists already by its metadata file, of which the caller
// has the content, from [Catalog.ReadView].
func (c *Catalog) RegisterView(ctx context.Context, id table.Identifier, meta view.Metadata, location string) (LoadedView, error) {
	if err := c.insertRow(ctx, id, View, location); err != nil {
		return LoadedView{}, err
	}
	return LoadedView{location, c.cache.put(location, viewDocument(meta))}, nil
}

// DropView removes a view and leaves its metadata files.
func (c *Catalog) DropView(ctx context.Context, id table.Identifier) error {
	return c.drop(ctx, id, View)
}

// RenameView gives a view another name, in a namespace that exists.
func (c *Catalog) RenameView(ctx context.Context, from, to table.Identifier) error {
	return c.rename(ctx, from, to, View)
}
