package control

import "time"

// What the journal promises, by the grace of the sweep. A file is named again after a quarter
// of it. A worker or a coordinator that could not name it for half of it gives it up: it writes
// and offers it no more, and asks no catalog to take it. The other half is for what is on its
// way to a store or a catalog by then, and for the clocks of nodes, which may differ by as much.

// Refresh returns after what time files that wait are named again.
func Refresh(grace time.Duration) time.Duration { return grace / 4 }

// Lapses returns when an entry of at no longer keeps its files for who holds them.
func Lapses(at time.Time, grace time.Duration) time.Time { return at.Add(grace / 2) }
