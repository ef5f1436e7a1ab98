//go:build !linux

package objectstore

import "github.com/cockroachdb/pebble/v2/vfs"

// writePieces writes the pieces one after another.
func writePieces(f vfs.File, pieces [][]byte) error {
	for _, p := range pieces {
		if _, err := f.Write(p); err != nil {
			return err
		}
	}
	return nil
}
