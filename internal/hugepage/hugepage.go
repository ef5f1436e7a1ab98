// Package hugepage backs large buffers by huge pages of memory. What the disk reads or writes without the page cache takes
// half as much CPU then, and fewer requests to the disk: the kernel looks up, holds and lets go each page by itself. The
// kernel does not do so for Go's memory: by default it asks to be told (transparent_hugepage is madvise), and Go does not.
//
// The memory is asked to be collapsed once (MADV_COLLAPSE), not marked for good (MADV_HUGEPAGE): the kernel would fill again
// what Go's heap has returned to it.
package hugepage

const (
	// Size of a huge page, in bytes.
	Size = 2 << 20
	// Min is the size of a buffer from which on it is worth it, in bytes.
	Min = 64 << 10
)
