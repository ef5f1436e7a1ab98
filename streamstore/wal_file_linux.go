package streamstore

import (
	"errors"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"
)

// machineFS is the machine's own file system.
type machineFS struct{ vfs.FS }

// OpenDirect implements [directFS]. Some file systems refuse here, others each write.
func (fs machineFS) OpenDirect(name string) (vfs.File, error) {
	f, err := fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFL, unix.O_DIRECT); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// WriteDirect implements [directFS].
func (machineFS) WriteDirect(f vfs.File, pieces [][]byte, at int64) (int, error) {
	for {
		n, err := unix.Pwritev(int(f.Fd()), pieces, at)
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0), err
		}
	}
}
