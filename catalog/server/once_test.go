package server

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

// A request that is sent again with its key has one effect, and the answer of the first
// time, although the catalog went on since.
func TestIdempotencyKeys(t *testing.T) {
	c := newClient(t, Config{})
	twice := func(status int, kind, method, path, body string, between func()) map[string]any {
		t.Helper()
		key := uuid.NewString()
		c.want(status, kind, method, path, body, "Idempotency-Key", key)
		if between != nil {
			between()
		}
		return c.want(status, kind, method, path, body, "Idempotency-Key", key)
	}
	if answer := c.want(200, "", "GET", "/v1/config", ""); answer["idempotency-key-lifetime"] != "PT60M" {
		t.Errorf("lifetime of keys %v", answer["idempotency-key-lifetime"])
	}
	twice(200, "", "POST", "/v1/namespaces", `{"namespace":["web"],"properties":{"a":"b"}}`, nil)
	twice(409, "AlreadyExistsException", "POST", "/v1/namespaces", `{"namespace":["web"]}`, nil)
	answer := twice(200, "", "POST", "/v1/namespaces/web/properties", `{"removals":["a"],"updates":{"c":"d"}}`, nil)
	if diff := cmp.Diff(map[string]any{"updated": []any{"c"}, "removed": []any{"a"}, "missing": []any{}}, answer); diff != "" {
		t.Error(diff)
	}
	twice(200, "", "POST", "/v1/namespaces/web/tables", createBody("t", ""), nil)
	twice(200, "", "POST", "/v1/namespaces/web/tables/t", `{"updates":[`+setting("k", "1")+`]}`, func() {
		c.want(200, "", "POST", "/v1/namespaces/web/tables/t", `{"updates":[`+setting("k", "2")+`]}`)
	})
	if got := c.property("t", "k"); got != "2" {
		t.Errorf("the older commit came again: k=%s, want 2", got)
	}
	twice(204, "", "POST", "/v1/transactions/commit", transaction(changeOf("t", "", setting("k", "3"))), nil)
	twice(204, "", "POST", "/v1/tables/rename", `{"source":{"namespace":["web"],"name":"t"},"destination":{"namespace":["web"],"name":"u"}}`, nil)
	twice(204, "", "DELETE", "/v1/namespaces/web/tables/u", "", func() {
		c.want(200, "", "POST", "/v1/namespaces/web/tables", createBody("u", ""))
	})
	c.want(200, "", "GET", "/v1/namespaces/web/tables/u", "") // the new one
	twice(200, "", "POST", "/v1/namespaces/web/views", viewBody("v", "SELECT 1", ""), nil)
	twice(204, "", "DELETE", "/v1/namespaces/web/views/v", "", nil)
	// What was refused stays refused.
	twice(404, "NoSuchTableException", "DELETE", "/v1/namespaces/web/tables/w", "", func() {
		c.want(200, "", "POST", "/v1/namespaces/web/tables", createBody("w", ""))
	})
	c.want(200, "", "GET", "/v1/namespaces/web/tables/w", "")

	key := uuid.NewString()
	c.want(204, "", "DELETE", "/v1/namespaces/web/tables/w", "", "Idempotency-Key", key)
	c.want(400, "BadRequestException", "DELETE", "/v1/namespaces/web/tables/u", "", "Idempotency-Key", key)
	c.want(400, "BadRequestException", "DELETE", "/v1/namespaces/web/tables/u", "", "Idempotency-Key", "mine")
	c.want(200, "", "GET", "/v1/namespaces/web/tables/u", "")
}

// Requests with one key that come at the same time have one effect and one answer.
func TestIdempotencyKeyAtTheSameTime(t *testing.T) {
	c := newClient(t, Config{})
	c.want(200, "", "POST", "/v1/namespaces", `{"namespace":["web"]}`)
	for round := range 10 {
		var mu sync.Mutex
		locations := map[any]int{}
		key := uuid.NewString()
		together(4, func(int) {
			status, answer := c.call(http.MethodPost, "/v1/namespaces/web/tables", createBody(fmt.Sprint("t", round), ""), "Idempotency-Key", key)
			mu.Lock()
			defer mu.Unlock()
			if status != 200 {
				t.Errorf("round %d: status %d %v, want 200", round, status, answer)
			}
			locations[answer["metadata-location"]]++
		})
		if len(locations) != 1 {
			t.Errorf("round %d: answers %v, want one table for all", round, locations)
		}
	}
}
