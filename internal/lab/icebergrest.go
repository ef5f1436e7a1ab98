package lab

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// IcebergREST starts the Iceberg project's reference REST catalog and returns its URI. The
// warehouse is s3://bucket/prefix with the URL of an S3 server, or file:///directory and "".
func IcebergREST(t testing.TB, warehouse, s3 string) (uri string) {
	t.Helper()
	port := FreePort(t)
	IcebergRESTOn(t, port, t.TempDir(), warehouse, s3)
	return fmt.Sprintf("http://127.0.0.1:%d", port)
}

// IcebergRESTOn is IcebergREST on a port and with its tables in a directory, so that it can
// be ended by stop and started again.
func IcebergRESTOn(t testing.TB, port int, data, warehouse, s3 string) (stop func()) {
	t.Helper()
	args := Path(t, "iceberg-rest", "java.args")
	// With one connection: of two, one may keep the database locked for the other for minutes.
	cmd := exec.Command("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "@"+args, "org.apache.iceberg.rest.LocalRest", fmt.Sprint(port),
		"uri=jdbc:sqlite:"+filepath.Join(data, "catalog.db"), "clients=1", "warehouse="+warehouse)
	if s3 != "" {
		cmd.Args = append(cmd.Args, "io-impl=org.apache.iceberg.aws.s3.S3FileIO", "s3.endpoint="+s3,
			"s3.path-style-access=true", "s3.access-key-id="+AccessKey, "s3.secret-access-key="+SecretKey, "client.region="+Region)
	}
	return Start(t, cmd, time.Minute, func() error {
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/v1/config", port))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", resp.Status)
		}
		return nil
	})
}

// ExpiringTokens starts a proxy in front of a REST catalog, and returns its URI. It gives
// OAuth2 tokens to whoever asks, and answers 401 to those that bring none or one that is
// older than life.
func ExpiringTokens(t testing.TB, target string, life time.Duration) (uri string) {
	t.Helper()
	var mu sync.Mutex
	ends := map[string]time.Time{}
	return Proxy(t, target, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		mu.Lock()
		good := time.Now().Before(ends[token])
		mu.Unlock()
		switch {
		case r.URL.Path == "/v1/oauth/tokens":
			token := rand.Text()
			mu.Lock()
			ends[token] = time.Now().Add(life)
			mu.Unlock()
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"access_token": %q, "token_type": "bearer", "expires_in": %d}`, token, int(life.Seconds()))
		case !good:
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error": {"message": "the token has expired", "type": "NotAuthorizedException", "code": 401}}`)
		default:
			next.ServeHTTP(w, r)
		}
	})
}
