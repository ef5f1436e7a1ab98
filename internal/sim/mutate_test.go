//go:build mutate

package sim

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"testing"
)

// found names guards of the log with the seeds that are tried first: dense ones.
var found = []struct{ guard, seeds string }{
	{"wal-contiguous-prefix", "1-30"},
	{"wal-unknown-retried", "1-30"},
	{"wal-nonce", "1-30"},
	{"wal-mark-before-delete", "1-30"},
	{"wal-fence-kept", "1-30"},
	{"wal-sweep-retired", "35-60"},
	{"file-wal-fence", "1-30"},
	{"file-wal-fsync", "145-200"},
	{"cache-evicts-uploaded-only", "1-30"},
	{"sweep-asks-metadata", "1-30"},
	{"delete-settled", "100-125"},
	{"metadata-durable", "100-125"},
	{"metadata-settled", "100-125"},
	{"metadata-newest-generation", "75-100"},
	{"metadata-node-epoch", "75-100"},
	{"metadata-open-owner", "75-100"},
}

// foundInTables names guards of the tables.
var foundInTables = []struct{ guard, seeds string }{
	{"sql-commit-compares", "1-2"},
	{"table-rewind", "40-60"},
	{"topic-incarnation", "9-40"},
	{"table-of-another-topic", "44-60"},
	{"dead-letter-stays-dead", "15-30"},
	{"registry-down-waits", "15-45"},
	{"sweep-asks-table", "1-10"},
	{"sweep-grace", "35-60"},
	{"sweep-spares-manifests", "1-10"},
	{"sweep-spares-metadata", "1-10"},
	{"attempt-is-named", "1-10"},
	{"commit-continues", "170-200"},
	{"aborted-left-out", "1-10"},
	{"the-own-table-decides", "65-75"},
}

// The simulation finds faults: without one of these guards some seed fails, in a process of its own.
func TestFindsWhatGuardsPrevent(t *testing.T) {
	for _, f := range found {
		t.Run(f.guard, func(t *testing.T) { finds(t, "^TestSimulation$", f.guard, f.seeds) })
	}
	for _, f := range foundInTables {
		t.Run(f.guard, func(t *testing.T) { finds(t, "^TestTableSimulation$", f.guard, f.seeds) })
	}
}

// finds tries a few seeds, then many: a seed does not always take the same way.
func finds(t *testing.T, test, guard, seeds string) {
	tried := []string{seeds, "1-200"}
	for _, seeds := range tried {
		cmd := exec.Command(os.Args[0], "-test.run", test, "-test.failfast", "-sim.seeds", seeds)
		cmd.Env = append(os.Environ(), "TABLETOPIC_MUTATE="+guard)
		out, err := cmd.CombinedOutput()
		switch failed := new(exec.ExitError); {
		case errors.As(err, &failed):
			return
		case err != nil:
			t.Fatal(err)
		case !bytes.Contains(out, []byte("PASS")):
			t.Fatalf("seeds %s neither pass nor fail\n%s", seeds, out)
		}
		t.Logf("seeds %s pass without the guard", seeds)
	}
	t.Errorf("seeds %v pass without the guard", tried)
}
