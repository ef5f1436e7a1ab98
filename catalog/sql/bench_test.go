package sql

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/catalogtest"
	"github.com/tabletopic/tabletopic/objectstore"
)

// The time of a commit by the number of snapshots that the table keeps, each as large as ours are.
func BenchmarkCommit(b *testing.B) {
	for _, kept := range []int{10, 100, 360, 1000} {
		b.Run(fmt.Sprintf("kept-%d", kept), func(b *testing.B) {
			bucket, err := objectstore.OpenDir(vfs.Default, b.TempDir())
			if err != nil {
				b.Fatal(err)
			}
			store := catalogtest.Store{Prefix: "file:///w/", Bucket: bucket}
			db, err := sql.Open("sqlite", "file:"+filepath.Join(b.TempDir(), "metadata.db")+"?_pragma=journal_mode(WAL)&_txlock=immediate")
			if err != nil {
				b.Fatal(err)
			}
			defer db.Close()
			c, err := Open(b.Context(), db, store, Config{Warehouse: "file:///w/house"})
			if err != nil {
				b.Fatal(err)
			}
			tbl, err := c.Create(b.Context(), table.Identifier{"web", "clicks"}, catalogtest.Schema(), iceberg.Properties{
				"history.expire.max-snapshot-age-ms": "0", "history.expire.min-snapshots-to-keep": fmt.Sprint(kept),
				"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "20"})
			if err != nil {
				b.Fatal(err)
			}
			commit := func(i int) {
				f, err := iceberg.NewDataFileBuilder(tbl.Spec(), iceberg.EntryContentData, catalog.DataLocation(tbl, uuid.NewString()+".parquet"),
					iceberg.ParquetFile, nil, nil, nil, 10, 1000)
				if err != nil {
					b.Fatal(err)
				}
				summary := iceberg.Properties{"tabletopic.topic.id": uuid.NewString(), "tabletopic.commit.id": uuid.NewString(), "tabletopic.epoch": "1",
					"tabletopic.ranges.0": strings.Repeat("0:123456-123457:1:0,", 4)}
				if tbl, err = c.Commit(b.Context(), tbl, catalog.Commit{Files: []iceberg.DataFile{f.Build()}, Summary: summary, Expire: i%16 == 0}); err != nil {
					b.Fatal(err)
				}
			}
			for i := range kept {
				commit(i)
			}
			for i := kept; b.Loop(); i++ {
				commit(i)
			}
		})
	}
}
