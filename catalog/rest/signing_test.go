package rest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/iceberg-go/table"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/tabletopic/tabletopic/catalog/awsconfig"
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

// signed reports whether a request has the signature that key gives it as it came, body included.
func signed(r *http.Request, body []byte, key aws.Credentials, service, region string) bool {
	_, names, _ := strings.Cut(r.Header.Get("Authorization"), "SignedHeaders=")
	names, _, _ = strings.Cut(names, ",")
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil {
		return false
	}
	again := r.Clone(context.Background())
	again.Header = http.Header{}
	for name, values := range r.Header {
		if slices.Contains(strings.Split(names, ";"), strings.ToLower(name)) {
			again.Header[name] = values
		}
	}
	sum := sha256.Sum256(body)
	if err := v4.NewSigner().SignHTTP(r.Context(), key, again, hex.EncodeToString(sum[:]), service, region, at); err != nil {
		return false
	}
	return again.Header.Get("Authorization") == r.Header.Get("Authorization")
}

// Every request to a catalog that wants signatures of AWS is signed, with its body, for the service
// and region that are configured, whatever it is for.
func TestRequestsAreSigned(t *testing.T) {
	for _, c := range []struct{ service, wantService, session string }{{"glue", "glue", ""}, {"", "execute-api", "a session"}} {
		store := catalogtest.Store{Prefix: "file:///w/", Bucket: objectstore.NewMemory()}
		next, path := forward(t, ownServer(t, store))
		key := aws.Credentials{AccessKeyID: "key", SecretAccessKey: "hushhush", SessionToken: c.session}
		var commits atomic.Int32
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if !signed(r, body, key, c.wantService, "eu-west-3") {
				t.Errorf("%s %s came with %q, want a signature of %s in eu-west-3", r.Method, r.URL.Path, r.Header.Get("Authorization"), c.wantService)
			}
			if r.Method == http.MethodPost && commitPath.MatchString(r.URL.Path) {
				commits.Add(1)
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			next.ServeHTTP(w, r)
		}))
		defer h.Close()
		cat, err := Open(store, Config{URI: h.URL + path, SigV4: &SigV4{Service: c.service,
			AWS: awsconfig.Config{Region: "eu-west-3", AccessKeyID: key.AccessKeyID, SecretAccessKey: key.SecretAccessKey, SessionToken: key.SessionToken}}})
		if err != nil {
			t.Fatal(err)
		}
		defer cat.Close()
		tbl := create(t, cat)
		if _, err := cat.Commit(t.Context(), tbl, appendFile(t, tbl, "a")); err != nil || commits.Load() != 1 {
			t.Errorf("commit: %v, in %d requests", err, commits.Load())
		}
		if found, err := cat.List(t.Context(), nil); err != nil || len(found) != 1 {
			t.Errorf("list: %v, %v", found, err)
		}
		if err := cat.Drop(t.Context(), tbl.Identifier()); err != nil {
			t.Errorf("drop: %v", err)
		}
	}
}
