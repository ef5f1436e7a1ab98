package rest

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/cockroachdb/pebble/v2/vfs"
	_ "modernc.org/sqlite"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/catalogtest"
	"github.com/tabletopic/tabletopic/catalog/server"
	catalogsql "github.com/tabletopic/tabletopic/catalog/sql"
	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/objectstore"
)

// The suite holds for our own server.
func TestConformanceOnOwnServer(t *testing.T) {
	catalogtest.Run(t, func(t *testing.T) catalogtest.Fixture {
		store := catalogtest.Store{Prefix: "file:///w/", Bucket: objectstore.NewMemory()}
		return fixture(t, ownServer(t, store), store)
	})
}

// The suite holds for the reference implementation.
func TestConformanceOnReferenceServer(t *testing.T) {
	root := t.TempDir()
	dir, err := objectstore.OpenDir(vfs.Default, root)
	if err != nil {
		t.Fatal(err)
	}
	locator := catalogtest.Store{Prefix: "file://" + root + "/", Bucket: dir}
	uri := lab.IcebergREST(t, "file://"+root+"/house", "")
	catalogtest.Run(t, func(t *testing.T) catalogtest.Fixture {
		f := fixture(t, uri, locator)
		t.Cleanup(func() { dropAll(t, f.Other) })
		return f
	})
}

// dropAll leaves the server to the next test.
func dropAll(t *testing.T, c catalog.Catalog) {
	ctx := context.WithoutCancel(t.Context())
	ids, err := c.List(ctx, nil)
	if err != nil {
		t.Error(err)
	}
	for _, id := range ids {
		if err := c.Drop(ctx, id); err != nil {
			t.Error(err)
		}
	}
}

// ownServer starts our own server, with its tables below house of a store.
func ownServer(t *testing.T, store catalogtest.Store) (uri string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "metadata.db")+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(10000)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	c, err := catalogsql.Open(t.Context(), db, store, catalogsql.Config{Warehouse: store.Prefix + "house"})
	if err != nil {
		t.Fatal(err)
	}
	s := server.New(c, store, server.Config{}, slog.New(slog.DiscardHandler))
	h := httptest.NewServer(http.StripPrefix("/iceberg", s))
	t.Cleanup(h.Close)
	return h.URL + "/iceberg"
}

func fixture(t *testing.T, uri string, locator catalog.Locator) catalogtest.Fixture {
	t.Helper()
	p := newProxy(t, uri)
	return p.Arm(catalogtest.Fixture{Catalog: openAt(t, p.URI, locator), Other: openAt(t, uri, locator), Locator: locator, Fresh: true})
}

var commitPath = regexp.MustCompile(`/tables/[^/]+$`)

// newProxy breaks commits on their way to a REST catalog.
func newProxy(t *testing.T, target string) *catalogtest.Proxy {
	t.Helper()
	p := catalogtest.NewProxy(t, target)
	p.IsCommit = func(r *http.Request, _ []byte) bool {
		return r.Method == http.MethodPost && commitPath.MatchString(r.URL.Path)
	}
	p.Conflict = func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusConflict)
		io.WriteString(w, `{"error":{"message":"another commit came first","type":"CommitFailedException","code":409}}`)
	}
	return p
}

func openAt(t *testing.T, uri string, locator catalog.Locator) *Catalog {
	t.Helper()
	c, err := Open(locator, Config{URI: uri})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func create(t *testing.T, c *Catalog) *table.Table {
	t.Helper()
	tbl, err := c.Create(t.Context(), table.Identifier{"web", "clicks"}, catalogtest.Schema(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return tbl
}

func appendFile(t *testing.T, tbl *table.Table, name string) catalog.Commit {
	return catalog.Commit{Files: []iceberg.DataFile{catalogtest.DataFile(t, tbl, name)}}
}

func totalFiles(t *testing.T, c *Catalog, tbl *table.Table) string {
	t.Helper()
	now, err := c.Load(t.Context(), tbl.Identifier())
	if err != nil {
		t.Fatal(err)
	}
	if now.CurrentSnapshot() == nil {
		return "0"
	}
	return now.CurrentSnapshot().Summary.Properties["total-data-files"]
}

// Every status has one meaning for the outcome of a commit.
func TestOutcomeOfStatus(t *testing.T) {
	cause := errors.New("cause")
	for status, want := range map[int]error{
		0: catalog.ErrCommitUnknown, 200: catalog.ErrCommitUnknown, 400: cause, 401: cause, 403: cause, 404: catalog.ErrNoTable,
		408: catalog.ErrCommitUnknown, 409: catalog.ErrCommitConflict, 419: catalog.ErrCommitUnknown, 422: cause,
		429: catalog.ErrCommitUnknown, 500: catalog.ErrCommitUnknown, 501: cause, 502: catalog.ErrCommitUnknown,
		503: catalog.ErrCommitUnknown, 504: catalog.ErrCommitUnknown, 507: catalog.ErrCommitUnknown,
	} {
		err := outcome(status, cause)
		if !errors.Is(err, want) || !errors.Is(err, cause) {
			t.Errorf("%d: %v, want %v", status, err, want)
		}
		if want == cause && (errors.Is(err, catalog.ErrCommitUnknown) || errors.Is(err, catalog.ErrCommitConflict)) {
			t.Errorf("%d: %v, want a definite error", status, err)
		}
	}
}

// An answer that is no JSON leaves the outcome unknown, though the commit landed.
func TestBrokenAnswers(t *testing.T) {
	store := catalogtest.Store{Prefix: "file:///w/", Bucket: objectstore.NewMemory()}
	p := newProxy(t, ownServer(t, store))
	c := openAt(t, p.URI, store)
	tbl := create(t, c)
	p.Modify = func(body []byte) []byte { return body[:len(body)/2] }
	if _, err := c.Commit(t.Context(), tbl, appendFile(t, tbl, "b")); !errors.Is(err, catalog.ErrCommitUnknown) {
		t.Errorf("half an answer: %v", err)
	}
	p.Modify = nil
	if n := totalFiles(t, c, tbl); n != "1" {
		t.Errorf("%s files, want 1", n)
	}
}

// Catalogs that send -1 for no snapshot, or fields of version 3 in version 2, are read,
// and the first append commits.
func TestLenientRead(t *testing.T) {
	store := catalogtest.Store{Prefix: "file:///w/", Bucket: objectstore.NewMemory()}
	p := newProxy(t, ownServer(t, store))
	p.Modify = func(body []byte) []byte {
		if strings.Contains(string(body), `"current-snapshot-id"`) {
			return bytes.Replace(body, []byte(`"format-version":2`), []byte(`"format-version":2,"next-row-id":0,"encryption-keys":[{"key-id":"k"}]`), 1)
		}
		return bytes.Replace(body, []byte(`"format-version":2`), []byte(`"format-version":2,"current-snapshot-id":-1,"next-row-id":0`), 1)
	}
	c := openAt(t, p.URI, store)
	tbl := create(t, c)
	if tbl.CurrentSnapshot() != nil {
		t.Fatal("-1 was taken for a snapshot")
	}
	if _, err := c.Commit(t.Context(), tbl, appendFile(t, tbl, "a")); err != nil {
		t.Fatal(err)
	}
	if n := totalFiles(t, c, tbl); n != "1" {
		t.Errorf("%s files, want 1", n)
	}
}

// A catalog that is away when a node starts is asked again by each call until it answers;
// one that refuses is told apart.
func TestCatalogAwayAtFirst(t *testing.T) {
	store := catalogtest.Store{Prefix: "file:///w/", Bucket: objectstore.NewMemory()}
	target, err := url.Parse(ownServer(t, store))
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: target.Scheme, Host: target.Host})
	var status atomic.Int32
	status.Store(http.StatusServiceUnavailable)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s := status.Load(); s != http.StatusOK {
			w.WriteHeader(int(s))
			return
		}
		forward.ServeHTTP(w, r)
	}))
	defer h.Close()
	c := openAt(t, h.URL+target.Path, store)
	id := table.Identifier{"web", "clicks"}
	if err := c.Connect(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("connect to a catalog that is away: %v, want ErrUnavailable", err)
	}
	if _, err := c.Load(t.Context(), id); !errors.Is(err, ErrUnavailable) || errors.Is(err, catalog.ErrNoTable) {
		t.Errorf("load from a catalog that is away: %v, want ErrUnavailable", err)
	}
	status.Store(http.StatusUnauthorized)
	if err := c.Connect(t.Context()); err == nil || errors.Is(err, ErrUnavailable) {
		t.Errorf("connect to a catalog that refuses: %v, want its refusal", err)
	}
	status.Store(http.StatusOK)
	if _, err := c.Load(t.Context(), id); !errors.Is(err, catalog.ErrNoTable) {
		t.Errorf("load: %v, want ErrNoTable", err)
	}
	create(t, c)
	if _, err := c.Load(t.Context(), id); err != nil {
		t.Error(err)
	}
}
