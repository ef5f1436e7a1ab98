package lab

import (
	"os"
	"testing"
)

// kept is what the tests of a binary share: servers that take long to start, by name.
// [Main] ends them.
var kept struct {
	servers  map[string]string // guarded by shared.mu; their URLs
	cleanups []func()          // guarded by shared.mu
}

// keep returns the URL of a server that start starts for the first test that asks.
func keep(t testing.TB, name string, start func(t testing.TB) (url string)) string {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if !shared.main {
		t.Fatalf("a shared %s needs a TestMain that calls lab.Main", name)
	}
	if url, runs := kept.servers[name]; runs {
		return url
	}
	url := start(allTests{t})
	if kept.servers == nil {
		kept.servers = map[string]string{}
	}
	kept.servers[name] = url
	return url
}

// allTests is a test that ends when all have.
type allTests struct{ testing.TB }

func (allTests) Cleanup(fn func()) { kept.cleanups = append(kept.cleanups, fn) }
func (allTests) Failed() bool      { return false }

func (a allTests) TempDir() string {
	dir, err := os.MkdirTemp("", "tabletopic-lab-")
	if err != nil {
		a.Fatal(err)
	}
	a.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// endShared ends them, the last first.
func endShared() {
	for i := len(kept.cleanups) - 1; i >= 0; i-- {
		kept.cleanups[i]()
	}
}
