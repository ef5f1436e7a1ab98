package lab

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// SeaweedFS starts an S3 server that has an Iceberg REST catalog of the kind of S3 Tables,
// and returns the endpoints of both. Keys and region are those of the other servers.
func SeaweedFS(t testing.TB) (s3, iceberg string) {
	t.Helper()
	bin := Path(t, "seaweedfs", "venv", "bin", "weed")
	data := t.TempDir()
	identities := fmt.Sprintf(`{"identities": [{"name": "admin", "credentials": [{"accessKey": %q, "secretKey": %q}],
		"actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}`, AccessKey, SecretKey)
	config := filepath.Join(data, "s3.json")
	if err := os.WriteFile(config, []byte(identities), 0o600); err != nil {
		t.Fatal(err)
	}
	port := freeRun(t, 9)
	at := func(i int) string { return fmt.Sprint(port + i) }
	cmd := exec.Command(bin, "-logtostderr=true", "server", "-dir="+data, "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
		"-s3", "-s3.port="+at(0), "-s3.port.grpc="+at(5), "-s3.port.iceberg="+at(1), "-s3.port.lance=0", "-s3.config="+config,
		"-master.port="+at(2), "-master.port.grpc="+at(6), "-volume.port="+at(3), "-volume.port.grpc="+at(7),
		"-filer", "-filer.port="+at(4), "-filer.port.grpc="+at(8), "-volume.max=500", "-master.volumeSizeLimitMB=64")
	Start(t, cmd, time.Minute, func() error {
		for _, i := range []int{0, 1} {
			resp, err := http.Get("http://" + loopback(port+i))
			if err != nil {
				return err
			}
			resp.Body.Close()
		}
		// It answers before it can store.
		resp, err := http.Get("http://" + loopback(port+2) + "/dir/assign")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var assigned struct{ FID, Error string }
		if err := json.NewDecoder(resp.Body).Decode(&assigned); err != nil {
			return err
		}
		if assigned.FID == "" {
			return fmt.Errorf("no volume: %s", assigned.Error)
		}
		return nil
	})
	return "http://" + loopback(port), "http://" + loopback(port+1)
}

// freeRun returns the first of n free ports that follow each other.
func freeRun(t testing.TB, n int) int {
	t.Helper()
next:
	for range 100 {
		first := FreePort(t)
		for i := 1; i < n; i++ {
			l, err := net.Listen("tcp", loopback(first+i))
			if err != nil {
				continue next
			}
			l.Close()
		}
		return first
	}
	t.Fatalf("no %d free ports in a row", n)
	return 0
}

// TableBucket makes a table bucket on a SeaweedFS server and returns its ARN.
func TableBucket(t testing.TB, s3, name string) (arn string) {
	t.Helper()
	body := []byte(fmt.Sprintf(`{"name":%q}`, name))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, s3+"/buckets", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	sum := sha256.Sum256(body)
	hash := hex.EncodeToString(sum[:])
	req.Header.Set("X-Amz-Content-Sha256", hash)
	keys := aws.Credentials{AccessKeyID: AccessKey, SecretAccessKey: SecretKey}
	if err := v4.NewSigner().SignHTTP(t.Context(), keys, req, hash, "s3tables", Region, time.Now()); err != nil {
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
	var made struct{ ARN string }
	if err := json.Unmarshal(text, &made); err != nil || made.ARN == "" {
		t.Fatalf("create table bucket: %s: %s", resp.Status, text)
	}
	return made.ARN
}
