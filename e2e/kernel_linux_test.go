package e2e

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// dropCache takes a file that is on disk out of the page cache.
func dropCache(f *os.File) error { return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) }

// sendAlone returns the CPU that the kernel takes to send size bytes to a connection on loopback, 1 MiB a
// call, and nothing else: of a file in the page cache, as long as memory, by sendfile; from memory itself if f is nil. Who
// receives is not counted.
func sendAlone(f *os.File, memory []byte, size int64) (time.Duration, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		for buf := make([]byte, 1<<20); err == nil; {
			_, err = io.ReadFull(c, buf)
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return 0, err
	}
	defer c.Close()
	to, err := c.(*net.TCPConn).File()
	if err != nil {
		return 0, err
	}
	defer to.Close()
	if err := unix.SetNonblock(int(to.Fd()), false); err != nil {
		return 0, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin := threadCPU()
	for sent := int64(0); sent < size; {
		n, off := 0, sent%int64(len(memory))
		piece := memory[off:min(off+1<<20, int64(len(memory)))]
		if f == nil {
			n, err = unix.Write(int(to.Fd()), piece)
		} else {
			n, err = unix.Sendfile(int(to.Fd()), int(f.Fd()), &off, len(piece))
		}
		if err != nil || n == 0 {
			return 0, fmt.Errorf("after %d of %d bytes: %d, %w", sent, size, n, err)
		}
		sent += int64(n)
	}
	return threadCPU() - begin, nil
}

func threadCPU() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
