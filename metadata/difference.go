package metadata

import (
	"context"
	"database/sql"
	"slices"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

// A snapshot comes with each registration of a schema, and there may be hundreds of thousands of them. So
// of the tables of the registry a snapshot has the subjects alone that the change log names since an
// earlier snapshot, its last base, which may be a difference itself. The bases of a snapshot become smaller
// by half, at least, one after the other: so a subject that changed is written again as often as the
// logarithm of their number says, and a restore reads as many objects.

// leastBase is of how many subjects a snapshot is that others are differences to. A smaller one saves less
// than the object costs.
const leastBase = 32

// changedSubjects are the subjects that changed after the change $1.
const changedSubjects = `SELECT subject FROM change_log WHERE seq > $1 AND kind = 'schema'`

// differenceQueries are what a difference has of the tables of the registry, which all other snapshots
// have in whole.
var differenceQueries = map[string]string{
	"subject":           `SELECT * FROM subject WHERE name IN (` + changedSubjects + `)`,
	"subject_config":    `SELECT * FROM subject_config WHERE subject IN (` + changedSubjects + `)`,
	"subject_version":   `SELECT * FROM subject_version WHERE subject IN (` + changedSubjects + `)`,
	"subject_reference": `SELECT * FROM subject_reference WHERE subject IN (` + changedSubjects + `)`,
	"schema":            `SELECT * FROM schema WHERE id IN (SELECT schema_id FROM subject_version WHERE subject IN (` + changedSubjects + `))`,
}

// chooseBases completes info: the bases of the next snapshot, and of how many subjects it has rows.
func (b *Backup) chooseBases(ctx context.Context, t *sql.Tx, info *SnapshotInfo) error {
	bases := slices.Clone(b.last.bases)
	if b.last.subjects >= b.cfg.leastBase && len(bases) < maxSnapshotBases {
		bases = append(bases, snapshotBase{b.last.Number, b.last.Change, b.last.subjects})
	}
	var first int64
	if err := t.QueryRowContext(ctx, `SELECT coalesce(min(seq), 0) FROM change_log`).Scan(&first); err != nil {
		return err
	}
	for ; len(bases) > 0 && b.last.Schema == info.Schema; bases = bases[:len(bases)-1] {
		last := bases[len(bases)-1]
		if last.change < first-1 && !invariant.Off("metadata-difference-reaches") {
			continue // the change log does not say all that changed
		}
		if err := t.QueryRowContext(ctx, `SELECT count(DISTINCT subject) FROM change_log WHERE seq > $1 AND kind = 'schema'`, last.change).Scan(&info.subjects); err != nil {
			return err
		}
		if info.subjects <= last.subjects/2 {
			info.bases = bases
			return nil
		}
	}
	return t.QueryRowContext(ctx, `SELECT count(*) FROM subject`).Scan(&info.subjects)
}

// copySchemas writes the tables of the registry, or what a snapshot has of them beyond its bases.
func copySchemas(ctx context.Context, q queryer, info SnapshotInfo, w *snapshotWriter) error {
	whole := len(info.bases) == 0
	var since []any
	if !whole {
		since = []any{info.bases[len(info.bases)-1].change}
		if err := copyRows(ctx, q, changedSubject, w, `SELECT DISTINCT subject FROM change_log WHERE seq > $1 AND kind = 'schema'`, since...); err != nil {
			return err
		}
	}
	for _, name := range snapshotTables {
		query, ok := differenceQueries[name]
		if !ok {
			continue
		}
		if whole {
			query = `SELECT * FROM ` + name
		}
		if err := copyRows(ctx, q, name, w, query, since...); err != nil {
			return err
		}
	}
	return nil
}

// A loader fills the tables of an empty database from a snapshot, after those that it is a difference to.
type loader struct {
	*tx
	difference bool
	insert     string // for the rows of the table that is read; "" if they are names of subjects that changed
}

// table begins a table: what it has goes, unless the rows that come are beside those of the bases.
func (l *loader) table(name string, columns []string) (err error) {
	if l.insert = ""; name == changedSubject && l.difference {
		return nil
	}
	if l.insert, err = insertInto(name, columns); err != nil {
		return err
	}
	query := `DELETE FROM ` + name
	if l.difference && differenceQueries[name] != "" {
		if name != "schema" {
			return nil
		}
		// Those of the subjects that changed, if they are no others' too, come anew, or are gone.
		l.insert += ` ON CONFLICT (id) DO NOTHING`
		query += ` WHERE NOT EXISTS (SELECT 1 FROM subject_version WHERE schema_id = schema.id)`
	}
	_, err = l.exec(query)
	return err
}

func (l *loader) row(values []any) error {
	if l.insert != "" {
		_, err := l.exec(l.insert, values...)
		return err
	}
	for _, query := range []string{
		`DELETE FROM subject WHERE name = $1`, `DELETE FROM subject_config WHERE subject = $1`,
		`DELETE FROM subject_version WHERE subject = $1`, `DELETE FROM subject_reference WHERE subject = $1`,
	} {
		if _, err := l.exec(query, values...); err != nil {
			return err
		}
	}
	return nil
}
