//go:build !mutate

package invariant

import "time"

// Off reports whether the named guard is switched off. It never is in a normal build,
// where the compiler drops the call.
func Off(string) bool { return false }

// Patience returns how long a test waits for what must come: a minute or more in a normal build.
func Patience(d time.Duration) time.Duration { return d }
