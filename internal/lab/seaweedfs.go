package lab

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
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
		"-filer", "-filer.port="+at(4), "-filer.port.grpc="+at(8), "-volume.max=50", "-master.volumeSizeLimitMB=64")
	Start(t, cmd, time.Minute, func() error {
		for _, i := range []int{0, 1} {
			resp, err := http.Get("http://" + loopback(port+i))
			if err != nil {
				return err
			}
			resp.Body.Close()
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
