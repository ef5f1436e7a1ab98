package metadata

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

// A dialect is all that differs between the engines; every statement elsewhere is common SQL
// with $1 parameters, upserts and RETURNING.
//
// Both engines let one transaction of changes run at a time: SQLite by BEGIN IMMEDIATE,
// PostgreSQL by an advisory lock that each takes before its first statement, in isolation
// READ COMMITTED. Each statement then sees what all transactions before have committed, so
// that the guards hold as if changes ran one after another, for that is what they do; no
// change fails because of another, and ids and the change log are dense. Changes happen per
// uploaded object or administrative act: the lock is not what bounds a cluster.
type dialect struct {
	name string
	// begin is the first statement of a transaction of changes, if there is one.
	begin string
	// snapshot is a transaction that reads several statements' rows of one moment, and does
	// not wait for writers.
	snapshot sql.TxOptions
	// blob and clustered are the words for BYTEA and for a table stored in its primary key.
	blob, clustered string
	// hasTable counts the tables of the name $1.
	hasTable string
}

// A transaction of SQLite reads one moment by itself; of kind IMMEDIATE it would wait.
var sqlite = dialect{
	name: "sqlite", snapshot: sql.TxOptions{ReadOnly: true}, blob: "BLOB", clustered: "WITHOUT ROWID",
	hasTable: `SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = $1`,
}

// The number of the lock is "TableTop"; it is of the database, not of the server.
var postgres = dialect{
	name: "postgres", begin: `SELECT pg_advisory_xact_lock(6080249189622902640)`,
	snapshot: sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}, blob: "BYTEA",
	hasTable: `SELECT count(*) FROM information_schema.tables WHERE table_schema = current_schema() AND table_name = $1`,
}

// ddl puts a migration into the words of the engine.
func (d dialect) ddl(text string) string {
	return strings.NewReplacer("BYTEA", d.blob, "/*clustered*/", d.clustered).Replace(text)
}

// A database is where the rows are: it opens pools of connections.
type database struct {
	dialect
	open func(settings map[string]string) (*sql.DB, error)
}

// sqliteDatabase is a file, or lives in memory under a name. A file's journal is a WAL, and a
// commit returns only after fsync; connections set that on their own.
func sqliteDatabase(path string, memory bool) database {
	dsn := sqliteDSN(path, memory)
	return database{sqlite, func(map[string]string) (*sql.DB, error) { return openSQLite(dsn) }}
}

const (
	busyTimeout = 10 * time.Second // that a connection waits for a lock of SQLite
	busyPause   = 10 * time.Millisecond
	sqliteBusy  = 5 // SQLITE_BUSY: the database is locked
)

func sqliteDSN(path string, memory bool) string {
	pragmas := []string{fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds())}
	q := url.Values{"_txlock": {"immediate"}}
	if memory {
		q.Set("vfs", "memdb") // it has no WAL: a pragma that asks for one would only wait for whoever commits
	} else {
		pragmas = append(pragmas, "journal_mode(WAL)", "synchronous(FULL)", "cache_size(-16384)")
	}
	q["_pragma"] = pragmas
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + q.Encode()
}

// postgresSettings bound how long a process that stopped, or whose machine is gone, can keep
// the others waiting: the server ends its transaction, and with it the lock.
var postgresSettings = map[string]string{
	"application_name":                    "tabletopic",
	"lock_timeout":                        "20s",
	"idle_in_transaction_session_timeout": "10s",
	"tcp_keepalives_idle":                 "10",
	"tcp_keepalives_interval":             "5",
	"tcp_keepalives_count":                "3",
}

func postgresDatabase(u string) (database, error) {
	if _, err := pgx.ParseConfig(u); err != nil {
		return database{}, fmt.Errorf("metadata URL: %w", err) // it leaves the password out
	}
	return database{postgres, func(settings map[string]string) (*sql.DB, error) {
		cfg, err := pgx.ParseConfig(u)
		if err != nil {
			return nil, err
		}
		for _, all := range []map[string]string{postgresSettings, settings} {
			for k, v := range all {
				cfg.RuntimeParams[k] = v
			}
		}
		return stdlib.OpenDB(*cfg), nil
	}}, nil
}

// parseURL finds the database that a URL names.
func parseURL(u string) (d database, path string, err error) {
	scheme, rest, ok := strings.Cut(u, ":")
	switch {
	case ok && (scheme == "postgres" || scheme == "postgresql") && strings.HasPrefix(rest, "//"):
		d, err = postgresDatabase(u)
		return d, "", err
	case !ok || scheme != "sqlite" || rest == "":
		return d, "", fmt.Errorf("metadata URL %q: want sqlite::memory:, sqlite:/path/to/metadata.db or postgres://USER:PASSWORD@HOST:PORT/DATABASE", withoutPassword(u))
	case rest == ":memory:":
		return d, "", nil
	}
	return sqliteDatabase(rest, false), rest, nil
}

// withoutPassword is a metadata URL as logs and errors may show it.
func withoutPassword(u string) string {
	if parsed, err := url.Parse(u); err == nil && parsed.User != nil {
		return parsed.Redacted()
	}
	return u
}

// lock makes t the one transaction of changes.
func (d dialect) lock(ctx context.Context, t *sql.Tx) error {
	if d.begin == "" || invariant.Off("metadata-one-writer") {
		return nil
	}
	if _, err := t.ExecContext(ctx, d.begin); err != nil {
		return fmt.Errorf("wait for the lock of changes: %w", err)
	}
	return nil
}
