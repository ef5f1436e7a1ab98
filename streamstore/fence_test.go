package streamstore

// What fencing promises, sentence by sentence, and the test of each.
//
//	Two nodes never both acknowledge for one stream epoch.                      TestZombieAcknowledgesNothing, TestModel
//	WAL objects are named by node, node epoch and dense sequence, …             TestWALObjectsAreDenseCreates, TestKeys
//	… written with If-None-Match: *, …                                          TestWALObjectsAreDenseCreates, objectstore.TestS3SendsCondition
//	… many in flight, acknowledged only as a contiguous prefix.                 TestAcknowledgesContiguousPrefix
//	An unknown outcome is retried, never skipped;                               TestUnknownOutcomeIsRetried
//	a 412 on one's own lost answer is told from a fence by the nonce;           TestLostAnswerIsResolved, TestFenceIsNotMistakenForOwnObject
//	a 409 is retried.                                                           TestConflictIsRetried, objectstore.TestS3Retries
//	A second PUT of an object changes none of this.                             TestHedgeMakesNoSecondObject, TestFenceBetweenPutAndHedge
//	The trim mark moves in metadata before any WAL object is deleted.           TestMarkMovesBeforeDeletion
//	Takeover raises the node epoch in metadata, …                               TestEpochIsRaisedBeforeTheFence, TestMetadataFences
//	… from the mark on puts a fence at the first free number, …                 TestNothingBehindAHoleIsRecovered, TestTrimmedWALGoesOn
//	… where data is passed and read, and a fence ends the walk, …               TestFencePassesDataThatCameMeanwhile, TestNothingBehindAHoleIsRecovered
//	… reads stream ends only then …                                             TestFenceBeforeEnds
//	… and replays from the mark to the fence what is not committed.             TestReplaySkipsCommitted, TestManyWALObjects
//	A number that is missing below the fence is corruption.                     TestMissingNumberIsCorruption
//	What lies above a fence is garbage.                                         TestNothingBehindAHoleIsRecovered, TestSweepLeavesFences
//	Fences are never deleted: a zombie that wakes a day later acknowledges nothing. TestZombieWakesADayLater
//	A store without conditional PUT is refused at start by a probe that says so. objectstore.TestProbeRefusesOverwrite, node.TestStoreWithoutConditionIsRefused
//	The file WAL does the same with a file.                                     TestFileWALFence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/objectstore"
)

// faulty gives the next store that e opens a bucket of its own that misbehaves on request.
func (e *env) faulty() *objectstore.Faulty {
	f := objectstore.NewFaulty(e.memory, objectstore.Faults{})
	e.bucket = f
	return f
}

func walPut(seq uint64) func(objectstore.Op, string) bool {
	return func(op objectstore.Op, key string) bool {
		_, _, n, ok := parseWALKey(key)
		return ok && op == objectstore.OpPutIfAbsent && n == seq
	}
}

// isDataPut matches the PUTs of uploads and compactions.
func isDataPut(op objectstore.Op, key string) bool {
	return op == objectstore.OpPut && strings.HasPrefix(key, dataPrefix)
}

// start appends one payload and returns where its outcome will come.
func start(t *testing.T, st *Stream, payload string) <-chan error {
	t.Helper()
	c := make(chan error, 1)
	if _, err := st.Append(context.Background(), RecordBatch{Count: 1, Payload: []byte(payload)}, func(err error) { c <- err }); err != nil {
		t.Fatal(err)
	}
	return c
}

func (e *env) takeOver(old *Stream, epoch int64) (*Store, []string) {
	e.t.Helper()
	e.bucket = e.memory
	s := e.open(e.config(WALObject))
	return s, readAll(e.t, e.reopen(s, OpenRequest{old.ID(), epoch})[0])
}

func (e *env) walObjects(node Node) (data, fences []uint64) {
	e.t.Helper()
	page, err := e.memory.List(context.Background(), walDir(node.ID, node.Epoch), "")
	if err != nil {
		e.t.Fatal(err)
	}
	for _, o := range page {
		_, _, seq, ok := parseWALKey(o.Key)
		if !ok {
			e.t.Fatalf("key %s", o.Key)
		}
		if o.Size == walFenceSize {
			fences = append(fences, seq)
		} else {
			data = append(data, seq)
		}
	}
	return data, fences
}

// A process that wakes after another took over acknowledges nothing: the number that it
// needs next is a fence, which stays there after the recovery and the next one too.
func TestZombieAcknowledgesNothing(t *testing.T) {
	e := newEnv(t)
	f := e.faulty()
	zombie := e.open(e.config(WALObject))
	st := e.create(zombie, 1, 1)[0]
	appendAll(t, st, "a", "b")
	data, _ := e.walObjects(zombie.Node())
	hold := f.Hold(objectstore.Before, walPut(uint64(len(data))))
	late := start(t, st, "late")
	<-hold.Reached()

	_, got := e.takeOver(st, 2)
	if want := []string{"a", "b"}; !slices.Equal(got, want) {
		t.Fatalf("taken over %q, want %q", got, want)
	}
	e.takeOver(st, 3)
	if left, fences := e.walObjects(zombie.Node()); len(left) != 0 || len(fences) != 1 {
		t.Fatalf("after recovery data %v and fences %v, want one fence", left, fences)
	}
	hold.Release(nil)
	if err := <-late; !errors.Is(err, ErrNodeFenced) || !errors.Is(err, ErrStreamFenced) {
		t.Fatalf("the zombie's append: %v, want it fenced", err)
	}
	<-zombie.Fenced()
	if err := zombie.Err(); !errors.Is(err, ErrNodeFenced) {
		t.Fatalf("the zombie says %v", err)
	}
	if _, err := st.Append(context.Background(), RecordBatch{Count: 1}, func(error) { t.Error("done called") }); !errors.Is(err, ErrStreamFenced) {
		t.Fatalf("append after: %v, want %v", err, ErrStreamFenced)
	}
}

// A zombie that was sure to own its object, because the answer was lost and the object is
// there, is told from one that meets a fence by the nonce.
func TestFenceIsNotMistakenForOwnObject(t *testing.T) {
	e := newEnv(t)
	f := e.faulty()
	zombie := e.open(e.config(WALObject))
	st := e.create(zombie, 1, 1)[0]
	hold := f.Hold(objectstore.Before, walPut(0))
	late := start(t, st, "late")
	<-hold.Reached()
	if _, got := e.takeOver(st, 2); len(got) != 0 {
		t.Fatalf("taken over %q, want nothing", got)
	}
	hold.Release(errors.New("connection reset")) // the retry meets the fence
	if err := <-late; !errors.Is(err, ErrNodeFenced) {
		t.Fatalf("append: %v, want it fenced", err)
	}
}

// The answer to a write that had its effect is lost: the retry meets its own object, and
// the append succeeds, once.
func TestLostAnswerIsResolved(t *testing.T) {
	testPutFails(t, objectstore.After, errors.New("answer lost"))
}

// A write without a known outcome is tried again, not reported and not skipped.
func TestUnknownOutcomeIsRetried(t *testing.T) {
	testPutFails(t, objectstore.Before, errors.New("409 conflicting operation"))
}

// testPutFails appends a record whose first PUT fails before its effect, or after it. The append
// succeeds, and the record is there once.
func testPutFails(t *testing.T, stage objectstore.Stage, err error) {
	t.Helper()
	e := newEnv(t)
	f := e.faulty()
	s := e.open(e.config(WALObject))
	st := e.create(s, 1, 1)[0]
	hold := f.Hold(stage, walPut(0))
	done := start(t, st, "a")
	<-hold.Reached()
	hold.Release(err)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	s.abandon()
	if _, got := e.takeOver(st, 2); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("acknowledged a, read %q", got)
	}
}

// Many writes are in flight, but only a contiguous prefix is acknowledged: what lies
// above a hole may end above a fence.
func TestAcknowledgesContiguousPrefix(t *testing.T) {
	synctest.Test(t, testAcknowledgesContiguousPrefix)
}

func testAcknowledgesContiguousPrefix(t *testing.T) {
	e := newEnv(t)
	f := e.faulty()
	zombie := e.open(e.config(WALObject))
	st := e.create(zombie, 1, 1)[0]
	first := f.Hold(objectstore.Before, walPut(0))
	second := f.Hold(objectstore.After, walPut(1))
	third := f.Hold(objectstore.Before, walPut(2))
	big := strings.Repeat("x", 5<<10) // a bulk of its own
	var done []<-chan error
	for range 3 {
		done = append(done, start(t, st, big))
	}
	<-first.Reached()
	<-second.Reached()
	<-third.Reached()
	second.Release(nil)
	synctest.Wait() // until there is nothing more to do
	if data, _ := e.walObjects(zombie.Node()); !slices.Equal(data, []uint64{1}) {
		t.Fatalf("WAL holds %v, want bulk 1 alone", data)
	}
	select {
	case err := <-done[1]:
		t.Fatalf("bulk 1 answered with %v before bulk 0", err)
	default:
	}
	if _, got := e.takeOver(st, 2); len(got) != 0 {
		t.Fatalf("taken over %d records, want none: the first was never written", len(got))
	}
	first.Release(nil)
	third.Release(nil)
	for i, c := range done {
		if err := <-c; !errors.Is(err, ErrNodeFenced) {
			t.Fatalf("append %d: %v, want it fenced", i, err)
		}
	}
}

// poll waits until cond holds.
func poll(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(invariant.Patience(time.Minute))
	for !cond() {
		select {
		case <-deadline:
			t.Fatalf("not within a minute: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

// hooked is a manager whose calls a test watches.
type hooked struct {
	*MemoryManager
	streams func() error // before Streams
	commit  func(Upload) error
}

func (h *hooked) Streams(ctx context.Context, id NodeID) ([]StreamState, error) {
	if h.streams != nil {
		if err := h.streams(); err != nil {
			return nil, err
		}
	}
	return h.MemoryManager.Streams(ctx, id)
}

func (h *hooked) CommitUpload(ctx context.Context, node Node, u Upload) error {
	if h.commit != nil {
		if err := h.commit(u); err != nil {
			return err
		}
	}
	return h.MemoryManager.CommitUpload(ctx, node, u)
}

// Takeover fences the WAL before it reads how far the streams are committed.
func TestFenceBeforeEnds(t *testing.T) {
	bothWALs(t, func(t *testing.T, kind WALKind) {
		e := newEnv(t)
		old := e.open(e.config(kind))
		appendAll(t, e.create(old, 1, 1)[0], "a")
		old.abandon()
		asked := false
		h := &hooked{MemoryManager: e.meta, streams: func() error {
			asked = true
			_, fences := e.walObjects(old.Node())
			_, err := e.fs.Stat(filepath.Join(walLifeDir("/wal", 1, old.Node().Epoch), walFenceFile))
			if len(fences) == 0 && err != nil {
				t.Error("stream ends read before the WAL is fenced")
			}
			return nil
		}}
		s, err := Open(context.Background(), e.config(kind), 1, e.bucket, h, h, old.log)
		if err != nil {
			t.Fatal(err)
		}
		s.abandon()
		if !asked {
			t.Fatal("stream ends were not read")
		}
	})
}

// A takeover that died after its fence is repeated by the next. A number that is missing
// below the fence is a lost object: it is refused, not passed over.
func TestMissingNumberIsCorruption(t *testing.T) {
	e := newEnv(t)
	old := e.open(e.config(WALObject))
	st := e.create(old, 1, 1)[0]
	for i := range 3 {
		appendAll(t, st, fmt.Sprint(i))
	}
	old.abandon()
	died := errors.New("died")
	h := &hooked{MemoryManager: e.meta, streams: func() error { return died }}
	if _, err := Open(context.Background(), e.config(WALObject), 1, e.bucket, h, h, old.log); !errors.Is(err, died) {
		t.Fatalf("opened: %v", err)
	}
	key := walKey(1, old.Node().Epoch, 1)
	data, err := e.memory.Get(context.Background(), key, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.memory.Delete(context.Background(), key); err != nil {
		t.Fatal(err)
	}
	if _, err := e.tryOpen(e.config(WALObject)); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), key) {
		t.Fatalf("opened without bulk 1: %v", err)
	}
	if err := e.memory.Put(context.Background(), key, data); err != nil {
		t.Fatal(err)
	}
	if _, got := e.takeOver(st, 2); !slices.Equal(got, []string{"0", "1", "2"}) {
		t.Fatalf("got %q", got)
	}
}

// The mark moves in metadata before any WAL object is deleted: until the commit is known,
// the WAL holds what the upload carries.
func TestMarkMovesBeforeDeletion(t *testing.T) {
	e := newEnv(t)
	var s *Store
	commits := 0
	h := &hooked{MemoryManager: e.meta}
	s, err := Open(context.Background(), e.config(WALObject), 1, e.bucket, h, h, newEnvLog())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.abandon)
	h.commit = func(u Upload) error {
		if data, _ := e.walObjects(s.Node()); len(data) == 0 || data[0] >= u.WALMark {
			t.Errorf("the WAL holds %v when the mark is about to move to %d", data, u.WALMark)
		}
		if commits++; commits%2 == 1 {
			return errors.New("database is away")
		}
		return nil
	}
	st := e.create(s, 1, 1)[0]
	for i := range 3 {
		appendAll(t, st, fmt.Sprint(i))
		if err := s.upload.flush(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	poll(t, "WAL trimmed", func() bool { data, _ := e.walObjects(s.Node()); return len(data) == 0 })
	if commits != 6 {
		t.Fatalf("%d commits, want 6", commits)
	}
}

// What is committed and still in the WAL, because the node died between commit and trim,
// is skipped on replay.
func TestReplaySkipsCommitted(t *testing.T) {
	bothWALs(t, func(t *testing.T, kind WALKind) {
		e := newEnv(t)
		h := &hooked{MemoryManager: e.meta}
		s, err := Open(context.Background(), e.config(kind), 1, e.bucket, h, h, newEnvLog())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.abandon)
		st := e.create(s, 1, 1)[0]
		appendAll(t, st, "a", "b")
		h.commit = func(u Upload) error { u.WALMark = 0; return e.meta.CommitUpload(context.Background(), s.Node(), u) }
		if err := s.upload.flush(context.Background()); err != nil {
			t.Fatal(err)
		}
		appendAll(t, st, "c")
		s.abandon()
		// As if the mark had not moved: the WAL objects are back.
		e.meta.mu.Lock()
		e.meta.nodes[1].wals[0].Mark = 0
		e.meta.mu.Unlock()
		e.restoreWAL(s, "a", "b")
		s = e.open(e.config(kind))
		if got := readAll(t, e.reopen(s, OpenRequest{st.ID(), 2})[0]); !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Fatalf("got %q, want each once", got)
		}
	})
}

// restoreWAL puts back the bulks that a trim deleted, one payload each, from 0 on.
func (e *env) restoreWAL(s *Store, payloads ...string) {
	data, _ := e.walObjects(s.Node())
	if s.cfg.WAL == WALFile || len(data) == 0 || data[0] == 0 {
		return
	}
	var entries []entry
	for i, p := range payloads {
		entries = append(entries, entry{stream: &Stream{id: 1, epoch: 1}, batch: RecordBatch{BaseOffset: int64(i), Count: 1, Payload: []byte(p)}})
	}
	for seq := range data[0] {
		b := testBulk(seq, entries)
		entries = entries[:0:0]
		if len(b.entries) == 0 {
			b = testBulk(seq, []entry{{stream: &Stream{id: 999}, batch: RecordBatch{Count: 1}}})
		}
		if err := e.memory.PutIfAbsent(context.Background(), walKey(1, s.Node().Epoch, seq), b.seal(s.Node(), nonce{1})...); err != nil {
			e.t.Fatal(err)
		}
	}
}

func testBulk(seq uint64, entries []entry) *bulk {
	b := &bulk{seq: seq, entries: entries}
	b.reserve(walHeaderSize, 0, newBufferPool(0))
	for _, e := range entries {
		rec := b.reserve(walRecordSize+len(e.batch.Payload), 0, newBufferPool(0))
		putRecordHeader(rec, walRecord{e.stream.id, e.stream.epoch, e.batch})
		copy(rec[walRecordSize:], e.batch.Payload)
	}
	return b
}

// A newer process on the same files fences the older one, which acknowledges nothing more.
func TestFileWALFence(t *testing.T) {
	e := newEnv(t)
	zombie := e.open(e.config(WALFile))
	st := e.create(zombie, 1, 1)[0]
	appendAll(t, st, "a")
	s := e.open(e.config(WALFile))
	if err := <-start(t, st, "late"); !errors.Is(err, ErrNodeFenced) {
		t.Fatalf("the zombie's append: %v, want it fenced", err)
	}
	<-zombie.Fenced()
	if got := readAll(t, e.reopen(s, OpenRequest{st.ID(), 2})[0]); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("got %q, want a", got)
	}
	s.abandon()
	s = e.open(e.config(WALFile)) // the late bulk is a whole one, and nobody takes it for acknowledged
	if got := readAll(t, e.reopen(s, OpenRequest{st.ID(), 3})[0]); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("got %q, want a", got)
	}
}

// A power cut drops whatever was not synced, in parts or whole; what was acknowledged is there,
// whether it went past the page cache or through it.
func TestFileWALSurvivesPowerCut(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 0))
		e := newEnv(t)
		cfg := e.config(WALFile)
		if seed%2 == 1 {
			cfg.WALFS = e.fs
		}
		s := e.open(cfg)
		st := e.create(s, 1, 1)[0]
		want := numbered("r", 1+r.IntN(50), r.IntN(500))
		appendAll(t, st, want...)
		for range r.IntN(5) { // these may be lost, but not half
			if _, err := st.Append(context.Background(), RecordBatch{Count: 1, Payload: make([]byte, r.IntN(3000))}, func(error) {}); err != nil {
				t.Fatal(err)
			}
		}
		e.fs = e.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.IntN(101), RNG: r})
		s.abandon()
		s = e.open(e.config(WALFile))
		got := readAll(t, e.reopen(s, OpenRequest{st.ID(), 2})[0])
		if len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
			t.Fatalf("seed %d: %d records after the power cut, want at least %d", seed, len(got), len(want))
		}
	}
}

// A torn tail is cut. A wrong byte anywhere in what was durable is refused, with its position.
func TestFileWALRefusesCorruption(t *testing.T) {
	e := newEnv(t)
	s := e.open(e.config(WALFile))
	st := e.create(s, 1, 1)[0]
	appendAll(t, st, "first")
	appendAll(t, st, strings.Repeat("second", 300))
	s.abandon()
	segments, err := listSegments(e.fs, walLifeDir("/wal", 1, s.Node().Epoch))
	if err != nil || len(segments) != 1 {
		t.Fatalf("segments %v, %v", segments, err)
	}
	name := filepath.Join(walLifeDir("/wal", 1, s.Node().Epoch), segments[0].name)
	whole, err := e.fs.UnsafeGetFileDataBuffer(name)
	if err != nil {
		t.Fatal(err)
	}
	whole = slices.Clone(whole)
	first, second := int64(walBlock), int64(2*walBlock)
	if len(whole) != walAhead {
		t.Fatalf("segment of %d bytes, want its two bulks of a block each, and zeros up to %d", len(whole), walAhead)
	}
	read := func(data []byte) (bulks int, err error) {
		fs := vfs.NewMem()
		dir := walLifeDir("/wal", 1, 7)
		if err := fs.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := writeFile(fs, filepath.Join(dir, segments[0].name), slices.Clone(data)); err != nil {
			t.Fatal(err)
		}
		r := &fileWALReader{fs: fs, dir: dir, node: 1, state: WALState{Epoch: s.Node().Epoch}, log: s.log}
		err = r.read(context.Background(), func(uint64, []byte) error { bulks++; return nil })
		return bulks, err
	}
	if n, err := read(whole); n != 2 || err != nil {
		t.Fatalf("whole file: %d bulks, %v", n, err)
	}
	for cut := int64(0); cut < walAhead; cut += 1 + cut/second*999 {
		n, err := read(whole[:cut])
		want := 0
		if cut >= first {
			want++
		}
		if cut >= second {
			want++
		}
		if n != want || err != nil {
			t.Fatalf("cut at %d of %d: %d bulks, %v, want %d", cut, len(whole), n, err, want)
		}
	}
	for at := range second {
		flipped := slices.Clone(whole)
		flipped[at] ^= 0x10
		n, err := read(flipped)
		wantN, position := 0, "at byte 0 of"
		if at >= first {
			wantN, position = 1, fmt.Sprintf("at byte %d of", first)
		}
		if n != wantN || !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), position) {
			t.Fatalf("bit flipped at %d: %d bulks, %v", at, n, err)
		}
	}
	zeroed := slices.Clone(whole)
	clear(zeroed[:512]) // a sector with the header of a bulk that another one follows
	if n, err := read(zeroed); n != 0 || !errors.Is(err, ErrCorrupt) {
		t.Fatalf("header lost of a bulk that another one follows: %d bulks, %v", n, err)
	}
	zeroed = slices.Clone(whole)
	clear(zeroed[first+1024:][:512]) // a sector of the last bulk that never reached the disk
	if n, err := read(zeroed); n != 1 || err != nil {
		t.Fatalf("sector lost: %d bulks, %v", n, err)
	}
	if n, err := read(append(zeroed[:second:second], whole[:first]...)); n != 1 || !errors.Is(err, ErrCorrupt) {
		t.Fatalf("sector lost of a bulk that another one follows: %d bulks, %v", n, err)
	}
}

// A full disk delays appends until there is room, and acknowledges nothing meanwhile. An
// append that is given up by the end of the store may be there or not, never another.
func TestFullDisk(t *testing.T) {
	e := newEnv(t)
	var full atomic.Bool
	tried := make(chan struct{}, 1)
	fs := errorfs.Wrap(e.fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && op.Kind == errorfs.OpFileWriteAt {
			select {
			case tried <- struct{}{}:
			default:
			}
			return errNoSpace
		}
		return nil
	}))
	cfg := e.config(WALFile)
	cfg.WALFS = fs
	s := e.open(cfg)
	st := e.create(s, 1, 1)[0]
	appendAll(t, st, "a")
	full.Store(true)
	done := start(t, st, "b")
	<-tried
	<-tried // again: it waits
	select {
	case err := <-done:
		t.Fatalf("append on a full disk: %v", err)
	default:
	}
	if got := st.ConfirmOffset(); got != 1 {
		t.Fatalf("confirm offset %d, want 1", got)
	}
	full.Store(false)
	if err := <-done; err != nil {
		t.Fatalf("append after there is room: %v", err)
	}
	s.abandon()
	s = e.open(e.config(WALFile))
	if got := readAll(t, e.reopen(s, OpenRequest{st.ID(), 2})[0]); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("got %q, want a and b", got)
	}
}

// A WAL in files of another machine is not taken for an empty one.
func TestFileWALOnAnotherDisk(t *testing.T) {
	e := newEnv(t)
	s := e.open(e.config(WALFile))
	st := e.create(s, 1, 1)[0]
	appendAll(t, st, "a")
	s.abandon()
	old := e.fs
	e.fs = vfs.NewCrashableMem()
	for _, kind := range []WALKind{WALFile, WALObject} {
		if _, err := e.tryOpen(e.config(kind)); err == nil || !strings.Contains(err.Error(), "WAL directory") {
			t.Fatalf("opened %s without the files: %v", kind, err)
		}
		e.fs = vfs.NewCrashableMem()
	}
	e.fs = old
	s = e.open(e.config(WALObject)) // the kind may change
	if got := readAll(t, e.reopen(s, OpenRequest{st.ID(), 2})[0]); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("got %q, want a", got)
	}
}

// What a zombie wrote above its fence, and what a recovery had no time to delete, is swept
// up; the fences stay.
func TestSweepLeavesFences(t *testing.T) {
	bothWALs(t, func(t *testing.T, kind WALKind) {
		ctx := context.Background()
		e := newEnv(t)
		old := e.open(e.config(kind))
		appendAll(t, e.create(old, 1, 1)[0], "a")
		old.abandon()
		e.open(e.config(kind)).abandon()
		dir := walLifeDir("/wal", 1, old.Node().Epoch)
		late := bytes.Join(testBulk(5, []entry{{stream: &Stream{id: 1, epoch: 1}, batch: RecordBatch{BaseOffset: 1, Count: 1}}}).seal(old.Node(), nonce{9}), nil)
		if kind == WALObject {
			if err := e.memory.Put(ctx, walKey(1, old.Node().Epoch, 5), late); err != nil {
				t.Fatal(err)
			}
		} else if err := writeFile(e.fs, filepath.Join(dir, "0000000000000005.wal"), late); err != nil {
			t.Fatal(err)
		}
		s := e.open(e.config(kind))
		st := e.reopen(s, OpenRequest{1, 2})[0]
		appendAll(t, st, "b")
		if err := s.sweepWALs(ctx); err != nil {
			t.Fatal(err)
		}
		data, fences := e.walObjects(old.Node())
		files, err := e.fs.List(dir)
		if kind == WALObject && (len(data) != 0 || len(fences) != 1) || kind == WALFile && (err != nil || !slices.Equal(files, []string{walFenceFile})) {
			t.Fatalf("left: data %v, fences %v, files %v, %v", data, fences, files, err)
		}
		s.abandon()
		s = e.open(e.config(kind))
		if got := readAll(t, e.reopen(s, OpenRequest{1, 3})[0]); !slices.Equal(got, []string{"a", "b"}) {
			t.Fatalf("got %q", got)
		}
	})
}

// Metadata refuses an upload of a life that is over, and the store says why it stops.
func TestMetadataFences(t *testing.T) {
	e := newEnv(t)
	s := e.open(e.config(WALObject))
	st := e.create(s, 1, 1)[0]
	appendAll(t, st, "a")
	if _, _, err := e.meta.RegisterNode(context.Background(), 1, WALObject); err != nil {
		t.Fatal(err)
	}
	if err := s.upload.flush(context.Background()); !errors.Is(err, ErrNodeFenced) {
		t.Fatalf("upload: %v, want it fenced", err)
	}
	<-s.Fenced()
	if err := s.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// Two processes run under one node id. The first, in the middle of appends, uploads and
// fetches, ends by itself when it notices: each append is answered, closing its streams says
// why it cannot, and closing the store ends at once, with nothing left running.
func TestDuplicateNodeShutsDownCleanly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		f := e.faulty()
		first := e.open(e.config(WALObject))
		streams := e.create(first, 2, 1)
		want := []string{"a", "b"}
		appendAll(t, streams[0], want...)
		hold := f.Hold(objectstore.Before, func(op objectstore.Op, key string) bool {
			return op == objectstore.OpPutIfAbsent || op == objectstore.OpPut
		})
		var late []<-chan error
		for _, st := range streams {
			late = append(late, start(t, st, "late"))
		}
		closing := make(chan error, 1)
		go func() { closing <- first.CloseStreams(context.Background(), streams) }()
		<-hold.Reached()

		second, got := e.takeOver(streams[0], 2)
		if !slices.Equal(got, want) {
			t.Fatalf("the second process reads %q, want %q", got, want)
		}
		hold.Release(nil)
		for _, done := range late {
			if err := <-done; !errors.Is(err, ErrNodeFenced) {
				t.Errorf("an append to the first process: %v, want it fenced", err)
			}
		}
		if err := <-closing; !errors.Is(err, ErrNodeFenced) {
			t.Errorf("closing the streams of the first process: %v, want it fenced", err)
		}
		<-first.Fenced()
		began := time.Now()
		if err := first.Close(context.Background()); err != nil || time.Since(began) > 0 {
			t.Errorf("closing the first process took %v: %v", time.Since(began), err)
		}
		if second.Err() != nil {
			t.Errorf("the second process: %v", second.Err())
		}
		if err := second.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// The log cache drops only what is uploaded, however small it is.
func TestCacheEvictsUploadedOnly(t *testing.T) {
	e := newEnv(t)
	f := e.faulty()
	s := e.open(e.config(WALObject))
	st := e.create(s, 1, 1)[0]
	hold := f.Hold(objectstore.Before, isDataPut)
	want := numbered("r", 50, 1000) // less than the cache holds, more than one block
	appendAll(t, st, want...)
	<-hold.Reached()
	s.cache.evict(0)
	if got := readAll(t, st); !slices.Equal(got, want) {
		t.Fatalf("%d records while the upload hangs, want %d", len(got), len(want))
	}
	hold.Release(nil)
	if err := s.upload.flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	s.cache.evict(0)
	if s.cache.bytes != 0 {
		t.Fatalf("the cache holds %d bytes after all is uploaded", s.cache.bytes)
	}
	if got := readAll(t, st); !slices.Equal(got, want) {
		t.Fatalf("%d records after eviction, want %d", len(got), len(want))
	}
}

// Back-pressure delays appends while the bucket does not take uploads, and drops none.
func TestBackPressure(t *testing.T) { synctest.Test(t, testBackPressure) }

func testBackPressure(t *testing.T) {
	e := newEnv(t)
	f := e.faulty()
	cfg := e.config(WALObject)
	s := e.open(cfg)
	st := e.create(s, 1, 1)[0]
	hold := f.Hold(objectstore.Before, isDataPut)
	const size = 1000
	n := 0
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		_, err := st.Append(ctx, RecordBatch{Count: 1, Payload: make([]byte, size)}, func(err error) {
			if err != nil {
				t.Error(err)
			}
		})
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if limit := int(cfg.LogCacheBytes / (size + batchOverhead)); n > limit || n < limit/2 {
		t.Fatalf("%d appends of %d bytes passed, the cache has %d bytes", n, size, cfg.LogCacheBytes)
	}
	blocked := make(chan error, 1)
	go func() {
		_, err := st.Append(context.Background(), RecordBatch{Count: 1, Payload: make([]byte, size)}, func(error) {})
		blocked <- err
	}()
	hold.Release(nil)
	if err := <-blocked; err != nil {
		t.Fatal(err)
	}
	if err := s.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := st.ConfirmOffset(); got != int64(n+1) {
		t.Fatalf("confirm offset %d, want %d", got, n+1)
	}
}
