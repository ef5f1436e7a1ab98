//go:build !linux

package streamstore

import "github.com/cockroachdb/pebble/v2/vfs"

// machineFS is the machine's own file system, here without a way past the page cache.
type machineFS struct{ vfs.FS }
