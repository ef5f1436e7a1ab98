package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"

	icebergio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/objectstore"
)

// A Locator, such as *objectstore.Locator, finds the bucket and key of a location: s3://bucket/key or
// file:///absolute/path (Iceberg Java writes file:/absolute/path), without percent decoding.
type Locator interface {
	Resolve(ctx context.Context, location string) (objectstore.Bucket, string, error)
}

// IO is iceberg-go's file system over the buckets of a Locator. Files become visible
// whole, when they are closed, and none is ever replaced.
type IO struct {
	ctx     context.Context // iceberg-go's file calls carry none
	locator Locator
	recent  *Recent // nil for none
}

// NewIO returns a file system whose calls end when ctx does.
func NewIO(ctx context.Context, locator Locator) *IO { return &IO{ctx: ctx, locator: locator} }

// FS returns what table.New takes.
func FS(locator Locator) func(context.Context) (icebergio.IO, error) {
	return func(ctx context.Context) (icebergio.IO, error) { return NewIO(ctx, locator), nil }
}

// ReadFile returns the content of a file, which must not be changed.
func (f *IO) ReadFile(location string) ([]byte, error) {
	if data, ok := f.recent.get(location); ok {
		return data, nil
	}
	bucket, key, err := f.locator.Resolve(f.ctx, location)
	if err != nil {
		return nil, err
	}
	data, err := bucket.Get(f.ctx, key, 0, -1)
	if err != nil {
		return nil, fileError("read", location, err)
	}
	f.recent.put(location, data)
	return data, nil
}

// WriteFile creates a file, whose content must not be changed later. One of the same content is taken for our own, made by an
// attempt whose answer was lost; any other is an error that wraps fs.ErrExist.
func (f *IO) WriteFile(location string, content []byte) error {
	bucket, key, err := f.locator.Resolve(f.ctx, location)
	if err != nil {
		return err
	}
	err = bucket.PutIfAbsent(f.ctx, key, content)
	if errors.Is(err, objectstore.ErrExists) {
		if old, getErr := bucket.Get(f.ctx, key, 0, -1); getErr == nil && bytes.Equal(old, content) {
			err = nil
		}
	}
	if err != nil {
		return fileError("create", location, err)
	}
	f.recent.put(location, content)
	return nil
}

// PutFile writes a file of a name that nobody else uses.
func (f *IO) PutFile(location string, content [][]byte) error {
	bucket, key, err := f.locator.Resolve(f.ctx, location)
	if err != nil {
		return err
	}
	if err := bucket.Put(f.ctx, key, content...); err != nil {
		return fileError("put", location, err)
	}
	return nil
}

// FilesOf returns the files of a table as its catalog reaches them, until ctx ends.
func FilesOf(ctx context.Context, t *table.Table) (*IO, error) {
	fs, err := t.FS(ctx)
	if err != nil {
		return nil, fmt.Errorf("files of table %v: %w", t.Identifier(), err)
	}
	own, ok := fs.(*IO)
	if !ok {
		return nil, fmt.Errorf("files of table %v: they are in a %T", t.Identifier(), fs)
	}
	return own, nil
}

// Open reads metadata whole and data files by range.
func (f *IO) Open(location string) (icebergio.File, error) {
	if !strings.HasSuffix(location, ".parquet") {
		data, err := f.ReadFile(location)
		if err != nil {
			return nil, err
		}
		return &file{io: f, location: location, size: int64(len(data)), reader: bytes.NewReader(data)}, nil
	}
	bucket, key, err := f.locator.Resolve(f.ctx, location)
	if err != nil {
		return nil, err
	}
	object, err := stat(f.ctx, bucket, key)
	if err != nil {
		return nil, fileError("open", location, err)
	}
	ranges := &rangeReader{ctx: f.ctx, bucket: bucket, key: key, size: object.Size}
	return &file{io: f, location: location, size: object.Size, modified: object.Modified,
		reader: io.NewSectionReader(ranges, 0, object.Size)}, nil
}

// Create returns a writer whose Close makes the file.
func (f *IO) Create(location string) (icebergio.FileWriter, error) {
	if _, _, err := f.locator.Resolve(f.ctx, location); err != nil {
		return nil, err
	}
	return &fileWriter{io: f, location: location}, nil
}

// Remove deletes a file. A missing one is no error.
func (f *IO) Remove(location string) error {
	_, err := f.DeleteFiles(f.ctx, []string{location})
	return err
}

// DeleteFiles deletes the files in batches, one for each bucket, and returns those that
// are gone.
func (f *IO) DeleteFiles(ctx context.Context, locations []string) ([]string, error) {
	var errs []error
	buckets := map[objectstore.Bucket]map[string]string{} // location by key
	for _, location := range locations {
		f.recent.remove(location)
		bucket, key, err := f.locator.Resolve(f.ctx, location)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if buckets[bucket] == nil {
			buckets[bucket] = map[string]string{}
		}
		buckets[bucket][key] = location
	}
	var deleted []string
	for bucket, byKey := range buckets {
		keys := make([]string, 0, len(byKey))
		for key := range byKey {
			keys = append(keys, key)
		}
		if err := bucket.Delete(ctx, keys...); err != nil {
			errs = append(errs, err)
			continue
		}
		for _, location := range byKey {
			deleted = append(deleted, location)
		}
	}
	return deleted, errors.Join(errs...)
}

// Empty reports whether there is no file below a location.
func (f *IO) Empty(location string) (bool, error) {
	bucket, key, err := f.locator.Resolve(f.ctx, strings.TrimSuffix(location, "/"))
	if err != nil {
		return false, err
	}
	page, err := bucket.List(f.ctx, key+"/", "")
	if err != nil {
		return false, fileError("list", location, err)
	}
	return len(page) == 0, nil
}

func stat(ctx context.Context, bucket objectstore.Bucket, key string) (objectstore.Object, error) {
	page, err := bucket.List(ctx, key, "") // the shortest key with a prefix comes first
	if err != nil {
		return objectstore.Object{}, err
	}
	if len(page) == 0 || page[0].Key != key {
		return objectstore.Object{}, objectstore.ErrNotFound
	}
	return page[0], nil
}

func fileError(op, location string, err error) error {
	switch {
	case errors.Is(err, objectstore.ErrNotFound):
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	case errors.Is(err, objectstore.ErrExists):
		err = fmt.Errorf("%w: %w", fs.ErrExist, err)
	}
	return &fs.PathError{Op: op, Path: location, Err: err}
}

type file struct {
	io       *IO
	location string
	size     int64
	modified time.Time
	reader
}

// reader is what both bytes.Reader and io.SectionReader give.
type reader interface {
	io.ReadSeeker
	io.ReaderAt
}

func (f *file) Close() error               { return nil }
func (f *file) Stat() (fs.FileInfo, error) { return fileInfo{f}, nil }

type fileInfo struct{ f *file }

func (i fileInfo) Name() string       { return path.Base(i.f.location) }
func (i fileInfo) Size() int64        { return i.f.size }
func (i fileInfo) Mode() fs.FileMode  { return 0o444 }
func (i fileInfo) ModTime() time.Time { return i.f.modified }
func (i fileInfo) IsDir() bool        { return false }
func (i fileInfo) Sys() any           { return nil }

type rangeReader struct {
	ctx    context.Context
	bucket objectstore.Bucket
	key    string
	size   int64
}

func (r *rangeReader) ReadAt(p []byte, off int64) (int, error) {
	if off >= r.size {
		return 0, io.EOF
	}
	if len(p) == 0 {
		return 0, nil
	}
	data, err := r.bucket.Get(r.ctx, r.key, off, int64(len(p)))
	n := copy(p, data)
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return n, err
}

type fileWriter struct {
	io       *IO
	location string
	bytes.Buffer
	closed bool
}

func (w *fileWriter) Close() error {
	if w.closed {
		return nil
	}
	w.closed = true
	return w.io.WriteFile(w.location, w.Bytes())
}
