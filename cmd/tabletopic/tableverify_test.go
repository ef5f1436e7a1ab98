package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/node"
)

// A verification says that the table holds every record, and ends with 0, only if it has seen
// every partition and no difference.
func TestVerifySaysNoMoreThanItSaw(t *testing.T) {
	for _, c := range []struct {
		report coordinator.Report
		exit   int
		says   string
	}{
		{coordinator.Report{OK: true}, 0, "holds every record of orders once"},
		{coordinator.Report{OK: true, Unverified: []int32{3}, UnverifiedReasons: map[int32]string{3: "node 2 is away"}}, 1, "partition 3: not verified: node 2 is away"},
		{coordinator.Report{Unverified: []int32{3}, UnverifiedReasons: map[int32]string{3: "node 2 is away"}}, 1, "partition 3: not verified: node 2 is away"},
		{coordinator.Report{Missing: []string{"a.parquet"}}, 1, "missing: a.parquet"},
	} {
		c.report.Topic, c.report.Table = "orders", "default.orders"
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost || r.URL.Path != "/api/tables/orders/verify" {
				t.Errorf("%s %s", r.Method, r.URL.Path)
			}
			lines := json.NewEncoder(w)
			for _, line := range []node.VerifyStatus{{Progress: coordinator.Progress{Total: 5}}, {Report: &c.report}} {
				if err := lines.Encode(line); err != nil {
					t.Error(err)
				}
			}
		}))
		var out strings.Builder
		root := newRoot()
		root.SetOut(&out)
		root.SetArgs([]string{"table", "verify", "orders", "--http", strings.TrimPrefix(h.URL, "http://")})
		exit := 0
		if root.ExecuteContext(t.Context()) != nil {
			exit = 1
		}
		h.Close()
		if exit != c.exit || !strings.Contains(out.String(), c.says) || strings.Contains(out.String(), "holds every record") != (c.exit == 0) {
			t.Errorf("%+v: exit %d with %q, want %d with %q", c.report, exit, out.String(), c.exit, c.says)
		}
	}
}
