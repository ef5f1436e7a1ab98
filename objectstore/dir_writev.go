//go:build linux

package objectstore

import (
	"errors"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"
)

// maxPieces is how many pieces one call takes (IOV_MAX).
const maxPieces = 1024

// writePieces writes the pieces one after another, with one call for many: objects of the stream log have a header of
// 24 bytes before each batch.
func writePieces(f vfs.File, pieces [][]byte) error {
	if done, err := writeDirect(int(f.Fd()), pieces); done {
		return err
	}
	group := make([][]byte, min(len(pieces), maxPieces))
	for len(pieces) > 0 {
		n := copy(group, pieces)
		pieces = pieces[n:]
		if err := writeGroup(int(f.Fd()), group[:n]); err != nil {
			return err
		}
	}
	return nil
}

func writeGroup(fd int, group [][]byte) error {
	for {
		for len(group) > 0 && len(group[0]) == 0 {
			group = group[1:]
		}
		if len(group) == 0 {
			return nil
		}
		n, err := unix.Writev(fd, group)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("write: %w", err)
		case n == 0:
			return io.ErrShortWrite
		}
		for n > 0 {
			part := min(n, len(group[0]))
			group[0] = group[0][part:]
			n -= part
			if len(group[0]) == 0 {
				group = group[1:]
			}
		}
	}
}
