// Package strictfs is a file system for tests that demands of writes past the page cache what a kernel does.
package strictfs

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// block is what position, length and place in memory of a direct write must be multiples of, on any disk.
const block = 4 << 10

// FS is a file system whose files can be written past the page cache. It makes no difference to
// what is durable: that is what was synced.
type FS struct {
	vfs.FS
	// Written counts the direct writes, if not nil.
	Written *atomic.Int64
	// Refuse ends a direct write with EINVAL if it returns true. Nil refuses none.
	Refuse func() bool
}

// OpenDirect opens a file that exists for WriteDirect.
func (fs FS) OpenDirect(name string) (vfs.File, error) {
	return fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
}

// WriteDirect writes pieces of whole blocks, one behind another.
func (fs FS) WriteDirect(f vfs.File, pieces [][]byte, at int64) (written int, err error) {
	for _, b := range pieces {
		place := int64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
		if (place|int64(len(b))|at)%block != 0 || fs.Refuse != nil && fs.Refuse() {
			return written, fmt.Errorf("write of %d bytes at %d past the page cache: %w", len(b), at, syscall.EINVAL)
		}
		if fs.Written != nil {
			fs.Written.Add(1)
		}
		n, err := f.WriteAt(b, at)
		written += n
		at += int64(n)
		if err != nil {
			return written, err
		}
	}
	return written, nil
}
