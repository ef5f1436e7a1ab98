package objectstore

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A bucket that is lent answers for its own locations, the last of one location first, and
// never for what was added, below it or above it.
func TestLend(t *testing.T) {
	dir := func(path string) Bucket {
		d, err := OpenDir(vfs.NewMem(), path)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	l := NewLocator(S3Config{})
	own := dir("/lake/own")
	l.Add(own)
	table, again := dir("/lake/table"), dir("/lake/table")
	for _, b := range []Bucket{dir("/lake/own"), dir("/lake/own/warehouse/t"), dir("/lake"), table, again} {
		l.Lend(b)
	}
	for location, want := range map[string]Bucket{
		"file:///lake/own/x": own, "file:///lake/own/warehouse/t/x": own, "file:///lake/table/x": again,
	} {
		if got, _, err := l.Resolve(t.Context(), location); err != nil || got != want {
			t.Errorf("%s: the wrong bucket, %v", location, err)
		}
	}
	if got, _, err := l.Resolve(t.Context(), "file:///lake/x"); err != nil || got == own || got == again {
		t.Errorf("a location that nobody lent is in a lent bucket: %v", err)
	}
}
