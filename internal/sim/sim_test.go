package sim

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
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
	each(t, seeds(t, "testdata/seeds.txt", logSeeds), simulate)
}

// each runs the seeds. With -failfast those that wait when one fails are left out, which package
// testing does not do with parallel tests.
func each(all *testing.T, seeds []uint64, simulate func(*testing.T, uint64)) {
	failFast := flag.Lookup("test.failfast").Value.String() == "true"
	gc := debug.SetGCPercent(400) // a quarter of the time went there, and a seed has little in memory
	all.Cleanup(func() { debug.SetGCPercent(gc) })
	for _, seed := range seeds {
		all.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			if failFast && all.Failed() {
				t.SkipNow()
			}
			synctest.Test(t, func(t *testing.T) { simulate(t, seed) })
		})
	}
}

func simulate(t *testing.T, seed uint64) {
	w := newWorld(t, seed)
	w.simulate(w.plan.chaos+12*time.Hour, w.run)
}

// A simulation is what a run of either kind has: it ends with what is wrong, or when it is over.
type simulation struct {
	t     *testing.T
	seed  uint64
	trace *trace

	failing context.Context
	stop    context.CancelCauseFunc // ends failing, with why
}

func newSimulation(t *testing.T, seed uint64) simulation {
	s := simulation{t: t, seed: seed, trace: newTrace()}
	s.failing, s.stop = context.WithCancelCause(context.Background())
	return s
}

// fail ends the run with what is wrong.
func (s *simulation) fail(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	s.trace.add("world", "FAILED: %v", err)
	s.stop(err)
}

// simulate returns when run does. It panics when that takes longer than limit.
func (s *simulation) simulate(limit time.Duration, run func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		run()
	}()
	stuck := time.NewTimer(limit)
	defer stuck.Stop()
	select {
	case <-done:
	case <-stuck.C:
		fmt.Println(s.report("it does not end"))
		panic("simulation does not end") // with the stacks of all goroutines
	}
	if err := context.Cause(s.failing); err != nil {
		s.t.Error(s.report(err.Error()))
	} else if *oneSeed >= 0 {
		s.t.Log("\n" + s.trace.text())
	}
	s.stop(nil)
}

func (s *simulation) report(why string) string {
	test, _, _ := strings.Cut(s.t.Name(), "/")
	return fmt.Sprintf("seed %d: %s\nrepeat with: go test ./internal/sim -run '%s$' -sim.seed %d -v\n%s", s.seed, why, test, s.seed, s.trace.text())
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
