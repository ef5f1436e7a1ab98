package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/partition"
)

// A Sweeper deletes the files that no commit adopted: data files, and the manifests, manifest lists
// and metadata files of attempts that did not come about. It trims the control log behind itself. It
// knows the files by the journal, where each was named before it was written, and never lists a
// table. What it does not know is what a REST catalog writes itself, the first metadata file of a
// table whose creation was cut off, and what a process that died was about to delete because it had
// expired. A file is deleted only if its last entry in the journal
// is older than the grace (a worker or a commit that holds it enters it again, or gives it up
// when that fails: see [control.Lapses]), no commit adopted it, and the table does not name it. The
// table is the one of the entry, by its UUID: files of one that was dropped, renamed, or left for
// another stay, because nobody can be asked who names them.
type Sweeper struct {
	Log SweepLog
	// Load returns the table of a topic, nil if there is none any more, and what finds its files.
	Load   func(ctx context.Context, topic uuid.UUID) (*table.Table, catalog.Locator, error)
	Grace  time.Duration
	Logger *slog.Logger
}

// SweepLog is the control log as a Sweeper needs it; *control.Topic is one.
type SweepLog interface {
	Append(ctx context.Context, topic uuid.UUID, events ...control.Event) error
	Partitions() int
	Scan(ctx context.Context, partition int32, from int64, fn func(topic uuid.UUID, offset int64, e control.Event) error) (next int64, err error)
	Trim(ctx context.Context, partition int32, offset int64) error
}

// Run sweeps the control partitions that this node leads now and then, until ctx ends.
func (s *Sweeper) Run(ctx context.Context, every time.Duration) {
	for sleep(ctx, every) == nil {
		for i := range int32(s.Log.Partitions()) {
			err := s.Sweep(ctx, i, time.Now())
			if errors.Is(err, partition.ErrNotLeader) {
				continue // another node sweeps it
			}
			if err != nil && ctx.Err() == nil {
				s.Logger.Warn("sweep of unadopted files: trying again later", "partition", i, "error", err)
			}
		}
	}
}

// maxSwept bounds the names that one sweep remembers; the next goes on from there.
const maxSwept = 100_000

// Sweep handles what one control partition says of files until now-Grace.
func (s *Sweeper) Sweep(ctx context.Context, index int32, now time.Time) error {
	type entry struct {
		topic, table uuid.UUID
		at           time.Time
	}
	names := map[string]entry{} // by location, the latest entry
	end := int64(-1)            // the first offset that is kept
	enter := func(topic, table uuid.UUID, offset int64, at time.Time, locations []string) {
		if young := now.Sub(at) < s.Grace; end < 0 && (young || len(names) >= maxSwept) {
			end = offset
		}
		for _, n := range locations {
			if e, known := names[n]; known && at.After(e.at) || !known && end < 0 {
				names[n] = entry{topic, table, at}
			}
		}
	}
	_, err := s.Log.Scan(ctx, index, 0, func(topic uuid.UUID, offset int64, e control.Event) error {
		switch e := e.(type) {
		case control.Journal:
			enter(topic, e.Table, offset, e.At, e.Names)
		case control.Answer:
			if invariant.Off("answer-is-entry") {
				break
			}
			for _, f := range e.Files {
				enter(topic, e.Table, offset, e.At, f.Names())
			}
		case control.Committed:
			for _, n := range e.Names {
				delete(names, n)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	type owner struct{ topic, table uuid.UUID }
	owners := map[owner][]string{}
	for n, e := range names {
		if now.Sub(e.at) >= s.Grace || invariant.Off("sweep-grace") {
			o := owner{e.topic, e.table}
			owners[o] = append(owners[o], n)
		}
	}
	inOrder := func(a, b owner) int {
		return cmp.Or(slices.Compare(a.topic[:], b.topic[:]), slices.Compare(a.table[:], b.table[:]))
	}
	for _, o := range slices.SortedFunc(maps.Keys(owners), inOrder) {
		err := s.files(ctx, o.topic, o.table, owners[o])
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return err
		}
		s.Logger.Warn("unadopted files stay for the next sweep", "topic_id", o.topic, "files", len(owners[o]), "error", err)
		var again []control.Event
		for _, n := range owners[o] {
			again = append(again, control.Journal{At: names[n].at, Table: o.table, Names: []string{n}})
		}
		if err := s.Log.Append(ctx, o.topic, again...); err != nil {
			return err
		}
	}
	if end > 0 {
		return s.Log.Trim(ctx, index, end)
	}
	return nil
}

// files deletes those of names that the topic's table does not have, if it still is that table.
func (s *Sweeper) files(ctx context.Context, topic, table uuid.UUID, names []string) error {
	t, locator, err := s.Load(ctx, topic)
	if errors.Is(err, errNoTopic) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("table of topic %s: %w", topic, err)
	}
	if (t == nil || t.Metadata().TableUUID() != table) && !invariant.Off("sweep-knows-table") {
		s.Logger.Info("files of a table that the topic does not have any more are left alone", "topic_id", topic, "table", table, "files", len(names))
		return nil
	}
	dead := map[string]bool{}
	for _, n := range names {
		dead[n] = true
	}
	if t != nil && !invariant.Off("sweep-asks-table") {
		if err := spare(ctx, t, locator, dead); err != nil {
			return err
		}
	}
	for _, n := range slices.Sorted(maps.Keys(dead)) {
		bucket, key, err := locator.Resolve(ctx, n)
		if err != nil {
			return err
		}
		if err := bucket.Delete(ctx, key); err != nil {
			return fmt.Errorf("delete %s: %w", n, err)
		}
		s.Logger.Info("deleted a file that no commit adopted", "topic_id", topic, "file", n)
	}
	return nil
}

// spare takes from dead what the table names: its metadata file and those of its log, and the
// manifest list, the manifests and the files of each snapshot.
func spare(ctx context.Context, t *table.Table, locator catalog.Locator, dead map[string]bool) error {
	fs := catalog.NewIO(ctx, locator)
	if !invariant.Off("sweep-spares-metadata") {
		delete(dead, t.MetadataLocation())
		for e := range t.Metadata().PreviousFiles() {
			delete(dead, e.MetadataFile)
		}
	}
	has := func(suffix string) bool {
		for n := range dead {
			if strings.HasSuffix(n, suffix) {
				return true
			}
		}
		return false
	}
	data := has(".parquet")
	if !data && !has(".avro") {
		return nil
	}
	seen := map[string]bool{}
	for _, snapshot := range t.Metadata().Snapshots() {
		if !invariant.Off("sweep-spares-manifests") {
			delete(dead, snapshot.ManifestList)
		}
		manifests, err := snapshot.Manifests(fs)
		if err != nil {
			return fmt.Errorf("manifests of snapshot %d: %w", snapshot.SnapshotID, err)
		}
		for _, m := range manifests {
			if seen[m.FilePath()] {
				continue
			}
			seen[m.FilePath()] = true
			if !invariant.Off("sweep-spares-manifests") {
				delete(dead, m.FilePath())
			}
			if !data {
				continue
			}
			for e, err := range m.Entries(fs, false) {
				if err != nil {
					return fmt.Errorf("manifest %s: %w", m.FilePath(), err)
				}
				delete(dead, e.DataFile().FilePath())
			}
		}
	}
	return nil
}

// sweepTarget finds the table of a topic, or of a route of it. One that is gone keeps its table and its
// files: without its settings nobody knows which table that was.
func sweepTarget(ctx context.Context, set *partition.Set, catalogs Catalogs, locators Locators, id uuid.UUID) (*table.Table, catalog.Locator, error) {
	r, ok, err := set.RouteByID(id)
	if err != nil {
		return nil, nil, err
	}
	if !ok {
		return nil, nil, errNoTopic
	}
	cat, err := catalogs(r.Table.Catalog)
	if err != nil {
		return nil, nil, err
	}
	ident, err := Identifier(r.Table.Namespace, r.Table.Name, r.Name)
	if err != nil {
		return nil, nil, err
	}
	loaded, err := cat.Load(ctx, ident)
	if errors.Is(err, catalog.ErrNoTable) {
		loaded, err = nil, nil
	}
	return loaded, locators(r.Table.Catalog), err
}

// errNoTopic says that the topic of a journalled file is gone: the file is left alone.
var errNoTopic = errors.New("topic is gone")
