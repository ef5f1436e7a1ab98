package node

import (
	"strings"
	"testing"
)

// Settings of the REST catalog that cannot work, or that would hand keys to everybody, are refused.
func TestRESTCatalogSettings(t *testing.T) {
	for _, test := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.RESTCredentials = "own" }, "set rest-catalog-clients"},
		{func(c *Config) { c.RESTCredentials, c.RESTClients = "own", "clients" }, "is not on S3"},
		{func(c *Config) { c.RESTCredentials = "all" }, "want none, own or the ARN"},
		{func(c *Config) { c.RESTCacheBytes = -1 }, "rest-catalog-cache-bytes"},
		{func(c *Config) { c.RESTCredentials, c.RESTClients, c.Warehouse = "own", "clients", "s3://b/w" }, ""},
		{func(c *Config) {}, ""},
	} {
		var c Config
		c.Fields()
		c.Data = t.TempDir()
		test.change(&c)
		err := c.complete()
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%+v: %v, want %q", c, err, test.want)
		}
	}
}
