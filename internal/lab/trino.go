package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Trino starts the engine, on a JDK 25 (JAVA25_HOME, or the first in /usr/lib/jvm), and
// returns its URL. Catalogs are made by CREATE CATALOG; it sees the local files.
func Trino(t testing.TB) (url string) {
	t.Helper()
	args := Path(t, "trino", "java.args")
	home := os.Getenv("JAVA25_HOME")
	if homes, _ := filepath.Glob("/usr/lib/jvm/*25*"); home == "" && len(homes) > 0 {
		home = homes[0]
	}
	if home == "" {
		t.Fatal("no JDK 25: set JAVA25_HOME")
	}
	port := FreePort(t)
	url = fmt.Sprintf("http://127.0.0.1:%d", port)
	cmd := exec.Command(filepath.Join(home, "bin", "java"), "-Xmx1500m", "-XX:TieredStopAtLevel=1", "-Djdk.attach.allowAttachSelf=true",
		"--add-modules=jdk.incubator.vector", "--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow",
		"@"+args, "LocalTrino", fmt.Sprint(port))
	cmd.Dir = t.TempDir()
	// The port answers before the connector is there, and a catalog asks for its configuration.
	empty := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"defaults":{},"overrides":{}}`)
	}))
	defer empty.Close()
	Start(t, cmd, 5*time.Minute, func() error {
		_, err := TrinoQuery(url, `CREATE CATALOG ready USING iceberg WITH ("iceberg.catalog.type"='rest', "iceberg.rest-catalog.uri"='`+empty.URL+`')`)
		return err
	})
	if _, err := TrinoQuery(url, "DROP CATALOG ready"); err != nil {
		t.Fatal(err)
	}
	return url
}

// SharedTrino is Trino for all tests of a binary, until [Main] ends it.
func SharedTrino(t testing.TB) (url string) {
	t.Helper()
	return keep(t, "Trino", Trino)
}

// TrinoQuery runs a statement and returns its rows.
func TrinoQuery(url, statement string) (rows [][]any, err error) {
	method, next, body := http.MethodPost, url+"/v1/statement", statement
	for next != "" {
		req, err := http.NewRequest(method, next, strings.NewReader(body))
		if err != nil {
			return nil, err
		}
		req.Header.Set("X-Trino-User", "lab")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, err
		}
		var page struct {
			NextURI string  `json:"nextUri"`
			Data    [][]any `json:"data"`
			Error   *struct {
				Message string `json:"message"`
			} `json:"error"`
		}
		err = json.NewDecoder(resp.Body).Decode(&page)
		resp.Body.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", resp.Status, err)
		}
		if page.Error != nil {
			return nil, errors.New(page.Error.Message)
		}
		rows = append(rows, page.Data...)
		method, next, body = http.MethodGet, page.NextURI, ""
	}
	return rows, nil
}
