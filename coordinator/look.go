package coordinator

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/tabletopic/tabletopic/internal/invariant"
)

// The policies of table.topic.on.rewind.
const (
	RewindPause  = "pause"  // stop until the table is as it was, or the policy changes
	RewindReplay = "replay" // read again what the table lost, as far as the log has it
	RewindAccept = "accept" // leave it out, and record it
)

// The policies of table.topic.on.recreate.
const (
	RecreateContinue = "continue" // the records of a new topic are added to the rows of an earlier one
	RecreatePause    = "pause"    // stop until the policy changes, or the table is another
)

var (
	// ErrFenced says that another coordinator has the table: a later epoch, or a later
	// topic of the same name.
	ErrFenced = errors.New("fenced by a newer coordinator")

	// errRewound says that main no longer descends from the last commit, or that nothing
	// shows any more that it does.
	errRewound = errors.New("table was rewound")

	// errRecreated says that the table has rows of an earlier topic of the name.
	errRecreated = errors.New("table is of an earlier topic of this name")

	// errExpired says that look needs the snapshots that have expired.
	errExpired = errors.New("snapshots have expired")
)

// A view is what a loaded table says to one coordinator.
type view struct {
	position Position        // zero if the table never had a data commit
	own      bool            // position is of this topic id
	next     map[int32]int64 // what the next commit continues, after policy
	rewrite  bool            // the next commit sets every offset, not only those that move
	accepted []LostSpan      // and records these
	heads    []int64         // snapshots of the table that hold its last data commit, newest first
}

// heads are snapshots that hold a data commit.
type heads struct {
	commit uuid.UUID
	ids    []int64
}

// snapshots are what a table has, and had.
type snapshots struct {
	table.Metadata
	past map[int64]table.Snapshot // that have expired; nil if nobody has looked for them
}

// byID returns a snapshot, nil if nobody knows it.
func (s snapshots) byID(id int64) *table.Snapshot {
	if there := s.SnapshotByID(id); there != nil {
		return there
	}
	if gone, ok := s.past[id]; ok {
		return &gone
	}
	return nil
}

// look reads a table for the coordinator of topic in epoch. It decides by the loaded
// metadata alone, and decides the same as often as it is asked; known are snapshots that
// were seen to hold a data commit. It returns errExpired if past is nil and would help.
func look(meta snapshots, topic uuid.UUID, epoch int32, policy string, known heads) (view, error) {
	p, ok, err := ReadPosition(meta.Properties())
	if err != nil {
		return view{}, err
	}
	if !ok {
		if reached, _ := ancestry(meta, topic); len(reached) > 0 {
			return view{}, fmt.Errorf("%w: its snapshots hold data of this topic and the property %s is gone: restore the property, or drop the table to begin again", errRewound, keyState)
		}
		return view{next: map[int32]int64{}, rewrite: true}, nil
	}
	if p.Topic != topic && !invariant.Off("topic-incarnation") {
		// An earlier topic of the name. This one begins its own line of offsets.
		return view{position: p, next: map[int32]int64{}, rewrite: true}, nil
	}
	if p.Epoch > epoch && !invariant.Off("coordinator-epoch") {
		return view{}, fmt.Errorf("%w: the table was committed by epoch %d, this is epoch %d", ErrFenced, p.Epoch, epoch)
	}
	v := view{position: p, own: true, next: p.Next}
	verdict := holds
	if v.heads, verdict = descends(meta, p, known); verdict == holds || invariant.Off("table-rewind") {
		return v, nil
	}
	reached, complete := ancestry(meta, topic)
	if meta.past == nil && (verdict == untold || !complete) {
		return view{}, errExpired
	}
	for i := range p.Next {
		if _, ok := reached[i]; !ok && !complete && policy == RewindReplay {
			return view{}, fmt.Errorf("%w, and where partition %d now ends was in a snapshot that has expired: set table.topic.on.rewind=accept, or drop the table to begin again", errRewound, i)
		}
	}
	v.rewrite = true
	switch policy {
	case RewindReplay:
		v.next = reached
		for i := range p.Next {
			v.next[i] = reached[i] // begun once, if only at 0: what the log has lost since is a gap
		}
	case RewindAccept:
		for _, i := range slices.Sorted(maps.Keys(p.Next)) {
			if reached[i] < p.Next[i] {
				v.accepted = append(v.accepted, LostSpan{i, reached[i], p.Next[i], LostRewind})
			}
		}
	default:
		if verdict == untold {
			return view{}, fmt.Errorf("%w, or its history is lost: the snapshots between main and the last commit, snapshot sequence %d, have expired and nothing shows that main still holds it: see with 'tabletopic table verify --deep' whether rows are lost, then set table.topic.on.rewind=accept, or drop the table to begin again", errRewound, p.Sequence)
		}
		return view{}, fmt.Errorf("%w: main does not descend from the last commit, snapshot sequence %d: restore it, or set table.topic.on.rewind to replay or accept", errRewound, p.Sequence)
	}
	return v, nil
}

// Whether main has the last data commit.
type verdict int

const (
	holds  verdict = iota
	lacks          // it was rolled back or replaced
	untold         // what would tell has expired
)

// descends tells whether main holds the data commit of p, which the snapshots of p.Heads and
// known do, and which snapshots of the table hold it. An expired snapshot is still known as the
// parent of another.
func descends(meta snapshots, p Position, known heads) (ids []int64, v verdict) {
	held := map[int64]bool{}
	for _, id := range p.Heads {
		held[id] = true
	}
	if known.commit == p.Commit {
		for _, id := range known.ids {
			held[id] = true
		}
	}
	path := map[int64]bool{}
	for id := currentID(meta); ; {
		s := meta.byID(id)
		if held[id] || s != nil && s.SequenceNumber == p.Sequence {
			held[id] = true
			break
		}
		if s == nil && id != 0 && !invariant.Off("expired-is-no-proof") {
			return nil, untold
		}
		if s == nil && id != 0 {
			break
		}
		if s == nil || s.SequenceNumber < p.Sequence || s.ParentSnapshotID == nil {
			return nil, lacks
		}
		path[id] = true
		id = *s.ParentSnapshotID
	}
	all := meta.Snapshots()
	for i := len(all) - 1; i >= 0; i-- {
		if id := all[i].SnapshotID; held[id] || path[id] {
			ids = append(ids, id)
		}
	}
	return ids, holds
}

// currentID is 0 if the table has no snapshot.
func currentID(meta table.Metadata) int64 {
	if s := meta.CurrentSnapshot(); s != nil {
		return s.SnapshotID
	}
	return 0
}

// ancestry returns how far main is by the summaries of its snapshots, and whether all of
// them are there.
func ancestry(meta snapshots, topic uuid.UUID) (reached map[int32]int64, complete bool) {
	reached = map[int32]int64{}
	for s := meta.CurrentSnapshot(); s != nil; {
		if s.Summary != nil {
			sum, ok, err := ReadSummary(s.Summary.Properties)
			if err == nil && ok && sum.Topic == topic {
				for _, r := range sum.Ranges {
					reached[r.Partition] = max(reached[r.Partition], r.End)
				}
			}
		}
		if s.ParentSnapshotID == nil {
			return reached, true
		}
		s = meta.byID(*s.ParentSnapshotID)
		if s == nil {
			return reached, false
		}
	}
	return reached, true
}
