package lab

import (
	"os/exec"
	"strconv"
	"testing"
	"time"
)

// HiveMetastore starts a Hive Metastore 3.1 with an empty in-memory database and returns
// its address. Locks that nobody keeps alive are gone after lockTimeout, to the second.
func HiveMetastore(t testing.TB, lockTimeout time.Duration) (address string) {
	t.Helper()
	args := Path(t, "hms", "java.args")
	scratch := t.TempDir()
	port := StartOnPort(t, 5*time.Minute, func(port int) *exec.Cmd {
		cmd := exec.Command("java", "-Xmx400m", "-XX:TieredStopAtLevel=1", "--add-opens=java.base/java.net=ALL-UNNAMED",
			"--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.util=ALL-UNNAMED",
			"-Dderby.stream.error.file="+scratch+"/derby.log", "-Dlog4j2.configurationFile=log4j2.properties",
			"@"+args, "LocalHms", strconv.Itoa(port), scratch, strconv.Itoa(int(lockTimeout.Seconds())))
		cmd.Dir = scratch
		return cmd
	})
	return loopback(port)
}

// SharedHiveMetastore returns the address of the [HiveMetastore] with this lockTimeout that the tests
// of a binary share: the first starts it, [Main] ends it. Each test takes a database of its own.
func SharedHiveMetastore(t testing.TB, lockTimeout time.Duration) (address string) {
	t.Helper()
	return keep(t, "Hive Metastore with locks of "+lockTimeout.String(), func(t testing.TB) string { return HiveMetastore(t, lockTimeout) })
}
