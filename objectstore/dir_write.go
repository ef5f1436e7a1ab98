//go:build !linux

package objectstore

import (
	"math"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// writePieces writes the pieces one after another.
func writePieces(f vfs.File, pieces [][]byte) error {
	for _, p := range pieces {
		if _, err := f.Write(p); err != nil {
			return err
		}
	}
	return nil
}

// directMin is the size of an object from which on readDirect is tried.
const directMin = math.MaxInt64

// readDirect reads nothing: what is read goes through the page cache.
func readDirect(int, []Part) error { return nil }
