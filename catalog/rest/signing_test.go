package rest

import (
	"strings"
	"testing"

	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog/catalogtest"
	"github.com/tabletopic/tabletopic/objectstore"
)

// A table for whose files the catalog would sign each request is refused, with what to do; one
// that comes with keys as well, or whose files are reached with our own, is not.
func TestRemoteSigningIsRefused(t *testing.T) {
	memory := objectstore.NewMemory()
	p := newProxy(t, ownServer(t, catalogtest.Store{Prefix: "s3://w/", Bucket: memory}))
	locator := objectstore.NewLocator(objectstore.S3Config{Endpoint: "http://127.0.0.1:1", Region: "us-east-1"})
	keys := ""
	p.Modify = func(body []byte) []byte {
		if !strings.Contains(string(body), `"metadata-location"`) {
			return body
		}
		return []byte(`{"config":{"s3.remote-signing-enabled":"true"` + keys + `},` + strings.TrimPrefix(strings.Replace(string(body), `"config":{},`, "", 1), "{"))
	}
	c, err := Open(locator, Config{URI: p.URI})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	id := table.Identifier{"web", "clicks"}
	if _, err := c.Create(t.Context(), id, catalogtest.Schema(), nil); err == nil || !strings.Contains(err.Error(), "vend credentials") {
		t.Errorf("create: %v", err)
	}
	if _, err := c.Load(t.Context(), id); err == nil || !strings.Contains(err.Error(), "s3.access-key-id") {
		t.Errorf("load: %v", err)
	}
	own, err := Open(locator, Config{URI: p.URI, OwnCredentials: true})
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if _, err := own.Load(t.Context(), id); err != nil {
		t.Errorf("load with our own keys: %v", err)
	}
	keys = `,"s3.access-key-id":"k","s3.secret-access-key":"s","client.region":"us-east-1"`
	if _, err := c.Load(t.Context(), id); err != nil {
		t.Errorf("load with vended keys: %v", err)
	}
}
