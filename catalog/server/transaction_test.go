package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/apache/iceberg-go/table"
)

// together runs n calls at the same time.
func together(n int, call func(i int)) {
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		all.Go(func() {
			<-start
			call(i)
		})
	}
	close(start)
	all.Wait()
}

func changeOf(name, requirements, updates string) string {
	return fmt.Sprintf(`{"identifier":{"namespace":["web"],"name":%q},"requirements":[%s],"updates":[%s]}`, name, requirements, updates)
}

func setting(key, value string) string {
	return fmt.Sprintf(`{"action":"set-properties","updates":{%q:%q}}`, key, value)
}

func transaction(changes ...string) string {
	body := `{"table-changes":[`
	for i, c := range changes {
		if i > 0 {
			body += ","
		}
		body += c
	}
	return body + "]}"
}

func (c *client) property(name, key string) string {
	c.t.Helper()
	tbl, err := c.catalog.Load(c.t.Context(), table.Identifier{"web", name})
	if err != nil {
		c.t.Fatal(err)
	}
	return tbl.Properties()[key]
}

// A transaction changes all of its tables or none.
func TestTransaction(t *testing.T) {
	c := newClient(t, Config{})
	c.want(200, "", "POST", "/v1/namespaces", `{"namespace":["web"]}`)
	for _, name := range []string{"a", "b"} {
		c.want(200, "", "POST", "/v1/namespaces/web/tables", createBody(name, ""))
	}
	const path = "/v1/transactions/commit"
	c.want(204, "", "POST", path, transaction(changeOf("a", "", setting("k", "1")), changeOf("b", "", setting("k", "1"))))
	never := `{"type":"assert-current-schema-id","current-schema-id":7}`
	c.want(409, "CommitFailedException", "POST", path, transaction(changeOf("a", "", setting("k", "2")), changeOf("b", never, setting("k", "2"))))
	c.want(404, "NoSuchTableException", "POST", path, transaction(changeOf("a", "", setting("k", "2")), changeOf("no", "", setting("k", "2"))))
	c.want(400, "BadRequestException", "POST", path, transaction(changeOf("a", "", setting("k", "2")), changeOf("b", "", `{"action":"set-current-schema","schema-id":77}`)))
	c.want(400, "BadRequestException", "POST", path, transaction(changeOf("a", "", setting("k", "2")), changeOf("a", "", setting("k", "3"))))
	c.want(400, "BadRequestException", "POST", path, transaction(changeOf("a", "", setting("k", "2")), changeOf("b", "", `{"action":"set-location","location":"file:///etc/b"}`)))
	c.want(400, "BadRequestException", "POST", path, transaction())
	c.want(400, "BadRequestException", "POST", path, transaction(`{"updates":[]}`))
	for _, name := range []string{"a", "b"} {
		if got := c.property(name, "k"); got != "1" {
			t.Errorf("table %s has k=%s after refused transactions, want 1", name, got)
		}
	}

	// A table that is made in it.
	staged := c.want(200, "", "POST", "/v1/namespaces/web/tables", createBody("n", `,"stage-create":true`))
	meta := staged["metadata"].(map[string]any)
	updates, err := json.Marshal([]any{
		map[string]any{"action": "assign-uuid", "uuid": meta["table-uuid"]}, map[string]any{"action": "upgrade-format-version", "format-version": 2},
		map[string]any{"action": "add-schema", "schema": meta["schemas"].([]any)[0]}, map[string]any{"action": "set-current-schema", "schema-id": -1},
		map[string]any{"action": "add-spec", "spec": meta["partition-specs"].([]any)[0]}, map[string]any{"action": "set-default-spec", "spec-id": -1},
		map[string]any{"action": "add-sort-order", "sort-order": meta["sort-orders"].([]any)[0]}, map[string]any{"action": "set-default-sort-order", "sort-order-id": -1},
		map[string]any{"action": "set-location", "location": meta["location"]},
	})
	if err != nil {
		t.Fatal(err)
	}
	create := changeOf("n", `{"type":"assert-create"}`, string(updates[1:len(updates)-1]))
	c.want(409, "CommitFailedException", "POST", path, transaction(create, changeOf("b", never, setting("k", "2"))))
	c.want(404, "NoSuchTableException", "GET", "/v1/namespaces/web/tables/n", "")
	c.want(204, "", "POST", path, transaction(create, changeOf("b", "", setting("k", "2"))))
	c.want(200, "", "GET", "/v1/namespaces/web/tables/n", "")
	if got := c.property("b", "k"); got != "2" {
		t.Errorf("table b has k=%s, want 2", got)
	}
}

// Transactions over the same tables, each on top of what it read: exactly one of a round
// wins, on both tables, and the others are told to look again.
func TestTransactionsAtTheSameTime(t *testing.T) {
	c := newClient(t, Config{})
	c.want(200, "", "POST", "/v1/namespaces", `{"namespace":["web"]}`)
	for _, name := range []string{"a", "b"} {
		c.want(200, "", "POST", "/v1/namespaces/web/tables", createBody(name, ""))
	}
	for round := range 5 {
		// A new column makes the requirement of all others fail.
		last := fmt.Sprintf(`{"type":"assert-last-assigned-field-id","last-assigned-field-id":%d}`, 2+round)
		var mu sync.Mutex
		statuses := map[int]int{}
		together(4, func(i int) {
			fields := ""
			for f := range round + 1 {
				fields += fmt.Sprintf(`,{"id":%d,"name":"f%d","required":false,"type":"long"}`, 3+f, f)
			}
			evolve := fmt.Sprintf(`{"action":"add-schema","schema":{"type":"struct","fields":[{"id":1,"name":"id","required":false,"type":"long"},{"id":2,"name":"d","required":false,"type":"date"}%s]}},
				{"action":"set-current-schema","schema-id":-1},%s`, fields, setting("winner", fmt.Sprint(round, i)))
			status, _ := c.call(http.MethodPost, "/v1/transactions/commit", transaction(changeOf("a", last, evolve), changeOf("b", last, evolve)))
			mu.Lock()
			defer mu.Unlock()
			statuses[status]++
		})
		if statuses[204] != 1 || statuses[409] != 3 {
			t.Fatalf("round %d: statuses %v, want one 204 and three 409", round, statuses)
		}
		if a, b := c.property("a", "winner"), c.property("b", "winner"); a != b {
			t.Fatalf("round %d: table a is of transaction %s, table b of %s", round, a, b)
		}
	}
}
