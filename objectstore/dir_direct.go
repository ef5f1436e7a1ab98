//go:build linux

package objectstore

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// directMin is the size from which on an object does not go through the page cache.
	directMin = 1 << 20
	// directBuffer is how much is written at once.
	directBuffer = 1 << 20
	// directAlign is what memory, position and length of such a write must be multiples of, on any disk.
	directAlign = 4 << 10
)

// directBuffers hold *[]byte of directBuffer bytes that are aligned.
var directBuffers = sync.Pool{New: func() any {
	b := make([]byte, directBuffer+directAlign)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (directAlign - 1)
	b = b[skip : skip+directBuffer]
	return &b
}}

// setDirect says whether writes of a file go past the page cache (O_DIRECT). An error says that the file system knows no
// such writes.
func setDirect(fd int, on bool) error {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	flags &^= unix.O_DIRECT
	if on {
		flags |= unix.O_DIRECT
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags)
	return err
}

// writeDirect writes the pieces past the page cache and returns false, with nothing written, if the file system cannot.
// To copy what is not in the processor's caches into pages that are not either costs more than all else of an upload, and
// who reads the log reads its newest part from memory.
func writeDirect(fd int, pieces [][]byte) (done bool, err error) {
	size := 0
	for _, p := range pieces {
		size += len(p)
	}
	if size < directMin || setDirect(fd, true) != nil {
		return false, nil
	}
	buf := *directBuffers.Get().(*[]byte)
	defer directBuffers.Put(&buf)
	n := 0
	for _, p := range pieces {
		for len(p) > 0 {
			part := copy(buf[n:], p)
			n, p = n+part, p[part:]
			if n < len(buf) {
				break
			}
			if err := writeBlocks(fd, buf); err != nil {
				return true, err
			}
			n = 0
		}
	}
	whole := n &^ (directAlign - 1)
	if err := writeBlocks(fd, buf[:whole]); err != nil {
		return true, err
	}
	if err := setDirect(fd, false); err != nil {
		return true, err
	}
	return true, writeGroup(fd, [][]byte{buf[whole:n]})
}

// writeBlocks writes whole blocks, through the page cache from where they do not go past it on.
func writeBlocks(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case n == 0 && err == nil:
			return io.ErrShortWrite
		case errors.Is(err, unix.EINVAL) || err == nil && n&(directAlign-1) != 0:
			b = b[max(n, 0):]
			if err := setDirect(fd, false); err != nil {
				return err
			}
			return writeGroup(fd, [][]byte{b})
		case err != nil:
			return fmt.Errorf("write: %w", err)
		}
		b = b[n:]
	}
	return nil
}
