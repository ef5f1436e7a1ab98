package streamstoretest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	ss "github.com/tabletopic/tabletopic/streamstore"
)

func (f *fixture) takeOver(by ss.Node, id ss.NodeID) (ss.Node, []ss.WALState) {
	f.t.Helper()
	node, wals, err := f.Streams.TakeOverNode(f.ctx, by, id)
	f.must(err)
	return node, wals
}

func (f *fixture) wantNode(id ss.NodeID, want ss.NodeState) {
	f.t.Helper()
	nodes, err := f.Streams.Nodes(f.ctx)
	f.must(err)
	for i, n := range nodes {
		if i > 0 && nodes[i-1].ID >= n.ID {
			f.t.Fatalf("node %d is listed after node %d", n.ID, nodes[i-1].ID)
		}
		if n.ID == id {
			if d := cmp.Diff(n, want, cmpopts.EquateEmpty()); d != "" {
				f.t.Fatalf("node %d (-got +want):\n%s", id, d)
			}
			return
		}
	}
	f.t.Fatalf("node %d is not among %v", id, nodes)
}

// A node recovers another: the life that it leads commits what the WAL held, retires it, and
// is released; streams are closed then and can be opened by anybody, and the stream set
// objects are the rescuer's.
func testTakeOver(t *testing.T, f *fixture) {
	dead, by := f.register(1), f.register(2)
	id := f.open(dead, 2)
	first := f.commit(dead, 3, ss.StreamRange{Stream: id, Epoch: 1, End: 10}, ss.StreamRange{Stream: id + 1, Epoch: 1, End: 5})
	own := f.open(by, 1)
	f.wantNode(1, ss.NodeState{Node: dead, Open: 2, WALs: []ss.WALState{{Epoch: dead.Epoch, Kind: ss.WALObject, Mark: 3}}})

	node, wals := f.takeOver(by, 1)
	if d := cmp.Diff(wals, []ss.WALState{{Epoch: dead.Epoch, Kind: ss.WALObject, Mark: 3}}); node.ID != 1 || node.Epoch <= dead.Epoch || d != "" {
		t.Fatalf("taken over as %+v after %+v, WALs (-got +want):\n%s", node, dead, d)
	}
	f.wantNode(1, ss.NodeState{Node: node, Open: 2, WALs: wals, Leader: by})
	f.wantErr(f.Streams.TrimStream(f.ctx, dead, id, 1, 5), ss.ErrNodeFenced)
	f.wantErr(f.Objects.CommitUpload(f.ctx, dead, setUpload(dead, first+100, 4, ss.StreamRange{Stream: id, Epoch: 1, Start: 10, End: 20})), ss.ErrNodeFenced)

	second := f.prepare(node, 1)
	f.must(f.Objects.CommitUpload(f.ctx, node, setUpload(dead, second, 4, ss.StreamRange{Stream: id, Epoch: 1, Start: 10, End: 20})))
	f.wantErr(f.Streams.ReleaseNode(f.ctx, by, node), ss.ErrConflict) // a WAL is left
	f.wantStreams(1, ss.StreamState{ID: id, Epoch: 1, End: 20, Node: 1, Open: true}, ss.StreamState{ID: id + 1, Epoch: 1, End: 5, Node: 1, Open: true})
	f.must(f.Streams.RetireWAL(f.ctx, node, dead.Epoch))
	f.wantErr(f.Streams.ReleaseNode(f.ctx, f.register(3), node), ss.ErrConflict) // not its leader
	for range 2 {                                                                // a repeat succeeds
		f.must(f.Streams.ReleaseNode(f.ctx, by, node))
	}
	f.wantNode(1, ss.NodeState{Node: node, Leader: by})
	f.wantStreams(1)
	f.wantStreams(2, ss.StreamState{ID: own, Epoch: 1, Node: 2, Open: true})
	f.wantSets(1)
	f.wantSets(2,
		ss.LiveStreamSet{StreamSetObject: ss.StreamSetObject{ID: first, Size: 1000, Ranges: []ss.StreamRange{{Stream: id, End: 10}, {Stream: id + 1, End: 5}}}, Oldest: f.oldest(2, first)},
		ss.LiveStreamSet{StreamSetObject: ss.StreamSetObject{ID: second, Size: 1000, Ranges: []ss.StreamRange{{Stream: id, Start: 10, End: 20}}}, Oldest: f.oldest(2, second)})

	got, err := f.Streams.OpenStreams(f.ctx, by, []ss.OpenRequest{{ID: id, Epoch: 2}})
	f.must(err)
	if d := cmp.Diff(got, []ss.StreamState{{ID: id, Epoch: 2, End: 20, Node: 2, Open: true}}); d != "" {
		t.Fatalf("opened (-got +want):\n%s", d)
	}
	result := f.prepare(by, 2)
	f.must(f.Objects.CommitCompaction(f.ctx, by, ss.Compaction{Sources: []ss.ObjectID{first, second},
		Streams: []ss.StreamObject{streamObject(result, id, 0, 20), streamObject(result+1, id+1, 0, 5)}}))

	back, wals, err := f.Streams.RegisterNode(f.ctx, 1, ss.WALObject)
	f.must(err)
	if back.Epoch <= node.Epoch || len(wals) != 0 {
		t.Fatalf("back as %+v after %+v with WALs %v, want none", back, node, wals)
	}
	f.wantNode(1, ss.NodeState{Node: back, WALs: []ss.WALState{{Epoch: back.Epoch, Kind: ss.WALObject}}})
	_, err = f.Streams.OpenStreams(f.ctx, back, []ss.OpenRequest{{ID: id + 1, Epoch: 2}})
	f.must(err)
}

// Of two rescuers the later one wins: the earlier one's calls are refused, each of them. So
// does the node itself when it comes back.
func testTakeOverIsTakenOver(t *testing.T, f *fixture) {
	dead, early, late := f.register(1), f.register(2), f.register(3)
	id := f.open(dead, 1)
	a, _ := f.takeOver(early, 1)
	object := f.prepare(a, 1)
	b, wals := f.takeOver(late, 1)
	if b.Epoch <= a.Epoch || len(wals) != 1 {
		t.Fatalf("taken over as %+v after %+v with WALs %v, want one", b, a, wals)
	}
	refused := func(was ss.Node, by ss.Node) {
		t.Helper()
		_, err := f.Objects.PrepareObjects(f.ctx, was, 1, time.Hour)
		f.wantErr(err, ss.ErrNodeFenced)
		f.wantErr(f.Objects.CommitUpload(f.ctx, was, setUpload(dead, object, 1, ss.StreamRange{Stream: id, Epoch: 1, End: 10})), ss.ErrNodeFenced)
		f.wantErr(f.Streams.RetireWAL(f.ctx, was, dead.Epoch), ss.ErrNodeFenced)
		f.wantErr(f.Streams.ReleaseNode(f.ctx, by, was), ss.ErrNodeFenced)
	}
	refused(a, early)
	f.wantErr(f.Streams.ReleaseNode(f.ctx, early, b), ss.ErrConflict)
	f.must(f.Objects.CommitUpload(f.ctx, b, setUpload(dead, f.prepare(b, 1), 1, ss.StreamRange{Stream: id, Epoch: 1, End: 10})))

	back, wals, err := f.Streams.RegisterNode(f.ctx, 1, ss.WALObject)
	f.must(err)
	if d := cmp.Diff(wals, []ss.WALState{{Epoch: dead.Epoch, Kind: ss.WALObject, Mark: 1}}); d != "" {
		t.Fatalf("back with WALs (-got +want):\n%s", d)
	}
	refused(b, late)
	f.wantErr(f.Streams.ReleaseNode(f.ctx, late, back), ss.ErrConflict) // it leads itself
	f.wantStreams(1, ss.StreamState{ID: id, Epoch: 1, End: 10, Node: 1, Open: true})
}

// What cannot be taken over is refused and changes nothing; so is a rescuer that is replaced.
func testTakeOverRefused(t *testing.T, f *fixture) {
	node, by := f.register(1), f.register(2)
	_, _, err := f.Streams.TakeOverNode(f.ctx, by, 9)
	f.wantErr(err, ss.ErrNodeNotExist)
	_, _, err = f.Streams.TakeOverNode(f.ctx, by, 2)
	f.wantErr(err, ss.ErrConflict)
	old := by
	by = f.register(2)
	_, _, err = f.Streams.TakeOverNode(f.ctx, old, 1)
	f.wantErr(err, ss.ErrNodeFenced)
	f.wantNode(1, ss.NodeState{Node: node, WALs: []ss.WALState{{Epoch: node.Epoch, Kind: ss.WALObject}}})

	taken, _ := f.takeOver(by, 1)
	f.must(f.Streams.RetireWAL(f.ctx, taken, node.Epoch))
	f.register(2)
	f.wantErr(f.Streams.ReleaseNode(f.ctx, by, taken), ss.ErrNodeFenced)
}
