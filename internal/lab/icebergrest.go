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
	args := Path(t, "iceberg-rest", "java.args")
	port := FreePort(t)
	cmd := exec.Command("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "@"+args, "org.apache.iceberg.rest.LocalRest", fmt.Sprint(port),
		"uri=jdbc:sqlite:"+filepath.Join(t.TempDir(), "catalog.db"), "warehouse="+warehouse)
	if s3 != "" {
		cmd.Args = append(cmd.Args, "io-impl=org.apache.iceberg.aws.s3.S3FileIO", "s3.endpoint="+s3,
			"s3.path-style-access=true", "s3.access-key-id="+AccessKey, "s3.secret-access-key="+SecretKey, "client.region="+Region)
	}
	uri = fmt.Sprintf("http://127.0.0.1:%d", port)
	Start(t, cmd, time.Minute, func() error {
		resp, err := http.Get(uri + "/v1/config")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", resp.Status)
		}
		return nil
	})
	return uri
}
