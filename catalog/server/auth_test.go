package server

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/google/go-cmp/cmp"
)

// newClients makes a file with one client.
func newClients(t *testing.T) (clients *Clients, path, secret string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "clients")
	secret, err := AddClient(path, "spark")
	if err != nil {
		t.Fatal(err)
	}
	if clients, err = OpenClients(path); err != nil {
		t.Fatal(err)
	}
	return clients, path, secret
}

// login asks for a token and returns the status and the answer.
func (c *client) login(form url.Values, headers ...string) (int, map[string]any) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, c.uri+tokenPath, strings.NewReader(form.Encode()))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode, answer
}

func secretForm(id, secret string) url.Values {
	return url.Values{"grant_type": {"client_credentials"}, "client_id": {id}, "client_secret": {secret}, "scope": {"catalog"}}
}

// With clients, every endpoint but that of tokens wants a token of one of them.
func TestEveryEndpointWantsAToken(t *testing.T) {
	clients, _, secret := newClients(t)
	c := newClient(t, Config{Clients: clients, Credentials: OwnCredentials(credentials.NewStaticCredentialsProvider("k", "s", ""))})
	fill := strings.NewReplacer("{namespace}", "n", "{table}", "t")
	server := New(c.catalog, c.store, Config{Clients: clients, Credentials: OwnCredentials(nil)}, nil)
	for _, e := range server.endpoints() {
		if e.path == tokenPath {
			continue
		}
		kind := "NotAuthorizedException"
		if e.method == http.MethodHead {
			kind = ""
		}
		for _, header := range []string{"", "Bearer", "Bearer ", "Bearer x", "Bearer x.y", "Bearer " + secret, "Basic " + base64.StdEncoding.EncodeToString([]byte("spark:"+secret))} {
			c.want(401, kind, e.method, fill.Replace(e.path), "{}", "Authorization", header)
		}
	}
	status, answer := c.login(secretForm("spark", secret))
	if status != 200 || answer["token_type"] != "bearer" || answer["expires_in"] != float64(3600) || answer["scope"] != "catalog" {
		t.Fatalf("login: %d %v", status, answer)
	}
	c.want(200, "", "GET", "/v1/config", "", "Authorization", fmt.Sprint("Bearer ", answer["access_token"]))
	c.want(200, "", "GET", "/v1/config", "", "Authorization", fmt.Sprint("bearer ", answer["access_token"]))
}

// Tokens are for clients that know their secret, end after an hour, can be exchanged for
// fresh ones before, and end with their client.
func TestTokens(t *testing.T) {
	clients, path, secret := newClients(t)
	now := time.Unix(1_800_000_000, 0)
	clients.now = func() time.Time { return now }
	c := newClient(t, Config{Clients: clients})
	good := func(token any) bool {
		status, _ := c.call(http.MethodGet, "/v1/config", "", "Authorization", fmt.Sprint("Bearer ", token))
		return status == 200
	}
	for _, form := range []url.Values{secretForm("spark", ""), secretForm("spark", secret+"0"), secretForm("trino", secret), secretForm("", ""), secretForm("spark", strings.ToUpper(secret))} {
		if status, answer := c.login(form); status != 401 || answer["error"] != "invalid_client" || answer["access_token"] != nil {
			t.Errorf("login %v: %d %v", form, status, answer)
		}
	}
	if status, answer := c.login(url.Values{"grant_type": {"password"}}); status != 400 || answer["error"] != "unsupported_grant_type" {
		t.Errorf("another grant: %d %v", status, answer)
	}
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("spark:"+secret))
	if status, _ := c.login(url.Values{"grant_type": {"client_credentials"}}, "Authorization", basic); status != 200 {
		t.Errorf("basic authentication: %d", status)
	}
	_, answer := c.login(secretForm("spark", secret))
	first := answer["access_token"].(string)
	exchange := url.Values{"grant_type": {"urn:ietf:params:oauth:grant-type:token-exchange"}, "subject_token": {first},
		"subject_token_type": {"urn:ietf:params:oauth:token-type:access_token"}}

	payload, mac, _ := strings.Cut(first, ".")
	other := base64.RawURLEncoding.EncodeToString([]byte(`{"c":"spark","e":4000000000}`))
	for _, forged := range []string{other + "." + mac, payload + ".", payload + "." + mac + "A", other, "." + mac, first + "." + mac} {
		if good(forged) {
			t.Errorf("forged token %s is good", forged)
		}
	}
	now = now.Add(TokenLifetime - time.Second)
	if !good(first) {
		t.Error("the token ends before its hour is over")
	}
	_, answer = c.login(exchange)
	second := answer["access_token"]
	now = now.Add(time.Second)
	if good(first) {
		t.Error("the token is good after its hour")
	}
	if status, _ := c.login(exchange); status != 401 {
		t.Errorf("exchange of a token that is over: %d", status)
	}
	if !good(second) {
		t.Error("the exchanged token is not good")
	}

	// Another client comes, the first goes; nobody restarts the server.
	trino, err := AddClient(path, "trino")
	if err != nil {
		t.Fatal(err)
	}
	if status, _ := c.login(secretForm("trino", trino)); status != 200 {
		t.Errorf("login of the new client: %d", status)
	}
	if _, err := AddClient(path, "trino"); err == nil {
		t.Error("a client was added twice")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(data), "\n")
	if err := replaceFile(path, []byte(lines[0]+lines[2])); err != nil { // without spark
		t.Fatal(err)
	}
	if good(second) {
		t.Error("the token outlives its client")
	}
	// What a client must not find, nor anybody in the log.
	for _, hidden := range []string{secret, trino, first, second.(string)} {
		if strings.Contains(string(data), hidden) {
			t.Errorf("%s is in the file", hidden)
		}
		if strings.Contains(c.log.String(), hidden) {
			t.Errorf("%s is in the log", hidden)
		}
	}
}

// A file of clients that cannot be meant, or that everybody may read, is refused.
func TestClientsFileIsChecked(t *testing.T) {
	_, path, _ := newClients(t)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(data), "\n")
	for _, text := range []string{"", lines[1], lines[0] + lines[0], lines[0] + lines[1] + lines[1], lines[0] + "client a zz\n", lines[0] + "user a\n", "key AAAA\n", lines[0] + "client a/b " + strings.Repeat("0", 64)} {
		if err := replaceFile(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenClients(path); err == nil {
			t.Errorf("accepted: %q", text)
		}
	}
	if err := replaceFile(path, append([]byte("# clients\n\n"), data...)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenClients(path); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenClients(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a file that others can read: %v", err)
	}
	if _, err := AddClient(path, "a b"); err == nil {
		t.Error("a client id with a space")
	}
}

const plainTable = `{"name":"t","schema":` + schema + `}`

// Clients that ask get this server's keys, with the answers that describe a table, and by
// the endpoint of credentials; others get none.
func TestOwnCredentials(t *testing.T) {
	clients, _, secret := newClients(t)
	keys := credentials.NewStaticCredentialsProvider("AKID", "verysecret", "")
	c := newClientOn(t, Config{Clients: clients, Credentials: OwnCredentials(keys)}, "s3://b/")
	_, answer := c.login(secretForm("spark", secret))
	auth := []string{"Authorization", fmt.Sprint("Bearer ", answer["access_token"])}
	asking := append([]string{"X-Iceberg-Access-Delegation", "remote-signing,vended-credentials"}, auth...)
	c.want(200, "", "POST", "/v1/namespaces", `{"namespace":["web"]}`, auth...)
	want := `[map[config:map[s3.access-key-id:AKID s3.secret-access-key:verysecret] prefix:s3://b/house/web/t/]]`
	for _, call := range [][3]string{{"POST", "/v1/namespaces/web/tables", strings.Replace(plainTable, "{", `{"stage-create":true,`, 1)}, {"POST", "/v1/namespaces/web/tables", plainTable}, {"GET", "/v1/namespaces/web/tables/t", ""}} {
		status, header, answer := c.exchange(call[0], call[1], call[2], asking...)
		if diff := cmp.Diff(want, fmt.Sprint(answer["storage-credentials"])); status != 200 || diff != "" {
			t.Errorf("%v: %d %s", call, status, diff)
		}
		if diff := cmp.Diff("map[s3.access-key-id:AKID s3.secret-access-key:verysecret]", fmt.Sprint(answer["config"])); diff != "" {
			t.Error(diff)
		}
		if header.Get("ETag") != "" {
			t.Errorf("%v: an answer with keys has a tag", call)
		}
	}
	answer = c.want(200, "", "GET", "/v1/namespaces/web/tables/t/credentials", "", auth...)
	if diff := cmp.Diff(want, fmt.Sprint(answer["storage-credentials"])); diff != "" {
		t.Error(diff)
	}
	if answer := c.want(200, "", "GET", "/v1/namespaces/web/tables/t", "", auth...); answer["storage-credentials"] != nil || answer["config"] != nil {
		t.Errorf("keys for a client that did not ask: %v", answer)
	}
	if strings.Contains(c.log.String(), "verysecret") {
		t.Error("the key is in the log")
	}
}

// stsServer answers AssumeRole as AWS STS does, and keeps the requests.
type stsServer struct{ requests []url.Values }

func (s *stsServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.requests = append(s.requests, r.PostForm)
	if r.PostForm.Get("RoleArn") == "arn:aws:iam::1:role/gone" {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</Code><Message>no</Message></Error></ErrorResponse>`)
		return
	}
	fmt.Fprintf(w, `<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
		<AccessKeyId>ASIA%d</AccessKeyId><SecretAccessKey>temporary</SecretAccessKey><SessionToken>session</SessionToken>
		<Expiration>%s</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>`, len(s.requests), time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
}

func stsClient(t *testing.T) (*sts.Client, *stsServer) {
	t.Helper()
	s := &stsServer{}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	return sts.New(sts.Options{BaseEndpoint: aws.String(h.URL), Region: "eu-central-1", Credentials: credentials.NewStaticCredentialsProvider("AKID", "verysecret", ""),
		RetryMaxAttempts: 1}), s
}

// Keys of a role are good for one table: the session policy names its location alone.
func TestRoleCredentials(t *testing.T) {
	client, server := stsClient(t)
	keys := RoleCredentials(client, Role{ARN: "arn:aws:iam::1:role/tables", Lifetime: 30 * time.Minute})
	got, err := keys.For(t.Context(), "s3://b/house/web/a*$b/")
	if err != nil {
		t.Fatal(err)
	}
	expires := got["s3.session-token-expires-at-ms"]
	delete(got, "s3.session-token-expires-at-ms")
	if diff := cmp.Diff(map[string]string{"s3.access-key-id": "ASIA1", "s3.secret-access-key": "temporary", "s3.session-token": "session"}, got); diff != "" || len(expires) != 13 {
		t.Errorf("expires %s: %s", expires, diff)
	}
	request := server.requests[0]
	if request.Get("RoleArn") != "arn:aws:iam::1:role/tables" || request.Get("DurationSeconds") != "1800" {
		t.Errorf("request %v", request)
	}
	want := `{"Version":"2012-10-17","Statement":[` +
		`{"Effect":"Allow","Action":["s3:GetObject","s3:PutObject","s3:DeleteObject","s3:AbortMultipartUpload","s3:ListMultipartUploadParts"],"Resource":"arn:aws:s3:::b/house/web/a${*}${$}b/*"},` +
		`{"Effect":"Allow","Action":["s3:ListBucket"],"Resource":"arn:aws:s3:::b","Condition":{"StringLike":{"s3:prefix":"house/web/a${*}${$}b/*"}}},` +
		`{"Effect":"Allow","Action":["s3:GetBucketLocation"],"Resource":"arn:aws:s3:::b"}]}`
	if diff := cmp.Diff(want, request.Get("Policy")); diff != "" {
		t.Error(diff)
	}
	// The same keys again, others for another table, none for what is not on S3.
	if again, err := keys.For(t.Context(), "s3://b/house/web/a*$b/"); err != nil || again["s3.access-key-id"] != "ASIA1" {
		t.Errorf("again %v, %v", again, err)
	}
	if other, err := keys.For(t.Context(), "s3://b/house/web/c"); err != nil || other["s3.access-key-id"] != "ASIA2" {
		t.Errorf("another table %v, %v", other, err)
	}
	if none, err := keys.For(t.Context(), "file:///w/house/t"); err != nil || len(none) > 0 {
		t.Errorf("a local table %v, %v", none, err)
	}
}

// A role that is refused is the server's trouble: the client hears of it without details.
func TestRoleThatIsRefused(t *testing.T) {
	client, _ := stsClient(t)
	c := newClientOn(t, Config{Credentials: RoleCredentials(client, Role{ARN: "arn:aws:iam::1:role/gone"})}, "s3://b/")
	c.want(200, "", "POST", "/v1/namespaces", `{"namespace":["web"]}`)
	c.want(200, "", "POST", "/v1/namespaces/web/tables", plainTable)
	answer := c.want(500, "InternalServerError", "GET", "/v1/namespaces/web/tables/t/credentials", "")
	if text := fmt.Sprint(answer); strings.Contains(text, "arn:") {
		t.Errorf("the client is told the role: %s", text)
	}
	if !strings.Contains(c.log.String(), "AccessDenied") {
		t.Errorf("the log does not say why: %s", c.log)
	}
}
