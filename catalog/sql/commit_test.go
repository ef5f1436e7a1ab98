package sql

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/catalogtest"
	"github.com/tabletopic/tabletopic/objectstore"
)

func memoryStore() catalogtest.Store {
	return catalogtest.Store{Prefix: "file:///w/", Bucket: objectstore.NewMemory()}
}

func properties(key, value string) []table.Update {
	return []table.Update{table.NewSetPropertiesUpdate(iceberg.Properties{key: value})}
}

// A snapshot for one branch that was built before another branch grew is a conflict, which
// its writer cures by building it again, and no wrong request.
func TestSnapshotBuiltBeforeAnotherBranchGrew(t *testing.T) {
	c := open(t, sqliteEngine(t), memoryStore())
	id := table.Identifier{"n", "a"}
	tbl, err := c.Create(t.Context(), id, catalogtest.Schema(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if tbl, err = c.Commit(t.Context(), tbl, catalog.Commit{Snapshot: true}); err != nil {
		t.Fatal(err)
	}
	head := tbl.CurrentSnapshot()
	late := *head
	late.SnapshotID, late.ParentSnapshotID, late.SequenceNumber = head.SnapshotID-1, &head.SnapshotID, head.SequenceNumber+1
	if _, err = c.Commit(t.Context(), tbl, catalog.Commit{Snapshot: true}); err != nil {
		t.Fatal(err)
	}
	commit := func() error {
		_, err := c.CommitTable(t.Context(), id, []table.Requirement{table.AssertRefSnapshotID("audit", nil)},
			[]table.Update{table.NewAddSnapshotUpdate(&late), table.NewSetSnapshotRefUpdate("audit", late.SnapshotID, table.BranchRef, 0, 0, 0)})
		return err
	}
	if err := commit(); !errors.Is(err, catalog.ErrCommitConflict) {
		t.Errorf("built too early: %v, want a conflict", err)
	}
	late.SequenceNumber++
	if err := commit(); err != nil {
		t.Errorf("built again: %v", err)
	}
}

// Transactions of two tables, of two processes, in either order: each is seen whole, and
// none is lost.
func TestTransactionsAreSeenWhole(t *testing.T) {
	eachEngine(t, func(t *testing.T, e engine) {
		store, database := memoryStore(), e(t)
		both := []*Catalog{open(t, database, store), open(t, database, store)}
		a, b := table.Identifier{"n", "a"}, table.Identifier{"n", "b"}
		for _, id := range []table.Identifier{a, b} {
			if _, err := both[0].Create(t.Context(), id, catalogtest.Schema(), nil); err != nil {
				t.Fatal(err)
			}
		}
		const rounds = 10
		var all sync.WaitGroup
		for i, c := range both {
			all.Go(func() {
				for n := range rounds {
					key := fmt.Sprint("k", i, n)
					changes := []Change{{ID: a, Updates: properties(key, "v")}, {ID: b, Updates: properties(key, "v")}}
					if i == 1 {
						changes[0], changes[1] = changes[1], changes[0]
					}
					if _, err := c.CommitTables(t.Context(), changes); err != nil && !errors.Is(err, catalog.ErrCommitConflict) {
						t.Errorf("transaction %s: %v", key, err)
					} else if err != nil {
						t.Logf("transaction %s lost each time: %v", key, err)
					}
				}
			})
		}
		all.Wait()
		ta, err := both[0].Load(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		tb, err := both[1].Load(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(ta.Properties()) != fmt.Sprint(tb.Properties()) || len(ta.Properties()) < rounds {
			t.Errorf("properties %v and %v", ta.Properties(), tb.Properties())
		}
	})
}

// A transaction that one of its tables refuses leaves no file and no trace in the others.
func TestRefusedTransactionLeavesNothing(t *testing.T) {
	eachEngine(t, func(t *testing.T, e engine) {
		store := memoryStore()
		c := open(t, e(t), store)
		a, b := table.Identifier{"n", "a"}, table.Identifier{"n", "b"}
		bases := make([]*table.Table, 2)
		for i, id := range []table.Identifier{a, b} {
			var err error
			if bases[i], err = c.Create(t.Context(), id, catalogtest.Schema(), nil); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.CommitTable(t.Context(), b, nil, properties("first", "v")); err != nil {
			t.Fatal(err)
		}
		before := names(t, store)
		changes := []Change{{ID: a, Updates: properties("k", "v")}, {ID: b, Updates: properties("k", "v")}}
		if _, err := c.attempt(t.Context(), changes, bases); !errors.Is(err, catalog.ErrCommitConflict) {
			t.Fatalf("on an old base: %v, want %v", err, catalog.ErrCommitConflict)
		}
		changes[1].Updates = []table.Update{table.NewSetCurrentSchemaUpdate(77)}
		if _, err := c.CommitTables(t.Context(), changes); !errors.Is(err, ErrInvalid) {
			t.Fatalf("an update that cannot be: %v, want %v", err, ErrInvalid)
		}
		if after := names(t, store); fmt.Sprint(before) != fmt.Sprint(after) {
			t.Errorf("files before %v, after %v", before, after)
		}
		if tbl, err := c.Load(t.Context(), a); err != nil || tbl.MetadataLocation() != bases[0].MetadataLocation() {
			t.Errorf("table a is %v, %v", tbl, err)
		}
	})
}

func names(t *testing.T, store catalogtest.Store) []string {
	t.Helper()
	page, err := store.Bucket.List(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, o := range page {
		out = append(out, o.Key)
	}
	return out
}

// A key goes with its change: both or neither, and nothing is told before it is durable.
func TestKeyGoesWithItsChange(t *testing.T) {
	eachEngine(t, func(t *testing.T, e engine) {
		c := open(t, e(t), memoryStore())
		id := table.Identifier{"n", "t"}
		if _, err := c.Create(t.Context(), id, catalogtest.Schema(), nil); err != nil {
			t.Fatal(err)
		}
		found := func(key string) bool {
			t.Helper()
			o, found, err := c.Outcome(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			if found && o.Request != "r" {
				t.Errorf("outcome %+v", o)
			}
			return found
		}
		with := func(key string) context.Context { return WithKey(t.Context(), Key{ID: key, Request: "r"}) }
		if err := c.Drop(with("1"), table.Identifier{"n", "no"}); !errors.Is(err, catalog.ErrNoTable) || found("1") {
			t.Errorf("a drop of nothing: %v, key used: %v", err, found("1"))
		}
		if _, err := c.CommitTable(with("2"), id, nil, properties("k", "1")); err != nil || !found("2") {
			t.Errorf("a commit: %v, key used: %v", err, found("2"))
		}
		if _, err := c.CommitTable(with("2"), id, nil, properties("k", "2")); !errors.Is(err, ErrKeyUsed) {
			t.Errorf("the key again: %v, want %v", err, ErrKeyUsed)
		}
		if err := c.Drop(with("2"), id); !errors.Is(err, ErrKeyUsed) {
			t.Errorf("the key for a drop: %v, want %v", err, ErrKeyUsed)
		}
		if tbl, err := c.Load(t.Context(), id); err != nil || tbl.Properties()["k"] != "1" {
			t.Errorf("the table is %v, %v", tbl, err)
		}
		if err := c.Refuse(t.Context(), Key{ID: "3", Request: "r"}, 404, []byte("no")); err != nil {
			t.Fatal(err)
		}
		if err := c.Drop(with("3"), id); !errors.Is(err, ErrKeyUsed) {
			t.Errorf("a drop that was refused before: %v, want %v", err, ErrKeyUsed)
		}
		c.cfg.Durable = func(context.Context) error { return errLost }
		if err := c.Drop(with("4"), id); !errors.Is(err, errLost) {
			t.Errorf("a drop that is not durable: %v, want %v", err, errLost)
		}
		if _, _, err := c.Outcome(t.Context(), "4"); !errors.Is(err, errLost) {
			t.Errorf("its outcome: %v, want %v", err, errLost)
		}
	})
}

// The cache keeps within its bytes, keeps nothing if it is told so, and hands out one text.
func TestCacheIsBounded(t *testing.T) {
	store := memoryStore()
	c := open(t, sqliteEngine(t), store)
	var err error
	if c.cache, err = newCache(3 * 16 << 10); err != nil {
		t.Fatal(err)
	}
	var last *table.Table
	for i := range 20 {
		if last, err = c.Create(t.Context(), table.Identifier{"n", fmt.Sprint("t", i)}, catalogtest.Schema(), nil); err != nil {
			t.Fatal(err)
		}
		if c.cache.size > c.cache.max || c.cache.size <= 0 {
			t.Fatalf("after %d tables %d bytes, %d are allowed", i+1, c.cache.size, c.cache.max)
		}
	}
	if n := c.cache.lru.Len(); n == 20 || n == 0 {
		t.Errorf("%d documents of 20 are kept", n)
	}
	if one, two := c.Document(last), c.Document(last); one != two {
		t.Error("two documents of one location")
	}
	if c.cache, err = newCache(-1); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Load(t.Context(), last.Identifier()); err != nil || c.cache.lru.Len() != 0 || c.cache.size != 0 {
		t.Errorf("without a cache: %v, %d documents, %d bytes", err, c.cache.lru.Len(), c.cache.size)
	}
}
