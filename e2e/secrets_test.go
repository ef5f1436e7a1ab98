package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/objectstore"
)

// A listener keeps all that servers say, by where they said it.
type listener struct {
	mu   sync.Mutex
	said map[string]string // guarded by mu
}

func (l *listener) heard(where, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said[where] += text + "\n"
}

// call asks a server by HTTP, with a JSON body unless it is empty, and keeps the answer.
func (l *listener) call(t *testing.T, s *server, method, path, body string) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.http+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
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
	l.heard(method+" "+path, string(text))
	return resp.StatusCode, string(text)
}

// put adds a catalog.
func (l *listener) put(t *testing.T, s *server, name, kind string, settings map[string]string) (status int, answer string) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"kind": kind, "settings": settings})
	if err != nil {
		t.Fatal(err)
	}
	return l.call(t, s, http.MethodPut, "/api/catalogs/"+name, string(body))
}

// everything asks a server for all that it shows.
func (l *listener) everything(t *testing.T, s *server, topics ...string) {
	t.Helper()
	paths := []string{"/api/catalogs", "/api/tables", "/api/node", "/api/nodes", "/api/partitions", "/api/objects", "/metrics", "/healthz", "/readyz", "/readyz?tables=required", "/subjects"}
	for _, topic := range topics {
		paths = append(paths, "/api/tables/"+topic)
	}
	for _, path := range paths {
		l.call(t, s, http.MethodGet, path, "")
	}
	for _, args := range [][]string{{"catalog", "list"}, {"catalog", "list", "--output", "json"}, {"table", "status"}, {"topic", "list"}} {
		out, _ := s.cli("", args...)
		l.heard(strings.Join(args, " "), out)
	}
	for _, describe := range []func() (kadm.ResourceConfigs, error){
		func() (kadm.ResourceConfigs, error) { return s.admin().DescribeTopicConfigs(t.Context(), topics...) },
		func() (kadm.ResourceConfigs, error) { return s.admin().DescribeBrokerConfigs(t.Context()) },
	} {
		configs, err := describe()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range configs {
			for _, v := range c.Configs {
				l.heard("configuration of "+c.Name, fmt.Sprintf("%s=%s", v.Key, v.MaybeValue()))
			}
		}
	}
}

// kept reads what a server has on its disk: its database, its log, the objects of its store.
func (l *listener) kept(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		l.heard("file "+path, string(data))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// inBucket reads all objects of a bucket: tables, as catalogs and engines find them.
func (l *listener) inBucket(t *testing.T, endpoint, name string) (n int) {
	t.Helper()
	bucket, err := objectstore.NewS3(t.Context(), objectstore.S3Config{Bucket: name, Region: lab.Region, Endpoint: endpoint, PathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(lab.AccessKey, lab.SecretKey, "")})
	if err != nil {
		t.Fatal(err)
	}
	for after := ""; ; {
		page, err := bucket.List(t.Context(), "", after)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			return n
		}
		for _, o := range page {
			after = o.Key
			data, err := bucket.Get(t.Context(), o.Key, 0, -1)
			if err != nil {
				t.Fatal(err)
			}
			l.heard("object "+o.Key, string(data))
			n++
		}
	}
}

// Two servers that log all they can have catalogs with secrets of every kind: one vends keys that it gets
// from STS, to clients with secrets; the other knows catalogs by token, credential, header, password and
// keys, some of which are refused because an address, a setting or a secret is wrong, or turn wrong later,
// and quote what they were asked with. No secret is in a log, in an answer, in a metric, in a database, in
// an object of the log or of a table.
func TestSecretsAreShownNowhere(t *testing.T) {
	t.Parallel()
	l := &listener{said: map[string]string{}}
	s3, _, _ := lab.Versitygw(t, "lake")
	hidden := map[string]string{"key of the store": lab.SecretKey}
	secret := func(what string) string {
		v := "hush-" + strings.ReplaceAll(what, " ", "-") + "-c9f2"
		hidden[what] = v
		return v
	}

	// The one that vends. The store of the lab has no sessions: a proxy in front of it takes that of the
	// vended keys, and signs what comes with it anew.
	session := secret("session of the vended keys")
	var borrowed atomic.Int64
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	s3 = lab.Proxy(t, s3, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Header.Get("X-Amz-Security-Token") == session {
			borrowed.Add(1)
			r.Header.Del("Authorization")
			r.Header.Del("X-Amz-Security-Token")
			keys := aws.Credentials{AccessKeyID: lab.AccessKey, SecretAccessKey: lab.SecretKey}
			if err := signer.SignHTTP(r.Context(), keys, r, r.Header.Get("X-Amz-Content-Sha256"), "s3", lab.Region, time.Now()); err != nil {
				t.Error(err)
			}
		}
		next.ServeHTTP(w, r)
	})
	sts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
			<AccessKeyId>%s</AccessKeyId><SecretAccessKey>%s</SecretAccessKey><SessionToken>%s</SessionToken>
			<Expiration>%s</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>`, lab.AccessKey, lab.SecretKey, session, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	}))
	defer sts.Close()
	clients := filepath.Join(t.TempDir(), "clients")
	addClient := func(name string) (credential string) {
		t.Helper()
		var client struct{ ID, Secret string }
		if err := json.Unmarshal([]byte(run(t, nil, binary, "catalog-client", "add", clients, name, "--output", "json")), &client); err != nil {
			t.Fatal(err)
		}
		hidden["secret of client "+name] = client.Secret
		return client.ID + ":" + client.Secret
	}
	credential := addClient("borrower")
	withPassword := func(what string) string {
		database, err := url.Parse(lab.Postgres(t))
		if err != nil {
			t.Fatal(err)
		}
		database.User = url.UserPassword(database.User.Username(), secret(what))
		return database.String()
	}
	lender := newServer(t, "--log-level", "debug", "--metadata", withPassword("password of the metadata"), "--object-store", "s3://lake/lender?region=us-east-1&path-style=true&endpoint="+s3,
		"--rest-catalog-clients", clients, "--rest-catalog-credentials", "arn:aws:iam::1:role/tables")
	lender.env = append([]string{"AWS_ENDPOINT_URL_STS=" + sts.URL}, s3Credentials...)
	lender.start()
	login := func(id, secret string) (status int, token string) {
		t.Helper()
		resp, err := http.PostForm(lender.catalogURL()+"/v1/oauth/tokens", url.Values{"grant_type": {"client_credentials"}, "client_id": {id}, "client_secret": {secret}})
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var answer struct {
			Token string `json:"access_token"`
		}
		text, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusOK {
			l.heard("refused login", string(text))
		}
		_ = json.Unmarshal(text, &answer)
		return resp.StatusCode, answer.Token
	}
	if status, _ := login("borrower", secret("wrong secret of a client")); status != http.StatusUnauthorized {
		t.Errorf("login with a wrong secret: %d", status)
	}
	id, own, _ := strings.Cut(credential, ":")
	status, token := login(id, own)
	if status != http.StatusOK || token == "" {
		t.Fatalf("login: %d", status)
	}
	hidden["access token"] = token
	for _, bearer := range []string{token, secret("wrong access token")} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, lender.catalogURL()+"/v1/namespaces/none/tables/none", nil)
		req.Header.Set("Authorization", "Bearer "+bearer)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		l.heard("refused load", string(text))
	}

	// The one that has catalogs.
	key := make([]byte, 32)
	copy(key, secret("key for secrets"))
	keyText := base64.StdEncoding.EncodeToString(key)
	hidden["key for secrets, as it is given"] = keyText
	keyFile := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(keyFile, []byte(keyText), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServer(t, "--log-level", "debug", "--secrets-key-file", keyFile, "--catalog-uri", lender.catalogURL(), "--catalog-credential", credential)
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // a gateway that says too much
		_ = r.ParseForm()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		said := fmt.Sprint("you said ", r.Header.Get("Authorization"), r.Header.Get("X-Key"), r.PostForm.Get("client_secret"))
		fmt.Fprintf(w, `{"error": {"message": %q, "type": "ForbiddenException", "code": 403}}`, said)
	}))
	defer echo.Close()
	store := map[string]string{"s3.endpoint": s3, "s3.path-style": "true", "s3.access-key-id": lab.AccessKey, "s3.secret-access-key": lab.SecretKey}
	with := func(settings map[string]string, more ...map[string]string) map[string]string {
		for _, m := range more {
			for k, v := range m {
				settings[k] = v
			}
		}
		return settings
	}
	glue := map[string]string{"endpoint": lab.Glue(t), "region": lab.Region, "warehouse": "s3://lake/glue", "access-key-id": "AKID", "secret-access-key": secret("key of Glue"),
		"session-token": secret("session of Glue")}
	for name, c := range map[string]struct {
		kind     string
		settings map[string]string
	}{
		"borrowed": {"rest", map[string]string{"uri": lender.catalogURL(), "credential": credential, "header.X-Key": secret("header")}},
		"database": {"sql", with(map[string]string{"url": withPassword("password of a database"), "warehouse": "s3://lake/sql"}, store)},
		"glue":     {"glue", with(glue, store)},
	} {
		if status, answer := l.put(t, s, name, c.kind, c.settings); status != http.StatusOK {
			t.Fatalf("catalog %s is refused: %d %s", name, status, answer)
		}
		if status, answer := l.call(t, s, http.MethodPost, "/api/catalogs/"+name+"/test", ""); status != http.StatusOK {
			t.Errorf("catalog %s: %d %s", name, status, answer)
		}
	}
	closed := fmt.Sprintf("127.0.0.1:%d", lab.FreePort(t))
	for i, c := range []struct {
		kind     string
		settings map[string]string
	}{
		{"rest", map[string]string{"uri": lender.catalogURL(), "credential": "borrower:" + secret("wrong credential")}},
		{"rest", map[string]string{"uri": lender.catalogURL(), "token": secret("wrong token")}},
		{"rest", map[string]string{"uri": "http://" + closed, "token": secret("token for nobody")}},
		{"rest", map[string]string{"uri": "http://u:" + secret("password in an address") + "@" + closed}},
		{"rest", map[string]string{"uri": echo.URL, "token": secret("token that is repeated")}},
		{"rest", map[string]string{"uri": echo.URL, "credential": "id:" + secret("credential that is repeated")}},
		{"rest", map[string]string{"uri": echo.URL, "header.X-Key": secret("header that is repeated")}},
		{"rest", map[string]string{"uri": echo.URL, "token": secret("token beside an unknown setting"), "tokn": secret("unknown setting")}},
		{"rest", map[string]string{"uri": echo.URL, "token": secret("one of two"), "credential": "id:" + secret("the other of two")}},
		{"sql", map[string]string{"url": "postgres://u:" + secret("password for nobody") + "@" + closed + "/d", "warehouse": "s3://lake/none"}},
		{"sql", map[string]string{"url": "postgres://u:" + secret("password of no address") + "@h:port/d", "warehouse": "s3://lake/none"}},
		{"sql", map[string]string{"url": secret("no address at all"), "warehouse": "s3://lake/none"}},
		{"glue", map[string]string{"endpoint": "http://" + closed, "region": lab.Region, "access-key-id": "AKID", "secret-access-key": secret("key for nobody"), "timeout": "2s"}},
		{"glue", map[string]string{"region": lab.Region, "secret-access-key": secret("key without its id")}},
		{"s3tables", map[string]string{"bucket": "lake", "access-key-id": "AKID", "secret-access-key": secret("key of no table bucket")}},
		{"rest", with(map[string]string{"uri": lender.catalogURL(), "credential": credential}, map[string]string{"s3.secret-access-key": secret("half a pair")})},
		{"ftp", map[string]string{"token": secret("token of no kind")}},
	} {
		if status, answer := l.put(t, s, fmt.Sprint("refused-", i), c.kind, c.settings); status < 400 {
			t.Errorf("%s %v is not refused: %d %s", c.kind, c.settings, status, answer)
		}
	}
	for _, body := range []string{
		`{"kind": "rest", "settings": {"uri": "http://c", "token": "` + secret("cut off body"),
		`{"kind": "rest", "settings": {"uri": "http://c", "token": ["` + secret("list") + `"]}}`,
		`{"kind": "rest", "secrets": {"token": "` + secret("unknown part") + `"}}`,
		`"` + secret("no object") + `"`,
	} {
		if status, _ := l.call(t, s, http.MethodPut, "/api/catalogs/refused", body); status != http.StatusBadRequest {
			t.Errorf("%s: %d", body, status)
		}
	}
	args := []string{"catalog", "add", "cli", "rest", "--set", "uri=" + lender.catalogURL(), "--set", "credential=borrower:" + secret("wrong credential of a command")}
	if out, code := s.cli("", args...); code != 1 {
		t.Errorf("catalog add with a wrong credential: exit %d", code)
	} else {
		l.heard("catalog add", out)
	}

	// Tables in each of them; and one whose catalog does not take the secret any more.
	topics := []string{"default", "borrowed", "database", "glue"}
	for _, topic := range topics {
		config := []string{"table.topic.namespace", topic + "_ns"}
		if topic != "default" {
			config = append(config, "table.topic.catalog", topic)
		}
		s.createTopic(topic, 1, 300*time.Millisecond, config...)
		header := registerSchema(t, s, topic+"-value", eventSchema)
		produceAll(t, s, topic, encoded(t, header, eventSchema, event{1, "x"}))
		waitForTable(t, s, topic, 1, 3*time.Minute)
	}
	l.everything(t, s, topics...)
	text, err := os.ReadFile(clients)
	if err != nil {
		t.Fatal(err)
	}
	l.heard("file of clients", string(text))
	if err := os.WriteFile(clients, []byte(strings.ReplaceAll(string(text), "client borrower ", "client gone ")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, topic := range topics[:2] {
		header := registerSchema(t, s, topic+"-value", eventSchema)
		produceAll(t, s, topic, encoded(t, header, eventSchema, event{2, "x"}))
		stateOf(t, s, topic, "degraded", 3*time.Minute)
	}
	if status, answer := l.call(t, s, http.MethodPost, "/api/catalogs/borrowed/test", ""); status < 400 {
		t.Errorf("a catalog that does not know the client any more: %d %s", status, answer)
	}
	l.everything(t, s, topics...)
	l.everything(t, lender)

	for name, server := range map[string]*server{"lender": lender, "borrower": s} {
		server.stop()
		l.heard("log of the "+name, server.log.String())
		l.kept(t, server.data)
	}
	if n := l.inBucket(t, s3, "lake"); n == 0 || borrowed.Load() == 0 {
		t.Errorf("%d objects in the bucket, %d requests with vended keys", n, borrowed.Load())
	}
	// What is no secret is found where it is said.
	for where, said := range map[string]string{"GET /api/catalogs": lender.catalogURL(), "catalog list": "(secret)", "PUT /api/catalogs/refused-4": "you said",
		"GET /api/tables/borrowed": `"degraded"`, "GET /metrics": "tabletopic_", "log of the borrower": "msg=committed", "configuration of borrowed": "table.topic.catalog=borrowed"} {
		if !strings.Contains(l.said[where], said) {
			t.Errorf("%s does not say %s: %.300s", where, said, l.said[where])
		}
	}
	for what, v := range hidden {
		for where, said := range l.said {
			for _, form := range []string{v, url.QueryEscape(v), base64.StdEncoding.EncodeToString([]byte(v))} {
				if i := strings.Index(said, form); i >= 0 {
					t.Errorf("%s is shown by %s: …%s…", what, where, said[max(0, i-200):min(len(said), i+len(form)+100)])
				}
			}
		}
	}
	t.Logf("%d secrets, %d places", len(hidden), len(l.said))
}
