package streamstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/tabletopic/tabletopic/internal/strictfs"
)

// Appends that come while the disk is busy share the next fsync.
func TestFileWALGroupsCommits(t *testing.T) {
	e := newEnv(t)
	var syncs atomic.Int64
	first, release := make(chan struct{}), make(chan struct{})
	cfg := e.config(WALFile)
	cfg.WALBytes = 1 << 20
	cfg.WALFS = strictfs.FS{FS: errorfs.Wrap(e.fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSyncData && syncs.Add(1) == 1 {
			close(first)
			<-release
		}
		return nil
	}))}
	s := e.open(cfg)
	st := e.create(s, 1, 1)[0]
	want := numbered("r", 100, 10)
	done := []<-chan error{start(t, st, want[0])}
	<-first
	for _, p := range want[1:] {
		done = append(done, start(t, st, p))
	}
	close(release)
	for i, c := range done {
		if err := <-c; err != nil {
			t.Fatalf("append %d: %v", i, err)
		}
	}
	if n := syncs.Load(); n != 2 {
		t.Errorf("%d fsyncs for one append and 99 during its fsync, want 2", n)
	}
}

// A segment that another version wrote, in whole or from some bulk on, or that is no WAL at all, is
// refused with the place and what to do. The version that wrote it finds all of it.
func TestFileWALOfAnotherVersionIsRefused(t *testing.T) {
	e := newEnv(t)
	s := e.open(e.config(WALFile))
	st := e.create(s, 1, 1)[0]
	want := []string{"first", "second", "third"}
	for _, p := range want {
		appendAll(t, st, p)
	}
	s.abandon()
	name := filepath.Join(walLifeDir("/wal", 1, s.Node().Epoch), fmt.Sprintf("%016x%s", 0, walSegmentSuffix))
	whole, err := e.fs.UnsafeGetFileDataBuffer(name)
	if err != nil {
		t.Fatal(err)
	}
	whole = slices.Clone(whole)
	_, _, tail, err := parseBulk(whole)
	if err != nil {
		t.Fatal(err)
	}
	first := len(whole) - len(tail)
	second := 2 * first
	at := func(from, to int, change func([]byte) []byte) []byte {
		return slices.Concat(whole[:from], change(whole[from:to]), whole[to:])
	}
	newer := func(b []byte) []byte { return ofVersion(b, walVersion+1) }
	foreign := func(b []byte) []byte { return append([]byte("\xed\xcb\xa9\x87"), b[4:]...) }
	for _, c := range []struct {
		what  string
		data  []byte
		texts []string
	}{
		{"newer version", at(0, first, newer), []string{"at byte 0 of", "newer", "start the program that wrote it"}},
		{"newer version from the second bulk on", at(first, second, newer), []string{fmt.Sprintf("at byte %d of", first), "newer", "start the program that wrote it"}},
		{"foreign file", at(0, first, foreign), []string{"at byte 0 of", "not a WAL of this program", ErrCorrupt.Error()}},
		{"foreign bulk", at(first, second, foreign), []string{fmt.Sprintf("at byte %d of", first), "not a WAL of this program", ErrCorrupt.Error()}},
		{"record of a later kind", at(0, first, func(b []byte) []byte { return withRecord(b, func(rec []byte) { rec[0] = 9 }) }),
			[]string{"bulk at byte 0", fmt.Sprintf("record at byte %d", walHeaderSize), "start the program that wrote it"}},
	} {
		if err := writeFile(e.fs, name, slices.Clone(c.data)); err != nil {
			t.Fatal(err)
		}
		_, err := e.tryOpen(e.config(WALFile))
		if err == nil {
			t.Fatalf("%s: opened", c.what)
		}
		for _, text := range append(c.texts, name) {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: error %q does not say %q", c.what, err, text)
			}
		}
	}
	if err := writeFile(e.fs, name, whole); err != nil {
		t.Fatal(err)
	}
	s = e.open(e.config(WALFile))
	if got := readAll(t, e.reopen(s, OpenRequest{st.ID(), 2})[0]); !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
}

// A writtenWAL is a file WAL and what was written to it.
type writtenWAL struct {
	t     *testing.T
	fs    vfs.FS
	wal   *fileWAL
	bulks [][]byte // bodies
}

func newWrittenWAL(t *testing.T, fs vfs.FS, dir string) *writtenWAL {
	wal, err := openFileWAL(fs, dir, Node{ID: 1, Epoch: 1}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return &writtenWAL{t: t, fs: fs, wal: wal}
}

// write makes a bulk of n bytes durable, in pieces.
func (w *writtenWAL) write(r *rand.Rand, n int) {
	w.t.Helper()
	b := &bulk{seq: uint64(len(w.bulks))}
	b.reserve(walHeaderSize, walBlock, newBufferPool(0))
	for first := true; n > 0 || first; first = false {
		payload := make([]byte, min(n, 1+r.IntN(300<<10)))
		for i := range payload {
			payload[i] = byte(1 + r.IntN(255)) // a sector of zeros is a lost one
		}
		rec := b.reserve(walRecordSize+len(payload), 4<<10, newBufferPool(0))
		batch := RecordBatch{Count: 1, MaxTimestamp: -1, Payload: rec[walRecordSize:]}
		putRecordHeader(rec, walRecord{stream: 1, epoch: 1, batch: batch})
		copy(batch.Payload, payload)
		b.entries = append(b.entries, entry{batch: batch})
		n -= len(payload)
	}
	pieces := b.seal(Node{ID: 1, Epoch: 1}, nonce{1})
	whole := slices.Concat(pieces...)
	w.bulks = append(w.bulks, whole[walHeaderSize:len(whole)-walTrailerSize])
	if _, err := w.wal.write(context.Background(), b.seq, pieces); err != nil {
		w.t.Fatal(err)
	}
}

// data returns what the last segment holds.
func (w *writtenWAL) data() []byte {
	w.t.Helper()
	f, err := w.fs.Open(filepath.Join(w.wal.dir, w.wal.segments[len(w.wal.segments)-1].name))
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		w.t.Fatal(err)
	}
	return data
}

// read returns the bodies that the next life finds in a segment.
func (w *writtenWAL) read(fs vfs.FS) ([][]byte, error) {
	r := &fileWALReader{fs: fs, dir: w.wal.dir, node: 1, state: WALState{Epoch: 1}, log: w.wal.log}
	var got [][]byte
	err := r.read(context.Background(), func(_ uint64, body []byte) error {
		got = append(got, body)
		return nil
	})
	return got, err
}

// check compares what the next life finds with all that was written.
func (w *writtenWAL) check() {
	w.t.Helper()
	got, err := w.read(w.fs)
	if err != nil || !slices.EqualFunc(got, w.bulks, bytes.Equal) {
		w.t.Fatalf("read %d bulks, %v, want the %d that were written", len(got), err, len(w.bulks))
	}
}

// sizeOfBulk is mostly that of a few small batches.
func sizeOfBulk(r *rand.Rand) int {
	switch r.IntN(20) {
	case 0:
		return r.IntN(3 << 20)
	case 1, 2, 3:
		return r.IntN(10 * walBlock)
	}
	return r.IntN(walBlock)
}

// A disk writes each sector whole or not at all. Whatever sectors of a bulk a crash leaves out,
// also of the block that an older bulk ends in, every older bulk is there, and the new one as a
// whole or not.
func TestFileWALOfTornSectors(t *testing.T) {
	const sector = 512
	cut, whole := 0, 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		w := newWrittenWAL(t, strictfs.FS{FS: vfs.NewMem()}, "/wal")
		for range r.IntN(6) {
			w.write(r, r.IntN(2*walBlock))
		}
		var before []byte
		if len(w.bulks) > 0 {
			before = w.data()
		}
		w.write(r, r.IntN(3*walBlock))
		after := w.data()
		for range 20 {
			lost := r.IntN(101)
			if r.IntN(4) == 0 {
				lost = 0
			}
			torn := append(slices.Clone(before), make([]byte, len(after)-len(before))...)
			for at := 0; at < len(after); at += sector {
				if r.IntN(100) >= lost {
					copy(torn[at:at+sector], after[at:])
				}
			}
			torn = torn[:max(len(before), len(torn)-r.IntN(3)*sector)]
			fs := vfs.NewMem()
			if err := errors.Join(fs.MkdirAll(w.wal.dir, 0o755), writeFile(fs, filepath.Join(w.wal.dir, w.wal.segments[0].name), torn)); err != nil {
				t.Fatal(err)
			}
			got, err := w.read(fs)
			if n := len(got); err != nil || n < len(w.bulks)-1 || !slices.EqualFunc(got, w.bulks[:n], bytes.Equal) {
				t.Fatalf("seed %d: read %d bulks, %v, of %d, the last of them torn", seed, n, err, len(w.bulks))
			}
			if len(got) == len(w.bulks) {
				whole++
			} else {
				cut++
			}
		}
	}
	if cut < 1000 || whole < 500 {
		t.Errorf("the last bulk was cut %d times and whole %d times: too few to tell", cut, whole)
	}
}

// A torn bulk whose records hold what looks like the header of a later one is torn all the same.
func TestFileWALTornBulkWithAHeaderInARecord(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	w := newWrittenWAL(t, strictfs.FS{FS: vfs.NewMem()}, "/wal")
	w.write(r, 100)
	w.write(r, 3*walBlock)
	whole := w.data()
	clear(whole[walBlock:][:512])
	forged := bulkHeader{version: walVersion, kind: bulkData, node: 1, count: 1, epoch: 1, seq: 1 << 60, nonce: nonce{2}, body: 2*walBlock - walFenceSize}
	for _, c := range []struct {
		by      nonce
		corrupt bool
	}{{nonce{2}, false}, {nonce{1}, true}} {
		forged.nonce = c.by
		appendBulkHeader(whole[2*walBlock:][:0], forged)
		if err := writeFile(w.fs, filepath.Join(w.wal.dir, w.wal.segments[0].name), slices.Clone(whole)); err != nil {
			t.Fatal(err)
		}
		if got, err := w.read(w.fs); len(got) != 1 || errors.Is(err, ErrCorrupt) != c.corrupt {
			t.Errorf("header of %x: read %d bulks, %v", c.by, len(got), err)
		}
	}
}

// Where the disk has room for a bulk and not for the zeros behind it, the bulk is written.
func TestFileWALWithoutRoomForZeros(t *testing.T) {
	w := newWrittenWAL(t, &fullWithinBlock{strictfs.FS{FS: vfs.NewMem()}, 1, walBlock}, "/wal")
	for _, want := range []int{walBlock, walBlock + walAhead, walBlock + walAhead} {
		w.write(rand.New(rand.NewPCG(1, 1)), 100)
		if n := len(w.data()); n != want { // it did not wait for room for more
			t.Errorf("a segment of %d bytes after bulk %d, want %d", n, len(w.bulks), want)
		}
	}
	w.check()
}

// A file system may refuse writes past the page cache when the file is opened, with the first of
// them or with any: what comes then goes through the page cache.
func TestFileWALWhereTheFileSystemRefuses(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		var written atomic.Int64
		granted := int64(seed % 10)
		w := newWrittenWAL(t, strictfs.FS{FS: vfs.NewMem(), Written: &written, Refuse: func() bool { return written.Load() == granted }}, "/wal")
		for range 12 {
			w.write(r, sizeOfBulk(r))
		}
		if n := written.Load(); n != granted {
			t.Errorf("seed %d: %d writes past the page cache, want %d until they are refused", seed, n, granted)
		}
		w.check()
	}
	w := newWrittenWAL(t, vfs.NewMem(), "/wal")
	w.write(rand.New(rand.NewPCG(0, 0)), walBlock)
	if n := len(w.data()); n != walAhead {
		t.Errorf("a segment written through the page cache has %d bytes, want the %d of its bulk and the zeros behind it", n, walAhead)
	}
	w.check()
}

// A write past the page cache that a full disk ends within a block is gone on with through it.
func TestFileWALOnADiskThatIsFullWithinABlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 1))
		w := newWrittenWAL(t, &fullWithinBlock{strictfs.FS{FS: vfs.NewMem()}, 3, 700}, "/wal")
		for range 10 {
			w.write(r, sizeOfBulk(r))
		}
		w.check()
	})
}

// fullWithinBlock is a disk that is full when so many direct writes were made, for the time of one, which finds room for so
// many bytes.
type fullWithinBlock struct {
	strictfs.FS
	left int
	room int
}

func (f *fullWithinBlock) WriteDirect(file vfs.File, pieces [][]byte, at int64) (int, error) {
	if f.left--; f.left != 0 {
		return f.FS.WriteDirect(file, pieces, at)
	}
	n, err := file.WriteAt(pieces[0][:f.room], at)
	return n, errors.Join(err, errNoSpace)
}

// On this machine's disk, past the page cache where it can be, segments hold what was written.
func TestFileWALOnDisk(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	w := newWrittenWAL(t, machineFS{vfs.Default}, t.TempDir())
	for range 60 {
		w.write(r, sizeOfBulk(r))
	}
	for len(w.wal.segments) < 2 {
		w.write(r, 8<<20)
	}
	t.Logf("past the page cache: %v", w.wal.direct != nil)
	w.check()
	if err := w.wal.close(); err != nil {
		t.Fatal(err)
	}
	w.check()
}

// A disk that is full when the next segment is made delays appends like one that is full in the
// middle of it, and one that fails otherwise ends the node: nobody knows what it holds.
func TestFileWALOnAFullOrBrokenDisk(t *testing.T) {
	broken := errors.New("input/output error")
	for _, c := range []struct {
		op     errorfs.OpKind
		err    error
		waits  bool
		direct bool
	}{
		{errorfs.OpOpen, errNoSpace, true, true},
		{errorfs.OpFileWriteAt, errNoSpace, true, true},
		{errorfs.OpFileWriteAt, errNoSpace, true, false},
		{errorfs.OpOpen, broken, false, true},
		{errorfs.OpFileWriteAt, broken, false, true},
		{errorfs.OpFileWriteAt, broken, false, false},
		{errorfs.OpFileSyncData, broken, false, true},
	} {
		e := newEnv(t)
		var fails atomic.Bool
		tried := make(chan struct{}, 1)
		cfg := e.config(WALFile)
		fs := errorfs.Wrap(e.fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind != c.op || !fails.Load() {
				return nil
			}
			select {
			case tried <- struct{}{}:
			default:
			}
			return c.err
		}))
		if cfg.WALFS = fs; c.direct {
			cfg.WALFS = strictfs.FS{FS: fs}
		}
		s := e.open(cfg)
		st := e.create(s, 1, 1)[0]
		if c.op != errorfs.OpOpen {
			appendAll(t, st, "a")
		}
		fails.Store(true)
		done := start(t, st, "b")
		<-tried
		if !c.waits {
			if err := <-done; !errors.Is(err, c.err) || !errors.Is(err, ErrStreamFenced) {
				t.Errorf("%v fails with %v: append %v", c.op, c.err, err)
			}
			<-s.Fenced()
			continue
		}
		<-tried
		select {
		case err := <-done:
			t.Errorf("%v fails with %v: append ended with %v, want it to wait", c.op, c.err, err)
			continue
		default:
		}
		fails.Store(false)
		if err := <-done; err != nil {
			t.Errorf("%v failed with %v for a time: append %v", c.op, c.err, err)
		}
	}
}
