package objectstore

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
)

// stepFS calls step before each operation that changes the file system or syncs it, and
// fails the operation with what step returns. A failed Write has written half.
type stepFS struct {
	vfs.FS
	step func(op, name string) error
}

func (s *stepFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := s.step("create", name); err != nil {
		return nil, err
	}
	f, err := s.FS.Create(name, c)
	return &stepFile{File: f, fs: s, name: name}, err
}

func (s *stepFS) Link(from, to string) error {
	if err := s.step("link", to); err != nil {
		return err
	}
	return s.FS.Link(from, to)
}

func (s *stepFS) Rename(from, to string) error {
	if err := s.step("rename", to); err != nil {
		return err
	}
	return s.FS.Rename(from, to)
}

func (s *stepFS) Remove(name string) error {
	if err := s.step("remove", name); err != nil {
		return err
	}
	return s.FS.Remove(name)
}

func (s *stepFS) MkdirAll(name string, perm os.FileMode) error {
	if err := s.step("mkdir", name); err != nil {
		return err
	}
	return s.FS.MkdirAll(name, perm)
}

func (s *stepFS) OpenDir(name string) (vfs.File, error) {
	f, err := s.FS.OpenDir(name)
	return &stepFile{File: f, fs: s, name: name}, err
}

type stepFile struct {
	vfs.File
	fs   *stepFS
	name string
}

func (f *stepFile) Write(p []byte) (int, error) {
	if err := f.fs.step("write", f.name); err != nil {
		n, _ := f.File.Write(p[:len(p)/2])
		return n, err
	}
	return f.File.Write(p)
}

func (f *stepFile) Sync() error {
	if err := f.fs.step("sync", f.name); err != nil {
		return err
	}
	return f.File.Sync()
}

func openDir(t *testing.T, fsys vfs.FS, root string) *Dir {
	t.Helper()
	d, err := OpenDir(fsys, root)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// absentValue stands for a key that holds nothing.
const absentValue = "(absent)"

// crashModel knows what a store must hold: one of the values that are possible.
type crashModel map[string][]string

func (m crashModel) check(t *testing.T, d *Dir, when string) {
	t.Helper()
	for key, possible := range m {
		got := absentValue
		data, err := d.Get(t.Context(), key, 0, -1)
		if err == nil {
			got = string(data)
		} else if !errors.Is(err, ErrNotFound) {
			t.Fatalf("%s: %v", when, err)
		}
		if !slices.Contains(possible, got) {
			t.Fatalf("%s: %s holds %d bytes %.20q…, want one of %.60q", when, key, len(got), got, possible)
		}
		listed, err := d.List(t.Context(), key, "")
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if there := len(listed) > 0 && listed[0].Key == key; there != (got != absentValue) {
			t.Fatalf("%s: %s listed: %v, want %v", when, key, there, !there)
		}
	}
}

// Whenever the power is lost, and whatever part of the unsynced bytes and names is lost
// with it: what was acknowledged is there, what was not is there whole or not at all, and
// nothing of the unfinished shows or stays.
func TestDirSurvivesCrash(t *testing.T) {
	crashes := 0
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 1))
		mem := vfs.NewCrashableMem()
		model := crashModel{}
		what := "open"
		check := func(op, name string) error {
			for _, percent := range []int{0, 50, 100} {
				clone := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: r})
				when := fmt.Sprintf("seed %d: %s, crash before %s %s keeping %d %%", seed, what, op, name, percent)
				checkAfterCrash(t, clone, model, when)
				crashes++
			}
			return nil
		}
		d := openDir(t, &stepFS{mem, check}, "/data/objects")
		for i := range 12 {
			key := fmt.Sprintf("k%d/sub%d/x", r.IntN(2), r.IntN(2))
			value := strings.Repeat(string(rune('a'+i)), 1+r.IntN(12_000))
			if model[key] == nil {
				model[key] = []string{absentValue}
			}
			before := model[key][0]
			var err error
			switch r.IntN(4) {
			case 0:
				what = "delete " + key
				model[key] = []string{before, absentValue}
				err = d.Delete(t.Context(), key)
				value = absentValue
			case 1:
				what = "put " + key
				model[key] = []string{before, value}
				err = d.Put(t.Context(), key, []byte(value[:len(value)/2]), []byte(value[len(value)/2:]))
			default:
				what = "create " + key
				if before == absentValue {
					model[key] = []string{before, value}
				}
				err = d.PutIfAbsent(t.Context(), key, []byte(value))
				if errors.Is(err, ErrExists) && before != absentValue {
					err, value = nil, before
				}
			}
			if err != nil {
				t.Fatalf("seed %d: %s: %v", seed, what, err)
			}
			model[key] = []string{value}
			what = "after " + what
		}
		check("", "end")
	}
	if crashes < 1000 {
		t.Errorf("only %d crashes tried", crashes)
	}
}

func checkAfterCrash(t *testing.T, fsys vfs.FS, model crashModel, when string) {
	t.Helper()
	d := openDir(t, fsys, "/data/objects")
	model.check(t, d, when)
	temps, err := fsys.List("/data/objects/" + tempName)
	if err != nil || len(temps) != 1 {
		t.Fatalf("%s: temporary directories %q, %v, want only that of the new process", when, temps, err)
	}
}

// ErrExists promises an object that stays, even when its writer never got to sync the
// directory: a writer that finds its own nonce there acknowledges.
func TestDirExistsIsDurable(t *testing.T) {
	mem := vfs.NewCrashableMem()
	broken := errors.New("sync failed")
	fail := false
	d := openDir(t, &stepFS{mem, func(op, name string) error {
		if fail && op == "sync" && strings.HasSuffix(name, "wal") {
			fail = false
			return broken
		}
		return nil
	}}, "/objects")
	if err := d.Put(t.Context(), "wal/0", []byte("0")); err != nil {
		t.Fatal(err)
	}
	fail = true
	if err := d.PutIfAbsent(t.Context(), "wal/1", []byte("mine")); !errors.Is(err, broken) {
		t.Fatalf("create: %v, want %v", err, broken)
	}
	if err := d.PutIfAbsent(t.Context(), "wal/1", []byte("mine")); !errors.Is(err, ErrExists) {
		t.Fatalf("second create: %v, want %v", err, ErrExists)
	}
	after := openDir(t, mem.CrashClone(vfs.CrashCloneCfg{}), "/objects")
	if got, err := after.Get(t.Context(), "wal/1", 0, -1); string(got) != "mine" {
		t.Fatalf("after the crash: %q, %v, want %q", got, err, "mine")
	}
}

func TestDirCreateKeepsFirst(t *testing.T) {
	d := openDir(t, vfs.Default, t.TempDir())
	if err := d.PutIfAbsent(t.Context(), "wal/1", []byte("fence")); err != nil {
		t.Fatal(err)
	}
	if err := d.PutIfAbsent(t.Context(), "wal/1", []byte("zombie")); !errors.Is(err, ErrExists) {
		t.Errorf("create over a fence: %v, want %v", err, ErrExists)
	}
	if got, _ := d.Get(t.Context(), "wal/1", 0, -1); string(got) != "fence" {
		t.Errorf("wal/1 holds %q, want %q", got, "fence")
	}
}

// A full disk fails the write with a hint, wherever it strikes, and leaves nothing behind.
func TestDirFullDisk(t *testing.T) {
	for _, failing := range []string{"create", "write", "sync", "mkdir", "link", "rename"} {
		t.Run(failing, func(t *testing.T) {
			full := false
			root := t.TempDir()
			d := openDir(t, &stepFS{vfs.Default, func(op, name string) error {
				if full && op == failing {
					return &os.PathError{Op: op, Path: name, Err: syscall.ENOSPC}
				}
				return nil
			}}, root)
			if err := d.Put(t.Context(), "old", []byte("old")); err != nil {
				t.Fatal(err)
			}
			full = true
			for name, put := range map[string]func() error{
				"put":    func() error { return d.Put(t.Context(), "dir/new", bytes.Repeat([]byte("x"), 9000)) },
				"create": func() error { return d.PutIfAbsent(t.Context(), "dir/new", bytes.Repeat([]byte("x"), 9000)) },
			} {
				err := put()
				if failing == "link" && name == "put" || failing == "rename" && name == "create" {
					if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					if err := d.Delete(t.Context(), "dir/new"); err != nil {
						t.Fatal(err)
					}
					continue
				}
				if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "disk is full") {
					t.Errorf("%s: %v, want one that says that the disk is full", name, err)
				}
			}
			full = false
			if diff := cmp.Diff([]string{"old"}, files(t, root)); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
			if err := d.PutIfAbsent(t.Context(), "dir/new", []byte("x")); err != nil {
				t.Errorf("create after space was freed: %v", err)
			}
		})
	}
}

// files lists the files below root, locks aside.
func files(t *testing.T, root string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && e.Name() != "LOCK" {
			rel, _ := filepath.Rel(root, path)
			all = append(all, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// What a dead process left is swept; what a living one is writing is not.
func TestDirSweepsTheDead(t *testing.T) {
	root := t.TempDir()
	dead := filepath.Join(root, tempName, "dead-0")
	if err := os.MkdirAll(dead, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dead, "7"), []byte("half"), 0o666); err != nil {
		t.Fatal(err)
	}
	var second *Dir
	first := openDir(t, &stepFS{vfs.Default, func(op, name string) error {
		if op == "link" { // the file is written, its name is not there yet
			second = openDir(t, vfs.Default, root)
		}
		return nil
	}}, root)
	if _, err := os.Stat(dead); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("temporary files of a dead process are there: %v", err)
	}
	if err := first.PutIfAbsent(t.Context(), "a", []byte("a")); err != nil {
		t.Errorf("create while another process opens the store: %v", err)
	}
	if err := errors.Join(first.Close(), second.Close()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a"}, files(t, root)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// Deleting the last object of a directory removes it, whatever is created there meanwhile.
func TestDirDeleteRacesCreate(t *testing.T) {
	root := t.TempDir()
	d := openDir(t, vfs.Default, root)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 50 {
				key := fmt.Sprintf("x/y/%d-%d", w, i)
				if err := d.PutIfAbsent(t.Context(), key, []byte(key)); err != nil {
					t.Error(err)
				}
				if err := d.Delete(t.Context(), key); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if _, err := os.Stat(filepath.Join(root, "x")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("empty directory is left: %v", err)
	}
}

// Dir and Memory give the same answers to the same calls, errors apart from their text.
func TestDirIsLikeMemory(t *testing.T) {
	for seed := range uint64(15) {
		r := rand.New(rand.NewPCG(seed, 2))
		d, m := openDir(t, vfs.Default, t.TempDir()), NewMemory()
		segment := []string{"a", "a-", "a.b", "b", "a0", "-"}
		key := func() string {
			var s []string
			for range 1 + r.IntN(3) {
				s = append(s, segment[r.IntN(len(segment))])
			}
			return strings.Join(s, "/")
		}
		for step := range 120 {
			k, v := key(), []byte(fmt.Sprint(step))
			var errs [2]error
			for i, b := range []Bucket{d, m} {
				switch step % 4 {
				case 0:
					errs[i] = b.PutIfAbsent(t.Context(), k, v)
				case 1:
					errs[i] = b.Put(t.Context(), k, v)
				case 2:
					_, errs[i] = b.Get(t.Context(), k, 0, -1)
				case 3:
					errs[i] = b.Delete(t.Context(), k)
				}
			}
			if (errs[0] == nil) != (errs[1] == nil) || errors.Is(errs[0], ErrExists) != errors.Is(errs[1], ErrExists) ||
				errors.Is(errs[0], ErrNotFound) != errors.Is(errs[1], ErrNotFound) {
				t.Fatalf("seed %d, step %d, key %s: Dir: %v, Memory: %v", seed, step, k, errs[0], errs[1])
			}
			prefix, after := key()[:1], key()
			if r.IntN(2) == 0 {
				prefix = ""
			}
			var lists [2][]string
			for i, b := range []Bucket{d, m} {
				page, err := b.List(t.Context(), prefix, after)
				if err != nil {
					t.Fatal(err)
				}
				for _, o := range page {
					lists[i] = append(lists[i], fmt.Sprintf("%s %d", o.Key, o.Size))
				}
			}
			if diff := cmp.Diff(lists[1], lists[0]); diff != "" {
				t.Fatalf("seed %d, step %d: list %q after %q (-Memory +Dir):\n%s", seed, step, prefix, after, diff)
			}
		}
	}
}

// A Dir among the files of others leaves them alone, and makes no directory of its own.
func TestDirBesideOthers(t *testing.T) {
	root := t.TempDir()
	stale, fresh := filepath.Join(root, "t", tempName+"-dead-1"), filepath.Join(root, "t", tempName+"-alive-1")
	if err := os.MkdirAll(filepath.Join(root, "t"), 0o777); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{stale, fresh} {
		if err := os.WriteFile(f, nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	st, _ := os.Stat(stale)
	long := st.ModTime().Add(-2 * staleTemp)
	if err := os.Chtimes(stale, long, long); err != nil {
		t.Fatal(err)
	}
	d := openBeside(vfs.Default, root)
	if err := d.Put(t.Context(), "t/data", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"t/" + tempName + "-alive-1", "t/data"}, files(t, root)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if page, err := d.List(t.Context(), "", ""); err != nil || len(page) != 1 {
		t.Errorf("list: %v, %v, want the one object", page, err)
	}
	if err := d.Delete(t.Context(), "t/data"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "t")); err != nil {
		t.Errorf("directory of others: %v", err)
	}
}
