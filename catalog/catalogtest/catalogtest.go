// Package catalogtest is the conformance suite of catalog.Catalog. It is centred on
// Commit: what every catalog has to keep is that a conflict wrote nothing, that an
// unknown outcome is either one, and that no change of anybody is lost.
package catalogtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/objectstore"
)

// A Fixture is one catalog seen by two clients, with the storage of its tables.
type Fixture struct {
	// Catalog is the one under test, with the faults.
	Catalog catalog.Catalog
	// Other is another client of the same catalog, without faults.
	Other   catalog.Catalog
	Locator catalog.Locator
	// LoseAnswer makes the next commit of Catalog take effect and its answer vanish.
	LoseAnswer func()
	// LoseRequest makes the next commit of Catalog vanish without effect.
	LoseRequest func()
	// BadGateway makes the next commit of Catalog take effect and its answer a 5xx. May be nil.
	BadGateway func()
	// Repeat makes the next commit of Catalog reach the catalog twice; the second answer
	// counts. May be nil.
	Repeat func()
	// Hold makes the next commit of Catalog fail and its request wait on its way, until land
	// delivers it. May be nil.
	Hold func() (land func())
	// Storm refuses the next n commits of Catalog as conflicts. May be nil.
	Storm func(n int)
	// Patience is how long a commit may have to wait for an earlier one whose outcome is
	// unknown, because only waiting keeps the two apart; a request that is held for longer
	// than that is not this suite's. Not at all if zero.
	Patience time.Duration
	// LooseCreate says that the server does not decide between creators at the same time.
	LooseCreate bool
	// Purges says that Drop deletes the files, so that a commit on the table that was does not
	// get as far as the catalog.
	Purges bool
	// Fresh says that the catalog assigns field ids of its own to a new table.
	Fresh bool
}

// Run runs the suite. Each test opens a catalog of its own.
func Run(t *testing.T, open func(t *testing.T) Fixture) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Fixture)
	}{
		{"CommitIsSeenWhole", commitIsSeenWhole},
		{"CreateLoadListDrop", createLoadListDrop},
		{"CreateRaceHasOneWinner", createRace},
		{"StaleBaseConflicts", staleBase},
		{"RacersLoseNothing", racers},
		{"LostAnswerIsUnknownAndApplied", lostAnswer},
		{"LostRequestIsUnknownAndNotApplied", lostRequest},
		{"BadGatewayIsUnknown", badGatewayIsUnknown},
		{"HeldCommitNeverLandsTwice", heldCommit},
		{"RepeatedRequestIsDone", repeatedRequest},
		{"ConflictStormPasses", conflictStorm},
		{"ForeignSchemaChangeSurvives", foreignSchema},
		{"SchemaCommitKeepsIds", schemaCommit},
		{"SchemaCommitsRace", schemaRace},
		{"PartitionSpecsComeAndGo", partitionSpecs},
		{"SortOrdersComeAndGo", sortOrders},
		{"FilesTakeThePlaceOfOthers", replacement},
		{"EmptySnapshotAndProperties", emptySnapshot},
		{"NamesAreKnownBefore", namesKnown},
		{"RecreatedTableIsAnotherTable", recreated},
		{"FormatVersion3", version3},
		{"ManifestsStayFew", manifestsStayFew},
		{"ExpiryKeepsWhatIsNamed", expiry},
		{"ManifestsCarryFieldIds", manifestFieldIDs},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
}

// Schema is a table schema: one long, one string and a struct.
func Schema() *iceberg.Schema {
	return iceberg.NewSchema(0,
		iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64},
		iceberg.NestedField{ID: 2, Name: "name", Type: iceberg.PrimitiveTypes.String},
		iceberg.NestedField{ID: 3, Name: "_kafka", Type: &iceberg.StructType{FieldList: []iceberg.NestedField{
			{ID: 4, Name: "partition", Type: iceberg.PrimitiveTypes.Int32},
			{ID: 5, Name: "offset", Type: iceberg.PrimitiveTypes.Int64},
		}}})
}

// DataFile describes a file of ten rows that nobody reads.
func DataFile(t *testing.T, tbl *table.Table, name string) iceberg.DataFile {
	t.Helper()
	return dataFile(t, tbl, name, 10)
}

func dataFile(t *testing.T, tbl *table.Table, name string, rows int64) iceberg.DataFile {
	t.Helper()
	b, err := iceberg.NewDataFileBuilder(tbl.Spec(), iceberg.EntryContentData, catalog.DataLocation(tbl, name+".parquet"),
		iceberg.ParquetFile, nil, nil, nil, rows, 1000)
	if err != nil {
		t.Fatal(err)
	}
	return b.ValueCounts(map[int]int64{1: rows}).Build()
}

func create(t *testing.T, f Fixture, properties iceberg.Properties) *table.Table {
	t.Helper()
	tbl, err := f.Catalog.Create(t.Context(), table.Identifier{"web", "clicks"}, Schema(), properties)
	if err != nil {
		t.Fatal(err)
	}
	return tbl
}

func load(t *testing.T, c catalog.Catalog, base *table.Table) *table.Table {
	t.Helper()
	tbl, err := c.Load(t.Context(), base.Identifier())
	if err != nil {
		t.Fatal(err)
	}
	return tbl
}

func commit(t *testing.T, c catalog.Catalog, base *table.Table, change catalog.Commit) *table.Table {
	t.Helper()
	next, err := c.Commit(t.Context(), base, change)
	if err != nil {
		t.Fatalf("commit: %v", err)
	}
	return next
}

func files(t *testing.T, f Fixture, tbl *table.Table, names ...string) catalog.Commit {
	c := catalog.Commit{Properties: iceberg.Properties{"tabletopic.last": names[len(names)-1]},
		Summary: iceberg.Properties{"tabletopic.commit": strings.Join(names, ",")}}
	for _, name := range names {
		c.Files = append(c.Files, DataFile(t, tbl, name))
	}
	return c
}

// contents lists the data files of the table as the catalog has it now, by name, and
// fails if one is there twice.
func contents(t *testing.T, f Fixture, base *table.Table) []string {
	t.Helper()
	tbl := load(t, f.Other, base)
	s := tbl.CurrentSnapshot()
	if s == nil {
		return nil
	}
	fs := catalog.NewIO(t.Context(), f.Locator)
	manifests, err := s.Manifests(fs)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range manifests {
		for entry, err := range m.Entries(fs, true) {
			if err != nil {
				t.Fatal(err)
			}
			path := entry.DataFile().FilePath()
			names = append(names, strings.TrimSuffix(path[strings.LastIndex(path, "/")+1:], ".parquet"))
			if n := entry.SequenceNum(); tbl.Metadata().Version() > 1 && n < 1 {
				t.Errorf("%s has sequence number %d", path, n)
			}
		}
	}
	slices.Sort(names)
	if n := len(names); len(slices.Compact(slices.Clone(names))) != n {
		t.Errorf("a data file is listed twice: %v", names)
	}
	if got := s.Summary.Properties.Get("total-data-files", "-"); got != fmt.Sprint(len(names)) {
		t.Errorf("summary says %s data files, the manifests %d", got, len(names))
	}
	return names
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// A commit's files, summary and properties are there together, for everybody.
func commitIsSeenWhole(t *testing.T, f Fixture) {
	tbl := create(t, f, iceberg.Properties{"owner": "team"})
	next := commit(t, f.Catalog, tbl, files(t, f, tbl, "a", "b"))
	next = commit(t, f.Catalog, next, files(t, f, tbl, "c"))
	seen := load(t, f.Other, tbl)
	equal(t, "files", contents(t, f, tbl), []string{"a", "b", "c"})
	equal(t, "snapshot", seen.CurrentSnapshot().SnapshotID, next.CurrentSnapshot().SnapshotID)
	equal(t, "sequence", seen.Metadata().LastSequenceNumber(), 2)
	p := seen.CurrentSnapshot().Summary.Properties
	equal(t, "summary", []string{p["tabletopic.commit"], p["added-records"], p["total-records"], p["total-files-size"]}, []string{"c", "10", "30", "3000"})
	equal(t, "operation", seen.CurrentSnapshot().Summary.Operation, table.OpAppend)
	equal(t, "parent", *seen.CurrentSnapshot().ParentSnapshotID, seen.Metadata().Snapshots()[0].SnapshotID)
	equal(t, "properties", []string{seen.Properties()["owner"], seen.Properties()["tabletopic.last"]}, []string{"team", "c"})
	// iceberg-go finds the same when it plans a scan.
	tasks, err := seen.Scan().PlanFiles(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "tasks", len(tasks), 3)
}

// Names are told apart, missing and taken ones said so.
func createLoadListDrop(t *testing.T, f Fixture) {
	ctx := t.Context()
	id := table.Identifier{"web", "clicks"}
	if _, err := f.Catalog.Load(ctx, id); !errors.Is(err, catalog.ErrNoTable) {
		t.Fatalf("load before create: %v", err)
	}
	tbl := create(t, f, nil)
	if !f.Fresh && !tbl.Schema().Equals(Schema()) {
		t.Errorf("schema %v, want %v", tbl.Schema(), Schema())
	}
	equal(t, "version", tbl.Metadata().Version(), 2)
	if !strings.Contains(tbl.Location(), ":///") && !strings.Contains(tbl.Location(), "s3://") {
		t.Errorf("location %s has no scheme and absolute path", tbl.Location())
	}
	if _, err := f.Catalog.Create(ctx, id, Schema(), nil); !errors.Is(err, catalog.ErrTableExists) {
		t.Errorf("second create: %v", err)
	}
	if _, err := f.Catalog.Create(ctx, table.Identifier{"app", "logs"}, Schema(), nil); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ namespace, want table.Identifier }{
		{table.Identifier{"web"}, table.Identifier{"[web clicks]"}},
		{nil, table.Identifier{"[app logs]", "[web clicks]"}},
	} {
		list, err := f.Other.List(ctx, c.namespace)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, id := range list {
			got = append(got, fmt.Sprint([]string(id)))
		}
		slices.Sort(got)
		equal(t, "list", got, []string(c.want))
	}
	if err := f.Catalog.Drop(ctx, id); err != nil {
		t.Fatal(err)
	}
	if err := f.Catalog.Drop(ctx, id); !errors.Is(err, catalog.ErrNoTable) {
		t.Errorf("second drop: %v", err)
	}
	if _, err := f.Catalog.Commit(ctx, tbl, files(t, f, tbl, "a")); !errors.Is(err, catalog.ErrNoTable) {
		t.Errorf("commit on a dropped table: %v", err)
	}
}

// Of creators at the same time one wins, and the others are told that the name is taken.
func createRace(t *testing.T, f Fixture) {
	if f.LooseCreate {
		t.Skip("this server does not decide between creators at the same time")
	}
	create(t, f, nil) // the namespace
	const n = 8
	results := make(chan error, n)
	for i := range n {
		c := f.Catalog
		if i%2 == 1 {
			c = f.Other
		}
		go func() {
			_, err := c.Create(t.Context(), table.Identifier{"web", "race"}, Schema(), nil)
			results <- err
		}()
	}
	won := 0
	for range n {
		switch err := <-results; {
		case err == nil:
			won++
		case !errors.Is(err, catalog.ErrTableExists):
			t.Errorf("create: %v", err)
		}
	}
	equal(t, "winners", won, 1)
}

// What was built on a base that another commit left behind is refused, and leaves nothing.
func staleBase(t *testing.T, f Fixture) {
	tbl := create(t, f, nil)
	commit(t, f.Other, tbl, files(t, f, tbl, "a"))
	if _, err := f.Catalog.Commit(t.Context(), tbl, files(t, f, tbl, "b")); !errors.Is(err, catalog.ErrCommitConflict) {
		t.Fatalf("commit on the empty table: %v", err)
	}
	equal(t, "files", contents(t, f, tbl), []string{"a"})
	equal(t, "property", load(t, f.Other, tbl).Properties()["tabletopic.last"], "a")
	base := load(t, f.Catalog, tbl)
	commit(t, f.Other, base, files(t, f, tbl, "c"))
	if _, err := f.Catalog.Commit(t.Context(), base, files(t, f, tbl, "b")); !errors.Is(err, catalog.ErrCommitConflict) {
		t.Fatalf("commit on a stale snapshot: %v", err)
	}
	commit(t, f.Catalog, load(t, f.Catalog, tbl), files(t, f, tbl, "b"))
	equal(t, "files", contents(t, f, tbl), []string{"a", "b", "c"})
}

// Whatever the interleaving, each commit that was acknowledged is in the table once.
func racers(t *testing.T, f Fixture) {
	tbl := create(t, f, nil)
	const writers, each = 4, 5
	var wg sync.WaitGroup
	var want []string
	for w := range writers {
		for i := range each {
			want = append(want, fmt.Sprintf("w%d-%d", w, i))
		}
		c := f.Catalog
		if w%2 == 1 {
			c = f.Other
		}
		wg.Go(func() {
			base := tbl
			for i := 0; i < each; {
				next, err := c.Commit(t.Context(), base, files(t, f, tbl, fmt.Sprintf("w%d-%d", w, i)))
				switch {
				case err == nil:
					base = next
					i++
				case errors.Is(err, catalog.ErrCommitConflict):
					if base, err = c.Load(t.Context(), tbl.Identifier()); err != nil {
						t.Error(err)
						return
					}
				default:
					t.Errorf("writer %d: %v", w, err)
					return
				}
			}
		})
	}
	wg.Wait()
	equal(t, "files", contents(t, f, tbl), want)
	equal(t, "snapshots", len(load(t, f.Other, tbl).Metadata().Snapshots()), writers*each)
}

// A commit whose answer is lost is unknown, and reading the table tells that it is done.
func lostAnswer(t *testing.T, f Fixture) {
	tbl := create(t, f, nil)
	f.LoseAnswer()
	if _, err := f.Catalog.Commit(t.Context(), tbl, files(t, f, tbl, "a")); !errors.Is(err, catalog.ErrCommitUnknown) {
		t.Fatalf("commit: %v", err)
	}
	equal(t, "files", contents(t, f, tbl), []string{"a"})
	// Its manifests are in place, and a repetition on the old base is refused.
	if _, err := f.Catalog.Commit(t.Context(), tbl, files(t, f, tbl, "a")); !errors.Is(err, catalog.ErrCommitConflict) {
		t.Fatalf("repeated commit: %v", err)
	}
	equal(t, "files", contents(t, f, tbl), []string{"a"})
}

// A commit whose request is lost is unknown as well, and can be repeated.
func lostRequest(t *testing.T, f Fixture) {
	tbl := create(t, f, nil)
	f.LoseRequest()
	if _, err := f.Catalog.Commit(t.Context(), tbl, files(t, f, tbl, "a")); !errors.Is(err, catalog.ErrCommitUnknown) {
		t.Fatalf("commit: %v", err)
	}
	equal(t, "files", contents(t, f, tbl), []string{})
	again(t, f, tbl, "a")
	equal(t, "files", contents(t, f, tbl), []string{"a"})
}

// again commits as a coordinator does after an unknown outcome: on the table as it is, until
// it is done or found done.
func again(t *testing.T, f Fixture, tbl *table.Table, name string) *table.Table {
	t.Helper()
	deadline := time.Now().Add(f.Patience)
	for {
		base := load(t, f.Catalog, tbl)
		if base.Properties()["tabletopic.last"] == name {
			return base
		}
		next, err := f.Catalog.Commit(t.Context(), base, files(t, f, tbl, name))
		switch {
		case err == nil:
			return next
		case errors.Is(err, catalog.ErrCommitConflict):
		case !errors.Is(err, catalog.ErrCommitUnknown) || time.Now().After(deadline):
			t.Fatalf("commit again: %v", err)
		}
	}
}

// A 5xx after the effect is unknown; the commit is there.
func badGatewayIsUnknown(t *testing.T, f Fixture) {
	if f.BadGateway == nil {
		t.Skip("this catalog has no gateway")
	}
	tbl := create(t, f, nil)
	f.BadGateway()
	if _, err := f.Catalog.Commit(t.Context(), tbl, files(t, f, tbl, "a")); !errors.Is(err, catalog.ErrCommitUnknown) {
		t.Fatalf("commit: %v", err)
	}
	again(t, f, tbl, "a")
	equal(t, "files", contents(t, f, tbl), []string{"a"})
	equal(t, "snapshots", len(load(t, f.Other, tbl).Metadata().Snapshots()), 1)
}

// A commit that is still on its way when its sender has given up and gone on never lands
// besides the second attempt.
func heldCommit(t *testing.T, f Fixture) {
	if f.Hold == nil {
		t.Skip("the requests of this catalog cannot be held")
	}
	for _, late := range []bool{true, false} {
		if late && f.Patience > 0 {
			continue
		}
		id := table.Identifier{"web", fmt.Sprintf("held_%v", late)}
		tbl, err := f.Catalog.Create(t.Context(), id, Schema(), nil)
		if err != nil {
			t.Fatal(err)
		}
		land := f.Hold()
		if _, err := f.Catalog.Commit(t.Context(), tbl, files(t, f, tbl, "a")); !errors.Is(err, catalog.ErrCommitUnknown) {
			t.Fatalf("held commit: %v", err)
		}
		if !late {
			land()
		}
		done := again(t, f, tbl, "a")
		if late {
			land()
		}
		equal(t, fmt.Sprintf("late=%v: snapshot", late), load(t, f.Other, tbl).CurrentSnapshot().SnapshotID, done.CurrentSnapshot().SnapshotID)
		equal(t, fmt.Sprintf("late=%v: files", late), contents(t, f, tbl), []string{"a"})
		equal(t, fmt.Sprintf("late=%v: snapshots", late), len(load(t, f.Other, tbl).Metadata().Snapshots()), 1)
	}
}

// A request that reaches the catalog twice makes a conflict of a commit that is done; the
// table tells, and nothing that it names is deleted.
func repeatedRequest(t *testing.T, f Fixture) {
	if f.Repeat == nil {
		t.Skip("nothing repeats the requests of this catalog")
	}
	tbl := create(t, f, nil)
	f.Repeat()
	commit(t, f.Catalog, tbl, files(t, f, tbl, "a"))
	equal(t, "files", contents(t, f, tbl), []string{"a"})
}

// Conflicts in a row leave nothing behind, and the commit after them is whole.
func conflictStorm(t *testing.T, f Fixture) {
	if f.Storm == nil {
		t.Skip("nothing refuses the commits of this catalog")
	}
	tbl := create(t, f, nil)
	const n = 5
	f.Storm(n)
	for i := range n {
		if _, err := f.Catalog.Commit(t.Context(), tbl, files(t, f, tbl, "a")); !errors.Is(err, catalog.ErrCommitConflict) {
			t.Fatalf("commit %d: %v", i, err)
		}
	}
	equal(t, "files", contents(t, f, tbl), []string{})
	commit(t, f.Catalog, tbl, files(t, f, tbl, "a"))
	equal(t, "files", contents(t, f, tbl), []string{"a"})
}

// A column that another writer added between load and commit stays (by iceberg-go's own
// transaction, as an engine would).
func foreignSchema(t *testing.T, f Fixture) {
	tbl := create(t, f, nil)
	base := commit(t, f.Catalog, tbl, files(t, f, tbl, "a"))
	foreign := load(t, f.Other, tbl)
	tx := foreign.NewTransaction()
	update := tx.UpdateSchema(true, false).AddColumn([]string{"x"}, iceberg.PrimitiveTypes.String, "", false, nil)
	if err := update.Commit(); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Catalog.Commit(t.Context(), base, files(t, f, tbl, "b")); !errors.Is(err, catalog.ErrCommitConflict) {
		t.Fatalf("data commit on the old schema: %v", err)
	}
	if _, err := f.Catalog.Commit(t.Context(), base, catalog.Commit{Schema: With(base, "y")}); !errors.Is(err, catalog.ErrCommitConflict) {
		t.Fatalf("schema commit on the old schema: %v", err)
	}
	commit(t, f.Catalog, load(t, f.Catalog, tbl), files(t, f, tbl, "b"))
	now := load(t, f.Other, tbl)
	if _, ok := now.Schema().FindFieldByName("x"); !ok {
		t.Errorf("column x is gone: %v", now.Schema())
	}
	equal(t, "schema of the snapshot", *now.CurrentSnapshot().SchemaID, now.Schema().ID)
}

// With is the schema of base and one more column, with the next id.
func With(base *table.Table, name string) *iceberg.Schema {
	fields := append(slices.Clone(base.Schema().Fields()),
		iceberg.NestedField{ID: base.Metadata().LastColumnID() + 1, Name: name, Type: iceberg.PrimitiveTypes.String})
	return iceberg.NewSchema(0, fields...)
}

// A schema commit keeps ids as they are, and may not take an id that is in use.
func schemaCommit(t *testing.T, f Fixture) {
	tbl := create(t, f, nil)
	last := tbl.Metadata().LastColumnID()
	next := commit(t, f.Catalog, tbl, catalog.Commit{Schema: With(tbl, "country")})
	field, ok := next.Schema().FindFieldByName("country")
	if !ok || field.ID != last+1 {
		t.Fatalf("country: %v, want id %d", field, last+1)
	}
	equal(t, "last id", next.Metadata().LastColumnID(), last+1)
	if len(next.Metadata().Snapshots()) != 0 {
		t.Error("a schema commit made a snapshot")
	}
	next = commit(t, f.Catalog, next, files(t, f, next, "a"))
	fields := slices.Clone(next.Schema().Fields())
	fields = append(fields[:1:1], iceberg.NestedField{ID: 2, Name: "reuse", Type: iceberg.PrimitiveTypes.Int32})
	next = commit(t, f.Catalog, next, catalog.Commit{Schema: iceberg.NewSchema(0, fields[:1]...)})
	if _, err := f.Catalog.Commit(t.Context(), next, catalog.Commit{Schema: iceberg.NewSchema(0, fields...)}); err == nil ||
		errors.Is(err, catalog.ErrCommitConflict) || errors.Is(err, catalog.ErrCommitUnknown) {
		t.Errorf("id 2 again: %v, want a definite error", err)
	}
}

// Two schema commits on one base: one of them is refused.
func schemaRace(t *testing.T, f Fixture) {
	tbl := create(t, f, nil)
	commit(t, f.Other, tbl, catalog.Commit{Schema: With(tbl, "theirs")})
	if _, err := f.Catalog.Commit(t.Context(), tbl, catalog.Commit{Schema: With(tbl, "ours")}); !errors.Is(err, catalog.ErrCommitConflict) {
		t.Fatalf("second schema commit: %v", err)
	}
	if _, ok := load(t, f.Other, tbl).Schema().FindFieldByName("theirs"); !ok {
		t.Error("the first column is gone")
	}
}

// A new partition spec holds for the files that follow, those of the old one stay, a spec that
// comes back is the one it was, and two that are set on one base conflict.
func partitionSpecs(t *testing.T, f Fixture) {
	tbl := create(t, f, nil)
	tbl = commit(t, f.Catalog, tbl, files(t, f, tbl, "a"))
	none := tbl.Spec()
	buckets := func(n int) *iceberg.PartitionSpec {
		spec := iceberg.NewPartitionSpecID(none.ID()+1, iceberg.PartitionField{SourceIDs: []int{tbl.Schema().Field(0).ID}, FieldID: 1000,
			Name: fmt.Sprintf("bucket_%d", n), Transform: iceberg.BucketTransform{NumBuckets: n}})
		return &spec
	}
	next := commit(t, f.Catalog, tbl, catalog.Commit{Spec: buckets(4)})
	if _, err := f.Other.Commit(t.Context(), tbl, catalog.Commit{Spec: buckets(8)}); !errors.Is(err, catalog.ErrCommitConflict) {
		t.Errorf("second spec on one base: %v, want a conflict", err)
	}
	spec := next.Spec()
	equal(t, "fields", []any{spec.NumFields(), spec.Field(0).FieldID, spec.Field(0).Name}, []any{1, 1000, "bucket_4"})
	if _, err := f.Catalog.Commit(t.Context(), tbl, files(t, f, tbl, "b")); !errors.Is(err, catalog.ErrCommitConflict) {
		t.Errorf("files on a base with another spec: %v, want a conflict", err)
	}
	next = commit(t, f.Catalog, next, files(t, f, next, "b"))
	next = commit(t, f.Catalog, next, catalog.Commit{Spec: &none})
	equal(t, "default spec", next.Metadata().DefaultPartitionSpec(), none.ID())
	next = commit(t, f.Catalog, next, files(t, f, next, "c"))
	next = commit(t, f.Catalog, next, catalog.Commit{Spec: &spec})
	equal(t, "specs", len(load(t, f.Other, next).Metadata().PartitionSpecs()), 2)
	equal(t, "files", contents(t, f, next), []string{"a", "b", "c"})
}

// A new sort order holds until another is set, one that comes back is the one it was, and two that
// are set on one base conflict.
func sortOrders(t *testing.T, f Fixture) {
	tbl := create(t, f, nil)
	unsorted := tbl.SortOrder()
	by := func(id int, direction table.SortDirection) *table.SortOrder {
		order, err := table.NewSortOrder(id, []table.SortField{{SourceIDs: []int{tbl.Schema().Field(0).ID}, Transform: iceberg.IdentityTransform{}, Direction: direction, NullOrder: table.NullsLast}})
		if err != nil {
			t.Fatal(err)
		}
		return &order
	}
	next := commit(t, f.Catalog, tbl, catalog.Commit{Order: by(1, table.SortASC)})
	if _, err := f.Other.Commit(t.Context(), tbl, catalog.Commit{Order: by(1, table.SortDESC)}); !errors.Is(err, catalog.ErrCommitConflict) {
		t.Errorf("second order on one base: %v, want a conflict", err)
	}
	first := next.SortOrder()
	equal(t, "order", []any{first.Len(), first.Field(0).Direction}, []any{1, table.SortASC})
	next = commit(t, f.Catalog, next, catalog.Commit{Order: by(2, table.SortDESC)})
	equal(t, "order", next.SortOrder().Field(0).Direction, table.SortDESC)
	next = commit(t, f.Catalog, next, catalog.Commit{Order: &unsorted})
	equal(t, "order", next.SortOrder().Len(), 0)
	next = commit(t, f.Catalog, next, catalog.Commit{Order: &first})
	seen := load(t, f.Other, next)
	equal(t, "order id", seen.Metadata().DefaultSortOrder(), first.OrderID())
	equal(t, "orders", len(seen.Metadata().SortOrders()), 3)
}

// Files take the place of others that are in the table, also when others commit first or the answer
// is lost; of files that have left it none does, on no later base.
func replacement(t *testing.T, f Fixture) {
	tbl := create(t, f, nil)
	first := commit(t, f.Catalog, tbl, files(t, f, tbl, "a", "b"))
	replace := func(base *table.Table, name string, rows int64, replaced ...string) catalog.Commit {
		r := &catalog.Replacement{Sequence: base.Metadata().LastSequenceNumber()}
		for _, name := range replaced {
			r.Files = append(r.Files, DataFile(t, tbl, name))
		}
		return catalog.Commit{Files: []iceberg.DataFile{dataFile(t, tbl, name, rows)}, Replaces: r, Snapshot: true}
	}
	commit(t, f.Other, first, files(t, f, tbl, "c"))
	merged := replace(first, "ab", 20, "a", "b")
	if _, err := f.Catalog.Commit(t.Context(), first, merged); !errors.Is(err, catalog.ErrCommitConflict) {
		t.Fatalf("replacement on a base that was: %v", err)
	}
	next := commit(t, f.Catalog, load(t, f.Catalog, tbl), merged)
	equal(t, "files", contents(t, f, tbl), []string{"ab", "c"})
	seen := load(t, f.Other, tbl).CurrentSnapshot()
	equal(t, "snapshot", []any{seen.SnapshotID, seen.Summary.Operation, seen.Summary.Properties["total-records"], seen.Summary.Properties["deleted-data-files"]},
		[]any{next.CurrentSnapshot().SnapshotID, table.OpReplace, "30", "2"})
	if _, err := f.Catalog.Commit(t.Context(), next, replace(first, "ba", 20, "a", "b")); !errors.Is(err, catalog.ErrFilesChanged) {
		t.Errorf("replacement of files that have left: %v", err)
	}
	if _, err := f.Catalog.Commit(t.Context(), next, replace(next, "less", 19, "ab")); err == nil || errors.Is(err, catalog.ErrCommitUnknown) {
		t.Errorf("replacement by fewer rows: %v", err)
	}
	f.LoseAnswer()
	all := replace(next, "abc", 30, "ab", "c")
	all.Replaces.Files[0] = dataFile(t, tbl, "ab", 20)
	if _, err := f.Catalog.Commit(t.Context(), next, all); !errors.Is(err, catalog.ErrCommitUnknown) {
		t.Fatalf("replacement whose answer is lost: %v", err)
	}
	equal(t, "files", contents(t, f, tbl), []string{"abc"})
	if _, err := f.Catalog.Commit(t.Context(), load(t, f.Catalog, tbl), all); !errors.Is(err, catalog.ErrFilesChanged) {
		t.Errorf("replacement that had taken effect: %v", err)
	}
	equal(t, "files", contents(t, f, tbl), []string{"abc"})
}

// A snapshot without files can carry offsets; properties can go alone.
func emptySnapshot(t *testing.T, f Fixture) {
	tbl := create(t, f, nil)
	next := commit(t, f.Catalog, tbl, catalog.Commit{Snapshot: true, Properties: iceberg.Properties{"next": "5"}, Summary: iceberg.Properties{"k": "v"}})
	equal(t, "summary", next.CurrentSnapshot().Summary.Properties["k"], "v")
	next = commit(t, f.Catalog, next, files(t, f, tbl, "a"))
	next = commit(t, f.Catalog, next, catalog.Commit{Snapshot: true, Properties: iceberg.Properties{"next": "7"}})
	next = commit(t, f.Catalog, next, catalog.Commit{Properties: iceberg.Properties{"other": "1"}})
	seen := load(t, f.Other, tbl)
	equal(t, "properties", []string{seen.Properties()["next"], seen.Properties()["other"]}, []string{"7", "1"})
	equal(t, "snapshots", len(seen.Metadata().Snapshots()), 3)
	equal(t, "files", contents(t, f, tbl), []string{"a"})
	if _, err := f.Catalog.Commit(t.Context(), next, catalog.Commit{}); err == nil {
		t.Error("a commit of nothing is not refused")
	}
}

// Names has all files that a commit writes, and the journal can have them before: with files of
// two partition specs, with merged manifests, and when the properties say how metadata is written.
func namesKnown(t *testing.T, f Fixture) {
	tbl := create(t, f, nil)
	checked := func(c catalog.Commit) {
		t.Helper()
		c.Attempt, c.SnapshotID = uuid.New(), catalog.NewSnapshotID(tbl.Metadata())
		names := catalog.Names(tbl, c)
		tbl = commit(t, f.Catalog, tbl, c)
		want := []string{}
		if !f.Fresh { // else the server writes it
			want = append(want, tbl.MetadataLocation())
		}
		if s := tbl.SnapshotByID(c.SnapshotID); s != nil {
			want = append(want, s.ManifestList)
			manifests, err := s.Manifests(catalog.NewIO(t.Context(), f.Locator))
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range manifests {
				if m.SnapshotID() == s.SnapshotID {
					want = append(want, m.FilePath())
				}
			}
		}
		for _, n := range want {
			if !slices.Contains(names, n) {
				t.Errorf("%s is written, and only %v were known", n, names)
			}
		}
	}
	for i := range 12 {
		checked(files(t, f, tbl, fmt.Sprint("a", i)))
	}
	plain := files(t, f, tbl, "b")
	spec := iceberg.NewPartitionSpecID(tbl.Metadata().DefaultPartitionSpec()+1, iceberg.PartitionField{SourceIDs: []int{tbl.Schema().Field(0).ID}, FieldID: 1000,
		Name: "bucket_4", Transform: iceberg.BucketTransform{NumBuckets: 4}})
	checked(catalog.Commit{Spec: &spec})
	both := files(t, f, tbl, "c")
	both.Files = append(both.Files, plain.Files...)
	checked(both)
	checked(catalog.Commit{Properties: iceberg.Properties{table.MetadataCompressionKey: table.MetadataCompressionCodecGzip}})
	checked(catalog.Commit{Snapshot: true})
}

// A table that was dropped and made again under its name takes nothing that was meant
// for the old one.
func recreated(t *testing.T, f Fixture) {
	old := create(t, f, nil)
	old = commit(t, f.Catalog, old, files(t, f, old, "a"))
	if err := f.Other.Drop(t.Context(), old.Identifier()); err != nil {
		t.Fatal(err)
	}
	fresh, err := f.Other.Create(t.Context(), old.Identifier(), Schema(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if fresh.Metadata().TableUUID() == old.Metadata().TableUUID() {
		t.Fatal("the new table has the old one's UUID")
	}
	if _, err := f.Catalog.Commit(t.Context(), old, files(t, f, old, "b")); !errors.Is(err, catalog.ErrCommitConflict) && !(f.Purges && errors.Is(err, catalog.ErrCommitUnknown)) {
		t.Fatalf("commit meant for the old table: %v", err)
	}
	equal(t, "files", contents(t, f, fresh), []string{})
}

// Version 3 counts rows, also through merged manifests.
func version3(t *testing.T, f Fixture) {
	tbl := create(t, f, iceberg.Properties{"format-version": "3"})
	equal(t, "version", tbl.Metadata().Version(), 3)
	var want []string
	for i := range 25 {
		name := fmt.Sprintf("f%02d", i)
		want = append(want, name)
		before := tbl.Metadata().NextRowID()
		tbl = commit(t, f.Catalog, tbl, files(t, f, tbl, name))
		equal(t, "first row", *tbl.CurrentSnapshot().FirstRowID, before)
	}
	equal(t, "files", contents(t, f, tbl), want)
	fs := catalog.NewIO(t.Context(), f.Locator)
	manifests, err := tbl.CurrentSnapshot().Manifests(fs)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[int64]bool{}
	for _, m := range manifests {
		for entry, err := range m.Entries(fs, true) {
			if err != nil {
				t.Fatal(err)
			}
			first := entry.DataFile().FirstRowID()
			if first == nil || rows[*first] {
				t.Fatalf("%s: first row id %v is missing or taken", entry.DataFile().FilePath(), first)
			}
			rows[*first] = true
		}
	}
}

// The manifests of n commits stay O(log n), and none of their files is lost on the way.
func manifestsStayFew(t *testing.T, f Fixture) {
	tbl := create(t, f, nil)
	var want []string
	most := 0
	for i := range 120 {
		name := fmt.Sprintf("f%03d", i)
		want = append(want, name)
		tbl = commit(t, f.Catalog, tbl, files(t, f, tbl, name))
		manifests, err := tbl.CurrentSnapshot().Manifests(catalog.NewIO(t.Context(), f.Locator))
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, len(manifests))
	}
	equal(t, "files", contents(t, f, tbl), want)
	if most > 20 {
		t.Errorf("up to %d manifests for 120 commits, want at most 20", most)
	}
}

// Expiry drops old snapshots and their lists; what a tag or the head names stays readable.
func expiry(t *testing.T, f Fixture) {
	tbl := create(t, f, iceberg.Properties{"history.expire.max-snapshot-age-ms": "0"})
	var want, lists []string
	for i := range 45 {
		name := fmt.Sprintf("f%02d", i)
		want = append(want, name)
		c := files(t, f, tbl, name)
		c.Expire = true
		old := time.Now()
		for !time.Now().After(old.Add(time.Millisecond)) { // snapshots of one age are told apart by the clock
		}
		tbl = commit(t, f.Catalog, tbl, c)
		lists = append(lists, tbl.CurrentSnapshot().ManifestList)
	}
	equal(t, "files", contents(t, f, tbl), want)
	left := len(load(t, f.Other, tbl).Metadata().Snapshots())
	if left > 12 {
		t.Errorf("%d snapshots left of 45, want at most 12", left)
	}
	there := 0
	for _, list := range lists {
		bucket, key, err := f.Locator.Resolve(t.Context(), list)
		if err != nil {
			t.Fatal(err)
		}
		switch _, err := bucket.Get(t.Context(), key, 0, 1); {
		case err == nil:
			there++
		case !errors.Is(err, objectstore.ErrNotFound):
			t.Fatal(err)
		}
	}
	equal(t, "manifest lists", there, left)
}

// The Avro schemas of manifests and lists carry field and element ids: engines resolve
// columns by them.
func manifestFieldIDs(t *testing.T, f Fixture) {
	tbl := create(t, f, nil)
	tbl = commit(t, f.Catalog, tbl, files(t, f, tbl, "a"))
	fs := catalog.NewIO(context.Background(), f.Locator)
	list := tbl.CurrentSnapshot().ManifestList
	manifests, err := tbl.CurrentSnapshot().Manifests(fs)
	if err != nil {
		t.Fatal(err)
	}
	for location, ids := range map[string][]int{
		list:                    {500, 501, 502, 503, 504, 505, 506, 507, 512, 513, 514, 515, 516, 517, 508},
		manifests[0].FilePath(): {0, 1, 2, 3, 4, 100, 101, 102, 103, 104, 108, 109, 110, 117, 118, 119, 120, 125, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135, 140},
	} {
		data, err := fs.ReadFile(location)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			spellings := []string{"field-id", "element-id", "key-id", "value-id"}
			if !slices.ContainsFunc(spellings, func(s string) bool {
				return bytes.Contains(data, fmt.Appendf(nil, "%q:%d", s, id))
			}) {
				t.Errorf("%s: id %d is missing", location, id)
			}
		}
	}
}

// A Store is a Locator of one bucket: locations that start with Prefix are its keys.
type Store struct {
	Prefix string
	Bucket objectstore.Bucket
}

// Resolve implements catalog.Locator. Iceberg Java writes file:/x for file:///x.
func (s Store) Resolve(_ context.Context, location string) (objectstore.Bucket, string, error) {
	if rest, ok := strings.CutPrefix(location, "file:/"); ok && !strings.HasPrefix(rest, "//") {
		location = "file:///" + rest
	}
	key, ok := strings.CutPrefix(location, s.Prefix)
	if !ok {
		return nil, "", fmt.Errorf("%s is not below %s", location, s.Prefix)
	}
	return s.Bucket, key, nil
}
