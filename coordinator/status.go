package coordinator

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/maintenance"
)

// Status is how a table is as its coordinator knows it.
type Status struct {
	State   TableState
	Ailment Ailment
	Table   *table.Table // as last loaded or committed; nil if there is none yet
	// Survey is of its small files, when it was last looked through for them; nil before.
	Survey *maintenance.Survey
}

// A watch is the Health of a running coordinator.
type watch struct {
	mu     sync.Mutex
	health Health              // guarded by mu
	table  *table.Table        // guarded by mu
	called time.Time           // guarded by mu; when the last call to the catalog ended
	survey *maintenance.Survey // guarded by mu; without its files
}

func (w *watch) surveyed(s *maintenance.Survey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.survey = &maintenance.Survey{Sequence: s.Sequence, Small: s.Small, Live: s.Live, Alone: s.Alone}
}

func (w *watch) tell(fn func(h *Health, now time.Time)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fn(&w.health, time.Now())
}

func (w *watch) show(t *table.Table) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.table = t
}

// lastCall returns when the last call to the catalog ended.
func (w *watch) lastCall() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.called
}

// Status returns how the table is. It answers also while the coordinator waits for something.
func (c *Coordinator) Status(now time.Time, w Work) Status {
	c.watch.mu.Lock()
	defer c.watch.mu.Unlock()
	stuck := time.Duration(c.cfg.StuckLags) * c.cfg.Lag
	state, ailment := c.watch.health.State(now, w, Patience{Call: c.cfg.Lag, Stuck: stuck})
	return Status{state, ailment, c.watch.table, c.watch.survey}
}

// Trouble returns why the table gets no rows for now, nil if nothing is known to be wrong.
func (c *Coordinator) Trouble() error { return c.Status(time.Now(), Work{}).err() }

func (s Status) err() error {
	if s.Ailment.Message == "" {
		return nil
	}
	return errors.New(s.Ailment.Message)
}

// Status returns how the table of a topic is; false if it has no coordinator here.
func (m *Manager) Status(topic uuid.UUID, now time.Time, w Work) (Status, bool) {
	m.mu.Lock()
	c := m.coordinators[topic]
	m.mu.Unlock()
	if c == nil {
		return Status{}, false
	}
	return c.Status(now, w), true
}

// Trouble returns why the table of a topic gets no rows for now; nil if nothing is known to
// be wrong, or the topic has no coordinator here.
func (m *Manager) Trouble(topic uuid.UUID) error {
	s, _ := m.Status(topic, time.Now(), Work{})
	return s.err()
}

// watched is a catalog whose calls are noted in a watch. Refusals and conflicts are answers.
type watched struct {
	catalog.Catalog
	watch *watch
	up    func(bool)
}

func (w *watched) call(fn func() error) {
	w.watch.tell(func(h *Health, now time.Time) { h.Calls(now) })
	err := fn()
	if errors.Is(err, catalog.ErrNoTable) || errors.Is(err, context.Canceled) {
		err = nil
	}
	w.up(err == nil)
	w.watch.tell(func(h *Health, now time.Time) {
		h.Answered(err, now)
		w.watch.called = now
	})
}

// Load implements catalog.Catalog.
func (w *watched) Load(ctx context.Context, id table.Identifier) (t *table.Table, err error) {
	w.call(func() error { t, err = w.Catalog.Load(ctx, id); return err })
	return t, err
}

// Create implements catalog.Catalog.
func (w *watched) Create(ctx context.Context, id table.Identifier, schema *iceberg.Schema, props iceberg.Properties) (t *table.Table, err error) {
	w.call(func() error { t, err = w.Catalog.Create(ctx, id, schema, props); return nil })
	return t, err
}

// Commit implements catalog.Catalog.
func (w *watched) Commit(ctx context.Context, base *table.Table, change catalog.Commit) (t *table.Table, err error) {
	w.call(func() error {
		if t, err = w.Catalog.Commit(ctx, base, change); errors.Is(err, catalog.ErrCommitUnknown) {
			return err
		}
		return nil
	})
	return t, err
}

// LastCommit returns the snapshot of the last data commit and its time; zero if there was
// none, or if it has expired.
func LastCommit(t *table.Table) (snapshot int64, at time.Time) {
	p, ok, err := ReadPosition(t.Properties())
	if !ok || err != nil {
		return 0, time.Time{}
	}
	all := t.Metadata().Snapshots()
	for i := len(all) - 1; i >= 0; i-- {
		if s := all[i]; s.Summary != nil && s.Summary.Properties[keyCommitID] == p.Commit.String() {
			return s.SnapshotID, time.UnixMilli(s.TimestampMs)
		}
	}
	return 0, time.Time{}
}
