package server

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/iceberg-go/table"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	_ "modernc.org/sqlite"

	"github.com/tabletopic/tabletopic/catalog/catalogtest"
	catalogsql "github.com/tabletopic/tabletopic/catalog/sql"
	"github.com/tabletopic/tabletopic/objectstore"
)

type client struct {
	t       testing.TB
	uri     string
	catalog *catalogsql.Catalog
	store   catalogtest.Store
	metrics *prometheus.Registry
	log     *bytes.Buffer // to be read when no request is on its way
}

func newClient(t testing.TB, cfg Config) *client {
	t.Helper()
	return newClientOn(t, cfg, "file:///w/")
}

// newClientOn is newClient with locations that begin with prefix.
func newClientOn(t testing.TB, cfg Config, prefix string) *client {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "metadata.db")+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	store := catalogtest.Store{Prefix: prefix, Bucket: objectstore.NewMemory()}
	c, err := catalogsql.Open(t.Context(), db, store, catalogsql.Config{Warehouse: prefix + "house"})
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	cfg.Metrics = registry
	log := &bytes.Buffer{}
	h := httptest.NewServer(http.StripPrefix("/iceberg", New(c, store, cfg, slog.New(slog.NewTextHandler(log, nil)))))
	t.Cleanup(h.Close)
	return &client{t, h.URL + "/iceberg", c, store, registry, log}
}

// files are the objects of the store, in order.
func (c *client) files() []string {
	c.t.Helper()
	var names []string
	for after := ""; ; {
		page, err := c.store.Bucket.List(c.t.Context(), "", after)
		if err != nil {
			c.t.Fatal(err)
		}
		if len(page) == 0 {
			return names
		}
		for _, o := range page {
			names = append(names, o.Key)
		}
		after = names[len(names)-1]
	}
}

// counts are the values of a counter by a label.
func (c *client) counts(metric, label string) map[string]float64 {
	c.t.Helper()
	families, err := c.metrics.Gather()
	if err != nil {
		c.t.Fatal(err)
	}
	counts := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == metric && l.GetName() == label {
					counts[l.GetValue()] += m.GetCounter().GetValue()
				}
			}
		}
	}
	return counts
}

// call returns the status and the answer, and fails unless errors are as the
// specification has them.
func (c *client) call(method, path, body string, headers ...string) (int, map[string]any) {
	c.t.Helper()
	status, _, answer := c.exchange(method, path, body, headers...)
	return status, answer
}

// exchange is call with the headers: names and values of the request's, and the answer's.
func (c *client) exchange(method, path, body string, headers ...string) (int, http.Header, map[string]any) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.uri+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	var answer map[string]any
	if len(data) > 0 {
		if err := json.Unmarshal(data, &answer); err != nil {
			c.t.Fatalf("%s %s: %s: %q is no JSON", method, path, resp.Status, data)
		}
	}
	if resp.StatusCode >= 400 && method != http.MethodHead {
		e, _ := answer["error"].(map[string]any)
		if e["type"] == "" || e["message"] == "" || e["code"] != float64(resp.StatusCode) {
			c.t.Errorf("%s %s: error body %v", method, path, answer)
		}
	}
	return resp.StatusCode, resp.Header, answer
}

func (c *client) want(status int, kind, method, path, body string, headers ...string) map[string]any {
	c.t.Helper()
	got, answer := c.call(method, path, body, headers...)
	gotKind := ""
	if e, ok := answer["error"].(map[string]any); ok {
		gotKind = e["type"].(string)
	}
	if got != status || gotKind != kind {
		c.t.Errorf("%s %s %.120s: %d %q %v, want %d %q", method, path, body, got, gotKind, answer, status, kind)
	}
	return answer
}

const schema = `{"type":"struct","schema-id":0,"fields":[{"id":0,"name":"id","required":false,"type":"long"},{"id":1,"name":"d","required":false,"type":"date"}]}`

func createBody(name, more string) string {
	return fmt.Sprintf(`{"name":%q,"schema":%s%s}`, name, schema, more)
}

// Each refusal has the status and type that clients branch on.
func TestAnswers(t *testing.T) {
	c := newClient(t, Config{MaxBody: 1 << 20})
	c.want(404, "UnsupportedOperationException", "GET", "/v1/nothing", "")
	c.want(404, "NoSuchNamespaceException", "GET", "/v1/namespaces/web", "")
	c.want(404, "", "HEAD", "/v1/namespaces/web", "")
	c.want(404, "NoSuchNamespaceException", "GET", "/v1/namespaces/web/tables", "")
	c.want(404, "NoSuchNamespaceException", "GET", "/v1/namespaces?parent=web", "")
	c.want(404, "NoSuchNamespaceException", "POST", "/v1/namespaces/web/tables", createBody("t", ""))
	c.want(404, "NoSuchNamespaceException", "DELETE", "/v1/namespaces/web", "")
	c.want(400, "BadRequestException", "POST", "/v1/namespaces", `{"namespace":`)
	c.want(400, "BadRequestException", "POST", "/v1/namespaces", `{"namespace":[]}`)
	c.want(400, "BadRequestException", "POST", "/v1/namespaces", `{"namespace":["a\u0000b"]}`)
	c.want(200, "", "POST", "/v1/namespaces", `{"namespace":["web"],"properties":{"owner":"me"}}`)
	c.want(409, "AlreadyExistsException", "POST", "/v1/namespaces", `{"namespace":["web"]}`)
	c.want(204, "", "HEAD", "/v1/namespaces/web", "")

	c.want(404, "NoSuchTableException", "GET", "/v1/namespaces/web/tables/t", "")
	c.want(404, "", "HEAD", "/v1/namespaces/web/tables/t", "")
	c.want(404, "NoSuchTableException", "DELETE", "/v1/namespaces/web/tables/t", "")
	c.want(404, "NoSuchTableException", "POST", "/v1/namespaces/web/tables/t", `{"requirements":[],"updates":[]}`)
	c.want(200, "", "POST", "/v1/namespaces/web/tables", createBody("t", ""))
	c.want(409, "AlreadyExistsException", "POST", "/v1/namespaces/web/tables", createBody("t", ""))
	c.want(409, "AlreadyExistsException", "POST", "/v1/namespaces/web/tables", createBody("t", `,"stage-create":true`))
	c.want(400, "BadRequestException", "POST", "/v1/namespaces/web/tables", `{"name":"x"}`)
	c.want(400, "BadRequestException", "POST", "/v1/namespaces/web/tables", createBody("", ""))
	c.want(400, "BadRequestException", "POST", "/v1/namespaces/web/tables", createBody("x", `,"properties":{"format-version":"9"}`))
	c.want(204, "", "HEAD", "/v1/namespaces/web/tables/t", "")
	c.want(409, "NamespaceNotEmptyException", "DELETE", "/v1/namespaces/web", "")

	c.want(409, "CommitFailedException", "POST", "/v1/namespaces/web/tables/t",
		`{"requirements":[{"type":"assert-table-uuid","uuid":"00000000-0000-0000-0000-000000000001"}],"updates":[]}`)
	c.want(409, "CommitFailedException", "POST", "/v1/namespaces/web/tables/t", `{"requirements":[{"type":"assert-create"}],"updates":[]}`)
	c.want(400, "BadRequestException", "POST", "/v1/namespaces/web/tables/t", `{"requirements":[{"type":"assert-luck"}],"updates":[]}`)
	c.want(400, "BadRequestException", "POST", "/v1/namespaces/web/tables/t", `{"requirements":[],"updates":[{"action":"set-current-schema","schema-id":77}]}`)
	c.want(400, "BadRequestException", "POST", "/v1/namespaces/web/tables/t", `{"requirements":[],"updates":[{"action":"nonsense"}]}`)
	c.want(413, "BadRequestException", "POST", "/v1/namespaces/web/tables/t", `{"updates":[],"x":"`+strings.Repeat("x", 1<<20)+`"}`)
	// No requirements: nothing to check, the updates are applied to what is there.
	c.want(200, "", "POST", "/v1/namespaces/web/tables/t", `{"requirements":[],"updates":[{"action":"set-properties","updates":{"k":"v"}}]}`)

	c.want(404, "NoSuchTableException", "POST", "/v1/tables/rename", `{"source":{"namespace":["web"],"name":"no"},"destination":{"namespace":["web"],"name":"x"}}`)
	c.want(404, "NoSuchNamespaceException", "POST", "/v1/tables/rename", `{"source":{"namespace":["web"],"name":"t"},"destination":{"namespace":["no"],"name":"x"}}`)
	c.want(200, "", "POST", "/v1/namespaces/web/tables", createBody("u", ""))
	c.want(409, "AlreadyExistsException", "POST", "/v1/tables/rename", `{"source":{"namespace":["web"],"name":"t"},"destination":{"namespace":["web"],"name":"u"}}`)
	c.want(204, "", "POST", "/v1/tables/rename", `{"source":{"namespace":["web"],"name":"t"},"destination":{"namespace":["web"],"name":"x"}}`)
	answer := c.want(200, "", "GET", "/v1/namespaces/web/tables/x", "")
	c.want(204, "", "DELETE", "/v1/namespaces/web/tables/x?purgeRequested=false", "")
	c.want(200, "", "POST", "/v1/namespaces/web/register", fmt.Sprintf(`{"name":"again","metadata-location":%q}`, answer["metadata-location"]))
	c.want(422, "UnprocessableEntityException", "POST", "/v1/namespaces/web/properties", `{"removals":["a"],"updates":{"a":"b"}}`)
	answer = c.want(200, "", "POST", "/v1/namespaces/web/properties", `{"removals":["owner","none"],"updates":{"a":"b"}}`)
	if diff := cmp.Diff(map[string]any{"updated": []any{"a"}, "removed": []any{"owner"}, "missing": []any{"none"}}, answer); diff != "" {
		t.Error(diff)
	}
}

// Namespaces have levels, joined by 0x1F in paths; any other character is part of a name,
// and of a path that cannot climb.
func TestNames(t *testing.T) {
	c := newClient(t, Config{})
	seen := map[string]bool{}
	for _, namespace := range [][]string{{"a"}, {"a", "b"}, {"a.b"}, {"a", "b", "c"}, {".."}, {"é ü"}, {"a/b"}, {"100%"}, {"'; DROP TABLE iceberg_tables; --"}, {"%2E%2E"}} {
		body, _ := json.Marshal(map[string]any{"namespace": namespace})
		c.want(200, "", "POST", "/v1/namespaces", string(body))
		escaped := make([]string, len(namespace))
		for i, level := range namespace {
			escaped[i] = strings.NewReplacer("%", "%25", "/", "%2F", " ", "%20", ";", "%3B", "..", "%2E%2E").Replace(level)
		}
		path := "/v1/namespaces/" + strings.Join(escaped, "%1F")
		answer := c.want(200, "", "GET", path, "")
		if diff := cmp.Diff(namespace, strs(answer["namespace"])); diff != "" {
			t.Error(diff)
		}
		for _, name := range []string{"t", "../../x", "t.u", "%1F"} {
			answer := c.want(200, "", "POST", path+"/tables", createBody(name, ""))
			location, _ := answer["metadata"].(map[string]any)["location"].(string)
			if seen[location] || strings.Contains(location, "..") || !strings.HasPrefix(location, "file:///w/house/") || strings.Count(location, "/") != 6 {
				t.Errorf("%v %s: location %s", namespace, name, location)
			}
			seen[location] = true
		}
		list := c.want(200, "", "GET", path+"/tables", "")
		if n := len(list["identifiers"].([]any)); n != 4 {
			t.Errorf("%v: %d tables, want 4", namespace, n)
		}
	}
	answer := c.want(200, "", "GET", "/v1/namespaces?parent=a", "")
	if diff := cmp.Diff(fmt.Sprint([]any{[]any{"a", "b"}}), fmt.Sprint(answer["namespaces"])); diff != "" {
		t.Error(diff)
	}
	c.want(409, "NamespaceNotEmptyException", "DELETE", "/v1/namespaces/a", "")
}

func strs(v any) []string {
	var out []string
	for _, s := range v.([]any) {
		out = append(out, s.(string))
	}
	return out
}

// A staged table does not exist until its updates are committed with assert-create.
func TestStagedCreate(t *testing.T) {
	c := newClient(t, Config{})
	c.want(200, "", "POST", "/v1/namespaces", `{"namespace":["web"]}`)
	spec := `,"stage-create":true,"partition-spec":{"spec-id":0,"fields":[{"name":"day","transform":"identity","source-id":1}]},"properties":{"format-version":"2","k":"v"}`
	answer := c.want(200, "", "POST", "/v1/namespaces/web/tables", createBody("t", spec))
	c.want(404, "NoSuchTableException", "GET", "/v1/namespaces/web/tables/t", "")
	meta := answer["metadata"].(map[string]any)
	update := func(action, key string, value any) map[string]any {
		return map[string]any{"action": action, key: value}
	}
	body, err := json.Marshal(map[string]any{
		"requirements": []any{map[string]any{"type": "assert-create"}},
		"updates": []any{
			update("assign-uuid", "uuid", meta["table-uuid"]), update("upgrade-format-version", "format-version", 2),
			update("add-schema", "schema", meta["schemas"].([]any)[0]), update("set-current-schema", "schema-id", -1),
			update("add-spec", "spec", meta["partition-specs"].([]any)[0]), update("set-default-spec", "spec-id", -1),
			update("add-sort-order", "sort-order", meta["sort-orders"].([]any)[0]), update("set-default-sort-order", "sort-order-id", -1),
			update("set-location", "location", meta["location"]), update("set-properties", "updates", meta["properties"]),
		}})
	if err != nil {
		t.Fatal(err)
	}
	c.want(200, "", "POST", "/v1/namespaces/web/tables/t", string(body))
	c.want(409, "CommitFailedException", "POST", "/v1/namespaces/web/tables/t", string(body))
	// DuckDB sets the schema last.
	var commit struct {
		Requirements []any `json:"requirements"`
		Updates      []any `json:"updates"`
	}
	if err := json.Unmarshal(body, &commit); err != nil {
		t.Fatal(err)
	}
	last := commit.Updates[3]
	commit.Updates = append(slices.Delete(commit.Updates, 3, 4), last)
	if body, err = json.Marshal(commit); err != nil {
		t.Fatal(err)
	}
	c.want(200, "", "POST", "/v1/namespaces/web/tables/u", strings.ReplaceAll(string(body), "/house/web/t", "/house/web/u"))
	tbl, err := c.catalog.Load(t.Context(), table.Identifier{"web", "t"})
	if err != nil {
		t.Fatal(err)
	}
	if spec := tbl.Spec(); spec.NumFields() != 1 || tbl.Metadata().TableUUID().String() != meta["table-uuid"] || tbl.Properties()["k"] != "v" {
		t.Errorf("table %v %v", spec, tbl.Properties())
	}
}

// The configuration names what there is, and repeats the settings for clients.
func TestConfig(t *testing.T) {
	c := newClient(t, Config{Defaults: map[string]string{"s3.endpoint": "http://store"}})
	answer := c.want(200, "", "GET", "/v1/config?warehouse=any", "")
	want := map[string]any{"warehouse": "file:///w/house", "s3.endpoint": "http://store"}
	if diff := cmp.Diff(want, answer["defaults"]); diff != "" {
		t.Error(diff)
	}
	endpoints := strings.Join(strs(answer["endpoints"]), "\n")
	for _, e := range []string{"POST /v1/{prefix}/namespaces/{namespace}/tables/{table}", "POST /v1/{prefix}/tables/rename"} {
		if !strings.Contains(endpoints, e) {
			t.Errorf("%q is not advertised", e)
		}
	}
}
