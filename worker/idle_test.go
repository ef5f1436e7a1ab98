package worker

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/apache/iceberg-go/table"

	catalogsql "github.com/tabletopic/tabletopic/catalog/sql"
	"github.com/tabletopic/tabletopic/coordinator"
)

// awaitState waits until the coordinator says that the table is in a state, for a reason.
func (p *path) awaitState(want coordinator.TableState, reason string) {
	p.t.Helper()
	var got coordinator.Status
	p.wait(func() bool {
		got = p.commits.Status(time.Now(), coordinator.Work{})
		return got.State == want && strings.Contains(got.Ailment.Message, reason)
	}, func() string {
		return fmt.Sprintf("the state %s (%s), not %s (%s)", want, reason, got.State, got.Ailment.Message)
	})
}

// expire has another writer drop all snapshots but the current one.
func (p *path) expire() {
	p.t.Helper()
	tab, err := p.load()
	if err != nil {
		p.t.Fatal(err)
	}
	var gone []int64
	for _, s := range tab.Metadata().Snapshots() {
		if s.SnapshotID != tab.CurrentSnapshot().SnapshotID {
			gone = append(gone, s.SnapshotID)
		}
	}
	_, err = p.catalog.Catalog.(*catalogsql.Catalog).CommitTable(context.Background(), p.ident(), nil, []table.Update{table.NewRemoveSnapshotsUpdate(gone, false)})
	if err != nil {
		p.t.Fatal(err)
	}
}

// A table that is dropped while no records come is made again, with what the log has.
func TestIdleTableThatIsDropped(t *testing.T) {
	p := newPath(t, 2)
	p.start()
	p.produce(10)
	before := p.committed().Metadata().TableUUID()
	p.awaitState(coordinator.TableOK, "")
	if err := p.catalog.Drop(t.Context(), p.ident()); err != nil {
		t.Fatal(err)
	}
	if after := p.committed().Metadata().TableUUID(); after == before {
		t.Error("the table was not dropped")
	}
	p.exact(20, 0)
}

// A catalog that is away while no records come is told of, in its own words, until it is back.
func TestIdleTableTellsThatItsCatalogIsAway(t *testing.T) {
	p := newPath(t, 1)
	p.start()
	p.awaitState(coordinator.TableWaiting, "")
	p.catalog.away.Store(true)
	p.awaitState(coordinator.TableDegraded, errAway.Error())
	p.catalog.away.Store(false)
	p.produce(10)
	p.committed()
	p.awaitState(coordinator.TableOK, "")
	p.catalog.away.Store(true)
	p.awaitState(coordinator.TableDegraded, errAway.Error())
	p.catalog.away.Store(false)
	p.awaitState(coordinator.TableOK, "")
}

// A rollback is told of without a record, and so is its end.
func TestIdleTableThatIsRolledBack(t *testing.T) {
	p := newPath(t, 1)
	p.start()
	p.produce(10)
	p.committed()
	p.produce(10)
	tab := p.committed()
	p.rollback()
	p.awaitState(coordinator.TablePaused, "main does not descend")
	_, err := p.catalog.Catalog.(*catalogsql.Catalog).CommitTable(context.Background(), p.ident(), nil,
		[]table.Update{table.NewSetSnapshotRefUpdate(table.MainBranch, tab.CurrentSnapshot().SnapshotID, table.BranchRef, 0, 0, 0)})
	if err != nil {
		t.Fatal(err)
	}
	p.awaitState(coordinator.TableOK, "")
	p.produce(10)
	p.committed()
	p.exact(30, 0)
}

// A rollback is noticed also when others went on from it and the snapshots that tell have
// expired before anybody looked; and where there was none nothing is paused.
func TestRollbackThatExpiredIsNoticed(t *testing.T) {
	for _, rolledBack := range []bool{false, true} {
		t.Run(fmt.Sprint(rolledBack), func(t *testing.T) {
			p := newPath(t, 1)
			p.cfg.OnRewind = coordinator.RewindReplay
			p.start()
			p.produce(10)
			p.committed()
			p.produce(10)
			p.committed()
			p.crash()
			if rolledBack {
				p.rollbackTo(10)
			}
			p.foreignCommit()
			p.foreignCommit()
			p.expire()
			if !rolledBack {
				p.cfg.OnRewind = coordinator.RewindPause
			}
			p.start()
			p.produce(10)
			p.committed()
			p.wait(func() bool { return p.verify().Partitions[0].Rows == 30 }, func() string { return "the rows" })
			p.exact(30, 0)
		})
	}
}

// When the snapshots that hold the last commit expire the table names later ones, so that a
// coordinator that knows nothing but the table is not mistaken.
func TestIdleTableNamesSnapshotsThatHoldItsLastCommit(t *testing.T) {
	p := newPath(t, 1)
	p.start()
	p.produce(10)
	p.committed()
	var at coordinator.Position
	named := func() bool {
		tab, err := p.load()
		if err != nil {
			t.Fatal(err)
		}
		if at, _, err = coordinator.ReadPosition(tab.Properties()); err != nil {
			t.Fatal(err)
		}
		for _, id := range at.Heads {
			if tab.SnapshotByID(id) != nil {
				return true
			}
		}
		return false
	}
	if !named() {
		t.Fatalf("a commit names %v, want its snapshot", at.Heads)
	}
	for range 3 {
		p.foreignCommit()
		p.expire()
		p.wait(named, func() string { return fmt.Sprintf("a snapshot that there is, of %v", at.Heads) })
	}
}
