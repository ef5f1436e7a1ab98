package streamstoretest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	ss "github.com/tabletopic/tabletopic/streamstore"
)

// listed returns all objects, without their times, which depend on the clock of the fixture.
func (f *fixture) listed() (all []ss.KnownObject) {
	f.t.Helper()
	for after := ss.ObjectID(0); ; {
		page, err := f.Objects.Objects(f.ctx, after, 3)
		f.must(err)
		if len(page) == 0 {
			return all
		}
		if len(page) > 3 {
			f.t.Fatalf("%d objects, limit 3", len(page))
		}
		for _, o := range page {
			if o.ID <= after {
				f.t.Fatalf("object %d after %d", o.ID, after)
			}
			after = o.ID
			o.Since = time.Time{}
			all = append(all, o)
		}
	}
}

func (f *fixture) wantListed(want ...ss.KnownObject) {
	f.t.Helper()
	if d := cmp.Diff(f.listed(), want); d != "" {
		f.t.Fatalf("objects (-got +want):\n%s", d)
	}
	ids := []ss.ObjectID{1 << 50}
	counts := make(map[ss.ObjectState]ss.ObjectCount)
	for i := range want {
		ids = append(ids, want[i].ID, want[i].ID)
		want[i].Ranges, want[i].Parts = nil, nil
		c := counts[want[i].State]
		counts[want[i].State] = ss.ObjectCount{Objects: c.Objects + 1, Bytes: c.Bytes + want[i].Size}
	}
	found, err := f.Objects.FindObjects(f.ctx, ids)
	f.must(err)
	for i := range found {
		found[i].Since = time.Time{}
	}
	if d := cmp.Diff(found, want); d != "" {
		f.t.Fatalf("objects by id (-got +want):\n%s", d)
	}
	got, err := f.Objects.CountObjects(f.ctx)
	f.must(err)
	if d := cmp.Diff(got, counts); d != "" {
		f.t.Fatalf("counts (-got +want):\n%s", d)
	}
}

func known(id ss.ObjectID, kind ss.ObjectKind, size int64, state ss.ObjectState, node ss.NodeID, ranges ...ss.StreamRange) ss.KnownObject {
	return ss.KnownObject{ObjectRef: ss.ObjectRef{ID: id, Kind: kind, Size: size}, State: state, Node: node, Ranges: ranges}
}

// Objects are listed in the state that they are in, with what streams hold in them and what
// they link; forgotten ones are not.
func testObjectStates(t *testing.T, f *fixture) {
	node := f.register(1)
	id := f.open(node, 2)
	a, b := id, id+1
	set := f.commit(node, 1, ss.StreamRange{Stream: a, Epoch: 1, End: 10}, ss.StreamRange{Stream: b, Epoch: 1, End: 5})
	one, two := f.upload(node, a, 10, 20), f.upload(node, a, 20, 30)
	prepared := f.prepare(f.register(2), 1)
	f.wantListed(
		known(set, ss.KindStreamSet, 1000, ss.ObjectReferenced, 1, ss.StreamRange{Stream: a, End: 10}, ss.StreamRange{Stream: b, End: 5}),
		known(one, ss.KindStream, 500, ss.ObjectReferenced, 1, ss.StreamRange{Stream: a, Start: 10, End: 20}),
		known(two, ss.KindStream, 500, ss.ObjectReferenced, 1, ss.StreamRange{Stream: a, Start: 20, End: 30}),
		known(prepared, 0, 0, ss.ObjectPrepared, 2))

	composite := f.prepare(node, 1)
	f.must(f.Objects.CommitCompaction(f.ctx, node, ss.Compaction{Sources: []ss.ObjectID{one, two}, Streams: []ss.StreamObject{streamObject(composite, a, 10, 30, one, two)}}))
	f.must(f.Streams.TrimStream(f.ctx, node, a, 1, 12))
	f.must(f.Streams.DeleteStreams(f.ctx, node, []ss.StreamID{b}))
	f.Advance(2 * time.Hour)
	linked := known(composite, ss.KindComposite, 500, ss.ObjectReferenced, 1, ss.StreamRange{Stream: a, Start: 12, End: 30})
	linked.Parts = []ss.ObjectID{one, two}
	f.wantListed(
		known(set, ss.KindStreamSet, 1000, ss.ObjectDestroyed, 1),
		known(one, ss.KindStream, 500, ss.ObjectReferenced, 1),
		known(two, ss.KindStream, 500, ss.ObjectReferenced, 1),
		known(prepared, 0, 0, ss.ObjectDestroyed, 2), // it expired
		linked)
	for _, part := range []ss.ObjectID{one, two} {
		got, err := f.Objects.Composites(f.ctx, part)
		f.must(err)
		if d := cmp.Diff(got, []ss.ObjectID{composite}); d != "" {
			t.Fatalf("composites of part %d (-got +want):\n%s", part, d)
		}
	}
	f.wantDeletable(node, 0, set, prepared)
	f.must(f.Objects.ForgetObjects(f.ctx, node, []ss.ObjectID{set}))
	if got := f.listed(); len(got) != 4 || got[0].ID != one {
		t.Fatalf("after one was forgotten: %v", got)
	}
	none, err := f.Objects.FindObjects(f.ctx, nil)
	f.must(err)
	if len(none) > 0 {
		t.Fatalf("found %v, asked for none", none)
	}
}

// Pages come by id, without a gap, and end.
func testObjectPages(t *testing.T, f *fixture) {
	node := f.register(1)
	id := f.open(node, 1)
	var want []ss.KnownObject
	for i := range int64(10) {
		want = append(want, known(f.upload(node, id, i, i+1), ss.KindStream, 500, ss.ObjectReferenced, 1, ss.StreamRange{Stream: id, Start: i, End: i + 1}))
	}
	f.wantListed(want...)
}

// The right to sweep is one node's until it ends, and that of one life of it. It comes with
// the highest id given away so far.
func testClaimSweep(t *testing.T, f *fixture) {
	one, two := f.register(1), f.register(2)
	claim := func(node ss.Node, ttl time.Duration, mine bool) ss.SweepClaim {
		t.Helper()
		c, err := f.Objects.ClaimSweep(f.ctx, node, ttl)
		f.must(err)
		if c.Mine != mine {
			t.Fatalf("node %d claims: %+v, want mine %t", node.ID, c, mine)
		}
		return c
	}
	last := f.prepare(one, 3) + 2
	first := claim(one, time.Hour, true)
	if first.Last != last {
		t.Fatalf("last id %d, want %d", first.Last, last)
	}
	if got := claim(two, time.Hour, false); !got.Until.Equal(first.Until) {
		t.Fatalf("the turn ends at %v for the one, at %v for the other", first.Until, got.Until)
	}
	f.Advance(30 * time.Minute)
	claim(one, time.Hour, true) // renewed
	f.Advance(45 * time.Minute)
	claim(two, time.Hour, false)
	f.Advance(20 * time.Minute)
	claim(two, time.Hour, true)
	claim(one, time.Hour, false)
	again := f.register(2)
	_, err := f.Objects.ClaimSweep(f.ctx, two, time.Hour)
	f.wantErr(err, ss.ErrNodeFenced)
	claim(again, time.Hour, false) // not the life that has it
}
