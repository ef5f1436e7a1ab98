package catalog

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

const (
	defaultSnapshotAge = 5 * 24 * time.Hour
	// expireBatch snapshots are dropped at a time, since each time costs two reads;
	// fewer when the oldest is overdue by expireSlack.
	expireBatch = 10
	expireSlack = time.Hour
)

// expired returns the snapshots that nothing keeps once next is the head of main: no tag,
// and no branch by its own or the table's history.expire properties.
func expired(meta table.Metadata, next table.Snapshot, now time.Time) []int64 {
	props := meta.Properties()
	keep := map[int64]bool{next.SnapshotID: true}
	maxAge := millis(props["history.expire.max-snapshot-age-ms"], defaultSnapshotAge)
	minKeep := 1
	if n, err := strconv.Atoi(props["history.expire.min-snapshots-to-keep"]); err == nil && n > 0 {
		minKeep = n
	}
	branch := func(id int64, kept int, minKeep int, maxAge time.Duration) {
		for s := meta.SnapshotByID(id); s != nil; {
			if kept >= minKeep && now.Sub(time.UnixMilli(s.TimestampMs)) > maxAge {
				break
			}
			keep[s.SnapshotID] = true
			kept++
			if s.ParentSnapshotID == nil {
				break
			}
			s = meta.SnapshotByID(*s.ParentSnapshotID)
		}
	}
	for name, ref := range meta.Refs() {
		keepOf, ageOf := minKeep, maxAge
		if ref.MinSnapshotsToKeep != nil {
			keepOf = *ref.MinSnapshotsToKeep
		}
		if ref.MaxSnapshotAgeMs != nil {
			ageOf = time.Duration(*ref.MaxSnapshotAgeMs) * time.Millisecond
		}
		switch {
		case name == table.MainBranch:
			branch(ref.SnapshotID, 1, keepOf, ageOf)
		case ref.SnapshotRefType == table.BranchRef:
			keep[ref.SnapshotID] = true
			branch(ref.SnapshotID, 0, keepOf, ageOf)
		default:
			keep[ref.SnapshotID] = true
		}
	}
	ancestors := map[int64]bool{}
	for s := meta.CurrentSnapshot(); s != nil; s = meta.SnapshotByID(*s.ParentSnapshotID) {
		ancestors[s.SnapshotID] = true
		if s.ParentSnapshotID == nil {
			break
		}
	}
	var out []int64
	overdue := false
	for _, s := range meta.Snapshots() {
		age := now.Sub(time.UnixMilli(s.TimestampMs))
		// What no ref reaches may belong to a writer that has not set its ref yet.
		if keep[s.SnapshotID] || age <= maxAge && !ancestors[s.SnapshotID] {
			continue
		}
		out = append(out, s.SnapshotID)
		overdue = overdue || age > maxAge+expireSlack
	}
	if len(out) < expireBatch && !overdue {
		return nil
	}
	return out
}

func millis(property string, otherwise time.Duration) time.Duration {
	n, err := strconv.ParseInt(property, 10, 64)
	if err != nil || n < 0 {
		return otherwise
	}
	return time.Duration(min(n, int64(1<<63-1)/int64(time.Millisecond))) * time.Millisecond
}

// Clean deletes the files that nothing names any more after the commit from base to
// next: manifest lists of the expired snapshots, and what only those held. What remains
// after an error is litter, not damage. Nothing is deleted if the table says gc.enabled=false.
func (p *Prepared) Clean(ctx context.Context, fs *IO, base, next *table.Table) error {
	if len(p.expired) == 0 || next.Properties()["gc.enabled"] == "false" {
		return nil
	}
	kept, line, ok := linear(base.Metadata(), next.Metadata(), p.expired)
	var dead []string
	var err error
	if ok {
		dead, ok, err = unnamed(fs, kept, line)
	}
	if err != nil {
		return fmt.Errorf("clean %v: %w", base.Identifier(), err)
	}
	if !ok {
		// Branches, rollbacks, overwrites: compare with every snapshot that is left.
		return table.NewRemoveSnapshotsUpdate(p.expired, true).PostCommit(ctx, base, next)
	}
	_, err = fs.DeleteFiles(ctx, dead)
	return err
}

// unnamed returns the files that only the expired snapshots of a line named, which ends with kept. It
// returns false if delete files are among what they alone named: several may be in one file.
func unnamed(fs *IO, kept *table.Snapshot, expired []*table.Snapshot) (dead []string, ok bool, err error) {
	live, err := kept.Manifests(fs)
	if err != nil {
		return nil, false, err
	}
	named, young, replaced := map[string]bool{}, map[int64]bool{kept.SnapshotID: true}, kept.Summary.Operation == table.OpReplace
	for _, m := range live {
		named[m.FilePath()] = true
	}
	var gone []iceberg.ManifestFile
	for _, s := range expired {
		manifests, err := s.Manifests(fs)
		if err != nil {
			return nil, false, err
		}
		dead = append(dead, s.ManifestList)
		for _, m := range manifests {
			if !named[m.FilePath()] {
				named[m.FilePath()] = true
				gone, dead = append(gone, m), append(dead, m.FilePath())
			}
		}
		young[s.SnapshotID] = true
		replaced = replaced || s.Summary.Operation == table.OpReplace
	}
	if !replaced {
		return dead, true, nil
	}
	// Data files have left the table: those of manifests that went, unless a manifest that was written
	// since the oldest of the line took them over.
	files := map[string]bool{}
	for _, m := range gone {
		if m.ManifestContent() != iceberg.ManifestContentData {
			return nil, false, nil
		}
		entries, err := LiveEntries(fs, m)
		if err != nil {
			return nil, false, err
		}
		for _, e := range entries {
			files[e.DataFile().FilePath()] = true
		}
	}
	for _, m := range live {
		if !young[m.SnapshotID()] || m.ManifestContent() != iceberg.ManifestContentData {
			continue
		}
		entries, err := LiveEntries(fs, m)
		if err != nil {
			return nil, false, err
		}
		for _, e := range entries {
			delete(files, e.DataFile().FilePath())
		}
	}
	return slices.AppendSeq(dead, maps.Keys(files)), true, nil
}

// linear reports whether the snapshots of a table are one line of appends and replacements, from the
// expired through the oldest that is kept. It returns that one, and the expired. Then a file that
// has left the table never comes back, and what the oldest kept one lacks is in no later one.
func linear(base, next table.Metadata, expired []int64) (kept *table.Snapshot, line []*table.Snapshot, ok bool) {
	gone := map[int64]bool{}
	for _, id := range expired {
		gone[id] = true
	}
	left := len(next.Snapshots()) + len(expired)
	var oldest *table.Snapshot
	lookup := func(id int64) *table.Snapshot {
		if s := next.SnapshotByID(id); s != nil {
			return s
		}
		return base.SnapshotByID(id)
	}
	for s := next.CurrentSnapshot(); s != nil; s = lookup(*s.ParentSnapshotID) {
		if s.Summary == nil || s.Summary.Operation != table.OpAppend && s.Summary.Operation != table.OpReplace {
			return nil, nil, false
		}
		if gone[s.SnapshotID] && oldest == nil {
			return nil, nil, false
		}
		if gone[s.SnapshotID] {
			line = append(line, s)
		} else {
			if oldest != nil && gone[*oldest.ParentSnapshotID] {
				return nil, nil, false // a kept one below an expired one
			}
			oldest = s
		}
		left--
		if s.ParentSnapshotID == nil {
			break
		}
	}
	return oldest, line, left == 0 && oldest != nil
}
