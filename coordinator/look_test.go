package coordinator

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/coordinator/control"
)

// A history is a table, what truly became of it, and what its coordinator remembers.
type history struct {
	meta    table.Metadata
	past    map[int64]table.Snapshot // all that ever were
	data    int64                    // snapshot of the last data commit
	offset  int64                    // next offset of partition 0
	refused bool                     // a look has refused the table: it is not committed to any more
	heads   heads
	ids     int64
	commits byte
	acts    []string
}

func newHistory(t *testing.T) history {
	t.Helper()
	schema := iceberg.NewSchema(0, iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64})
	meta, err := table.NewMetadata(schema, iceberg.UnpartitionedSpec, table.UnsortedSortOrder, "mem:///t", iceberg.Properties{"format-version": "2"})
	if err != nil {
		t.Fatal(err)
	}
	return history{meta: meta, past: map[int64]table.Snapshot{}}
}

// change returns h after a change of its metadata.
func (h history) change(t *testing.T, act string, fn func(b *table.MetadataBuilder) error) history {
	t.Helper()
	b, err := table.MetadataBuilderFromBase(h.meta, "")
	if err == nil {
		err = fn(b)
	}
	if err == nil {
		h.meta, err = b.Build()
	}
	if err != nil {
		t.Fatalf("%s, then %s: %v", strings.Join(h.acts, ", "), act, err)
	}
	h.acts = append(slices.Clone(h.acts), act)
	h.past = maps.Clone(h.past)
	for _, s := range h.meta.Snapshots() {
		h.past[s.SnapshotID] = s
	}
	return h
}

// snapshot adds one to main; without a parent it replaces what was there.
func (h history) snapshot(t *testing.T, act string, parent *int64, sum, props iceberg.Properties) history {
	t.Helper()
	h.ids++
	id := h.ids
	return h.change(t, act, func(b *table.MetadataBuilder) error {
		s := table.Snapshot{SnapshotID: id, SequenceNumber: h.meta.LastSequenceNumber() + 1, ParentSnapshotID: parent,
			TimestampMs: h.meta.LastUpdatedMillis() + 1, Summary: &table.Summary{Operation: table.OpAppend, Properties: sum}}
		return errors.Join(b.AddSnapshot(&s), b.SetSnapshotRef(table.MainBranch, id, table.BranchRef), b.SetProperties(props))
	})
}

func (h history) head() *int64 {
	if s := h.meta.CurrentSnapshot(); s != nil {
		return &s.SnapshotID
	}
	return nil
}

// look is what the coordinator decides, with what has expired if past.
func (h *history) look(past bool, policy string) (view, error) {
	all := snapshots{h.meta, map[int64]table.Snapshot{}}
	if past {
		all.past = h.past
	}
	v, err := look(all, topicID, 1, policy, h.heads)
	if err == nil && v.heads != nil {
		h.heads = heads{v.position.Commit, v.heads}
	}
	h.refused = h.refused || err != nil
	return v, err
}

// holds is the truth.
func (h history) holds() bool {
	for id := *h.head(); ; {
		if id == h.data {
			return true
		}
		s := h.past[id]
		if s.ParentSnapshotID == nil {
			return false
		}
		id = *s.ParentSnapshotID
	}
}

// commit is a data commit of the coordinator, on what it sees.
func (h history) commit(t *testing.T) history {
	t.Helper()
	h.commits++
	p := Position{Topic: topicID, Epoch: 1, Sequence: h.meta.LastSequenceNumber() + 1, Commit: uuid.UUID{15: h.commits}, Next: map[int32]int64{0: h.offset + 10}, Heads: []int64{h.ids + 1}}
	sum := Summary{Topic: topicID, Epoch: 1, Commit: p.Commit, Ranges: []control.Range{{Start: h.offset, End: h.offset + 10, Rows: 10}}}
	h = h.snapshot(t, "commit", h.head(), sum.properties(), p.properties(nil))
	h.data, h.offset = h.ids, h.offset+10
	return h
}

// acts are what can happen to a table. They return false where one cannot.
func (h history) act(t *testing.T, act string) (history, bool) {
	t.Helper()
	switch act {
	case "commit":
		if _, err := h.look(false, RewindPause); err != nil {
			return h, false
		}
		return h.commit(t), true
	case "append":
		return h.snapshot(t, act, h.head(), nil, iceberg.Properties{}), true
	case "replace":
		return h.snapshot(t, act, nil, nil, iceberg.Properties{}), true
	case "roll back":
		parent := h.meta.CurrentSnapshot().ParentSnapshotID
		if parent == nil || h.meta.SnapshotByID(*parent) == nil {
			return h, false
		}
		return h.change(t, act, func(b *table.MetadataBuilder) error {
			return b.SetSnapshotRef(table.MainBranch, *parent, table.BranchRef)
		}), true
	case "expire":
		var gone []int64
		for _, s := range h.meta.Snapshots() {
			if s.SnapshotID != *h.head() {
				gone = append(gone, s.SnapshotID)
			}
		}
		if len(gone) == 0 {
			return h, false
		}
		return h.change(t, act, func(b *table.MetadataBuilder) error { return b.RemoveSnapshots(gone, false) }), true
	case "glance":
		h.acts = append(slices.Clone(h.acts), act)
		v, err := h.look(false, RewindPause)
		if err != nil {
			return h, true
		}
		// As Coordinator.renew.
		if !slices.ContainsFunc(v.position.Heads, func(id int64) bool { return h.meta.SnapshotByID(id) != nil }) {
			p := v.position
			p.Heads = v.heads
			h = h.change(t, "renew", func(b *table.MetadataBuilder) error {
				return b.SetProperties(iceberg.Properties{keyHeads: p.headsProperty()})
			})
		}
		return h, true
	case "restart":
		h.acts, h.heads = append(slices.Clone(h.acts), act), heads{}
		return h, true
	}
	t.Fatalf("unknown act %q", act)
	return h, false
}

// Whatever commits, rollbacks, replacements, expiries, glances and restarts come in which
// order, a table that lost our offsets is never taken for one that has them; and one that has
// them is not taken for one that lost them as long as its history can be read.
func TestRollbackIsNoticedInAnyOrder(t *testing.T) {
	begin := newHistory(t).commit(t).commit(t)
	n, lost := 0, 0
	var walk func(h history, depth int)
	walk = func(h history, depth int) {
		n++
		for _, past := range []bool{false, true} {
			c := h
			_, err := c.look(past, RewindPause)
			switch {
			case err == nil && !h.holds():
				t.Fatalf("%s: a table that lost the last commit is taken for one that has it", strings.Join(h.acts, ", "))
			case err != nil && h.holds() && past:
				t.Fatalf("%s: a table that has the last commit is refused: %v", strings.Join(h.acts, ", "), err)
			case err != nil && !errors.Is(err, errRewound):
				t.Fatalf("%s: %v", strings.Join(h.acts, ", "), err)
			case err != nil:
				lost++
			}
		}
		if depth == 0 {
			return
		}
		for _, act := range []string{"commit", "append", "replace", "roll back", "expire", "glance", "restart"} {
			if next, ok := h.act(t, act); ok {
				walk(next, depth-1)
			}
		}
	}
	walk(begin, 5)
	t.Logf("%d orders, %d looks refused", n, lost)
	if n < 1000 || lost == 0 {
		t.Errorf("%d orders with %d refusals are no test", n, lost)
	}
}

// A coordinator that glances between any two changes of others is never mistaken, whatever has
// expired, and neither is the next one that only knows what the table says.
func TestGlancesOutliveHistory(t *testing.T) {
	begin := newHistory(t).commit(t).commit(t)
	var walk func(h history, depth int)
	walk = func(h history, depth int) {
		for _, restarted := range []bool{false, true} {
			c := h
			if restarted {
				c.heads = heads{}
			}
			if _, err := c.look(false, RewindPause); (err == nil) != h.holds() {
				t.Fatalf("%s (restarted: %t): %v, and the table holds the last commit: %t", strings.Join(h.acts, ", "), restarted, err, h.holds())
			}
		}
		if depth == 0 || h.refused {
			return
		}
		for _, act := range []string{"commit", "append", "replace", "roll back", "expire"} {
			if next, ok := h.act(t, act); ok {
				next, _ = next.act(t, "glance")
				walk(next, depth-1)
			}
		}
	}
	walk(begin, 5)
}

// Each of these had the offsets of rows that were gone taken for those of the table.
func TestRollbackWhoseSnapshotsExpired(t *testing.T) {
	for _, c := range []struct {
		acts    string
		mention string
	}{
		{"roll back, append, expire", "or its history is lost"},
		{"roll back, append, append, expire", "or its history is lost"},
		{"append, roll back, roll back, append, expire", "or its history is lost"},
		{"append, roll back, expire", ""},
		{"append, expire", ""},
		{"append, append, glance, expire", ""},
		{"append, append, expire", "or its history is lost"},
	} {
		h := newHistory(t).commit(t).commit(t)
		for _, act := range strings.Split(c.acts, ", ") {
			h, _ = h.act(t, act)
		}
		_, err := h.look(false, RewindPause)
		if (err == nil) != (c.mention == "") || err != nil && !strings.Contains(err.Error(), c.mention) {
			t.Errorf("%s: %v, want %q", c.acts, err, c.mention)
		}
	}
}

// What a table lost is known by its earlier metadata too: replay and accept are exact.
func TestRewindReadsWhatExpired(t *testing.T) {
	h := newHistory(t).commit(t).commit(t)
	for _, act := range []string{"roll back", "append", "append", "expire"} {
		h, _ = h.act(t, act)
	}
	if _, err := look(snapshots{h.meta, nil}, topicID, 1, RewindReplay, heads{}); !errors.Is(err, errExpired) {
		t.Fatalf("error %v, want that what expired is asked for", err)
	}
	if v, err := h.look(true, RewindReplay); err != nil || fmt.Sprint(v.next) != "map[0:10]" {
		t.Errorf("replay from %v, error %v, want offset 10", v.next, err)
	}
	if v, err := h.look(true, RewindAccept); err != nil || fmt.Sprint(v.accepted) != "[{0 10 20 rewind}]" {
		t.Errorf("accepted %v, error %v, want offsets 10 to 20", v.accepted, err)
	}
	if v, err := h.look(false, RewindReplay); err == nil {
		t.Errorf("replay from %v though nobody knows where the table ends", v.next)
	}
}
