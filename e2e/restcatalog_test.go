package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tabletopic/tabletopic/internal/lab"
)

// A client of the REST catalog logs in with the secret that the command gave it, writes with
// keys that the catalog hands out, and has none of its own; others are turned away, and no
// secret is in the server's log.
func TestRESTCatalogClients(t *testing.T) {
	t.Parallel()
	python := lab.Path(t, "python", "venv", "bin", "python")
	endpoint, access, secret := lab.Versitygw(t)
	clients := filepath.Join(t.TempDir(), "clients")
	add := exec.CommandContext(t.Context(), binary, "catalog-client", "add", clients, "py")
	add.Env = environment()
	out, err := add.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	credential := strings.TrimSpace(strings.TrimPrefix(string(out), "credential "))

	s := newServer(t, "--object-store", "s3://bucket/log?region="+lab.Region+"&endpoint="+endpoint+"&path-style=true",
		"--rest-catalog-clients", clients, "--rest-catalog-credentials", "own")
	s.env = []string{"AWS_ACCESS_KEY_ID=" + access, "AWS_SECRET_ACCESS_KEY=" + secret}
	s.start()
	script := exec.CommandContext(t.Context(), python, "-c", `
import sys
import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import RESTError
uri, credential = sys.argv[1:]
def refused(**properties):
    try:
        load_catalog("no", type="rest", uri=uri, **properties).list_namespaces()
    except RESTError as e:
        return
    raise AssertionError(f"{properties} is let in")
refused()
refused(token="guessed")
refused(credential="py:guessed")
c = load_catalog("c", type="rest", uri=uri, credential=credential)
c.create_namespace("web")
rows = pa.table({"id": pa.array(range(100), pa.int64())})
t = c.create_table("web.t", schema=rows.schema)
t.append(rows)
t.append(rows)
got = c.load_table("web.t").scan().to_arrow()
assert got.num_rows == 200, got
`, "http://"+s.http+"/iceberg", credential)
	script.Env = environment("AWS_EC2_METADATA_DISABLED=true")
	if out, err := script.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	_, id, _ := strings.Cut(credential, ":")
	for _, hidden := range []string{id, secret} {
		if log := s.log.tail(1 << 20); strings.Contains(log, hidden) {
			t.Errorf("%s is in the log: %s", hidden, log)
		}
	}

	// Keys for everybody who reaches the port are refused at the start.
	open := newServer(t, "--object-store", "s3://bucket/other?region="+lab.Region+"&endpoint="+endpoint+"&path-style=true", "--rest-catalog-credentials", "own")
	open.env = s.env
	if err := open.launch(); err != nil {
		t.Fatal(err)
	}
	<-open.exited
	if log := open.log.tail(4 << 10); open.cmd.ProcessState.ExitCode() == 0 || !strings.Contains(log, "rest-catalog-clients") {
		t.Errorf("without clients: %s", log)
	}
	open.cmd = nil
}
