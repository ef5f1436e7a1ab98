package metadata

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tabletopic/tabletopic/objectstore"
	"github.com/tabletopic/tabletopic/streamstore"
)

// icebergTables stands for the SQL catalog.
var icebergTables = []string{
	`CREATE TABLE IF NOT EXISTS iceberg_tables (catalog_name VARCHAR(255) NOT NULL, table_name VARCHAR(255) NOT NULL, metadata_location VARCHAR(1000), PRIMARY KEY (catalog_name, table_name))`,
	`CREATE TABLE IF NOT EXISTS iceberg_namespace_properties (namespace VARCHAR(255) NOT NULL PRIMARY KEY)`,
}

func makeIcebergTables(t *testing.T, s *Store) {
	t.Helper()
	for _, q := range append(icebergTables, `INSERT INTO iceberg_tables VALUES ('c', 'n', NULL), ('c', 'é', 'file:///w/t')`) {
		if _, err := s.DB().Exec(q); err != nil {
			t.Fatal(err)
		}
	}
}

func startBackup(t *testing.T, s *Store, bucket objectstore.Bucket, cfg BackupConfig) *Backup {
	t.Helper()
	b, err := s.Backup(t.Context(), bucket, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // a test that wants the last snapshot closes by itself
		_ = b.Close(ctx)
	})
	return b
}

// restored makes a new database of what the bucket has.
func restored(t *testing.T, bucket objectstore.Bucket) (*Store, SnapshotInfo) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "restored.db")
	info, err := Restore(t.Context(), "sqlite:"+path, bucket, icebergTables, nil)
	if err != nil {
		t.Fatal(err)
	}
	return openStore(t, sqliteDatabase(path, false), nil), info
}

// contents is every row of a snapshot's tables, but for what a restore raises.
func contents(t *testing.T, s *Store) string {
	t.Helper()
	tables, err := s.presentTables(t.Context(), s.readers)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, name := range tables {
		if name == "counter" || name == "lease" {
			continue
		}
		err := eachTableRow(t.Context(), s.readers, name, func(columns []string) { lines = append(lines, fmt.Sprint(name, " ", columns)) },
			func(values []any) error { lines = append(lines, fmt.Sprintf("%s %q", name, values)); return nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func counters(t *testing.T, s *Store) map[string]int64 {
	t.Helper()
	all := map[string]int64{}
	err := eachTableRow(t.Context(), s.readers, "counter", func([]string) {}, func(v []any) error { all[v[0].(string)] = v[1].(int64); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A restored database, on the same engine or on the other, has every row of the lost one;
// its counters leave a gap.
func TestRestoreBringsEverythingBack(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		bucket := objectstore.NewMemory()
		s := openStore(t, d, nil)
		makeIcebergTables(t, s)
		b := startBackup(t, s, bucket, BackupConfig{})
		populate(t, s)
		if err := s.PutCatalog(t.Context(), CatalogEntry{Name: "c", Kind: "rest", Config: "{}"}); err != nil {
			t.Fatal(err)
		}
		if err := b.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		for name, target := range map[string]func(t *testing.T) database{"sqlite": newSQLite, "postgres": newPostgres} {
			t.Run("to "+name, func(t *testing.T) {
				d := target(t)
				to, err := connect(d, nil, time.Now)
				if err != nil {
					t.Fatal(err)
				}
				defer to.Close()
				_, data, err := lastSnapshot(t.Context(), bucket, 1)
				if err != nil {
					t.Fatal(err)
				}
				g := generation{2, s.ClusterID(), newNonce()}
				info, err := to.load(t.Context(), data, g, icebergTables)
				if err != nil || info.Cluster != s.ClusterID() || info.Generation != 1 {
					t.Fatalf("%+v, %v", info, err)
				}
				to = openStore(t, d, nil)
				if d := cmp.Diff(contents(t, to), contents(t, s)); d != "" {
					t.Fatalf("-restored +lost:\n%s", d)
				}
				if now, err := to.readGeneration(t.Context()); err != nil || now != g {
					t.Fatalf("%+v, %v, want %+v", now, err, g)
				}
				for name, value := range counters(t, s) {
					if now := counters(t, to)[name]; now <= value {
						t.Errorf("counter %s is %d, was %d", name, now, value)
					}
				}
				if _, err := to.Changes(t.Context(), counters(t, s)["change"], 10); err != nil {
					t.Fatal(err)
				}
				node, _, err := to.RegisterNode(t.Context(), 1, streamstore.WALObject)
				if err != nil || node.Epoch != 2 {
					t.Fatalf("%+v, %v", node, err)
				}
				if _, err := to.Changes(t.Context(), counters(t, s)["change"], 10); !errors.Is(err, ErrChangesPruned) {
					t.Fatalf("a follower of the lost database got %v, want %v", err, ErrChangesPruned)
				}
			})
		}
	})
}

// No table is forgotten when the schema grows.
func TestSnapshotHasEveryTable(t *testing.T) {
	s := openStore(t, newSQLite(t), nil)
	var all []string
	err := eachTableRow(t.Context(), s.readers, `sqlite_master WHERE type = 'table'`, func([]string) {}, func(v []any) error {
		all = append(all, v[1].(string))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := append([]string{"migration", "change_log", "generation"}, snapshotTables...)
	slices.Sort(want)
	slices.Sort(all)
	if d := cmp.Diff(all, want); d != "" {
		t.Fatalf("tables (-database +snapshot):\n%s", d)
	}
}

// What was acknowledged is in the bucket, with no wait for the next snapshot.
func TestDurableBeforeAcknowledged(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		bucket := objectstore.NewMemory()
		s := openStore(t, d, nil)
		startBackup(t, s, bucket, BackupConfig{Interval: time.Hour})
		var node streamstore.Node
		var topic Topic
		var stream streamstore.StreamID
		ctx := t.Context()
		for _, step := range []struct {
			name string
			do   func() error
		}{
			{"register", func() (err error) { node, _, err = s.RegisterNode(ctx, 1, streamstore.WALObject); return }},
			{"create topic", func() (err error) { topic, err = s.CreateTopic(ctx, node, NewTopic{Name: "t", Partitions: 1}); return }},
			{"create partitions", func() (err error) { _, err = s.CreatePartitions(ctx, node, "t", 2); return }},
			{"alter config", func() (err error) {
				_, err = s.AlterTopicConfig(ctx, node, "t", map[string]string{"a": "b"}, nil)
				return
			}},
			{"take partitions", func() (err error) { _, err = s.TakePartitions(ctx, node); return }},
			{"create streams", func() (err error) { stream, err = s.CreateStreams(ctx, node, 1); return }},
			{"open streams", func() (err error) {
				_, err = s.OpenStreams(ctx, node, []streamstore.OpenRequest{{ID: topic.Partitions[0].Log, Epoch: 1}})
				return
			}},
			{"delete streams", func() error { return s.DeleteStreams(ctx, node, []streamstore.StreamID{stream}) }},
			{"register schema", func() (err error) {
				_, err = s.RegisterSchema(ctx, Subject{Name: "s"}, 0, Schema{Type: "AVRO", Text: `"int"`})
				return
			}},
			{"set level", func() error {
				return s.ChangeSubjectConfig(ctx, "s", func(c *SubjectConfig) { c.Compatibility = "FULL" })
			}},
			{"delete versions", func() error { return s.DeleteVersions(ctx, subject(t, s, "s"), []int{1}, false) }},
			{"put catalog", func() error { return s.PutCatalog(ctx, CatalogEntry{Name: "c", Kind: "rest", Config: "{}"}) }},
			{"delete catalog", func() error { return s.DeleteCatalog(ctx, "c") }},
			{"delete topic", func() error { return s.DeleteTopic(ctx, node, topic.ID) }},
		} {
			if err := step.do(); err != nil {
				t.Fatalf("%s: %v", step.name, err)
			}
			_, data, err := lastSnapshot(ctx, bucket, 1)
			if err != nil {
				t.Fatalf("%s: %v", step.name, err)
			}
			if info, _, err := parseSnapshotHeader(data[len(data)-1]); err != nil || info.Change != counters(t, s)["change"] {
				t.Fatalf("%s: the snapshot ends at change %d, %v, the database at %d", step.name, info.Change, err, counters(t, s)["change"])
			}
		}
	})
}

// What a snapshot has already waits for no other, whoever began it; what none has does.
func TestChangesShareASnapshot(t *testing.T) {
	bucket := objectstore.NewMemory()
	s := openStore(t, newSQLite(t), nil)
	b := startBackup(t, s, bucket, BackupConfig{Interval: time.Hour})
	registerSchema(t, s, "a", `"int"`)
	change := counters(t, s)["change"]
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.durable(ended, change); err != nil {
		t.Fatalf("change %d is in a snapshot: %v", change, err)
	}
	if err := s.durable(ended, change+1); !errors.Is(err, context.Canceled) {
		t.Fatalf("change %d is in none: %v", change+1, err)
	}
	if err := s.durable(ended, 0); !errors.Is(err, context.Canceled) {
		t.Fatalf("a change without a number waits for a snapshot that is begun: %v", err)
	}
	if err := b.Err(); err != nil {
		t.Fatal(err)
	}
}

// A trim waits for no snapshot. A database from before it has the older start, and all that is
// behind that; one from after it the newer.
func TestTrimIsRestoredAsItWas(t *testing.T) {
	ctx := t.Context()
	bucket := objectstore.NewMemory()
	s := openStore(t, newSQLite(t), nil)
	startBackup(t, s, bucket, BackupConfig{Interval: time.Hour})
	node := register(t, s)
	id := create(t, s, node, NewTopic{Name: "t", Partitions: 1}).Partitions[0].Log
	for i := range int64(2) {
		object, err := s.PrepareObjects(ctx, node, 1, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		u := streamstore.Upload{WALEpoch: node.Epoch, Streams: []streamstore.StreamObject{{ID: object, Size: 1, Range: streamstore.StreamRange{Stream: id, Start: 10 * i, End: 10*i + 10}}}}
		if err := s.CommitUpload(ctx, node, u); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Durable(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.TrimStream(ctx, node, id, 0, 10); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int64{0, 10} {
		_, data, err := lastSnapshot(ctx, bucket, 1)
		if err != nil {
			t.Fatal(err)
		}
		d := newSQLite(t)
		to, err := connect(d, nil, time.Now)
		if err != nil {
			t.Fatal(err)
		}
		defer to.Close()
		if _, err := to.load(ctx, data, generation{2, s.ClusterID(), newNonce()}, nil); err != nil {
			t.Fatal(err)
		}
		to = openStore(t, d, nil)
		states, err := to.Streams(ctx, node.ID)
		if err != nil {
			t.Fatal(err)
		}
		start := states[slices.IndexFunc(states, func(st streamstore.StreamState) bool { return st.ID == id })].Start
		found, err := to.StreamObjects(ctx, id, start, 20, 10)
		if err != nil || start != want || len(found) != 2-int(want/10) {
			t.Errorf("restored with start %d and objects %v, %v, want start %d", start, found, err, want)
		}
		if err := s.Durable(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// What a commit took out of use is let go only when a snapshot has the commit.
func TestSettledIsAfterASnapshot(t *testing.T) {
	bucket := objectstore.NewMemory()
	s := openStore(t, newSQLite(t), nil)
	startBackup(t, s, bucket, BackupConfig{Interval: 50 * time.Millisecond})
	node := register(t, s)
	id := create(t, s, node, NewTopic{Name: "t", Partitions: 1}).Partitions[0].Log
	for i := range int64(3) {
		object, err := s.PrepareObjects(t.Context(), node, 1, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.CommitUpload(t.Context(), node, streamstore.Upload{WALEpoch: node.Epoch,
			Streams: []streamstore.StreamObject{{ID: object, Size: 1, Range: streamstore.StreamRange{Stream: id, Start: i, End: i + 1}}}}); err != nil {
			t.Fatal(err)
		}
		if err := s.Settled(t.Context()); err != nil {
			t.Fatal(err)
		}
		last, err := newestSnapshot(t.Context(), bucket, 1)
		if err != nil {
			t.Fatal(err)
		}
		info, err := readSnapshotInfo(t.Context(), bucket, 1, last)
		if err != nil || info.Change != counters(t, s)["change"] {
			t.Fatalf("the snapshot ends at change %d, %v, the database at %d", info.Change, err, counters(t, s)["change"])
		}
	}
}

// A database that is idle writes nothing; old snapshots go.
func TestSnapshotsOnlyOfChangesAndFew(t *testing.T) {
	bucket := objectstore.NewMemory()
	s := openStore(t, newSQLite(t), nil)
	startBackup(t, s, bucket, BackupConfig{Interval: time.Millisecond, Keep: 3})
	for range 10 {
		register(t, s)
	}
	keys := func() (keys []string) {
		page, err := bucket.List(t.Context(), snapshotPrefix, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page {
			keys = append(keys, o.Key)
		}
		return keys
	}
	for range 2 { // those that are too old go after the first is acknowledged
		if err := s.Durable(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	before := keys()
	if len(before) != 3 {
		t.Fatalf("snapshots %v, want 3", before)
	}
	for range 20 {
		if err := s.Settled(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff(keys(), before); d != "" {
		t.Fatalf("an idle database wrote:\n%s", d)
	}
}

// undeleting is a bucket that may refuse to delete.
type undeleting struct {
	objectstore.Bucket
	refuses atomic.Bool
}

func (b *undeleting) Delete(ctx context.Context, keys ...string) error {
	if b.refuses.Load() {
		return objectstore.ErrRefused
	}
	return b.Bucket.Delete(ctx, keys...)
}

// Old snapshots are deleted together, so that a snapshot costs little more than the two requests that it
// needs. What an earlier process left goes, too, and so does what could not be deleted when it was due.
func TestOldSnapshotsAreDeletedTogether(t *testing.T) {
	const keep, changes = 16, 100
	bucket, counter := &undeleting{Bucket: objectstore.NewMemory()}, &objectstore.Counter{}
	s := openStore(t, newSQLite(t), nil)
	change := func(n int) {
		for range n {
			register(t, s)
			if err := s.Durable(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	check := func(when string, most int) {
		t.Helper()
		if err := s.Durable(t.Context()); err != nil { // it begins when those that are too old are gone
			t.Fatal(err)
		}
		numbers, err := listSnapshots(t.Context(), bucket, 1)
		if err != nil || len(numbers) < keep || len(numbers) > most {
			t.Fatalf("%s %d snapshots, %v, want %d to %d", when, len(numbers), err, keep, most)
		}
	}
	bucket.refuses.Store(true)
	first := startBackup(t, s, bucket, BackupConfig{Interval: time.Hour, Keep: keep})
	change(2 * keep)
	check("deletions are refused:", 2*keep+1)
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	bucket.refuses.Store(false)
	startBackup(t, s, objectstore.Observe(bucket, counter), BackupConfig{Interval: time.Hour, Keep: keep})
	change(1)
	check("after a restart:", keep+keep/2)
	change(changes)
	check("after many changes:", keep+keep/2)
	if n := counter.Count(objectstore.OpDelete); n > 1+changes/(keep/2)+1 {
		t.Errorf("%d requests to delete snapshots, of %d", n, changes)
	}
	bucket.refuses.Store(true)
	change(keep)
	bucket.refuses.Store(false)
	change(1)
	check("after deletions were refused:", keep+keep/2)
}

// However long the bucket is away, snapshots are tried again in intervals.
func TestSnapshotsOfALongOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(t.Context(), "sqlite::memory:", nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		bucket := objectstore.NewFaulty(objectstore.NewMemory(), objectstore.Faults{})
		counter := &objectstore.Counter{}
		startBackup(t, s, objectstore.Observe(bucket, counter), BackupConfig{})
		register(t, s)
		before := counter.Count(objectstore.OpPutIfAbsent)
		bucket.Cut(true)
		if _, err := s.writer.Exec(`UPDATE counter SET value = value + 1 WHERE name = 'change'`); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		if n := counter.Count(objectstore.OpPutIfAbsent) - before; n < 300 || n > 400 {
			t.Errorf("%d attempts in an hour, want one each 10 s", n)
		}
	})
}

// After a restore the old database, still in use, acknowledges nothing, and says why.
func TestSupersededDatabaseStops(t *testing.T) {
	bucket := objectstore.NewMemory()
	d := newSQLite(t)
	s := openStore(t, d, nil)
	b := startBackup(t, s, bucket, BackupConfig{Interval: time.Hour})
	node := register(t, s)
	create(t, s, node, NewTopic{Name: "before", Partitions: 1})
	second, info := restored(t, bucket)
	if info.Number == 0 || len(topics(t, second)) != 1 {
		t.Fatalf("restored %+v with topics %v", info, topics(t, second))
	}
	if _, err := s.CreateTopic(t.Context(), node, NewTopic{Name: "after", Partitions: 1}); !errors.Is(err, ErrSuperseded) || !errors.Is(err, streamstore.ErrNodeFenced) {
		t.Fatalf("the old database created a topic: %v", err)
	}
	select {
	case <-b.Superseded():
	case <-t.Context().Done():
	}
	if err := b.Err(); !errors.Is(err, ErrSuperseded) || !strings.Contains(err.Error(), "restored") {
		t.Fatalf("got %v", err)
	}
	again := openStore(t, d, nil)
	if _, err := again.Backup(t.Context(), bucket, BackupConfig{}); !errors.Is(err, ErrSuperseded) || !strings.Contains(err.Error(), "generation 2") {
		t.Fatalf("the old database started again: %v", err)
	}
	startBackup(t, second, bucket, BackupConfig{})
	register(t, second)
	third, info := restored(t, bucket)
	if info.Generation != 2 || len(topics(t, third)) != 1 {
		t.Fatalf("restored %+v with topics %v", info, topics(t, third))
	}
}

// A second cluster, and a copy of the database of yesterday, do not get the bucket.
func TestBackupRefusesOtherDatabases(t *testing.T) {
	bucket := objectstore.NewMemory()
	dir := t.TempDir()
	path := filepath.Join(dir, "metadata.db")
	s := openStore(t, sqliteDatabase(path, false), nil)
	startBackup(t, s, bucket, BackupConfig{})
	register(t, s)
	other := openStore(t, newSQLite(t), nil)
	if _, err := other.Backup(t.Context(), bucket, BackupConfig{}); !errors.Is(err, ErrSuperseded) || !strings.Contains(err.Error(), s.ClusterID()) || !strings.Contains(err.Error(), "metadata restore") {
		t.Fatalf("a second cluster: %v", err)
	}
	copied := filepath.Join(dir, "copy.db")
	if _, err := s.writer.Exec(`VACUUM INTO '` + copied + `'`); err != nil {
		t.Fatal(err)
	}
	register(t, s)
	stale := openStore(t, sqliteDatabase(copied, false), nil)
	if _, err := stale.Backup(t.Context(), bucket, BackupConfig{}); !errors.Is(err, ErrSuperseded) || !strings.Contains(err.Error(), "old copy") {
		t.Fatalf("an old copy: %v", err)
	}
}

// firstWrong gives each object with a wrong bit when it is read for the first time.
type firstWrong struct {
	objectstore.Bucket
	seen map[string]bool
}

func (b firstWrong) Get(ctx context.Context, key string, off, n int64) ([]byte, error) {
	data, err := b.Bucket.Get(ctx, key, off, n)
	if err == nil && !b.seen[key] {
		b.seen[key] = true
		data = bytes.Clone(data)
		data[4] ^= 0x10 // the version
	}
	return data, err
}

// What arrives with a wrong bit is read again; what lies in the store so stops the start.
func TestBackupReadsAgainWhatIsCorrupt(t *testing.T) {
	bucket := objectstore.NewMemory()
	s := openStore(t, newSQLite(t), nil)
	b := startBackup(t, s, bucket, BackupConfig{})
	register(t, s)
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	wrong := firstWrong{bucket, map[string]bool{}}
	b, err := s.Backup(t.Context(), wrong, BackupConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(wrong.seen) < 2 {
		t.Fatalf("only %v were read", wrong.seen)
	}
	data, err := bucket.Get(t.Context(), generationKey(1), 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	data = bytes.Clone(data)
	data[10] ^= 1
	if err := bucket.Put(t.Context(), generationKey(1), data); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Backup(t.Context(), bucket, BackupConfig{}); err == nil || !strings.Contains(err.Error(), "checksum") {
		t.Fatalf("a corrupt generation object: %v", err)
	}
}

// Nodes that share a database share its snapshots: nothing that one of them acknowledged is
// missing, and numbers are dense.
func TestNodesShareSnapshots(t *testing.T) {
	eachEngine(t, func(t *testing.T, d database) {
		bucket := objectstore.NewMemory()
		stores := []*Store{openStore(t, d, nil), openStore(t, d, nil)}
		for _, s := range stores {
			startBackup(t, s, bucket, BackupConfig{Interval: 5 * time.Millisecond, Keep: 1000})
		}
		both(t, stores, 2, func(ctx context.Context, s *Store, worker int) error {
			node, _, err := s.RegisterNode(ctx, streamstore.NodeID(worker), streamstore.WALObject)
			for i := 0; i < 5 && err == nil; i++ {
				_, err = s.CreateTopic(ctx, node, NewTopic{Name: fmt.Sprintf("t-%d-%d", worker, i), Partitions: 1})
			}
			return err
		})
		r, info := restored(t, bucket)
		if n := len(topics(t, r)); n != 20 {
			t.Fatalf("%d topics, want 20", n)
		}
		page, err := bucket.List(t.Context(), snapshotDir(1), "")
		if err != nil || int64(len(page)) != info.Number {
			t.Fatalf("%d snapshots, the last has number %d, %v", len(page), info.Number, err)
		}
	})
}

// Lost answers and errors of the bucket cost time, and no snapshot.
func TestBackupThroughFaults(t *testing.T) {
	bucket := objectstore.NewMemory()
	faulty := objectstore.NewFaulty(bucket, objectstore.Faults{})
	s := openStore(t, newSQLite(t), nil)
	startBackup(t, s, faulty, BackupConfig{Interval: time.Millisecond})
	faulty.SetFaults(objectstore.Faults{Seed: 1, Unavailable: 0.2, Lost: 0.2})
	node := register(t, s)
	for i := range 20 {
		create(t, s, node, NewTopic{Name: fmt.Sprint("t", i), Partitions: 1})
	}
	if r, _ := restored(t, bucket); len(topics(t, r)) != 20 {
		t.Fatalf("%d topics, want 20", len(topics(t, r)))
	}
}

// A restore refuses what it would destroy or cannot understand, and says what to do.
func TestRestoreRefuses(t *testing.T) {
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "metadata.db")
	want := func(bucket objectstore.Bucket, url string, is error, part string) {
		t.Helper()
		_, err := Restore(ctx, url, bucket, icebergTables, nil)
		if err == nil || is != nil && !errors.Is(err, is) || !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want %q", err, part)
		}
	}
	bucket := objectstore.NewMemory()
	want(bucket, "sqlite:"+path, nil, "no metadata of a cluster")
	want(bucket, "sqlite::memory:", nil, "in memory")
	s := openStore(t, sqliteDatabase(path, false), nil)
	startBackup(t, s, bucket, BackupConfig{})
	register(t, s)
	want(bucket, "sqlite:"+path, ErrDatabaseExists, "move it away")

	last, err := newestSnapshot(ctx, bucket, 1)
	if err != nil {
		t.Fatal(err)
	}
	key := snapshotKey(1, last)
	good, err := bucket.Get(ctx, key, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	bad := bytes.Clone(good)
	bad[len(bad)/2] ^= 1
	if err := bucket.Put(ctx, key, bad); err != nil {
		t.Fatal(err)
	}
	fresh := filepath.Join(t.TempDir(), "fresh.db")
	want(bucket, "sqlite:"+fresh, errCorruptSnapshot, key)
	newer := appendSnapshotHeader(nil, SnapshotInfo{Cluster: s.ClusterID(), Schema: 1000})
	if err := bucket.Put(ctx, key, newer); err != nil {
		t.Fatal(err)
	}
	want(bucket, "sqlite:"+fresh, nil, "run a newer tabletopic")
	// A restore that failed is repeated.
	if err := bucket.Put(ctx, key, good); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(ctx, "sqlite:"+fresh, bucket, icebergTables, nil); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(fresh); err != nil {
		t.Error(err)
	}
}
