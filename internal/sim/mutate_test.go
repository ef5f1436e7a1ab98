//go:build mutate

package sim

import (
	"os"
	"os/exec"
	"testing"
)

// found names guards with seeds that find that they are off.
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

// The simulation finds faults: without one of these guards some seed fails, in a process of its own.
func TestFindsWhatGuardsPrevent(t *testing.T) {
	for _, f := range found {
		t.Run(f.guard, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run", "^TestSimulation$", "-test.failfast", "-sim.seeds", f.seeds)
			cmd.Env = append(os.Environ(), "TABLETOPIC_MUTATE="+f.guard)
			if out, err := cmd.CombinedOutput(); err == nil {
				t.Errorf("seeds %s pass without the guard\n%s", f.seeds, out)
			}
		})
	}
}
