package streamstoretest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	ss "github.com/tabletopic/tabletopic/streamstore"
)

func streamRange(kind ss.ObjectKind, id ss.ObjectID, start, end int64) ss.ObjectRange {
	return ss.ObjectRange{ObjectRef: ss.ObjectRef{ID: id, Kind: kind, Size: 500}, Start: start, End: end}
}

func streamObject(id ss.ObjectID, stream ss.StreamID, start, end int64, parts ...ss.ObjectID) ss.StreamObject {
	return ss.StreamObject{ID: id, Size: 500, Range: ss.StreamRange{Stream: stream, Start: start, End: end}, Parts: parts}
}

// upload commits one stream object.
func (f *fixture) upload(node ss.Node, stream ss.StreamID, start, end int64) ss.ObjectID {
	f.t.Helper()
	id := f.prepare(node, 1)
	o := streamObject(id, stream, start, end)
	o.Range.Epoch = 1
	f.must(f.Objects.CommitUpload(f.ctx, node, ss.Upload{Streams: []ss.StreamObject{o}, WALEpoch: node.Epoch, WALMark: 1}))
	return id
}

func (f *fixture) wantSets(node ss.NodeID, want ...ss.LiveStreamSet) {
	f.t.Helper()
	got, err := f.Objects.StreamSetObjects(f.ctx, node, 0, 100)
	f.must(err)
	for i := range got {
		got[i].Oldest = got[i].Oldest.UTC()
	}
	if d := cmp.Diff(got, want); len(got)+len(want) > 0 && d != "" {
		f.t.Fatalf("stream set objects of node %d (-got +want):\n%s", node, d)
	}
}

// A compaction puts its results in the place of the sources, whatever their kind; ends and
// WAL marks stay; sources become deletable; a repeat changes nothing.
func testCompaction(t *testing.T, f *fixture) {
	node := f.register(1)
	id := f.open(node, 3)
	a, b, c := id, id+1, id+2
	one := f.commit(node, 1, ss.StreamRange{Stream: a, Epoch: 1, End: 10}, ss.StreamRange{Stream: b, Epoch: 1, End: 5})
	between := f.upload(node, b, 5, 50)
	f.Advance(time.Hour)
	two := f.commit(node, 2, ss.StreamRange{Stream: a, Epoch: 1, Start: 10, End: 20}, ss.StreamRange{Stream: b, Epoch: 1, Start: 50, End: 60}, ss.StreamRange{Stream: c, Epoch: 1, End: 7})
	after := f.commit(node, 3, ss.StreamRange{Stream: a, Epoch: 1, Start: 20, End: 30})
	before, err := f.Objects.StreamSetObjects(f.ctx, 1, 0, 100)
	f.must(err)
	results := f.prepare(node, 3)
	comp := ss.Compaction{
		Sources:    []ss.ObjectID{one, two},
		StreamSets: []ss.StreamSetObject{{ID: results, Size: 1000, Ranges: []ss.StreamRange{{Stream: b, Start: 50, End: 60}, {Stream: c, End: 7}}}},
		Streams:    []ss.StreamObject{streamObject(results+1, a, 0, 20), streamObject(results+2, b, 0, 5)},
	}
	for range 2 {
		f.must(f.Objects.CommitCompaction(f.ctx, node, comp))
		f.wantObjects(a, 0, 100, 10, streamRange(ss.KindStream, results+1, 0, 20), setRange(after, 20, 30))
		f.wantObjects(b, 0, 100, 10, streamRange(ss.KindStream, results+2, 0, 5), streamRange(ss.KindStream, between, 5, 50), setRange(results, 50, 60))
		f.wantObjects(c, 0, 100, 10, setRange(results, 0, 7))
		f.wantDeletable(node, 0, one, two)
	}
	f.wantStreams(1,
		ss.StreamState{ID: a, Epoch: 1, End: 30, Node: 1, Open: true},
		ss.StreamState{ID: b, Epoch: 1, End: 60, Node: 1, Open: true},
		ss.StreamState{ID: c, Epoch: 1, End: 7, Node: 1, Open: true})
	// The result is as old as the oldest data in it.
	f.wantSets(1,
		ss.LiveStreamSet{StreamSetObject: ss.StreamSetObject{ID: after, Size: 1000, Ranges: []ss.StreamRange{{Stream: a, Start: 20, End: 30}}}, Oldest: before[2].Oldest.UTC()},
		ss.LiveStreamSet{StreamSetObject: comp.StreamSets[0], Oldest: before[0].Oldest.UTC()})
	if !before[0].Oldest.Before(before[2].Oldest) {
		t.Fatalf("oldest %v and %v, want an hour between", before[0].Oldest, before[2].Oldest)
	}
	_, wals, err := f.Streams.RegisterNode(f.ctx, 1, ss.WALObject)
	f.must(err)
	if wals[0].Mark != 3 {
		t.Fatalf("mark %d, want 3", wals[0].Mark)
	}
	node = f.register(1)
	f.must(f.Objects.ForgetObjects(f.ctx, node, []ss.ObjectID{one, two}))
	f.must(f.Objects.CommitCompaction(f.ctx, node, comp)) // a repeat, though the sources are gone
}

// What does not cover exactly what its sources hold is refused and changes nothing.
func testCompactionCovers(t *testing.T, f *fixture) {
	node := f.register(1)
	a := f.open(node, 2)
	b := a + 1
	one := f.commit(node, 1, ss.StreamRange{Stream: a, Epoch: 1, End: 10}, ss.StreamRange{Stream: b, Epoch: 1, End: 5})
	two := f.commit(node, 2, ss.StreamRange{Stream: a, Epoch: 1, Start: 10, End: 20})
	three := f.upload(node, a, 20, 30)
	four := f.upload(node, a, 30, 40)
	for name, c := range map[string]ss.Compaction{
		"gap":               {Sources: []ss.ObjectID{three, four}, Streams: []ss.StreamObject{streamObject(0, a, 20, 29), streamObject(1, a, 30, 40)}},
		"short":             {Sources: []ss.ObjectID{three, four}, Streams: []ss.StreamObject{streamObject(0, a, 20, 39)}},
		"late":              {Sources: []ss.ObjectID{three, four}, Streams: []ss.StreamObject{streamObject(0, a, 21, 40)}},
		"long":              {Sources: []ss.ObjectID{three}, Streams: []ss.StreamObject{streamObject(0, a, 20, 40)}},
		"early":             {Sources: []ss.ObjectID{three, four}, Streams: []ss.StreamObject{streamObject(0, a, 19, 40)}},
		"past the end":      {Sources: []ss.ObjectID{three, four}, Streams: []ss.StreamObject{streamObject(0, a, 20, 41)}},
		"overlap":           {Sources: []ss.ObjectID{three, four}, Streams: []ss.StreamObject{streamObject(0, a, 20, 31), streamObject(1, a, 30, 40)}},
		"twice":             {Sources: []ss.ObjectID{three}, Streams: []ss.StreamObject{streamObject(0, a, 20, 30), streamObject(1, a, 20, 30)}},
		"a stream left out": {Sources: []ss.ObjectID{one, two}, Streams: []ss.StreamObject{streamObject(0, a, 0, 20)}},
		"a range left out":  {Sources: []ss.ObjectID{two, four}, Streams: []ss.StreamObject{streamObject(0, a, 10, 20)}},
		"other stream":      {Sources: []ss.ObjectID{three}, Streams: []ss.StreamObject{streamObject(0, b, 20, 30)}},
		"unknown source":    {Sources: []ss.ObjectID{four + 1000}, Streams: []ss.StreamObject{streamObject(0, a, 20, 30)}},
	} {
		first := f.prepare(node, len(c.Streams))
		for i := range c.Streams {
			c.Streams[i].ID += first
		}
		if err := f.Objects.CommitCompaction(f.ctx, node, c); err == nil {
			t.Errorf("%s: committed", name)
		} else {
			f.wantErr(err, ss.ErrConflict)
		}
	}
	f.wantObjects(a, 0, 100, 10, setRange(one, 0, 10), setRange(two, 10, 20), streamRange(ss.KindStream, three, 20, 30), streamRange(ss.KindStream, four, 30, 40))
	f.wantObjects(b, 0, 100, 10, setRange(one, 0, 5))
	f.wantDeletable(node, 0)
}

// Of two compactions of the same objects the second is refused; so is one whose prepared id
// expired, is another node's, or comes from an earlier life.
func testCompactionConflicts(t *testing.T, f *fixture) {
	node := f.register(1)
	id := f.open(node, 1)
	one, two := f.upload(node, id, 0, 10), f.upload(node, id, 10, 20)
	merge := func(result ss.ObjectID) ss.Compaction {
		return ss.Compaction{Sources: []ss.ObjectID{one, two}, Streams: []ss.StreamObject{streamObject(result, id, 0, 20)}}
	}
	f.wantErr(f.Objects.CommitCompaction(f.ctx, node, merge(two+1000)), ss.ErrConflict) // never prepared
	short, err := f.Objects.PrepareObjects(f.ctx, node, 1, time.Minute)
	f.must(err)
	f.Advance(2 * time.Minute)
	f.wantDeletable(node, time.Hour)
	f.wantErr(f.Objects.CommitCompaction(f.ctx, node, merge(short)), ss.ErrConflict)
	f.wantErr(f.Objects.CommitCompaction(f.ctx, node, merge(f.prepare(f.register(2), 1))), ss.ErrConflict)
	first, second := f.prepare(node, 1), f.prepare(node, 1)
	old := node
	node = f.register(1)
	f.wantErr(f.Objects.CommitCompaction(f.ctx, old, merge(first)), ss.ErrNodeFenced)
	f.must(f.Objects.CommitCompaction(f.ctx, node, merge(first)))
	f.wantErr(f.Objects.CommitCompaction(f.ctx, node, merge(second)), ss.ErrConflict)
	f.wantObjects(id, 0, 100, 10, streamRange(ss.KindStream, first, 0, 20))
}

// A trim or a deletion may overtake a compaction: what is left of it is committed.
func testCompactionOvertaken(t *testing.T, f *fixture) {
	node := f.register(1)
	a := f.open(node, 2)
	b := a + 1
	one := f.commit(node, 1, ss.StreamRange{Stream: a, Epoch: 1, End: 10}, ss.StreamRange{Stream: b, Epoch: 1, End: 5})
	two := f.commit(node, 2, ss.StreamRange{Stream: a, Epoch: 1, Start: 10, End: 20}, ss.StreamRange{Stream: b, Epoch: 1, Start: 5, End: 9})
	first := f.prepare(node, 3)
	f.must(f.Streams.TrimStream(f.ctx, node, a, 1, 14))
	f.must(f.Streams.DeleteStreams(f.ctx, node, []ss.StreamID{b}))
	f.wantSets(1, ss.LiveStreamSet{StreamSetObject: ss.StreamSetObject{ID: two, Size: 1000, Ranges: []ss.StreamRange{{Stream: a, Start: 14, End: 20}}}, Oldest: f.oldest(1, two)})
	f.wantDeletable(node, 0, one)
	f.must(f.Objects.ForgetObjects(f.ctx, node, []ss.ObjectID{one}))
	f.must(f.Objects.CommitCompaction(f.ctx, node, ss.Compaction{
		Sources: []ss.ObjectID{one, two},
		Streams: []ss.StreamObject{streamObject(first, a, 0, 12), streamObject(first+1, a, 12, 20), streamObject(first+2, b, 0, 9)},
	}))
	f.wantObjects(a, 14, 100, 10, streamRange(ss.KindStream, first+1, 12, 20))
	f.wantDeletable(node, 0, two, first, first+2) // nothing is left of these
	f.wantSets(1)
}

func (f *fixture) oldest(node ss.NodeID, id ss.ObjectID) time.Time {
	f.t.Helper()
	got, err := f.Objects.StreamSetObjects(f.ctx, node, id-1, 1)
	f.must(err)
	if len(got) != 1 || got[0].ID != id {
		f.t.Fatalf("stream set objects above %d: %v", id-1, got)
	}
	return got[0].Oldest.UTC()
}

// Parts live while a composite names them, through its replacement by another, and become
// deletable with the last one.
func testComposite(t *testing.T, f *fixture) {
	node := f.register(1)
	id := f.open(node, 1)
	var parts []ss.ObjectID
	for i := range int64(4) {
		parts = append(parts, f.upload(node, id, 10*i, 10*i+10))
	}
	first := f.prepare(node, 4)
	commit := func(result ss.ObjectID, start, end int64, links []ss.ObjectID, sources ...ss.ObjectID) error {
		return f.Objects.CommitCompaction(f.ctx, node, ss.Compaction{Sources: sources, Streams: []ss.StreamObject{streamObject(result, id, start, end, links...)}})
	}
	f.wantErr(commit(first, 0, 20, []ss.ObjectID{parts[0], parts[2]}, parts[0], parts[1]), ss.ErrConflict) // links what is no source
	f.must(commit(first, 0, 20, parts[:2], parts[:2]...))
	f.wantObjects(id, 0, 100, 10, streamRange(ss.KindComposite, first, 0, 20), streamRange(ss.KindStream, parts[2], 20, 30), streamRange(ss.KindStream, parts[3], 30, 40))
	f.wantDeletable(node, 0)
	f.wantErr(f.Objects.ForgetObjects(f.ctx, node, parts[:1]), ss.ErrConflict)

	f.wantErr(commit(first+1, 0, 30, []ss.ObjectID{first, parts[2]}, first, parts[2]), ss.ErrConflict) // never nested
	f.must(commit(first+1, 0, 30, parts[:3], first, parts[2]))
	f.must(commit(first+1, 0, 30, parts[:3], first, parts[2])) // a repeat
	f.wantDeletable(node, 0, first)

	f.must(f.Streams.TrimStream(f.ctx, node, id, 1, 15))
	f.must(commit(first+2, 10, 30, parts[1:3], first+1)) // without the part that was trimmed
	f.wantObjects(id, 15, 100, 10, streamRange(ss.KindComposite, first+2, 10, 30), streamRange(ss.KindStream, parts[3], 30, 40))
	f.wantDeletable(node, 0, parts[0], first, first+1)

	f.must(f.Streams.TrimStream(f.ctx, node, id, 1, 30))
	f.wantDeletable(node, 0, parts[0], parts[1], parts[2], first, first+1, first+2)
	f.wantErr(commit(first+3, 30, 40, parts[2:], parts[3]), ss.ErrConflict) // a link to what is deletable
	f.must(commit(first+3, 30, 40, parts[3:], parts[3]))
	f.must(f.Streams.DeleteStreams(f.ctx, node, []ss.StreamID{id}))
	all := append(parts, first, first+1, first+2, first+3)
	f.wantDeletable(node, 0, all...)
	for range 2 { // a repeat: the answer of the first call was lost
		f.must(f.Objects.ForgetObjects(f.ctx, node, all))
		f.must(f.Streams.DeleteStreams(f.ctx, node, []ss.StreamID{id}))
		f.wantDeletable(node, 0)
	}
}

// Stream set objects are listed by id and by the node that wrote them, in pages.
func testStreamSetObjects(t *testing.T, f *fixture) {
	one, two := f.register(1), f.register(2)
	a := f.open(one, 1)
	b := f.open(two, 1)
	var want []ss.ObjectID
	for i := range int64(5) {
		want = append(want, f.commit(one, 1, ss.StreamRange{Stream: a, Epoch: 1, Start: i, End: i + 1}))
		f.upload(two, b, i, i+1)
	}
	var got []ss.ObjectID
	for after := ss.ObjectID(0); ; {
		page, err := f.Objects.StreamSetObjects(f.ctx, 1, after, 2)
		f.must(err)
		if len(page) == 0 {
			break
		}
		if len(page) > 2 {
			t.Fatalf("%d objects, limit 2", len(page))
		}
		for _, o := range page {
			got = append(got, o.ID)
		}
		after = got[len(got)-1]
	}
	if d := cmp.Diff(got, want); d != "" {
		t.Fatalf("listed (-got +want):\n%s", d)
	}
	f.wantSets(2) // it has stream objects only
}
