//go:build linux

package objectstore

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tabletopic/tabletopic/internal/hugepage"
)

const (
	// directMin is the size from which on an object does not go through the page cache, and directReadMin that of a read of
	// such an object: of many streams the log reads few blocks at a time.
	directMin     = 1 << 20
	directReadMin = 64 << 10
	// directBuffer is how much is written at once.
	directBuffer = 1 << 20
)

// directBuffers hold *[]byte of directBuffer bytes that begin with a block.
var directBuffers = sync.Pool{New: func() any {
	b := blocks(directBuffer)
	hugepage.Back(b)
	return &b
}}

// blocks returns n bytes of memory that begin with a block.
func blocks(n int) []byte {
	b := make([]byte, n+blockSize)
	skip := -int(addressOf(b)) & (blockSize - 1)
	return b[skip : skip+n : skip+n]
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

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
	whole := n &^ (blockSize - 1)
	if err := writeBlocks(fd, buf[:whole]); err != nil {
		return true, err
	}
	if err := setDirect(fd, false); err != nil {
		return true, err
	}
	return true, writeGroup(fd, [][]byte{buf[whole:n]})
}

// readDirect reads past the page cache the parts whose memory is for that, and sets their Data; none if the file system cannot, or
// if they are small. To find, fill and account for the pages of what is read once takes as much CPU as to send it to a consumer.
func readDirect(fd int, parts []Part) (err error) {
	size := 0
	for _, p := range parts {
		if p.wholeBlocks() {
			size += p.Size
		}
	}
	if size < directReadMin || setDirect(fd, true) != nil {
		return nil
	}
	defer func() { err = errors.Join(err, setDirect(fd, false)) }()
	for i := range parts {
		p := &parts[i]
		if !p.wholeBlocks() {
			continue
		}
		skip := int(p.Off & (blockSize - 1))
		ok, err := readBlocks(fd, p.Memory[:(skip+p.Size+blockSize-1)&^(blockSize-1)], p.Off-int64(skip), skip+p.Size)
		if !ok || err != nil {
			return err
		}
		p.Data = p.Memory[skip : skip+p.Size]
	}
	return nil
}

// wholeBlocks reports whether the part has memory to be read past the page cache.
func (p *Part) wholeBlocks() bool {
	return len(p.Memory) >= PartMemory(p.Size) && addressOf(p.Memory)%blockSize == 0
}

// readBlocks reads whole blocks, of which the last may be beyond the end of the file, but least bytes. It returns false if they cannot
// be read so.
func readBlocks(fd int, b []byte, off int64, least int) (ok bool, err error) {
	for n := 0; n < least; {
		k, err := unix.Pread(fd, b[n:], off+int64(n))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EINVAL):
			return false, nil
		case err != nil:
			return true, fmt.Errorf("read: %w", err)
		case k == 0:
			return true, fmt.Errorf("%d of %d bytes: %w", n, least, io.ErrUnexpectedEOF)
		}
		n += k
	}
	return true, nil
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
		case errors.Is(err, unix.EINVAL) || err == nil && n&(blockSize-1) != 0:
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
