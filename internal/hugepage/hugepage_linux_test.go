package hugepage

import (
	"bytes"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A buffer that is backed by huge pages holds what it held, wherever it begins and ends, and so do others beside it.
func TestBackedMemoryHoldsWhatItHeld(t *testing.T) {
	mayCost(t, time.Hour)
	r := rand.NewChaCha8([32]byte{2})
	for range 20 {
		var buffers, copies [][]byte
		for _, n := range []int{0, 1, Min - 1, Min, Min + 4097, Size - 1, Size, 3*Size + 5, 100} {
			b := make([]byte, n)
			r.Read(b)
			buffers, copies = append(buffers, b), append(copies, bytes.Clone(b))
		}
		for i, b := range buffers {
			Back(b)
			if !bytes.Equal(b, copies[i]) {
				t.Fatalf("a buffer of %d bytes has changed", len(b))
			}
		}
		for i, b := range buffers {
			if !bytes.Equal(b, copies[i]) {
				t.Fatalf("a buffer of %d bytes has changed with its neighbours", len(b))
			}
		}
	}
}

// Where the kernel can, there are huge pages under a buffer afterwards.
func TestBufferIsBackedByHugePages(t *testing.T) {
	mayCost(t, time.Hour)
	b := make([]byte, 16*Size)
	for i := range b {
		b[i] = byte(i)
	}
	before := hugeBytes(t)
	if Back(b); paused.Load() != 0 {
		t.Skip("the machine has no huge page left")
	}
	if kernel := new(unix.Utsname); unix.Uname(kernel) != nil || !collapses(kernel) {
		t.Skip("the kernel is older than 6.1")
	}
	if setting, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled"); err != nil || bytes.Contains(setting, []byte("[never]")) {
		t.Skip("the kernel has no transparent huge pages, or is to give none")
	}
	if got := hugeBytes(t) - before; got < int64(len(b))/2 {
		t.Errorf("%d of %d bytes are in huge pages", got, len(b))
	}
	b[0]++
}

// A kernel that takes long for a huge page is not asked for another at once.
func TestDearPagesAreLeftAlone(t *testing.T) {
	mayCost(t, 0)
	b := make([]byte, 16*Size)
	for i := range b {
		b[i] = byte(i)
	}
	before := hugeBytes(t)
	for range 16 {
		Back(b)
	}
	if got := hugeBytes(t) - before; got > Size || paused.Load() == 0 {
		t.Errorf("%d bytes are in huge pages, and the next is asked for from %d on", got, paused.Load())
	}
	b[0]++
}

// mayCost has a huge page be dear from another time on, until the test ends.
func mayCost(t *testing.T, d time.Duration) {
	before := dear
	dear = d
	paused.Store(0)
	t.Cleanup(func() { dear = before; paused.Store(0) })
}

func collapses(kernel *unix.Utsname) bool {
	m := regexp.MustCompile(`^(\d+)\.(\d+)`).FindStringSubmatch(unix.ByteSliceToString(kernel.Release[:]))
	if m == nil {
		return false
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	return major > 6 || major == 6 && minor >= 1
}

func hugeBytes(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		t.Skip(err)
	}
	m := regexp.MustCompile(`(?m)^AnonHugePages:\s+(\d+) kB$`).FindSubmatch(text)
	if m == nil {
		t.Skip("the kernel does not count huge pages")
	}
	n, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}
