package named

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/catalogtest"
	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/objectstore"
)

// The files of a catalog with an S3 store of its own are there, metadata and data alike, and
// none is in the servers' store, which has a bucket of the same name. The keys are secrets.
func TestCatalogHasAStoreOfItsOwn(t *testing.T) {
	endpoint, id, secret := lab.Versitygw(t, "lake")
	elsewhere, _, _ := lab.Versitygw(t, "lake")
	t.Setenv("AWS_ACCESS_KEY_ID", id)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	servers := objectstore.NewLocator(objectstore.S3Config{Endpoint: elsewhere, PathStyle: true, Region: lab.Region})
	store := openStore(t)
	c := New(store, servers, testKey(t))
	t.Cleanup(func() { c.Close() })
	values := map[string]string{"url": lab.Postgres(t), "warehouse": "s3://lake/house",
		"s3.endpoint": endpoint, "s3.path-style": "true", "s3.access-key-id": id, "s3.secret-access-key": secret}
	if err := c.Add(t.Context(), "minio", "sql", values); err != nil {
		t.Fatal(err)
	}
	h, err := c.Get(t.Context(), "minio")
	if err != nil {
		t.Fatal(err)
	}
	tbl, err := h.Create(t.Context(), table.Identifier{"web", "clicks"}, catalogtest.Schema(), nil)
	if err != nil {
		t.Fatal(err)
	}
	own := objectstore.NewLocator(objectstore.S3Config{Endpoint: endpoint, PathStyle: true, Region: lab.Region})
	has := func(l catalog.Locator, location string) bool {
		t.Helper()
		bucket, key, err := l.Resolve(t.Context(), location)
		if err != nil {
			t.Fatal(err)
		}
		_, err = bucket.Get(t.Context(), key, 0, -1)
		if err != nil && !errors.Is(err, objectstore.ErrNotFound) {
			t.Fatal(err)
		}
		return err == nil
	}
	data := tbl.Location() + "/data/1.parquet"
	bucket, key, err := c.Locator("minio").Resolve(t.Context(), data)
	if err != nil {
		t.Fatal(err)
	}
	if err := bucket.Put(t.Context(), key, []byte("x")); err != nil {
		t.Fatal(err)
	}
	for _, location := range []string{tbl.MetadataLocation(), data} {
		if !has(own, location) || has(servers, location) {
			t.Errorf("%s is in the catalog's store: %t, in the servers': %t", location, has(own, location), has(servers, location))
		}
	}
	entry, err := store.Catalog(t.Context(), "minio")
	if err != nil || strings.Contains(entry.Config, secret) || !strings.Contains(entry.Config, endpoint) {
		t.Errorf("stored: %s, %v", entry.Config, err)
	}

	// A change of the store holds from the next file on.
	values["s3.endpoint"] = elsewhere
	if err := c.Add(t.Context(), "minio", "sql", values); err != nil {
		t.Fatal(err)
	}
	if has(c.Locator("minio"), data) {
		t.Error("the file is found in the store that the catalog has now")
	}
}

// Half a pair of keys is refused.
func TestStorageSettingsGoTogether(t *testing.T) {
	c := open(t, openStore(t), testKey(t))
	for _, wrong := range []map[string]string{{"s3.access-key-id": "a"}, {"s3.secret-access-key": "hush"}, {"s3.session-token": "hush"}} {
		values := map[string]string{"uri": "http://127.0.0.1:1"}
		maps.Copy(values, wrong)
		if err := c.Add(t.Context(), "a", "rest", values); err == nil || !strings.Contains(err.Error(), "go together") || strings.Contains(err.Error(), "hush") {
			t.Errorf("%v: %v", wrong, err)
		}
	}
}
