package hive

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/beltran/gohive/hive_metastore"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/catalogtest"
	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/objectstore"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

// The metastore makes folders of tables, in a scratch directory for s3.
func newStore() catalogtest.Store {
	return catalogtest.Store{Prefix: "s3://w/", Bucket: objectstore.NewMemory()}
}

func open(t *testing.T, address string, store catalogtest.Store, change ...func(*Config)) *Catalog {
	t.Helper()
	cfg := Config{URI: "thrift://" + address, Warehouse: "s3://w/house", LockWait: 20 * time.Second, Settle: time.Second}
	for _, c := range change {
		c(&cfg)
	}
	c, err := Open(store, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// The suite holds for a Hive Metastore 3.1.
func TestConformance(t *testing.T) {
	address := lab.SharedHiveMetastore(t, 300*time.Second)
	catalogtest.Run(t, func(t *testing.T) catalogtest.Fixture {
		store := newStore()
		p := newProxy(t, address)
		f := p.arm(catalogtest.Fixture{Catalog: open(t, p.address, store), Other: open(t, address, store), Locator: store, Patience: time.Minute})
		t.Cleanup(func() { dropAll(t, address, store) })
		return f
	})
}

// dropAll leaves the metastore to the next test.
func dropAll(t *testing.T, address string, store catalogtest.Store) {
	c, err := Open(store, Config{URI: "thrift://" + address})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := context.WithoutCancel(t.Context())
	ids, err := c.List(ctx, nil)
	if err != nil {
		t.Error(err)
	}
	for _, id := range ids {
		if err := c.Drop(ctx, id); err != nil {
			t.Error(err)
		}
	}
}

// clicks is the table of a test, in a database of its own.
func clicks(t *testing.T) table.Identifier {
	return table.Identifier{strings.ToLower(t.Name()), "clicks"}
}

func create(t *testing.T, c *Catalog) *table.Table {
	t.Helper()
	tbl, err := c.Create(t.Context(), clicks(t), catalogtest.Schema(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return tbl
}

func file(t *testing.T, tbl *table.Table, name string) catalog.Commit {
	return catalog.Commit{Files: []iceberg.DataFile{catalogtest.DataFile(t, tbl, name)}}
}

func snapshots(t *testing.T, c *Catalog) int {
	t.Helper()
	tbl, err := c.Load(t.Context(), clicks(t))
	if err != nil {
		t.Fatal(err)
	}
	return len(tbl.Metadata().Snapshots())
}

// shown returns the table as the metastore has it.
func shown(t *testing.T, c *Catalog) (shown *hive_metastore.Table) {
	t.Helper()
	if err := c.store.call(t.Context(), func(h *hive_metastore.ThriftHiveMetastoreClient) (err error) {
		shown, err = get(t.Context(), h, clicks(t))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return shown
}

// A request that got no answer may still be on its way. Until that is over the lock keeps
// others from committing what it would then overwrite.
func TestLockOutlivesACommitWithoutAnswer(t *testing.T) {
	t.Parallel()
	address, store := lab.SharedHiveMetastore(t, 300*time.Second), newStore()
	p := newProxy(t, address)
	c := open(t, p.address, store, func(c *Config) { c.Settle = time.Hour })
	other := open(t, address, store, func(c *Config) { c.LockWait = 3 * time.Second })
	tbl := create(t, c)
	p.next.Store(holdRequest)
	if _, err := c.Commit(t.Context(), tbl, file(t, tbl, "a")); !errors.Is(err, catalog.ErrCommitUnknown) {
		t.Fatalf("held commit: %v", err)
	}
	if _, err := other.Commit(t.Context(), tbl, file(t, tbl, "b")); !errors.Is(err, catalog.ErrCommitConflict) {
		t.Fatalf("commit meanwhile: %v, want that it is kept out", err)
	}
	(<-p.held)()
	if n := snapshots(t, other); n != 1 {
		t.Errorf("%d snapshots, want the held one", n)
	}
	c.Close() // gives the lock up
	tbl, err := other.Load(t.Context(), clicks(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Commit(t.Context(), tbl, file(t, tbl, "b")); err != nil {
		t.Errorf("commit after it: %v", err)
	}
}

// A lock that the metastore dropped, because its owner slept, is noticed before the table is
// altered.
func TestLostLockIsNoticed(t *testing.T) {
	t.Parallel()
	address, store := lab.SharedHiveMetastore(t, time.Second), newStore()
	p := newProxy(t, address)
	c := open(t, p.address, store, func(c *Config) { c.Heartbeat = time.Hour })
	other := open(t, address, store)
	tbl := create(t, c)
	commitOther := func() {
		if _, err := other.Commit(t.Context(), tbl, file(t, tbl, "theirs")); err != nil {
			t.Errorf("commit when the lock had ended: %v", err)
		}
	}
	p.before.Store("check_lock", commitOther)
	p.before.Store(lab.AlterTable, func() { // where the lock is not verified
		if _, unverified := p.before.LoadAndDelete("check_lock"); unverified {
			commitOther()
		}
	})
	if _, err := c.Commit(t.Context(), tbl, file(t, tbl, "ours")); !errors.Is(err, catalog.ErrCommitConflict) {
		t.Errorf("commit with a lost lock: %v, want %v", err, catalog.ErrCommitConflict)
	}
	if n := snapshots(t, other); n != 1 {
		t.Errorf("%d snapshots, want theirs", n)
	}
	now, err := other.Load(t.Context(), clicks(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Commit(t.Context(), now, file(t, now, "next")); err != nil {
		t.Error(err)
	}
	if n := snapshots(t, other); n != 2 {
		t.Errorf("%d snapshots, want both of theirs", n)
	}
}

// A lock is kept alive as long as its commit takes.
func TestLockIsKeptAlive(t *testing.T) {
	t.Parallel()
	address, store := lab.SharedHiveMetastore(t, time.Second), newStore()
	p := newProxy(t, address)
	c := open(t, p.address, store, func(c *Config) { c.Heartbeat = 50 * time.Millisecond })
	tbl := create(t, c)
	p.before.Store(lab.AlterTable, func() { // several times the lock's time
		if err := lab.Poll(time.Minute, func() error {
			if p.beats.Load() < 60 {
				return errors.New("too few heartbeats")
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		if err := c.store.call(t.Context(), func(h *hive_metastore.ThriftHiveMetastoreClient) error {
			id := clicks(t)
			locks, err := h.ShowLocks(t.Context(), &hive_metastore.ShowLocksRequest{Dbname: &id[0], Tablename: &id[1]})
			if err == nil && len(locks.Locks) != 1 {
				t.Errorf("%d locks, want the one that is kept alive", len(locks.Locks))
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	})
	if _, err := c.Commit(t.Context(), tbl, file(t, tbl, "a")); err != nil {
		t.Error(err)
	}
}

// What Hive shows follows the schema, whatever names it has; where Hive refuses the new
// columns, which it compares by position, it shows the old ones and the commit is made.
func TestHiveShowsTheColumns(t *testing.T) {
	t.Parallel()
	address, store := lab.SharedHiveMetastore(t, 300*time.Second), newStore()
	c := open(t, address, store)
	tbl := create(t, c)
	columns := func() string {
		var out []string
		for _, f := range shown(t, c).Sd.Cols {
			out = append(out, f.Name+" "+f.Type)
		}
		return strings.Join(out, ", ")
	}
	const start = "id bigint, name string, _kafka struct<partition:int,offset:bigint>"
	if got := columns(); got != start {
		t.Errorf("columns %s, want %s", got, start)
	}
	last := tbl.Metadata().LastColumnID()
	fields := append(tbl.Schema().Fields(), iceberg.NestedField{ID: last + 1, Name: "At", Type: iceberg.PrimitiveTypes.TimestampTz},
		iceberg.NestedField{ID: last + 2, Name: "odd", Type: &iceberg.StructType{FieldList: []iceberg.NestedField{{ID: last + 3, Name: "a:b<c>,é", Type: iceberg.PrimitiveTypes.UUID}}}})
	tbl, err := c.Commit(t.Context(), tbl, catalog.Commit{Schema: iceberg.NewSchema(0, fields...)})
	if err != nil {
		t.Fatal(err)
	}
	const grown = start + ", at timestamp with local time zone, odd struct<a_b_c___:string>"
	if got := columns(); got != grown {
		t.Errorf("columns %s, want %s", got, grown)
	}
	if tbl, err = c.Commit(t.Context(), tbl, catalog.Commit{Schema: iceberg.NewSchema(0, tbl.Schema().Fields()[1:]...)}); err != nil {
		t.Fatalf("drop the first column: %v", err)
	}
	if got := columns(); got != grown {
		t.Errorf("columns after Hive refused %s, want %s", got, grown)
	}
	if _, err = c.Commit(t.Context(), tbl, file(t, tbl, "a")); err != nil {
		t.Fatal(err)
	}
	if p := shown(t, c).Parameters; p["numRows"] != "10" || p["numFiles"] != "1" || p["previous_metadata_location"] != tbl.MetadataLocation() {
		t.Errorf("parameters %v", p)
	}
}

// The first of several metastores that can be reached is taken.
func TestSeveralAddresses(t *testing.T) {
	t.Parallel()
	address, store := lab.SharedHiveMetastore(t, 300*time.Second), newStore()
	c := open(t, "127.0.0.1:1,thrift://"+address, store)
	create(t, c)
	down := open(t, "127.0.0.1:1", store)
	if _, err := down.Load(t.Context(), clicks(t)); err == nil || errors.Is(err, catalog.ErrNoTable) {
		t.Errorf("load without a metastore: %v", err)
	}
	if _, err := Open(store, Config{URI: "http://x"}); err == nil {
		t.Error("an address that is not Thrift's is not refused")
	}
}

// Without the lock a commit waits for nobody's.
func TestNoLock(t *testing.T) {
	t.Parallel()
	address, store := lab.SharedHiveMetastore(t, 300*time.Second), newStore()
	locker := open(t, address, store)
	c := open(t, address, store, func(c *Config) { c.NoLock, c.LockWait = true, time.Millisecond })
	tbl := create(t, c)
	l, err := locker.store.lock(t.Context(), clicks(t))
	if err != nil {
		t.Fatal(err)
	}
	defer l.release(time.Minute)
	if _, err := c.Commit(t.Context(), tbl, file(t, tbl, "a")); err != nil {
		t.Error(err)
	}
}
