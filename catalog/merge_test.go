package catalog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/catalogtest"
	"github.com/tabletopic/tabletopic/objectstore"
)

// Merging manifests loses nothing, adds nothing and changes nothing: after each commit the live
// entries are those before and the added ones, each with its content, partition spec, rows, and
// the snapshot and sequence numbers that deletes are applied by. Between the commits another
// writer adds files, deletes some, adds delete files, and changes the partition spec.
func TestMergeLosesNothing(t *testing.T) {
	for seed := range uint64(2) {
		r := rand.New(rand.NewPCG(seed, 0))
		m := newMemory(t, iceberg.Properties{"format-version": "2"})
		merged := false
		for i := range 60 {
			if r.IntN(4) == 0 {
				foreignSnapshot(t, r, m)
			}
			if r.IntN(20) == 0 {
				spec := iceberg.NewPartitionSpec(iceberg.PartitionField{SourceIDs: []int{1}, FieldID: 1000 + r.IntN(2), Name: fmt.Sprint("p", r.IntN(2)), Transform: iceberg.IdentityTransform{}})
				if r.IntN(2) == 0 {
					spec = *iceberg.UnpartitionedSpec
				}
				m.apply(t, table.NewAddPartitionSpecUpdate(&spec, false), table.NewSetDefaultSpecUpdate(-1))
			}
			before := liveEntries(t, m)
			manifests := countManifests(t, m)
			var added []iceberg.DataFile
			for range r.IntN(3) {
				added = append(added, newFile(t, m, r, iceberg.EntryContentData))
			}
			m.commit(t, catalog.Commit{Files: added, Snapshot: true})
			s := m.tbl.CurrentSnapshot()
			for _, f := range added {
				before = append(before, fmt.Sprintf("%s %v spec %d, %d rows, snapshot %d, sequence %d and %d", f.FilePath(), f.ContentType(), f.SpecID(), f.Count(), s.SnapshotID, s.SequenceNumber, s.SequenceNumber))
			}
			slices.Sort(before)
			if diff := cmp.Diff(before, liveEntries(t, m)); diff != "" {
				t.Fatalf("seed %d, commit %d: -want +got\n%s", seed, i, diff)
			}
			merged = merged || countManifests(t, m) < manifests
		}
		if !merged {
			t.Errorf("seed %d: nothing was merged", seed)
		}
	}
}

// A commit that merges manifests and fails at any request leaves the table as it was, and no
// file of its own unless it cannot know.
func TestFailedMergeLeavesTheTable(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	for step := 0; ; step++ {
		m := newMemory(t, nil)
		for range 9 {
			m.commit(t, catalog.Commit{Files: []iceberg.DataFile{newFile(t, m, r, iceberg.EntryContentData)}})
		}
		want, before := m.keys(t), liveEntries(t, m)
		failing := &failsAt{Bucket: m.store.Bucket}
		failing.left.Store(int64(step))
		fs := catalog.NewIO(t.Context(), catalogtest.Store{Prefix: m.store.Prefix, Bucket: failing})
		_, err := catalog.Prepare(t.Context(), fs, m.tbl, catalog.Commit{Files: []iceberg.DataFile{newFile(t, m, r, iceberg.EntryContentData)}})
		if err == nil {
			if step < 11 { // the list, nine manifests, and two files
				t.Errorf("the tenth commit made %d requests: it merged nothing", step)
			}
			return
		}
		if !errors.Is(err, catalog.ErrCommitUnknown) {
			t.Errorf("request %d: %v", step, err)
		}
		if diff := cmp.Diff(want, m.keys(t)); diff != "" {
			t.Errorf("request %d: -before +after\n%s", step, diff)
		}
		if diff := cmp.Diff(before, liveEntries(t, m)); diff != "" {
			t.Errorf("request %d: -before +after\n%s", step, diff)
		}
	}
}

// failsAt refuses one request, without effect.
type failsAt struct {
	objectstore.Bucket
	left atomic.Int64 // requests before that
}

func (b *failsAt) fail() error {
	if b.left.Add(-1) == -1 {
		return errors.New("503")
	}
	return nil
}

func (b *failsAt) Get(ctx context.Context, key string, off, n int64) ([]byte, error) {
	if err := b.fail(); err != nil {
		return nil, err
	}
	return b.Bucket.Get(ctx, key, off, n)
}

func (b *failsAt) PutIfAbsent(ctx context.Context, key string, body ...[]byte) error {
	if err := b.fail(); err != nil {
		return err
	}
	return b.Bucket.PutIfAbsent(ctx, key, body...)
}

func newFile(t *testing.T, m *memory, r *rand.Rand, content iceberg.ManifestEntryContent) iceberg.DataFile {
	t.Helper()
	spec := m.tbl.Spec()
	var values map[int]any
	for _, f := range spec.Fields() {
		values = map[int]any{f.FieldID: int64(r.IntN(3))}
	}
	b, err := iceberg.NewDataFileBuilder(spec, content, catalog.DataLocation(m.tbl, uuid.NewString()+".parquet"), iceberg.ParquetFile, values, nil, nil, 1+r.Int64N(100), 1000)
	if err != nil {
		t.Fatal(err)
	}
	return b.Build()
}

// foreignSnapshot is what another writer may leave: its manifest has files that it adds, files that
// were there (EXISTING) and files that it deletes (DELETED), of one manifest that it takes the place of; and it adds
// a manifest of delete files.
func foreignSnapshot(t *testing.T, r *rand.Rand, m *memory) {
	t.Helper()
	fs := catalog.NewIO(t.Context(), m.store)
	meta := m.tbl.Metadata()
	parent := meta.CurrentSnapshot()
	s := table.Snapshot{SnapshotID: r.Int64(), SequenceNumber: meta.LastSequenceNumber() + 1, TimestampMs: meta.LastUpdatedMillis(),
		Summary: &table.Summary{Operation: table.OpOverwrite}, SchemaID: &meta.CurrentSchema().ID}
	var list []iceberg.ManifestFile
	if parent != nil {
		s.ParentSnapshotID = &parent.SnapshotID
		var err error
		if list, err = parent.Manifests(fs); err != nil {
			t.Fatal(err)
		}
	}
	write := func(spec iceberg.PartitionSpec, content iceberg.ManifestContent, fill func(w *iceberg.ManifestWriter) error) {
		var body bytes.Buffer
		w, err := iceberg.NewManifestWriter(meta.Version(), &body, spec, meta.CurrentSchema(), s.SnapshotID, iceberg.WithManifestWriterContent(content))
		if err == nil {
			err = fill(w)
		}
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		location := "file:///w/t/metadata/" + uuid.NewString() + ".avro"
		f, err := w.ToManifestFile(location, int64(body.Len()), iceberg.WithManifestFileContent(content))
		if err == nil {
			err = fs.WriteFile(location, body.Bytes())
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, f)
	}
	if i := r.IntN(len(list) + 1); i < len(list) && list[i].ManifestContent() == iceberg.ManifestContentData {
		old := list[i]
		list = slices.Delete(list, i, i+1)
		write(*meta.PartitionSpecByID(int(old.PartitionSpecID())), iceberg.ManifestContentData, func(w *iceberg.ManifestWriter) error {
			for e, err := range old.Entries(fs, true) {
				switch {
				case err != nil:
					return err
				case r.IntN(4) == 0:
					err = w.Delete(e)
				default:
					err = w.Existing(e)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	add := func(content iceberg.ManifestEntryContent) func(*iceberg.ManifestWriter) error {
		return func(w *iceberg.ManifestWriter) error {
			return w.Add(iceberg.NewManifestEntry(iceberg.EntryStatusADDED, &s.SnapshotID, nil, nil, newFile(t, m, r, content)))
		}
	}
	write(m.tbl.Spec(), iceberg.ManifestContentData, add(iceberg.EntryContentData))
	write(m.tbl.Spec(), iceberg.ManifestContentDeletes, add(iceberg.EntryContentPosDeletes))
	var body bytes.Buffer
	w, err := iceberg.NewManifestListWriterV2(&body, s.SnapshotID, s.SequenceNumber, s.ParentSnapshotID)
	if err == nil {
		err = w.AddManifests(list)
	}
	if err == nil {
		err = w.Close()
	}
	s.ManifestList = "file:///w/t/metadata/" + uuid.NewString() + ".avro"
	if err == nil {
		err = fs.WriteFile(s.ManifestList, body.Bytes())
	}
	if err != nil {
		t.Fatal(err)
	}
	m.apply(t, table.NewAddSnapshotUpdate(&s), table.NewSetSnapshotRefUpdate(table.MainBranch, s.SnapshotID, table.BranchRef, 0, 0, 0))
}

func countManifests(t *testing.T, m *memory) int {
	t.Helper()
	s := m.tbl.CurrentSnapshot()
	if s == nil {
		return 0
	}
	list, err := s.Manifests(catalog.NewIO(t.Context(), m.store))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// liveEntries are the data and delete files of the table as text, in order.
func liveEntries(t *testing.T, m *memory) (out []string) {
	t.Helper()
	s := m.tbl.CurrentSnapshot()
	if s == nil {
		return nil
	}
	fs := catalog.NewIO(t.Context(), m.store)
	list, err := s.Manifests(fs)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		for e, err := range f.Entries(fs, true) {
			if err != nil {
				t.Fatal(err)
			}
			d := e.DataFile()
			file := int64(-1)
			if n := e.FileSequenceNum(); n != nil {
				file = *n
			}
			out = append(out, fmt.Sprintf("%s %v spec %d, %d rows, snapshot %d, sequence %d and %d", d.FilePath(), d.ContentType(), f.PartitionSpecID(), d.Count(), e.SnapshotID(), e.SequenceNum(), file))
		}
	}
	slices.Sort(out)
	return out
}
