package objectstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/tabletopic/tabletopic/internal/invariant"
)

// Dir is a Bucket in a directory of a file system: the key is the path below it, so that
// every engine reads the objects as the files they are.
//
// A write goes to a file of its own, is synced, then linked (PutIfAbsent: the kernel
// refuses a taken name) or renamed (Put) to its place, and the directory synced, as are
// the parents of directories that were made for it. Readers see whole objects only, and
// what was acknowledged survives the loss of power. So does an object that made a
// PutIfAbsent end in ErrExists, whoever wrote it: the directory is synced first.
//
// Unfinished files live in <root>/.tabletopic-tmp/<process>/, which the process holds a
// lock on. What crashed processes left there is swept by the next OpenDir.
type Dir struct {
	fs   vfs.FS
	root string    // absolute and clean
	temp string    // of this process
	lock io.Closer // on temp

	// beside says that temporary files lie beside their target, there being no temp.
	beside bool

	seq atomic.Uint64
	id  string // makes our temporary names unlike those of other processes

	// names is held for reading from making a directory until there is an entry in it,
	// and for writing while empty directories are removed.
	names sync.RWMutex

	mu     sync.Mutex
	synced map[string]struct{} // guarded by mu; directories that are there for good
}

const (
	// maxSynced bounds Dir.synced; beyond it directories are synced again.
	maxSynced = 100_000
	// staleTemp is how old a temporary file beside its target is before it is swept.
	staleTemp = time.Hour
)

// OpenDir opens the store in the directory root of fsys (vfs.Default: the real one), an
// absolute path. It makes the directory if it is missing.
func OpenDir(fsys vfs.FS, root string) (*Dir, error) {
	if !filepath.IsAbs(root) {
		return nil, fmt.Errorf("open object store %s: not an absolute path", root)
	}
	d := newDir(fsys, root)
	if err := d.openTemp(); err != nil {
		return nil, fmt.Errorf("open object store %s: %w", root, noSpace(err))
	}
	return d, nil
}

// openBeside is a Dir for files among those of others: temporary files lie beside their
// target, and empty directories stay.
func openBeside(fsys vfs.FS, root string) *Dir {
	d := newDir(fsys, root)
	d.beside = true
	return d
}

func newDir(fsys vfs.FS, root string) *Dir {
	return &Dir{fs: fsys, root: filepath.Clean(root), id: strings.ToLower(rand.Text()), synced: make(map[string]struct{})}
}

// openTemp makes and locks our directory for temporary files and removes those of the dead.
func (d *Dir) openTemp() error {
	all := d.fs.PathJoin(d.root, tempName)
	for try := 0; ; try++ {
		temp := d.fs.PathJoin(all, fmt.Sprintf("%s-%d", d.id, try))
		if err := d.ensure(temp); err != nil {
			return err
		}
		// A sweep by another process may fall between making and locking it.
		lock, err := d.fs.Lock(d.fs.PathJoin(temp, "LOCK"))
		if err == nil {
			if _, err = d.fs.Stat(d.fs.PathJoin(temp, "LOCK")); err == nil {
				d.temp, d.lock = temp, lock
				break
			}
			lock.Close()
		}
		if try == 10 {
			return err
		}
		d.forget(temp)
	}
	names, err := d.fs.List(all)
	if err != nil {
		return err
	}
	for _, name := range names {
		other := d.fs.PathJoin(all, name)
		if other == d.temp {
			continue
		}
		lock, err := d.fs.Lock(d.fs.PathJoin(other, "LOCK"))
		if err != nil {
			continue // alive, or gone
		}
		// What cannot be removed now is in nobody's way, and the next sweep tries again.
		_ = d.fs.RemoveAll(other)
		lock.Close()
	}
	return nil
}

// Close removes the directory for temporary files. No call may follow, or be under way.
func (d *Dir) Close() error {
	if d.lock == nil {
		return nil
	}
	err := d.fs.RemoveAll(d.temp)
	return errors.Join(err, d.lock.Close())
}

func (d *Dir) path(key string) (string, error) {
	if err := CheckKey(key); err != nil {
		return "", err
	}
	return d.fs.PathJoin(d.root, filepath.FromSlash(key)), nil
}

// Put implements Bucket.
func (d *Dir) Put(ctx context.Context, key string, body ...[]byte) error {
	return d.put(ctx, key, body, d.fs.Rename)
}

// PutIfAbsent implements Bucket.
func (d *Dir) PutIfAbsent(ctx context.Context, key string, body ...[]byte) error {
	publish := d.fs.Link // refuses a taken name
	if invariant.Off("dir-link-no-replace") {
		publish = d.fs.Rename
	}
	return d.put(ctx, key, body, publish)
}

func (d *Dir) put(ctx context.Context, key string, body [][]byte, publish func(from, to string) error) error {
	path, err := d.path(key)
	if err != nil {
		return fmt.Errorf("put: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("put %s: %w", key, err)
	}
	temp, err := d.tempFor(path)
	if err != nil {
		return fmt.Errorf("put %s: %w", key, noSpace(err))
	}
	err = d.write(temp, body)
	if err == nil {
		err = d.publish(temp, path, publish)
	}
	if errors.Is(err, fs.ErrExist) && d.isDir(path) {
		// Only an empty directory, left by a crash, gives way.
		d.removeEmpty(path)
		if d.isDir(path) {
			err = fmt.Errorf("%s is a directory, so it cannot be an object", path)
		} else {
			err = d.publish(temp, path, publish)
		}
	}
	_ = d.fs.Remove(temp) // gone already after a rename
	exists := errors.Is(err, fs.ErrExist)
	if err == nil || exists && !invariant.Off("dir-sync-existing") {
		// An object that is in the way must stay there: its writer may have died, or be us,
		// before the directory was synced.
		if syncErr := d.sync(d.fs.PathDir(path)); syncErr != nil {
			err, exists = syncErr, false
		}
	}
	switch {
	case exists:
		return fmt.Errorf("put %s: %w", key, ErrExists)
	case err != nil:
		return fmt.Errorf("put %s: %w", key, noSpace(err))
	}
	return nil
}

// tempFor names the temporary file that will become path.
func (d *Dir) tempFor(path string) (string, error) {
	n := d.seq.Add(1)
	if !d.beside {
		return d.fs.PathJoin(d.temp, fmt.Sprintf("%d", n)), nil
	}
	dir := d.fs.PathDir(path)
	if !d.isSynced(dir) {
		if err := d.ensure(dir); err != nil {
			return "", err
		}
		d.sweepBeside(dir)
	}
	return d.fs.PathJoin(dir, fmt.Sprintf("%s-%s-%d", tempName, d.id, n)), nil
}

// sweepBeside removes temporary files that nobody has written to for long.
func (d *Dir) sweepBeside(dir string) {
	names, _ := d.fs.List(dir)
	for _, name := range names {
		if !strings.HasPrefix(name, tempName+"-") {
			continue
		}
		path := d.fs.PathJoin(dir, name)
		if st, err := d.fs.Stat(path); err == nil && !st.IsDir() && time.Since(st.ModTime()) > staleTemp {
			_ = d.fs.Remove(path)
		}
	}
}

// write makes the file path of body and syncs it.
func (d *Dir) write(path string, body [][]byte) error {
	f, err := d.fs.Create(path, "tabletopic-object")
	if err != nil {
		return err
	}
	if d.fs == vfs.Default {
		err = writePieces(f, body)
	} else {
		err = writeCopies(f, body)
	}
	if err == nil && !invariant.Off("dir-sync-file") {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// writeCopies writes to a file system that may scribble on what it is given, as vfs.File says.
func writeCopies(f vfs.File, pieces [][]byte) error {
	for _, p := range pieces {
		if _, err := f.Write(slices.Clone(p)); err != nil {
			return err
		}
	}
	return nil
}

// publish gives the finished file temp its name, in a directory that is there for good.
func (d *Dir) publish(temp, path string, publish func(from, to string) error) error {
	d.names.RLock()
	defer d.names.RUnlock()
	dir := d.fs.PathDir(path)
	for try := 0; ; try++ {
		if err := d.ensure(dir); err != nil {
			return err
		}
		err := publish(temp, path)
		if !errors.Is(err, fs.ErrNotExist) || try == 3 {
			return err
		}
		d.forget(dir) // another process has removed it
	}
}

// ensure makes dir, the root or one below it, and syncs all that leads to it, once.
func (d *Dir) ensure(dir string) error {
	if d.isSynced(dir) {
		return nil
	}
	if err := d.fs.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	for at := dir; !d.isSynced(at); {
		parent := d.fs.PathDir(at)
		if parent == at {
			break
		}
		// A directory that we may not even read was not made by us.
		foreign := !d.within(parent) || d.beside
		if err := d.sync(parent); err != nil && !(foreign && (errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EINVAL))) {
			return err
		}
		at = parent
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.synced) >= maxSynced {
		clear(d.synced)
	}
	for at := dir; ; at = d.fs.PathDir(at) {
		d.synced[at] = struct{}{}
		if at == d.root {
			return nil
		}
	}
}

// within reports whether path is the root or below.
func (d *Dir) within(path string) bool {
	return path == d.root || strings.HasPrefix(path, strings.TrimSuffix(d.root, "/")+"/")
}

func (d *Dir) isDir(path string) bool {
	st, err := d.fs.Stat(path)
	return err == nil && st.IsDir()
}

func (d *Dir) isSynced(dir string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.synced[dir]
	return ok
}

// forget drops dir and its parents from the directories known to be there.
func (d *Dir) forget(dir string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for ; ; dir = d.fs.PathDir(dir) {
		delete(d.synced, dir)
		if dir == d.root {
			return
		}
	}
}

func (d *Dir) sync(dir string) error {
	if invariant.Off("dir-sync-directory") {
		return nil
	}
	f, err := d.fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// noSpace says what to do when the disk is full.
func noSpace(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("the disk is full, free some space or move the store: %w", err)
	}
	return err
}

// absent reports whether err says that there is no such file, be it for a file that lies
// where a directory should.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// Get implements Bucket.
func (d *Dir) Get(ctx context.Context, key string, off, n int64) ([]byte, error) {
	path, err := d.path(key)
	if err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("get %s: %w", key, err)
	}
	data, err := d.read(path, off, n)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", key, err)
	}
	return data, nil
}

func (d *Dir) read(path string, off, n int64) ([]byte, error) {
	f, size, err := d.open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	from, to := span(size, off, n)
	data := make([]byte, to-from)
	return data, readAt(f, from, data)
}

// getParts is GetParts.
func (d *Dir) getParts(ctx context.Context, key string, parts []Part) error {
	path, err := d.path(key)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	f, size, err := d.open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, to := rangeOf(parts); to > size {
		return ErrShort
	}
	for i := range parts {
		parts[i].Data = nil
	}
	if size >= directMin && d.fs == vfs.Default { // written past the page cache
		if err := readDirect(int(f.Fd()), parts); err != nil {
			return err
		}
	}
	for i := range parts {
		p := &parts[i]
		if p.Data != nil {
			continue
		}
		p.Data = p.Memory[:p.Size]
		if err := readAt(f, p.Off, p.Data); err != nil {
			return err
		}
	}
	return nil
}

// open opens an object and returns its size.
func (d *Dir) open(path string) (f vfs.File, size int64, err error) {
	f, err = d.fs.Open(path)
	if absent(err) {
		return nil, 0, ErrNotFound
	}
	if err != nil {
		return nil, 0, err
	}
	st, err := f.Stat()
	if err == nil && st.IsDir() {
		err = ErrNotFound
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, st.Size(), nil
}

// readAt fills buf.
func readAt(f vfs.File, off int64, buf []byte) error {
	if len(buf) == 0 {
		return nil
	}
	if k, err := f.ReadAt(buf, off); k < len(buf) {
		return fmt.Errorf("%d of %d bytes: %w", k, len(buf), errors.Join(err, io.ErrUnexpectedEOF))
	}
	return nil
}

// Delete implements Bucket. Directories that it empties are removed too.
func (d *Dir) Delete(ctx context.Context, keys ...string) error {
	if err := checkDelete(ctx, keys); err != nil {
		return err
	}
	failed := &DeleteError{}
	dirs := make(map[string][]string) // to the keys deleted there
	for _, key := range keys {
		path, _ := d.path(key)
		err := ctx.Err()
		if err == nil {
			err = d.remove(path)
		}
		if err != nil {
			failed.add(key, err)
			continue
		}
		dirs[d.fs.PathDir(path)] = append(dirs[d.fs.PathDir(path)], key)
	}
	for dir, keys := range dirs {
		if err := d.sync(dir); err != nil && !absent(err) {
			for _, key := range keys {
				failed.add(key, err)
			}
		}
		d.removeEmpty(dir)
	}
	if len(failed.Keys) > 0 {
		return failed
	}
	return nil
}

// remove removes a file, but never a directory.
func (d *Dir) remove(path string) error {
	st, err := d.fs.Stat(path)
	if err == nil && !st.IsDir() {
		err = d.fs.Remove(path)
	}
	if absent(err) {
		return nil
	}
	return err
}

func (d *Dir) removeEmpty(dir string) {
	if d.beside {
		return
	}
	d.names.Lock()
	defer d.names.Unlock()
	// What is no directory may be the object that a deleted key would have been below.
	for ; dir != d.root && d.isDir(dir) && d.fs.Remove(dir) == nil; dir = d.fs.PathDir(dir) {
		d.mu.Lock()
		delete(d.synced, dir)
		d.mu.Unlock()
	}
}

func (e *DeleteError) add(key string, err error) {
	e.Keys = append(e.Keys, key)
	if e.Err == nil {
		e.Err = err
	}
}

// List implements Bucket.
func (d *Dir) List(ctx context.Context, prefix, after string) ([]Object, error) {
	// The walk begins in the directory that prefix names. No key is in one that is not clean.
	base := prefix[:strings.LastIndex(prefix, "/")+1]
	if base != "" && CheckKey(base[:len(base)-1]) != nil {
		return nil, nil
	}
	w := dirWalk{d: d, ctx: ctx, prefix: prefix, after: after}
	if err := w.walk(base); err != nil {
		return nil, fmt.Errorf("list %s: %w", prefix, err)
	}
	return w.page, nil
}

type dirWalk struct {
	d             *Dir
	ctx           context.Context
	prefix, after string
	page          []Object
}

// walk adds the objects below the directory base (empty, or with a slash at its end).
func (w *dirWalk) walk(base string) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	fsys := w.d.fs
	names, err := fsys.List(fsys.PathJoin(w.d.root, filepath.FromSlash(base)))
	if absent(err) {
		return nil // removed meanwhile
	}
	if err != nil {
		return err
	}
	// "a" sorts before "a-b" as an object and behind it as the directory "a/": each name
	// is tried as both, and only those in the page cost a stat.
	tries := make([]string, 0, 2*len(names))
	for _, name := range names {
		if strings.HasPrefix(name, tempName) {
			continue
		}
		for _, try := range [...]string{name, name + "/"} {
			if w.wanted(base + try) {
				tries = append(tries, try)
			}
		}
	}
	slices.Sort(tries)
	for _, try := range tries {
		if len(w.page) == PageKeys {
			return nil
		}
		name, wantDir := strings.CutSuffix(try, "/")
		st, err := fsys.Stat(fsys.PathJoin(w.d.root, filepath.FromSlash(base+name)))
		if absent(err) {
			continue
		}
		if err != nil {
			return err
		}
		switch {
		case st.IsDir() != wantDir:
		case wantDir:
			if err := w.walk(base + try); err != nil {
				return err
			}
		case CheckKey(base+name) == nil: // a stranger's file may have any name
			w.page = append(w.page, Object{Key: base + name, Size: st.Size(), Modified: st.ModTime()})
		}
	}
	return nil
}

// wanted reports whether at, a key or a directory with its slash, can be or hold a key of the page.
func (w *dirWalk) wanted(at string) bool {
	if !strings.HasSuffix(at, "/") {
		return strings.HasPrefix(at, w.prefix) && at > w.after
	}
	return (strings.HasPrefix(at, w.prefix) || strings.HasPrefix(w.prefix, at)) &&
		(at > w.after || strings.HasPrefix(w.after, at))
}

// Location is file:///abs/path. Nothing in it is percent-encoded: engines take it as it is.
func (d *Dir) Location(key string) string {
	return "file://" + filepath.ToSlash(d.fs.PathJoin(d.root, filepath.FromSlash(key)))
}
