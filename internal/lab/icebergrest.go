package lab

import (
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
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
	cmd := exec.Command("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "@"+args, "org.apache.iceberg.rest.LocalRest", fmt.Sprint(port),
		"uri=jdbc:sqlite:"+filepath.Join(data, "catalog.db"), "warehouse="+warehouse)
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
