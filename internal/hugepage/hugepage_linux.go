//go:build linux

package hugepage

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pause is for how long nothing is asked after the kernel had no huge page to give, or only a dear one.
const pause = 10 * time.Second

var (
	// dear is the most CPU that a huge page may take: it is to be cleared and filled, which takes a third of a millisecond
	// or two. It is more where the kernel moves memory about to get one, and in a virtual machine whose host takes idle memory
	// back: to give 2 MiB again takes it 20 ms and more.
	dear   = 3 * time.Millisecond
	paused atomic.Int64 // until then, in Unix nanoseconds
)

// Back has the kernel put huge pages under b, and under what else of the process is in these pages; what the memory holds stays.
// It does nothing for less than [Min] bytes, nor where the kernel is older than 6.1 or has no huge pages to give, and ends with one that was dear.
func Back(b []byte) {
	if len(b) < Min || time.Now().UnixNano() < paused.Load() {
		return
	}
	runtime.LockOSThread() // whose time is taken
	defer runtime.UnlockOSThread()
	begin := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	for from := begin &^ (Size - 1); from < begin+uintptr(len(b)); from += Size {
		began := threadTime()
		_, _, err := unix.Syscall(unix.SYS_MADVISE, from, Size, unix.MADV_COLLAPSE)
		// Other errors are of this place alone, such as one that a disk is reading into.
		if err == unix.ENOMEM || err == unix.EBUSY || threadTime()-began > dear {
			paused.Store(time.Now().Add(pause).UnixNano())
			return
		}
	}
}

// threadTime is the CPU that the thread has used.
func threadTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
