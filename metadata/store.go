package metadata

import (
	"context"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	driver "modernc.org/sqlite" // "sqlite"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/streamstore"
)

// maxReaders bounds the connections that read, and those that [Store.DB] hands out.
const maxReaders = 8

// A Store is an open metadata database. It is safe for concurrent use, and several stores,
// also of several processes, may share one database.
type Store struct {
	writer  *sql.DB // one connection: writers of this process queue here, in order
	readers *sql.DB
	shared  *sql.DB // what DB hands out
	dialect dialect
	log     *slog.Logger
	cluster string
	now     func() time.Time
	backup  atomic.Pointer[Backup] // nil if the bucket keeps no copy
	queue   *queue                 // of changes that share transactions
}

// Open opens or creates the database at url and brings it to the newest version:
// "sqlite:/path/to/metadata.db", "sqlite::memory:", or "postgres://…" as libpq has it, of
// PostgreSQL 15 or later. A database of a newer version is refused.
func Open(ctx context.Context, url string, log *slog.Logger) (*Store, error) {
	d, path, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	if d.open == nil {
		d = sqliteDatabase("/"+uuid.NewString(), true) // it lives as long as the store
	} else if d.name == sqlite.name {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, fmt.Errorf("open metadata %s: %w", url, err)
		}
	}
	s, err := open(ctx, d, log, time.Now)
	if err != nil {
		return nil, fmt.Errorf("open metadata %s: %w", withoutPassword(url), err)
	}
	return s, nil
}

func open(ctx context.Context, d database, log *slog.Logger, now func() time.Time) (*Store, error) {
	s, err := connect(d, log, now)
	if err != nil {
		return nil, err
	}
	if err := s.prepare(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// connect makes a store of a database as it is.
func connect(d database, log *slog.Logger, now func() time.Time) (*Store, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Store{dialect: d.dialect, log: log, now: now, queue: newQueue()}
	var err error
	if s.writer, err = d.open(nil); err != nil {
		return nil, err
	}
	s.writer.SetMaxOpenConns(1)
	if s.readers, err = d.open(nil); err != nil {
		s.writer.Close()
		return nil, err
	}
	s.readers.SetMaxOpenConns(maxReaders)
	s.readers.SetMaxIdleConns(maxReaders)
	if d.name == sqlite.name {
		s.shared = s.readers
		return s, nil
	}
	// Its users have no part in the lock of changes: their statements are serializable.
	if s.shared, err = d.open(map[string]string{"default_transaction_isolation": "serializable"}); err != nil {
		s.writer.Close()
		s.readers.Close()
		return nil, err
	}
	s.shared.SetMaxOpenConns(maxReaders)
	s.shared.SetMaxIdleConns(maxReaders)
	return s, nil
}

// prepare migrates the database and reads the cluster's id, which the first opener draws.
func (s *Store) prepare(ctx context.Context) error {
	all, err := loadMigrations(migrations)
	if err != nil {
		return err
	}
	if err := s.firstConnection(ctx); err != nil {
		return err
	}
	if err := s.checkServer(ctx); err != nil {
		return err
	}
	applied, err := migrate(ctx, s.writer, s.dialect, all, s.now())
	if err != nil {
		return err
	}
	if applied > 0 {
		s.log.LogAttrs(ctx, slog.LevelInfo, "metadata database migrated", slog.Int("version", len(all)), slog.Int("applied", applied))
	}
	drawn := uuid.New()
	return s.update(ctx, "read cluster id", func(t *tx) error {
		if _, err := t.exec(`INSERT INTO cluster (one, id) VALUES (1, $1) ON CONFLICT (one) DO NOTHING`,
			base64.RawURLEncoding.EncodeToString(drawn[:])); err != nil {
			return err
		}
		return t.QueryRowContext(ctx, `SELECT id FROM cluster`).Scan(&s.cluster)
	})
}

// firstConnection connects. Of processes that meet a new SQLite database at the same time one
// makes its journal a WAL; SQLite tells the others that the database is locked, and does not
// let them wait, because each may hold a lock that another waits for.
func (s *Store) firstConnection(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, busyTimeout)
	defer cancel()
	for {
		err := s.writer.PingContext(ctx)
		if e, ok := errors.AsType[*driver.Error](err); !ok || e.Code()&0xff != sqliteBusy {
			return err
		}
		select {
		case <-time.After(busyPause):
		case <-ctx.Done():
			return err
		}
	}
}

// checkServer refuses a PostgreSQL that cannot keep the promises.
func (s *Store) checkServer(ctx context.Context) error {
	if s.dialect.name != postgres.name {
		return nil
	}
	var version int
	var synchronous string
	var standby bool
	err := s.writer.QueryRowContext(ctx, `SELECT current_setting('server_version_num')::int, current_setting('synchronous_commit'), pg_is_in_recovery()`).
		Scan(&version, &synchronous, &standby)
	switch {
	case err != nil:
		return err
	case version < 150000:
		return fmt.Errorf("the server is PostgreSQL %d, want 15 or later", version/10000)
	case synchronous == "off":
		return errors.New("the server has synchronous_commit off, and would lose acknowledged records with its machine: set it on, at least for this role or database")
	case standby:
		return errors.New("the server is a standby: name the primary, or all servers with target_session_attrs=read-write")
	}
	return nil
}

// Close closes the database. Calls that are under way fail.
func (s *Store) Close() error {
	err := errors.Join(s.readers.Close(), s.writer.Close())
	if s.shared != s.readers {
		err = errors.Join(err, s.shared.Close())
	}
	return err
}

// ClusterID is the id of the cluster, drawn when the database was made: 22 characters, as
// Kafka's are.
func (s *Store) ClusterID() string { return s.cluster }

// DB gives the SQL catalog a home for its own tables. Statements on it are serializable:
// with SQLite they wait up to 10 s for the write lock; with PostgreSQL one may fail with
// SQLSTATE 40001, has then changed nothing, and is to be tried again.
func (s *Store) DB() *sql.DB { return s.shared }

// A tx is one transaction of changes.
type tx struct {
	*sql.Tx
	ctx  context.Context
	s    *Store
	last int64 // number of the last change, 0 if it has made none
}

// ExecContext is that of sql.Tx, for text that every database can hold.
func (t *tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := checkText(args); err != nil {
		return nil, err
	}
	return t.Tx.ExecContext(ctx, query, args...)
}

// checkText refuses text that PostgreSQL cannot hold: SQLite could, and its snapshots could then not be
// restored into the other.
func checkText(args []any) error {
	for _, a := range args {
		s, ok := a.(string)
		if ok && (strings.IndexByte(s, 0) >= 0 || !utf8.ValidString(s)) && !invariant.Off("metadata-text") {
			return fmt.Errorf("%w: %.100q", ErrInvalidText, s)
		}
	}
	return nil
}

// update runs fn as one transaction. After an error of the commit itself the outcome is
// unknown; every change is made such that repeating it is safe.
func (s *Store) update(ctx context.Context, what string, fn func(*tx) error) error {
	t, err := s.writer.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("%s: begin: %w", what, err)
	}
	defer t.Rollback()
	if err := s.dialect.lock(ctx, t); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := fn(&tx{Tx: t, ctx: ctx, s: s}); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := t.Commit(); err != nil {
		return fmt.Errorf("%s: commit: %w", what, err)
	}
	return nil
}

// updateAs is update on behalf of a node, which must be the newest life of its id.
func (s *Store) updateAs(ctx context.Context, node streamstore.Node, what string, fn func(*tx) error) error {
	return s.update(ctx, what, func(t *tx) error {
		if err := t.checkNode(node); err != nil {
			return err
		}
		return fn(t)
	})
}

// updateDurably is update of what must be in the bucket before it is acknowledged. If
// waiting for that fails the change was made, but may be lost with the database.
func (s *Store) updateDurably(ctx context.Context, what string, fn func(*tx) error) error {
	var last int64
	err := s.update(ctx, what, func(t *tx) error {
		err := fn(t)
		last = t.last
		return err
	})
	if err != nil {
		return err
	}
	if err := s.durable(ctx, last); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// updateDurablyAs is updateDurably on behalf of a node.
func (s *Store) updateDurablyAs(ctx context.Context, node streamstore.Node, what string, fn func(*tx) error) error {
	return s.updateDurably(ctx, what, func(t *tx) error {
		if err := t.checkNode(node); err != nil {
			return err
		}
		return fn(t)
	})
}

func (t *tx) checkNode(node streamstore.Node) error { return checkNode(t.ctx, t, node) }

func checkNode(ctx context.Context, db interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}, node streamstore.Node) error {
	var epoch int64
	err := db.QueryRowContext(ctx, `SELECT epoch FROM node WHERE id = $1`, node.ID).Scan(&epoch)
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("node %d was never registered: %w", node.ID, streamstore.ErrNodeFenced)
	}
	if err != nil {
		return err
	}
	if epoch != node.Epoch && !invariant.Off("metadata-node-epoch") {
		return fmt.Errorf("node %d epoch %d, newest is %d: %w", node.ID, node.Epoch, epoch, streamstore.ErrNodeFenced)
	}
	return nil
}

// exec runs a statement and returns the number of rows that it changed.
func (t *tx) exec(query string, args ...any) (int64, error) {
	r, err := t.ExecContext(t.ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// next takes n ids from a counter and returns the first.
func (t *tx) next(counter string, n int64) (int64, error) {
	var last int64
	err := t.QueryRowContext(t.ctx, `UPDATE counter SET value = value + $1 WHERE name = $2 RETURNING value`, n, counter).Scan(&last)
	if err != nil {
		return 0, fmt.Errorf("counter %s: %w", counter, err)
	}
	return last - n + 1, nil
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}
