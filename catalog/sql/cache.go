package sql

import (
	"encoding/json"
	"sync"

	"github.com/apache/iceberg-go/table"
	"github.com/apache/iceberg-go/view"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/tabletopic/tabletopic/catalog"
)

// A Document is the metadata of a table or of a view, as a metadata file has it. It never
// changes, nor may what it returns be changed.
type Document struct {
	Table table.Metadata // nil for a view
	View  view.Metadata  // nil for a table

	all, refs func() ([]byte, error)
}

func tableDocument(meta table.Metadata) *Document {
	d := &Document{Table: meta, all: sync.OnceValues(func() ([]byte, error) { return catalog.MarshalMetadata(meta) })}
	d.refs = sync.OnceValues(func() ([]byte, error) { return withoutHistory(d, meta) })
	return d
}

func viewDocument(meta view.Metadata) *Document {
	return &Document{View: meta, all: sync.OnceValues(func() ([]byte, error) { return json.Marshal(meta) })}
}

// JSON is the document as text. It is made once.
func (d *Document) JSON() ([]byte, error) { return d.all() }

// RefsJSON is the document of a table with those snapshots only that a branch or a tag
// names. It is made once.
func (d *Document) RefsJSON() ([]byte, error) { return d.refs() }

func withoutHistory(d *Document, meta table.Metadata) ([]byte, error) {
	data, err := d.all()
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	var snapshots []json.RawMessage
	if fields["snapshots"] != nil {
		if err := json.Unmarshal(fields["snapshots"], &snapshots); err != nil {
			return nil, err
		}
	}
	named := map[int64]bool{}
	for _, ref := range meta.Refs() {
		named[ref.SnapshotID] = true
	}
	kept := []json.RawMessage{}
	for _, s := range snapshots {
		var id struct {
			SnapshotID int64 `json:"snapshot-id"`
		}
		if err := json.Unmarshal(s, &id); err != nil {
			return nil, err
		}
		if named[id.SnapshotID] {
			kept = append(kept, s)
		}
	}
	if fields["snapshots"], err = json.Marshal(kept); err != nil {
		return nil, err
	}
	return json.Marshal(fields)
}

// memory estimates what a document takes, parsed and as text.
func (d *Document) memory() int64 {
	n := int64(4 << 10)
	if d.View != nil {
		for _, v := range d.View.Versions() {
			n += 1 << 10
			for _, r := range v.Representations {
				n += int64(2 * len(r.Sql))
			}
		}
		return n
	}
	n += int64(len(d.Table.Snapshots())) * 2 << 10
	for _, s := range d.Table.Schemas() {
		n += int64(s.NumFields()) * 512
	}
	for k, v := range d.Table.Properties() {
		n += int64(2 * (len(k) + len(v)))
	}
	return n
}

// cache holds the documents that were used last, by location; a metadata file never changes.
type cache struct {
	max int64

	mu   sync.Mutex
	lru  *simplelru.LRU[string, *Document] // guarded by mu
	size int64                             // guarded by mu
}

// maxDocuments bounds the cache besides its bytes.
const maxDocuments = 10_000

func newCache(max int64) (*cache, error) {
	c := &cache{max: max}
	var err error
	c.lru, err = simplelru.NewLRU(maxDocuments, func(_ string, d *Document) { c.size -= d.memory() })
	return c, err
}

func (c *cache) get(location string) *Document {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, _ := c.lru.Get(location)
	return d
}

// put keeps d, and returns the document that is kept for the location: one text for all.
func (c *cache) put(location string, d *Document) *Document {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.lru.Get(location); ok {
		return old
	}
	c.size += d.memory()
	c.lru.Add(location, d)
	for c.size > c.max && c.lru.Len() > 0 {
		c.lru.RemoveOldest()
	}
	return d
}

func (c *cache) remove(location string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lru.Remove(location)
}
