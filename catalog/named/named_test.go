package named

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/catalogtest"
	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/objectstore"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

func testKey(t *testing.T) Key {
	t.Helper()
	key, err := ParseKey(" MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\n")
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func openStore(t *testing.T) *metadata.Store {
	t.Helper()
	s, err := metadata.Open(t.Context(), "sqlite::memory:", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// sqlSettings are those of a catalog in a database of its own.
func sqlSettings(t *testing.T) map[string]string {
	return map[string]string{"url": lab.Postgres(t), "warehouse": "file:///w/house"}
}

func open(t *testing.T, store Store, key Key) *Catalogs {
	t.Helper()
	c := New(store, catalogtest.Store{Prefix: "file:///w/", Bucket: objectstore.NewMemory()}, key)
	t.Cleanup(func() { c.Close() })
	return c
}

// A fixture of version 1 is read by this version, which writes the same but for the nonce.
func TestEntryFormatV1(t *testing.T) {
	fixture, err := os.ReadFile(filepath.Join("testdata", "format", "v1", "catalog_entry.json"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"uri": "https://catalog.example.com", "warehouse": "lake", "credential": "id:secret", "header.X-Realm": "r1"}
	got, sealed, err := parseEntry(fixture, "polaris", "rest", testKey(t))
	if err != nil || sealed || !maps.Equal(got, want) {
		t.Fatalf("%v, sealed %v, %v; want %v", got, sealed, err, want)
	}
	k, err := kind("rest")
	if err != nil {
		t.Fatal(err)
	}
	again, err := appendEntry(nil, "polaris", k, want, testKey(t))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(again), "secret\"") || strings.Contains(string(again), "id:secret") || len(again) != len(strings.TrimSpace(string(fixture))) {
		t.Errorf("written: %s", again)
	}
	if got, _, err := parseEntry(again, "polaris", "rest", testKey(t)); err != nil || !maps.Equal(got, want) {
		t.Errorf("read again: %v, %v", got, err)
	}
}

// Secrets open with their key, under their name and kind, unchanged, and not otherwise.
func TestSecretsOpenOnlyAsTheyWereSealed(t *testing.T) {
	k, err := kind("rest")
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := appendEntry(nil, "a", k, map[string]string{"uri": "http://c", "token": "t0ken"}, testKey(t))
	if err != nil {
		t.Fatal(err)
	}
	other := append(Key{1}, testKey(t)[1:]...)
	flipped := []byte(strings.Replace(string(sealed), `"secrets":"`, `"secrets":"A`, 1))
	for what, open := range map[string]func() (map[string]string, bool, error){
		"another key":  func() (map[string]string, bool, error) { return parseEntry(sealed, "a", "rest", other) },
		"another name": func() (map[string]string, bool, error) { return parseEntry(sealed, "b", "rest", testKey(t)) },
		"another kind": func() (map[string]string, bool, error) { return parseEntry(sealed, "a", "glue", testKey(t)) },
		"a change":     func() (map[string]string, bool, error) { return parseEntry(flipped, "a", "rest", testKey(t)) },
		"a newer version": func() (map[string]string, bool, error) {
			return parseEntry([]byte(strings.Replace(string(sealed), `"v":1`, `"v":2`, 1)), "a", "rest", testKey(t))
		},
	} {
		if values, _, err := open(); err == nil || values["token"] != "" || strings.Contains(err.Error(), "t0ken") {
			t.Errorf("%s: %v, %v", what, values, err)
		}
	}
	if values, isSealed, err := parseEntry(sealed, "a", "rest", nil); err != nil || !isSealed || values["token"] != "" || values["uri"] != "http://c" {
		t.Errorf("no key: %v, %v, %v", values, isSealed, err)
	}
}

// A catalog that is added is there for tables at once, on every server; a change and a
// removal hold from the next call on. Secrets are neither shown nor stored in the clear.
func TestCatalogsAreLive(t *testing.T) {
	store := openStore(t)
	here, there := open(t, store, testKey(t)), open(t, store, testKey(t))
	ctx := t.Context()
	if _, err := here.Get(ctx, "lake"); !errors.Is(err, metadata.ErrCatalogNotExist) {
		t.Fatalf("get before add: %v", err)
	}
	first := sqlSettings(t)
	if err := here.Add(ctx, "lake", "sql", first); err != nil {
		t.Fatal(err)
	}
	h, err := there.Get(ctx, "lake")
	if err != nil {
		t.Fatal(err)
	}
	id := table.Identifier{"web", "clicks"}
	tbl, err := h.Create(ctx, id, catalogtest.Schema(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := here.Add(ctx, "lake", "sql", sqlSettings(t)); err != nil { // another database
		t.Fatal(err)
	}
	if _, err := h.Load(ctx, id); !errors.Is(err, catalog.ErrNoTable) {
		t.Errorf("load from the catalog that took the name: %v", err)
	}
	if err := here.Add(ctx, "lake", "sql", first); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Load(ctx, id); err != nil {
		t.Errorf("load from the first again: %v", err)
	}
	entry, err := store.Catalog(ctx, "lake")
	if err != nil || strings.Contains(entry.Config, "postgres") {
		t.Errorf("stored: %s, %v", entry.Config, err)
	}
	list, err := there.List(ctx)
	if err != nil || len(list) != 1 || list[0].Settings["url"] != Hidden && list[0].Settings["url"] != "" || list[0].Settings["warehouse"] != "file:///w/house" {
		t.Errorf("list: %+v, %v", list, err)
	}
	if err := there.Test(ctx, "lake"); err != nil {
		t.Error(err)
	}
	if err := here.Remove(ctx, "lake"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Commit(ctx, tbl, catalog.Commit{Snapshot: true}); !errors.Is(err, catalog.ErrCommitUnknown) || !errors.Is(err, metadata.ErrCatalogNotExist) {
		t.Errorf("commit to a catalog that was removed: %v, want that it is waited for", err)
	}
	if err := here.Remove(ctx, "lake"); !errors.Is(err, metadata.ErrCatalogNotExist) {
		t.Errorf("second remove: %v", err)
	}
}

// What cannot work is refused when it is added, with the reason and without the secret.
func TestAddRefuses(t *testing.T) {
	store := openStore(t)
	for _, c := range []struct {
		name, kind string
		values     map[string]string
		key        Key
		want       string
	}{
		{"a b", "rest", map[string]string{"uri": "http://c"}, nil, "name of catalog"},
		{"a", "ftp", nil, nil, "want one of rest, glue, s3tables, hive, sql"},
		{"a", "rest", nil, nil, "needs uri"},
		{"a", "rest", map[string]string{"uri": "http://c", "tokn": "x"}, nil, `setting "tokn"`},
		{"a", "rest", map[string]string{"uri": "http://c", "token": "hush"}, nil, "no key for secrets"},
		{"a", "rest", map[string]string{"uri": "http://c", "scope": ""}, nil, "is empty"},
		{"a", "rest", map[string]string{"uri": "http://c", "sigv4": "maybe"}, nil, "true or false"},
		{"a", "rest", map[string]string{"uri": "http://c", "timeout": "5"}, nil, "a time such as 30s"},
		{"a", "rest", map[string]string{"uri": "https://c", "ca": "x"}, nil, "certificates in PEM"},
		{"a", "rest", map[string]string{"uri": "http://127.0.0.1:1"}, nil, "was not added"},
		{"a", "rest", map[string]string{"uri": "http://u:hush@c/catalog"}, testKey(t), "shown to everybody"},
		{"a", "glue", map[string]string{"endpoint": "http://hush@c"}, testKey(t), "shown to everybody"},
		{"a", "hive", map[string]string{"uri": "thrift://c:1,thrift://hush@d:1"}, testKey(t), "shown to everybody"},
		{"a", "hive", map[string]string{"uri": "http://c"}, nil, "thrift://HOST:PORT"},
		{"a", "s3tables", map[string]string{"bucket": "lake"}, nil, "arn:aws:s3tables"},
		{"a", "sql", map[string]string{"url": "postgres://u:hush@h:port/d", "warehouse": "file:///w/x"}, testKey(t), "postgres://USER:PASSWORD"},
	} {
		err := open(t, store, c.key).Add(context.WithoutCancel(t.Context()), c.name, c.kind, c.values)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s %s %v: %v, want %q", c.name, c.kind, c.values, err, c.want)
		}
	}
	if list, err := store.Catalogs(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%d catalogs were added, %v", len(list), err)
	}
}

// A key is base64 of 32 bytes.
func TestParseKey(t *testing.T) {
	if key, err := ParseKey("\n"); key != nil || err != nil {
		t.Errorf("no key: %v, %v", key, err)
	}
	for _, text := range []string{"short", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5", "!!"} {
		if _, err := ParseKey(text); err == nil {
			t.Errorf("%q is not refused", text)
		}
	}
	path := filepath.Join(t.TempDir(), "key")
	if _, err := ReadKey(path); err == nil {
		t.Error("a missing file is not refused")
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadKey(path); err == nil {
		t.Error("an empty file is not refused")
	}
}
