package lab

import (
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
	return "http://" + versitygw(t, buckets), AccessKey, SecretKey
}

// VersitygwTLS is Versitygw over TLS, with the certificate in certFile.
func VersitygwTLS(t testing.TB, buckets ...string) (endpoint, accessKey, secretKey, certFile string) {
	t.Helper()
	certFile, keyFile := Certificate(t)
	address := versitygw(t, buckets, "--cert", certFile, "--key", keyFile)
	return "https://" + address, AccessKey, SecretKey, certFile
}

func versitygw(t testing.TB, buckets []string, flags ...string) string {
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
	port := StartOnPort(t, 20*time.Second, func(port int) *exec.Cmd {
		args := append([]string{"--port", loopback(port), "--region", Region, "--keep-alive", "--quiet"}, flags...)
		cmd := exec.Command(bin, append(args, "posix", data)...)
		cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+AccessKey, "ROOT_SECRET_KEY="+SecretKey)
		return cmd
	})
	return loopback(port)
}
