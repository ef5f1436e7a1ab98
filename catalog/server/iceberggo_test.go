package server

import (
	"testing"

	icebergcatalog "github.com/apache/iceberg-go/catalog"
	icebergtest "github.com/apache/iceberg-go/catalog/catalogtest"
	icebergrest "github.com/apache/iceberg-go/catalog/rest"
)

// iceberg-go's own suite for catalogs finds nothing wrong, through its REST client and with
// authentication on.
func TestIcebergGoConformance(t *testing.T) {
	icebergtest.RunCatalogTests(t, icebergtest.Config{
		SupportsNamespaceProperties: true,
		NewCatalog: func(t *testing.T) icebergcatalog.Catalog {
			clients, _, secret := newClients(t)
			uri, _, _ := engineFixture(t, Config{Clients: clients})
			c, err := icebergrest.NewCatalog(t.Context(), "conformance", uri, icebergrest.WithCredential("spark:"+secret))
			if err != nil {
				t.Fatal(err)
			}
			return c
		},
	})
}
