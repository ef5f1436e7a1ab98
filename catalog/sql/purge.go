package sql

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/internal/invariant"
)

// purgeBatch is how many files a purge deletes at a time.
const purgeBatch = 1000

// Purge drops a table and deletes its files: those that its metadata names and that lie
// below its own location. Files elsewhere may be somebody else's and stay; so does
// everything if the location is shared with another table, by [Catalog.Overlaps].
// ErrInvalid if the table says gc.enabled=false. An error after the drop leaves litter.
func (c *Catalog) Purge(ctx context.Context, id table.Identifier) error {
	t, err := c.Load(ctx, id)
	if err != nil {
		return err
	}
	if t.Properties()["gc.enabled"] == "false" {
		return fmt.Errorf("purge table %s: %w: its property gc.enabled is false, so its files may be in use elsewhere: drop it without purge", join(id), ErrInvalid)
	}
	if t, err = c.Unregister(ctx, id); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // the table is gone, whether the client waits or not
	others, err := c.Overlaps(ctx, id, strings.TrimRight(t.Location(), "/"))
	if err != nil || len(others) > 0 && !invariant.Off("purge-spares-others") {
		return err
	}
	p := purge{ctx: ctx, fs: catalog.NewIO(ctx, c.locator), location: t.Location()}
	p.table(t)
	c.cache.remove(t.MetadataLocation())
	if err := errors.Join(p.errs...); err != nil {
		return fmt.Errorf("purge table %s: it is dropped, but not all files are deleted: %w", join(id), err)
	}
	return nil
}

type purge struct {
	ctx      context.Context
	fs       *catalog.IO
	location string
	files    []string
	errs     []error
}

// table deletes data first: as long as there is metadata, what is left can be found.
func (p *purge) table(t *table.Table) {
	var lists []string
	manifests := map[string]bool{}
	for _, s := range t.Metadata().Snapshots() {
		lists = append(lists, s.ManifestList)
		p.snapshot(s, manifests)
	}
	for m := range manifests {
		p.remove(m)
	}
	for _, l := range lists {
		p.remove(l)
	}
	for s := range t.Metadata().Statistics() {
		p.remove(s.StatisticsPath)
	}
	for s := range t.Metadata().PartitionStatistics() {
		p.remove(s.StatisticsPath)
	}
	for entry := range t.Metadata().PreviousFiles() {
		p.remove(entry.MetadataFile)
	}
	p.remove(t.MetadataLocation())
	p.flush()
}

// snapshot deletes the data files of a snapshot's manifests that were not seen yet.
func (p *purge) snapshot(s table.Snapshot, seen map[string]bool) {
	if !p.own(s.ManifestList) {
		return
	}
	manifests, err := s.Manifests(p.fs)
	if err != nil {
		p.errs = append(p.errs, err)
		return
	}
	for _, m := range manifests {
		if seen[m.FilePath()] || !p.own(m.FilePath()) {
			continue
		}
		seen[m.FilePath()] = true
		for e, err := range m.Entries(p.fs, false) {
			if err != nil {
				p.errs = append(p.errs, err)
				break
			}
			p.remove(e.DataFile().FilePath())
		}
	}
}

func (p *purge) own(file string) bool {
	return Below(file, p.location) || file != "" && invariant.Off("purge-own-files-only")
}

func (p *purge) remove(file string) {
	if !p.own(file) {
		return
	}
	if p.files = append(p.files, file); len(p.files) >= purgeBatch {
		p.flush()
	}
}

func (p *purge) flush() {
	if _, err := p.fs.DeleteFiles(p.ctx, p.files); err != nil {
		p.errs = append(p.errs, err)
	}
	p.files = p.files[:0]
}
