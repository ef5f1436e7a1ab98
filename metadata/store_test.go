package metadata

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tabletopic/tabletopic/internal/lab"
	"github.com/tabletopic/tabletopic/streamstore"
	"github.com/tabletopic/tabletopic/streamstore/streamstoretest"
)

// A clock that tests move by hand.
type clock struct{ ms atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.ms.Store(1_700_000_000_000)
	return c
}

func (c *clock) now() time.Time          { return time.UnixMilli(c.ms.Load()) }
func (c *clock) advance(d time.Duration) { c.ms.Add(d.Milliseconds()) }

// eachEngine runs a test on every engine. database names a new database, and the same one
// when it is opened again.
func eachEngine(t *testing.T, test func(t *testing.T, d database)) {
	t.Run("sqlite", func(t *testing.T) { test(t, newSQLite(t)) })
	t.Run("postgres", func(t *testing.T) { test(t, newPostgres(t)) })
}

func newSQLite(t *testing.T) database {
	return sqliteDatabase(filepath.Join(t.TempDir(), "metadata.db"), false)
}

func newPostgres(t *testing.T) database {
	t.Helper()
	d, _, err := parseURL(lab.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// openStore opens a database; with a clock that tests move, if c is not nil.
func openStore(t *testing.T, d database, c *clock) *Store {
	t.Helper()
	now := time.Now
	if c != nil {
		now = c.now
	}
	s, err := open(t.Context(), d, slog.New(slog.DiscardHandler), now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// register starts a life of node 1.
func register(t *testing.T, s *Store) streamstore.Node {
	t.Helper()
	node, _, err := s.RegisterNode(t.Context(), 1, streamstore.WALObject)
	if err != nil {
		t.Fatal(err)
	}
	return node
}

func TestManagers(t *testing.T) {
	for name, database := range map[string]func(*testing.T) database{"sqlite": newSQLite, "postgres": newPostgres} {
		t.Run(name, func(t *testing.T) {
			streamstoretest.RunManagers(t, func(t *testing.T) streamstoretest.Managers {
				c := newClock()
				s := openStore(t, database(t), c)
				return streamstoretest.Managers{Streams: s, Objects: s, Advance: c.advance}
			})
		})
	}
}

// The same on the database that lives in memory only.
func TestManagersInMemory(t *testing.T) {
	streamstoretest.RunManagers(t, func(t *testing.T) streamstoretest.Managers {
		s, err := Open(t.Context(), "sqlite::memory:", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		c := newClock()
		s.now = c.now
		return streamstoretest.Managers{Streams: s, Objects: s, Advance: c.advance}
	})
}

// Processes that meet a new database at the same time all open it, as one cluster.
func TestNewDatabaseIsMetByMany(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		for range 3 {
			if d.name == sqlite.name {
				d = newSQLite(t)
			}
			var all sync.WaitGroup
			stores := make([]*Store, 8)
			for i := range stores {
				all.Go(func() {
					var err error
					if stores[i], err = open(t.Context(), d, slog.New(slog.DiscardHandler), time.Now); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if t.Failed() {
				return
			}
			for _, s := range stores {
				if s.ClusterID() != stores[0].ClusterID() {
					t.Errorf("cluster ids %q and %q", s.ClusterID(), stores[0].ClusterID())
				}
			}
			for _, s := range stores {
				s.Close()
			}
		}
	})
}

// A process that meets a new SQLite database while another writes to it waits, though SQLite
// lets nobody wait who would make the journal a WAL.
func TestNewSQLiteDatabaseIsLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metadata.db")
	raw, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate") // no WAL yet
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	tx, err := raw.Begin()
	if err != nil {
		t.Fatal(err)
	}
	locked := &refusedOnce{dsn: sqliteDSN(path, false), driver: raw.Driver(), release: tx.Rollback}
	openStore(t, database{sqlite, func(map[string]string) (*sql.DB, error) { return sql.OpenDB(locked), nil }}, nil)
	if locked.err == nil {
		t.Fatal("the database was not locked")
	}
}

// refusedOnce connects to a database that is locked until it has refused somebody.
type refusedOnce struct {
	dsn     string
	driver  driver.Driver
	release func() error
	err     error // of the refusal
}

func (r *refusedOnce) Driver() driver.Driver { return r.driver }

func (r *refusedOnce) Connect(context.Context) (driver.Conn, error) {
	c, err := r.driver.Open(r.dsn)
	if err != nil && r.err == nil {
		r.err = errors.Join(err, r.release())
	}
	return c, err
}

// Streams of two stores on one database, as of two processes, keep the rules too.
func TestTwoStoresShareADatabase(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		a, b := openStore(t, d, nil), openStore(t, d, nil)
		if a.ClusterID() != b.ClusterID() || len(a.ClusterID()) != 22 {
			t.Fatalf("cluster ids %q and %q", a.ClusterID(), b.ClusterID())
		}
		first := register(t, a)
		second := register(t, b)
		if second.Epoch != first.Epoch+1 {
			t.Fatalf("epochs %d, then %d", first.Epoch, second.Epoch)
		}
		if _, err := a.CreateStreams(t.Context(), first, 1); err == nil {
			t.Fatal("the first process still creates streams")
		}
	})
}
