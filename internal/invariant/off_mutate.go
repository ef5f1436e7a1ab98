//go:build mutate

package invariant

import (
	"os"
	"time"
)

var off = os.Getenv("TABLETOPIC_MUTATE")

// Off reports whether TABLETOPIC_MUTATE names this guard.
func Off(guard string) bool { return off == guard }

// Patience returns how long a test waits for what must come: without a guard it may never, and
// then twenty seconds are enough.
func Patience(d time.Duration) time.Duration {
	if off == "" || off == "none" {
		return d
	}
	return min(d, 20*time.Second)
}
