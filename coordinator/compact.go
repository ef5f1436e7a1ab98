package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/maintenance"
	"github.com/tabletopic/tabletopic/parquetio"
)

// The values of table.topic.compact.enabled.
const (
	CompactAuto  = "auto"  // unless somebody else compacts the table
	CompactTrue  = "true"  // in any case
	CompactFalse = "false" // only when it is asked for
)

const (
	// maxCompactedFile bounds the size of the files that are made, which are in memory before they are written.
	maxCompactedFile = 512 << 20
	// compactionShare is the part of its time that a node may be compacting tables, one in so many.
	compactionShare = 4
	// maxTries is how often a group of files is read again that could not be rewritten.
	maxTries = 3
	// maxVoids bounds how many times more files are waited for, as a power of two, because compactions
	// come to nothing: somebody else changes the table all the time.
	maxVoids = 6
)

// A Maintainer is a catalog that may compact the tables that it has by itself.
type Maintainer interface {
	MaintainsTables(ctx context.Context) bool
}

// propOptimizing is set by Amoro, which then compacts the table.
const propOptimizing = "self-optimizing.enabled"

// A CompactionReport says how far a compaction is that was asked for.
type CompactionReport struct {
	Files  int            `json:"files"`  // that have been replaced
	Into   int            `json:"into"`   // files that took their place
	Rows   int64          `json:"rows"`   // of those
	Bytes  int64          `json:"bytes"`  // before
	Small  int            `json:"small"`  // files that are left, smaller than the table's files should be
	Target int64          `json:"target"` // bytes that files should have
	Alone  map[string]int `json:"left_alone,omitempty"`
}

// A compactor compacts the table of one coordinator, round after round. The coordinator's loop owns
// it; a round is read and written beside the loop, which then commits it.
type compactor struct {
	busy  bool
	done  chan *rewritten // cap 1
	owned sync.WaitGroup

	fresh  int // data files committed since a look found nothing to do
	voids  int // rounds in a row that came to nothing
	looker maintenance.Looker
	tries  map[string]int // by the first file of a group that could not be rewritten
	asked  *compactionAsk // nil if nobody waits
}

// A compactionAsk is somebody who waits for a table to be compacted.
type compactionAsk struct {
	ctx    context.Context
	report CompactionReport
	tell   chan CompactionReport // cap 1: the newest
	end    chan error            // cap 1
}

// A rewritten is a round that has been read and written, and is not committed yet.
type rewritten struct {
	survey *maintenance.Survey // nil if the table could not be looked at
	target int64
	table  uuid.UUID
	change catalog.Commit // without files if there is nothing to do
	rows   int64
	bytes  int64
	names  []string        // of the files that may have been written
	held   context.Context // as long as the journal has them
	forget func()
	failed []string // first files of groups that could not be rewritten
	err    error
}

// compactionPolicy says which files of the table are small, and what to do about it.
func (c *Coordinator) compactionPolicy(eager bool) maintenance.Policy {
	target := c.cfg.TargetFileBytes
	if n, err := strconv.ParseInt(c.table.Properties()[table.WriteTargetFileSizeBytesKey], 10, 64); err == nil && n > 0 {
		target = n
	}
	return maintenance.Policy{Target: min(target, maxCompactedFile), MinFiles: c.cfg.CompactMinFiles, Small: c.cfg.CompactSmall, Eager: eager,
		MaxManifestBytes: 2 * catalog.ManifestTarget(c.table.Properties())}
}

// compacts tells whether the table is compacted without being asked for.
func (c *Coordinator) compacts(ctx context.Context) bool {
	switch c.cfg.Compact {
	case CompactTrue:
		return true
	case CompactFalse:
		return false
	}
	if on, err := strconv.ParseBool(c.table.Properties()[propOptimizing]); err == nil && on {
		return false
	}
	return c.maintainer == nil || !c.maintainer.MaintainsTables(ctx)
}

// compact begins a round if it is time to.
func (c *Coordinator) compact(ctx context.Context) {
	k := &c.compaction
	if k.asked != nil && k.asked.ctx.Err() != nil {
		k.asked = nil
	}
	if k.busy || c.table == nil || !c.own {
		return
	}
	if k.asked == nil && k.fresh < c.cfg.CompactMinFiles<<min(k.voids, maxVoids) {
		return
	}
	if k.asked == nil && !c.compacts(ctx) {
		k.fresh = 0
		return
	}
	k.busy, k.fresh = true, 0
	t, policy, asked := c.table, c.compactionPolicy(k.asked != nil), k.asked != nil
	order := table.UnsortedSortOrder
	if parquetio.CheckSortOrder(t.Schema(), t.SortOrder()) == nil {
		order = t.SortOrder()
	}
	k.owned.Go(func() {
		r := &rewritten{table: t.Metadata().TableUUID(), target: policy.Target, forget: func() {}}
		if r.err = c.slots.take(ctx, asked); r.err == nil {
			start := time.Now()
			r.err = c.rewrite(ctx, t, policy, order, r)
			c.slots.leave(time.Since(start))
		}
		k.done <- r
	})
}

// rewrite looks at the table, and writes what a round replaces. It runs beside the loop, which does not
// touch looker and tries meanwhile.
func (c *Coordinator) rewrite(ctx context.Context, t *table.Table, p maintenance.Policy, order table.SortOrder, r *rewritten) (err error) {
	k := &c.compaction
	if r.survey, err = k.looker.Look(ctx, t, p); err != nil {
		return err
	}
	p.RowBytes = r.survey.RowBytes
	var groups []maintenance.Group
	for _, g := range maintenance.Plan(r.survey.Files, p) {
		if k.tries[g.Files[0].FilePath()] < maxTries {
			groups = append(groups, g)
		}
	}
	if len(groups) == 0 {
		return nil
	}
	names := make([][]string, len(groups))
	for i, g := range groups {
		names[i] = g.Names(t)
		r.names = append(r.names, names[i]...)
	}
	entry := control.Journal{At: time.Now(), Table: r.table, Names: r.names}
	if !invariant.Off("compaction-is-named") {
		if err := c.append(ctx, entry); err != nil {
			return err
		}
	}
	r.held, r.forget = c.keepNamed(ctx, entry)
	replaces := &catalog.Replacement{Sequence: r.survey.Sequence}
	var failure error
	for i, g := range groups {
		out, err := maintenance.Rewrite(r.held, t, g, names[i], p, order, c.cores)
		if r.held.Err() != nil {
			return context.Cause(r.held)
		}
		if err != nil {
			failure = cmp.Or(failure, err)
			r.failed = append(r.failed, g.Files[0].FilePath())
			c.log.Warn("small files could not be rewritten", "error", err)
			continue
		}
		for _, f := range g.Files {
			replaces.Files, replaces.Manifests = append(replaces.Files, f.DataFile), append(replaces.Manifests, f.Manifest)
		}
		r.change.Files = append(r.change.Files, out...)
		r.rows, r.bytes = r.rows+g.Rows, r.bytes+g.Bytes
	}
	if len(r.change.Files) == 0 {
		return failure
	}
	r.change.Replaces, r.change.Snapshot = replaces, true
	return nil
}

// compacted takes a round that has been written, and commits it. The error is one after which the
// coordinator must begin anew.
func (c *Coordinator) compacted(ctx context.Context, r *rewritten) error {
	k := &c.compaction
	k.busy = false
	defer r.forget()
	if len(k.tries) > 1000 {
		k.tries = nil
	}
	for _, f := range r.failed {
		if k.tries == nil {
			k.tries = map[string]int{}
		}
		k.tries[f]++
	}
	if r.survey != nil {
		c.metrics.small.Set(float64(r.survey.Small))
		c.watch.surveyed(r.survey)
	}
	err := r.err
	if err == nil && r.change.Replaces != nil {
		err = c.replace(ctx, r)
	}
	switch {
	case errors.Is(err, ErrFenced), ctx.Err() != nil:
		return cmp.Or(context.Cause(ctx), err)
	case errors.Is(err, catalog.ErrFilesChanged):
		c.metrics.voids.Inc()
		k.voids++
		c.log.Info("compaction is void: the table is not as it was read", "error", err)
	case err != nil:
		c.metrics.compactionFailures.Inc()
		k.voids++
		c.log.Warn("small files stay as they are for now", "error", err)
	case r.change.Replaces != nil:
		k.voids, k.fresh = 0, c.cfg.CompactMinFiles // there may be more to do
		c.metrics.compactions.Inc()
		c.metrics.replaced.Add(float64(len(r.change.Replaces.Files)))
		c.metrics.replacedBytes.Add(float64(r.bytes))
		c.log.Info("compacted", "files", len(r.change.Replaces.Files), "into", len(r.change.Files), "rows", r.rows, "bytes", r.bytes)
	}
	if k.asked != nil {
		c.answer(r, err)
	}
	return nil
}

// answer tells who asked for the compaction how far it is. It is over when a round found nothing to do.
func (c *Coordinator) answer(r *rewritten, err error) {
	a := c.compaction.asked
	if r.survey != nil {
		a.report.Small, a.report.Alone, a.report.Target = r.survey.Small, r.survey.Alone, r.target
	}
	done := err == nil && r.change.Replaces == nil || err != nil && !errors.Is(err, catalog.ErrFilesChanged)
	if err == nil && r.change.Replaces != nil {
		a.report.Files += len(r.change.Replaces.Files)
		a.report.Into += len(r.change.Files)
		a.report.Rows += r.rows
		a.report.Bytes += r.bytes
	}
	select { // the newest counts
	case <-a.tell:
	default:
	}
	a.tell <- a.report
	if done {
		a.end <- err
		c.compaction.asked = nil
	}
}

// replace brings a round into the table, in the same way as commit does data: a conflict is tried again
// on top of the other change, as long as the files are in the table as they were read. Without a
// commit of the topic since, the change says that it descends from the last.
func (c *Coordinator) replace(ctx context.Context, r *rewritten) error {
	var tried []int64 // snapshots
	for attempt := 0; ; attempt++ {
		if c.table == nil {
			return fmt.Errorf("%w: it was dropped", catalog.ErrFilesChanged)
		}
		v, err := c.look(ctx)
		if err != nil {
			return err
		}
		for _, id := range tried {
			if c.table.SnapshotByID(id) != nil {
				return nil
			}
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case r.held.Err() != nil:
			return context.Cause(r.held)
		case c.table.Metadata().TableUUID() != r.table:
			return fmt.Errorf("%w: another table has the name", catalog.ErrFilesChanged)
		case !v.own || v.rewrite:
			return fmt.Errorf("%w: it waits for a commit of the topic", catalog.ErrFilesChanged)
		}
		change := r.change
		change.Attempt, change.SnapshotID = uuid.New(), catalog.NewSnapshotID(c.table.Metadata())
		p := v.position
		p.Heads = append([]int64{change.SnapshotID}, v.heads...)
		change.Properties = iceberg.Properties{keyHeads: p.headsProperty()}
		change.Summary = iceberg.Properties{keyCompaction: strconv.Itoa(int(c.topic.Epoch))}
		tried = append(tried, change.SnapshotID)
		next, names, err := c.propose(r.held, change)
		switch {
		case err == nil:
			c.table = next
			for _, f := range change.Files {
				names = append(names, f.FilePath())
			}
			_ = c.append(ctx, control.Committed{Epoch: c.topic.Epoch, Names: names}) // without it the sweep asks the table
			return nil
		case errors.Is(err, catalog.ErrCommitConflict):
			c.metrics.conflicts.Inc()
		case errors.Is(err, catalog.ErrCommitUnknown):
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			c.metrics.unknowns.Inc()
			c.log.Warn("outcome of a compaction unknown: reading the table until it is", "attempt", attempt+1, "error", err)
		default:
			return err
		}
		if err := c.pause(ctx, attempt); err != nil {
			return err
		}
		if err := c.reload(ctx); err != nil {
			return err
		}
	}
}

// slots are the turns of the tables of a node to be compacted: one at a time, and a share of the time.
type slots struct {
	turn chan struct{} // cap 1
	free time.Time     // of who has the turn
}

func newSlots() *slots { return &slots{turn: make(chan struct{}, 1)} }

// take waits for a turn; at once for who is asked.
func (s *slots) take(ctx context.Context, at bool) error {
	if s == nil {
		return nil
	}
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if at {
		return nil
	}
	if err := sleep(ctx, time.Until(s.free)); err != nil {
		<-s.turn
		return err
	}
	return nil
}

// leave ends a turn that took so long.
func (s *slots) leave(took time.Duration) {
	if s == nil {
		return
	}
	s.free = time.Now().Add((compactionShare - 1) * took)
	<-s.turn
}

// Compact makes the small files of the table of a topic into large ones, whatever the settings say, and
// tells how far it is. It ends when there is nothing left to do, or ctx does. The coordinator of the topic
// must be here.
func (m *Manager) Compact(ctx context.Context, topic uuid.UUID, tell func(CompactionReport)) (CompactionReport, error) {
	c, err := m.begun(ctx, topic)
	if err != nil {
		return CompactionReport{}, err
	}
	if err := c.Trouble(); err != nil {
		return CompactionReport{}, err
	}
	a := &compactionAsk{ctx: ctx, tell: make(chan CompactionReport, 1), end: make(chan error, 1)}
	select {
	case c.asks <- a:
	case <-ctx.Done():
		return CompactionReport{}, context.Cause(ctx)
	}
	var last CompactionReport
	for {
		select {
		case last = <-a.tell:
			tell(last)
		case err := <-a.end:
			select {
			case last = <-a.tell:
			default:
			}
			return last, err
		case <-ctx.Done():
			return last, context.Cause(ctx)
		}
	}
}

// begun returns the coordinator of a topic. That of a table that was just switched on begins in a moment.
func (m *Manager) begun(ctx context.Context, topic uuid.UUID) (*Coordinator, error) {
	for range 100 {
		m.mu.Lock()
		c := m.coordinators[topic]
		m.mu.Unlock()
		if c != nil {
			return c, nil
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
	return nil, errors.New("the table is switched off, or its coordinator is with the leader of partition 0, which is not here")
}

// ask takes somebody who wants the table compacted now.
func (c *Coordinator) ask(a *compactionAsk) {
	switch {
	case c.compaction.asked != nil && c.compaction.asked.ctx.Err() == nil:
		a.end <- errors.New("somebody else has it compacted already")
	case c.table == nil || !c.own: // the topic has nothing in it
		a.end <- nil
	default:
		c.compaction.asked = a
	}
}

// LastCompaction returns when files of the table were last made larger, zero if that is not known.
func LastCompaction(t *table.Table) time.Time {
	all := t.Metadata().Snapshots()
	for i := len(all) - 1; i >= 0; i-- {
		if s := all[i]; s.Summary != nil && s.Summary.Properties[keyCompaction] != "" {
			return time.UnixMilli(s.TimestampMs)
		}
	}
	return time.Time{}
}
