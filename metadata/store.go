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
	"time"

	"github.com/google/uuid"
	_ "modernc.org/sqlite" // the driver "sqlite"

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
	dialect dialect
	log     *slog.Logger
	cluster string
	now     func() time.Time
}

// Open opens or creates the database at url, "sqlite:/path/to/metadata.db" or
// "sqlite::memory:", and brings it to the newest version. A database of a newer version is
// refused.
func Open(ctx context.Context, url string, log *slog.Logger) (*Store, error) {
	path, memory, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	if memory {
		path = "/" + uuid.NewString() // the name of a database that lives as long as the store
	} else if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("open metadata %s: %w", url, err)
	}
	s, err := open(ctx, sqliteDSN(path, memory), log, time.Now)
	if err != nil {
		return nil, fmt.Errorf("open metadata %s: %w", url, err)
	}
	return s, nil
}

func open(ctx context.Context, dsn string, log *slog.Logger, now func() time.Time) (*Store, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Store{dialect: sqlite, log: log, now: now}
	var err error
	if s.writer, err = sql.Open(s.dialect.driver, dsn); err != nil {
		return nil, err
	}
	s.writer.SetMaxOpenConns(1)
	if s.readers, err = sql.Open(s.dialect.driver, dsn); err != nil {
		s.writer.Close()
		return nil, err
	}
	s.readers.SetMaxOpenConns(maxReaders)
	s.readers.SetMaxIdleConns(maxReaders)
	if err := s.prepare(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// prepare migrates the database and reads the cluster's id, which the first opener draws.
func (s *Store) prepare(ctx context.Context) error {
	all, err := loadMigrations(migrations)
	if err != nil {
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

// Close closes the database. Calls that are under way fail.
func (s *Store) Close() error {
	return errors.Join(s.readers.Close(), s.writer.Close())
}

// ClusterID is the id of the cluster, drawn when the database was made: 22 characters, as
// Kafka's are.
func (s *Store) ClusterID() string { return s.cluster }

// DB gives the SQL catalog a home for its own tables. Transactions on it take the write
// lock when they begin and wait up to 10 s for it.
func (s *Store) DB() *sql.DB { return s.readers }

// A tx is one transaction of changes.
type tx struct {
	*sql.Tx
	ctx context.Context
	s   *Store
}

// update runs fn as one transaction. After an error of the commit itself the outcome is
// unknown; every change is made such that repeating it is safe.
func (s *Store) update(ctx context.Context, what string, fn func(*tx) error) error {
	t, err := s.writer.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("%s: begin: %w", what, err)
	}
	defer t.Rollback()
	if err := fn(&tx{t, ctx, s}); err != nil {
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

func (t *tx) checkNode(node streamstore.Node) error {
	var epoch int64
	err := t.QueryRowContext(t.ctx, `SELECT epoch FROM node WHERE id = $1`+t.s.dialect.lockRow, node.ID).Scan(&epoch)
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
