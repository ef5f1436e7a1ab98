package server

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/catalogtest"
)

// A load of a table with 1,000 snapshots: its text is made once.
func BenchmarkLoadTable(b *testing.B) {
	c := newClient(b, Config{})
	tbl, err := c.catalog.Create(b.Context(), table.Identifier{"web", "t"}, catalogtest.Schema(), nil)
	if err != nil {
		b.Fatal(err)
	}
	for range 1000 {
		if tbl, err = c.catalog.Commit(b.Context(), tbl, catalog.Commit{Snapshot: true}); err != nil {
			b.Fatal(err)
		}
	}
	server := New(c.catalog, c.store, Config{}, nil)
	for name, path := range map[string]string{"all": "?snapshots=all", "refs": "?snapshots=refs"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				w := httptest.NewRecorder()
				server.ServeHTTP(w, httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/v1/namespaces/web/tables/t"+path, nil))
				if w.Code != 200 {
					b.Fatal(w.Code, w.Body)
				}
			}
		})
	}
}
