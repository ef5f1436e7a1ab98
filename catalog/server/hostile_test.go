package server

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/apache/iceberg-go/table"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tabletopic/tabletopic/catalog/catalogtest"
	catalogsql "github.com/tabletopic/tabletopic/catalog/sql"
	"github.com/tabletopic/tabletopic/objectstore"
)

// outside are locations that no client may name.
var outside = []string{
	"file:///etc/x", "/etc/x", "file:/etc/x", "file:///w/house/../../etc/x", "file:///w/house/a/../../b", "file:///w/housekeeping/t", "file:///w/house",
	"file:///w/house/", "s3://elsewhere/t", "s3a://elsewhere/t", "http://169.254.169.254/latest", "file:///w/house//t", "file:///w/house/./t", "file:///w/house/..",
	"file:///w/house/a\x1fb", "file:///w/house/a\x00b", "FILE:///w/house/t", "hdfs://n/w/house/t", "file://host/w/house/t", "file:///w/house%2F..%2Fetc",
}

// Nothing that a client names makes the server read or write outside the warehouse.
func TestLocationsStayInTheWarehouse(t *testing.T) {
	c := newClient(t, Config{Locations: []string{"file:///w/more"}})
	c.want(200, "", "POST", "/v1/namespaces", `{"namespace":["web"]}`)
	c.want(200, "", "POST", "/v1/namespaces/web/tables", createBody("t", ""))
	c.want(200, "", "POST", "/v1/namespaces/web/views", viewBody("v", "SELECT 1", ""))
	for _, location := range outside {
		quoted, err := json.Marshal(location)
		if err != nil {
			t.Fatal(err)
		}
		bad := func(path, format string) {
			t.Helper()
			c.want(400, "BadRequestException", "POST", path, fmt.Sprintf(format, quoted))
		}
		update := func(path, format string) {
			t.Helper()
			bad(path, `{"updates":[`+format+`]}`)
			bad("/v1/transactions/commit", transaction(changeOf("t", "", format)))
		}
		bad("/v1/namespaces/web/tables", createBody("evil", `,"location":%s`))
		bad("/v1/namespaces/web/tables", createBody("evil", `,"stage-create":true,"location":%s`))
		bad("/v1/namespaces/web/tables", createBody("evil", `,"properties":{"write.data.path":%s}`))
		bad("/v1/namespaces/web/views", `{"location":%s,`+viewBody("evil", "SELECT 1", "")[1:])
		bad("/v1/namespaces/web/register", `{"name":"evil","metadata-location":%s}`)
		bad("/v1/namespaces/web/register-view", `{"name":"evil","metadata-location":%s}`)
		update("/v1/namespaces/web/tables/t", `{"action":"set-location","location":%s}`)
		update("/v1/namespaces/web/tables/t", `{"action":"set-properties","updates":{"write.metadata.path":%s}}`)
		update("/v1/namespaces/web/tables/t", `{"action":"add-snapshot","snapshot":{"snapshot-id":1,"sequence-number":1,"timestamp-ms":1,"summary":{"operation":"append"},"schema-id":0,"manifest-list":%s}}`)
		bad("/v1/namespaces/web/views/v", `{"updates":[{"action":"set-location","location":%s}]}`)
		bad("/v1/namespaces/web/views/v", `{"updates":[{"action":"set-properties","updates":{"write.metadata.path":%s}}]}`)
		bad("/v1/namespaces", `{"namespace":["evil"],"properties":{"location":%s}}`)
		bad("/v1/namespaces/web/properties", `{"updates":{"location":%s}}`)
	}
	for i, location := range []string{"file:///w/house/elsewhere/ok", "file:/w/house/elsewhere/java", "file:///w/more/ok", "file:///w/house/%2e%2e/as it stands"} {
		c.want(200, "", "POST", "/v1/namespaces/web/tables", createBody(fmt.Sprint("ok", i), fmt.Sprintf(`,"location":%q`, location)))
	}
	for _, file := range c.files() {
		if !strings.HasPrefix(file, "house/") && !strings.HasPrefix(file, "more/") {
			t.Errorf("file %s is outside", file)
		}
	}
}

// A symbolic link in the warehouse leads no one out of it.
func TestLocationsThroughSymbolicLinks(t *testing.T) {
	root := t.TempDir()
	warehouse, secret := filepath.Join(root, "warehouse"), filepath.Join(root, "secret")
	for _, dir := range []string{warehouse, secret} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(secret, filepath.Join(warehouse, "link")); err != nil {
		t.Fatal(err)
	}
	dir, err := objectstore.OpenDir(vfs.Default, root)
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "metadata.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	store := catalogtest.Store{Prefix: "file://" + root + "/", Bucket: dir}
	cat, err := catalogsql.Open(t.Context(), db, store, catalogsql.Config{Warehouse: "file://" + warehouse})
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(New(cat, store, Config{}, slog.New(slog.DiscardHandler)))
	t.Cleanup(h.Close)
	c := &client{t: t, uri: h.URL, catalog: cat, store: store}
	c.want(200, "", "POST", "/v1/namespaces", `{"namespace":["web"]}`)
	for _, name := range []string{"link", "link/t", "link/deeper/t"} {
		c.want(400, "BadRequestException", "POST", "/v1/namespaces/web/tables", createBody("evil", fmt.Sprintf(`,"location":"file://%s/%s"`, warehouse, name)))
	}
	c.want(200, "", "POST", "/v1/namespaces/web/tables", createBody("ok", fmt.Sprintf(`,"location":"file://%s/plain/t"`, warehouse)))
	if list, err := os.ReadDir(secret); err != nil || len(list) > 0 {
		t.Errorf("behind the link: %v, %v", list, err)
	}
}

// A table may not lie on top of another, whether by its own choice or by the metadata file
// that it is registered with: the files of one would be at the mercy of the other.
func TestTablesLieApart(t *testing.T) {
	c := newClient(t, Config{})
	c.want(200, "", "POST", "/v1/namespaces", `{"namespace":["web"]}`)
	c.want(200, "", "POST", "/v1/namespaces/web/tables", createBody("t", ""))
	c.want(200, "", "POST", "/v1/namespaces/web/tables", createBody("u", ""))
	for _, location := range []string{"file:///w/house/web", "file:///w/house/web/t", "file:///w/house/web/t/below", "file:/w/house/web/t", "file:///w/house/web/t/"} {
		c.want(400, "BadRequestException", "POST", "/v1/namespaces/web/tables", createBody("evil", fmt.Sprintf(`,"location":%q`, location)))
		c.want(400, "BadRequestException", "POST", "/v1/namespaces/web/tables/u", fmt.Sprintf(`{"updates":[{"action":"set-location","location":%q}]}`, location))
		c.want(400, "BadRequestException", "POST", "/v1/namespaces/web/views", viewBody("evil", "SELECT 1", fmt.Sprintf(`,"location":%q`, location)))
	}
	answer := c.want(200, "", "GET", "/v1/namespaces/web/tables/t", "")
	c.want(400, "BadRequestException", "POST", "/v1/namespaces/web/register", fmt.Sprintf(`{"name":"evil","metadata-location":%q}`, answer["metadata-location"]))

	// A metadata file that a client wrote, and that names what is not its table's.
	text, err := json.Marshal(answer["metadata"])
	if err != nil {
		t.Fatal(err)
	}
	for i, more := range []string{
		`,"location":"file:///etc/passwd"`, `,"location":"file:///w/house/web/t"`,
		`,"location":"file:///w/house/x","properties":{"write.metadata.path":"file:///etc"}`,
		`,"location":"file:///w/house/x","metadata-log":[{"timestamp-ms":1,"metadata-file":"file:///w/house/web/t/metadata/00000.metadata.json"}]`,
		`,"location":"file:///w/house/x","current-snapshot-id":1,"snapshots":[{"snapshot-id":1,"sequence-number":1,"timestamp-ms":1,"summary":{"operation":"append"},"manifest-list":"file:///etc/passwd"}]`,
	} {
		file := fmt.Sprintf("house/x/metadata/%d.metadata.json", i)
		if err := c.store.Bucket.PutIfAbsent(t.Context(), file, []byte(strings.TrimSuffix(string(text), "}")+more+"}")); err != nil {
			t.Fatal(err)
		}
		c.want(400, "BadRequestException", "POST", "/v1/namespaces/web/register", fmt.Sprintf(`{"name":"evil","metadata-location":"file:///w/%s"}`, file))
	}
	if _, err := c.catalog.Load(t.Context(), table.Identifier{"web", "evil"}); err == nil {
		t.Error("the evil table is there")
	}
}

// zeros is a body of as many bytes as are left.
type zeros struct{ left atomic.Int64 }

func (z *zeros) Read(p []byte) (int, error) {
	n := min(z.left.Load(), int64(len(p)))
	clear(p[:n])
	if z.left.Add(-n); n == 0 {
		return 0, io.EOF
	}
	return int(n), nil
}

// A body of a gigabyte is not read, one that does not tell its length only up to the limit.
func TestLargeBodies(t *testing.T) {
	c := newClient(t, Config{MaxBody: 1 << 20})
	c.want(200, "", "POST", "/v1/namespaces", `{"namespace":["web"]}`)
	for _, length := range []int64{1 << 30, -1} {
		body := &zeros{}
		body.left.Store(1 << 30)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.uri+"/v1/namespaces", body)
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = length
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode != http.StatusRequestEntityTooLarge {
				t.Errorf("length %d: %s", length, resp.Status)
			}
		} // or the connection was closed under the client's hands
		if read := 1<<30 - body.left.Load(); read > 16<<20 {
			t.Errorf("length %d: the server took %d bytes", length, read)
		}
	}
	c.want(200, "", "GET", "/v1/namespaces/web", "")
}

// Many bodies at a time wait for each other.
func TestBodiesAtTheSameTime(t *testing.T) {
	c := newClient(t, Config{MaxBody: 1 << 20, MaxBodies: 1 << 20})
	c.want(200, "", "POST", "/v1/namespaces", `{"namespace":["web"]}`)
	together(16, func(i int) {
		c.want(200, "", "POST", "/v1/namespaces/web/properties", fmt.Sprintf(`{"updates":{"k%d":"%s"}}`, i, strings.Repeat(" ", 1000)))
	})
}

// JSON that is nested without end, and names that are meant to be something else, are refused.
func TestDeepJSON(t *testing.T) {
	c := newClient(t, Config{})
	c.want(200, "", "POST", "/v1/namespaces", `{"namespace":["web"]}`)
	deep := strings.Repeat(`{"type":"struct","fields":[{"id":1,"name":"a","required":false,"type":`, 5000) + `"long"` + strings.Repeat(`}]}`, 5000)
	c.want(400, "BadRequestException", "POST", "/v1/namespaces/web/tables", fmt.Sprintf(`{"name":"t","schema":%s}`, deep))
	c.want(400, "BadRequestException", "POST", "/v1/namespaces/web/tables", strings.Repeat("[", 1<<20))
	c.want(200, "", "POST", "/v1/namespaces/web/properties", `{"updates":{"k":"[[[\"{{{\\"}}`)
	for _, name := range []string{"", "a\x1fb", "\x00", strings.Repeat("n", 300), "a\nb"} {
		quoted, err := json.Marshal(name)
		if err != nil {
			t.Fatal(err)
		}
		c.want(400, "BadRequestException", "POST", "/v1/namespaces", fmt.Sprintf(`{"namespace":["web",%s]}`, quoted))
		c.want(400, "BadRequestException", "POST", "/v1/namespaces/web/tables", fmt.Sprintf(`{"name":%s,"schema":%s}`, quoted, schema))
		c.want(400, "BadRequestException", "POST", "/v1/namespaces/web/views", strings.Replace(viewBody("v", "SELECT 1", ""), `"v"`, string(quoted), 1))
	}
}

// FuzzCommit sends bodies to the endpoints that change tables and views. None is our mistake.
func FuzzCommit(f *testing.F) {
	for _, action := range []string{
		"assign-uuid", "upgrade-format-version", "add-schema", "set-current-schema", "add-spec", "set-default-spec", "add-sort-order", "set-default-sort-order",
		"add-snapshot", "set-snapshot-ref", "remove-snapshots", "remove-snapshot-ref", "set-location", "set-properties", "remove-properties",
		"remove-partition-specs", "remove-schemas", "set-statistics", "remove-statistics", "set-partition-statistics", "remove-partition-statistics",
		"add-encryption-key", "remove-encryption-key", "add-view-version", "set-current-view-version",
	} {
		f.Add(fmt.Sprintf(`{"requirements":[],"updates":[{"action":%q}]}`, action))
	}
	for _, body := range []string{
		`{"updates":[null]}`, `{"updates":[{"action":"add-schema","schema":null}]}`, `{"updates":[{"action":"add-schema","schema":{"type":"struct","fields":[{}]}}]}`,
		`{"updates":[{"action":"add-spec","spec":{"spec-id":0,"fields":[{"source-id":99,"transform":"bucket[0]","name":"x"}]}}]}`,
		`{"updates":[{"action":"add-view-version","view-version":null}]}`, `{"updates":[{"action":"set-statistics","statistics":null}]}`,
		`{"updates":[{"action":"add-snapshot","snapshot":{"snapshot-id":1}}]}`, `{"requirements":[{"type":"assert-ref-snapshot-id","ref":"main","snapshot-id":5}]}`,
		`{"requirements":[{"type":"assert-create"}],"updates":[]}`, `{"updates":{}}`, `[]`, `null`, ``,
	} {
		f.Add(body)
	}
	c := newClient(f, Config{})
	c.want(200, "", "POST", "/v1/namespaces", `{"namespace":["web"]}`)
	c.want(200, "", "POST", "/v1/namespaces/web/tables", createBody("t", ""))
	c.want(200, "", "POST", "/v1/namespaces/web/views", viewBody("v", "SELECT 1", ""))
	f.Fuzz(func(t *testing.T, body string) {
		c.t = t
		for _, path := range []string{"/v1/namespaces/web/tables/t", "/v1/namespaces/web/tables/new", "/v1/namespaces/web/views/v", "/v1/namespaces/web/tables",
			"/v1/namespaces/web/views", "/v1/transactions/commit"} {
			if status, answer := c.call(http.MethodPost, path, body); status >= 500 {
				t.Errorf("%s: %d %v\n%s", path, status, answer, c.log)
			}
		}
		if status, answer := c.call(http.MethodGet, "/v1/namespaces/web/tables/t", ""); status != 200 {
			t.Errorf("the table afterwards: %d %v", status, answer)
		}
		if status, answer := c.call(http.MethodGet, "/v1/namespaces/web/views/v", ""); status != 200 {
			t.Errorf("the view afterwards: %d %v", status, answer)
		}
	})
}
