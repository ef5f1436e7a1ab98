//go:build linux

package hugepage

import (
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pause is for how long nothing is asked after the kernel had no huge page to give: to look for one, it moves memory
// about, which takes it milliseconds.
const pause = time.Minute

var paused atomic.Int64 // until then, in Unix nanoseconds

// Back has the kernel put huge pages under b, and under what else of the process is in these pages; what the memory holds stays.
// It does nothing for less than [Min] bytes, nor where the kernel is older than 6.1 or has no huge pages to give.
func Back(b []byte) {
	if len(b) < Min || time.Now().UnixNano() < paused.Load() {
		return
	}
	begin := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	for from := begin &^ (Size - 1); from < begin+uintptr(len(b)); from += Size {
		_, _, err := unix.Syscall(unix.SYS_MADVISE, from, Size, unix.MADV_COLLAPSE)
		if err == unix.ENOMEM || err == unix.EBUSY { // others are of this place alone, such as one that a disk is reading into
			paused.Store(time.Now().Add(pause).UnixNano())
			return
		}
	}
}
