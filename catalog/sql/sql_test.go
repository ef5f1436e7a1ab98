package sql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"modernc.org/sqlite"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/catalog/catalogtest"
	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/objectstore"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

// Any number of nodes may meet an empty database at the same time.
func TestOpenAtOnce(t *testing.T) {
	eachEngine(t, func(t *testing.T, e engine) {
		for range 5 {
			database := e(t)
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() { open(t, database, catalogtest.Store{Prefix: "file:///w/", Bucket: objectstore.NewMemory()}) })
			}
			all.Wait()
		}
	})
}

// An engine opens connections to a new database.
type engine func(t *testing.T) driver.Connector

func sqliteEngine(t *testing.T) driver.Connector {
	c := connector{"file:" + filepath.Join(t.TempDir(), "metadata.db") + "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(10000)&_txlock=immediate"}
	db := sql.OpenDB(c) // as package metadata does: the journal is switched by one alone
	defer db.Close()
	if err := db.PingContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

func postgresEngine(t *testing.T) driver.Connector {
	cfg, err := pgx.ParseConfig(lab.Postgres(t) + "&default_transaction_isolation=serializable")
	if err != nil {
		t.Fatal(err)
	}
	return stdlib.GetConnector(*cfg)
}

func eachEngine(t *testing.T, test func(t *testing.T, e engine)) {
	t.Run("sqlite", func(t *testing.T) { test(t, sqliteEngine) })
	t.Run("postgres", func(t *testing.T) { test(t, postgresEngine) })
}

func TestConformance(t *testing.T) {
	eachEngine(t, func(t *testing.T, e engine) {
		catalogtest.Run(t, func(t *testing.T) catalogtest.Fixture {
			store := catalogtest.Store{Prefix: "file:///w/", Bucket: objectstore.NewMemory()}
			database := e(t)
			faults := &faults{}
			return catalogtest.Fixture{
				Catalog:     open(t, faultyConnector{database, faults}, store),
				Other:       open(t, database, store),
				Locator:     store,
				LoseAnswer:  func() { faults.next.Store(loseAnswer) },
				LoseRequest: func() { faults.next.Store(loseRequest) },
			}
		})
	})
}

func open(t *testing.T, database driver.Connector, store catalogtest.Store) *Catalog {
	t.Helper()
	db := sql.OpenDB(database)
	t.Cleanup(func() { db.Close() })
	c, err := Open(t.Context(), db, store, Config{Warehouse: "file:///w/house"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A namespace that is dropped while a table is made in it, at the same time, is there with
// the table or is gone without.
func TestDropNamespaceMeetsCreateTable(t *testing.T) {
	eachEngine(t, func(t *testing.T, e engine) {
		store := catalogtest.Store{Prefix: "file:///w/", Bucket: objectstore.NewMemory()}
		database := e(t)
		a, b := open(t, database, store), open(t, database, store)
		schema := iceberg.NewSchema(0, iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64})
		for i := range 30 {
			namespace := table.Identifier{fmt.Sprint("n", i)}
			if err := a.CreateNamespace(t.Context(), namespace, nil); err != nil {
				t.Fatal(err)
			}
			id := append(namespace, "t")
			meta, err := table.NewMetadata(schema, iceberg.UnpartitionedSpec, table.UnsortedSortOrder, fmt.Sprint("file:///w/house/t", i), nil)
			if err != nil {
				t.Fatal(err)
			}
			var made, dropped error
			var both sync.WaitGroup
			both.Go(func() { _, made = a.insert(t.Context(), id, meta) })
			both.Go(func() { dropped = b.DropNamespace(t.Context(), namespace) })
			both.Wait()
			switch {
			case made == nil && errors.Is(dropped, ErrNamespaceNotEmpty):
			case dropped == nil && errors.Is(made, ErrNoNamespace):
			default:
				t.Fatalf("round %d: create %v, drop %v", i, made, dropped)
			}
		}
	})
}

// A change is answered when it is durable; if that fails nobody may take it for undone.
func TestChangesAreDurableBeforeTheAnswer(t *testing.T) {
	store := catalogtest.Store{Prefix: "file:///w/", Bucket: objectstore.NewMemory()}
	c := open(t, sqliteEngine(t), store)
	var durable error
	calls := 0
	c.cfg.Durable = func(context.Context) error { calls++; return durable }
	id := table.Identifier{"n", "t"}
	if err := c.CreateNamespace(t.Context(), id[:1], nil); err != nil || calls != 1 {
		t.Fatalf("create namespace: %v, durable after %d calls, want 1", err, calls)
	}
	schema := iceberg.NewSchema(0, iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64})
	meta, err := table.NewMetadata(schema, iceberg.UnpartitionedSpec, table.UnsortedSortOrder, "file:///w/house/t", nil)
	if err != nil {
		t.Fatal(err)
	}
	base, err := c.insert(t.Context(), id, meta)
	if err != nil || calls != 2 {
		t.Fatalf("create table: %v, durable after %d calls, want 2", err, calls)
	}
	updates := []table.Update{table.NewSetPropertiesUpdate(iceberg.Properties{"a": "b"})}
	if _, err := c.replace(t.Context(), base, updates, uuid.New()); err != nil || calls != 3 {
		t.Fatalf("commit: %v, durable after %d calls, want 3", err, calls)
	}
	if _, err := c.replace(t.Context(), base, updates, uuid.New()); !errors.Is(err, catalog.ErrCommitConflict) || calls != 3 {
		t.Fatalf("a commit that lost: %v, durable after %d calls, want 3", err, calls)
	}
	if base, err = c.Load(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	durable = errors.New("the bucket is away")
	if _, err := c.replace(t.Context(), base, updates, uuid.New()); !errors.Is(err, catalog.ErrCommitUnknown) || !errors.Is(err, durable) {
		t.Fatalf("commit that is not durable: %v, want %v", err, catalog.ErrCommitUnknown)
	}
}

// What the layout has no room for is refused on every engine.
func TestNamespaceRefusesLongProperties(t *testing.T) {
	eachEngine(t, func(t *testing.T, e engine) {
		c := open(t, e(t), catalogtest.Store{Prefix: "file:///w/", Bucket: objectstore.NewMemory()})
		for _, value := range []string{strings.Repeat("é", maxValue+1), "a\x00b", "\xff"} {
			err := c.CreateNamespace(t.Context(), table.Identifier{"n"}, iceberg.Properties{"p": value})
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("property %.10q: %v, want %v", value, err, ErrInvalid)
			}
		}
		if err := c.CreateNamespace(t.Context(), table.Identifier{"n"}, iceberg.Properties{"p": strings.Repeat("é", maxValue)}); err != nil {
			t.Error(err)
		}
	})
}

// faults break the connection before or after the statement that commits.
type faults struct{ next atomic.Int32 }

const (
	loseAnswer  = 1
	loseRequest = 2
)

var errLost = errors.New("connection lost")

type connector struct{ dsn string }

func (c connector) Driver() driver.Driver { return &sqlite.Driver{} }

func (c connector) Connect(context.Context) (driver.Conn, error) {
	return (&sqlite.Driver{}).Open(c.dsn)
}

type faultyConnector struct {
	driver.Connector
	faults *faults
}

func (c faultyConnector) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &faultyConn{inner.(conn), c.faults}, nil
}

type conn interface {
	driver.Conn
	driver.ExecerContext
	driver.QueryerContext
}

type faultyConn struct {
	conn
	faults *faults
}

func (c *faultyConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if !strings.HasPrefix(query, "UPDATE iceberg_tables SET metadata_location") {
		return c.conn.ExecContext(ctx, query, args)
	}
	switch c.faults.next.Swap(0) {
	case loseAnswer:
		_, _ = c.conn.ExecContext(ctx, query, args)
		return nil, errLost
	case loseRequest:
		return nil, errLost
	}
	return c.conn.ExecContext(ctx, query, args)
}
