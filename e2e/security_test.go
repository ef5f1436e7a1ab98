package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// secretFile writes a password for --users or --password-file.
func secretFile(t testing.TB, password string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(path, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A server that authenticates its clients asks all of them on both ports, and its own commands
// log in with a user.
func TestServerAsksWhoItIs(t *testing.T) {
	t.Parallel()
	admin := secretFile(t, "correct horse")
	s := startServer(t, "--kafka-protocol", "SASL_PLAINTEXT", "--users", "admin:"+admin, "--super-users", "User:admin")
	login := []string{"--user", "admin", "--password-file", admin}

	if out, code := s.cli("", append([]string{"topic", "create", "clicks"}, login...)...); code != 0 {
		t.Fatalf("create as admin: %s", out)
	}
	if out, code := s.cli("", append([]string{"node", "list"}, login...)...); code != 0 || !strings.Contains(out, s.http) {
		t.Fatalf("list nodes as admin: exit %d: %s", code, out)
	}
	if out, code := s.cli("", "node", "list"); code == 0 || !strings.Contains(out, "say who you are") {
		t.Fatalf("list nodes as nobody: exit %d: %s", code, out)
	}
	for path, want := range map[string]int{"/healthz": 200, "/metrics": 401, "/subjects": 401, "/api/nodes": 401, "/iceberg/v1/config": 401, "/api/peer/sync": 401} {
		resp, err := http.Get("http://" + s.http + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s as nobody: %s, want %d", path, resp.Status, want)
		}
	}
	cl := s.client(kgo.SASL(scram.Auth{User: "admin", Pass: "correct horse"}.AsSha256Mechanism()))
	if err := cl.ProduceSync(context.Background(), &kgo.Record{Topic: "clicks", Value: []byte("x")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if log := s.log.tail(1 << 20); strings.Contains(log, "correct horse") {
		t.Error("the password is in the log")
	}
}

// The commands of docs/security.md work, in order.
func TestSecurityDocument(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	out := runCommands(t, string(text))
	for _, want := range []string{"user alice has the password of", "User:alice allow write topic click*", "alice  ", "[]"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not printed:\n%s", want, out)
		}
	}
}

// Clients of three libraries log in by each mechanism over TLS, and produce and consume.
func TestClientsLogIn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca, key := filepath.Join(dir, "server.pem"), filepath.Join(dir, "server.key")
	run(t, nil, "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost",
		"-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", ca)
	admin := secretFile(t, "correct horse")
	s := startServer(t, "--kafka-protocol", "SASL_SSL", "--tls-cert", ca, "--tls-key", key, "--sasl-mechanisms", "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
		"--users", "admin:"+admin, "--super-users", "User:admin")
	if out, code := s.cli("", "topic", "create", "clicks", "--user", "admin", "--password-file", admin, "--sasl-mechanism", "PLAIN", "--tls", "--tls-ca", ca); code != 0 {
		t.Fatalf("create: %s", out)
	}
	jars, err := os.ReadFile(filepath.Join(lab.Home(), "kafka-clients", "classpath"))
	if err != nil {
		t.Fatalf("%v: run make lab", err)
	}
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		args := []string{s.kafka, ca, mechanism, "admin", "correct horse", "clicks"}
		for name, command := range map[string][]string{
			"python": {python(), "lab/secureclient/client.py"}, "java": {"java", "-cp", strings.TrimSpace(string(jars)), "lab/secureclient/SecureClient.java"},
		} {
			if out := run(t, nil, command[0], append(command[1:], args...)...); !strings.Contains(out, "ok "+mechanism) {
				t.Errorf("%s %s: %s", name, mechanism, out)
			}
		}
	}
}

// Clients of two libraries log in with tokens that an issuer has signed, whose keys the server has from
// a URL and from a file, and go on with others when the first has expired. Tokens that are expired or for
// somebody else are refused, and the client is told.
func TestClientsLogInWithTokens(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "one", Algorithm: "ES256", Use: "sig"}}})
	if err != nil {
		t.Fatal(err)
	}
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(keys) }))
	t.Cleanup(issuer.Close)
	dir := t.TempDir()
	file := filepath.Join(dir, "keys.json")
	if err := os.WriteFile(file, keys, 0o600); err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", "one"))
	if err != nil {
		t.Fatal(err)
	}
	// write puts a token into a file, which is replaced at once.
	write := func(name, audience string, lasts time.Duration) string {
		now := time.Now()
		issued := now
		if lasts < 0 {
			issued = now.Add(2 * lasts)
		}
		token, err := jwt.Signed(signer).Claims(map[string]any{"iss": "https://issuer", "aud": audience, "sub": "admin", "scope": "kafka", "iat": issued.Unix(), "exp": now.Add(lasts).Unix()}).Serialize()
		if err != nil {
			t.Error(err)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path+".new", []byte(token), 0o600); err != nil {
			t.Error(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Error(err)
		}
		return path
	}
	jars, err := os.ReadFile(filepath.Join(lab.Home(), "kafka-clients", "classpath"))
	if err != nil {
		t.Fatalf("%v: run make lab", err)
	}
	clients := map[string][]string{
		"python": {python(), "lab/secureclient/bearer.py"}, "java": {"java", "-cp", strings.TrimSpace(string(jars)), "lab/secureclient/TokenClient.java"},
	}
	for from, jwks := range map[string]string{"url": issuer.URL, "file": file} {
		s := startServer(t, "--kafka-protocol", "SASL_PLAINTEXT", "--sasl-mechanisms", "OAUTHBEARER", "--super-users", "User:admin",
			"--oauth-jwks", jwks, "--oauth-issuer", "https://issuer", "--oauth-audience", "tabletopic", "--oauth-clock-skew", "1s")
		for name, command := range clients {
			t.Run(from+" "+name, func(t *testing.T) {
				t.Parallel()
				good := from + "-" + name
				write(good, "tabletopic", 20*time.Second)
				renew, stop := context.WithCancel(context.Background())
				renewed := make(chan struct{})
				go func() {
					defer close(renewed)
					for pace := time.NewTicker(2 * time.Second); ; {
						select {
						case <-pace.C:
							write(good, "tabletopic", 20*time.Second)
						case <-renew.Done():
							return
						}
					}
				}()
				defer func() { stop(); <-renewed }()
				for what, c := range map[string]struct{ path, times, want string }{
					"a good token":           {filepath.Join(dir, good), "1", "ok"},
					"a token of others":      {write(good+"-others", "somebody", time.Hour), "0", "refused:"},
					"a token that has ended": {write(good+"-ended", "tabletopic", -time.Hour), "0", "refused:"},
				} {
					out := run(t, nil, command[0], append(command[1:len(command):len(command)], s.kafka, c.path, "tokens", c.times)...)
					if !strings.Contains(out, c.want) {
						t.Errorf("%s: want %q in:\n%s", what, c.want, out)
					}
				}
			})
		}
	}
}

// A listener that others than this machine could reach and that asks nobody who it is does not start, nor one over which
// passwords would go readable: the error says which, and what to do. With the explicit flag the server goes on, as far
// as to an address that this machine does not have.
func TestExposedListenersNeedAnExplicitFlag(t *testing.T) {
	t.Parallel()
	const elsewhere = "192.0.2.1:9092" // of documentation (RFC 5737): nobody's
	admin := secretFile(t, "correct horse")
	users := []string{"--users", "admin:" + admin, "--super-users", "User:admin"}
	for name, tc := range map[string]struct {
		flags []string
		says  string
	}{
		"kafka":                 {[]string{"--kafka", elsewhere}, "everybody who reaches it could do everything"},
		"kafka on all":          {[]string{"--kafka", "0.0.0.0:9092", "--kafka-advertised", "localhost:9092"}, "everybody who reaches it could do everything"},
		"kafka on all, unnamed": {[]string{"--kafka", ":9092", "--kafka-advertised", "localhost:9092"}, "everybody who reaches it could do everything"},
		"kafka on all of IPv6":  {[]string{"--kafka", "[::]:9092", "--kafka-advertised", "localhost:9092"}, "everybody who reaches it could do everything"},
		"http":                  {[]string{"--http", elsewhere}, "listener http on " + elsewhere},
		"the second listener":   {[]string{"--listeners", "IN://127.0.0.1:0,OUT://" + elsewhere, "--listener-protocols", "IN:PLAINTEXT,OUT:PLAINTEXT"}, "listener OUT on " + elsewhere},
		"PLAIN without TLS":     {append(users, "--kafka", elsewhere, "--kafka-protocol", "SASL_PLAINTEXT", "--sasl-mechanisms", "PLAIN"), "passwords would go over the network readable"},
	} {
		start := func(more ...string) (out string, code int) {
			args := append([]string{"serve", "--data", t.TempDir(), "--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0"}, tc.flags...)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // one that starts all the same would not end
			defer cancel()
			cmd := exec.CommandContext(ctx, binary, append(args, more...)...)
			cmd.Env = environment()
			text, _ := cmd.CombinedOutput() // the exit code is looked at
			return string(text), cmd.ProcessState.ExitCode()
		}
		if out, code := start(); code == 0 || !strings.Contains(out, tc.says) || !strings.Contains(out, "allow-insecure") {
			t.Errorf("%s: exit %d, want an error that says %q and allow-insecure:\n%s", name, code, tc.says, out)
		}
		if !slices.ContainsFunc(tc.flags, func(f string) bool { return strings.Contains(f, elsewhere) }) {
			continue // it would listen
		}
		if out, code := start("--allow-insecure"); code == 0 || strings.Contains(out, tc.says) || !strings.Contains(out, "cannot assign requested address") {
			t.Errorf("%s with --allow-insecure: exit %d, want that %s cannot be listened on:\n%s", name, code, elsewhere, out)
		}
	}
}
