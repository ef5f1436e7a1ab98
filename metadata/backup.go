package metadata

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc64"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/streamstore"
)

// Losing the database loses nothing that was acknowledged, for two rules hold:
//
//   - What cannot be found again in the bucket is in a snapshot there before it is
//     acknowledged: topics, epochs of nodes and streams, schemas, tables of the SQL catalog
//     ([Store.Durable]).
//   - What an older snapshot still needs stays in the bucket: WALs are trimmed, and objects
//     deleted, only when a snapshot that does not name them any more is there
//     ([Store.Settled]).
//
// So the newest snapshot always finds every WAL from its mark on and every object that it
// names, and the ordinary recovery of the WALs does the rest: uploads that were committed
// after the snapshot are made again from the WAL. To keep the WAL is simpler than to write
// each commit to the bucket as well, costs no request, and has no second path for recovery.
//
// Whoever writes must be the newest generation. A snapshot counts only if the next
// generation's object was absent after it was written; a restore creates that object
// before it looks for the newest snapshot. It therefore finds every snapshot that counted,
// and whatever the old database changes later is never acknowledged. Appends to a WAL
// need no such check: the restored node fences the WALs of its earlier lives.
//
// Of the schemas a snapshot may have only what changed since an earlier one, its base: see
// difference.go. A base is in the bucket as long as the newest snapshot names it.

// ErrSuperseded says that this database may not be used any more: the bucket has one that
// was restored later, or that is ahead.
var ErrSuperseded = fmt.Errorf("the metadata database was replaced by another: %w", streamstore.ErrNodeFenced)

var errBackupClosed = errors.New("the metadata backup was closed")

// BackupConfig configures the snapshots of the metadata. Zero values mean the defaults.
type BackupConfig struct {
	// Interval is how often a snapshot is taken, if something changed. 10 s if zero.
	Interval time.Duration
	// Keep is how many snapshots are kept; only the newest is needed, and its bases, which are kept
	// besides. There may be half as many more: they are deleted together, with one request. 16 if zero.
	Keep int64

	leastBase int64 // leastBase if zero
}

func (c *BackupConfig) setDefaults() {
	if c.Interval <= 0 {
		c.Interval = 10 * time.Second
	}
	if c.Keep <= 0 {
		c.Keep = 16
	}
	if c.leastBase <= 0 {
		c.leastBase = leastBase
	}
}

// A Backup keeps the bucket's copy of the metadata. Several nodes may do so for one database:
// a snapshot is created under the next number or not at all.
type Backup struct {
	s      *Store
	bucket objectstore.Bucket
	cfg    BackupConfig
	own    generation

	// The loop's own.
	last    SnapshotInfo  // newest in the bucket; Number 0 if none
	cost    time.Duration // of reading and packing the tables for it that every snapshot has in whole
	rebased bool          // snapshots that are not needed may lie anywhere: old bases, and what was not deleted when it was due

	wake       chan struct{} // cap 1: somebody waits
	cancel     context.CancelFunc
	stopped    chan struct{} // closed when the loop has returned
	superseded chan struct{} // closed when err is ErrSuperseded

	mu      sync.Mutex
	started int64         // guarded by mu; snapshots begun
	done    int64         // guarded by mu; the last one that counts
	change  int64         // guarded by mu; the last change that it has
	moved   chan struct{} // guarded by mu; closed and replaced when done or err changes
	err     error         // guarded by mu; why there will be no more
}

// Backup proves that this database is the one that may write to the bucket, which its first
// user makes it, and begins to keep snapshots there. ErrSuperseded if it is not.
func (s *Store) Backup(ctx context.Context, bucket objectstore.Bucket, cfg BackupConfig) (*Backup, error) {
	cfg.setDefaults()
	b := &Backup{
		s: s, bucket: bucket, cfg: cfg,
		wake: make(chan struct{}, 1), stopped: make(chan struct{}), superseded: make(chan struct{}), moved: make(chan struct{}),
		rebased: true, // an earlier process may have left some
	}
	ctx = objectstore.For(ctx, objectstore.ForMetadata)
	if err := b.claim(ctx); err != nil {
		return nil, fmt.Errorf("metadata backup: %w", err)
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	b.cancel = cancel
	go b.run(run)
	s.backup.Store(b)
	return b, nil
}

// claim makes or checks the generation, and finds the newest snapshot.
func (b *Backup) claim(ctx context.Context) error {
	var err error
	if b.own, err = b.s.readGeneration(ctx); err != nil {
		return err
	}
	newest, found, err := newestGeneration(ctx, b.bucket)
	if err != nil {
		return err
	}
	if !found && b.own.number == 1 {
		data, err := appendGeneration(nil, b.own)
		if err != nil {
			return err
		}
		if err := b.bucket.PutIfAbsent(ctx, generationKey(1), data); err != nil && !errors.Is(err, objectstore.ErrExists) {
			return fmt.Errorf("create %s: %w", generationKey(1), err)
		}
		if newest, _, err = newestGeneration(ctx, b.bucket); err != nil {
			return err
		}
	}
	switch {
	case newest == b.own || invariant.Off("metadata-generation"):
	case newest.number == 0:
		return fmt.Errorf("the database is generation %d of cluster %s, and the bucket knows none: it is not the bucket that the database was used with", b.own.number, b.own.cluster)
	case newest.cluster != b.own.cluster:
		return fmt.Errorf("the bucket belongs to cluster %s, the database to cluster %s; if the database of that cluster is lost, move the new one away "+
			"and run `tabletopic metadata restore`; if not, two clusters must not share a bucket and prefix: %w", newest.cluster, b.own.cluster, ErrSuperseded)
	case newest.number < b.own.number:
		return fmt.Errorf("the database is generation %d, and the newest of the bucket is generation %d: %s is lost, or it is an old copy of the bucket", b.own.number, newest.number, generationKey(b.own.number))
	default:
		return fmt.Errorf("the database is generation %d, the bucket has generation %d: a database was restored since; use that one: %w", b.own.number, newest.number, ErrSuperseded)
	}
	return b.findLast(ctx)
}

// findLast reads which snapshot is the newest of this generation. The database must be at
// least as new: an old copy of it is not.
func (b *Backup) findLast(ctx context.Context) error {
	number, err := newestSnapshot(ctx, b.bucket, b.own.number)
	if err != nil || number == 0 {
		return err
	}
	if b.last, err = readSnapshotInfo(ctx, b.bucket, b.own.number, number); err != nil {
		return err
	}
	return b.notBehind(ctx, b.last)
}

// notBehind refuses a database whose change log ends before that of a snapshot.
func (b *Backup) notBehind(ctx context.Context, info SnapshotInfo) error {
	change, err := b.s.lastChange(ctx)
	if err != nil {
		return err
	}
	if change < info.Change && !invariant.Off("metadata-not-behind") {
		return fmt.Errorf("the database has made %d changes, and a snapshot in the bucket has %d, of %s: the database is an old copy; "+
			"move it away and run `tabletopic metadata restore`: %w", change, info.Change, info.Taken.UTC().Format(time.RFC3339), ErrSuperseded)
	}
	return nil
}

func (s *Store) lastChange(ctx context.Context) (n int64, err error) {
	if err := s.readers.QueryRowContext(ctx, `SELECT value FROM counter WHERE name = 'change'`).Scan(&n); err != nil {
		return 0, fmt.Errorf("read last change: %w", err)
	}
	return n, nil
}

// readGeneration returns which generation the database is; a new one is the first.
func (s *Store) readGeneration(ctx context.Context) (generation, error) {
	g := generation{cluster: s.cluster}
	err := s.update(ctx, "read generation", func(t *tx) error {
		if _, err := t.exec(`INSERT INTO generation (one, number, nonce) VALUES (1, 1, $1) ON CONFLICT (one) DO NOTHING`, newNonce()); err != nil {
			return err
		}
		return t.QueryRowContext(ctx, `SELECT number, nonce FROM generation`).Scan(&g.number, &g.nonce)
	})
	return g, err
}

func newNonce() string {
	var nonce [nonceSize]byte
	rand.Read(nonce[:])
	return hex.EncodeToString(nonce[:])
}

// newestGeneration reads the generation object of the highest number.
func newestGeneration(ctx context.Context, bucket objectstore.Bucket) (g generation, found bool, err error) {
	key := ""
	for after := ""; ; {
		page, err := bucket.List(ctx, generationPrefix, after)
		if err != nil {
			return g, false, fmt.Errorf("list %s: %w", generationPrefix, err)
		}
		if len(page) == 0 {
			break
		}
		for _, o := range page {
			if _, ok := parseGenerationKey(o.Key); ok {
				key = o.Key
			}
			after = o.Key
		}
	}
	if key == "" {
		return g, false, nil
	}
	g, err = readParsed(ctx, bucket, key, -1, parseGeneration)
	return g, err == nil, err
}

// readParsed reads the first n bytes of an object, all if n is negative, and parses them; again
// if they make no sense, for what is right in the store may arrive wrong.
func readParsed[T any](ctx context.Context, bucket objectstore.Bucket, key string, n int64, parse func([]byte) (T, error)) (v T, err error) {
	for range 2 {
		var data []byte
		if data, err = bucket.Get(ctx, key, 0, n); err != nil {
			break
		}
		if v, err = parse(data); err == nil {
			return v, nil
		}
	}
	return v, fmt.Errorf("read %s: %w", key, err)
}

// listSnapshots returns the numbers of a generation's snapshots, in order.
func listSnapshots(ctx context.Context, bucket objectstore.Bucket, generation int64) (numbers []int64, err error) {
	for after := ""; ; {
		page, err := bucket.List(ctx, snapshotDir(generation), after)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", snapshotDir(generation), err)
		}
		if len(page) == 0 {
			return numbers, nil
		}
		for _, o := range page {
			if _, n, ok := parseSnapshotKey(o.Key); ok {
				numbers = append(numbers, n)
			}
			after = o.Key
		}
	}
}

// newestSnapshot returns the highest number of a generation, 0 if it has none.
func newestSnapshot(ctx context.Context, bucket objectstore.Bucket, generation int64) (number int64, err error) {
	numbers, err := listSnapshots(ctx, bucket, generation)
	if err != nil || len(numbers) == 0 {
		return 0, err
	}
	return numbers[len(numbers)-1], nil
}

func readSnapshotInfo(ctx context.Context, bucket objectstore.Bucket, generation, number int64) (SnapshotInfo, error) {
	return readParsed(ctx, bucket, snapshotKey(generation, number), int64(snapshotHeadSize), func(data []byte) (SnapshotInfo, error) {
		info, _, err := parseSnapshotHeader(data)
		return info, err
	})
}

// Superseded is closed when this database may not be used any more; Err says why.
func (b *Backup) Superseded() <-chan struct{} { return b.superseded }

// Err returns why there are no more snapshots, nil while there are.
func (b *Backup) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// Close takes the last snapshot, unless ctx ends before, and ends the loop.
func (b *Backup) Close(ctx context.Context) error {
	err := b.wait(ctx, true, 0)
	if errors.Is(err, ErrSuperseded) {
		err = nil // it was told by Superseded
	}
	b.fail(errBackupClosed)
	b.cancel()
	<-b.stopped
	if err != nil {
		return fmt.Errorf("last snapshot of the metadata: %w", err)
	}
	return nil
}

// Durable returns when all changes that were committed before the call would survive the
// loss of the database. With no backup that is at once.
func (s *Store) Durable(ctx context.Context) error { return s.durable(ctx, 0) }

// durable is Durable for one who made that change, the last of a transaction, and waits for no other; 0 if it
// has no number.
func (s *Store) durable(ctx context.Context, change int64) error {
	b := s.backup.Load()
	if b == nil || invariant.Off("metadata-durable") {
		return nil
	}
	return b.wait(ctx, true, change)
}

// Settled is Durable that is in no hurry: it waits for the next snapshot but does not make
// it come sooner. After it, what earlier changes took out of use may be deleted.
func (s *Store) Settled(ctx context.Context) error {
	b := s.backup.Load()
	if b == nil || invariant.Off("metadata-settled") {
		return nil
	}
	return b.wait(ctx, false, 0)
}

// wait returns when a snapshot that begins after the call is in the bucket, or any that has the change, if
// it is not 0: of many who made theirs in one transaction the first to come here begins a snapshot for all.
func (b *Backup) wait(ctx context.Context, now bool, change int64) error {
	b.mu.Lock()
	want, enough := b.started+1, change > 0 && b.change >= change
	b.mu.Unlock()
	if enough {
		return nil
	}
	if now {
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
	for {
		b.mu.Lock()
		enough, err, moved := b.done >= want || change > 0 && b.change >= change, b.err, b.moved
		b.mu.Unlock()
		if enough {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("wait for a snapshot of the metadata: %w", context.Cause(ctx))
		}
	}
}

// begin gives the next snapshot its turn.
func (b *Backup) begin() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.started++
	return b.started
}

func (b *Backup) finish(turn int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done, b.change = turn, b.last.Change
	b.moveLocked()
}

func (b *Backup) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return
	}
	b.err = err
	b.moveLocked()
	if errors.Is(err, ErrSuperseded) {
		close(b.superseded)
	}
}

func (b *Backup) moveLocked() {
	close(b.moved)
	b.moved = make(chan struct{})
}

// backupRetry is how long after the first failure a snapshot is tried again; the time
// doubles with each, up to the interval.
const backupRetry = 100 * time.Millisecond

// backupShare bounds what snapshots cost: after one that takes a while, longer than a cheap one, so many times
// as long passes until somebody who waits can have the next. They all share it. Schemas do not
// count: those that changed are no fewer when they waited, and all are read when there are half as many more.
const (
	backupShare = 3
	backupCheap = 5 * time.Millisecond
)

// run takes snapshots until ctx ends or the database is superseded.
func (b *Backup) run(ctx context.Context) {
	defer close(b.stopped)
	timer := time.NewTimer(b.cfg.Interval)
	defer timer.Stop()
	retry := backupRetry
	wake := b.wake // nil while those who wait must wait for the timer
	resting := false
	for {
		select {
		case <-wake:
		case <-timer.C:
			if resting {
				resting, wake = false, b.wake
				timer.Reset(b.cfg.Interval)
				continue
			}
		case <-ctx.Done():
			return
		}
		turn, before := b.begin(), b.last.Number
		err := b.snapshot(ctx)
		next := b.cfg.Interval
		switch {
		case err == nil:
			b.finish(turn)
			if b.last.Number != before {
				if err := b.prune(ctx); err != nil && ctx.Err() == nil {
					b.s.log.LogAttrs(ctx, slog.LevelWarn, "old snapshots of the metadata not deleted, they only take space", slog.Any("error", err))
				}
			}
			retry, wake = backupRetry, b.wake
			if b.cost > backupCheap {
				resting, wake, next = true, nil, backupShare*(b.cost-backupCheap)
			}
		case errors.Is(err, ErrSuperseded):
			b.fail(err)
			return
		case ctx.Err() != nil:
			return
		default:
			b.s.log.LogAttrs(ctx, slog.LevelWarn, "no snapshot of the metadata, trying again; changes of topics, schemas and tables wait", slog.Any("error", err))
			next = min(next, retry)
			retry, wake = 2*next, nil
		}
		timer.Reset(next)
	}
}

// snapshot returns when the bucket has a snapshot that begins after the call.
func (b *Backup) snapshot(ctx context.Context) error {
	for {
		info, data, err := b.read(ctx)
		if err != nil {
			return err
		}
		if data == nil {
			return nil // nothing changed
		}
		key := snapshotKey(info.Generation, info.Number)
		err = b.bucket.PutIfAbsent(ctx, key, data)
		if errors.Is(err, objectstore.ErrExists) {
			// Of another node, or our own whose answer was lost. What it lacks comes in the next.
			other, err := readSnapshotInfo(ctx, b.bucket, info.Generation, info.Number)
			if errors.Is(err, objectstore.ErrNotFound) { // pruned already: we are far behind
				err = b.findLast(ctx)
				other = b.last
			}
			if err == nil {
				err = b.notBehind(ctx, other)
			}
			if err == nil {
				err = b.newest(ctx)
			}
			if err != nil {
				return err
			}
			b.rebase(other)
			continue
		}
		if err != nil {
			return fmt.Errorf("create %s: %w", key, err)
		}
		if err := b.newest(ctx); err != nil {
			return err
		}
		b.rebase(info)
		return nil
	}
}

// rebase notes what is the newest snapshot now.
func (b *Backup) rebase(info SnapshotInfo) {
	b.rebased = b.rebased || !slices.Equal(b.last.bases, info.bases)
	b.last = info
}

// newest proves that no restore began before now.
func (b *Backup) newest(ctx context.Context) error {
	key := generationKey(b.own.number + 1)
	_, err := b.bucket.Get(ctx, key, 0, 1)
	switch {
	case errors.Is(err, objectstore.ErrNotFound), invariant.Off("metadata-newest-generation"):
		return nil
	case err != nil:
		return fmt.Errorf("look for %s: %w", key, err)
	}
	return fmt.Errorf("the bucket has %s: a database was restored since generation %d: %w", key, b.own.number, ErrSuperseded)
}

// prune deletes the snapshots that are too old and no bases of the newest, some of them together, and with the
// first of a generation those of the one before the last.
func (b *Backup) prune(ctx context.Context) (err error) {
	defer func() { b.rebased = b.rebased || err != nil }()
	own, oldest, together := b.own.number, b.last.Number-b.cfg.Keep, max(1, b.cfg.Keep/2)
	needed := func(n int64) bool {
		base := slices.ContainsFunc(b.last.bases, func(o snapshotBase) bool { return o.number == n })
		return n > oldest || base && !invariant.Off("metadata-keep-bases")
	}
	var keys []string
	if b.rebased {
		numbers, err := listSnapshots(ctx, b.bucket, own)
		if err != nil {
			return err
		}
		for _, n := range numbers {
			if !needed(n) {
				keys = append(keys, snapshotKey(own, n))
			}
		}
		b.rebased = false
	} else if oldest%together == 0 {
		for n := max(1, oldest-together+1); n <= oldest; n++ {
			if !needed(n) {
				keys = append(keys, snapshotKey(own, n))
			}
		}
	}
	if b.last.Number == 1 && own > 2 {
		numbers, err := listSnapshots(ctx, b.bucket, own-2)
		if err != nil {
			return err
		}
		for _, n := range numbers {
			keys = append(keys, snapshotKey(own-2, n))
		}
	}
	return b.bucket.Delete(ctx, keys...)
}

// read makes the next snapshot of the database as it is now; data is nil if it is the last one.
func (b *Backup) read(ctx context.Context) (info SnapshotInfo, data []byte, err error) {
	began := time.Now()
	defer func() { b.cost += time.Since(began) }()
	b.cost = 0
	t, err := b.s.readers.BeginTx(ctx, &b.s.dialect.snapshot)
	if err != nil {
		return info, nil, fmt.Errorf("read the metadata: %w", err)
	}
	defer t.Rollback()
	info = SnapshotInfo{Cluster: b.own.cluster, Generation: b.own.number, Number: b.last.Number + 1, Taken: b.s.now()}
	tables, err := b.s.presentTables(ctx, t)
	if err == nil {
		err = fingerprint(ctx, t, tables, &info)
	}
	if err != nil {
		return info, nil, fmt.Errorf("read the metadata: %w", err)
	}
	if b.last.Number > 0 && info.fingerprint == b.last.fingerprint {
		return info, nil, nil
	}
	if err := b.chooseBases(ctx, t, &info); err != nil {
		return info, nil, fmt.Errorf("read the metadata: %w", err)
	}
	w := newSnapshotWriter(info)
	at := time.Now()
	err = copySchemas(ctx, t, info, w)
	b.cost -= time.Since(at)
	for _, name := range tables {
		if err == nil && differenceQueries[name] == "" {
			err = copyRows(ctx, t, name, w, `SELECT * FROM `+name)
		}
	}
	if err != nil {
		return info, nil, err
	}
	data, err = w.finish()
	return info, data, err
}

// snapshotTables are the tables of a snapshot. The change log is not among them: it says only
// that something changed, and who follows it reads a restored database anew. Neither are
// the generation, which a restore draws, and the migrations, of which it has the number.
var snapshotTables = []string{
	"cluster", "counter", "node", "node_wal", "stream", "stream_range", "object", "stream_set_object", "object_range", "object_link",
	"topic", "topic_partition", "config", "schema", "retired_schema", "subject_version", "subject_reference", "subject_config", "subject", "catalog_entry", "lease",
	"scram_credential", "acl", "client_quota", "cluster_secret",
}

// catalogTables are those of the SQL catalog, which change without an entry in the change log.
var catalogTables = []string{"iceberg_tables", "iceberg_namespace_properties", "iceberg_request_keys"}

// presentTables are the tables of a snapshot; the catalog's may not be there.
func (s *Store) presentTables(ctx context.Context, q queryer) ([]string, error) {
	tables := append([]string(nil), snapshotTables...)
	for _, name := range catalogTables {
		err := eachRow(ctx, q, func(rows *sql.Rows) error {
			var n int
			if err := rows.Scan(&n); err != nil {
				return err
			}
			if n > 0 {
				tables = append(tables, name)
			}
			return nil
		}, s.dialect.hasTable, name)
		if err != nil {
			return nil, err
		}
	}
	return tables, nil
}

var crc = crc64.MakeTable(crc64.ECMA)

// fingerprint completes info: every change moves a counter, or changes a catalog table.
func fingerprint(ctx context.Context, q queryer, tables []string, info *SnapshotInfo) error {
	h := crc64.New(crc)
	err := eachRow(ctx, q, func(rows *sql.Rows) error {
		var name string
		var value int64
		if err := rows.Scan(&name, &value); err != nil {
			return err
		}
		if name == "change" {
			info.Change = value
		}
		_, err := fmt.Fprintf(h, "%s=%d ", name, value)
		return err
	}, `SELECT name, value FROM counter ORDER BY name`)
	if err != nil {
		return err
	}
	if err := eachRow(ctx, q, func(rows *sql.Rows) error { return rows.Scan(&info.Schema) }, `SELECT max(version) FROM migration`); err != nil {
		return err
	}
	for _, name := range tables[len(snapshotTables):] {
		// Rows without an order: their sums are added.
		var sum uint64
		columns := 0
		err := eachTableRow(ctx, q, name, func(names []string) { columns = len(names) }, func(values []any) error {
			sum += crc64.Checksum(fmt.Appendf(nil, "%q", values), crc)
			return nil
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%s %d %d ", name, columns, sum)
	}
	info.fingerprint = h.Sum64()
	return nil
}

// copyRows writes what a query finds as rows of a table.
func copyRows(ctx context.Context, q queryer, name string, w *snapshotWriter, query string, args ...any) error {
	if err := eachValues(ctx, q, func(columns []string) { w.table(name, columns) }, w.row, query, args...); err != nil {
		return fmt.Errorf("read table %s: %w", name, err)
	}
	w.end()
	return w.err
}

// eachTableRow reads a whole table.
func eachTableRow(ctx context.Context, q queryer, name string, head func(columns []string), row func(values []any) error) error {
	return eachValues(ctx, q, head, row, `SELECT * FROM `+name)
}

// eachValues reads what a query finds, with values as the engine has them. row may keep none.
func eachValues(ctx context.Context, q queryer, head func(columns []string), row func(values []any) error, query string, args ...any) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	head(columns)
	values, into := make([]any, len(columns)), make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		if err := row(values); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(columns, ", "), err)
		}
	}
	return rows.Err()
}
