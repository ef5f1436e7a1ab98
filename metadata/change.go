package metadata

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// keepChanges is how many entries of the change log are kept, at least. A follower that is
// further behind reads the state anew.
const (
	keepChanges  = 100_000
	pruneChanges = 1_024 // every so many entries the oldest are removed
)

// ErrChangesPruned says that changes after the given one are no longer kept: read the state
// anew and follow from the newest.
var ErrChangesPruned = errors.New("changes were pruned from the change log")

// ChangeKind says what a change was about.
type ChangeKind string

const (
	ChangeNode    ChangeKind = "node"    // subject: node id
	ChangeStream  ChangeKind = "stream"  // subject: the first stream's id
	ChangeObject  ChangeKind = "object"  // subject: the first object's id
	ChangeTopic   ChangeKind = "topic"   // subject: topic id
	ChangeSchema  ChangeKind = "schema"  // subject: schema subject
	ChangeLease   ChangeKind = "lease"   // subject: lease name
	ChangeCatalog ChangeKind = "catalog" // subject: catalog name
	ChangeUser    ChangeKind = "user"    // subject: user name, '' for the nodes themselves
	ChangeACL     ChangeKind = "acl"     // no subject
	ChangeQuota   ChangeKind = "quota"   // no subject
	ChangeGroup   ChangeKind = "group"   // subject: group
)

// A Change says that a transaction changed something; read it to learn what it is now.
type Change struct {
	Seq     int64 // dense, from 1, in the order of commits
	At      time.Time
	Kind    ChangeKind
	Subject string
}

// change leaves an entry in the change log.
func (t *tx) change(kind ChangeKind, subject any) error {
	seq, err := t.next("change", 1)
	if err != nil {
		return err
	}
	if _, err := t.exec(`INSERT INTO change_log (seq, at, kind, subject) VALUES ($1, $2, $3, $4)`,
		seq, t.s.now().UnixMilli(), string(kind), fmt.Sprint(subject)); err != nil {
		return fmt.Errorf("change log: %w", err)
	}
	t.last = seq
	if seq%pruneChanges == 0 {
		if _, err := t.exec(`DELETE FROM change_log WHERE seq <= $1`, seq-keepChanges); err != nil {
			return fmt.Errorf("prune change log: %w", err)
		}
	}
	return nil
}

// Changes returns up to limit changes after seq, in order; seq 0 is before the first.
func (s *Store) Changes(ctx context.Context, seq int64, limit int) ([]Change, error) {
	rows, err := s.readers.QueryContext(ctx, `SELECT seq, at, kind, subject FROM change_log WHERE seq > $1 ORDER BY seq LIMIT $2`, seq, limit)
	if err != nil {
		return nil, fmt.Errorf("read changes after %d: %w", seq, err)
	}
	defer rows.Close()
	var all []Change
	for rows.Next() {
		var c Change
		var at int64
		if err := rows.Scan(&c.Seq, &at, &c.Kind, &c.Subject); err != nil {
			return nil, fmt.Errorf("read changes after %d: %w", seq, err)
		}
		c.At = time.UnixMilli(at)
		all = append(all, c)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read changes after %d: %w", seq, err)
	}
	if len(all) > 0 && all[0].Seq != seq+1 {
		return nil, fmt.Errorf("read changes after %d: %w", seq, ErrChangesPruned)
	}
	return all, nil
}

// LastChange returns the number of the newest change, 0 if there is none.
func (s *Store) LastChange(ctx context.Context) (seq int64, err error) {
	if err := s.readers.QueryRowContext(ctx, `SELECT value FROM counter WHERE name = 'change'`).Scan(&seq); err != nil {
		return 0, fmt.Errorf("read the newest change: %w", err)
	}
	return seq, nil
}

// Shared reports whether other processes may change the database too: it is worth following.
func (s *Store) Shared() bool { return s.dialect.name == postgres.name }
