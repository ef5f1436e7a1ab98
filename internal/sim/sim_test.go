package sim

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
)

var (
	oneSeed   = flag.Int64("sim.seed", -1, "simulate this seed alone, and print its trace with -v")
	seedRange = flag.String("sim.seeds", "", "simulate these seeds, as in 1000-5000")
)

// Whatever nodes, networks and databases do, the streams keep what package streamstore promises.
func TestSimulation(t *testing.T) {
	if *oneSeed >= 0 {
		runtime.GOMAXPROCS(1) // one goroutine at a time takes turns the same way again, nearly
	}
	for _, seed := range seeds(t, "testdata/seeds.txt", 200) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { simulate(t, seed) })
		})
	}
}

func simulate(t *testing.T, seed uint64) {
	w := newWorld(t, seed)
	w.run()
	w.trace.add("world", "%d operations, %d batches acknowledged, %d requests", w.ops.Load(), w.acked.Load(), w.requests.Load())
	if *oneSeed >= 0 && !t.Failed() {
		t.Log("\n" + w.trace.text())
	}
}

// seeds are those that flags ask for; or those that ever failed, and the first many, of which
// a short test takes 20.
func seeds(t *testing.T, failed string, many uint64) (list []uint64) {
	first, last := uint64(1), many
	switch {
	case *oneSeed >= 0:
		return []uint64{uint64(*oneSeed)}
	case *seedRange != "":
		if _, err := fmt.Sscanf(*seedRange, "%d-%d", &first, &last); err != nil || first > last {
			t.Fatalf("-sim.seeds %q: want A-B", *seedRange)
		}
	default:
		list = failedSeeds(t, failed)
		if testing.Short() {
			last = min(last, 20)
		}
	}
	for seed := first; seed <= last; seed++ {
		if !slices.Contains(list, seed) {
			list = append(list, seed)
		}
	}
	return list
}

// failedSeeds reads a file with a seed each line, and what it found.
func failedSeeds(t *testing.T, name string) (list []uint64) {
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	scan := bufio.NewScanner(f)
	for scan.Scan() {
		line, _, _ := strings.Cut(scan.Text(), "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		seed, err := strconv.ParseUint(line, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		list = append(list, seed)
	}
	return list
}
