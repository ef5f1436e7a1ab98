package sim

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/objectstore"
)

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// A files reads manifests and their lists, each once: they never change.
type files struct {
	fs    *catalog.IO
	lists map[string][]iceberg.ManifestFile // by location
	known map[string][]iceberg.DataFile     // the live data files of a manifest
}

func newFiles(ctx context.Context, b objectstore.Bucket) *files {
	return &files{catalog.NewIO(ctx, locate(b)), map[string][]iceberg.ManifestFile{}, map[string][]iceberg.DataFile{}}
}

func (f *files) manifests(s *table.Snapshot) ([]iceberg.ManifestFile, error) {
	if list, ok := f.lists[s.ManifestList]; ok {
		return list, nil
	}
	list, err := s.Manifests(f.fs)
	if err != nil {
		return nil, fmt.Errorf("manifests of snapshot %d: %w", s.SnapshotID, err)
	}
	f.lists[s.ManifestList] = list
	return list, nil
}

// live returns the data files of a snapshot by location.
func (f *files) live(s *table.Snapshot) (map[string]iceberg.DataFile, error) {
	live := map[string]iceberg.DataFile{}
	if s == nil {
		return live, nil
	}
	manifests, err := f.manifests(s)
	if err != nil {
		return nil, err
	}
	for _, m := range manifests {
		entries, ok := f.known[m.FilePath()]
		if !ok {
			for e, err := range m.Entries(f.fs, true) {
				if err != nil {
					return nil, fmt.Errorf("manifest %s: %w", m.FilePath(), err)
				}
				entries = append(entries, e.DataFile())
			}
			f.known[m.FilePath()] = entries
		}
		for _, df := range entries {
			if live[df.FilePath()] != nil {
				return nil, fmt.Errorf("snapshot %d has %s twice", s.SnapshotID, df.FilePath())
			}
			live[df.FilePath()] = df
		}
	}
	return live, nil
}

// A history is all that a catalog ever named for one table, step by step.
type history struct {
	w     *tableWorld
	files *files                    // of everything that ever was in the bucket
	steps int                       // of the catalog that are replayed
	metas map[string]table.Metadata // by location

	adopted     map[string]bool    // data files that some snapshot had, of all tables
	named       map[string]bool    // metadata files, manifest lists and manifests likewise
	columns     map[int]string     // of the table, by field id
	commits     map[uuid.UUID]bool // of the table
	live        map[string]bool    // data files of the head of main
	gaps        map[place][]span   // what commits recorded as left out, of the table
	begun       map[place]int64    // where the table began a partition
	compactions int                // of ours, of all tables of the name
	rewound     bool               // a user rolled main back, and no data commit came since
}

// A place is a partition of an incarnation of a topic.
type place struct {
	topic     uuid.UUID
	partition int32
}

// A span is the offsets [start, end).
type span struct{ start, end int64 }

// replay checks every step of the catalog for a table that it did not check before.
func (w *tableWorld) replay(id table.Identifier) (*history, error) {
	h := w.histories[id[1]]
	if h == nil {
		h = &history{w: w, files: w.files, metas: map[string]table.Metadata{}, adopted: map[string]bool{}, named: map[string]bool{}}
		w.histories[id[1]] = h
	}
	all, err := w.pointers(id[1])
	if err != nil {
		return nil, err
	}
	for _, p := range all[h.steps:] {
		h.steps++
		if p.new == "" {
			continue
		}
		if h.metas[p.new] != nil {
			return nil, fmt.Errorf("the catalog names %s again", p.new)
		}
		next, err := catalog.ReadMetadata(h.files.fs, p.new)
		if err != nil {
			return nil, err
		}
		h.metas[p.new] = next
		if err := h.names(p.new, next); err != nil {
			return nil, err
		}
		by := w.byOthers[p.new]
		if p.old == "" {
			err = h.begin(next)
		} else if err = h.step(h.metas[p.old], p.old, next, by); err != nil {
			err = fmt.Errorf("%w\n(%s)", err, cmp.Or(by, "our own commit"))
		}
		if err != nil {
			return nil, fmt.Errorf("from %s to %s: %w", path.Base(p.old), path.Base(p.new), err)
		}
	}
	return h, nil
}

// names notes the files that one version of the table names, besides data.
func (h *history) names(location string, next table.Metadata) error {
	h.named[location] = true
	for _, s := range next.Snapshots() {
		if h.named[s.ManifestList] {
			continue
		}
		h.named[s.ManifestList] = true
		manifests, err := h.files.manifests(&s)
		if err != nil {
			return err
		}
		for _, m := range manifests {
			h.named[m.FilePath()] = true
		}
	}
	return nil
}

// begin is a table that is made.
func (h *history) begin(next table.Metadata) error {
	h.columns, h.commits, h.live, h.rewound = map[int]string{}, map[uuid.UUID]bool{}, map[string]bool{}, false
	h.gaps, h.begun = map[place][]span{}, map[place]int64{}
	return h.schema(next)
}

// step checks one change of a table.
func (h *history) step(base table.Metadata, location string, next table.Metadata, by string) error {
	if base.TableUUID() != next.TableUUID() {
		return errors.New("another table has its place")
	}
	var last string
	for e := range next.PreviousFiles() {
		last = e.MetadataFile
	}
	if last != location {
		return fmt.Errorf("it was built on %s", path.Base(last))
	}
	if err := h.schema(next); err != nil {
		return err
	}
	head, err := h.files.live(next.CurrentSnapshot())
	if err != nil {
		return err
	}
	if by != "" {
		h.rewound = h.rewound || by == "roll back"
		for f := range head {
			h.adopted[f] = true
		}
		h.live = set(head)
		return nil
	}
	return h.own(base, next, head)
}

func set[V any](m map[string]V) map[string]bool {
	out := map[string]bool{}
	for k := range m {
		out[k] = true
	}
	return out
}

// schema checks that an id stands for one column for ever, and a column has one id.
func (h *history) schema(next table.Metadata) error {
	for _, s := range next.Schemas() {
		index, err := iceberg.IndexNameByID(s)
		if err != nil {
			return err
		}
		for id, name := range index {
			if old, ok := h.columns[id]; ok && old != name {
				return fmt.Errorf("field id %d was %s and is %s", id, old, name)
			}
			h.columns[id] = name
		}
	}
	names := map[string]int{}
	for id, name := range h.columns {
		if other, twice := names[name]; twice {
			return fmt.Errorf("column %s has the field ids %d and %d", name, id, other)
		}
		names[name] = id
	}
	return nil
}

// own checks a commit of ours: it changes what it has to, and nothing of anybody else.
func (h *history) own(base, next table.Metadata, head map[string]iceberg.DataFile) error {
	if err := keeps(base, next); err != nil {
		return err
	}
	s := next.CurrentSnapshot()
	respecced := base.DefaultPartitionSpec() != next.DefaultPartitionSpec() || len(base.PartitionSpecs()) != len(next.PartitionSpecs())
	if respecced && (!h.w.repartitions() || !same(base.CurrentSnapshot(), s)) {
		return errors.New("the partition spec has changed")
	}
	if s == nil || same(base.CurrentSnapshot(), s) {
		return nil // columns, properties or partitions alone
	}
	if base.CurrentSchema().ID != next.CurrentSchema().ID {
		return fmt.Errorf("a data commit changed the schema from %d to %d", base.CurrentSchema().ID, next.CurrentSchema().ID)
	}
	if old := base.CurrentSnapshot(); old == nil != (s.ParentSnapshotID == nil) || old != nil && *s.ParentSnapshotID != old.SnapshotID {
		return fmt.Errorf("the parent of snapshot %d is not the head that it was built on", s.SnapshotID)
	}
	if s.Summary != nil && s.Summary.Operation == table.OpReplace {
		return h.compacted(base, next, head)
	}
	for f := range h.live {
		if head[f] == nil {
			return fmt.Errorf("snapshot %d lacks %s, which main had", s.SnapshotID, f)
		}
	}
	var rows int64
	for f, df := range head {
		if h.live[f] {
			continue
		}
		if h.adopted[f] {
			return fmt.Errorf("snapshot %d adds %s, which was in the table before", s.SnapshotID, f)
		}
		rows += df.Count()
		h.adopted[f] = true
	}
	h.live = set(head)
	return h.data(base, next, s, rows)
}

// compacted checks a commit of ours that puts large files into the place of small ones: they have as
// many rows, of the same topics, and nothing else has changed.
func (h *history) compacted(base, next table.Metadata, head map[string]iceberg.DataFile) error {
	before, err := h.files.live(base.CurrentSnapshot())
	if err != nil {
		return err
	}
	rows := map[string]int64{} // by directory
	dirOf := func(f string) string {
		if dir := path.Base(path.Dir(f)); dir != "compacted" { // where the rows of strangers go
			return dir
		}
		return "stranger"
	}
	gone, added := 0, 0
	for f, df := range before {
		if head[f] == nil {
			gone++
			rows[dirOf(f)] -= df.Count()
		}
	}
	for f, df := range head {
		if before[f] != nil {
			continue
		}
		if h.adopted[f] {
			return fmt.Errorf("%s was in the table before", f)
		}
		h.adopted[f] = true
		added++
		rows[dirOf(f)] += df.Count()
	}
	for dir, n := range rows {
		if n != 0 {
			return fmt.Errorf("a compaction of %d files to %d changed the rows of %s by %d", gone, added, dir, n)
		}
	}
	if gone <= added {
		return fmt.Errorf("a compaction made %d files of %d", added, gone)
	}
	for key, value := range next.Properties() {
		if old, ok := base.Properties()[key]; key != "tabletopic.heads" && (!ok || old != value) {
			return fmt.Errorf("a compaction changed the property %s from %q to %q", key, old, value)
		}
	}
	h.compactions++
	h.live = set(head)
	return nil
}

// repartitions tells whether the settings of topics ask for partitions.
func (w *tableWorld) repartitions() bool { return slices.Contains(w.plan.admin, "repartition") }

// keepsNames tells whether a name mapping has all names of another, for the same fields.
func keepsNames(before, after string) bool {
	var old, now iceberg.NameMapping
	if json.Unmarshal([]byte(before), &old) != nil || json.Unmarshal([]byte(after), &now) != nil {
		return false
	}
	ids := map[string]int{}
	eachName(now, "", func(path string, id int) { ids[path] = id })
	kept := true
	eachName(old, "", func(path string, id int) {
		got, is := ids[path]
		kept = kept && is && got == id
	})
	return kept
}

func eachName(fields []iceberg.MappedField, above string, visit func(path string, id int)) {
	for _, f := range fields {
		for _, name := range f.Names {
			path := above + "/" + name
			if f.FieldID != nil {
				visit(path, *f.FieldID)
			}
			eachName(f.Fields, path, visit)
		}
	}
}

// keeps checks that next has all of base that is not ours to change.
func keeps(base, next table.Metadata) error {
	for id := range columns(base.CurrentSchema()) {
		if !columns(next.CurrentSchema())[id] {
			return fmt.Errorf("field %d has gone from the schema", id)
		}
	}
	if owner := base.Properties()["tabletopic.topic"]; owner != "" && next.Properties()["tabletopic.topic"] != owner {
		return fmt.Errorf("the table of topic %s became that of %s", owner, next.Properties()["tabletopic.topic"])
	}
	for key, value := range base.Properties() {
		if key == table.DefaultNameMappingKey && keepsNames(value, next.Properties()[key]) {
			continue // by it files without ids are read; new columns are in it, too
		}
		if !strings.HasPrefix(key, "tabletopic.") && next.Properties()[key] != value {
			return fmt.Errorf("property %s was %q and is %q", key, value, next.Properties()[key])
		}
	}
	refs := map[string]table.SnapshotRef{}
	for name, ref := range next.Refs() {
		refs[name] = ref
	}
	for name, ref := range base.Refs() {
		if name == table.MainBranch {
			continue
		}
		if refs[name].SnapshotID != ref.SnapshotID {
			return fmt.Errorf("%s was snapshot %d and is %d", name, ref.SnapshotID, refs[name].SnapshotID)
		}
		if next.SnapshotByID(ref.SnapshotID) == nil {
			return fmt.Errorf("snapshot %d of %s has gone", ref.SnapshotID, name)
		}
	}
	return nil
}

func columns(s *iceberg.Schema) map[int]bool {
	index, err := iceberg.IndexByID(s)
	if err != nil {
		return nil
	}
	out := map[int]bool{}
	for id := range index {
		out[id] = true
	}
	return out
}

// data checks that the offsets of a data commit continue those before.
func (h *history) data(base, next table.Metadata, s *table.Snapshot, rows int64) error {
	from, _, err := coordinator.ReadPosition(base.Properties())
	if err != nil {
		return err
	}
	to, ok, err := coordinator.ReadPosition(next.Properties())
	if err != nil || !ok || s.Summary == nil {
		return fmt.Errorf("a data commit without position: %w", err)
	}
	sum, ok, err := coordinator.ReadSummary(s.Summary.Properties)
	if err != nil || !ok {
		return fmt.Errorf("a data commit without summary: %w", err)
	}
	if sum.Topic != to.Topic || sum.Commit != to.Commit || to.Sequence != s.SequenceNumber {
		return fmt.Errorf("properties and summary of snapshot %d differ: %+v, %+v", s.SnapshotID, to, sum)
	}
	if h.commits[to.Commit] {
		return fmt.Errorf("commit %s is in the table twice", to.Commit)
	}
	h.commits[to.Commit] = true
	if from.Topic == to.Topic && to.Epoch < from.Epoch {
		return fmt.Errorf("epoch %d commits after epoch %d", to.Epoch, from.Epoch)
	}
	left := map[int32][]span{} // by this commit
	for _, prefix := range []string{"tabletopic.gaps.", "tabletopic.accepted."} {
		for n := 0; s.Summary.Properties[prefix+fmt.Sprint(n)] != ""; n++ {
			for item := range strings.SplitSeq(s.Summary.Properties[prefix+fmt.Sprint(n)], ",") {
				var p int32
				var x span
				if _, err := fmt.Sscanf(item, "%d:%d-%d", &p, &x.start, &x.end); err != nil {
					return fmt.Errorf("summary of snapshot %d: %q: %w", s.SnapshotID, item, err)
				}
				left[p] = append(left[p], x)
				at := place{to.Topic, p}
				h.gaps[at] = append(h.gaps[at], x)
			}
		}
	}
	moved := map[int32]bool{}
	var covered int64
	for _, r := range sum.Ranges {
		covered += r.Rows
		moved[r.Partition] = true
		at, begun := from.Next[r.Partition]
		begun = begun && from.Topic == to.Topic
		for _, x := range left[r.Partition] {
			if x.start == at {
				at = x.end
			}
		}
		switch {
		case to.Next[r.Partition] != r.End || r.End < r.Start:
			return fmt.Errorf("partition %d is at %d after the range %d to %d", r.Partition, to.Next[r.Partition], r.Start, r.End)
		case !begun || h.rewound && r.Start < at:
			h.begun[place{to.Topic, r.Partition}] = r.Start
		case at != r.Start && !h.rewound:
			return fmt.Errorf("partition %d was at %d and goes on with %d to %d; left out %v", r.Partition, from.Next[r.Partition], r.Start, r.End, left[r.Partition])
		}
	}
	for p, at := range from.Next {
		if from.Topic == to.Topic && !moved[p] && to.Next[p] != at && !h.rewound {
			return fmt.Errorf("partition %d was at %d and is at %d without a range", p, at, to.Next[p])
		}
	}
	if covered != rows {
		return fmt.Errorf("commit %s has ranges with %d rows, and files with %d", to.Commit, covered, rows)
	}
	h.rewound = false
	return nil
}

// missing checks that every file that the table names is there.
func (w *tableWorld) missing(t *table.Table) error {
	checked := map[string]bool{}
	check := func(s *table.Snapshot, location string) error {
		if !checked[location] && !w.exists(w.failing, location) {
			return fmt.Errorf("snapshot %d names %s, which is not there", s.SnapshotID, location)
		}
		checked[location] = true
		return nil
	}
	for e := range t.Metadata().PreviousFiles() {
		if !w.exists(w.failing, e.MetadataFile) {
			return fmt.Errorf("the metadata log names %s, which is not there", e.MetadataFile)
		}
	}
	for _, s := range t.Metadata().Snapshots() {
		if err := check(&s, s.ManifestList); err != nil {
			return err
		}
		manifests, err := w.files.manifests(&s)
		if err != nil {
			return err
		}
		for _, m := range manifests {
			if err := check(&s, m.FilePath()); err != nil {
				return err
			}
		}
		live, err := w.files.live(&s)
		if err != nil {
			return err
		}
		for location := range live {
			if err := check(&s, location); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *tableWorld) exists(ctx context.Context, location string) bool {
	bucket, key, err := w.locator.Resolve(ctx, location)
	if err != nil {
		return false
	}
	_, err = bucket.Get(ctx, key, 0, 1)
	return err == nil
}

func same(a, b *table.Snapshot) bool {
	return a == nil && b == nil || a != nil && b != nil && a.SnapshotID == b.SnapshotID
}
