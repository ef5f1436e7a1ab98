package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/tabletopic/tabletopic/objectstore"
)

// oneBucket resolves every location to a bucket.
type oneBucket struct{ objectstore.Bucket }

func (b oneBucket) Resolve(_ context.Context, location string) (objectstore.Bucket, string, error) {
	return b.Bucket, location, nil
}

// Manifests that were written or read are read from memory, up to a bound, until they are deleted; a file that
// could not be written, or is no manifest, is not.
func TestRecentFiles(t *testing.T) {
	counter := &objectstore.Counter{}
	bucket := objectstore.NewMemory()
	files := NewIO(t.Context(), oneBucket{objectstore.Observe(bucket, counter)}).Recently(&Recent{})
	reads := func(location string, want []byte) int64 {
		t.Helper()
		before := counter.Count(objectstore.OpGet)
		data, err := files.ReadFile(location)
		if err != nil || !bytes.Equal(data, want) {
			t.Fatalf("read %s: %d bytes, %v, want %d", location, len(data), err, len(want))
		}
		return counter.Count(objectstore.OpGet) - before
	}
	write := func(location string, data []byte) {
		t.Helper()
		if err := files.WriteFile(location, data); err != nil {
			t.Fatal(err)
		}
	}
	write("m.avro", []byte("m"))
	write("v1.metadata.json", []byte("{}"))
	if n := reads("m.avro", []byte("m")); n != 0 {
		t.Errorf("%d reads of a manifest that was written", n)
	}
	if n := reads("v1.metadata.json", []byte("{}")); n != 1 {
		t.Errorf("%d reads of a metadata file, want 1", n)
	}
	if err := bucket.Put(t.Context(), "others.avro", []byte("o")); err != nil {
		t.Fatal(err)
	}
	if first, second := reads("others.avro", []byte("o")), reads("others.avro", []byte("o")); first != 1 || second != 0 {
		t.Errorf("%d and %d reads of another's manifest, want 1 and 0", first, second)
	}
	if err := files.WriteFile("others.avro", []byte("mine")); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("write over another's manifest: %v", err)
	}
	reads("others.avro", []byte("o"))
	if err := files.Remove("m.avro"); err != nil {
		t.Fatal(err)
	}
	if _, err := files.ReadFile("m.avro"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read of a file that was deleted: %v", err)
	}

	large := make([]byte, recentBytes/recentShare)
	for i := range recentShare + 1 {
		write(fmt.Sprintf("%d.avro", i), large)
	}
	if n := reads(fmt.Sprintf("%d.avro", recentShare), large); n != 0 {
		t.Errorf("%d reads of the last manifest", n)
	}
	if n := reads("0.avro", large); n != 1 {
		t.Errorf("%d reads of a manifest that has no room, want 1", n)
	}
	write("huge.avro", append(large, 0))
	if n := reads("huge.avro", append(large, 0)); n != 1 {
		t.Errorf("%d reads of a manifest that is too large, want 1", n)
	}
}
