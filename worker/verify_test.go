package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog"
	catalogsql "github.com/tabletopic/tabletopic/catalog/sql"
	"github.com/tabletopic/tabletopic/coordinator"
)

// filled is a path with a table of n rows in one partition, ids as offsets, in at least two commits.
func filled(t *testing.T, n int) *path {
	p := newPath(t, 1)
	p.start()
	for half := range 2 {
		for i := range n / 2 {
			p.logs[0].append(t, event(t, int64(half*n/2+i)))
		}
		p.committed()
	}
	p.crash()
	return p
}

// verifyAs verifies, shallow or deep, and returns the report of the only partition too.
func (p *path) verifyAs(in coordinator.Verification) (*coordinator.Report, coordinator.PartitionReport) {
	p.t.Helper()
	tab, err := p.load()
	if err != nil {
		p.t.Fatal(err)
	}
	in.Topic, in.KafkaColumn, in.Locator, in.Letters = coordinator.Topic{ID: p.topic, Name: p.name, Partitions: int32(len(p.logs))}, p.cfg.KafkaColumn, p.locator, p.letters.Each
	in.Logs = map[int32]coordinator.LogReader{}
	for i, l := range p.logs {
		in.Logs[i] = l
	}
	r, err := coordinator.Verify(p.t.Context(), tab, in)
	if err != nil {
		p.t.Fatal(err)
	}
	return r, r.Partitions[0]
}

// engine is how iceberg-go writes to the table as another writer.
type engine struct{ c *catalogsql.Catalog }

func (e engine) LoadTable(ctx context.Context, id table.Identifier) (*table.Table, error) {
	return e.c.Load(ctx, id)
}

func (e engine) CommitTable(ctx context.Context, id table.Identifier, reqs []table.Requirement, updates []table.Update) (table.Metadata, string, error) {
	next, err := e.c.CommitTable(ctx, id, reqs, updates)
	if err != nil {
		return nil, "", err
	}
	return next.Metadata(), next.MetadataLocation(), nil
}

// foreign changes the table as another writer does.
func (p *path) foreign(change func(tx *table.Transaction) error) {
	p.t.Helper()
	tab, err := p.load()
	if err != nil {
		p.t.Fatal(err)
	}
	tx := table.New(tab.Identifier(), tab.Metadata(), tab.MetadataLocation(), catalog.FS(p.locator), engine{p.catalog.Catalog.(*catalogsql.Catalog)}).NewTransaction()
	err = change(tx)
	if err == nil {
		_, err = tx.Commit(p.t.Context())
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// Rows that others delete, by new files without them or by delete files beside them, are
// counted and told as theirs; they are a difference only for those who ask for it. The
// evidence outlives the snapshots.
func TestVerifyTellsDeletedRows(t *testing.T) {
	for _, mode := range []string{"copy-on-write", "merge-on-read"} {
		t.Run(mode, func(t *testing.T) {
			p := filled(t, 40)
			p.foreign(func(tx *table.Transaction) error {
				return tx.SetProperties(iceberg.Properties{"write.delete.mode": mode})
			})
			p.foreign(func(tx *table.Transaction) error {
				return tx.Delete(t.Context(), iceberg.LessThan(iceberg.Reference("id"), int64(7)), nil)
			})
			check := func(when string) {
				t.Helper()
				r, one := p.verifyAs(coordinator.Verification{Deep: true})
				if !r.OK || one.Rows != 33 || one.Deleted != 7 || one.Lost != 0 {
					t.Errorf("%s: %+v, want 33 rows and 7 deleted", when, r)
				}
				if r, _ := p.verifyAs(coordinator.Verification{Deep: true, Strict: true}); r.OK {
					t.Errorf("%s: strict: no difference in %+v", when, r)
				}
				if r, _ := p.verifyAs(coordinator.Verification{}); !r.OK {
					t.Errorf("%s: the commits differ: %+v", when, r)
				}
			}
			check("after the delete")
			p.foreign(func(tx *table.Transaction) error {
				return tx.ExpireSnapshots(table.WithOlderThan(0), table.WithRetainLast(1))
			})
			check("after the expiry of all other snapshots")
		})
	}
}

// A row that is gone although nobody deleted it, a file that is there twice, and rows of
// another writer are each told apart, with the file and the snapshot.
func TestVerifyTellsWhatWasDone(t *testing.T) {
	t.Run("a manifest lost a file", func(t *testing.T) {
		p := filled(t, 40)
		lost := p.withoutFile()
		r, one := p.verifyAs(coordinator.Verification{Deep: true})
		if r.OK || one.Lost != lost || one.Deleted != 0 {
			t.Errorf("%+v, want %d lost", r, lost)
		}
	})
	t.Run("a file is missing", func(t *testing.T) {
		p := filled(t, 40)
		tab, _ := p.load()
		name := slices.Sorted(maps.Keys(planned(t, tab)))[0]
		b, key, err := p.locator.Resolve(t.Context(), name)
		if err == nil {
			err = b.Delete(t.Context(), key)
		}
		if err != nil {
			t.Fatal(err)
		}
		if r, _ := p.verifyAs(coordinator.Verification{Deep: true}); r.OK || !slices.Equal(r.Missing, []string{name}) {
			t.Errorf("%+v, want %s missing", r, name)
		}
	})
	t.Run("a file is there twice", func(t *testing.T) {
		p := filled(t, 40)
		df := p.dataFile()
		tab, _ := p.load()
		if _, err := p.catalog.Catalog.Commit(t.Context(), tab, catalog.Commit{Snapshot: true, Files: []iceberg.DataFile{df}}); err != nil {
			t.Fatal(err)
		}
		r, one := p.verifyAs(coordinator.Verification{Deep: true})
		if r.OK || one.Duplicates != df.Count() || one.Lost != 0 || !strings.Contains(strings.Join(one.Examples, "\n"), df.FilePath()) {
			t.Errorf("%+v, want %d duplicates of %s", r, df.Count(), df.FilePath())
		}
	})
	t.Run("another writer appends", func(t *testing.T) {
		p := filled(t, 40)
		p.foreignRows("theirs", true)
		tab, _ := p.load()
		r, one := p.verifyAs(coordinator.Verification{Deep: true})
		if !r.OK || one.Rows != 40 || r.Others != 3 || r.OtherFiles != 1 || len(r.Foreign) != 1 {
			t.Fatalf("%+v, want 40 rows of ours and 3 of others", r)
		}
		want := coordinator.ForeignFile{Path: catalog.DataLocation(tab, "theirs.parquet"), Rows: 3, Snapshot: tab.CurrentSnapshot().SnapshotID}
		if r.Foreign[0] != want {
			t.Errorf("foreign file %+v, want %+v", r.Foreign[0], want)
		}
	})
	t.Run("another writer names offsets", func(t *testing.T) {
		p := filled(t, 40)
		p.foreignFile("theirs", true, &place{0, 39}, &place{0, 40}, &place{0, 1 << 60}, &place{1, 0}, &place{-1, 0}, &place{0, -1})
		r, one := p.verifyAs(coordinator.Verification{Deep: true})
		if r.OK || one.Rows != 43 || one.Duplicates != 1 || one.Beyond != 2 || r.Others != 3 {
			t.Errorf("%+v, want one duplicate, 2 rows beyond, and 3 of others: they name no place of the topic", r)
		}
	})
	t.Run("the table no longer says where it is", func(t *testing.T) {
		p := filled(t, 40)
		p.foreign(func(tx *table.Transaction) error { return tx.RemoveProperties([]string{"tabletopic.state"}) })
		for _, deep := range []bool{false, true} {
			if r, one := p.verifyAs(coordinator.Verification{Deep: deep}); r.OK || one.Beyond != 40 {
				t.Errorf("deep %t: %+v, want 40 rows beyond", deep, r)
			}
		}
	})
	t.Run("the table says more than the log gave", func(t *testing.T) {
		p := filled(t, 40)
		p.logs[0] = &memoryLog{}
		for i := range 30 {
			p.logs[0].append(t, event(t, int64(i)))
		}
		for _, deep := range []bool{false, true} {
			if r, one := p.verifyAs(coordinator.Verification{Deep: deep}); r.OK || one.Ahead != 10 {
				t.Errorf("deep %t: %+v, want 10 offsets ahead", deep, r)
			}
		}
	})
}

// Without reading a file, records of which no commit tells are seen: by the summaries, and by
// the totals once those have expired.
func TestVerifyByCommits(t *testing.T) {
	p := newPath(t, 1)
	p.start()
	fill := func(l *memoryLog, hole bool) {
		for i := range 30 {
			if i >= 10 && i < 20 && hole {
				l.skip(1)
				continue
			}
			l.append(t, event(t, int64(i)))
		}
	}
	fill(p.logs[0], true)
	p.committed()
	p.crash()
	if r, one := p.verifyAs(coordinator.Verification{}); !r.OK || one.Rows != 20 {
		t.Fatalf("%+v, want 20 rows", r)
	}
	p.logs[0] = &memoryLog{}
	fill(p.logs[0], false)
	if r, one := p.verifyAs(coordinator.Verification{}); r.OK || one.Lost != 10 {
		t.Errorf("%+v, want 10 lost", r)
	}
	p.foreignRows("theirs", true)
	p.foreign(func(tx *table.Transaction) error {
		return tx.ExpireSnapshots(table.WithOlderThan(0), table.WithRetainLast(1))
	})
	if r, one := p.verifyAs(coordinator.Verification{}); r.OK || one.Lost != 10 {
		t.Errorf("by the totals: %+v, want 10 lost", r)
	}
}

// skip moves the log's end over offsets without records, as markers of transactions do.
func (l *memoryLog) skip(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end += n
}

// dataFile returns a data file of the table.
func (p *path) dataFile() iceberg.DataFile {
	p.t.Helper()
	tab, err := p.load()
	if err != nil {
		p.t.Fatal(err)
	}
	tasks, err := tab.Scan().PlanFiles(p.t.Context())
	if err != nil || len(tasks) == 0 {
		p.t.Fatalf("%d files, error %v", len(tasks), err)
	}
	return tasks[0].File
}

// withoutFile makes a snapshot whose manifest list has lost a manifest, and whose summary
// knows nothing of that, and returns the rows of its files.
func (p *path) withoutFile() (rows int64) {
	p.t.Helper()
	tab, err := p.load()
	if err != nil {
		p.t.Fatal(err)
	}
	s, fs := tab.CurrentSnapshot(), catalog.NewIO(p.t.Context(), p.locator)
	manifests, err := s.Manifests(fs)
	if err != nil || len(manifests) < 2 {
		p.t.Fatalf("%d manifests, error %v", len(manifests), err)
	}
	for e, err := range manifests[0].Entries(fs, true) {
		if err != nil {
			p.t.Fatal(err)
		}
		rows += e.DataFile().Count()
	}
	next := *s
	next.SnapshotID, next.ParentSnapshotID, next.SequenceNumber = s.SnapshotID+1, &s.SnapshotID, s.SequenceNumber+1
	next.ManifestList, next.TimestampMs = s.ManifestList+".short.avro", s.TimestampMs+1
	next.Summary = &table.Summary{Operation: table.OpReplace, Properties: iceberg.Properties{"total-records": s.Summary.Properties["total-records"]}}
	out, err := fs.Create(next.ManifestList)
	if err == nil {
		err = iceberg.WriteManifestList(tab.Metadata().Version(), out, next.SnapshotID, next.ParentSnapshotID, &next.SequenceNumber, 0, manifests[1:])
	}
	if err == nil {
		err = out.Close()
	}
	if err == nil {
		_, err = p.catalog.Catalog.(*catalogsql.Catalog).CommitTable(p.t.Context(), p.ident(), nil, []table.Update{
			table.NewAddSnapshotUpdate(&next), table.NewSetSnapshotRefUpdate(table.MainBranch, next.SnapshotID, table.BranchRef, 0, 0, 0)})
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return rows
}

// What retention took before the table had it stays told when the snapshot that told it has
// expired, and a rewind that was accepted likewise.
func TestLostOffsetsOutliveTheirSnapshots(t *testing.T) {
	p := filled(t, 20)
	p.rollbackTo(10)
	p.cfg.OnRewind = coordinator.RewindAccept
	p.start()
	p.produce(5)
	p.committed()
	p.crash()
	for range 10 { // the log loses them before the worker reads them
		p.logs[0].append(t, event(t, 1))
	}
	p.logs[0].trim(35)
	p.start()
	p.produce(5)
	p.committed()
	p.crash()
	want := []coordinator.LostSpan{{Partition: 0, Start: 10, End: 20, Reason: coordinator.LostRewind}, {Partition: 0, Start: 25, End: 35, Reason: coordinator.LostRetention}}
	check := func(when string) {
		t.Helper()
		for _, deep := range []bool{false, true} {
			r, one := p.verifyAs(coordinator.Verification{Deep: deep})
			got := slices.Clone(one.GapRanges)
			if !r.OK || one.Gaps != 20 || fmt.Sprint(stripPartition(got)) != fmt.Sprint(stripPartition(want)) {
				t.Errorf("%s, deep %t: %+v, want gaps %v", when, deep, r, want)
			}
		}
	}
	check("with all snapshots")
	p.foreign(func(tx *table.Transaction) error {
		return tx.ExpireSnapshots(table.WithOlderThan(0), table.WithRetainLast(1))
	})
	p.start()
	p.produce(5)
	p.committed()
	p.crash()
	p.foreign(func(tx *table.Transaction) error {
		return tx.ExpireSnapshots(table.WithOlderThan(0), table.WithRetainLast(1))
	})
	check("with the last snapshot")
}

func stripPartition(spans []coordinator.LostSpan) []string {
	var out []string
	for _, s := range spans {
		out = append(out, fmt.Sprintf("%d-%d %s", s.Start, s.End, s.Reason))
	}
	return out
}

// A partition whose dead letters cannot be read is named as not verified, and the others are
// verified all the same.
func TestVerifyNamesPartitionsWithoutTheirLetters(t *testing.T) {
	p := newPath(t, 3)
	p.start()
	p.produce(10)
	tab := p.committed()
	logs := map[int32]coordinator.LogReader{}
	for i, l := range p.logs {
		logs[i] = l
	}
	in := coordinator.Verification{Topic: coordinator.Topic{ID: p.topic, Name: p.name, Partitions: 3}, KafkaColumn: "_kafka", Locator: p.locator, Logs: logs, Deep: true,
		Letters: func(ctx context.Context, partition int32, fn func(int64, string)) error {
			if partition == 1 {
				return errors.New("its leader is away")
			}
			return p.letters.Each(ctx, partition, fn)
		}}
	r, err := coordinator.Verify(t.Context(), tab, in)
	if err != nil {
		t.Fatal(err)
	}
	if !r.OK || len(r.Partitions) != 2 || r.Partitions[0].Rows != 10 || r.Partitions[1].Rows != 10 ||
		!slices.Equal(r.Unverified, []int32{1}) || !strings.Contains(r.UnverifiedReasons[1], "its leader is away") {
		t.Errorf("report %+v", r)
	}
}
