package worker

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/parquet/compress"
	parquet "github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/iceberg-go"

	"github.com/tabletopic/tabletopic/catalog"
)

// Files are sorted as the topic asks, from the first one on, and compressed as the table's
// properties say once somebody has set them; a table whose order somebody else changed is given the
// topic's again when its coordinator begins.
func TestFilesFollowSortOrderAndProperties(t *testing.T) {
	p := newPath(t, 1)
	p.cfg.SortBy = "[id desc nulls last]"
	p.start()
	produce := func() {
		for _, id := range []int64{3, 1, 2} {
			p.logs[0].append(t, event(t, id))
		}
		p.committed()
	}
	produce()
	p.checkFiles([]int64{3, 2, 1}, compress.Codecs.Zstd)

	tab, err := p.load()
	if err != nil {
		t.Fatal(err)
	}
	if _, err = p.catalog.Catalog.Commit(context.Background(), tab, catalog.Commit{Properties: iceberg.Properties{"write.parquet.compression-codec": "snappy", "write.parquet.page-size-bytes": "none"}}); err != nil {
		t.Fatal(err)
	}
	p.produce(1) // the coordinator reads the table with it
	p.committed()
	p.wait(func() bool {
		produce()
		return p.newestCodec() == compress.Codecs.Snappy
	}, func() string { return "a file of the new codec" })
	p.checkFiles([]int64{3, 2, 1}, compress.Codecs.Snappy)
	p.crash()

	if tab, err = p.load(); err != nil {
		t.Fatal(err)
	}
	unsorted := tab.Metadata().SortOrders()[0]
	if unsorted.Len() > 0 {
		t.Fatalf("the first order of the table is %v", unsorted)
	}
	if _, err := p.catalog.Catalog.Commit(context.Background(), tab, catalog.Commit{Order: &unsorted}); err != nil {
		t.Fatal(err)
	}
	p.start()
	produce()
	p.checkFiles([]int64{3, 2, 1}, compress.Codecs.Snappy)
	if tab, err = p.load(); err != nil {
		t.Fatal(err)
	}
	if n := len(tab.Metadata().SortOrders()); n != 2 {
		t.Errorf("the table has %d sort orders, want the one that it had before again", n)
	}
}

// newest opens the data file of the newest commit that has one.
func (p *path) newest() (*parquet.Reader, iceberg.DataFile) {
	p.t.Helper()
	tab, err := p.load()
	if err != nil {
		p.t.Fatal(err)
	}
	fs, err := tab.FS(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	manifests, err := tab.CurrentSnapshot().Manifests(fs)
	if err != nil {
		p.t.Fatal(err)
	}
	var entry iceberg.DataFile
	last := int64(-1)
	for _, m := range manifests {
		for e, err := range m.Entries(fs, true) {
			if err != nil {
				p.t.Fatal(err)
			}
			if e.SequenceNum() > last {
				last, entry = e.SequenceNum(), e.DataFile()
			}
		}
	}
	bucket, key, err := p.locator.Resolve(context.Background(), entry.FilePath())
	if err != nil {
		p.t.Fatal(err)
	}
	body, err := bucket.Get(context.Background(), key, 0, -1)
	if err != nil {
		p.t.Fatal(err)
	}
	r, err := parquet.NewParquetReader(bytes.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	return r, entry
}

func (p *path) newestCodec() compress.Compression {
	r, _ := p.newest()
	c, err := r.MetaData().RowGroup(0).ColumnChunk(0)
	if err != nil {
		p.t.Fatal(err)
	}
	return c.Compression()
}

// checkFiles fails unless the newest file has ids in their order, the codec, and the order's id.
func (p *path) checkFiles(ids []int64, codec compress.Compression) {
	p.t.Helper()
	r, entry := p.newest()
	column, err := r.RowGroup(0).Column(0)
	if err != nil {
		p.t.Fatal(err)
	}
	got := make([]int64, r.NumRows())
	n, _, err := column.(*parquet.Int64ColumnChunkReader).ReadBatch(r.NumRows(), got, make([]int16, len(got)), make([]int16, len(got)))
	if err != nil || n != r.NumRows() || !slices.Equal(got, ids) {
		p.t.Errorf("ids %v, error %v, want %v", got, err, ids)
	}
	if got := p.newestCodec(); got != codec {
		p.t.Errorf("codec %v, want %v", got, codec)
	}
	if id := entry.SortOrderID(); id == nil || *id != 1 {
		p.t.Errorf("sort order id %v, want 1", id)
	}
}
