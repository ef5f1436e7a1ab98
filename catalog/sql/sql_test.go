package sql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"modernc.org/sqlite"

	"github.com/tabletopic/tabletopic/catalog/catalogtest"
	"github.com/tabletopic/tabletopic/objectstore"
)

func TestConformance(t *testing.T) {
	catalogtest.Run(t, func(t *testing.T) catalogtest.Fixture {
		store := catalogtest.Store{Prefix: "file:///w/", Bucket: objectstore.NewMemory()}
		path := filepath.Join(t.TempDir(), "metadata.db")
		faults := &faults{}
		return catalogtest.Fixture{
			Catalog:     open(t, path, store, faults),
			Other:       open(t, path, store, nil),
			Locator:     store,
			LoseAnswer:  func() { faults.next.Store(loseAnswer) },
			LoseRequest: func() { faults.next.Store(loseRequest) },
		}
	})
}

func open(t *testing.T, path string, store catalogtest.Store, f *faults) *Catalog {
	t.Helper()
	db := sql.OpenDB(connector{dsn: "file:" + path + "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(10000)&_txlock=immediate", faults: f})
	t.Cleanup(func() { db.Close() })
	c, err := Open(t.Context(), db, store, Config{Warehouse: "file:///w/house"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// faults break the connection before or after the statement that commits.
type faults struct{ next atomic.Int32 }

const (
	loseAnswer  = 1
	loseRequest = 2
)

var errLost = errors.New("connection lost")

type connector struct {
	dsn    string
	faults *faults
}

func (c connector) Driver() driver.Driver { return &sqlite.Driver{} }

func (c connector) Connect(context.Context) (driver.Conn, error) {
	inner, err := (&sqlite.Driver{}).Open(c.dsn)
	if err != nil || c.faults == nil {
		return inner, err
	}
	return &faultyConn{inner.(sqliteConn), c.faults}, nil
}

type sqliteConn interface {
	driver.Conn
	driver.ExecerContext
	driver.QueryerContext
}

type faultyConn struct {
	sqliteConn
	faults *faults
}

func (c *faultyConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if !strings.HasPrefix(query, "UPDATE iceberg_tables SET metadata_location") {
		return c.sqliteConn.ExecContext(ctx, query, args)
	}
	switch c.faults.next.Swap(0) {
	case loseAnswer:
		_, _ = c.sqliteConn.ExecContext(ctx, query, args)
		return nil, errLost
	case loseRequest:
		return nil, errLost
	}
	return c.sqliteConn.ExecContext(ctx, query, args)
}
