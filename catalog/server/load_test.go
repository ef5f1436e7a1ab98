package server

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/catalogtest"
)

// Lists come whole, or in pages if the client asks for a first page; together the pages
// are the list.
func TestPaging(t *testing.T) {
	c := newClient(t, Config{})
	c.want(200, "", "POST", "/v1/namespaces", `{"namespace":["web"]}`)
	names := []string{"a", "a.b", "B", "b_", "b%", "c", "é"}
	for _, name := range names {
		c.want(200, "", "POST", "/v1/namespaces/web/tables", createBody(name, ""))
		c.want(200, "", "POST", "/v1/namespaces/web/views", viewBody("v "+name, "SELECT 1", ""))
		c.want(200, "", "POST", "/v1/namespaces", fmt.Sprintf(`{"namespace":["web",%q]}`, name))
	}
	for path, key := range map[string]string{
		"/v1/namespaces/web/tables?": "identifiers", "/v1/namespaces/web/views?": "identifiers", "/v1/namespaces?parent=web&": "namespaces",
	} {
		whole := c.want(200, "", "GET", path+"pageSize=2", "") // no token: all of it
		if n := len(whole[key].([]any)); n != len(names) || whole["next-page-token"] != nil {
			t.Errorf("%s: %d names, next %v, want %d and null", path, n, whole["next-page-token"], len(names))
		}
		for _, size := range []int{1, 3, 7, 100} {
			var paged []any
			pages := 0
			for token := any(""); token != nil; pages++ {
				page := c.want(200, "", "GET", fmt.Sprintf("%spageSize=%d&pageToken=%s", path, size, url.QueryEscape(token.(string))), "")
				if n := len(page[key].([]any)); n > size {
					t.Errorf("%s: a page of %d, %d are allowed", path, n, size)
				}
				paged = append(paged, page[key].([]any)...)
				token = page["next-page-token"]
			}
			if diff := cmp.Diff(whole[key], paged); diff != "" {
				t.Errorf("%s by %d: %s", path, size, diff)
			}
			if want := (len(names) + size - 1) / size; pages != want {
				t.Errorf("%s by %d: %d pages, want %d", path, size, pages, want)
			}
		}
		for _, bad := range []string{"pageSize=0", "pageSize=x", "pageToken=%21"} {
			c.want(400, "BadRequestException", "GET", path+bad, "")
		}
	}
	c.want(400, "BadRequestException", "GET", "/v1/namespaces?pageToken=%21", "")
}

// A client that has the newest version gets no body, each representation has its own tag,
// and refs leaves out snapshots that no branch or tag names.
func TestVersionsOfATable(t *testing.T) {
	c := newClient(t, Config{})
	tbl, err := c.catalog.Create(t.Context(), table.Identifier{"web", "t"}, catalogtest.Schema(), nil)
	if err != nil {
		t.Fatal(err)
	}
	const path = "/v1/namespaces/web/tables/t"
	var tags []string
	for i := range 3 {
		if tbl, err = c.catalog.Commit(t.Context(), tbl, catalog.Commit{Snapshot: true}); err != nil {
			t.Fatal(err)
		}
		for mode, snapshots := range map[string]int{"all": i + 1, "refs": 1} {
			status, header, answer := c.exchange(http.MethodGet, path+"?snapshots="+mode, "")
			if n := len(answer["metadata"].(map[string]any)["snapshots"].([]any)); status != 200 || n != snapshots {
				t.Errorf("snapshots=%s: status %d, %d snapshots, want 200 and %d", mode, status, n, snapshots)
			}
			tag := header.Get("ETag")
			for _, old := range tags {
				if old == tag {
					t.Errorf("tag %s twice", tag)
				}
			}
			tags = append(tags, tag)
			for _, header := range []string{tag, "W/" + tag, `"other", ` + tag} {
				if status, _ := c.call(http.MethodGet, path+"?snapshots="+mode, "", "If-None-Match", header); status != 304 {
					t.Errorf("If-None-Match %s: status %d, want 304", header, status)
				}
			}
			if status, _ := c.call(http.MethodGet, path+"?snapshots="+mode, "", "If-None-Match", `"other"`); status != 200 {
				t.Errorf("If-None-Match of another version: status %d, want 200", status)
			}
		}
	}
	c.want(400, "BadRequestException", "GET", path+"?snapshots=some", "")
	status, header, _ := c.exchange(http.MethodPost, path, `{"updates":[`+setting("k", "v")+`]}`)
	if status != 200 || header.Get("ETag") == "" {
		t.Errorf("commit: status %d, tag %q", status, header.Get("ETag"))
	}
	if status, _ := c.call(http.MethodGet, path, "", "If-None-Match", header.Get("ETag")); status != 304 {
		t.Errorf("version of one's own commit: status %d, want 304", status)
	}
}

// A purge deletes what is the table's own, and nothing that only its metadata claims.
func TestPurge(t *testing.T) {
	c := newClient(t, Config{})
	ids := []table.Identifier{{"web", "t"}, {"web", "u"}}
	tables := make([]*table.Table, 2)
	for i, id := range ids {
		tbl, err := c.catalog.Create(t.Context(), id, catalogtest.Schema(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			file := catalogtest.DataFile(t, tbl, fmt.Sprint("f", i))
			if err := catalog.NewIO(t.Context(), c.store).WriteFile(file.FilePath(), []byte("rows")); err != nil {
				t.Fatal(err)
			}
			if tbl, err = c.catalog.Commit(t.Context(), tbl, catalog.Commit{Files: []iceberg.DataFile{file}}); err != nil {
				t.Fatal(err)
			}
		}
		tables[i] = tbl
	}
	// The first table names a file of the second.
	claimed := catalogtest.DataFile(t, tables[1], "f1")
	if _, err := c.catalog.Commit(t.Context(), tables[0], catalog.Commit{Files: []iceberg.DataFile{claimed}}); err != nil {
		t.Fatal(err)
	}
	before := c.files()
	c.want(204, "", "DELETE", "/v1/namespaces/web/tables/t?purgeRequested=true", "")
	c.want(404, "NoSuchTableException", "GET", "/v1/namespaces/web/tables/t", "")
	var want []string
	for _, file := range before {
		if !strings.Contains(file, "/web/t/") {
			want = append(want, file)
		}
	}
	if diff := cmp.Diff(want, c.files()); diff != "" {
		t.Errorf("files after the purge (-want +got):\n%s", diff)
	}
	c.want(200, "", "POST", "/v1/namespaces/web/tables/u", `{"updates":[`+setting("gc.enabled", "false")+`]}`)
	c.want(400, "BadRequestException", "DELETE", "/v1/namespaces/web/tables/u?purgeRequested=true", "")
	c.want(400, "BadRequestException", "DELETE", "/v1/namespaces/web/tables/u?purgeRequested=maybe", "")
	before = c.files()
	c.want(204, "", "DELETE", "/v1/namespaces/web/tables/u", "")
	if diff := cmp.Diff(before, c.files()); diff != "" {
		t.Errorf("files after a drop (-want +got):\n%s", diff)
	}
}

// A table whose location another one shares loses no file to the purge of either.
func TestPurgeSparesASharedLocation(t *testing.T) {
	c := newClient(t, Config{})
	a, err := c.catalog.Create(t.Context(), table.Identifier{"web", "a"}, catalogtest.Schema(), nil)
	if err != nil {
		t.Fatal(err)
	}
	// As another server, or an older one, might have registered it.
	if _, err := c.catalog.Register(t.Context(), table.Identifier{"web", "b"}, a.Metadata(), a.MetadataLocation(), false); err != nil {
		t.Fatal(err)
	}
	before := c.files()
	c.want(204, "", "DELETE", "/v1/namespaces/web/tables/a?purgeRequested=true", "")
	if diff := cmp.Diff(before, c.files()); diff != "" {
		t.Errorf("files after the purge (-want +got):\n%s", diff)
	}
	c.want(200, "", "GET", "/v1/namespaces/web/tables/b", "")
}

// Unregister gives the table away, whole, and keeps its files; register takes it back, also
// in the place of an older version.
func TestUnregister(t *testing.T) {
	c := newClient(t, Config{})
	c.want(200, "", "POST", "/v1/namespaces", `{"namespace":["web"]}`)
	c.want(200, "", "POST", "/v1/namespaces/web/tables", createBody("t", ""))
	first := c.want(200, "", "POST", "/v1/namespaces/web/tables/t", `{"updates":[`+setting("k", "1")+`]}`)
	c.want(200, "", "POST", "/v1/namespaces/web/tables/t", `{"updates":[`+setting("k", "2")+`]}`)
	last := c.want(200, "", "POST", "/v1/namespaces/web/tables/t/unregister", "")
	if k := last["metadata"].(map[string]any)["properties"].(map[string]any)["k"]; k != "2" {
		t.Errorf("unregistered with k=%v, want 2", k)
	}
	c.want(404, "NoSuchTableException", "POST", "/v1/namespaces/web/tables/t/unregister", "")
	c.want(404, "NoSuchTableException", "POST", "/v1/namespaces/web/tables/t", `{"updates":[]}`)
	register := func(answer map[string]any, more string) string {
		return fmt.Sprintf(`{"name":"t","metadata-location":%q%s}`, answer["metadata-location"], more)
	}
	c.want(200, "", "POST", "/v1/namespaces/web/register", register(last, ""))
	c.want(409, "AlreadyExistsException", "POST", "/v1/namespaces/web/register", register(first, ""))
	c.want(200, "", "POST", "/v1/namespaces/web/register", register(first, `,"overwrite":true`))
	if got := c.property("t", "k"); got != "1" {
		t.Errorf("registered over it, k=%s, want 1", got)
	}
}

// Metrics reports are checked, bounded and counted.
func TestReports(t *testing.T) {
	c := newClient(t, Config{})
	c.want(200, "", "POST", "/v1/namespaces", `{"namespace":["web"]}`)
	c.want(200, "", "POST", "/v1/namespaces/web/tables", createBody("t", ""))
	const path = "/v1/namespaces/web/tables/t/metrics"
	c.want(204, "", "POST", path, `{"report-type":"scan-report","table-name":"t","snapshot-id":1,"metrics":{}}`)
	c.want(204, "", "POST", path, `{"report-type":"commit-report","table-name":"t","snapshot-id":1,"metrics":{}}`)
	c.want(400, "BadRequestException", "POST", path, `{"report-type":"gossip"}`)
	c.want(400, "BadRequestException", "POST", path, `nothing`)
	c.want(404, "NoSuchTableException", "POST", "/v1/namespaces/web/tables/no/metrics", `{"report-type":"scan-report"}`)
	c.want(413, "BadRequestException", "POST", path, `{"report-type":"scan-report","x":"`+strings.Repeat("x", maxReport)+`"}`)
	if diff := cmp.Diff(map[string]float64{"scan-report": 1, "commit-report": 1}, c.counts("tabletopic_rest_catalog_reports_total", "type")); diff != "" {
		t.Error(diff)
	}
}
