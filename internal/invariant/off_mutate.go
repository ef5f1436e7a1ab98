//go:build mutate

package invariant

import "os"

var off = os.Getenv("TABLETOPIC_MUTATE")

// Off reports whether TABLETOPIC_MUTATE names this guard.
func Off(guard string) bool { return off == guard }
