package lab

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// Spark starts the engine as a server of the given lab/query, and returns what that wants
// as SPARK_URL. It sees the local files.
func Spark(t testing.TB, query string) (url string) {
	t.Helper()
	Path(t, "spark", "classpath")
	port := StartOnPort(t, 3*time.Minute, func(port int) *exec.Cmd {
		cmd := exec.Command(query, "spark", "--serve", fmt.Sprint(port))
		cmd.Env = append(os.Environ(), "AWS_ACCESS_KEY_ID="+AccessKey, "AWS_SECRET_ACCESS_KEY="+SecretKey) // for catalogs of AWS
		return cmd
	})
	return "http://" + loopback(port)
}

// SharedSpark is Spark for all tests of a binary, until [Main] ends it.
func SharedSpark(t testing.TB, query string) (url string) {
	t.Helper()
	return keep(t, "Spark", func(t testing.TB) string { return Spark(t, query) })
}
