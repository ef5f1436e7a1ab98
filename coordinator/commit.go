package coordinator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/codec"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/catalog"
	"github.com/tabletopic/tabletopic/internal/invariant"
)

var (
	// errMoved says that the table is not where the commit begins: another commit took
	// place. Its files are void, and the workers begin again from the table.
	errMoved = errors.New("table moved")
	// errReplaced says that another table has the name, or none.
	errReplaced = errors.New("table was replaced")
	// errLapsed says that the journal does not keep files of a commit any more.
	errLapsed = errors.New("the files of the commit could not be journalled for so long that the sweep may take them")
)

// commit brings cm into the table, once. The order is
//
//	request durable   State appended it before it took answers
//	files durable     a worker answers after its PUTs
//	catalog           here
//	committed         State.Done appends it after this returns
//
// The catalog's three outcomes are one loop: done ends it; after a conflict, or an outcome
// that is not known, the table is loaded until it can be, and says itself whether the
// commit is there. Data files are never written again, and never deleted here. Another
// attempt cannot double a first one that is still on its way: each is conditional on the
// table that it was built on. The names returned are those of the files that the attempt wrote
// which came about; none if it was not the last one, and then the sweep finds them in the table.
func (c *Coordinator) commit(ctx context.Context, cm *Commit) (snapshot int64, names []string, err error) {
	var last int64 // snapshot of the attempt whose files names are
	for attempt := 0; ; attempt++ {
		v, err := c.look(ctx)
		if err != nil {
			return 0, nil, err
		}
		if v.own && v.position.Commit == cm.ID {
			if snapshot = snapshotOf(c.table, cm); snapshot != last {
				names = nil
			}
			return snapshot, names, nil
		}
		if ctx.Err() != nil {
			return 0, nil, context.Cause(ctx)
		}
		if !continues(v, cm) && !invariant.Off("commit-continues") {
			return 0, nil, fmt.Errorf("%w: commit %s begins at %v, the table is at %v", errMoved, cm.ID, offsets(cm.From), offsets(v.next))
		}
		change, err := c.change(v, cm)
		if err != nil {
			return 0, nil, err
		}
		start := time.Now()
		var next *table.Table
		next, names, err = c.propose(ctx, change)
		last = change.SnapshotID
		c.metrics.commitSeconds.Observe(time.Since(start).Seconds())
		switch {
		case err == nil:
			c.table = next
			return snapshotOf(next, cm), names, nil
		case errors.Is(err, catalog.ErrCommitConflict):
			c.metrics.conflicts.Inc()
			c.log.Info("commit conflict: another change came first; trying again on top of it", "commit_id", cm.ID, "attempt", attempt+1)
		case errors.Is(err, catalog.ErrCommitUnknown):
			if ctx.Err() != nil {
				return 0, nil, context.Cause(ctx) // the next coordinator reads the table
			}
			c.metrics.unknowns.Inc()
			c.refused(err)
			c.log.Warn("commit outcome unknown: reading the table until it is", "commit_id", cm.ID, "attempt", attempt+1, "error", err)
		default:
			return 0, nil, fmt.Errorf("commit %s: %w", cm.ID, err)
		}
		if err := c.pause(ctx, attempt); err != nil {
			return 0, nil, err
		}
		if err := c.reload(ctx); err != nil {
			return 0, nil, err
		}
	}
}

// continues reports whether each range of cm begins where the table ends.
func continues(v view, cm *Commit) bool {
	for _, r := range cm.Ranges {
		from, begun := cm.From[r.Partition]
		at, ok := v.next[r.Partition]
		if begun != ok || from != at {
			return false
		}
	}
	return true
}

// change is what the catalog is asked for: files, offsets and ranges as one.
func (c *Coordinator) change(v view, cm *Commit) (catalog.Commit, error) {
	meta := c.table.Metadata()
	c.begin()
	out := catalog.Commit{Snapshot: true, Attempt: c.attempt.id, SnapshotID: c.attempt.snapshot}
	for _, f := range cm.Files {
		if len(f.Data) == 0 {
			continue
		}
		// Files of an earlier spec are as good as those of the current one.
		spec := meta.PartitionSpecByID(f.Spec)
		if spec == nil {
			return catalog.Commit{}, fmt.Errorf("%w: commit %s has files of partition spec %d, which the table does not have", errMoved, cm.ID, f.Spec)
		}
		schema := meta.CurrentSchema()
		for _, s := range meta.Schemas() {
			if s.ID == f.Schema {
				schema = s
			}
		}
		for _, d := range f.Data {
			df, err := codec.DecodeDataFile(d.Entry, *spec, schema, meta.Version())
			if err != nil {
				return catalog.Commit{}, fmt.Errorf("commit %s: manifest entry of %s: %w", cm.ID, d.Location, err)
			}
			out.Files = append(out.Files, df)
		}
	}

	p := Position{
		Topic:    c.topic.ID,
		Epoch:    c.topic.Epoch,
		Sequence: meta.LastSequenceNumber() + 1,
		Commit:   cm.ID,
		Next:     maps.Clone(v.next),
		Heads:    []int64{out.SnapshotID},
	}
	moved := []int32{}
	for _, r := range cm.Ranges {
		p.Next[r.Partition] = r.End
		moved = append(moved, r.Partition)
	}
	if v.rewrite {
		moved = nil
	}
	p.count(v, cm)
	out.Properties = p.properties(moved)
	maps.Copy(out.Properties, p.totalsProperties(moved, v.position.Lost))
	out.Properties[keyTopic] = c.topic.Name
	out.Properties[keyProbe] = "ok"
	if rules, err := RulesOf(c.cfg, c.table); err == nil && c.table.Properties()[keyMapping] != rules.String() { // an error is one that look gave
		out.Properties[keyMapping] = rules.String()
	}
	if c.cfg.Takes != "" {
		out.Properties[keyFanOut] = takesProperty(c.table.Properties()[keyFanOut], c.cfg.Takes)
	}
	s := Summary{Topic: c.topic.ID, Epoch: c.topic.Epoch, Commit: cm.ID, Ranges: cm.Ranges, Lost: append(cm.gaps(), v.accepted...)}
	out.Summary = s.properties()
	c.commits++
	out.Expire = !c.cfg.KeepAll && c.commits%expireEvery == 0
	return out, nil
}

// expireEvery is how many commits go by until old snapshots and metadata are expired with one.
const expireEvery = 16

// gaps are the offsets that the workers did not read: those before the start of the table, and
// those that the log had lost.
func (c *Commit) gaps() (gaps []LostSpan) {
	begun := map[int32]bool{}
	for _, f := range c.Files {
		for _, r := range f.Ranges {
			reason := LostRetention
			if _, before := c.From[r.Partition]; !before && !begun[r.Partition] {
				reason = LostStart
			}
			begun[r.Partition] = true
			if r.Gap > 0 {
				gaps = append(gaps, LostSpan{r.Partition, r.Start - r.Gap, r.Start, reason})
			}
		}
	}
	return gaps
}

// snapshotOf returns the id of the snapshot that cm became; 0 if it has expired.
func snapshotOf(t *table.Table, cm *Commit) int64 {
	all := t.Metadata().Snapshots()
	for i := len(all) - 1; i >= 0; i-- {
		if s := all[i].Summary; s != nil && s.Properties[keyCommitID] == cm.ID.String() {
			return all[i].SnapshotID
		}
	}
	return 0
}

// look reads the loaded table.
func (c *Coordinator) look(ctx context.Context) (view, error) {
	meta := c.table.Metadata()
	if c.uuid != meta.TableUUID() && !invariant.Off("table-uuid") {
		return view{}, fmt.Errorf("%w: its id was %s and is %s", errReplaced, c.uuid, meta.TableUUID())
	}
	if err := CheckOwner(c.table, c.topic.Name); err != nil {
		return view{}, err
	}
	if _, err := RulesOf(c.cfg, c.table); err != nil {
		return view{}, err
	}
	if meta.Version() < 2 {
		return view{}, fmt.Errorf("table %s has format version %d: upgrade it to 2, by its property format-version", strings.Join(c.ident, "."), meta.Version())
	}
	v, err := look(snapshots{meta, nil}, c.topic.ID, c.topic.Epoch, c.cfg.OnRewind, c.heads)
	if errors.Is(err, errExpired) {
		past, pastErr := c.past(ctx)
		if pastErr != nil {
			return view{}, pastErr
		}
		v, err = look(snapshots{meta, past}, c.topic.ID, c.topic.Epoch, c.cfg.OnRewind, c.heads)
	}
	if err != nil {
		return view{}, err
	}
	if earlier := v.position.Topic; !v.own && earlier != (uuid.UUID{}) && c.cfg.OnRecreate == RecreatePause {
		return view{}, fmt.Errorf("%w, whose id was %s: set table.topic.on.recreate=continue to add the records of this one, or table.topic.name to another table", errRecreated, earlier)
	}
	c.heads = heads{v.position.Commit, v.heads}
	if c.own && !v.own {
		return view{}, fmt.Errorf("%w: the table belongs to another topic of the name now, id %s", ErrFenced, v.position.Topic)
	}
	c.own = v.own
	return v, nil
}

// past returns snapshots that have expired, from the earlier metadata files that the table still
// has. One of a store that is away is asked for again.
func (c *Coordinator) past(ctx context.Context) (map[int64]table.Snapshot, error) {
	past := map[int64]table.Snapshot{}
	p, _, err := ReadPosition(c.table.Properties())
	if err != nil {
		return nil, err
	}
	entries := slices.Collect(c.table.Metadata().PreviousFiles())
	for attempt, i := 0, len(entries)-1; i >= max(0, len(entries)-maxPast); {
		t, err := table.NewFromLocation(ctx, c.ident, entries[i].MetadataFile, c.table.FS, nil)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return past, nil // deleted, and so are those before it
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil && attempt < maxPastAttempts:
			c.log.Warn("earlier metadata of the table, for its history: trying again", "file", entries[i].MetadataFile, "error", err)
			if err := c.pause(ctx, attempt); err != nil {
				return nil, err
			}
			attempt++
			continue
		case err != nil:
			c.log.Warn("earlier metadata of the table cannot be read: what it knew of its history counts for nothing", "file", entries[i].MetadataFile, "error", err)
			return past, nil
		}
		for _, s := range t.Metadata().Snapshots() {
			past[s.SnapshotID] = s
		}
		if t.Metadata().LastSequenceNumber() <= p.Sequence {
			break // as the last commit left the table, or before it
		}
		attempt, i = 0, i-1
	}
	return past, nil
}

const (
	maxPast         = 100 // metadata files that are read for the history of a table, at most
	maxPastAttempts = 5
)

// reload loads the table until it is known: an error of the catalog is waited out.
func (c *Coordinator) reload(ctx context.Context) error {
	for attempt := 0; ; attempt++ {
		t, err := c.catalog.Load(ctx, c.ident)
		switch {
		case err == nil:
			c.table = t
			return nil
		case errors.Is(err, catalog.ErrNoTable):
			return fmt.Errorf("%w: it was dropped", errReplaced)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		c.log.Warn("load table: trying again", "table", c.ident, "attempt", attempt+1, "error", err)
		if err := c.pause(ctx, attempt); err != nil {
			return err
		}
	}
}

// pause waits longer with each attempt, up to the configured limit.
func (c *Coordinator) pause(ctx context.Context, attempt int) error {
	d := min(c.cfg.MinBackoff<<min(attempt, 16), c.cfg.MaxBackoff)
	return sleep(ctx, d/2+time.Duration(c.jitter.Int64N(int64(d/2+1))))
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// properties are set when the table is made.
func (c *Coordinator) properties() iceberg.Properties {
	return iceberg.Properties{
		"format-version":                             strconv.Itoa(c.cfg.FormatVersion),
		"write.parquet.compression-codec":            "zstd",
		"write.metadata.delete-after-commit.enabled": "true",
		"write.metadata.previous-versions-max":       "20",
		"history.expire.max-snapshot-age-ms":         strconv.FormatInt(c.cfg.ExpireAfter.Milliseconds(), 10),
		"history.expire.min-snapshots-to-keep":       strconv.Itoa(c.cfg.ExpireRetain),
		keyTopic:                                     c.topic.Name,
		keyMapping:                                   c.cfg.Rules.String(),
	}
}
