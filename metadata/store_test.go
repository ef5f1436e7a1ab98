package metadata

import (
	"log/slog"
	"path/filepath"
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
