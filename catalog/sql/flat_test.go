package sql

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/catalogtest"
	"github.com/tabletopic/tabletopic/objectstore"
)

// counted counts requests and their bytes.
type counted struct {
	objectstore.Bucket
	requests, bytes atomic.Int64
}

func (b *counted) Get(ctx context.Context, key string, off, n int64) ([]byte, error) {
	data, err := b.Bucket.Get(ctx, key, off, n)
	b.requests.Add(1)
	b.bytes.Add(int64(len(data)))
	return data, err
}

func (b *counted) PutIfAbsent(ctx context.Context, key string, body ...[]byte) error {
	b.requests.Add(1)
	for _, p := range body {
		b.bytes.Add(int64(len(p)))
	}
	return b.Bucket.PutIfAbsent(ctx, key, body...)
}

func (b *counted) Delete(ctx context.Context, keys ...string) error {
	b.requests.Add(1)
	return b.Bucket.Delete(ctx, keys...)
}

func (b *counted) List(ctx context.Context, prefix, after string) ([]objectstore.Object, error) {
	b.requests.Add(1)
	return b.Bucket.List(ctx, prefix, after)
}

// Two thousand commits on, a commit makes no more requests, and reads and writes no more bytes,
// than after ten, within a half, while snapshots, manifests and metadata files expire as it goes:
// nothing of a table grows with its commits but by logarithm. Averages of a hundred commits, so
// that each has its share of the merges.
func TestCommitsStayFlat(t *testing.T) {
	bucket := &counted{Bucket: objectstore.NewMemory()}
	store := catalogtest.Store{Prefix: "file:///w/", Bucket: bucket}
	c := open(t, sqliteEngine(t), store)
	tbl, err := c.Create(t.Context(), table.Identifier{"web", "clicks"}, catalogtest.Schema(), iceberg.Properties{
		"history.expire.max-snapshot-age-ms": "0", "history.expire.min-snapshots-to-keep": "10",
		"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "20"})
	if err != nil {
		t.Fatal(err)
	}
	done := 0
	commits := func(n int) (requests, bytes float64) {
		bucket.requests.Store(0)
		bucket.bytes.Store(0)
		for range n {
			f, err := iceberg.NewDataFileBuilder(tbl.Spec(), iceberg.EntryContentData, catalog.DataLocation(tbl, uuid.NewString()+".parquet"),
				iceberg.ParquetFile, nil, nil, nil, 10, 1000)
			if err != nil {
				t.Fatal(err)
			}
			if tbl, err = c.Commit(t.Context(), tbl, catalog.Commit{Files: []iceberg.DataFile{f.Build()}, Expire: done%16 == 15}); err != nil {
				t.Fatal(err)
			}
			done++
		}
		return float64(bucket.requests.Load()) / float64(n), float64(bucket.bytes.Load()) / float64(n)
	}
	commits(10)
	requests, bytes := commits(100)
	commits(1790)
	lateRequests, lateBytes := commits(100)
	figures := fmt.Sprintf("a commit after %d makes %.1f requests with %.0f bytes, one after 10 made %.1f with %.0f", done-100, lateRequests, lateBytes, requests, bytes)
	t.Log(figures)
	if lateRequests > 1.5*requests || lateBytes > 1.5*bytes {
		t.Error(figures)
	}
	keys := 0
	for after := ""; ; {
		page, err := bucket.List(t.Context(), "", after)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		keys, after = keys+len(page), page[len(page)-1].Key
	}
	if keys > 200 {
		t.Errorf("%d metadata files and manifests are in the store", keys)
	}
}

// A commit reads nothing of what its process wrote before, merges of manifests included; what another
// process committed it reads from the store, and every file stays in the table.
func TestCommitsReadNothingOfTheirOwn(t *testing.T) {
	counter := &objectstore.Counter{}
	store := catalogtest.Store{Prefix: "file:///w/", Bucket: objectstore.Observe(objectstore.NewMemory(), counter)}
	database := sqliteEngine(t)
	id := table.Identifier{"web", "clicks"}
	own, other := open(t, database, store), open(t, database, store)
	tbl, err := own.Create(t.Context(), id, catalogtest.Schema(), nil)
	if err != nil {
		t.Fatal(err)
	}
	commit := func(c *Catalog) {
		t.Helper()
		f, err := iceberg.NewDataFileBuilder(tbl.Spec(), iceberg.EntryContentData, catalog.DataLocation(tbl, uuid.NewString()+".parquet"),
			iceberg.ParquetFile, nil, nil, nil, 10, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if tbl, err = c.Commit(t.Context(), tbl, catalog.Commit{Files: []iceberg.DataFile{f.Build()}}); err != nil {
			t.Fatal(err)
		}
	}
	const commits = 30
	for range commits {
		commit(own)
	}
	if n := counter.Count(objectstore.OpGet); n > 0 {
		t.Errorf("%d reads in %d commits of one process", n, commits)
	}
	commit(other)
	commit(own)
	if n := counter.Count(objectstore.OpGet); n == 0 {
		t.Error("no reads, after another process committed")
	}
	tasks, err := tbl.Scan().PlanFiles(t.Context())
	if err != nil || len(tasks) != commits+2 {
		t.Fatalf("the table has %d files, %v, want %d", len(tasks), err, commits+2)
	}
}
