package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// The key pair and region of every server here.
const (
	AccessKey = "testkey"
	SecretKey = "testsecret"
	Region    = "us-east-1"
)

// Versitygw starts an S3 server and returns its URL and key pair. It has the buckets that
// are named, or one of the name "bucket"; they are folders of the test's temporary directory.
func Versitygw(t testing.TB, buckets ...string) (endpoint, accessKey, secretKey string) {
	t.Helper()
	bin := Path(t, "versitygw", "bin", "versitygw")
	if len(buckets) == 0 {
		buckets = []string{"bucket"}
	}
	data := t.TempDir()
	for _, b := range buckets {
		if err := os.Mkdir(filepath.Join(data, b), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	port := FreePort(t)
	cmd := exec.Command(bin, "--port", fmt.Sprintf("127.0.0.1:%d", port), "--region", Region,
		"--keep-alive", "--quiet", "posix", data)
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+AccessKey, "ROOT_SECRET_KEY="+SecretKey)
	Start(t, cmd, 20*time.Second, func() error { return dial(port) })
	return fmt.Sprintf("http://127.0.0.1:%d", port), AccessKey, SecretKey
}
