// Package streamstoretest holds the suite that every keeper of a stream store's metadata
// must pass: the database and the fakes of tests alike.
package streamstoretest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	ss "github.com/tabletopic/tabletopic/streamstore"
)

// Managers is a pair of managers over one empty state.
type Managers struct {
	Streams ss.StreamManager
	Objects ss.ObjectManager
	// Advance moves the clock that the managers read forward.
	Advance func(d time.Duration)
}

// RunManagers runs the suite; open returns fresh managers for each test.
func RunManagers(t *testing.T, open func(t *testing.T) Managers) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, m *fixture)
	}{
		{"EpochRisesWithEachLife", testEpochRises},
		{"OldLifeIsRefused", testOldLifeIsRefused},
		{"CreateStreams", testCreateStreams},
		{"OpenStreams", testOpenStreams},
		{"OpenIsAllOrNone", testOpenIsAllOrNone},
		{"OpenRefusesStreamOfAnotherNode", testOpenRefusesForeign},
		{"TrimStream", testTrimStream},
		{"TrimPastCommittedEnd", testTrimPastEnd},
		{"CloseStreams", testCloseStreams},
		{"DeleteStreams", testDeleteStreams},
		{"CommitUpload", testCommitUpload},
		{"CommitRepeats", testCommitRepeats},
		{"CommitRefusesWrongStart", testCommitWrongStart},
		{"CommitRefusesWrongEpoch", testCommitWrongEpoch},
		{"CommitOfEarlierLife", testCommitOfEarlierLife},
		{"CommitDropsDeletedStreams", testCommitDropsDeleted},
		{"CommitRefusesExpiredPreparation", testCommitExpired},
		{"CommitIsAllOrNone", testCommitAllOrNone},
		{"WALMarkMovesForward", testWALMark},
		{"StreamObjects", testStreamObjects},
		{"DeletableObjects", testDeletable},
		{"ForgetObjects", testForget},
		{"ConcurrentCommitsHaveOneWinner", testConcurrentCommits},
		{"Compaction", testCompaction},
		{"CompactionCoversItsSources", testCompactionCovers},
		{"CompactionConflicts", testCompactionConflicts},
		{"CompactionOvertakenByTrim", testCompactionOvertaken},
		{"CompositeKeepsItsParts", testComposite},
		{"StreamSetObjects", testStreamSetObjects},
		{"ObjectsInEachState", testObjectStates},
		{"ObjectsInPages", testObjectPages},
		{"OneNodeSweeps", testClaimSweep},
		{"TakeOver", testTakeOver},
		{"TakeOverIsTakenOver", testTakeOverIsTakenOver},
		{"TakeOverRefused", testTakeOverRefused},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.run(t, &fixture{t: t, ctx: t.Context(), Managers: open(t)})
		})
	}
}

// A fixture is managers with calls that must succeed.
type fixture struct {
	t   *testing.T
	ctx context.Context
	Managers
}

func (f *fixture) register(id ss.NodeID) ss.Node {
	f.t.Helper()
	node, _, err := f.Streams.RegisterNode(f.ctx, id, ss.WALObject)
	f.must(err)
	return node
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) wantErr(err, want error) {
	f.t.Helper()
	if !errors.Is(err, want) {
		f.t.Fatalf("got error %v, want %v", err, want)
	}
}

// open creates n streams and opens them with epoch 1.
func (f *fixture) open(node ss.Node, n int) ss.StreamID {
	f.t.Helper()
	first, err := f.Streams.CreateStreams(f.ctx, node, n)
	f.must(err)
	for i := range n {
		_, err = f.Streams.OpenStreams(f.ctx, node, []ss.OpenRequest{{ID: first + ss.StreamID(i), Epoch: 1}})
		f.must(err)
	}
	return first
}

func (f *fixture) prepare(node ss.Node, n int) ss.ObjectID {
	f.t.Helper()
	first, err := f.Objects.PrepareObjects(f.ctx, node, n, time.Hour)
	f.must(err)
	return first
}

// commit uploads one stream set object with the ranges.
func (f *fixture) commit(node ss.Node, mark uint64, ranges ...ss.StreamRange) ss.ObjectID {
	f.t.Helper()
	id := f.prepare(node, 1)
	f.must(f.Objects.CommitUpload(f.ctx, node, setUpload(node, id, mark, ranges...)))
	return id
}

func setUpload(node ss.Node, id ss.ObjectID, mark uint64, ranges ...ss.StreamRange) ss.Upload {
	return ss.Upload{StreamSet: &ss.StreamSetObject{ID: id, Size: 1000, Ranges: ranges}, WALEpoch: node.Epoch, WALMark: mark}
}

func (f *fixture) wantStreams(id ss.NodeID, want ...ss.StreamState) {
	f.t.Helper()
	got, err := f.Streams.Streams(f.ctx, id)
	f.must(err)
	if len(got) == 0 && len(want) == 0 {
		return
	}
	if d := cmp.Diff(got, want); d != "" {
		f.t.Fatalf("streams of node %d (-got +want):\n%s", id, d)
	}
}

func (f *fixture) wantObjects(id ss.StreamID, start, end int64, limit int, want ...ss.ObjectRange) {
	f.t.Helper()
	got, err := f.Objects.StreamObjects(f.ctx, id, start, end, limit)
	f.must(err)
	if len(got) == 0 && len(want) == 0 {
		return
	}
	if d := cmp.Diff(got, want); d != "" {
		f.t.Fatalf("objects of stream %d [%d, %d) (-got +want):\n%s", id, start, end, d)
	}
}

func (f *fixture) wantDeletable(node ss.Node, grace time.Duration, want ...ss.ObjectID) {
	f.t.Helper()
	got, err := f.Objects.DeletableObjects(f.ctx, node, grace, 100)
	f.must(err)
	var ids []ss.ObjectID
	for _, o := range got {
		ids = append(ids, o.ID)
	}
	if d := cmp.Diff(ids, want); d != "" {
		f.t.Fatalf("deletable after %v (-got +want):\n%s", grace, d)
	}
}

func setRange(id ss.ObjectID, start, end int64) ss.ObjectRange {
	return ss.ObjectRange{ObjectRef: ss.ObjectRef{ID: id, Kind: ss.KindStreamSet, Size: 1000}, Start: start, End: end}
}

// Each life of a node has a higher epoch and learns of the WALs that earlier ones left.
func testEpochRises(t *testing.T, f *fixture) {
	first, wals, err := f.Streams.RegisterNode(f.ctx, 3, ss.WALFile)
	f.must(err)
	if first.ID != 3 || first.Epoch < 1 || len(wals) != 0 {
		t.Fatalf("first life: got %+v, WALs %v", first, wals)
	}
	second, wals, err := f.Streams.RegisterNode(f.ctx, 3, ss.WALObject)
	f.must(err)
	if d := cmp.Diff(wals, []ss.WALState{{Epoch: first.Epoch, Kind: ss.WALFile}}); second.Epoch <= first.Epoch || d != "" {
		t.Fatalf("second life: got %+v after %+v, WALs (-got +want):\n%s", second, first, d)
	}
	third, wals, err := f.Streams.RegisterNode(f.ctx, 3, ss.WALObject)
	f.must(err)
	if d := cmp.Diff(wals, []ss.WALState{{Epoch: first.Epoch, Kind: ss.WALFile}, {Epoch: second.Epoch, Kind: ss.WALObject}}); d != "" {
		t.Fatalf("third life, WALs (-got +want):\n%s", d)
	}
	for range 2 { // a repeat succeeds
		f.must(f.Streams.RetireWAL(f.ctx, third, first.Epoch))
	}
	_, wals, err = f.Streams.RegisterNode(f.ctx, 3, ss.WALObject)
	f.must(err)
	if d := cmp.Diff(wals, []ss.WALState{{Epoch: second.Epoch, Kind: ss.WALObject}, {Epoch: third.Epoch, Kind: ss.WALObject}}); d != "" {
		t.Fatalf("fourth life, WALs (-got +want):\n%s", d)
	}
	if other := f.register(4); other.Epoch < 1 {
		t.Fatalf("another node: got %+v", other)
	}
}

// No call of a life that a later one replaced changes anything.
func testOldLifeIsRefused(t *testing.T, f *fixture) {
	old := f.register(1)
	id := f.open(old, 1)
	object := f.prepare(old, 1)
	f.register(1)

	_, err := f.Streams.CreateStreams(f.ctx, old, 1)
	f.wantErr(err, ss.ErrNodeFenced)
	_, err = f.Streams.OpenStreams(f.ctx, old, []ss.OpenRequest{{ID: id, Epoch: 9}})
	f.wantErr(err, ss.ErrNodeFenced)
	f.wantErr(f.Streams.TrimStream(f.ctx, old, id, 1, 5), ss.ErrNodeFenced)
	f.wantErr(f.Streams.CloseStreams(f.ctx, old, []ss.OpenRequest{{ID: id, Epoch: 1}}), ss.ErrNodeFenced)
	f.wantErr(f.Streams.DeleteStreams(f.ctx, old, []ss.StreamID{id}), ss.ErrNodeFenced)
	_, err = f.Objects.PrepareObjects(f.ctx, old, 1, time.Hour)
	f.wantErr(err, ss.ErrNodeFenced)
	f.wantErr(f.Objects.CommitUpload(f.ctx, old, setUpload(old, object, 1, ss.StreamRange{Stream: id, Epoch: 1, End: 5})), ss.ErrNodeFenced)
	_, err = f.Objects.DeletableObjects(f.ctx, old, 0, 10)
	f.wantErr(err, ss.ErrNodeFenced)
	f.wantErr(f.Objects.ForgetObjects(f.ctx, old, []ss.ObjectID{object}), ss.ErrNodeFenced)

	f.wantStreams(1, ss.StreamState{ID: id, Epoch: 1, Node: 1, Open: true})
	_, err = f.Streams.CreateStreams(f.ctx, ss.Node{ID: 77, Epoch: 1}, 1) // never registered
	f.wantErr(err, ss.ErrNodeFenced)
}

func testCreateStreams(t *testing.T, f *fixture) {
	node := f.register(1)
	first, err := f.Streams.CreateStreams(f.ctx, node, 3)
	f.must(err)
	second, err := f.Streams.CreateStreams(f.ctx, node, 1)
	f.must(err)
	if second < first+3 {
		t.Fatalf("ids overlap: 3 from %d, then %d", first, second)
	}
	f.wantStreams(1) // closed
	_, err = f.Streams.OpenStreams(f.ctx, node, []ss.OpenRequest{{ID: first, Epoch: 0}})
	f.wantErr(err, ss.ErrStreamFenced) // epoch 0 is nobody's
	f.wantObjects(first, 0, 100, 10)
}

func testOpenStreams(t *testing.T, f *fixture) {
	node := f.register(1)
	first, err := f.Streams.CreateStreams(f.ctx, node, 2)
	f.must(err)
	for range 2 { // a repeat by the same life succeeds
		got, err := f.Streams.OpenStreams(f.ctx, node, []ss.OpenRequest{{ID: first + 1, Epoch: 7}, {ID: first, Epoch: 2}})
		f.must(err)
		want := []ss.StreamState{{ID: first + 1, Epoch: 7, Node: 1, Open: true}, {ID: first, Epoch: 2, Node: 1, Open: true}}
		if d := cmp.Diff(got, want); d != "" {
			t.Fatalf("opened (-got +want):\n%s", d)
		}
	}
	_, err = f.Streams.OpenStreams(f.ctx, node, []ss.OpenRequest{{ID: first + 1, Epoch: 6}})
	f.wantErr(err, ss.ErrStreamFenced)

	node = f.register(1)
	_, err = f.Streams.OpenStreams(f.ctx, node, []ss.OpenRequest{{ID: first, Epoch: 2}}) // the epoch of another life
	f.wantErr(err, ss.ErrStreamFenced)
	_, err = f.Streams.OpenStreams(f.ctx, node, []ss.OpenRequest{{ID: first, Epoch: 3}})
	f.must(err)
	f.wantStreams(1, ss.StreamState{ID: first, Epoch: 3, Node: 1, Open: true}, ss.StreamState{ID: first + 1, Epoch: 7, Node: 1, Open: true})
}

func testOpenIsAllOrNone(t *testing.T, f *fixture) {
	node := f.register(1)
	first, err := f.Streams.CreateStreams(f.ctx, node, 1)
	f.must(err)
	_, err = f.Streams.OpenStreams(f.ctx, node, []ss.OpenRequest{{ID: first, Epoch: 1}, {ID: first + 50, Epoch: 1}})
	f.wantErr(err, ss.ErrStreamNotExist)
	f.wantStreams(1)
}

func testOpenRefusesForeign(t *testing.T, f *fixture) {
	one, two := f.register(1), f.register(2)
	id := f.open(one, 1)
	_, err := f.Streams.OpenStreams(f.ctx, two, []ss.OpenRequest{{ID: id, Epoch: 2}})
	f.wantErr(err, ss.ErrConflict)
	f.must(f.Streams.CloseStreams(f.ctx, one, []ss.OpenRequest{{ID: id, Epoch: 1}}))
	_, err = f.Streams.OpenStreams(f.ctx, two, []ss.OpenRequest{{ID: id, Epoch: 1}}) // closed, but not newer
	f.wantErr(err, ss.ErrStreamFenced)
	_, err = f.Streams.OpenStreams(f.ctx, two, []ss.OpenRequest{{ID: id, Epoch: 2}})
	f.must(err)
	f.wantStreams(1)
	f.wantStreams(2, ss.StreamState{ID: id, Epoch: 2, Node: 2, Open: true})
}

func testTrimStream(t *testing.T, f *fixture) {
	node := f.register(1)
	id := f.open(node, 1)
	f.commit(node, 1, ss.StreamRange{Stream: id, Epoch: 1, Start: 0, End: 10})
	second := f.commit(node, 2, ss.StreamRange{Stream: id, Epoch: 1, Start: 10, End: 20})
	for _, start := range []int64{15, 15, 3} { // repeated, and never backward
		f.must(f.Streams.TrimStream(f.ctx, node, id, 1, start))
		f.wantStreams(1, ss.StreamState{ID: id, Epoch: 1, Start: 15, End: 20, Node: 1, Open: true})
	}
	f.wantObjects(id, 15, 100, 10, setRange(second, 10, 20))
	_, err := f.Objects.StreamObjects(f.ctx, id, 14, 100, 10)
	f.wantErr(err, ss.ErrOffsetOutOfRange)

	f.wantErr(f.Streams.TrimStream(f.ctx, node, id, 2, 18), ss.ErrStreamFenced)
	f.wantErr(f.Streams.TrimStream(f.ctx, f.register(2), id, 1, 18), ss.ErrStreamFenced)
	f.wantErr(f.Streams.TrimStream(f.ctx, node, id+50, 1, 18), ss.ErrStreamNotExist)
}

// A trim that passes data which only the WAL holds yet is kept; what it passed is not indexed
// when it comes.
func testTrimPastEnd(t *testing.T, f *fixture) {
	node := f.register(1)
	id := f.open(node, 1)
	f.must(f.Streams.TrimStream(f.ctx, node, id, 1, 15))
	f.wantStreams(1, ss.StreamState{ID: id, Epoch: 1, Start: 15, End: 0, Node: 1, Open: true})
	below := f.commit(node, 1, ss.StreamRange{Stream: id, Epoch: 1, Start: 0, End: 10})
	across := f.commit(node, 2, ss.StreamRange{Stream: id, Epoch: 1, Start: 10, End: 20})
	f.wantStreams(1, ss.StreamState{ID: id, Epoch: 1, Start: 15, End: 20, Node: 1, Open: true})
	f.wantObjects(id, 15, 100, 10, setRange(across, 10, 20))
	f.wantDeletable(node, 0, below)
}

func testCloseStreams(t *testing.T, f *fixture) {
	node := f.register(1)
	id := f.open(node, 2)
	f.wantErr(f.Streams.CloseStreams(f.ctx, node, []ss.OpenRequest{{ID: id, Epoch: 1}, {ID: id + 1, Epoch: 2}}), ss.ErrStreamFenced)
	f.wantErr(f.Streams.CloseStreams(f.ctx, f.register(2), []ss.OpenRequest{{ID: id, Epoch: 1}}), ss.ErrStreamFenced)
	f.wantStreams(1, ss.StreamState{ID: id, Epoch: 1, Node: 1, Open: true}, ss.StreamState{ID: id + 1, Epoch: 1, Node: 1, Open: true})
	for range 2 { // a repeat succeeds
		f.must(f.Streams.CloseStreams(f.ctx, node, []ss.OpenRequest{{ID: id, Epoch: 1}, {ID: id + 1, Epoch: 1}}))
	}
	f.wantStreams(1)
	f.wantErr(f.Streams.TrimStream(f.ctx, node, id, 1, 5), ss.ErrStreamFenced)
	f.must(f.Streams.DeleteStreams(f.ctx, node, []ss.StreamID{id}))
	f.must(f.Streams.CloseStreams(f.ctx, node, []ss.OpenRequest{{ID: id, Epoch: 1}})) // gone is closed
}

func testDeleteStreams(t *testing.T, f *fixture) {
	one, two := f.register(1), f.register(2)
	id := f.open(one, 2)
	both := f.commit(one, 1, ss.StreamRange{Stream: id, Epoch: 1, End: 10}, ss.StreamRange{Stream: id + 1, Epoch: 1, End: 10})
	alone := f.commit(one, 2, ss.StreamRange{Stream: id, Epoch: 1, Start: 10, End: 20})
	f.wantErr(f.Streams.DeleteStreams(f.ctx, two, []ss.StreamID{id}), ss.ErrConflict) // open by one
	for range 2 {                                                                     // a repeat succeeds
		f.must(f.Streams.DeleteStreams(f.ctx, one, []ss.StreamID{id}))
	}
	_, err := f.Objects.StreamObjects(f.ctx, id, 0, 100, 10)
	f.wantErr(err, ss.ErrStreamNotExist)
	f.wantStreams(1, ss.StreamState{ID: id + 1, Epoch: 1, End: 10, Node: 1, Open: true})
	f.wantDeletable(two, 0, alone)
	f.wantObjects(id+1, 0, 100, 10, setRange(both, 0, 10))
	f.must(f.Streams.CloseStreams(f.ctx, one, []ss.OpenRequest{{ID: id + 1, Epoch: 1}}))
	f.must(f.Streams.DeleteStreams(f.ctx, two, []ss.StreamID{id + 1})) // closed: anybody may
	f.wantDeletable(two, 0, both, alone)
	next, err := f.Streams.CreateStreams(f.ctx, one, 1)
	f.must(err)
	if next <= id+1 {
		t.Fatalf("stream id %d was given again", next)
	}
}

func testCommitUpload(t *testing.T, f *fixture) {
	node := f.register(1)
	id := f.open(node, 3)
	object := f.prepare(node, 3)
	f.must(f.Objects.CommitUpload(f.ctx, node, ss.Upload{
		StreamSet: &ss.StreamSetObject{ID: object, Size: 1000, Ranges: []ss.StreamRange{{Stream: id, Epoch: 1, End: 10}, {Stream: id + 1, Epoch: 1, End: 5}}},
		Streams: []ss.StreamObject{
			{ID: object + 1, Size: 70, Range: ss.StreamRange{Stream: id + 2, Epoch: 1, End: 100}},
			{ID: object + 2, Size: 80, Range: ss.StreamRange{Stream: id + 2, Epoch: 1, Start: 100, End: 150}},
		},
		WALEpoch: node.Epoch, WALMark: 4,
	}))
	f.wantStreams(1,
		ss.StreamState{ID: id, Epoch: 1, End: 10, Node: 1, Open: true},
		ss.StreamState{ID: id + 1, Epoch: 1, End: 5, Node: 1, Open: true},
		ss.StreamState{ID: id + 2, Epoch: 1, End: 150, Node: 1, Open: true})
	f.wantObjects(id+1, 0, 100, 10, setRange(object, 0, 5))
	f.wantObjects(id+2, 0, 1000, 10,
		ss.ObjectRange{ObjectRef: ss.ObjectRef{ID: object + 1, Kind: ss.KindStream, Size: 70}, Start: 0, End: 100},
		ss.ObjectRange{ObjectRef: ss.ObjectRef{ID: object + 2, Kind: ss.KindStream, Size: 80}, Start: 100, End: 150})
	_, wals, err := f.Streams.RegisterNode(f.ctx, 1, ss.WALObject)
	f.must(err)
	if d := cmp.Diff(wals, []ss.WALState{{Epoch: node.Epoch, Kind: ss.WALObject, Mark: 4}}); d != "" {
		t.Fatalf("WALs (-got +want):\n%s", d)
	}
	f.wantDeletable(f.register(2), 0)
}

// The repeat of a commit succeeds, changes nothing, and does so even when all that it
// committed is trimmed meanwhile.
func testCommitRepeats(t *testing.T, f *fixture) {
	node := f.register(1)
	id := f.open(node, 1)
	object := f.prepare(node, 1)
	u := setUpload(node, object, 1, ss.StreamRange{Stream: id, Epoch: 1, End: 10})
	f.must(f.Objects.CommitUpload(f.ctx, node, u))
	f.must(f.Objects.CommitUpload(f.ctx, node, u))
	f.wantObjects(id, 0, 100, 10, setRange(object, 0, 10))
	next := f.commit(node, 2, ss.StreamRange{Stream: id, Epoch: 1, Start: 10, End: 20})
	f.must(f.Objects.CommitUpload(f.ctx, node, u))
	f.must(f.Streams.TrimStream(f.ctx, node, id, 1, 12))
	f.must(f.Objects.CommitUpload(f.ctx, node, u))
	f.wantObjects(id, 12, 100, 10, setRange(next, 10, 20))
	f.wantDeletable(node, 0, object)
}

func testCommitWrongStart(t *testing.T, f *fixture) {
	node := f.register(1)
	id := f.open(node, 1)
	f.commit(node, 1, ss.StreamRange{Stream: id, Epoch: 1, End: 10})
	for _, start := range []int64{0, 9, 11} {
		err := f.Objects.CommitUpload(f.ctx, node, setUpload(node, f.prepare(node, 1), 2, ss.StreamRange{Stream: id, Epoch: 1, Start: start, End: 20}))
		f.wantErr(err, ss.ErrConflict)
	}
	f.wantStreams(1, ss.StreamState{ID: id, Epoch: 1, End: 10, Node: 1, Open: true})
}

func testCommitWrongEpoch(t *testing.T, f *fixture) {
	one, two := f.register(1), f.register(2)
	id := f.open(one, 1)
	for _, epoch := range []int64{0, 2} {
		err := f.Objects.CommitUpload(f.ctx, one, setUpload(one, f.prepare(one, 1), 1, ss.StreamRange{Stream: id, Epoch: epoch, End: 20}))
		f.wantErr(err, ss.ErrConflict)
	}
	// Nor does another node commit to it, though it knows the epoch.
	err := f.Objects.CommitUpload(f.ctx, two, setUpload(two, f.prepare(two, 1), 1, ss.StreamRange{Stream: id, Epoch: 1, End: 20}))
	f.wantErr(err, ss.ErrConflict)
	f.must(f.Streams.CloseStreams(f.ctx, one, []ss.OpenRequest{{ID: id, Epoch: 1}}))
	err = f.Objects.CommitUpload(f.ctx, one, setUpload(one, f.prepare(one, 1), 1, ss.StreamRange{Stream: id, Epoch: 1, End: 20}))
	f.wantErr(err, ss.ErrConflict)
}

// A new life commits what it found in the WAL of an earlier one, under the epoch of then,
// before it opens the streams anew.
func testCommitOfEarlierLife(t *testing.T, f *fixture) {
	old := f.register(1)
	id := f.open(old, 1)
	node := f.register(1)
	u := setUpload(old, f.prepare(node, 1), 9, ss.StreamRange{Stream: id, Epoch: 1, End: 20})
	f.must(f.Objects.CommitUpload(f.ctx, node, u))
	f.must(f.Streams.RetireWAL(f.ctx, node, old.Epoch))
	f.must(f.Objects.CommitUpload(f.ctx, node, u)) // a repeat, though the WAL is retired
	got, err := f.Streams.OpenStreams(f.ctx, node, []ss.OpenRequest{{ID: id, Epoch: 2}})
	f.must(err)
	if d := cmp.Diff(got, []ss.StreamState{{ID: id, Epoch: 2, End: 20, Node: 1, Open: true}}); d != "" {
		t.Fatalf("opened (-got +want):\n%s", d)
	}
	err = f.Objects.CommitUpload(f.ctx, node, setUpload(old, f.prepare(node, 1), 9, ss.StreamRange{Stream: id, Epoch: 1, Start: 20, End: 30}))
	f.wantErr(err, ss.ErrConflict)
	err = f.Objects.CommitUpload(f.ctx, node, setUpload(old, f.prepare(node, 1), 9, ss.StreamRange{Stream: id, Epoch: 2, Start: 20, End: 30}))
	f.wantErr(err, ss.ErrConflict) // a WAL that is retired
}

func testCommitDropsDeleted(t *testing.T, f *fixture) {
	node := f.register(1)
	id := f.open(node, 2)
	f.must(f.Streams.DeleteStreams(f.ctx, node, []ss.StreamID{id}))
	object := f.commit(node, 1, ss.StreamRange{Stream: id, Epoch: 1, End: 10}, ss.StreamRange{Stream: id + 1, Epoch: 1, End: 10})
	f.wantObjects(id+1, 0, 100, 10, setRange(object, 0, 10))
	f.wantDeletable(node, 0)
	gone := f.commit(node, 2, ss.StreamRange{Stream: id, Epoch: 1, Start: 10, End: 20}) // nothing is left of it
	f.wantDeletable(node, 0, gone)
}

// A preparation that was handed out for deletion cannot be committed any more.
func testCommitExpired(t *testing.T, f *fixture) {
	node := f.register(1)
	id := f.open(node, 1)
	object, err := f.Objects.PrepareObjects(f.ctx, node, 1, time.Minute)
	f.must(err)
	f.Advance(2 * time.Minute)
	f.wantDeletable(node, time.Hour) // ended, but not yet for an hour
	u := setUpload(node, object, 1, ss.StreamRange{Stream: id, Epoch: 1, End: 10})
	f.wantErr(f.Objects.CommitUpload(f.ctx, node, u), ss.ErrConflict)
	f.Advance(time.Hour)
	f.wantDeletable(node, time.Hour, object)
	f.must(f.Objects.ForgetObjects(f.ctx, node, []ss.ObjectID{object}))
	f.wantErr(f.Objects.CommitUpload(f.ctx, node, u), ss.ErrConflict)
	never := setUpload(node, object+1000, 1, ss.StreamRange{Stream: id, Epoch: 1, End: 10})
	f.wantErr(f.Objects.CommitUpload(f.ctx, node, never), ss.ErrConflict)
	foreign := setUpload(node, f.prepare(f.register(2), 1), 1, ss.StreamRange{Stream: id, Epoch: 1, End: 10})
	f.wantErr(f.Objects.CommitUpload(f.ctx, node, foreign), ss.ErrConflict)
}

func testCommitAllOrNone(t *testing.T, f *fixture) {
	node := f.register(1)
	id := f.open(node, 2)
	object := f.prepare(node, 2)
	u := ss.Upload{
		StreamSet: &ss.StreamSetObject{ID: object, Size: 1000, Ranges: []ss.StreamRange{{Stream: id, Epoch: 1, End: 10}}},
		Streams:   []ss.StreamObject{{ID: object + 1, Size: 70, Range: ss.StreamRange{Stream: id + 1, Epoch: 1, Start: 3, End: 100}}},
		WALEpoch:  node.Epoch, WALMark: 4,
	}
	f.wantErr(f.Objects.CommitUpload(f.ctx, node, u), ss.ErrConflict)
	f.wantObjects(id, 0, 100, 10)
	u.Streams[0].Range.Start = 0
	f.must(f.Objects.CommitUpload(f.ctx, node, u))
	f.wantObjects(id, 0, 100, 10, setRange(object, 0, 10))
}

func testWALMark(t *testing.T, f *fixture) {
	node := f.register(1)
	id := f.open(node, 1)
	f.commit(node, 7, ss.StreamRange{Stream: id, Epoch: 1, End: 10})
	f.commit(node, 5, ss.StreamRange{Stream: id, Epoch: 1, Start: 10, End: 20}) // late, never backward
	f.must(f.Objects.CommitUpload(f.ctx, node, ss.Upload{WALEpoch: node.Epoch, WALMark: 9}))
	for range 2 {
		_, wals, err := f.Streams.RegisterNode(f.ctx, 1, ss.WALObject)
		f.must(err)
		if wals[0].Mark != 9 {
			t.Fatalf("mark %d, want 9", wals[0].Mark)
		}
	}
}

func testStreamObjects(t *testing.T, f *fixture) {
	node := f.register(1)
	id := f.open(node, 2)
	var objects []ss.ObjectID
	var want []ss.ObjectRange
	for i := range int64(10) {
		o := f.commit(node, 1,
			ss.StreamRange{Stream: id, Epoch: 1, Start: 10 * i, End: 10 * (i + 1)},
			ss.StreamRange{Stream: id + 1, Epoch: 1, Start: i, End: i + 1})
		objects = append(objects, o)
		want = append(want, setRange(o, 10*i, 10*(i+1)))
	}
	f.wantObjects(id, 0, 1000, 100, want...)
	f.wantObjects(id, 10, 20, 100, want[1])
	f.wantObjects(id, 19, 21, 100, want[1:3]...)
	f.wantObjects(id, 25, 1000, 3, want[2:5]...)
	f.wantObjects(id, 100, 1000, 3)
	f.wantObjects(id+1, 9, 1000, 3, setRange(objects[9], 9, 10))
	_, err := f.Objects.StreamObjects(f.ctx, id+50, 0, 1, 1)
	f.wantErr(err, ss.ErrStreamNotExist)
}

func testDeletable(t *testing.T, f *fixture) {
	node := f.register(1)
	id := f.open(node, 2)
	first := f.commit(node, 1, ss.StreamRange{Stream: id, Epoch: 1, End: 10}, ss.StreamRange{Stream: id + 1, Epoch: 1, End: 10})
	second := f.commit(node, 2, ss.StreamRange{Stream: id, Epoch: 1, Start: 10, End: 20})
	pending, err := f.Objects.PrepareObjects(f.ctx, node, 1, 2*time.Hour)
	f.must(err)
	f.must(f.Streams.TrimStream(f.ctx, node, id, 1, 10))
	f.wantDeletable(node, 0) // the other stream still names it
	f.must(f.Streams.TrimStream(f.ctx, node, id+1, 1, 9))
	f.wantDeletable(node, 0) // a part is still named
	f.must(f.Streams.TrimStream(f.ctx, node, id+1, 1, 10))
	f.wantDeletable(node, time.Minute)
	f.wantDeletable(node, 0, first)
	f.Advance(time.Hour)
	f.must(f.Streams.TrimStream(f.ctx, node, id, 1, 20))
	f.wantDeletable(node, time.Minute, first)
	f.wantDeletable(node, 0, first, second)
	f.Advance(3 * time.Hour)
	got, err := f.Objects.DeletableObjects(f.ctx, node, time.Minute, 100)
	f.must(err)
	want := []ss.ObjectRef{{ID: first, Kind: ss.KindStreamSet, Size: 1000}, {ID: second, Kind: ss.KindStreamSet, Size: 1000}, {ID: pending}}
	if d := cmp.Diff(got, want); d != "" {
		t.Fatalf("deletable (-got +want):\n%s", d)
	}
	got, err = f.Objects.DeletableObjects(f.ctx, node, time.Minute, 2)
	f.must(err)
	if len(got) != 2 {
		t.Fatalf("got %d objects, limit 2", len(got))
	}
}

func testForget(t *testing.T, f *fixture) {
	node := f.register(1)
	id := f.open(node, 1)
	object := f.commit(node, 1, ss.StreamRange{Stream: id, Epoch: 1, End: 10})
	f.wantErr(f.Objects.ForgetObjects(f.ctx, node, []ss.ObjectID{object}), ss.ErrConflict) // in use
	f.must(f.Streams.DeleteStreams(f.ctx, node, []ss.StreamID{id}))
	f.wantDeletable(node, 0, object)
	for range 2 {
		f.must(f.Objects.ForgetObjects(f.ctx, node, []ss.ObjectID{object, object + 500}))
	}
	f.wantDeletable(node, 0)
	if next := f.prepare(node, 1); next <= object {
		t.Fatalf("object id %d was given again", next)
	}
}

// Of many commits that start at the same offset exactly one succeeds.
func testConcurrentCommits(t *testing.T, f *fixture) {
	node := f.register(1)
	id := f.open(node, 1)
	const n = 8
	first := f.prepare(node, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			errs[i] = f.Objects.CommitUpload(f.ctx, node, setUpload(node, first+ss.ObjectID(i), 1, ss.StreamRange{Stream: id, Epoch: 1, End: 10}))
		})
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			f.wantErr(err, ss.ErrConflict)
		}
	}
	if won != 1 {
		t.Fatalf("%d commits won, want 1", won)
	}
	f.wantStreams(1, ss.StreamState{ID: id, Epoch: 1, End: 10, Node: 1, Open: true})
}
