//go:build mutate

package sim

import (
	"os"
	"os/exec"
	"testing"
)

// found names guards of the log with seeds that find that they are off.
var found = []struct{ guard, seeds string }{
	{"wal-contiguous-prefix", "1-30"},
	{"wal-unknown-retried", "1-30"},
	{"wal-nonce", "1-30"},
	{"wal-mark-before-delete", "1-30"},
	{"wal-fence-kept", "1-30"},
	{"wal-sweep-retired", "1-60"},
	{"file-wal-fence", "1-30"},
	{"file-wal-fsync", "1-60"},
	{"cache-evicts-uploaded-only", "1-30"},
	{"sweep-asks-metadata", "1-30"},
	{"delete-settled", "100-125"},
	{"metadata-durable", "100-125"},
	{"metadata-settled", "100-125"},
	{"metadata-newest-generation", "100-125"},
	{"metadata-node-epoch", "25-50"},
	{"metadata-open-owner", "100-125"},
}

// foundInTables names guards of the tables.
var foundInTables = []struct{ guard, seeds string }{
	{"sql-commit-compares", "1-2"},
	{"table-rewind", "4-5"},
	{"topic-incarnation", "9-10"},
	{"table-of-another-topic", "12-13"},
	{"dead-letter-stays-dead", "28-30"},
	{"registry-down-waits", "29-30"},
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

func finds(t *testing.T, test, guard, seeds string) {
	cmd := exec.Command(os.Args[0], "-test.run", test, "-test.failfast", "-sim.seeds", seeds)
	cmd.Env = append(os.Environ(), "TABLETOPIC_MUTATE="+guard)
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Errorf("seeds %s pass without the guard\n%s", seeds, out)
	}
}
