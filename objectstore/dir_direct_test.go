//go:build linux

package objectstore

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

	"github.com/tabletopic/tabletopic/internal/hugepage"
	"github.com/tabletopic/tabletopic/internal/lab"
)

// randomParts returns parts of an object, at random places, and memory for them.
func randomParts(r *rand.Rand, size int64, memory func(n int) []byte) (parts []Part) {
	for at := r.Int64N(2 * blockSize); at < size; {
		n := 1 + r.IntN(1<<r.IntN(20))
		n = int(min(int64(n), size-at))
		parts = append(parts, Part{Off: at, Size: n, Memory: memory(n)})
		at += int64(n)
		if r.IntN(2) == 0 {
			at += r.Int64N(2 * blockSize)
		}
	}
	return parts
}

func testParts(t *testing.T, d *Dir, data []byte, parts []Part) {
	t.Helper()
	if err := GetParts(t.Context(), d, "k", parts); err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		if !bytes.Equal(p.Data, data[p.Off:p.Off+int64(p.Size)]) {
			t.Fatalf("%d bytes from %d on are not what was written", p.Size, p.Off)
		}
	}
}

// What is read past the page cache, and what is read through it because memory or file system are not for that, is what was written.
func TestDirPartsPastThePageCache(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	plain := func(n int) []byte { return make([]byte, n) }
	whole := func(n int) []byte { return blocks(PartMemory(n)) }
	for _, size := range []int{directMin - 1, directMin, 3<<20 + 4097} {
		data := make([]byte, size)
		rand.NewChaCha8([32]byte{byte(size)}).Read(data)
		disk, err := OpenDir(vfs.Default, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		memory, err := OpenDir(vfs.NewMem(), "/dir")
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range []*Dir{disk, memory} {
			if err := d.Put(t.Context(), "k", data); err != nil {
				t.Fatal(err)
			}
			for range 20 {
				testParts(t, d, data, randomParts(r, int64(size), whole))
				testParts(t, d, data, randomParts(r, int64(size), plain))
				testParts(t, d, data, randomParts(r, int64(size), func(n int) []byte { // as the log: small ones are not pooled
					if n < 16<<10 {
						return plain(n)
					}
					return whole(n)
				}))
			}
			testParts(t, d, data, []Part{{Size: size, Memory: whole(size)}})
		}
	}
}

// A large read goes past the page cache, into memory for whole blocks: nothing of the file is in the page cache after it.
func TestDirReadLeavesThePageCache(t *testing.T) {
	dir := t.TempDir()
	d, err := OpenDir(vfs.Default, dir)
	if err != nil {
		t.Fatal(err)
	}
	const size = 4 << 20
	if err := d.Put(t.Context(), "k", make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "k")
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		t.Fatal(err)
	}
	if fs.Type == unix.TMPFS_MAGIC || setDirect(int(f.Fd()), true) != nil {
		t.Skip("the file system of the temporary directory is only read through the page cache")
	}
	if ok, err := readBlocks(int(f.Fd()), blocks(2 * blockSize)[1:blockSize+1], 0, 1); ok || err != nil {
		t.Errorf("a read that the file system refuses: %t, %v, want it to be left to the page cache", ok, err)
	}
	dropPages(t, path)
	for _, c := range []struct {
		memory []byte
		cached bool
	}{{blocks(PartMemory(size / 2)), false}, {make([]byte, size/2), true}} {
		if err := GetParts(t.Context(), d, "k", []Part{{Off: 1000, Size: size / 2, Memory: c.memory}}); err != nil {
			t.Fatal(err)
		}
		if n := cachedPages(t, path, size); n > 0 != c.cached {
			t.Errorf("%d pages of the object are in the page cache after a read into %d bytes of memory for %d", n, len(c.memory), size/2)
		}
	}
}

// dropPages has the kernel forget what is in memory of a file.
func dropPages(t testing.TB, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
}

// cachedPages returns how many pages of a file are in the page cache.
func cachedPages(t *testing.T, path string, size int) (n int) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(data)
	pages := make([]byte, (size+os.Getpagesize()-1)/os.Getpagesize())
	if _, _, errno := syscall.Syscall(unix.SYS_MINCORE, addressOf(data), uintptr(size), addressOf(pages)); errno != 0 {
		t.Fatal(errno)
	}
	for _, p := range pages {
		n += int(p & 1)
	}
	return n
}

// BenchmarkDirParts reads an object that the page cache has nothing of, in parts of 512 KiB, as a consumer that catches up does.
func BenchmarkDirParts(b *testing.B) {
	const size, part = 256 << 20, 512 << 10
	dir := b.TempDir()
	d, err := OpenDir(vfs.Default, dir)
	if err != nil {
		b.Fatal(err)
	}
	if err := d.Put(b.Context(), "k", make([]byte, size+blockSize)); err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		memory func(n int) []byte
	}{
		{"through the page cache", func(n int) []byte { return make([]byte, n) }},
		{"past it", func(n int) []byte { return blocks(PartMemory(n)) }},
		{"past it into huge pages", func(n int) []byte {
			b := blocks(PartMemory(n))
			hugepage.Back(b)
			return b
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			parts := make([]Part, 64)
			for i := range parts {
				parts[i] = Part{Size: part, Memory: c.memory(part)}
			}
			b.SetBytes(size)
			cpu := time.Duration(0)
			for b.Loop() {
				dropPages(b, filepath.Join(dir, "k"))
				begun := lab.CPU(b)
				for at := int64(20); at < size; {
					for i := range parts {
						parts[i].Off = at
						at += part
					}
					if err := GetParts(b.Context(), d, "k", parts); err != nil {
						b.Fatal(err)
					}
				}
				cpu += lab.CPU(b) - begun
			}
			b.ReportMetric(cpu.Seconds()/float64(b.N)*(1<<30)/size, "cpu-s/GiB")
		})
	}
}
