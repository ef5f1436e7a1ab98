package metadata

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"
)

// migrations holds NNNN_name.sql, numbered from 1 without gap. A file that a release has
// shipped never changes: its hash is kept with the database.
//
//go:embed migrations/*.sql
var migrations embed.FS

type migration struct {
	version int
	name    string
	text    string
}

func (m migration) hash() string {
	h := sha256.Sum256([]byte(m.text))
	return hex.EncodeToString(h[:])
}

func loadMigrations(dir fs.FS) ([]migration, error) {
	names, err := fs.Glob(dir, "migrations/*.sql")
	if err != nil {
		return nil, err
	}
	var all []migration
	for i, name := range names {
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return nil, err
		}
		base := strings.TrimSuffix(path.Base(name), ".sql")
		number, _, _ := strings.Cut(base, "_")
		if v, err := strconv.Atoi(number); err != nil || v != i+1 {
			return nil, fmt.Errorf("migration %s: want number %04d", name, i+1)
		}
		all = append(all, migration{version: i + 1, name: base, text: string(text)})
	}
	return all, nil
}

// migrate brings the database to the newest version, all in one transaction, so that a
// crash or a second process leaves no version half applied. It returns how many it applied.
func migrate(ctx context.Context, db *sql.DB, d dialect, all []migration, now time.Time) (applied int, err error) {
	t, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, fmt.Errorf("begin migration: %w", err)
	}
	defer t.Rollback()
	if err := d.lock(ctx, t); err != nil {
		return 0, fmt.Errorf("begin migration: %w", err)
	}
	if _, err := t.ExecContext(ctx, d.ddl(`CREATE TABLE IF NOT EXISTS migration (
		version BIGINT NOT NULL PRIMARY KEY,
		name    TEXT   NOT NULL,
		hash    TEXT   NOT NULL,
		applied BIGINT NOT NULL
	) /*clustered*/`)); err != nil {
		return 0, fmt.Errorf("create migration table: %w", err)
	}
	done, err := appliedMigrations(ctx, t, all)
	if err != nil {
		return 0, err
	}
	for _, m := range all[done:] {
		if _, err := t.ExecContext(ctx, d.ddl(m.text)); err != nil {
			return 0, fmt.Errorf("migration %s: %w", m.name, err)
		}
		if _, err := t.ExecContext(ctx, `INSERT INTO migration (version, name, hash, applied) VALUES ($1, $2, $3, $4)`,
			m.version, m.name, m.hash(), now.UnixMilli()); err != nil {
			return 0, fmt.Errorf("migration %s: %w", m.name, err)
		}
	}
	return len(all) - done, t.Commit()
}

// appliedMigrations returns how many of all the database has, and refuses one that went
// another way.
func appliedMigrations(ctx context.Context, t *sql.Tx, all []migration) (int, error) {
	rows, err := t.QueryContext(ctx, `SELECT version, name, hash FROM migration ORDER BY version`)
	if err != nil {
		return 0, fmt.Errorf("read migrations: %w", err)
	}
	defer rows.Close()
	done := 0
	for rows.Next() {
		var version int
		var name, hash string
		if err := rows.Scan(&version, &name, &hash); err != nil {
			return 0, fmt.Errorf("read migrations: %w", err)
		}
		if version > len(all) {
			return 0, fmt.Errorf("the metadata database has version %d (%s), this program knows versions up to %d: run a newer tabletopic", version, name, len(all))
		}
		if m := all[version-1]; version != done+1 || m.hash() != hash {
			return 0, fmt.Errorf("the metadata database was made by a changed migration %s: it does not belong to this program", name)
		}
		done = version
	}
	return done, rows.Err()
}
