package catalog

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/apache/iceberg-go"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

// maxReplacedManifests is how large the manifests may be, in manifests of the target size, that name
// what one commit replaces: all their other entries are written again, in one manifest.
const maxReplacedManifests = 4

// ManifestTarget is the size in bytes from which a manifest of a table is left alone.
func ManifestTarget(properties iceberg.Properties) int64 {
	target, err := strconv.ParseInt(properties["commit.manifest.target-size-bytes"], 10, 64)
	if err != nil || target <= 0 {
		return manifestTarget
	}
	return target
}

// replace makes the manifest list of a snapshot in which files take the place of others. It is the
// one look at whether those are in the table as they were: the commit needs this very base.
func (w *manifestWriter) replace(list []iceberg.ManifestFile, added []iceberg.DataFile, r *Replacement) error {
	if len(r.Files) == 0 || len(added) == 0 {
		return fmt.Errorf("%w: nothing takes the place of nothing", errDefinite)
	}
	spec, gone := r.Files[0].SpecID(), map[string]bool{}
	var before, after int64
	for _, f := range slices.Concat(r.Files, added) {
		if f.SpecID() != spec {
			return fmt.Errorf("%w: files of the partition specs %d and %d in one replacement", errDefinite, spec, f.SpecID())
		}
	}
	for _, f := range r.Files {
		gone[f.FilePath()] = true
		before += f.Count()
	}
	for _, f := range added {
		after += f.Count()
	}
	if before != after {
		return fmt.Errorf("%w: %d rows would take the place of %d", errDefinite, after, before)
	}
	var hinted, others []iceberg.ManifestFile
	for _, m := range list {
		switch {
		case m.ManifestContent() == iceberg.ManifestContentDeletes:
			if m.SequenceNum() > r.Sequence && !invariant.Off("replace-sees-deletes") {
				return fmt.Errorf("%w: delete files came with snapshot sequence %d, the rows were read at %d", ErrFilesChanged, m.SequenceNum(), r.Sequence)
			}
		case m.PartitionSpecID() != spec:
		case slices.Contains(r.Manifests, m.FilePath()):
			hinted = append(hinted, m)
		default:
			others = append(others, m)
		}
	}
	var existing []iceberg.ManifestEntry
	named, found, bytes := map[string]bool{}, 0, int64(0)
	for _, m := range slices.Concat(hinted, others) {
		if found == len(gone) {
			break
		}
		entries, err := LiveEntries(w.fs, m)
		if err != nil {
			return err
		}
		has := 0
		for _, e := range entries {
			if gone[e.DataFile().FilePath()] {
				has++
			}
		}
		if has == 0 {
			continue
		}
		named[m.FilePath()], found, bytes = true, found+has, bytes+m.Length()
		existing = append(existing, entries...)
		if bytes > maxReplacedManifests*ManifestTarget(w.meta.Properties()) {
			return fmt.Errorf("%w: they are spread over manifests of more than %d bytes by now", ErrFilesChanged, bytes)
		}
	}
	if found < len(gone) && !invariant.Off("replace-finds-all") {
		return fmt.Errorf("%w: %d of %d have left the table", ErrFilesChanged, len(gone)-found, len(gone))
	}
	m, err := w.manifest(spec, added, existing, gone)
	if err != nil {
		return err
	}
	rest := []iceberg.ManifestFile{m}
	for _, old := range list {
		if !named[old.FilePath()] {
			rest = append(rest, old)
		}
	}
	return w.list(rest)
}
