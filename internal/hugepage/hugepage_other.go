//go:build !linux

package hugepage

// Back does nothing.
func Back([]byte) {}
