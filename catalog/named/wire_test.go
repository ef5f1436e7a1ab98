package named

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/beltran/gohive/hive_metastore"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/catalogtest"
	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/objectstore"
)

// openKind opens a catalog as its settings say.
func openKind(t *testing.T, name string, values map[string]string) external {
	t.Helper()
	k, err := kind(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.check(values); err != nil {
		t.Fatal(err)
	}
	c, err := k.open(t.Context(), catalogtest.Store{Prefix: "file:///w/", Bucket: objectstore.NewMemory()}, &settings{values: values})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Every request to Glue names the account of catalog-id, and the role is asked for with external-id.
func TestGlueIsAskedForTheAccount(t *testing.T) {
	const account, external, role = "210987654321", "agreed words", "arn:aws:iam::210987654321:role/tables"
	p := catalogtest.NewProxy(t, lab.Glue(t))
	var mu sync.Mutex
	asked := map[string]int{} // requests by their target
	p.IsCommit = func(r *http.Request, body []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		target := r.Header.Get("X-Amz-Target")
		asked[target]++
		if target != "" {
			var request struct{ CatalogId string }
			if err := json.Unmarshal(body, &request); err != nil || request.CatalogId != account {
				t.Errorf("%s is for account %q, want %s: %v", target, request.CatalogId, account, err)
			}
			return false
		}
		form, err := url.ParseQuery(string(body))
		if err != nil || form.Get("Action") != "AssumeRole" || form.Get("RoleArn") != role || form.Get("ExternalId") != external {
			t.Errorf("the role is asked for with %v, want %s for %s: %v", form, external, role, err)
		}
		return false
	}
	c := openKind(t, "glue", map[string]string{"warehouse": "file:///w/house", "catalog-id": account, "endpoint": p.URI, "region": lab.Region,
		"access-key-id": lab.AccessKey, "secret-access-key": lab.SecretKey, "role": role, "external-id": external, "sts-endpoint": p.URI})
	ctx := t.Context()
	if err := c.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	tbl, err := c.Create(ctx, table.Identifier{"web", "clicks"}, catalogtest.Schema(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Commit(ctx, tbl, catalog.Commit{Files: []iceberg.DataFile{catalogtest.DataFile(t, tbl, "a")}}); err != nil {
		t.Error(err)
	}
	for _, namespace := range []table.Identifier{nil, {"web"}} {
		if found, err := c.List(ctx, namespace); err != nil || len(found) != 1 {
			t.Errorf("list %v: %v, %v", namespace, found, err)
		}
	}
	if err := c.Drop(ctx, tbl.Identifier()); err != nil {
		t.Error(err)
	}
	for _, method := range []string{"GetDatabases", "GetDatabase", "CreateDatabase", "GetTables", "GetTable", "CreateTable", "UpdateTable", "DeleteTable"} {
		if asked["AWSGlue."+method] == 0 {
			t.Errorf("%s was not asked for, among %v", method, asked)
		}
	}
	if asked[""] != 1 {
		t.Errorf("the role was asked for %d times, want 1", asked[""])
	}
}

// A REST catalog with sigv4 is asked with signatures for sigv4-service in the region, by the key.
func TestRESTIsAskedWithSignatures(t *testing.T) {
	for service, want := range map[string]string{"glue": "glue", "": "execute-api"} {
		came := make(chan string, 1)
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case came <- r.Header.Get("Authorization"):
			default:
			}
			w.WriteHeader(http.StatusForbidden)
		}))
		defer h.Close()
		values := map[string]string{"uri": h.URL, "sigv4": "true", "region": "eu-west-3", "access-key-id": "key", "secret-access-key": "hushhush"}
		if service != "" {
			values["sigv4-service"] = service
		}
		if err := openKind(t, "rest", values).Connect(t.Context()); err == nil {
			t.Fatal("a refusal is no error")
		}
		got := <-came
		if !strings.HasPrefix(got, "AWS4-HMAC-SHA256 Credential=key/") || !strings.Contains(got, "/eu-west-3/"+want+"/aws4_request,") {
			t.Errorf("sigv4-service %q: the catalog was asked with %q", service, got)
		}
	}
}

// databases is a metastore that lists no database.
type databases struct {
	hive_metastore.ThriftHiveMetastore
}

func (databases) GetAllDatabases(context.Context) ([]string, error) { return nil, nil }

// A metastore with a certificate of its own is spoken to with tls and ca, and without either is not.
func TestHiveTLS(t *testing.T) {
	certFile, keyFile := lab.Certificate(t)
	certificate, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}})
	if err != nil {
		t.Fatal(err)
	}
	lab.Metastore(t, l, databases{})
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lab.Metastore(t, plain, databases{})
	pem, err := os.ReadFile(certFile)
	if err != nil {
		t.Fatal(err)
	}
	secure, open := "thrift://"+l.Addr().String(), "thrift://"+plain.Addr().String()
	for _, c := range []struct {
		values map[string]string
		err    string // nothing if it answers
	}{
		{map[string]string{"uri": secure, "tls": "true", "ca": string(pem)}, ""},
		{map[string]string{"uri": secure, "tls": "true"}, "certificate"},
		{map[string]string{"uri": secure}, "metastore "},
		{map[string]string{"uri": open}, ""},
		{map[string]string{"uri": open, "tls": "true", "ca": string(pem), "timeout": "1s"}, "TLS handshake"}, // it waits for more
	} {
		err := openKind(t, "hive", c.values).Connect(t.Context())
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("tls=%q, ca given: %v, to a metastore with TLS: %v: %v, want %q", c.values["tls"], c.values["ca"] != "", c.values["uri"] == secure, err, c.err)
		}
	}
}
