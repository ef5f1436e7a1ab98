package server

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func viewBody(name, sql, more string) string {
	return fmt.Sprintf(`{"name":%q,"schema":%s,"view-version":{"version-id":1,"timestamp-ms":1,"schema-id":0,"summary":{"engine-name":"test"},
		"default-namespace":["web"],"representations":[{"type":"sql","sql":%q,"dialect":"spark"}]},"properties":{"owner":"me"}%s}`, name, schema, sql, more)
}

// A view is made, replaced, renamed, listed and dropped, beside the tables, which share its names.
func TestViews(t *testing.T) {
	c := newClient(t, Config{})
	c.want(404, "NoSuchNamespaceException", "GET", "/v1/namespaces/web/views", "")
	c.want(404, "NoSuchNamespaceException", "POST", "/v1/namespaces/web/views", viewBody("v", "SELECT 1", ""))
	c.want(200, "", "POST", "/v1/namespaces", `{"namespace":["web"]}`)
	c.want(404, "NoSuchViewException", "GET", "/v1/namespaces/web/views/v", "")
	c.want(404, "NoSuchViewException", "DELETE", "/v1/namespaces/web/views/v", "")
	c.want(404, "NoSuchViewException", "POST", "/v1/namespaces/web/views/v", `{"updates":[]}`)
	c.want(400, "BadRequestException", "POST", "/v1/namespaces/web/views", `{"name":"v","schema":`+schema+`}`)
	c.want(400, "IllegalArgumentException", "POST", "/v1/namespaces/web/views", viewBody("v", " ", ""))
	made := c.want(200, "", "POST", "/v1/namespaces/web/views", viewBody("v", "SELECT 1", ""))
	c.want(409, "AlreadyExistsException", "POST", "/v1/namespaces/web/views", viewBody("v", "SELECT 1", ""))
	c.want(409, "AlreadyExistsException", "POST", "/v1/namespaces/web/tables", createBody("v", ""))
	c.want(200, "", "POST", "/v1/namespaces/web/tables", createBody("t", ""))
	c.want(409, "AlreadyExistsException", "POST", "/v1/namespaces/web/views", viewBody("t", "SELECT 1", ""))
	c.want(404, "NoSuchTableException", "GET", "/v1/namespaces/web/tables/v", "")
	c.want(404, "NoSuchViewException", "GET", "/v1/namespaces/web/views/t", "")
	c.want(404, "NoSuchTableException", "DELETE", "/v1/namespaces/web/tables/v", "")
	c.want(409, "AlreadyExistsException", "POST", "/v1/views/rename", `{"source":{"namespace":["web"],"name":"v"},"destination":{"namespace":["web"],"name":"t"}}`)
	c.want(409, "AlreadyExistsException", "POST", "/v1/tables/rename", `{"source":{"namespace":["web"],"name":"t"},"destination":{"namespace":["web"],"name":"v"}}`)
	c.want(204, "", "HEAD", "/v1/namespaces/web/views/v", "")
	c.want(404, "", "HEAD", "/v1/namespaces/web/tables/v", "")

	uuid := made["metadata"].(map[string]any)["view-uuid"]
	replace := func(uuid any, sql string) string {
		return fmt.Sprintf(`{"requirements":[{"type":"assert-view-uuid","uuid":%q}],"updates":[
			{"action":"add-view-version","view-version":{"version-id":2,"timestamp-ms":2,"schema-id":0,"summary":{},"default-namespace":["web"],
				"representations":[{"type":"sql","sql":%q,"dialect":"spark"}]}},
			{"action":"set-current-view-version","view-version-id":-1},{"action":"set-properties","updates":{"k":"v"}}]}`, uuid, sql)
	}
	c.want(409, "CommitFailedException", "POST", "/v1/namespaces/web/views/v", replace("00000000-0000-0000-0000-000000000001", "SELECT 2"))
	c.want(200, "", "POST", "/v1/namespaces/web/views/v", replace(uuid, "SELECT 2"))
	c.want(204, "", "POST", "/v1/views/rename", `{"source":{"namespace":["web"],"name":"v"},"destination":{"namespace":["web"],"name":"w"}}`)
	answer := c.want(200, "", "GET", "/v1/namespaces/web/views/w", "")
	meta := answer["metadata"].(map[string]any)
	if n := len(meta["versions"].([]any)); n != 2 || meta["current-version-id"] != float64(2) || meta["view-uuid"] != uuid {
		t.Errorf("after the replacement %v", meta)
	}
	list := c.want(200, "", "GET", "/v1/namespaces/web/views", "")
	if diff := cmp.Diff(`[map[name:w namespace:[web]]]`, fmt.Sprint(list["identifiers"])); diff != "" {
		t.Error(diff)
	}
	list = c.want(200, "", "GET", "/v1/namespaces/web/tables", "")
	if diff := cmp.Diff(`[map[name:t namespace:[web]]]`, fmt.Sprint(list["identifiers"])); diff != "" {
		t.Error(diff)
	}
	c.want(204, "", "DELETE", "/v1/namespaces/web/tables/t", "")
	c.want(409, "NamespaceNotEmptyException", "DELETE", "/v1/namespaces/web", "")
	c.want(204, "", "DELETE", "/v1/namespaces/web/views/w", "")
	c.want(200, "", "POST", "/v1/namespaces/web/register-view", fmt.Sprintf(`{"name":"again","metadata-location":%q}`, answer["metadata-location"]))
	c.want(409, "AlreadyExistsException", "POST", "/v1/namespaces/web/register-view", fmt.Sprintf(`{"name":"again","metadata-location":%q}`, answer["metadata-location"]))
	c.want(400, "BadRequestException", "POST", "/v1/namespaces/web/register", fmt.Sprintf(`{"name":"notable","metadata-location":%q}`, answer["metadata-location"]))
}

// Of views replaced at the same time none is lost: each is a version.
func TestViewsReplacedAtTheSameTime(t *testing.T) {
	c := newClient(t, Config{})
	c.want(200, "", "POST", "/v1/namespaces", `{"namespace":["web"]}`)
	c.want(200, "", "POST", "/v1/namespaces/web/views", viewBody("v", "SELECT 0", ""))
	together(8, func(i int) {
		c.want(200, "", http.MethodPost, "/v1/namespaces/web/views/v", fmt.Sprintf(`{"updates":[{"action":"set-properties","updates":{"k%d":"v"}}]}`, i))
	})
	answer := c.want(200, "", "GET", "/v1/namespaces/web/views/v", "")
	if p := answer["metadata"].(map[string]any)["properties"].(map[string]any); len(p) != 9 {
		t.Errorf("properties %v, want owner and eight more", p)
	}
}
