// Package invariant holds the assertions of the project and the switch that proves
// that they are needed.
//
// [Check] is for our own bugs only: bytes from outside get an error instead. [Off] lets
// `make mutate` disable one guard at a time; guards.txt lists every guard with the test
// that must fail without it.
package invariant

import "fmt"

// Check panics with the formatted message if ok is false.
func Check(ok bool, format string, args ...any) {
	if !ok {
		panic("invariant violated: " + fmt.Sprintf(format, args...))
	}
}
