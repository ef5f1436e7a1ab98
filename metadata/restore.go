package metadata

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/objectstore"
)

// What a restore adds to counters and epochs: numbers that the lost database gave away after
// the snapshot, without that the bucket shows them, are not given again. Entries of the
// change log leave a gap too, which tells those who follow it to read the state anew.
const (
	restoreGap       = 1 << 32
	restoreSchemaGap = 1 << 10 // ids of schemas have 31 bits, and every acknowledged one is in the snapshot
)

// ErrDatabaseExists says that a restore would overwrite a database.
var ErrDatabaseExists = errors.New("the metadata database exists already")

// Restore makes the database at url, which must not exist or be empty, from the newest
// snapshot in the bucket, as the next generation: the old database, should it still be in
// use, acknowledges nothing from here on. tables are the statements that make the tables of
// the SQL catalog. Records that were acknowledged after the snapshot are in the WALs, which
// the nodes recover when they start. A restore that failed may be repeated.
func Restore(ctx context.Context, url string, bucket objectstore.Bucket, tables []string, log *slog.Logger) (SnapshotInfo, error) {
	info, err := restore(objectstore.For(ctx, objectstore.ForMetadata), url, bucket, tables, log)
	if err != nil {
		return info, fmt.Errorf("restore metadata: %w", err)
	}
	return info, nil
}

func restore(ctx context.Context, url string, bucket objectstore.Bucket, tables []string, log *slog.Logger) (info SnapshotInfo, err error) {
	d, path, err := parseURL(url)
	if err != nil {
		return info, err
	}
	if d.open == nil {
		return info, errors.New("a database in memory would be gone at once: name a file or a server")
	}
	newest, found, err := newestGeneration(ctx, bucket)
	if err != nil {
		return info, err
	}
	if !found {
		return info, errors.New("the bucket has no metadata of a cluster: is it the right one, with the right prefix?")
	}
	if d.name == sqlite.name {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return info, err
		}
	}
	s, err := connect(d, log, time.Now)
	if err != nil {
		return info, err
	}
	defer s.Close()
	if err := s.checkServer(ctx); err != nil {
		return info, err
	}
	if err := s.checkEmpty(ctx); err != nil {
		return info, err
	}
	next := generation{number: newest.number + 1, cluster: newest.cluster, nonce: newNonce()}
	object, err := appendGeneration(nil, next)
	if err != nil {
		return info, err
	}
	// From here on the old database acknowledges nothing; only now its last snapshot is certain.
	if err := bucket.PutIfAbsent(ctx, generationKey(next.number), object); err != nil {
		if errors.Is(err, objectstore.ErrExists) {
			err = fmt.Errorf("another restore came first: %w", err)
		}
		return info, fmt.Errorf("create %s: %w", generationKey(next.number), err)
	}
	key, data, err := lastSnapshot(ctx, bucket, newest.number)
	if err != nil {
		return info, err
	}
	if info, err = s.load(ctx, data, next, tables); err != nil {
		return info, fmt.Errorf("%s: %w", key, err)
	}
	return info, nil
}

// checkEmpty refuses a database that a cluster has used.
func (s *Store) checkEmpty(ctx context.Context) error {
	var n int
	if err := s.writer.QueryRowContext(ctx, s.dialect.hasTable, "cluster").Scan(&n); err != nil || n == 0 {
		return err
	}
	if err := s.writer.QueryRowContext(ctx, `SELECT count(*) FROM cluster`).Scan(&n); err != nil || n == 0 {
		return err
	}
	return fmt.Errorf("%w: a restore makes a new one; if it is lost or too old, move it away", ErrDatabaseExists)
}

// lastSnapshot reads the newest snapshot after its bases; a generation whose restore did not get far has
// none.
func lastSnapshot(ctx context.Context, bucket objectstore.Bucket, newest int64) (key string, all [][]byte, err error) {
	for g := newest; g > 0; g-- {
		number, err := newestSnapshot(ctx, bucket, g)
		if err != nil {
			return "", nil, err
		}
		if number == 0 {
			continue
		}
		key := snapshotKey(g, number)
		data, err := bucket.Get(ctx, key, 0, -1)
		if err != nil {
			return "", nil, fmt.Errorf("read %s: %w", key, err)
		}
		info, _, err := parseSnapshotHeader(data)
		if err != nil {
			return "", nil, fmt.Errorf("read %s: %w", key, err)
		}
		for i, base := range info.bases {
			data, err := readBase(ctx, bucket, info, i)
			if err != nil {
				return "", nil, fmt.Errorf("read %s, which %s is a difference to: %w", snapshotKey(g, base.number), key, err)
			}
			all = append(all, data)
		}
		return key, append(all, data), nil
	}
	return "", nil, errors.New("the bucket has no snapshot of the metadata")
}

// readBase reads a base of a snapshot, which must be the one that it names.
func readBase(ctx context.Context, bucket objectstore.Bucket, of SnapshotInfo, i int) ([]byte, error) {
	want := of.bases[i]
	data, err := bucket.Get(ctx, snapshotKey(of.Generation, want.number), 0, -1)
	if err != nil {
		return nil, err
	}
	info, _, err := parseSnapshotHeader(data)
	if err != nil {
		return nil, err
	}
	meant := info.Cluster == of.Cluster && info.Generation == of.Generation && info.Schema == of.Schema && info.Number == want.number &&
		info.Change == want.change && slices.Equal(info.bases, of.bases[:i])
	if !meant && !invariant.Off("metadata-base-meant") {
		return nil, fmt.Errorf("%w: it is not the base that is meant", errCorruptSnapshot)
	}
	return data, nil
}

// load fills an empty database with a snapshot, which comes after its bases, all or nothing, and brings it
// to the newest version.
func (s *Store) load(ctx context.Context, snapshots [][]byte, g generation, tables []string) (SnapshotInfo, error) {
	info, _, err := parseSnapshotHeader(snapshots[len(snapshots)-1])
	if err != nil {
		return info, err
	}
	all, err := loadMigrations(migrations)
	if err != nil {
		return info, err
	}
	if info.Schema < 1 || info.Schema > len(all) {
		return info, fmt.Errorf("the snapshot has version %d of the metadata, this program knows versions up to %d: run a newer tabletopic", info.Schema, len(all))
	}
	if info.Cluster != g.cluster {
		return info, fmt.Errorf("the snapshot is of cluster %s, the bucket of %s", info.Cluster, g.cluster)
	}
	if _, err := migrate(ctx, s.writer, s.dialect, all[:info.Schema], s.now()); err != nil {
		return info, err
	}
	for _, statement := range tables {
		if _, err := s.writer.ExecContext(ctx, statement); err != nil {
			return info, fmt.Errorf("create catalog tables: %w", err)
		}
	}
	err = s.update(ctx, "insert", func(t *tx) error {
		for i, data := range snapshots {
			l := &loader{tx: t, difference: i > 0}
			if _, err := parseSnapshot(data, snapshotVisitor{table: l.table, row: l.row}); err != nil {
				return err
			}
		}
		return t.begin(g)
	})
	if err != nil {
		return info, err
	}
	_, err = migrate(ctx, s.writer, s.dialect, all, s.now())
	return info, err
}

// begin makes the rows of a snapshot those of a new generation.
func (t *tx) begin(g generation) error {
	for _, q := range []string{
		fmt.Sprintf(`UPDATE counter SET value = value + %d WHERE name <> 'schema'`, int64(restoreGap)),
		fmt.Sprintf(`UPDATE counter SET value = value + %d WHERE name = 'schema'`, restoreSchemaGap),
		fmt.Sprintf(`UPDATE lease SET epoch = epoch + %d, expires = 0`, int64(restoreGap)),
		`DELETE FROM generation`,
	} {
		if _, err := t.exec(q); err != nil {
			return err
		}
	}
	_, err := t.exec(`INSERT INTO generation (one, number, nonce) VALUES (1, $1, $2)`, g.number, g.nonce)
	return err
}

// insertInto is the statement for a row. Names come from an object in the bucket.
func insertInto(name string, columns []string) (string, error) {
	parameters := make([]string, len(columns))
	for i, c := range append([]string{name}, columns...) {
		if c == "" || strings.Trim(c, "abcdefghijklmnopqrstuvwxyz_0123456789") != "" {
			return "", fmt.Errorf("%w: name %q", errCorruptSnapshot, c)
		}
		if i > 0 {
			parameters[i-1] = fmt.Sprint("$", i)
		}
	}
	return fmt.Sprintf(`INSERT INTO %s (%s) VALUES (%s)`, name, strings.Join(columns, ", "), strings.Join(parameters, ", ")), nil
}
