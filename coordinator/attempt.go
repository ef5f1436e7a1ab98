package coordinator

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/coordinator/control"
	"github.com/tabletopic/tabletopic/internal/invariant"
)

// An attempt is one try to commit data. Its ids are drawn before, because the manifest, the manifest
// list and the metadata file that it may leave behind are named by them: the journal has the names
// before the catalog is asked, so that the sweep knows these files as it knows data files.
type attempt struct {
	id       uuid.UUID
	snapshot int64
	entry    control.Journal // of its names; zero if there is none yet
}

// begin draws the ids of the next attempt, unless there are some that nobody has used. Those of an entry that lapsed
// are never used: a sweep may have taken their names for dead, and delete what has them at any time.
func (c *Coordinator) begin() {
	if c.attempt.id == (uuid.UUID{}) || c.lapsed(c.attempt.entry) {
		c.attempt = attempt{id: uuid.New(), snapshot: catalog.NewSnapshotID(c.table.Metadata())}
	}
}

// lapsed reports that an entry keeps its names no longer.
func (c *Coordinator) lapsed(entry control.Journal) bool {
	return !entry.At.IsZero() && !time.Now().Before(control.Lapses(entry.At, c.cfg.Grace)) && !invariant.Off("attempt-lapses")
}

// foresee has the names of the next attempt journalled with the request, in one append: a commit on
// the table as it is now, with files of one partition spec, waits for no entry of its own.
func (c *Coordinator) foresee(step *Step) {
	if len(step.Append) == 0 || invariant.Off("attempt-is-named") {
		return
	}
	c.attempt = attempt{} // the names of an earlier round could lapse before this entry of them is in the log
	c.begin()
	names := catalog.Names(c.table, catalog.Commit{Snapshot: true, Attempt: c.attempt.id, SnapshotID: c.attempt.snapshot})
	c.attempt.entry = control.Journal{At: time.Now(), Table: c.uuid, Names: names}
	step.Append = append([]control.Event{c.attempt.entry}, step.Append...)
}

// propose asks the catalog for a change of the table as it was loaded, and returns the names of the
// files that this writes. They are in the journal before, and as long as the call takes; whatever
// comes of it, the sweep then leaves them for half of its grace at least.
func (c *Coordinator) propose(ctx context.Context, change catalog.Commit) (next *table.Table, names []string, err error) {
	if change.Attempt == (uuid.UUID{}) {
		change.Attempt = uuid.New()
	}
	names = catalog.Names(c.table, change)
	var before control.Journal
	if change.Attempt == c.attempt.id {
		before, c.attempt = c.attempt.entry, attempt{}
	}
	entry := before
	if !c.keeps(entry, names) && !invariant.Off("attempt-is-named") {
		entry = control.Journal{At: time.Now(), Table: c.uuid, Names: names}
		if err := c.append(ctx, entry); err != nil {
			return nil, nil, fmt.Errorf("%w: it was not asked for: %w", catalog.ErrCommitUnknown, err)
		}
		if c.lapsed(before) && !invariant.Off("attempt-renewed-in-time") {
			return nil, nil, fmt.Errorf("%w: it was not asked for: %w", catalog.ErrCommitUnknown, errLapsed)
		}
	}
	held, forget := c.keepNamed(ctx, entry)
	defer forget()
	next, err = c.catalog.Commit(held, c.table, change)
	return next, names, err
}

// keeps reports whether an entry has the names, and need not be renewed yet.
func (c *Coordinator) keeps(entry control.Journal, names []string) bool {
	return time.Since(entry.At) < control.Refresh(c.cfg.Grace) &&
		!slices.ContainsFunc(names, func(n string) bool { return !slices.Contains(entry.Names, n) })
}

// alter makes a change without records: of schema, partitions or properties.
func (c *Coordinator) alter(ctx context.Context, change catalog.Commit) (*table.Table, error) {
	next, names, err := c.propose(ctx, change)
	if err == nil {
		_ = c.append(ctx, control.Committed{Epoch: c.topic.Epoch, Names: names}) // without it the sweep asks the table
	}
	return next, err
}

// keepNamed journals the files of an entry again and again until forget has returned: a commit may
// wait for its catalog longer than the worker lives that wrote its data files, and the sweep must not
// take them, or what the commit wrote itself, for files that nobody wants. If that fails for too long,
// held ends with errLapsed: whatever is asked of the catalog for them ends with it.
func (c *Coordinator) keepNamed(ctx context.Context, entry control.Journal) (held context.Context, forget func()) {
	if len(entry.Names) == 0 {
		return ctx, func() {}
	}
	held, cancel := context.WithCancelCause(ctx)
	lapse := time.AfterFunc(time.Until(control.Lapses(entry.At, c.cfg.Grace)), func() {
		if !invariant.Off("commit-lapses") {
			cancel(errLapsed)
		}
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		wait := control.Refresh(c.cfg.Grace)
		for sleep(held, wait) == nil && !invariant.Off("commit-keeps-names") {
			entry.At = time.Now()
			err := c.append(held, entry)
			if err == nil && lapse.Stop() {
				lapse.Reset(time.Until(control.Lapses(entry.At, c.cfg.Grace)))
			}
			wait = control.Refresh(c.cfg.Grace)
			if err != nil && held.Err() == nil {
				wait = min(wait, c.cfg.MaxBackoff)
				c.log.Warn("journal the files of a commit: trying again", "error", err)
			}
		}
	}()
	return held, func() { cancel(nil); lapse.Stop(); <-done }
}
