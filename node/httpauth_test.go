package node

import (
	"crypto/tls"
	"crypto/x509/pkix"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/metadata"
	"github.com/tabletopic/tabletopic/schemaregistry"
	"github.com/tabletopic/tabletopic/security"
)

// openNode runs a node on a directory of its own until the test ends.
func openNode(t *testing.T, change func(*Config)) *Node {
	t.Helper()
	var cfg Config
	cfg.Fields()
	cfg.Data, cfg.Kafka, cfg.HTTP = t.TempDir(), "127.0.0.1:0", "127.0.0.1:0"
	change(&cfg)
	n, err := Open(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// PyIceberg, which says Bearer None if it was given no token, is nobody: served where nothing is asked
// for, and refused elsewhere. A token that is none is refused everywhere.
func TestBearerNoneIsNobody(t *testing.T) {
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		protocol, users, token string
		want                   int
	}{{"", "", "None", 200}, {"", "", "none.such.token", 401}, {"SASL_PLAINTEXT", "admin:" + password, "None", 401}} {
		n := openNode(t, func(cfg *Config) {
			if c.protocol != "" {
				cfg.KafkaProtocol, cfg.Users, cfg.SuperUsers = c.protocol, c.users, "User:admin"
			}
		})
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+n.HTTPAddr()+"/iceberg/v1/namespaces", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+c.token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%s with token %s: %d, want %d", c.protocol, c.token, resp.StatusCode, c.want)
		}
	}
}

// With mutual TLS a certificate names its client to the registry too, by the same rules as to the broker; who has none, or one
// that nobody signed, does not get in.
func TestCertificatesNameClientsOfTheRegistry(t *testing.T) {
	a := lab.NewAuthority(t)
	a.Sign("server", pkix.Name{CommonName: "server"})
	a.Sign("admin", pkix.Name{CommonName: "admin", Organization: []string{"Oak"}})
	a.Sign("bob", pkix.Name{CommonName: "Bob", Organization: []string{"Oak"}})
	stranger := lab.NewAuthority(t)
	stranger.Sign("admin", pkix.Name{CommonName: "admin", Organization: []string{"Oak"}})
	n := openNode(t, func(c *Config) {
		c.KafkaProtocol, c.HTTPTLS, c.TLSClientAuth, c.SuperUsers = "SSL", true, "required", "User:admin"
		c.TLSCert, c.TLSKey, c.TLSClientCA = a.Path("server.pem"), a.Path("server.key"), a.Path("ca.pem")
		c.TLSPrincipals = "RULE:^CN=([^,]+),.*$/$1/L"
	})
	ask := func(cfg *tls.Config, method, path, body string) (int, error) {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}}
		req, err := http.NewRequestWithContext(t.Context(), method, "https://"+n.HTTPAddr()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		resp.Body.Close()
		return resp.StatusCode, nil
	}
	const path, schema = "/subjects/clicks-value/versions", `{"schema":"\"string\""}`
	for _, c := range []struct {
		who    string
		method string
		want   int
	}{{"bob", "POST", 403}, {"admin", "POST", 200}, {"bob", "GET", 403}, {"admin", "GET", 200}} {
		if got, err := ask(a.Client(c.who), c.method, path, schema); err != nil || got != c.want {
			t.Errorf("%s %s: %d %v, want %d", c.who, c.method, got, err, c.want)
		}
	}
	forged := a.Client("")
	forged.Certificates = stranger.Client("admin").Certificates
	for what, cfg := range map[string]*tls.Config{"none": a.Client(""), "one that nobody signed": forged} {
		if got, err := ask(cfg, "GET", path, ""); err == nil {
			t.Errorf("with %s: %d", what, got)
		}
	}
}

// On a port that asks who it is, what is nobody's is refused, whoever has no right is refused,
// and an ACL gives just what it says.
func TestHTTPAsksWhoItIs(t *testing.T) {
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := openNode(t, func(c *Config) {
		c.KafkaProtocol, c.Users, c.SuperUsers = "SASL_PLAINTEXT", "admin:"+password+",alice:"+password, "User:admin"
	})
	ask := func(method, path, user, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+n.HTTPAddr()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if user != "" {
			req.SetBasicAuth(user, "secret")
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, strings.TrimSpace(string(text))
	}
	do := func(method, path, user, body string) int {
		t.Helper()
		status, _ := ask(method, path, user, body)
		return status
	}
	schema := `{"schema":"\"string\""}`
	calls := []struct {
		method, path, body string
		admin, alice       int
	}{
		{"GET", "/metrics", "", 200, 403},
		{"GET", "/api/nodes", "", 200, 403},
		{"GET", "/api/schemas", "", 200, 403},
		{"POST", "/api/peer/sync", "", 200, 403},
		{"GET", "/api/tables/clicks", "", 404, 403},
		{"DELETE", "/api/catalogs/none", "", 404, 403},
		{"POST", "/subjects/clicks-value/versions", schema, 200, 403},
		{"GET", "/subjects/clicks-value/versions", "", 200, 403},
		{"GET", "/subjects/%2e%2e%2fother/versions", "", 404, 403},
		{"GET", "/schemas/ids/1", "", 200, 403},
		{"GET", "/schemas/types", "", 200, 200},
		{"PUT", "/config", `{"compatibility":"FULL"}`, 200, 403},
		{"GET", "/iceberg/v1/config", "", 200, 200},
		{"GET", "/iceberg/v1/namespaces", "", 200, 403},
		{"POST", "/iceberg/v1/namespaces", `{"namespace":["sales"]}`, 200, 403},
		{"GET", "/iceberg/v1/namespaces/sales/tables", "", 200, 403},
		{"GET", "/iceberg/v1/namespaces/sales/tables/none", "", 404, 403},
		{"GET", "/healthz", "", 200, 200},
	}
	for _, c := range calls {
		if got := do(c.method, c.path, "", c.body); got != 401 && c.path != "/healthz" {
			t.Errorf("%s %s as nobody: %d", c.method, c.path, got)
		}
		if got := do(c.method, c.path, "alice", c.body); got != c.alice {
			t.Errorf("%s %s as alice: %d, want %d", c.method, c.path, got, c.alice)
		}
		if got := do(c.method, c.path, "admin", c.body); got != c.admin {
			t.Errorf("%s %s as admin: %d, want %d", c.method, c.path, got, c.admin)
		}
	}
	allow := func(typ kmsg.ACLResourceType, name string, pattern kmsg.ACLResourcePatternType, op kmsg.ACLOperation) metadata.ACL {
		return metadata.ACL{ResourceType: int8(typ), ResourceName: name, PatternType: int8(pattern), Principal: "User:alice", Host: "*", Operation: int8(op), Permission: int8(kmsg.ACLPermissionTypeAllow)}
	}
	err := n.access.CreateACLs(t.Context(), []metadata.ACL{
		allow(security.ResourceSubject, "clicks-", kmsg.ACLResourcePatternTypePrefixed, kmsg.ACLOperationRead),
		allow(security.ResourceTable, "sales", kmsg.ACLResourcePatternTypePrefixed, kmsg.ACLOperationRead),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{"GET", "/subjects/clicks-value/versions", 200},
		{"GET", "/schemas/ids/1", 200},
		{"GET", "/subjects/orders-value/versions", 403},
		{"DELETE", "/subjects/clicks-value", 403},
		{"GET", "/iceberg/v1/namespaces/sales/tables", 200},
		{"GET", "/iceberg/v1/namespaces/sales/tables/none", 404},
		{"DELETE", "/iceberg/v1/namespaces/sales/tables/none", 403},
		{"POST", "/iceberg/v1/transactions/commit", 403},
	} {
		if got := do(c.method, c.path, "alice", ""); got != c.want {
			t.Errorf("%s %s as alice, who may read: %d, want %d", c.method, c.path, got, c.want)
		}
	}
	// Of subjects, only those that alice may read are in lists, and no other name opens another.
	for _, c := range [][3]string{
		{"POST", "/subjects/orders-value/versions", schema},
		{"PUT", "/config/clicks-alias", `{"alias":"orders-value"}`},
		{"PUT", "/config/clicks-good", `{"alias":"clicks-value"}`},
	} {
		if status, text := ask(c[0], c[1], "admin", c[2]); status != 200 {
			t.Fatalf("%s %s: %d %s", c[0], c[1], status, text)
		}
	}
	err = n.access.CreateACLs(t.Context(), []metadata.ACL{
		allow(security.ResourceSubject, ":.:", kmsg.ACLResourcePatternTypePrefixed, kmsg.ACLOperationRead),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path, user string
		status     int
		text       string
	}{
		{"/subjects", "admin", 200, `["clicks-value","orders-value"]`},
		{"/subjects", "alice", 200, `["clicks-value"]`},
		{"/schemas/ids/1/subjects", "admin", 200, `["clicks-value","orders-value"]`},
		{"/schemas/ids/1/subjects", "alice", 200, `["clicks-value"]`},
		{"/schemas/ids/1/versions", "alice", 200, `[{"subject":"clicks-value","version":1}]`},
		{"/schemas?subjectPrefix=orders", "alice", 200, `[]`},
		{"/subjects/clicks-good/versions", "alice", 200, `[1]`},
		{"/subjects/clicks-alias/versions", "admin", 200, `[1]`},
		{"/subjects/clicks-alias/versions", "alice", 403, ""},
		{"/subjects/:.:orders-value/versions", "alice", 403, ""},
		{"/subjects/:.:clicks-value/versions", "alice", 200, `[1]`},
	} {
		if status, text := ask("GET", c.path, c.user, ""); status != c.status || c.text != "" && text != c.text {
			t.Errorf("GET %s as %s: %d %s, want %d %s", c.path, c.user, status, text, c.status, c.text)
		}
	}
	if err := n.access.CreateACLs(t.Context(), []metadata.ACL{allow(security.ResourceSubject, "clicks-value", kmsg.ACLResourcePatternTypeLiteral, kmsg.ACLOperationWrite)}); err != nil {
		t.Fatal(err)
	}
	for artifact, want := range map[string]int{"clicks-value": 200, "orders-value": 403, "clicks-alias": 403, "": 403} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+n.HTTPAddr()+"/apis/registry/v2/groups/default/artifacts", strings.NewReader(`"string"`))
		if err != nil {
			t.Fatal(err)
		}
		req.SetBasicAuth("alice", "secret")
		req.Header.Set("X-Registry-ArtifactId", artifact)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("alice registers the artifact %q: %s, want %d", artifact, resp.Status, want)
		}
	}
	// A token for a password, as engines ask for it.
	resp, err := http.PostForm("http://"+n.HTTPAddr()+"/iceberg/v1/oauth/tokens", map[string][]string{
		"grant_type": {"client_credentials"}, "client_id": {"alice"}, "client_secret": {"secret"}})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 || !strings.Contains(string(text), `"access_token":"tt1.`) {
		t.Fatalf("token: %s %s, %v", resp.Status, text, err)
	}
}

// No call of the schema registry is forgotten: each needs a right of its own, or none on purpose.
func TestEveryRegistryCallNeedsARight(t *testing.T) {
	open := map[string]bool{"GET /": true, "GET /v1/metadata/id": true, "GET /v1/metadata/version": true, "GET /contexts": true, "GET /schemas/types": true}
	for _, pattern := range schemaregistry.New(nil, nil, schemaregistry.Config{}, slog.New(slog.DiscardHandler)).Patterns() {
		method, path, _ := strings.Cut(pattern, " ")
		path = strings.NewReplacer("{$}", "", "{subject}", "s", "{version}", "1", "{id}", "1", "{guid}", "g", "{group}", "default", "{kind}", "globalIds").Replace(path)
		need := needOf(httptest.NewRequest(method, path, nil))
		switch global := strings.HasPrefix(path, "/config") || strings.HasPrefix(path, "/mode"); {
		case strings.HasPrefix(path, "/api/"): // all schemas at once
			if need != onCluster(kmsg.ACLOperationAlter) {
				t.Errorf("%s needs %s", pattern, describe(need))
			}
		case open[method+" "+path] != (need == right{}):
			t.Errorf("%s needs %s", pattern, describe(need))
		case need.typ == kmsg.ACLResourceTypeCluster && need.op == kmsg.ACLOperationAlter:
			t.Errorf("%s is not known: say in registryRight what it needs", pattern)
		case need.typ == kmsg.ACLResourceTypeCluster && !global:
			t.Errorf("%s needs %s", pattern, describe(need))
		}
	}
}
