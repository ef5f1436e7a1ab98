package worker

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/objectstore"
)

// A file is in the journal before it is in the store.
func TestJournalComesBeforeTheFile(t *testing.T) {
	p := newPath(t, 1)
	var early atomic.Int64
	hold := p.bucket.Hold(objectstore.Before, func(op objectstore.Op, key string) bool {
		if op != objectstore.OpPut || !strings.HasSuffix(key, ".parquet") {
			return false
		}
		for _, e := range p.control.All(p.topic) {
			if j, ok := e.(control.Journal); ok && strings.HasSuffix(j.Names[0], key) {
				return false
			}
		}
		early.Add(1)
		return false
	})
	defer hold.Release(nil)
	requested := make(chan struct{})
	var once sync.Once
	p.control.Refuse(func(e control.Event) error {
		if _, ok := e.(control.Request); ok {
			once.Do(func() { close(requested) })
		}
		if ofData(e) { // is slow, once the file is asked for
			await(requested)
			return sleep(t.Context(), 200*time.Millisecond)
		}
		return nil
	})
	p.start()
	p.produce(5)
	p.committed()
	p.exact(5, 0)
	if n := early.Load(); n > 0 {
		t.Errorf("%d files were written before the journal had their names", n)
	}
}

// The name of a file that takes the place of small ones is in the journal before the file is written.
func TestCompactionIsNamedBeforeItsFiles(t *testing.T) {
	p := newPath(t, 1)
	var early atomic.Int64
	hold := p.bucket.Hold(objectstore.Before, func(op objectstore.Op, key string) bool {
		if op != objectstore.OpPut || !strings.HasSuffix(key, ".parquet") {
			return false
		}
		for _, e := range p.control.All(p.topic) {
			if j, ok := e.(control.Journal); ok && slices.ContainsFunc(j.Names, func(n string) bool { return strings.HasSuffix(n, key) }) {
				return false
			}
		}
		early.Add(1)
		return false
	})
	defer hold.Release(nil)
	p.start()
	p.wait(func() bool {
		p.produce(1)
		tab := p.committed()
		return !coordinator.LastCompaction(tab).IsZero()
	}, func() string { return "no compaction" })
	if n := early.Load(); n > 0 {
		t.Errorf("%d files were written before the journal had their names", n)
	}
}

// A table that is dropped while its small files are being compacted is made anew from the log, and the
// round comes to nothing.
func TestTableDroppedWhileItIsCompacted(t *testing.T) {
	p := newPath(t, 1)
	p.cfg.CompactMinFiles = 2
	registry := prometheus.NewRegistry()
	p.metrics = coordinator.NewMetrics(registry)
	reads := p.bucket.Hold(objectstore.Before, func(op objectstore.Op, key string) bool {
		return op == objectstore.OpGet && strings.HasSuffix(key, ".parquet")
	})
	release := sync.OnceFunc(func() { reads.Release(nil) })
	defer release()
	p.start()
	rows := int64(0)
	p.wait(func() bool {
		p.produce(5)
		rows += 5
		p.committed()
		return closed(reads.Reached())
	}, func() string { return "a compaction" })
	over := make(chan struct{})
	p.control.Refuse(func(e control.Event) error {
		if _, ok := e.(control.Needed); ok { // has the coordinator make the table
			await(over)
		}
		return nil
	})
	before := len(p.control.All(p.topic))
	if err := p.catalog.Catalog.Drop(t.Context(), p.ident()); err != nil {
		t.Fatal(err)
	}
	noticed := func(e control.Event) bool {
		b, ok := e.(control.Began)
		return ok && b.Table == uuid.UUID{}
	}
	p.wait(func() bool { return slices.ContainsFunc(p.control.All(p.topic)[before:], noticed) }, func() string { return "the coordinator to notice" })
	release()
	p.wait(func() bool { return gathered(t, registry, "tabletopic_table_compaction_void_total") == 1 }, func() string { return "the round to be over" })
	close(over)
	p.committed()
	p.exact(rows, 0)
}

// The files of a commit are journalled again and again while the catalog keeps it waiting,
// though the worker that wrote them has no part in that.
func TestWaitingCommitKeepsItsFilesNamed(t *testing.T) {
	p := newPath(t, 1)
	p.cfg.Grace = 400 * time.Millisecond
	var mu sync.Mutex
	var once sync.Once
	entries, again := map[string]int{}, make(chan struct{})
	p.control.Refuse(func(e control.Event) error {
		mu.Lock()
		defer mu.Unlock()
		if j, ok := e.(control.Journal); ok {
			for _, n := range j.Names {
				if entries[n]++; entries[n] == 3 && strings.HasSuffix(n, ".parquet") {
					once.Do(func() { close(again) })
				}
			}
		}
		return nil
	})
	p.catalog.fault = func(int) fault {
		select {
		case <-again:
		case <-time.After(time.Minute):
			t.Error("the files of a commit that waits are not journalled again")
		}
		return faultNone
	}
	p.start()
	p.produce(5)
	p.committed()
	p.exact(5, 0)
}

// A commit whose files cannot be journalled for half the grace asks no catalog to take them any
// more: the sweep may have them. The next round takes what the workers have then.
func TestCommitIsVoidWhenItsFilesCannotBeNamed(t *testing.T) {
	p := newPath(t, 1)
	p.cfg.Grace = 200 * time.Millisecond
	var answered atomic.Bool
	var rounds atomic.Int32
	p.control.Refuse(func(e control.Event) error {
		switch e.(type) {
		case control.Request:
			rounds.Add(1)
		case control.Answer:
			answered.Store(true)
		}
		if ofData(e) && answered.Load() {
			return errors.New("the log takes no names of data files")
		}
		return nil
	})
	p.catalog.fault = func(int) fault {
		if rounds.Load() == 1 {
			return faultConflict
		}
		return faultNone
	}
	p.start()
	p.produce(5)
	p.committed()
	p.exact(5, 0)
}

// What an attempt is to write is named with the request. When the answer comes so late that a sweep may have read that
// entry and taken the names for dead, which it deletes when it comes to them, the attempt takes others.
func TestNamesThatTheSweepMayHaveAreNotUsed(t *testing.T) {
	p := newPath(t, 1)
	p.cfg.Grace = 400 * time.Millisecond
	var requests atomic.Int32
	p.control.Refuse(func(e control.Event) error {
		if _, ok := e.(control.Request); ok {
			requests.Add(1)
		}
		if ofData(e) && requests.Load() == 2 {
			return sleep(t.Context(), p.cfg.Grace)
		}
		return nil
	})
	p.start()
	for range 3 {
		p.produce(5)
		p.committed()
	}
	p.crash()
	p.exact(15, 0)
	live, last := p.named(), map[string]time.Time{}
	for _, e := range p.control.All(p.topic) {
		j, ok := e.(control.Journal)
		if !ok || ofData(e) {
			continue
		}
		for _, n := range j.Names {
			at, known := last[n]
			last[n] = j.At
			if live[n] && known && j.At.Sub(at) >= p.cfg.Grace {
				t.Errorf("the table names %s, which the sweep could take for dead: it was named again after %v", n, j.At.Sub(at))
			}
		}
	}
	if len(last) == 0 || requests.Load() < 3 {
		t.Errorf("%d names, %d requests", len(last), requests.Load())
	}
}

// Names whose next entry is durable only after the last one has lapsed are given up, as data files are: by the clock of a
// sweeper that is ahead it may be too late.
func TestNamesWhoseRenewalComesTooLateAreNotUsed(t *testing.T) {
	p := newPath(t, 1)
	p.cfg.Grace = 5 * time.Second
	var requests atomic.Int32
	var mu sync.Mutex
	at, late := map[string]time.Time{}, map[string]time.Duration{}
	p.control.Refuse(func(e control.Event) error {
		if _, ok := e.(control.Request); ok {
			requests.Add(1)
		}
		j, ok := e.(control.Journal)
		if !ok {
			return nil
		}
		if ofData(e) {
			if requests.Load() == 2 {
				return sleep(t.Context(), 2*p.cfg.Grace/5)
			}
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		for _, n := range j.Names {
			if _, known := at[n]; known && requests.Load() == 2 {
				if err := sleep(t.Context(), 2*p.cfg.Grace/5); err != nil {
					return err
				}
				break
			}
		}
		for _, n := range j.Names {
			if last, known := at[n]; known && time.Since(last) > p.cfg.Grace/2 {
				late[n] = time.Since(last)
			}
			at[n] = j.At
		}
		return nil
	})
	p.start()
	for range 2 {
		p.produce(5)
		p.committed()
	}
	p.crash()
	p.exact(10, 0)
	for n := range p.named() {
		if d := late[n]; d > 0 {
			t.Errorf("the table names %s, of which there was no durable entry younger than %v for %v", n, p.cfg.Grace/2, d)
		}
	}
}

// A worker whose files cannot be journalled again for half the grace offers them no more: it
// converts their records again, and names the files once more, for the sweep.
func TestWorkerGivesUpFilesThatCannotBeNamed(t *testing.T) {
	p := newPath(t, 1)
	p.worker.Grace = 200 * time.Millisecond
	var mu sync.Mutex
	entries := map[string]int{}
	var first string
	var others, offered atomic.Bool
	p.control.Refuse(func(e control.Event) error {
		mu.Lock()
		defer mu.Unlock()
		switch e := e.(type) {
		case control.Journal:
			if !ofData(e) {
				break
			}
			name := e.Names[0]
			first = cmp.Or(first, name)
			others.Store(others.Load() || name != first)
			if entries[name] > 0 && !others.Load() {
				return errors.New("the log does not take the name again")
			}
			entries[name]++
		case control.Answer:
			for _, f := range e.Files {
				offered.Store(offered.Load() || f.Data[0].Location != first)
			}
		}
		return nil
	})
	p.catalog.fault = func(int) fault {
		if !offered.Load() {
			return faultRefused
		}
		return faultNone
	}
	p.start()
	p.produce(5)
	for n := range planned(t, p.committed()) {
		if n == first {
			t.Errorf("the table has %s, which the worker could not name", n)
		}
	}
	p.exact(5, 0)
	p.wait(func() bool { mu.Lock(); defer mu.Unlock(); return entries[first] > 1 }, func() string { return "the first file to be named for the sweep" })
}

// A lane that is sealed while the journal refuses its names has all of them in every entry that
// follows: what the worker takes for named again is.
func TestNamesAreTakenAnewAfterAFailure(t *testing.T) {
	p := newPath(t, 1)
	p.cfg.PartitionBy = "[id]"
	p.worker.Grace = 2 * time.Second
	const partitions = namedAhead + 2
	lane := func(name string) string { return name[:strings.LastIndex(name, "-")] }
	var mu sync.Mutex
	entries := map[string]int{}
	sealed := map[string]time.Time{} // when a lane's last names were entered
	refused, renewed := make(chan struct{}), make(chan struct{})
	var refusedOnce, renewedOnce sync.Once
	p.control.Refuse(func(e control.Event) error {
		switch e := e.(type) {
		case control.Request: // seals
			await(refused)
		case control.Journal:
			if !ofData(e) {
				break
			}
			mu.Lock()
			defer mu.Unlock()
			of := lane(e.Names[0])
			entries[of]++
			switch at, ok := sealed[of]; {
			case entries[of] == 1:
			case len(e.Names) == partitions-namedAhead:
				sealed[of] = e.At
			case !ok:
				refusedOnce.Do(func() { close(refused) })
				return errors.New("the log takes no name again before the lane is sealed")
			case e.At.After(at):
				if len(e.Names) != partitions {
					t.Errorf("an entry of %v has %d names of a lane that had %d files at %v", e.At, len(e.Names), partitions, at)
				}
				renewedOnce.Do(func() { close(renewed) })
			}
		}
		return nil
	})
	p.catalog.fault = func(int) fault { await(renewed); return faultNone }
	for id := range int64(partitions) {
		p.logs[0].append(t, event(t, id))
	}
	p.start()
	p.committed()
	p.exact(partitions, 0)
	p.wait(func() bool { return closed(renewed) }, func() string { return "an entry of the sealed lane" })
}

// ofData tells whether an event names data files, and not those of an attempt to commit.
func ofData(e control.Event) bool {
	j, ok := e.(control.Journal)
	return ok && strings.HasSuffix(j.Names[0], ".parquet")
}

// await waits for ch, but not for ever.
func await(ch <-chan struct{}) {
	select {
	case <-ch:
	case <-time.After(time.Minute):
	}
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// Files that no commit adopted are deleted after the grace, and none that the table has.
func TestSweepDeletesWhatNoCommitAdopted(t *testing.T) {
	p := newPath(t, 1)
	p.start()
	p.produce(10)
	tab := p.committed()
	p.crash()
	orphan := catalog.DataLocation(tab, "orphan.parquet")
	b, key, err := p.locator.Resolve(t.Context(), orphan)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Put(t.Context(), key, []byte("x")); err != nil {
		t.Fatal(err)
	}
	live := planned(t, tab)
	names := []string{orphan}
	for n := range live {
		names = append(names, n)
	}
	swept := &sweepLog{topic: p.topic}
	now := time.Now()
	swept.events = []control.Event{control.Journal{At: now.Add(-2 * time.Hour), Table: tab.Metadata().TableUUID(), Names: names}}
	// Named again a minute ago: a worker still holds it.
	swept.events = append(swept.events, control.Journal{At: now.Add(-time.Minute), Table: tab.Metadata().TableUUID(), Names: []string{orphan}})
	p.sweep(swept, now)
	if _, err := b.Get(t.Context(), key, 0, -1); err != nil {
		t.Fatalf("file of a living worker: %v", err)
	}
	if swept.trimmed != 1 {
		t.Errorf("control log trimmed to %d, want 1", swept.trimmed)
	}

	// Offered a minute ago; and then a sweep could not ask the table, and entered it as it was.
	answer := control.Answer{At: now.Add(-time.Minute), Table: tab.Metadata().TableUUID(), Files: []control.File{{Data: []control.DataFile{{Location: orphan}}}}}
	swept.events = []control.Event{swept.events[0], answer, swept.events[0]}
	p.sweep(swept, now)
	if _, err := b.Get(t.Context(), key, 0, -1); err != nil {
		t.Fatalf("file that a worker offered: %v", err)
	}
	swept.events = []control.Event{control.Journal{At: now.Add(-2 * time.Hour), Table: tab.Metadata().TableUUID(), Names: names}}
	p.sweep(swept, now)
	if _, err := b.Get(t.Context(), key, 0, -1); !errors.Is(err, objectstore.ErrNotFound) {
		t.Errorf("file that nobody adopted: %v, want not found", err)
	}
	p.exact(10, 0)
}

// A table that somebody renamed, or that the topic left for another, keeps its files, though the
// coordinator died before it could say that they were adopted: there is nobody to ask who names them.
func TestSweepLeavesTheFilesOfATableThatIsNotThere(t *testing.T) {
	p := newPath(t, 1)
	p.start()
	p.produce(10)
	tab := p.committed()
	p.crash()
	var names []string
	for n := range planned(t, tab) {
		names = append(names, n)
	}
	now := time.Now()
	swept := &sweepLog{topic: p.topic, events: []control.Event{control.Journal{At: now.Add(-2 * time.Hour), Table: tab.Metadata().TableUUID(), Names: names}}}
	there := func(when string) {
		t.Helper()
		p.sweep(swept, now)
		for _, n := range names {
			b, key, err := p.locator.Resolve(t.Context(), n)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := b.Get(t.Context(), key, 0, 1); err != nil {
				t.Errorf("%s: %s: %v", when, n, err)
			}
		}
	}
	if err := p.catalog.Drop(t.Context(), p.ident()); err != nil { // as a rename does to the name
		t.Fatal(err)
	}
	there("no table of the name")
	if _, err := p.catalog.Create(t.Context(), p.ident(), tab.Schema(), nil); err != nil {
		t.Fatal(err)
	}
	there("another table of the name")
}

// Whatever a process was about when it died, and whatever its catalog answered, after the grace the
// table's folders have what the table names, all of it, and nothing else.
func TestSweepLeavesWhatTheTableNames(t *testing.T) {
	p := newPath(t, 1)
	p.start()
	p.produce(5)
	p.committed()
	rows := int64(5)
	// held begins a commit whose first write of that kind is held.
	held := func(stage objectstore.Stage, part string) *objectstore.Hold {
		var once atomic.Bool
		hold := p.bucket.Hold(stage, func(op objectstore.Op, key string) bool {
			return op == objectstore.OpPutIfAbsent && strings.Contains(key, part) && once.CompareAndSwap(false, true)
		})
		p.start()
		p.produce(5)
		<-hold.Reached()
		return hold
	}
	dies := func(stage objectstore.Stage, part string) func() {
		return func() {
			hold := held(stage, part)
			p.bucket.Cut(true)
			p.crash()
			p.bucket.Cut(false)
			hold.Release(nil)
		}
	}
	answers := func(f fault) func() {
		return func() {
			var once sync.Once
			p.catalog.fault = func(int) (is fault) { once.Do(func() { is = f }); return is }
			p.start()
			p.produce(5)
			p.committed()
			p.crash()
		}
	}
	for _, disaster := range []struct {
		name   string
		happen func()
	}{
		{"no manifest yet", dies(objectstore.Before, "-m0.avro")},
		{"manifest", dies(objectstore.After, "-m0.avro")},
		{"manifest list", dies(objectstore.After, "snap-")},
		{"metadata", dies(objectstore.After, ".metadata.json")},
		{"metadata of other partitions", func() {
			p.cfg.PartitionBy = "[bucket(id,2)]"
			dies(objectstore.After, ".metadata.json")()
		}},
		{"applied and not told", answers(faultApplied)},
		{"lost and not told", answers(faultLost)},
		{"conflict", answers(faultConflict)},
		{"another came first", func() {
			hold := held(objectstore.After, "snap-")
			p.foreignCommit()
			hold.Release(nil)
			p.committed()
			p.crash()
		}},
		{"committed and not said", func() {
			said := make(chan struct{})
			var once sync.Once
			p.control.Refuse(func(e control.Event) error {
				if e, ok := e.(control.Committed); ok && e.Snapshot != 0 {
					once.Do(func() { close(said) })
					return errors.New("the log takes no commits")
				}
				return nil
			})
			p.start()
			p.produce(5)
			<-said
			p.crash()
			p.control.Refuse(nil)
		}},
	} {
		p.crash()
		disaster.happen()
		p.catalog.fault = nil
		rows += 5
		t.Logf("%s: %d files", disaster.name, len(p.files()))
	}
	p.start()
	p.committed()
	p.crash()
	p.exact(rows, 0)
	p.sweep(&sweepLog{topic: p.topic, events: p.control.All(p.topic)}, time.Now().Add(2*time.Hour))
	named, there := p.named(), p.files()
	for key := range there {
		if !named[key] {
			t.Errorf("%s is there, and the table does not name it", key)
		}
	}
	for key := range named {
		if !there[key] {
			t.Errorf("the table names %s, which is not there", key)
		}
	}
	p.exact(rows, 0)
}

// A commit on the table that it was foreseen for waits for no entry of its own. The first may be
// foreseen for a table that does not have its columns yet.
func TestCommitWaitsForNoEntryOfItsOwn(t *testing.T) {
	p := newPath(t, 2)
	p.start()
	for range 5 {
		p.produce(5)
		p.committed()
	}
	p.crash()
	open, commits := false, 0
	for _, e := range p.control.All(p.topic) {
		switch e := e.(type) {
		case control.Request:
			open = true
		case control.Committed:
			if e.Snapshot != 0 {
				commits++
			}
			open = false
		case control.Journal:
			if open && commits > 0 && !ofData(e) {
				t.Errorf("%v are named between a request and its commit", e.Names)
			}
		}
	}
	if commits < 4 {
		t.Errorf("%d commits, want 4 at least", commits)
	}
}

// sweep deletes what log says that nobody wants.
func (p *path) sweep(log *sweepLog, now time.Time) {
	p.t.Helper()
	s := &coordinator.Sweeper{Log: log, Grace: time.Hour, Logger: testLog(p.t),
		Load: func(context.Context, uuid.UUID) (*table.Table, catalog.Locator, error) {
			tab, err := p.load()
			return tab, p.locator, err
		}}
	if err := s.Sweep(context.Background(), 0, now); err != nil {
		p.t.Fatal(err)
	}
}

// files are the locations of all files of the table's folders.
func (p *path) files() map[string]bool {
	p.t.Helper()
	all := map[string]bool{}
	for after := ""; ; {
		page, err := p.bucket.List(context.Background(), "warehouse/", after)
		if err != nil {
			p.t.Fatal(err)
		}
		if len(page) == 0 {
			return all
		}
		for _, o := range page {
			after = o.Key
			all[objectstore.Location(p.bucket, o.Key)] = true
		}
	}
}

// named are the locations of all files that the table names.
func (p *path) named() map[string]bool {
	p.t.Helper()
	tab, err := p.load()
	if err != nil {
		p.t.Fatal(err)
	}
	all := map[string]bool{tab.MetadataLocation(): true}
	for e := range tab.Metadata().PreviousFiles() {
		all[e.MetadataFile] = true
	}
	fs := catalog.NewIO(context.Background(), p.locator)
	for _, s := range tab.Metadata().Snapshots() {
		all[s.ManifestList] = true
		manifests, err := s.Manifests(fs)
		if err != nil {
			p.t.Fatal(err)
		}
		for _, m := range manifests {
			all[m.FilePath()] = true
			for e, err := range m.Entries(fs, false) {
				if err != nil {
					p.t.Fatal(err)
				}
				all[e.DataFile().FilePath()] = true
			}
		}
	}
	return all
}

// sweepLog is a control log of one partition.
type sweepLog struct {
	topic   uuid.UUID
	events  []control.Event
	trimmed int64
}

func (l *sweepLog) Append(_ context.Context, _ uuid.UUID, events ...control.Event) error {
	l.events = append(l.events, events...)
	return nil
}

func (l *sweepLog) Partitions() int { return 1 }

func (l *sweepLog) Scan(_ context.Context, _ int32, from int64, fn func(uuid.UUID, int64, control.Event) error) (int64, error) {
	for i := from; i < int64(len(l.events)); i++ {
		if err := fn(l.topic, i, l.events[i]); err != nil {
			return i, err
		}
	}
	return int64(len(l.events)), nil
}

func (l *sweepLog) Trim(_ context.Context, _ int32, offset int64) error {
	l.trimmed = offset
	return nil
}
