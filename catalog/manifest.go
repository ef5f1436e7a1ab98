package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

const (
	// mergeFanIn manifests of about the same number of files become one of the next size.
	mergeFanIn = 10
	// manifestTarget is the size in bytes from which a manifest is left alone, unless the
	// table has commit.manifest.target-size-bytes.
	manifestTarget = 8 << 20
	// mergeReaders manifests are read at a time.
	mergeReaders = 4
)

// manifestWriter writes the manifests of one snapshot.
type manifestWriter struct {
	ctx      context.Context
	fs       *IO
	meta     table.Metadata
	snapshot *table.Snapshot
	attempt  uuid.UUID
	files    []string // written so far
}

// write makes the manifest list of the snapshot: the manifests of parent, some of them
// merged, and one with the added files for each partition spec. Manifests that name what is replaced
// go into that one.
func (w *manifestWriter) write(parent *table.Snapshot, added []iceberg.DataFile, replaces *Replacement) error {
	var list []iceberg.ManifestFile
	if parent != nil {
		all, err := parent.Manifests(w.fs)
		if err != nil {
			return err
		}
		for _, m := range all {
			if holdsFiles(m) {
				list = append(list, m)
			}
		}
	}
	bySpec := map[int32][]iceberg.DataFile{}
	var specs []int32
	for _, f := range added {
		if f.ContentType() != iceberg.EntryContentData {
			return fmt.Errorf("%w: %s is not a data file", errDefinite, f.FilePath())
		}
		if bySpec[f.SpecID()] == nil {
			specs = append(specs, f.SpecID())
		}
		bySpec[f.SpecID()] = append(bySpec[f.SpecID()], f)
	}
	if replaces != nil {
		return w.replace(list, added, replaces)
	}
	var fresh []iceberg.ManifestFile
	for _, id := range specs {
		merge, rest := w.split(list, id, len(bySpec[id]))
		existing, err := w.entries(merge)
		if err != nil {
			return err
		}
		m, err := w.manifest(id, bySpec[id], existing, nil)
		if err != nil {
			return err
		}
		fresh, list = append(fresh, m), rest
	}
	return w.list(append(fresh, list...))
}

// holdsFiles reports whether a manifest may have live files: one without any count may be by a
// writer that does not count.
func holdsFiles(m iceberg.ManifestFile) bool {
	return m.HasAddedFiles() || m.HasExistingFiles() || m.DeletedDataFiles() <= 0 && !invariant.Off("uncounted-manifests-stay")
}

// split chooses the manifests that go into one with the n added files. Sizes are powers
// of mergeFanIn in files, and mergeFanIn manifests of one size are merged, so that n
// files are in O(log n) manifests and each is rewritten O(log n) times.
func (w *manifestWriter) split(list []iceberg.ManifestFile, spec int32, n int) (merge, rest []iceberg.ManifestFile) {
	props := w.meta.Properties()
	target := ManifestTarget(props)
	levels := map[int][]iceberg.ManifestFile{}
	for _, m := range list {
		mergeable := props["commit.manifest-merge.enabled"] != "false" && m.PartitionSpecID() == spec &&
			m.ManifestContent() == iceberg.ManifestContentData && m.Length() < target &&
			m.AddedDataFiles() >= 0 && m.ExistingDataFiles() >= 0 && m.AddedDataFiles()+m.ExistingDataFiles() > 0
		if !mergeable {
			rest = append(rest, m)
			continue
		}
		level := sizeLevel(int(m.AddedDataFiles()) + int(m.ExistingDataFiles()))
		levels[level] = append(levels[level], m)
	}
	var bytes int64
	for level := sizeLevel(n); level >= 0 && len(levels) > 0; {
		same := levels[level]
		if len(same)+1 < mergeFanIn {
			break
		}
		before := bytes
		for _, m := range same {
			bytes += m.Length()
			n += int(m.AddedDataFiles()) + int(m.ExistingDataFiles())
		}
		if bytes > 2*target {
			bytes = before
			break
		}
		merge = append(merge, same...)
		delete(levels, level)
		next := sizeLevel(n)
		if next == level {
			break
		}
		level = next
	}
	merged := map[string]bool{}
	for _, m := range merge {
		merged[m.FilePath()] = true
	}
	rest = rest[:0:0]
	for _, m := range list {
		if !merged[m.FilePath()] {
			rest = append(rest, m)
		}
	}
	return merge, rest
}

func sizeLevel(files int) int {
	if files < 1 {
		return 0
	}
	return int(math.Log(float64(files))/math.Log(mergeFanIn) + 1e-9)
}

// manifestLocation is where an attempt writes its nth manifest: it has one for each partition spec
// of the added files.
func manifestLocation(m table.Metadata, attempt uuid.UUID, n int) string {
	return metadataLocation(m.Location(), m.Properties(), fmt.Sprintf("%s-m%d.avro", attempt, n))
}

func listLocation(m table.Metadata, attempt uuid.UUID, snapshot int64) string {
	return metadataLocation(m.Location(), m.Properties(), fmt.Sprintf("snap-%d-1-%s.avro", snapshot, attempt))
}

// entries returns the live entries of manifests.
func (w *manifestWriter) entries(manifests []iceberg.ManifestFile) ([]iceberg.ManifestEntry, error) {
	each := make([][]iceberg.ManifestEntry, len(manifests))
	group, _ := errgroup.WithContext(w.ctx)
	group.SetLimit(mergeReaders)
	for i, m := range manifests {
		group.Go(func() (err error) {
			each[i], err = LiveEntries(w.fs, m)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return slices.Concat(each...), nil
}

// LiveEntries returns the entries of a manifest whose files are in the table.
func LiveEntries(fs *IO, m iceberg.ManifestFile) (live []iceberg.ManifestEntry, err error) {
	for entry, err := range m.Entries(fs, true) {
		if err != nil {
			return nil, fmt.Errorf("manifest %s: %w", m.FilePath(), err)
		}
		live = append(live, entry)
	}
	return live, nil
}

// manifest writes one manifest with the added files and the existing entries; those of files that
// have gone say that they are deleted.
func (w *manifestWriter) manifest(specID int32, added []iceberg.DataFile, existing []iceberg.ManifestEntry, gone map[string]bool) (iceberg.ManifestFile, error) {
	var spec *iceberg.PartitionSpec
	for _, s := range w.meta.PartitionSpecs() {
		if s.ID() == int(specID) {
			spec = &s
			break
		}
	}
	if spec == nil {
		return nil, fmt.Errorf("%w: data file of partition spec %d, which the table does not have", errDefinite, specID)
	}
	location := manifestLocation(w.meta, w.attempt, len(w.files))
	var body bytes.Buffer
	out, err := iceberg.NewManifestWriter(w.meta.Version(), &body, *spec, w.meta.CurrentSchema(), w.snapshot.SnapshotID)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDefinite, err)
	}
	for _, f := range added {
		entry := iceberg.NewManifestEntry(iceberg.EntryStatusADDED, &w.snapshot.SnapshotID, nil, nil, f)
		if err := out.Add(entry); err != nil {
			return nil, fmt.Errorf("%w: data file %s: %w", errDefinite, f.FilePath(), err)
		}
	}
	for _, entry := range existing {
		keep := out.Existing
		if gone[entry.DataFile().FilePath()] {
			keep = out.Delete
		}
		if err := keep(entry); err != nil {
			return nil, fmt.Errorf("%w: data file %s: %w", errDefinite, entry.DataFile().FilePath(), err)
		}
	}
	if err := out.Close(); err != nil {
		return nil, err
	}
	m, err := out.ToManifestFile(location, int64(body.Len()))
	if err != nil {
		return nil, err
	}
	return m, w.put(location, body.Bytes())
}

// list writes the manifest list and completes the snapshot.
func (w *manifestWriter) list(manifests []iceberg.ManifestFile) error {
	s := w.snapshot
	version := w.meta.Version()
	firstRow := w.meta.NextRowID()
	var body bytes.Buffer
	var out *iceberg.ManifestListWriter
	var err error
	switch version {
	case 1:
		out, err = iceberg.NewManifestListWriterV1(&body, s.SnapshotID, s.ParentSnapshotID)
	case 2:
		out, err = iceberg.NewManifestListWriterV2(&body, s.SnapshotID, s.SequenceNumber, s.ParentSnapshotID)
	case 3:
		out, err = iceberg.NewManifestListWriterV3(&body, s.SnapshotID, s.SequenceNumber, firstRow, s.ParentSnapshotID)
	default:
		err = fmt.Errorf("%w: format version %d", errDefinite, version)
	}
	if err != nil {
		return err
	}
	for i, m := range manifests {
		manifests[i] = withEmptyBounds(m)
	}
	if err := out.AddManifests(manifests); err != nil {
		return fmt.Errorf("%w: %w", errDefinite, err)
	}
	if err := out.Close(); err != nil {
		return err
	}
	if version == 3 {
		s.FirstRowID = new(int64)
		*s.FirstRowID = w.meta.NextRowID()
		rows := *out.NextRowID() - *s.FirstRowID
		s.AddedRows = &rows
	}
	s.ManifestList = listLocation(w.meta, w.attempt, s.SnapshotID)
	return w.put(s.ManifestList, body.Bytes())
}

// withEmptyBounds gives a manifest the bounds of partitions that are the empty text: iceberg-go
// 0.7.0 writes null for them, from which Iceberg's Java readers, Trino and Spark among them,
// conclude that all values are null, and pass the manifest over. A lower bound is null exactly if
// the upper one is.
func withEmptyBounds(m iceberg.ManifestFile) iceberg.ManifestFile {
	summaries, mended := m.Partitions(), false
	for i := range summaries {
		s := &summaries[i]
		if s.UpperBound != nil && (s.LowerBound == nil || *s.LowerBound == nil) && !invariant.Off("empty-partition-bound") {
			s.LowerBound, mended = &[]byte{}, true
		}
		if s.UpperBound != nil && *s.UpperBound == nil {
			s.UpperBound, mended = &[]byte{}, true
		}
	}
	if !mended || m.FirstRowID() != nil { // one that was read, which has its bounds
		return m
	}
	return iceberg.NewManifestFile(m.Version(), m.FilePath(), m.Length(), m.PartitionSpecID(), m.SnapshotID()).
		SequenceNum(m.SequenceNum(), m.MinSequenceNum()).Content(m.ManifestContent()).
		AddedFiles(m.AddedDataFiles()).ExistingFiles(m.ExistingDataFiles()).DeletedFiles(m.DeletedDataFiles()).
		AddedRows(m.AddedRows()).ExistingRows(m.ExistingRows()).DeletedRows(m.DeletedRows()).
		KeyMetadata(m.KeyMetadata()).Partitions(summaries).Build()
}

func (w *manifestWriter) put(location string, body []byte) error {
	w.files = append(w.files, location)
	return w.fs.WriteFile(location, body)
}

// remove deletes what was written for a snapshot that nobody has heard of.
func (w *manifestWriter) remove(err error) error {
	_, deleteErr := w.fs.DeleteFiles(context.WithoutCancel(w.ctx), w.files)
	return errors.Join(err, deleteErr)
}
