package streamstore

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// Appends that come while the disk is busy share the next fsync.
func TestFileWALGroupsCommits(t *testing.T) {
	e := newEnv(t)
	var syncs atomic.Int64
	first, release := make(chan struct{}), make(chan struct{})
	cfg := e.config(WALFile)
	cfg.WALBytes = 1 << 20
	cfg.WALFS = errorfs.Wrap(e.fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSyncData && syncs.Add(1) == 1 {
			close(first)
			<-release
		}
		return nil
	}))
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
	second := first + walFenceSize + walRecordSize + len(want[1])
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

// A disk that is full when the next segment is made delays appends like one that is full in the
// middle of it, and one that fails otherwise ends the node: nobody knows what it holds.
func TestFileWALOnAFullOrBrokenDisk(t *testing.T) {
	broken := errors.New("input/output error")
	for _, c := range []struct {
		op    errorfs.OpKind
		err   error
		waits bool
	}{
		{errorfs.OpOpen, errNoSpace, true},
		{errorfs.OpFileWriteAt, errNoSpace, true},
		{errorfs.OpOpen, broken, false},
		{errorfs.OpFileWriteAt, broken, false},
		{errorfs.OpFileSyncData, broken, false},
	} {
		e := newEnv(t)
		var fails atomic.Bool
		tried := make(chan struct{}, 1)
		cfg := e.config(WALFile)
		cfg.WALFS = errorfs.Wrap(e.fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind != c.op || !fails.Load() {
				return nil
			}
			select {
			case tried <- struct{}{}:
			default:
			}
			return c.err
		}))
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
