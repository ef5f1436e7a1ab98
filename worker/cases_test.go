package worker

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/apache/iceberg-go/table"

	"github.com/tabletopic/tabletopic/catalog"
	catalogsql "github.com/tabletopic/tabletopic/catalog/sql"
	"github.com/tabletopic/tabletopic/coordinator"
	"github.com/tabletopic/tabletopic/coordinator/control"
)

// hang starts a coordinator and a worker of the next epoch whose first data commit hangs in
// the catalog, as a request does that a proxy holds. They hear of nothing that others say.
// The worker is stopped; ended has what the coordinator says when it ends.
func (p *path) hang() (hold *heldCatalog, ended <-chan error, stop func()) {
	p.t.Helper()
	p.epoch++
	hold = &heldCatalog{Catalog: p.catalog.Catalog, at: make(chan struct{}), release: make(chan struct{})}
	cut := &control.Memory{}
	c := p.coordinatorOn(cut, p.epoch, hold)
	sources := map[int32]Source{}
	for i, l := range p.logs {
		sources[i] = l
	}
	w := New(Topic{p.topic, p.name}, sources, cut, control.NewSchemas(p.call, p), p.letters, p.locator, NewShared(0, 0, nil), p.worker, testLog(p.t))
	ctx, cancel := context.WithCancel(context.Background())
	workerCtx, stopWorker := context.WithCancel(ctx)
	workerEnded, said := make(chan struct{}), make(chan error, 1)
	go func() { defer close(workerEnded); _ = w.Run(workerCtx) }()
	go func() { said <- c.Run(ctx) }()
	<-hold.at
	stopWorker()
	<-workerEnded
	return hold, said, cancel
}

// Leadership that goes from one node to another and back while a catalog call of the first
// hangs leaves one coordinator: the call that hung changes nothing when it comes through, and
// its coordinator stops.
func TestLeadershipComesBackWhileACallHangs(t *testing.T) {
	p := newPath(t, 2)
	p.start()
	p.produce(5)
	p.committed()
	p.crash()
	p.produce(5)
	hold, ended, stop := p.hang()
	defer stop()
	for range 2 { // to the other node, and back
		p.start()
		p.produce(5)
		p.committed()
		p.crash()
	}
	before, err := p.load()
	if err != nil {
		t.Fatal(err)
	}
	close(hold.release)
	p.wait(func() bool { return len(ended) > 0 }, func() string { return "the first coordinator to stop" })
	if err := <-ended; !errors.Is(err, coordinator.ErrFenced) {
		t.Errorf("it ended with %v, want ErrFenced", err)
	}
	if after, err := p.load(); err != nil || after.MetadataLocation() != before.MetadataLocation() {
		t.Errorf("the call that hung changed the table to %v, %v", after.MetadataLocation(), err)
	}
	p.exact(40, 0)
}

// A commit that the catalog still had when its coordinator died, and that lands when the next
// one has read the table and made the same commit, is there once; so it is if it comes
// when the next is done.
func TestHeldCommitLandsAfterTheRestart(t *testing.T) {
	p := newPath(t, 1)
	p.start()
	p.produce(5)
	p.committed()
	p.crash()
	p.produce(5)
	hold, ended, stop := p.hang()
	stop() // the client is gone, the request is not
	landed := false
	real := p.catalog.Catalog
	p.catalog.Catalog = &changingCatalog{Catalog: real, before: func(c catalog.Commit) {
		if !c.Snapshot || landed {
			return
		}
		landed = true
		before, err := real.Load(context.Background(), p.ident())
		if err != nil {
			t.Error(err)
		}
		close(hold.release)
		<-ended
		if after, err := real.Load(context.Background(), p.ident()); err != nil || after.MetadataLocation() == before.MetadataLocation() {
			t.Errorf("the held commit did not land: %v", err)
		}
	}, after: func(_ catalog.Commit, err error) error { return err }}
	p.start()
	p.produce(5)
	p.committed()
	p.exact(15, 0)
	p.crash()
	if !landed {
		t.Error("nothing was committed after the restart")
	}
}

// Where a topic's table is stands in the table alone: an idle time of any length, the loss of
// the control log and of all that workers and coordinators knew change nothing.
func TestPositionIsInTheTableAlone(t *testing.T) {
	p := newPath(t, 2)
	for round := range int64(3) {
		p.start()
		p.produce(10)
		p.committed()
		p.exact(20*(round+1), 0)
		p.crash()
		p.control = &control.Memory{}
	}
}

// A table whose snapshots but the last were expired by others goes on where it was.
func TestExpiredToOneSnapshot(t *testing.T) {
	p := newPath(t, 2)
	for round := range int64(3) {
		p.start()
		for range 3 {
			p.produce(5)
			p.committed()
		}
		p.crash()
		p.expireToOne()
		p.start()
		p.produce(5)
		p.committed()
		p.crash()
		p.exact(40*(round+1), 0)
	}
}

// expireToOne drops all snapshots but the current one, as any engine may.
func (p *path) expireToOne() {
	p.t.Helper()
	tab, err := p.load()
	if err != nil {
		p.t.Fatal(err)
	}
	var old []int64
	for _, s := range tab.Metadata().Snapshots() {
		if s.SnapshotID != tab.CurrentSnapshot().SnapshotID {
			old = append(old, s.SnapshotID)
		}
	}
	if len(old) == 0 {
		p.t.Fatal("the table has one snapshot already")
	}
	if _, err := p.catalog.Catalog.(*catalogsql.Catalog).CommitTable(context.Background(), p.ident(), nil, []table.Update{table.NewRemoveSnapshotsUpdate(old, false)}); err != nil {
		p.t.Fatal(err)
	}
}

// The control log is trimmed before worker and coordinator have read all of it: they begin their round anew, and no record comes
// twice or stays away.
func TestControlEventsAreLost(t *testing.T) {
	p := newPath(t, 2)
	p.cfg.Timeout = 100 * time.Millisecond
	var mu sync.Mutex
	r, lost := rand.New(rand.NewPCG(1, 0)), 0
	p.control.Refuse(func(control.Event) error {
		mu.Lock()
		defer mu.Unlock()
		if lost < 10 && r.IntN(3) == 0 {
			lost = p.control.Trim()
		}
		return nil
	})
	p.start()
	rows := int64(0)
	for done := false; !done; {
		if rows > 5000 {
			t.Fatal("nobody fell behind the control log")
		}
		p.produce(5)
		rows += 10
		p.committed()
		mu.Lock()
		done = lost >= 10
		mu.Unlock()
	}
	p.exact(rows, 0)
}

// Events of the control log that come again, at once or late, make no record come twice and
// none stay away: a request, an answer or a word of a commit counts for its own round alone.
func TestControlEventsComeAgain(t *testing.T) {
	for seed := range uint64(3) {
		p := newPath(t, 2)
		r := rand.New(rand.NewPCG(seed, 0))
		var rows int64
		produce := func() {
			p.produce(5)
			rows += 10
		}
		var said []control.Event // once each
		again := func() {
			all := p.control.All(p.topic)
			from := r.IntN(1 + len(all))
			said = append(said, all[from:min(len(all), from+20)]...)
			if err := p.control.Append(t.Context(), p.topic, said[max(0, len(said)-40):]...); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 { // the second hears what was said to the first
			p.start()
			for range 6 {
				produce()
				if r.IntN(2) == 0 {
					p.committed()
				}
				again()
				produce()
				p.committed()
			}
			again()
			p.crash()
		}
		p.start()
		produce()
		p.committed()
		p.crash()
		p.exact(rows, 0)
	}
}

// A commit whose answer was lost is not made again when its coordinator comes back, though all
// of its files have been compacted into others meanwhile, and its snapshot has expired.
func TestCompactionHidesNoCommit(t *testing.T) {
	p := newPath(t, 2)
	for round := range int64(3) {
		p.start()
		for range 2 {
			p.produce(5)
			p.committed()
		}
		p.crash()
		landed := make(chan struct{}, 100)
		p.catalog.mu.Lock()
		p.catalog.fault = func(int) fault {
			landed <- struct{}{}
			return faultApplied
		}
		p.catalog.mu.Unlock()
		p.start()
		p.produce(5)
		<-landed
		p.crash()
		p.catalog.mu.Lock()
		p.catalog.fault = nil
		p.catalog.mu.Unlock()
		p.compact()
		if round > 0 {
			p.expireToOne()
		}
		p.start()
		p.produce(5)
		p.committed()
		p.crash()
		p.exact(40*(round+1), 0)
	}
}

// compact replaces all data files by one, as engines do.
func (p *path) compact() {
	p.t.Helper()
	tab, err := p.load()
	if err != nil {
		p.t.Fatal(err)
	}
	tasks, err := tab.Scan().PlanFiles(p.t.Context())
	if err != nil || len(tasks) < 2 {
		p.t.Fatalf("%d files, error %v", len(tasks), err)
	}
	p.foreign(func(tx *table.Transaction) error {
		_, err := tx.RewriteDataFiles(p.t.Context(), []table.CompactionTaskGroup{{Tasks: tasks}}, table.RewriteDataFilesOptions{})
		return err
	})
	if tab, err = p.load(); err != nil || tab.CurrentSnapshot().Summary.Operation != table.OpReplace || len(planned(p.t, tab)) >= len(tasks) {
		p.t.Fatalf("snapshot %v, error %v; want fewer than %d files", tab.CurrentSnapshot(), err, len(tasks))
	}
}

// Another process that compacts the table all the time, each time when our commit is on its way, delays
// our commits: no data file of ours is written again, and all rows stay.
func TestForeignCompactionsDoNotStopOurs(t *testing.T) {
	p := newPath(t, 2)
	replaced := 0
	p.catalog.fault = func(n int) fault {
		if tab, err := p.load(); n%3 == 2 || err != nil || tab.CurrentSnapshot() == nil {
			return faultNone
		}
		if err := p.rewrite(); err != nil {
			t.Error(err)
			return faultNone
		}
		replaced++
		return faultNone
	}
	p.start()
	for range 6 {
		p.produce(20)
		p.committed()
	}
	written := counted(t, p.running.metrics.files)
	p.crash()
	p.exact(240, 0)
	tab, err := p.load()
	if err != nil {
		t.Fatal(err)
	}
	theirs, added := 0, 0
	for _, s := range tab.Metadata().Snapshots() {
		switch s.Summary.Operation {
		case table.OpReplace:
			theirs++
		default:
			added += s.Summary.Properties.GetInt("added-data-files", 0)
		}
	}
	if theirs < 5 || theirs != replaced {
		t.Errorf("%d snapshots of the other process, which made %d; want at least 5", theirs, replaced)
	}
	if written != added {
		t.Errorf("%d data files were written for %d in our snapshots", written, added)
	}
}

// rewrite replaces all data files by one, or one by another, as engines do; it may run beside a commit.
func (p *path) rewrite() error {
	tab, err := p.load()
	if err != nil {
		return err
	}
	tasks, err := tab.Scan().PlanFiles(context.Background())
	if err != nil {
		return err
	}
	tx := table.New(tab.Identifier(), tab.Metadata(), tab.MetadataLocation(), catalog.FS(p.locator), engine{p.catalog.Catalog.(*catalogsql.Catalog)}).NewTransaction()
	if _, err := tx.RewriteDataFiles(context.Background(), []table.CompactionTaskGroup{{Tasks: tasks}}, table.RewriteDataFilesOptions{}); err != nil {
		return err
	}
	_, err = tx.Commit(context.Background())
	return err
}
