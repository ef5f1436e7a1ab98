package catalog_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/go-cmp/cmp"

	"github.com/tabletopic/tabletopic/catalog"
)

// A replacement takes the replaced files from the table and adds others, and leaves all other entries
// as they were, whoever wrote the manifests; the totals of the snapshot go along.
func TestReplaceChangesWhatItNames(t *testing.T) {
	for seed := range uint64(2) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := newMemory(t, iceberg.Properties{"format-version": "2"})
		for i := range 60 {
			switch r.IntN(4) {
			case 0:
				foreignSnapshot(t, r, m)
				continue
			case 1, 2:
				m.commit(t, catalog.Commit{Files: []iceberg.DataFile{newFile(t, m, r, iceberg.EntryContentData)}})
				continue
			}
			before := liveEntries(t, m)
			replaced, manifests := someFiles(t, r, m, 5)
			if len(replaced) == 0 {
				continue
			}
			var rows int64
			gone := map[string]bool{}
			for _, f := range replaced {
				rows, gone[f.FilePath()] = rows+f.Count(), true
			}
			if r.IntN(2) == 0 {
				manifests = nil // the hints are no more than that
			}
			fresh := fileOf(t, m, rows)
			sequence := m.tbl.Metadata().LastSequenceNumber()
			m.commit(t, catalog.Commit{Files: []iceberg.DataFile{fresh}, Replaces: &catalog.Replacement{Files: replaced, Sequence: sequence, Manifests: manifests}})
			s := m.tbl.CurrentSnapshot()
			want := slices.DeleteFunc(before, func(e string) bool { return gone[strings.Fields(e)[0]] })
			want = append(want, fmt.Sprintf("%s %v spec %d, %d rows, snapshot %d, sequence %d and %d", fresh.FilePath(), fresh.ContentType(), 0, rows, s.SnapshotID, s.SequenceNumber, s.SequenceNumber))
			slices.Sort(want)
			if diff := cmp.Diff(want, liveEntries(t, m)); diff != "" {
				t.Fatalf("seed %d, step %d: -want +got\n%s", seed, i, diff)
			}
			if s.Summary.Operation != table.OpReplace || s.Summary.Properties["deleted-data-files"] != fmt.Sprint(len(replaced)) ||
				s.Summary.Properties["added-records"] != s.Summary.Properties["deleted-records"] {
				t.Fatalf("seed %d, step %d: summary %v", seed, i, s.Summary)
			}
		}
	}
}

// What has changed since the files were read makes a replacement void, and nothing else does.
func TestReplaceIsVoidWhenTheFilesHaveChanged(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	begin := func() (*memory, []iceberg.DataFile, catalog.Commit) {
		m := newMemory(t, iceberg.Properties{"format-version": "2"})
		var all []iceberg.DataFile
		for range 4 {
			f := newFile(t, m, r, iceberg.EntryContentData)
			all = append(all, f)
			m.commit(t, catalog.Commit{Files: []iceberg.DataFile{f}})
		}
		rows := all[0].Count() + all[1].Count()
		return m, all, catalog.Commit{Files: []iceberg.DataFile{fileOf(t, m, rows)}, Replaces: &catalog.Replacement{
			Files: all[:2], Sequence: m.tbl.Metadata().LastSequenceNumber(),
		}}
	}
	refused := func(m *memory, c catalog.Commit) error {
		before := m.keys(t)
		_, err := catalog.Prepare(t.Context(), catalog.NewIO(t.Context(), m.store), m.tbl, c)
		if err != nil {
			if diff := cmp.Diff(before, m.keys(t)); diff != "" {
				t.Errorf("a refused replacement leaves files: -before +after\n%s", diff)
			}
		}
		return err
	}
	m, all, c := begin()
	m.commit(t, catalog.Commit{Files: []iceberg.DataFile{newFile(t, m, r, iceberg.EntryContentData)}})
	if err := refused(m, c); err != nil {
		t.Errorf("after an append: %v", err)
	}
	m.commit(t, catalog.Commit{Files: []iceberg.DataFile{fileOf(t, m, all[1].Count()+all[2].Count())}, Replaces: &catalog.Replacement{
		Files: all[1:3], Sequence: m.tbl.Metadata().LastSequenceNumber(),
	}})
	if err := refused(m, c); !errors.Is(err, catalog.ErrFilesChanged) || errors.Is(err, catalog.ErrCommitUnknown) {
		t.Errorf("one of the files has gone: %v", err)
	}
	m, _, c = begin()
	foreignSnapshot(t, r, m) // with delete files
	if err := refused(m, c); !errors.Is(err, catalog.ErrFilesChanged) {
		t.Errorf("delete files came: %v", err)
	}
	m, all, c = begin()
	c.Files = []iceberg.DataFile{fileOf(t, m, all[0].Count())}
	if err := refused(m, c); err == nil || errors.Is(err, catalog.ErrFilesChanged) {
		t.Errorf("fewer rows than before: %v", err)
	}
}

// Where files are replaced and snapshots expire, what no snapshot names any more is deleted, and
// nothing else.
func TestExpiryOfReplacedFiles(t *testing.T) {
	for seed := range uint64(2) {
		r := rand.New(rand.NewPCG(seed, 3))
		m := newMemory(t, iceberg.Properties{"format-version": "2", "history.expire.max-snapshot-age-ms": "0", "history.expire.min-snapshots-to-keep": "3"})
		put := func(f iceberg.DataFile) iceberg.DataFile {
			bucket, key, err := m.store.Resolve(t.Context(), f.FilePath())
			if err == nil {
				err = bucket.Put(t.Context(), key, []byte("rows"))
			}
			if err != nil {
				t.Fatal(err)
			}
			return f
		}
		for range 80 {
			replaced, manifests := someFiles(t, r, m, 6)
			if len(replaced) < 2 || r.IntN(3) > 0 {
				m.commit(t, catalog.Commit{Files: []iceberg.DataFile{put(newFile(t, m, r, iceberg.EntryContentData))}, Expire: true})
				continue
			}
			var rows int64
			for _, f := range replaced {
				rows += f.Count()
			}
			m.commit(t, catalog.Commit{Files: []iceberg.DataFile{put(fileOf(t, m, rows))}, Expire: r.IntN(2) == 0,
				Replaces: &catalog.Replacement{Files: replaced, Sequence: m.tbl.Metadata().LastSequenceNumber(), Manifests: manifests}})
		}
		want := map[string]bool{}
		fs := catalog.NewIO(t.Context(), m.store)
		for _, s := range m.tbl.Metadata().Snapshots() {
			want[s.ManifestList] = true
			manifests, err := s.Manifests(fs)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range manifests {
				want[f.FilePath()] = true
				entries, err := catalog.LiveEntries(fs, f)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range entries {
					want[e.DataFile().FilePath()] = true
				}
			}
		}
		if diff := cmp.Diff(want, m.keys(t)); diff != "" {
			t.Fatalf("seed %d: -named by %d snapshots +there\n%s", seed, len(m.tbl.Metadata().Snapshots()), diff)
		}
	}
}

// someFiles draws up to n live data files of the table, and returns the manifests of all.
func someFiles(t *testing.T, r *rand.Rand, m *memory, n int) (files []iceberg.DataFile, manifests []string) {
	t.Helper()
	s := m.tbl.CurrentSnapshot()
	if s == nil {
		return nil, nil
	}
	fs := catalog.NewIO(t.Context(), m.store)
	list, err := s.Manifests(fs)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		if f.ManifestContent() != iceberg.ManifestContentData {
			continue
		}
		entries, err := catalog.LiveEntries(fs, f)
		if err != nil {
			t.Fatal(err)
		}
		manifests = append(manifests, f.FilePath())
		for _, e := range entries {
			files = append(files, e.DataFile())
		}
	}
	r.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
	return files[:min(len(files), r.IntN(n+1))], manifests
}

// fileOf is a new data file with as many rows.
func fileOf(t *testing.T, m *memory, rows int64) iceberg.DataFile {
	t.Helper()
	b, err := iceberg.NewDataFileBuilder(m.tbl.Spec(), iceberg.EntryContentData, catalog.DataLocation(m.tbl, fmt.Sprintf("%d-%d.parquet", rows, m.tbl.Metadata().LastSequenceNumber())),
		iceberg.ParquetFile, nil, nil, nil, rows, 1000)
	if err != nil {
		t.Fatal(err)
	}
	return b.Build()
}
