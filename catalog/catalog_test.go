package catalog_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/catalogtest"
	"github.com/tabletopic/tabletopic/objectstore"
)

// memory is a catalog of one table without any protocol: it applies what Prepare made.
type memory struct {
	store catalogtest.Store
	tbl   *table.Table
}

func newMemory(t testing.TB, properties iceberg.Properties) *memory {
	t.Helper()
	meta, err := catalog.NewMetadata(catalogtest.Schema(), "file:///w/t", properties)
	if err != nil {
		t.Fatal(err)
	}
	m := &memory{store: catalogtest.Store{Prefix: "file:///w/", Bucket: objectstore.NewMemory()}}
	m.set(meta)
	return m
}

func (m *memory) set(meta table.Metadata) {
	m.tbl = table.New(table.Identifier{"n", "t"}, meta, "file:///w/t/metadata/00000-x.metadata.json", catalog.FS(m.store), nil)
}

func (m *memory) commit(t testing.TB, c catalog.Commit) {
	t.Helper()
	fs := catalog.NewIO(context.Background(), m.store)
	p, err := catalog.Prepare(context.Background(), fs, m.tbl, c)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range p.Requirements {
		if err := r.Validate(m.tbl.Metadata()); err != nil {
			t.Fatal(err)
		}
	}
	meta, err := table.UpdateTableMetadata(m.tbl.Metadata(), p.Updates, "")
	if err != nil {
		t.Fatal(err)
	}
	// As a catalog would have it: written and read again.
	data, err := json.Marshal(meta)
	if err != nil {
		t.Fatal(err)
	}
	if meta, err = catalog.ParseMetadata(data); err != nil {
		t.Fatal(err)
	}
	base := m.tbl
	m.set(meta)
	if err := p.Clean(context.Background(), fs, base, m.tbl); err != nil {
		t.Fatal(err)
	}
}

func dataFile(t testing.TB, m *memory, i int) []iceberg.DataFile {
	b, err := iceberg.NewDataFileBuilder(m.tbl.Spec(), iceberg.EntryContentData, catalog.DataLocation(m.tbl, fmt.Sprintf("%d.parquet", i)),
		iceberg.ParquetFile, nil, nil, nil, 10, 1000)
	if err != nil {
		t.Fatal(err)
	}
	return []iceberg.DataFile{b.Build()}
}

func (m *memory) keys(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	after := ""
	for {
		page, err := m.store.Bucket.List(t.Context(), "", after)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			return out
		}
		for _, o := range page {
			out[m.store.Prefix+o.Key] = true
			after = o.Key
		}
	}
}

// After expiry the store holds the manifest lists and manifests that the snapshots of the
// table name, and not one more: none is deleted too early, none left behind. A tag, or
// a branch, keeps what it names.
func TestExpiryLeavesWhatIsNamed(t *testing.T) {
	for _, ref := range []table.RefType{"", table.TagRef, table.BranchRef} {
		m := newMemory(t, iceberg.Properties{"history.expire.max-snapshot-age-ms": "1000", "history.expire.min-snapshots-to-keep": "3"})
		for i := range 130 {
			m.commit(t, catalog.Commit{Files: dataFile(t, m, i), Expire: true})
			if i == 20 && ref != "" {
				m.apply(t, table.NewSetSnapshotRefUpdate("kept", m.tbl.CurrentSnapshot().SnapshotID, ref, 0, 0, 0))
			}
			m.age(t, time.Second)
		}
		named := map[string]bool{}
		for _, s := range m.tbl.Metadata().Snapshots() {
			named[s.ManifestList] = true
			manifests, err := s.Manifests(catalog.NewIO(t.Context(), m.store))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range manifests {
				named[f.FilePath()] = true
			}
		}
		for key := range m.keys(t) {
			if !named[key] {
				t.Errorf("ref %q: %s is left behind", ref, key)
			}
			delete(named, key)
		}
		for key := range named {
			t.Errorf("ref %q: %s is gone", ref, key)
		}
		if n := len(m.tbl.Metadata().Snapshots()); n < 3 || n > 15 {
			t.Errorf("ref %q: %d snapshots, want 3 to 15", ref, n)
		}
		if kept := m.tbl.Metadata().SnapshotByName("kept"); (kept != nil) != (ref != "") {
			t.Errorf("ref %q: snapshot %v", ref, kept)
		}
	}
}

func (m *memory) apply(t *testing.T, updates ...table.Update) {
	t.Helper()
	meta, err := table.UpdateTableMetadata(m.tbl.Metadata(), updates, "")
	if err != nil {
		t.Fatal(err)
	}
	m.set(meta)
}

// age makes everything in the table older.
func (m *memory) age(t *testing.T, by time.Duration) {
	t.Helper()
	data, err := json.Marshal(m.tbl.Metadata())
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]any
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.UseNumber()
	if err := decoder.Decode(&object); err != nil {
		t.Fatal(err)
	}
	older := func(o map[string]any, key string) {
		n, _ := o[key].(json.Number).Int64()
		o[key] = n - by.Milliseconds()
	}
	older(object, "last-updated-ms")
	for _, list := range []string{"snapshots", "snapshot-log"} {
		for _, e := range object[list].([]any) {
			older(e.(map[string]any), "timestamp-ms")
		}
	}
	object["metadata-log"] = []any{}
	if data, err = json.Marshal(object); err != nil {
		t.Fatal(err)
	}
	meta, err := catalog.ParseMetadata(data)
	if err != nil {
		t.Fatal(err)
	}
	m.set(meta)
}

// A rollback makes the history two lines; expiry then deletes nothing that is named.
func TestExpiryAfterRollback(t *testing.T) {
	m := newMemory(t, iceberg.Properties{"history.expire.max-snapshot-age-ms": "1000"})
	for i := range 60 {
		m.commit(t, catalog.Commit{Files: dataFile(t, m, i), Expire: true})
		if i%25 == 24 {
			snapshots := m.tbl.Metadata().Snapshots()
			back := snapshots[max(0, len(snapshots)-4)].SnapshotID
			m.apply(t, table.NewSetSnapshotRefUpdate("main", back, table.BranchRef, 0, 0, 0))
		}
		m.age(t, time.Second)
		for _, s := range m.tbl.Metadata().Snapshots() {
			manifests, err := s.Manifests(catalog.NewIO(t.Context(), m.store))
			if err != nil {
				t.Fatalf("commit %d: %v", i, err)
			}
			for _, f := range manifests {
				for _, err := range f.Entries(catalog.NewIO(t.Context(), m.store), true) {
					if err != nil {
						t.Fatalf("commit %d: %v", i, err)
					}
				}
			}
		}
	}
	if n := len(m.tbl.Metadata().Snapshots()); n > 20 {
		t.Errorf("%d snapshots", n)
	}
}

// A compressed metadata file that unpacks without end is refused before it fills the memory.
func TestCompressedMetadataIsBounded(t *testing.T) {
	var member bytes.Buffer // a gzip file is any number of them
	w := gzip.NewWriter(&member)
	if _, err := w.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	packed := bytes.Repeat(member.Bytes(), 257)
	files := catalog.NewIO(t.Context(), catalogtest.Store{Prefix: "s3://b/", Bucket: objectstore.NewMemory()})
	const location = "s3://b/t/metadata/00000-x.gz.metadata.json"
	if err := files.WriteFile(location, packed); err != nil {
		t.Fatal(err)
	}
	if _, err := catalog.ReadMetadata(files, location); err == nil || !strings.Contains(err.Error(), location) || !strings.Contains(err.Error(), "expire snapshots") {
		t.Fatalf("%d bytes that hold %d: %v", len(packed), 257<<20, err)
	}
}

// Files appear whole, are not replaced, and say so if they are missing.
func TestIO(t *testing.T) {
	bucket := objectstore.NewMemory()
	files := catalog.NewIO(t.Context(), catalogtest.Store{Prefix: "s3://b/", Bucket: bucket})
	const location = "s3://b/a b/c=1/%20.parquet"
	w, err := files.Create(location)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(w, strings.NewReader("0123456789")); err != nil {
		t.Fatal(err)
	}
	if _, err := files.Open(location); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open before close: %v", err)
	}
	if err := errors.Join(w.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := bucket.Get(t.Context(), "a b/c=1/%20.parquet", 0, -1); err != nil {
		t.Errorf("the key is not the location's: %v", err)
	}
	if err := files.WriteFile(location, []byte("0123456789")); err != nil {
		t.Errorf("the same again: %v", err)
	}
	if err := files.WriteFile(location, []byte("other")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("another content: %v", err)
	}
	f, err := files.Open(location)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := f.Stat(); err != nil || st.Size() != 10 || st.Name() != "%20.parquet" {
		t.Errorf("stat: %v %v", st, err)
	}
	p := make([]byte, 4)
	if n, err := f.ReadAt(p, 8); n != 2 || err != io.EOF || string(p[:n]) != "89" {
		t.Errorf("read at the end: %d %q %v", n, p, err)
	}
	if _, err := f.Seek(-3, io.SeekEnd); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(f); string(rest) != "789" || err != nil {
		t.Errorf("read after seek: %q %v", rest, err)
	}
	if err := files.Remove(location); err != nil {
		t.Fatal(err)
	}
	if _, err := files.ReadFile(location); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read after remove: %v", err)
	}
	if _, err := files.Open("gopher://x"); err == nil {
		t.Error("an unknown scheme is not refused")
	}
}

// A store that is away makes the outcome unknown, not final.
func TestPrepareWithoutStore(t *testing.T) {
	m := newMemory(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m.store.Bucket = gone{m.store.Bucket}
	if _, err := catalog.Prepare(ctx, catalog.NewIO(ctx, m.store), m.tbl, catalog.Commit{Files: dataFile(t, m, 1)}); !errors.Is(err, catalog.ErrCommitUnknown) {
		t.Errorf("prepare: %v", err)
	}
}

type gone struct{ objectstore.Bucket }

func (gone) PutIfAbsent(ctx context.Context, _ string, _ ...[]byte) error { return ctx.Err() }

// The time of a commit does not grow with the number of those before it.
func BenchmarkCommit(b *testing.B) {
	for _, before := range []int{10, 1000, 10000} {
		b.Run(fmt.Sprintf("after-%d", before), func(b *testing.B) {
			m := newMemory(b, iceberg.Properties{"history.expire.max-snapshot-age-ms": "0", "history.expire.min-snapshots-to-keep": "100"})
			for i := range before {
				m.commit(b, catalog.Commit{Files: dataFile(b, m, i), Expire: true})
			}
			for i := before; b.Loop(); i++ {
				m.commit(b, catalog.Commit{Files: dataFile(b, m, i), Expire: true})
			}
		})
	}
}
