package worker

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/record"
)

// rowsWhere counts the rows that a scan with a filter finds, and the files that it plans.
func rowsWhere(t *testing.T, tab *table.Table, filter iceberg.BooleanExpression) (rows int64, files int) {
	t.Helper()
	scan := tab.Scan(table.WithRowFilter(filter), table.WithSelectedFields("id"))
	tasks, err := scan.PlanFiles(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, batches, err := scan.ToArrowRecords(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for b, err := range batches {
		if err != nil {
			t.Fatal(err)
		}
		rows += b.NumRows()
		b.Release()
	}
	return rows, len(tasks)
}

// A table that is partitioned holds each record once, in files of one partition each, and
// engines that prune by partition find them.
func TestRowsOfAPartitionedTable(t *testing.T) {
	p := newPath(t, 2)
	p.cfg.PartitionBy = "[id,bucket(id,8),truncate(name,5)]"
	p.start()
	for id := range int64(40) {
		for _, l := range p.logs {
			l.append(t, event(t, id), event(t, id%7))
		}
	}
	tab := p.committed()
	p.exact(160, 0)
	if spec := tab.Spec(); spec.NumFields() != 3 || spec.Field(1).Name != "id_bucket_8" || spec.Field(2).Name != "name_trunc_5" {
		t.Errorf("spec %v", spec)
	}
	for id, want := range map[int64]int64{3: 14, 39: 2} {
		rows, files := rowsWhere(t, tab, iceberg.EqualTo(iceberg.Reference("id"), id))
		if _, all := rowsWhere(t, tab, iceberg.AlwaysTrue{}); rows != want || files >= all/2 {
			t.Errorf("id %d: %d rows in %d files of %d, want %d rows in few", id, rows, files, all, want)
		}
	}
}

// Another setting makes another spec for the files that follow; those of the old one stay, and
// fields that come back keep their ids.
func TestPartitionsChangeOnALiveTopic(t *testing.T) {
	p := newPath(t, 1)
	ids := map[string]int{}
	for round, c := range []struct {
		by, fields string
	}{
		{"", ""},
		{"[truncate(name,4)]", "name_trunc_4"},
		{"[truncate(name,4),bucket(id,8)]", "name_trunc_4 id_bucket_8"},
		{"", "name_trunc_4 id_bucket_8"},
		{"[bucket(id,8)]", "id_bucket_8"},
		{"[truncate(name,4)]", "name_trunc_4"},
		{"[]", ""},
	} {
		p.cfg.PartitionBy = c.by
		p.start()
		p.produce(20)
		tab := p.committed()
		p.exact(int64(20*(round+1)), 0)
		spec, names := tab.Spec(), []string{}
		for _, f := range spec.Fields() {
			names = append(names, f.Name)
			if id, ok := ids[f.Name]; ok && id != f.FieldID {
				t.Errorf("field %s had id %d and has %d", f.Name, id, f.FieldID)
			}
			ids[f.Name] = f.FieldID
		}
		if got := strings.Join(names, " "); got != c.fields {
			t.Errorf("round %d: fields %q, want %q", round, got, c.fields)
		}
		p.crash()
	}
	if tab, _ := p.load(); len(tab.Metadata().PartitionSpecs()) != 4 {
		t.Errorf("%d specs, want 4: none twice", len(tab.Metadata().PartitionSpecs()))
	}
}

// Partitions that another writer changes between our commits hold from the next file on, and
// files that were on their way keep their own, void transforms among them.
func TestPartitionsOfAnotherWriter(t *testing.T) {
	p := newPath(t, 1)
	change := func(fields ...iceberg.PartitionField) {
		tab, err := p.load()
		if err != nil {
			t.Error(err)
			return
		}
		spec := iceberg.NewPartitionSpecID(len(tab.Metadata().PartitionSpecs()), fields...)
		if _, err := p.catalog.Catalog.Commit(context.Background(), tab, catalog.Commit{Spec: &spec}); err != nil {
			t.Error(err)
		}
	}
	bucket := iceberg.PartitionField{SourceIDs: []int{1}, FieldID: 1000, Name: "b", Transform: iceberg.BucketTransform{NumBuckets: 4}}
	void := bucket
	void.Transform = iceberg.VoidTransform{}
	name := iceberg.PartitionField{SourceIDs: []int{2}, FieldID: 1001, Name: "n", Transform: iceberg.IdentityTransform{}}
	p.catalog.fault = func(n int) fault {
		switch n {
		case 1:
			change(bucket)
		case 3:
			change(void, name)
		}
		return faultNone
	}
	p.start()
	for range 8 {
		p.produce(5)
		p.committed()
	}
	p.exact(40, 0)
	tab, err := p.load()
	if err != nil {
		t.Fatal(err)
	}
	specs := map[int32]int{}
	tasks, err := tab.Scan().PlanFiles(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		specs[task.File.SpecID()]++
		if task.File.SpecID() == 2 && (task.File.Partition()[1000] != nil || task.File.Partition()[1001] == nil) {
			t.Errorf("partition %v of spec 2", task.File.Partition())
		}
	}
	if len(specs) != 3 {
		t.Errorf("files by spec %v, want some of each of 3", specs)
	}
}

// A column that is missing stops a table from being made, with the reason, and a table that
// is there goes on with the partitions that it has.
func TestPartitionsByAMissingColumn(t *testing.T) {
	p := newPath(t, 1)
	p.cfg.PartitionBy = "[region]"
	p.start()
	p.produce(5)
	says := func(err error) bool { return err != nil && strings.Contains(err.Error(), `no column "region"`) }
	p.wait(func() bool { return says(p.commits.Trouble()) }, func() string { return fmt.Sprintf("the reason, not %v", p.commits.Trouble()) })
	p.crash()
	p.cfg.PartitionBy = "[ID]"
	p.start()
	p.committed()
	p.crash()
	p.cfg.PartitionBy = "[region]"
	p.start()
	p.produce(5)
	if spec := p.committed().Spec(); spec.NumFields() != 1 {
		t.Errorf("spec %v, want that of id", spec)
	}
	p.exact(10, 0)
}

// A partition change that meets a conflict, or whose answer is lost, is made once.
func TestPartitionsAreChangedOnce(t *testing.T) {
	p := newPath(t, 1)
	p.start()
	p.produce(5)
	p.committed()
	p.crash()
	p.cfg.PartitionBy = "[bucket(id,2)]"
	var n atomic.Int64
	lost := &changingCatalog{Catalog: p.catalog.Catalog, before: func(c catalog.Commit) {
		if c.Spec != nil && n.Add(1) == 1 {
			p.foreignColumn("region")
		}
	}, after: func(c catalog.Commit, err error) error {
		if c.Spec != nil && err == nil {
			return fmt.Errorf("%w: answer lost", catalog.ErrCommitUnknown)
		}
		return err
	}}
	p.catalog.Catalog = lost
	p.start()
	p.produce(5)
	tab := p.committed()
	p.exact(10, 0)
	if specs := len(tab.Metadata().PartitionSpecs()); specs != 2 || n.Load() != 2 {
		t.Errorf("%d specs after %d attempts, want 2 after 2", specs, n.Load())
	}
}

// changingCatalog runs before and after commits.
type changingCatalog struct {
	catalog.Catalog
	before func(catalog.Commit)
	after  func(catalog.Commit, error) error
}

func (c *changingCatalog) Commit(ctx context.Context, base *table.Table, change catalog.Commit) (*table.Table, error) {
	c.before(change)
	t, err := c.Catalog.Commit(ctx, base, change)
	if err = c.after(change, err); err != nil {
		return nil, err
	}
	return t, nil
}

// Many more partition values than files are open at a time: each record is there once, and a
// partition has as many files as there were rounds with records of it.
func TestManyPartitionsInOneRound(t *testing.T) {
	p := newPath(t, 1)
	p.cfg.PartitionBy = "[id]"
	p.limit = 10 * time.Minute
	values := int64(5000)
	if underRace {
		values = 100
	}
	for i := range values {
		p.logs[0].append(t, event(t, i), event(t, (i*7)%values))
	}
	p.start()
	tab := p.committed()
	p.exact(2*values, 0)
	if rows, files := rowsWhere(t, tab, iceberg.EqualTo(iceberg.Reference("id"), int64(42))); rows != 2 || files < 1 || files > 2 {
		t.Errorf("%d rows in %d files, want 2 in 1 or 2", rows, files)
	}
}

// A round with 5,000 partition values in a table of 300 columns stays below 512 MiB, in a
// process of its own with a limit of the usual size for rows. That takes minutes: without
// the time for it there are 1,000 values and 30 columns.
func TestManyPartitionsOfAWideTable(t *testing.T) {
	if underRace {
		t.Skip("the race detector takes memory itself")
	}
	if os.Getenv("TABLETOPIC_WIDE") == "" {
		size := "30 1000"
		if os.Getenv("TABLETOPIC_SOAK") != "" {
			size = "300 5000"
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestManyPartitionsOfAWideTable$", "-test.v")
		cmd.Env = append(os.Environ(), "TABLETOPIC_WIDE="+size, "GOMEMLIMIT=384MiB")
		out, err := cmd.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("--- PASS")) {
			t.Fatalf("%v\n%.3000s", err, out)
		}
		if most := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10; most > 512<<20 {
			t.Errorf("%d MiB were used, want 512 at most", most>>20)
		}
		return
	}
	var columns int
	var values int64
	if _, err := fmt.Sscan(os.Getenv("TABLETOPIC_WIDE"), &columns, &values); err != nil {
		t.Fatal(err)
	}
	p := newPath(t, 1)
	if columns > 100 { // files that would take the memory
		root := t.TempDir()
		dir, err := objectstore.OpenDir(vfs.Default, root)
		if err != nil {
			t.Fatal(err)
		}
		p = newPathOn(t, 1, dir, "file://"+root+"/warehouse")
	}
	var fields []string
	for i := range columns {
		fields = append(fields, fmt.Sprintf(`{"name":"c%d","type":"long"}`, i))
	}
	p.schemas[1] = `{"type":"record","name":"Wide","fields":[` + strings.Join(fields, ",") + `]}`
	p.cfg.PartitionBy = "[c0]"
	p.limit = 10 * time.Minute
	var records []record.Record
	for i := range int64(20_000) {
		value := binary.AppendVarint([]byte{0, 0, 0, 0, 1}, i*7919%values)
		for c := range int64(columns - 1) {
			value = binary.AppendVarint(value, i<<20+c)
		}
		if records = append(records, record.Record{Value: value}); len(records) == 100 {
			p.logs[0].append(t, records...)
			records = nil
		}
	}
	p.start()
	tab := p.committed()
	p.crash()
	if got := tab.CurrentSnapshot().Summary.Properties["total-records"]; got != "20000" {
		t.Errorf("%s rows, want 20000", got)
	}
}
