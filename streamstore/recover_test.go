package streamstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tabletopic/tabletopic/objectstore"
)

// node opens a store of node id that is dropped as by a crash when the test ends.
func (e *env) node(id NodeID) *Store {
	e.t.Helper()
	return e.nodeWith(id, e.config(WALObject))
}

// lazy is a config by which nothing is uploaded in time: all is left in the WAL.
func (e *env) lazy() Config {
	cfg := e.config(WALObject)
	cfg.UploadBytes, cfg.LogCacheBytes = 1<<20, 2<<20
	return cfg
}

func (e *env) nodeWith(id NodeID, cfg Config) *Store {
	e.t.Helper()
	s, err := Open(context.Background(), cfg, id, e.bucket, e.meta, e.meta, newEnvLog())
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(s.abandon)
	return s
}

func recoverNode(t *testing.T, s *Store, id NodeID) RecoveryProgress {
	t.Helper()
	done, err := s.Recover(context.Background(), id, nil)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// ids returns the open requests of streams with an epoch.
func requests(streams []*Stream, epoch int64) []OpenRequest {
	var open []OpenRequest
	for _, st := range streams {
		open = append(open, OpenRequest{st.ID(), epoch})
	}
	return open
}

// A living node recovers a dead one: all that it acknowledged, uploaded or not, is read by
// who opens the streams next, at once and after one more crash.
func TestRecoverAnotherNode(t *testing.T) {
	e := newEnv(t)
	dead, s := e.nodeWith(1, e.lazy()), e.node(2)
	own := e.create(s, 1, 1)[0]
	appendAll(t, own, "own")
	streams := e.create(dead, 3, 1)
	want := make([][]string, len(streams))
	for i, st := range streams {
		want[i] = numbered(fmt.Sprint(i), 200*(i+1), 100*i)
		appendAll(t, st, want[i][:100]...)
	}
	if err := dead.upload.flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	for i, st := range streams {
		appendAll(t, st, want[i][100:]...)
	}
	dead.abandon()

	var last RecoveryProgress
	calls := 0
	done, err := s.Recover(context.Background(), 1, func(p RecoveryProgress) {
		if p.Bulks != last.Bulks+1 || p.Records < last.Records || p.TotalBulks < p.Bulks {
			t.Errorf("progress %+v after %+v", p, last)
		}
		last = p
		calls++
	})
	if err != nil {
		t.Fatal(err)
	}
	if done != last || calls == 0 || done.WALs != 1 || done.Streams != 3 || done.Bulks != done.TotalBulks || done.Records == 0 || done.Records >= 1200 {
		t.Fatalf("recovered %+v, last progress %+v", done, last)
	}
	if data, fences := e.walObjects(dead.Node()); len(data) != 0 || len(fences) != 1 {
		t.Fatalf("the WAL holds data %v and fences %v, want one fence", data, fences)
	}
	nodes, err := e.meta.Nodes(context.Background())
	if err != nil || nodes[0].Open != 0 || len(nodes[0].WALs) != 0 || nodes[0].Leader != s.Node() {
		t.Fatalf("nodes %+v, %v", nodes, err)
	}
	check := func(s *Store, epoch int64) {
		t.Helper()
		for i, st := range e.reopen(s, requests(streams, epoch)...) {
			if got := readAll(t, st); !slices.Equal(got, want[i]) {
				t.Fatalf("stream %d: %d batches, want %d", i, len(got), len(want[i]))
			}
			want[i] = append(want[i], fmt.Sprint("more ", epoch))
			appendAll(t, st, fmt.Sprint("more ", epoch))
		}
	}
	check(s, 2)
	appendAll(t, own, "still")
	if err := s.Compact(context.Background()); err != nil { // of what the dead node wrote, too
		t.Fatal(err)
	}
	if sets, err := e.meta.StreamSetObjects(context.Background(), 1, 0, 100); err != nil || len(sets) != 0 {
		t.Fatalf("stream set objects left to the dead node: %v, %v", sets, err)
	}
	s.abandon()
	back := e.node(1)
	recoverNode(t, back, 2)
	check(back, 3)
}

// The node that is recovered was not dead: it acknowledges nothing more, and says why it
// stopped. What it acknowledged before is there.
func TestRecoveredNodeIsFenced(t *testing.T) {
	e := newEnv(t)
	f := e.faulty()
	zombie := e.node(1)
	e.bucket = e.memory
	s := e.node(2)
	st := e.create(zombie, 1, 1)[0]
	appendAll(t, st, "a", "b")
	data, _ := e.walObjects(zombie.Node())
	hold := f.Hold(objectstore.Before, walPut(uint64(len(data))))
	late := start(t, st, "late")
	<-hold.Reached()
	recoverNode(t, s, 1)
	hold.Release(nil)
	if err := <-late; !errors.Is(err, ErrNodeFenced) {
		t.Fatalf("the zombie's append: %v, want it fenced", err)
	}
	<-zombie.Fenced()
	if got := readAll(t, e.reopen(s, OpenRequest{st.ID(), 2})[0]); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("got %q", got)
	}
}

// Recovery drops what is committed already, and what belongs to streams that were closed,
// moved or destroyed since; what was trimmed beyond the committed end stays trimmed.
func TestRecoveryDropsWhatIsNotNeeded(t *testing.T) {
	ctx := context.Background()
	for _, by := range []string{"another node", "the node itself"} {
		t.Run(by, func(t *testing.T) {
			e := newEnv(t)
			dead, s := e.node(1), e.node(2)
			streams := e.create(dead, 5, 1)
			closed, moved, destroyed, trimmed, kept := streams[0], streams[1], streams[2], streams[3], streams[4]
			for _, st := range streams {
				appendAll(t, st, numbered("committed", 5, 10)...)
			}
			// From here on the mark stays where it is: everything below lies in the WAL.
			if err := dead.upload.flush(ctx); err != nil {
				t.Fatal(err)
			}
			for _, st := range streams {
				appendAll(t, st, numbered("later", 5, 10)...)
			}
			if err := dead.CloseStreams(ctx, []*Stream{closed, moved}); err != nil {
				t.Fatal(err)
			}
			elsewhere := e.reopen(s, OpenRequest{moved.ID(), 2})[0]
			appendAll(t, elsewhere, "elsewhere")
			if err := destroyed.Destroy(ctx); err != nil {
				t.Fatal(err)
			}
			appendAll(t, trimmed, numbered("last", 5, 10)...)
			appendAll(t, kept, numbered("last", 5, 10)...)
			if err := trimmed.Trim(ctx, 13); err != nil { // 10 are committed
				t.Fatal(err)
			}
			dead.abandon()
			if by == "another node" {
				if done := recoverNode(t, s, 1); done.Records != 10 {
					t.Fatalf("%+v, want 10 records: of two streams", done)
				}
			}
			s2 := s
			if by != "another node" {
				s2 = e.node(1)
			}
			if got := len(readAll(t, elsewhere)); got != 11 {
				t.Fatalf("the stream that moved holds %d batches, want 11", got)
			}
			for _, c := range []struct {
				st         *Stream
				start, end int64
			}{{closed, 0, 10}, {trimmed, 13, 15}, {kept, 0, 15}} {
				st := e.reopen(s2, OpenRequest{c.st.ID(), 3})[0]
				if st.StartOffset() != c.start || st.ConfirmOffset() != c.end || int64(len(readAll(t, st))) != c.end-c.start {
					t.Errorf("stream %d spans [%d, %d), want [%d, %d)", st.ID(), st.StartOffset(), st.ConfirmOffset(), c.start, c.end)
				}
				appendAll(t, st, "more")
			}
			if _, err := s2.OpenStreams(ctx, []OpenRequest{{destroyed.ID(), 3}}); !errors.Is(err, ErrStreamNotExist) {
				t.Errorf("the destroyed stream: %v", err)
			}
		})
	}
}

// A trim that passes what is uploaded leaves a stream whose start lies above its end in
// metadata. It opens again after each of several crashes, between its start and its end, and
// nothing piles up in the bucket.
func TestTrimBeyondUploadsSurvivesCrashes(t *testing.T) {
	bothWALs(t, func(t *testing.T, kind WALKind) {
		ctx := context.Background()
		e := newEnv(t)
		cfg := e.config(kind)
		cfg.UploadBytes, cfg.LogCacheBytes, cfg.CleanInterval = 1<<20, 2<<20, -1
		s := e.open(cfg)
		st := e.create(s, 1, 1)[0]
		const lives = 5
		for life := int64(1); life <= lives; life++ {
			appendAll(t, st, numbered(fmt.Sprint(life), 10, 100)...)
			end, start := 10*life, 10*life-3
			if life == lives {
				start = end
			}
			if err := st.Trim(ctx, start); err != nil {
				t.Fatal(err)
			}
			if states, err := e.meta.Streams(ctx, 1); err != nil || states[0].Start != start || states[0].End != end-10 {
				t.Fatalf("life %d: metadata has %+v, %v, want start %d above the end", life, states, err, start)
			}
			s.abandon()
			s = e.open(cfg)
			st = e.reopen(s, OpenRequest{st.ID(), life + 1})[0]
			if st.StartOffset() != start || st.ConfirmOffset() != end || int64(len(readAll(t, st))) != end-start {
				t.Fatalf("life %d: the stream spans [%d, %d), want [%d, %d)", life, st.StartOffset(), st.ConfirmOffset(), start, end)
			}
		}
		e.meta.SetClock(func() time.Time { return time.Now().Add(24 * time.Hour) })
		if _, err := s.Clean(ctx); err != nil {
			t.Fatal(err)
		}
		e.wantObjects(0)
		if found := survey(t, s); len(found) != 0 {
			t.Errorf("left: %v", found)
		}
	})
}

// A node that was taken for dead is at an upload. Its commit comes when its epoch is over and
// is refused; its streams open elsewhere with all that it acknowledged, and later on itself
// again; the objects of the refused upload go.
func TestCommitAfterTakeoverIsRefused(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t)
	f := e.faulty()
	gone := e.nodeWith(1, e.lazy())
	e.bucket = e.memory
	s := e.node(2)
	streams := e.create(gone, 2, 1)
	want := numbered("x", 20, 100)
	for _, st := range streams {
		appendAll(t, st, want...)
	}
	hold := f.Hold(objectstore.After, isDataPut)
	closed := make(chan error, 1)
	go func() { closed <- gone.CloseStreams(ctx, streams) }()
	<-hold.Reached()
	recoverNode(t, s, 1)
	hold.Release(nil)
	if err := <-closed; !errors.Is(err, ErrNodeFenced) {
		t.Fatalf("the commit of an epoch that is over: %v, want it fenced", err)
	}
	<-gone.Fenced()
	if err := gone.Close(ctx); err != nil {
		t.Fatalf("close: %v", err)
	}
	for _, st := range e.reopen(s, requests(streams, 2)...) {
		if got := readAll(t, st); !slices.Equal(got, want) {
			t.Fatalf("stream %d: %d batches, want %d", st.ID(), len(got), len(want))
		}
		if err := st.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for _, st := range e.reopen(e.node(1), requests(streams, 3)...) {
		if got := readAll(t, st); !slices.Equal(got, want) {
			t.Fatalf("stream %d, back on its node: %d batches, want %d", st.ID(), len(got), len(want))
		}
	}
	e.meta.SetClock(func() time.Time { return time.Now().Add(24 * time.Hour) })
	if _, err := s.Clean(ctx); err != nil {
		t.Fatal(err)
	}
	for id, state := range survey(t, s) {
		if state != "referenced true" {
			t.Errorf("object %d is left %s", id, state)
		}
	}
}

// Recovery does not wait for one request at a time: a WAL of 1 GiB in 128 objects, from a store
// that takes 100 ms for each request, takes seconds.
func TestRecoveryReadsAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		cfg := e.lazy()
		cfg.WALBytes = 1
		dead := e.nodeWith(1, cfg)
		st := e.create(dead, 1, 1)[0]
		want := numbered("x", 128, 10)
		appendAll(t, st, want...)
		dead.abandon()
		e.bucket = &slowly{e.memory, 100 * time.Millisecond}
		s := e.nodeWith(2, cfg)
		began := time.Now()
		if done := recoverNode(t, s, 1); done.Bulks != 128 {
			t.Fatalf("recovered %+v, want 128 bulks", done)
		}
		if took := time.Since(began); took > 128*100*time.Millisecond/3 {
			t.Errorf("recovery took %v, one request after the other %v", took, 128*100*time.Millisecond)
		}
		if got := readAll(t, e.reopen(s, OpenRequest{st.ID(), 2})[0]); !slices.Equal(got, want) {
			t.Errorf("%d batches, want %d", len(got), len(want))
		}
		s.abandon()
	})
}

// slowly is a bucket whose every answer takes a time.
type slowly struct {
	objectstore.Bucket
	takes time.Duration
}

func (s *slowly) Get(ctx context.Context, key string, off, n int64) ([]byte, error) {
	if err := sleepFor(ctx, s.takes); err != nil {
		return nil, err
	}
	return s.Bucket.Get(ctx, key, off, n)
}

// A record that does not continue its stream is a lost one before it: recovery refuses to go
// on and says where.
func TestRecoveryRefusesGap(t *testing.T) {
	ctx := context.Background()
	e := newEnv(t)
	dead, s := e.node(1), e.node(2)
	st := e.create(dead, 1, 1)[0]
	appendAll(t, st, "a")
	dead.abandon()
	b := testBulk(1, []entry{{stream: &Stream{id: st.ID(), epoch: 1}, batch: RecordBatch{BaseOffset: 2, Count: 1, Payload: []byte("c")}}})
	if err := e.memory.Put(ctx, walKey(1, dead.Node().Epoch, 1), b.seal(dead.Node(), nonce{1})...); err != nil {
		t.Fatal(err)
	}
	_, err := s.Recover(ctx, 1, nil)
	if !errors.Is(err, ErrCorrupt) {
		t.Fatalf("recovered over a gap: %v", err)
	}
	for _, part := range []string{"node 1", "epoch 1", "record at byte 64 of bulk 1", "ends at 1", "base 2"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	if s.Err() != nil {
		t.Fatalf("the rescuer is fenced: %v", s.Err())
	}
	if _, err := s.OpenStreams(ctx, []OpenRequest{{st.ID(), 2}}); !errors.Is(err, ErrConflict) {
		t.Fatalf("a stream that may have lost records can be opened: %v", err)
	}
}

// What cannot be recovered from here is refused before anything is changed.
func TestRecoverRefuses(t *testing.T) {
	e := newEnv(t)
	files := e.open(e.config(WALFile))
	s := e.node(2)
	for id, want := range map[NodeID]string{1: "start the node there", 2: "it is this node", 9: "never registered"} {
		if _, err := s.Recover(context.Background(), id, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("node %d: %v, want %q", id, err, want)
		}
	}
	if _, err := files.CreateStreams(context.Background(), 1); err != nil {
		t.Fatalf("the node with the file WAL was touched: %v", err)
	}
	s.abandon()
	if _, err := s.Recover(context.Background(), 1, nil); !errors.Is(err, ErrStoreClosed) {
		t.Fatalf("recovery by a closed store: %v", err)
	}
}

// Closing the store ends a recovery that it is at.
func TestCloseEndsRecovery(t *testing.T) {
	e := newEnv(t)
	f := e.faulty()
	dead := e.node(1)
	st := e.create(dead, 1, 1)[0]
	appendAll(t, st, "a")
	dead.abandon()
	s := e.node(2)
	hold := f.Hold(objectstore.Before, isDataPut)
	failed := make(chan error, 1)
	go func() {
		_, err := s.Recover(context.Background(), 1, nil)
		failed <- err
	}()
	<-hold.Reached()
	if err := s.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; !errors.Is(err, ErrStoreClosed) {
		t.Fatalf("recovery ended with %v", err)
	}
	hold.Release(nil)
	recoverNode(t, e.node(3), 1)
}

// dying is a manager whose n-th call from now on fails, after its effect or before it, and
// all after it: the process died there.
type dying struct {
	*MemoryManager
	left  atomic.Int64
	after bool
}

var errDeath = errors.New("died")

func (f *dying) do(call func() error) error {
	n := f.left.Add(-1)
	if n < 0 || n == 0 && !f.after {
		return errDeath
	}
	err := call()
	if n == 0 && err == nil {
		return errDeath
	}
	return err
}

func (f *dying) TakeOverNode(ctx context.Context, by Node, id NodeID) (as Node, wals []WALState, err error) {
	err = f.do(func() error { as, wals, err = f.MemoryManager.TakeOverNode(ctx, by, id); return err })
	return as, wals, err
}

func (f *dying) Streams(ctx context.Context, id NodeID) (states []StreamState, err error) {
	err = f.do(func() error { states, err = f.MemoryManager.Streams(ctx, id); return err })
	return states, err
}

func (f *dying) PrepareObjects(ctx context.Context, node Node, n int, ttl time.Duration) (first ObjectID, err error) {
	err = f.do(func() error { first, err = f.MemoryManager.PrepareObjects(ctx, node, n, ttl); return err })
	return first, err
}

func (f *dying) CommitUpload(ctx context.Context, node Node, u Upload) error {
	return f.do(func() error { return f.MemoryManager.CommitUpload(ctx, node, u) })
}

func (f *dying) RetireWAL(ctx context.Context, node Node, epoch int64) error {
	return f.do(func() error { return f.MemoryManager.RetireWAL(ctx, node, epoch) })
}

func (f *dying) ReleaseNode(ctx context.Context, by, node Node) error {
	return f.do(func() error { return f.MemoryManager.ReleaseNode(ctx, by, node) })
}

// A rescuer dies at every step of a recovery, before the step has its effect and after it.
// Another begins anew and ends with the same streams.
func TestRescuerDiesAtAnyStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, after := range []bool{false, true} {
			for step := int64(1); ; step++ {
				e := newEnv(t)
				dead := e.nodeWith(1, e.lazy())
				streams := e.create(dead, 2, 1)
				want := numbered("x", 100, 400) // several blocks
				for _, st := range streams {
					appendAll(t, st, want...)
				}
				dead.abandon()
				f := &dying{MemoryManager: e.meta, after: after}
				first, err := Open(context.Background(), e.config(WALObject), 2, e.bucket, f, f, newEnvLog())
				if err != nil {
					t.Fatal(err)
				}
				f.left.Store(step)
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				_, err = first.Recover(ctx, 1, nil)
				cancel()
				first.abandon()
				second := e.node(3)
				recoverNode(t, second, 1)
				for _, st := range e.reopen(second, requests(streams, 2)...) {
					if got := readAll(t, st); !slices.Equal(got, want) {
						t.Fatalf("died at step %d (after: %t): stream %d has %d batches, want %d", step, after, st.ID(), len(got), len(want))
					}
				}
				second.abandon()
				if err == nil {
					if step < 10 {
						t.Fatalf("recovery took %d steps", step)
					}
					break
				}
			}
		}
	})
}

// Of two rescuers the one that begins later wins. The earlier is refused, wherever it is, and
// goes on with its own work.
func TestLaterRescuerWins(t *testing.T) {
	e := newEnv(t)
	dead := e.node(1)
	st := e.create(dead, 1, 1)[0]
	want := numbered("x", 50, 10)
	appendAll(t, st, want...)
	dead.abandon()
	f := e.faulty()
	early := e.node(2)
	own := e.create(early, 1, 1)[0]
	e.bucket = e.memory
	late := e.node(3)
	hold := f.Hold(objectstore.Before, isDataPut)
	failed := make(chan error, 1)
	go func() {
		_, err := early.Recover(context.Background(), 1, nil)
		failed <- err
	}()
	<-hold.Reached()
	recoverNode(t, late, 1)
	opened := e.reopen(late, OpenRequest{st.ID(), 2})[0]
	hold.Release(nil)
	if err := <-failed; !errors.Is(err, ErrNodeFenced) || !strings.Contains(err.Error(), "another node recovers it") {
		t.Fatalf("the earlier rescuer: %v", err)
	}
	if early.Err() != nil {
		t.Fatalf("the earlier rescuer is fenced: %v", early.Err())
	}
	appendAll(t, own, "on")
	appendAll(t, opened, "new")
	if got := readAll(t, opened); !slices.Equal(got, append(want, "new")) {
		t.Fatalf("%d batches, want %d", len(got), len(want)+1)
	}
}

// The node comes back while another recovers it: it recovers itself, and the rescuer is
// refused.
func TestNodeComesBackDuringItsRecovery(t *testing.T) {
	e := newEnv(t)
	dead := e.node(1)
	st := e.create(dead, 1, 1)[0]
	want := numbered("x", 50, 10)
	appendAll(t, st, want...)
	dead.abandon()
	f := e.faulty()
	s := e.node(2)
	e.bucket = e.memory
	for name, match := range map[string]func(op objectstore.Op, key string) bool{
		"fence": func(op objectstore.Op, key string) bool {
			return op == objectstore.OpPutIfAbsent && strings.HasPrefix(key, "wal/1/")
		},
		"read": func(op objectstore.Op, key string) bool {
			return op == objectstore.OpGet && strings.HasPrefix(key, "wal/1/")
		},
		"upload": isDataPut,
	} {
		hold := f.Hold(objectstore.Before, match)
		failed := make(chan error, 1)
		go func() {
			_, err := s.Recover(context.Background(), 1, nil)
			failed <- err
		}()
		<-hold.Reached()
		back := e.node(1)
		opened := e.reopen(back, OpenRequest{st.ID(), back.Node().Epoch})[0]
		appendAll(t, opened, name)
		want = append(want, name)
		hold.Release(nil)
		if err := <-failed; !errors.Is(err, ErrNodeFenced) {
			t.Fatalf("%s: the rescuer: %v", name, err)
		}
		if got := readAll(t, opened); !slices.Equal(got, want) {
			t.Fatalf("%s: %d batches, want %d", name, len(got), len(want))
		}
		if s.Err() != nil {
			t.Fatalf("%s: the rescuer is fenced: %v", name, s.Err())
		}
		back.abandon()
	}
	recoverNode(t, s, 1)
	if got := readAll(t, e.reopen(s, OpenRequest{st.ID(), 100})[0]); !slices.Equal(got, want) {
		t.Fatalf("%d batches, want %d", len(got), len(want))
	}
}

// The remains of WALs that are retired are swept, whoever's they are; a WAL that is still to
// be recovered is kept, and so is every fence.
func TestSweepKeepsWhatIsToBeRecovered(t *testing.T) {
	e := newEnv(t)
	dead, s := e.node(1), e.node(2)
	st := e.create(dead, 1, 1)[0]
	appendAll(t, st, "a")
	dead.abandon()
	// A rescuer died between taking over and fencing: the WAL is of an earlier life, not retired.
	if _, _, err := e.meta.TakeOverNode(context.Background(), s.Node(), 1); err != nil {
		t.Fatal(err)
	}
	if err := s.sweepWALs(context.Background()); err != nil {
		t.Fatal(err)
	}
	recoverNode(t, s, 1)
	if got := readAll(t, e.reopen(s, OpenRequest{st.ID(), 2})[0]); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("got %q", got)
	}
	garbage := walKey(1, dead.Node().Epoch, 77) // of a zombie, above its fence
	if err := e.memory.Put(context.Background(), garbage, make([]byte, 200)); err != nil {
		t.Fatal(err)
	}
	if err := s.sweepWALs(context.Background()); err != nil {
		t.Fatal(err)
	}
	if data, fences := e.walObjects(dead.Node()); len(data) != 0 || len(fences) != 1 {
		t.Fatalf("data %v and fences %v, want one fence", data, fences)
	}
}

// A node that starts while another sweeps WALs keeps its own, which the other did not know of
// when it looked.
func TestSweepKeepsLivesThatBeginMeanwhile(t *testing.T) {
	e := newEnv(t)
	first := e.node(1)
	st := e.create(first, 1, 1)[0]
	first.abandon()
	cfg := e.config(WALObject)
	var second *Store
	cfg.Settled = func(context.Context) error { // between what is asked of metadata and of the bucket
		if second == nil {
			second = e.node(1)
			appendAll(t, e.reopen(second, OpenRequest{st.ID(), 2})[0], "a")
		}
		return nil
	}
	if err := e.nodeWith(2, cfg).sweepWALs(context.Background()); err != nil {
		t.Fatal(err)
	}
	second.abandon()
	third := e.node(1)
	if got := readAll(t, e.reopen(third, OpenRequest{st.ID(), 3})[0]); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("got %q", got)
	}
}

// A recovered WAL is kept until the recovery is settled, and removed by the next cleaning.
func TestRecoveredWALGoesWhenSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		dead := e.node(1)
		appendAll(t, e.create(dead, 1, 1)[0], "a")
		dead.abandon()
		cfg := e.config(WALObject)
		cfg.CleanInterval = time.Minute
		settled := make(chan struct{})
		cfg.Settled = func(ctx context.Context) error {
			select {
			case <-settled:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		s := e.nodeWith(2, cfg)
		recoverNode(t, s, 1)
		<-time.After(2 * time.Minute)
		if data, _ := e.walObjects(dead.Node()); len(data) != 1 {
			t.Fatalf("not settled, and the WAL holds %v", data)
		}
		close(settled)
		<-time.After(2 * time.Minute)
		if data, fences := e.walObjects(dead.Node()); len(data) != 0 || len(fences) != 1 {
			t.Fatalf("settled, and the WAL holds %v and fences %v", data, fences)
		}
	})
}

// While an upload takes its time, recovery reads on, but holds no more than UploadBytes and a
// few bulks.
func TestRecoveryMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		dead := e.nodeWith(1, e.lazy())
		st := e.create(dead, 1, 1)[0]
		for i := range 60 { // a bulk each
			appendAll(t, st, numbered(fmt.Sprint(i), 1, 4<<10)...)
		}
		dead.abandon()
		f := e.faulty()
		var reads atomic.Int64
		e.bucket = &countGets{f, &reads}
		s := e.node(2)
		reads.Store(0)
		hold := f.Hold(objectstore.Before, isDataPut)
		failed := make(chan error, 1)
		go func() {
			_, err := s.Recover(context.Background(), 1, nil)
			failed <- err
		}()
		<-hold.Reached()
		synctest.Wait()
		bulks := s.cfg.UploadBytes / (4 << 10)
		if got := reads.Load(); got > bulks+recoveryReads+2 || got < bulks/2 {
			t.Errorf("%d bulks read while the first block is uploaded, want about %d of UploadBytes and %d read ahead", got, bulks, recoveryReads)
		}
		hold.Release(nil)
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
	})
}
