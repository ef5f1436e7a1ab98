//go:build !mutate

package invariant

// Off reports whether the named guard is switched off. It never is in a normal build,
// where the compiler drops the call.
func Off(string) bool { return false }
